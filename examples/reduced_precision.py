"""How exact each precision is: errors against float64, and the bound that pymm states.

    python examples/reduced_precision.py

Without a GPU the simulator runs the CUDA kernels (times mean nothing, errors are right). What a
device does not have is left out.
"""

import numpy as np

import pymm
from pymm.core.problem import Problem
from pymm.core.reference import error_bound

M, N, K = 96, 64, 200

try:
    pymm.configs("cuda")
    device = "cuda"
except pymm.NoDevice:
    import pymm.simulator

    pymm.simulator.activate()
    device = "cuda"

rng = np.random.default_rng(0)
a = rng.standard_normal((M, K), dtype=np.float32)
b = rng.standard_normal((K, N), dtype=np.float32)
exact = a.astype(np.float64) @ b.astype(np.float64)

print("precision   largest error   of its bound")
for precision in ("ieee", "tf32", "tf32x3", "f16x3", "emulated"):
    try:
        c = pymm.matmul(a, b, precision=precision, device=device)
    except NotImplementedError as reason:
        print(f"{precision:<12}{reason}")
        continue
    error = abs(c - exact)
    problem = Problem(M, N, K, "f32" if precision == "ieee" else precision)
    worst = (error / error_bound(problem, a, b)).max()
    print(f"{precision:<12}{error.max():<16.1e}{worst:.3f}")
    assert worst <= 1
