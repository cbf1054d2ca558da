"""The first sentences of a report: how fast, beside whom, and what tuning gained."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from pymm.core.dtypes import EMULATED
from pymm.report.content import Tile, rate
from pymm.report.facts import OWN, Duel, Extreme, mean, opponent_name, timed
from pymm.report.reading import Findings
from pymm.report.searches import Search, searches

#: Classes of fewer products do not count as the best or the worst.
FEW = 2


def at_a_glance(
    extremes: Sequence[Extreme], duels: Sequence[Duel], found: Sequence[Search], opponent: str
) -> list[tuple[str, str]]:
    """Each a question and its answer in words."""
    answers = (
        ("How fast?", _rates(extremes)),
        (f"Beside {opponent}?", _beside([d for d in duels if d.ratio > 0])),
        ("What did tuning gain?", _gained([s.gain for s in found if s.gain > 0])),
    )
    return [(question, answer) for question, answer in answers if answer]


def failures(duels: Sequence[Duel]) -> list[str]:
    """The sentence about products that have no right result's time; none if all have one."""
    of = [d for d in duels if not d.row.sound]
    if not of:
        return []
    counts = Counter((f"{d.problem.dtype} {d.name}".strip(), d.row.text("outcome")) for d in of)
    parts = [f"{what} {outcome} ({count})" for (what, outcome), count in counts.items()]
    return [f"{len(of)} of {len(duels)} products have no time: {', '.join(parts)}."]


def _rates(extremes: Sequence[Extreme]) -> str:
    parts = [
        f"{e.dtype} {rate(e.own.gflops)}, {e.own.gflops / e.peak:.0%}"
        for e in sorted(extremes, key=lambda e: -e.own.gflops / e.peak)
    ]
    return f"Highest rate of each type, and its part of the limit: {'; '.join(parts)}." * bool(
        parts
    )


def _beside(duels: Sequence[Duel]) -> str:
    duels = [d for d in duels if d.problem.dtype not in EMULATED and d.problem.op == "gemm"]
    if not duels:
        return ""
    ratios = [d.ratio for d in duels]
    ahead = sum(ratio >= 1 for ratio in ratios)
    average = mean(ratios)
    said = (
        f"Over {len(ratios)} products of all shapes in the same arithmetic pymm is "
        f"{average:.2f} times as fast (geometric mean), and at least as fast in {ahead} of them."
    )
    classes = list(_classes(duels))
    if len(classes) < FEW:
        return said
    best, worst = max(classes), min(classes)
    behind = sum(ratio < 1 for ratio, _ in classes)
    return (
        f"{said} Most is gained in {best[1]} ({best[0]:.2f} times), least in {worst[1]} "
        f"({worst[0]:.2f}); {behind or 'none'} of {len(classes)} classes of products "
        f"{'is' if behind == 1 else 'are'} slower on average."
    )


def _classes(duels: Sequence[Duel]) -> Iterator[tuple[float, str]]:
    """Geometric mean and name of each class and type."""
    groups: dict[tuple[str, str], list[float]] = {}
    for d in duels:
        if d.name:
            groups.setdefault((d.problem.dtype, d.name), []).append(d.ratio)
    for (dtype, name), ratios in groups.items():
        if len(ratios) >= FEW:
            yield mean(ratios), f"{dtype} {name}"


def _gained(gains: Sequence[float]) -> str:
    if not gains:
        return ""
    if max(gains) == 1.0:
        return f"{len(gains)} searches found nothing faster than the defaults beyond noise."
    return (
        f"{len(gains)} search{'es' * (len(gains) > 1)} made kernels {mean(gains):.2f} times as "
        f"fast as their defaults (geometric mean), half of them at most "
        f"{statistics.median(gains):.2f} times, one {max(gains):.3g} times."
    )


def tiles_of(findings: Findings, found: Sequence[Extreme], held: Sequence[Duel]) -> list[Tile]:
    """The numbers of the first screen."""
    opponent, tiles = opponent_name(findings), []
    for label, words, ratios in _kinds(held, opponent):
        ahead = sum(ratio >= 1 for ratio in ratios)
        said = f"geometric mean over {len(ratios)} {words}; at least as fast in {ahead} of them"
        tiles.append(Tile(label, f"{mean(ratios):.2f}x", said))
    if found:
        best = max(found, key=lambda e: e.own.gflops / e.peak)
        tiles.append(
            Tile(
                "closest to the limit",
                f"{best.own.gflops / best.peak:.0%}",
                f"of {rate(best.peak)}: {best.dtype}, {best.own.problem.slug}",
            )
        )
    tiles += _tuned(findings)
    return tiles


def _kinds(held: list[Duel], opponent: str) -> Iterable[tuple[str, str, list[float]]]:
    """Comparisons that are counted apart: a label, words and the ratios of each that was made."""
    plain = [d for d in held if d.ratio > 0 and d.problem.op == "gemm"]
    other = [d.ratio for d in plain if d.problem.dtype in EMULATED]
    same = [d.ratio for d in plain if d.problem.dtype not in EMULATED]
    half = [d.ratio for d in held if d.ratio > 0 and d.problem.op != "gemm"]
    kinds = (
        (f"beside {opponent}", "products in the same arithmetic", same),
        ("three products beside float32", "products, nearly as exact as float32", other),
        (f"A^T A beside {opponent}", "symmetric products", half),
    )
    return (kind for kind in kinds if kind[2])


def _tuned(findings: Findings) -> Iterable[Tile]:
    gains = [search.gain for search in searches(findings) if search.gain > 0]
    if gains:
        yield Tile(
            "tuning gained",
            f"{mean(gains):.2f}x",
            f"geometric mean over {len(gains)} "
            f"searches beside the kernels' defaults; at most {max(gains):.1f}x",
        )
        return
    rows = [t for t in timed(findings) if t.row.kind == "bench" and t.who == OWN]
    pairs = {}
    for t in rows:
        pairs.setdefault((t.problem, t.rung), {})[t.variant] = t.seconds
    both = [at["default"] / at["tuned"] for at in pairs.values() if {"default", "tuned"} <= set(at)]
    if both:
        yield Tile(
            "tuning gained",
            f"{mean(both):.2f}x",
            f"geometric mean over {len(both)} products beside the kernels' defaults",
        )
