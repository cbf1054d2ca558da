"""Suites: what they measure and write, that they go on where they were, and their verdicts."""

import csv
from types import SimpleNamespace

import pytest
from recorded import NoCompiler

from pymm.bench import kernels
from pymm.bench.experiments.catalog import EXPERIMENTS, suites_named
from pymm.bench.experiments.lines import RowWriter
from pymm.bench.experiments.run import Run, completed_steps
from pymm.bench.experiments.steps import RuntimeEstimate, steps_of
from pymm.bench.runner import Runner
from pymm.core.shapes import parse_shapes
from pymm.measure import results
from pymm.measure.workbench import Trial
from pymm.measure.worker_process import Reply
from pymm.selection.records import Environment


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run(path, *more, device="cpu:1"):
    return kernels.main(["--device", device, "--csv", str(path), *more])


def sizes_of(name):
    return parse_shapes(EXPERIMENTS[name].shapes)


def test_every_experiment_of_the_origins_has_a_name():
    wanted = "o1 o2-transfers o2-split o2-sizes o2-remainders o2-blocks o2-guards o2-kernels"
    wanted = [*wanted.split(), "o2-counts", "o3", "o3-pads", "o4-square", "o4-rectangular", "goals"]
    assert suites_named("all") == wanted
    assert suites_named("o4,o1") == ["o1", "o4-square", "o4-rectangular"]
    assert len(parse_shapes(EXPERIMENTS["o2-remainders"].shapes)) == 101
    sizes = parse_shapes(EXPERIMENTS["o3"].shapes)
    assert sizes[0] == (500, 500, 500) and sizes[-1] == (20500, 20500, 10250)
    assert (18500, 18500, 18500) in sizes and len(sizes) == 40
    assert sizes_of("o2-blocks") == [(n, n, n) for n in range(128, 3201, 32)]
    assert len(parse_shapes(EXPERIMENTS["o4-square"].shapes)) == 40


def test_rows_on_a_cpu_and_what_it_cannot_have(tmp_path, capsys):
    path = tmp_path / "suites.csv"
    more = ["--suite", "o1,o2-transfers,o2-kernels,o4-square", "--sequential-to", "25"]
    assert run(path, "--shapes", "20,33", *more) == 0
    rows = rows_of(path)
    assert tuple(rows[0]) == results.EXPERIMENTS.columns
    absent = [row["suite"] for row in rows if row["outcome"] == "not_applicable"]
    assert absent == ["o2-transfers", "o2-kernels"]
    simple = [r["name"] for r in rows if (r["suite"], r["m"]) == ("o1", "33")]
    assert simple == ["numpy", "00_reordered", "01_blocked"]
    for row in rows:
        if row["quantity"] and row["outcome"] != "left_out":
            assert row["outcome"] == "ok" and row["commit"] is not None
            flops = 2 * int(row["m"]) ** 3
            assert float(row["gflops"]) == pytest.approx(flops / float(row["seconds"]) / 1e9, 1e-4)
    small = {r["name"]: r for r in rows if (r["suite"], r["m"]) == ("o4-square", "20")}
    assert set(small) == {"numpy", "01_blocked", "sequential"}
    assert {row["rounds"] for row in small.values()} == {"3"}
    seconds = float(small["sequential"]["seconds"])
    blocked = small["01_blocked"]
    assert float(blocked["speedup"]) == pytest.approx(seconds / float(blocked["seconds"]), 1e-3)
    assert 0 <= float(blocked["error_inf"]) < 1e-6
    large = [r for r in rows if (r["suite"], r["m"]) == ("o4-square", "33")]
    (without,) = [row for row in large if row["name"] == "sequential"]
    assert without["outcome"] == "left_out" and "square of 25" in without["detail"]
    assert {row["speedup"] + row["error_inf"] for row in large} == {""}
    told = capsys.readouterr().out
    assert "left out: o2-transfers" in told and "o4-square: PASS" in told
    assert "PASS: 13 figures, 1 left out, 2 not applicable" in told


def test_a_run_goes_on_where_it_was(tmp_path, capsys):
    """After a kill in the middle of a line only what is not whole is measured again."""
    path = tmp_path / "suites.csv"
    assert run(path, "--suite", "o1", "--shapes", "20,33") == 0
    text = path.read_text()
    path.write_text(text[:-30])
    assert run(path, "--suite", "o1", "--shapes", "20,33") == 0
    assert "1 of 2 steps are in" in capsys.readouterr().out
    rows = rows_of(path)
    assert [row["m"] for row in rows] == ["20"] * 3 + ["33"] * 5
    assert all(None not in row.values() for row in rows)
    before = path.read_text()
    assert run(path, "--suite", "o1", "--shapes", "20,33") == 0
    assert path.read_text() == before
    path.write_text(before.replace(f"\n{results.EXPERIMENTS.number},", "\n0,"))
    assert completed_steps(path) == {}, "rows of another schema are none of ours"


def test_an_empty_file_is_a_new_one_and_another_is_refused(tmp_path, capsys):
    path = tmp_path / "suites.csv"
    path.touch()
    assert run(path, "--suite", "o2-remainders", "--shapes", "9", "--dtypes", "f64") == 0
    assert [row["dtype"] for row in rows_of(path)] == ["f64"] * 3
    path.write_text("suite,m\no1,5\n")
    with pytest.raises(SystemExit):
        run(path, "--suite", "o1", "--shapes", "9")
    assert "other columns" in capsys.readouterr().err and path.read_text() == "suite,m\no1,5\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--suite", "o9"], "o9"),
        (["--suite", "o1", "--classes", "large"], "--classes"),
        (["--suite", "o1", "--kernels", "3"], "--kernels"),
        (["--suite", "o1", "--dtypes", "f99"], "f99"),
        (["--suite", "o1", "--thin", "0"], "--thin"),
    ],
)
def test_bad_options(tmp_path, arguments, words, capsys):
    with pytest.raises(SystemExit) as ended:
        run(tmp_path / "x.csv", *arguments)
    assert ended.value.code == 2 and words in capsys.readouterr().err


def test_dry_run_says_what_and_how_long(tmp_path, capsys):
    path = tmp_path / "suites.csv"
    assert run(path, "--suite", "o2-remainders,o3,goals", "--dry-run", "--thin", "10") == 0
    told = capsys.readouterr().out
    assert "11 products" in told and "about" in told and "goals" in told
    assert not path.exists()


def test_what_is_too_slow_is_left_out_and_said(tmp_path, capsys):
    path = tmp_path / "suites.csv"
    assert run(path, "--suite", "o1", "--shapes", "300", "--slowest", "1e-9") == 0
    assert {row["outcome"] for row in rows_of(path)} == {"left_out"}
    assert all("are allowed" in row["detail"] for row in rows_of(path))
    assert run(path, "--suite", "o1", "--shapes", "20", "--time-limit", "-1") == 1
    assert "INCOMPLETE: 1 steps" in capsys.readouterr().out


class Unlucky:
    """A worker that hangs at the first request and is wrong at the second."""

    compiler = SimpleNamespace(toolchain="recorder 1.0")
    asked = 0

    def begin(self, request, limit):
        self.request = request
        self.asked += 1

    def result(self, timeout):
        request = self.request
        if self.asked == 1:
            return Reply(outcome="timed_out", detail="exceeded its time limit", lost=True)
        wrong = "C[3, 5] is 2.0 instead of 4.0 (Freivalds' check on integers)"
        trials = [
            Trial(request.problem, config, "wrong", detail=wrong if self.asked == 2 else "")
            if self.asked == 2
            else Trial(request.problem, config, "ok", 1e-3, 0.0, (1e-3,) * 3, error=0.1)
            for config in request.configs
        ]
        return Reply(tuple(trials), {"cublas": [2e-3] * 3})


def test_a_failure_is_told_with_the_first_wrong_element_and_tried_again(tmp_path, cpu):
    worker, path = Unlucky(), tmp_path / "suites.csv"
    worker.device = cpu.device
    runner = Runner(worker, results.EXPERIMENTS, path, open_compiler=NoCompiler)
    writer = RowWriter(cpu.device, Environment("", "recorder 1.0"))
    steps, _ = steps_of(EXPERIMENTS["o1"], cpu.device, None, [(8, 8, 8), (9, 9, 9)])
    held = Run(runner, writer)
    held.run(steps)
    assert held.verdict.status == 1
    told = list(held.verdict.lines())
    assert told[0].startswith("o1: FAIL") and "timed_out: exceeded" in told[-1]
    again = Run(runner, writer)
    again.run(steps)
    assert worker.asked == 4 and again.verdict.status == 0
    rows = rows_of(path)
    assert {row["detail"] for row in rows if row["outcome"] == "wrong"} == {
        "C[3, 5] is 2.0 instead of 4.0 (Freivalds' check on integers)"
    }
    timed = [row for row in rows if row["config"] and row["outcome"] == "ok"]
    assert {row["ratio"] for row in timed} == {"2"}


def test_rates_are_learnt(cpu):
    estimate = RuntimeEstimate(cpu.device)
    step = steps_of(EXPERIMENTS["o1"], cpu.device, None, [(100, 100, 100)])[0][0]
    who = step.contestants[0]
    estimate.learn(who.config, step.problem, 0.5)
    assert estimate.seconds(who, step.problem) == pytest.approx(0.5)
    assert estimate.of_step(step) > 3
