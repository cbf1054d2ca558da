"""Suites on a GPU or in the simulator: journeys, resources, counts, what a profiler says."""

import csv
import math
import stat
from collections import Counter
from types import SimpleNamespace

import pytest

from pymm.backends import telemetry
from pymm.backends.base import Resources
from pymm.bench import kernels
from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.bench.experiments.counts import formula, occupancy
from pymm.bench.experiments.declaration import fixed
from pymm.bench.experiments.lines import RowWriter
from pymm.bench.experiments.profiled import METRICS
from pymm.bench.experiments.run import Run
from pymm.bench.experiments.steps import steps_of
from pymm.bench.runner import Runner
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import parse_slug
from pymm.measure import results
from pymm.measure.worker import Request, Site, Worker
from pymm.selection.records import Environment

HOPPER = Device("NVIDIA H200", "cuda", capability=(9, 0), sms=132, shared_per_sm=233472)


def rows_of(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_journeys_and_the_table_of_kernels(tmp_path, cuda):
    path = tmp_path / "suites.csv"
    where = ["--device", cuda.device.kind, "--csv", str(path)]
    assert kernels.main([*where, "--suite", "o2-transfers", "--shapes", "33"]) == 0
    rows = rows_of(path)
    found = Counter((row["name"], row["quantity"], row["transfer"]) for row in rows)
    ways = ("pageable", "pinned", "registered", "locked")
    for way in ways:
        assert found["copies", "to_device", way] == found["copies", "to_host", way] == 1
        assert found["01_coalesced", "total", way] == found["02_shared_tile", "total", way] == 1
    assert found["02_shared_tile", "kernel", ""] == 1 and all(float(r["seconds"]) > 0 for r in rows)
    table = ["--suite", "o2-kernels", "--shapes", "33", "--dtypes", "f64", "--slowest", "10"]
    assert kernels.main([*where, *table]) == 0
    beside = ["--suite", "o4-square", "--shapes", "33", "--sequential-to", "40", "--slowest", "10"]
    assert kernels.main([*where, *beside]) == 0
    ladder = {r["name"]: r for r in rows_of(path) if r["suite"] == "o4-square" and r["config"]}
    assert {"00_naive", "04_transposed_a"} < set(ladder)
    assert all(0 <= float(r["error_inf"]) < 1e-5 for r in ladder.values())
    tile = {r["quantity"]: r for r in rows_of(path) if r["name"] == "03_register_tile"}
    assert (tile["grid"]["value"], tile["block"]["value"]) == ("1x1x1", "16x16x1")
    assert tile["shared"]["value"] == str(16 * 128 * 8)
    assert 0 < float(tile["occupancy"]["value"]) <= 1 and tile["limited_by"]["value"]


@pytest.mark.simulator
def test_counts_are_exact(tmp_path):
    """Against counts of the same loops, taken by hand: tiles that stick out are cut."""
    m, n, k = 19, 21, 10
    problem = Problem(m, n, k, "f64")
    worker = Worker(Site("simulator"))
    worker.start()
    try:
        texts = ("01-MB8-NB8", "02-MB8-NB8-KB8", "03-MB16-NB16-KB8-TA2-TB2")
        configs = tuple(fixed(text, problem, worker.device)[1] for text in texts)
        request = Request("pymm.bench.experiments.counts:measure", problem, configs, quick=True)
        reply = worker.ask(request, 300)
    finally:
        worker.stop()
    assert [trial.outcome for trial in reply.trials] == ["ok"] * 3, reply.detail
    for config in configs:
        rows, columns = math.ceil(m / config.MB), math.ceil(n / config.NB)
        threads = rows * columns * config.kernel.threads(config)
        own = {
            name: round(reply.times[f"{config.slug}|{name}"][0] * threads)
            for name in (
                "global_loads",
                "global_stores",
                "shared_loads",
                "shared_stores",
                "operations",
                "global_accesses",
            )
        }
        assert own["global_stores"] == m * n
        if config.kernel.number == 1:
            assert own["global_loads"] == 2 * m * n * k
            assert own["operations"] == m * n * (2 * k + 1)
            assert own["shared_loads"] == own["shared_stores"] == 0
            continue
        steps, wide = math.ceil(k / config.KB), getattr(config, "TA", 1) + getattr(config, "TB", 1)
        assert own["global_loads"] == m * k * columns + k * n * rows
        deep = config.KB * (config.MB + config.NB)
        assert own["shared_stores"] == rows * columns * steps * deep
        assert own["shared_loads"] == threads * wide * config.KB * steps
        assert own["global_accesses"] == own["global_loads"] + m * n
    whole = formula(configs[1], Problem(16, 16, 64))
    assert whole["global_accesses"] == 2 * 64 / 8 + 1 and whole["operations"] == 2 * 64 + 1


def test_occupancy():
    """Register file, threads and shared memory of compute capability 9.0, worked out by hand."""
    problem, tile = Problem(4096, 4096, 4096), parse_slug("register_tile-MB64-NB64-KB16-TA4-TB4")
    full = occupancy(tile, problem, Resources(32, 0, 8192), HOPPER)
    assert (full.blocks, full.part, full.limited_by) == (8, 1.0, "threads")
    half = occupancy(tile, problem, Resources(64, 0, 8192), HOPPER)
    assert (half.blocks, half.part, half.limited_by) == (4, 0.5, "registers")
    wide = occupancy(tile, problem, Resources(32, 0, 47 * 1024), HOPPER)
    assert (wide.blocks, wide.limited_by) == (4, "shared memory")
    small = occupancy(parse_slug("coalesced-MB4-NB8"), problem, Resources(32, 0, 0), HOPPER)
    assert (small.blocks, small.part, small.limited_by) == (32, 0.5, "blocks")


NCU = """\
echo "==PROF== Connected to process 1"
echo '"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"'
for id in {ids}; do echo "\\"$id\\",\\"gemm\\",\\"{metric}\\",\\"Gbyte/s\\",\\"1,234.5\\""; done
"""


def profile_with(script, tmp_path, monkeypatch):
    """The rows of a profile of two launches by an `ncu` that is this script."""
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\n{script}")
    ncu.chmod(ncu.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(telemetry, "find_profiler", lambda: str(ncu))
    path = tmp_path / "suites.csv"
    problem = Problem(64, 64, 64)
    steps, _ = steps_of(EXPERIMENTS["o2-blocks"], HOPPER, None, [(problem.m, problem.n, problem.k)])
    few = steps[0].__class__(EXPERIMENTS["o2-kernels"], problem, steps[0].contestants[:2])
    worker = SimpleNamespace(device=HOPPER, compiler=SimpleNamespace(toolchain="nvcc"))
    runner = Runner(worker, results.EXPERIMENTS, path)
    held = Run(runner, RowWriter(HOPPER, Environment("", "nvcc")))
    held.profile([few])
    return rows_of(path), held


def test_what_the_profiler_says_becomes_rows(tmp_path, monkeypatch):
    script = NCU.format(ids="0 1", metric=METRICS[4])
    rows, held = profile_with(script, tmp_path, monkeypatch)
    assert [(r["config"], r["quantity"], r["value"], r["unit"]) for r in rows] == [
        (config, f"ncu:{METRICS[4]}", "1234.5", "Gbyte/s")
        for config in ("coalesced-MB8-NB8", "coalesced-MB16-NB16")
    ]
    held.profile([])
    assert held.verdict.status == 0


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo '==ERROR== ERR_NVGPUCTRPERM: no permission'; exit 1", "ERR_NVGPUCTRPERM"),
        (NCU.format(ids="0", metric=METRICS[4]), "1 of 2"),
        ("exit 3", "exit status 3"),
    ],
)
def test_a_profiler_that_may_not_is_said(script, words, tmp_path, monkeypatch, capsys):
    rows, held = profile_with(script, tmp_path, monkeypatch)
    assert [row["outcome"] for row in rows] == ["not_applicable"] and words in rows[0]["detail"]
    assert words in capsys.readouterr().out and held.verdict.status == 0
