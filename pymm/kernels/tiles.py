"""The number of tiles of C, and the workspace of blocks that share a tile by splitting k: what the
host must know of common/schedule.cuh and common/split_k.cuh.
"""

from __future__ import annotations

from functools import lru_cache

from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config


def tiles(c: Config, p: Problem) -> int:
    """Tiles of C that have an element to compute."""
    return tiles_in(p, c.MB, c.NB)


def tiles_in(problem: Problem, rows: int, columns: int) -> int:
    """Tiles of `rows` x `columns` that have an element of C to compute: `tiles_in` of
    common/schedule.cuh.
    """
    down, across = ceil_div(problem.m, rows), ceil_div(problem.n, columns)
    if not problem.halved or not down:
        return down * across
    if problem.fill == "upper":
        down, across, rows, columns = across, down, columns, rows
    return _whole_lines(down - 1, rows, columns) + across


@lru_cache(maxsize=4096)
def _whole_lines(lines: int, high: int, wide: int) -> int:
    """Tiles in the first lines of tiles of a half, in all of which every row exists."""
    return sum(ceil_div((line + 1) * high, wide) for line in range(lines))


#: Most tiles of C that blocks may share: the counters of common/split_k.cuh.
COUNTERS = 16384


def workspace_bytes(c: Config, p: Problem) -> int:
    """Bytes for the counters and the parts of tiles that several blocks share."""
    if c.SPLIT == 1:
        return 0
    elements = tiles(c, p) * p.batch * c.SPLIT * c.MB * c.NB
    return 4 * COUNTERS + elements * p.scalar_dtype.itemsize
