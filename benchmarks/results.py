"""Writes benchmarks/RESULTS.md from the CSV of `python -m pymm.bench --classes`:
`python benchmarks/results.py`; the part about shapes never tuned from what `benchmarks/unseen.py`
wrote, that about the host from `benchmarks/calls.py`'s, that about A^T A from the rows of
`python -m pymm.bench --suite o3`. Rows of populations may stand in the same file or in
`populations.csv` beside it.

The goals are geometric means of a class: baseline's time / pymm's time, the baseline the fastest of
cuBLAS, cuBLASLt and cuBLASLt with its best algorithm. With `--check` nothing is written and the
status is 1 if the file is not what the CSV says.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import searches  # noqa: E402
import tables  # noqa: E402
from populations import populations  # noqa: E402
from symmetric import beside_gemm, transposes  # noqa: E402

from pymm.core import inputs  # noqa: E402
from pymm.core.dtypes import DTYPES  # noqa: E402
from pymm.core.shapes import SYMMETRIC, class_problems, is_population  # noqa: E402
from pymm.measure import results as schemas  # noqa: E402

TABLE = ROOT / "benchmarks" / "RESULTS.md"
FOLDER = ROOT / "benchmarks" / "results" / "nvidia-h200"
FILE, UNSEEN, REPEATED, CALLS = (
    FOLDER / f"{name}.csv" for name in ("classes", "unseen", "repeated", "calls")
)
POPULATIONS = FOLDER / "populations.csv"
#: What `python -m pymm.bench --shapes ladder --kernels all` wrote, here and on CPUs.
LADDER = FOLDER / "ladder.csv"
CPUS = sorted(FOLDER.parent.glob("*/cpu.csv"))
#: What `benchmarks/replay.py` wrote.
REPLAYS = ROOT / "benchmarks" / "replays.csv"
#: Where rows of the suites are.
SUITES = sorted(FOLDER.glob("suites*.csv"))
#: What a reader has to know of the run, if anything: it stands below its date.
NOTE = FOLDER / "classes-note.txt"

#: What writes FILE.
COMMAND = (
    "python -m pymm.bench --classes all,syrk-large,syrk-small "
    "--dtypes f32,f64,bf16,f16,tf32,tf32x3,f16x3 --triton --csv FILE"
)

Row = dict[str, str]

#: Columns of numbers of each file; ratios and times of libraries are above 0 where there are any.
RATIOS = tuple(name for name in schemas.CLASSES.columns if re.search(r"_us$|ratio$", name))
CLASS_NUMBERS = ("us", "gflops", "peak", "spread", "m", "n", "k", "batch", *RATIOS)
REPEATED_NUMBERS = ("us", "seconds", "tried")
UNSEEN_NUMBERS = ("of_fastest", "of_default", "ratio")
CALL_NUMBERS = ("us", "quartile_1", "quartile_3")
SUITE_NUMBERS = ("seconds", "gflops")

#: Floor and goal of each class and type for row-major operands.
GOALS: dict[str, dict[str, tuple[float, float]]] = {
    "f32": {
        "large": (1.1, 1.13),
        "small": (1.44, 1.6),
        "odd": (1.16, 1.25),
        "rank-k": (1.42, 1.55),
        "skinny": (1.5, 1.65),
    },
    "f64": {
        "large": (0.99, 1.03),
        "small": (1.12, 1.18),
        "odd": (1.14, 1.25),
        "rank-k": (1.12, 1.35),
        "skinny": (1.02, 1.1),
    },
    "bf16": {
        "large": (0.98, 1.04),
        "small": (1.03, 1.12),
        "odd": (2.25, 2.9),
        "rank-k": (1.13, 1.27),
        "skinny": (1.14, 1.25),
    },
    "tf32": {
        "large": (1.05, 1.09),
        "small": (1.28, 1.4),
        "odd": (1.63, 2.1),
        "rank-k": (1.26, 1.5),
        "skinny": (1.11, 1.25),
    },
    "tf32x3": {
        "2048": (1.6, 2.8),
        "4096": (2.2, 4.0),
        "8192": (2.5, 4.5),
        "rank-k 64 to 156": (1.5, 3.0),
        "641 and 4097": (1.2, 3.0),
    },
}
GOALS["f16"], GOALS["f16x3"] = GOALS["bf16"], GOALS["tf32x3"]
SYMMETRIC_GOALS = {
    "f32": {"syrk-large": (1.26, 1.32), "syrk-small": (1.42, 2.0)},
    "f64": {"syrk-large": (1.08, 1.2), "syrk-small": (1.44, 2.0)},
    "bf16": {"syrk-large": (2.1, 2.3), "syrk-small": (1.2, 1.6)},
}

#: Floors and goals where an operand is transposed, beside those of NN.
TRANSPOSED = 0.9

LAYOUTS = ("NN", "NT", "TN", "TT")

#: What a type is compared with.
COMPARED_WITH = {
    "tf32": "cuBLAS with TF32 allowed",
    "tf32x3": "cuBLAS SGEMM, IEEE",
    "f16x3": "cuBLAS SGEMM, IEEE",
}


def main(arguments: Sequence[str]) -> int:
    """Write, or with `--check` compare. Returns the exit status: 2 for a file that is damaged."""
    try:
        text = page() if FILE.exists() else None
    except inputs.BadInput as failure:
        print(failure, file=sys.stderr)
        return 2
    if "--check" in arguments:
        written = TABLE.read_text(encoding="utf-8") if TABLE.exists() else None
        return int(written != text)
    if text is None:
        sys.exit(f"{FILE.relative_to(ROOT)} is not there: {COMMAND}")
    TABLE.write_text(text, encoding="utf-8")
    return 0


def page() -> str:
    """The text of RESULTS.md. `BadInput` names a file that is damaged, and its line."""
    everything = [row for path in (FILE, POPULATIONS) if path.exists() for row in class_rows(path)]
    rows = latest(row for row in everything if not is_population(row["class"]))
    if not rows:
        raise inputs.BadInput(f"{FILE}, line 1: no row; {COMMAND}")
    lines = document(rows, latest(row for row in everything if row["triton_us"]))
    if drawn := latest(row for row in everything if is_population(row["class"])):
        path = POPULATIONS if POPULATIONS.exists() else FILE
        lines += ["", *populations(drawn, str(path.relative_to(ROOT)))]
    if UNSEEN.exists():
        lines += ["", *unseen(unseen_rows(UNSEEN))]
    if REPEATED.exists():
        lines += ["", *repeated(repeated_rows(REPEATED))]
    if CALLS.exists():
        lines += ["", *calls(inputs.rows_of(CALLS, ("arrays", "call"), CALL_NUMBERS))]
    suites = [row for path in SUITES for row in suite_rows(path)]
    if symmetric := transposes(suites):
        lines += ["", *symmetric]
    lines += ["", *kernel_tables()]
    if REPLAYS.exists():
        lines += ["", *searches.tables(REPLAYS)]
    return "\n".join(lines) + "\n"


def kernel_tables() -> list[str]:
    """Every kernel of the ladder on the GPU, and the CPU's kernels."""
    lines = []
    if LADDER.exists():
        lines = [
            "## The kernels one by one",
            "",
            "m = n = k = 4096, operands on the device, cold caches, medians of one run in turn.",
            "",
            *tables.ladder(tables.rows_of(LADDER)),
        ]
    for path in CPUS:
        lines += ["", f"## CPU: {path.parent.name}", "", *tables.cpu(tables.rows_of(path))]
        beside = path.with_name("beside-numpy.csv")  # what `benchmarks/cpu.py` wrote
        if beside.exists():
            lines += ["", *tables.beside_numpy(tables.calls_of(beside))]
    return lines


def class_rows(path: Path) -> list[Row]:
    """The rows of the classes, each of a class, a type and a layout that there is."""
    return schemas.CLASSES.rows(path, CLASS_NUMBERS, _no_class)


def unseen_rows(path: Path) -> list[Row]:
    """The rows of shapes never tuned, at least one."""
    filled = partial(_lacking, names=("of_fastest",))
    rows = schemas.UNSEEN.rows(path, UNSEEN_NUMBERS, filled)
    if not rows:
        raise inputs.BadInput(f"{path}, line 1: no row")
    return rows


def repeated_rows(path: Path) -> list[Row]:
    """The rows of tunings of one product."""
    filled = partial(_lacking, names=REPEATED_NUMBERS)
    return schemas.REPEATED.rows(path, REPEATED_NUMBERS, filled)


def suite_rows(path: Path) -> list[Row]:
    """The rows of a file of suites."""
    return inputs.rows_of(path, schemas.EXPERIMENTS.columns, SUITE_NUMBERS, _no_kernel)


def _lacking(row: Row, names: Sequence[str]) -> str:
    """Which of these numbers a row has not above 0, in words."""
    wrong = next((name for name in names if not inputs.number(row[name]) > 0), "")
    return f"{wrong} is {inputs.shown(row[wrong])}, not a number above 0" if wrong else ""


def _no_class(row: Row) -> str:
    try:
        class_problems((row["class"],), (row["dtype"],), (row["layout"],))
    except (ValueError, NotImplementedError) as failure:
        return str(failure)
    timed = [name for name in RATIOS if row[name]]
    return _lacking(row, [*timed, "us", "gflops"] if row["outcome"] == "ok" else timed)


def _no_kernel(row: Row) -> str:
    """What is wrong with a row of A^T A's."""
    if (row["suite"], row["quantity"]) != ("o3", "kernel"):
        return ""
    if not all(re.fullmatch("[0-9]{1,9}", row[axis]) for axis in "mnk"):
        return "m, n or k is no extent"
    timed = row["outcome"] == "ok" and row["seconds"]
    return _lacking(row, ("seconds", "gflops")) if timed else ""


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each product, in the order of the file."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in ("class", "dtype", "layout", "m", "n", "k", "batch"))
        found.pop(key, None)
        found[key] = row
    return list(found.values())


def document(rows: Sequence[Row], with_triton: Sequence[Row] = ()) -> list[str]:
    """The lines about the classes; `with_triton` are the last rows that have a time of Triton's."""
    times = [row["time"] for row in rows]
    kinds = {(r["device"], r["driver"], r["compiler"], r["pymm"]) for r in rows}
    machines = "; ".join(
        f"{device}, driver {driver}, {compiler}, pymm {version}"
        for device, driver, compiler, version in sorted(kinds)
    )
    wrong = sum(row["outcome"] != "ok" for row in rows)
    best = sum(bool(row["nvmath_us"]) for row in rows)
    lines = [
        "# Every class of products beside cuBLAS",
        "",
        "Written by `python benchmarks/results.py` from "
        f"`{FILE.relative_to(ROOT)}`: the last row of each product. A run of all of them is",
        f"`{COMMAND}`.",
        "",
        f"{machines}. Measured from {min(times)} to {max(times)}; "
        f"{len(rows)} products, {wrong} of them failed.",
        *(["", *NOTE.read_text(encoding="utf-8").splitlines()] if NOTE.exists() else []),
        "",
        "A ratio is the baseline's time / pymm's time, above 1 where pymm is faster; the baseline",
        "is the fastest of cuBLAS, cuBLASLt and, where it was measured, cuBLASLt with the fastest",
        f"of all algorithms that it offers (nvmath-python; {best} of {len(rows)} products), on the",
        "same operands in the same run, measured in turn with cold caches. pymm runs what",
        "`pymm.matmul` chooses; copies ahead of the product count. Every result was checked.",
        "",
        "## Classes",
        "",
        *classes(rows),
        *beside_triton(with_triton),
        "",
        "## Products",
        "",
        *products(rows),
    ]
    return lines


def classes(rows: Sequence[Row]) -> list[str]:
    """Geometric mean of each class and type by layout, with floor, goal and what is reached."""
    lines = [
        "Geometric means. Floor and goal are those of NN; NT, TN and TT have 10 % less to reach. "
        "A mean in bold",
        "reaches its floor. 2 of 4: so many of the class's products were measured.",
        "",
        "| type | class | floor | goal | " + " | ".join(LAYOUTS) + " | NN | transposed |",
        "|---|---|--:|--:|" + "--:|" * len(LAYOUTS) + "---|---|",
    ]
    for dtype in sorted({row["dtype"] for row in rows}, key=list(DTYPES).index):
        of_type = [row for row in rows if row["dtype"] == dtype]
        for name in dict.fromkeys(row["class"] for row in of_type):
            goals = GOALS.get(dtype, {}) | SYMMETRIC_GOALS.get(dtype, {})
            floor, goal = goals.get(name, (math.nan, math.nan))
            cells, verdicts = [], []
            for layout in LAYOUTS:
                at = [r for r in of_type if (r["class"], r["layout"]) == (name, layout)]
                value = mean(at)
                part = 1.0 if layout == "NN" or name in SYMMETRIC else TRANSPOSED
                wanted = len(class_problems((name,), (dtype,), (layout,)))
                if any(row["outcome"] != "ok" for row in at):
                    verdicts.append("failed")
                elif 0 < len(at) < wanted:
                    verdicts.append("incomplete")
                else:
                    verdicts.append(verdict(value, floor * part, goal * part))
                bold = "**" if verdicts[-1] in ("floor", "goal") else ""
                few = f" ({len(at)} of {wanted})" if verdicts[-1] == "incomplete" else ""
                cells.append("" if math.isnan(value) else f"{bold}{value:.2f}{bold}{few}")
            lines.append(
                f"| {dtype} | {name} | {number(floor)} | {number(goal)} | {' | '.join(cells)} "
                f"| {verdicts[0]} | {worst(verdicts[1:])} |"
            )
    named = [f"{dtype}: {words}" for dtype, words in COMPARED_WITH.items()]
    lines += ["", "Baselines: " + "; ".join(named) + "; else cuBLAS in the same type."]
    if any(row["class"] in SYMMETRIC for row in rows):
        lines.append(
            "syrk: C = A A^T and A^T A, all of C written, against the faster of cuBLAS's "
            "gemm and its syrk with a mirror (two launches of PyTorch's); full floors."
        )
        lines += ["", *beside_gemm(rows)]
    return lines


def beside_triton(rows: Sequence[Row]) -> list[str]:
    """Geometric means of Triton's time / pymm's by type and class; nothing if none was measured."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for row in rows:
        if row["triton_ratio"]:
            key = row["dtype"], row["class"], row["layout"]
            found.setdefault(key, []).append(float(row["triton_ratio"]))
    if not found:
        return []
    lines = [
        "",
        "A kernel in Triton's plain style, the fastest of a handful of configurations: geometric",
        "means of its time / pymm's on the same operands in the same rounds.",
        "",
        "| type | class | layout | products | ratio |",
        "|---|---|---|--:|--:|",
    ]
    for key, ratios in found.items():
        value = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines.append(f"| {' | '.join(key)} | {len(ratios)} | {value:.2f} |")
    return lines


def mean(rows: Sequence[Row]) -> float:
    """Geometric mean of the ratios; NaN if a row is missing its ratio or none is there."""
    ratios = [float(row["ratio"]) if row["ratio"] else math.nan for row in rows]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan


def verdict(value: float, floor: float, goal: float) -> str:
    """What a mean has reached: "goal", "floor", "missed", or "" where there is none to reach."""
    if math.isnan(value) or math.isnan(floor):
        return ""
    return "goal" if value >= goal else "floor" if value >= floor else "missed"


def worst(verdicts: Sequence[str]) -> str:
    """The least of several verdicts."""
    return min(
        verdicts, key=("failed", "missed", "incomplete", "floor", "goal", "").index, default=""
    )


def products(rows: Sequence[Row]) -> list[str]:
    """Every row: times, ratio, error, configuration."""
    lines = [
        "Times in microseconds, medians. Error: root mean square of C - C64 beside that of C64, of",
        "pymm and of the baseline.",
        "",
        "| type | layout | class | m x n x k | pymm | cuBLAS | cuBLASLt | its best | Triton "
        "| ratio | TFLOP/s | of peak | spread | error | baseline's | configuration |",
        "|---|---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        extents = " x ".join(row[axis] for axis in "mnk")
        start = f"| {row['dtype']} | {row['layout']} | {row['class']} | {extents} "
        if row["outcome"] != "ok":
            lines.append(start + f"| {row['outcome']}" + " |" * 12)
            continue
        names = ("", "cublas_", "cublaslt_", "nvmath_", "triton_")
        times = " | ".join(time(row[f"{name}us"]) for name in names)
        rate = f"{float(row['gflops']) / 1e3:.2f}"
        peak = f"{float(row['peak']):.0%}" if row["peak"] else ""
        ratio = f"{float(row['ratio']):.2f}" if row["ratio"] else ""
        config = row["config"].replace("-", " ")
        lines.append(
            f"{start}| {times} | {ratio} | {rate} | {peak} | {float(row['spread'] or 'nan'):.1%} "
            f"| {row['rms']} | {row['opponent_rms']} | {config} |"
        )
    return lines


def unseen(rows: Sequence[Row]) -> list[str]:
    """Random shapes that nothing was tuned for: what was chosen against their own searches, in the
    last run.
    """
    seed = rows[-1]["seed"]
    rows = [row for row in rows if row["seed"] == seed]
    lines = [
        "## Shapes never tuned",
        "",
        f"Written by `python benchmarks/unseen.py` into `{UNSEEN.relative_to(ROOT)}`: random",
        "extents with a search each, whose result was thrown away; then what is chosen without it,",
        f"the default, and what the search found, measured in turn. The last run, of seed {seed}.",
        "",
        "| type | products | chosen / fastest, geometric mean | least | default / chosen, least |",
        "|---|--:|--:|--:|--:|",
    ]
    for dtype in [*dict.fromkeys(row["dtype"] for row in rows), "all"]:
        at = [row for row in rows if dtype in (row["dtype"], "all")]
        parts = [float(row["of_fastest"]) for row in at]
        beside = [float(row["of_default"]) for row in at if row["of_default"]]
        average = math.exp(sum(map(math.log, parts)) / len(parts))
        least = f"{min(beside):.2f}" if beside else ""
        lines.append(f"| {dtype} | {len(at)} | {average:.3f} | {min(parts):.2f} | {least} |")
    return lines


def repeated(rows: Sequence[Row]) -> list[str]:
    """How alike tunings of one product are that know nothing of each other; the last run of each
    product.
    """
    runs: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        runs.setdefault(tuple(row[name] for name in ("dtype", "layout", *"mnk")), []).append(row)
    lines = [
        "## One product tuned again and again",
        "",
        f"Written by `python benchmarks/repeated.py` into `{REPEATED.relative_to(ROOT)}`: each",
        "tuning begins with neither records, studies nor compiled kernels of the others; what they",
        "found is measured in turn. Floor: 1.015.",
        "",
        "| type | layout | m x n x k | tunings | seconds, most | tried | configurations found "
        "| slowest / quickest |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for (dtype, layout, *extents), everything in runs.items():
        run = [row for row in everything if row["time"] == everything[-1]["time"]]
        us, seconds, tried = ([float(row[name]) for row in run] for name in REPEATED_NUMBERS)
        lines.append(
            f"| {dtype} | {layout} | {' x '.join(extents)} | {len(run)} | {max(seconds):.0f} "
            f"| {min(tried):.0f} to {max(tried):.0f} | {len({row['config'] for row in run})} "
            f"| {max(us) / min(us):.4f} |"
        )
    return lines


def calls(rows: Sequence[Row]) -> list[str]:
    """What a call costs the host, by whose arrays it is given; of rows that are measured again the
    last.
    """
    found = {(row["arrays"], row["call"]): row for row in rows}
    lines = [
        "## What a call costs the host",
        "",
        f"Written by `python benchmarks/calls.py` into `{CALLS.relative_to(ROOT)}`: microseconds",
        "until a call of a 64 x 64 float32 product returns, operands on the device, medians and",
        "quartiles. Floors and goals: `plan()` 5, 2.5; `pymm.matmul(a, b, out=c)` 12, 6.",
        "",
        "| arrays | call | us | quartiles |",
        "|---|---|--:|--:|",
    ]
    for (arrays, call), row in found.items():
        quartiles = f"{row['quartile_1']} to {row['quartile_3']}"
        lines.append(f"| {arrays} | {call} | {row['us']} | {quartiles} |")
    return lines


def time(microseconds: str) -> str:
    """A time as the table has it."""
    return f"{float(microseconds):.4g}" if microseconds else ""


def number(value: float) -> str:
    """A floor or a goal, empty where there is none."""
    return "" if math.isnan(value) else f"{value:g}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
