"""Few runs of what takes long, C + A B, and how far results are from the sequential one."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest
from recorded import NoCompiler

from pymm.backends import open_device
from pymm.bench import kernels
from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.bench.experiments.declaration import CHOSEN
from pymm.bench.experiments.lines import RowWriter
from pymm.bench.experiments.run import Run
from pymm.bench.experiments.sequential import Distance
from pymm.bench.experiments.steps import RuntimeEstimate, steps_of
from pymm.bench.runner import Runner
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, parse_slug
from pymm.measure import results, workbench
from pymm.measure.quick_check import OperandPool
from pymm.measure.workbench import Trial, Workbench
from pymm.measure.worker_process import Reply
from pymm.selection.records import Environment

BEST = parse_slug("pipelined-MB64-NB64-KB8-TA4-TB8-LANES8-STAGES4-BLOCKS1-GROUP8-SPLIT1")


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def bench_of(backend, problem, accumulate):
    quick = OperandPool(backend).verifier(problem, accumulate)
    return Workbench(backend, problem, quick=quick, accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 1), (31, 33, 7), (64, 64, 64)])
def test_one_run_is_the_product(shape, accumulate, cuda):
    """Against NumPy in float64: what C holds before is added once, or not at all."""
    problem = Problem(*shape, "f64")
    bench = bench_of(cuda, problem, accumulate)
    bench.quick.restart()
    before = bench.quick.result()
    trial = bench.few_runs(parse_slug("coalesced-MB4-NB8"))
    assert trial.outcome == "ok" and trial.seconds > 0 and len(trial.times) == 1, trial.detail
    a, b = (x.astype(np.float64) for x in bench.quick.sources())
    expected = a @ b + (before if accumulate else 0)
    assert np.isfinite(before).all() == accumulate
    np.testing.assert_allclose(bench.quick.result(), expected, rtol=1e-12, atol=1e-12)


def test_c_is_added_once_on_a_cpu_whose_shortest_run_counts():
    """There a launch is run several times to take one time."""
    bench = bench_of(open_device("cpu:1"), Problem(33, 31, 7, "f64"), True)
    bench.quick.restart()
    before = bench.quick.result()
    kernel = find_kernel("blocked", "cpu")
    trial = bench.few_runs(kernel.default_for(bench.problem, bench.backend.device))
    assert trial.outcome == "ok", trial.detail
    a, b = (x.astype(np.float64) for x in bench.quick.sources())
    np.testing.assert_allclose(bench.quick.result(), a @ b + before, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("long", "runs"), [(1e9, 3), (0.0, 1)])
def test_a_long_run_is_not_repeated(long, runs, cuda, monkeypatch):
    monkeypatch.setattr(workbench, "LONG_RUN", long)
    bench = bench_of(cuda, Problem(9, 10, 11), True)
    trial = bench.few_runs(parse_slug("coalesced-MB4-NB8"), 3)
    assert trial.outcome == "ok" and len(trial.times) == runs and 0 < trial.error <= 1


def test_a_wrong_run_is_no_time(cuda):
    bench = bench_of(cuda, Problem(33, 33, 33), True)
    trial = bench.few_runs(parse_slug("shared_tile-MB8-NB8-KB8").forcing(GUARDED=0))
    assert trial.outcome == "wrong" and not trial.times


def test_the_distance_is_that_of_the_infinity_norm(cuda):
    """Relative to the largest sum of a row's absolute values; 0 only for the very same bits."""
    problem = Problem(5, 7, 3)
    bench = bench_of(cuda, problem, False)
    config = parse_slug("naive-MB8-NB4")
    bench.few_runs(config)
    same = bench.quick.result()
    assert Distance(bench, same).measure() == 0.0
    other = same.copy()
    other[0, 2, 1] = np.nextafter(other[0, 2, 1], np.float32(np.inf))
    size = np.abs(other[0].astype(np.float64)).sum(1).max()
    apart = abs(float(other[0, 2, 1]) - float(same[0, 2, 1]))
    assert Distance(bench, other).measure() == pytest.approx(apart / size) != 0.0
    bench.quick.restart()  # a kernel that writes nothing has no result, least of all another's
    assert np.isnan(Distance(bench, same).measure())


def test_operands_do_not_depend_on_what_came_before(cuda):
    """Two processes that met other products compare the same one."""
    problem, pool = Problem(9, 8, 7, "f32"), OperandPool(cuda)
    pool.verifier(Problem(9, 9, 300, "f32", True, False, 1, "syrk")).operands  # noqa: B018
    for mine, fresh in zip(
        pool.verifier(problem).sources(), OperandPool(cuda).verifier(problem).sources(), strict=True
    ):
        np.testing.assert_array_equal(mine, fresh)


def test_long_contestants_run_apart_and_are_compared(tmp_path, cuda, monkeypatch):
    """Kernels 00 to 04 take long here, as at 10000 on a GPU; libraries and the choice do not."""
    monkeypatch.setattr(
        RuntimeEstimate,
        "is_long",
        lambda self, step, c: step.problem.m > 20 and c.variant != CHOSEN,
    )
    path = tmp_path / "suites.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path), "--slowest", "1000"]
    asked = ["--suite", "o4-square", "--shapes", "17,33", "--sequential-to", "33"]
    assert kernels.main([*where, *asked]) == 0
    found = {(r["m"], r["name"]): r for r in rows_of(path)}
    names = ("00_naive", "01_coalesced", "02_shared_tile", "03_register_tile", "04_transposed_a")
    for name in names:
        assert found["17", name]["rounds"] == found["33", name]["rounds"] == "3"
        for m in ("17", "33"):
            assert 0 < float(found[m, name]["error_inf"]) < 1e-6
            gain = float(found[m, "sequential"]["seconds"]) / float(found[m, name]["seconds"])
            assert float(found[m, name]["speedup"]) == pytest.approx(gain, rel=1e-3)
    assert found["33", "sequential"]["rounds"] == "3"


def test_what_is_long_on_a_gpu():
    """Kernels of o3 and o4 beyond 50 ms; never the choice, never where only times are wanted."""
    device = Device("some GPU", "cuda", capability=(9, 0), peak_flops={"f32": 1e13, "f64": 1e13})
    large, found = [(9000, 9000, 9000)], {}
    for name in ("o1", "o3", "o4-square"):
        ((step, *_), _) = steps_of(EXPERIMENTS[name], device, lambda p: BEST, large)
        estimate = RuntimeEstimate(device)
        found[name] = [c.name for c in step.contestants if estimate.is_long(step, c)]
        assert estimate.of_step(step) > 0
    assert found["o1"] == []
    assert found["o3"] == ["00_naive", "15_symmetric_tile"]
    names = ["00_naive", "01_coalesced", "02_shared_tile", "03_register_tile", "04_transposed_a"]
    assert found["o4-square"] == names


def test_libraries_are_measured_beside_long_contestants_alone(cpu, monkeypatch):
    """Although nothing else is left for the rounds that they take part in."""
    monkeypatch.setattr(RuntimeEstimate, "is_long", lambda self, step, c: True)
    asked = []

    class Recorder:
        device, compiler = cpu.device, SimpleNamespace(toolchain="recorder 1.0")

        def begin(self, request, limit):
            asked.append(request)

        def result(self, timeout):
            trials = [
                Trial(asked[-1].problem, c, "ok", 1.0, 0.0, (1.0,)) for c in asked[-1].configs
            ]
            return Reply(tuple(trials), {"numpy": [2.0]} if asked[-1].against_others else {})

    runner = Runner(Recorder(), results.EXPERIMENTS, open_compiler=NoCompiler)
    steps, _ = steps_of(EXPERIMENTS["o3"], cpu.device, None, [(8, 8, 8)])
    held = Run(runner, RowWriter(cpu.device, Environment("", "recorder 1.0")), 1e9)
    held.run(steps)
    assert [len(request.configs) for request in asked] == [0, 2]
    assert held.verdict.rows["o3", "ok"] == 3 and held.verdict.status == 0


def test_the_naive_kernel_of_o3_computes_all_of_c(tmp_path, cuda):
    path = tmp_path / "suites.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path), "--slowest", "1000"]
    assert kernels.main([*where, "--suite", "o3,o3-pads", "--shapes", "50x50x25"]) == 0
    rows = [row for row in rows_of(path) if row["config"]]
    assert [row["name"] for row in rows[:2]] == ["00_naive", "15_symmetric_tile"]
    assert rows[0]["variant"] == "all of C" and rows[0]["config"].endswith("-FILL0")
    assert [r["config"].rpartition("PAD")[2] for r in rows if r["suite"] == "o3-pads"] == [
        *("1", "2", "4", "8", "16")
    ]
    assert {row["outcome"] for row in rows} == {"ok"}
