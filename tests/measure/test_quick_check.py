"""Operands shared by many products: the right numbers in the right places, and no wrong result
passes the quick check.
"""

import ctypes

import numpy as np
import pytest
from recorded import NumpyBackend, view

from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import find_kernel
from pymm.measure import quick_check as arenas
from pymm.measure.quick_check import OperandPool
from pymm.measure.verify import POISON
from pymm.measure.workbench import Workbench

CONFIG = find_kernel("reordered", "cpu").default_config


#: Types that one kernel computes alone ("emulated": tests/kernels/test_emulated.py).
ALONE = [name for name, row in DTYPES.items() if not row.checked]


class Machine(NumpyBackend):
    """NumPy with copies from one place to another."""

    def copy_within(self, source, source_pitch, target, target_pitch, shape, stream=None):
        ctypes.memmove(target, source, shape[0] * shape[1])


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """A period that even small matrices pass."""
    monkeypatch.setattr(arenas, "PERIOD", 97)


def quick(problem, spoil=None, accumulate=False):
    machine = Machine(spoil)
    verifier = OperandPool(machine).verifier(problem, accumulate)
    return Workbench(machine, problem, 0, verifier, accumulate)


@pytest.mark.parametrize("dtype", ALONE)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 129, 7), (31, 33, 64)])
def test_right_kernels_pass(dtype, layout, extents):
    problem = Problem(*extents, dtype, layout[0] == "T", layout[1] == "T")
    trial = quick(problem).verify(CONFIG)
    assert trial.outcome == "ok", trial.detail
    assert 0 <= trial.error <= 1


@pytest.mark.parametrize("dtype", ALONE)
def test_right_kernels_pass_when_they_add_to_c(dtype):
    problem = Problem(31, 33, 64, dtype)
    trial = quick(problem, accumulate=True).verify(CONFIG)
    assert trial.outcome == "ok", trial.detail
    assert 0 <= trial.error <= 1


@pytest.mark.parametrize("forgets", [True, False])
def test_what_is_wrong_only_when_it_adds_to_c_is_found(forgets):
    """One that forgets beta, and one that stores NaN in one element: found only where that is what
    is tuned.
    """

    def spoil(c, problem, matrix, beta):
        if beta and forgets:
            c -= c / 2
        elif beta:
            c[0, 0, 0] = np.nan

    problem = Problem(31, 33, 64)
    assert quick(problem, spoil).verify(CONFIG).outcome == "ok"
    trial = quick(problem, spoil, accumulate=True).verify(CONFIG)
    assert trial.outcome == "wrong" and trial.detail.startswith("beta = 1: ")


@pytest.mark.parametrize("fast", [True, False])
def test_what_is_timed_adds_to_c(fast):
    bound = []
    bench = quick(Problem(31, 33, 64), lambda c, p, m, beta: bound.append(beta), accumulate=True)
    if not fast:
        bench = Workbench(bench.backend, bench.problem, accumulate=True)
    bench.compare([CONFIG], rounds=7)
    assert bound.count(1.0) >= 7 and bench.calls == {}


def test_a_right_stack_passes():
    assert quick(Problem(5, 6, 7, batch=3)).verify(CONFIG).outcome == "ok"


def test_what_the_host_believes_is_what_the_device_has():
    """Whole matrices, rows and columns of them, after the buffer has grown."""
    machine = Machine()
    pool = OperandPool(machine)
    assert pool.verifier(Problem(3, 4, 5)).operands
    problem = Problem(23, 29, 31, batch=2)
    matrix = pool.verifier(problem).operands[0]
    buffer, shape = pool.buffer("normal", 0, problem), stored_shapes(problem)[0]
    values = buffer.values(shape)
    assert (view(matrix, problem.numpy_dtype, 23, 31, 2) == values).all()
    rows, columns = np.array([0, 22]), np.array([1, 30])
    assert (buffer.values(shape, rows) == values[:, rows]).all()
    assert (buffer.values(shape, None, columns) == values[:, :, columns]).all()


def last_element(c, problem, matrix, beta):
    c[-1, -1, -1] += 1


def somewhere(c, problem, matrix, beta):
    c[0, problem.m // 2, problem.n // 2] *= 2


def not_written(c, problem, matrix, beta):
    c[0, 3] = np.nan


def slightly(c, problem, matrix, beta):
    c *= 1 + 2e-3


def behind(c, problem, matrix, beta):
    view(matrix, problem.numpy_dtype, problem.m + 1, problem.n)[0, problem.m, 0] = 1


def before(c, problem, matrix, beta):
    size = problem.numpy_dtype.itemsize
    view(type(matrix)(matrix.address - size, 1), problem.numpy_dtype, 1, 1)[...] = 1


@pytest.mark.parametrize("spoil", [last_element, somewhere, not_written, slightly, behind, before])
def test_wrong_results_are_found(spoil):
    trial = quick(Problem(41, 43, 40), spoil).verify(CONFIG)
    assert trial.outcome == "wrong", spoil.__name__
    assert trial.detail


def test_one_wrong_element_of_a_stack_is_found():
    def spoil(c, problem, matrix, beta):
        c[2, 1, 1] += 1

    assert quick(Problem(5, 6, 7, batch=3), spoil).verify(CONFIG).detail.startswith("C[2, 1, 1] ")


@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_the_first_wrong_element_is_named(layout):
    """With what it is and what it ought to be, of a product that is not small."""
    found = []

    def spoil(c, problem, matrix, beta):
        found.append((float(c[0, 7, 5]), float(c[0, 7, 5] + 3)))
        c[0, 7, 5] += 3
        c[0, 7, 6] += 1
        c[0, 9, 0] += 1

    problem = Problem(40, 41, 30, "f32", layout[0] == "T", layout[1] == "T")
    detail = quick(problem, spoil).verify(CONFIG).detail
    right, wrong = found[0]
    assert detail.startswith(f"C[7, 5] is {wrong!r} instead of {right!r}")


def test_lost_digits_are_seen_although_integers_survive():
    """Operands cut to tf32 where float32 is asked for."""

    def spoil(c, problem, matrix, beta):
        c[...] = np.round(c, 3)

    bench = quick(Problem(40, 40, 20), spoil)
    assert bench.verify(CONFIG).outcome == "wrong"
    bench = quick(Problem(40, 40, 20))
    bench.compare([CONFIG], rounds=5)
    assert 0 < bench.deviations[CONFIG.slug] < 1e-6


def test_what_goes_wrong_now_and_then_is_looked_at_twice():
    """Right when it is checked first, wrong after it was timed."""
    runs = []

    def spoil(c, problem, matrix, beta):
        runs.append(problem)
        if len(runs) > 2:
            c[0, 0, 0] += 1

    (trial,) = quick(Problem(40, 40, 20), spoil).compare([CONFIG], rounds=5)
    assert trial.outcome == "wrong" and np.isnan(trial.seconds)


def test_empty_problems_are_refused():
    with pytest.raises(ValueError, match="no element"):
        OperandPool(Machine()).verifier(Problem(0, 4, 4))


def poisoned(upper):
    """What leaves one half of C as it was: full of poison."""

    def spoil(c, problem, matrix, beta):
        poison = np.full(c.itemsize, POISON, np.uint8).view(c.dtype)[0]
        line = np.arange(problem.n)
        other = np.less.outer(line, line) if upper else np.greater.outer(line, line)
        c[:, other] = poison

    return spoil


@pytest.mark.parametrize("layout", ["NT", "TN"])
def test_symmetric_products(layout):
    """A is B; what is not exactly symmetric, or writes the half it must not, is wrong."""
    shape = (23, 23, 31, "f32", layout[0] == "T", layout[1] == "T")
    full = Problem(*shape, op="syrk")
    bench = quick(full)
    assert bench.a.address == bench.b.address
    assert bench.verify(CONFIG).outcome == "ok"

    def skew(c, problem, matrix, beta):
        c[0, 3, 9] = np.nextafter(c[0, 3, 9], np.float32(np.inf))

    assert "C[3, 9] differs from C[9, 3]" in quick(full, skew).verify(CONFIG).detail
    for op, upper in (("syrk_lower", True), ("syrk_upper", False)):
        half = Problem(*shape, op=op)
        trial = quick(half, poisoned(upper)).verify(CONFIG)
        assert trial.outcome == "ok", trial.detail
        assert "was written" in quick(half, poisoned(not upper)).verify(CONFIG).detail


def test_elements_of_a_few_matrices_of_a_large_batch_are_compared(monkeypatch):
    """Reading all of a batch of thousands would take seconds; on integers every element counts."""
    monkeypatch.setattr(arenas, "MATRICES", 5)
    bench = quick(Problem(7, 9, 5, "f64", True, False, 40))
    assert bench.verify(CONFIG).outcome == "ok"
    matrices, rows, columns = bench.quick._crossings
    assert {0, 39} < set(matrices) and len(matrices) <= 5
    assert bench.quick._seen().shape == (len(matrices), len(rows), len(columns))
    assert bench.quick.deviation() < 1e-15


@pytest.mark.parametrize("matrix", [0, 17, 39])
def test_one_wrong_matrix_of_a_batch_is_found(matrix):
    def spoil(c, problem, number, beta):
        c[matrix, 3, 2] += 1

    trial = quick(Problem(7, 9, 5, "f32", batch=40), spoil).verify(CONFIG)
    assert trial.outcome == "wrong" and f"C[{matrix}, 3, 2]" in trial.detail
