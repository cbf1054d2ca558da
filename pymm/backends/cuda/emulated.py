"""Products whose device decides how they are computed (cuda_src/common/split_check.cuh): the
launches of a kernel with split operands, then that of a kernel of plain multiply-adds, which
returns at once where the split was exact enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pymm.backends.base import Buffer, Matrix, Vector
from pymm.backends.cuda.context import active
from pymm.backends.cuda.executable import CudaExecutable
from pymm.backends.cuda.launch import Bound, BoundLaunch, LaunchSite
from pymm.backends.cuda.scratch import Scratch
from pymm.backends.cuda.tma import Check, Copy, MappedExecutable, repacking, wanted_copies
from pymm.backends.matrices import alignment
from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels.emulated import (
    Gate,
    fallback_config,
    largest_exponents,
    plain_problem,
)
from pymm.kernels.pipelined import PIPELINED
from pymm.kernels.rules import resident
from pymm.kernels.source import Source, render

#: Bytes of `Verdict`.
VERDICT_BYTES = 16


def checking_bytes(problem: Problem, device: Device) -> tuple[int, int]:
    """Bytes of scratch memory of a checked product besides its kernel's: the verdict, and what the
    other kernel needs.
    """
    plain = plain_problem(problem)
    return VERDICT_BYTES, PIPELINED.workspace(fallback_config(plain, device), plain)


class Split(NamedTuple):
    """An operand that was split before: how, where it and the verdict on it are, and the owner of
    that memory.
    """

    copy: Copy
    address: int
    verdict: int
    owner: Any


class CheckedExecutable(MappedExecutable):
    """A kernel with split operands for a checked type. The verdict on a product is in
    memory of its stream or graph, zero between products.
    """

    def __init__(
        self,
        *common: Any,
        load: Callable[[Source], CudaExecutable],
        verdicts: Scratch,
        zeroed: Callable[[int], Buffer],
    ) -> None:
        super().__init__(*common)
        self._fallback, self._verdicts, self._zeroed = load, verdicts, zeroed

    def split(self, problem: Problem, which: int, matrix: Matrix, stream: Any) -> Split | None:
        """A (`which` is 0) or B of a product, split on a stream. Waits for that. None if k is 0."""
        copy = wanted_copies(self._tma, problem, matrix, matrix)[which]
        if copy is None:
            return None
        context = self._contexts.current()
        what = f"splitting {copy.rows} x {copy.columns} elements"
        place = self._place(context, stream, 0, what)
        memory = self._zeroed(round_up(copy.nbytes, VERDICT_BYTES) + VERDICT_BYTES)
        found = Split(copy, memory.address, memory.address + memory.nbytes - VERDICT_BYTES, memory)
        launch = repacking([(0, copy, matrix, copy.at(found.address))], (found.verdict, 0))
        bound = Bound((matrix,), self.split, False)
        BoundLaunch(place, [launch], (self, matrix, memory), bound)()
        with active(context):
            self._driver.synchronize(place.stream)
        return found

    def _check(self, place: LaunchSite, given: tuple, bias: Vector | None) -> Check:
        problem, alpha, a, b, beta, c = given
        plain = plain_problem(problem)
        other = self._fallback(self._plain_source(plain, (a, b, c)))
        verdict = self._lease(place, VERDICT_BYTES, self._verdicts)
        gate = verdict.address, largest_exponents(problem.k)
        held = resident(other.config, plain, self._device, other.resources.registers)
        at_once = held * self._device.sms
        given = plain, alpha, a, b, beta, c, bias
        launch, function, memory = other.gated(place, *given, gate, at_once)
        return Check(gate, launch, function, (other, verdict, memory))

    def _plain_source(self, problem: Problem, matrices: tuple[Matrix, ...]) -> Source:
        aligned, epilogue = alignment(problem, matrices), self._source.epilogue
        config = fallback_config(problem, self._device)
        return render(config, problem, aligned, epilogue, Gate.NOT_EXACT)
