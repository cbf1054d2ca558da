"""Files of tuned configurations: `<device>.yaml`, records by type, layout and problem. Every value
is checked when a file is read, and a file is replaced as a whole when it is written.

The user's files are in a directory that the caller names; they come before the read-only ones
shipped with pymm.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from pymm.core.device import Device
from pymm.core.errors import StoreError
from pymm.core.files import locked, replace_text
from pymm.core.forking import import_whole
from pymm.core.inputs import BadInput, one_line, read_text
from pymm.kernels.source import shipped_folder
from pymm.selection.records import (
    CONFIG_FIELDS,
    FIELDS,
    MAX_TEXT,
    MEASURED_FIELDS,
    RARE_FIELDS,
    RARELY_MEASURED_FIELDS,
    Environment,
    Record,
    device_facts,
    device_words,
    fields_of_place,
    stale_because,
    unusable_because,
)

__all__ = [
    "Environment",
    "Record",
    "Table",
    "files",
    "load",
    "put",
    "read",
    "stale_because",
]

#: What is written. Files of schema 1, with one line for each record, are read too; the next time
#: that something is put into one it is written in this form.
SCHEMA, SCHEMAS = 2, (1, 2)

#: Longest file that is read: some 20000 records.
MAX_BYTES = 4 * 2**20

#: Deepest nesting that is read: file, records, type, layout, problem, record, configuration.
MAX_DEPTH = 7

#: Columns from which on a line is continued on the next one, between two fields; the last of them
#: may be a digest that YAML quotes, as it has digits only.
WIDTH = 74

HEADER = """\
# Tuned configurations, written by `python -m pymm.tune` and read by pymm.matmul.
# Under type, layout and m x n x k of a product: kernels, their parameters, and what was measured
# (median time in microseconds, its spread, environment, digest of the kernel's source). Records
# whose source, compiler, driver or device changed are stale: tune again.
"""

_ENVIRONMENT = {"driver": str, "compiler": str}
_ENVIRONMENT_MORE = {"pymm": str, "cuda": str}
_DEVICE = {"name": str, "kind": str}
_DEVICE_MORE = {"capability": str, "sms": int, "cores": int, "vector_bytes": int}


@dataclass(frozen=True)
class Table:
    """The contents of one file: the facts of its device (`device_facts`) and its records."""

    device: Mapping[str, str | int]
    records: tuple[Record, ...]


def shipped() -> Any:
    """The folder of the files shipped with pymm."""
    return shipped_folder("tuning_configs")


def files(directory: Path | None) -> list[Path]:
    """Every file of tuned configurations: the user's first, then those shipped with pymm."""
    folders = [shipped()] if directory is None else [Path(directory), shipped()]
    return [
        Path(str(path))
        for folder in folders
        if folder.is_dir()
        for path in sorted(folder.iterdir(), key=lambda path: path.name)
        if path.name.endswith(".yaml")
    ]


def load(device: Device, directory: Path | None) -> tuple[Record, ...]:
    """All records of `device`: the user's from `directory`, then those shipped with pymm. Of
    several with the same problem and kernel the first counts.

    Raises `StoreError` if a file is damaged or belongs to another device.
    """
    paths = record_files(device, directory)
    return tuple(record for path in paths for record in load_file(device, path))


def record_files(device: Device, directory: Path | None) -> list[Path]:
    """The files that may hold records of `device`: the user's, then the shipped one. None for a
    simulated device.
    """
    if not device.times_are_real:
        return []
    folders = [shipped()] if directory is None else [Path(directory), shipped()]
    return [Path(str(folder.joinpath(f"{device.slug}.yaml"))) for folder in folders]


def energy_directory(directory: Path) -> Path:
    """The folder in the user's `directory` of the configurations of least energy, in files of the
    same form.
    """
    return Path(directory) / "energy"


def energy_files(device: Device, directory: Path | None) -> list[Path]:
    """The file of `device` in there, if it can have one."""
    if directory is None or not device.times_are_real:
        return []
    return [energy_directory(directory) / f"{device.slug}.yaml"]


def load_file(device: Device, path: Path) -> tuple[Record, ...]:
    """The records of one file, none if there is no file. `StoreError` if it is damaged or belongs
    to another device.
    """
    table = read(path)
    if table and table.device["name"] != device.name:
        raise StoreError(f"{path} belongs to {table.device['name']}, not to {device.name}; {FIX}")
    return table.records if table else ()


def put(records: Iterable[Record], device: Device, directory: Path) -> Path:
    """Merge `records` into the user's file of `device` and return its path.

    A record replaces the one with the same problem, kernel, driver and compiler. Many processes may
    do this at once; one that dies leaves the old file or the new one. Without `records` nothing is
    written, but all is checked: a tuner learns at its beginning, not at its end, that it could not
    save anything.

    Raises `ValueError` for a record that `device` could not run and for a simulated device,
    `StoreError` for a file that cannot be read or is another device's, which is left as it is, and
    `OSError` where no file can be written.
    """
    records = list(records)
    _refuse_useless(records, device)
    path, facts = Path(directory) / f"{device.slug}.yaml", device_facts(device)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(path.with_name(path.name + ".lock")):
        table = read(path)
        if table and table.device != facts:
            was, now = device_words(table.device), device_words(facts)
            raise StoreError(f"{path} belongs to {was}; this device is {now}; {FIX}")
        if not records:
            tempfile.TemporaryFile(dir=Path(os.path.realpath(path)).parent).close()
            return path
        merged = {record.key: record for record in (*(table.records if table else ()), *records)}
        text = render_table(Table(facts, tuple(merged.values())))
        if len(text.encode()) > MAX_BYTES:
            raise StoreError(f"{path} would be longer than {MAX_BYTES} bytes; {FIX}")
        parse_table(text, str(path))  # nothing is written that could not be read back
        replace_text(path, text)
    return path


FIX = "move the file away or set PYMM_CONFIG_DIR to another directory"


def _refuse_useless(records: list[Record], device: Device) -> None:
    if not device.times_are_real:
        raise ValueError("times of the simulator mean nothing: its records are never stored")
    for record in records:
        reason = unusable_because(replace(record, device=""), device)
        if not reason:
            config, problem = record.config, record.problem
            reason = "; ".join(config.kernel.violations(config, problem, device))
        if reason:
            raise ValueError(f"{record.config.slug} for {record.problem.slug}: {reason}")


def read(path: Path) -> Table | None:
    """The contents of the file at `path`; None if there is none. `StoreError` if it is damaged."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from None
    return _read(path, status.st_mtime_ns, status.st_size, status.st_ino)


@lru_cache(maxsize=64)
def _read(path: Path, mtime_ns: int, size: int, inode: int) -> Table:
    try:
        text = read_text(path, MAX_BYTES)
    except (BadInput, OSError) as error:
        raise StoreError(f"{error}; {FIX}") from None
    return parse_table(text, str(path))


# YAML


def render_table(table: Table) -> str:
    """The text of a file: a head, then the records, sorted."""
    records: dict[str, dict[str, dict[str, list]]] = {}
    for record in sorted(table.records, key=lambda record: record.order):
        dtype, layout, extents = record.place
        problems = records.setdefault(dtype, {}).setdefault(layout, {})
        problems.setdefault(extents, []).append(record.entry())
    return HEADER + dump(SCHEMA, table, records)


def dump(schema: int, table: Table, records: Mapping[str, Any]) -> str:
    """The YAML of a file: its head, with the environments of all records, and the `records`."""
    import_whole("yaml")
    import yaml

    environments = sorted({r.environment for r in table.records}, key=lambda env: env.name)
    contents = {
        "schema": schema,
        "device": dict(table.device),
        "environments": {env.name: asdict(env) for env in environments},
        "records": records,
    }
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    options = {"default_flow_style": None, "sort_keys": False, "width": WIDTH}
    return yaml.dump(contents, Dumper=dumper, **options)


def parse_table(text: str, path: str) -> Table:
    """The inverse of `render_table`. For any other text `StoreError`, which names `path`, the line
    and what to do.
    """
    reader = Reader(text, path)
    version, device, environments, given = head_of(reader, SCHEMAS)
    words = device_words(device)
    backend = "cpu" if device["kind"] == "cpu" else "cuda"
    found = _lines(reader, given) if version == 1 else _nested(reader, given)
    records = [
        replace(_record(reader, node, fields, backend, environments), device=words, file=path)
        for node, fields in found
    ]
    return Table(device, tuple(records))


def head_of(
    reader: Reader, schemas: Sequence[int]
) -> tuple[int, dict[str, Any], dict[str, Environment], Any]:
    """Of a file of one of these schemas: its schema, device, environments by name, and the node of
    its records.
    """
    top = reader.mapping(reader.root, "the file")
    version = reader.scalar(top.get("schema", reader.root), "schema", int)
    if version not in schemas:
        known = " and ".join(map(str, schemas))
        several = "s" * (len(schemas) > 1)
        raise reader.error(
            reader.root, f"schema {version}; this pymm reads schema{several} {known}"
        )
    nothing = dict.fromkeys(("device", "environments", "records"), dict)
    head = reader.fields(reader.root, "the file", nothing | {"schema": int}, {})
    device = reader.fields(head["device"], "device", _DEVICE, _DEVICE_MORE)
    environments = {
        name: Environment(**reader.fields(node, name, _ENVIRONMENT, _ENVIRONMENT_MORE))
        for name, node in reader.mapping(head["environments"], "environments").items()
    }
    return version, device, environments, head["records"]


def _lines(reader: Reader, records: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Nodes and fields of the records of schema 1."""
    for node in reader.sequence(records, "records"):
        yield node, reader.fields(node, "the record", FIELDS, RARE_FIELDS)


def _nested(reader: Reader, records: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Nodes and fields of the records of schema 2."""
    for dtype, layouts in reader.mapping(records, "records").items():
        for layout, problems in reader.mapping(layouts, dtype).items():
            for extents, of_problem in reader.mapping(problems, layout).items():
                try:
                    place = fields_of_place(dtype, layout, extents)
                except ValueError as error:
                    raise reader.error(of_problem, str(error)) from None
                for node in reader.sequence(of_problem, extents):
                    entry = reader.fields(
                        node, "the record", CONFIG_FIELDS | {"measured": dict}, {}
                    )
                    measured = entry.pop("measured")
                    yield (
                        node,
                        place
                        | entry
                        | reader.fields(
                            measured, "measured", MEASURED_FIELDS, RARELY_MEASURED_FIELDS
                        ),
                    )


def _record(
    reader: Reader, node: Any, fields: dict[str, Any], backend: str, environments: Mapping
) -> Record:
    config = reader.mapping(fields["config"], "config")
    fields["config"] = {key: reader.scalar(value, key, int) for key, value in config.items()}
    if fields["env"] not in environments:
        raise reader.error(node, f"environment {fields['env']!r} is not in the head of the file")
    try:
        return Record.from_fields(fields, backend, environments[fields["env"]])
    except (ValueError, NotImplementedError) as error:
        raise reader.error(node, str(error)) from None


@dataclass(slots=True)
class _Node:
    """A value in a file: `id` is "scalar", "sequence" or "mapping", `value` its text or its parts.
    The parts of a mapping are its keys and values in turn.
    """

    id: str
    value: Any
    line: int


def _compose(text: str, error: Callable[[int, str], StoreError]) -> _Node | None:
    """The one document of a YAML text, None if it has none. The parser's events are read one by
    one. Anchors, and nesting deeper than `MAX_DEPTH`, end the reading at once, so that a text can
    neither overflow the parser's stack nor fill the memory.
    """
    import yaml  # takes 15 ms, and is needed only where there is a file

    root, open_nodes = None, []
    for event in yaml.parse(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        line = event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise error(line, "anchors and aliases (& and *) are not read")
        if isinstance(event, yaml.DocumentStartEvent) and root is not None:
            raise error(line, "a second document")
        if isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
        if not isinstance(event, yaml.NodeEvent):
            continue
        scalar = isinstance(event, yaml.ScalarEvent)
        kind = "mapping" if isinstance(event, yaml.MappingStartEvent) else "sequence"
        node = _Node("scalar", event.value, line) if scalar else _Node(kind, [], line)
        if open_nodes:
            open_nodes[-1].value.append(node)
        else:
            root = node
        if not scalar:
            open_nodes.append(node)
            if len(open_nodes) > MAX_DEPTH:
                raise error(line, f"nested deeper than {MAX_DEPTH}")
    return root


class Reader:
    """Reads a YAML text node by node. YAML's tags are ignored; every error names its line."""

    def __init__(self, text: str, path: str) -> None:
        import_whole("yaml")
        import yaml

        self.path = path
        try:
            self.root = _compose(text, self._error)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            place = text.encode()[: getattr(error, "position", 0)].count(b"\n")
            what = getattr(error, "problem", None) or str(error).partition("\n")[0]
            words = f"not YAML ({one_line(str(what))})"
            raise self._error((mark.line if mark else place) + 1, words) from None

    def _error(self, line: int, what: str) -> StoreError:
        return StoreError(f"{self.path}, line {line}: {one_line(what)}; {_LEFT}")

    def error(self, node: Any, what: str) -> StoreError:
        return self._error(node.line if node else 1, what)

    def sequence(self, node: Any, what: str) -> list[Any]:
        if node is None or node.id != "sequence":
            raise self.error(node, f"{what} is not a list")
        return node.value

    def mapping(self, node: Any, what: str) -> dict[str, Any]:
        if node is None or node.id != "mapping":
            raise self.error(node, f"{what} is not a mapping")
        found: dict[str, Any] = {}
        for key, value in zip(node.value[::2], node.value[1::2], strict=True):
            if key.id != "scalar" or key.value in found or len(key.value) > MAX_TEXT:
                raise self.error(key, f"{what} has a key twice, or one that is not a short word")
            found[key.value] = value
        return found

    def fields(self, node: Any, what: str, must: Mapping, may: Mapping) -> dict[str, Any]:
        """The values of a mapping that has all keys of `must`, perhaps some of `may`, and no other.
        Values whose type is `dict` are returned as nodes.
        """
        nodes = self.mapping(node, what)
        if missing := [key for key in must if key not in nodes]:
            raise self.error(node, f"{what} lacks {', '.join(missing)}")
        types = {**must, **may}
        if unknown := [key for key in nodes if key not in types]:
            raise self.error(node, f"{what} has an unknown {unknown[0]!r} (of a newer pymm?)")
        return {
            key: value if types[key] is dict else self.scalar(value, key, types[key])
            for key, value in nodes.items()
        }

    def scalar(self, node: Any, what: str, kind: type) -> Any:
        """One value, converted from its text to `kind`, whatever type YAML would give it."""
        if node.id != "scalar" or len(node.value) > MAX_TEXT:
            raise self.error(node, f"{what} is not a short value")
        pattern, wanted = _PATTERNS[kind]
        if not re.fullmatch(pattern, node.value):
            raise self.error(node, f"{what} is {node.value!r}, not {wanted}")
        return kind(node.value)


_LEFT = "the file is left as it is: fix the line, or move the file away and tune again"
_PATTERNS = {
    int: (r"[0-9]{1,10}", "a whole number"),
    float: (r"[0-9]{1,20}(\.[0-9]{0,20})?(e[+-]?[0-9]{1,3})?", "a number"),
    str: (r"[^\x00-\x1f\x7f]*", "one line of text"),
}
