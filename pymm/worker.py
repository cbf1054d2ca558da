"""Measuring in a child process, so that a kernel that crashes, hangs or faults costs one trial and
not the run.

The parent holds a `Worker` for each device. It sends one `Request` at a time and gets a `Reply`; a
child that dies, is killed or exceeds its time limit is an outcome, and the next request finds a
new child. A child that loses its parent ends by itself.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import resource
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from pymm.backends.base import Backend
from pymm.device import Device
from pymm.kernels import Config
from pymm.measure import Trial, Workbench
from pymm.opponents import opponents
from pymm.problem import Problem

#: Seconds for a child to import NumPy and open its device (a cold CUDA context takes up to 10).
START_SECONDS = 60.0

#: Seconds that a request may take besides the work: loading and, should the compile-ahead have
#: missed it, compiling.
LOAD_SECONDS = 20.0

#: Slowest copies and host checks to allow for (bytes per second) and slowest kernel (part of the
#: device's peak; a naive kernel reaches a hundredth).
SLOWEST_COPY = 50e6
SLOWEST_KERNEL = 1e-3

#: Runs of the kernel within one request: verification, first run, as many repeats as fit.
RUNS = 10

#: Peak to assume where a device states none: the simulator runs some 10^8 operations a second.
UNKNOWN_PEAK = 1e8

#: Part of the machine's memory that a child without a GPU may take.
MEMORY_PART = 0.8


@dataclass(frozen=True)
class Site:
    """Where a child works: the device's name as `open_device` takes it, the folder of compiled
    kernels, the function that opens the device, and modules to import first (they may declare
    further kernels).
    """

    device: str | None = None
    cache: Path | None = None
    opener: str = "pymm.backends:open_device"
    modules: tuple[str, ...] = ()

    def open(self) -> Backend:
        """The open device. Raises `NoDevice`."""
        for name in self.modules:
            importlib.import_module(name)
        module, _, function = self.opener.partition(":")
        return getattr(importlib.import_module(module), function)(self.device, self.cache)


@dataclass(frozen=True)
class Request:
    """What a child is asked: to `measure` one configuration or to `compare` several, in turn with
    the other libraries if `against_others`.
    """

    action: str
    problem: Problem
    configs: tuple[Config, ...]
    seed: int = 0
    best_seconds: float | None = None
    rounds: int = 15
    against_others: bool = False


@dataclass(frozen=True)
class Reply:
    """What came of it: trials, times of the other libraries by name, or why there are none
    (`outcome` is `crashed` or `timed_out`, `detail` the reason).
    """

    trials: tuple[Trial, ...] = ()
    times: dict[str, list[float]] = field(default_factory=dict)
    outcome: str = "ok"
    detail: str = ""
    lost: bool = False


@dataclass(frozen=True)
class Hello:
    """A child's first words: what it works on, with which compiler. `refusal` if it cannot."""

    device: Device | None
    toolchain: str = ""
    refusal: str = ""


class WorkerFailed(RuntimeError):
    """The child could not open its device; the message is the child's own."""


def time_limit(problem: Problem, device: Device, best_seconds: float | None = None) -> float:
    """Seconds after which a request about `problem` is given up."""
    peak = device.peak_flops.get(problem.dtype) or UNKNOWN_PEAK
    run = problem.flops / (peak * SLOWEST_KERNEL)
    if best_seconds is not None:
        run = min(run, max(100 * best_seconds, 0.1))
    return LOAD_SECONDS + 8 * problem.bytes / SLOWEST_COPY + RUNS * run


class Worker:
    """One child process on one device, replaced whenever it is lost.

    `device` and `toolchain` are known once `start` has returned. `replaced` counts the children
    that were lost.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.device: Device | None = None
        self.toolchain = ""
        self.replaced = 0
        self.request: Request | None = None
        self._process: Any = None
        self._connection: Connection | None = None
        self._deadline = 0.0
        self._words: Any = None

    def start(self) -> None:
        """Start the child and wait until it has opened its device. Raises `WorkerFailed`."""
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._words = tempfile.NamedTemporaryFile(prefix="pymm-worker-", suffix=".log")
        arguments = (theirs, self.site, self._words.name)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        _start_ignoring_interrupts(self._process)
        theirs.close()
        try:
            if not self._connection.poll(START_SECONDS):
                raise EOFError
            hello = self._connection.recv()
        except (EOFError, OSError):
            detail = self._ending()
            self.stop()
            raise WorkerFailed(f"the measuring process did not start: {detail}") from None
        if hello.refusal:
            self.stop()
            raise WorkerFailed(hello.refusal)
        self.device, self.toolchain = hello.device, hello.toolchain

    def begin(self, request: Request, limit: float) -> None:
        """Send a request that may take `limit` seconds; starts a child if there is none."""
        if self._process is None:
            self.start()
        self.request = request
        self._deadline = time.monotonic() + limit
        try:
            self._connection.send((request, limit))
        except OSError:
            pass  # the child is gone: `result` will find out and say how

    @property
    def connection(self) -> Connection:
        """What to wait on for the reply."""
        return self._connection

    @property
    def pid(self) -> int | None:
        """Process id of the child, None if there is none."""
        return self._process.pid if self._process is not None else None

    @property
    def seconds_left(self) -> float:
        """Seconds until the request is given up."""
        return max(0.0, self._deadline - time.monotonic())

    def result(self, timeout: float = 0.0) -> Reply | None:
        """The reply to the request; None if it is still under way after `timeout` seconds."""
        try:
            if self._connection.poll(min(timeout, self.seconds_left)):
                reply = self._connection.recv()
            elif self.seconds_left > 0:
                return None
            else:
                reply = Reply(outcome="timed_out", detail="exceeded its time limit", lost=True)
        except (EOFError, OSError):
            reply = Reply(outcome="crashed", detail=self._ending(), lost=True)
        if reply.lost:
            self.replaced += 1
            self.stop()
        self.request = None
        return reply

    def ask(self, request: Request, limit: float) -> Reply:
        """Send a request and wait for its reply."""
        self.begin(request, limit)
        while (reply := self.result(timeout=limit)) is None:
            pass
        return reply

    def stop(self) -> None:
        """End the child at once, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process.close()
            self._connection.close()
            self._words.close()
            self._process = None

    def _ending(self) -> str:
        """How the child ended, in words."""
        self._process.join(timeout=5)
        code = self._process.exitcode
        how = "it does not answer" if code is None else f"exit status {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        with open(self._words.name, encoding="utf-8", errors="replace") as words:
            last = words.read()[-300:].strip().splitlines()
        return f"{how}: {last[-1]}" if last else how


def _start_ignoring_interrupts(process: Any) -> None:
    """Start a process that never sees Ctrl-C: the parent decides what an interrupt ends."""
    if threading.current_thread() is not threading.main_thread():
        process.start()
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)


# The child


def _serve(connection: Connection, site: Site, words: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(words, "wb") as log:
        os.dup2(log.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        backend = site.open()
    except Exception as refusal:  # whatever it is, the parent is to say it
        connection.send(Hello(None, refusal=str(refusal) or repr(refusal)))
        return
    if backend.device.kind != "cuda":
        _limit_memory()  # a CUDA context reserves more addresses than any such limit
    connection.send(Hello(backend.device, backend.toolchain))
    bench: Workbench | None = None
    while True:
        try:
            request, limit = connection.recv()
        except EOFError:
            return
        _end_after(2 * limit + 5)
        if bench is None or (bench.problem, bench.seed) != (request.problem, request.seed):
            bench = None  # its memory goes before the next one's is taken
        reply, bench = _answer(backend, bench, request)
        _end_after(0)
        connection.send(reply)


def _answer(
    backend: Backend, bench: Workbench | None, request: Request
) -> tuple[Reply, Workbench | None]:
    try:
        bench = bench or Workbench(backend, request.problem, request.seed)
    except MemoryError as failure:
        detail = str(failure) or "out of memory"
        trials = (Trial(request.problem, c, "launch_failed", detail=detail) for c in request.configs)
        return Reply(tuple(trials), detail=detail), None
    if request.action == "measure":
        trials = [bench.measure(request.configs[0], request.best_seconds)]
    else:
        if request.against_others:
            bench.calls = opponents(backend, request.problem, bench.a, bench.b, bench.c)
        trials = bench.compare(request.configs, request.rounds)
    times = {name: bench.times[name] for name in bench.calls if name in bench.times}
    return Reply(tuple(trials), times, lost=bench.lost), bench


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def _end_after(seconds: float) -> None:
    """Let the kernel end this process after some seconds (0: never), even while a call that holds
    the interpreter never returns.
    """
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def _limit_memory() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = int(total * MEMORY_PART)
    if hard != resource.RLIM_INFINITY:
        soft = min(soft, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
