"""Memory that kernels need while they run, one piece for each stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymm.backends.base import Backend, Buffer

#: Pieces are made in multiples of this many bytes, so that few problems make a new one.
GRAIN = 4 * 2**20


@dataclass(frozen=True)
class Nothing:
    """What a launch gets that needs no memory."""

    address: int = 0
    nbytes: int = 0


class Scratch:
    """Zeroed device memory by context and stream. Launches on one stream run one after another and
    share a piece; a larger one replaces it, and the smaller lives on with the calls that were bound
    to it. No kernel asks for more than its rules allow, so neither does a stream.
    """

    def __init__(self, backend: Backend, context: Callable[[], Any]) -> None:
        self._backend, self._context = backend, context
        self._pieces: dict[Any, Buffer] = {}
        self._lock = threading.Lock()

    def get(self, stream: Any, nbytes: int) -> Buffer | Nothing:
        """At least `nbytes` bytes for launches on `stream`. Raises `MemoryError`."""
        if not nbytes:
            return Nothing()
        key = (self._context(), getattr(stream, "handle", stream) or 0)
        with self._lock:
            piece = self._pieces.get(key)
            if piece is None or piece.nbytes < nbytes:
                piece = self._backend.allocate(-(-nbytes // GRAIN) * GRAIN)
                piece.fill(0)
                self._backend.synchronize()
                self._pieces[key] = piece
            return piece
