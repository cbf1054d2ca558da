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

from pymm.core.errors import CompileFailed
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel
from pymm.measure.verify import sources
from pymm.measure.workbench import Trial
from pymm.measure.worker import Reply, Request, Worker, begin, time_limit
from pymm.tune.finals import Decision, choose, doubtful, impossible
from pymm.tune.progress import Progress
from pymm.tune.study import Search
from pymm.tune.trial_log import TrialLog

#: Fastest configurations of the search that are measured again, in turn with the default: more
#: of those that take less than `SHORT` seconds. By themselves these find their own text in the
#: instruction cache, in turn with others they do not (bf16 256 on an H200: 5.3 and 6.6 us).
FINALISTS, FINALISTS_IF_SHORT, SHORT = 6, 24, 1e-4

#: And at least the default and one more.
FEWEST_FINALISTS = 2

#: Seconds for it; how often it is made at most, where a time is doubtful; seconds of rest before.
FINAL_SECONDS, COMPARISONS, REST = 6.0, 3, 0.5

#: Rounds of that comparison, fewer where they would take longer than `FINAL_SECONDS`.
FINAL_ROUNDS, FEWEST_ROUNDS = 101, 5

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


#: A measurement is expected to take as long as the longest of so many before it.
LATEST = 5

#: Seconds that what is being measured has to end once a search is over.
GRACE = 5.0

#: Outcomes that may have been the machine's: such a configuration is tried once more.
TRIED_AGAIN = ("launch_failed", "crashed", "disturbed", "compile_timeout")

#: So many trials in a row that fail alike say something of the device or the compiler.
SAME_FAILURES = 10


class Broken(RuntimeError):
    """Trial after trial fails alike: nothing more is to be learnt on this machine as it is."""


@dataclass
class Streak:
    """Trials in a row that failed alike, from one search to the next."""

    outcome: str = ""
    count: int = 0

    def add(self, trial: Trial) -> None:
        """One more trial. Raises `Broken` if it is one too many."""
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
    """A trial that was asked for: its number in the study, and its sources at the compiler.
    `again` if it failed before, `began` when it was handed to a worker.
    """

    number: int
    config: Config
    builds: list[Future] = field(default_factory=list)
    again: bool = False
    began: float = 0.0

    @property
    def built(self) -> bool:
        """True if no source is at the compiler any more."""
        return all(build.done() for build in self.builds)

    def failure(self) -> CompileFailed | None:
        """What the compiler said if it made no binary of a source. Raises any other failure."""
        for build in self.builds:
            failure = build.exception()
            if isinstance(failure, CompileFailed):
                return failure
            if failure is not None:
                raise failure
        return None


class Session:
    """The search over one kernel's configurations for one problem.

    `stop` is asked between steps; once it is true, or `ends` (monotonic seconds) or `most` trials
    are reached, nothing new begins. `ahead` configurations are compiled before they are needed.
    `quick` has an arena's operands and checks. What fails for a reason that may pass is tried once
    more; `streak` counts what fails alike. `doubts` says why `decide` left something out.
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
        streak: Streak | None = None,
    ) -> None:
        self.problem, self.kernel, self.search = problem, kernel, search
        self.workers, self.compiler, self.log, self.progress = workers, compiler, log, progress
        self.stop, self.ahead, self.seed, self.limit = stop, ahead, seed, limit
        self.quick = quick
        self.streak = streak or Streak()
        self.doubts: list[str] = []
        self._ahead: deque[Asked] = deque()
        self._ends = math.inf
        self._took: deque[float] = deque(maxlen=LATEST)
        self._prepared = False
        self._measuring: dict[int, Asked] = {}

    @property
    def device(self):
        """The device that is tuned; all workers have the same kind."""
        return self.workers[0].device

    def run(
        self, ends: float, most: int | None = None, latest: float = 0.0, reserve: float = 0.0
    ) -> None:
        """Search until the time is over but for `reserve` seconds, in which to `decide`, or there
        is nothing left to try. While fewer than `FEWEST_TRIALS` configurations were measured, as
        where the compiler lags behind, the time is over only at `latest`. Nothing is begun that
        would not end in time, and what is being measured then has time to end. Raises `Broken`.
        """
        try:
            self._ends, latest = ends - reserve, max(ends, latest)
            while not self.stop():
                enough = len(self.search) >= FEWEST_TRIALS
                to_come = self._expected + max(reserve, FEWEST_FINALISTS * self._expected)
                if time.monotonic() + to_come >= (ends if enough else latest):
                    break
                self._ask(most)
                if not self._ahead and not self._measuring:
                    break
                self._hand_out()
                self._wait()
                self._collect()
                self.progress.tick(self.compiler.pending)
            self._let_end(0.0 if self.stop() else latest)
        finally:
            self._give_up()

    @property
    def _expected(self) -> float:
        """Seconds that a measurement takes, by the clock: the longest of the latest ones."""
        return max(self._took, default=0.0)

    def _let_end(self, until: float) -> None:
        """Wait for what is being measured: a worker that is killed has to be started again."""
        until = max(until, time.monotonic() + GRACE)
        while self._measuring and time.monotonic() < until:
            self._wait()
            self._collect()

    def _ask(self, most: int | None) -> None:
        """Keep as many configurations compiled ahead as there are workers and compilers.

        On a CPU nothing is sent to the compiler while something is measured.
        """
        if self.device.shares_host_cores and self._measuring:
            return
        depth = len(self.workers) + self.ahead
        while len(self._ahead) < depth and not self.stop():
            begun = len(self.search) + len(self._ahead) + len(self._measuring)
            if self.quick and not self.search.queued and self._ends - time.monotonic() < TO_COMPILE:
                return  # what is asked for now would not be compiled in time
            if (most is not None and begun >= most) or (asked := self.search.ask()) is None:
                return
            self._ahead.append(Asked(*asked, self._compile(asked[1])))

    def _compile(self, config: Config) -> list[Future]:
        texts = sources(config, self.problem)[: 1 if self.quick else None]
        return [self.compiler.submit(source) for source in texts]

    def _hand_out(self) -> None:
        """Give each idle worker the next compiled configuration.

        A CPU is measured only while nothing compiles: the two would share its cores.
        """
        if self.device.shares_host_cores and self.compiler.pending:
            return
        for place, worker in enumerate(self.workers):
            while place not in self._measuring and (asked := self._next_built()):
                if failure := asked.failure():
                    outcome, words = failure.outcome, str(failure)
                    self._record(asked, Trial(self.problem, asked.config, outcome, detail=words))
                    continue
                best = self.search.best[1] if self.search.best else None
                request = Request(
                    "measure", self.problem, (asked.config,), self.seed, best, quick=self.quick
                )
                limit = self.limit or time_limit(self.problem, self.device, best, self.quick)
                asked.began = time.monotonic()
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
                if not reply.lost and self._prepared:
                    self._took.append(time.monotonic() - asked.began)
                self._prepared = True  # the first one makes the operands, too
                self._record(asked, trial_of(reply, self.problem, asked.config))

    def _record(self, asked: Asked, trial: Trial) -> None:
        trial = self._plausible(trial)
        self.log.write(trial, self.device)
        if trial.outcome in TRIED_AGAIN and not asked.again:
            again = self._compile(asked.config)
            self._ahead.append(Asked(asked.number, asked.config, again, again=True))
        else:
            self.search.tell(asked.number, trial)
        self.progress.trial(trial)
        self.streak.add(trial)

    def _plausible(self, trial: Trial) -> Trial:
        """The trial; one whose time is impossible is `disturbed`."""
        if why := impossible(trial, self.device):
            return Trial(self.problem, trial.config, "disturbed", detail=why)
        return trial

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
        self, against_others: bool, ends: float = math.inf, saved: Sequence[Config] = ()
    ) -> Decision | None:
        """Measure the best few, the default and what is `saved` in turn, until `ends` if a few
        rounds take no longer, and say which is to be saved now. So what is saved gives way only to
        what was as fast beside it, however little was searched; and of several kernels' records, of
        which the fastest is used, the times are of one run.

        While a time that would be saved is doubtful, all are measured again, if the time suffices.
        What stays doubtful is left out, and None returned if it is the fastest; also if nothing
        works, or if that would take longer than one who pressed Ctrl-C waits.
        """
        configs = self._finalists(saved, ends)
        for attempt in range(COMPARISONS):
            began = time.monotonic()
            budget = max(0.0, min(FINAL_SECONDS, (ends - began) / 2))
            decision, doubts = self._final(configs, against_others, budget)
            took = time.monotonic() - began
            if not doubts or self.stop() or time.monotonic() + REST + took > ends:
                break
            if attempt < COMPARISONS - 1:
                time.sleep(REST)
        self.doubts = [f"{config.slug}: {why}" for config, why in doubts.items()]
        if decision is None or decision.winner.config in doubts:
            return None
        rivals = tuple(trial for trial in decision.rivals if trial.config not in doubts)
        return replace(decision, rivals=rivals)

    def _finalists(self, saved: Sequence[Config], ends: float) -> tuple[Config, ...]:
        """The default, what is saved, and as many of the fastest as there is time to check."""
        default = self.kernel.default_for(self.problem, self.device)
        known = (default, *saved)
        may_run = [c for c in known if not c.kernel.violations(c, self.problem, self.device)]
        short = min(self.search.ranking.values(), default=math.inf) < SHORT
        count = FINALISTS_IF_SHORT if short else FINALISTS
        left = (ends - time.monotonic()) / 2
        if (each := self._expected) * count > left:
            count = max(1, int(left / each) - len(may_run))
        budget = min(FINAL_SECONDS, left) if not self.stop() else LAST_SECONDS
        best = self._affordable(self.search.best_configs(count), len(may_run), budget)
        best = [c for c in best if c != default]
        return tuple(dict.fromkeys((*may_run, *best)))

    def _final(
        self, configs: tuple[Config, ...], against_others: bool, budget: float
    ) -> tuple[Decision | None, dict[Config, str]]:
        """One comparison, what it comes to, and what is doubtful of that by configuration."""
        if self.stop():
            budget, against_others = min(budget, LAST_SECONDS), False
        longest = max((self.search.ranking.get(c, 0.0) for c in configs), default=0.0)
        calls = len(configs) + 2 * against_others
        rounds = int(FINAL_SECONDS / max(calls * longest, 1e-9))
        rounds = min(FINAL_ROUNDS, max(FEWEST_ROUNDS, rounds))
        request = Request(
            "compare",
            self.problem,
            configs,
            self.seed,
            None,
            rounds,
            against_others,
            self.quick,
            ROUNDS_PART * budget,
            checking=CHECK_PART * budget,
        )
        limit = self.limit or time_limit(self.problem, self.device, quick=self.quick)
        limit *= 1 if self.quick else len(configs)
        trials, times = self._compare(request, limit)
        doubts = {t.config: why for t in trials if (why := impossible(t, self.device))}
        trials = [self._plausible(trial) for trial in trials]
        for trial in trials:
            self.log.write(trial, self.device, role="final")
        default = self.kernel.default_for(self.problem, self.device)
        decision = choose(default, trials, times)
        if decision is not None and self.device.times_are_real:  # its times mean nothing
            chosen = (decision.winner, *decision.rivals)
            doubts |= {trial.config: why for trial in chosen if (why := doubtful(trial))}
        return decision, doubts

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
