"""ScaLAPACK's PDGEMM and PSGEMM on the blocks of distributed matrices, without copies: what results
are compared with, and a baseline of the benchmark.

The row-major blocks of A, B and C on a P x Q grid are column-major blocks of their transposes on a
Q x P grid (`BlockCyclic.descriptor`), and C^T = B^T A^T: PxGEMM gets B first.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from typing import TYPE_CHECKING

import numpy as np
from threadpoolctl import threadpool_info

from pymm.core.errors import NoDevice
from pymm.distributed.communicator import MPI, library

if TYPE_CHECKING:
    from pymm.distributed.matrix import DistMatrix

#: Names of the library as built for Open MPI, Debian's first. It finds the MPI of this process:
#: that library has the same file name and is loaded already.
LIBRARIES = ("scalapack-openmpi", "scalapack")

INSTALL = "apt install libscalapack-openmpi2.2 libopenblas0-pthread (Debian, Ubuntu)"

_ROUTINES = {
    np.dtype(np.float64): ("pdgemm_", ctypes.c_double),
    np.dtype(np.float32): ("psgemm_", ctypes.c_float),
}


class NoScalapack(NoDevice):
    """ScaLAPACK cannot be used here; the message says why and what to do."""


def load() -> ctypes.CDLL:
    """The library, loaded. `NoScalapack` if there is none that fits the MPI of this process."""
    version = library()
    if not version.startswith("Open MPI"):
        raise NoScalapack(
            f"ScaLAPACK is looked for as built for Open MPI, and this process runs {version}: "
            "start it with Open MPI's mpirun"
        )
    reason = "the system knows no library of that name"
    for found in filter(None, map(ctypes.util.find_library, LIBRARIES)):
        try:
            return ctypes.CDLL(found)
        except OSError as error:
            reason = str(error)
    raise NoScalapack(f"no ScaLAPACK ({reason}): {INSTALL}")


def blas(foreign: bool = True) -> str:
    """The BLAS that ScaLAPACK calls, or SciPy's if not `foreign`, and its version: "openblas
    0.3.21". "reference" for the system's unoptimised one, which no comparison should use.
    """
    found = [library for library in threadpool_info() if library["user_api"] == "blas"]
    if foreign:
        kept = [x for x in found if not re.search("/(numpy|scipy)", x["filepath"])]
    else:
        kept = [x for x in found if "/scipy" in x["filepath"]]
    if not kept:
        return "reference" if foreign else ""
    return f"{kept[0]['internal_api']} {kept[0]['version'] or ''}".strip()


class Scalapack:
    """PxGEMM on matrices of one communicator and one grid, made by all processes together. Close
    it, or use it as a context manager, before MPI ends.

    `NoScalapack` if the library is missing.
    """

    def __init__(self, comm, grid: tuple[int, int]) -> None:
        self._library = load()
        self.grid = grid
        self._comm = comm  # its handle is BLACS's as well: it lives as long
        convert = self._library.Csys2blacs_handle
        convert.argtypes, convert.restype = [ctypes.c_void_p], ctypes.c_int
        if MPI._sizeof(MPI.Comm) != ctypes.sizeof(ctypes.c_void_p):
            raise NoScalapack("the handles of this MPI are no pointers, as Open MPI's are")
        handle = ctypes.c_void_p.from_address(MPI._addressof(comm))
        self._system = convert(handle)
        context = ctypes.c_int(self._system)
        p, q = grid
        self._library.Cblacs_gridinit(ctypes.byref(context), b"C", q, p)
        self.context = context.value

    def __enter__(self) -> Scalapack:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the BLACS context. Processes outside of the grid have none."""
        if self._comm is None:
            return
        if self.context >= 0:
            self._library.Cblacs_gridexit(self.context)
        self._library.Cfree_blacs_system_handle(self._system)
        self._comm = None

    def matmul(
        self, a: DistMatrix, b: DistMatrix, c: DistMatrix, alpha: float = 1, beta: float = 0
    ) -> DistMatrix:
        """C <- alpha A B + beta C on the blocks as they are; returns C.

        float32 or float64, all three alike and on this grid: `TypeError` and `ValueError` if not.
        """
        kinds = {str(matrix.local.dtype) for matrix in (a, b, c)}
        found = _ROUTINES.get(a.local.dtype)
        if len(kinds) > 1 or found is None:
            raise TypeError(f"A, B and C are all float32 or all float64; got {', '.join(kinds)}")
        (m, k), (deep, n) = a.layout.shape, b.layout.shape
        if deep != k or c.layout.shape != (m, n):
            shapes = ", ".join(str(matrix.layout.shape) for matrix in (a, b, c))
            raise ValueError(f"A (m x k), B (k x n) and C (m x n) do not match: {shapes}")
        for name, matrix in zip("ABC", (a, b, c), strict=True):
            if matrix.layout.grid != self.grid:
                raise ValueError(f"{name} is on a grid of {matrix.layout.grid}, not {self.grid}")
            if not matrix.local.flags.c_contiguous:
                raise ValueError(f"the blocks of {name} are not stored row by row")
        routine, real = found
        one = ctypes.byref(ctypes.c_int(1))
        extents = [ctypes.byref(ctypes.c_int(extent)) for extent in (n, m, k)]
        first, second, result = ((*self._array(x, one),) for x in (b, a, c))
        scale, keep = ctypes.byref(real(alpha)), ctypes.byref(real(beta))
        call = getattr(self._library, routine)
        call(b"N", b"N", *extents, scale, *first, *second, keep, *result)
        return c

    def _array(self, matrix: DistMatrix, one) -> tuple[object, ...]:
        """The address, first row and column, and descriptor of a matrix, as PxGEMM takes them."""
        descriptor = matrix.layout.descriptor(self.context, matrix.local.shape[1])
        return matrix.local.ctypes.data_as(ctypes.c_void_p), one, one, descriptor.ctypes
