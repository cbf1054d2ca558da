"""How fast the host and a device exchange data: measured once for each device, kept in the state
directory.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np

from pymm.backends.base import Backend
from pymm.blocked.plan import Rates
from pymm.core.files import locked, replace_text
from pymm.core.forking import call_in_child
from pymm.core.inputs import BadInput, number_field, read_json
from pymm.core.paths import state_directory

#: Most bytes that are copied each way, after as many to wake the device and make the staging
#: buffers, and bytes of a row.
SAMPLE, ROW = 256 * 2**20, 4096

_known: dict[Backend, Rates] = {}
call_in_child(_known.clear)


def link_rates(backend: Backend, room: int) -> Rates:
    """Bytes a second from and to pageable host memory, through staging; the other rates are those
    of `Rates`. Where times mean nothing, and where there is no memory to measure, all are. Takes at
    most `room` bytes of the device's memory.
    """
    found = _known.get(backend)
    if found is None:
        found = Rates() if not backend.device.times_are_real else _kept(backend, room)
        _known[backend] = found
    return found


def _kept(backend: Backend, room: int) -> Rates:
    """What the file says, else what is measured now; a file that is damaged is written anew."""
    path = None
    with suppress(OSError):
        path = state_directory() / f"link-{backend.device.slug}.json"
    if path is not None:
        with suppress(OSError, BadInput, ValueError):
            return _read(path)
    try:
        found = measured(backend, min(SAMPLE, room))
    except MemoryError:
        return Rates()
    if path is not None:
        with suppress(OSError), locked(path):
            replace_text(path, json.dumps({"up": found.up, "down": found.down}) + "\n")
    return found


def _read(path: Path) -> Rates:
    data = read_json(path).data
    if not isinstance(data, dict):
        raise ValueError(f"{path} is no object")
    up, down = (number_field(data.get(name), name, 1e6) for name in ("up", "down"))
    return Rates(up=up, down=down)


def measured(backend: Backend, nbytes: int = SAMPLE) -> Rates:
    """The rates of the link to `backend`, measured now (0.1 s). Raises `MemoryError`."""
    queue, host = backend.queue(), np.ones((max(nbytes // ROW, 1), ROW // 4), np.float32)
    buffer = backend.allocate(host.nbytes)

    def up() -> None:
        queue.upload(host, host.dtype, buffer.address, ROW)
        queue.synchronize()

    def down() -> None:
        queue.download(buffer.address, ROW, host.dtype, host)

    return Rates(up=host.nbytes / _seconds(up), down=host.nbytes / _seconds(down))


def _seconds(copy: Callable[[], None]) -> float:
    copy()
    start = time.perf_counter()
    copy()
    return time.perf_counter() - start
