"""The energy of one call, from the device's counter."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pymm.backends.base import Backend, TimedCall
from pymm.core.errors import NoEnergy
from pymm.measure.timer import Call

#: Seconds of calls between two looks at the counter.
BATCH = 0.02

#: The energy that is divided by the number of calls is at least so many of the counter's largest
#: steps, and so many seconds long: a step is some 20 to 100 ms of the device's power.
STEPS, LEAST_SECONDS = 50, 0.5

#: Counters of NVIDIA's GPUs grow at least every so many seconds. Where calls are longer the steps
#: of the counter cannot be seen, and are taken to be that long.
COARSEST = 0.1

#: Seconds after which a counter is given up whose steps are too few.
MOST_SECONDS = 15.0


@dataclass(frozen=True)
class Energy:
    """`joules` of one call, `watts` of the device meanwhile, and how many `runs` that is of.
    `resolution` is the largest step of the counter as a part of the energy of all.
    """

    joules: float
    watts: float
    runs: int
    resolution: float


def energy_of(
    backend: Backend,
    call: Call,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
) -> Energy:
    """The energy of a call that takes so many seconds: it is repeated, back to back and with warm
    caches, between two steps of the device's counter far apart. What the device draws without any
    work is part of it. Raises `NoEnergy`, `LaunchFailed`.
    """
    one, batch = TimedCall.of(call), max(1, round(BATCH / max(seconds, 1e-7)))
    begun, runs, step, waited = clock(), 0, 0.0, False
    first: tuple[int, float, float] | None = None
    before = backend.energy()
    while clock() - begun < MOST_SECONDS:
        for _ in range(batch):
            one()
        backend.synchronize()
        runs += batch
        drawn, now = backend.energy(), clock()
        if drawn < before:
            raise NoEnergy(f"the counter of energy went back from {before} to {drawn} J")
        if drawn == before:
            waited = True
            continue
        if first is None:
            first = runs, drawn, now
        else:
            step = max(step, drawn - before)
            total, took = drawn - first[1], now - first[2]
            step = step if waited else min(step, COARSEST * total / took)
            if total >= STEPS * step and took >= LEAST_SECONDS:
                count = runs - first[0]
                return Energy(total / count, total / took, count, step / total)
        before = drawn
    raise NoEnergy(
        f"the counter of energy is too coarse: fewer than {STEPS} of its steps in "
        f"{MOST_SECONDS:.0f} s"
    )
