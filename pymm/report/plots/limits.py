"""Plots of limits: the roofline, power and energy, and errors relative to their bound."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pymm.core.dtypes import DTYPES
from pymm.measure.libraries import GENERAL
from pymm.report.content import rate
from pymm.report.load import Results, Row
from pymm.report.stats import OWN, Timing, class_rows, peaks, timings
from pymm.report.svg import Figure, colour, draw, label_decades, type_series

#: Shortest product whose power is plotted: that of shorter ones includes too much of the cache
#: flush.
SECONDS = 0.2e-3

#: Points of one library that are closer than a decade / this are drawn as one.
GRAIN = 60

Point = tuple[float, float, str]

#: What is plotted of a row along an axis.
Value = Callable[[Row], float]


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
        baseline = [p for p in points if p[2] in GENERAL]
        own = [p for p in points if p[2] == OWN]
        axes.plot(
            [p[0] for p in baseline],
            [p[1] for p in baseline],
            linestyle="",
            marker="o",
            markersize=5.5,
            markerfacecolor="none",
            markeredgewidth=0.9,
            markeredgecolor=colour("ink"),
            label="baseline",
        )
        axes.plot(
            [p[0] for p in own],
            [p[1] for p in own],
            linestyle="",
            marker="o",
            markersize=2.6,
            color=type_series(dtype)["color"],
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


def _by_type(axes: Any, rows: Sequence[Row], x: Value, y: Value) -> None:
    """One series of points for each type; a type has the same series in every figure."""
    for dtype in DTYPES:
        style = type_series(dtype) | {"linestyle": "", "markersize": 4}
        if of := [row for row in rows if row.problem.dtype == dtype]:
            axes.plot([x(row) for row in of], [y(row) for row in of], label=dtype, **style)
    axes.set(xscale="log")
    label_decades(axes.xaxis)
    axes.figure.legend(loc="outside lower center", ncols=4)


def _with_power(results: Results) -> list[Row]:
    rows = [row for row in class_rows(results) if row.valid and row.seconds >= SECONDS]
    return [row for row in rows if row.number("power_w") > 0]


def power(results: Results) -> list[Figure]:
    """Power while a product runs repeatedly, by type."""
    rows = _with_power(results)

    def plot(figure: Any, axes: Any) -> None:
        _by_type(axes, rows, lambda row: row.seconds * 1e3, lambda row: row.number("power_w"))
        axes.set(xlabel="ms per product", ylabel="W", ylim=(0, None))

    caption = (
        "Power reported by the device while products of each type are timed, including the cache "
        "flushes between them."
    )
    return [draw("power", "Power", caption, plot)] if rows else []


def _joules(row: Row) -> float:
    return row.number("power_w") * row.seconds


def energy(results: Results) -> list[Figure]:
    """The energy of one product, by type."""
    rows = _with_power(results)

    def plot(figure: Any, axes: Any) -> None:
        _by_type(axes, rows, lambda row: row.seconds * 1e3, _joules)
        axes.set(xlabel="ms per product", ylabel="J per product", yscale="log")
        label_decades(axes.yaxis)

    caption = "The reported power times the time of one product."
    return [draw("energy", "Energy per product", caption, plot)] if rows else []


def _with_errors(results: Results) -> list[Row]:
    rows = [row for row in class_rows(results) if row.valid and row.problem.k > 0]
    return [row for row in rows if row.number("error") > 0]


def errors(results: Results) -> list[Figure]:
    """The largest deviation from float64 as a fraction of its bound, against k."""
    rows = _with_errors(results)

    def plot(figure: Any, axes: Any) -> None:
        _by_type(axes, rows, lambda row: row.problem.k, lambda row: row.number("error"))
        axes.axhline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set(yscale="log", xlabel="k", ylabel="largest error / its bound")
        log_axes(axes)

    caption = (
        "Largest deviation of an element from the product in float64, as a fraction of the bound "
        "on rounding errors (dashed), against k."
    )
    return [draw("errors", "Error relative to its bound", caption, plot)] if rows else []


def _relative_rms(row: Row) -> float:
    return row.number("rms") / row.number("opponent_rms")


def deviations(results: Results) -> list[Figure]:
    """The root mean square of pymm's deviation from float64 / the baseline's, against k."""
    rows = [row for row in _with_errors(results) if row.number("rms") > 0]
    rows = [row for row in rows if row.number("opponent_rms") > 0]

    def plot(figure: Any, axes: Any) -> None:
        _by_type(axes, rows, lambda row: row.problem.k, _relative_rms)
        axes.axhline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set(xlabel="k", ylabel="pymm's error / the baseline's", ylim=(0, None))
        axes.minorticks_off()

    caption = (
        "Root mean square of pymm's deviation from float64 / the baseline's, against k; below the "
        "dashed line pymm's is smaller."
    )
    title = "Typical error relative to the baseline's"
    return [draw("deviations", title, caption, plot)] if rows else []
