"""The page of the origins says what the rows of the suites say."""

import sys
from pathlib import Path

import pytest

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.core import inputs
from pymm.core.shapes import parse_shapes
from pymm.measure import results as schemas

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import origins  # noqa: E402


def row(suite, n, name, seconds, k=0, **more):
    columns = dict.fromkeys(schemas.EXPERIMENTS.columns, "")
    shape = {"m": str(n), "n": str(n), "k": str(k or n)}
    given = {"suite": suite, "name": name, "quantity": "kernel", "outcome": "ok", "dtype": "f32"}
    rate = f"{2e-9 * n**3 / seconds:.6g}" if seconds else ""
    return columns | shape | given | {"seconds": str(seconds or ""), "gflops": rate} | more


def symmetric(n, name, seconds, **more):
    return row("o3", n, name, seconds, dtype="f64", **more)


def test_the_last_row_of_each_contestant_counts():
    naive = dict(variant="all of C", config="naive-MB32-NB32-FILL0")
    rows = origins.Rows(
        [
            symmetric(500, "cublas", 3e-3),
            symmetric(500, "cublaslt", 2e-3),
            symmetric(500, "00_naive", 9e-3, variant="default", config="naive-MB32-NB32"),
            symmetric(500, "00_naive", 8e-3, **naive),
            symmetric(500, "00_naive", 7e-3, **naive),
            symmetric(500, "15_symmetric_tile", 1e-3, variant="default", config="tile-PAD1"),
            symmetric(500, "06_tensor_f64", 5e-4, variant="chosen", config="a-MB1"),
            symmetric(500, "09_tma_f64", 4e-4, variant="chosen", config="b-MB2"),
            symmetric(1500, "00_naive", None, outcome="left_out", **naive),
        ]
    )
    lines = list(origins._milliseconds(rows, [(500, 500), (1500, 1500), (250, 500)]))
    assert lines[2] == "| 500 x 500 | 2 | 7 | 1 | 2.00 | 0.4 |"
    missing = origins.NOTHING
    assert lines[3] == f"| 1500 x 1500 | {missing} | left out | {missing} |  | {missing} |"
    assert lines[4].count(missing) == 4, "other extents are another product"


def test_guards_are_told_by_the_names_of_the_course():
    checks = [
        ("01_coalesced", "unguarded", "TEST FAIL"),
        ("01_coalesced", "guarded", "TEST PASS"),
        ("02_shared_tile", "writes guarded", "TEST FAIL"),
    ]
    rows = origins.Rows(
        row("o2-guards", 641, name, None, variant=v, value=value, quantity="check", config="x-MB32")
        for name, v, value in checks
    )
    assert origins._guards(rows) == "641: kernel00 FAIL, kernel01 PASS, final write alone FAIL"


def test_speed_up_and_error_are_of_sequential_products_that_were_repeated():
    """Those of rows before that, from runs side by side and of A B, are left out."""
    old = {"step": "old", "error_inf": "0", "speedup": "70"}
    new = {"step": "new", "error_inf": "2e-07", "speedup": "50"}
    rows = [
        row("o4-square", 250, "sequential", 1.0, step="old", rounds="1"),
        row("o4-square", 250, "00_naive", 0.1, **old),
        row("o4-square", 500, "sequential", 4.0, step="new", rounds="3"),
        row("o4-square", 500, "00_naive", 0.1, **new),
    ]
    said = origins._errors(origins.Rows(rows))
    assert said == "up to 500: 2e-07 to 2e-07; speed-up at 500 50 to 50"
    assert origins._sequential(origins.Rows(rows)).startswith("500: ")
    assert origins._errors(origins.Rows(rows[:2])) == origins.NOTHING


@pytest.mark.parametrize("figure", [f for f in origins.FIGURES if f.now], ids=lambda f: f.what)
def test_what_was_not_measured_is_said(figure):
    empty = origins.Rows([]) if figure.source == "suites" else []
    assert origins.NOTHING in figure.now(empty)


def test_the_tables_have_every_size_of_the_document():
    sizes = {(n, k) for _, n, k in parse_shapes(EXPERIMENTS["o3"].shapes)}
    filler = origins.Filler()
    for lines in (filler._squares(), filler._halves()):
        for line in list(lines)[2:]:
            k, n = line.split("|")[1].split("x")
            sizes.discard((int(n), int(k)))
    assert not sizes


def test_a_damaged_file_is_named(tmp_path, monkeypatch, capsys):
    for name in ("counts.csv", "device.json"):
        (tmp_path / name).write_text((origins.GPU / name).read_text())
    line = ",".join(schemas.EXPERIMENTS.columns)
    damaged = row("o1", 4096, "01_coalesced", 1.0) | {"seconds": "soon"}
    (tmp_path / "suites.csv").write_text(f"{line}\n{','.join(damaged.values())}\n")
    monkeypatch.setattr(origins, "GPU", tmp_path)
    with pytest.raises(inputs.BadInput, match=r"suites\.csv, line 2: seconds is 'soon'"):
        origins.Filler()
    assert origins.main(["--check"]) == 2 and "line 2" in capsys.readouterr().err
