"""Types with a fallback (`pymm.core.dtypes.DType.fallback`): what the host decides about a product
before the device checks its operands.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pymm.backends.base import Backend
from pymm.console import duration
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, kernels_for, parse_slug
from pymm.kernels.emulated import LEAST_DEPTH, fallback_problem
from pymm.selection.choose import choose
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.select import Choice

#: Seconds that a checked product takes longer than one by the same kernel without a check: two
#: more reads of device memory before work begins, and a launch that returns at once.
CHECKING = 3.5e-6


def computed_type(kind: str, device: Device) -> str:
    """The type that products of type `kind` have on a device: its fallback, if it has one and no
    kernel here computes in it.
    """
    fallback = DTYPES[kind].fallback
    here = not fallback or kernels_for(Problem(1, 1, 1, kind), device)
    return kind if here else fallback


def decide(
    backend: Backend, problem: Problem, kernel: str | int | None = None, config: Any = None
) -> tuple[Problem, str]:
    """The problem of a launch for `problem`, whose type has a fallback: itself where the device
    checks the operands, or the same in the fallback's type; and why, in words. `kernel` and
    `config` are the caller's.
    """
    plain, device = fallback_problem(problem), backend.device
    if not kernels_for(problem, device):
        return plain, f"no kernel splits operands on {device.name}"
    named = _named(kernel, config, device)
    if named is not None:
        splits = problem.dtype in named.dtypes
        verb = "splits" if splits else "does not split"
        return (problem if splits else plain), f"{named.name}, which {verb} operands, was asked for"
    if problem.k < LEAST_DEPTH:
        return plain, f"k is below {LEAST_DEPTH}"
    if not device.times_are_real:
        return problem, "the simulator tells no times"
    checked = _seconds(choose(backend, problem), problem, device) + CHECKING
    usual = _seconds(choose(backend, plain), plain, device)
    words = f"{duration(checked, 3)} with split operands expected, {duration(usual, 3)} without"
    return (problem if checked < usual else plain), words


def _named(kernel: str | int | None, config: Any, device: Device) -> Kernel | None:
    """The kernel that the caller asks for."""
    if isinstance(config, str):
        config = parse_slug(config, device.kernel_backend)
    if isinstance(config, Config):
        return config.kernel
    return None if kernel is None else find_kernel(kernel, device.kernel_backend)


def _seconds(choice: Choice, problem: Problem, device: Device) -> float:
    """Measured seconds of a choice that was tuned for this product, else the cost model's."""
    record = choice.record
    if record is not None and replace(record.problem, dtype=problem.dtype) == problem:
        return record.seconds
    return predicted_seconds(choice.config, problem, device)
