"""Kernels compiled ahead of their use, by a bounded pool of processes that never open a device."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import threading
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from pymm.backends import open_device
from pymm.backends.base import Backend, Compiler
from pymm.console import spared
from pymm.core.binaries import tidy
from pymm.core.device import Device
from pymm.core.errors import CompilerKilled, CompileTimeout
from pymm.core.files import Workplace
from pymm.core.paths import cache_directory, config_directory, state_directory
from pymm.kernels.source import Source

__all__ = [
    "Precompiler",
    "cache_directory",
    "compilers_beside",
    "config_directory",
    "settle_beside",
    "state_directory",
]

#: More compilers at once than this gain nothing: the timing loop takes a configuration at a time.
MOST_WORKERS = 8

#: Unless many configurations wait to be measured, as in a search or a comparison of hundreds: so
#: many for each device that measures.
MOST_BESIDE = 16

#: Niceness added to the processes that work in parallel with this one.
GIVES_WAY = 10

#: Seconds after which a source is given up. On average nvcc takes 3 (fifteen at a time).
COMPILE_SECONDS = 120.0


class Precompiler:
    """A pool that puts binaries into the cache: `with Precompiler("cuda") as pool:
    pool.submit(source).result()`.

    `spec` is what `open_device` takes, an open backend, or a backend's `compiler` (then no device
    is opened). The processes are spawned, never see Ctrl-C (leaving the `with` ends them), keep
    their temporary files in a directory of their own, and end when this process does, their
    compilers with them. `workers` defaults to the cores that this process may use. A source that
    takes longer than `limit` seconds is a `CompileTimeout`.
    """

    def __init__(
        self,
        spec: str | int | None | Backend | Compiler = None,
        workers: int | None = None,
        limit: float = COMPILE_SECONDS,
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: a pool has at least one")
        if isinstance(spec, Compiler):
            self._compiler = spec
        else:
            self._compiler = (spec if isinstance(spec, Backend) else open_device(spec)).compiler
        self._workers = workers or min(_cores(), MOST_WORKERS)
        self._limit = limit
        if cache := getattr(self._compiler, "cache", None):
            tidy(cache)
        self._temporary = Workplace("pymm-compile-")
        self._lock = threading.RLock()
        self._pending = 0
        self._work: dict[str, Future] = {}
        self._waiting: dict[str, int] = {}
        self._ending, self._end = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self._pool = self._new_pool()

    @property
    def workers(self) -> int:
        """How many processes compile at a time, at most."""
        return self._workers

    @property
    def pending(self) -> int:
        """How many submitted sources are not compiled yet."""
        return self._pending

    def submit(self, source: Source) -> Future[None]:
        """Have `source` compiled into the cache. The future's `result()` raises `CompileFailed`,
        and `OSError` for a full disk.

        A source that was submitted before is not compiled again. Cancelling the future takes the
        source out of the queue if it has not begun and nobody else waits for it.
        """
        outcome: Future[None] = Future()
        with self._lock:
            work = self._work.get(source.key)
            if work is None or work.cancelled():
                work = self._begin(source)
                self._waiting[source.key] = 0
            self._waiting[source.key] += 1
        outcome.add_done_callback(lambda told: self._leave(told, source.key, work))
        work.add_done_callback(lambda done: self._settle(done, outcome))
        return outcome

    def _begin(self, source: Source) -> Future:
        task = (_build, self._compiler, source, self._limit)
        with spared():  # the pool starts its processes when they are needed
            try:
                work = self._pool.submit(*task)
            except BrokenProcessPool:
                self._pool.shutdown(wait=False)
                self._pool = self._new_pool()
                work = self._pool.submit(*task)
        self._work[source.key] = work
        self._pending += 1
        work.add_done_callback(lambda done: self._count(done, source.key))
        return work

    def _count(self, done: Future, key: str) -> None:
        with self._lock:
            self._pending -= 1
            if not done.cancelled() and done.exception() and self._work.get(key) is done:
                del self._work[key]  # so that a second try is one

    def _leave(self, told: Future[None], key: str, work: Future) -> None:
        with self._lock:
            self._waiting[key] -= 1
            nobody = told.cancelled() and self._waiting[key] == 0
        if nobody:
            work.cancel()

    def _settle(self, done: Future, outcome: Future[None]) -> None:
        if not outcome.set_running_or_notify_cancel():
            return
        error = CancelledError() if done.cancelled() else done.exception()
        if isinstance(error, BrokenProcessPool):
            error = CompilerKilled(
                "a compiling process was killed, most often because memory ran out: "
                f"try fewer workers than {self._workers}"
            )
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(None)

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(
            self._workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_settle_in,
            initargs=(str(self._temporary.path), self._ending),
        )

    def close(self) -> None:
        """Drop what has not begun, break off what has, end the processes."""
        self._end.send_bytes(b"closed")  # every process sees it, for none takes it
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._end.close()
        self._ending.close()
        self._temporary.close()

    def __enter__(self) -> Precompiler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def compilers_beside(device: Device, devices: int = 1) -> int:
    """How many processes may compile while so many devices measure: a core is left to this process
    and to each that measures. On a CPU nothing is measured meanwhile.
    """
    taken = 0 if device.shares_host_cores else 1 + devices
    return max(1, min(MOST_BESIDE * devices, _cores() - taken))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# In a process of the pool


@dataclass
class _Work:
    """What this process of a pool is doing: whether it compiles, and whether the pool is closed."""

    busy: bool = False
    closed: bool = False


_work = _Work()

#: Seconds that a process has to break off its compilation once the pool is closed.
BREAK_OFF = 5.0


def settle_beside(ending: Connection | None = None) -> None:
    """What a process does first that works in parallel with the one that measures: it lowers its
    priority, leads its own process group, and ends with its parent, and its own children with it.
    """
    os.nice(GIVES_WAY)
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel, ending), daemon=True).start()


def _settle_in(temporary: str, ending: Connection) -> None:
    """The same for a process of the pool; its group are its compilers."""
    signal.signal(signal.SIGALRM, _stop_compiling)
    tempfile.tempdir = os.environ["TMPDIR"] = temporary
    settle_beside(ending)


def _follow(parent: int, ending: Connection | None) -> None:
    """End this process and its compilers when its parent is gone, however that came; break off
    what it compiles when the pool is closed.
    """
    if parent not in wait([parent, *([ending] if ending else [])]):
        _work.closed = True
        os.kill(os.getpid(), signal.SIGALRM)
        wait([parent], BREAK_OFF)
    os.killpg(0, signal.SIGKILL)


def _stop_compiling(number: int, frame: Any) -> None:
    """End the compiler and what it has started, and raise where it is waited for."""
    if _work.busy:
        _work.busy = False
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise CompileTimeout


def _build(compiler: Compiler, source: Source, limit: float) -> None:
    try:
        _work.busy = True
        if _work.closed:
            raise CompileTimeout
        signal.setitimer(signal.ITIMER_REAL, limit)
        compiler.build(source)
    except CompileTimeout:
        words = f"{compiler.toolchain} took more than {limit:g} s for {source.config.slug}"
        raise CompileTimeout(words) from None
    finally:
        _work.busy = False
        signal.setitimer(signal.ITIMER_REAL, 0)
