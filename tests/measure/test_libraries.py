"""The libraries that pymm is compared with: one declaration each, on the same memory."""

import ast
import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pymm.core import reference
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.measure import cublas
from pymm.measure.libraries import (
    BASELINES,
    COMPARED,
    GENERAL,
    HALF,
    MIRRORED,
    ON_REQUEST,
    Operands,
    baseline_calls,
)
from pymm.measure.quick_check import OperandPool
from pymm.measure.verify import compare


def calls_of(backend, problem):
    """A verifier, and the baselines on its matrices."""
    quick = OperandPool(backend).verifier(problem)
    return quick, baseline_calls(backend, problem, *quick.operands)


def judged(quick, call, backend):
    """What a call leaves in C, element by element beside float64."""
    call()
    backend.synchronize()
    a, b = quick.sources()
    whole = reference.product(quick.problem, a, b)
    return quick.result(), whole, reference.error_bound(quick.problem, a, b)


PROBLEMS = [
    Problem(65, 33, 47, "f64"),
    Problem(65, 33, 47, "f32", True, True),
    Problem(65, 65, 47, "f64", True, op="syrk"),
    Problem(65, 65, 47, "f32", False, True, op="syrk"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_numpy(problem, cpu):
    quick, calls = calls_of(cpu, problem)
    assert list(calls) == ["numpy"]
    assert compare(*judged(quick, calls["numpy"], cpu)).right


def judge_what_adds_to_c(backend, problem):
    """C = AB, to which AB is added: twice AB, within the rounding of the three."""
    quick, calls = calls_of(backend, problem)
    more = baseline_calls(backend, problem, *quick.operands, accumulate=True)
    assert more and set(more) <= {"cublas", "cublaslt", "nvmath", "numpy"}
    got, expected, bound = judged(quick, next(iter(calls.values())), backend)
    for count, call in enumerate(more.values(), 2):
        got, _, _ = judged(quick, call, backend)
        assert compare(got, count * expected, 2 * count * bound).right


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_numpy_adds_to_c(problem, cpu):
    judge_what_adds_to_c(cpu, problem)


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_cublas_adds_to_c(problem, cuda):
    judge_what_adds_to_c(cuda, problem)


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_cublas(problem, cuda):
    """All of them right; cublas?syrk in the lower half, and it leaves the other one alone."""
    quick, calls = calls_of(cuda, problem)
    assert "cublas" in calls and (HALF in calls) == problem.symmetric
    for name, call in calls.items():
        if name == HALF:
            cuda.synchronize()
            before = quick.result()
            got, expected, bound = judged(quick, call, cuda)
            lower = np.tril(np.ones((problem.m, problem.n), bool))
            assert (got[:, ~lower] == before[:, ~lower]).all()
            assert compare(got[:, lower], expected[:, lower], bound[:, lower]).right
        else:
            assert compare(*judged(quick, call, cuda)).right, name


def test_no_routine_for_what_is_no_symmetric_product_in_float32_or_float64():
    quick = ((), ())
    assert cublas.syrk(Problem(4, 4, 4), *quick) is None
    assert cublas.syrk(Problem(4, 4, 4, "f16", True, op="syrk"), *quick) is None
    assert cublas.syrk(Problem(4, 4, 4, "f64", True, batch=3, op="syrk"), *quick) is None


class Failed(Exception):
    """What cuBLAS's bindings raise."""


class FakeBindings:
    """nvmath-python's bindings of cuBLAS, on memory of the host. As the reference BLAS: matrices
    are column-major, and of a symmetric C one half is neither read nor written.
    """

    Operation, FillMode = SimpleNamespace(N=0, T=1), SimpleNamespace(LOWER=0, UPPER=1)
    cuBLASError = Failed

    def __init__(self, refuses=False):
        self.refuses = refuses

    def create(self):
        return 7

    def _syrk(self, element, handle, half, operation, n, k, alpha, a, lda, beta, c, ldc):
        if self.refuses or handle != 7:
            raise Failed("EXECUTION_FAILED (13)")

        def view(address, rows, columns, ld):
            count = ld * (columns - 1) + rows
            memory = (element * count).from_address(address)
            return np.lib.stride_tricks.as_strided(
                np.frombuffer(memory, element),
                (rows, columns),
                (ctypes.sizeof(element), ld * ctypes.sizeof(element)),
            )

        left = view(a, n, k, lda) if operation == self.Operation.N else view(a, k, n, lda).T
        out, (alpha, beta) = view(c, n, n, ldc), (view(x, 1, 1, 1)[0, 0] for x in (alpha, beta))
        keep = np.triu if half == self.FillMode.UPPER else np.tril
        written = keep(np.ones((n, n), bool))
        out[written] = (alpha * (left @ left.T) + (beta * out if beta else 0))[written]

    def ssyrk(self, *arguments):
        self._syrk(ctypes.c_float, *arguments)

    def dsyrk(self, *arguments):
        self._syrk(ctypes.c_double, *arguments)


@pytest.fixture
def bindings(monkeypatch):
    """A function that puts such bindings in the place of nvmath-python's."""
    monkeypatch.setitem(sys.modules, "nvmath", SimpleNamespace())

    def put(module):
        cublas._bindings.cache_clear()
        monkeypatch.setitem(sys.modules, "nvmath.bindings.cublas", module)

    yield put
    cublas._bindings.cache_clear()


SYMMETRIC = [
    Problem(n, n, k, dtype, trans, not trans, op="syrk")
    for dtype in ("f32", "f64")
    for trans in (False, True)
    for n, k in ((1, 1), (5, 3), (17, 64), (65, 31))
]


@pytest.mark.parametrize("problem", SYMMETRIC, ids=lambda problem: problem.slug)
def test_one_half_by_cublas(problem, cpu, bindings):
    """C's lower half is the product, and the other half is left alone."""
    bindings(FakeBindings())
    quick = OperandPool(cpu).verifier(problem)
    given = Operands(problem, *quick.operands)
    before = quick.result().copy()
    got, expected, bound = judged(quick, BASELINES[HALF].call(given), cpu)
    lower = np.tril(np.ones((problem.m, problem.n), bool))
    np.testing.assert_array_equal(got[..., ~lower], before[..., ~lower])  # whatever it was
    assert compare(got[..., lower], expected[..., lower], bound[..., lower]).right


def test_what_cublas_refuses_is_a_launch_that_failed(cpu, bindings):
    bindings(FakeBindings(refuses=True))
    quick = OperandPool(cpu).verifier(SYMMETRIC[0])
    call = BASELINES[HALF].call(Operands(quick.problem, *quick.operands))
    with pytest.raises(LaunchFailed, match=rf"syrk on {quick.problem.slug}: EXECUTION_FAILED"):
        call()


def test_no_half_without_the_bindings_or_without_cublas(cpu, bindings):
    class NoCublas(FakeBindings):
        def create(self):
            raise RuntimeError("libcublas.so.13 not found")

    quick = OperandPool(cpu).verifier(SYMMETRIC[0])
    given = Operands(quick.problem, *quick.operands)
    for module in (None, NoCublas()):
        bindings(module)
        assert BASELINES[HALF].call(given) is None
        assert BASELINES[MIRRORED].call(given) is None


PACKAGE = Path(__file__).resolve().parents[2] / "pymm"

#: Where a library is named for another reason: its arrays are arguments of a call, it is required,
#: it multiplies in the processes of a distributed product.
OTHER_REASONS = {
    "distributed/__main__.py",
    "distributed/local_products.py",
    "doctor.py",
    "runtime/arrays.py",
    "runtime/bind.py",
    "runtime/explain.py",
    "runtime/launch_cache.py",
}


def test_a_new_baseline_is_one_declaration():
    """No other module spells the name, the title or a column of one."""
    names = set(BASELINES) | {baseline.title for baseline in BASELINES.values()}
    names |= {f"{name}_{what}" for name in BASELINES for what in ("us", "ratio")}
    found = set()
    for path in PACKAGE.rglob("*.py"):
        strings = (
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        )
        if names & set(strings):
            found.add(path.relative_to(PACKAGE).as_posix())
    assert found - OTHER_REASONS == {"measure/libraries.py"}


def test_baselines_by_what_they_are_for():
    assert COMPARED == ("cublas", "cublaslt", "nvmath", "cublas_syrk_mirror", "numpy")
    assert GENERAL == ("cublas", "cublaslt", "nvmath", "numpy") and ON_REQUEST == ("triton",)


class FakeTorch:
    """A PyTorch without a switch between BLAS libraries."""

    float32, bfloat16 = "float32", "bfloat16"

    class backends:
        class cuda:
            class matmul:
                allow_tf32 = None

    @staticmethod
    def as_tensor(array, device):
        return np.asarray(array)

    @staticmethod
    def matmul(left, right, out):
        return np.matmul(left, right, out=out)


@pytest.mark.parametrize("dtype, tf32", [("f32", False), ("tf32", True), ("tf32x3", False)])
def test_which_mode_a_library_is_compared_in(dtype, tf32, cpu, monkeypatch):
    """Emulated float32 is compared with plain float32, tf32 with the library's own."""
    quick = OperandPool(cpu).verifier(Problem(5, 4, 3))
    monkeypatch.setitem(sys.modules, "torch", FakeTorch)
    given = Operands(Problem(5, 4, 3, dtype), *quick.operands)
    BASELINES["cublas"].call(given)()
    assert FakeTorch.backends.cuda.matmul.allow_tf32 is tf32
    assert BASELINES["cublaslt"].call(given) is None, "this PyTorch has no switch"
    assert BASELINES[HALF].call(given) is None, "the product is not symmetric"
    expected = reference.product(quick.problem, *quick.sources())
    assert np.allclose(quick.result(), expected, atol=1e-5)


class Refused(Exception):
    """What cuBLASLt raises."""


class FakeMatmul:
    """nvmath-python's plan, of which algorithm 1 cannot run."""

    made = []

    def __init__(self, left, right, c, beta, options):
        if options["memory_limit"] < 1 or not options["inplace"]:
            raise AssertionError("C is not the result")
        if left.shape == (9, 9):
            raise ValueError("no such layout")
        self.left, self.right, self.c, self.beta = left, right, c, beta
        self.options, self.freed = options, False
        FakeMatmul.made.append(self)

    def plan(self, preferences):
        if self.left.shape == (8, 8):
            raise RuntimeError("none is suitable")
        return [f"algorithm {number}" for number in range(min(4, preferences["limit"]))]

    def execute(self, algorithm):
        if algorithm == "algorithm 1":
            raise Refused(algorithm)
        added = self.beta * self.c if self.beta else 0  # as BLAS: beta = 0 does not read C
        self.c[...] = self.left @ self.right + added

    def free(self):
        self.freed = True


class Last:
    """A stopwatch that finds the last call fastest, or none."""

    def __init__(self, sound=True):
        self.sound = sound

    def fastest(self, calls, seconds):
        found = list(calls)
        self.calls = [call.keywords["algorithm"] for call in found]
        return found[-1] if self.sound else None


@pytest.fixture
def nvmath(monkeypatch):
    """PyTorch and nvmath-python on NumPy's arrays."""
    compute = SimpleNamespace(COMPUTE_32F_FAST_TF32="tf32")
    modules = {
        "torch": FakeTorch,
        "nvmath": SimpleNamespace(),
        "nvmath.linalg.advanced": SimpleNamespace(Matmul=FakeMatmul),
        "nvmath.bindings.cublas": SimpleNamespace(ComputeType=compute),
        "nvmath.bindings.cublasLt": SimpleNamespace(cuBLASLtError=Refused),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(FakeMatmul, "made", [])


def planned(problem, cpu, stopwatch=None, accumulate=False):
    quick = OperandPool(cpu).verifier(problem)
    given = Operands(problem, *quick.operands, 1, accumulate, stopwatch or Last())
    return quick, BASELINES["nvmath"].call(given)


@pytest.mark.parametrize("problem", [Problem(5, 4, 3), Problem(5, 4, 3, "tf32", True, True, 7)])
def test_the_fastest_algorithm_of_cublaslt_is_kept(problem, cpu, nvmath):
    stopwatch = Last()
    quick, call = planned(problem, cpu, stopwatch)
    assert stopwatch.calls == ["algorithm 0", "algorithm 2", "algorithm 3"], "what runs"
    assert call.keywords["algorithm"] == "algorithm 3"
    got, expected, bound = judged(quick, call, cpu)
    assert np.allclose(got, expected, atol=1e-5)
    (product,) = FakeMatmul.made
    assert product.options.get("compute_type") == ("tf32" if problem.type.tf32 else None)
    assert not product.freed
    del call
    assert product.freed, "with the call"


def test_cublaslt_adds_to_c_if_that_is_timed(cpu, nvmath):
    problem = Problem(5, 4, 3)
    quick = OperandPool(cpu).verifier(problem)
    once, more = (
        BASELINES["nvmath"].call(Operands(problem, *quick.operands, 1, adds, Last()))
        for adds in (False, True)
    )
    expected = judged(quick, once, cpu)[1]
    assert np.allclose(judged(quick, more, cpu)[0], 2 * expected, atol=1e-5)


@pytest.mark.parametrize("extent, sound", [(9, True), (8, True), (5, False)])
def test_nothing_where_cublaslt_has_no_algorithm(extent, sound, cpu, nvmath):
    """No such layout, none suitable, no sound sample: what was planned is freed."""
    _, call = planned(Problem(extent, extent, extent), cpu, Last(sound))
    assert call is None
    assert all(product.freed for product in FakeMatmul.made)


def test_nvmath_needs_pytorch(cpu, nvmath, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert planned(Problem(5, 4, 3), cpu)[1] is None
