"""Ratios as coloured grids: classes by type, shapes by type and layout."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pymm.core.problem import Problem
from pymm.measure.libraries import GENERAL
from pymm.report.content import Cell, Table, cell
from pymm.report.facts import Duel, mean

LAYOUTS = ("NN", "NT", "TN", "TT")

#: A ratio of so much is coloured fully: twice as fast, or half.
FULL = math.log(2.0)


def shade(ratio: float) -> float | None:
    """A ratio on a scale from -1 to 1, 0 where both are as fast; None if there is none."""
    return max(-1.0, min(1.0, math.log(ratio) / FULL)) if ratio > 0 else None


def ratio_cell(ratio: float) -> Cell:
    """A ratio as a coloured field."""
    return cell(ratio, "{:.2f}", shade(ratio))


def extents(problem: Problem) -> Cell:
    """The shape as a field that sorts by the number of operations; a square as its one extent."""
    m, n, k = problem.m, problem.n, problem.k
    text = f"{n}" if m == n == k else f"{m} x {n} x {k}"
    return Cell(text, problem.flops)


def kind_of(problem: Problem) -> str:
    """The type, and the operation unless that is a plain product: "f32", "f64 syrk"."""
    return problem.dtype if problem.op == "gemm" else f"{problem.dtype} {problem.op}"


def class_means(duels: Sequence[Duel]) -> list[Table]:
    """Geometric mean of every class and type, row-major operands and transposed ones; one table
    for the types that have the same classes.
    """
    classes: dict[str, dict[str, None]] = {}
    for duel in duels:
        classes.setdefault(kind_of(duel.problem), {})[duel.name] = None
    groups: list[tuple[list[str], list[str]]] = []
    for dtype, names in classes.items():
        for dtypes, of in groups:
            if set(names) & set(of):
                dtypes.append(dtype)
                of += [name for name in names if name not in of]
                break
        else:
            groups.append(([dtype], list(names)))
    return [_means(duels, *group, place) for place, group in enumerate(groups)]


def _means(duels: Sequence[Duel], dtypes: list[str], classes: list[str], place: int) -> Table:
    rows = [{"class": Cell(name)} for name in classes]
    for dtype in dtypes:
        for title, layouts in _columns(dtype):
            of = [d for d in duels if kind_of(d.problem) == dtype and d.problem.layout in layouts]
            if not any(d.ratio > 0 for d in of):
                continue
            for row, name in zip(rows, classes, strict=True):
                row[title] = _mean_cell([d for d in of if d.name == name])
    words = "Geometric means of the library's time / pymm's: above 1 pymm is faster. " + (
        "The library is the faster of the whole product and one half with its mirror. "
        if any(" " in dtype for dtype in dtypes)
        else "NN: both operands row-major; trans.: A, B or both transposed. "
    )
    words += "Empty: not measured."
    title = f"Classes of shapes, {', '.join(dtypes)}"
    return Table(f"classes-{place}", title, rows, words, grid=True)


def _mean_cell(duels: Sequence[Duel]) -> Cell:
    """The mean of a class as a coloured field; how many of its products failed, if any did."""
    average = mean(d.ratio for d in duels)
    failed = sum(not d.row.sound for d in duels)
    if not failed:
        return ratio_cell(average)
    text = f"{average:.2f}, " if average > 0 else ""
    return Cell(f"{text}{failed} failed", average if average > 0 else 0.0)


def _columns(kind: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Heads of a kind's columns, with the layouts that each counts."""
    dtype, _, op = kind.partition(" ")
    if op:
        return ((f"{dtype} A A^T", ("NT",)), (f"{dtype} A^T A", ("TN",)))
    return ((f"{dtype} NN", LAYOUTS[:1]), (f"{dtype} trans.", LAYOUTS[1:]))


def beside_whole(duels: Sequence[Duel]) -> Table:
    """Symmetric products beside the library's whole product alone, class by class."""
    of = [d for d in duels if d.problem.op != "gemm"]
    rows = [{"class": Cell(name)} for name in dict.fromkeys(d.name for d in of)]
    for kind in dict.fromkeys(kind_of(d.problem) for d in of):
        for title, layouts in _columns(kind):
            at = [d for d in of if kind_of(d.problem) == kind and d.problem.layout in layouts]
            for row in rows:
                named = [_whole(d) for d in at if d.name == row["class"].text]
                row[title] = ratio_cell(mean(named))
    words = (
        "Geometric means of the time of the library's whole product, which multiplies twice as "
        "much, / pymm.syrk's."
    )
    return Table("whole", "Symmetric products beside the whole product", rows, words, grid=True)


def _whole(duel: Duel) -> float:
    times = [duel.row.number(f"{name}_us") for name in GENERAL]
    known = [seconds * 1e-6 for seconds in times if seconds > 0]
    return min(known) / duel.seconds if known and duel.seconds > 0 else math.nan


def shape_maps(duels: Sequence[Duel]) -> list[Table]:
    """Every shape against every type and layout, operation by operation."""
    ops = dict.fromkeys(d.problem.op for d in duels)
    return [shape_map([d for d in duels if d.problem.op == op]) for op in ops]


def shape_map(duels: Sequence[Duel]) -> Table:
    """Every shape against every type and layout."""
    kinds = list(dict.fromkeys((kind_of(d.problem), d.problem.layout) for d in duels))
    dtypes = list(dict.fromkeys(dtype for dtype, _ in kinds))
    kinds.sort(key=lambda kind: (dtypes.index(kind[0]), kind[1]))
    shapes: dict[tuple[int, int, int], dict[tuple[str, str], float]] = {}
    for d in duels:
        at = shapes.setdefault((d.problem.m, d.problem.n, d.problem.k), {})
        at[kind_of(d.problem), d.problem.layout] = d.ratio
    rows = [
        {"m x n x k": extents(Problem(*shape))}
        | {" ".join(kind): ratio_cell(at.get(kind, math.nan)) for kind in kinds}
        for shape, at in sorted(shapes.items(), key=lambda item: (len(set(item[0])), item[0]))
    ]
    words = "The library's time / pymm's for every product; above 1 pymm is faster."
    op = duels[0].problem.op
    name, what = ("shapes", "shape") if op == "gemm" else (f"shapes-{op}", f"{op} shape")
    return Table(name, f"Every {what} by type and layout", rows, words, grid=True)
