"""Types with an exact one (`pymm.core.dtypes.DType.exact`): in which of the two a product is
computed, as far as the host decides it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pymm.console import duration
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, kernels_for, parse_slug, survey
from pymm.kernels.emulated import LEAST_DEPTH, exact_problem
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.select import Choice

#: Seconds that a checked product takes longer than one by the same kernel without a check: two
#: more reads of device memory before work begins, and a launch that returns at once.
CHECKING = 3.5e-6


def computed_type(kind: str, device: Device) -> str:
    """The type that products of type `kind` have on a device: the exact one, if there is one and no
    kernel here computes in `kind`.
    """
    exact = DTYPES[kind].exact
    here = not exact or kernels_for(Problem(1, 1, 1, kind), device)
    return kind if here else exact


def decide(
    problem: Problem,
    device: Device,
    select: Callable[[Problem], Choice],
    kernel: str | int | None = None,
    config: Any = None,
) -> tuple[Problem, str]:
    """The problem to compute for `problem`, whose type has an exact one: itself, or the same in the
    exact type where that should take less time; and why, in words. `select` finds what would run,
    `kernel` and `config` are the caller's.
    """
    exact = exact_problem(problem)
    if not kernels_for(problem, device):
        return exact, f"no kernel computes in {problem.dtype} on {device.name}"
    named = _named(kernel, config, device)
    if named is not None:
        instead = problem.dtype not in named.dtypes and exact.dtype in named.dtypes
        return (exact if instead else problem), f"{named.name} was asked for"
    if problem.type.checked and problem.k < LEAST_DEPTH:
        return exact, f"k is below {LEAST_DEPTH}"
    if not device.times_are_real:
        return problem, "the simulator tells no times"
    here = _seconds(select(problem), problem, device) + CHECKING * problem.type.checked
    usual = _seconds(select(exact), exact, device)
    words = (
        f"{duration(here, 3)} expected in {problem.dtype}, {duration(usual, 3)} in {exact.dtype}"
    )
    return (problem if here < usual else exact), words


def _named(kernel: str | int | None, config: Any, device: Device) -> Kernel | None:
    """The kernel that the caller asks for."""
    if isinstance(config, str):
        config = parse_slug(config, device.kernel_backend)
    if isinstance(config, Config):
        return config.kernel
    return None if kernel is None else find_kernel(kernel, device.kernel_backend)


def _seconds(choice: Choice, problem: Problem, device: Device) -> float:
    """Seconds that a choice should take: those measured, if it was tuned for this product; those of
    the survey, if it is what that chose; else the cost model's.
    """
    record = choice.record
    if record is not None and replace(record.problem, dtype=problem.dtype) == problem:
        return record.seconds
    surveyed = survey.quickest(choice.config.kernel, problem, device)
    if surveyed is not None and surveyed[1] == choice.config:
        return surveyed[0] * 1e-6
    return predicted_seconds(choice.config, problem, device)
