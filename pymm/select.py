"""Which configuration for a problem, and why: exact, else nearest of its kind, else a default."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from pymm.device import Device
from pymm.kernels import Config, Kernel, find_kernel, kernels_for
from pymm.problem import Problem
from pymm.records import Environment, Record, StoreError, outdated_because, unusable_because
from pymm.store import load_file, record_files


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

    In this order: a current record of this very problem; of the nearest problem in (log m, log n,
    log k) of the same type and layout; of another layout; the same three once more among records
    that another driver or compiler made; the kernel's default. A record counts only if its
    configuration obeys every rule for `problem` on `device`, and one of a lower rung only where
    the highest was measured on this very problem, too: a rung tuned by itself may be far slower
    than the others untuned. Never fails for want of a record or
    for a damaged file (one warning, and the reason names it); `ValueError` for an unknown kernel
    and for one that cannot run here at all.
    """
    wanted = None if kernel is None else find_kernel(kernel, _backend(device))
    records, damage = _usable(device, directory)
    highest = wanted or _highest(problem, device)
    for tools_changed in (False, True):
        found = list(_nearest(problem, records, environment, tools_changed))
        exact = {r.config.kernel_name for r, _ in found if r.problem == problem}
        for record, changes in found:
            config = record.config
            compared = wanted is None and record.problem == problem and highest.name in exact
            if config.kernel_name != highest.name and not compared:
                continue
            if not config.kernel.violations(config, problem, device):
                reason = _reason(problem, record, device, changes)
                return Choice(config, reason + damage, record)
    return _default(problem, device, wanted, damage)


def configs(
    device: Device, directory: Path | None, environment: Environment
) -> list[tuple[Record, str, str]]:
    """What is tuned for `device`: records, the file of each, and why it is stale ("" if current).
    Files that are damaged are left out with a warning.
    """
    rows = []
    for record in _readable(device, directory)[0]:
        stale = unusable_because(record, device) or outdated_because(record, environment)
        rows.append((record, record.file, stale))
    return rows


def _backend(device: Device) -> str:
    return "cpu" if device.kind == "cpu" else "cuda"


# Records


def _usable(device: Device, directory: Path | None) -> tuple[list[Record], str]:
    records, damage = _readable(device, directory)
    return [record for record in records if not unusable_because(record, device)], damage


def _readable(device: Device, directory: Path | None) -> tuple[list[Record], str]:
    """The records of all files that can be read, the user's first, and words about the others."""
    found: list[Record] = []
    damage = ""
    for path in record_files(device, directory):
        try:
            found += load_file(device, path)
        except StoreError as error:
            damage += f" (not read: {error})"
            _warn(str(error))
    return found, damage


@lru_cache(maxsize=256)
def _warn(message: str) -> None:
    """Say it once in a process."""
    warnings.warn(f"tuned configurations not read: {message}", UserWarning, stacklevel=5)


def _nearest(
    problem: Problem, records: list[Record], environment: Environment, tools_changed: bool
) -> Iterator[tuple[Record, str]]:
    """Records of the same type, nearest first, that were made by the present tools or by others.

    Of the records of one problem and kernel the user's comes before a shipped one and a newer
    before an older one; the rest of them is left out.
    """
    best: dict[tuple, tuple[Record, str]] = {}
    files = list(dict.fromkeys(record.file for record in records))
    newest = sorted(records, key=lambda record: record.date, reverse=True)
    for record in sorted(newest, key=lambda record: files.index(record.file)):
        changes = outdated_because(record, environment)
        alike = replace(record.problem, trans_a=problem.trans_a, trans_b=problem.trans_b)
        if bool(changes) == tools_changed and problem.same_kind(alike):
            best.setdefault((record.problem, record.config.kernel_name), (record, changes))
    yield from sorted(best.values(), key=lambda found: _rank(problem, found[0]))


def _rank(problem: Problem, record: Record) -> tuple:
    """Sorts records: same layout, distance, same batch, then time per operation."""
    tuned = record.problem
    pace = record.seconds / max(tuned.flops, 1)
    batch = abs(_log(tuned.batch) - _log(problem.batch))
    layout = tuned.layout != problem.layout
    return (layout, round(_distance(problem, tuned), 9), batch, pace, record.config.slug)


def _distance(p: Problem, q: Problem) -> float:
    """Euclidean in (log m, log n, log k). The batch does not count: a stack is made of problems."""
    return math.dist(*((_log(x.m), _log(x.n), _log(x.k)) for x in (p, q)))


def _log(extent: int) -> float:
    return math.log(max(extent, 1))


# Words


def _reason(problem: Problem, record: Record, device: Device, changes: str) -> str:
    here = "this CPU" if device.kind == "cpu" else "this GPU"
    tuned = record.problem
    extents = f"{tuned.m}x{tuned.n}x{tuned.k}"
    if tuned == problem:
        words = f"tuned for this problem on {here} ({record.date}, {record.seconds * 1e6:.4g} us)"
    elif _distance(problem, tuned) == 0 and tuned.layout == problem.layout:
        words = f"tuned for {extents} in stacks of {tuned.batch} on {here}"
    else:
        words = f"nearest tuned problem {extents} on {here}"
    if tuned.layout != problem.layout:
        words += f", of layout {tuned.layout}"
    if changes:
        words += f"; {changes}: re-tune with `{tune_command(problem, device)}`"
    return words


def tune_command(problem: Problem, device: Device) -> str:
    """The line that tunes `problem` on `device`."""
    where = "cpu" if device.kind == "cpu" else str(device.index)
    words = [f"--shapes {problem.m}x{problem.n}x{problem.k}", f"--dtypes {problem.dtype}"]
    words += [] if problem.layout == "NN" else [f"--transposes {problem.layout}"]
    return " ".join(["python -m pymm.tune", *words, f"--devices {where}"])


# Defaults


def _highest(problem: Problem, device: Device) -> Kernel:
    """The highest rung whose default may run here, else the highest of all."""
    kernels = kernels_for(problem, device)[::-1]
    if not kernels:
        raise NotImplementedError(f"no kernel of pymm computes in {problem.dtype} on {device.name}")
    for kernel in kernels:
        if not kernel.violations(kernel.default_for(problem, device), problem, device):
            return kernel
    return kernels[0]


def _default(problem: Problem, device: Device, wanted: Kernel | None, damage: str) -> Choice:
    """The default of the highest rung that may run here, or the first configuration that may."""
    kernels = [k for k in kernels_for(problem, device)[::-1] if wanted in (None, k)]
    if not kernels:
        what = "no kernel of pymm" if wanted is None else f"{wanted.name} cannot"
        verb = "computes" if wanted is None else "compute"
        raise NotImplementedError(f"{what} {verb} in {problem.dtype} on {device.name}")
    why = "in the simulator" if device.kind == "simulator" else f"nothing tuned for {problem.dtype}"
    for kernel in kernels:
        config = kernel.default_for(problem, device)
        if not kernel.violations(config, problem, device):
            return Choice(config, f"default of {kernel.name}: {why} on {device.name}{damage}")
    for kernel in kernels:
        valid, rejected = kernel.configs(problem, device)
        if valid:
            reason = f"first configuration of {kernel.name} that fits {device.name}{damage}"
            return Choice(valid[0], reason)
    names, broken = ", ".join(k.name for k in kernels), "; ".join(rejected)
    raise ValueError(f"no configuration of {names} may run on {device.name}: {broken}")
