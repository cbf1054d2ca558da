"""Scratch memory of launches: one piece for each stream, and pieces of their own for launches that
are captured into a graph.
"""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pycuda.driver as drv

from pymm.backends.base import Buffer
from pymm.backends.cuda.context import active, current_context
from pymm.backends.cuda.driver import PER_THREAD, Driver, StreamState
from pymm.core.integers import round_up

#: Least bytes of a piece, and the size below which pieces are powers of two, so that few products
#: need a new piece.
GRAIN, DOUBLING = 4 * 2**20, 256 * 2**20

#: A piece of which 256 leases in a row needed less than half is replaced by a smaller one.
WINDOW = 256


class Nothing:
    """The memory of a launch that needs none."""

    address = nbytes = 0


class StreamPlace(NamedTuple):
    """The stream of a context that scratch memory belongs to. Work on a stream runs in order, so
    all its launches may use the same piece.
    """

    context: int
    handle: int
    state: StreamState = StreamState()

    @property
    def key(self) -> tuple[int, int, int]:
        """The key of the piece. A handle has one piece, since the former stream is gone when a
        handle means another one than before.
        """
        own = self.state.stream if self.handle == PER_THREAD else 0
        return self.context, self.handle, own


@dataclass
class _Piece:
    """The memory of a stream, and how much of it was needed lately."""

    buffer: Buffer
    stream: int
    leases: int = 0
    most: int = 0
    recent: int = field(default=0)

    def serves(self, nbytes: int) -> bool:
        """Count a lease. False if the piece is too small, or was more than twice too large for
        `WINDOW` leases.
        """
        self.leases, self.most = self.leases + 1, max(self.most, nbytes)
        if self.leases >= WINDOW:
            self.leases, self.recent, self.most = 0, self.most, nbytes
            if size_of(self.recent) * 2 <= self.buffer.nbytes:
                return False
        return self.buffer.nbytes >= nbytes


def size_of(nbytes: int) -> int:
    """Bytes of a piece for launches that need `nbytes`."""
    if nbytes < DOUBLING:
        return max(GRAIN, 1 << (nbytes - 1).bit_length())
    return round_up(nbytes, DOUBLING // 4)


class Scratch:
    """The scratch memory of each stream, zeroed when it is allocated.

    A launch owns the piece that it is bound to, so a piece that is dropped here is not freed while
    a launch uses it. `allocate` makes zeroed memory; `dropped` is called when a piece is dropped,
    so that cached launches release it, too. All pieces together take at most `most` bytes, except
    that one product may need more by itself; the pieces of the streams used least recently are
    dropped.
    """

    def __init__(
        self,
        allocate: Callable[[int], Buffer],
        captures: Captures,
        most: int,
        dropped: Callable[[], None],
    ) -> None:
        self._allocate, self._captures = allocate, captures
        self._most, self._dropped = most, dropped
        self._pieces: OrderedDict[tuple, _Piece] = OrderedDict()
        self._lock = threading.RLock()  # a finalizer may come in between

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces of streams."""
        return sum(piece.buffer.nbytes for piece in self._pieces.values())

    def lease(self, place: StreamPlace, nbytes: int) -> Buffer | Nothing:
        """At least `nbytes` bytes for launches on a stream. Raises `MemoryError`.

        A launch that is being captured gets memory that only its graph uses, since the graph may be
        launched on any stream at any time.
        """
        if not nbytes:
            return Nothing()
        if place.state.capture:
            return self._captures.of(place).lease(self, place, nbytes, self._allocate)
        with self._lock:
            piece = self._pieces.get(place.key)
            if piece is not None:
                if piece.stream == place.state.stream and piece.serves(nbytes):
                    self._pieces.move_to_end(place.key)
                    return piece.buffer
                del self._pieces[place.key]
                if piece.stream == place.state.stream:
                    nbytes = max(nbytes, min(piece.recent, piece.buffer.nbytes))
                del piece
                self._dropped()
            self._make_room(size_of(nbytes))
            buffer = self._allocate(size_of(nbytes))
            self._pieces[place.key] = _Piece(buffer, place.state.stream)
            return buffer

    def own_captured(self, place: StreamPlace, thing: Any) -> None:
        """Keep `thing` for as long as the graph that a stream is captured into."""
        self._captures.of(place).own(thing)

    def _make_room(self, nbytes: int) -> None:
        if self.nbytes + nbytes <= self._most:
            return
        while self._pieces and self.nbytes + nbytes > self._most:
            self._pieces.popitem(last=False)
        self._dropped()

    def clear(self) -> None:
        """Drop all pieces: launches that are bound from now on get fresh memory."""
        with self._lock:
            if self._pieces:
                self._pieces.clear()
                self._dropped()


class Capture:
    """A captured graph: owns what its launches use until the graph and everything instantiated from
    it are destroyed.
    """

    def __init__(self, driver: Driver, stream: int) -> None:
        self._owned: list[Any] = []
        self._pieces: dict[tuple, Buffer] = {}
        self._gone = _Semaphore()
        self._context = current_context()
        driver.when_destroyed(driver.captured_graph(stream), *self._gone.post)

    @property
    def over(self) -> bool:
        """Whether the graph and everything instantiated from it are destroyed."""
        return self._gone.taken()

    def release(self) -> None:
        """Release what it owns, with its context current, as PyCUDA's objects require."""
        with suppress(drv.Error), active(self._context):
            self._pieces.clear()
            self._owned.clear()

    def own(self, thing: Any) -> None:
        """Keep `thing` alive for as long as the graph is."""
        self._owned.append(thing)

    def lease(
        self, kind: Any, place: StreamPlace, nbytes: int, allocate: Callable[[int], Buffer]
    ) -> Buffer:
        """Memory for the launches captured from one stream, which the graph runs in order."""
        key = (id(kind), place.key)
        found = self._pieces.get(key)
        if found is None or found.nbytes < nbytes:
            found = self._pieces[key] = allocate(size_of(nbytes))
            self.own(found)
        return found


class Captures:
    """The graphs of this process into which launches of pymm were captured."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[tuple[int, int], Capture] = {}
        self._lock = threading.RLock()

    def of(self, place: StreamPlace) -> Capture:
        """The graph that a stream is being captured into. Frees what destroyed graphs owned."""
        number = place.context, place.state.capture
        with self._lock:
            found = self._known.get(number)
            if found is None:
                self.sweep()
                found = self._known[number] = Capture(self._driver, place.handle)
            return found

    def sweep(self) -> None:
        """Free what destroyed graphs owned."""
        with self._lock:
            over = {number: capture for number, capture in self._known.items() if capture.over}
            for number in over:
                del self._known[number]
        for capture in over.values():
            capture.release()

    def __len__(self) -> int:
        return len(self._known)


class _Semaphore:
    """A semaphore that a thread of the driver raises without Python, for Python to read later."""

    _c = ctypes.CDLL(None)

    def __init__(self) -> None:
        self._room = ctypes.create_string_buffer(64)  # sem_t has 32 bytes on Linux
        self._c.sem_init(self._room, 0, 0)
        # The driver may raise it after Python has ended: the memory is kept until it has.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._room))
        self._raised = False

    @property
    def post(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """The C function that raises it, and its argument."""
        place = ctypes.c_void_p(ctypes.addressof(self._room))
        return ctypes.cast(self._c.sem_post, ctypes.c_void_p), place

    def taken(self) -> bool:
        """Whether it was raised."""
        if not self._raised and self._c.sem_trywait(self._room) == 0:
            self._raised = True
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._room))
        return self._raised
