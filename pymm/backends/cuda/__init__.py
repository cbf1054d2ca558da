"""NVIDIA GPUs through PyCUDA, and the simulated GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

from pymm.backends.cuda.compiler import CudaCompiler, import_pycuda
from pymm.backends.cuda.forks import process
from pymm.backends.cuda.nvcc import INSTALL, describe, find_nvcc
from pymm.backends.telemetry import driver_version
from pymm.core.device import Device, cuda_peaks
from pymm.core.errors import NoDevice

if TYPE_CHECKING:
    from pymm.backends.cuda.backend import CudaBackend


def open_cuda(number: int, cache: Path, simulator: bool = False) -> CudaBackend:
    """The backend for GPU `number` (as the CUDA runtime counts them), or for the simulator.

    No context is made before the first allocation or load. `NoDevice` if there is no such GPU, or
    no driver, PyCUDA or nvcc to use it with.
    """
    driver = _driver(simulator)
    count = driver.Device.count()
    if number >= count:
        plural = "GPU" if count == 1 else "GPUs"
        raise NoDevice(f"cuda:{number}: this machine has {count} {plural} that CUDA may use")
    gpu = driver.Device(number)
    supported = driver.get_driver_version()
    release = supported // 1000, supported % 1000 // 10
    if simulator:
        from pymm.simulator import nvcc

        toolkit = describe(nvcc())
    else:
        toolkit = find_nvcc(release)
    device = _described(driver, gpu, number, simulator, release, toolkit.version)
    compiler = CudaCompiler(toolkit.path, toolkit.version, device.arch, cache, simulator)
    from pymm.backends.cuda.backend import CudaBackend

    return CudaBackend(gpu, device, compiler)


def compiler_without_gpu(arch: str, cache: Path) -> CudaCompiler:
    """A compiler for GPUs of `arch`, which need not be here. Without NVIDIA's driver PyCUDA, which
    starts nvcc, is imported on the simulator's. The binaries are the same.

    Raises `NoDevice` without nvcc or PyCUDA.
    """
    toolkit = find_nvcc()
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        simulator = True
    else:
        simulator = False
    try:
        import_pycuda(simulator)
    except (ImportError, RuntimeError) as error:
        raise NoDevice(f"kernels are compiled by PyCUDA, which does not import: {error}") from error
    return CudaCompiler(toolkit.path, toolkit.version, arch, cache, simulator)


def _driver(simulator: bool):
    """`pycuda.driver`, initialised. `NoDevice` says what is missing. `LaunchFailed` in a process
    that was forked from one that used CUDA.
    """
    process.check()
    advice = "python -m pymm.doctor says what this machine lacks"
    try:
        driver = import_pycuda(simulator)
    except ImportError as error:
        if "libcuda" in str(error):
            raise NoDevice(f"no NVIDIA driver: {error}. {advice}") from error
        raise NoDevice(
            f"CUDA devices need PyCUDA, which does not import: {error}. "
            f"{INSTALL} installs it; {advice}"
        ) from error
    except RuntimeError as error:
        raise NoDevice(f"no simulator: {error}") from error
    try:
        driver.init()
    except driver.Error as error:
        raise NoDevice(f"the NVIDIA driver finds no GPU: {error}. {advice}") from error
    process.used = True
    return driver


def _described(driver, gpu, number, simulator, release, toolkit) -> Device:
    """Limits and rates of a GPU, from the driver's attributes.

    Bandwidth: two transfers a clock of the memory's bus (NVIDIA, CUDA C++ Best Practices Guide,
    "Theoretical Bandwidth Calculation").
    """
    limit = driver.device_attribute
    get = gpu.get_attribute
    capability = gpu.compute_capability()
    clock_hz = get(limit.CLOCK_RATE) * 1e3
    sms = get(limit.MULTIPROCESSOR_COUNT)
    bus_bytes = get(limit.GLOBAL_MEMORY_BUS_WIDTH) / 8
    kernel_driver = "" if simulator else driver_version()
    cuda = ".".join(map(str, release))
    return Device(
        name=gpu.name(),
        kind="simulator" if simulator else "cuda",
        index=number,
        bus=gpu.pci_bus_id(),
        capability=capability,
        sms=sms,
        max_threads=get(limit.MAX_THREADS_PER_BLOCK),
        max_threads_per_sm=get(limit.MAX_THREADS_PER_MULTIPROCESSOR),
        shared_static=get(limit.MAX_SHARED_MEMORY_PER_BLOCK),
        shared_per_block=get(limit.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
        shared_per_sm=get(limit.MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
        registers_per_block=get(limit.MAX_REGISTERS_PER_BLOCK),
        l2_bytes=get(limit.L2_CACHE_SIZE),
        memory_bytes=gpu.total_memory(),
        clock_hz=clock_hz,
        bandwidth=get(limit.MEMORY_CLOCK_RATE) * 1e3 * 2 * bus_bytes,
        peak_flops=cuda_peaks(capability, sms, clock_hz),
        versions={"driver": kernel_driver or f"CUDA {cuda}", "cuda": cuda, "nvcc": toolkit},
    )
