"""What a report knows of a device besides its measurements: its peak rates and limits.
`describe` writes them to `device.json`, `device_of` makes a `Device` of them again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.files import replace_text
from pymm.core.inputs import Json, number_field, shown, text_field

NAME = "device.json"

#: Fields of `device.json`: texts, whole numbers, rates, and lists of whole numbers.
TEXTS = ("name", "kind", "capability")
COUNTS = ("cores", "vector_bytes", "sms", "l2_bytes")
LIMITS = ("shared_per_block", "shared_per_sm", "vector_registers")
RATES = ("clock_hz", "bandwidth")

#: Levels of cache that a device may have.
MOST_CACHES = 8

#: Limits without which nobody can say what pymm chooses on a device.
NEEDED = {
    "cpu": ("cores", "vector_bytes", "vector_registers", "cache_bytes"),
    "cuda": ("capability", "sms", "shared_per_block", "shared_per_sm"),
}


def device_facts(file: Json, slug: str) -> dict[str, object]:
    """The fields of `device.json`. `BadInput` for another device's file and for a field of the
    wrong type.
    """
    facts = file.data
    if not isinstance(facts, dict):
        raise file.error("is not a JSON object")
    if facts.get("slug", slug) != slug:
        raise file.error(f"is of another device, {shown(facts['slug'])}", "slug")
    found: dict[str, object] = {"slug": slug}
    for name, value in facts.items():
        try:
            if name in TEXTS:
                found[name] = text_field(value, name)
            elif name in (*COUNTS, *LIMITS):
                found[name] = int(number_field(value, name, 1))
            elif name in RATES:
                found[name] = number_field(value, name)
            elif name == "peak_flops":
                found[name] = _peaks_field(value)
            elif name == "cache_bytes":
                found[name] = _caches_field(value)
        except ValueError as wrong:
            raise file.error(str(wrong), name) from None
    return found


def _peaks_field(value: object) -> dict[str, float]:
    if not isinstance(value, dict) or not set(value) <= set(DTYPES):
        raise ValueError(f"peak_flops is {shown(value)}, not rates by type ({', '.join(DTYPES)})")
    return {name: number_field(rate, f"peak_flops of {name}") for name, rate in value.items()}


def _caches_field(value: object) -> list[int]:
    if not isinstance(value, list) or not 0 < len(value) <= MOST_CACHES:
        raise ValueError(
            f"cache_bytes is {shown(value)}, not the sizes of 1 to {MOST_CACHES} caches"
        )
    return [int(number_field(size, "a size of cache_bytes", 1)) for size in value]


def device_of(facts: Mapping[str, object]) -> Device | None:
    """The device of such fields; None if they lack a limit that pymm's choices depend on."""
    kind = "cpu" if facts.get("cores") else str(facts.get("kind", ""))
    if not all(facts.get(name) for name in NEEDED.get(kind, ("kind",))):
        return None
    known = {
        name: facts[name]
        for name in ("l2_bytes", "vector_bytes", "peak_flops", *LIMITS, *RATES)
        if facts.get(name)
    }
    if kind == "cpu":
        known |= {"sms": facts["cores"], "cache_bytes": tuple(facts["cache_bytes"])}
    else:
        major, _, minor = str(facts["capability"]).partition(".")
        if not (major.isdigit() and minor.isdigit()):
            return None
        known |= {"sms": facts["sms"], "capability": (int(major), int(minor))}
    return Device(str(facts["name"]), kind, **known)


def facts_of(device: Device) -> dict[str, object]:
    """Name, sizes and peak rates: operations and bytes per second, sizes in bytes."""
    facts: dict[str, object] = {"name": device.name, "slug": device.slug, "kind": device.kind}
    if device.shares_host_cores:
        facts |= {"cores": device.sms, "vector_bytes": device.vector_bytes}
        facts |= {"cache_bytes": list(device.cache_bytes)} if device.cache_bytes else {}
        names: tuple[str, ...] = ("vector_registers",)
    else:
        major, minor = device.capability
        facts |= {"capability": f"{major}.{minor}", "sms": device.sms}
        names = ("shared_per_block", "shared_per_sm")
    limits = {name: getattr(device, name) for name in (*names, *RATES, "l2_bytes")}
    facts |= {name: value for name, value in limits.items() if value}
    return facts | {
        "peak_flops": {name: float(f"{v:.6g}") for name, v in device.peak_flops.items()}
    }


def describe(device: Device, results: Path) -> Path:
    """Write `device.json` into the device's folder of `results`. Returns its path."""
    path = results / device.slug / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(facts_of(device), indent=1) + "\n")
    return path
