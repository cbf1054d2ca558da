"""Which process holds which elements: the two-dimensional block-cyclic distribution of ScaLAPACK.

A matrix is cut into blocks of mb x nb elements. Block (I, J) belongs to the process at row I mod P
and column J mod Q of a P x Q grid, which keeps its blocks next to each other in one matrix of its
own. Ranks are row-major in the grid: rank = p Q + q. (Blackford et al., ScaLAPACK Users' Guide,
section 4.3; `numroc` is that of its TOOLS library.)

A grid of P x Q x R processes is R layers of P x Q, rank = (r P + p) Q + q. An operand whose inner
dimension is split over the layers is cut along it into R contiguous ranges, and each range is
distributed block-cyclically over the processes of one layer. The result of such a product needs no
layers: it is block-cyclic on a grid of (P R) x Q, which has the same ranks.

Nothing here needs MPI.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pymm.core.integers import ceil_div

#: DTYPE_ of a ScaLAPACK descriptor of a dense block-cyclic matrix.
DENSE = 1


def numroc(n: int, nb: int, i: int, count: int) -> int:
    """How many of `n` rows (or columns), dealt in blocks of `nb` to `count` processes in turn,
    process `i` holds.
    """
    full, rest = divmod(n, nb)
    rounds, extra = divmod(full, count)
    return rounds * nb + (nb if i < extra else rest if i == extra else 0)


@dataclass(frozen=True)
class BlockCyclic:
    """The distribution of a matrix of `shape` in blocks of `block` over a `grid` of P x Q.

    layers, axis: with more than one layer, rows (axis 0) or columns (axis 1) are first cut into
    that many contiguous ranges of whole blocks, as equal as possible, range r for layer r.

    Raises `ValueError` for negative shapes, and blocks, grids and layers below 1.
    """

    shape: tuple[int, int]
    block: tuple[int, int]
    grid: tuple[int, int]
    layers: int = 1
    axis: int = 0

    def __post_init__(self) -> None:
        for name, least in (("shape", 0), ("block", 1), ("grid", 1)):
            given = getattr(self, name)
            try:
                pair = tuple(map(operator.index, given))
            except TypeError:
                pair = ()
            if len(pair) != 2 or min(pair) < least:
                raise ValueError(f"{name} has to be two integers from {least} on; got {given!r}")
            object.__setattr__(self, name, pair)
        if self.layers < 1 or self.axis not in (0, 1):
            raise ValueError(
                f"layers is 1 or more and axis 0 or 1; got {self.layers!r} and {self.axis!r}"
            )

    @property
    def size(self) -> int:
        """How many processes there are."""
        return self.grid[0] * self.grid[1] * self.layers

    def coordinates(self, rank: int) -> tuple[int, int, int]:
        """Row p and column q of a rank in the grid, and its layer r."""
        above, q = divmod(rank, self.grid[1])
        r, p = divmod(above, self.grid[0])
        return p, q, r

    def rank(self, p: int, q: int, r: int = 0) -> int:
        """The rank at row p and column q of the grid in layer r."""
        return (r * self.grid[0] + p) * self.grid[1] + q

    def transposed(self) -> BlockCyclic:
        """The layout of the transpose, process (p, q) in the place of (q, p)."""
        return BlockCyclic(
            self.shape[::-1], self.block[::-1], self.grid[::-1], self.layers, 1 - self.axis
        )

    def bounds(self, axis: int, r: int = 0) -> tuple[int, int]:
        """First row (column, for axis 1) of layer r, and the one after its last."""
        n, block = self.shape[axis], self.block[axis]
        if self.layers == 1 or axis != self.axis:
            return 0, n
        blocks = ceil_div(n, block)
        first, last = (blocks * i // self.layers for i in (r, r + 1))
        return min(n, first * block), min(n, last * block)

    def local_shape(self, p: int, q: int, r: int = 0) -> tuple[int, int]:
        """The shape of what process (p, q) of layer r holds."""
        return self._count(0, p, r), self._count(1, q, r)

    def _count(self, axis: int, i: int, r: int) -> int:
        first, last = self.bounds(axis, r)
        return numroc(last - first, self.block[axis], i, self.grid[axis])

    def rows(self, p: int, r: int = 0) -> np.ndarray:
        """The rows of the matrix that row p of the grid holds, ascending: int64, local order."""
        return self._indices(0, p, r)

    def columns(self, q: int, r: int = 0) -> np.ndarray:
        """The columns of the matrix that column q of the grid holds, ascending: int64."""
        return self._indices(1, q, r)

    def _indices(self, axis: int, i: int, r: int) -> np.ndarray:
        block, count = self.block[axis], self.grid[axis]
        first, _ = self.bounds(axis, r)
        local = np.arange(self._count(axis, i, r), dtype=np.int64)
        return first + (local // block * count + i) * block + local % block

    def owner(self, i, j):
        """The rank that holds element (i, j); of index arrays, which broadcast, an array."""
        p, upper = self._owner(0, i)
        q, left = self._owner(1, j)
        return self.rank(p, q, left if self.axis else upper)

    def _owner(self, axis: int, index):
        """Process row (column) and layer of a row (column)."""
        layer = 0
        first = 0
        if self.layers > 1 and axis == self.axis:
            starts = [self.bounds(axis, r)[0] for r in range(self.layers)]
            layer = np.searchsorted(starts, index, side="right") - 1
            first = np.asarray(starts)[layer]
        return (index - first) // self.block[axis] % self.grid[axis], layer

    def descriptor(self, context: int, ld: int) -> np.ndarray:
        """ScaLAPACK's array descriptor, nine int32, of the same memory read column-major.

        Row-major blocks of A on a P x Q grid are column-major blocks of A^T on a Q x P grid, so
        `context` is a BLACS context of Q x P processes in column-major order: (q, p) there is
        rank p Q + q as well. ld: elements from one local row to the next, at least 1.
        `ValueError` for matrices in layers and dimensions beyond 32 bits.
        """
        if self.layers != 1:
            raise ValueError("a matrix in layers has no ScaLAPACK descriptor: distribute it in one")
        (m, n), (mb, nb) = self.shape, self.block
        fields = (DENSE, context, n, m, nb, mb, 0, 0, max(1, ld))
        if max(fields) > np.iinfo(np.int32).max:
            raise ValueError(f"ScaLAPACK counts in 32 bits; got {fields}")
        return np.array(fields, dtype=np.int32)


def product_layouts(
    m: int, n: int, k: int, block: int | tuple[int, int, int], grid: tuple[int, ...]
) -> tuple[BlockCyclic, BlockCyclic, BlockCyclic]:
    """Layouts of A (m x k), B (k x n) and C (m x n) with which `pymm.distributed.matmul` computes
    C = A B on a grid of P x Q or P x Q x R processes.

    block: of all three dimensions, or (mb, nb, kb).
    """
    mb, nb, kb = (block,) * 3 if isinstance(block, int) else block
    p, q, r = (*grid, 1)[:3]
    return (
        BlockCyclic((m, k), (mb, kb), (p, q), r, 1),
        BlockCyclic((k, n), (kb, nb), (p, q), r, 0),
        BlockCyclic((m, n), (mb, nb), (p * r, q)),
    )


class Piece(NamedTuple):
    """A panel: `count` blocks along k, every `stride`-th from block `first` on, `width` elements in
    all. Process `q` of each row of the grid has those of A, process `p` of each column those of B.
    """

    first: int
    stride: int
    count: int
    width: int
    p: int
    q: int

    def part(self, local: np.ndarray, axis: int, block: int, size: int) -> np.ndarray:
        """What its owner holds of it: of A, whose columns (axis 1) are spread over `size`
        processes, or of B (axis 0). A view if the owner has no blocks between these.
        """
        begins = [(self.first + i * self.stride) // size * block for i in range(self.count)]
        if self.stride == size or self.count == 1:
            own = slice(begins[0], begins[0] + self.width)
            return local[:, own] if axis else local[own]
        places = np.add.outer(begins, np.arange(block)).ravel()[: self.width]
        return np.take(local, places, axis)


def pieces(k: int, block: int, grid: tuple[int, int], width: int) -> Iterator[Piece]:
    """The panels of a range of `k` elements in blocks, each of at most `width` elements or of one
    block. Those that follow each other have other owners, as far as there are any.
    """
    rows, columns = grid
    stride, blocks = math.lcm(rows, columns), ceil_div(k, block)
    each = max(1, width // block)
    for begin in range(0, blocks, stride * each):
        for first in range(begin, min(begin + stride, blocks)):
            count = min(each, ceil_div(blocks - first, stride))
            last = first + (count - 1) * stride
            elements = count * block - max(0, (last + 1) * block - k)
            yield Piece(first, stride, count, elements, first % rows, first % columns)
