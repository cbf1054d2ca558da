"""Verify, then time: every way of being wrong is found, and the stopwatch is used sparingly."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from recorded import NumpyBackend, view
from scipy.stats import wilcoxon

from pymm.backends.base import Resources
from pymm.core.errors import CompileFailed, LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure import verify
from pymm.measure.verify import GuardedMatrix, hard_problem
from pymm.measure.workbench import (
    FEW_ROUNDS,
    OUTCOMES,
    Trial,
    Workbench,
    median_and_spread,
    slower_by_chance,
)

KERNEL = find_kernel("reordered", "cpu")
CONFIG = KERNEL.config({"MB": 16, "NB": 64, "KB": 16})
OTHER = KERNEL.config({"MB": 32, "NB": 64, "KB": 16})
THIRD = KERNEL.config({"MB": 64, "NB": 64, "KB": 16})

SMALL = Problem(13, 17, 11)


@pytest.fixture(params=["small", "large"])
def full(request, monkeypatch):
    """Both ways of checking: every element, or lines and Freivalds' vectors."""
    if request.param == "large":
        monkeypatch.setattr(verify, "FULL_CHECK_FLOPS", -1)
        monkeypatch.setattr(verify, "LINES", 1)
    return request.param


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("extents", [(1, 1, 1), (1, 129, 7), (40, 1, 0), (31, 33, 64)])
def test_right_kernels_pass(full, dtype, layout, extents):
    problem = Problem(*extents, dtype, layout[0] == "T", layout[1] == "T")
    trial = Workbench(NumpyBackend(), problem).verify(CONFIG)
    assert trial.outcome == "ok", trial.detail
    assert 0 <= trial.error <= 1
    assert np.isnan(trial.seconds)


def test_right_stack_passes(full):
    trial = Workbench(NumpyBackend(), Problem(5, 6, 7, batch=3)).verify(CONFIG)
    assert trial.outcome == "ok", trial.detail


def only_main(spoil):
    """Spoils only the problem itself, not the small hard one."""
    return lambda c, p, matrix, beta: spoil(c, p, matrix) if not beta else None


def only_hard(spoil):
    return lambda c, p, matrix, beta: spoil(c, p, matrix) if beta else None


def beyond(rows, columns, change):
    """Changes memory outside of C, so many rows and columns from its first element."""

    def spoil(c, p, matrix):
        wide = view(matrix, p.numpy_dtype, p.m + 4, matrix.ld + 8)
        wide[0, rows if rows >= 0 else p.m - 1 - rows, columns] = change(0)

    return spoil


def before(c, p, matrix):
    moved = type(matrix)(matrix.address - 64, matrix.ld, owner=matrix.owner)
    view(moved, p.numpy_dtype, 1, 4)[...] = 0


def element(i, j, value):
    def spoil(c, p, matrix):
        c[0, i % p.m, j % p.n] = value(c[0, i % p.m, j % p.n])

    return spoil


WRONG = {
    "not written": element(5, 6, lambda x: np.nan),
    "infinite": element(5, 6, lambda x: np.inf),
    "off by a little": element(5, 6, lambda x: x + 0.01),
    "zero": element(-1, -1, lambda x: 0),
    "before": before,
    "behind": beyond(-1, 3, lambda x: 0.0),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_kernels_are_found(full, fault):
    """Also where a large matrix is not looked at element by element (row 5 of 13, column 6)."""
    backend = NumpyBackend(only_main(WRONG[fault]))
    trial = Workbench(backend, SMALL, seed=1).verify(CONFIG)
    assert trial.outcome == "wrong"
    assert trial.detail
    assert not backend.timed


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_guarded_variants_are_found(fault):
    """Right on a multiple of the tile, wrong on partial tiles: found before any timing."""
    backend = NumpyBackend(only_hard(WRONG[fault]))
    trial = Workbench(backend, Problem(16, 64, 16)).measure(CONFIG)
    assert trial.outcome == "wrong"
    assert "17x63x19" in trial.detail
    assert not backend.timed


def test_adding_to_what_lies_behind_is_found():
    """A NaN plus one is the same NaN: the hard problem has numbers around C."""

    def add(c, p, matrix):
        view(matrix, p.numpy_dtype, p.m + 1, p.n)[0, p.m, 0] += 1

    for spoil in (add, lambda c, p, matrix: view(matrix, p.numpy_dtype, 1, p.n + 1).__iadd__(1)):
        backend = NumpyBackend(lambda c, p, m, beta, spoil=spoil: spoil(c, p, m))
        assert Workbench(backend, SMALL).verify(CONFIG).outcome == "wrong"


def test_reading_c_though_beta_is_zero_is_found(full):
    def spoil(c, p, matrix, beta):
        c += 0 * stale.pop() if stale else 0

    stale = [np.float32(np.nan)]
    assert Workbench(NumpyBackend(spoil), SMALL).verify(CONFIG).outcome == "wrong"


def test_low_precision_is_found(full):
    """Operands cut to 10 bits, as tensor cores in tf32 do: exact on small integers, but not on
    normal numbers.
    """

    def spoil(c, p, matrix, beta):
        raw = c.view(np.uint32)
        raw &= np.uint32(0xFFFFE000)

    assert Workbench(NumpyBackend(spoil), Problem(30, 30, 8)).verify(CONFIG).outcome == "wrong"


def test_field_tells_where_it_was_touched():
    field = GuardedMatrix(NumpyBackend(), np.dtype(np.float32), (1, 3, 4), gap=2)
    field.write(np.ones((1, 3, 4)))
    values, touched = field.read()
    assert (values == 1).all() and touched == ""
    view(field.matrix, np.dtype(np.float32), 1, 5)[0, 0, 4] = 7
    assert field.read()[1] == "between its rows"
    before(None, SMALL, field.matrix)
    assert field.read()[1] == "before the matrix and between its rows"


def test_hard_problem_has_partial_tiles():
    hard = hard_problem(CONFIG, Problem(1024, 1024, 1024, "f64", True, True))
    assert (hard.m, hard.n, hard.k) == (17, 63, 19)
    assert hard.layout == "TT" and hard.dtype == "f64"
    one = find_kernel("naive").config({"MB": 32, "NB": 1})
    assert hard_problem(one, SMALL).n == 1


def test_failures_are_outcomes():
    def refuse(source):
        raise CompileFailed("static_assert: TA divides MB")

    def break_off(source):
        raise LaunchFailed("illegal address", sticky=True)

    def eat(source):
        raise MemoryError("9 GiB asked for, 1 free")

    bench = Workbench(NumpyBackend(load=refuse), SMALL)
    assert bench.measure(CONFIG).outcome == "compile_failed" and not bench.lost
    bench = Workbench(NumpyBackend(load=eat), SMALL)
    trial = bench.measure(CONFIG)
    assert trial.outcome == "launch_failed" and "9 GiB" in trial.detail and not bench.lost
    bench = Workbench(NumpyBackend(load=break_off), SMALL)
    assert bench.measure(CONFIG).outcome == "launch_failed" and bench.lost


def test_problem_too_large_for_the_device():
    with pytest.raises(MemoryError, match="asked for"):
        Workbench(NumpyBackend(), Problem(2**16, 1, 2**16))


def test_empty_problem_is_refused():
    with pytest.raises(ValueError, match="no element"):
        Workbench(NumpyBackend(), Problem(0, 5, 5))


def test_hopeless_configurations_are_run_once():
    seconds = {CONFIG: 1.0, OTHER: 1.6, THIRD: 1.4}
    backend = NumpyBackend(seconds=seconds.__getitem__)
    bench = Workbench(backend, SMALL)
    assert bench.measure(CONFIG).outcome == "ok"
    backend.timed.clear()
    slow = bench.measure(OTHER, best_seconds=1.0)
    assert slow.outcome == "too_slow" and slow.seconds == 1.6
    assert len(backend.timed) == 1
    assert bench.measure(THIRD, best_seconds=1.0).outcome == "ok"


def test_a_short_run_gets_a_second_look():
    """The first run of a microsecond kernel may be interrupted: that does not condemn it."""
    times = iter([9e-6] + [1e-6] * 200)
    bench = Workbench(NumpyBackend(seconds=lambda config: next(times)), SMALL)
    trial = bench.measure(CONFIG, best_seconds=1e-6)
    assert trial.outcome == "ok" and trial.seconds == pytest.approx(1e-6)


def test_noise_is_repeated_up_to_a_limit():
    generator = np.random.default_rng(0)
    backend = NumpyBackend(seconds=lambda config: 1e-6 * generator.uniform(1, 2))
    trial = Workbench(backend, SMALL).measure(CONFIG)
    assert 31 <= len(trial.times) <= 37
    assert 0.1 < trial.spread < 1
    steady = Workbench(NumpyBackend(), SMALL).measure(CONFIG)
    assert len(steady.times) == 7 and steady.spread == 0 and steady.telemetry == {"clock": 1000.0}


def test_comparison_takes_turns():
    seconds = {CONFIG: 1e-3, OTHER: 2e-3}
    backend = NumpyBackend(seconds=seconds.__getitem__)
    bench = Workbench(backend, SMALL)

    def library(timed=False):
        return None

    library.config = CONFIG
    bench.calls = {"library": library}
    trials = bench.compare([CONFIG, OTHER], rounds=5)
    assert [trial.seconds for trial in trials] == [1e-3, 2e-3]
    assert len(backend.timed) == 3 * 6, "one round to warm up"
    rounds = [backend.timed[start : start + 3] for start in range(0, 18, 3)]
    assert all(len(turn) == 3 and turn.count(OTHER) == 1 for turn in rounds)
    assert len({turn.index(OTHER) for turn in rounds}) > 1, "in an order of its own each"
    assert len(bench.times["library"]) == 5


def test_comparison_leaves_out_what_is_wrong():
    spoiled = []

    def spoil(c, p, matrix, beta):
        if not spoiled:
            spoiled.append(True)
            c[...] = 0

    trials = Workbench(NumpyBackend(spoil), SMALL).compare([CONFIG, OTHER], rounds=3)
    assert [trial.outcome for trial in trials] == ["wrong", "ok"]


def test_median_and_spread():
    assert median_and_spread([3.0]) == (3.0, 0.0)
    median, spread = median_and_spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert median == 3.0 and spread == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="none of"):
        Trial(SMALL, CONFIG, "fine")
    assert len(OUTCOMES) == 9


def test_a_kernel_that_spills_is_not_timed():
    """Registers that go to memory are an outcome, with their bytes, and cost no run."""
    backend = NumpyBackend()
    load = backend.load

    def spilling(source):
        executable = load(source)
        executable.resources = Resources(registers=255, spilled_bytes=64)
        return executable

    backend.load = spilling
    trial = Workbench(backend, SMALL).measure(CONFIG)
    assert trial.outcome == "compile_failed" and "spills 64 bytes" in trial.detail
    assert not backend.timed


# Against the best so far


class Clock:
    """Seconds of configurations on a device whose clock falls with every call."""

    def __init__(self, base, fall=0.01, noise=0.0):
        self.base, self.fall, self.calls = base, fall, 0
        self.generator = np.random.default_rng(3)
        self.noise = noise

    def __call__(self, config):
        self.calls += 1
        slower = (1 + self.fall) ** self.calls
        return self.base[config] * slower * (1 + self.noise * self.generator.standard_normal())


def test_a_race_is_at_equal_clocks():
    """The clock falls by half while both are timed; their ratio is what it is."""
    bench = Workbench(NumpyBackend(seconds=Clock({CONFIG: 1.0e-3, OTHER: 0.9e-3})), SMALL)
    for _ in range(3):
        trial = bench.measure(OTHER, 1.0e-3, CONFIG)
        assert trial.outcome == "ok" and trial.versus == pytest.approx(0.9, rel=0.011)
    assert trial.seconds > 1.2e-3, "by the clock of now it is slower than the best was"


def test_what_is_slower_is_not_repeated_for_long():
    """A few rounds show it; what may be faster is repeated."""
    backend = NumpyBackend(seconds=Clock({CONFIG: 1e-3, OTHER: 1.2e-3, THIRD: 0.98e-3}, 0.0, 0.02))
    bench = Workbench(backend, SMALL)
    slower = bench.measure(OTHER, 1e-3, CONFIG)
    faster = bench.measure(THIRD, 1e-3, CONFIG)
    assert slower.outcome == faster.outcome == "ok"
    assert len(slower.times) == 1 + FEW_ROUNDS < len(faster.times)
    assert slower.versus == pytest.approx(1.2, rel=0.05)
    hopeless = Workbench(NumpyBackend(seconds=Clock({CONFIG: 1.0, OTHER: 1.7})), SMALL)
    trial = hopeless.measure(OTHER, 1.0, CONFIG)
    assert trial.outcome == "too_slow" and len(trial.times) == 1 and trial.versus > 1.5
    assert trial.versus == pytest.approx(1.7, rel=0.02)


def test_a_best_that_cannot_be_loaded_is_done_without():
    def load(source):
        if source.config == OTHER:
            raise CompileFailed("gone from the cache")

    bench = Workbench(NumpyBackend(load=load), SMALL)
    trial = bench.measure(CONFIG, 1e-3, OTHER)
    assert trial.outcome == "ok" and np.isnan(trial.versus)
    assert np.isnan(bench.measure(CONFIG, 1e-3, CONFIG).versus), "nor is it compared with itself"


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=12, unique=True))
def test_the_signed_rank_test_is_that_of_scipy(ratios):
    differences = np.log(ratios)
    sizes = np.abs(differences)
    assume(sizes.min() > 1e-6 and (np.diff(np.sort(sizes)) > 1e-9).all())
    expected = wilcoxon(differences, alternative="greater", method="exact").pvalue
    assert slower_by_chance([(ratio, 1.0) for ratio in ratios]) == pytest.approx(expected)


def test_equal_times_say_nothing():
    assert slower_by_chance([(1.0, 1.0)] * 9) == 1.0
    assert slower_by_chance([(1.1, 1.0)] * 5) == 1 / 32
