"""The libraries that pymm is compared with: one declaration each, on the same memory."""

import ast
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pymm.core import reference
from pymm.core.problem import Problem
from pymm.measure.cublas import syrk
from pymm.measure.libraries import (
    BASELINES,
    COMPARED,
    GENERAL,
    HALF,
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
    assert syrk(Problem(4, 4, 4), *quick) is None
    assert syrk(Problem(4, 4, 4, "f16", True, op="syrk"), *quick) is None
    assert syrk(Problem(4, 4, 4, "f64", True, batch=3, op="syrk"), *quick) is None


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
