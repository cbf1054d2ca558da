"""Kernel 18: kernel 8 with both operands as they are stored: the warps that bring tiles put them
where their elements would be if they were MN-major and aligned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.kernel import CLASSES, Box, Config, Rule, Tma, Way
from pymm.kernels.rules import STAGES_FIT
from pymm.kernels.tma_f32 import TMA_F32, computed_us, options, repacked_of

#: Raw tiles of K-major operands in shared memory, and elements by which their rows are longer than
#: those of the tile.
_RAW_STAGES, _MORE = 2, 4


def _ways(p: Problem) -> tuple[Way, Way]:
    """A K-major operand comes by classes, an MN-major one by boxes if its rows are aligned."""
    a = Way.BOXES if p.m * 4 % 16 == 0 else Way.ELEMENTS
    b = Way.BOXES if p.n * 4 % 16 == 0 else Way.ELEMENTS
    return a if p.trans_a else Way.CLASSES, Way.CLASSES if p.trans_b else b


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box | None]:
    """A class of the rows of a raw tile, the others as in kernel 8."""
    a, b, out = TMA_F32.tma.boxes(c, p)
    way_a, way_b = _ways(p)
    a = Box(c.KB + _MORE, c.MB // CLASSES, 0) if way_a == Way.CLASSES else a
    b = Box(c.KB + _MORE, c.NB // CLASSES, 0) if way_b == Way.CLASSES else b
    return a, b, out


def _shared_elements(c: Config, p: Problem) -> int:
    """What kernel 8 takes, in whole 128 bytes; the boxes of each raw tile, each in whole 128 bytes,
    and two barriers.
    """
    raw = [
        CLASSES * round_up(box.columns * box.rows, 32)
        for box, way in zip(_boxes(c, p), _ways(p), strict=False)
        if way == Way.CLASSES
    ]
    return round_up(TMA_F32.shared_elements(c, p), 32) + _RAW_STAGES * (sum(raw) + 4)


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """The forms of kernel 8, also 16 deep, and with two stages where theirs do not fit beside the
    raw tiles; what they should take without repacking. The model does not know the warps that move
    raw tiles: tiles whose other side is short take longer (64 x 64 x 262144: 71 us, expected 53).
    """
    if not _competes(p, d):
        return
    for config in options(p, d):
        for deep in {config.KB, 16}:
            own = TMA_F32_IN_PLACE.config(config.as_dict() | {"KB": deep})
            if not STAGES_FIT.holds(own, p, d):
                own = TMA_F32_IN_PLACE.config(own.as_dict() | {"STAGES": 2})
            yield computed_us(own, p, d), own


def _competes(p: Problem, d: Device) -> bool:
    """Whether it is a single product and kernel 8 would repack an operand."""
    return p.batch == 1 and sum(repacked_of(p)) > 0


TMA_F32_IN_PLACE = replace(
    TMA_F32,
    number=18,
    name="tma_f32_in_place",
    file="18_tma_f32_in_place.cu",
    title="Hopper: multiply-adds; operands in place, moved by the warps that bring tiles",
    added={},
    heuristic=None,
    options=_options,
    shared_elements=_shared_elements,
    tma=Tma(_boxes, ways=_ways, pointers=True),
    preferred_for=lambda p, d: False,  # a survey says where it is the quickest
    competes=_competes,
    rules=(
        *TMA_F32.rules,
        Rule(
            "8 rows of a K-major raw tile lie in different banks: KB is 16 or 32",
            lambda c, p, d: c.KB in (16, 32),
        ),
        Rule("one product: the batch is 1", lambda c, p, d: p.batch == 1),
        Rule(
            "every class has a row: a K-major operand has 4 rows or more",
            lambda c, p, d: (
                p.k == 0
                or all(
                    stored_shapes(p)[i][1] >= CLASSES
                    for i, way in enumerate(_ways(p))
                    if way == Way.CLASSES
                )
            ),
        ),
    ),
)
