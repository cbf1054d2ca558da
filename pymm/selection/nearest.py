"""What one tuned problem says about another: how far apart they are, and whether the configuration
of one should serve the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pymm.core.device import Device
from pymm.core.dtypes import dtypes_share_tiles
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel
from pymm.selection.cost_model import predicted_seconds
from pymm.selection.records import Record

#: Extra distance for an operand that is stored the other way round, for a type of the same size,
#: and for each factor of two between the alignments of rows; a factor of e in one extent is 1. And
#: for another part of C.
TURNED, OTHER_TYPE, MISALIGNED, OTHER_FILL = 0.4, 0.2, 0.1, 0.1

#: Neighbours that are looked at.
LOOKED_AT = 12

#: Among rungs that make no default for the problem: how much slower than the best of its
#: neighbours' configurations the cost model may expect one to be, so much it errs. What was
#: measured nearer than NEAR (a quarter more in one extent), and for any rung with these very
#: extents in another layout, is believed unless the model expects it to take twice as long.
MODEL_ERRS, NEAR, BELIEVED = 1.1, 0.25, 2.0

#: A rung that nowhere took less than so much of the highest one's time is none to choose.
CLOSE = 1.15

#: Where rungs make defaults for the problem, the highest one's is taken unless the model expects no
#: more than so much of its time, of another rung's default and of a neighbour's configuration or
#: another split of it. benchmarks/LOG.md has what these and others would have chosen on an H200.
WORTH_ANOTHER_RUNG, WORTH = 0.8, 0.75

#: Where rungs make no default, the model's expectation is corrected by how far it is off where a
#: configuration was measured, but by no more than this in either direction.
MOST_CORRECTION = 1.6


def competitive_records(
    highest: Kernel, found: list[tuple[Record, str]]
) -> list[tuple[Record, str]]:
    """The highest rung's records, and on the same problems those of rungs that were about as quick
    at one (`CLOSE`). Of others the model alone would speak: it preferred rung 12, measured beside
    07 at 4096 (1.6 times as long), for small products of bf16 that take it up to twice as long.
    """
    own = {r.problem: CLOSE * r.seconds for r, _ in found if r.config.kernel_name == highest.name}
    able = {r.config.kernel_name for r, _ in found if r.seconds <= own.get(r.problem, 0.0)}
    return [one for one in found if one[0].problem in own and one[0].config.kernel_name in able]


def transferable(problem: Problem, tuned: Problem, backend: str = "cuda") -> bool:
    """Whether a configuration tuned for one may serve the other at all: same type or one alike, and
    the same part of C. One half has half the tiles, which on a GPU wants others; a CPU's panels are
    products like any other.
    """
    same = dtypes_share_tiles(problem.dtype, tuned.dtype)
    if problem.symmetric == tuned.symmetric:
        return same
    return same and problem.symmetric and (problem.in_full or backend == "cpu")


def distance(problem: Problem, tuned: Problem) -> float:
    """How far apart two problems are: Euclidean in (log m, log n, log k), and the extra distances
    above. The batch does not count: a stack is made of problems.
    """
    turned = (problem.trans_a != tuned.trans_a) + (problem.trans_b != tuned.trans_b)
    other = problem.dtype != tuned.dtype
    pieces = abs(math.log2(problem.alignment / tuned.alignment))
    extra = TURNED * turned + OTHER_TYPE * other + MISALIGNED * pieces
    return log_distance(problem, tuned) + extra + OTHER_FILL * (problem.op != tuned.op)


def log_distance(problem: Problem, tuned: Problem) -> float:
    """Euclidean distance in (log m, log n, log k)."""
    return math.dist(*((_log(x.m), _log(x.n), _log(x.k)) for x in (problem, tuned)))


def rank(problem: Problem, record: Record) -> tuple:
    """Sorts records: distance, same batch, then time per operation."""
    tuned = record.problem
    pace = record.seconds / max(tuned.flops, 1)
    batch = abs(_log(tuned.batch) - _log(problem.batch))
    return (round(distance(problem, tuned), 9), batch, pace, record.config.slug)


def _log(extent: int) -> float:
    return math.log(max(extent, 1))


def transferred(
    problem: Problem, device: Device, records: Sequence[Record], defaults: Sequence[Config]
) -> tuple[Config, Record | None] | None:
    """What should serve best of the `defaults`, the highest rung's first, and of the configurations
    of `records`, nearest first, with k split otherwise if need be; None for a default comes with
    it. None at all where the first default is best. On a CPU, which the cost model knows nothing
    of, the nearest.
    """
    records = [r for r in records if _may_run(r.config, problem, device)][:LOOKED_AT]
    if device.kernel_backend == "cpu" or not records:
        return (records[0].config, records[0]) if records else None
    made = [config for config in defaults if config.kernel.heuristic]
    if defaults and defaults[0] not in made:
        return _served(problem, device, records, defaults[0])
    return _quickest(problem, device, records, made)


def _quickest(
    problem: Problem, device: Device, records: Sequence[Record], defaults: Sequence[Config]
) -> tuple[Config, Record | None] | None:
    """Defaults first: they were made from measurements of their rung, and serve a problem never
    tuned better than what was best for its neighbour (of 27 problems with one of nearly the same
    extents on an H200 ten ran slower with its configuration, two with what this takes). The model
    decides what is better still.
    """
    expected = {config: predicted_seconds(config, problem, device) for config in defaults}
    usual = min(defaults, key=expected.__getitem__, default=None)
    if usual is not None and expected[usual] > WORTH_ANOTHER_RUNG * expected[defaults[0]]:
        usual = defaults[0]
    limit = expected.get(usual, math.inf)
    of_rung = {config.kernel_name: WORTH * expected[config] for config in defaults}
    best, least = None, WORTH * limit
    for record in records:
        if log_distance(problem, record.problem) == 0:  # of another layout, type or stack
            errs = BELIEVED if problem.batch == record.problem.batch else MODEL_ERRS
            if predicted_seconds(record.config, problem, device) <= limit * errs:
                return record.config, record
        if not record.config.kernel.heuristic:
            continue
        below = min(least, of_rung.get(record.config.kernel_name, math.inf))
        for config in (record.config, *_otherwise_split(record.config)):
            seconds = predicted_seconds(config, problem, device)
            if seconds < below and _may_run(config, problem, device):
                best, least, below = (config, record), seconds, seconds
    if best is None and usual is not None and usual != defaults[0]:
        return usual, None
    return best


def _served(
    problem: Problem, device: Device, records: Sequence[Record], default: Config
) -> tuple[Config, Record] | None:
    """The configuration of the nearest record that is no worse than its neighbours' by the model,
    unless that prefers the default to them all.
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
        if seconds <= best * (BELIEVED if near else MODEL_ERRS):
            return config, record
    return None


def _correction(record: Record, device: Device) -> float:
    """How much longer than the model expects the record's configuration took for its problem."""
    off = record.seconds / predicted_seconds(record.config, record.problem, device)
    return min(max(off, 1 / MOST_CORRECTION), MOST_CORRECTION)


def splits(config: Config, problem: Problem, device: Device) -> list[Config]:
    """The configuration with k in other parts, those that may run."""
    return [c for c in _otherwise_split(config) if _may_run(c, problem, device)]


@lru_cache(maxsize=4096)
def _otherwise_split(config: Config) -> tuple[Config, ...]:
    """The configuration with k in any other number of parts that a search tries."""
    kernel = config.kernel
    made = (kernel.config(config.as_dict() | {"SPLIT": n}) for n in kernel.space.get("SPLIT", ()))
    return tuple(c for c in made if c != config)


@lru_cache(maxsize=1024)
def untuned(kernel: Kernel, problem: Problem, device: Device) -> Config | None:
    """What to run of a kernel where nothing is tuned: its default, unless the cost model expects
    much more of a fallback or of another way to split k. None if none of them may run.
    """
    default = kernel.default_for(problem, device)
    options = [default, *(kernel.config(parameters) for parameters in kernel.fallbacks)]
    options = [c for c in dict.fromkeys(options) if _may_run(c, problem, device)]
    if not device.is_gpu or kernel.heuristic or not options:
        return options[0] if options else None
    options += [c for option in options for c in splits(option, problem, device)]
    return _preferred(options, problem, device)


def _preferred(options: Iterable[Config], problem: Problem, device: Device) -> Config:
    """The first, or the one expected to be quickest if that is more than the model errs."""
    options = list(options)
    expected = [predicted_seconds(config, problem, device) for config in options]
    quickest = min(range(len(options)), key=expected.__getitem__)
    return options[quickest if expected[0] > MODEL_ERRS * expected[quickest] else 0]


def _may_run(config: Config, problem: Problem, device: Device) -> bool:
    return not config.kernel.violations(config, problem, device)
