"""Kernel 15: as kernel 7, with a tile for each of two warpgroups, which multiply in turn."""

from __future__ import annotations

from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import ACCUMULATORS, STAGES_FIT, STAGES_OVERLAP
from pymm.kernels.tiles import tiles_in

#: Warpgroups that multiply; one more loads. Bytes of a row of a box, and of 64 such rows.
_CONSUMERS, _ROW = 2, 128
_PIECE = 64 * _ROW


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """A K-major box has all rows of a tile, or what a block of the cluster loads of it; an MN-major
    one 64 columns, of B as deep as a block's share. C is stored in pieces of 64 rows.
    """
    a = Box(64, c.KB) if p.trans_a else Box(c.KB, c.MB)
    b = Box(c.KB, c.NB // c.CLUSTER) if p.trans_b else Box(64, c.KB // c.CLUSTER)
    return a, b, Box(_ROW // p.out_dtype.itemsize, 64)


def _shared_bytes(c: Config, p: Problem) -> int:
    """The stages; SLOTS pieces of C for each warpgroup; two barriers for each stage and one for
    each warpgroup; up to 1 KiB for the alignment of swizzled boxes.
    """
    columns = c.NB if p.trans_b else round_up(c.NB, 64)
    stages = c.STAGES * (c.MB + columns) * c.KB * 2
    return stages + _CONSUMERS * (c.SLOTS * _PIECE + 8) + 16 * c.STAGES + 1024


def _tiles(c: Config, p: Problem) -> tuple[int, int]:
    """Blocks that have a tile, in whole clusters, and 1."""
    return tiles_in(p, c.MB * c.CLUSTER, c.NB) * c.CLUSTER, 1


PING_PONG = Kernel(
    number=15,
    name="ping_pong",
    file="15_ping_pong.cu",
    title="Hopper: two warpgroups with a tile each: one multiplies while the other stores",
    space=dict(
        MB=(64, 128),
        NB=tuple(range(64, 257, 16)),
        KB=(64,),
        STAGES=(3, 4, 5, 6, 7, 8, 10, 12),
        CLUSTER=(1, 2),
        GROUP=(1, 2, 4, 8, 16),
        SLOTS=(1, 2),
    ),
    default=dict(MB=128, NB=176, KB=64, STAGES=4, CLUSTER=2, GROUP=8, SLOTS=1),
    threads=lambda c: 128 * (1 + _CONSUMERS),
    block=lambda c: (128 * (1 + _CONSUMERS), 1, 1),
    tiles=_tiles,
    shared_elements=lambda c, p: _shared_bytes(c, p) // p.numpy_dtype.itemsize,
    dtypes=("f16", "bf16", "f16_f32", "bf16_f32"),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(_boxes),
    persistent=Persistent(),
    rules=(
        Rule("a warpgroup has 64 or 128 rows: MB is 64 or 128", lambda c, p, d: c.MB in (64, 128)),
        Rule(
            "a tile has 64 to 256 columns, a multiple of 16: NB",
            lambda c, p, d: c.NB % 16 == 0 and 64 <= c.NB <= 256,
        ),
        Rule("a step is as deep as a box: KB is 64", lambda c, p, d: c.KB == 64),
        STAGES_OVERLAP,
        Rule("blocks share B in pairs: CLUSTER is 1 or 2", lambda c, p, d: c.CLUSTER in (1, 2)),
        Rule(
            "at most 192 sums: MB * NB / 128",
            lambda c, p, d: c.MB * c.NB // 128 <= ACCUMULATORS[_CONSUMERS],
        ),
        STAGES_FIT,
    ),
)
