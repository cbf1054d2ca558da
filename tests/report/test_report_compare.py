"""Two reports compared, and a sample of one measured again."""

from __future__ import annotations

import json
import math
import sys

import measured
import pytest
from report_fixtures import ENTRY, data

from pymm import __main__ as pymm_command
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import kernel_digest
from pymm.measure.workbench import Trial
from pymm.report import compare, export, main, verify


@pytest.fixture
def without_plots(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def pair(first, second, **more):
    """The pair of two measurements of the same kernel or library."""
    return compare.pairs(
        export.parse_report(data(ENTRY | first), "a"),
        export.parse_report(data(ENTRY | second, **more), "b"),
    )[0][0]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        ({}, {}, "as fast"),
        ({}, {"seconds": 1.01e-4}, "as fast"),  # runs differ
        ({}, {"seconds": 0.9e-4}, "faster"),
        ({}, {"seconds": 1.1e-4}, "slower"),
        ({"spread": 0.5, "rounds": 5}, {"seconds": 1.1e-4}, "unclear"),  # noise within the first
        ({"spread": 0.5, "rounds": 5}, {}, "unclear"),  # equal, but nobody knows
        ({"spread": 0.05, "rounds": 5}, {"seconds": 1.03e-4}, "unclear"),
        ({"spread": 0.5, "rounds": 5}, {"seconds": 9e-4}, "slower"),
    ],
)
def test_only_what_is_beyond_the_noise_counts(first, second, verdict):
    assert pair(first, second).verdict == verdict


def test_noise_between_runs_is_estimated_from_the_libraries():
    def run(factors):
        rows = [
            {"problem": f"f32-NN-{n}x8x8", "who": "cublas", "seconds": 1e-4 * factor}
            for n, factor in enumerate(factors, 1)
        ]
        return export.parse_report(data(ENTRY, *rows), "run")

    still, shaky = [1.0] * 10, [1.0, 1.05] * 5
    assert compare.pairs(run(still), run(still))[1] == 0.01
    assert 0.05 < compare.pairs(run(still), run(shaky))[1] < 0.08
    assert compare.pairs(run(still[:3]), run(shaky[:3]))[1] == compare.BETWEEN


def test_what_matmul_chooses_is_compared_whichever_kernel_it_is():
    chosen = {"variant": "chosen"}
    assert pair(chosen, chosen | {"kernel": "01_blocked"}).verdict == "as fast"
    with pytest.raises(IndexError):
        pair({"variant": "tuned"}, {"variant": "tuned", "kernel": "01_blocked"})


def test_two_folders_are_compared(tmp_path, capsys, without_plots):
    before = measured.folder(tmp_path / "before", sparse=16)
    after = measured.folder(tmp_path / "after", sparse=16, faster=1.25)
    arguments = ["--compare", str(before), str(after), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "the second is faster: 24 " in said and "the second is slower: 0 " in said
    target = tmp_path / "out" / f"{measured.SLUG}-and-{measured.SLUG}"
    found = json.loads((target / "report.json").read_text())
    assert {p["verdict"] for p in found["pairs"] if p["contestant"] == "cuBLAS"} == {"as fast"}
    assert "1.25" in (target / "report.md").read_text()


def test_nothing_in_common_is_reported(tmp_path, capsys):
    for name, entry in (("a", ENTRY), ("b", ENTRY | {"problem": "f64-NN-8x8x8"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(data(entry)))
    assert main(["--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 1
    assert "no measurement in common" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not a report"),
        ("[]", "has no measurements"),
        (json.dumps(data(schema=9)), "has schema 9; this pymm reads 1: make it again"),
        (json.dumps({"schema": 1, "measurements": []}), "names no device"),
        (json.dumps(data(ENTRY | {"problem": "x"})), "measurement 0 is invalid"),
        (json.dumps(data(ENTRY | {"seconds": 0})), "seconds is 0, not a number from"),
        (json.dumps(data({"problem": "f32-NN-8x8x8"})), "measurement 0 is invalid"),
    ],
)
def test_what_is_no_report_is_refused(tmp_path, capsys, text, words):
    path = tmp_path / "report.json"
    path.write_text(text)
    with pytest.raises(ValueError, match="report"):
        export.read_report(path)
    with pytest.raises(SystemExit) as stop:
        pymm_command.main(["verify", str(path)])
    assert stop.value.code == 2 and words in capsys.readouterr().err


def remeasurement(seconds, spread=0.0, outcome="ok", tolerance=0.05):
    then = export.parse_report(data(ENTRY), "then").timings[0]
    kernel = find_kernel("reordered", "cpu")
    config = kernel.config(dict(kernel.default))
    times = (seconds,) * 25 if seconds else ()
    trial = Trial(Problem(64, 64, 64), config, outcome, seconds=seconds, spread=spread, times=times)
    return verify.Remeasurement(then, trial, tolerance)


def test_a_remeasurement_agrees_within_tolerance_and_noise():
    assert (
        remeasurement(1e-4).agrees
        and remeasurement(1.04e-4).agrees
        and remeasurement(0.96e-4).agrees
    )
    assert not remeasurement(1.2e-4).agrees and not remeasurement(0.8e-4).agrees
    assert remeasurement(1.2e-4, spread=0.5).agrees  # its own noise is larger
    assert remeasurement(1.2e-4, tolerance=0.3).agrees
    assert not remeasurement(0.0, outcome="wrong").agrees
    low, high = remeasurement(1e-4, spread=0.02).interval
    error = 1.2533 / 1.349 / 5 * math.hypot(0.01, 0.02)
    assert (low, high) == pytest.approx((1 - 2 * error, 1 + 2 * error))


def test_measurements_of_changed_kernels_are_left_out():
    now = kernel_digest("cpu", find_kernel("reordered", "cpu").file)
    entries = [
        ENTRY | {"source": now},
        ENTRY | {"source": "0" * 12, "variant": "tuned"},
        ENTRY | {"config": "gone-MB1", "variant": "other"},
        {"problem": "f32-NN-64x64x64", "who": "numpy", "seconds": 1},
    ]
    found, changed = verify.eligible(export.parse_report(data(*entries), "report"), "cpu")
    assert len(found) == 1 and changed == 2


def test_a_sample_is_measured_again(cpu, tmp_path, capsys):
    """Really, on one thread: a million times the tolerance agrees, a thousandth of the time not."""
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data(ENTRY, slug=cpu.device.slug)))
    arguments = ["verify", str(path), "--device", "cpu:1", "--rounds", "3"]
    assert pymm_command.main([*arguments, "--tolerance", "1e6"]) == 0
    assert "AGREE: 1 of 1" in capsys.readouterr().out
    path.write_text(json.dumps(data(ENTRY | {"seconds": 1e-9}, slug=cpu.device.slug)))
    assert pymm_command.main(arguments) == 1
    assert "DISAGREE: 0 of 1" in capsys.readouterr().out


def test_a_sample_stops_in_time(cpu, tmp_path, capsys):
    """One measurement is always made; what is left out is said, and no part of the verdict."""
    path = tmp_path / "report.json"
    entries = [ENTRY | {"problem": f"f32-NN-64x64x{k}"} for k in (63, 64, 65)]
    path.write_text(json.dumps(data(*entries, slug=cpu.device.slug)))
    arguments = ["verify", str(path), "--device", "cpu:1", "--rounds", "3", "--tolerance", "1e6"]
    assert pymm_command.main([*arguments, "--time-limit", "0"]) == 0
    said = capsys.readouterr().out
    assert "2 left out after 0 s" in said and "AGREE: 1 of 1" in said


def test_another_device_and_no_device_are_reported(tmp_path, capsys):
    path = tmp_path / "report.json"
    path.write_text(json.dumps(data(ENTRY, slug="nvidia-none")))
    assert pymm_command.main(["verify", str(path), "--device", "cpu:1"]) == 3
    assert "is of nvidia-none; this is " in capsys.readouterr().err
    assert pymm_command.main(["verify", str(path), "--device", "abacus"]) == 3


def test_a_device_is_described(tmp_path, capsys):
    assert main(["--describe", "cpu:1", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/device.json")
    said = json.loads(path.read_text())
    assert said["slug"] == path.parent.name and said["kind"] == "cpu" and said["cores"] == 1
    assert said["peak_flops"]["f32"] > said["peak_flops"]["f64"] > 1e9
    assert main(["--describe", "abacus", "--results", str(tmp_path)]) == 3
