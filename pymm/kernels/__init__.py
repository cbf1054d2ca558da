"""The declarations of all kernels: search space, default, rules, geometry, shared memory.

A limit on a configuration is a named `Rule` here and nowhere else; the `static_assert`s of the
kernel files mirror the rules that do not depend on the device.
"""

from __future__ import annotations

from functools import lru_cache

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import survey
from pymm.kernels.cpu import BLOCKED, REORDERED
from pymm.kernels.expected import is_modelled
from pymm.kernels.kernel import (
    MAX_GRID_YZ,
    MAX_PARAMETER,
    Box,
    Config,
    Guards,
    Kernel,
    Persistent,
    Rule,
    Tma,
)
from pymm.kernels.ping_pong import PING_PONG
from pymm.kernels.pipelined import PIPELINED
from pymm.kernels.simt import (
    COALESCED,
    NAIVE,
    REGISTER_TILE,
    SHARED_TILE,
    SYMMETRIC_TILE,
    TRANSPOSED_A,
)
from pymm.kernels.sliced import SLICED
from pymm.kernels.tensor import TENSOR
from pymm.kernels.tensor_f64 import TENSOR_F64
from pymm.kernels.tma_f32 import TMA_F32
from pymm.kernels.tma_f32_in_place import TMA_F32_IN_PLACE
from pymm.kernels.tma_f64 import TMA_F64
from pymm.kernels.wgmma import WGMMA
from pymm.kernels.wgmma_f16x3 import WGMMA_F16X3
from pymm.kernels.wgmma_tf32 import WGMMA_TF32, WGMMA_TF32X3
from pymm.kernels.wgmma_tf32_in_place import WGMMA_TF32_IN_PLACE

__all__ = [
    "KERNELS",
    "MAX_GRID_YZ",
    "MAX_PARAMETER",
    "Box",
    "Config",
    "Guards",
    "Kernel",
    "Persistent",
    "Rule",
    "Tma",
    "find_kernel",
    "kernels_for",
    "parse_slug",
]

KERNELS: tuple[Kernel, ...] = (
    NAIVE,
    COALESCED,
    SHARED_TILE,
    REGISTER_TILE,
    TRANSPOSED_A,
    PIPELINED,
    TENSOR_F64,
    WGMMA,
    TMA_F32,
    TMA_F64,
    WGMMA_TF32,
    SLICED,
    TENSOR,
    WGMMA_TF32X3,
    WGMMA_F16X3,
    SYMMETRIC_TILE,
    PING_PONG,
    WGMMA_TF32_IN_PLACE,
    TMA_F32_IN_PLACE,
    REORDERED,
    BLOCKED,
)


def find_kernel(name: str | int, backend: str = "cuda") -> Kernel:
    """A kernel by name, by number (4) or by both ("04_transposed_a"). `ValueError` that lists
    what exists.
    """
    for kernel in KERNELS:
        if kernel.backend == backend and name in (
            kernel.name,
            kernel.number,
            str(kernel.number),
            f"{kernel.number:02d}",
            kernel.label,
        ):
            return kernel
    known = ", ".join(k.label for k in KERNELS if k.backend == backend)
    raise ValueError(f"no kernel {name!r} for {backend}; there are {known}")


#: The same, cached: every configuration looks its kernel up.
known_kernel = lru_cache(maxsize=256)(find_kernel)


def kernels_for(problem: Problem, device: Device) -> list[Kernel]:
    """The kernels that can compute `problem` on a device of this kind, in the order of their
    numbers; those that are preferred only for other problems come before all others. Kernels
    whose times are known beforehand, by a survey of the device or by their models, are ranked by
    them: that with the fastest default comes last.
    """
    able = [k for k in KERNELS if problem.dtype in k.dtypes and k.runs_on(device)]
    return sorted(able, key=lambda kernel: _rank(kernel, problem, device))


@lru_cache(maxsize=4096)
def _rank(kernel: Kernel, problem: Problem, device: Device) -> tuple[bool, float]:
    if survey.covers(problem, device):
        surveyed = survey.quickest(kernel, problem, device)
        return (False, 0.0) if surveyed is None else (True, -surveyed[0])
    if not kernel.preferred_for(problem, device):
        return False, 0.0
    if kernel.expected is None or not is_modelled(problem, device):
        return True, 0.0
    return True, -kernel.expected(kernel.default_for(problem, device), problem, device)


def parse_slug(slug: str, backend: str = "cuda", forced: bool = False) -> Config:
    """The configuration that a slug spells, with `forced` perhaps one of an experiment, which
    forces macros. `ValueError` if it spells none.
    """
    name, *fields = slug.split("-")
    kernel = find_kernel(name, backend)
    names = {field.rstrip("0123456789"): field for field in fields}
    try:
        values = {key: int(field[len(key) :]) for key, field in names.items()}
        own = set(kernel.forceable) if forced else set()
        config = kernel.config({key: value for key, value in values.items() if key not in own})
        return config.forcing(**{key: value for key, value in values.items() if key in own})
    except ValueError as error:
        raise ValueError(f"{slug!r} is not a configuration of {kernel.name}: {error}") from None
