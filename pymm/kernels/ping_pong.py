"""Kernel 16: as kernel 7, with a tile for each of two warpgroups, which multiply in turn."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import tensor, wgmma
from pymm.kernels.kernel import Box, Config, Kernel, Persistent, Rule, Tma
from pymm.kernels.rules import ACCUMULATORS, STAGES_FIT, STAGES_OVERLAP
from pymm.kernels.tiles import tiles_in

#: Warpgroups that multiply; one more loads. Bytes of a row of a box, and of 64 such rows.
_CONSUMERS, _ROW = 2, 128
_PIECE = 64 * _ROW


def _boxes(c: Config, p: Problem) -> tuple[Box, Box, Box]:
    """A K-major box has all rows of a tile, or what a block of the cluster loads of it; an MN-major
    one 64 columns, of B as deep as a block's share. C is stored in pieces of 64 rows.
    """
    a = Box(64, c.KB) if p.trans_a else Box(c.KB, c.MB)
    b = Box(c.KB, c.NB // c.CLUSTER) if p.trans_b else Box(64, c.KB // c.CLUSTER)
    return a, b, Box(_ROW // p.out_dtype.itemsize, 64)


def _shared_bytes(c: Config, p: Problem) -> int:
    """The stages; SLOTS pieces of C for each warpgroup; two barriers for each stage and one for
    each warpgroup; up to 1 KiB for the alignment of swizzled boxes.
    """
    stages = c.STAGES * (c.MB + wgmma.columns(c, p)) * c.KB * 2
    return stages + _CONSUMERS * (c.SLOTS * _PIECE + 8) + 16 * c.STAGES + 1024


def _tiles(c: Config, p: Problem) -> tuple[int, int]:
    """Blocks that have a tile, in whole clusters, and 1."""
    return tiles_in(p, c.MB * c.CLUSTER, c.NB) * c.CLUSTER, 1


# The default: the tile with the least expected time, by a few measured times

#: Microseconds, measured on an H200 (benchmarks/LOG.md): a launch; the end of a tile; a step of 64
#: k of a tile of 128 rows for each column, and more for each column below 128; the same of a tile
#: of 64 rows for each column, and a constant. Bytes a microsecond from memory, and how many blocks
#: it takes to reach that.
_LAUNCH, _REST, _STEP_128, _STEP_64 = 4.0, 0.4, (2.6e-3, 1.2e-3), (1.0e-3, 0.075)
_MEMORY, _BLOCKS = 3.6e6, 60

#: Microseconds for each column of a tile of 128 rows that threads store, not TMA (773 times of the
#: H200's survey).
_STORED_BY_THREADS = 0.012

#: Of products of few rows (`wgmma.is_of_few_rows`), fitted to the same surveys as kernel 7's model:
#: microseconds of a launch; of blocks in pairs; of a step of 64 of any tile, and for 128 x 128
#: elements of it; of a tile, for as many; the part of the nominal memory bandwidth that is reached.
_LAUNCH_OF_FEW, _PAIRED, _STEP_OF_FEW, _TILE_OF_FEW = 6.94, 1.43, (0.0416, 0.039), 1.77
_PART_OF_BANDWIDTH = 0.934

#: Large products lower the clock: from so many operations on, up to so many more, by these parts of
#: a step's time, of this kernel and of kernel 7.
_COOL, _HOT, _SLOWER, _SLOWER_7 = 1e11, 2e11, 0.16, 0.22

#: Part of kernel 7's expected time below which this one is preferred, for both are expected within
#: a few percent; up to so many rows, where memory is the limit, all of it, from so many bytes on.
_SURELY, _FEW, _LONG = 0.955, 128, 1e8

#: For batches whose m, n and k all exceed `_LARGE` and whose rows start at multiples of 32 bytes:
#: the factor instead of `_SURELY`, by the bytes of an element of C (H200, 16 of 1024 cubed: 51.1
#: us, kernel 7 52.3; with C in float32 55.7, 60.7).
_SURELY_OF_BATCH, _LARGE = {2: 1.01, 4: 1.09}, 511

#: Batches of two products or more for each multiprocessor have one tile of 64 x 64 for each product
#: if that has at most `_ONE_TILE` rows and columns, more than `_TENSOR` (up to those kernel 12 is
#: preferred) and k up to `_ONE_TILE_DEEP` (2000 of 40 x 40 x 64: 13.8 us, kernel 7 17.3; 1000 of 64
#: cubed: 12.3, 12.8; 400 of 64 x 56 x 256: 14.0, 14.6).
_TENSOR, _ONE_TILE, _ONE_TILE_DEEP = 32, 64, 256

#: It is preferred for k above the first. Least width of a tile of large products. Bytes from which
#: a survey considers it for few rows, instead of `_LONG` (H100, 128 x 32768 x 512: 22.9 us, 24.2
#: with kernel 7).
_SHALLOW, _WIDE, _LONG_SURVEYED = 192, 160, 2e7

#: Where C has this many times as many columns as rows, twice as many rows of clusters are walked
#: together, so that B, the larger operand, is read from memory half as often; the part of the time
#: that it then takes (H100, 4096 x 32768 x 512 in bf16: 194 us, not 202; in clusters of two 186,
#: not 196).
_WIDER, _WALKED = 4, 0.97

#: From this k on, where nothing is surveyed, products have more stages instead of a second slot,
#: and few rows have blocks in pairs.
_DEEP = 4096

#: Parts by which products take longer with one slot where TMA stores C, and with two where threads
#: do (H200, 62 products, each with both; few of them with k above 4096, none of few rows or with C
#: in float32).
_ONE_SLOT, _TWO_SLOTS = 0.022, 0.006


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The tile with the least expected time, with as many stages as there is room for."""
    return _given(min(_tiles_for(p), key=lambda tile: _microseconds(tile, p, d)), p, d).as_dict()


def _given(tile: dict[str, int], p: Problem, d: Device) -> Config:
    given = dict(KB=64, GROUP=8) | tile
    for stages in (12, 10, 8, 7, 6, 5, 4, 3, 2):
        config = PING_PONG.config(given | {"STAGES": stages})
        if _shared_bytes(config, p) <= d.shared_per_block:
            break
    return config


def _most_slots(mb: int, nb: int, cluster: int, p: Problem) -> int:
    """Slots through which C may be stored without spilling registers; 0: not at all. A C of float32
    takes more of them: with 176 sums of a thread nvcc 13.0 spills 8 bytes with two slots, and 20
    with one where A is transposed and blocks are in pairs.
    """
    sums = mb * nb // 128
    if p.out_dtype.itemsize == 2 or sums <= 160:
        return 2
    return 0 if p.trans_a and cluster == 2 and sums == 176 else 1


def _options(p: Problem, d: Device) -> Iterator[tuple[float, Config]]:
    """Every tile, where this kernel may be the faster at all, with one slot and with two, whether
    TMA or threads store C. Tiles of 128 rows both in pairs of blocks and without, where rows start
    off sectors or C is wide; where it is wide also larger groups of rows.
    """
    if _has_enough_work(p, _LONG_SURVEYED):
        before = wgmma.repacking_us(p)
        for tile in _tiles_for(p):
            wide = tile["MB"] == 128 and p.n >= _WIDER * p.m
            both = wide or tile["MB"] == 128 and _off_sectors(p)
            for cluster in (1, 2) if both else (tile["CLUSTER"],):
                for slots in range(1, _most_slots(tile["MB"], tile["NB"], cluster, p) + 1):
                    given = tile | dict(CLUSTER=cluster, SLOTS=slots)
                    expected = before + _microseconds(given, p, d)
                    yield expected, _given(given, p, d)
                    if wide and p.m > 8 * tile["MB"] * cluster:
                        yield _WALKED * expected, _given(given | dict(GROUP=16), p, d)


def _tiles_for(p: Problem) -> Iterator[dict[str, int]]:
    """Tiles for the problem: of any width where rows of B lie along k, else of whole boxes."""
    deep = p.k >= _DEEP
    few = p.m <= _FEW
    paired = p.m > 64 and deep if few else any(wgmma.within_sectors(p))
    rows, slots = (64, 1) if few else (128, 2 if _is_stored_by_tma(p) and not deep else 1)
    for nb in range(64, 193, 16) if p.trans_b else (64, 128, 192):
        if _hot(p) == 1 and nb < _WIDE:
            continue  # L2 and the clock suffer from narrow tiles
        if most := _most_slots(rows, nb, 1 + paired, p):
            yield dict(MB=rows, NB=nb, CLUSTER=1 + paired, SLOTS=min(slots, most))


def _microseconds(given: dict[str, int], p: Problem, d: Device) -> float:
    mb, nb, cluster = given["MB"], given["NB"], given["CLUSTER"]
    tiles = tiles_in(p, mb * cluster, nb) * cluster * p.batch
    if wgmma.is_of_few_rows(p):
        area = mb * nb / 128**2
        step = _STEP_OF_FEW[0] + _STEP_OF_FEW[1] * area
        busy = ceil_div(tiles, d.sms) * (ceil_div(p.k, 64) * step + _TILE_OF_FEW * area)
        start = _LAUNCH_OF_FEW + (_PAIRED if cluster > 1 else 0.0)
        return start + busy + wgmma.memory_us(p, d) / _PART_OF_BANDWIDTH
    if mb == 128:
        step = _STEP_128[0] * nb + _STEP_128[1] * max(128 - nb, 0)
    else:
        step = _STEP_64[0] * nb + _STEP_64[1]
    step *= 1 + _SLOWER * _hot(p)
    stored = 0.0 if _is_stored_by_tma(p) else _STORED_BY_THREADS * mb / 128 * nb
    busy = ceil_div(tiles, d.sms) * (ceil_div(p.k, 64) * step + _REST + stored)
    moved = p.bytes / (_MEMORY * min(1.0, max(tiles / cluster, 1) / _BLOCKS))
    if any(wgmma.within_sectors(p)):
        moved = max(moved, wgmma.read_from_l2(tiles * mb, tiles * nb / cluster, p) / wgmma.L2[True])
    one, two = (_ONE_SLOT, 0.0) if _is_stored_by_tma(p) else (0.0, _TWO_SLOTS)
    slots = 1 + (one if given["SLOTS"] == 1 else two)
    return slots * (_LAUNCH + max(busy, moved) + 0.05 * min(busy, moved))


def _off_sectors(p: Problem) -> bool:
    """Whether dense rows of A or B start off multiples of 32 bytes, a sector of memory: those that
    are repacked, too.
    """
    return any(shape[2] * 2 % wgmma.SECTOR for shape in stored_shapes(p)[:2])


def _hot(p: Problem) -> float:
    return min(max(p.flops - _COOL, 0.0) / _HOT, 1.0)


def _has_enough_work(p: Problem, long: float = _LONG) -> bool:
    """Whether there are enough steps, and a product of few rows has more than `long` bytes."""
    return p.k > _SHALLOW and (p.m > _FEW or p.bytes > long)


def _is_stored_by_tma(p: Problem) -> bool:
    return p.n * p.out_dtype.itemsize % 16 == 0


def _has_a_tile_for_each(p: Problem, d: Device) -> bool:
    """Whether it is a batch of many small products that were measured."""
    fits = _TENSOR < max(p.m, p.n) <= _ONE_TILE and 0 < p.k <= _ONE_TILE_DEEP
    return fits and p.batch >= 2 * d.sms and p.alignment >= 16 and _is_stored_by_tma(p)


def _preferred(p: Problem, d: Device) -> bool:
    """Whether it should be faster than kernel 7: by more than the error of both expectations, or
    for batches by measured cases.
    """
    if p.symmetric or p.empty:
        return False
    if _has_a_tile_for_each(p, d):
        return True
    offered = _is_stored_by_tma(p) and _has_enough_work(p)
    if not offered or tensor.repacking_takes_longer(p, d):
        return False
    own = min(_microseconds(tile, p, d) for tile in _tiles_for(p))
    if wgmma.is_of_few_rows(p):
        other = wgmma.repacked_us(p, d)
    else:
        other = _LAUNCH + wgmma.expected_us(p, d) * (1 + _SLOWER_7 * _hot(p))
    if p.batch > 1 and min(p.m, p.n, p.k) > _LARGE and not _off_sectors(p):
        return own < other * _SURELY_OF_BATCH[p.out_dtype.itemsize]
    return own < other * (1 if p.m <= _FEW else _SURELY)


PING_PONG = Kernel(
    number=16,
    name="ping_pong",
    file="16_ping_pong.cu",
    title="Hopper: two warpgroups with a tile each: one multiplies while the other stores",
    space=dict(
        MB=(64, 128),
        NB=tuple(range(64, 257, 16)),
        KB=(64,),
        STAGES=(2, 3, 4, 5, 6, 7, 8, 10, 12),
        CLUSTER=(1, 2),
        GROUP=(1, 2, 4, 8, 16),
        SLOTS=(1, 2),
    ),
    default=dict(MB=128, NB=176, KB=64, STAGES=4, CLUSTER=2, GROUP=8, SLOTS=1),
    heuristic=_heuristic,
    options=_options,
    threads=lambda c: 128 * (1 + _CONSUMERS),
    block=lambda c: (128 * (1 + _CONSUMERS), 1, 1),
    tiles=_tiles,
    shared_elements=lambda c, p: _shared_bytes(c, p) // p.numpy_dtype.itemsize,
    dtypes=("f16", "bf16", "f16_f32", "bf16_f32"),
    dynamic_shared=True,
    min_capability=(9, 0),
    arch_specific=True,
    tma=Tma(_boxes),
    persistent=Persistent(),
    preferred_for=_preferred,
    rules=(
        Rule("a warpgroup has 64 or 128 rows: MB is 64 or 128", lambda c, p, d: c.MB in (64, 128)),
        Rule(
            "a tile has 64 to 256 columns, a multiple of 16: NB",
            lambda c, p, d: c.NB % 16 == 0 and 64 <= c.NB <= 256,
        ),
        Rule("a step is as deep as a box: KB is 64", lambda c, p, d: c.KB == 64),
        STAGES_OVERLAP,
        Rule("blocks share B in pairs: CLUSTER is 1 or 2", lambda c, p, d: c.CLUSTER in (1, 2)),
        Rule(
            "at most 192 sums: MB * NB / 128",
            lambda c, p, d: c.MB * c.NB // 128 <= ACCUMULATORS[_CONSUMERS],
        ),
        Rule(
            "a C of float32 leaves registers for one slot beyond 160 sums, and for none with 176 "
            "where A is transposed and CLUSTER is 2",
            lambda c, p, d: c.SLOTS <= _most_slots(c.MB, c.NB, c.CLUSTER, p),
        ),
        STAGES_FIT,
    ),
)
