"""Every class of products next to other libraries in one run: what `matmul` would choose, checked,
timed in turn with its opponents, one row of a CSV for each product. `python -m pymm.bench
--classes` is the command.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from pymm.console import duration
from pymm.core.device import Device
from pymm.core.errors import CompileFailed
from pymm.core.files import append, begun, commit
from pymm.core.inputs import rows_of
from pymm.core.problem import Problem
from pymm.kernels.source import kernel_digest, render
from pymm.measure.libraries import HALF, WHOLE
from pymm.measure.precompile import Precompiler, compilers_beside, config_directory
from pymm.measure.worker import UNKNOWN_PEAK, Reply, Request, Worker, begin, time_limit
from pymm.selection.records import Environment
from pymm.selection.select import Choice, select
from pymm.tune.trial_log import SEEN

SCHEMA = 3

#: Units: us (median, microseconds), spread (interquartile range / median), void (samples of all
#: contestants that were taken again because the host was late), gflops (10^9 operations
#: per second), peak (part of the device's peak rate), ratio (time of the faster of the two cuBLAS /
#: this time), triton_ratio (the same of Triton), error (largest deviation / its bound), rms (root
#: mean square of C - C64 beside that of C64) and that of the first opponent, clocks as telemetry
#: has them.
COLUMNS = (
    "schema",
    "time",
    "device",
    "driver",
    "compiler",
    "pymm",
    "commit",
    "class",
    "dtype",
    "layout",
    "m",
    "n",
    "k",
    "kernel",
    "config",
    "source",
    "reason",
    "outcome",
    "us",
    "spread",
    "rounds",
    "void",
    "gflops",
    "peak",
    "cublas_us",
    "cublaslt_us",
    "triton_us",
    "ratio",
    "triton_ratio",
    "error",
    "rms",
    "opponent_rms",
    "registers",
    "spills",
    "shared",
    *SEEN,
    "detail",
)

#: Rounds at most, and seconds for one product's rounds: the largest take 5.
ROUNDS, SECONDS_PER_PRODUCT = 31, 0.2

#: Products expected to take less than so many seconds come first and get more rounds: their medians
#: stray by 2 % from run to run, and behind long ones, which heat the device to its power limit,
#: they ran at 1455 to 1725 MHz instead of 1980 (one H200).
SHORT, SHORT_ROUNDS = 5e-5, 101

#: The libraries that count as the opponent.
RIVALS = ("cublas", "cublaslt", "numpy", WHOLE)


@dataclass(frozen=True)
class Entry:
    """One product of the run: its class, what `matmul` would choose for it, and why."""

    name: str
    problem: Problem
    choice: Choice

    @property
    def key(self) -> tuple[str, ...]:
        """What a row is found by again."""
        p, config = self.problem, self.choice.config
        digest = kernel_digest(config.backend, config.kernel.file)
        return (self.name, p.dtype, p.layout, str(p.m), str(p.n), str(p.k), config.slug, digest)


@dataclass
class ClassBenchmark:
    """One run. `deadline` is the monotonic time after which no product is begun. Everything is
    compiled before the first is measured, or `meanwhile`. `rounds` 0: as many as a product of its
    length gets.
    """

    worker: Worker
    directory: Path | None
    csv: Path | None = None
    deadline: float = math.inf
    triton: tuple[str, ...] = ()  # layouts in which it is measured, too
    rounds: int = 0
    meanwhile: bool = False
    commit: str = ""
    open_compiler: Callable[[Any, int], Any] = Precompiler
    console: Console = field(default_factory=Console)

    def __post_init__(self) -> None:
        self.device: Device = self.worker.device
        self.environment = Environment.of(self.device, self.worker.compiler.toolchain)
        self.left = 0

    def entries(self, problems: Sequence[tuple[str, Problem]]) -> list[Entry]:
        """What to run: each product that some kernel here computes."""
        found = []
        for name, problem in problems:
            try:
                choice = select(problem, self.device, self.directory, self.environment)
            except NotImplementedError:
                continue
            found.append(Entry(name, problem, choice))
        return found

    def describe(self, entries: Sequence[Entry]) -> None:
        """Say what would be run."""
        texts = {render(e.choice.config, e.problem).key for e in entries}
        for entry in entries:
            self._say(
                f"{entry.name}: {entry.problem.slug} {entry.choice.config.slug} "
                f"({entry.choice.reason})"
            )
        peaks = self.device.peak_flops
        run = sum(3 * e.problem.flops / peaks.get(e.problem.dtype, UNKNOWN_PEAK) for e in entries)
        self._say(
            f"{len(entries)} products, {len(texts)} texts to compile, about "
            f"{len(entries) * SECONDS_PER_PRODUCT + 6 * run:.0f} s of measuring"
        )

    def run(self, entries: Sequence[Entry]) -> int:
        """Measure what the CSV does not have yet. Returns the number of products that failed;
        `left` counts those that the time did not suffice for.
        """
        done = measured(self.csv) if self.csv else set()
        waiting = [entry for entry in entries if entry.key not in done]
        waiting.sort(key=lambda entry: not self._is_short(entry))
        failures = 0
        compilers = compilers_beside(self.device)
        with self.open_compiler(self.worker.compiler, compilers) as pool:
            builds = [pool.submit(render(e.choice.config, e.problem)) for e in waiting]
            if self.device.shares_host_cores or not self.meanwhile:
                wait(builds)  # compilers take cores from what is measured, and delay the host
            for place, (entry, build) in enumerate(zip(waiting, builds, strict=True)):
                if time.monotonic() > self.deadline:
                    self.left = len(waiting) - place
                    break
                row = self._row(entry, build)
                failures += row["outcome"] != "ok"
                if self.csv:
                    append(self.csv, COLUMNS, [row])
                self._show(entry, row)
            for build in builds:
                build.cancel()
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
            return self._named(entry) | {"outcome": "compile_failed", "detail": _line(str(failure))}
        request = Request(
            "compare",
            entry.problem,
            (entry.choice.config,),
            rounds=self.rounds or (SHORT_ROUNDS if self._is_short(entry) else ROUNDS),
            against_others=True,
            quick=True,
            budget=SECONDS_PER_PRODUCT,
            triton=entry.problem.layout in self.triton,
        )
        begin(self.worker, request, time_limit(entry.problem, self.device, quick=True))
        while (reply := self.worker.result(timeout=1.0)) is None:
            pass
        if reply.outcome != "ok":
            return self._named(entry) | {"outcome": reply.outcome, "detail": _line(reply.detail)}
        return self._named(entry) | self._measured(entry, reply)

    def _named(self, entry: Entry) -> dict[str, object]:
        problem, config = entry.problem, entry.choice.config
        return {
            "schema": SCHEMA,
            "time": datetime.now().astimezone().isoformat(timespec="seconds"),
            "device": self.device.slug,
            "driver": self.environment.driver,
            "compiler": self.environment.compiler,
            "pymm": self.environment.pymm,
            "commit": self.commit,
            "class": entry.name,
            "dtype": problem.dtype,
            "layout": problem.layout,
            **{axis: getattr(problem, axis) for axis in "mnk"},
            "kernel": f"{config.kernel.number:02d}_{config.kernel_name}",
            "config": config.slug,
            "source": kernel_digest(config.backend, config.kernel.file),
            "reason": entry.choice.reason,
        }

    def _measured(self, entry: Entry, reply: Reply) -> dict[str, object]:
        (trial,) = reply.trials
        seen = trial.telemetry
        row = {
            "outcome": trial.outcome,
            "registers": trial.resources.registers,
            "spills": trial.resources.spilled_bytes,
            "shared": trial.resources.shared_bytes,
            "detail": _line(trial.detail),
            **{name: seen.get(name, "") for name in SEEN},
        }
        disturbed = [name for name, times in reply.times.items() if not times]
        row["void"] = sum(reply.void.values())
        if trial.outcome == "ok" and disturbed:
            row |= {"outcome": "disturbed", "detail": f"the host was late for {disturbed[0]}"}
            return row
        others = {name: statistics.median(times) for name, times in reply.times.items()}
        row |= {f"{name}_us": _us(s) for name, s in others.items() if f"{name}_us" in COLUMNS}
        if not trial.seconds > 0:
            return row
        rivals = {name: others[name] for name in RIVALS if name in others}
        if WHOLE in others:
            half, whole = duration(others[HALF]), duration(others[WHOLE])
            row["detail"] = f"cublas?syrk {half}, mirrored {whole}"
        rival = min(rivals, key=rivals.__getitem__, default="")
        rate, peak = entry.problem.flops / trial.seconds, self.device.peak_flops
        own = peak.get(entry.problem.dtype)
        row |= {
            "us": _us(trial.seconds),
            "spread": f"{trial.spread:.4g}",
            "rounds": len(trial.times),
            "gflops": f"{rate / 1e9:.6g}",
            "peak": f"{rate / own:.4g}" if own else "",
            "ratio": f"{rivals[rival] / trial.seconds:.4g}" if rival else "",
            "error": f"{trial.error:.3g}",
            "rms": f"{reply.deviations.get(trial.config.slug, math.nan):.3g}",
            "opponent_rms": f"{reply.deviations[rival]:.3g}" if rival else "",
        }
        if "triton" in others:
            row["triton_ratio"] = f"{others['triton'] / trial.seconds:.4g}"
        return row

    def _show(self, entry: Entry, row: dict[str, object]) -> None:
        if row.get("us"):
            ratio = f", {row['ratio']} of the opponent" if row.get("ratio") else ""
            words = f"{duration(float(row['us']) / 1e6)}, {float(row['gflops']):.0f} GFLOP/s{ratio}"
        else:
            words = f"{row['outcome']}: {row['detail']}"
        self._say(f"{entry.name}: {entry.problem.slug} {words}  {row['config']}")

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)


def run_classes(
    worker: Worker,
    products: Sequence[tuple[str, Problem]],
    options: argparse.Namespace,
    console: Console,
    started: float,
) -> int:
    """The command with the options of `pymm.bench`. Returns its exit status."""
    contest = ClassBenchmark(
        worker,
        options.records or config_directory(),
        options.csv,
        started + options.time_limit,
        options.triton,
        options.rounds or 0,
        options.compile_meanwhile,
        options.commit or commit(),
        console=console,
    )
    entries = contest.entries(products)
    if options.dry_run:
        contest.describe(entries)
        return 0
    failures = contest.run(entries)
    if contest.left:
        console.print(f"{contest.left} products left out for want of time; start it again")
    return 1 if failures or contest.left else 0


def measured(path: Path) -> set[tuple[str, ...]]:
    """The keys of the products that a CSV has a sound row of."""
    if not begun(path, COLUMNS):
        return set()
    names = ("class", "dtype", "layout", "m", "n", "k", "config", "source")
    return {tuple(row[name] for name in names) for row in rows_of(path) if row["outcome"] == "ok"}


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.6g}"


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
