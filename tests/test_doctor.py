"""What the doctor says about this machine, and about machines that lack things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from pymm import backends, doctor
from pymm.core import errors
from pymm.core.device import Device
from pymm.core.errors import NoDevice

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def directories(tmp_path, monkeypatch):
    """Configurations and studies of the test's own; binaries are shared, they cost seconds."""
    for name in ("config", "state"):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        monkeypatch.setenv(f"PYMM_{name.upper()}_DIR", str(folder))
    return tmp_path


def no_compiler(*arguments):
    raise NoDevice("none is on the path")


def by_topic(findings):
    return {finding.topic: finding for finding in findings}


def test_this_machine_can_multiply(directories):
    environment = {name: value for name, value in os.environ.items() if name != "PYMM_SIMULATOR"}
    command = [sys.executable, "-m", "pymm", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    for topic in ("Python", "NumPy", "C++ compiler", "nvcc", "NVIDIA driver", "PyCUDA", "optuna"):
        assert f"\n{topic} " in "\n" + text
    assert "product on cpu" in text and "float32 and float64: right" in text
    assert text.endswith("This machine can multiply.\n")
    assert "fault of pymm" not in text


def test_json_and_exit_code_without_a_device(directories, monkeypatch, capsys):
    monkeypatch.setattr(backends, "available_devices", lambda: [])
    monkeypatch.setattr(backends, "open_device", no_compiler)
    assert doctor.main(["--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["works"] is False
    assert all(set(f) == {"topic", "state", "found", "remedy"} for f in told["findings"])
    assert all(f["remedy"] for f in told["findings"] if f["state"] != "ok")


def test_what_is_missing_comes_with_the_line_that_mends_it(directories, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_compiler", no_compiler)
    monkeypatch.setattr(doctor, "find_nvcc", no_compiler)
    monkeypatch.setattr(doctor, "_driver_version", lambda: None)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(backends, "available_devices", lambda: [])
    monkeypatch.setattr(backends, "open_device", no_compiler)
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "C++ compiler: apt install g++" in text
    assert "nvcc: make setup" in text
    assert "PyCUDA: make setup" in text
    assert f"optuna: {sys.executable} -m pip install optuna" in text
    assert "NVIDIA driver: with an NVIDIA GPU: install its driver" in text
    assert text.endswith("No device here can multiply.\n")


def test_a_full_disk_is_not_taken_for_a_missing_compiler(directories, monkeypatch):
    def cannot_try(cache):
        raise errors.NoDevice("g++ cannot be tried") from OSError(28, "no space left")

    monkeypatch.setattr(doctor, "find_compiler", cannot_try)
    (finding,) = doctor._compiler()
    assert finding.remedy == "free some space there" and "cannot be tried" in finding.found


def test_the_drivers_version_goes_to_the_search_for_nvcc(monkeypatch):
    monkeypatch.setattr(doctor, "_output", lambda *command: "CUDA 12 8\n")
    monkeypatch.setattr(doctor, "find_nvcc", no_compiler)
    (finding,) = doctor._nvcc()
    assert finding.state == "lacks" and "none is on the path" in finding.found
    asked = []
    found = SimpleNamespace(path="/opt/nvcc", version="nvcc 12.4.1")
    monkeypatch.setattr(doctor, "find_nvcc", lambda driver: asked.append(driver) or found)
    (finding,) = doctor._nvcc()
    assert (finding.state, finding.found) == ("ok", "/opt/nvcc, nvcc 12.4.1")
    assert asked == [(12, 8)]


def test_directories_that_others_may_write_are_named(directories):
    (directories / "config").chmod(0o777)
    found = by_topic(doctor._directories())
    assert found["config directory"].state == "broken"
    assert found["config directory"].remedy == f"chmod go-w {directories / 'config'}"
    assert found["cache directory"].state == "ok"


def test_damaged_files_are_named_and_left(directories):
    path = directories / "config" / "x.yaml"
    path.write_text("schema: [")
    finding = next(f for f in doctor._stored([]) if str(path) in f.found)
    assert finding.state == "broken" and finding.remedy == f"mv {path} {path}.damaged"
    assert path.read_text() == "schema: ["


def test_a_check_that_fails_is_a_finding():
    def _odd():
        raise RuntimeError("what")
        yield

    (finding,) = doctor._guarded(_odd)
    assert (finding.topic, finding.state) == ("odd", "broken")
    assert finding.found == "RuntimeError: what"


@pytest.mark.parametrize(
    ("outcome", "words"),
    [
        (subprocess.CompletedProcess([], 0, "right\n", ""), "right"),
        (subprocess.CompletedProcess([], 1, "", "Traceback\nNoDevice: none"), "NoDevice: none"),
        (subprocess.CompletedProcess([], -11, "", ""), "ended with -11"),
        (subprocess.TimeoutExpired("x", 1), "not done after"),
    ],
)
def test_a_product_that_crashes_or_hangs_is_a_finding(monkeypatch, outcome, words):
    def run(*arguments, **options):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    monkeypatch.setattr(doctor.subprocess, "run", run)
    (finding,) = doctor._products([(Device("GPU", "cuda"), "nvcc")])
    assert finding.topic == "product on cuda:0" and words in finding.found
    assert (finding.state == "ok") == (words == "right")
