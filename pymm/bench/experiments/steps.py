"""From an experiment and a device to the steps that are measured, one request each, and what has to
be left out and why.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from pymm.bench.experiments.declaration import CHOSEN, EVERY, NO_JOURNEY, Experiment, fixed
from pymm.bench.experiments.sequential import LARGEST, affordable
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.core.shapes import Shape, parse_shapes
from pymm.kernels import Config, kernels_for
from pymm.kernels.source import kernel_digest
from pymm.measure.results import EXPERIMENTS
from pymm.measure.workbench import LONG_RUN
from pymm.measure.worker import UNKNOWN_PEAK

#: Part of the peak rate that a kernel's default is expected to reach before it was measured here
#: (4096 x 4096 x 4096 in float32 on an H200; a CPU's scalar kernel compared with a vectorised one).
EXPECTED = {"cuda": (0.008, 0.05, 0.12, 0.5, 0.35, 0.6), "cpu": (0.04, 0.6)}

#: Runs of a contestant besides its rounds: twice two that are checked, one to warm up, one to see
#: how far the result is from float64.
RUNS_BESIDE = 6

#: Seconds of a run from which on it is timed and checked at once: checks apart take six more runs.
LONG_CHECK = 0.05

#: Seconds of a step besides the runs: loading, checks on the host.
STEP_SECONDS = 0.05


@dataclass(frozen=True)
class Contestant:
    """A configuration in an experiment, and in which variant: fixed, default or chosen."""

    variant: str
    config: Config

    @property
    def name(self) -> str:
        """The kernel's number and name: `02_shared_tile`."""
        return self.config.kernel.label

    @property
    def digest(self) -> str:
        """Of the kernel's text."""
        return kernel_digest(self.config.backend, self.config.kernel.file)


@dataclass(frozen=True)
class Step:
    """What one request measures: an experiment on one problem."""

    experiment: Experiment
    problem: Problem
    contestants: tuple[Contestant, ...]
    with_sequential: bool = False

    @cached_property
    def digest(self) -> str:
        """What its rows are found by again: the same experiment, kernels and texts."""
        e = self.experiment
        who = [(c.variant, c.config.slug, c.digest) for c in self.contestants]
        how = (e.name, e.figures, e.transfers, e.runs, e.libraries, self.with_sequential)
        how += ("accumulate",) if e.accumulate else ()
        what = (EXPERIMENTS.number, *how, self.problem.slug, who)
        return hashlib.sha256(repr(what).encode()).hexdigest()[:12]

    @property
    def configs(self) -> tuple[Config, ...]:
        """Each configuration once."""
        return tuple(dict.fromkeys(c.config for c in self.contestants))


@dataclass
class RuntimeEstimate:
    """How fast each kernel is expected to be: as measured so far, else a part of the peak."""

    device: Device
    seen: dict[tuple[str, str], float] = field(default_factory=dict)

    def seconds(self, contestant: Contestant, problem: Problem) -> float:
        """Of one run of a contestant."""
        rate = self.seen.get((contestant.config.slug, problem.dtype))
        if rate is None:
            parts = EXPECTED[self.device.kernel_backend]
            number = min(contestant.config.kernel.number, len(parts) - 1)
            rate = parts[number] * (self.device.peak_flops.get(problem.dtype) or UNKNOWN_PEAK)
        return problem.flops / rate

    def learn(self, config: Config, problem: Problem, seconds: float) -> None:
        """A run took so long: the larger problems to come will hardly be slower by flop."""
        if seconds > 0:
            self.seen[config.slug, problem.dtype] = problem.flops / seconds

    def of_step(self, step: Step) -> float:
        """Seconds that a step will take, libraries as fast as the fastest contestant."""
        once = {c.config: self.seconds(c, step.problem) for c in step.contestants}
        e, runs = step.experiment, list(once.values())
        if e.figures == "counts":
            return sum(step.problem.flops for _ in runs) / 2e6
        libraries = 2 * min(runs, default=0.0) if e.libraries else 0.0
        rounds = e.runs or 5
        slow = [once[c.config] for c in step.contestants if self.is_long(step, c)]
        long = sum(s if s > LONG_RUN else s * rounds for s in slow)
        once = sum(runs) - sum(slow) + libraries
        measured = once * rounds if e.runs else max(once * rounds, min(e.seconds, once * 31))
        return STEP_SECONDS + long + RUNS_BESIDE * once + measured

    def is_long(self, step: Step, contestant: Contestant) -> bool:
        """Whether a contestant is timed and checked at once, and runs a few times. What matmul
        chose is timed in turn with the libraries, however long it takes.
        """
        return (
            self.device.is_gpu
            and contestant.variant != CHOSEN
            and step.experiment.runs is not None
            and step.experiment.figures in ("times", "sequential")
            and self.seconds(contestant, step.problem) > LONG_CHECK
        )


def steps_of(
    experiment: Experiment,
    device: Device,
    choose: Callable[[Problem], Config],
    shapes: list[Shape] | None = None,
    dtypes: tuple[str, ...] | None = None,
    largest: int = LARGEST,
    thin: int = 1,
) -> tuple[list[Step], list[str]]:
    """The steps of an experiment on a device, smaller products first, and sentences about what it
    cannot have of it. `shapes` and `dtypes` replace the experiment's own. `choose` gives
    matmul's configuration and raises `NotImplementedError` where it has none. `largest` is the
    largest square that is multiplied sequentially, where an experiment wants that. Of the shapes
    every `thin`th is taken.
    """
    if not experiment.contestants_on(device):
        return [], [f"{experiment.name}: {experiment.why_not}"]
    missing: list[str] = []
    if experiment.figures == "journeys" and device.shares_host_memory:
        experiment = replace(experiment, figures="times")
        missing.append(f"{experiment.name}: totals: {NO_JOURNEY}")
    transposed = [letter == "T" for letter in experiment.layout]
    steps = []
    for dtype in dtypes or experiment.dtypes:
        for m, n, k in (shapes or parse_shapes(experiment.shapes))[::thin]:
            problem = Problem(m, n, k, dtype, *transposed, op=experiment.op)
            found = []
            for contestant in _contestants(experiment, problem, device, choose, missing):
                if contestant not in found:
                    found.append(contestant)
            if found:
                beside = experiment.figures == "sequential" and affordable(problem, largest)
                steps.append(Step(experiment, problem, tuple(found), beside))
    steps.sort(key=lambda step: step.problem.flops)
    return steps, list(dict.fromkeys(missing))


def _contestants(
    experiment: Experiment,
    problem: Problem,
    device: Device,
    choose: Callable[[Problem], Config],
    missing: list[str],
) -> Iterator[Contestant]:
    for text in experiment.contestants_on(device):
        if text == EVERY:
            for kernel in kernels_for(problem, device):
                default = kernel.default_for(problem, device)
                if not kernel.violations(default, problem, device):
                    yield Contestant("default", default)
            continue
        try:
            if text == CHOSEN:
                yield Contestant(CHOSEN, choose(problem))
                continue
            variant, config = fixed(text, problem, device)
        except NotImplementedError as refusal:
            missing.append(f"{experiment.name}: {problem.dtype}: {refusal}")
            continue
        broken = config.kernel.violations(config, problem, device)
        if problem.dtype not in config.kernel.dtypes:
            broken = [f"is not made for {problem.dtype}"]
        if broken:
            missing.append(f"{experiment.name}: {config.slug}: {broken[0]}")
        else:
            yield Contestant(variant, config)
