"""Tables of what is tuned: by type for the first screen, and every stored configuration."""

from __future__ import annotations

from collections.abc import Sequence

from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.report.content import Cell, Table, cell, rate
from pymm.report.load import Results
from pymm.report.searches import Search
from pymm.report.stats import (
    OWN,
    Comparison,
    HighestRate,
    current,
    display_name,
    kind_of,
    mean,
    peaks,
    tuned_searches,
)
from pymm.report.tables import of_problem, percent_cell, ratio_cell, time_cell
from pymm.selection.records import Record


def by_type(
    results: Results, rates: Sequence[HighestRate], comparisons: Sequence[Comparison]
) -> Table:
    """Of each type and operation: how many products are tuned, the gain over the defaults, the
    ratio to the baseline, and the highest rate as a part of the peak.
    """
    highest = {e.dtype: e for e in rates}
    searches = tuned_searches(results)
    tuned: dict[Problem, bool] = {}  # whether all that is stored for it is stale
    for record in results.records:
        stale = bool(results.today.record_stale_because(record))
        tuned[record.problem] = stale and tuned.get(record.problem, True)
    right = [c for c in current(comparisons) if c.ratio > 0]
    kinds = map(kind_of, (*tuned, *(c.problem for c in comparisons)))
    rows = []
    for kind in sorted(dict.fromkeys([*highest, *kinds]), key=_order):
        gains = [s.gain for s in searches if kind_of(s.problem) == kind and s.gain > 0]
        ratios = [c.ratio for c in right if kind_of(c.problem) == kind]
        slower = sum(ratio < 1 for ratio in ratios)
        stored = [stale for problem, stale in tuned.items() if kind_of(problem) == kind]
        rows.append(
            {
                "type": Cell(kind),
                "tuned": _count(len(stored)),
                "stale": _count(sum(stored)),
                "gain over default": ratio_cell(mean(gains)),
                "searches": _count(len(gains)),
                "ratio": ratio_cell(mean(ratios)),
                "products": _count(len(ratios)),
                "slower in": _count(slower) if ratios else Cell(""),
                **_highest(highest.get(kind)),
            }
        )
    types = [f"{e.dtype}: {DTYPES[e.dtype].words}" for e in rates if e.dtype in DTYPES]
    note = (
        "Tuned: products with a stored configuration, and how many of these are stale. Gain: "
        "geometric mean of the default's time / the winner's over that many searches. Ratio: "
        "geometric mean of the baseline's time / pymm's over that many products, and in how many "
        "of them pymm is slower. Highest rates are over all products measured. Peak: all units of "
        f"the device at its highest clock. Types: {'; '.join(types)}."
    )
    return Table("types", "What is tuned, and how fast it is, by type", rows, note)


def _order(kind: str) -> tuple[object, ...]:
    dtype, _, op = kind.partition(" ")
    return (list(DTYPES).index(dtype) if dtype in DTYPES else len(DTYPES), op)


def _count(number: int) -> Cell:
    return Cell(str(number), number)


def _highest(found: HighestRate | None) -> dict[str, Cell]:
    names = ("highest rate", "of peak", "peak", "baseline's highest")
    if found is None:
        return dict.fromkeys(names, Cell(""))
    baseline = Cell("")
    if found.baseline:
        library = display_name(found.baseline.library)
        baseline = Cell(f"{rate(found.baseline.gflops)} ({library})", found.baseline.gflops)
    values = (
        Cell(rate(found.own.gflops), found.own.gflops),
        percent_cell(found.own.gflops / found.peak),
        Cell(rate(found.peak), found.peak),
        baseline,
    )
    return dict(zip(names, values, strict=True))


def tuned_here(results: Results) -> Table:
    """What this machine's user has tuned."""
    rows = _records(results, results.own_records)
    for row in rows:  # all of today and of one kernel, as a rule: room for what was found
        del row["kernel"], row["date"], row["of peak"]
    note = (
        "Ratio: the fastest library's time / pymm's, gain: the default's time / pymm's; medians. "
        "What the search found: the gain in pairs of times, with its 95 % interval."
    )
    return Table("tuned-here", "What you tuned", rows, note)


def records(results: Results) -> Table:
    """Every stored configuration."""
    rows = _records(results, results.records)
    for row in rows:
        del row["tried"], row["what the search found"]
    note = (
        "The configurations stored for this device. Default: the time of the kernel's default in "
        "the search that found the configuration, where that is recorded; ratio: the fastest "
        "library's time there / the winner's."
    )
    return Table("records", "Every tuned product", rows, note)


def _records(results: Results, stored: Sequence[Record]) -> list[dict[str, Cell]]:
    """A line for each record, with the gain and the ratio of the search that found it."""
    limits = peaks(results)
    found: dict[tuple[object, str, str], Search] = {}
    for search in tuned_searches(results):
        key = (search.problem, search.kernel, search.best.text("config"))
        found[key] = search
    return [
        _record(
            record,
            found.get((record.problem, record.config.kernel_name, record.config.slug)),
            limits.get(record.problem.dtype, 0.0),
            results.today.record_stale_because(record),
        )
        for record in stored
    ]


def _record(record: Record, search: Search | None, peak: float, stale: str) -> dict[str, Cell]:
    gflops = record.problem.flops / record.seconds / 1e9
    nan = float("nan")
    return {
        **of_problem(record.problem),
        "kernel": Cell(record.config.kernel_name),
        OWN: time_cell(record.seconds),
        "GFLOP/s": cell(gflops),
        "of peak": percent_cell(gflops / peak if peak else nan),
        "default": time_cell(search.default.seconds if search and search.default else nan),
        "gain": ratio_cell(search.gain if search else nan),
        "tried": _count(len(search.tried)) if search else Cell(""),
        "what the search found": Cell(search.words if search else ""),
        "library": time_cell(search.baseline.seconds if search and search.baseline else nan),
        "ratio": ratio_cell(search.ratio if search else nan),
        "state": Cell(f"stale: {stale}" if stale else "today's"),
        "spread": percent_cell(record.spread, "{:.1f}%"),
        "date": Cell(record.date),
        "configuration": Cell(" ".join(record.config.slug.split("-")[1:])),
    }
