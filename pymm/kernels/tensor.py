"""Kernel 12: products of 16-bit and tf32 elements by the tensor cores through `mma.sync`."""

from __future__ import annotations

import itertools

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
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

#: Bytes along k that one instruction multiplies.
_DEPTH = 32

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


def _threads(c: Config) -> int:
    return 32 * (c.MB // c.TA) * (c.NB // c.TB)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: sums, the fragments of A, those of B twice, and the rest, which is
    less where nothing is checked, 16 bytes are copied at a time and k is not split. Each 16-bit
    element that comes through registers, because rows start anywhere, takes up to four: where it
    comes from, where it goes to. Checked with nvcc 13.0 for sm_80 to sm_90a: what this allows does
    not spill.
    """
    kept = c.TA * c.TB // 32 + c.TA // 4 + c.TB // 2
    if p.alignment >= 4:
        plain = p.alignment == 16 and c.SPLIT == 1 and not c.kernel.guarded(c, p)
        return kept + (52 if plain else 80)
    whole = c.KB * p.numpy_dtype.itemsize == 2 * _DEPTH  # else they come in parts
    pieces = ceil_div(c.MB * c.KB, _threads(c)) + ceil_div(c.NB * c.KB, _threads(c))
    return kept + 20 + pieces * (4 if whole else 3)


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The largest tiles that keep nine multiprocessors of ten busy, else the smallest; twice as
    many where elements come through registers, which wants more warps. Where even the smallest
    leave half of them idle, k of nine steps or more is split into parts of three or more (115 x 158
    x 714 on an H200: 7.7 us in four parts, 9.4 in one).
    """
    found, enough = None, 9 * d.sms * (1 if p.alignment >= 4 else 2)
    fitting = [t for t in _TILES if not _wasteful(t["MB"], p.m) and not _wasteful(t["NB"], p.n)]
    for sizes, (depth, stages, blocks) in itertools.product(fitting, _PIPELINES):
        if found and sizes["MB"] * sizes["NB"] == found.MB * found.NB:
            continue
        if depth > 64 and depth >= 4 * p.k * p.numpy_dtype.itemsize:
            continue  # most of a step would be empty
        pipeline = dict(KB=depth // p.numpy_dtype.itemsize, STAGES=stages, BLOCKS=blocks)
        config = TENSOR.config(sizes | pipeline | dict(GROUP=8, SPLIT=1))
        if not TENSOR.violations(config, p, d):
            found = config
            if 10 * tiles(found, p) * p.batch >= enough:
                break
    if found is None:
        return dict(TENSOR.default)
    blocks, steps, split = tiles(found, p) * p.batch, ceil_div(p.k, found.KB), 1
    while 2 * split * blocks <= d.sms and 6 * split <= steps and steps >= 9 and split < 16:
        split *= 2
    shared = TENSOR.config(found.as_dict() | dict(SPLIT=split))
    return (found if TENSOR.violations(shared, p, d) else shared).as_dict()


#: Times of tf32 (expected.py), and the forms to choose from: MB, NB, KB, TA, TB, STAGES, BLOCKS.
_COPYING = Copying(
    launch=4.35,
    multiply=0.0014,
    edges=0.87,
    along=(0.169, 0.07, 0.021),
    across=(0.088, 0.04, 0.005),
    mixed=1.4,
    latency=0.52,
    store=0.365,
    adding=2.2,
    part=0.044,
    overlap=0.145,
    warps=14.8,
)
_FORMS = (
    (64, 128, 32, 16, 32, 3, 1),
    (128, 64, 32, 32, 16, 3, 1),
    (64, 64, 32, 16, 64, 4, 3),
    (64, 64, 32, 32, 32, 4, 3),
    (64, 64, 16, 32, 16, 5, 1),
    (32, 64, 32, 16, 32, 4, 2),
    (32, 64, 32, 32, 16, 3, 2),
    (32, 64, 32, 32, 32, 2, 1),
    (32, 32, 64, 16, 16, 4, 1),
    (32, 32, 32, 16, 16, 4, 2),
    (32, 32, 16, 16, 16, 2, 3),
    (32, 32, 16, 16, 32, 5, 1),
)


#: The least of many uncertain times is too small by about this factor.
_DOUBT = 1.05


def _expected(c: Config, p: Problem, d: Device) -> float:
    return _DOUBT * copied_by_threads(c, p, d, c.KB, _registers(c, p), _COPYING)


#: The form for many products of tf32 of 33 to 64 rows and columns: one tile for each.
_ONE_TILE = (64, 64, 32, 32, 64, 2, 1)


def _of_tf32(p: Problem, d: Device) -> dict[str, int] | None:
    """Of tf32 on Hopper the form and the parts of k with the least expected time, where that is
    known.
    """
    narrow = p.dtype == "tf32" and p.batch > 1 and 32 < max(p.m, p.n) <= 64
    one_tile = narrow and _hopper(d) and p.alignment == 16
    if not one_tile and not is_modelled(p, d):
        return None
    names = ("MB", "NB", "KB", "TA", "TB", "STAGES", "BLOCKS")
    options = [
        TENSOR.config(dict(zip(names, form, strict=True)) | dict(GROUP=8, SPLIT=split))
        for form in ((_ONE_TILE,) if one_tile else _FORMS)
        for split in ((1,) if one_tile else TENSOR.space["SPLIT"])
        if split == 1 or form[2] * 2 * split <= p.k
    ]
    able = [c for c in options if not TENSOR.violations(c, p, d)]
    best = min(able, key=lambda c: TENSOR.expected(c, p, d), default=None)
    return None if best is None else best.as_dict()


def _wasteful(tile: int, extent: int) -> bool:
    """Whether half of a tile would be empty, and there is a smaller one."""
    return tile > 32 and tile >= 2 * extent


def _hopper(d: Device) -> bool:
    return d.is_gpu and d.capability[0] == 9


#: Multiply-adds up to which a product on Hopper is quicker here than with wgmma, which repacks rows
#: that TMA cannot read, in a launch of 3 to 4 us (one H200, benchmarks/LOG.md, "Small products
#: without a pre-pass"). By bytes of an element, and of the alignment of rows; what is repacked in
#: any case, tf32 that is not K-major, counts as aligned.
_SMALL = {(2, 2): 2**25, (2, 4): 2**27, (2, 8): 2**27, (4, 4): 2**25, (4, 8): 2**25, (4, 16): 2**23}

#: Of a batch: multiply-adds of one product, where rows are not aligned; extents, where they are.
_SMALL_OF_MANY, _NARROW = 2**21, {2: 32, 4: 64}

#: Up to this k, tf32 may have four times as many.
_SHALLOW = 128


def _preferred_for(p: Problem, d: Device) -> bool:
    """True but on Hopper, where wgmma multiplies at nearly twice the rate, unless a product is so
    small that repacking it, or a tile of 64 rows, takes longer; and unless kernel 11 is faster yet.
    """
    if not _hopper(d) or is_modelled(p, d):
        return True
    if exact_is_faster(p, d):
        return False
    size, each = p.numpy_dtype.itemsize, p.m * p.n * p.k
    if p.batch > 1:
        narrow = max(p.m, p.n) <= _NARROW[size]
        return narrow or p.alignment < 16 and each <= _SMALL_OF_MANY
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
        KB=(16, 32, 64),
        TA=(16, 32, 64),
        TB=(16, 32, 64),
        STAGES=(2, 3, 4, 5),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(8,),
        SPLIT=(1, 2, 4, 8, 16),
    ),
    default=dict(MB=128, NB=128, KB=32, TA=64, TB=64, STAGES=4, BLOCKS=2, GROUP=8, SPLIT=1),
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=lambda c, p: c.STAGES * (c.MB + c.NB) * c.KB,
    dtypes=("bf16", "f16", "tf32", "bf16_f32", "f16_f32"),
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    heuristic=lambda p, d: _of_tf32(p, d) or _heuristic(p, d),
    preferred_for=_preferred_for,
    expected=_expected,
    rules=(
        Rule(
            "the swizzle wants powers of two: MB, NB, KB, TA, TB",
            lambda c, p, d: all(map(_power_of_two, (c.MB, c.NB, c.KB, c.TA, c.TB))),
        ),
        Rule(
            "warps tile the block evenly, in pieces of 16 x 16: TA divides MB, TB divides NB",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TA % 16 == 0 and c.TB % 16 == 0
            ),
        ),
        Rule(
            "two instructions lie along k: 64 bytes divide those of KB",
            lambda c, p, d: c.KB * p.numpy_dtype.itemsize % (2 * _DEPTH) == 0,
        ),
        STAGES_OVERLAP,
        THREADS_FIT,
        Rule(
            "threads copy whole lines of both tiles at a time",
            lambda c, p, d: whole_lines(c, p),
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
