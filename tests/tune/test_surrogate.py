"""The surrogate against the textbook's formulas, computed anew for each question in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymm.tune import surrogate
from pymm.tune.surrogate import Process, Surrogate, matern


def space(seed=0, points=120, parameters=4, levels=5):
    """Distinct points of a grid."""
    grid = np.stack(np.meshgrid(*[np.linspace(0, 1, levels)] * parameters), -1)
    grid = grid.reshape(-1, parameters)
    return np.random.default_rng(seed).permutation(grid)[:points]


def times(points, seed=0):
    noise = 0.02 * np.random.default_rng(seed).normal(size=len(points))
    return np.sin(4 * points[:, 0]) + points.sum(axis=1) ** 2 + noise


def posterior(process, known, values, at):
    """Mean and deviation at `at` (Rasmussen and Williams, equations 2.25 and 2.26)."""
    lengths, noise = process._lengths, process._noise
    covariance = matern(known, known, lengths) + noise * np.eye(len(known))
    across = matern(known, at, lengths)
    scale = values @ np.linalg.solve(covariance, values) / len(values)
    variance = 1.0 - (across * np.linalg.solve(covariance, across)).sum(axis=0)
    return across.T @ np.linalg.solve(covariance, values), np.sqrt(scale * variance)


def fitted(grid, count, seed=0):
    process, values = Process(grid), times(grid)
    known = np.arange(count)
    process.fit(known, values[known], np.random.default_rng(seed))
    return process, known, values


@given(st.integers(0, 10**6), st.integers(2, 40), st.integers(1, 30))
@settings(max_examples=25, deadline=None)
def test_rows_and_columns_one_by_one_say_what_all_at_once_do(seed, begun, added):
    grid = space(seed)
    process, known, values = fitted(grid, begun, seed)
    process.learn(known)
    process.watch(np.arange(80, 100))
    known = np.arange(begun + added)
    process.learn(known)
    process.watch(np.arange(90, 110))
    mean, deviation, smallest = process.predict_watched(values[known], np.zeros(0, int))
    wanted = posterior(process, grid[known], values[known], grid[90:110])
    assert np.allclose(mean, wanted[0], rtol=1e-6, atol=1e-8)
    assert np.allclose(deviation, wanted[1], rtol=1e-5, atol=1e-6)
    assert smallest == values[known].min()
    for one, other in zip(process.predict(values[known], np.arange(90, 110)), wanted, strict=True):
        assert np.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_is_under_way_counts_as_predicted():
    """As if the predictions had been measured: the mean stays, the deviation shrinks."""
    grid = space()
    process, known, values = fitted(grid, 30)
    process.learn(known)
    process.watch(np.arange(60, 100))
    under_way = np.array([70, 110, 40])
    mean, deviation, smallest = process.predict_watched(values[known], under_way)
    alone, before, _ = process.predict_watched(values[known], np.zeros(0, int))
    predicted, _ = process.predict(values[known], under_way)
    all_known = np.concatenate([grid[known], grid[under_way]])
    assert np.allclose(mean, alone)
    wanted, _ = posterior(
        process, all_known, np.concatenate([values[known], predicted]), grid[60:100]
    )
    assert np.allclose(mean, wanted, atol=1e-6)
    assert (deviation <= before + 1e-12).all() and deviation[10] < 0.5 * before[10]
    assert smallest == min(values[known].min(), predicted.min())


@given(st.integers(0, 10**6), st.integers(3, 60))
@settings(max_examples=20, deadline=None)
def test_the_gradient_is_that_of_the_likelihood(seed, count):
    grid = space(seed, parameters=3)
    values = surrogate._standard(times(grid)[:count])
    logs = surrogate._prior_mean(4) + np.random.default_rng(seed).normal(size=4)
    _, slope = surrogate._loss(grid[:count], values, logs)
    for place, step in enumerate(1e-5 * np.eye(4)):
        ahead, behind = (surrogate._loss(grid[:count], values, logs + s)[0] for s in (step, -step))
        assert slope[place] == pytest.approx((ahead - behind) / 2e-5, rel=1e-3, abs=1e-3)


def test_it_depends_on_the_results_and_not_on_when_it_was_asked():
    """So a search that goes on after an interruption asks what it would have asked."""
    grid = space(points=200, levels=6)
    values, watched = times(grid), np.arange(120, 200)
    asked_often, asked_once = Surrogate(grid, (3,)), Surrogate(grid, (3,))
    for count in range(2, 101):
        asked_often.update(range(count), values[:count])
        asked_often.watch(watched[count % 7 :])
    asked_often.watch(watched)
    asked_once.update(range(100), values[:100])
    asked_once.watch(watched)
    found = [s.promise_watched([5, 150]) for s in (asked_often, asked_once)]
    assert np.allclose(*found, rtol=1e-5, atol=1e-9)
    assert np.allclose(
        asked_often.promise(watched), asked_once.promise(watched), rtol=1e-5, atol=1e-9
    )


@pytest.mark.parametrize("values", [np.ones(20), np.full(20, 700.0), np.arange(20.0)])
def test_any_finite_values_are_survived(values):
    """Equal ones, huge ones, one parameter, points that are all the same."""
    for grid in (np.linspace(0, 1, 40)[:, None], np.zeros((40, 2)), np.zeros((40, 0))):
        model = Surrogate(grid, (0,))
        model.update(range(20), values)
        model.watch(np.arange(20, 40))
        assert np.isfinite(model.promise_watched([21, 22])).all()
        assert np.isfinite(model.promise([25])).all()


def test_improvement_is_that_of_a_normal_variable():
    generator = np.random.default_rng(0)
    mean, deviation = np.array([0.3, -0.2, 1.0]), np.array([0.5, 0.1, 0.3])
    drawn = mean + deviation * generator.normal(size=(400000, 3))
    wanted = np.maximum(0.1 - drawn, 0.0).mean(axis=0)
    assert np.allclose(surrogate.improvement(mean, deviation, 0.1), wanted, atol=2e-3)
