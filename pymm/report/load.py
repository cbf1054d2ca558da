"""The files of a device, read and validated: what cannot be used is reported, the rest is kept.
`describe` writes one of them, `device.json`.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.inputs import (
    BadInput,
    Json,
    few,
    is_slug,
    number,
    number_field,
    one_line,
    read_json,
    read_table,
    read_text,
    shown,
    text_field,
)
from pymm.core.problem import Problem
from pymm.measure import results
from pymm.selection import store
from pymm.selection.records import Record, StoreError

#: The kinds of CSV files, each recognised by its columns; the first match counts.
KINDS: dict[str, frozenset[str]] = {
    "suites": frozenset({"suite", "step", "quantity", "name", "m", "n", "k", "outcome"}),
    "trials": frozenset({"problem", "kernel", "config", "role", "outcome"}),
    "classes": frozenset({"class", "dtype", "layout", "m", "n", "k", "kernel", "us"}),
    "blocked": frozenset({"part", "name", "devices", "dtype", "m", "n", "k", "value", "unit"}),
    "distributed": frozenset({"engine", "processes", "dtype", "m", "n", "k", "received"}),
    "tune_devices": frozenset({"devices", "compilers", "trials", "rate", "busy"}),
    "unseen": frozenset({"dtype", "m", "n", "k", "chosen_us", "of_fastest"}),
    "bench": frozenset({"dtype", "m", "n", "k", "name", "seconds"}),
    "calls": frozenset({"dtype", "m", "n", "k", "arrays", "call", "us"}),
}

#: The newest schema of each kind that this module reads.
SCHEMAS = {
    "suites": results.EXPERIMENTS.number,
    "trials": results.TRIALS.number,
    "classes": results.CLASSES.number,
    "bench": results.KERNELS.number,
    "blocked": results.BLOCKED.number,
    "distributed": results.DISTRIBUTED.number,
}

#: The columns of each kind that a report shows; a file without one of them is reported as older.
SHOWN = {
    "suites": "variant config transfer seconds gflops ratio speedup error error_inf value power_w",
    "trials": "time seconds config",
    "classes": "config reason outcome spread rounds gflops peak cublas_us cublaslt_us ratio error "
    "rms opponent_rms power_w",
    "bench": "variant config outcome spread rounds gflops peak ratio registers shared",
    "blocked": "outcome seconds gflops ratio bytes_in bytes_out detail",
    "distributed": "outcome grid mean gflops speedup ratio bound error_inf detail",
}

#: Experiments that are counted in the simulator and are valid for every device.
ON_EVERY_DEVICE = ("o2-counts",)

#: Columns of measured numbers, besides the libraries' times, which end in `_us`.
NUMBERS = frozenset(
    "us seconds mean spread rounds repeats void gflops ratio peak error rms opponent_rms error_inf "
    "speedup power_w registers spills shared of_fastest of_default quartile_1 quartile_3 "
    "devices compilers trials rate busy twice bytes_in bytes_out bound processes panel received "
    "planned predicted sequential fastest handed_out".split()
)

#: Columns of names, which appear in legends and titles, and the maximal length of a name.
NAMES = frozenset(
    "class name kernel variant suite step quantity transfer arrays call role outcome file part "
    "unit engine product grid block mpi blas".split()
)
MAX_NAME = 80

#: Fields of `device.json`: texts, whole numbers and rates.
TEXTS = ("name", "kind", "capability")
COUNTS = ("cores", "vector_bytes", "sms", "l2_bytes")
RATES = ("clock_hz", "bandwidth")


@dataclass(frozen=True)
class Row:
    """One line of a CSV, of a kind in `KINDS`; missing columns read as empty."""

    kind: str
    file: str
    cells: Mapping[str, str]
    line: int = 0

    def text(self, name: str) -> str:
        """A field as text, "" if there is none."""
        return self.cells.get(name) or ""

    def number(self, name: str) -> float:
        """A field as a number of at least 0, NaN if it is none."""
        value = number(self.text(name))
        return value if value >= 0 else math.nan

    @cached_property
    def problem(self) -> Problem | None:
        """What was computed; None if the row describes no valid problem."""
        try:
            if self.text("problem"):
                return parse_problem(self.text("problem"))
            # rows of classes name the operation by their class: syrk-large
            symmetric = self.text("class").partition("-")[0] == "syrk"
            return parse_problem(
                f"{self.text('op') or ('syrk' if symmetric else 'gemm')}-"
                f"{self.text('dtype')}-{self.text('layout') or 'NN'}-"
                f"{self.text('m')}x{self.text('n')}x{self.text('k')}-b{self.text('batch') or 1}"
            )
        except (ValueError, NotImplementedError):
            return None

    @property
    def usable(self) -> bool:
        """Whether it describes a valid product, or none at all, as copies do."""
        copies = self.kind == "blocked" and not self.text("dtype")
        return copies or self.problem is not None

    @property
    def seconds(self) -> float:
        """The median time; NaN if nothing was timed."""
        return self.number("seconds") if self.text("seconds") else self.number("us") * 1e-6

    @property
    def valid(self) -> bool:
        """Whether the result was correct and timed."""
        return self.text("outcome") in ("ok", "") and self.seconds > 0


@dataclass
class Results:
    """Everything that was read of one device. `notices` says what was left out, and why; `absent`
    names the experiments that do not apply to this device; `remarks` has the notes on `NAME.csv`
    from `NAME-note.txt`.
    """

    device: Mapping[str, object]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    files: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)

    @property
    def slug(self) -> str:
        """The device's name in file names."""
        return str(self.device["slug"])

    @property
    def place(self) -> str:
        """The folder that the commands of a report write to."""
        return f"benchmarks/results/{self.slug}"

    def of(self, kind: str) -> list[Row]:
        """The rows of one kind, in the order of the files."""
        return self.rows.get(kind, [])


_EXTENT = "([0-9]{1,10})"
_PROBLEM = re.compile(
    rf"(?:([a-z_]{{1,20}})-)?([a-z0-9_]{{1,20}})-([NT])([NT])-{_EXTENT}x{_EXTENT}x{_EXTENT}"
    rf"(?:-b{_EXTENT})?"
)


def parse_problem(slug: str) -> Problem:
    """The inverse of `Problem.slug`, for products that are not empty. `ValueError` or
    `NotImplementedError` for invalid ones.
    """
    match = _PROBLEM.fullmatch(slug)
    if not match:
        raise ValueError(f"{shown(slug)} is not a problem such as f32-NN-1024x1024x64")
    op, dtype, a, b, *extents = match.groups()
    m, n, k, batch = (int(extent or 1) for extent in extents)
    found = Problem(m, n, k, dtype, a == "T", b == "T", batch, op or "gemm")
    if not found.flops:
        raise ValueError(f"{shown(slug)} is an empty product")
    return found


def read_device(folder: Path, records: Path | None = None) -> Results:
    """Read all files of a device in `folder`, and its tuned configurations in `records`. The device
    is that of the folder's name, or else of most rows. `FileNotFoundError` if there is no such
    folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder of measurements")
    notices: list[str] = []
    files = {path: list(_read(path, notices)) for path in sorted(folder.glob("*.csv"))}
    slug = _device_of(folder, [row for rows in files.values() for row in rows])
    found = Results({"slug": slug, "name": slug}, notices=notices)
    for path, rows in files.items():
        name = one_line(path.name)
        right = list(_usable(name, rows, slug, notices))
        if right:
            found.files.append(name)
        found.absent |= {r.text("suite") for r in rows if r.text("outcome") == "not_applicable"}
        for row in right:
            found.rows.setdefault(row.kind, []).append(row)
        if right:
            _read_note(path.with_name(f"{path.stem}-note.txt"), name, found)
    if not found.rows:
        notices.append(f"{one_line(folder.name)}: no CSV file here has a row that can be shown")
    if records is not None:
        _read_records(records / f"{slug}.yaml", found)
    _read_facts(folder / NAME, found)
    return found


def _device_of(folder: Path, rows: Sequence[Row]) -> str:
    """The device of a folder. `BadInput` if neither its rows nor its name say which."""
    counts = Counter(row.text("device") for row in rows if row.text("device"))
    if folder.name in counts:
        return folder.name
    if counts:
        return counts.most_common(1)[0][0]
    if not is_slug(folder.name):
        raise BadInput(
            f"{one_line(str(folder))}: no row here names its device, and the folder's name is not "
            "one (a-z, 0-9 and -, at most 64): rename the folder"
        )
    return folder.name


def _read_note(path: Path, name: str, found: Results) -> None:
    """Read the note on a file."""
    try:
        found.remarks.append(f"Of {name}: {one_line(read_text(path)).strip()}")
    except FileNotFoundError:
        pass
    except BadInput as failure:
        found.notices.append(f"{failure}, left out")


def _read(path: Path, notices: list[str]) -> Iterator[Row]:
    """The rows of one file, of any device; its faults are added to `notices`."""
    name = one_line(path.name)
    try:
        table = read_table(path)
    except (BadInput, OSError) as failure:
        notices.append(f"{_here(str(failure), path)}, left out")
        return
    cells = [line for _, line in table.rows]
    kind = next((kind for kind, needed in KINDS.items() if needed <= set(table.columns)), None)
    faults = [_here(fault, path) for fault in table.faults]
    if not cells or kind is None:
        what = "no row" if not cells else "no columns of a known kind"
        notices += [f"{name}: has {what}, left out", *few(faults)]
        return
    notices += _schema_notices(name, kind, table.columns, cells)
    for line, row in table.rows:
        wrong = list(_wrong(row))
        faults += [f"{name}, line {line}: {message}" for message, _ in wrong]
        if not any(fatal for _, fatal in wrong):
            yield Row(kind, name, row, line)
    notices += few(faults)


def _here(message: str, path: Path) -> str:
    """A message about a file without its folder, which is the same for all files of a report."""
    return message.replace(one_line(str(path)), one_line(path.name), 1)


def _wrong(row: Mapping[str, str]) -> Iterator[tuple[str, bool]]:
    """What is wrong with a row, and whether it cannot be used at all."""
    if row.get("device") and not is_slug(row["device"]):
        yield (
            f"device {shown(row['device'])} is no name of one (a-z, 0-9 and -, at most 64); "
            "left out",
            True,
        )
    for column, text in row.items():
        if column in NAMES and len(text) > MAX_NAME:
            yield f"{column} has more than {MAX_NAME} characters; left out", True
        if text and (column in NUMBERS or column.endswith("_us")) and not number(text) >= 0:
            yield f"{column} is {shown(text)}, no measured number; read as empty", False


def _usable(name: str, rows: Sequence[Row], slug: str, notices: list[str]) -> Iterator[Row]:
    """The rows of the device with a valid product. Experiments that do not apply to the device are
    noted with their reason.
    """
    own = [r for r in rows if r.text("device") in (slug, "") or r.text("suite") in ON_EVERY_DEVICE]
    absent = [r for r in own if r.text("outcome") == "not_applicable"]
    notices += dict.fromkeys(f"does not apply: {row.text('detail')}" for row in absent)
    own = [row for row in own if row.text("outcome") != "not_applicable"]
    others = {r.text("device") for r in rows if r.text("suite") not in ON_EVERY_DEVICE} - {slug, ""}
    others_notices = [
        f"{name}: rows of another device, {other}, left out" for other in sorted(others)
    ]
    notices += few(others_notices)
    right = [row for row in own if row.usable]
    if len(right) < len(own):
        first = next(row.line for row in own if not row.usable)
        count = len(own) - len(right)
        notices.append(
            f"{name}: {count} rows describe no valid product (first line {first}), left out"
        )
    yield from right


def _schema_notices(
    name: str, kind: str, columns: Sequence[str], cells: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    if kind not in SCHEMAS:
        return
    newest = SCHEMAS[kind]
    seen = {line.get("schema") or "" for line in cells}
    numbers = {int(text) for text in seen if re.fullmatch("[0-9]{1,9}", text)}
    missing = [column for column in SHOWN[kind].split() if column not in columns]
    if any(number > newest for number in numbers):
        yield (
            f"{name}: schema {max(numbers)} is newer than {newest}, the newest that this pymm "
            "reads; unknown columns are left out"
        )
    elif missing:
        old = f"of schema {min(numbers)}" if numbers else "of no schema"
        yield f"{name} is older, {old}, without {', '.join(missing)}"


def _read_records(path: Path, found: Results) -> None:
    try:
        table = store.read(path)
    except StoreError as failure:
        found.notices.append(f"tuned configurations left out: {failure}")
        return
    if table is None:
        return
    facts = dict(table.device)
    if Device(str(facts["name"]), str(facts["kind"])).slug != found.slug:
        found.notices.append(f"{path.name}: records of another device, {facts['name']}, left out")
        return
    found.device = {**found.device, **facts}
    found.records += table.records
    found.files.append(path.name)


def _read_facts(path: Path, found: Results) -> None:
    """Read the peak rates and sizes of the device from its `device.json`."""
    if not path.exists():
        found.notices.append(
            "device.json is missing: peak rates are only those that the rows imply"
        )
        return
    try:
        facts = device_facts(read_json(path), found.slug)
    except (OSError, BadInput) as failure:
        found.notices.append(f"{_here(str(failure), path)}, left out")
        return
    found.device = {**found.device, **facts}
    found.files.append(path.name)


def device_facts(file: Json, slug: str) -> dict[str, object]:
    """The fields of `device.json`. `BadInput` for another device's file and for a field of the
    wrong type.
    """
    facts = file.data
    if not isinstance(facts, dict):
        raise file.error("is not a JSON object")
    if facts.get("slug", slug) != slug:
        raise file.error(f"is of another device, {shown(facts['slug'])}", "slug")
    found: dict[str, object] = {"slug": slug}
    for name, value in facts.items():
        try:
            if name in TEXTS:
                found[name] = text_field(value, name)
            elif name in COUNTS:
                found[name] = int(number_field(value, name, 1))
            elif name in RATES:
                found[name] = number_field(value, name)
            elif name == "peak_flops":
                found[name] = _peaks_field(value)
        except ValueError as wrong:
            raise file.error(str(wrong), name) from None
    return found


def _peaks_field(value: object) -> dict[str, float]:
    if not isinstance(value, dict) or not set(value) <= set(DTYPES):
        raise ValueError(f"peak_flops is {shown(value)}, not rates by type ({', '.join(DTYPES)})")
    return {name: number_field(rate, f"peak_flops of {name}") for name, rate in value.items()}


NAME = "device.json"


def facts_of(device: Device) -> dict[str, object]:
    """Name, sizes and peak rates: operations and bytes per second, sizes in bytes."""
    facts: dict[str, object] = {"name": device.name, "slug": device.slug, "kind": device.kind}
    if device.shares_host_cores:
        facts |= {"cores": device.sms, "vector_bytes": device.vector_bytes}
    else:
        major, minor = device.capability
        facts |= {"capability": f"{major}.{minor}", "sms": device.sms}
    limits = {name: getattr(device, name) for name in ("clock_hz", "bandwidth", "l2_bytes")}
    facts |= {name: value for name, value in limits.items() if value}
    return facts | {
        "peak_flops": {name: float(f"{v:.6g}") for name, v in device.peak_flops.items()}
    }


def describe(device: Device, results: Path) -> Path:
    """Write `device.json` into the device's folder of `results`. Returns its path."""
    path = results / device.slug / NAME
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(facts_of(device), indent=1) + "\n", encoding="utf-8")
    return path
