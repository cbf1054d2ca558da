"""What a report is made of, whatever it is written as: chapters with words, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pymm.report.svg import Figure


@dataclass(frozen=True)
class Cell:
    """A field of a table: its text, what it sorts by (None: its text), and on a scale from -1 to 1
    how good it is (None: neither).
    """

    text: str
    value: float | None = None
    shade: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows under columns, each row the fields of all columns. A `grid` is read as a picture, its
    cells coloured, rather than sorted.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Cell]]
    words: str = ""
    grid: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns, in the order of the first row."""
        return list(self.rows[0]) if self.rows else []

    def numeric(self, column: str) -> bool:
        """Whether a column holds numbers, which stand to the right."""
        filled = [row[column] for row in self.rows if row[column].text]
        return bool(filled) and all(cell.value is not None for cell in filled)


@dataclass(frozen=True)
class Tile:
    """One number at a glance: what it is of, the number, and what it means."""

    label: str
    value: str
    words: str


@dataclass
class Chapter:
    """A title, words, what one sees (a name and a sentence each), tiles, remarks (what a reader has
    to know of the measurements), figures and tables, in this order. `commands` repeat
    what it shows, `lacking` says what else there could be, and the command that measures it.
    """

    name: str
    title: str
    words: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    commands: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    remarks: Sequence[str] = ()
    seen: Sequence[tuple[str, str]] = ()
    lacking: Sequence[str] = ()

    @property
    def empty(self) -> bool:
        """True if there is nothing to show."""
        return not (self.figures or self.tables or self.tiles)


@dataclass
class Report:
    """Everything that is written down. `data` goes into the JSON as it is; `bare` says why there
    are no figures, if that is so.
    """

    title: str
    subtitle: str
    chapters: list[Chapter]
    notices: Sequence[str]
    environment: Sequence[tuple[str, str]]
    data: dict[str, object]
    bare: str = ""


def cell(value: float, form: str = "", shade: float | None = None) -> Cell:
    """A number as a field, of four digits unless `form` says how; empty, and last in any order, if
    it is NaN.
    """
    if value != value:
        return Cell("")
    return Cell(form.format(value) if form else significant(value), value, shade)


def significant(value: float, digits: int = 4) -> str:
    """A number with so many digits, in full where that is readable: "52570", "0.01234"."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e9 else text


def duration(seconds: float) -> str:
    """A time as people write it: "12.3 us", "1.25 ms"."""
    if seconds != seconds:
        return ""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{significant(seconds / size)} {unit}"
    return f"{significant(seconds * 1e6)} us"


def rate(gflops: float) -> str:
    """A rate as people write it: "51.3 TFLOP/s", "85.9 GFLOP/s"."""
    if gflops != gflops:
        return ""
    scale, unit = (1e3, "TFLOP/s") if gflops >= 1e3 else (1.0, "GFLOP/s")
    return f"{significant(gflops / scale, 3)} {unit}"
