"""Reports as data, read back: the figures of a `report.json`, each checked for what it is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymm.core.inputs import BadInput, is_slug, number_field, one_line, read_json, shown, text_field
from pymm.core.problem import Problem
from pymm.report.facts import OWN, standard_error, written
from pymm.report.reading import parse_problem, read_device
from pymm.report.record import SCHEMA, data_of


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
    """A report of a JSON file, of the folder of one, or of a folder of CSV files. `BadInput` that
    says what it is not.
    """
    if place.is_dir() and not (place / "report.json").exists():
        return kept(data_of(read_device(place)), str(place))
    path = place / "report.json" if place.is_dir() else place
    name = one_line(str(path))
    try:
        data = read_json(path).data
    except FileNotFoundError:
        raise BadInput(f"{name} is no report: there is no such file") from None
    except BadInput as failure:
        raise BadInput(f"{name} is no report: {str(failure).removeprefix(name)[2:]}") from None
    return kept(data, name)


def kept(data: Any, name: str) -> Kept:
    """A report's data, checked."""
    if not isinstance(data, dict) or not isinstance(data.get("measurements"), list):
        raise BadInput(f"{name} is no report: it has no measurements")
    if data.get("schema") != SCHEMA:
        what = f"{name} has schema {shown(data.get('schema'))}; this pymm reads {SCHEMA}"
        raise BadInput(f"{what}: make it anew from its CSV files by `pymm report`")
    device = data.get("device")
    if not isinstance(device, dict) or "slug" not in device:
        raise BadInput(f"{name} is no report: it names no device")
    if not is_slug(device["slug"]):
        what = f"{name}: device.slug is {shown(device['slug'])}, no name of a device"
        raise BadInput(f"{what} (a-z, 0-9 and -, at most 64)")
    found: dict[tuple[object, ...], Figures] = {}
    for place, fields in enumerate(data["measurements"]):
        try:
            figures = _figures(fields)
        except (ValueError, NotImplementedError) as failure:
            raise BadInput(f"{name}: measurement {place} is none: {failure}") from None
        old = found.get(figures.key)
        if old is None or not old.rounds >= figures.rounds:
            found[figures.key] = figures
    try:
        named = text_field(device.get("name", ""), "device.name")
    except ValueError as failure:
        raise BadInput(f"{name}: {failure}") from None
    return Kept(
        name, {"slug": device["slug"]} | ({"name": named} if named else {}), tuple(found.values())
    )


def _figures(fields: Any) -> Figures:
    """The figures of one measurement. `ValueError` or `NotImplementedError` if it is none."""
    if not isinstance(fields, dict):
        raise ValueError(f"{shown(fields)} is no object")
    numbers = {
        name: number_field(fields[name], name, 0.0)
        for name in ("spread", "rounds")
        if fields.get(name) is not None
    }
    words = {
        name: text_field(fields.get(name, ""), name)
        for name in ("kernel", "variant", "config", "source")
    }
    seconds = number_field(fields.get("seconds"), "seconds")
    who = text_field(fields.get("who"), "who")
    problem = parse_problem(text_field(fields.get("problem"), "problem"))
    return Figures(problem, who, seconds, **numbers, **words)


def label(figures: Figures) -> str:
    """A contestant's name for people."""
    if figures.who != OWN:
        return written(figures.who)
    return (
        "pymm's choice"
        if figures.variant == "chosen"
        else (f"{figures.kernel} {figures.variant}".strip())
    )
