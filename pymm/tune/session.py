"""The search over one kernel's configurations for one problem: ask, compile ahead, measure, tell;
at the end the best few are timed in turn.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
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
from pymm.measure.worker import Reply, Request, Worker, WorkerFailed, begin, time_limit
from pymm.tune.devices import Crew
from pymm.tune.finals import Decision, choose, doubtful, impossible
from pymm.tune.progress import Progress
from pymm.tune.study import Search
from pymm.tune.trial_log import TrialLog

#: Finalists: the fastest configurations of the search, timed again in turn with the default; more
#: of them where a product takes less than `SHORT` seconds. A short kernel that is timed by itself
#: finds its code in the instruction cache, in turn with others it does not (bf16 256 on an H200:
#: 5.3 and 6.6 us), so only the second order of short ones is to be trusted.
FINALISTS, FINALISTS_IF_SHORT, SHORT = 6, 24, 1e-4

#: At least the default and one more.
FEWEST_FINALISTS = 2

#: Seconds for this comparison; how often it is repeated at most, where a time is doubtful; and
#: seconds of rest before a repetition.
FINAL_SECONDS, COMPARISONS, REST = 6.0, 3, 0.5

#: Rounds of the comparison, fewer where they would take longer than `FINAL_SECONDS`.
FINAL_ROUNDS, FEWEST_ROUNDS = 101, 5

#: After Ctrl-C the best so far is still compared with the default if that takes at most so many
#: seconds. It is aborted `LAST_GRACE` seconds later: then nothing is saved for the problem.
LAST_SECONDS, LAST_GRACE = 1.0, 2.0

#: Fractions of a comparison's time: for verifying before timing (as much is used after it), and for
#: timing.
CHECK_PART, ROUNDS_PART = 0.3, 0.4

#: A search of fewer trials than this is reported as short.
FEWEST_TRIALS = 8

#: Seconds from asking for a configuration to having it compiled. A quick search asks for no more
#: when less time is left: the next search gets that time.
TO_COMPILE = 5.0

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
    if it failed before, `failed_at` in which place; `began` is when a worker got it.
    """

    number: int
    config: Config
    builds: list[Future] = field(default_factory=list)
    again: bool = False
    failed_at: int | None = None
    began: float = 0.0

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
    checks of `measure.quick_check`; `accumulate` adds the product to C.
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
    streak: Streak = field(default_factory=Streak)


class Session:
    """The search over one kernel's configurations for one problem.

    Between two steps `setup.stop` is asked; once it is true, or `ends` (monotonic seconds) or
    `most` trials are reached, nothing new begins. A trial whose failure may have been the machine's
    is tried once more. `doubts` says why `decide` left a configuration out.
    """

    def __init__(self, problem: Problem, kernel: Kernel, search: Search, setup: Setup) -> None:
        self.problem, self.kernel, self.search, self.setup = problem, kernel, search, setup
        self.doubts: list[str] = []
        self._ahead: deque[Asked] = deque()
        self._ends = self._began = math.inf
        self._took: deque[float] = deque(maxlen=LATEST)
        self._warm = False
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
                to_come = self._expected + max(reserve, FEWEST_FINALISTS * self._expected)
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
    def _expected(self) -> float:
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

        On a CPU nothing is sent to the compiler while something is measured.
        """
        if self.device.shares_host_cores and self._measuring:
            return False
        if len(self._ahead) >= len(self.setup.crew) + self.setup.ahead or self.setup.stop():
            return False
        now = time.monotonic()
        late = self.setup.quick and self._ends - now < TO_COMPILE
        if late and not self.search.queued:
            return False  # it would not be compiled in time
        if not late:
            self.search.limit_queue(most, (now - self._began) / max(self._ends - self._began, 1e-9))
        if (asked := self.search.ask(most)) is None:
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
        if self.device.shares_host_cores and self.setup.compiler.pending:
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
        best = self.search.best[1] if self.search.best else None
        quick, seed = self.setup.quick, self.setup.seed
        request = Request("measure", self.problem, (asked.config,), seed, best, quick=quick)
        request = replace(request, accumulate=self.setup.accumulate)
        limit = self.setup.limit or time_limit(self.problem, self.device, best, quick)
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
        trial, crew = self._plausible(trial), self.setup.crew
        measured_on = "" if place is None else crew.name(place)
        origin = self.search.origin(asked.number)
        self.setup.log.write(trial, self.device, measured_on=measured_on, origin=origin)
        failed = trial.outcome in TRIED_AGAIN
        if failed and not asked.again:
            again = self._compile(asked.config)
            self._ahead.append(Asked(asked.number, asked.config, again, True, place))
        else:
            self.search.tell(asked.number, trial)
        if place is not None and not failed:
            crew.worked(place, asked.failed_at)
            self._take_back()
        self.setup.progress.trial(trial)
        self.setup.streak.add(trial)

    def _take_back(self) -> None:
        """Have what a device that was left out was measuring measured by another."""
        for place in set(self._measuring) - set(self.setup.crew.places):
            self._ahead.appendleft(self._measuring.pop(place))

    def _plausible(self, trial: Trial) -> Trial:
        """The trial; one whose time is impossible is `disturbed`."""
        if why := impossible(trial, self.device):
            return Trial(self.problem, trial.config, "disturbed", detail=why)
        return trial

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

    def decide(
        self, against_others: bool, ends: float = math.inf, saved: Sequence[Config] = ()
    ) -> Decision | None:
        """Time the best few, the default and the `saved` configurations in turn until `ends`, and
        say which is to be saved. A stored configuration is replaced only if it is beaten in this
        run; records of other kernels for the same problem get times of the same run.

        If a time that would be saved is doubtful, the comparison is repeated while time is left.
        What stays doubtful is left out. None if the fastest is doubtful, if no configuration works,
        or if the comparison would take too long after Ctrl-C.
        """
        configs = self._finalists(saved, ends)
        for attempt in range(COMPARISONS):
            began = time.monotonic()
            budget = max(0.0, min(FINAL_SECONDS, (ends - began) / 2))
            decision, doubts = self._final(configs, against_others, budget)
            took = time.monotonic() - began
            if not doubts or self.setup.stop() or time.monotonic() + REST + took > ends:
                break
            if attempt < COMPARISONS - 1:
                time.sleep(REST)
        self.doubts = [f"{config.slug}: {why}" for config, why in doubts.items()]
        if decision is None or decision.winner.config in doubts:
            return None
        rivals = tuple(trial for trial in decision.rivals if trial.config not in doubts)
        return replace(decision, rivals=rivals)

    def _finalists(self, saved: Sequence[Config], ends: float) -> tuple[Config, ...]:
        """The default, the saved ones, and as many of the fastest as there is time to verify."""
        default = self.kernel.default_for(self.problem, self.device)
        known = (default, *saved)
        may_run = [c for c in known if not c.kernel.violations(c, self.problem, self.device)]
        short = min(self.search.ranking.values(), default=math.inf) < SHORT
        count = FINALISTS_IF_SHORT if short else FINALISTS
        left = (ends - time.monotonic()) / 2
        if (each := self._expected) * count > left:
            count = max(1, int(left / each) - len(may_run))
        budget = min(FINAL_SECONDS, left) if not self.setup.stop() else LAST_SECONDS
        best = self._affordable(self.search.best_configs(count), len(may_run), budget)
        best = [c for c in best if c != default]
        return tuple(dict.fromkeys((*may_run, *best)))

    def _final(
        self, configs: tuple[Config, ...], against_others: bool, budget: float
    ) -> tuple[Decision | None, dict[Config, str]]:
        """One comparison: its decision, and the doubtful configurations with the reason."""
        if self.setup.stop():
            budget, against_others = min(budget, LAST_SECONDS), False
        longest = max((self.search.ranking.get(c, 0.0) for c in configs), default=0.0)
        calls = len(configs) + 2 * against_others
        rounds = int(FINAL_SECONDS / max(calls * longest, 1e-9))
        rounds = min(FINAL_ROUNDS, max(FEWEST_ROUNDS, rounds))
        request = Request(
            "compare",
            self.problem,
            configs,
            self.setup.seed,
            None,
            rounds,
            against_others,
            self.setup.quick,
            ROUNDS_PART * budget,
            checking=CHECK_PART * budget,
            accumulate=self.setup.accumulate,
        )
        limit = self.setup.limit or time_limit(self.problem, self.device, quick=self.setup.quick)
        limit *= 1 if self.setup.quick else len(configs)
        trials, times = self._compare(request, limit)
        if self._lead_is_lost(trials):
            return self._final(configs, against_others, budget)
        doubts = {t.config: why for t in trials if (why := impossible(t, self.device))}
        trials = [self._plausible(trial) for trial in trials]
        self._log_final(trials, times)
        default = self.kernel.default_for(self.problem, self.device)
        decision = choose(default, trials, times)
        if decision is not None and self.device.times_are_real:  # its times mean nothing
            chosen = (decision.winner, *decision.rivals)
            doubts |= {trial.config: why for trial in chosen if (why := doubtful(trial))}
        return decision, doubts

    def _log_final(self, trials: Sequence[Trial], times: dict[str, list[float]]) -> None:
        """Log one comparison: its trials, then the libraries in it by name, in seconds."""
        crew, log = self.setup.crew, self.setup.log
        on = crew.name(crew.lead)
        for trial in trials:
            log.write(trial, self.device, "final", on)
        for library, seconds in times.items():
            if seconds:
                log.write_baseline(self.problem, self.kernel, library, seconds, self.device, on)

    def _affordable(self, best: list[Config], others: int, budget: float) -> list[Config]:
        """As many of the best, at least one, as fit into `FEWEST_ROUNDS` rounds with `others`."""
        seconds = [self.search.ranking.get(config, 0.0) for config in best]
        rounds = ROUNDS_PART * budget / (FEWEST_ROUNDS + 1)
        while len(seconds) > 1 and sum(seconds) + others * seconds[0] > rounds:
            seconds.pop()
        return best[: len(seconds)]

    def _compare(self, request: Request, limit: float) -> tuple[list[Trial], dict]:
        """The trials and times of a comparison. If a configuration kills the child, each is tried
        by itself. Empty if the comparison was aborted after Ctrl-C.
        """
        reply = self._reply(request, limit + 2 * FINAL_SECONDS)
        if reply is None or not reply.lost:
            return (list(reply.trials), reply.times) if reply else ([], {})
        trials = []
        for config in request.configs:
            alone = replace(request, configs=(config,), against_others=False)
            if (reply := self._reply(alone, limit)) is None:
                break
            trials.append(trial_of(reply, self.problem, config))
        return trials, {}

    def _reply(self, request: Request, limit: float) -> Reply | None:
        """The reply of the device that times finals; of the next one where it cannot be opened any
        more. None if it was aborted after Ctrl-C.
        """
        crew = self.setup.crew
        while True:
            worker = crew[crew.lead]
            try:
                begin(worker, request, limit)
                return self._awaited(worker)
            except WorkerFailed as failure:
                crew.leave_out(crew.lead, failure)

    def _lead_is_lost(self, trials: Sequence[Trial]) -> bool:
        """Leave out the device that times finals if all of them failed there, all of which have
        worked in the search, and there is another; whether it was.
        """
        crew = self.setup.crew
        works = any(trial.outcome not in TRIED_AGAIN for trial in trials)
        if works or not trials or len(crew) == 1 or self.setup.stop():
            return False
        crew.leave_out(crew.lead, WorkerFailed("every finalist failed there"))
        return True

    def _awaited(self, worker: Worker) -> Reply | None:
        """The reply to the request; None if it was aborted after Ctrl-C, with the child."""
        stopped_at = math.inf
        while (reply := worker.result(timeout=0.2)) is None:
            self.setup.progress.tick(0)
            if self.setup.stop():
                stopped_at = min(stopped_at, time.monotonic())
            if time.monotonic() - stopped_at > LAST_SECONDS + LAST_GRACE:
                worker.stop()
                return None
        return reply


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
