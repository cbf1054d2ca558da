"""Amounts of memory as users write them, and as messages show them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_AMOUNT = re.compile(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([a-zA-Z]*)\s*")


def bytes_of(amount: object, name: str = "device_memory") -> int:
    """Bytes of `8000000000`, "8GB" (10^9 each), "8 GiB" (2^30 each), "1.5TB". `TypeError` and
    `ValueError` name the argument.
    """
    if isinstance(amount, bool) or not isinstance(amount, int | str):
        raise TypeError(f"{name} is a {type(amount).__name__}, not bytes or a text as '8GB'")
    if isinstance(amount, str):
        match = _AMOUNT.fullmatch(amount)
        unit = _UNITS.get(match[2].lower()) if match else None
        if unit is None:
            raise ValueError(
                f"{name}={amount!r} is no amount of memory: write bytes, or a number with kB, MB, "
                "GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024)"
            )
        amount = int(float(match[1]) * unit)
    if amount <= 0:
        raise ValueError(f"{name}={amount} is no positive number of bytes")
    return amount


def shown(nbytes: float) -> str:
    """Bytes with a unit: `8 GB`, `14.4 GB`, `512 bytes`."""
    for power, unit in ((4, "TB"), (3, "GB"), (2, "MB"), (1, "kB")):
        if nbytes >= 1000**power:
            return f"{nbytes / 1000**power:.3g} {unit}"
    return f"{nbytes:.0f} bytes"
