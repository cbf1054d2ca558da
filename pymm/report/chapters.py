"""A device's report, chapter by chapter: what is asked first stands first."""

from __future__ import annotations

from collections.abc import Callable

from pymm.report import grids, listing, plots_limits, plots_rates, plots_searches
from pymm.report.chapters_studies import origins
from pymm.report.circumstances import (
    bench_commands,
    class_commands,
    environment,
    lacking,
    measurable,
    page_commands,
    tune_commands,
)
from pymm.report.content import Chapter, Report, Table, Tile
from pymm.report.drawing import Figure, NoPlots
from pymm.report.facts import (
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
from pymm.report.summing import at_a_glance, failures, tiles_of

#: Calls a maker of figures with its arguments.
Draw = Callable[..., list[Figure]]

#: Said where no row has a power.
POWERLESS = (
    "Power and energy are not known: rows of `python -m pymm.bench --classes` have them on a "
    "device that tells its power."
)

UNSEEN = "python benchmarks/unseen.py --csv unseen.csv"
CALLS = "python benchmarks/calls.py --csv calls.csv"


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

    first, last = (glance, beside, ladder, sizes, limits, tuning), (accuracy, unseen, calls)
    made = [maker(findings, drawn) for maker in first]
    made += origins(findings, drawn)
    made += [maker(findings, drawn) for maker in last]
    measured = any(not chapter.empty for chapter in made)
    chapters = [c for c in made if not c.empty or (measured and c.lacking)]
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
    opponent = opponent_name(findings)
    figures = drawn(plots_rates.glance, found, device_name(findings))
    figures += drawn(plots_rates.beside, [d for d in held if d.ratio > 0], opponent)
    figures += drawn(plots_searches.gains, searches(findings))
    words = (
        "How fast products of matrices are on this device, beside what it can do at most and "
        f"beside {opponent}. A ratio is the opponent's time / pymm's: at 1.25 pymm does in 8 ms "
        "what the opponent does in 10. Both were measured in turn on the same operands, caches "
        "cold, and every result was checked."
    )
    tables = filled(listing.extremes(found, held))
    return Chapter(
        "glance",
        "At a glance",
        words,
        figures,
        tables,
        page_commands(findings),
        tiles_of(findings, found, held),
        [*failures(duels(findings)), *findings.remarks],
        at_a_glance(found, held, searches(findings), opponent),
    )


def beside(findings: Findings, drawn: Draw) -> Chapter:
    """Heat maps and the table of every product."""
    held = duels(findings)
    tables = (
        []
        if not held
        else filled(
            *grids.class_means(held),
            grids.beside_whole(held),
            *grids.shape_maps(held),
            listing.products(held),
        )
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
        class_commands(findings),
        lacking=[] if tables else lacking(class_commands(findings)),
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
        lacking=[] if tables else lacking(bench_commands(findings)),
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
    powered = any(row.number("power_w") > 0 for row in class_rows(findings))
    words = (
        "A product is limited by arithmetic, or, where it does few operations for each byte, "
        "by memory."
    )
    absent = [] if powered else [POWERLESS]
    return Chapter("limits", "Physical limits", words, figures, lacking=absent)


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
    commands = tune_commands(findings)
    absent = [] if found else lacking(commands, "No trials of a search are here")
    return Chapter("tuning", "Tuning", words, figures, tables, commands, lacking=absent)


def accuracy(findings: Findings, drawn: Draw) -> Chapter:
    """Errors beside their bound."""
    figures = drawn(plots_limits.errors, class_rows(findings))
    words = (
        "No element may deviate from the product in float64 by more than rounding can cause "
        "in any order of adding; a result beyond that bound is wrong and is not timed."
    )
    absent = [] if class_rows(findings) else lacking(class_commands(findings))
    return Chapter("accuracy", "Accuracy", words, figures, lacking=absent)


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
        [UNSEEN] if rows else (),
        tiles,
        lacking=() if rows or findings.device.get("cores") else lacking([UNSEEN]),
    )


def calls(findings: Findings, drawn: Draw) -> Chapter:
    """What a call costs the host."""
    rows = findings.of("calls")
    words = (
        "Before a product can begin, the host has to find out what is asked and to launch it: "
        "products of 64 x 64 in float32, whose operands lie on the device."
    )
    absent = () if rows or findings.device.get("cores") else lacking([CALLS])
    return Chapter(
        "calls",
        "What a call costs the host",
        words,
        [],
        filled(listing.calls(rows)),
        [CALLS] if rows else (),
        lacking=absent,
    )
