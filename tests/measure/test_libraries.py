"""The libraries that pymm is measured against compute the same product, on the same memory."""

import numpy as np
import pytest

from pymm.core import reference
from pymm.core.problem import Problem
from pymm.measure.cublas import syrk
from pymm.measure.libraries import HALF, baseline_calls
from pymm.measure.quick_check import OperandPool
from pymm.measure.verify import compare


def calls_of(backend, problem):
    """A place, and the baselines on its matrices."""
    place = OperandPool(backend).place(problem)
    return place, baseline_calls(backend, problem, *place.operands)


def judged(place, call, backend):
    """What a call leaves in C, element by element beside float64."""
    getattr(call, "prepare", lambda: None)()
    call()
    backend.synchronize()
    a, b = place.sources()
    whole = reference.product(place.problem, a, b)
    return place.result(), whole, reference.error_bound(place.problem, a, b)


PROBLEMS = [
    Problem(65, 33, 47, "f64"),
    Problem(65, 33, 47, "f32", True, True),
    Problem(65, 65, 47, "f64", True, op="syrk"),
    Problem(65, 65, 47, "f32", False, True, op="syrk"),
]


@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_numpy(problem, cpu):
    place, calls = calls_of(cpu, problem)
    assert list(calls) == ["numpy"]
    assert compare(*judged(place, calls["numpy"], cpu)).right


@pytest.mark.gpu
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem.slug)
def test_cublas(problem, cuda):
    """All of them right; cublas?syrk in the lower half, and it leaves the other one alone."""
    place, calls = calls_of(cuda, problem)
    assert "cublas" in calls and (HALF in calls) == problem.symmetric
    for name, call in calls.items():
        if name == HALF:
            cuda.synchronize()
            before = place.result()
            got, expected, bound = judged(place, call, cuda)
            lower = np.tril(np.ones((problem.m, problem.n), bool))
            assert (got[:, ~lower] == before[:, ~lower]).all()
            assert compare(got[:, lower], expected[:, lower], bound[:, lower]).right
        else:
            assert compare(*judged(place, call, cuda)).right, name


def test_no_routine_for_what_is_no_symmetric_product_in_float32_or_float64():
    place = ((), ())
    assert syrk(Problem(4, 4, 4), *place) is None
    assert syrk(Problem(4, 4, 4, "f16", True, op="syrk"), *place) is None
    assert syrk(Problem(4, 4, 4, "f64", True, batch=3, op="syrk"), *place) is None
