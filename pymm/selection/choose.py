"""Which configuration a call gets: the caller's own, else what the store selects, remembered until
the store changes.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pymm.backends.base import Backend
from pymm.core.device import Device
from pymm.core.paths import config_directory, frozen_from_start
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, parse_slug
from pymm.selection.records import Environment, StoreError
from pymm.selection.select import Choice, select
from pymm.selection.store import keep_files, load, record_files

#: Seconds after which the files of tuned configurations are looked at again: two calls of `stat`
#: a second, and what another process has tuned is used within one.
LOOK_AGAIN = 1.0

#: Choices kept; a program with more problems than this pays for selecting again.
MAX_CHOSEN = 8192


def choose(
    backend: Backend,
    problem: Problem,
    kernel: str | int | None = None,
    config: Any = None,
    known: Snapshot | None = None,
) -> Choice:
    """The configuration for `problem` and the reason: `config` if given (a `Config`, a slug, or a
    dict of parameters for `kernel`), else what `store` has, of `kernel` if that is given. It counts
    as chosen in the generation of `known`, by default the present one.

    `ValueError` for an unknown kernel, and with the rules' own sentences for a configuration that
    breaks them.
    """
    if config is not None:
        return _own(config, kernel, problem, backend.device)
    known = snapshot() if known is None else known
    if kernel is not None and not isinstance(kernel, str | int):
        kernel = find_kernel(kernel, backend.device.kernel_backend).name
    key = (backend, problem, kernel)
    found = known.chosen.get(key)
    if found is None:
        _watch.add(backend.device)
        environment = Environment.of(backend.device, backend.toolchain)
        found = select(problem, backend.device, tuned_directory(), environment, kernel)
        if len(known.chosen) >= MAX_CHOSEN:
            known.chosen.clear()
        known.chosen[key] = found
    return found


def reload() -> None:
    """Forget all choices, so that the next call looks at the tuned configurations afresh. Needed
    only where a second is too long, since changed files are noticed by themselves, and in a frozen
    process: it stays frozen, to the files as they are now.
    """
    _watch.forget()


def freeze(frozen: bool = True) -> None:
    """Keep the configurations of this process: files of tuned configurations that change from now
    on change nothing here, so that the same product gives the same bits until the process ends.
    A file that this process has not read yet counts as it is when it is first read.
    `freeze(False)` goes back to noticing changes. With PYMM_FREEZE=1 in the environment a process
    is frozen from the start.
    """
    _watch.freeze(frozen)


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
    return _watch.known.generation


def snapshot() -> Snapshot:
    """The choices of the present generation."""
    generation()
    return _watch.known


@dataclass(frozen=True)
class Snapshot:
    """The choices made since the files last changed. A change makes a new snapshot: a thread that
    has begun with this one may continue with it, and what it adds is dropped with it.
    """

    generation: int = 0
    #: The files of each device as they were when last looked at. Never changed in place.
    seen: Mapping[Device, tuple] = field(default_factory=dict)
    chosen: dict[tuple, Choice] = field(default_factory=dict)


class _Watch:
    """The files of tuned configurations. `known` is replaced as a whole, by one thread at a time,
    and read by any.
    """

    def __init__(self) -> None:
        self.known = Snapshot()
        self.next_look = 0.0
        self.frozen = False
        self._turn = threading.RLock()

    def add(self, device: Device) -> None:
        """Look at the files of `device` too from now on."""
        with self._turn:
            if device not in self.known.seen:
                seen = {**self.known.seen, device: _stamps(device)}
                self.known = replace(self.known, seen=seen)

    def look(self) -> None:
        """Forget all choices if a file changed. One thread looks, the others do not wait for it."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if not self.frozen:
                now = {device: _stamps(device) for device in self.known.seen}
                if now != self.known.seen:
                    self.known = Snapshot(self.known.generation + 1, now)
                self.next_look = time.monotonic() + LOOK_AGAIN
        finally:
            self._turn.release()

    def forget(self) -> None:
        with self._turn:
            keep_files(self.frozen)
            self.known = Snapshot(self.known.generation + 1)
            self.next_look = math.inf if self.frozen else 0.0

    def freeze(self, frozen: bool) -> None:
        with self._turn:
            if frozen != self.frozen:
                self.look()
                self.frozen = frozen
                keep_files(frozen)
                for device in self.known.seen if frozen else ():
                    with suppress(StoreError):
                        load(device, tuned_directory())
                self.next_look = math.inf if frozen else 0.0

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held it."""
        self._turn = threading.RLock()


_watch = _Watch()
if frozen_from_start():
    freeze()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.renew_lock)


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
    backend = device.kernel_backend
    wanted = None if kernel is None else find_kernel(kernel, backend)
    if isinstance(config, Mapping):
        if wanted is None:
            raise ValueError(
                f"config={dict(config)} needs kernel=, the kernel whose parameters these are"
            )
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
        raise ValueError(
            f"{config.slug} cannot run {problem.slug}: it breaks the rule"
            f"{'s' * (len(broken) > 1)}: {'; '.join(broken)}"
        )
    return Choice(config, "given by the caller")
