"""The few driver calls that PyCUDA has no door to: streams that others made, page-locking in place.

PyCUDA launches on its own `Stream` objects only, and shows no handle of a function. For a stream
of PyTorch or CuPy the cubin is therefore loaded once more through here. All of it works in the
context that is current, and raises `DriverError`, which the callers translate.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

_ALREADY_REGISTERED = 712
_DISABLE_TIMING = 2
_SHARED_SIZE = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle by bytes
_PROMOTE_128 = 2  # of CUtensorMapL2promotion
_MAP_BYTES, _MAP_ALIGNMENT = 128, 64


class DriverError(RuntimeError):
    """A driver call that failed; the message names it and holds the driver's words."""


class _Answer(threading.local):
    """Room for a handle, one for each thread."""

    def __init__(self) -> None:
        self.handle = c_void_p()
        self.place = byref(self.handle)


class Driver:
    """libcuda.so.1, the one that PyCUDA has loaded."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.current_context = self._asks_for_context()

    def _asks_for_context(self) -> Callable[[], int | None]:
        """A call that says which context this thread has current, of whichever library, in 0.2 us:
        without letting other threads run, for the driver answers from memory.
        """
        ask, answer = ctypes.PyDLL("libcuda.so.1").cuCtxGetCurrent, _Answer()

        def current_context() -> int | None:
            ask(answer.place)
            return answer.handle.value

        return current_context

    def _call(self, name: str, *arguments: object) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise DriverError(f"{name} failed: {self._words(code)}")

    def _words(self, code: int) -> str:
        words = c_char_p()
        self._library.cuGetErrorString(c_int(code), byref(words))
        return (words.value or b"unknown error").decode() + f" (error {code})"

    def load(self, cubin: bytes, entry: str) -> tuple[int, int]:
        """Handles of the module and of its function `entry`."""
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", byref(module), cubin)
        self._call("cuModuleGetFunction", byref(function), module, entry.encode())
        return module.value or 0, function.value or 0

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Let blocks of a function take more than 48 KiB of shared memory."""
        self._call("cuFuncSetAttribute", c_void_p(function), c_int(_SHARED_SIZE), c_int(nbytes))

    def function(self, module: int, entry: str) -> int:
        """Handle of another function of a loaded module."""
        function = c_void_p()
        self._call("cuModuleGetFunction", byref(function), c_void_p(module), entry.encode())
        return function.value or 0

    def parameters(self, function: int, count: int) -> list[tuple[int, int]]:
        """Offset and size in bytes of the first `count` parameters of a function. Not what C's
        rules give: an aligned structure is aligned where the GPU keeps it, 0x210 further on.
        """
        found = []
        for index in range(count):
            offset, size = c_size_t(), c_size_t()
            where = (c_void_p(function), c_size_t(index), byref(offset), byref(size))
            self._call("cuFuncGetParamInfo", *where)
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
        """A tensor map of elements of `kind` (CUtensorMapDataType): extents innermost first, bytes
        between neighbours along all axes but the first, boxes swizzled in rows of so many bytes.
        """
        rank = len(extents)
        room = ctypes.create_string_buffer(_MAP_BYTES + _MAP_ALIGNMENT)
        place = -(-ctypes.addressof(room) // _MAP_ALIGNMENT) * _MAP_ALIGNMENT
        self._call(
            *("cuTensorMapEncodeTiled", c_void_p(place), c_int(kind), c_uint(rank)),
            *(c_void_p(address), (c_uint64 * rank)(*extents), (c_uint64 * (rank - 1))(*strides)),
            *((c_uint * rank)(*box), (c_uint * rank)(*[1] * rank)),
            *(c_int(0), c_int(_SWIZZLES[swizzle]), c_int(_PROMOTE_128), c_int(0)),
        )
        return ctypes.string_at(place, _MAP_BYTES)

    def unload(self, module: int) -> None:
        """Give a module back."""
        self._call("cuModuleUnload", c_void_p(module))

    def launcher(
        self,
        function: int,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        stream: int,
        packed: bytes,
    ) -> Callable[[], None]:
        """A call that launches `function` with packed arguments on the stream with that handle."""
        arguments = ctypes.create_string_buffer(packed, len(packed))
        size = c_size_t(len(packed))
        address = ctypes.addressof
        extra = (c_void_p * 5)(1, address(arguments), 2, address(size), 0)  # by cuda.h
        sizes = [c_uint(extent) for extent in (*grid, *block, shared)]
        full = [c_void_p(function), *sizes, c_void_p(stream), None, extra]
        launch, words = self._library.cuLaunchKernel, self._words

        def call(keep: object = (arguments, size)) -> None:
            code = launch(*full)
            if code:
                raise DriverError(f"cuLaunchKernel failed: {words(code)}")

        return call

    def order(self, before: int, after: int) -> None:
        """Later work on stream `after` waits for the work that is on `before` now."""
        event = c_void_p()
        self._call("cuEventCreate", byref(event), c_uint(_DISABLE_TIMING))
        try:
            self._call("cuEventRecord", event, c_void_p(before))
            self._call("cuStreamWaitEvent", c_void_p(after), event, c_uint(0))
        finally:
            self._call("cuEventDestroy_v2", event)

    def synchronize(self, stream: int) -> None:
        """Wait for the work on a stream."""
        self._call("cuStreamSynchronize", c_void_p(stream))

    def register(self, address: int, nbytes: int) -> bool:
        """Page-lock host memory in place; False where the system does not allow it, or where part
        of it is page-locked already.
        """
        size = c_size_t(nbytes)
        return self._library.cuMemHostRegister_v2(c_void_p(address), size, c_uint(0)) == 0

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call("cuMemHostUnregister", c_void_p(address))
