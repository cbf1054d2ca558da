"""Many writers, sudden death, locks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time

import pytest
from tuned import GPU, record

from pymm.core import files
from pymm.selection import store


def _put_many(directory, start, count, without_flock):
    if without_flock:
        files.fcntl = None
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
        monkeypatch.setattr(files, "fcntl", None)


SERVER = multiprocessing.get_context("forkserver")


def test_two_processes_that_put_at_once_lose_nothing(tmp_path, lock_kind):
    starts, without = (1, 101, 201), files.fcntl is None
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
        files.locked(lock),
        pytest.raises(TimeoutError, match="x.lock has been held"),
        files.locked(lock, seconds=0.05),
    ):
        raise AssertionError("two hold the lock")
    with files.locked(lock, seconds=0.05):
        pass


def test_a_write_that_fails_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("old")
    monkeypatch.setattr(files.os, "replace", lambda *names: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        files.replace_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
