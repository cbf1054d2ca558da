"""Figures of the suites: what the courses and projects that pymm comes from measured, again."""

from __future__ import annotations

from typing import Any

from pymm.report.content import significant
from pymm.report.curves import Axes, figure, scaled
from pymm.report.drawing import Figure, colour, draw
from pymm.report.studies import Curves, Study, contestant, curves, gflops, ordered

#: How operands travel, as the suites call it, with words for it.
TRANSFERS = {
    "pageable": "pageable",
    "pinned": "by a pinned area",
    "registered": "pinned each time",
    "locked": "pinned for good",
}

#: The parts of a journey, in turn, with the role of each colour.
PARTS = {"to_device": "series-2", "kernel": "series-0", "to_host": "series-4"}


def simple_and_tiled(study: Study) -> list[Figure]:
    """O1: time against the size."""
    lines = curves(study.of("kernel"), lambda row: row.seconds * 1e3)
    if not lines:
        return []
    words = "Time of one product on the device: each thread reads all it needs, or by way of tiles."
    axes = Axes("m = n = k, f32", "ms", "binary", "log")
    return [figure("o1", "Simple against tiled", words, lines, axes)]


def totals(study: Study) -> list[Figure]:
    """O2 a: the time with transfers, of which the kernel takes its part."""
    found = []
    for name in dict.fromkeys(contestant(row) for row in study.of("total")):
        totals = [row for row in study.of("total") if contestant(row) == name]
        kernels = {r.problem: r.seconds for r in study.of("kernel") if contestant(r) == name}
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

    words = f"Total time of one product, {name}: what the kernel takes, and what its transfers."
    return draw(_short("total", name), f"With transfers: {name}", words, plot, 100 + 17 * len(bars))


def splits(study: Study) -> list[Figure]:
    """O2 b: to the device, kernel, to the host, stacked, for each contestant."""
    copies = {
        (r.problem, r.text("transfer"), r.text("quantity")): r.seconds
        for quantity in ("to_device", "to_host")
        for r in study.of(quantity)
    }
    found = []
    for name in dict.fromkeys(contestant(row) for row in study.of("kernel")):
        bars = []
        for row in sorted(study.of("kernel"), key=lambda r: r.problem.n):
            for way in TRANSFERS:
                parts = [
                    copies.get((row.problem, way, "to_device")),
                    row.seconds,
                    copies.get((row.problem, way, "to_host")),
                ]
                if contestant(row) == name and None not in parts:
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

    words = f"Where the time of one product goes, {name}."
    return draw(
        _short("split", name), f"Where the time goes: {name}", words, plot, 100 + 17 * len(bars)
    )


def sizes(study: Study, peaks: dict[str, float]) -> list[Figure]:
    """O2 c: rate against N, of the kernel alone and with its transfers."""
    found = []
    for dtype in study.dtypes:
        alone = curves(study.of("kernel", dtype), gflops)
        if alone:
            lines, unit, scale = scaled(alone)
            limit = peaks[dtype] / scale if dtype in peaks else None
            axes = Axes(f"m = n = k, {dtype}", unit, limit=limit)
            words = "Rate of the kernels alone, at multiples of 32."
            found.append(figure(f"sizes-{dtype}", "Rate against size", words, lines, axes))
        total: Curves = {}
        for way in TRANSFERS:
            lines = curves(study.of("total", dtype, way), gflops)
            total |= {f"{name}, {TRANSFERS[way]}": line for name, line in lines.items()}
        if total:
            words = "Rate of the whole, transfers of A, B and C included: they fade as N grows."
            axes = Axes(f"m = n = k, {dtype}", "GFLOP/s")
            title = "Rate with transfers"
            found.append(figure(f"sizes-total-{dtype}", title, words, total, axes, 1))
    return found


def remainders(study: Study) -> list[Figure]:
    """O2 d: every N from 1000 to 1100."""
    found = []
    for dtype in study.dtypes:
        lines = curves(study.of("kernel", dtype), gflops)
        rungs = {name: line for name, line in lines.items() if name[:1].isdigit()}
        shown = [("teeth", "Remainders", lines)] if lines else []
        if 0 < len(rungs) < len(lines):
            shown.append(("teeth-rungs", "Remainders, the lower rungs", rungs))
        for name, title, curves_of in shown:
            at, unit, _ = scaled(curves_of)
            words = "Rate at every size from 1000 to 1100: what the remainder of a tile costs."
            axes = Axes(f"m = n = k, {dtype}", unit)
            found.append(figure(f"{name}-{dtype}", title, words, at, axes))
    return found


def blocks(study: Study) -> list[Figure]:
    """O2 e: blocks of 8 x 8, 16 x 16 and 32 x 32 threads."""
    lines = curves(study.of("kernel"), gflops)
    if not lines:
        return []
    lines, unit, _ = scaled(lines)
    words = "Rate by the number of threads of a block."
    axes = Axes("m = n = k, f32", unit)
    return [figure("blocks", "Block sizes", words, lines, axes)]


def transposed(study: Study, peaks: dict[str, float]) -> list[Figure]:
    """O3: A^T A, of square A and of flat A."""
    found = []
    kinds = {"of N x N": lambda p: p.k == p.n, "of N/2 x N": lambda p: p.k != p.n}
    for place, (what, holds) in enumerate(kinds.items()):
        rows = [row for row in study.of("kernel") if holds(row.problem)]
        lines = curves(rows, gflops)
        if lines:
            lines, unit, scale = scaled(lines)
            limit = peaks["f64"] / scale if "f64" in peaks else None
            words = f"Rate of A^T A, A {what}, in double precision; 2 N^2 k operations counted."
            axes = Axes("N, f64", unit, limit=limit)
            found.append(figure(f"o3-{place}", f"A^T A, A {what}", words, lines, axes))
    return found


def squares(study: Study, peaks: dict[str, float]) -> list[Figure]:
    """O4: rate, speed-up over the sequential product, and error, against N."""
    lines = curves(study.of("kernel"), gflops)
    if not lines:
        return []
    lines, unit, scale = scaled(lines)
    limit = peaks["f32"] / scale if "f32" in peaks else None
    words = "Rate of every rung, what pymm chooses and the libraries; mean of three runs."
    found = [
        figure(
            "o4-rates",
            "The ladder against N",
            words,
            lines,
            Axes("m = n = k, f32", unit, limit=limit),
        )
    ]
    gains = curves(study.of("kernel"), lambda row: row.number("speedup"))
    if gains:
        words = "Times as fast as the sequential product, one thread of the host."
        found.append(
            figure(
                "o4-gains",
                "Speed-up over sequential",
                words,
                gains,
                Axes("m = n = k, f32", "times", y_scale="log"),
            )
        )
    errors = curves(study.of("kernel"), lambda row: row.number("error_inf") or float("nan"))
    if errors:
        words = "Infinity norm of the difference from the sequential result beside that result's."
        found.append(
            figure(
                "o4-errors",
                "Relative error",
                words,
                errors,
                Axes("m = n = k, f32", "error", y_scale="log"),
            )
        )
    return found


def rectangles(study: Study) -> list[Figure]:
    """O4: m = n against small k."""
    found = []
    for k in sorted({row.problem.k for row in study.of("kernel")}):
        lines = curves([row for row in study.of("kernel") if row.problem.k == k], gflops)
        lines, unit, _ = scaled(ordered(lines))
        words = f"Rate of m = n against k = {k}."
        found.append(
            figure(f"o4-k{k}", f"Rectangles, k = {k}", words, lines, Axes("m = n, f32", unit))
        )
    return found


def _short(kind: str, name: str) -> str:
    return f"{kind}-" + "".join(c if c.isalnum() else "-" for c in name.lower())
