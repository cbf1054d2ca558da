"""Plots of searches: speed-up, progress, outcomes, importance of parameters, trials by
parameter.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from pymm.kernels import KERNELS
from pymm.report.load import Results
from pymm.report.searches import Search, longest, parameters, searches
from pymm.report.stats import tuned_searches
from pymm.report.svg import HEIGHT, Figure, colour, draw, label_decades, series
from pymm.tune.strategies import ORIGINS

#: Searches whose progress is plotted, and how many of these in detail.
DRAWN, DETAILED = 6, 3

#: Parameters of a search by which its trials are plotted.
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


#: Classes of the gain of a search: the upper bound, and its label.
STEPS = (
    (1.01, "up to 1 %"),
    (1.05, "1 to 5 %"),
    (1.2, "5 to 20 %"),
    (2.0, "20 % to 2x"),
    (10.0, "2x to 10x"),
    (math.inf, "more than 10x"),
)


def gains(results: Results) -> list[Figure]:
    """The number of searches by gain, the default's time / the winner's."""
    ratios = [search.gain for search in tuned_searches(results) if search.gain == search.gain]
    if len(ratios) < 2 or max(ratios) <= 1.0:
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
        axes.set_yticks(places, [label for _, label in STEPS])
        axes.set(xlabel="searches", xlim=(0, 1.12 * max(counts)), ylim=(len(STEPS) - 0.5, -0.5))
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="y", visible=False)

    caption = (
        f"{len(ratios)} searches by the winner's speed-up over the kernel's default, measured in "
        "alternation at the end of each search."
    )
    return [draw("gains", "Speed-up by tuning", caption, plot, 220)]


def progress(results: Results) -> list[Figure]:
    """The best rate so far as a fraction of the final best, against trials and seconds."""
    shown = longest(searches(results), DRAWN)
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
        label_decades(axes.xaxis)

    def evaluations(figure: Any, axes: Any) -> None:
        lines(axes, 0, "trials")
        figure.legend(loc="outside lower center", ncols=1)

    def seconds(figure: Any, axes: Any) -> None:
        lines(axes, 1, "seconds + 1")
        figure.legend(loc="outside lower center", ncols=1)

    height = HEIGHT + 14 * (len(shown) - 1)
    what = (
        "Best rate so far in the longest search of each kernel, as a fraction of its final best, "
        "against "
    )
    return [
        draw("progress", "Progress by trials", what + "the number of trials.", evaluations, height),
        draw("progress-s", "Progress by time", what + "the time.", seconds, height),
    ]


def outcomes(results: Results) -> list[Figure]:
    """The outcomes of trials, by kernel."""
    counts = _by_kernel(results, lambda search: search.outcomes)
    caption = "Trials of each kernel by outcome."
    return _stacked("outcomes", "Outcomes of trials", caption, counts, OUTCOMES)


def origins(results: Results) -> list[Figure]:
    """Where the configurations of trials came from, by kernel."""
    counts = _by_kernel(results, lambda search: search.origins)
    caption = (
        "Trials of each kernel by where the configuration came from: the queue of first ones (the "
        "default, neighbours of what is stored, the cost model), warm (stored for another problem "
        "or device), the sampler's model over the whole space or a neighbour of the best, or "
        "chance."
    )
    return _stacked("origins", "Where trials came from", caption, counts, ORIGINS)


def _by_kernel(
    results: Results, count: Callable[[Search], Counter[str]]
) -> dict[str, Counter[str]]:
    """The sum of a count over the searches of each kernel, of those that have any."""
    counts: dict[str, Counter[str]] = {}
    for search in searches(results):
        if found := count(search):
            counts.setdefault(search.kernel, Counter()).update(found)
    return counts


def _stacked(
    name: str, title: str, caption: str, counts: dict[str, Counter[str]], order_of: Sequence[str]
) -> list[Figure]:
    """A bar for each kernel, its parts in the order of `order_of`."""
    if not counts:
        return []
    order = [kernel.name for kernel in KERNELS]
    kernels = sorted(counts, key=lambda name: order.index(name) if name in order else len(order))
    names = [part for part in order_of if any(part in of for of in counts.values())]

    def plot(figure: Any, axes: Any) -> None:
        left = [0] * len(kernels)
        for number, part in enumerate(names):
            widths = [counts[kernel][part] for kernel in kernels]
            axes.barh(
                range(len(kernels)),
                widths,
                left=left,
                height=0.66,
                label=part,
                color=colour(f"series-{number % 8}"),
                edgecolor=colour("paper"),
                linewidth=0.8,
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(kernels)), kernels)
        axes.set(xlabel="trials", ylim=(len(kernels) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    height = 110 + 20 * len(kernels) + 14 * ((len(names) - 1) // 3)
    return [draw(name, title, caption, plot, height)]


def importances(results: Results) -> list[Figure]:
    """The importance of parameters in the longest searches."""
    return [_importance(search) for search in _detailed(results)]


def _detailed(results: Results) -> list[Search]:
    """The longest searches of enough trials to tell which parameters count."""
    return [search for search in longest(searches(results), DETAILED) if search.importance]


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
    caption = (
        "Share of the variance of log(time) that each parameter explains alone, over "
        f"{len(search.tried)} trials of {what}."
    )
    return draw(
        f"counts-{search.kernel}",
        f"Importance of parameters: {search.kernel}",
        caption,
        plot,
        90 + 18 * len(names),
    )


def slices(results: Results) -> list[Figure]:
    """Every trial of the longest searches by the value of the most important parameters."""
    return [_slices(search) for search in _detailed(results)]


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

    caption = (
        f"{search.kernel}, {search.problem.slug}: the rate of every trial by the value of one "
        "parameter; crosses: too slow, stopped after one run."
    )
    return draw(
        f"slices-{search.kernel}",
        f"Trials by parameter: {search.kernel}",
        caption,
        plot,
        90 + 110 * len(names),
        len(names),
    )
