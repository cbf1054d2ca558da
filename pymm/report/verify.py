"""The command `pymm verify REPORT.json`: measure a sample of a report again on this machine."""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from pathlib import Path

from pymm.console import duration, show_table
from pymm.kernels import Config, parse_slug
from pymm.kernels.source import kernel_digest, render
from pymm.measure.precompile import Precompiler, compilers_beside
from pymm.measure.workbench import Trial
from pymm.measure.worker import Request, Site, Worker, WorkerFailed, time_limit
from pymm.report.export import SavedReport, SavedTiming, label, read_report
from pymm.report.stats import OWN, standard_error

#: By how much two runs of the same program may differ, besides the noise within each run.
TOLERANCE = 0.05

#: Seconds for the rounds of one measurement; slow kernels get fewer rounds.
SECONDS = 2.0

#: Standard errors on either side of a ratio, in its interval.
ERRORS = 2.0

EXAMPLES = """\
examples:
  pymm verify reports/nvidia-h200/report.json             eight measurements, chosen by --seed
  pymm verify report.json --count 40 --tolerance 0.03

exit status: 0 all agree, 1 one disagrees or fails, or none can be measured again, 2 bad options or
not a report, 3 no such device, or not the device of the report
"""


@dataclass(frozen=True)
class Remeasurement:
    """One measurement then and now. `trial` is None if it could not be measured."""

    then: SavedTiming
    trial: Trial | None
    tolerance: float

    @property
    def ratio(self) -> float:
        """The time now / the time then."""
        return self.trial.seconds / self.then.seconds if self.valid else math.nan

    @property
    def valid(self) -> bool:
        """Whether the measurement now is valid."""
        return self.trial is not None and self.trial.outcome == "ok" and self.trial.seconds > 0

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio, for medians of normal samples."""
        errors = (self.then.error, standard_error(self.trial.spread, len(self.trial.times)))
        known = math.sqrt(sum(error * error for error in errors if error == error))
        return self.ratio * (1 - ERRORS * known), self.ratio * (1 + ERRORS * known)

    @property
    def agrees(self) -> bool:
        """Whether the interval overlaps what the tolerance allows."""
        if not self.valid:
            return False
        low, high = self.interval
        return low <= 1 + self.tolerance and high >= 1 / (1 + self.tolerance)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        report = read_report(options.report)
    except ValueError as failure:
        parser.error(str(failure))
    worker = Worker(Site(options.device))
    try:
        worker.start()
    except WorkerFailed as failure:
        print(f"pymm verify: {failure}", file=sys.stderr)
        return 3
    try:
        if worker.device.slug != report.slug:
            print(
                f"pymm verify: {report.name} is of {report.slug}; this is {worker.device.slug}: "
                "name another device by --device, or measure there",
                file=sys.stderr,
            )
            return 3
        return verify(report, options, worker.ask, worker)
    except WorkerFailed as failure:
        print(f"pymm verify: {failure}", file=sys.stderr)
        return 3
    finally:
        worker.stop()


def verify(report: SavedReport, options: argparse.Namespace, ask: Callable, worker: Worker) -> int:
    """Measure the sample and show it. Returns the exit status."""
    started = time.monotonic()
    backend = worker.device.kernel_backend
    known, changed = eligible(report, backend)
    if changed:
        print(f"{changed} measurements left out: the source of their kernel has changed since")
    if not known:
        print("no measurement of this report can be repeated with this pymm")
        return 1
    generator = random.Random(options.seed)
    chosen = generator.sample(known, min(options.count, len(known)))
    compile_all(chosen, worker)
    measured = []
    for timing, config in chosen:
        if measured and time.monotonic() > started + options.time_limit:
            print(f"{len(chosen) - len(measured)} left out after {options.time_limit:g} s")
            break
        request = Request(
            "compare",
            timing.problem,
            (config,),
            rounds=options.rounds,
            against_others=True,
            budget=SECONDS,
            quick=True,
        )
        limit = 60.0 + 3 * time_limit(timing.problem, worker.device, quick=True)
        reply = ask(request, limit)
        trial = reply.trials[0] if reply.outcome == "ok" and reply.trials else None
        measured.append(Remeasurement(timing, trial, options.tolerance))
    show(measured)
    agreeing = sum(again.agrees for again in measured)
    verdict = "AGREE" if agreeing == len(measured) else "DISAGREE"
    print(f"{verdict}: {agreeing} of {len(measured)} within {options.tolerance:.0%} and the noise")
    return 0 if agreeing == len(measured) else 1


def compile_all(chosen: Sequence[tuple[SavedTiming, Config]], worker: Worker) -> None:
    """Compile all kernels in parallel before anything is measured. A compilation that fails is
    reported when its kernel is measured.
    """
    with Precompiler(worker.compiler, compilers_beside(worker.device)) as pool:
        wait([pool.submit(render(config, timing.problem)) for timing, config in chosen])


def eligible(report: SavedReport, backend: str) -> tuple[list[tuple[SavedTiming, Config]], int]:
    """What can be measured again, and how many cannot because their kernel's source has changed."""
    found, changed = [], 0
    for timing in report.timings:
        if timing.library != OWN or not timing.config:
            continue
        try:
            config = parse_slug(timing.config, backend, forced=True)
            same = timing.source in ("", kernel_digest(backend, config.kernel.file))
        except ValueError:
            same = False
        if same:
            found.append((timing, config))
        else:
            changed += 1
    return found, changed


def show(measured: Sequence[Remeasurement]) -> None:
    """Print the table of a sample."""
    columns = ("problem", "implementation", "then", "now", "now / then", "interval", "verdict")
    show_table(columns, list(_lines(measured)), numbers=columns[2:5])


def _lines(measured: Sequence[Remeasurement]) -> Iterator[tuple[str, ...]]:
    for again in measured:
        then = again.then
        named = (then.problem.slug, label(then), duration(then.seconds))
        if not again.valid:
            trial = again.trial
            yield (*named, "", "", "", f"{trial.outcome}: {trial.detail}" if trial else "failed")
            continue
        low, high = again.interval
        yield (
            *named,
            duration(again.trial.seconds),
            f"{again.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
            "agrees" if again.agrees else f"{'slower' if again.ratio > 1 else 'faster'} now",
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pymm verify",
        description="Measure a sample of a report again and say whether it agrees.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("report", type=Path, metavar="REPORT", help="a report.json, or its folder")
    add("--device", help="0, cpu, cpu:1 (default: the first GPU, else the CPU)")
    add("--count", type=int, default=8, help="how many measurements (default: 8)")
    add("--seed", type=int, default=0, help="seed of the random choice (default: 0)")
    add("--rounds", type=int, default=31, help="runs of each measurement (default: 31)")
    add(
        "--time-limit",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="start no measurement after so long (default: no limit)",
    )
    add(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="PART",
        help=f"relative difference allowed besides the noise (default: {TOLERANCE})",
    )
    return parser
