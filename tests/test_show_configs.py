"""`pymm configs`: which devices are tuned, and what is tuned for one of them."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import pymm
from pymm import __main__ as door
from pymm import show_configs
from pymm.core.device import Device
from pymm.core.paths import config_directory
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import kernel_digest
from pymm.selection import store
from pymm.selection.records import Environment, Record, device_facts

GPU = Device("Test GPU 9", "cuda", capability=(9, 0), sms=132, versions={"driver": "580.10"})
OTHER = replace(GPU, name="Test GPU 9 Max", sms=64)
NOW = Environment("580.10", "nvcc 13.0.88", pymm.__version__)
KERNEL = find_kernel("transposed_a")
DIGEST = kernel_digest("cuda", KERNEL.file)
RECORD = Record(
    Problem(1024, 1024, 1024),
    KERNEL.config({**KERNEL.default, "MB": 128}),
    *(1e-3, 0.01, "2026-11-21", NOW, DIGEST),
)
OLDER = replace(RECORD, problem=Problem(64, 64, 64), environment=replace(NOW, driver="1"))
CHANGED = replace(RECORD, problem=Problem(8, 8, 8, "f64"), date="2026-11-22", digest="abcd")


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder in place of that of the shipped files."""
    folder = tmp_path / "shipped"
    folder.mkdir()
    monkeypatch.setattr(store, "shipped", lambda: folder)
    return folder


@pytest.fixture
def two(shipped):
    """A device with two records of the user's and two shipped ones, of which one is in both, and
    one with a shipped record.
    """
    store.put([RECORD, OLDER], GPU, config_directory())
    table = store.Table(device_facts(GPU), (RECORD, CHANGED))
    (shipped / f"{GPU.slug}.yaml").write_text(store.render_table(table))
    store.put([RECORD], OTHER, shipped)


def run(capsys, *arguments, code=0):
    assert door.main(["configs", *arguments]) == code
    return capsys.readouterr()


def test_all_devices(two, capsys):
    title, head, first, second = run(capsys).out.splitlines()
    assert title == "Tuned devices: 2"
    assert head.split() == ["device", "records", "yours", "shipped", "stale", "types", "newest"]
    assert first.split("  ", 1)[0] == "Test GPU 9"
    assert first.split()[3:] == ["4", "2", "2", "1", "f32", "f64", "2026-11-22"]
    assert second.split()[-6:] == ["1", "0", "1", "0", "f32", "2026-11-21"]
    told = json.loads(run(capsys, "--json").out)
    assert [device["device"] for device in told] == [GPU.name, OTHER.name]
    assert told[0]["yours"] == 2


@pytest.mark.parametrize("name", ["Test GPU 9", "test-gpu-9", "TESTGPU9"])
def test_one_device_by_name(two, capsys, name):
    title, head, *rows = run(capsys, name).out.splitlines()
    assert title == "Test GPU 9: 4 records"
    assert head.split()[:3] == ["problem", "configuration", "us"]
    config = "transposed_a-MB128-NB64-KB16-TA4-TB4"
    wanted = f"f32-NN-1024x1024x1024 {config} 1000 1.0% 2147 2026-11-21"
    tools = "with nvcc 13.0.88 and driver 580.10"
    assert f"{wanted} yours {tools}".split() in [row.split() for row in rows]
    assert f"{wanted} shipped {tools}".split() in [row.split() for row in rows]
    assert any("with nvcc 13.0.88 and driver 1" in row for row in rows)
    changed = f"source of kernel transposed_a changed (abcd, now {DIGEST})"
    assert [row.startswith("f64-NN-8x8x8 ") for row in rows if changed in row] == [True]


def test_a_part_of_a_name_is_enough_where_it_is_one_s(two, capsys):
    assert run(capsys, "max").out.startswith("Test GPU 9 Max: 1 record\n")
    assert json.loads(run(capsys, "max", "--json").out)[0]["file"] == "shipped"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gpu"], "'gpu' may be one of 2: Test GPU 9; Test GPU 9 Max"),
        (["H200"], "no device 'H200' is tuned; there are Test GPU 9; Test GPU 9 Max"),
        ([""], "no device '' is tuned"),
        (["--device", "cpu:99999"], "cpu:99999"),
    ],
)
def test_a_device_that_is_not_there_is_one_line(two, capsys, arguments, words):
    told = run(capsys, *arguments, code=1)
    assert words in told.err and told.err.count("\n") == 1 and not told.out


def test_a_name_and_a_device_are_two_answers(two, capsys):
    with pytest.raises(SystemExit) as ended:
        door.main(["configs", "max", "--device", "cpu"])
    assert ended.value.code == 2
    assert "give one of them" in capsys.readouterr().err


def test_what_is_stale_is_said_of_a_device_that_is_here(two, capsys, monkeypatch):
    here = SimpleNamespace(device=GPU, toolchain="nvcc 13.0.88")
    monkeypatch.setattr(show_configs, "open_device", lambda spec: here)
    told = json.loads(run(capsys, "--device", "cuda", "--json").out)
    states = {(row["problem"], row["file"]): row["state"] for row in told}
    assert states == {
        ("f32-NN-64x64x64", "yours"): "tuned with driver 1, now 580.10",
        ("f32-NN-1024x1024x1024", "yours"): "current",
        ("f32-NN-1024x1024x1024", "shipped"): "current",
        ("f64-NN-8x8x8", "shipped"): f"source of kernel transposed_a changed (abcd, now {DIGEST})",
    }


def test_where_nothing_is_tuned_it_says_how_to_tune(shipped, capsys):
    assert run(capsys).out == "Nothing is tuned yet: python -m pymm.tune\n"
    assert json.loads(run(capsys, "--json").out) == []
    assert "none is tuned yet" in run(capsys, "max", code=1).err
    said = run(capsys, "--device", "cpu:1").out
    assert said.startswith("Nothing is tuned for ") and said.endswith("python -m pymm.tune\n")


def test_a_damaged_file_is_named_and_the_others_are_listed(two, capsys):
    path = config_directory() / "test-gpu-8.yaml"
    path.write_text("schema: 1\n")
    told = run(capsys, code=1)
    assert str(path) in told.err and told.err.count("\n") == 1
    assert told.out.startswith("Tuned devices: 2\n")


def test_the_shipped_files_are_listed(capsys):
    told = {row["device"]: row for row in json.loads(run(capsys, "--json").out)}
    paths = store.files(None)
    assert paths and len(told) == len({store.read(path).device["name"] for path in paths})
    for path in paths:
        table = store.read(path)
        row = told[table.device["name"]]
        assert row["records"] == row["shipped"] == len(table.records) and row["yours"] == 0
