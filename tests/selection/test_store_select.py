"""The choice of a configuration: exact, nearest, last resort, default, and the words for it."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for
from pymm.kernels.source import kernel_digest
from pymm.selection import select as selecting
from pymm.selection import store
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.records import Environment, Record
from pymm.selection.select import configs, select

#: Of a capability whose highest kernel is 04: the records below are of kernels 03 and 04.
GPU = Device("Test GPU 9", "cuda", capability=(7, 5), sms=132, versions={"driver": "580.10"})
CPU = Device("Test CPU", "cpu", sms=2, vector_bytes=64, vector_registers=32)
NARROW = replace(CPU, vector_bytes=32, vector_registers=16)
NOW = Environment("580.10", "nvcc 13.0.88", "0.1.0", "13.0")
OLD = replace(NOW, driver="570.82")


def record(m, n=None, k=None, mb=64, kernel="transposed_a", environment=NOW, seconds=1e-5, **more):
    declared = find_kernel(kernel, more.pop("backend", "cuda"))
    config = declared.config({**declared.default, "MB": mb})
    fields = {"spread": 0.006, "date": "2026-11-21"}
    fields |= {name: more.pop(name) for name in list(fields) if name in more}
    digest = kernel_digest(declared.backend, declared.file)
    problem = Problem(m, n or m, k or m, **more)
    return Record(problem, config, seconds, environment=environment, digest=digest, **fields)


def as_expected(*arguments, **more):
    """A record whose time is what the cost model says."""
    one = record(*arguments, **more)
    return replace(one, seconds=predicted_seconds(one.config, one.problem, GPU))


@pytest.fixture
def tuned(tmp_path, monkeypatch):
    """A function that stores records as the user's, or as shipped ones, and selects."""
    monkeypatch.setattr(store, "shipped", lambda: tmp_path / "shipped")

    def choose(problem, *records, shipped=(), device=GPU, environment=NOW, **more):
        if records:
            store.put(records, device, tmp_path / "user")
        if shipped:
            store.put(shipped, device, tmp_path / "shipped")
        return select(problem, device, tmp_path / "user", environment, **more)

    choose.folder = tmp_path / "user"
    return choose


def test_exact_wins_and_says_when_and_how_long(tuned):
    choice = tuned(Problem(64, 64, 64), record(64, mb=32), record(65, mb=16))
    assert choice.config.MB == 32
    assert choice.reason == "tuned for this problem on this GPU (2026-11-21, 10 us)"
    assert choice.record.problem == Problem(64, 64, 64)
    long = tuned(Problem(96, 96, 96), record(96, 96, 96, seconds=1.168e-2))
    assert "(2026-11-21, 11.68 ms)" in long.reason


def test_of_several_kernels_the_quickest_is_taken_unless_one_is_named(tuned):
    records = [record(64, kernel="transposed_a", seconds=3e-5), record(64, kernel="register_tile")]
    assert tuned(Problem(64, 64, 64), *records).config.kernel_name == "register_tile"
    assert tuned(Problem(64, 64, 64), kernel=4).config == records[0].config
    assert tuned(Problem(64, 64, 64), kernel="04_transposed_a").config == records[0].config
    choice = tuned(Problem(64, 64, 64), kernel="naive")
    assert choice.config == find_kernel("naive").default_config
    assert choice.record is None and "nothing tuned" in choice.reason
    with pytest.raises(ValueError, match="no kernel 'best' for cuda; there are 00_naive"):
        tuned(Problem(64, 64, 64), kernel="best")


def test_nearest_is_measured_in_logarithms(tuned):
    far, near = as_expected(4096, mb=128), as_expected(1000, 1000, 10, mb=32)
    choice = tuned(Problem(2000, 2000, 20), far, near)
    assert choice.config.MB == 32
    assert choice.reason == "nearest tuned problem 1000x1000x10 on this GPU"
    assert tuned(Problem(2000, 2000, 2000)).config.MB == 128
    assert tuned(Problem(2**31 - 1, 1, 0)).record is not None


def test_types_never_mix_and_layouts_only_with_a_label(tuned):
    choice = tuned(Problem(64, 64, 64, "f64"), record(64))
    assert choice.record is None
    assert choice.reason == "default of transposed_a: nothing tuned for f64 on Test GPU 9"
    far, near = as_expected(4096, trans_b=True, mb=32), as_expected(72, trans_b=True, mb=32)
    choice = tuned(Problem(64, 64, 64, trans_b=True), as_expected(64), far)
    assert choice.config.MB == 64, "another layout is nearer than four times the extents"
    assert choice.reason == "nearest tuned problem 64x64x64 on this GPU, of layout NN"
    choice = tuned(Problem(64, 64, 64, trans_b=True), near)
    assert choice.config.MB == 32, "but not as near as an eighth more"


def test_a_stack_goes_by_its_single_problem(tuned):
    choice = tuned(Problem(64, 64, 64, batch=8), record(64, mb=32), record(65, batch=8, mb=16))
    assert choice.config.MB == 32
    assert choice.reason == "tuned for 64x64x64 in stacks of 1 on this GPU"
    assert tuned(Problem(64, 64, 64, batch=8), record(64, batch=8, mb=128)).config.MB == 128


def test_a_configuration_that_breaks_a_rule_here_is_passed_over(tuned):
    wide = record(64, mb=128)
    near, other = replace(GPU, max_threads=256), record(4096, mb=64)
    assert tuned(Problem(64, 64, 64), wide, other).config.MB == 128
    choice = select(Problem(64, 64, 64), near, tuned.folder, NOW)
    assert choice.config.MB == 64
    tiny = select(Problem(64, 64, 64), replace(GPU, max_threads=32), tuned.folder, NOW)
    assert tiny.record is None and tiny.config.kernel.threads(tiny.config) == 32
    assert "that fits Test GPU 9" in tiny.reason
    with pytest.raises(ValueError, match="no configuration of .* a block has at most the device's"):
        select(Problem(64, 64, 64), replace(GPU, max_threads=16), tuned.folder, NOW)


def test_the_users_record_wins_over_a_shipped_one_per_problem(tuned):
    shipped = [record(64, mb=128, seconds=1e-6, date="2030-01-01"), record(65, mb=16)]
    choice = tuned(Problem(64, 64, 64), record(64, mb=32), shipped=shipped)
    assert choice.config.MB == 32
    assert tuned(Problem(65, 65, 65)).config.MB == 16


def test_other_tools_are_a_labelled_last_resort(tuned):
    choice = tuned(Problem(64, 64, 64), shipped=[record(64, mb=128, environment=OLD)])
    assert choice.config.MB == 128
    assert choice.reason == (
        "tuned for this problem on this GPU (2026-11-21, 10 us); "
        "tuned with driver 570.82, now 580.10: "
        "re-tune with `python -m pymm.tune --shapes 64x64x64 --dtypes f32 --devices 0`"
    )
    choice = tuned(Problem(64, 64, 64), record(4096, mb=32, trans_a=True))
    assert choice.config.MB == 32, "any current record comes before one of other tools"
    assert choice.reason == "nearest tuned problem 4096x4096x4096 on this GPU, of layout TN"


@pytest.mark.parametrize("change", [{"digest": "0123456789ab"}, {"device": "Another GPU"}])
def test_another_source_or_device_is_never_used(tuned, monkeypatch, change):
    stale = replace(record(64, mb=128), **change)
    monkeypatch.setattr(selecting.tuned_files, "readable", lambda *given: (((stale,),), ""))
    assert tuned(Problem(64, 64, 64)).record is None
    ((row, _, reason),) = configs(GPU, None, NOW)
    assert row == stale and "changed" in reason


def test_the_newest_of_two_environments_that_differ_in_pymm_alone(tuned):
    old = record(64, mb=32, date="2026-01-01", environment=replace(OLD, compiler="nvcc 12.0"))
    new = record(64, mb=128, date="2026-11-01", environment=OLD, seconds=5e-5)
    assert tuned(Problem(64, 64, 64), old, new).config.MB == 128


def test_a_damaged_file_costs_one_warning_and_is_named_in_the_reason(tuned):
    tuned(Problem(64, 64, 64), shipped=[record(64, mb=128)])
    tuned.folder.mkdir()
    path = tuned.folder / "test-gpu-9.yaml"
    path.write_text("records: [")
    with pytest.warns(UserWarning, match="test-gpu-9.yaml, line 2: not YAML"):
        choice = tuned(Problem(64, 64, 64))
    assert choice.config.MB == 128 and f"not read: {path}" in choice.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert tuned(Problem(65, 65, 65)).config.MB == 128
        assert [row[1] != str(path) for row in configs(GPU, tuned.folder, NOW)] == [True]


def test_the_cpu_has_kernels_and_words_of_its_own(tuned):
    here = Environment("", "g++ 12")
    choice = tuned(Problem(64, 64, 64), device=CPU, environment=here)
    assert choice.config == find_kernel("blocked", "cpu").default_for(Problem(64, 64, 64), CPU)
    narrow = tuned(Problem(64, 64, 64), device=NARROW, environment=here).config
    assert (narrow.kernel_name, narrow.TB) == ("blocked", 16), "its tile fits 16 registers"
    best = record(64, kernel="blocked", backend="cpu", mb=192, environment=here)
    choice = tuned(Problem(99, 99, 99), best, device=CPU, environment=here)
    assert choice.config == best.config
    assert choice.reason == "nearest tuned problem 64x64x64 on this CPU"
    assert tuned(Problem(9, 9, 9), device=CPU, environment=here, kernel=0).record is None
    newer = Environment("", "g++ 13")
    reason = tuned(Problem(64, 64, 64), device=replace(CPU, sms=1), environment=newer).reason
    assert "--devices" not in reason, "records of two cores say nothing about one"
    reason = tuned(Problem(64, 64, 64), device=CPU, environment=newer).reason
    assert reason.endswith("--dtypes f32 --devices cpu:2`")


def test_the_simulator_knows_defaults_only(tuned):
    tuned(Problem(64, 64, 64), record(64, mb=128))
    choice = tuned(Problem(64, 64, 64), device=replace(GPU, kind="simulator"))
    highest = kernels_for(Problem(64, 64, 64), GPU)[-1]
    assert choice.config == highest.default_for(Problem(64, 64, 64), GPU)
    assert choice.reason == f"default of {highest.name}: in the simulator on Test GPU 9"


def test_configs_lists_every_record_with_file_and_staleness(tuned):
    tuned(Problem(1, 1, 1), record(64), record(65, environment=OLD), shipped=[record(64, mb=128)])
    rows = configs(GPU, tuned.folder, NOW)
    assert [(r.problem.m, bool(stale)) for r, _, stale in rows] == [
        (64, False),
        (65, True),
        (64, False),
    ]
    assert [str(tuned.folder) in file for _, file, _ in rows] == [True, True, False]


extent = st.integers(0, 2**31 - 1)
RECORDS = [
    record(m, n, k, mb, dtype=dtype, seconds=seconds)
    for m, n, k, mb, dtype, seconds in [
        (1, 1, 1, 16, "f32", 1e-6),
        (4096, 4096, 4096, 128, "f32", 1e-3),
        (4096, 16, 4096, 32, "f32", 1e-4),
        (64, 64, 262144, 64, "f32", 1e-4),
        (512, 512, 512, 32, "f64", 1e-4),
        (8192, 8192, 64, 64, "f64", 1e-3),
    ]
]


@given(extent, extent, extent, st.sampled_from(["f32", "f64"]), st.integers(1, 2**31 - 1))
@settings(max_examples=150, deadline=None)
def test_no_tuned_problem_of_the_kind_is_nearer_than_the_one_chosen(m, n, k, dtype, batch):
    problem = Problem(m, n, k, dtype, batch=batch)
    records = {}
    for one in RECORDS:
        records.setdefault(one.problem.dtype, []).append((one, ""))
    found = [one for one, _ in selecting._nearest(problem, records)]

    def distance(one):
        pairs = ((m, one.problem.m), (n, one.problem.n), (k, one.problem.k))
        return sum(math.log(max(a, 1) / max(b, 1)) ** 2 for a, b in pairs)

    nearest = min(distance(one) for one in RECORDS if one.problem.dtype == dtype)
    assert distance(found[0]) ** 0.5 <= nearest**0.5 + 0.4, "a worse alignment is four tenths"
    assert len(found) == sum(one.problem.dtype == dtype for one in RECORDS)


def test_a_lower_kernel_tuned_by_itself_says_nothing_about_the_highest(tuned):
    """Otherwise a tuned kernel 03 would stand in the way of an untuned kernel 04 everywhere."""
    lower = record(64, kernel="register_tile", seconds=1e-6)
    choice = tuned(Problem(64, 64, 64), lower)
    assert choice.config.kernel_name == "transposed_a" and choice.record is None
    both = tuned(Problem(64, 64, 64), lower, record(64, seconds=2e-6))
    assert both.config.kernel_name == "register_tile", "measured on this very problem, and quicker"
    near = tuned(Problem(65, 65, 65))
    assert near.config.kernel_name == "register_tile", "and near it"
    far = tuned(Problem(4096, 4096, 4096), record(4096, mb=128))
    assert far.config.kernel_name == "transposed_a"


def test_a_record_is_judged_once_while_its_file_stays_the_same(tuned, monkeypatch):
    tuned(Problem(64, 64, 64), *(record(64 + n, mb=32) for n in range(20)))
    calls = []
    before = selecting.unusable_because
    monkeypatch.setattr(
        selecting, "unusable_because", lambda *given: calls.append(1) or before(*given)
    )
    monkeypatch.setattr(selecting, "tuned_files", selecting.TunedFiles())
    for n in range(3):
        tuned(Problem(90 + n, 64, 64))
    assert len(calls) == 20
    tuned(Problem(90, 64, 64), record(90, mb=32))
    assert len(calls) == 20 + 21
