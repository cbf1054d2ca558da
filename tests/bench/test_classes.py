"""The run over all classes: which products, one row each, going on after a break."""

import csv
import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
from h200 import H200
from recorded import NoCompiler

from pymm.bench import classes, kernels, runner
from pymm.core import shapes
from pymm.core.device import Device
from pymm.core.errors import Busy
from pymm.core.problem import Problem
from pymm.core.shapes import class_problems
from pymm.measure import results
from pymm.measure.workbench import Trial
from pymm.measure.worker import devices_alone
from pymm.measure.worker_process import Reply
from pymm.selection.select import select


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """Classes of small products."""
    sets = {"large": "40", "small": "8", "odd": "7,9x3x5", "rank-k": "16x16x2", "skinny": "1x9x9"}
    monkeypatch.setattr(shapes, "shapes_of", lambda dtype: sets)


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def run(path, *more):
    where = ["--device", "cpu:1", "--rounds", "5", "--csv", str(path)]
    return kernels.main(["--dtypes", "f64", *where, *more])


def test_one_row_for_each_product_and_nothing_twice(tmp_path, capsys):
    path = tmp_path / "classes.csv"
    assert run(path, "--classes", "small,odd", "--transposes", "NN,TT") == 0
    rows = rows_of(path)
    assert tuple(rows[0]) == results.CLASSES.columns
    named = [(r["class"], r["layout"], r["m"], r["n"], r["k"]) for r in rows]
    assert named[:3] == [
        ("small", "NN", "8", "8", "8"),
        ("odd", "NN", "7", "7", "7"),
        ("odd", "NN", "9", "3", "5"),
    ]
    assert len(rows) == len(set(named)) == 6
    for row in rows:
        assert row["outcome"] == "ok" and row["reason"]
        assert float(row["us"]) > 0 and float(row["ratio"]) > 0
        assert float(row["error"]) <= 1 and float(row["rms"]) < 1e-14
        flops = 2 * int(row["m"]) * int(row["n"]) * int(row["k"])
        assert float(row["gflops"]) == pytest.approx(flops / float(row["us"]) / 1e3, rel=1e-4)
    assert run(path, "--classes", "all", "--transposes", "NN,TT") == 0
    assert len(rows_of(path)) == 12, "only what was not there"


def benchmark(worker, path=None, requested=None, open_compiler=NoCompiler, **more):
    one = runner.Runner(worker, results.CLASSES, path, open_compiler=open_compiler, **more)
    return classes.ClassBenchmark(one, None, requested or {})


class Unlucky:
    """A worker whose first request hangs; the others are answered."""

    device = Device("recorder", "cuda", capability=(9, 0), sms=132, peak_flops={"f32": 1e12})
    compiler = SimpleNamespace(toolchain="recorder 1.0")
    asked = 0

    def begin(self, request, limit):
        self.request, self.limit = request, limit
        self.asked += 1

    def result(self, timeout):
        if self.asked == 1:
            return Reply(outcome="timed_out", detail="exceeded its time limit", lost=True)
        (config,) = self.request.configs
        trial = Trial(self.request.problem, config, "ok", 1e-5, 0.01, (1e-5,) * 5, error=0.5)
        times = {"cublas": [2e-5] * 5, "cublaslt": [1.5e-5] * 5, "triton": [3e-5] * 5}
        return Reply((trial,), times, deviations={config.slug: 1e-7, "cublaslt": 2e-7})


def test_a_kernel_that_hangs_costs_its_row_and_is_tried_again(tmp_path):
    worker, path = Unlucky(), tmp_path / "classes.csv"
    held = benchmark(worker, path)
    entries = held.entries(class_problems(["small", "large"], ["f32"], ["NN"]))
    assert held.run(entries) == 1
    first, second = rows_of(path)
    assert (first["outcome"], first["us"]) == ("timed_out", "") and "limit" in first["detail"]
    assert (second["us"], second["ratio"], second["triton_ratio"]) == ("10", "1.5", "3")
    assert (second["rms"], second["opponent_rms"]) == ("1e-07", "2e-07")
    assert worker.limit < 60, "not the minutes that a thorough check may take"
    assert held.run(entries) == 0 and worker.asked == 3
    assert [row["outcome"] for row in rows_of(path)] == ["timed_out", "ok", "ok"]


class Disturbed(Unlucky):
    """A host that is late now and then, and for cuBLAS always."""

    def result(self, timeout):
        self.asked = 2
        reply = super().result(timeout)
        void = {self.request.configs[0].slug: 3, "cublas": 4}
        if self.request.problem.m < 30:
            reply.times["cublas"].clear()
        return replace(reply, void=void)


def test_rows_say_how_many_samples_were_void(tmp_path):
    path = tmp_path / "classes.csv"
    held = benchmark(Disturbed(), path)
    assert held.run(held.entries(class_problems(["small", "large"], ["f32"], ["NN"]))) == 1
    large, small = rows_of(path)
    assert (large["outcome"], large["void"], large["ratio"]) == ("ok", "7", "1.5")
    assert (small["outcome"], small["void"], small["us"]) == ("disturbed", "7", "")
    assert "host launch delay in the samples of cublas" in small["detail"]


class Compiling(NoCompiler):
    """A pool that says what it was asked for, and when somebody waits for it."""

    def submit(self, source):
        self.said.append("text")
        return super().submit(source)


@pytest.mark.parametrize("meanwhile", [False, True])
def test_all_is_compiled_before_anything_is_measured(meanwhile, monkeypatch):
    waited = []

    def all_done(builds, timeout):
        waited.append(len(builds))
        return SimpleNamespace(not_done=())

    monkeypatch.setattr(runner, "wait", all_done)
    monkeypatch.setattr(Compiling, "said", [], raising=False)
    held = benchmark(Disturbed(), meanwhile=meanwhile, open_compiler=Compiling)
    held.run(held.entries(class_problems(["odd", "large"], ["f32"], ["NN"])))
    assert Compiling.said == ["text"] * 3 and waited == ([] if meanwhile else [3])


def test_short_products_come_before_those_that_heat_the_device(tmp_path, monkeypatch):
    path, rounds = tmp_path / "classes.csv", []
    monkeypatch.setattr(classes, "SHORT", 1e-7)
    patient = Disturbed()
    monkeypatch.setattr(
        patient,
        "begin",
        lambda request, limit: (
            rounds.append((request.problem.m, request.rounds)),
            Disturbed.begin(patient, request, limit),
        ),
    )
    held = benchmark(patient, path)
    problems = class_problems(["large", "small", "odd"], ["f32"], ["NN"])
    held.run(held.entries(problems))
    short = [p.m for _, p in problems if p.flops < 1e5]
    long = [p.m for _, p in problems if p.flops >= 1e5]
    expected = [(m, classes.SHORT_ROUNDS) for m in short] + [(m, classes.ROUNDS) for m in long]
    assert short and long and rounds == expected


def test_a_run_that_is_cut_off_says_so(tmp_path, capsys):
    path = tmp_path / "classes.csv"
    assert run(path, "--classes", "odd", "--transposes", "NN", "--time-limit", "-1") == 1
    assert "2 products left out" in capsys.readouterr().out
    assert not path.exists()


def test_nothing_is_measured_beside_another_run(capsys):
    """The lock is the tuner's. It is held to the end, and free for the next run then."""
    problems = class_problems(["odd"], ["f32"], ["NN"])
    locked = partial(devices_alone, [Disturbed.device], lambda: True, print)

    class Locked(Disturbed):
        def begin(self, request, limit):
            with pytest.raises(Busy), locked():
                raise AssertionError("the benchmark holds no lock")
            super().begin(request, limit)

    worker = Locked()
    with locked():
        waiting = benchmark(worker, deadline=-1.0)
        assert waiting.run(waiting.entries(problems)) == 0
        assert worker.asked == 0 and waiting.runner.left == len(problems) > 0
    told = capsys.readouterr().out
    assert "Another run of pymm measures on this device: waiting for it." in told
    assert "another run measured on this device until the time was over" in told
    held = benchmark(worker)
    held.run(held.entries(problems))
    assert worker.asked and held.runner.left == 0
    with locked():
        pass


def test_triton_is_measured_in_the_layouts_asked_for(tmp_path, monkeypatch, capsys):
    asked = []
    patient = Disturbed()
    monkeypatch.setattr(
        patient,
        "begin",
        lambda request, limit: (
            asked.append((request.problem.layout, request.requested)),
            Disturbed.begin(patient, request, limit),
        ),
    )
    held = benchmark(patient, requested={"triton": ("NN",)})
    held.run(held.entries(class_problems(["large"], ["f32"], ["NN", "TT"])))
    assert asked == [("NN", ("triton",)), ("TT", ())]
    with pytest.raises(SystemExit):
        kernels.main(["--classes", "all", "--triton", "XX"])
    assert "'XX' is no list of NN, NT, TN, TT" in capsys.readouterr().err


def test_dry_run_measures_nothing(tmp_path, capsys):
    path = tmp_path / "classes.csv"
    assert run(path, "--classes", "all", "--transposes", "NN", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "6 products" in text and "f64-NN-9x3x5" in text
    assert not path.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--classes", "huge"], "huge"),
        (["--classes", "all", "--shapes", "4"], "one of the two"),
        ([], "one of the two"),
    ],
)
def test_bad_options(tmp_path, arguments, words, capsys):
    with pytest.raises(SystemExit):
        run(tmp_path / "x.csv", *arguments)
    assert words in capsys.readouterr().err


def test_all_classes_have_every_type_and_layout(monkeypatch):
    monkeypatch.undo()
    layouts = ("NN", "NT", "TN", "TT")
    found = class_problems(["all"], ["f32", "tf32x3"], layouts)
    assert found[0] == ("large", Problem(2048, 2048, 2048))
    assert len(found) == 4 * (21 + 8)
    assert len({problem for _, problem in found}) == len(found)
    assert math.prod(problem.m for _, problem in found) > 0


def test_what_is_measured_is_what_matmul_would_compute(monkeypatch):
    """Of types that split operands: float32 where that should be quicker, in rows of the type."""
    held = benchmark(Disturbed())
    held.device = H200
    few, many = (Problem(64, n, 2112, "tf32x3", False, True) for n in (7168, 64))
    large = Problem(4096, 4096, 4096, "f16x3")
    entries = held.entries([("llm", few), ("llm", many), ("large", large)])
    assert [entry.asked for entry in entries] == [few, many, large]
    assert [entry.problem.dtype for entry in entries] == ["f32", "f32", "f16x3"]
    for entry in entries:
        assert entry.problem.dtype in entry.choice.config.kernel.dtypes
        assert f"in {entry.asked.dtype}" in entry.reason and "in f32" in entry.reason
        assert entry.key[1] == held._named(entry)["dtype"] == entry.asked.dtype
    held.device = Device("cpu", "cpu")
    assert held.entries([("llm", few), ("large", large)]) == []


def test_populations_have_rows_of_their_own_and_go_on(tmp_path, monkeypatch, capsys):
    """Two runs, by classes and types, append to one file; nothing is measured twice."""
    member = shapes.Member
    monkeypatch.setitem(shapes.FIXED, "batch", [member(5, 5, 5, "NN", 7), member(5, 5, 5, "NN", 3)])
    small = (lambda uniform: member(int(9 * uniform()) + 1, 3, 2, "TN"), 3)
    monkeypatch.setitem(shapes.DRAWN, "random", small)
    path, where = tmp_path / "classes.csv", ["--device", "cpu:1", "--rounds", "5"]
    command = [*where, "--classes", "random,batch", "--seed", "12", "--csv", str(path)]
    assert kernels.main([*command, "--dtypes", "f64", "--count", "2"]) == 0
    assert kernels.main([*command, "--dtypes", "f64,f32"]) == 0
    assert kernels.main([*command, "--dtypes", "f64,f32"]) == 0
    rows = rows_of(path)
    assert len(rows) == 2 * (3 + 2)
    assert [r["class"] for r in rows[:4]] == ["random-12"] * 2 + ["batch"] * 2
    assert [(r["batch"], r["outcome"]) for r in rows if r["class"] == "batch"] == [
        ("7", "ok"),
        ("3", "ok"),
        ("7", "ok"),
        ("3", "ok"),
    ]
    assert all(float(r["ratio"]) > 0 and float(r["rms"]) < 1e-6 for r in rows)


def test_populations_are_not_measured_with_the_users_records(tmp_path, monkeypatch):
    asked = []

    def choose(problem, device, directory, environment):
        asked.append((problem.m, directory))
        return select(problem, device, None, environment)

    monkeypatch.setattr(classes, "select", choose)
    problems = [("large", Problem(1, 1, 1)), ("random-4", Problem(2, 2, 2))]
    for records, expected in ((None, None), (tmp_path, tmp_path)):
        asked.clear()
        held = benchmark(Disturbed())
        held.directory, held.for_populations = tmp_path, records
        assert [entry.asked for entry in held.entries(problems)] == [p for _, p in problems]
        assert asked == [(1, tmp_path), (2, expected)]


@pytest.mark.parametrize("text", ["x", "-1", "1e3", "9" * 13])
def test_seeds_are_whole_numbers(text, capsys):
    with pytest.raises(SystemExit):
        kernels.main(["--classes", "random", f"--seed={text}"])
    assert "no whole number" in capsys.readouterr().err


def test_the_ratio_is_to_the_fastest_of_all_baselines(tmp_path):
    class Tuned(Disturbed):
        def result(self, timeout):
            reply = super().result(timeout)
            times = reply.times | {"nvmath": [1.2e-5] * 5}
            return replace(reply, times=times, deviations=reply.deviations | {"nvmath": 3e-7})

    path = tmp_path / "classes.csv"
    held = benchmark(Tuned(), path)
    held.run(held.entries(class_problems(["large"], ["f32"], ["NN"])))
    (row,) = rows_of(path)
    assert (row["nvmath_us"], row["ratio"], row["opponent_rms"]) == ("12", "1.2", "3e-07")


def test_older_files_are_read_and_never_appended_to(tmp_path, capsys):
    path = tmp_path / "classes.csv"
    assert run(path, "--classes", "small", "--transposes", "NN") == 0
    (new,) = rows_of(path)
    old = [name for name in results.CLASSES.columns if name not in results.CLASSES.added]
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, old, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerow(new)
    (read,) = results.CLASSES.rows(path, ("us", "nvmath_us"))
    assert read == new | dict.fromkeys(results.CLASSES.added, "")
    with pytest.raises(SystemExit):
        run(path, "--classes", "small", "--transposes", "NN")
    assert "name another file" in capsys.readouterr().err
