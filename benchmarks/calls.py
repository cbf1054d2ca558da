"""What a call costs the host: 64 x 64 products of float32 whose operands lie on the device.

    python benchmarks/calls.py --csv calls.csv

For PyTorch's tensors, CuPy's arrays and PyCUDA's, as far as these are here: a call of a plan, of
`pymm.matmul` with `out` and without, and of the library's own product. Each is called 50 times
without a pause, the device is waited for, and that is done 101 times for all calls in random order;
a call's figure is the median over these of the time for one, without the waiting. So little is
queued that the host never waits for room in the queue.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import importlib
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import pymm  # noqa: E402
from pymm.backends import open_device  # noqa: E402
from pymm.core.files import append, commit  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402

SIZE, CALLS = 64, 50

COLUMNS = (
    "time",
    "device",
    "driver",
    "pymm",
    "commit",
    "dtype",
    "layout",
    "m",
    "n",
    "k",
    "arrays",
    "call",
    "us",
    "quartile_1",
    "quartile_3",
)

Call = Callable[[], Any]


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--csv", type=Path, help="file that the rows are appended to")
    parser.add_argument("--rounds", type=int, default=101, help="(default: 101)")
    parser.add_argument("--commit", default=commit(), help="what rows say of pymm's commit")
    given = parser.parse_args(arguments)
    backend = open_device("cuda")
    importlib.import_module("pycuda.autoprimaryctx")  # current in this thread, as PyCUDA's users do
    calls = {(arrays, name): call for arrays in ARRAYS for name, call in contestants(arrays)}
    for call in calls.values():
        for _ in range(5):  # compiled, chosen, and in the end what is launched again and again
            call()
    rows = []
    start = {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": backend.device.slug,
        "driver": Environment.of(backend.device, "").driver,
        "pymm": pymm.__version__,
        "commit": given.commit,
        "dtype": "f32",
        "layout": "NN",
        "m": SIZE,
        "n": SIZE,
        "k": SIZE,
    }
    for (arrays, name), samples in measured(calls, given.rounds, backend.synchronize).items():
        low, middle, high = statistics.quantiles(samples, n=4)
        figures = {"us": middle, "quartile_1": low, "quartile_3": high}
        rows.append(
            start
            | {"arrays": arrays, "call": name}
            | {key: f"{value * 1e6:.3g}" for key, value in figures.items()}
        )
        print(f"{arrays:20} {name:30} {middle * 1e6:6.2f} us")
    if given.csv:
        append(given.csv, COLUMNS, rows)
    return 0


def measured(calls: dict[Any, Call], rounds: int, synchronize: Call) -> dict[Any, list[float]]:
    """Seconds of the host for one call, of each in every round."""
    order, found = list(calls), {key: [] for key in calls}
    for _ in range(rounds):
        random.shuffle(order)
        for key in order:
            call = calls[key]
            start = time.perf_counter_ns()
            for _ in range(CALLS):
                call()
            found[key].append((time.perf_counter_ns() - start) * 1e-9 / CALLS)
            synchronize()
    return found


def contestants(arrays: str) -> Iterator[tuple[str, Call]]:
    """The calls with arrays of one library; none if that is not here."""
    try:
        library = importlib.import_module(ARRAYS[arrays][0])
    except ImportError:
        return
    if arrays == "PyTorch" and not library.cuda.is_available():  # a build for CPUs
        return
    a, b, c = (ARRAYS[arrays][1](library, x) for x in operands())
    yield "plan()", pymm.plan(a, b, out=c)
    yield "pymm.matmul(a, b, out=c)", lambda: pymm.matmul(a, b, out=c)
    yield "pymm.matmul(a, b)", lambda: pymm.matmul(a, b)
    if hasattr(library, "matmul"):
        yield f"{arrays}'s matmul(a, b, out=c)", lambda: library.matmul(a, b, out=c)
        yield f"{arrays}'s matmul(a, b)", lambda: library.matmul(a, b)


def operands() -> list[np.ndarray]:
    """A, B and C."""
    generator = np.random.default_rng(0)
    return [generator.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in range(3)]


@functools.cache
def pool() -> Any:
    """PyCUDA's memory pool, which has to give back what it holds before the context goes."""
    memory = importlib.import_module("pycuda.tools").DeviceMemoryPool()
    atexit.register(memory.stop_holding)
    return memory


#: By a library's name, its module and how it makes an array on the device.
ARRAYS: dict[str, tuple[str, Callable[[Any, np.ndarray], Any]]] = {
    "PyTorch": ("torch", lambda torch, x: torch.from_numpy(x).cuda()),
    "CuPy": ("cupy", lambda cupy, x: cupy.asarray(x)),
    "PyCUDA": ("pycuda.gpuarray", lambda gpuarray, x: gpuarray.to_gpu(x)),
    "PyCUDA, memory pool": (
        "pycuda.gpuarray",
        lambda gpuarray, x: gpuarray.to_gpu(x, pool().allocate),
    ),
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
