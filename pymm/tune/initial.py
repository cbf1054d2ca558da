"""What a search begins with, prepared while others measure: the valid configurations, and the first
of them to be tried: the default, stored ones of the nearest problems, those that measured times of
similar products (on a surveyed GPU) or the models expect to be fastest, and those that differ from
the best known one in one parameter.
"""

from __future__ import annotations

import itertools
import math
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pymm.console import spared
from pymm.core.device import Device
from pymm.core.errors import StoreError
from pymm.core.problem import Problem
from pymm.kernels import Config, Kernel, find_kernel, survey
from pymm.measure.precompile import config_directory, settle_beside
from pymm.measure.verify import sources
from pymm.selection.cost_model import few_of_a_tile, most_promising, predicted_seconds
from pymm.selection.records import Record, device_facts
from pymm.selection.store import files, read
from pymm.tune.finals import rivals_of
from pymm.tune.tasks import Task

#: How many stored configurations of other problems are tried, the first of them those of the
#: nearest, the others diverse ones of so many that are considered; how many that should be fast,
#: and of these how many by the kernel's own model (where there are so many, few searches come to
#: those of the cost model for all kernels); how many that differ from the best known one in a
#: single parameter; and how many of all of them if there is no budget.
PORTFOLIO, NEAREST, CONSIDERED = 6, 3, 24
PROMISING, BY_OWN_MODEL = 24, 12
NEAR = 8
FIRST = 24

#: A stored configuration is left out if the model predicts so many times the default's time: tiles
#: of 64 x 64 took 4 times as long as the default for 16 columns. Those near the best known
#: configuration are left out earlier.
UNFIT, UNFIT_NEAR = 2.0, 1.25

#: Fewest configurations of each of several kernels that are compiled before their race.
FEWEST_EACH = 4

#: Problems whose first sources are compiled while others are measured: a source takes seconds.
LOOK_AHEAD = 8

#: Processes that prepare quick searches, and configurations that such a search keeps.
PREPARERS, MOST_KEPT = 4, 4000


def elsewhere(device: Device) -> list[Record]:
    """What is stored for other devices of this kind, here or as shipped. Damaged files are left
    out: what uses them says so.
    """
    found: list[Record] = []
    own = device_facts(device)
    for path in files(config_directory()):
        try:
            table = read(path)
        except StoreError:
            continue
        other = table.device if table else own
        if other["name"] != own["name"] and other["kind"] == own["kind"]:
            found += table.records
    return found


def diverse(configs: Sequence[Config], count: int, sure: int) -> list[Config]:
    """`count` of these configurations, the most promising of which come first: the first `sure` of
    them, then always one that differs in most parameters from all that are chosen. Winners of one
    kind fail together: the best five by their mean were 10 to 50 % slower than five diverse ones on
    a device that none of them came from.
    """
    chosen, left = list(configs[:sure]), list(configs[sure:])
    while left and len(chosen) < count:
        changes = [min((_changes(c, other) for other in chosen), default=0) for c in left]
        chosen.append(left.pop(changes.index(max(changes))))
    return chosen[:count]


def _changes(config: Config, other: Config) -> int:
    """How many parameters differ."""
    pairs = zip(config.parameters, other.parameters, strict=True)
    return sum(mine != theirs for mine, theirs in pairs)


@dataclass(frozen=True)
class InitialConfigs:
    """The valid configurations of one search, and those to try first. Without a `device` no times
    are predicted.
    """

    problem: Problem
    kernel: Kernel
    valid: tuple[Config, ...]
    default: Config
    promising: tuple[Config, ...]
    device: Device | None = None

    def first(self, stored: Iterable[Record], count: int = FIRST) -> dict[Config, str]:
        """Up to `count` configurations in their order, each with its origin: the default, then in
        turn one of the nearest stored problems, here or on other devices (`warm`), one that should
        be fast and one near the best known (`queue`): the models ignore some parameters. The best
        known is what is stored for this very problem, else the default where it was made for the
        problem, else the nearest stored one.
        """
        alike, foreign = self._nearest(stored), []
        if self.device is not None and self.device.times_are_real:
            valid = set(self.valid)
            foreign = [r for r in self._nearest(elsewhere(self.device)) if r.config in valid]
        configs = dict.fromkeys(r.config for r in (*alike[:CONSIDERED], *foreign[:PORTFOLIO]))
        # A record of this very problem is tried whatever the model predicts.
        own = {record.config for record in alike if record.problem == self.problem}
        fitting = (config for config in configs if config in own or self._fits(config))
        portfolio = diverse(list(fitting), PORTFOLIO, NEAREST)
        nearest = self.default if self._adapted or not portfolio else portfolio[0]
        near = self._near(next((config for config in portfolio if config in own), nearest))
        promising = (config for config in self.promising if config != self.default)
        turns = itertools.zip_longest(portfolio, promising, near)
        mixed = [config for turn in turns for config in turn if config is not None]
        chosen = list(dict.fromkeys([self.default, *mixed]))[:count]
        warm = set(portfolio) - {self.default}
        return {config: "warm" if config in warm else "queue" for config in chosen}

    @property
    def _adapted(self) -> bool:
        """Whether the default was made for the problem."""
        return self.device is not None and self.kernel.adapts_to(self.problem, self.device)

    def _seconds(self, config: Config) -> float:
        if self.device is None or self.device.shares_host_cores:
            return 0.0
        return predicted_seconds(config, self.problem, self.device)

    def _fits(self, config: Config) -> bool:
        """Whether a configuration of another problem is worth a trial."""
        return self._seconds(config) <= UNFIT * self._seconds(self.default)

    def _near(self, base: Config) -> list[Config]:
        """Configurations that differ from `base` in one parameter: those first that the cost model
        expects to be fastest, to two digits, and of these the smallest changes.
        """
        if self.device is None or self.device.shares_host_cores:
            return []
        given, found, longest = base.as_dict(), [], UNFIT_NEAR * self._seconds(base)
        for config in self.valid:
            changed = [(v, given[name]) for name, v in config.parameters if v != given[name]]
            if len(changed) == 1 and (seconds := self._seconds(config)) <= longest:
                ((new, old),) = changed
                found.append((float(f"{seconds:.2g}"), abs(math.log2(new / old)), config))
        return [config for *_, config in sorted(found, key=lambda entry: entry[:2])[:NEAR]]

    def _nearest(self, records: Iterable[Record]) -> list[Record]:
        """Those of this kernel that may help, of the nearest problems first."""
        found = [r for r in records if self._is_own(r.config) and self._alike(r.problem)]
        return sorted(found, key=lambda record: self._distance(record.problem))

    def _is_own(self, config: Config) -> bool:
        return (config.kernel_name, config.backend) == (self.kernel.name, self.kernel.backend)

    def _alike(self, other: Problem) -> bool:
        """Whether a record of `other` may help: the same precision, and not half of a symmetric C
        for a whole one. A good tile suits other layouts and dtypes, too.
        """
        if other.symmetric and not self.problem.symmetric:
            return False
        return other.precision == self.problem.precision

    def _distance(self, other: Problem) -> float:
        """Same element size, layout and operation first, then by the logarithms of the extents.
        float16 and bfloat16 count as close: the same tiles take the same time.
        """
        p = self.problem
        pairs = ((other.m, p.m), (other.n, p.n), (other.k, p.k))
        distance = sum(abs(math.log2(max(x, 1) / max(y, 1))) for x, y in pairs)
        sizes = [(x.numpy_dtype.itemsize, x.out_dtype.itemsize) for x in (other, p)]
        distance += 100 * (sizes[0] != sizes[1]) + 0.1 * (other.dtype != p.dtype)
        distance += 10 * (other.layout != p.layout)
        return distance + 5 * (other.op != p.op)


def prepare(
    problem: Problem, kernel: str | Kernel, device: Device, most: int | None = None
) -> tuple[tuple[Config, ...], Config, tuple[Config, ...]]:
    """The part of a search that needs no measurement, and up to seconds: the valid configurations
    (of the space the `most` best ones by the cost model, and whatever else follows, if it may run),
    the default, and the promising ones: those of the kernel's own model, then those of the cost
    model.
    """
    if isinstance(kernel, str):
        kernel = find_kernel(kernel, device.kernel_backend)
    valid, _ = kernel.configs(problem, device)
    if most is not None and not device.shares_host_cores and len(valid) > most:
        valid = sorted(valid, key=lambda c: predicted_seconds(c, problem, device))[:most]
    default = kernel.default_for(problem, device)
    own = by_own_model(kernel, problem, device)
    sure = [] if kernel.violations(default, problem, device) else [default]
    promising = [*own, *most_promising(valid, problem, device, PROMISING)]
    every = dict.fromkeys([*valid, *sure, *own])
    return tuple(every), default, tuple(dict.fromkeys(promising))[:PROMISING]


def by_own_model(kernel: Kernel, problem: Problem, device: Device) -> list[Config]:
    """Up to `BY_OWN_MODEL` configurations that may run and that the kernel's model expects to be
    fastest, the fastest first, corrected by measured times of similar products where a survey of
    the device covers the problem. Empty for a kernel without `options`, and for a batch or a
    symmetric product, which they are not for.
    """
    if kernel.options is None or not kernel.runs_on(device):
        return []
    if problem.batch != 1 or problem.symmetric or problem.empty:
        return []
    expected = survey.ranked(kernel, problem, device) or kernel.options(problem, device)
    ordered = dict.fromkeys(config for _, config in sorted(expected, key=lambda option: option[0]))
    able = (config for config in ordered if not kernel.violations(config, problem, device))
    return few_of_a_tile(able, BY_OWN_MODEL)


class Prefetcher:
    """Prepares the next searches, and compiles their first sources, while others are measured.

    With `quick` it keeps few configurations of each. With `processes` it works in processes of its
    own: a large space takes seconds of Python, which would delay the measuring process, and so do
    the spaces of several kernels one after the other. `stored` gives the records so far; `count`
    configurations of each task are compiled, divided among its kernels.
    """

    def __init__(
        self,
        device: Device,
        compiler: Any,
        quick: bool,
        stored: Callable[[], Iterable[Record]] = tuple,
        count: int = FIRST,
        processes: bool = False,
    ) -> None:
        self.device, self.compiler, self.quick = device, compiler, quick
        self.stored, self.count = stored, count
        self._prepared: dict[Task, list[Future]] = {}
        self._builds: dict[Task, list[Future]] = {}
        self._pool: Executor
        if processes and not device.shares_host_cores:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(PREPARERS, context, settle_beside)
        else:
            self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Prefetcher:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def next(self, waiting: Sequence[Task]) -> Task:
        """The one of the first few tasks that waits for the fewest sources."""
        for task in waiting[:LOOK_AHEAD]:
            if task not in self._prepared:
                self._prepared[task] = [self._prepare(task.problem, k) for k in task.kernels]
        return min(waiting[:LOOK_AHEAD], key=self._to_wait_for)

    def take(self, task: Task) -> tuple[list[InitialConfigs], list[Future]]:
        """The initial configurations of a task's kernels, and their sources at the compiler."""
        if task not in self._builds:
            self._compile(task)
        return self._initial(task), self._builds[task]

    def _initial(self, task: Task) -> list[InitialConfigs]:
        return [
            InitialConfigs(task.problem, kernel, *prepared.result(), self.device)
            for kernel, prepared in zip(task.kernels, self._prepared[task], strict=True)
        ]

    def _prepare(self, problem: Problem, kernel: Kernel) -> Future:
        processes = isinstance(self._pool, ProcessPoolExecutor)
        name = kernel.name if processes else kernel
        most = MOST_KEPT if self.quick else None
        with spared():  # the pool starts its processes when they are needed
            return self._pool.submit(prepare, problem, name, self.device, most)

    def _to_wait_for(self, task: Task) -> float:
        """Sources that a task would wait for. On a CPU all are compiled between measurements."""
        if self.device.shares_host_cores:
            return 0
        if not all(prepared.done() for prepared in self._prepared[task]):
            return math.inf
        if task not in self._builds:
            self._compile(task)
        return sum(not build.done() for build in self._builds[task])

    def _compile(self, task: Task) -> None:
        self._builds[task] = []
        if self.device.shares_host_cores:
            return
        stored = list(self.stored())
        each = max(FEWEST_EACH, self.count // len(task.kernels))
        first = [initial.first(stored, each) for initial in self._initial(task)]
        by_turns = (c for turn in itertools.zip_longest(*first) for c in turn if c is not None)
        rendered = (
            source
            for config in (*by_turns, *rivals_of(task.problem, task.kernels, stored))
            for source in sources(config, task.problem)[: 1 if self.quick else None]
        )
        self._builds[task] = [self.compiler.submit(source) for source in rendered]
