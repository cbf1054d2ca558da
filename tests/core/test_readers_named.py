"""What has ended a reader by a traceback: each is named in one line, or read."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import json

import measured
import pytest
from report_fixtures import ENTRY, data, folder, without_plots  # noqa: F401

from pymm import __main__ as door
from pymm.bench import classes
from pymm.core import shapes
from pymm.measure import results
from pymm.report import main
from pymm.tune import storage as studies

DEEP = "[" * 100_000
DIGITS = "9" * 400

CLASSES = ("classes.csv", results.CLASSES.columns, measured.class_rows)
TRIALS = ("tuning.csv", results.TRIALS.columns, measured.trials)
SUITES = ("suites.csv", results.EXPERIMENTS.columns, measured.suites)


def report_of(folder, tmp_path, capsys):
    """What `pymm report` says, which must succeed."""
    assert main([str(folder), "--out", str(tmp_path / "out")]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "columns", "maker", "changes", "words"),
    [
        (*CLASSES, {"us": "inf"}, "us is 'inf'"),
        (*CLASSES, {"gflops": "1e400"}, "gflops is '1e400'"),
        (*CLASSES, {"peak": "1e-320"}, "peak is '1e-320'"),
        (*CLASSES, {"rms": "-1"}, "rms is '-1'"),
        (*CLASSES, {"schema": "\u00b2"}, ""),
        (*CLASSES, {"m": DIGITS}, "describe no valid product"),
        (*CLASSES, {"n": "0", "m": "0"}, "describe no valid product"),
        (*TRIALS, {"kernel": "$\\frac{$"}, ""),
        (*TRIALS, {"time": "0001-01-01T00:00:00"}, ""),
        (*TRIALS, {"config": f"a-MB{'9' * 5000}"}, ""),
        (*TRIALS, {"config": "a-MB\u00b2"}, ""),
        (*SUITES, {"name": "0" * 5000}, "line 2: name"),
    ],
)
def test_a_row_is_named_and_the_report_is_made(
    folder, tmp_path, capsys, without_plots, name, columns, maker, changes, words
):
    rows = [row | (changes if place % 2 == 0 else {}) for place, row in enumerate(maker())]
    measured.write(folder / name, columns, rows)
    said = report_of(folder, tmp_path, capsys)
    assert words in said and (not words or f"{name}, line 2: " in said or "(first line 2)" in said)


def test_a_formula_in_a_name_is_drawn_as_text(folder, tmp_path, capsys):
    for path in folder.glob("*.csv"):
        if path.name != "tuning.csv":
            path.unlink()
    rows = [row | {"kernel": "$\\frac{$"} for row in measured.trials()]
    measured.write(folder / "tuning.csv", results.TRIALS.columns, rows)
    report_of(folder, tmp_path, capsys)
    assert "$\\frac{$, f32-NN" in (tmp_path / "out" / folder.name / "report.html").read_text()


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ('{"peak_flops": {\n"f32": 0}}', "line 1: peak_flops of f32 is 0, not a number from"),
        ('{"name": "x",\n"peak_flops": {"f32": null}}', "line 2: peak_flops of f32 is None"),
        ('{"peak_flops":\n null}', "peak_flops is None, not rates by type"),
        ('{"peak_flops": {"f32": "1"}}', "peak_flops of f32 is '1', not a number"),
        ('{\n"bandwidth": 1e400}', "line 2: '1e400' is no finite number"),
        ('{\n"bandwidth": NaN}', "line 2: 'NaN' is no finite number"),
        (f'{{\n\n"sms": {DIGITS}}}', "line 3: '999"),
        ('{"bandwidth": "x"}', "bandwidth is 'x', not a number"),
        ('{"name": "\\ud800"}', "name is "),
        ('{"name": ["x"]}', "name is list, not a text of one line"),
        ('{"sms": 1,\n"sms": 2}', "'sms' appears twice"),
        (DEEP, "nested too deep"),
        ('{"slug": "../x"}', "is of another device, '../x'"),
    ],
)
def test_facts_are_named_and_the_report_is_made(
    folder, tmp_path, capsys, without_plots, facts, words
):
    (folder / "device.json").write_text(facts)
    said = report_of(folder, tmp_path, capsys)
    assert f"  device.json, {'line' if 'line' in words else ''}" in said and words in said


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        json.dumps(data(ENTRY | {"seconds": int(DIGITS)})),
        json.dumps(data(ENTRY | {"seconds": float("inf")})),
        json.dumps(data(ENTRY | {"rounds": int(DIGITS)})),
        json.dumps(data(ENTRY | {"problem": f"f32-NN-{'9' * 5000}x1x1"})),
        json.dumps(data(ENTRY | {"problem": "f32-NN-0x0x0"})),
        json.dumps(data(ENTRY | {"problem": "f32-NN-\u00b2x1x1-b\u00b2"})),
        json.dumps(data(ENTRY | {"who": ["x"]})),
        json.dumps(data(ENTRY | {"kernel": "\ud800"})),
        json.dumps(data(ENTRY, slug="../../x")),
        '{"schema": 1, "schema": 1}',
        "\ufeff{}",
    ],
)
def test_a_report_is_named_in_one_line(tmp_path, capsys, text):
    path = tmp_path / "report.json"
    path.write_text(text)
    for command in (["verify", str(path)], ["report", "--compare", str(path), str(path)]):
        with pytest.raises(SystemExit) as stop:
            door.main(command)
        assert stop.value.code == 2
        *_, said = capsys.readouterr().err.splitlines()
        assert "error: " in said and str(path) in said


@pytest.mark.parametrize("entry", ["{}", '{"op_code": "x"}', "[]", DEEP, "9" * 5000])
def test_a_journal_of_other_lines_is_no_traceback(tmp_path, entry):
    """What is no entry is damage like any other: named, and kept under another name."""
    path = tmp_path / "studies.log"
    path.write_text(f"{entry}\n" * 3)
    with pytest.warns(UserWarning, match="studies.log cannot be used"):
        with studies.open_storage(path) as storage:
            studies.open_study(storage, "f32", {})
    assert path.with_name("studies.log.damaged").read_text() == f"{entry}\n" * 3


@pytest.mark.parametrize(
    "entry", ['{"op_code": 0}', '{"op_code": 4, "trial_id": 7}', '{"op_code": 99}']
)
def test_an_entry_that_cannot_be_replayed_is_named(tmp_path, entry):
    path = tmp_path / "studies.log"
    with studies.open_storage(path) as storage:
        studies.open_study(storage, "f32", {})
    before = path.read_text()
    path.write_text(f"{before}{entry}\n{before}")
    line = before.count("\n") + 1
    with pytest.warns(UserWarning, match=f"line {line} is no entry of a study"):
        with studies.open_storage(path):
            pass
    kept = path.with_name("studies.log.damaged")
    assert kept.read_text() == f"{before}{entry}\n{before}", "nothing of it is lost"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"m,n,k\n1,1,1\n\xff\xfe,1,1\n", "line 3: cannot be read, it is no UTF-8"),
        (b'm,n,k\n1,1,"1\n', "line 2: no row of a CSV"),
        (b"m,n,k\n1,1,\xc2\xb2\n", "line 2, is no extent"),
        (b"m,n,k,m\n1,1,1,1\n", "line 1: the column 'm' appears twice"),
        (b"m,n,k\n1,1," + b"9" * 5000, "line 2, is no extent"),
        (b"m,n,k\n1,1\x00,1\n", "line 2, is no extent"),
    ],
)
def test_shapes_are_named_with_their_line(tmp_path, content, words):
    path = tmp_path / "shapes.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        shapes.parse_shapes(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_rows_that_are_gone_on_with_are_named(tmp_path):
    path = tmp_path / "classes.csv"
    measured.write(path, results.CLASSES.columns, measured.class_rows())
    whole = classes.measured(path)
    path.write_text(path.read_text() + "1,2\n")
    with pytest.raises(ValueError, match=rf"{path}, line 26: 2 fields under .* columns"):
        classes.measured(path)
    path.write_bytes(b"\xff" * 9)
    with pytest.raises(ValueError, match=f"{path}, line 1: other columns"):
        classes.measured(path)
    assert whole
