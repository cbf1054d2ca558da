"""Reports as data, read back: the figures of a `report.json`, each checked for what it is."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymm.problem import Problem
from pymm.report.facts import OWN, standard_error, written
from pymm.report.reading import parse_problem, read_device
from pymm.report.record import SCHEMA, data_of

#: A file beyond it is not one of ours.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Figures:
    """The time of one contestant on one problem, as a report has it. `kernel`, `variant`, `config`
    and `source` are of ours alone.
    """

    problem: Problem
    who: str
    seconds: float
    spread: float = math.nan
    rounds: float = math.nan
    kernel: str = ""
    variant: str = ""
    config: str = ""
    source: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What the same contestant has in another report: what `matmul` chooses is one of them,
        whichever kernel that is.
        """
        kernel = "" if self.variant == "chosen" else self.kernel
        return (self.problem, self.who, kernel, self.variant)

    @property
    def error(self) -> float:
        """Standard error of the time, as a part of it; NaN if the report does not tell."""
        return standard_error(self.spread, self.rounds)


@dataclass(frozen=True)
class Kept:
    """One report: where it is from, its device, and its figures; of several with the same key that
    of the most rounds.
    """

    name: str
    device: dict[str, Any]
    figures: tuple[Figures, ...]

    @property
    def slug(self) -> str:
        """The device's name in file names."""
        return str(self.device["slug"])


def load(place: Path) -> Kept:
    """A report of a JSON file, of the folder of one, or of a folder of CSV files. `ValueError` that
    says what it is not.
    """
    if place.is_dir() and not (place / "report.json").exists():
        return kept(data_of(read_device(place)), str(place))
    path = place / "report.json" if place.is_dir() else place
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES >> 20} MiB")
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as failure:
        raise ValueError(f"{path} is no report: {failure}") from None
    return kept(data, str(path))


def kept(data: Any, name: str) -> Kept:
    """A report's data, checked."""
    if not isinstance(data, dict) or not isinstance(data.get("measurements"), list):
        raise ValueError(f"{name} is no report: it has no measurements")
    if data.get("schema") != SCHEMA:
        what = f"{name} has schema {data.get('schema')!r}; this pymm reads {SCHEMA}"
        raise ValueError(f"{what}: make it anew from its CSV files by `pymm report`")
    device = data.get("device")
    if not isinstance(device, dict) or not isinstance(device.get("slug"), str):
        raise ValueError(f"{name} is no report: it names no device")
    found: dict[tuple[object, ...], Figures] = {}
    for place, fields in enumerate(data["measurements"]):
        try:
            figures = _figures(fields)
        except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as failure:
            raise ValueError(f"{name}: measurement {place} is none: {failure!r}") from None
        old = found.get(figures.key)
        if old is None or not old.rounds >= figures.rounds:
            found[figures.key] = figures
    return Kept(name, device, tuple(found.values()))


def _figures(fields: dict[str, Any]) -> Figures:
    numbers = {name: float(fields.get(name, math.nan)) for name in ("spread", "rounds")}
    words = {name: str(fields.get(name, "")) for name in ("kernel", "variant", "config", "source")}
    seconds = float(fields["seconds"])
    if not 0 < seconds < math.inf:
        raise ValueError(f"a time of {seconds} s")
    return Figures(parse_problem(fields["problem"]), fields["who"], seconds, **numbers, **words)


def label(figures: Figures) -> str:
    """A contestant's name for people."""
    if figures.who != OWN:
        return written(figures.who)
    return (
        "pymm's choice"
        if figures.variant == "chosen"
        else (f"{figures.kernel} {figures.variant}".strip())
    )
