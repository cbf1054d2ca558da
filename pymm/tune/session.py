"""The search for one problem's configuration: ask, compile ahead, measure, tell."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any

from pymm.core.errors import CompileFailed
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.measure.energy import MOST_SECONDS
from pymm.measure.verify import sources
from pymm.measure.workbench import Trial
from pymm.measure.worker import Reply, Request, begin, time_limit
from pymm.tune.devices import Crew
from pymm.tune.finals import plausible
from pymm.tune.progress import Progress
from pymm.tune.race import Race
from pymm.tune.trial_log import TrialLog

#: A comparison has at least the default and one more.
FEWEST_FINALISTS = 2

#: A search of fewer trials than this is reported as short.
FEWEST_TRIALS = 8

#: Seconds from asking for a configuration to having it compiled. A quick search asks for no more
#: when less time is left: the next search gets that time.
TO_COMPILE = 5.0

#: Configurations that are compiled at a time on a CPU, for each compiler and at most: more keep all
#: cores busy, fewer come from what was measured last.
BATCHES, MOST_IN_BATCH = 2, 16

#: Seconds between two polls of workers and compilers.
PAUSE = 0.05

#: A measurement is expected to take as long as the longest of so many before it.
LATEST = 5

#: Seconds that a running measurement has to finish once a search is over.
GRACE = 5.0

#: Outcomes whose cause may have been the machine: such a configuration is tried once more.
TRIED_AGAIN = ("launch_failed", "crashed", "disturbed", "compile_timeout")

#: So many equal failures in a row mean that the device or the compiler is at fault.
SAME_FAILURES = 10


class Broken(RuntimeError):
    """`SAME_FAILURES` trials in a row failed in the same way: the run cannot go on here."""


@dataclass
class Streak:
    """Equal failures in a row, counted across the searches of a run."""

    outcome: str = ""
    count: int = 0

    def add(self, trial: Trial) -> None:
        """Count a trial. Raises `Broken` at the limit."""
        failed = "" if trial.outcome in ("ok", "too_slow") else trial.outcome
        self.count = self.count + 1 if failed and failed == self.outcome else 1
        self.outcome = failed
        if failed and self.count >= SAME_FAILURES:
            raise Broken(
                f"{self.count} trials in a row ended as {failed}, the last one with: "
                f"{trial.detail or 'no words'}. The run stops here; what was measured is kept"
            )


@dataclass
class Asked:
    """A trial that the study suggested: its number there, and its sources at the compiler. `again`
    if it failed before, `failed_at` in which place; `began` is when a worker got it, and `best`
    what it is compared with.
    """

    number: int
    config: Config
    builds: list[Future] = field(default_factory=list)
    again: bool = False
    failed_at: int | None = None
    began: float = 0.0
    best: tuple[Config, float] | None = None

    def at_equal_clocks(self, trial: Trial) -> Trial:
        """The trial as the study gets it: in seconds at the clock that the best was measured at."""
        if self.best is None or not trial.versus > 0:
            return trial
        return replace(trial, seconds=trial.versus * self.best[1])

    @property
    def built(self) -> bool:
        """True if the compiler is done with all sources."""
        return all(build.done() for build in self.builds)

    def failure(self) -> CompileFailed | None:
        """The compiler's error, None if there was none. Raises any other failure."""
        for build in self.builds:
            failure = build.exception()
            if isinstance(failure, CompileFailed):
                return failure
            if failure is not None:
                raise failure
        return None


@dataclass(frozen=True)
class Setup:
    """What the searches of a run share. `ahead` configurations are compiled before they are needed;
    `limit` is the seconds that one trial may take (None: by its problem); `quick` has operands and
    checks of `measure.quick_check`; `accumulate` adds the product to C; with `energy` that is
    measured, too.
    """

    crew: Crew
    compiler: Any
    log: TrialLog
    progress: Progress
    stop: Callable[[], bool]
    ahead: int = 2
    seed: int = 0
    limit: float | None = None
    quick: bool = False
    accumulate: bool = False
    energy: bool = False
    streak: Streak = field(default_factory=Streak)

    def limit_of(self, seconds: float, configs: int = 1) -> float:
        """The limit of a request about so many configurations that takes so many seconds without
        measuring energy.
        """
        return (self.limit or seconds) + self.energy * configs * 2 * MOST_SECONDS


class Session:
    """The search over the configurations of one problem.

    Between two steps `setup.stop` is asked; once it is true, or `ends` (monotonic seconds) or
    `most` trials are reached, nothing new begins. A trial whose failure may have been the machine's
    is tried once more.
    """

    def __init__(self, problem: Problem, search: Race, setup: Setup) -> None:
        self.problem, self.search, self.setup = problem, search, setup
        self._ahead: deque[Asked] = deque()
        self._ends = self._began = math.inf
        self._took: deque[float] = deque(maxlen=LATEST)
        self._warm = self._filling = False
        self._measuring: dict[int, Asked] = {}
        self._handed_out: Counter[int] = Counter()

    @property
    def device(self):
        """The device that is tuned; all workers have the same model."""
        return self.setup.crew.device

    def run(
        self, ends: float, most: int | None = None, latest: float = 0.0, reserve: float = 0.0
    ) -> None:
        """Search until nothing is left to try, or until `reserve` seconds before `ends`: those are
        for `decide`. While fewer than `FEWEST_TRIALS` configurations were measured, for example
        because the compiler is slow, the search may go on until `latest`. No measurement begins
        that would not end in time; one that runs may finish. Raises `Broken`.
        """
        try:
            self._began, self._ends, latest = time.monotonic(), ends - reserve, max(ends, latest)
            while not self.setup.stop():
                enough = len(self.search) >= FEWEST_TRIALS
                to_come = self.expected + max(reserve, FEWEST_FINALISTS * self.expected)
                if time.monotonic() + to_come >= (ends if enough else latest):
                    break
                self.search.attend()
                asked = self._ask(most)
                if not self._ahead and not self._measuring:
                    break
                self._hand_out()
                if not asked:
                    self._wait()
                self._collect()
                self.setup.progress.tick(self.setup.compiler.pending)
            self._let_end(0.0 if self.setup.stop() else latest)
        finally:
            self._give_up()

    @property
    def expected(self) -> float:
        """Expected seconds of a measurement: the longest of the latest ones."""
        return max(self._took, default=0.0)

    def _let_end(self, until: float) -> None:
        """Wait for running measurements: a worker that is killed must be started anew."""
        until = max(until, time.monotonic() + GRACE)
        while self._measuring and time.monotonic() < until:
            self._wait()
            self._collect()

    def _ask(self, most: int | None) -> bool:
        """Ask for one configuration more, unless as many as there are workers and compilers are
        compiled ahead; whether there was one. Idle workers get theirs between two questions.

        On a CPU nothing is sent to the compiler while something is measured. There a batch for all
        cores is compiled once the one before is measured.
        """
        most_ahead = len(self.setup.crew) + self.setup.ahead
        if self.device.shares_host_cores:
            self._filling = not self._ahead or self._filling
            most_ahead = min(BATCHES * self.setup.ahead, MOST_IN_BATCH)
            if self._measuring or not self._filling:
                return False
        if len(self._ahead) >= most_ahead or self.setup.stop():
            self._filling = False
            return False
        now = time.monotonic()
        late = self.setup.quick and self._ends - now < TO_COMPILE
        if late and not self.search.queued:
            self._filling = False
            return False  # it would not be compiled in time
        if not late:
            self.search.limit_queue(most, (now - self._began) / max(self._ends - self._began, 1e-9))
        if (asked := self.search.ask(most)) is None:
            self._filling = False
            return False
        self._ahead.append(Asked(*asked, self._compile(asked[1])))
        return True

    def _compile(self, config: Config) -> list[Future]:
        texts = sources(config, self.problem)[: 1 if self.setup.quick else None]
        return [self.setup.compiler.submit(source) for source in texts]

    def _hand_out(self) -> None:
        """Give each idle worker the next compiled configuration.

        A CPU is measured only while nothing compiles: the two would share its cores.
        """
        if self.device.shares_host_cores and (self._filling or self.setup.compiler.pending):
            return
        crew = self.setup.crew
        for place in sorted(crew.places, key=self._handed_out.__getitem__):
            if place in self._measuring or not crew.ready(place):
                continue
            while place not in self._measuring and (asked := self._next_built(place)):
                if failure := asked.failure():
                    outcome, words = failure.outcome, str(failure)
                    trial = Trial(self.problem, asked.config, outcome, detail=words)
                    self._record(asked, trial)
                else:
                    self._measure(place, asked)

    def _measure(self, place: int, asked: Asked) -> None:
        asked.best = self.search.best_seconds
        config, best = asked.best or (None, None)
        quick, seed = self.setup.quick, self.setup.seed
        request = Request("measure", self.problem, (asked.config,), seed, best, quick=quick)
        adds, energy = self.setup.accumulate, self.setup.energy
        request = replace(request, accumulate=adds, best=config, energy=energy)
        limit = self.setup.limit_of(time_limit(self.problem, self.device, best, quick))
        asked.began = time.monotonic()
        self._measuring[place] = asked
        self._handed_out[place] += 1
        begin(self.setup.crew[place], request, limit)

    def _next_built(self, place: int) -> Asked | None:
        """Of those that are compiled the most promising one by all results so far, one that the
        compiler rejected before any other; on the place where it failed only if there is no other.
        """
        alone = len(self.setup.crew) == 1
        built = [a for a in self._ahead if a.built and (alone or a.failed_at != place)]
        if built := [a for a in built if a.failure()] or built:
            asked = built[self.search.most_promising([a.config for a in built])]
            self._ahead.remove(asked)
            return asked
        return None

    def _wait(self) -> None:
        connections = [self.setup.crew[place].connection for place in self._measuring]
        if connections:
            wait(connections, timeout=PAUSE)
        elif waiting := [b for a in self._ahead for b in a.builds if not b.done()]:
            _settle(waiting[0], PAUSE)
        elif self._ahead:
            time.sleep(PAUSE)  # a worker is being started

    def _collect(self) -> None:
        for place in list(self._measuring):
            if place not in self._measuring:
                continue  # its device was left out because of what another one said
            reply = self.setup.crew[place].result()
            if reply is not None:
                asked = self._measuring.pop(place)
                if not reply.lost and self._warm:
                    self._took.append(time.monotonic() - asked.began)
                self._warm = True  # the first request also makes the operands
                self._record(asked, trial_of(reply, self.problem, asked.config), place)

    def _record(self, asked: Asked, trial: Trial, place: int | None = None) -> None:
        """Log and tell a trial of the device in `place`, or of the compiler."""
        trial, crew = plausible(trial, self.device), self.setup.crew
        measured_on = "" if place is None else crew.name(place)
        origin = self.search.origin(asked.number)
        self.setup.log.write(trial, self.device, measured_on=measured_on, origin=origin)
        failed = trial.outcome in TRIED_AGAIN
        if failed and not asked.again:
            again = self._compile(asked.config)
            self._ahead.append(Asked(asked.number, asked.config, again, True, place))
        else:
            self.search.tell(asked.number, asked.at_equal_clocks(trial))
        if place is not None and not failed:
            crew.worked(place, asked.failed_at)
            self._take_back()
        self.setup.progress.trial(trial)
        self.setup.streak.add(trial)

    def _take_back(self) -> None:
        """Have what a device that was left out was measuring measured by another."""
        for place in set(self._measuring) - set(self.setup.crew.places):
            self._ahead.appendleft(self._measuring.pop(place))

    def _give_up(self) -> None:
        """Return trials that were not measured to the study; the next run gets them again."""
        for place, asked in self._measuring.items():
            self.setup.crew[place].stop()
            self.search.forget(asked.number, asked.config)
        for asked in self._ahead:
            for build in asked.builds:
                build.cancel()
            self.search.forget(asked.number, asked.config)
        self._measuring.clear()
        self._ahead.clear()


def trial_of(reply: Reply, problem: Problem, config: Config) -> Trial:
    """The trial of a reply, also where the child died before it could describe it."""
    if reply.trials:
        return reply.trials[0]
    return Trial(problem, config, reply.outcome, detail=reply.detail)


def _settle(build: Future, seconds: float) -> None:
    try:
        build.exception(timeout=seconds)
    except TimeoutError:
        return
