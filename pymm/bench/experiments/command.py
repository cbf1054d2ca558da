"""`python -m pymm.bench --suite NAMES`: which steps that is on a device, then the run."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console

from pymm.bench.classes import run_classes
from pymm.bench.experiments.catalog import EXPERIMENTS, GOALS, suites_named
from pymm.bench.experiments.declaration import COLUMNS, Experiment
from pymm.bench.experiments.lines import RowWriter, Verdict
from pymm.bench.experiments.run import Run, describe
from pymm.bench.experiments.steps import Step, steps_of
from pymm.console import Stop
from pymm.core.files import begun, commit
from pymm.core.problem import DTYPES, Problem
from pymm.core.shapes import LAYOUTS, SYMMETRIC, class_problems, parse_shapes
from pymm.kernels import Config
from pymm.measure.precompile import config_directory
from pymm.measure.worker import Site, Worker, WorkerFailed
from pymm.selection.records import Environment
from pymm.selection.select import select

#: Exit status after an interrupt, as shells have it.
INTERRUPTED = 130

#: File of the goals, beside that of the other suites: its columns are those of the classes.
GOALS_FILE = "classes.csv"


@dataclass
class Order:
    """What was asked for."""

    suites: list[str]
    shapes: list[tuple[int, int, int]] | None
    dtypes: tuple[str, ...] | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> Order:
        """`ValueError` for names that there are not, and for options that suites do not take."""
        for name in ("classes", "transposes"):
            if getattr(options, name):
                raise ValueError(f"--{name} and --suite: the suites have their own")
        if options.thin < 1:
            raise ValueError(f"--thin {options.thin}: every first product is every one of them")
        if options.kernels != "all":
            raise ValueError("--kernels and --suite: a suite names its kernels")
        dtypes = tuple(options.dtypes.split(",")) if options.dtypes else None
        if options.dtypes == "all":
            dtypes = tuple(DTYPES)
        for name in dtypes or ():
            if name not in DTYPES:
                raise ValueError(f"{name!r} is none of {', '.join(DTYPES)}")
        shapes = parse_shapes(options.shapes) if options.shapes else None
        if options.csv:
            begun(options.csv, COLUMNS)
        return cls(suites_named(options.suite), shapes, dtypes)


def execute(options: argparse.Namespace, order: Order, console: Console) -> int:
    """The command with the options of `pymm.bench`. Returns its exit status. Raises `WorkerFailed`
    without a device, and what `store` raises for a bad file.
    """
    worker = Worker(Site(options.device))
    worker.start()
    try:
        return _Command(worker, options, order, console).execute()
    except KeyboardInterrupt:  # the second: at once
        console.print("interrupted; the same command goes on")
        return INTERRUPTED
    finally:
        worker.stop()


class _Command:
    def __init__(
        self, worker: Worker, options: argparse.Namespace, order: Order, console: Console
    ) -> None:
        self.worker, self.options, self.order, self.console = worker, options, order, console
        self.started = time.monotonic()
        self.verdict = Verdict()
        self.directory = options.records or config_directory()

    def execute(self) -> int:
        """All suites in turn, and the verdict."""
        stop, seconds, goals = Stop(), 0.0, 0
        if not self.options.csv and not self.options.dry_run:
            self.say("without --csv nothing is kept, and a run that is broken off begins anew")
        with stop.listening():
            for name in self.order.suites:
                if name == GOALS:
                    goals = self._goals()
                elif self.options.dry_run:
                    seconds += self._describe(EXPERIMENTS[name])
                else:
                    self._run(EXPERIMENTS[name], stop)
        if self.options.dry_run:
            self.say(f"{len(self.order.suites)} suites, about {seconds:.0f} s without compiling")
            return 0
        for line in self.verdict.lines():
            self.say(line)
        return INTERRUPTED if stop() else max(self.verdict.status, goals)

    def _run(self, experiment: Experiment, stop: Stop) -> None:
        self.say(f"{experiment.name}: {experiment.title}")
        with self._place(experiment) as run:
            if run is None:
                return
            steps, missing = self._steps(experiment, run)
            run.absences(experiment.name, missing)
            run.run(steps, stop)
            if experiment.figures == "resources" and not stop():
                run.profile(steps)

    def _describe(self, experiment: Experiment) -> float:
        with self._place(experiment) as run:
            if run is None:
                return 0.0
            steps, missing = self._steps(experiment, run)
            for sentence in missing:
                self.say(f"  left out: {sentence}")
            return describe(run, experiment, steps, self.say) if steps else 0.0

    @contextmanager
    def _place(self, experiment: Experiment) -> Iterator[Run | None]:
        """Where an experiment runs: on the device, or what is counted in the simulator. None, and a
        sentence about it, where that cannot be had.
        """
        if experiment.figures != "counts" or not self.worker.device.times_are_real:
            yield self._new_run(self.worker)
            return
        simulated = Worker(Site("simulator"))
        try:
            simulated.start()
        except WorkerFailed as failure:
            run = self._new_run(self.worker)
            if not self.options.dry_run:
                run.absences(experiment.name, [f"{experiment.name}: no simulator: {failure}"])
            yield None
            return
        try:
            yield self._new_run(simulated)
        finally:
            simulated.stop()

    def _new_run(self, worker: Worker) -> Run:
        options, device = self.options, worker.device
        environment = Environment.of(device, worker.compiler.toolchain)
        scribe = RowWriter(device, environment, options.commit or commit())
        return Run(
            worker,
            scribe,
            options.csv,
            options.slowest,
            self.started + options.time_limit,
            self.console,
            self.verdict,
        )

    def _steps(self, experiment: Experiment, run: Run) -> tuple[list[Step], list[str]]:
        device, environment = run.device, run.scribe.environment

        def choose(problem: Problem) -> Config:
            return select(problem, device, self.directory, environment).config

        return steps_of(
            experiment,
            device,
            choose,
            self.order.shapes,
            self._dtypes(experiment),
            self.options.sequential_to,
            self.options.thin,
        )

    def _dtypes(self, experiment: Experiment) -> tuple[str, ...] | None:
        if experiment.figures == "counts":  # numbers that count are f32 and f64
            return tuple(d for d in self.order.dtypes or () if d in ("f32", "f64")) or None
        return self.order.dtypes

    def _goals(self) -> int:
        """All classes, those of symmetric products, too."""
        options, dtypes = self.options, self.order.dtypes or tuple(DTYPES)
        products = class_problems(["all", *SYMMETRIC], dtypes, LAYOUTS)
        if options.dry_run:
            self.say(
                f"{GOALS}: {len(products)} products of all classes; --classes ... --dry-run "
                "says more"
            )
            return 0
        where = options.csv.with_name(GOALS_FILE) if options.csv else None
        own = argparse.Namespace(**{**vars(options), "csv": where})
        return run_classes(self.worker, products, own, self.console, self.started)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)
