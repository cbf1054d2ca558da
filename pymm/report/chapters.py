"""A device's report, chapter by chapter: what is asked first stands first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pymm.report import grids, listing, plots_limits, plots_rates, plots_searches
from pymm.report.chapters_studies import origins
from pymm.report.circumstances import (
    bench_commands,
    environment,
    measurable,
    page_commands,
    tune_commands,
)
from pymm.report.content import Chapter, Report, Table, Tile, rate
from pymm.report.drawing import Figure, NoPlots
from pymm.report.facts import (
    OWN,
    Duel,
    bench_duels,
    class_rows,
    device_name,
    duels,
    extremes,
    mean,
    opponent_name,
    peaks,
    timed,
)
from pymm.report.reading import Findings
from pymm.report.record import data_of
from pymm.report.searches import searches

#: Calls a maker of figures with its arguments.
Draw = Callable[..., list[Figure]]

#: Compared with float32's products, so that it counts apart.
OTHER_ARITHMETIC = "tf32x3"


def report(findings: Findings, figures: bool = True) -> Report:
    """Everything about one device, perhaps without figures. A chapter that has nothing to show is
    left out, and said.
    """
    reasons: dict[str, None] = {}

    def drawn(maker: Callable[..., list[Figure]], *arguments: object) -> list[Figure]:
        try:
            return maker(*arguments) if figures else []
        except NoPlots as reason:
            reasons[f"No figures: {reason}"] = None
            return []

    first, last = (glance, beside, ladder, sizes, limits, tuning), (accuracy, unseen)
    made = [maker(findings, drawn) for maker in first]
    made += origins(findings, drawn)
    made += [maker(findings, drawn) for maker in last]
    chapters = [chapter for chapter in made if not chapter.empty]
    left = [title for title, measured in measurable(findings).items() if not measured]
    missing = [f"Nothing was measured for: {', '.join(left)}"] if left else []
    return Report(
        device_name(findings),
        "How fast pymm multiplies matrices on it",
        chapters,
        [*dict.fromkeys(findings.notices), *missing],
        environment(findings),
        data_of(findings),
        "; ".join(reasons),
    )


def filled(*tables: Table) -> list[Table]:
    """The tables that have rows."""
    return [table for table in tables if table.rows]


def contests(findings: Findings) -> list[Duel]:
    """One comparison a product: of the classes, else of the bench."""
    return duels(findings) or bench_duels(findings)


def glance(findings: Findings, drawn: Draw) -> Chapter:
    """The first screen: tiles and two figures."""
    found, held = extremes(findings), contests(findings)
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
    figures = drawn(plots_rates.glance, found, device_name(findings))
    figures += drawn(plots_searches.gains, searches(findings))
    words = (
        "The highest rate of each type, the device's limit, the opponent, and what tuning "
        "gained. A ratio is the opponent's time / pymm's: above 1 pymm is faster."
    )
    tables = filled(listing.extremes(found, held))
    return Chapter(
        "glance",
        "At a glance",
        words,
        figures,
        tables,
        page_commands(findings),
        tiles,
        findings.remarks,
    )


def _kinds(held: list[Duel], opponent: str) -> Iterable[tuple[str, str, list[float]]]:
    """Comparisons that are counted apart: a label, words and the ratios of each that was made."""
    plain = [d for d in held if d.ratio > 0 and d.problem.op == "gemm"]
    other = [d.ratio for d in plain if d.problem.dtype == OTHER_ARITHMETIC]
    same = [d.ratio for d in plain if d.problem.dtype != OTHER_ARITHMETIC]
    half = [d.ratio for d in held if d.ratio > 0 and d.problem.op != "gemm"]
    kinds = (
        (f"beside {opponent}", "products in the same arithmetic", same),
        ("tf32x3 beside float32", "products, as exact as float32", other),
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


def beside(findings: Findings, drawn: Draw) -> Chapter:
    """Heat maps and the table of every product."""
    held = duels(findings)
    tables = (
        []
        if not held
        else filled(*grids.class_means(held), grids.shape_map(held), listing.products(held))
    )
    opponent = opponent_name(findings)
    words = (
        f"What `pymm.matmul` runs for every product of the classes beside {opponent}, on the "
        "same operands, measured in turn with cold caches; every result was checked. Copies "
        "ahead of a product count."
    )
    return Chapter(
        "beside",
        f"Beside {opponent}",
        words,
        [],
        tables,
        ["python -m pymm.bench --classes all --csv classes.csv"],
    )


def ladder(findings: Findings, drawn: Draw) -> Chapter:
    """The rungs."""
    everything = [t for t in timed(findings) if t.row.kind == "bench"]
    figures = drawn(plots_rates.ladder, everything, peaks(findings))
    tables = filled(listing.kernels(everything))
    words = (
        "Every kernel with its default and, where that very problem was tuned, its tuned "
        "configuration."
    )
    return Chapter(
        "ladder",
        "The ladder",
        words,
        figures,
        tables,
        bench_commands(findings),
    )


def sizes(findings: Findings, drawn: Draw) -> Chapter:
    """Rates against size."""
    everything = [t for t in timed(findings) if t.row.kind in ("classes", "bench")]
    limit = peaks(findings)
    figures = drawn(plots_rates.curves, everything, limit)
    words = "Square products, row-major operands, of every file that was read."
    return Chapter("sizes", "Rate against size", words, figures)


def limits(findings: Findings, drawn: Draw) -> Chapter:
    """Roofline, power, energy."""
    bandwidth = float(findings.device.get("bandwidth") or 0)
    figures = drawn(plots_limits.rooflines, timed(findings), peaks(findings), bandwidth)
    figures += drawn(plots_limits.energy, class_rows(findings))
    words = (
        "A product is limited by arithmetic, or, where it does few operations for each byte, "
        "by memory."
    )
    return Chapter("limits", "Physical limits", words, figures)


def tuning(findings: Findings, drawn: Draw) -> Chapter:
    """How the searches went."""
    found = searches(findings)
    figures = []
    for maker in (
        plots_searches.progress,
        plots_searches.outcomes,
        plots_searches.importances,
        plots_searches.slices,
    ):
        figures += drawn(maker, found)
    tables = filled(listing.gains(found), listing.records(findings.records))
    words = (
        "Each search tries the default first, then what is stored for neighbours and what the "
        "cost model expects most of; the best few are measured again in turn with the "
        "default, which stays unless it is beaten beyond noise."
    )
    return Chapter("tuning", "Tuning", words, figures, tables, tune_commands(findings))


def accuracy(findings: Findings, drawn: Draw) -> Chapter:
    """Errors beside their bound."""
    figures = drawn(plots_limits.errors, class_rows(findings))
    words = (
        "No element may deviate from the product in float64 by more than rounding can cause "
        "in any order of adding; a result beyond that bound is wrong and is not timed."
    )
    return Chapter("accuracy", "Accuracy", words, figures)


def unseen(findings: Findings, drawn: Draw) -> Chapter:
    """Shapes never tuned."""
    rows = findings.of("unseen")
    tiles = []
    if rows:
        parts = [row.number("of_fastest") for row in rows]
        tiles = [
            Tile(
                "chosen / fastest",
                f"{mean(parts):.3f}",
                f"geometric mean over {len(parts)} random shapes; least {min(parts):.2f}",
            )
        ]
    words = "How good the choice is where nothing was tuned: random extents between 64 and 8192."
    return Chapter(
        "unseen",
        "Shapes never tuned",
        words,
        [],
        filled(listing.unseen(rows)),
        ["python benchmarks/unseen.py --csv unseen.csv"] if rows else (),
        tiles,
    )
