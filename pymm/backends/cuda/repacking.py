"""Which matrices a kernel fed by TMA gets as they lie, and where those go that are copied first."""

from __future__ import annotations

import struct
from typing import NamedTuple

from pycuda._pvt_struct import pack

from pymm.backends.base import Matrix
from pymm.kernels import Feed
from pymm.problem import Problem, stored_shapes

#: Rows of a tensor map start at multiples of this many bytes (CUDA driver API,
#: "cuTensorMapEncodeTiled").
ROW_BYTES = 16

#: Rows of a copy start at multiples of this many bytes.
PITCH_BYTES = 128

#: A block of `repack` copies this many rows and columns.
SIDE = 64

#: from to ld batch pitch rows columns count turned
_COPY = "PPqqqIIII"

#: Where the addresses of the two stacks that `repack` copies stand in its arguments.
SOURCES = 0, struct.calcsize(_COPY)


class Copy(NamedTuple):
    """A stack on its way through the kernel file's `repack`: matrices, rows and columns as they are
    stored; `turned` if its columns become rows; each matrix is followed by those of its further
    `terms`. Sizes in elements of `size` bytes, those of what is made: 2 where it is `scaled`, and
    then the powers are behind all of it.
    """

    stack: int
    rows: int
    columns: int
    turned: bool
    terms: int
    size: int
    scaled: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Matrices, rows and columns of what is made."""
        rows, columns = (self.columns, self.rows) if self.turned else (self.rows, self.columns)
        return self.stack * self.terms, rows, columns

    @property
    def pitch(self) -> int:
        """Elements from row to row of what is made."""
        return -(-self.shape[2] * self.size // PITCH_BYTES) * PITCH_BYTES // self.size

    @property
    def nbytes(self) -> int:
        """Bytes of what is made."""
        stack, blocks, _ = self.powers
        return self._terms_bytes + self.scaled * stack * blocks * self.powers_pitch * 4

    @property
    def _terms_bytes(self) -> int:
        matrices, rows, _ = self.shape
        return matrices * rows * self.pitch * self.size

    @property
    def powers(self) -> tuple[int, int, int]:
        """Matrices, rows and columns of the powers: a row for each 64 numbers along k."""
        _, rows, columns = self.shape
        return self.stack, -(-columns // SIDE), rows

    @property
    def powers_pitch(self) -> int:
        """Powers from row to row."""
        return -(-self.powers[2] * 4 // PITCH_BYTES) * PITCH_BYTES // 4

    @property
    def blocks(self) -> int:
        """Squares to be copied."""
        return self.stack * -(-self.rows // SIDE) * -(-self.columns // SIDE)

    def at(self, address: int) -> Matrix:
        """What is made, at `address`."""
        return Matrix(address, self.pitch, self.shape[1] * self.pitch)

    def powers_at(self, address: int) -> Matrix:
        """The powers of what is made at `address`."""
        pitch = self.powers_pitch
        return Matrix(address + self._terms_bytes, pitch, self.powers[1] * pitch)


def wanted_copies(feed: Feed, problem: Problem, a: Matrix, b: Matrix) -> list[Copy | None]:
    """What has to be copied of A and B; None for one that the kernel can have as it lies."""
    given = feed.received(problem)
    turned = given.trans_a != problem.trans_a, given.trans_b != problem.trans_b
    copies: list[Copy | None] = []
    for matrix, shape, turn in zip((a, b), stored_shapes(problem), turned, strict=False):
        if problem.k == 0 or (feed.terms == 1 and not turn and fits(matrix, problem)):
            copies.append(None)
            continue
        stack = shape[0] if matrix.batch_stride else 1
        size = 2 if feed.scaled else problem.numpy_dtype.itemsize
        copies.append(Copy(stack, *shape[1:], turn, feed.terms, size, feed.scaled))
    return copies


def fits(matrix: Matrix, problem: Problem, size: int | None = None) -> bool:
    """Whether a tensor map can describe a matrix of elements of `size` bytes as it lies."""
    size = size or problem.numpy_dtype.itemsize
    places = [matrix.address, matrix.ld * size]
    places += [matrix.batch_stride * size] if problem.batch > 1 else []
    return all(place % ROW_BYTES == 0 for place in places)


def packed(copies: list[tuple[Copy, Matrix, Matrix]]) -> bytes:
    """The arguments of `repack` for one or two stacks: what, from, to."""
    values: list[int] = []
    for copy, source, target in copies:
        values += (source.address, target.address, source.ld, source.batch_stride, target.ld)
        values += (copy.rows, copy.columns, copy.stack, copy.turned)
    return pack(2 * _COPY, *values, *[0] * (2 * len(_COPY) - len(values)))
