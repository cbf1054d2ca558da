"""Verify, time, verify again: one configuration after the other on the operands of one problem."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pymm.backends.base import Backend, Executable, Resources, TimedCall
from pymm.core.errors import CompileFailed, LaunchFailed, NoEnergy
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.kernels.source import Source, render
from pymm.measure.energy import energy_of
from pymm.measure.quick_check import QuickVerifier
from pymm.measure.timer import TRIES, Call, Stopwatch
from pymm.measure.verify import Finding, Verifier, render_hard

#: What can become of a trial. The first has a time that counts, the last a rough one.
OUTCOMES = (
    "ok",
    "compile_failed",
    "compile_timeout",
    "launch_failed",
    "crashed",
    "timed_out",
    "wrong",
    "disturbed",
    "too_slow",
)

#: A first run slower than this times the best so far is not repeated. Single runs stray by up to
#: 12 % (95th percentile, Turing, public benchmark_hub data), on a shared CPU by up to 40 %.
HOPELESS = 1.5

#: Repeats of a promising configuration: until the spread is `ENOUGH` or one of the limits is met.
REPEATS, MOST_REPEATS = 7, 31
ENOUGH = 0.01
SECONDS_PER_TRIAL = 2.0

#: Rounds with the best in turn before it is asked whether a configuration is slower; it is not
#: repeated any more if that is so with this probability of error.
FEW_ROUNDS, SURELY_SLOWER = 5, 0.05

#: A single run shorter than this is looked at three times before it is called hopeless: it costs
#: nothing, and an interruption of a millisecond is a large part of it.
SHORT_RUN = 0.05

#: A call that takes a GPU longer than this is run once in a comparison: what disturbs it is a small
#: part of it, and a naive kernel at 18500 takes seconds.
LONG_RUN = 0.25

#: Rounds of a comparison and configurations in it, however long they take.
FEWEST_ROUNDS, FEWEST_COMPARED = 5, 2

#: Least part of the samples of a call that must be free of host launch delay.
LEAST_SOUND = 0.5


@dataclass(frozen=True)
class Trial:
    """What became of one configuration on one problem.

    `seconds` is the median of `times` (NaN if there is none), `spread` their interquartile range
    as a part of the median, `error` the largest deviation as a part of its bound, `void` how many
    samples were taken again because of host launch delay, `versus` the time relative to that of the
    best configuration so far, both measured in turn, `joules` the energy of one run, where it was
    asked for (`pymm.measure.energy`).
    """

    problem: Problem
    config: Config
    outcome: str
    seconds: float = math.nan
    spread: float = math.nan
    times: tuple[float, ...] = ()
    error: float = math.nan
    resources: Resources = field(default_factory=Resources)
    detail: str = ""
    void: int = 0
    telemetry: Mapping[str, float | str] = field(default_factory=dict, hash=False)
    versus: float = math.nan
    joules: float = math.nan

    def __post_init__(self) -> None:
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {self.outcome!r} is none of {', '.join(OUTCOMES)}")

    @property
    def gflops(self) -> float:
        """10^9 operations per second, NaN without a time."""
        return self.problem.flops / self.seconds / 1e9 if self.seconds > 0 else math.nan


def median_and_spread(times: Sequence[float]) -> tuple[float, float]:
    """Median, and interquartile range divided by it (0 for fewer than four times)."""
    median = statistics.median(times)
    if len(times) < 4 or median <= 0:
        return median, 0.0
    low, _, high = statistics.quantiles(times, n=4, method="inclusive")
    return median, (high - low) / median


def slower_by_chance(pairs: Sequence[tuple[float, float]]) -> float:
    """The probability that the first times of pairs are as much above the second as here, or more,
    if both are equal: the exact signed-rank test (F. Wilcoxon, Individual comparisons by ranking
    methods, Biometrics Bulletin 1, 1945).
    """
    ratios = sorted((math.log(own / other) for own, other in pairs if own != other), key=abs)
    above = sum(rank for rank, ratio in enumerate(ratios, 1) if ratio > 0)
    ways = [1]  # how many of the choices of signs have each sum of ranks
    for rank in range(1, len(ratios) + 1):
        longer = [0] * (len(ways) + rank)
        for total, count in enumerate(ways):
            longer[total] += count
            longer[total + rank] += count
        ways = longer
    return sum(ways[above:]) / 2 ** len(ratios)


def _least_ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return min(own / other for own, other in pairs)


class Workbench:
    """Operands of one problem on one device, on which configurations are verified and timed.

    `lost` turns True when the device's context is gone and only a new process can go on, and on a
    CPU when a kernel wrote where it must not: that memory is the process's own. After any other
    failure operands and scratch memory are made anew, so that no kernel pays for another's fault.
    `calls` holds further calls by name, which `compare` runs in turn with the configurations;
    `times` has what its last run measured, by name, without samples with host launch delay, and
    `void` how many those were. With a `quick` verifier the operands and the checks are its own, and
    `deviations` has how far each call's result is from float64. With `accumulate` what is timed is
    C += op(A) op(B). With `counts_energy` the energy of what is timed and right is measured, too.
    """

    def __init__(
        self,
        backend: Backend,
        problem: Problem,
        seed: int = 0,
        quick: QuickVerifier | None = None,
        accumulate: bool = False,
    ) -> None:
        self.backend, self.problem, self.accumulate = backend, problem, accumulate
        self.seed, self.lost, self.counts_energy = seed, False, False
        self.calls: dict[str, Call] = {}
        self.times: dict[str, list[float]] = {}
        self.void: dict[str, int] = {}
        self.stopwatch = Stopwatch(backend, seed)
        self.deviations: dict[str, float] = {}
        self.quick = quick
        self._take_operands()

    def _take_operands(self) -> None:
        """Make the operands, and what checks results."""
        self._verifier = self.quick or Verifier(self.backend, self.problem, self.seed)
        self.a, self.b, self.c = self._verifier.operands

    def load(self, config: Config) -> Executable:
        """The compiled kernel of `config`. Raises `CompileFailed`, `LaunchFailed`."""
        return self._without_spills(render(config, self.problem))

    def _load_hard(self, config: Config, hard: Problem) -> Executable:
        return self._without_spills(render_hard(config, hard))

    def _without_spills(self, source: Source) -> Executable:
        """Load `source`. A kernel whose registers spill to memory counts as one that cannot be
        compiled: there is always another configuration that does not.
        """
        executable = self.backend.load(source)
        if spilled := executable.resources.spilled_bytes:
            raise CompileFailed(f"{source.config.slug} spills {spilled} bytes of each thread")
        return executable

    def call(self, executable: Executable) -> Call:
        """`executable` bound to the operands, alpha = 1; beta = 1 if C is to be added to, else
        0.
        """
        return executable.bind(self.problem, 1.0, self.a, self.b, float(self.accumulate), self.c)

    def verify(self, config: Config) -> Trial:
        """Check `config` without timing it: outcome `ok` (no time), `wrong` or a failure."""
        self.backend.reset()  # what another left in its scratch memory is not this one's fault
        return self._guarded(config, self._check)

    def measure(
        self, config: Config, best_seconds: float | None = None, best: Config | None = None
    ) -> Trial:
        """Check `config`, run it once, and unless that is hopelessly slower than `best_seconds`
        repeat it until the median is firm; then check it again. With `best`, the configuration of
        that time, the two are run in turn, so that both are timed at the same clock, and only until
        a few rounds show that `config` is slower.
        """
        self.backend.reset()
        other = None if best == config else best

        def race(own: Executable) -> dict:
            found = self._race(own, best_seconds, other)
            return found | self._energy(own, found)

        return self._guarded(config, self._check, race)

    def _energy(self, executable: Executable, timed: Mapping[str, Any]) -> dict:
        """What a trial says of the energy of a configuration, after it was timed."""
        if not self.counts_energy or timed.get("outcome", "ok") != "ok":
            return {}
        try:
            found = energy_of(self.backend, self.call(executable), timed["seconds"])
        except NoEnergy as failure:
            return {"outcome": "disturbed", "detail": str(failure)}
        return {"joules": found.joules, "telemetry": dict(self.backend.telemetry())}

    def _call_of(self, best: Config) -> Call | None:
        """The best configuration so far as a call; None if it cannot be loaded here."""
        try:
            return self.call(self.load(best))
        except (CompileFailed, LaunchFailed, MemoryError):
            return None

    def few_runs(self, config: Config, runs: int = 1) -> Trial:
        """Time `config` so many times, a `LONG_RUN` once, and judge each time what it wrote: for
        what takes long enough that nothing disturbs it much, and too long to be run for each check.
        Needs a `quick` verifier.
        """
        self.backend.reset()
        taken: list[float] = []

        def check(executable: Executable) -> Finding:
            seconds, finding = self.quick.run_once(
                executable, lambda launch: self.backend.time([launch])[0]
            )
            taken.append(seconds)
            return finding

        trial = self._guarded(config, check)
        sound = [seconds for seconds in taken if not math.isnan(seconds)]
        while trial.outcome == "ok" and len(taken) < runs + TRIES:
            if len(sound) >= (1 if sound and sound[0] > LONG_RUN else runs):
                break
            error, trial = trial.error, self._guarded(config, check)
            trial = replace(trial, error=max(error, trial.error))
            sound = [seconds for seconds in taken if not math.isnan(seconds)]
        if trial.outcome != "ok":
            return trial
        found = self._timed(sound, len(taken) - len(sound))
        return replace(trial, telemetry=dict(self.backend.telemetry()), **found)

    def compare(
        self,
        configs: Sequence[Config],
        rounds: int = 15,
        budget: float = math.inf,
        checking: float = math.inf,
    ) -> list[Trial]:
        """Time configurations and `calls` in turn, each round in another random order, so that a
        drift of the clock and what ran before meet all of them alike. All are checked before and
        after; one that fails before is left out of the rounds. One of whose samples too few are
        sound is `disturbed`. Fewer rounds, but at least `FEWEST_ROUNDS`, if they would take more
        than `budget` seconds; trials of the first configurations alone, at least of
        `FEWEST_COMPARED`, if checking them before or after takes more than `checking`. What the
        checks leave of that is for rounds.
        """
        begun = time.monotonic()
        trials: dict[Config, Trial] = {}
        for count, config in enumerate(configs):
            spent = time.monotonic() - begun
            if count >= FEWEST_COMPARED and spent > checking:
                break
            trials[config] = self.verify(config)
            if self.lost:
                return list(trials.values())
        unused = 2 * max(checking - (time.monotonic() - begun), 0.0)
        self.backend.reset()
        right = [config for config, trial in trials.items() if trial.outcome == "ok"]
        bound = {config.slug: self.call(self.load(config)) for config in right}
        ends = time.monotonic() + budget + (unused if math.isfinite(unused) else 0.0)
        self.times = self.interleave({**bound, **self.calls}, rounds, ends)
        telemetry = dict(self.backend.telemetry())
        for config, trial in trials.items():
            if config.slug in bound:
                found = self._timed(self.times[config.slug], self.void[config.slug])
                found["telemetry"] = telemetry
                found |= self._energy(self.load(config), found)
                trials[config] = Trial(**{**trial.__dict__, **found})
        self._look_again(trials)
        if self.quick is not None and not self.lost and not self.accumulate:
            right = [config for config in right if trials[config].outcome == "ok"]
            bound = {config.slug: self.call(self.load(config)) for config in right}
            self._deviate({**bound, **self.calls})
        return list(trials.values())

    def _look_again(self, trials: dict[Config, Trial]) -> None:
        """Check once more what was right before it was timed, for a race shows now and then."""
        for config, trial in trials.items():
            if trial.outcome == "ok" and not self.lost:
                again = self._guarded(config, self._verifier.again)
                trials[config] = trial if again.outcome == "ok" else again

    def _deviate(self, calls: Mapping[str, Call]) -> None:
        self.deviations = {}
        for name, call in calls.items():
            TimedCall.of(call)()
            self.backend.synchronize()
            self.deviations[name] = self.quick.deviation()

    def interleave(
        self, calls: Mapping[str, Call], rounds: int, ends: float = math.inf
    ) -> dict[str, list[float]]:
        """Seconds of every call by name, measured in `rounds` rounds after one to warm up, which
        is all that a `LONG_RUN` gets; none of a call of whose samples too few are sound. Fewer
        rounds, but at least `FEWEST_ROUNDS`, if they would not be over at the monotonic time
        `ends`; on a CPU the quieter half of ten or more.
        """
        if not calls:
            return {}
        first = dict(zip(calls, self.stopwatch.time(list(calls.values())), strict=True))
        gpu = self.backend.device.is_gpu
        once = {name: [s] for name, s in first.items() if gpu and s > LONG_RUN}
        again = {name: call for name, call in calls.items() if name not in once}
        self.stopwatch.void.clear()
        times, rounds = self.stopwatch.rounds(again, rounds, FEWEST_ROUNDS, ends)
        self.void = {name: self.stopwatch.void[call] for name, call in calls.items()}
        enough = LEAST_SOUND * rounds
        sound = {name: taken if len(taken) >= enough else [] for name, taken in times.items()}
        return {name: (once | sound)[name] for name in calls}

    def _check(self, executable: Executable) -> Finding:
        config = executable.config
        return self._verifier.check(executable, lambda hard: self._load_hard(config, hard))

    def _guarded(
        self,
        config: Config,
        check: Callable[[Executable], Finding],
        race: Callable[[Executable], dict] | None = None,
    ) -> Trial:
        """A trial of `config`, whatever happens: load, `check`, and if right and wanted `race` and
        check again.
        """
        found: dict = {"outcome": "ok"}
        try:
            executable = self.load(config)
            found["resources"] = executable.resources
            finding = check(executable)
            if finding.right and race is not None:
                found |= race(executable)
                finding = self._after(executable, found["outcome"], finding)
            found["error"] = finding.error
        except CompileFailed as failure:
            return self._failed(config, found, "compile_failed", str(failure))
        except (LaunchFailed, MemoryError) as failure:
            self.lost = self.lost or getattr(failure, "sticky", False)
            self._start_afresh()
            return self._failed(config, found, "launch_failed", str(failure) or "out of memory")
        if finding.right:
            return Trial(self.problem, config, **found)
        self.lost = self.lost or (finding.stray and self.backend.device.shares_host_memory)
        self._start_afresh()
        return self._failed(config, found, "wrong", finding.detail)

    def _after(self, executable: Executable, outcome: str, before: Finding) -> Finding:
        """What a check after timing finds; of what is too slow to be chosen whether it left the
        operands alone, for what comes next.
        """
        if outcome == "too_slow":
            return self._verifier.untouched() or before
        again = self._verifier.again(executable)
        return replace(again, error=max(before.error, again.error))

    def _failed(self, config: Config, found: dict, outcome: str, detail: str) -> Trial:
        kept = {name: found[name] for name in ("resources", "error") if name in found}
        return Trial(self.problem, config, outcome, detail=detail, **kept)

    def _start_afresh(self) -> None:
        """Make operands and scratch memory anew after a failure, unless the process is lost."""
        if self.lost:
            return
        try:
            self.backend.reset()
            self._verifier.refresh()
        except (LaunchFailed, MemoryError):
            self.lost = True

    def _race(
        self, executable: Executable, best_seconds: float | None, best: Config | None
    ) -> dict:
        rival = None if best is None else self._call_of(best)
        if rival is not None:
            return self._race_against(executable, rival)
        call, take = self.call(executable), self.stopwatch.sound
        self.stopwatch.void.clear()
        started = time.monotonic()
        times = take([call])  # verification was the warm-up
        if times and best_seconds is not None and times[0] > HOPELESS * best_seconds:
            if times[0] < SHORT_RUN:
                times += take([call, call])
            if min(times) > HOPELESS * best_seconds:
                return self._timed(times, self.stopwatch.void[call]) | {"outcome": "too_slow"}
        if times:
            times = take([call] * self._affordable(times[0]))
        while (
            0 < len(times) < MOST_REPEATS
            and median_and_spread(times)[1] > ENOUGH
            and time.monotonic() - started < SECONDS_PER_TRIAL
        ):
            times += take([call] * self._affordable(times[0]))
        found = self._timed(times, self.stopwatch.void[call])
        return found | {"telemetry": dict(self.backend.telemetry())}

    def _race_against(self, executable: Executable, rival: Call) -> dict:
        """Rounds of both calls, until they show that this one is slower, or its median is firm."""
        call = self.call(executable)
        self.stopwatch.void.clear()
        started = time.monotonic()
        pairs = self._pairs(call, rival, 1)
        if pairs and _least_ratio(pairs) > HOPELESS:
            if pairs[0][0] < SHORT_RUN:
                pairs += self._pairs(call, rival, 2)
            if _least_ratio(pairs) > HOPELESS:
                return self._of_pairs(pairs, call) | {"outcome": "too_slow"}
        rounds = FEW_ROUNDS
        while pairs and len(pairs) < MOST_REPEATS:
            pairs += (more := self._pairs(call, rival, min(rounds, self._affordable(pairs[0][0]))))
            rounds = REPEATS
            late = time.monotonic() - started >= SECONDS_PER_TRIAL
            spread = median_and_spread([own for own, _ in pairs])[1]
            firm = len(pairs) >= REPEATS and spread <= ENOUGH
            slower = len(pairs) >= FEW_ROUNDS and slower_by_chance(pairs) < SURELY_SLOWER
            if late or firm or slower or not more:
                break
        return self._of_pairs(pairs, call) | {"telemetry": dict(self.backend.telemetry())}

    def _pairs(self, call: Call, rival: Call, rounds: int) -> list[tuple[float, float]]:
        """Seconds of both in so many rounds, each first by turns; void ones are left out."""
        order = [one for n in range(rounds) for one in ((call, rival), (rival, call))[n % 2]]
        times = self.stopwatch.time(order)
        found = []
        for n in range(rounds):
            pair = tuple(times[2 * n : 2 * n + 2])
            found.append(pair[::-1] if n % 2 else pair)
        return [pair for pair in found if not math.isnan(sum(pair))]

    def _of_pairs(self, pairs: Sequence[tuple[float, float]], call: Call) -> dict:
        found = self._timed([own for own, _ in pairs], self.stopwatch.void[call])
        if pairs:
            found["versus"] = statistics.median(own / other for own, other in pairs)
        return found

    @staticmethod
    def _affordable(seconds: float) -> int:
        """Repeats at a time: 7, fewer (but three) where they would take longer than a trial may."""
        return max(3, min(REPEATS, int(SECONDS_PER_TRIAL / max(seconds, 1e-9))))

    @staticmethod
    def _timed(times: Sequence[float], void: int) -> dict:
        """What a trial says of its times; without any it was disturbed."""
        if not times:
            detail = f"host launch delay in {void} samples, too few without it"
            return {"outcome": "disturbed", "detail": detail, "void": void}
        seconds, spread = median_and_spread(times)
        return {"seconds": seconds, "spread": spread, "times": tuple(times), "void": void}
