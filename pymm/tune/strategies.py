"""Which configuration to try next: strategies over the enumerated valid space, in plain NumPy.

A strategy sees indices of a `Pool`, what was measured so far and what is under way, and names an
index that is neither. So nothing invalid and nothing twice is ever asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

#: Configurations of the space-filling start. More cost evaluations, fewer cost reliability: 20
#: needed 25 to 60 evaluations more than 10 on the replay data.
START = 10

#: A start is drawn as far apart as possible among so many random configurations.
SPREAD_AMONG = 500

#: The surrogate is asked about this many random configurations besides the neighbours of the best.
CANDIDATES = 3000

#: Neighbours differ in at most so many parameters from one of so many best configurations.
NEIGHBOUR_CHANGES, NEIGHBOURS_OF = 2, 4

#: Surrogates that are fitted independently and averaged, and steps of each fit (a Cholesky
#: factorisation of all measured points). Evaluations to 95 % of the optimum on the three GPUs of
#: the replay data, 30 seeds: medians 43, 46, 50 with three of 30 steps, 61, 45, 62 with one of 60.
SURROGATES, FIT_STEPS = 3, 30

#: While n configurations are under way, a fit may lack the latest n / LAG results: those asked for
#: meanwhile are the best of the so many best candidates at the fit. A fit takes longer than many a
#: measurement.
LAG, SHORT_LIST = 8, 256

#: Priors of the surrogate, normal in the logarithm: length scale of a parameter whose range is 1,
#: and variance of the noise beside that of the times.
LENGTH_PRIOR = (math.log(1.5), 1.0)
NOISE_PRIOR = (math.log(1e-3), 1.5)


class Pool:
    """The valid configurations as points in the unit cube, each parameter by the rank of its value
    (for powers of two its logarithm).
    """

    def __init__(self, parameters: Sequence[Mapping[str, int]]) -> None:
        if not parameters:
            raise ValueError("no configuration to choose from")
        self.names = tuple(parameters[0])
        self.values = np.array([[p[name] for name in self.names] for p in parameters])
        columns = [_ranks(column) for column in self.values.T if len(np.unique(column)) > 1]
        shape = (len(parameters), 0)
        self.points = np.stack(columns, axis=1) if columns else np.zeros(shape)

    def __len__(self) -> int:
        return len(self.values)

    def neighbours(self, centres: np.ndarray) -> np.ndarray:
        """Indices of configurations that differ from a centre in few parameters."""
        near = np.zeros(len(self), bool)
        for centre in centres:
            changes = (self.points != self.points[centre]).sum(axis=1)
            near |= changes <= NEIGHBOUR_CHANGES
        return np.flatnonzero(near)


def _ranks(column: np.ndarray) -> np.ndarray:
    values = np.unique(column)
    return np.searchsorted(values, column) / (len(values) - 1)


@dataclass
class Fit:
    """What `local` keeps for its next questions: its surrogates, how many results they know, which
    configurations under way they believe a time of, and the best candidates.
    """

    surrogates: list[Surrogate]
    results: int
    believed: set[int]
    candidates: np.ndarray


@dataclass
class Known:
    """What a strategy may know: seconds by index (NaN for what failed) and indices under way; `fit`
    is its own.
    """

    seconds: dict[int, float]
    pending: AbstractSet[int]
    fit: Fit | None = field(default=None, repr=False)

    def free(self, pool: Pool) -> np.ndarray:
        """Indices that were neither measured nor asked for."""
        taken = np.zeros(len(pool), bool)
        taken[[*self.seconds, *self.pending]] = True
        return np.flatnonzero(~taken)


Strategy = Callable[[Pool, Known, np.random.Generator], int]


def exhaustive(pool: Pool, known: Known, generator: np.random.Generator) -> int:
    """The first one left, in the order of the space."""
    return int(known.free(pool)[0])


def at_random(pool: Pool, known: Known, generator: np.random.Generator) -> int:
    """Any one left."""
    return int(generator.choice(known.free(pool)))


def local(pool: Pool, known: Known, generator: np.random.Generator) -> int:
    """Far apart at first; then where a Gaussian process over the logarithm of the times expects
    the largest improvement, among the neighbours of the best and random others.

    Expected improvement: D. R. Jones, M. Schonlau, W. J. Welch, Efficient global optimization of
    expensive black-box functions, J. Global Optimization 13, 1998; averaged over several fits of
    the process as in J. Snoek, H. Larochelle, R. P. Adams, Practical Bayesian optimization of
    machine learning algorithms, NeurIPS 2012, section 3.2. What failed counts as slow as
    the slowest; what is under way as fast as the process expects it to be.
    """
    free = known.free(pool)
    if known.fit is not None:
        latest = len(known.seconds) - known.fit.results
        candidates = np.intersect1d(known.fit.candidates, free)
        if len(candidates) and latest <= len(known.pending) // LAG:
            return _best_of(candidates, pool, known)
    usable = [i for i, seconds in known.seconds.items() if math.isfinite(seconds)]
    if len(known.seconds) + len(known.pending) < START or len(usable) < 2:
        return _far_from(pool, [*known.seconds, *known.pending], free, generator)
    indices = np.array(list(known.seconds))
    times = np.array([known.seconds[i] for i in indices])
    times[~np.isfinite(times)] = np.nanmax(times)
    best = indices[np.argsort(times, kind="stable")[:NEIGHBOURS_OF]]
    others = generator.choice(free, min(CANDIDATES, len(free)), replace=False)
    candidates = np.union1d(np.intersect1d(pool.neighbours(best), free), others)
    points, logs = pool.points[indices], np.log(times)
    surrogates = [Surrogate(points, logs, generator) for _ in range(SURROGATES)]
    known.fit = Fit(surrogates, len(known.seconds), set(), candidates)
    return _best_of(candidates, pool, known)


def _best_of(candidates: np.ndarray, pool: Pool, known: Known) -> int:
    """The candidate of the largest expected improvement; the next best ones stay candidates."""
    fit, gain = known.fit, np.zeros(len(candidates))
    under_way = sorted(set(known.pending) - fit.believed)
    for surrogate in fit.surrogates:
        if under_way:
            surrogate.believe(pool.points[under_way])
        gain += surrogate.expected_improvement(pool.points[candidates])
    fit.believed.update(under_way)
    order = np.argsort(-gain, kind="stable")
    fit.candidates = candidates[order[:SHORT_LIST]]
    return int(candidates[order[0]])


def _far_from(
    pool: Pool, taken: Sequence[int], free: np.ndarray, generator: np.random.Generator
) -> int:
    among = generator.choice(free, min(SPREAD_AMONG, len(free)), replace=False)
    if not taken:
        return int(among[0])
    apart = np.abs(pool.points[among][:, None] - pool.points[list(taken)][None]).sum(axis=2)
    return int(among[np.argmax(apart.min(axis=1))])


class Surrogate:
    """A Gaussian process with a Matern 5/2 kernel, one length scale for each parameter.

    C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning (MIT Press,
    2006), sections 2.2, 4.2 and 5.4. The scale of the values is fitted in closed form, length
    scales and noise by a random walk uphill on likelihood times prior.
    """

    def __init__(
        self, points: np.ndarray, values: np.ndarray, generator: np.random.Generator
    ) -> None:
        self._points = points
        deviation = float(values.std()) or 1.0
        self._targets = (values - values.mean()) / deviation
        dimensions = points.shape[1]
        start = np.array([LENGTH_PRIOR[0]] * dimensions + [NOISE_PRIOR[0]])
        self._logs = self._climb(start, generator)
        self._factorise()

    def believe(self, points: np.ndarray) -> None:
        """Take the prediction at further points for a measurement there."""
        mean, _ = self.predict(points)
        self._points = np.concatenate([self._points, points])
        self._targets = np.concatenate([self._targets, mean])
        self._factorise()

    def predict(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at `points`, in standard deviations of the values."""
        across = matern(points, self._points, np.exp(self._logs[:-1]))
        half = np.linalg.solve(self._factor, across.T)
        variance = np.maximum(1.0 - (half * half).sum(axis=0), 1e-9) * self._scale
        return half.T @ self._whitened, np.sqrt(variance)

    def expected_improvement(self, points: np.ndarray) -> np.ndarray:
        """By how much a point may be expected to fall below the smallest value so far."""
        mean, deviation = self.predict(points)
        distance = (self._targets.min() - mean) / deviation
        below = 0.5 * (1.0 + _erf(distance / math.sqrt(2.0)))
        density = np.exp(-0.5 * distance**2) / math.sqrt(2.0 * math.pi)
        gain = deviation * (distance * below + density)
        return gain if gain.max() > 1e-12 else deviation - mean

    def _factorise(self) -> None:
        covariance = matern(self._points, self._points, np.exp(self._logs[:-1]))
        covariance[np.diag_indices_from(covariance)] += np.exp(self._logs[-1])
        self._factor = np.linalg.cholesky(covariance)
        self._whitened = np.linalg.solve(self._factor, self._targets)
        self._scale = max(float(np.mean(self._whitened**2)), 1e-12)

    def _climb(self, logs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        best = self._loss(logs)
        for step in range(FIT_STEPS):
            trial = logs.copy()
            if step % 3:
                trial[generator.integers(len(logs))] += generator.normal(0.0, 0.7)
            else:
                trial += generator.normal(0.0, 0.2, len(logs))
            loss = self._loss(trial)
            if loss < best:
                logs, best = trial, loss
        return logs

    def _loss(self, logs: np.ndarray) -> float:
        """Negative logarithm of likelihood times prior, but for a constant."""
        covariance = matern(self._points, self._points, np.exp(logs[:-1]))
        covariance[np.diag_indices_from(covariance)] += np.exp(logs[-1])
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            return math.inf
        whitened = np.linalg.solve(factor, self._targets)
        scale = max(float(np.mean(whitened**2)), 1e-12)
        fit = 0.5 * len(whitened) * math.log(scale) + np.log(np.diag(factor)).sum()
        prior = ((logs[:-1] - LENGTH_PRIOR[0]) / LENGTH_PRIOR[1]) ** 2
        return float(
            fit + 0.5 * prior.sum() + 0.5 * ((logs[-1] - NOISE_PRIOR[0]) / NOISE_PRIOR[1]) ** 2
        )


def matern(points: np.ndarray, others: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Matern 5/2 covariance of points (n x d) and others (m x d), n x m, variance 1."""
    a, b = points / lengths, others / lengths
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None] - 2.0 * a @ b.T
    r = np.sqrt(5.0 * np.maximum(squares, 0.0))
    return (1.0 + r + r * r / 3.0) * np.exp(-r)


def _erf(x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(math.erf, x), np.float64, len(x))


STRATEGIES: dict[str, Strategy] = {
    "local": local,
    "random": at_random,
    "exhaustive": exhaustive,
}
