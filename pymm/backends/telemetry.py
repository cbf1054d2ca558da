"""What a GPU says about itself while it works, through NVML. Nothing here raises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import ModuleType

#: Names of the bits of nvmlDeviceGetCurrentClocksEventReasons that mean "slower than asked".
THROTTLING = {
    "nvmlClocksEventReasonSwPowerCap": "power cap",
    "nvmlClocksThrottleReasonHwSlowdown": "hardware slowdown",
    "nvmlClocksEventReasonSyncBoost": "sync boost",
    "nvmlClocksEventReasonSwThermalSlowdown": "thermal slowdown",
    "nvmlClocksThrottleReasonHwThermalSlowdown": "hardware thermal slowdown",
    "nvmlClocksThrottleReasonHwPowerBrakeSlowdown": "power brake",
    "nvmlClocksEventReasonApplicationsClocksSetting": "application clocks",
}

#: Of these what is no disturbance: a large product draws all the power that a GPU may take (10 % of
#: the trials on an H200), and clocks that somebody has set stay so.
USUAL = ("power cap", "application clocks")


@lru_cache(maxsize=1)
def _nvml() -> ModuleType | None:
    """The library, initialised once per process; None where it is not to be had."""
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
    """Clocks (MHz), power (W), temperature (C) and throttle reasons of the GPU at a PCI bus id:
    NVML counts GPUs otherwise than CUDA does. What cannot be read is left out.
    """
    nvml = _nvml()
    gpu = _asked(nvml.nvmlDeviceGetHandleByPciBusId, bus_id) if nvml else None
    if gpu is None:
        return {}
    told = {
        "sm_mhz": _asked(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_SM),
        "memory_mhz": _asked(nvml.nvmlDeviceGetClockInfo, gpu, nvml.NVML_CLOCK_MEM),
        "power_w": _asked(nvml.nvmlDeviceGetPowerUsage, gpu),
        "temperature_c": _asked(nvml.nvmlDeviceGetTemperature, gpu, nvml.NVML_TEMPERATURE_GPU),
    }
    if told["power_w"] is not None:
        told["power_w"] /= 1000  # from milliwatts
    reasons = _asked(getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None), gpu)
    read: dict[str, float | str] = {k: float(v) for k, v in told.items() if v is not None}
    if reasons is not None:
        bits = {name: getattr(nvml, name, 0) for name in THROTTLING}
        read["throttle"] = "+".join(THROTTLING[n] for n, bit in bits.items() if reasons & bit)
    return read


def _asked(question: Callable | None, *arguments: object):
    """The answer, or None: a GPU may not know, and another library's errors are not our caller's.
    """
    try:
        return question(*arguments)
    except Exception:
        return None
