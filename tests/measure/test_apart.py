"""A library in a process of its own: timed there, and how that process ends."""

import os
import time

import numpy as np
import pytest

from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.measure.apart import Apart, operands


def report(problem, left, right, out, threads, accumulate):
    """A call for the tests: takes a hundredth of a second, or fails."""
    assert left.shape[-2:] == (problem.m, problem.k) and out.shape[-2:] == (problem.m, problem.n)
    assert right.shape[-2:] == (problem.k, problem.n) and threads == 3
    if problem.m == 13:
        raise ValueError("thirteen")
    if problem.m == 14:
        os._exit(5)
    return lambda: time.sleep(0.02 if accumulate else 0.01)


@pytest.fixture
def apart():
    process = Apart(f"{__name__}:report", 3)
    yield process
    process.close()


def test_seconds_are_those_of_the_calls_there(apart):
    for problem in (Problem(2, 3, 4), Problem(2, 3, 4, "f64", True, True, 5)):
        assert all(0.01 <= s < 1 for s in apart.seconds(problem, samples=3))
        assert 0.01 <= apart.shortest(problem) < 1 and apart.shortest(problem, True) >= 0.02
        assert apart.seconds(problem, accumulate=True, repeats=2)[0] >= 0.02


def test_failures_are_told_and_the_next_request_is_answered(apart):
    with pytest.raises(LaunchFailed, match="ValueError: thirteen"):
        apart.seconds(Problem(13, 1, 1))
    assert apart.seconds(Problem(1, 1, 1))
    with pytest.raises(LaunchFailed, match="exit status 5"):
        apart.seconds(Problem(14, 1, 1))
    assert apart.seconds(Problem(1, 1, 1))


@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_operands_are_stored_as_the_problem_says(layout):
    problem = Problem(3, 4, 5, "f32", layout[0] == "T", layout[1] == "T", 2)
    left, right, out = operands(problem)
    assert (left.shape, right.shape, out.shape) == ((2, 3, 5), (2, 5, 4), (2, 3, 4))
    for array, transposed in ((left, problem.trans_a), (right, problem.trans_b)):
        assert array.dtype == np.float32
        stored = array.swapaxes(-1, -2) if transposed else array
        assert stored.flags.c_contiguous
