"""Rules that several kernels share: threads, registers, shared memory, split-k."""

from __future__ import annotations

from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Rule, parts_bytes
from pymm.kernels.tiles import COUNTERS, tiles, workspace_bytes

#: Most bytes of the parts of a split product: of a persistent kernel, whose parts a second launch
#: adds, and of a kernel whose blocks add them themselves.
MAX_PARTS_BYTES, MAX_WORKSPACE_BYTES = 256 * 2**20, 128 * 2**20

#: Most accumulators of a thread, by the number of warpgroups that multiply: its registers (232,
#: 232, 160, 104) less 40 for everything else.
ACCUMULATORS = {1: 192, 2: 192, 3: 120, 4: 64}

#: Bytes of shared memory of each block that the driver reserves.
RESERVED_SHARED = 1024

THREADS_FIT = Rule(
    "a block has at most the device's threads",
    lambda c, p, d: c.kernel.threads(c) <= d.max_threads,
)

# With the padding of the least alignment: a view may start anywhere.
STAGES_FIT = Rule(
    "the stages fit in shared memory",
    lambda c, p, d: c.kernel.shared_bytes(c, p, p.numpy_dtype.itemsize) <= d.shared_per_block,
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


def rows_start_anywhere(p: Problem) -> bool:
    """Whether rows of a dense C start at other places than multiples of 16 bytes. False for a
    symmetric C: what is stored into the other half, too, is stored from registers.
    """
    return p.n * p.out_dtype.itemsize % 16 != 0 and not p.symmetric


STORED_ANYWHERE = Rule(
    "C is stored for rows that start anywhere (STORE 2) where they do",
    lambda c, p, d: c.STORE == 1 or (c.STORE == 2 and rows_start_anywhere(p)),
)

TILES_ALIKE = Rule(
    "a symmetric C of which both halves are computed has no split tiles: SPLIT is 1",
    lambda c, p, d: c.SPLIT == 1 or not p.in_full,
)


def _split_pays(c: Config, p: Problem, d: Device) -> bool:
    """False if there are enough blocks without splitting k, or if a part has no step."""
    shared = tiles(c, p) * p.batch
    return c.SPLIT == 1 or (shared * c.SPLIT <= 8 * d.sms and c.SPLIT * c.KB <= p.k)


#: Rules of kernels whose blocks add the parts themselves (common/split_k.cuh).
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
    """True if the threads of BLOCKS blocks have `registers` each, allocated in eights."""
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


def resident(c: Config, p: Problem, d: Device, registers: int) -> int:
    """Blocks of a configuration that a multiprocessor holds at a time, with so many registers of a
    thread; at least BLOCKS.
    """
    threads, shared = c.kernel.threads(c), c.kernel.shared_bytes(c, p) + RESERVED_SHARED
    registers = round_up(min(registers, d.max_registers_per_thread), 8)
    most = d.registers_per_block // (registers * threads), d.max_threads_per_sm // threads
    return max(c.BLOCKS, min(*most, d.shared_per_sm // shared))
