"""`make dist`: what it refuses, and what it asks for by name."""

from __future__ import annotations

import importlib.util
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, for a checkout in this test's directory."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    path = ROOT / "tools" / "distribution.py"
    spec = importlib.util.spec_from_file_location("distribution", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "DIST", tmp_path / "dist")
    (tmp_path / "dist").mkdir()
    for name in ("pymm_cuda-1.2.0-py3-none-any.whl", "pymm_cuda-1.2.0.tar.gz"):
        (tmp_path / "dist" / name).touch()
    return module


def git(folder: Path, *words: str) -> None:
    author = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org"]
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


def test_the_name_is_that_of_the_project(script):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert script.NAME == project["name"]


def test_a_tag_of_another_version_is_refused(script, tmp_path):
    script.check_tag()  # no git, as in an unpacked sdist
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "one")
    script.check_tag()  # no tag
    git(tmp_path, "tag", "v1.1.0")
    with pytest.raises(SystemExit, match="tagged v1.1.0, and the version is 1.2.0"):
        script.check_tag()
    git(tmp_path, "tag", "v1.2.0")
    script.check_tag()


def test_wheel_and_sdist_are_both_there(script, tmp_path):
    assert [path.suffix for path in script.archives()] == [".whl", ".gz"]
    (tmp_path / "dist" / "pymm_cuda-1.1.0.tar.gz").touch()
    with pytest.raises(SystemExit, match="3 archives instead of a wheel and an sdist: make dist"):
        script.archives()


@pytest.mark.parametrize("name", ["HOME", "CUDA_HOME", "CC", "CXX", "CFLAGS", "PYMM_CACHE_DIR"])
def test_an_environment_of_a_check_has_nothing_of_the_users(script, name):
    assert script.LEFT_OUT.match(name)


def test_an_environment_of_a_check_finds_programs_and_the_index(script):
    assert not any(map(script.LEFT_OUT.match, ("PATH", "PIP_INDEX_URL", "LANG", "TMPDIR")))
