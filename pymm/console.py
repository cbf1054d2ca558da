"""What a terminal shows: commands by name, numbers and times in words, tables (plain text where the
output is no terminal), and Ctrl-C as a request, so that a run can end in order.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TextIO


def program(command: str) -> str:
    """What a command is called in its help, as it was started: "pymm tune" by the dispatcher, else
    "python -m pymm.tune".
    """
    started = Path(sys.argv[0])
    by_name = started.name == "pymm" or started.match("pymm/__main__.py")
    return f"pymm {command}" if by_name else f"python -m pymm.{command}"


def significant(value: float, digits: int = 4) -> str:
    """A number with so many digits, in full where that is readable: "52570", "0.01234"."""
    text = f"{value:.{digits}g}"
    return f"{float(text):.0f}" if "e+" in text and abs(value) < 1e9 else text


def duration(seconds: float, digits: int = 4) -> str:
    """A time with a suitable unit: "1.234 ms", "56.7 us"; "-" for none."""
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
    terminal; else columns separated by two blanks, no line wrapped or cut.
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


@contextmanager
def spared() -> Iterator[None]:
    """Processes that are started in a `with` never receive Ctrl-C: the parent decides what an
    interrupt ends. One that arrives meanwhile reaches the parent afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Stop:
    """Ctrl-C as a request: the first sets `asked`, the second raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Handle SIGINT and SIGTERM as requests within a `with`."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in wanted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
