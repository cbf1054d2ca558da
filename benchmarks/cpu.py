"""pymm on the CPU and NumPy's BLAS: square products, each library in a process of its own, in turn;
and both in one process, call after call.

    python benchmarks/cpu.py --csv benchmarks/results/amd-epyc-2-cores/beside-numpy.csv

Each library is called without a pause for about 20 ms, then the other; its figure is the median
over the rounds of the time for one call, with operands in the caches. pymm is called in two ways:
a plan, and `pymm.matmul` with `out`. Before a library begins, the threads of the other have come to
rest. `alternating` are calls of a plan and of NumPy in turn in one process, each timed alone; the
figure is their median, and `slowest` the slowest of them but for one in a hundred.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # a checkout need not be installed

import pymm  # noqa: E402
from pymm.backends import open_device  # noqa: E402
from pymm.backends.cpu.backend import SETTLED  # noqa: E402
from pymm.bench.runner import origin  # noqa: E402
from pymm.core.files import append, commit  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.measure.apart import Apart, operands, timed  # noqa: E402
from pymm.measure.libraries import numpy_product  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402

SIZES = "16,64,128,256,512,1024,2048"

#: Seconds of calls without a pause, and calls in turn in one process.
BURST, TURNS = 0.02, 400

COLUMNS = (
    "time",
    "device",
    "driver",
    "compiler",
    "pymm",
    "commit",
    "dtype",
    "layout",
    "m",
    "n",
    "k",
    "process",
    "call",
    "us",
    "quartile_1",
    "quartile_3",
    "slowest",
    "ratio",
)


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, help="file that the rows are appended to")
    parser.add_argument("--sizes", default=SIZES, help=f"(default: {SIZES})")
    parser.add_argument("--dtypes", default="f32,f64", help="(default: f32,f64)")
    parser.add_argument("--threads", type=int, default=2, help="(default: 2)")
    parser.add_argument("--rounds", type=int, default=11, help="(default: 11)")
    parser.add_argument("--commit", default=commit(), help="what rows say of pymm's commit")
    given = parser.parse_args(arguments)
    backend = open_device(f"cpu:{given.threads}")
    environment = Environment.of(backend.device, backend.toolchain)
    start = {
        **origin(backend.device, environment, given.commit),
        "layout": "NN",
    }
    makers = {name: Apart(maker, given.threads) for name, maker in MAKERS.items()}
    for dtype in given.dtypes.split(","):
        for size in map(int, given.sizes.split(",")):
            problem = Problem(size, size, size, dtype)
            rows = [*in_turn(problem, makers, given.rounds), *alternating(problem, given.threads)]
            named = {"dtype": dtype, "m": size, "n": size, "k": size}
            if given.csv:
                append(given.csv, COLUMNS, [start | named | row for row in rows])
            for row in rows:
                words = f"{row['us']:>9} us  slowest {row['slowest']:>9}  ratio {row['ratio']}"
                print(f"{dtype} {size:5} {row['process']:12} {row['call']:14} {words}")
    return 0


def in_turn(problem: Problem, makers: dict[str, Apart], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each library in a process of its own. `ratio` is NumPy's time / that one's."""
    samples: dict[str, list[float]] = {name: [] for name in makers}
    repeats = {}
    for name, apart in makers.items():
        once = statistics.median(apart.seconds(problem, samples=5))
        repeats[name] = max(round(BURST / once), 1)
    for _ in range(rounds):
        for name, apart in makers.items():
            time.sleep(SETTLED)
            samples[name] += apart.seconds(problem, repeats=repeats[name])
    for name, found in samples.items():
        yield row_of("own", name, found, statistics.median(samples["NumPy"]))


def alternating(problem: Problem, threads: int) -> Iterator[dict[str, Any]]:
    """A row for each library, called in turn in this process."""
    matrices = operands(problem)
    calls = {
        "NumPy": numpy_product(problem, *matrices, threads, False),
        "plan": plan(problem, *matrices, threads, False),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    ends = time.monotonic() + 10
    for turn in range(TURNS):
        for name, call in calls.items():
            samples[name].append(timed(call, 1))
        if turn > 20 and time.monotonic() > ends:
            break
    for name, found in samples.items():
        yield row_of("shared", name, found, statistics.median(samples["NumPy"]))


def row_of(process: str, name: str, samples: list[float], numpy: float) -> dict[str, Any]:
    """The columns of one library's samples."""
    low, middle, high = statistics.quantiles(samples, n=4)
    slowest = sorted(samples)[-1 - len(samples) // 100]
    figures = {"us": middle, "quartile_1": low, "quartile_3": high, "slowest": slowest}
    shown = {key: f"{value * 1e6:.4g}" for key, value in figures.items()}
    return {"process": process, "call": name} | shown | {"ratio": f"{numpy / middle:.3g}"}


# What the processes call


def plan(
    problem: Problem,
    left: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    threads: int,
    accumulate: bool,
) -> Callable[[], object]:
    """A plan of the product."""
    return pymm.plan(left, right, out=out, device=f"cpu:{threads}")


def matmul(
    problem: Problem,
    left: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    threads: int,
    accumulate: bool,
) -> Callable[[], object]:
    """`pymm.matmul` of the arrays."""
    return functools.partial(pymm.matmul, left, right, out, device=f"cpu:{threads}")


#: By the name in the CSV, what makes the calls of a process.
MAKERS = {
    "NumPy": "pymm.measure.libraries:numpy_product",
    "plan": "cpu:plan",
    "matmul": "cpu:matmul",
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
