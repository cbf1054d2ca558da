"""`python -m pymm.bench`: kernels side by side with other libraries, every row in a CSV at once.

Each problem is one run: every kernel's default and tuned configuration and every opponent that can
be imported, verified, then timed in turn (A B A B) with cold caches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import wait
from contextlib import ExitStack
from datetime import datetime
from itertools import chain

from rich.console import Console
from rich.progress import Progress

from pymm.bench.classes import run_classes
from pymm.bench.experiments.command import Order, execute
from pymm.bench.options import parser
from pymm.console import duration
from pymm.core.device import Device
from pymm.core.files import append, commit
from pymm.core.problem import DTYPES, Problem
from pymm.core.shapes import LAYOUTS, class_problems, parse_shapes
from pymm.kernels import Config, Kernel, find_kernel, kernels_for
from pymm.kernels.source import Source, kernel_digest, render
from pymm.measure.precompile import Precompiler, compilers_beside, config_directory
from pymm.measure.verify import sources
from pymm.measure.workbench import Trial, median_and_spread
from pymm.measure.worker import Reply, Request, Site, Worker, WorkerFailed, time_limit
from pymm.selection.records import Environment, Record, StoreError, stale_because
from pymm.selection.store import load
from pymm.tune.trial_log import SEEN

SCHEMA = 3

#: Units: seconds (median), spread (interquartile range / median), gflops (10^9 operations per
#: second), peak (part of the device's peak rate), ratio (time of the fastest opponent in the same
#: run / this time), void (samples taken again because the host was late), error (largest
#: deviation / its bound), spills (bytes of a thread), shared (bytes of a block), and what
#: `Backend.telemetry` tells.
COLUMNS = (
    "schema",
    "time",
    "device",
    "driver",
    "compiler",
    "pymm",
    "commit",
    "op",
    "dtype",
    "layout",
    "m",
    "n",
    "k",
    "name",
    "variant",
    "config",
    "source",
    "outcome",
    "seconds",
    "spread",
    "rounds",
    "void",
    "gflops",
    "peak",
    "ratio",
    "error",
    "registers",
    "spills",
    "shared",
    *SEEN,
    "detail",
)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    reader = parser()
    options = reader.parse_args(argv)
    console = Console()
    started = time.monotonic()
    try:
        if options.op == "syrk" and not (options.shapes or options.classes or options.suite):
            options.suite, options.dtypes = "o3", options.dtypes or "f64,f32"
        if options.suite:
            return execute(options, Order.of(options), console)
        products = _products(options)
        worker = Worker(Site(options.device))
        worker.start()
    except WorkerFailed as failure:
        console.print(str(failure), markup=False, highlight=False, soft_wrap=True)
        return 3
    except (ValueError, NotImplementedError, OSError) as failure:
        reader.error(str(failure))
    try:
        if options.classes:
            return run_classes(worker, products, options, console, started)
        return _run(worker, [problem for _, problem in products], options, console)
    except WorkerFailed as failure:  # a child was lost, and no other could be started
        console.print(str(failure), markup=False, highlight=False, soft_wrap=True)
        return 3
    except (StoreError, ValueError) as failure:
        reader.error(str(failure))
    finally:
        worker.stop()


def _products(options: argparse.Namespace) -> list[tuple[str, Problem]]:
    """What to measure, with the class of each ("" for shapes). `ValueError` for bad options."""
    if bool(options.shapes) == bool(options.classes):
        raise ValueError("give --shapes or --classes, one of the two, or --suite")
    every = options.dtypes == "all" or (options.classes and options.dtypes is None)
    dtypes = list(DTYPES) if every else (options.dtypes or "f32,f64").split(",")
    usual = "NN" if options.op == "gemm" else "NT,TN"
    given = options.transposes or ("all" if options.classes else usual)
    layouts = LAYOUTS if given == "all" else given.split(",")
    if options.classes:
        return class_problems(options.classes.split(","), dtypes, layouts)
    if options.op != "gemm" and not set(layouts) <= {"NT", "TN"}:
        raise ValueError(f"--op {options.op} has layouts NT (A A^T) and TN (A^T A)")
    options.dtypes = "all" if every else ",".join(dtypes)
    return [
        ("", Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", op=options.op))
        for dtype in dtypes
        for layout in layouts
        for m, n, k in parse_shapes(options.shapes)
    ]


def _run(
    worker: Worker, problems: Sequence[Problem], options: argparse.Namespace, console: Console
) -> int:
    device, directory = worker.device, options.records or config_directory()
    environment = Environment.of(device, worker.compiler.toolchain)
    records = [r for r in load(device, directory) if not stale_because(r, device, environment)]
    if options.dtypes == "all":
        problems = [problem for problem in problems if kernels_for(problem, device)]
    named = options.commit or commit()
    quick, failures = options.checks == "quick", 0
    tasks = [(p, _variants(p, device, options.kernels, records)) for p in problems]
    if options.dry_run:
        return _describe(tasks, quick, console)
    with ExitStack() as held:
        pool = held.enter_context(Precompiler(worker.compiler, compilers_beside(device)))
        builds = [
            [pool.submit(t) for config in set(variants.values()) for t in _texts(config, p, quick)]
            for p, variants in tasks
        ]
        if device.shares_host_cores or not options.compile_meanwhile:
            wait(list(chain(*builds)))  # compilers take cores from what is measured
        progress = held.enter_context(Progress(console=console, disable=not console.is_terminal))
        for place, (problem, variants) in enumerate(progress.track(tasks, description=device.name)):
            wait(builds[place])  # what failed fails again, and is told, where it is measured
            configs = tuple(dict.fromkeys(variants.values()))
            limit = len(configs) * time_limit(problem, device) + 60.0
            request = Request(
                "compare",
                problem,
                configs,
                rounds=options.rounds or 15,
                against_others=True,
                quick=quick,
            )
            reply = worker.ask(request, limit)
            if reply.outcome != "ok":
                console.print(f"{problem.slug}: {reply.outcome}, {reply.detail}", markup=False)
                failures += 1
                continue
            rows = list(_rows(problem, device, environment, variants, reply, named))
            failures += sum(row["outcome"] != "ok" for row in rows)
            if options.csv:
                append(options.csv, COLUMNS, rows)
            _show(console, problem, rows)
    return 1 if failures else 0


def _describe(
    tasks: Sequence[tuple[Problem, dict[tuple[str, str], Config]]], quick: bool, console: Console
) -> int:
    """Say what would be measured."""
    keys: set[str] = set()
    for problem, variants in tasks:
        for (name, variant), config in variants.items():
            keys.update(text.key for text in _texts(config, problem, quick))
            line = f"{problem.slug} {name} {variant} {config.slug}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    measured = sum(len(set(variants.values())) for _, variants in tasks)
    console.print(f"{len(tasks)} products, {measured} configurations, {len(keys)} texts to compile")
    return 0


def _texts(config: Config, problem: Problem, quick: bool) -> list[Source]:
    return [render(config, problem)] if quick else sources(config, problem)


def _kernels(names: str, problem: Problem, device: Device) -> list[Kernel]:
    if names == "all":
        return kernels_for(problem, device)
    backend = device.kernel_backend
    return [find_kernel(name, backend) for name in names.split(",")]


def _variants(
    problem: Problem, device: Device, names: str, records: Sequence[Record]
) -> dict[tuple[str, str], Config]:
    """What to run by kernel and variant. `tuned` is there only if this very problem was tuned."""
    variants = {}
    for kernel in _kernels(names, problem, device):
        name = f"{kernel.number:02d}_{kernel.name}"
        default = kernel.default_for(problem, device)
        if not kernel.violations(default, problem, device):
            variants[name, "default"] = default
        for record in records:
            if record.problem == problem and record.config.kernel_name == kernel.name:
                variants[name, "tuned"] = record.config
                break
    return variants


def _rows(
    problem: Problem,
    device: Device,
    environment: Environment,
    variants: dict[tuple[str, str], Config],
    reply: Reply,
    named: str = "",
) -> Iterator[dict[str, object]]:
    shared = {
        "schema": SCHEMA,
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": device.slug,
        "driver": environment.driver,
        "compiler": environment.compiler,
        "pymm": environment.pymm,
        "commit": named,
        "op": problem.op,
        "dtype": problem.dtype,
        "layout": problem.layout,
        **{axis: getattr(problem, axis) for axis in "mnk"},
    }
    others = {name: statistics.median(times) for name, times in reply.times.items() if times}
    best = min(others.values(), default=float("nan"))
    for name, times in reply.times.items():
        void = {"name": name, "void": reply.void.get(name, 0)}
        if not times:
            yield shared | void | {"outcome": "disturbed", "detail": "the host was late"}
            continue
        seconds, spread = median_and_spread(times)
        speed = _speed(problem, device, seconds, best)
        yield (
            shared
            | void
            | {"outcome": "ok", "spread": f"{spread:.4g}", "rounds": len(times), **speed}
        )
    found = {trial.config: trial for trial in reply.trials}
    for (name, variant), config in variants.items():
        yield shared | {"name": name, "variant": variant} | _measured(found[config], device, best)


def _measured(trial: Trial, device: Device, best: float) -> dict[str, object]:
    config, seen = trial.config, trial.telemetry
    row = {
        "config": config.slug,
        "source": kernel_digest(config.backend, config.kernel.file),
        "outcome": trial.outcome,
        "registers": trial.resources.registers,
        "spills": trial.resources.spilled_bytes,
        "shared": trial.resources.shared_bytes,
        "detail": " ".join(trial.detail.split())[:500],
        **{name: seen.get(name, "") for name in SEEN},
    }
    if trial.seconds > 0:
        row |= _speed(trial.problem, device, trial.seconds, best)
        row |= {
            "spread": f"{trial.spread:.4g}",
            "rounds": len(trial.times),
            "void": trial.void,
            "error": f"{trial.error:.3g}",
        }
    return row


def _speed(problem: Problem, device: Device, seconds: float, best: float) -> dict[str, str]:
    rate, peak = problem.flops / seconds, device.peak_flops.get(problem.dtype)
    return {
        "seconds": f"{seconds:.9g}",
        "gflops": f"{rate / 1e9:.6g}",
        "peak": f"{rate / peak:.4g}" if peak else "",
        "ratio": f"{best / seconds:.4g}" if best == best else "",
    }


def _show(console: Console, problem: Problem, rows: Sequence[dict[str, object]]) -> None:
    console.print(problem.slug, markup=False, highlight=False)
    for row in rows:
        seconds = row.get("seconds")
        time = (
            f"{duration(float(seconds)):>12s} {float(row['gflops']):10.1f} GFLOP/s"
            if (seconds)
            else f"{row['outcome']}: {row['detail']}"
        )
        ratio = f"  {float(row['ratio']):6.3f} of the opponent" if row.get("ratio") else ""
        what = f"{row['name']} {row.get('variant', '')}"
        line = f"  {what:26s}{time}{ratio}  {row.get('config', '')}"
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
