"""CUDA kernels on a CPU, behind the real PyCUDA: for tests and for learners.

    import pymm.simulator
    pymm.simulator.activate()          # before pycuda is imported
    import pycuda.autoprimaryctx       # finds a device named "pymm simulator"

or, with a script that knows nothing of it, ``python -m pymm.simulator script.py``. README.md in
this folder says what is caught, what is not, and how to read the messages. Times mean nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from .build import CannotSimulate
from .build import build as _build

__all__ = [
    "CannotSimulate",
    "activate",
    "active",
    "limit_memory",
    "most_used",
    "nvcc",
    "set_devices",
]

_driver: ctypes.CDLL | None = None
_folder: Path | None = None


def _loaded_drivers() -> list[str]:
    with open("/proc/self/maps") as maps:
        return sorted({line.split(maxsplit=5)[5].strip() for line in maps if "libcuda.so" in line})


def active() -> bool:
    """Whether this process runs under the simulator."""
    return _driver is not None


def activate() -> None:
    """Makes the stand-in driver this process's libcuda.so.1, and its nvcc the first on PATH.

    Builds both on first use. Raises CannotSimulate where it cannot, or comes too late: once a
    driver is loaded, a process keeps it.
    """
    global _driver, _folder
    if _driver is not None:
        return
    if sys.platform != "linux":
        raise CannotSimulate(f"the simulator runs on Linux, not on {sys.platform}")
    if "pycuda._driver" in sys.modules:
        raise CannotSimulate(
            "pycuda.driver is already imported and holds the real driver; call "
            "pymm.simulator.activate() before it"
        )
    if loaded := _loaded_drivers():
        raise CannotSimulate(
            f"this process already uses the driver {loaded[0]}; activate the "
            "simulator first, in a process of its own"
        )
    folder = _build()
    _driver = ctypes.CDLL(str(folder / "lib" / "libcuda.so.1"), mode=ctypes.RTLD_GLOBAL)
    _folder = folder
    os.environ["PATH"] = f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"


def nvcc() -> str:
    """Absolute path of the stand-in nvcc, for ``SourceModule(..., nvcc=...)``."""
    return str((_folder or _build()) / "bin" / "nvcc")


def set_devices(count: int) -> None:
    """From now on there are so many devices, at most 16, all alike. For tests."""
    _driver.pymm_simulator_set_devices(ctypes.c_int(count))


def limit_memory(nbytes: int) -> None:
    """From now on every device has so many bytes; 0: as many as at first. For tests."""
    _driver.pymm_simulator_limit_memory(ctypes.c_size_t(nbytes))


def most_used(device: int = 0) -> int:
    """The most bytes that were allocated on a device at a time since this was last asked."""
    ask = _driver.pymm_simulator_most_used
    ask.restype = ctypes.c_size_t
    return ask(ctypes.c_int(device))
