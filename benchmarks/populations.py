"""Tables of the populations for `results.py`: random products, those of language models, batches
and uneven symmetric products, for which nothing is tuned, from the rows that
`python -m pymm.bench --classes random,llm,batch,syrk-uneven --seed N` wrote.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pymm.core.shapes import DRAWN, LAYOUTS, class_problems

Row = dict[str, str]


@dataclass(frozen=True)
class Aim:
    """What the geometric mean of a population's ratios is to reach, and what each ratio is: floor,
    then goal. NaN: nothing.
    """

    mean: tuple[float, float]
    least: tuple[float, float] = (math.nan, math.nan)


#: By population, without its seed, and type.
AIMS: dict[str, dict[str, Aim]] = {
    "random": {
        "f32": Aim((1.15, 1.3), (0.9, 1.0)),
        "f64": Aim((1.08, 1.2), (0.9, 1.0)),
        "bf16": Aim((1.45, 1.7), (0.95, 1.0)),
        "tf32": Aim((1.25, 1.5), (0.9, 1.0)),
    },
    "llm": {"bf16": Aim((1.0, 1.06), (0.95, 1.0))},
    "batch": {
        "f32": Aim((1.05, 1.4), (0.95, 0.95)),
        "f64": Aim((1.05, 1.3), (0.95, 0.95)),
        "bf16": Aim((1.05, 1.4), (0.95, 0.95)),
    },
    "syrk-uneven": {name: Aim((1.1, 1.5)) for name in ("f32", "f64", "bf16")},
}

#: The reason of a choice that was searched for.
TUNED = "tuned for this problem"


def aim_of(name: str, dtype: str) -> Aim:
    """What a population, with its seed, is to reach in a type."""
    drawn = name.rpartition("-")[0]
    by_type = AIMS.get(drawn if drawn in DRAWN else name, {})
    return by_type.get(dtype, Aim((math.nan, math.nan)))


def populations(rows: Sequence[Row], file: str) -> list[str]:
    """The lines about the populations; `file` is where the rows are."""
    lines = [
        "## Populations",
        "",
        f"Written by `python benchmarks/results.py` from `{file}`, rows of",
        "`python -m pymm.bench --classes random,llm,batch,syrk-uneven --seed N --csv FILE`.",
        "random: m, n and k log-uniform between 32 and 8192, layouts random, drawn with the seed",
        "in the name; llm: the dense products, NT, that DeepGEMM's README lists; batch: 10000",
        "matrices of 16 x 16 to 16 of 1024 x 1024; syrk-uneven: A A^T and A^T A with odd n and k.",
        "Nothing was tuned for them: pymm ran what it chooses with the configurations that are",
        "shipped. A ratio is the time of the fastest baseline / pymm's, among them cuBLASLt with",
        "the fastest of all algorithms that it offers, where it was measured (nvmath-python).",
        "",
        "| type | population | floor | goal | no product below | products | mean | least | product "
        "| |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|---|",
    ]
    below = []
    for dtype in dict.fromkeys(row["dtype"] for row in rows):
        of_type = [row for row in rows if row["dtype"] == dtype]
        for name in dict.fromkeys(row["class"] for row in of_type):
            of = [row for row in of_type if row["class"] == name]
            lines.append(_judged(name, dtype, of))
            below += list(_below(of, aim_of(name, dtype).least[0]))
    if below:
        lines += [
            "",
            "Products below their floor, times in microseconds:",
            "",
            "| type | population | product | pymm | fastest baseline | ratio | configuration |",
            "|---|---|---|--:|--:|--:|---|",
            *below,
        ]
    return lines


def _judged(name: str, dtype: str, rows: Sequence[Row]) -> str:
    """One line: a population in a type, and what it reaches."""
    aim, right = aim_of(name, dtype), [row for row in rows if row["ratio"]]
    wanted = len(class_problems((name,), (dtype,), LAYOUTS))
    ratios = [float(row["ratio"]) for row in right]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else math.nan
    least = min(right, key=lambda row: float(row["ratio"]), default=None)
    failed = sum(row["outcome"] != "ok" for row in rows)
    tuned = sum(row["reason"].startswith(TUNED) for row in rows)
    if failed:
        said = f"{failed} failed"
    elif len(right) < wanted:
        said = f"{len(right)} of {wanted}"
    elif tuned:
        said = f"{tuned} are tuned"
    else:
        said = _reached(aim, mean, float(least["ratio"]))
    cells = [dtype, name, *map(_number, aim.mean), _number(aim.least[0]), str(len(right))]
    cells += [f"{mean:.2f}", least["ratio"], _product(least)] if least else ["", "", ""]
    return f"| {' | '.join([*cells, said])} |"


def _reached(aim: Aim, mean: float, least: float) -> str:
    """ "goal", "floor", "missed", or "" where there is nothing to reach."""
    if math.isnan(aim.mean[0]):
        return ""
    for said, number in (("goal", 1), ("floor", 0)):
        if mean >= aim.mean[number] and not least < aim.least[number]:
            return said
    return "missed"


def _below(rows: Sequence[Row], floor: float) -> Iterator[str]:
    """The products below their floor, the worst first."""
    under = [row for row in rows if row["ratio"] and float(row["ratio"]) < floor]
    for row in sorted(under, key=lambda row: float(row["ratio"])):
        own, ratio = float(row["us"]), float(row["ratio"])
        yield (
            f"| {row['dtype']} | {row['class']} | {_product(row)} | {own:.4g} | {own * ratio:.4g} "
            f"| {ratio:.2f} | {row['config'].replace('-', ' ')} |"
        )


def _product(row: Row) -> str:
    """Layout, extents and matrices of a product."""
    batch = f", batch of {row['batch']}" if row["batch"] not in ("", "1") else ""
    return f"{row['layout']} {row['m']} x {row['n']} x {row['k']}{batch}"


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:g}"
