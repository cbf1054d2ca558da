"""Contestants that take so long that each runs a few times, and every run is checked. Runs in the
child that has the device.
"""

from __future__ import annotations

from pymm.bench.experiments.sequential import Distance
from pymm.measure.workbench import Workbench
from pymm.measure.worker_process import Reply, Request


def measure(bench: Workbench, request: Request) -> Reply:
    """`rounds` runs of each configuration, one if it takes long, each timed and judged. If
    `arguments` names the file of the sequential result, the reply's `deviations` say how far each
    is from it.
    """
    apart = Distance.of(bench, *request.arguments) if request.arguments else None
    trials, found = [], {}
    for config in request.configs:
        trial = bench.few_runs(config, request.rounds)
        trials.append(trial)
        if bench.lost:
            break
        if apart and trial.outcome == "ok":
            found[config.slug] = apart.measure()
    return Reply(tuple(trials), lost=bench.lost, deviations=found)
