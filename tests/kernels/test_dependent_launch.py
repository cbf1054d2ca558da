"""Products one behind the other on one stream, with nobody waiting in between: operands change
between calls, two products share the memory of their copies and parts, launches begin before the
ones before them have ended, and calls become graphs on the way. Every single result is looked at.
"""

from __future__ import annotations

import numpy as np
import pytest
from products import integers

import pymm
from pymm.backends.base import Matrix
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.runtime.bind import executable

#: Kernels, what of their defaults changes, and types. None of these sizes can be read by TMA as it
#: lies: two launches, three with SPLIT.
CASES = [
    ("pipelined", dict(), "f32"),
    ("wgmma", dict(MB=64, NB=64, KB=64, TA=64, TB=64, STAGES=3, CLUSTER=1, SPLIT=1), "bf16"),
    ("wgmma", dict(MB=64, NB=64, KB=64, TA=64, TB=64, STAGES=3, CLUSTER=1, SPLIT=2), "f16"),
    ("tma_f64", dict(MB=64, NB=64, KB=32, TA=32, TB=32, TK=16, KI=8, SPLIT=2), "f64"),
    ("tma_f32", dict(MB=64, NB=64, KB=32, TA=8, TB=8, SLICES=2, STAGES=2, SPLIT=1), "f32"),
    ("wgmma_tf32", dict(MB=64, NB=64, KB=32, TA=64, TB=64, CLUSTER=1, SPLIT=2), "tf32"),
]
ROUNDS = 6


class Stored:
    """A matrix in device memory, and whatever else is to be put there."""

    def __init__(self, backend, shape, dtype, versions=1):
        self.backend, self.shape, self.dtype = backend, shape, np.dtype(dtype)
        self.nbytes = shape[0] * shape[1] * self.dtype.itemsize
        self.buffers = [backend.allocate(self.nbytes) for _ in range(versions + 1)]
        self.matrix = Matrix(self.buffers[-1].address, shape[1])

    def fill(self, number, values):
        self.buffers[number].write(np.ascontiguousarray(values.astype(self.dtype)))

    def copy(self, source, target):
        """Rows from one buffer to another, in the stream's order."""
        shape = self.shape[0], self.shape[1] * self.dtype.itemsize
        places = [(self.buffers[x].address, shape[1]) for x in (source, target)]
        self.backend.copy_within(*places[0], *places[1], shape)

    def read(self, number):
        values = np.empty(self.shape, self.dtype)
        self.buffers[number].read(values)
        return values.astype(float)


@pytest.mark.parametrize("name, changes, dtype", CASES)
def test_every_result_of_many_products_in_a_row(cuda, name, changes, dtype):
    kernel, simulated = find_kernel(name), cuda.device.kind == "simulator"
    config = kernel.config(dict(kernel.default) | changes)
    m, n, k = (65, 63, 97) if simulated else (641, 637, 635)
    problem = Problem(m, n, k, dtype)
    if not simulated and not kernel.runs_on(cuda.device):
        with pytest.raises(ValueError, match="other devices"):
            pymm.explain(
                (m, k),
                (k, n),
                dtype=problem.numpy_dtype,
                precision=problem.precision,
                config=config,
                device=cuda,
            )
        return
    loaded, products = executable(cuda, config, problem, problem.numpy_dtype.itemsize), []
    for which in range(2):
        a = Stored(cuda, (m, k), problem.numpy_dtype, 2)
        b = Stored(cuda, (k, n), problem.numpy_dtype)
        c = Stored(cuda, (m, n), problem.out_dtype, ROUNDS)
        right, lefts = integers((k, n), seed=which), [integers((m, k), seed=s) % 5 for s in (3, 4)]
        b.fill(-1, right % 3)
        for version, left in enumerate(lefts):
            a.fill(version, left)
        wanted = [(left @ (right % 3)).astype(problem.out_dtype).astype(float) for left in lefts]
        call = loaded.bind(problem, 1.0, a.matrix, b.matrix, 0.0, c.matrix)
        products.append((a, c, call, wanted, b))  # b, too, lives as long as its call
    for number in range(ROUNDS):
        for a, *_ in products:
            a.copy(number % 2, -1)
        for _, _, call, *_ in products:
            call()
        for _, c, *_ in products:
            c.copy(-1, number)
    cuda.synchronize()
    for _, c, _, wanted, _ in products:
        for number in range(ROUNDS):
            np.testing.assert_array_equal(c.read(number), wanted[number % 2], f"round {number}")
