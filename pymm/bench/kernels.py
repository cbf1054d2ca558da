"""`python -m pymm.bench`: kernels compared with other libraries, every row in a CSV at once.

Each problem is one run: every kernel's default and tuned configuration and every baseline that can
be imported, verified, then timed in turn (A B A B) with cold caches, on a CPU with warm ones.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from pathlib import Path

from rich.console import Console

from pymm.bench.classes import run_classes
from pymm.bench.experiments.command import Order, execute
from pymm.bench.experiments.declaration import ALIASES, FORCED
from pymm.bench.options import parser
from pymm.bench.runner import INTERRUPTED, Row, Runner, open_worker, origin, product, say
from pymm.console import duration
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.errors import StoreError
from pymm.core.files import commit
from pymm.core.problem import Problem
from pymm.core.shapes import DRAWN, LAYOUTS, class_problems, parse_shapes
from pymm.kernels import Config, Guards, Kernel, find_kernel, kernels_for, parse_slug
from pymm.kernels.source import Source, kernel_digest, render
from pymm.measure.precompile import config_directory
from pymm.measure.results import CLASSES, EXPERIMENTS, KERNELS, SEEN, one_line
from pymm.measure.verify import sources
from pymm.measure.workbench import Trial, median_and_spread
from pymm.measure.worker import Reply, Request, WorkerFailed, time_limit
from pymm.selection.records import Environment, Record, stale_because
from pymm.selection.select import select
from pymm.selection.store import load


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    reader = parser()
    options = reader.parse_args(argv)
    console = Console()
    started = time.monotonic()
    try:
        if options.op == "syrk" and not (options.shapes or options.classes or options.suite):
            options.suite, options.dtypes = "o3", options.dtypes or "f64,f32"
        order = Order.of(options) if options.suite else None
        products = [] if order else _products(options)
    except (ValueError, NotImplementedError, OSError) as failure:
        reader.error(str(failure))
    try:
        with open_worker(options.device, console) as (worker, stop):
            schema = EXPERIMENTS if order else CLASSES if options.classes else KERNELS
            runner = Runner(
                worker,
                schema,
                options.csv,
                started + options.time_limit if order or options.classes else math.inf,
                stop,
                options.compile_meanwhile and not order,
                options.commit or commit(),
                console,
            )
            if order:
                status = execute(runner, order, options)
            elif options.classes:
                status = run_classes(runner, products, options)
            else:
                status = _run(runner, [problem for _, problem in products], options)
            return INTERRUPTED if stop() else status
    except KeyboardInterrupt:  # the second: at once
        say(console, "interrupted; the same command continues")
        return INTERRUPTED
    except WorkerFailed as failure:  # no device, or a child was lost and no other could be started
        say(console, str(failure))
        return 3
    except (StoreError, ValueError, NotImplementedError, OSError) as failure:
        reader.error(str(failure))


def _products(options: argparse.Namespace) -> list[tuple[str, Problem]]:
    """What to measure, with the class of each ("" for shapes). `ValueError` for bad options."""
    if bool(options.shapes) == bool(options.classes):
        raise ValueError("give --shapes or --classes, one of the two, or --suite")
    if options.classes and options.configs:
        raise ValueError("--configs and --classes: give the products by --shapes")
    if options.classes and options.guarded != "auto":
        raise ValueError("--guarded and --classes: matmul's choice has the guards that it needs")
    every = options.dtypes == "all" or (options.classes and options.dtypes is None)
    dtypes = list(DTYPES) if every else (options.dtypes or "f32,f64").split(",")
    usual = "NN" if options.op == "gemm" else "NT,TN"
    given = options.transposes or ("all" if options.classes else usual)
    layouts = LAYOUTS if given == "all" else given.split(",")
    if options.classes:
        named = options.classes.split(",")
        classes = [f"{name}-{options.seed}" if name in DRAWN else name for name in named]
        return class_problems(classes, dtypes, layouts, options.count)
    if options.op != "gemm" and not set(layouts) <= {"NT", "TN"}:
        raise ValueError(f"--op {options.op} has layouts NT (A A^T) and TN (A^T A)")
    options.dtypes = "all" if every else ",".join(dtypes)
    return [
        ("", Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", op=options.op))
        for dtype in dtypes
        for layout in layouts
        for m, n, k in parse_shapes(options.shapes)
    ]


def _run(runner: Runner, problems: Sequence[Problem], options: argparse.Namespace) -> int:
    device, directory = runner.device, options.records or config_directory()
    kernels = options.kernels or ("" if options.configs else "all")
    named = _named(kernels, options.guarded, device)
    given = _given(options.configs, device)
    records = [
        r for r in load(device, directory) if not stale_because(r, device, runner.environment)
    ]
    if options.dtypes == "all":
        problems = [problem for problem in problems if kernels_for(problem, device)]
    # a thorough check has odd extents, which need guards
    bare = any(forced.get("GUARDED") not in (None, Guards.ON) for _, _, forced in named or ())
    quick, failures = options.checks == "quick" or bare, 0
    tasks = [(p, _variants(p, device, named, records)) for p in problems]
    for problem, variants in tasks if given else ():
        environment = runner.environment
        variants |= _chosen_and(given, problem, device, directory, environment, runner.say)
    if options.dry_run:
        return _describe(tasks, quick, runner.console)
    if options.csv:
        KERNELS.begun(options.csv)  # learn now that it has other columns
    sources_of = [[t for c in set(v.values()) for t in _sources(c, p, quick)] for p, v in tasks]
    with runner.compiling(sources_of) as builds:
        numbered = list(zip(tasks, builds, strict=True))
        for (problem, variants), build in runner.each(numbered, lambda task: task[0][0].slug):
            wait(build)  # what failed fails again, and is reported, where it is measured
            configs = tuple(dict.fromkeys(variants.values()))
            request = Request(
                "compare",
                problem,
                configs,
                rounds=options.rounds or 15,
                against_others=True,
                quick=quick,
            )
            reply = runner.ask(request, len(configs) * time_limit(problem, device) + 60.0)
            if reply.outcome != "ok":
                runner.say(f"{problem.slug}: {reply.outcome}, {reply.detail}")
                failures += 1
                continue
            rows = list(_rows(problem, runner, variants, reply))
            failures += sum(row["outcome"] != "ok" for row in rows)
            runner.keep(rows)
            _show(runner.console, problem, rows)
    return 1 if failures else 0


def _describe(
    tasks: Sequence[tuple[Problem, dict[tuple[str, str], Config]]], quick: bool, console: Console
) -> int:
    """Say what would be measured."""
    keys: set[str] = set()
    for problem, variants in tasks:
        for (name, variant), config in variants.items():
            keys.update(text.key for text in _sources(config, problem, quick))
            line = f"{problem.slug} {name} {variant} {config.slug}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    measured = sum(len(set(variants.values())) for _, variants in tasks)
    console.print(
        f"{len(tasks)} products, {measured} configurations, {len(keys)} sources to compile"
    )
    return 0


def _sources(config: Config, problem: Problem, quick: bool) -> list[Source]:
    return [render(config, problem)] if quick else sources(config, problem)


#: A kernel, the variant of it that is asked for, and the macros that this forces.
Named = tuple[Kernel, str, dict[str, int]]


def _given(slugs: str | None, device: Device) -> list[Config]:
    """The configurations that `--configs` spells. `ValueError` for what is none."""
    spelled = slugs.split(",") if slugs else []
    return [parse_slug(slug, device.kernel_backend) for slug in dict.fromkeys(spelled)]


def _chosen_and(
    given: Sequence[Config],
    problem: Problem,
    device: Device,
    directory: Path,
    environment: Environment,
    say: Callable[[str], None],
) -> dict[tuple[str, str], Config]:
    """What is chosen for the product, and those of `given` that may run, by kernel and variant."""
    chosen = select(problem, device, directory, environment).config
    variants = {(chosen.kernel.label, "chosen"): chosen}
    for number, config in enumerate(given, 1):
        kernel = config.kernel
        why = kernel.violations(config, problem, device)
        if kernel not in kernels_for(problem, device):
            why = [f"{kernel.label} does not compute {problem.dtype} here"]
        if why:
            say(f"{problem.slug}: {config.slug} is left out: {'; '.join(why)}")
        else:
            variants[kernel.label, f"given {number}"] = config
    return variants


def _named(names: str, guarded: str, device: Device) -> list[Named] | None:
    """The kernels that `--kernels` and `--guarded` name, None for all. `ValueError` for one that
    there is not, and for guards of a kernel that has them always.
    """
    if not names:
        if guarded != "auto":
            raise ValueError(f"--guarded {guarded}: name the kernels, --kernels 00,01,02")
        return []
    asked = {"on": "guarded", "off": "unguarded", "auto": ""}[guarded]
    if names == "all":
        if asked:
            raise ValueError(f"--guarded {guarded}: name the kernels, --kernels 00,01,02")
        return None
    found = []
    for name in names.split(","):
        wanted, _, variant = ALIASES.get(name, name).partition(" ")
        if asked and variant not in ("", asked):
            raise ValueError(f"--guarded {guarded}: {name} is {variant}")
        kernel = find_kernel(wanted, device.kernel_backend)
        forced = FORCED.get(variant or asked, {})
        kernel.default_config.forcing(**forced)
        found.append((kernel, variant or asked, forced))
    return found


def _variants(
    problem: Problem, device: Device, named: Sequence[Named] | None, records: Sequence[Record]
) -> dict[tuple[str, str], Config]:
    """What to run by kernel and variant; `named` are the kernels, None: all. `tuned` is there only
    if this very problem was tuned, and no variant is asked for.
    """
    variants = {}
    every = [(kernel, "", {}) for kernel in kernels_for(problem, device)]
    for kernel, variant, forced in every if named is None else named:
        name = kernel.label
        default = kernel.default_for(problem, device)
        if not kernel.violations(default, problem, device):
            variants[name, variant or "default"] = default.forcing(**forced)
        if forced:
            continue
        for record in records:
            if record.problem == problem and record.config.kernel_name == kernel.name:
                variants[name, "tuned"] = record.config
                break
    return variants


def _rows(
    problem: Problem, runner: Runner, variants: dict[tuple[str, str], Config], reply: Reply
) -> Iterator[Row]:
    device = runner.device
    shared = {
        **origin(device, runner.environment, runner.commit),
        "op": problem.op,
        **product(problem),
    }
    others = {name: statistics.median(times) for name, times in reply.times.items() if times}
    best = min(others.values(), default=float("nan"))
    for name, times in reply.times.items():
        void = {"name": name, "void": reply.void.get(name, 0)}
        if not times:
            yield shared | void | {"outcome": "disturbed", "detail": "host launch delay"}
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
        "detail": one_line(trial.detail),
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
        ratio = f"  {float(row['ratio']):6.3f} of the baseline" if row.get("ratio") else ""
        what = f"{row['name']} {row.get('variant', '')}"
        line = f"  {what:26s}{time}{ratio}  {row.get('config', '')}"
        console.print(line.rstrip(), markup=False, highlight=False, soft_wrap=True)
