"""What the benchmarks of kernels, classes and experiments share: a worker that is replaced when it
is lost, kernels compiled ahead, every row on disk before the next measurement begins, a time limit,
Ctrl-C and progress.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress

from pymm.console import Stop
from pymm.core.device import Device
from pymm.core.errors import Busy
from pymm.core.problem import Problem
from pymm.kernels.source import Source
from pymm.measure.precompile import Precompiler, compilers_beside
from pymm.measure.results import Schema
from pymm.measure.worker import Reply, Request, Site, Worker, begin, devices_alone
from pymm.selection.records import Environment

Row = dict[str, object]
Task = TypeVar("Task")

#: Exit status after an interrupt, as shells have it.
INTERRUPTED = 130


@dataclass
class Runner:
    """One run on one device. Rows of `schema` go to the file `csv`. `deadline` is the monotonic
    time after which nothing is begun, `left` counts what was left out for that or because `stop`
    was asked for. Everything is compiled before the first measurement, unless `meanwhile`.
    """

    worker: Worker
    schema: Schema
    csv: Path | None = None
    deadline: float = math.inf
    stop: Callable[[], bool] = lambda: False
    meanwhile: bool = False
    commit: str = ""
    console: Console = field(default_factory=Console)
    open_compiler: Callable[[Any, int], Any] = Precompiler

    def __post_init__(self) -> None:
        self.device: Device = self.worker.device
        self.environment = Environment.of(self.device, self.worker.compiler.toolchain)
        self.left = 0

    @contextmanager
    def compiling(self, sources: Iterable[Sequence[Source]]) -> Iterator[list[list[Future]]]:
        """The sources of each task, compiled by other processes: their futures, task by task. What
        fails fails again, and is reported, where it is measured.
        """
        with self.open_compiler(self.worker.compiler, compilers_beside(self.device)) as pool:
            builds = [[pool.submit(source) for source in of_task] for of_task in sources]
            every = list(chain(*builds))
            if self.device.shares_host_cores or not self.meanwhile:
                # compilers take cores from what is measured, and delay the host
                while not self.stop() and wait(every, timeout=0.5).not_done:
                    pass
            yield builds
            for build in every:
                build.cancel()

    def each(self, tasks: Sequence[Task], title: Callable[[Task], str]) -> Iterator[Task]:
        """The tasks in turn, shown as progress, until the run is to end. The device is locked
        against other runs of `pymm.bench` and `pymm.tune` from the first task to the last.
        """
        done = 0
        try:
            with (
                devices_alone([self.device], self._over, self.say),
                Progress(console=self.console, disable=not self.console.is_terminal) as progress,
            ):
                bar = progress.add_task(self.device.name, total=len(tasks))
                for task in tasks:
                    if self._over():
                        break
                    progress.update(bar, description=title(task))
                    yield task
                    progress.advance(bar)
                    done += 1
        except Busy as other:
            if not self.stop():
                self.say(f"{other} until the time was over")
        self.left += len(tasks) - done

    def _over(self) -> bool:
        """Whether no task is to be begun any more."""
        return self.stop() or time.monotonic() > self.deadline

    def ask(self, request: Request, limit: float) -> Reply:
        """Have the worker measure; a child that is lost costs this reply alone. Raises
        `WorkerFailed` if no other can be started.
        """
        begin(self.worker, request, limit)
        while (reply := self.worker.result(timeout=1.0)) is None:
            pass
        return reply

    def keep(self, rows: Sequence[Mapping[str, object]]) -> None:
        """Write rows."""
        if self.csv:
            self.schema.append(self.csv, rows)

    def say(self, text: str) -> None:
        """Print a line that stays."""
        say(self.console, text)


@contextmanager
def open_worker(name: str | None, console: Console) -> Iterator[tuple[Worker, Stop]]:
    """A worker on the device of that name, for a `with` in which the first Ctrl-C is a request.
    Raises `WorkerFailed` where there is no such device.
    """
    worker, stop = Worker(Site(name)), Stop()
    worker.start()
    try:
        with stop.listening():
            yield worker, stop
    finally:
        worker.stop()


def say(console: Console, text: str) -> None:
    """Print a line as it is."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def origin(device: Device, environment: Environment, commit: str) -> Row:
    """The columns that say where and when a row was measured."""
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "device": device.slug,
        "driver": environment.driver,
        "compiler": environment.compiler,
        "pymm": environment.pymm,
        "commit": commit,
    }


def product(problem: Problem) -> Row:
    """The columns that name a product, besides the operation."""
    extents = {axis: getattr(problem, axis) for axis in "mnk"}
    return {"dtype": problem.dtype, "layout": problem.layout, **extents}
