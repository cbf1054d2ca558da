"""Configurations tuned for one problem and used for another: how far apart two problems are, and
whether the configuration of one should serve the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.dtypes import dtypes_share_tiles
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, kernels_for, survey
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.records import Record

#: Distances, in units of a factor of e in one extent: for each operand that is stored transposed in
#: one problem only, for another dtype of the same size, for each factor of two between the
#: alignments of rows, and for another part of C.
OTHER_LAYOUT, OTHER_DTYPE, MISALIGNED, OTHER_FILL = 0.4, 0.2, 0.1, 0.1

#: Nearest records that are considered.
CONSIDERED = 12

#: For kernels without a heuristic default. A configuration is taken if the cost model expects at
#: most MODEL_ERROR times the time of the best one, since the model errs by that much. One measured
#: nearer than NEAR (a quarter more in one extent), and for any kernel one measured with the same
#: extents in another layout, is taken if the model expects at most MEASURED_NEAR times that; in
#: another stack if it expects no more than that (16 of 1024 squared: a single one's configuration
#: takes 718 us, the default 667).
MODEL_ERROR, NEAR, MEASURED_NEAR = 1.1, 0.25, 2.0

#: A lower kernel is considered if on some problem it took at most this many times the time of the
#: highest.
COMPETITIVE = 1.15

#: For kernels with a heuristic default, which is kept unless the model expects at most this part of
#: its time from another kernel's default (the first) or from a near record's configuration, perhaps
#: with another split of k (the second). benchmarks/LOG.md has what these and other values would
#: have chosen on an H200.
WORTH_ANOTHER_KERNEL, WORTH_ANOTHER_CONFIG = 0.8, 0.75

#: Where a survey covers the product: a record of another layout or type, or of the product itself
#: by another kernel than the default's, may have taken this many times as long as what is expected
#: of the default of its own problem. For 91 pairs of a product and a record of another layout that
#: searches of an H200 measured, the default's time / that of the choice is 1.015 with 1.0 here,
#: 1.020 with 1.08 and 1.12, 1.015 with all records.
AS_EXPECTED = 1.1

#: For kernels without a heuristic default, the model's expectation is multiplied by measured /
#: expected time of the record's own problem, within this factor in either direction.
MOST_CORRECTION = 1.6


def competitive_records(
    problem: Problem, device: Device, highest: Kernel, found: list[tuple[Record, str]]
) -> list[tuple[Record, str]]:
    """The records of the highest kernel, and on the same problems those of kernels that were about
    as fast on one of them (`COMPETITIVE`). For the others there would be the model alone, and that
    errs: it preferred kernel 12, which takes 1.6 times as long as 07 at 4096, for small products of
    bf16, where it takes up to twice as long. Where a survey covers the product, which kernel is the
    highest is itself only expected: there a record of this very problem counts, whatever its
    kernel, if it took about as long as is expected (`_as_expected`).
    """
    own = {
        r.problem: COMPETITIVE * r.seconds for r, _ in found if r.config.kernel_name == highest.name
    }
    able = {r.config.kernel_name for r, _ in found if r.seconds <= own.get(r.problem, 0.0)}

    def counts(record: Record) -> bool:
        if record.problem in own and record.config.kernel_name in able:
            return True
        return record.problem == problem and _as_expected(record, device, None)

    return [one for one in found if counts(one[0])]


def transferable(problem: Problem, tuned: Problem, backend: str = "cuda") -> bool:
    """Whether a configuration tuned for one may serve the other at all: dtypes that share tiles,
    and the same part of C. One half of C has half as many tiles, for which other sizes are best on
    a GPU; on a CPU it is computed in panels, which are products like any other.
    """
    same = dtypes_share_tiles(problem.dtype, tuned.dtype)
    if problem.symmetric == tuned.symmetric:
        return same
    return same and problem.symmetric and (problem.in_full or backend == "cpu")


def distance(problem: Problem, tuned: Problem) -> float:
    """How far apart two problems are: `log_distance` and the distances above. The size of the batch
    does not count.
    """
    layouts = (problem.trans_a != tuned.trans_a) + (problem.trans_b != tuned.trans_b)
    other = problem.dtype != tuned.dtype
    steps = abs(math.log2(problem.alignment / tuned.alignment))
    extra = OTHER_LAYOUT * layouts + OTHER_DTYPE * other + MISALIGNED * steps
    return log_distance(problem, tuned) + extra + OTHER_FILL * (problem.op != tuned.op)


def log_distance(problem: Problem, tuned: Problem) -> float:
    """Euclidean distance in (log m, log n, log k)."""
    return math.dist(*((_log(x.m), _log(x.n), _log(x.k)) for x in (problem, tuned)))


def rank(problem: Problem, record: Record) -> tuple:
    """Sorts records by distance, difference of the batches, time per operation."""
    tuned = record.problem
    per_flop = record.seconds / max(tuned.flops, 1)
    batch = abs(_log(tuned.batch) - _log(problem.batch))
    return (round(distance(problem, tuned), 9), batch, per_flop, record.config.slug)


def _log(extent: int) -> float:
    return math.log(max(extent, 1))


def transferred(
    problem: Problem,
    device: Device,
    records: Sequence[Record],
    defaults: Sequence[Config],
    wanted: Kernel | None = None,
) -> tuple[Config, Record | None] | None:
    """The best configuration for `problem` of the `defaults`, the highest kernel's first, and of
    `records`, nearest first, perhaps with another split of k; all of them of the kernel `wanted`,
    if one is. With it comes its record, or None for a default. None instead of both where the first
    default is best. On a CPU, of which the cost model knows nothing, the configuration of the
    nearest record.
    """
    records = [r for r in records if _may_run(r.config, problem, device)][:CONSIDERED]
    if device.kernel_backend == "cpu" or not records:
        return (records[0].config, records[0]) if records else None
    made = [config for config in defaults if config.kernel.adapts_to(problem, device)]
    if defaults and defaults[0] not in made:
        return _by_corrected_model(problem, device, records, defaults[0])
    return _by_model(problem, device, records, made, wanted)


def _by_model(
    problem: Problem,
    device: Device,
    records: Sequence[Record],
    defaults: Sequence[Config],
    wanted: Kernel | None,
) -> tuple[Config, Record | None] | None:
    """For kernels with a heuristic default: that, unless the model expects another configuration to
    be clearly faster. The heuristics are made from measurements, and serve a problem that was never
    tuned better than the configuration of a near one (of 27 problems on an H200 with a record of
    nearly the same extents, ten ran slower with its configuration, two with what this takes). Where
    the device was surveyed, the default is the choice from measured times, and only records of the
    same extents compete with it that took about as long as is expected of the default of their own
    layout and type.
    """
    if survey.covers(problem, device):
        same = (r for r in records if log_distance(problem, r.problem) == 0)
        records = [record for record in same if _as_expected(record, device, wanted)]
        defaults = defaults[:1]
    expected = {config: predicted_seconds(config, problem, device) for config in defaults}
    usual = min(defaults, key=expected.__getitem__, default=None)
    if usual is not None and expected[usual] > WORTH_ANOTHER_KERNEL * expected[defaults[0]]:
        usual = defaults[0]
    limit = expected.get(usual, math.inf)
    of_kernel = {c.kernel_name: WORTH_ANOTHER_CONFIG * expected[c] for c in defaults}
    best, least = None, WORTH_ANOTHER_CONFIG * limit
    for record in records:
        if log_distance(problem, record.problem) == 0:  # of another layout, type or stack
            most = MEASURED_NEAR if problem.batch == record.problem.batch else 1.0
            if predicted_seconds(record.config, problem, device) <= limit * most:
                return record.config, record
        if not record.config.kernel.adapts_to(problem, device):
            continue
        below = min(least, of_kernel.get(record.config.kernel_name, math.inf))
        for config in (record.config, *_otherwise_split(record.config)):
            seconds = predicted_seconds(config, problem, device)
            if seconds < below and _may_run(config, problem, device):
                best, least, below = (config, record), seconds, seconds
    if best is None and usual is not None and usual != defaults[0]:
        return usual, None
    return best


def _as_expected(record: Record, device: Device, wanted: Kernel | None) -> bool:
    """Whether a record took at most about as long as the survey expects of its own problem's
    default, of the kernel `wanted` or of all. False if its problem, of another type or in a stack,
    was not surveyed.
    """
    kernel = wanted or kernels_for(record.problem, device)[-1]
    expected = survey.quickest(kernel, record.problem, device)
    return expected is not None and record.seconds * 1e6 <= AS_EXPECTED * expected[0]


def _by_corrected_model(
    problem: Problem, device: Device, records: Sequence[Record], default: Config
) -> tuple[Config, Record] | None:
    """For kernels without a heuristic default: the nearest record's configuration that the model,
    corrected by the measurements, expects to be about as fast as the best of them and of the
    default. None where the default alone is.
    """
    corrections = {record: _correction(record, device) for record in records}
    own = [(record.config, record) for record in records]
    split = [
        (config, record) for record in records for config in splits(record.config, problem, device)
    ]
    expected = {
        (config, record): predicted_seconds(config, problem, device) * corrections[record]
        for config, record in (*own, *split)
    }
    usual = statistics.median(corrections.values())
    best = min(*expected.values(), predicted_seconds(default, problem, device) * usual)
    for (config, record), seconds in expected.items():
        near = config == record.config and log_distance(problem, record.problem) < NEAR
        if seconds <= best * (MEASURED_NEAR if near else MODEL_ERROR):
            return config, record
    return None


def _correction(record: Record, device: Device) -> float:
    """Measured time of the record divided by the time that the model expects."""
    off = record.seconds / predicted_seconds(record.config, record.problem, device)
    return min(max(off, 1 / MOST_CORRECTION), MOST_CORRECTION)


def splits(config: Config, problem: Problem, device: Device) -> list[Config]:
    """The configuration with every other SPLIT of k that may run."""
    return [c for c in _otherwise_split(config) if _may_run(c, problem, device)]


@lru_cache(maxsize=4096)
def _otherwise_split(config: Config) -> tuple[Config, ...]:
    """The configuration with every other SPLIT of k that the kernel's space has."""
    kernel = config.kernel
    made = (kernel.config(config.as_dict() | {"SPLIT": n}) for n in kernel.space.get("SPLIT", ()))
    return tuple(c for c in made if c != config)


@lru_cache(maxsize=1024)
def untuned(kernel: Kernel, problem: Problem, device: Device) -> Config | None:
    """The configuration of a kernel where nothing is tuned: its default, unless the cost model
    expects a fallback or another split of k to be clearly faster. None if none of them may run.
    """
    default = kernel.default_for(problem, device)
    options = [default, *(kernel.config(parameters) for parameters in kernel.fallbacks)]
    options = [c for c in dict.fromkeys(options) if _may_run(c, problem, device)]
    if not device.is_gpu or kernel.adapts_to(problem, device) or not options:
        return options[0] if options else None
    options += [c for option in options for c in splits(option, problem, device)]
    return _preferred(options, problem, device)


def _preferred(options: Iterable[Config], problem: Problem, device: Device) -> Config:
    """The first, unless the model expects another to be faster by more than it errs."""
    options = list(options)
    expected = [predicted_seconds(config, problem, device) for config in options]
    fastest = min(range(len(options)), key=expected.__getitem__)
    return options[fastest if expected[0] > MODEL_ERROR * expected[fastest] else 0]


def _may_run(config: Config, problem: Problem, device: Device) -> bool:
    return not config.kernel.violations(config, problem, device)
