"""Two linear layers with a bias, GELU and a residual: each product is one call.

    python examples/linear_layer.py

NumPy arrays are multiplied on the GPU if there is one, else on the CPU.
"""

import numpy as np

import pymm

TOKENS, WIDTH, HIDDEN = 96, 64, 256

rng = np.random.default_rng(0)
x, grow, shrink = (
    rng.standard_normal(shape, dtype=np.float32)
    for shape in ((TOKENS, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
)
first, second = (rng.standard_normal(n, dtype=np.float32) for n in (HIDDEN, WIDTH))

hidden = pymm.matmul(x, grow, bias=first, activation="gelu_tanh")
y = pymm.matmul(hidden, shrink, bias=second, c=x, beta=1)  # the residual is x
print(pymm.explain(x, grow, bias=first, activation="gelu_tanh"))

sums = x.astype(np.float64) @ grow + first
gelu = sums / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (sums + 0.044715 * sums**3)))
wanted = gelu @ shrink + second + x
print(f"same as separate operations: {np.allclose(y, wanted, rtol=1e-4, atol=1e-3)}")
