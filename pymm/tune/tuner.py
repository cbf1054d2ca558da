"""The tuner's run: which problems and kernels in which order, a search for each, records saved, a
table at the end.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from threadpoolctl import threadpool_limits

from pymm.console import Stop, duration, significant
from pymm.core.device import Device
from pymm.core.errors import Busy, StoreError
from pymm.core.problem import Problem
from pymm.kernels import Kernel
from pymm.kernels.source import kernel_digest
from pymm.measure.precompile import Precompiler, compilers_beside, config_directory, state_directory
from pymm.measure.workbench import Trial
from pymm.measure.worker import Site, Worker, WorkerFailed, devices_alone
from pymm.selection.records import Environment, Record, foreign_because
from pymm.selection.select import configs
from pymm.selection.store import energy_directory, put
from pymm.tune.comparison import Comparison
from pymm.tune.devices import (
    ALL,
    POLL,
    Crew,
    SeveralModels,
    gpu_names,
    require_one_model,
    start,
    tune_each,
)
from pymm.tune.finals import Decision, record_of, rivals_of, saved_for
from pymm.tune.initial import FIRST, InitialConfigs, Prefetcher
from pymm.tune.objective import BOTH, ENERGY, TIME, Cost, Front, pareto
from pymm.tune.options import Options, parse
from pymm.tune.progress import Line, Progress, show_front, show_lines
from pymm.tune.race import Race
from pymm.tune.session import FEWEST_TRIALS, Broken, Session, Setup, Streak
from pymm.tune.storage import StorageLost, open_shared, open_storage, open_study, shared_name
from pymm.tune.study import Company, Search, queue_limit
from pymm.tune.tasks import Task, describe, tasks_of
from pymm.tune.trial_log import ForeignFile, TrialLog

TUNED, NOT_ALL, BAD_OPTIONS, NO_DEVICE, INTERRUPTED = 0, 1, 2, 3, 130

#: Fraction of a problem's time that is kept for the comparison at its end; its longest and shortest
#: duration in seconds.
FINAL_PART, FINAL_MOST, LEAST_FINAL = 0.3, 15.0, 1.0

PATIENCE = 4  # shares of the time that a problem may wait for its first compiled sources

#: Seconds to compile one source (1564 sources in 293 s by 15 processes on an H200's host), and how
#: many configurations a search begins with, at least and at most, where the time is limited.
SECONDS_PER_SOURCE, FEWEST_FIRST, MOST_FIRST = 2.8, 16, 39
FIRST_IF_STALE = 4  # fewest, of a stale record that is tuned again

#: Seconds between two problems for which a device's lock is free for another tuner.
YIELD = 0.15


def main(argv: Sequence[str] | None = None, tuned: Callable[[Tuner], None] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes. `tuned` gets the tuner of each
    model of device after its run, if it came to trials on a real device.
    """
    tuner = Tuner(parse(argv))
    try:
        status = tuner.run()
    except SeveralModels as several:
        given = sys.argv[1:] if argv is None else list(argv)
        return tune_each(partial(main, tuned=tuned), given, several.groups, tuner.stop, tuner.say)
    if tuned and tuner.trials and tuner.device.times_are_real and status != INTERRUPTED:
        try:
            tuned(tuner)
        except KeyboardInterrupt:
            tuner.say("Interrupted. What was tuned is saved; no page was made.")
            return INTERRUPTED
    return status


@dataclass
class Tuner:
    """One run of the command. `hire` makes a worker from a site, `open_compiler` a pool of
    compilers from a worker's compiler and their number, `find_gpus` says what "all" means; tests
    replace them.
    """

    options: Options
    site: Site = field(default_factory=Site)
    hire: Callable[[Site], Any] = Worker
    open_compiler: Callable[[Any, int], Any] = Precompiler
    console: Console = field(default_factory=Console)
    stop: Stop = field(default_factory=Stop)
    find_gpus: Callable[[], list[str | int | None]] = gpu_names
    lines: list[Line] = field(default_factory=list, init=False)
    records: list[Record] = field(default_factory=list, init=False)
    shared: Any = field(default=None, init=False)
    trials: Path | None = field(default=None, init=False)
    saved: Path | None = field(default=None, init=False)
    failed: int = field(default=0, init=False)
    streak: Streak = field(default_factory=Streak, init=False)
    short: list[str] = field(default_factory=list, init=False)
    fronts: dict[Problem, Front] = field(default_factory=dict, init=False)
    _said: set[str] = field(default_factory=set, init=False)

    def run(self) -> int:
        """Tune everything that the options name. Raises `SeveralModels` before anything is tuned if
        the devices are not of one model.
        """
        self.started = time.monotonic()
        try:
            with ExitStack() as held:
                held.enter_context(self.stop.listening())
                # The surrogate's matrices are small: more threads only wait for the compilers.
                held.enter_context(threadpool_limits(1, user_api="blas"))
                try:
                    if self.options.shared:
                        self.shared = held.enter_context(open_shared(self.options.shared))
                    self.crew = self._hire(held)
                    self.device: Device = self.crew.device
                    self.output = self.options.output or config_directory()
                    self._introduce()
                    tasks = tasks_of(self.options, self.device, self._stored)
                except (ValueError, NotImplementedError) as refusal:
                    return self._end(BAD_OPTIONS, str(refusal))
                if self.options.stale and not tasks:
                    return self._end(TUNED, f"Nothing tuned for {self.device.name} is stale.")
                if self.options.dry_run or self.options.list:
                    describe(tasks, self.device, self.say, self.options.list)
                    return TUNED
                self._tune(tasks, held)
        except WorkerFailed as failure:
            return self._end(NO_DEVICE, str(failure))
        except (ForeignFile, StoreError, OSError) as failure:
            return self._end(BAD_OPTIONS, str(failure))
        except (Broken, StorageLost) as failure:
            self.failed += 1
            self.say(str(failure))
        except KeyboardInterrupt:
            return self._end(INTERRUPTED, "interrupted; what was measured is kept")
        if self.lines:
            show_lines(self.lines, self.console)
        for problem, front in self.fronts.items():
            show_front(problem, front, self.console)
        if self.saved:
            count = f"{len(self.records)} record{'s' * (len(self.records) != 1)}"
            self.say(f"Saved: {count} in {self.saved} (pymm configs shows them)")
        for left_out in self.short:
            self.say(left_out)
        if self.stop():
            return self._end(INTERRUPTED, "interrupted; the best so far is saved")
        return NOT_ALL if self.failed else TUNED

    def _end(self, status: int, message: str) -> int:
        self.console.print(message, markup=False, highlight=False, soft_wrap=True)
        return status

    # Before the search

    def _hire(self, held: ExitStack) -> Crew:
        """A started worker for each device. Raises `WorkerFailed`, `SeveralModels`."""
        names = list(self.options.devices)
        every = names == [ALL]
        if every and not (names := self.find_gpus()):
            raise WorkerFailed(
                "--devices all: no NVIDIA GPU that pymm can use here "
                "(python -m pymm.doctor says what is missing)"
            )
        workers = []
        for name in names:
            workers.append(self.hire(replace(self.site, device=name)))
            held.callback(workers[-1].stop)
        workers, names = start(workers, names, self.say if every else None)
        require_one_model(workers, names)
        missing = [worker.no_energy for worker in workers if worker.no_energy]
        if self.options.objective != TIME and missing:
            raise ValueError(f"--objective {self.options.objective}: {missing[0]}")
        self.compiler = workers[0].compiler
        return Crew(workers, self.say)

    def _introduce(self) -> None:
        device, say = self.device, self.console.print
        if device.kernel_backend == "cpu" and self.options.devices == (None,):
            say(
                "No NVIDIA GPU that pymm can use here: tuning the CPU kernel on this machine's CPU "
                "(python -m pymm.doctor says what is missing).",
                soft_wrap=True,
            )
        count = f"{len(self.crew)} x " if len(self.crew) > 1 else ""
        say(f"Device: {count}{device.name}", markup=False, highlight=False, soft_wrap=True)
        if not device.times_are_real:
            say("The simulator's times mean nothing: nothing will be saved.")

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    # The search

    def _tune(self, tasks: Sequence[Task], held: ExitStack) -> None:
        self.ahead = compilers_beside(self.device, len(self.crew))
        options, quick = self.options, self.options.checks == "quick"
        self.folder = (options.storage or state_directory()) / self.device.slug
        self._check_output()
        compiler = held.enter_context(self.open_compiler(self.compiler, self.ahead))
        self.trials = options.csv or self.folder / "trials.csv"
        log = TrialLog(self.trials, self.say, options.beta, self.compiler.toolchain)
        held.callback(log.close)
        progress = held.enter_context(Progress(self.console))
        shared = self.crew, compiler, log, progress, self.stop, self.ahead
        how = options.seed, options.limit, quick, bool(options.beta), options.objective != TIME
        setup = Setup(*shared, *how, self.streak)
        self.count = self._first(len(tasks))
        apart = quick or any(len(task.kernels) > 1 for task in tasks)
        prefetcher = held.enter_context(
            Prefetcher(self.device, compiler, quick, self._known, self.count, apart)
        )
        waiting: list[Task] = list(tasks)
        busy: list[Task] = []
        while (waiting or busy) and not self.stop():
            if not waiting:  # problems that another tuner works on come last, until they are free
                waiting, busy = busy, []
                time.sleep(POLL)
            task = prefetcher.next(waiting)
            initial, builds = prefetcher.take(task)
            waiting.remove(task)
            left = len(waiting) + len(busy)
            of = f"{len(tasks) - left}/{len(tasks)}"
            try:
                with self._device_alone():
                    self._one(task, initial, builds, self._share(left + 1), of, setup)
            except Busy as other:
                if time.monotonic() >= self._over:
                    self._leave_out(task, f"{other} until the time was over")
                elif not self.stop():
                    self._once(f"{other}: {task.problem.slug} is tuned at the end of this run")
                    busy.append(task)
            if left:
                time.sleep(YIELD)

    def _leave_out(self, task: Task, why: str) -> None:
        self.failed += 1
        self.say(f"{task.name}: not tuned, {why}")

    def _check_output(self) -> None:
        """Raise now, not at the end, if the file of records is damaged or cannot be written."""
        if not self.device.times_are_real:
            return
        try:
            put([], self.device, self.output)
        except OSError as error:
            raise StoreError(
                f"tuned configurations cannot be written to {self.output} "
                f"({error.strerror or error}): name another folder with --output"
            ) from None

    def _device_alone(self) -> AbstractContextManager[None]:
        """Every device that is tuned, locked. Entering raises `Busy` if the run must end first."""
        devices = [self.crew[place].device for place in self.crew.places]
        return devices_alone(devices, self._must_end, self._once)

    def _must_end(self) -> bool:
        return self.stop() or time.monotonic() >= self._over

    @property
    def _over(self) -> float:
        """When the run's time is over, by the monotonic clock."""
        return self.started + (self.options.budget or math.inf)

    def _known(self) -> list[Record]:
        return [*self.records, *(record for record, _ in self._stored())]

    def _stored(self, directory: Path | None = None) -> list[tuple[Record, str]]:
        """Records of the device, each with why it is stale. Records of kernels that this pymm does
        not have, or has with other parameters, stay in their file and are reported once.
        """
        found = []
        for record, file, stale in configs(self.device, directory or self.output, self.environment):
            if foreign := foreign_because(record):
                what = f"{record.problem.slug} {record.config.slug}"
                self._once(f"{file}: {what} is skipped: {foreign}")
            else:
                found.append((record, stale))
        return found

    def _first(self, tasks: int) -> int:
        """How many configurations a search begins with: as many as can be compiled in its share of
        the time, since a quick search waits for them; few where a stale record is tuned again.
        """
        if self.options.stale:
            return FIRST_IF_STALE
        most = queue_limit(self.options.trials)
        if self.options.budget is None:
            return int(min(FIRST, most))
        share = self.options.budget / max(tasks, 1)
        count = min(MOST_FIRST, int(share * self.ahead / SECONDS_PER_SOURCE))
        return int(min(most, max(FEWEST_FIRST, count)))

    def _share(self, left: int) -> float:
        """When the next of `left` tasks is over, by the monotonic clock."""
        if self.options.budget is None:
            return math.inf
        now = time.monotonic()
        return now + max(0.0, self.started + self.options.budget - now) / left

    def _latest(self, ends: float) -> float:
        """How long a task may wait for its first sources: some shares more than its own."""
        now = time.monotonic()
        return min(now + PATIENCE * (ends - now), self._over)

    def _one(
        self,
        task: Task,
        initial: Sequence[InitialConfigs],
        builds: Sequence[Future],
        ends: float,
        of: str,
        setup: Setup,
    ) -> None:
        initial = [one for one in initial if one.valid]
        if not initial:
            self.failed += 1
            return self.say(f"{task.name}: no configuration is valid here")
        problem, options = task.problem, self.options
        with self._searches(problem, initial) as searches:
            race = Race(searches)
            setup.progress.begin(problem, task.label, race.space, ends, of)
            session = Session(problem, race, setup)
            reserve = max(0.0, min(FINAL_MOST, FINAL_PART * (ends - time.monotonic())))
            if len(race):
                self.say(f"{task.name}: goes on after {len(race)} configurations of earlier runs")
            session.run(ends, race.goal(options.trials), self._latest(ends), reserve)
            for build in builds:
                build.cancel()
            if self.device.shares_host_cores:  # its first few trials took some of the reserve
                reserve = max(LEAST_FINAL, min(reserve, ends - time.monotonic()))
            until = min(max(ends, time.monotonic() + reserve), self._over)
            self._conclude(task, session, until)
            if not self.stop():
                race.reach_goal()
        return None

    @contextmanager
    def _searches(
        self, problem: Problem, initial: Sequence[InitialConfigs]
    ) -> Iterator[dict[str, Search]]:
        """A search for each kernel, which begins with its initial configurations, each in a study
        of its own: in the shared storage, or all of a problem in one journal. Raises `Busy`.
        """
        stored, options = self._known(), self.options
        with ExitStack() as held:
            storage = self.shared or held.enter_context(
                open_storage(self.folder / f"{problem.slug}.journal", self.say)
            )
            searches = {}
            for one in initial:
                study = self._study(storage, problem, one.kernel)
                company = Company(study) if self.shared else None
                given = one.valid, options.sampler, options.seed, company, options.objective
                search = Search(study, *given)
                search.enqueue(one.first(stored, self.count))
                searches[one.kernel.name] = search
            yield searches

    def _study(self, storage: Any, problem: Problem, kernel: Kernel) -> Any:
        facts = self._facts(kernel)
        name = kernel.name + "-beta1" * self.options.beta  # other times, so another study
        name += "" if self.options.objective == TIME else f"-{self.options.objective}"
        if self.shared is not None:
            name = shared_name(self.device.slug, problem.slug, name, facts)
        return open_study(storage, name, facts, self.options.resume)

    def _conclude(self, task: Task, session: Session, ends: float) -> None:
        """Compare the best of a search until `ends`, save the winner and report what the search
        lacks.
        """
        problem, race = task.problem, session.search
        race.update()
        if not race.ranking:
            none = "no configuration works" if len(race) else "no configuration was tried in time"
            more = "" if len(race) else ": give it a larger --budget"
            return self._leave_out(task, none + more)
        self._note_if_short(task, race)
        stored = self._known()
        saved = [
            *saved_for(problem, task.kernels, stored),
            *rivals_of(problem, task.kernels, stored),
        ]
        if session.setup.energy:
            thrifty = [record for record, _ in self._stored(energy_directory(self.output))]
            saved += saved_for(problem, task.kernels, thrifty)
        final = Comparison(problem, task.kernels, race, session.setup, session.expected)
        decision = final.decide(self.device.times_are_real, ends, saved)
        doubts = "; ".join(final.doubts)
        if decision is None:
            why = "interrupted, nothing saved" if self.stop() else "nothing works"
            why = f"doubtful times: {doubts}" if doubts else why
            return self._leave_out(task, why)
        if said := decision.doubt or (doubts and f"left out, {doubts}"):
            self.say(f"{task.name}: {said}")
        for library, spread in final.unsteady.items():
            self.say(f"{task.name}: the times of {library} spread by {spread:.0%}: uncertain")
        if summary := race.summary():
            self.say(f"{problem.slug}: {summary}")
        if self.options.objective == BOTH and not decision.doubt:
            self.fronts[problem] = pareto(race.costs)
        self._save(task, decision, len(race), final.unsteady.get(decision.library, 0.0))
        return None

    def _note_if_short(self, task: Task, race: Race) -> None:
        """Note a problem with fewer than `FEWEST_TRIALS` trials, for the end of the run."""
        tried, valid = len(race), race.space
        most = self.options.trials or math.inf
        timed = self.options.budget is not None
        if timed and tried < min(FEWEST_TRIALS, valid, most) and not self.stop():
            self.short.append(
                f"{task.name}: {tried} of {valid} configurations tried, fewer than "
                f"{FEWEST_TRIALS}: the {self.options.budget:.0f} s of --budget were over; give "
                "more, or fewer problems"
            )

    @property
    def environment(self) -> Environment:
        """The tools that it tunes with."""
        return Environment.of(self.device, self.compiler.toolchain)

    def _facts(self, kernel: Kernel) -> dict[str, str]:
        """What must be unchanged for the times of an earlier run to count."""
        return {
            "device": self.device.name,
            "driver": self.environment.driver,
            "compiler": self.environment.compiler,
            "source": kernel_digest(kernel.backend, kernel.file),
        }

    def _save(self, task: Task, decision: Decision, tried: int, unsteady: float) -> None:
        problem, winner = task.problem, decision.winner
        self.lines.append(
            Line(
                problem,
                decision.default_seconds,
                winner.seconds,
                decision.library_seconds,
                decision.library,
                self.device.peak_flops.get(problem.dtype, 0.0),
                winner.config,
                winner.config == task.kernels[0].default_for(problem, self.device),
                decision.gain,
                decision.within,
                tried,
                decision.doubt,
                unsteady,
            )
        )
        if decision.doubt:
            return
        if decision.thriftiest is not None:
            self._save_energy(problem, decision.thriftiest)
        if self.options.objective == ENERGY:  # what is fastest was not searched
            return
        records = [record_of(trial, self.environment) for trial in (winner, *decision.rivals)]
        self.records += records
        if self.device.times_are_real:
            self.saved = put(records, self.device, self.output)

    def _save_energy(self, problem: Problem, trial: Trial) -> None:
        """Save the configuration of least energy, and say what that is."""
        cost = Cost.of(trial)
        self.say(
            f"{problem.slug}: least energy {significant(cost.joules * 1e3)} mJ, "
            f"{duration(cost.seconds)}: {trial.config.slug}"
        )
        record = replace(record_of(trial, self.environment), joules=trial.joules)
        if self.options.objective == ENERGY:
            self.records.append(record)
        if self.device.times_are_real:
            put([record], self.device, energy_directory(self.output))
            self.saved = self.saved or energy_directory(self.output)
