"""A report as data: what `pymm report --compare` and `pymm verify` read."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymm.core.inputs import BadInput, is_slug, number_field, one_line, read_json, shown, text_field
from pymm.core.problem import Problem
from pymm.report.load import Findings, parse_problem, read_device
from pymm.report.searches import searches
from pymm.report.stats import (
    OWN,
    Timed,
    comparisons,
    device_name,
    extremes,
    kind_of,
    mean,
    peaks,
    standard_error,
    timed,
    written,
)

SCHEMA = 1


def data_of(findings: Findings) -> dict[str, object]:
    """The JSON of a report: the device, what its rows come to, every kernel's time, every library's
    time. Times in seconds, rates in GFLOP/s.
    """
    everything = timed(findings)
    return {
        "schema": SCHEMA,
        "device": {"slug": findings.slug, "name": device_name(findings)}
        | {k: v for k, v in findings.device.items() if k not in ("slug", "name")},
        "limits_gflops": {name: rounded(value) for name, value in peaks(findings).items()},
        "summary": summary(findings),
        "measurements": [_measurement(t) for t in everything],
        "searches": [
            {
                "problem": s.problem.slug,
                "kernel": s.kernel,
                "trials": len(s.tried),
                "outcomes": dict(sorted(s.outcomes.items())),
                "gain": number(s.gain),
                "config": s.best.text("config") if s.best else "",
                "file": s.file,
            }
            for s in searches(findings)
        ],
        "files": list(findings.files),
    }


def summary(findings: Findings) -> dict[str, object]:
    """Means and highest rates by type."""
    held = comparisons(findings)
    gains = [search.gain for search in searches(findings)]
    types = {}
    for e in extremes(findings):
        ratios = [d.ratio for d in held if kind_of(d.problem) == e.dtype]
        types[e.dtype] = {
            "gflops": rounded(e.own.gflops),
            "problem": e.own.problem.slug,
            "of_limit": rounded(e.own.gflops / e.peak),
            "ratio": number(mean(ratios)),
            "products": sum(ratio > 0 for ratio in ratios),
        }
    return {"types": types, "tuning_gain": number(mean(gains))}


def _measurement(t: Timed) -> dict[str, object]:
    row = t.row
    fields: dict[str, object] = {
        "problem": t.problem.slug,
        "who": t.who,
        "kernel": t.rung,
        "variant": t.variant,
        "config": row.text("config") if t.who == OWN else "",
        "seconds": rounded(t.seconds),
        "spread": number(t.spread),
        "rounds": number(t.rounds),
        "file": t.run,
    }
    if t.who == OWN:
        fields |= {
            "ratio": number(row.number("ratio")),
            "reason": row.text("reason"),
            "source": row.text("source"),
        }
    return dict(_known(fields))


def _known(fields: dict[str, object]) -> Iterator[tuple[str, object]]:
    return ((key, value) for key, value in fields.items() if value not in ("", None))


def number(value: float) -> float | None:
    """A number as JSON has it: none for NaN."""
    return None if value != value else rounded(value)


def rounded(value: float) -> float:
    """Six digits: no time is known better."""
    return float(f"{value:.6g}")


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
