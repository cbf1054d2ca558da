"""Launches of earlier calls. A call with arrays at the same addresses costs one lookup, by compiled
code where there is some. A call with arrays of the same shapes, strides and dtypes at other
addresses gets a cached launch with new addresses in its arguments.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from pymm.backends.base import RebindableLaunch
from pymm.backends.compiled import Attributes, KnownArray, KnownHostArray, Table, compiled
from pymm.backends.cpu.arrays import SHIFT, pointers
from pymm.backends.cpu.backend import CpuLaunch, no_memory
from pymm.backends.current import current
from pymm.core.forking import call_in_child
from pymm.runtime.arrays import PreparedOperand, library_of
from pymm.runtime.bind import PreparedCall, Rebind, Span
from pymm.selection.choose import generation, listen, next_look

#: Libraries for whose arrays a result can be made from shapes and dtypes of the operands alone.
_MAKING = ("numpy", "torch", "cupy", "pycuda")

#: Launches cached, about 2 KiB each. All are dropped when there would be more.
MAX_LAUNCHES = 4096

#: Calls cached for whatever addresses. These may differ by multiples of `SAME_MODULO`: rows that
#: start at multiples of what a kernel was compiled for then do so again.
MAX_REBINDS, SAME_MODULO = 1024, 128

#: The options of `matmul`, without what the key has besides: types, and the mark of a bias.
OPTIONS = slice(-3)

#: (address, spec) of an array: `spec` is its type, shape, strides and dtype, and what else tells it
#: apart. (): there is no array. None: a call with such an array is not cached.
Mark = tuple | None

Launch = Callable[[], Any]


class Arguments(NamedTuple):
    """The arguments of a call: arrays, and a tuple of everything else that tells calls apart. Equal
    values that are not treated alike (1 and 1 + 0j) come with their types.
    """

    a: Any
    b: Any
    out: Any
    c: Any
    options: tuple


class Key(NamedTuple):
    """What identifies a call. `out` is None for a call without it, and a, b and c have no
    addresses then. `context` is the current context: the same address may be another allocation in
    another one.
    """

    a: Any
    b: Any
    out: Mark
    c: Any
    context: int | None
    options: tuple

    @property
    def without_addresses(self) -> tuple | None:
        """The key without addresses, except for their alignment and whether a and b are one array.
        None where c is another array than out.
        """
        if self.c and self.c != self.out:
            return None
        (a, spec_a), (b, spec_b), (out, spec_out) = self.a, self.b, self.out
        offsets = a % SAME_MODULO, b % SAME_MODULO, out % SAME_MODULO, a == b
        return spec_a, spec_b, spec_out, bool(self.c), offsets, self.context, self.options


#: A launch, or what makes a result; and the generation of the tuned configurations that it was
#: chosen from. A plain tuple: it is unpacked at every call.
Entry = tuple[Callable[..., Any], int]


class RebindEntry(NamedTuple):
    """What makes a launch for other addresses of a, b and out; the bytes that each of them takes,
    relative to its address, and those of the bias, in memory; the generation.
    """

    rebind: Rebind
    spans: tuple[Span, ...]
    bias: Span | None
    chosen_in: int

    def launch_at(self, a: int, b: int, out: int) -> Launch | None:
        """The launch for these addresses. None if out overlaps a, b or the bias: that takes a
        copy.
        """
        span_a, span_b, span_out = self.spans
        begin, end = out + span_out[0], out + span_out[1]
        bias = ((0, self.bias),) if self.bias else ()
        for address, (first, last) in ((a, span_a), (b, span_b), *bias):
            if begin < address + last and address + first < end:
                return None
        return self.rebind(a, b, out)


class LaunchCache:
    """Launches by their calls. Whatever can make a call fail is part of its key, so a hit needs no
    checks; no entry keeps an operand alive.
    """

    def __init__(self) -> None:
        self._entries: dict[Key, Entry] = {}
        self._rebinds: dict[tuple, RebindEntry] = {}
        self._readers = _Readers()
        self._table: Table | None = None
        self._chosen_in = -1
        self._read: dict[type, Attributes | None] = {}
        #: `repeat(a, b, out, c, bias, options)`: the result of a call that was made before, by
        #: compiled code. None for one that it does not know; a tuple of the result for one of
        #: which it knows that alone, which is then to be given as `out`.
        self.repeat: Callable[..., Any] = _unknown

    def clear(self) -> None:
        """Drop all launches, and what they own."""
        self._entries.clear()
        self._rebinds.clear()
        if self._table is not None:
            self._table.clear()

    def clear_rebinds(self) -> None:
        """Drop what makes launches for other addresses."""
        self._rebinds.clear()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def rebinds(self) -> int:
        """For how many calls launches can be made for other addresses."""
        return len(self._rebinds)

    def lookup(
        self, a: Any, b: Any, out: Any, c: Any, options: tuple
    ) -> tuple[Key | None, Any, Launch | None]:
        """The key to insert a call under; its `out`, made here if such a call was made before
        without one; its launch. None for what is not known or not needed.
        """
        readers, w = self._readers, ()
        if out is None:
            return self._lookup_without_out(a, b, c, options)
        if c is None and type(a) is type(b) is type(out) is np.ndarray and _READS_FAST:
            x, y, target = _of_three(a, b, out)
        else:
            x, y, target = readers[type(a)](a), readers[type(b)](b), readers[type(out)](out)
            w = readers[type(c)](c) if c is not None else ()
            if x is None or y is None or target is None or w is None:
                return None, out, None
        return self._launch_of((x, y, target, w, current.context(), options), out)

    def _lookup_without_out(
        self, a: Any, b: Any, c: Any, options: tuple
    ) -> tuple[Key | None, Any, Launch | None]:
        """`lookup` that makes `out` if such a call was made before."""
        if not _makes(type(a)):
            return None, None, None
        readers = self._readers
        x, y = readers[type(a)](a), readers[type(b)](b)
        w = readers[type(c)](c) if c is not None else ()
        if x is None or y is None or w is None:
            return None, None, None
        key = (x[1], y[1], None, w[1:], current.context(), options)
        try:
            entry = self._entries.get(key)
        except TypeError:  # as below
            return None, None, None
        if entry is None:
            return Key(*key), None, None
        make, chosen_in = entry
        if generation() != chosen_in:
            self.clear()
            return Key(*key), None, None
        out = make(a)
        target = readers[type(out)](out)
        if target is None:
            return None, out, None
        now = current.context()  # `make` may have made one current
        return self._launch_of((x, y, target, w, now, options), out)

    def _launch_of(self, key: tuple, out: Any) -> tuple[Key | None, Any, Launch | None]:
        """What `lookup` returns, for the fields of a `Key`: a tuple is made in a third of its time,
        and equal to it.
        """
        try:
            entry = self._entries.get(key)
        except TypeError:  # a dict as config, an array as alpha: such a call is never cached
            return None, out, None
        if entry is None:
            key = Key(*key)
            return key, out, self._rebound(key)
        launch, chosen_in = entry
        if generation() == chosen_in:
            return None, out, launch
        self.clear()
        return Key(*key), out, None

    def mark(self, array: Any) -> Mark | list:
        """What tells an array among the options of a call from others, with its address. Where
        it cannot be read, something that is not hashable: such a call is not cached.
        """
        mark = self._readers[type(array)](array)
        return [] if mark is None else mark

    def key_of(self, arguments: Arguments) -> Key | None:
        """The key of a call. None for a call that is not cached: with operands that are copied
        before they are used, or without `out` and with arrays of unknown libraries.
        """
        a, b, out, c, options = arguments
        if out is None:
            return self._key_without_out(a, b, c, options)
        x, y, target, w = (self._mark(array) for array in (a, b, out, c))
        if x is None or y is None or target is None or w is None:
            return None
        return Key(x, y, target, w, current.context(), options)

    def insert_maker(self, key: Key, make: Callable[[Any], Any], chosen_in: int) -> None:
        """Cache what makes the result of a call without `out` from its first operand."""
        self._insert(key, (make, chosen_in))
        if key.c or (table := self._compiled(chosen_in)) is None:
            return
        if not key.a[0] is key.b[0] is np.ndarray:
            self._insert_on_device(table, key, make, makes=True)
        elif key.options[-1] is None:  # no bias
            arrays = KnownHostArray(*key.a[1:]), KnownHostArray(*key.b[1:])
            if not table.insert_maker(arrays, make, key.options[OPTIONS]):
                self.clear()

    def insert(self, key: Key, prepared: PreparedCall) -> None:
        """Cache the only step of a prepared call, and what makes it for other addresses.

        Not cached: a launch bound for a graph that is being captured, and one that works in another
        context than the driver's current one (PyCUDA and the driver then disagree on which that
        is).
        """
        known = key.without_addresses if prepared.rebind else None
        if self._insert_launch(key, prepared.steps[0], prepared.chosen_in) and known is not None:
            if len(self._rebinds) >= MAX_REBINDS:
                self._rebinds.clear()
            entry = prepared.rebind, prepared.spans, prepared.bias, prepared.chosen_in
            self._rebinds[known] = RebindEntry(*entry)

    def _insert_launch(self, key: Key, launch: Launch, chosen_in: int) -> bool:
        """False if it must not be cached."""
        if key.context is not None and isinstance(launch, RebindableLaunch):
            if launch.context is not None:
                if launch.captured or key.context not in (0, launch.context):
                    return False
                launch = launch.assume_context(key.context)
        self._insert_compiled(key, launch, chosen_in)
        own = launch.direct() if type(launch) is CpuLaunch else launch
        self._insert(key, (own, chosen_in))
        return True

    def _insert_compiled(self, key: Key, launch: Launch, chosen_in: int) -> None:
        """Have compiled code make such a call again, if it can read all arrays."""
        if key.c or (table := self._compiled(chosen_in)) is None:
            return
        if any(spec[0] is not np.ndarray for _, spec in key[:3]):
            self._insert_on_device(table, key, launch)
        elif type(launch) is CpuLaunch and key.options[-1] is None:  # no bias
            arrays = tuple(KnownHostArray(*spec[1:], address) for address, spec in key[:3])
            if not table.insert(arrays, launch.kernel, key.options[OPTIONS], launch):
                self.clear()

    def _insert_on_device(
        self, table: Table, key: Key, action: Callable[..., Any], makes: bool = False
    ) -> None:
        """Add a call of arrays on a GPU, or what makes its result."""
        if key.context is not None:
            if current.functions is None:
                return
            table.ask_for_contexts(current.functions)
        marks = ((0, key.a), (0, key.b), None) if makes else key[:3]
        known, streams = [], set()
        for mark in (*marks, key.options[-1]):
            if mark is None:
                known.append(None)
                continue
            address, (kind, *spec) = mark
            attributes = self._attributes(table, kind)
            if attributes is None:
                return
            if attributes.stream is not None:
                streams.add(spec.pop())
                spec.append(False)  # it requires no gradient
            known.append(KnownArray(kind, tuple(spec), address))
        if len(streams) > 1 or len({one.type for one in known if one}) > 1:
            return
        stream = next(iter(streams), None)
        options = key.options[OPTIONS]
        if not table.insert_on_device(known, stream, options, action, key.context, makes):
            self.clear()

    def _attributes(self, table: Table, kind: type) -> Attributes | None:
        """How the table reads arrays of a type. None if it does not."""
        if kind not in self._read:
            found = _attributes(kind)
            self._read[kind] = found if found and table.read(kind, found) else None
        return self._read[kind]

    def _compiled(self, chosen_in: int) -> Table | None:
        """The table of compiled code for products of that generation. None if there is none."""
        if self._table is None and (code := compiled()) is not None:
            self._table = code.table(no_memory)
            self.repeat = self._table.multiply
            listen(self._found_until)
        if self._table is not None and self._chosen_in != chosen_in:
            self._table.clear()
            self._chosen_in = chosen_in
            self._found_until(*next_look())
        return self._table

    def _found_until(self, known: int, seconds: float) -> None:
        """The files of configurations are looked at again at that time. Before, if what is in the
        table is of another generation, nothing is found there.
        """
        if self._table is not None:
            self._table.valid_until(seconds if known == self._chosen_in else 0.0)

    def _insert(self, key: Key, entry: Entry) -> None:
        if len(self._entries) >= MAX_LAUNCHES:
            self._entries.clear()
        self._entries[key] = entry

    def _rebound(self, key: Key) -> Launch | None:
        """The launch of a call with operands of the same shapes, strides and dtypes at other
        addresses. What depends on these: their alignment, whether a and b are one array, whether
        out overlaps them.
        """
        entry = self._rebinds.get(key.without_addresses)
        if entry is None:
            return None
        if generation() != entry.chosen_in:
            self.clear()
            return None
        (a, _), (b, _), (out, _) = key.a, key.b, key.out
        launch = entry.launch_at(a, b, out)
        if launch is not None:
            self._insert_launch(key, launch, entry.chosen_in)
        return launch

    def _mark(self, array: Any) -> Mark:
        return () if array is None else self._readers[type(array)](array)

    def _key_without_out(self, a: Any, b: Any, c: Any, options: tuple) -> Key | None:
        """Shape and dtype of the result depend on those of the operands alone."""
        if not _makes(type(a)):
            return None
        x, y, w = (self._mark(array) for array in (a, b, c))
        if x is None or y is None or w is None:
            return None
        (_, spec_a), (_, spec_b) = x, y
        return Key(spec_a, spec_b, None, w[1:], current.context(), options)


@lru_cache(maxsize=64)
def _makes(kind: type) -> bool:
    """Whether a result beside arrays of this type can be made from their shapes and dtypes."""
    return kind.__module__.partition(".")[0] in _MAKING


def _unknown(*_: Any) -> None:
    """`LaunchCache.repeat` without compiled code."""


# Reading arrays: the attributes that each library returns fastest. The CUDA array interface has all
# of them, but takes PyTorch and CuPy microseconds to make


class _Readers(dict[type, Callable[[Any], Mark]]):
    """The reader of each array type, made when the first array of the type comes."""

    def __missing__(self, kind: type) -> Callable[[Any], Mark]:
        self[kind] = reader = self._of_prepared if kind is PreparedOperand else _reader(kind)
        return reader

    def _of_prepared(self, operand: PreparedOperand) -> Mark:
        mark = self[type(operand.array)](operand.array)
        return mark and (mark[0], (PreparedOperand, operand.serial, mark[1]))


def _reader(kind: type) -> Callable[[Any], Mark]:
    """The reader of arrays of one type."""
    if kind is np.ndarray:
        return _of_numpy if _READS_FAST else _of_numpy_asked
    library = library_of(kind)
    if library == "torch":
        return _of_torch(sys.modules["torch"])
    if library == "cupy" and kind.__name__ == "ndarray":
        return _of_cupy(sys.modules["cupy"])
    if library == "pycuda" and kind.__name__ == "GPUArray":
        return _of_pycuda
    return _of_interface


def _of_numpy(array: np.ndarray) -> Mark:
    address, writeable = pointers[id(array) >> SHIFT], array.flags.writeable
    return (address, (np.ndarray, writeable, array.shape, array.strides, array.dtype))


def _of_three(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[Mark, Mark, Mark]:
    """The marks of three arrays, in two thirds of the time that `_of_numpy` takes for each."""
    return (
        (pointers[id(a) >> SHIFT], (np.ndarray, a.flags.writeable, a.shape, a.strides, a.dtype)),
        (pointers[id(b) >> SHIFT], (np.ndarray, b.flags.writeable, b.shape, b.strides, b.dtype)),
        (pointers[id(c) >> SHIFT], (np.ndarray, c.flags.writeable, c.shape, c.strides, c.dtype)),
    )


def _of_numpy_asked(array: np.ndarray) -> Mark:
    address, readonly = array.__array_interface__["data"]
    return (address, (np.ndarray, not readonly, array.shape, array.strides, array.dtype))


def _reads_fast() -> bool:
    """Whether the address is there in this Python and this NumPy."""
    if sys.implementation.name != "cpython":
        return False
    samples = [np.empty(8), np.empty((3, 4), np.int8)[1:, 2:]]
    return all(_of_numpy(sample) == _of_numpy_asked(sample) for sample in samples)


_READS_FAST = _reads_fast()


def _torch_stream(torch: Any) -> Callable[[int], int]:
    """What says which stream is current on a device."""

    def stream_handle(index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream

    # In a tenth of the time:
    return getattr(getattr(torch, "_C", None), "_cuda_getCurrentRawStream", stream_handle)


def _of_torch(torch: Any) -> Callable[[Any], Mark]:
    stream_of = _torch_stream(torch)

    def read(tensor: Any) -> Mark:
        try:
            index = tensor.get_device()
            if index < 0 or (tensor.requires_grad and torch.is_grad_enabled()):
                return None
            spec = tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg()
            return (tensor.data_ptr(), (type(tensor), *spec, index, stream_of(index)))
        except RuntimeError:  # sparse, or without memory of its own
            return None

    return read


def _of_cupy(cupy: Any) -> Callable[[Any], Mark]:
    current_stream = cupy.cuda.get_current_stream

    def read(array: Any) -> Mark:
        memory = array.data
        spec = array.shape, array.strides, array.dtype
        return (memory.ptr, (type(array), *spec, memory.device_id, current_stream().ptr))

    return read


def _of_pycuda(array: Any) -> Mark:
    if array.gpudata is None:
        return None
    return (array.ptr, (type(array), array.shape, array.strides, array.dtype))


#: What tells GPUArrays apart, as `_of_pycuda` has it.
_PYCUDA = Attributes(("ptr", "shape", "strides", "dtype"))


def _attributes(kind: type) -> Attributes | None:
    """How compiled code reads arrays of a type, with the values of `_reader` in their order; of
    PyTorch's also that no gradient is wanted. None for a type that only Python reads.
    """
    library = library_of(kind)
    if library == "pycuda" and kind.__name__ == "GPUArray":
        return _PYCUDA
    if library != "torch" or kind.__name__ != "Tensor":
        return None
    names = "data_ptr", "shape", "stride", "dtype", "is_neg", "get_device", "requires_grad"
    methods = "data_ptr", "stride", "is_neg", "get_device"
    return Attributes(names, methods, _torch_stream(sys.modules["torch"]), 4)


def _of_interface(array: Any) -> Mark:
    try:
        description = array.__cuda_array_interface__
    except (AttributeError, RuntimeError):
        return None
    if description.get("mask") is not None:
        return None
    index = getattr(getattr(array, "device", None), "id", None)
    spec = (description["shape"], description.get("strides"), description["typestr"])
    address, readonly = description["data"]
    return (address or 0, (type(array), readonly, *spec, description.get("stream"), index))


#: The launches of this process.
cache = LaunchCache()

current.forget.append(cache.clear)  # scratch memory that was released must not stay alive here
call_in_child(cache.clear)  # a forked child has none of its parent's devices
