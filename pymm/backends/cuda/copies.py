"""Transfers of matrices between NumPy and the device, to and from rows of any pitch: pageable,
through page-locked staging memory, or page-locked in place.

The device's copy engine reads page-locked memory by itself, at the full rate of the bus. From
pageable memory the driver first copies every piece to a buffer of its own. Staging does the same
with buffers of pymm, and overlaps the two steps; registering locks the pages instead of copying.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import pycuda.driver as drv

from pymm.backends.base import TRANSFERS, check_rows
from pymm.backends.cpu.device import usable_cores
from pymm.backends.cuda.context import Held
from pymm.backends.cuda.driver import Driver

#: Bytes of each of two staging buffers: the bus transfers one in 0.3 ms (PCIe 5), while several
#: cores fill the other.
STAGE = 16 * 2**20

#: One core copies some 10 GB/s, the bus 50: pieces of SHARED_OUT bytes and more are copied by this
#: many threads. 256 MiB to an H200 with 16 cores: 10 GB/s pageable, 10 staged by one thread,
#: 21 staged by six, 19 registered; 16 MiB: 17, 12, 16, 15; 1 MiB: 11, 7, 3 (threads), 5.
MOVERS = 6
SHARED_OUT = 4 * 2**20

#: Most bytes of one copy command: PyCUDA keeps the width of a row in 32 bits.
PIECE = 2**30

#: Largest distance of rows that the driver accepts (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
MAX_PITCH = 2**31 - 1


class HostCopies:
    """The copies of one context, which must be active when they are made."""

    def __init__(self, context: drv.Context, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._held = Held(context, stream=drv.Stream(), stages=[], events=[])

    def copy(
        self,
        array: np.ndarray,
        address: int,
        pitch: int,
        transfer: str,
        stream: int,
        into_device: bool,
    ) -> None:
        """Copy the rows of `array` to (or from) device rows `pitch` bytes apart, in the order of
        the stream with that handle. On return the array may be changed (holds the rows).
        """
        if transfer not in TRANSFERS:
            raise ValueError(f"transfer {transfer!r} is none of {', '.join(TRANSFERS)}")
        rows, columns = check_rows(array, pitch)
        if not rows or not columns:
            return
        if (rows == 1 or pitch == columns * array.itemsize) and array.flags.c_contiguous:
            array, pitch = array.reshape(1, -1), array.nbytes  # one long row
        with self._lock:
            own = self._held.stream
            self._driver.order(stream, own.handle)
            if transfer == "registered" and self._registered(array, address, pitch, into_device):
                return
            if transfer == "pageable":
                own.synchronize()
                for host, place in pieces(array, address, pitch, PIECE):
                    _command(host, place, pitch, into_device)(aligned=False)
                self._driver.order(0, stream)
            else:
                self._staged(array, address, pitch, into_device)
                self._driver.order(own.handle, stream)

    def copy_within(
        self,
        source: tuple[int, int],
        target: tuple[int, int],
        shape: tuple[int, int],
        stream: int,
    ) -> None:
        """Copy `shape` = (rows, bytes of a row) from one (address, pitch) on the device to another,
        in the order of the stream with that handle and without waiting for it.
        """
        rows, width = shape
        down = 1 if max(source[1], target[1]) > MAX_PITCH else max(rows, 1)
        with self._lock:
            own = self._held.stream
            self._driver.order(stream, own.handle)
            for i in range(0, rows, down):
                for j in range(0, width, PIECE):
                    command = drv.Memcpy2D()
                    command.set_src_device(source[0] + i * source[1] + j)
                    command.set_dst_device(target[0] + i * target[1] + j)
                    part = min(PIECE, width - j)
                    command.width_in_bytes, command.height = part, down
                    pitches = (source[1], target[1]) if down > 1 else (part, part)
                    command.src_pitch, command.dst_pitch = pitches
                    command(own)
            self._driver.order(own.handle, stream)

    def _registered(self, array: np.ndarray, address: int, pitch: int, into_device: bool) -> bool:
        """Copy with the array page-locked meanwhile; False if it cannot be."""
        start = array.__array_interface__["data"][0]
        row = array.shape[1] * array.itemsize
        if not self._driver.register(start, (array.shape[0] - 1) * array.strides[0] + row):
            return False
        try:
            for host, place in pieces(array, address, pitch, PIECE):
                _command(host, place, pitch, into_device)(self._held.stream)
            self._held.stream.synchronize()
        finally:
            self._driver.unregister(start)
        return True

    def _staged(self, array: np.ndarray, address: int, pitch: int, into_device: bool) -> None:
        """Copy in pieces through two page-locked buffers: while the device transfers one, the CPU
        fills (or empties) the other.
        """
        held = self._held
        if not held.stages:
            held.stages = [drv.pagelocked_empty(STAGE, np.uint8) for _ in range(2)]
            held.events = [drv.Event(drv.event_flags.DISABLE_TIMING) for _ in range(2)]
        waiting: list[tuple[np.ndarray, np.ndarray, drv.Event]] = []
        for turn, (host, place) in enumerate(pieces(array, address, pitch, STAGE)):
            event = held.events[turn % 2]
            stage = held.stages[turn % 2][: host.nbytes].view(host.dtype).reshape(host.shape)
            if len(waiting) == 2:
                _finish(*waiting.pop(0), into_device)
            if into_device:
                move(stage, host)
            _command(stage, place, pitch, into_device)(held.stream)
            event.record(held.stream)
            waiting.append((host, stage, event))
        for left in waiting:
            _finish(*left, into_device)


def _finish(host: np.ndarray, stage: np.ndarray, event: drv.Event, into_device: bool) -> None:
    """Wait for the transfer of a stage; copy what it holds to the host's array."""
    event.synchronize()
    if not into_device:
        move(host, stage)


def move(to: np.ndarray, source: np.ndarray) -> None:
    """Copy on the CPU, converting where the types differ, large pieces by several
    threads: NumPy releases the GIL while it copies.
    """
    lanes = min(MOVERS, usable_cores())
    if to.nbytes < SHARED_OUT or lanes == 1:
        _copy(to, source)
        return
    axis = 0 if to.shape[0] >= lanes else 1
    parts = (np.array_split(array, lanes, axis) for array in (to, source))
    list(_movers().map(_copy, *parts))


def _copy(to: np.ndarray, source: np.ndarray) -> None:
    np.copyto(to, source, casting="unsafe")


@lru_cache(maxsize=1)
def _movers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(MOVERS, thread_name_prefix="pymm-copy")


def pieces(
    array: np.ndarray, address: int, pitch: int, limit: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of a matrix of at most `limit` bytes each, with their addresses on the device: as many
    whole rows as fit, or parts of one row.
    """
    rows, columns = array.shape
    size = array.itemsize
    across = min(columns, max(limit // size, 1))
    down = max(limit // (across * size), 1)
    if max(pitch, array.strides[0]) > MAX_PITCH:
        down = 1
    for i in range(0, rows, down):
        for j in range(0, columns, across):
            yield array[i : i + down, j : j + across], address + i * pitch + j * size


def _command(host: np.ndarray, place: int, pitch: int, into_device: bool) -> drv.Memcpy2D:
    """PyCUDA's command for one copy of rows."""
    rows, columns = host.shape
    width = columns * host.itemsize
    far, near = (pitch, host.strides[0]) if rows > 1 else (width, width)
    command = drv.Memcpy2D()
    if into_device:
        command.set_src_host(host)
        command.set_dst_device(place)
        command.src_pitch, command.dst_pitch = near, far
    else:
        command.set_src_device(place)
        command.set_dst_host(host)
        command.src_pitch, command.dst_pitch = far, near
    command.width_in_bytes, command.height = width, rows
    return command
