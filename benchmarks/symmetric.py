"""Tables of symmetric products for `results.py`: their classes beside cuBLAS's gemm alone, from the
rows of the classes; A^T A with A of N x N and of N/2 x N, in each type that was measured, from
those of `python -m pymm.bench --suite o3`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pymm.core.shapes import SYMMETRIC, class_problems
from pymm.measure.libraries import HALF, MIRRORED, general_on

Row = dict[str, str]

#: Least ratio beside cuBLAS's gemm, which multiplies twice as much, for each type of a class.
FLOORS = {"syrk-large": {"f32": 1.8, "f64": 1.7, "bf16": 1.5}}

#: Columns: a head, and by which names or variants its rows are known; of several the fastest.
CONTESTANTS: dict[str, tuple[str, ...]] = {
    "pymm.syrk": ("chosen",),
    "cuBLAS gemm": general_on("cuda"),
    "cuBLAS syrk, one half": (HALF,),
    "with its mirror": (MIRRORED,),
    "48 x 48 tile": ("fixed",),
    "00_naive": ("00_naive",),
}

OWN = "pymm.syrk"

#: The kernel with a tile of 48 x 48; before there was one, kernel 03 with that tile was measured.
TILE = "15_symmetric_tile"

#: The two tables of each type: words, and which products.
KINDS = (("N x N", lambda n, k: k == n), ("N/2 x N", lambda n, k: k != n))


def beside_gemm(rows: Sequence[Row]) -> Iterator[str]:
    """The classes beside the whole product alone, the faster of the two libraries."""
    yield from (
        "Symmetric products beside cuBLAS's gemm alone, which multiplies twice as much: geometric",
        "means of its time / pymm.syrk's, the floor for both layouts together.",
        "",
        "| type | class | floor | A A^T | A^T A | both | |",
        "|---|---|--:|--:|--:|--:|---|",
    )
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        for name in SYMMETRIC:
            of = [row for row in rows if (row["class"], row["dtype"]) == (name, dtype)]
            if of:
                yield f"| {dtype} | {name} | {_judged(of, name, dtype)} |"


def _judged(rows: Sequence[Row], name: str, dtype: str) -> str:
    """Floor, means and what is reached of one class and type."""
    floor = FLOORS.get(name, {}).get(dtype, math.nan)
    groups = [
        [row for row in rows if row["layout"] in at] for at in (("NT",), ("TN",), ("NT", "TN"))
    ]
    means = [_mean(map(gemm_ratio, at)) for at in groups]
    wanted = len(class_problems((name,), (dtype,), ("NT", "TN")))
    failed = sum(row["outcome"] != "ok" for row in rows)
    if failed:
        said = f"{failed} of {len(rows)} failed"
    elif len(rows) < wanted:
        said = f"{len(rows)} of {wanted}"
    else:
        said = "" if math.isnan(floor) else "floor" if means[-1] >= floor else "missed"
    return " | ".join([f"{floor:g}" if floor == floor else "", *map(_number, means), said])


def gemm_ratio(row: Row) -> float:
    """Time of the faster of cuBLAS's two whole products / pymm's; NaN if one is missing."""
    times = [float(row[f"{name}_us"]) for name in general_on("cuda") if row[f"{name}_us"]]
    return min(times) / float(row["us"]) if times and row["us"] else math.nan


def transposes(rows: Iterable[Row]) -> list[str]:
    """The lines about A^T A; none without rows of it."""
    groups: dict[tuple[str, int, int], list[Row]] = {}
    for row in rows:
        if row["suite"] == "o3" and row["quantity"] == "kernel":
            groups.setdefault((row["dtype"], int(row["n"]), int(row["k"])), []).append(row)
    if not groups:
        return []
    lines = [
        "## A^T A",
        "",
        "Written by `python benchmarks/results.py` from the rows of",
        "`python -m pymm.bench --suite o3 --dtypes f64,f32 --csv FILE`. Rates in GFLOP/s count of",
        "every contestant the N (N + 1) k operations that one half of C needs: cuBLAS's gemm does",
        "nearly twice as many. Ratios are times / pymm.syrk's. All write all of C; cuBLAS's syrk",
        "leaves one half as it was, unless its mirror is added. Error: the largest of pymm.syrk's",
        "as a part of its bound; a result beyond it is wrong, and is not timed.",
    ]
    for dtype in dict.fromkeys(dtype for dtype, _, _ in groups):
        for words, holds in KINDS:
            at = {
                n: of
                for (name, n, k), of in sorted(groups.items())
                if name == dtype and holds(n, k)
            }
            if at:
                lines += ["", f"### A of {words}, {dtype}", "", *_table(at)]
    return lines


def _table(at: Mapping[int, Sequence[Row]]) -> Iterator[str]:
    found = {n: _timed(rows) for n, rows in at.items()}
    heads = [head for head in CONTESTANTS if any(head in by for by in found.values())]
    others = [head for head in heads if head != OWN]
    against = [f"{head} / pymm" for head in others]
    yield "| N | ms | " + " | ".join([*heads, *against, "error"]) + " |"
    yield "|--:" * (len(heads) + len(against) + 3) + "|"
    for n, by in found.items():
        own = by.get(OWN)
        rates = [_rate(float(by[head]["gflops"])) if head in by else "" for head in heads]
        parts = [_ratio(by.get(head), own) for head in others]
        ms = f"{float(own['seconds']) * 1e3:.4g}" if own else _failure(at[n])
        cells = [str(n), ms, *rates, *map(_number, parts), own["error"] if own else ""]
        yield "| " + " | ".join(cells) + " |"
    means = [_mean(_ratio(by.get(head), by.get(OWN)) for by in found.values()) for head in others]
    empty = [""] * (len(heads) + 1)
    yield "| mean | " + " | ".join([*empty, *map(_number, means), ""]) + " |"


def _timed(rows: Sequence[Row]) -> dict[str, Row]:
    """By the head of its column what has a right result's time; of rows that are measured again the
    last, of several names the fastest.
    """
    last = {}  # what was chosen counts as one contestant, whichever kernel that was
    for row in rows:
        tile = row["variant"] == "fixed" or row["name"] == TILE
        last["fixed" if tile else "chosen" if row["variant"] == "chosen" else row["name"]] = row
    found = {}
    for head, names in CONTESTANTS.items():
        of = [last[name] for name in names if name in last]
        of = [row for row in of if row["outcome"] == "ok" and row["seconds"]]
        if of:
            found[head] = min(of, key=lambda row: float(row["seconds"]))
    return found


def _failure(rows: Sequence[Row]) -> str:
    return next((row["outcome"] for row in rows if row["variant"] == "chosen"), "")


def _ratio(other: Row | None, own: Row | None) -> float:
    return float(other["seconds"]) / float(own["seconds"]) if other and own else math.nan


def _mean(ratios: Iterable[float]) -> float:
    """Geometric mean of those that are there."""
    logs = [math.log(ratio) for ratio in ratios if ratio > 0]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def _rate(gflops: float) -> str:
    return f"{gflops:.0f}" if gflops >= 100 else f"{gflops:.3g}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.2f}"
