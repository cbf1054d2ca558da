"""Streams of pymm's own for work that overlaps: copies from and to the host through page-locked
staging that convert on their way, copies between devices, and marks that order streams.

Unlike `HostCopies`, which one call at a time uses, every queue has staging of its own, and an
upload returns when the host's data has been read, not when it has arrived.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from typing import Any

import numpy as np
import pycuda.driver as drv

from pymm.backends.base import Mark, Queue
from pymm.backends.cpu.device import memory_field
from pymm.backends.cuda.context import active, failure, working
from pymm.backends.cuda.copies import MAX_PITCH, STAGE, move
from pymm.backends.cuda.driver import Driver, DriverError

_NON_BLOCKING, _DISABLE_TIMING, _PORTABLE = 1, 2, 1
_PEER_ALREADY = 704
_MEMORY_TYPE = 2  # CU_POINTER_ATTRIBUTE_MEMORY_TYPE

#: CUmemorytype: host memory, a device's, and whichever the address says.
_HOST, _DEVICE, _UNIFIED = 1, 2, 4

#: Staging buffers of a queue: while the copy engine moves one, threads fill the next, and one more
#: is ready for the engine when they are late.
STAGES = 3


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = (
        ("source_x", c_size_t),
        ("source_y", c_size_t),
        ("source_kind", c_uint),
        ("source_host", c_void_p),
        ("source_device", c_void_p),
        ("source_array", c_void_p),
        ("source_pitch", c_size_t),
        ("target_x", c_size_t),
        ("target_y", c_size_t),
        ("target_kind", c_uint),
        ("target_host", c_void_p),
        ("target_device", c_void_p),
        ("target_array", c_void_p),
        ("target_pitch", c_size_t),
        ("width", c_size_t),
        ("height", c_size_t),
    )


class CudaMark(Mark):
    """An event without a time."""

    def __init__(self, context: drv.Context, driver: Driver) -> None:
        event = c_void_p()
        with working(context, "making an event"):
            driver.call("cuEventCreate", byref(event), c_uint(_DISABLE_TIMING))
        self._context, self._driver, self.event = context, driver, event
        weakref.finalize(self, _destroy, context, driver, "cuEventDestroy_v2", event)

    def synchronize(self) -> None:
        _drive(self._context, self._driver, "cuEventSynchronize", self.event)


class _Locked:
    """Page-locked host memory that every context may use, as bytes. `MemoryError` for more than
    half of what is free: what is locked is taken from all other processes.
    """

    def __init__(self, context: drv.Context, driver: Driver, nbytes: int) -> None:
        free = memory_field("MemAvailable")
        if free and nbytes > free // 2:
            raise MemoryError(
                f"copies need {nbytes} bytes of page-locked host memory, and only {free} bytes of "
                "host memory are free: pymm locks at most half of that"
            )
        address, size = c_void_p(), c_size_t(nbytes)
        with working(context, f"locking {nbytes} bytes of host memory"):
            _drive(context, driver, "cuMemHostAlloc", byref(address), size, c_uint(_PORTABLE))
        self.address = address.value
        self.array = np.frombuffer((ctypes.c_ubyte * nbytes).from_address(address.value), np.uint8)
        weakref.finalize(self, _destroy, context, driver, "cuMemFreeHost", address)


def _drive(context: drv.Context, driver: Driver, name: str, *arguments: Any) -> None:
    """A call of the driver in a context, its errors told as pymm's."""
    try:
        with active(context):
            driver.call(name, *arguments)
    except DriverError as error:
        raise failure(context, error, "copying in blocks") from error


def _destroy(context: drv.Context, driver: Driver, function: str, thing: c_void_p) -> None:
    """Give something back with its context active; in a lost context there is nothing to give."""
    try:
        with active(context):
            driver.call(function, thing)
    except (drv.Error, DriverError):
        pass


class CudaQueue(Queue):
    """A stream that waits for no other but where it is told to."""

    def __init__(self, context: drv.Context, driver: Driver) -> None:
        stream = c_void_p()
        with working(context, "making a stream"):
            driver.call("cuStreamCreate", byref(stream), c_uint(_NON_BLOCKING))
        self._context, self._driver, self._stream = context, driver, stream
        self._lock, self._turn = threading.Lock(), 0
        self._stages: list[tuple[_Locked, CudaMark]] = []
        self.stream = stream.value
        self.bytes_in = self.bytes_out = 0
        weakref.finalize(self, _destroy, context, driver, "cuStreamDestroy_v2", stream)

    def mark(self, mark: Mark) -> None:
        self._call("cuEventRecord", mark.event, self._stream)

    def wait(self, mark: Mark) -> None:
        self._call("cuStreamWaitEvent", self._stream, mark.event, c_uint(0))

    def synchronize(self) -> None:
        self._call("cuStreamSynchronize", self._stream)

    def upload(self, array: np.ndarray, dtype: np.dtype, address: int, pitch: int) -> None:
        """Page-locked rows of that dtype go straight to the device, others through staging."""
        self.bytes_in += array.size * dtype.itemsize
        if self._direct(array, dtype):
            self._copy_rows(array, (address, pitch), True)
            return
        with self._lock:
            for host, place in _parts(array, dtype.itemsize, address, pitch):
                locked, mark = self._stage()
                staged = _as_rows(locked, host.shape, dtype)
                move(staged, host)
                self._command(
                    (locked.address, host.shape[1] * dtype.itemsize, _HOST),
                    (place, pitch, _DEVICE),
                    (host.shape[0], host.shape[1] * dtype.itemsize),
                )
                self.mark(mark)

    def download(self, address: int, pitch: int, dtype: np.dtype, array: np.ndarray) -> None:
        """While one part is taken out of its staging buffer, the next ones arrive."""
        self.bytes_out += array.size * dtype.itemsize
        if self._direct(array, dtype):
            self._copy_rows(array, (address, pitch), False)
            self.synchronize()
            return
        with self._lock:
            arriving: list[tuple[np.ndarray, np.ndarray, CudaMark]] = []
            for host, place in _parts(array, dtype.itemsize, address, pitch):
                if len(arriving) == STAGES:
                    _take_out(*arriving.pop(0))
                locked, mark = self._stage(wait=False)
                shape = host.shape[0], host.shape[1] * dtype.itemsize
                self._command((place, pitch, _DEVICE), (locked.address, shape[1], _HOST), shape)
                self.mark(mark)
                arriving.append((host, _as_rows(locked, host.shape, dtype), mark))
            for one in arriving:
                _take_out(*one)

    def copy(
        self,
        source: int,
        source_pitch: int,
        target: int,
        target_pitch: int,
        shape: tuple[int, int],
    ) -> None:
        """Between devices, too: unified addresses say which ones."""
        self._command((source, source_pitch, _UNIFIED), (target, target_pitch, _UNIFIED), shape)

    def here(self) -> AbstractContextManager[None]:
        return active(self._context)

    def marking(self, mark: Mark) -> Callable[[], None]:
        return self._quick((self, mark), "cuEventRecord", mark.event, self._stream)

    def waiting(self, mark: Mark) -> Callable[[], None]:
        return self._quick((self, mark), "cuStreamWaitEvent", self._stream, mark.event, c_uint(0))

    def copying(
        self,
        source: int,
        source_pitch: int,
        target: int,
        target_pitch: int,
        shape: tuple[int, int],
    ) -> Callable[[], None]:
        ends = (source, source_pitch, _UNIFIED), (target, target_pitch, _UNIFIED)
        calls = [
            self._quick(self, "cuMemcpy2DAsync_v2", byref(copy), self._stream)
            for copy in _copies(*ends, shape)
        ]
        return calls[0] if len(calls) == 1 else lambda: [call() for call in calls] and None

    def _quick(self, owners: Any, name: str, *arguments: Any) -> Callable[[], None]:
        """A call of the driver, in 1 us, that keeps `owners` alive."""
        function, driver = getattr(self._driver.quick, name), self._driver

        def call(owners: Any = owners) -> None:
            code = function(*arguments)
            if code:
                error = DriverError(f"{name} failed: {driver.words(code)}")
                raise failure(self._context, error, "copying in blocks")

        return call

    def _copy_rows(self, array: np.ndarray, place: tuple[int, int], into_device: bool) -> None:
        host = array.__array_interface__["data"][0], array.strides[0], _HOST
        ends = host, (*place, _DEVICE)
        shape = array.shape[0], array.shape[1] * array.itemsize
        self._command(*(ends if into_device else reversed(ends)), shape)

    def _direct(self, array: np.ndarray, dtype: np.dtype) -> bool:
        """Whether the copy engine can read and write the rows of `array` itself."""
        rows, columns = array.shape
        row = columns * array.itemsize
        if array.dtype != dtype or (columns > 1 and array.strides[1] != array.itemsize):
            return False
        if rows > 1 and array.strides[0] < row:
            return False
        start = array.__array_interface__["data"][0]
        last = start + (rows - 1) * array.strides[0] + row - 1
        kind, ask = c_uint(), self._driver.quick.cuPointerGetAttribute
        with active(self._context):
            return all(
                ask(byref(kind), c_int(_MEMORY_TYPE), c_void_p(end)) == 0 and kind.value == _HOST
                for end in (start, last)
            )

    def _stage(self, wait: bool = True) -> tuple[_Locked, CudaMark]:
        """The next staging buffer, when what was in it has left."""
        if len(self._stages) < STAGES:
            made = _Locked(self._context, self._driver, STAGE)
            self._stages.append((made, CudaMark(self._context, self._driver)))
            return self._stages[-1]
        found = self._stages[self._turn % STAGES]
        self._turn += 1
        if wait:
            found[1].synchronize()
        return found

    def _command(
        self, source: tuple[int, int, int], target: tuple[int, int, int], shape: tuple[int, int]
    ) -> None:
        """Copies of rows. An end is its address, pitch and kind."""
        for copy in _copies(source, target, shape):
            self._call("cuMemcpy2DAsync_v2", byref(copy), self._stream)

    def _call(self, name: str, *arguments: Any) -> None:
        _drive(self._context, self._driver, name, *arguments)


def _copies(
    source: tuple[int, int, int], target: tuple[int, int, int], shape: tuple[int, int]
) -> Iterator[_Copy2D]:
    """A copy of rows as commands of the driver: one, or where a pitch is too large one a row. An
    end is its address, pitch and kind.
    """
    rows, width = shape
    if not rows or not width:
        return
    if rows > 1 and source[1] == target[1] == width and rows * width <= MAX_PITCH:
        rows, width = 1, rows * width
    if rows > 1 and max(source[1], target[1]) > MAX_PITCH:
        for row in range(rows):
            yield from _copies(
                *((e[0] + row * e[1], width, e[2]) for e in (source, target)), (1, width)
            )
        return
    copy = _Copy2D(width=width, height=rows)
    copy.source_kind, copy.target_kind = source[2], target[2]
    copy.source_host = copy.source_device = source[0]
    copy.target_host = copy.target_device = target[0]
    copy.source_pitch, copy.target_pitch = (source[1], target[1]) if rows > 1 else (width, width)
    yield copy


def _take_out(host: np.ndarray, staged: np.ndarray, mark: CudaMark) -> None:
    mark.synchronize()
    move(host, staged)


def _as_rows(locked: _Locked, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
    nbytes = shape[0] * shape[1] * dtype.itemsize
    return locked.array[:nbytes].view(dtype).reshape(shape)


def _parts(
    array: np.ndarray, size: int, address: int, pitch: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Parts of a matrix that fill at most one staging buffer with elements of `size` bytes, and
    their places on the device.
    """
    rows, columns = array.shape
    across = min(columns, STAGE // size)
    down = max(STAGE // max(across * size, 1), 1)
    if pitch > MAX_PITCH:
        down = 1
    for i in range(0, rows, down):
        for j in range(0, columns, across or 1):
            yield array[i : i + down, j : j + across], address + i * pitch + j * size


def reach(context: drv.Context, peer: drv.Context, driver: Driver) -> bool:
    """Let `context` use the memory of `peer`'s device. False if there is no such way."""
    own, other = c_int(), c_int()
    with active(peer):
        driver.call("cuCtxGetDevice", byref(other))
    with active(context):
        driver.call("cuCtxGetDevice", byref(own))
        can = c_int()
        driver.call("cuDeviceCanAccessPeer", byref(can), own, other)
        if not can.value:
            return False
        code = driver.quick.cuCtxEnablePeerAccess(c_void_p(peer.handle), c_uint(0))
        return code in (0, _PEER_ALREADY)
