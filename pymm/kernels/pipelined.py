"""Kernel 5: the register tile loaded by asynchronous copies in stages."""

from __future__ import annotations

from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import SPLIT_RULES, STAGES_FIT, THREADS_FIT, blocks_fit, registers_fit
from pymm.kernels.simt import words
from pymm.kernels.tiles import tiles, workspace_bytes


def _vectors_are_shared(c: Config, p: Problem) -> bool:
    """True if the threads share both tiles evenly, whether they copy 16 bytes at a time or one
    element.
    """
    threads = c.kernel.threads(c)
    lines = (
        (c.MB, c.KB) if p.trans_a else (c.KB, c.MB),
        (c.KB, c.NB) if p.trans_b else (c.NB, c.KB),
    )
    for size in (p.numpy_dtype.itemsize, 16):
        for length, count in lines:
            vectors = length * p.numpy_dtype.itemsize // size
            if not vectors or vectors * count % threads:
                return False
            if threads % vectors and vectors % threads:
                return False
    return True


def _pitches(c: Config, p: Problem) -> tuple[int, int]:
    """Elements of a row of the tiles of A and B: transposed ones are padded."""
    vector = 16 // p.numpy_dtype.itemsize
    return c.MB + vector * (not p.trans_a), c.NB + vector * p.trans_b


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: accumulators, two fragments of A and of B, and 24 for the rest (nvcc
    13.0 keeps 8 x 8 of floats in 128 registers without spilling).
    """
    return (c.TA * c.TB + 2 * (c.TA + c.TB)) * words(p) + 24


PIPELINED = Kernel(
    number=5,
    name="pipelined",
    file="05_pipelined.cu",
    title="asynchronous copies in stages, fragments read ahead, compact tiles for warps",
    space=dict(
        MB=(32, 64, 128, 256),
        NB=(32, 64, 128, 256),
        KB=(8, 16, 32),
        TA=(4, 8, 16),
        TB=(4, 8, 16),
        LANES=(4, 8),
        STAGES=(2, 3, 4),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(8,),
        SPLIT=(1, 2, 4, 8, 16, 32),
    ),
    default=dict(MB=64, NB=128, KB=16, TA=8, TB=8, LANES=4, STAGES=3, BLOCKS=3, GROUP=8, SPLIT=1),
    fallbacks=(
        dict(MB=64, NB=64, KB=16, TA=4, TB=4, LANES=4, STAGES=3, BLOCKS=2, GROUP=8, SPLIT=1),
    ),
    threads=lambda c: c.MB * c.NB // (c.TA * c.TB),
    block=lambda c: (c.MB * c.NB // (c.TA * c.TB), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=lambda c, p: c.STAGES * c.KB * sum(_pitches(c, p)),
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    rules=(
        Rule(
            "warps tile the block evenly: TA * LANES divides MB and TB * 32 / LANES divides NB",
            lambda c, p, d: (
                32 % c.LANES == 0
                and c.MB % (c.TA * c.LANES) == 0
                and c.NB % (c.TB * 32 // c.LANES) == 0
            ),
        ),
        Rule(
            "fragments are made of 16-byte vectors",
            lambda c, p, d: (
                c.TA * p.numpy_dtype.itemsize % 16 == 0 and c.TB * p.numpy_dtype.itemsize % 16 == 0
            ),
        ),
        Rule(
            "a tile is fetched while another is used: STAGES, KB >= 2",
            lambda c, p, d: c.STAGES >= 2 and c.KB >= 2,
        ),
        THREADS_FIT,
        Rule(
            "threads share the pieces of both tiles evenly",
            lambda c, p, d: _vectors_are_shared(c, p),
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
