"""Figures of searches: what tuning gained, how it went, what counted, slices, outcomes."""

from __future__ import annotations

import math
from typing import Any

from pymm.kernels import KERNELS
from pymm.report.load import Findings
from pymm.report.searches import Search, longest, parameters, searches
from pymm.report.svg import HEIGHT, Figure, colour, decades, draw, series

#: Searches whose progress is drawn, and of these how many in detail.
DRAWN, DETAILED = 6, 3

#: Parameters of a search whose slices are drawn.
SLICES = 3

OUTCOMES = (
    "ok",
    "too_slow",
    "compile_failed",
    "compile_timeout",
    "launch_failed",
    "wrong",
    "timed_out",
    "crashed",
    "disturbed",
)


#: By how much a winner beats the default: up to which ratio, in words.
STEPS = (
    (1.01, "up to 1 %"),
    (1.05, "1 to 5 %"),
    (1.2, "5 to 20 %"),
    (2.0, "20 % to 2x"),
    (10.0, "2x to 10x"),
    (math.inf, "more than 10x"),
)


def gains(findings: Findings) -> list[Figure]:
    """How many searches gained how much: default's time / winner's."""
    ratios = [search.gain for search in searches(findings) if search.gain == search.gain]
    if len(ratios) < 2:
        return []
    ends = [0.0, *(end for end, _ in STEPS)]
    counts = [
        sum(low < ratio <= high for ratio in ratios)
        for low, high in zip(ends, ends[1:], strict=False)
    ]

    def plot(figure: Any, axes: Any) -> None:
        places = range(len(STEPS))
        axes.barh(places, counts, height=0.66, color=colour("series-0"))
        for place, count in zip(places, counts, strict=True):
            axes.annotate(
                str(count),
                (count, place),
                textcoords="offset points",
                xytext=(4, 0),
                va="center",
                fontsize=9,
            )
        axes.set_yticks(places, [words for _, words in STEPS])
        axes.set(xlabel="searches", xlim=(0, 1.12 * max(counts)), ylim=(len(STEPS) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)

    words = (
        f"{len(ratios)} searches by how much faster the winner is than the kernel's default, both "
        "measured in turn at the search's end."
    )
    return [draw("gains", "What tuning gained", words, plot, 220)]


def progress(findings: Findings) -> list[Figure]:
    """Best time so far as a part of the search's best, against evaluations and seconds."""
    shown = longest(searches(findings), DRAWN)
    if not shown:
        return []

    def lines(axes: Any, place: int, label: str) -> None:
        lowest: list[float] = []
        for number, search in enumerate(shown):
            best = search.progress[-1][2]
            xs = [point[place] + (place == 1) for point in search.progress]
            style = series(number) | {"marker": ""}
            parts = [100 * best / point[2] for point in search.progress]
            lowest.append(parts[0])
            axes.step(
                xs,
                parts,
                where="post",
                label=f"{search.kernel}, {search.problem.slug}",
                **style,
            )
        axes.set(xscale="log", xlabel=label, ylabel="% of the best found")
        axes.set_ylim(max(0.0, 10 * math.floor(min(lowest) / 10) - 5), 102)
        axes.minorticks_off()
        decades(axes.xaxis)

    def evaluations(figure: Any, axes: Any) -> None:
        lines(axes, 0, "evaluations")
        figure.legend(loc="outside lower center", ncols=1)

    def seconds(figure: Any, axes: Any) -> None:
        lines(axes, 1, "seconds, and one")
        figure.legend(loc="outside lower center", ncols=1)

    height = HEIGHT + 14 * (len(shown) - 1)
    what = "Best rate so far of the longest search of each kernel, as a part of its best, against "
    return [
        draw("progress", "How searches went", what + "the number of trials.", evaluations, height),
        draw("progress-s", "How long they took", what + "the time.", seconds, height),
    ]


def outcomes(findings: Findings) -> list[Figure]:
    """How trials ended, kernel by kernel."""
    counts: dict[str, dict[str, int]] = {}
    for search in searches(findings):
        of = counts.setdefault(search.kernel, {})
        for name, count in search.outcomes.items():
            of[name] = of.get(name, 0) + count
    if not counts:
        return []
    order = [kernel.name for kernel in KERNELS]
    kernels = sorted(counts, key=lambda name: order.index(name) if name in order else len(order))
    names = [name for name in OUTCOMES if any(name in of for of in counts.values())]

    def plot(figure: Any, axes: Any) -> None:
        left = [0] * len(kernels)
        for number, name in enumerate(names):
            widths = [counts[kernel].get(name, 0) for kernel in kernels]
            axes.barh(
                range(len(kernels)),
                widths,
                left=left,
                height=0.66,
                label=name,
                color=colour(f"series-{number % 8}"),
                edgecolor=colour("paper"),
                linewidth=0.8,
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(kernels)), kernels)
        axes.set(xlabel="trials", ylim=(len(kernels) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    words = "Trials of each kernel by how they ended."
    height = 110 + 20 * len(kernels) + 14 * ((len(names) - 1) // 3)
    return [draw("outcomes", "How trials ended", words, plot, height)]


def importances(findings: Findings) -> list[Figure]:
    """Which parameters explain how long trials took, in the longest searches."""
    return [_importance(search) for search in _detailed(findings)]


def _detailed(findings: Findings) -> list[Search]:
    """The longest searches of enough trials to tell which parameters count."""
    return [search for search in longest(searches(findings), DETAILED) if search.importance]


def _importance(search: Search) -> Figure:
    names, parts = zip(*search.importance.items(), strict=True)

    def plot(figure: Any, axes: Any) -> None:
        axes.barh(
            range(len(names)), [100 * part for part in parts], height=0.66, color=colour("series-0")
        )
        axes.set_yticks(range(len(names)), names)
        axes.set(
            xlabel="% of the variance of log(time)", xlim=(0, 100), ylim=(len(names) - 0.5, -0.5)
        )
        axes.grid(axis="y", visible=False)

    what = f"{search.kernel}, {search.problem.slug}"
    words = (
        f"What each parameter alone explains of the times of {len(search.tried)} trials of {what}."
    )
    return draw(
        f"counts-{search.kernel}",
        f"What counts: {search.kernel}",
        words,
        plot,
        90 + 18 * len(names),
    )


def slices(findings: Findings) -> list[Figure]:
    """Every trial of the longest searches over each parameter that counts most."""
    return [_slices(search) for search in _detailed(findings)]


def _slices(search: Search) -> Figure:
    names = list(search.importance)[:SLICES]
    right = [r for r in search.tried if r.text("outcome") in ("ok", "too_slow") and r.seconds > 0]
    points = [(parameters(r.text("config")), r.seconds, r.text("outcome")) for r in right]
    best = min(seconds for _, seconds, _ in points)

    def plot(figure: Any, axes: Any) -> None:
        for name, own in zip(names, axes, strict=True):
            levels = sorted({config[name] for config, _, _ in points})
            for outcome, marker, role in (("too_slow", "x", "series-1"), ("ok", "o", "series-0")):
                at = [(levels.index(c[name]), best / s) for c, s, o in points if o == outcome]
                own.plot(
                    [x for x, _ in at],
                    [100 * y for _, y in at],
                    linestyle="",
                    marker=marker,
                    color=colour(role),
                    markersize=4,
                    alpha=0.7,
                )
            own.set_xticks(range(len(levels)), [str(level) for level in levels])
            own.set(xlabel=name, ylim=(0, 106), xlim=(-0.5, len(levels) - 0.5))
        axes[len(axes) // 2].set_ylabel("% of the best rate")

    words = (
        f"{search.kernel}, {search.problem.slug}: the rate of every trial by the value of one "
        "parameter; crosses were given up after one run."
    )
    return draw(
        f"slices-{search.kernel}",
        f"Slices: {search.kernel}",
        words,
        plot,
        90 + 110 * len(names),
        len(names),
    )
