"""Shapes never tuned: what a choice is compared with, and when the comparison fails."""

import random
import statistics
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
from h200 import H200

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import unseen  # noqa: E402

from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import KERNELS  # noqa: E402
from pymm.measure.workbench import Trial  # noqa: E402
from pymm.measure.worker_process import Reply  # noqa: E402
from pymm.tune.tasks import competitors  # noqa: E402

PROBLEM = Problem(4850, 2240, 1502)
GIVEN = Namespace(records=ROOT / "no-records", seed=7, count=60)


class Measured:
    """Stands in for a worker: a time for each configuration."""

    device, compiler = H200, SimpleNamespace(toolchain="nvcc 13.0")

    def __init__(self, seconds, noise=0.0):
        self.seconds, self.noise = seconds, noise

    def ask(self, request, limit):
        return Reply(tuple(self.trial(config) for config in request.configs))

    def trial(self, config):
        """31 times with a noise of their own, while the clock drifts by a fifth for all."""
        draw = random.Random(config.slug)
        noise = [draw.gauss(0, self.noise) for _ in range(31)]
        times = [self.seconds(config) * (1 + x) * (1 + at / 150) for at, x in enumerate(noise)]
        return Trial(PROBLEM, config, "ok", statistics.median(times), times=tuple(times))


def entry():
    return unseen._entry(Measured(None), PROBLEM, [], GIVEN)


def test_a_choice_is_compared_with_the_default_of_every_kernel_of_a_search():
    kernels = competitors(PROBLEM, H200)
    assert len(kernels) > 2 and set(kernels) <= set(KERNELS)
    wanted = {kernel.default_for(PROBLEM, H200) for kernel in kernels}
    found = entry()
    assert wanted <= set(found.defaults) and wanted <= set(found.configs)
    assert found.choice.config in found.configs


@pytest.mark.parametrize(
    "faster, noise, status",
    [(1.0, 0, 0), (0.996, 0, 0), (0.98, 0, 1), (0.98, 0.05, 0), (0.9, 0.02, 1)],
)
def test_a_choice_that_is_surely_slower_than_any_kernel_s_default_fails(faster, noise, status):
    found = entry()
    other = next(c for c in found.defaults if c.kernel_name != found.choice.config.kernel_name)
    times = {found.choice.config: 1e-3, other: faster * 1e-3}
    row = unseen._row(Measured(lambda config: times.get(config, 2e-3), noise), found, GIVEN)
    assert float(row["of_default"]) == pytest.approx(faster, rel=0.01 + 3 * noise)
    assert (float(row["slower"]) > 0) == bool(status)
    by = 1 / faster - 1 if status else 0
    assert float(row["slower"]) == pytest.approx(by, abs=2 * noise + 1e-3)
    others = [row | {"of_fastest": "1", "of_default": "1", "slower": "0"} for _ in range(9)]
    assert unseen._judge([row, *others], 10) == status


def test_what_could_not_be_measured_fails():
    row = {"of_fastest": "1", "of_default": "1", "slower": "0"}
    assert unseen._judge([row], 1) == 0 and unseen._judge([row], 2) == 1
    assert unseen._judge([], 1) == 1 and unseen._judge([], 0) == 0


def test_products_are_drawn_by_seed_and_types_take_turns():
    drawn = unseen.draw(6, ["f32", "bf16"], 3)
    assert drawn == unseen.draw(6, ["f32", "bf16"], 3) != unseen.draw(6, ["f32", "bf16"], 4)
    assert [problem.dtype for problem in drawn] == ["f32", "bf16"] * 3
    assert all(problem.flops <= unseen.MOST_FLOPS for problem in drawn)
    sides = [side for p in drawn for side in (p.m, p.n, p.k)]
    assert min(sides) >= unseen.LEAST and max(sides) <= unseen.MOST
    assert max(problem.m for problem in unseen.draw(6, ["f32"], 3, most=100)) <= 100
