"""O2: element by element against blocked through shared memory, seen from every side."""

from __future__ import annotations

from pymm.suites.declaration import CHOSEN, EVERY, LOCKED, NO_JOURNEY, Experiment

#: 32 x 32 threads, as the original has them.
ELEMENT, BLOCKED = "01-MB32-NB32", "02-MB32-NB32-KB32"
BOTH = (ELEMENT, BLOCKED)

NO_BLOCKS = "blocks of 8 x 8, 16 x 16 and 32 x 32 threads are a GPU's"
NO_RESOURCES = "registers, shared memory and occupancy are a GPU's"

SIDES = (8, 16, 32)
SQUARES = tuple(f"02-MB{side}-NB{side}-KB{side}" for side in SIDES)

EXPERIMENTS = (
    Experiment(
        "o2-transfers",
        "total time and kernel time, with pageable and with page-locked host memory",
        "640,1024,2048,3200",
        rungs=BOTH, on_cpu=(), why_not=NO_JOURNEY, figures="journeys", libraries=False,
        transfers=("pageable", "pinned", "registered", LOCKED),
    ),
    Experiment(
        "o2-split",
        "where the time goes: to the device, kernel, to the host",
        "640,1024,2048,4096,8192",
        rungs=(ELEMENT, BLOCKED, CHOSEN), on_cpu=(), why_not=NO_JOURNEY, figures="journeys",
        libraries=False, transfers=("pageable", LOCKED),
    ),
    Experiment(
        "o2-sizes",
        "GFLOP/s against N, multiples of 32, kernel alone and with its transfers",
        "o2-multiples",
        rungs=(*BOTH, CHOSEN), figures="journeys", transfers=("pageable",), seconds=0.05,
    ),
    Experiment(
        "o2-remainders",
        "the influence of remainders: every N from 1000 to 1100",
        "o2-remainders",
        rungs=(*BOTH, CHOSEN), on_cpu=("01", CHOSEN), seconds=0.05,
    ),
    Experiment(
        "o2-blocks",
        "blocks of 8 x 8, 16 x 16 and 32 x 32 threads",
        "640,1024,2048,3200",
        rungs=(*(f"01-MB{side}-NB{side}" for side in SIDES), *SQUARES),
        on_cpu=(), why_not=NO_BLOCKS, libraries=False,
    ),
    Experiment(
        "o2-kernels",
        "a table of the kernels: grid, block, registers, shared memory, occupancy, throughputs",
        "4096",
        rungs=(EVERY, CHOSEN), on_cpu=(), why_not=NO_RESOURCES, figures="resources",
        dtypes=("f32", "f64", "f16", "bf16", "tf32", "tf32x3"), libraries=False,
    ),
    Experiment(
        "o2-counts",
        "operations and accesses to memory of a thread, counted and by formula",
        "64,96,100",
        rungs=("00", *(f"01-MB{side}-NB{side}" for side in SIDES), *SQUARES,
               "03-MB32-NB32-KB8-TA4-TB4", "04-MB32-NB32-KB8-TA4-TB4"),
        figures="counts", libraries=False,
    ),
)  # fmt: skip
