"""benchmarks/blocked.py: its parts, small, on simulated devices."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pymm.measure.results import BLOCKED

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "blocked.py"
SMALL = ["--sizes", "40", "--dtypes", "f32", "--outofcore", "60", "--device-memory", "20kB"]

pytestmark = pytest.mark.simulator


def run(*arguments):
    environment = os.environ | {"PYMM_SIMULATOR_DEVICES": "2"}
    command = [sys.executable, str(SCRIPT), *SMALL, "--copy", "65536", "--rounds", "1", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    return done


def test_all_parts_make_rows(cuda, tmp_path):
    path = tmp_path / "blocked.csv"
    done = run("--csv", str(path))
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == BLOCKED.columns
    by_part = {part: [row for row in rows if row["part"] == part] for part in PARTS}
    assert all(by_part.values())
    assert {row["outcome"] for row in rows if "NCCL" not in row["name"]} == {"ok"}
    scaled = [row for row in by_part["scaling"] if row["devices"] == "2" and row["gflops"]]
    assert all(float(row["ratio"]) > 0 and float(row["error"]) <= 1 for row in scaled)
    streamed = by_part["outofcore"][0]
    moved = int(streamed["bytes_in"]) + int(streamed["bytes_out"])
    assert float(streamed["value"]) == pytest.approx(moved / int(streamed["bound"]), rel=1e-3)


PARTS = ("links", "single", "scaling", "outofcore")


def test_a_part_without_time_says_what_it_left_out(cuda, tmp_path):
    path = tmp_path / "blocked.csv"
    done = run("--csv", str(path), "--seconds", "0", "--parts", "single")
    assert done.returncode == 0
    assert "left out" in path.read_text()


def test_an_unknown_part_is_refused():
    done = run("--parts", "links,wings")
    assert done.returncode == 2
    assert "wings" in done.stderr
