"""The comparison of two reports: what is faster, slower or as fast, and where noise hides it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymm.console import duration
from pymm.report.content import Cell, Chapter, Report, Table, Tile, rate
from pymm.report.export import SavedReport, SavedTiming, label
from pymm.report.stats import OWN, mean
from pymm.report.svg import HEIGHT, Figure, NoPlots, colour, draw
from pymm.report.tables import of_problem, ratio_cell, time_cell

#: By how much two runs of the same program on the same device may differ, besides the noise within
#: each run. From `ENOUGH` timings of libraries on, which do not change, it is estimated from these.
BETWEEN, ENOUGH = 0.02, 8

#: Standard errors of the two medians on either side of a ratio.
ERRORS = 2.0

#: Two times are as fast if they cannot differ by more than this. Where they may, and the noise is
#: larger than their difference, the answer is unclear.
MARGIN = 0.05

FASTER, SLOWER, SAME, UNCLEAR = "faster", "slower", "as fast", "unclear"


@dataclass(frozen=True)
class Pair:
    """The same kernel or library in both reports. `ratio` is the first's time / the second's: above
    1 the second is faster. `noise` is the relative uncertainty.
    """

    first: SavedTiming
    second: SavedTiming
    noise: float

    @property
    def ratio(self) -> float:
        """The first's time / the second's."""
        return self.first.seconds / self.second.seconds

    @property
    def verdict(self) -> str:
        """Whether the second is faster; unclear where the noise hides a difference that counts."""
        difference = abs(math.log(self.ratio))
        if difference > self.noise:
            return FASTER if self.ratio > 1 else SLOWER
        return SAME if difference + self.noise <= MARGIN else UNCLEAR


def pairs(first: SavedReport, second: SavedReport) -> tuple[list[Pair], float]:
    """What both reports have, and the assumed noise between the two runs."""
    others = {timing.key: timing for timing in second.timings}
    both = [(a, others[a.key]) for a in first.timings if a.key in others]
    between = _between(both) if first.slug == second.slug else BETWEEN
    found = []
    for a, b in both:
        known = [error for error in (a.error, b.error) if error == error]
        noise = between + ERRORS * math.sqrt(sum(error * error for error in known))
        found.append(Pair(a, b, noise))
    return found, between


def _between(both: Sequence[tuple[SavedTiming, SavedTiming]]) -> float:
    """Twice the standard deviation of the libraries' log ratios, at least 1 %. It is estimated as
    1.4826 times the median of their absolute values, which is robust to outliers.
    """
    logs = [math.log(a.seconds / b.seconds) for a, b in both if a.library != OWN]
    if len(logs) < ENOUGH:
        return BETWEEN
    return max(0.01, 2 * 1.4826 * statistics.median(map(abs, logs)))


def comparison(first: SavedReport, second: SavedReport) -> Report:
    """The report that compares two reports."""
    found, between = pairs(first, second)
    own = [pair for pair in found if pair.first.library == OWN]
    notices = []
    for one, other in ((first, second), (second, first)):
        keys = {timing.key for timing in other.timings}
        unpaired = sum(timing.key not in keys for timing in one.timings)
        if unpaired:
            notices.append(f"{unpaired} measurements are only in {one.name}")
    figures, bare = [], ""
    try:
        figures = [_figure(own)] if own else []
    except NoPlots as reason:
        bare = f"No figures: {reason}"
    chapters = [_glance(first, second, own, between, figures)] if own else []
    libraries = [pair for pair in found if pair.first.library != OWN]
    if libraries:
        intro = (
            "The same for the libraries, which are independent of pymm: changes here come from the "
            "machine, its driver or the library."
        )
        chapters.append(Chapter("libraries", "Libraries", intro, [], [_table(libraries)]))
    a, b = _name(first), _name(second)
    environment = [("first", a), ("second", b), ("read from", f"{first.name}, {second.name}")]
    data = {
        "schema": 1,
        "first": first.device,
        "second": second.device,
        "between": between,
        "pairs": [_data(pair) for pair in found],
    }
    title, what = f"{a} and {b}", "Comparison of two reports"
    return Report(title, what, chapters, notices, environment, data, bare)


def _name(report: SavedReport) -> str:
    return str(report.device.get("name") or report.slug)


def _glance(
    first: SavedReport,
    second: SavedReport,
    own: Sequence[Pair],
    between: float,
    figures: list[Figure],
) -> Chapter:
    verdicts = (FASTER, SLOWER, SAME, UNCLEAR)
    counts = {name: sum(pair.verdict == name for pair in own) for name in verdicts}
    tiles = [
        Tile(
            "geometric mean",
            f"{mean(p.ratio for p in own):.3f}x",
            "the first's time / the second's, over all of pymm's measurements in both",
        )
    ]
    tiles += [
        Tile(_words(name), str(count), f"of {len(own)} measurements")
        for name, count in counts.items()
    ]
    intro = (
        f"First {_name(first)} ({first.name}), second {_name(second)} ({second.name}). The noise "
        f"is {between:.1%} between the runs and {ERRORS:g} standard errors within them. A "
        "difference beyond it counts. Within it two times are as fast if they cannot differ by "
        f"more than {MARGIN:.0%}; else the answer is unclear."
    )
    return Chapter("glance", "At a glance", intro, figures, [_table(own)], (), tiles)


def _words(verdict: str) -> str:
    return verdict if verdict == UNCLEAR else f"the second is {verdict}"


def _table(found: Sequence[Pair]) -> Table:
    """Every pair, the largest differences first."""
    rows = []
    for pair in sorted(found, key=lambda pair: -abs(math.log(pair.ratio))):
        row = of_problem(pair.first.problem) | {
            "implementation": Cell(label(pair.first)),
            "first": time_cell(pair.first.seconds),
            "second": time_cell(pair.second.seconds),
            "first / second": ratio_cell(pair.ratio),
            "noise": Cell(f"{pair.noise:.1%}", pair.noise),
            "the second is": Cell(pair.verdict),
        }
        if pair.first.library == OWN:
            one, other = pair.first.config, pair.second.config
            row["first's configuration"] = Cell(one.replace("-", " "))
            row["second's"] = Cell("the same" if one == other else other.replace("-", " "))
        rows.append(row)
    name = "pairs" if found[0].first.library == OWN else "pairs-libraries"
    return Table(name, "Every measurement in both reports", rows)


def _figure(own: Sequence[Pair]) -> Figure:
    def plot(drawn: Any, axes: Any) -> None:
        for name, marker, role in (
            (SAME, "o", "muted"),
            (UNCLEAR, "x", "series-3"),
            (FASTER, "^", "series-0"),
            (SLOWER, "v", "series-1"),
        ):
            at = [pair for pair in own if pair.verdict == name]
            axes.plot(
                [p.first.problem.flops for p in at],
                [p.ratio for p in at],
                linestyle="",
                marker=marker,
                color=colour(role),
                label=name,
            )
        axes.axhline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set(xscale="log", xlabel="operations of the product", ylabel="first / second")
        axes.minorticks_off()
        ticks = [t for t in (1e6, 1e8, 1e10, 1e12) if _within(t, own)]
        axes.set_xticks(ticks, [rate(t / 1e9).replace("FLOP/s", "FLOP") for t in ticks])
        drawn.legend(loc="outside lower center", ncols=4)

    return draw(
        "pairs",
        "Faster, slower, as fast or unclear",
        "The first's time / the second's for every measurement of pymm in both reports: above 1 "
        "the second is faster.",
        plot,
        HEIGHT,
    )


def _within(tick: float, own: Sequence[Pair]) -> bool:
    flops = [pair.first.problem.flops for pair in own]
    return min(flops) / 10 <= tick <= max(flops) * 10


def _data(pair: Pair) -> dict[str, object]:
    return {
        "problem": pair.first.problem.slug,
        "contestant": label(pair.first),
        "ratio": float(f"{pair.ratio:.6g}"),
        "noise": float(f"{pair.noise:.3g}"),
        "verdict": pair.verdict,
        "first": duration(pair.first.seconds),
        "second": duration(pair.second.seconds),
    }
