"""From TMA to clusters: kernel 07 in five steps, each a file of examples/hopper_steps that runs by
itself. Each computes C = A B^T in bfloat16 with float32 sums, is checked against NumPy, and timed.

python examples/hopper_steps.py [--m 4096 --n 4096 --k 4096] [--csv FILE]     (a Hopper GPU)
python -m pymm.simulator examples/hopper_steps.py --m 260 --n 150 --k 200     (none; not timed)
"""

import argparse
import csv
import statistics
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pycuda.autoprimaryctx
import pycuda.driver as cuda
from pycuda import gpuarray
from pycuda.compiler import compile

import pymm
from pymm.backends.cuda.driver import Driver

FOLDER = Path(__file__).resolve().with_name("hopper_steps")
TILE, DEPTH, STAGE = 128, 64, 32768  # of tile.cuh; STAGE in bytes
BFLOAT16 = 9  # CUtensorMapDataType

driver = Driver()

#: What each step adds; the blocks of its grid, of (tiles down, tiles across, multiprocessors); its
#: threads; its stages; and the rows of B in a box.
STEPS = {
    "1_tma": ("TMA and an mbarrier", lambda d, a, s: (a, d), 256, 1, TILE),
    "2_wgmma": ("wgmma", lambda d, a, s: (a, d), 256, 1, TILE),
    "3_stages": ("a ring of stages, a producer", lambda d, a, s: (a, d), 384, 4, TILE),
    "4_persistent": ("persistent blocks", lambda d, a, s: (s, 1), 384, 4, TILE),
    "5_cluster": ("clusters that share B", lambda d, a, s: (s // 2 * 2, 1), 384, 4, TILE // 2),
}


def tensor_map(matrix: gpuarray.GPUArray, rows: int) -> bytes:
    """The map by which TMA finds boxes of `rows` x DEPTH elements; pymm makes such maps, too."""
    height, width = matrix.shape
    extents, strides = (width, height, 1), (2 * width, 2 * width * height)
    return driver.tensor_map(BFLOAT16, matrix.ptr, extents, strides, (DEPTH, rows, 1), 128)


def compile_step(name: str) -> int:
    """Handle of the kernel of a step, compiled with the headers of pymm's own kernels."""
    text = (FOLDER / f"{name}.cu").read_text(encoding="utf-8")
    folders = [str(FOLDER), str(Path(pymm.__file__).parents[1] / "cuda_src")]
    cubin = compile(text, arch="sm_90a", no_extern_c=True, include_dirs=folders)
    return driver.function(driver.load(cubin), "product")


def launch_of(kernel: int, arguments: tuple[bytes, ...], sizes: tuple[int, ...]):
    """A function that launches the kernel. PyCUDA packs arguments as C would a structure; a GPU has
    tensor maps, which are aligned to 64 bytes, elsewhere, and the driver says where.
    """
    places = driver.parameters(kernel, len(arguments))
    packed = bytearray(sum(places[-1]))
    for (offset, size), argument in zip(places, arguments, strict=True):
        packed[offset : offset + size] = argument
    return driver.launcher(0, kernel, sizes)(bytes(packed))


def microseconds(launch, flush: gpuarray.GPUArray) -> float:
    """The median of 20 launches, each with empty caches."""
    times = []
    for _ in range(20):
        flush.fill(0)
        begin, end = cuda.Event(), cuda.Event()
        begin.record()
        launch()
        end.record()
        end.synchronize()
        times.append(begin.time_till(end) * 1e3)
    return statistics.median(times)


options = argparse.ArgumentParser()
for extent in ("--m", "--n", "--k"):
    options.add_argument(extent, type=int, default=4096, help="(default: 4096)")
options.add_argument("--csv", help="write the times to this file")
given = options.parse_args()
m, n, k = given.m, given.n, given.k
device = pycuda.autoprimaryctx.device
simulated = "simulat" in device.name().lower()
if k % 8 or min(m, n, k) < 1:
    options.error("k is a multiple of 8: TMA reads rows that begin at multiples of 16 bytes")
if device.compute_capability()[0] != 9 and not simulated:
    sys.exit(f"{device.name()} has no TMA and wgmma: run this on Hopper, or in the simulator")

random = np.random.default_rng(1)
a, b = (random.standard_normal((rows, k)).astype(ml_dtypes.bfloat16) for rows in (m, n))
wanted = a.astype(np.float32) @ b.astype(np.float32).T
on_gpu = [gpuarray.to_gpu(x.view(np.uint16)) for x in (a, b)]
result = gpuarray.empty((m, n), np.float32)
flush = gpuarray.empty(1 if simulated else 1 << 26, np.float32)
sms = 4 if simulated else device.multiprocessor_count
rows = []
for name, (adds, grid, threads, stages, box) in STEPS.items():
    kernel = compile_step(name)
    shared = stages * (STAGE + 16) + 1024
    driver.allow_shared(kernel, shared)
    maps = tensor_map(on_gpu[0], TILE), tensor_map(on_gpu[1], box)
    numbers = np.uint64(result.ptr), np.int32(m), np.int32(n), np.int32(k)
    arguments = (*maps, *(number.tobytes() for number in numbers))
    sizes = (*grid(-(-m // TILE), -(-n // TILE), sms), 1, threads, 1, 1, shared)
    launch = launch_of(kernel, arguments, sizes)
    result.fill(np.nan)
    launch()
    error = np.abs(result.get() - wanted).max() / np.abs(wanted).max()
    line = f"{name:13} {adds:29} {'right' if error < 1e-5 else 'WRONG'}"
    row = {"step": name, "adds": adds, "m": m, "n": n, "k": k, "error": f"{error:.1e}"}
    if not simulated:
        row["us"] = f"{microseconds(launch, flush):.1f}"
        row["tflops"] = f"{2e-6 * m * n * k / float(row['us']):.0f}"
        line += f" {row['us']:>10} us {row['tflops']:>6} TFLOP/s"
    rows.append(row)
    print(line, flush=True)
if given.csv:
    with open(given.csv, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
sys.exit(any(float(row["error"]) >= 1e-5 for row in rows))
