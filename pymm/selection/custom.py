"""Stored configurations of users' kernels: files `custom/<device>.yaml` in the user's directory,
records by kernel and sizes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pymm.core.device import Device
from pymm.core.errors import StoreError
from pymm.core.files import locked, replace_text
from pymm.core.inputs import BadInput, read_text
from pymm.kernels.custom import CustomConfig, CustomKernel, CustomProblem
from pymm.selection.records import (
    MEASURED_FIELDS,
    Environment,
    Record,
    device_facts,
    device_words,
    outdated_because,
    parse_config,
    parse_fraction,
)
from pymm.selection.store import FIX, MAX_BYTES, Reader, Table, dump, head_of

SCHEMA = 1

HEADER = """\
# Tuned configurations of users' kernels, written by pymm.tune.tune_kernel and read by
# pymm.tune.load_kernel. Under kernel and sizes: parameters, and what was measured (median time in
# microseconds, its spread, environment, digest of the kernel's source).
"""

_SIZES = re.compile(r"[a-z][a-z0-9_]{0,31}=[0-9]{1,10}")


@dataclass(frozen=True)
class CustomRecord(Record):
    """The best configuration of a user's kernel for one problem."""

    @property
    def order(self) -> tuple:
        """Sorts records by kernel, sizes and age."""
        return (*self.place, self.date, self.environment.tools)

    @property
    def place(self) -> tuple[str, str]:
        """The keys that it stands under in a file: kernel, and `columns=1000, rows=4096`."""
        sizes = ", ".join(f"{name}={value}" for name, value in self.problem.sizes)
        return self.problem.kernel, sizes

    def entry(self) -> dict[str, Any]:
        """What a file has there."""
        entry = super().entry()
        return {name: entry[name] for name in ("config", "measured")}


@dataclass(frozen=True)
class CustomChoice:
    """The configuration that a user's kernel is launched with, why, and its record if it has
    one.
    """

    config: CustomConfig
    reason: str
    record: CustomRecord | None = None


def choose_custom(
    kernel: CustomKernel,
    problem: CustomProblem,
    device: Device,
    environment: Environment,
    directory: Path,
) -> CustomChoice:
    """The stored configuration of a problem, one of this driver and compiler before any other, or
    the default. A record of another source, or that the declaration does not allow, is not used.
    Raises `StoreError`, and `ValueError` if the default breaks a rule.
    """
    why = f"nothing is tuned for {problem.slug} on {device.name}"
    own = [r for r in load_custom(device, directory) if r.problem == problem]
    for record in sorted(own, key=lambda r: bool(outdated_because(r, environment))):
        if rejected := unusable(kernel, record, problem, device):
            why = f"the stored configuration is not used: {rejected}"
            continue
        stale = outdated_because(record, environment)
        reason = f"tuned for {problem.slug}" + (f" ({stale})" if stale else "")
        return CustomChoice(kernel.placed(record.config, problem), reason, record)
    return CustomChoice(kernel.default_for(problem, device), f"the default: {why}")


def unusable(
    kernel: CustomKernel, record: CustomRecord, problem: CustomProblem, device: Device
) -> str:
    """Why a record must not be used, "" if it may be."""
    if record.digest != problem.digest:
        return f"the source of {kernel.name} changed"
    try:
        config = kernel.config(record.config.as_dict())
    except ValueError as error:
        return str(error)
    return "; ".join(kernel.violations(config, problem, device))


def load_custom(device: Device, directory: Path) -> tuple[CustomRecord, ...]:
    """All records of `device` in the user's `directory`. `StoreError` for a damaged file, and for
    one of another device.
    """
    path = _path(device, directory)
    table = _read(path)
    if table is None:
        return ()
    _require_same(table, device, path)
    return table.records


def put_custom(records: Iterable[CustomRecord], device: Device, directory: Path) -> Path:
    """Merge `records` into the user's file of `device` and return its path: as `store.put` does,
    also of a simulated device. Without records nothing is written, but all is checked.
    """
    records, path = list(records), _path(device, directory)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.with_name(path.name + ".lock")):
        table = _read(path)
        if table is not None:
            _require_same(table, device, path)
        if not records:
            tempfile.TemporaryFile(dir=path.parent).close()
            return path
        merged = {record.key: record for record in (*(table.records if table else ()), *records)}
        text = _render(Table(device_facts(device), tuple(merged.values())))
        if len(text.encode()) > MAX_BYTES:
            raise StoreError(f"{path} would be longer than {MAX_BYTES} bytes; {FIX}")
        _parse(text, str(path))  # nothing is written that could not be read back
        replace_text(path, text)
    return path


def _path(device: Device, directory: Path) -> Path:
    return Path(directory) / "custom" / f"{device.slug}.yaml"


def _require_same(table: Table, device: Device, path: Path) -> None:
    facts = device_facts(device)
    if table.device != facts:
        was, now = device_words(table.device), device_words(facts)
        raise StoreError(f"{path} belongs to {was}; this device is {now}; {FIX}")


def _read(path: Path) -> Table | None:
    try:
        text = read_text(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except (BadInput, OSError) as error:
        raise StoreError(f"{error}; {FIX}") from None
    return _parse(text, str(path))


def _render(table: Table) -> str:
    records: dict[str, dict[str, list]] = {}
    for record in sorted(table.records, key=lambda record: record.order):
        kernel, sizes = record.place
        records.setdefault(kernel, {}).setdefault(sizes, []).append(record.entry())
    return HEADER + dump(SCHEMA, table, records)


def _parse(text: str, path: str) -> Table:
    """The inverse of `_render`. For any other text `StoreError`, which names `path`, the line and
    what to do.
    """
    reader = Reader(text, path)
    _, device, environments, given = head_of(reader, (SCHEMA,))
    words, records = device_words(device), []
    for kernel, problems in reader.mapping(given, "records").items():
        for sizes, found in reader.mapping(problems, kernel).items():
            for node in reader.sequence(found, sizes):
                fields = reader.fields(node, "the record", {"config": dict, "measured": dict}, {})
                fields |= reader.fields(fields["measured"], "measured", MEASURED_FIELDS, {})
                config = reader.mapping(fields["config"], "config")
                fields["config"] = {k: reader.scalar(v, k, int) for k, v in config.items()}
                if fields["env"] not in environments:
                    unknown = f"environment {fields['env']!r} is not in the head of the file"
                    raise reader.error(node, unknown)
                try:
                    record = _record(kernel, sizes, fields, environments[fields["env"]])
                except ValueError as error:
                    raise reader.error(node, str(error)) from None
                records.append(replace(record, device=words, file=path))
    return Table(device, tuple(records))


def _record(
    kernel: str, sizes: str, fields: dict[str, Any], environment: Environment
) -> CustomRecord:
    pairs = sizes.split(", ")
    if not all(_SIZES.fullmatch(pair) for pair in pairs):
        raise ValueError(f"{sizes!r} is no list of sizes such as columns=1000, rows=4096")
    given = dict(pair.split("=") for pair in pairs)
    problem = CustomProblem(kernel, tuple(sorted((name, int(v)) for name, v in given.items())))
    config = parse_config(kernel, fields["config"], "cuda")
    seconds, spread = fields["us"] / 1e6, parse_fraction(fields["spread"])
    return CustomRecord(
        problem, config, seconds, spread, fields["date"], environment, fields["source"]
    )
