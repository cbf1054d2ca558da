"""What is shipped as tuned is what was measured: every record is a firm time, and agrees with a row
of its device's CSVs about the same configuration of the same text, if there is one.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from pymm.core.problem import Problem
from pymm.selection.store import read
from pymm.tune.finals import MOST_SPREAD

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "tuning_configs").glob("*.yaml"))

#: CSVs that later runs wrote, with each product's configuration and time.
RESULTS = ("ladder.csv", "cpu.csv", "classes.csv")

#: A record and such a row differ by at most this part of the longer time. Where several rows are
#: firm and differ from each other (two cores, another day) one of them is enough.
APART = 0.2


def rows(folder):
    """Seconds of every row whose time is firm, by problem, configuration and text."""
    found = {}
    for path in filter(Path.exists, map(folder.joinpath, RESULTS)):
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                if row["outcome"] != "ok" or not row["config"]:
                    continue
                if float(row["spread"]) > MOST_SPREAD:
                    continue
                seconds = float(row["us"]) / 1e6 if "us" in row else float(row["seconds"])
                op = row.get("op") or ("syrk" if "syrk" in row.get("class", "") else "gemm")
                problem = Problem(
                    *(int(row[axis]) for axis in "mnk"),
                    row["dtype"],
                    row["layout"][0] == "T",
                    row["layout"][1] == "T",
                    op=op,
                )
                found.setdefault((problem, row["config"], row["source"]), []).append(seconds)
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_shipped_records_are_firm_and_those_of_the_results(path):
    table, measured = read(path), rows(ROOT / "benchmarks" / "results" / path.stem)
    wrong, judged = [], 0
    for record in table.records:
        name = f"{record.problem.slug} {record.config.slug}: {record.seconds * 1e6:.6g} us"
        if record.spread > MOST_SPREAD:
            wrong.append(f"{name} with a spread of {record.spread:.0%}")
        others = measured.get((record.problem, record.config.slug, record.digest), [])
        judged += bool(others)
        own = record.seconds
        if others and all(abs(own - s) > APART * max(own, s) for s in others):
            wrong.append(f"{name}, {', '.join(f'{s * 1e6:.6g}' for s in others)} in its CSVs")
    assert not wrong, "\n".join(wrong)
    assert 2 * judged >= len(table.records), "most of them have a row"
