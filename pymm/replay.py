"""Calls that were made before: the bound launch of a product whose operands stand where they stood,
so that making it again costs a dictionary lookup.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pymm.choose import generation

#: Libraries that give freed memory out again.
_WITH_POOL = ("torch", "cupy")

#: Launches kept: some 2 KiB each. All are forgotten when there would be more.
MAX_KEPT = 4096

#: A launch, and the generation of tuned configurations that its own was chosen from. Whatever can
#: make a call fail is part of its key, so a hit needs no checks; no entry keeps an operand alive.
_kept: dict[tuple, tuple[Callable[[], Any], int]] = {}
if hasattr(os, "register_at_fork"):  # a child has none of its parent's devices
    os.register_at_fork(after_in_child=_kept.clear)


def key_of(a: Any, b: Any, out: Any, c: Any, options: tuple) -> tuple | None:
    """What a call is recognised by: places and forms of the arrays, and every option. None for a
    call that is not kept: with operands that are copied before they are used, or without `out`
    unless a library with a pool of its own makes the result, which then often has the place of one
    that is gone. What is kept of such a call is what makes its result.
    """
    if out is None and type(a).__module__.partition(".")[0] not in _WITH_POOL:
        return None
    x, y = _mark(a), _mark(b)
    z = _mark(out) if out is not None else ()
    w = _mark(c) if c is not None else ()
    if x is None or y is None or z is None or w is None:
        return None
    return (x, y, z, w, options, type(options[0]), type(options[1]))


# Place, form and kind of an array: what its library says soonest. The CUDA array interface has it
# all, and takes PyTorch and CuPy microseconds to make

Mark = tuple | None
_readers: dict[type, Callable[[Any], Mark]] = {}


def _mark(array: Any) -> Mark:
    kind = type(array)
    reader = _readers.get(kind)
    if reader is None:
        reader = _readers[kind] = _reader(kind)
    return reader(array)


def _reader(kind: type) -> Callable[[Any], Mark]:
    """How to read arrays of a type."""
    if kind is np.ndarray:
        return _of_numpy
    library = kind.__module__.partition(".")[0]
    if library == "torch" and kind.__name__ in ("Tensor", "Parameter"):
        return _of_torch(sys.modules["torch"])
    if library == "cupy" and kind.__name__ == "ndarray":
        return _of_cupy
    if library == "pycuda" and kind.__name__ == "GPUArray":
        return _of_pycuda
    return _of_interface


def _of_numpy(array: np.ndarray) -> Mark:
    place = array.__array_interface__["data"]
    return (np.ndarray, place, array.shape, array.strides, array.dtype)


def _of_torch(torch: Any) -> Callable[[Any], Mark]:
    def told(index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream

    compiled = getattr(torch, "_C", None)
    stream_of = getattr(compiled, "_cuda_getCurrentRawStream", told)  # in a tenth of the time

    def read(tensor: Any) -> Mark:
        try:
            index = tensor.get_device()
            if index < 0 or tensor.requires_grad:
                return None
            place = tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype
        except RuntimeError:  # sparse, or without memory of its own
            return None
        return (type(tensor), place, index, stream_of(index))

    return read


def _of_cupy(array: Any) -> Mark:
    memory, stream = array.data, sys.modules["cupy"].cuda.get_current_stream().ptr
    place = memory.ptr, array.shape, array.strides, array.dtype
    return (type(array), place, memory.device_id, stream)


def _of_pycuda(array: Any) -> Mark:
    if array.gpudata is None:
        return None
    return (type(array), array.ptr, array.shape, array.strides, array.dtype)


def _of_interface(array: Any) -> Mark:
    try:
        told = array.__cuda_array_interface__
    except (AttributeError, RuntimeError):
        return None
    if told.get("mask") is not None:
        return None
    place = getattr(getattr(array, "device", None), "id", None)
    form = (told["shape"], told.get("strides"), told["typestr"])
    return (type(array), told["data"], *form, told.get("stream"), place)


def find(key: tuple) -> Callable[[], Any] | None:
    """The launch of this call, if it was kept and the choice of its configuration still holds."""
    try:
        entry = _kept.get(key)
    except TypeError:  # a dict as config, an array as alpha: this call is never kept
        return None
    if entry is None:
        return None
    launch, chosen_in = entry
    if generation() == chosen_in:
        return launch
    _kept.clear()
    return None


def keep(key: tuple, launch: Callable[[], Any]) -> None:
    """Remember the launch of a call, unless its options cannot be recognised."""
    if len(_kept) >= MAX_KEPT:
        _kept.clear()
    with contextlib.suppress(TypeError):
        _kept[key] = (launch, generation())
