"""Kernel 8: float32 in plain multiply-adds, operands loaded by the tensor memory accelerator
(TMA).
"""

from __future__ import annotations

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma, parts_bytes
from pymm.kernels.rules import (
    PARTS_HAVE_STEPS,
    STAGES_FIT,
    STAGES_OVERLAP,
    THREADS_FIT,
    TILES_ALIKE,
    blocks_fit,
)
from pymm.kernels.tiles import tiles


def _warps(c: Config) -> int:
    """Warps that multiply; four more load."""
    return c.MB * c.NB // (c.TA * c.TB * 32) * c.SLICES


def _threads(c: Config) -> int:
    return 32 * (_warps(c) + 4)


def _registers(c: Config) -> int:
    """Registers of a thread that multiplies: its part of all that the block was launched with, of
    which the four warps that load keep 24 for each thread.
    """
    warps = _warps(c)
    launched = min(65536 // (c.BLOCKS * _threads(c)) // 8 * 8, 248)
    return min(((warps + 4) * launched - 4 * 24) // max(warps, 1) // 8 * 8, 248)


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages and two barriers for each, in whole 128 bytes, the sums of all slices but the
    first, and C on its way out, if it goes that way.
    """
    ring = round_up(c.STAGES * (c.KB * (c.MB + c.NB) + 4), 32)
    return ring + (c.SLICES - 1 + (c.STORE == 2)) * c.MB * c.NB


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box | None]:
    """MN-major rows of both operands, and what a warp has of C."""
    out = Box(8 * c.TB, 4 * c.TA, 0) if c.STORE == 2 else None
    return Box(c.MB, c.KB, 0), Box(c.NB, c.KB, 0), out


#: Bytes that the parts of a split product may take: four of 4097 x 4097.
_MAX_PARTS_BYTES = 384 * 2**20

# The default: the configuration with the least expected time, by a few measured times


def _form(mb: int, nb: int, ta: int, tb: int, **others: int) -> dict[str, int]:
    usual = dict(SLICES=1, STAGES=3, BLOCKS=2, GROUP=8, SPLIT=1, STORE=1)
    tile = dict(MB=mb, NB=nb, KB=32, ROWS=8, EARLY=1, STRIDE=1, TA=ta, TB=tb)
    return tile | usual | others


#: Forms of a block, and the multiply-adds that a multiprocessor does in a clock with them (of 128,
#: measured on an H200: benchmarks/LOG.md).
_FORMS = (
    (_form(128, 128, 8, 16), 112.7),
    (_form(128, 160, 8, 20), 112.9),
    (_form(256, 128, 8, 16, STAGES=4, BLOCKS=1), 110.8),
    (_form(128, 128, 8, 16, KB=16, STORE=2), 108),
    (_form(64, 128, 8, 8, STRIDE=4, SLICES=2, STAGES=4, BLOCKS=1), 98),
    (_form(64, 64, 8, 8, SLICES=4, BLOCKS=1), 88),
    (_form(64, 64, 8, 8, STRIDE=4, SLICES=2, STAGES=4), 104),
    (_form(64, 64, 8, 8, SLICES=2, BLOCKS=3), 103),
    (_form(64, 64, 8, 8, KB=16, SLICES=2, STAGES=4, BLOCKS=3, STORE=2), 99),
)

#: Fits wherever TMA is.
_SMALLEST = _form(64, 64, 8, 8, STRIDE=4, SLICES=2, BLOCKS=1)

#: Clocks of a microsecond; microseconds of a tile besides its multiply-adds, stored from registers
#: and by TMA; of a second launch; bytes of a microsecond.
_CLOCKS, _TILE, _LAUNCH, _MEMORY = 1980, {1: 3.0, 2: 1.3}, 8.0, 3e6

#: Microseconds of each element of a C whose rows start anywhere, of all tiles of a multiprocessor,
#: but for so many that are stored while others multiply.
_UNALIGNED, _MEANWHILE = 6e-4, 7400

#: Least k from which larger tiles are as quick as this form (1002 x 5585 x 173: 56 us instead of
#: 89; 4383 x 243 x 977: 80 us instead of 70).
_SHALLOW, _DEEP = _form(64, 64, 8, 8, KB=16, SLICES=2, STAGES=4, BLOCKS=3), 256


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least expected time."""
    splits = TMA_F32.space["SPLIT"]
    forms = _FORMS if p.k >= _DEEP else (*_FORMS, (_SHALLOW, 107))
    options = ((form | dict(SPLIT=parts), rate) for form, rate in forms for parts in splits)
    fitting = [o for o in options if not TMA_F32.violations(TMA_F32.config(o[0]), p, d)]
    return min(fitting, key=lambda o: _microseconds(*o, p, d), default=(_SMALLEST, 0))[0]


def _microseconds(form: dict[str, int], rate: float, p: Problem, d: Device) -> float:
    config = TMA_F32.config(form)
    count, blocks = tiles(config, p) * p.batch, d.sms * config.BLOCKS
    left = count % blocks
    rounds = count // blocks + ceil_div(left * config.SPLIT, blocks) / config.SPLIT
    area = config.MB * config.NB * config.BLOCKS
    rest = _TILE[config.STORE]
    if p.n % 4:
        rest = max(rest, _UNALIGNED * (area - _MEANWHILE))
    depth = ceil_div(p.k, config.KB) * config.KB
    time = rounds * area * depth / (rate * _CLOCKS) + ceil_div(count, blocks) * rest
    if config.SPLIT > 1:  # whose kernels multiply some 3 % more slowly
        parts = left * config.SPLIT * config.MB * config.NB * 4
        time += 0.03 * time + _LAUNCH + 2 * parts / _MEMORY
    return time


TMA_F32 = Kernel(
    number=8,
    name="tma_f32",
    file="08_tma_f32.cu",
    title="Hopper: multiply-adds on tiles loaded by TMA, without a block-wide barrier",
    space=dict(
        MB=(64, 128, 160, 256),
        NB=(64, 128, 160, 256),
        KB=(16, 32),
        ROWS=(8,),
        EARLY=(1, 2),
        STRIDE=(1, 2, 4),
        TA=(8, 16, 20),
        TB=(8, 16, 20),
        SLICES=(1, 2, 4),
        STAGES=(3, 4),
        BLOCKS=(1, 2, 3),
        GROUP=(8,),
        SPLIT=(1, 2, 3, 4, 8),
        STORE=(1, 2),
    ),
    default=_FORMS[0][0],
    fallbacks=(_SMALLEST,),
    heuristic=_heuristic,
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), 1),
    shared_elements=_shared_elements,
    dtypes=("f32",),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(_boxes, major=("mn", "mn")),
    persistent=Persistent(blocks_per_sm=lambda c: c.BLOCKS, splits_last_wave=True),
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
        Rule(
            "C is stored from registers (STORE 1) or by TMA (2), 256 columns of a warp at most",
            lambda c, p, d: c.STORE == 1 or (c.STORE == 2 and 8 * c.TB <= 256),
        ),
        Rule("STRIDE is 1, 2 or 4", lambda c, p, d: c.STRIDE in (1, 2, 4)),
        STAGES_OVERLAP,
        Rule(
            "registers change hands between warpgroups: 4 warps or a multiple",
            lambda c, p, d: _warps(c) > 0 and _warps(c) % 4 == 0,
        ),
        Rule(
            "sums, fragments and 16 more, 32 with SLICES, fit in the registers of a thread",
            lambda c, p, d: (
                c.TA * c.TB + (c.EARLY + 1) * (c.TA + c.TB) + (32 if c.SLICES > 1 else 16)
                <= _registers(c)
            ),
        ),
        THREADS_FIT,
        PARTS_HAVE_STEPS,
        TILES_ALIKE,
        Rule(
            "the parts of a split product take at most 384 MiB",
            lambda c, p, d: parts_bytes(c, p) <= _MAX_PARTS_BYTES,
        ),
        STAGES_FIT,
        Rule("BLOCKS blocks fit in a multiprocessor", blocks_fit),
    ),
)
