"""The race between the kernels that can compute one problem: a search for each of them, and fewer
and fewer kernels that get further trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pymm.kernels import Config
from pymm.measure.workbench import Trial
from pymm.tune.objective import Cost
from pymm.tune.study import Search

#: After so many trials a kernel is out if its best takes so many times as long as the best of all.
#: Of 141 searches on an H200 with at least 24 trials, 95 % had their default within 1.62 times
#: their final best, the best of 2, 4, 8 and 16 trials within 1.27, 1.24, 1.14 and 1.10. A fixed
#: default may be far worse for one shape, so that a single trial decides little. Halving as in
#: K. Jamieson and A. Talwalkar, Non-stochastic best arm identification and hyperparameter
#: optimization, AISTATS 2016.
TRIAL_STEPS = {1: 4.0, 2: 1.75, 4: 1.5, 8: 1.25, 16: 1.12, 32: 1.06, 64: 1.03, 128: 1.01}

#: A kernel of which nothing works is out after so many trials, if another kernel works.
FAILURES = 3


class Race:
    """The searches of the kernels that compete, by kernel name, in order of preference. It is asked
    and told as one `Search` is. Each kernel begins with its default; after each number of trials in
    `TRIAL_STEPS` those that are too far behind the best are out.
    """

    def __init__(self, searches: Mapping[str, Search]) -> None:
        self.searches = dict(searches)
        self._names = list(searches)

    def goal(self, trials: int | None) -> int | None:
        """How many configurations are to be begun in all when a run of so many `trials` is over
        (None: no limit). The goal of a run that was interrupted stays; else there are as many
        `trials` again.
        """
        if trials is None:
            return None
        study = next(iter(self.searches.values())).study
        wanted, goal = study.user_attrs.get("goal") or (0, 0)
        if wanted != trials or goal <= self.begun:
            goal = self.begun + trials
            study.set_user_attr("goal", [trials, goal])
        return goal

    def reach_goal(self) -> None:
        """Note that a run came to its end: the next one has its own goal."""
        next(iter(self.searches.values())).study.set_user_attr("goal", None)

    def __len__(self) -> int:
        """Configurations measured so far."""
        return sum(map(len, self.searches.values()))

    @property
    def space(self) -> int:
        """Valid configurations of all kernels."""
        return sum(len(search.configs) for search in self.searches.values())

    @property
    def queued(self) -> int:
        """How many configurations of the kernels in question wait to be asked for."""
        return sum(s.queued for name, s in self.searches.items() if not self._is_out(name))

    @property
    def begun(self) -> int:
        """Configurations measured so far and those under way, with whichever tuner."""
        return sum(search.begun for search in self.searches.values())

    @property
    def exhausted(self) -> bool:
        """True if every configuration was measured or is under way."""
        return all(search.exhausted for search in self.searches.values())

    @property
    def best(self) -> tuple[Config, float] | None:
        """The best configuration so far and its value: its seconds, if the objective is time."""
        found = [search.best for search in self.searches.values() if search.best]
        return min(found, key=lambda best: best[1], default=None)

    @property
    def ranking(self) -> dict[Config, float]:
        """The value of every correct configuration: its seconds, if the objective is time."""
        return {c: s for search in self.searches.values() for c, s in search.ranking.items()}

    @property
    def costs(self) -> dict[Config, Cost]:
        """Seconds and joules of every correct configuration."""
        return {c: cost for search in self.searches.values() for c, cost in search.costs.items()}

    @property
    def best_seconds(self) -> tuple[Config, float] | None:
        """The best configuration so far and its seconds."""
        return self.best and (self.best[0], self.cost_of(self.best[0]).seconds)

    def cost_of(self, config: Config) -> Cost:
        """Seconds and joules of a correct configuration."""
        return self.searches[config.kernel_name].costs[config]

    def best_configs(self, count: int) -> list[Config]:
        """The configurations with the smallest times, fastest first."""
        ranking = self.ranking
        return sorted(ranking, key=ranking.__getitem__)[:count]

    def update(self) -> None:
        """Take over what other tuners have found out since the last question."""
        for search in self.searches.values():
            search.update()

    def attend(self) -> None:
        """Show other tuners that this one lives."""
        for search in self.searches.values():
            search.attend()

    def enqueue(self, configs: Mapping[Config, str] | Iterable[Config]) -> None:
        """Have these asked for first, those that are valid and new, each of its kernel. A mapping
        says where each comes from.
        """
        origins = configs if isinstance(configs, Mapping) else {}
        for config in configs:
            self.searches[config.kernel_name].enqueue({config: origins.get(config, "queue")})

    def limit_queue(self, most: int | None, spent: float) -> None:
        """Empty the queues that have had their part of `most` trials, of which each kernel in
        question has its share, or of the time, of which `spent` (0 to 1) is over.
        """
        able = [search for name, search in self.searches.items() if not self._is_out(name)]
        share = None if most is None else math.ceil(most / max(len(able), 1))
        for search in able:
            search.limit_queue(share, spent)

    def most_promising(self, configs: Sequence[Config]) -> int:
        """The place of the one to be measured next: of the kernel whose turn came first, the most
        promising by all its results so far.
        """
        name = configs[0].kernel_name
        places = [place for place, config in enumerate(configs) if config.kernel_name == name]
        return places[self.searches[name].most_promising([configs[place] for place in places])]

    def ask(self, most: int | None = None) -> tuple[int, Config] | None:
        """The number of a new trial and its configuration; None if there is nothing left, or `most`
        configurations have been begun. The first trial of each kernel does not count against
        `most`: no problem is tuned without the default of every kernel.
        """
        for _ in self.searches:
            if (name := self._next(most)) is None:
                return None
            search, left = self.searches[name], None
            if most is not None and search.begun:
                left = most - (self.begun - search.begun)
            if asked := search.ask(left):
                number, config = asked
                return number * len(self.searches) + self._names.index(name), config
            # another tuner has begun its last configuration
        return None

    def _next(self, most: int | None) -> str | None:
        """The kernel that gets the next trial: one that has had none; else that of the first trial
        that a run left unmeasured; else, of those in question, the one with the fewest, and if
        there is a choice one whose first time is known.
        """
        able = [n for n, s in self.searches.items() if not s.exhausted and not self._is_out(n)]
        if untried := [name for name in able if not self.searches[name].begun]:
            return untried[0]
        if most is not None and self.begun >= most:
            return None
        since = {name: search.unmeasured_since for name, search in self.searches.items()}
        if unmeasured := {name: began for name, began in since.items() if began}:
            return min(unmeasured, key=unmeasured.__getitem__)
        if not able:
            return None
        began = {name: self.searches[name].begun for name in able}
        return min(able, key=lambda name: (not len(self.searches[name]), began[name]))

    def _is_out(self, name: str) -> bool:
        """Whether a kernel is too far behind for the trials that it was given, or does not work."""
        search, own = self.searches[name], self._least(name)
        if self.best is None:
            return False
        if own == math.inf:
            return len(search) >= FAILURES
        limits = [limit for trials, limit in TRIAL_STEPS.items() if trials <= len(search)]
        return own > limits[-1] * self.best[1]

    def _least(self, name: str) -> float:
        """The least time of a kernel in seconds, a rough one if there is no other."""
        times = self.searches[name].known.seconds.values()
        return min((t for t in times if math.isfinite(t)), default=math.inf)

    def _of(self, number: int) -> tuple[Search, int]:
        """The search of a trial, and its number there: numbers of all searches are interleaved."""
        own, place = divmod(number, len(self.searches))
        return self.searches[self._names[place]], own

    def origin(self, number: int) -> str:
        """Where the configuration of a trial under way comes from, one of `strategies.ORIGINS`."""
        search, own = self._of(number)
        return search.origin(own)

    def tell(self, number: int, trial: Trial) -> None:
        """What became of a trial."""
        search, own = self._of(number)
        search.tell(own, trial)

    def forget(self, number: int, config: Config) -> None:
        """Give up a trial that was asked for and not measured."""
        search, own = self._of(number)
        search.forget(own, config)

    def summary(self) -> str:
        """How far each kernel came, in words; "" for a single one."""
        if len(self.searches) == 1 or self.best is None:
            return ""
        words = []
        for name, search in self.searches.items():
            slower = self._least(name) / self.best[1]
            far = f"{slower:.2f} x the best time" if slower < math.inf else "none works"
            words.append(f"{name} {len(search)} tried, {far}")
        return "; ".join(words)
