"""Kernel 9: double precision on Hopper's tensor cores, operands loaded by the tensor memory
accelerator (TMA); and its default configuration, which a small cost model chooses.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import tensor_f64
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import (
    PARTS_HAVE_STEPS,
    STAGES_FIT,
    STAGES_OVERLAP,
    STORED_ANYWHERE,
    THREADS_FIT,
    TILES_ALIKE,
    blocks_fit,
    rows_start_anywhere,
)
from pymm.kernels.tensor_f64 import row_buffer
from pymm.kernels.tiles import tiles, tiles_in


def form(mb: int, nb: int, ta: int, tb: int, stages: int, **more: int) -> dict[str, int]:
    """Parameters of a block; one block on a multiprocessor and SPLIT 1 unless given."""
    given = dict(MB=mb, NB=nb, KB=16, TA=ta, TB=tb, TK=16, KI=8, DEPTHS=2, STAGES=stages)
    return given | dict(BLOCKS=1, GROUP=8, SPLIT=1) | more


#: Configurations to choose from, and the multiply-adds per clock of a multiprocessor (of 128) that
#: they reach (one H200: benchmarks/LOG.md).
FORMS = (
    (form(128, 128, 64, 32, 6), 125),
    (form(128, 128, 64, 32, 6, KI=16, DEPTHS=1), 125.5),  # for shallow products
    (form(128, 128, 64, 32, 3, KB=32, TK=32, DEPTHS=1), 124),  # leaves registers
    (form(128, 64, 32, 16, 2, KB=64, TK=64, KI=16, DEPTHS=1), 125),  # for deep ones
    (form(64, 128, 32, 32, 8), 123),
    (form(128, 64, 32, 32, 4, KB=32, TK=32, KI=16), 122.5),
    (form(128, 64, 32, 32, 4, KB=32, TK=32, KI=16, DEPTHS=1), 123),
    (form(64, 64, 32, 32, 6, BLOCKS=2), 109),
    (form(64, 64, 32, 32, 4, DEPTHS=1, BLOCKS=3), 113),
    (form(32, 128, 32, 32, 4, DEPTHS=1, BLOCKS=2), 110),
    (form(128, 32, 32, 32, 3, DEPTHS=1, BLOCKS=3), 106),
    (form(32, 64, 32, 32, 4, KB=32, DEPTHS=1, BLOCKS=2), 102),
    (form(64, 32, 32, 16, 3, DEPTHS=1, BLOCKS=3), 98),
    (form(64, 64, 32, 16, 6, KB=32, TK=32), 121),
    (form(64, 56, 16, 56, 6, KB=32), 108),
    (form(80, 40, 16, 40, 2, KB=64, KI=16, DEPTHS=1), 103),  # one wave of 640 x 640
    (form(80, 40, 16, 40, 2, KB=64, DEPTHS=1), 97),  # where registers for that are missing
    (form(96, 48, 16, 48, 5, KB=32, DEPTHS=1), 110),  # of half of 1000 x 1000 and 1024 x 1024
    (form(32, 96, 16, 48, 6, KB=32), 105),  # three of half of 1500 x 1500
    (form(48, 32, 16, 16, 6, KB=32), 96),  # of half of 500 x 500
    (form(32, 64, 16, 32, 6, KB=32), 99),  # of half of 640 x 640
    (form(32, 32, 16, 16, 3, KB=64, TK=64, DEPTHS=1, BLOCKS=2), 91),
    (form(32, 32, 16, 16, 6, KB=64, TK=32, DEPTHS=1), 84),
    (form(64, 32, 32, 32, 3, KB=64, KI=16, DEPTHS=1), 96),
    (form(64, 32, 32, 16, 4, KB=64, TK=32), 107),
    (form(64, 16, 16, 16, 5, KB=64, TK=64), 64),
    (form(16, 64, 16, 32, 5, KB=64, TK=32), 70),
    (form(32, 16, 16, 16, 4, KB=128, TK=32), 59),
    (form(16, 16, 16, 16, 8, KB=64, DEPTHS=1), 22),
)

#: More for a survey (survey.py) to choose from: for products whose C takes long to store.
_SURVEYED = (
    (form(128, 64, 32, 32, 8, KI=16, DEPTHS=1), 123),
    (form(128, 64, 64, 16, 8, DEPTHS=1), 123),
    (form(64, 64, 16, 32, 8, DEPTHS=1), 118),
)

#: Runs on every GPU with TMA.
SMALLEST = form(64, 64, 32, 32, 4)

#: Clocks of a microsecond under load; microseconds of a tile besides its multiply-adds;
#: microseconds of sharing; bytes of a microsecond.
_CLOCKS, _TILE, _SHARING, _MEMORY = 1900, 0.1, 8.5, 4.0e6

#: Microseconds of each element of a tile: where rows of C start at multiples of 16 bytes, and where
#: they start anywhere, stored from registers and by way of shared memory (7725 x 2661 x 73 from
#: registers: 8 us for each wave of 128 x 128).
_STORED, _ANYWHERE = 4.3e-5, {1: 5e-4, 2: 1.3e-4}

#: Microseconds of the launch and of the way to the first tile; of the launch before it that repacks
#: operands whose rows TMA cannot read, and of each byte repacked; of each byte of C, and at most.
_LAUNCH, _BEFORE, _REPACKED, _WRITTEN, _MOST_WRITTEN = 5.2, 1.7, 4e-7, 1.65e-7, 3.25


#: Multiply-adds above which kernel 6 was never seen to be faster where nothing is repacked.
_ALIGNED = 2e8


def heuristic(kernel: Kernel, p: Problem, d: Device) -> dict[str, int]:
    """The configuration with the least expected time, and whether its last wave is split."""
    return dict(_best(kernel, p, d)[1] or SMALLEST)


@lru_cache(maxsize=1024)
def _best(kernel: Kernel, p: Problem, d: Device) -> tuple[float, dict[str, int]]:
    """That configuration and its time in microseconds but for the launches; infinity and none if
    none may run.
    """
    timed = [(_microseconds(*option, p, d), option[0]) for option in _forms(p, d)]
    for microseconds, option in sorted(timed, key=lambda option: option[0]):
        if not kernel.violations(kernel.config(option), p, d):
            return microseconds, option
    return math.inf, {}


def _forms(
    p: Problem, d: Device, forms: Iterable[tuple[dict[str, int], float]] = FORMS
) -> Iterator[tuple[dict[str, int], float]]:
    """Every form with the values of SPLIT to consider and the ways to store C."""
    stores = (2, 1) if rows_start_anywhere(p) else (1,)
    for given, rate in forms:
        for split, store in itertools.product(_parts(given, p, d), stores):
            yield given | dict(SPLIT=split, STORE=store), rate


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    around = _around(p)
    for given, rate in _forms(p, d, (*FORMS, *_SURVEYED)):
        yield around + _microseconds(given, rate, p, d), TMA_F64.config(given)


def _around(p: Problem) -> float:
    """Microseconds of the launches, and of writing C behind the last one."""
    operands = stored_shapes(p)[: 1 if p.symmetric else 2]
    repacked = sum(8 * math.prod(shape) for shape in operands if shape[2] % 2)
    before = _BEFORE + _REPACKED * repacked if repacked else 0.0
    return _LAUNCH + before + min(_WRITTEN * (p.bytes - p.bytes_read), _MOST_WRITTEN)


def _preferred_for(p: Problem, d: Device) -> bool:
    """Whether kernel 6, which repacks nothing, is expected to take longer. Of batches it takes less
    time for small products alone, as measured.
    """
    if p.batch > 1:
        return not tensor_f64.small_batch(p)
    operands = stored_shapes(p)[: 1 if p.symmetric else 2]
    repacks = any(shape[2] % 2 for shape in operands)
    if not repacks and p.m * p.n * p.k > _ALIGNED:
        return True
    return _around(p) + _best(TMA_F64, p, d)[0] <= tensor_f64.expected(p, d)[0]


def _parts(given: dict[str, int], p: Problem, d: Device) -> Iterator[int]:
    """The values of SPLIT to consider: 1, and if the last wave is not full the number of blocks for
    each of its tiles, at least two. None at all for a configuration that is not for this k.
    """
    if given["DEPTHS"] == 1 and given["MB"] == 128:
        if given["NB"] == 128 and given["KI"] == 16 and p.k > 256:
            return
        if given["KB"] == 64 and p.k < 2048:
            return
    yield 1
    _, left, blocks = _waves(given, p, d)
    if 0 < 8 * left < 7 * blocks:
        yield max(2, blocks // left)


def _waves(given: dict[str, int], p: Problem, d: Device) -> tuple[int, int, int]:
    """Waves of whole tiles, tiles of the last one, and blocks."""
    blocks = d.sms * given["BLOCKS"]
    return *divmod(tiles_in(p, given["MB"], given["NB"]) * p.batch, blocks), blocks


def _microseconds(given: dict[str, int], rate: float, p: Problem, d: Device) -> float:
    """The time of arithmetic and that of memory, of which the smaller mostly overlaps. Where blocks
    share a multiprocessor, one stores while others multiply: b blocks store in b^(2/3) of the time
    of one, and q of b blocks multiply in (q / b)^(1/3) of the time of all.
    """
    waves, left, blocks = _waves(given, p, d)
    area, together = given["MB"] * given["NB"], given["BLOCKS"]
    each = area * ceil_div(p.k, given["KB"]) * given["KB"] / (rate * _CLOCKS)
    storing = _TILE + area * (_ANYWHERE[given["STORE"]] if p.n % 2 else _STORED)
    size = 8 * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
    sums = waves * (together * each + together ** (2 / 3) * storing)
    if given["SPLIT"] > 1:  # as common/stream_k.cuh has it
        sharers = min(left * given["SPLIT"], blocks)
        size += 16 * (sharers + left) * area
        sums += left / sharers * together * each + together ** (2 / 3) * storing
        sums += storing + _SHARING
    elif left:
        busy = ceil_div(left, d.sms)
        sums += busy ** (1 / 3) * together ** (2 / 3) * each + busy ** (2 / 3) * storing
    memory = size / _MEMORY
    return max(sums, memory) + 0.2 * min(sums, memory)


#: Elements in the 128 bytes that TMA swizzles.
_LINE = 16


def _warps(c: Config) -> int:
    """Warps that multiply; four more load."""
    return (c.MB // c.TA) * (c.NB // c.TB) * (c.KB // c.TK)


def _threads(c: Config) -> int:
    return 32 * (_warps(c) + 4)


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages, two barriers for each piece, and the sums of warps that share a tile of C."""
    columns = c.NB if p.trans_b else round_up(c.NB, _LINE)
    barriers = 2 * c.KB // _deep(c, p)
    stages = c.STAGES * ((c.MB + columns) * c.KB + barriers)
    rows = 0 if c.STORE == 1 else (c.MB // c.TA) * (c.NB // c.TB) * row_buffer(c, p.trans_b)
    return stages + c.KB // c.TK // 2 * c.MB * c.NB + rows


def _deep(c: Config, p: Problem) -> int:
    """Depth of a piece of a tile: what a warp takes of it, a line at least, two where both operands
    are MN-major.
    """
    least = 2 * _LINE if p.trans_a and not p.trans_b else _LINE
    return c.TK if c.TK >= least else least if c.KB % least == 0 else c.KB


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread that multiplies: sums, fragments, and the rest (checked with nvcc 13.0:
    what this lets through does not spill). With one depth of fragments the last rows are read when
    the first have been multiplied.
    """
    registers = 2 * (c.TA * c.TB // 32 + (c.TA + c.TB) * c.KI * c.DEPTHS // 32)
    registers += 8 * (c.STORE - 1)
    if p.symmetric:  # where a tile is takes more to find, and its place in the other half
        registers += 32 if c.SPLIT == 1 else 40
    if c.DEPTHS == 1 and c.TA == 16 and c.TB == 40 and c.TK <= 16 and not p.symmetric:
        # Of one row of mma the columns are read one after the other.
        rest = (24 if p.trans_b else 16) + 16 * (c.STORE - 1)
        return registers - (c.TB - 16) * c.KI // 16 + rest
    if c.DEPTHS == 1 and c.TA >= 48:
        return registers + (24 if p.trans_a and not p.trans_b else 8)
    if c.KB == c.TK == c.KI * c.DEPTHS < 32:
        return registers + 16
    return registers + (32 if c.KB == c.TK and c.KI * c.DEPTHS < 32 else 40)


def _launched(c: Config, d: Device) -> int:
    """Registers of every thread at the launch."""
    return min(248, d.registers_per_block // c.BLOCKS // _threads(c) // 8 * 8)


def _left(c: Config, d: Device) -> int:
    """Registers that `setmaxnreg` can give to a thread that multiplies, 24 being kept by each of
    those that load.
    """
    groups = max(_warps(c) // 4, 1)
    return min(248, ((groups + 1) * _launched(c, d) - 24) // groups // 8 * 8)


def _registers_and_blocks_fit(c: Config, p: Problem, d: Device) -> bool:
    """True if BLOCKS blocks fit. With less than 80 registers at the launch nvcc 13.0 refuses to
    compile an mma.
    """
    return (
        _launched(c, d) >= 80
        and _registers(c, p) <= min(_left(c, d), d.max_registers_per_thread)
        and blocks_fit(c, p, d)
    )


def _finds_shares(c: Config, p: Problem, d: Device) -> bool:
    """True if what a shared tile takes to find does not spill (checked as above): with less than
    112 registers at the launch only one depth of fragments of depth 16; for half of C, for rows by
    way of shared memory, and for a K-major B in an odd number of pieces of 8 columns, one depth.
    """
    if c.SPLIT == 1:
        return True
    late = c.KI == 16 and c.DEPTHS == 1 and c.KB == c.TK and c.TA * c.TB >= 512
    plenty = late or _launched(c, d) >= 112
    odd = p.trans_b and c.TB % 16 > 0
    return plenty and (c.DEPTHS == 1 or not (p.symmetric or c.STORE > 1 or odd))


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """Lines of 128 bytes: of all rows where an operand is K-major, else of a piece of a step. C
    is not stored in boxes, but 16 bytes at a time where it could be.
    """
    a = Box(_LINE, _deep(c, p) if p.trans_a else c.MB)
    b = Box(_LINE, c.NB if p.trans_b else _deep(c, p))
    return a, b, Box(_LINE, c.TA)


#: Multiprocessors of a Hopper GPU at most (NVIDIA, "H100 Tensor Core GPU Architecture": GH100).
_MAX_SMS = 144


def _slots_bytes(c: Config, p: Problem) -> int:
    """Memory of the sums of tiles that blocks share (common/stream_k.cuh): 128 bytes, and a tile
    for each block that shares some and for each tile that is shared; enough for a thread of the
    launch that adds them up.
    """
    blocks, count = _MAX_SMS * c.BLOCKS, tiles(c, p) * p.batch
    slots = min(count * c.SPLIT, blocks) + min(count, blocks)
    return 128 + max(slots * c.MB * c.NB * 8, 16 * c.SPLIT)


TMA_F64 = Kernel(
    number=9,
    name="tma_f64",
    file="09_tma_f64.cu",
    title="Hopper: double precision on the tensor cores, tiles by TMA, persistent blocks",
    space=dict(
        MB=(16, 32, 64, 128),
        NB=(16, 32, 64, 128),
        KB=(16, 32, 64, 128),
        TA=(16, 32, 64),
        TB=(16, 32),
        TK=(16, 32, 64),
        KI=(8, 16),
        DEPTHS=(1, 2),
        STAGES=(2, 3, 4, 6, 8),
        BLOCKS=(1, 2, 3),
        GROUP=(8, 16),
        SPLIT=(1, 2, 8, 33, 132),
        STORE=(1, 2),
    ),
    added=dict(STORE=1),
    default=form(128, 128, 64, 32, 6, GROUP=16),
    fallbacks=(form(64, 64, 32, 32, 6, BLOCKS=2), SMALLEST),
    heuristic=lambda p, d: heuristic(TMA_F64, p, d),
    options=_options,
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), 1),
    shared_elements=_shared_elements,
    dtypes=("f64",),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    both_halves=True,
    extra_points=tuple(given | dict(STORE=store) for given, _ in FORMS for store in (1, 2)),
    tma=Tma(_boxes),
    persistent=Persistent(
        blocks_per_sm=lambda c: c.BLOCKS, splits_last_wave=True, partial_bytes=_slots_bytes
    ),
    preferred_for=_preferred_for,
    rules=(
        Rule(
            "a multiple of 4 warps tile the block in pieces of 16 x 16, of 16 x 8 if TB is NB",
            lambda c, p, d: (
                c.MB % c.TA == 0
                and c.NB % c.TB == 0
                and c.TA % 16 == 0
                and c.TB % 8 == 0
                and (c.TB % 16 == 0 or c.TB == c.NB)
                and _warps(c) % 4 == 0
                and _warps(c) > 0
            ),
        ),
        Rule(
            "KI is 4, 8 or 16; TK is 8 or a multiple of 16 and of DEPTHS * KI; TK, 16 divide KB",
            lambda c, p, d: (
                c.KI in (4, 8, 16)
                and c.KB % 16 == 0
                and c.KB % c.TK == 0
                and (c.TK == 8 or c.TK % 16 == 0)
                and c.TK % (c.DEPTHS * c.KI) == 0
            ),
        ),
        Rule("DEPTHS is 1 or 2", lambda c, p, d: c.DEPTHS in (1, 2)),
        STAGES_OVERLAP,
        Rule(
            "a box has at most 256 lines: MB, NB, KB <= 256",
            lambda c, p, d: max(c.MB, c.NB, c.KB) <= 256,
        ),
        THREADS_FIT,
        PARTS_HAVE_STEPS,
        TILES_ALIKE,
        Rule(
            "the steps of the tiles that blocks share fit a count of 32 bits, on at most 144 "
            "multiprocessors",
            lambda c, p, d: (
                c.SPLIT == 1
                or (d.sms <= _MAX_SMS and d.sms * c.BLOCKS * ceil_div(p.k, c.KB) < 2**32)
            ),
        ),
        STAGES_FIT,
        STORED_ANYWHERE,
        Rule(
            "a split last wave leaves a thread registers to find the tiles that blocks share",
            _finds_shares,
        ),
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            _registers_and_blocks_fit,
        ),
    ),
)
