"""Kernel 18: kernel 8 on operands as they are stored: the warps that bring tiles transpose them,
and rows may start anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.kernel import Box, Config, Rule, Tma
from pymm.kernels.tma_f32 import TMA_F32, computed_us, options, repacked

#: Classes of rows (common/row_classes.cuh); raw tiles of K-major operands in shared memory.
_CLASSES, _RAW_STAGES = 4, 2


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box | None]:
    """A box has one class of the rows of a tile, a K-major one swizzled."""

    def box(extent: int, k_major: bool) -> Box:
        if k_major:
            return Box(c.KB, extent // _CLASSES, 4 * c.KB)
        return Box(extent, c.KB // _CLASSES, 0)

    out = Box(8 * c.TB, 4 * c.TA, 0) if c.STORE == 2 else None
    return box(c.MB, not p.trans_a), box(c.NB, p.trans_b), out


def _shared_elements(c: Config, p: Problem) -> int:
    """What kernel 8 takes, in whole 128 bytes; the raw tiles of K-major operands, each class of
    rows a multiple of 8 and two more; two barriers for each raw stage.
    """
    k_major = [c.MB] * (not p.trans_a) + [c.NB] * p.trans_b
    raw = sum(_CLASSES * ((x // _CLASSES + 5) // 8 * 8 + 2) * c.KB for x in k_major)
    return round_up(TMA_F32.shared_elements(c, p), 32) + _RAW_STAGES * (raw + 4)


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """The forms of kernel 8, and with half the depth, for raw tiles take room; what they should
    take without repacking, where kernel 8 would repack. No time of this kernel is known yet.
    """
    if repacked(p) and p.batch == 1:
        for config in options(p, d):
            for deep in {config.KB, 16}:
                own = TMA_F32_IN_PLACE.config(config.as_dict() | {"KB": deep})
                yield computed_us(own, p, d), own


TMA_F32_IN_PLACE = replace(
    TMA_F32,
    number=18,
    name="tma_f32_in_place",
    file="18_tma_f32_in_place.cu",
    title="Hopper: multiply-adds; the warps that bring tiles transpose them, rows start anywhere",
    added={},
    heuristic=None,
    options=_options,
    shared_elements=_shared_elements,
    tma=Tma(_boxes, in_place=lambda p: int(p.n > p.m)),
    preferred_for=lambda p, d: False,  # no time was measured yet: the tuner alone tries it
    competes=lambda p, d: p.batch == 1 and repacked(p) > 0,
    rules=(
        *TMA_F32.rules,
        Rule(
            "a K-major row of a tile is swizzled as a whole: KB is 16 or 32",
            lambda c, p, d: c.KB in (16, 32),
        ),
        Rule("one product: the batch is 1", lambda c, p, d: p.batch == 1),
        Rule(
            "every class has a row: A and B are stored as 4 rows or more",
            lambda c, p, d: p.k == 0 or all(s[1] >= _CLASSES for s in stored_shapes(p)[:2]),
        ),
    ),
)
