"""The libraries that pymm is compared with, on the same operands as its own kernels. A new one is
one more `Baseline` here.
"""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Matrix, TimedCall
from pymm.core.dtypes import BFLOAT16
from pymm.core.problem import Problem
from pymm.measure.apart import Apart
from pymm.measure.cublas import syrk
from pymm.measure.timer import Call, Stopwatch


@dataclass(frozen=True)
class Operands:
    """The matrices of a problem in a device's memory, for a library to compute C = op(A) op(B), or
    with `accumulate` C += op(A) op(B), on a CPU with so many `threads`. A library that offers
    several algorithms has them timed by `stopwatch`.
    """

    problem: Problem
    a: Matrix
    b: Matrix
    c: Matrix
    threads: int = 1
    accumulate: bool = False
    stopwatch: Stopwatch | None = None

    def strided(self) -> list[_Strided]:
        """The stored matrices, for whatever reads one of the two array protocols."""
        p = self.problem
        return [
            _Strided(self.a, *((p.k, p.m) if p.trans_a else (p.m, p.k)), p.numpy_dtype, p.batch),
            _Strided(self.b, *((p.n, p.k) if p.trans_b else (p.k, p.n)), p.numpy_dtype, p.batch),
            _Strided(self.c, p.m, p.n, p.out_dtype, p.batch),
        ]

    def tensors(self, torch: Any) -> list[Any]:
        """The stored matrices as tensors of PyTorch on the same memory."""
        p = self.problem
        return [
            tensor.view(torch.bfloat16) if dtype == BFLOAT16 else tensor
            for tensor, dtype in zip(
                [torch.as_tensor(x, device="cuda") for x in self.strided()],
                (p.numpy_dtype, p.numpy_dtype, p.out_dtype),
                strict=True,
            )
        ]

    def oriented(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        """op(A), op(B) and C as views of the stored matrices."""
        left = a.swapaxes(-1, -2) if self.problem.trans_a else a
        right = b.swapaxes(-1, -2) if self.problem.trans_b else b
        return left, right, c


class _Strided:
    """Memory of another owner, described by the two array protocols. Neither has a name for
    bfloat16: it is described as int16, to be viewed as bfloat16.
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


# How each library multiplies. Every function is given the module that was found, and returns None
# where that does not have the type, the layout or the operation.


def _numpy(numpy: Any, given: Operands) -> Call | None:
    """NumPy's BLAS with the device's threads, timed in a process of its own. None for 16-bit types,
    which no BLAS of NumPy's has.
    """
    problem = given.problem
    if problem.numpy_dtype.itemsize < 4:
        return None
    left, right, out = given.oriented(*(numpy.asarray(x) for x in given.strided()))
    call = numpy_product(problem, left, right, out, given.threads, given.accumulate)
    apart = Apart("pymm.measure.libraries:numpy_product", given.threads)
    return TimedCall(call, timed=lambda: apart.shortest(problem, given.accumulate))


def numpy_product(
    problem: Problem,
    left: np.ndarray,
    right: np.ndarray,
    out: np.ndarray,
    threads: int,
    accumulate: bool,
) -> Call:
    """out = left @ right, or with `accumulate` out += left @ right, by NumPy, whose BLAS has so
    many threads in this process from then on.
    """
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=threads, user_api="blas")  # here: within the call it would be timed
    if not accumulate:
        return functools.partial(np.matmul, left, right, out=out)
    product = np.empty_like(out)  # NumPy has no such operation: its users write two

    def call() -> None:
        np.matmul(left, right, out=product)
        np.add(out, product, out=out)

    return call


def _torch_product(torch: Any, given: Operands) -> Call | None:
    """PyTorch's product, by whichever of its two BLAS libraries it prefers."""
    problem = given.problem
    left, right, out = given.oriented(*given.tensors(torch))
    torch.backends.cuda.matmul.allow_tf32 = problem.type.tf32
    one = problem.batch == 1
    if given.accumulate:
        multiply, operands = (torch.addmm if one else torch.baddbmm), (out, left, right)
    elif problem.out_dtype == problem.numpy_dtype:
        multiply, operands = torch.matmul, (left, right)
    else:
        multiply, operands = (torch.mm if one else torch.bmm), (left, right)
    if problem.out_dtype == problem.numpy_dtype:
        return functools.partial(multiply, *operands, out=out)
    call = functools.partial(multiply, *operands, out_dtype=torch.float32, out=out)
    try:
        call()
    except (TypeError, RuntimeError):  # before PyTorch 2.8
        return None
    return call


def _torch_cublas(torch: Any, given: Operands) -> Call | None:
    call, choose = _torch_product(torch, given), _preferred(torch)
    return _switched(call, "cublas", choose) if call and choose else call


def _torch_cublaslt(torch: Any, given: Operands) -> Call | None:
    """None where PyTorch has no switch between the two."""
    call, choose = _torch_product(torch, given), _preferred(torch)
    return _switched(call, "cublaslt", choose) if call and choose else None


def _switched(call: Call, library: str, choose: Callable[[str], Any]) -> TimedCall:
    """A call with PyTorch switched to a BLAS library before each run. The switch is not timed: it
    takes longer than a small product.
    """
    return TimedCall(call, prepare=functools.partial(choose, library))


def _preferred(torch: Any) -> Callable[[str], Any] | None:
    """PyTorch's switch between its BLAS libraries; None where it has none."""
    return getattr(torch.backends.cuda, "preferred_blas_library", None)


def _cupy_cublas(cupy: Any, given: Operands) -> Call | None:
    problem = given.problem
    if problem.type.tf32 or problem.out_dtype != problem.numpy_dtype or given.accumulate:
        return None
    stored = (cupy.asarray(x).view(problem.numpy_dtype) for x in given.strided())
    left, right, out = given.oriented(*stored)
    return lambda: cupy.matmul(left, right, out=out)


#: Algorithms that cuBLASLt's heuristics are asked for, bytes of scratch memory that they may take,
#: and seconds for choosing among them.
ALGORITHMS, WORKSPACE, CHOOSING = 64, 2**30, 2.0


def _nvmath(nvmath: Any, given: Operands) -> Call | None:
    """cuBLASLt with the fastest of the algorithms that its heuristics offer, planned by
    nvmath-python on tensors of PyTorch. They are timed as everything else is: `Matmul.autotune`
    would copy an array of the size of the cache from the host before each of 640 runs.
    """
    try:
        torch = importlib.import_module("torch")
        advanced = importlib.import_module("nvmath.linalg.advanced")
        cublas = importlib.import_module("nvmath.bindings.cublas")
        cublaslt = importlib.import_module("nvmath.bindings.cublasLt")
    except ImportError:
        return None
    left, right, out = given.oriented(*given.tensors(torch))
    options = {"inplace": True, "memory_limit": WORKSPACE}
    if given.problem.type.tf32:
        options["compute_type"] = cublas.ComputeType.COMPUTE_32F_FAST_TF32
    try:
        beta = float(given.accumulate)
        product = advanced.Matmul(left, right, c=out, beta=beta, options=options)
    except ValueError:  # a layout or a combination of types that nvmath-python does not take
        return None
    try:
        algorithms = product.plan(preferences={"limit": ALGORITHMS})
    except (RuntimeError, cublaslt.cuBLASLtError):  # none computes this product
        product.free()
        return None

    def runnable() -> Iterator[Call]:
        for algorithm in algorithms:
            call = functools.partial(product.execute, algorithm=algorithm)
            try:
                call()  # loads its kernel
            except cublaslt.cuBLASLtError:
                continue
            yield call

    call = given.stopwatch.fastest(runnable(), CHOOSING)
    if call is None:
        product.free()
    else:
        weakref.finalize(call, product.free).atexit = False
    return call


def _syrk(nvmath: Any, given: Operands) -> Call | None:
    """cuBLAS's own routine for one half of a symmetric C."""
    return syrk(given.problem, given.a, given.c)


def _syrk_mirrored(nvmath: Any, given: Operands) -> Call | None:
    """That half, then its mirror image in the other half by two of PyTorch's launches."""
    try:
        torch = importlib.import_module("torch")
    except ImportError:
        return None
    half = _syrk(nvmath, given)
    if half is None:
        return None
    out = given.tensors(torch)[2]
    lower = torch.ones(out.shape, dtype=torch.bool, device="cuda").tril()
    scratch = torch.empty_like(out)

    def call() -> None:
        half()
        torch.where(lower, out, out.mT, out=scratch)
        out.copy_(scratch)

    return call


def _triton(torch: Any, given: Operands) -> Call | None:
    """A kernel written in Triton, the fastest of a handful of configurations."""
    try:
        kernel = importlib.import_module("pymm.measure.triton_gemm")
    except ImportError:
        return None
    return kernel.fastest(
        torch, *given.oriented(*given.tensors(torch)), tf32=given.problem.type.tf32
    )


@dataclass(frozen=True)
class Baseline:
    """A library, or one routine of a library, as something to compare with.

    `name` is its name in CSV files, `title` its makers' name for it, `family` what it is a part of.
    It is measured on devices of `kind`. `providers` are the modules that it may be called through,
    each with the function that makes the call; the first that can be imported is taken. Types and
    layouts that it lacks are known to that function. One that is `symmetric` computes only a
    symmetric C, one that `accumulates` can also add to C. Ratios are formed with the fastest of
    those that are `compared`. `on_request` says why one is measured only if it is asked for.
    `column` is the schema of the CSV of `pymm.bench --classes` from which on its times have a
    column there (a new column is a new schema: `pymm.measure.results`), 0 without one.
    """

    name: str
    title: str
    kind: str
    providers: Mapping[str, Callable[[Any, Operands], Call | None]]
    family: str = ""
    symmetric: bool = False
    accumulates: bool = False
    compared: bool = True
    on_request: str = ""
    column: int = 0

    def call(self, given: Operands) -> Call | None:
        """What computes C; None where the library is not installed or does not have the product."""
        if self.symmetric and not given.problem.symmetric:
            return None
        if given.accumulate and not self.accumulates:
            return None
        for module, make in self.providers.items():
            try:
                library = importlib.import_module(module)
            except ImportError:
                continue
            return make(library, given)
        return None


#: cuBLAS's routine for one half of a symmetric C, and the same followed by a mirror launch.
HALF, MIRRORED = "cublas_syrk", "cublas_syrk_mirror"

#: Everything that pymm is compared with.
BASELINES = {
    baseline.name: baseline
    for baseline in (
        Baseline(
            "cublas",
            "cuBLAS",
            "cuda",
            {"torch": _torch_cublas, "cupy": _cupy_cublas},
            family="cuBLAS",
            accumulates=True,
            column=1,
        ),
        Baseline(
            "cublaslt",
            "cuBLASLt",
            "cuda",
            {"torch": _torch_cublaslt},
            family="cuBLAS",
            accumulates=True,
            column=1,
        ),
        Baseline(
            "nvmath",
            "cuBLASLt, best algorithm",
            "cuda",
            {"nvmath": _nvmath},
            family="cuBLAS",
            accumulates=True,
            column=4,
        ),
        Baseline(
            HALF,
            "cuBLAS syrk, half",
            "cuda",
            {"nvmath": _syrk},
            family="cuBLAS",
            symmetric=True,
            compared=False,
        ),
        Baseline(
            MIRRORED,
            "cuBLAS syrk, mirrored",
            "cuda",
            {"nvmath": _syrk_mirrored},
            family="cuBLAS",
            symmetric=True,
        ),
        Baseline("numpy", "NumPy", "cpu", {"numpy": _numpy}, family="NumPy", accumulates=True),
        Baseline(
            "triton",
            "Triton",
            "cuda",
            {"torch": _triton},
            family="Triton",
            compared=False,
            on_request="it compiles for half a minute and more",
            column=1,
        ),
    )
}

#: Names of those that ratios are formed with, and of these the ones that have every operation.
COMPARED = tuple(name for name, b in BASELINES.items() if b.compared)
GENERAL = tuple(name for name in COMPARED if not BASELINES[name].symmetric)


def general_on(kind: str) -> tuple[str, ...]:
    """Of `GENERAL` those on devices of a kind."""
    return tuple(name for name in GENERAL if BASELINES[name].kind == kind)


#: Names of those that are measured only if asked for.
ON_REQUEST = tuple(name for name, b in BASELINES.items() if b.on_request)

#: Modules through which the libraries of a GPU are called.
PROVIDERS = tuple(
    dict.fromkeys(m for b in BASELINES.values() if b.kind == "cuda" for m in b.providers)
)


def baseline_calls(
    backend: Backend,
    problem: Problem,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    requested: Iterable[str] = (),
    accumulate: bool = False,
) -> dict[str, Call]:
    """By name, calls that compute C = op(A) op(B), or with `accumulate` C += op(A) op(B), with the
    baselines that are installed here and have the product; `requested` names those of `ON_REQUEST`
    that are wanted. Empty in the simulator.

    The calls write C and must be made in the process that owns the memory.
    """
    given = Operands(problem, a, b, c, backend.device.sms, accumulate, Stopwatch(backend))
    found = {
        name: baseline.call(given)
        for name, baseline in BASELINES.items()
        if baseline.kind == backend.device.kind and (not baseline.on_request or name in requested)
    }
    return {name: call for name, call in found.items() if call is not None}
