"""Kernels compiled ahead of their use, by a bounded pool of processes that never open a device."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from pathlib import Path

from pymm.backends import open_device
from pymm.backends.base import Backend, CompileFailed, Compiler
from pymm.backends.directories import cache_directory, config_directory, state_directory
from pymm.device import Device
from pymm.source import Source

__all__ = [
    "GIVES_WAY", "Precompiler", "cache_directory", "compilers_beside", "config_directory",
    "state_directory",
]  # fmt: skip

#: More compilers at once than this gain nothing: the timing loop takes a configuration at a time.
MOST_WORKERS = 8

#: Unless many configurations wait to be measured, as in a search or a comparison of hundreds.
MOST_BESIDE = 16

#: How much nicer than this one the processes are that work beside it.
GIVES_WAY = 10


class Precompiler:
    """A pool that puts binaries into the cache: `with Precompiler("cuda") as pool:
    pool.submit(source).result()`.

    `spec` is what `open_device` takes, an open backend, or a backend's `compiler` (then no device
    is opened). The processes are spawned, ignore
    Ctrl-C (leaving the `with` ends them), keep their temporary files in a directory of their own,
    and end when this process does. `workers` defaults to the cores that this process may use.
    """

    def __init__(
        self, spec: str | int | None | Backend | Compiler = None, workers: int | None = None
    ) -> None:
        if workers is not None and workers < 1:
            raise ValueError(f"workers={workers}: a pool has at least one")
        if isinstance(spec, Compiler):
            self._compiler = spec
        else:
            self._compiler = (spec if isinstance(spec, Backend) else open_device(spec)).compiler
        self._workers = workers or min(_cores(), MOST_WORKERS)
        self._temporary = Path(tempfile.mkdtemp(prefix="pymm-compile-"))
        self._lock = threading.RLock()
        self._pending = 0
        self._work: dict[str, Future] = {}
        self._waiting: dict[str, int] = {}
        self._pool = self._new_pool()

    @property
    def pending(self) -> int:
        """How many submitted sources are not compiled yet."""
        return self._pending

    def submit(self, source: Source) -> Future[None]:
        """Have `source` compiled into the cache. The future's `result()` raises `CompileFailed`.

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
        try:
            work = self._pool.submit(_build, self._compiler, source)
        except BrokenProcessPool:
            self._pool.shutdown(wait=False)
            self._pool = self._new_pool()
            work = self._pool.submit(_build, self._compiler, source)
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
            error = CompileFailed(
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
            initargs=(str(self._temporary),),
        )

    def close(self) -> None:
        """Drop what has not begun, wait for what has, end the processes."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Precompiler:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def compilers_beside(device: Device) -> int:
    """How many processes may compile while this one measures: two cores are left to it and to the
    one that measures. On a CPU nothing is measured meanwhile.
    """
    return max(1, min(MOST_BESIDE, _cores() - 2 * (device.kind != "cpu")))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _settle_in(temporary: str) -> None:
    """What a process of the pool does first. It gives way to the process that measures."""
    os.nice(GIVES_WAY)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tempfile.tempdir = os.environ["TMPDIR"] = temporary
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int) -> None:
    """End this process when its parent is gone, however that came."""
    wait([sentinel])
    os._exit(1)


def _build(compiler: Compiler, source: Source) -> None:
    compiler.build(source)
