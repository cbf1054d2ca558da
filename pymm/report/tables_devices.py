"""Tables of products on several GPUs, larger than a GPU, and shared by processes."""

from __future__ import annotations

from collections.abc import Sequence

from pymm.core.dtypes import DTYPES
from pymm.report.content import Cell, Table, cell
from pymm.report.load import Row
from pymm.report.tables import extents, percent_cell, ratio_cell, time_cell

GIGA = 1e9


def blocked(found: Sequence[Row]) -> list[Table]:
    """Products on several GPUs, products larger than the memory, copies, and what was left out."""
    by_part: dict[str, list[Row]] = {}
    for row in found:
        part = row.text("part") if row.text("outcome") == "ok" else ""
        by_part.setdefault(part, []).append(row)
    return [
        _scaling([*by_part.get("single", ()), *by_part.get("scaling", ())]),
        _larger(by_part.get("outofcore", ())),
        _links(by_part.get("links", ())),
        _failed("several-gpus-failed", by_part.get("", ())),
    ]


def _latest(rows: Sequence[Row], *columns: str) -> list[Row]:
    """The last measurement of each product that these columns tell apart."""
    return list({(row.problem, *map(row.text, columns)): row for row in rows}.values())


def _product(row: Row) -> dict[str, Cell]:
    return {"type": Cell(row.text("dtype")), "m x n x k": extents(row.problem)}


def _scaling(found: Sequence[Row]) -> Table:
    products = [row for row in _latest(found, "name", "devices") if row.problem is not None]
    products.sort(key=lambda row: (list(DTYPES).index(row.problem.dtype), -row.problem.flops))
    rows = [
        {
            **_product(row),
            "GPUs": cell(row.number("devices")),
            "computed by": Cell(row.text("name")),
            "time": time_cell(row.seconds),
            "TFLOP/s": cell(row.number("gflops") / 1e3),
            "of the GPUs alone": percent_cell(row.number("ratio"), "{:.1f}%"),
        }
        for row in products
    ]
    note = (
        "Operands and result are on the GPUs, in blocks. The last column is the rate / (number of "
        "GPUs x the rate of pymm on one). Queued: products one behind another; waited: one "
        "product, until it is complete on every GPU."
    )
    return Table("several-gpus", "Products on several GPUs", rows, note)


def _larger(found: Sequence[Row]) -> Table:
    rows = [
        {
            **_product(row),
            "memory, run": Cell(row.text("name").removeprefix("pymm, ")),
            "time": time_cell(row.seconds),
            "TFLOP/s": cell(row.number("gflops") / 1e3),
            "of the rate in memory": percent_cell(row.number("ratio"), "{:.1f}%"),
            "GB to the GPU": cell(row.number("bytes_in") / GIGA),
            "GB to the host": cell(row.number("bytes_out") / GIGA),
            "moved / bound": cell(row.number("value"), "{:.2f}"),
        }
        for row in _latest(found, "name")
        if row.problem is not None
    ]
    note = (
        "All matrices are NumPy arrays, and the product may use so much of the GPU's memory. The "
        "first run of a process measures the link and prepares host memory. The bound is what any "
        "order of the operations must move with that memory."
    )
    return Table("larger", "Products larger than the memory", rows, note)


def _links(found: Sequence[Row]) -> Table:
    rows = [
        {
            "copy": Cell(row.text("name")),
            "GPUs": cell(row.number("devices")),
            "GB": cell(row.number("bytes_in") / GIGA),
            "rate": cell(row.number("value")),
            "unit": Cell(row.text("unit")),
        }
        for row in _latest(found, "name", "devices")
    ]
    return Table("links", "Copies", rows, "Rates of the links, measured alone.")


def _failed(name: str, found: Sequence[Row]) -> Table:
    rows = [
        {
            "what": Cell(" ".join(filter(None, map(row.text, ("part", "name", "engine"))))),
            "outcome": Cell(row.text("outcome")),
            "detail": Cell(row.text("detail")),
        }
        for row in found
    ]
    return Table(name, "Not measured, or wrong", rows)


def searches_by_devices(found: Sequence[Row]) -> Table:
    """Trials per second of the tuner on one GPU and on several."""
    rows = [
        {
            **_product(row),
            "GPUs": cell(row.number("devices")),
            "compilers": cell(row.number("compilers")),
            "trials": cell(row.number("trials")),
            "trials a second": cell(row.number("rate")),
            "of one GPU": cell(row.number("ratio"), "{:.2f}"),
            "GPUs busy": percent_cell(row.number("busy")),
        }
        for row in _latest(found, "devices")
        if row.problem is not None
    ]
    note = "The same search of one product, from an empty cache."
    return Table("tuning-gpus", "The tuner on several GPUs", rows, note)


def distributed(found: Sequence[Row]) -> list[Table]:
    """Products that processes share over MPI; what failed."""
    latest = _latest(found, "engine", "product", "processes", "mpi")
    rows = [
        {
            **_product(row),
            "processes": cell(row.number("processes")),
            "computed by": Cell(" ".join(filter(None, map(row.text, ("engine", "product"))))),
            "grid": Cell(row.text("grid")),
            "time": time_cell(row.seconds),
            "GFLOP/s": cell(row.number("gflops")),
            "speed-up": cell(row.number("speedup"), "{:.2f}"),
            "ScaLAPACK / this": ratio_cell(row.number("ratio")),
            "received / bound": cell(row.number("received") / _positive(row, "bound"), "{:.2f}"),
            "relative error": cell(row.number("error_inf"), "{:.1e}"),
        }
        for row in latest
        if row.text("outcome") == "ok" and row.problem is not None
    ]
    note = (
        "C + A B on block-cyclic matrices. Time: the median of several runs, each that of the "
        "slowest process; rate, speed-up and ratio are of it. The speed-up is against one process "
        "alone. Received: bytes of A, B and C that reach the process that receives most; the bound "
        "is what any distribution of the product must move. The error is relative to float64, in "
        "the infinity norm."
    )
    table = Table("mpi", "Products of several processes", rows, note)
    return [table, _failed("mpi-failed", [row for row in latest if row.text("outcome") != "ok"])]


def simulated(found: Sequence[Row]) -> Table:
    """Products of several processes as SimGrid ran their plans, which nobody measured."""
    products = _latest(found, "processes", "grid", "block", "panel", *_RATES)
    rows = [
        {
            **_product(row),
            "processes": cell(row.number("processes")),
            "grid": Cell(row.text("grid")),
            "without look-ahead": time_cell(row.number("blocking")),
            "with look-ahead": time_cell(row.number("simulated")),
            "efficiency": cell(row.number("efficiency"), "{:.3f}"),
            "measured": time_cell(row.number("measured")),
            "simulated / measured": cell(row.number("ratio"), "{:.3f}"),
            "panel": cell(row.number("panel")),
            "GFLOP/s of a process": cell(row.number("flops") / GIGA),
            "received, GB/s": cell(row.number("bandwidth") / GIGA),
            "latency, us": cell(row.number("latency") * 1e6),
            "memory, GB/s": cell(row.number("memory") / GIGA),
            "overlap": percent_cell(row.number("overlap")),
            "SimGrid": Cell(row.text("simgrid")),
        }
        for row in products
    ]
    note = (
        "Simulated with SimGrid, not measured: the plan of each product replayed on processes of "
        "the rates in the last columns. Efficiency: the time in which the busiest process "
        "multiplies / the simulated time with look-ahead. Overlap: the part of a transfer that a "
        "product hides. Measured, where a real run was compared: its median."
    )
    return Table("simulated", "Simulated with SimGrid, not measured", rows, note)


#: The rates of a process that a simulation was made with.
_RATES = ("flops", "bandwidth", "latency", "memory", "overlap")


def _positive(row: Row, column: str) -> float:
    """A number that can divide: NaN for 0."""
    return row.number(column) or float("nan")
