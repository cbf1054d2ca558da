"""The sentences and the series of a report: computed from the rows, the same everywhere."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import csv

import measured
import numpy as np
import pytest
from report_fixtures import folder, without_plots  # noqa: F401

from pymm.core.dtypes import DTYPES
from pymm.measure import results
from pymm.report import content, load, searches, stats, svg, tables, tables_experiments
from pymm.report.chapters import report
from pymm.report.prose import observation


def rewrite(folder, keep):
    """The rows of the suites that `keep` wants, and those it makes of them."""
    with open(folder / "suites.csv", newline="") as file:
        rows = [new for row in csv.DictReader(file) if (new := keep(row))]
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    return rows


def chapters(folder):
    return {chapter.name: chapter for chapter in report(load.read_device(folder)).chapters}


def test_every_experiment_has_a_sentence(folder):
    found = load.read_device(folder)
    for name, experiment in stats.experiments(found).items():
        assert observation(experiment).endswith("."), name


def test_guards_and_paddings_are_told(folder):
    """How many kernels fail at which size, and every padding by its name."""

    def failing(row):
        if row["quantity"] == "check":
            return row | {"m": "641", "n": "641", "k": "641", "value": "TEST FAIL"}
        return row

    rewrite(folder, failing)
    found = stats.experiments(load.read_device(folder))
    assert "at N = 641 1 of 1 kernels fail" in observation(found["o2-guards"])
    paddings = observation(found["o3-pads"])
    assert "48x48 pad 1 (" in paddings and "48x48 pad 16 (" in paddings
    chapter = chapters(folder)["o2"]
    (table,) = [table for table in chapter.tables if table.name == "checks-o2-guards"]
    assert [row["result"].text for row in table.rows] == ["TEST FAIL"]
    assert table.rows[0]["kernel"].text == "01_coalesced 32x32 unguarded"


def test_sentences_agree_with_the_rows(folder):
    def slower(row):
        if (row["suite"], row["variant"], row["n"]) == ("o2-sizes", "chosen", "1664"):
            row["ratio"] = "0.25"
        return row

    rows = rewrite(folder, slower)
    own = [
        r
        for r in rows
        if (r["suite"], r["variant"], r["quantity"]) == ("o2-sizes", "chosen", "kernel")
    ]
    ratios = np.array([float(r["ratio"]) for r in own])
    found = load.read_device(folder)
    said = observation(stats.experiments(found)["o2-sizes"])
    best = max(own, key=lambda r: float(r["gflops"]))
    part = float(best["gflops"]) / 60e3
    assert f"{content.rate(float(best['gflops']))} at N = {best['n']}, {part:.0%} of" in said
    assert f"in {(ratios >= 1).sum()} of {len(ratios)} products" in said
    assert f"{np.exp(np.log(ratios).mean()):.2f} times as fast" in said
    assert "at worst 0.25 times (N = 1664)" in said


def test_what_was_measured_again_counts_once(folder):
    """With another kernel chosen the step is another: the old one's rows are history."""
    before = stats.experiments(load.read_device(folder))["o2-sizes"]

    def again(row):
        return row | {"step": row["step"] + "-again", "name": "05_pipelined"}

    chosen = [dict(row.cells) for row in before.rows if row.text("variant") == "chosen"]
    rows = rewrite(folder, lambda row: row) + [again(row) for row in chosen]
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    after = stats.experiments(load.read_device(folder))["o2-sizes"]
    assert {row.text("name") for row in after.rows} == {"05_pipelined"}
    assert len(after.of("kernel")) == len({row.problem for row in before.of("kernel")})


def test_the_summary_has_the_means_of_the_classes(folder, without_plots):
    with open(folder / "classes.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["dtype"] != "tf32x3"]
    ratios = np.array([float(row["ratio"]) for row in rows])
    words = dict(chapters(folder)["glance"].observations)
    said = words["Compared with cuBLAS?"]
    assert f"Over {len(rows)} products" in said
    assert f"{np.exp(np.log(ratios).mean()):.2f} times as fast" in said
    assert "1 search made kernels 2.50 times" in words["What does tuning gain?"]


def test_failures_are_counted_in_words(folder, without_plots):
    rows = measured.class_rows()
    for row, outcome in zip(rows, ("wrong", "wrong", "crashed"), strict=False):
        row |= {"outcome": outcome, "us": "", "ratio": ""}
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    said = (
        f"3 of {len(rows)} products have no valid time: f32 large wrong (2), f32 small crashed (1)."
    )
    assert chapters(folder)["glance"].remarks == [said]


def test_what_is_not_measured_names_its_command(folder, without_plots):
    without = ("o3", "o3-pads", "o2-kernels")
    rewrite(folder, lambda row: row if row["suite"] not in without else None)
    (folder / "tuning.csv").unlink()
    (folder / "repeated.csv").unlink()
    (folder / "classes.csv").unlink()
    made = chapters(folder)
    assert not {"o3", "tuning", "baseline"} & set(made), "no chapter is empty"
    rows = [[cell.text for cell in row.values()] for row in made["missing"].tables[0].rows]
    commands = dict(rows)
    o3 = next(command for what, command in rows if what.startswith("o3"))
    assert "python -m pymm.bench --suite o3 --dtypes f64,f32 --csv benchmarks/results/test" in o3
    o2 = next(command for what, command in rows if what.startswith("o2-kernels"))
    assert "--suite o2-kernels" in o2
    assert "python -m pymm.tune" in commands["searches"]
    assert "python -m pymm.bench --classes all" in commands["products of all classes compared"]


def test_what_a_device_cannot_have_is_not_asked_for(folder, without_plots):
    def absent(row):
        if row["suite"] != "o2-split":
            return row
        return {
            **dict.fromkeys(row, ""),
            "suite": "o2-split",
            "device": row["device"],
            "step": "x",
            "outcome": "not_applicable",
            "detail": "no transfer",
        }

    rewrite(folder, absent)
    assert chapters(folder)["o2"].not_measured == []


def test_symmetric_products_are_compared_with_gemm(folder, without_plots):
    row = measured.class_rows()[0] | {
        "class": "syrk-large",
        "layout": "NT",
        "us": 100,
        "cublas_us": 190,
        "cublaslt_us": 200,
        "ratio": 1.1,
    }
    measured.write(folder / "classes.csv", results.CLASSES.columns, [*measured.class_rows(), row])
    table = tables.against_gemm(stats.class_comparisons(load.read_device(folder)))
    assert [cell.text for cell in table.rows[0].values()] == ["syrk-large", "1.90", ""]


def test_curves_keep_their_series():
    names = [
        "04_transposed_a",
        "cuBLASLt",
        stats.CHOICE,
        "00_naive",
        "cuBLAS",
        "sequential",
        "cuBLAS syrk, half",
        "01_coalesced",
        "02_shared_tile",
        "03_register_tile",
    ]
    places = svg.slots(names)
    assert [places[name] for name in (stats.CHOICE, "cuBLAS", "cuBLASLt")] == [0, 1, 2]
    looks = {tuple(map(str, svg.series(place).values())) for place in places.values()}
    assert len(looks) == len(names)
    assert all(places[name] == svg.slots(names)[name] for name in names[3:])


def test_every_type_has_a_colour_of_its_own():
    looks = {tuple(svg.type_series(dtype).values()) for dtype in DTYPES}
    assert len(looks) == len(DTYPES) == len({colour for colour, _ in looks})


def test_losses_are_as_visible_as_gains():
    for ratio in (1.01, 1.02, 1.05, 1.08, 1.2, 3.0):
        assert tables.shade(ratio) > 0 and tables.shade(1 / ratio) == -tables.shade(ratio)
    assert tables.shade(1.005) == tables.shade(1 / 1.005) == 0
    assert tables.shade(0.92) < tables.shade(0.98) < 0


def test_what_is_slower_is_listed(folder, without_plots):
    rows = measured.class_rows()
    rows[3] |= {"ratio": 0.97}
    rows[5] |= {"ratio": 0.5}
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    (table,) = [t for t in chapters(folder)["baseline"].tables if t.name == "losses"]
    assert [row["ratio"].text for row in table.rows] == ["0.50", "0.97"]


def test_a_device_that_is_slower_everywhere_has_no_best_class(folder, without_plots):
    rows = [row | {"ratio": 0.8} for row in measured.class_rows()]
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    said = dict(chapters(folder)["glance"].observations)["Compared with cuBLAS?"]
    assert "slower in every class" in said and "best" not in said


def test_what_may_be_noise_is_no_gain(folder):
    """As the search itself decides: the default stays unless it is beaten beyond noise."""
    rows = measured.trials()
    rows[-1] |= {"spread": 4.0, "repeats": 9}
    measured.write(folder / "tuning.csv", results.TRIALS.columns, rows)
    (search,) = searches.searches(load.read_device(folder))
    assert search.gain == 1.0 and search.best.text("config") == "pipelined-MB32-NB32"


def test_a_break_is_no_part_of_a_search(folder):
    rows = measured.trials()
    for row in rows[20:]:
        row["time"] = row["time"].replace("T17:", "T18:")
    measured.write(folder / "tuning.csv", results.TRIALS.columns, rows)
    (search,) = searches.searches(load.read_device(folder))
    assert search.progress[-1][:2] == (41, 39.0)


@pytest.mark.parametrize(
    ("quantity", "value", "unit", "text"),
    [
        ("ncu:dram__bytes_read.sum.per_second", "1.5", "Tbyte/second", "1500"),
        ("ncu:dram__bytes_read.sum.per_second", "250", "Mbyte/s", "0.25"),
        ("ncu:lts__t_sector_hit_rate.pct", "61.7", "%", "62%"),
        ("occupancy", "0.375", "of the threads", "38%"),
        ("grid", "8x4x1", "blocks", "8x4x1"),
        ("registers", "128", "of a thread", "128"),
    ],
)
def test_quantities_have_one_unit(quantity, value, unit, text):
    row = load.Row("suites", "f", {"quantity": quantity, "value": value, "unit": unit})
    assert tables_experiments._number(row).text == text
