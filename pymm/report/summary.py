"""The first screen in words and numbers: sentences and highlighted numbers of a whole report."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pymm.core.dtypes import EMULATED
from pymm.report.content import Tile, counted, rate
from pymm.report.load import Results, Row
from pymm.report.searches import Search
from pymm.report.stats import (
    OWN,
    Comparison,
    HighestRate,
    baseline_name,
    mean,
    timings,
    tuned_searches,
)

#: Classes of fewer products do not count as the best or the worst.
FEW = 2


def summary_sentences(
    highest_rates: Sequence[HighestRate],
    comparisons: Sequence[Comparison],
    found: Sequence[Search],
    baseline: str,
    everything: Sequence[Row],
) -> list[tuple[str, str]]:
    """Questions and their answers: `comparisons` and `found` of today, stale rows of
    `everything`.
    """
    answers = (
        ("How fast?", _rates(highest_rates)),
        (f"Compared with {baseline}?", _against_baseline([c for c in comparisons if c.ratio > 0])),
        ("What does tuning gain?", _gained([s.gain for s in found if s.gain > 0])),
        ("Is it today's?", _stale(everything)),
    )
    return [(question, answer) for question, answer in answers if answer]


def failures(comparisons: Sequence[Comparison]) -> list[str]:
    """A sentence about the products without a valid time; none if all have one."""
    of = [c for c in comparisons if not c.row.valid]
    if not of:
        return []
    counts = Counter((f"{c.problem.dtype} {c.name}".strip(), c.row.text("outcome")) for c in of)
    parts = [f"{what} {outcome} ({count})" for (what, outcome), count in counts.items()]
    return [f"{len(of)} of {len(comparisons)} products have no valid time: {', '.join(parts)}."]


def _stale(rows: Sequence[Row]) -> str:
    stale = sum(bool(row.stale) for row in rows)
    if not stale:
        return ""
    return (
        f"{stale} of {len(rows)} rows are stale: pymm has another kernel source, chooses another "
        "configuration or uses other tools today. They are marked in the tables, and nothing on "
        "this screen counts them."
    )


def _rates(highest_rates: Sequence[HighestRate]) -> str:
    parts = [
        f"{e.dtype} {rate(e.own.gflops)}, {e.own.gflops / e.peak:.0%}"
        for e in sorted(highest_rates, key=lambda e: -e.own.gflops / e.peak)
    ]
    return f"Highest rate of each type, and its fraction of peak: {'; '.join(parts)}." * bool(parts)


def _against_baseline(comparisons: Sequence[Comparison]) -> str:
    comparisons = [
        c for c in comparisons if c.problem.dtype not in EMULATED and c.problem.op == "gemm"
    ]
    if not comparisons:
        return ""
    ratios = [c.ratio for c in comparisons]
    ahead = sum(ratio >= 1 for ratio in ratios)
    average = mean(ratios)
    least = min(comparisons, key=lambda c: c.ratio)
    said = (
        f"Over {counted(len(ratios), 'product')} with the same arithmetic, pymm is "
        f"{average:.2f} times as fast (geometric mean): at least as fast in {ahead} of them, "
        f"slower in {len(ratios) - ahead}, by more than 5 % in "
        f"{sum(ratio < 1 / 1.05 for ratio in ratios)}, at worst {least.ratio:.2f} times as fast "
        f"({least.problem.slug})."
    )
    classes = list(_classes(comparisons))
    if len(classes) < FEW:
        return said
    best, worst = max(classes), min(classes)
    behind = sum(ratio < 1 for ratio, _ in classes)
    if behind == len(classes):
        return f"{said} It is slower in every class, {worst[0]:.2f} to {best[0]:.2f} times as fast."
    return (
        f"{said} The best class is {best[1]} ({best[0]:.2f} times), the worst {worst[1]} "
        f"({worst[0]:.2f}); {behind or 'none'} of {len(classes)} classes "
        f"{'is' if behind == 1 else 'are'} slower on average."
    )


def _classes(comparisons: Sequence[Comparison]) -> Iterator[tuple[float, str]]:
    """Geometric mean and name of each class and type."""
    groups: dict[tuple[str, str], list[float]] = {}
    for c in comparisons:
        if c.name:
            groups.setdefault((c.problem.dtype, c.name), []).append(c.ratio)
    for (dtype, name), ratios in groups.items():
        if len(ratios) >= FEW:
            yield mean(ratios), f"{dtype} {name}"


def _gained(gains: Sequence[float]) -> str:
    if not gains:
        return ""
    if max(gains) == 1.0:
        said = counted(len(gains), "search")
        return f"{said} found nothing faster than the defaults beyond the noise."
    return (
        f"{counted(len(gains), 'search')} made kernels {mean(gains):.2f} times as "
        f"fast as their defaults (geometric mean; median {statistics.median(gains):.2f}, maximum "
        f"{max(gains):.3g})."
    )


def tiles_of(
    results: Results, found: Sequence[HighestRate], compared: Sequence[Comparison]
) -> list[Tile]:
    """The highlighted numbers of the first chapter."""
    baseline, tiles = baseline_name(results), []
    for label, what, ratios in _kinds(compared, baseline):
        behind = sum(ratio < 1 for ratio in ratios)
        said = f"geometric mean over {counted(len(ratios), 'product')} {what}; slower in {behind}"
        tiles.append(Tile(label, f"{mean(ratios):.2f}x", said))
    if found:
        best = max(found, key=lambda e: e.own.gflops / e.peak)
        tiles.append(
            Tile(
                "highest fraction of peak",
                f"{best.own.gflops / best.peak:.0%}",
                f"of {rate(best.peak)}: {best.dtype}, {best.own.problem.slug}",
            )
        )
    return [*_stored(results), *tiles, *_tuned(results)]


def _stored(results: Results) -> Iterator[Tile]:
    """How much is tuned: by this user, and as shipped."""
    problems = {record.problem for record in results.records}
    if not problems:
        return
    stale = sum(bool(results.today.record_stale_because(record)) for record in results.records)
    types = counted(len({problem.dtype for problem in problems}), "type")
    own = len({record.problem for record in results.own_records})
    where = f"{own} of them here, the others as shipped" if results.machine else f"in {types}"
    said = f"{where}; {stale} of {counted(len(results.records), 'configuration')} stale"
    yield Tile("products tuned", str(len(problems)), said)


def _kinds(compared: list[Comparison], baseline: str) -> Iterable[tuple[str, str, list[float]]]:
    """The kinds of comparisons that have ratios: a label, a description and the ratios of each."""
    plain = [c for c in compared if c.ratio > 0 and c.problem.op == "gemm"]
    other = [c.ratio for c in plain if c.problem.dtype in EMULATED]
    same = [c.ratio for c in plain if c.problem.dtype not in EMULATED]
    half = [c.ratio for c in compared if c.ratio > 0 and c.problem.op != "gemm"]
    kinds = (
        (f"compared with {baseline}", "with the same arithmetic", same),
        (
            "emulated float32",
            "of split operands, or in float32 where that should be quicker, compared with float32",
            other,
        ),
        (f"A^T A compared with {baseline}", "that are symmetric", half),
    )
    return (kind for kind in kinds if kind[2])


def _tuned(results: Results) -> Iterable[Tile]:
    gains = [search.gain for search in tuned_searches(results) if search.gain > 0]
    if gains:
        yield Tile(
            "speed-up by tuning",
            f"{mean(gains):.2f}x",
            f"geometric mean over {counted(len(gains), 'search')}, compared with the kernels' "
            f"defaults; at most {max(gains):.1f}x",
        )
        return
    rows = [t for t in timings(results) if t.row.kind == "bench" and t.library == OWN]
    rows = [t for t in rows if not t.row.stale]
    pairs = {}
    for t in rows:
        pairs.setdefault((t.problem, t.kernel), {})[t.variant] = t.seconds
    both = [at["default"] / at["tuned"] for at in pairs.values() if {"default", "tuned"} <= set(at)]
    if both:
        yield Tile(
            "speed-up by tuning",
            f"{mean(both):.2f}x",
            f"geometric mean over {counted(len(both), 'product')}, compared with the kernels' "
            "defaults",
        )
