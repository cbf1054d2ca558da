"""A model of all configurations, cheap to ask: Gaussian processes over a value, the smaller the
better, that grow by one row with each result.

C. E. Rasmussen and C. K. I. Williams, Gaussian Processes for Machine Learning (MIT Press, 2006),
sections 2.2, 4.2 and 5.4, and appendix A.3 for a factor that grows by rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

#: Processes that are fitted independently and averaged.
PROCESSES = 3

#: Steps of a fit, the first of them in the logarithm of each parameter, how far the starts are
#: spread, and how many results it uses at most: half of them the fastest, the others spread over
#: the rest. A step costs an inverse of their covariance.
FIT_STEPS, FIRST_STEP, SPREAD, MOST_FITTED = 20, 0.3, 0.5, 96

#: One process is fitted anew after every n / REFIT results. Fitting all after each result needs as
#: many evaluations on the replay data.
REFIT = 24

#: Priors, normal in the logarithm: length scale of a parameter whose range is 1, and variance of
#: the noise beside that of the times.
LENGTH_PRIOR = (math.log(1.5), 1.0)
NOISE_PRIOR = (math.log(1e-3), 1.5)

#: The smallest variance of a prediction, beside that of the times.
SMALLEST = 1e-9


class Process:
    """A Gaussian process with a Matern 5/2 kernel, one length scale for each parameter, over
    `space` (configurations x parameters). It knows the covariance of the points in `known` (indices
    of the space) and how these explain the points that it watches, both by the inverse of a
    Cholesky factor: a further point costs a row, not a factorisation.
    """

    def __init__(self, space: np.ndarray) -> None:
        self._space = space
        self._rows = 0
        self._known = np.zeros(0, int)
        self._watched = np.zeros(0, int)
        self._inverse = np.zeros((0, 0))  # of the Cholesky factor, lower triangular
        self._across = np.zeros((0, 0))  # that times the covariance with the watched points
        self._explained = np.zeros(0)  # variance of the watched points that the known ones explain
        self._lengths, self._noise = np.ones(space.shape[1]), 1.0

    def __len__(self) -> int:
        return self._rows

    def fit(self, known: np.ndarray, values: np.ndarray, generator: np.random.Generator) -> None:
        """New length scales and noise from the `values` of these points, uphill from a random start
        on likelihood times prior. Whatever was known or watched is forgotten.
        """
        points, count = self._space[known], self._space.shape[1] + 1
        start = _prior_mean(count) + SPREAD * generator.normal(size=count)
        logs = _fitted(points, values, start)
        self._lengths, self._noise = np.exp(logs[:-1]), math.exp(logs[-1])
        self._rows, self._known, self._watched = 0, np.zeros(0, int), np.zeros(0, int)

    def learn(self, points: Sequence[int]) -> None:
        """Know the points in this order; those known so far are the first of them."""
        added = np.array(points[self._rows :], int)
        if not self._rows and len(added):
            self._begin(added)
            return
        for index in added:
            self._append(index)

    def watch(self, points: np.ndarray) -> None:
        """Watch these points, in ascending order; what is known of those watched before stays."""
        across, explained = np.empty((len(self._inverse), len(points))), np.empty(len(points))
        old, place = np.zeros(len(points), bool), np.zeros(0, int)
        if len(self._watched):
            place = np.searchsorted(self._watched, points)
            place[place == len(self._watched)] = 0
            old = self._watched[place] == points
            place = place[old]
        across[: self._rows, old] = self._across[: self._rows, place]
        explained[old] = self._explained[place]
        new = self._across_to(points[~old])
        across[: self._rows, ~old] = new
        explained[~old] = (new * new).sum(axis=0)
        self._watched, self._across, self._explained = points, across, explained

    def predict(self, values: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation at any points, given the values of the known ones."""
        weights, scale = self._weights(values)
        across = self._across_to(points)
        variance = np.maximum(1.0 - (across * across).sum(axis=0), SMALLEST)
        return weights @ across, np.sqrt(variance * scale)

    def predict_watched(
        self, values: np.ndarray, under_way: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """Mean and standard deviation at the watched points, and the smallest value, if the values
        of those under way turn out as they are predicted now.
        """
        weights, scale = self._weights(values)
        across = self._across[: self._rows]
        mean, variance, smallest = weights @ across, 1.0 - self._explained, float(values.min())
        if len(under_way):
            points, own = self._space[under_way], self._across_to(under_way)
            covariance = matern(points, points, self._lengths) - own.T @ own
            covariance[np.diag_indices_from(covariance)] += self._noise + SMALLEST
            beside = matern(points, self._space[self._watched], self._lengths) - own.T @ across
            beside = np.linalg.inv(np.linalg.cholesky(covariance)) @ beside
            variance = variance - (beside * beside).sum(axis=0)
            smallest = min(smallest, float((weights @ own).min()))
        return mean, np.sqrt(np.maximum(variance, SMALLEST) * scale), smallest

    def _begin(self, known: np.ndarray) -> None:
        """Factorise the covariance of the first points; nothing is watched yet."""
        covariance = matern(self._space[known], self._space[known], self._lengths)
        covariance[np.diag_indices_from(covariance)] += self._noise
        inverse = np.tril(np.linalg.inv(np.linalg.cholesky(covariance)))
        self._rows, self._known = len(known), known
        self._inverse = np.zeros((2 * len(known), 2 * len(known)))
        self._inverse[: len(known), : len(known)] = inverse
        self._across, self._explained = np.zeros((2 * len(known), 0)), np.zeros(0)

    def _append(self, index: int) -> None:
        n = self._rows
        if n == len(self._inverse):
            grown = np.zeros((2 * n, 2 * n))
            grown[:n, :n] = self._inverse
            self._inverse = grown
            self._across = np.concatenate([self._across, np.empty_like(self._across)])
        row = self._across_to(np.array([index]))[:, 0]
        corner = math.sqrt(max(1.0 + self._noise - row @ row, SMALLEST))
        self._inverse[n, :n] = row @ self._inverse[:n, :n] / -corner
        self._inverse[n, n] = 1.0 / corner
        covariance = matern(self._space[[index]], self._space[self._watched], self._lengths)[0]
        self._across[n] = (covariance - row @ self._across[:n]) / corner
        self._explained = self._explained + self._across[n] ** 2
        self._rows, self._known = n + 1, np.append(self._known, index)

    def _across_to(self, points: np.ndarray) -> np.ndarray:
        n = self._rows
        covariance = matern(self._space[self._known], self._space[points], self._lengths)
        return self._inverse[:n, :n] @ covariance

    def _weights(self, values: np.ndarray) -> tuple[np.ndarray, float]:
        """What multiplies `across`, and the variance of the values, in closed form."""
        weights = self._inverse[: self._rows, : self._rows] @ values
        return weights, max(float(np.mean(weights**2)), 1e-12)


class Surrogate:
    """The average of a few processes over one space, kept from question to question.

    What it answers depends on `seed` and on the results in their order alone, not on when it was
    asked: a search that goes on after an interruption gets the same answers.
    """

    def __init__(self, space: np.ndarray, seed: Sequence[int]) -> None:
        self._space, self._seed = space, tuple(seed)
        self._processes = [Process(space) for _ in range(PROCESSES)]
        self._fitted = [0] * PROCESSES  # results at the last fit
        self._values = np.zeros(0)
        self.watched = np.zeros(0, int)

    def update(self, points: Sequence[int], values: np.ndarray) -> None:
        """Take over the results so far: indices of the space in the order of the results, those of
        the last update first, and what is to be small.
        """
        points, values = list(points), np.asarray(values)
        for place, process in enumerate(self._processes):
            due = _fit_due(len(points), place)
            if due != self._fitted[place]:
                self._fitted[place] = due
                chosen = _representative(values[:due])
                generator = np.random.default_rng((*self._seed, due, place))
                known = np.array(points)[:due][chosen]
                process.fit(known, _standard(values[:due][chosen]), generator)
                process.learn(points)
                process.watch(self.watched)
            else:
                process.learn(points)
        self._values = _standard(values)

    def watch(self, points: np.ndarray) -> None:
        """Be ready to say what these points promise, in ascending order."""
        if not np.array_equal(points, self.watched):
            self.watched = points
            for process in self._processes:
                process.watch(points)

    def promise_watched(self, under_way: Sequence[int]) -> np.ndarray:
        """By how much each watched point may be expected to fall below the smallest value, if those
        under way turn out as they are predicted.
        """
        others = np.array(under_way, int)
        gains = (
            improvement(*process.predict_watched(self._values, others))
            for process in self._processes
        )
        return np.sum(list(gains), axis=0)

    def promise(self, points: Sequence[int]) -> np.ndarray:
        """By how much each of any points may be expected to fall below the smallest value."""
        at, smallest = np.array(points, int), float(self._values.min())
        gains = (
            improvement(*process.predict(self._values, at), smallest) for process in self._processes
        )
        return np.sum(list(gains), axis=0)


def improvement(mean: np.ndarray, deviation: np.ndarray, smallest: float) -> np.ndarray:
    """Expected improvement: D. R. Jones, M. Schonlau, W. J. Welch, Efficient global optimization of
    expensive black-box functions, J. Global Optimization 13, 1998.
    """
    distance = (smallest - mean) / deviation
    below = 0.5 * (1.0 + _erf(distance / math.sqrt(2.0)))
    density = np.exp(-0.5 * distance**2) / math.sqrt(2.0 * math.pi)
    gain = deviation * (distance * below + density)
    return gain if gain.max(initial=0.0) > 1e-12 else deviation - mean


def matern(points: np.ndarray, others: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Matern 5/2 covariance of points (n x d) and others (m x d), n x m, variance 1."""
    decay, r = _decay(points / lengths, others / lengths)
    return (1.0 + r + r * r / 3.0) * decay


def _decay(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(-r) and r, the distances of a and b times the root of 5."""
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None] - 2.0 * a @ b.T
    r = np.sqrt(5.0 * np.maximum(squares, 0.0))
    return np.exp(-r), r


def _fit_due(results: int, place: int) -> int:
    """At how many results process `place` was to be fitted last: in turn, one after every
    n / REFIT.
    """
    due, turn, last = 2, 0, 2
    while due <= results:
        if turn % PROCESSES == place:
            last = due
        due, turn = due + max(1, due // REFIT), turn + 1
    return last


def _representative(values: np.ndarray) -> np.ndarray:
    """Places of at most `MOST_FITTED` values: the smallest, and others at even steps of rank."""
    order = np.argsort(values, kind="stable")
    if len(order) <= MOST_FITTED:
        return order
    best = MOST_FITTED // 2
    steps = np.linspace(best, len(order) - 1, MOST_FITTED - best).astype(int)
    return np.concatenate([order[:best], order[steps]])


def _standard(values: np.ndarray) -> np.ndarray:
    """The values with mean 0 and standard deviation 1."""
    return (values - values.mean()) / (float(values.std()) or 1.0)


def _fitted(points: np.ndarray, values: np.ndarray, logs: np.ndarray) -> np.ndarray:
    """Logarithms of length scales and noise, uphill from `logs` on likelihood times prior, each by
    steps that grow while its slope keeps its sign (Rprop: M. Riedmiller, H. Braun, A direct
    adaptive method for faster backpropagation learning, ICNN 1993).
    """
    best, lowest = logs, math.inf
    step, before = np.full(len(logs), FIRST_STEP), np.zeros(len(logs))
    for _ in range(FIT_STEPS):
        loss, slope = _loss(points, values, logs)
        if loss < lowest:
            best, lowest = logs, loss
        turned = slope * before
        step = np.clip(step * np.where(turned > 0, 1.3, np.where(turned < 0, 0.5, 1.0)), 0.01, 1.0)
        before = np.where(turned < 0, 0.0, slope)
        logs = logs - np.sign(before) * step
    return best


def _loss(points: np.ndarray, values: np.ndarray, logs: np.ndarray) -> tuple[float, np.ndarray]:
    """Negative logarithm of likelihood times prior, but for a constant, and its gradient; the scale
    of the values in closed form. (Rasmussen and Williams, equations 5.8 and 5.9.)
    """
    lengths, noise = np.exp(logs[:-1]), math.exp(logs[-1])
    scaled = points / lengths
    decay, r = _decay(scaled, scaled)
    covariance = (1.0 + r + r * r / 3.0) * decay
    covariance[np.diag_indices_from(covariance)] += noise
    try:
        factor = np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        return math.inf, logs - _prior_mean(len(logs))  # towards where it exists
    inverse = np.linalg.inv(factor)
    inverse = inverse.T @ inverse
    weights = inverse @ values
    scale = max(float(values @ weights) / len(values), 1e-12)
    away = (logs - _prior_mean(len(logs))) / _prior_deviation(len(logs))
    loss = 0.5 * len(values) * math.log(scale) + np.log(np.diag(factor)).sum()
    sensitive = inverse - np.outer(weights, weights) / scale
    by_lengths = sensitive * (5.0 / 3.0) * (1.0 + r) * decay
    rows = by_lengths.sum(axis=1)
    slopes = (scaled * scaled * rows[:, None]).sum(axis=0) - (scaled * (by_lengths @ scaled)).sum(0)
    slope = np.append(slopes, 0.5 * noise * np.trace(sensitive))
    return float(loss + 0.5 * (away @ away)), slope + away / _prior_deviation(len(logs))


def _prior_mean(count: int) -> np.ndarray:
    return np.array([LENGTH_PRIOR[0]] * (count - 1) + [NOISE_PRIOR[0]])


def _prior_deviation(count: int) -> np.ndarray:
    return np.array([LENGTH_PRIOR[1]] * (count - 1) + [NOISE_PRIOR[1]])


def _erf(x: np.ndarray) -> np.ndarray:
    return np.fromiter(map(math.erf, x), np.float64, len(x))
