"""Where a NumPy array's address is in memory."""

from __future__ import annotations

import ctypes
import sys

_BYTES = ctypes.sizeof(ctypes.c_size_t)

#: `pointers[id(array) >> SHIFT]` is the address of an array's first element: in CPython the field
#: `PyArrayObject_fields.data` of NumPy's C API follows the head of the object. `pointers` shows
#: memory from that offset on as one array of words. To ask for `__array_interface__` takes 1.4 us,
#: ten times as long. Whoever uses this checks the layout first (`launch_cache._reads_fast`).
pointers = (ctypes.c_size_t * (sys.maxsize // _BYTES)).from_address(object.__basicsize__)
SHIFT = _BYTES.bit_length() - 1
