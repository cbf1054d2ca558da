"""Other people's arrays as operands: where their elements lie, whose they are, which stream made
them. Nothing here reads or writes an element.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pymm.backends.dlpack import Exported, export
from pymm.core.dtypes import BFLOAT16

#: Work that NumPy may spend on finding out whether two interleaved arrays really share an element
#: (candidates tried); beyond it they count as sharing, which costs a copy and nothing else.
OVERLAP_WORK = 1000


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape, strides in bytes and dtype of an array: everything about it but its address."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def packed(cls, shape: tuple[int, ...], dtype: np.dtype) -> ArraySpec:
        """Those of a C-contiguous array."""
        strides, step = [], dtype.itemsize
        for extent in reversed(shape):
            strides.append(step)
            step *= max(extent, 1)
        return cls(tuple(shape), tuple(reversed(strides)), dtype)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def bounds(self) -> tuple[int, int]:
        """First byte and the byte behind the last, relative to the first element."""
        if not self.size:
            return (0, 0)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = sum(step for step in steps if step < 0)
        return (low, sum(step for step in steps if step > 0) + self.dtype.itemsize)

    def transposed(self) -> ArraySpec:
        """The last two axes swapped."""
        (*stack, rows, columns), (*steps, down, across) = self.shape, self.strides
        return ArraySpec((*stack, columns, rows), (*steps, across, down), self.dtype)

    def with_axis(self, axis: int) -> ArraySpec:
        """An axis of extent 1 inserted before the last axis (-2) or behind it (-1)."""
        at = len(self.shape) + axis + 1
        shape = (*self.shape[:at], 1, *self.shape[at:])
        return ArraySpec(shape, (*self.strides[:at], 0, *self.strides[at:]), self.dtype)

    def spread(self, stack: tuple[int, ...]) -> ArraySpec:
        """The stack broadcast to `stack`: new and repeated axes have stride 0."""
        missing = len(stack) + 2 - len(self.shape)
        shape = (1,) * missing + self.shape
        strides = (0,) * missing + self.strides
        steps = [0 if old == 1 else s for old, s in zip(shape[:-2], strides[:-2], strict=True)]
        return ArraySpec((*stack, *shape[-2:]), (*steps, *strides[-2:]), self.dtype)

    def stored(self) -> tuple[bool, int] | None:
        """How the matrices of a stack lie: (by columns?, leading dimension in elements), by rows
        where both are true. None if neither axis has unit stride or lines run backwards.
        """
        size = self.dtype.itemsize
        (rows, columns), (down, across) = self.shape[-2:], self.strides[-2:]
        if not self.size:
            return False, max(columns, 1)
        steps = zip(self.shape, self.strides, strict=True)
        if any(step % size for extent, step in steps if extent > 1):
            return None
        if columns <= 1 or across == size:
            ld = down // size if rows > 1 else max(columns, 1)
            if ld >= max(columns, 1):
                return False, ld
        if rows <= 1 or down == size:
            ld = across // size if columns > 1 else max(rows, 1)
            if ld >= max(rows, 1):
                return True, ld
        return None

    def distinct(self) -> bool:
        """True if no two elements lie in the same place, shown by strides that nest."""
        steps = zip(self.strides, self.shape, strict=True)
        reach = self.dtype.itemsize
        for step, extent in sorted((abs(step), extent) for step, extent in steps if extent > 1):
            if step < reach:
                return False
            reach = step * extent
        return True


@dataclass(frozen=True, eq=False)
class PreparedOperand:
    """The right operand of many products, split once: `pymm.prepare` makes it. `array` is the array
    itself, `trans` whether op is its transpose. It owns what `split` says, on the device; that is
    None where the device splits no operands. No two have the same `serial`.
    """

    array: Any
    trans: bool
    split: Any
    serial: int = field(default_factory=itertools.count().__next__)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `array`."""
        return tuple(self.array.shape)


@dataclass(frozen=True, slots=True)
class Operand:
    """An array that somebody gave us. `kind` is "numpy" for host memory, else "pycuda", "torch",
    "cupy" or "cuda" (anything else with the CUDA array interface); `owner` is the array itself;
    `stream` the handle of the CUDA stream that its contents are ready on (None: ready). The
    elements of a `negative` operand are the numbers in its memory with the other sign: PyTorch's
    negative bit, of `x.conj().imag`. `on_device` is the device's number where `owner` has no such
    attribute, `held` what keeps the memory alive beside `owner`.
    """

    name: str
    kind: str
    address: int
    spec: ArraySpec
    owner: Any = field(compare=False, repr=False)
    readonly: bool = False
    stream: int | None = None
    negative: bool = False
    on_device: int | None = None
    held: Any = field(default=None, compare=False, repr=False)
    prepared: PreparedOperand | None = field(default=None, compare=False, repr=False)

    @property
    def on_host(self) -> bool:
        """True for a NumPy array."""
        return self.kind == "numpy"

    @property
    def device_index(self) -> int | None:
        """Number of the device that holds the array, where its library says so."""
        device = getattr(self.owner, "device", None) if self.kind in ("torch", "cupy") else None
        return getattr(device, "index", getattr(device, "id", self.on_device))

    @property
    def aligned(self) -> bool:
        """True if the first element stands at a multiple of its size."""
        return self.address % self.spec.dtype.itemsize == 0

    def overlaps(self, other: Operand) -> bool:
        """True if the two may share an element."""
        (low, high), (start, end) = self.interval, other.interval
        if high <= start or end <= low:
            return False
        try:
            return np.shares_memory(_shadow(self), _shadow(other), max_work=OVERLAP_WORK)
        except np.exceptions.TooHardError:
            return True

    def is_at(self, other: Operand) -> bool:
        """True if both have the same elements in the same places."""
        return self.address == other.address and self.spec == other.spec

    @property
    def interval(self) -> tuple[int, int]:
        """Addresses of its first byte and of the one behind its last."""
        low, high = self.spec.bounds
        return self.address + low, self.address + high


class _Interface:
    """Describes memory to NumPy, and keeps its owner alive for as long as NumPy looks at it."""

    def __init__(self, address: int, spec: ArraySpec, owner: Any) -> None:
        self.owner = owner
        self.__array_interface__ = dict(
            data=(address, False),
            shape=spec.shape,
            strides=spec.strides,
            typestr=spec.dtype.str,
            version=3,
        )


def view_at(address: int, spec: ArraySpec, owner: Any) -> np.ndarray:
    """Host memory at `address` as an array."""
    array = np.asarray(_Interface(address, spec, owner))
    return array if array.dtype == spec.dtype else array.view(spec.dtype)


def _shadow(operand: Operand) -> np.ndarray:
    """An array in the operand's place, for NumPy's questions about overlap; never to be read: it
    may be memory of a device.
    """
    return view_at(operand.address, operand.spec, operand.owner)


def adopt(array: Any, name: str = "array") -> Operand:
    """`array` as an operand: a NumPy array or what `numpy.asarray` makes one of (lists, memory
    maps), a PyCUDA GPUArray, a tensor of PyTorch, or an object with `__cuda_array_interface__` or
    DLPack's methods.

    `TypeError` for masked and sparse arrays, `numpy.matrix`, tensors whose gradient would be lost
    and objects that are no array.
    """
    if type(array) is np.ndarray:
        return _host(array, name)
    if type(array) is PreparedOperand:
        if name != "b":
            raise TypeError(f"{name} is a PreparedOperand, which is made for the place of b")
        return replace(adopt(array.array, name), prepared=array)
    library = library_of(type(array))
    source = _without_gradient(array, name) if library == "torch" else array
    try:
        description = getattr(source, "__cuda_array_interface__", None)
    except (RuntimeError, TypeError, KeyError) as error:  # PyTorch: no such dtype
        raise TypeError(f"{name} offers no array: {error}") from None
    if description is not None:
        return _device(array, description, name)
    _refuse_masked_and_sparse(array, name)
    if library == "torch" and hasattr(source, "data_ptr"):
        return _host_tensor(source, name)
    if isinstance(array, np.ndarray):
        return _host(array, name)
    if hasattr(array, "__dlpack_device__") and not _described(array):
        return _exported(array, name)
    try:
        made = np.asarray(source)
    except (TypeError, RuntimeError) as error:
        kind = type(array).__name__
        raise TypeError(f"{name} is a {kind}, which numpy.asarray refuses: {error}") from None
    if not made.ndim and made.dtype.kind not in "biufcV":
        what = "None" if array is None else f"a {type(array).__name__}"
        raise TypeError(
            f"{name} is {what}, not an array nor anything that numpy.asarray makes an array of"
        )
    return _host(made, name)


def _described(array: Any) -> bool:
    """Whether `numpy.asarray` finds an array in an object by itself."""
    return any(
        hasattr(array, protocol)
        for protocol in ("__array__", "__array_interface__", "__array_struct__")
    )


def _refuse_masked_and_sparse(array: Any, name: str) -> None:
    """`TypeError` for arrays that are more or less than their elements."""
    kind = type(array).__name__
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(
            f"{name}: pymm does not multiply masked elements; say what stands for them, as in "
            f"{name}.filled(0)"
        )
    if isinstance(array, np.matrix):
        raise TypeError(
            f"{name}: pymm does not multiply numpy.matrix; give it numpy.asarray({name})"
        )
    if isinstance(array, np.ndarray):
        return
    if kind == "MaskedTensor":  # torch.masked
        raise TypeError(
            f"{name}: pymm does not multiply masked elements; say what stands for them, as in "
            f"{name}.to_tensor(0)"
        )
    layout = str(getattr(array, "layout", ""))
    dense = "to_dense" if layout.startswith("torch.") and layout != "torch.strided" else ""
    if not dense and not hasattr(array, "__array_interface__"):
        # SciPy, CuPy: toarray; PyData's sparse and JAX: todense
        dense = next((m for m in ("toarray", "todense") if hasattr(array, m)), "")
    if dense:
        raise TypeError(
            f"{name} is a {kind} that does not store all of its elements (sparse), and pymm "
            f"multiplies dense arrays: give it {name}.{dense}()"
        )


def _host_tensor(tensor: Any, name: str) -> Operand:
    """A tensor in host memory: in place, bfloat16 and the negative bit included, which
    `Tensor.numpy` refuses. A conjugate bit changes only imaginary parts, and no product has any.
    """
    said = str(tensor.dtype).removeprefix("torch.")
    try:
        dtype = BFLOAT16 if said == "bfloat16" else np.dtype(said)
        address = tensor.data_ptr()
        strides = tensor.stride()
    except (RuntimeError, TypeError) as error:
        kind = type(tensor).__name__
        raise TypeError(f"{name} is a {kind} of {said}, which is no array: {error}") from None
    if tensor.device.type != "cpu" or (tensor.numel() and not address):
        raise TypeError(
            f"{name} is a {type(tensor).__name__} on the device {tensor.device} that has no memory "
            f"which pymm can read: it multiplies tensors that are stored on a CPU or a CUDA device"
        )
    spec = ArraySpec(tuple(tensor.shape), tuple(step * dtype.itemsize for step in strides), dtype)
    return replace(_host(view_at(address, spec, tensor), name), negative=tensor.is_neg())


def _exported(array: Any, name: str) -> Operand:
    """An object that offers DLPack and nothing else."""
    try:
        found: Exported = export(array)
    except (BufferError, TypeError, ValueError, RuntimeError) as error:
        kind = type(array).__name__
        raise TypeError(f"{name} is a {kind}, whose DLPack export fails: {error}") from None
    spec = ArraySpec.packed(found.shape, found.dtype)
    if found.strides is not None:
        spec = ArraySpec(found.shape, found.strides, found.dtype)
    if found.on_host:
        host = view_at(found.address, spec, found)
        if found.readonly:
            host.flags.writeable = False
        return _host(host, name)
    return Operand(
        name,
        "cuda",
        found.address,
        spec,
        array,
        found.readonly,
        found.stream,
        on_device=found.index,
        held=found,
    )


def library_of(kind: type) -> str:
    """The array library that a type, or the first of its bases that is of one, comes from:
    "pycuda", "torch" or "cupy", else "cuda".
    """
    modules = (base.__module__.partition(".")[0] for base in kind.__mro__)
    return next((module for module in modules if module in ("pycuda", "torch", "cupy")), "cuda")


def _without_gradient(tensor: Any, name: str) -> Any:
    """A tensor of PyTorch, or where gradients are not recorded the same memory without one."""
    if not tensor.requires_grad:
        return tensor
    if sys.modules["torch"].is_grad_enabled():
        raise TypeError(
            f"{name} requires grad, and this function records no gradients: use "
            f"pymm.torch.matmul, torch.no_grad() or {name}.detach()"
        )
    return tensor.detach()


def _host(array: np.ndarray, name: str) -> Operand:
    spec = ArraySpec(array.shape, array.strides, array.dtype)
    address = array.__array_interface__["data"][0]
    return Operand(name, "numpy", address, spec, array, not array.flags.writeable)


def _device(array: Any, description: dict, name: str) -> Operand:
    """CUDA array interface, version 2 or 3: numba.readthedocs.io, "CUDA Array Interface"."""
    if description.get("mask") is not None:
        raise TypeError(f"{name}: pymm does not multiply masked elements")
    dtype = _dtype(array, description["typestr"])
    shape = tuple(map(int, description["shape"]))
    address, readonly = description["data"]
    strides = description.get("strides")
    if strides is None:
        spec = ArraySpec.packed(shape, dtype)
    else:
        spec = ArraySpec(shape, tuple(map(int, strides)), dtype)
    stream = description.get("stream")
    if stream == 0:
        raise ValueError(f"{name}: its CUDA array interface names stream 0, which is ambiguous")
    if spec.size and not address:
        raise TypeError(f"{name} has no memory: its CUDA array interface names address 0")
    kind = library_of(type(array))
    if kind == "torch" and stream is None:  # PyTorch describes version 2, which names no stream
        stream = sys.modules["torch"].cuda.current_stream(array.device).cuda_stream or 1
    negative = kind == "torch" and array.is_neg()
    return Operand(name, kind, address or 0, spec, array, bool(readonly), stream, negative)


def _dtype(array: Any, typestr: str) -> np.dtype:
    """The protocol has no name for bfloat16: PyTorch, CuPy and PyCUDA say "two bytes"."""
    if typestr == "<V2":
        if str(getattr(array, "dtype", "")).removeprefix("torch.") == "bfloat16":
            return BFLOAT16
    return np.dtype(typestr)


def result_maker(
    operand: Operand,
    shape: tuple[int, ...],
    dtype: np.dtype,
    empty: Callable[[tuple[int, ...], np.dtype], Any],
) -> Callable[[Any], Any]:
    """What makes an uninitialised array beside the one it is given, by the library that made
    `operand`; a GPUArray of a memory pool beside one of that pool. What is not the array library's
    business (unknown objects, a GPUArray of plain device memory) the device's own `empty` makes.
    Keeps no hold on `operand`, nor on a pool.
    """
    if operand.kind == "numpy":
        return lambda beside: np.empty(shape, dtype)
    if operand.kind == "torch":
        torch = sys.modules["torch"]
        kind = getattr(torch, dtype.name)
        if type(operand.owner) is torch.Tensor:  # in half the time
            return lambda beside: beside.new_empty(shape, dtype=kind)
        return lambda beside: torch.empty(shape, dtype=kind, device=beside.device)
    if operand.kind == "cupy":
        cupy = sys.modules["cupy"]

        def make(beside: Any) -> Any:
            with beside.device:
                return cupy.empty(shape, dtype)

        return make
    if operand.kind == "pycuda":
        array = sys.modules["pycuda.gpuarray"].GPUArray
        plain = (None, sys.modules["pycuda.driver"].mem_alloc)

        def make(beside: Any) -> Any:
            allocator = getattr(beside, "allocator", None)
            return empty(shape, dtype) if allocator in plain else array(shape, dtype, allocator)

        return make
    return lambda beside: empty(shape, dtype)
