"""How many blocks of a kernel a multiprocessor holds, from what the compiler gave it."""

from __future__ import annotations

from dataclasses import dataclass

from pymm.backends.base import Resources
from pymm.device import Device
from pymm.kernels import Config
from pymm.problem import Problem

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
    """Bytes of shared memory of a block: the kernel's own and what the launch hands it."""
    dynamic = config.kernel.shared_bytes(config, problem) if config.kernel.dynamic_shared else 0
    return resources.shared_bytes + dynamic


def occupancy(
    config: Config, problem: Problem, resources: Resources, device: Device
) -> Occupancy:
    """What of a device's multiprocessor the blocks of a configuration can fill."""
    threads = config.kernel.threads(config)
    warps = -(-threads // WARP)
    modern = device.capability >= (8, 0)
    limits = {
        "blocks": MOST_BLOCKS.get(device.capability, USUAL_BLOCKS),
        "threads": device.max_threads_per_sm // WARP // warps,
    }
    if resources.registers:
        pieces = -(-resources.registers * WARP // REGISTER_PIECE)
        held = device.registers_per_block // (pieces * REGISTER_PIECE)
        limits["registers"] = held // WARPS_TOGETHER * WARPS_TOGETHER // warps
    shared = shared_of(config, problem, resources)
    if shared:
        taken = -(-(shared + SYSTEM_SHARED * modern) // SHARED_PIECE) * SHARED_PIECE
        limits["shared memory"] = device.shared_per_sm // taken
    least = min(limits, key=limits.__getitem__)
    return Occupancy(limits[least], limits[least] * warps * WARP / device.max_threads_per_sm, least)
