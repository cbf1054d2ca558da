"""Recorded spaces of configurations, read and written: the T4 format of the auto-tuning community
(https://github.com/odgaard/TuningSchema; S. van Werkhoven et al., FAIR sharing of data in
autotuning research, ICPE 2023, 10.1145/3629527.3651429), cache files of Kernel Tuner, and pymm's
own table of trials. Any of them may be compressed with gzip.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pymm.core.files import locked, replace_text
from pymm.core.inputs import BadInput, one_line, read_json, shown
from pymm.kernels import Config, parse_slug
from pymm.measure.results import TRIALS

#: Runs of one configuration that are kept.
MOST_RUNS = 64

#: Longest recording that is read, in bytes without compression.
MAX_BYTES = 256 * 2**20

#: Milliseconds of a T4 file's unit of time, which some files misspell.
UNITS = {
    "seconds": 1e3,
    "milliseconds": 1.0,
    "miliseconds": 1.0,
    "microseconds": 1e-3,
    "nanoseconds": 1e-6,
}

#: T4's `invalidity` of the outcomes of a trial; any other is a fault at run time.
INVALIDITY = {
    "ok": "correct",
    "too_slow": "correct",
    "wrong": "correctness",
    "timed_out": "timeout",
    "compile_failed": "compile",
    "compile_timeout": "compile",
}

Parameters = Mapping[str, object]


@dataclass(frozen=True)
class Recording:
    """What was measured of one space on one device: `parameters` of each configuration, its
    `seconds` (NaN if it failed, with `invalidity` in T4's words) and single `runs`, as many as were
    recorded.
    """

    device: str
    name: str
    parameters: tuple[Parameters, ...]
    seconds: np.ndarray
    runs: tuple[tuple[float, ...], ...]
    invalidity: tuple[str, ...]
    configs: tuple[Config, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "configs", tuple(_coded(self.parameters)))

    def __len__(self) -> int:
        return len(self.parameters)

    @property
    def optimum(self) -> float:
        """The smallest time, in seconds."""
        return float(np.nanmin(self.seconds))

    def reaches(self, index: int, part: float) -> bool:
        """Whether a configuration is as fast as `part` of the fastest."""
        return bool(self.seconds[index] <= self.optimum / part)


def _coded(parameters: Sequence[Parameters]) -> Iterable[Config]:
    """The configurations with parameters that are numbers from 1: any others (0, fractions, words)
    are replaced by the places of their values, in order, from 1.
    """
    columns = []
    for name in parameters[0]:
        values = [given[name] for given in parameters]
        if not all(type(value) is int and value >= 1 for value in values):
            known = sorted(set(values), key=lambda value: (isinstance(value, str), value))
            places = {value: place for place, value in enumerate(known, 1)}
            values = [places[value] for value in values]
        columns.append([(name, value) for value in values])
    return (Config("recorded", row) for row in zip(*columns, strict=True))


def read_recordings(path: Path) -> list[Recording]:
    """The recordings of a file: one of a T4 or cache file, one for each device, problem and kernel
    of a table of trials. `BadInput` names what is wrong, `FileNotFoundError` if there is none.
    """
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    found = _trials(path) if plain.suffix == ".csv" else [_json(path, plain.stem)]
    if not found:
        raise BadInput(f"{one_line(str(path))}: no trial of a search is in it")
    return found


def _json(path: Path, stem: str) -> Recording:
    data = read_json(path, MAX_BYTES).data
    where = one_line(str(path))
    try:
        if isinstance(data, dict) and isinstance(data.get("cache"), dict):
            names = data["tune_params_keys"]
            entries = [_cached(entry, names) for entry in data["cache"].values()]
            device, kernel = str(data["device_name"]), str(data["kernel_name"])
        elif isinstance(data, dict) and isinstance(data.get("results"), list):
            metadata = data.get("metadata") or {}
            unit = UNITS[metadata.get("timeunit", "milliseconds")]
            entries = [_result(entry, unit) for entry in data["results"]]
            device, kernel = (
                str(metadata.get("device", stem)),
                str(metadata.get("kernel", "kernel")),
            )
        else:
            raise BadInput(f'{where}: neither "results" (T4) nor "cache" (Kernel Tuner) is in it')
        return _recording(device, kernel, entries)
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as failure:
        what = f"no {shown(failure.args[0])}" if isinstance(failure, KeyError) else str(failure)
        raise BadInput(f"{where}: no T4 or cache file as it should be: {one_line(what)}") from None


Entry = tuple[dict[str, object], float, tuple[float, ...], str]


def _result(entry: Mapping[str, Any], unit: float) -> Entry:
    """One result of a T4 file: parameters, milliseconds, single runs, invalidity."""
    runs = [unit * _time(value) for value in entry["times"].get("runtimes", ())[:MOST_RUNS]]
    measured = {m["name"]: m["value"] for m in entry.get("measurements", ())}
    time = measured.get((entry.get("objectives") or ["time"])[0])
    usable = isinstance(time, int | float) and time > 0
    taken = unit * float(time) if usable else float(np.mean(runs)) if runs else math.nan
    invalidity = str(entry["invalidity"])
    if invalidity != "correct" or not taken > 0:
        taken, invalidity = math.nan, invalidity if invalidity != "correct" else "runtime"
    return dict(entry["configuration"]), taken, tuple(runs), invalidity


def _cached(entry: Mapping[str, Any], names: Sequence[str]) -> Entry:
    """One entry of a cache file, the same."""
    parameters = {name: entry[name] for name in names}
    time = entry.get("time")
    if not isinstance(time, int | float) or not 0 < time < 1e19:  # a word, or 1e20, for a failure
        words = str(time).lower()
        kind = next((k for k in ("compil", "runtime") if k in words), "constraints")
        return parameters, math.nan, (), "compile" if kind == "compil" else kind
    runs = tuple(_time(value) for value in entry.get("times", ())[:MOST_RUNS])
    return parameters, float(time), runs, "correct"


def _time(value: object) -> float:
    if not isinstance(value, int | float) or not value > 0:
        raise ValueError(f"a run took {shown(value)}, no time above 0")
    return float(value)


def _recording(device: str, name: str, entries: Sequence[Entry]) -> Recording:
    """A recording of entries in milliseconds. `ValueError` if it cannot be searched."""
    names = {tuple(parameters) for parameters, *_ in entries}
    if len(names) != 1:
        raise ValueError("its configurations do not have the same parameters")
    if len({tuple(parameters.values()) for parameters, *_ in entries}) < len(entries):
        raise ValueError("a configuration appears twice")
    times = np.array([time for _, time, *_ in entries]) / 1e3
    if not np.isfinite(times).any():
        raise ValueError("no configuration was timed")
    runs = tuple(tuple(run / 1e3 for run in runs) for _, _, runs, _ in entries)
    parameters = tuple(parameters for parameters, *_ in entries)
    return Recording(device, name, parameters, times, runs, tuple(e[3] for e in entries))


def _trials(path: Path) -> list[Recording]:
    """The searches of a table of trials; of a configuration that was tried twice, the last."""
    found: dict[tuple[str, ...], dict[str, Entry]] = {}
    for row in TRIALS.rows(path, ("seconds",), _no_config):
        if row["role"] == "search":
            key = row["device"], row["problem"], row["kernel"]
            time = 1e3 * float(row["seconds"] or "nan")
            invalidity = INVALIDITY.get(row["outcome"], "runtime")
            timed = time if invalidity == "correct" else math.nan
            entry = (_parameters(row), timed, (), invalidity)
            found.setdefault(key, {})[row["config"]] = entry
    try:
        return [
            _recording(device, f"{problem} {kernel}", list(entries.values()))
            for (device, problem, kernel), entries in found.items()
        ]
    except ValueError as failure:
        raise BadInput(f"{one_line(str(path))}: {failure}") from None


def _parameters(row: Mapping[str, str]) -> dict[str, object]:
    try:
        config = parse_slug(row["config"])
    except ValueError:
        config = parse_slug(row["config"], "cpu")
    return dict(config.as_dict())


def _no_config(row: dict[str, str]) -> str:
    """What is wrong with the configuration of a trial, "" if nothing is."""
    if row["role"] != "search":
        return ""
    try:
        _parameters(row)
    except (ValueError, KeyError) as failure:
        return str(failure)
    return ""


def write_t4(recording: Recording, path: Path) -> None:
    """Write a recording as a T4 file, compressed if its name ends in `.gz`; the file is replaced as
    a whole. Device and kernel are in its metadata.
    """
    results = [
        {
            "configuration": parameters,
            "times": {"runtimes": [_short(1e3 * run) for run in runs]},
            "invalidity": invalidity,
            "correctness": float(invalidity != "correctness"),
            "measurements": (
                [{"name": "time", "value": _short(1e3 * seconds), "unit": "ms"}]
                if math.isfinite(seconds)
                else []
            ),
            "objectives": ["time"],
        }
        for parameters, seconds, runs, invalidity in zip(
            recording.parameters,
            recording.seconds.tolist(),
            recording.runs,
            recording.invalidity,
            strict=True,
        )
    ]
    metadata = {
        "timeunit": "milliseconds",
        "device": recording.device,
        "kernel": recording.name,
    }
    data = {"schema_version": "1.0.0", "metadata": metadata, "results": results}
    text = (json.dumps(data, separators=(",", ":"), allow_nan=False) + "\n").encode()
    with locked(path.with_name(path.name + ".lock")):
        replace_text(path, _compressed(text) if path.suffix == ".gz" else text)


def _compressed(text: bytes) -> bytes:
    """The same bytes for the same text: without name and time."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=9, mtime=0, filename="") as file:
        file.write(text)
    return packed.getvalue()


def _short(number: float) -> float:
    return float(f"{number:.6g}")
