"""cuBLAS's rank-k update of a symmetric matrix, by the bindings of nvmath-python: no framework
offers it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from pymm.backends.base import Matrix
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem

ROUTINES = {"f32": "ssyrk", "f64": "dsyrk"}


@lru_cache(maxsize=1)
def _bindings() -> tuple[Any, int] | None:
    """The bindings, and a handle in the current context; None where nvmath-python or cuBLAS is not
    installed. A cuBLAS that the process has loaded is taken: two of them are two workspaces.
    """
    try:
        cublas = importlib.import_module("nvmath.bindings.cublas")
    except ImportError:
        return None
    try:
        return cublas, cublas.create()
    except (RuntimeError, cublas.cuBLASError):
        return None


def syrk(problem: Problem, a: Matrix, c: Matrix) -> Callable[[], None] | None:
    """A call of `cublas?syrk` on the default stream: C <- op(A) op(A)^T, the half with row >=
    column alone. None where cuBLAS is not, or has no routine for the type or for stacks.
    """
    if problem.dtype not in ROUTINES or problem.batch != 1 or not problem.symmetric:
        return None
    found = _bindings()
    if found is None:
        return None
    cublas, handle = found
    routine = getattr(cublas, ROUTINES[problem.dtype])
    scalars = np.array([1, 0], problem.numpy_dtype)
    one, zero = (scalars[place:].ctypes.data for place in range(2))
    # cuBLAS is column-major: a row-major A is A^T to it, and its upper half is our lower one.
    operation = cublas.Operation.N if problem.trans_a else cublas.Operation.T
    shape = cublas.FillMode.UPPER, operation, problem.n, problem.k
    arguments = (handle, *shape, one, a.address, a.ld, zero, c.address, c.ld)

    def call() -> None:
        try:
            routine(*arguments)
        except cublas.cuBLASError as error:
            raise LaunchFailed(f"{routine.__name__} on {problem.slug}: {error}") from error

    call.owners = a, c, scalars
    return call
