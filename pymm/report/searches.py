"""Statistics of searches: progress, gain, and the importance of parameters."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from pymm.core.problem import Problem
from pymm.measure.libraries import GENERAL
from pymm.report.load import Results, Row
from pymm.report.today import Today
from pymm.tune.finals import CHOSEN, NOTHING_SAVED, Timing, tied

#: Fewest trials from which the importance of parameters is computed.
ENOUGH = 12

#: A gap of so many seconds between two trials of a file means that the search was interrupted.
BREAK = 120.0


@dataclass(frozen=True)
class Search:
    """The trials of one kernel on one problem in one file, in their order. `spent` are the seconds
    that each took, compilation included.
    """

    problem: Problem
    kernel: str
    file: str
    rows: tuple[Row, ...]
    spent: tuple[float, ...] = ()
    today: Today = field(default_factory=Today)

    @cached_property
    def tried(self) -> list[Row]:
        """The trials of the search, without its final comparison."""
        return [row for row in self.rows if row.text("role") not in ("final", "baseline")]

    @cached_property
    def final(self) -> list[Row]:
        """The final comparison, measured in alternation: the default first, then the best few. The
        last one if the search was repeated.
        """
        last: list[Row] = []
        before = ""
        for row in self.rows:
            if row.text("role") == "final":
                again = any(row.text("config") == one.text("config") for one in last)
                last = [*last, row] if before == "final" and not again else [row]
            before = row.text("role")
        return last

    @property
    def outcomes(self) -> Counter[str]:
        """The number of trials by outcome."""
        return Counter(row.text("outcome") for row in self.tried)

    @property
    def origins(self) -> Counter[str]:
        """The number of trials by where their configurations came from; without those of files that
        do not say it.
        """
        return Counter(row.text("origin") for row in self.tried if row.text("origin"))

    @cached_property
    def progress(self) -> list[tuple[int, float, float]]:
        """After each trial: the number of trials, their seconds in total, the best time so
        far (s).
        """
        best, found, taken = math.inf, [], 0.0
        spent = dict(zip(map(id, self.rows), self.spent, strict=True))
        for count, row in enumerate(self.tried, 1):
            taken += spent[id(row)]
            if row.text("outcome") == "ok" and row.seconds > 0:
                best = min(best, row.seconds)
            if math.isfinite(best):
                found.append((count, taken, best))
        return found

    @cached_property
    def default(self) -> Row | None:
        """The default in the final comparison: both the search and its final begin with it."""
        first, final = next(iter(self.tried), None), self.final
        if first is None or not final or not final[0].valid:
            return None
        return final[0] if final[0].text("config") == first.text("config") else None

    @cached_property
    def best(self) -> Row | None:
        """The winner: what the tuner says it chose or kept, where the file has that. Else the
        fastest of the final, or of the search; the default where the difference may be noise, by
        the rule of `pymm.tune.finals`.
        """
        for row in self.final:
            if row.valid and row.text("detail").startswith((CHOSEN, NOTHING_SAVED)):
                return row
        right = [row for row in self.final or self.tried if row.valid]
        fastest = min(right, key=lambda row: row.seconds, default=None)
        if self.default is None or fastest is None:
            return fastest
        others = max(len(right) - 1, 1)
        same = tied(_timing(self.default), _timing(fastest), others)
        return self.default if same else fastest

    @cached_property
    def libraries(self) -> dict[str, Row]:
        """The libraries of the final comparison by name."""
        rows = [row for row in self.rows if row.text("role") == "baseline" and row.valid]
        return {row.text("config"): row for row in rows}

    @property
    def baseline(self) -> Row | None:
        """The fastest library that computes the same."""
        of = [row for name, row in self.libraries.items() if name in GENERAL]
        return min(of, key=lambda row: row.seconds, default=None)

    @property
    def ratio(self) -> float:
        """The fastest library's time / the winner's; NaN if none was measured, or doubtful."""
        if self.best is None or self.baseline is None or self.doubtful:
            return math.nan
        return self.baseline.seconds / self.best.seconds

    @cached_property
    def stale(self) -> str:
        """Why its result is not today's; "" if it is, or if nobody can say."""
        if self.best is None:
            return ""
        return self.today.search_stale_because(self.kernel, self.best, self.default)

    @property
    def gain(self) -> float:
        """The default's time / the winner's in the final; NaN if the default was not in it, and if
        the times were doubtful.
        """
        if self.default is None or self.doubtful:
            return math.nan
        return self.default.seconds / self.best.seconds

    @property
    def doubtful(self) -> bool:
        """Whether nothing was saved because the times were doubtful."""
        return self.words.startswith(NOTHING_SAVED)

    @property
    def words(self) -> str:
        """What the tuner says that the search has gained, with the interval, or why it has saved
        nothing; "" where it does not say it.
        """
        detail = self.best.text("detail") if self.best is not None else ""
        said = detail.startswith((CHOSEN, NOTHING_SAVED))
        return detail.removeprefix(CHOSEN) if said else ""

    @cached_property
    def importance(self) -> dict[str, float]:
        """Each parameter's share of the variance of log(time) over valid trials, largest first.

        Omega squared of a one-way analysis: (SB - (levels - 1) MW) / (ST + MW), SB the sum of
        squares between the parameter's levels, MW the mean square within them, ST the total (W. L.
        Hays, Statistics, 1963). A search samples good regions more often, and correlated parameters
        share what they explain, so this is a ranking, not a proof. Empty for too few trials.
        """
        timed = [row for row in self.tried if row.text("outcome") in ("ok", "too_slow")]
        points = [
            (parameters(r.text("config")), math.log(r.seconds)) for r in timed if r.seconds > 0
        ]
        if len(points) < ENOUGH:
            return {}
        names = sorted(set.intersection(*(set(config) for config, _ in points)))
        parts = {name: _omega([(config[name], y) for config, y in points]) for name in names}
        return dict(sorted(parts.items(), key=lambda item: -item[1]))


def _timing(row: Row) -> Timing:
    spread, repeats = row.number("spread"), row.number("repeats")
    return Timing(row.seconds, spread, int(repeats) if repeats >= 1 else 1)


def parameters(slug: str) -> dict[str, int]:
    """The parameters of a configuration's slug, such as `tile-MB64-NB32`; empty if it is
    invalid.
    """
    found = (re.fullmatch("([A-Z_]+)([0-9]{1,9})", field) for field in slug.split("-")[1:])
    return {of[1]: int(of[2]) for of in found if of}


def _omega(points: Sequence[tuple[int, float]]) -> float:
    levels: dict[int, list[float]] = {}
    for level, value in points:
        levels.setdefault(level, []).append(value)
    within = sum(len(group) * statistics.pvariance(group) for group in levels.values())
    total = len(points) * statistics.pvariance([value for _, value in points])
    freedom = len(points) - len(levels)
    if len(levels) < 2 or freedom < 1 or total <= 0:
        return 0.0
    mean_within = within / freedom
    between = total - within - (len(levels) - 1) * mean_within
    return max(0.0, between / (total + mean_within))


def _moment(text: str) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):  # a year out of range
        return math.nan


def searches(results: Results) -> list[Search]:
    """Every search, in the order of the files."""
    groups: dict[tuple[str, ...], list[tuple[Row, float]]] = {}
    before: dict[str, float] = {}
    for row in results.of("trials"):
        now = _moment(row.text("time"))
        gap = now - before.get(row.file, now)
        before[row.file] = now
        added = row.text("beta") if row.text("beta") != "0" else ""
        key = (row.file, row.text("kernel"), row.text("problem"), added)
        groups.setdefault(key, []).append((row, gap if 0 <= gap < BREAK else 0.0))
    return [
        Search(rows[0][0].problem, kernel, file, *zip(*rows, strict=True), results.today)
        for (file, kernel, *_), rows in groups.items()
    ]


def longest(found: Sequence[Search], count: int) -> list[Search]:
    """The searches with most trials, one of each kernel, at most `count`."""
    best: dict[str, Search] = {}
    for search in sorted(found, key=lambda s: -len(s.progress)):
        if search.progress:
            best.setdefault(search.kernel, search)
    return list(best.values())[:count]
