"""Measuring in a child process, so that a kernel that crashes, hangs or faults costs one trial and
not the run; and on one device one run at a time.

The parent holds a `Worker` for each device. It sends one `Request` at a time and gets a `Reply`; a
child that dies, is killed, exceeds its time limit or answers with what is no reply is an outcome,
and the next request finds a new child. A child that loses its parent ends by itself.
"""

from __future__ import annotations

import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pymm.backends.base import Compiler
from pymm.core.device import Device
from pymm.core.errors import Busy, Error
from pymm.core.files import Workplace, locked
from pymm.core.paths import state_directory
from pymm.core.problem import Problem
from pymm.measure.channel import Channel, Garbled
from pymm.measure.worker_process import Hello, Reply, Request, Site, serve

#: Seconds for a child to import NumPy and open its device (a cold CUDA context takes up to 10).
START_SECONDS = 60.0

#: Seconds that a request may take besides the work: loading and, should the compile-ahead have
#: missed it, compiling.
LOAD_SECONDS = 20.0

#: Slowest copies and host checks to allow for (bytes per second) and slowest kernel (part of the
#: device's peak; a naive kernel reaches a hundredth).
SLOWEST_COPY = 50e6
SLOWEST_KERNEL = 1e-3

#: Seconds for a quick request besides the runs, the import of libraries by a new child and the
#: choice among cuBLASLt's algorithms included, and the slowest kernel that is measured so.
QUICK_SECONDS, SLOW_KERNEL = 35.0, 1e-2

#: Runs of the kernel within one request: verification, first run, as many repeats as fit.
RUNS = 10

#: Peak to assume where a device states none: the simulator runs 10^7 to 10^8 operations a second.
UNKNOWN_PEAK = 1e10

#: A worker that cannot even start is tried so often before the run gives up.
STARTS = 3

#: Seconds between two attempts to lock devices.
POLL = 0.05


class WorkerFailed(Error, RuntimeError):
    """The child could not open its device; the message is the child's own."""


def time_limit(
    problem: Problem, device: Device, best_seconds: float | None = None, quick: bool = False
) -> float:
    """Seconds after which a request about `problem` is given up. Of a `quick` one on a GPU nothing
    goes through the host, so that a kernel that hangs costs less.
    """
    peak = device.peak_flops.get(problem.dtype) or UNKNOWN_PEAK
    if quick and device.is_gpu:
        return QUICK_SECONDS + RUNS * problem.flops / (peak * SLOW_KERNEL)
    run = problem.flops / (peak * SLOWEST_KERNEL)
    if best_seconds is not None:
        run = min(run, max(100 * best_seconds, 0.1))
    return LOAD_SECONDS + 8 * problem.bytes / SLOWEST_COPY + RUNS * run


class Worker:
    """One child process on one device, replaced whenever it is lost.

    `device`, `compiler` and `no_energy`, why energy cannot be measured, are known once `start` has
    returned. `replaced` counts the children
    that were lost.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        self.device: Device | None = None
        self.compiler: Compiler | None = None
        self.no_energy = ""
        self.replaced = 0
        self.request: Request | None = None
        self._process: Any = None
        self._channel: Channel | None = None
        self._deadline = 0.0
        self._greeted = False
        self._temporary: Any = None
        self._words: Any = None

    def start(self) -> None:
        """Start the child and wait until it has opened its device. Raises `WorkerFailed`."""
        while not self.ready(START_SECONDS):
            pass

    def ready(self, timeout: float = 0.0) -> bool:
        """Whether there is a child that has opened its device; one is started if there is none.
        Waits up to `timeout` seconds for it. Raises `WorkerFailed`.
        """
        if self._process is None:
            self._launch()
        if self._greeted:
            return True
        hello, detail = None, ""
        try:
            hello = self._received(min(timeout, self.seconds_left), Hello)
            if hello is None and self.seconds_left > 0:
                return False
            detail = f"no word within {START_SECONDS:.0f} s" if hello is None else ""
        except Garbled as failure:
            detail = str(failure)
        except (EOFError, OSError):
            detail = self._ending()
        if detail or hello.refusal:
            self.stop()
            said = f"the measuring process did not start: {detail}"
            raise WorkerFailed(said if detail else hello.refusal)
        self.device, self.compiler = hello.device, hello.compiler
        self.no_energy = hello.no_energy
        self._greeted = True
        return True

    def _launch(self) -> None:
        """Start a child, which has `START_SECONDS` to open its device."""
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._channel = Channel(ours)
        self._temporary = Workplace("pymm-worker-")
        self._words = self._temporary.path / "words.log"
        self._words.touch()
        arguments = (theirs, self.site, str(self._words))
        self._process = context.Process(target=serve, args=arguments, daemon=True)
        _start_ignoring_interrupts(self._process)
        theirs.close()
        self._greeted = False
        self._deadline = time.monotonic() + START_SECONDS

    def begin(self, request: Request, limit: float) -> None:
        """Send a request that may take `limit` seconds; starts a child if there is none."""
        self.start()
        self.request = request
        self._deadline = time.monotonic() + limit
        try:
            self._channel.send((request, limit), limit)
        except OSError:
            pass  # the child is gone: `result` will find out and say how

    @property
    def connection(self) -> Channel:
        """What to wait on for the reply."""
        return self._channel

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
            reply = self._received(min(timeout, self.seconds_left), Reply)
            if reply is None and self.seconds_left > 0:
                return None
            if reply is None:
                reply = Reply(outcome="timed_out", detail="exceeded its time limit", lost=True)
        except Garbled as failure:
            reply = Reply(outcome="crashed", detail=f"its answer is {failure}", lost=True)
        except (EOFError, OSError):
            reply = Reply(outcome="crashed", detail=self._ending(), lost=True)
        if reply.lost:
            self.replaced += 1
            self.stop()
        self.request = None
        return reply

    def _received(self, timeout: float, kind: type) -> Any:
        """A message of the child, None without one; `Garbled` if it is not of that kind."""
        message = self._channel.receive(timeout)
        if message is not None and not isinstance(message, kind):
            raise Garbled(f"a {type(message).__name__} instead of a {kind.__name__}")
        return message

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
            self._channel.close()
            self._temporary.close()
            self._process = None

    def _ending(self) -> str:
        """How the child ended, in words."""
        self._process.join(timeout=5)
        code = self._process.exitcode
        how = "it does not answer" if code is None else f"exit status {code}"
        if code is not None and code < 0:
            how = f"killed by {signal.Signals(-code).name}"
        words = self._words.read_text(encoding="utf-8", errors="replace")
        last = words[-300:].strip().splitlines()
        return f"{how}: {last[-1]}" if last else how


def begin(worker: Worker, request: Request, limit: float) -> None:
    """Send a request, with a few tries to start a child if there is none. Raises `WorkerFailed`."""
    for attempt in range(STARTS):
        try:
            return worker.begin(request, limit)
        except WorkerFailed:
            if attempt == STARTS - 1:
                raise
    return None


@contextmanager
def devices_alone(
    devices: Sequence[Device], give_up: Callable[[], bool], say: Callable[[str], object]
) -> Iterator[None]:
    """Lock `devices` for a `with` against every other run of this user that measures, waiting for
    those, which `say` is told once. Raises `Busy` when `give_up()` is true before they are free.
    Devices whose times are not real are not locked.
    """
    real = [device for device in devices if device.times_are_real]
    names = {f"{d.kernel_backend}-{d.bus or d.index}".replace(":", "-") for d in real}
    if not names:
        yield
        return
    folder = state_directory() / "devices"
    folder.mkdir(mode=0o700, exist_ok=True)
    waiting = False
    with ExitStack() as held:
        while not _take(held, [folder / f"{name}.lock" for name in sorted(names)]):
            if not waiting:
                say("Another run of pymm measures on this device: waiting for it.")
            waiting = True
            if give_up():
                raise Busy("another run measured on this device")
            time.sleep(POLL)
        yield


def _take(held: ExitStack, locks: Sequence[Path]) -> bool:
    """Take all `locks` into `held`, or none if one of them is taken."""
    with ExitStack() as taken:
        try:
            for lock in locks:
                taken.enter_context(locked(lock, seconds=0))
        except TimeoutError:
            return False
        held.push(taken.pop_all())
        return True


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
