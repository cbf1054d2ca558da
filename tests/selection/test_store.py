"""Files of tuned configurations: round trip, merge, staleness."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tuned import CPU, ENVIRONMENTS, GOOD, GPU, NOW, record

from pymm.core.errors import StoreError
from pymm.kernels import KERNELS, parse_slug
from pymm.selection import store
from pymm.selection.records import device_facts, stale_because


def lines(path):
    return path.read_text().splitlines()


extents = st.integers(1, 2**31 - 1)
#: Kernels that compute products of any size, stacks too, and a type of theirs.
cuda_kernels = [
    {"kernel": kernel.name, "dtype": dtype}
    for kernel in KERNELS
    if kernel.backend == "cuda" and (kernel.tma is None or kernel.tma.in_place is None)
    for dtype in kernel.dtypes
]
records_of_gpu = st.builds(
    lambda kernel, **more: record(**kernel, **more),
    m=extents,
    n=extents,
    k=extents,
    kernel=st.sampled_from(cuda_kernels),
    environment=st.sampled_from(ENVIRONMENTS),
    seconds=st.floats(1e-9, 1e4).map(lambda s: float(f"{s * 1e6:.6g}") / 1e6),
    spread=st.integers(0, 99).map(lambda percent: percent / 100),
    date=st.dates().map(str),
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
    assert yaml.safe_load(text)["schema"] == 2
    assert all(len(line) < 100 for line in text.splitlines())


@given(st.lists(records_of_gpu, min_size=1, max_size=8, unique_by=lambda r: r.key))
@settings(max_examples=60, deadline=None)
def test_digests_of_digits_alone_are_text_in_lines_that_fit(records):
    """Quoted, as YAML would read 521487362520 as a number and 12345678e123 as another."""
    for digest in ("521487362520", "12345678e123", "000000000000"):
        given = [replace(record, digest=digest) for record in records]
        text = store.render_table(store.Table(device_facts(GPU), tuple(given)))
        assert set(store.parse_table(text, "x.yaml").records) == set(given)
        assert all(len(line) < 100 for line in text.splitlines())


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


def older(table):
    """A file of schema 1: one line for each record."""
    flow = {"default_flow_style": True, "sort_keys": False, "width": 2**31 - 1}
    lines = ["schema: 1", f"device: {yaml.safe_dump(dict(table.device), **flow).strip()}"]
    environments = {r.environment.name: asdict(r.environment) for r in table.records}
    lines.append(f"environments: {yaml.safe_dump(environments, **flow).strip()}")
    lines.append("records:" if table.records else "records: []")
    for one in table.records:
        p, entry = one.problem, one.entry()
        fields = {"m": p.m, "n": p.n, "k": p.k, "type": p.dtype, "layout": p.layout}
        fields |= {"batch": p.batch} if p.batch != 1 else {}
        fields |= {"op": p.op} if p.op != "gemm" else {}
        fields |= {"kernel": entry["kernel"], "config": entry["config"], **entry["measured"]}
        lines.append(f"- {yaml.safe_dump(fields, **flow).strip()}")
    return "\n".join(lines) + "\n"


@given(st.lists(records_of_gpu, max_size=6, unique_by=lambda r: r.key))
@settings(max_examples=30, deadline=None)
def test_older_files_are_read_and_lose_nothing(records):
    table = store.Table(device_facts(GPU), tuple(records))
    before = store.parse_table(older(table), "x.yaml")
    assert before == table
    assert set(store.parse_table(store.render_table(before), "x.yaml").records) == set(records)


def test_records_from_before_a_parameter_was_added_are_current():
    held = record(kernel="tensor", dtype="bf16", config=dict(SLICES=1))
    text = store.render_table(store.Table(device_facts(GPU), (held,)))
    assert text.count(", SLICES: 1,") == 1
    (read,) = store.parse_table(text.replace(", SLICES: 1,", ","), "x.yaml").records
    assert read == held and not stale_because(read, GPU, NOW)
    assert "SLICES" not in held.config.slug and parse_slug(held.config.slug) == held.config
    two = record(kernel="tensor", dtype="bf16", config=dict(SLICES=2)).config
    assert "-SLICES2-" in two.slug and parse_slug(two.slug) == two


def test_an_older_file_is_written_in_the_new_form(tmp_path):
    """When something is put into it, also with records of kernels that this pymm does not have."""
    path = tmp_path / "test-gpu-9.yaml"
    held = [record(64), record(64, op="syrk", trans_b=True), record(32, batch=9)]
    text = older(store.Table(device_facts(GPU), tuple(held)))
    path.write_text(text.replace("m: 32, n: 32, k: 32", "m: 33, n: 32, k: 32", 1))
    before = store.load_file(GPU, path)
    store.put([], GPU, tmp_path)
    assert path.read_text().startswith("schema: 1"), "reading changes nothing"
    store.put([record(256)], GPU, tmp_path)
    assert "schema: 2" in path.read_text() and "      syrk-64x64x64:\n" in path.read_text()
    assert set(store.load_file(GPU, path)) == {*before, record(256)}


def test_a_record_changes_no_line_of_another(tmp_path):
    path = store.put([record(64), record(4096, environment=ENVIRONMENTS[1])], GPU, tmp_path)
    assert path == tmp_path / "test-gpu-9.yaml"
    before = lines(path)
    assert before[0].startswith("# Tuned configurations, written by")
    assert sum(line.startswith("      - kernel: ") for line in before) == 2
    store.put([record(512, 512, 32, dtype="f64", batch=3, trans_b=True)], GPU, tmp_path)
    after = lines(path)
    assert after[: len(before)] == before
    new = after[len(before) :]
    assert new[:4] == ["  f64:", "    NT:", "      512x512x32-b3:", "      - kernel: transposed_a"]
    assert new[5].startswith("        measured: {us: 10.0, spread: 0.6%, date: 2026-11-21, env: e")
    assert len(new) == 6


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


def test_putting_nothing_only_checks(tmp_path):
    assert not store.put([], GPU, tmp_path).exists()
    path = store.put([record()], GPU, tmp_path)
    before = path.stat()
    store.put([], GPU, tmp_path)
    assert path.stat().st_mtime_ns == before.st_mtime_ns


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
    assert link.is_symlink() and " 128x64x64:" in target.read_text()
