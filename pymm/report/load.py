"""The files of a device, read and validated: what cannot be used is reported, the rest is kept."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from pymm.core.device import Device
from pymm.core.errors import StoreError
from pymm.core.inputs import (
    BadInput,
    few,
    is_slug,
    number,
    one_line,
    read_json,
    read_table,
    read_text,
    shown,
)
from pymm.core.problem import Problem
from pymm.measure import results
from pymm.report.facts import NAME, device_facts, device_of, facts_of
from pymm.report.today import Today
from pymm.selection import store
from pymm.selection.records import Environment, Record

#: The kinds of CSV files, each recognised by its columns; the first match counts.
KINDS: dict[str, frozenset[str]] = {
    "suites": frozenset({"suite", "step", "quantity", "name", "m", "n", "k", "outcome"}),
    "trials": frozenset({"problem", "kernel", "config", "role", "outcome"}),
    "classes": frozenset({"class", "dtype", "layout", "m", "n", "k", "kernel", "us"}),
    "blocked": frozenset({"part", "name", "devices", "dtype", "m", "n", "k", "value", "unit"}),
    "simulated": frozenset({"simgrid", "processes", "blocking", "simulated"}),
    "distributed": frozenset({"engine", "processes", "dtype", "m", "n", "k", "received"}),
    "tune_devices": frozenset({"devices", "compilers", "trials", "rate", "busy"}),
    "unseen": frozenset({"dtype", "m", "n", "k", "chosen_us", "of_fastest"}),
    "repeated": frozenset({"dtype", "m", "n", "k", "seed", "budget", "tried", "config", "us"}),
    "bench": frozenset({"dtype", "m", "n", "k", "name", "seconds"}),
    "calls": frozenset({"dtype", "m", "n", "k", "arrays", "call", "us"}),
    "beside_numpy": frozenset({"dtype", "m", "n", "k", "process", "call", "us"}),
}

#: The newest schema of each kind that this module reads.
SCHEMAS = {
    "suites": results.EXPERIMENTS.number,
    "trials": results.TRIALS.number,
    "classes": results.CLASSES.number,
    "bench": results.KERNELS.number,
    "blocked": results.BLOCKED.number,
    "distributed": results.DISTRIBUTED.number,
    "simulated": results.SIMULATED.number,
    "repeated": results.REPEATED.number,
}

#: The columns of each kind that a report shows; a file without one of them is reported as older.
SHOWN = {
    "suites": "variant config transfer seconds gflops ratio speedup error error_inf value power_w",
    "trials": "time seconds config",
    "classes": "config reason outcome spread rounds gflops peak cublas_us cublaslt_us ratio error "
    "rms opponent_rms power_w",
    "bench": "variant config outcome spread rounds gflops peak ratio registers shared",
    "blocked": "outcome seconds gflops ratio bytes_in bytes_out detail",
    "distributed": "outcome grid seconds gflops speedup ratio bound error_inf detail",
    "repeated": "seconds spread",
    "simulated": "grid panel multiplying efficiency predicted measured ratio",
}

#: Experiments that are counted in the simulator and are valid for every device.
ON_EVERY_DEVICE = ("o2-counts",)

#: Columns of measured numbers, besides the libraries' times, which end in `_us`.
NUMBERS = frozenset(
    "us seconds mean spread rounds repeats void gflops ratio peak error rms opponent_rms error_inf "
    "speedup power_w registers spills shared of_fastest of_default quartile_1 quartile_3 "
    "devices compilers trials tried rate busy twice bytes_in bytes_out bound processes panel "
    "received planned predicted sequential fastest handed_out flops bandwidth latency memory "
    "overlap multiplying blocking simulated efficiency measured".split()
)

#: Columns of names, which appear in legends and titles, and the maximal length of a name.
NAMES = frozenset(
    "class name kernel variant suite step quantity transfer arrays process call role outcome file "
    "part unit engine product grid block mpi blas".split()
)
MAX_NAME = 80


@dataclass(frozen=True)
class Row:
    """One line of a CSV, of a kind in `KINDS`; missing columns read as empty. `stale` says why it
    is not what pymm would measure today, "" if it is or nobody can say.
    """

    kind: str
    file: str
    cells: Mapping[str, str]
    line: int = 0
    stale: str = ""

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
    from `NAME-note.txt`; `place` is the folder that the commands of a report write to, `page` its
    JSON, and `remake` what makes the report again. `machine`: of this machine, not of a folder.
    """

    device: Mapping[str, object]
    rows: dict[str, list[Row]] = field(default_factory=dict)
    records: tuple[Record, ...] = ()
    files: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    absent: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)
    place: str = ""
    page: str = ""
    remake: str = ""
    machine: bool = False
    today: Today = field(default_factory=Today)

    @property
    def slug(self) -> str:
        """The device's name in file names."""
        return str(self.device["slug"])

    @property
    def own_records(self) -> list[Record]:
        """Those of this machine's user."""
        own = str(self.today.directory)
        return [r for r in self.records if self.machine and str(Path(r.file).parent) == own]

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
    _take(files, found)
    if not found.rows:
        notices.append(f"{one_line(folder.name)}: no CSV file here has a row that can be shown")
    if records is not None:
        _read_records(records / f"{slug}.yaml", found)
    _read_facts(folder / NAME, found)
    found.place = f"benchmarks/results/{slug}"
    found.page = f"reports/{slug}/report.json"
    found.remake = f"python -m pymm.report {slug}"
    return _marked(found, Today(device_of(found.device), records, found.records))


def read_machine(
    device: Device,
    environment: Environment,
    paths: Sequence[Path],
    directory: Path | None,
    place: Path,
) -> Results:
    """Read what was measured on a device of this machine, in the CSV files `paths`, and its tuned
    configurations: the user's, from `directory`, and the shipped ones. `environment` are the tools
    of today; `place` is the folder of its page.
    """
    notices: list[str] = []
    files = {path: list(_read(path, notices)) for path in dict.fromkeys(paths) if path.is_file()}
    found = Results(facts_of(device), notices=notices)
    _take(files, found)
    for path in store.record_files(device, directory):
        _read_records(path, found)
    found.device = {**found.device, **facts_of(device)}
    found.place, found.page = str(place), str(place / "report.json")
    found.remake, found.machine = "python -m pymm.report", True
    return _marked(found, Today(device, directory, found.records, environment))


def _take(files: Mapping[Path, Sequence[Row]], found: Results) -> None:
    """Add the rows of the device."""
    for path, rows in files.items():
        name = one_line(path.name)
        right = list(_usable(name, rows, found.slug, found.notices))
        if right:
            found.files.append(name)
        found.absent |= {r.text("suite") for r in rows if r.text("outcome") == "not_applicable"}
        for row in right:
            found.rows.setdefault(row.kind, []).append(row)
        if right:
            _read_note(path.with_name(f"{path.stem}-note.txt"), name, found)


def _marked(found: Results, today: Today) -> Results:
    """The same, with `stale` set in every row that is not today's."""
    found.today = today
    for rows in found.rows.values():
        for place, row in enumerate(rows):
            if why := today.stale_because(row):
                rows[place] = replace(row, stale=why)
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
