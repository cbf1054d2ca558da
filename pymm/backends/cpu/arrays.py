"""Where a NumPy array's address is in memory."""

from __future__ import annotations

import ctypes
import sys

_BYTES = ctypes.sizeof(ctypes.c_size_t)

#: `pointers[id(array) >> SHIFT]` is the address of an array's first element: what NumPy's C API
#: calls `PyArrayObject_fields.data` stands behind what every object of CPython begins with.
#: `pointers` takes all memory from there on for one array of words. To ask for
#: `__array_interface__` takes 1.4 us, ten times as long. Whether it is so has to be tried.
pointers = (ctypes.c_size_t * (sys.maxsize // _BYTES)).from_address(object.__basicsize__)
SHIFT = _BYTES.bit_length() - 1
