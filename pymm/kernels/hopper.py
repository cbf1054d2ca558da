"""Kernel 7: Hopper's tensor cores through wgmma, fed by the tensor memory accelerator."""

from __future__ import annotations

from pymm.device import Device
from pymm.kernels.declaration import STAGES_FIT, Box, Config, Feed, Kernel, Rule
from pymm.problem import Problem

#: Sums that a thread has room for, by the number of warpgroups that multiply: their registers (232,
#: 232, 160, 104) less 40 for the rest.
_SUMS = {1: 192, 2: 192, 3: 120, 4: 64}


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more fetches."""
    return (c.MB // c.TA) * (c.NB // c.TB)


def _shared_bytes(c: Config) -> int:
    """The stages, 64 rows of C for each warpgroup on their way out, two barriers for each stage,
    and up to 1 KiB to the boundary that swizzled boxes need.
    """
    stages = c.STAGES * (c.MB + c.NB) * c.KB * 2
    staged = _consumers(c) * 64 * (128 if c.TB % 128 == 0 else 64) * 2
    return stages + staged + 16 * c.STAGES + 1024


def _tiles(c: Config, p: Problem) -> tuple[int, int]:
    """Blocks that have a tile, in whole clusters, and 1."""
    down = -(-p.m // (c.MB * c.CLUSTER)) * c.CLUSTER
    return down * -(-p.n // c.NB), 1


def _whole(c: Config, p: Problem, d: Device) -> bool:
    return (
        c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TA % 64 == 0 and c.TB % 64 == 0 and c.TB <= 256
    )


WGMMA = Kernel(
    number=7,
    name="wgmma",
    file="07_wgmma.cu",
    title="Hopper: one thread fetches by TMA, warpgroups multiply TA x TB each by wgmma",
    space=dict(
        MB=(64, 128, 256),
        NB=(64, 128, 192, 256),
        KB=(64, 128),
        TA=(64, 128),
        TB=(64, 128, 192, 256),
        STAGES=(2, 3, 4, 5, 6, 8),
        CLUSTER=(1, 2),
        GROUP=(1, 4, 8, 16),
    ),
    default=dict(MB=128, NB=256, KB=64, TA=64, TB=256, STAGES=4, CLUSTER=1, GROUP=8),
    fallbacks=(
        dict(MB=128, NB=128, KB=64, TA=64, TB=128, STAGES=6, CLUSTER=1, GROUP=8),
        dict(MB=128, NB=64, KB=64, TA=64, TB=64, STAGES=8, CLUSTER=1, GROUP=4),
        dict(MB=64, NB=128, KB=64, TA=64, TB=128, STAGES=3, CLUSTER=1, GROUP=8),
        dict(MB=64, NB=64, KB=128, TA=64, TB=64, STAGES=5, CLUSTER=1, GROUP=8),
    ),
    threads=lambda c: 128 * (1 + _consumers(c)),
    block=lambda c: (128 * (1 + _consumers(c)), 1, 1),
    tiles=_tiles,
    shared_elements=lambda c, p: _shared_bytes(c) // p.numpy_dtype.itemsize,
    dtypes=("f16", "bf16"),
    dynamic_shared=True,
    capability=(9, 0),
    hopper=Feed(boxes=lambda c, p: (Box(64, 64), Box(64, 64), Box(64, 64))),
    rules=(
        Rule(
            "warpgroups tile the block evenly: 64 divides TA, TA MB, 64 TB, TB NB; TB <= 256",
            _whole,
        ),
        Rule(
            "a tile is a pile of boxes of 64 x 64: 64 divides KB",
            lambda c, p, d: c.KB % 64 == 0,
        ),
        Rule(
            "a tile is fetched while another is used: STAGES >= 2",
            lambda c, p, d: c.STAGES >= 2,
        ),
        Rule(
            "one block or two share the boxes of B: CLUSTER is 1 or 2, 64 CLUSTER divides NB",
            lambda c, p, d: c.CLUSTER in (1, 2) and c.NB % (64 * c.CLUSTER) == 0,
        ),
        Rule(
            "TA * TB / 128 sums fit: at most 192 for 1 or 2 warpgroups, 120 for 3, 64 for 4",
            lambda c, p, d: c.TA * c.TB // 128 <= _SUMS.get(_consumers(c), 0),
        ),
        STAGES_FIT,
    ),
)
