"""Calls that were made before: the bound launch of a product whose operands stand where they stood,
so that making it again costs a dictionary lookup; and of one whose operands have the same forms and
stand elsewhere, which costs new addresses in its arguments.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from pymm.backends.current import current
from pymm.runtime.arrays import library_of
from pymm.selection.choose import generation

#: Libraries whose arrays results are made beside without looking at more than the forms.
_MAKING = ("torch", "cupy", "pycuda")

#: Launches kept: some 2 KiB each. All are forgotten when there would be more.
MAX_KEPT = 4096

#: A launch, and the generation of tuned configurations that its own was chosen from. Whatever can
#: make a call fail is part of its key, so a hit needs no checks; no entry keeps an operand alive.
_kept: dict[tuple, tuple[Callable[[], Any], int]] = {}

#: Where the context stands in a key.
_CONTEXT = 4

#: Forms kept, and what addresses may differ by: rows that started at multiples of 128 bytes, or of
#: whatever a kernel was compiled for, do so again.
MAX_FORMS, SAME = 1024, 128

#: By the forms of a, b and out: what makes a launch for other addresses, the bytes that the three
#: take from there, and the generation.
Span = tuple[int, int]
_forms: dict[tuple, tuple[Callable[..., Any], tuple[Span, ...], int]] = {}


def _forget() -> None:
    _kept.clear()
    _forms.clear()


current.forget.append(_forget)  # scratch memory that was given up is not to live on here

if hasattr(os, "register_at_fork"):  # a child has none of its parent's devices
    os.register_at_fork(after_in_child=_forget)


def key_of(a: Any, b: Any, out: Any, c: Any, options: tuple) -> tuple | None:
    """What a call is recognised by: places and forms of the arrays, the context that is current (an
    address may be given out again in another one), and every option. None for a call that is not
    kept: with operands that are copied before they are used, or without `out` beside arrays of
    unknown libraries and NumPy's. A result often has the place of one that is gone.
    What is kept of such a call is what makes its result.
    """
    marks = _marks(a, b, out, c)
    if marks is None:
        return None
    target = _readers[type(out)](out) if out is not None else ()
    return _key(marks, target, current.context(), options)


def recall(
    a: Any, b: Any, out: Any, c: Any, options: tuple
) -> tuple[tuple | None, Any, Callable[[], Any] | None]:
    """What is known of a call: its key; its `out`, now made if such a call was made before without
    one; and its launch. None for what is not known.
    """
    marks = _marks(a, b, out, c)
    if marks is None:
        return None, out, None
    context = current.context()
    if out is None:
        key = _key(marks, (), context, options)
        make = find(key)
        if make is None:
            return key, None, None
        out = make(a)
    key = _key(marks, _readers[type(out)](out), context, options)
    return key, out, None if key is None else find(key)


def _marks(a: Any, b: Any, out: Any, c: Any) -> tuple[Mark, Mark, Mark] | None:
    """Those of a, b and c."""
    if out is None and type(a).__module__.partition(".")[0] not in _MAKING:
        return None
    x, y = _readers[type(a)](a), _readers[type(b)](b)
    w = _readers[type(c)](c) if c is not None else ()
    return None if x is None or y is None or w is None else (x, y, w)


def _key(
    marks: tuple[Mark, Mark, Mark], out: Mark, context: int | None, options: tuple
) -> tuple | None:
    if out is None:
        return None
    x, y, w = marks
    if not out:  # the result's form depends on theirs alone
        x, y, w = x[1], y[1], w[1:]
    return (x, y, out, w, context, options, type(options[0]), type(options[1]))


# Address, and form and kind of an array: what its library says soonest. The CUDA array interface
# has it all, and takes PyTorch and CuPy microseconds to make

Mark = tuple | None


class _Readers(dict[type, Callable[[Any], Mark]]):
    """How to read arrays of each type, found out when one comes."""

    def __missing__(self, kind: type) -> Callable[[Any], Mark]:
        self[kind] = reader = _reader(kind)
        return reader


_readers = _Readers()


def _reader(kind: type) -> Callable[[Any], Mark]:
    """How to read arrays of a type."""
    if kind is np.ndarray:
        return _of_numpy
    library = library_of(kind)
    if library == "torch":
        return _of_torch(sys.modules["torch"])
    if library == "cupy" and kind.__name__ == "ndarray":
        return _of_cupy(sys.modules["cupy"])
    if library == "pycuda" and kind.__name__ == "GPUArray":
        return _of_pycuda
    return _of_interface


def _of_numpy(array: np.ndarray) -> Mark:
    address, readonly = array.__array_interface__["data"]
    return (address, (np.ndarray, readonly, array.shape, array.strides, array.dtype))


def _of_torch(torch: Any) -> Callable[[Any], Mark]:
    def told(index: int) -> int:
        return torch.cuda.current_stream(index).cuda_stream

    compiled = getattr(torch, "_C", None)
    stream_of = getattr(compiled, "_cuda_getCurrentRawStream", told)  # in a tenth of the time

    def read(tensor: Any) -> Mark:
        try:
            index = tensor.get_device()
            if index < 0 or (tensor.requires_grad and torch.is_grad_enabled()):
                return None
            form = tensor.shape, tensor.stride(), tensor.dtype, tensor.is_neg()
            return (tensor.data_ptr(), (type(tensor), *form, index, stream_of(index)))
        except RuntimeError:  # sparse, or without memory of its own
            return None

    return read


def _of_cupy(cupy: Any) -> Callable[[Any], Mark]:
    current_stream = cupy.cuda.get_current_stream

    def read(array: Any) -> Mark:
        memory = array.data
        form = array.shape, array.strides, array.dtype
        return (memory.ptr, (type(array), *form, memory.device_id, current_stream().ptr))

    return read


def _of_pycuda(array: Any) -> Mark:
    if array.gpudata is None:
        return None
    return (array.ptr, (type(array), array.shape, array.strides, array.dtype))


def _of_interface(array: Any) -> Mark:
    try:
        told = array.__cuda_array_interface__
    except (AttributeError, RuntimeError):
        return None
    if told.get("mask") is not None:
        return None
    place = getattr(getattr(array, "device", None), "id", None)
    form = (told["shape"], told.get("strides"), told["typestr"])
    address, readonly = told["data"]
    return (address or 0, (type(array), readonly, *form, told.get("stream"), place))


def find(key: tuple) -> Callable[[], Any] | None:
    """The launch of this call, if it was kept or one of the same forms was, and the choice of its
    configuration still holds.
    """
    try:
        entry = _kept.get(key)
    except TypeError:  # a dict as config, an array as alpha: this call is never kept
        return None
    if entry is None:
        return _elsewhere(key) if key[2] else None
    launch, chosen_in = entry
    if generation() == chosen_in:
        return launch
    _forget()
    return None


def _elsewhere(key: tuple) -> Callable[[], Any] | None:
    """The launch of a call that was made before with operands at other addresses. Everything about
    a call but its addresses is in the key of its forms; of the addresses it matters where they are
    modulo 128, whether a and b are one, and whether out overlaps them: then it is left to who looks
    closer.
    """
    entry = _forms.get(_form_of(key))
    if entry is None:
        return None
    rebind, (of_a, of_b, of_out), chosen_in = entry
    if generation() != chosen_in:
        _forget()
        return None
    a, b, out = key[0][0], key[1][0], key[2][0]
    begin, end = out + of_out[0], out + of_out[1]
    if (begin < a + of_a[1] and a + of_a[0] < end) or (begin < b + of_b[1] and b + of_b[0] < end):
        return None
    launch = rebind(a, b, out)
    if launch is not None:
        keep(key, launch)
    return launch


def _form_of(key: tuple) -> tuple | None:
    """The key without addresses; None where c is another array than out."""
    (a, form_a), (b, form_b), out, c, *rest = key
    if c and c != out:
        return None
    places = a % SAME, b % SAME, out[0] % SAME, a == b
    return (form_a, form_b, out[1], bool(c), places, *rest)


def keep(
    key: tuple,
    launch: Callable[[], Any],
    rebind: Callable[..., Any] | None = None,
    spans: tuple[Span, ...] = (),
) -> None:
    """Remember the launch of a call, unless its options cannot be recognised, it was bound for a
    graph that is being captured, or it works in another context than the current one (the driver
    and PyCUDA then do not agree which that is); and what
    makes it for other addresses of a, b and out, if something does: `spans` are the bytes that each
    of them takes, from its address on.
    """
    context = key[_CONTEXT]
    if context is not None and hasattr(launch, "assume_context"):
        if launch.captured or context not in (0, launch.context):
            return
        launch = launch.assume_context(context)
    if len(_kept) >= MAX_KEPT:
        _kept.clear()
    with contextlib.suppress(TypeError):
        _kept[key] = (launch, generation())
        if rebind and (form := _form_of(key)) is not None:
            if len(_forms) >= MAX_FORMS:
                _forms.clear()
            _forms[form] = (rebind, spans, generation())
