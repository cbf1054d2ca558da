"""Chapters of the suites: what the projects that pymm comes from asked, each with the command that
asks it again.
"""

from __future__ import annotations

from collections.abc import Callable

from pymm.bench.experiments.catalog import EXPERIMENTS
from pymm.report import plots_studies
from pymm.report.content import Chapter, Table
from pymm.report.drawing import Figure
from pymm.report.facts import peaks
from pymm.report.listing_studies import (
    beside_sequential,
    counts,
    journeys,
    kernel_facts,
    left_out,
    rates,
)
from pymm.report.reading import Findings
from pymm.report.studies import Study, studies
from pymm.report.telling import told

#: Chapters: name, title, words, and the experiments of each.
ORIGINS = (
    (
        "o1",
        "Simple and tiled",
        "One thread for each element of C that reads all it needs, against tiles in shared memory.",
        ("o1",),
    ),
    (
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
    (
        "o3",
        "A^T A",
        "C = A^T A beside the library and a plain kernel.",
        ("o3",),
    ),
    (
        "o4",
        "The five kernels",
        "The ladder's first five kernels beside the sequential product.",
        ("o4-square", "o4-rectangular"),
    ),
)


def origins(findings: Findings, drawn: Callable[..., list[Figure]]) -> list[Chapter]:
    """A chapter for each origin that was measured; `drawn` calls a maker of figures."""
    found, limit = studies(findings), peaks(findings)
    chapters = []
    for name, title, words, experiments in ORIGINS:
        at = [found[experiment] for experiment in experiments if experiment in found]
        chapter = Chapter(name, title, words)
        for study in at:
            chapter.figures += drawn(_figures, study, limit)
            chapter.tables += [table for table in _tables(study) if table.rows]
        sentences = [(study.name, told(study, limit)) for study in at]
        chapter.seen = [(name, words) for name, words in sentences if words]
        chapter.lacking = [
            f"Not measured here: {experiment}, {EXPERIMENTS[experiment].title}. The command is "
            f"`{suite_command(findings, experiment)}`."
            for experiment in experiments
            if experiment not in found and experiment not in findings.absent
        ]
        chapter.commands = [suite_command(findings, study.name) for study in at]
        chapters.append(chapter)
    return chapters


def suite_command(findings: Findings, name: str) -> str:
    """The line that measures an experiment into the files that this page is made of."""
    cores = findings.device.get("cores")
    device = f" --device cpu:{cores}" if cores else ""
    types = " --dtypes f64,f32" if name == "o3" else ""
    return f"python -m pymm.bench --suite {name}{types}{device} --csv {findings.place}/suites.csv"


def _figures(study: Study, limit: dict[str, float]) -> list[Figure]:
    makers = {
        "o1": lambda: plots_studies.simple_and_tiled(study),
        "o2-transfers": lambda: plots_studies.totals(study),
        "o2-split": lambda: plots_studies.splits(study),
        "o2-sizes": lambda: plots_studies.sizes(study, limit),
        "o2-remainders": lambda: plots_studies.remainders(study),
        "o2-blocks": lambda: plots_studies.blocks(study),
        "o3": lambda: plots_studies.transposed(study, limit),
        "o4-square": lambda: plots_studies.squares(study, limit),
        "o4-rectangular": lambda: plots_studies.rectangles(study),
    }
    return makers[study.name]() if study.name in makers else []


def _tables(study: Study) -> list[Table]:
    if study.name == "o2-kernels":
        return [kernel_facts(study), left_out(study)]
    if study.name == "o2-counts":
        return [counts(study), left_out(study)]
    if study.name in ("o2-transfers", "o2-split"):
        return [journeys(study), left_out(study)]
    return [rates(study), *beside_sequential(study), left_out(study)]
