"""How long a first call takes: `pymm precompile` in an empty cache, then shapes never seen.

    python benchmarks/first_calls.py [--shapes 200] [--device cuda:0] [--csv first_calls.csv]

Each row is one product of arrays on the GPU, of a type and a layout at random: seconds of its first
call until the device is done, and the median time of the configuration that it used and of its own.
Printed are the slowest call, how many took longer than 0.1 s, and the geometric mean of the speed
of what they used, relative to their own.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

#: NumPy's names of the operands, and `precision=`.
TYPES = {
    "f32": ("float32", "ieee"),
    "f64": ("float64", "ieee"),
    "f16": ("float16", "ieee"),
    "bf16": ("bfloat16", "ieee"),
    "tf32": ("float32", "tf32"),
}

#: Type, m, n, k, and whether A and B are stored transposed.
Product = tuple[str, int, int, int, bool, bool]

#: Least extent, and seconds that no first call should take.
LEAST, LIMIT = 16, 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", type=int, default=200)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--csv", default="first_calls.csv")
    parser.add_argument("--most", type=int, default=8192, help="largest extent (default: 8192)")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options)
        return
    with tempfile.TemporaryDirectory() as cache:
        environment = dict(os.environ, PYMM_CACHE_DIR=cache, PYMM_COMPILE="keep")
        begun = time.perf_counter()
        command = [sys.executable, "-m", "pymm", "precompile", "--device", options.device]
        subprocess.run(command, env=environment, check=True)
        print(f"precompile: {time.perf_counter() - begun:.1f} s in all", flush=True)
        command = [sys.executable, __file__, *sys.argv[1:], "--measure"]
        subprocess.run(command, env=environment, check=True)


def products(count: int, most: int) -> list[Product]:
    """The same every time: extents evenly distributed in their logarithms, half of them even."""
    rng = random.Random(20)
    found = []
    for number in range(count):
        extents = [round(math.exp(rng.uniform(math.log(LEAST), math.log(most)))) for _ in "mnk"]
        if number % 2:
            extents = [max(8, extent // 8 * 8) for extent in extents]
        kind = list(TYPES)[number % len(TYPES)]
        found.append((kind, *extents, rng.random() < 0.5, rng.random() < 0.5))
    return found


def measure(options: argparse.Namespace) -> None:
    """In a process that finds the cache filled."""
    import numpy as np

    import pymm
    from pymm.backends import open_device

    backend = open_device(options.device)
    import pycuda.autoprimaryctx  # noqa: F401 behind `open_device`, which may start the simulator

    warm = backend.empty((8, 8), np.dtype("float32"))
    warm.set(np.ones((8, 8), np.float32))
    pymm.matmul(warm, warm, device=backend, kernel=0)  # imports and the context
    given, first = products(options.shapes, options.most), []
    for product in given:
        call = bound(backend, product, plan=False)
        backend.synchronize()
        begun = time.perf_counter()
        call()
        backend.synchronize()
        first.append(time.perf_counter() - begun)
    os.environ["PYMM_COMPILE"] = "wait"
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # compile what each would use by itself
        list(pool.map(partial(bound, backend, fill=False), given))
    report([compared(backend, *pair) for pair in zip(given, first, strict=True)], options.csv)


def bound(backend, product: Product, plan: bool = True, fill: bool = True):
    """A product of new arrays on the device, as a plan or as a call of `matmul`."""
    import ml_dtypes  # noqa: F401 NumPy's bfloat16
    import numpy as np

    import pymm

    kind, m, n, k, trans_a, trans_b = product
    name, precision = TYPES[kind]
    shapes = ((k, m) if trans_a else (m, k)), ((n, k) if trans_b else (k, n))
    operands = [backend.empty(shape, np.dtype(name)) for shape in shapes]
    if fill:
        numbers = np.random.default_rng(20).standard_normal(1 << 20).astype(name)
        for operand in operands:
            operand.set(np.resize(numbers, operand.shape))
    more = dict(trans_a=trans_a, trans_b=trans_b, precision=precision, device=backend)
    return (pymm.plan if plan else partial(partial, pymm.matmul))(*operands, **more)


def compared(backend, product: Product, first: float) -> dict[str, str]:
    """The row of a product: the configuration that its first call used beside its own."""
    import numpy as np

    os.environ["PYMM_COMPILE"] = "keep"
    used = bound(backend, product)
    os.environ["PYMM_COMPILE"] = "wait"
    own = bound(backend, product)
    times = backend.time([used, own] * 15)
    kind, m, n, k, trans_a, trans_b = product
    return {
        "dtype": kind,
        "shape": f"{m}x{n}x{k}",
        "layout": "NT"[trans_a] + "NT"[trans_b],
        "first_call": f"{first:.6g}",
        "used": used.config.slug,
        "used_seconds": f"{np.nanmedian(times[::2]):.6g}",
        "own": own.config.slug,
        "own_seconds": f"{np.nanmedian(times[1::2]):.6g}",
    }


def report(rows: list[dict[str, str]], path: str) -> None:
    """Write the table, print what it comes to."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    calls = sorted(float(row["first_call"]) for row in rows)
    shares = [float(row["own_seconds"]) / float(row["used_seconds"]) for row in rows]
    slow = sum(call > LIMIT for call in calls)
    print(
        f"{len(rows)} first calls: median {statistics.median(calls) * 1e3:.1f} ms, slowest "
        f"{calls[-1] * 1e3:.1f} ms, {slow} above {LIMIT} s; speed of what they used, relative to "
        f"their own: {statistics.geometric_mean(shares):.3f}, least {min(shares):.3f}"
    )


if __name__ == "__main__":
    main()
