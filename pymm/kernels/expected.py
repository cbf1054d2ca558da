"""Microseconds that a configuration should take, for kernels that compete for one product: what a
kernel declares as `expected` adds these up, so that the times of different kernels can be compared.
The constants of each kernel are fitted to times measured on one H200 (benchmarks/LOG.md).
"""

from __future__ import annotations

from typing import NamedTuple

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config
from pymm.kernels.rules import resident

#: Bytes in a microsecond that device memory gives, and clocks in a microsecond.
_MEMORY, _CLOCKS = 4e6, 1980.0

#: Bytes in a clock that a multiprocessor gets from L2.
_L2 = 45.0


def places(d: Device, blocks: int) -> int:
    """Multiprocessors on which clusters of so many blocks have room at a time, a block each. Pairs
    fill all; clusters of four and eight fill 120 of the 132 of an H100 or H200 (benchmarks/LOG.md,
    "Clusters of four and the 31st"). At a launch the driver counts them (backends/cuda/tma.py).
    """
    return d.sms if blocks < 4 else d.sms * 10 // 11


def is_modelled(p: Problem, d: Device) -> bool:
    """Whether the times of all kernels that multiply tf32 were measured and fitted: of single
    products on Hopper, whose rows TMA cannot read (kernel 10 repacks them; elsewhere it is rarely
    in doubt), and of at least 32 rows and columns.

    Kernel 10's times were fitted up to 2e10 operations, 2^24 elements of C and k of 2^14
    (benchmarks/LOG.md, "Defaults of tf32 by expected times"). Larger products are ranked by them
    all the same; kernel 10's default is then the one of an older table.
    """
    single = p.dtype == "tf32" and p.batch == 1 and not p.symmetric
    return single and d.capability == (9, 0) and p.alignment < 16 and min(p.m, p.n) >= 32


class Copying(NamedTuple):
    """Clocks of a multiprocessor in a kernel whose threads copy A and B into shared memory."""

    #: Microseconds of a launch with nothing to do.
    launch: float
    #: Of a multiply-add with tiles of a warp (or of a thread) that are large; what 16 rows and 16
    #: columns add to it.
    multiply: float
    edges: float
    #: Of an element of a K-major and of an MN-major operand whose rows are aligned to one, two and
    #: four elements.
    along: tuple[float, float, float]
    across: tuple[float, float, float]
    #: How many times that where neither is transposed, so that rows of A are K-major and B's not.
    mixed: float
    #: Microseconds from a load to its use; of storing 1024 elements of C; of adding parts of k, and
    #: for each part 1024 elements of it.
    latency: float
    store: float
    adding: float
    part: float
    #: How much of the shorter of computing and device memory the longer does not hide.
    overlap: float
    #: Warps that hide the latency of instructions.
    warps: float


def copied_by_threads(
    c: Config, p: Problem, d: Device, depth: int, registers: int, rates: Copying
) -> float:
    """Of a kernel that copies by threads, in blocks of one tile each: multiprocessors compute as
    many blocks together as they hold, step after step of `depth` along k. A step takes as long as
    all their work, or as the latency that the other stages do not hide.
    """
    threads = c.kernel.threads(c)
    blocks = ceil_div(p.m, c.MB) * ceil_div(p.n, c.NB) * c.SPLIT
    on_one = max(ceil_div(blocks, d.sms), 1)
    together = min(resident(c, p, d, registers), on_one)
    few = max(1.0, rates.warps / (threads / 32 * together)) ** 0.5
    multiply = c.MB * c.NB * depth * rates.multiply * few
    multiply *= 1 + rates.edges * (16 / c.TA + 16 / c.TB)
    copied = c.MB * _copy_clocks(not p.trans_a, p, rates) + c.NB * _copy_clocks(p.trans_b, p, rates)
    copied *= 1 if p.trans_a or p.trans_b else rates.mixed
    fetched = (c.MB + c.NB) * depth * p.numpy_dtype.itemsize / _L2
    work = (max(multiply, fetched) + copied * depth * few) / _CLOCKS
    steps = ceil_div(ceil_div(p.k, c.SPLIT), depth)
    waits = rates.latency / max(c.STAGES - 1, 1)
    rounds, rest = divmod(on_one, together)
    busy = rounds * (rates.latency + steps * max(work * together, waits))
    if rest:
        busy += rates.latency + steps * max(work * rest, waits)
    busy += on_one * c.MB * c.NB / 1024 * rates.store
    adding = rates.adding + rates.part * min(c.SPLIT, 16) * c.MB * c.NB / 1024
    time = rates.launch + beside_memory(busy, p.bytes / _MEMORY, rates.overlap)
    return time + (adding if c.SPLIT > 1 else 0.0)


def _copy_clocks(along: bool, p: Problem, rates: Copying) -> float:
    """Clocks of copying one element of an operand that is K-major or not."""
    together = min(p.alignment // p.numpy_dtype.itemsize, 4)
    return (rates.along if along else rates.across)[(1, 2, 4).index(together)]


def beside_memory(computing: float, memory: float, overlap: float) -> float:
    """The time of computing and of device memory at the same time: the longer, and the part
    `overlap` of the shorter, which the longer does not hide.
    """
    return max(computing, memory) + overlap * min(computing, memory)
