"""Objects that offer DLPack and nothing else: of another library's array, and of memory on any
device, described by hand.
"""

import ctypes
from types import SimpleNamespace

import numpy as np

from pymm.backends.dlpack import _Tensor, _Versioned

CPU, CUDA, CUDA_HOST, VULKAN, CUDA_MANAGED = 1, 2, 3, 7, 13

#: DLDataTypeCode by NumPy's kind of a type.
CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}

_new = ctypes.pythonapi.PyCapsule_New
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_new.restype = ctypes.py_object


class Delegate:
    """The export of another library's array."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Producer:
    """The memory of a NumPy array, as what `options` say of it: device, index, versioned, readonly,
    code, lanes, strided, major.
    """

    def __init__(self, array, **options):
        self.array, self.asked = array, []
        known = dict(device=CUDA, index=0, versioned=True, readonly=False, lanes=1, strided=True)
        known |= dict(code=CODES.get(array.dtype.kind), major=1, offset=0)
        self.told = SimpleNamespace(**known | options)

    def __dlpack_device__(self):
        return self.told.device, self.told.index

    def __dlpack__(self, *, stream=None, **more):
        if more and not self.told.versioned:
            raise TypeError(f"unknown arguments {more}")
        self.asked.append(stream)
        managed, told, array = _Versioned(), self.told, self.array
        shape = (ctypes.c_int64 * max(array.ndim, 1))(*array.shape)
        steps = [step // array.itemsize for step in array.strides]
        strides = (ctypes.c_int64 * max(array.ndim, 1))(*steps)
        managed.major, managed.flags = told.major, int(told.readonly)
        tensor = managed.tensor
        tensor.data = array.__array_interface__["data"][0] - told.offset
        tensor.byte_offset = told.offset
        tensor.device_type, tensor.device_id, tensor.ndim = told.device, told.index, array.ndim
        tensor.code, tensor.bits, tensor.lanes = told.code, 8 * array.itemsize, told.lanes
        tensor.shape = ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64))
        if told.strided:
            tensor.strides = ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64))
        self.kept = managed, shape, strides  # for as long as this object lives
        if told.versioned:
            return _new(ctypes.addressof(managed), b"dltensor_versioned", None)
        return _new(ctypes.addressof(managed) + _Versioned.tensor.offset, b"dltensor", None)


def read_only(array):
    """A copy that NumPy does not write to."""
    array = np.array(array)
    array.flags.writeable = False
    return array


assert _Tensor.byte_offset.offset + 8 == ctypes.sizeof(_Tensor)
