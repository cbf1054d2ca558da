"""What a plan can know of its arrays from call to call: whether they are still where it was bound
to them. Checks take some 0.1 us; what they cannot see is owned: no launch meets freed memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from pymm.arrays import Operand


class Binding:
    """One array of a plan. `unchanged()` is False when it is seen to have other memory (PyCUDA,
    PyTorch, CuPy), another dtype (NumPy, PyCUDA) or, for a NumPy array that is `written`, to be
    read-only by now. `owner` keeps the memory that the plan is bound to.

    A NumPy array, and what it is a view of, cannot be resized in place while its binding lives:
    NumPy refuses that for arrays that are referenced weakly. Shapes and strides that are changed in
    place are not noticed: the product is of those that the plan was made for.
    """

    def __init__(self, operand: Operand, written: bool) -> None:
        array = operand.owner
        make = _MAKERS.get(operand.kind, _of_unknown)
        self.unchanged, self.owner = make(array, written)


def _of_numpy(array: np.ndarray, written: bool) -> tuple[Callable[[], bool], Any]:
    dtype = array.dtype
    bases: list[np.ndarray] = [array]
    while isinstance(bases[-1].base, np.ndarray):
        bases.append(bases[-1].base)
    owner = array, [weakref.ref(base) for base in bases]
    if written:
        return (lambda: array.dtype is dtype and array.flags.writeable), owner
    return (lambda: array.dtype is dtype), owner


def _of_pycuda(array: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    memory, dtype = array.gpudata, array.dtype
    owner = array, memory, getattr(array, "base", None)
    return (lambda: array.gpudata is memory and array.dtype is dtype), owner


def _of_torch(tensor: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    read = tensor.data_ptr
    address = read()
    return (lambda: read() == address), (tensor, tensor.detach())


def _of_cupy(array: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    memory = array.data
    address = memory.ptr
    return (lambda: array.data.ptr == address), (array, memory)


def _of_unknown(array: Any, written: bool) -> tuple[Callable[[], bool], Any]:
    return (lambda: True), array


_MAKERS = {"numpy": _of_numpy, "pycuda": _of_pycuda, "torch": _of_torch, "cupy": _of_cupy}
