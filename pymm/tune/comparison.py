"""The comparison at the end of a search: the best few, timed in turn with the defaults, the stored
configurations and the baselines.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel
from pymm.measure.workbench import Trial, median_and_spread
from pymm.measure.worker import Reply, Request, Worker, WorkerFailed, begin, time_limit
from pymm.tune.finals import (
    CHOSEN,
    MOST_SPREAD,
    Decision,
    choose,
    doubtful,
    impossible,
    keep,
    plausible,
)
from pymm.tune.objective import least_energy
from pymm.tune.race import Race
from pymm.tune.session import TRIED_AGAIN, Setup, trial_of

#: Finalists: the fastest configurations of the search, timed again in turn with the default; more
#: of them where a product takes less than `SHORT` seconds. A short kernel that is timed by itself
#: finds its code in the instruction cache, in turn with others it does not (bf16 256 on an H200:
#: 5.3 and 6.6 us), so only the second order of short ones is to be trusted.
FINALISTS, FINALISTS_IF_SHORT, SHORT = 6, 24, 1e-4

#: Finalists where energy is measured, which takes a second or more of each.
FINALISTS_BY_ENERGY = 4

#: The default of another kernel than the highest is a finalist if a trial of it took at most so
#: many times as long as the best.
DEFAULT_BEHIND = 1.5

#: Seconds for this comparison; how often it is made at most, where a time is doubtful; seconds of
#: rest before a repetition; and the part of the first one's time that a repetition needs.
FINAL_SECONDS, COMPARISONS, REST, LEAST_PART = 6.0, 3, 0.5, 0.75

#: Rounds of the comparison, fewer where they would take longer than `FINAL_SECONDS`.
FINAL_ROUNDS, FEWEST_ROUNDS = 101, 5

#: After Ctrl-C the best so far is still compared with the default if that takes at most so many
#: seconds. It is aborted `LAST_GRACE` seconds later: then nothing is saved for the problem.
LAST_SECONDS, LAST_GRACE = 1.0, 2.0

#: Fractions of a comparison's time: for verifying before timing (as much is used after it), and for
#: timing, which also gets what verifying leaves.
CHECK_PART, ROUNDS_PART = 0.3, 0.4


@dataclass(frozen=True)
class Attempt:
    """One comparison: its decision, the doubtful configurations with the reason, the libraries
    whose times spread and by how much, and what was measured, `on` which device by its name.
    """

    decision: Decision | None
    doubts: dict[Config, str]
    unsteady: dict[str, float]
    trials: list[Trial]
    times: dict[str, list[float]]
    on: str

    @property
    def rank(self) -> int:
        """2 if it has a winner whose times may be saved, 1 if they are doubtful, 0 without one."""
        return 0 if self.decision is None else 1 if self.decision.doubt else 2


def _doubts(decision: Decision) -> dict[Config, str]:
    """Why times that a decision would save are doubtful, by configuration."""
    chosen = (decision.winner, *decision.rivals, *decision.thrifty)
    return {trial.config: why for trial in chosen if (why := doubtful(trial))}


@dataclass
class Comparison:
    """The final of one problem. `kernels` are those that were searched, the preferred one first,
    `expected` is what the longest of the latest measurements took. `doubts` says which times
    `decide` found doubtful and why, `unsteady` of which libraries the times spread, by how much.
    """

    problem: Problem
    kernels: Sequence[Kernel]
    search: Race
    setup: Setup
    expected: float = 0.0
    doubts: list[str] = field(default_factory=list)
    unsteady: dict[str, float] = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The device that is tuned."""
        return self.setup.crew.device

    @property
    def defaults(self) -> list[Config]:
        """The default of each kernel."""
        return [kernel.default_for(self.problem, self.device) for kernel in self.kernels]

    def decide(
        self, against_others: bool, ends: float = math.inf, saved: Sequence[Config] = ()
    ) -> Decision | None:
        """Time the best few, the defaults and the `saved` configurations in turn until `ends`, and
        say which is to be saved. A stored configuration is replaced only if it is beaten in this
        run; records of other kernels for the same problem get times of the same run.

        If a time that would be saved is doubtful, or a library's times spread, the comparison is
        repeated while time is left; the latest one with a winner whose times may be saved counts.
        What stays doubtful is left out, and the fastest of the others is chosen. If that is a
        doubtful default, or the default fails and something is stored, the decision has a `doubt`.
        None if no configuration works, or if the comparison would take too long after Ctrl-C.
        """
        configs = self._finalists(saved, ends)
        began = time.monotonic()
        budget = max(0.0, min(FINAL_SECONDS, (ends - began) / 2))
        attempts = [self._final(configs, against_others, budget, saved)]
        least = LEAST_PART * (time.monotonic() - began)
        try:
            while len(attempts) < COMPARISONS and not self.setup.stop():
                left = ends - time.monotonic() - REST
                if left < least or not (attempts[-1].doubts or attempts[-1].unsteady):
                    break
                time.sleep(REST)
                attempts.append(self._final(configs, against_others, min(budget, left), saved))
        finally:  # whatever ends a repetition
            attempts.sort(key=lambda attempt: attempt.rank)
            for attempt in attempts:  # in a file the last one counts
                self._log_final(attempt)
        decision, doubts = attempts[-1].decision, attempts[-1].doubts
        self.doubts = [f"{config.slug}: {why}" for config, why in doubts.items()]
        self.unsteady = attempts[-1].unsteady
        if decision is None or decision.doubt:
            return decision
        rivals = tuple(trial for trial in decision.rivals if trial.config not in doubts)
        thrifty = [trial for trial in decision.thrifty if trial.config not in doubts]
        return replace(decision, rivals=rivals, thriftiest=next(iter(thrifty), None))

    def _finalists(self, saved: Sequence[Config], ends: float) -> tuple[Config, ...]:
        """The defaults, the saved ones, and as many of the fastest as there is time to verify."""
        default, *others = self.defaults
        limit = DEFAULT_BEHIND * min(self.search.ranking.values(), default=0.0)
        near = [c for c in others if self.search.ranking.get(c, math.inf) <= limit]
        known = (default, *near, *saved)
        may_run = [c for c in known if not c.kernel.violations(c, self.problem, self.device)]
        costs = self.search.costs.values()
        short = min((cost.seconds for cost in costs), default=math.inf) < SHORT
        count = FINALISTS_IF_SHORT if short else FINALISTS
        count = FINALISTS_BY_ENERGY if self.setup.energy else count
        left = (ends - time.monotonic()) / 2
        if (each := self.expected) * count > left:
            count = max(1, int(left / max(each, 1e-9)) - len(may_run))
        budget = min(FINAL_SECONDS, left) if not self.setup.stop() else LAST_SECONDS
        best = self._affordable(self.search.best_configs(count), len(may_run), budget)
        return tuple(dict.fromkeys((*may_run, *best)))

    def _final(
        self,
        configs: tuple[Config, ...],
        against_others: bool,
        budget: float,
        saved: Sequence[Config],
    ) -> Attempt:
        """One comparison."""
        if self.setup.stop():
            budget, against_others = min(budget, LAST_SECONDS), False
        longest = max(map(self._seconds, configs), default=0.0)
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
            energy=self.setup.energy,
        )
        count = 1 if self.setup.quick else len(configs)
        usual = time_limit(self.problem, self.device, quick=self.setup.quick)
        limit = self.setup.limit_of(usual) * count
        trials, times = self._compare(request, limit)
        if self._lead_is_lost(trials):
            return self._final(configs, against_others, budget, saved)
        doubts = {t.config: why for t in trials if (why := impossible(t, self.device))}
        trials = [plausible(trial, self.device) for trial in trials]
        decision, unsteady = self._chosen(trials, times, saved), {}
        if decision is not None and self.device.times_are_real:  # else its times mean nothing
            spreads = {name: median_and_spread(found)[1] for name, found in times.items() if found}
            unsteady = {name: s for name, s in spreads.items() if s > MOST_SPREAD}
            doubts |= _doubts(decision)
            if decision.winner.config in doubts:
                decision = self._of_others(decision, doubts, trials, times, saved)
        on = self.setup.crew.name(self.setup.crew.lead)
        return Attempt(decision, doubts, unsteady, trials, times, on)

    def _of_others(
        self,
        first: Decision,
        doubts: dict[Config, str],
        trials: Sequence[Trial],
        times: dict[str, list[float]],
        saved: Sequence[Config],
    ) -> Decision | None:
        """The decision among the default and what is not doubtful, where the winner of the `first`
        one is; what it adds to `doubts` is added. Nothing is saved, and what is stored or else the
        default is kept, if the default wins and is doubtful, or fails.
        """
        default, stored = self.defaults[0], self._stored(trials, saved)
        others = [t for t in trials if t.config == default or not doubtful(t)]
        decision = self._chosen(others, times, saved)
        if decision is None:
            return keep(first, doubts[first.winner.config], stored) if stored else None
        doubts |= _doubts(decision)
        if why := doubts.get(decision.winner.config, ""):
            return keep(decision, why, stored)
        return decision

    def _stored(self, trials: Sequence[Trial], saved: Sequence[Config]) -> list[Trial]:
        """The trial of the first stored configuration of each kernel that was searched: the user's
        come before the shipped ones, in `saved` as when they are used.
        """
        right = {trial.config: trial for trial in trials if trial.outcome == "ok"}
        first = {c.kernel_name: right[c] for c in reversed(saved) if c in right}
        return [first[kernel.name] for kernel in self.kernels if kernel.name in first]

    def _chosen(
        self, trials: Sequence[Trial], times: dict[str, list[float]], saved: Sequence[Config]
    ) -> Decision | None:
        decision = choose(self.defaults, trials, times, saved)
        if decision is None or not self.setup.energy:
            return decision
        return replace(decision, thriftiest=least_energy(self.defaults[0], trials))

    def _log_final(self, attempt: Attempt) -> None:
        """Log one comparison: its trials, then the libraries in it by name, in seconds, beside the
        kernel that won.
        """
        log, decision, on = self.setup.log, attempt.decision, attempt.on
        kernel = decision.winner.config.kernel_name if decision else self.kernels[0].name
        for trial in attempt.trials:
            if decision is not None and trial is decision.winner:
                trial = replace(trial, detail=decision.doubt or f"{CHOSEN}{decision.words}")
            log.write(trial, self.device, "final", on)
        for library, seconds in attempt.times.items():
            if seconds:
                log.write_baseline(self.problem, kernel, library, seconds, self.device, on)

    def _affordable(self, best: list[Config], others: int, budget: float) -> list[Config]:
        """As many of the best, at least one, as fit into `FEWEST_ROUNDS` rounds with `others`."""
        seconds = [self._seconds(config) for config in best]
        rounds = ROUNDS_PART * budget / (FEWEST_ROUNDS + 1)
        while len(seconds) > 1 and sum(seconds) + others * seconds[0] > rounds:
            seconds.pop()
        return best[: len(seconds)]

    def _seconds(self, config: Config) -> float:
        """The time of a configuration in the search, 0 for one that was not tried."""
        cost = self.search.costs.get(config)
        return cost.seconds if cost else 0.0

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
