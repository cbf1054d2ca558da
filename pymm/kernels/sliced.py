"""Kernel 11: warps that share a tile of C, each with its own slices of k."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels.expected import Copying, copied_by_threads, is_modelled
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import (
    MAX_WORKSPACE_BYTES,
    STAGES_FIT,
    THREADS_FIT,
    blocks_fit,
    registers_fit,
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
    """True if both operands are MN-major in shared memory and are multiplied row by row: the
    largest register tiles of floats, slices of 8 rows.
    """
    return _is_float(p) and c.TA * c.TB >= 128 and c.KB == 8


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages of all warps, whose memory holds the sums of all warps at the end. Operands that
    are transposed when they are loaded have rows longer by 4 elements.
    """
    more = 4 * ((not p.trans_a) + p.trans_b) if _by_rows(c, p) else 0
    return c.SLICES * max(c.STAGES * c.KB * (c.MB + c.NB + more), c.MB * c.NB)


def _lines_are_shared(c: Config, p: Problem) -> bool:
    """True if the lanes of a warp share the lines of a slice evenly, with 16 bytes at a time as
    well as with one element.
    """
    for line in (c.MB if p.trans_a else c.KB, c.KB if p.trans_b else c.NB):
        for pieces in (line, line // _vector(p)):
            if not pieces or (32 % pieces and pieces % 32):
                return False
    return True


def _groups(parts: int) -> int:
    """Groups of FAN parts on all levels of the tree that adds the parts of a tile."""
    groups = ceil_div(parts, FAN)
    return groups + _groups(groups) if parts > 1 else 0


def _workspace_bytes(c: Config, p: Problem) -> int:
    """Bytes for the counters and the parts of tiles that several blocks share."""
    if c.SPLIT == 1:
        return 0
    elements = tiles(c, p) * p.batch * c.SPLIT * c.MB * c.NB
    return 4 * COUNTERS + elements * p.numpy_dtype.itemsize


def _split_pays(c: Config, p: Problem, d: Device) -> bool:
    """False if there are enough blocks without splitting k, or if a warp has no slice."""
    shared = tiles(c, p) * p.batch
    return c.SPLIT == 1 or (shared * c.SPLIT <= 4 * d.sms and c.SPLIT * c.SLICES * c.KB <= p.k)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread. By rows: accumulators, two rows of both fragments, and 64 for the
    rest. Else accumulators, 16 bytes of k of both fragments, one or two addresses
    for each vector of a line along k, and 33 for the rest (49 for doubles). The largest register
    tiles need 10 less, and 9 less

    - if a K-major operand has their shorter side, or
    - if both operands are K-major, in two stages;

    but of doubles in rows that are not aligned, with fewer than 8 slices, none less. Checked with
    nvcc 13.0 for sm_80 and sm_90a: what this allows does not spill.
    """
    if _by_rows(c, p):
        return c.TA * c.TB + 2 * (c.TA + c.TB) + 64
    along = (not p.trans_a) + p.trans_b
    sums = (c.TA * c.TB + _vector(p) * (c.TA + c.TB)) * words(p)
    rest = 17 + 16 * words(p)
    if c.TA * c.TB * words(p) >= 128:
        longer = c.TA > c.TB if p.trans_a and p.trans_b else c.TB > c.TA
        rest -= 9 if longer and along or along == 2 == c.STAGES else 10
        if words(p) == 2 and c.SLICES < 8 and p.alignment < 16:
            rest += 10
    return sums + along * words(p) * c.KB // _vector(p) + rest


#: Tiles and register tiles to choose from where nothing is tuned: of floats, and of doubles.
_TILES = {
    4: (
        (64, 64, 16, 8),
        (32, 64, 8, 8),
        (64, 32, 8, 8),
        (64, 16, 8, 4),
        (16, 64, 4, 8),
        (32, 32, 8, 4),
        (32, 32, 4, 8),
        (16, 32, 4, 4),
        (32, 16, 4, 4),
        (128, 4, 4, 4),
        (4, 128, 4, 4),
    ),
    8: (
        (64, 32, 8, 8),
        (64, 16, 8, 4),
        (16, 64, 4, 8),
        (32, 16, 4, 4),
        (16, 32, 4, 4),
        (128, 4, 4, 4),
        (4, 128, 4, 4),
    ),
}

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
#: The same for the largest tiles of floats, by rows: in rows that do not start at multiples of 16
#: bytes, and where two blocks share a multiprocessor and B is not transposed.
_ROWS_ALONE, _ROWS_TOGETHER = (8, 8, 3, 1), (8, 4, 4, 2)
#: For floats that are copied 4 or 8 bytes at a time: fewer bytes on their way in each block, and
#: more blocks, which copy while others multiply (8 x 8: 357 x 1513 x 215 15.5 us instead of 16.8,
#: 146 x 187 x 6829 22.6 and 24; smaller register tiles: 1127 x 266 x 512 17.4 and 18).
_SQUARES_ALONE, _SQUARES_TOGETHER, _PIECES = (8, 8, 4, 1), (8, 4, 2, 2), (16, 4, 2, 3)
#: Depth up to which three blocks with two stages are quicker than two with three.
_THREE = 1024
#: And for small tiles of floats, which wait for memory: more stages (256 x 256 x 256 6.8 us;
#: 77 x 831 x 594 10.1 instead of 11.5, 173 x 223 x 612 9.5 and 11.4: benchmarks/unseen.py).
_SMALL, _WAITING = 512, (16, 4, 4, 2)
#: Three blocks on each multiprocessor, of tiles whose k is shared by so many that fill it thrice.
_SHARED = {64: (8, 4, 4, 3), 32: (16, 4, 2, 3), 16: (16, 4, 2, 3)}

#: Clocks of a launch with nothing to do, and of one level of the tree that adds up parts. Bytes in
#: a clock that a multiprocessor gets from device memory where all ask for it (of the 18 of an H200
#: what kernels reach) and where few do, and from L2.
_LAUNCH, _LEVEL, _MEMORY_OF_ALL, _MEMORY_OF_FEW, _L2 = 7000, 3500, 16, 24, 40


#: Many float32 products of aligned rows, by their greatest extent: MB, NB, KB, TA, TB, STAGES; four
#: slices, three blocks on a multiprocessor (measured on one H200, benchmarks/LOG.md).
_MANY = {
    16: (16, 32, 8, 4, 4, 4),
    32: (32, 32, 8, 8, 4, 4),
    64: (32, 64, 8, 8, 8, 4),
    128: (32, 64, 16, 8, 8, 3),
    256: (32, 64, 16, 8, 8, 2),
}


def _many(p: Problem) -> int | None:
    """The key of `_MANY` for a problem; None if it is not of that kind. Two K-major operands would
    spill with 8 x 8 elements a thread.
    """
    extent = max(p.m, p.n)
    if p.batch < 16 or not _is_float(p) or p.alignment < 16 or extent > 256:
        return None
    found = next(most for most in _MANY if extent <= most)
    covered = round_up(p.m, _MANY[found][0]) * round_up(p.n, _MANY[found][1])
    if covered > 1.2 * p.m * p.n and found > 32:
        return None
    return None if found >= 64 and p.trans_b and not p.trans_a else found


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The tile and the parts of k with the least expected time."""
    if (many := _many(p)) is not None:
        names = ("MB", "NB", "KB", "TA", "TB", "STAGES")
        given = dict(zip(names, _MANY[many], strict=True))
        return given | dict(SLICES=4, BLOCKS=3, GROUP=8, SPLIT=1)
    best = min(_options(p, d), key=lambda config: _clocks(config, p, d), default=None)
    return dict(SLICED.default) if best is None else best.as_dict()


def _options(p: Problem, d: Device) -> Iterator[Config]:
    """Every tile with the first pipeline that fits, whole and with the parts of k that fill the
    device.
    """
    for mb, nb, ta, tb in _TILES[p.numpy_dtype.itemsize]:
        blocks = max(ceil_div(p.m, mb) * ceil_div(p.n, nb) * p.batch, 1)
        tile = dict(MB=mb, NB=nb, TA=ta, TB=tb, GROUP=8, SPLIT=1)
        for kb, slices, stages, together in _pipelines(mb * nb, ta * tb, blocks, p, d):
            form = tile | dict(KB=kb, SLICES=slices, STAGES=stages, BLOCKS=together)
            whole = SLICED.config(form)
            if SLICED.violations(whole, p, d):
                continue
            yield whole
            yield from _shared(form, d.sms // blocks, p, d)
            break
        spills = ta * tb == 64 and p.trans_b and not p.trans_a  # both operands K-major
        if _is_float(p) and ta * tb in _SHARED and min(mb, nb) >= 16 and not spills:
            kb, slices, stages, together = _SHARED[ta * tb]
            form = tile | dict(KB=kb, SLICES=slices, STAGES=stages, BLOCKS=together)
            yield from _shared(form, together * d.sms // blocks, p, d)


def _pipelines(
    area: int, registers: int, blocks: int, p: Problem, d: Device
) -> tuple[tuple[int, int, int, int], ...]:
    """Pipelines of a tile, the best first."""
    many = blocks > d.sms
    usual = _TOGETHER if many else _ALONE
    if not _is_float(p):
        return usual
    if registers >= 128:
        by_rows = _ROWS_TOGETHER if many else _ROWS_ALONE
        return (by_rows, *usual) if p.alignment < 16 or (many and not p.trans_b) else usual
    if registers == 64 and p.alignment < 16:
        return (_SQUARES_TOGETHER if many else _SQUARES_ALONE, *usual)
    three = many and p.k <= _THREE and p.alignment < 16
    if area <= _SMALL and registers == 16:
        return (_PIECES if three and blocks > 2 * d.sms else _WAITING, *usual)
    return (_PIECES, *usual) if three else usual


def _shared(form: dict[str, int], most: int, p: Problem, d: Device) -> Iterator[Config]:
    """The tile with k in as many parts as fill the device, if it is deep enough."""
    parts = min(most, p.k // (2 * form["KB"] * form["SLICES"]))
    if parts > 1:
        split = SLICED.config(form | dict(SPLIT=parts))
        yield from () if SLICED.violations(split, p, d) else (split,)


def _clocks(c: Config, p: Problem, d: Device) -> float:
    """Clocks that a configuration should take: those of the multiprocessor with most blocks, or of
    device memory, and of adding up the parts.
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
    together = max(computing, memory) + 0.1 * min(computing, memory)
    return _LAUNCH + together + levels * adding


#: Types that allow float32 elements to be multiplied on tensor cores.
_ON_TENSOR_CORES = ("tf32", "tf32x3", "f16x3")

#: Operations of a product of such a type up to which float32's own arithmetic is faster, by the
#: bytes that rows are aligned to: the kernels of tensor cores repack rows of less than 16, or copy
#: them in pieces (one H200: populations.csv has the same products in tf32 and in f32).
_EXACT = {4: 2e8, 8: 3e7, 16: 3e7}


def exact_is_faster(p: Problem, d: Device) -> bool:
    """Whether a product whose elements may be rounded for Hopper's tensor cores is faster without
    them.
    """
    if p.dtype not in _ON_TENSOR_CORES or p.symmetric or p.batch > 1 or d.capability != (9, 0):
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


def _preferred_for(p: Problem, d: Device) -> bool:
    """Skinny products and small ones. Of doubles, where tensor cores multiply them, only those that
    wait for memory.
    """
    if p.dtype in _ON_TENSOR_CORES:
        return is_modelled(p, d) or exact_is_faster(p, d)
    if p.dtype == "f64" and d.capability in ((8, 0), (9, 0)):
        return min(p.m, p.n) <= 16 and not small_batch(p)
    return min(p.m, p.n) <= 64 or p.m * p.n * p.batch <= 2**20 or _many(p) is not None


SLICED = Kernel(
    number=11,
    name="sliced",
    file="11_sliced.cu",
    title="the warps of a block share a tile and split k; for skinny, deep and small products",
    space=dict(
        MB=(4, 16, 32, 64, 128),
        NB=(4, 16, 32, 64, 128),
        KB=(8, 16, 32),
        TA=(4, 8, 16),
        TB=(4, 8, 16),
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
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    dtypes=("f32", "f64", *_ON_TENSOR_CORES),
    heuristic=_heuristic,
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
            "fragments are made of 16-byte vectors",
            lambda c, p, d: not (c.TA % _vector(p) or c.TB % _vector(p) or c.KB % _vector(p)),
        ),
        Rule(
            "a slice is fetched while another is used: STAGES >= 2",
            lambda c, p, d: c.STAGES >= 2,
        ),
        Rule(
            "threads share the vectors of a tile evenly",
            lambda c, p, d: c.MB * c.NB % (c.kernel.threads(c) * _vector(p)) == 0,
        ),
        Rule(
            "the lanes of a warp share the lines of a slice evenly",
            lambda c, p, d: _lines_are_shared(c, p),
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
