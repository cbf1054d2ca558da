"""Builds the stand-in driver and the precompiled header, once per user and version of both."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_DRIVER_FLAGS = [
    "-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread",
    "-U_FORTIFY_SOURCE",  # its longjmp refuses to leave a fiber's stack
    "-Wl,-soname,libcuda.so.1",
]  # fmt: skip


class CannotSimulate(RuntimeError):
    """The simulator cannot be built or loaded here; the message says what to do."""


def compiler() -> str:
    """Path of g++ (the environment variable CXX, if set). Raises CannotSimulate."""
    name = os.environ.get("CXX", "g++")
    found = shutil.which(name)
    if found is None:
        raise CannotSimulate(f"the simulator needs g++ and there is no {name} on PATH; install it "
                             "(Debian: apt install g++) or name it in CXX")
    return found


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotSimulate(f"building the simulator failed: {' '.join(command)}\n{done.stderr}")
    return done.stdout


def _sources() -> list[Path]:
    return sorted(p for p in _HERE.rglob("*") if p.suffix in (".cpp", ".hpp", ".py"))


def _processor() -> str:
    """What -march=native depends on: a module built for one CPU may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return os.uname().machine
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def key() -> str:
    """Hash of all that the built files depend on: sources, compiler, processor, interpreter."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(_HERE)}\0".encode() + path.read_bytes() + b"\0")
    for text in (_run([compiler(), "--version"]), _processor(), sys.executable):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _root() -> Path:
    if named := os.environ.get("PYMM_CACHE_DIR"):
        return Path(named).absolute() / "simulator"
    import platformdirs

    return Path(platformdirs.user_cache_dir("pymm")) / "simulator"


def _fill(folder: Path, name: str) -> None:
    (folder / "lib").mkdir()
    shutil.copytree(_HERE / "device", folder / "device")
    drivers = [str(p) for p in sorted((_HERE / "driver").glob("*.cpp"))]
    _run([compiler(), *_DRIVER_FLAGS, *drivers, "-o", str(folder / "lib" / "libcuda.so.1"), "-ldl"])
    # A copy of the compiler, so that this folder outlives the checkout or environment it came from.
    (folder / "compiler").mkdir()
    for part in ("nvcc.py", "translate.py", "brackets.py"):
        shutil.copy(_HERE / part, folder / "compiler" / part)
    script = str(folder / "compiler" / "nvcc.py")
    _run([sys.executable, "-S", "-E", script, str(folder), "--precompile"])
    (folder / "version").write_text(f"nvcc: stand-in of the pymm simulator, release 13.0, {name}")
    launcher = folder / "bin" / "nvcc"
    launcher.parent.mkdir()
    # Relative to itself, since the folder is moved to its place when it is whole.
    launcher.write_text(
        '#!/bin/sh\nhere=$(dirname "$(dirname "$0")")\n'
        f'exec "{sys.executable}" -S -E "$here/compiler/nvcc.py" "$here" "$@"\n'
    )
    launcher.chmod(0o700)


def build() -> Path:
    """The folder with lib/libcuda.so.1 and bin/nvcc, built when it is not there yet (20 s).

    Safe for several processes at once: each builds aside, the first to finish is taken.
    """
    root, name = _root(), key()
    folder = root / name
    if folder.is_dir():
        return folder
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix="building-", dir=root))  # mkdtemp gives mode 0700
    try:
        _fill(aside, name)
        try:
            os.replace(aside, folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return folder
