"""Plots of limits: the roofline, power and energy, and errors relative to their bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pymm.report.content import rate
from pymm.report.load import Results, Row
from pymm.report.stats import BASELINES, OWN, Timing, class_rows, peaks, timings
from pymm.report.svg import Figure, colour, draw, label_decades, series

#: Shortest product whose power is plotted: that of shorter ones includes too much of the cache
#: flush.
SECONDS = 0.2e-3

#: Points of one library that are closer than a decade / this are drawn as one.
GRAIN = 60

Point = tuple[float, float, str]


def log_axes(axes: Any) -> None:
    """Label both axes in decades."""
    axes.minorticks_off()
    label_decades(axes.xaxis)
    label_decades(axes.yaxis)


def rooflines(results: Results) -> list[Figure]:
    """Rate against arithmetic intensity, operations per byte of A, B and C, by type."""
    everything, limits, found = timings(results), peaks(results), []
    bandwidth = float(results.device.get("bandwidth") or 0)  # 0: unknown
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype and t.problem.bytes]
        if dtype in limits and len({t.problem for t in at}) >= 2:
            found.append(_roofline(at, dtype, limits[dtype], bandwidth))
    return found


def _roofline(at: Sequence[Timing], dtype: str, peak: float, bandwidth: float) -> Figure:
    """Two roofs: the peak, and intensity times bandwidth (S. Williams, A. Waterman, D. Patterson,
    Roofline: an insightful visual performance model, CACM 52(4), 2009).
    """
    points = thinned([(t.problem.flops / t.problem.bytes, t.gflops, t.library) for t in at])
    left, right = min(p[0] for p in points) / 2, max(p[0] for p in points) * 2

    def plot(figure: Any, axes: Any) -> None:
        baseline = [p for p in points if p[2] in BASELINES]
        own = [p for p in points if p[2] == OWN]
        axes.plot(
            [p[0] for p in baseline],
            [p[1] for p in baseline],
            linestyle="",
            marker="o",
            markersize=5.5,
            markerfacecolor="none",
            markeredgewidth=0.9,
            markeredgecolor=colour("series-1"),
            label="baseline",
        )
        axes.plot(
            [p[0] for p in own],
            [p[1] for p in own],
            linestyle="",
            marker="o",
            markersize=2.6,
            color=colour("series-0"),
            label=OWN,
        )
        ridge = peak * 1e9 / bandwidth if bandwidth else left
        xs = [left, max(ridge, left), max(right, 2 * ridge)]
        ys = [min(peak, x * bandwidth / 1e9) if bandwidth else peak for x in xs]
        axes.plot(xs, ys, color=colour("ink"), linestyle="--", linewidth=1.2, label="roof")
        axes.set(
            xscale="log",
            yscale="log",
            ylabel="GFLOP/s",
            xlabel=f"operations per byte of memory, {dtype}",
        )
        axes.set_ylim(top=peak * 2.5)
        log_axes(axes)
        figure.legend(loc="outside lower center", ncols=3)

    memory = f" and {bandwidth / 1e12:.3g} TB/s" if bandwidth else ""
    roof = f"{rate(peak)}{memory}"
    caption = (
        f"Every measurement, {dtype}, and the roofs of {roof}. Bytes: A and B read once, C written "
        "once."
    )
    return draw(f"roofline-{dtype}", f"Roofline, {dtype}", caption, plot)


def thinned(points: Iterable[Point]) -> list[Point]:
    """One of all points that are drawn at the same place."""
    places = {}
    for x, y, library in points:
        places[round(GRAIN * math.log10(x)), round(GRAIN * math.log10(y)), library] = x, y, library
    return list(places.values())


def energy(results: Results) -> list[Figure]:
    """Power while a product runs repeatedly, and the energy of one product, by type."""
    rows = [row for row in class_rows(results) if row.valid and row.seconds >= SECONDS]
    at = [row for row in rows if row.number("power_w") > 0]
    names = list(dict.fromkeys(r.problem.dtype for r in at))
    if not names:
        return []

    def scatter(axes: Any, height: Any) -> None:
        for number, name in enumerate(names):
            of = [r for r in at if r.problem.dtype == name]
            style = series(number) | {"linestyle": "", "markersize": 4}
            axes.plot([r.seconds * 1e3 for r in of], [height(r) for r in of], label=name, **style)
        axes.set(xscale="log", xlabel="ms per product")
        label_decades(axes.xaxis)

    def power(figure: Any, axes: Any) -> None:
        scatter(axes, lambda r: r.number("power_w"))
        axes.set(ylabel="W", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=4)

    def joules(figure: Any, axes: Any) -> None:
        scatter(axes, lambda r: r.number("power_w") * r.seconds)
        axes.set(ylabel="J per product", yscale="log")
        label_decades(axes.yaxis)
        figure.legend(loc="outside lower center", ncols=4)

    return [
        draw(
            "power",
            "Power",
            "Power reported by the device while products of each type are timed, including the "
            "cache flushes between them.",
            power,
        ),
        draw("energy", "Energy per product", "That power times the time of one product.", joules),
    ]


def errors(results: Results) -> list[Figure]:
    """The largest deviation from float64 as a fraction of its bound, against k, and the typical
    one.
    """
    rows = [row for row in class_rows(results) if row.valid]
    at = [row for row in rows if row.number("error") > 0 and row.problem.k > 0]
    if not at:
        return []
    names = list(dict.fromkeys(r.problem.dtype for r in at))

    def parts(figure: Any, axes: Any) -> None:
        for number, name in enumerate(names):
            of = [r for r in at if r.problem.dtype == name]
            style = series(number) | {"linestyle": "", "markersize": 4}
            axes.plot(
                [r.problem.k for r in of], [r.number("error") for r in of], label=name, **style
            )
        axes.axhline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set(xscale="log", yscale="log", xlabel="k", ylabel="largest error / its bound")
        log_axes(axes)
        figure.legend(loc="outside lower center", ncols=4)

    found = [
        draw(
            "errors",
            "Error relative to its bound",
            "Largest deviation of an element from the product in float64, as a fraction of the "
            "bound on rounding errors (dashed), against k.",
            parts,
        )
    ]
    both = [r for r in at if r.number("rms") > 0 and r.number("opponent_rms") > 0]
    return found + ([_beside(both)] if both else [])


def _beside(rows: Sequence[Row]) -> Figure:
    names = list(dict.fromkeys(r.problem.dtype for r in rows))

    def plot(figure: Any, axes: Any) -> None:
        axes.axhline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        for number, name in enumerate(names):
            of = [r for r in rows if r.problem.dtype == name]
            style = series(number) | {"linestyle": "", "markersize": 4}
            parts = [r.number("rms") / r.number("opponent_rms") for r in of]
            axes.plot([r.problem.k for r in of], parts, label=name, **style)
        axes.set(xscale="log", xlabel="k", ylabel="pymm's error / the baseline's", ylim=(0, None))
        axes.minorticks_off()
        label_decades(axes.xaxis)
        figure.legend(loc="outside lower center", ncols=4)

    return draw(
        "deviations",
        "Typical error relative to the baseline's",
        "Root mean square of pymm's deviation from float64 / the baseline's, against k; below the "
        "dashed line pymm's is smaller.",
        plot,
    )
