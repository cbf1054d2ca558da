"""A report of files with faults: each is reported, and the rest is shown."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

from html import escape

import measured
import pytest
from report_fixtures import folder, without_plots  # noqa: F401

from pymm.measure import results
from pymm.report import load, main, stats
from pymm.report.chapters import report
from pymm.report.markdown import markdown, plain

SLUG = measured.SLUG


def read(folder):
    return load.read_device(folder)


def corrupt(folder, name):
    """One fault in a folder of measurements; the words that a report has to have for it."""
    if name == "empty":
        (folder / "classes.csv").write_text("")
        return "classes.csv: has no row, left out"
    if name == "header only":
        (folder / "ladder.csv").write_text(",".join(results.KERNELS.columns) + "\n")
        return "ladder.csv: has no row, left out"
    if name == "foreign columns":
        (folder / "more.csv").write_text("a,b\n1,2\n")
        return "more.csv: has no columns of a known kind, left out"
    if name == "no text":
        (folder / "unseen.csv").write_bytes(b"\xff\xfe\x00\x01" * 9)
        return "unseen.csv, line 1: cannot be read"
    if name == "other device":
        rows = measured.ladder() + measured.ladder("other-gpu")
        measured.write(folder / "ladder.csv", results.KERNELS.columns, rows)
        return "ladder.csv: rows of another device, other-gpu, left out"
    if name == "older schema":
        columns = tuple(c for c in results.CLASSES.columns if c not in ("void", "rms", "reason"))
        rows = [row | {"schema": 0} for row in measured.class_rows()]
        measured.write(folder / "classes.csv", columns, rows)
        return "classes.csv is older, of schema 0, without reason, rms"
    if name == "newer schema":
        rows = [row | {"schema": 99, "aura": 3} for row in measured.class_rows()]
        measured.write(folder / "classes.csv", (*results.CLASSES.columns, "aura"), rows)
        return "classes.csv: schema 99 is newer than"
    if name == "no product":
        rows = [row | {"m": m} for row, m in zip(measured.ladder(), ("-1", "x", ""), strict=False)]
        measured.write(folder / "ladder.csv", results.KERNELS.columns, rows + measured.ladder())
        return "ladder.csv: 3 rows describe no valid product (first line 2), left out"
    if name == "facts of another device":
        (folder / "device.json").write_text('{"slug": "other-gpu"}')
        return "device.json, line 1: is of another device, 'other-gpu', left out"
    if name == "damaged facts":
        (folder / "device.json").write_text("[1, 2")
        return "device.json, line 1: no JSON (Expecting ',' delimiter), left out"
    (folder / "device.json").unlink()
    return "device.json is missing"


FAULTS = (
    "empty",
    "header only",
    "foreign columns",
    "no text",
    "other device",
    "older schema",
    "newer schema",
    "no product",
    "facts of another device",
    "damaged facts",
    "no facts",
)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_and_the_rest_is_shown(folder, tmp_path, capsys, without_plots, name):
    words = corrupt(folder, name)
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / SLUG / "report.html").read_text()
    text = (tmp_path / "out" / SLUG / "report.md").read_text()
    assert escape(words) in page and plain(words) in text and words in capsys.readouterr().out
    titles = [
        "How fast is it, and what is tuned?",
        "What is tuned, and what did tuning gain?",
        "How fast is A^T A?",
    ]
    assert all(f"<h2>{title}</h2>" in page for title in titles)


def test_a_folder_of_another_name_is_of_the_device_of_its_rows(folder, tmp_path, without_plots):
    assert main([str(folder.rename(tmp_path / "before")), "--out", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / SLUG / "report.md").exists()


def test_counts_of_the_simulator_hold_for_every_device(folder):
    rows = [
        row | ({"device": "pymm-simulator"} if row["suite"] == "o2-counts" else {})
        for row in measured.suites(sparse=16)
    ]
    measured.write(folder / "suites.csv", results.EXPERIMENTS.columns, rows)
    found = read(folder)
    assert "o2-counts" in stats.experiments(found) and not found.notices


def test_the_note_on_a_file_is_shown_first(folder, without_plots):
    (folder / "classes-note.txt").write_text("The host was late\nin this run.\n")
    made = report(read(folder))
    assert made.chapters[0].remarks == ["Of classes.csv: The host was late in this run."]
    assert "> Of classes.csv: The host was late in this run.\n" in markdown(made, "report.html")


def test_a_damaged_record_file_is_reported(folder, tmp_path, capsys, without_plots):
    records = tmp_path / "records"
    records.mkdir()
    (records / f"{SLUG}.yaml").write_text("schema: 1\nrecords: {")
    arguments = [str(folder), "--out", str(tmp_path / "out"), "--records", str(records)]
    assert main(arguments) == 0
    assert "tuned configurations left out" in capsys.readouterr().out


def test_nothing_to_show_is_reported(tmp_path, capsys, without_plots):
    (tmp_path / "empty-gpu").mkdir()
    assert main([str(tmp_path / "empty-gpu"), "--out", str(tmp_path / "out")]) == 1
    assert "nothing to show" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "absent")])
    assert stop.value.code == 2


def test_without_a_baseline_the_rest_is_shown(folder, without_plots):
    rows = [
        {k: v for k, v in row.items() if not k.startswith("cublas") and k != "ratio"}
        for row in measured.class_rows()
    ]
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    for name in ("ladder.csv", "suites.csv"):
        (folder / name).unlink()
    made = report(read(folder))
    tables = {table.name: table for chapter in made.chapters for table in chapter.tables}
    assert len(tables["products"].rows) == len(rows)
    assert all(row["ratio"].text == "" for row in tables["products"].rows)
    assert dict(made.environment)["compared with"] == "nothing"


def test_without_matplotlib_tables_are_made(folder, tmp_path, capsys, without_plots):
    assert main([str(folder), "--out", str(tmp_path)]) == 0
    assert "No figures: plots need Matplotlib: pip install matplotlib" in capsys.readouterr().out
    page = (tmp_path / SLUG / "report.html").read_text()
    assert "<svg" not in page and page.count("<table") > 8


def test_what_a_file_says_cannot_become_markup(folder, without_plots):
    rows = [
        row | {"reason": "<script>alert(1)</script>", "outcome": "wrong"}
        for row in measured.class_rows()
    ]
    rows[0]["outcome"] = "ok"
    measured.write(folder / "classes.csv", results.CLASSES.columns, rows)
    from pymm.report.html import html

    page = html(report(read(folder)))
    assert "<script>alert" not in page and "&lt;script&gt;alert(1)" in page
