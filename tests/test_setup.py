"""The set-up script: quick when there is nothing to do, whole again after any interruption."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, keeping its wheels in this test's directory."""
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "tools" / "set_up.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def made(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Environments are made with an interpreter and nothing else; the list of those made."""
    environments = []

    def make(venv: Path) -> None:
        environments.append(venv)
        script.run(sys.executable, "-m", "venv", "--clear", "--without-pip", venv)

    monkeypatch.setattr(script, "make_environment", make)
    return environments


def wheel(path: Path, needs: bytes = b"\0libcuda.so.1\0") -> Path:
    """An archive that looks like PyCUDA's wheel from outside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("pycuda/_driver.cpython.so", b"\x7fELF" + 1000 * b"x" + needs)
    return path


def test_second_run_does_nothing(script, made, tmp_path):
    script.set_up(tmp_path / "venv")
    script.set_up(tmp_path / "venv")
    assert made == [tmp_path / "venv"]


def test_interrupted_set_up_is_made_anew(script, made, tmp_path, monkeypatch):
    venv = tmp_path / "venv"
    with monkeypatch.context() as interrupted:
        make = script.make_environment

        def interrupt(folder: Path) -> None:
            make(folder)
            (folder / "half-installed").touch()
            raise KeyboardInterrupt

        interrupted.setattr(script, "make_environment", interrupt)
        with pytest.raises(KeyboardInterrupt):
            script.set_up(venv)
    assert not script.ready(venv, script.environment_key())
    script.set_up(venv)
    assert script.ready(venv, script.environment_key())
    assert not (venv / "half-installed").exists()


def test_interrupted_renewal_is_not_taken_for_done(script, made, tmp_path, monkeypatch):
    """The old stamp must go before the old environment does."""
    venv = tmp_path / "venv"
    script.set_up(venv)
    monkeypatch.setattr(script, "environment_key", lambda: "other needs")

    def interrupt(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "make_environment", interrupt)
    with pytest.raises(KeyboardInterrupt):
        script.set_up(venv)
    assert not (venv / "ready").exists()


def test_changed_needs_and_a_lost_interpreter_make_it_anew(script, made, tmp_path, monkeypatch):
    venv = tmp_path / "venv"
    script.set_up(venv)
    (venv / "bin" / "python").unlink()
    script.set_up(venv)
    assert len(made) == 2
    monkeypatch.setattr(script, "environment_key", lambda: "other needs")
    script.set_up(venv)
    assert len(made) == 3


def test_the_key_knows_the_checkout_and_its_needs(script, tmp_path, monkeypatch):
    key = script.environment_key()
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.setattr(script, "ROOT", tmp_path)
    moved = script.environment_key()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    assert len({key, moved, script.environment_key()}) == 3


def test_kept_wheel_is_used(script, monkeypatch):
    kept = wheel(script.wheel_directory() / "pycuda-1-py3-none-any.whl")
    monkeypatch.setattr(script, "run", lambda *command, **_: pytest.fail(f"ran {command}"))
    assert script.pycuda_wheel(Path("python"), Path("toolkit")) == kept


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "without driver"])
def test_broken_kept_wheel_is_built_again(script, monkeypatch, damage):
    kept = wheel(script.wheel_directory() / "pycuda-1-py3-none-any.whl")
    data = kept.read_bytes()
    if damage == "without driver":
        wheel(kept, needs=b"")
    else:
        flipped = data[:500] + bytes([data[500] ^ 1]) + data[501:]
        damaged = {"truncated": data[:-50], "flipped": flipped, "empty": b""}
        kept.write_bytes(damaged[damage])

    def refuse(*command: object, **_: object) -> None:
        raise script.SetUpError("no wheel on the index")

    def build(python: Path, toolkit: Path, folder: Path) -> Path:
        return wheel(folder / kept.name)

    monkeypatch.setattr(script, "run", refuse)
    monkeypatch.setattr(script, "build_wheel", build)
    assert script.pycuda_wheel(Path("python"), Path("toolkit")) == kept
    assert kept.read_bytes() == data
    assert list(kept.parent.iterdir()) == [kept]


def test_wheel_that_loads_no_driver_is_not_kept(script, tmp_path):
    with pytest.raises(script.SetUpError, match=r"does not load libcuda\.so\.1"):
        script.keep_wheel(wheel(tmp_path / "pycuda-1.whl", needs=b""), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_empty_library_is_enough_to_link_with(script, tmp_path):
    """What the recipe rests on, with this machine's compiler: the linker keeps a library that
    resolves nothing, and leaves the driver's functions undefined.
    """
    source, driver = tmp_path / "extension.cpp", tmp_path / "libcuda.so"
    source.write_text("extern \"C\" int cuInit(unsigned); int f() { return cuInit(0); }\n")
    script.empty_driver(driver)
    flags = ["-Wl,-s", "-Wl,--no-as-needed", driver]
    script.run(script.compiler(), "-shared", "-fPIC", source, *flags, "-o", tmp_path / "_driver.so")
    with zipfile.ZipFile(tmp_path / "pycuda-1.whl", "w") as archive:
        archive.write(tmp_path / "_driver.so", "pycuda/_driver.so")
    assert script.loads_driver(tmp_path / "pycuda-1.whl")


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ("compiler", r"apt install g\+\+ .*dnf install gcc-c\+\+"),
        ("named compiler", r"\$CXX, no-such-compiler -m64, is not there"),
        ("headers", r"apt install python3\.\d+-dev .*dnf install python3\.\d+-devel"),
        ("venv", r"apt install python3\.\d+-venv"),
        ("python", r"needs Python 3\.11 or newer .* make PYTHON=python3\.12 test"),
        ("linux", "knows Linux only, this is darwin"),
    ],
)
def test_what_is_lacking_is_named_with_what_mends_it(script, monkeypatch, tmp_path, lack, message):
    monkeypatch.delenv("CXX", raising=False)
    if lack == "compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif lack == "named compiler":
        monkeypatch.setenv("CXX", "no-such-compiler -m64")
    elif lack == "headers":
        monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    elif lack == "venv":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    elif lack == "python":
        monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    elif lack == "linux":
        monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(script.SetUpError, match=message):
        script.check_machine()


def test_failed_command_shows_its_words_and_its_end(script):
    code = "print('\\n'.join(map(str, range(100)))); raise SystemExit('no such wheel')"
    with pytest.raises(script.SetUpError) as caught:
        script.run(sys.executable, "-c", code)
    assert "99\nno such wheel\n" in str(caught.value) and "\n50\n" not in str(caught.value)
    assert "this command failed:" in str(caught.value)


def test_make_names_every_target(tmp_path):
    command = ["make", "--no-print-directory", "help"]  # which a make around this one would do
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    told = {line.split()[1] for line in done.stdout.splitlines()}
    targets = {"tune", "report", "test", "test-gpu", "lint", "clean"}
    assert told == targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)
    assert "make test" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
