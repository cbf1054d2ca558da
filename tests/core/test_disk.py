"""What is left on the disk by processes that were killed, and what is said when it is full."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from sources import source

from pymm.backends import open_device
from pymm.backends.cpu import compiler
from pymm.core import paths
from pymm.core.binaries import obtain
from pymm.core.errors import CompileFailed, NoDevice
from pymm.core.files import Workplace, sweep
from pymm.core.paths import DiskFull, out_of_space

ROOT = Path(__file__).resolve().parents[2]

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

#: Makes a binary, and says so in the middle of it.
MAKER = """
import sys, time
from pathlib import Path
from pymm.core.binaries import obtain

def make(place):
    (place / "half").write_bytes(b"x" * 1000)
    print("making", flush=True)
    time.sleep(600)

obtain(Path(sys.argv[1]), make)
"""


def making(folder: Path) -> subprocess.Popen:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER, str(folder)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert maker.stdout.readline() == "making\n"
    return maker


def quick(place: Path) -> Path:
    (place / "binary").write_bytes(b"code")
    return place / "binary"


def test_what_a_killed_process_left_is_removed_and_what_others_do_is_not(tmp_path):
    with making(tmp_path / "one") as dead, making(tmp_path / "two") as alive:
        assert len(list(tmp_path.glob("new-*"))) == 2
        obtain(tmp_path / "three", quick)
        assert len(list(tmp_path.glob("new-*"))) == 2
        dead.send_signal(signal.SIGKILL)
        dead.wait()
        obtain(tmp_path / "four", quick)
        (left,) = tmp_path.glob("new-*")
        assert list(left.rglob("half"))
        alive.send_signal(signal.SIGKILL)
        alive.wait()
        obtain(tmp_path / "five", quick)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["five", "four", "three"]


def test_makers_and_sweepers_at_once(tmp_path):
    """A directory that is swept before its maker holds it is made again."""
    failures, end = [], threading.Event()

    def sweeper() -> None:
        while not end.is_set():
            sweep(tmp_path, "new-")

    def maker() -> None:
        for number in range(200):
            with Workplace("new-", tmp_path) as place:
                (place / "file").write_text(str(number))
                if (place / "file").read_text() != str(number):
                    failures.append(number)

    sweepers = [threading.Thread(target=sweeper) for _ in range(2)]
    makers = [threading.Thread(target=maker) for _ in range(2)]
    for thread in (*sweepers, *makers):
        thread.start()
    for thread in makers:
        thread.join()
    end.set()
    for thread in sweepers:
        thread.join()
    assert not failures and list(tmp_path.iterdir()) == []


def test_links_and_files_are_not_swept(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("precious")
    (tmp_path / "new-link").symlink_to(kept)
    (tmp_path / "new-file").write_text("")
    sweep(tmp_path, "new-")
    assert (kept / "file").read_text() == "precious"
    assert (tmp_path / "new-link").is_symlink() and (tmp_path / "new-file").exists()


def test_a_full_disk_is_named(tmp_path):
    def cannot_write(place: Path) -> Path:
        raise FULL

    def cannot_compile(place: Path) -> Path:
        raise CompileFailed("as: can't write 64 bytes to section .text: No space left on device")

    def refuses(place: Path) -> Path:
        raise CompileFailed("undeclared_thing")

    for make in (cannot_write, cannot_compile):
        with pytest.raises(DiskFull, match="No space|no space left") as caught:
            obtain(tmp_path / "key", make)
        assert caught.value.filename == str(tmp_path) and "PYMM_CACHE_DIR" in str(caught.value)
    with pytest.raises(CompileFailed, match="undeclared"):
        obtain(tmp_path / "key", refuses)
    assert list(tmp_path.iterdir()) == []


def test_the_fullest_of_several_is_named(tmp_path, monkeypatch):
    free = {"cache": 5, "temporary": 0}
    usage = lambda place: SimpleNamespace(free=free[Path(place).name])  # noqa: E731
    monkeypatch.setattr(paths.shutil, "disk_usage", usage)
    places = {"PYMM_CACHE_DIR": tmp_path / "cache", "TMPDIR": tmp_path / "temporary"}
    assert "set TMPDIR" in str(out_of_space(FULL, places))
    free["temporary"] = 9
    assert str(tmp_path / "cache") in str(out_of_space(FULL, places))
    assert out_of_space(PermissionError(errno.EACCES, "no"), places) is None
    quota = OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
    assert isinstance(out_of_space(quota, places), DiskFull)


@pytest.fixture
def fake_compiler(tmp_path, monkeypatch):
    """Programs that answer --version and then do as they are told."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def make(then: str) -> Path:
        program = tmp_path / "compiler"
        answer = '[ "$1" = --version ] && { echo fake 1.0; exit 0; }'
        program.write_text(f"#!/bin/sh\n{answer}\n{then}\n")
        program.chmod(0o700)
        monkeypatch.setenv("CXX", str(program))
        return temporary

    return make


def test_a_full_temporary_directory_is_not_a_compiler_that_refuses(fake_compiler, tmp_path):
    temporary = fake_compiler("echo 'cc1plus: fatal error: No space left on device' >&2; exit 1")
    with pytest.raises(NoDevice, match="cannot be tried.*no space left.*TMPDIR.*") as caught:
        compiler.find_compiler(tmp_path)
    assert str(temporary) in str(caught.value) and "C++17" not in str(caught.value)
    assert list(temporary.iterdir()) == []


def test_a_temporary_directory_that_takes_no_file(fake_compiler, tmp_path, monkeypatch):
    temporary = fake_compiler("exit 0")

    def full(*arguments: object, **options: object) -> str:
        raise FULL

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", full)
        with pytest.raises(NoDevice, match="cannot be tried.*no space left") as caught:
            compiler.find_compiler(tmp_path)
    assert str(temporary) in str(caught.value)


def test_what_a_killed_probe_left_is_removed(fake_compiler, tmp_path):
    temporary = fake_compiler("exit 0")
    (temporary / "pymm-probe-old").mkdir()
    compiler.find_compiler(tmp_path)
    assert list(temporary.iterdir()) == []


def test_a_compiler_that_refuses_still_does(fake_compiler, tmp_path):
    fake_compiler("exit 1")
    with pytest.raises(NoDevice, match="does not compile C[+][+]17"):
        compiler.find_compiler(tmp_path)


def test_a_blank_cxx_names_no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", " ")
    assert compiler.find_compiler(tmp_path).path == shutil.which("g++")


@pytest.mark.simulator
@pytest.mark.parametrize("said", ["by nvcc", "by PyCUDA"])
def test_a_full_disk_under_nvcc_is_named(tmp_path, monkeypatch, said):
    backend = open_device("cuda", tmp_path / "cache")
    import pycuda.compiler
    import pycuda.driver

    def compile(*arguments: object, **options: object) -> bytes:
        if said == "by PyCUDA":
            raise FULL
        words = "cicc: No space left on device"
        raise pycuda.driver.CompileError("nvcc compilation of /x.cu failed", [], "", words)

    monkeypatch.setattr(pycuda.compiler, "compile", compile)
    with pytest.raises(DiskFull, match=r"no space left.*: '/") as caught:
        backend.precompile(source("cuda"))
    assert caught.value.filename in (str(tmp_path / "cache"), tempfile.gettempdir())
