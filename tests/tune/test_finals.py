"""What the last comparison of a search is between, and what of it is saved."""

from dataclasses import replace

from recorded_run import BEST, KERNEL, Run

from pymm import kernels
from pymm.core.problem import Problem
from pymm.measure.workbench import Trial
from pymm.tune.finals import choose, saved_for


def test_a_tie_goes_to_the_default():
    default = KERNEL.default_config
    p = Problem(8, 8, 8)
    own, other = Trial(p, default, "ok", 1.000), Trial(p, BEST, "ok", 0.996)
    assert choose(default, [own, other], {}).winner is own
    faster = Trial(p, BEST, "ok", 0.99)
    decision = choose(default, [own, faster], {"a": [3.0, 2.0, 4.0], "b": [9.0]})
    assert decision.winner is faster
    assert (decision.library, decision.library_seconds) == ("a", 3.0)
    noisy = [Trial(p, c, "ok", s, 0.08, (s,) * 31) for c, s in ((default, 1.0), (BEST, 0.97))]
    assert choose(default, noisy, {}).winner is noisy[0], "3 % by medians that are 1.3 % unsure"
    sure = [Trial(p, c, "ok", s, 0.02, (s,) * 31) for c, s in ((default, 1.0), (BEST, 0.97))]
    assert choose(default, sure, {}).winner is sure[1]
    assert choose(default, [Trial(p, default, "wrong")], {}) is None
    assert choose(default, [Trial(p, default, "wrong"), other], {}).winner is other


def test_all_that_is_saved_for_a_problem_takes_part(tmp_path):
    """By whatever compiler it was found, and once."""
    (own,) = Run(tmp_path, "--trials 8").records
    older = replace(own, config=BEST, environment=replace(own.environment, compiler="nvcc 1"))
    other = replace(own, problem=Problem(1, 1, 1), config=KERNEL.default_config)
    assert saved_for(own.problem, KERNEL, [other, older, own, own]) == [BEST, own.config]


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
