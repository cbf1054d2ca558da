"""Which configuration to try next: strategies over the enumerated valid space, in plain NumPy.

A strategy sees indices of a `Pool`, what was measured so far and what is under way, and names an
index that is neither. So nothing invalid and nothing twice is ever asked for.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from pymm.tune.surrogate import Surrogate

#: Configurations of the space-filling start. More cost evaluations, fewer cost reliability: 20
#: needed 25 to 60 evaluations more than 10 on the replay data.
START = 10

#: A start is drawn as far apart as possible among so many random configurations.
SPREAD_AMONG = 500

#: Neighbours differ in at most so many parameters from one of so many best configurations.
NEIGHBOUR_CHANGES, NEIGHBOURS_OF = 2, 4

#: Every second question, and measurement, goes to a configuration that differs from the best in
#: a single parameter, where there is one: on the replay data searches that took long had been one
#: parameter away from the optimum for many evaluations.
CLIMB = 2

#: Every eighth question, and measurement, goes to the whole space, all others to the neighbours of
#: the best (or of the very best, `CLIMB`) while some are left: the expected improvement is largest
#: where the model knows least, which is rarely where fast ones are.
WIDE = 8

#: After PATIENCE measurements in a row, none of which was faster than the best by GAIN of its time,
#: every WIDE_WITHOUT_GAIN-th question goes to the whole space instead of every WIDE-th, until one
#: is that much faster: in searches of the replay data that took long, the optimum was often five
#: changes away from the best.
PATIENCE, GAIN, WIDE_WITHOUT_GAIN = 20, 0.01, 2

#: Two parameters depend on each other if their mutual information over the valid configurations is
#: larger than this, in nats: rules that forbid pairs of their values make them so.
DEPENDENT = 0.01

#: Besides these the surrogate is asked about random configurations: with each result `FRESH` new
#: ones replace the oldest of `LASTING * FRESH`.
FRESH, LASTING = 100, 20

#: Where a suggestion may come from: the queue of first configurations, a stored configuration of
#: another problem or device, the surrogate over the whole space or near the best, or chance.
ORIGINS = ("queue", "warm", "model", "neighbour", "random")

#: Those that a queue has.
QUEUED = ("queue", "warm")


class Suggestion(NamedTuple):
    """The index of a configuration, and one of `ORIGINS`."""

    index: int
    origin: str


class Pool:
    """The valid configurations as points in the unit cube, each parameter by the rank of its value
    (for powers of two its logarithm). `features`, which the surrogate sees, has a column more for
    each two parameters that depend on each other: the difference of their ranks if both grow
    together, else the sum. For powers of two that is the logarithm of their quotient or product,
    such as the number of rows that a thread computes. `ranks` has a row for each parameter that
    has more than one value.
    """

    def __init__(self, parameters: Sequence[Mapping[str, int]]) -> None:
        if not parameters:
            raise ValueError("no configuration to choose from")
        self.names = tuple(parameters[0])
        self.values = np.array([[p[name] for name in self.names] for p in parameters])
        ranks = [np.unique(column, return_inverse=True)[1] for column in self.values.T]
        varied = [column for column in ranks if column.any()]
        self.ranks = np.array(varied, np.int32).reshape(len(varied), len(parameters))
        self.points = np.ascontiguousarray((self.ranks / self.ranks.max(axis=1)[:, None]).T)
        self.features = np.hstack([self.points, *_of_dependent(self.ranks)])

    def __len__(self) -> int:
        return len(self.values)

    def neighbours(self, centres: Sequence[int], most: int) -> np.ndarray:
        """Which configurations differ from a centre in at most `most` parameters, as a mask."""
        near = np.zeros(len(self), bool)
        for centre in centres:
            changes = np.zeros(len(self), np.int16)
            for ranks in self.ranks:
                changes += ranks != ranks[centre]
            near |= changes <= most
        return near


@dataclass
class Known:
    """What a strategy may know: seconds by index in the order of the results (NaN for what failed),
    indices under way, and the seed of the search. `surrogate` is made from these by `surrogate_of`.
    """

    seconds: dict[int, float]
    pending: AbstractSet[int]
    seed: tuple[int, ...] = (0,)
    surrogate: Surrogate | None = field(default=None, repr=False)

    def free(self, pool: Pool) -> np.ndarray:
        """Indices that were neither measured nor asked for."""
        taken = np.zeros(len(pool), bool)
        taken[[*self.seconds, *self.pending]] = True
        return np.flatnonzero(~taken)

    def best(self, count: int) -> list[int]:
        """Indices of the smallest times, the smallest first."""
        timed = [index for index, seconds in self.seconds.items() if math.isfinite(seconds)]
        return sorted(timed, key=self.seconds.__getitem__)[:count]

    def without_gain(self) -> int:
        """Measurements since the last that was faster than all before it by `GAIN`."""
        fastest, last = math.inf, -1
        for number, seconds in enumerate(self.seconds.values()):
            if seconds < fastest * (1 - GAIN):
                fastest, last = seconds, number
        return len(self.seconds) - 1 - last


Strategy = Callable[[Pool, Known, np.random.Generator], Suggestion]


def exhaustive(pool: Pool, known: Known, generator: np.random.Generator) -> Suggestion:
    """The first one left, in the order of the space."""
    return Suggestion(int(known.free(pool)[0]), "queue")


def at_random(pool: Pool, known: Known, generator: np.random.Generator) -> Suggestion:
    """Any one left."""
    return Suggestion(int(generator.choice(known.free(pool))), "random")


def local(pool: Pool, known: Known, generator: np.random.Generator) -> Suggestion:
    """Far apart at first; then where Gaussian processes over the speeds expect the largest
    improvement: among the neighbours of the best and, every `WIDE`th time, random others; every
    `CLIMB`th time next to the very best.

    Averaged over several fits of the process as in J. Snoek, H. Larochelle, R. P. Adams, Practical
    Bayesian optimization of machine learning algorithms, NeurIPS 2012, section 3.2. What failed
    counts as slow as the slowest; what is under way as fast as the process expects it to be.
    """
    free = known.free(pool)
    count, surrogate = len(known.seconds) + len(known.pending), None
    if count >= START:
        surrogate = surrogate_of(pool, known)
    if surrogate is None:
        index = _far_from(pool, [*known.seconds, *known.pending], free, generator)
        return Suggestion(index, "random")
    near = pool.neighbours(known.best(NEIGHBOURS_OF), NEIGHBOUR_CHANGES)
    asked_about = near.copy()
    asked_about[_random(pool, known)] = True
    candidates = free[asked_about[free]]
    if not len(candidates):
        return at_random(pool, known, generator)
    surrogate.watch(candidates)
    gains = surrogate.promise_watched(sorted(known.pending))
    index = int(candidates[_largest(pool, known, candidates, gains, count)])
    return Suggestion(index, "neighbour" if near[index] else "model")


def most_promising(pool: Pool, known: Known, indices: Sequence[int]) -> int:
    """The place of the one of these to be measured next, by all results so far; the first of them
    while they are few.
    """
    surrogate = surrogate_of(pool, known) if len(known.seconds) >= START else None
    if surrogate is None or len(indices) == 1:
        return 0
    gains = surrogate.promise(indices)
    return _largest(pool, known, np.array(indices), gains, len(known.seconds))


def _largest(pool: Pool, known: Known, indices: np.ndarray, gains: np.ndarray, count: int) -> int:
    """The place of the largest gain in the part of the space that question, or measurement, number
    `count` goes to.
    """
    parts = [(1, 1)] if count % CLIMB == 0 else []
    if count % (WIDE if known.without_gain() < PATIENCE else WIDE_WITHOUT_GAIN) != 1:
        parts.append((NEIGHBOURS_OF, NEIGHBOUR_CHANGES))
    for centres, changes in parts:
        inside = pool.neighbours(known.best(centres), changes)[indices]
        if inside.any():
            return int(np.argmax(np.where(inside, gains, -np.inf)))
    return int(np.argmax(gains))


def surrogate_of(pool: Pool, known: Known) -> Surrogate | None:
    """The surrogate of all results so far, None if they are too few for one."""
    times = np.array(list(known.seconds.values()))
    if np.isfinite(times).sum() < 2:
        return None
    times[~np.isfinite(times)] = np.nanmax(times)
    if known.surrogate is None:
        known.surrogate = Surrogate(pool.features, known.seed)
    known.surrogate.update(list(known.seconds), -1.0 / times)
    return known.surrogate


def _random(pool: Pool, known: Known) -> np.ndarray:
    """Random configurations, the same after the same number of results."""
    if len(pool) <= FRESH * LASTING:
        return np.arange(len(pool))
    latest = len(known.seconds)
    blocks = [
        np.random.default_rng((*known.seed, number)).integers(len(pool), size=FRESH)
        for number in range(max(0, latest - LASTING) + 1, max(latest, LASTING) + 1)
    ]
    return np.concatenate(blocks)


def _far_from(
    pool: Pool, taken: Sequence[int], free: np.ndarray, generator: np.random.Generator
) -> int:
    among = generator.choice(free, min(SPREAD_AMONG, len(free)), replace=False)
    if not taken:
        return int(among[0])
    apart = np.abs(pool.points[among][:, None] - pool.points[list(taken)][None]).sum(axis=2)
    return int(among[np.argmax(apart.min(axis=1))])


def _of_dependent(ranks: np.ndarray) -> list[np.ndarray]:
    """A column for each two rows of `ranks` that depend on each other, in 0 to 1."""
    columns = []
    for one, other in itertools.combinations(ranks, 2):
        counts = np.zeros((one.max() + 1, other.max() + 1))
        np.add.at(counts, (one, other), 1)
        share = counts / counts.sum()
        apart = share.sum(axis=1, keepdims=True) * share.sum(axis=0)
        seen = share > 0
        if (share[seen] * np.log(share[seen] / apart[seen])).sum() > DEPENDENT:
            together = np.corrcoef(one, other)[0, 1] > 0
            column = one - other if together else one + other
            column = column - column.min()
            if column.any():
                columns.append((column / column.max())[:, None])
    return columns


STRATEGIES: dict[str, Strategy] = {
    "local": local,
    "random": at_random,
    "exhaustive": exhaustive,
}
