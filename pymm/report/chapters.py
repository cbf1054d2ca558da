"""The chapters of a device's report, in the order in which readers ask. Each title is the question
that the chapter answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pymm.report import tables, tables_devices, tables_tuned
from pymm.report.content import Cell, Chapter, Report, Table, Tile
from pymm.report.export import data_of
from pymm.report.load import Results
from pymm.report.origins import ORIGINS, filled, origins
from pymm.report.plots import chapter_figures, experiment_figures
from pymm.report.provenance import (
    bench_commands,
    class_commands,
    environment,
    page_commands,
    tune_commands,
)
from pymm.report.searches import searches
from pymm.report.stats import (
    baseline_name,
    bench_rows,
    class_comparisons,
    class_rows,
    comparisons,
    current,
    device_name,
    experiments,
    highest_rates,
    mean,
    timings,
    tuned_searches,
)
from pymm.report.summary import failures, summary_sentences, tiles_of
from pymm.report.svg import NoPlots

#: Scripts of a checkout, which an installed pymm does not have.
UNSEEN = "python benchmarks/unseen.py --csv unseen.csv"
CALLS = "python benchmarks/calls.py --csv calls.csv"
BESIDE_NUMPY = "python benchmarks/cpu.py --csv beside-numpy.csv"
BLOCKED = "python benchmarks/blocked.py --csv blocked.csv"
TUNE_DEVICES = "python benchmarks/tune_devices.py --csv tune-devices.csv"

DISTRIBUTED = "mpirun -n 4 python -m pymm.distributed bench --suite o4 --csv distributed.csv"
SIMULATED = "python -m pymm.distributed simulate --against distributed.csv --csv simulated.csv"


def report(results: Results, figures: bool = True) -> Report:
    """The report of one device, with or without figures. A chapter without content is left out; the
    last chapter says what is missing, and what would measure it.
    """
    made = [maker(results) for maker in FIRST]
    made += origins(results)
    made += [maker(results) for maker in LAST]
    reason = _draw(results, made) if figures else ""
    chapters = [chapter for chapter in made if not chapter.empty]
    if chapters:
        chapters += [chapter for chapter in [missing(made)] if not chapter.empty]
    return Report(
        device_name(results),
        "Matrix multiplication with pymm: performance and accuracy",
        chapters,
        list(dict.fromkeys(results.notices)),
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


def missing(chapters: Sequence[Chapter]) -> Chapter:
    """What was not measured."""
    rows = [
        {"what": Cell(what), "command": Cell(command)}
        for chapter in chapters
        for what, command in chapter.not_measured
    ]
    return Chapter(
        "missing",
        "What was not measured?",
        "Each command measures what is missing here; then make the report again.",
        tables=filled([Table("missing", "Not measured", rows)]),
    )


def glance(results: Results) -> Chapter:
    """The first screen: what is tuned, how fast it is, tiles and three figures."""
    found, compared = highest_rates(results), comparisons(results)
    today, baseline = current(compared), baseline_name(results)
    rows = [row for of in results.rows.values() for row in of]
    if compared or found:
        intro = (
            "The rate of matrix products on this device, compared with its peak and with "
            f"{baseline}. A ratio is the baseline's time / pymm's time: above 1 pymm is faster. "
            "Both were measured in alternation on the same operands, and every result was "
            "verified."
        )
    else:
        intro = "No times were measured here yet: `python -m pymm.tune` tunes this device."
    return Chapter(
        "glance",
        "How fast is it, and what is tuned?",
        intro,
        tables=filled(
            [
                tables_tuned.tuned_here(results),
                tables_tuned.by_type(results, found, compared),
            ]
        ),
        commands=page_commands(results),
        tiles=tiles_of(results, found, today),
        remarks=[*failures(class_comparisons(results)), *results.remarks],
        observations=summary_sentences(found, today, tuned_searches(results), baseline, rows),
    )


def tuning(results: Results) -> Chapter:
    """What is tuned, and the searches for fast configurations."""
    found = searches(results)
    intro = (
        "Each search tries the default first, then stored configurations of similar problems and "
        "those that the cost model ranks highest. The best few are measured again in alternation "
        "with the default, which is kept unless another is faster beyond the noise."
    )
    commands = tune_commands(results)
    return Chapter(
        "tuning",
        "What is tuned, and what did tuning gain?",
        intro,
        tables=filled(
            [
                tables_tuned.records(results),
                tables.gains(found),
                tables.repeated(results.of("repeated")),
            ]
        ),
        commands=commands,
        not_measured=() if found else [("searches", commands[0])],
    )


def baseline(results: Results) -> Chapter:
    """Every product compared with the baseline: grids of ratios, and a table."""
    compared = class_comparisons(results)
    shown = []
    if compared:
        today = current(compared)
        shown = filled(
            [
                *tables.class_means(today),
                tables.losses(today),
                tables.against_gemm(today),
                *tables.shape_maps(compared),
                tables.products(compared),
            ]
        )
    library = baseline_name(results)
    caches = "warm" if results.device.get("cores") else "cold"
    intro = (
        f"`pymm.matmul`'s choice for every product of the classes, compared with {library} on the "
        f"same operands, in alternation, with {caches} caches; every result was verified. Times "
        "include the copies that prepare operands."
    )
    commands = class_commands(results)
    return Chapter(
        "baseline",
        f"Is it faster than {library}?",
        intro,
        tables=shown,
        commands=commands,
        not_measured=() if shown else [("products of all classes compared", commands[0])],
    )


def ladder(results: Results) -> Chapter:
    """Every kernel of the ladder."""
    everything = [t for t in timings(results) if t.row.kind == "bench"]
    failed = [r for r in bench_rows(results) if not r.valid and r.text("name") != "sequential"]
    shown = filled([tables.kernels(everything, failed)])
    intro = (
        "Every kernel with its default configuration and, where this problem was tuned, with its "
        "tuned one."
    )
    commands = bench_commands(results)
    return Chapter(
        "ladder",
        "What does each kernel of the ladder add?",
        intro,
        tables=shown,
        commands=commands,
        not_measured=() if shown else [("every kernel of the ladder", commands[0])],
    )


def sizes(results: Results) -> Chapter:
    """The rate against the size."""
    intro = "Square products of row-major operands, from every file."
    return Chapter("sizes", "How does the rate grow with the size?", intro)


def limits(results: Results) -> Chapter:
    """Roofline, power, energy."""
    intro = (
        "A product is bound by arithmetic or, where it does few operations per byte, by memory "
        "bandwidth."
    )
    rows = class_rows(results)
    powerless = rows and not any(row.number("power_w") > 0 for row in rows)
    absent = [("power and energy: the device reports no power", class_commands(results)[0])]
    on_cpu = results.device.get("cores")
    return Chapter(
        "limits",
        "What limits a product: arithmetic, memory or power?",
        intro,
        not_measured=absent if powerless and not on_cpu else (),
    )


def accuracy(results: Results) -> Chapter:
    """Errors relative to their bound."""
    intro = (
        "No element may differ from the product in float64 by more than rounding can cause in any "
        "order of summation; a result beyond that bound counts as wrong and is not timed."
    )
    return Chapter("accuracy", "How accurate are the results?", intro)


def unseen(results: Results) -> Chapter:
    """Shapes for which nothing was tuned."""
    rows = results.of("unseen")
    parts = [row.number("of_fastest") for row in rows if not row.stale]
    tiles = []
    if parts:
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
        "How fast is a shape that was never tuned?",
        intro,
        tables=filled([tables.unseen(rows)]),
        commands=[UNSEEN] if rows else (),
        tiles=tiles,
        not_measured=_by_script(results, rows, "shapes that were never tuned", UNSEEN),
    )


def calls(results: Results) -> Chapter:
    """The host's time for a call."""
    rows = results.of("calls")
    intro = (
        "Before a kernel starts, the host checks the arguments, selects a configuration and "
        "launches it. Measured with float32 products of 64 x 64 whose operands are on the device."
    )
    return Chapter(
        "calls",
        "What does a call cost the host?",
        intro,
        tables=filled([tables.calls(rows)]),
        commands=[CALLS] if rows else (),
        not_measured=_by_script(results, rows, "the host's time for a call", CALLS),
    )


def beside_numpy(results: Results) -> Chapter:
    """Square products on a CPU by pymm and by NumPy."""
    rows = results.of("beside_numpy")
    intro = (
        "Square products by pymm and by NumPy's BLAS, with as many threads: each library in a "
        "process of its own, in turn, and both in one process, where idle threads of one may keep "
        "those of the other waiting."
    )
    missed = not rows and results.device.get("cores") and not results.machine
    return Chapter(
        "beside-numpy",
        "Is it faster than NumPy?",
        intro,
        tables=filled([tables.beside_numpy(rows)]),
        commands=[BESIDE_NUMPY] if rows else (),
        not_measured=[("pymm beside NumPy", BESIDE_NUMPY)] if missed else (),
    )


def _by_script(
    results: Results, rows: Sequence[object], what: str, command: str
) -> Sequence[tuple[str, str]]:
    """What a script of a checkout would measure on a GPU."""
    return () if rows or results.machine or results.device.get("cores") else [(what, command)]


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
    return Chapter(
        "several",
        "How fast are several GPUs, and matrices larger than one?",
        intro,
        tables=filled(found),
        commands=commands,
        not_measured=_by_script(results, commands, "products on several GPUs", BLOCKED),
    )


def distributed(results: Results) -> Chapter:
    """Products of several processes, measured and simulated."""
    rows, simulated = results.of("distributed"), results.of("simulated")
    intro = (
        "C + A B of several processes, over MPI, compared with ScaLAPACK on the same blocks and "
        "with the distribution that the experiment began with: A by groups of rows, B by groups of "
        "columns."
    )
    found = [*tables_devices.distributed(rows), tables_devices.simulated(simulated)]
    missed = not rows and results.device.get("cores")
    return Chapter(
        "distributed",
        "How fast are several processes?",
        intro,
        tables=filled(found),
        commands=[c for c, of in ((DISTRIBUTED, rows), (SIMULATED, simulated)) if of],
        not_measured=[("products of several processes", DISTRIBUTED)] if missed else (),
    )


#: The chapters before those of `ORIGINS`, and those after them.
FIRST: tuple[Callable[[Results], Chapter], ...] = (glance, tuning, baseline, ladder, sizes, limits)
LAST: tuple[Callable[[Results], Chapter], ...] = (
    accuracy,
    unseen,
    calls,
    beside_numpy,
    several,
    distributed,
)
