"""The generated page of results says what its CSV says."""

import subprocess
import sys
from pathlib import Path

import pytest

from pymm.contest import COLUMNS

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import results  # noqa: E402

from pymm.classes import class_problems  # noqa: E402


def row(ratio, dtype="f32", layout="NN", name="large", extent="2048", **more):
    values = {
        "time": "2026-11-21T17:00:00+00:00", "device": "nvidia-h200", "class": name,
        "dtype": dtype, "layout": layout, "m": extent, "n": extent, "k": extent, "us": "100",
        "config": "a-MB1", "outcome": "ok", "cublas_us": "110", "cublaslt_us": "120",
        "gflops": "50000", "peak": "0.75", "ratio": str(ratio), "spread": "0.01", "rms": "1e-7",
    }  # fmt: skip
    return dict.fromkeys(COLUMNS, "") | values | more


def test_the_page_is_what_the_csv_says():
    """`python benchmarks/results.py` would change nothing."""
    command = [sys.executable, "benchmarks/results.py", "--check"]
    assert subprocess.run(command, cwd=ROOT).returncode == 0


def whole(ratio, dtype="f32", name="large", layout="NN"):
    """As many rows as the class has products, with this geometric mean."""
    count = len(class_problems((name,), (dtype,), (layout,)))
    ratios = [ratio * 2, ratio / 2, *[ratio] * (count - 2)]
    return [row(r, dtype, layout, name, extent=str(i)) for i, r in enumerate(ratios)]


def test_classes_are_judged_by_their_geometric_means():
    rows = [*whole(1.2), *whole(0.95, layout="TT"), *whole(1.3, layout="NT")]
    rows += [*whole(1.06, name="small"), *whole(1.24, name="odd"), *whole(2.0, "f16_f32")]
    rows += whole(9.0, name="rank-k")[:-1]
    lines = results.classes(rows)
    find = {tuple(line.split(" | ")[:2]): line for line in lines if line.startswith("| ")}
    large = find["| f32", "large"]
    assert "| 1.05 | 1.15 | **1.20** | **1.30** |  | **0.95** | goal | floor |" in large
    assert find["| f32", "small"].endswith("| 1.25 | 1.6 | 1.06 |  |  |  | missed |  |")
    assert find["| f32", "odd"].endswith("| **1.24** |  |  |  | floor |  |")
    assert find["| f32", "rank-k"].endswith("| 9.00 (2 of 3) |  |  |  | incomplete |  |")
    assert find["| f16_f32", "large"].endswith("|  |  | 2.00 |  |  |  |  |  |")


def test_a_failed_product_fails_its_class():
    rows = [row(2.0), row("", extent="8192", outcome="wrong")]
    (line,) = [line for line in results.classes(rows) if line.startswith("| f32")]
    assert "failed" in line and "2.00" not in line
    assert any("8192 x 8192 x 8192 | wrong" in line for line in results.products(rows))


def test_the_last_row_of_a_product_counts():
    rows = [row(1.0), row(1.1, extent="4096"), row(1.2)]
    assert [r["ratio"] for r in results.latest(iter(rows))] == ["1.1", "1.2"]
    page = results.document(rows)
    assert any("3 products, 0 of them failed" in line for line in page)


def test_unseen_shapes_by_type_and_all_together():
    rows = [
        {"dtype": "f32", "of_fastest": "1", "of_default": "1.5"},
        {"dtype": "f32", "of_fastest": "0.81", "of_default": "0.99"},
        {"dtype": "f64", "of_fastest": "0.9", "of_default": ""},
    ]
    lines = results.unseen(rows)
    assert "| f32 | 2 | 0.900 | 0.81 | 0.99 |" in lines
    assert "| f64 | 1 | 0.900 | 0.90 |  |" in lines
    assert lines[-1] == "| all | 3 | 0.900 | 0.81 | 0.99 |"


@pytest.mark.parametrize("dtype", list(results.GOALS))
def test_every_goal_names_a_class(dtype):
    from pymm.classes import shapes_of

    assert list(results.GOALS[dtype]) == list(shapes_of(dtype))
