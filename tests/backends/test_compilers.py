"""Which compilers are taken, which are refused, and what the refusal says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pymm.backends.cpu.compiler import FLAGS, OPTIONAL_FLAGS, find_compiler
from pymm.backends.cuda.nvcc import find_nvcc
from pymm.core.errors import NoDevice

ROOT = Path(__file__).resolve().parents[2]


def test_a_compiler_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(NoDevice, match="CXX names .no-such-compiler.*apt install"):
        find_compiler(tmp_path)


@pytest.mark.parametrize("refused, kept", [("--param*", 1), ("-march*", 0), ("none", 2)])
def test_flags_that_a_compiler_refuses_are_left_out(refused, kept, monkeypatch, tmp_path):
    """Another compiler than GCC still compiles for this machine's processor."""
    stern = tmp_path / "stern"
    test = f'for a in "$@"; do case $a in {refused}) exit 1;; esac; done'
    stern.write_text(f'#!/bin/sh\n{test}\nexec g++ "$@"\n')
    stern.chmod(0o755)
    monkeypatch.setenv("CXX", str(stern))
    assert find_compiler(tmp_path / "cache").flags == FLAGS + OPTIONAL_FLAGS[:kept]


@pytest.fixture
def nvcc(tmp_path):
    """Makes programs that call themselves nvcc of some release."""

    def make(release: str, folder: str = "bin") -> Path:
        path = tmp_path / folder / "nvcc"
        path.parent.mkdir(parents=True)
        version = f"Cuda compilation tools, release {release}, V{release}.1"
        path.write_text(f"#!/bin/sh\necho '{version}'")
        path.chmod(0o755)
        return path

    return make


def test_nvcc_is_taken_where_asked_for(nvcc, tmp_path, monkeypatch):
    asked, home = nvcc("12.4", "asked"), nvcc("12.8", "home/bin")
    on_path = nvcc("12.9", "path")
    monkeypatch.setenv("PYMM_NVCC", str(asked))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(on_path.parent), prepend=os.pathsep)
    assert (find_nvcc().path, find_nvcc().version) == (str(asked), "nvcc 12.4.1")
    monkeypatch.delenv("PYMM_NVCC")
    assert find_nvcc((12, 0)).path == str(home)
    monkeypatch.delenv("CUDA_HOME")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    assert find_nvcc().path == str(on_path)
    assert find_nvcc().release == (12, 9)


def test_an_nvcc_newer_than_the_driver_is_refused(nvcc, monkeypatch):
    monkeypatch.setenv("PYMM_NVCC", str(nvcc("99.1")))
    wanted = "is of CUDA 99.1, and the driver supports CUDA 12.4.*PYMM_NVCC"
    with pytest.raises(NoDevice, match=wanted):
        find_nvcc((12, 4))


def test_an_nvcc_too_new_gives_way_to_the_next(nvcc, tmp_path, monkeypatch):
    monkeypatch.delenv("PYMM_NVCC", raising=False)
    monkeypatch.setenv("CUDA_HOME", str(nvcc("99.1", "home/bin").parents[1]))
    older = nvcc("12.0", "path")
    monkeypatch.setenv("PATH", str(older.parent), prepend=os.pathsep)
    assert find_nvcc((13, 0)).path == str(older)


def test_a_link_to_nvcc_is_followed_to_its_parts(nvcc, tmp_path, monkeypatch):
    real = nvcc("12.0", "toolkit/bin")
    link = tmp_path / "links" / "nvcc"
    link.parent.mkdir()
    link.symlink_to(real)
    monkeypatch.delenv("PYMM_NVCC", raising=False)
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("PATH", str(link.parent), prepend=os.pathsep)
    assert find_nvcc().path == str(real)


def test_what_is_no_nvcc_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PYMM_NVCC", str(tmp_path / "nowhere"))
    with pytest.raises(NoDevice, match="nowhere.*No such file"):
        find_nvcc()


def test_without_pycuda_the_message_says_what_to_do():
    script = (
        "import sys\n"
        "sys.modules['pycuda'] = None\n"
        "from pymm.backends import open_device\n"
        "from pymm.core.errors import NoDevice\n"
        "try:\n"
        "    open_device('cuda')\n"
        "except NoDevice as error:\n"
        "    print(error)\n"
        "print(open_device().device.kind)\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYMM_SIMULATOR"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    advice = "`pip install '.[cuda]'` in a checkout of pymm installs it"
    assert advice in done.stdout and "doctor" in done.stdout, done.stderr
    assert done.stdout.endswith("\ncpu\n")
