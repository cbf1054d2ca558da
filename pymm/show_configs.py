"""The command `pymm configs`: which devices are tuned, and what is tuned for one of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pymm.backends import open_device
from pymm.console import show_table, significant
from pymm.core.errors import NoDevice, StoreError
from pymm.selection import store
from pymm.selection.choose import tuned_directory
from pymm.selection.records import Environment, Record, source_changed
from pymm.selection.select import configs

DEVICES = ("device", "records", "yours", "shipped", "stale", "types", "newest")
RECORDS = ("problem", "configuration", "us", "spread", "GFLOP/s", "date", "file", "state")
_NUMBERS = ("records", "yours", "shipped", "stale", "us", "spread", "GFLOP/s")


@dataclass
class TunedDevice:
    """A device by its name, and its records: the user's and those shipped with pymm."""

    name: str
    yours: list[Record] = field(default_factory=list)
    shipped: list[Record] = field(default_factory=list)

    @property
    def records(self) -> list[Record]:
        """The user's come first."""
        return self.yours + self.shipped


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit code: 1 if a device is not there or a file is damaged."""
    parser = argparse.ArgumentParser(
        prog="pymm configs",
        description="Lists the devices that are tuned, or what is tuned for one of them. Stale are "
        "records whose kernel's source has changed; with --device also those of another driver "
        "or compiler.",
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a device: nvidia-h200, H200")
    parser.add_argument(
        "--device", help="one of this machine: cpu, cuda, cuda:1; says what of it is stale here"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if options.name is not None and options.device is not None:
        parser.error(f"NAME is {options.name!r} and --device {options.device!r}: give one of them")
    directory = tuned_directory()
    try:
        if options.device is not None:
            return _list_here(options.device, directory, options.json)
        devices, damage = tuned_devices(directory)
        for error in damage:
            print(f"pymm configs: {error}", file=sys.stderr)
        if options.name is None:
            _list_devices(devices, options.json)
        else:
            _list_one(find(options.name, devices), options.json)
        return 1 if damage else 0
    except (NoDevice, ValueError) as error:
        print(f"pymm configs: {error}", file=sys.stderr)
        return 1


def tuned_devices(directory: Path | None) -> tuple[list[TunedDevice], list[StoreError]]:
    """Every device with a file in the user's `directory` or among the shipped ones, by name; and
    what is wrong with the files that cannot be read.
    """
    found: dict[str, TunedDevice] = {}
    damage = []
    for path in store.files(directory):
        try:
            table = store.read(path)
        except StoreError as error:
            damage.append(error)
            continue
        if table is not None:
            name = str(table.device["name"])
            device = found.setdefault(name, TunedDevice(name))
            (device.yours if _is_users(path, directory) else device.shipped).extend(table.records)
    return [found[name] for name in sorted(found)], damage


def find(name: str, devices: list[TunedDevice]) -> TunedDevice:
    """The device with that name, or the only one whose name has it as a part; case, blanks and
    hyphens do not matter. `ValueError` if there is none, or several.
    """
    wanted = _plain(name)
    exact = [device for device in devices if _plain(device.name) == wanted]
    found = exact or [device for device in devices if wanted and wanted in _plain(device.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"{name!r} may be one of {len(found)}: {_names(found)}")
    if not devices:
        raise ValueError(f"no device {name!r}, for none is tuned yet: python -m pymm.tune")
    raise ValueError(f"no device {name!r} is tuned; there are {_names(devices)}")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())


def _names(devices: Iterable[TunedDevice]) -> str:
    return "; ".join(device.name for device in devices)


def _is_users(path: Path, directory: Path | None) -> bool:
    return directory is not None and path.parent == Path(directory)


def _list_devices(devices: list[TunedDevice], as_json: bool) -> None:
    rows = []
    for device in devices:
        records = device.records
        counts = len(records), len(device.yours), len(device.shipped)
        stale = sum(source_changed(record) != "" for record in records)
        types = " ".join(sorted({record.problem.dtype for record in records}))
        newest = max((record.date for record in records), default="")
        rows.append((device.name, *counts, stale, types, newest))
    if as_json or rows:
        _show(DEVICES, rows, f"Tuned devices: {len(rows)}", as_json)
    else:
        print("Nothing is tuned yet: python -m pymm.tune")


def _list_one(device: TunedDevice, as_json: bool) -> None:
    """A device that need not be here: then no record is current, each has its own tools."""
    rows = []
    for where, records in (("yours", device.yours), ("shipped", device.shipped)):
        for record in records:
            tools = " and driver ".join(filter(None, reversed(record.environment.tools)))
            rows.append(_row(record, where, source_changed(record) or f"with {tools}"))
    _show(RECORDS, rows, _title(device.name, rows), as_json)


def _list_here(spec: str, directory: Path | None, as_json: bool) -> int:
    backend = open_device(spec)
    environment = Environment.of(backend.device, backend.toolchain)
    rows = []
    for record, file, stale in configs(backend.device, directory, environment):
        where = "yours" if _is_users(Path(file), directory) else "shipped"
        rows.append(_row(record, where, stale or "current"))
    if as_json or rows:
        _show(RECORDS, rows, _title(backend.device.name, rows), as_json)
    else:
        print(f"Nothing is tuned for {backend.device.name} yet: python -m pymm.tune")
    return 0


def _title(name: str, rows: list[tuple]) -> str:
    return f"{name}: {len(rows)} record{'s' * (len(rows) != 1)}"


def _row(record: Record, where: str, state: str) -> tuple[str, ...]:
    problem, gflops = record.problem, record.problem.flops / record.seconds / 1e9
    times = (significant(record.seconds * 1e6), f"{record.spread:.1%}", significant(gflops))
    return (problem.slug, record.config.slug, *times, record.date, where, state)


def _show(columns: tuple[str, ...], rows: list[tuple], title: str, as_json: bool) -> None:
    if as_json:
        print(json.dumps([dict(zip(columns, row, strict=True)) for row in rows], indent=2))
    else:
        show_table(columns, rows, title, numbers=_NUMBERS)
