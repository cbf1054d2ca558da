"""One kernel on one problem: ask, compile ahead, measure, tell; at the end the best few in turn."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from typing import Any

from pymm.backends.base import CompileFailed
from pymm.decision import Decision, choose
from pymm.journal import TrialLog
from pymm.kernels import Config, Kernel
from pymm.measure import Trial
from pymm.problem import Problem
from pymm.progress import Progress
from pymm.search import Search
from pymm.verify import sources
from pymm.worker import Reply, Request, Worker, WorkerFailed, time_limit

#: Fastest configurations of the search that are measured again, in turn with the default: more
#: of those that take less than `SHORT` seconds. By themselves these find their own text in the
#: instruction cache, in turn with others they do not (bf16 256 on an H200: 5.3 and 6.6 us).
FINALISTS, FINALISTS_IF_SHORT, SHORT = 6, 24, 1e-4

#: Rounds of that comparison, fewer where they would take longer than `FINAL_SECONDS`.
FINAL_ROUNDS, FEWEST_ROUNDS = 101, 5
FINAL_SECONDS = 6.0

#: After Ctrl-C a comparison of the best so far with the default still begins if it can be over in
#: so many seconds, and is broken off after so many more: nothing is saved for that problem then.
LAST_SECONDS, GRACE = 1.0, 2.0

#: Parts of a comparison's time for checking before it is timed (as much is for checking again), and
#: for timing.
CHECK_PART, ROUNDS_PART = 0.3, 0.4

#: A choice among fewer than this many says little.
FEWEST_TRIALS = 8

#: Seconds from asking for a configuration to having it compiled, in a run with time for few: there
#: a search ends when it would only ask for more than it can measure, and others get its time.
TO_COMPILE = 5.0

#: Seconds between two looks at workers and compilers.
PAUSE = 0.05

#: A worker that cannot even start is tried so often before the run gives up.
STARTS = 3


@dataclass
class Asked:
    """A trial that was asked for: its number in the study, and its sources at the compiler."""

    number: int
    config: Config
    builds: list[Future] = field(default_factory=list)

    @property
    def built(self) -> bool:
        """True if no source is at the compiler any more."""
        return all(build.done() for build in self.builds)

    def complaint(self) -> str:
        """The compiler's words if it refused a source."""
        for build in self.builds:
            failure = build.exception()
            if isinstance(failure, CompileFailed):
                return str(failure)
            if failure is not None:
                raise failure
        return ""


class Session:
    """The search over one kernel's configurations for one problem.

    `stop` is asked between steps; once it is true, or `ends` (monotonic seconds) or `most` trials
    are reached, nothing new begins. `ahead` configurations are compiled before they are needed.
    `quick` has an arena's operands and checks.
    """

    def __init__(
        self,
        problem: Problem,
        kernel: Kernel,
        search: Search,
        workers: Sequence[Worker],
        compiler: Any,
        log: TrialLog,
        progress: Progress,
        stop: Callable[[], bool],
        ahead: int = 2,
        seed: int = 0,
        limit: float | None = None,
        quick: bool = False,
    ) -> None:
        self.problem, self.kernel, self.search = problem, kernel, search
        self.workers, self.compiler, self.log, self.progress = workers, compiler, log, progress
        self.stop, self.ahead, self.seed, self.limit = stop, ahead, seed, limit
        self.quick = quick
        self._ahead: deque[Asked] = deque()
        self._ends = math.inf
        self._measuring: dict[int, Asked] = {}

    @property
    def device(self):
        """The device that is tuned; all workers have the same kind."""
        return self.workers[0].device

    def run(self, ends: float, most: int | None = None, latest: float = 0.0) -> None:
        """Search until the time is over or there is nothing left to try. While fewer than
        `FEWEST_TRIALS` configurations were measured, as where the compiler lags behind, the time is
        over only at `latest`.
        """
        try:
            self._ends = ends
            while not self.stop():
                enough = len(self.search) >= FEWEST_TRIALS
                if time.monotonic() >= (ends if enough else max(ends, latest)):
                    return
                self._ask(most)
                if not self._ahead and not self._measuring:
                    return
                self._hand_out()
                self._wait()
                self._collect()
                self.progress.tick(self.compiler.pending)
        finally:
            self._give_up()

    def _ask(self, most: int | None) -> None:
        """Keep as many configurations compiled ahead as there are workers and compilers.

        On a CPU nothing is sent to the compiler while something is measured.
        """
        if self.device.kind == "cpu" and self._measuring:
            return
        depth = len(self.workers) + self.ahead
        while len(self._ahead) < depth and not self.stop():
            begun = len(self.search) + len(self._ahead) + len(self._measuring)
            if self.quick and not self.search.queued and self._ends - time.monotonic() < TO_COMPILE:
                return  # what is asked for now would not be compiled in time
            if (most is not None and begun >= most) or (asked := self.search.ask()) is None:
                return
            texts = sources(asked[1], self.problem)[: 1 if self.quick else None]
            builds = [self.compiler.submit(source) for source in texts]
            self._ahead.append(Asked(*asked, builds))

    def _hand_out(self) -> None:
        """Give each idle worker the next compiled configuration.

        A CPU is measured only while nothing compiles: the two would share its cores.
        """
        if self.device.kind == "cpu" and self.compiler.pending:
            return
        for place, worker in enumerate(self.workers):
            while place not in self._measuring and (asked := self._next_built()):
                if complaint := asked.complaint():
                    failed = Trial(self.problem, asked.config, "compile_failed", detail=complaint)
                    self._record(asked, failed)
                    continue
                best = self.search.best[1] if self.search.best else None
                request = Request(
                    "measure", self.problem, (asked.config,), self.seed, best, quick=self.quick
                )
                limit = self.limit or time_limit(self.problem, self.device, best, self.quick)
                self._measuring[place] = asked
                begin(worker, request, limit)

    def _next_built(self) -> Asked | None:
        """The first of those asked for that is compiled: one text that takes long holds up none."""
        for asked in self._ahead:
            if asked.built:
                self._ahead.remove(asked)
                return asked
        return None

    def _wait(self) -> None:
        connections = [self.workers[place].connection for place in self._measuring]
        if connections:
            wait(connections, timeout=PAUSE)
        elif self._ahead:
            waiting = [build for build in self._ahead[0].builds if not build.done()]
            if waiting:
                _settle(waiting[0], PAUSE)

    def _collect(self) -> None:
        for place in list(self._measuring):
            reply = self.workers[place].result()
            if reply is not None:
                asked = self._measuring.pop(place)
                self._record(asked, trial_of(reply, self.problem, asked.config))

    def _record(self, asked: Asked, trial: Trial) -> None:
        self.log.write(trial, self.device)
        self.search.tell(asked.number, trial)
        self.progress.trial(trial)

    def _give_up(self) -> None:
        """Let go of what was asked for and not measured; the next run asks for it again."""
        for place, asked in self._measuring.items():
            self.workers[place].stop()
            self.search.forget(asked.number, asked.config)
        for asked in self._ahead:
            for build in asked.builds:
                build.cancel()
            self.search.forget(asked.number, asked.config)
        self._measuring.clear()
        self._ahead.clear()

    def decide(
        self, against_others: bool, budget: float = math.inf, saved: Sequence[Config] = ()
    ) -> Decision | None:
        """Measure the best few, the default and what is `saved` in turn, for about `budget`
        seconds, and say which is to be saved now. None if nothing works, or if that would take
        longer than one who pressed Ctrl-C waits. So what is saved gives way only to what was as
        fast beside it, however little was searched; and of several kernels' records, of which the
        fastest is used, the times are of one run.
        """
        default = self.kernel.default_for(self.problem, self.device)
        short = min(self.search.ranking.values(), default=math.inf) < SHORT
        best = self.search.best_configs(FINALISTS_IF_SHORT if short else FINALISTS)
        known = (default, *saved)
        may_run = [c for c in known if not c.kernel.violations(c, self.problem, self.device)]
        if self.stop():
            budget, against_others = min(budget, LAST_SECONDS), False
        best = self._affordable(best, len(may_run) + 2 * against_others, budget)
        configs = tuple(dict.fromkeys((*may_run, *(c for c in best if c != default))))
        longest = max((self.search.ranking.get(c, 0.0) for c in configs), default=0.0)
        calls = len(configs) + 2 * against_others
        rounds = int(FINAL_SECONDS / max(calls * longest, 1e-9))
        rounds = min(FINAL_ROUNDS, max(FEWEST_ROUNDS, rounds))
        request = Request(
            "compare", self.problem, configs, self.seed, None, rounds, against_others, self.quick,
            ROUNDS_PART * budget, checking=CHECK_PART * budget,
        )  # fmt: skip
        limit = self.limit or time_limit(self.problem, self.device, quick=self.quick)
        limit *= 1 if self.quick else len(configs)
        trials, times = self._compare(request, limit)
        for trial in trials:
            self.log.write(trial, self.device, role="final")
        return choose(default, trials, times)

    def _affordable(self, best: list[Config], others: int, budget: float) -> list[Config]:
        """As many of the best, at least one, as `FEWEST_ROUNDS` beside `others` have time for."""
        seconds = [self.search.ranking.get(config, 0.0) for config in best]
        rounds = ROUNDS_PART * budget / (FEWEST_ROUNDS + 1)
        while len(seconds) > 1 and sum(seconds) + others * seconds[0] > rounds:
            seconds.pop()
        return best[: len(seconds)]

    def _compare(self, request: Request, limit: float) -> tuple[list[Trial], dict]:
        """The trials of a comparison; should one of them bring the child down, all others. None of
        one that is not over `GRACE` seconds after the run was to stop.
        """
        worker = self.workers[0]
        begin(worker, request, limit + 2 * FINAL_SECONDS)
        reply = self._awaited(worker)
        if reply is None or not reply.lost:
            return (list(reply.trials), reply.times) if reply else ([], {})
        trials = []
        for config in request.configs:
            alone = replace(request, configs=(config,), against_others=False)
            begin(worker, alone, limit)
            reply = self._awaited(worker)
            if reply is None:
                break
            trials.append(trial_of(reply, self.problem, config))
        return trials, {}

    def _awaited(self, worker: Worker) -> Reply | None:
        """The reply to what was begun; None, and no child any more, if it keeps a user waiting who
        pressed Ctrl-C.
        """
        asked_at = math.inf
        while (reply := worker.result(timeout=0.2)) is None:
            self.progress.tick(0)
            if self.stop():
                asked_at = min(asked_at, time.monotonic())
            if time.monotonic() - asked_at > LAST_SECONDS + GRACE:
                worker.stop()
                return None
        return reply


def begin(worker: Worker, request: Request, limit: float) -> None:
    """Send a request, with a few tries to start a child if there is none. Raises `WorkerFailed`."""
    for attempt in range(STARTS):
        try:
            return worker.begin(request, limit)
        except WorkerFailed:
            if attempt == STARTS - 1:
                raise
    return None


def trial_of(reply: Reply, problem: Problem, config: Config) -> Trial:
    """The trial that a reply is about, also where the child did not live to describe it."""
    if reply.trials:
        return reply.trials[0]
    return Trial(problem, config, reply.outcome, detail=reply.detail)


def _settle(build: Future, seconds: float) -> None:
    try:
        build.exception(timeout=seconds)
    except TimeoutError:
        return
