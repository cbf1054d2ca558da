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

from pymm.console import show_table
from pymm.kernels import Config, parse_slug
from pymm.kernels.source import kernel_digest, render
from pymm.measure.precompile import Precompiler, compilers_beside
from pymm.measure.workbench import Trial
from pymm.measure.worker import Request, Site, Worker, WorkerFailed, time_limit
from pymm.report.content import duration
from pymm.report.facts import OWN, standard_error
from pymm.report.kept import Figures, Kept, label, load

#: By how much a run may differ from another of the same program, besides the noise within each.
TOLERANCE = 0.05

#: Seconds for the rounds of one measurement: slow kernels have fewer rounds.
SECONDS = 2.0

#: Standard errors on either side of a ratio.
ERRORS = 2.0

EXAMPLES = """\
examples:
  pymm verify reports/nvidia-h200/report.json             eight measurements, drawn by --seed
  pymm verify report.json --count 40 --tolerance 0.03

exit status: 0 all of them agree, 1 one disagrees or fails, or none can be measured again, 2 bad
options or no report, 3 no such device, or another one
"""


@dataclass(frozen=True)
class Finding:
    """One measurement then and now. `ratio` is now / then, `error` its standard error as a part of
    it (0 if the report does not tell); `trial` is None if nothing came of it.
    """

    then: Figures
    trial: Trial | None
    tolerance: float

    @property
    def ratio(self) -> float:
        """Now / then."""
        return self.trial.seconds / self.then.seconds if self.right else math.nan

    @property
    def right(self) -> bool:
        """Whether there is a right result's time now."""
        return self.trial is not None and self.trial.outcome == "ok" and self.trial.seconds > 0

    @property
    def interval(self) -> tuple[float, float]:
        """Where the ratio lies with 95 % confidence, medians of normal samples assumed."""
        errors = (self.then.error, standard_error(self.trial.spread, len(self.trial.times)))
        known = math.sqrt(sum(error * error for error in errors if error == error))
        return self.ratio * (1 - ERRORS * known), self.ratio * (1 + ERRORS * known)

    @property
    def agrees(self) -> bool:
        """Whether the interval meets what the tolerance allows."""
        if not self.right:
            return False
        low, high = self.interval
        return low <= 1 + self.tolerance and high >= 1 / (1 + self.tolerance)


def main(argv: Sequence[str] | None = None) -> int:
    """The command. Returns the exit status that `--help` describes."""
    parser = _parser()
    options = parser.parse_args(argv)
    try:
        kept = load(options.report)
    except ValueError as failure:
        parser.error(str(failure))
    worker = Worker(Site(options.device))
    try:
        worker.start()
    except WorkerFailed as failure:
        print(f"pymm verify: {failure}", file=sys.stderr)
        return 3
    try:
        if worker.device.slug != kept.slug:
            print(
                f"pymm verify: {kept.name} is of {kept.slug}; this is {worker.device.slug}: name "
                "another device by --device, or measure there",
                file=sys.stderr,
            )
            return 3
        return verify(kept, options, worker.ask, worker)
    except WorkerFailed as failure:
        print(f"pymm verify: {failure}", file=sys.stderr)
        return 3
    finally:
        worker.stop()


def verify(kept: Kept, options: argparse.Namespace, ask: Callable, worker: Worker) -> int:
    """Measure the sample and show it. Returns the exit status."""
    started = time.monotonic()
    backend = worker.device.kernel_backend
    known, changed = eligible(kept, backend)
    if changed:
        print(f"{changed} measurements are of kernels whose text has changed since: left out")
    if not known:
        print("nothing of this report can be measured again by this pymm")
        return 1
    generator = random.Random(options.seed)
    chosen = generator.sample(known, min(options.count, len(known)))
    compile_all(chosen, worker)
    findings = []
    for figures, config in chosen:
        if findings and time.monotonic() > started + options.time_limit:
            print(f"{len(chosen) - len(findings)} left out after {options.time_limit:g} s")
            break
        request = Request(
            "compare",
            figures.problem,
            (config,),
            rounds=options.rounds,
            against_others=True,
            budget=SECONDS,
            quick=True,
        )
        limit = 60.0 + 3 * time_limit(figures.problem, worker.device, quick=True)
        reply = ask(request, limit)
        trial = reply.trials[0] if reply.outcome == "ok" and reply.trials else None
        findings.append(Finding(figures, trial, options.tolerance))
    show(findings)
    agreeing = sum(finding.agrees for finding in findings)
    verdict = "AGREE" if agreeing == len(findings) else "DISAGREE"
    print(f"{verdict}: {agreeing} of {len(findings)} within {options.tolerance:.0%} and the noise")
    return 0 if agreeing == len(findings) else 1


def compile_all(chosen: Sequence[tuple[Figures, Config]], worker: Worker) -> None:
    """Everything, side by side, before anything is measured. What fails fails again, and is told,
    where it is measured.
    """
    with Precompiler(worker.compiler, compilers_beside(worker.device)) as pool:
        wait([pool.submit(render(config, figures.problem)) for figures, config in chosen])


def eligible(kept: Kept, backend: str) -> tuple[list[tuple[Figures, Config]], int]:
    """What can be measured again, and how many not, because their kernel's text is another."""
    found, changed = [], 0
    for figures in kept.figures:
        if figures.who != OWN or not figures.config:
            continue
        try:
            config = parse_slug(figures.config, backend)
            same = figures.source in ("", kernel_digest(backend, config.kernel.file))
        except ValueError:
            same = False
        if same:
            found.append((figures, config))
        else:
            changed += 1
    return found, changed


def show(findings: Sequence[Finding]) -> None:
    """The table of a sample."""
    columns = ("problem", "contestant", "then", "now", "now / then", "interval", "verdict")
    show_table(columns, list(_lines(findings)), numbers=columns[2:5])


def _lines(findings: Sequence[Finding]) -> Iterator[tuple[str, ...]]:
    for finding in findings:
        then = finding.then
        named = (then.problem.slug, label(then), duration(then.seconds))
        if not finding.right:
            trial = finding.trial
            yield (*named, "", "", "", f"{trial.outcome}: {trial.detail}" if trial else "failed")
            continue
        low, high = finding.interval
        yield (
            *named,
            duration(finding.trial.seconds),
            f"{finding.ratio:.3f}",
            f"{low:.3f} to {high:.3f}",
            "agrees" if finding.agrees else f"{'slower' if finding.ratio > 1 else 'faster'} now",
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pymm verify",
        description="Measure a sample of a report again, and say whether it agrees.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("report", type=Path, metavar="REPORT", help="a report.json, or the folder of one")
    add("--device", help="0, cpu, cpu:1 (default: the first GPU, else the CPU)")
    add("--count", type=int, default=8, help="how many to measure again (default: 8)")
    add("--seed", type=int, default=0, help="which (default: 0)")
    add("--rounds", type=int, default=31, help="times that each is run (default: 31)")
    add(
        "--time-limit",
        type=float,
        default=math.inf,
        metavar="SECONDS",
        help="begin no further measurement after it (default: none)",
    )
    add(
        "--tolerance",
        type=float,
        default=TOLERANCE,
        metavar="PART",
        help=f"by how much two runs may differ besides the noise (default: {TOLERANCE})",
    )
    return parser
