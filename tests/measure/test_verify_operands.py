"""A kernel that is right but writes where it must not is found, and no other pays for it."""

import ctypes

import numpy as np
import pytest
from recorded import NumpyBackend, view

from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure import quick_check as arenas
from pymm.measure import verify
from pymm.measure.quick_check import OperandPool, PeriodicBuffer
from pymm.measure.verify import GUARD_ROWS, GuardedMatrix, guard_bytes
from pymm.measure.workbench import Workbench

KERNEL = find_kernel("reordered", "cpu")
FAULTY = KERNEL.config({"MB": 16, "NB": 64, "KB": 16})
RIGHT = KERNEL.config({"MB": 32, "NB": 64, "KB": 16})
PROBLEM = Problem(41, 43, 40)
REAL = PROBLEM.numpy_dtype


class Machine(NumpyBackend):
    """NumPy, `spoil(backend, problem, c)` after each launch of the faulty configuration: a launch
    is the first, second, ... of it.
    """

    def __init__(self, spoil, kind="simulator"):
        super().__init__(kind=kind)
        self.fault, self.launches = spoil, 0

    def load(self, source):
        executable = super().load(source)
        bind = executable.bind

        def bound(problem, alpha, a, b, beta, c, stream=None):
            call = bind(problem, alpha, a, b, beta, c, stream)

            def launch(timed=False):
                call()
                if source.config == FAULTY:
                    self.launches += 1
                    self.operands = (a, b)
                    self.fault(self, problem, c)

            launch.config = source.config
            return launch

        executable.bind = bound
        return executable

    def copy_within(self, source, source_pitch, target, target_pitch, shape, stream=None):
        ctypes.memmove(target, source, shape[0] * shape[1])


@pytest.fixture(params=["thorough", "lines", "quick"])
def bench_of(request, monkeypatch):
    """A workbench on a machine, with each of the ways of checking."""
    monkeypatch.setattr(arenas, "PERIOD", 97)
    if request.param == "lines":
        monkeypatch.setattr(verify, "FULL_CHECK_FLOPS", -1)

    def bench(machine, problem=PROBLEM):
        quick = OperandPool(machine).verifier(problem) if request.param == "quick" else None
        return Workbench(machine, problem, quick=quick)

    return bench


def moved(matrix, elements, size):
    return type(matrix)(matrix.address + elements * size, 1, owner=matrix.owner)


def into(which, offset=0):
    """Writes one element of A or B, or beside it."""

    def spoil(machine, problem, c):
        there = moved(machine.operands[which], offset, REAL.itemsize)
        view(there, REAL, 1, 1)[...] = 3

    return spoil


def rows_beyond(rows):
    """Writes so many rows behind C."""

    def spoil(machine, problem, c):
        there = moved(c, (problem.m + rows) * c.ld, REAL.itemsize)
        view(there, REAL, 1, 1)[...] = 3

    return spoil


def late(after):
    """Right for so many launches, wrong from then on."""

    def spoil(machine, problem, c):
        if machine.launches > after:
            view(c, REAL, problem.m, problem.n)[0, 3, 4] += 1

    return spoil


STRAYS = {
    "into A": into(0),
    "into B": into(1),
    "before A": into(0, -1),
    "far before B": into(1, -GUARD_ROWS * 43),
    "far behind A": into(0, GUARD_ROWS * 40),
    "a tile behind C": rows_beyond(GUARD_ROWS - 1),
}


@pytest.mark.parametrize("fault", STRAYS)
def test_strays_are_found_and_nobody_else_pays(bench_of, fault):
    bench = bench_of(Machine(STRAYS[fault]))
    assert bench.verify(RIGHT).outcome == "ok"
    trial = bench.measure(FAULTY)
    assert trial.outcome == "wrong" and trial.detail.startswith("writes "), trial
    right = bench.measure(RIGHT)
    assert right.outcome == "ok" and right.seconds > 0, right.detail
    trials = bench.compare([FAULTY, RIGHT], rounds=5)
    assert [trial.outcome for trial in trials] == ["wrong", "ok"], trials


def test_a_tile_behind_wide_rows_is_found(bench_of):
    """64 KiB are eight of these rows."""
    bench = bench_of(Machine(rows_beyond(200)), Problem(16, 2000, 8))
    assert bench.verify(FAULTY).outcome == "wrong"
    assert bench.measure(RIGHT).outcome == "ok"


def test_padding_of_operands_is_looked_at():
    """Between the rows of A and B of the small hard problem."""
    hard = verify.hard_problem(FAULTY, PROBLEM)
    for which, columns in ((0, hard.k), (1, hard.n)):
        spoil = into(which, columns)
        machine = Machine(lambda m, p, c, s=spoil, h=hard: s(m, p, c) if p == h else None)
        trial = Workbench(machine, PROBLEM).verify(FAULTY)
        assert trial.outcome == "wrong" and "between its rows" in trial.detail
        assert trial.detail.endswith(f"(operand {'AB'[which]})")


@pytest.mark.parametrize("after", [3, 6])
def test_what_is_right_at_first_is_found_after_timing(bench_of, after):
    """In the search as in the comparison, with either kind of check."""
    machine = Machine(late(after))
    trial = bench_of(machine).measure(FAULTY)
    assert trial.outcome == "wrong" and np.isnan(trial.seconds) and not trial.times
    machine.launches = 0
    trials = bench_of(machine).compare([FAULTY, RIGHT], rounds=5)
    assert [trial.outcome for trial in trials] == ["wrong", "ok"]


def test_operands_damaged_by_what_is_too_slow(bench_of):
    """One that is hopeless is not checked again, but its operands are."""

    def spoil(machine, problem, c):
        if machine.launches > 2:
            into(0)(machine, problem, c)

    machine = Machine(spoil)
    machine.seconds = lambda config: 5.0 if config == FAULTY else 1e-3
    bench = bench_of(machine)
    assert bench.measure(FAULTY, best_seconds=1e-3).outcome == "wrong"
    assert bench.measure(RIGHT).outcome == "ok"


@pytest.mark.parametrize("wrong", [False, True])
def test_counters_that_are_left_behind(bench_of, wrong):
    """Scratch memory is fresh for every configuration, whether the one before was found out."""

    def spoil(machine, problem, c):
        machine.counter = 1
        if wrong:
            view(c, REAL, 1, 1)[...] = np.nan

    machine = Machine(spoil)
    bench = bench_of(machine)
    for _ in range(2):
        assert bench.verify(FAULTY).outcome == "wrong"
        assert bench.measure(RIGHT).outcome == "ok"


def test_operands_are_fresh_after_a_launch_that_failed(bench_of):
    def spoil(machine, problem, c):
        for which in (0, 1):
            into(which)(machine, problem, c)
        raise LaunchFailed("broken off in the middle")

    bench = bench_of(Machine(spoil))
    assert bench.measure(FAULTY).outcome == "launch_failed" and not bench.lost
    assert bench.measure(RIGHT).outcome == "ok"


def test_on_a_cpu_a_stray_costs_the_process(bench_of):
    """Its memory is the tuner's own: what else was hit, nobody knows."""
    bench = bench_of(Machine(into(0), kind="cpu"))
    assert bench.measure(FAULTY).outcome == "wrong" and bench.lost
    bench = bench_of(Machine(late(0), kind="cpu"))
    assert bench.measure(FAULTY).outcome == "wrong" and not bench.lost


def test_operands_of_other_problems_are_made_anew(monkeypatch):
    """What a kernel hit far away is put right before the next problem begins."""
    monkeypatch.setattr(arenas, "PERIOD", 97)
    machine = Machine(lambda *_: None)
    pool = OperandPool(machine)
    large = pool.verifier(Problem(80, 80, 80)).operands[0]
    pool.verifier(PROBLEM)
    view(moved(large, 6399, 4), REAL, 1, 1)[...] = 7
    bench = Workbench(machine, Problem(80, 80, 80), quick=pool.verifier(Problem(80, 80, 80)))
    assert bench.verify(RIGHT).outcome == "ok"


def test_stretches_know_every_number(monkeypatch):
    machine = Machine(lambda *_: None)
    pattern = np.arange(97, dtype=np.float32)
    buffer = PeriodicBuffer(machine, pattern, 1000, guard=256)
    assert buffer.intact()
    matrix = buffer.matrix((1, 10, 100))
    assert (view(matrix, REAL, 10, 100).ravel() == np.resize(pattern, 1000)).all()
    for offset in (-64, -1, 0, 96, 97, 999, 1000, 1063):
        cell = view(moved(matrix, offset, 4), REAL, 1, 1)
        cell[...] += 1
        assert not buffer.intact(), offset
        buffer.fill()
        assert buffer.intact()


def test_guards_hold_the_highest_tile():
    assert guard_bytes(4) == 1 << 16
    assert guard_bytes(8192 * 8) >= GUARD_ROWS * 8192 * 8
    assert guard_bytes(10**9) <= 1 << 26
    assert all(guard_bytes(size) % 256 == 0 for size in (4, 1300, 12344, 10**9))
    field = GuardedMatrix(Machine(None), REAL, (1, 3, 4), gap=2)
    field.write(np.ones((1, 3, 4)))
    assert field.changed() == ""
    view(field.matrix, REAL, 1, 1)[...] = 2
    assert field.changed() == "into the matrix"
    field.restore()
    assert field.changed() == ""
