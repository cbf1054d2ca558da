"""What the rows of a device say: the time of every kernel and library on every product, their
ratios, highest rates and means, and the rows of each experiment.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.bench.experiments.declaration import FORCED
from pymm.core.problem import Problem
from pymm.kernels import KERNELS
from pymm.measure.libraries import BASELINES, GENERAL
from pymm.report.load import Results, Row
from pymm.report.searches import Search, searches

#: The name of pymm among the libraries.
OWN = "pymm"


@dataclass(frozen=True)
class Timing:
    """The time of one kernel or library on one product. `library` is `OWN` or another; only pymm
    has a `kernel` and a `variant`. `run` is the file; `spread` is the interquartile range / the
    median of `rounds` samples.
    """

    problem: Problem
    library: str
    kernel: str
    variant: str
    seconds: float
    spread: float
    rounds: float
    run: str
    row: Row

    @property
    def gflops(self) -> float:
        """10^9 operations per second."""
        return self.problem.flops / self.seconds / 1e9

    @property
    def square(self) -> bool:
        """Whether m = n = k."""
        return self.problem.m == self.problem.n == self.problem.k


@dataclass(frozen=True)
class Comparison:
    """The kernel that `matmul` selects for one product, compared with the fastest baseline."""

    name: str  # of the class
    problem: Problem
    ratio: float  # baseline's time / pymm's; NaN if one is missing
    seconds: float
    baseline: str
    baseline_seconds: float
    row: Row


@dataclass(frozen=True)
class HighestRate:
    """The highest rates of a type, pymm's and the baseline's, and the device's peak in GFLOP/s."""

    dtype: str
    own: Timing
    baseline: Timing | None
    peak: float


#: The columns that identify a product.
PRODUCT = ("op", "dtype", "layout", "m", "n", "k")


def display_name(name: str) -> str:
    """The name of a kernel or library as reports show it."""
    return BASELINES[name].title if name in BASELINES else name


def latest(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """The last row of each key, in the order of the files: a later measurement replaces an
    earlier.
    """
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row.text(name) for name in names)
        found.pop(key, None)
        found[key] = row
    return list(found.values())


def class_rows(results: Results) -> list[Row]:
    """The rows of all classes, the last of each product."""
    return latest(results.of("classes"), ("class", "dtype", "layout", "m", "n", "k"))


def bench_rows(results: Results) -> list[Row]:
    """The rows of `python -m pymm.bench --shapes`, the last of each kernel and variant."""
    return latest(results.of("bench"), (*PRODUCT, "name", "variant"))


def suite_rows(results: Results) -> list[Row]:
    """The rows of all experiments, the last of each quantity. Of a product that was measured again,
    with other kernels or other source, only the rows of the last step.
    """
    names = ("suite", "step", "name", "variant", "config", "quantity", "transfer")
    rows = latest(results.of("suites"), (*names, *PRODUCT))
    last = {_measured(row): row.text("step") for row in rows}
    return [row for row in rows if row.text("step") == last[_measured(row)]]


def _measured(row: Row) -> tuple[object, ...]:
    """What the rows of one step have in common."""
    return (row.text("suite"), row.problem, row.text("quantity").startswith("ncu:"))


def timings(results: Results) -> list[Timing]:
    """Every valid time, of pymm's kernels and of libraries."""
    found = []
    for row in class_rows(results):
        if row.valid:
            found.append(_timing(row, OWN, row.text("kernel"), "chosen", row.seconds))
        for column, value in row.cells.items():
            if column and column.endswith("_us") and value and row.number(column) > 0:
                seconds = row.number(column) * 1e-6
                found.append(_timing(row, column.removesuffix("_us"), "", "", seconds))
    kernels = [row for row in suite_rows(results) if row.text("quantity") == "kernel"]
    for row in (*bench_rows(results), *kernels):
        name = row.text("name")
        if row.valid and name != "sequential":
            library = OWN if name[:1].isdigit() else name
            found.append(_timing(row, library, name, row.text("variant"), row.seconds))
    for search in tuned_searches(results):
        own = search.best
        found.append(_timing(own, OWN, _label(search.kernel), "tuned", own.seconds))
        found += [_timing(row, name, "", "", row.seconds) for name, row in search.libraries.items()]
    return found


def tuned_searches(results: Results) -> list[Search]:
    """The last search of each kernel on each product whose result is today's, was measured in turn
    with the default, and is not doubtful.
    """
    right = [s for s in searches(results) if s.best is not None and s.final and not s.stale]
    right = [s for s in right if not s.doubtful]
    return list({(s.problem, s.kernel, s.rows[0].text("beta")): s for s in right}.values())


def _label(kernel: str) -> str:
    """The name of a kernel with its number."""
    return next((k.label for k in KERNELS if k.name == kernel), kernel)


def _timing(row: Row, library: str, kernel: str, variant: str, seconds: float) -> Timing:
    spread = row.number("spread")
    rounds = row.number("repeats" if row.kind == "trials" else "rounds")
    if row.kind == "classes" and library != OWN:
        spread = math.nan  # the row's spread is of pymm's samples
    return Timing(row.problem, library, kernel, variant, seconds, spread, rounds, row.file, row)


def class_comparisons(results: Results) -> list[Comparison]:
    """Every product of the classes, including failed ones."""
    found = []
    for row in class_rows(results):
        times = {name: row.number(f"{name}_us") * 1e-6 for name in GENERAL}
        times = {name: seconds for name, seconds in times.items() if seconds > 0}
        baseline = min(times, key=times.__getitem__, default="")
        own = row.seconds if row.valid else math.nan
        # the row's ratio may be of a library that is no baseline
        ratio = row.number("ratio") if row.valid else math.nan
        if ratio != ratio and baseline and own > 0:
            ratio = times[baseline] / own
        found.append(
            Comparison(row.text("class"), row.problem, ratio, own, baseline, ratio * own, row)
        )
    return found


def bench_comparisons(results: Results) -> list[Comparison]:
    """For each product of `python -m pymm.bench`, its fastest kernel compared with the baseline."""
    found, everything = [], [t for t in timings(results) if t.row.kind == "bench"]
    for problem in dict.fromkeys(t.problem for t in everything):
        at = [t for t in everything if t.problem == problem]
        own = [t for t in at if t.library == OWN]
        others = [t for t in at if t.library in GENERAL]
        if not own:
            continue
        best = min(own, key=lambda t: t.seconds)
        baseline = min(others, key=lambda t: t.seconds, default=None)
        ratio = baseline.seconds / best.seconds if baseline else math.nan
        found.append(
            Comparison(
                "",
                problem,
                ratio,
                best.seconds,
                baseline.library if baseline else "",
                baseline.seconds if baseline else math.nan,
                best.row,
            )
        )
    return found


def peaks(results: Results) -> dict[str, float]:
    """Peak GFLOP/s by type: from `device.json`, else as implied by the rows' parts of peak."""
    known = results.device.get("peak_flops")
    found = {name: float(v) / 1e9 for name, v in known.items()} if isinstance(known, dict) else {}
    implied: dict[str, list[float]] = {}
    for row in (*results.of("classes"), *results.of("bench")):
        part = row.number("peak")
        if row.valid and part > 0 and row.number("gflops") > 0:
            implied.setdefault(row.problem.dtype, []).append(row.number("gflops") / part)
    return {name: statistics.median(rates) for name, rates in implied.items()} | found


def highest_rates(results: Results) -> list[HighestRate]:
    """The highest rates of each type with a known peak, in the order of the rows; pymm's without
    what is stale.
    """
    limits, everything, found = peaks(results), timings(results), []
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype]
        own = [t for t in at if t.library == OWN and not t.row.stale]
        others = [t for t in at if t.library in GENERAL]
        if own and dtype in limits:
            best = max(own, key=lambda t: t.gflops)
            baseline = max(others, key=lambda t: t.gflops, default=None)
            found.append(HighestRate(dtype, best, baseline, limits[dtype]))
    return found


def tuned_comparisons(results: Results) -> list[Comparison]:
    """For each product that was tuned, its fastest kernel compared with the baseline of that
    search.
    """
    best: dict[Problem, Search] = {}
    for search in tuned_searches(results):
        other = best.get(search.problem)
        if other is None or search.best.seconds < other.best.seconds:
            best[search.problem] = search
    return [
        Comparison(
            "",
            problem,
            search.ratio,
            search.best.seconds,
            search.baseline.text("config") if search.baseline else "",
            search.ratio * search.best.seconds,
            search.best,
        )
        for problem, search in best.items()
    ]


def comparisons(results: Results) -> list[Comparison]:
    """One comparison per product: of the classes, else of `python -m pymm.bench`, else of the
    searches.
    """
    found = class_comparisons(results) or bench_comparisons(results)
    return found or tuned_comparisons(results)


def current(found: Iterable[Comparison]) -> list[Comparison]:
    """Those of what pymm chooses and runs today: what headlines are made of."""
    return [comparison for comparison in found if not comparison.row.stale]


def kind_of(problem: Problem) -> str:
    """The type, and the operation unless it is gemm: "f32", "f64 syrk"."""
    return problem.dtype if problem.op == "gemm" else f"{problem.dtype} {problem.op}"


def mean(ratios: Iterable[float]) -> float:
    """The geometric mean of those that are not NaN; NaN if all are."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def standard_error(spread: float, rounds: float) -> float:
    """The relative standard error of a median: 1.2533 s / sqrt(n) for n samples of a normal
    distribution, where s is the interquartile range / 1.349. NaN for unknown rounds.
    """
    return 1.2533 * spread / 1.349 / math.sqrt(rounds) if rounds > 0 else math.nan


def device_name(results: Results) -> str:
    """The name of the device as reports show it."""
    return str(results.device.get("name") or results.slug)


def baseline_name(results: Results) -> str:
    """The baseline as reports call it: the libraries that were measured."""
    seen = {t.library for t in timings(results)}
    names = dict.fromkeys(BASELINES[name].family for name in GENERAL if name in seen)
    return " or ".join(names) or "a library"


#: Quantities that are times.
TIMES = ("kernel", "total", "to_device", "to_host")

#: What curves and columns call the kernel that `matmul` selects.
CHOICE = "pymm's choice"

#: What is added to the name of what is not today's.
STALE = ", stale"

#: How operands are transferred: the names in the rows, and as reports show them.
TRANSFERS = {
    "pageable": "pageable",
    "pinned": "pinned staging",
    "registered": "pinned per call",
    "locked": "pinned once",
}

#: Curves by name: y by x.
Curves = dict[str, dict[float, float]]


@dataclass(frozen=True)
class Experiment:
    """The rows of one experiment, the last of each quantity, and the device's peak rates by type,
    in GFLOP/s.
    """

    name: str
    rows: tuple[Row, ...]
    peaks: Mapping[str, float] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The question that it answers."""
        known = EXPERIMENTS.get(self.name)
        return known.title if known else self.name

    def of(self, quantity: str, dtype: str = "", transfer: str | None = None) -> list[Row]:
        """The rows of a quantity that have a value, of one type or transfer if given."""
        return [
            row
            for row in self.rows
            if row.text("quantity") == quantity
            and dtype in ("", row.problem.dtype)
            and transfer in (None, row.text("transfer"))
            and (row.valid if quantity in TIMES else row.text("value"))
        ]

    @property
    def dtypes(self) -> list[str]:
        """The types in its rows."""
        return list(dict.fromkeys(row.problem.dtype for row in self.rows))


def experiments(results: Results) -> dict[str, Experiment]:
    """All experiments with rows, in the order of the catalog."""
    groups: dict[str, list[Row]] = {}
    for row in suite_rows(results):
        groups.setdefault(row.text("suite"), []).append(row)
    known = [name for name in EXPERIMENTS if name in groups]
    others = [name for name in groups if name not in EXPERIMENTS]
    limits = peaks(results)
    return {name: Experiment(name, tuple(groups[name]), limits) for name in (*known, *others)}


def implementation(row: Row) -> str:
    """The name of a row's curve or column: a kernel (with its tile where the experiment varies it),
    a library, or `CHOICE`; a stale row's says so.
    """
    return _implementation(row) + (STALE if row.stale else "")


def _implementation(row: Row) -> str:
    if row.text("variant") == "chosen":
        return CHOICE
    variant = row.text("variant")
    if variant in ("fixed", *FORCED):
        tile = re.search(r"-MB(\d+)-NB(\d+)", row.text("config"))
        name = f"{row.text('name')} {tile[1]}x{tile[2]}" if tile else row.text("name")
        pad = re.search(r"-PAD(\d+)", row.text("config"))
        name += f" pad {pad[1]}" if pad else ""
        return name if variant == "fixed" else f"{name} {variant}"
    return display_name(row.text("name"))


def curves(
    rows: Iterable[Row],
    height: Callable[[Row], float],
    along: Callable[[Row], float] = lambda row: row.problem.n,
) -> Curves:
    """One curve for each kernel and library."""
    found: Curves = {}
    for row in rows:
        y = height(row)
        if y == y:
            found.setdefault(implementation(row), {})[along(row)] = y
    return ordered(found)


def ordered(found: Curves) -> Curves:
    """`CHOICE` first, then libraries, then kernels by number."""

    def place(item: tuple[str, object]) -> tuple[object, ...]:
        name = item[0]
        sizes = [int(size) for size in re.findall("[0-9]{1,9}", name)]
        first = 0 if name.startswith(CHOICE) else 2 if name[:1].isdigit() else 1
        return (first, name.split(" ")[0], sizes, name)

    return {name: dict(sorted(line.items())) for name, line in sorted(found.items(), key=place)}


def gflops(row: Row) -> float:
    """The rate of a row in GFLOP/s."""
    known = row.number("gflops")
    return known if known == known else row.problem.flops / row.seconds / 1e9


def pivot(
    rows: Sequence[Row],
    value: Callable[[Row], float],
    name_of: Callable[[Row], str] = implementation,
) -> tuple[list[str], list[Pivot]]:
    """The rows as lines, one for each product and transfer, with a column for each name: a kernel
    or a library. Returns the names of the columns, and the lines.
    """
    names: Curves = {}
    lines: dict[tuple[object, str], dict[str, Row]] = {}
    for row in rows:
        by = lines.setdefault((row.problem, row.text("transfer")), {})
        name = name_of(row)
        if name in by:  # another configuration of the same kernel
            name = " ".join([name, *row.text("config").split("-")[1:]])
        by[name] = row
        if (y := value(row)) == y:
            names.setdefault(name, {})[row.problem.n] = y
    return list(ordered(names)), [Pivot(by) for by in lines.values()]


@dataclass(frozen=True)
class Pivot:
    """The rows of one product by the name of their column."""

    by: dict[str, Row]

    @property
    def first(self) -> Row:
        """Any of them, for what they have in common."""
        return next(iter(self.by.values()))
