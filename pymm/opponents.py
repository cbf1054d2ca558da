"""The libraries that pymm is measured against, on the very operands that its own kernels get."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Matrix
from pymm.problem import Problem

Call = Callable[[], Any]


def opponents(
    backend: Backend, problem: Problem, a: Matrix, b: Matrix, c: Matrix
) -> dict[str, Call]:
    """By name, calls that compute C = op(A) op(B) with the libraries importable here.

    On a CPU NumPy's BLAS, which is held to the device's threads in this process from then on. On
    a GPU cuBLAS, through PyTorch (once with each of its two BLAS back ends), else CuPy. Empty
    where no library is, and in the simulator. The calls write C and must be made in the process
    that owns the memory.
    """
    if backend.device.kind == "cpu":
        return {"numpy": _numpy(problem, a, b, c, backend.device.sms)}
    if backend.device.kind == "cuda":
        for module, calls in (("torch", _torch), ("cupy", _cupy)):
            try:
                library = importlib.import_module(module)
            except ImportError:
                continue
            return calls(library, problem, a, b, c)
    return {}


class _Strided:
    """Memory that somebody else owns, described by the two array protocols. Neither has a name for
    bfloat16: it goes as int16, to be viewed as what it is.
    """

    def __init__(self, matrix: Matrix, rows: int, columns: int, problem: Problem) -> None:
        dtype = problem.numpy_dtype
        shape, strides = (rows, columns), (matrix.ld * dtype.itemsize, dtype.itemsize)
        if problem.batch != 1:
            shape = (problem.batch, *shape)
            strides = (matrix.batch_stride * dtype.itemsize, *strides)
        self.owner = matrix.owner
        typestr = "<i2" if problem.dtype == "bf16" else dtype.str
        description = dict(
            shape=shape, strides=strides, typestr=typestr, data=(matrix.address, False), version=3
        )
        self.__array_interface__ = description
        self.__cuda_array_interface__ = description


def _operands(problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> list[_Strided]:
    m, n, k = problem.m, problem.n, problem.k
    return [
        _Strided(a, *((k, m) if problem.trans_a else (m, k)), problem),
        _Strided(b, *((n, k) if problem.trans_b else (k, n)), problem),
        _Strided(c, m, n, problem),
    ]


def _oriented(problem: Problem, a: Any, b: Any) -> tuple[Any, Any]:
    """op(A) and op(B) as views of the stored matrices."""
    if problem.trans_a:
        a = a.swapaxes(-1, -2)
    if problem.trans_b:
        b = b.swapaxes(-1, -2)
    return a, b


def _numpy(problem: Problem, a: Matrix, b: Matrix, c: Matrix, threads: int) -> Call:
    from threadpoolctl import threadpool_limits

    left, right, out = (np.asarray(x) for x in _operands(problem, a, b, c))
    left, right = _oriented(problem, left, right)
    threadpool_limits(limits=threads, user_api="blas")  # once: within the call it would be timed
    return lambda: np.matmul(left, right, out=out)


def _torch(torch: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> dict[str, Call]:
    torch.backends.cuda.matmul.allow_tf32 = False
    given = [torch.as_tensor(x, device="cuda") for x in _operands(problem, a, b, c)]
    if problem.dtype == "bf16":
        given = [x.view(torch.bfloat16) for x in given]
    left, right, out = given
    left, right = _oriented(problem, left, right)
    choose = getattr(torch.backends.cuda, "preferred_blas_library", None)
    if choose is None:
        return {"cublas": lambda: torch.matmul(left, right, out=out)}

    def through(library: str) -> Call:
        def call() -> None:
            choose(library)
            torch.matmul(left, right, out=out)

        return call

    return {"cublas": through("cublas"), "cublaslt": through("cublaslt")}


def _cupy(cupy: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> dict[str, Call]:
    given = (cupy.asarray(x) for x in _operands(problem, a, b, c))
    left, right, out = (x.view(problem.numpy_dtype) for x in given)
    left, right = _oriented(problem, left, right)
    return {"cublas": lambda: cupy.matmul(left, right, out=out)}
