"""The child process that measures: opens a device, answers requests, ends with its parent."""

from __future__ import annotations

import importlib
import math
import multiprocessing
import os
import resource
import signal
import threading
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from pymm.backends.base import Backend, Compiler
from pymm.core.device import Device
from pymm.core.errors import NoEnergy
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.kernels.custom import CustomProblem
from pymm.measure.channel import Channel
from pymm.measure.custom import CustomBench
from pymm.measure.libraries import baseline_calls
from pymm.measure.quick_check import OperandPool
from pymm.measure.workbench import Trial, Workbench

#: Part of the machine's memory that a child without a GPU may take.
MEMORY_PART = 0.8


@dataclass(frozen=True)
class Site:
    """Where a child works: the device's name as `open_device` takes it, the folder of compiled
    kernels, the function that opens the device, and modules to import first (they may declare
    further kernels).
    """

    device: str | int | None = None
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
    the baselines if `against_others` (those on request only if `requested`). Any other action is
    the name of a function, `module:name`, that is called with the bench and the request, and finds
    more in `arguments`.

    `quick` takes operands and checks of an `OperandPool`, which cost milliseconds however large the
    product is. A comparison has `rounds` rounds, fewer where `budget` seconds do not suffice, and
    fewer configurations where `checking` seconds do not suffice for the checks before it; what
    these leave, and as much of those after it, is for rounds. With
    `accumulate` C += op(A) op(B) is timed, else C = op(A) op(B). `best` is the configuration of
    `best_seconds`, which what is measured is timed in turn with. With `energy` that is measured of
    what is timed and right, too.
    """

    action: str
    problem: Problem | CustomProblem
    configs: tuple[Config, ...]
    seed: int = 0
    best_seconds: float | None = None
    rounds: int = 15
    against_others: bool = False
    quick: bool = False
    budget: float = math.inf
    requested: tuple[str, ...] = ()
    arguments: tuple = ()
    checking: float = math.inf
    accumulate: bool = False
    best: Config | None = None
    energy: bool = False


@dataclass(frozen=True)
class Reply:
    """What came of it: trials, times of the other libraries by name, or why there are none
    (`outcome` is `crashed` or `timed_out`, `detail` the reason). `deviations` of a quick
    comparison: root mean square of C - C64 relative to that of C64, by slug and library. `void`:
    samples of a comparison taken again because of host launch delay, by slug and library.
    """

    trials: tuple[Trial, ...] = ()
    times: dict[str, list[float]] = field(default_factory=dict)
    outcome: str = "ok"
    detail: str = ""
    lost: bool = False
    deviations: dict[str, float] = field(default_factory=dict)
    void: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Hello:
    """A child's first words: what it works on, and the compiler for it. `refusal` if it cannot,
    `no_energy` why it cannot measure energy ("" if it can).
    """

    device: Device | None
    compiler: Compiler | None = None
    refusal: str = ""
    no_energy: str = ""


def serve(connection: Connection, site: Site, words: str) -> None:
    """The life of the child: say hello, then answer until the parent goes. `words` names the file
    that what it writes to standard error goes to.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.setpgid(0, 0)  # else a signal to the parent's group would look like a crash of the kernel
    with open(words, "wb") as log:
        os.dup2(log.fileno(), 2)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    channel = Channel(connection)
    try:
        backend = site.open()
    except Exception as refusal:  # whatever it is, the parent is to say it
        channel.send(Hello(None, refusal=str(refusal) or repr(refusal)))
        return
    if not backend.device.is_gpu:
        _limit_memory()  # a CUDA context reserves more addresses than any such limit
    channel.send(Hello(backend.device, backend.compiler, no_energy=_why_no_energy(backend)))
    bench: Workbench | None = None
    pool = OperandPool(backend)
    while True:
        try:
            request, limit = channel.receive()
        except EOFError:
            return
        _end_after(2 * limit + 5)
        if bench is not None and _differs(bench, request):
            bench = None  # its memory goes before the next one's is taken
        reply, bench = _answer(backend, bench, request, pool)
        _end_after(0)
        channel.send(reply)


def _why_no_energy(backend: Backend) -> str:
    try:
        backend.energy()
    except NoEnergy as missing:
        return str(missing)
    return ""


def _differs(bench: Workbench, request: Request) -> bool:
    known = (bench.problem, bench.seed, bench.quick is not None, bench.accumulate)
    return known != (request.problem, request.seed, request.quick, request.accumulate)


def _answer(
    backend: Backend, bench: Workbench | None, request: Request, pool: OperandPool
) -> tuple[Reply, Workbench | None]:
    try:
        if bench is None and isinstance(request.problem, CustomProblem):
            bench = CustomBench(backend, request.problem, request.seed)
        elif bench is None:
            adds = request.accumulate
            quick = pool.verifier(request.problem, adds) if request.quick else None
            bench = Workbench(backend, request.problem, request.seed, quick, adds)
    except MemoryError as failure:
        detail = str(failure) or "out of memory"
        failed = [
            Trial(request.problem, config, "launch_failed", detail=detail)
            for config in request.configs
        ]
        return Reply(tuple(failed), detail=detail), None
    bench.counts_energy = request.energy
    if request.action == "measure":
        trial = bench.measure(request.configs[0], request.best_seconds, request.best)
        return Reply((trial,), lost=bench.lost), bench
    if request.action == "compare":
        return compared(bench, request), bench
    module, _, function = request.action.partition(":")
    return getattr(importlib.import_module(module), function)(bench, request), bench


def compared(bench: Workbench, request: Request) -> Reply:
    """The configurations of a request in turn, with the other libraries if it wants them."""
    if request.against_others:
        operands = (request.problem, bench.a, bench.b, bench.c)
        more = request.requested, request.accumulate
        bench.calls = baseline_calls(bench.backend, *operands, *more)
    trials = bench.compare(request.configs, request.rounds, request.budget, request.checking)
    times = {name: bench.times[name] for name in bench.calls if name in bench.times}
    deviations = bench.deviations if request.quick else {}
    return Reply(tuple(trials), times, "ok", "", bench.lost, deviations, dict(bench.void))


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
