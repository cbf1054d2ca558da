"""Kernel 12: products of 16-bit and tf32 elements by the tensor cores through `mma.sync`."""

from __future__ import annotations

import itertools

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
from pymm.kernels.tensor_f64 import whole_lines
from pymm.kernels.tiles import tiles, workspace_bytes

#: Bytes along k that one instruction multiplies.
_DEPTH = 32

#: What an untuned product may get: the larger tiles first, the better pipeline first, KB in bytes.
_TILES = (
    dict(MB=128, NB=128, TA=64, TB=64),
    dict(MB=128, NB=128, TA=64, TB=32),
    dict(MB=128, NB=64, TA=64, TB=32),
    dict(MB=64, NB=64, TA=32, TB=32),
    dict(MB=32, NB=64, TA=16, TB=32),
    dict(MB=32, NB=32, TA=16, TB=16),
)
_PIPELINES = ((128, 4, 2), (128, 3, 2), (64, 4, 2), (64, 3, 2), (64, 3, 1))


def _threads(c: Config) -> int:
    return 32 * (c.MB // c.TA) * (c.NB // c.TB)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: sums, the fragments of A, those of B twice, and the rest, which is
    less where nothing is checked, 16 bytes are copied at a time and k is not split. Each 16-bit
    element that comes through registers, because rows start anywhere, takes up to four: where it
    comes from, where it goes to. Checked with nvcc 13.0 for sm_80 to sm_90a: what this allows does
    not spill.
    """
    kept = c.TA * c.TB // 32 + c.TA // 4 + c.TB // 2
    if p.alignment >= 4:
        plain = p.alignment == 16 and c.SPLIT == 1 and not c.kernel.guarded(c, p)
        return kept + (52 if plain else 80)
    whole = c.KB * p.numpy_dtype.itemsize == 2 * _DEPTH  # else they come in parts
    pieces = ceil_div(c.MB * c.KB, _threads(c)) + ceil_div(c.NB * c.KB, _threads(c))
    return kept + 20 + pieces * (4 if whole else 3)


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The largest tiles that keep nine multiprocessors of ten busy, else the smallest; twice as
    many where elements come through registers, which wants more warps. Where even the smallest
    leave half of them idle, k of nine steps or more is split into parts of three or more (115 x 158
    x 714 on an H200: 7.7 us in four parts, 9.4 in one).
    """
    found, enough = None, 9 * d.sms * (1 if p.alignment >= 4 else 2)
    for sizes, (depth, stages, blocks) in itertools.product(_TILES, _PIPELINES):
        if found and sizes["MB"] * sizes["NB"] == found.MB * found.NB:
            continue
        pipeline = dict(KB=depth // p.numpy_dtype.itemsize, STAGES=stages, BLOCKS=blocks)
        config = TENSOR.config(sizes | pipeline | dict(GROUP=8, SPLIT=1))
        if not TENSOR.violations(config, p, d):
            found = config
            if 10 * tiles(found, p) * p.batch >= enough:
                break
    if found is None:
        return dict(TENSOR.default)
    blocks, steps, split = tiles(found, p) * p.batch, ceil_div(p.k, found.KB), 1
    while 2 * split * blocks <= d.sms and 6 * split <= steps and steps >= 9 and split < 16:
        split *= 2
    shared = TENSOR.config(found.as_dict() | dict(SPLIT=split))
    return (found if TENSOR.violations(shared, p, d) else shared).as_dict()


def _hopper(d: Device) -> bool:
    return d.is_gpu and d.capability[0] == 9


#: Multiply-adds up to which 16-bit products on Hopper are quicker here if TMA cannot read their
#: rows: at 500 it takes 8.4 us, kernel 07 with its repacking 11.6; at 1500 52, and 26 (one H200).
_SMALL = 2**27


def _preferred_for(p: Problem, d: Device) -> bool:
    """True but on Hopper, where `wgmma` multiplies at nearly twice the rate, wherever it is worth a
    copy to have rows at multiples of 16 bytes.
    """
    small = p.m * p.n * p.k * p.batch <= _SMALL
    return not _hopper(d) or p.numpy_dtype.itemsize == 2 and 4 <= p.alignment < 16 and small


def _power_of_two(x: int) -> bool:
    return x & (x - 1) == 0


TENSOR = Kernel(
    number=12,
    name="tensor",
    file="12_tensor.cu",
    title="16-bit types and tf32 on the tensor cores of every GPU since Ampere, through mma.sync",
    space=dict(
        MB=(32, 64, 128, 256),
        NB=(32, 64, 128, 256),
        KB=(16, 32, 64),
        TA=(16, 32, 64),
        TB=(16, 32, 64),
        STAGES=(2, 3, 4, 5),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(8,),
        SPLIT=(1, 2, 4, 8, 16),
    ),
    default=dict(MB=128, NB=128, KB=32, TA=64, TB=64, STAGES=4, BLOCKS=2, GROUP=8, SPLIT=1),
    threads=_threads,
    block=lambda c: (_threads(c), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=lambda c, p: c.STAGES * (c.MB + c.NB) * c.KB,
    dtypes=("bf16", "f16", "tf32", "bf16_f32", "f16_f32"),
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    heuristic=_heuristic,
    preferred_for=_preferred_for,
    rules=(
        Rule(
            "the swizzle wants powers of two: MB, NB, KB, TA, TB",
            lambda c, p, d: all(map(_power_of_two, (c.MB, c.NB, c.KB, c.TA, c.TB))),
        ),
        Rule(
            "warps tile the block evenly, in pieces of 16 x 16: TA divides MB, TB divides NB",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.TA % 16 == 0 and c.TB % 16 == 0
            ),
        ),
        Rule(
            "two instructions lie along k: 64 bytes divide those of KB",
            lambda c, p, d: c.KB * p.numpy_dtype.itemsize % (2 * _DEPTH) == 0,
        ),
        STAGES_OVERLAP,
        THREADS_FIT,
        Rule(
            "threads copy whole lines of both tiles at a time",
            lambda c, p, d: whole_lines(c, p),
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
