"""Which of the last few is saved: the fastest, but the default where that may be noise; and which
time is no evidence.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pymm.backends.telemetry import USUAL
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel
from pymm.measure.libraries import HALF
from pymm.measure.workbench import Trial
from pymm.selection.records import Record

#: A configuration replaces the default only if it is faster by more than this part and by more
#: than so many standard errors of the two medians: below it the two are the same, and the default
#: is known to fit every size.
TIE, NOISE = 0.005, 2.0

#: Standard error of the median of n normal numbers, by their interquartile range over root n:
#: sqrt(pi / 2) / 1.349.
MEDIAN_ERROR = 0.93

#: A time of more spread than this is not saved.
MOST_SPREAD = 0.15

#: How far above its peak a device may seem to be: that of a GPU follows from its clock, the most
#: seen on an H200 is 0.96 of it; that of a CPU was measured once, perhaps while others were busy.
TOLERANCE, CPU_TOLERANCE = 1.05, 1.25


@dataclass(frozen=True)
class Decision:
    """What a session comes to: the trial to save, the default's seconds in the same run, the
    fastest other library, and the right trials of what is saved for other kernels.
    """

    winner: Trial
    default_seconds: float
    library: str = ""
    library_seconds: float = math.nan
    rivals: tuple[Trial, ...] = ()


def impossible(trial: Trial, device: Device) -> str:
    """Why no device of this kind can have been so fast, in words. "" if it can, or if there is no
    time, or if the device's limits are not known.
    """
    problem, most = trial.problem, CPU_TOLERANCE if device.shares_host_cores else TOLERANCE
    if not trial.seconds > 0:
        return ""
    numbers = problem.m * problem.k + (0 if problem.symmetric else problem.k * problem.n)
    read = numbers * problem.numpy_dtype.itemsize * problem.batch
    for done, limit, unit in (
        (problem.flops, device.peak_flops.get(problem.dtype, 0.0), "FLOP/s"),
        (read, device.bandwidth, "B/s"),
    ):
        rate = done / trial.seconds
        if limit > 0 and rate > most * limit:
            return (
                f"a time of {trial.seconds:.3g} s is impossible: {rate / limit:.0%} of the "
                f"device's {limit:.3g} {unit}"
            )
    return ""


def doubtful(trial: Trial) -> str:
    """Why a time is not to be saved, in words; "" if it may be."""
    if trial.spread > MOST_SPREAD:
        return f"its times spread by {trial.spread:.0%}, more than {MOST_SPREAD:.0%}"
    reasons = str(trial.telemetry.get("throttle", "")).split("+")
    if slowed := [reason for reason in reasons if reason and reason not in USUAL]:
        return f"the device has slowed its clock: {', '.join(slowed)}"
    return ""


def saved_for(problem: Problem, kernel: Kernel, records: Iterable[Record]) -> list[Config]:
    """What is saved for a problem and a kernel: one's own and as shipped, by this and other drivers
    and compilers, be it for an older text of the kernel; each configuration once.
    """
    task = (problem, kernel)
    same = [r.config for r in records if (r.problem, r.config.kernel) == task]
    return list(dict.fromkeys(same))


def rivals_of(problem: Problem, kernel: Kernel, records: Iterable[Record]) -> list[Config]:
    """The fastest that is saved for the problem of each other kernel of the same backend."""
    best: dict[Kernel, Record] = {}
    for record in records:
        other = record.config.kernel
        if record.problem != problem or other == kernel or other.backend != kernel.backend:
            continue
        if other not in best or record.seconds < best[other].seconds:
            best[other] = record
    return [record.config for record in best.values()]


def choose(
    default: Config, trials: Sequence[Trial], times: dict[str, list[float]]
) -> Decision | None:
    """The fastest right one of the default's kernel, the default where it is as fast but for `TIE`
    or noise.
    """
    every = [trial for trial in trials if trial.outcome == "ok"]
    right = [trial for trial in every if trial.config.kernel == default.kernel]
    if not right:
        return None
    winner = min(right, key=lambda trial: trial.seconds)
    own = next((trial for trial in right if trial.config == default), None)
    if own is not None:
        error = math.hypot(_median_error(own), _median_error(winner))
        if own.seconds <= winner.seconds * (1 + max(TIE, NOISE * error)):
            winner = own
    less = {HALF} if winner.problem.fill == "full" else set()  # writes one half alone
    medians = {name: statistics.median(t) for name, t in times.items() if t and name not in less}
    library = min(medians, key=medians.__getitem__, default="")
    return Decision(
        winner,
        own.seconds if own is not None else math.nan,
        library,
        medians.get(library, math.nan),
        tuple(trial for trial in every if trial.config.kernel != default.kernel),
    )


def _median_error(trial: Trial) -> float:
    """Standard error of a trial's median as a part of it."""
    spread = trial.spread if trial.spread > 0 else 0.0  # NaN of a single time
    return MEDIAN_ERROR * spread / math.sqrt(max(len(trial.times), 1))
