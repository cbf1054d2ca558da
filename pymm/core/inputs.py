"""Text, JSON and CSV files that others may have written, checked as they are read. Every fault is a
`BadInput` of one line that names the file, the line and what is wrong.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import math
import re
import stat
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pymm.core.errors import Error

#: Longest file that is read, in bytes, unless a reader has its own limit.
MAX_BYTES = 64 * 2**20

#: No measured number (seconds, bytes, operations per second) is smaller or larger, unless it is 0:
#: products and quotients of a few of them are finite.
SMALLEST, LARGEST = 1e-30, 1e30

#: Longest text of a JSON file that is shown or compared.
MAX_TEXT = 500

#: Faults of one file that are listed.
MAX_FAULTS = 4

_NUMBER = re.compile(r"-?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_SLUG = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_SPACES = re.compile(r"[\t\n\r\x0b\x0c\x1c-\x1f\x85\u2028\u2029]+")
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff"
    "\ud800-\udfff]"
)


class BadInput(Error, ValueError):
    """A file that is not what it should be. The message is one line: file, line, fault."""


def one_line(text: str) -> str:
    """Text that is safe in a terminal, an XML file and a table: line breaks and tabs as blanks,
    control characters, marks of direction and halves of characters as U+FFFD.
    """
    return _UNPRINTABLE.sub("\ufffd", _SPACES.sub(" ", text))


def shown(value: object) -> str:
    """A value in a message: at most 40 characters, in quotes if it is text."""
    text = repr(value) if isinstance(value, str | int | float | None) else type(value).__name__
    return one_line(text if len(text) <= 40 else f"{text[:37]}...")


def number(text: str) -> float:
    """The number that a field spells, NaN unless it is one: plain or with an exponent, 0 or of a
    magnitude between `SMALLEST` and `LARGEST`.
    """
    if not _NUMBER.fullmatch(text):
        return math.nan
    value = float(text)
    return value if value == 0 or SMALLEST <= abs(value) <= LARGEST else math.nan


def is_slug(text: object) -> bool:
    """Whether a text may be a part of file names and ids: a-z, 0-9 and -, at most 64 of them."""
    return isinstance(text, str) and bool(_SLUG.fullmatch(text))


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """The text of a file in UTF-8, with or without a byte order mark, by gzip if its name ends in
    `.gz`. `FileNotFoundError` if there is none, `BadInput` if it is no plain file, longer than
    `limit` bytes or no UTF-8.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadInput(f"{one_line(str(path))} cannot be read: it is no plain file")
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise BadInput(f"{one_line(str(path))} has more than the {limit} bytes allowed")
        return content.removeprefix(codecs.BOM_UTF8).decode()
    except FileNotFoundError:
        raise
    except OSError as error:
        what = error.strerror or type(error).__name__
        raise BadInput(f"{one_line(str(path))} cannot be read: {what}") from None
    except (EOFError, zlib.error):
        raise BadInput(f"{one_line(str(path))} cannot be read: its end is lacking") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        where = f"{one_line(str(path))}, line {line}"
        raise BadInput(f"{where}: cannot be read, it is no UTF-8 text") from None


# CSV


@dataclass(frozen=True)
class Table:
    """A CSV file: its columns, its rows, each with the number of its line, and in words what had to
    be left out. Every row has a text, perhaps empty, in every column.
    """

    path: Path
    columns: tuple[str, ...]
    rows: list[tuple[int, dict[str, str]]]
    faults: list[str] = field(default_factory=list)


def read_table(path: Path) -> Table:
    """A CSV file with a head. Rows of too few or too many fields are left out and named in
    `faults`; so is everything after a quote that is not closed. Raises as `read_text` does, and
    `BadInput` for a head with a column twice.
    """
    name, text = one_line(str(path)), _UNPRINTABLE.sub("\ufffd", read_text(path))
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    columns: tuple[str, ...] = ()
    rows: list[tuple[int, dict[str, str]]] = []
    faults, ended = [], 0
    while True:
        try:
            fields = next(lines, None)
        except csv.Error as error:
            faults.append(
                f"{name}, line {ended + 1}: no row of a CSV ({error}); left out from there on"
            )
            break
        if fields is None:
            break
        begun, ended = ended + 1, lines.line_num
        if not fields:
            continue
        fields = [_SPACES.sub(" ", cell) for cell in fields]
        if not columns:
            columns = tuple(fields)
            twice = next((shown(c) for c in columns if columns.count(c) > 1), "")
            if twice:
                raise BadInput(f"{name}, line {begun}: the column {twice} appears twice")
        elif len(fields) != len(columns):
            faults.append(
                f"{name}, line {begun}: {len(fields)} fields under {len(columns)} columns; left out"
            )
        else:
            rows.append((begun, dict(zip(columns, fields, strict=True))))
    return Table(path, columns, rows, faults)


def few(faults: Sequence[str]) -> list[str]:
    """The first of many faults, and how many more there are."""
    more = len(faults) - MAX_FAULTS
    return [*faults[:MAX_FAULTS], *([f"{more} more faults like the last"] if more > 0 else [])]


def rows_of(
    path: Path,
    needed: Sequence[str] = (),
    numbers: Sequence[str] = (),
    check: Callable[[dict[str, str]], str] = lambda row: "",
) -> list[dict[str, str]]:
    """The rows of a CSV file that must be whole: it has the columns `needed` and `numbers`, in the
    latter every field is empty or a number, and `check` says of every row "" or what is wrong.
    `BadInput` names the first fault.
    """
    table = read_table(path)
    name = one_line(str(path))
    if missing := [column for column in (*needed, *numbers) if column not in table.columns]:
        raise BadInput(f"{name}, line 1: it has no column {', '.join(missing)}")
    if table.faults:
        raise BadInput(f"{table.faults[0].rpartition(';')[0]}; cut the line off or complete it")
    for line, cells in table.rows:
        for column in numbers:
            if cells[column] and math.isnan(number(cells[column])):
                wrong = f"{column} is {shown(cells[column])}, no number"
                raise BadInput(f"{name}, line {line}: {wrong}; correct or delete the line")
        if wrong := check(cells):
            raise BadInput(f"{name}, line {line}: {wrong}; correct or delete the line")
    return [cells for _, cells in table.rows]


# JSON


@dataclass(frozen=True)
class Json:
    """A JSON file's data. Its numbers are finite, no key appears twice in an object."""

    path: Path
    text: str
    data: Any

    def error(self, words: str, key: str = "") -> BadInput:
        """A fault of the file, with the line on which `key` first appears."""
        return _json_error(self.path, self.text, words, f'"{key}"' if key else "")


def read_json(path: Path, limit: int = MAX_BYTES) -> Json:
    """A JSON file. Raises as `read_text` does, and `BadInput` if it is no JSON, too deep, has a key
    twice in an object or a number that is not finite or of more than 19 digits.
    """
    text = read_text(path, limit)
    try:
        hooks = {"parse_int": _whole, "parse_float": _finite, "parse_constant": _finite}
        return Json(path, text, json.loads(text, object_pairs_hook=_once, **hooks))
    except json.JSONDecodeError as error:
        where = f"{one_line(str(path))}, line {error.lineno}"
        raise BadInput(f"{where}: no JSON ({one_line(error.msg)})") from None
    except RecursionError:
        raise BadInput(f"{one_line(str(path))}, line 1: no data of ours, nested too deep") from None
    except _BadToken as error:
        raise _json_error(path, text, str(error), error.token) from None


class _BadToken(ValueError):
    def __init__(self, words: str, token: str) -> None:
        super().__init__(words)
        self.token = token


def _json_error(path: Path, text: str, words: str, token: str) -> BadInput:
    place = text.find(token) if token else -1
    line = f", line {text.count(chr(10), 0, place) + 1}" if place >= 0 else ""
    return BadInput(f"{one_line(str(path))}{line}: {words}")


def _whole(token: str) -> int:
    if len(token) > 19:
        raise _BadToken(f"{shown(token)} has more than 19 digits", token)
    return int(token)


def _finite(token: str) -> float:
    value = float(token)
    if not math.isfinite(value):
        raise _BadToken(f"{shown(token)} is no finite number", token)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise _BadToken(f"the key {shown(twice)} appears twice in an object", json.dumps(twice))
    return found


def text_field(value: object, what: str) -> str:
    """A text of a JSON file that may be shown: one line of at most `MAX_TEXT` characters.
    `ValueError` names `what` it should have been.
    """
    if not isinstance(value, str) or len(value) > MAX_TEXT or one_line(value) != value:
        raise ValueError(f"{what} is {shown(value)}, not a text of one line")
    return value


def number_field(value: object, what: str, least: float = SMALLEST) -> float:
    """A number of a JSON file between `least` and `LARGEST`. `ValueError` names `what`."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not least <= value <= LARGEST:
        raise ValueError(f"{what} is {shown(value)}, not a number from {least:g} to {LARGEST:g}")
    return float(value)
