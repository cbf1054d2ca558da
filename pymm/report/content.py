"""The data model of a report, independent of its format: chapters with text, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pymm.console import significant
from pymm.report.svg import Figure

#: The factors between two times from which on a coloured cell has the next stronger colour.
SHADES = (1.01, 1.03, 1.1, 1.3, 2.0)


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, the value it sorts by (None: its text), and its colour on a
    scale from -1 (slow) to 1 (fast; None: not coloured).
    """

    text: str
    value: float | None = None
    shade: float | None = None


@dataclass(frozen=True)
class Table:
    """A table; each row maps the columns to cells. A `grid` has coloured cells and cannot be
    sorted.
    """

    name: str
    title: str
    rows: Sequence[Mapping[str, Cell]]
    note: str = ""
    grid: bool = False

    @property
    def columns(self) -> list[str]:
        """The columns, in the order of the first row."""
        return list(self.rows[0]) if self.rows else []

    def numeric(self, column: str) -> bool:
        """Whether a column holds numbers, which are aligned right."""
        filled = [row[column] for row in self.rows if row[column].text]
        return bool(filled) and all(cell.value is not None for cell in filled)


@dataclass(frozen=True)
class Tile:
    """One highlighted number: its label, the number, and what it means."""

    label: str
    value: str
    note: str


@dataclass
class Chapter:
    """A section of a report, shown in this order: title, introduction, `observations` (a name and a
    sentence each), tiles, `remarks` on the measurements, figures and tables. `commands` reproduce
    it; `not_measured` says what is missing, and the command that measures it.
    """

    name: str
    title: str
    intro: str
    figures: list[Figure] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    commands: Sequence[str] = ()
    tiles: Sequence[Tile] = ()
    remarks: Sequence[str] = ()
    observations: Sequence[tuple[str, str]] = ()
    not_measured: Sequence[tuple[str, str]] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show."""
        return not (self.figures or self.tables or self.tiles)


@dataclass
class Report:
    """A whole report. `data` is the content of the JSON file; `no_figures` says why there are no
    figures, if there are none.
    """

    title: str
    subtitle: str
    chapters: list[Chapter]
    notices: Sequence[str]
    environment: Sequence[tuple[str, str]]
    data: dict[str, object]
    no_figures: str = ""


def cell(value: float, format_: str = "", shade: float | None = None) -> Cell:
    """A number as a cell, with four digits unless `format_` is given. NaN is an empty cell, which
    sorts last.
    """
    if value != value:
        return Cell("")
    return Cell(format_.format(value) if format_ else significant(value), value, shade)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 product", "2 searches"."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{ending * (number != 1)}"


def rate(gflops: float) -> str:
    """A rate with a suitable unit: "51.3 TFLOP/s", "85.9 GFLOP/s"."""
    if gflops != gflops:
        return ""
    scale, unit = (1e3, "TFLOP/s") if gflops >= 1e3 else (1.0, "GFLOP/s")
    return f"{significant(gflops / scale, 3)} {unit}"
