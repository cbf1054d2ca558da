"""Chapters of the suites: what the projects that pymm comes from asked, each with the command that
asks it again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from pymm.report import plots_studies
from pymm.report.content import Cell, Chapter, Table, cell
from pymm.report.drawing import Figure
from pymm.report.facts import peaks
from pymm.report.grids import extents, ratio_cell
from pymm.report.listing import of_problem, outcome, parameters_of, span
from pymm.report.reading import Findings, Row
from pymm.report.studies import CHOICE, TIMES, Study, contestant, gflops, pivot, studies

#: Chapters: name, title, words, and the experiments of each.
ORIGINS = (
    (
        "o1",
        "Simple and tiled",
        "One thread for each element of C that reads all it needs, against tiles in shared memory.",
        ("o1",),
    ),
    (
        "o2",
        "Transfers, sizes, remainders, blocks",
        "Element by element against blocked: what transfers take, how rates grow, what "
        "remainders of tiles and sizes of blocks cost, and what a thread does.",
        (
            "o2-transfers",
            "o2-split",
            "o2-sizes",
            "o2-remainders",
            "o2-blocks",
            "o2-kernels",
            "o2-counts",
        ),
    ),
    (
        "o3",
        "A^T A",
        "C = A^T A in double precision beside the library and a plain kernel.",
        ("o3",),
    ),
    (
        "o4",
        "The five kernels",
        "The ladder's first five kernels beside the sequential product.",
        ("o4-square", "o4-rectangular"),
    ),
)

#: Quantities of a kernel that stand in its table, with their heads.
FACTS = {
    "grid": "grid",
    "block": "block",
    "threads": "threads",
    "registers": "registers",
    "shared": "shared",
    "blocks_per_sm": "blocks / SM",
    "occupancy": "occupancy",
    "limited_by": "limited by",
    "dram_gbs": "GB/s at least",
}


def origins(findings: Findings, drawn: Callable[..., list[Figure]]) -> list[Chapter]:
    """A chapter for each origin that was measured; `drawn` calls a maker of figures."""
    found, limit = studies(findings), peaks(findings)
    chapters = []
    for name, title, words, experiments in ORIGINS:
        at = [found[experiment] for experiment in experiments if experiment in found]
        chapter = Chapter(name, title, words)
        for study in at:
            chapter.figures += drawn(_figures, study, limit)
            chapter.tables += [table for table in _tables(study) if table.rows]
        if at:
            chapter.commands = [f"python -m pymm.bench --suite {study.name}" for study in at]
        chapters.append(chapter)
    return chapters


def _figures(study: Study, limit: dict[str, float]) -> list[Figure]:
    makers = {
        "o1": lambda: plots_studies.simple_and_tiled(study),
        "o2-transfers": lambda: plots_studies.totals(study),
        "o2-split": lambda: plots_studies.splits(study),
        "o2-sizes": lambda: plots_studies.sizes(study, limit),
        "o2-remainders": lambda: plots_studies.remainders(study),
        "o2-blocks": lambda: plots_studies.blocks(study),
        "o3": lambda: plots_studies.transposed(study, limit),
        "o4-square": lambda: plots_studies.squares(study, limit),
        "o4-rectangular": lambda: plots_studies.rectangles(study),
    }
    return makers[study.name]() if study.name in makers else []


def _tables(study: Study) -> list[Table]:
    if study.name == "o2-kernels":
        return [kernel_facts(study), left_out(study)]
    if study.name == "o2-counts":
        return [counts(study), left_out(study)]
    if study.name == "o2-split":
        return [journeys(study), left_out(study)]
    quantity = "total" if study.name == "o2-transfers" else "kernel"
    return [rates(study, quantity), left_out(study)]


def rates(study: Study, quantity: str) -> Table:
    """GFLOP/s of every contestant, one row a product (and way of transfer)."""
    rows = study.of(quantity)
    names, lines = pivot(rows, gflops)
    found = []
    for line in lines:
        first = line.first
        shown = of_problem(first.problem)
        if quantity != "kernel":
            shown["transfers"] = Cell(plots_studies.TRANSFERS.get(first.text("transfer"), ""))
        for name in names:
            row = line.by.get(name)
            shown[name] = cell(gflops(row)) if row else Cell("")
        if CHOICE in names:
            own = line.by.get(CHOICE)
            shown["ratio"] = ratio_cell(own.number("ratio") if own else math.nan)
            shown["configuration"] = Cell(own.text("config").replace("-", " ") if own else "")
        found.append(shown)
    words = f"GFLOP/s ({quantity} time)."
    if CHOICE in names:
        words += " Ratio: the fastest library's time / that of pymm's choice."
    return Table(f"rates-{study.name}", f"{study.name}: {study.title}", found, words)


def journeys(study: Study) -> Table:
    """Every time of an experiment on transfers."""
    rows = [
        {
            **of_problem(row.problem),
            "what": Cell(row.text("quantity").replace("_", " ")),
            "kernel": Cell(contestant(row) if row.text("name") != "copies" else ""),
            "transfers": Cell(plots_studies.TRANSFERS.get(row.text("transfer"), "")),
            "time": span(row.seconds),
            "configuration": parameters_of(row),
        }
        for quantity in TIMES
        for row in study.of(quantity)
    ]
    return Table(f"times-{study.name}", f"{study.name}: {study.title}", rows)


def kernel_facts(study: Study) -> Table:
    """The table of the kernels: grid, block, registers, occupancy, and what a profiler saw."""
    lines: dict[tuple[str, str], dict[str, Row]] = {}
    for row in study.rows:
        if row.text("outcome") in ("ok", ""):
            key = (row.problem.dtype, f"{row.text('name')} {row.text('config')}")
            lines.setdefault(key, {})[row.text("quantity")] = row
    profiled = {name for by in lines.values() for name in by if name.startswith("ncu:")}
    heads = FACTS | {name: name.removeprefix("ncu:") for name in sorted(profiled)}
    heads = {q: head for q, head in heads.items() if any(q in by for by in lines.values())}
    rows = []
    for by in lines.values():
        first = next(iter(by.values()))
        time = by.get("kernel")
        numbers = {head: _number(by.get(quantity)) for quantity, head in heads.items()}
        rows.append(
            {
                **of_problem(first.problem),
                "kernel": Cell(first.text("name")),
                "time": span(time.seconds if time else math.nan),
                "GFLOP/s": cell(gflops(time) if time else math.nan),
                **numbers,
                "configuration": parameters_of(first),
            }
        )
    return Table("facts-o2-kernels", f"{study.name}: {study.title}", rows)


def _number(row: Row | None) -> Cell:
    if row is None:
        return Cell("")
    value = row.number("value")
    unit = row.text("unit")
    return cell(value) if value == value else Cell(row.text("value") + (unit and f" {unit}"))


def counts(study: Study) -> Table:
    """Operations and accesses of a thread, counted and by formula."""
    quantities = list(dict.fromkeys(row.text("quantity") for row in study.rows))
    lines: dict[tuple[object, str], dict[str, Row]] = {}
    for row in study.rows:
        if row.text("outcome") in ("ok", "") and row.text("value"):
            key = (row.problem, row.text("config"))
            lines.setdefault(key, {})[row.text("quantity")] = row
    rows = []
    for by in lines.values():
        first = next(iter(by.values()))
        numbers = {name.replace("_", " "): _number(by.get(name)) for name in quantities if name}
        rows.append(
            {
                "m x n x k": extents(first.problem),
                "kernel": Cell(first.text("name")),
                "configuration": parameters_of(first),
                **numbers,
            }
        )
    words = "Averages over all threads, counted in the simulator, beside the formula for a thread."
    return Table("counts-o2", f"{study.name}: {study.title}", rows, words)


def left_out(study: Study) -> Table:
    """What was not measured, and what failed, with the reason."""
    rows: Sequence[Row] = [row for row in study.rows if row.text("outcome") not in ("ok", "")]
    lines = [
        {
            **of_problem(row.problem),
            "contestant": Cell(contestant(row)),
            "outcome": Cell(outcome(row).replace("_", " ", 1)),
        }
        for row in rows
    ]
    return Table(f"left-{study.name}", f"{study.name}: not measured", lines)
