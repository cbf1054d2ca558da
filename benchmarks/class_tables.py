"""Tables of the classes of products beside cuBLAS for `results.py` and `tables.py`, from the rows
that `python -m pymm.bench --classes` wrote. The goals are geometric means of a class: baseline's
time / pymm's time, the baseline the fastest of cuBLAS, cuBLASLt and cuBLASLt with its best
algorithm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from symmetric import beside_gemm

from pymm.core import inputs
from pymm.core.dtypes import DTYPES
from pymm.core.shapes import DRAWN, SYMMETRIC, class_problems
from pymm.measure import results as schemas

Row = dict[str, str]

#: Columns of numbers of each file; ratios and times of libraries are above 0 where there are any.
RATIOS = tuple(name for name in schemas.CLASSES.columns if re.search(r"_us$|ratio$", name))
CLASS_NUMBERS = ("us", "gflops", "peak", "spread", "m", "n", "k", "batch", *RATIOS)
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
GOALS["emulated"] = {
    "2048": (3.6, 4.0),
    "4096": (4.3, 4.7),
    "8192": (4.6, 5.2),
    "rank-k 64 to 156": (3.4, 4.0),
    "641 and 4097": (2.5, 3.3),
}
SYMMETRIC_GOALS = {
    "f32": {"syrk-large": (1.26, 1.32), "syrk-small": (1.42, 2.0)},
    "f64": {"syrk-large": (1.08, 1.2), "syrk-small": (1.44, 2.0)},
    "bf16": {"syrk-large": (2.1, 2.3), "syrk-small": (1.2, 1.6)},
}

#: Floors and goals where an operand is transposed, beside those of NN.
TRANSPOSED = 0.9

LAYOUTS = ("NN", "NT", "TN", "TT")

#: Types that stand for IEEE float32: their goals are ratios to cuBLAS SGEMM.
EMULATED = ("tf32x3", "f16x3", "emulated")

#: What a type is compared with.
COMPARED_WITH = {"tf32": "the fastest library with TF32 allowed"} | {
    dtype: "cuBLAS SGEMM alone" for dtype in EMULATED
}


def class_rows(path: Path) -> list[Row]:
    """The rows of the classes, each of a class, a type and a layout that there is."""
    return schemas.CLASSES.rows(path, CLASS_NUMBERS, _no_class)


def _no_class(row: Row) -> str:
    try:
        class_problems((row["class"],), (row["dtype"],), (row["layout"],))
    except (ValueError, NotImplementedError) as failure:
        return str(failure)
    timed = [name for name in RATIOS if row[name]]
    return lacking(row, [*timed, "us", "gflops"] if row["outcome"] == "ok" else timed)


def lacking(row: Row, names: Sequence[str]) -> str:
    """Which of these numbers a row has not above 0, in words."""
    wrong = next((name for name in names if not inputs.number(row[name]) > 0), "")
    return f"{wrong} is {inputs.shown(row[wrong])}, not a number above 0" if wrong else ""


def latest(rows: Iterable[Row]) -> list[Row]:
    """The last row of each product, in the order of the file."""
    found: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in ("class", "dtype", "layout", "m", "n", "k", "batch"))
        found.pop(key, None)
        found[key] = row
    return list(found.values())


def means(rows: Sequence[Row]) -> list[str]:
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
                sgemm = dtype in EMULATED and name not in SYMMETRIC
                value = mean(at, of_sgemm if sgemm else of_fastest)
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
    lines += ["", "Baselines: " + "; ".join(named) + "; else the fastest library in the same type."]
    if any(row["class"] in SYMMETRIC for row in rows):
        lines.append(
            "syrk: C = A A^T and A^T A, all of C written, against the faster of cuBLAS's "
            "gemm and its syrk with a mirror (two launches of PyTorch's); full floors."
        )
        lines += ["", *beside_gemm(rows)]
    return lines


#: What README.md calls each class and population; random products by their last whole draw, the one
#: with the last seed of which all products were measured.
IN_WORDS = {
    "large": "squares of 2048 to 10000",
    "small": "squares of 256 to 1024",
    "odd": "641, 1000, 4095 and 4097 squared, 8192 x 8192 x 156",
    "rank-k": "8192 x 8192 x 32, 64 and 128",
    "skinny": "8192 x 16 x 8192, 64 x 64 x 262144 and two more",
    "syrk-large": "A A^T and A^T A, 4096 to 10500",
    "random": "100 random products, extents of 32 to 8192 (the last draw measured whole)",
    "llm": "18 products of language models, 64 to 4096 rows",
    "batch": "batches: 10000 of 16 squared to 16 of 1024 squared",
}

#: The types in README.md.
SHOWN = ("f32", "f64", "bf16", "tf32")


def summary(rows: Sequence[Row]) -> list[str]:
    """Geometric mean of each class over all layouts, and of each population with its least ratio,
    by type, and the days on which they were measured: the table of README.md.
    """
    lines = [f"| products | {' | '.join(SHOWN)} | measured |", f"|---|{'--:|' * len(SHOWN)}---|"]
    for name, words in IN_WORDS.items():
        cells, days = [], set()
        for dtype in SHOWN:
            of = [row for row in rows if row["dtype"] == dtype and _is_of(row, name)]
            of = _last_draw(of) if name in DRAWN else of
            cell = "" if math.isnan(mean(of)) else f"{mean(of):.2f}"
            if cell and not (name in SYMMETRIC or name in GOALS["f32"]):
                cell += f" ({min(float(row['ratio']) for row in of):.2f})"
            cells.append(cell)
            days |= {row["time"][:10] for row in of}
        first_and_last = sorted({min(days), max(days)}) if days else []
        lines.append(f"| {words} | {' | '.join(cells)} | {' to '.join(first_and_last)} |")
    return lines


def _last_draw(rows: Sequence[Row]) -> list[Row]:
    """Of rows of one type, those of the last draw of which all products were measured. None where
    there is none.
    """
    draws: dict[str, list[Row]] = {}
    for row in rows:
        draws.setdefault(row["class"], []).append(row)
    for name, of in reversed(draws.items()):
        measured = [row for row in of if row["outcome"] == "ok"]
        if len(measured) >= len(class_problems((name,), (of[0]["dtype"],), LAYOUTS)):
            return of
    return []


def _is_of(row: Row, name: str) -> bool:
    """Whether a row is of a class or population, whatever its seed."""
    return row["class"] == name or (name in DRAWN and row["class"].rpartition("-")[0] == name)


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


def of_fastest(row: Row) -> float:
    """The fastest library's time / pymm's; NaN if it is missing."""
    return float(row["ratio"] or math.nan)


def of_sgemm(row: Row) -> float:
    """The time of cuBLAS SGEMM / pymm's; NaN if one is missing."""
    return float(row["cublas_us"] or math.nan) / float(row["us"] or math.nan)


def mean(rows: Sequence[Row], ratio: Callable[[Row], float] = of_fastest) -> float:
    """Geometric mean of the ratios; NaN if a row is missing its ratio or none is there."""
    ratios = [ratio(row) for row in rows]
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


def time(microseconds: str) -> str:
    """A time as the table has it."""
    return f"{float(microseconds):.4g}" if microseconds else ""


def number(value: float) -> str:
    """A floor or a goal, empty where there is none."""
    return "" if math.isnan(value) else f"{value:g}"
