"""What a call would do and why, in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Resources
from pymm.core.device import Device
from pymm.core.epilogue import Epilogue
from pymm.core.problem import Problem
from pymm.core.rows import InRows
from pymm.kernels import Config
from pymm.runtime.arguments import Adopt, Options
from pymm.runtime.arrays import ArraySpec, Operand, adopt
from pymm.runtime.bind import (
    epilogue_of,
    executable,
    find_backend,
    find_product,
    find_route,
)
from pymm.runtime.layout import Product
from pymm.selection.choose import choose
from pymm.selection.stand_in import known_stand_in, standing_in


@dataclass(frozen=True)
class Explanation(InRows):
    """What `pymm.matmul` would do with the same arguments. `str()` of it is for reading.

    `grid` and `block` are (x, y, z), of the first launch; `copies` one sentence for each copy or
    transfer; `rejected` how many configurations of the kernel each rule turns down, out of
    `candidates`; `resources` None for an empty product, which launches nothing; `epilogue` the
    activation and the dtype of the bias; `why_type` why a product that may be computed in two types
    is of that type.
    """

    problem: Problem
    device: Device
    config: Config
    reason: str
    launches: int
    swapped: bool
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    threads: int
    guarded: bool
    shared_bytes: int
    resources: Resources | None
    copies: tuple[str, ...]
    candidates: int
    rejected: Counter[str]
    epilogue: Epilogue
    why_type: str = ""

    def _rows(self) -> list[tuple[str, str]]:
        kernel, p = self.config.kernel, self.problem
        rows = [
            ("problem", f"{p.slug}: C is {p.m} x {p.n}, k = {p.k}, {p.flops:,} operations"),
            *self._precision(),
            ("device", self.device.name),
            ("kernel", f"{kernel.label}: {kernel.title}"),
            ("configuration", self.config.slug),
            ("because", self.reason),
            ("launches", self._launches()),
        ]
        if self.epilogue:
            rows.append(("epilogue", f"{self.epilogue}, fused into the store of C"))
        if self.device.kernel_backend != "cpu":
            rows += [
                ("grid", f"{_by(self.grid)} blocks of {_by(self.block)} = {self.threads} threads"),
                ("shared memory", f"{self.shared_bytes:,} bytes a block"),
            ]
        if self.resources is not None and self.resources.registers:
            spilled = self.resources.spilled_bytes
            spills = f"{spilled} bytes spilled" if spilled else "none spilled"
            rows.append(("registers", f"{self.resources.registers} a thread, {spills}"))
        rows += [("" if i else "copies", text) for i, text in enumerate(self.copies or ("none",))]
        allowed = self.candidates - self.rejected.total()
        rows.append(("space", f"{allowed} of {self.candidates} configurations may run"))
        rows += [("", f"{n} break: {rule}") for rule, n in self.rejected.most_common()]
        return rows

    def _precision(self) -> list[tuple[str, str]]:
        row = self.problem.type
        words = row.name
        if row.checked:
            words = f"operands are split; where the device finds that not exact enough, {row.plain}"
        return [("precision", f"{words} ({self.why_type})")] if self.why_type else []

    def _launches(self) -> str:
        words = str(self.launches)
        words += ", some tiles partial (guarded)" if self.guarded else ", whole tiles only"
        if self.problem.fill == "full":
            whole = self.problem.in_full and self.device.kernel_backend != "cpu"
            words += "; both halves are computed" if whole else _MIRRORED
        if self.swapped:
            words += "; C is column-major, so C^T = op(B)^T op(A)^T is computed"
        return words if self.launches else "none: the result has no elements"


def explain_call(options: Options, *operands: Any, out: Any, c: Any, **more: Any) -> Explanation:
    """What a call with these options and arrays, or shapes of arrays, would do."""
    call = options.check(*operands, out=out, c=c, adopt=shape_adopter(options), **more)
    backend = find_backend(call, options.device)
    if options.stream is not None:
        backend.stream(options.stream)
    route = find_route(backend, call, options.transfer)
    product, why = find_product(call, route, options)
    choice = choose(backend, product.problem, options.kernel, options.config, prefer=options.prefer)
    found = None
    if options.kernel is None and options.config is None and not call.epilogue:
        found = known_stand_in(backend, product.problem, choice)
    choice = standing_in(choice, found) if found else choice
    said = choice.config, choice.reason, route.notes, epilogue_of(call, product)
    return _explained(backend, product, *said, why, found.problem if found else product.problem)


def shape_adopter(options: Options) -> Adopt:
    """What makes operands of arrays, and of tuples that are shapes of arrays."""
    return partial(_adopt, dtype=options.dtype)


def _adopt(array: Any, name: str, dtype: np.dtype | None) -> Operand:
    """The operand for an array, or for the shape of an array of `dtype`."""
    if not (isinstance(array, tuple) and all(type(extent) is int for extent in array)):
        return adopt(array, name)
    if any(extent < 0 for extent in array):
        raise ValueError(f"{name} has shape {array}, with a negative extent")
    wanted = np.dtype(np.float64) if dtype is None else dtype
    return Operand(name, "numpy", 0, ArraySpec.packed(array, wanted), None)


def _explained(
    backend: Backend,
    product: Product,
    config: Config,
    reason: str,
    copies: tuple[str, ...],
    epilogue: Epilogue,
    why: str,
    compiled_for: Problem,
) -> Explanation:
    problem, kernel = product.problem, config.kernel
    valid, rejected = kernel.configs(problem, backend.device)
    resources = None
    if product.steps:
        resources = executable(backend, config, compiled_for, epilogue=epilogue).resources
    return Explanation(
        problem=problem,
        device=backend.device,
        config=config,
        reason=reason,
        launches=len(product.steps),
        swapped=product.swapped,
        grid=kernel.grid(config, problem, backend.device.sms),
        block=kernel.block(config),
        threads=kernel.threads(config),
        guarded=kernel.guarded(config, compiled_for),
        shared_bytes=kernel.shared_bytes(config, problem),
        resources=resources,
        copies=copies,
        candidates=len(valid) + rejected.total(),
        rejected=rejected,
        epilogue=epilogue,
        why_type=why,
    )


_MIRRORED = "; the lower half is computed and mirrored"


def _by(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))
