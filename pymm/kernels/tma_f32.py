"""Kernel 8: float32 in plain multiply-adds, operands loaded by the tensor memory accelerator
(TMA).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma, parts_bytes
from pymm.kernels.pipelined import medium_batch, single
from pymm.kernels.rules import (
    PARTS_HAVE_STEPS,
    STAGES_FIT,
    STAGES_OVERLAP,
    THREADS_FIT,
    TILES_ALIKE,
    blocks_fit,
    rows_start_anywhere,
)
from pymm.kernels.tiles import tiles


def warps(c: Config) -> int:
    """Warps that multiply; four more load."""
    return c.MB * c.NB // (c.TA * c.TB * 32) * c.SLICES


def _threads(c: Config) -> int:
    return 32 * (warps(c) + 4)


#: Registers of a thread of the four warps that bring tiles: of kernel 8, of kernel 18.
_FETCHING = {"tma_f32": 24, "tma_f32_in_place": 32}


def _registers(c: Config) -> int:
    """Registers of a thread that multiplies: its part of all that the block was launched with, of
    which the four warps that bring tiles keep few.
    """
    count = warps(c)
    launched = min(65536 // (c.BLOCKS * _threads(c)) // 8 * 8, 248)
    room = (count + 4) * launched - 4 * _FETCHING[c.kernel_name]
    return min(room // max(count, 1) // 8 * 8, 248)


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages and two barriers for each, in whole 128 bytes, the sums of all slices but the
    first, and what C goes through: all of the tile by TMA (STORE 2), or of each warp a row of each
    lane (3).
    """
    ring = round_up(c.STAGES * (c.KB * (c.MB + c.NB) + 4), 32)
    out = {2: c.MB * c.NB, 3: c.MB * c.NB // c.TA}.get(c.STORE, 0)
    return ring + (c.SLICES - 1) * c.MB * c.NB + out


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


#: Forms of a block.
_FORMS = (
    _form(128, 128, 8, 16),
    _form(128, 160, 8, 20),
    _form(256, 128, 8, 16, STAGES=4, BLOCKS=1),
    _form(128, 128, 8, 16, KB=16, STORE=2),
    _form(64, 128, 8, 8, STRIDE=4, SLICES=2, STAGES=4, BLOCKS=1),
    _form(64, 64, 8, 8, SLICES=4, BLOCKS=1),
    _form(64, 64, 8, 8, STRIDE=4, SLICES=2, STAGES=4),
    _form(64, 64, 8, 8, SLICES=2, BLOCKS=3),
    _form(64, 64, 8, 8, KB=16, SLICES=2, STAGES=4, BLOCKS=3, STORE=2),
    _form(160, 256, 20, 8, BLOCKS=1),
    _form(160, 128, 20, 8, BLOCKS=1),
    _form(128, 64, 8, 8, KB=16, BLOCKS=3),
    _form(128, 64, 16, 8, KB=16, SLICES=2),
    _form(64, 128, 8, 16, SLICES=2),
)

#: One more for few rows, which 144 cover with less waste (142 x 7963 x 8100: 507 us, not 538).
_FEW_ROWS, _ROWS = _form(144, 256, 12, 8, BLOCKS=1), 144

#: One more for k below a limit, where it is quicker than larger tiles (1002 x 5585 x 173: 56 us,
#: not 89; for deeper k slower, 4383 x 243 x 977: 80 us, not 70), and what it takes of the expected
#: time there, in less than five waves.
_SHALLOW, DEEP, _QUICKER = _form(64, 64, 8, 8, KB=16, SLICES=2, STAGES=4, BLOCKS=3), 256, 0.95

#: Two wide ones, for products of one and a half tiles for each multiprocessor or more; with fewer
#: their warps do not hide latency. Rows of C that start anywhere they store by rows (7942 x 1783 x
#: 33: 48 us, not 56).
_WIDE = (
    _form(128, 64, 8, 8, KB=16, BLOCKS=3, STORE=2),
    _form(64, 128, 8, 8, KB=16, BLOCKS=3, STORE=2),
)
_PLENTY = 1.5

#: Tiles that short sides fill better than those of 64 and 128 rows and columns. Only a survey
#: chooses them (survey.py); else the tuner finds them.
_NARROW = (
    _form(32, 64, 4, 8, SLICES=2, BLOCKS=3),
    _form(32, 64, 8, 8, SLICES=4),
    _form(32, 96, 8, 12, SLICES=4),
    _form(32, 128, 4, 8, KB=16, BLOCKS=3),
    _form(48, 64, 12, 8, SLICES=4),
    _form(48, 96, 4, 12, SLICES=4, BLOCKS=1),
    _form(64, 96, 4, 12),
    _form(64, 96, 8, 12, SLICES=2),
    _form(96, 64, 12, 8, SLICES=4, BLOCKS=1),
    _form(96, 96, 12, 12, SLICES=4, BLOCKS=1),
    _form(128, 64, 8, 8),
    _form(128, 96, 8, 12),
)

#: Most waves of parts of the last tiles: more than that hardly fill the multiprocessors better.
_WAVES = 4

#: Fits wherever TMA is.
_SMALLEST = _form(64, 64, 8, 8, STRIDE=4, SLICES=2, BLOCKS=1)

# The expected time, fitted to 1,152 times on one H200 (benchmarks/LOG.md)

#: Clocks of a microsecond. Microseconds of a launch, of the beginning of a wave of tiles, of
#: repacking an operand (and its bytes of a microsecond, read and written), of adding up parts (and
#: their bytes of a microsecond).
_CLOCKS, LAUNCH, _BEGIN, _REPACK, _REPACKED, _ADD, _ADDED = 1980, 6.84, 0.21, 1.59, 2e6, 2.11, 9e6

#: Clocks of a multiprocessor for 128 multiply-adds, and of these for the reads of fragments; of the
#: barriers of a step; part by which kernels with a split of k multiply more slowly.
_ISSUE, _READ, _STEP, _SPLIT = 1.11, 0.172, 124, 0.0277

#: Warps that hide the latency of multiply-adds, and the power by which fewer are slower.
_WARPS, _FEWER = 4.8, 0.64

#: Clocks for 128 elements of C: stored from registers, by TMA, and of each slice. For each element
#: of a C whose rows start anywhere and that is stored from registers, of all tiles of a
#: multiprocessor, but for so many that are stored while others multiply.
_STORED, _BY_TMA, _SLICE, _ANYWHERE, _MEANWHILE = 24.6, 12.2, 13.3, 0.8, 14300

#: Bytes of a microsecond from device memory. Bytes of shared memory of the blocks of a
#: multiprocessor above which blocks fill one multiprocessor after another, so that the last tiles
#: are not spread over all of them; else they are but for this part of the difference.
_MEMORY, _SPREAD, _IMBALANCE = 4.1e6, 175 * 1024, 0.2


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least expected time."""
    return _default(p, d).as_dict()


@lru_cache(maxsize=1024)
def _default(p: Problem, d: Device) -> Config:
    timed = ((expected_microseconds(c, p, d), c) for c in _usual_options(p, d))
    best = TMA_F32.quickest(timed, p, d)
    return TMA_F32.config(_SMALLEST) if best is None else best


def _timed_options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    repacking = repacking_us(sum(repacked_of(p)))
    return ((computed_us(c, p, d) + repacking, c) for c in options(p, d))


def options(p: Problem, d: Device) -> Iterator[Config]:
    """The usual ones, then of single products the narrow forms with their splits of k."""
    yield from _usual_options(p, d)
    if p.batch == 1:
        for form in _NARROW:
            yield from _split(form | dict(STORE=3 if rows_start_anywhere(p) else 1), p, d)


def _usual_options(p: Problem, d: Device) -> Iterator[Config]:
    """The wide forms where they have tiles enough, then every form with its splits of k."""
    for form in _WIDE:
        config = TMA_F32.config(form | (dict(STORE=3) if rows_start_anywhere(p) else {}))
        if tiles(config, p) * p.batch >= _PLENTY * d.sms:
            yield config
    for form in (*_FORMS, *[_FEW_ROWS] * (p.m <= _ROWS), *[_SHALLOW] * (p.k < DEEP)):
        yield from _split(form, p, d)


def _split(form: dict[str, int], p: Problem, d: Device) -> Iterator[Config]:
    """A form with every split of k that makes a few waves of parts at most."""
    whole = TMA_F32.config(form)
    slots = d.sms * whole.BLOCKS
    left = tiles(whole, p) * p.batch % slots
    for parts in TMA_F32.space["SPLIT"]:
        if parts == 1 or 0 < left * parts <= _WAVES * slots:
            yield _in_parts(whole, parts)


@lru_cache(maxsize=2**12)
def _in_parts(whole: Config, parts: int) -> Config:
    return TMA_F32.config(whole.as_dict() | dict(SPLIT=parts))


def expected_microseconds(c: Config, p: Problem, d: Device) -> float:
    """Microseconds that a configuration should take, with repacking the operands that TMA does not
    load as they are.
    """
    return computed_us(c, p, d) + repacking_us(sum(repacked_of(p)))


def repacking_us(moved: int) -> float:
    """Microseconds of the launch that repacks so many bytes."""
    return _REPACK + moved / _REPACKED if moved else 0


def computed_us(c: Config, p: Problem, d: Device) -> float:
    """The same without repacking: a launch, the tiles of the multiprocessor with most of them,
    adding up parts.
    """
    count, slots = tiles(c, p) * p.batch, d.sms * c.BLOCKS
    waves, left = divmod(count, slots)
    steps = ceil_div(p.k, c.KB)
    clocks = waves * _wave(c, p, c.BLOCKS, steps, _left_out(c, p))
    if left:
        parts = left * c.SPLIT
        crowded = c.BLOCKS * TMA_F32.shared_bytes(c, p) > _SPREAD or parts > slots
        most, even = min(parts, c.BLOCKS), min(ceil_div(parts, d.sms), c.BLOCKS)
        together = most if crowded else even + _IMBALANCE * (most - even)
        left_out = _left_out(c, p) if c.SPLIT == 1 else 0.0
        clocks += ceil_div(parts, slots) * _wave(c, p, together, ceil_div(steps, c.SPLIT), left_out)
    time = max(clocks / _CLOCKS, p.bytes / _MEMORY) + LAUNCH
    if left and c.SPLIT > 1:
        time += _ADD + left * c.SPLIT * c.MB * c.NB * 4 / _ADDED
    if p.k < DEEP and (c.KB, c.BLOCKS) == (16, 3) and c.MB * c.NB == 64 * 64 and waves < 5:
        time *= _QUICKER
    return time


@lru_cache(maxsize=1024)
def _slower_than_pipelined(p: Problem, d: Device) -> bool:
    """Whether kernel 5 should be quicker."""
    least = single(p, d)[0]
    return least < expected_microseconds(_default(p, d), p, d)


def _left_out(c: Config, p: Problem) -> float:
    """The part of the last step along k that its first slice does not multiply: with STORE 3, whole
    passes past the end of k.
    """
    if c.STORE != 3:
        return 0.0
    rows, end = c.KB // c.SLICES, (p.k - 1) % c.KB + 1
    return 1 - ceil_div(min(end, rows), c.ROWS) * c.ROWS / rows


def _wave(c: Config, p: Problem, blocks: float, steps: int, left_out: float) -> float:
    """Clocks of a multiprocessor in which so many blocks compute a tile, or a part of it."""
    area = c.MB * c.NB * blocks
    multiply = area / 128 * c.KB * (_ISSUE + _READ * (1 / c.TA + 1 / c.TB))
    multiply *= max(1, _WARPS / (blocks * warps(c))) ** _FEWER
    if c.SPLIT > 1:
        multiply *= 1 + _SPLIT
    store = _BY_TMA if c.STORE == 2 and p.n % 4 == 0 else _STORED
    store += _SLICE * c.SLICES * (c.SLICES > 1)
    anywhere = _ANYWHERE * max(area - _MEANWHILE, 0) if p.n % 4 and c.STORE != 3 else 0
    multiplied = (steps - left_out) * multiply + steps * _STEP
    return multiplied + area / 128 * store + anywhere + _BEGIN * _CLOCKS


def repacked_of(p: Problem) -> tuple[int, int]:
    """Bytes of A and of B, each 0 if it is MN-major and its rows are aligned to 16 bytes."""
    size = p.numpy_dtype.itemsize
    a = 0 if p.trans_a and p.m * size % 16 == 0 else p.m * p.k
    b = 0 if not p.trans_b and p.n * size % 16 == 0 else p.k * p.n
    return a * size * p.batch, b * size * p.batch


TMA_F32 = Kernel(
    number=8,
    name="tma_f32",
    file="08_tma_f32.cu",
    title="Hopper: multiply-adds on tiles loaded by TMA, without a block-wide barrier",
    space=dict(
        MB=(32, 48, 64, 96, 128, 160, 256),
        NB=(64, 96, 128, 160, 256),
        KB=(16, 32),
        ROWS=(8,),
        EARLY=(1, 2),
        STRIDE=(1, 2, 4),
        TA=(4, 8, 12, 16, 20),
        TB=(8, 12, 16, 20),
        SLICES=(1, 2, 4),
        STAGES=(3, 4),
        BLOCKS=(1, 2, 3),
        GROUP=(8,),
        SPLIT=(1, 2, 3, 4, 5, 6, 7, 8, 11, 16, 22, 33, 66, 132),
        STORE=(1, 2, 3),
    ),
    default=_FORMS[0],
    fallbacks=(_SMALLEST,),
    heuristic=_heuristic,
    options=_timed_options,
    preferred_for=lambda p, d: not medium_batch(p, d) and not _slower_than_pipelined(p, d),
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
            "C is stored from registers (STORE 1), by TMA (2: 256 columns at most), by rows (3)",
            lambda c, p, d: c.STORE in (1, 3) or (c.STORE == 2 and 8 * c.TB <= 256),
        ),
        Rule(
            "C is stored row by row (STORE 3) where rows start anywhere",
            lambda c, p, d: c.STORE != 3 or rows_start_anywhere(p),
        ),
        Rule("STRIDE is 1, 2 or 4", lambda c, p, d: c.STRIDE in (1, 2, 4)),
        STAGES_OVERLAP,
        Rule(
            "registers change hands between warpgroups: 4 warps or a multiple",
            lambda c, p, d: warps(c) > 0 and warps(c) % 4 == 0,
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
