"""Tables of the experiments (`python -m pymm.bench --suite`)."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from pymm.console import significant
from pymm.measure.libraries import GENERAL
from pymm.report.content import Cell, Table, cell
from pymm.report.load import Row
from pymm.report.stats import (
    CHOICE,
    STALE,
    TIMES,
    TRANSFERS,
    Experiment,
    display_name,
    gflops,
    implementation,
    pivot,
)
from pymm.report.tables import (
    of_problem,
    outcome,
    parameters_of,
    percent_cell,
    ratio_cell,
    time_cell,
)

#: Comparisons with the sequential product: name, title and note of a table, and its column.
COMPARED = (
    (
        "gains",
        "speed-up over sequential",
        "Time of the sequential product on one thread of the host / this time, for the products "
        "whose sequential time was measured (large ones take minutes).",
        "speedup",
    ),
    (
        "errors",
        "relative error",
        "Infinity norm of C - S / that of S, where S is the sequential product; 0: identical bit "
        "for bit.",
        "error_inf",
    ),
)

#: Metrics of Nsight Compute, with their columns.
PROFILED = {
    "ncu:smsp__cycles_active.avg.pct_of_peak_sustained_elapsed": "SM efficiency",
    "ncu:sm__throughput.avg.pct_of_peak_sustained_elapsed": "SM throughput",
    "ncu:sm__warps_active.avg.pct_of_peak_sustained_active": "achieved occupancy",
    "ncu:dram__throughput.avg.pct_of_peak_sustained_elapsed": "DRAM throughput",
    "ncu:dram__bytes_read.sum.per_second": "DRAM read, GB/s",
    "ncu:dram__bytes_write.sum.per_second": "DRAM written, GB/s",
    "ncu:lts__t_sector_hit_rate.pct": "L2 hits",
    "ncu:l1tex__t_bytes_pipe_lsu_mem_global_op_ld.sum.per_second": "global loads, GB/s",
    "ncu:l1tex__t_bytes_pipe_lsu_mem_global_op_st.sum.per_second": "global stores, GB/s",
    "ncu:l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum.per_second": "shared loads",
}

#: Prefixes of the profiler's units.
PREFIXES = {"T": 1e12, "G": 1e9, "M": 1e6, "K": 1e3, "": 1.0}

#: Quantities of a kernel, with their columns.
FACTS = {
    "grid": "grid",
    "block": "block",
    "threads": "threads",
    "registers": "registers",
    "shared": "shared",
    "blocks_per_sm": "blocks / SM",
    "occupancy": "occupancy",
    "limited_by": "limited by",
    "minimal_traffic": "minimal GB/s",
}


def rates(experiment: Experiment) -> Table:
    """GFLOP/s of every kernel and library, one row per product."""
    rows = sorted(experiment.of("kernel"), key=in_order)
    names, lines = pivot(rows, gflops)
    chosen = [name for name in (CHOICE, CHOICE + STALE) if name in names]
    found = []
    for line in lines:
        first = line.first
        shown = of_problem(first.problem)
        for name in names:
            row = line.by.get(name)
            shown[name] = cell(gflops(row)) if row else Cell("")
        if chosen:
            own = next((line.by[name] for name in chosen if name in line.by), None)
            shown["ratio"] = _ratio(own)
            if first.problem.symmetric:
                shown["gemm / pymm"] = ratio_cell(_gemm_ratio(line.by, own))
            shown["configuration"] = Cell(own.text("config").replace("-", " ") if own else "")
        found.append(shown)
    note = "GFLOP/s of the kernels alone."
    if chosen:
        note += " Ratio: time of the fastest library that writes all of C / time of pymm's choice."
    return Table(f"rates-{experiment.name}", f"{experiment.name}: {experiment.title}", found, note)


def _ratio(row: Row | None) -> Cell:
    """The ratio of a row; that of a stale one says so and has no colour."""
    ratio = row.number("ratio") if row else math.nan
    if row is not None and row.stale and ratio > 0:
        return Cell(f"{ratio:.2f} stale", ratio)
    return ratio_cell(ratio)


def _gemm_ratio(by: Mapping[str, Row], own: Row | None) -> float:
    """The time of the library's gemm / pymm's."""
    times = [by[name].seconds for name in map(display_name, GENERAL) if name in by]
    return min(times) / own.seconds if times and own else math.nan


def in_order(row: Row) -> tuple[object, ...]:
    """The order of rows: by type, squares by size, then rectangles by k or k / n."""
    p = row.problem
    kind = 0.0 if p.k == p.n else p.k / p.n if p.symmetric else p.k
    return (p.dtype, kind, p.n)


def against_sequential(experiment: Experiment) -> list[Table]:
    """Speed-up over the sequential product and relative error, if the experiment has them."""
    tables = []
    for name, title, note, column in COMPARED:
        rows = [row for row in sorted(experiment.of("kernel"), key=in_order) if row.text(column)]
        names, lines = pivot(rows, lambda row, column=column: row.number(column))
        found = [
            of_problem(line.first.problem)
            | {
                other: cell(line.by[other].number(column)) if other in line.by else Cell("")
                for other in names
                if other != "sequential"
            }
            for line in lines
        ]
        tables.append(
            Table(f"{name}-{experiment.name}", f"{experiment.name}: {title}", found, note)
        )
    return tables


def transfers(experiment: Experiment) -> Table:
    """Total times with transfers, and the copies, one row per product and way of transfer."""
    rows = []
    for dtype in experiment.dtypes:
        for way, described in TRANSFERS.items():
            found = [
                row
                for quantity in TIMES
                for row in sorted(experiment.of(quantity, dtype, way), key=in_order)
            ]
            names, lines = pivot(found, lambda row: row.seconds, _part)
            rows += [
                of_problem(line.first.problem)
                | {"transfers": Cell(described)}
                | {name: time_cell(line.by[name].seconds) for name in names if name in line.by}
                for line in lines
            ]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    whole = [{name: row.get(name, Cell("")) for name in columns} for row in rows]
    note = "The whole time of a product whose matrices are on the host, and that of the copies."
    return Table(f"transfers-{experiment.name}", f"{experiment.name}: with transfers", whole, note)


def _part(row: Row) -> str:
    """The column of a time: the implementation of a total, the direction of a copy."""
    quantity = row.text("quantity")
    return implementation(row) if quantity == "total" else quantity.replace("_", " the ")


def transfer_times(experiment: Experiment) -> Table:
    """Times of copies, kernel and total for each kernel and library, one row per product and
    transfer.
    """
    totals = {(r.problem, r.text("transfer"), *_who(r)): r.seconds for r in experiment.of("total")}
    copied = {
        (r.problem, r.text("transfer"), part): r.seconds
        for part in ("to_device", "to_host")
        for r in experiment.of(part)
    }
    rows = []
    for row in sorted(experiment.of("kernel"), key=in_order):
        p = row.problem
        for way, described in TRANSFERS.items():
            copies = [copied.get((p, way, part)) for part in ("to_device", "to_host")]
            if None in copies:
                continue
            rows.append(
                {
                    **of_problem(p),
                    "transfers": Cell(described),
                    "implementation": Cell(implementation(row)),
                    "to the device": time_cell(copies[0]),
                    "kernel": time_cell(row.seconds),
                    "to the host": time_cell(copies[1]),
                    "total": time_cell(totals.get((p, way, *_who(row)), math.nan)),
                    "kernel's share": percent_cell(row.seconds / (sum(copies) + row.seconds)),
                    "configuration": parameters_of(row),
                }
            )
    note = (
        "Copies and the total by the host's clock, the total measured as one. The kernel's share "
        "is of the kernel and the copies."
    )
    return Table(f"times-{experiment.name}", f"{experiment.name}: {experiment.title}", rows, note)


def _who(row: Row) -> tuple[str, str, str]:
    """What identifies a kernel or library on a product."""
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
                "time": time_cell(time.seconds if time else math.nan),
                "GFLOP/s": cell(gflops(time) if time else math.nan),
                **numbers,
                "configuration": parameters_of(first),
            }
        )
    note = (
        "Registers per thread; shared memory per block in bytes. Occupancy: resident threads / "
        "maximal threads of a multiprocessor, as registers and shared memory allow. Minimal GB/s: "
        "A and B read once and C written once, / the time."
    )
    if seen & {*PROFILED, *others}:
        note += " The columns after that are from Nsight Compute, of one launch."
    return Table("facts-o2-kernels", f"{experiment.name}: {experiment.title}", rows, note)


def _number(row: Row | None) -> Cell:
    """A quantity as a cell: rates of the profiler in GB/s, fractions in percent."""
    if row is None:
        return Cell("")
    value, unit = row.number("value"), row.text("unit")
    if value != value:
        return Cell(row.text("value"))
    if row.text("quantity") == "occupancy":
        return percent_cell(value)
    if row.text("quantity").startswith("ncu:"):
        bytes_a_second = re.fullmatch(r"([TGMK]?)byte/s(?:econd)?", unit)
        if bytes_a_second:
            return cell(value * PREFIXES[bytes_a_second[1]] / 1e9)
        return (
            percent_cell(value / 100)
            if unit == "%"
            else Cell(f"{significant(value)} {unit}", value)
        )
    return cell(value)


def counts(experiment: Experiment) -> Table:
    """Operations and memory accesses per thread, counted and by formula."""
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
                **of_problem(first.problem),
                "kernel": Cell(first.text("name")),
                "configuration": parameters_of(first),
                **numbers,
            }
        )
    note = "Averages over all threads, counted in the simulator, and the formula for one thread."
    return Table("counts-o2", f"{experiment.name}: {experiment.title}", rows, note)


def checks(experiment: Experiment) -> Table:
    """Which kernels are right with the guards that they have."""
    rows = [
        {
            **of_problem(row.problem),
            "kernel": Cell(implementation(row)),
            "result": Cell(row.text("value") or outcome(row)),
            "first wrong element": Cell(row.text("detail")),
        }
        for row in sorted(experiment.of("check"), key=in_order)
    ]
    note = (
        "Unguarded: no index is checked; writes guarded: those of C alone. Both are to fail where "
        "the extents are not multiples of the block."
    )
    return Table("checks-o2-guards", f"{experiment.name}: {experiment.title}", rows, note)


def left_out(experiment: Experiment) -> Table:
    """What was left out and what failed, with the reason."""
    rows: Sequence[Row] = [row for row in experiment.rows if row.text("outcome") not in ("ok", "")]
    lines = [
        {
            **of_problem(row.problem),
            "implementation": Cell(implementation(row)),
            "outcome": Cell(outcome(row).replace("_", " ", 1)),
        }
        for row in rows
    ]
    return Table(f"left-{experiment.name}", f"{experiment.name}: not measured", lines)
