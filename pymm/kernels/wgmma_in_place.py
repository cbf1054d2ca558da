"""Kernel 17: 16-bit operands whose rows start anywhere, on Hopper's tensor cores without a copy."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.expected import in_tiles
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import ACCUMULATORS, PARTS_FIT, PARTS_HAVE_STEPS, STAGES_FIT, STAGES_OVERLAP
from pymm.kernels.tiles import tiles_in

#: Classes of rows (common/row_classes.cuh), columns of 128 bytes, rows of C that a warp stores.
_CLASSES, _LINE, _WARP_ROWS = 8, 64, 16


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more loads."""
    return c.MB // c.TA * (c.NB // c.TB)


def _swapped(p: Problem) -> bool:
    """Whether A and B swap roles, so that MB counts columns of C and NB rows."""
    return p.trans_a and p.trans_b


def _tiles(c: Config, p: Problem) -> tuple[int, int]:
    return (tiles_in(p, c.NB, c.MB) if _swapped(p) else tiles_in(p, c.MB, c.NB)), 1


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """A box has one class of the rows of a tile: a K-major one of all of them, an MN-major one of
    all depth. C is not stored by TMA: its map says where that could.
    """
    rows, columns = (c.NB, c.MB) if _swapped(p) else (c.MB, c.NB)
    a = Box(_LINE, (c.KB if p.trans_a else rows) // _CLASSES)
    b = Box(_LINE, (columns if p.trans_b else c.KB) // _CLASSES)
    return a, b, Box(128 // p.out_dtype.itemsize, 64)


def _shared_bytes(c: Config, p: Problem) -> int:
    """The stages; 16 rows of 64 columns of C, each padded by 16 bytes, for each warp that stores;
    two barriers for each stage; up to 1 KiB for the alignment of swizzled boxes.
    """
    staged = _WARP_ROWS * (_LINE * p.out_dtype.itemsize + 16) if c.SPLIT == 1 else 0
    stages = c.STAGES * (c.MB + c.NB) * c.KB * 2
    return stages + 4 * _consumers(c) * staged + 16 * c.STAGES + 1024


def _evenly(c: Config) -> bool:
    rows = c.TA % 64 == 0 and c.MB % c.TA == 0
    return rows and c.TB % 64 == 0 and c.NB % c.TB == 0 and c.TB <= 256


def _registers_fit(c: Config, p: Problem) -> bool:
    words = c.TA // 2 if p.trans_a == p.trans_b else 0  # one operand is in registers
    return c.TA * c.TB // 128 + words <= ACCUMULATORS.get(_consumers(c), 0)


def _rows_start_anywhere(p: Problem, d: Device) -> bool:
    """Whether kernel 7 would repack A or B."""
    return any(shape[2] * 2 % 16 for shape in stored_shapes(p)[:2])


# What a survey may measure and choose. No time of this kernel is known yet: these are kernel 7's

#: Forms of a block, microseconds of a step, of the rest of a tile.
_FORMS = (
    (dict(MB=64, NB=64, TA=64, TB=64, STAGES=12), 0.175, 0.15),
    (dict(MB=64, NB=128, TA=64, TB=64, STAGES=8), 0.24, 0.3),
    (dict(MB=64, NB=192, TA=64, TB=64, STAGES=6, GROUP=1), 0.27, 0.35),
    (dict(MB=128, NB=64, TA=64, TB=64, STAGES=8), 0.25, 0.25),
    (dict(MB=128, NB=128, TA=64, TB=128, STAGES=6), 0.36, 0.9),
    (dict(MB=128, NB=192, TA=64, TB=192, STAGES=4), 0.49, 1.55),
    (dict(MB=128, NB=256, TA=64, TB=256, STAGES=4), 0.64, 1.8),
)

#: Microseconds of each element of a block's tile that is stored.
_STORED = 1e-4


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every form, whole and with as many parts of k as fill the device once or twice, where rows
    start anywhere.
    """
    if not _rows_start_anywhere(p, d):
        return
    for given, step, rest in _FORMS:
        whole = WGMMA_IN_PLACE.config(dict(KB=64, GROUP=8, SPLIT=1) | given)
        tiles = max(1, _tiles(whole, p)[0])
        parts = {min(p.k // (4 * 64), full * d.sms // tiles) for full in (1, 2)}
        for split in {1, *(count for count in parts if count > 1)}:
            config = WGMMA_IN_PLACE.config(whole.as_dict() | {"SPLIT": split})
            end = rest + _STORED * config.MB * config.NB * (split == 1)
            yield in_tiles(config, p, d, step, end), config


WGMMA_IN_PLACE = Kernel(
    number=17,
    name="wgmma_in_place",
    file="17_wgmma_in_place.cu",
    title="Hopper: rows that start anywhere, loaded by TMA in place, by eight maps of an operand",
    space=dict(
        MB=(64, 128, 256),
        NB=(64, 128, 192, 256),
        KB=(64,),
        TA=(64, 128),
        TB=(64, 128, 192, 256),
        STAGES=(2, 3, 4, 6, 8, 10, 12),
        GROUP=(1, 8),
        SPLIT=(1, 2, 4, 8, 16, 32, 66, 132),
    ),
    default=dict(MB=128, NB=128, KB=64, TA=64, TB=128, STAGES=6, GROUP=8, SPLIT=1),
    fallbacks=(dict(MB=64, NB=64, KB=64, TA=64, TB=64, STAGES=4, GROUP=8, SPLIT=1),),
    options=_options,
    threads=lambda c: 128 * (1 + _consumers(c)),
    block=lambda c: (128 * (1 + _consumers(c)), 1, 1),
    tiles=_tiles,
    shared_elements=lambda c, p: _shared_bytes(c, p) // p.numpy_dtype.itemsize,
    dtypes=("f16", "bf16", "f16_f32", "bf16_f32"),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(_boxes, classes=_CLASSES),
    persistent=Persistent(),
    preferred_for=lambda p, d: False,  # no time was measured yet: the tuner alone tries it
    competes=_rows_start_anywhere,
    rules=(
        Rule("one product: the batch is 1", lambda c, p, d: p.batch == 1),
        Rule(
            "every class has a row: A and B are stored as 8 rows or more",
            lambda c, p, d: p.k == 0 or all(s[1] >= _CLASSES for s in stored_shapes(p)[:2]),
        ),
        Rule(
            "warpgroups tile the block evenly: TA divides MB, TB divides NB, 64 divides both",
            lambda c, p, d: _evenly(c),
        ),
        Rule("MB and NB are at most 256", lambda c, p, d: c.MB <= 256 and c.NB <= 256),
        Rule("a step is as deep as a box: KB is 64", lambda c, p, d: c.KB == 64),
        STAGES_OVERLAP,
        Rule(
            "TA TB / 128 (+ TA / 2 of A in registers) <= 192 (3, 4 warpgroups: 120, 64)",
            lambda c, p, d: _registers_fit(c, p),
        ),
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
)
