"""The files of a run: every trial as one line of a CSV, and care for the studies' journals."""

from __future__ import annotations

import itertools
import json
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from pymm.core.device import Device
from pymm.core.errors import Error
from pymm.core.files import drop_partial_line, locked, named
from pymm.core.inputs import rows_of
from pymm.core.problem import Problem
from pymm.kernels.custom import CustomProblem
from pymm.kernels.source import kernel_digest
from pymm.measure.results import SEEN, TRIALS, one_line
from pymm.measure.workbench import Trial, median_and_spread

#: How the first line of every such file begins, whatever columns it has.
_OURS = "schema,time,device,problem,"


class ForeignFile(Error, ValueError):
    """A file that is not one of ours stands where one is to be written; it is left as it is."""


def set_aside(path: Path, word: str) -> Path:
    """Rename the file at `path`, so that another can begin there; its new name, which ends in
    `word`, is one that no file has.
    """
    names = (f"{path.name}.{word}" + (f"-{n}" if n else "") for n in itertools.count())
    free = next(place for name in names if not (place := path.with_name(name)).exists())
    return path.rename(free)


class TrialLog:
    """A CSV file to which trials are appended, each one on disk before the next begins.

    A half-written last line of a killed run is cut off. A file of another pymm, with other columns,
    is kept under another name, which `say` is told. `ForeignFile` if the file is none of a tuner's:
    it is not written to. `beta` is that of every trial, `compiler` what compiles them all.
    """

    def __init__(
        self,
        path: Path,
        say: Callable[[str], object] = warnings.warn,
        beta: int = 0,
        compiler: str = "",
    ) -> None:
        self.path, self._beta, self._compiler = path, beta, one_line(compiler)
        path.parent.mkdir(parents=True, exist_ok=True)
        header = TRIALS.header
        begun = path.exists() and path.stat().st_size > 0
        if begun:
            with open(path, "rb") as file:
                first = file.readline().decode(errors="replace").strip()
            if not first.startswith(_OURS):
                raise ForeignFile(f"{path} has other columns than {header}; name another file")
            begun = first == header
            if begun:
                drop_partial_line(path)
            else:
                kept = set_aside(path, "older")
                say(f"{path} has the columns of another pymm: kept as {kept}, a new one is begun")
        self._file = open(path, "ab", buffering=0)  # noqa: SIM115
        if not begun:
            try:
                self._append(header + "\n")
            except OSError:
                self.close()
                raise

    def write(
        self,
        trial: Trial,
        device: Device,
        role: str = "search",
        measured_on: str = "",
        origin: str = "",
    ) -> None:
        """Append a trial; `role` is `search`, or `final` in the interleaved comparison,
        `measured_on` the name of the device of that model, empty for what was not run, and `origin`
        one of `strategies.ORIGINS`, empty in a final.
        """
        config, seen, resources = trial.config, trial.telemetry, trial.resources
        row = {
            "config": config.slug,
            "origin": origin,
            "source": _source(trial),
            "outcome": trial.outcome,
            **_times(trial.seconds, trial.spread, trial.gflops),
            "repeats": len(trial.times),
            "void": trial.void,
            "error": f"{trial.error:.3g}" if trial.error >= 0 else "",
            "registers": resources.registers,
            "spills": resources.spilled_bytes,
            "shared": resources.shared_bytes,
            "joules": f"{trial.joules:.6g}" if trial.joules > 0 else "",
            **{name: seen.get(name, "") for name in (*SEEN, "power_limit_w")},
            "detail": one_line(trial.detail),
        }
        self._write(device, trial.problem, config.kernel_name, role, measured_on, row)

    def write_baseline(
        self,
        problem: Problem,
        kernel: str,
        library: str,
        times: Sequence[float],
        device: Device,
        measured_on: str,
    ) -> None:
        """Append a library that was timed in turn with the finals of that kernel, in seconds."""
        median, spread = median_and_spread(times)
        row = {
            "config": library,
            "outcome": "ok",
            **_times(median, spread, problem.flops / median / 1e9),
            "repeats": len(times),
        }
        self._write(device, problem, kernel, "baseline", measured_on, row)

    def _write(
        self,
        device: Device,
        problem: Problem,
        kernel: str,
        role: str,
        measured_on: str,
        row: Mapping[str, object],
    ) -> None:
        shared = {
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "device": device.slug,
            "driver": one_line(device.versions.get("driver", "")),
            "compiler": self._compiler,
            "problem": problem.slug,
            "kernel": kernel,
            "role": role,
            "measured_on": measured_on,
            "beta": self._beta,
        }
        self._append(TRIALS.line(shared | row))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, text: str) -> None:
        with named(self.path):
            left = text.encode()
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())


def _source(trial: Trial) -> str:
    """Short digest of the kernel's code."""
    if isinstance(trial.problem, CustomProblem):
        return trial.problem.digest
    return kernel_digest(trial.config.backend, trial.config.kernel.file)


def _times(seconds: float, spread: float, gflops: float) -> dict[str, str]:
    """The columns of a time; empty if nothing was timed."""
    if not seconds > 0:
        return {}
    return {
        "seconds": f"{seconds:.9g}",
        "spread": f"{spread:.4g}",
        "gflops": f"{gflops:.6g}",
    }


def read_trials(path: Path) -> Iterator[dict[str, str]]:
    """The lines of such a file by column, as text. `BadInput` names a line that is none."""
    yield from rows_of(path)


class JournalLock:
    """The system's lock as Optuna wants it: it ends with the process that holds it, however that
    ends. (Optuna's own are files that a killed process leaves behind.)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._held: Any = None

    def acquire(self) -> bool:
        """Wait for the lock."""
        self._held = locked(self._path)
        self._held.__enter__()
        return True

    def release(self) -> None:
        """Give the lock back."""
        self._held.__exit__(None, None, None)


def _entry(line: bytes) -> bool:
    """Whether a line of a journal is an entry: an object with a whole number as `op_code`."""
    try:
        fields = json.loads(line) if line.endswith(b"\n") else None
    except (ValueError, RecursionError):
        return False
    return isinstance(fields, dict) and type(fields.get("op_code")) is int


def repair(path: Path) -> str:
    """Cut a half-written last line off the journal `path`. Which line before it is damaged, in
    words, empty if none is.
    """
    if not path.exists():
        return ""
    good = 0
    with open(path, "rb") as journal:
        lines = journal.readlines()
    for count, line in enumerate(lines):
        if not _entry(line):
            if count == len(lines) - 1:
                with open(path, "r+b") as journal:
                    journal.truncate(good)
                return ""
            return f"line {count + 1} is damaged"
        good += len(line)
    return ""
