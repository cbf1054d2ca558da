"""The CPU's kernels: cache blocks MB x NB x KB, and of `blocked` a register tile TA x TB."""

from __future__ import annotations

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Kernel, Rule


def _vectors(c: Config, p: Problem, d: Device) -> int:
    """Vectors that a row of the register tile takes."""
    return c.TB * p.scalar_dtype.itemsize // d.vector_bytes


def _blocks_of_avx512(p: Problem, d: Device) -> dict[str, int]:
    """A small block of A; a large one where B is more than eight times the second-level cache (or
    8 MiB where that is not known). By products of 128 to 3000 squared on two cores of a Xeon
    (benchmarks/LOG.md).
    """
    size = p.scalar_dtype.itemsize
    small = p.n * p.k * size <= 8 * (d.l2_bytes or 2**20)
    rows, depth = (48, 256) if small else (192, 384)
    return dict(MB=rows, NB=1536, KB=depth, TA=6, TB=4 * d.vector_bytes // size)


REORDERED = Kernel(
    number=0,
    name="reordered",
    file="reordered.cpp",
    title="sequential scalar product over cache tiles, loops reordered",
    space=dict(MB=(16, 32, 64, 128, 256), NB=(64, 128, 256, 512), KB=(16, 32, 64, 128, 256)),
    default=dict(MB=64, NB=256, KB=64),
    threads=lambda c: 1,
    rules=(),
    backend="cpu",
    # One core, 2 to 3 GFLOP/s: from 128 x 128 x 128 on `blocked` takes less than a tenth of it.
    competes=lambda p, d: p.flops <= 2 * 64**3,
)

BLOCKED = Kernel(
    number=1,
    name="blocked",
    file="blocked.cpp",
    title="packed cache blocks MB x NB x KB, and TA rows by TB columns of C in vector registers",
    space=dict(
        MB=(48, 96, 192, 384),
        NB=(192, 384, 768, 1536, 3072),
        KB=(128, 192, 256, 384, 512),
        TA=(4, 6, 8, 12),
        TB=(4, 8, 12, 16, 24, 32, 48, 64),
    ),
    default=dict(MB=48, NB=1536, KB=256, TA=6, TB=64),
    heuristic=_blocks_of_avx512,
    heuristic_for=lambda p, d: d.vector_bytes == 64,
    # Without AVX-512 a panel of B takes 32 KiB and the block of A 200 KiB.
    fallbacks=(
        dict(MB=96, NB=1536, KB=512, TA=6, TB=16),
        dict(MB=48, NB=1536, KB=512, TA=6, TB=8),
        dict(MB=48, NB=1536, KB=512, TA=6, TB=4),
    ),
    threads=lambda c: 1,
    dtypes=("f32", "f64", "f16", "bf16", "f16_f32", "bf16_f32"),
    rules=(
        Rule(
            "a row of the register tile is made of whole vectors",
            lambda c, p, d: c.TB * p.scalar_dtype.itemsize % d.vector_bytes == 0,
        ),
        Rule(
            "the register tile, a row of B and one number of A fit in the vector registers",
            lambda c, p, d: (c.TA + 1) * _vectors(c, p, d) + 1 <= d.vector_registers,
        ),
        Rule(
            "register tiles fill the cache blocks: TA divides MB and TB divides NB",
            lambda c, p, d: c.MB % c.TA == 0 and c.NB % c.TB == 0,
        ),
    ),
    backend="cpu",
)
