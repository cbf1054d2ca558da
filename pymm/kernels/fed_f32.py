"""Kernel 8: float32 in plain multiply-adds, fed by the tensor memory accelerator."""

from __future__ import annotations

from pymm.device import Device
from pymm.kernels.declaration import (
    PARTS_FIT,
    PARTS_HAVE_STEPS,
    STAGES_FIT,
    THREADS_FIT,
    Box,
    Config,
    Feed,
    Kernel,
    Rule,
)
from pymm.kernels.split import tiles
from pymm.problem import Problem


def _warps(c: Config) -> int:
    """Warps that multiply; four more fetch."""
    return c.MB * c.NB // (c.TA * c.TB * 32) * c.SLICES


def _threads(c: Config) -> int:
    return 32 * (_warps(c) + 4)


def _registers(c: Config) -> int:
    """Registers of a thread that multiplies: its part of all that the block was launched with, of
    which the four warps that fetch keep 24 for each thread.
    """
    warps = _warps(c)
    launched = min(65536 // (c.BLOCKS * _threads(c)) // 8 * 8, 248)
    return min(((warps + 4) * launched - 4 * 24) // max(warps, 1) // 8 * 8, 248)


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages, two barriers for each, and the sums of all slices but the first."""
    return c.STAGES * (c.KB * (c.MB + c.NB) + 4) + (c.SLICES - 1) * c.MB * c.NB


def _stay_together(c: Config, p: Problem, d: Device) -> bool:
    """True if a multiprocessor has room for BLOCKS blocks."""
    return (
        c.BLOCKS * _threads(c) <= d.max_threads_per_sm
        and c.BLOCKS * (c.kernel.shared_bytes(c, p) + 1024) <= d.shared_per_sm
    )


def _config(mb: int, nb: int, kb: int, ta: int, tb: int, **others: int) -> dict[str, int]:
    usual = dict(SLICES=1, STAGES=4, BLOCKS=1, GROUP=8, SPLIT=1)
    tile = dict(MB=mb, NB=nb, KB=kb, ROWS=8, EARLY=1, STRIDE=4, TA=ta, TB=tb)
    return tile | usual | others


TMA_F32 = Kernel(
    number=8,
    name="tma_f32",
    file="08_tma_f32.cu",
    title="Hopper: plain multiply-adds of tiles that come by TMA, no barrier for all",
    space=dict(
        MB=(32, 64, 128, 160, 256),
        NB=(64, 128, 160, 256),
        KB=(16, 32, 64),
        ROWS=(8,),
        EARLY=(1, 2),
        STRIDE=(2, 4),
        TA=(8, 16, 20),
        TB=(8, 20),
        SLICES=(1, 2, 4, 8),
        STAGES=(3, 4),
        BLOCKS=(1, 2, 3),
        GROUP=(8,),
        SPLIT=(1, 2, 3, 4, 8),
    ),
    default=_config(256, 128, 32, 16, 8),
    fallbacks=(_config(64, 128, 32, 16, 8, SLICES=4), _config(64, 64, 16, 8, 8, SLICES=2)),
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), 1),
    shared_elements=_shared_elements,
    dtypes=("f32",),
    dynamic_shared=True,
    capability=(9, 0),
    hopper=Feed(
        boxes=lambda c, p: (Box(c.MB, c.KB, 0), Box(c.NB, c.KB, 0), None),
        along=("mn", "mn"),
        resident=lambda c: c.BLOCKS,
    ),
    rules=(
        Rule(
            "warps of 4 x 8 threads tile the block evenly: 4 TA divides MB and 8 TB divides NB",
            lambda c, p, d: c.MB % (4 * c.TA) == 0 and c.NB % (8 * c.TB) == 0,
        ),
        Rule(
            "fragments are made of 16-byte vectors",
            lambda c, p, d: c.TA % 4 == 0 and c.TB % 4 == 0,
        ),
        Rule(
            "a tile is one box: MB, NB, KB <= 256",
            lambda c, p, d: max(c.MB, c.NB, c.KB) <= 256,
        ),
        Rule(
            "passes are whole: EARLY is 1 or 2, 2 EARLY divides ROWS, ROWS * SLICES divides KB",
            lambda c, p, d: (
                c.EARLY in (1, 2)
                and c.ROWS % (2 * c.EARLY) == 0
                and c.KB % (c.ROWS * c.SLICES) == 0
            ),
        ),
        Rule("STRIDE is 1, 2 or 4", lambda c, p, d: c.STRIDE in (1, 2, 4)),
        Rule(
            "a tile is fetched while another is used: STAGES >= 2",
            lambda c, p, d: c.STAGES >= 2,
        ),
        Rule(
            "registers change hands between warpgroups: 4 warps or a multiple",
            lambda c, p, d: _warps(c) > 0 and _warps(c) % 4 == 0,
        ),
        Rule(
            "sums, fragments and 24 more fit in the registers of a thread",
            lambda c, p, d: c.TA * c.TB + (c.EARLY + 1) * (c.TA + c.TB) + 24 <= _registers(c),
        ),
        THREADS_FIT,
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
        Rule("BLOCKS blocks fit in a multiprocessor", _stay_together),
    ),
)
