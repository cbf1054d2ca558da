"""Calls that were made before, made again by compiled code (cpu_src/calls.cpp): a table of products
of NumPy arrays, and launches without ctypes. Where there is no C++ compiler, Python does the same,
and takes some microseconds longer.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import sys
from collections.abc import Callable, Sequence
from ctypes import c_double, c_int, c_ssize_t, c_ulonglong, c_void_p, py_object
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pymm.backends.cpu.call import Call
from pymm.backends.cpu.compiler import compile_shared, compiler_path
from pymm.core.binaries import key_of, log_compiling, obtain
from pymm.core.errors import CompileFailed, NoDevice
from pymm.core.paths import cache_directory
from pymm.kernels.source import kernel_text

LOG = logging.getLogger("pymm")

FLAGS = ("-O2", "-std=c++17", "-shared", "-fPIC")

#: Axes of the arrays in the table at most, and what their addresses count modulo: no kernel of the
#: CPU needs to know more of them (`Problem.alignment`).
MAX_AXES, ALIGNMENT = 4, 16

_WRITEABLE = 0x400  # NPY_ARRAY_WRITEABLE


class _Array(ctypes.Structure):
    """`Array` of calls.cpp: PyArrayObject_fields of NumPy's C API."""

    _fields_ = (
        ("references", c_ssize_t),
        ("type", c_void_p),
        ("data", c_void_p),
        ("axes", c_int),
        ("shape", ctypes.POINTER(c_ssize_t)),
        ("strides", ctypes.POINTER(c_ssize_t)),
        ("base", c_void_p),
        ("dtype", c_void_p),
        ("flags", c_int),
    )


class _ArraySpec(ctypes.Structure):
    """`ArraySpec` of calls.cpp."""

    _fields_ = (
        ("dtype", c_void_p),
        ("shape", c_ssize_t * MAX_AXES),
        ("strides", c_ssize_t * MAX_AXES),
        ("first", c_ssize_t),
        ("last", c_ssize_t),
        ("axes", c_int),
        ("writeable", c_int),
        ("offset", c_int),
        ("unused", c_int),
    )


class _Product(ctypes.Structure):
    """`Product` of calls.cpp."""

    _fields_ = (
        ("a", _ArraySpec),
        ("b", _ArraySpec),
        ("out", _ArraySpec),
        ("makes", c_int),
        ("swapped", c_int),
        ("same", c_int),
        ("unused", c_int),
        ("kernel", c_void_p),
        ("call", Call),
    )


class _Launch(ctypes.Structure):
    """`Launch` of calls.cpp."""

    _fields_ = (("kernel", c_void_p), ("call", c_void_p))


#: How a `DeviceLaunch` is made, and what is asked of its stream before.
BY_PYTHON, BY_GRAPH, BY_KERNEL = range(3)
NOTHING, NO_CAPTURE, SAME_STREAM = range(3)

#: The functions of the driver in a `DeviceLaunch`, by the names of its fields.
DRIVER_FUNCTIONS = {
    "current_context": "cuCtxGetCurrent",
    "context_number": "cuCtxGetId",
    "is_capturing": "cuStreamIsCapturing",
    "capture_info": "cuStreamGetCaptureInfo_v2",
    "stream_number": "cuStreamGetId",
    "launch_graph": "cuGraphLaunch",
    "launch_kernel": "cuLaunchKernelEx",
}


class DeviceLaunch(ctypes.Structure):
    """`DeviceLaunch` of calls.cpp: a launch on a GPU, which may change."""

    _fields_ = (
        *((name, c_int) for name in ("way", "check", "in_turn", "unused")),
        ("context", c_ulonglong),
        ("number", c_ulonglong),
        *((name, c_void_p) for name in ("stream", "graph", "function", "extra", "config")),
        *((name, c_void_p) for name in DRIVER_FUNCTIONS),
    )


class HostKernel(NamedTuple):
    """A kernel of the CPU, its argument, and what raises the error if it fails."""

    address: int
    call: Call
    failed: Callable[[], None]


class KnownHostArray(NamedTuple):
    """What the table knows of a NumPy array. `address` counts modulo `ALIGNMENT`."""

    writeable: bool
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    address: int = 0

    def described(self) -> _ArraySpec | None:
        """As calls.cpp has it. None for an array that the table cannot have."""
        if len(self.shape) > MAX_AXES or 0 in self.shape:
            return None
        ends = [(n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)]
        first = sum(min(end, 0) for end in ends)
        last = sum(max(end, 0) for end in ends) + self.dtype.itemsize
        shape, strides = (c_ssize_t * MAX_AXES)(*self.shape), (c_ssize_t * MAX_AXES)(*self.strides)
        counts = len(self.shape), self.writeable, self.address % ALIGNMENT, 0
        return _ArraySpec(id(self.dtype), shape, strides, first, last, *counts)


class Compiled:
    """The functions of calls.cpp, loaded."""

    def __init__(self, path: Path) -> None:
        self._library = library = ctypes.PyDLL(str(path))
        size = library.calls_size
        size.restype = c_ssize_t
        sizes = [ctypes.sizeof(one) for one in (_Array, _Product, _Launch, DeviceLaunch)]
        if [size(i) for i in range(5)] != [object.__basicsize__, *sizes]:
            raise OSError(f"{path}: structures of other sizes")
        for name, result, arguments in (
            ("calls_table", c_void_p, (py_object, py_object)),
            ("calls_clear", None, (c_void_p,)),
            ("calls_until", None, (c_void_p, c_double)),
            ("calls_insert", c_int, (c_void_p, c_void_p, py_object, py_object)),
            ("calls_contexts", None, (c_void_p, c_void_p, c_void_p)),
            ("calls_reader", c_int, (c_void_p, *[py_object] * 2, c_int, py_object, c_int)),
            (
                "calls_insert_device",
                c_int,
                (c_void_p, py_object, c_void_p, c_int, c_int, c_ulonglong),
            ),
            ("calls_multiply", py_object, (py_object,)),
            ("calls_launch", py_object, (py_object,)),
            ("calls_launch_device", py_object, (py_object,)),
        ):
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments

    def launcher(self, kernel: HostKernel, owner: Any) -> Callable[[], None]:
        """A function that calls `kernel`, and owns `owner`."""
        launch = _Launch(kernel.address, ctypes.addressof(kernel.call))
        place = ctypes.addressof(launch)
        return self._library.calls_launch((place, kernel.failed, launch, kernel, owner))

    def device_launcher(
        self, launch: DeviceLaunch, otherwise: Callable[[int], None], taken: Callable[[], bool]
    ) -> Callable[[], None]:
        """A function that makes `launch` as it is at each call. `otherwise(code)` is called where
        the driver gives an error code, and with -1 where Python has to make the launch: context or
        stream are others, or `taken` says that another thread has the turn.
        """
        place = ctypes.addressof(launch)
        return self._library.calls_launch_device((place, otherwise, taken, launch))

    def table(self, failed: Callable[[], None]) -> Table:
        """A new table, which is kept to the end of the process; `failed` raises the error of a
        kernel that fails.
        """
        return Table(self._library, failed)


class Attributes(NamedTuple):
    """How compiled code reads arrays of a type: the `names` of attributes, and of `methods` without
    arguments, of which the first is the address; what says which stream is current on the device,
    whose number is value `index` of those behind the address.
    """

    names: tuple[str, ...]
    methods: tuple[str, ...] = ()
    stream: Callable[[int], int] | None = None
    index: int = 0


class KnownArray(NamedTuple):
    """An array on a GPU as it was: its type, the values of its attributes, its address."""

    type: type
    values: tuple[Any, ...]
    address: int = 0


class Table:
    """Calls that were made before: of NumPy's arrays, which one kernel call computes, by
    shapes, strides and dtypes, and of arrays on a GPU, by their addresses, too. `multiply(a, b,
    out, c, bias, options)` is the product, None if the call is not there, and a tuple of an array
    for the product where only that is known.

    It keeps no array alive. Nothing is found before `valid_until` is called, nor from that time on.
    """

    def __init__(self, library: ctypes.PyDLL, failed: Callable[[], None]) -> None:
        self._library, self._place = library, library.calls_table(np.ndarray, failed)
        self.multiply: Callable[..., Any] = library.calls_multiply(self._place)

    def clear(self) -> None:
        """Drop all products, and what they own."""
        self._library.calls_clear(self._place)

    def valid_until(self, seconds: float) -> None:
        """Find products until that time of `time.monotonic`."""
        self._library.calls_until(self._place, seconds)

    def insert(
        self,
        arrays: tuple[KnownHostArray, ...],
        kernel: HostKernel,
        options: tuple,
        owner: Any,
    ) -> bool:
        """Add a product of `arrays`: a, b and out. One of arrays that the table cannot have is
        left out. False if it is full.
        """
        described = [array.described() for array in arrays]
        a, b, out = (array.address for array in arrays)
        given = kernel.call.a, kernel.call.b, kernel.call.c
        if None in described or given not in ((a, b, out), (b, a, out)):
            return True
        swapped = given != (a, b, out)
        product = _Product(*described, False, swapped, a == b, 0, kernel.address, kernel.call)
        return self._insert(product, options, owner)

    def read(self, kind: type, attributes: Attributes) -> bool:
        """Read arrays of type `kind` from now on. False if there are too many types."""
        names, methods, stream, index = attributes
        bits = sum((name in methods) << i for i, name in enumerate(names))
        given = kind, tuple(map(sys.intern, names)), bits, stream, index
        return bool(self._library.calls_reader(self._place, *given))

    def ask_for_contexts(self, functions: tuple[int, int]) -> None:
        """Find calls of arrays on a GPU in their context: `functions` are the addresses of
        cuCtxGetCurrent and cuCtxGetId.
        """
        self._library.calls_contexts(self._place, *functions)

    def insert_on_device(
        self,
        arrays: Sequence[KnownArray | None],
        stream: int | None,
        options: tuple,
        action: Callable[..., Any],
        context: int | None,
        makes: bool,
    ) -> bool:
        """Add a call of a, b, out and a bias, each None if there is none: `action` launches it, or,
        if it `makes`, makes `out` beside a. `context` is the number of the current context,
        None where no GPU is open. False if it is full.
        """
        key = *(one and one[:2] for one in arrays), stream, options, action
        places = (c_ulonglong * len(arrays))(*(one.address if one else 0 for one in arrays))
        given = ctypes.addressof(places), makes, context is not None, context or 0
        return bool(self._library.calls_insert_device(self._place, key, *given))

    def insert_maker(
        self, arrays: tuple[KnownHostArray, ...], make: Callable[[Any], Any], options: tuple
    ) -> bool:
        """Add what makes `out` beside a, for such arrays a and b. False if it is full."""
        described = [array.described() for array in arrays]
        if None in described:
            return True
        return self._insert(_Product(*described, makes=True), options, make)

    def _insert(self, product: _Product, options: tuple, owner: Any) -> bool:
        place = ctypes.addressof(product)
        return bool(self._library.calls_insert(self._place, place, options, owner))


@lru_cache(maxsize=1)
def compiled() -> Compiled | None:
    """The compiled code, from the cache or made now. None where that is not possible."""
    if not _reads_arrays():
        return None
    try:
        text = kernel_text("cpu", "calls.cpp")
        key = key_of(text, " ".join(FLAGS), platform.machine(), str(sys.implementation.cache_tag))
        folder = cache_directory() / "calls" / key
        return Compiled(obtain(folder, lambda place: _compile(text, place)))
    except (OSError, AttributeError, CompileFailed, NoDevice) as error:
        LOG.info("calls are made by Python alone: %s", error)
        return None


def _compile(text: str, place: Path) -> Path:
    with log_compiling("calls.cpp", "Python"):
        return compile_shared(compiler_path(), FLAGS, text, "calls.cpp", place)


def _reads_arrays() -> bool:
    """Whether Python's objects and NumPy's arrays have the layout that calls.cpp reads."""
    if sys.implementation.name != "cpython" or object.__basicsize__ != 2 * ctypes.sizeof(c_void_p):
        return False
    samples = [np.empty(8), np.empty((3, 4), np.int8)[1:, 2:], np.broadcast_to(np.empty(3), (2, 3))]
    return all(_reads(sample) for sample in samples)


def _reads(array: np.ndarray) -> bool:
    fields, axes = _Array.from_address(id(array)), array.ndim
    read = fields.type, fields.data, fields.axes, fields.dtype, bool(fields.flags & _WRITEABLE)
    address = array.__array_interface__["data"][0]
    told = id(type(array)), address, axes, id(array.dtype), array.flags.writeable
    if read != told or fields.flags != array.flags.num:
        return False
    return (tuple(fields.shape[:axes]), tuple(fields.strides[:axes])) == (
        array.shape,
        array.strides,
    )
