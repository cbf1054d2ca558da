"""Every class of products compared with other libraries in one run: what `matmul` would choose is
checked and timed in turn with the baselines, one row of a CSV for each product. The command is
`python -m pymm.bench --classes`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pymm.bench.runner import Runner, origin, product
from pymm.console import duration
from pymm.core.errors import CompileFailed
from pymm.core.inputs import rows_of
from pymm.core.problem import Problem
from pymm.core.shapes import is_population
from pymm.kernels import kernels_for
from pymm.kernels.source import kernel_digest, render
from pymm.measure.libraries import BASELINES, COMPARED, HALF, MIRRORED, ON_REQUEST
from pymm.measure.precompile import config_directory
from pymm.measure.results import CLASSES, SEEN, one_line
from pymm.measure.worker import UNKNOWN_PEAK, Reply, Request, time_limit
from pymm.selection.plain import computed
from pymm.selection.select import Choice, select

#: Rounds at most, and seconds for one product's rounds: the largest take 5.
ROUNDS, SECONDS_PER_PRODUCT = 31, 0.2

#: Products expected to take less than so many seconds come first and get more rounds: their medians
#: stray by 2 % from run to run, and behind long ones, which heat the device to its power limit,
#: they ran at 1455 to 1725 MHz instead of 1980 (one H200).
SHORT, SHORT_ROUNDS = 5e-5, 101


@dataclass(frozen=True)
class Entry:
    """One product of the run: its class, the problem that `matmul` would compute for it (of tf32x3,
    say, in float32 where that should take less time), what would be chosen, and why.
    """

    name: str
    asked: Problem
    problem: Problem
    choice: Choice
    reason: str

    @property
    def key(self) -> tuple[str, ...]:
        """What a row is found by again."""
        p, config = self.asked, self.choice.config
        digest = kernel_digest(config.backend, config.kernel.file)
        extents = map(str, (p.m, p.n, p.k, p.batch))
        return (self.name, p.dtype, p.layout, *extents, config.slug, digest)


@dataclass
class ClassBenchmark:
    """One run over classes, with the configurations in `directory`, over populations with those in
    `for_populations` (None: those shipped with pymm). `requested` names baselines on request and
    the layouts in which each is measured. `rounds` 0: as many as a product of its length gets.
    """

    runner: Runner
    directory: Path | None
    requested: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rounds: int = 0
    for_populations: Path | None = None

    def __post_init__(self) -> None:
        self.device, self.environment = self.runner.device, self.runner.environment

    def entries(self, problems: Sequence[tuple[str, Problem]]) -> list[Entry]:
        """What to run: each product in whose own type some kernel here computes. Elsewhere `matmul`
        computes it in the plain type, in which it is measured anyway.
        """
        found = []
        for name, problem in problems:
            if not kernels_for(problem, self.device):
                continue
            directory = self.for_populations if is_population(name) else self.directory
            chosen = partial(
                select, device=self.device, directory=directory, environment=self.environment
            )
            own, choice, why = computed(problem, self.device, chosen)
            reason = choice.reason + f"; {why}" * bool(why)
            found.append(Entry(name, problem, own, choice, reason))
        return found

    def describe(self, entries: Sequence[Entry]) -> None:
        """Say what would be run."""
        sources = {render(e.choice.config, e.problem).key for e in entries}
        for entry in entries:
            self.runner.say(
                f"{entry.name}: {entry.asked.slug} {entry.choice.config.slug} ({entry.reason})"
            )
        peaks = self.device.peak_flops
        run = sum(3 * e.problem.flops / peaks.get(e.problem.dtype, UNKNOWN_PEAK) for e in entries)
        self.runner.say(
            f"{len(entries)} products, {len(sources)} sources to compile, about "
            f"{len(entries) * SECONDS_PER_PRODUCT + 6 * run:.0f} s of measuring"
        )

    def run(self, entries: Sequence[Entry]) -> int:
        """Measure what the CSV does not have yet. Returns the number of products that failed."""
        runner = self.runner
        done = measured(runner.csv) if runner.csv else set()
        waiting = [entry for entry in entries if entry.key not in done]
        waiting.sort(key=lambda entry: not self._is_short(entry))
        failures = 0
        with runner.compiling([render(e.choice.config, e.problem)] for e in waiting) as builds:
            tasks = list(zip(waiting, builds, strict=True))
            for entry, (build,) in runner.each(tasks, lambda task: task[0].asked.slug):
                row = self._row(entry, build)
                failures += row["outcome"] != "ok"
                runner.keep([row])
                self._show(entry, row)
        return failures

    def _is_short(self, entry: Entry) -> bool:
        """True if neither arithmetic nor memory takes the device long."""
        problem, device = entry.problem, self.device
        least = problem.flops / device.peak_flops.get(problem.dtype, UNKNOWN_PEAK)
        moving = problem.bytes / device.bandwidth if device.bandwidth else 0.0
        return max(least, moving) < SHORT

    def _row(self, entry: Entry, build: Any) -> dict[str, object]:
        try:
            build.result()
        except CompileFailed as failure:
            return self._named(entry) | {
                "outcome": "compile_failed",
                "detail": one_line(str(failure)),
            }
        request = Request(
            "compare",
            entry.problem,
            (entry.choice.config,),
            rounds=self.rounds or (SHORT_ROUNDS if self._is_short(entry) else ROUNDS),
            against_others=True,
            quick=True,
            budget=SECONDS_PER_PRODUCT,
            requested=tuple(n for n, at in self.requested.items() if entry.problem.layout in at),
        )
        limit = time_limit(entry.problem, self.device, quick=True)
        reply = self.runner.ask(request, limit)
        if reply.outcome != "ok":
            return self._named(entry) | {"outcome": reply.outcome, "detail": one_line(reply.detail)}
        return self._named(entry) | self._measured(entry, reply)

    def _named(self, entry: Entry) -> dict[str, object]:
        config = entry.choice.config
        return {
            **origin(self.device, self.environment, self.runner.commit),
            "class": entry.name,
            **product(entry.asked),
            "batch": entry.asked.batch,
            "kernel": config.kernel.label,
            "config": config.slug,
            "source": kernel_digest(config.backend, config.kernel.file),
            "reason": entry.reason,
        }

    def _measured(self, entry: Entry, reply: Reply) -> dict[str, object]:
        (trial,) = reply.trials
        seen = trial.telemetry
        row = {
            "outcome": trial.outcome,
            "registers": trial.resources.registers,
            "spills": trial.resources.spilled_bytes,
            "shared": trial.resources.shared_bytes,
            "detail": one_line(trial.detail),
            **{name: seen.get(name, "") for name in SEEN},
        }
        disturbed = [name for name, times in reply.times.items() if not times]
        row["void"] = sum(reply.void.values())
        if trial.outcome == "ok" and disturbed:
            row |= {
                "outcome": "disturbed",
                "detail": f"host launch delay in the samples of {disturbed[0]}",
            }
            return row
        others = {name: statistics.median(times) for name, times in reply.times.items()}
        row |= {f"{name}_us": _us(s) for name, s in others.items() if BASELINES[name].column}
        if not trial.seconds > 0:
            return row
        compared = {name: others[name] for name in COMPARED if name in others}
        if MIRRORED in others:
            half, whole = duration(others[HALF]), duration(others[MIRRORED])
            row["detail"] = f"cublas?syrk {half}, mirrored {whole}"
        fastest = min(compared, key=compared.__getitem__, default="")
        rate, peak = entry.problem.flops / trial.seconds, self.device.peak_flops
        own = peak.get(entry.asked.dtype)
        row |= {
            "us": _us(trial.seconds),
            "spread": f"{trial.spread:.4g}",
            "rounds": len(trial.times),
            "gflops": f"{rate / 1e9:.6g}",
            "peak": f"{rate / own:.4g}" if own else "",
            "ratio": f"{compared[fastest] / trial.seconds:.4g}" if fastest else "",
            "error": f"{trial.error:.3g}",
            "rms": f"{reply.deviations.get(trial.config.slug, math.nan):.3g}",
            "opponent_rms": f"{reply.deviations[fastest]:.3g}" if fastest else "",
        }
        for name in ON_REQUEST:
            if name in others:
                row[f"{name}_ratio"] = f"{others[name] / trial.seconds:.4g}"
        return row

    def _show(self, entry: Entry, row: dict[str, object]) -> None:
        if row.get("us"):
            ratio = f", {row['ratio']} of the baseline" if row.get("ratio") else ""
            words = f"{duration(float(row['us']) / 1e6)}, {float(row['gflops']):.0f} GFLOP/s{ratio}"
        else:
            words = f"{row['outcome']}: {row['detail']}"
        self.runner.say(f"{entry.name}: {entry.asked.slug} {words}  {row['config']}")


def run_classes(
    runner: Runner, products: Sequence[tuple[str, Problem]], options: argparse.Namespace
) -> int:
    """The command with the options of `pymm.bench`. Returns its exit status."""
    benchmark = ClassBenchmark(
        runner,
        options.records or config_directory(),
        {name: getattr(options, name) for name in ON_REQUEST},
        options.rounds or 0,
        options.records,
    )
    entries = benchmark.entries(products)
    if options.dry_run:
        benchmark.describe(entries)
        return 0
    failures = benchmark.run(entries)
    if runner.left:
        runner.say(f"{runner.left} products left out for want of time; start it again")
    return 1 if failures or runner.left else 0


def measured(path: Path) -> set[tuple[str, ...]]:
    """The keys of the products that a CSV has a sound row of."""
    if not CLASSES.begun(path):
        return set()
    names = ("class", "dtype", "layout", "m", "n", "k", "batch", "config", "source")
    return {tuple(row[name] for name in names) for row in rows_of(path) if row["outcome"] == "ok"}


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.6g}"
