"""A run of suites: step by step, each row on disk before the next step begins, with a verdict."""

from __future__ import annotations

import hashlib
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from pymm.backends.telemetry import ProfileFailed, profile
from pymm.bench.experiments import profiled, sequential
from pymm.bench.experiments.declaration import Experiment
from pymm.bench.experiments.lines import SOUND, Row, RowWriter, Verdict, library_times, named
from pymm.bench.experiments.steps import RuntimeEstimate, Step
from pymm.bench.runner import Runner
from pymm.console import duration
from pymm.core.errors import NoDevice
from pymm.core.files import drop_partial_line
from pymm.core.inputs import rows_of, shown
from pymm.core.problem import Problem
from pymm.kernels.source import render
from pymm.measure.results import EXPERIMENTS
from pymm.measure.workbench import Trial
from pymm.measure.worker import Reply, Request, WorkerFailed, time_limit

#: Functions of the child that measure, by what an experiment's figures are; else `compare`.
ACTIONS = {
    "journeys": "pymm.bench.experiments.transfers:measure",
    "counts": "pymm.bench.experiments.counts:measure",
    "guards": "pymm.bench.experiments.guards:measure",
}

#: The same for contestants that take long.
ONCE = "pymm.bench.experiments.once:measure"

#: Seconds that one run may take.
SLOWEST_GPU, SLOWEST_CPU = 10.0, 1.0

#: Rounds at most where the time decides.
ROUNDS = 31

#: Seconds that Nsight Compute may take: some ten passes for each launch.
PROFILE_SECONDS = 90.0

#: Seconds of a request besides what its configurations may take.
REQUEST_SECONDS = 60.0


@dataclass
class Run:
    """Steps of one device. `slowest` is how long a single run of a contestant may take (None: 10 s
    on a GPU, where long runs are few, else 1 s). `sequential_to` is the largest square that is
    multiplied sequentially.
    """

    runner: Runner
    writer: RowWriter
    slowest: float | None = None
    sequential_to: int = sequential.LARGEST
    verdict: Verdict = field(default_factory=Verdict)

    def __post_init__(self) -> None:
        self.device, self.csv = self.writer.device, self.runner.csv
        self.estimate, self.told_alone = RuntimeEstimate(self.device), False
        if self.slowest is None:
            self.slowest = SLOWEST_GPU if self.device.is_gpu else SLOWEST_CPU

    def absences(self, suite: str, sentences: Sequence[str]) -> None:
        """Say and write what the device cannot have."""
        known = completed_steps(self.csv) if self.csv else {}
        for sentence in sentences:
            self.say(f"left out: {sentence}")
            row = self.writer.absence(suite, sentence) | {"of": 1}
            self.verdict.take([row])
            if self.csv and row["step"] not in known:
                self.runner.keep([row])

    def run(self, steps: Sequence[Step]) -> None:
        """Measure the steps that the file does not have yet."""
        known = completed_steps(self.csv) if self.csv else {}
        for step in steps:
            self.verdict.take(known.get(step.digest, []))
        waiting = [step for step in steps if step.digest not in known]
        if len(waiting) < len(steps):
            self.say(f"{len(steps) - len(waiting)} of {len(steps)} steps are in {self.csv} already")
        left = self.runner.left
        with self._compiled(waiting), tempfile.TemporaryDirectory(prefix="pymm-sequential-") as at:
            standards = self._standards(waiting, Path(at))
            for step in self.runner.each(
                waiting, lambda step: f"{step.experiment.name} {step.problem.slug}"
            ):
                self._step(step, standards.get(step.problem))
        self.verdict.left += self.runner.left - left

    def profile(self, steps: Sequence[Step]) -> None:
        """What Nsight Compute says of each configuration, one launch each, in one process."""
        launches = [
            (step, c)
            for step in steps
            for c in step.contestants
            if self.estimate.seconds(c, step.problem) <= self.slowest
        ]
        launches = list({(s.problem, c.config): (s, c) for s, c in launches}.values())
        if not launches or not self.device.is_gpu:
            return
        suite = launches[0][0].experiment.name
        digest = hashlib.sha256(repr(sorted(s.digest for s in steps)).encode()).hexdigest()[:12]
        if rows := (completed_steps(self.csv) if self.csv else {}).get(digest):
            self.verdict.take(rows)
            return
        self.say(f"{suite}: Nsight Compute looks at {len(launches)} launches")
        asked = [(step.problem, who.config.slug) for step, who in launches]
        try:
            found = profile(
                profiled.command(self.device.index, asked),
                profiled.KERNEL,
                profiled.METRICS,
                PROFILE_SECONDS,
            )
        except ProfileFailed as failure:
            self.absences(suite, [f"{suite}: no throughputs: {failure}"])
            return
        if len(found) != len(launches):
            self.absences(suite, [f"{suite}: no throughputs: {len(found)} of {len(launches)} seen"])
            return
        rows = [
            self.writer.seen(step, who, digest, metric, value, unit)
            for (step, who), figures in zip(launches, found, strict=True)
            for metric, (value, unit) in figures.items()
        ]
        self._keep(rows)

    def _alone(self) -> None:
        """Say once that nothing is there to compare with."""
        if not self.told_alone:
            self.say("no library to compare with: PyTorch or CuPy would bring cuBLAS")
            self.told_alone = True

    def _keep(self, rows: Sequence[Row]) -> None:
        """Count the rows of a step and write them."""
        rows = [{**row, "of": len(rows)} for row in rows]
        self.verdict.take(rows)
        self.runner.keep(rows)

    def _compiled(self, steps: Sequence[Step]) -> AbstractContextManager:
        """Everything that is measured, compiled before."""
        sources = [
            render(config, step.problem)
            for step in steps
            if step.experiment.figures != "counts"
            for config in step.configs
            if self._fits(step, config)
        ]
        return self.runner.compiling([sources]) if sources else nullcontext()

    def _standards(
        self, steps: Sequence[Step], folder: Path
    ) -> dict[Problem, tuple[Path, list[float]]]:
        """Results and times of the sequential products that are wanted and affordable."""
        wanted = {step.problem for step in steps if step.with_sequential}
        if not wanted or self.runner.stop():
            return {}
        self.say(f"{len(wanted)} sequential products, one after the other on one thread")
        try:
            return sequential.produce(list(wanted), folder, steps[0].experiment.accumulate)
        except (WorkerFailed, NoDevice) as failure:
            self.absences(steps[0].experiment.name, [f"no sequential products: {failure}"])
            return {}

    def _fits(self, step: Step, config: object) -> bool:
        return any(
            self.estimate.seconds(contestant, step.problem) <= self.slowest
            for contestant in step.contestants
            if contestant.config == config
        )

    def _step(self, step: Step, standard: tuple[Path, list[float]] | None) -> None:
        slow = {
            c: s
            for c in step.contestants
            if (s := self.estimate.seconds(c, step.problem)) > self.slowest
        }
        if step.experiment.figures == "counts":
            slow = {}
        rows = [
            self.writer.without(
                step,
                who,
                f"one run would take {duration(seconds)}, {duration(self.slowest)} are allowed",
            )
            for who, seconds in slow.items()
        ]
        if step.experiment.figures == "sequential" and not standard:
            rows.append(self.writer.without_sequential(step, self.sequential_to))
        rest = tuple(c for c in step.contestants if c not in slow)
        if rest:
            few = replace(step, contestants=rest)
            reply = self._ask(few, standard)
            if few.experiment.libraries and not library_times(reply):
                self._alone()
            for trial in reply.trials:
                self.estimate.learn(trial.config, step.problem, trial.seconds)
            found = self.writer.rows(few, reply, standard[1] if standard else None)
            rows += [{**row, "step": step.digest} for row in found]
            if few.experiment.figures == "guards":
                self._tell(few, found)
            elif few.experiment.figures != "counts":
                self._show(few, found)
        self._keep(rows)
        if standard:
            standard[0].unlink(missing_ok=True)

    def _ask(self, step: Step, standard: tuple[Path, list[float]] | None) -> Reply:
        """What the worker says of a step's contestants, those that take long one by one."""
        long = tuple(c for c in step.contestants if self.estimate.is_long(step, c))
        short = tuple(c for c in step.contestants if c not in long)
        files = (str(standard[0]),) if standard else ()
        if not long:
            return self._ask_for(step, files)
        reply = Reply()
        if short or step.experiment.libraries:
            reply = self._ask_for(replace(step, contestants=short), files)
        more = self._ask_for(replace(step, contestants=long), files, ONCE)
        return replace(
            reply,
            trials=reply.trials + more.trials,
            deviations={**reply.deviations, **more.deviations},
        )

    def _ask_for(self, step: Step, files: tuple[str, ...], action: str = "compare") -> Reply:
        e, arguments = step.experiment, files
        if e.figures in ACTIONS:
            action, arguments = ACTIONS[e.figures], e.transfers
        elif files and action == "compare":
            action = f"{sequential.__name__}:measure"
        request = Request(
            action,
            step.problem,
            step.configs,
            rounds=e.runs or ROUNDS,
            quick=True,
            against_others=e.libraries,
            budget=math.inf if e.runs else e.seconds,
            arguments=arguments,
            accumulate=e.accumulate,
        )
        each = time_limit(step.problem, self.device, quick=True)
        reply = self.runner.ask(request, len(step.configs) * each + REQUEST_SECONDS)
        if reply.outcome == "ok" and reply.trials:
            return reply
        detail = reply.detail or "no answer"
        failed = [Trial(step.problem, c, reply.outcome, detail=detail) for c in step.configs]
        return replace(reply, trials=tuple(failed))

    def _show(self, step: Step, rows: Sequence[Row]) -> None:
        """One line for a step: the kernels' times, and what failed."""
        told = []
        for row in rows:
            if row.get("quantity") == "kernel":
                seconds = float(row["seconds"]) if row.get("seconds") else math.nan
                says = duration(seconds) if seconds > 0 else f"{row['outcome']}"
                told.append(f"{short(row)} {says}")
        self.say(f"{step.experiment.name} {step.problem.slug}: {', '.join(told)}")

    def _tell(self, step: Step, rows: Sequence[Row]) -> None:
        """A line for each check."""
        for row in rows:
            told = f"{step.problem.slug} {row['config']}: {row.get('value') or row['outcome']}"
            self.say(f"{told} {row.get('detail', '')}".rstrip())

    def say(self, text: str) -> None:
        """A line that stays."""
        self.runner.say(text)


def short(row: Row) -> str:
    """A contestant in a line: its number and what the suite gave it, else its name."""
    if not row.get("config"):
        return str(row["name"])
    number, variant = str(row["name"])[:2], str(row["variant"])
    if variant in ("default", "chosen"):
        return f"{number} {variant}"
    return f"{number} {row['config'].split('-', 1)[1]}"


def completed_steps(path: Path) -> dict[str, list[Row]]:
    """The steps of which a file has all rows, and none that failed. A half-written last line, as a
    killed run leaves it, is cut off. `BadInput` for another file, or a damaged one.
    """
    if not EXPERIMENTS.begun(path):
        return {}
    drop_partial_line(path)
    found: dict[str, list[Row]] = {}
    for row in rows_of(path, check=_countless):
        if row["schema"] == str(EXPERIMENTS.number):
            found.setdefault(row["step"], []).append(row)
    kept = {}
    for step, rows in found.items():
        wanted = int(rows[-1]["of"] or 0)
        last = rows[-wanted:]
        if len(last) == wanted and all(row["outcome"] in SOUND for row in last):
            kept[step] = last
    return kept


def _countless(row: Row) -> str:
    """What is wrong with the number of a step's rows."""
    whole = re.fullmatch("[0-9]{0,9}", row["of"])
    return "" if whole else f"of is {shown(row['of'])}, not a number of rows"


def describe(
    run: Run, experiment: Experiment, steps: Sequence[Step], say: Callable[[str], None]
) -> float:
    """Say what an experiment would do; seconds that it would take."""
    seconds = 0.0
    for step in steps:
        rest = tuple(
            c for c in step.contestants if run.estimate.seconds(c, step.problem) <= run.slowest
        )
        few = replace(
            step, contestants=rest if experiment.figures != "counts" else step.contestants
        )
        seconds += run.estimate.of_step(few)
    names = ", ".join(dict.fromkeys(short(named(c)) for s in steps for c in s.contestants))
    say(f"{experiment.name}: {experiment.title}")
    say(f"  {len(steps)} products, contestants {names}; about {seconds:.0f} s")
    return seconds
