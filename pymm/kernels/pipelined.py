"""Kernel 5: the register tile loaded by asynchronous copies in stages."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem
from pymm.kernels.expected import beside_memory
from pymm.kernels.kernel import Config, Kernel, Rule
from pymm.kernels.rules import (
    SPLIT_RULES,
    STAGES_FIT,
    THREADS_FIT,
    blocks_fit,
    registers_fit,
    resident,
)
from pymm.kernels.simt import words
from pymm.kernels.tiles import tiles, workspace_bytes


def _copies_are_shared(c: Config, p: Problem) -> bool:
    """True if the threads share both tiles evenly. A tile that is K-major is copied an element at a
    time, another one 16 bytes at a time or, for rows that start anywhere, an element.
    """
    threads, size = c.kernel.threads(c), p.numpy_dtype.itemsize
    for outer, k_major in ((c.MB, not p.trans_a), (c.NB, p.trans_b)):
        length, count = (c.KB, outer) if k_major else (outer, c.KB)
        for nbytes in (size,) if k_major else (size, 16):
            copies = length * size // nbytes
            if not copies or copies * count % threads:
                return False
            if threads % copies and copies % threads:
                return False
    return True


def _pitches(c: Config, p: Problem) -> tuple[int, int]:
    """Elements of a row of the tiles of A and B: transposed ones are padded."""
    vector = 16 // p.numpy_dtype.itemsize
    return c.MB + vector * (not p.trans_a), c.NB + vector * p.trans_b


def _padding(c: Config, p: Problem, alignment: int) -> int:
    """What the rows of C on their way take more than the stages: one of each thread, where vectors
    cannot be stored.
    """
    rows = c.kernel.threads(c) * c.TB if alignment < 16 else 0
    return max(0, rows - c.kernel.shared_elements(c, p))


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: accumulators, two fragments of A and of B, and 24 for the rest (nvcc
    13.0 keeps 8 x 8 of floats in 128 registers without spilling).
    """
    return (c.TA * c.TB + 2 * (c.TA + c.TB)) * words(p) + 24


# Batches of float32: the form with the least expected time

#: MB, NB, KB, TA, TB, STAGES, BLOCKS, with four LANES.
_BATCH_FORMS = (
    (32, 64, 16, 8, 8, 2, 3),
    (64, 128, 8, 8, 16, 2, 1),
    (128, 256, 32, 8, 8, 2, 1),
    (64, 256, 32, 8, 8, 2, 1),
    (128, 128, 32, 8, 8, 2, 1),
    (64, 128, 16, 8, 8, 3, 3),
)

#: Fitted to 410 times on one H200 (benchmarks/LOG.md), before tiles were transposed by asynchronous
#: copies: microseconds of a launch; clocks of a microsecond; clocks of a multiprocessor for 128
#: multiply-adds, and of these for the reads of fragments; for an instruction of a warp that copies;
#: for 32 elements of a K-major operand; for 128 elements of C; warps that hide the latency of what
#: they do, and the power by which fewer are slower; bytes of a clock from device memory.
_LAUNCH, _CLOCKS, _ISSUE, _READ, _COPY, _TURN, _STORED = 5.6, 1980, 0.87, 1.0, 3.4, 4.3, 28
_WARPS, _FEWER, _MEMORY = 4.7, 0.8, 10

#: Bytes of a microsecond from all of device memory.
_OF_ALL = 4e6


def medium_batch(p: Problem, d: Device) -> bool:
    """Whether a problem is a batch of aligned float32 products, of 33 to 256 rows or columns, for
    which this kernel is the fastest on Hopper.
    """
    if p.dtype != "f32" or p.symmetric or not d.is_gpu or d.capability != (9, 0):
        return False
    return p.batch >= 16 and p.alignment >= 16 and 32 < max(p.m, p.n) <= 256


# Single float32 products of few steps along k: the form and the parts of k with the least expected
# time. Rows are copied as they are, where kernel 8 repacks them

#: MB, NB, KB, TA, TB, LANES, STAGES, BLOCKS.
_FORMS = (
    (64, 64, 16, 8, 4, 4, 3, 4),
    (32, 64, 16, 8, 4, 4, 3, 6),
    (64, 64, 8, 8, 8, 4, 3, 4),
    (64, 64, 8, 8, 8, 4, 3, 8),
    (64, 128, 8, 8, 8, 4, 3, 3),
    (128, 64, 8, 8, 8, 4, 3, 3),
    (64, 32, 16, 8, 4, 4, 3, 6),
    (32, 32, 16, 4, 4, 4, 3, 8),
    (128, 128, 8, 16, 8, 2, 2, 2),
    (128, 32, 32, 4, 4, 4, 4, 2),
    (32, 64, 32, 4, 4, 4, 4, 4),
)

#: More for a survey (survey.py) to choose from.
_SURVEYED = ((64, 128, 16, 8, 8, 4, 3, 3),)

#: Registers that nvcc takes for so many sums of a thread, where BLOCKS allows it.
_USED = {16: 128, 32: 128, 64: 168, 128: 255}

#: Parts of k to consider; the greatest k: of deeper products kernels 8 and 11 are quicker; and a
#: factor of the expected times, which err by 7 %: the least of many is too small.
_SPLITS, _DEEPEST, _DOUBT = (1, 2, 4, 8), 800, 1.05


class _Single(NamedTuple):
    """Of the expected time, fitted to 1885 times on one H200 (benchmarks/LOG.md): microseconds of a
    launch; clocks of a multiprocessor for 128 multiply-adds, for an instruction of a warp that
    copies, for 32 elements of a K-major operand, for 128 elements of C; warps that hide the latency
    of what they do, and the power by which fewer are slower; part of the shorter of computing and
    of memory that the longer does not hide; microseconds of adding up parts, and for each part 1024
    elements of it.
    """

    launch: float = 4.9
    issue: float = 1.247
    copy: float = 2.886
    turn: float = 1.662
    stored: float = 5.98
    warps: float = 8.44
    fewer: float = 0.514
    overlap: float = 0.848
    adding: float = 1.124
    part: float = 0.095


_RATES = _Single()


def _is_single(p: Problem, d: Device) -> bool:
    single = p.dtype == "f32" and p.batch == 1 and not p.symmetric and not p.empty
    return single and 0 < p.k <= _DEEPEST and d.is_gpu and d.capability == (9, 0)


@lru_cache(maxsize=1024)
def single(p: Problem, d: Device) -> tuple[float, Config]:
    """The least expected time of a single product of few steps along k on Hopper, in microseconds,
    and its configuration; infinity and the default for others.
    """
    if not _is_single(p, d):
        return math.inf, PIPELINED.default_config
    options = _options(p, d, surveyed=False)
    for microseconds, config in sorted(options, key=lambda option: option[0]):
        if not PIPELINED.violations(config, p, d):
            return microseconds, config
    return math.inf, PIPELINED.default_config


def _options(p: Problem, d: Device, surveyed: bool = True) -> Iterator[tuple[float, Config]]:
    """Every form with every split of k, of float32; with those that only a survey chooses from."""
    if p.dtype != "f32":
        return
    names = ("MB", "NB", "KB", "TA", "TB", "LANES", "STAGES", "BLOCKS")
    forms = (*_FORMS, *_SURVEYED) if surveyed else _FORMS
    for form, parts in itertools.product(forms, _SPLITS):
        if parts == 1 or p.k >= 2 * form[2] * parts:
            given = dict(zip(names, form, strict=True)) | dict(GROUP=8, SPLIT=parts)
            config = PIPELINED.config(given)
            yield _DOUBT * _of_single(config, p, d), config


def _of_single(c: Config, p: Problem, d: Device) -> float:
    """Microseconds that a form should take: those of the multiprocessor with most blocks, or of
    device memory, and of adding up the parts.
    """
    size, warps = p.numpy_dtype.itemsize, PIPELINED.threads(c) // 32
    each = ceil_div(tiles(c, p) * c.SPLIT, d.sms)
    most = min(resident(c, p, d, _USED[c.TA * c.TB]), each) or 1
    multiply = c.MB * c.NB * _RATES.issue / 128
    copy = _RATES.copy * (c.MB + c.NB) * size / (32 * min(p.alignment, 16))
    copy += _RATES.turn * ((not p.trans_a) * c.MB + p.trans_b * c.NB) / 32
    rows = ceil_div(ceil_div(p.k, c.KB), c.SPLIT) * c.KB
    past_end = c.KB // 2 if c.SPLIT == 1 and 0 < p.k % c.KB <= c.KB // 2 else 0
    one = multiply * (rows - past_end) + copy * rows
    clocks = each * _RATES.stored * c.MB * c.NB / 128
    for blocks, times in zip((most, each % most), (each // most, 1), strict=True):
        waiting = max(1.0, _RATES.warps / (blocks * warps)) ** _RATES.fewer if blocks else 0.0
        clocks += times * blocks * one * waiting
    computing, memory = clocks / _CLOCKS, p.bytes / _OF_ALL
    adding = _RATES.adding + _RATES.part * c.SPLIT * c.MB * c.NB / 1024
    together = beside_memory(computing, memory, _RATES.overlap)
    return _RATES.launch + together + (adding if c.SPLIT > 1 else 0.0)


def _heuristic(p: Problem, d: Device) -> dict[str, int]:
    """The form with the least expected time."""
    return _of_batch(p, d) if medium_batch(p, d) else single(p, d)[1].as_dict()


def _of_batch(p: Problem, d: Device) -> dict[str, int]:
    names = ("MB", "NB", "KB", "TA", "TB", "STAGES", "BLOCKS")
    forms = [dict(zip(names, form, strict=True)) for form in _BATCH_FORMS]
    configs = [PIPELINED.config(form | dict(LANES=4, GROUP=8, SPLIT=1)) for form in forms]
    fitting = (c for c in configs if not PIPELINED.violations(c, p, d))
    best = min(fitting, key=lambda c: _microseconds(c, p, d), default=None)
    return dict(PIPELINED.default) if best is None else best.as_dict()


def _microseconds(c: Config, p: Problem, d: Device) -> float:
    """Microseconds that a form should take: those of the multiprocessor with most blocks, or of
    device memory.
    """
    size, warps = p.numpy_dtype.itemsize, PIPELINED.threads(c) // 32
    each = ceil_div(tiles(c, p) * p.batch, d.sms)
    most = min(resident(c, p, d, _registers(c, p)), each) or 1
    waves, rest = divmod(each, most)
    multiply = c.MB * c.NB * (_ISSUE + _READ * (1 / c.TA + 1 / c.TB)) / 128
    copy = _COPY * (c.MB + c.NB) * size / (32 * min(p.alignment, 16))
    copy += _TURN * ((not p.trans_a) * c.MB + p.trans_b * c.NB) / 32
    one = (multiply + copy) * round_up(p.k, c.KB)
    clocks = each * _STORED * c.MB * c.NB / 128
    for blocks, times in ((most, waves), (rest, 1)):
        waiting = max(1.0, _WARPS / (blocks * warps)) ** _FEWER if blocks else 0.0
        clocks += times * blocks * one * waiting
    return _LAUNCH + max(clocks, p.bytes / (_MEMORY * d.sms)) / _CLOCKS


PIPELINED = Kernel(
    number=5,
    name="pipelined",
    file="05_pipelined.cu",
    title="asynchronous copies in stages, fragments read ahead, compact tiles for warps",
    space=dict(
        MB=(32, 64, 128, 256),
        NB=(32, 64, 128, 256),
        KB=(8, 16, 32),
        TA=(4, 8, 16),
        TB=(4, 8, 16),
        LANES=(4, 8),
        STAGES=(2, 3, 4),
        BLOCKS=(1, 2, 3, 4),
        GROUP=(8,),
        SPLIT=(1, 2, 4, 8, 16, 32),
    ),
    default=dict(MB=64, NB=128, KB=16, TA=8, TB=8, LANES=4, STAGES=3, BLOCKS=3, GROUP=8, SPLIT=1),
    fallbacks=(
        dict(MB=64, NB=64, KB=16, TA=4, TB=4, LANES=4, STAGES=3, BLOCKS=2, GROUP=8, SPLIT=1),
    ),
    threads=lambda c: c.MB * c.NB // (c.TA * c.TB),
    block=lambda c: (c.MB * c.NB // (c.TA * c.TB), 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=workspace_bytes,
    shared_elements=lambda c, p: c.STAGES * c.KB * sum(_pitches(c, p)),
    padding=_padding,
    dynamic_shared=True,
    aligned=True,
    min_capability=(8, 0),
    heuristic=_heuristic,
    heuristic_for=lambda p, d: medium_batch(p, d) or _is_single(p, d),
    options=_options,
    rules=(
        Rule(
            "warps tile the block evenly: TA * LANES divides MB and TB * 32 / LANES divides NB",
            lambda c, p, d: (
                32 % c.LANES == 0
                and c.MB % (c.TA * c.LANES) == 0
                and c.NB % (c.TB * 32 // c.LANES) == 0
            ),
        ),
        Rule(
            "fragments are made of 16-byte vectors",
            lambda c, p, d: (
                c.TA * p.numpy_dtype.itemsize % 16 == 0 and c.TB * p.numpy_dtype.itemsize % 16 == 0
            ),
        ),
        Rule(
            "a tile is fetched while another is used: STAGES, KB >= 2",
            lambda c, p, d: c.STAGES >= 2 and c.KB >= 2,
        ),
        THREADS_FIT,
        Rule(
            "threads share the pieces of both tiles evenly",
            lambda c, p, d: _copies_are_shared(c, p),
        ),
        *SPLIT_RULES,
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            lambda c, p, d: registers_fit(c, d, _registers(c, p)) and blocks_fit(c, p, d),
        ),
    ),
)
