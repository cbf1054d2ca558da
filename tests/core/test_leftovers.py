"""What a killed process leaves behind goes with the next run; a full disk is named; Ctrl-C is the
parent's business alone.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from sources import source

from pymm.backends import open_device
from pymm.backends.base import Compiler
from pymm.core.binaries import obtain
from pymm.core.errors import CompileFailed, CompileTimeout
from pymm.core.files import Workplace, replace_text
from pymm.measure.precompile import Precompiler
from pymm.measure.worker import Worker
from pymm.measure.worker_process import Site
from pymm.tune.trial_log import TrialLog

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"


#: Where a script finds what this test and its helpers are.
PATHS = f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(SUPPORT)!r}]\n"


def start(script: str, folder: Path, **more) -> subprocess.Popen:
    """A process with a folder of its own for temporary files and binaries; first line: "begun"."""
    environment = dict(os.environ, TMPDIR=str(folder), PYMM_CACHE_DIR=str(folder / "cache"))
    arguments = [sys.executable, "-c", script]
    process = subprocess.Popen(
        arguments, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, **more
    )
    assert process.stdout.readline() == "begun\n"
    return process


def names(folder: Path, *patterns: str) -> list[str]:
    return sorted(path.name for pattern in patterns for path in folder.rglob(pattern))


HOLD = """
import sys, time
from pathlib import Path
from pymm.core.binaries import obtain
from pymm.measure.precompile import Precompiler
from pymm.measure.worker_process import Site
from pymm.measure.worker import Worker
if __name__ == "__main__":
    pool, worker = Precompiler("cpu:1", workers=1), Worker(Site("cpu:1"))
    worker.start()
    obtain(Path(sys.argv[1]) / "cache" / "cpu" / "key", lambda place: print("begun", flush=True)
           or time.sleep(600))
"""


def test_what_a_killed_process_left_goes_with_the_next(tmp_path, monkeypatch):
    """And nothing of one that lives."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    patterns = ("new-*", "pymm-compile-*", "pymm-worker-*")
    script = HOLD.replace("sys.argv[1]", repr(str(tmp_path)))
    with start(script, tmp_path) as process:
        mine = names(tmp_path, *patterns)
        assert len(mine) == 3

        def run():
            with Precompiler(open_device("cpu:1", tmp_path / "cache"), workers=1):
                worker = Worker(Site("cpu:1"))
                worker.start()
                worker.stop()

        run()
        assert names(tmp_path, *patterns) == mine, "it lives"
        process.kill()
    assert names(tmp_path, *patterns) == mine
    run()
    assert names(tmp_path, *patterns) == []


def test_a_workplace_is_of_one_process(tmp_path):
    with Workplace("p-", tmp_path) as one, Workplace("p-", tmp_path) as other:
        assert one != other and one.is_dir() and other.is_dir()
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert one.is_dir()
    (tmp_path / "p-link").symlink_to(ROOT)
    with Workplace("p-", tmp_path):
        assert (ROOT / "pymm").is_dir()
    assert [path.name for path in tmp_path.iterdir()] == ["p-link"]


# A full disk


def test_a_full_disk_is_named_with_its_path(tmp_path, monkeypatch):
    path = tmp_path / "trials.csv"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
        TrialLog(path)

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'x.yaml'}'"):
        replace_text(tmp_path / "x.yaml", "text")


def test_a_compiler_that_met_a_full_disk_has_refused_nothing(tmp_path):
    def compile_there(place):
        raise CompileFailed("nvcc 13 refused x:\nfatal error: No space left on device")

    with pytest.raises(OSError, match="no space left on this disk") as caught:
        obtain(tmp_path / "key", compile_there)
    assert caught.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


# Interrupts and compilers that do not end

INTERRUPTED = """
import os, signal, time
def interrupt(work):
    signal.signal(signal.SIGINT, lambda *arguments: None)
    while not work.done():
        os.killpg(0, signal.SIGINT)
        time.sleep(0.01)
    work.result()
    print("begun", flush=True)
"""
STARTING = """
from pymm.measure.precompile import Precompiler
from sources import source
if __name__ == "__main__":
    with Precompiler("cpu:1", workers=2) as pool:
        interrupt(pool.submit(source("cpu", "int f() { return 1; }")))
"""
PREPARING = """
from recorded import NoCompiler
from pymm.core.device import Device
from pymm.kernels import find_kernel
from pymm.tune.initial import Prefetcher
from pymm.core.problem import Problem
from pymm.tune.tasks import Task
if __name__ == "__main__":
    device = Device("gpu", "cuda", capability=(9, 0))
    task = Task(Problem(64, 64, 64), (find_kernel("register_tile"),))
    with Prefetcher(device, NoCompiler(), quick=True, processes=True) as lookout:
        lookout.next([task])
        interrupt(lookout._prepared[task][0])
"""


@pytest.mark.parametrize("script", [STARTING, PREPARING], ids=["compilers", "searches"])
def test_an_interrupt_while_a_pool_starts_is_the_parents_alone(tmp_path, script):
    """Ctrl-C all the time: no process of the pool says or does anything but its work."""
    script = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}){INTERRUPTED}{script}"
    process = start(script, tmp_path, stderr=subprocess.PIPE, start_new_session=True)
    _, words = process.communicate(timeout=60)
    assert process.returncode == 0 and words == ""


class Endless(Compiler):
    """A compiler that starts a program, which never ends."""

    toolchain, target = "endless 1.0", "nothing"

    def __init__(self, words):
        self.words = words

    def folder(self, source):
        return self.words.parent / source.key

    def build(self, source):
        command = f"echo $$ >> {self.words}; sleep 600"
        if source.text == "quick":
            command = "true"
        subprocess.run(["sh", "-c", f"{command}; true"], check=True)


def ended(process: int) -> bool:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


def test_a_compilation_has_a_time_limit(tmp_path):
    """What it started ends with it, and the pool goes on."""
    with Precompiler(Endless(tmp_path / "pid"), workers=1, limit=0.5) as pool:
        stuck, quick = pool.submit(source("cpu", "stuck")), pool.submit(source("cpu", "quick"))
        with pytest.raises(CompileTimeout, match="more than 0.5 s for reordered-MB64"):
            stuck.result(timeout=60)
        assert quick.result(timeout=60) is None
    assert ended(int((tmp_path / "pid").read_text()))


def test_a_pool_that_is_left_breaks_off_what_it_compiles(tmp_path):
    started = time.monotonic()
    with Precompiler(Endless(tmp_path / "pid"), workers=1) as pool:
        futures = [pool.submit(source("cpu", f"stuck {n}")) for n in range(4)]
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < started + 60
            time.sleep(0.02)
    assert ended(int((tmp_path / "pid").read_text()))
    assert all(future.cancelled() or future.exception() for future in futures)


def test_compilers_end_with_a_killed_run(tmp_path):
    script = f"""
import os, signal, sys, time
sys.path[:0] = ["tests/core", "tests/support"]
from pathlib import Path
from pymm.measure.precompile import Precompiler
from sources import source
from test_leftovers import Endless
if __name__ == "__main__":
    words = Path({str(tmp_path / "pid")!r})
    pool = Precompiler(Endless(words), workers=1)
    work = pool.submit(source("cpu", "stuck"))
    while not words.exists() or not words.read_text():
        time.sleep(0.02)
    print("begun", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    with start(PATHS + script, tmp_path):
        pass
    assert ended(int((tmp_path / "pid").read_text()))
