"""Reports as data: `report.json` written, and read back by `pymm report --compare` and `pymm
verify`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymm.core.inputs import BadInput, is_slug, number_field, one_line, read_json, shown, text_field
from pymm.core.problem import Problem
from pymm.report.load import Results, parse_problem, read_device
from pymm.report.searches import searches
from pymm.report.stats import (
    CHOICE,
    OWN,
    Timing,
    comparisons,
    current,
    device_name,
    display_name,
    highest_rates,
    kind_of,
    mean,
    peaks,
    standard_error,
    timings,
    tuned_searches,
)

SCHEMA = 1


def data_of(results: Results) -> dict[str, object]:
    """The JSON of a report: the device, a summary, and the time of every kernel and library. Times
    in seconds, rates in GFLOP/s.
    """
    everything = timings(results)
    return {
        "schema": SCHEMA,
        "device": {"slug": results.slug, "name": device_name(results)}
        | {k: v for k, v in results.device.items() if k not in ("slug", "name")},
        "limits_gflops": {name: rounded(value) for name, value in peaks(results).items()},
        "summary": summary(results),
        "measurements": [_measurement(t) for t in everything],
        "searches": [
            {
                "problem": s.problem.slug,
                "kernel": s.kernel,
                "trials": len(s.tried),
                "outcomes": dict(sorted(s.outcomes.items())),
                **({"origins": dict(sorted(s.origins.items()))} if s.origins else {}),
                "gain": number(s.gain),
                "ratio": number(s.ratio),
                "stale": s.stale,
                "config": s.best.text("config") if s.best else "",
                "file": s.file,
            }
            for s in searches(results)
        ],
        "files": list(results.files),
    }


def summary(results: Results) -> dict[str, object]:
    """Means and highest rates by type, of what is today's."""
    compared = current(comparisons(results))
    gains = [search.gain for search in tuned_searches(results)]
    types = {}
    for e in highest_rates(results):
        ratios = [c.ratio for c in compared if kind_of(c.problem) == e.dtype]
        types[e.dtype] = {
            "gflops": rounded(e.own.gflops),
            "problem": e.own.problem.slug,
            "of_limit": rounded(e.own.gflops / e.peak),
            "ratio": number(mean(ratios)),
            "products": sum(ratio > 0 for ratio in ratios),
        }
    return {"types": types, "tuning_gain": number(mean(gains))}


def _measurement(t: Timing) -> dict[str, object]:
    row = t.row
    fields: dict[str, object] = {
        "problem": t.problem.slug,
        "who": t.library,
        "kernel": t.kernel,
        "variant": t.variant,
        "config": row.text("config") if t.library == OWN else "",
        "seconds": rounded(t.seconds),
        "spread": number(t.spread),
        "rounds": number(t.rounds),
        "file": t.run,
    }
    if t.library == OWN:
        fields |= {
            "ratio": number(row.number("ratio")),
            "reason": row.text("reason"),
            "source": row.text("source"),
            "stale": row.stale,
        }
    return dict(_known(fields))


def _known(fields: dict[str, object]) -> Iterator[tuple[str, object]]:
    return ((key, value) for key, value in fields.items() if value not in ("", None))


def number(value: float) -> float | None:
    """A number for JSON: None for NaN."""
    return None if value != value else rounded(value)


def rounded(value: float) -> float:
    """Rounded to six digits, more than any time is accurate to."""
    return float(f"{value:.6g}")


@dataclass(frozen=True)
class SavedTiming:
    """The time of one kernel or library on one problem, as a report stores it. Only pymm has
    `kernel`, `variant`, `config` and `source`.
    """

    problem: Problem
    library: str
    seconds: float
    spread: float = math.nan
    rounds: float = math.nan
    kernel: str = ""
    variant: str = ""
    config: str = ""
    source: str = ""

    @property
    def key(self) -> tuple[object, ...]:
        """What identifies the same timing in another report. What `matmul` selects counts as one,
        whichever kernel it is.
        """
        kernel = "" if self.variant == "chosen" else self.kernel
        return (self.problem, self.library, kernel, self.variant)

    @property
    def error(self) -> float:
        """Relative standard error of the time; NaN if the report does not have it."""
        return standard_error(self.spread, self.rounds)


@dataclass(frozen=True)
class SavedReport:
    """One report: its path, its device and its timings; of several with the same key that of the
    most rounds.
    """

    name: str
    device: dict[str, Any]
    timings: tuple[SavedTiming, ...]

    @property
    def slug(self) -> str:
        """The device's name in file names."""
        return str(self.device["slug"])


def read_report(place: Path) -> SavedReport:
    """Read a report from a JSON file, from its folder, or from a folder of CSV files. `BadInput` if
    it is none.
    """
    if place.is_dir() and not (place / "report.json").exists():
        return parse_report(data_of(read_device(place)), str(place))
    path = place / "report.json" if place.is_dir() else place
    name = one_line(str(path))
    try:
        data = read_json(path).data
    except FileNotFoundError:
        raise BadInput(f"{name} is not a report: no such file") from None
    except BadInput as failure:
        raise BadInput(f"{name} is not a report: {str(failure).removeprefix(name)[2:]}") from None
    return parse_report(data, name)


def parse_report(data: Any, name: str) -> SavedReport:
    """A report from its data, validated."""
    if not isinstance(data, dict) or not isinstance(data.get("measurements"), list):
        raise BadInput(f"{name} is not a report: it has no measurements")
    if data.get("schema") != SCHEMA:
        what = f"{name} has schema {shown(data.get('schema'))}; this pymm reads {SCHEMA}"
        raise BadInput(f"{what}: make it again from its CSV files with `pymm report`")
    device = data.get("device")
    if not isinstance(device, dict) or "slug" not in device:
        raise BadInput(f"{name} is not a report: it names no device")
    if not is_slug(device["slug"]):
        what = f"{name}: device.slug is {shown(device['slug'])}, not a name of a device"
        raise BadInput(f"{what} (a-z, 0-9 and -, at most 64)")
    found: dict[tuple[object, ...], SavedTiming] = {}
    for place, fields in enumerate(data["measurements"]):
        try:
            timing = _timing(fields)
        except (ValueError, NotImplementedError) as failure:
            raise BadInput(f"{name}: measurement {place} is invalid: {failure}") from None
        old = found.get(timing.key)
        if old is None or not old.rounds >= timing.rounds:
            found[timing.key] = timing
    try:
        named = text_field(device.get("name", ""), "device.name")
    except ValueError as failure:
        raise BadInput(f"{name}: {failure}") from None
    return SavedReport(
        name, {"slug": device["slug"]} | ({"name": named} if named else {}), tuple(found.values())
    )


def _timing(fields: Any) -> SavedTiming:
    """The timing of one measurement. `ValueError` or `NotImplementedError` if it is invalid."""
    if not isinstance(fields, dict):
        raise ValueError(f"{shown(fields)} is not an object")
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
    library = text_field(fields.get("who"), "who")
    problem = parse_problem(text_field(fields.get("problem"), "problem"))
    return SavedTiming(problem, library, seconds, **numbers, **words)


def label(timing: SavedTiming) -> str:
    """The name of a kernel or library as reports show it."""
    if timing.library != OWN:
        return display_name(timing.library)
    if timing.variant == "chosen":
        return CHOICE
    return f"{timing.kernel} {timing.variant}".strip()
