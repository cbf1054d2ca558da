"""What the last comparison of a search is between, and what of it is saved."""

from dataclasses import replace

import numpy as np
import pytest
from recorded_run import BEST, KERNEL, Run

from pymm import kernels
from pymm.core.problem import Problem
from pymm.measure.workbench import Trial, median_and_spread
from pymm.tune.finals import choose, saved_for, student, surely_slower


def test_a_tie_goes_to_the_default():
    default = KERNEL.default_config
    p = Problem(8, 8, 8)
    own, other = Trial(p, default, "ok", 1.000), Trial(p, BEST, "ok", 0.996)
    assert choose([default], [own, other], {}).winner is own
    faster = Trial(p, BEST, "ok", 0.99)
    decision = choose([default], [own, faster], {"a": [3.0, 2.0, 4.0], "b": [9.0]})
    assert decision.winner is faster
    assert (decision.library, decision.library_seconds) == ("a", 3.0)
    pair = (default, 1.0, 31), (BEST, 0.97, 30)  # one sample was void
    noisy = [Trial(p, c, "ok", s, 0.08, (s,) * n) for c, s, n in pair]
    assert choose([default], noisy, {}).winner is noisy[0], "3 % by medians that are 1.3 % unsure"
    sure = [Trial(p, c, "ok", s, 0.02, (s,) * n) for c, s, n in pair]
    assert choose([default], sure, {}).winner is sure[1]
    assert choose([default], [Trial(p, default, "wrong")], {}) is None
    assert choose([default], [Trial(p, default, "wrong"), other], {}).winner is other


# Noise


def normal(generator, shape):
    return 1 + 0.02 * generator.standard_normal(shape)


def lognormal(generator, shape):
    return np.exp(0.06 * generator.standard_normal(shape))


def bursts(generator, shape):
    """Some samples are interrupted."""
    longer = np.where(generator.random(shape) < 0.08, generator.uniform(1.2, 3, shape), 1.0)
    return normal(generator, shape) * longer


def drift(generator, shape):
    """A clock that walks by several times the noise, in all configurations alike."""
    return normal(generator, shape) * (1 + 0.02 * generator.standard_normal(shape[1]).cumsum())


def two_clocks(generator, shape):
    """Each sample at one of two clocks."""
    return 1 + 0.004 * generator.standard_normal(shape) + 0.04 * (generator.random(shape) < 0.5)


def finalists(generator, noise, count, rounds, gain=0.0):
    """The default and others, all equally fast but for one, by trials of one comparison."""
    problem, trials = Problem(8, 8, 8), []
    for index, times in enumerate(noise(generator, (count, rounds))):
        config = KERNEL.config(KERNEL.default_config.as_dict() | {"KB": 16 + index})
        times = times / (1 + gain * (index == 1))
        median, spread = median_and_spread(list(times))
        trials.append(Trial(problem, config, "ok", median, spread, tuple(times)))
    return trials


@pytest.mark.parametrize("noise", [normal, lognormal, bursts, drift, two_clocks])
@pytest.mark.parametrize("rounds", [5, 15, 101])
def test_equal_configurations_hardly_ever_replace_the_default(noise, rounds):
    """However many they are: in 5 % of the comparisons at most."""
    generator, runs = np.random.default_rng(7), 200
    for count in (2, 7, 25):
        replaced = 0
        for _ in range(runs):
            trials = finalists(generator, noise, count, rounds)
            replaced += choose([trials[0].config], trials, {}).winner is not trials[0]
        assert replaced <= 0.05 * runs + 5, (count, replaced)  # 5: 1.6 standard deviations


@pytest.mark.parametrize("noise", [normal, bursts, drift])
def test_what_is_faster_replaces_it(noise):
    """By 3 % with noise of 2 %, among 25, in 31 rounds and more."""
    generator = np.random.default_rng(7)
    chosen = 0
    for _ in range(60):
        trials = finalists(generator, noise, 25, 101, gain=0.03)
        decision = choose([trials[0].config], trials, {})
        chosen += decision.winner is trials[1]
        low, gain, high = decision.gain
        assert low <= gain <= high
    assert chosen >= 57


def test_what_is_surely_slower():
    """Than the quickest of the others, by the lower end of the interval; more comparisons make it
    wider, and of a few times nothing is sure.
    """
    p, generator = Problem(8, 8, 8), np.random.default_rng(1)

    def trial(seconds, noise, count=31):
        times = seconds * (1 + noise * generator.standard_normal(count))
        return Trial(p, BEST, "ok", *median_and_spread(times.tolist()), tuple(times.tolist()))

    one, quick, quicker = trial(1.0, 0.002), trial(0.98, 0.002), trial(0.95, 0.002)
    assert 0.015 < surely_slower(one, [quick], 1) < 1 / 0.98 - 1 < surely_slower(one, [quicker], 1)
    assert surely_slower(one, [quick, quicker], 2) == surely_slower(one, [quicker], 2)
    assert 0 < surely_slower(one, [quicker], 500) < surely_slower(one, [quicker], 2)
    assert surely_slower(quicker, [one, quick], 2) == surely_slower(one, [], 1) == 0
    assert surely_slower(one, [trial(0.997, 0)], 1) == 0  # within a tie
    assert surely_slower(trial(1.0, 0.05), [trial(0.99, 0.05)], 1) == 0
    assert surely_slower(trial(1.0, 0, 4), [trial(0.9, 0, 4)], 1) == 0
    one, quick = trial(1.0, 0.02), trial(0.985, 0.02)
    assert surely_slower(one, [quick], 500) == 0 < surely_slower(one, [quick], 1)


def test_quantiles_are_those_of_tables():
    """Of Student's distribution, to a percent from five degrees of freedom on, never less."""
    for freedom, expected in ((5, 2.571), (10, 2.228), (30, 2.042), (1e9, 1.960)):
        assert student(0.975, freedom) == pytest.approx(expected, rel=0.01)
    assert student(0.998, 8) == pytest.approx(3.94, rel=0.03)


# Several kernels


SHARED = kernels.find_kernel("shared_tile")


def trials_of(*times):
    problem = Problem(8, 8, 8)
    return [Trial(problem, c, "ok", s, 0.0, (s,) * 9) for c, s in times]


def test_the_fastest_of_all_kernels_wins():
    """With it the best of the highest kernel is saved, with which it is compared."""
    default, lower = KERNEL.default_config, SHARED.default_config
    own, best, other = trials_of((default, 1.0), (BEST, 0.9), (lower, 0.8))
    decision = choose([default, lower], [own, best, other], {})
    assert decision.winner is other and decision.rivals == (best,)
    assert decision.default_seconds == 1.0 and decision.gain[0] > 1.24
    decision = choose([lower, default], [other, own, best], {})
    assert decision.winner is other and decision.rivals == ()


def test_a_tie_between_kernels_goes_to_the_highest_unless_the_other_is_stored():
    default, lower = KERNEL.default_config, SHARED.default_config
    own, other = trials_of((default, 1.0), (lower, 0.997))
    decision = choose([default, lower], [own, other], {})
    assert decision.winner is own and decision.rivals == ()
    decision = choose([default, lower], [own, other], {}, [lower])
    assert decision.winner is other and decision.rivals == (own,), "the faster one stays"
    slower, stored = trials_of((default, 1.0), (lower, 1.2))
    decision = choose([default, lower], [slower, stored], {}, [lower])
    assert decision.winner is slower and decision.rivals == (stored,), "with its time of today"


@pytest.mark.parametrize("seed", range(60))
def test_nothing_that_is_saved_beside_it_is_faster_than_the_winner(seed):
    """Selection takes the fastest record of a problem: that must be the one that was chosen."""
    generator = np.random.default_rng(seed)
    configs = [KERNEL.default_config, SHARED.default_config, BEST]
    configs.append(SHARED.config({"MB": 16, "NB": 16, "KB": 16}))
    times = normal(generator, (4, 9)) * generator.choice([1.0, 1.005, 1.1], (4, 1))
    trials = [
        Trial(Problem(8, 8, 8), config, "ok", *median_and_spread(list(t)), tuple(t))
        for config, t in zip(dict.fromkeys(configs), times, strict=False)
    ]
    for stored in ([], [trials[1].config], [trials[2].config]):
        decision = choose([trials[0].config, trials[1].config], trials, {}, stored)
        assert all(r.seconds >= decision.winner.seconds for r in decision.rivals)


def test_all_that_is_saved_for_a_problem_takes_part(tmp_path):
    """By whatever compiler it was found, and once."""
    (own,) = Run(tmp_path, "--trials 8").records
    older = replace(own, config=BEST, environment=replace(own.environment, compiler="nvcc 1"))
    other = replace(own, problem=Problem(1, 1, 1), config=KERNEL.default_config)
    assert saved_for(own.problem, [KERNEL], [other, older, own, own]) == [BEST, own.config]


def test_times_of_several_kernels_are_of_one_run(tmp_path):
    """The fastest record of a problem is used, whichever kernel's: each search measures what is
    saved for other kernels beside its own, and notes what it takes now.
    """

    def warm(config, problem):
        return 1e-3 if config.kernel == KERNEL else 2e-3

    def cold(config, problem):
        return 3 * warm(config, problem)

    first = Run(tmp_path, f"--trials 2 --kernels {KERNEL.name}", warm).records
    assert [record.seconds for record in first] == [1e-3]
    records = Run(tmp_path, "--trials 2 --kernels 02", cold).records
    assert {r.config.kernel: r.seconds for r in records} == {
        KERNEL: 3e-3,
        kernels.find_kernel("02"): 6e-3,
    }
