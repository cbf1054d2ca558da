"""Where a NumPy array's address is in memory."""

from __future__ import annotations

import ctypes

#: `pointer_at(id(array) + HEAD).value` is the address of an array's first element: what NumPy's C
#: API calls `PyArrayObject_fields.data` stands behind what every object of CPython begins with. To
#: ask for `__array_interface__` takes 1.4 us, five times as long. Whether it is so has to be tried.
pointer_at, HEAD = ctypes.c_void_p.from_address, object.__basicsize__
