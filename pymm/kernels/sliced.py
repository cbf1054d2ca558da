"""Kernel 11: warps that share a tile of C, each with its own slices of k."""

from __future__ import annotations

from pymm.device import Device
from pymm.kernels.declaration import STAGES_FIT, THREADS_FIT, Config, Kernel, Rule
from pymm.kernels.simt import words
from pymm.kernels.split import COUNTERS, MOST_PARTS, tiles
from pymm.problem import Problem

#: Parts that one block adds up at a time (common/gather.cuh).
FAN = 16


def _vector(p: Problem) -> int:
    """Elements of 16 bytes."""
    return 16 // p.numpy_dtype.itemsize


def _shared_elements(c: Config, p: Problem) -> int:
    """The rings of all warps, and in their place at the end the sums of all warps."""
    return c.SLICES * max(c.STAGES * c.KB * (c.MB + c.NB), c.MB * c.NB)


def _lines_are_shared(c: Config, p: Problem) -> bool:
    """True if the lanes of a warp share the lines of a slice evenly, with 16 bytes at a time as
    well as with one element.
    """
    for line in (c.MB if p.trans_a else c.KB, c.KB if p.trans_b else c.NB):
        for pieces in (line, line // _vector(p)):
            if not pieces or (32 % pieces and pieces % 32):
                return False
    return True


def _groups(parts: int) -> int:
    """Groups of FAN parts on all levels of the tree that adds up the parts of a tile."""
    groups = -(-parts // FAN)
    return groups + _groups(groups) if parts > 1 else 0


def _workspace_bytes(c: Config, p: Problem) -> int:
    """Bytes for the counters and the parts of tiles that several blocks share."""
    if c.SPLIT == 1:
        return 0
    elements = tiles(c, p) * p.batch * c.SPLIT * c.MB * c.NB
    return 4 * COUNTERS + elements * p.numpy_dtype.itemsize


def _split_pays(c: Config, p: Problem, d: Device) -> bool:
    """True unless there are blocks enough without splitting k, or warps without a slice."""
    shared = tiles(c, p) * p.batch
    return c.SPLIT == 1 or (shared * c.SPLIT <= 4 * d.sms and c.SPLIT * c.SLICES * c.KB <= p.k)


def _registers(c: Config, p: Problem) -> int:
    """Registers of a thread: accumulators, 16 bytes of k of both fragments, an address for each
    vector of a line along k, and 24 for the rest. Checked with nvcc 13.0 for sm_80 and sm_90a:
    what this lets through does not spill.
    """
    along = (not p.trans_a) + p.trans_b
    sums = c.TA * c.TB + _vector(p) * (c.TA + c.TB)
    return sums * words(p) + along * c.KB // _vector(p) + 24


def _fit_together(c: Config, p: Problem, d: Device) -> bool:
    """True if BLOCKS blocks fit; registers are handed out by eight."""
    registers = _registers(c, p)
    threads = c.BLOCKS * c.kernel.threads(c)
    return (
        registers <= d.max_registers_per_thread
        and -(-registers // 8) * 8 * threads <= d.registers_per_block
        and threads <= d.max_threads_per_sm
        and c.BLOCKS * (c.kernel.shared_bytes(c, p) + 1024) <= d.shared_per_sm
    )


SLICED = Kernel(
    number=11,
    name="sliced",
    file="11_sliced.cu",
    title="warps that share a tile take turns along k; for skinny and deep products",
    space=dict(
        MB=(4, 8, 16, 32, 64, 128, 256),
        NB=(4, 8, 16, 32, 64, 128, 256),
        KB=(8, 16, 32),
        TA=(4, 8, 16),
        TB=(4, 8, 16),
        SLICES=(1, 2, 4, 8, 16),
        STAGES=(2, 3, 4, 6),
        BLOCKS=(1, 2),
        GROUP=(8,),
        SPLIT=(1, 2, 3, 4, 6, 8, 12, 16, 24, 33, 48, 66, 96, 132, 264),
    ),
    default=dict(
        MB=64, NB=32, KB=8, TA=8, TB=8, SLICES=4, STAGES=3, BLOCKS=1, GROUP=8, SPLIT=1
    ),
    threads=lambda c: 32 * c.SLICES,
    block=lambda c: (32 * c.SLICES, 1, 1),
    tiles=lambda c, p: (tiles(c, p), c.SPLIT),
    workspace=_workspace_bytes,
    shared_elements=_shared_elements,
    dynamic_shared=True,
    aligned=True,
    capability=(8, 0),
    meant_for=lambda p, d: False,
    rules=(
        Rule(
            "each warp computes the whole tile: MB / TA * NB / TB is 32",
            lambda c, p, d: (
                c.MB % c.TA == 0 and c.NB % c.TB == 0 and c.MB // c.TA * (c.NB // c.TB) == 32
            ),
        ),
        Rule(
            "fragments are made of 16-byte vectors",
            lambda c, p, d: not (c.TA % _vector(p) or c.TB % _vector(p) or c.KB % _vector(p)),
        ),
        Rule(
            "a slice is fetched while another is used: STAGES >= 2",
            lambda c, p, d: c.STAGES >= 2,
        ),
        Rule(
            "threads share the vectors of a tile evenly",
            lambda c, p, d: c.MB * c.NB % (c.kernel.threads(c) * _vector(p)) == 0,
        ),
        Rule(
            "the lanes of a warp share the lines of a slice evenly",
            lambda c, p, d: _lines_are_shared(c, p),
        ),
        THREADS_FIT,
        Rule(
            "k is split only into parts with a slice for each warp, and only for idle "
            "multiprocessors",
            _split_pays,
        ),
        Rule(
            "tiles that are shared have their counters, and their parts fit in 128 MiB",
            lambda c, p, d: (
                c.SPLIT == 1
                or (
                    tiles(c, p) * p.batch * _groups(c.SPLIT) <= COUNTERS
                    and _workspace_bytes(c, p) <= MOST_PARTS
                )
            ),
        ),
        STAGES_FIT,
        Rule(
            "BLOCKS blocks fit in a multiprocessor's registers, threads and shared memory",
            _fit_together,
        ),
    ),
)
