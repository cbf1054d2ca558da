"""Kernels 0 to 4, and 15: ordinary multiply-adds by every thread, from naive to register tiles."""

from __future__ import annotations

from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Guards, Kernel, Rule
from pymm.kernels.rules import THREADS_FIT


def words(problem: Problem) -> int:
    """32-bit registers that one element takes."""
    return problem.numpy_dtype.itemsize // 4


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread with a TA x TB tile: accumulators, one row of B, one column of A, and
    48 for addresses, counters and elements that are copied to shared memory; rounded up to the
    eight that are allocated at a time.

    In kernel 3 a column of A is read across the rows of the tile, and the compiler reads up to 32
    bytes of each row ahead: the columns of several steps along k. Checked with nvcc 13.0 for sm_75
    to sm_90a: configurations that obey these rules do not spill.
    """
    column = 8 * c.TA if c.kernel_name == "register_tile" else c.TA * words(p)
    return round_up(((c.TA * c.TB + c.TB) * words(p) + column + 48 + _fetched(c, p)), 8)


def _fetched(c: Config, p: Problem) -> int:
    """Registers for a thread's share of the next tiles, which kernel 15 fetches ahead."""
    if c.kernel_name != "symmetric_tile":
        return 0
    threads = c.kernel.threads(c)
    return (ceil_div(c.KB * c.MB, threads) + ceil_div(c.KB * c.NB, threads)) * words(p)


COMMON_RULES = (
    THREADS_FIT,
    Rule(
        "a block is made of whole warps",
        lambda c, p, d: c.kernel.threads(c) % 32 == 0,
    ),
    Rule(
        "both tiles fit in static shared memory",
        lambda c, p, d: c.kernel.shared_bytes(c, p) <= min(d.shared_static, d.shared_per_block),
    ),
)

#: What experiments compare: guards, and all of a symmetric C instead of its half.
_FORCEABLE = dict(GUARDED=(Guards.OFF, Guards.ON), FILL=(0,))

_ONE_ELEMENT = dict(threads=lambda c: c.MB * c.NB)

NAIVE = Kernel(
    number=0,
    name="naive",
    file="00_naive.cu",
    title="one thread per element; neighbouring threads on neighbouring rows",
    space=dict(MB=(1, 2, 4, 8, 16, 32, 64, 128, 256), NB=(1, 2, 4, 8, 16, 32, 64, 128, 256)),
    default=dict(MB=32, NB=32),
    block=lambda c: (c.MB, c.NB, 1),
    rules=COMMON_RULES,
    forceable=_FORCEABLE,
    **_ONE_ELEMENT,
)

COALESCED = Kernel(
    number=1,
    name="coalesced",
    file="01_coalesced.cu",
    title="one thread per element; neighbouring threads read neighbouring addresses (coalesced)",
    space=dict(MB=(1, 2, 4, 8, 16, 32), NB=(8, 16, 32, 64, 128, 256)),
    default=dict(MB=32, NB=32),
    block=lambda c: (c.NB, c.MB, 1),
    rules=COMMON_RULES,
    forceable=_FORCEABLE,
    **_ONE_ELEMENT,
)

SHARED_TILE = Kernel(
    number=2,
    name="shared_tile",
    file="02_shared_tile.cu",
    title="square tiles in shared memory, one element per thread",
    space=dict(MB=(8, 16, 32), NB=(8, 16, 32), KB=(8, 16, 32)),
    default=dict(MB=32, NB=32, KB=32),
    block=lambda c: (c.NB, c.MB, 1),
    shared_elements=lambda c, p: c.MB * c.KB + c.KB * c.NB,
    rules=(
        *COMMON_RULES,
        Rule("the tiles are square: MB = NB = KB", lambda c, p, d: c.MB == c.NB == c.KB),
    ),
    forceable=_FORCEABLE | dict(GUARDED=tuple(Guards)),
    **_ONE_ELEMENT,
)

_REGISTER_TILE_SPACE = dict(
    MB=(16, 32, 64, 128, 256),
    NB=(16, 32, 64, 128, 256),
    KB=(4, 8, 16, 32),
    TA=(1, 2, 4, 8, 16),
    TB=(1, 2, 4, 8, 16),
)

_REGISTER_TILE_RULES = (
    *COMMON_RULES,
    Rule(
        "threads tile the block evenly: TA divides MB and TB divides NB",
        lambda c, p, d: c.MB % c.TA == 0 and c.NB % c.TB == 0,
    ),
    Rule(
        "a thread's tile fits in its registers without spilling",
        lambda c, p, d: _registers(c, p) <= d.max_registers_per_thread,
    ),
    Rule(
        "a block's threads fit in the register file",
        # and do not fill it: at the very limit ptxas spills for sm_75 and sm_80
        lambda c, p, d: _registers(c, p) * c.kernel.threads(c) < d.registers_per_block,
    ),
)

_REGISTER_TILE = dict(
    space=_REGISTER_TILE_SPACE,
    default=dict(MB=64, NB=64, KB=16, TA=4, TB=4),
    threads=lambda c: (c.MB // c.TA) * (c.NB // c.TB),
    block=lambda c: (c.NB // c.TB, c.MB // c.TA, 1),
    shared_elements=lambda c, p: c.KB * (c.MB + c.NB),
    rules=_REGISTER_TILE_RULES,
)

REGISTER_TILE = Kernel(
    number=3,
    name="register_tile",
    file="03_register_tile.cu",
    title="MB x NB x KB block tile in shared memory, TA x TB elements of C in a thread's registers",
    **_REGISTER_TILE,
)

TRANSPOSED_A = Kernel(
    number=4,
    name="transposed_a",
    file="04_transposed_a.cu",
    title="the register tile with A transposed in shared memory, so that fragments load as vectors",
    **_REGISTER_TILE,
)

SYMMETRIC_TILE = Kernel(
    number=15,
    name="symmetric_tile",
    file="15_symmetric_tile.cu",
    title="A^T A in tiles of 48 x 48: the next tiles fetched into registers, padded, mirrored",
    **_REGISTER_TILE
    | dict(
        space=dict(
            MB=(32, 48, 64, 96),
            NB=(32, 48, 64, 96),
            KB=(8, 16, 24, 48),
            TA=(2, 3, 4, 6),
            TB=(2, 3, 4, 6),
            PAD=(1, 2, 4, 16),
        ),
        default=dict(MB=48, NB=48, KB=48, TA=3, TB=3, PAD=1),
        shared_elements=lambda c, p: c.KB * (c.MB + c.NB + 2 * c.PAD),
    ),
    both_halves=True,
    preferred_for=lambda p, d: False,  # a comparison: kernels 6 and 9 are many times as fast
)
