"""Builds the stand-in driver and what kernels share, once per user and version of both."""

from __future__ import annotations

import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pymm.core.binaries import obtain_folder
from pymm.core.errors import CompileFailed, Error
from pymm.core.files import sweep
from pymm.core.paths import cache_directory

_HERE = Path(__file__).resolve().parent
_DRIVER_FLAGS = [
    "-std=c++17",
    "-O2",
    "-fPIC",
    "-fvisibility=hidden",
    "-pthread",
    "-U_FORTIFY_SOURCE",  # its longjmp refuses to leave a fiber's stack
]
_DRIVER = "libcuda.so.1"
_LINK_FLAGS = ["-shared", "-pthread", f"-Wl,-soname,{_DRIVER}"]


class CannotSimulate(Error, RuntimeError):
    """The simulator cannot be built or loaded here; the message says what to do."""


def compiler() -> str:
    """Path of g++ (the environment variable CXX, if set). Raises CannotSimulate."""
    name = os.environ.get("CXX", "").strip() or "g++"
    found = shutil.which(name)
    if found is None:
        raise CannotSimulate(
            f"the simulator needs g++ and there is no {name} on PATH; install it "
            "(Debian: apt install g++) or name it in CXX"
        )
    return found


def _run(command: list[str], temporary: Path | None = None) -> str:
    environment = dict(os.environ) if temporary is None else dict(os.environ, TMPDIR=str(temporary))
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", env=environment, check=False
    )
    if done.returncode:
        raise CompileFailed(f"this command failed: {' '.join(command)}\n{done.stderr}")
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


def _optimize() -> str:
    """Whether kernels run fast ("1") or compile fast ("0"): decided for all of a folder, whose
    header is precompiled with the same options.
    """
    return "0" if os.environ.get("PYMM_SIMULATOR_OPTIMIZE") == "0" else "1"


def _races() -> str:
    """Whether kernels are watched for races in shared memory ("1" or "0"): of all of a folder."""
    return "1" if os.environ.get("PYMM_SIMULATOR_RACES") == "1" else "0"


def key() -> str:
    """Hash of all that the built files depend on: sources, compiler, processor, interpreter."""
    digest = hashlib.sha256()
    for path in _sources():
        digest.update(f"{path.relative_to(_HERE)}\0".encode() + path.read_bytes() + b"\0")
    machine = (_run([compiler(), "--version"]), _processor(), sys.executable)
    for text in (*machine, _optimize(), _races()):
        digest.update(text.encode() + b"\0")
    return digest.hexdigest()[:16]


def _driver() -> Path:
    """The stand-in driver: one for all ways to compile kernels, built when there is none."""
    digest = hashlib.sha256(_run([compiler(), "--version"]).encode())
    for path in (*sorted((_HERE / "driver").glob("*.[ch]pp")), _HERE / "device" / "abi.hpp"):
        digest.update(f"{path.name}\0".encode() + path.read_bytes() + b"\0")
    digest.update(" ".join([*_DRIVER_FLAGS, *_LINK_FLAGS]).encode())
    root = cache_directory() / "simulator"
    return obtain_folder(root / f"driver-{digest.hexdigest()[:16]}", _build_driver) / _DRIVER


def _build_driver(folder: Path) -> None:
    """The stand-in driver in `folder`, its sources compiled on all cores."""

    def compiled(source: Path) -> str:
        target = os.path.join(objects, f"{source.stem}.o")
        _run([compiler(), *_DRIVER_FLAGS, "-c", str(source), "-o", target], folder)
        return target

    with tempfile.TemporaryDirectory(dir=folder) as objects:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            parts = list(pool.map(compiled, sorted((_HERE / "driver").glob("*.cpp"))))
        target = str(folder / _DRIVER)
        _run([compiler(), *_LINK_FLAGS, *parts, "-o", target, "-ldl"], folder)


def _copy_compiler(folder: Path) -> None:
    """The stand-in nvcc in a new `folder`, with its bytecode: that saves 30 ms per kernel."""
    bytecode = folder / "__pycache__"
    bytecode.mkdir(parents=True)
    for part in ("nvcc", "translate", "brackets"):
        source = shutil.copy(_HERE / f"{part}.py", folder)
        py_compile.compile(
            source,
            str(bytecode / f"{part}.{sys.implementation.cache_tag}.pyc"),
            doraise=True,
            # Not by date: this folder may be copied.
            invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
        )
    # Python reads no bytecode for the script that it starts: so that only imports the compiler.
    start = "import sys\nimport nvcc\n\nsys.exit(nvcc.main(sys.argv[1:]))\n"
    (folder / "start.py").write_text(start)


def _fill(folder: Path, name: str) -> None:
    """Put everything into `folder`, which is moved to its place when it is whole."""
    (folder / "lib").mkdir()
    shutil.copytree(_HERE / "device", folder / "device")
    shutil.copy(_driver(), folder / "lib")
    # A copy of the compiler, so that this folder outlives the checkout or environment it came from.
    _copy_compiler(folder / "compiler")
    script = str(folder / "compiler" / "start.py")
    _run([sys.executable, "-B", "-S", "-E", script, str(folder), "--precompile"], folder / "lib")
    (folder / "version").write_text(f"nvcc: stand-in of the pymm simulator, release 13.0, {name}\n")
    launcher = folder / "bin" / "nvcc"
    launcher.parent.mkdir()
    # Relative to itself. -B: nothing is written here that the list of digests does not know.
    launcher.write_text(
        "#!/bin/sh\nhere=${0%/*}/..\n"
        'case "$*" in --version|-V) exec cat "$here/version";; esac\n'
        f"export PYMM_SIMULATOR_OPTIMIZE={_optimize()} PYMM_SIMULATOR_RACES={_races()}\n"
        f'exec "{sys.executable}" -B -S -E "$here/compiler/start.py" "$here" "$@"\n'
    )
    launcher.chmod(0o700)


def build() -> Path:
    """The folder with lib/libcuda.so.1 and bin/nvcc, built when it is not there yet or not whole
    (20 s). Raises CannotSimulate.

    Safe for several processes at once: each builds aside, the first to finish is taken.
    """
    try:
        root, name = cache_directory() / "simulator", key()
        sweep(root, "building-")  # of pymm before 2026-11-22
        return obtain_folder(root / name, lambda folder: _fill(folder, name))
    except (OSError, CompileFailed) as error:
        raise CannotSimulate(f"the simulator cannot be built: {error}") from error
