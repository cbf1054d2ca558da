"""Which finalist is saved: the fastest, or the default where the difference may be noise; and which
times are not accepted.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from pymm.backends.telemetry import USUAL
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel
from pymm.kernels.source import kernel_digest
from pymm.measure.libraries import HALF
from pymm.measure.workbench import Trial
from pymm.selection.records import Environment, Record

#: A configuration replaces the default only if it is faster by more than this fraction, and by more
#: than noise brings about with this probability in any of all finalists. Otherwise the two are
#: equal, and the default suits neighbouring sizes.
TIE, FALSE_WINNERS = 0.005, 0.04

#: Fewest rounds whose times are compared in pairs, and fewest of which the interquartile range of
#: the ratios says more than their standard deviation.
FEWEST_PAIRS, ROBUST_FROM = 5, 9

#: Standard error of the median of n normally distributed values / (interquartile range / sqrt(n)):
#: sqrt(pi / 2) / 1.349.
MEDIAN_ERROR = 0.93

#: A time with more spread (interquartile range / median) is not saved.
MOST_SPREAD = 0.15

#: A rate above so many times the device's peak is impossible. The peak of a GPU follows from its
#: clock (0.96 of it was reached on an H200); that of a CPU was measured once, perhaps under load.
TOLERANCE, CPU_TOLERANCE = 1.05, 1.25


#: What the `detail` of a winner's row begins with, in a file of trials; `Decision.words` follow.
CHOSEN = "chosen: "

#: What `Decision.doubt` begins with.
NOTHING_SAVED = "nothing saved: "


@dataclass(frozen=True)
class Decision:
    """The result of a session: the trial that is chosen, the default's seconds in the same run, the
    fastest baseline library, and trials of other kernels that are saved beside it, none of them
    chosen before it: of the highest kernel, and of those with a stored configuration. `gain` is the
    ratio of the default's time to the winner's between the ends of its 95 % interval, `within` by
    how much another finalist may be faster than the default where that is the winner. `thriftiest`
    is the trial with the least energy, where that was measured. `doubt`, where times stay doubtful,
    says why nothing is saved: then `winner` is what is kept, and no gain is known.
    """

    winner: Trial
    default_seconds: float
    library: str = ""
    library_seconds: float = math.nan
    rivals: tuple[Trial, ...] = ()
    gain: tuple[float, float, float] = (math.nan,) * 3
    within: float = math.nan
    thriftiest: Trial | None = None
    doubt: str = ""

    @property
    def thrifty(self) -> tuple[Trial, ...]:
        """The trial with the least energy, if there is one."""
        return () if self.thriftiest is None else (self.thriftiest,)

    @property
    def words(self) -> str:
        """What the search has gained, or why nothing is saved."""
        is_default = self.gain == (1.0,) * 3
        return self.doubt or gain_words(self.gain, self.within, is_default)


def impossible(trial: Trial, device: Device) -> str:
    """Why a time is physically impossible on the device; "" if it is not, if there is no time, or
    if the device's limits are unknown.
    """
    problem, most = trial.problem, CPU_TOLERANCE if device.shares_host_cores else TOLERANCE
    if not trial.seconds > 0:
        return ""
    for done, limit, unit in (
        (problem.flops, device.peak_flops.get(problem.dtype, 0.0), "FLOP/s"),
        (problem.bytes_read, device.bandwidth, "B/s"),
    ):
        rate = done / trial.seconds
        if limit > 0 and rate > most * limit:
            return (
                f"a time of {trial.seconds:.3g} s is impossible: {rate / limit:.0%} of the "
                f"device's {limit:.3g} {unit}"
            )
    return ""


def plausible(trial: Trial, device: Device) -> Trial:
    """The trial; one whose time is impossible is `disturbed`."""
    if why := impossible(trial, device):
        return Trial(trial.problem, trial.config, "disturbed", detail=why)
    return trial


def doubtful(trial: Trial) -> str:
    """Why a time must not be saved; "" if it may be."""
    if trial.spread > MOST_SPREAD:
        return f"its times spread by {trial.spread:.0%}, more than {MOST_SPREAD:.0%}"
    reasons = str(trial.telemetry.get("throttle", "")).split("+")
    if slowed := [reason for reason in reasons if reason and reason not in USUAL]:
        return f"the device has slowed its clock: {', '.join(slowed)}"
    return ""


def saved_for(
    problem: Problem, kernels: Iterable[Kernel], records: Iterable[Record]
) -> list[Config]:
    """The stored configurations of a problem and of these kernels: the user's and the shipped ones,
    of any driver, compiler and version of the kernel; each once.
    """
    own = set(kernels)
    same = [r.config for r in records if r.problem == problem and r.config.kernel in own]
    return list(dict.fromkeys(same))


def rivals_of(
    problem: Problem, kernels: Sequence[Kernel], records: Iterable[Record]
) -> list[Config]:
    """The fastest stored configuration of each other kernel of the same backend."""
    best: dict[Kernel, Record] = {}
    for record in records:
        other = record.config.kernel
        if record.problem != problem or other in kernels or other.backend != kernels[0].backend:
            continue
        if other not in best or record.seconds < best[other].seconds:
            best[other] = record
    return [record.config for record in best.values()]


def record_of(trial: Trial, environment: Environment) -> Record:
    """What is stored of a trial that was measured today."""
    kernel = trial.config.kernel
    return Record(
        trial.problem,
        trial.config,
        trial.seconds,
        trial.spread,
        date.today().isoformat(),
        environment,
        kernel_digest(kernel.backend, kernel.file),
    )


def choose(
    defaults: Sequence[Config],
    trials: Sequence[Trial],
    times: dict[str, list[float]],
    stored: Container[Config] = (),
) -> Decision | None:
    """The fastest correct configuration of the kernels that were searched, by their `defaults`, the
    highest kernel's first; that first default if it is as fast within `TIE` or the noise. What is
    `stored` for another kernel is what a product gets now; what was faster here replaces it.
    None if no configuration is correct.
    """
    every = [trial for trial in trials if trial.outcome == "ok"]
    searched = [default.kernel_name for default in defaults]
    right = [trial for trial in every if trial.config.kernel_name in searched]
    if not right:
        return None
    by_time = sorted(right, key=lambda trial: trial.seconds)
    base = next((trial for trial in right if trial.config == defaults[0]), None)
    firm = [t for t in by_time if base is None or not _tied(base, t, len(right) - 1)]
    best = firm[0] if firm else base
    now = [t for t in right if t.config in stored and base is not None and _another(t, base)]
    winner = min([best, *now], key=lambda trial: trial.seconds)
    less = {HALF} if winner.problem.fill == "full" else set()  # writes one half alone
    medians = {name: statistics.median(t) for name, t in times.items() if t and name not in less}
    library = min(medians, key=medians.__getitem__, default="")
    return Decision(
        winner,
        base.seconds if base is not None else math.nan,
        library,
        medians.get(library, math.nan),
        tuple(_beside(winner, base, firm, every, stored)),
        gain_of(base, winner),
        max((gain_of(base, t)[2] - 1 for t in by_time if t is not base), default=math.nan),
    )


def keep(decision: Decision, why: str, stored: Sequence[Trial]) -> Decision:
    """The decision if the times of its winner, the default, are doubtful: nothing is saved. Kept is
    the fastest of the `stored` configurations, by trials of the same run, else the default.
    """
    what = "the stored configuration" if stored else "the default"
    return Decision(
        min(stored, key=lambda trial: trial.seconds, default=decision.winner),
        decision.default_seconds,
        decision.library,
        decision.library_seconds,
        doubt=f"{NOTHING_SAVED}{why}; {what} is kept",
    )


def _tied(default: Trial, other: Trial, others: int) -> bool:
    return default is other or tied(Timing.of(default), Timing.of(other), others)


def _another(trial: Trial, than: Trial) -> bool:
    return trial.config.kernel_name != than.config.kernel_name


def _beside(
    winner: Trial,
    base: Trial | None,
    firm: Sequence[Trial],
    every: Sequence[Trial],
    stored: Container[Config],
) -> Iterator[Trial]:
    """The trials that are saved with the winner: the best of the highest kernel, with which others
    are compared, the stored ones of other kernels, and those of kernels that were not searched.
    """
    done = {winner.config.kernel_name}
    if base is not None and _another(winner, base):
        done.add(base.config.kernel_name)
        yield next((trial for trial in firm if not _another(trial, base)), base)
    for trial in sorted(every, key=lambda trial: trial.seconds):
        if trial.config in stored and trial.config.kernel_name not in done:
            done.add(trial.config.kernel_name)
            yield trial


# Statistics of two medians


@dataclass(frozen=True)
class Timing:
    """What is known of the times of a call: their median, interquartile range divided by it, number
    and, unless they are lost, the times in the order of the rounds.
    """

    seconds: float
    spread: float
    count: int
    times: tuple[float, ...] = ()

    @classmethod
    def of(cls, trial: Trial) -> Timing:
        """Those of a trial."""
        return cls(trial.seconds, trial.spread, len(trial.times), trial.times)

    @property
    def error(self) -> float:
        """Standard error of the median as a part of it."""
        spread = self.spread if self.spread > 0 else 0.0  # NaN of a single time
        return MEDIAN_ERROR * spread / math.sqrt(max(self.count, 1))


def tied(default: Timing, other: Timing, others: int) -> bool:
    """Whether the default is as fast as `other`, one of so many `others` of a comparison."""
    gain, error = _noise(default, other, others)
    return gain <= max(TIE, error)


def surely_slower(one: Trial, others: Sequence[Trial], comparisons: int) -> float:
    """By what part `one` takes longer than one of the others of the same comparison, at least: the
    greatest lower end of the intervals, of so many `comparisons` in all; 0 where it is as fast as
    each (`tied`). Nothing is sure of fewer than `FEWEST_PAIRS` times.
    """
    own, found = Timing.of(one), [0.0]
    for other in map(Timing.of, others):
        gain, error = _noise(own, other, comparisons)
        sure = min(own.count, other.count) >= FEWEST_PAIRS and gain > max(TIE, error)
        found += [gain - error] if sure else []
    return max(found)


def _noise(default: Timing, other: Timing, others: int) -> tuple[float, float]:
    """By which part the default is slower, and what noise brings about with the probability
    `FALSE_WINNERS` in any of so many `others`.
    """
    gain, error, freedom = _gain(default, other)
    return gain, error * student(1 - FALSE_WINNERS / max(others, 1), freedom)


def gain_of(default: Trial | None, other: Trial) -> tuple[float, float, float]:
    """The ratio of the times of two trials of one comparison, between the ends of its 95 %
    interval; NaN without a default.
    """
    if default is None or not other.seconds > 0:
        return (math.nan,) * 3
    if default is other:
        return (1.0,) * 3
    gain, error, freedom = _gain(Timing.of(default), Timing.of(other))
    error *= student(0.975, freedom)
    return 1 + gain - error, 1 + gain, 1 + gain + error


def gain_words(gain: tuple[float, float, float], within: float, is_default: bool) -> str:
    """`gain` and `within` of a `Decision` in words."""
    if is_default:
        return f"the default is best{f', within {within:.1%}' if within >= 0 else ''}"
    low, ratio, high = gain
    return f"{ratio:.2f}x ({low:.2f} to {high:.2f})" if ratio > 0 else "-"


def _gain(default: Timing, other: Timing) -> tuple[float, float, float]:
    """By which part the default is slower, the standard error of that and its degrees of freedom.
    Times of the same rounds are compared in pairs: a clock that drifts meets both. Without them
    (samples of one were void, or the file of trials has no times) the two spreads say how sure the
    medians are.
    """
    count = len(default.times)
    if count == len(other.times) >= FEWEST_PAIRS:
        pairs = zip(default.times, other.times, strict=True)
        ratios = [math.log(a / b) for a, b in pairs]
        low, median, high = statistics.quantiles(ratios, n=4, method="inclusive")
        error, freedom = MEDIAN_ERROR * (high - low) / math.sqrt(count), _freedom(count)
        if count < ROBUST_FROM:
            error = statistics.stdev(ratios) / math.sqrt(count)
            return math.expm1(statistics.fmean(ratios)), error, count - 1
        return math.expm1(median), error, freedom
    error, count = math.hypot(default.error, other.error), min(default.count, other.count)
    return default.seconds / other.seconds - 1, error, 2 * _freedom(count)


def _freedom(count: int) -> float:
    """Degrees of freedom of an error that follows from an interquartile range: that uses about 0.37
    of what a standard deviation would (its efficiency for normally distributed values).
    """
    return max(1.0, 0.37 * (count - 1))


def student(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution, by the expansion in 1 / freedom of M. Abramowitz
    and I. A. Stegun, Handbook of Mathematical Functions, 26.7.5.
    """
    z = statistics.NormalDist().inv_cdf(probability)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))
