"""Which configuration a problem gets, and why: one tuned for this problem, else one tuned for a
near problem, else a default.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pymm.console import duration, significant
from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.errors import StoreError
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, kernels_for, survey
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
from pymm.selection.records import Environment, Record, outdated_because, unusable_because
from pymm.selection.store import energy_files, load_file, record_files


@dataclass(frozen=True)
class Choice:
    """The configuration to run, a sentence that says why, and the record that it comes from, if it
    comes from one.
    """

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
    """The configuration for `problem`, of any kernel or of the one named `kernel`.

    The first of these that there is:

    1. A current record of this problem.
    2. A current record of one of the nearest problems, if the cost model expects its configuration
       to be clearly faster than the default. Near is measured in (log m, log n, log k); another
       layout, alignment or dtype of the same size adds to the distance.
    3. As 1 and 2, among the records made with another driver or compiler.
    4. The default: that of the highest kernel for this problem, or that of a lower kernel which
       records compare with it, if the cost model expects that to be clearly faster.

    Where the device was surveyed (kernels/survey.py), the default of the highest kernel is the
    configuration with the least expected time of all kernels, and in 2 and 3 only records of the
    same extents compete with it, if they took at most a tenth longer than is expected of the
    default of their own problem.

    A record counts only if its configuration obeys every rule for `problem` on `device`. A record
    of a lower kernel counts only where the highest was measured on the same problem, and if
    somewhere the lower one was about as fast: a kernel tuned by itself may be far slower than the
    others untuned. Where the device was surveyed, one of this very problem also counts if it took
    at most a tenth longer than is expected of the default.

    A damaged file is left out, with one warning, and the reason names it. `ValueError` for an
    unknown kernel and for one that cannot run here at all; `NotImplementedError` for a dtype that
    no kernel here computes in.
    """
    wanted = None if kernel is None else find_kernel(kernel, device.kernel_backend)
    files, damage = tuned_files.readable(device, directory)
    highest = wanted or _highest(problem, device)
    none_near = False
    for records in tuned_files.usable(device, environment, files):
        found = _nearest(problem, records)
        found = [one for one in found if wanted in (None, one[0].config.kernel)]
        found = competitive_records(problem, device, highest, found)
        defaults = _defaults(problem, device, highest, found)
        choice = _of_records(problem, device, found, defaults, wanted)
        if choice is not None:
            return replace(choice, reason=choice.reason + damage)
        none_near |= bool(found)
    return _default(problem, device, wanted, none_near, damage)


def select_thriftiest(
    problem: Problem,
    device: Device,
    directory: Path | None,
    environment: Environment,
    kernel: str | int | None = None,
) -> Choice | None:
    """The configuration that was measured to take the least energy for this very problem; one of
    the present driver and compiler before any other. None if there is none, of `kernel` if that is
    given. What `select` finds without measurements saves time, and nothing is known of its energy.
    """
    wanted = None if kernel is None else find_kernel(kernel, device.kernel_backend)
    files, damage = tuned_files.read_all(device, energy_files(device, directory))
    own = [
        (record, outdated_because(record, environment))
        for record in _in_order(device, files)
        if record.problem == problem and record.joules > 0
    ]
    for record, changes in sorted(own, key=lambda one: (bool(one[1]), one[0].joules)):
        kernel, config = record.config.kernel, record.config
        if wanted in (None, kernel) and not kernel.violations(config, problem, device):
            why = f"least energy, {significant(record.joules * 1e3)} mJ: "
            reason = why + _reason(problem, record, device, changes) + damage
            return Choice(config, reason, record)
    return None


def _of_records(
    problem: Problem,
    device: Device,
    found: list[tuple[Record, str]],
    defaults: list[Config],
    wanted: Kernel | None,
) -> Choice | None:
    """The choice among records, nearest first: the fastest of this problem, else what transfers
    from another.
    """
    changes = dict(found)
    exact = [r for r, _ in found if r.problem == problem]
    for record in sorted(exact, key=lambda record: record.seconds):
        if not record.config.kernel.violations(record.config, problem, device):
            return Choice(record.config, _reason(problem, record, device, changes[record]), record)
    nearest: dict[Problem, Record] = {}
    for record, _ in found:
        nearest.setdefault(record.problem, record)  # the fastest of each problem comes first
    chosen = transferred(problem, device, list(nearest.values()), defaults, wanted)
    if chosen is None:
        return None
    config, record = chosen
    if record is None:
        return Choice(config, _why_lower(config, defaults[0], problem, device))
    reason = _reason(problem, record, device, changes[record])
    if config != record.config:
        reason += f", k in {config.as_dict()['SPLIT']} parts"
    made = defaults and defaults[0].kernel.adapts_to(problem, device)
    if made and device.is_gpu and log_distance(problem, record.problem):
        usual = min(predicted_seconds(c, problem, device) for c in defaults)
        part = predicted_seconds(config, problem, device) / usual
        reason += f"; expected to take {part:.2f} of the default's time"
    return Choice(config, reason, record)


def _defaults(
    problem: Problem, device: Device, highest: Kernel, found: list[tuple[Record, str]]
) -> list[Config]:
    """The default of the highest kernel, then those of the kernels that records compare with it and
    that make their defaults for each problem.
    """
    kernels = {r.config.kernel_name: r.config.kernel for r, _ in found}
    others = (k for k in kernels.values() if k.adapts_to(problem, device) and k != highest)
    configs = (untuned(kernel, problem, device) for kernel in (highest, *others))
    return [config for config in configs if config is not None]


def configs(
    device: Device, directory: Path | None, environment: Environment
) -> list[tuple[Record, str, str]]:
    """What is tuned for `device`: each record, its file, and why it is stale ("" if it is current).
    Damaged files are left out, with a warning.
    """
    rows = []
    for record in itertools.chain.from_iterable(tuned_files.readable(device, directory)[0]):
        stale = unusable_because(record, device) or outdated_because(record, environment)
        rows.append((record, record.file, stale))
    return rows


# Records


#: The records of one file.
File = tuple[Record, ...]

#: By dtype, records that may be used, each with what has changed since it was made ("" if nothing).
Usable = dict[str, list[tuple[Record, str]]]


class TunedFiles:
    """The files of tuned configurations as this process sees them: each as it is now, or, while
    they are frozen, as it was when it was first read.
    """

    def __init__(self) -> None:
        self._frozen: dict[Path, File] | None = None
        self._usable: dict[tuple[Device, Environment], tuple[tuple[File, ...], list[Usable]]] = {}
        self._warnings: set[str] = set()

    def freeze(self, frozen: bool) -> None:
        """From now on a file counts as it is when it is next read, whatever it holds later;
        `freeze(False)` ends that.
        """
        self._frozen = {} if frozen else None

    def load(self, device: Device, path: Path) -> File:
        """The records of one file. `StoreError` if it is damaged or another device's."""
        frozen = self._frozen
        if frozen is None:
            return load_file(device, path)
        if path not in frozen:
            frozen.setdefault(path, load_file(device, path))
        return frozen[path]

    def readable(self, device: Device, directory: Path | None) -> tuple[tuple[File, ...], str]:
        """The files that can be read, the user's first, and a remark that names the others. The
        first time, a file that cannot be read is a warning, too.
        """
        return self.read_all(device, record_files(device, directory))

    def read_all(self, device: Device, paths: Iterable[Path]) -> tuple[tuple[File, ...], str]:
        """The same of these files."""
        found, damage = [], ""
        for path in paths:
            try:
                found.append(self.load(device, path))
            except StoreError as error:
                damage += f" (not read: {error})"
                self._warn_once(f"tuned configurations not read: {error}")
        return tuple(found), damage

    def usable(
        self, device: Device, environment: Environment, files: tuple[File, ...]
    ) -> list[Usable]:
        """What may be used of the files: records made with the present driver and compiler, then
        those made with others. Of several records of one problem and kernel the user's comes before
        a shipped one and a newer before an older one; the rest are left out. Files have thousands
        of records, so the result is kept until one of them changes.
        """
        key = device, environment
        before, usable = self._usable.get(key, ((), [{}, {}]))
        if [*map(id, before)] != [*map(id, files)]:
            taken, usable = set(), [{}, {}]
            for record in _in_order(device, files):
                changes = outdated_because(record, environment)
                name = (bool(changes), record.problem, record.config.kernel_name)
                if name not in taken:
                    taken.add(name)
                    of_dtype = usable[bool(changes)].setdefault(record.problem.dtype, [])
                    of_dtype.append((record, changes))
            self._usable[key] = files, usable
        return usable

    def _warn_once(self, text: str) -> None:
        if text not in self._warnings:
            warnings.warn(text, UserWarning, stacklevel=5)
            self._warnings.add(text)


#: The files of this process.
tuned_files = TunedFiles()


def _in_order(device: Device, files: tuple[File, ...]) -> Iterator[Record]:
    """The records that may be used on `device`, file by file, the newest of each file first."""
    for file in files:
        for record in sorted(file, key=lambda record: record.date, reverse=True):
            if not unusable_because(record, device):
                yield record


def _nearest(problem: Problem, records: Usable) -> list[tuple[Record, str]]:
    """Records whose configurations may serve `problem`, nearest first."""
    found = [
        one
        for dtype, of_type in records.items()
        if dtypes_share_tiles(problem.dtype, dtype)
        for one in of_type
        if transferable(problem, one[0].problem, one[0].config.backend)
    ]
    return sorted(found, key=lambda one: rank(problem, one[0]))


# Reasons


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


def _why_lower(config: Config, first: Config, problem: Problem, device: Device) -> str:
    """Why the default of another kernel than the highest."""
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
    """The highest kernel whose default may run here, else the highest of all."""
    kernels = kernels_for(problem, device)[::-1]
    if not kernels:
        raise _no_kernel(problem, device)
    for kernel in kernels:
        if untuned(kernel, problem, device) is not None:
            return kernel
    return kernels[0]


def _no_kernel(problem: Problem, device: Device) -> NotImplementedError:
    """The error for a dtype that no kernel here computes in."""
    runs = [dtype for dtype in DTYPES if kernels_for(replace(problem, dtype=dtype), device)]
    there = ", ".join(runs) or "nothing"
    return NotImplementedError(
        f"no kernel of pymm computes in {problem.dtype} on {device.name}; there it has {there}"
    )


def _default(
    problem: Problem, device: Device, wanted: Kernel | None, none_near: bool, damage: str
) -> Choice:
    """The default of the highest kernel that may run here, or the first configuration that may.
    `none_near` says that there were records, but none near enough.
    """
    kernels = [k for k in kernels_for(problem, device)[::-1] if wanted in (None, k)]
    if not kernels:
        what = "no kernel of pymm" if wanted is None else f"{wanted.name} cannot"
        verb = "computes" if wanted is None else "compute"
        raise NotImplementedError(f"{what} {verb} in {problem.dtype} on {device.name}")
    for kernel in kernels:
        config = untuned(kernel, problem, device)
        if config is not None:
            return Choice(config, _why_untuned(config, problem, device, none_near) + damage)
    for kernel in kernels:
        valid, rejected = kernel.configs(problem, device)
        if valid:
            reason = f"first configuration of {kernel.name} that fits {device.name}{damage}"
            return Choice(valid[0], reason)
    names, broken = ", ".join(k.name for k in kernels), "; ".join(rejected)
    raise ValueError(f"no configuration of {names} may run on {device.name}: {broken}")


def _why_untuned(config: Config, problem: Problem, device: Device, none_near: bool) -> str:
    kernel = config.kernel
    why = f"nothing tuned {'near enough ' if none_near else ''}for {problem.dtype}"
    if not device.times_are_real:
        why = "in the simulator"
    made = kernel.adapts_to(problem, device) or config == kernel.default_for(problem, device)
    what = "default" if made else "cost model's choice"
    reason = f"{what} of {kernel.name}: {why} on {device.name}"
    surveyed = survey.quickest(kernel, problem, device)
    if surveyed is not None and surveyed[1] == config:
        expected = duration(surveyed[0] * 1e-6, 3)
        where = survey.survey_of(problem, device).where
        there = "" if where == device.slug else f" on {where}"
        reason += f"; by measured times of similar products{there} expected to take {expected}"
    return reason
