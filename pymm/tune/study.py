"""Asking and telling an Optuna study about one kernel on one problem, over its valid space only.

One study for each problem and kernel: kernels have different parameters, and Optuna's importance
plots, its TPE and a surrogate all want one fixed set of them. The study lives in a storage
(`pymm.tune.storage`), so a killed run goes on where it was, several tuners can work on it, and
`optuna-dashboard` reads it.
"""

from __future__ import annotations

import math
import os
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import BaseSampler, TPESampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState, create_trial

from pymm.kernels import Config
from pymm.measure.workbench import OUTCOMES, Trial
from pymm.tune.objective import OBJECTIVES, TIME, Cost
from pymm.tune.strategies import (
    QUEUED,
    STRATEGIES,
    Known,
    Pool,
    Strategy,
    Suggestion,
    exhaustive,
    local,
    most_promising,
)

#: Outcomes that say something of a configuration, whoever tries it again with the same compiler.
#: Any other may have been the machine's, and is forgotten by the next run.
LASTING = ("ok", "too_slow", "wrong", "compile_failed")

#: Outcomes of trials that ended without a result: begun, and not measured when the run ended, so
#: that the next one asks for the configuration again; and given up because another tuner has the
#: same one.
UNMEASURED, REPEATED = "unmeasured", "repeated"

#: Names for `--sampler`.
SAMPLERS = (*STRATEGIES, "tpe")

#: Part of the trials, or of the time, that the queue of first configurations may take: the rest is
#: the sampler's. At least the default and one more are tried.
QUEUE_PART, FEWEST_QUEUED = 1 / 3, 2

#: A tuner of a shared study shows every so many seconds that it lives; one that has not for so many
#: is taken for dead, and what it was measuring is tried again.
BEAT, SILENT = 5.0, 60.0

optuna.logging.set_verbosity(optuna.logging.WARNING)


def tpe(pool: Pool, known: Known, generator: np.random.Generator) -> Suggestion:
    """Optuna's TPE."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = TPESampler(
            n_startup_trials=10,
            n_ei_candidates=24,
            seed=int(generator.integers(2**31)),
            multivariate=True,
            group=False,
            constant_liar=True,
        )
    return suggested_by(sampler, pool, known)


def strategy_of(sampler: str) -> Strategy:
    """The strategy of that name. `ValueError` if there is none."""
    if sampler not in SAMPLERS:
        raise ValueError(f"sampler {sampler!r} is none of {', '.join(SAMPLERS)}")
    return tpe if sampler == "tpe" else STRATEGIES[sampler]


def suggested_by(sampler: BaseSampler, pool: Pool, known: Known) -> Suggestion:
    """What a sampler of Optuna's suggests after these results, moved to the nearest free
    configuration of the pool.
    """
    space = distributions_of(pool)
    study = optuna.create_study(sampler=sampler)
    for index, seconds in known.seconds.items():
        if math.isfinite(seconds):
            study.add_trial(_trial(pool, index, space, TrialState.COMPLETE, value=seconds))
    for index in sorted(known.pending):
        study.add_trial(_trial(pool, index, space, TrialState.RUNNING))
    wanted = study.ask(space).params
    free = known.free(pool)
    target = np.log2([wanted[name] for name in pool.names])
    distance = np.abs(np.log2(pool.values[free]) - target).sum(axis=1)
    return Suggestion(int(free[np.argmin(distance)]), "model")


def queue_limit(most: int | None) -> float:
    """How many of `most` trials the queue may take."""
    return math.inf if most is None else max(FEWEST_QUEUED, math.ceil(QUEUE_PART * most))


def distributions_of(pool: Pool) -> dict[str, BaseDistribution]:
    """The range of each parameter as Optuna has it."""
    columns = zip(pool.names, pool.values.T, strict=True)
    return {name: IntDistribution(int(v.min()), int(v.max()), log=True) for name, v in columns}


def _trial(
    pool: Pool, index: int, space: dict[str, BaseDistribution], state: TrialState, **details
) -> FrozenTrial:
    """A trial of the configuration with that index."""
    params = dict(zip(pool.names, pool.values[index].tolist(), strict=True))
    return create_trial(state=state, params=params, distributions=space, **details)


class Company:
    """The tuners that share a study. Each writes a number there that grows while it lives; whether
    one lives does not depend on the clocks of their hosts.
    """

    def __init__(self, study: Study) -> None:
        self._study = study
        self._machine = _machine()
        self.me = f"{self._machine}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._beats = 0
        self._beaten, self._looked = -math.inf, -math.inf
        self._numbers: Mapping[str, object] = {}
        self._seen: dict[str, tuple[object, float]] = {}

    def beat(self) -> None:
        """Show that this one lives, if it is time to."""
        if time.monotonic() - self._beaten >= BEAT:
            self._beaten = time.monotonic()
            self._beats += 1
            self._study.set_user_attr(f"tuner {self.me}", self._beats)

    def lives(self, owner: str, number: int) -> bool:
        """Whether the tuner `owner` lives, which began trial `number`."""
        machine, _, rest = owner.partition(":")
        if machine == self._machine and not Path("/proc", rest.partition(":")[0]).exists():
            return False
        now = time.monotonic()
        if now - self._looked >= BEAT:
            self._looked, self._numbers = now, self._study.user_attrs
        key = owner or f"trial {number}"  # of a program that writes no name
        beat = self._numbers.get(f"tuner {owner}")
        if key not in self._seen or self._seen[key][0] != beat:
            self._seen[key] = beat, now
        return now - self._seen[key][1] < SILENT


def _machine() -> str:
    """The machine and the name space of its process ids; a random name where neither is known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
        return f"{boot}-{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return uuid.uuid4().hex


class Search:
    """One study: ask for configurations that are valid and new, tell what became of them. `queued`
    counts those that wait to be asked for, `from_queue` those of the study that `enqueue` had
    brought and that were asked for. With `company` other tuners work on the study, too; without,
    whatever it says is under way was begun by one that is dead.

    What a run had begun and not measured is asked for first by the next one, in the same order, and
    a lone tuner takes over results in the order in which they were told. So its search, if it was
    interrupted with however many trials under way, asks for what it would have asked for.

    What is minimised is the `objective`, one of `OBJECTIVES`: `best`, `ranking` and the values of
    the study are in its unit, `costs` has seconds and joules of each correct configuration.

    A trial is made with its parameters in one step. Of trials with the same parameters the one with
    the lowest number counts, and whoever has made another gives it up: so nothing is measured
    twice, whatever tuners do at the same time.
    """

    def __init__(
        self,
        study: Study,
        configs: Sequence[Config],
        sampler: str | Strategy = "local",
        seed: int = 0,
        company: Company | None = None,
        objective: str = TIME,
    ) -> None:
        self.objective = objective
        self.costs: dict[Config, Cost] = {}
        self.study, self.configs, self.company = study, list(configs), company
        self.pool = Pool([config.as_dict() for config in self.configs])
        self._index = {config: index for index, config in enumerate(self.configs)}
        self._by_parameters = {config.parameters: i for config, i in self._index.items()}
        self._space = distributions_of(self.pool)
        self._strategy = sampler if callable(sampler) else strategy_of(sampler)
        self._seed = (seed, *company.me.encode()) if company else (seed,)
        self.known = Known({}, set(), self._seed)
        self.best: tuple[Config, float] | None = None
        self.ranking: dict[Config, float] = {}
        self._asked: dict[int, tuple[int, Suggestion]] = {}  # number: id, what was suggested
        self._others: dict[int, int] = {}  # number: index
        self._queue: deque[Suggestion] = deque()
        self._unmeasured: deque[tuple[datetime, Suggestion]] = deque()  # with when it was begun
        self._from_queue: set[int] = set()
        self._settled: set[int] = set()  # numbers of trials that ended
        self._refresh(LASTING)

    def __len__(self) -> int:
        """Configurations measured so far."""
        return len(self.known.seconds)

    @property
    def queued(self) -> int:
        """How many configurations wait to be asked for."""
        waiting = (*(suggestion for _, suggestion in self._unmeasured), *self._queue)
        return sum(self._is_free(suggestion.index) for suggestion in waiting)

    @property
    def from_queue(self) -> int:
        """How many configurations of the study came from a queue and were asked for."""
        return len(self._from_queue)

    @property
    def unmeasured_since(self) -> datetime | None:
        """When the first was begun of those that a run left unmeasured and that wait to be asked
        for again; None if there is none.
        """
        while self._unmeasured and not self._is_free(self._unmeasured[0][1].index):
            self._unmeasured.popleft()
        return self._unmeasured[0][0] if self._unmeasured else None

    @property
    def begun(self) -> int:
        """Configurations measured so far and those under way, with whichever tuner. Two tuners may
        have begun the same one, of which one gives up.
        """
        return len(self.known.seconds.keys() | self.known.pending)

    @property
    def exhausted(self) -> bool:
        """True if every configuration was measured or is under way."""
        return self.begun >= len(self.pool)

    def update(self) -> None:
        """Take over what other tuners have found out since the last question."""
        self._refresh(OUTCOMES)

    def attend(self) -> None:
        """Show other tuners that this one lives."""
        if self.company:
            self.company.beat()

    def enqueue(self, configs: Mapping[Config, str] | Iterable[Config]) -> None:
        """Have these asked for first, those that are valid and new. A mapping says where each comes
        from (`strategies.ORIGINS`); else it is the queue.
        """
        origins = configs if isinstance(configs, Mapping) else {}
        waiting = {suggestion.index for suggestion in self._queue}
        waiting |= {suggestion.index for _, suggestion in self._unmeasured}
        for config in configs:
            index = self._index.get(config)
            if index is not None and index not in self.known.seconds and index not in waiting:
                waiting.add(index)
                self._queue.append(Suggestion(index, origins.get(config, "queue")))

    def limit_queue(self, most: int | None, spent: float) -> None:
        """Empty the queue if it has had its part of `most` trials, or of the time, of which `spent`
        (0 to 1) is over: from now on the strategy is asked. A strategy that names everything in any
        case has no limit.
        """
        asked = self.from_queue
        if self._strategy is exhaustive:
            return
        if asked >= queue_limit(most) or (spent >= QUEUE_PART and asked >= FEWEST_QUEUED):
            self._queue.clear()

    def origin(self, number: int) -> str:
        """Where the configuration of a trial under way comes from, one of `strategies.ORIGINS`."""
        return self._asked[number][1].origin

    def most_promising(self, configs: Sequence[Config]) -> int:
        """The place of the one to be measured next, by all results so far."""
        if len(configs) == 1 or self._strategy is not local:
            return 0
        return most_promising(self.pool, self.known, [self._index[config] for config in configs])

    def ask(self, most: int | None = None) -> tuple[int, Config] | None:
        """The number of a new trial and its configuration; None if there is nothing left, or `most`
        configurations have been begun.
        """
        self._refresh(OUTCOMES)
        while not self.exhausted and (most is None or self.begun < most):
            suggestion = self._first_waiting() or self._chosen()
            number = self._create(suggestion)
            self._refresh(OUTCOMES)
            if self._may_have(number, suggestion.index, most):
                self._count_queued(suggestion)
                return number, self.configs[suggestion.index]
            self._fail(number, REPEATED)
        return None

    def tell(self, number: int, trial: Trial) -> None:
        """What became of a trial: a time is told; a rough one that was not worth repeating prunes
        the trial, a failure fails it.
        """
        index = self._index[trial.config]
        cost, said = Cost.of(trial), {"outcome": trial.outcome}
        value = OBJECTIVES[self.objective](cost.seconds, cost.joules)
        worked = trial.outcome in ("ok", "too_slow") and value > 0
        if not worked:
            said["detail"] = trial.detail[:200]
        elif cost.joules > 0:
            said |= {"seconds": cost.seconds, "joules": cost.joules}
        trial_id, _ = self._asked.pop(number)
        pruned = trial.outcome == "too_slow"
        self._end(trial_id, said, value if worked else None, pruned)
        self._settled.add(number)
        self._remember(index, trial.outcome if worked else "unknown", value, cost)
        self._count_pending()

    def forget(self, number: int, config: Config) -> None:
        """Give up a trial that was asked for and not measured. The next run asks for it again."""
        self._fail(number, UNMEASURED)

    def best_configs(self, count: int) -> list[Config]:
        """The configurations with the smallest times, fastest first."""
        return sorted(self.ranking, key=self.ranking.__getitem__)[:count]

    # Trials

    def _create(self, suggestion: Suggestion) -> int:
        """Begin a trial; its number."""
        said = {"origin": suggestion.origin}
        if self.company:
            said["tuner"] = self.company.me
        running = TrialState.RUNNING
        trial = _trial(self.pool, suggestion.index, self._space, running, user_attrs=said)
        storage, study = self.study._storage, self.study._study_id
        trial_id = storage.create_new_trial(study, template_trial=trial)
        number = storage.get_trial_number_from_id(trial_id)
        self._asked[number] = trial_id, suggestion
        return number

    def _first_waiting(self) -> Suggestion | None:
        """The first that a run left unmeasured, else the first in the queue that is still free."""
        if self.unmeasured_since:
            return self._unmeasured.popleft()[1]
        while self._queue:
            suggestion = self._queue.popleft()
            if self._is_free(suggestion.index):
                return suggestion
        return None

    def _count_queued(self, suggestion: Suggestion) -> None:
        if suggestion.origin in QUEUED:
            self._from_queue.add(suggestion.index)

    def _is_free(self, index: int) -> bool:
        return index not in self.known.seconds and index not in self.known.pending

    def _chosen(self) -> Suggestion:
        """What the strategy names."""
        generator = np.random.default_rng((*self._seed, self.begun))
        return self._strategy(self.pool, self.known, generator)

    def _may_have(self, number: int, index: int, most: int | None) -> bool:
        """Whether a trial is the first of its configuration, and among the first `most`."""
        before = {n: i for n, i in self._others.items() if n < number}
        before |= {n: s.index for n, (_, s) in self._asked.items() if n < number}
        if index in self.known.seconds or index in before.values():
            return False
        return most is None or len(self.known.seconds.keys() | set(before.values())) < most

    def _fail(self, number: int, outcome: str) -> None:
        """End an own trial that says nothing of its configuration."""
        trial_id, _ = self._asked.pop(number)
        self._settled.add(number)
        self._end(trial_id, {"outcome": outcome}, None)
        self._count_pending()

    def _end(
        self, trial_id: int, said: Mapping[str, Any], seconds: float | None, pruned: bool = False
    ) -> None:
        """End a trial in the storage. One that another tuner has ended stays as that left it."""
        storage = self.study._storage
        try:
            for key, value in said.items():
                storage.set_trial_user_attr(trial_id, key, value)
            if pruned and seconds is not None:
                storage.set_trial_intermediate_value(trial_id, 0, float(seconds))
                storage.set_trial_state_values(trial_id, TrialState.PRUNED)
                return
            state = TrialState.FAIL if seconds is None else TrialState.COMPLETE
            values = None if seconds is None else [float(seconds)]
            storage.set_trial_state_values(trial_id, state, values)
        except UpdateFinishedTrialError:
            return

    def _count_pending(self) -> None:
        own = {suggestion.index for _, suggestion in self._asked.values()}
        self.known.pending = own | set(self._others.values())

    def _of(self, params: Mapping[str, int]) -> int | None:
        """The index of a configuration by its parameters, None if it is none of the pool."""
        key = tuple((name, params.get(name)) for name in self.pool.names)
        return self._by_parameters.get(key)

    def _remember(self, index: int, outcome: str, value: float, cost: Cost) -> None:
        """Take over a result: its value by the objective, seconds and joules."""
        self.known.seconds[index] = value if outcome in ("ok", "too_slow") else math.nan
        if outcome == "ok":
            self.ranking[self.configs[index]] = value
            self.costs[self.configs[index]] = cost
            if self.best is None or value < self.best[1]:
                self.best = self.configs[index], value

    def _refresh(self, counting: Sequence[str]) -> None:
        """Take over what other tuners, or an earlier run, have found out, where the outcome is one
        of `counting`; have asked for again what they left unmeasured and what dead ones had begun.
        """
        self._others = {}
        finished: list[tuple[FrozenTrial, int]] = []
        unmeasured: dict[int, tuple[datetime, Suggestion]] = {}
        for trial in self.study.get_trials(deepcopy=False):
            if trial.number in self._settled or trial.number in self._asked:
                continue
            index, outcome = self._of(_parameters(trial)), trial.user_attrs.get("outcome", "")
            if trial.state == TrialState.RUNNING:
                owner = trial.user_attrs.get("tuner", "")
                if self.company is not None and self.company.lives(owner, trial.number):
                    if index is not None:
                        self._others[trial.number] = index
                    continue
                outcome = UNMEASURED
                self._end(trial._trial_id, {"outcome": outcome}, None)
            elif not trial.state.is_finished():
                continue
            self._settled.add(trial.number)
            if index is None:
                continue
            if outcome == UNMEASURED:  # perhaps once more: its place is that of the first time
                began = trial.datetime_start or datetime.min
                origin = trial.user_attrs.get("origin", "queue")
                unmeasured.setdefault(index, (began, Suggestion(index, origin)))
            elif outcome != REPEATED:
                unmeasured.pop(index, None)
                finished.append((trial, index))
        told = attrgetter("number" if self.company else "datetime_complete")
        for trial, index in sorted(finished, key=lambda one: told(one[0])):
            self._take_over(trial, index, counting)
        self._count_pending()
        for began, suggestion in sorted(unmeasured.values(), key=itemgetter(0)):
            self._unmeasured.append((began, suggestion))
            self._count_queued(suggestion)

    def _take_over(self, trial: FrozenTrial, index: int, counting: Sequence[str]) -> None:
        """Remember a finished trial if it is the first of its configuration that counts."""
        outcome = trial.user_attrs.get("outcome", "")
        if index not in self.known.seconds and outcome in counting:
            self._remember(index, outcome, _value(trial), _cost(trial))
            self._count_queued(Suggestion(index, trial.user_attrs.get("origin", "")))


def _value(trial: FrozenTrial) -> float:
    """The value of a finished trial, of a pruned one its rough value; NaN of a failure."""
    return trial.value or trial.intermediate_values.get(0, math.nan)


def _cost(trial: FrozenTrial) -> Cost:
    """Seconds and joules of a finished trial, of whose value is its time the seconds alone."""
    attributes = trial.user_attrs
    return Cost(attributes.get("seconds", _value(trial)), attributes.get("joules", math.nan))


def _parameters(trial: FrozenTrial) -> Mapping[str, int]:
    """The parameters of a trial, also of one that an older pymm had queued."""
    return trial.system_attrs.get("fixed_params") or trial.params
