"""Messages between two processes, one of which may be out of its mind: a kernel that writes over
the memory of its process also writes over what that process is about to say.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import select
import struct
import time
from multiprocessing.connection import Connection
from typing import Any

#: A message is this mark, its length and its digest, then as many bytes.
HEADER = struct.Struct("<4sQ16s")
MARK = b"pymm"

#: Longest message in bytes; the longest that is sent, a comparison of 30 calls, has 50,000.
LONGEST = 1 << 26


class Garbled(RuntimeError):
    """What came is no message; nothing that comes after it can be trusted."""


class Channel:
    """One end of a two-way pipe between processes. Each end has one owner, who closes it.

    Nothing is unpickled whose digest is wrong, and no call takes longer than its time limit, even
    if the other side stops in the middle of a message.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection  # its descriptor's owner
        self._received = bytearray()
        os.set_blocking(connection.fileno(), False)

    def fileno(self) -> int:
        """The descriptor, for those who wait for several channels."""
        return self._connection.fileno()

    def close(self) -> None:
        """Close this end."""
        self._connection.close()

    def send(self, message: Any, timeout: float | None = None) -> None:
        """Send an object that can be pickled. Raises `OSError` if the other side is gone or takes
        nothing for `timeout` seconds, `ValueError` for more than `LONGEST` bytes.
        """
        body = pickle.dumps(message)
        if len(body) > LONGEST:
            raise ValueError(f"a message of {len(body)} bytes; the longest has {LONGEST}")
        rest = memoryview(HEADER.pack(MARK, len(body), _digest(body)) + body)
        ends = _end_of(timeout)
        while rest:
            if not self._ready(select.POLLOUT, ends):
                raise TimeoutError(f"nothing was taken for {timeout} s")
            rest = rest[os.write(self.fileno(), rest[: 1 << 16]) :]

    def receive(self, timeout: float | None = None) -> Any:
        """The next message, None if it is not whole after `timeout` seconds: it goes on with the
        next call. Raises `EOFError` if the other side closed its end, `Garbled`.
        """
        ends = _end_of(timeout)
        while (wanted := self._missing()) > 0:
            if not self._ready(select.POLLIN, ends):
                return None
            try:
                piece = os.read(self.fileno(), min(wanted, 1 << 20))
            except ConnectionResetError:
                piece = b""
            if not piece:
                raise EOFError
            self._received += piece
        _, _, digest = HEADER.unpack_from(self._received)
        body = bytes(self._received[HEADER.size :])
        self._received.clear()
        if _digest(body) != digest:
            raise Garbled("a message whose digest is wrong")
        try:
            return pickle.loads(body)
        except Exception as failure:  # whatever it is that unpickling raises
            raise Garbled(f"a message that cannot be read: {failure!r}") from failure

    def _missing(self) -> int:
        """Bytes that are still to come, of the header or of the whole message."""
        if len(self._received) < HEADER.size:
            return HEADER.size - len(self._received)
        mark, length, _ = HEADER.unpack_from(self._received)
        if mark != MARK or length > LONGEST:
            raise Garbled("bytes that begin no message")
        return HEADER.size + length - len(self._received)

    def _ready(self, event: int, ends: float | None) -> bool:
        """Wait for `event`; False if it is not there at the time `ends`."""
        poll = select.poll()
        poll.register(self, event)
        left = None if ends is None else 1000 * max(0.0, ends - time.monotonic())
        return bool(poll.poll(left))


def _end_of(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()
