"""Types that name a plain one (`pymm.core.dtypes.DType.plain`): in which of the two a product is
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
from pymm.kernels.emulated import LEAST_DEPTH, plain_problem
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.nearest import MODEL_ERROR
from pymm.selection.records import Record
from pymm.selection.select import Choice

#: Seconds that a checked product takes longer than one by the same kernel without a check: two
#: more reads of device memory before work begins, and a launch of few blocks that returns at once
#: (on an H200 3.0 us at 641 squared, 2.6 at 2048, 2.1 to 4.1 rank-k: benchmarks/RESULTS.md).
CHECKING = 3.5e-6


def computed_type(
    kind: str, device: Device, kernel: str | int | None = None, config: Any = None
) -> str:
    """The type of products of type `kind` as far as it does not depend on their extents: the plain
    one if no kernel here computes in `kind`, or if the kernel of the caller's `kernel` or `config`
    computes in the plain one and not in `kind`. Else `kind`.
    """
    plain = DTYPES[kind].plain
    if not plain:
        return kind
    named = _named(kernel, config, device)
    if named is not None:
        return plain if plain in named.dtypes and kind not in named.dtypes else kind
    return kind if kernels_for(Problem(1, 1, 1, kind), device) else plain


def decide(
    problem: Problem,
    device: Device,
    select: Callable[[Problem], Choice],
    kernel: str | int | None = None,
    config: Any = None,
    split: bool = False,
    energy: bool = False,
) -> tuple[Problem, str]:
    """The problem to compute for `problem`, whose type names a plain one: itself, or the same in
    the plain type where that should take less time; and why, in words. `select` finds what would
    run, `kernel` and `config` are the caller's. With b `split` already (`pymm.prepare`) the type is
    kept: most of what splitting costs is paid then. With `energy` measured energies decide, where
    both have one. A recorded time is compared with `MODEL_ERROR` times one that is only expected.
    """
    plain = plain_problem(problem)
    kind = computed_type(problem.dtype, device, kernel, config)
    if (named := _named(kernel, config, device)) is not None:
        return (plain if kind == plain.dtype else problem), f"{named.name} was asked for"
    if kind == plain.dtype:
        return plain, f"no kernel computes in {problem.dtype} on {device.name}"
    if problem.type.checked and problem.k < LEAST_DEPTH:
        return plain, f"k is below {LEAST_DEPTH}"
    if split:
        return problem, "b was split before"
    if not device.times_are_real:
        return problem, "the simulator tells no times"
    here, there = select(problem), select(plain)
    if energy and (used := _joules(here)) > 0.0 and (less := _joules(there)) > 0.0:
        return (plain if less < used else problem), "the energy that was measured"
    tuned, other = _measured(here, problem), _measured(there, plain)
    unchecked = problem.type.checked and not (tuned and tuned.problem.type.checked)
    own = _seconds(here, problem, device) + CHECKING * unchecked
    usual = _seconds(there, plain, device)
    words = f"{duration(own, 3)} expected in {problem.dtype}, {duration(usual, 3)} in {plain.dtype}"
    if bool(tuned) != bool(other):
        own, usual = (own, usual * MODEL_ERROR) if tuned else (own * MODEL_ERROR, usual)
    return (plain if usual <= own else problem), words


def computed(
    problem: Problem, device: Device, select: Callable[[Problem], Choice]
) -> tuple[Problem, Choice, str]:
    """What `matmul` computes for a problem: in its own type or the plain one; the choice of
    `select` for that, and why the type ("" where there is but one).
    """
    why = ""
    if problem.type.plain:
        problem, why = decide(problem, device, select)
    return problem, select(problem), why


def _named(kernel: str | int | None, config: Any, device: Device) -> Kernel | None:
    """The kernel that the caller asks for."""
    if isinstance(config, str):
        config = parse_slug(config, device.kernel_backend)
    if isinstance(config, Config):
        return config.kernel
    return None if kernel is None else find_kernel(kernel, device.kernel_backend)


def _measured(choice: Choice, problem: Problem) -> Record | None:
    """The choice's record, if it was tuned for this product, in whatever type its kernel serves."""
    record = choice.record
    same = record is not None and replace(record.problem, dtype=problem.dtype) == problem
    return record if same else None


def _joules(choice: Choice) -> float:
    """Of the choice's record, 0 if none were measured."""
    record = choice.record
    return record.joules if record is not None and record.joules > 0 else 0.0


def _seconds(choice: Choice, problem: Problem, device: Device) -> float:
    """Seconds that a choice should take: those measured, if it was tuned for this product; those of
    the survey, if it is what that chose; else the cost model's.
    """
    if (record := _measured(choice, problem)) is not None:
        return record.seconds
    surveyed = survey.quickest(choice.config.kernel, problem, device)
    if surveyed is not None and surveyed[1] == choice.config:
        return surveyed[0] * 1e-6
    return predicted_seconds(choice.config, problem, device)
