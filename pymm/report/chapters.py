"""A device's report, chapter by chapter: what is asked first stands first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.report import tables, tables_experiments
from pymm.report.content import Chapter, Report, Table, Tile
from pymm.report.export import data_of
from pymm.report.load import Findings
from pymm.report.plots import chapter_figures, experiment_figures
from pymm.report.prose import at_a_glance, failures, tiles_of, told
from pymm.report.provenance import (
    bench_commands,
    class_commands,
    environment,
    lacking,
    page_commands,
    suite_command,
    tune_commands,
)
from pymm.report.searches import searches
from pymm.report.stats import (
    Experiment,
    class_rows,
    comparisons,
    device_name,
    duels,
    experiments,
    extremes,
    mean,
    opponent_name,
    timed,
)
from pymm.report.svg import NoPlots

#: Said where no row has a power.
POWERLESS = (
    "Power and energy are not known: rows of `python -m pymm.bench --classes` have them on a "
    "device that tells its power."
)

UNSEEN = "python benchmarks/unseen.py --csv unseen.csv"
CALLS = "python benchmarks/calls.py --csv calls.csv"


@dataclass(frozen=True)
class Origin:
    """A project that pymm comes from, and its experiments: one chapter."""

    name: str
    title: str
    words: str
    experiments: tuple[str, ...]


#: In the order of the page.
ORIGINS = (
    Origin(
        "o1",
        "Simple and tiled",
        "One thread for each element of C that reads all it needs, against tiles in shared memory.",
        ("o1",),
    ),
    Origin(
        "o2",
        "Transfers, sizes, remainders, blocks",
        "Element by element against blocked: what transfers take, how rates grow, what "
        "remainders of tiles and sizes of blocks cost, and what a thread does.",
        (
            "o2-transfers",
            "o2-split",
            "o2-sizes",
            "o2-remainders",
            "o2-blocks",
            "o2-kernels",
            "o2-counts",
        ),
    ),
    Origin(
        "o3",
        "A^T A",
        "C = A^T A beside the library and a plain kernel.",
        ("o3",),
    ),
    Origin(
        "o4",
        "The five kernels",
        "The ladder's first five kernels beside the sequential product.",
        ("o4-square", "o4-rectangular"),
    ),
)


def report(findings: Findings, figures: bool = True) -> Report:
    """Everything about one device, perhaps without figures. A chapter that has nothing to show is
    left out, and said.
    """
    made = [maker(findings) for maker in FIRST]
    made += origins(findings)
    made += [maker(findings) for maker in LAST]
    reason = _draw(findings, made) if figures else ""
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
        reason,
    )


def _draw(findings: Findings, chapters: list[Chapter]) -> str:
    """Give every chapter its figures. Returns why there are none, if Matplotlib is missing."""
    found = experiments(findings)
    asked = {origin.name: origin.experiments for origin in ORIGINS}
    try:
        for chapter in chapters:
            chapter.figures = chapter_figures(chapter.name, findings)
            for name in asked.get(chapter.name, ()):
                if name in found:
                    chapter.figures += experiment_figures(found[name])
    except NoPlots as reason:
        return f"No figures: {reason}"
    return ""


def measurable(findings: Findings) -> dict[str, bool]:
    """What a report can have, and whether this one does, by its rows."""
    found = experiments(findings)
    of_gpus = {"what a call costs": bool(findings.of("calls"))}
    origins = {origin.title: any(n in found for n in origin.experiments) for origin in ORIGINS}
    return {
        f"products beside {opponent_name(findings)}": bool(findings.of("classes")),
        "the ladder": bool(findings.of("bench")),
        "searches": bool(findings.of("trials")),
        **origins,
        "shapes never tuned": bool(findings.of("unseen")),
        **({} if findings.device.get("cores") else of_gpus),
    }


def filled(*tables: Table) -> list[Table]:
    """The tables that have rows."""
    return [table for table in tables if table.rows]


def glance(findings: Findings) -> Chapter:
    """The first screen: tiles and two figures."""
    found, held = extremes(findings), comparisons(findings)
    opponent = opponent_name(findings)
    words = (
        "How fast products of matrices are on this device, beside what it can do at most and "
        f"beside {opponent}. A ratio is the opponent's time / pymm's: at 1.25 pymm does in 8 ms "
        "what the opponent does in 10. Both were measured in turn on the same operands, caches "
        "cold, and every result was checked."
    )
    shown = filled(tables.extremes(found, held))
    return Chapter(
        "glance",
        "At a glance",
        words,
        tables=shown,
        commands=page_commands(findings),
        tiles=tiles_of(findings, found, held),
        remarks=[*failures(duels(findings)), *findings.remarks],
        seen=at_a_glance(found, held, searches(findings), opponent),
    )


def beside(findings: Findings) -> Chapter:
    """Heat maps and the table of every product."""
    held = duels(findings)
    shown = []
    if held:
        shown = filled(
            *tables.class_means(held),
            tables.beside_whole(held),
            *tables.shape_maps(held),
            tables.products(held),
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
        tables=shown,
        commands=class_commands(findings),
        lacking=[] if shown else lacking(class_commands(findings)),
    )


def ladder(findings: Findings) -> Chapter:
    """The rungs."""
    everything = [t for t in timed(findings) if t.row.kind == "bench"]
    shown = filled(tables.kernels(everything))
    words = (
        "Every kernel with its default and, where that very problem was tuned, its tuned "
        "configuration."
    )
    return Chapter(
        "ladder",
        "The ladder",
        words,
        tables=shown,
        commands=bench_commands(findings),
        lacking=[] if shown else lacking(bench_commands(findings)),
    )


def sizes(findings: Findings) -> Chapter:
    """Rates against size."""
    words = "Square products, row-major operands, of every file that was read."
    return Chapter("sizes", "Rate against size", words)


def limits(findings: Findings) -> Chapter:
    """Roofline, power, energy."""
    powered = any(row.number("power_w") > 0 for row in class_rows(findings))
    words = (
        "A product is limited by arithmetic, or, where it does few operations for each byte, "
        "by memory."
    )
    absent = [] if powered else [POWERLESS]
    return Chapter("limits", "Physical limits", words, lacking=absent)


def tuning(findings: Findings) -> Chapter:
    """How the searches went."""
    found = searches(findings)
    shown = filled(tables.gains(found), tables.records(findings.records))
    words = (
        "Each search tries the default first, then what is stored for neighbours and what the "
        "cost model expects most of; the best few are measured again in turn with the "
        "default, which stays unless it is beaten beyond noise."
    )
    commands = tune_commands(findings)
    absent = [] if found else lacking(commands, "No trials of a search are here")
    return Chapter("tuning", "Tuning", words, tables=shown, commands=commands, lacking=absent)


def accuracy(findings: Findings) -> Chapter:
    """Errors beside their bound."""
    words = (
        "No element may deviate from the product in float64 by more than rounding can cause "
        "in any order of adding; a result beyond that bound is wrong and is not timed."
    )
    absent = [] if class_rows(findings) else lacking(class_commands(findings))
    return Chapter("accuracy", "Accuracy", words, lacking=absent)


def unseen(findings: Findings) -> Chapter:
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
        tables=filled(tables.unseen(rows)),
        commands=[UNSEEN] if rows else (),
        tiles=tiles,
        lacking=() if rows or findings.device.get("cores") else lacking([UNSEEN]),
    )


def calls(findings: Findings) -> Chapter:
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
        tables=filled(tables.calls(rows)),
        commands=[CALLS] if rows else (),
        lacking=absent,
    )


def origins(findings: Findings) -> list[Chapter]:
    """A chapter for each of `ORIGINS`."""
    found = experiments(findings)
    return [_origin(findings, origin, found) for origin in ORIGINS]


def _origin(findings: Findings, origin: Origin, found: dict[str, Experiment]) -> Chapter:
    at = [found[name] for name in origin.experiments if name in found]
    sentences = [(experiment.name, told(experiment)) for experiment in at]
    return Chapter(
        origin.name,
        origin.title,
        origin.words,
        tables=filled(*(table for experiment in at for table in _tables(experiment))),
        commands=[suite_command(findings, experiment.name) for experiment in at],
        seen=[(name, words) for name, words in sentences if words],
        lacking=[
            f"Not measured here: {name}, {EXPERIMENTS[name].title}. The command is "
            f"`{suite_command(findings, name)}`."
            for name in origin.experiments
            if name not in found and name not in findings.absent
        ],
    )


def _tables(experiment: Experiment) -> list[Table]:
    if experiment.name == "o2-kernels":
        found = [tables_experiments.kernel_facts(experiment)]
    elif experiment.name == "o2-counts":
        found = [tables_experiments.counts(experiment)]
    elif experiment.name in ("o2-transfers", "o2-split"):
        found = [tables_experiments.journeys(experiment)]
    else:
        rates = tables_experiments.rates(experiment)
        found = [rates, *tables_experiments.beside_sequential(experiment)]
    return [*found, tables_experiments.left_out(experiment)]


#: The chapters before those of `ORIGINS`, and those after them.
FIRST: tuple[Callable[[Findings], Chapter], ...] = (glance, beside, ladder, sizes, limits, tuning)
LAST: tuple[Callable[[Findings], Chapter], ...] = (accuracy, unseen, calls)
