"""Files of measurements, read with distrust: what cannot be used is named and the rest is kept."""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pymm import bench, contest, journal, store
from pymm.device import Device
from pymm.problem import Problem
from pymm.records import Record, StoreError
from pymm.report.describing import NAME
from pymm.suites import declaration

#: What a CSV holds, by columns that no other kind has together; the first that fits counts.
KINDS: dict[str, frozenset[str]] = {
    "suites": frozenset({"suite", "step", "quantity", "name", "m", "n", "k", "outcome"}),
    "trials": frozenset({"problem", "kernel", "config", "role", "outcome"}),
    "classes": frozenset({"class", "dtype", "layout", "m", "n", "k", "kernel", "us"}),
    "unseen": frozenset({"dtype", "m", "n", "k", "chosen_us", "of_fastest"}),
    "bench": frozenset({"dtype", "m", "n", "k", "name", "seconds"}),
    "calls": frozenset({"dtype", "m", "n", "k", "arrays", "call", "us"}),
}

#: Newest schema of each kind that this module knows.
SCHEMAS = {
    "suites": declaration.SCHEMA,
    "trials": journal.SCHEMA,
    "classes": contest.SCHEMA,
    "bench": bench.SCHEMA,
}

#: What a report shows of each kind; a file without one of these is told to be older.
SHOWN = {
    "suites": "variant config transfer seconds gflops ratio speedup error error_inf value power_w",
    "trials": "time seconds config",
    "classes": "config reason outcome spread rounds gflops peak cublas_us cublaslt_us ratio error "
    "rms opponent_rms power_w",
    "bench": "variant config outcome spread rounds gflops peak ratio registers shared",
}

#: Experiments that are counted in the simulator and hold for every device.
ANYWHERE = ("o2-counts",)

#: A file beyond it is not one of ours, and a page of it would not be read.
MAX_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Row:
    """One line of a CSV, of the kind that `KINDS` names; what it lacks reads as empty."""

    kind: str
    file: str
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        """A field as it stands, "" if there is none."""
        return self.cells.get(name) or ""

    def number(self, name: str) -> float:
        """A field as a number, NaN if it is none."""
        try:
            return float(self.text(name))
        except ValueError:
            return math.nan

    @cached_property
    def problem(self) -> Problem | None:
        """What was computed; None if the row spells no problem of this pymm."""
        try:
            if self.text("problem"):
                return parse_problem(self.text("problem"))
            # rows of classes name the operation by their class: syrk-large
            symmetric = self.text("class").partition("-")[0] == "syrk"
            return parse_problem(
                f"{self.text('op') or ('syrk' if symmetric else 'gemm')}-"
                f"{self.text('dtype')}-{self.text('layout') or 'NN'}-"
                f"{self.text('m')}x{self.text('n')}x{self.text('k')}"
            )
        except (ValueError, NotImplementedError):
            return None

    @property
    def seconds(self) -> float:
        """The median time; NaN if nothing was timed."""
        return self.number("seconds") if self.text("seconds") else self.number("us") * 1e-6

    @property
    def sound(self) -> bool:
        """True if the row has a right result's time."""
        return self.text("outcome") in ("ok", "") and self.seconds > 0


@dataclass
class Findings:
    """Everything that was read of one device. `notices` says what was left out, and why; `absent`
    names the experiments that this device cannot have; `remarks` is what whoever measured wrote
    beside it, in `NAME-note.txt` of `NAME.csv`.
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
        """Where the commands of a page write what they measure."""
        return f"benchmarks/results/{self.slug}"

    def of(self, kind: str) -> list[Row]:
        """The rows of one kind, in the order of the files."""
        return self.rows.get(kind, [])


def parse_problem(slug: str) -> Problem:
    """The inverse of `Problem.slug`. `ValueError` or `NotImplementedError` if it spells none."""
    parts = slug.split("-")
    batch = int(parts.pop()[1:]) if parts[-1][:1] == "b" and parts[-1][1:].isdigit() else 1
    if len(parts) < 3 or parts[-2] not in ("NN", "NT", "TN", "TT"):
        raise ValueError(f"{slug!r} spells no problem, such as f32-NN-1024x1024x64")
    m, n, k = (int(extent) for extent in parts[-1].split("x"))
    layout, dtype, op = parts[-2], parts[-3], "-".join(parts[:-3]) or "gemm"
    return Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", batch, op)


def read_device(folder: Path, records: Path | None = None) -> Findings:
    """All that `folder` holds of its device, and the YAML file of that device in `records`. The
    device is the one that the folder is named as, or else that of most rows. `FileNotFoundError` if
    there is no such folder.
    """
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is no folder of measurements")
    notices: list[str] = []
    files = {path.name: list(_read(path, notices)) for path in sorted(folder.glob("*.csv"))}
    slug = _device_of(folder.name, [row for rows in files.values() for row in rows])
    found = Findings({"slug": slug, "name": slug}, notices=notices)
    for name, rows in files.items():
        right = list(_usable(name, rows, slug, notices))
        if right:
            found.files.append(name)
        found.absent |= {r.text("suite") for r in rows if r.text("outcome") == "not_applicable"}
        for row in right:
            found.rows.setdefault(row.kind, []).append(row)
        note = folder / f"{name.removesuffix('.csv')}-note.txt"
        if right and note.exists():
            text = note.read_text(encoding="utf-8", errors="replace")
            found.remarks.append(f"Of {name}: {' '.join(text.split())}")
    if not found.rows:
        notices.append(f"{folder.name}: no CSV here has a row that can be shown")
    if records is not None:
        _read_records(records / f"{slug}.yaml", found)
    _read_facts(folder / NAME, found)
    return found


def _device_of(name: str, rows: Sequence[Row]) -> str:
    counts = Counter(row.text("device") for row in rows if row.text("device"))
    return name if name in counts or not counts else counts.most_common(1)[0][0]


def _read(path: Path, notices: list[str]) -> Iterator[Row]:
    """The rows of one file, whatever device they are of; what is wrong with it goes into
    `notices`.
    """
    name = path.name
    try:
        if path.stat().st_size > MAX_BYTES:
            notices.append(f"{name}: longer than {MAX_BYTES >> 20} MiB, left out")
            return
        with open(path, encoding="utf-8", newline="") as file:
            lines = csv.DictReader(file)
            columns, cells = lines.fieldnames or (), list(lines)
    except (OSError, UnicodeDecodeError, csv.Error) as failure:
        notices.append(f"{name}: cannot be read ({failure}), left out")
        return
    kind = next((kind for kind, needed in KINDS.items() if needed <= set(columns)), None)
    if not cells or kind is None:
        what = "no row" if not cells else "the columns of no table that this pymm knows"
        notices.append(f"{name}: has {what}, left out")
        return
    notices += _schema_notices(name, kind, columns, cells)
    yield from (Row(kind, name, line) for line in cells)


def _usable(name: str, rows: Sequence[Row], slug: str, notices: list[str]) -> Iterator[Row]:
    """The rows that are of the device and spell a product; what an experiment cannot have there is
    noted in its own words.
    """
    own = [r for r in rows if r.text("device") in (slug, "") or r.text("suite") in ANYWHERE]
    absent = [r for r in own if r.text("outcome") == "not_applicable"]
    notices += dict.fromkeys(f"not here: {row.text('detail')}" for row in absent)
    own = [row for row in own if row not in absent]
    others = {r.text("device") for r in rows if r.text("suite") not in ANYWHERE} - {slug, ""}
    for other in sorted(others):
        notices.append(f"{name}: rows of another device, {other}, left out")
    right = [row for row in own if row.problem is not None]
    if len(right) < len(own):
        notices.append(f"{name}: {len(own) - len(right)} rows spell no product, left out")
    yield from right


def _schema_notices(
    name: str, kind: str, columns: Sequence[str], cells: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    if kind not in SCHEMAS:
        return
    newest = SCHEMAS[kind]
    seen = {line.get("schema") or "" for line in cells}
    numbers = {int(text) for text in seen if text.isdigit()}
    missing = [column for column in SHOWN[kind].split() if column not in columns]
    if any(number > newest for number in numbers):
        yield (
            f"{name}: schema {max(numbers)} is newer than {newest}, which this pymm reads; "
            "columns that it does not know are left out"
        )
    elif missing:
        old = f"of schema {min(numbers)}" if numbers else "of no schema"
        yield f"{name} is older, {old}: it has no {', '.join(missing)}"


def _read_records(path: Path, found: Findings) -> None:
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


def _read_facts(path: Path, found: Findings) -> None:
    """The limits of the device, from a JSON object with fields of `Device`."""
    if not path.exists():
        found.notices.append(
            "device.json is not there: of the device's limits only those are "
            "shown that the rows imply"
        )
        return
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("no JSON object")
    except (OSError, ValueError) as failure:
        found.notices.append(f"device.json cannot be read ({failure}), left out")
        return
    if facts.get("slug", found.slug) != found.slug:
        found.notices.append(f"device.json is of another device, {facts['slug']}, left out")
        return
    found.device = {**found.device, **facts}
    found.files.append(path.name)
