"""The same product many times: a plan checks and binds once, and writes to the same array.

    python examples/plan_in_a_loop.py

The power iteration finds the largest eigenvalue of a symmetric matrix.
"""

import numpy as np

import pymm

rng = np.random.default_rng(0)
eigenvalues = np.append(np.linspace(0.1, 2.0, 199), 3.0)
q, _ = np.linalg.qr(rng.standard_normal((200, 200)))
matrix = (q * eigenvalues) @ q.T

vector = np.ones((200, 1))
product = np.empty((200, 1))
multiply = pymm.plan(matrix, vector, out=product)  # reads what the arrays hold at each call

for _ in range(100):
    multiply()
    np.divide(product, np.linalg.norm(product), out=vector)

found = float((vector.T @ matrix @ vector)[0, 0])
print(f"largest eigenvalue: {found:.4f}, exact: {eigenvalues[-1]:.4f}")
assert abs(found - eigenvalues[-1]) < 1e-6
