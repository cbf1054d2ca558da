"""Calls of the CUDA driver that PyCUDA does not offer: launches on streams that other libraries
made, dependent launches, graphs, tensor maps, page-locking in place.

PyCUDA launches on its own `Stream` objects only, and does not expose the handles of functions. So
the cubin is loaded a second time here. All calls work in the current context and raise
`DriverError`, which the callers turn into pymm's exceptions.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_ulonglong, c_void_p
from functools import lru_cache
from typing import NamedTuple

from pymm.core.integers import round_up

_OUT_OF_MEMORY = 2
_DISABLE_TIMING = 2
_NON_BLOCKING = 1
_SHARED_SIZE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle by bytes
_PROMOTE_128 = 2  # of CUtensorMapL2promotion
MAP_BYTES, _MAP_ALIGNMENT = 128, 64

#: Handles of the legacy default stream, which cannot be captured, and of the default stream that
#: each thread has of its own (CU_STREAM_PER_THREAD).
LEGACY, PER_THREAD = (0, 1), 2

_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_ACTIVE = 1  # CU_STREAM_CAPTURE_STATUS_ACTIVE
_NO_DESTRUCTOR_SYNC, _MOVE = 1, 1  # of CUuserObject_flags and CUuserObjectRetain_flags


class DriverError(RuntimeError):
    """A driver call that failed; the message names it and says why, in the driver's words."""


class OutOfMemory(DriverError):
    """The device has too little free memory."""


_SHOWN = struct.Struct("<6Q")


class _LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a value of 64 bytes."""

    _fields_ = (("id", c_int), ("unused", c_int), ("value", c_int), ("rest", c_int * 15))


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("sizes", c_uint * 7),
        ("stream", c_void_p),
        ("attributes", c_void_p),
        ("count", c_uint),
    )


#: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, allowed.
_EARLY = _LaunchAttribute(6, 0, 1)
_CLUSTER_DIMENSION = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION


def _in_clusters(blocks: int) -> _LaunchAttribute:
    """Clusters of so many blocks along x."""
    return _LaunchAttribute(_CLUSTER_DIMENSION, 0, blocks, (c_int * 15)(1, 1))


def shown(arguments: bytes) -> ctypes.Array:
    """The `extra` argument of a launch with packed arguments ("CU_LAUNCH_PARAM_BUFFER_POINTER",
    cuda.h): their address, their size, and then the arguments themselves.
    """
    room = ctypes.create_string_buffer(_SHOWN.size + len(arguments))
    start = ctypes.addressof(room)
    place = start + _SHOWN.size
    _SHOWN.pack_into(room, 0, 1, place, 2, place - 8, 0, len(arguments))
    ctypes.memmove(place, arguments, len(arguments))
    return room


def launch_config(stream: int, sizes: tuple[int, ...], early: bool) -> ctypes.Structure:
    """The CUlaunchConfig of a launch on a stream (`Driver.launcher`)."""
    attributes = ctypes.addressof(_EARLY) if early else None
    return _LaunchConfig((c_uint * 7)(*sizes), stream, attributes, int(early))


class _Answer(threading.local):
    """An output argument for a number, one for each thread."""

    def __init__(self) -> None:
        self.number = c_uint64()
        self.place = byref(self.number)


class StreamState(NamedTuple):
    """The number of the stream that a handle means now, and the number of the graph that its work
    is captured into (0 if it is not captured). Handles are used again by the driver, numbers are
    not.
    """

    stream: int = 0
    capture: int = 0


class _StateRoom(threading.local):
    """Output arguments for questions about a stream, one for each thread, and a number of the
    thread.
    """

    numbers = itertools.count(1)

    def __init__(self) -> None:
        self.status, self.capture, self.stream = c_int(), c_ulonglong(), c_ulonglong()
        self.places = byref(self.status), byref(self.capture)
        self.place = byref(self.stream)
        self.thread = -next(self.numbers)


@lru_cache(maxsize=1)
def _exchange_capture_mode() -> Callable[[object], int] | None:
    library = ctypes.PyDLL("libcuda.so.1")
    return getattr(library, "cuThreadExchangeStreamCaptureMode", None)


class relaxed_capture:  # noqa: N801 it is used like a function
    """Let this thread allocate, free and load while a graph is being captured somewhere in the
    process; none of that is captured ("cuThreadExchangeStreamCaptureMode", cuda.h).
    """

    __slots__ = ("_mode",)

    def __enter__(self) -> None:
        self._mode = c_int(_RELAXED)
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        if (exchange := _exchange_capture_mode()) is not None:
            exchange(byref(self._mode))


class _MapRoom(threading.local):
    """Memory for a tensor map at `place`, one for each thread."""

    def __init__(self) -> None:
        self._room = ctypes.create_string_buffer(MAP_BYTES + _MAP_ALIGNMENT)
        start = ctypes.addressof(self._room)
        self.place = c_void_p(round_up(start, _MAP_ALIGNMENT))


class Driver:
    """libcuda.so.1, the one that PyCUDA has loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        #: The same for calls that return at once: they keep the GIL.
        self.quick = ctypes.PyDLL("libcuda.so.1")
        self._addresses: dict[str, int] = {}
        self.current_context = self._asks_for_context()
        self._map_room, self._state_rooms = _MapRoom(), _StateRoom()

    def _asks_for_context(self) -> Callable[[], int]:
        """A function that returns the number of the context that this thread has current, whichever
        library made it; 0 for none. It takes 0.5 us. The handle of a destroyed context is used
        again, its number is not ("cuCtxGetId", cuda.h). Asking for the number where no context is
        current is an error, which compute-sanitizer reports.
        """
        handle, number, answer = self.quick.cuCtxGetCurrent, self.quick.cuCtxGetId, _Answer()

        def current_context() -> int:
            handle(answer.place)
            if answer.number.value:
                number(None, answer.place)
            return answer.number.value

        return current_context

    def context_number(self, context: int) -> int:
        """The number of the context with that handle."""
        number = c_uint64()
        self.call("cuCtxGetId", c_void_p(context), byref(number))
        return number.value

    def call(self, name: str, *arguments: object) -> None:
        """Call a function of the driver."""
        function = getattr(self._library, name, None)
        if function is None:
            raise DriverError(f"{name} failed: the driver has no such function")
        code = function(*arguments)
        if code:
            kind = OutOfMemory if code == _OUT_OF_MEMORY else DriverError
            raise kind(f"{name} failed: {self.words(code)}")

    def address(self, name: str) -> int:
        """The address of a function of the driver; 0 if it has none of that name."""
        known = self._addresses.get(name)
        if known is None:
            function = getattr(self._library, name, None)
            known = ctypes.cast(function, c_void_p).value or 0 if function else 0
            self._addresses[name] = known
        return known

    def words(self, code: int) -> str:
        """The driver's description of an error."""
        words = c_char_p()
        self._library.cuGetErrorString(c_int(code), byref(words))
        return (words.value or b"unknown error").decode() + f" (error {code})"

    def load(self, cubin: bytes) -> int:
        """Handle of a module."""
        module = c_void_p()
        self.call("cuModuleLoadData", byref(module), cubin)
        return module.value or 0

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Let blocks of a function take more than 48 KiB of shared memory."""
        self.call("cuFuncSetAttribute", c_void_p(function), c_int(_SHARED_SIZE), c_int(nbytes))

    def function(self, module: int, entry: str) -> int:
        """Handle of a function of a loaded module."""
        function = c_void_p()
        self.call("cuModuleGetFunction", byref(function), c_void_p(module), entry.encode())
        return function.value or 0

    def variable(self, module: int, name: str) -> int:
        """Address of a variable of a loaded module."""
        address, size = c_void_p(), c_size_t()
        where = (byref(address), byref(size), c_void_p(module), name.encode())
        self.call("cuModuleGetGlobal_v2", *where)
        return address.value or 0

    def parameters(self, function: int, count: int) -> list[tuple[int, int]]:
        """Offset and size in bytes of the first `count` parameters of a function. Alignments count
        from the beginning of the GPU's constant bank, where the parameters are at 0x210, so the
        offsets are not those of a C structure.
        """
        found = []
        for index in range(count):
            offset, size = c_size_t(), c_size_t()
            where = (c_void_p(function), c_size_t(index), byref(offset), byref(size))
            self.call("cuFuncGetParamInfo", *where)
            found.append((offset.value, size.value))
        return found

    def tensor_map(
        self,
        kind: int,
        address: int,
        extents: tuple[int, ...],
        strides: tuple[int, ...],
        box: tuple[int, ...],
        swizzle: int,
    ) -> bytes:
        """A tensor map of elements of `kind` (CUtensorMapDataType): extents innermost first,
        strides in bytes of all axes but the first, the extents of a box, and its swizzle in bytes.
        """
        rank = len(extents)
        place = self._map_room.place
        self.call(
            *("cuTensorMapEncodeTiled", place, c_int(kind), c_uint(rank)),
            *(c_void_p(address), (c_uint64 * rank)(*extents), (c_uint64 * (rank - 1))(*strides)),
            *((c_uint * rank)(*box), (c_uint * rank)(*[1] * rank)),
            *(c_int(0), c_int(_SWIZZLES[swizzle]), c_int(_PROMOTE_128), c_int(0)),
        )
        return ctypes.string_at(place, MAP_BYTES)

    def moved_map(self, tensor_map: bytes, address: int) -> bytes:
        """The tensor map of the same matrices at another address."""
        place = self._map_room.place
        ctypes.memmove(place, tensor_map, MAP_BYTES)
        self.call("cuTensorMapReplaceAddress", place, c_void_p(address))
        return ctypes.string_at(place, MAP_BYTES)

    def unload(self, module: int) -> None:
        """Unload a module."""
        self.call("cuModuleUnload", c_void_p(module))

    def launcher(
        self, stream: int, function: int, sizes: tuple[int, ...], early: bool = False
    ) -> Callable[[bytes], Callable[[], None]]:
        """A function that makes, from packed arguments, a call that launches `function` on the
        stream with that handle. `sizes` are the grid, the block and its shared memory in bytes. An
        `early` launch may begin before the previous one on the stream has ended, and waits for it
        itself (common/dependent_launch.cuh).

        `cuLaunchKernelEx` has four arguments, for which ctypes takes 0.5 of a launch's 4 us; for
        the eleven of `cuLaunchKernel` it takes 1.2.
        """
        config = byref(launch_config(stream, sizes, early))
        launch, words, handle = self._library.cuLaunchKernelEx, self.words, c_void_p(function)

        def with_arguments(arguments: bytes) -> Callable[[], None]:
            extra = shown(arguments)

            def call() -> None:
                code = launch(config, handle, None, extra)
                if code:
                    raise DriverError(f"cuLaunchKernelEx failed: {words(code)}")

            return call

        return with_arguments

    def most_clusters(self, function: int, sizes: tuple[int, ...], cluster: int) -> int:
        """How many clusters of so many blocks along x can run at the same time; `sizes` as of
        `launcher`. The multiprocessors of a cluster are of one graphics processing cluster.
        """
        found = c_int()
        attribute = _in_clusters(cluster)
        config = _LaunchConfig((c_uint * 7)(*sizes), None, ctypes.addressof(attribute), 1)
        where = byref(found), c_void_p(function), byref(config)
        self.call("cuOccupancyMaxActiveClusters", *where)
        return found.value

    def asks_for_state(self, stream: int) -> Callable[[], StreamState] | None:
        """A call that says which stream the handle means now and whether it is being captured, in
        0.5 us. None for the legacy default stream, of which neither ever changes.
        """
        if stream in LEGACY:
            return None
        handle, rooms = c_void_p(stream), self._state_rooms
        info = self.quick.cuStreamGetCaptureInfo_v2
        number = getattr(self.quick, "cuStreamGetId", None)

        def state() -> StreamState:
            room = rooms
            if info(handle, *room.places, None, None, None) == 0 and room.status.value == _ACTIVE:
                return StreamState(0, room.capture.value)  # to ask more would end the capture
            if stream == PER_THREAD:
                return StreamState(room.thread)
            if number is None or number(handle, room.place):
                return StreamState(stream)  # drivers before CUDA 12 do not number streams
            return StreamState(room.stream.value)

        return state

    def asks_whether_captured(self, stream: int) -> Callable[[], bool] | None:
        """A call that says whether what is put on a stream goes to a graph instead. None for the
        legacy default stream, which cannot be captured.
        """
        if stream in LEGACY:
            return None
        ask, answer, handle = self.quick.cuStreamIsCapturing, self._state_rooms, c_void_p(stream)
        return lambda: ask(handle, answer.places[0]) != 0 or answer.status.value != 0

    def captured_graph(self, stream: int) -> int:
        """Handle of the graph that a stream is captured into."""
        status, number, graph = c_int(), c_ulonglong(), c_void_p()
        self.call(
            "cuStreamGetCaptureInfo_v2",
            c_void_p(stream),
            byref(status),
            byref(number),
            byref(graph),
            None,
            None,
        )
        return graph.value or 0

    def when_destroyed(self, graph: int, action: c_void_p, argument: c_void_p) -> None:
        """Have the driver call `action(argument)`, a function in C, when a graph and all that was
        instantiated from it are gone ("CUDA User Objects", CUDA C++ Programming Guide).
        """
        made = c_void_p()
        # One reference, whose destructor nobody waits for; the graph takes it over.
        flags = c_uint(_NO_DESTRUCTOR_SYNC), c_uint(_MOVE)
        self.call("cuUserObjectCreate", byref(made), argument, action, c_uint(1), flags[0])
        self.call("cuGraphRetainUserObject", c_void_p(graph), made, c_uint(1), flags[1])

    def order(self, before: int, after: int) -> None:
        """Make later work on stream `after` wait for the work that is on `before` now."""
        event = c_void_p()
        self.call("cuEventCreate", byref(event), c_uint(_DISABLE_TIMING))
        try:
            self.call("cuEventRecord", event, c_void_p(before))
            self.call("cuStreamWaitEvent", c_void_p(after), event, c_uint(0))
        finally:
            self.call("cuEventDestroy_v2", event)

    def synchronize(self, stream: int) -> None:
        """Wait for the work on a stream."""
        self.call("cuStreamSynchronize", c_void_p(stream))

    def zero(self, address: int, nbytes: int) -> None:
        """Fill device memory with zeros and wait for it. It is done on a stream of its own, so that
        it works while other streams are being captured.
        """
        stream = c_void_p()
        self.call("cuStreamCreate", byref(stream), c_uint(_NON_BLOCKING))
        try:
            size = c_size_t(nbytes)
            self.call("cuMemsetD8Async", c_void_p(address), ctypes.c_ubyte(0), size, stream)
            self.call("cuStreamSynchronize", stream)
        finally:
            self.call("cuStreamDestroy_v2", stream)

    def allocate(self, nbytes: int) -> int:
        """Address of new device memory. Raises `OutOfMemory`."""
        address = c_void_p()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(nbytes))
        return address.value or 0

    def free(self, address: int) -> None:
        """Free device memory when the device has done all its work so far: `cudaFree` makes the
        device synchronise across all streams (CUDA C++ Programming Guide, "Stream Ordered Memory
        Allocator").
        """
        self.call("cuMemFree_v2", c_void_p(address))

    def register(self, address: int, nbytes: int) -> bool:
        """Page-lock host memory in place; False where the system does not allow it, or part of it
        is page-locked already.
        """
        size = c_size_t(nbytes)
        return self._library.cuMemHostRegister_v2(c_void_p(address), size, c_uint(0)) == 0

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self.call("cuMemHostUnregister", c_void_p(address))
