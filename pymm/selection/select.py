"""Which configuration for a problem, and why: exact, else nearest of its kind, else a default."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pymm.console import duration
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, kernels_for
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.nearest import (
    competitive_records,
    dtypes_share_tiles,
    log_distance,
    rank,
    transferable,
    transferred,
    untuned,
)
from pymm.selection.records import (
    Environment,
    Record,
    StoreError,
    outdated_because,
    unusable_because,
)
from pymm.selection.store import load_file, record_files


@dataclass(frozen=True)
class Choice:
    """What to run, the sentence that says why, and the record it comes from if there is one."""

    config: Config
    reason: str
    record: Record | None = None


def select(
    problem: Problem,
    device: Device,
    directory: Path | None,
    environment: Environment,
    kernel: str | int | None = None,
) -> Choice:
    """The configuration for `problem`, of any kernel or of the one named.

    In this order: a current record of this very problem; where the cost model expects clearly more
    of it than of the default, what is tuned for one of the nearest problems in (log m, log n, log
    k), of this type or one of the same size, another layout and alignment counting as distance; the
    same two once more among records that another driver or compiler made; the default, of another
    rung than the highest that is measured beside it if the model prefers that. A record counts only
    if its configuration obeys every rule for `problem` on `device`, and one of a lower rung than
    the highest that is meant for this problem only where that was measured on the record's problem,
    too, and the rung was somewhere about as quick: one tuned by itself may be far slower than the
    others untuned. Never fails for want of a
    record or for a damaged file (one warning, and the reason names it); `ValueError` for an unknown
    kernel and for one that cannot run here at all.
    """
    wanted = None if kernel is None else find_kernel(kernel, device.kernel_backend)
    files, damage = _readable(device, directory)
    highest = wanted or _highest(problem, device)
    passed_over = False
    for records in _usable_records(device, environment, files):
        found = _nearest(problem, records)
        found = competitive_records(
            highest, [one for one in found if wanted in (None, one[0].config.kernel)]
        )
        defaults = _defaults(problem, device, highest, found)
        choice = _of_records(problem, device, found, defaults)
        if choice is not None:
            return replace(choice, reason=choice.reason + damage)
        passed_over |= bool(found)
    return _default(problem, device, wanted, " near enough" * passed_over, damage)


def _of_records(
    problem: Problem,
    device: Device,
    found: list[tuple[Record, str]],
    defaults: list[Config],
) -> Choice | None:
    """The choice among records, nearest first: the quickest of this very problem, else what
    transfers.
    """
    changes = dict(found)
    exact = [r for r, _ in found if r.problem == problem]
    for record in sorted(exact, key=lambda record: record.seconds):
        if not record.config.kernel.violations(record.config, problem, device):
            return Choice(record.config, _reason(problem, record, device, changes[record]), record)
    nearest: dict[Problem, Record] = {}
    for record, _ in found:
        nearest.setdefault(record.problem, record)  # the quickest of each problem comes first
    chosen = transferred(problem, device, list(nearest.values()), defaults)
    if chosen is None:
        return None
    config, record = chosen
    if record is None:
        return Choice(config, _of_rung(config, defaults[0], problem, device))
    reason = _reason(problem, record, device, changes[record])
    if config != record.config:
        reason += f", k in {config.as_dict()['SPLIT']} parts"
    if defaults and defaults[0].kernel.heuristic and log_distance(problem, record.problem):
        usual = min(predicted_seconds(c, problem, device) for c in defaults)
        part = predicted_seconds(config, problem, device) / usual
        reason += f"; expected to take {part:.2f} of the default's time"
    return Choice(config, reason, record)


def _defaults(
    problem: Problem, device: Device, highest: Kernel, found: list[tuple[Record, str]]
) -> list[Config]:
    """The default of the highest rung, and of the others that records compare with it and that make
    their defaults for a problem.
    """
    rungs = {r.config.kernel_name: r.config.kernel for r, _ in found}
    others = (k for k in rungs.values() if k.heuristic and k.name != highest.name)
    configs = (untuned(kernel, problem, device) for kernel in (highest, *others))
    return [config for config in configs if config is not None]


def configs(
    device: Device, directory: Path | None, environment: Environment
) -> list[tuple[Record, str, str]]:
    """What is tuned for `device`: records, the file of each, and why it is stale ("" if current).
    Files that are damaged are left out with a warning.
    """
    rows = []
    for record in itertools.chain.from_iterable(_readable(device, directory)[0]):
        stale = unusable_because(record, device) or outdated_because(record, environment)
        rows.append((record, record.file, stale))
    return rows


# Records


#: The records of one file.
File = tuple[Record, ...]

#: By type, records that may be used and what has changed since ("" if nothing).
Found = dict[str, list[tuple[Record, str]]]


def _readable(device: Device, directory: Path | None) -> tuple[tuple[File, ...], str]:
    """The files that can be read, the user's first, and words about the others."""
    found, damage = [], ""
    for path in record_files(device, directory):
        try:
            found.append(load_file(device, path))
        except StoreError as error:
            damage += f" (not read: {error})"
            _warn(str(error))
    return tuple(found), damage


def _usable_records(
    device: Device, environment: Environment, files: tuple[File, ...]
) -> tuple[Found, Found]:
    """What may be used of the files, made by the present tools and by others. Of the records of one
    problem and kernel the user's comes before a shipped one and a newer before an older one; the
    rest of them is left out. It is remembered while the files stay the same: records are many.
    """
    key = device, environment
    before, shelf = _usable_cache.get(key, ((), ({}, {})))
    if [*map(id, before)] != [*map(id, files)]:
        taken, shelf = set(), ({}, {})
        for record in _in_order(device, files):
            changes = outdated_because(record, environment)
            name = (bool(changes), record.problem, record.config.kernel_name)
            if name not in taken:
                taken.add(name)
                of_type = shelf[bool(changes)].setdefault(record.problem.dtype, [])
                of_type.append((record, changes))
        _usable_cache[key] = files, shelf
    return shelf


_usable_cache: dict[tuple[Device, Environment], tuple[tuple[File, ...], tuple[Found, Found]]] = {}


def _in_order(device: Device, files: tuple[File, ...]) -> Iterator[Record]:
    """The records that may be used here, file by file, of each the newest first."""
    for file in files:
        for record in sorted(file, key=lambda record: record.date, reverse=True):
            if not unusable_because(record, device):
                yield record


@lru_cache(maxsize=256)
def _warn(message: str) -> None:
    """Say it once in a process."""
    warnings.warn(f"tuned configurations not read: {message}", UserWarning, stacklevel=5)


def _nearest(problem: Problem, records: Found) -> list[tuple[Record, str]]:
    """Records of the same type or one alike, nearest first."""
    found = [
        one
        for dtype, of_type in records.items()
        if dtypes_share_tiles(problem.dtype, dtype)
        for one in of_type
        if transferable(problem, one[0].problem, one[0].config.backend)
    ]
    return sorted(found, key=lambda one: rank(problem, one[0]))


# Words


def _reason(problem: Problem, record: Record, device: Device, changes: str) -> str:
    here = "this CPU" if device.kernel_backend == "cpu" else "this GPU"
    tuned = record.problem
    extents = f"{tuned.m}x{tuned.n}x{tuned.k}"
    if tuned == problem:
        words = f"tuned for this problem on {here} ({record.date}, {duration(record.seconds)})"
    elif log_distance(problem, tuned) == 0 and problem.same_kind(tuned):
        words = f"tuned for {extents} in stacks of {tuned.batch} on {here}"
    else:
        words = f"nearest tuned problem {extents} on {here}"
    if tuned.layout != problem.layout:
        words += f", of layout {tuned.layout}"
    if tuned.dtype != problem.dtype:
        words += f", of type {tuned.dtype}"
    if tuned.op != problem.op:
        words += f", of {tuned.op}"
    if changes:
        words += f"; {changes}: re-tune with `{tune_command(problem, device)}`"
    return words


def _of_rung(config: Config, first: Config, problem: Problem, device: Device) -> str:
    """Why another rung's default."""
    here, there = (duration(predicted_seconds(c, problem, device), 3) for c in (config, first))
    return (
        f"default of {config.kernel_name}: nothing tuned near enough for {problem.dtype} on "
        f"{device.name}; the cost model expects {here}, {there} of {first.kernel_name}"
    )


def tune_command(problem: Problem, device: Device) -> str:
    """The command that tunes `problem` on `device`."""
    where = f"cpu:{device.sms}" if device.kernel_backend == "cpu" else str(device.index)
    words = [f"--shapes {problem.m}x{problem.n}x{problem.k}", f"--dtypes {problem.dtype}"]
    words += [] if problem.layout == "NN" else [f"--transposes {problem.layout}"]
    words += [f"--op {problem.op}"] if problem.symmetric else []
    return " ".join(["python -m pymm.tune", *words, f"--devices {where}"])


# Defaults


def _highest(problem: Problem, device: Device) -> Kernel:
    """The highest rung whose default may run here, else the highest of all."""
    kernels = kernels_for(problem, device)[::-1]
    if not kernels:
        raise _no_kernel(problem, device)
    for kernel in kernels:
        if untuned(kernel, problem, device) is not None:
            return kernel
    return kernels[0]


def _no_kernel(problem: Problem, device: Device) -> NotImplementedError:
    """What to say of a type that no kernel computes in here."""
    runs = [dtype for dtype in DTYPES if kernels_for(replace(problem, dtype=dtype), device)]
    there = ", ".join(runs) or "nothing"
    return NotImplementedError(
        f"no kernel of pymm computes in {problem.dtype} on {device.name}; there it has {there}"
    )


def _default(
    problem: Problem, device: Device, wanted: Kernel | None, near: str, damage: str
) -> Choice:
    """The default of the highest rung that may run here, or the first configuration that may."""
    kernels = [k for k in kernels_for(problem, device)[::-1] if wanted in (None, k)]
    if not kernels:
        what = "no kernel of pymm" if wanted is None else f"{wanted.name} cannot"
        verb = "computes" if wanted is None else "compute"
        raise NotImplementedError(f"{what} {verb} in {problem.dtype} on {device.name}")
    for kernel in kernels:
        config = untuned(kernel, problem, device)
        if config is not None:
            why = _why_untuned(config, problem, device, near, damage)
            return Choice(config, why)
    for kernel in kernels:
        valid, rejected = kernel.configs(problem, device)
        if valid:
            reason = f"first configuration of {kernel.name} that fits {device.name}{damage}"
            return Choice(valid[0], reason)
    names, broken = ", ".join(k.name for k in kernels), "; ".join(rejected)
    raise ValueError(f"no configuration of {names} may run on {device.name}: {broken}")


def _why_untuned(config: Config, problem: Problem, device: Device, near: str, damage: str) -> str:
    kernel, why = config.kernel, f"nothing tuned{near} for {problem.dtype}"
    if not device.times_are_real:
        why = "in the simulator"
    made = kernel.heuristic or config == kernel.default_for(problem, device)
    what = "default" if made else "cost model's choice"
    return f"{what} of {kernel.name}: {why} on {device.name}{damage}"
