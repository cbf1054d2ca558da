"""Kernel 17: float32 rounded to tf32 on Hopper's tensor cores, the larger operand read in place."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.expected import beside_memory
from pymm.kernels.kernel import CLASSES, Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import ACCUMULATORS, PARTS_FIT, PARTS_HAVE_STEPS, STAGES_FIT, STAGES_OVERLAP
from pymm.kernels.tiles import tiles_in

#: Elements of 128 bytes; bytes that rows start at multiples of, for TMA.
_LINE, _ROW = 32, 16

#: Extents of a tile, and of what a warpgroup computes of it.
_EXTENTS = (32, 64, 96, 128, 160, 192, 256)


def _larger(p: Problem) -> int:
    """The operand that is read in place."""
    return int(p.n > p.m)


def _turned(p: Problem) -> bool:
    """Whether wgmma computes C^T: B is in place."""
    return _larger(p) == 1


def _k_major(p: Problem) -> bool:
    """Whether the operand in place is K-major."""
    return p.trans_b if _turned(p) else not p.trans_a


def _extents(c: Config, p: Problem) -> tuple[int, int, int, int]:
    """Rows of the left and columns of the right operand: of a block, and of a warpgroup."""
    return (c.NB, c.MB, c.TB, c.TA) if _turned(p) else (c.MB, c.NB, c.TA, c.TB)


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more loads."""
    return c.MB // c.TA * (c.NB // c.TB)


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """A box of the operand in place has one class of the rows of a tile: 32 columns of them, or
    where they are K-major all KB and 4 more, for rows lie up to 3 elements further on. TMA does not
    store C: there is a map of it where its rows are aligned, and the kernel is told so.
    """
    left, right, _, _ = _extents(c, p)
    rows = Box(c.KB + 4, left // CLASSES, 0)
    own = rows if _k_major(p) else Box(_LINE, c.KB // CLASSES)
    other = Box(_LINE, right)
    return (other, own, Box(_LINE, 32)) if _turned(p) else (own, other, Box(_LINE, 32))


def _left_bytes(c: Config, p: Problem) -> int:
    """Those of a tile of the operand in place: its boxes, of an MN-major one with 32 columns more,
    and an empty line for each class.
    """
    left = _extents(c, p)[0]
    if _k_major(p):
        return left * (c.KB + 4) * 4
    return CLASSES * ((left // _LINE + 1) * c.KB // CLASSES + 1) * 128


def _shared_bytes(c: Config, p: Problem) -> int:
    """The stages; what each warpgroup stores at a time, 32 x 64 or 64 x 32 of C, rows padded; two
    barriers for each stage; up to 1 KiB for the alignment of swizzled boxes.
    """
    stage = round_up(_left_bytes(c, p), 1024) + _extents(c, p)[1] * c.KB * 4
    staged = 32 * 272 if _turned(p) else 64 * 160
    return c.STAGES * stage + _consumers(c) * staged + 16 * c.STAGES + 1024


def _evenly(c: Config) -> bool:
    rows = c.MB % c.TA == 0 and c.TA % 32 == 0
    return rows and c.NB % c.TB == 0 and c.TB % 32 == 0


def _registers_fit(c: Config, p: Problem) -> bool:
    """Sums, and two parts of a step that go through registers."""
    return c.TA * c.TB // 128 + _extents(c, p)[2] // 2 <= ACCUMULATORS.get(_consumers(c), 0)


def _starts_anywhere(p: Problem, operand: int) -> bool:
    return stored_shapes(p)[operand][2] * 4 % _ROW > 0


def _competes(p: Problem, d: Device) -> bool:
    """Whether kernel 10 would repack the larger operand for its rows."""
    return p.batch == 1 and _starts_anywhere(p, _larger(p))


# What a survey may measure and choose.

#: Blocks: rows of the left and columns of the right operand, rows of a warpgroup, depth, stages.
_FORMS = (
    (128, 32, 64, 64, 4),
    (64, 64, 64, 64, 5),
    (128, 64, 64, 32, 6),
    (128, 64, 64, 64, 3),
    (256, 64, 128, 32, 4),
    (128, 96, 64, 32, 6),
    (256, 96, 128, 32, 4),
    (64, 128, 64, 64, 4),
    (128, 128, 64, 32, 5),
    (256, 128, 128, 32, 3),
    (128, 160, 64, 32, 5),
    (128, 192, 64, 32, 4),
    (192, 160, 64, 32, 4),
    (128, 256, 64, 32, 3),
)

#: Microseconds of a launch, of the repacking before it, of the end of the last tile, of storing 64
#: elements of a row, of adding parts of k; of a step of 256 x 128 x 32; of 64 rows of 32 that a
#: warpgroup reads into registers; from a load to its use. Bytes in a microsecond: repacked, added,
#: into one multiprocessor from L2, from all of L2, from memory; how much of the shorter of
#: computing and memory the longer does not hide. Fitted to 280 times on an H200.
_LAUNCH, _REPACK, _END, _STORE, _ADD = 4.24, 2.35, 1.25, 0.0275, 0.16
_MULTIPLY, _READ, _LATENCY = 0.63, 0.137, 0.79
_REPACKED, _ADDED, _INTO_ONE, _FROM_ALL, _MEMORY, _OVERLAP = 3.9e6, 2.7e6, 2.6e5, 1.3e7, 4.1e6, 0.53


def _expected(c: Config, p: Problem, d: Device) -> float:
    """Microseconds of a launch and the repacking before it, of the waves of tiles, and of adding up
    the parts of k.
    """
    left, right, own, _ = _extents(c, p)
    units = max(1, WGMMA_TF32_IN_PLACE.units(c, p))
    rate = min(_INTO_ONE, _FROM_ALL / min(units, d.sms))
    step = (_left_bytes(c, p) + right * c.KB * 4) / rate
    step = max(step, _MULTIPLY * left * right * c.KB / 2**20, _LATENCY / c.STAGES)
    step += _READ * own * c.KB / 2**11
    waves = ceil_div(units, d.sms)
    busy = _END + waves * (ceil_div(ceil_div(p.k, c.KB), c.SPLIT) * step + _STORE * right)
    smaller = 1 - _larger(p)
    other = 4 * p.k * min(p.m, p.n)
    repacked = p.trans_a if smaller == 0 else not p.trans_b
    before = _REPACK + 2 * other / _REPACKED if repacked or _starts_anywhere(p, smaller) else 0.0
    adding = _ADD + 8 * p.m * p.n * c.SPLIT / _ADDED if c.SPLIT > 1 else 0.0
    return _LAUNCH + before + beside_memory(busy, p.bytes / _MEMORY, _OVERLAP) + adding


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every form, whole and with as many parts of k as fill the device once or twice."""
    if not _competes(p, d):
        return
    for left, right, own, depth, stages in _FORMS:
        form = dict(MB=left, NB=right, TA=own, TB=right)
        if _turned(p):
            form = dict(MB=right, NB=left, TA=right, TB=own)
        form |= dict(KB=depth, STAGES=stages, GROUP=8)
        tiles = max(1, tiles_in(p, form["MB"], form["NB"]))
        parts = {min(p.k // (4 * depth), full * d.sms // tiles) for full in (1, 2)}
        for split in {1, *(count for count in parts if count > 1)}:
            config = WGMMA_TF32_IN_PLACE.config(form | dict(SPLIT=split))
            yield _expected(config, p, d), config


WGMMA_TF32_IN_PLACE = Kernel(
    number=17,
    name="wgmma_tf32_in_place",
    file="17_wgmma_tf32_in_place.cu",
    title="Hopper: tf32 whose larger operand is read where it is, by four tensor maps",
    space=dict(
        MB=_EXTENTS,
        NB=_EXTENTS,
        KB=(32, 64, 128),
        TA=_EXTENTS,
        TB=_EXTENTS,
        STAGES=(2, 3, 4, 5, 6, 8),
        GROUP=(1, 8),
        SPLIT=(1, 2, 3, 4, 6, 8, 12, 16, 33, 66, 132),
    ),
    default=dict(MB=64, NB=128, KB=32, TA=64, TB=64, STAGES=4, GROUP=8, SPLIT=1),
    fallbacks=(dict(MB=64, NB=64, KB=32, TA=64, TB=64, STAGES=2, GROUP=8, SPLIT=1),),
    options=_options,
    threads=lambda c: 128 * (1 + _consumers(c)),
    block=lambda c: (128 * (1 + _consumers(c)), 1, 1),
    tiles=lambda c, p: (tiles_in(p, c.MB, c.NB), 1),
    shared_elements=lambda c, p: _shared_bytes(c, p) // 4,
    dtypes=("tf32",),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(
        _boxes,
        major=lambda p: ("k", "any") if _turned(p) else ("any", "k"),
        in_place=_larger,
    ),
    persistent=Persistent(),
    preferred_for=lambda p, d: False,  # a survey says where it is the quickest
    competes=_competes,
    rules=(
        Rule("one product: the batch is 1", lambda c, p, d: p.batch == 1),
        Rule(
            "every class has a row: the larger of A and B is stored as 4 rows or more",
            lambda c, p, d: p.k == 0 or stored_shapes(p)[_larger(p)][1] >= CLASSES,
        ),
        Rule(
            "warpgroups tile the block evenly: TA divides MB, TB divides NB, 32 divides both",
            lambda c, p, d: _evenly(c),
        ),
        Rule(
            "wgmma has 64 rows on its left: 64 divides TA, or TB where B is in place",
            lambda c, p, d: _extents(c, p)[2] % 64 == 0,
        ),
        Rule("MB and NB are at most 256", lambda c, p, d: c.MB <= 256 and c.NB <= 256),
        Rule(
            "a step has one, two or four parts of 32: KB is 32, 64 or 128",
            lambda c, p, d: c.KB in (32, 64, 128),
        ),
        STAGES_OVERLAP,
        Rule(
            "TA TB / 128 + rows by registers / 2 <= 192 (3, 4 warpgroups 120, 64)",
            lambda c, p, d: _registers_fit(c, p),
        ),
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
)
