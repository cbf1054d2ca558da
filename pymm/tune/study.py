"""Asking and telling an Optuna study about one kernel on one problem, over its valid space only.

One study for each problem and kernel: kernels have different parameters, and Optuna's importance
plots, its TPE and a surrogate all want one fixed set of them. The study lives in a journal file,
so a killed run goes on where it was, and `optuna-dashboard` reads it.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from pymm.core.errors import Busy
from pymm.core.files import locked, named
from pymm.kernels import Config
from pymm.measure.workbench import Trial
from pymm.tune.strategies import STRATEGIES, Known, Pool, Strategy
from pymm.tune.trial_log import JournalLock, repair, set_aside

#: Outcomes that say something of a configuration, whoever tries it again with the same compiler.
#: Any other may have been the machine's, and is forgotten by the next run.
LASTING = ("ok", "too_slow", "wrong", "compile_failed")

#: Names for `--sampler`.
SAMPLERS = (*STRATEGIES, "tpe")

optuna.logging.set_verbosity(optuna.logging.WARNING)


class Snapped:
    """Optuna's TPE, its suggestion moved to the nearest free configuration of the pool."""

    def __init__(self, seed: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.tpe = TPESampler(
                n_startup_trials=10,
                n_ei_candidates=24,
                seed=seed,
                multivariate=True,
                group=False,
                constant_liar=True,
            )

    def suggest(
        self, study: Study, trial: FrozenTrial, space: Mapping[str, BaseDistribution]
    ) -> dict[str, Any]:
        """What TPE would like to try, valid or not."""
        related = self.tpe.infer_relative_search_space(study, trial)
        wanted = self.tpe.sample_relative(study, trial, related)
        for name, distribution in space.items():
            if name not in wanted:
                wanted[name] = self.tpe.sample_independent(study, trial, name, distribution)
        return wanted


class PoolSampler(BaseSampler):
    """A sampler that only ever names free configurations of a pool."""

    def __init__(self, search: Search, name: str, seed: int) -> None:
        self._search, self._seed = search, seed
        self._strategy: Strategy | None = STRATEGIES.get(name)
        self._snapped = Snapped(seed) if name == "tpe" else None

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every parameter, always with the same distribution."""
        return self._search.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The parameters of a configuration that is valid and new; an enqueued one as it is."""
        if "fixed_params" in trial.system_attrs:
            return dict(trial.system_attrs["fixed_params"])
        known, pool = self._search.known, self._search.pool
        if self._snapped is not None:
            wanted = self._snapped.suggest(study, trial, search_space)
            index = _nearest(pool, wanted, known.free(pool))
        else:
            generator = np.random.default_rng((self._seed, trial.number))
            index = self._strategy(pool, known, generator)
        return dict(zip(pool.names, pool.values[index].tolist(), strict=True))

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: Any
    ) -> Any:
        """Never needed: every parameter is part of the relative search space."""
        raise KeyError(f"{param_name!r} is no parameter of this study")


def _nearest(pool: Pool, wanted: Mapping[str, int], free: np.ndarray) -> int:
    """The free configuration with the smallest distance in the logarithms of the parameters."""
    target = np.log2([wanted[name] for name in pool.names])
    distance = np.abs(np.log2(pool.values[free]) - target).sum(axis=1)
    return int(free[np.argmin(distance)])


class Search:
    """One study: ask for configurations that are valid and new, tell what became of them. `queued`
    counts those that `enqueue` has brought and nobody asked for yet.
    """

    def __init__(
        self, study: Study, configs: Sequence[Config], sampler: str = "local", seed: int = 0
    ) -> None:
        if sampler not in SAMPLERS:
            raise ValueError(f"sampler {sampler!r} is none of {', '.join(SAMPLERS)}")
        self.study, self.configs = study, list(configs)
        self.pool = Pool([config.as_dict() for config in self.configs])
        self._index = {config: index for index, config in enumerate(self.configs)}
        columns = zip(self.pool.names, self.pool.values.T, strict=True)
        self.distributions: dict[str, BaseDistribution] = {
            name: IntDistribution(int(v.min()), int(v.max()), log=True) for name, v in columns
        }
        self.known = Known({}, set())
        self.best: tuple[Config, float] | None = None
        self.ranking: dict[Config, float] = {}
        self._asked: dict[int, optuna.trial.Trial] = {}
        self.queued = len(study.get_trials(False, (TrialState.WAITING,)))
        study.sampler = PoolSampler(self, sampler, seed)
        self._recall()

    def __len__(self) -> int:
        """Configurations measured so far."""
        return len(self.known.seconds)

    @property
    def exhausted(self) -> bool:
        """True if every configuration was measured or is under way."""
        return len(self.known.seconds) + len(self.known.pending) >= len(self.pool)

    def enqueue(self, configs: Iterable[Config]) -> None:
        """Have these asked for first, those that are valid and new."""
        trials = self.study.get_trials(False, (TrialState.WAITING,))
        waiting = {self._of(_parameters(trial)) for trial in trials}
        for config in configs:
            index = self._index.get(config)
            if index is not None and index not in self.known.seconds and index not in waiting:
                self.study.enqueue_trial(config.as_dict())
                waiting.add(index)
                self.queued += 1

    def ask(self) -> tuple[int, Config] | None:
        """The number of a new trial and its configuration; None if there is nothing left."""
        while not self.exhausted:
            trial = self.study.ask(self.distributions)
            self.queued = max(0, self.queued - 1)  # the queue goes first
            index = self._of(trial.params)
            if index is not None and index not in self.known.seconds:
                if index not in self.known.pending:
                    self.known.pending.add(index)
                    self._asked[trial.number] = trial
                    return trial.number, self.configs[index]
            self._fail(trial, "repeated")  # enqueued twice, or by an older space
        return None

    def tell(self, number: int, trial: Trial) -> None:
        """What became of a trial: a time is told, also a rough one; a failure fails the trial."""
        index = self._index[trial.config]
        self.known.pending.discard(index)
        asked = self._asked.pop(number)
        asked.set_user_attr("outcome", trial.outcome)
        if trial.outcome in ("ok", "too_slow"):
            self.study.tell(asked, trial.seconds)
        else:
            asked.set_user_attr("detail", trial.detail[:200])
            self.study.tell(asked, state=TrialState.FAIL)
        self._remember(index, trial.outcome, trial.seconds)

    def forget(self, number: int, config: Config) -> None:
        """Give up a trial that was asked for and not measured."""
        self.known.pending.discard(self._index[config])
        self._fail(self._asked.pop(number), "interrupted")

    def finish(self) -> None:
        """Mark the study as done: the next run begins a new one."""
        self.study.set_user_attr("finished", True)

    def best_configs(self, count: int) -> list[Config]:
        """The configurations with the smallest times, fastest first."""
        return sorted(self.ranking, key=self.ranking.__getitem__)[:count]

    def _fail(self, trial: optuna.trial.Trial, outcome: str) -> None:
        trial.set_user_attr("outcome", outcome)
        self.study.tell(trial, state=TrialState.FAIL)

    def _of(self, params: Mapping[str, int]) -> int | None:
        """The index of a configuration by its parameters, None if it is none of the pool."""
        key = tuple((name, params.get(name)) for name in self.pool.names)
        first = self.configs[0]
        return self._index.get(Config(first.kernel_name, key, first.backend))

    def _remember(self, index: int, outcome: str, seconds: float) -> None:
        self.known.seconds[index] = seconds if outcome in ("ok", "too_slow") else math.nan
        if outcome == "ok":
            self.ranking[self.configs[index]] = seconds
            if self.best is None or seconds < self.best[1]:
                self.best = self.configs[index], seconds

    def _recall(self) -> None:
        """Take over what an earlier run of the study has found out; ask again for what it had
        begun.
        """
        begun = []
        for trial in self.study.get_trials(deepcopy=False):
            outcome = trial.user_attrs.get("outcome", "")
            index = self._of(_parameters(trial))
            if trial.state == TrialState.RUNNING:
                self._fail(optuna.trial.Trial(self.study, trial._trial_id), "interrupted")
                begun.append(index)
            elif index is not None and trial.state.is_finished() and outcome in LASTING:
                self._remember(index, outcome, trial.value if trial.value else math.nan)
        self.enqueue(self.configs[index] for index in begun if index is not None)


def _parameters(trial: FrozenTrial) -> Mapping[str, int]:
    """The parameters of a trial, also of one that waits to be asked for."""
    return trial.system_attrs.get("fixed_params") or trial.params


# Studies in files


@contextmanager
def open_storage(
    path: Path | None, say: Callable[[str], object] = warnings.warn
) -> Iterator[BaseStorage]:
    """The storage in the journal file `path` (None: in memory), held against other tuners.

    A half-written last line (the process was killed in the middle) is cut off; a file damaged
    elsewhere is kept as `<name>.damaged`, which `say` is told, and a new one begun. Raises `Busy`.
    """
    if path is None:
        yield InMemoryStorage()
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(locked(path.with_suffix(".tuner"), seconds=0))
        except TimeoutError:
            raise Busy(f"another tuner works with {path}") from None
        yield _read_journal(path, say)


class _Journal(JournalFileBackend):
    """Optuna's file, whose errors name it, and which knows what line was read last."""

    line = 0

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), JournalLock(path.with_suffix(".lock")))
        self._path = path

    def read_logs(self, log_number_from: int) -> Iterator[dict[str, Any]]:
        """The entries from that one on."""
        entries = super().read_logs(log_number_from)
        for self.line, entry in enumerate(entries, log_number_from + 1):
            yield entry

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append lines."""
        with named(self._path):
            super().append_logs(logs)


def _read_journal(path: Path, say: Callable[[str], object]) -> BaseStorage:
    if not (damage := repair(path)):
        journal = _Journal(path)
        try:
            return JournalStorage(journal)
        except OSError:
            raise
        except Exception as error:  # what an entry lacks shows itself in Optuna in any way
            damage = f"line {journal.line} is no entry of a study ({type(error).__name__})"
    kept = set_aside(path, "damaged")
    say(f"the journal {path} cannot be used ({damage}): kept as {kept}, its trials are made again")
    return JournalStorage(_Journal(path))


def open_study(
    storage: BaseStorage, name: str, facts: Mapping[str, str], resume: str = "auto"
) -> Study:
    """The study `name-1`, `name-2`, ... to work on.

    `resume` "auto": the last one if it is unfinished and its `facts` (kernel's source, compiler,
    driver) are the same; "always": the last one if its facts are the same; "never": a new one.
    """
    names = optuna.get_all_study_names(storage)
    found = [s for s in names if re.fullmatch(rf"{re.escape(name)}-[0-9]{{1,9}}", s)]
    numbers = sorted(int(s.rpartition("-")[2]) for s in found)
    if numbers and resume != "never":
        study = optuna.load_study(study_name=f"{name}-{numbers[-1]}", storage=storage)
        attributes = study.user_attrs
        same = all(attributes.get(key) == value for key, value in facts.items())
        if same and (resume == "always" or not attributes.get("finished")):
            return study
    number = numbers[-1] + 1 if numbers else 1
    study = optuna.create_study(study_name=f"{name}-{number}", storage=storage)
    for key, value in facts.items():
        study.set_user_attr(key, value)
    return study
