"""Tables of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pymm.core.problem import Problem
from pymm.kernels import KERNELS
from pymm.report.content import Cell, Table, cell, duration, rate
from pymm.report.facts import OWN, Duel, Extreme, Timed, mean, written
from pymm.report.grids import extents, kind_of, ratio_cell
from pymm.report.reading import Row
from pymm.report.searches import Search
from pymm.selection.records import Record

#: Types in words.
TYPES = {
    "f32": "numbers of 32 bits",
    "f64": "of 64 bits",
    "f16": "of 16 bits, summed in 32",
    "bf16": "of 16 bits with the range of f32, summed in 32",
    "tf32": "f32 rounded to 11 bits",
    "tf32x3": "f32 in three products of tf32, compared with f32",
    "f16x3": "f32 in three products of f16, block-scaled, compared with f32",
    "f16_f32": "f16 with a result in f32",
    "bf16_f32": "bf16 with a result in f32",
}


def of_problem(problem: Problem) -> dict[str, Cell]:
    """The columns that name a product."""
    named = {"type": Cell(kind_of(problem)), "layout": Cell(problem.layout)}
    return named | {"m x n x k": extents(problem)}


def percent(part: float, form: str = "{:.0f}%") -> Cell:
    """A part of 1 as a field."""
    return cell(100 * part, form)


def span(seconds: float) -> Cell:
    """A time as a field."""
    return Cell(duration(seconds), None if seconds != seconds else seconds)


def parameters_of(row: Row) -> Cell:
    """A configuration without its kernel's name, which stands beside it: "MB128 NB256"."""
    return Cell(" ".join(row.text("config").split("-")[1:]))


def extremes(found: Sequence[Extreme], duels: Sequence[Duel]) -> Table:
    """The highest rate of each type beside the limit and the libraries'."""
    rows = []
    for e in found:
        ratios = [d.ratio for d in duels if kind_of(d.problem) == e.dtype and d.ratio > 0]
        rival = Cell("")
        if e.rival:
            rival = Cell(f"{rate(e.rival.gflops)} ({written(e.rival.who)})", e.rival.gflops)
        rows.append(
            {
                "type": Cell(e.dtype),
                "highest rate": Cell(rate(e.own.gflops), e.own.gflops),
                "of the limit": percent(e.own.gflops / e.peak),
                "limit": Cell(rate(e.peak), e.peak),
                "library's highest": rival,
                "ratio": ratio_cell(mean(ratios)),
                "products": Cell(str(len(ratios)), len(ratios)),
                "highest at": Cell(e.own.problem.slug),
            }
        )
    told = [f"{e.dtype} {TYPES[e.dtype]}" for e in found if e.dtype in TYPES]
    words = (
        "Ratio: geometric mean of the library's time / pymm's over so many products; highest rates "
        "are those of any product measured. The limit is what all units of the device can do at "
        f"its highest clock. Types: {'; '.join(told)}."
    )
    return Table("extremes", "Highest rates by type", rows, words)


def products(duels: Sequence[Duel]) -> Table:
    """Every product with times, configuration and the reason for it."""
    names = ("cublas", "cublaslt", "numpy", "triton")
    libraries = [name for name in names if any(d.row.text(f"{name}_us") for d in duels)]
    rows = []
    for d in duels:
        row = d.row
        times = {written(name): cell(row.number(f"{name}_us")) for name in libraries}
        rows.append(
            {
                **of_problem(d.problem),
                "class": Cell(d.name),
                OWN: cell(d.seconds * 1e6),
                **times,
                "ratio": ratio_cell(d.ratio),
                "GFLOP/s": cell(row.number("gflops")),
                "of limit": percent(row.number("peak")),
                "spread": percent(row.number("spread"), "{:.1f}%"),
                "kernel": Cell(row.text("kernel")),
                "configuration": parameters_of(row),
                "why": Cell(row.text("reason")),
                "outcome": Cell(outcome(row)),
            }
        )
    words = "Times are medians in microseconds, spread is interquartile range / median."
    return Table("products", "Every product", rows, words)


def outcome(row: Row) -> str:
    """How a measurement ended, with the reason if it failed."""
    detail = row.text("detail")
    return row.text("outcome") + (f": {detail}" if detail and row.text("outcome") != "ok" else "")


def kernels(everything: Sequence[Timed]) -> Table:
    """Every kernel and library of `python -m pymm.bench` on every product."""
    titles = {kernel.label: kernel.title for kernel in KERNELS}
    rows = [
        {
            **of_problem(t.problem),
            "kernel": Cell(t.rung if t.who == OWN else written(t.who)),
            "variant": Cell(t.variant),
            "time": span(t.seconds),
            "GFLOP/s": cell(t.gflops),
            "of limit": percent(t.row.number("peak"), "{:.1f}%"),
            "ratio": ratio_cell(t.row.number("ratio")),
            "spread": percent(t.spread, "{:.1f}%"),
            "registers": cell(t.row.number("registers")),
            "shared": cell(t.row.number("shared")),
            "configuration": parameters_of(t.row),
            "what it adds": Cell(titles.get(t.rung, "")),
        }
        for t in everything
    ]
    words = "Ratio: time of the fastest library in the same run / this time. Shared: bytes a block."
    return Table("kernels", "Every kernel", rows, words)


def gains(found: Sequence[Search]) -> Table:
    """Every search: how long, what it gained, what won."""
    rows = []
    for search in found:
        best, first = search.best, search.final[0] if search.final else None
        if best is None:
            continue
        known = search.gain == search.gain
        length = search.progress[-1][1] if search.progress else math.nan
        rows.append(
            {
                **of_problem(search.problem),
                "kernel": Cell(search.kernel),
                "trials": Cell(str(len(search.tried)), len(search.tried)),
                "seconds": cell(length, "{:.0f}"),
                "default": span(first.seconds if known else math.nan),
                "best": span(best.seconds),
                "gain": ratio_cell(search.gain),
                "configuration": parameters_of(best),
                "file": Cell(search.file),
            }
        )
    words = (
        "Gain: default's time / winner's, both measured in turn at the search's end; empty where "
        "the default was not among the last."
    )
    return Table("gains", "Every search", rows, words)


def unseen(found: Sequence[Row]) -> Table:
    """Shapes that nothing was tuned for: what is chosen beside what a search of their own finds."""
    rows = [
        {
            **of_problem(row.problem),
            "chosen": cell(row.number("chosen_us")),
            "default": cell(row.number("default_us")),
            "found by a search": cell(row.number("found_us")),
            "chosen / fastest": ratio_cell(row.number("of_fastest")),
            "default / chosen": ratio_cell(row.number("of_default")),
            "configuration": Cell(row.text("chosen").replace("-", " ")),
            "why": Cell(row.text("reason")),
        }
        for row in found
    ]
    words = (
        "Times in microseconds. Each random shape got a search of its own, whose result was thrown "
        "away; then the three were measured in turn. Ratios of rates."
    )
    return Table("unseen", "Shapes never tuned", rows, words)


def calls(found: Sequence[Row]) -> Table:
    """What a call costs the host; of what was measured again the last."""
    latest = {(row.problem, row.text("arrays"), row.text("call")): row for row in found}
    several = len({problem for problem, _, _ in latest}) > 1
    rows = [
        {
            **(of_problem(problem) if several else {}),
            "arrays of": Cell(arrays),
            "call": Cell(call),
            "us": cell(row.number("us")),
            "lower quartile": cell(row.number("quartile_1")),
            "upper quartile": cell(row.number("quartile_3")),
        }
        for (problem, arrays, call), row in latest.items()
    ]
    words = "Microseconds of the host until a call returns, medians; the device is not waited for."
    return Table("calls", "Calls", rows, words)


def records(found: Sequence[Record]) -> Table:
    """The tuned configurations as they are stored."""
    rows = [
        {
            **of_problem(record.problem),
            "kernel": Cell(record.config.kernel_name),
            "time": span(record.seconds),
            "GFLOP/s": cell(record.problem.flops / record.seconds / 1e9),
            "spread": percent(record.spread, "{:.1f}%"),
            "date": Cell(record.date),
            "configuration": Cell(" ".join(record.config.slug.split("-")[1:])),
        }
        for record in found
    ]
    words = "What `pymm.matmul` finds for this device: the file of tuning_configs/."
    return Table("records", "Tuned configurations", rows, words)
