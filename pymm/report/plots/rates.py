"""Figures of rates: at a glance, the rungs of the ladder, and rates against the size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pymm.report.content import rate
from pymm.report.load import Findings
from pymm.report.stats import (
    CHOICE,
    OWN,
    RIVALS,
    Curves,
    Timed,
    comparisons,
    device_name,
    extremes,
    kind_of,
    mean,
    opponent_name,
    ordered,
    peaks,
    timed,
    written,
)
from pymm.report.svg import Axes, Figure, colour, draw, figure, scaled

#: Fewer sizes than this make no curve.
CURVE = 3


def highest(findings: Findings) -> list[Figure]:
    """The highest rate of each type as a part of what the device can do at most."""
    found = extremes(findings)
    if not found:
        return []

    def plot(figure: Any, axes: Any) -> None:
        places = range(len(found))
        parts = [100 * e.own.gflops / e.peak for e in found]
        axes.barh(places, parts, height=0.62, color=colour("series-0"), label=OWN)
        rivals = [(i, e.rival) for i, e in enumerate(found) if e.rival]
        for name in dict.fromkeys(_family(rival.who) for _, rival in rivals):
            at = [(i, r) for i, r in rivals if _family(r.who) == name]
            rates = [100 * r.gflops / found[i].peak for i, r in at]
            axes.plot(
                rates,
                [i for i, _ in at],
                linestyle="",
                marker="D",
                markersize=6,
                color=colour("series-1"),
                markeredgecolor=colour("paper"),
                label=name,
            )
        for place, e in zip(places, found, strict=True):
            axes.text(2, place, rate(e.own.gflops), va="center", color=colour("paper"), fontsize=9)
        axes.axvline(100, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set_yticks(places, [e.dtype for e in found])
        axes.set(xlim=(0, 104), xlabel="% of the device's limit", ylim=(len(found) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    words = (
        f"The highest rate of each type on {device_name(findings)}, in FLOP/s, as a part of the "
        "device's limit (dashed)."
    )
    return [draw("glance", "How close to the limit", words, plot, 110 + 26 * len(found))]


def ratios(findings: Findings) -> list[Figure]:
    """The ratio of every product, type by type, and their geometric means."""
    opponent = opponent_name(findings)
    kinds: dict[str, list[float]] = {}
    for duel in (duel for duel in comparisons(findings) if duel.ratio > 0):
        kinds.setdefault(kind_of(duel.problem), []).append(duel.ratio)
    if not kinds:
        return []
    everything = [ratio for values in kinds.values() for ratio in values]

    def plot(figure: Any, axes: Any) -> None:
        for place, values in enumerate(kinds.values()):
            values = sorted(values)
            heights = [place + 0.26 * ((7 * i % 11) / 5 - 1) for i in range(len(values))]
            axes.plot(
                values,
                heights,
                linestyle="",
                marker="o",
                markersize=2.6,
                color=colour("series-0"),
                alpha=0.6,
                label="a product" if not place else None,
            )
        axes.plot(
            [mean(values) for values in kinds.values()],
            range(len(kinds)),
            linestyle="",
            marker="D",
            markersize=6,
            color=colour("series-1"),
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
        axes.set(xlabel="pymm is so many times as fast", ylim=(len(kinds) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=2)

    words = (
        f"Time of {opponent} / pymm's for every product that was compared, type by type: right of "
        "the dashed line pymm is faster."
    )
    title = f"Every product beside {opponent}"
    return [draw("ratios", title, words, plot, 110 + 26 * len(kinds))]


def _family(library: str) -> str:
    """cuBLASLt is a part of cuBLAS: at a glance the faster of the two counts."""
    return "cuBLAS" if library.startswith("cublas") else written(library)


def ladder(findings: Findings) -> list[Figure]:
    """Every rung on the largest square on which most rungs were measured, type by type."""
    everything = [t for t in timed(findings) if t.row.kind == "bench"]
    limits, found = peaks(findings), []
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype]
        rungs: dict[object, set[str]] = {}
        for t in at:
            if t.who == OWN and t.square and t.problem.layout == "NN":
                rungs.setdefault(t.problem, set()).add(t.rung)
        if rungs:
            problem = max(rungs, key=lambda p: (len(rungs[p]), p.n))
            if len(rungs[problem]) >= 2:
                at = [t for t in at if t.problem == problem]
                found.append(_ladder(at, problem.n, dtype, limits.get(dtype)))
    return found


def _ladder(at: Sequence[Timed], n: int, dtype: str, peak: float | None) -> Figure:
    rungs = sorted({t.rung for t in at if t.who == OWN})
    rivals = {t.who: t.gflops for t in at if t.who in RIVALS}
    top = max([t.gflops for t in at])
    scale, unit = (1e3, "TFLOP/s") if top >= 1e3 else (1.0, "GFLOP/s")

    def best(rung: str, variant: str) -> float:
        rates = [t.gflops for t in at if t.rung == rung and t.variant == variant]
        return max(rates, default=0.0) / scale

    def plot(figure: Any, axes: Any) -> None:
        places = range(len(rungs))
        tuned = [max(best(rung, "tuned"), best(rung, "default")) for rung in rungs]
        axes.barh(places, tuned, height=0.66, color=colour("series-5"), label="tuned")
        axes.barh(
            places,
            [best(rung, "default") for rung in rungs],
            height=0.66,
            color=colour("series-0"),
            label="default",
        )
        for name, dash in zip(sorted(rivals), ("-", ":", "-."), strict=False):
            axes.axvline(
                rivals[name] / scale, color=colour("series-1"), linestyle=dash, label=written(name)
            )
        if peak:
            axes.axvline(peak / scale, color=colour("ink"), linestyle="--", label="limit")
        axes.set_yticks(places, rungs)
        axes.set(xlabel=f"{unit}, {dtype}, m = n = k = {n}", ylim=(len(rungs) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    words = f"Rate of every rung of the ladder, {dtype}, m = n = k = {n}."
    return draw(f"ladder-{dtype}", f"The ladder, {dtype}", words, plot, 130 + 18 * len(rungs))


def against_size(findings: Findings) -> list[Figure]:
    """Rate of squares against N, type by type: what `matmul` chooses, each rung's best, the
    libraries, the limit.
    """
    found = []
    limits, measured = peaks(findings), timed(findings)
    everything = [t for t in measured if t.row.kind in ("classes", "bench")]
    squares = [t for t in everything if t.square and t.problem.layout == "NN"]
    for dtype in dict.fromkeys(t.problem.dtype for t in squares):
        lines = _lines([t for t in squares if t.problem.dtype == dtype])
        lines = {name: line for name, line in lines.items() if len(line) >= CURVE}
        if not any(name not in map(written, RIVALS) for name in lines):
            continue
        lines, unit, scale = scaled(lines)
        limit = limits[dtype] / scale if dtype in limits else None
        axes = Axes(f"m = n = k, {dtype}", unit, "binary", limit=limit)
        words = f"Rate of square products, {dtype}; marks beside a curve are sizes with remainders."
        found.append(figure(f"curve-{dtype}", f"Rate against size, {dtype}", words, lines, axes))
    return found


def _lines(squares: Sequence[Timed]) -> Curves:
    lines: Curves = {}
    for t in squares:
        own = CHOICE if t.row.kind == "classes" else t.rung
        line = lines.setdefault(own if t.who == OWN else written(t.who), {})
        line[t.problem.n] = max(line.get(t.problem.n, 0.0), t.gflops)
    return ordered(lines)
