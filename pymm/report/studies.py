"""The rows of the suites (`python -m pymm.bench --suite`), experiment by experiment."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.report.facts import suite_rows, written
from pymm.report.reading import Findings, Row

#: Quantities that are times.
TIMES = ("kernel", "total", "to_device", "to_host")

#: What `matmul` runs, as a curve and a column are called.
CHOICE = "pymm's choice"

#: How operands travel, as the suites call it, with words for it.
TRANSFERS = {
    "pageable": "pageable",
    "pinned": "by a pinned area",
    "registered": "pinned each time",
    "locked": "pinned for good",
}

#: Points of a curve by its name: x and y.
Curves = dict[str, dict[float, float]]


@dataclass(frozen=True)
class Study:
    """The rows of one experiment, the last of each figure."""

    name: str
    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """What it asks."""
        known = EXPERIMENTS.get(self.name)
        return known.title if known else self.name

    def of(self, quantity: str, dtype: str = "", transfer: str | None = None) -> list[Row]:
        """The rows of a figure that have a value, perhaps of one type and way of transfer alone."""
        return [
            row
            for row in self.rows
            if row.text("quantity") == quantity
            and dtype in ("", row.problem.dtype)
            and transfer in (None, row.text("transfer"))
            and (row.sound if quantity in TIMES else row.text("value"))
        ]

    @property
    def dtypes(self) -> list[str]:
        """The types that occur."""
        return list(dict.fromkeys(row.problem.dtype for row in self.rows))

    @property
    def failures(self) -> list[Row]:
        """Rows of what went wrong; what was left out or does not apply is none."""
        fine = ("ok", "", "left_out", "not_applicable")
        return [row for row in self.rows if row.text("outcome") not in fine]


def studies(findings: Findings) -> dict[str, Study]:
    """Every experiment that has rows, in the order of the catalog."""
    groups: dict[str, list[Row]] = {}
    for row in suite_rows(findings):
        groups.setdefault(row.text("suite"), []).append(row)
    known = [name for name in EXPERIMENTS if name in groups]
    others = [name for name in groups if name not in EXPERIMENTS]
    return {name: Study(name, tuple(groups[name])) for name in (*known, *others)}


def contestant(row: Row) -> str:
    """What a curve or a column is called: the rung (with its tile, where the suite sets it), a
    library, or what `matmul` chose.
    """
    if row.text("variant") == "chosen":
        return CHOICE
    if row.text("variant") == "fixed":
        tile = re.search(r"-MB(\d+)-NB(\d+)", row.text("config"))
        return f"{row.text('name')} {tile[1]}x{tile[2]}" if tile else row.text("name")
    return written(row.text("name"))


def curves(
    rows: Iterable[Row],
    height: Callable[[Row], float],
    along: Callable[[Row], float] = lambda row: row.problem.n,
) -> Curves:
    """A curve for each contestant: ours, the libraries, the rungs."""
    found: Curves = {}
    for row in rows:
        y = height(row)
        if y == y:
            found.setdefault(contestant(row), {})[along(row)] = y
    return ordered(found)


def ordered(found: Curves) -> Curves:
    """What `matmul` runs first, then libraries, then rungs by their number."""

    def place(item: tuple[str, object]) -> tuple[object, ...]:
        name = item[0]
        sizes = [int(size) for size in re.findall("[0-9]{1,9}", name)]
        return (0 if name == CHOICE else 2 if name[:1].isdigit() else 1, name.split(" ")[0], sizes)

    return {name: dict(sorted(line.items())) for name, line in sorted(found.items(), key=place)}


def gflops(row: Row) -> float:
    """The rate of a row."""
    told = row.number("gflops")
    return told if told == told else row.problem.flops / row.seconds / 1e9


def pivot(rows: Sequence[Row], value: Callable[[Row], float]) -> tuple[list[str], list[Pivot]]:
    """One line for each product and way of transfer, with a value for each contestant. The names
    of the contestants, and the lines.
    """
    names: Curves = {}
    lines: dict[tuple[object, str], dict[str, Row]] = {}
    for row in rows:
        by = lines.setdefault((row.problem, row.text("transfer")), {})
        name = contestant(row)
        if name in by:  # another configuration of the same kernel
            name = " ".join([name, *row.text("config").split("-")[1:]])
        by[name] = row
        if (y := value(row)) == y:
            names.setdefault(name, {})[row.problem.n] = y
    return list(ordered(names)), [Pivot(by) for by in lines.values()]


@dataclass(frozen=True)
class Pivot:
    """The rows of one product by contestant."""

    by: dict[str, Row]

    @property
    def first(self) -> Row:
        """Any of them, for what they share."""
        return next(iter(self.by.values()))
