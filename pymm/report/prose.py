"""Sentences computed from rows: what an experiment shows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from pymm.console import duration, significant
from pymm.measure.libraries import GENERAL
from pymm.report.content import rate
from pymm.report.load import Row
from pymm.report.stats import (
    CHOICE,
    TRANSFERS,
    Experiment,
    curves,
    gflops,
    implementation,
    mean,
)

#: Sizes that are multiples of it have no partial tiles in any experiment.
TILE = 32


def observation(experiment: Experiment) -> str:
    """What an experiment shows, in a sentence; empty if it lacks the rows."""
    sentence = SENTENCES.get(experiment.name)
    rows = tuple(row for row in experiment.rows if not row.stale)
    return sentence(replace(experiment, rows=rows)) if sentence else ""


def stale_rows(experiment: Experiment) -> str:
    """How much of an experiment is stale, in a sentence; empty if nothing is."""
    stale = [row for row in experiment.rows if row.stale]
    if not stale:
        return ""
    why = Counter(re.sub(r"pymm chooses .* today", "another choice today", r.stale) for r in stale)
    reasons = ", ".join(f"{reason} ({count})" for reason, count in why.most_common())
    return (
        f"Stale: {len(stale)} of {len(experiment.rows)} rows of {experiment.name} ({reasons}). "
        "They are marked, and no sentence counts them."
    )


def _largest(rows: Sequence[Row]) -> list[Row]:
    """The rows of the largest product that several rows share."""
    problems = {row.problem for row in rows}
    shared = [p for p in problems if sum(row.problem == p for row in rows) > 1] or problems
    top = max(shared, key=lambda p: (p.flops, p.n), default=None)
    return [row for row in rows if row.problem == top]


def _ours(rows: Sequence[Row]) -> tuple[str, list[Row]]:
    """The column of pymm's choice, else of its kernel with the highest number: name and rows."""
    names = [implementation(row) for row in rows if row.text("config")]
    name = CHOICE if CHOICE in names else max(names, default="")
    return name, [row for row in rows if implementation(row) == name]


def _library(rows: Sequence[Row]) -> Row | None:
    """The fastest library among the rows."""
    of = [row for row in rows if row.text("name") in GENERAL]
    return min(of, key=lambda row: row.seconds, default=None)


def _tiles(experiment: Experiment) -> str:
    kernels = [row for row in experiment.of("kernel") if row.text("config")]
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
        f"At N = {n}, {names[-1]} takes {duration(last)} and {names[0]} {duration(first)}, "
        f"{first / last:.1f} times as long"
    )
    library = _library([row for row in experiment.of("kernel") if row.problem.n == n])
    rest = f"; the fastest library takes {duration(library.seconds)}" if library else ""
    return f"{said}{rest}."


def _transfers(experiment: Experiment) -> str:
    at = _largest(experiment.of("total"))
    if not at:
        return ""
    n, name = at[0].problem.n, implementation(at[-1])
    own = [row for row in experiment.of("kernel") if implementation(row) == name]
    kernel = [row for row in own if row.problem == at[0].problem]
    if not kernel:
        return ""
    parts = [
        f"{TRANSFERS.get(row.text('transfer'), '')} {kernel[0].seconds / row.seconds:.0%} of "
        f"{duration(row.seconds)}"
        for row in at
        if implementation(row) == name
    ]
    return f"Share of the kernel {name} in the total time at N = {n}: {'; '.join(parts)}."


def _split(experiment: Experiment) -> str:
    kernels = experiment.of("kernel")
    rows = [row for row in kernels if implementation(row) == CHOICE] or kernels
    if not rows:
        return ""
    row = max(rows, key=lambda r: r.problem.n)
    said = []
    for way in TRANSFERS:
        parts = [
            [r.seconds for r in experiment.of(name, transfer=way) if r.problem == row.problem]
            for name in ("to_device", "to_host")
        ]
        if all(parts):
            total = parts[0][0] + row.seconds + parts[1][0]
            said.append(f"{row.seconds / total:.0%} ({TRANSFERS[way]})")
    if not said:
        return ""
    return (
        f"At N = {row.problem.n} the kernel of {implementation(row)} takes {' or '.join(said)} of "
        "the time; the rest is the transfers of A, B and C."
    )


def _sizes(experiment: Experiment) -> str:
    name, rows = _ours(experiment.of("kernel"))
    if not rows:
        return ""
    best = max(rows, key=gflops)
    peak = experiment.peaks.get(best.problem.dtype)
    part = f", {gflops(best) / peak:.0%} of peak" if peak else ""
    reached = f"{rate(gflops(best))} at N = {best.problem.n}{part}"
    return f"{name} reaches {reached}; it is {_against_libraries(rows)}"


def _against_libraries(rows: Sequence[Row]) -> str:
    """A comparison with the fastest library, with the lowest ratio."""
    known = [row for row in rows if row.number("ratio") > 0]
    if not known:
        return "not compared with a library."
    ahead = sum(row.number("ratio") >= 1 for row in known)
    worst = min(known, key=lambda row: row.number("ratio"))
    p = worst.problem
    where = f"N = {p.n}" if p.m == p.n == p.k else f"{p.m} x {p.n} x {p.k}"
    return (
        f"at least as fast as the fastest library in {ahead} of {len(known)} products, on "
        f"average {mean(r.number('ratio') for r in known):.2f} times as fast, at worst "
        f"{worst.number('ratio'):.2f} times ({where})."
    )


def _remainders(experiment: Experiment) -> str:
    """The step in size at which the longest curve drops most, with the other curves there."""
    lines = curves(experiment.of("kernel"), gflops)
    if not lines:
        return ""
    first = max(lines.values(), key=len)  # what is stale may have left few sizes of another
    steps = list(itertools.pairwise(sorted(first)))
    if not steps:
        return ""
    low, high = min(steps, key=lambda step: first[step[1]] / first[step[0]])
    parts = [
        f"{name} from {rate(line[low])} to {rate(line[high])}"
        for name, line in lines.items()
        if {low, high} <= set(line)
    ]
    return f"The largest drop is from N = {low:.0f} to {high:.0f}: {'; '.join(parts)}."


def _blocks(experiment: Experiment) -> str:
    at = _largest(experiment.of("kernel"))
    if not at:
        return ""
    said = []
    for name in dict.fromkeys(row.text("name") for row in at):
        rows = sorted((r for r in at if r.text("name") == name), key=gflops, reverse=True)
        sides = [f"{implementation(r).rpartition(' ')[2]} ({rate(gflops(r))})" for r in rows]
        said.append(f"{name}: {', '.join(sides)}")
    return f"At N = {at[0].problem.n}, from the fastest block size: {'; '.join(said)}."


def _checks(experiment: Experiment) -> str:
    """How many kernels fail at each size: those that lack a guard there are to."""
    sizes: dict[int, list[str]] = {}
    for row in experiment.of("check"):
        sizes.setdefault(row.problem.n, []).append(row.text("value"))
    said = [
        f"at N = {n} {values.count('TEST FAIL')} of {len(values)} kernels fail"
        for n, values in sorted(sizes.items())
    ]
    return f"Wanted where a guard is missing: {'; '.join(said)}." if said else ""


def _pads(experiment: Experiment) -> str:
    at = sorted(_largest(experiment.of("kernel")), key=gflops, reverse=True)
    said = [f"{implementation(row)} ({rate(gflops(row))})" for row in at]
    return f"At N = {at[0].problem.n}, from the fastest: {', '.join(said)}." if at else ""


def _resources(experiment: Experiment) -> str:
    numbers = {
        q: [row.number("value") for row in experiment.of(q) if row.number("value") >= 0]
        for q in ("registers", "occupancy")
    }
    said = []
    if numbers["registers"]:
        least, most = min(numbers["registers"]), max(numbers["registers"])
        said.append(f"{least:.0f} to {most:.0f} registers per thread")
    if numbers["occupancy"]:
        least, most = min(numbers["occupancy"]), max(numbers["occupancy"])
        said.append(f"an occupancy of {least:.0%} to {most:.0%}")
    count = len({(row.problem.dtype, row.text("config")) for row in experiment.rows})
    return f"{count} kernels have {' and '.join(said)}." if said else ""


def _counts(experiment: Experiment) -> str:
    loaded = experiment.of("global_loads", experiment.dtypes[0]) if experiment.dtypes else []
    at = _largest([row for row in loaded if row.problem.n % TILE == 0] or loaded)
    if not at:
        return ""
    loads = [f"{row.text('name')} {_side(row)}{significant(row.number('value'), 3)}" for row in at]
    values = {
        (row.problem, row.text("config"), row.text("quantity")): row.number("value")
        for row in experiment.rows
    }
    pairs = [
        (p.n, value, values[p, c, f"{q}_formula"])
        for (p, c, q), value in values.items()
        if (p, c, f"{q}_formula") in values
    ]
    others = [n for n, a, b in pairs if abs(a - b) > 1e-6 * max(abs(a), abs(b))]
    said = f"Elements that a thread loads from global memory at N = {at[0].problem.n}: "
    rest = f" {len(pairs) - len(others)} of {len(pairs)} counts equal the formula"
    if others:
        sizes = ", ".join(map(str, sorted(set(others))))
        rest += f"; the others are at N = {sizes}, where tiles extend beyond the matrix"
    return f"{said}{', '.join(loads)}.{rest + '.' if pairs else ''}"


def _side(row: Row) -> str:
    name = implementation(row)
    return f"{name.rpartition(' ')[2]}: " if " " in name else ""


def _transposed(experiment: Experiment) -> str:
    said = []
    for shape, square in (("N x N", True), ("N/2 x N", False)):
        rows = [r for r in experiment.of("kernel") if (r.problem.k == r.problem.n) is square]
        for dtype in dict.fromkeys(row.problem.dtype for row in rows):
            at = _largest([row for row in rows if row.problem.dtype == dtype])
            own, library = next(iter(_ours(at)[1]), None), _library(at)
            if own and library:
                said.append(
                    f"A of {shape}, {dtype}, N = {own.problem.n}: {implementation(own)} "
                    f"{rate(gflops(own))}, "
                    f"{library.seconds / own.seconds:.2f} times as fast as the library's gemm"
                )
    return "; ".join(said) + "." if said else ""


def _ladder(experiment: Experiment) -> str:
    rows = experiment.of("kernel")
    own = [row for row in rows if implementation(row) == CHOICE]
    gained = [row for row in own if row.number("speedup") > 0]
    errors = [row.number("error_inf") for row in own if row.number("error_inf") >= 0]
    said = [f"{CHOICE} is {_against_libraries(own)}"] if own else []
    if gained:
        top = max(gained, key=lambda row: row.problem.n)
        said.append(
            f"At N = {top.problem.n} {CHOICE} is {top.number('speedup'):.0f} times as fast "
            "as the sequential product on one thread of the host."
        )
    if errors:
        said.append(f"Its relative error is at most {max(errors):.1e}.")
    return " ".join(said)


def _rectangles(experiment: Experiment) -> str:
    own = [row for row in experiment.of("kernel") if implementation(row) == CHOICE]
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


#: The sentence of each experiment.
SENTENCES: dict[str, Callable[[Experiment], str]] = {
    "o1": _tiles,
    "o2-transfers": _transfers,
    "o2-split": _split,
    "o2-sizes": _sizes,
    "o2-remainders": _remainders,
    "o2-blocks": _blocks,
    "o2-guards": _checks,
    "o2-kernels": _resources,
    "o2-counts": _counts,
    "o3": _transposed,
    "o3-pads": _pads,
    "o4-square": _ladder,
    "o4-rectangular": _rectangles,
}
