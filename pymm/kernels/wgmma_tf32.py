"""Kernels 10 and 13: float32 on Hopper's tensor cores, rounded to tf32 or as the sum of two tf32
values; and their default configurations, which a small cost model chooses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.expected import beside_memory, places
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import (
    ACCUMULATORS,
    PARTS_FIT,
    PARTS_HAVE_STEPS,
    STAGES_FIT,
    STORED_ANYWHERE,
    rows_start_anywhere,
)
from pymm.kernels.tiles import tiles_in


class Form(NamedTuple):
    """A block's tile and stages, and the microseconds of 32 along k and of the rest of a tile,
    measured on an H200 (benchmarks/LOG.md); rows of a warpgroup, if not all, and blocks that share
    the boxes of A.
    """

    MB: int
    NB: int
    KB: int
    STAGES: int
    step: float = 0.0
    rest: float = 0.0
    TA: int = 0
    CLUSTER: int = 1


FORMS = (
    Form(256, 128, 32, 4, 0.59, 7.4),
    Form(224, 128, 32, 4, 0.54, 5.3),
    Form(160, 128, 32, 5, 0.44, 5.0),
    Form(128, 128, 32, 6, 0.39, 2.5),
    Form(128, 64, 64, 4, 0.32, 2.4),
    Form(64, 128, 64, 4, 0.34, 2.4),
    Form(64, 64, 64, 6, 0.23, 1.7),
    Form(32, 64, 64, 8, 0.20, 1.2),
    Form(16, 64, 64, 8, 0.19, 1.0),
)
#: More of kernel 10, whose blocks come in pairs; no times of theirs were fitted.
_PAIRS = (
    Form(128, 64, 64, 4, TA=64, CLUSTER=2),
    Form(64, 128, 64, 4, TA=64, CLUSTER=2),
    Form(64, 64, 64, 6, TA=32, CLUSTER=2),
)
#: More tiles: for sides that those above do not fill, and of more stages or in clusters for skinny
#: products. Only a survey chooses them (survey.py); else
#: the tuner finds them.
_FILLING = (
    Form(160, 192, 32, 3),
    Form(128, 192, 32, 3),
    Form(192, 128, 32, 3),
    Form(96, 128, 32, 4),
    Form(160, 64, 32, 5),
    Form(96, 64, 32, 6),
    Form(128, 64, 32, 8),
    Form(128, 64, 32, 8, TA=64, CLUSTER=2),
    Form(128, 64, 32, 8, TA=64, CLUSTER=4),
    Form(128, 128, 32, 6, CLUSTER=2),
)
#: The same: large tiles whose blocks share A, from this k on. Pairs, and fours for products that
#: wait for L2, most of all where rows start within lines of memory (H100, 4780 x 408 x 6244 NT: 116
#: us in clusters of four, 138 of two, 160 without).
_STEPS = 256
_SHARING = (
    Form(192, 128, 32, 4, CLUSTER=2),
    Form(224, 128, 32, 4, CLUSTER=2),
    Form(256, 128, 32, 4, CLUSTER=2),
    Form(160, 128, 32, 5, CLUSTER=4),
    Form(224, 128, 32, 4, CLUSTER=4),
    Form(256, 128, 32, 4, CLUSTER=4),
)
FORMS_X3 = (
    Form(128, 128, 32, 3, 0.95, 2.0),
    Form(64, 128, 32, 4, 0.53, 2.5),
    Form(64, 64, 32, 6, 0.37, 2.0),
    Form(32, 64, 32, 7, 0.30, 1.6),
)

#: Up to this k storing C takes longest, which 128 x 128 row by row does best. Where A and B swap
#: roles, a row of C is a column of tiles, and so many of them are 8192 columns of C.
_SHALLOW, _WHOLE_ROWS = 64, 64

#: Microseconds: a second launch, and each part that it adds up; bytes of a microsecond.
_COMBINING, _PART, _MEMORY = 3.0, 0.04, 4e6

#: Microseconds of a launch, of the repacking before it, of the end of the last tile, of each tile;
#: of adding parts of k, and for each part.
_LAUNCH, _REPACK, _END, _TILE, _ADD, _ADD_PART = 4.3, 2.8, 2.2, 0.15, 0.74, 0.041

#: Microseconds in which a warpgroup stores a row of 64 elements of C, all of them at the same time,
#: and how many times that where rows of C do not start at multiples of 16 bytes, which TMA cannot
#: store: written row by row, and where A and B swap roles column by column, one row of 32 elements
#: at a time (STORE 1), and eight of them (STORE 2, before it stored 8 bytes for a lane).
_STORE, _BY_ROWS, _BY_COLUMNS = 0.0058, 2.7, {1: 9.5, 2: 4.2}

#: Bytes in a microsecond: repacked, added up, into one multiprocessor from L2, and from all of L2.
_REPACKED, _ADDED, _INTO_ONE, _FROM_ALL = 3.9e6, 2.7e6, 2.6e5, 1.85e7

#: Microseconds from a load to its use; of 32 along k of a tile of 256 x 128; of a row or column
#: that a warpgroup reads from shared memory; of transposing 64 rows of A; and how much of the
#: shorter of computing and memory the longer does not hide.
_LATENCY, _MULTIPLY, _READ, _TRANSPOSE, _OVERLAP = 0.98, 0.42, 0.00039, 0.065, 0.26

#: Operations, elements of C and depth up to which times were fitted: above, power, stores and
#: memory decide.
_FITTED, _FITTED_C, _FITTED_K = 2e10, 2**24, 2**14


def _is_fitted(p: Problem) -> bool:
    usual = p.flops <= _FITTED and p.m * p.n <= _FITTED_C and p.k <= _FITTED_K
    return usual and p.batch == 1 and not p.symmetric and min(p.m, p.n) >= 32


def _fastest(p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least expected time, of kernel 10."""
    options = _timed(p, d, (*FORMS, *_PAIRS))
    _, best = min(options, key=lambda option: option[0], default=(0.0, None))
    return dict(WGMMA_TF32.default) if best is None else best.as_dict()


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every form that may run, whole and with k in parts; large tiles whose blocks share A only
    where there are enough steps.
    """
    forms = (*FORMS, *_PAIRS, *_FILLING, *(_SHARING if p.k >= _STEPS else ()))
    return _timed(p, d, forms)


def _timed(p: Problem, d: Device, forms: tuple[Form, ...]) -> Iterator[tuple[float, Config]]:
    for _, _, config in _candidates(WGMMA_TF32, forms, p, d):
        yield _expected(config, p, d), config


def _expected(c: Config, p: Problem, d: Device) -> float:
    """Microseconds of a launch and the repacking before it, of the waves of tiles, and of adding up
    the parts of k. A step takes as long as its bytes need from L2, or as the latency that the other
    stages do not hide.
    """
    loaded = WGMMA_TF32.tma.as_loaded(p)
    units = WGMMA_TF32.units(c, p)
    sms = places(d, c.CLUSTER)
    into_one = (c.MB + c.NB) / _INTO_ONE
    from_all = (c.MB / c.CLUSTER + c.NB) / _FROM_ALL * max(min(units, sms), 1)
    step = 128 * max(into_one, from_all) + _TRANSPOSE * _transposes_a(loaded) * c.MB / 64
    step = max(step, _MULTIPLY * max(c.MB, 64) * c.NB / (256 * 128))
    step += _READ * (c.MB // c.TA) * (c.NB // c.TB) * (c.TA + c.TB)
    step = max(step, 32 * _LATENCY / (c.STAGES * c.KB))
    steps = c.KB / 32 * ceil_div(ceil_div(p.k, c.SPLIT), c.KB)
    store = _STORE * c.TA
    if 4 * p.n % _ROW:
        store *= _BY_COLUMNS[c.STORE] if _swapped(loaded) else _BY_ROWS
    waves = math.ceil(units / sms)
    busy = _END + waves * (steps * step + _TILE) + store * waves
    repacked = [
        4 * rows * columns
        for (_, rows, columns), before, after in zip(
            stored_shapes(p),
            (p.trans_a, p.trans_b),
            (loaded.trans_a, loaded.trans_b),
            strict=False,
        )
        if 4 * columns % _ROW or before != after
    ]
    before = _REPACK + 2 * sum(repacked) / _REPACKED if repacked else 0.0
    adding = _ADD + _ADD_PART * c.SPLIT + 8 * p.m * p.n * c.SPLIT / _ADDED if c.SPLIT > 1 else 0.0
    return _LAUNCH + before + beside_memory(busy, p.bytes / _MEMORY, _OVERLAP) + adding


def heuristic(kernel: Kernel, forms: tuple[Form, ...], p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least time by the form's own rates."""
    options = _candidates(kernel, forms, p, d)
    timed = ((_microseconds(form, tiles, c.SPLIT, p, d), c) for form, tiles, c in options)
    best = min(timed, key=lambda option: option[0], default=None)
    return dict(kernel.default) if best is None else best[1].as_dict()


def _candidates(
    kernel: Kernel, forms: tuple[Form, ...], p: Problem, d: Device
) -> Iterator[tuple[Form, int, Config]]:
    """Each form that may run, its tiles, and its configuration with k whole and in the parts that
    fill the device once and twice. Small tiles that are transposed have two slices: one transposes
    while the other multiplies.
    """
    received = kernel.tma.as_loaded(p)
    by_rows = _WHOLE_ROWS if _swapped(received) else 1
    for form in forms:
        given = dict(kernel.default, MB=form.MB, NB=form.NB, KB=form.KB, TA=form.TA or form.MB)
        given |= dict(STAGES=form.STAGES, CLUSTER=form.CLUSTER)
        small_pair = form.CLUSTER > 1 and form.MB * form.NB <= 128 * 64
        given["GROUP"] = by_rows if p.k <= _SHALLOW or small_pair else 8
        slices = 1 + (_transposes_a(received) and form.MB * form.NB <= 64 * 64)
        if slices > 1:
            given["SLICES"] = slices
        while given["STAGES"] > 2 * slices and not STAGES_FIT.holds(kernel.config(given), p, d):
            given["STAGES"] -= slices
        tiles = kernel.units(kernel.config(given), p)
        most = p.k // (4 * form.KB * slices)
        sms = places(d, form.CLUSTER)
        for parts in {1, *(min(most, full * sms // max(tiles, 1)) for full in (1, 2))} - {0}:
            anywhere = parts == 1 and _swapped(received) and rows_start_anywhere(p)
            store = dict(STORE=2) if anywhere and "STORE" in kernel.space else {}
            config = kernel.config(dict(given, SPLIT=parts, **store))
            if not kernel.violations(config, p, d):
                yield form, tiles, config


def _microseconds(form: Form, tiles: int, parts: int, p: Problem, d: Device) -> float:
    waves = ceil_div(tiles * parts, d.sms)
    if p.k <= _SHALLOW and tiles > d.sms:
        return abs(form.MB * form.NB - 128 * 128)
    busy = waves * (math.ceil(p.k / 32 / parts) * form.step + form.rest)
    sums = 4 * p.m * p.n * p.batch * parts if parts > 1 else 0
    adding = _COMBINING + _PART * parts + 2 * sums / _MEMORY if parts > 1 else 0.0
    fetched = p.bytes / (_MEMORY * min(1.0, tiles * parts / d.sms or 1.0))
    return max(busy, fetched) + 0.1 * min(busy, fetched) + adding


#: Bytes that rows start at multiples of, for TMA.
_ROW = 16

#: Multiply-adds, and extents, up to which a tile is transposed by the kernel and not by a copy.
_LITTLE, _THIN, _SHORT = 2**30, 256, 32

#: Columns of a wgmma that the kernels have: rows of C of one warpgroup.
_HEIGHTS = (16, 32, 64, 96, 128, 160, 192, 224, 256)

#: Registers that a thread has for sums and columns of B together, by the number of warpgroups that
#: multiply: 32 fewer than for sums alone where columns go through registers.
_SUMS_AND_COLUMNS = ACCUMULATORS | {1: 160, 2: 160}


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more loads."""
    return (c.MB // c.TA) * (c.NB // c.TB) * _slices(c)


def _slices(c: Config) -> int:
    """Warpgroups that take turns along k for one tile of C."""
    return getattr(c, "SLICES", 1)


def _threads(c: Config) -> int:
    return 128 * (1 + _consumers(c))


def _swapped(p: Problem) -> bool:
    """Whether A and B swap roles, and so do rows and columns of C: where both are
    transposed in the layout that the kernel loads.
    """
    return p.trans_a and p.trans_b


def _major(p: Problem) -> tuple[str, str]:
    """Operands that TMA cannot read are repacked, K-major. If both operands are MN-major, the
    smaller one is repacked K-major; but the kernel transposes the tiles of A itself where that
    costs less: if A is thin, the product small or k short.
    """
    copied_a, copied_b = (4 * shape[2] % _ROW > 0 for shape in stored_shapes(p)[:2])
    if copied_a or copied_b:
        return "k" if copied_a else "any", "k" if copied_b else "any"
    across = p.trans_a and not p.trans_b
    little = p.m * p.n * p.k <= _LITTLE or p.k <= _SHORT
    if not across or little or p.m <= min(p.n, _THIN):
        return "any", "any"
    return ("k", "any") if p.m <= p.n else ("any", "k")


def _transposes_a(p: Problem) -> bool:
    """Whether the kernel transposes A's tiles: neither operand is K-major."""
    return p.trans_a and not p.trans_b


def _staged(c: Config) -> int:
    """Rows of a piece of C that a warpgroup stores at a time."""
    return 32 if c.TA % 32 == 0 else 16


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages; pieces of C of 32 x 64 that are being stored; the sums of all slices but one; two
    barriers for each stage; up to 1 KiB for the alignment of swizzled boxes.
    """
    stages = c.STAGES * c.kernel.tma.terms * (c.MB + c.NB) * c.KB
    sums = (_slices(c) - 1) * c.MB * c.NB
    pieces = _consumers(c) // _slices(c) * getattr(c, "SLOTS", 2)
    return stages + pieces * 32 * 64 + sums + 4 * c.STAGES + 256


def _tiles(c: Config, p: Problem) -> tuple[int, int]:
    """Blocks that have a tile, in whole clusters, and 1."""
    if _swapped(c.kernel.tma.as_loaded(p)):
        p = replace(p, m=p.n, n=p.m)
    return tiles_in(p, c.MB, c.NB * c.CLUSTER) * c.CLUSTER, 1


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box | None]:
    """A K-major operand is loaded in boxes of all its rows, an MN-major one in boxes of 32 columns,
    or of 32 x 32 where it is transposed; C is stored in pieces.
    """
    across = Box(32, c.KB)
    if _transposes_a(p):
        return Box(32, 32), across, Box(32, _staged(c))
    along = _rows(p.n if _swapped(p) else p.m, c.MB // c.CLUSTER)
    if _swapped(p):
        return across, along, Box(32, 64) if _staged(c) >= 32 else None
    return along, _rows(p.n, c.NB) if p.trans_b else across, Box(32, _staged(c))


def _rows(size: int, most: int) -> Box:
    """K-major rows: those of the tile, or of a matrix that has fewer, in eights."""
    return Box(32, min(round_up(size, 8), most))


_EVEN = Rule(
    "warpgroups tile the block evenly: TA divides MB, TB divides NB, 64 divides TB",
    lambda c, p, d: c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TB % 64 == 0,
)
_WGMMA = Rule(
    "wgmma makes TA rows: 16, 32, 64, 96, 128, 160, 192, 224 or 256",
    lambda c, p, d: c.TA in _HEIGHTS,
)
_BOXED = Rule(
    "boxes have at most 256 rows and 32 columns: MB, NB, KB <= 256, 32 divides KB",
    lambda c, p, d: c.MB <= 256 and c.NB <= 256 and c.KB % 32 == 0 and c.KB <= 256,
)
_RING = Rule(
    "a tile is fetched while another is used: STAGES is 2 SLICES or a higher multiple",
    lambda c, p, d: c.STAGES >= 2 * _slices(c) and c.STAGES % _slices(c) == 0,
)
_SHARED_A = Rule(
    "blocks share the boxes of A: CLUSTER is 1, 2 or 4, 8 CLUSTER divides MB",
    lambda c, p, d: c.CLUSTER in (1, 2, 4) and c.MB % (8 * c.CLUSTER) == 0,
)


_SQUARES = Rule(
    "tiles are turned by squares of 32: 32 CLUSTER divides MB",
    lambda c, p, d: not _transposes_a(c.kernel.tma.as_loaded(p)) or c.MB % (32 * c.CLUSTER) == 0,
)


def _fit(c: Config, p: Problem, d: Device) -> bool:
    """Accumulators, and the columns of two steps that go through registers."""
    wanted = c.TA * c.TB // 128 + c.KB * c.TB // 64
    if _transposes_a(c.kernel.tma.as_loaded(p)):
        wanted += 32  # a column that is being transposed
    elif c.SLICES > 1:
        wanted += 16
    return wanted <= _SUMS_AND_COLUMNS.get(_consumers(c), 0)


def _fit_twice(c: Config, p: Problem, d: Device) -> bool:
    """Accumulators, and those of the step."""
    return c.TA * c.TB // 64 <= ACCUMULATORS.get(_consumers(c), 0)


_COMMON = dict(
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=_tiles,
    shared_elements=_shared_elements,
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    persistent=Persistent(),
)

WGMMA_TF32 = Kernel(
    number=10,
    name="wgmma_tf32",
    file="10_wgmma_tf32.cu",
    title="Hopper: float32 rounded to tf32, through wgmma; an MN-major B goes through registers",
    space=dict(
        MB=(16, 32, 64, 96, 128, 160, 192, 224, 256),
        NB=(64, 128, 192, 256),
        KB=(32, 64),
        TA=(16, 32, 64, 96, 128, 160, 192, 224, 256),
        TB=(64,),
        SLICES=(1, 2),
        STAGES=(2, 3, 4, 5, 6, 8),
        SLOTS=(2, 4),
        CLUSTER=(1, 2, 4),
        GROUP=(1, 4, 8, 16, 64),
        SPLIT=(1, 2, 4, 8, 16, 33, 66, 132),
        STORE=(1, 2),
    ),
    added=dict(STORE=1),
    default=dict(
        MB=256,
        NB=128,
        KB=32,
        TA=256,
        TB=64,
        SLICES=1,
        STAGES=4,
        SLOTS=2,
        CLUSTER=1,
        GROUP=8,
        SPLIT=1,
    ),
    heuristic=lambda p, d: _fastest(p, d) if _is_fitted(p) else heuristic(WGMMA_TF32, FORMS, p, d),
    options=_options,
    expected=_expected,
    dtypes=("tf32",),
    tma=Tma(_boxes, major=_major),
    rules=(
        _EVEN,
        _WGMMA,
        _BOXED,
        _RING,
        _SHARED_A,
        _SQUARES,
        Rule(
            "TA TB / 128 + KB TB / 64 <= 160 (3, 4 warpgroups 120, 64; sliced -16, turned -32)",
            _fit,
        ),
        STORED_ANYWHERE,
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
    **_COMMON,
)

WGMMA_TF32X3 = Kernel(
    number=13,
    name="wgmma_tf32x3",
    file="13_wgmma_tf32x3.cu",
    title="Hopper: float32 as the sum of two tf32 values, multiplied in three tf32 products",
    space=dict(
        MB=(32, 64, 128, 192),
        NB=(64, 128, 192),
        KB=(32,),
        TA=(32, 64, 128, 192),
        TB=(64, 128),
        STAGES=(2, 3, 4, 6, 7),
        CLUSTER=(1, 2),
        GROUP=(1, 4, 8, 16),
        SPLIT=(1, 2, 4, 8, 16, 33, 66, 132),
    ),
    default=dict(MB=128, NB=128, KB=32, TA=128, TB=64, STAGES=3, CLUSTER=1, GROUP=8, SPLIT=1),
    heuristic=lambda p, d: heuristic(WGMMA_TF32X3, FORMS_X3, p, d),
    dtypes=("tf32x3",),
    tma=Tma(_boxes, major=("k", "k"), terms=2),
    rules=(
        _EVEN,
        _WGMMA,
        _BOXED,
        _RING,
        _SHARED_A,
        Rule(
            "TA TB / 64 registers for sums: at most 192 (1, 2 warpgroups), 120 (3), 64 (4)",
            _fit_twice,
        ),
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
    **_COMMON,
)
