"""What a search minimises: the time of a product, its energy, or both."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pymm.kernels import Config
from pymm.measure.workbench import Trial

#: Names for `--objective`.
TIME, ENERGY, BOTH = "time", "energy", "both"

#: By name, what is minimised of seconds and joules. That of both is the square root of the
#: energy-delay product (R. Gonzalez and M. Horowitz, Energy dissipation in general purpose
#: microprocessors, IEEE Journal of Solid-State Circuits 31, 1996).
OBJECTIVES: dict[str, Callable[[float, float], float]] = {
    TIME: lambda seconds, joules: seconds,
    ENERGY: lambda seconds, joules: joules,
    BOTH: lambda seconds, joules: math.sqrt(seconds * joules),
}

#: A configuration replaces the default only if its energy is less by more than this part: the
#: resolution of the two measurements is 2 % each.
ENERGY_TIE = 0.03


@dataclass(frozen=True)
class Cost:
    """Seconds and joules of one product; joules are NaN where only the time was measured. Their
    quotient is no power: the energy is of calls back to back, perhaps at a lower clock.
    """

    seconds: float
    joules: float = math.nan

    @classmethod
    def of(cls, trial: Trial) -> Cost:
        """That of a trial."""
        return cls(trial.seconds, trial.joules)


#: Configurations that none other is both faster and thriftier than, fastest first.
Front = list[tuple[Config, Cost]]


def pareto(costs: Mapping[Config, Cost]) -> Front:
    """The front of all these."""
    front: Front = []
    known = [(config, cost) for config, cost in costs.items() if cost.joules > 0]
    for config, cost in sorted(known, key=lambda one: (one[1].seconds, one[1].joules)):
        if not front or cost.joules < front[-1][1].joules:
            front.append((config, cost))
    return front


def least_energy(default: Config, trials: Sequence[Trial]) -> Trial | None:
    """Of the trials of one comparison the one with the least energy; the default's, if it is as low
    within `ENERGY_TIE`. None if no energy was measured.
    """
    known = [trial for trial in trials if trial.outcome == "ok" and trial.joules > 0]
    if not known:
        return None
    best = min(known, key=lambda trial: trial.joules)
    base = next((trial for trial in known if trial.config == default), best)
    return base if base.joules <= best.joules * (1 + ENERGY_TIE) else best
