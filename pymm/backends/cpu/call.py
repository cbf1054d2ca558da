"""What the CPU's kernels are called with, and the threads that they share."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from pymm.backends.base import Matrix, Vector
from pymm.backends.cpu.compiler import CpuCompiler
from pymm.backends.cpu.pieces import Piece
from pymm.core.epilogue import Epilogue
from pymm.core.problem import Problem
from pymm.kernels.source import kernel_text


class Call(ctypes.Structure):
    """The one argument of a kernel: `Call` of cpu_src/call.hpp."""

    _fields_ = (
        *((name, ctypes.c_int) for name in ("m", "n", "k", "batch")),
        *((name, ctypes.c_double) for name in ("alpha", "beta")),
        *(
            field
            for matrix in "abc"
            for field in (
                (matrix, ctypes.c_void_p),
                (f"ld{matrix}", ctypes.c_longlong),
                (f"batch_{matrix}", ctypes.c_longlong),
            )
        ),
        ("bias", ctypes.c_void_p),
        ("complete", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("run", ctypes.c_void_p),
    )


def call_of(
    piece: Piece,
    problem: Problem,
    matrices: tuple[Matrix, Matrix, Matrix],
    scalars: tuple[float, float],
    epilogue: tuple[Epilogue, Vector | None],
    threads: int,
    run: int,
) -> Call:
    """The call that computes `piece` with a pool's function at address `run`. Pieces behind the
    first along k add to C. `scalars` are alpha and beta.
    """
    i, j, p = piece.i, piece.j, piece.p
    a, b, c = matrices
    starts = (
        p * a.ld + i if problem.trans_a else i * a.ld + p,
        j * b.ld + p if problem.trans_b else p * b.ld + j,
        i * c.ld + j,
    )
    places: list[int] = []
    sizes = [problem.numpy_dtype.itemsize] * 2 + [problem.out_dtype.itemsize]
    for matrix, start, size in zip(matrices, starts, sizes, strict=True):
        first = matrix.address + size * (piece.matrix * matrix.batch_stride + start)
        places += [first, matrix.ld, matrix.batch_stride]
    alpha, beta = scalars
    extents = piece.rows, piece.columns, piece.depth, piece.count
    complete = p + piece.depth == problem.k
    bias = _bias_at(piece, *epilogue)
    return Call(*extents, alpha, 1.0 if p else beta, *places, bias, complete, threads, run)


def _bias_at(piece: Piece, epilogue: Epilogue, bias: Vector | None) -> int | None:
    """The address of the bias of a piece's first row or column."""
    if bias is None or epilogue.bias is None:
        return None
    return bias.address + (piece.i if epilogue.down else piece.j) * epilogue.bias.itemsize


class Pool(NamedTuple):
    """The threads that all kernels of a process share (cpu_src/pool.cpp): the address of the
    function that shares out work, and `wake(threads)`, which has them look for some.
    """

    run: int
    wake: Callable[[int], None]


def open_pool(compiler: CpuCompiler) -> Pool:
    """The pool of this process."""
    return _loaded(compiler.build_text(kernel_text("cpu", "pool.cpp"), "pool.cpp"))


@lru_cache(maxsize=8)
def _loaded(path: Path) -> Pool:
    library = ctypes.CDLL(str(path))
    return Pool(ctypes.cast(library.run, ctypes.c_void_p).value or 0, library.wake)
