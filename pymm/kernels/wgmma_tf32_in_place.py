"""Kernel 17: float32 rounded to tf32, whose rows start anywhere, on Hopper's tensor cores without a
copy.
"""

from __future__ import annotations

from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.expected import in_tiles
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import ACCUMULATORS, PARTS_FIT, PARTS_HAVE_STEPS, STAGES_FIT, STAGES_OVERLAP
from pymm.kernels.tiles import tiles_in

#: Classes of rows (common/row_classes.cuh), and the columns of 128 bytes.
_CLASSES, _LINE = 4, 32

#: Extents of a tile, and of what a warpgroup computes of it.
_EXTENTS = (32, 64, 96, 128, 160, 192, 256)


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more loads."""
    return c.MB // c.TA * (c.NB // c.TB)


def _turned(p: Problem) -> bool:
    """Whether wgmma computes C^T: B is MN-major and its left side, through registers."""
    return not p.trans_b


def _transposes_a(p: Problem) -> bool:
    """Whether A's tiles are transposed in shared memory: both operands are MN-major."""
    return p.trans_a and not p.trans_b


def _via_registers(p: Problem) -> bool:
    """Whether the left side of wgmma goes through registers: it is MN-major."""
    return p.trans_a or not p.trans_b


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """A box has one class of the rows of a tile: of a K-major one of all of them; of an MN-major
    one of all depth, or of a square of 32 where it is transposed. C is not stored by TMA: its map
    says where that could.
    """
    across = Box(_LINE, c.KB // _CLASSES)
    along = Box(_LINE, c.MB // _CLASSES), Box(_LINE, c.NB // _CLASSES)
    a = Box(_LINE, _LINE // _CLASSES) if _transposes_a(p) else across if p.trans_a else along[0]
    return a, along[1] if p.trans_b else across, Box(_LINE, 32)


def _shared_bytes(c: Config, p: Problem) -> int:
    """The stages, with an empty line behind each class of what goes through registers; what each
    warpgroup stores at a time, 32 x 64 or 64 x 32 of C, each row padded by 16 bytes; two barriers
    for each stage; up to 1 KiB for the alignment of swizzled boxes.
    """
    stage = (c.MB + c.NB) * c.KB * 4 + 1024 * _via_registers(p)
    staged = 32 * (64 * 4 + 16) if _turned(p) else 64 * (32 * 4 + 16)
    return c.STAGES * stage + _consumers(c) * staged + 16 * c.STAGES + 1024


def _evenly(c: Config) -> bool:
    rows = c.MB % c.TA == 0 and c.TA % 32 == 0
    return rows and c.NB % c.TB == 0 and c.TB % 32 == 0


def _registers_fit(c: Config, p: Problem) -> bool:
    """Sums first: of these the extents need not be known."""
    sums, most = c.TA * c.TB // 128, ACCUMULATORS.get(_consumers(c), 0)
    if sums > most:
        return False
    left = c.TB if _turned(p) else c.TA
    return sums + left // 2 * _via_registers(p) <= most - 32 * _transposes_a(p)


def _rows_start_anywhere(p: Problem, d: Device) -> bool:
    """Whether kernel 10 would repack A or B for its rows."""
    return any(shape[2] * 4 % 16 for shape in stored_shapes(p)[:2])


# What a survey may measure and choose. No time of this kernel is known yet: these are like kernel
# 10's

#: Forms of a block: columns and rows of wgmma, rows of a warpgroup, depth, stages; microseconds of
#: 32 along k, and of the rest of a tile.
_FORMS = (
    (256, 128, 64, 32, 4, 0.59, 3.7),
    (256, 64, 64, 64, 2, 0.42, 3.4),
    (160, 128, 64, 32, 4, 0.44, 2.7),
    (128, 128, 64, 32, 6, 0.39, 2.5),
    (128, 128, 64, 64, 3, 0.39, 2.5),
    (128, 64, 64, 64, 4, 0.32, 2.4),
    (96, 256, 128, 32, 4, 0.56, 3.0),
    (96, 128, 64, 64, 3, 0.36, 2.4),
    (64, 128, 64, 64, 4, 0.34, 2.4),
    (64, 64, 64, 64, 6, 0.23, 1.7),
    (32, 64, 64, 64, 8, 0.20, 1.2),
)


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every form, whole and with as many parts of k as fill the device once or twice, where rows
    start anywhere.
    """
    if not _rows_start_anywhere(p, d):
        return
    for right, left, own, depth, stages, step, rest in _FORMS:
        form = dict(MB=right, NB=left, TA=right, TB=own)
        if not _turned(p):
            form = dict(MB=left, NB=right, TA=own, TB=right)
        form |= dict(KB=depth, STAGES=stages, GROUP=8)
        tiles = max(1, tiles_in(p, form["MB"], form["NB"]))
        parts = {min(p.k // (4 * depth), full * d.sms // tiles) for full in (1, 2)}
        for split in {1, *(count for count in parts if count > 1)}:
            config = WGMMA_TF32_IN_PLACE.config(form | dict(SPLIT=split))
            yield in_tiles(config, p, d, step * depth / 32, rest), config


WGMMA_TF32_IN_PLACE = Kernel(
    number=17,
    name="wgmma_tf32_in_place",
    file="17_wgmma_tf32_in_place.cu",
    title="Hopper: tf32 whose rows start anywhere, loaded by TMA in place, four maps an operand",
    space=dict(
        MB=_EXTENTS,
        NB=_EXTENTS,
        KB=(32, 64, 128),
        TA=_EXTENTS,
        TB=_EXTENTS,
        STAGES=(2, 3, 4, 6, 8),
        GROUP=(1, 8),
        SPLIT=(1, 2, 3, 4, 6, 8, 12, 16, 33, 66, 132),
    ),
    default=dict(MB=128, NB=128, KB=32, TA=128, TB=64, STAGES=6, GROUP=8, SPLIT=1),
    fallbacks=(dict(MB=64, NB=64, KB=32, TA=64, TB=64, STAGES=4, GROUP=8, SPLIT=1),),
    options=_options,
    threads=lambda c: 128 * (1 + _consumers(c)),
    block=lambda c: (128 * (1 + _consumers(c)), 1, 1),
    tiles=lambda c, p: (tiles_in(p, c.MB, c.NB), 1),
    shared_elements=lambda c, p: _shared_bytes(c, p) // 4,
    dtypes=("tf32",),
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
            "every class has a row: A and B are stored as 4 rows or more",
            lambda c, p, d: p.k == 0 or all(s[1] >= _CLASSES for s in stored_shapes(p)[:2]),
        ),
        Rule(
            "warpgroups tile the block evenly: TA divides MB, TB divides NB, 32 divides both",
            lambda c, p, d: _evenly(c),
        ),
        Rule(
            "wgmma has 64 rows on its left: 64 divides TB, or TA where B is transposed",
            lambda c, p, d: (c.TB if _turned(p) else c.TA) % 64 == 0,
        ),
        Rule("MB and NB are at most 256", lambda c, p, d: c.MB <= 256 and c.NB <= 256),
        Rule(
            "a step has one, two or four parts of 32: KB is 32, 64 or 128",
            lambda c, p, d: c.KB in (32, 64, 128),
        ),
        STAGES_OVERLAP,
        Rule(
            "TA TB / 128 + rows by registers / 2 <= 192 (3, 4 warpgroups 120, 64; turned -32)",
            lambda c, p, d: _registers_fit(c, p),
        ),
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
)
