"""Writes benchmarks/RESULTS.md from the CSV of `python -m pymm.bench --classes`:
`python benchmarks/results.py`; the part about shapes never tuned from what `benchmarks/unseen.py`
wrote, that about the host from `benchmarks/calls.py`'s, that about A^T A from the rows of
`python -m pymm.bench --suite o3`. Rows of populations may stand in the same file or in
`populations.csv` beside it.

With `--check` nothing is written and the status is 1 if the file is not what the CSV says.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import class_tables  # noqa: E402
import searches  # noqa: E402
import tables  # noqa: E402
from populations import populations  # noqa: E402
from symmetric import transposes  # noqa: E402

from pymm.core import inputs  # noqa: E402
from pymm.core.shapes import is_population  # noqa: E402
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

#: Columns of numbers of each file.
REPEATED_NUMBERS = ("us", "seconds", "tried")
LIBRARIES = ("cublas_us", "cublaslt_us", "nvmath_us")
UNSEEN_NUMBERS = ("of_fastest", "of_default", "slower", "ratio", "found_us", *LIBRARIES)
CALL_NUMBERS = ("us", "quartile_1", "quartile_3")
SUITE_NUMBERS = ("seconds", "gflops")


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
    paths = (path for path in (FILE, POPULATIONS) if path.exists())
    everything = [row for path in paths for row in class_tables.class_rows(path)]
    rows = class_tables.latest(row for row in everything if not is_population(row["class"]))
    if not rows:
        raise inputs.BadInput(f"{FILE}, line 1: no row; {COMMAND}")
    lines = document(rows, class_tables.latest(row for row in everything if row["triton_us"]))
    if drawn := class_tables.latest(row for row in everything if is_population(row["class"])):
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


def unseen_rows(path: Path) -> list[Row]:
    """The rows of shapes never tuned, at least one."""
    filled = partial(class_tables.lacking, names=("of_fastest",))
    rows = schemas.UNSEEN.rows(path, UNSEEN_NUMBERS, filled)
    if not rows:
        raise inputs.BadInput(f"{path}, line 1: no row")
    return rows


def repeated_rows(path: Path) -> list[Row]:
    """The rows of tunings of one product."""
    filled = partial(class_tables.lacking, names=REPEATED_NUMBERS)
    return schemas.REPEATED.rows(path, REPEATED_NUMBERS, filled)


def suite_rows(path: Path) -> list[Row]:
    """The rows of a file of suites."""
    return inputs.rows_of(path, schemas.EXPERIMENTS.columns, SUITE_NUMBERS, _no_kernel)


def _no_kernel(row: Row) -> str:
    """What is wrong with a row of A^T A's."""
    if (row["suite"], row["quantity"]) != ("o3", "kernel"):
        return ""
    if not all(re.fullmatch("[0-9]{1,9}", row[axis]) for axis in "mnk"):
        return "m, n or k is no extent"
    timed = row["outcome"] == "ok" and row["seconds"]
    return class_tables.lacking(row, ("seconds", "gflops")) if timed else ""


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
        "same operands in the same run, measured in turn with cold caches. Only the means of",
        "tf32x3, f16x3 and emulated are beside cuBLAS SGEMM alone, as their goals are, but for",
        "symmetric products. pymm runs",
        "what `pymm.matmul` chooses; copies ahead of the product count. Every result was checked.",
        "",
        "## Classes",
        "",
        *class_tables.means(rows),
        *class_tables.beside_triton(with_triton),
        "",
        "## Products",
        "",
        *class_tables.products(rows),
    ]
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
        "The default is the quickest of all kernels' defaults; until 2026-11-29 it was that of the",
        "chosen kernel, which on a surveyed GPU is the choice itself.",
        "Library: the time of the fastest one / the time of what the search found. Surely slower:",
        "choices slower than a default by more than noise; recorded only in later runs.",
        "",
        "| type | products | chosen / fastest, geometric mean | least | default / chosen, least "
        "| surely slower | library / found, least |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for dtype in [*dict.fromkeys(row["dtype"] for row in rows), "all"]:
        at = [row for row in rows if dtype in (row["dtype"], "all")]
        parts = [float(row["of_fastest"]) for row in at]
        beside = [float(row["of_default"]) for row in at if row["of_default"]]
        average = math.exp(sum(map(math.log, parts)) / len(parts))
        tuned = [ratio for row in at if (ratio := _beside_libraries(row)) is not None]
        slower = [float(row["slower"]) > 0 for row in at if row["slower"]]
        cells = (
            f"{len(at)}",
            f"{average:.3f}",
            f"{min(parts):.2f}",
            f"{min(beside):.2f}" if beside else "",
            f"{sum(slower)}" if slower else "",
            f"{min(tuned):.2f}" if tuned else "",
        )
        lines.append(f"| {dtype} | {' | '.join(cells)} |")
    return lines


def _beside_libraries(row: Row) -> float | None:
    """The fastest library's time / the time of what a search found; None if none was measured."""
    times = [float(row[name]) for name in LIBRARIES if row[name]]
    return min(times) / float(row["found_us"]) if times and row["found_us"] else None


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
        "quartiles. Floors and goals: `plan()` 3.1, 2.0; `pymm.matmul(a, b, out=c)` 7.2, 5;",
        "without `out` 13, 9.",
        "",
        "| arrays | call | us | quartiles |",
        "|---|---|--:|--:|",
    ]
    for (arrays, call), row in found.items():
        quartiles = f"{row['quartile_1']} to {row['quartile_3']}"
        lines.append(f"| {arrays} | {call} | {row['us']} | {quartiles} |")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
