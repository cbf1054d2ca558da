"""Products whose device decides how they are computed: kernel 14 where the split of their operands
is exact enough, else kernel 5 (cuda_src/common/split_check.cuh).
"""

from __future__ import annotations

from dataclasses import replace
from enum import IntEnum

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config
from pymm.kernels.pipelined import PIPELINED

#: Least k for which split operands are used. Of fewer products one may be almost all of an element
#: of C: the split then loses up to 2^-21 of it, plain float32 2^-24.
LEAST_DEPTH = 64


class Gate(IntEnum):
    """Values of the macro `GATE`: when a launch runs."""

    ALWAYS = 0
    EXACT = 1
    NOT_EXACT = 2


def largest_exponents(k: int) -> int:
    """The largest sum of the exponents of A's and B's largest elements, each as float32 keeps it
    (127 more), for which no sum of products exceeds 2^126; 0 for a k that is too small.

    A product is below 2^(i + 1) 2^(j + 1) for exponents i and j, a sum of k below 2^ceil(log2 k)
    times that.
    """
    if k < LEAST_DEPTH:
        return 0
    return 126 + 2 * 127 - 2 - (k - 1).bit_length()


def plain_problem(problem: Problem) -> Problem:
    """The same product in the `plain` type that its type names."""
    return replace(problem, dtype=problem.type.plain)


def fallback_config(problem: Problem, device: Device) -> Config:
    """The configuration of kernel 5 for a `plain_problem`: its default, with k in as many parts
    as keep the device busy.
    """
    found = PIPELINED.default_for(problem, device)
    for parts in PIPELINED.space["SPLIT"]:
        config = PIPELINED.config(found.as_dict() | {"SPLIT": parts})
        if PIPELINED.violations(config, problem, device):
            break
        found = config
        if PIPELINED.tiles(config, problem)[0] * parts * problem.batch >= device.sms:
            break
    return found
