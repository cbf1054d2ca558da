"""The simulator's own binaries: whole or absent, and nobody else's."""

import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.simulator


@pytest.fixture
def builder(tmp_path, monkeypatch):
    """pymm.simulator.build with a cache of its own, which fills a folder in no time."""
    module = importlib.import_module("pymm.simulator.build")
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path / "cache"))
    fills = []

    def fill(folder: Path, name: str) -> None:
        fills.append(folder)
        (folder / "lib").mkdir()
        (folder / "lib" / "libcuda.so.1").write_bytes(b"code" * 1000)

    monkeypatch.setattr(module, "_fill", fill)
    monkeypatch.setattr(module, "fills", fills, raising=False)
    return module


def test_two_builds_at_once(builder, monkeypatch):
    """The first to finish is taken, the other leaves nothing behind."""
    fill = builder._fill

    def overtaken(folder: Path, name: str) -> None:
        fill(folder, name)
        (folder / "mark").write_text("mine")
        with monkeypatch.context() as other:  # another process comes first
            other.setattr(builder, "_fill", fill)
            builder.build()

    monkeypatch.setattr(builder, "_fill", overtaken)
    folder = builder.build()
    assert not (folder / "mark").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert builder.build() == folder and len(builder.fills) == 2


@pytest.mark.parametrize("damage", ["cut", "changed", "gone", "list gone", "writable"])
def test_a_damaged_driver_is_built_anew(builder, damage):
    """A file cut short kills the process that loads it by SIGBUS."""
    folder = builder.build()
    driver = folder / "lib" / "libcuda.so.1"
    if damage == "cut":
        os.truncate(driver, 100)
    elif damage == "changed":
        driver.write_bytes(b"c0de" * 1000)
    elif damage == "gone":
        driver.unlink()
    elif damage == "list gone":
        (folder / "sha256").unlink()
    else:
        folder.chmod(0o777)
    assert builder.build() == folder and len(builder.fills) == 2
    assert driver.read_bytes() == b"code" * 1000
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_what_killed_builds_left_is_removed(builder):
    """Of pymm before this as well."""
    root = builder.cache_directory() / "simulator"
    for name in ("building-old", "new-old"):
        (root / name / "lib").mkdir(parents=True, mode=0o700)
    root.chmod(0o700)
    folder = builder.build()
    assert [path.name for path in root.iterdir()] == [folder.name]


def test_code_is_not_loaded_from_where_others_may_write(builder, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(builder.CannotSimulate, match="other users may write in .*chmod 700"):
        builder.build()
    (tmp_path / "cache").chmod(0o700)
    (tmp_path / "cache" / "simulator").mkdir(mode=0o700)
    (tmp_path / "cache" / "simulator").chmod(0o770)
    with pytest.raises(builder.CannotSimulate, match="other users may write in .*simulator"):
        builder.build()
    assert not builder.fills


def test_a_cut_driver_does_not_kill_its_process(tmp_path):
    """The real one, in a copy of this session's folder, from which it is also filled anew."""
    import pymm.simulator

    whole = Path(pymm.simulator.nvcc()).parents[1]
    own = tmp_path / "cache" / "simulator" / whole.name
    own.parent.mkdir(parents=True, mode=0o700)
    own.parent.parent.chmod(0o700)
    shutil.copytree(whole, own)
    os.truncate(own / "lib" / "libcuda.so.1", 100_000)
    script = (
        "import shutil, sys; from pymm.simulator import activate, build\n"
        "build._fill = lambda folder, name: shutil.copytree(\n"
        "    sys.argv[1], folder, ignore=shutil.ignore_patterns('sha256'), dirs_exist_ok=True)\n"
        "activate(); import pycuda.driver as d; d.init(); print(d.Device(0).name())"
    )
    environment = dict(os.environ, PYMM_CACHE_DIR=str(tmp_path / "cache"))
    done = subprocess.run(
        [sys.executable, "-c", script, str(whole)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=Path(__file__).parents[2],
        env=environment,
    )
    assert done.returncode == 0 and "pymm simulator" in done.stdout, done.stderr
    driver = Path("lib", "libcuda.so.1")
    assert (own / driver).read_bytes() == (whole / driver).read_bytes()


def test_one_driver_serves_all_ways_to_compile_kernels(tmp_path, monkeypatch):
    """Each way, watched for races or not, has its own folder, with a copy of the same driver."""
    module = importlib.import_module("pymm.simulator.build")
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path / "cache"))
    made = []

    def build_driver(folder: Path) -> None:
        made.append(folder)
        (folder / "libcuda.so.1").write_bytes(b"code")

    monkeypatch.setattr(module, "_build_driver", build_driver)
    folders = set()
    for races in "01":
        monkeypatch.setenv("PYMM_SIMULATOR_RACES", races)
        folders.add(module.build())
    assert len(folders) == 2 and len(made) == 1
    assert all((folder / "lib" / "libcuda.so.1").read_bytes() == b"code" for folder in folders)
