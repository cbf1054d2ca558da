"""No row is lost: every row of every CSV file reaches a table that it belongs to."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import measured
import pytest
from report_fixtures import folder, without_plots  # noqa: F401

from pymm.core.problem import Problem
from pymm.measure import results
from pymm.report import cli, load, stats, tables_tuned
from pymm.report.chapters import report
from pymm.selection import store

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"

#: The column of each kind whose number a line shows, "seconds" or "value" of the others.
SHOWN = {
    "classes": "us",
    "unseen": "chosen_us",
    "repeated": "us",
    "beside_numpy": "us",
    "simulated": "simulated",
    "tune_devices": "rate",
}


#: Quantities of suites.csv whose values are words.
WORDS = ("grid", "check")


def same(value):
    """A number as the tests compare it: with nine digits, so that 1e6 * 1e-6 is 1."""
    return f"{value:.9g}"


def shown(found):
    """The values of all cells in the tables of a report."""
    tables = [table for chapter in report(found, False).chapters for table in chapter.tables]
    cells = [cell for table in tables for row in table.rows for cell in row.values()]
    return {same(cell.value) for cell in cells if cell.value is not None}


def unlike(rows, column):
    """The rows, each with a number of its own in a column."""
    return [row | {column: 1e-3 * (1 + place / 7)} for place, row in enumerate(rows)]


MAKERS = {
    "classes.csv": (results.CLASSES.columns, measured.class_rows, "us"),
    "ladder.csv": (results.KERNELS.columns, measured.ladder, "seconds"),
    "unseen.csv": (measured.UNSEEN, measured.unseen, "chosen_us"),
    "repeated.csv": (results.REPEATED.columns, measured.repeated, "us"),
    "calls.csv": (measured.CALLS, measured.calls, "us"),
    "beside-numpy.csv": (measured.BESIDE_NUMPY, measured.beside_numpy, "us"),
    "tune-devices.csv": (measured.TUNE_DEVICES, measured.tune_devices, "rate"),
    "simulated.csv": (results.SIMULATED.columns, measured.simulated, "simulated"),
    "distributed.csv": (results.DISTRIBUTED.columns, measured.distributed, "seconds"),
    "suites.csv": (results.EXPERIMENTS.columns, lambda: measured.suites(sparse=16), None),
}


@pytest.mark.parametrize("name", MAKERS)
def test_every_row_has_a_line(folder, without_plots, name):
    columns, maker, column = MAKERS[name]
    rows = maker()
    if column is None:  # each row has its time, or its count
        rows = [
            row | ({"seconds": n} | {"gflops": n} if row.get("seconds") else {"value": n})
            for n, row in ((1e-3 * (1 + place / 7), row) for place, row in enumerate(rows))
            if row["quantity"] not in WORDS
        ]
        wanted = [row.get("seconds") or row["value"] for row in rows]
    else:
        rows = unlike(rows, column)
        wanted = [row[column] for row in rows if row.get("outcome") in ("ok", None)]
    measured.write(folder / name, columns, rows)
    values = shown(load.read_device(folder))
    lost = [value for value in wanted if not {same(value), same(100 * value)} & values]
    assert wanted and lost == []


def test_every_check_has_a_line(folder, without_plots):
    rows = [row for row in measured.suites() if row["quantity"] == "check"]
    rows = [row | {"value": f"TEST {place}"} for place, row in enumerate(rows)]
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    made = report(load.read_device(folder), False).chapters
    cells = {c.text for ch in made for t in ch.tables for row in t.rows for c in row.values()}
    assert rows and {row["value"] for row in rows} <= cells


def test_what_failed_has_a_line(folder, without_plots):
    """Of every file whose rows have an outcome, the reason is in some table."""
    files = {
        "classes.csv": (results.CLASSES.columns, measured.class_rows),
        "ladder.csv": (results.KERNELS.columns, measured.ladder),
        "suites.csv": (results.EXPERIMENTS.columns, lambda: measured.suites(sparse=16)),
        "blocked.csv": (results.BLOCKED.columns, measured.blocked),
        "distributed.csv": (results.DISTRIBUTED.columns, measured.distributed),
    }
    for name, (columns, maker) in files.items():
        rows = maker()
        failed = {"outcome": "crashed", "detail": f"why {name}", "seconds": "", "us": ""}
        measured.write(folder / name, columns, [rows[0] | failed, *rows[1:]])
    made = report(load.read_device(folder), False).chapters
    cells = [c.text for ch in made for t in ch.tables for row in t.rows for c in row.values()]
    for name in files:
        assert any(f"why {name}" in text for text in cells), name


def test_every_search_has_a_line(folder, without_plots):
    rows = measured.trials()
    problems = [Problem(n, n, 64).slug for n in range(64, 64 * 25, 64)]
    nothing = [rows[0] | {"problem": "f64-NN-8x8x8", "outcome": "wrong", "seconds": ""}]
    every = [row | {"problem": problem} for problem in problems for row in rows] + nothing
    measured.write(folder / "tuning.csv", results.TRIALS.columns, every)
    made = {c.name: c for c in report(load.read_device(folder), False).chapters}
    (table,) = [t for t in made["tuning"].tables if t.name == "gains"]
    assert len(table.rows) == len(problems) + 1
    assert sum(row["trials"].value for row in table.rows) == 41 * len(problems) + 1


#: Of each device one process reads the measurements once, which takes up to a minute.
COMMITTED = pytest.mark.parametrize(
    "device",
    [
        pytest.param(name, marks=pytest.mark.xdist_group(f"report-{name}"))
        for name in sorted({p.name for f in (RESULTS, ROOT / "reports") for p in f.iterdir()})
    ],
)


@lru_cache(maxsize=1)
def committed(device):
    """The measurements of a device, read in the folder where its report is made."""
    return load.read_device(RESULTS.relative_to(ROOT) / device, Path(str(store.shipped())))


@COMMITTED
def test_reports_say_what_the_measurements_say(device, monkeypatch):
    """`python -m pymm.report` would change nothing but drawings."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(cli, "read_device", lambda folder, records: committed(folder.name))
    assert cli.main([device, "--check"]) == 0


@COMMITTED
def test_every_row_that_was_measured_has_a_line(device, monkeypatch):
    """Of the committed measurements: of each product that was measured again, the last row."""
    monkeypatch.chdir(ROOT)
    found = committed(device)
    values, count = shown(found), 0
    latest = {"suites": stats.suite_rows, "bench": stats.bench_rows, "classes": stats.class_rows}
    key = ("engine", "product", "processes", "mpi", "dtype", "m", "n", "k")
    for kind, rows in found.rows.items():
        if kind in ("trials", "blocked", "calls"):
            continue  # each has a test of its own
        if kind in latest:
            rows = latest[kind](found)
        elif kind == "distributed":
            rows = stats.latest(rows, key)
        elif kind == "beside_numpy":
            rows = stats.latest(rows, ("process", "call", "dtype", "m", "n", "k"))
        for row in rows:
            column = SHOWN.get(kind, "seconds" if row.text("seconds") else "value")
            value = row.number(column)
            another_test = row.text("quantity").startswith("ncu:")
            if value != value or row.text("outcome") not in ("", "ok") or another_test:
                continue
            if kind == "bench" and row.text("name") == "sequential":
                continue  # the ladder's, which no report shows
            right = {value, 100 * value, 1e6 * value, row.number("gflops")}
            if row.problem is not None and value > 0:
                right.add(row.problem.flops / value / 1e9)
            count += 1
            assert set(map(same, right)) & values, (kind, row.cells)
    assert count > 20


def test_every_stored_configuration_has_a_line():
    found = load.read_device(RESULTS / "amd-epyc-2-cores", ROOT / "tuning_configs")
    assert len(tables_tuned.records(found).rows) == len(found.records) > 0
