"""The chapters of a device's report, in the order in which readers ask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.report import tables, tables_devices, tables_experiments
from pymm.report.content import Chapter, Report, Table, Tile
from pymm.report.export import data_of
from pymm.report.load import Results
from pymm.report.plots import chapter_figures, experiment_figures
from pymm.report.prose import failures, observation, summary_sentences, tiles_of
from pymm.report.provenance import (
    bench_commands,
    class_commands,
    environment,
    not_measured,
    page_commands,
    suite_command,
    tune_commands,
)
from pymm.report.searches import searches
from pymm.report.stats import (
    Experiment,
    baseline_name,
    class_comparisons,
    class_rows,
    comparisons,
    device_name,
    experiments,
    highest_rates,
    mean,
    timings,
)
from pymm.report.svg import NoPlots

#: Written where no row has a power.
POWERLESS = (
    "Power and energy were not measured: `python -m pymm.bench --classes` records them on a device "
    "that reports its power."
)

UNSEEN = "python benchmarks/unseen.py --csv unseen.csv"
CALLS = "python benchmarks/calls.py --csv calls.csv"
BLOCKED = "python benchmarks/blocked.py --csv blocked.csv"
TUNE_DEVICES = "python benchmarks/tune_devices.py --csv tune-devices.csv"
DISTRIBUTED = "mpirun -n 4 python -m pymm.distributed bench --suite o4 --csv distributed.csv"


@dataclass(frozen=True)
class Origin:
    """One chapter: a project that pymm began as, and its experiments."""

    name: str
    title: str
    intro: str
    experiments: tuple[str, ...]


#: In the order of the page.
ORIGINS = (
    Origin(
        "o1",
        "Simple and tiled",
        "One thread per element of C that reads its operands from global memory, compared with "
        "tiles in shared memory.",
        ("o1",),
    ),
    Origin(
        "o2",
        "Transfers, sizes, partial tiles, blocks",
        "The naive and the blocked kernel: the cost of transfers, the rate against the size, the "
        "cost of partial tiles, the best block size, and the operations of one thread.",
        (
            "o2-transfers",
            "o2-split",
            "o2-sizes",
            "o2-remainders",
            "o2-blocks",
            "o2-guards",
            "o2-kernels",
            "o2-counts",
        ),
    ),
    Origin(
        "o3",
        "A^T A",
        "C = A^T A compared with the library and with a plain kernel.",
        ("o3", "o3-pads"),
    ),
    Origin(
        "o4",
        "The five kernels",
        "The ladder's first five kernels compared with a sequential product on the host.",
        ("o4-square", "o4-rectangular"),
    ),
)


def report(results: Results, figures: bool = True) -> Report:
    """The report of one device, with or without figures. A chapter without content is left out, and
    the report says so.
    """
    made = [maker(results) for maker in FIRST]
    made += origins(results)
    made += [maker(results) for maker in LAST]
    reason = _draw(results, made) if figures else ""
    measured = any(not chapter.empty for chapter in made)
    chapters = [c for c in made if not c.empty or (measured and c.not_measured)]
    left = [title for title, measured in measurable(results).items() if not measured]
    missing = [f"Not measured: {', '.join(left)}"] if left else []
    return Report(
        device_name(results),
        "Matrix multiplication with pymm: performance and accuracy",
        chapters,
        [*dict.fromkeys(results.notices), *missing],
        environment(results),
        data_of(results),
        reason,
    )


def _draw(results: Results, chapters: list[Chapter]) -> str:
    """Give every chapter its figures. Without Matplotlib: returns why there are none."""
    found = experiments(results)
    asked = {origin.name: origin.experiments for origin in ORIGINS}
    try:
        for chapter in chapters:
            chapter.figures = chapter_figures(chapter.name, results)
            for name in asked.get(chapter.name, ()):
                if name in found:
                    chapter.figures += experiment_figures(found[name])
    except NoPlots as reason:
        return f"No figures: {reason}"
    return ""


def measurable(results: Results) -> dict[str, bool]:
    """What a report can show, and whether this one has the rows for it."""
    found = experiments(results)
    of_gpus = {
        "host time of a call": bool(results.of("calls")),
        "several GPUs": bool(results.of("blocked")),
    }
    of_hosts = {"processes over MPI": bool(results.of("distributed"))}
    origins = {origin.title: any(n in found for n in origin.experiments) for origin in ORIGINS}
    return {
        f"products compared with {baseline_name(results)}": bool(results.of("classes")),
        "the ladder": bool(results.of("bench")),
        "searches": bool(results.of("trials")),
        **origins,
        "untuned shapes": bool(results.of("unseen")),
        **(of_hosts if results.device.get("cores") else of_gpus),
    }


def filled(*tables: Table) -> list[Table]:
    """The tables that have rows."""
    return [table for table in tables if table.rows]


def glance(results: Results) -> Chapter:
    """The first screen: tiles and two figures."""
    found, compared = highest_rates(results), comparisons(results)
    baseline = baseline_name(results)
    intro = (
        "The rate of matrix products on this device, compared with its peak and with "
        f"{baseline}. A ratio is the baseline's time / pymm's time: above 1 pymm is faster. Both "
        "were measured in alternation on the same operands, with cold caches, and every result was "
        "verified."
    )
    shown = filled(tables.highest_rates(found, compared))
    return Chapter(
        "glance",
        "At a glance",
        intro,
        tables=shown,
        commands=page_commands(results),
        tiles=tiles_of(results, found, compared),
        remarks=[*failures(class_comparisons(results)), *results.remarks],
        observations=summary_sentences(found, compared, searches(results), baseline),
    )


def baseline(results: Results) -> Chapter:
    """Every product compared with the baseline: grids of ratios, and a table."""
    compared = class_comparisons(results)
    shown = []
    if compared:
        shown = filled(
            *tables.class_means(compared),
            tables.against_gemm(compared),
            *tables.shape_maps(compared),
            tables.products(compared),
        )
    library = baseline_name(results)
    intro = (
        f"`pymm.matmul`'s choice for every product of the classes, compared with {library} on the "
        "same operands, in alternation, with cold caches; every result was verified. Times include "
        "the copies that prepare operands."
    )
    return Chapter(
        "baseline",
        f"Compared with {library}",
        intro,
        tables=shown,
        commands=class_commands(results),
        not_measured=[] if shown else not_measured(class_commands(results)),
    )


def ladder(results: Results) -> Chapter:
    """Every kernel of the ladder."""
    everything = [t for t in timings(results) if t.row.kind == "bench"]
    shown = filled(tables.kernels(everything))
    intro = (
        "Every kernel with its default configuration and, where this problem was tuned, with its "
        "tuned one."
    )
    return Chapter(
        "ladder",
        "The ladder",
        intro,
        tables=shown,
        commands=bench_commands(results),
        not_measured=[] if shown else not_measured(bench_commands(results)),
    )


def sizes(results: Results) -> Chapter:
    """The rate against the size."""
    intro = "Square products of row-major operands, from every file."
    return Chapter("sizes", "Rate against size", intro)


def limits(results: Results) -> Chapter:
    """Roofline, power, energy."""
    powered = any(row.number("power_w") > 0 for row in class_rows(results))
    intro = (
        "A product is bound by arithmetic or, where it does few operations per byte, by memory "
        "bandwidth."
    )
    absent = [] if powered else [POWERLESS]
    return Chapter("limits", "Roofline, power, energy", intro, not_measured=absent)


def tuning(results: Results) -> Chapter:
    """The searches for fast configurations."""
    found = searches(results)
    shown = filled(tables.gains(found), tables.records(results.records))
    intro = (
        "Each search tries the default first, then stored configurations of similar problems and "
        "those that the cost model ranks highest. The best few are measured again in alternation "
        "with the default, which is kept unless another is faster beyond the noise."
    )
    commands = tune_commands(results)
    absent = [] if found else not_measured(commands, "No search was recorded here")
    return Chapter("tuning", "Tuning", intro, tables=shown, commands=commands, not_measured=absent)


def accuracy(results: Results) -> Chapter:
    """Errors relative to their bound."""
    intro = (
        "No element may differ from the product in float64 by more than rounding can cause in any "
        "order of summation; a result beyond that bound counts as wrong and is not timed."
    )
    absent = [] if class_rows(results) else not_measured(class_commands(results))
    return Chapter("accuracy", "Accuracy", intro, not_measured=absent)


def unseen(results: Results) -> Chapter:
    """Shapes for which nothing was tuned."""
    rows = results.of("unseen")
    tiles = []
    if rows:
        parts = [row.number("of_fastest") for row in rows]
        tiles = [
            Tile(
                "selected / fastest",
                f"{mean(parts):.3f}",
                f"geometric mean over {len(parts)} random shapes; minimum {min(parts):.2f}",
            )
        ]
    intro = (
        "How good the selected configuration is where nothing was tuned: random extents between 64 "
        "and 8192."
    )
    return Chapter(
        "unseen",
        "Untuned shapes",
        intro,
        tables=filled(tables.unseen(rows)),
        commands=[UNSEEN] if rows else (),
        tiles=tiles,
        not_measured=() if rows or results.device.get("cores") else not_measured([UNSEEN]),
    )


def calls(results: Results) -> Chapter:
    """The host's time for a call."""
    rows = results.of("calls")
    intro = (
        "Before a kernel starts, the host checks the arguments, selects a configuration and "
        "launches it. Measured with float32 products of 64 x 64 whose operands are on the device."
    )
    absent = () if rows or results.device.get("cores") else not_measured([CALLS])
    return Chapter(
        "calls",
        "Host time of a call",
        intro,
        tables=filled(tables.calls(rows)),
        commands=[CALLS] if rows else (),
        not_measured=absent,
    )


def several(results: Results) -> Chapter:
    """Several GPUs, and matrices larger than one."""
    rows, searched = results.of("blocked"), results.of("tune_devices")
    intro = (
        "One product shared by the GPUs of a host, and products whose matrices are larger than the "
        "memory that they may use: a block of C stays where it is while parts of A and B are "
        "copied to it, the next ones during the multiplication of the last."
    )
    found = [*tables_devices.blocked(rows), tables_devices.searches_by_devices(searched)]
    commands = [c for c, of in ((BLOCKED, rows), (TUNE_DEVICES, searched)) if of]
    absent = () if commands or results.device.get("cores") else not_measured([BLOCKED])
    return Chapter(
        "several",
        "Several GPUs, and matrices larger than one",
        intro,
        tables=filled(*found),
        commands=commands,
        not_measured=absent,
    )


def distributed(results: Results) -> Chapter:
    """Products of several processes."""
    rows = results.of("distributed")
    intro = (
        "C + A B of several processes, over MPI, compared with ScaLAPACK on the same blocks and "
        "with the distribution that the experiment began with: A by groups of rows, B by groups of "
        "columns."
    )
    absent = () if rows or not results.device.get("cores") else not_measured([DISTRIBUTED])
    return Chapter(
        "distributed",
        "Several processes",
        intro,
        tables=filled(*tables_devices.distributed(rows)),
        commands=[DISTRIBUTED] if rows else (),
        not_measured=absent,
    )


def origins(results: Results) -> list[Chapter]:
    """A chapter for each of `ORIGINS`."""
    found = experiments(results)
    return [_origin(results, origin, found) for origin in ORIGINS]


def _origin(results: Results, origin: Origin, found: dict[str, Experiment]) -> Chapter:
    at = [found[name] for name in origin.experiments if name in found]
    sentences = [(f"{experiment.name}:", observation(experiment)) for experiment in at]
    return Chapter(
        origin.name,
        origin.title,
        origin.intro,
        tables=filled(*(table for experiment in at for table in _tables(experiment))),
        commands=[suite_command(results, experiment.name) for experiment in at],
        observations=[(name, sentence) for name, sentence in sentences if sentence],
        not_measured=[
            f"Not measured: {name}, {EXPERIMENTS[name].title}. Command: "
            f"`{suite_command(results, name)}`."
            for name in origin.experiments
            if name not in found and name not in results.absent
        ],
    )


def _tables(experiment: Experiment) -> list[Table]:
    if experiment.name == "o2-kernels":
        found = [tables_experiments.kernel_facts(experiment)]
    elif experiment.name == "o2-guards":
        found = [tables_experiments.checks(experiment)]
    elif experiment.name == "o2-counts":
        found = [tables_experiments.counts(experiment)]
    elif experiment.name in ("o2-transfers", "o2-split"):
        found = [tables_experiments.transfer_times(experiment)]
    else:
        rates = tables_experiments.rates(experiment)
        found = [rates, *tables_experiments.against_sequential(experiment)]
    return [*found, tables_experiments.left_out(experiment)]


#: The chapters before those of `ORIGINS`, and those after them.
FIRST: tuple[Callable[[Results], Chapter], ...] = (glance, baseline, ladder, sizes, limits, tuning)
LAST: tuple[Callable[[Results], Chapter], ...] = (
    accuracy,
    unseen,
    calls,
    several,
    distributed,
)
