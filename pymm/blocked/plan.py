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
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from pymm.core.integers import ceil_div, round_up

#: Rows on the device start at multiples of this many bytes, and allocations do at 512.
PITCH, ALLOCATION = 128, 512

#: Seconds that the host needs for one step: to bind, queue two copies and launch.
STEP = 200e-6

#: Numbers of tiles along an axis, and of slices of k, that are tried.
COUNTS = (*range(1, 9), 10, 12, 16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
COUNTS += tuple(2**power for power in range(10, 25))

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
    a sum, whether C is read, whether A and B lie by columns.
    """

    m: int
    n: int
    k: int
    size: int
    sum_size: int
    reads_c: bool = False
    a_by_columns: bool = False
    b_by_columns: bool = False

    def bound(self, elements: float) -> float:
        """Least bytes over the link for a device that holds so many elements."""
        m, n, k = self.m, self.n, self.k
        square = 2 * m * n * k / math.sqrt(elements)
        kept = min(m, n) * k + m * n * k * k / elements
        factors = max(min(square, kept), m * k + k * n)
        return factors * self.size + (1 + self.reads_c) * m * n * self.sum_size


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
    def counts(self) -> tuple[int, int, int]:
        """Tiles along m and n, slices of k."""
        w = self.work
        steps = zip((w.m, w.n, w.k), (self.rows, self.columns, self.depth), strict=True)
        down, across, slices = (ceil_div(extent, max(step, 1)) for extent, step in steps)
        return down, across, max(slices, 1)

    @property
    def a_slots(self) -> int:
        """Slices of A on the device."""
        down, across, slices = self.counts
        return slices if self.keep else min(2, slices * down * across)

    @property
    def b_slots(self) -> int:
        """Slices of B on the device."""
        return min(2, math.prod(self.counts))

    @property
    def a_slice(self) -> tuple[int, int]:
        """Bytes of a slice of A on the device, and from row to row."""
        w = self.work
        return _padded(self.rows, self.depth, w.size, w.a_by_columns)

    @property
    def b_slice(self) -> tuple[int, int]:
        """Bytes of a slice of B on the device, and from row to row."""
        w = self.work
        return _padded(self.depth, self.columns, w.size, w.b_by_columns)

    @property
    def c_tile(self) -> tuple[int, int]:
        """Bytes of a tile of C on the device, and from row to row."""
        return _padded(self.rows, self.columns, self.work.sum_size, False)

    @property
    def device_bytes(self) -> int:
        """Device memory of all slots; scratch memory of the kernel comes on top."""
        slots = (
            (self.a_slots, self.a_slice),
            (self.b_slots, self.b_slice),
            (self.tiles, self.c_tile),
        )
        return sum(count * round_up(one[0], ALLOCATION) for count, one in slots)

    @property
    def bytes_in(self) -> int:
        """Bytes from the host to the device."""
        w, (down, across, _) = self.work, self.counts
        a, b = w.m * w.k * (1 if self.keep else across), w.k * w.n * down
        return (a + b) * w.size + w.reads_c * self.bytes_out

    @property
    def bytes_out(self) -> int:
        """Bytes from the device to the host."""
        return self.work.m * self.work.n * self.work.sum_size

    def seconds(self, rates: Rates) -> float:
        """Time expected: of every tile the slowest of copying in, multiplying and copying out, and
        what overlaps with nothing: the first slices and the last tile.
        """
        w, (down, across, slices) = self.work, self.counts
        tile = self.rows * self.columns
        sums = slices * 2 * tile * w.sum_size / rates.memory
        compute = 2 * tile * w.k / rates.flops + sums + slices * STEP
        read = w.reads_c * tile * w.sum_size / rates.up
        a, b = (x * w.k * w.size / rates.up for x in (self.rows, self.columns))
        out = tile * w.sum_size / rates.down
        exposed = 0.0 if self.tiles > 1 else out
        hidden = out if self.tiles > 1 else 0.0
        first = max(compute, a + b + read, hidden) + exposed
        other = max(compute, b + read + (0 if self.keep else a), hidden) + exposed
        whole = down * (first + (across - 1) * other)
        part = (w.m * w.n) / (down * across * tile)  # the last tiles are smaller
        return whole * part + (a + b) / slices + read + out


def _padded(rows: int, columns: int, size: int, by_columns: bool) -> tuple[int, int]:
    rows, columns = (columns, rows) if by_columns else (rows, columns)
    pitch = round_up(columns * size, PITCH)
    return rows * pitch, pitch


@lru_cache(maxsize=256)
def best_tiling(work: Work, room: int, rates: Rates) -> Tiling | None:
    """The tiling of about the least expected time that takes at most `room` bytes; None if none
    does.
    """
    for grain in GRAINS:
        found = (one for one in _candidates(work, grain, room) if one.device_bytes <= room)
        timed = [(one.seconds(rates), one) for one in found]
        if timed:
            limit = min(seconds for seconds, _ in timed) * AS_FAST
            near = (pair for pair in timed if pair[0] <= limit)
            return min(near, key=lambda pair: (pair[1].bytes_in, pair[0]))[1]
    return None


def least_room(work: Work) -> int:
    """Bytes of the smallest tiling that is tried: one element of C, two of A and of B."""
    return Tiling(work, 1, 1, 1 if work.k else 0, False, 1).device_bytes


def _candidates(work: Work, grain: tuple[int, int], room: int) -> Iterator[Tiling]:
    """Of each way to cut C and to keep A, the first few depths that fit."""
    rows_tried, columns_tried = (_steps(extent, grain[0]) for extent in (work.m, work.n))
    for rows in rows_tried:
        for columns in columns_tried:
            if _padded(rows, columns, work.sum_size, False)[0] > room:
                continue
            whole = rows >= work.m and columns >= work.n
            for keep in (False, True):
                for tiles in (1,) if whole else (1, 2):
                    yield from _fitting(work, (rows, columns), grain[1], (keep, tiles), room)


def _fitting(
    work: Work, tile: tuple[int, int], grain: int, how: tuple[bool, int], room: int
) -> Iterator[Tiling]:
    left = 3
    for depth in _steps(work.k, grain):
        one = Tiling(work, *tile, depth, *how)
        if one.device_bytes <= room:
            yield one
            left -= 1
            if not left:
                return


@lru_cache(maxsize=256)
def _steps(extent: int, grain: int) -> tuple[int, ...]:
    """Lengths of the pieces that an extent may be cut into, longest first."""
    pieces = (min(round_up(ceil_div(extent, count), grain), extent) for count in COUNTS)
    return tuple(dict.fromkeys(pieces))
