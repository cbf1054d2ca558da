"""Which configuration a call gets: the caller's own, else the selected one, which is kept until the
files of tuned configurations change.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pymm.backends.base import Backend
from pymm.core.device import Device
from pymm.core.paths import config_directory, frozen_from_start
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, parse_slug
from pymm.selection.records import Environment
from pymm.selection.select import Choice, select, select_thriftiest, tuned_files
from pymm.selection.store import energy_files, record_files

LOG = logging.getLogger("pymm")

#: Seconds between two looks at the files of tuned configurations, two calls of `stat` each: what
#: another process has tuned is used after that long at most.
LOOK_AGAIN = 1.0

#: Choices that are kept. When there are more they are all dropped, and selected again when needed.
MAX_CHOSEN = 8192


def choose(
    backend: Backend,
    problem: Problem,
    kernel: str | int | None = None,
    config: Any = None,
    known: Snapshot | None = None,
    prefer: str = "time",
) -> Choice:
    """The configuration for `problem` and the reason: `config` if given (a `Config`, a slug, or a
    dict of parameters for `kernel`), else what `select` finds, of `kernel` if that is given; with
    `prefer` "energy" what `select_thriftiest` finds before that. The choice belongs to the
    generation of `known`, by default the present one.

    `ValueError` for an unknown kernel, and for a configuration that breaks rules: the message names
    them.
    """
    if config is not None:
        return _own(config, kernel, problem, backend.device)
    known = snapshot() if known is None else known
    kernel = kernel_key(kernel, backend.device)
    key = (backend, problem, kernel, prefer)
    found = known.chosen.get(key)
    if found is None:
        _watch.add(backend.device)
        environment = Environment.of(backend.device, backend.toolchain)
        given = problem, backend.device, tuned_directory(), environment, kernel
        thrifty = select_thriftiest(*given) if prefer == "energy" else None
        found = thrifty or select(*given)
        LOG.debug("%s: %s, %s", problem.slug, found.config.slug, found.reason)
        if len(known.chosen) >= MAX_CHOSEN:
            known.chosen.clear()
        known.chosen[key] = found
    return found


def kernel_key(kernel: Any, device: Device) -> str | int | None:
    """The caller's kernel as a part of a key. `ValueError` for what names none."""
    if kernel is None or isinstance(kernel, str | int):
        return kernel
    return find_kernel(kernel, device.kernel_backend).name


def reload() -> None:
    """Drop all choices, so that the next call reads the tuned configurations again. A process
    notices changed files by itself within a second; call this where that is too long, and in a
    frozen process, which then stays frozen to the files as they are now.
    """
    _watch.forget()


def forget_choices() -> None:
    """Have calls prepared anew, with the tuned configurations as they were."""
    _watch.renew()


def freeze(frozen: bool = True) -> None:
    """Use the tuned configurations as they are now, whatever happens to their files later: the same
    product then gives the same bits until the process ends. A file that this process has not read
    yet counts as it is when it is first read. `freeze(False)` goes back to noticing changes. With
    PYMM_FREEZE=1 in the environment a process is frozen from the start.
    """
    _watch.freeze(frozen)


def tuned_directory() -> Path | None:
    """The folder of the user's files; None where none can be made, as in a read-only home."""
    try:
        return config_directory()
    except OSError:
        return None


def generation() -> int:
    """A number that grows when the tuned configurations change. Looks at the files at most once in
    `LOOK_AGAIN` seconds.
    """
    if time.monotonic() >= _watch.next_look:
        _watch.look()
    return _watch.known.generation


def listen(listener: Callable[[int, float], None]) -> None:
    """Have `listener` called with the present generation and the time (of `time.monotonic`) from
    which the files are looked at again: now, and whenever one of them changes.
    """
    _watch.listeners.append(listener)
    listener(*next_look())


def next_look() -> tuple[int, float]:
    """The present generation, and when the files are looked at again."""
    return _watch.known.generation, _watch.next_look


def snapshot() -> Snapshot:
    """The choices of the present generation."""
    generation()
    return _watch.known


@dataclass(frozen=True)
class Snapshot:
    """The choices made since the files last changed. A change makes a new snapshot. A thread that
    still uses the old one may go on; the choices that it adds are dropped with it.
    """

    generation: int = 0
    #: The files of each device as they were when last looked at. Never changed in place.
    seen: Mapping[Device, tuple] = field(default_factory=dict)
    chosen: dict[tuple, Choice] = field(default_factory=dict)
    #: For types that name a plain one: the problem that is computed, and why.
    decided: dict[tuple, tuple[Problem, str]] = field(default_factory=dict)


class _Watch:
    """Watches the files of tuned configurations for changes. `known` is replaced as a whole, by one
    thread at a time, and read by all.
    """

    def __init__(self) -> None:
        self.known = Snapshot()
        self.next_look = 0.0
        self.frozen = False
        #: Functions that are told the generation and the time of the next look when either changes.
        self.listeners: list[Callable[[int, float], None]] = []
        self._turn = threading.RLock()

    def add(self, device: Device) -> None:
        """Watch the files of `device`, too, from now on."""
        with self._turn:
            if device not in self.known.seen:
                seen = {**self.known.seen, device: _stamps(device)}
                self.known = replace(self.known, seen=seen)

    def look(self) -> None:
        """Drop all choices if a file changed. One thread looks; the others do not wait for it."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            if not self.frozen:
                now = {device: _stamps(device) for device in self.known.seen}
                if now != self.known.seen:
                    self.known = Snapshot(self.known.generation + 1, now)
                self.next_look = time.monotonic() + LOOK_AGAIN
            self._tell()
        finally:
            self._turn.release()

    def forget(self) -> None:
        with self._turn:
            tuned_files.freeze(self.frozen)
            self.known = Snapshot(self.known.generation + 1)
            self.next_look = math.inf if self.frozen else 0.0
            self._tell()

    def renew(self) -> None:
        with self._turn:
            self.known = Snapshot(self.known.generation + 1, self.known.seen)
            self._tell()

    def freeze(self, frozen: bool) -> None:
        with self._turn:
            if frozen != self.frozen:
                self.look()
                self.frozen = frozen
                tuned_files.freeze(frozen)
                for device in self.known.seen if frozen else ():
                    tuned_files.readable(device, tuned_directory())
                    tuned_files.read_all(device, energy_files(device, tuned_directory()))
                self.next_look = math.inf if frozen else 0.0
                self._tell()

    def _tell(self) -> None:
        for listener in self.listeners:
            listener(self.known.generation, self.next_look)

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held it."""
        self._turn = threading.RLock()


_watch = _Watch()
if frozen_from_start():
    freeze()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_watch.renew_lock)


def _stamps(device: Device) -> tuple:
    directory = tuned_directory()
    files = *record_files(device, directory), *energy_files(device, directory)
    return tuple(_stamp(path) for path in files)


def _stamp(path: Any) -> tuple:
    try:
        status = path.stat()
    except OSError:
        return (str(path),)
    return (str(path), status.st_mtime_ns, status.st_size, status.st_ino)


def _own(config: Any, kernel: str | int | None, problem: Problem, device: Device) -> Choice:
    """The caller's configuration, if it obeys the rules."""
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
    if config.forced:
        broken.append("experiments alone force macros (pymm.bench)")
    if broken:
        raise ValueError(
            f"{config.slug} cannot run {problem.slug}: it breaks the rule"
            f"{'s' * (len(broken) > 1)}: {'; '.join(broken)}"
        )
    return Choice(config, "given by the caller")
