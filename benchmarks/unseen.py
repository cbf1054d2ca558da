"""Shapes that were never tuned: what is chosen for them against what tuning them would find.

    python benchmarks/unseen.py --count 60 --budget 240 --records DIR --csv unseen.csv

Each of `--count` random products (extents log-uniform between 64 and 8192, drawn from `--seed`, the
types in turn) gets an equal share of the budget for a search of its own. The searches see one
another's results; all are thrown away at the end, and `matmul` does not see them. Then what
`matmul` chooses, the default of every kernel that a search would try, what `matmul` would choose
had nothing been tuned on this device, what the search found, and the baselines are measured in
turn. Prints the geometric mean of chosen against the fastest of pymm's, the worst case against the
quickest default, and which choices are surely slower than a default: by more than 0.5 %, and by
more than noise brings about with a probability of 4 % in any of all comparisons. With
`--budget 0` nothing is searched, and a product whose defaults are all what is chosen is left out:
it cannot be slower. Exit status 0 if the mean is at least 0.97 and no choice is surely slower than
a default, else 1.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import wait
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import Config  # noqa: E402
from pymm.kernels.source import render  # noqa: E402
from pymm.measure.libraries import COMPARED  # noqa: E402
from pymm.measure.precompile import Precompiler, compilers_beside, config_directory  # noqa: E402
from pymm.measure.results import UNSEEN  # noqa: E402
from pymm.measure.worker import Reply, Request, Site, Worker, time_limit  # noqa: E402
from pymm.selection.records import Environment, Record  # noqa: E402
from pymm.selection.select import Choice, select  # noqa: E402
from pymm.selection.store import load  # noqa: E402
from pymm.tune.finals import surely_slower  # noqa: E402
from pymm.tune.options import Options  # noqa: E402
from pymm.tune.tasks import competitors  # noqa: E402
from pymm.tune.tuner import Tuner  # noqa: E402

#: Extents are drawn between these, and products of more operations are drawn again: they would take
#: longer than their share of the time.
LEAST, MOST, MOST_FLOPS = 64, 8192, 2e11

#: What the choices have to reach.
WANTED = 0.97

#: Seconds of the comparison of one product.
COMPARISON = 0.3


@dataclass(frozen=True)
class Products(Options):
    """The options of a tuner for products that no list of shapes and types spells."""

    products: tuple[Problem, ...] = ()

    def problems(self, standard: Sequence[tuple[int, int, int]]) -> list[Problem]:
        """The products, small ones first."""
        return sorted(self.products, key=lambda problem: problem.flops)


@dataclass(frozen=True)
class Entry:
    """A product: what is chosen for it, the defaults of all kernels and of a device of which
    nothing is known, what its own search found.
    """

    problem: Problem
    choice: Choice
    defaults: tuple[Config, ...]
    found: Config | None

    @property
    def configs(self) -> tuple[Config, ...]:
        """Each of them once."""
        every = (self.choice.config, *self.defaults, self.found)
        return tuple(dict.fromkeys(config for config in every if config is not None))


def draw(count: int, dtypes: Sequence[str], seed: int, most: int = MOST) -> list[Problem]:
    """`count` random products, the types in turn."""
    generator, found = np.random.default_rng(seed), []
    while len(found) < count:
        extents = np.exp(generator.uniform(math.log(LEAST), math.log(most), 3))
        problem = Problem(*(int(x) for x in extents), dtypes[len(found) % len(dtypes)])
        if problem.flops <= MOST_FLOPS:
            found.append(problem)
    return list(dict.fromkeys(found))


def main(arguments: Sequence[str]) -> int:
    """The command. Returns the exit status."""
    given = _parser().parse_args(arguments)
    products = draw(given.count, given.dtypes.split(","), given.seed, given.most)
    device = int(given.device) if given.device and given.device.isdigit() else given.device
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder)
        options = Products(
            products=tuple(products),
            dtypes=tuple(dict.fromkeys(p.dtype for p in products)),
            budget=given.budget,
            devices=(device,),
            storage=where / "state",
            output=where / "found",
            csv=given.trials or where / "trials.csv",
            checks="quick",
        )
        if given.budget:
            Tuner(options).run()
        worker = Worker(Site(device))
        worker.start()
        try:
            found = load(worker.device, where / "found")
            entries = [_entry(worker, p, found, given) for p in products]
            if not given.budget:
                entries = [entry for entry in entries if len(entry.configs) > 1]
                print(f"{len(entries)} of {len(products)} products have another default")
            _compile(worker, entries)
            rows = []
            for entry in entries:
                if row := _row(worker, entry, given):
                    rows.append(row)
                    if given.csv:
                        UNSEEN.append(given.csv, [row])
        finally:
            worker.stop()
    return _judge(rows, len(entries))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--count", type=int, default=60, help="products (default: 60)")
    add("--dtypes", default="f32,bf16,f64", help="types in turn (default: f32,bf16,f64)")
    add("--seed", type=int, default=1)
    add("--most", type=int, default=MOST, help=f"largest extent (default: {MOST})")
    add(
        "--budget",
        type=float,
        default=240.0,
        help="seconds of all searches (default: 240); 0: no searches",
    )
    add("--records", type=Path, help="folder of tuned configurations (default: the user's)")
    add("--device", help="0, cpu (default: the first GPU, else the CPU)")
    add("--csv", type=Path, help="file that the rows are appended to")
    add("--trials", type=Path, help="file that every trial is appended to")
    return parser


def _entry(
    worker: Worker, problem: Problem, found: Sequence[Record], given: argparse.Namespace
) -> Entry:
    device = worker.device
    environment = Environment.of(device, worker.compiler.toolchain)
    choice = select(problem, device, given.records or config_directory(), environment)
    defaults = [kernel.default_for(problem, device) for kernel in competitors(problem, device)]
    untuned = select(problem, replace(device, name="untuned"), None, environment).config
    own = min((r for r in found if r.problem == problem), key=lambda r: r.seconds, default=None)
    return Entry(problem, choice, (*defaults, untuned), own and own.config)


def _compile(worker: Worker, entries: Sequence[Entry]) -> None:
    """Side by side: what the searches never met would be compiled one after the other."""
    with Precompiler(worker.compiler, compilers_beside(worker.device)) as pool:
        wait([pool.submit(render(c, e.problem)) for e in entries for c in e.configs])


def _row(worker: Worker, entry: Entry, given: argparse.Namespace) -> dict[str, object] | None:
    problem, choice, own = entry.problem, entry.choice, entry.found
    request = Request(
        "compare",
        problem,
        entry.configs,
        rounds=31,
        quick=True,
        budget=COMPARISON,
        against_others=True,
    )
    reply = worker.ask(request, time_limit(problem, worker.device, quick=True))
    trials = {t.config: t for t in reply.trials if t.outcome == "ok"}
    seconds = {config: trial.seconds for config, trial in trials.items()}
    if choice.config not in seconds:
        print(f"{problem.slug}: {choice.config.slug} {reply.outcome} {reply.detail}")
        return None
    default = min(entry.defaults, key=lambda config: seconds.get(config, math.inf))
    others = {d: trials[d] for d in entry.defaults if d in trials and d != choice.config}
    comparisons = len(others) * given.count
    slower = surely_slower(trials[choice.config], list(others.values()), comparisons)
    chosen, usual = seconds[choice.config], seconds.get(default, math.nan)
    row = {
        **_origin(worker),
        "seed": given.seed,
        "dtype": problem.dtype,
        "layout": problem.layout,
        **{axis: getattr(problem, axis) for axis in "mnk"},
        "chosen": choice.config.slug,
        "reason": choice.reason,
        "chosen_us": _us(chosen),
        "default": default.slug,
        "default_us": _us(usual),
        "found": own.slug if own else "",
        "found_us": _us(seconds.get(own, math.nan)),
        "of_fastest": f"{min(seconds.values()) / chosen:.4g}",
        "of_default": f"{usual / chosen:.4g}" if usual == usual else "",
        "slower": f"{slower:.4g}",
        **_beside(reply, chosen),
    }
    print(
        f"{problem.slug}: {row['of_fastest']} of the fastest, {row['chosen_us']} us, "
        f"{choice.config.slug} ({choice.reason})"
        + (f"; at least {slower:.2%} slower than a default" if slower else ""),
        flush=True,
    )
    return row


def _origin(worker: Worker) -> dict[str, str]:
    """When a row was measured, and with what."""
    environment = Environment.of(worker.device, worker.compiler.toolchain)
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": worker.device.slug,
        "driver": environment.driver,
        "compiler": environment.compiler,
        "pymm": environment.pymm,
    }


def _beside(reply: Reply, chosen: float) -> dict[str, str]:
    """Times of the baselines, and the fastest of them / `chosen`."""
    times = {n: statistics.median(of) for n, of in reply.times.items() if of and n in COMPARED}
    columns = {f"{name}_us": _us(seconds) for name, seconds in times.items()}
    found = {name: text for name, text in columns.items() if name in UNSEEN.columns}
    return found | ({"ratio": f"{min(times.values()) / chosen:.4g}"} if times else {})


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.6g}" if seconds == seconds else ""


def _judge(rows: Sequence[dict[str, object]], wanted: int) -> int:
    if not wanted:
        print("every choice is the default")
        return 0
    parts = [float(row["of_fastest"]) for row in rows]
    if not parts:
        print("nothing could be measured")
        return 1
    mean = math.exp(sum(map(math.log, parts)) / len(parts))
    beside = [float(row["of_default"]) for row in rows if row["of_default"]]
    least = min(beside, default=math.nan)
    slower = sum(float(row["slower"]) > 0 for row in rows)
    print(
        f"{len(rows)} of {wanted} products: chosen against the fastest {mean:.3f} (geometric "
        f"mean), least {min(parts):.3f}; against the default, least {least:.3f}; surely slower "
        f"than a default: {slower}"
    )
    return int(len(rows) < wanted or mean < WANTED or slower > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
