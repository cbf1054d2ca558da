"""What people read: numbers and times in words, tables on a terminal, and the same rows as plain
text where the output is none.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TextIO


def significant(value: float, digits: int = 4) -> str:
    """A number with so many digits, in full where that is readable: "52570", "0.01234"."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e9 else text


def duration(seconds: float, digits: int = 4) -> str:
    """A time with a unit that suits it: "1.234 ms", "56.7 us"; "-" for none."""
    if not seconds > 0:
        return "-"
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{significant(seconds * factor, digits)} {unit}"
    return f"{significant(seconds * 1e9, digits)} ns"


def show_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    title: str = "",
    numbers: Sequence[str] = (),
    file: TextIO | None = None,
) -> None:
    """Print `rows` under `columns`, those named in `numbers` set flush right. Drawn by rich on a
    terminal; else columns two blanks apart, no line wrapped or cut.
    """
    file = file or sys.stdout
    texts = [[str(cell) for cell in row] for row in rows]
    if file.isatty():
        _draw(columns, texts, title, numbers, file)
        return
    if title:
        print(title, file=file)
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    for row in [list(columns), *texts]:
        cells = [
            cell.rjust(width) if name in numbers else cell.ljust(width)
            for name, cell, width in zip(columns, row, widths, strict=True)
        ]
        print("  ".join(cells).rstrip(), file=file)


def _draw(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    title: str,
    numbers: Sequence[str],
    file: TextIO,
) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(name, justify="right" if name in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=file).print(table)
