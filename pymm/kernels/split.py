"""Several blocks that share a tile of C, each with its part of k: what common/split.cuh needs."""

from __future__ import annotations

from pymm.device import Device
from pymm.kernels.declaration import Config, Rule
from pymm.problem import Problem


def tiles(c: Config, p: Problem) -> int:
    """Tiles of C."""
    return -(-p.m // c.MB) * -(-p.n // c.NB)


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
