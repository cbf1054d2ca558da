"""Damaged and foreign files: named, never overwritten."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tuned import GOOD, GPU, record

from pymm.core.errors import StoreError
from pymm.selection import store

DAMAGE = {
    "empty": ("", "the file is not a mapping"),
    "binary": ("\x00\x01", "not YAML"),
    "cut off": (GOOD[: len(GOOD) // 2], "lacks records|not YAML|is not a list|is not a mapping"),
    "conflict": ("<<<<<<< HEAD\n" + GOOD, "not YAML"),
    "unclosed": (GOOD.replace("}\n", "\n"), "not YAML"),
    "list": ("- 1\n", "not a mapping"),
    "newer": (GOOD.replace("schema: 2", "schema: 3"), "schema 3; this pymm reads schemas 1 and 2"),
    "older": (GOOD.replace("schema: 2", "schema: 1"), "records is not a list"),
    "no schema": (GOOD.replace("schema: 2\n", ""), "schema"),
    "new key": (GOOD.replace("{us:", "{colour: red, us:"), "unknown 'colour' .*newer"),
    "new field": (GOOD.replace("- kernel", "- colour: red\n        kernel"), "unknown 'colour'"),
    "no key": (GOOD.replace("us: 10.0, ", ""), "line 15: measured lacks us"),
    "no config": (GOOD.replace("config: {", "konfig: {"), "line 13: the record lacks config"),
    "key twice": (GOOD.replace("us: 10.0", "us: 10.0, us: 11.0"), "twice"),
    "word": (GOOD.replace("MB: 64", "MB: many"), "line 14: MB is 'many', not a whole number"),
    "fraction": (GOOD.replace("MB: 64", "MB: 6.4"), "not a whole number"),
    "minus": (GOOD.replace(" 64x64x64", " -64x64x64"), "line 13: '-64x64x64' is no product"),
    "extents": (GOOD.replace("64x64x64", "64x64"), "'64x64' is no product such as 1024x1024x64"),
    "operation": (GOOD.replace(" 64x64x64", " gamm-64x64x64"), "gamm"),
    "huge": (GOOD.replace(" 64x64x64", " 9999999999x64x64"), "m=9999999999"),
    "type": (GOOD.replace("f32:", "f31:"), "dtype 'f31'"),
    "layout": (GOOD.replace("NN:", "XX:"), "layout 'XX' is none of NN"),
    "no list": (GOOD.replace("- kernel", "  kernel"), "64x64x64 is not a list"),
    "time": (GOOD.replace("us: 10.0", "us: .inf"), "us is '.inf'"),
    "zero": (GOOD.replace("us: 10.0", "us: 0.0"), "time of 0.0"),
    "spread": (GOOD.replace("0.6%", "wide"), "spread 'wide'"),
    "environment": (GOOD.replace("env: e", "env: f"), "is not in the head"),
    "shell": (GOOD.replace("MB: 64", '"MB=1;rm -rf /": 64'), "no name of a parameter"),
    "shell value": (GOOD.replace("MB: 64", 'MB: "$(date)"'), r"MB is '\$\(date\)'"),
    "zero tile": (GOOD.replace("MB: 64", "MB: 0"), "MB=0"),
    "large tile": (GOOD.replace("MB: 64", "MB: 65537"), "MB=65537"),
    "path": (GOOD.replace("kernel: transposed_a", "kernel: ../x"), "no name of a kernel"),
    "tag": (GOOD.replace("MB: 64", "MB: !!python/object/apply:os.getcwd []"), "nested deeper"),
    "alias bomb": (
        "a: &a [x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 8)}]\n"
            for i in range(20)
        )
        + GOOD,
        "anchors and aliases",
    ),
    # PyYAML before 6.0.4 has no limit of its own.
    "deep": ("[" * 30_000, r"line 1: (nested deeper than 7|not YAML .*nesting depth)"),
    "long text": (GOOD.replace("nvcc 13.0.88", "n" * 201), "not a short value"),
    "device": (GOOD.replace("name: Test GPU 9", "name: [Test]"), "not a short value"),
    "other device": (GOOD.replace("name: Test GPU 9", "name: Other"), "belongs to Other"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_never_overwritten(tmp_path, name):
    text, words = DAMAGE[name]
    path = tmp_path / "test-gpu-9.yaml"
    path.write_text(text)
    actions = (
        lambda: store.load(GPU, tmp_path),
        lambda: store.put([], GPU, tmp_path),
        lambda: store.put([record()], GPU, tmp_path),
    )
    for action in actions:
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


BOMBS = {
    "deep": "[" * 30_000,
    "deep mapping": "{" * 30_000,
    "deep lists": "- " * 30_000,
    "aliases": "a: &a [x, x]\nb: [" + "*a, " * 10**6 + "]\n",
    "anchors": "".join(f"a{i}: &a{i} {'x' * 9}\n" for i in range(100_000)),
}

MULTIPLY = """
import re, sys, warnings
import numpy as np
import pymm
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    for _ in range(3):
        a = np.arange(12.0).reshape(3, 4)
        assert np.array_equal(pymm.matmul(a, a.T, device=sys.argv[1]), a @ a.T)
most = re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())  # of this program alone
print(len(said), int(most[1]) >> 10, said[0].message)
"""


@pytest.mark.parametrize("name", BOMBS)
def test_matmul_goes_on_without_a_bomb(tmp_path, cpu, name):
    """Before, 30 KB of brackets ended the process by SIGSEGV, and aliases took 900 MB."""
    path = tmp_path / f"{cpu.device.slug}.yaml"
    path.write_text(BOMBS[name])
    done = subprocess.run(
        [sys.executable, "-c", MULTIPLY, "cpu:1"],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"PYMM_CONFIG_DIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr
    warned, mebibytes, message = done.stdout.split(maxsplit=2)
    assert int(warned) == 1 and int(mebibytes) < 400
    assert f"{path}, line 1: " in message and "move the file away" in message
    assert path.read_text() == BOMBS[name]
