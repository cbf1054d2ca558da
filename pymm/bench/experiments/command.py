"""`python -m pymm.bench --suite NAMES`: which steps that is on a device, then the run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pymm.bench.classes import run_classes
from pymm.bench.experiments.catalog import EXPERIMENTS, GOALS, suites_named
from pymm.bench.experiments.declaration import Experiment
from pymm.bench.experiments.lines import RowWriter, Verdict
from pymm.bench.experiments.run import Run, describe
from pymm.bench.experiments.steps import Step, steps_of
from pymm.bench.runner import Runner
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.core.shapes import LAYOUTS, SYMMETRIC, class_problems, parse_shapes
from pymm.kernels import Config
from pymm.measure.precompile import config_directory
from pymm.measure.results import CLASSES
from pymm.measure.results import EXPERIMENTS as SCHEMA
from pymm.measure.worker import Site, Worker, WorkerFailed
from pymm.selection.select import select

#: File of the goals, in the folder of the other suites' file: its columns are those of the classes.
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
        for name, usual in (("kernels", None), ("configs", None), ("guarded", "auto")):
            if getattr(options, name) != usual:
                raise ValueError(f"--{name} and --suite: a suite names its kernels")
        dtypes = tuple(options.dtypes.split(",")) if options.dtypes else None
        if options.dtypes == "all":
            dtypes = tuple(DTYPES)
        for name in dtypes or ():
            if name not in DTYPES:
                raise ValueError(f"{name!r} is none of {', '.join(DTYPES)}")
        shapes = parse_shapes(options.shapes) if options.shapes else None
        if options.csv:
            SCHEMA.begun(options.csv)
        return cls(suites_named(options.suite), shapes, dtypes)


def execute(runner: Runner, order: Order, options: argparse.Namespace) -> int:
    """The command with the options of `pymm.bench`. Returns its exit status. Raises what `store`
    raises for a bad file.
    """
    return _Command(runner, order, options).execute()


class _Command:
    def __init__(self, runner: Runner, order: Order, options: argparse.Namespace) -> None:
        self.runner, self.order, self.options = runner, order, options
        self.verdict = Verdict()
        self.directory = options.records or config_directory()

    def execute(self) -> int:
        """All suites in turn, and the verdict."""
        seconds, goals = 0.0, 0
        if not self.options.csv and not self.options.dry_run:
            self.runner.say("without --csv nothing is kept; a run that is interrupted begins anew")
        for name in self.order.suites:
            if name == GOALS:
                goals = self._goals()
            elif self.options.dry_run:
                seconds += self._describe(EXPERIMENTS[name])
            else:
                self._run(EXPERIMENTS[name])
        if self.options.dry_run:
            count = len(self.order.suites)
            self.runner.say(f"{count} suites, about {seconds:.0f} s without compiling")
            return 0
        for line in self.verdict.lines():
            self.runner.say(line)
        return max(self.verdict.status, goals)

    def _run(self, experiment: Experiment) -> None:
        self.runner.say(f"{experiment.name}: {experiment.title}")
        with self._run_on(experiment) as run:
            if run is None:
                return
            steps, missing = self._steps(experiment, run)
            run.absences(experiment.name, missing)
            run.run(steps)
            if experiment.figures == "resources" and not self.runner.stop():
                run.profile(steps)

    def _describe(self, experiment: Experiment) -> float:
        with self._run_on(experiment) as run:
            if run is None:
                return 0.0
            steps, missing = self._steps(experiment, run)
            for sentence in missing:
                self.runner.say(f"  left out: {sentence}")
            return describe(run, experiment, steps, self.runner.say) if steps else 0.0

    @contextmanager
    def _run_on(self, experiment: Experiment) -> Iterator[Run | None]:
        """Where an experiment runs: on the device, or what is counted in the simulator. None, and a
        sentence about it, where that cannot be had.
        """
        if experiment.figures != "counts" or not self.runner.device.times_are_real:
            yield self._new_run(self.runner)
            return
        simulated = Worker(Site("simulator"))
        try:
            simulated.start()
        except WorkerFailed as failure:
            run = self._new_run(self.runner)
            if not self.options.dry_run:
                run.absences(experiment.name, [f"{experiment.name}: no simulator: {failure}"])
            yield None
            return
        try:
            yield self._new_run(replace(self.runner, worker=simulated))
        finally:
            simulated.stop()

    def _new_run(self, runner: Runner) -> Run:
        writer = RowWriter(runner.device, runner.environment, runner.commit)
        options = self.options
        return Run(runner, writer, options.slowest, options.sequential_to, self.verdict)

    def _steps(self, experiment: Experiment, run: Run) -> tuple[list[Step], list[str]]:
        device, environment = run.device, run.runner.environment

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
            self.runner.say(
                f"{GOALS}: {len(products)} products of all classes; --classes ... --dry-run "
                "says more"
            )
            return 0
        where = options.csv.with_name(GOALS_FILE) if options.csv else None
        own = replace(self.runner, csv=where, schema=CLASSES, meanwhile=options.compile_meanwhile)
        return run_classes(own, products, options)
