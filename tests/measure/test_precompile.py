"""Binaries on disk: whole or absent, whoever writes at the same time; and the pool of compilers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from sources import source

from pymm.backends import open_device
from pymm.backends.base import Compiler
from pymm.core.binaries import key_of, obtain, sound
from pymm.core.errors import CompileFailed
from pymm.core.paths import cache_directory, config_directory, state_directory
from pymm.measure.precompile import Precompiler

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["cpu:1", "cuda"])
def fresh(request, tmp_path):
    """A backend with an empty cache of its own."""
    return open_device(request.param, tmp_path / "cache")


def kind(backend) -> str:
    return "cpu" if backend.device.kind == "cpu" else "cuda"


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("new-*")]


# The folder of a binary


def test_made_once_and_found_again(tmp_path):
    made = []

    def make(place: Path) -> Path:
        made.append(place)
        (place / "rubbish").write_text("left by the compiler")
        (place / "binary").write_bytes(b"code")
        return place / "binary"

    folder = tmp_path / "a" / "key"
    first = obtain(folder, make)
    assert first == obtain(folder, make) == sound(folder) == folder / "binary"
    assert len(made) == 1 and first.read_bytes() == b"code"
    assert sorted(path.name for path in folder.iterdir()) == ["binary", "sha256"]
    assert not leftovers(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "changed", "no digest", "no binary", "empty"])
def test_damage_is_seen_and_mended(tmp_path, damage):
    def make(place: Path) -> Path:
        (place / "binary").write_bytes(b"the whole code")
        return place / "binary"

    folder = tmp_path / "key"
    binary = obtain(folder, make)
    if damage == "cut":
        binary.write_bytes(b"the wh")
    elif damage == "changed":
        binary.write_bytes(b"the whole c0de")
    elif damage == "no digest":
        (folder / "sha256").unlink()
    elif damage == "no binary":
        binary.unlink()
    else:
        (folder / "sha256").write_text("")
    assert sound(folder) is None
    assert obtain(folder, make).read_bytes() == b"the whole code"
    assert not leftovers(tmp_path)


def test_a_failure_leaves_nothing(tmp_path):
    def make(place: Path) -> Path:
        (place / "half").write_bytes(b"x")
        raise CompileFailed("no")

    with pytest.raises(CompileFailed):
        obtain(tmp_path / "key", make)
    assert list(tmp_path.iterdir()) == []


def test_many_at_once_agree(tmp_path):
    barrier = threading.Barrier(8)
    got = []

    def make(place: Path) -> Path:
        barrier.wait(timeout=10)  # everybody compiles, nobody is first
        (place / "binary").write_bytes(b"code" * 1000)
        return place / "binary"

    threads = [
        threading.Thread(target=lambda: got.append(obtain(tmp_path / "key", make).read_bytes()))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [b"code" * 1000] * 8
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_keys_do_not_run_together():
    assert key_of("ab", "c") != key_of("a", "bc") != key_of("abc")


# Real compilers


def test_a_binary_cut_short_is_compiled_again(fresh):
    text = source(kind(fresh))
    path = fresh.compiler.build(text)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert fresh.load(text).config == text.config
    assert path.read_bytes()[:4] == b"\x7fELF" and sound(path.parent) == path


def test_compiling_ahead_is_all_the_compiling(fresh, monkeypatch):
    text = source(kind(fresh))
    fresh.precompile(text)
    monkeypatch.setattr(type(fresh.compiler), "_compile", None)
    if kind(fresh) == "cuda":
        import pycuda.compiler

        calls = pycuda.compiler.call_capture_output
        pycuda.compiler.get_nvcc_version(fresh.compiler.nvcc)  # asked once per process

        def no_compiler(*arguments, **options):
            raise AssertionError(f"SourceModule compiles: {arguments}")

        monkeypatch.setattr(pycuda.compiler, "call_capture_output", no_compiler)
        assert calls is not no_compiler
    assert fresh.load(text).config == text.config


def test_the_compilers_words(fresh, tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    text = source(kind(fresh)).text + "\nint x = undeclared_thing;\n"
    with pytest.raises(CompileFailed, match="undeclared_thing") as caught:
        fresh.load(source(kind(fresh), text))
    assert source(kind(fresh)).config.slug in str(caught.value)
    assert list(place.iterdir()) == []
    assert not leftovers(tmp_path)


def test_an_include_in_the_text_is_no_trouble(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    text = "#include <no_such_header.h>\n" + source(kind(fresh)).text
    with pytest.raises(CompileFailed, match="no_such_header"):
        fresh.load(source(kind(fresh), text))
    left = [path.name for path in tmp_path.iterdir() if path.name != "cache"]
    assert left == []


def test_flags_from_the_environment_are_part_of_the_key(cuda, monkeypatch):
    plain = cuda.compiler.folder(source("cuda"))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX=1")
    assert cuda.compiler.folder(source("cuda")) != plain


# The pool


@pytest.fixture(scope="module", params=["cpu:1", "cuda"])
def pool(request, tmp_path_factory):
    backend = open_device(request.param, tmp_path_factory.mktemp("pool"))
    with Precompiler(backend, workers=2) as pool:
        yield backend, pool


def test_two_processes_compile_the_same(pool):
    backend, pool = pool
    text = source(kind(backend))
    futures = [pool.submit(text) for _ in range(2)]
    assert [future.result(timeout=120) for future in futures] == [None, None]
    assert pool.pending == 0
    path = backend.compiler.build(text)
    assert sound(path.parent) == path
    assert not leftovers(backend.compiler.cache)


def test_what_nobody_waits_for_leaves_the_queue(tmp_path):
    """One of two that wait for the same text may leave; then the other; what has begun ends."""
    with Precompiler(Recorder(tmp_path / "built"), workers=1) as pool:
        first = [pool.submit(source("cpu", f"text{number}")) for number in range(4)]
        shared, other = (pool.submit(source("cpu", "late")) for _ in range(2))
        lonely = pool.submit(source("cpu", "never"))
        assert shared.cancel() and lonely.cancel()
        assert [future.result(timeout=60) for future in (*first, other)] == [None] * 5
    built = (tmp_path / "built").read_text().split()
    assert built == ["text0", "text1", "text2", "text3", "late"]
    assert shared.cancelled() and lonely.cancelled() and pool.pending == 0


class Recorder(Compiler):
    """Takes a while and writes down what it was given."""

    toolchain, target = "recorder 1.0", "paper"

    def __init__(self, path):
        self.path = path

    def folder(self, source):
        return self.path.parent / source.key

    def build(self, source):
        time.sleep(0.2)
        with open(self.path, "a") as file:
            file.write(source.text + "\n")


def test_a_refusal_comes_back_from_the_pool(pool):
    backend, pool = pool
    future = pool.submit(source(kind(backend), "this is no program"))
    with pytest.raises(CompileFailed, match=source(kind(backend)).config.slug):
        future.result(timeout=120)


def test_a_pool_ends_and_cleans_up(cpu, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Precompiler(cpu.compiler, workers=1) as pool:
        pool.submit(source("cpu")).result(timeout=120)
        assert len(list(tmp_path.iterdir())) == 1
        assert pool._pool.submit(os.nice, 0).result() == min(os.nice(0) + 10, 19), "gives way"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="workers=0"):
        Precompiler(cpu, workers=0)


def test_a_pool_ends_with_its_parent():
    script = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(ROOT / 'tests' / 'support')!r})\n"
        "from pymm.measure.precompile import Precompiler\n"
        "from sources import source\n"
        "pool = Precompiler('cpu:1', workers=1)\n"
        "pool.submit(source('cpu')).result()\n"
        "print(*pool._pool._processes, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    (worker,) = map(int, done.stdout.split())
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < deadline, f"process {worker} outlives its parent"
        time.sleep(0.05)


# Directories


def test_directories_are_private(tmp_path, monkeypatch):
    for setting, directory in (
        ("PYMM_CACHE_DIR", cache_directory),
        ("PYMM_CONFIG_DIR", config_directory),
        ("PYMM_STATE_DIR", state_directory),
    ):
        monkeypatch.setenv(setting, str(tmp_path / setting / "deep"))
        assert directory() == tmp_path / setting / "deep"
        assert directory().stat().st_mode & 0o777 == 0o700


def test_a_directory_that_others_may_change_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod 700.*or set PYMM_CACHE_DIR"):
        cache_directory()
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: 12345678)
    with pytest.raises(PermissionError, match="this process runs as 12345678.*PYMM_CACHE_DIR"):
        cache_directory()


def test_a_directory_that_cannot_be(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.raises(PermissionError, match="cannot write in .*set PYMM_CACHE_DIR"):
        open_device("cpu:1")
