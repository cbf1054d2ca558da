"""The description of this machine's CPU: cores, vectors, caches, memory, measured peak rate."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from functools import lru_cache
from pathlib import Path

from pymm.backends.cpu.compiler import CpuCompiler, processor_field
from pymm.core.binaries import key_of, obtain
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES, dtype_name
from pymm.kernels.source import kernel_text

#: Dtypes whose peak rate cpu_src/peak.cpp measures. Others have that of the type they sum in.
MEASURED = ("f32", "f64")


def usable_cores() -> int:
    """Cores that the scheduler gives to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def describe(threads: int, compiler: CpuCompiler) -> Device:
    """This machine's CPU with `threads` cores in use."""
    width, registers = _vectors()
    caches = cache_sizes()
    return Device(
        name=f"{processor_name()}, {threads} core{'s' if threads > 1 else ''}",
        kind="cpu",
        sms=threads,
        l2_bytes=caches[1] if len(caches) > 1 else 0,
        memory_bytes=memory_field("MemTotal"),
        vector_bytes=width,
        vector_registers=registers,
        cache_bytes=caches,
        peak_flops=_peaks(threads, width, compiler),
        versions={"driver": f"{platform.system()} {platform.machine()}"},
    )


def processor_name() -> str:
    """The processor's name as its maker writes it, without trademarks and clock."""
    name = processor_field("model name", "Model", "Hardware") or platform.machine() or "CPU"
    name = re.sub(r"\((R|TM|r|tm)\)|\bCPU\b|@.*", " ", name)
    return " ".join(name.split())


def _vectors() -> tuple[int, int]:
    """Bytes and number of the SIMD registers."""
    flags = set(processor_field("flags", "Features").replace(",", " ").split())
    if "avx512f" in flags:
        return 64, 32
    if "avx2" in flags:
        return 32, 16
    if platform.machine() in ("aarch64", "arm64"):
        return 16, 32
    return 16, 16


@lru_cache(maxsize=1)
def cache_sizes() -> tuple[int, ...]:
    """Bytes of the data caches seen by one core, innermost first. Empty where the system does not
    say.
    """
    sizes = {}
    for index in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
        try:
            kind, level, size = (
                (index / field).read_text(encoding="utf-8").strip()
                for field in ("type", "level", "size")
            )
            unit = {"K": 2**10, "M": 2**20}.get(size[-1], 1)
            if kind != "Instruction":
                sizes[int(level)] = int(size.rstrip("KM")) * unit
        except (OSError, ValueError):
            continue
    return tuple(sizes[level] for level in sorted(sizes))


def memory_field(field: str) -> int:
    """Bytes of a field of /proc/meminfo; 0 if it is not there."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(found.group(1)) * 1024 if found else 0


def _peaks(threads: int, width: int, compiler: CpuCompiler) -> dict[str, float]:
    """Operations per second by dtype, measured by cpu_src/peak.cpp and kept in the cache."""
    text = f"#define VECTOR_BYTES {width}\n" + kernel_text("cpu", "peak.cpp")
    key = key_of(text, compiler.version, compiler.processor, str(threads))
    folder = compiler.cache / "cpu" / f"rates-{key}"

    def measure(place: Path) -> Path:
        rates = _measured(compiler.build_text(text, "peak.cpp"), threads)
        values = " ".join(f"{value:.6g}" for value in rates)
        (place / "rates").write_text(values, encoding="utf-8")
        return place / "rates"

    values = obtain(folder, measure).read_text(encoding="utf-8").split()
    rates = dict(zip(MEASURED, map(float, values), strict=True))
    return {
        name: rates[dtype_name(row.scalar)]
        for name, row in DTYPES.items()
        if row.precision == "ieee"
    }


def _measured(path: Path, threads: int) -> list[float]:
    """For each of `MEASURED` the best of twenty runs of about 1 ms."""
    library = ctypes.CDLL(str(path))
    peaks = []
    for dtype in MEASURED:
        measure = getattr(library, f"peak_{dtype}")
        measure.restype = ctypes.c_double
        peaks.append(measure(ctypes.c_int(threads), ctypes.c_int(20), ctypes.c_longlong(300_000)))
    return peaks
