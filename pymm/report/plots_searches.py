"""Figures of searches: what tuning gained, how it went, what counted, slices, outcomes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pymm.report.drawing import HEIGHT, Figure, colour, decades, draw, series
from pymm.report.searches import Search, longest, parameters

#: Searches whose progress is drawn, and of these how many in detail.
DRAWN, DETAILED = 6, 3

#: Parameters of a search whose slices are drawn.
SLICES = 3

OUTCOMES = (
    "ok",
    "too_slow",
    "compile_failed",
    "launch_failed",
    "wrong",
    "timed_out",
    "crashed",
    "disturbed",
)


def gains(found: Sequence[Search]) -> list[Figure]:
    """Default's time / winner's of every search, sorted."""
    ratios = sorted(search.gain for search in found if search.gain == search.gain)
    if len(ratios) < 2:
        return []

    def plot(figure: Any, axes: Any) -> None:
        parts = [100 * (i + 1) / len(ratios) for i in range(len(ratios))]
        axes.step(ratios, parts, where="post", color=colour("series-0"))
        axes.axvline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        top = ratios[-1]
        if top > 4:
            axes.set_xscale("log", base=2)
            ticks = [2**e for e in range(int(math.log2(top)) + 2)]
            axes.set_xticks(ticks, [f"{t}x" for t in ticks])
        else:
            axes.xaxis.set_major_formatter("{x:g}x")
        axes.set(xlabel="times as fast as the default", ylabel="% of the searches", ylim=(0, 102))

    words = (
        f"{len(ratios)} searches by how much faster the winner is than the default, both "
        "measured in turn at the search's end: so many of them gained at most so much."
    )
    return [draw("gains", "What tuning gained", words, plot, 250)]


def progress(found: Sequence[Search]) -> list[Figure]:
    """Best time so far as a part of the search's best, against evaluations and seconds."""
    shown = longest(found, DRAWN)
    if not shown:
        return []

    def lines(axes: Any, place: int, label: str) -> None:
        for number, search in enumerate(shown):
            best = search.progress[-1][2]
            xs = [point[place] + (place == 1) for point in search.progress]
            style = series(number) | {"marker": ""}
            axes.step(
                xs,
                [100 * best / point[2] for point in search.progress],
                where="post",
                label=f"{search.kernel}, {search.problem.slug}",
                **style,
            )
        axes.set(xscale="log", xlabel=label, ylabel="% of the best found", ylim=(0, 104))
        axes.minorticks_off()
        decades(axes.xaxis)

    def evaluations(figure: Any, axes: Any) -> None:
        lines(axes, 0, "evaluations")
        figure.legend(loc="outside lower center", ncols=1)

    def seconds(figure: Any, axes: Any) -> None:
        lines(axes, 1, "seconds since the first trial, and one")
        figure.legend(loc="outside lower center", ncols=1)

    height = HEIGHT + 14 * (len(shown) - 1)
    what = "Best rate so far of the longest search of each kernel, as a part of its best, against "
    return [
        draw("progress", "How searches went", what + "the number of trials.", evaluations, height),
        draw("progress-s", "How long they took", what + "the time.", seconds, height),
    ]


def outcomes(found: Sequence[Search]) -> list[Figure]:
    """How trials ended, kernel by kernel."""
    counts: dict[str, dict[str, int]] = {}
    for search in found:
        of = counts.setdefault(search.kernel, {})
        for name, count in search.outcomes.items():
            of[name] = of.get(name, 0) + count
    if not counts:
        return []
    kernels = list(counts)
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


def importances(found: Sequence[Search]) -> list[Figure]:
    """Which parameters explain how long trials took, in the longest searches."""
    return [_importance(search) for search in longest(found, DETAILED) if search.importance]


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


def slices(found: Sequence[Search]) -> list[Figure]:
    """Every trial of the longest searches over each parameter that counts most."""
    return [_slices(search) for search in longest(found, DETAILED) if search.importance]


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
