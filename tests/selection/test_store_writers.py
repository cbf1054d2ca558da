"""Many writers, sudden death, locks."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from tuned import GPU, record

from pymm.core import files
from pymm.selection import store


def _put_many(directory, start, count):
    for m in range(start, start + count):
        store.put([record(m)], GPU, directory)


def _put_for_ever(directory, start):
    m = start
    while True:
        store.put([record(m)], GPU, directory)
        with open(directory / "done", "a") as done:
            done.write(f"{m}\n")
        m += 1


SERVER = multiprocessing.get_context("forkserver")


def test_processes_that_put_at_once_lose_nothing(tmp_path):
    starts = (1, 101, 201)
    writers = [SERVER.Process(target=_put_many, args=(tmp_path, start, 12)) for start in starts]
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


def test_a_holder_that_does_not_let_go_is_named(tmp_path):
    lock = tmp_path / "x.lock"
    with (
        files.locked(lock),
        pytest.raises(TimeoutError, match="x.lock has been held"),
        files.locked(lock, seconds=0.05),
    ):
        raise AssertionError("two hold the lock")
    with files.locked(lock, seconds=0.05):
        pass


#: Takes the lock, forks a child that runs until its standard input ends, and says so; with "let
#: go" the lock is given back, else this process is killed with it.
FORKS = """
import os, signal, sys
from pathlib import Path
from pymm.core import files
running, says = os.pipe()
with files.locked(Path(sys.argv[1]), seconds=0):
    if os.fork() == 0:
        os.write(says, b"x")
        sys.stdin.read()
        os._exit(0)
    os.read(running, 1)
    if sys.argv[2] == "killed":
        print("forked", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
print("forked", flush=True)
os.wait()
"""


@pytest.mark.parametrize("end", ["killed", "let go"])
def test_a_forked_child_does_not_hold_its_parents_lock(tmp_path, end):
    lock = tmp_path / "x.lock"
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(lock), end]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"forked\n"
        if end == "killed":
            assert parent.wait(10) == -signal.SIGKILL
        with files.locked(lock, seconds=0):
            pass
        parent.stdin.close()


def test_a_forked_child_gives_back_no_lock_of_its_parents(tmp_path):
    lock, program = (
        tmp_path / "x.lock",
        (
            "import os, sys\n"
            "from pathlib import Path\n"
            "from pymm.core import files\n"
            "with files.locked(Path(sys.argv[1]), seconds=0):\n"
            "    child = os.fork()\n"
            "    if child:\n"
            "        assert os.waitpid(child, 0)[1] == 0\n"
            "        print(flush=True)\n"
            "        sys.stdin.read()\n"
        ),
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout.readline() == b"\n"
        with pytest.raises(TimeoutError), files.locked(lock, seconds=0):
            raise AssertionError("two hold the lock")
        parent.stdin.close()
    assert parent.returncode == 0


def test_a_lock_file_that_is_removed_meanwhile_is_made_anew(tmp_path, monkeypatch):
    lock, real = tmp_path / "x.lock", files.fcntl.flock
    removed = []

    def flock(descriptor, how):
        if not removed:
            removed.append(lock.unlink())
        real(descriptor, how)

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with files.locked(lock), pytest.raises(TimeoutError), files.locked(lock, seconds=0):
        raise AssertionError("two hold the lock")
    assert removed and lock.exists()


def test_a_write_that_fails_leaves_the_old_text(tmp_path, monkeypatch):
    path = tmp_path / "x.yaml"
    path.write_text("old")
    monkeypatch.setattr(files.os, "replace", lambda *names: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        files.replace_text(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
