"""Every row of the experiments reaches its table: different measurements have different lines."""

from __future__ import annotations

import csv
from collections import Counter
from pathlib import Path

import measured

from pymm.measure import results
from pymm.report import load, stats, tables_experiments

ROOT = Path(__file__).resolve().parents[2]
H200 = ROOT / "benchmarks" / "results" / "nvidia-h200"


def test_every_row_of_the_profiler_reaches_the_table(tmp_path):
    """Of an H200: 290 rows of Nsight Compute; two types share a configuration, and the default is
    what was chosen for some.
    """
    with open(H200 / "suites.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["suite"] == "o2-kernels"]
    folder = tmp_path / H200.name
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    experiment = stats.experiments(load.read_device(folder))["o2-kernels"]
    table = tables_experiments.kernel_facts(experiment)
    lines = {
        tuple(
            line[name].text for name in ("type", "layout", "kernel", "variant", "configuration")
        ): line
        for line in table.rows
    }
    assert len(lines) == len(table.rows)
    heads, seen = tables_experiments.FACTS | tables_experiments.PROFILED, Counter()
    for cells in rows:
        row = load.Row("suites", "suites.csv", cells)
        parameters = " ".join(cells["config"].split("-")[1:])
        key = (cells["dtype"], cells["layout"], cells["name"], cells["variant"], parameters)
        if cells["quantity"] == "kernel":
            assert lines[key]["time"].value == row.seconds
        else:
            assert lines[key][heads[cells["quantity"]]] == tables_experiments._number(row)
        seen[cells["quantity"].startswith("ncu:")] += 1
    assert seen == {True: 290, False: 340}


def rows_of(suite, *quantities):
    """Rows whose values all differ: two types, shapes, layouts, kernels, variants and
    configurations of each of `quantities`, one step for all of them.
    """
    rows, value = [], 1000
    for dtype in ("f32", "f64"):
        for n, layout in ((64, "NN"), (96, "NN"), (64, "TN")):
            for name in ("01_coalesced", "02_shared_tile"):
                for variant, tile in (("default", 8), ("chosen", 8), ("default", 16)):
                    for quantity, transfer in quantities:
                        value += 1
                        rows.append(
                            {
                                "schema": 1,
                                "suite": suite,
                                "step": "s",
                                "outcome": "ok",
                                "device": measured.SLUG,
                                "op": "gemm",
                                "dtype": dtype,
                                "layout": layout,
                                "m": n,
                                "n": n,
                                "k": n,
                                "name": name,
                                "variant": variant,
                                "config": f"{name[3:]}-MB{tile}-NB{tile}",
                                "quantity": quantity,
                                "transfer": transfer,
                                "value": value,
                                "seconds": value * 1e-3,
                                "gflops": value,
                            }
                        )
    return rows


def shown(tmp_path, suite, rows, maker):
    """The values in a table that `maker` makes of rows."""
    folder = tmp_path / measured.SLUG
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    table = maker(stats.experiments(load.read_device(folder))[suite])
    return {cell.value for row in table.rows for cell in row.values()}


def test_every_count_and_every_quantity_reaches_its_table(tmp_path):
    quantities = (("operations", ""), ("global_loads", ""), ("ncu:what.ever", ""))
    for suite, maker in (
        ("o2-kernels", tables_experiments.kernel_facts),
        ("o2-counts", tables_experiments.counts),
    ):
        rows = rows_of(suite, *quantities)
        heads = {"o2-kernels": ("ncu:what.ever",)}.get(suite, [name for name, _ in quantities])
        wanted = {row["value"] for row in rows if row["quantity"] in heads}
        assert len(wanted) == 36 * len(heads)
        assert wanted <= shown(tmp_path, suite, rows, maker)


def test_every_rate_reaches_its_table(tmp_path):
    """What was chosen is one column of each product, whichever kernel that was: of two the last
    measured counts.
    """
    rows = [row for row in rows_of("o2-sizes", ("kernel", "")) if row["variant"] == "default"]
    assert {row["gflops"] for row in rows} <= shown(
        tmp_path, "o2-sizes", rows, tables_experiments.rates
    )


def test_every_transfer_reaches_its_table(tmp_path):
    rows = rows_of("o2-transfers", ("kernel", ""), ("total", "pinned"))
    copies = [
        row
        | {"name": "copies", "variant": "", "config": "", "quantity": part, "transfer": "pinned"}
        for row in rows
        for part in ("to_device", "to_host")
    ]
    found = shown(tmp_path, "o2-transfers", rows + copies, tables_experiments.transfer_times)
    assert {row["seconds"] for row in rows} <= found
