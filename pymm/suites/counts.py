"""Operations and accesses of a thread: by formula, and counted while the simulator runs the kernel
with numbers that count what is done with them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from pymm.child import Reply, Request
from pymm.kernels import Config
from pymm.measure import Trial, Workbench
from pymm.problem import Problem, stored_shapes
from pymm.source import Source, render

#: How a number that counts is spelled (pymm/simulator/device/counted.hpp).
_REAL = re.compile(r"^#define REAL (float|double)$", re.MULTILINE)


def threads_of(config: Config, problem: Problem) -> int:
    """All threads of the launch."""
    grid = config.kernel.grid(config, problem)
    return int(np.prod(grid)) * config.kernel.threads(config)


def formula(config: Config, problem: Problem) -> Mapping[str, float]:
    """Of a thread of rungs 00 to 04 whose tile lies inside the matrix, with alpha = 1 and beta = 0:
    a multiply-add is two operations, and each element of C is once multiplied by alpha.
    """
    k, elements = problem.k, getattr(config, "TA", 1) * getattr(config, "TB", 1)
    found: dict[str, float] = {"operations": elements * (2 * k + 1), "global_stores": elements}
    if config.kernel.number < 2:
        found |= {"global_loads": 2 * k, "shared_loads": 0, "shared_stores": 0}
    else:
        loaded = k * (config.MB + config.NB) / config.kernel.threads(config)
        wide = getattr(config, "TA", 1) + getattr(config, "TB", 1)
        found |= {"global_loads": loaded, "shared_loads": wide * k, "shared_stores": loaded}
    return found | {"global_accesses": found["global_loads"] + found["global_stores"]}


def counting(source: Source) -> Source:
    """The text with numbers that count."""
    text = _REAL.sub(r"#define REAL pymm_sim::Counted<\1>", source.text)
    return replace(source, text=f'#include "counted.hpp"\n{text}')


def measure(bench: Workbench, request: Request) -> Reply:
    """Count what each configuration does, and see that its result is right. The reply's `times`
    have the averages of all threads under "SLUG|quantity".
    """
    from pymm.backends.cuda.counting import count

    p = request.problem
    sizes = [int(np.prod(shape)) * p.numpy_dtype.itemsize for shape in stored_shapes(p)]
    matrices = list(zip((bench.a, bench.b, bench.c), sizes, strict=True))
    trials, times = [], {}
    for config in request.configs:
        found = count(bench.backend, counting(render(config, p)), p, matrices)
        finding = bench.place.compare()
        outcome = "ok" if finding.right else "wrong"
        trials.append(Trial(p, config, outcome, error=finding.error, detail=finding.detail))
        found["global_accesses"] = found["global_loads"] + found["global_stores"]
        for name, sum_of_all in found.items():
            times[f"{config.slug}|{name}"] = [sum_of_all / threads_of(config, p)]
    return Reply(tuple(trials), times)
