"""A device's facts as `device.json`, which stands beside its measurements and tells its limits."""

from __future__ import annotations

import json
from pathlib import Path

from pymm.core.device import Device

NAME = "device.json"


def facts_of(device: Device) -> dict[str, object]:
    """Name, size and limits: rates in operations and bytes per second, sizes in bytes."""
    facts: dict[str, object] = {"name": device.name, "slug": device.slug, "kind": device.kind}
    if device.kernel_backend == "cpu":
        facts |= {"cores": device.sms, "vector_bytes": device.vector_bytes}
    else:
        major, minor = device.capability
        facts |= {"capability": f"{major}.{minor}", "sms": device.sms}
    limits = {name: getattr(device, name) for name in ("clock_hz", "bandwidth", "l2_bytes")}
    facts |= {name: value for name, value in limits.items() if value}
    return facts | {
        "peak_flops": {name: float(f"{v:.6g}") for name, v in device.peak_flops.items()}
    }


def describe(device: Device, results: Path) -> Path:
    """Write the facts of `device` into its folder of `results`, and return the file's path."""
    path = results / device.slug / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts_of(device), indent=1) + "\n", encoding="utf-8")
    return path
