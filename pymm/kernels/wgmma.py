"""Kernel 7: Hopper's tensor cores through wgmma, operands loaded by the tensor memory accelerator
(TMA).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels.expected import places
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma, cluster_blocks
from pymm.kernels.rules import ACCUMULATORS, PARTS_FIT, PARTS_HAVE_STEPS, STAGES_FIT, STAGES_OVERLAP
from pymm.kernels.tiles import tiles_in

#: Most bytes of a row of a box, and as many columns of 16-bit elements.
_ROW, _COLUMNS = 128, 64


def _consumers(c: Config) -> int:
    """Warpgroups that multiply; one more loads."""
    return max(c.MB // c.TA, 1) * max(c.NB // c.TB, 1)


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """A K-major box has all rows of a tile, or what a block of the cluster loads of it; an MN-major
    one all depth of 64 columns, or of a narrow tile's, or a slice of the depth where a tile has at
    most half as many such boxes as blocks share it. C is stored in pieces of 64 rows.
    """
    a = _box(c.MB, c.CLUSTER_N, c.KB, not p.trans_a)
    return a, _box(columns(c, p), c.CLUSTER, c.KB, p.trans_b), Box(_ROW // p.out_dtype.itemsize, 64)


def _box(extent: int, blocks: int, deep: int, k_major: bool) -> Box:
    """Of the rows or columns of an operand that a stage has and so many blocks share."""
    deep = min(deep, _COLUMNS)
    if k_major:
        parts = next(n for n in range(blocks, 0, -1) if extent % (8 * n) == 0 or n == 1)
        return Box(deep, extent // parts, 2 * deep)
    slices = max(_COLUMNS * blocks // extent, 1) if blocks > 1 else 1
    across = min(extent, _COLUMNS)
    return Box(across, deep // slices, 2 * across)


def columns(c: Config, p: Problem) -> int:
    """Columns of B that a stage has: of wide tiles in whole boxes, if its rows lie along n."""
    return c.NB if p.trans_b or c.NB < _COLUMNS else round_up(c.NB, _COLUMNS)


def _shared_bytes(c: Config, p: Problem) -> int:
    """The stages, and what is read behind a narrow B; SLOTS pieces of C for each warpgroup; two
    barriers for each stage; up to 1 KiB for the alignment of swizzled boxes.
    """
    stages = c.STAGES * (c.MB + columns(c, p)) * c.KB * 2 + max(64 - c.NB, 0) * _ROW
    size = p.out_dtype.itemsize
    piece = 64 * (128 if c.TB % 128 == 0 and size == 2 else 64) * size if c.SPLIT == 1 else 0
    return stages + _consumers(c) * c.SLOTS * piece + 16 * c.STAGES + 1024


def _tiles(c: Config, p: Problem) -> tuple[int, int]:
    """Blocks that have a tile, in whole clusters, and 1."""
    return tiles_in(p, c.MB * c.CLUSTER, c.NB * c.CLUSTER_N) * cluster_blocks(c), 1


def _shared_evenly(tile: int, own: int) -> bool:
    """Whether warpgroups of `own` rows or columns have the tile among them."""
    narrow = tile in (16, 32) and own == 64
    return own % 64 == 0 and (tile % own == 0 or narrow)


# The default: the configuration with the least expected time, by a few measured times

#: Forms of a block: parameters, microseconds of a step of 64 k, of one where rows of A or B start
#: within lines of memory, and of the rest of a tile, measured on an H200 (benchmarks/LOG.md). Pairs
#: of blocks share B and wait less for such lines.
_FORMS = (
    (dict(MB=128, NB=256, TA=64, TB=256, STAGES=4), 0.64, 0.64, 1.8),
    (dict(MB=128, NB=192, TA=64, TB=192, STAGES=4, SLOTS=2), 0.49, 0.49, 1.55),
    (dict(MB=128, NB=128, TA=64, TB=128, STAGES=6), 0.335, 0.36, 0.9),
    (dict(MB=128, NB=64, TA=64, TB=64, STAGES=8), 0.21, 0.25, 0.25),
    (dict(MB=64, NB=128, TA=64, TB=64, STAGES=8), 0.21, 0.24, 0.3),
    (dict(MB=64, NB=64, TA=64, TB=64, STAGES=12), 0.15, 0.175, 0.15),
    (dict(MB=64, NB=128, TA=64, TB=64, STAGES=8, CLUSTER=2, GROUP=1), 0.23, 0.23, 0.2),
    (dict(MB=128, NB=128, TA=64, TB=64, STAGES=6, CLUSTER=2, GROUP=1), 0.345, 0.345, 1.05),
    (dict(MB=64, NB=192, TA=64, TB=64, STAGES=6, GROUP=1), 0.25, 0.27, 0.35),
    (dict(MB=128, NB=256, KB=32, TA=64, TB=128, STAGES=6, GROUP=1), 0.65, 0.65, 1.9),
    (dict(MB=256, NB=192, KB=32, TA=128, TB=192, STAGES=6), 0.96, 0.95, 3.3),
)

#: The same for few rows or columns. A survey chooses from them for all products of few tiles, too.
_NARROW = (
    (dict(MB=16, NB=64, TA=64, TB=64, STAGES=16), 0.14, 0.165, 0.05),
    (dict(MB=32, NB=64, TA=64, TB=64, STAGES=16), 0.145, 0.17, 0.1),
    (dict(MB=64, NB=16, KB=128, TA=64, TB=64, STAGES=8), 0.14, 0.165, 0.05),
    (dict(MB=64, NB=32, KB=128, TA=64, TB=64, STAGES=8), 0.145, 0.17, 0.1),
)

#: More for a survey (survey.py) to choose from: no time of theirs was fitted. Pairs of blocks with
#: the largest tiles; wide tiles for few rows, as with weights, or few columns; and for products of
#: few steps.
_LARGE_PAIRS = (
    (dict(MB=128, NB=256, TA=64, TB=256, STAGES=4, CLUSTER=2), 0.64, 0.64, 1.8),
    (dict(MB=256, NB=128, TA=128, TB=128, STAGES=4, CLUSTER=2), 0.64, 0.64, 1.8),
)
_WIDE = (
    (dict(MB=64, NB=128, KB=128, TA=64, TB=64, STAGES=4), 0.2, 0.23, 0.3),
    (dict(MB=64, NB=192, TA=64, TB=64, STAGES=6), 0.25, 0.27, 0.35),
    (dict(MB=64, NB=256, TA=64, TB=128, STAGES=4), 0.33, 0.35, 0.5),
)
_FEW_STEPS = (
    (dict(MB=128, NB=128, KB=32, TA=64, TB=128, STAGES=8, SLOTS=2, GROUP=1), 0.36, 0.37, 0.7),
    (dict(MB=128, NB=256, TA=128, TB=128, STAGES=4, GROUP=1), 0.65, 0.65, 1.7),
    (dict(MB=256, NB=128, TA=128, TB=128, STAGES=4, GROUP=1), 0.65, 0.65, 1.7),
)

#: A pair with tiles of 192 rows, for products of more rows and of more than few steps.
_THREE_WARPGROUPS = ((dict(MB=192, NB=176, TA=64, TB=176, STAGES=4, CLUSTER=2), 0.7, 0.72, 2.0),)

#: For few rows: up to 64 in clusters whose blocks share A, as for any product of few tiles; 65 to
#: 128 in pairs of blocks, one above the other or side by side (64 x 24576 x 1536: 27.3 us, not
#: 30.3).
_SIDE_BY_SIDE = (
    (dict(MB=64, NB=32, KB=128, TA=64, TB=64, STAGES=8, CLUSTER_N=2, GROUP=1), 0.125, 0.15, 0.1),
    (dict(MB=64, NB=32, KB=128, TA=64, TB=64, STAGES=8, CLUSTER_N=4, GROUP=1), 0.125, 0.15, 0.1),
    (dict(MB=64, NB=64, TA=64, TB=64, STAGES=12, CLUSTER_N=2, GROUP=1), 0.15, 0.175, 0.15),
)
_PAIRS = (
    (dict(MB=64, NB=64, TA=64, TB=64, STAGES=12, CLUSTER=2, GROUP=1), 0.16, 0.175, 0.15),
    (dict(MB=128, NB=64, TA=64, TB=64, STAGES=8, CLUSTER_N=2, GROUP=1), 0.21, 0.25, 0.25),
    (dict(MB=64, NB=256, TA=64, TB=128, STAGES=4, CLUSTER=2, GROUP=1), 0.33, 0.35, 0.5),
)

#: For few tiles and at least so large a k: clusters of four (163 x 3177 x 6471: 53.8 us, not 59.4
#: in pairs).
_DEEP = 1024
_FOURS = ((dict(MB=64, NB=128, TA=64, TB=128, STAGES=8, CLUSTER=4, GROUP=1), 0.22, 0.23, 0.2),)

#: The same for products of few steps whose C is stored by TMA: clusters of four. And for small
#: products: tiles of 64 x 64 with half as many, deeper steps.
_FEW_STEPS_STORED = (
    (dict(MB=64, NB=256, TA=64, TB=128, STAGES=3, SLOTS=2, CLUSTER=4, GROUP=1), 0.33, 0.35, 0.5),
    (dict(MB=128, NB=128, TA=64, TB=128, STAGES=3, SLOTS=2, CLUSTER=4, GROUP=1), 0.34, 0.36, 0.7),
)
_SMALL = ((dict(MB=64, NB=64, KB=128, TA=64, TB=64, STAGES=6, GROUP=1), 0.145, 0.17, 0.15),)

#: And for products of about one wave: tiles of other widths, and clusters of four, so that as many
#: tiles as there is room for at a time have the whole of C. Of 64 rows: columns, stages, blocks of
#: a cluster, microseconds as above.
_WIDTHS = (
    (96, 8, (1, 2, 4), 0.18, 0.21, 0.3),
    (112, 8, (1, 2, 4), 0.195, 0.225, 0.3),
    (144, 6, (2, 4), 0.225, 0.25, 0.3),
    (160, 6, (2, 4), 0.235, 0.26, 0.35),
    (176, 6, (2, 4), 0.245, 0.27, 0.35),
    (208, 6, (2, 4), 0.28, 0.31, 0.4),
    (224, 4, (2, 4), 0.3, 0.33, 0.45),
)
_FILLING = tuple(
    (dict(MB=64, NB=nb, TA=64, TB=nb, STAGES=stages, CLUSTER=blocks, GROUP=1), *times)
    for nb, stages, clusters, *times in _WIDTHS
    for blocks in clusters
) + (
    (dict(MB=128, NB=128, TA=64, TB=64, STAGES=6, CLUSTER=4, GROUP=1), 0.34, 0.34, 1.05),
    (dict(MB=128, NB=112, TA=64, TB=112, STAGES=6, CLUSTER=4, GROUP=1), 0.3, 0.31, 0.8),
    (dict(MB=128, NB=96, TA=64, TB=96, STAGES=6, GROUP=1), 0.27, 0.3, 0.6),
    (dict(MB=128, NB=112, TA=64, TB=112, STAGES=6, GROUP=1), 0.3, 0.33, 0.7),
    (dict(MB=128, NB=144, TA=64, TB=144, STAGES=4, GROUP=1), 0.38, 0.4, 1.0),
    (dict(MB=128, NB=160, TA=64, TB=160, STAGES=4, GROUP=1), 0.42, 0.43, 1.2),
    (dict(MB=128, NB=176, TA=64, TB=176, STAGES=4, GROUP=1), 0.45, 0.46, 1.3),
)

#: The same in clusters whose blocks share A, too: rows, columns, those of a warpgroup, stages,
#: blocks of a cluster along m and along n, microseconds as above.
_BOTH_SHARED = tuple(
    (
        dict(MB=mb, NB=nb, TA=64, TB=tb, STAGES=stages, CLUSTER=down, CLUSTER_N=across, GROUP=1),
        *times,
    )
    for mb, nb, tb, stages, shapes, *times in (
        (64, 96, 96, 8, ((4, 2),), 0.18, 0.2, 0.3),
        (64, 128, 64, 8, ((2, 2), (4, 2)), 0.21, 0.23, 0.3),
        (64, 192, 192, 6, ((2, 2), (4, 2)), 0.25, 0.27, 0.35),
        (128, 96, 96, 6, ((2, 2), (4, 2)), 0.27, 0.28, 0.6),
        (128, 112, 112, 6, ((2, 2),), 0.3, 0.31, 0.8),
        (128, 128, 64, 6, ((2, 2), (4, 2)), 0.34, 0.34, 1.05),
        (128, 128, 128, 6, ((2, 2), (4, 2), (2, 4)), 0.335, 0.335, 1.0),
        (128, 160, 160, 4, ((2, 2), (4, 2)), 0.42, 0.42, 1.2),
    )
    for down, across in shapes
)

#: For many products of 65 to 128 rows and columns and at most as many along k (256 of 128 squared:
#: 12.2 us, 13.1 with 128 x 128 in two steps).
_ONE_STEP = dict(
    MB=128, NB=64, KB=128, TA=64, TB=64, STAGES=4, CLUSTER=1, GROUP=1, SPLIT=1, SLOTS=1
)

#: For batches of products of 65 to 256 rows and columns and k up to 256 that `_ONE_STEP` does not
#: cover, with a tile for each multiprocessor (H200, 150 of 192 cubed: 15.4 us, 17.6 with 256 x 128;
#: 80 of 200 x 256 x 256: 13.7, 15.1).
_FEW_TILES = dict(
    MB=128, NB=64, KB=64, TA=64, TB=64, STAGES=8, CLUSTER=1, GROUP=8, SPLIT=1, SLOTS=1
)

#: For products of few steps, of which storing C takes longest, up to this k: in rows of tiles, with
#: more pieces of C being stored at a time. A C of float32 has pieces half as wide, so tiles are
#: smaller. For k up to 32 a K-major box has no more than that.
_SMALLER = dict(MB=128, NB=128, TA=64, TB=128, STAGES=4, SLOTS=2, GROUP=1)
_SHALLOW = (
    (32, _SMALLER | dict(KB=32, STAGES=8)),
    (96, _SMALLER),
    (256, dict(MB=256, NB=128, TA=128, TB=128, STAGES=3, SLOTS=2, GROUP=1)),
)
_SHALLOW_WIDE = (_SHALLOW[0], (256, _SMALLER))

#: Microseconds: a second launch, and each part that it adds up; each element of a warpgroup's tile
#: and of a block's where threads store a C whose rows start anywhere; a tile that TMA stores after
#: few steps, and each element of it. Bytes of a microsecond: from memory; of copies, which are
#: in L2; from there to all multiprocessors, and where rows start within lines.
_COMBINING, _PART, _BY_THREADS, _STORED = 3.0, 0.04, (1.45e-4, 5e-5), (0.5, 3.4e-5)
_MEMORY, _COPIED, L2 = 4e6, 8e6, (14e6, 10.5e6)

#: A sector of memory in bytes, and how many times as long TMA takes to read an operand in place
#: whose rows start within sectors (benchmarks/LOG.md, "Rows that start within sectors").
SECTOR, _WITHIN_SECTORS = 32, 1.75


#: Products of at most `_FEW_ROWS` rows: microseconds of a step of 64 and of a tile, each for any
#: tile and for 128 x 128 elements of it; of adding parts of k; the part of the nominal memory
#: bandwidth that is reached; the power whose root adds the times of memory and of steps. Fitted to
#: 4,843 times of an H200 and an H100 (benchmarks/LOG.md, "A model for few rows").
_FEW_ROWS, _STEP_OF_FEW, _TILE_OF_FEW, _ADDING_OF_FEW = 128, (0.0763, 0.218), (0.533, 0.911), 1.7
_PART_OF_BANDWIDTH, _POWER = 0.883, 1.5

#: An H200's memory bandwidth in bytes per second, for devices whose own is unknown.
_BANDWIDTH = 4.916736e12


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The form and the parts of k with the least expected time, but for batches that were
    measured.
    """
    if p.batch > 1 and p.k <= 128 and 64 < p.n <= 128 and 64 < p.m <= 128:
        return dict(_ONE_STEP)
    few = max(p.m, p.n, p.k) <= 256 and min(p.m, p.n) > 64 and not _by_threads(p)
    if p.batch > 1 and few and p.batch * tiles_in(p, 128, 64) >= d.sms:
        return dict(_FEW_TILES)
    return _given(*min(_forms(p, d), key=lambda option: _microseconds(*option, p, d)), p, d)


def _given(form: tuple, parts: int, p: Problem, d: Device) -> dict[str, int]:
    """The parameters of a form: those for few steps, if C is stored by TMA and takes longest, and
    as many stages as there is room for.
    """
    given = dict(KB=64, CLUSTER=1, GROUP=8, SPLIT=parts, SLOTS=1) | form[0]
    if parts > 1:
        given["SLOTS"] = 1
    elif given["MB"] * given["NB"] > 128 * 128 and p.k <= _SHALLOW[-1][0] and not _by_threads(p):
        forms = _SHALLOW_WIDE if p.out_dtype.itemsize == 4 else _SHALLOW
        given |= dict(KB=64) | next(shallow for most, shallow in forms if p.k <= most)
    while _shared_bytes(WGMMA.config(given), p) > d.shared_per_block and given["STAGES"] > 2:
        given["STAGES"] -= 1
    return given


def expected_us(p: Problem, d: Device) -> float:
    """Microseconds that the form with the least should take, without the launch."""
    return min(_microseconds(*option, p, d) for option in _forms(p, d))


#: Microseconds of a launch; of another one before it, and bytes of a microsecond in it.
_LAUNCH, _REPACKING, _REPACKED = 4.8, 2.3, 4.2e6


def repacked_us(p: Problem, d: Device) -> float:
    """Microseconds of the default, the launch that repacks rows which TMA cannot read included."""
    return _LAUNCH + repacking_us(p) + expected_us(p, d)


def repacking_us(p: Problem) -> float:
    """Microseconds of the launch that repacks rows which TMA cannot read; 0 if it reads all."""
    moved = [2 * r * c * p.batch for _, r, c in stored_shapes(p)[:2] if 2 * c % 16]
    return _REPACKING + 2 * sum(moved) / _REPACKED if moved else 0.0


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every form that competes, and those that only a survey chooses from."""
    more = list(_LARGE_PAIRS)
    if p.m <= 128 or p.n <= 256:
        more += _WIDE
    if p.m <= 128:
        more += _SIDE_BY_SIDE if p.m <= 64 else _PAIRS
    if p.m > 192 and (p.k > _SHALLOW[-1][0] or _by_threads(p)):
        more += _THREE_WARPGROUPS
    if p.k <= _SHALLOW[-1][0]:
        more += _FEW_STEPS if _by_threads(p) else _FEW_STEPS_STORED
    if tiles_in(p, 64, 64) * p.batch <= d.sms:
        more += (*_NARROW, *_SMALL)
        more += _SIDE_BY_SIDE if p.m > 64 else ()
    if p.k >= _DEEP and tiles_in(p, 64, 128) * p.batch <= 2 * d.sms:
        more += _FOURS
    if _is_about_a_wave(p, d):
        more += (*_FILLING, *_BOTH_SHARED)
    for form, parts in (*_forms(p, d), *((f, n) for f in more for n in _parts(f, p, d))):
        config = WGMMA.config(_given(form, parts, p, d))
        yield _LAUNCH + repacking_us(p) + _microseconds(form, parts, p, d), config


def _is_about_a_wave(p: Problem, d: Device) -> bool:
    """Whether C is 1/4 to 2 waves of tiles of 128 x 128 and has at least 256 rows and columns, and
    k is above the few steps of `_SHALLOW` and at most 8192: so much was surveyed.
    """
    waves = tiles_in(p, 128, 128) * p.batch / d.sms
    return 0.25 < waves <= 2 and min(p.m, p.n) >= 256 and _SHALLOW[-1][0] < p.k <= 8192


def _by_threads(p: Problem) -> bool:
    """Whether threads must store a C of 16 bits: TMA cannot where dense rows start anywhere."""
    return p.out_dtype.itemsize == 2 and p.n % 8 != 0


def is_of_few_rows(p: Problem) -> bool:
    """Whether it is a single product of at most 128 rows with C in 16 bits, all of whose rows
    start at multiples of 16 bytes.
    """
    narrow = p.out_dtype.itemsize == 2
    return p.m <= _FEW_ROWS and p.batch == 1 and p.alignment >= 16 and narrow


def memory_us(p: Problem, d: Device) -> float:
    """Microseconds of a product's least memory traffic at the device's nominal bandwidth."""
    return p.bytes * 1e6 / (d.bandwidth or _BANDWIDTH)


def _unaligned(p: Problem) -> bool:
    """Whether dense rows of A or B start within lines of memory."""
    return any(shape[2] * 2 % _ROW for shape in stored_shapes(p)[:2])


def within_sectors(p: Problem) -> tuple[bool, bool]:
    """Whether rows of A, and of B, start within sectors of memory where TMA reads them: dense rows
    at multiples of 16 but not of 32 bytes. Repacked rows start at multiples of 128 bytes.
    """
    a, b = (shape[2] * 2 % SECTOR == 16 for shape in stored_shapes(p)[:2])
    return a, b


def read_from_l2(rows: float, columns: float, p: Problem) -> float:
    """Bytes that so many rows of A and columns of B take to read from L2. Those of an operand whose
    rows start within sectors count `_WITHIN_SECTORS` times.
    """
    a, b = (_WITHIN_SECTORS if within else 1.0 for within in within_sectors(p))
    return 2 * p.k * (a * rows + b * columns)


def _forms(p: Problem, d: Device) -> Iterator[tuple[tuple, int]]:
    """Every form that competes, with the parts of k to consider."""
    for form in (*_FORMS, *_NARROW):
        mb, nb = form[0]["MB"], form[0]["NB"]
        if not (mb < 64 and p.m > mb or nb < 64 and p.n > nb) and _competes(form[0], p):
            yield from ((form, parts) for parts in _parts(form, p, d))


def _parts(form: tuple, p: Problem, d: Device) -> Iterator[int]:
    """As many parts of k as fill the device once or twice, and one."""
    for full in (1, 2):
        parts = min(p.k // (4 * 64), full * _places(form, d) // _count(form, p))
        if parts > 1:
            yield parts
    yield 1


def _competes(given: dict[str, int], p: Problem) -> bool:
    """Whether a configuration is considered for a problem. Pairs of blocks share B, which saves
    little if C is tall, and need two tiles. 64 x 192 is for products of few steps whose C is stored
    by threads, 256 x 192 for a C of 16 bits. Products of few steps whose C is stored by TMA have
    configurations of their own (`_SHALLOW`).
    """
    if given.get("CLUSTER", 1) > 1 and (p.m > 5 * p.n or p.m <= given["MB"] or p.n <= 64):
        return False
    if given["NB"] == 192 and given["MB"] != 128:
        few = p.k <= 320 and _by_threads(p)
        return few if given["MB"] == 64 else p.out_dtype.itemsize == 2
    return "GROUP" not in given or p.k > _SHALLOW[-1][0] or _by_threads(p)


def _count(form: tuple, p: Problem) -> int:
    """Blocks that have a tile, in whole clusters; one cluster where C is empty."""
    down, across = form[0].get("CLUSTER", 1), form[0].get("CLUSTER_N", 1)
    tiles = tiles_in(p, form[0]["MB"] * down, form[0]["NB"] * across) * p.batch
    return max(1, tiles) * down * across


def _places(form: tuple, d: Device) -> int:
    """Blocks that run at a time."""
    return places(d, form[0].get("CLUSTER", 1) * form[0].get("CLUSTER_N", 1))


def _microseconds(form: tuple, parts: int, p: Problem, d: Device) -> float:
    given, *steps, rest = form
    count, unaligned = _count(form, p) * parts, _unaligned(p)
    deep, mb, nb = given.get("KB", 64), given["MB"], given["NB"]
    waves = ceil_div(count, _places(form, d))
    steps_of_64 = math.ceil(ceil_div(p.k, deep) / parts) * deep / 64
    sums = 4 * p.m * p.n * p.batch * parts if parts > 1 else 0
    adding = _PART * parts + 2 * sums / _MEMORY if parts > 1 else 0.0
    if is_of_few_rows(p):
        area = mb * nb / 128**2
        step, tile = (base + more * area for base, more in (_STEP_OF_FEW, _TILE_OF_FEW))
        times = waves * steps_of_64 * step, memory_us(p, d) / _PART_OF_BANDWIDTH
        adding += _ADDING_OF_FEW if parts > 1 else 0.0
        return waves * tile + sum(time**_POWER for time in times) ** (1 / _POWER) + adding
    if parts == 1 and _by_threads(p):
        rest += _BY_THREADS[0] * given["TA"] * given["TB"] + _BY_THREADS[1] * mb * nb
    elif p.k <= _SHALLOW[-1][0]:
        rest = _STORED[0] + _STORED[1] * mb * nb
    busy = waves * (steps_of_64 * steps[unaligned] + rest)
    adding += _COMBINING if parts > 1 else 0.0
    fetched = p.bytes / ((_MEMORY if p.alignment >= 16 else _COPIED) * min(1.0, count / d.sms))
    each = count / parts
    read = read_from_l2(
        each * mb / given.get("CLUSTER_N", 1), each * nb / given.get("CLUSTER", 1), p
    )
    fetched = max(fetched, read / L2[unaligned])
    return max(busy, fetched) + 0.05 * min(busy, fetched) + adding


WGMMA = Kernel(
    number=7,
    name="wgmma",
    file="07_wgmma.cu",
    title="Hopper: one thread loads tiles by TMA, each warpgroup multiplies TA x TB through wgmma",
    space=dict(
        MB=(16, 32, 64, 128, 192, 256),
        NB=(16, 32, 64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256),
        KB=(32, 64, 128),
        TA=(64, 128),
        TB=(64, 96, 112, 128, 144, 160, 176, 192, 208, 224, 256),
        STAGES=(2, 3, 4, 6, 8, 12, 16),
        CLUSTER=(1, 2, 4),
        CLUSTER_N=(1,),
        GROUP=(1, 8),
        SPLIT=(1, 2, 4, 8, 16, 32, 66, 132),
        SLOTS=(1, 2),
    ),
    default=dict(
        MB=128, NB=256, KB=64, TA=64, TB=256, STAGES=4, CLUSTER=1, GROUP=8, SPLIT=1, SLOTS=1
    ),
    added=dict(CLUSTER_N=1),
    extra_points=tuple(
        dict(KB=64, CLUSTER=1, CLUSTER_N=1, SLOTS=1) | form[0] | dict(GROUP=group, SPLIT=parts)
        for form in (*_BOTH_SHARED, *_SIDE_BY_SIDE, *_PAIRS)
        if form[0].get("CLUSTER_N", 1) > 1  # others are in the space
        for group in (1, 8)
        for parts in (1, 2, 4)
    ),
    fallbacks=(
        dict(MB=64, NB=64, KB=64, TA=64, TB=64, STAGES=4, CLUSTER=1, GROUP=8, SPLIT=1, SLOTS=1),
    ),
    heuristic=_heuristic,
    options=_options,
    threads=lambda c: 128 * (1 + _consumers(c)),
    block=lambda c: (128 * (1 + _consumers(c)), 1, 1),
    tiles=_tiles,
    shared_elements=lambda c, p: _shared_bytes(c, p) // p.numpy_dtype.itemsize,
    dtypes=("f16", "bf16", "f16_f32", "bf16_f32"),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(_boxes),
    persistent=Persistent(),
    rules=(
        Rule(
            "warpgroups share the rows: 64 divides TA, TA MB; or TA is 64, MB 16 or 32",
            lambda c, p, d: _shared_evenly(c.MB, c.TA),
        ),
        Rule(
            "64 divides TB, TB NB; TB is 64, NB 16 or 32; or TB is NB > 64, and 16 divides it",
            lambda c, p, d: (
                c.TB <= 256 and (_shared_evenly(c.NB, c.TB) or c.NB == c.TB > 64 and c.NB % 16 == 0)
            ),
        ),
        Rule(
            "a tile is a pile of boxes: 64 divides KB, or KB is 32",
            lambda c, p, d: c.KB % 64 == 0 or c.KB == 32,
        ),
        Rule(
            "a box has at most 256 rows: MB and NB <= 256",
            lambda c, p, d: c.MB <= 256 and c.NB <= 256,
        ),
        STAGES_OVERLAP,
        Rule(
            "blocks share B, boxes or slices: CLUSTER is 1, or 2 or 4 and NB at least 64",
            lambda c, p, d: c.CLUSTER == 1 or c.CLUSTER in (2, 4) and c.NB >= _COLUMNS,
        ),
        Rule(
            "at most 8 blocks share A, too: CLUSTER_N is 1, or 2 or 4 and MB at least 64",
            lambda c, p, d: (
                c.CLUSTER_N == 1
                or c.CLUSTER_N in (2, 4)
                and c.CLUSTER * c.CLUSTER_N <= 8
                and c.MB >= _COLUMNS
            ),
        ),
        Rule(
            "TA * TB / 128 sums fit: at most 192 for 1 or 2 warpgroups, 120 for 3, 64 for 4",
            lambda c, p, d: c.TA * c.TB // 128 <= ACCUMULATORS.get(_consumers(c), 0),
        ),
        Rule(
            "three warpgroups begin with 128 registers of a thread, too few for TB above 192",
            lambda c, p, d: _consumers(c) != 3 or c.TB <= 192,
        ),
        Rule(
            "192 sums of a thread leave registers for a C of 16 bits alone: TA * TB / 128",
            lambda c, p, d: c.TA * c.TB // 128 < 192 or p.out_dtype.itemsize == 2,
        ),
        Rule(
            "a split product is stored from registers, not shared memory: SPLIT or SLOTS is 1",
            lambda c, p, d: c.SPLIT == 1 or c.SLOTS == 1,
        ),
        PARTS_HAVE_STEPS,
        PARTS_FIT,
        STAGES_FIT,
    ),
)
