"""Tables of the suites."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from pymm.report.content import Cell, Table, cell, significant
from pymm.report.load import Row
from pymm.report.stats import CHOICE, TIMES, TRANSFERS, Experiment, contestant, gflops, pivot
from pymm.report.tables import (
    extents,
    of_problem,
    outcome,
    parameters_of,
    percent,
    ratio_cell,
    span,
)

#: What is compared with the sequential product: name, title and words of a table, its column.
COMPARED = (
    (
        "gains",
        "speed-up over sequential",
        "Time of the sequential product, one thread of the host, / that of each; only of products "
        "whose sequential one was made: that of a large one takes minutes.",
        "speedup",
    ),
    (
        "errors",
        "relative error",
        "Infinity norm of C - S / that of S, S the sequential product: 0 where each element is the "
        "same to the bit.",
        "error_inf",
    ),
)

#: What Nsight Compute saw, with the names of the original's table.
PROFILED = {
    "ncu:smsp__cycles_active.avg.pct_of_peak_sustained_elapsed": "SM efficiency",
    "ncu:sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput",
    "ncu:sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy",
    "ncu:dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM use",
    "ncu:dram__bytes_read.sum.per_second": "DRAM read, GB/s",
    "ncu:dram__bytes_write.sum.per_second": "DRAM written, GB/s",
    "ncu:lts__t_sector_hit_rate.pct": "L2 hits",
    "ncu:l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second": "global loads, GB/s",
    "ncu:l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second": "global stores, GB/s",
    "ncu:l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum.per_second": "shared loads",
}

#: How a profiler's units begin.
PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0}

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
    "minimal_traffic": "GB/s at least",
}


def rates(experiment: Experiment) -> Table:
    """GFLOP/s of every contestant, one row a product."""
    rows = sorted(experiment.of("kernel"), key=in_order)
    names, lines = pivot(rows, gflops)
    found = []
    for line in lines:
        first = line.first
        shown = of_problem(first.problem)
        for name in names:
            row = line.by.get(name)
            shown[name] = cell(gflops(row)) if row else Cell("")
        if CHOICE in names:
            own = line.by.get(CHOICE)
            shown["ratio"] = ratio_cell(own.number("ratio") if own else math.nan)
            if first.problem.symmetric:
                shown["whole / pymm"] = ratio_cell(_whole(line.by, own))
            shown["configuration"] = Cell(own.text("config").replace("-", " ") if own else "")
        found.append(shown)
    words = "GFLOP/s of the kernels alone."
    if CHOICE in names:
        words += " Ratio: the time of the fastest library that writes all of C / pymm's choice's."
    return Table(f"rates-{experiment.name}", f"{experiment.name}: {experiment.title}", found, words)


def _whole(by: Mapping[str, Row], own: Row | None) -> float:
    """Time of the library's whole product, of a symmetric C too, / ours."""
    times = [by[name].seconds for name in ("cuBLAS", "cuBLASLt", "NumPy") if name in by]
    return min(times) / own.seconds if times and own else math.nan


def in_order(row: Row) -> tuple[object, ...]:
    """Type by type; squares by their size, then rectangles of the same k or part of n."""
    p = row.problem
    kind = 0.0 if p.k == p.n else p.k / p.n if p.symmetric else p.k
    return (p.dtype, kind, p.n)


def beside_sequential(experiment: Experiment) -> list[Table]:
    """Speed-up over the sequential product and relative error, of an experiment that has them."""
    tables = []
    for name, title, words, column in COMPARED:
        rows = [row for row in sorted(experiment.of("kernel"), key=in_order) if row.text(column)]
        names, lines = pivot(rows, lambda row, column=column: row.number(column))
        found = [
            of_problem(line.first.problem)
            | {
                who: cell(line.by[who].number(column)) if who in line.by else Cell("")
                for who in names
                if who != "sequential"
            }
            for line in lines
        ]
        tables.append(
            Table(f"{name}-{experiment.name}", f"{experiment.name}: {title}", found, words)
        )
    return tables


def journeys(experiment: Experiment) -> Table:
    """Copies, kernel and the whole of each contestant, one row a product and way of transfer."""
    at = {
        (r.problem, r.text("transfer"), r.text("quantity"), *_who(r)[1:]): r.seconds
        for quantity in TIMES
        for r in experiment.of(quantity)
    }
    rows = []
    for row in sorted(experiment.of("kernel"), key=in_order):
        p = row.problem
        for way, words in TRANSFERS.items():
            copies = [at.get((p, way, part, "", "")) for part in ("to_device", "to_host")]
            if None in copies:
                continue
            rows.append(
                {
                    **of_problem(p),
                    "transfers": Cell(words),
                    "contestant": Cell(contestant(row)),
                    "to the device": span(copies[0]),
                    "kernel": span(row.seconds),
                    "to the host": span(copies[1]),
                    "whole": span(at.get((p, way, "total", *_who(row)[1:]), math.nan)),
                    "kernel's part": percent(row.seconds / (sum(copies) + row.seconds)),
                    "configuration": parameters_of(row),
                }
            )
    words = (
        "Copies and the whole by the host's clock, the whole in one go; the kernel's part of the "
        "three."
    )
    return Table(f"times-{experiment.name}", f"{experiment.name}: {experiment.title}", rows, words)


def _who(row: Row) -> tuple[str, str, str]:
    """What tells a contestant of a product from all others."""
    return row.text("name"), row.text("variant"), row.text("config")


def kernel_facts(experiment: Experiment) -> Table:
    """The table of the kernels: grid, block, registers, occupancy, and what a profiler saw."""
    lines: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in experiment.rows:
        if row.text("outcome") in ("ok", ""):
            lines.setdefault((row.problem, *_who(row)), {})[row.text("quantity")] = row
    seen = {name for by in lines.values() for name in by}
    others = sorted(name for name in seen if name.startswith("ncu:") and name not in PROFILED)
    heads = FACTS | PROFILED | {name: name.removeprefix("ncu:") for name in others}
    rows = []
    for by in lines.values():
        first = next(iter(by.values()))
        time = by.get("kernel")
        numbers = {head: _number(by.get(name)) for name, head in heads.items() if name in seen}
        rows.append(
            {
                **of_problem(first.problem),
                "kernel": Cell(first.text("name")),
                "variant": Cell(first.text("variant")),
                "time": span(time.seconds if time else math.nan),
                "GFLOP/s": cell(gflops(time) if time else math.nan),
                **numbers,
                "configuration": parameters_of(first),
            }
        )
    words = (
        "Registers of a thread, shared memory of a block in bytes; occupancy: the part of a "
        "multiprocessor's threads that its blocks fill, as the compiler's registers and shared "
        "memory allow it. GB/s at least: A, B and C once, over the time."
    )
    if seen & {*PROFILED, *others}:
        words += " The columns after that are Nsight Compute's, of one launch."
    return Table("facts-o2-kernels", f"{experiment.name}: {experiment.title}", rows, words)


def _number(row: Row | None) -> Cell:
    """A quantity as a field: a rate that a profiler tells with its unit, parts in percent."""
    if row is None:
        return Cell("")
    value, unit = row.number("value"), row.text("unit")
    if value != value:
        return Cell(row.text("value"))
    if row.text("quantity") == "occupancy":
        return percent(value)
    if row.text("quantity").startswith("ncu:"):
        bytes_a_second = re.fullmatch(r"([TGMK]?)byte/s(?:econd)?", unit)
        if bytes_a_second:
            return cell(value * PREFIXES[bytes_a_second[1]] / 1e9)
        return percent(value / 100) if unit == "%" else Cell(f"{significant(value)} {unit}", value)
    return cell(value)


def counts(experiment: Experiment) -> Table:
    """Operations and accesses of a thread, counted and by formula."""
    quantities = list(dict.fromkeys(row.text("quantity") for row in experiment.rows))
    lines: dict[tuple[object, ...], dict[str, Row]] = {}
    for row in experiment.rows:
        if row.text("outcome") in ("ok", "") and row.text("value"):
            lines.setdefault((row.problem, *_who(row)), {})[row.text("quantity")] = row
    rows = []
    for by in lines.values():
        first = next(iter(by.values()))
        numbers = {name.replace("_", " "): _number(by.get(name)) for name in quantities if name}
        rows.append(
            {
                "type": Cell(first.problem.dtype),
                "m x n x k": extents(first.problem),
                "kernel": Cell(first.text("name")),
                "configuration": parameters_of(first),
                **numbers,
            }
        )
    words = "Averages over all threads, counted in the simulator, beside the formula for a thread."
    return Table("counts-o2", f"{experiment.name}: {experiment.title}", rows, words)


def left_out(experiment: Experiment) -> Table:
    """What was not measured, and what failed, with the reason."""
    rows: Sequence[Row] = [row for row in experiment.rows if row.text("outcome") not in ("ok", "")]
    lines = [
        {
            **of_problem(row.problem),
            "contestant": Cell(contestant(row)),
            "outcome": Cell(outcome(row).replace("_", " ", 1)),
        }
        for row in rows
    ]
    return Table(f"left-{experiment.name}", f"{experiment.name}: not measured", lines)
