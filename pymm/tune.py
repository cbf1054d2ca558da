"""`python -m pymm.tune`: find the fastest configurations for a device, save them, show a table."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from rich.console import Console

from pymm.cache import Precompiler, compilers_beside, config_directory, state_directory
from pymm.decision import Decision, rivals_of, saved_for
from pymm.device import Device
from pymm.interrupts import Stop
from pymm.journal import Busy, ForeignFile, TrialLog
from pymm.kernels import Kernel
from pymm.options import Options, parse
from pymm.outset import FIRST, Lookout, Outset
from pymm.problem import Problem
from pymm.progress import Line, Progress, show_lines
from pymm.search import Search, open_storage, open_study
from pymm.select import configs
from pymm.session import FEWEST_TRIALS, Session
from pymm.source import kernel_digest
from pymm.store import Environment, Record, StoreError, load, put
from pymm.tasks import tasks_of
from pymm.worker import Site, Worker, WorkerFailed

TUNED, NOT_ALL, BAD_OPTIONS, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130

#: Part of a problem's time that is kept for the comparison at its end, and at most that long.
FINAL_PART, FINAL_MOST, LEAST_FINAL = 0.3, 15.0, 1.0

#: Shares of the time that a problem may take until enough of its first texts are compiled.
PATIENCE = 4

#: Seconds that one process needs for a text (1564 texts in 293 s by 15 on an H200's host), and how
#: many configurations a search begins with at least and at most where the time is limited.
SECONDS_PER_TEXT, FEWEST_FIRST, MOST_FIRST = 2.8, 16, 39

#: The same where something is tuned again because it is stale.
FIRST_IF_STALE = 4


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    options = parse(argv)
    return Tuner(options).run()


@dataclass
class Tuner:
    """One run of the command. `hire` makes a worker from a site, `open_compiler` a pool of
    compilers from a worker's compiler and their number; tests put others in their place.
    """

    options: Options
    site: Site = field(default_factory=Site)
    hire: Callable[[Site], Any] = Worker
    open_compiler: Callable[[Any, int], Any] = Precompiler
    console: Console = field(default_factory=Console)
    stop: Stop = field(default_factory=Stop)

    def run(self) -> int:
        """Tune everything that the options name."""
        self.started = time.monotonic()
        self.lines: list[Line] = []
        self.records: list[Record] = []
        self.failed = 0
        self.short: list[str] = []
        try:
            with ExitStack() as held:
                held.enter_context(self.stop.listening())
                try:
                    self.workers = self._hire(held)
                    self.device: Device = self.workers[0].device
                    self.output = self.options.output or config_directory()
                    self._introduce()
                    tasks = tasks_of(self.options, self.device, self._environment, self.output)
                except (ValueError, NotImplementedError) as refusal:
                    return self._end(BAD_OPTIONS, str(refusal))
                if self.options.stale and not tasks:
                    return self._end(TUNED, f"Nothing tuned for {self.device.name} is stale.")
                if self.options.dry_run or self.options.list:
                    return self._describe(tasks)
                self._tune(tasks, held)
        except WorkerFailed as failure:
            return self._end(NO_DEVICE, str(failure))
        except (ForeignFile, StoreError, Busy, OSError) as failure:
            return self._end(BAD_OPTIONS, str(failure))
        except KeyboardInterrupt:
            return self._end(INTERRUPTED, "interrupted; what was measured is kept")
        if self.lines:
            show_lines(self.lines, self.console)
        for left_out in self.short:
            self._say(left_out)
        if self.stop():
            return self._end(INTERRUPTED, "interrupted; the best so far is saved")
        return NOT_ALL if self.failed else TUNED

    def _end(self, status: int, message: str) -> int:
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)
        return status

    # Before the search

    def _hire(self, held: ExitStack) -> list[Any]:
        """A started worker for each device. Raises `WorkerFailed`, `ValueError`."""
        workers = []
        for name in self.options.devices:
            site = Site(name, self.site.cache, self.site.opener, self.site.modules)
            worker = self.hire(site)
            held.callback(worker.stop)
            worker.start()
            workers.append(worker)
        names = sorted({worker.device.name for worker in workers})
        if len(names) > 1:
            raise ValueError(f"the devices differ ({', '.join(names)}): tune each by itself")
        return workers

    def _introduce(self) -> None:
        device, say = self.device, self.console.print
        if device.kind == "cpu" and self.options.devices == (None,):
            say("No NVIDIA GPU that pymm can use here: tuning the CPU kernel on this machine's CPU "
                "(python -m pymm.doctor says what is missing).", soft_wrap=True)  # fmt: skip
        count = f"{len(self.workers)} x " if len(self.workers) > 1 else ""
        say(f"Device: {count}{device.name}", markup=False, highlight=False, soft_wrap=True)
        if device.kind == "simulator":
            say("The simulator's times mean nothing: nothing will be saved.")

    def _describe(self, tasks: Sequence[tuple[Problem, Kernel]]) -> int:
        for problem, kernel in tasks:
            valid, rejected = kernel.configs(problem, self.device)
            if self.options.list:
                for config in valid:
                    self.console.print(f"{problem.slug} {config.slug}", soft_wrap=True)
                continue
            total = len(valid) + rejected.total()
            name = f"{problem.slug} {kernel.number:02d}_{kernel.name}"
            self._say(f"{name}: {len(valid)} of {total} configurations are valid")
            for reason, count in rejected.most_common():
                self._say(f"  {count:6d} turned down: {reason}")
        return TUNED

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    # The search

    def _tune(self, tasks: Sequence[tuple[Problem, Kernel]], held: ExitStack) -> None:
        self.ahead = compilers_beside(self.device)
        storage = self.options.storage or state_directory()
        self.folder = storage / self.device.slug
        load(self.device, self.output)  # a damaged file is to be known before, not after, the work
        compiler = held.enter_context(self.open_compiler(self.workers[0].compiler, self.ahead))
        log = TrialLog(self.options.csv or self.folder / "trials.csv")
        held.callback(log.close)
        progress = held.enter_context(Progress(self.console))
        quick = self.options.checks == "quick"
        self.count = self._first(len(tasks))
        lookout = held.enter_context(
            Lookout(self.device, compiler, quick, self._stored, self.count)
        )
        waiting = list(tasks)
        while waiting and not self.stop():
            task = lookout.next(waiting)
            outset, builds = lookout.take(task)
            ends = self._share(len(waiting))
            waiting.remove(task)
            of = f"{len(tasks) - len(waiting)}/{len(tasks)}"
            self._one(outset, builds, ends, of, compiler, log, progress)

    def _stored(self) -> list[Record]:
        tuned = configs(self.device, self.output, self._environment)
        return [*self.records, *(record for record, _, _ in tuned)]

    def _first(self, tasks: int) -> int:
        """With how many configurations a search begins: those that can be compiled in its share of
        the time, for that is what a quick search waits for. Of what is stale few beside the old.
        """
        if self.options.stale:
            return FIRST_IF_STALE
        if self.options.budget is None:
            return FIRST
        share = self.options.budget / max(tasks, 1)
        return max(FEWEST_FIRST, min(MOST_FIRST, int(share * self.ahead / SECONDS_PER_TEXT)))

    def _share(self, left: int) -> float:
        """When the next of `left` tasks is over, by the monotonic clock."""
        if self.options.budget is None:
            return math.inf
        now = time.monotonic()
        return now + max(0.0, self.started + self.options.budget - now) / left

    def _latest(self, ends: float) -> float:
        """How long a task may wait for its first texts: some shares more, taken from the others."""
        now = time.monotonic()
        return min(now + PATIENCE * (ends - now), self.started + (self.options.budget or math.inf))

    def _one(
        self,
        outset: Outset,
        builds: Sequence[Future],
        ends: float,
        of: str,
        compiler: Any,
        log: TrialLog,
        progress: Progress,
    ) -> None:
        problem, kernel = outset.problem, outset.kernel
        if not outset.valid:
            self.failed += 1
            return progress.say(f"{problem.slug} {kernel.name}: no configuration is valid here")
        options = self.options
        progress.begin(problem, kernel.name, len(outset.valid), ends, of)
        with open_storage(self.folder / f"{problem.slug}.journal") as storage:
            study = open_study(storage, kernel.name, self._facts(kernel), options.resume)
            search = Search(study, outset.valid, options.sampler, options.seed)
            search.enqueue(outset.first(self._stored(), self.count))
            session = Session(
                problem, kernel, search, self.workers, compiler, log, progress, self.stop,
                self.ahead, options.seed, options.limit, options.checks == "quick",
            )  # fmt: skip
            reserve = min(FINAL_MOST, FINAL_PART * (ends - time.monotonic()))
            session.run(ends - max(0.0, reserve), options.trials, self._latest(ends))
            for build in builds:
                build.cancel()
            self._note_if_short(outset, len(search))
            against_others = self.device.kind in ("cpu", "cuda")
            stored = self._stored()
            saved = [*saved_for(problem, kernel, stored), *rivals_of(problem, kernel, stored)]
            if self.device.kind == "cpu":  # the search took of it for its first few trials
                reserve = min(reserve, ends - time.monotonic())
            decision = session.decide(against_others, max(reserve, LEAST_FINAL), saved)
            if decision is None and self.stop():
                return progress.say(f"{problem.slug} {kernel.name}: interrupted, nothing saved")
            if decision is None:
                self.failed += 1
                return progress.say(f"{problem.slug} {kernel.name}: no configuration works")
            self._save(problem, kernel, decision, progress)
            if not self.stop():
                search.finish()
        return None

    def _note_if_short(self, outset: Outset, tried: int) -> None:
        """Keep a line for the end about a problem that the time did not suffice for."""
        valid, most = len(outset.valid), self.options.trials or math.inf
        if tried < min(FEWEST_TRIALS, valid, most) and not self.stop():
            self.short.append(
                f"{outset.problem.slug} {outset.kernel.name}: {tried} of {valid} configurations "
                f"tried, fewer than {FEWEST_TRIALS}: the {self.options.budget:.0f} s of --budget "
                "were over; give more, or fewer problems"
            )

    @property
    def _environment(self) -> Environment:
        return Environment.of(self.device, self.workers[0].compiler.toolchain)

    def _facts(self, kernel: Kernel) -> dict[str, str]:
        """What must be the same for an earlier run's times to count."""
        return {
            "device": self.device.name,
            "driver": self._environment.driver,
            "compiler": self._environment.compiler,
            "source": kernel_digest(kernel.backend, kernel.file),
        }

    def _save(
        self, problem: Problem, kernel: Kernel, decision: Decision, progress: Progress
    ) -> None:
        winner = decision.winner
        peak = self.device.peak_flops.get(problem.dtype, 0.0)
        remark = "the default" if winner.config == kernel.default_for(problem, self.device) else ""
        self.lines.append(
            Line(problem, decision.default_seconds, winner.seconds, decision.library_seconds,
                 decision.library, peak, winner.config, remark)
        )  # fmt: skip
        today, environment = date.today().isoformat(), self._environment
        records = [
            Record(
                problem, trial.config, trial.seconds, trial.spread, today, environment,
                kernel_digest(trial.config.backend, trial.config.kernel.file),
            )
            for trial in (winner, *decision.rivals)
        ]  # fmt: skip
        self.records += records
        if self.device.kind != "simulator":
            put(records, self.device, self.output)


if __name__ == "__main__":
    sys.exit(main())
