"""The energy of a call: from a counter that grows in steps, and from NVML."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recorded import NumpyBackend

from pymm.backends import open_device
from pymm.core.errors import NoEnergy
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.measure.energy import STEPS, energy_of
from pymm.measure.workbench import Workbench

SUPPORT = Path(__file__).parents[1] / "support"


class Counting:
    """A device and a clock: each call takes `seconds` at `watts`, the counter shows whole steps."""

    def __init__(self, seconds, watts, step_seconds):
        self.seconds, self.watts, self.step = seconds, watts, step_seconds
        self.now, self.pending = 100.0, 0

    def call(self):
        self.pending += 1

    def synchronize(self):
        self.now += self.pending * self.seconds
        self.pending = 0

    def energy(self):
        self.now += 1e-5  # reading takes time, too
        return math.floor(self.now / self.step) * self.step * self.watts

    def measure(self):
        return energy_of(self, self.call, self.seconds, lambda: self.now)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-3, 5.0), st.floats(20, 1000), st.floats(1e-3, 0.1))
def test_the_energy_of_a_call_is_right_within_its_resolution(seconds, watts, step):
    device = Counting(seconds, watts, step)
    found = device.measure()
    assert found.resolution <= 1 / STEPS
    # An edge is seen up to a batch late at both ends.
    late = 2 * max(0.02, seconds) / (found.runs * seconds)
    assert found.joules == pytest.approx(seconds * watts, rel=found.resolution + late + 1e-2)
    assert found.watts == pytest.approx(watts, rel=found.resolution + late + 1e-2)


def test_a_counter_that_is_too_coarse_is_said():
    with pytest.raises(NoEnergy, match="fewer than 50 of its steps in 15 s"):
        Counting(1e-3, 300, 1.0).measure()


def test_a_counter_that_goes_back_is_said():
    device = Counting(1e-3, 300, 0.02)
    device.watts = -300
    with pytest.raises(NoEnergy, match="went back"):
        device.measure()


def test_devices_without_a_counter_say_so():
    for name in ("cpu", "simulator"):
        with pytest.raises(NoEnergy, match="no counter of energy"):
            open_device(name).energy()


class Counted(NumpyBackend):
    """Its counter grows with each launch, in fine steps, or it has none."""

    drawn, missing = 0.0, False

    def energy(self):
        if self.missing:
            raise NoEnergy("no counter today")
        self.drawn += 1.0
        return self.drawn


CONFIG = find_kernel("register_tile").default_config


def test_a_trial_has_the_energy_of_what_is_right(monkeypatch):
    monkeypatch.setattr("pymm.measure.energy.LEAST_SECONDS", 0.0)
    backend = Counted(seconds=lambda config: 0.02, kind="cuda")
    bench = Workbench(backend, Problem(5, 6, 7))
    assert math.isnan(bench.measure(CONFIG).joules)
    bench.counts_energy = True
    trial = bench.measure(CONFIG)
    assert trial.outcome == "ok" and trial.joules == pytest.approx(1.0)
    (final,) = bench.compare([CONFIG], rounds=5)
    assert final.joules == pytest.approx(1.0)
    backend.missing = True
    trial = bench.measure(CONFIG)
    assert (trial.outcome, trial.detail) == ("disturbed", "no counter today")


def test_no_energy_is_measured_of_what_is_wrong():
    backend = Counted(spoil=lambda c, *more: c.fill(0), kind="cuda")
    bench = Workbench(backend, Problem(5, 6, 7))
    bench.counts_energy = True
    assert bench.measure(CONFIG).outcome == "wrong" and backend.drawn == 0


@pytest.fixture(scope="module")
def nvml(tmp_path_factory):
    """The folder of a stand-in for NVML's library."""
    folder = tmp_path_factory.mktemp("nvml")
    compiler = os.environ.get("CXX", "g++")
    assert shutil.which(compiler), "the simulator needs it, too"
    library = folder / "libnvidia-ml.so.1"
    command = [compiler, "-shared", "-fPIC", "-O1", SUPPORT / "fake_nvml.cpp", "-o", library]
    subprocess.run(command, check=True)
    return folder


ASKED = """
import json, sys
from pymm.backends.telemetry import read_energy, read_telemetry
from pymm.core.errors import NoEnergy
try:
    first = read_energy(sys.argv[1])
except NoEnergy as missing:
    print(json.dumps({"missing": str(missing)}))
else:
    while (second := read_energy(sys.argv[1])) == first: pass
    print(json.dumps({"step": second - first, **read_telemetry(sys.argv[1])}))
"""


def asked(folder, bus="0000:01:00.0", **environment):
    """What a process of its own reads from NVML in that folder."""
    variables = {"LD_LIBRARY_PATH": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", ASKED, bus],
        env=os.environ | variables | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_energy_and_power_limit_are_read_from_nvml(nvml):
    found = asked(nvml, FAKE_NVML_WATTS="250")
    assert found["step"] % 5 == pytest.approx(0, abs=1e-6) and found["step"] > 0  # 20 ms at 250 W
    assert (found["power_w"], found["power_limit_w"]) == (250, 700)
    assert "sm_mhz" not in found  # which this stand-in does not know


def test_what_lacks_is_said(nvml, tmp_path):
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    assert "cannot be loaded here" in asked(tmp_path)["missing"]
    assert "does not count its energy" in asked(nvml, FAKE_NVML_STEP_MS="0")["missing"]
    assert "does not count its energy" in asked(nvml, bus="0000:02:00.0")["missing"]
