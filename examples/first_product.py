"""A first product: NumPy arrays in, a NumPy array out, and what ran.

    python examples/first_product.py

It runs on the GPU if there is one, else on the CPU.
"""

import numpy as np

import pymm

rng = np.random.default_rng(0)
a = rng.standard_normal((1000, 300), dtype=np.float32)
b = rng.standard_normal((300, 700), dtype=np.float32)

c = pymm.matmul(a, b)  # the first call compiles a kernel; it is kept on disk
print(
    f"c is {c.shape[0]} x {c.shape[1]}; largest difference from NumPy: {abs(c - a @ b).max():.1e}"
)

pymm.matmul(a, b, out=c, c=c, alpha=2, beta=0.5)  # c <- 2 a b + 0.5 c
print(f"2.5 times the product: {np.allclose(c, 2.5 * (a @ b), rtol=1e-4, atol=1e-3)}")

print(pymm.explain(a, b))
