"""Kernel 12: products of 16-bit and tf32 elements by the tensor cores through `mma.sync`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels import wgmma
from pymm.kernels.expected import Copying, copied_by_threads, is_modelled
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import (
    SPLIT_RULES,
    STAGES_FIT,
    STAGES_OVERLAP,
    THREADS_FIT,
    blocks_fit,
    registers_fit,
)
from pymm.kernels.sliced import exact_is_faster
from pymm.kernels.tensor_f64 import whole_lines
from pymm.kernels.tiles import tiles, workspace_bytes

#: Bytes along k that one instruction multiplies; elements between the rows of a tile of C.
_DEPTH, _APART = 32, 8

#: What an untuned product may get: the larger tiles first, the better pipeline first, KB in bytes.
_TILES = (
    dict(MB=128, NB=128, TA=64, TB=64),
    dict(MB=128, NB=128, TA=64, TB=32),
    dict(MB=128, NB=64, TA=64, TB=32),
    dict(MB=64, NB=64, TA=32, TB=32),
    dict(MB=32, NB=64, TA=16, TB=32),
    dict(MB=32, NB=32, TA=16, TB=16),
)
_PIPELINES = ((128, 4, 2), (128, 3, 2), (64, 4, 2), (64, 3, 2), (64, 3, 1))

#: Most parts of k that it may get.
_MOST_PARTS = 16


def _threads(c: Config) -> int:
    return 32 * (c.MB // c.TA) * (c.NB // c.TB) * c.SLICES


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages; in the end the sums of all slices, in float32."""
    stages = c.STAGES * (c.MB + c.NB) * c.KB
    sums = c.SLICES * c.MB * c.NB * p.scalar_dtype.itemsize // p.numpy_dtype.itemsize
    return stages if c.SLICES == 1 else max(stages, sums)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: sums, the fragments of A, those of B twice, and the rest. That is
    least where k is not split, nothing is checked and rows start at multiples of 16 bytes. It is
    more where something is checked or rows start at multiples of less, most where then k is split,
    a step has more than 128 bytes, or the parts of k are no power of two (checked with nvcc 13.0
    for sm_90a). A warp's 64 x 64 just fit where k is not split, except where 16-bit rows start at
    odd multiples of 2 bytes.
    """
    kept = c.TA * c.TB // 32 + c.TA // 4 + c.TB // 2
    plain = c.SPLIT == 1 and not c.kernel.guarded(c, p)
    size = p.numpy_dtype.itemsize
    aligned = 52 if plain else 80 if _power_of_two(c.SPLIT) else 98
    uneven = 104 if size == 2 else 96
    if c.SPLIT == 1 and c.KB * size <= 128:
        uneven = 72 if c.TA * c.TB < 64 * 64 else 79 if p.alignment >= 4 else 80
        aligned = min(aligned, uneven)
    return kept + (aligned if p.alignment == 16 else uneven)


def _for_parts_left_over(c: Config) -> int:
    """Registers more of a thread where one warp alone (SLICES is 1) has a tile of 16 x 16 and k is
    in more than eight parts, which are added up eight at a time, so that some are left over
    (checked like `_registers`: 32 x 32 x 32 with BLOCKS 4 spills 40 bytes, or 8 where rows are
    aligned).
    """
    left_over = c.SPLIT > 8 and c.SPLIT % 8
    return 16 if c.SLICES == 1 and c.TA * c.TB == 256 and left_over else 0


def _padding(c: Config, p: Problem, alignment: int) -> int:
    """16 bytes more for each line that is copied with what is before and behind it
    (common/shifted_tile.cuh); and what the tile of C takes more than that, where it is stored by
    way of shared memory.
    """
    lines_a, lines_b = c.KB if p.trans_a else c.MB, c.NB if p.trans_b else c.KB
    size, stored = p.numpy_dtype.itemsize, p.out_dtype.itemsize
    if size == 4:  # only those along k
        lines_a, lines_b = lines_a * (not p.trans_a), lines_b * p.trans_b
    narrow = alignment < (4 if size == 2 else 16)
    shifted = narrow * c.STAGES * (lines_a + lines_b) * 16 // size
    by_rows = stored == 2 or alignment < (8 if c.TA * c.TB < 32 * 32 else 16)
    rows = c.MB * (c.NB + _APART) * stored // size if by_rows else 0
    return max(shifted, rows - _shared_elements(c, p))


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The largest tiles that keep nine multiprocessors of ten busy, else the smallest. Where even
    the smallest leave half of them idle, k is split into parts of three steps or more, if it has
    nine or more (115 x 158 x 714 on an H200: 7.7 us in four parts, 9.4 in one).
    """
    found, enough = None, 9 * d.sms
    fitting = [t for t in _TILES if not _wasteful(t["MB"], p.m) and not _wasteful(t["NB"], p.n)]
    for sizes, (depth, stages, blocks) in itertools.product(fitting, _PIPELINES):
        if found and sizes["MB"] * sizes["NB"] == found.MB * found.NB:
            continue
        if depth > 64 and depth >= 4 * p.k * p.numpy_dtype.itemsize:
            continue  # most of a step would be empty
        pipeline = dict(KB=depth // p.numpy_dtype.itemsize, STAGES=stages, BLOCKS=blocks)
        config = TENSOR.config(sizes | pipeline | dict(SLICES=1, GROUP=8, SPLIT=1))
        if not TENSOR.violations(config, p, d):
            found = config
            if 10 * tiles(found, p) * p.batch >= enough:
                break
    if found is None:
        return dict(TENSOR.default)
    blocks, steps, split = tiles(found, p) * p.batch, ceil_div(p.k, found.KB), 1
    while 2 * split * blocks <= d.sms and 6 * split <= steps and steps >= 9 and split < _MOST_PARTS:
        split *= 2
    shared = TENSOR.config(found.as_dict() | dict(SPLIT=split))
    return (found if TENSOR.violations(shared, p, d) else shared).as_dict()


def repacking_takes_longer(p: Problem, d: Device) -> bool:
    """Whether a product of 16-bit elements in rows that TMA cannot read is faster here than with
    wgmma behind a launch that repacks A and B.
    """
    if not _has_uneven_rows(p):
        return False
    best = _quickest(p, d)
    return best is not None and _expected(best, p, d) < wgmma.repacked_us(p, d)


def _has_uneven_rows(p: Problem) -> bool:
    """Whether it is a single product of 16-bit elements, some of whose rows TMA cannot read."""
    single = p.batch == 1 and not p.symmetric and not p.empty
    return single and p.numpy_dtype.itemsize == 2 and p.alignment < 16


#: Times of elements of 4 and of 2 bytes (expected.py), fitted to 214 and 349 times of products with
#: uneven rows; and the forms to choose from: MB, NB, KB, TA, TB, SLICES, STAGES, BLOCKS.
_COPYING = {
    4: Copying(
        launch=4.46,
        multiply=0.0017,
        edges=1.3,
        along=(0.141, 0.1, 0.021),
        across=(0.062, 0.03, 0.005),
        mixed=1.09,
        latency=0.3,
        store=0.12,
        adding=1.65,
        part=0.025,
        overlap=0.58,
        warps=9.3,
    ),
    2: Copying(
        launch=4.44,
        multiply=0.0008,
        edges=0.84,
        along=(0.177, 0.037, 0.0),
        across=(0.112, 0.002, 0.0),
        mixed=0.98,
        latency=0.49,
        store=0.157,
        adding=1.4,
        part=0.01,
        overlap=0.91,
        warps=10.9,
    ),
}
_FORMS = {
    4: (
        (64, 128, 32, 16, 32, 1, 3, 1),
        (64, 128, 32, 32, 32, 1, 2, 2),
        (128, 64, 32, 32, 16, 1, 3, 1),
        (64, 64, 32, 16, 64, 1, 4, 3),
        (64, 64, 32, 32, 32, 1, 3, 3),
        (64, 64, 32, 32, 32, 1, 4, 3),
        (64, 64, 16, 32, 16, 1, 5, 1),
        (64, 64, 16, 32, 32, 1, 4, 4),
        (32, 64, 32, 16, 32, 1, 4, 2),
        (32, 64, 32, 32, 16, 1, 3, 2),
        (32, 64, 32, 32, 32, 1, 2, 1),
        (32, 32, 64, 16, 16, 1, 4, 1),
        (32, 32, 32, 16, 16, 1, 4, 2),
        (32, 32, 16, 16, 16, 1, 2, 3),
        (32, 32, 16, 16, 32, 1, 5, 1),
        (128, 128, 16, 64, 32, 1, 3, 1),
        (128, 64, 16, 32, 32, 1, 3, 2),
        (64, 64, 32, 32, 32, 2, 3, 1),
        (64, 32, 16, 16, 32, 1, 4, 3),
    ),
    2: (
        (32, 32, 64, 16, 16, 2, 4, 2),
        (32, 32, 64, 16, 16, 1, 4, 2),
        (32, 64, 64, 16, 32, 1, 4, 2),
        (64, 64, 64, 32, 16, 1, 4, 1),
        (64, 64, 64, 32, 32, 1, 4, 2),
        (64, 64, 64, 32, 32, 1, 2, 4),
        (64, 64, 32, 32, 32, 1, 4, 4),
        (64, 128, 64, 32, 32, 1, 2, 2),
        (128, 64, 32, 32, 32, 1, 3, 2),
        (128, 64, 64, 64, 32, 1, 4, 2),
        (64, 128, 32, 32, 32, 1, 3, 2),
        (128, 32, 64, 32, 16, 1, 3, 2),
        (32, 128, 64, 16, 32, 1, 3, 2),
        (64, 32, 64, 32, 16, 1, 4, 2),
        (32, 64, 32, 16, 32, 1, 4, 3),
        (64, 64, 64, 32, 32, 1, 3, 4),
        (64, 64, 128, 32, 32, 1, 3, 2),
        (128, 128, 64, 64, 32, 1, 5, 1),
        (32, 32, 64, 16, 16, 1, 2, 1),
        (32, 32, 128, 16, 16, 1, 2, 1),
    ),
}

#: More, which a survey (survey.py) measures and chooses from, but no default without it: what
#: searches found for products for which the survey had chosen worst, and large tiles of few warps.
_MORE_FORMS = {
    4: (
        (256, 64, 16, 64, 64, 1, 4, 1),
        (64, 256, 16, 64, 64, 1, 4, 1),
        (128, 128, 16, 64, 64, 1, 4, 1),
        (128, 128, 32, 64, 64, 1, 3, 1),
        (128, 64, 16, 64, 32, 1, 5, 2),
        (64, 128, 16, 32, 64, 1, 4, 2),
    ),
    2: (
        (32, 32, 128, 32, 32, 4, 5, 2),
        (32, 32, 128, 16, 16, 2, 5, 2),
        (32, 32, 32, 16, 16, 1, 5, 4),
        (32, 64, 64, 32, 32, 2, 5, 3),
        (64, 128, 32, 32, 64, 1, 5, 2),
        (64, 128, 128, 32, 64, 1, 4, 1),
        (128, 128, 64, 64, 64, 1, 3, 1),
        (128, 128, 32, 64, 64, 1, 4, 1),
        (256, 64, 32, 64, 64, 1, 4, 1),
        (64, 256, 32, 64, 64, 1, 4, 1),
        (128, 64, 32, 64, 32, 1, 4, 2),
    ),
}

#: The least of many uncertain times is too small by about this factor.
_DOUBT = 1.05


def _expected(c: Config, p: Problem, d: Device) -> float:
    size = p.numpy_dtype.itemsize
    doubt = _DOUBT if size == 4 else 1.0
    return doubt * copied_by_threads(c, p, d, c.KB, _registers(c, p), _COPYING[size])


#: The form for many products of tf32 of 33 to 64 rows and columns: one tile for each.
_ONE_TILE = (64, 64, 32, 32, 64, 1, 2, 1)


@lru_cache(maxsize=2**12)
def _config(form: tuple[int, ...], parts: int) -> Config:
    names = ("MB", "NB", "KB", "TA", "TB", "SLICES", "STAGES", "BLOCKS")
    return TENSOR.config(dict(zip(names, form, strict=True)) | dict(GROUP=8, SPLIT=parts))


@lru_cache(maxsize=1024)
def _quickest(p: Problem, d: Device) -> Config | None:
    """The form and the parts of k with the least expected time. None if none may run."""
    return TENSOR.quickest(_timed(_FORMS[p.numpy_dtype.itemsize], p, d), p, d)


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every form, and those that are no defaults."""
    size = p.numpy_dtype.itemsize
    return _timed(_FORMS[size] + _MORE_FORMS[size], p, d)


def _timed(
    forms: tuple[tuple[int, ...], ...], p: Problem, d: Device
) -> Iterator[tuple[float, Config]]:
    """Forms with every split of k, and what is expected of each."""
    size = p.numpy_dtype.itemsize
    splits = TENSOR.space["SPLIT"] if size == 4 else range(1, _MOST_PARTS + 1)
    for form, parts in itertools.product(forms, splits):
        if parts == 1 or form[2] * (2 if size == 4 else 1) * parts <= p.k:
            config = _config(form, parts)
            yield _expected(config, p, d), config


def _default(p: Problem, d: Device) -> dict[str, int]:
    """On Hopper the form with the least expected time, where that is known."""
    found = None
    narrow = p.dtype == "tf32" and p.batch > 1 and 32 < max(p.m, p.n) <= 64
    if narrow and _hopper(d) and p.alignment == 16:
        found = TENSOR.quickest([(0.0, _config(_ONE_TILE, 1))], p, d)
    elif is_modelled(p, d) or (_hopper(d) and _has_uneven_rows(p)):
        found = _quickest(p, d)
    return _heuristic(p, d) if found is None else found.as_dict()


def _wasteful(tile: int, extent: int) -> bool:
    """Whether half of a tile would be empty, and there is a smaller one."""
    return tile > 32 and tile >= 2 * extent


def _hopper(d: Device) -> bool:
    return d.is_gpu and d.capability[0] == 9


#: Multiply-adds up to which a product on Hopper whose time is not modelled (symmetric, or of tf32
#: with few rows or aligned ones) is quicker here than with wgmma, which repacks rows that TMA
#: cannot read, in a launch of its own (one H200, benchmarks/LOG.md, "Small products without a
#: pre-pass"). By bytes of an element, and of the alignment of rows; what is repacked in any case,
#: tf32 that is not K-major, counts as aligned.
_SMALL = {(2, 2): 2**25, (2, 4): 2**27, (2, 8): 2**27, (4, 4): 2**25, (4, 8): 2**25, (4, 16): 2**23}

#: Of a batch: multiply-adds of one product, where rows are not aligned; extents, where they are.
_SMALL_OF_BATCH, _NARROW = 2**21, {2: 32, 4: 64}

#: Up to this k, tf32 may have four times as many.
_SHALLOW = 128


def _preferred_for(p: Problem, d: Device) -> bool:
    """True but on Hopper, where wgmma multiplies at nearly twice the rate, unless repacking, or a
    tile of 64 rows, should take longer; and unless kernel 11 is faster yet.
    """
    if not _hopper(d) or is_modelled(p, d):
        return True
    if exact_is_faster(p, d):
        return False
    size, each = p.numpy_dtype.itemsize, p.m * p.n * p.k
    if _has_uneven_rows(p):
        return repacking_takes_longer(p, d)
    if p.batch > 1:
        narrow = max(p.m, p.n) <= _NARROW[size]
        return narrow or p.alignment < 16 and each <= _SMALL_OF_BATCH
    more = 4 if size == 4 and p.k <= _SHALLOW else 1
    return each <= more * _SMALL.get((size, min(p.alignment, 16)), 0)


def _power_of_two(x: int) -> bool:
    return x & (x - 1) == 0


TENSOR = Kernel(
    number=12,
    name="tensor",
    file="12_tensor.cu",
    title="16-bit types and tf32 on the tensor cores of every GPU since Ampere, through mma.sync",
    space=dict(
        MB=(32, 64, 128, 256),
        NB=(32, 64, 128, 256),
        KB=(16, 32, 64, 128),
        TA=(16, 32, 64),
        TB=(16, 32, 64),
        SLICES=(1, 2, 4),
        STAGES=(2, 3, 4, 5),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(8,),
        SPLIT=(1, 2, 4, 8, 16),
    ),
    default=dict(
        MB=128, NB=128, KB=32, TA=64, TB=64, SLICES=1, STAGES=4, BLOCKS=2, GROUP=8, SPLIT=1
    ),
    added=dict(SLICES=1),
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=_shared_elements,
    padding=_padding,
    dtypes=("bf16", "f16", "tf32", "bf16_f32", "f16_f32"),
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    heuristic=_default,
    options=_options,
    preferred_for=_preferred_for,
    expected=_expected,
    rules=(
        Rule(
            "the swizzle wants powers of two: MB, NB, KB, TA, TB, SLICES",
            lambda c, p, d: all(map(_power_of_two, (c.MB, c.NB, c.KB, c.TA, c.TB, c.SLICES))),
        ),
        Rule(
            "warps tile the block evenly, in pieces of 16 x 16: TA divides MB, TB divides NB",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TA % 16 == 0 and c.TB % 16 == 0
            ),
        ),
        Rule(
            "two instructions of a slice lie along k: 64 SLICES bytes divide those of KB",
            lambda c, p, d: c.KB * p.numpy_dtype.itemsize % (2 * _DEPTH * c.SLICES) == 0,
        ),
        Rule(
            "slices share the sums of a warp's tile, 64 at least: SLICES <= TA TB / 64",
            lambda c, p, d: 64 * c.SLICES <= c.TA * c.TB,
        ),
        STAGES_OVERLAP,
        THREADS_FIT,
        Rule(
            "threads copy whole lines of both tiles at a time",
            lambda c, p, d: whole_lines(c, p),
        ),
        Rule(
            "threads store whole rows of C, 8 bytes or more each",
            lambda c, p, d: 8 * _threads(c) % (c.NB * p.out_dtype.itemsize) == 0,
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: (
                registers_fit(c, d, _registers(c, p) + _for_parts_left_over(c))
                and blocks_fit(c, p, d)
            ),
        ),
    ),
)
