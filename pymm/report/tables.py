"""Tables of products, searches and calls; ratios also as coloured grids, by class and by shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pymm.console import duration
from pymm.core.problem import Problem
from pymm.kernels import KERNELS
from pymm.measure.libraries import BASELINES, GENERAL
from pymm.report.content import SHADES, Cell, Table, cell
from pymm.report.load import Row
from pymm.report.searches import Search
from pymm.report.stats import OWN, Comparison, Timing, display_name, kind_of, mean

LAYOUTS = ("NN", "NT", "TN", "TT")


def shade(ratio: float) -> float | None:
    """The colour of a ratio, from -1 to 1 by the steps of `SHADES`, as strong for a loss as for a
    gain; 0 for times that are equal within the first step, None for NaN.
    """
    if not ratio > 0:
        return None
    factor = max(ratio, 1 / ratio) * (1 + 1e-12)  # a step includes its limit
    part = sum(factor >= limit for limit in SHADES) / len(SHADES)
    return part if ratio > 1 else -part


def ratio_cell(ratio: float) -> Cell:
    """A ratio as a coloured cell."""
    return cell(ratio, "{:.2f}", shade(ratio))


def extents(problem: Problem) -> Cell:
    """The shape as a cell that sorts by the number of operations; a square as one number."""
    m, n, k = problem.m, problem.n, problem.k
    text = f"{n}" if m == n == k else f"{m} x {n} x {k}"
    return Cell(text, problem.flops)


def class_means(comparisons: Sequence[Comparison]) -> list[Table]:
    """Geometric means by class and type, of row-major and of transposed operands; one table for the
    types with the same classes.
    """
    classes: dict[str, dict[str, None]] = {}
    for comparison in comparisons:
        classes.setdefault(kind_of(comparison.problem), {})[comparison.name] = None
    groups: list[tuple[list[str], list[str]]] = []
    for dtype, names in classes.items():
        for dtypes, of in groups:
            if set(names) & set(of):
                dtypes.append(dtype)
                of += [name for name in names if name not in of]
                break
        else:
            groups.append(([dtype], list(names)))
    return [_means(comparisons, *group, place) for place, group in enumerate(groups)]


def _means(
    comparisons: Sequence[Comparison], dtypes: list[str], classes: list[str], place: int
) -> Table:
    rows = [{"class": Cell(name)} for name in classes]
    for dtype in dtypes:
        for title, layouts in _columns(dtype):
            of = [
                c
                for c in comparisons
                if kind_of(c.problem) == dtype and c.problem.layout in layouts
            ]
            if not any(c.ratio > 0 for c in of):
                continue
            for row, name in zip(rows, classes, strict=True):
                row[title] = _mean_cell([c for c in of if c.name == name])
    note = "Geometric means of the baseline's time / pymm's: above 1 pymm is faster. " + (
        "The baseline is the faster of gemm and of syrk followed by mirroring. "
        if any(" " in dtype for dtype in dtypes)
        else "NN: both operands row-major; transposed: A, B or both. "
    )
    note += "Empty: not measured."
    title = f"Classes of shapes, {', '.join(dtypes)}"
    return Table(f"classes-{place}", title, rows, note, grid=True)


def _mean_cell(comparisons: Sequence[Comparison]) -> Cell:
    """The mean of a class as a coloured cell, with the number of its products that failed."""
    average = mean(c.ratio for c in comparisons)
    failed = sum(not c.row.valid for c in comparisons)
    if not failed:
        return ratio_cell(average)
    text = f"{average:.2f}, " if average > 0 else ""
    return Cell(f"{text}{failed} failed", average if average > 0 else 0.0)


def _columns(kind: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The columns of a type and operation, with the layouts that each covers."""
    dtype, _, op = kind.partition(" ")
    if op:
        return ((f"{dtype} A A^T", ("NT",)), (f"{dtype} A^T A", ("TN",)))
    return ((f"{dtype} NN", LAYOUTS[:1]), (f"{dtype} transposed", LAYOUTS[1:]))


def against_gemm(comparisons: Sequence[Comparison]) -> Table:
    """Symmetric products compared with the library's gemm, class by class."""
    of = [c for c in comparisons if c.problem.op != "gemm"]
    rows = [{"class": Cell(name)} for name in dict.fromkeys(c.name for c in of)]
    for kind in dict.fromkeys(kind_of(c.problem) for c in of):
        for title, layouts in _columns(kind):
            at = [c for c in of if kind_of(c.problem) == kind and c.problem.layout in layouts]
            for row in rows:
                named = [_gemm_ratio(c) for c in at if c.name == row["class"].text]
                row[title] = ratio_cell(mean(named))
    note = (
        "Geometric means of the time of the library's gemm, which computes twice as many elements, "
        "/ the time of `pymm.syrk`."
    )
    return Table("against-gemm", "Symmetric products compared with gemm", rows, note, grid=True)


def _gemm_ratio(comparison: Comparison) -> float:
    times = [comparison.row.number(f"{name}_us") for name in GENERAL]
    known = [seconds * 1e-6 for seconds in times if seconds > 0]
    return min(known) / comparison.seconds if known and comparison.seconds > 0 else math.nan


def shape_maps(comparisons: Sequence[Comparison]) -> list[Table]:
    """Every shape by type and layout, one table per operation."""
    ops = dict.fromkeys(c.problem.op for c in comparisons)
    return [shape_map([c for c in comparisons if c.problem.op == op]) for op in ops]


def shape_map(comparisons: Sequence[Comparison]) -> Table:
    """Every shape by type and layout."""
    kinds = list(dict.fromkeys((kind_of(c.problem), c.problem.layout) for c in comparisons))
    dtypes = list(dict.fromkeys(dtype for dtype, _ in kinds))
    kinds.sort(key=lambda kind: (dtypes.index(kind[0]), kind[1]))
    shapes: dict[tuple[int, int, int], dict[tuple[str, str], Cell]] = {}
    for c in comparisons:
        at = shapes.setdefault((c.problem.m, c.problem.n, c.problem.k), {})
        stale = Cell(f"{c.ratio:.2f} stale", c.ratio)
        shown = stale if c.row.stale and c.ratio > 0 else ratio_cell(c.ratio)
        at[kind_of(c.problem), c.problem.layout] = shown
    rows = [
        {"m x n x k": extents(Problem(*shape))}
        | {" ".join(kind): at.get(kind, Cell("")) for kind in kinds}
        for shape, at in sorted(shapes.items(), key=lambda item: (len(set(item[0])), item[0]))
    ]
    note = "The baseline's time / pymm's for every product; above 1 pymm is faster."
    op = comparisons[0].problem.op
    name, what = ("shapes", "shape") if op == "gemm" else (f"shapes-{op}", f"{op} shape")
    return Table(name, f"Every {what} by type and layout", rows, note, grid=True)


def of_problem(problem: Problem) -> dict[str, Cell]:
    """The columns that identify a product."""
    named = {"type": Cell(kind_of(problem)), "layout": Cell(problem.layout)}
    return named | {"m x n x k": extents(problem)}


def percent_cell(part: float, format_: str = "{:.0f}%") -> Cell:
    """A fraction as a cell in percent."""
    return cell(100 * part, format_)


def time_cell(seconds: float) -> Cell:
    """A time as a cell."""
    return Cell(duration(seconds), seconds) if seconds > 0 else Cell("")


def parameters_of(row: Row) -> Cell:
    """A configuration without its kernel's name: "MB128 NB256"."""
    return Cell(" ".join(row.text("config").split("-")[1:]))


def products(comparisons: Sequence[Comparison]) -> Table:
    """Every product with its times, and the configuration with the reason for its selection."""
    libraries = [name for name in BASELINES if any(c.row.text(f"{name}_us") for c in comparisons)]
    rows = []
    for c in comparisons:
        row = c.row
        times = {display_name(name): cell(row.number(f"{name}_us")) for name in libraries}
        rows.append(
            {
                **of_problem(c.problem),
                "class": Cell(c.name),
                OWN: cell(c.seconds * 1e6),
                **times,
                "ratio": ratio_cell(c.ratio),
                "state": Cell(state(row)),
                "GFLOP/s": cell(row.number("gflops")),
                "of peak": percent_cell(row.number("peak")),
                "spread": percent_cell(row.number("spread"), "{:.1f}%"),
                "kernel": Cell(row.text("kernel")),
                "configuration": parameters_of(row),
                "selected because": Cell(row.text("reason")),
                "outcome": Cell(outcome(row)),
            }
        )
    note = (
        "Times are medians in microseconds; spread is the interquartile range / the median. "
        f"{STALE_NOTE}"
    )
    return Table("products", "Every product", rows, note)


def losses(comparisons: Sequence[Comparison]) -> Table:
    """The products on which pymm is slower than the baseline, the worst first."""
    found = sorted((c for c in comparisons if c.ratio < 1), key=lambda c: c.ratio)
    rows = [
        {
            **of_problem(c.problem),
            "class": Cell(c.name),
            "ratio": ratio_cell(c.ratio),
            OWN: time_cell(c.seconds),
            "baseline": time_cell(c.baseline_seconds),
            "faster library": Cell(display_name(c.baseline)),
            "spread": percent_cell(c.row.number("spread"), "{:.1f}%"),
        }
        for c in found
    ]
    note = "Every product with a ratio below 1, the worst first. Spread is that of pymm's times."
    return Table("losses", f"Where pymm is slower: {len(rows)} products", rows, note)


#: What a column "state" says of a row, and the note on it.
STALE_NOTE = (
    "Stale: pymm has another kernel source, chooses another configuration, or uses other tools "
    "today; such rows are in no mean and in no headline."
)


def state(row: Row) -> str:
    """Whether a row is today's."""
    return f"stale: {row.stale}" if row.stale else "today's"


def outcome(row: Row) -> str:
    """The outcome of a measurement, with the reason if it failed."""
    detail = row.text("detail")
    return row.text("outcome") + (f": {detail}" if detail and row.text("outcome") != "ok" else "")


def kernels(everything: Sequence[Timing], failed: Sequence[Row]) -> Table:
    """Every kernel and library of `python -m pymm.bench` on every product, and what failed."""
    titles = {kernel.label: kernel.title for kernel in KERNELS}
    rows = [
        {
            **of_problem(t.problem),
            "kernel": Cell(t.kernel if t.library == OWN else display_name(t.library)),
            "variant": Cell(t.variant),
            "time": time_cell(t.seconds),
            "GFLOP/s": cell(t.gflops),
            "of peak": percent_cell(t.row.number("peak"), "{:.1f}%"),
            "ratio": ratio_cell(t.row.number("ratio")),
            "spread": percent_cell(t.spread, "{:.1f}%"),
            "state": Cell(state(t.row) if t.library == OWN else ""),
            "registers": cell(t.row.number("registers")),
            "shared": cell(t.row.number("shared")),
            "configuration": parameters_of(t.row),
            "what it adds": Cell(titles.get(t.kernel, "")),
        }
        for t in everything
    ]
    empty = dict.fromkeys(("time", "GFLOP/s", "of peak", "ratio", "spread"), Cell(""))
    rows += [
        {
            **of_problem(row.problem),
            "kernel": Cell(display_name(row.text("name"))),
            "variant": Cell(row.text("variant")),
            **empty,
            "state": Cell(outcome(row)),
            **dict.fromkeys(("registers", "shared"), Cell("")),
            "configuration": parameters_of(row),
            "what it adds": Cell(titles.get(row.text("name"), "")),
        }
        for row in failed
    ]
    note = (
        "Ratio: time of the fastest library in the same run / this time. Registers per thread; "
        f"shared memory per block in bytes. {STALE_NOTE}"
    )
    return Table("kernels", "Every kernel", rows, note)


def gains(found: Sequence[Search]) -> Table:
    """Every search: its length, its gain and its winner."""
    rows = []
    for search in found:
        best, first = search.best, search.final[0] if search.final else None
        known = search.gain == search.gain
        length = search.progress[-1][1] if search.progress else math.nan
        baseline = search.baseline.seconds if search.baseline else math.nan
        rows.append(
            {
                **of_problem(search.problem),
                "kernel": Cell(search.kernel),
                "trials": Cell(str(len(search.tried)), len(search.tried)),
                "seconds": cell(length, "{:.0f}"),
                "default": time_cell(first.seconds if known else math.nan),
                "best": time_cell(best.seconds if best else math.nan),
                "gain": ratio_cell(search.gain),
                "library": time_cell(baseline),
                "ratio": ratio_cell(search.ratio),
                "state": Cell(_result(search)),
                "configuration": parameters_of(best) if best else Cell(""),
                "file": Cell(search.file),
            }
        )
    note = (
        "Gain: the default's time / the winner's, measured in alternation at the end of the "
        "search; empty if the default was not measured there, or the times were doubtful. Ratio: "
        f"the fastest library's time / the winner's in the same comparison. {STALE_NOTE}"
    )
    return Table("gains", "Every search", rows, note)


def _result(search: Search) -> str:
    """Whether what a search found is today's."""
    if search.best is None:
        return "nothing valid"
    return f"stale: {search.stale}" if search.stale else "today's"


def unseen(found: Sequence[Row]) -> Table:
    """Untuned shapes: the selected configuration compared with the result of a search."""
    rows = [
        {
            **of_problem(row.problem),
            "selected": cell(row.number("chosen_us")),
            "default": cell(row.number("default_us")),
            "found by search": cell(row.number("found_us")),
            "selected / fastest": ratio_cell(row.number("of_fastest")),
            "default / selected": ratio_cell(row.number("of_default")),
            "configuration": Cell(row.text("chosen").replace("-", " ")),
            "selected because": Cell(row.text("reason")),
        }
        for row in found
    ]
    note = (
        "Times in microseconds. Each random shape was searched without storing the result; then "
        "the three were measured in alternation. Ratios are of rates."
    )
    return Table("unseen", "Random shapes", rows, note)


def repeated(found: Sequence[Row]) -> Table:
    """Tunings of one product that know nothing of each other."""
    rows = [
        {
            **of_problem(row.problem),
            "seed": Cell(row.text("seed")),
            "seconds": cell(row.number("seconds")),
            "tried": cell(row.number("tried"), "{:.0f}"),
            "found": cell(row.number("us")),
            "spread": percent_cell(row.number("spread"), "{:.1f}%"),
            "configuration": Cell(row.text("config").replace("-", " ")),
        }
        for row in found
    ]
    note = (
        "Each line is a search that began with neither stored configurations nor compiled kernels. "
        "What they found was measured in alternation; times in microseconds."
    )
    return Table("repeated", "One product tuned again and again", rows, note)


def beside_numpy(found: Sequence[Row]) -> Table:
    """pymm's calls and NumPy's on a CPU, the last measurement of each."""
    latest = {(row.problem, row.text("process"), row.text("call")): row for row in found}
    rows = [
        {
            **of_problem(problem),
            "process": Cell(process),
            "call": Cell(call),
            "us": cell(row.number("us")),
            "lower quartile": cell(row.number("quartile_1")),
            "upper quartile": cell(row.number("quartile_3")),
            "NumPy / this": cell(row.number("ratio")),
        }
        for (problem, process, call), row in latest.items()
    ]
    note = (
        "Median microseconds of a call whose operands are in the caches. Process: each library in "
        "one of its own, or both in a shared one, call after call."
    )
    return Table("beside-numpy", "Calls of pymm and of NumPy", rows, note)


def calls(found: Sequence[Row]) -> Table:
    """The host's time for a call, the last measurement of each."""
    latest = {(row.problem, row.text("arrays"), row.text("call")): row for row in found}
    several = len({problem for problem, _, _ in latest}) > 1
    rows = [
        {
            **(of_problem(problem) if several else {}),
            "arrays of": Cell(arrays),
            "call": Cell(call),
            "us": cell(row.number("us")),
            "lower quartile": cell(row.number("quartile_1")),
            "upper quartile": cell(row.number("quartile_3")),
        }
        for (problem, arrays, call), row in latest.items()
    ]
    note = "Median microseconds until the call returns, without waiting for the device."
    return Table("calls", "Calls", rows, note)
