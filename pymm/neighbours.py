"""What one tuned problem says about another: how far apart they are, and whether the configuration
of one should serve the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from pymm.cost import predicted_seconds
from pymm.device import Device
from pymm.kernels import Config, Kernel
from pymm.problem import Problem
from pymm.records import Record

#: Extra distance for an operand that is stored the other way round, for a type of the same size,
#: and for each factor of two between the alignments of rows; a factor of e in one extent is 1. And
#: for another part of C.
TURNED, OTHER_TYPE, MISALIGNED, OTHER_FILL = 0.4, 0.2, 0.1, 0.1

#: Types whose products take the same tiles: what is tuned for one serves the others.
ALIKE = ({"f16", "bf16", "f16_f32", "bf16_f32"},)

#: Neighbours that are looked at, and how much slower than the best of their configurations the
#: cost model may expect one to be: so much it errs. What was measured nearer than NEAR (a quarter
#: more in one extent) is believed unless the model expects it to take twice as long.
LOOKED_AT, MODEL_ERRS, NEAR, BELIEVED = 8, 1.1, 0.25, 2.0

#: Where a rung makes its default for the problem, a neighbour's configuration must be expected to
#: take no more than this part of the default's time. Of 60 products never tuned (an H200,
#: unseen.csv) 17 ran slower than their default by more than 2 % without this; with it 3 would of
#: the 52 whose times are known.
WORTH = 0.9

#: The model's expectation is corrected by how far it is off where a configuration was measured,
#: but by no more than this in either direction.
MOST_CORRECTION = 1.6


def akin(problem: Problem, tuned: Problem, backend: str = "cuda") -> bool:
    """Whether a configuration tuned for one may serve the other at all: same type or one alike, and
    the same part of C. One half has half the tiles, which on a GPU wants others; a CPU's panels are
    products like any other.
    """
    same = problem.dtype == tuned.dtype or any({problem.dtype, tuned.dtype} <= s for s in ALIKE)
    if problem.symmetric == tuned.symmetric:
        return same
    return same and problem.symmetric and (problem.whole or backend == "cpu")


def distance(problem: Problem, tuned: Problem) -> float:
    """How far apart two problems are: Euclidean in (log m, log n, log k), and the extra distances
    above. The batch does not count: a stack is made of problems.
    """
    turned = (problem.trans_a != tuned.trans_a) + (problem.trans_b != tuned.trans_b)
    other = problem.dtype != tuned.dtype
    pieces = abs(math.log2(problem.alignment / tuned.alignment))
    extra = TURNED * turned + OTHER_TYPE * other + MISALIGNED * pieces
    return apart(problem, tuned) + extra + OTHER_FILL * (problem.op != tuned.op)


def apart(problem: Problem, tuned: Problem) -> float:
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
    problem: Problem, device: Device, records: Sequence[Record], default: Config | None
) -> tuple[Config, Record] | None:
    """The configuration of the nearest of `records` (nearest first) that is no worse than its
    neighbours' for this problem by the cost model, with k split otherwise if need be. None where
    the model prefers the default to them all. On a CPU, which it knows nothing of, the nearest.
    """
    records = [r for r in records if _may_run(r.config, problem, device)][:LOOKED_AT]
    if device.kind == "cpu" or not records:
        return (records[0].config, records[0]) if records else None
    corrections = {record: _correction(record, device) for record in records}
    own = [(record.config, record) for record in records]
    split = [
        (config, record) for record in records for config in splits(record.config, problem, device)
    ]
    expected = {
        (config, record): predicted_seconds(config, problem, device) * corrections[record]
        for config, record in (*own, *split)
    }
    best = min(expected.values())
    if default is not None:
        usual = statistics.median(corrections.values())
        best = min(best, predicted_seconds(default, problem, device) * usual)
    for option, seconds in expected.items():
        config, record = option
        if config == record.config and apart(problem, record.problem) < NEAR:
            if seconds <= best * BELIEVED:
                return option
        elif seconds <= best * MODEL_ERRS and _worth_it(config, default, problem, device):
            return option
    return None


def _worth_it(config: Config, default: Config | None, problem: Problem, device: Device) -> bool:
    """Whether the model expects `config` to beat the defaults, its own rung's and the highest's, as
    far as these are made for the problem.
    """
    rivals = {config.kernel.default_for(problem, device), default} - {config, None}
    seconds = predicted_seconds(config, problem, device)
    return all(
        seconds <= predicted_seconds(rival, problem, device) * WORTH
        for rival in rivals
        if rival.kernel.suggested and _may_run(rival, problem, device)
    )


def _correction(record: Record, device: Device) -> float:
    """How much longer than the model expects the record's configuration took for its problem."""
    off = record.seconds / predicted_seconds(record.config, record.problem, device)
    return min(max(off, 1 / MOST_CORRECTION), MOST_CORRECTION)


def splits(config: Config, problem: Problem, device: Device) -> list[Config]:
    """The configuration with k in other parts, those that may run."""
    kernel = config.kernel
    if "SPLIT" not in kernel.space:
        return []
    made = (kernel.config(config.as_dict() | {"SPLIT": n}) for n in kernel.space["SPLIT"])
    return [c for c in made if c != config and _may_run(c, problem, device)]


def untuned(kernel: Kernel, problem: Problem, device: Device) -> Config | None:
    """What to run of a kernel where nothing is tuned: its default, unless the cost model expects
    much more of a fallback or of another way to split k. None if none of them may run.
    """
    default = kernel.default_for(problem, device)
    options = [default, *(kernel.config(parameters) for parameters in kernel.fallbacks)]
    options = [c for c in dict.fromkeys(options) if _may_run(c, problem, device)]
    if device.kind != "cuda" or kernel.suggested or not options:
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
