"""The panels of A and B that a product is made of: each process gets, of its rows of A and of its
columns of B, what the others in its row and column of the grid hold.

A panel is a range of k. Of A it is (local rows) x width, gathered along a row of the grid, of B
width x (local columns), gathered along a column. Datatypes put the pieces of the processes between
each other, so that columns of A and rows of B come out in the order of k and one local product
multiplies whole panels. Where a row of the grid has one process, its panel is a view of its part.
"""

from __future__ import annotations

import numpy as np

from pymm.distributed.communicator import MPI
from pymm.distributed.datatypes import ELEMENTS, Runs, submatrix
from pymm.distributed.layout import BlockCyclic, numroc


class Panels:
    """Panels of one operand, `axis` the one that is split into them: 1 for A, 0 for B.

    communicator: of the processes that share the panels, ranked by their places along `axis`.
    width: of a panel, in multiples of the block.
    buffers: how many panels can be there at once.
    """

    def __init__(
        self,
        communicator: MPI.Comm,
        layout: BlockCyclic,
        local: np.ndarray,
        axis: int,
        layer: int,
        width: int,
        buffers: int,
    ) -> None:
        self.communicator, self.local, self.axis = communicator, local, axis
        first, last = layout.bounds(axis, layer)
        self.k, self.width, self.block = last - first, width, layout.block[axis]
        self.received = 0
        self._types: dict[tuple, MPI.Datatype] = {}
        self._alone = communicator.size == 1
        shape = (width, local.shape[1]) if axis == 0 else (local.shape[0], width)
        self._buffers = (
            [] if self._alone else [np.empty(shape, local.dtype) for _ in range(buffers)]
        )

    def start(self, step: int) -> MPI.Request:
        """Begin to gather panel `step` into the buffer of its turn."""
        if self._alone:
            return MPI.REQUEST_NULL
        source, send = self._piece(step)
        panel = self._target(step)
        receive = []
        for i in range(self.communicator.size):
            made = self._received_type(step, i)
            receive.append(made)
            if i != self.communicator.rank and made is not None:
                self.received += made.Get_size() // self.local.itemsize
        sent = [send] * self.communicator.size
        return self.communicator.Ialltoallw(_message(source, sent), _message(panel, receive))

    def panel(self, step: int) -> np.ndarray:
        """Panel `step`, whose request is complete: valid until its buffer is used again."""
        if self._alone:
            return self._own(step)
        panel, width = self._target(step), self._width(step)
        return panel[:, :width] if self.axis else panel[:width]

    def free(self) -> None:
        """Free the datatypes."""
        for made in self._types.values():
            made.Free()
        self._types.clear()

    def _width(self, step: int) -> int:
        return min(self.width, self.k - step * self.width)

    def _target(self, step: int) -> np.ndarray:
        return self._buffers[step % len(self._buffers)]

    def _own(self, step: int) -> np.ndarray:
        """This process's part of a panel, in place."""
        size, rank = self.communicator.size, self.communicator.rank
        first, last = (
            numroc(min(k, self.k), self.block, rank, size)
            for k in (step * self.width, (step + 1) * self.width)
        )
        return self.local[:, first:last] if self.axis else self.local[first:last]

    def _piece(self, step: int) -> tuple[np.ndarray, MPI.Datatype | None]:
        """What this process sends: where it begins, and its type."""
        own = self._own(step)
        if not own.size:
            return self.local, None
        rows, columns = ((1, extent, 0, extent) for extent in own.shape)
        ld = self.local.shape[1]
        return own, self._type(rows, columns, ld, 0)

    def _received_type(self, step: int, i: int) -> MPI.Datatype | None:
        """Where process `i`'s piece of a panel goes in the buffer."""
        size, block = self.communicator.size, self.block
        before = step * self.width // block  # blocks of all processes
        offset = (i - before) % size * block
        count = numroc(min(self.k, (step + 1) * self.width), block, i, size)
        count -= numroc(min(self.k, step * self.width), block, i, size)
        across = self.local.shape[0] if self.axis else self.local.shape[1]
        if not count or not across:
            return None
        own = (count // block, block, count % block, size * block)
        every = (1, across, 0, across)
        if self.axis:
            return self._type(every, own, self.width, offset)
        return self._type(own, every, across, offset * across)

    def _type(self, rows: Runs, columns: Runs, ld: int, first: int) -> MPI.Datatype:
        key = rows, columns, ld, first
        if key not in self._types:
            at = first * self.local.itemsize
            self._types[key] = submatrix(rows, columns, ld, ELEMENTS[self.local.dtype], at)
        return self._types[key]


def _message(array: np.ndarray, types: list[MPI.Datatype | None]) -> list:
    """Everything at `array`, for `Ialltoallw`: one element of each type, none where it is None."""
    counts = [0 if made is None else 1 for made in types]
    whole = np.lib.stride_tricks.as_strided(array, (array.size and 1,), (array.itemsize,))
    return [whole, counts, [0] * len(types), [made or MPI.BYTE for made in types]]
