"""Which finalist is saved: the fastest, or the default where the difference may be noise; and which
times are not accepted.
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

#: A configuration replaces the default only if it is faster by more than this fraction and by more
#: than so many standard errors of the two medians. Otherwise the two are equal, and the default
#: suits neighbouring sizes.
TIE, NOISE = 0.005, 2.0

#: Standard error of the median of n normally distributed values / (interquartile range / sqrt(n)):
#: sqrt(pi / 2) / 1.349.
MEDIAN_ERROR = 0.93

#: A time with more spread (interquartile range / median) is not saved.
MOST_SPREAD = 0.15

#: A rate above so many times the device's peak is impossible. The peak of a GPU follows from its
#: clock (0.96 of it was reached on an H200); that of a CPU was measured once, perhaps under load.
TOLERANCE, CPU_TOLERANCE = 1.05, 1.25


@dataclass(frozen=True)
class Decision:
    """The result of a session: the trial to save, the default's seconds in the same run, the
    fastest baseline library, and the trials of other kernels' stored configurations.
    """

    winner: Trial
    default_seconds: float
    library: str = ""
    library_seconds: float = math.nan
    rivals: tuple[Trial, ...] = ()


def impossible(trial: Trial, device: Device) -> str:
    """Why a time is physically impossible on the device; "" if it is not, if there is no time, or
    if the device's limits are unknown.
    """
    problem, most = trial.problem, CPU_TOLERANCE if device.shares_host_cores else TOLERANCE
    if not trial.seconds > 0:
        return ""
    elements = problem.m * problem.k + (0 if problem.symmetric else problem.k * problem.n)
    read = elements * problem.numpy_dtype.itemsize * problem.batch
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
    """Why a time must not be saved; "" if it may be."""
    if trial.spread > MOST_SPREAD:
        return f"its times spread by {trial.spread:.0%}, more than {MOST_SPREAD:.0%}"
    reasons = str(trial.telemetry.get("throttle", "")).split("+")
    if slowed := [reason for reason in reasons if reason and reason not in USUAL]:
        return f"the device has slowed its clock: {', '.join(slowed)}"
    return ""


def saved_for(problem: Problem, kernel: Kernel, records: Iterable[Record]) -> list[Config]:
    """The stored configurations of a problem and kernel: the user's and the shipped ones, of any
    driver, compiler and version of the kernel; each once.
    """
    task = (problem, kernel)
    same = [r.config for r in records if (r.problem, r.config.kernel) == task]
    return list(dict.fromkeys(same))


def rivals_of(problem: Problem, kernel: Kernel, records: Iterable[Record]) -> list[Config]:
    """The fastest stored configuration of each other kernel of the same backend."""
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
    """The fastest correct configuration of the default's kernel; the default if it is as fast
    within `TIE` or the noise. None if none is correct.
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
