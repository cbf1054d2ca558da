"""MPI datatypes of what one process holds of a row-major matrix: with one of them a process gets
its blocks by one message, out of the whole matrix, and stores them contiguously.

Two ways to describe the same elements:

- "darray": `MPI_Type_create_darray`, a type for each process (MPI 4.1, section 5.1.4).
- "nine": types made by hand. Along each dimension a process holds as many whole blocks as the first
  one, or one less, or has the partial block at the end: three classes of process rows, three of
  process columns, so at most nine types for any number of processes. A type is a row of blocks
  (`vector`, or `indexed` where the last is partial) with the length of a row of the matrix as
  its extent (`resized`), repeated for the rows of each block (`vector` or `indexed` again). Where
  a process begins is an offset, which is not part of the type.

The first is the one that MPI provides; which one is faster depends on the MPI library, so both are
timed once in a process that sends (`faster_kind`).

A count of elements has 32 bits in MPI before version 4, so messages here have a count of one
datatype, and datatypes may have more than 2^31 elements.
"""

from __future__ import annotations

import time
from functools import lru_cache

import numpy as np

from pymm.distributed.communicator import MPI
from pymm.distributed.layout import BlockCyclic

KINDS = ("darray", "nine")

#: The element types that can be distributed.
ELEMENTS = {np.dtype(np.float32): MPI.FLOAT, np.dtype(np.float64): MPI.DOUBLE}

#: Elements of a row of the largest contiguous datatype made in one step.
_CHUNK = 1 << 20

#: One dimension of a process's part: whole blocks, elements of a block, of the partial block at the
#: end, and from one block to the next.
Runs = tuple[int, int, int, int]


def checked_dtype(dtype) -> np.dtype:
    """`dtype` as NumPy's. `TypeError` unless elements of it can be distributed."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found not in ELEMENTS:
        raise TypeError(
            f"distributed matrices are of float32 or float64, in this machine's byte order; "
            f"got {dtype}: convert it first"
        )
    return found


def contiguous(count: int, dtype: np.dtype) -> MPI.Datatype:
    """`count` elements next to each other, committed: also more than a count of MPI can say."""
    element = ELEMENTS[dtype]
    full, rest = divmod(count, _CHUNK)
    if not full:
        return element.Create_contiguous(rest).Commit()
    chunk = element.Create_contiguous(_CHUNK)
    tail = element.Create_contiguous(rest)
    at = full * _CHUNK * dtype.itemsize
    both = MPI.Datatype.Create_struct([full, 1 if rest else 0], [0, at], [chunk, tail])
    chunk.Free()
    tail.Free()
    return both.Commit()


def submatrix(rows: Runs, columns: Runs, ld: int, element: MPI.Datatype, at: int) -> MPI.Datatype:
    """The elements of a row-major matrix, `ld` elements from row to row, that are in `rows` and in
    `columns`, from `at` bytes behind the address that is given with it. Committed.
    """
    size = element.Get_size()
    across = _runs(element, columns)
    row = across.Create_resized(0, ld * size)
    down = _runs(row, rows)
    made = down.Create_hindexed_block(1, [at]) if at else down.Dup()
    for part in (across, row, down):
        part.Free()
    return made.Commit()


def _runs(old: MPI.Datatype, runs: Runs) -> MPI.Datatype:
    full, block, rest, step = runs
    if not rest:
        return old.Create_vector(full, block, step)
    lengths = [block] * full + [rest]
    return old.Create_indexed(lengths, [step * i for i in range(full + 1)])


def runs_of(layout: BlockCyclic, axis: int, i: int, r: int) -> Runs:
    """What process row (column, for axis 1) `i` of layer `r` holds along `axis`."""
    block, count = layout.block[axis], layout.grid[axis]
    p, q = (0, i) if axis else (i, 0)
    full, rest = divmod(layout.local_shape(p, q, r)[axis], block)
    return full, block, rest, count * block


class Parts:
    """The datatype of each process's part of a row-major matrix with a layout, for a `with`, at the
    end of which the types are freed.

    ld: elements from one row of the matrix to the next.
    kind: "darray" or "nine", None for the faster one. Layers and padded rows have only "nine".
    """

    def __init__(
        self, layout: BlockCyclic, dtype: np.dtype, ld: int | None = None, kind: str | None = None
    ) -> None:
        self.layout, self.element = layout, ELEMENTS[dtype]
        self.ld = layout.shape[1] if ld is None else ld
        self.types: dict[object, MPI.Datatype] = {}
        kind = faster_kind() if kind is None else checked_kind(kind)
        plain = layout.layers == 1 and self.ld == layout.shape[1]
        self.kind = kind if plain else "nine"

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *exception: object) -> None:
        for made in self.types.values():
            made.Free()
        self.types.clear()

    def of(self, rank: int) -> tuple[MPI.Datatype, int] | None:
        """The type of `rank`'s part and where it begins, in bytes; None if the part is empty."""
        layout = self.layout
        p, q, r = layout.coordinates(rank)
        if not all(layout.local_shape(p, q, r)):
            return None
        if self.kind == "darray":
            if rank not in self.types:
                self.types[rank] = self._darray(rank)
            return self.types[rank], 0
        rows, columns = runs_of(layout, 0, p, r), runs_of(layout, 1, q, r)
        if (rows, columns) not in self.types:
            self.types[rows, columns] = submatrix(rows, columns, self.ld, self.element, 0)
        top, left = layout.bounds(0, r)[0], layout.bounds(1, r)[0]
        first = (top + p * layout.block[0]) * self.ld + left + q * layout.block[1]
        return self.types[rows, columns], first * self.element.Get_size()

    def _darray(self, rank: int) -> MPI.Datatype:
        layout, cyclic = self.layout, [MPI.DISTRIBUTE_CYCLIC] * 2
        made = self.element.Create_darray(
            layout.size, rank, layout.shape, cyclic, layout.block, layout.grid, MPI.ORDER_C
        )
        return made.Commit()


def checked_kind(kind: str) -> str:
    """`kind`, if there is such a way to make datatypes; else `ValueError`."""
    if kind not in KINDS:
        raise ValueError(f"datatypes {kind!r} is neither 'darray' nor 'nine'")
    return kind


@lru_cache(maxsize=1)
def faster_kind() -> str:
    """The kind of datatypes that this MPI library sends faster: timed at the first call, some
    milliseconds, on a 700 x 700 matrix of float64 in 32 x 32 and in 128 x 128 blocks.
    """
    seconds = {kind: sum(_packing(kind, block) for block in (32, 128)) for kind in KINDS}
    return min(KINDS, key=seconds.__getitem__)


def _packing(kind: str, block: int) -> float:
    """Least seconds that sending one process's part to this process took in three trials."""
    layout = BlockCyclic((700, 700), (block, block), (2, 2))
    matrix = np.zeros(layout.shape)
    packed = np.empty(layout.local_shape(0, 0))
    trials = []
    with Parts(layout, matrix.dtype, kind=kind) as parts:
        part, _ = parts.of(0)
        for _ in range(3):
            start = time.perf_counter()
            MPI.COMM_SELF.Sendrecv([matrix, 1, part], 0, recvbuf=packed, source=0)
            trials.append(time.perf_counter() - start)
    return min(trials)
