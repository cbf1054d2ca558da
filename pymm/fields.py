"""Matrices on a device between guard zones, poisoned so that every stray read or write shows."""

from __future__ import annotations

import numpy as np

from pymm.backends.base import Backend, Matrix
from pymm.problem import Problem, stored_shapes

#: Every byte of the poison: in every type such bytes are a NaN, which no right kernel
#: writes here and which spoils every sum that it is read into.
POISON = 0xFF

#: Such bytes are an ordinary number: 48.5 as float32, 1.6e11 as float64, 3.1 as float16.
NUMBER = 0x42

#: Guard zone on each side of a matrix: several rows of the widest tile, and a multiple of 256 so
#: that the matrix stays aligned as the allocator made it.
GUARD_BYTES = 1 << 16


class Field:
    """A matrix (or a stack) on the device between two guard zones, rows `ld` elements apart.

    Guards and the gaps between row end and next row hold the byte `around`. `POISON` there spoils
    every result that it is read into; `NUMBER` shows writes that poison hides, since a NaN plus
    one is the same NaN.
    """

    def __init__(
        self,
        backend: Backend,
        dtype: np.dtype,
        shape: tuple[int, int, int],
        gap: int = 0,
        around: int = POISON,
    ) -> None:
        batch, rows, columns = shape
        self.dtype, self.shape, ld = dtype, shape, columns + gap
        self._around = around
        self._pitched = (batch, rows, ld)
        self._bytes = batch * rows * ld * dtype.itemsize
        self._buffer = backend.allocate(self._bytes + 2 * GUARD_BYTES)
        address = self._buffer.address + GUARD_BYTES
        self.matrix = Matrix(address, ld, rows * ld, owner=self._buffer)

    def poison(self) -> None:
        """Make every element a NaN, and with them gaps and guards."""
        self._around = POISON
        self._buffer.fill(POISON)

    def write(self, values: np.ndarray) -> None:
        """Set the elements (batch x rows x columns), gaps and guards."""
        image = np.full(self._bytes + 2 * GUARD_BYTES, self._around, np.uint8)
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
        touched = [name for name, zone in outside if (zone != self._around).any()]
        return inner[..., : self.shape[2]], " and ".join(touched)

    def _inner(self, image: np.ndarray) -> np.ndarray:
        inside = image[GUARD_BYTES : GUARD_BYTES + self._bytes]
        return inside.view(self.dtype).reshape(self._pitched)


def normal(problem: Problem, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Standard normal A, B and C as stored. Numbers of random bits also draw the power that real
    data draw: a GPU multiplies zeros at higher clocks. Of a symmetric product A and B are the same.
    """
    generator = np.random.default_rng(seed)
    reals = (problem.numpy_dtype, problem.numpy_dtype, problem.out_dtype)
    a, b, c = (
        generator.standard_normal(shape, np.float32).astype(real)
        for shape, real in zip(stored_shapes(problem), reals, strict=True)
    )
    return (a, a if problem.symmetric else b, c)
