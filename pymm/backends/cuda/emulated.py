"""Products whose device decides how they are computed (cuda_src/common/split_check.cuh): the
launches of a kernel with split operands, then that of a kernel of plain multiply-adds, which
returns at once where the split was exact enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pymm.backends.base import Matrix, Vector
from pymm.backends.cuda.executable import CudaExecutable
from pymm.backends.cuda.launch import LaunchSite
from pymm.backends.cuda.scratch import Scratch
from pymm.backends.cuda.tma import Check, MappedExecutable
from pymm.backends.matrices import alignment
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels.emulated import (
    Gate,
    fallback_config,
    fallback_problem,
    largest_exponents,
)
from pymm.kernels.pipelined import PIPELINED
from pymm.kernels.source import Source, render

#: Bytes of `Verdict`.
VERDICT_BYTES = 16


def checking_bytes(problem: Problem, device: Device) -> tuple[int, int]:
    """Bytes of scratch memory of a checked product besides its kernel's: the verdict, and what the
    other kernel needs.
    """
    plain = fallback_problem(problem)
    return VERDICT_BYTES, PIPELINED.workspace(fallback_config(plain, device), plain)


class CheckedExecutable(MappedExecutable):
    """A kernel with split operands for a type with a fallback. The verdict on a product is in
    memory of its stream or graph, zero between products.
    """

    def __init__(
        self,
        *common: Any,
        load: Callable[[Source], CudaExecutable],
        verdicts: Scratch,
    ) -> None:
        super().__init__(*common)
        self._fallback, self._verdicts = load, verdicts

    def _check(self, place: LaunchSite, given: tuple, bias: Vector | None) -> Check:
        problem, alpha, a, b, beta, c = given
        plain = fallback_problem(problem)
        other = self._fallback(self._plain_source(plain, (a, b, c)))
        verdict = self._lease(place, VERDICT_BYTES, self._verdicts)
        gate = verdict.address, largest_exponents(problem.k)
        launch, function, memory = other.gated(place, plain, alpha, a, b, beta, c, bias, gate)
        return Check(gate, launch, function, (other, verdict, memory))

    def _plain_source(self, problem: Problem, matrices: tuple[Matrix, ...]) -> Source:
        aligned, epilogue = alignment(problem, matrices), self._source.epilogue
        config = fallback_config(problem, self._device)
        return render(config, problem, aligned, epilogue, Gate.NOT_EXACT)
