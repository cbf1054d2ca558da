"""Devices and their compilers: the only package that touches a driver or a compiler."""

from __future__ import annotations

import logging
import os
import re
import threading
import warnings
from functools import lru_cache
from pathlib import Path

from pymm.backends.base import Backend, Compiler
from pymm.core.device import Device
from pymm.core.errors import NoDevice
from pymm.core.forking import call_in_child, import_whole
from pymm.core.paths import cache_directory, private

__all__ = ["available_devices", "compiler_for", "lookup_device", "open_device"]

LOG = logging.getLogger("pymm")


class _OpenBackends:
    """The backends that this process has opened. They are found by the process's id, too: what a
    parent has opened is of no use in a forked child, but must stay alive there.
    """

    def __init__(self) -> None:
        self._open = lru_cache(maxsize=64)(_open)
        self._by_spec: dict[tuple, Backend] = {}
        self._renew_lock()
        call_in_child(self._renew_lock)

    def _renew_lock(self) -> None:
        """In a forked child another thread of the parent may have held the old one."""
        self._lock = threading.RLock()

    def open(self, kind: str | None, number: int | None, cache: Path) -> Backend:
        """The backend of that kind and number, opened at the first call."""
        with self._lock:
            return self._open(kind, number, cache, os.getpid())

    def lookup(self, spec: str | int | None) -> Backend:
        """What `open_device(spec)` gave the first time."""
        key = type(spec), spec, os.getpid()
        found = self._by_spec.get(key)
        if found is None:
            found = self._by_spec[key] = open_device(spec)
        return found


def open_device(spec: str | int | None = None, cache: Path | None = None) -> Backend:
    """The backend for a device. The same `spec` and `cache` give the same backend again.

    `spec` is "cuda", "cuda:1" or 1 for a GPU, "cpu" for this machine's CPU with all the cores
    that the process may use, "cpu:1" with one thread, "simulator" for the CUDA kernels on a CPU.
    None is the first GPU, else the CPU. With PYMM_SIMULATOR=1 in the environment the simulator
    stands in for the GPU. `cache` is the folder of compiled kernels, else `cache_directory()`.

    `NoDevice` says what is missing and what to do; `ValueError` if `spec` is no device's name.
    """
    kind, number = _parsed(spec)
    if os.environ.get("PYMM_SIMULATOR", "0") not in ("", "0") and kind in ("cuda", None):
        kind, number = "simulator", number or 0
    where = private(Path(cache).absolute()) if cache is not None else cache_directory()
    return _backends.open(kind, number, where)


def lookup_device(spec: str | int | None = None) -> Backend:
    """`open_device(spec)`, which reads the environment and looks at directories, for callers that
    have no time for that: the backend that it gave the first time.
    """
    return _backends.lookup(spec)


def compiler_for(arch: str) -> Compiler:
    """What compiles kernels for the GPUs of `arch` (`sm_90a`), none of which need be here. Raises
    `NoDevice` without nvcc or PyCUDA.
    """
    import_whole("pymm.backends.cuda")
    from pymm.backends.cuda import compiler_without_gpu

    return compiler_without_gpu(arch, cache_directory())


def available_devices() -> list[Device]:
    """Every device that `open_device` can open here, GPUs first. Empty if there is none."""
    devices, index = [], 0
    while True:
        try:
            devices.append(open_device(index).device)
        except NoDevice:
            break
        index += 1
    try:
        devices.append(open_device("cpu").device)
    except NoDevice:
        pass
    return devices


def _parsed(spec: str | int | None) -> tuple[str | None, int | None]:
    """Kind and number that a spec names."""
    if spec is None:
        return None, None
    if isinstance(spec, int) and not isinstance(spec, bool) and spec >= 0:
        return "cuda", spec
    named = re.compile(r"(cuda|cpu|simulator)(?::(\d{1,6}))?")
    match = named.fullmatch(spec) if isinstance(spec, str) else None
    if match is None:
        raise ValueError(
            f"device {spec!r} is none of 'cuda', 'cuda:1', 1, 'cpu', 'cpu:4' (threads), 'simulator'"
        )
    kind, number = match[1], match[2]
    if number is None:
        return kind, None if kind == "cpu" else 0
    return kind, int(number)


def _open(kind: str | None, number: int | None, cache: Path, process: int) -> Backend:
    """A new backend. Without a kind the first GPU's, else the CPU's."""
    if kind == "cpu":
        import_whole("pymm.backends.cpu.backend")
        from pymm.backends.cpu.backend import open_cpu

        return open_cpu(number, cache)
    if kind is not None:
        import_whole("pymm.backends.cuda")
        from pymm.backends.cuda import open_cuda

        return open_cuda(number, cache, simulator=kind == "simulator")
    try:
        return _backends.open("cuda", 0, cache)
    except NoDevice as error:
        LOG.info("working on the CPU: %s", error)
        if any(Path(node).exists() for node in ("/dev/nvidiactl", "/dev/dxg")):
            warnings.warn(f"working on the CPU, not on this machine's GPU: {error}", stacklevel=4)
        return _backends.open("cpu", None, cache)


_backends = _OpenBackends()
