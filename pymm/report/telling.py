"""What one sees in an experiment, in a sentence that its rows give."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from pymm.measure.libraries import GENERAL
from pymm.report.content import duration, rate, significant
from pymm.report.facts import mean
from pymm.report.reading import Row
from pymm.report.studies import CHOICE, TRANSFERS, Study, contestant, curves, gflops

#: A size that all tiles of the experiments divide.
TILE = 32

#: Peak rates by type, in GFLOP/s.
Peaks = dict[str, float]


def told(study: Study, peaks: Peaks) -> str:
    """The sentence of an experiment; empty where its rows do not suffice for one."""
    makers: dict[str, Callable[[], str]] = {
        "o1": lambda: _tiles(study),
        "o2-transfers": lambda: _transfers(study),
        "o2-split": lambda: _split(study),
        "o2-sizes": lambda: _sizes(study, peaks),
        "o2-remainders": lambda: _remainders(study),
        "o2-blocks": lambda: _blocks(study),
        "o2-kernels": lambda: _resources(study),
        "o2-counts": lambda: _counts(study),
        "o3": lambda: _transposed(study),
        "o4-square": lambda: _ladder(study),
        "o4-rectangular": lambda: _rectangles(study),
    }
    return makers[study.name]() if study.name in makers else ""


def _largest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the largest product among them that several have."""
    problems = {row.problem for row in rows}
    shared = [p for p in problems if sum(row.problem == p for row in rows) > 1] or problems
    top = max(shared, key=lambda p: (p.flops, p.n), default=None)
    return [row for row in rows if row.problem == top]


def _ours(rows: Sequence[Row]) -> tuple[str, list[Row]]:
    """What pymm chose, or where a suite did not ask for that its highest rung: name and rows."""
    names = [contestant(row) for row in rows if row.text("config")]
    name = CHOICE if CHOICE in names else max(names, default="")
    return name, [row for row in rows if contestant(row) == name]


def _library(rows: Sequence[Row]) -> Row | None:
    """The fastest library among the rows."""
    of = [row for row in rows if row.text("name") in GENERAL]
    return min(of, key=lambda row: row.seconds, default=None)


def _tiles(study: Study) -> str:
    kernels = [row for row in study.of("kernel") if row.text("config")]
    names = sorted({row.text("name") for row in kernels})
    sizes = [{row.problem.n for row in kernels if row.text("name") == name} for name in names]
    if len(names) < 2 or not (shared := sizes[0] & sizes[-1]):
        return ""
    n = max(shared)
    first, last = (
        min(row.seconds for row in kernels if (row.text("name"), row.problem.n) == (name, n))
        for name in (names[0], names[-1])
    )
    said = (
        f"At N = {n} {names[-1]} takes {duration(last)} and {names[0]} {duration(first)}, "
        f"{first / last:.1f} times as long"
    )
    library = _library([row for row in study.of("kernel") if row.problem.n == n])
    beside = f"; the fastest library takes {duration(library.seconds)}" if library else ""
    return f"{said}{beside}."


def _transfers(study: Study) -> str:
    at = _largest(study.of("total"))
    if not at:
        return ""
    n, name = at[0].problem.n, contestant(at[-1])
    kernel = [r for r in study.of("kernel") if (r.problem, contestant(r)) == (at[0].problem, name)]
    if not kernel:
        return ""
    parts = [
        f"{TRANSFERS.get(row.text('transfer'), '')}: {kernel[0].seconds / row.seconds:.0%} of "
        f"{duration(row.seconds)}"
        for row in at
        if contestant(row) == name
    ]
    return f"What the kernel of {name} takes of the whole at N = {n}, {'; '.join(parts)}."


def _split(study: Study) -> str:
    kernels = study.of("kernel")
    rows = [row for row in kernels if contestant(row) == CHOICE] or kernels
    if not rows:
        return ""
    row = max(rows, key=lambda r: r.problem.n)
    said = []
    for way in TRANSFERS:
        parts = [
            [r.seconds for r in study.of(name, transfer=way) if r.problem == row.problem]
            for name in ("to_device", "to_host")
        ]
        if all(parts):
            total = parts[0][0] + row.seconds + parts[1][0]
            said.append(f"{row.seconds / total:.0%} ({TRANSFERS[way]})")
    if not said:
        return ""
    return (
        f"At N = {row.problem.n} the kernel of {contestant(row)} takes {' or '.join(said)} of "
        "the time; the rest goes to the journeys of A, B and C."
    )


def _sizes(study: Study, peaks: Peaks) -> str:
    name, rows = _ours(study.of("kernel"))
    if not rows:
        return ""
    best = max(rows, key=gflops)
    limit = peaks.get(best.problem.dtype)
    part = f", {gflops(best) / limit:.0%} of the limit" if limit else ""
    reached = f"{rate(gflops(best))} at N = {best.problem.n}{part}"
    return f"{name} reaches {reached}; it is {_beside(rows)}"


def _beside(rows: Sequence[Row]) -> str:
    """How products stand beside the fastest library, the worst one named."""
    known = [row for row in rows if row.number("ratio") > 0]
    if not known:
        return "beside no library."
    ahead = sum(row.number("ratio") >= 1 for row in known)
    worst = min(known, key=lambda row: row.number("ratio"))
    p = worst.problem
    where = f"N = {p.n}" if p.m == p.n == p.k else f"{p.m} x {p.n} x {p.k}"
    return (
        f"at least as fast as the fastest library in {ahead} of {len(known)} products, on "
        f"average {mean(r.number('ratio') for r in known):.2f} times as fast, at worst "
        f"{worst.number('ratio'):.2f} times ({where})."
    )


def _remainders(study: Study) -> str:
    """The step at which the first contestant loses most, and what the others lose there."""
    lines = curves(study.of("kernel"), gflops)
    if not lines:
        return ""
    first = next(iter(lines.values()))
    steps = list(itertools.pairwise(sorted(first)))
    if not steps:
        return ""
    low, high = min(steps, key=lambda step: first[step[1]] / first[step[0]])
    parts = [
        f"{name} from {rate(line[low])} to {rate(line[high])}"
        for name, line in lines.items()
        if {low, high} <= set(line)
    ]
    return f"The largest step is from N = {low:.0f} to {high:.0f}: {'; '.join(parts)}."


def _blocks(study: Study) -> str:
    at = _largest(study.of("kernel"))
    if not at:
        return ""
    said = []
    for name in dict.fromkeys(row.text("name") for row in at):
        rows = sorted((r for r in at if r.text("name") == name), key=gflops, reverse=True)
        sides = [f"{contestant(r).rpartition(' ')[2]} ({rate(gflops(r))})" for r in rows]
        said.append(f"{name}: {', '.join(sides)}")
    return f"At N = {at[0].problem.n}, the fastest block first: {'; '.join(said)}."


def _resources(study: Study) -> str:
    numbers = {
        q: [row.number("value") for row in study.of(q) if row.number("value") >= 0]
        for q in ("registers", "occupancy")
    }
    said = []
    if numbers["registers"]:
        least, most = min(numbers["registers"]), max(numbers["registers"])
        said.append(f"{least:.0f} to {most:.0f} registers a thread")
    if numbers["occupancy"]:
        least, most = min(numbers["occupancy"]), max(numbers["occupancy"])
        said.append(f"blocks that fill {least:.0%} to {most:.0%} of a multiprocessor's threads")
    count = len({(row.problem.dtype, row.text("config")) for row in study.rows})
    return f"{count} kernels have {' and '.join(said)}." if said else ""


def _counts(study: Study) -> str:
    loaded = study.of("global_loads", study.dtypes[0]) if study.dtypes else []
    at = _largest([row for row in loaded if row.problem.n % TILE == 0] or loaded)
    if not at:
        return ""
    loads = [f"{row.text('name')} {_side(row)}{significant(row.number('value'), 3)}" for row in at]
    values = {
        (row.problem, row.text("config"), row.text("quantity")): row.number("value")
        for row in study.rows
    }
    pairs = [
        (p.n, value, values[p, c, f"{q}_formula"])
        for (p, c, q), value in values.items()
        if (p, c, f"{q}_formula") in values
    ]
    others = [n for n, a, b in pairs if abs(a - b) > 1e-6 * max(abs(a), abs(b))]
    said = f"Numbers that a thread loads from global memory at N = {at[0].problem.n}: "
    beside = f" {len(pairs) - len(others)} of {len(pairs)} counts are what the formula says"
    if others:
        sizes = ", ".join(map(str, sorted(set(others))))
        beside += f"; the others are at N = {sizes}, where tiles reach beyond the matrix"
    return f"{said}{', '.join(loads)}.{beside + '.' if pairs else ''}"


def _side(row: Row) -> str:
    name = contestant(row)
    return f"{name.rpartition(' ')[2]}: " if " " in name else ""


def _transposed(study: Study) -> str:
    said = []
    for words, whole in (("N x N", True), ("N/2 x N", False)):
        rows = [r for r in study.of("kernel") if (r.problem.k == r.problem.n) is whole]
        for dtype in dict.fromkeys(row.problem.dtype for row in rows):
            at = _largest([row for row in rows if row.problem.dtype == dtype])
            own, library = next(iter(_ours(at)[1]), None), _library(at)
            if own and library:
                said.append(
                    f"A of {words}, {dtype}, N = {own.problem.n}: {contestant(own)} "
                    f"{rate(gflops(own))}, "
                    f"{library.seconds / own.seconds:.2f} times as fast as the library's "
                    "whole product"
                )
    return "; ".join(said) + "." if said else ""


def _ladder(study: Study) -> str:
    rows = study.of("kernel")
    own = [row for row in rows if contestant(row) == CHOICE]
    gained = [row for row in own if row.number("speedup") > 0]
    errors = [row.number("error_inf") for row in own if row.number("error_inf") >= 0]
    said = [f"{CHOICE} is {_beside(own)}"] if own else []
    if gained:
        top = max(gained, key=lambda row: row.problem.n)
        said.append(
            f"At N = {top.problem.n} {CHOICE} is {top.number('speedup'):.0f} times as fast "
            "as the sequential product on one thread of the host."
        )
    if errors:
        said.append(f"Its relative error is at most {max(errors):.1e}.")
    return " ".join(said)


def _rectangles(study: Study) -> str:
    own = [row for row in study.of("kernel") if contestant(row) == CHOICE]
    said = []
    for k in sorted({row.problem.k for row in own if row.number("ratio") > 0}):
        row = max(
            (r for r in own if r.problem.k == k and r.number("ratio") > 0),
            key=lambda r: r.problem.n,
        )
        said.append(f"k = {k}: {row.number('ratio'):.2f} (N = {row.problem.n})")
    if not said:
        return ""
    return f"The fastest library's time / {CHOICE}'s at the largest N, {', '.join(said)}."
