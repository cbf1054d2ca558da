"""Files of tuned configurations: round trip, merge, damage, many writers, sudden death."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from dataclasses import replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pymm import locks, store
from pymm.device import Device
from pymm.kernels import KERNELS, find_kernel
from pymm.problem import Problem
from pymm.records import Environment, Record, StoreError, device_facts, stale_because
from pymm.source import kernel_digest

GPU = Device("Test GPU 9", "cuda", capability=(9, 0), sms=132, versions={"driver": "580.10"})
CPU = Device("Test CPU, 2 cores", "cpu", sms=2, vector_bytes=32)
NOW = Environment("580.10", "nvcc 13.0.88", "0.1.0", "13.0")
ENVIRONMENTS = (NOW, Environment("570.82", "nvcc 12.8", "0.1.0", "12.8"), Environment("", "g++ 12"))


def record(m=64, n=64, k=64, kernel="transposed_a", environment=NOW, seconds=1e-5, **more):
    backend = more.pop("backend", "cuda")
    kernel = find_kernel(kernel, backend)
    config = kernel.config({**kernel.default, **more.pop("config", {})})
    fields = {"spread": 0.006, "date": "2026-11-21", "digest": kernel_digest(backend, kernel.file)}
    fields |= {name: more.pop(name) for name in list(fields) if name in more}
    return Record(Problem(m, n, k, **more), config, seconds, environment=environment, **fields)


def lines(path):
    return path.read_text().splitlines()


extents = st.integers(1, 2**31 - 1)
cuda_kernels = [kernel.name for kernel in KERNELS if kernel.backend == "cuda"]
records_of_gpu = st.builds(
    record,
    m=extents,
    n=extents,
    k=extents,
    kernel=st.sampled_from(cuda_kernels),
    environment=st.sampled_from(ENVIRONMENTS),
    seconds=st.floats(1e-9, 1e4).map(lambda s: float(f"{s * 1e6:.6g}") / 1e6),
    spread=st.integers(0, 99).map(lambda percent: percent / 100),
    date=st.dates().map(str),
    dtype=st.sampled_from(["f32", "f64"]),
    trans_a=st.booleans(),
    trans_b=st.booleans(),
    batch=st.integers(1, 70000),
)


@given(st.lists(records_of_gpu, max_size=8, unique_by=lambda r: r.key))
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_what_is_read(records):
    text = store.render_table(store.Table(device_facts(GPU), tuple(records)))
    table = store.parse_table(text, "x.yaml")
    assert set(table.records) == set(records)
    assert store.render_table(table) == text
    assert yaml.safe_load(text)["schema"] == 1


@given(
    st.lists(st.lists(records_of_gpu, max_size=4, unique_by=lambda r: r.key), max_size=3),
    st.data(),
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_merging_keeps_the_last_of_each_key(tmp_path_factory, batches, data):
    directory = tmp_path_factory.mktemp("merge")
    expected = {}
    for batch in batches:
        if batch and data.draw(st.booleans()):
            batch = [*batch, replace(batch[0], seconds=1.0)]
        store.put(batch, GPU, directory)
        expected |= {one.key: one for one in batch}
    own = [one for one in store.load(GPU, directory) if one.file.startswith(str(directory))]
    assert {one.key: one for one in own} == expected
    assert len(own) == len(expected)


def test_one_record_is_one_line_and_a_second_changes_no_other(tmp_path):
    path = store.put([record(64), record(4096, environment=ENVIRONMENTS[1])], GPU, tmp_path)
    assert path == tmp_path / "test-gpu-9.yaml"
    before = lines(path)
    assert before[0].startswith("# Tuned configurations, written by")
    assert sum(line.startswith("- {m: ") for line in before) == 2
    store.put([record(512, 512, 32, dtype="f64", batch=3, trans_b=True)], GPU, tmp_path)
    after = lines(path)
    assert [line for line in after if line in before] == before
    (new,) = [line for line in after if line not in before]
    assert new.startswith("- {m: 512, n: 512, k: 32, type: f64, layout: NT, batch: 3, kernel: tr")
    assert "us: 10.0, spread: 0.6%, source: " in new and new.endswith("date: 2026-11-21}")


def test_the_same_problem_keeps_one_line_per_kernel_and_environment(tmp_path):
    store.put(
        [record(), record(kernel="naive"), record(environment=ENVIRONMENTS[1])], GPU, tmp_path
    )
    store.put([record(seconds=2e-5, environment=replace(NOW, pymm="0.2.0"))], GPU, tmp_path)
    found = store.load_file(GPU, tmp_path / "test-gpu-9.yaml")
    assert len(found) == 3
    assert [r.seconds for r in found if r.environment.pymm == "0.2.0"] == [2e-5]


def test_a_cpu_file_holds_cpu_kernels(tmp_path):
    tuned = record(kernel="blocked", backend="cpu", environment=ENVIRONMENTS[2])
    store.put([tuned], CPU, tmp_path)
    assert tuned in store.load(CPU, tmp_path)


def test_nothing_is_stored_of_a_simulator_or_of_what_cannot_run(tmp_path):
    with pytest.raises(ValueError, match="simulator"):
        store.put([record()], replace(GPU, kind="simulator"), tmp_path)
    with pytest.raises(ValueError, match="threads"):
        store.put([record(kernel="naive", config={"MB": 256, "NB": 256})], GPU, tmp_path)
    with pytest.raises(ValueError, match="changed"):
        store.put([record(digest="0123456789ab")], GPU, tmp_path)
    with pytest.raises(ValueError, match="text"):
        store.put([record(environment=replace(NOW, compiler="two\nlines"))], GPU, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] in ([], [".lock"])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"seconds": 0.0}, "time"),
        ({"seconds": float("nan")}, "time"),
        ({"spread": -1.0}, "spread"),
        ({"date": "yesterday"}, "date"),
        ({"date": "2026-13-01"}, "month"),
        ({"digest": "../etc"}, "digest"),
    ],
)
def test_a_record_refuses_what_makes_no_sense(fields, words):
    with pytest.raises(ValueError, match=words):
        replace(record(), **fields)


# Damage


GOOD = store.render_table(store.Table(device_facts(GPU), (record(),)))
DAMAGE = {
    "empty": ("", "the file is no mapping"),
    "binary": ("\x00\x01", "not YAML"),
    "cut off": (GOOD[: len(GOOD) // 2], "lacks records|not YAML"),
    "conflict": ("<<<<<<< HEAD\n" + GOOD, "not YAML"),
    "unclosed": (GOOD.replace("}\n", "\n"), "not YAML"),
    "list": ("- 1\n", "no mapping"),
    "newer": (GOOD.replace("schema: 1", "schema: 2"), "schema 2; this pymm reads schema 1"),
    "no schema": (GOOD.replace("schema: 1\n", ""), "schema"),
    "new key": (GOOD.replace("{m: 64", "{colour: red, m: 64"), "unknown 'colour' .*newer"),
    "no key": (GOOD.replace("k: 64, ", ""), "line 9: the record lacks k"),
    "key twice": (GOOD.replace("m: 64,", "m: 64, m: 65,"), "twice"),
    "word": (GOOD.replace("m: 64", "m: many"), "line 9: m is 'many', not a whole number"),
    "fraction": (GOOD.replace("m: 64", "m: 6.4"), "not a whole number"),
    "minus": (GOOD.replace("m: 64", "m: -64"), "not a whole number"),
    "huge": (GOOD.replace("m: 64", "m: 9999999999"), "m=9999999999"),
    "type": (GOOD.replace("type: f32", "type: f31"), "dtype 'f31'"),
    "layout": (GOOD.replace("layout: NN", "layout: XX"), "layout 'XX' is none of NN"),
    "time": (GOOD.replace("us: 10.0", "us: .inf"), "us is '.inf'"),
    "zero": (GOOD.replace("us: 10.0", "us: 0.0"), "time of 0.0"),
    "spread": (GOOD.replace("0.6%", "wide"), "spread 'wide'"),
    "environment": (GOOD.replace("env: e", "env: f"), "is not in the head"),
    "shell": (GOOD.replace("MB: 64", '"MB=1;rm -rf /": 64'), "no name of a parameter"),
    "shell value": (GOOD.replace("MB: 64", 'MB: "$(date)"'), r"MB is '\$\(date\)'"),
    "zero tile": (GOOD.replace("MB: 64", "MB: 0"), "MB=0"),
    "large tile": (GOOD.replace("MB: 64", "MB: 65537"), "MB=65537"),
    "path": (GOOD.replace("kernel: transposed_a", "kernel: ../x"), "no name of a kernel"),
    "tag": (GOOD.replace("m: 64", "m: !!python/object/apply:os.getcwd []"), "no short value"),
    "alias bomb": (
        "a: &a [x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 8)}]\n"
            for i in range(20)
        )
        + GOOD,
        "unknown 'a'",
    ),
    "deep": ("[" * 3000, "not YAML"),
    "long text": (GOOD.replace("nvcc 13.0.88", "n" * 201), "no short value"),
    "device": (GOOD.replace("name: Test GPU 9", "name: [Test]"), "no short value"),
    "other device": (GOOD.replace("name: Test GPU 9", "name: Other"), "belongs to Other"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_never_overwritten(tmp_path, name):
    text, words = DAMAGE[name]
    path = tmp_path / "test-gpu-9.yaml"
    path.write_text(text)
    for action in (lambda: store.load(GPU, tmp_path), lambda: store.put([record()], GPU, tmp_path)):
        with pytest.raises(StoreError, match=words) as caught:
            action()
        message = str(caught.value)
        assert str(path) in message and "\n" not in message
        assert len(message) < 600
        assert "move the file away" in message
    assert path.read_text() == text


def test_files_that_cannot_be_read_are_store_errors(tmp_path, monkeypatch):
    path = tmp_path / "test-gpu-9.yaml"
    path.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(StoreError, match="cannot be read"):
        store.load(GPU, tmp_path)
    path.write_text("#" * 2000)
    monkeypatch.setattr(store, "MAX_BYTES", 1000)
    with pytest.raises(StoreError, match="more than the 1000"):
        store.load(GPU, tmp_path)
    path.unlink()
    with pytest.raises(StoreError, match="longer than 1000"):
        store.put([record(m) for m in range(1, 9)], GPU, tmp_path)
    path.mkdir()
    monkeypatch.undo()
    with pytest.raises(StoreError, match="cannot be read"):
        store.load(GPU, tmp_path)


def test_the_same_name_with_other_multiprocessors_is_refused(tmp_path):
    path = store.put([record()], GPU, tmp_path)
    before, slice_of_it = path.read_text(), replace(GPU, sms=66)
    with pytest.raises(StoreError, match="sms 132; this device is Test GPU 9.* sms 66"):
        store.put([record(128)], slice_of_it, tmp_path)
    assert path.read_text() == before
    (old,) = [r for r in store.load(slice_of_it, tmp_path) if r.file == str(path)]
    assert "device changed" in stale_because(old, slice_of_it, NOW)


def test_a_kernel_of_another_pymm_is_kept_but_stale(tmp_path):
    path = tmp_path / "test-gpu-9.yaml"
    path.write_text(GOOD.replace("kernel: transposed_a", "kernel: from_the_future"))
    store.put([record(128)], GPU, tmp_path)
    assert "from_the_future" in path.read_text()
    (old,) = [r for r in store.load_file(GPU, path) if r.problem.m == 64]
    assert "no kernel 'from_the_future'" in stale_because(old, GPU, NOW)
    assert stale_because(replace(record(), config=old.config), GPU, NOW)
    path.write_text(GOOD.replace("MB: 64, ", ""))
    (old,) = store.load_file(GPU, path)
    assert "takes MB, NB" in stale_because(old, GPU, NOW)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ""),
        ({"environment": replace(NOW, pymm="0.0.1", cuda="1")}, ""),
        ({"environment": replace(NOW, driver="1.2")}, "tuned with driver 1.2, now 580.10"),
        ({"environment": replace(NOW, compiler="")}, "tuned with compiler none, now nvcc 13.0.88"),
        ({"digest": "0123456789ab"}, "source of kernel transposed_a changed"),
        (
            {"device": "Another GPU"},
            r"device changed \(Another GPU; now Test GPU 9, capability 9.0",
        ),
    ],
)
def test_a_change_makes_exactly_its_records_stale(change, words):
    reason = stale_because(replace(record(), **change), GPU, NOW)
    assert re.search(words, reason) if words else reason == ""


def test_reading_again_costs_no_parsing_and_sees_changes(tmp_path, monkeypatch):
    store.put([record()], GPU, tmp_path)
    first = store.load(GPU, tmp_path)
    assert all(a is b for a, b in zip(first, store.load(GPU, tmp_path), strict=True))
    store.put([record(128)], GPU, tmp_path)
    assert len(store.load(GPU, tmp_path)) == len(first) + 1


def test_files_lists_the_users_first(tmp_path):
    path = store.put([record()], GPU, tmp_path)
    assert store.files(tmp_path)[0] == path
    assert all(store.read(file) for file in store.files(tmp_path))
    assert store.files(tmp_path / "absent") == store.files(None)


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "dotfiles").mkdir()
    target = tmp_path / "dotfiles" / "gpu.yaml"
    link = tmp_path / "test-gpu-9.yaml"
    link.symlink_to(target)
    target.write_text(GOOD)
    store.put([record(128)], GPU, tmp_path)
    assert link.is_symlink() and "m: 128" in target.read_text()


# Many writers


def _put_many(directory, start, count, without_flock):
    if without_flock:
        locks.fcntl = None
    for m in range(start, start + count):
        store.put([record(m)], GPU, directory)


def _put_for_ever(directory, start):
    m = start
    while True:
        store.put([record(m)], GPU, directory)
        with open(directory / "done", "a") as done:
            done.write(f"{m}\n")
        m += 1


@pytest.fixture(params=["flock", "exclusive file"])
def lock_kind(request, monkeypatch):
    if request.param == "exclusive file":
        monkeypatch.setattr(locks, "fcntl", None)


SERVER = multiprocessing.get_context("forkserver")


def test_two_processes_that_put_at_once_lose_nothing(tmp_path, lock_kind):
    starts, without = (1, 101, 201), locks.fcntl is None
    writers = [
        SERVER.Process(target=_put_many, args=(tmp_path, start, 12, without)) for start in starts
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    found = store.load_file(GPU, tmp_path / "test-gpu-9.yaml")
    assert [r.problem.m for r in found] == [start + i for start in starts for i in range(12)]


def test_killed_in_the_middle_leaves_a_whole_file(tmp_path):
    path = tmp_path / "test-gpu-9.yaml"
    for round_ in range(4):
        writer = SERVER.Process(target=_put_for_ever, args=(tmp_path, 1 + 1000 * round_))
        writer.start()
        done = tmp_path / "done"
        deadline = time.monotonic() + 30
        while not done.exists() or done.read_text().count("\n") < 3:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        time.sleep(0.0017 * round_)
        os.kill(writer.pid, signal.SIGKILL)
        writer.join(10)
        promised = {int(line) for line in done.read_text().splitlines() if line.isdigit()}
        done.unlink()
        assert promised <= {r.problem.m for r in store.load_file(GPU, path)}
    store.put([record()], GPU, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name, path.name + ".lock"]


def test_a_holder_that_does_not_let_go_is_named(tmp_path, lock_kind):
    lock = tmp_path / "x.lock"
    with (
        locks.locked(lock),
        pytest.raises(TimeoutError, match="x.lock has been held"),
        locks.locked(lock, seconds=0.05),
    ):
        raise AssertionError("two hold the lock")
    with locks.locked(lock, seconds=0.05):
        pass


def test_a_write_that_fails_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("old")
    monkeypatch.setattr(locks.os, "replace", lambda *names: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        locks.replace_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
