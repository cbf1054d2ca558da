"""Memory that launches need while they run: a piece for each stream, and pieces of their own for
the launches that are captured into a graph.
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

#: Pieces are made in multiples of this many bytes, and below the second number as powers of two, so
#: that few products make a new one.
GRAIN, DOUBLING = 4 * 2**20, 256 * 2**20

#: A piece of which 256 leases in a row needed less than half is replaced by a smaller one.
WINDOW = 256


class Nothing:
    """What a launch gets that needs no memory."""

    address = nbytes = 0


class StreamPlace(NamedTuple):
    """What scratch memory belongs to: a stream of a context. Work on one runs in order, so that all
    its launches may use the same piece.
    """

    context: int
    handle: int
    state: StreamState = StreamState()

    @property
    def key(self) -> tuple[int, int, int]:
        """Where the piece is kept. A handle has one piece: when it means another stream than
        before, the former stream is gone.
        """
        own = self.state.stream if self.handle == PER_THREAD else 0
        return self.context, self.handle, own


@dataclass
class _Piece:
    """The memory of a stream, and what was asked of it."""

    buffer: Buffer
    stream: int
    leases: int = 0
    most: int = 0
    recent: int = field(default=0)

    def serves(self, nbytes: int) -> bool:
        """Note a lease; False if the piece is too small, or has long been more than twice what was
        needed.
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
    return -(-nbytes // (DOUBLING // 4)) * (DOUBLING // 4)


class Scratch:
    """Device memory by stream, zeroed when it is allocated.

    A launch owns the piece that it was bound to: nothing that is dropped here is freed under it.
    `allocate` makes zeroed memory; `dropped` is called when a piece is given up, so that what
    is cached above lets go of it, too. All pieces together take at most `most` bytes, unless a
    single product needs more: then those of streams that did not ask for long are given up.
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
        """Bytes of all pieces that are kept for streams."""
        return sum(piece.buffer.nbytes for piece in self._pieces.values())

    def lease(self, place: StreamPlace, nbytes: int) -> Buffer | Nothing:
        """At least `nbytes` bytes for launches on a stream. Raises `MemoryError`.

        A launch that is captured gets memory that belongs to its graph alone: the graph may be
        launched on any stream, at any time.
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
        """Give up all pieces: what is bound from now on gets fresh memory."""
        with self._lock:
            if self._pieces:
                self._pieces.clear()
                self._dropped()


class Capture:
    """A graph that is, or was, captured: owns what its launches use, until the graph and all that
    was instantiated from it are gone.
    """

    def __init__(self, driver: Driver, stream: int) -> None:
        self._owned: list[Any] = []
        self._pieces: dict[tuple, Buffer] = {}
        self._gone = _Semaphore()
        self._context = current_context()
        driver.when_destroyed(driver.captured_graph(stream), *self._gone.post)

    @property
    def over(self) -> bool:
        """Whether nothing of the graph is left."""
        return self._gone.taken()

    def release(self) -> None:
        """Let go of all that it owns, with its context current: PyCUDA's objects ask for that."""
        with suppress(drv.Error), active(self._context):
            self._pieces.clear()
            self._owned.clear()

    def own(self, thing: Any) -> None:
        """Keep `thing` alive for as long as the graph is."""
        self._owned.append(thing)

    def lease(
        self, kind: Any, place: StreamPlace, nbytes: int, allocate: Callable[[int], Buffer]
    ) -> Buffer:
        """Memory for launches that are captured on one stream: the graph runs them in order."""
        key = (id(kind), place.key)
        found = self._pieces.get(key)
        if found is None or found.nbytes < nbytes:
            found = self._pieces[key] = allocate(size_of(nbytes))
            self.own(found)
        return found


class Captures:
    """The graphs of a process that pymm has captured launches into."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._known: dict[tuple[int, int], Capture] = {}
        self._lock = threading.RLock()

    def of(self, place: StreamPlace) -> Capture:
        """The one that a stream is captured into. What belongs to graphs that are gone is freed."""
        number = place.context, place.state.capture
        with self._lock:
            found = self._known.get(number)
            if found is None:
                self.sweep()
                found = self._known[number] = Capture(self._driver, place.handle)
            return found

    def sweep(self) -> None:
        """Let go of what belongs to graphs that are gone."""
        with self._lock:
            over = {number: capture for number, capture in self._known.items() if capture.over}
            for number in over:
                del self._known[number]
        for capture in over.values():
            capture.release()

    def __len__(self) -> int:
        return len(self._known)


class _Semaphore:
    """What a driver's thread can raise without Python, and Python can ask for later."""

    _c = ctypes.CDLL(None)

    def __init__(self) -> None:
        self._room = ctypes.create_string_buffer(64)  # sem_t has 32 bytes on Linux
        self._c.sem_init(self._room, 0, 0)
        # The driver may raise it after all of Python is gone: the memory stays until it has.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._room))
        self._raised = False

    @property
    def post(self) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """A function in C and its argument, which together raise it."""
        place = ctypes.c_void_p(ctypes.addressof(self._room))
        return ctypes.cast(self._c.sem_post, ctypes.c_void_p), place

    def taken(self) -> bool:
        """Whether it was raised."""
        if not self._raised and self._c.sem_trywait(self._room) == 0:
            self._raised = True
            ctypes.pythonapi.Py_DecRef(ctypes.py_object(self._room))
        return self._raised
