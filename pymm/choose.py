"""Which configuration a call gets: the caller's own, else what the store selects, remembered until
the store changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pymm.backends.base import Backend
from pymm.backends.directories import config_directory
from pymm.device import Device
from pymm.kernels import Config, Kernel, find_kernel, parse_slug
from pymm.problem import Problem
from pymm.records import Environment
from pymm.select import Choice, select
from pymm.store import record_files

#: Seconds after which the files of tuned configurations are looked at again: two calls of `stat`
#: a second, and what another process has tuned is used within one.
LOOK_AGAIN = 1.0

_chosen: dict[tuple, Choice] = {}

#: Choices kept; a program with more problems than this pays for selecting again.
MAX_CHOSEN = 8192


def choose(
    backend: Backend, problem: Problem, kernel: str | int | None = None, config: Any = None
) -> Choice:
    """The configuration for `problem` and the reason: `config` if given (a `Config`, a slug, or a
    dict of parameters for `kernel`), else what `store` has, of `kernel` if that is given.

    `ValueError` for an unknown kernel, and with the rules' own sentences for a configuration that
    breaks them.
    """
    if config is not None:
        return _own(config, kernel, problem, backend.device)
    generation()
    if kernel is not None and not isinstance(kernel, str | int):
        kernel = find_kernel(kernel, "cpu" if backend.device.kind == "cpu" else "cuda").name
    key = (backend, problem, kernel)
    found = _chosen.get(key)
    if found is None:
        _watch.add(backend.device)
        environment = Environment.of(backend.device, backend.toolchain)
        found = select(problem, backend.device, tuned_directory(), environment, kernel)
        if len(_chosen) >= MAX_CHOSEN:
            _chosen.clear()
        _chosen[key] = found
    return found


def reload() -> None:
    """Forget all choices, so that the next call looks at the tuned configurations afresh. Needed
    only where a second is too long: changed files are noticed by themselves.
    """
    _watch.generation += 1
    _watch.seen.clear()
    _watch.next_look = 0.0
    _chosen.clear()


def tuned_directory() -> Path | None:
    """The user's files; None where no such directory can be had, as in a read-only home."""
    try:
        return config_directory()
    except OSError:
        return None


def generation() -> int:
    """A number that grows when choices may have changed. Looks at the files now and then."""
    if time.monotonic() >= _watch.next_look:
        _watch.look()
    return _watch.generation


class _Watch:
    """The files of tuned configurations as they were when last looked at."""

    def __init__(self) -> None:
        self.generation, self.next_look = 0, 0.0
        self.seen: dict[Device, tuple] = {}

    def add(self, device: Device) -> None:
        """Look at the files of `device` too from now on."""
        if device not in self.seen:
            self.seen[device] = _stamps(device)

    def look(self) -> None:
        """Forget all choices if a file changed."""
        now = {device: _stamps(device) for device in self.seen}
        if now != self.seen:
            self.generation += 1
            _chosen.clear()
        self.seen, self.next_look = now, time.monotonic() + LOOK_AGAIN


_watch = _Watch()


def _stamps(device: Device) -> tuple:
    return tuple(_stamp(path) for path in record_files(device, tuned_directory()))


def _stamp(path: Any) -> tuple:
    try:
        status = path.stat()
    except OSError:
        return (str(path),)
    return (str(path), status.st_mtime_ns, status.st_size, status.st_ino)


def _own(config: Any, kernel: str | int | None, problem: Problem, device: Device) -> Choice:
    """The caller's configuration, held to the rules."""
    backend = "cpu" if device.kind == "cpu" else "cuda"
    wanted = None if kernel is None else find_kernel(kernel, backend)
    if isinstance(config, Mapping):
        if wanted is None:
            raise ValueError(f"config={dict(config)} needs kernel=, the kernel whose parameters "
                             f"these are")  # fmt: skip
        return _checked(wanted.config(dict(config)), wanted, problem, device)
    if isinstance(config, str):
        config = parse_slug(config, backend)
    if not isinstance(config, Config):
        kind = type(config).__name__
        raise TypeError(f"config is a {kind}; it is a dict with kernel=, a slug or a Config")
    if config.backend != backend:
        raise ValueError(f"{config.slug} is a configuration for {config.backend}, not {backend}")
    if wanted is not None and config.kernel_name != wanted.name:
        raise ValueError(f"kernel={kernel!r} and config={config.slug} name two kernels")
    return _checked(config, config.kernel, problem, device)


@lru_cache(maxsize=1024)
def _checked(config: Config, kernel: Kernel, problem: Problem, device: Device) -> Choice:
    broken = kernel.violations(config, problem, device)
    if problem.dtype not in kernel.dtypes:
        broken.append(f"{kernel.name} computes in {', '.join(kernel.dtypes)}")
    if not kernel.runs_on(device):
        broken.append(f"{kernel.name} is made for other devices than {device.name}")
    if broken:
        raise ValueError(f"{config.slug} cannot run {problem.slug}: it breaks the rule"
                         f"{'s' * (len(broken) > 1)}: {'; '.join(broken)}")  # fmt: skip
    return Choice(config, "given by the caller")
