"""What a GPU reports while it works (NVML; reading it never raises), and what Nsight Compute
measures where it is installed.
"""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import ModuleType

from pymm.core.errors import NoEnergy

#: The bits of nvmlDeviceGetCurrentClocksEventReasons that mean a reduced clock, and their names
#: here.
THROTTLING = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonApplicationsClocksSetting": "application clocks",
}

#: Those of them that are no disturbance: a large product draws all the power that a GPU may take
#: (10 % of the trials on an H200), and clocks that somebody has set do not change.
USUAL = ("power cap", "application clocks")


@lru_cache(maxsize=1)
def _nvml() -> ModuleType | None:
    """NVML, initialised once per process; None where it is not available."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


def driver_version() -> str:
    """Version of the kernel driver ("580.159"); empty where it cannot be read."""
    nvml = _nvml()
    return str(_asked(nvml.nvmlSystemGetDriverVersion) or "") if nvml else ""


def read_telemetry(bus_id: str) -> Mapping[str, float | str]:
    """Clocks (MHz), power and its limit (W), temperature (C) and throttle reasons of the GPU at a
    PCI bus id: NVML and CUDA number GPUs differently. What cannot be read is left out.
    """
    nvml = _nvml()
    gpu = _asked(nvml.nvmlDeviceGetHandleByPciBusId, bus_id) if nvml else None
    if gpu is None:
        return {}
    values = {
        "sm_mhz": _asked(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
        "memory_mhz": _asked(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
        "power_w": _asked(nvml.nvmlDeviceGetPowerUsage, gpu),
        "temperature_c": _asked(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
        "power_limit_w": _asked(nvml.nvmlDeviceGetEnforcedPowerLimit, gpu),
    }
    for name in ("power_w", "power_limit_w"):
        if values[name] is not None:
            values[name] /= 1000  # from milliwatts
    reasons = _asked(getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None), gpu)
    read: dict[str, float | str] = {k: float(v) for k, v in values.items() if v is not None}
    if reasons is not None:
        bits = {name: getattr(nvml, name, 0) for name in THROTTLING}
        read["throttle"] = "+".join(THROTTLING[n] for n, bit in bits.items() if reasons & bit)
    return read


def read_energy(bus_id: str) -> float:
    """Joules that the GPU at a PCI bus id has drawn since its driver was loaded. `NoEnergy` where
    NVML does not say.
    """
    nvml = _nvml()
    if nvml is None:
        raise NoEnergy(
            "energy is counted by NVML, which cannot be loaded here: it takes NVIDIA's driver and "
            "the package nvidia-ml-py"
        )
    gpu = _asked(nvml.nvmlDeviceGetHandleByPciBusId, bus_id)
    millijoules = _asked(nvml.nvmlDeviceGetTotalEnergyConsumption, gpu) if gpu else None
    if millijoules is None:
        raise NoEnergy(
            f"the GPU {bus_id} does not count its energy (nvmlDeviceGetTotalEnergyConsumption: "
            "GPUs of compute capability 7.0 and later do)"
        )
    return millijoules / 1000


def _asked(function: Callable | None, *arguments: object):
    """What a function of NVML returns; None for an error, since not every GPU supports each one."""
    try:
        return function(*arguments)
    except Exception:
        return None


#: Where a CUDA toolkit installs it; the PATH comes first.
USUAL_PATH = "/usr/local/cuda/bin/ncu"

Figures = dict[str, tuple[str, str]]


class ProfileFailed(RuntimeError):
    """There is no profile; the message says why, with Nsight Compute's own words if it gave any."""


def find_profiler() -> str | None:
    """Path of `ncu`, None if it is not installed."""
    return shutil.which("ncu") or shutil.which(USUAL_PATH)


def profile(
    command: Sequence[str], kernel: str, metrics: Sequence[str], limit: float
) -> list[Figures]:
    """Run `command` under Nsight Compute: for each launch of the kernel of that name, in order,
    value and unit of every metric by its name. Clocks are left as they are. Raises `ProfileFailed`.
    """
    ncu = find_profiler()
    if ncu is None:
        raise ProfileFailed("Nsight Compute (ncu) is not installed")
    options = [
        "--csv",
        "--clock-control",
        "none",
        "--target-processes",
        "all",
        "--kernel-name",
        kernel,
        "--metrics",
        ",".join(metrics),
    ]
    try:
        done = subprocess.run(
            [ncu, *options, *command], capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise ProfileFailed(f"Nsight Compute was not done after {limit:.0f} s") from None
    except OSError as error:
        raise ProfileFailed(f"{ncu} does not run: {error}") from error
    found = parse(done.stdout)
    if not found:
        words = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        errors = [line for line in words if "ERROR" in line] or words[-1:]
        raise ProfileFailed(" ".join(errors)[:300] or f"ncu: exit status {done.returncode}")
    return found


def parse(text: str) -> list[Figures]:
    """The table that `ncu --csv` prints, one line for each metric of a launch, after what the
    program itself prints.
    """
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: dict[str, Figures] = {}
    for row in csv.DictReader(lines[start:]):
        if row.get("Metric Name"):
            figures = found.setdefault(row["ID"], {})
            value = (row["Metric Value"] or "").replace(",", "")
            figures[row["Metric Name"]] = value, row["Metric Unit"] or ""
    return list(found.values())
