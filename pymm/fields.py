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

#: Guard zone on each side of a matrix: as many rows as the highest tile has, so that a store which
#: misses by a whole tile is met as well, within these bounds.
GUARD_ROWS, LEAST_GUARD, MOST_GUARD = 256, 1 << 16, 1 << 26


def guard_bytes(row_bytes: int) -> int:
    """Bytes of a guard zone beside rows of `row_bytes` bytes: a multiple of 256, so that the matrix
    stays aligned as the allocator made it.
    """
    wanted = min(max(LEAST_GUARD, GUARD_ROWS * row_bytes), MOST_GUARD)
    return -(-wanted // 256) * 256


class Field:
    """A matrix (or a stack) on the device between two guard zones, rows `ld` elements apart.

    Guards and the gaps between row end and next row hold the byte `around`. `POISON` there spoils
    every result that it is read into; `NUMBER` shows writes that poison hides, since a NaN plus
    one is the same NaN. What was written last is kept on the host: `changed` compares with it.
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
        self.guard = guard_bytes(ld * dtype.itemsize)
        self._buffer = backend.allocate(self._bytes + 2 * self.guard)
        self._written: np.ndarray | None = None
        address = self._buffer.address + self.guard
        self.matrix = Matrix(address, ld, rows * ld, owner=self._buffer)

    def poison(self) -> None:
        """Make every element a NaN, and with them gaps and guards."""
        self._around = POISON
        self._buffer.fill(POISON)

    def write(self, values: np.ndarray) -> None:
        """Set the elements (batch x rows x columns), gaps and guards."""
        self._written = np.asarray(values, self.dtype)
        self.restore()

    def restore(self) -> None:
        """Set elements, gaps and guards once more to what was written last."""
        image = np.full(self._bytes + 2 * self.guard, self._around, np.uint8)
        self._inner(image)[..., : self.shape[2]] = self._written
        self._buffer.write(image)

    def changed(self) -> str:
        """In words where memory is not as it was written last (empty if it is)."""
        values, touched = self.read()
        bits = f"u{self.dtype.itemsize}"
        same = np.array_equal(values.view(bits), self._written.view(bits))
        return touched if same else "into the matrix"

    def read(self) -> tuple[np.ndarray, str]:
        """The elements, and in words what was written outside of them (empty if nothing)."""
        image = np.empty(self._bytes + 2 * self.guard, np.uint8)
        self._buffer.read(image)
        inner = self._inner(image)
        outside = [
            ("before the matrix", image[: self.guard]),
            ("behind the matrix", image[self.guard + self._bytes :]),
            ("between its rows", inner[..., self.shape[2] :].copy().view(np.uint8)),
        ]
        touched = [name for name, zone in outside if (zone != self._around).any()]
        return inner[..., : self.shape[2]], " and ".join(touched)

    def _inner(self, image: np.ndarray) -> np.ndarray:
        inside = image[self.guard : self.guard + self._bytes]
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
