"""The experiments by name, and what each compares.

O1: tiles in shared memory compared with one thread per element that reads global memory. O2: one
thread per element compared with tiles in shared memory: sizes, transfers, blocks, resources. O3: C
= A^T A in double precision, compared with cuBLAS and a naive kernel. O4: the first five kernels
compared with the sequential product, C = C + A B: speed-up and relative error.
"""

from __future__ import annotations

from pymm.bench.experiments.declaration import CHOSEN, EVERY, LOCKED, NO_JOURNEY, Experiment

#: Widths of the tiles, and of the blocks of both kernels.
WIDTHS = (16, 32)

O1 = (
    Experiment(
        "o1",
        "one thread per element and shared-memory tiles, by size",
        "128,256,512,768,1024,1536,2048,3072,4096",
        on_gpu=(
            *(f"01-MB{width}-NB{width}" for width in WIDTHS),
            *(f"02-MB{width}-NB{width}-KB{width}" for width in WIDTHS),
        ),
    ),
)


#: 32 x 32 threads, as in the original experiments; without guards at multiples of 32.
BOTH = ("01-MB32-NB32", "02-MB32-NB32-KB32")
#: The same by their names there: for multiples of the block, and for any extents.
MULTIPLES, ANY = ("kernel00", "kernel10"), ("kernel01", "kernel11")

NO_BLOCKS = "blocks of 8 x 8, 16 x 16 and 32 x 32 threads are a GPU's"
NO_GUARDS = "a CPU's kernels take any extents: no variant of them is without guards"
NO_PADS = "shared memory with banks is a GPU's"
NO_RESOURCES = "registers, shared memory and occupancy are a GPU's"

SIDES = (8, 16, 32)
ELEMENTS = tuple(f"01-MB{side}-NB{side}" for side in SIDES)
SQUARES = tuple(f"02-MB{side}-NB{side}-KB{side}" for side in SIDES)
#: Smaller blocks without guards, and with guards of the final write alone.
UNGUARDED = (
    *(f"{text} unguarded" for text in (*ELEMENTS[:-1], *SQUARES[:-1])),
    *(f"{text} writes guarded" for text in SQUARES[:-1]),
)

O2 = (
    Experiment(
        "o2-transfers",
        "total time and kernel time, from pageable and from page-locked host memory",
        "640,1024,2048,3200",
        on_gpu=BOTH,
        on_cpu=(),
        why_not=NO_JOURNEY,
        figures="journeys",
        libraries=False,
        transfers=("pageable", "pinned", "registered", LOCKED),
    ),
    Experiment(
        "o2-split",
        "time by part: transfer to the device, kernel, transfer to the host",
        "640,1024,2048,4096,8192",
        on_gpu=(*BOTH, CHOSEN),
        on_cpu=(),
        why_not=NO_JOURNEY,
        figures="journeys",
        libraries=False,
        transfers=("pageable", LOCKED),
    ),
    Experiment(
        "o2-sizes",
        "GFLOP/s by N, multiples of 32, with and without transfers",
        "o2-multiples",
        on_gpu=(*BOTH, *ANY, CHOSEN),
        figures="journeys",
        transfers=("pageable",),
        seconds=0.05,
    ),
    Experiment(
        "o2-remainders",
        "partial tiles: every N from 1000 to 1100",
        "o2-remainders",
        on_gpu=(*ELEMENTS, *SQUARES, CHOSEN),
        on_cpu=("01", CHOSEN),
        seconds=0.05,
    ),
    Experiment(
        "o2-blocks",
        "blocks of 8 x 8, 16 x 16 and 32 x 32 threads",
        "o2-multiples",
        on_gpu=(*ELEMENTS, *SQUARES),
        on_cpu=(),
        why_not=NO_BLOCKS,
        libraries=False,
        seconds=0.05,
    ),
    Experiment(
        "o2-guards",
        "what is not guarded fails where no block ends: TEST PASS or TEST FAIL, by kernel",
        "640,641",
        on_gpu=(*MULTIPLES, *ANY, "02 writes guarded", *UNGUARDED),
        on_cpu=(),
        why_not=NO_GUARDS,
        figures="guards",
        libraries=False,
    ),
    Experiment(
        "o2-kernels",
        "grid, block, registers, shared memory, occupancy and throughput of each kernel",
        "4096",
        on_gpu=(EVERY, CHOSEN),
        on_cpu=(),
        why_not=NO_RESOURCES,
        figures="resources",
        dtypes=("f32", "f64", "f16", "bf16", "tf32", "tf32x3"),
        libraries=False,
    ),
    Experiment(
        "o2-counts",
        "operations and memory accesses of a thread, counted and by formula",
        "64,96,100",
        on_gpu=(
            "00",
            *ELEMENTS,
            *SQUARES,
            "03-MB32-NB32-KB8-TA4-TB4",
            "04-MB32-NB32-KB8-TA4-TB4",
        ),
        figures="counts",
        libraries=False,
    ),
)


#: The original's two kernels: a naive one, which computes all of C, and tiles of 48 x 48 elements,
#: 16 x 16 threads, 3 x 3 elements each.
NAIVE_WHOLE, TILE_48 = "00 all of C", "15"

#: A is N x N for N from 500 to 18500, then N/2 x N up to 20500.
WHOLE, HALVED = range(500, 18501, 1000), range(500, 20501, 1000)

O3 = (
    Experiment(
        "o3",
        "C = A^T A for A of N x N and of N/2 x N",
        ",".join([*map(str, WHOLE), *(f"{n}x{n}x{n // 2}" for n in HALVED)]),
        on_gpu=(NAIVE_WHOLE, TILE_48, CHOSEN),
        dtypes=("f64",),
        layout="TN",
        op="syrk",
        runs=3,
    ),
    Experiment(
        "o3-pads",
        "padding against bank conflicts, A^T A with A by columns; 16 is as none",
        "1500,2500,5500",
        on_gpu=tuple(f"{TILE_48}-PAD{pad}" for pad in (1, 2, 4, 8, 16)),
        on_cpu=(),
        why_not=NO_PADS,
        dtypes=("f64",),
        layout="NT",
        op="syrk",
        libraries=False,
    ),
)


LADDER = ("00", "01", "02", "03", "04", CHOSEN)

O4 = (
    Experiment(
        "o4-square",
        "C + A B, squares from 250 to 10000",
        "o4-square",
        on_gpu=LADDER,
        on_cpu=("01", CHOSEN),
        figures="sequential",
        runs=3,
        accumulate=True,
    ),
    Experiment(
        "o4-rectangular",
        "C + A B, rectangular: m = n in thousands, k = 32, 64, 128, 156",
        "o4-rank-k",
        on_gpu=LADDER,
        on_cpu=("01", CHOSEN),
        figures="sequential",
        runs=3,
        accumulate=True,
    ),
)


#: The run over all classes of products, `pymm.bench.classes`: a suite by name only.
GOALS, ALL = "goals", "all"

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment for experiment in (*O1, *O2, *O3, *O4)
}

SUITES = (*EXPERIMENTS, GOALS)


def suites_named(text: str) -> list[str]:
    """The suites that a text names, in the order of the catalog: names between commas, the
    beginning of several (`o2`, `o4`), or `all`. `ValueError` for anything else.
    """
    found = set()
    for piece in text.split(","):
        at = [name for name in SUITES if piece in (name, name.split("-")[0], ALL)]
        if not at:
            raise ValueError(f"suite {piece!r} is none of {', '.join([*SUITES, ALL])}")
        found.update(at)
    return [name for name in SUITES if name in found]
