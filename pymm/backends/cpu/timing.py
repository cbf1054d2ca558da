"""How long a call on a CPU takes."""

from __future__ import annotations

import time
from collections.abc import Callable

#: A call is timed so many times one after the other, fewer once that has taken so many seconds.
CALLS, SECONDS = 3, 0.02


def nothing() -> None:
    """What is to be done before each call, if nothing is."""


def shortest(call: Callable[[], object], prepare: Callable[[], object] = nothing) -> float:
    """Seconds of the shortest of a few calls that follow one another, each behind `prepare`, whose
    time does not count. Other programs, a hypervisor and sleeping threads only lengthen a call (J.
    Chen and J. Revels, Robust benchmarking in noisy environments, HPEC 2016), and what a product
    reads is usually in the caches: on two cores of a virtual machine, single calls with emptied
    caches had an interquartile range of 2 to 30 % of their median, these 1 to 11 %.
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
