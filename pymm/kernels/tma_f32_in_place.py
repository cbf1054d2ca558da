"""Kernel 18: kernel 8 with one operand as it is stored: three of the warps that bring tiles move
it to where its rows would be if they were MN-major and aligned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.kernel import CLASSES, Box, Config, Rule, Tma
from pymm.kernels.rules import STAGES_FIT
from pymm.kernels.tma_f32 import TMA_F32, computed_us, options, repacked_of, repacking_us

#: Raw tiles of the operand in place in shared memory, elements by which their rows are longer than
#: those of the tile, and the most elements of a row of a box.
_RAW_STAGES, _MORE, _LONGEST = 2, 4, 256


def _in_place(p: Problem) -> int:
    """The operand whose repacking by kernel 8 would move more bytes: 0 for A, 1 for B."""
    a, b = repacked_of(p)
    return int(b > a)


def _major(p: Problem) -> tuple[str, str]:
    """The other operand is loaded as kernel 8 loads it."""
    return ("mn", "any") if _in_place(p) else ("any", "mn")


def _raw_box(c: Config, p: Problem) -> Box:
    """A class of the rows of a raw tile; half of one that would be longer than a box may be."""
    extent = c.NB if _in_place(p) else c.MB
    if p.trans_b if _in_place(p) else not p.trans_a:
        return Box(c.KB + _MORE, extent // CLASSES, 0)
    halves = 2 if extent + _MORE > _LONGEST else 1
    return Box(extent // halves + _MORE, c.KB // CLASSES, 0)


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box | None]:
    """The operand in place by classes of rows, the others as in kernel 8."""
    a, b, out = TMA_F32.tma.boxes(c, p)
    return (a, _raw_box(c, p), out) if _in_place(p) else (_raw_box(c, p), b, out)


def _shared_elements(c: Config, p: Problem) -> int:
    """What kernel 8 takes, in whole 128 bytes; the boxes of each raw tile, each in whole 128 bytes,
    and two barriers.
    """
    box, extent = _raw_box(c, p), c.NB if _in_place(p) else c.MB
    boxes = ceil_div(c.KB * extent, (box.columns - _MORE) * box.rows)
    raw = boxes * round_up(box.columns * box.rows, 32)
    return round_up(TMA_F32.shared_elements(c, p), 32) + _RAW_STAGES * (raw + 4)


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """The forms of kernel 8, also 16 deep, and with two stages where theirs do not fit beside the
    raw tiles; what they should take without repacking the operand in place. The model does not know
    the warps that move it: tiles whose other side is short take longer (64 x 64 x 262144: 71 us,
    expected 53).
    """
    if not _competes(p, d):
        return
    others = repacking_us(repacked_of(p)[1 - _in_place(p)])
    for config in options(p, d):
        for deep in {config.KB, 16}:
            own = _own(config, deep, config.STAGES)
            if not STAGES_FIT.holds(own, p, d):
                own = _own(config, deep, 2)
            yield computed_us(own, p, d) + others, own


@lru_cache(maxsize=2**12)
def _own(config: Config, deep: int, stages: int) -> Config:
    """A configuration of kernel 8 as one of this kernel."""
    return TMA_F32_IN_PLACE.config(config.as_dict() | dict(KB=deep, STAGES=stages))


def _competes(p: Problem, d: Device) -> bool:
    """Whether it is a single product and kernel 8 would repack an operand."""
    return p.batch == 1 and repacked_of(p)[_in_place(p)] > 0


TMA_F32_IN_PLACE = replace(
    TMA_F32,
    number=18,
    name="tma_f32_in_place",
    file="18_tma_f32_in_place.cu",
    title="Hopper: multiply-adds; one operand in place, moved by the warps that bring tiles",
    added={},
    heuristic=None,
    options=_options,
    shared_elements=_shared_elements,
    tma=Tma(_boxes, major=_major, in_place=_in_place),
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
            "every class has a row: the operand in place is stored as 4 rows or more",
            lambda c, p, d: p.k == 0 or stored_shapes(p)[_in_place(p)][1] >= CLASSES,
        ),
    ),
)
