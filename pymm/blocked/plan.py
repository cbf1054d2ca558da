"""How a product of host matrices is cut so that it fits a device: pure arithmetic.

A tile of C stays on the device while slices of A and B, `depth` of k each, pass by. Either both
stream for every tile, or the slices of A's rows stay until all tiles of those rows are done.

What crosses the link is compared with what is needed at least. For a device of S elements a square
tile of C takes 2 m n k / sqrt(S) elements of A and B, which is also the leading term of the proven
bound (Smith et al., "A tight I/O lower bound for matrix multiplication", arXiv:1702.02017). Where k
is below 2 sqrt(S), less may do: rows of the smaller factor that fill the device, S / k of them at a
time. Each element of A and B travels at least once, those of C once, or twice if C is added to.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pymm.core.integers import ceil_div, round_up

#: Rows on the device start at multiples of this many bytes, and allocations do at 512.
PITCH, ALLOCATION = 128, 512

#: Seconds that the host needs for one step (to queue two copies and launch), and that the device
#: loses between two launches.
STEP, GAP = 200e-6, 10e-6

#: Numbers of tiles along an axis that are tried, and of slices of k.
COUNTS = (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
COUNTS += tuple(2**power for power in range(10, 25))

SLICES = (*range(1, 7), 8, 12, 16, 24, 32, 48, 64, 96, *(2**power for power in range(7, 25)))

#: Of tilings that take at most so much longer than the fastest, the one that moves least is taken:
#: the link may be busy.
AS_FAST = 1.05

#: Tiles along m and n, and slices, are cut at multiples of these where the matrix is larger.
GRAINS = ((128, 64), (16, 16), (1, 1))


@dataclass(frozen=True)
class Rates:
    """What the machine does in a second: bytes to the device and back, operations of the kernel,
    bytes of the device's memory.
    """

    up: float = 20e9
    down: float = 20e9
    flops: float = 20e12
    memory: float = 2e12


@dataclass(frozen=True)
class Work:
    """One product `C <- alpha op(A) op(B) + beta C`: extents, bytes of an element of A and B and of
    a sum, whether C is read, whether A and B lie by columns, and how many times their bytes the
    kernel's own copies of a slice of A and of B take.
    """

    m: int
    n: int
    k: int
    size: int
    sum_size: int
    reads_c: bool = False
    a_by_columns: bool = False
    b_by_columns: bool = False
    copies: tuple[float, float] = (0.0, 0.0)

    def bound(self, elements: float) -> float:
        """Least bytes over the link for a device that holds so many elements."""
        m, n, k = self.m, self.n, self.k
        square = 2 * m * n * k / math.sqrt(elements)
        kept = min(m, n) * k + m * n * k * k / elements
        factors = max(min(square, kept), m * k + k * n)
        return factors * self.size + (1 + self.reads_c) * m * n * self.sum_size


class Cut(NamedTuple):
    """The numbers of a `Tiling`, or arrays of them, one element for each tiling."""

    rows: Any
    columns: Any
    depth: Any
    keep: Any
    tiles: Any

    def counts(self, work: Work) -> tuple[Any, Any, Any]:
        """Tiles along m and n, slices of k."""
        down = ceil_div(work.m, np.maximum(self.rows, 1))
        across = ceil_div(work.n, np.maximum(self.columns, 1))
        return down, across, np.maximum(ceil_div(work.k, np.maximum(self.depth, 1)), 1)

    def slots(self, work: Work) -> tuple[Any, Any]:
        """Slices of A and of B on the device."""
        down, across, slices = self.counts(work)
        two = np.minimum(2, slices * down * across)
        return np.where(self.keep, slices, two), two

    def slices(self, work: Work) -> tuple[tuple[Any, Any], tuple[Any, Any], tuple[Any, Any]]:
        """Of a slice of A, one of B and a tile of C: bytes on the device, and from row to row."""
        a, b = (self.rows, self.depth), (self.depth, self.columns)
        a, b = (a[::-1] if work.a_by_columns else a), (b[::-1] if work.b_by_columns else b)
        shapes = (*a, work.size), (*b, work.size), (self.rows, self.columns, work.sum_size)
        pitches = (round_up(columns * size, PITCH) for _, columns, size in shapes)
        return tuple((x[0] * pitch, pitch) for x, pitch in zip(shapes, pitches, strict=True))

    def device_bytes(self, work: Work) -> Any:
        """Of all slots."""
        counts = *self.slots(work), self.tiles
        sizes = (round_up(np.maximum(one, 1), ALLOCATION) for one, _ in self.slices(work))
        return sum(count * size for count, size in zip(counts, sizes, strict=True))

    def bytes_in(self, work: Work) -> Any:
        """From the host to the device."""
        down, across, _ = self.counts(work)
        a, b = work.m * work.k * np.where(self.keep, 1, across), work.k * work.n * down
        return (a + b) * work.size + work.reads_c * work.m * work.n * work.sum_size

    def seconds(self, work: Work, rates: Rates) -> Any:
        """Time expected: of every tile the slowest of copying in, multiplying and copying out, and
        what overlaps with nothing: the first slices and the last tile.
        """
        down, across, slices = self.counts(work)
        tile = self.rows * self.columns
        sums = slices * 2 * tile * work.sum_size / rates.memory
        compute = 2 * tile * work.k / rates.flops + sums + slices * GAP
        compute = np.maximum(compute, slices * STEP)
        read = work.reads_c * tile * work.sum_size / rates.up
        a, b = (x * work.k * work.size / rates.up for x in (self.rows, self.columns))
        out = tile * work.sum_size / rates.down
        exposed, hidden = np.where(self.tiles > 1, 0, out), np.where(self.tiles > 1, out, 0)
        first = np.maximum(np.maximum(compute, a + b + read), hidden) + exposed
        others = np.where(self.keep, 0, a) + b + read
        other = np.maximum(np.maximum(compute, others), hidden) + exposed
        part = (work.m * work.n) / (down * across * tile)  # the last tiles are smaller
        whole = down * (first + (across - 1) * other) * part
        return whole + (a + b) / slices + read + out


@dataclass(frozen=True)
class Tiling:
    """Tiles of `rows` x `columns` of C, slices of `depth` of k (the last ones may be smaller), and
    how many tiles have room at a time. `keep`: A's slices stay for all tiles of their rows.
    """

    work: Work
    rows: int
    columns: int
    depth: int
    keep: bool
    tiles: int

    @property
    def _cut(self) -> Cut:
        return Cut(self.rows, self.columns, self.depth, self.keep, self.tiles)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Tiles along m and n, slices of k."""
        down, across, slices = map(int, self._cut.counts(self.work))
        return down, across, slices

    @property
    def a_slots(self) -> int:
        """Slices of A on the device."""
        return int(self._cut.slots(self.work)[0])

    @property
    def b_slots(self) -> int:
        """Slices of B on the device."""
        return int(self._cut.slots(self.work)[1])

    @property
    def a_slice(self) -> tuple[int, int]:
        """Bytes of a slice of A on the device, and from row to row."""
        return self._cut.slices(self.work)[0]

    @property
    def b_slice(self) -> tuple[int, int]:
        """Bytes of a slice of B on the device, and from row to row."""
        return self._cut.slices(self.work)[1]

    @property
    def c_tile(self) -> tuple[int, int]:
        """Bytes of a tile of C on the device, and from row to row."""
        return self._cut.slices(self.work)[2]

    @property
    def device_bytes(self) -> int:
        """Device memory of all slots; scratch memory of the kernel comes on top."""
        return int(self._cut.device_bytes(self.work))

    @property
    def bytes_in(self) -> int:
        """Bytes from the host to the device."""
        return int(self._cut.bytes_in(self.work))

    @property
    def bytes_out(self) -> int:
        """Bytes from the device to the host."""
        return self.work.m * self.work.n * self.work.sum_size

    def seconds(self, rates: Rates) -> float:
        """Time expected (`Cut.seconds`)."""
        return float(self._cut.seconds(self.work, rates))


@lru_cache(maxsize=256)
def best_tiling(work: Work, room: int, rates: Rates) -> Tiling | None:
    """The tiling of about the least expected time that takes at most `room` bytes, the kernel's own
    copies included; None if none does.
    """
    for grain in GRAINS:
        cut = _candidates(work, grain)
        taken = cut.device_bytes(work)
        for (one, _), copies in zip(cut.slices(work), (*work.copies, 0.0), strict=True):
            taken = taken + one * copies
        cut = Cut(*(column[taken <= room] for column in cut))
        if cut.rows.size:
            seconds, moved = cut.seconds(work, rates), cut.bytes_in(work)
            moved = np.where(seconds <= seconds.min() * AS_FAST, moved, np.inf)
            best = np.lexsort((seconds, moved))[0]
            rows, columns, depth, keep, tiles = (column[best] for column in cut)
            return Tiling(work, int(rows), int(columns), int(depth), bool(keep), int(tiles))
    return None


def least_room(work: Work) -> int:
    """Bytes of the smallest tiling that is tried: one element of C, of A and of B."""
    return Tiling(work, 1, 1, min(work.k, 1), False, 1).device_bytes


def _candidates(work: Work, grain: tuple[int, int]) -> Cut:
    """All that are tried, as arrays of float64, which hold such numbers exactly."""
    steps = [_steps(extent, grain[0], COUNTS) for extent in (work.m, work.n)]
    steps.append(_steps(work.k, grain[1], SLICES))
    grids = np.meshgrid(*steps, (0.0, 1.0), (1.0, 2.0), indexing="ij")
    rows, columns, depth, keep, tiles = (grid.ravel() for grid in grids)
    return Cut(rows, columns, depth, keep.astype(bool), tiles)


def _steps(extent: int, grain: int, counts: tuple[int, ...]) -> np.ndarray:
    """Lengths of the pieces that an extent may be cut into, longest first."""
    pieces = (min(round_up(ceil_div(extent, count), grain), extent) for count in counts)
    return np.array(tuple(dict.fromkeys(pieces)), np.float64)
