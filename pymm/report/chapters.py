"""A device's report, chapter by chapter: what is asked first stands first."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from pymm.report import grids, listing, plots_limits, plots_rates, plots_searches
from pymm.report.chapters_studies import origins
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
    written,
)
from pymm.report.reading import Findings
from pymm.report.record import data_of
from pymm.report.searches import searches

#: Compared with float32's products, so that it counts apart.
OTHER_ARITHMETIC = "tf32x3"


def report(findings: Findings) -> Report:
    """Everything about one device. A chapter that has nothing to show is left out, and said."""
    notices = list(findings.notices)
    first, last = (glance, beside, ladder, sizes, limits, tuning), (accuracy, unseen)
    made = [maker(findings, notices) for maker in first]
    made += origins(findings, lambda maker: drawn(notices, maker))
    made += [maker(findings, notices) for maker in last]
    chapters = [chapter for chapter in made if not chapter.empty]
    left = [chapter.title for chapter in made if chapter.empty]
    if left:
        notices.append(f"Nothing was measured for: {', '.join(left)}")
    return Report(
        device_name(findings),
        "How fast pymm multiplies matrices on it",
        chapters,
        list(dict.fromkeys(notices)),
        environment(findings),
        data_of(findings),
    )


def drawn(notices: list[str], maker: Callable[..., list[Figure]], *arguments) -> list[Figure]:
    """Figures, or none and a notice where Matplotlib is missing."""
    try:
        return maker(*arguments)
    except NoPlots as reason:
        notices.append(f"No figures: {reason}")
        return []


def filled(*tables: Table) -> list[Table]:
    """The tables that have rows."""
    return [table for table in tables if table.rows]


def contests(findings: Findings) -> list[Duel]:
    """One comparison a product: of the classes, else of the bench."""
    return duels(findings) or bench_duels(findings)


def glance(findings: Findings, notices: list[str]) -> Chapter:
    """The first screen: tiles and two figures."""
    found, held = extremes(findings), contests(findings)
    opponent, tiles = opponent_name(findings), []
    same = [d.ratio for d in held if d.ratio > 0 and d.problem.dtype != OTHER_ARITHMETIC]
    if same:
        ahead = sum(ratio >= 1 for ratio in same)
        tiles.append(
            Tile(
                f"beside {opponent}",
                f"{mean(same):.2f}x",
                f"geometric mean over {len(same)} products in the same arithmetic; at "
                f"least as fast in {ahead} of them",
            )
        )
    other = [d.ratio for d in held if d.ratio > 0 and d.problem.dtype == OTHER_ARITHMETIC]
    if other:
        tiles.append(
            Tile(
                "tf32x3 beside float32",
                f"{mean(other):.2f}x",
                f"geometric mean over {len(other)} products, as exact as float32",
            )
        )
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
    figures = drawn(notices, plots_rates.glance, found, device_name(findings))
    figures += drawn(notices, plots_searches.gains, searches(findings))
    words = (
        "The highest rate of each type, the device's limit, the opponent, and what tuning "
        "gained. A ratio is the opponent's time / pymm's: above 1 pymm is faster."
    )
    tables = filled(listing.extremes(found, held))
    return Chapter("glance", "At a glance", words, figures, tables, (), tiles)


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


def beside(findings: Findings, notices: list[str]) -> Chapter:
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


def ladder(findings: Findings, notices: list[str]) -> Chapter:
    """The rungs."""
    everything = [t for t in timed(findings) if t.row.kind == "bench"]
    figures = drawn(notices, plots_rates.ladder, everything, peaks(findings))
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
        ["python -m pymm.bench --shapes ladder --dtypes all --csv ladder.csv"],
    )


def sizes(findings: Findings, notices: list[str]) -> Chapter:
    """Rates against size."""
    everything = [t for t in timed(findings) if t.row.kind in ("classes", "bench")]
    limit = peaks(findings)
    figures = drawn(notices, plots_rates.curves, everything, limit)
    words = "Square products, row-major operands, of every file that was read."
    return Chapter("sizes", "Rate against size", words, figures)


def limits(findings: Findings, notices: list[str]) -> Chapter:
    """Roofline, power, energy."""
    bandwidth = float(findings.device.get("bandwidth") or 0)
    figures = drawn(notices, plots_limits.rooflines, timed(findings), peaks(findings), bandwidth)
    figures += drawn(notices, plots_limits.energy, class_rows(findings))
    words = (
        "A product is limited by arithmetic, or, where it does few operations for each byte, "
        "by memory."
    )
    return Chapter("limits", "Physical limits", words, figures)


def tuning(findings: Findings, notices: list[str]) -> Chapter:
    """How the searches went."""
    found = searches(findings)
    figures = []
    for maker in (
        plots_searches.progress,
        plots_searches.outcomes,
        plots_searches.importances,
        plots_searches.slices,
    ):
        figures += drawn(notices, maker, found)
    tables = filled(listing.gains(found), listing.records(findings.records))
    words = (
        "Each search tries the default first, then what is stored for neighbours and what the "
        "cost model expects most of; the best few are measured again in turn with the "
        "default, which stays unless it is beaten beyond noise."
    )
    return Chapter("tuning", "Tuning", words, figures, tables, ["python -m pymm.tune"])


def accuracy(findings: Findings, notices: list[str]) -> Chapter:
    """Errors beside their bound."""
    figures = drawn(notices, plots_limits.errors, class_rows(findings))
    words = (
        "No element may deviate from the product in float64 by more than rounding can cause "
        "in any order of adding; a result beyond that bound is wrong and is not timed."
    )
    return Chapter("accuracy", "Accuracy", words, figures)


def unseen(findings: Findings, notices: list[str]) -> Chapter:
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


def environment(findings: Findings) -> list[tuple[str, str]]:
    """What it was measured with, each value that occurs."""
    rows = [row for kind in findings.rows.values() for row in kind]
    facts = [("device", device_name(findings))]
    for name in ("kind", "capability", "sms", "cores", "vector_bytes"):
        if findings.device.get(name):
            facts.append((name.replace("_", " "), str(findings.device[name])))
    limit = peaks(findings)
    if limit:
        facts.append(("limits", ", ".join(f"{name} {rate(v)}" for name, v in limit.items())))
    if findings.device.get("bandwidth"):
        facts.append(("memory", f"{float(findings.device['bandwidth']) / 1e12:.3g} TB/s"))
    for name in ("driver", "compiler", "pymm", "commit"):
        seen = sorted({row.text(name) for row in rows} - {""})
        if seen:
            facts.append((name, ", ".join(seen)))
    moments = sorted(row.text("time") for row in rows if row.text("time"))
    if moments:
        facts.append(("measured", f"{moments[0]} to {moments[-1]}"))
    libraries = {t.who for t in timed(findings)} - {OWN}
    facts.append(("beside", ", ".join(sorted(map(written, libraries))) or "nothing"))
    facts.append(("read from", ", ".join(findings.files) or "nothing"))
    return facts
