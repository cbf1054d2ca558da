"""Kernels with and without guards, checked and not timed. What is written or read outside a matrix
hits the guard zones around it (`pymm.measure.quick_check`), so that a kernel without guards is
wrong, and does not fault. Runs in the child that has the device.
"""

from __future__ import annotations

from pymm.core.problem import Problem
from pymm.kernels import Config, Guards
from pymm.measure.workbench import Workbench
from pymm.measure.worker_process import Reply, Request


def lacks_guards(config: Config, problem: Problem) -> bool:
    """Whether a configuration leaves out checks that the extents of the problem need."""
    forced = dict(config.forced).get("GUARDED", Guards.ON)
    return forced != Guards.ON and config.kernel.guarded(config, problem)


def measure(bench: Workbench, request: Request) -> Reply:
    """One check of each configuration."""
    trials = []
    for config in request.configs:
        trials.append(bench.verify(config))
        if bench.lost:
            break
    return Reply(tuple(trials), lost=bench.lost)
