"""Kernel 14: float32 as the sum of two block-scaled float16 values, on Hopper's tensor cores."""

from __future__ import annotations

import math

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import ACCUMULATORS, PARTS_FIT, PARTS_HAVE_STEPS, STAGES_FIT
from pymm.kernels.tiles import tiles_in

#: Rows and columns of a piece of C that is stored at a time: 128 bytes of float32.
_HIGH, _WIDE = 64, 32


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more loads."""
    return (c.MB // c.TA) * (c.NB // c.TB)


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """All rows of a tile of A, all columns of one of B, a piece of C."""
    return Box(c.KB, c.MB), Box(c.KB, c.NB), Box(_WIDE, _HIGH)


def _shared_bytes(c: Config) -> int:
    """The stages, each of one term; SLOTS pieces of C for each warpgroup; the scales, once for two
    stages and once more; two barriers for each stage, one more and the answer that it
    announces; up to 1 KiB for the alignment of swizzled boxes.
    """
    stages = c.STAGES * (c.MB + c.NB) * c.KB * 2
    pieces = _consumers(c) * c.SLOTS * 4 * _HIGH * _WIDE if c.SPLIT == 1 else 0
    scales = ((c.STAGES + 1) // 2 + 1) * (c.MB + c.NB) * 4
    return stages + pieces + scales + 16 * (c.STAGES + 1) + 1024


def _accumulators_fit(c: Config, p: Problem, d: Device) -> bool:
    """Sums, and those of the step."""
    return c.TA * c.TB // 64 <= ACCUMULATORS.get(_consumers(c), 0)


# The default: the configuration with the least expected time, by a few measured times

#: Forms of a block: parameters, microseconds of a step of 64 k and of the rest of a tile, measured
#: on an H200 (benchmarks/LOG.md).
_FORMS = (
    (dict(MB=128, NB=192, TB=192, STAGES=4, GROUP=16), 1.65, 4.0),
    (dict(MB=128, NB=128, TB=128, STAGES=5, GROUP=16, SLOTS=2), 1.13, 3.0),
    (dict(MB=128, NB=64, TB=64, STAGES=8), 0.8, 2.5),
    (dict(MB=64, NB=128, TB=64, STAGES=8), 0.8, 2.5),
    (dict(MB=64, NB=64, TB=64, STAGES=12), 0.55, 2.0),
)

#: For products of few steps, of which storing C takes longest: largest k, least tiles of each
#: multiprocessor, form. The first that fits is used: in rows of tiles, with more pieces of C being
#: stored at a time.
_IN_ROWS = dict(MB=128, NB=128, TB=128, STAGES=5, GROUP=1, SLOTS=2)
_SHALLOW = (
    (128, 0, _IN_ROWS),
    (256, 8, dict(MB=128, NB=192, TB=192, STAGES=4, GROUP=1, SLOTS=3)),
    (256, 0, _IN_ROWS),
)

#: Microseconds: a second launch, and each part that it adds up; bytes of a microsecond.
_COMBINING, _PART, _MEMORY = 3.0, 0.04, 4e6

_DEFAULT = dict(MB=128, NB=128, KB=64, TA=64, TB=128, STAGES=6, GROUP=8, SPLIT=1, SLOTS=1)


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least expected time."""
    expected = []
    for form, step, rest in _FORMS:
        tiles, steps = tiles_in(p, form["MB"], form["NB"]) * p.batch, ceil_div(p.k, 64)
        for parts in {1} | {min(steps // 4, full * d.sms // max(tiles, 1)) for full in (1, 2)}:
            if parts < 1:
                continue
            busy = ceil_div(tiles * parts, d.sms) * (math.ceil(steps / parts) * step + rest)
            sums = 8 * p.m * p.n * p.batch * parts / _MEMORY
            adding = _COMBINING + _PART * parts + sums if parts > 1 else 0.0
            expected.append((busy + adding, parts, form))
    _, parts, form = min(expected, key=lambda option: option[:2])
    if parts == 1 and form["MB"] * form["NB"] >= 128 * 128:
        fits = (
            shallow
            for most, each, shallow in _SHALLOW
            if p.k <= most and tiles_in(p, shallow["MB"], shallow["NB"]) * p.batch >= each * d.sms
        )
        form = next(fits, form)
    given = _DEFAULT | form | dict(SPLIT=parts)
    if parts > 1:
        given["SLOTS"] = 1
    while _shared_bytes(WGMMA_F16X3.config(given)) > d.shared_per_block and given["STAGES"] > 4:
        given["STAGES"] -= 1
    return given


WGMMA_F16X3 = Kernel(
    number=14,
    name="wgmma_f16x3",
    file="14_wgmma_f16x3.cu",
    title="Hopper: float32 as two block-scaled float16 values, multiplied in three float16 steps",
    space=dict(
        MB=(64, 128, 192, 256),
        NB=(64, 128, 192),
        KB=(64,),
        TA=(64, 128),
        TB=(64, 128, 192),
        STAGES=(4, 5, 6, 8, 12),
        GROUP=(1, 4, 8, 16),
        SPLIT=(1, 2, 4, 8, 16, 33, 66, 132),
        SLOTS=(1, 2, 3, 4),
    ),
    default=_DEFAULT,
    fallbacks=(_DEFAULT | dict(NB=64, MB=64, TB=64, STAGES=4),),
    heuristic=_heuristic,
    threads=lambda c: 128 * (1 + _consumers(c)),
    block=lambda c: (128 * (1 + _consumers(c)), 1, 1),
    tiles=lambda c, p: (tiles_in(p, c.MB, c.NB), 1),
    shared_elements=lambda c, p: _shared_bytes(c) // p.numpy_dtype.itemsize,
    dtypes=("f16x3", "emulated"),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(_boxes, major=("k", "k"), terms=2, scaled=True),
    persistent=Persistent(),
    rules=(
        Rule(
            "warpgroups tile the block evenly: TA divides MB, TB divides NB, 64 both",
            lambda c, p, d: (
                not (c.MB % c.TA or c.NB % c.TB or c.TA % 64 or c.TB % 64)
                and c.TB in (64, 128, 192, 256)
            ),
        ),
        Rule("a tile is as deep as its powers of two: KB is 64", lambda c, p, d: c.KB == 64),
        Rule(
            "a box has at most 256 rows: MB and NB <= 256",
            lambda c, p, d: c.MB <= 256 and c.NB <= 256,
        ),
        Rule(
            "tiles are fetched while others are used: STAGES >= 4",
            lambda c, p, d: c.STAGES >= 4,
        ),
        Rule(
            "TA TB / 64 registers for sums: at most 192 (1, 2 warpgroups), 120 (3), 64 (4)",
            _accumulators_fit,
        ),
        Rule(
            "a split product is stored from registers, not shared memory: SPLIT or SLOTS is 1",
            lambda c, p, d: c.SPLIT == 1 or c.SLOTS == 1,
        ),
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
)
