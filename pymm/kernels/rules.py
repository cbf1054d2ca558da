"""Rules that several kernels share: threads, registers, shared memory, split-k."""

from __future__ import annotations

from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Rule, parts_bytes
from pymm.kernels.tiles import COUNTERS, tiles, workspace_bytes

#: Bytes that the parts of a split product may take: in the memory of a persistent kernel, and in
#: the workspace of one whose blocks add up the parts themselves.
MAX_PARTS_BYTES, MAX_WORKSPACE_BYTES = 256 * 2**20, 128 * 2**20

#: Accumulators that a thread has room for, by the number of warpgroups that multiply: their
#: registers (232, 232, 160, 104) less 40 for the rest.
ACCUMULATORS = {1: 192, 2: 192, 3: 120, 4: 64}

#: Shared memory that the driver keeps of each block.
RESERVED_SHARED = 1024

THREADS_FIT = Rule(
    "a block has at most the device's threads",
    lambda c, p, d: c.kernel.threads(c) <= d.max_threads,
)

STAGES_FIT = Rule(
    "the stages fit in shared memory",
    lambda c, p, d: c.kernel.shared_bytes(c, p) <= d.shared_per_block,
)

STAGES_OVERLAP = Rule(
    "a tile is fetched while another is used: STAGES >= 2",
    lambda c, p, d: c.STAGES >= 2,
)

PARTS_FIT = Rule(
    "the parts of a split product take at most 256 MiB",
    lambda c, p, d: parts_bytes(c, p) <= MAX_PARTS_BYTES,
)

PARTS_HAVE_STEPS = Rule(
    "k is split only into parts of a step or more",
    lambda c, p, d: c.SPLIT == 1 or c.SPLIT * c.KB <= p.k,
)

TILES_ALIKE = Rule(
    "a symmetric C that is computed whole has all tiles alike: SPLIT is 1",
    lambda c, p, d: c.SPLIT == 1 or not p.in_full,
)


def _split_pays(c: Config, p: Problem, d: Device) -> bool:
    """True unless there are blocks enough without splitting k, or parts without a step."""
    shared = tiles(c, p) * p.batch
    return c.SPLIT == 1 or (shared * c.SPLIT <= 8 * d.sms and c.SPLIT * c.KB <= p.k)


#: Of kernels whose blocks add up the parts themselves (common/split_k.cuh).
SPLIT_RULES = (
    Rule(
        "k is split only into parts of a step or more, and only for idle multiprocessors",
        _split_pays,
    ),
    Rule(
        "tiles that are shared have a counter, and their parts fit in 128 MiB",
        lambda c, p, d: (
            c.SPLIT == 1
            or (tiles(c, p) * p.batch <= COUNTERS and workspace_bytes(c, p) <= MAX_WORKSPACE_BYTES)
        ),
    ),
)


def registers_fit(c: Config, d: Device, registers: int) -> bool:
    """True if BLOCKS blocks have so many registers for each thread; they are allocated by eight."""
    threads = c.BLOCKS * c.kernel.threads(c)
    return (
        registers <= d.max_registers_per_thread
        and round_up(registers, 8) * threads <= d.registers_per_block
    )


def blocks_fit(c: Config, p: Problem, d: Device) -> bool:
    """True if a multiprocessor has threads and shared memory for BLOCKS blocks."""
    return (
        c.BLOCKS * c.kernel.threads(c) <= d.max_threads_per_sm
        and c.BLOCKS * (c.kernel.shared_bytes(c, p) + RESERVED_SHARED) <= d.shared_per_sm
    )
