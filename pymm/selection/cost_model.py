"""A model of the time that a configuration takes on a GPU: waves of tiles, traffic through shared
memory, L2 and device memory, split k and its sums, repacking of operands before the product.

It is good enough to order candidates and to reject bad ones, not to predict a time:
benchmarks/LOG.md has its rank correlation with measurements. It finds parameters by the names that
all kernels share, so a new kernel needs nothing here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pymm.core.device import Device
from pymm.core.problem import Problem, common_alignment
from pymm.kernels import Config
from pymm.kernels.kernel import Tma, parts_of
from pymm.kernels.tiles import tiles_in

# Constants without a measurement beside them are fitted to 1,039 times of 123 problems in f32, f64
# and bf16 on an H200 (benchmarks/results), above all to the ratios within each problem.
# benchmarks/LOG.md says how well they fit, also on problems that were left out of the fit.

#: Seconds: of an event-timed launch whose code and arguments are not in a cache; of the repacking
#: launch before it, and what that takes longer for elements of two bytes; of one launch after it.
#: (Dependent launches begin early, so they cost less than the 4 us of an empty kernel.) Then the
#: latency from a load of device memory to its use, and the barriers of a step along k.
LAUNCH, BEFORE, BEFORE_16_BITS, AFTER = 4.8e-6, 1.0e-6, 2.2e-6, 2.2e-6
LATENCY, STEP = 0.76e-6, 2e-8

#: Parts of the peak that can be had: of multiply-adds from registers (59 to 61 of 66.9 TFLOP/s), of
#: doubles on tensor cores, of device memory (3.95 of 4.8 TB/s). And the bytes per clock that one
#: multiprocessor gets from L2 (of 64).
ISSUE, ISSUE_DOUBLES, MEMORY, L2_BYTES = 0.92, 1.0, 0.82, 50.0

#: Clocks of a multiprocessor for one instruction of a warp that copies into shared memory, and for
#: one that stores C. Each thread moves as many bytes as the rows are aligned to.
COPIED, STORED = 3.6, 5.8

#: Part of the bandwidth at which operands are repacked (134 MB in 50 us), and at which they are
#: split into terms (64 and 128 rows of A, 15 to 38 million elements of B: 19 times on one H100).
COPY, SPLITTING = 0.7, 1.0

#: Bytes per clock that a multiprocessor reads from shared memory, and instructions it issues.
SHARED_BYTES, SLOTS = 128.0, 4.0

#: Warps of a multiprocessor that hide the latency of multiply-adds, and of tensor instructions.
WARPS_TO_HIDE, TENSOR_WARPS_TO_HIDE = 10.0, 5.0

#: Steps until a stage that TMA filled is free again: `wgmma` reads its stage until the instructions
#: of the next step have ended; where fragments are read into registers, it is free earlier.
HELD, HELD_BY_WGMMA = 1.4, 2.0

#: Registers of a thread besides accumulators and fragments.
OTHER_REGISTERS = 32

#: Parameters that make up the tile: configurations that differ only in others are variants. How
#: many of one tile a search begins with, at most.
TILE = ("MB", "NB", "TA", "TB", "TK", "SPLIT", "SLICES")
OF_A_TILE = 2

#: Clock, bandwidth and L2 of one multiprocessor for devices that do not say: those of an H200.
CLOCK, BANDWIDTH, L2 = 1.5e9, 3e10, 4e5


@dataclass(frozen=True)
class Shape:
    """What one block of a configuration works on: its tile, the depth of a step, the tile of a
    thread or warp. `parts` is the split of k. In a kernel that splits only the last wave that is 1,
    and `sharers` is the most blocks that share one of its tiles.
    """

    mb: int
    nb: int
    kb: int
    ta: int
    tb: int
    parts: int
    stages: int
    threads: int
    by_threads: bool
    sharers: int

    @classmethod
    def of(cls, config: Config, problem: Problem) -> Shape:
        c = config.as_dict()
        mb, nb = c.get("MB", 32), c.get("NB", 32)
        own = (mb, nb) if config.kernel.tma else (1, 1)  # a tile of its own for each warpgroup
        ta, tb = c.get("TA", own[0]), c.get("TB", own[1])
        owners = max(mb // ta, 1) * max(nb // tb, 1)
        split = c.get("SPLIT", 1)
        parts, sharers = split, 1
        if config.kernel.persistent and config.kernel.persistent.splits_last_wave:
            parts, sharers = 1, split
        return cls(
            mb,
            nb,
            min(config.kernel.step(config), max(problem.k, 1)),
            ta,
            tb,
            parts,
            c.get("STAGES", 1),
            config.kernel.threads(config),
            owners >= 32,
            sharers,
        )


def predicted_seconds(config: Config, problem: Problem, device: Device) -> float:
    """Seconds that `config` should take for `problem` on `device`, a GPU. Never 0: an empty product
    takes the time of a launch.
    """
    if problem.empty:
        return LAUNCH
    shape, kernel = Shape.of(config, problem), config.kernel
    size, clock = problem.numpy_dtype.itemsize, device.clock_hz or CLOCK
    tiles = tiles_in(problem, shape.mb, shape.nb)
    units = tiles * shape.parts * problem.batch
    on_one = math.ceil(units / device.sms)
    resident = min(_resident(config, problem, device, shape), on_one)
    if kernel.persistent:  # each block computes whole units in turn
        on_one = math.ceil(units / (device.sms * resident)) * resident
    if shape.sharers > 1:  # blocks share the tiles of the last wave
        waves, left = divmod(units, device.sms * resident)
        on_one = (waves + _last_wave(config, left, device.sms * resident)) * resident
    depth = math.ceil(problem.k / shape.parts / shape.kb) * shape.kb
    steps = depth / shape.kb
    step = _step_seconds(config, problem, device, shape, resident, clock)
    unit = steps * step + _unit_seconds(problem, device, shape, size, clock)
    filling = LATENCY * (2 if shape.stages > 1 else 1)
    multiply = on_one * unit + filling
    memory = _memory_bytes(config, problem, device, shape, units) / _bandwidth(device)
    return (
        LAUNCH
        + max(multiply, memory)
        + 0.15 * min(multiply, memory)
        + _extra_seconds(config, problem, device, shape, tiles, clock)
    )


def most_promising(
    configs: Iterable[Config], problem: Problem, device: Device, count: int
) -> list[Config]:
    """Up to `count` of the configurations, the one that should be fastest first, at most
    `OF_A_TILE` of one tile, and none that the model cannot tell from one before it. None for a CPU,
    of which the model knows nothing.
    """
    if device.kernel_backend == "cpu":
        return []

    def rank(config: Config) -> tuple[float, int, int]:
        seconds = predicted_seconds(config, problem, device)
        more = config.as_dict()
        return float(f"{seconds:.3g}"), -more.get("STAGES", 0), -more.get("BLOCKS", 0)

    def told_apart() -> Iterator[Config]:
        seen: set[tuple] = set()
        ranked = ((rank(config), config) for config in configs)
        for (seconds, *_), config in sorted(ranked, key=lambda pair: pair[0]):
            if (key := (seconds, tile_of(config))) not in seen:
                seen.add(key)
                yield config

    return few_of_a_tile(told_apart(), count)


def few_of_a_tile(configs: Iterable[Config], count: int) -> list[Config]:
    """The first `count` of the configurations, without those that come after `OF_A_TILE` others of
    their tile.
    """
    found: list[Config] = []
    tiles: Counter[tuple] = Counter()
    for config in configs:
        if len(found) == count:
            break
        tile = tile_of(config)
        if tiles[tile] < OF_A_TILE:
            tiles[tile] += 1
            found.append(config)
    return found


def tile_of(config: Config) -> tuple[int, ...]:
    """The values of the parameters in `TILE`."""
    return tuple(value for name, value in config.parameters if name in TILE)


def _resident(config: Config, problem: Problem, device: Device, shape: Shape) -> int:
    """Blocks that a multiprocessor holds at a time."""
    kernel = config.kernel
    if kernel.persistent and config.as_dict().get("BLOCKS") is None:
        return max(kernel.persistent.blocks_per_sm(config), 1)
    shared = kernel.shared_bytes(config, problem) + 1024
    registers = min(_registers(problem, shape), device.max_registers_per_thread)
    found = min(
        device.shared_per_sm // shared,
        device.max_threads_per_sm // shape.threads,
        device.registers_per_block // max(registers * shape.threads, 1),
    )
    return max(found, config.as_dict().get("BLOCKS", 1), 1)


def _registers(problem: Problem, shape: Shape) -> float:
    words = problem.scalar_dtype.itemsize // 4
    sums = shape.mb * shape.nb / shape.threads
    if shape.by_threads:
        sums = shape.ta * shape.tb + shape.ta + shape.tb
    return sums * words + OTHER_REGISTERS


def _last_wave(config: Config, left: int, blocks: int) -> float:
    """Time of the last wave, in whole waves, where `blocks` share its `left` tiles: all blocks work
    as long as there is work (common/stream_k.cuh), or each takes one part of a tile after the other
    (common/last_wave_schedule.cuh).
    """
    parts = left * parts_of(config)
    if config.kernel.persistent.partial_bytes:
        return left / min(parts, blocks) if left else 0.0
    return math.ceil(parts / blocks) / parts_of(config)


def _step_seconds(
    config: Config, problem: Problem, device: Device, shape: Shape, resident: int, clock: float
) -> float:
    """Seconds of one step along k of a block, `resident` of which share the multiprocessor."""
    size = problem.numpy_dtype.itemsize
    flops = 2.0 * shape.mb * shape.nb * shape.kb
    peak = device.peak_flops.get(problem.dtype) or 128.0 * device.sms * clock
    if shape.by_threads and size == 4:  # also of types that others multiply on tensor cores
        peak = device.peak_flops.get("f32") or peak
    if shape.by_threads and problem.dtype == "f64" and device.capability >= (8, 0):
        peak /= 2 if device.capability[0] in (8, 9) else 1  # the peak is that of tensor cores
    issue = ISSUE_DOUBLES if problem.dtype == "f64" and not shape.by_threads else ISSUE
    cycles = flops / (peak * issue / device.sms / clock)
    warps = max(shape.threads // 32, 1) * resident
    if shape.by_threads:
        lanes = config.as_dict().get("LANES", 4)
        rows = max(32 // lanes, 1)
        read = (shape.ta * lanes + shape.tb * rows) * size / SHARED_BYTES
        reads = max(2.0 * read, (shape.ta + shape.tb) * size / 16)  # wavefronts of a warp's LDS.128
        words = size // 4
        issued = shape.ta * shape.tb * words + (shape.ta + shape.tb) * size / 16 + 1
        ideal = shape.ta * shape.tb * words
        cycles *= max(issued / ideal, reads * SLOTS / ideal)
        cycles *= max(1.0, (WARPS_TO_HIDE / warps) ** 0.5)
    else:
        owners = (shape.mb // shape.ta) * (shape.nb // shape.tb)
        read = owners * (shape.ta + shape.tb) * shape.kb * size / SHARED_BYTES
        cycles = max(cycles, read) + 0.1 * min(cycles, read)
        cycles *= max(1.0, TENSOR_WARPS_TO_HIDE / warps)
    if not config.kernel.tma:
        cycles += COPIED * (shape.mb + shape.nb) * shape.kb * size / (32 * problem.alignment)
    down, across = (config.as_dict().get(name, 1) for name in ("CLUSTER", "CLUSTER_N"))
    fetched = (shape.mb / across + shape.nb / down) * shape.kb * size
    share = max(cycles, fetched / L2_BYTES) / clock
    held = 1.0
    if config.kernel.tma:
        held = HELD if problem.dtype in ("f32", "f64") else HELD_BY_WGMMA
    turn = (LATENCY + held * share * resident) / (max(shape.stages, 1) * resident)
    return max(share, turn) + STEP / resident


def _unit_seconds(problem: Problem, device: Device, shape: Shape, size: int, clock: float) -> float:
    """Seconds of the beginning and the end of a tile: its first loads, and the stores of C."""
    out = problem.out_dtype.itemsize if shape.parts == 1 else problem.scalar_dtype.itemsize
    elements = shape.mb * shape.nb
    cycles = elements * out / L2_BYTES
    if shape.parts == 1:
        cycles += STORED * elements * out / (32 * common_alignment(problem.n * out))
    return cycles / clock + 0.1 * LATENCY


def _memory_bytes(
    config: Config, problem: Problem, device: Device, shape: Shape, units: int
) -> float:
    """Bytes from and to device memory: everything once, and again what the tiles of one wave do not
    share and L2 does not hold.
    """
    size = problem.numpy_dtype.itemsize
    least = problem.bytes
    wave = min(units, device.sms)
    rows = min(max(config.as_dict().get("GROUP", 8), 1), math.ceil(problem.m / shape.mb))
    columns = max(wave / rows, 1.0)
    columns = min(columns, math.ceil(problem.n / shape.nb))
    depth = problem.k / shape.parts
    per_wave = (rows * shape.mb + columns * shape.nb) * depth * size
    again = per_wave * (units / wave)
    held = (device.l2_bytes or L2 * device.sms) / 2
    lines = problem.m if problem.symmetric else problem.m + problem.n
    inputs = lines * problem.k * size * problem.batch
    if config.kernel.tma:
        least += (_copied(config.kernel.tma) - 1) * inputs
    return least if inputs <= held else max(least, min(again, 8 * least))


def _extra_seconds(
    config: Config, problem: Problem, device: Device, shape: Shape, tiles: int, clock: float
) -> float:
    """Seconds of adding the parts of k, repacking operands, mirroring one half of C."""
    seconds, tma, persistent = 0.0, config.kernel.tma, config.kernel.persistent
    if problem.halved and problem.fill == "full" and not config.kernel.both_halves:
        moved = problem.elements * problem.out_dtype.itemsize * problem.batch
        seconds += AFTER + moved / (COPY * _bandwidth(device))
    sums = problem.scalar_dtype.itemsize
    if shape.sharers > 1:
        slots = (
            tiles * problem.batch % (device.sms * persistent.blocks_per_sm(config)) * shape.sharers
        )
        moved = min(slots, 2 * device.sms) if persistent.partial_bytes else 2 * slots
        seconds += AFTER + moved * shape.mb * shape.nb * sums / _bandwidth(device)
    if shape.parts > 1:
        elements = tiles * shape.mb * shape.nb * problem.batch * shape.parts
        seconds += 2 * elements * sums / (2 * _bandwidth(device))
        one = shape.parts * shape.mb * shape.nb * sums / L2_BYTES / clock
        seconds += AFTER if persistent else LATENCY + one
    if tma:
        received, moved = tma.as_loaded(problem), 0
        size = problem.numpy_dtype.itemsize
        rows = (
            problem.m if problem.trans_a else problem.k,
            problem.k if problem.trans_b else problem.n,
        )
        elements = (problem.m * problem.k, problem.k * problem.n)
        transposed = (received.trans_a != problem.trans_a, received.trans_b != problem.trans_b)
        for i, (row, count, other) in enumerate(zip(rows, elements, transposed, strict=True)):
            unread = row * size % 16 and not tma.reads_in_place(problem, i)
            if other or unread or tma.terms > 1:
                moved += count * size * problem.batch * (1 + _copied(tma))
        if moved:
            seconds += BEFORE_16_BITS if size == 2 else 0.0
            part = COPY if tma.terms == 1 else SPLITTING
            seconds += BEFORE + moved / (part * _bandwidth(device))
    return seconds


def _copied(tma: Tma) -> float:
    """Bytes of what an element is copied to before a launch, for each of its own."""
    return tma.terms / 2 if tma.scaled else tma.terms


def _bandwidth(device: Device) -> float:
    return MEMORY * (device.bandwidth or BANDWIDTH * device.sms)
