"""How long a call on a CPU takes."""

from __future__ import annotations

import time
from collections.abc import Callable

#: So many calls are made one after the other, fewer once they have taken so many seconds.
CALLS, SECONDS = 3, 0.02


def shortest(call: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> float:
    """Seconds of the shortest of up to three calls that follow one another, each after `prepare`,
    whose time does not count; of a call of 20 ms or more there is only one. Other programs, a
    hypervisor and sleeping threads only lengthen a call (J. Chen and J. Revels, Robust benchmarking
    in noisy environments, HPEC 2016), and what a product reads is usually in the caches. On two
    cores of a virtual machine, single calls with emptied caches had an interquartile range of 7 to
    27 % of their median, these of 1 to 11 % (benchmarks/LOG.md).
    """
    least = taken = 0.0
    for number in range(CALLS):
        prepare()
        start = time.perf_counter_ns()
        call()
        seconds = (time.perf_counter_ns() - start) * 1e-9
        least = seconds if number == 0 else min(least, seconds)
        taken += seconds
        if taken >= SECONDS:
            break
    return least
