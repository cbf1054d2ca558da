"""The libraries that pymm is measured against, on the very operands that its own kernels get."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Matrix
from pymm.core.problem import DTYPES, Problem
from pymm.measure.cublas import syrk

BFLOAT16 = DTYPES["bf16"]

Call = Callable[[], Any]

#: Names of the opponents of a symmetric product: one half of C, and that half with its image.
HALF, WHOLE = "cublas_syrk", "cublas_syrk_mirror"


def opponents(
    backend: Backend, problem: Problem, a: Matrix, b: Matrix, c: Matrix, triton: bool = False
) -> dict[str, Call]:
    """By name, calls that compute C = op(A) op(B) with the libraries importable here.

    One with an attribute `prepare` wants that called before it: PyTorch's switch of back ends takes
    longer than a small product. On a CPU NumPy's BLAS, which is held to the device's threads in
    this process from then on. On a GPU cuBLAS, through PyTorch (once with each of its two BLAS back
    ends), else CuPy. Empty where no library is, and in the simulator. With `triton` also a kernel
    written in Triton, if that is here, its configuration the fastest of a handful. The calls write
    C and must be made in the process that owns the memory. Beside a symmetric product they are the
    whole product, cuBLAS's own routine for one half of it (`HALF`), and that one and a mirror made
    of two of PyTorch's launches (`WHOLE`).
    """
    if backend.device.kernel_backend == "cpu":
        return {"numpy": _numpy(problem, a, b, c, backend.device.sms)}
    if backend.device.is_gpu:
        for module, calls in (("torch", _torch), ("cupy", _cupy)):
            try:
                library = importlib.import_module(module)
            except ImportError:
                continue
            found = calls(library, problem, a, b, c)
            if module == "torch" and (half := syrk(problem, a, c)):
                found |= {HALF: half, WHOLE: _with_mirror(library, problem, a, b, c, half)}
            if triton and module == "torch":
                found |= _triton(library, problem, a, b, c)
            return found
    return {}


class Prepared:
    """A call, and what has to be done before it and is no part of it."""

    def __init__(self, prepare: Call, call: Call) -> None:
        self.prepare, self._call = prepare, call

    def __call__(self) -> Any:
        return self._call()


class _Strided:
    """Memory that somebody else owns, described by the two array protocols. Neither has a name for
    bfloat16: it goes as int16, to be viewed as what it is.
    """

    def __init__(
        self, matrix: Matrix, rows: int, columns: int, dtype: np.dtype, batch: int
    ) -> None:
        shape, strides = (rows, columns), (matrix.ld * dtype.itemsize, dtype.itemsize)
        if batch != 1:
            shape = (batch, *shape)
            strides = (matrix.batch_stride * dtype.itemsize, *strides)
        self.owner = matrix.owner
        typestr = "<i2" if dtype == BFLOAT16 else dtype.str
        description = dict(
            shape=shape, strides=strides, typestr=typestr, data=(matrix.address, False), version=3
        )
        self.__array_interface__ = description
        self.__cuda_array_interface__ = description


def _operands(problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> list[_Strided]:
    m, n, k = problem.m, problem.n, problem.k
    real, batch = problem.numpy_dtype, problem.batch
    return [
        _Strided(a, *((k, m) if problem.trans_a else (m, k)), real, batch),
        _Strided(b, *((n, k) if problem.trans_b else (k, n)), real, batch),
        _Strided(c, m, n, problem.out_dtype, batch),
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
    call = functools.partial(np.matmul, left, right, out=out)
    call.library = "numpy"
    return call


def lent_to(torch: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> list[Any]:
    """The stored matrices as tensors of PyTorch on the same memory."""
    dtypes = (problem.numpy_dtype, problem.numpy_dtype, problem.out_dtype)
    tensors = [torch.as_tensor(x, device="cuda") for x in _operands(problem, a, b, c)]
    return [
        tensor.view(torch.bfloat16) if dtype == BFLOAT16 else tensor
        for tensor, dtype in zip(tensors, dtypes, strict=True)
    ]


def _torch(torch: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> dict[str, Call]:
    """tf32 only for `tf32`: the opponent of `tf32x3` and `f16x3` is the product in float32."""
    left, right, out = lent_to(torch, problem, a, b, c)
    left, right = _oriented(problem, left, right)
    torch.backends.cuda.matmul.allow_tf32 = problem.dtype == "tf32"
    multiply = functools.partial(torch.matmul, left, right, out=out)
    if problem.out_dtype != problem.numpy_dtype:
        single = torch.mm if problem.batch == 1 else torch.bmm
        multiply = functools.partial(single, left, right, out_dtype=torch.float32, out=out)
        try:
            multiply()
        except (TypeError, RuntimeError):  # before PyTorch 2.8
            return {}
    choose = getattr(torch.backends.cuda, "preferred_blas_library", None)

    if choose is None:
        return {"cublas": multiply}
    return {
        library: Prepared(functools.partial(choose, library), multiply)
        for library in ("cublas", "cublaslt")
    }


def _with_mirror(torch: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix, half: Call) -> Call:
    """One half of C by `half`, then its image in the other."""
    out = lent_to(torch, problem, a, b, c)[2]
    lower = torch.ones(out.shape, dtype=torch.bool, device="cuda").tril()
    room = torch.empty_like(out)

    def call() -> None:
        half()
        torch.where(lower, out, out.mT, out=room)
        out.copy_(room)

    return call


def _cupy(cupy: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> dict[str, Call]:
    if problem.dtype == "tf32" or problem.out_dtype != problem.numpy_dtype:
        return {}
    given = (cupy.asarray(x) for x in _operands(problem, a, b, c))
    left, right, out = (x.view(problem.numpy_dtype) for x in given)
    left, right = _oriented(problem, left, right)
    return {"cublas": lambda: cupy.matmul(left, right, out=out)}


def _triton(torch: Any, problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> dict[str, Call]:
    try:
        kernel = importlib.import_module("pymm.measure.triton_gemm")
    except ImportError:
        return {}
    left, right, out = lent_to(torch, problem, a, b, c)
    left, right = _oriented(problem, left, right)
    call = kernel.quickest(torch, left, right, out, tf32=problem.dtype == "tf32")
    return {} if call is None else {"triton": call}
