"""The plots of a report. To add one, write a function in the module of its subject and name it
below: nothing else changes.
"""

from __future__ import annotations

from collections.abc import Callable

from pymm.report.load import Results
from pymm.report.plots import experiments, limits, rates, searches
from pymm.report.stats import Experiment
from pymm.report.svg import Figure

#: The plots of each chapter, in the order of the page. A plot returns no figures if it lacks rows.
CHAPTERS: dict[str, tuple[Callable[[Results], list[Figure]], ...]] = {
    "glance": (rates.highest, rates.ratios, searches.gains),
    "ladder": (rates.ladder,),
    "sizes": (rates.against_size,),
    "limits": (limits.rooflines, limits.power, limits.energy),
    "tuning": (
        searches.progress,
        searches.outcomes,
        searches.origins,
        searches.importances,
        searches.slices,
    ),
    "accuracy": (limits.errors, limits.deviations),
}

#: The plots of each experiment.
EXPERIMENTS: dict[str, tuple[Callable[[Experiment], list[Figure]], ...]] = {
    "o1": (experiments.simple_and_tiled,),
    "o2-transfers": (experiments.totals,),
    "o2-split": (experiments.splits,),
    "o2-sizes": (experiments.sizes,),
    "o2-remainders": (experiments.remainders,),
    "o2-blocks": (experiments.blocks,),
    "o3": (experiments.transposed,),
    "o4-square": (experiments.squares,),
    "o4-rectangular": (experiments.rectangles,),
}


def chapter_figures(chapter: str, results: Results) -> list[Figure]:
    """The figures of a chapter. Raises `NoPlots` without Matplotlib."""
    return [figure for plot in CHAPTERS.get(chapter, ()) for figure in plot(results)]


def experiment_figures(experiment: Experiment) -> list[Figure]:
    """The figures of an experiment. Raises `NoPlots` without Matplotlib."""
    return [figure for plot in EXPERIMENTS.get(experiment.name, ()) for figure in plot(experiment)]
