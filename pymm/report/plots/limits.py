"""Figures of limits: the roofline, power and energy, and errors beside their bound."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from pymm.report.content import rate
from pymm.report.load import Findings, Row
from pymm.report.stats import OWN, RIVALS, Timed, class_rows, peaks, timed
from pymm.report.svg import Figure, colour, decades, draw, series

#: Shortest product whose power is told: that of a shorter one is the flush's as much as its own.
SECONDS = 0.2e-3

#: Points of one contestant that lie closer than a decade over it are drawn as one.
GRAIN = 60

Point = tuple[float, float, str]


def tidy(axes: Any) -> None:
    """Both axes in decades."""
    axes.minorticks_off()
    decades(axes.xaxis)
    decades(axes.yaxis)


def rooflines(findings: Findings) -> list[Figure]:
    """Rate against operations for each byte that must be moved, type by type."""
    everything, limits, found = timed(findings), peaks(findings), []
    bandwidth = float(findings.device.get("bandwidth") or 0)  # 0: not known
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype and t.problem.bytes]
        if dtype in limits and len({t.problem for t in at}) >= 2:
            found.append(_roofline(at, dtype, limits[dtype], bandwidth))
    return found


def _roofline(at: Sequence[Timed], dtype: str, peak: float, bandwidth: float) -> Figure:
    """Two roofs: the peak, and intensity times bandwidth (S. Williams, A. Waterman, D. Patterson,
    Roofline: an insightful visual performance model, CACM 52(4), 2009).
    """
    points = apart([(t.problem.flops / t.problem.bytes, t.gflops, t.who) for t in at])
    left, right = min(p[0] for p in points) / 2, max(p[0] for p in points) * 2

    def plot(figure: Any, axes: Any) -> None:
        rival = [p for p in points if p[2] in RIVALS]
        own = [p for p in points if p[2] == OWN]
        axes.plot(
            [p[0] for p in rival],
            [p[1] for p in rival],
            linestyle="",
            marker="o",
            markersize=5.5,
            markerfacecolor="none",
            markeredgewidth=0.9,
            markeredgecolor=colour("series-1"),
            label="library",
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
            xlabel=f"operations for each byte of memory, {dtype}",
        )
        axes.set_ylim(top=peak * 2.5)
        tidy(axes)
        figure.legend(loc="outside lower center", ncols=3)

    memory = f" and {bandwidth / 1e12:.3g} TB/s" if bandwidth else ""
    roof = f"{rate(peak)}{memory}"
    words = (
        f"Every measured kernel, {dtype}, under the roof of {roof}; bytes: A and B read once, C "
        "written once."
    )
    return draw(f"roofline-{dtype}", f"Roofline, {dtype}", words, plot)


def apart(points: Iterable[Point]) -> list[Point]:
    """Of points that could not be told from each other in the drawing, one."""
    places = {}
    for x, y, who in points:
        places[round(GRAIN * math.log10(x)), round(GRAIN * math.log10(y)), who] = x, y, who
    return list(places.values())


def energy(findings: Findings) -> list[Figure]:
    """Power while a product runs over and over, and operations for each joule, by type."""
    rows = [row for row in class_rows(findings) if row.sound and row.seconds >= SECONDS]
    at = [row for row in rows if row.number("power_w") > 0]
    names = list(dict.fromkeys(r.problem.dtype for r in at))
    if not names:
        return []

    def scatter(axes: Any, height: Any) -> None:
        for number, name in enumerate(names):
            of = [r for r in at if r.problem.dtype == name]
            style = series(number) | {"linestyle": "", "markersize": 4}
            axes.plot([r.seconds * 1e3 for r in of], [height(r) for r in of], label=name, **style)
        axes.set(xscale="log", xlabel="ms for one product")
        decades(axes.xaxis)

    def power(figure: Any, axes: Any) -> None:
        scatter(axes, lambda r: r.number("power_w"))
        axes.set(ylabel="W", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=4)

    def joules(figure: Any, axes: Any) -> None:
        scatter(axes, lambda r: r.number("power_w") * r.seconds)
        axes.set(ylabel="J for one product", yscale="log")
        decades(axes.yaxis)
        figure.legend(loc="outside lower center", ncols=4)

    return [
        draw(
            "power",
            "Power",
            "Power that the device reports while products of each type are "
            "timed, flushes between them included.",
            power,
        ),
        draw("energy", "Energy of a product", "That power times the time of one product.", joules),
    ]


def errors(findings: Findings) -> list[Figure]:
    """Largest deviation from float64 as a part of its bound, against k; and its typical size."""
    rows = [row for row in class_rows(findings) if row.sound]
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
        tidy(axes)
        figure.legend(loc="outside lower center", ncols=4)

    found = [
        draw(
            "errors",
            "Errors beside their bound",
            "Largest deviation of an element from the "
            "product in float64, as a part of the most that rounding can cause (dashed), "
            "against k.",
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
        axes.set(xscale="log", xlabel="k", ylabel="pymm's error / the library's", ylim=(0, None))
        axes.minorticks_off()
        decades(axes.xaxis)
        figure.legend(loc="outside lower center", ncols=4)

    return draw(
        "deviations",
        "Typical error beside the library's",
        "Root mean square of pymm's deviation from float64 / that of the library's, against k; "
        "below the dashed line pymm's is the smaller.",
        plot,
    )
