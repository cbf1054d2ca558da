"""Figures of rates: at a glance, the rungs of the ladder, and rates against the size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pymm.report.drawing import HEIGHT, Figure, colour, draw, series
from pymm.report.facts import OWN, RIVALS, Extreme, Timed, written

#: Fewer sizes than this make no curve.
CURVE = 3

#: What `matmul` runs, as a curve is called.
CHOICE = "pymm's choice"

#: Sizes whose remainders a saw tooth shows.
TEETH = range(1000, 1101)


def glance(extremes: Sequence[Extreme], device: str) -> list[Figure]:
    """The highest rate of each type as a part of what the device can do at most."""
    if not extremes:
        return []

    def plot(figure: Any, axes: Any) -> None:
        places = range(len(extremes))
        parts = [100 * e.own.gflops / e.peak for e in extremes]
        axes.barh(places, parts, height=0.62, color=colour("series-0"), label=OWN)
        rivals = [(i, e.rival) for i, e in enumerate(extremes) if e.rival]
        for name in dict.fromkeys(_family(rival.who) for _, rival in rivals):
            at = [(i, r) for i, r in rivals if _family(r.who) == name]
            rates = [100 * r.gflops / extremes[i].peak for i, r in at]
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
        for place, e in zip(places, extremes, strict=True):
            unit = f"{e.own.gflops / 1e3:.3g} T" if e.own.gflops >= 1e3 else f"{e.own.gflops:.3g} G"
            axes.text(2, place, unit, va="center", color=colour("paper"), fontsize=9)
        axes.axvline(100, color=colour("ink"), linestyle="--", linewidth=1.2)
        axes.set_yticks(places, [e.dtype for e in extremes])
        axes.set(xlim=(0, 104), xlabel="% of the device's limit", ylim=(len(extremes) - 0.5, -0.5))
        axes.grid(axis="y", visible=False)
        figure.legend(loc="outside lower center", ncols=3)

    words = (
        f"The highest rate of each type on {device}, in FLOP/s, as a part of the device's "
        "limit (dashed)."
    )
    return [draw("glance", "How close to the limit", words, plot, 110 + 26 * len(extremes))]


def _family(library: str) -> str:
    """cuBLASLt is a part of cuBLAS: at a glance the faster of the two counts."""
    return "cuBLAS" if library.startswith("cublas") else written(library)


def ladder(everything: Sequence[Timed], peaks: dict[str, float]) -> list[Figure]:
    """Every rung on the largest square on which most rungs were measured, type by type."""
    found = []
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype and t.row.kind == "bench"]
        rungs: dict[object, set[str]] = {}
        for t in at:
            if t.who == OWN and t.square and t.problem.layout == "NN":
                rungs.setdefault(t.problem, set()).add(t.rung)
        if rungs:
            problem = max(rungs, key=lambda p: (len(rungs[p]), p.n))
            if len(rungs[problem]) >= 2:
                at = [t for t in at if t.problem == problem]
                found.append(_ladder(at, problem.n, dtype, peaks.get(dtype)))
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


def curves(everything: Sequence[Timed], peaks: dict[str, float]) -> list[Figure]:
    """Rate of squares against N, type by type: each rung, the libraries, the limit."""
    found = []
    squares = [t for t in everything if t.square and t.problem.layout == "NN"]
    for dtype in dict.fromkeys(t.problem.dtype for t in squares):
        lines = _lines([t for t in squares if t.problem.dtype == dtype])
        lines = {name: line for name, line in lines.items() if len(line) >= CURVE}
        if any(name not in map(written, RIVALS) for name in lines):
            found.append(_curves(lines, dtype, peaks.get(dtype)))
    return found


def _lines(squares: Sequence[Timed]) -> dict[str, dict[int, float]]:
    """GFLOP/s by N: what `matmul` chooses if the classes were measured, each rung's best, and the
    libraries.
    """
    lines: dict[str, dict[int, float]] = {}
    for t in squares:
        own = CHOICE if t.row.kind == "classes" else t.rung
        line = lines.setdefault(own if t.who == OWN else written(t.who), {})
        line[t.problem.n] = max(line.get(t.problem.n, 0.0), t.gflops)

    def place(item: tuple[str, object]) -> tuple[int, str]:
        name = item[0]
        return (0 if name == CHOICE else 2 if name[:1].isdigit() else 1, name)

    return dict(sorted(lines.items(), key=place))


def _curves(lines: dict[str, dict[int, float]], dtype: str, peak: float | None) -> Figure:
    top = max(max(line.values()) for line in lines.values())
    scale, unit = (1e3, "TFLOP/s") if top >= 1e3 else (1.0, "GFLOP/s")

    def plot(figure: Any, axes: Any) -> None:
        for number, (name, line) in enumerate(lines.items()):
            dense = len(line) > 25
            style = series(number) | ({"marker": ""} if dense else {})
            points = sorted(line.items())
            axes.plot([n for n, _ in points], [y / scale for _, y in points], label=name, **style)
        if peak:
            axes.axhline(peak / scale, color=colour("ink"), linestyle="--", linewidth=1.2)
            axes.annotate(
                "limit",
                (1, peak / scale),
                xycoords=("axes fraction", "data"),
                va="top",
                ha="right",
                textcoords="offset points",
                xytext=(0, -2),
            )
        extents = sorted({n for line in lines.values() for n in line})
        if extents[-1] > 8 * extents[0]:
            axes.set_xscale("log", base=2)
            ticks = [n for n in (2**e for e in range(20)) if extents[0] <= n <= extents[-1]]
            axes.set_xticks(ticks, [str(n) for n in ticks])
            axes.minorticks_off()
        axes.set(xlabel=f"m = n = k, {dtype}", ylabel=unit, ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=3)

    words = f"Rate of square products against their size, {dtype}, with the device's limit."
    height = HEIGHT + 14 * ((len(lines) - 1) // 3)
    return draw(f"curve-{dtype}", f"Rate against size, {dtype}", words, plot, height)


def saw_tooth(everything: Sequence[Timed]) -> list[Figure]:
    """Every N from 1000 to 1100: what remainders of tiles cost."""
    found = []
    at = [t for t in everything if t.square and t.problem.n in TEETH]
    for dtype in dict.fromkeys(t.problem.dtype for t in at):
        lines = _lines([t for t in at if t.problem.dtype == dtype])
        lines = {name: line for name, line in lines.items() if len(line) > 20}
        if lines:
            found.append(_saw_tooth(lines, dtype))
    return found


def _saw_tooth(lines: dict[str, dict[int, float]], dtype: str) -> Figure:
    def plot(figure: Any, axes: Any) -> None:
        for number, (name, line) in enumerate(lines.items()):
            points = sorted(line.items())
            axes.plot(
                [n for n, _ in points],
                [y for _, y in points],
                label=name,
                **(series(number) | {"marker": "", "linewidth": 1.2}),
            )
        axes.set_xticks(range(1000, 1101, 32), [str(n) for n in range(1000, 1101, 32)])
        axes.set(xlabel=f"m = n = k, {dtype}", ylabel="GFLOP/s", ylim=(0, None))
        figure.legend(loc="outside lower center", ncols=3)

    words = f"Rate at every size from 1000 to 1100, {dtype}: what a tile's remainder costs."
    height = HEIGHT + 14 * ((len(lines) - 1) // 3)
    return draw(f"teeth-{dtype}", f"Remainders, {dtype}", words, plot, height)
