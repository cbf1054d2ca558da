"""What the rows of a device come to: who took how long on which product, and means of that."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.core.problem import Problem
from pymm.report.load import Findings, Row

#: What one of ours is called beside a library.
OWN = "pymm"

#: Libraries that count as the opponent where several were measured: the fastest of these.
RIVALS = ("cublas", "cublaslt", "numpy")

#: Their names as their makers write them.
WRITTEN = {
    "cublas": "cuBLAS",
    "cublaslt": "cuBLASLt",
    "cublas_syrk": "cuBLAS syrk, half",
    "cublas_syrk_mirror": "cuBLAS syrk, mirrored",
    "numpy": "NumPy",
    "triton": "Triton",
    "torch": "PyTorch",
    "cupy": "CuPy",
}


@dataclass(frozen=True)
class Timed:
    """One contestant on one product. `who` is `OWN` or a library, `rung` ours, `run` the file that
    it comes from; `spread` is the interquartile range / median, of `rounds` samples.
    """

    problem: Problem
    who: str
    rung: str
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
class Duel:
    """What `matmul` would run for one product beside the faster of the libraries there."""

    name: str  # of the class
    problem: Problem
    ratio: float  # library's time / ours; NaN if one of the two is missing
    seconds: float
    rival: str
    rival_seconds: float
    row: Row


@dataclass(frozen=True)
class Extreme:
    """The highest rates of a type, ours and the libraries', and the device's limit (GFLOP/s)."""

    dtype: str
    own: Timed
    rival: Timed | None
    peak: float


#: Columns that name a product.
PRODUCT = ("op", "dtype", "layout", "m", "n", "k")


def written(name: str) -> str:
    """A contestant's name for people."""
    return WRITTEN.get(name, name)


def latest(rows: Iterable[Row], names: Sequence[str]) -> list[Row]:
    """The last row of each key, in the order of the files: a row measured again counts anew."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row.text(name) for name in names)
        found.pop(key, None)
        found[key] = row
    return list(found.values())


def class_rows(findings: Findings) -> list[Row]:
    """Rows of every class, the last of each product."""
    return latest(findings.of("classes"), ("class", "dtype", "layout", "m", "n", "k"))


def bench_rows(findings: Findings) -> list[Row]:
    """Rows of `python -m pymm.bench --shapes`, the last of each kernel and variant."""
    return latest(findings.of("bench"), (*PRODUCT, "name", "variant"))


def suite_rows(findings: Findings) -> list[Row]:
    """Rows of every suite, the last of each figure, of a product that was measured again (with
    other kernels, or another text of theirs) those of the last time alone.
    """
    names = ("suite", "step", "name", "variant", "config", "quantity", "transfer")
    rows = latest(findings.of("suites"), (*names, *PRODUCT))  # a profiler's step has many products
    last = {_measured(row): row.text("step") for row in rows}
    return [row for row in rows if row.text("step") == last[_measured(row)]]


def _measured(row: Row) -> tuple[object, ...]:
    """What one step of a suite measures, or a profiler of all of them."""
    return (row.text("suite"), row.problem, row.text("quantity").startswith("ncu:"))


def timed(findings: Findings) -> list[Timed]:
    """Everything that has a right result's time: kernels of ours and libraries."""
    found = []
    for row in class_rows(findings):
        if row.sound:
            found.append(_timed(row, OWN, row.text("kernel"), "chosen", row.seconds))
        for column, value in row.cells.items():
            if column and column.endswith("_us") and value and row.number(column) > 0:
                seconds = row.number(column) * 1e-6
                found.append(_timed(row, column.removesuffix("_us"), "", "", seconds))
    kernels = [row for row in suite_rows(findings) if row.text("quantity") == "kernel"]
    for row in (*bench_rows(findings), *kernels):
        name = row.text("name")
        if row.sound and name != "sequential":
            who = OWN if name[:1].isdigit() else name
            found.append(_timed(row, who, name, row.text("variant"), row.seconds))
    return found


def _timed(row: Row, who: str, rung: str, variant: str, seconds: float) -> Timed:
    spread, rounds = row.number("spread"), row.number("rounds")
    if row.kind == "classes" and who != OWN:
        spread = math.nan  # the row has that of our own samples
    return Timed(row.problem, who, rung, variant, seconds, spread, rounds, row.file, row)


def duels(findings: Findings) -> list[Duel]:
    """Every product of the classes, failed ones too."""
    found = []
    for row in class_rows(findings):
        times = {name: row.number(f"{name}_us") * 1e-6 for name in RIVALS}
        times = {name: seconds for name, seconds in times.items() if seconds > 0}
        rival = min(times, key=times.__getitem__, default="")
        own = row.seconds if row.sound else math.nan
        ratio = row.number("ratio") if row.sound else math.nan  # beside any library of the run
        if ratio != ratio and rival and own > 0:
            ratio = times[rival] / own
        found.append(Duel(row.text("class"), row.problem, ratio, own, rival, ratio * own, row))
    return found


def bench_duels(findings: Findings) -> list[Duel]:
    """The fastest kernel of each product of `python -m pymm.bench` beside the fastest library."""
    found, everything = [], [t for t in timed(findings) if t.row.kind == "bench"]
    for problem in dict.fromkeys(t.problem for t in everything):
        at = [t for t in everything if t.problem == problem]
        own = [t for t in at if t.who == OWN]
        others = [t for t in at if t.who in RIVALS]
        if not own:
            continue
        best = min(own, key=lambda t: t.seconds)
        rival = min(others, key=lambda t: t.seconds, default=None)
        ratio = rival.seconds / best.seconds if rival else math.nan
        found.append(
            Duel(
                "",
                problem,
                ratio,
                best.seconds,
                rival.who if rival else "",
                rival.seconds if rival else math.nan,
                best.row,
            )
        )
    return found


def peaks(findings: Findings) -> dict[str, float]:
    """GFLOP/s at most by type: the device's own word, else what the rows' parts of it imply."""
    told = findings.device.get("peak_flops")
    found = {name: float(v) / 1e9 for name, v in told.items()} if isinstance(told, dict) else {}
    implied: dict[str, list[float]] = {}
    for row in (*findings.of("classes"), *findings.of("bench")):
        part = row.number("peak")
        if row.sound and part > 0 and row.number("gflops") > 0:
            implied.setdefault(row.problem.dtype, []).append(row.number("gflops") / part)
    return {name: statistics.median(rates) for name, rates in implied.items()} | found


def extremes(findings: Findings) -> list[Extreme]:
    """The highest rates of each type that has a limit, in the order of the rows."""
    limits, everything, found = peaks(findings), timed(findings), []
    for dtype in dict.fromkeys(t.problem.dtype for t in everything):
        at = [t for t in everything if t.problem.dtype == dtype]
        own = max((t for t in at if t.who == OWN), key=lambda t: t.gflops, default=None)
        rival = max((t for t in at if t.who in RIVALS), key=lambda t: t.gflops, default=None)
        if own and dtype in limits:
            found.append(Extreme(dtype, own, rival, limits[dtype]))
    return found


def comparisons(findings: Findings) -> list[Duel]:
    """One comparison a product: of the classes, else of `python -m pymm.bench`."""
    return duels(findings) or bench_duels(findings)


def kind_of(problem: Problem) -> str:
    """The type, and the operation unless that is a plain product: "f32", "f64 syrk"."""
    return problem.dtype if problem.op == "gemm" else f"{problem.dtype} {problem.op}"


def mean(ratios: Iterable[float]) -> float:
    """Geometric mean of those that are numbers; NaN if none is."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def standard_error(spread: float, rounds: float) -> float:
    """Of a median, as a part of it: 1.2533 s / sqrt(n) for n samples of a normal distribution, of
    which s is the interquartile range / 1.349. NaN where a row does not tell.
    """
    return 1.2533 * spread / 1.349 / math.sqrt(rounds) if rounds > 0 else math.nan


def device_name(findings: Findings) -> str:
    """The device's name for people."""
    return str(findings.device.get("name") or findings.slug)


def opponent_name(findings: Findings) -> str:
    """What the page calls the opponent: the libraries that were measured."""
    seen = {t.who for t in timed(findings)}
    family = {"cublas": "cuBLAS", "cublaslt": "cuBLAS", "numpy": "NumPy"}
    names = dict.fromkeys(family[name] for name in RIVALS if name in seen)
    return " or ".join(names) or "a library"


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
class Experiment:
    """The rows of one experiment, the last of each figure, and the device's peak rates by type, in
    GFLOP/s.
    """

    name: str
    rows: tuple[Row, ...]
    peaks: Mapping[str, float] = field(default_factory=dict)

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


def experiments(findings: Findings) -> dict[str, Experiment]:
    """Every experiment that has rows, in the order of the catalog."""
    groups: dict[str, list[Row]] = {}
    for row in suite_rows(findings):
        groups.setdefault(row.text("suite"), []).append(row)
    known = [name for name in EXPERIMENTS if name in groups]
    others = [name for name in groups if name not in EXPERIMENTS]
    limits = peaks(findings)
    return {name: Experiment(name, tuple(groups[name]), limits) for name in (*known, *others)}


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
