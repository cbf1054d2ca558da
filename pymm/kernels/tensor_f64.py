"""Kernel 6: warps multiply with the tensor cores through `mma.sync`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import (
    SPLIT_RULES,
    STAGES_FIT,
    STAGES_OVERLAP,
    THREADS_FIT,
    blocks_fit,
    registers_fit,
    resident,
)
from pymm.kernels.tiles import tiles, workspace_bytes

#: Between the lines of a tile in shared memory, in elements.
_PADDING = 4


def _lines(c: Config, p: Problem) -> tuple[tuple[int, int], tuple[int, int]]:
    """Length and number of the lines of the tiles of A and B, stored as in memory."""
    return (
        (c.MB, c.KB) if p.trans_a else (c.KB, c.MB),
        (c.KB, c.NB) if p.trans_b else (c.NB, c.KB),
    )


def whole_lines(c: Config, p: Problem) -> bool:
    """True if the threads copy whole lines of both tiles at a time, with 16 bytes each as well as
    with 4, the least that cp.async copies.
    """
    threads = c.kernel.threads(c)
    for size in (4, 16):
        for length, count in _lines(c, p):
            pieces, rest = divmod(length * p.numpy_dtype.itemsize, size)
            if rest or threads % pieces or pieces * count % threads:
                return False
    return True


def _a_line_each(c: Config, p: Problem) -> bool:
    """True if the threads copy a whole line of either tile at a time, even one element each."""
    return all(length <= c.kernel.threads(c) for length, _ in _lines(c, p))


def _warps(c: Config) -> int:
    return (c.MB // c.TA) * (c.NB // c.TB) * (c.KB // c.TK)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: accumulators, the fragments of two depths, and the rest, which is
    less where nothing is checked, 16 bytes are copied at a time, k is not split and C is not
    symmetric. Checked with nvcc 13.0 for sm_80 and sm_90a: what this allows does not spill.
    """
    doubles = c.TA * c.TB // 32 + (c.TA + c.TB) * c.KI // 16
    plain = p.alignment == 16 and c.SPLIT == 1 and not p.symmetric
    plain = plain and not c.kernel.guarded(c, p)
    return 2 * doubles + (30 if plain else 40)


def row_buffer(c: Config, neighbours: bool = True) -> int:
    """Elements of a warp's buffer for rows of C (common/row_buffer.cuh); `neighbours`: what is side
    by side in C is in lanes that are side by side.
    """
    padding = 0 if c.TB % 16 else 8 if neighbours else 4
    return 8 * (c.TB + padding)


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages; in the end the sums of warps that share a tile of C, and a buffer of rows for
    each warp that stores, which is used where rows start at multiples of 8 bytes.
    """
    stages = c.STAGES * sum((length + _PADDING) * count for length, count in _lines(c, p))
    rows = (c.MB // c.TA) * (c.NB // c.TB) * row_buffer(c)
    return max(stages, (c.KB // c.TK - 1) * c.MB * c.NB + rows)


def _form(
    mb: int, nb: int, kb: int, ta: int, tb: int, tk: int, stages: int, **more: int
) -> dict[str, int]:
    """Parameters of a block; KI 8 and one block on a multiprocessor unless said."""
    form = dict(MB=mb, NB=nb, KB=kb, TA=ta, TB=tb, TK=tk, KI=8, STAGES=stages)
    return form | dict(BLOCKS=1, GROUP=8, SPLIT=1) | more


#: Configurations to choose from, and their time as a part of what the model expects (one H200:
#: benchmarks/LOG.md, "Untuned products of doubles").
_FORMS = (
    (_form(32, 16, 64, 16, 16, 32, 5), 1.02),
    (_form(48, 24, 32, 16, 24, 16, 6, KI=4), 1.0),
    (_form(48, 48, 16, 16, 48, 16, 6, BLOCKS=2), 1.05),
    (_form(64, 32, 32, 32, 16, 16, 6), 1.0),
    (_form(64, 128, 16, 32, 32, 16, 6), 0.97),
    (_form(32, 32, 16, 16, 16, 16, 4, KI=4, BLOCKS=4, GROUP=1), 1.02),
    (_form(32, 32, 32, 16, 16, 32, 4, KI=4, BLOCKS=3, GROUP=1), 1.0),
    (_form(32, 32, 64, 16, 32, 16, 4, KI=4, GROUP=1), 1.0),
    (_form(32, 64, 16, 16, 32, 16, 3, KI=4, GROUP=1), 0.99),
    (_form(32, 64, 32, 16, 16, 32, 3, KI=4, GROUP=1), 0.98),
    (_form(64, 32, 32, 16, 16, 32, 3, KI=4, GROUP=1), 0.97),
    (_form(64, 64, 16, 32, 16, 16, 4, BLOCKS=2), 0.98),
    (_form(64, 64, 16, 32, 32, 16, 4, BLOCKS=2), 1.06),
    (_form(64, 128, 32, 32, 32, 32, 2, KI=4, GROUP=1), 0.95),
)

#: More for a survey (survey.py) to choose from: for products whose C takes long to store, and for
#: small ones.
_SURVEYED = (
    (_form(64, 64, 32, 32, 64, 32, 2, KI=4, BLOCKS=2, GROUP=1), 0.85),
    (_form(64, 128, 32, 32, 64, 32, 2, KI=4, GROUP=1), 0.95),
    (_form(64, 64, 32, 32, 32, 16, 4, KI=4, GROUP=1), 1.0),
)

#: Parts of k to consider.
_SPLITS = (1, 2, 4, 8, 16)

#: What many products of at most 16 and of at most 32 rows and columns get.
_SMALL_BATCH_FORMS = {
    16: _form(32, 32, 16, 32, 32, 16, 2, KI=4, BLOCKS=4, GROUP=1),
    32: _form(32, 32, 16, 16, 16, 16, 4, KI=4, BLOCKS=4, GROUP=1),
}

#: Of the model, fitted to 570 times of one H200 (benchmarks/LOG.md). Clocks of a microsecond, of a
#: multiprocessor for 32 copies of 8 bytes, and until a tile asked for is there; bytes of a clock
#: from L2.
_CLOCKS, _COPIED, _LATENCY, _L2 = 1900, 3.5, 1440, 43

#: Microseconds of a launch, of the way to a block's first tile, of each element of C; of sharing a
#: tile, and of each block that shares it.
_LAUNCH, _FIRST, _STORED, _SHARING = 3.9, 0.82, 6e-5, (1.2, 0.1)

#: Bytes of a microsecond; the part of the time of memory that arithmetic does not hide: of writing
#: C, and of so many microseconds of reading.
_MEMORY, _EXPOSED, _READING = 4.8e6, 0.7, 17.0


def small_batch(p: Problem) -> bool:
    """Whether it is many products of at most 32 rows and columns."""
    return p.batch > 1 and max(p.m, p.n) <= 32


@lru_cache(maxsize=1024)
def expected(p: Problem, d: Device) -> tuple[float, Config]:
    """The least expected time of a form that may run, in microseconds, and its configuration; the
    default and infinity if none may run.
    """
    timed = _timed_options(p, d, surveyed=False)
    for microseconds, config in sorted(timed, key=lambda option: option[0]):
        if not TENSOR_F64.violations(config, p, d):
            return microseconds, config
    return math.inf, TENSOR_F64.default_config


def _timed_options(p: Problem, d: Device, surveyed: bool = True) -> Iterator[tuple[float, Config]]:
    return ((part * _microseconds(c, p, d), c) for c, part in _options(surveyed))


@lru_cache(maxsize=2)
def _options(surveyed: bool) -> tuple[tuple[Config, float], ...]:
    """Every form, whole and in parts of k; with those that only a survey chooses from."""
    forms = (*_FORMS, *_SURVEYED) if surveyed else _FORMS
    options = itertools.product(forms, _SPLITS)
    return tuple((TENSOR_F64.config(f | dict(SPLIT=s)), part) for (f, part), s in options)


def _microseconds(c: Config, p: Problem, d: Device) -> float:
    """The time of waves of blocks or of memory, whichever is longer, and what of the other does not
    overlap.
    """
    most = resident(c, p, d, _registers(c, p))
    waves, left = divmod(tiles(c, p) * p.batch * c.SPLIT, d.sms * most)
    steps = ceil_div(ceil_div(p.k, c.KB), c.SPLIT)
    sums, area, size = 0.0, c.MB * c.NB, p.bytes
    for times, blocks in ((waves, most), (left > 0, ceil_div(left, d.sms))):
        storing = area * _STORED * blocks ** (2 / 3)
        sums += times * (steps * _step_clocks(c, p, d, blocks) / _CLOCKS + _FIRST + storing)
    if c.SPLIT > 1:
        size += 16 * area * c.SPLIT * tiles(c, p) * p.batch
    memory = size / _MEMORY
    sharing = _SHARING[0] + _SHARING[1] * c.SPLIT if c.SPLIT > 1 else 0.0
    writing = (p.bytes - p.bytes_read) / _MEMORY
    exposed = _EXPOSED * min(sums, writing + min(memory - writing, _READING))
    return _LAUNCH + max(sums, memory) + exposed + sharing


def _step_clocks(c: Config, p: Problem, d: Device, blocks: int) -> float:
    """Clocks of a step along k of so many blocks on a multiprocessor: of its four schedulers and
    the copies of 8 bytes, of what comes from L2, of a warp by itself, and of waiting for a tile
    asked for STAGES - 1 steps ago. The longest counts, and the others where they are near.
    """
    one = 4 * c.TA * c.TB * c.TK / _multiply_adds(d)
    fetched = blocks * (c.MB + c.NB) * c.KB
    copying = _COPIED * fetched / 32 if p.alignment < 16 else 0.0
    issued = 1.05 * ceil_div(_warps(c) * blocks, 4) * one + copying
    alone = 1.3 * one + 31 * c.TK / c.KI
    ways = issued, 8 * fetched / _L2, alone, _LATENCY / (c.STAGES - 1)
    return sum(way**4 for way in ways) ** 0.25


def _multiply_adds(d: Device) -> float:
    """Multiply-adds of a multiprocessor in a clock: 128 of Hopper's tensor cores."""
    peak = d.peak_flops.get("f64")
    return peak / (2 * d.sms * d.clock_hz) if peak and d.clock_hz else 128.0


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """For many small products their form, else the one with the least expected time."""
    if small_batch(p):
        return dict(_SMALL_BATCH_FORMS[16 if max(p.m, p.n) <= 16 else 32])
    return expected(p, d)[1].as_dict()


TENSOR_F64 = Kernel(
    number=6,
    name="tensor_f64",
    file="06_tensor_f64.cu",
    title="double precision on the tensor cores, through mma.sync; TA x TB is a warp's tile",
    space=dict(
        MB=(32, 64, 128),
        NB=(32, 64, 128),
        KB=(16, 32, 64),
        TA=(16, 32, 64),
        TB=(16, 32, 64),
        TK=(16, 32),
        KI=(4, 8),  # 16 needs more registers than it saves time; the kernel takes it all the same
        STAGES=(2, 3, 4),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(1, 8),
        SPLIT=(1, 2, 4, 8, 16),
    ),
    heuristic=_heuristic,
    options=_timed_options,
    default=_form(64, 64, 16, 32, 32, 16, 4, BLOCKS=2),
    fallbacks=(_form(64, 64, 16, 32, 32, 16, 3),),
    threads=lambda c: 32 * _warps(c),
    block=lambda c: (32 * _warps(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=_shared_elements,
    dtypes=("f64",),
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    both_halves=True,
    extra_points=tuple(form for form, _ in _FORMS),
    rules=(
        Rule(
            "warps tile the block evenly, in pieces of 16 x 8: TA divides MB, TB divides NB",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TA % 16 == 0 and c.TB % 8 == 0
            ),
        ),
        Rule(
            "KI is the depth of an instruction, 4, 8 or 16; 2 * KI divides TK, TK KB",
            lambda c, p, d: c.KI in (4, 8, 16) and c.TK % (2 * c.KI) == 0 and c.KB % c.TK == 0,
        ),
        STAGES_OVERLAP,
        THREADS_FIT,
        Rule(
            "threads copy a whole line of a tile at a time",
            lambda c, p, d: _a_line_each(c, p),
        ),
        Rule(
            "either blocks or warps share a tile of C, not both",
            lambda c, p, d: c.SPLIT == 1 or c.TK == c.KB,
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
