"""`DistMatrix`: a matrix of which every process of a communicator holds some blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pymm.distributed import npy
from pymm.distributed.communicator import MPI, check_same, everywhere, process_grid, raise_together
from pymm.distributed.datatypes import Parts, checked_dtype, checked_kind, contiguous
from pymm.distributed.layout import BlockCyclic


class DistMatrix:
    """A matrix of float32 or float64, distributed over the processes of a communicator.

    layout: which process holds which elements.
    communicator: an mpi4py communicator of as many processes as the layout has.
    local: this process's elements, one matrix in C order, which may be written to.

    Everything but `local` is collective: all processes call it, with the same arguments, and where
    they differ or do not fit every process raises the same `ValueError` or `TypeError`.
    """

    def __init__(self, layout: BlockCyclic, local: np.ndarray, communicator: Any = None) -> None:
        """A matrix of parts that exist already; `local` is used in place."""
        self._describe(layout, getattr(local, "dtype", type(local)), communicator)
        shape, wrong = layout.local_shape(*self.coordinates), None
        if local.shape != shape or not local.flags.c_contiguous:
            wrong = ValueError(
                f"rank {self.communicator.rank} holds {shape} elements in C order; "
                f"got {local.shape} with strides {local.strides}"
            )
        raise_together(self.communicator, wrong)
        self.local = local

    def _describe(self, layout: BlockCyclic, dtype: Any, communicator: Any) -> np.dtype:
        """Set everything but `local`, and return the dtype that it is to have."""
        self.communicator = MPI.COMM_WORLD if communicator is None else communicator
        check_same(self.communicator, layout=layout, dtype=dtype)
        with everywhere(self.communicator):
            if not isinstance(layout, BlockCyclic):
                raise TypeError(f"layout is a BlockCyclic; got {layout!r}")
            dtype = checked_dtype(dtype)
        self.layout = layout
        self.grid = process_grid(self.communicator, (*layout.grid, layout.layers))
        self.coordinates = layout.coordinates(self.communicator.rank)
        return dtype

    @classmethod
    def _empty(cls, layout: BlockCyclic, dtype: Any, communicator: Any) -> DistMatrix:
        made = cls.__new__(cls)
        dtype = made._describe(layout, dtype, communicator)
        lacking = None
        try:
            made.local = np.empty(layout.local_shape(*made.coordinates), dtype)
        except MemoryError as error:
            rank = made.communicator.rank
            lacking = MemoryError(f"rank {rank} has no room for its part: {error}")
        raise_together(made.communicator, lacking)
        return made

    @classmethod
    def zeros(
        cls, layout: BlockCyclic, dtype: Any = np.float64, communicator: Any = None
    ) -> DistMatrix:
        """A matrix of zeros."""
        made = cls._empty(layout, dtype, communicator)
        made.local.fill(0)
        return made

    @classmethod
    def generate(
        cls,
        layout: BlockCyclic,
        function: Callable[[np.ndarray, np.ndarray], Any],
        dtype: Any = np.float64,
        communicator: Any = None,
    ) -> DistMatrix:
        """A matrix whose element (i, j) is `function(i, j)`: called once in each process, with its
        rows as an int64 column (rows, 1) and its columns as a row (1, columns). No process needs
        to hold more than its own part.
        """
        made = cls._empty(layout, dtype, communicator)
        p, q, r = made.coordinates
        made.local[...] = function(layout.rows(p, r)[:, None], layout.columns(q, r)[None, :])
        return made

    @classmethod
    def from_root(
        cls,
        layout: BlockCyclic,
        array: Any = None,
        communicator: Any = None,
        *,
        root: int = 0,
        datatypes: str | None = None,
    ) -> DistMatrix:
        """Distribute a NumPy matrix of rank `root`; the other ranks' `array` is not looked at.

        Each element leaves the root once, each process gets its part by one message. An array
        that is not in C order is copied on the root first.
        datatypes: how the parts are described, "darray" or "nine" (see
        `pymm.distributed.datatypes`), None for the way that is faster with this MPI library.
        """
        communicator = MPI.COMM_WORLD if communicator is None else communicator
        check_same(communicator, layout=layout, root=root, datatypes=datatypes)
        with everywhere(communicator):
            check_root(communicator, root)
            if datatypes is not None:
                checked_kind(datatypes)
        dtype, wrong = None, None
        if communicator.rank == root:
            try:
                array = np.ascontiguousarray(array)
                dtype = checked_dtype(array.dtype)
                if array.shape != layout.shape:
                    raise ValueError(f"the layout is of {layout.shape}; got {array.shape}")
            except (TypeError, ValueError) as error:
                wrong = error
        raise_together(communicator, wrong)
        made = cls._empty(layout, communicator.bcast(dtype, root), communicator)
        scatter(made.grid.everyone, layout, array, made.local, root, datatypes)
        return made

    @classmethod
    def from_npy(cls, path: Any, layout: BlockCyclic, communicator: Any = None) -> DistMatrix:
        """Read a matrix from a .npy file, each process its own part (MPI-IO): the matrix may be
        larger than any process's memory. `path` is on a file system that all processes share.

        `OSError` or `ValueError` on every rank if there is no such file, or it has another shape,
        another dtype or less data than its header says.
        """
        communicator = MPI.COMM_WORLD if communicator is None else communicator
        check_same(communicator, path=str(path), layout=layout)
        header = npy.shared_header(communicator, path, layout.shape)
        made = cls._empty(layout, header.dtype, communicator)
        npy.read(made.grid.everyone, path, header, layout, made.local)
        return made

    def to_npy(self, path: Any) -> None:
        """Write a .npy file that `numpy.load` reads, each process its own part (MPI-IO), to a path
        that all processes share. A reader finds the old file or the new one, never a part of it.

        `OSError` on every rank if it cannot be written; nothing is left behind then.
        """
        check_same(self.communicator, path=str(path))
        npy.write(self.grid.everyone, path, self.layout, self.local)

    def gather(self, root: int = 0) -> np.ndarray | None:
        """The whole matrix as a new NumPy array on rank `root`, None on the others."""
        check_same(self.communicator, root=root)
        with everywhere(self.communicator):
            check_root(self.communicator, root)
        everyone, lacking, whole = self.grid.everyone, None, None
        if everyone.rank == root:
            try:
                whole = np.empty(self.layout.shape, self.local.dtype)
            except MemoryError as error:
                lacking = MemoryError(f"the root has no room for the matrix: {error}")
        raise_together(everyone, lacking)
        gather(everyone, self.layout, self.local, whole, root)
        return whole


def check_root(communicator: MPI.Comm, root: int) -> None:
    """`ValueError` unless `root` is a rank of the communicator."""
    if not isinstance(root, int) or not 0 <= root < communicator.size:
        raise ValueError(f"root is a rank from 0 to {communicator.size - 1}; got {root!r}")


def scatter(
    communicator: MPI.Comm,
    layout: BlockCyclic,
    array: np.ndarray | None,
    local: np.ndarray,
    root: int,
    datatypes: str | None = None,
    parts: Sequence[int | None] | None = None,
) -> int:
    """Send every process of `communicator` its part of the root's C-ordered `array`, and return
    how many elements were sent in all; on the other ranks, 0.

    parts: the part that each rank gets, a rank of the layout, None for nothing; left out, its own.
    """
    return _exchange(communicator, layout, array, local, root, datatypes, parts, out=True)


def gather(
    communicator: MPI.Comm,
    layout: BlockCyclic,
    local: np.ndarray,
    array: np.ndarray | None,
    root: int,
) -> None:
    """Collect the parts of all processes in the root's C-ordered `array`."""
    _exchange(communicator, layout, array, local, root, None, None, out=False)


def _exchange(communicator, layout, array, local, root, datatypes, parts, out) -> int:
    """One message for every part that is not empty, out of the root's array or into it."""
    requests, elements = [], 0
    parts = range(layout.size) if parts is None else parts
    mine = contiguous(local.size, local.dtype)
    if local.size and parts[communicator.rank] is not None:
        post = communicator.Irecv if out else communicator.Isend
        requests.append(post([local, 1, mine], root))
    if communicator.rank == root:
        flat = array.reshape(-1).view(np.uint8)
        post = communicator.Isend if out else communicator.Irecv
        with Parts(layout, local.dtype, kind=datatypes) as types:
            for rank, part in enumerate(parts):
                found = None if part is None else types.of(part)
                if found is not None:
                    made, at = found
                    elements += made.Get_size() // local.itemsize
                    requests.append(post([flat[at:], 1, made], rank))
            MPI.Request.Waitall(requests)
    MPI.Request.Waitall(requests)
    mine.Free()
    return elements
