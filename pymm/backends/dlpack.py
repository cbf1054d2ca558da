"""Arrays of other libraries by DLPack (dmlc.github.io/dlpack, "C API" and "Python Specification"):
what a capsule says of its memory.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pymm.core.dtypes import BFLOAT16

#: DLDeviceType: memory of the host, of a CUDA device, of the host page-locked, and of both.
_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED = 1, 2, 3, 13

#: DLDataTypeCode of the types that NumPy has by the same name.
_CODES = {0: "int", 1: "uint", 2: "float", 5: "complex"}
_BFLOAT, _BOOL = 4, 6

#: DLPACK_FLAG_BITMASK_READ_ONLY
_READ_ONLY = 1

#: How a producer is told the legacy default stream: it makes that wait for the contents.
_LEGACY_STREAM = 1


class _Tensor(ctypes.Structure):
    """DLTensor"""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned"""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    ]


_python = ctypes.PyDLL(None)  # functions of our own: others declare those of ctypes.pythonapi
_is_valid = _python.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = _python.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


@dataclass(frozen=True)
class Exported:
    """An array's memory, shape, strides (in bytes, None for C order) and dtype. `stream` is the
    handle of the CUDA stream that the contents are ready on, None on the host. `owners`, the array
    and its capsule, keep the memory: the capsule is not consumed, so it releases the export.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype
    on_host: bool
    index: int
    readonly: bool
    stream: int | None
    owners: tuple[Any, Any] = field(repr=False)


def export(array: Any) -> Exported:
    """What `array`, with `__dlpack__` and `__dlpack_device__`, exports. Raises what the array
    raises, and `TypeError` for other devices than CPUs and CUDA's and for types that NumPy lacks.
    """
    device, index = array.__dlpack_device__()
    if device not in (_CPU, _CUDA, _CUDA_HOST, _CUDA_MANAGED):
        raise TypeError(
            f"it is on a device of DLPack's type {int(device)}, and pymm reads memory of the host "
            f"and of CUDA devices: copy it there"
        )
    on_host = device in (_CPU, _CUDA_HOST)
    stream = None if on_host else _LEGACY_STREAM
    try:
        capsule = array.__dlpack__(stream=stream, max_version=(1, 0))
    except TypeError:  # a producer from before DLPack 1.0
        capsule = array.__dlpack__(stream=stream)
    tensor, flags = _read(capsule)
    dtype, rank = _dtype(tensor), tensor.ndim
    shape, strides = tuple(tensor.shape[:rank]), None
    if rank and tensor.strides:
        strides = tuple(step * dtype.itemsize for step in tensor.strides[:rank])
    address = (tensor.data or 0) + tensor.byte_offset
    if not address and all(shape):
        raise TypeError("it names the address 0")
    owners, readonly = (array, capsule), bool(flags & _READ_ONLY)
    return Exported(address, shape, strides, dtype, on_host, int(index), readonly, stream, owners)


def _read(capsule: Any) -> tuple[_Tensor, int]:
    """The tensor of a capsule, in the capsule's memory, and its flags."""
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise TypeError(f"it is of DLPack {managed.major}.{managed.minor}, not of 1")
        return managed.tensor, managed.flags
    if _is_valid(capsule, b"dltensor"):
        return _Tensor.from_address(_pointer(capsule, b"dltensor")), 0
    raise TypeError(f"__dlpack__ returned a {type(capsule).__name__} that holds no tensor")


def _dtype(tensor: _Tensor) -> np.dtype:
    code, bits = tensor.code, tensor.bits
    if tensor.lanes == 1 and (code, bits) == (_BFLOAT, 16):
        return BFLOAT16
    if tensor.lanes == 1 and (code, bits) == (_BOOL, 8):
        return np.dtype(bool)
    try:
        if tensor.lanes == 1:
            return np.dtype(f"{_CODES[code]}{bits}")
    except (KeyError, TypeError):
        pass
    raise TypeError(f"NumPy has no type for DLPack's code {code} with {bits} bits")
