"""Matrices on a device between guard zones, poisoned so that every stray read or write shows."""

from __future__ import annotations

import numpy as np

from pymm.backends.base import Backend, Matrix
from pymm.problem import Problem

#: Every byte of the poison: as float32 or float64 such bytes are a NaN, which no right kernel
#: writes here and which spoils every sum that it is read into.
POISON = 0xFF

#: Guard zone on each side of a matrix: several rows of the widest tile, and a multiple of 256 so
#: that the matrix stays aligned as the allocator made it.
GUARD_BYTES = 1 << 16


class Field:
    """A matrix (or a stack) on the device between two guard zones, rows `ld` elements apart.

    Guards and the gaps between row end and next row hold poison: what is read there spoils the
    result, what is written there is seen.
    """

    def __init__(
        self, backend: Backend, dtype: np.dtype, shape: tuple[int, int, int], gap: int = 0
    ) -> None:
        batch, rows, columns = shape
        self.dtype, self.shape, ld = dtype, shape, columns + gap
        self._pitched = (batch, rows, ld)
        self._bytes = batch * rows * ld * dtype.itemsize
        self._buffer = backend.allocate(self._bytes + 2 * GUARD_BYTES)
        address = self._buffer.address + GUARD_BYTES
        self.matrix = Matrix(address, ld, rows * ld, owner=self._buffer)

    def poison(self) -> None:
        """Make every element, gap and guard a NaN."""
        self._buffer.fill(POISON)

    def write(self, values: np.ndarray) -> None:
        """Set the elements (batch x rows x columns); gaps and guards become poison."""
        image = np.full(self._bytes + 2 * GUARD_BYTES, POISON, np.uint8)
        self._inner(image)[..., : self.shape[2]] = values
        self._buffer.write(image)

    def read(self) -> tuple[np.ndarray, str]:
        """The elements, and in words what was written outside of them (empty if nothing)."""
        image = np.empty(self._bytes + 2 * GUARD_BYTES, np.uint8)
        self._buffer.read(image)
        inner = self._inner(image)
        outside = [
            ("before the matrix", image[:GUARD_BYTES]),
            ("behind the matrix", image[GUARD_BYTES + self._bytes :]),
            ("between its rows", inner[..., self.shape[2] :].copy().view(np.uint8)),
        ]
        touched = [name for name, zone in outside if (zone != POISON).any()]
        return inner[..., : self.shape[2]], " and ".join(touched)

    def _inner(self, image: np.ndarray) -> np.ndarray:
        inside = image[GUARD_BYTES : GUARD_BYTES + self._bytes]
        return inside.view(self.dtype).reshape(self._pitched)


def stored_shapes(problem: Problem) -> tuple[tuple[int, int, int], ...]:
    """Batch, rows and columns of A, B and C as they lie in memory."""
    m, n, k = problem.m, problem.n, problem.k
    a = (k, m) if problem.trans_a else (m, k)
    b = (n, k) if problem.trans_b else (k, n)
    return tuple((problem.batch, *shape) for shape in (a, b, (m, n)))


def normal(problem: Problem, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal A, B and C as stored. Numbers of random bits also draw the power that real
    data draw: a GPU multiplies zeros at higher clocks.
    """
    generator = np.random.default_rng(seed)
    a, b, c = stored_shapes(problem)
    real = problem.numpy_dtype
    return tuple(generator.standard_normal(x, np.float32).astype(real) for x in (a, b, c))
