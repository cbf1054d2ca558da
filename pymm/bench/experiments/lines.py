"""From the reply to a step to its rows, and what became of a run: every row counted, and the first
failure in words.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pymm.backends.base import Resources
from pymm.bench.experiments.counts import formula, occupancy, shared_of
from pymm.bench.experiments.guards import lacks_guards
from pymm.bench.experiments.steps import Contestant, Step
from pymm.bench.runner import Row, origin, product
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.measure.libraries import HALF
from pymm.measure.results import EXPERIMENTS, SEEN, one_line
from pymm.measure.workbench import Trial, median_and_spread
from pymm.measure.worker_process import Reply
from pymm.selection.records import Environment

#: Names of contestants that are neither kernels nor libraries.
COPIES, SEQUENTIAL = "copies", "sequential"

#: The quantity that says whether a kernel's result is right.
CHECK = "check"

#: Units of the numbers that are counted or worked out.
UNITS = {
    "grid": "blocks",
    "block": "threads",
    "threads": "of a block",
    "registers": "of a thread",
    "shared": "bytes of a block",
    "blocks_per_sm": "blocks",
    "occupancy": "of the threads",
    "limited_by": "",
    "minimal_traffic": "GB/s",
}
PER_THREAD = "per thread"


@dataclass(frozen=True)
class RowWriter:
    """Who writes rows: on which device, with which tools, from which commit of pymm."""

    device: Device
    environment: Environment
    commit: str = ""

    def rows(
        self, step: Step, reply: Reply, sequential: Sequence[float] | None = None
    ) -> list[Row]:
        """All rows of a step. `sequential` has the times of that product."""
        shared = self._of_step(step, step.digest)
        figures = [*self._libraries(step, reply), *self._kernels(step, reply)]
        figures += _journeys(step, reply)
        figures += self._resources(step, reply) if step.experiment.figures == "resources" else []
        figures += _counted(step, reply) if step.experiment.figures == "counts" else []
        if step.experiment.figures == "guards":
            figures = list(_checks(step, reply))
        if sequential is None:
            figures = [{**row, "error_inf": ""} for row in figures]
        else:
            figures.append(
                {
                    "name": SEQUENTIAL,
                    "quantity": "kernel",
                    "outcome": "ok",
                    **speed(step.problem, list(sequential)),
                }
            )
            for row in figures:
                if row.get("quantity") == "kernel" and row.get("seconds"):
                    gain = statistics.median(sequential) / float(row["seconds"])
                    row["speedup"] = f"{gain:.4g}"
        return [shared | row for row in figures]

    def without(self, step: Step, who: Contestant, why: str) -> Row:
        """The row of a contestant that was left out."""
        head = self._of_step(step, step.digest)
        figure = {"quantity": "kernel", "outcome": "left_out", "detail": one_line(why)}
        return head | named(who) | figure

    def without_sequential(self, step: Step, largest: int) -> Row:
        """The row of a sequential product that was left out."""
        why = "the sequential product failed"
        if not step.with_sequential:
            why = f"more operations than a square of {largest} (--sequential-to) has"
        figure = {"quantity": "kernel", "outcome": "left_out", "detail": why}
        return self._of_step(step, step.digest) | {"name": SEQUENTIAL} | figure

    def seen(
        self, step: Step, who: Contestant, digest: str, metric: str, value: str, unit: str
    ) -> Row:
        """The row of a figure of Nsight Compute's."""
        head = self._of_step(step, digest) | named(who)
        figure = {"quantity": f"ncu:{metric}", "outcome": "ok", "value": value, "unit": unit}
        return head | figure

    def absence(self, suite: str, why: str) -> Row:
        """The row of a part of an experiment that this device cannot have."""
        step = hashlib.sha256(repr((EXPERIMENTS.number, suite, why)).encode()).hexdigest()[:12]
        return self.head(suite, step) | {"outcome": "not_applicable", "detail": one_line(why)}

    def _of_step(self, step: Step, digest: str) -> Row:
        head = self.head(step.experiment.name, digest)
        return head | {"op": step.problem.op, **product(step.problem)}

    def head(self, suite: str, step: str) -> Row:
        """What all rows of a step share, but the product."""
        return {
            "suite": suite,
            "step": step,
            **origin(self.device, self.environment, self.commit),
        }

    def _libraries(self, step: Step, reply: Reply) -> Iterator[Row]:
        for name in library_times(reply):
            row: Row = {"name": name, "quantity": "kernel", "void": reply.void.get(name, 0)}
            if not reply.times[name]:
                yield row | {"outcome": "disturbed", "detail": "host launch delay"}
                continue
            row |= {"outcome": "ok", **_seen(reply), **_apart(step, reply, name)}
            yield row | self._speed(step.problem, reply.times[name], reply)

    def _kernels(self, step: Step, reply: Reply) -> Iterator[Row]:
        found = {trial.config: trial for trial in reply.trials}
        for contestant in step.contestants:
            trial = found.get(contestant.config)
            if trial is None or step.experiment.figures == "counts":
                continue
            yield named(contestant) | self._kernel(step, trial, reply)

    def _kernel(self, step: Step, trial: Trial, reply: Reply) -> Row:
        row: Row = {"quantity": "kernel", "outcome": trial.outcome}
        row["detail"] = one_line(trial.detail)
        row |= resources_of(trial, step.problem) | _seen(reply)
        if trial.outcome == "ok" and trial.times:
            row |= self._speed(step.problem, trial.times, reply)
            row |= {"void": trial.void, "error": f"{trial.error:.3g}"}
            row |= _apart(step, reply, trial.config.slug)
        return row

    def _speed(self, problem: Problem, times: list[float], reply: Reply) -> Row:
        row = speed(problem, times)
        own = self.device.peak_flops.get(problem.dtype)
        if own:
            row["peak"] = f"{problem.flops / float(row['seconds']) / own:.4g}"
        baselines = [
            statistics.median(taken)
            for name, taken in library_times(reply).items()
            if taken and (name != HALF or problem.fill != "full")
        ]
        if baselines:
            row["ratio"] = f"{min(baselines) / float(row['seconds']):.4g}"
        return row

    def _resources(self, step: Step, reply: Reply) -> Iterator[Row]:
        found = {trial.config: trial for trial in reply.trials if trial.outcome == "ok"}
        for contestant in step.contestants:
            trial = found.get(contestant.config)
            if trial is None:
                continue
            for quantity, value in self._numbers(contestant, step.problem, trial).items():
                yield named(contestant) | number(quantity, value)

    def _numbers(self, who: Contestant, problem: Problem, trial: Trial) -> Mapping[str, object]:
        config, kernel = who.config, who.config.kernel
        full = occupancy(config, problem, trial.resources, self.device)
        grid = kernel.grid(config, problem, self.device.sms if kernel.persistent else None)
        return {
            "grid": "x".join(map(str, grid)),
            "block": "x".join(map(str, kernel.block(config))),
            "threads": kernel.threads(config),
            "registers": trial.resources.registers,
            "shared": shared_of(config, problem, trial.resources),
            "blocks_per_sm": full.blocks,
            "occupancy": f"{full.part:.4g}",
            "limited_by": full.limited_by,
            "minimal_traffic": f"{problem.bytes / trial.seconds / 1e9:.4g}",
        }


def named(contestant: Contestant) -> Row:
    """The columns that name a contestant."""
    return {
        "name": contestant.name,
        "variant": contestant.variant,
        "config": contestant.config.slug,
        "source": contestant.digest,
    }


def number(quantity: str, value: object) -> Row:
    """The columns of a number; Nsight Compute's come with their units."""
    return {
        "quantity": quantity,
        "outcome": "ok",
        "value": value,
        "unit": UNITS.get(quantity, PER_THREAD),
    }


def speed(problem: Problem, times: list[float]) -> Row:
    """The columns of a time."""
    seconds, spread = median_and_spread(times)
    return {
        "seconds": f"{seconds:.9g}",
        "mean": f"{statistics.fmean(times):.9g}",
        "spread": f"{spread:.4g}",
        "rounds": len(times),
        "gflops": f"{problem.flops / seconds / 1e9:.6g}",
    }


def library_times(reply: Reply) -> Mapping[str, list[float]]:
    """Times of the libraries: names of other figures have a bar in them."""
    return {name: times for name, times in reply.times.items() if "|" not in name}


def resources_of(trial: Trial, problem: Problem) -> Row:
    """What the compiler gave, where it says so."""
    given: Resources = trial.resources
    if not given.registers:
        return {}
    shared = shared_of(trial.config, problem, given)
    return {"registers": given.registers, "spills": given.spilled_bytes, "shared": shared}


def _journeys(step: Step, reply: Reply) -> Iterator[Row]:
    by_slug = {contestant.config.slug: contestant for contestant in step.contestants}
    for name, times in reply.times.items():
        quantity, *rest = name.split("|")
        if not rest or step.experiment.figures != "journeys":
            continue
        who = named(by_slug[rest[1]]) if len(rest) > 1 else {"name": COPIES}
        row = {**who, "quantity": quantity, "transfer": rest[0], "outcome": "ok"}
        yield row | speed(step.problem, times) | ({} if len(rest) > 1 else {"gflops": ""})


def _counted(step: Step, reply: Reply) -> Iterator[Row]:
    found = {trial.config: trial for trial in reply.trials}
    for contestant in step.contestants:
        trial, who = found[contestant.config], named(contestant)
        if trial.outcome != "ok":
            yield who | {
                "quantity": "operations",
                "outcome": trial.outcome,
                "detail": one_line(trial.detail),
            }
            continue
        for name, (value,) in reply.times.items():
            slug, quantity = name.split("|")
            if slug == contestant.config.slug:
                yield who | number(quantity, f"{value:.8g}")
        for quantity, value in formula(contestant.config, step.problem).items():
            yield who | number(f"{quantity}_formula", f"{value:.8g}")


def _checks(step: Step, reply: Reply) -> Iterator[Row]:
    """Whether each kernel passed its check: sound if it failed exactly where it lacks guards."""
    found = {trial.config: trial for trial in reply.trials}
    for contestant in step.contestants:
        lost = Trial(step.problem, contestant.config, "launch_failed", detail="the device was lost")
        trial = found.get(contestant.config, lost)
        row = named(contestant) | {"quantity": CHECK, "detail": one_line(trial.detail)}
        must_fail = lacks_guards(trial.config, step.problem)
        if trial.outcome == ("wrong" if must_fail else "ok"):
            row |= {"outcome": "ok", "value": "TEST FAIL" if must_fail else "TEST PASS"}
        elif trial.outcome == "ok":
            row |= {"outcome": "wrong", "detail": "passes without the guards that it needs"}
        else:
            row |= {"outcome": trial.outcome}
        yield row


def _apart(step: Step, reply: Reply, name: str) -> Row:
    if step.experiment.figures != "sequential" or name not in reply.deviations:
        return {}
    return {"error_inf": f"{reply.deviations[name]:.3g}"}


def _seen(reply: Reply) -> Row:
    """Clocks and the like during the rounds."""
    seen = next((trial.telemetry for trial in reply.trials if trial.telemetry), {})
    return {name: seen.get(name, "") for name in SEEN}


#: Outcomes that are no failure.
SOUND = ("ok", "left_out", "not_applicable")


@dataclass
class Verdict:
    """What became of the rows, suite by suite, and the first failure in words."""

    rows: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: str = ""
    left: int = 0

    def take(self, rows: Sequence[Row]) -> None:
        """Count rows."""
        for row in rows:
            self.rows[str(row["suite"]), str(row["outcome"])] += 1
            if row["outcome"] not in SOUND and not self.first:
                what = row.get("config") or row.get("name", "")
                extents = "x".join(str(row.get(axis, "")) for axis in "mnk")
                self.first = (
                    f"{row['suite']} {row.get('dtype', '')} {extents} {what}: "
                    f"{row['outcome']}: {row.get('detail', '')}"
                )

    def lines(self) -> Iterator[str]:
        """One line for each suite, and the verdict."""
        for suite in dict.fromkeys(suite for suite, _ in self.rows):
            at = {outcome: n for (name, outcome), n in self.rows.items() if name == suite}
            told = ", ".join(f"{n} {outcome.replace('_', ' ')}" for outcome, n in at.items())
            yield f"{suite}: {'PASS' if set(at) <= set(SOUND) else 'FAIL'} ({told})"
        if self.first:
            yield f"FAIL: first {self.first}"
        elif self.left:
            yield f"INCOMPLETE: {self.left} steps are left; the same command continues with them"
        else:
            counted = Counter()
            for (_, outcome), n in self.rows.items():
                counted[outcome] += n
            rest = ", ".join(
                f"{counted[name]} {name.replace('_', ' ')}" for name in SOUND[1:] if counted[name]
            )
            yield f"PASS: {counted['ok']} figures" + (f", {rest}" if rest else "")

    @property
    def status(self) -> int:
        """Exit status."""
        return int(bool(self.first or self.left))
