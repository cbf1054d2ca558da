"""The same product by one thread and by an OpenMP loop over the rows of C. Needs g++.

python examples/openmp_loop.py [--threads 4] [500 1000]
"""

import argparse
import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

SOURCE = """
extern "C" void product(int n, int threads, const double* A, const double* B, double* C) {
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int i = 0; i < n; i++) {  // the rows of C are independent of each other
        double* c = C + (long long)i * n;
        for (int j = 0; j < n; j++) c[j] = 0;
        for (int p = 0; p < n; p++) {
            const double a = A[(long long)i * n + p], *b = B + (long long)p * n;
            for (int j = 0; j < n; j++) c[j] += a * b[j];
        }
    }
}
"""
RUNS = 3

options = argparse.ArgumentParser()
options.add_argument("sizes", type=int, nargs="*", default=[250, 500, 1000])
options.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
given = options.parse_args()
if given.threads < 1 or min(given.sizes) < 1:
    options.error("sizes and threads are at least 1")

with tempfile.TemporaryDirectory() as folder:
    source, library = Path(folder, "product.cpp"), Path(folder, "product.so")
    source.write_text(SOURCE)
    flags = ["-O2", "-march=native", "-fopenmp", "-shared", "-fPIC"]
    subprocess.run(["g++", *flags, "-o", library, source], check=True)
    product = ctypes.CDLL(str(library)).product


def timed(a: np.ndarray, b: np.ndarray, c: np.ndarray, threads: int) -> float:
    """Median seconds of some runs."""
    taken = []
    for _ in range(RUNS):
        begun = time.perf_counter()
        product(len(a), threads, *(ctypes.c_void_p(x.ctypes.data) for x in (a, b, c)))
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


print(f"{'n':>6}{'sequential':>14}{f'{given.threads} threads':>14}{'speed-up':>10}  result")
random = np.random.default_rng(1)
for n in given.sizes:
    a, b = random.standard_normal((2, n, n))
    c, parallel = np.empty((n, n)), np.empty((n, n))
    one, all_of_them = timed(a, b, c, 1), timed(a, b, parallel, given.threads)
    same = np.array_equal(c, parallel) and np.allclose(c, a @ b)
    says = "the same" if same else "wrong"
    print(f"{n:6}{one * 1e3:11.2f} ms{all_of_them * 1e3:11.2f} ms{one / all_of_them:10.2f}  {says}")
