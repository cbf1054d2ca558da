"""The set-up script: quick when there is nothing to do, whole again after any interruption."""

from __future__ import annotations

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The script as a module, for a checkout in this test's directory, where it keeps its wheels
    as well.
    """
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path / "cache"))
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "tools" / "set_up.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("pyproject.toml", "setup.py"):
        shutil.copy(ROOT / name, checkout)
    monkeypatch.setattr(module, "ROOT", checkout)
    return module


@pytest.fixture
def made(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Environments are made with an interpreter and nothing else; the list of those made."""
    environments = []

    def make(venv: Path, key: str) -> None:
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


def test_an_extra_is_installed_once(script, made, tmp_path, monkeypatch):
    """`make docs` brings what it alone needs, and `make tune` does without."""
    venv, installed, run = tmp_path / "venv", [], script.run

    def record(*command, **options):
        if "install" not in command:
            return run(*command, **options)
        installed.append(command[command.index("install") + 1 :])

    monkeypatch.setattr(script, "run", record)
    script.set_up(venv)
    assert installed == []
    script.add_extra("docs", venv)
    script.add_extra("docs", venv)
    assert [{"furo", "sphinx"} <= {n.partition(">")[0] for n in one} for one in installed] == [True]
    assert script.ready(venv, script.environment_key(), "docs")


def test_interrupted_set_up_is_made_anew(script, made, tmp_path, monkeypatch):
    venv = tmp_path / "venv"
    with monkeypatch.context() as interrupted:
        make = script.make_environment

        def interrupt(folder: Path, key: str) -> None:
            make(folder, key)
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

    def interrupt(folder: Path, key: str) -> None:
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


def package(venv: Path, name: str, version: str = "1.0") -> Path:
    """An installed package, as pip leaves it. Returns its module."""
    site = next(venv.glob("lib/python*/site-packages"))
    module, info = site / name / "__init__.py", site / f"{name}-{version}.dist-info"
    for path in (module, info / "METADATA"):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    files = f"../../../bin/{name},,", f"{info.name}/METADATA,,", f"{name}/__init__.py,,"
    (info / "RECORD").write_text("\n".join((*files, f"{info.name}/RECORD,,\n")))
    return module


def test_packages_gone_behind_the_stamp_are_noticed(script, made, tmp_path, monkeypatch):
    venv, make = tmp_path / "venv", script.make_environment

    def with_packages(folder: Path, key: str) -> None:
        make(folder, key)
        package(folder, "first")
        package(folder, "second")

    monkeypatch.setattr(script, "make_environment", with_packages)
    script.set_up(venv)
    script.set_up(venv)
    assert len(made) == 1
    shutil.rmtree(next(venv.rglob("first-1.0.dist-info")))  # upgraded by hand
    package(venv, "first", "2.0")
    script.set_up(venv)
    assert len(made) == 1
    shutil.rmtree(next(venv.rglob("second")))
    script.set_up(venv)
    assert len(made) == 2


def test_what_was_installed_is_kept_when_a_later_step_fails(script, tmp_path, monkeypatch):
    """No wheel of PyCUDA at the first try; a package is deleted before the third."""
    venv, run, ran = script.ROOT / ".venv", script.run, []

    def record(*command: object, **options: object) -> str:
        words = [str(word) for word in command]
        ran.append(" ".join(words[1:]))
        if "venv" in words:
            return run(*command[:-1], "--without-pip", command[-1])
        if "wheel" in words:
            package(venv, "downloaded")
        if "--editable" in words:
            package(venv, "needed")
        return "" if "pip" in words else run(*command, **options)

    def no_wheel(python: Path, toolkit: Path) -> Path:
        raise script.SetUpError("the compiler died")

    monkeypatch.setattr(script, "run", record)
    monkeypatch.setattr(script, "pycuda_wheel", no_wheel)
    with pytest.raises(script.SetUpError, match="the compiler died"):
        script.set_up(venv)
    assert any("--clear" in line for line in ran) and any("cuda-toolkit" in line for line in ran)
    assert not (script.ROOT / ".setup").exists() and not (venv / "ready").exists()
    ran.clear()
    monkeypatch.setattr(script, "pycuda_wheel", lambda python, toolkit: Path("pycuda.whl"))
    script.set_up(venv)
    assert not any("--clear" in line or "cuda-toolkit" in line for line in ran)
    assert any("pycuda.whl" in line for line in ran) and any("--editable" in line for line in ran)
    assert script.ready(venv, script.environment_key())
    for name in ("downloaded", "needed"):  # pip itself takes them for installed
        next(venv.rglob(f"{name}/__init__.py")).unlink()
        ran.clear()
        script.set_up(venv)
        assert any("--clear" in line for line in ran)
        assert any("cuda-toolkit" in line for line in ran)
        assert script.ready(venv, script.environment_key())


def test_what_a_killed_set_up_left_is_removed(script, made, tmp_path):
    """Temporary files of commands, and a wheel that was being copied."""
    (script.ROOT / ".setup" / "pip-unpack-1").mkdir(parents=True)
    script.set_up(tmp_path / "venv")
    assert not (script.ROOT / ".setup").exists()
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "pycuda-1.whl.4711.part").write_bytes(b"half")
    script.keep_wheel(wheel(tmp_path / "pycuda-1.whl"), kept)
    assert [path.name for path in kept.iterdir()] == ["pycuda-1.whl"]


def test_commands_keep_temporary_files_on_the_disk_of_the_environment(script, monkeypatch):
    script.workplace().mkdir()
    asked = script.run(sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())")
    assert asked.strip() == str(script.ROOT / ".setup")


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
        raise script.CommandFailed("no wheel on the index")

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
    source.write_text('extern "C" int cuInit(unsigned); int f() { return cuInit(0); }\n')
    script.empty_driver(driver)
    flags = ["-Wl,-s", "-Wl,--no-as-needed", driver]
    script.run(script.compiler(), "-shared", "-fPIC", source, *flags, "-o", tmp_path / "_driver.so")
    with zipfile.ZipFile(tmp_path / "pycuda-1.whl", "w") as archive:
        archive.write(tmp_path / "_driver.so", "pycuda/_driver.so")
    assert script.loads_driver(tmp_path / "pycuda-1.whl")


def test_the_sdist_is_unpacked_by_a_python_without_filters(script, tmp_path, monkeypatch):
    """Python 3.11.2 of Debian 12."""
    name, folder = f"pycuda-{script.PYCUDA}", tmp_path / "build"
    extract = tarfile.TarFile.extractall
    filtered = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    (tmp_path / name).mkdir()
    (tmp_path / name / "setup.py").touch()
    folder.mkdir()

    def old(self: tarfile.TarFile, path: Path, members: object = None, *, numeric_owner=False):
        return extract(self, path, members, numeric_owner=numeric_owner, **filtered)

    def run(*command: object, **_: object) -> None:
        if "download" in command:
            with tarfile.open(folder / f"{name}.tar.gz", "w:gz") as archive:
                archive.add(tmp_path / name, name)
        else:
            wheel(folder / f"{name}-cp311.whl")

    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    monkeypatch.setattr(tarfile.TarFile, "extractall", old)
    monkeypatch.setattr(script, "run", run)
    monkeypatch.setattr(script, "empty_driver", lambda path: None)
    made = script.build_wheel(Path("python"), Path("toolkit"), folder)
    assert script.loads_driver(made) and (folder / name / "siteconf.py").is_file()


@pytest.mark.parametrize("blank", ["", " ", "\t"])
def test_a_blank_cxx_names_no_compiler(script, monkeypatch, blank):
    monkeypatch.setenv("CXX", blank)
    assert script.compiler() in ("g++", "clang++")


def one_line(error: Exception) -> str:
    assert "\n" not in str(error)
    return str(error)


def test_a_disk_that_cannot_be_written_is_named_first(script, made, tmp_path, monkeypatch):
    for place, remedy in ((script.ROOT, "move the checkout"), (tmp_path, "set PYMM_CACHE_DIR")):
        with monkeypatch.context() as patch:
            patch.setattr(os, "access", lambda path, mode, place=place: Path(path) != place)
            with pytest.raises(script.SetUpError, match=remedy) as caught:
                script.set_up(script.ROOT / ".venv")
        assert one_line(caught.value).startswith(f"{place} cannot be written")
    assert not made


def test_a_disk_with_too_little_space_is_named_first(script, made, tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100 << 20))
    said = "takes 1536 MiB and its disk has 100 MiB"
    with pytest.raises(script.SetUpError, match=said) as caught:
        script.set_up(script.ROOT / ".venv")
    assert str(script.ROOT / ".venv") in one_line(caught.value) and not made


@pytest.mark.parametrize("where", ["checkout", "cache"])
def test_a_disk_that_becomes_full_is_named(script, monkeypatch, where, tmp_path):
    (tmp_path / "cache").mkdir()
    low = {"checkout": script.ROOT, "cache": tmp_path / "cache"}[where]
    free = lambda path: SimpleNamespace(free=0 if Path(path) == low else 1 << 40)  # noqa: E731
    monkeypatch.setattr(shutil, "disk_usage", free)
    code = "import errno, os, sys; print('x' * 9999); sys.exit(os.strerror(errno.ENOSPC))"
    with pytest.raises(script.SetUpError, match="no space left on the disk of") as caught:
        script.run(sys.executable, "-c", code)
    assert str(low) in one_line(caught.value)

    def full() -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(script, "set_up", full)
    with pytest.raises(SystemExit, match="set-up: no space left on the disk of") as caught:
        script.main()
    assert str(low) in one_line(caught.value)


@pytest.mark.parametrize(
    ("lack", "message"),
    [
        ("compiler", r"apt install g\+\+ .*dnf install gcc-c\+\+"),
        ("named compiler", r"\$CXX, no-such-compiler -m64, is not there"),
        ("quote", r"\$CXX, g\+\+ ', is no command: No closing quotation"),
        ("home", "no home directory: set PYMM_CACHE_DIR"),
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
    elif lack == "quote":
        monkeypatch.setenv("CXX", "g++ '")
    elif lack == "home":
        for name in ("PYMM_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
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
    targets = {"tune", "report", "test", "test-gpu", "lint", "docs", "clean"}
    targets |= {"mpi-demo", "notebook", "dist", "check-dist"}
    assert told == targets
    for target in targets:
        subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=True)
    checks = (ROOT / ".ci" / "run").read_text()
    assert all(f"make {target}" in checks for target in ("lint", "docs", "test"))
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
