"""Every CSV file that pymm writes: its columns, its schema number and its units."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pymm.core.files import append, begun
from pymm.core.inputs import read_table, rows_of
from pymm.measure.libraries import BASELINES, COMPARED, ON_REQUEST

#: Most characters of a `detail`; a compiler's message can be pages.
MAX_DETAIL = 500

#: What `Backend.telemetry` has seen: clocks in MHz, power in watts, degrees Celsius, why the device
#: lowered its clock.
SEEN = ("sm_mhz", "memory_mhz", "power_w", "temperature_c", "throttle")

_ORIGIN = ("driver", "compiler", "pymm", "commit")
_PRODUCT = ("dtype", "layout", "m", "n", "k")
_RESOURCES = ("registers", "spills", "shared")
_COLUMN = tuple(f"{name}_us" for name, baseline in BASELINES.items() if baseline.column)
_COMPARED = tuple(f"{name}_us" for name in COMPARED if BASELINES[name].column)


@dataclass(frozen=True)
class Schema:
    """One kind of file. Its first column says the number, which changes with the columns or with
    what one of them means. Files of earlier numbers may lack the columns `added`.
    """

    number: int
    columns: tuple[str, ...]
    added: frozenset[str] = frozenset()

    @property
    def header(self) -> str:
        """The first line of a file."""
        return ",".join(self.columns)

    def rows(
        self,
        path: Path,
        numbers: Sequence[str] = (),
        check: Callable[[dict[str, str]], str] = lambda row: "",
    ) -> list[dict[str, str]]:
        """The rows of a file as `core.inputs.rows_of` reads them; what has been added since it was
        written is empty.
        """
        lacking = self.added.difference(read_table(path).columns)
        needed = [name for name in self.columns if name not in lacking]
        known = [name for name in numbers if name not in lacking]
        rows = rows_of(path, needed, known, lambda row: check(self._whole(row)))
        return [self._whole(row) for row in rows]

    def _whole(self, row: dict[str, str]) -> dict[str, str]:
        return dict.fromkeys(self.columns, "") | row

    def begun(self, path: Path) -> bool:
        """Whether the file has a header. `BadInput` if that is another one, or it cannot be
        read.
        """
        return begun(path, self.columns)

    def append(self, path: Path, rows: Sequence[Mapping[str, object]]) -> None:
        """Append rows, after the header if the file is new. `BadInput`, and nothing written, if the
        file has other columns.
        """
        append(path, self.columns, [{"schema": self.number, **row} for row in rows])

    def line(self, row: Mapping[str, object]) -> str:
        """One row as a line of the file; what it lacks is left empty."""
        line = io.StringIO()
        writer = csv.DictWriter(line, self.columns, lineterminator="\n")
        writer.writerow({"schema": self.number, **row})
        return line.getvalue()


# Units that the files share: seconds (median), us (the same in microseconds), spread (interquartile
# range / median), void (samples taken again because of host launch delay), gflops (10^9 operations
# per second), peak (part of the device's peak rate), error (largest deviation / its bound), spills
# (bytes of a thread), shared (bytes of a block), and `SEEN`.

#: Trials of `python -m pymm.tune`. role: search, final, or baseline: a library (`config` is its
#: name) timed in turn with the finals. origin: where the search had the configuration from: queue
#: (the default, neighbours of what is stored, the cost model), warm (stored for another problem or
#: device), model or neighbour (the sampler, in the whole space or near the best), random; empty in
#: a final. measured_on: which of the machine's devices (`cuda:1`);
#: beta: 1 where the product was added to C. joules: energy of one run, where it was measured.
TRIALS = Schema(
    6,
    (
        *("schema", "time", "device", "problem", "kernel", "config", "role", "origin", "outcome"),
        *("driver", "compiler", "source"),
        *("measured_on", "beta"),
        *("seconds", "spread", "repeats", "void", "gflops", "error", "joules"),
        *_RESOURCES,
        *SEEN,
        *("power_limit_w", "detail"),
    ),
    added=frozenset({"origin", "joules", "power_limit_w"}),
)

#: `python -m pymm.tune replay` and `benchmarks/replay.py`: searches on recorded times. depth:
#: configurations compiled ahead, each takes as long as `compiling` measurements; noise, warm: 1
#: where times were single runs, where a search began with the best of other devices. median and p90
#: of the evaluations until the `goal` is reached, a part of the optimum (empty: not within `most`),
#: arrived: share of the `seeds` searches that reach it.
REPLAYS = Schema(
    1,
    (
        *("schema", "device", "space", "sampler", "depth", "compiling", "noise", "warm", "most"),
        *("seeds", "goal", "median", "p90", "arrived"),
    ),
)

#: `python -m pymm.bench --shapes`: one row for each kernel, variant and baseline. ratio: time of
#: the fastest baseline in the same run / this time.
KERNELS = Schema(
    3,
    (
        *("schema", "time", "device", *_ORIGIN, "op", *_PRODUCT),
        *("name", "variant", "config", "source", "outcome", "seconds", "spread", "rounds", "void"),
        *("gflops", "peak", "ratio", "error"),
        *_RESOURCES,
        *SEEN,
        "detail",
    ),
)

#: `python -m pymm.bench --classes`: one row for each product. batch: matrices of a batch; ratio:
#: time of the fastest baseline / this time; void: of all that were timed; rms: root mean square of
#: C - C64 relative to that of C64, opponent_rms: the same of the fastest baseline. A baseline on
#: request has its own ratio.
CLASSES = Schema(
    4,
    (
        *("schema", "time", "device", *_ORIGIN, "class", *_PRODUCT, "batch"),
        *("kernel", "config", "source", "reason", "outcome", "us", "spread", "rounds", "void"),
        *("gflops", "peak", *_COLUMN, "ratio", *(f"{name}_ratio" for name in ON_REQUEST)),
        *("error", "rms", "opponent_rms"),
        *_RESOURCES,
        *SEEN,
        "detail",
    ),
    added=frozenset({"batch", *(f"{name}_us" for name, b in BASELINES.items() if b.column > 3)}),
)

#: `benchmarks/unseen.py`: one row for each product: what is chosen without a search of its own, the
#: default and what its search found. of_fastest: time of the fastest of these / that of what is
#: chosen; of_default: that of the default / that of what is chosen; slower: part by which what is
#: chosen is slower than a default, at least; ratio: time of the fastest baseline / that of what is
#: chosen.
UNSEEN = Schema(
    3,
    (
        *("schema", "time", "device", *_ORIGIN[:-1], "seed", *_PRODUCT),
        *("chosen", "reason", "chosen_us", "default", "default_us", "found", "found_us"),
        *("of_fastest", "of_default", "slower", *_COMPARED, "ratio"),
    ),
    added=frozenset({"schema", "slower", *_COMPARED, "ratio"}),
)

#: `benchmarks/repeated.py`: one row for each tuning of a product, of several. seed: that of its
#: search; budget, seconds: what it was given and what it took; tried: configurations, failed ones
#: too; us: of what it found, timed in turn with what the other tunings found.
REPEATED = Schema(
    1,
    (
        *("schema", "time", "device", *_ORIGIN, *_PRODUCT),
        *("seed", "budget", "seconds", "tried", "config", "us", "spread"),
    ),
)

#: `benchmarks/survey.py measure`: one row for each configuration of a product, all of a product
#: timed in turn. seed: what the product was drawn from.
SURVEY = Schema(
    1,
    (
        *("schema", "time", "device", *_ORIGIN, "seed", *_PRODUCT),
        *("config", "us", "spread"),
    ),
)

#: `python -m pymm.bench --suite`: one row for each figure of a step. The docstring of
#: `pymm.bench.experiments` says what each column has.
EXPERIMENTS = Schema(
    1,
    (
        *("schema", "suite", "step", "of", "time", "commit"),
        *("device", "driver", "compiler", "pymm", "op", *_PRODUCT),
        *("name", "variant", "config", "source", "quantity", "transfer", "outcome"),
        *("seconds", "mean", "spread", "rounds", "void", "gflops", "peak", "ratio", "speedup"),
        *("error", "error_inf", "value", "unit"),
        *_RESOURCES,
        *SEEN,
        "detail",
    ),
)

#: `benchmarks/blocked.py`: one row for each figure. part: links, single, scaling or outofcore;
#: devices: how many took part; value in `unit` (GB/s for copies); ratio: of the rate to that of as
#: many single devices, or for outofcore to the kernel's in memory; bytes_in, bytes_out: over the
#: link or between devices, bound: what must move at least.
BLOCKED = Schema(
    1,
    (
        *("schema", "time", "device", *_ORIGIN, "part", "name", "devices", "dtype", "m", "n", "k"),
        *("outcome", "seconds", "spread", "rounds", "gflops", "value", "unit", "ratio"),
        *("bytes_in", "bytes_out", "bound", "error", "detail"),
    ),
)

#: `python -m pymm.distributed bench`: one row for each engine on one product. seconds, mean and
#: fastest are of the slowest process; gflops is 2 m n k / seconds, sequential the median of one
#: process alone, speedup sequential / seconds, ratio the seconds of ScaLAPACK in the same run /
#: seconds; received, planned and bound are bytes of the process that received most, of the plan,
#: and of the lower bound; predicted is the plan's seconds; handed_out elements of A and B sent by
#: the root, as a part of all of them.
DISTRIBUTED = Schema(
    1,
    (
        *("schema", "time", "device", "pymm", "commit", "mpi", "blas", "suite"),
        *("engine", "product", "threads", "dtype", "m", "n", "k"),
        *("processes", "grid", "block", "panel", "outcome", "repeats"),
        *("seconds", "mean", "fastest", "gflops", "sequential", "speedup", "ratio", "error_inf"),
        *("received", "planned", "bound", "predicted", "handed_out", "detail"),
    ),
)

#: `python -m pymm.distributed simulate`: one row for each product. flops to overlap are the rates
#: of a process; multiplying: seconds of the products of the busiest process; blocking: of all of
#: it without look-ahead; simulated: with; efficiency is multiplying / simulated, received the bytes
#: of the process that received most, predicted the plan's seconds, measured the median of real
#: runs, ratio simulated / measured.
SIMULATED = Schema(
    1,
    (
        *("schema", "time", "device", "pymm", "commit", "simgrid"),
        *("dtype", "m", "n", "k", "processes", "grid", "block", "panel"),
        *("flops", "bandwidth", "latency", "memory", "overlap"),
        *("multiplying", "blocking", "simulated", "efficiency", "received"),
        *("predicted", "measured", "ratio"),
    ),
)


def one_line(text: str) -> str:
    """A `detail`: one line, shortened if need be."""
    return " ".join(text.split())[:MAX_DETAIL]
