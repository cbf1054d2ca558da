"""`python -m pymm.doctor`: what this machine has and lacks for pymm, and the line that mends it."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from pymm import backends, cache, installed
from pymm.device import Device
from pymm.installed import BROKEN, LACKS, OK, Finding, version
from pymm.problem import Problem
from pymm.records import Environment, StoreError, stale_because
from pymm.store import files, load_file, read
from pymm.tables import show_table

#: Seconds for a first product in a process of its own: compiling (some 5) and opening a device.
PRODUCT_SECONDS = 180.0


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns 0 if at least one device can multiply, else 1."""
    parser = argparse.ArgumentParser(prog="pymm doctor", description=__doc__.partition(": ")[2])
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
    """Everything that the doctor looks at. A check that itself fails is a finding, too."""
    findings: list[Finding] = []
    checks = (installed.python, installed.numpy, installed.packages)
    for check in (*checks, _compiler, _driver, _nvcc, _pycuda, _directories):
        findings += _guarded(check)
    devices = _devices()
    findings += _guarded(lambda: _seen(devices))
    findings += _guarded(lambda: _stored(devices))
    findings += _guarded(lambda: _products(devices))
    return findings


def _guarded(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:  # the doctor is for machines on which anything may be wrong
        name = getattr(check, "__name__", "check").strip("_<>")
        what = f"{type(error).__name__}: {error}"
        return [Finding(name, BROKEN, what, "a fault of pymm's: please report it")]


def _print(findings: list[Finding], works: bool) -> None:
    rows = [(f.topic, f.state, f.found) for f in findings]
    show_table(("", "", "found"), rows)
    remedies = [f for f in findings if f.remedy and f.state != OK]
    if remedies:
        print("\nWhat mends it:")
    for finding in remedies:
        print(f"  {finding.topic}: {finding.remedy}")
    print("\nThis machine can multiply." if works else "\nNo device here can multiply.")


# Compilers and driver


def _compiler() -> Iterator[Finding]:
    for name in ("g++", "clang++", "c++"):
        if path := shutil.which(name):
            yield Finding("C++ compiler", OK, f"{path}, {_first_line(path, '--version')}")
            return
    hint = "apt install g++ (Debian, Ubuntu) or dnf install gcc-c++ (Fedora)"
    yield Finding("C++ compiler", LACKS, "none: no CPU device, no simulator, no nvcc", hint)


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


_TOOLKIT = "make setup in a checkout, or: pip install 'pymm[cuda]'"


def _nvcc() -> Iterator[Finding]:
    path = _find_nvcc()
    if not path:
        yield Finding("nvcc", LACKS, "none: no CUDA device", _TOOLKIT)
        return
    output = _output(path, "--version")
    match = re.search(r"release (\d+)\.(\d+)", output)
    if not match:
        yield Finding("nvcc", BROKEN, f"{path} does not run: {output[:80]}", _TOOLKIT)
        return
    release, driver = (int(match[1]), int(match[2])), _driver_version()
    found = f"{path}, CUDA {match[1]}.{match[2]}"
    if driver and release[0] > driver[0]:
        hint = f"pip install 'cuda-toolkit[nvcc,cccl]=={driver[0]}.*', or update the driver"
        yield Finding("nvcc", BROKEN, f"{found}, newer than the driver's CUDA {driver[0]}", hint)
    else:
        yield Finding("nvcc", OK, found)


def _find_nvcc() -> str | None:
    if path := shutil.which("nvcc"):
        return path
    usual = Path("/usr/local/cuda/bin/nvcc")
    if usual.exists():
        return str(usual)
    try:
        pathfinder = importlib.import_module("cuda.pathfinder")
        return pathfinder.find_nvidia_binary_utility("nvcc")
    except (ImportError, AttributeError):
        return None


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


def _first_line(*command: str) -> str:
    return _output(*command).partition("\n")[0].strip()


# Directories and stored configurations


def _directories() -> Iterator[Finding]:
    for name in ("cache", "config", "state"):
        topic, hint = f"{name} directory", f"set PYMM_{name.upper()}_DIR to a directory of yours"
        try:
            path: Path = getattr(cache, f"{name}_directory")()
        except OSError as error:
            yield Finding(topic, BROKEN, str(error), hint)
            continue
        if path.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            found = f"{path} can be written by other users"
            yield Finding(topic, BROKEN, found, f"chmod go-w {path}")
        else:
            yield Finding(topic, OK, str(path))


def _stored(devices: list[tuple[Device, str]]) -> Iterator[Finding]:
    for path in files(cache.config_directory()):
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


def _devices() -> list[tuple[Device, str]]:
    """The devices at hand and the toolchain of each."""
    found = []
    for device in backends.available_devices():
        try:
            toolchain = backends.open_device(_spec(device), cache.cache_directory()).toolchain
        except Exception as error:  # told by the product, which runs in a process of its own
            toolchain = f"none ({error})"
        found.append((device, toolchain))
    return found


def _spec(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else f"cuda:{device.index}"


def _seen(devices: list[tuple[Device, str]]) -> Iterator[Finding]:
    for device, toolchain in devices:
        if device.kind == "cpu":
            words = f"{device.sms} cores, vectors of {device.vector_bytes} bytes"
        else:
            memory = device.memory_bytes / 2**30
            words = f"{device.arch}, {device.sms} multiprocessors, {memory:.0f} GiB"
        yield Finding(_spec(device), OK, f"{device.name}, {words}; {toolchain}")
    if not any(device.kind != "cpu" for device, _ in devices):
        yield Finding("cuda", LACKS, "no NVIDIA GPU that can be used", "see the lines above")


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
