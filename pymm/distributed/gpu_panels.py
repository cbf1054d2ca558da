"""C <- alpha A B + beta C on the GPUs of the processes, whose panels go from GPU to GPU by NCCL, if
nccl4py is installed and every process has a GPU of its own.

Every element of A and B goes from its process to that process's GPU once, and from there to the
GPUs of its row or column of the grid (`ncclBroadcast`). On a grid of P x Q a panel takes every
lcm(P, Q)-th block along k. All its blocks of A in a row of the grid then belong to one process, and
all its blocks of B in a column to one, so that one broadcast of one contiguous buffer is enough.
Streams order all of it: while one panel is multiplied the next is on its way.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, NamedTuple

from pymm.api import Plan, plan
from pymm.backends.base import Backend, Queue
from pymm.core.errors import NoDevice
from pymm.distributed.communicator import MPI, ProcessGrid, everywhere, raise_together
from pymm.distributed.layout import Piece, pieces
from pymm.distributed.local_products import LocalProducts
from pymm.runtime.arrays import adopt

#: How panels travel: through the hosts by MPI, between GPUs by NCCL, or by NCCL where it can.
TRANSPORTS = ("auto", "mpi", "nccl")

INSTALL = "pip install 'nccl4py[cu13]'"


class Links(NamedTuple):
    """NCCL's communicators of a process: of its row and of its column of the grid. None for one
    that has no other process.
    """

    row: Any
    column: Any


def links(
    communicator: MPI.Comm, grid: ProcessGrid, products: LocalProducts, transport: str
) -> Links | None:
    """How the GPUs of a grid reach each other; None if panels go by MPI. Made at the first call.
    Collective. For `transport="nccl"`, `ValueError` or `NoDevice` on every rank if they cannot.
    """
    with everywhere(communicator):
        if transport not in TRANSPORTS:
            raise ValueError(f"transport {transport!r} is none of {', '.join(TRANSPORTS)}")
        if transport == "nccl" and products.name != "gpu":
            raise ValueError(
                f"transport='nccl' moves panels between GPUs, and {products.name!r} multiplies "
                "them: give product='gpu'"
            )
    if transport == "mpi" or products.name != "gpu":
        return None
    if grid.links is None:
        lacking = _lacking(communicator, products.backend, transport)
        if lacking and transport == "nccl":
            raise_together(communicator, NoDevice(lacking))
        if lacking:
            return None
        grid.links = Links(*(_joined(part, products.backend) for part in (grid.row, grid.column)))
    return grid.links


def _lacking(communicator: MPI.Comm, backend: Backend, transport: str) -> str:
    """Why NCCL cannot move panels, the same on every rank; "" if it can. With "auto" it is not
    asked to for simulated GPUs, which it does not know.
    """
    if communicator.size == 1:
        return ""
    device = backend.device
    own = MPI.Get_processor_name(), device.bus or str(device.index)
    simulated = transport == "auto" and not device.times_are_real
    missing = simulated or importlib.util.find_spec("nccl") is None
    told = communicator.allgather((own, missing))
    without = [rank for rank, (_, lacks) in enumerate(told) if lacks]
    if without:
        return f"rank {without[0]} has no nccl4py: {INSTALL}"
    gpus = [gpu for gpu, _ in told]
    for rank, gpu in enumerate(gpus):
        if gpu in gpus[:rank]:
            return (
                f"ranks {gpus.index(gpu)} and {rank} have one GPU ({gpu[1]} of {gpu[0]}), and "
                "NCCL wants one for each: start as many processes as there are GPUs"
            )
    return ""


def _joined(part: MPI.Comm, backend: Backend) -> Any:
    """NCCL's communicator of these processes."""
    if part.size == 1:
        return None
    nccl = importlib.import_module("nccl.core")
    with backend.queue().here():
        made = bytes(nccl.get_unique_id()) if part.rank == 0 else b""
        shared = nccl.UniqueId.from_bytes(part.bcast(made, 0))
        return nccl.Communicator.init(part.size, part.rank, shared)


class _Slot:
    """Room for a panel of A and one of B on the GPU, and when it was filled and read."""

    def __init__(self, backend: Backend, rows: int, columns: int, width: int, dtype: Any) -> None:
        self.a = backend.empty((rows * width,), dtype) if rows else None
        self.b = backend.empty((width * columns,), dtype) if columns else None
        self.filled, self.read = backend.new_mark(), backend.new_mark()
        self.plans: dict[tuple, Plan] = {}


class GpuPanels:
    """The product of one process: C <- alpha A B + beta C with this layer's range of k."""

    def __init__(self, grid: ProcessGrid, links: Links, a, b, into, backend: Backend) -> None:
        self.grid, self.links, self.backend = grid, links, backend
        self.a, self.b = a, b
        self.c, self.alpha, self.beta = into
        self.received_a = self.received_b = 0
        self.moving: Queue = backend.queue()
        self.multiplying: Queue = backend.queue()
        self._result = None

    def multiply(self, width: int, look_ahead: bool) -> int:
        """Compute it, and return how many panels that took. C is in its NumPy array then."""
        (rows, columns), dtype = self.c.shape, self.c.dtype
        block = self.a.layout.block[1]
        first, last = self.a.layout.bounds(1, self.grid.r)
        todo = list(pieces(last - first, block, self.grid.shape[:2], width))
        widest = max(piece.width for piece in todo)
        count = 2 if look_ahead and len(todo) > 1 else 1
        slots = [_Slot(self.backend, rows, columns, widest, dtype) for _ in range(count)]
        if self.c.size:
            self._result = self.backend.empty(self.c.shape, dtype)
            if self.beta != 0:
                self._upload(self.multiplying, self.c, self._result)
        for step in range(count - 1):
            self._gather(todo[step], slots[step], block)
        for step, piece in enumerate(todo):
            ahead = step + count - 1
            if ahead < len(todo):
                self._gather(todo[ahead], slots[ahead % count], block)
            self._add(piece, slots[step % count])
        self.multiplying.synchronize()
        self.moving.synchronize()
        if self._result is not None:
            address = adopt(self._result, "C").address
            self.multiplying.download(address, columns * dtype.itemsize, dtype, self.c)
        return len(todo)

    def _gather(self, piece: Piece, slot: _Slot, block: int) -> None:
        """Queue what brings a panel to this GPU, and on from it."""
        rows, columns = self.grid.shape[:2]
        queue = self.moving
        queue.wait(slot.read)
        with queue.here():
            if slot.a is not None:
                whole = slot.a[: self.c.shape[0] * piece.width]
                if self.grid.q == piece.q:
                    own = piece.part(self.a.local, 1, block, columns)
                    self._upload(queue, own, whole)
                else:
                    self.received_a += whole.size
                _broadcast(self.links.row, whole, piece.q, queue)
            if slot.b is not None:
                whole = slot.b[: piece.width * self.c.shape[1]]
                if self.grid.p == piece.p:
                    own = piece.part(self.b.local, 0, block, rows)
                    self._upload(queue, own, whole)
                else:
                    self.received_b += whole.size
                _broadcast(self.links.column, whole, piece.p, queue)
        queue.mark(slot.filled)

    def _add(self, piece: Piece, slot: _Slot) -> None:
        """Queue the product of a panel."""
        self.multiplying.wait(slot.filled)
        if self._result is not None:
            key = piece.width, self.beta
            if key not in slot.plans:
                with self.multiplying.here():
                    slot.plans[key] = self._planned(piece, slot)
            slot.plans[key]()
        self.multiplying.mark(slot.read)
        self.beta = 1

    def _planned(self, piece: Piece, slot: _Slot) -> Plan:
        rows, columns = self.c.shape
        left = slot.a[: rows * piece.width].reshape(rows, piece.width)
        right = slot.b[: piece.width * columns].reshape(piece.width, columns)
        options: dict[str, Any] = {"alpha": self.alpha, "device": self.backend.device.index}
        if self.beta != 0:
            options |= {"beta": self.beta, "c": self._result}
        stream = self.multiplying.stream
        return plan(left, right, out=self._result, stream=stream, **options)

    def _upload(self, queue: Queue, array: Any, target: Any) -> None:
        pitch = array.shape[1] * array.itemsize
        queue.upload(array, array.dtype, adopt(target, "panel").address, pitch)


def _broadcast(link: Any, panel: Any, root: int, queue: Queue) -> None:
    """Queue the way of a panel from the GPU of process `root` to those of its row or column."""
    if link is not None:
        link.broadcast(panel, panel, root, stream=queue.stream)
