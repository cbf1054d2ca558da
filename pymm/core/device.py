"""The device that a problem is computed on: one frozen `Device` with its limits and peak rates. It
may describe a device that is not present.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pymm.core.dtypes import DTYPES

#: Floating-point operations of one multiprocessor and clock by arithmetic unit, two for a fused
#: multiply-add: NVIDIA, CUDA C++ Programming Guide, table "Throughput of Native Arithmetic
#: Instructions" (results per clock and multiprocessor, times two). fp64 of 8.0 and 9.0 is the
#: tensor cores' rate (A100 and H100 whitepapers, dense), the most that a kernel can reach there.
CUDA_FLOPS_PER_CLOCK = {
    (7, 0): {"fp32": 128, "fp64": 64},
    (7, 5): {"fp32": 128, "fp64": 4},
    (8, 0): {"fp32": 128, "fp64": 128, "tensor 16 bits": 2048, "tensor tf32": 1024},
    (8, 6): {"fp32": 256, "fp64": 4},
    (8, 7): {"fp32": 256, "fp64": 4},
    (8, 9): {"fp32": 256, "fp64": 4},
    (9, 0): {"fp32": 256, "fp64": 256, "tensor 16 bits": 4096, "tensor tf32": 2048},
    (10, 0): {"fp32": 256, "fp64": 128},
    (12, 0): {"fp32": 256, "fp64": 4},
}


@dataclass(frozen=True)
class Device:
    """Limits (bytes, counts) and peak rates (operations and bytes per second) of one device.

    For a CUDA device `threads`, `shared_*` and `registers_*` are the driver's limits. For a CPU
    `sms` counts the cores in use, `vector_bytes` and `vector_registers` describe its SIMD unit,
    and `cache_bytes` its caches from the innermost out.
    """

    name: str
    kind: str  # "cuda", "cpu" or "simulator"
    index: int = 0
    bus: str = field(default="", compare=False)  # a GPU's PCI address
    capability: tuple[int, int] = (0, 0)
    sms: int = 1
    max_threads: int = 1024
    max_threads_per_sm: int = 2048
    shared_static: int = 48 * 1024
    shared_per_block: int = 48 * 1024
    shared_per_sm: int = 64 * 1024
    registers_per_block: int = 65536
    max_registers_per_thread: int = 255
    l2_bytes: int = 0
    memory_bytes: int = 0
    clock_hz: float = 0.0
    bandwidth: float = 0.0
    vector_bytes: int = 0
    vector_registers: int = 0
    cache_bytes: tuple[int, ...] = ()
    peak_flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    versions: Mapping[str, str] = field(default_factory=dict, hash=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "peak_flops", MappingProxyType(dict(self.peak_flops)))
        object.__setattr__(self, "versions", MappingProxyType(dict(self.versions)))

    def __reduce__(self):
        fields = dict(self.__dict__)
        fields["peak_flops"], fields["versions"] = dict(self.peak_flops), dict(self.versions)
        return _rebuild, (fields,)

    @property
    def slug(self) -> str:
        """File name of the device's records: `nvidia-h200`, `amd-epyc-2-cores`."""
        return re.sub(r"[^a-z0-9]+", "-", self.name.lower()).strip("-") or "unnamed"

    @property
    def kernel_backend(self) -> str:
        """Which kernels it runs: those written for "cpu" or for "cuda"."""
        return "cpu" if self.kind == "cpu" else "cuda"

    @property
    def times_are_real(self) -> bool:
        """False for the simulator, whose times say nothing about any device."""
        return self.kind != "simulator"

    @property
    def shares_host_memory(self) -> bool:
        """True if kernels read and write NumPy arrays in place, without a transfer."""
        return self.kind == "cpu"

    @property
    def shares_host_cores(self) -> bool:
        """True if other work of the host, such as compiling, disturbs what is measured on it."""
        return self.kind == "cpu"

    @property
    def is_gpu(self) -> bool:
        """True for a GPU that is there: with clocks, caches and libraries of its own."""
        return self.kind == "cuda"

    @property
    def arch(self) -> str:
        """Target of the compiler: `sm_75` to `sm_89`, and `sm_90a` on, where `a` opens Hopper's
        own instructions.
        """
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def _rebuild(fields: dict) -> Device:
    return Device(**fields)


def cuda_peaks(capability: tuple[int, int], sms: int, clock_hz: float) -> dict[str, float]:
    """Peak operations per second by dtype: the rate of its unit, divided by the passes that it
    makes. Empty for a capability that the table above does not have.
    """
    rates = CUDA_FLOPS_PER_CLOCK.get(capability, {})
    return {
        name: rates[row.unit] / row.passes * sms * clock_hz
        for name, row in DTYPES.items()
        if row.unit in rates
    }
