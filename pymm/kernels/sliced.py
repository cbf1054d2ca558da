"""Kernel 11: warps that share a tile of C, each with its own slices of k."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels import pipelined, tma_f32
from pymm.kernels.expected import Copying, beside_memory, copied_by_threads, is_modelled
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import (
    MAX_WORKSPACE_BYTES,
    STAGES_FIT,
    THREADS_FIT,
    blocks_fit,
    registers_fit,
    resident,
)
from pymm.kernels.simt import words
from pymm.kernels.tensor_f64 import small_batch
from pymm.kernels.tiles import COUNTERS, tiles

#: Parts that one block adds at a time (common/split_k_tree.cuh).
FAN = 16


def _vector(p: Problem) -> int:
    """Elements of 16 bytes."""
    return 16 // p.numpy_dtype.itemsize


def _is_float(p: Problem) -> bool:
    return p.numpy_dtype.itemsize == 4


def _by_rows(c: Config, p: Problem) -> bool:
    """True if both operands are MN-major in shared memory and are multiplied row by row: register
    tiles of 96 floats or more, slices of 8 rows.
    """
    return _is_float(p) and c.TA * c.TB >= 96 and c.KB == 8


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages of all warps, whose memory holds the sums of all warps at the end. Operands that
    are transposed when they are loaded have rows longer by 4 elements; rows of sums are longer by
    an element for each lane along n, if a thread's do not lie side by side in whole vectors.
    """
    more = 4 * ((not p.trans_a) + p.trans_b) if _by_rows(c, p) else 0
    pitch = c.NB + (c.NB // c.TB if c.TB % _vector(p) else 0)
    return c.SLICES * max(c.STAGES * c.KB * (c.MB + c.NB + more), c.MB * pitch)


def _groups(parts: int) -> int:
    """Groups of FAN parts on all levels of the tree that adds the parts of a tile."""
    groups = ceil_div(parts, FAN)
    return groups + _groups(groups) if parts > 1 else 0


def _workspace_bytes(c: Config, p: Problem) -> int:
    """Bytes for the counters and the parts of tiles that several blocks share."""
    if c.SPLIT == 1:
        return 0
    part = round_up(c.MB * c.NB, c.kernel.threads(c) * _vector(p))
    elements = tiles(c, p) * p.batch * c.SPLIT * part
    return 4 * COUNTERS + elements * p.numpy_dtype.itemsize


def _split_pays(c: Config, p: Problem, d: Device) -> bool:
    """False if there are enough blocks without splitting k, or if a warp has no slice."""
    shared = tiles(c, p) * p.batch
    return c.SPLIT == 1 or (shared * c.SPLIT <= 4 * d.sms and c.SPLIT * c.SLICES * c.KB <= p.k)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread. By rows: accumulators, two rows of both fragments, and 64 for the
    rest. Else accumulators, 16 bytes of k of both fragments, one or two addresses
    for each vector of a line along k, and 33 for the rest (49 for doubles). Register tiles of 128
    registers or more need 10 less, and 9 less

    - if a K-major operand has their shorter side, or
    - if both operands are K-major, in two stages;

    but of doubles in rows that are not aligned, with fewer than 8 slices, none less. Floats in rows
    aligned to 4 bytes need 8 more with more than two stages, if both operands are K-major, and 16
    more with k in parts, if B alone is and steps are longer than 8. Checked with nvcc 13.0 for
    sm_80 and sm_90a: what this allows does not spill.
    """
    if _by_rows(c, p):
        return c.TA * c.TB + 2 * (c.TA + c.TB) + 64
    along = (not p.trans_a) + p.trans_b
    sums = (c.TA * c.TB + _vector(p) * (c.TA + c.TB)) * words(p)
    rest = 17 + 16 * words(p)
    if along == 2 and words(p) == 1 and p.alignment < 8 and c.STAGES > 2:
        rest += 8
    if p.trans_a and p.trans_b and words(p) == 1 and p.alignment < 8:
        rest += 16 * (c.SPLIT > 1 and c.KB > 8)
    if c.TA * c.TB * words(p) >= 128:
        longer = c.TA > c.TB if p.trans_a and p.trans_b else c.TB > c.TA
        rest -= 9 if longer and along or along == 2 == c.STAGES else 10
        if words(p) == 2 and c.SLICES < 8 and p.alignment < 16:
            rest += 10
    return sums + along * words(p) * c.KB // _vector(p) + rest


#: Tiles and register tiles of doubles to choose from where nothing is tuned.
_TILES = (
    (64, 32, 8, 8),
    (64, 16, 8, 4),
    (16, 64, 4, 8),
    (32, 16, 4, 4),
    (16, 32, 4, 4),
    (128, 4, 4, 4),
    (4, 128, 4, 4),
)

#: Depth, warps of a block, stages and blocks of a multiprocessor, in the order of preference: where
#: each has one block, and where some have more (then one begins or ends while others multiply).
_ALONE = (
    (32, 8, 2, 1),
    (16, 8, 2, 1),
    (16, 8, 3, 1),
    (32, 4, 3, 1),
    (32, 4, 2, 1),
    (16, 4, 2, 1),
    (8, 4, 2, 1),
)
_TOGETHER = ((16, 4, 3, 2), (16, 4, 2, 2), *_ALONE)

#: Clocks of a launch with nothing to do, and of one level of the tree that adds up parts. Bytes in
#: a clock that a multiprocessor gets from device memory where all ask for it (of the 18 of an H200
#: what kernels reach) and where few do, and from L2.
_LAUNCH, _LEVEL, _MEMORY_OF_ALL, _MEMORY_OF_FEW, _L2 = 7000, 3500, 16, 24, 40

#: Part of the shorter of computing and device memory that the longer does not hide, for doubles and
#: for floats.
_EXPOSED = 0.1

#: Tiles and register tiles of floats: the smallest, which come first where each multiprocessor has
#: at most so many, the others, and those of four rows or columns and fewer.
_SMALLEST, _FEW = ((16, 32, 4, 4), (32, 16, 4, 4)), 2
_FLOAT_TILES = (
    (64, 64, 16, 8),
    (32, 128, 8, 16),
    (32, 64, 8, 8),
    (64, 32, 8, 8),
    (64, 16, 8, 4),
    (16, 64, 4, 8),
    (16, 64, 8, 4),
    (16, 128, 8, 8),
    (32, 32, 4, 8),
    (32, 32, 8, 4),
)
_NARROW = (128, 4, 4, 4), (4, 128, 4, 4)

#: Tiles with a side that is no power of two, so that a small product has one for nearly each
#: multiprocessor of an H200. Of float32 alone: a survey has no times of them in tf32.
_BETWEEN = (
    (40, 80, 10, 10),
    (80, 40, 10, 10),
    (48, 64, 12, 8),
    (64, 48, 8, 12),
    (56, 64, 14, 8),
    (64, 56, 8, 14),
)

#: Pipelines of float tiles, by the elements of a thread. First those that are quicker than the
#: model knows. Of `_BETWEEN`; of all tiles for rows that are aligned to 16 bytes, and for others.
_OF_BETWEEN = dict.fromkeys(
    (96, 100, 112), ((8, 8, 3, 1), (8, 4, 4, 2), (16, 8, 2, 1), (16, 4, 2, 2))
)
_ALIGNED = {
    128: ((16, 8, 2, 1), (8, 4, 4, 2), (16, 4, 3, 2), (8, 8, 3, 1)),
    **_OF_BETWEEN,
    64: ((32, 8, 2, 1), (16, 8, 2, 1), (16, 4, 2, 2), (8, 4, 4, 3)),
    32: ((32, 8, 2, 1), (16, 8, 2, 1), (16, 4, 2, 2), (16, 4, 2, 3)),
    16: ((16, 4, 4, 2), (32, 8, 2, 1), (16, 4, 2, 3)),
}
_OTHERS = {
    128: ((8, 4, 4, 2), (8, 8, 3, 1), (8, 8, 2, 1), (16, 8, 2, 1)),
    **_OF_BETWEEN,
    64: ((8, 4, 2, 2), (8, 4, 4, 3), (8, 8, 4, 1), (16, 8, 2, 1), (16, 4, 2, 3)),
    32: ((16, 4, 2, 3), (16, 4, 2, 2), (16, 8, 2, 1), (8, 8, 2, 1), (8, 4, 2, 1), (8, 4, 4, 1)),
    16: ((16, 4, 4, 2), (16, 4, 2, 3), (16, 8, 2, 1), (8, 4, 4, 1)),
}

#: More of them for GPUs whose blocks have less shared memory than so many bytes.
_LITTLE, _ENOUGH = ((16, 4, 2, 1), (8, 4, 2, 1)), 200_000

# The expected time of floats, fitted to 952 times on one H200 (benchmarks/LOG.md), before copies of
# 4 bytes were counted as such

#: Clocks of a microsecond. Microseconds of a launch, of a block's first loads and of one level of
#: the tree that adds up parts.
_CLOCKS, _START, _BEGIN, _ADD = 1980, 4.26, 0.21, 1.89

#: Clocks of a multiprocessor for 128 multiply-adds, and of these for the reads of fragments; for an
#: instruction of a warp that copies; for 32 elements of a K-major A, and of such a B; for 128
#: elements of the sums of a warp.
_ISSUE, _READ, _COPY, _TURN_A, _TURN_B, _SUM = 0.96, 1.45, 2.17, 0.85, 2.6, 21.3

#: Warps that hide the latency of what they do, the power by which fewer are slower, and the power
#: by which stages count as warps.
_WARPS, _FEWER, _AHEAD = 9.95, 0.33, 0.066

#: Bytes of a clock that a multiprocessor gets from device memory. Of configurations whose expected
#: times are within a factor the first is taken; of deep products this kernel is, unless kernel 8
#: should be quicker by more than another.
_MEMORY, _AS_QUICK, _KEPT = 16, 1.03, 1.05


#: Many float32 products of aligned rows, by their greatest extent: MB, NB, KB, TA, TB, STAGES; four
#: slices, three blocks on a multiprocessor (measured on one H200, benchmarks/LOG.md).
_BATCH_FORMS = {
    16: (16, 32, 8, 4, 4, 4),
    32: (32, 32, 8, 8, 4, 4),
    64: (32, 64, 8, 8, 8, 4),
    128: (32, 64, 16, 8, 8, 3),
    256: (32, 64, 16, 8, 8, 2),
}


def _batch_form(p: Problem) -> int | None:
    """The key of `_BATCH_FORMS` for a problem; None if it is not of that kind. Two K-major operands
    would spill with 8 x 8 elements a thread.
    """
    extent = max(p.m, p.n)
    if p.batch < 16 or not _is_float(p) or p.alignment < 16 or extent > 256:
        return None
    found = next(most for most in _BATCH_FORMS if extent <= most)
    covered = round_up(p.m, _BATCH_FORMS[found][0]) * round_up(p.n, _BATCH_FORMS[found][1])
    if covered > 1.2 * p.m * p.n and found > 32:
        return None
    return None if found >= 64 and p.trans_b and not p.trans_a else found


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The tile and the parts of k with the least expected time."""
    return _default(p, d).as_dict()


@lru_cache(maxsize=1024)
def _default(p: Problem, d: Device) -> Config:
    if (extent := _batch_form(p)) is not None:
        names = ("MB", "NB", "KB", "TA", "TB", "STAGES")
        given = dict(zip(names, _BATCH_FORMS[extent], strict=True))
        return SLICED.config(given | dict(SLICES=4, BLOCKS=3, GROUP=8, SPLIT=1))
    if _is_float(p):
        timed = ((expected_microseconds(c, p, d), c) for c in _of_floats(p, d))
        best = SLICED.quickest(timed, p, d, _AS_QUICK)
    else:
        best = min(_of_doubles(p, d), key=lambda config: _clocks(config, p, d), default=None)
    return SLICED.default_config if best is None else best


def _of_doubles(p: Problem, d: Device) -> Iterator[Config]:
    """Every tile with the first pipeline that fits, whole and with the parts of k that fill the
    device.
    """
    for mb, nb, ta, tb in _TILES:
        blocks = max(ceil_div(p.m, mb) * ceil_div(p.n, nb) * p.batch, 1)
        tile = dict(MB=mb, NB=nb, TA=ta, TB=tb, GROUP=8, SPLIT=1)
        for kb, slices, stages, together in _TOGETHER if blocks > d.sms else _ALONE:
            form = tile | dict(KB=kb, SLICES=slices, STAGES=stages, BLOCKS=together)
            whole = SLICED.config(form)
            if SLICED.violations(whole, p, d):
                continue
            yield whole
            yield from _split(form, {d.sms // blocks}, p)
            break


def _of_floats(p: Problem, d: Device) -> Iterator[Config]:
    """Every tile with every pipeline that fits, whole and with the parts of k that fill the device
    once to four times.
    """
    pipelines = _OTHERS if p.alignment < 16 else _ALIGNED
    little = _LITTLE if d.shared_per_block < _ENOUGH else ()
    few = ceil_div(p.m, 16) * ceil_div(p.n, 32) * p.batch <= _FEW * d.sms
    forms = (*_SMALLEST, *_FLOAT_TILES) if few else (*_FLOAT_TILES, *_SMALLEST)
    forms += _BETWEEN if p.dtype == "f32" else ()
    for mb, nb, ta, tb in _NARROW if min(p.m, p.n) <= 4 < 128 <= max(p.m, p.n) else forms:
        blocks = max(ceil_div(p.m, mb) * ceil_div(p.n, nb) * p.batch, 1)
        tile = dict(MB=mb, NB=nb, TA=ta, TB=tb, GROUP=8, SPLIT=1)
        usual = (*pipelines[ta * tb], *little)
        given = [dict(zip(("KB", "SLICES", "STAGES", "BLOCKS"), u, strict=True)) for u in usual]
        yield from (SLICED.config(tile | one) for one in given)
        for one in sorted(given, key=lambda one: -one["STAGES"]):  # measured with parts of k
            yield from _split(tile | one, {n * d.sms // blocks for n in range(1, 5)}, p)


def _split(form: dict[str, int], counts: set[int], p: Problem) -> Iterator[Config]:
    """The tile with k in so many parts, as far as it is deep enough."""
    most = p.k // (2 * form["KB"] * form["SLICES"])
    for parts in sorted({min(count, most) for count in counts}):
        if parts > 1:
            yield SLICED.config(form | dict(SPLIT=parts))


def expected_microseconds(c: Config, p: Problem, d: Device) -> float:
    """Microseconds that a configuration should take for floats: those of the multiprocessor with
    most blocks, or of device memory, and of adding up the parts.
    """
    blocks, size = tiles(c, p) * p.batch * c.SPLIT, p.numpy_dtype.itemsize
    each = ceil_div(blocks, d.sms)
    together = min(resident(c, p, d, _registers(c, p)), each) or 1
    waves, rest = divmod(each, together)
    depth = ceil_div(p.k, c.KB * c.SLICES * c.SPLIT) * c.KB * c.SLICES
    multiply = c.MB * c.NB * (_ISSUE + _READ * (1 / c.TA + 1 / c.TB)) / 128
    by_rows, most = _by_rows(c, p), min(p.alignment, 16)
    at_once = [size if by_rows and along else most for along in (not p.trans_a, p.trans_b)]
    copy = _COPY * size / 32 * (c.MB / at_once[0] + c.NB / at_once[1])
    if not by_rows:
        copy += (_TURN_A * (not p.trans_a) * c.MB + _TURN_B * p.trans_b * c.NB) / 32
    one = depth * max(multiply + copy, (c.MB + c.NB) * size / _L2)
    clocks = one * (waves * together * _waiting(c, together) + rest * _waiting(c, rest))
    clocks += each * _SUM * c.MB * c.NB * c.SLICES / 128
    computing = clocks / _CLOCKS + (waves + (rest > 0)) * _BEGIN
    levels = math.ceil(math.log(c.SPLIT, FAN)) if c.SPLIT > 1 else 0
    adding = _ADD + min(c.SPLIT, FAN) * c.MB * c.NB * size / (_L2 * _CLOCKS)
    memory = p.bytes / (_MEMORY * d.sms * _CLOCKS)
    return _START + beside_memory(computing, memory, _EXPOSED) + levels * adding


def _waiting(c: Config, blocks: int) -> float:
    """How many times as long work takes for want of warps to hide its latency."""
    warps = blocks * c.SLICES * (c.STAGES - 1) ** _AHEAD
    return max(1.0, _WARPS / warps) ** _FEWER if blocks else 0.0


def _clocks(c: Config, p: Problem, d: Device) -> float:
    """Clocks that a configuration should take for doubles: those of the multiprocessor with most
    blocks, or of device memory, and of adding up the parts.
    """
    blocks, size = tiles(c, p) * p.batch * c.SPLIT, p.numpy_dtype.itemsize
    depth = math.ceil(p.k / (c.KB * c.SLICES * c.SPLIT)) * c.KB * c.SLICES
    multiply = c.MB * c.NB * depth / (128 / words(p)) * (1 + 2 / c.TA + 2 / c.TB)
    read = (c.MB + c.NB) * depth * size / _L2
    busy = min(blocks, d.sms)
    memory = max(p.bytes / (_MEMORY_OF_ALL * d.sms), p.bytes / (_MEMORY_OF_FEW * max(busy, 1)))
    levels = math.ceil(math.log(c.SPLIT, FAN)) if c.SPLIT > 1 else 0
    adding = _LEVEL + min(c.SPLIT, FAN) * c.MB * c.NB * size / _L2
    computing = ceil_div(blocks, d.sms) * max(multiply, read)
    return _LAUNCH + beside_memory(computing, memory, _EXPOSED) + levels * adding


#: Operations of a product in tf32 up to which float32's own arithmetic is faster, by the bytes that
#: rows are aligned to: the kernels of tensor cores repack rows of less than 16, or copy them in
#: pieces (one H200: populations.csv has the same products in tf32 and in f32).
_EXACT = {4: 2e8, 8: 3e7, 16: 3e7}


def exact_is_faster(p: Problem, d: Device) -> bool:
    """Whether a product in tf32 is faster without Hopper's tensor cores."""
    if p.dtype != "tf32" or p.symmetric or p.batch > 1 or d.capability != (9, 0):
        return False
    return p.flops <= _EXACT.get(min(p.alignment, 16), 0.0)


#: Times of this kernel beside those of tensor cores (expected.py).
_COPYING = Copying(
    launch=4.05,
    multiply=0.0081,
    edges=0.074,
    along=(0.109, 0.08, 0.066),
    across=(0.076, 0.045, 0.0077),
    mixed=0.8,
    latency=0.63,
    store=0.304,
    adding=1.1,
    part=0.142,
    overlap=0.4,
    warps=5.7,
)


def _expected(c: Config, p: Problem, d: Device) -> float:
    return copied_by_threads(c, p, d, c.KB * c.SLICES, _registers(c, p), _COPYING)


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Of float32 every form. Of tf32 the quickest form alone, with the time that is comparable with
    those of tensor cores; doubles are for kernels 6 and 9.
    """
    if p.dtype == "f32":
        yield from ((expected_microseconds(c, p, d), c) for c in _of_floats(p, d))
    elif p.dtype == "tf32":
        default = _default(p, d)
        yield _expected(default, p, d), default


def _preferred_for(p: Problem, d: Device) -> bool:
    """Of float32 on Hopper products whose default here should be as quick as kernel 8's;
    elsewhere skinny products and small ones. Of doubles, where tensor cores multiply them, only
    those that wait for memory.
    """
    if p.dtype == "tf32":
        return is_modelled(p, d) or exact_is_faster(p, d)
    if p.dtype == "f64" and d.capability in ((8, 0), (9, 0)):
        return min(p.m, p.n) <= 16 and not small_batch(p)
    if tma_f32.TMA_F32.runs_on(d):
        return not pipelined.medium_batch(p, d) and _faster_than_tma(p, d)
    return min(p.m, p.n) <= 64 or p.m * p.n * p.batch <= 2**20 or _batch_form(p) is not None


@lru_cache(maxsize=1024)
def _faster_than_tma(p: Problem, d: Device) -> bool:
    """Whether this kernel's default should be as quick as those of kernels 5 and 8. One that takes
    no longer than kernel 8 with nothing to do is not compared: of so small products kernel 5 was
    never the quicker (90 x 1206 x 48: 7.8 us, 5.5 here).
    """
    if _batch_form(p) is not None:
        return True
    here = expected_microseconds(SLICED.default_for(p, d), p, d)
    if here <= tma_f32.LAUNCH:
        return True
    if here > pipelined.single(p, d)[0]:
        return False
    there = tma_f32.expected_microseconds(tma_f32.TMA_F32.default_for(p, d), p, d)
    return here <= there * (_KEPT if p.k >= tma_f32.DEEP else 1)


SLICED = Kernel(
    number=11,
    name="sliced",
    file="11_sliced.cu",
    title="the warps of a block share a tile and split k; for skinny, deep and small products",
    space=dict(
        MB=(4, 16, 32, 40, 48, 56, 64, 80, 96, 128),
        NB=(4, 16, 32, 40, 48, 56, 64, 80, 96, 128),
        KB=(8, 16, 32),
        TA=(4, 8, 10, 12, 14, 16),
        TB=(4, 8, 10, 12, 14, 16),
        SLICES=(4, 8),
        STAGES=(2, 3, 4),
        BLOCKS=(1, 2, 3),
        GROUP=(8,),
        SPLIT=(1, 2, 4, 8, 16, 33, 66, 132),
    ),
    default=dict(MB=64, NB=32, KB=16, TA=8, TB=8, SLICES=4, STAGES=2, BLOCKS=1, GROUP=8, SPLIT=1),
    threads=lambda c: 32 * c.SLICES,
    block=lambda c: (32 * c.SLICES, 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=_workspace_bytes,
    shared_elements=_shared_elements,
    step=lambda c: c.KB * c.SLICES,
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    dtypes=("f32", "f64", "tf32"),
    heuristic=_heuristic,
    options=_options,
    preferred_for=_preferred_for,
    expected=_expected,
    rules=(
        Rule(
            "each warp computes the whole tile: MB / TA * NB / TB is 32",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.MB // c.TA * (c.NB // c.TB) == 32
            ),
        ),
        Rule(
            "fragments are made of vectors of 16 or 8 bytes, lines of those of 16",
            lambda c, p, d: (
                not (c.TA % 2 or c.TB % 2 or any(line % _vector(p) for line in (c.MB, c.NB, c.KB)))
            ),
        ),
        Rule(
            "the depth of a slice is a power of two",
            lambda c, p, d: c.KB & (c.KB - 1) == 0,
        ),
        Rule(
            "rows of sums start at multiples of 16 bytes",
            lambda c, p, d: not (c.TB % _vector(p) and c.NB // c.TB % _vector(p)),
        ),
        Rule(
            "a slice is fetched while another is used: STAGES >= 2",
            lambda c, p, d: c.STAGES >= 2,
        ),
        THREADS_FIT,
        Rule(
            "k is split only into parts with a slice for each warp, and only for idle "
            "multiprocessors",
            _split_pays,
        ),
        Rule(
            "tiles that are shared have their counters, and their parts fit in 128 MiB",
            lambda c, p, d: (
                c.SPLIT == 1
                or (
                    tiles(c, p) * p.batch * _groups(c.SPLIT) <= COUNTERS
                    and _workspace_bytes(c, p) <= MAX_WORKSPACE_BYTES
                )
            ),
        ),
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
