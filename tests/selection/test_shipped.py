"""What is shipped as tuned is what was measured: every record has a firm time, which agrees with
what the CSVs of its device say of the same configuration.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from pymm.core.problem import Problem
from pymm.selection.store import read
from pymm.tune.finals import MOST_SPREAD

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tuning_configs").glob("*.yaml"))

#: CSVs of a device that have products with the configuration that they were timed with.
RESULTS = ("ladder", "cpu", "classes", "populations", "tuning")

#: A record and the median of its rows differ by at most this part of the longer time.
APART = 0.2


def measured(folder):
    """Seconds of every firm row, by problem and configuration."""
    found = {}
    for path in sorted(folder.glob("*.csv")):
        if not path.stem.startswith(RESULTS):
            continue
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["outcome"] != "ok" or not row["config"]:
                    continue
                if float(row["spread"] or "inf") > MOST_SPREAD:
                    continue
                seconds = float(row["us"]) / 1e6 if "us" in row else float(row["seconds"])
                found.setdefault((slug_of(row), row["config"]), []).append(seconds)
    return found


def slug_of(row):
    """The problem of a row as records have it."""
    if "problem" in row:
        return row["problem"]
    op = row.get("op") or ("syrk" if "syrk" in row.get("class", "") else "gemm")
    extents = (int(row[axis]) for axis in "mnk")
    transposed = (letter == "T" for letter in row["layout"])
    batch = int(row.get("batch") or 1)
    return Problem(*extents, row["dtype"], *transposed, op=op, batch=batch).slug


def faults(record, seconds):
    """What is wrong with a record beside the times that were measured, in words."""
    if record.spread > MOST_SPREAD:
        return f"spread of {record.spread:.0%}"
    if not seconds:
        return "no row in the CSVs"
    other = statistics.median(seconds)
    if abs(record.seconds - other) > APART * max(record.seconds, other):
        return f"{record.seconds * 1e6:.6g} us, {other * 1e6:.6g} in the CSVs"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_records_are_firm_and_those_of_the_results(path):
    rows = measured(ROOT / "benchmarks" / "results" / path.stem)
    found = [
        (record, faults(record, rows.get((record.problem.slug, record.config.slug), ())))
        for record in read(path).records
    ]
    assert found, "a file without records"
    wrong = [f"{r.problem.slug} {r.config.slug}: {fault}" for r, fault in found if fault]
    assert not wrong, "\n".join(wrong)


def test_each_fault_is_found():
    record = read(ROOT / "tuning_configs" / "nvidia-h200.yaml").records[0]
    own = record.seconds
    assert faults(record, [own, own * 1.1]) == ""
    assert "no row" in faults(record, [])
    assert "in the CSVs" in faults(record, [own, own * 1.3, own * 1.3])
    assert "in the CSVs" in faults(replace(record, seconds=618e-6), [231e-6, 231e-6])
    assert "spread of 170%" in faults(replace(record, spread=1.7), [own])
