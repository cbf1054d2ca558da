"""The suites by name."""

from __future__ import annotations

from pymm.suites import o1, o2, o3, o4
from pymm.suites.declaration import Experiment

#: The run over all classes of products, `pymm.contest`: a suite by name only.
GOALS, ALL = "goals", "all"

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for origin in (o1, o2, o3, o4)
    for experiment in origin.EXPERIMENTS
}

SUITES = (*EXPERIMENTS, GOALS)


def suites_named(text: str) -> list[str]:
    """The suites that a text names, in the order of the catalog: names between commas, the
    beginning of several (`o2`, `o4`), or `all`. `ValueError` for anything else.
    """
    found = set()
    for piece in text.split(","):
        at = [name for name in SUITES if piece in (name, name.split("-")[0], ALL)]
        if not at:
            raise ValueError(f"suite {piece!r} is none of {', '.join([*SUITES, ALL])}")
        found.update(at)
    return [name for name in SUITES if name in found]
