"""Operations, memory accesses and occupancy of a kernel: by formula, from the compiler's resources,
and counted while the simulator runs the kernel with elements that count what is done with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from pymm.backends.base import Resources
from pymm.core.device import Device
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import Config
from pymm.kernels.source import Source, render
from pymm.measure.workbench import Trial, Workbench
from pymm.measure.worker_process import Reply, Request

#: Blocks that a multiprocessor holds at most (CUDA C++ Programming Guide, table "Technical
#: Specifications per Compute Capability").
MOST_BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}
USUAL_BLOCKS = 32

#: Registers are handed out to a warp in pieces of 256, warps in fours, shared memory in pieces of
#: 128 bytes, and from compute capability 8.0 on each block takes 1 KiB more (NVIDIA, occupancy
#: calculator of Nsight Compute; CUDA C++ Programming Guide, "Shared Memory").
REGISTER_PIECE, WARPS_TOGETHER, SHARED_PIECE, SYSTEM_SHARED = 256, 4, 128, 1024

WARP = 32


@dataclass(frozen=True)
class Occupancy:
    """Blocks on a multiprocessor, the part of its threads that they are, and what allows no more:
    "threads", "registers", "shared memory" or "blocks".
    """

    blocks: int
    part: float
    limited_by: str


def shared_of(config: Config, problem: Problem, resources: Resources) -> int:
    """Bytes of shared memory of a block: static and dynamic."""
    dynamic = config.kernel.shared_bytes(config, problem) if config.kernel.dynamic_shared else 0
    return resources.shared_bytes + dynamic


def occupancy(config: Config, problem: Problem, resources: Resources, device: Device) -> Occupancy:
    """What of a device's multiprocessor the blocks of a configuration can fill."""
    threads = config.kernel.threads(config)
    warps = ceil_div(threads, WARP)
    modern = device.capability >= (8, 0)
    limits = {
        "blocks": MOST_BLOCKS.get(device.capability, USUAL_BLOCKS),
        "threads": device.max_threads_per_sm // WARP // warps,
    }
    if resources.registers:
        pieces = ceil_div(resources.registers * WARP, REGISTER_PIECE)
        held = device.registers_per_block // (pieces * REGISTER_PIECE)
        limits["registers"] = held // WARPS_TOGETHER * WARPS_TOGETHER // warps
    shared = shared_of(config, problem, resources)
    if shared:
        taken = round_up(shared + SYSTEM_SHARED * modern, SHARED_PIECE)
        limits["shared memory"] = device.shared_per_sm // taken
    least = min(limits, key=limits.__getitem__)
    return Occupancy(limits[least], limits[least] * warps * WARP / device.max_threads_per_sm, least)


#: How a number that counts is spelled (pymm/simulator/device/counted.hpp).
_REAL = re.compile(r"^#define REAL (float|double)$", re.MULTILINE)


def threads_of(config: Config, problem: Problem) -> int:
    """All threads of the launch."""
    grid = config.kernel.grid(config, problem)
    return int(np.prod(grid)) * config.kernel.threads(config)


def formula(config: Config, problem: Problem) -> Mapping[str, float]:
    """Of a thread of kernels 00 to 04 whose tile is inside the matrix, with alpha = 1 and beta = 0:
    a multiply-add is two operations, and each element of C is once multiplied by alpha.
    """
    k, elements = problem.k, getattr(config, "TA", 1) * getattr(config, "TB", 1)
    found: dict[str, float] = {"operations": elements * (2 * k + 1), "global_stores": elements}
    if config.kernel.number < 2:
        found |= {"global_loads": 2 * k, "shared_loads": 0, "shared_stores": 0}
    else:
        loaded = k * (config.MB + config.NB) / config.kernel.threads(config)
        wide = getattr(config, "TA", 1) + getattr(config, "TB", 1)
        found |= {"global_loads": loaded, "shared_loads": wide * k, "shared_stores": loaded}
    return found | {"global_accesses": found["global_loads"] + found["global_stores"]}


def counting(source: Source) -> Source:
    """The text with numbers that count."""
    text = _REAL.sub(r"#define REAL pymm_sim::Counted<\1>", source.text)
    return replace(source, text=f'#include "counted.hpp"\n{text}')


def measure(bench: Workbench, request: Request) -> Reply:
    """Count what each configuration does, and see that its result is right. The reply's `times`
    have the averages of all threads under "SLUG|quantity".
    """
    from pymm.backends.cuda.counting import count

    p = request.problem
    sizes = [int(np.prod(shape)) * p.numpy_dtype.itemsize for shape in stored_shapes(p)]
    matrices = list(zip((bench.a, bench.b, bench.c), sizes, strict=True))
    trials, times = [], {}
    for config in request.configs:
        found = count(bench.backend, counting(render(config, p)), p, matrices)
        finding = bench.quick.compare()
        outcome = "ok" if finding.right else "wrong"
        trials.append(Trial(p, config, outcome, error=finding.error, detail=finding.detail))
        found["global_accesses"] = found["global_loads"] + found["global_stores"]
        for name, sum_of_all in found.items():
            times[f"{config.slug}|{name}"] = [sum_of_all / threads_of(config, p)]
    return Reply(tuple(trials), times)
