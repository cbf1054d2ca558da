"""Matrices that lie on several devices of one host, in P x Q blocks, and their products.

Every device computes its own block of C. The rows of A and the columns of B that it needs come from
its neighbours in strips, over queues of their own, while it multiplies what has arrived: with the
strips a0, b0, a1, b1, ... it computes a0 b0, then a1 b0, then (a0 a1) b1, and so on, over all of k,
so that no element of C is read back and the rounding is that of one device.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from pymm.backends.base import Backend, Buffer, Matrix
from pymm.blocked.devices import open_devices
from pymm.core.dtypes import ELEMENTS
from pymm.core.errors import LaunchFailed
from pymm.core.forking import call_in_child
from pymm.core.integers import ceil_div, round_up
from pymm.runtime.arguments import element_type

#: Rows of blocks start at multiples of this many bytes.
PITCH = 128

#: Blocks of large matrices are cut at multiples of so many rows and columns: their rows then start
#: where kernels read them in whole pieces.
GRAIN, LARGE = 16, 1024

_Result = TypeVar("_Result")


class Team:
    """Devices that multiply together, in a grid of P x Q, row by row. `queues` are those of each
    device: rows of A from its neighbours, columns of B from its neighbours, its own part of both,
    and products.
    """

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.backends = tuple(backends)
        self.grid = grid_of(len(self.backends))
        self._thread = ThreadPoolExecutor(1, "pymm-team")
        self.lock = threading.Lock()  # what one product queues stays together
        self.queues = self.apart(self._open)

    def apart(self, action: Callable[[], _Result]) -> _Result:
        """Do something in a thread that has no context of the caller's: all of a team's work is in
        the devices' primary contexts.
        """
        return self._thread.submit(action).result()

    def place(self, rank: int) -> tuple[int, int]:
        """Row and column of a device in the grid."""
        return divmod(rank, self.grid[1])

    def rank(self, row: int, column: int) -> int:
        """The device at a place of the grid."""
        return row * self.grid[1] + column

    def _open(self) -> tuple[tuple[Any, ...], ...]:
        for one in self.backends:
            for other in self.backends:
                if one is not other and not one.reach(other):
                    raise NotImplementedError(
                        f"cuda:{one.device.index} cannot read the memory of "
                        f"cuda:{other.device.index}: matrices on several devices need peer access "
                        "between all of them (nvidia-smi topo -p2p r shows it)"
                    )
        return tuple(tuple(one.queue() for _ in range(4)) for one in self.backends)

    def synchronize(self) -> None:
        """Wait for all work of the team. Raises `LaunchFailed`."""
        for queues in self.queues:
            for queue in queues:
                queue.synchronize()


def settle_before_end(thing: Any, team: Team) -> None:
    """Have the team's work end before `thing` gives memory back: freeing waits for the device that
    holds it, not for the others that may still read it.
    """

    def settle() -> None:
        with suppress(LaunchFailed, MemoryError):
            team.synchronize()

    weakref.finalize(thing, settle).atexit = False


@lru_cache(maxsize=8)
def team_of(backends: tuple[Backend, ...]) -> Team:
    """The team of these devices, made once."""
    return Team(backends)


call_in_child(team_of.cache_clear)


def grid_of(count: int) -> tuple[int, int]:
    """P x Q as square as it can be, wider than high."""
    rows = max(p for p in range(1, count + 1) if count % p == 0 and p * p <= count)
    return rows, count // rows


def split(extent: int, parts: int) -> list[slice]:
    """An extent in equal parts; the last ones may be smaller, or empty."""
    step = ceil_div(extent, parts)
    if extent >= LARGE * parts:
        step = round_up(step, GRAIN)
    ends = [min(part * step, extent) for part in range(parts + 1)]
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


@dataclass(frozen=True)
class Block:
    """What one device holds of a matrix: its rows and columns, where they lie, bytes from row to
    row.
    """

    rows: slice
    columns: slice
    buffer: Buffer
    pitch: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    def matrix(self, size: int, row: int = 0, column: int = 0) -> Matrix:
        """The block from an element on, of `size` bytes each, as launches find it."""
        address = self.buffer.address + row * self.pitch + column * size
        return Matrix(address, self.pitch // size, 0, self.buffer)


class ShardedMatrix:
    """A matrix whose blocks lie on several devices. Made by `pymm.scatter`, by `pymm.matmul` of two
    such, and by `ShardedMatrix.empty`. Work on it is queued: `gather` waits for it.
    """

    def __init__(self, team: Team, shape: tuple[int, int], dtype: np.dtype) -> None:
        self.team, self.shape, self.dtype = team, shape, dtype
        self.blocks: tuple[Block, ...] = team.apart(self._allocate)
        settle_before_end(self, team)
        #: The product that this matrix was the result of last, ready to be computed again.
        self.program: Any = None

    @classmethod
    def empty(cls, shape: tuple[int, int], dtype: Any, devices: Any = "cuda:all") -> ShardedMatrix:
        """An uninitialised matrix. `devices` as in `pymm.scatter`. Raises `MemoryError`."""
        if len(shape) != 2 or any(extent < 0 for extent in shape):
            raise ValueError(f"shape {shape} is not that of a matrix")
        kind = element_type(dtype, "dtype")
        if kind not in ELEMENTS.values():
            known = ", ".join(known.name for known in ELEMENTS.values())
            raise NotImplementedError(f"dtype {kind}: devices hold {known}")
        return cls(team_of(tuple(open_devices(devices))), tuple(shape), kind)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.shape[0] * self.shape[1] * self.dtype.itemsize

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return self.team.grid

    def __repr__(self) -> str:
        grid = " x ".join(map(str, self.grid))
        return f"<ShardedMatrix {self.shape} {self.dtype} on {grid} devices>"

    def gather(self, out: np.ndarray | None = None) -> np.ndarray:
        """The matrix as a NumPy array, in `out` if given. Waits for all work on it."""
        if out is None:
            out = np.empty(self.shape, self.dtype)
        elif out.shape != self.shape or out.dtype != self.dtype:
            raise ValueError(f"out is {out.shape} {out.dtype}, not {self.shape} {self.dtype}")
        self.team.synchronize()
        self._each(lambda queue, place, one: queue.download(*place, self.dtype, out[one]))
        return out

    def fill(self, array: np.ndarray) -> None:
        """Copy a NumPy array of this shape into the blocks."""
        if array.shape != self.shape:
            raise ValueError(f"an array of shape {array.shape} does not fill one of {self.shape}")
        self.team.synchronize()
        self._each(lambda queue, place, one: queue.upload(array[one], self.dtype, *place))
        self.team.synchronize()

    def _each(self, copy: Callable[..., None]) -> None:
        """Copy all blocks, the devices side by side."""

        def one(rank: int) -> None:
            block = self.blocks[rank]
            if all(block.shape):
                place = block.buffer.address, block.pitch
                copy(self.team.queues[rank][2], place, (block.rows, block.columns))

        with ThreadPoolExecutor(len(self.blocks), "pymm-scatter") as pool:
            list(pool.map(one, range(len(self.blocks))))

    def _allocate(self) -> tuple[Block, ...]:
        (down, across), blocks = self.team.grid, []
        parts = split(self.shape[0], down), split(self.shape[1], across)
        for rank, backend in enumerate(self.team.backends):
            p, q = self.team.place(rank)
            rows, columns = parts[0][p], parts[1][q]
            pitch = round_up((columns.stop - columns.start) * self.dtype.itemsize, PITCH)
            pitch = max(pitch, PITCH)
            buffer = backend.allocate(max((rows.stop - rows.start) * pitch, 1))
            blocks.append(Block(rows, columns, buffer, pitch))
        return tuple(blocks)


def scatter(array: Any, devices: Any = "cuda:all", dtype: Any = None) -> ShardedMatrix:
    """A NumPy matrix distributed over devices in P x Q blocks, as square as their number allows.

    devices: "cuda:all", or a list as ["cuda:0", "cuda:1"].
    dtype: that of the blocks; left out, the array's.

    Raises `NoDevice`, `MemoryError`; `TypeError` for arrays that lie on a device: copy them to the
    host first; `NotImplementedError` for types that pymm does not multiply, and for devices without
    access to each other's memory.
    """
    if hasattr(array, "__cuda_array_interface__"):
        raise TypeError(
            f"scatter takes a NumPy array; a {type(array).__name__} lies on a device already: copy "
            "it to the host first"
        )
    given = np.asarray(array)
    made = ShardedMatrix.empty(given.shape, given.dtype if dtype is None else dtype, devices)
    made.fill(given)
    return made
