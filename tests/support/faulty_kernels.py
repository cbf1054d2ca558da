"""Kernels that are broken on purpose, one fault for each value of FAULT, and what a tuner is to
make of each. Importing this module declares nothing; `register_faults` does.
"""

from pathlib import Path

from pymm import kernels
from pymm.kernels import Kernel

FAULTS = Path(__file__).parent / "faults"

#: Outcome of each fault, on a CPU and on a GPU. 1 is right.
ON_CPU = {
    1: "ok",
    2: "wrong",
    3: "crashed",
    4: "timed_out",
    5: "wrong",
    6: "wrong",
    7: "compile_failed",
    8: "crashed",
    9: "crashed",
    10: "launch_failed",
    11: "wrong",
    12: "wrong",
    13: "wrong",
    14: "wrong",
    15: "wrong",
}
ON_CUDA = {
    1: "ok",
    2: "wrong",
    3: "launch_failed",
    4: "timed_out",
    5: "wrong",
    6: "wrong",
    7: "compile_failed",
    8: "wrong",
    9: "wrong",
    10: "wrong",
    11: "wrong",
}

#: Those that write where they must not: on a CPU the process that they ran in is replaced.
STRAYS_ON_CPU = (5, 6, 11, 12, 13, 14)


def _kernel(backend: str, file: str, faults: dict[int, str]) -> Kernel:
    return Kernel(
        number=90,
        name="faulty",
        file=str(FAULTS / file),
        title="broken on purpose",
        space=dict(MB=(16,), NB=(16,), FAULT=tuple(faults)),
        default=dict(MB=16, NB=16, FAULT=1),
        block=lambda c: (c.NB, c.MB, 1),
        threads=lambda c: c.MB * c.NB,
        rules=(),
        backend=backend,
    )


CPU = _kernel("cpu", "faulty.cpp", ON_CPU)
CUDA = _kernel("cuda", "faulty.cu", ON_CUDA)


def declared() -> tuple[Kernel, ...]:
    """All kernels, the faulty ones among them."""
    return (*kernels.KERNELS, CPU, CUDA)
