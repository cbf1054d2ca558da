"""The data model of a suite: what an experiment compares, on which products, which figures."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import Config, Guards, find_kernel

#: A way of transfer besides the backend's own: arrays whose pages are locked for good, as a program
#: would have them that allocates them so.
LOCKED = "locked"

#: A contestant: a kernel, perhaps with other parameters than its default's (`02-MB16-NB16-KB16`)
#: and with a word of `FORCED` behind it (`02-MB16-NB16-KB16 unguarded`), an alias of such a text,
#: all kernels, or what matmul chooses.
CHOSEN, EVERY = "chosen", "all"

#: Why a CPU has no transfers.
NO_JOURNEY = "a CPU's kernels use the operands in place: nothing is copied"

#: Variants in which a kernel computes otherwise than the problem asks for: macros that are forced.
FORCED = {
    "unguarded": {"GUARDED": Guards.OFF},
    "guarded": {"GUARDED": Guards.ON},
    "writes guarded": {"GUARDED": Guards.WRITE},
    "all of C": {"FILL": 0},
}

#: The kernels of the course's experiment O2 by the names that they have there: one thread for an
#: element or tiles in shared memory (0, 1), for multiples of the block or for any extents (0, 1).
ALIASES = {
    "kernel00": "01 unguarded",
    "kernel01": "01 guarded",
    "kernel10": "02 unguarded",
    "kernel11": "02 guarded",
}

_KERNEL = re.compile(r"(\d\d)((?:-[A-Z]+[0-9]+)*)(?: ([a-zC ]+))?")
_PARAMETER = re.compile(r"([A-Z]+)([0-9]+)")


@dataclass(frozen=True)
class Experiment:
    """One experiment, as data.

    `shapes` is text for `parse_shapes`, for every type of `dtypes`. `on_gpu` are the contestants on
    a GPU and `on_cpu` on a CPU; none there means that it has no such thing, and `why_not` says so.
    `figures` names what is measured: "times" of the kernels; "journeys": also transfers of the
    operands, with all of `transfers`; "resources" of the kernels; "counts" of operations and
    accesses, in the simulator; "sequential": also the sequential kernel, as the measure of speed
    and result; "guards": whether what is not guarded fails where it must. `libraries` run in the
    same rounds. With `accumulate` C = C + A B is computed, else C = A B. Of `runs` times the mean
    is wanted; else there are as many rounds as fit in `seconds`.
    """

    name: str
    title: str
    shapes: str
    on_gpu: tuple[str, ...]
    on_cpu: tuple[str, ...] = ("00", "01")
    why_not: str = ""
    dtypes: tuple[str, ...] = ("f32",)
    layout: str = "NN"
    op: str = "gemm"
    figures: str = "times"
    transfers: tuple[str, ...] = ()
    libraries: bool = True
    runs: int | None = None
    seconds: float = 0.1
    accumulate: bool = False

    def contestants_on(self, device: Device) -> tuple[str, ...]:
        """The contestants on a device."""
        return self.on_cpu if device.kernel_backend == "cpu" else self.on_gpu


def fixed(text: str, problem: Problem, device: Device) -> tuple[str, Config]:
    """The variant and configuration of a contestant that names a kernel. `ValueError` for a text
    that names none.
    """
    match = _KERNEL.fullmatch(ALIASES.get(text, text))
    if match is None or match[3] not in (None, *FORCED):
        raise ValueError(f"{text!r} names no kernel: write 02 or 02-MB16-NB16-KB16")
    kernel = find_kernel(match[1], device.kernel_backend)
    default = kernel.default_for(problem, device)
    given = {name: int(value) for name, value in _PARAMETER.findall(match[2])}
    config = kernel.config({**default.as_dict(), **given})
    if match[3]:
        return match[3], config.forcing(**FORCED[match[3]])
    return "fixed" if given else "default", config
