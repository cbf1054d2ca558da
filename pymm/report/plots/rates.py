"""Plots of rates: highest rates, ratios to the baseline, the ladder, and rates against the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pymm.measure.libraries import BASELINES, GENERAL
from pymm.report.content import rate
from pymm.report.load import Results
from pymm.report.stats import (
    CHOICE,
    OWN,
    STALE,
    Curves,
    Timing,
    baseline_name,
    comparisons,
    current,
    device_name,
    display_name,
    highest_rates,
    kind_of,
    mean,
    ordered,
    peaks,
    timings,
)
from pymm.report.svg import Axes, Figure, colour, draw, figure, type_series, with_unit

#: A curve has at least so many sizes.
CURVE = 3

#: The labels of bars begin so far beyond the longest bar, marker or line, and are so long: percent
#: of the axis up to there.
GAP, LABEL = 3, 35


def highest(results: Results) -> list[Figure]:
    """The highest rate of each type as a fraction of the device's peak."""
    found = highest_rates(results)
    if not found:
        return []

    timed = [(e.own, e.peak) for e in found] + [(e.baseline, e.peak) for e in found if e.baseline]
    longest = max([100.0, *(100 * timing.gflops / peak for timing, peak in timed)])

    def plot(figure: Any, axes: Any) -> None:
        places = range(len(found))
        parts = [100 * e.own.gflops / e.peak for e in found]
        colours = [type_series(e.dtype)["color"] for e in found]
        axes.barh(places, parts, height=0.62, color=colours, label=OWN)
        baselines = [(i, e.baseline) for i, e in enumerate(found) if e.baseline]
        for name in dict.fromkeys(_family(baseline.library) for _, baseline in baselines):
            at = [(i, r) for i, r in baselines if _family(r.library) == name]
            rates = [100 * r.gflops / found[i].peak for i, r in at]
            axes.plot(
                rates,
                [i for i, _ in at],
                linestyle="",
                marker="D",
                markersize=6,
                color=colour("ink"),
                markeredgecolor=colour("paper"),
                label=name,
            )
        for place, e in zip(places, found, strict=True):
            axes.text((1 + GAP / 100) * longest, place, rate(e.own.gflops), va="center", fontsize=9)
        axes.axvline(100, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set_yticks(places, [e.dtype for e in found])
        end = longest * (1 + (GAP + LABEL) / 100)
        axes.set(xlim=(0, end), xlabel="% of the device's peak", ylim=(len(found) - 0.5, -0.5))
        axes.set_xticks(range(0, round(longest) + 1, 20))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    caption = (
        f"The highest rate of each type on {device_name(results)}, as a fraction of the device's "
        "peak (dashed)."
    )
    return [draw("glance", "Fraction of peak", caption, plot, 110 + 26 * len(found))]


def ratios(results: Results) -> list[Figure]:
    """The ratio of every product, and the geometric means, by type."""
    baseline = baseline_name(results)
    kinds: dict[str, list[float]] = {}
    for comparison in (c for c in current(comparisons(results)) if c.ratio > 0):
        kinds.setdefault(kind_of(comparison.problem), []).append(comparison.ratio)
    if not kinds:
        return []
    everything = [ratio for values in kinds.values() for ratio in values]

    def plot(figure: Any, axes: Any) -> None:
        for place, (kind, values) in enumerate(kinds.items()):
            values = sorted(values)
            heights = [place + 0.26 * ((7 * i % 11) / 5 - 1) for i in range(len(values))]
            axes.plot(
                values,
                heights,
                linestyle="",
                marker="o",
                markersize=2.6,
                color=type_series(kind.split(" ")[0])["color"],
                alpha=0.6,
                label="one product" if not place else None,
            )
        axes.plot(
            [mean(values) for values in kinds.values()],
            range(len(kinds)),
            linestyle="",
            marker="D",
            markersize=6,
            color=colour("ink"),
            markeredgecolor=colour("paper"),
            label="geometric mean",
        )
        axes.axvline(1, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set_xscale("log", base=2)
        ends = math.floor(math.log2(min(everything))), math.ceil(math.log2(max(everything)))
        ticks = [2.0**e for e in range(min(ends[0], -1), max(ends[1], 1) + 1)]
        axes.set_xticks(ticks, [f"{tick:g}x" for tick in ticks])
        axes.minorticks_off()
        axes.set_yticks(range(len(kinds)), list(kinds))
        axes.set(xlabel="baseline's time / pymm's", ylim=(len(kinds) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=2)

    caption = (
        f"Time of {baseline} / pymm's time for every product, by type: right of the dashed line "
        "pymm is faster."
    )
    title = f"Ratio to {baseline}, every product"
    return [draw("ratios", title, caption, plot, 110 + 26 * len(kinds))]


def _family(library: str) -> str:
    """cuBLAS and cuBLASLt count as one library here."""
    return BASELINES[library].family if library in BASELINES else library


def ladder(results: Results) -> list[Figure]:
    """The rate of every kernel on the largest square that most kernels were measured on, by
    type.
    """
    everything = [t for t in timings(results) if t.row.kind == "bench" and not t.row.stale]
    limits, found = peaks(results), []
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype]
        kernels: dict[object, set[str]] = {}
        for t in at:
            if t.library == OWN and t.square and t.problem.layout == "NN":
                kernels.setdefault(t.problem, set()).add(t.kernel)
        if kernels:
            problem = max(kernels, key=lambda p: (len(kernels[p]), p.n))
            if len(kernels[problem]) >= 2:
                at = [t for t in at if t.problem == problem]
                found.append(_ladder(at, problem.n, dtype, limits.get(dtype)))
    return found


def _ladder(at: Sequence[Timing], n: int, dtype: str, peak: float | None) -> Figure:
    kernels = sorted({t.kernel for t in at if t.library == OWN})
    baselines = {t.library: t.gflops for t in at if t.library in GENERAL}
    top = max([t.gflops for t in at])
    scale, unit = (1e3, "TFLOP/s") if top >= 1e3 else (1.0, "GFLOP/s")

    def best(kernel: str, variant: str) -> float:
        rates = [t.gflops for t in at if t.kernel == kernel and t.variant == variant]
        return max(rates, default=0.0) / scale

    def plot(figure: Any, axes: Any) -> None:
        places = range(len(kernels))
        tuned = [max(best(kernel, "tuned"), best(kernel, "default")) for kernel in kernels]
        axes.barh(places, tuned, height=0.66, color=colour("series-5"), label="tuned")
        axes.barh(
            places,
            [best(kernel, "default") for kernel in kernels],
            height=0.66,
            color=colour("series-0"),
            label="default",
        )
        for name, dash in zip(sorted(baselines), ("-", ":", "-."), strict=False):
            axes.axvline(
                baselines[name] / scale,
                color=colour("series-1"),
                linestyle=dash,
                label=display_name(name),
            )
        if peak:
            axes.axvline(peak / scale, color=colour("ink"), linestyle="--", label="peak")
        axes.set_yticks(places, kernels)
        axes.set(xlabel=f"{unit}, {dtype}, m = n = k = {n}", ylim=(len(kernels) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    caption = f"Rate of every kernel of the ladder, {dtype}, m = n = k = {n}."
    return draw(f"ladder-{dtype}", f"The ladder, {dtype}", caption, plot, 130 + 18 * len(kernels))


def against_size(results: Results) -> list[Figure]:
    """The rate of squares against N, by type: `matmul`'s choice, each kernel's best, the libraries,
    the peak.
    """
    found = []
    limits, measured = peaks(results), timings(results)
    everything = [t for t in measured if t.row.kind in ("classes", "bench")]
    squares = [t for t in everything if t.square and t.problem.layout == "NN"]
    for dtype in dict.fromkeys(t.problem.dtype for t in squares):
        lines = _lines([t for t in squares if t.problem.dtype == dtype])
        lines = {name: line for name, line in lines.items() if len(line) >= CURVE}
        if not any(name not in map(display_name, GENERAL) for name in lines):
            continue
        lines, unit, scale = with_unit(lines)
        limit = limits[dtype] / scale if dtype in limits else None
        axes = Axes(f"m = n = k, {dtype}", unit, "binary", limit=limit)
        caption = f"Rate of square products, {dtype}; open markers: sizes with partial tiles."
        found.append(figure(f"curve-{dtype}", f"Rate against size, {dtype}", caption, lines, axes))
    return found


def _lines(squares: Sequence[Timing]) -> Curves:
    lines: Curves = {}
    for t in squares:
        own = (CHOICE if t.row.kind == "classes" else t.kernel) + STALE * bool(t.row.stale)
        line = lines.setdefault(own if t.library == OWN else display_name(t.library), {})
        line[t.problem.n] = max(line.get(t.problem.n, 0.0), t.gflops)
    return ordered(lines)
