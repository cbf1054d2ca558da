"""`python -m pymm.doctor`: what this machine has and lacks for pymm, and what fixes it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from pymm import backends
from pymm.backends.cpu.compiler import find_compiler
from pymm.backends.cuda.nvcc import INSTALL, find_nvcc
from pymm.console import program, show_table
from pymm.core.device import Device
from pymm.core.errors import NoDevice, StoreError
from pymm.core.problem import Problem
from pymm.measure import precompile
from pymm.measure.libraries import BASELINES, PROVIDERS
from pymm.selection.records import Environment, stale_because
from pymm.selection.store import files, load_file, read

OK, LACKS, BROKEN = "ok", "lacks", "broken"


@dataclass(frozen=True)
class Finding:
    """One result: what was checked, its state (`ok`, `lacks` something optional, `broken`), what
    was found, and how to fix it.
    """

    topic: str
    state: str
    found: str
    remedy: str = ""


def _python() -> Iterator[Finding]:
    """Python and pymm."""
    state = OK if sys.version_info >= (3, 11) else BROKEN
    found = f"{platform.python_version()}, {sys.executable}"
    yield Finding("Python", state, found, "install Python 3.11 or newer")
    yield Finding("pymm", OK, f"{version('pymm')}, {Path(__file__).parent}")


def _numpy() -> Iterator[Finding]:
    """NumPy and its BLAS."""
    blas = np.show_config(mode="dicts").get("Build Dependencies", {}).get("blas", {})
    words = f"{blas.get('name', 'unknown BLAS')} {blas.get('version', '')}".strip()
    yield Finding("NumPy", OK, f"{np.__version__}, {words}")


def _packages() -> Iterator[Finding]:
    """Packages that pymm needs, and libraries that it is compared with."""
    needed = {"optuna": "tune", "yaml": "stored configurations", "rich": "live display"}
    needed |= {"ml_dtypes": "bfloat16"}
    needed |= {"platformdirs": "user's directories", "pynvml": "clock and power while tuning"}
    names = {"yaml": "pyyaml", "pynvml": "nvidia-ml-py"}
    for module, use in needed.items():
        name = names.get(module, module)
        if importlib.util.find_spec(module):
            yield Finding(name, OK, version(name))
        else:
            yield Finding(
                name, BROKEN, f"missing ({use})", f"{sys.executable} -m pip install {name}"
            )
    yield _baselines()


def _baselines() -> Finding:
    """What of NVIDIA's libraries benchmarks compare with."""
    here = {name for name in PROVIDERS if importlib.util.find_spec(name)}
    hint = "pip install torch, where you want to compare with cuBLAS"
    if not here:
        found = f"neither {' nor '.join(PROVIDERS)}: no column for cuBLAS in tables"
        return Finding("cuBLAS through", LACKS, found, hint)
    ours = [b for b in BASELINES.values() if b.kind == "cuda" and not here & b.providers.keys()]
    without = "; ".join(baseline.title for baseline in ours)
    found = ", ".join(name for name in PROVIDERS if name in here)
    if without:
        found += f"; benchmarks skip: {without} (pip install 'nvmath-python[cu13]')"
    return Finding("cuBLAS through", OK, found, hint)


def version(name: str) -> str:
    """The version of an installed package."""
    if name == "pymm":
        return sys.modules["pymm"].__version__
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "version unknown"


#: Seconds for a first product in a process of its own: compiling (some 5) and opening a device.
PRODUCT_SECONDS = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 if at least one device can multiply, else 1."""
    parser = argparse.ArgumentParser(
        prog=program("doctor"),
        description="Says what this machine has and lacks for pymm, and what fixes it.",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--product", metavar="DEVICE", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.product:
        print(_multiply(options.product))
        return 0
    findings = examine()
    works = any(f.state == OK for f in findings if f.topic.startswith("product"))
    if options.json:
        print(json.dumps({"works": works, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        _print(findings, works)
    return 0 if works else 1


def examine() -> list[Finding]:
    """All findings. A check that itself fails is a finding, too."""
    findings: list[Finding] = []
    checks = (_python, _numpy, _packages, _compiler, _driver, _nvcc, _pycuda, _directories)
    for check in checks:
        findings += _guarded(check)
    devices: list[tuple[Device, str]] = []
    findings += _guarded(_devices, devices)
    findings += _guarded(_stored, devices)
    findings += _guarded(_products, devices)
    return findings


def _guarded(check: Callable[..., Iterator[Finding]], *arguments: object) -> list[Finding]:
    try:
        return list(check(*arguments))
    except Exception as error:  # the doctor is for machines on which anything may be wrong
        name = check.__name__.strip("_")
        what = f"{type(error).__name__}: {error}"
        return [Finding(name, BROKEN, what, "a fault of pymm's: please report it")]


def _print(findings: list[Finding], works: bool) -> None:
    rows = [(f.topic, f.state, f.found) for f in findings]
    show_table(("", "", "found"), rows)
    remedies = [f for f in findings if f.remedy and f.state != OK]
    if remedies:
        print("\nHow to fix it:")
    for finding in remedies:
        print(f"  {finding.topic}: {finding.remedy}")
    print("\nThis machine can multiply." if works else "\nNo device here can multiply.")


# Compilers and driver


def _compiler() -> Iterator[Finding]:
    try:
        compiler = find_compiler(precompile.cache_directory())
        yield Finding("C++ compiler", OK, f"{compiler.path}, {compiler.version}")
    except NoDevice as error:
        hint = "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
        hint = "free some space there" if isinstance(error.__cause__, OSError) else hint
        yield Finding("C++ compiler", LACKS, f"no CPU device, simulator or nvcc: {error}", hint)


def _driver() -> Iterator[Finding]:
    version = _driver_version()
    if version:
        yield Finding("NVIDIA driver", OK, f"for CUDA {version[0]}.{version[1]}")
        return
    hint = (
        "with an NVIDIA GPU: install its driver, https://www.nvidia.com/drivers; without one the "
    )
    hint += "CPU is the device, and PYMM_SIMULATOR=1 runs CUDA kernels"
    yield Finding("NVIDIA driver", LACKS, "no libcuda.so.1 that answers", hint)


#: Libraries are tried in processes of their own: one that is loaded here would stay, and the
#: simulator could not take its place.
_ASK_DRIVER = """
import ctypes
version = ctypes.c_int()
if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) == 0:
    print("CUDA", version.value // 1000, version.value % 1000 // 10)
"""


def _driver_version() -> tuple[int, int] | None:
    match = re.search(r"CUDA (\d+) (\d+)", _output(sys.executable, "-c", _ASK_DRIVER))
    return (int(match[1]), int(match[2])) if match else None


_TOOLKIT = f"make setup, or {INSTALL}"


def _nvcc() -> Iterator[Finding]:
    try:
        found = find_nvcc(_driver_version())
        yield Finding("nvcc", OK, f"{found.path}, {found.version}")
    except NoDevice as error:
        yield Finding("nvcc", LACKS, str(error), _TOOLKIT)


def _pycuda() -> Iterator[Finding]:
    if not importlib.util.find_spec("pycuda"):
        yield Finding("PyCUDA", LACKS, "not installed: no CUDA device", _TOOLKIT)
        return
    lines = _output(sys.executable, "-c", "import pycuda.driver").strip().splitlines()
    if not lines:
        yield Finding("PyCUDA", OK, version("pycuda"))
    elif "libcuda" in lines[-1]:
        found = f"{version('pycuda')}, waits for a driver (libcuda.so.1)"
        yield Finding("PyCUDA", LACKS, found, "see NVIDIA driver")
    else:
        yield Finding("PyCUDA", BROKEN, lines[-1], "build it anew: " + _TOOLKIT)


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stdout or done.stderr


# Directories and stored configurations


def _directories() -> Iterator[Finding]:
    for name in ("cache", "config", "state"):
        topic, hint = f"{name} directory", f"set PYMM_{name.upper()}_DIR to a directory of yours"
        try:
            path: Path = getattr(precompile, f"{name}_directory")()
        except OSError as error:
            yield Finding(topic, BROKEN, str(error), hint)
            continue
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            found = f"{path} can be written by other users"
            yield Finding(topic, BROKEN, found, f"chmod go-w {path}")
        else:
            yield Finding(topic, OK, str(path))


def _stored(devices: list[tuple[Device, str]]) -> Iterator[Finding]:
    for path in files(precompile.config_directory()):
        try:
            table = read(path)
            records = table.records if table else ()
            words = f"{len(records)} records of {table.device['name'] if table else 'nothing'}"
            for device, toolchain in devices:
                if f"{device.slug}.yaml" == path.name:
                    environment = Environment.of(device, toolchain)
                    own = load_file(device, path)
                    stale = sum(bool(stale_because(r, device, environment)) for r in own)
                    words += f", {stale} of them stale"
            yield Finding("tuned", OK, f"{path}: {words}")
        except StoreError as error:
            yield Finding("tuned", BROKEN, str(error), f"mv {path} {path}.damaged")


# Devices and products


def _devices(found: list[tuple[Device, str]]) -> Iterator[Finding]:
    """The devices of this machine; appends them and their toolchains to `found`."""
    for device in backends.available_devices():
        toolchain = backends.open_device(_spec(device), precompile.cache_directory()).toolchain
        found.append((device, toolchain))
        if device.kernel_backend == "cpu":
            words = f"vectors of {device.vector_bytes} bytes"
        else:
            memory = device.memory_bytes / 2**30
            words = f"{device.arch}, {device.sms} multiprocessors, {memory:.0f} GiB"
        if not device.times_are_real:
            words += "; PYMM_SIMULATOR is set: CUDA kernels run on the CPU, times mean nothing"
        yield Finding(_spec(device), OK, f"{device.name}, {words}; {toolchain}")
    for spec in {"cuda", "cpu"} - {_spec(device).partition(":")[0] for device, _ in found}:
        try:
            backends.open_device(spec, precompile.cache_directory())
        except NoDevice as error:
            yield Finding(spec, LACKS, str(error), "see the lines above")


def _spec(device: Device) -> str:
    return "cpu" if device.kernel_backend == "cpu" else f"cuda:{device.index}"


def _products(devices: list[tuple[Device, str]]) -> Iterator[Finding]:
    """A product on each device, in a process of its own: it may crash or hang."""
    for device, _ in devices:
        topic = f"product on {_spec(device)}"
        command = [sys.executable, "-m", "pymm.doctor", "--product", _spec(device)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PRODUCT_SECONDS)
        except subprocess.TimeoutExpired:
            yield Finding(topic, BROKEN, f"not done after {PRODUCT_SECONDS:.0f} s", "nvidia-smi")
            continue
        if done.returncode == 0:
            yield Finding(topic, OK, done.stdout.strip())
        else:
            lines = done.stderr.strip().splitlines() or [f"ended with {done.returncode}"]
            yield Finding(topic, BROKEN, lines[-1], " ".join(command))


def _multiply(spec: str) -> str:
    """A small odd product on the device, compared with NumPy's in float64. Raises if it is wrong.

    All entries are whole numbers below 8, so that float32 has to be exact.
    """
    from pymm.api import matmul

    rng = np.random.default_rng(0)
    problem = Problem(67, 129, 33)
    a = rng.integers(-7, 8, (problem.m, problem.k))
    b = rng.integers(-7, 8, (problem.k, problem.n))
    for dtype in (np.float32, np.float64):
        c = matmul(a.astype(dtype), b.astype(dtype), device=spec)
        wrong = int(np.count_nonzero(c != a @ b))
        if wrong:
            raise SystemExit(f"{wrong} of {c.size} elements of a product are wrong")
    return "67x129x33 in float32 and float64: right"


if __name__ == "__main__":
    sys.exit(main())
