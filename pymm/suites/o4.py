"""O4: the ladder of five kernels beside the sequential product: speed-up and relative error."""

from __future__ import annotations

from pymm.suites.declaration import CHOSEN, Experiment

LADDER = ("00", "01", "02", "03", "04", CHOSEN)

EXPERIMENTS = (
    Experiment(
        "o4-square", "squares from 250 to 10000", "o4-square",
        rungs=LADDER, on_cpu=("01", CHOSEN), figures="sequential", runs=3,
    ),
    Experiment(
        "o4-rectangular", "m = n in the thousands, k = 32, 64, 128, 156", "o4-rank-k",
        rungs=LADDER, on_cpu=("01", CHOSEN), figures="sequential", runs=3,
    ),
)  # fmt: skip
