"""The part of RESULTS.md about searches of recorded spaces, from `benchmarks/replay.py`'s rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pymm.core.inputs import BadInput
from pymm.measure.results import REPLAYS

#: The floor of a kind of search: median and p90 of the evaluations to 95 % of the optimum.
FLOORS = {("local", "16", "0.0", "0"): (60, 120), ("local", "16", "0.0", "1"): (20, 60)}

#: A kind of search as the tables have it.
KEY = ("sampler", "depth", "compiling", "warm", "noise")

Row = dict[str, str]


def tables(path: Path) -> list[str]:
    """The lines of this part. `BadInput` if the file is damaged or has no row."""
    rows = REPLAYS.rows(path, ("goal", "median", "p90", "arrived", "seeds"))
    if not rows:
        raise BadInput(f"{path}, line 1: no row")
    goals = list(dict.fromkeys(row["goal"] for row in rows))
    lines = [
        "## Searches of recorded spaces",
        "",
        "Written by `python benchmarks/replay.py` into `benchmarks/replays.csv`. Evaluations until",
        "a search reaches a part of the optimum, on brute-forced times of CLBlast's Xgemm on four",
        "GPUs (`tests/support/data`, MIT License): median / 90th percentile, share of the searches",
        "that arrive. Settings of pymm's sampler were chosen on the RTX 2080 Ti and the RTX 3060",
        "Laptop GPU; the other two GPUs only judge them. depth:",
        "configurations compiled ahead; compiling: each takes as long as so many measurements;",
        "warm: begun with the best ones of the other three GPUs; noise: measured by recorded",
        "single runs. `local` is pymm's sampler; `kt:` is Kernel Tuner in its simulation mode.",
        "",
    ]
    for device in dict.fromkeys(row["device"] for row in rows):
        of_device = [row for row in rows if row["device"] == device]
        lines += [f"{device}:", "", *_table(of_device, goals), ""]
    return [*lines, *_floors(rows)]


def _table(rows: Sequence[Row], goals: Sequence[str]) -> list[str]:
    heads = [f"{float(goal):.0%}" for goal in goals]
    lines = [
        f"| sampler | depth | compiling | warm | noise | searches | {' | '.join(heads)} |",
        "|---|--:|--:|---|---|--:|" + "--:|" * len(goals),
    ]
    for kind in dict.fromkeys(tuple(row[name] for name in KEY) for row in rows):
        at = {r["goal"]: r for r in rows if tuple(r[name] for name in KEY) == kind}
        sampler, depth, compiling, warm, noise = kind
        words = ["yes" if flag == "1" else "" for flag in (warm, noise)]
        cells = [_cell(at[goal]) if goal in at else "" for goal in goals]
        count = next(iter(at.values()))["seeds"]
        start = f"| {sampler} | {depth} | {float(compiling):g} | {' | '.join(words)} | {count} "
        lines.append(f"{start}| {' | '.join(cells)} |")
    return lines


def _cell(row: Row) -> str:
    most = f"> {row['most']}"
    times = f"{row['median'] or most} / {row['p90'] or most}"
    return f"{times}, {float(row['arrived']):.0%}"


def _floors(rows: Sequence[Row]) -> list[str]:
    """Which floors are reached on which devices."""
    lines = ["| searches to 95 % | floor | device | median | p90 | arrive | |"]
    lines.append("|---|---|---|--:|--:|--:|---|")
    for kind, (median, p90) in FLOORS.items():
        for row in rows:
            at = tuple(row[name] for name in ("sampler", "depth", "compiling", "warm"))
            if at != kind or float(row["goal"]) != 0.95:
                continue
            met = (
                float(row["median"] or "inf") <= median
                and float(row["p90"] or "inf") <= p90
                and float(row["arrived"]) == 1
            )
            words = "warm, 16 ahead" if kind[3] == "1" else "cold, 16 ahead"
            lines.append(
                f"| {words} | {median}, {p90} | {row['device']} | {row['median']} | {row['p90']} "
                f"| {float(row['arrived']):.0%} | {'floor' if met else 'missed'} |"
            )
    return lines
