"""Kernel 6: warps multiply with the tensor cores through `mma.sync`."""

from __future__ import annotations

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import (
    SPLIT_RULES,
    STAGES_FIT,
    STAGES_OVERLAP,
    THREADS_FIT,
    blocks_fit,
    registers_fit,
)
from pymm.kernels.tiles import tiles, workspace_bytes

#: Between the lines of a tile in shared memory, in elements.
_PADDING = 4


def _lines(c: Config, p: Problem) -> tuple[tuple[int, int], tuple[int, int]]:
    """Length and number of the lines of the tiles of A and B, stored as in memory."""
    return (
        (c.MB, c.KB) if p.trans_a else (c.KB, c.MB),
        (c.KB, c.NB) if p.trans_b else (c.NB, c.KB),
    )


def whole_lines(c: Config, p: Problem) -> bool:
    """True if the threads copy whole lines of both tiles at a time, with 16 bytes each as well as
    with one element.
    """
    threads = c.kernel.threads(c)
    for size in (p.numpy_dtype.itemsize, 16):
        for length, count in _lines(c, p):
            pieces, rest = divmod(length * p.numpy_dtype.itemsize, size)
            if rest or threads % pieces or pieces * count % threads:
                return False
    return True


def _a_line_each(c: Config, p: Problem) -> bool:
    """True if the threads copy a whole line of either tile at a time, even one element each."""
    return all(length <= c.kernel.threads(c) for length, _ in _lines(c, p))


def _warps(c: Config) -> int:
    return (c.MB // c.TA) * (c.NB // c.TB) * (c.KB // c.TK)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: accumulators, the fragments of two depths, and the rest, which is
    less where nothing is checked, 16 bytes are copied at a time, k is not split and C is not
    symmetric. Checked with nvcc 13.0 for sm_80 and sm_90a: what this allows does not spill.
    """
    doubles = c.TA * c.TB // 32 + (c.TA + c.TB) * c.KI // 16
    plain = p.alignment == 16 and c.SPLIT == 1 and not p.symmetric
    plain = plain and not c.kernel.guarded(c, p)
    return 2 * doubles + (30 if plain else 40)


def _shared_elements(c: Config, p: Problem) -> int:
    """The stages; in the end the sums of warps that share a tile of C."""
    stages = c.STAGES * sum((length + _PADDING) * count for length, count in _lines(c, p))
    return max(stages, (c.KB // c.TK - 1) * c.MB * c.NB)


def _form(
    mb: int, nb: int, kb: int, ta: int, tb: int, tk: int, stages: int, **more: int
) -> dict[str, int]:
    """Parameters of a block; KI 8 and one block on a multiprocessor unless said."""
    form = dict(MB=mb, NB=nb, KB=kb, TA=ta, TB=tb, TK=tk, KI=8, STAGES=stages)
    return form | dict(BLOCKS=1, GROUP=8, SPLIT=1) | more


#: Tiles that make one wave of a small product on 132 multiprocessors (one H200: benchmarks/LOG.md,
#: 256 x 256 x 256, A A^T of 500 and 1500, 1024 x 1024 x 1024).
_FORMS = (
    _form(32, 16, 64, 16, 16, 32, 5),
    _form(48, 24, 32, 16, 24, 16, 6, KI=4),
    _form(48, 48, 16, 16, 48, 16, 6, BLOCKS=2),
    _form(64, 32, 32, 32, 16, 16, 6),
    _form(64, 128, 16, 32, 32, 16, 6),
)

#: What an untuned small product gets, measured on one H200 (benchmarks/LOG.md, "Small products
#: without a pre-pass"): many of at most 32 rows and columns; deep ones; those whose tiles make
#: about one wave; the others.
_MANY = {
    16: _form(32, 32, 16, 32, 32, 16, 2, KI=4, BLOCKS=4, GROUP=1),
    32: _form(32, 32, 16, 16, 16, 16, 4, KI=4, BLOCKS=4, GROUP=1),
}
_DEEP = _form(32, 32, 32, 16, 16, 32, 4, KI=4, BLOCKS=3, GROUP=1)
_NARROW = _FORMS[0]
_SHALLOW = _form(32, 32, 64, 16, 32, 16, 4, KI=4, GROUP=1)

#: Multiply-adds up to which kernel 9 takes longer: it repacks rows that TMA cannot read, in a
#: launch of 3 to 4 us. By the alignment of rows.
_SMALL = {8: 3e7, 16: 5e6}


def small_batch(p: Problem) -> bool:
    """Whether it is many products of at most 32 rows and columns."""
    return p.batch > 1 and max(p.m, p.n) <= 32


def small(p: Problem) -> bool:
    """Whether kernel 9 takes longer on Hopper."""
    one = p.batch == 1 and p.m * p.n * p.k <= _SMALL.get(min(p.alignment, 16), 0)
    return small_batch(p) or one


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """One of the forms above for a small product, else the default."""
    if not small(p):
        return dict(TENSOR_F64.default)
    if p.batch > 1:
        return dict(_MANY[16 if max(p.m, p.n) <= 16 else 32])
    squares = ceil_div(p.m, 32) * ceil_div(p.n, 32)
    if p.k >= 256:
        parts = 1
        while parts < 8 and 2 * parts * squares <= d.sms:
            parts *= 2
        return _DEEP | dict(SPLIT=parts)
    few = ceil_div(p.m, 32) * ceil_div(p.n, 16) <= 1.5 * d.sms
    return dict(_NARROW if few else _SHALLOW)


def _preferred_for(p: Problem, d: Device) -> bool:
    """On Hopper for small products only: elsewhere no other kernel computes doubles as fast."""
    return not (d.is_gpu and d.capability[0] == 9) or small(p)


TENSOR_F64 = Kernel(
    number=6,
    name="tensor_f64",
    file="06_tensor_f64.cu",
    title="double precision on the tensor cores, through mma.sync; TA x TB is a warp's tile",
    space=dict(
        MB=(32, 64, 128),
        NB=(32, 64, 128),
        KB=(16, 32, 64),
        TA=(16, 32, 64),
        TB=(16, 32, 64),
        TK=(16, 32),
        KI=(4, 8),  # 16 needs more registers than it saves time; the kernel takes it all the same
        STAGES=(2, 3, 4),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(1, 8),
        SPLIT=(1, 2, 4, 8, 16),
    ),
    heuristic=_heuristic,
    preferred_for=_preferred_for,
    default=_form(64, 64, 16, 32, 32, 16, 4, BLOCKS=2),
    fallbacks=(_form(64, 64, 16, 32, 32, 16, 3),),
    threads=lambda c: 32 * _warps(c),
    block=lambda c: (32 * _warps(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=_shared_elements,
    dtypes=("f64",),
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    both_halves=True,
    extra_points=_FORMS,
    rules=(
        Rule(
            "warps tile the block evenly, in pieces of 16 x 8: TA divides MB, TB divides NB",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TA % 16 == 0 and c.TB % 8 == 0
            ),
        ),
        Rule(
            "KI is the depth of an instruction, 4, 8 or 16; 2 * KI divides TK, TK KB",
            lambda c, p, d: c.KI in (4, 8, 16) and c.TK % (2 * c.KI) == 0 and c.KB % c.TK == 0,
        ),
        STAGES_OVERLAP,
        THREADS_FIT,
        Rule(
            "threads copy a whole line of a tile at a time",
            lambda c, p, d: _a_line_each(c, p),
        ),
        Rule(
            "either blocks or warps share a tile of C, not both",
            lambda c, p, d: c.SPLIT == 1 or c.TK == c.KB,
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
