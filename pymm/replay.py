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

#: Launches kept: some 2 KiB each. All are forgotten when there would be more.
MAX_KEPT = 4096

#: A launch, and the generation of tuned configurations that its own was chosen from. Whatever can
#: make a call fail is part of its key, so a hit needs no checks; no entry keeps an operand alive.
_kept: dict[tuple, tuple[Callable[[], None], int]] = {}
if hasattr(os, "register_at_fork"):  # a child has none of its parent's devices
    os.register_at_fork(after_in_child=_kept.clear)


def key_of(a: Any, b: Any, out: Any, c: Any, options: tuple) -> tuple | None:
    """What a call is recognised by: places and forms of the arrays, and every option. None for a
    call that is not kept: without `out`, or with operands that are copied before they are used.
    """
    if out is None:
        return None
    x, y, z = _mark(a), _mark(b), _mark(out)
    w = _mark(c) if c is not None else ()
    if x is None or y is None or z is None or w is None:
        return None
    return (x, y, z, w, options, type(options[0]), type(options[1]))


def _mark(array: Any) -> tuple | None:
    """Place, form and kind of an array."""
    kind = type(array)
    if kind is np.ndarray:
        place = array.__array_interface__["data"]
        return (kind, place, array.shape, array.strides, array.dtype)
    if kind.__module__.partition(".")[0] == "torch":
        return _torch_mark(array)
    try:
        told = array.__cuda_array_interface__
    except (AttributeError, RuntimeError):
        return None
    if told.get("mask") is not None:
        return None
    place = getattr(getattr(array, "device", None), "id", None)
    form = (told["shape"], told.get("strides"), told["typestr"])
    return (kind, told["data"], *form, told.get("stream"), place)


def _torch_mark(tensor: Any) -> tuple | None:
    """A tensor's own words: its CUDA array interface takes PyTorch microseconds to make."""
    if not getattr(tensor, "is_cuda", False) or tensor.requires_grad:
        return None
    stream = sys.modules["torch"].cuda.current_stream(tensor.device).cuda_stream
    shape, strides = tuple(tensor.shape), tensor.stride()
    return (type(tensor), tensor.data_ptr(), shape, strides, tensor.dtype, tensor.device, stream)


def find(key: tuple) -> Callable[[], None] | None:
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


def keep(key: tuple, launch: Callable[[], None]) -> None:
    """Remember the launch of a call, unless its options cannot be recognised."""
    if len(_kept) >= MAX_KEPT:
        _kept.clear()
    with contextlib.suppress(TypeError):
        _kept[key] = (launch, generation())
