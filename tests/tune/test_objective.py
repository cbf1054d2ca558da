"""Objectives: time, energy, both; what is searched, saved, shown and then chosen."""

from __future__ import annotations

import math

import numpy as np
import pytest
import yaml
from host_device import HostDevice
from hypothesis import given
from hypothesis import strategies as st
from recorded import RecordedWorker
from recorded_run import BEST, GPU, KERNEL, Run, smooth

import pymm
from pymm.core.errors import StoreError
from pymm.core.paths import config_directory
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure.workbench import Trial
from pymm.selection import store
from pymm.selection.records import Environment, Record, source_changed
from pymm.tune.finals import record_of
from pymm.tune.objective import ENERGY_TIE, Cost, least_energy, pareto
from pymm.tune.tuner import BAD_OPTIONS, TUNED

THRIFTY = KERNEL.config({"MB": 64, "NB": 64, "KB": 8, "TA": 4, "TB": 8})


def measured(config, problem):
    """The least time at `BEST`, the least energy at `THRIFTY`."""
    pairs = zip(config.parameters, THRIFTY.parameters, strict=True)
    far = sum(abs(math.log2(x / y)) for (_, x), (_, y) in pairs)
    return {"seconds": smooth(config, problem), "joules": 0.05 * (1 + 0.3 * far)}


def energies(folder):
    return store.load(GPU, folder / "out" / "energy")


def test_the_least_energy_is_searched_and_saved_apart(tmp_path):
    run = Run(tmp_path, "--trials 120 --sampler local --objective energy", measured)
    assert run.status == TUNED, run.output
    assert all(request.energy for worker in run.workers for request in worker.requests)
    (record,) = energies(tmp_path)
    assert record.joules <= 0.05 * 1.31 and record.seconds == smooth(record.config, None)
    rows = [row for row in run.rows if row["joules"]]
    best = min(float(row["joules"]) for row in rows if row["role"] == "search")
    assert record.joules == pytest.approx(best)
    assert not run.records, "what is fastest was not searched for"
    assert "least energy" in run.output and record.config.slug in run.output


def test_both_are_saved_and_the_front_is_shown(tmp_path):
    run = Run(tmp_path, "--trials 60 --sampler local --objective both", measured)
    assert run.status == TUNED, run.output
    (fast,), (thrifty,) = run.records, energies(tmp_path)
    assert fast.seconds <= thrifty.seconds and math.isnan(fast.joules)
    finals = [row for row in run.rows if row["role"] == "final"]
    assert min(float(row["joules"]) for row in finals) >= thrifty.joules / (1 + ENERGY_TIE)
    table = run.output.split("(Pareto front)")[1]
    found = [float(row["joules"]) for row in run.rows if row["role"] == "search" and row["joules"]]
    shown = [line for line in table.splitlines() if " mJ" in line]
    assert f" {min(found) * 1e3:.4g} mJ" in shown[-1], "the last one has the least energy"


def test_a_search_for_time_measures_no_energy_and_its_results_are_another_study(tmp_path):
    plain = Run(tmp_path, "--trials 8")
    assert not any(request.energy for worker in plain.workers for request in worker.requests)
    assert {row["joules"] for row in plain.rows} == {""} and not energies(tmp_path)
    other = Run(tmp_path, "--trials 8 --objective energy", measured)
    assert "goes on after" not in other.output
    again = Run(tmp_path, "--trials 8 --objective energy", measured)
    assert "goes on after 8 configurations" in again.output
    (record,) = energies(tmp_path)
    known = [float(row["joules"]) for row in again.rows if row["joules"]]
    default = measured(KERNEL.default_config, None)["joules"]
    assert record.joules == pytest.approx(min(known)) or default <= min(known) * (1 + ENERGY_TIE)


def test_without_a_counter_nothing_begins(tmp_path):
    run = Run(tmp_path, "--objective both", no_energy="the GPU has no counter")
    assert run.status == BAD_OPTIONS and "--objective both: the GPU has no counter" in run.output
    assert not (tmp_path / "trials.csv").exists()


def test_what_is_stored_as_thriftiest_is_compared_again(tmp_path):
    Run(tmp_path, "--trials 3 --objective energy", lambda c, p: measured(c, p) | {"spread": 0.0})
    environment = Environment("", "recorder 1.0")
    trial = Trial(Problem(256, 256, 256), THRIFTY, "ok", 1e-3, 0.0, joules=0.05)
    record = Record(**{**record_of(trial, environment).__dict__, "joules": 0.05})
    store.put([record], GPU, tmp_path / "out" / "energy")
    run = Run(tmp_path, "--trials 1 --objective energy", measured)
    finals = {row["config"] for row in run.rows if row["role"] == "final"}
    assert THRIFTY.slug in finals
    assert THRIFTY in {record.config for record in energies(tmp_path)}


class Slowest(RecordedWorker):
    """Energy is measured of what is not far too slow only."""

    def _trial(self, request, config):
        trial = super()._trial(request, config)
        slow = trial.seconds > 3e-4 and request.action == "measure"
        return Trial(trial.problem, config, "too_slow", trial.seconds) if slow else trial


def test_a_trial_without_energy_is_no_result_of_a_search_for_it(tmp_path):
    run = Run(tmp_path, "--trials 40 --objective energy", measured, worker=Slowest)
    assert run.status == TUNED, run.output
    assert energies(tmp_path)[0].joules > 0


COSTS = st.lists(
    st.tuples(st.floats(1e-6, 1), st.one_of(st.just(math.nan), st.floats(1e-6, 1))), max_size=9
)


@given(COSTS)
def test_the_front_is_what_none_other_dominates(given_costs):
    costs = {number: Cost(*cost) for number, cost in enumerate(given_costs)}
    front = pareto(costs)
    known = {cost for cost in costs.values() if cost.joules > 0}

    def dominated(one):
        return any(
            other.seconds <= one.seconds and other.joules <= one.joules and other != one
            for other in known
        )

    assert {cost for _, cost in front} == {cost for cost in known if not dominated(cost)}
    assert [cost.seconds for _, cost in front] == sorted({cost.seconds for _, cost in front})


def trial(config, joules, outcome="ok"):
    return Trial(Problem(256, 256, 256), config, outcome, 1e-3, 0.0, joules=joules)


def test_the_default_stays_where_its_energy_is_as_low():
    default = KERNEL.default_config
    assert least_energy(default, [trial(default, 1.02), trial(BEST, 1.0)]).config == default
    assert least_energy(default, [trial(default, 1.05), trial(BEST, 1.0)]).config == BEST
    assert least_energy(default, [trial(default, 1.05), trial(BEST, 0.9, "wrong")]).joules == 1.05
    assert least_energy(default, [trial(default, math.nan)]) is None


# What was saved, used


@pytest.fixture
def device():
    pymm.reload()
    yield HostDevice("cpu")
    pymm.reload()


A, B = np.ones((20, 30), np.float32), np.ones((30, 40), np.float32)


def put(device, joules=0.5, directory="energy", **more):
    kernel = find_kernel("blocked", "cpu")
    config = kernel.config({**kernel.default, **more})
    found = Trial(Problem(20, 40, 30), config, "ok", 1e-5, 0.01)
    environment = Environment.of(device.device, device.toolchain)
    record = Record(**{**record_of(found, environment).__dict__, "joules": joules})
    assert not source_changed(record)
    store.put([record], device.device, config_directory() / directory)
    pymm.reload()
    return record


def test_prefer_energy_uses_the_record_of_least_energy(device):
    put(device, math.nan, "", KB=128)
    put(device, KB=64)
    fast, thrifty = (pymm.explain(A, B, device=device, prefer=p) for p in ("time", "energy"))
    assert fast.config.KB == 128 and "energy" not in fast.reason
    assert thrifty.config.KB == 64 and "least energy, 500 mJ: tuned for this" in thrifty.reason
    for call in (pymm.matmul, lambda *given, **more: pymm.plan(*given, **more)()):
        np.testing.assert_array_equal(call(A, B, device=device, prefer="energy"), A @ B)
    assert pymm.plan(A, B, device=device, prefer="energy").choice.config.KB == 64
    assert pymm.explain(A[:9], B, device=device, prefer="energy").config.KB != 64
    other = pymm.explain(A, B, device=device, prefer="energy", kernel="reordered")
    assert other.config.kernel_name == "reordered"
    with pytest.raises(ValueError, match="prefer='cold' is none of 'time', 'energy'"):
        pymm.matmul(A, B, device=device, prefer="cold")


def test_calls_with_different_preferences_are_kept_apart(device):
    put(device, KB=64)
    for _ in range(3):
        for prefer in ("time", "energy"):
            pymm.matmul(A, B, device=device, prefer=prefer)
    loaded = {entry[1] for entry in device.log if entry[0] == "load"}
    assert len(loaded) == 2 and any("-KB64-" in slug for slug in loaded)


def test_energy_is_written_in_millijoules_and_read_back(device, tmp_path):
    record = put(device, 0.0123456, KB=64)
    (path,) = (config_directory() / "energy").glob("*.yaml")
    text = path.read_text()
    assert "mj: 12.3456" in text and yaml.safe_load(text)["schema"] == 2
    (read,) = store.load_file(device.device, path)
    assert read == record and read.joules == pytest.approx(0.0123456)
    path.write_text(text.replace("mj: 12.3456", "mj: -1"))
    with pytest.raises(StoreError, match="mj is '-1', not a number"):
        store.load_file(device.device, path)
    path.unlink()
