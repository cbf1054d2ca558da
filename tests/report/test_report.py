"""What a report says: validated when read, computed correctly, written the same every time."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import csv
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import measured
import numpy as np
import pytest
from report_fixtures import folder, without_plots  # noqa: F401

from pymm.core.problem import Problem
from pymm.measure import results
from pymm.report import load, main, searches, stats, tables
from pymm.report.chapters import report
from pymm.report.markdown import markdown

ROOT = Path(__file__).resolve().parents[2]
SLUG = measured.SLUG


def read(folder):
    return load.read_device(folder)


@pytest.mark.parametrize(
    "slug",
    ["f32-NN-1x2x3", "tf32x3-TT-4097x4097x4097", "bf16_f32-NT-8x8x8-b7", "syrk-f64-TN-5x5x2"],
)
def test_problems_are_read_back(slug):
    assert load.parse_problem(slug).slug == slug


@pytest.mark.parametrize(
    "slug", ["", "f32", "f32-NN", "f32-XX-1x1x1", "f32-NN-1x1", "f32-NN-1x1xk"]
)
def test_what_is_no_problem_is_refused(slug):
    with pytest.raises(ValueError):
        load.parse_problem(slug)


def test_every_kind_of_file_is_known(folder):
    found = read(folder)
    assert all(found.of(kind) for kind in load.KINDS) and not found.notices
    assert found.files == [
        "beside-numpy.csv",
        "blocked.csv",
        "calls.csv",
        "classes.csv",
        "distributed.csv",
        "ladder.csv",
        "repeated.csv",
        "simulated.csv",
        "suites.csv",
        "tune-devices.csv",
        "tuning.csv",
        "unseen.csv",
        "device.json",
    ]


def test_calls_have_a_chapter_of_their_own(folder):
    measured.write(
        folder / "calls.csv", measured.CALLS, [measured.calls()[0] | {"us": 9.5}, *measured.calls()]
    )
    (chapter,) = [c for c in report(read(folder), False).chapters if c.name == "calls"]
    (row,) = chapter.tables[0].rows
    assert [cell.text for cell in row.values()] == ["CuPy", "plan()", "2.5", "2.25", "3.5"]


def rows_of(folder, chapter):
    """The texts of the rows of a chapter's tables, by the names of the tables."""
    (found,) = [c for c in report(read(folder), False).chapters if c.name == chapter]
    return {
        table.name: [[cell.text for cell in row.values()] for row in table.rows]
        for table in found.tables
    }


def test_every_figure_of_several_gpus_has_a_line(folder):
    assert rows_of(folder, "several") == {
        "several-gpus": [
            ["f32", "4000", "1", "pymm, queued", "500 ms", "0.256", "100.0%"],
            ["f32", "4000", "2", "pymm, queued", "500 ms", "0.256", "95.0%"],
        ],
        "larger": [["f32", "4000", "8GB, again", "500 ms", "0.256", "75.0%", "", "", "1.50"]],
        "links": [["GPU to GPU, ring", "2", "", "385", "GB/s"]],
        "several-gpus-failed": [["scaling NCCL", "failed", "no PyTorch"]],
        "tuning-gpus": [
            ["f32", "4096", "1", "16", "100", "4", "1.00", "75%"],
            ["f32", "4096", "2", "16", "100", "7.5", "1.88", "75%"],
        ],
    }


def test_every_figure_of_several_processes_has_a_line(folder):
    line = ["f64", "3000", "4", "pymm numpy", "2x2", "500 ms", "108", "3.25", "1.25", "1.50"]
    rates = ["512", "44", "13", "2.5", "78", "50%", "3.32"]
    assert rows_of(folder, "distributed") == {
        "mpi": [[*line, "1.0e-15"]],
        "mpi-failed": [["scalapack", "failed", "no library"]],
        "simulated": [
            [*"f64 3000 4 2x2x1".split(), "500 ms", "400 ms", "0.875", "500 ms", "0.800", *rates],
            [*"f64 3000 64 8x8x1".split(), "250 ms", "200 ms", "0.625", "", "", *rates],
        ],
    }


def test_means_are_those_of_the_rows(folder):
    found = read(folder)
    with open(folder / "classes.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    of = [float(r["cublas_us"]) / float(r["us"]) for r in rows if r["dtype"] == "f32"]
    expected = np.exp(np.mean(np.log(of)))
    ratios = [d.ratio for d in stats.class_comparisons(found) if d.problem.dtype == "f32"]
    assert stats.mean(ratios) == pytest.approx(expected, rel=1e-9)
    assert math.isnan(stats.mean([])) and math.isnan(stats.mean([math.nan]))


def test_the_last_row_of_a_product_counts(folder):
    rows = measured.class_rows()
    again = [rows[0] | {"us": 1e6, "outcome": "ok"}]
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows + again)
    duels = stats.class_comparisons(read(folder))
    assert len(duels) == len(rows)
    assert (
        duels[-1].seconds == pytest.approx(1.0)
        and duels[-1].problem.slug == "f32-NN-4096x4096x4096"
    )


def test_peaks_come_from_the_device_or_from_the_rows(folder):
    assert stats.peaks(read(folder))["f32"] == pytest.approx(60e3)
    (folder / "device.json").unlink()
    assert stats.peaks(read(folder))["f64"] == pytest.approx(30e3, rel=1e-3)


def test_statistics_of_a_search(folder):
    (search,) = searches.searches(read(folder))
    assert search.gain == pytest.approx(4e-3 / 1.6e-3)
    assert search.outcomes == {"ok": 27, "too_slow": 13, "wrong": 1}
    assert search.origins == {"queue": 11, "random": 10, "neighbour": 20}
    bests = [best for _, _, best in search.progress]
    assert bests == sorted(bests, reverse=True) and search.progress[-1][:2] == (41, 40.0)
    parts = search.importance
    assert list(parts) == ["MB", "NB"] and parts["MB"] > 0.99 and parts["NB"] < 0.05


def test_importance_of_noise_is_zero():
    generator = np.random.default_rng(3)
    levels, values = generator.integers(0, 4, 400), generator.normal(size=400)
    points = [(int(x), float(y)) for x, y in zip(levels, values, strict=True)]
    assert searches._omega(points) < 0.03
    assert searches._omega([(level, float(level)) for level, _ in points]) > 0.99


def test_standard_error_is_that_of_medians():
    """Against medians of samples drawn again, 4000 times."""
    generator = np.random.default_rng(5)
    samples = generator.normal(1.0, 0.01, size=(4000, 31))
    observed = np.median(samples, axis=1).std()
    quarters = np.quantile(samples, [0.25, 0.75], axis=1)
    computed = np.mean([stats.standard_error(s, 31) for s in quarters[1] - quarters[0]])
    assert computed == pytest.approx(observed, rel=0.1)


def test_rows_are_sorted_into_their_experiments(folder):
    found = stats.experiments(read(folder))
    assert list(found) == list(stats.EXPERIMENTS)
    lines = stats.curves(found["o2-sizes"].of("kernel"), stats.gflops)
    assert list(lines)[:3] == ["pymm's choice", "cuBLAS", "cuBLASLt"]
    n, rate = max(lines["02_shared_tile"].items())
    problem = Problem(n, n, n)
    assert rate == pytest.approx(problem.flops / measured.seconds("02_shared_tile", problem) / 1e9)
    assert "01_coalesced 8x8" in stats.curves(found["o2-blocks"].of("kernel"), stats.gflops)


def test_shades_follow_the_ratio():
    assert tables.shade(1.0) == 0 and tables.shade(2.0) == 1 and tables.shade(0.1) == -1
    assert tables.shade(math.nan) is None and -1 < tables.shade(0.9) < 0


def test_markdown_and_json_are_complete(folder, tmp_path, without_plots):
    made = report(read(folder))
    text = markdown(made, "report.html")
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for table in tables:
        widths = {line.replace("\\|", "").count("|") for line in table.splitlines()}
        assert len(widths) == 1, table.splitlines()[0]
    data = json.loads(json.dumps(made.data, allow_nan=False))
    assert len(data["measurements"]) == len(stats.timings(read(folder)))
    assert data["summary"]["types"]["f32"]["products"] == 8


def test_check_sees_what_changed(folder, tmp_path, capsys, without_plots):
    out = ["--out", str(tmp_path / "out")]
    assert main([str(folder), *out]) == 0
    assert main([str(folder), *out, "--check"]) == 0
    measured.write(folder / "ladder.csv", results.KERNELS.columns, measured.ladder()[:-2])
    assert main([str(folder), *out, "--check"]) == 1
    assert "is out of date" in capsys.readouterr().out


def test_a_picture_of_an_earlier_report_is_removed(folder, tmp_path, without_plots):
    out, old = ["--out", str(tmp_path / "out")], tmp_path / "out" / SLUG / "glance.svg"
    old.parent.mkdir(parents=True)
    old.write_text("<svg/>")
    assert main([str(folder), *out]) == 0
    assert not old.exists()
    assert main([str(folder), *out, "--check"]) == 0


def test_the_same_rows_give_the_same_bytes(tmp_path):
    """In another process, too, whatever the order of its sets."""
    folder = tmp_path / "results" / SLUG
    measured.write(folder / "ladder.csv", results.KERNELS.columns, measured.ladder())
    measured.write(folder / "tuning.csv", results.TRIALS.columns, measured.trials())
    assert main([str(folder), "--out", str(tmp_path / "one")]) == 0
    command = [sys.executable, "-m", "pymm.report", str(folder), "--out", str(tmp_path / "two")]
    subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONHASHSEED": "7"}, check=True)
    one, two = (sorted((tmp_path / name / SLUG).iterdir()) for name in ("one", "two"))
    assert [path.name for path in one] == [path.name for path in two] != []
    for mine, other in zip(one, two, strict=True):
        assert mine.read_bytes() == other.read_bytes(), mine.name
