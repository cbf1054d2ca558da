"""Times of calls, taken again after a host launch delay, and the rounds of a comparison."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pymm.backends.base import Backend

Call = Callable[[], Any]

#: A sample is taken at most so often. Each further time the device is kept busy twice as long
#: before it, at most so many times as long as at first (0.12 ms on an H200, so 8 ms).
TRIES, MOST_AHEAD = 7, 64

#: From so many rounds on the slower half is left out on a CPU.
HALVED_FROM = 10

#: Of many calls the fastest: each is timed once, then so many of the best in so many rounds.
FINALISTS, FINAL_ROUNDS = 8, 7


class Stopwatch:
    """Takes times on a backend; `void` counts by call the samples with host launch delay."""

    def __init__(self, backend: Backend, seed: int = 0) -> None:
        self.backend, self.seed = backend, seed
        self.void: Counter[Call] = Counter()
        self._ahead = 1

    def time(self, calls: Sequence[Call]) -> list[float]:
        """Seconds of each call, NaN for one with a host launch delay `TRIES` times."""
        times = [math.nan] * len(calls)
        waiting = list(range(len(calls)))
        for attempt in range(TRIES):
            taken = self.backend.time([calls[i] for i in waiting], ahead=self._ahead)
            for index, seconds in zip(waiting, taken, strict=True):
                times[index] = seconds
            waiting = [index for index in waiting if math.isnan(times[index])]
            self.void.update(calls[index] for index in waiting)
            if not waiting:
                self._ahead = max(1, self._ahead // 2) if attempt == 0 else self._ahead
                break
            self._ahead = min(2 * self._ahead, MOST_AHEAD)
        return times

    def sound(self, calls: Sequence[Call]) -> list[float]:
        """The same without those that are void."""
        return [seconds for seconds in self.time(calls) if not math.isnan(seconds)]

    def rounds(
        self, calls: Mapping[str, Call], count: int, least: int, ends: float = math.inf
    ) -> tuple[dict[str, list[float]], int]:
        """Sound times by name of `count` rounds, or of as many, at least `least`, as are over at
        the monotonic time `ends`, and their number; on a CPU those of the quieter half of these
        rounds, and its number. `least` are timed by the clock on the wall, for resting, and
        emptying a GPU's caches, take longer than many a call.
        """
        begun, done = time.monotonic(), min(count, least)
        times = self._rounds(calls, done, self.seed)
        now = time.monotonic()
        each = max(now - begun, 1e-9) / max(done, 1)
        more = int(max(0.0, min(count - done, (ends - now) / each)))
        for name, taken in self._rounds(calls, more, self.seed + 1).items():
            times[name] += taken
        if self.backend.device.shares_host_cores:
            return quieter_half(times, done + more)
        return times, done + more

    def _rounds(self, calls: Mapping[str, Call], count: int, seed: int) -> dict[str, list[float]]:
        """The calls of each round in its own random order: in a fixed one the first was slower by 4
        to 6 % on an H200, as nothing had run just before it.
        """
        if not count:
            return {}
        generator = random.Random(seed)
        order = [name for _ in range(count) for name in generator.sample(list(calls), len(calls))]
        times: dict[str, list[float]] = {name: [] for name in calls}
        for name, seconds in zip(order, self.time([calls[name] for name in order]), strict=True):
            if not math.isnan(seconds):
                times[name].append(seconds)
        return times

    def fastest(self, calls: Iterable[Call], seconds: float) -> Call | None:
        """The call with the least median time. After so many seconds no further call is looked at:
        the likely ones come first. None without a call, or if all samples are void.
        """
        ends, first = time.monotonic() + seconds, []
        for call in calls:
            first += [(sample, len(first), call) for sample in self.sound([call])]
            if time.monotonic() > ends:
                break
        best = {str(number): call for _, number, call in sorted(first)[:FINALISTS]}
        times, _ = self.rounds(best, FINAL_ROUNDS if len(best) > 1 else 0, 1, ends)
        medians = {name: statistics.median(of) for name, of in times.items() if of}
        name = min(best, key=lambda name: medians.get(name, math.inf), default=None)
        return best.get(name)


def quieter_half(
    times: Mapping[str, list[float]], rounds: int
) -> tuple[dict[str, list[float]], int]:
    """The half of so many `rounds` in which the calls took least, by the median of time / median of
    the call's times, in their order, and its size. All rounds if there are fewer than
    `HALVED_FROM`, or if a call lacks the time of one. Other programs and other guests of a host
    take a core away for tenths of seconds, which meets all calls of a round. Of few calls one whose
    times vary more than the others' gains a little.
    """
    if not times or rounds < HALVED_FROM or any(len(of) != rounds for of in times.values()):
        return dict(times), rounds
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    slow = [statistics.median(t[r] / medians[n] for n, t in times.items()) for r in range(rounds)]
    kept = sorted(sorted(range(rounds), key=slow.__getitem__)[: (rounds + 1) // 2])
    return {name: [taken[r] for r in kept] for name, taken in times.items()}, len(kept)
