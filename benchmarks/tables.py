"""Writes the measured tables of README.md between their markers: `python benchmarks/tables.py`. The
longer tables made here are part of RESULTS.md (benchmarks/results.py).

A table is between `<!-- short ladder: FILE.csv -->` and `<!-- end short ladder -->`; the file was
written by `python -m pymm.bench`. So is that of the classes, from one file or several. With
`--check` nothing is written and the status is 1 if a table is not what its files say.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import class_tables  # noqa: E402

from pymm.core import inputs  # noqa: E402
from pymm.kernels import KERNELS  # noqa: E402
from pymm.measure.libraries import general_on  # noqa: E402

MARKED = re.compile(r"<!-- (short ladder|classes): ([^>]+) -->\n.*?<!-- end \1 -->", re.DOTALL)

Row = dict[str, str]

#: Columns of words, and of numbers, above 0 where there are any.
WORDS = ("time", "compiler", "dtype", "m", "n", "k", "name", "variant", "config", "outcome")
NUMBERS = ("seconds", "gflops", "ratio", "peak")


def main(arguments: Sequence[str]) -> int:
    """Write, or with `--check` compare. Returns the exit status: 2 for a file that is damaged."""
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    try:
        filled = MARKED.sub(_fill, text)
    except inputs.BadInput as failure:
        print(failure, file=sys.stderr)
        return 2
    if "--check" in arguments:
        return int(filled != text)
    readme.write_text(filled, encoding="utf-8")
    return 0


def _fill(match: re.Match[str]) -> str:
    name, files = match.groups()
    paths = [ROOT / file for file in files.split()]
    if name == "classes":
        rows = class_tables.latest(row for path in paths for row in class_tables.class_rows(path))
        table = class_tables.summary(rows)
    else:
        table = short_ladder(row for path in paths for row in rows_of(path))
    return "\n".join([f"<!-- {name}: {files} -->", *table, f"<!-- end {name} -->"])


def rows_of(path: Path) -> list[Row]:
    """The rows of a file of `python -m pymm.bench`. `BadInput` names a damaged one and its line."""
    try:
        return inputs.rows_of(path, WORDS, NUMBERS, _untimed)
    except FileNotFoundError:
        raise inputs.BadInput(f"{path} is not there, which README.md names") from None


def _untimed(row: Row) -> str:
    """What a row that is right lacks, in words."""
    wrong = row["outcome"] == "ok" and not inputs.number(row["seconds"]) > 0
    wrong = wrong or any(row[name] and not inputs.number(row[name]) > 0 for name in NUMBERS)
    return "a time, rate or ratio is not above 0" if wrong else ""


def calls_of(path: Path) -> list[Row]:
    """The rows of a file of `benchmarks/cpu.py`. `BadInput` names a damaged one and its line."""
    return inputs.rows_of(path, ("time", "dtype", "m", "process", "call"), ("us",), _no_call)


def _no_call(row: Row) -> str:
    """What is wrong with a row of calls, in words."""
    if not re.fullmatch("[0-9]{1,9}", row["m"]):
        return "m is no extent"
    return "" if inputs.number(row["us"]) > 0 else "a time is not above 0"


def short_ladder(rows: Iterable[Row]) -> list[str]:
    """Every kernel at m = n = k = 4096 in one dtype, the first that it was measured in: its faster
    configuration of default and tuned, percent of cuBLAS (its fastest library or algorithm) and of
    the peak.
    """
    at = [row for row in rows if (row["m"], row["n"], row["k"]) == ("4096",) * 3]
    lines = [
        "| kernel | what it adds | dtype | time | TFLOP/s | of cuBLAS | of peak |",
        "|---|---|---|--:|--:|--:|--:|",
    ]
    for kernel in (kernel for kernel in KERNELS if kernel.backend == "cuda"):
        start = f"| {kernel.label} | {kernel.title} "
        found = ((d, _fastest(at, kernel.label, d)) for d in kernel.dtypes)
        dtype, best = next((pair for pair in found if pair[1]), ("", None))
        if best:
            lines.append(f"{start}| {dtype} | {_time(best)} | {_rates(best)} |")
        else:
            lines.append(f"{start}| {', '.join(kernel.dtypes)} | not measured | | | |")
    return lines


def _fastest(rows: Sequence[Row], name: str, dtype: str) -> Row | None:
    """The faster of default and tuned."""
    found = [_find(rows, name, dtype, variant) for variant in ("default", "tuned")]
    timed = [row for row in found if row and row["seconds"]]
    return min(timed, key=lambda row: float(row["seconds"]), default=None)


def ladder(rows: Iterable[Row]) -> list[str]:
    """Every kernel at m = n = k = 4096 in the dtypes that it was measured in: default and tuned,
    percent of cuBLAS (its fastest library or algorithm) and of the peak.
    """
    at = [row for row in rows if (row["m"], row["n"], row["k"]) == ("4096",) * 3]
    lines = [
        "| kernel | what it adds | dtype | default | tuned | TFLOP/s | of cuBLAS | of peak |",
        "|---|---|---|--:|--:|--:|--:|--:|",
    ]
    for kernel in (kernel for kernel in KERNELS if kernel.backend == "cuda"):
        name = kernel.label
        start = f"| {name} | {kernel.title} "
        for dtype in kernel.dtypes:
            default = _find(at, name, dtype, "default")
            tuned = _find(at, name, dtype, "tuned")
            best = tuned if tuned and tuned["seconds"] else default
            if best is None or not best["seconds"]:
                continue
            lines.append(
                f"{start}| {dtype} | {_time(default)} "
                f"| {_time(tuned) if tuned else 'not tuned'} | {_rates(best)} |"
            )
            start = f"| {name} | "
        if start.endswith(f"{kernel.title} "):
            lines.append(f"{start}| {', '.join(kernel.dtypes)} | not measured | | | | |")
    for dtype in dict.fromkeys(row["dtype"] for row in at):
        for library in general_on("cuda"):
            row = _find(at, library, dtype, "")
            if row:
                lines.append(f"| | {library} | {dtype} | | {_time(row)} | {_rates(row)} |")
    return lines


def _rates(row: Row) -> str:
    """TFLOP/s, part of cuBLAS, part of the peak; a part is empty where there is none."""
    parts = [f"{float(row[name]):.1%}" if row[name] else "" for name in ("ratio", "peak")]
    return " | ".join([f"{float(row['gflops'] or 'nan') / 1e3:.2f}", *parts])


def cpu(rows: Iterable[Row]) -> list[str]:
    """Each shape on a CPU: sequential, default, tuned and NumPy, and the means that count."""
    rows = list(rows)
    lines = [
        "| dtype | m x n x k | sequential | default | tuned | NumPy | pymm / NumPy "
        "| pymm / sequential | configuration |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        ratios, gains = [], []
        of_type = [row for row in rows if row["dtype"] == dtype]
        for shape in dict.fromkeys((row["m"], row["n"], row["k"]) for row in of_type):
            at = [row for row in of_type if (row["m"], row["n"], row["k"]) == shape]
            slow = _find(at, "00_reordered", dtype, "default")
            default = _find(at, "01_blocked", dtype, "default")
            tuned = _find(at, "01_blocked", dtype, "tuned")
            best = tuned or default
            numpy = _find(at, "numpy", dtype, "")
            if not (slow and best and slow["seconds"] and best["seconds"] and best["ratio"]):
                lines.append(f"| {dtype} | {' x '.join(shape)} | not measured | | | | | | |")
                continue
            ratios.append(float(best["ratio"]))
            gains.append(float(slow["seconds"]) / float(best["seconds"]))
            cells = [
                f"{float(row['gflops'] or 'nan'):.1f}" if row else "not tuned"
                for row in (slow, default, tuned, numpy)
            ]
            what = best["config"].removeprefix("blocked-").replace("-", " ")
            lines.append(
                f"| {dtype} | {' x '.join(shape)} | {' | '.join(cells)} | {ratios[-1]:.2f} "
                f"| {gains[-1]:.1f} | {what} |"
            )
        lines.append(
            f"| {dtype} | geometric mean | | | | "
            f"| **{_mean(ratios):.2f}** | **{_mean(gains):.1f}** | |"
        )
    days = sorted({row["time"][:10] for row in rows})
    compilers = ", ".join(dict.fromkeys(row["compiler"] for row in rows))
    measured = f"Measured on {', '.join(days)}, {compilers}."
    return [f"Rates in GFLOP/s, and two ratios of times. {measured}", "", *lines]


#: Least of NumPy's time / that of `pymm.matmul`, by extent of a square product; and most of a
#: plan's time in turn with NumPy's calls in one process / its time in a process of its own.
BESIDE_NUMPY, LARGER, IN_TURN = {"16": 0.4, "64": 0.8}, 0.98, 1.5

#: What stands in a row of the table: whose process, and the call.
CALLS = (("own", "NumPy"), ("own", "plan"), ("own", "matmul"), ("shared", "plan"))


def beside_numpy(rows: Sequence[Row]) -> list[str]:
    """Square products by pymm and by NumPy's BLAS as `benchmarks/cpu.py` measured them, of rows
    that were measured again the last, with what is asked of them.
    """
    found = {(r["dtype"], r["m"], r["process"], r["call"]): r for r in rows}
    days = ", ".join(sorted({row["time"][:10] for row in found.values()}))
    lines = [
        "Square products by pymm and by NumPy's BLAS, each in a process of its own, and in turn in",
        f"one process (`python benchmarks/cpu.py`, {days}): medians in microseconds, operands in",
        "the caches. Ratios are NumPy's time / pymm's; bold where they reach what is asked: 0.4 of",
        "`matmul` for 16, 0.8 for 64, else 0.98; at most 1.5 of a plan in turn with NumPy.",
        "",
        "| dtype | m = n = k | NumPy | plan | matmul | NumPy / plan | NumPy / matmul "
        "| plan, in turn | in turn / alone |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for dtype, size in dict.fromkeys(key[:2] for key in found):
        named = [found.get((dtype, size, *call)) for call in CALLS]
        if None in named:
            lines.append(f"| {dtype} | {size} | not measured | | | | | | |")
            continue
        numpy, plan, matmul, turn = (float(row["us"]) for row in named)
        ratio, slower = numpy / matmul, turn / plan
        lines.append(
            f"| {dtype} | {size} | {numpy:.4g} | {plan:.4g} | {matmul:.4g} | {numpy / plan:.2f} "
            f"| {_bold(f'{ratio:.2f}', ratio >= BESIDE_NUMPY.get(size, LARGER))} | {turn:.4g} "
            f"| {_bold(f'{slower:.2f}', slower <= IN_TURN)} |"
        )
    return lines


def _bold(text: str, reached: bool) -> str:
    return f"**{text}**" if reached else text


def _find(rows: Iterable[Row], name: str, dtype: str, variant: str) -> Row | None:
    for row in rows:
        if (row["name"], row["dtype"], row["variant"]) == (name, dtype, variant):
            return row
    return None


def _time(row: Row | None) -> str:
    if row is None:
        return ""
    if not row["seconds"]:
        return row["outcome"]
    seconds = float(row["seconds"])
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} us"


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
