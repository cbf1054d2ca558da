"""cuBLAS's rank-k update of a symmetric matrix, called through the library itself: no framework
offers it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, byref, c_double, c_float, c_int, c_void_p
from functools import lru_cache
from pathlib import Path
from typing import Any

from pymm.backends.base import Matrix
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem

#: Names of the library, newest first, where the process has not loaded one yet.
NAMES = ("libcublas.so.13", "libcublas.so.12", "libcublas.so")

#: Enumerations of cublas_api.h.
UPPER, PLAIN, TRANSPOSED = 1, 0, 1

ROUTINES = {"f32": ("cublasSsyrk_v2", c_float), "f64": ("cublasDsyrk_v2", c_double)}


@lru_cache(maxsize=1)
def _library() -> tuple[Any, c_void_p] | None:
    """The library and a handle in the current context; None where there is none. PyTorch's, if that
    is loaded: two cuBLAS in one process are two workspaces.
    """
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        maps = ""
    loaded = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "libcublas.so" in line}
    for name in (*sorted(loaded), *NAMES):
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        handle = c_void_p()
        if library.cublasCreate_v2(byref(handle)) == 0:
            return library, handle
    return None


def syrk(problem: Problem, a: Matrix, c: Matrix) -> Callable[[], None] | None:
    """A call of `cublas?syrk` on the default stream: C <- op(A) op(A)^T, the half with row >=
    column alone. None where cuBLAS is not, or has no routine for the type or for stacks.
    """
    if problem.dtype not in ROUTINES or problem.batch != 1 or not problem.symmetric:
        return None
    found = _library()
    if found is None:
        return None
    library, handle = found
    name, real = ROUTINES[problem.dtype]
    function = getattr(library, name)
    function.argtypes = [
        c_void_p,
        c_int,
        c_int,
        c_int,
        c_int,
        POINTER(real),
        c_void_p,
        c_int,
        POINTER(real),
        c_void_p,
        c_int,
    ]
    one, zero = real(1), real(0)
    # cuBLAS is column-major: a row-major A is A^T to it, and its upper half is our lower one.
    operation = PLAIN if problem.trans_a else TRANSPOSED
    arguments = (
        handle,
        UPPER,
        operation,
        problem.n,
        problem.k,
        byref(one),
        a.address,
        a.ld,
        byref(zero),
        c.address,
        c.ld,
    )

    def call() -> None:
        if status := function(*arguments):
            raise LaunchFailed(f"{name} on {problem.slug}: cuBLAS status {status}")

    call.owners = a, c, one, zero
    return call
