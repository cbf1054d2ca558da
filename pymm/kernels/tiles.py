"""How many tiles of C there are, and blocks that share one, each with its part of k: what
common/schedule.cuh and common/split.cuh know.
"""

from __future__ import annotations

from functools import lru_cache

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Rule


def tiles(c: Config, p: Problem) -> int:
    """Tiles of C that have an element to compute."""
    return tiles_in(p, c.MB, c.NB)


def tiles_in(problem: Problem, rows: int, columns: int) -> int:
    """Tiles of `rows` x `columns` that have an element of C to compute: `tiles_in` of
    common/schedule.cuh.
    """
    down, across = -(-problem.m // rows), -(-problem.n // columns)
    if not problem.halved or not down:
        return down * across
    if problem.fill == "upper":
        down, across, rows, columns = across, down, columns, rows
    return _stair(down - 1, rows, columns) + across


@lru_cache(maxsize=4096)
def _stair(lines: int, high: int, wide: int) -> int:
    """Tiles of the first lines of a half, all of them whole."""
    return sum(-(-(line + 1) * high // wide) for line in range(lines))


#: Tiles of C that can be shared by several blocks: the counters of common/split.cuh.
COUNTERS = 16384

#: Bytes that the parts of a split product may take.
MOST_PARTS = 128 * 2**20


def workspace_bytes(c: Config, p: Problem) -> int:
    """Bytes for the counters and the parts of tiles that several blocks share."""
    if c.SPLIT == 1:
        return 0
    elements = tiles(c, p) * p.batch * c.SPLIT * c.MB * c.NB
    return 4 * COUNTERS + elements * p.scalar_dtype.itemsize


def _split_pays(c: Config, p: Problem, d: Device) -> bool:
    """True unless there are blocks enough without splitting k, or parts without a step."""
    shared = tiles(c, p) * p.batch
    return c.SPLIT == 1 or (shared * c.SPLIT <= 8 * d.sms and c.SPLIT * c.KB <= p.k)


SPLIT_RULES = (
    Rule(
        "k is split only into parts of a step or more, and only for idle multiprocessors",
        _split_pays,
    ),
    Rule(
        "tiles that are shared have a counter, and their parts fit in 128 MiB",
        lambda c, p, d: (
            c.SPLIT == 1
            or (tiles(c, p) * p.batch <= COUNTERS and workspace_bytes(c, p) <= MOST_PARTS)
        ),
    ),
)
