"""Plots of the experiments (`python -m pymm.bench --suite`)."""

from __future__ import annotations

import math
from typing import Any

from pymm.console import significant
from pymm.report.stats import TRANSFERS, Curves, Experiment, curves, gflops, implementation, ordered
from pymm.report.svg import Axes, Figure, colour, draw, figure, short_number, with_unit

#: The parts of a total time, in order, with their colours.
PARTS = {"to_device": "series-2", "kernel": "series-0", "to_host": "series-4"}


def simple_and_tiled(experiment: Experiment) -> list[Figure]:
    """O1: time against size, of the naive and the tiled kernel."""
    lines = curves(experiment.of("kernel"), lambda row: row.seconds * 1e3)
    if not lines:
        return []
    caption = (
        "Time of one product on the device: operands read from global memory, or by way of tiles."
    )
    axes = Axes("m = n = k, f32", "ms", "binary", "log")
    found = [figure("o1", "Simple and tiled", caption, lines, axes)]
    if gains := _gains(lines):
        caption = "Time of the simple kernel / the tiled one's, by the width of their blocks."
        axes = Axes("m = n = k, f32", "speed-up", "binary")
        found.append(figure("o1-gain", "Speed-up by tiling", caption, gains, axes))
    return found


def _gains(lines: Curves) -> Curves:
    """The ratio of two kernels with tiles of the same width: the first's values / the second's."""
    widths: dict[str, list[dict[float, float]]] = {}
    for name, line in lines.items():
        if " " in name and name[:1].isdigit():
            widths.setdefault(name.rpartition(" ")[2], []).append(line)
    return {
        f"blocks of {width}": {n: pair[0][n] / pair[1][n] for n in pair[0] if n in pair[1]}
        for width, pair in widths.items()
        if len(pair) == 2
    }


def totals(experiment: Experiment) -> list[Figure]:
    """O2 a: the total time with transfers, and the kernel's share."""
    found = []
    for name in dict.fromkeys(implementation(row) for row in experiment.of("total")):
        totals = [row for row in experiment.of("total") if implementation(row) == name]
        kernels = {
            r.problem: r.seconds for r in experiment.of("kernel") if implementation(r) == name
        }
        sizes = sorted({row.problem.n for row in totals})
        bars = [
            (n, way, row.seconds, kernels.get(row.problem, 0.0))
            for n in sizes
            for way in TRANSFERS
            for row in totals
            if (row.problem.n, row.text("transfer")) == (n, way)
        ]
        found.append(_totals(name, bars))
    return found


def _totals(name: str, bars: list[tuple[int, str, float, float]]) -> Figure:
    parts = [100 * min(1.0, kernel / total) for _, _, total, kernel in bars]

    def plot(drawn: Any, own: Any) -> None:
        places = range(len(bars))
        own.barh(
            places,
            parts,
            height=0.7,
            color=colour("series-0"),
            label="kernel",
        )
        own.barh(
            places,
            [100 - part for part in parts],
            height=0.7,
            left=parts,
            color=colour("series-2"),
            label="transfers",
        )
        for place, (_, _, total, _) in enumerate(bars):
            own.text(102, place, f"{significant(total * 1e3, 3)} ms", va="center", fontsize=9)
        own.set_yticks(places, [f"{n} {TRANSFERS[way]}" for n, way, _, _ in bars])
        own.set(xlabel="% of the total", xlim=(0, 128), ylim=(len(bars) - 0.5, -0.5))
        own.set_xticks(range(0, 101, 25))
        own.grid(axis="y", visible=False)
        drawn.legend(loc="outside lower center", ncols=2)

    caption = f"Total time of one product, {name}: the shares of kernel and transfers."
    return draw(
        f"total-{name}", f"Time with transfers: {name}", caption, plot, 100 + 17 * len(bars)
    )


def splits(experiment: Experiment) -> list[Figure]:
    """O2 b: copies to the device, kernel and copies to the host, for each kernel and library."""
    copies = {
        (r.problem, r.text("transfer"), r.text("quantity")): r.seconds
        for quantity in ("to_device", "to_host")
        for r in experiment.of(quantity)
    }
    found = []
    for name in dict.fromkeys(implementation(row) for row in experiment.of("kernel")):
        bars = []
        for row in sorted(experiment.of("kernel"), key=lambda r: r.problem.n):
            for way in TRANSFERS:
                parts = [
                    copies.get((row.problem, way, "to_device")),
                    row.seconds,
                    copies.get((row.problem, way, "to_host")),
                ]
                if implementation(row) == name and None not in parts:
                    bars.append((f"{row.problem.n} {TRANSFERS[way]}", parts))
        if bars:
            found.append(_split(name, bars))
    return found


def _split(name: str, bars: list[tuple[str, list[float]]]) -> Figure:
    def plot(drawn: Any, own: Any) -> None:
        left = [0.0] * len(bars)
        for place, (part, role) in enumerate(PARTS.items()):
            widths = [100 * parts[place] / sum(parts) for _, parts in bars]
            own.barh(
                range(len(bars)),
                widths,
                left=left,
                height=0.7,
                color=colour(role),
                label=part.replace("_", " the "),
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        own.set_yticks(range(len(bars)), [label for label, _ in bars])
        own.set(xlabel="% of the time", xlim=(0, 100), ylim=(len(bars) - 0.5, -0.5))
        own.grid(axis="y", visible=False)
        drawn.legend(loc="outside lower center", ncols=3)

    caption = f"Shares of copies and kernel in the time of one product, {name}."
    return draw(f"split-{name}", f"Shares of the time: {name}", caption, plot, 100 + 17 * len(bars))


def sizes(experiment: Experiment) -> list[Figure]:
    """O2 c: rate against N, of the kernel alone and with transfers."""
    found = []
    for dtype in experiment.dtypes:
        alone = curves(experiment.of("kernel", dtype), gflops)
        if alone:
            lines, unit, scale = with_unit(alone)
            limit = experiment.peaks[dtype] / scale if dtype in experiment.peaks else None
            axes = Axes(f"m = n = k, {dtype}", unit, limit=limit)
            caption = "Rate of the kernels alone, at multiples of 32."
            found.append(figure(f"sizes-{dtype}", "Rate against size", caption, lines, axes))
        for way in TRANSFERS:
            total = curves(experiment.of("total", dtype, way), gflops)
            if total:
                caption = (
                    f"Rate including the transfers of A, B and C, {TRANSFERS[way]}: their share "
                    "falls as N grows."
                )
                axes = Axes(f"m = n = k, {dtype}", "GFLOP/s")
                name, title = f"sizes-total-{way}-{dtype}", "Rate with transfers"
                found.append(figure(name, title, caption, total, axes, among=alone))
    return found


def remainders(experiment: Experiment) -> list[Figure]:
    """O2 d: every N from 1000 to 1100, the cost of partial tiles."""
    found = []
    for dtype in experiment.dtypes:
        lines = curves(experiment.of("kernel", dtype), gflops)
        kernels = {name: line for name, line in lines.items() if name[:1].isdigit()}
        shown = [("partial-tiles", "Partial tiles", lines)] if lines else []
        if 1 < len(kernels) < len(lines):
            shown.append(("partial-tiles-kernels", "Partial tiles, pymm's first kernels", kernels))
        for name, title, curves_of in shown:
            at, unit, _ = with_unit(curves_of)
            caption = "Rate at every size from 1000 to 1100: the cost of partial tiles."
            axes = Axes(f"m = n = k, {dtype}", unit)
            found.append(figure(f"{name}-{dtype}", title, caption, at, axes, among=lines))
    return found


def blocks(experiment: Experiment) -> list[Figure]:
    """O2 e: blocks of 8 x 8, 16 x 16 and 32 x 32 threads."""
    lines = curves(experiment.of("kernel"), gflops)
    if not lines:
        return []
    lines, unit, _ = with_unit(lines)
    caption = "Rate by the number of threads per block."
    axes = Axes("m = n = k, f32", unit)
    return [figure("blocks", "Block sizes", caption, lines, axes)]


def transposed(experiment: Experiment) -> list[Figure]:
    """O3: A^T A, of square and of rectangular A."""
    found = []
    kinds = {"of N x N": lambda p: p.k == p.n, "of N/2 x N": lambda p: p.k != p.n}
    shown = [(dtype, *kind) for dtype in experiment.dtypes for kind in enumerate(kinds.items())]
    for dtype, place, (what, holds) in shown:
        rows = [row for row in experiment.of("kernel", dtype) if holds(row.problem)]
        lines = curves(rows, gflops)
        if lines:
            lines, unit, scale = with_unit(lines)
            limit = experiment.peaks[dtype] / scale if dtype in experiment.peaks else None
            caption = (
                f"Rate of A^T A, A {what}, counted as N (N + 1) k operations, those that one "
                "triangle of C needs."
            )
            axes = Axes(f"N, {dtype}", unit, limit=limit)
            title = f"A^T A, A {what}, {dtype}"
            found.append(figure(f"o3-{place}-{dtype}", title, caption, lines, axes))
    return found


def squares(experiment: Experiment) -> list[Figure]:
    """O4: rate, speed-up over the sequential product and error, against N."""
    lines = without_sequential(curves(experiment.of("kernel"), gflops))
    if not lines:
        return []
    lines, unit, scale = with_unit(lines)
    limit = experiment.peaks["f32"] / scale if "f32" in experiment.peaks else None
    caption = (
        "Rate of the first five kernels, of pymm's choice and of the libraries; medians of three "
        "runs."
    )
    axes = Axes("m = n = k, f32", unit, limit=limit)
    found = [figure("o4-rates", "The ladder against N", caption, lines, axes)]
    return found + _against_sequential(experiment, lines, "")


def _against_sequential(experiment: Experiment, among: Curves, k: str) -> list[Figure]:
    """Speed-up over the sequential product and relative error, of products with this `k` if
    given.
    """
    rows = [row for row in experiment.of("kernel") if not k or str(row.problem.k) == k]
    what, name = (f"m = n, k = {k}, f32", f"-k{k}") if k else ("m = n = k, f32", "")
    where = f", k = {k}" if k else ""
    found = []
    gains = curves(rows, lambda row: row.number("speedup"))
    gains.pop("sequential", None)  # 1 by definition
    if gains:
        caption = "Speed-up over the sequential product on one thread of the host."
        axes = Axes(what, "speed-up", y_scale="log")
        title = f"Speed-up over sequential{where}"
        found.append(figure(f"o4-gains{name}", title, caption, gains, axes, among=among))
    errors = curves(rows, lambda row: row.number("error_inf"))
    same = [label for label, line in errors.items() if not any(line.values())]
    different = {label: line for label, line in errors.items() if label not in same}
    if different:
        unit = 10.0 ** math.floor(
            math.log10(max(max(line.values()) for line in different.values()))
        )
        different = {
            label: {n: e / unit for n, e in line.items()} for label, line in different.items()
        }
        caption = "Infinity norm of the difference from the sequential result / that of the result."
        if same:
            caption += f" Identical bit for bit: {', '.join(same)}."
        axes = Axes(what, f"error in {short_number(unit)}")
        title = f"Relative error{where}"
        found.append(figure(f"o4-errors{name}", title, caption, different, axes, among=among))
    return found


def without_sequential(lines: Curves) -> Curves:
    """The curves without that of the sequential product if it would coincide with 0."""
    top = max((y for line in lines.values() for y in line.values()), default=0.0)
    return {
        name: line
        for name, line in lines.items()
        if name != "sequential" or max(line.values()) > top / 100
    }


def rectangles(experiment: Experiment) -> list[Figure]:
    """O4: m = n, and small k."""
    found, ks = [], sorted({row.problem.k for row in experiment.of("kernel")})
    for k in ks:
        rows = [row for row in experiment.of("kernel") if row.problem.k == k]
        lines, unit, _ = with_unit(without_sequential(ordered(curves(rows, gflops))))
        caption = f"Rate of products with m = n and k = {k}."
        axes = Axes("m = n, f32", unit)
        found.append(figure(f"o4-k{k}", f"Rectangles, k = {k}", caption, lines, axes))
    return found + (_against_sequential(experiment, lines, str(ks[-1])) if ks else [])
