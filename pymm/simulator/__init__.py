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
from typing import NamedTuple

from .build import CannotSimulate
from .build import build as _build

__all__ = [
    "BankRounds",
    "CannotSimulate",
    "activate",
    "active",
    "bank_rounds",
    "limit_memory",
    "most_used",
    "nvcc",
    "set_devices",
    "watches_races",
]

_driver: ctypes.CDLL | None = None
_folder: Path | None = None
_races = False


def _loaded_drivers() -> list[str]:
    with open("/proc/self/maps") as maps:
        return sorted({line.split(maxsplit=5)[5].strip() for line in maps if "libcuda.so" in line})


def active() -> bool:
    """Whether this process runs under the simulator."""
    return _driver is not None


def watches_races() -> bool:
    """Whether this process runs under the simulator and kernels are watched for races."""
    return _driver is not None and _races


def activate(races: bool | None = None) -> None:
    """Makes the stand-in driver this process's libcuda.so.1, and its nvcc the first on PATH.

    `races`: watch shared memory for races, and count the requests to it (`bank_rounds`). None: as
    PYMM_SIMULATOR_RACES says. Builds both on first use. Raises CannotSimulate where it cannot, or
    comes too late: once a driver is loaded, a process keeps it.
    """
    global _driver, _folder, _races
    if races is None:
        races = os.environ.get("PYMM_SIMULATOR_RACES") == "1"
    if _driver is not None:
        if races and not _races:
            raise CannotSimulate(
                "the simulator is active and does not watch for races; call "
                "pymm.simulator.activate(races=True) first, in a process of its own"
            )
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
    os.environ["PYMM_SIMULATOR_RACES"] = (
        "1" if races else "0"
    )  # for the nvcc of child processes too
    folder = _build()
    _races = races
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


class BankRounds(NamedTuple):
    """What the warps of all launches asked of shared memory in one line of a kernel's source."""

    line: str  #: "kernel.cu:12"
    access: str  #: "read" or "write"
    requests: int  #: of a warp, one for each time that it comes to an access of this line
    fewest: int  #: rounds that these take without conflicts: 1, 2 or 4 each, for 4, 8 or 16 bytes
    rounds: int  #: rounds that they took: more wherever threads want different words of one bank


def bank_rounds() -> list[BankRounds]:
    """The requests to shared memory since this was last asked, by line of source.

    Raises CannotSimulate if the simulator does not watch for races (`activate(races=True)`).
    """
    if not watches_races():
        raise CannotSimulate(
            "requests to shared memory are counted only where races are watched for: "
            "pymm.simulator.activate(races=True), or PYMM_SIMULATOR_RACES=1"
        )
    ask = _driver.pymm_simulator_bank_rounds
    ask.restype = ctypes.c_char_p
    rows = [line.split("\t") for line in ask().decode().splitlines()]
    return [BankRounds(line, access, *map(int, counts)) for line, access, *counts in rows]


def most_used(device: int = 0) -> int:
    """The most bytes that were allocated on a device at a time since this was last asked."""
    ask = _driver.pymm_simulator_most_used
    ask.restype = ctypes.c_size_t
    return ask(ctypes.c_int(device))
