"""`python -m pymm.distributed bench`: C <- C + A B on the same blocks by pymm, by ScaLAPACK, and
from matrices of one process, in turn in one run, compared with one process alone.

The elements are functions of their indices, so that every process makes those that it needs, and a
result is compared with the float64 product of whole rows and columns: no element of the reference
was sent by MPI.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from pymm.backends.cpu.device import processor_name
from pymm.console import duration, significant
from pymm.core.device import Device
from pymm.core.files import commit
from pymm.core.inputs import rows_of
from pymm.core.reference import gamma
from pymm.core.shapes import Shape
from pymm.distributed.calibrate import measure
from pymm.distributed.communicator import MPI, library, raise_together
from pymm.distributed.elements import OPERANDS, START, whole
from pymm.distributed.engine import Traffic, matmul
from pymm.distributed.layout import BlockCyclic
from pymm.distributed.local_products import LocalProducts
from pymm.distributed.matrix import DistMatrix
from pymm.distributed.plan import Grid, Plan, Rates, choose_panel, full_grid
from pymm.distributed.row_groups import matmul_from_root
from pymm.distributed.scalapack import NoScalapack, Scalapack, blas
from pymm.measure.results import DISTRIBUTED, one_line

#: What is compared, with what each is.
ENGINES = {
    "pymm": "stationary C, merged panels and look-ahead, on distributed matrices",
    "scalapack": "PDGEMM or PSGEMM on the same blocks",
    "once": "from and to matrices of one process, which sends each element once",
    "document": "the same, and it sends every process its own copy",
}

#: Edge of the product that one process alone computes once before it is timed.
WARM = 256

DTYPES = {"f32": np.dtype(np.float32), "f64": np.dtype(np.float64)}

#: A short product runs more often than it is asked to, until its runs took this many seconds or
#: there are this many of them: with more processes than cores single runs are several times slower.
ENOUGH_S, MOST_RUNS = 1.0, 25

#: Seconds between two looks of a process that waits for others without using its core.
NAP = 0.002


@dataclass(frozen=True)
class Order:
    """What is measured, and how: as the options of the command say."""

    shapes: Sequence[Shape]
    processes: Sequence[int]
    engines: Sequence[str] = tuple(ENGINES)
    suite: str = ""
    dtype: str = "f64"
    block: int = 64
    grid: Grid | None = None
    panel: int | None = None
    product: str = "auto"
    transport: str = "auto"
    repeats: int = 3
    time_limit: float = float("inf")
    sequential_to: int = 5000
    csv: Path | None = None
    commit: str = field(default_factory=commit)


def run(order: Order, communicator: MPI.Comm = MPI.COMM_WORLD) -> int:
    """Measure all of it; rank 0 writes and prints. Returns 0 if everything was measured and right,
    else 1. Collective.
    """
    begun = time.monotonic()
    teams = {count: communicator.Split(communicator.rank >= count) for count in order.processes}
    site = _Site.of(communicator, LocalProducts(communicator, order.product).threads)
    known, wrong = set(), None
    if communicator.rank == 0:
        try:
            known = _measured(order)
        except (OSError, ValueError) as error:
            wrong = error
    raise_together(communicator, wrong)
    known = communicator.bcast(known)
    shown: list[dict[str, object]] = []
    left = 0
    if communicator.rank == 0:
        _show(list(COLUMNS))
    for shape in order.shapes:
        lone = None
        for count, team in teams.items():
            if (*shape, count) in known:
                continue
            if communicator.bcast(time.monotonic() - begun > order.time_limit):
                left += 1
                continue
            if lone is None:
                lone = _alone(communicator, order, shape, site.threads)
            rows = []
            if communicator.rank < count:
                rows = _Products(order, shape, team, site).rows(lone)
            if communicator.rank == 0:
                _report(order, rows)
                shown += rows
            _wait(communicator)
    for team in teams.values():
        team.Free()
    return _end(communicator, shown, left)


def _report(order: Order, rows: Sequence[dict[str, object]]) -> None:
    """Write the rows of one product, and show them."""
    if order.csv is not None:
        DISTRIBUTED.append(order.csv, rows)
    for row in rows:
        _show(_cells(row))


def _show(cells: Sequence[str]) -> None:
    """One line of the table, as soon as it is known: what mpirun passes on has no width."""
    placed = (f"{cell:>{width}}" for cell, width in zip(cells, COLUMNS.values(), strict=True))
    print("  ".join(placed), flush=True)


def _end(communicator: MPI.Comm, shown: Sequence[dict[str, object]], left: int) -> int:
    """What it comes to, and the exit status on every rank."""
    status = 0
    if communicator.rank == 0:
        for count in dict.fromkeys(row["processes"] for row in shown):
            ratios = [
                float(row["ratio"])
                for row in shown
                if row["engine"] == "pymm" and row["processes"] == count and row["ratio"]
            ]
            if ratios:
                mean = significant(float(np.exp(np.mean(np.log(ratios)))))
                print(
                    f"{count} processes: time of ScaLAPACK / time of pymm, geometric mean of "
                    f"{len(ratios)} products: {mean}"
                )
        for reason in dict.fromkeys(row["detail"] for row in shown if row["detail"]):
            print(reason)
        if left:
            print(f"{left} products were left out for want of time; the same command continues")
        status = int(bool(left) or any(row["outcome"] == "wrong" for row in shown))
    return communicator.bcast(status)


#: Of the table, with their widths.
COLUMNS = {
    "product": 17,
    "processes": 9,
    "grid": 8,
    "engine": 9,
    "time": 10,
    "GFLOP/s": 8,
    "speed-up": 8,
    "error": 7,
}


def _cells(row: dict[str, object]) -> list[str]:
    """One row as the table shows it. An error that is not 0 never reads 0."""
    product = f"{row['m']}x{row['n']}x{row['k']}"
    head = [product, str(row["processes"]), str(row["grid"]), str(row["engine"])]
    if not row.get("seconds"):
        return [*head, str(row["outcome"]), "", "", ""]
    speedup = f"{row['speedup']:.2f}" if row["speedup"] else "-"
    error = f"{row['error_inf']:.1e}" if row["error_inf"] else "0"
    rate = significant(float(row["gflops"]))
    return [*head, duration(float(row["seconds"])), rate, speedup, error]


def _measured(order: Order) -> set[tuple[int, ...]]:
    """Products, with numbers of processes, whose rows are in the file."""
    if order.csv is None or not DISTRIBUTED.begun(order.csv):
        return set()
    wanted = {"suite": order.suite, "dtype": order.dtype, "block": str(order.block)}
    found: dict[tuple[int, ...], set[str]] = {}
    for row in rows_of(order.csv, DISTRIBUTED.columns, ("m", "n", "k", "processes")):
        if all(row[name] == value for name, value in wanted.items()):
            key = tuple(int(row[name]) for name in ("m", "n", "k", "processes"))
            found.setdefault(key, set()).add(row["engine"])
    return {key for key, engines in found.items() if engines >= set(order.engines)}


# One process alone


def _wait(communicator: MPI.Comm) -> None:
    """A barrier whose processes sleep: on a host with fewer cores, those that work are not slowed
    down by those that wait.
    """
    request = communicator.Ibarrier()
    while not request.Test():
        time.sleep(NAP)


def _alone(communicator: MPI.Comm, order: Order, shape: Shape, threads: int) -> float:
    """Median seconds of rank 0 alone, with the threads that it has beside the others, who sleep; 0
    for a product that is too large for it.
    """
    median = 0.0
    if communicator.rank == 0 and max(shape) <= order.sequential_to:
        m, n, k = shape
        dtype = DTYPES[order.dtype]
        a, b, c = (
            whole(BlockCyclic(size, size, (1, 1)), function, dtype)
            for size, function in (((m, k), OPERANDS[0]), ((k, n), OPERANDS[1]), ((m, n), START))
        )
        products = LocalProducts(MPI.COMM_SELF, order.product, threads)
        times = []
        with products.limits():
            for repeat in range(order.repeats + 1):
                small = slice(None, None if repeat else WARM)
                begun = time.perf_counter()
                local = products.start(np.ascontiguousarray(c[small]), 1, 1)
                local.add(a[small], b, lambda: None)
                local.finish()
                times.append(time.perf_counter() - begun)
        median = float(np.median(times[1:]))
    _wait(communicator)
    return communicator.bcast(median)


# All processes


@dataclass(frozen=True)
class _Site:
    """What all rows say of where they come from."""

    device: str
    mpi: str
    threads: int  # of a process, however many of them take part
    rates: dict[int, Rates] = field(default_factory=dict)

    @classmethod
    def of(cls, communicator: MPI.Comm, threads: int) -> _Site:
        host = communicator.Split_type(MPI.COMM_TYPE_SHARED)
        cores = len(set().union(*host.allgather(usable_cores())))
        host.Free()
        name = f"{processor_name()}, {cores} core{'s' if cores > 1 else ''}"
        return cls(Device(name, "cpu").slug, library(), threads)


def usable_cores() -> set[int]:
    """The cores that the system gives to this process."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class _Products:
    """One product on the processes of a communicator: its matrices, and what each engine took."""

    def __init__(self, order: Order, shape: Shape, team: MPI.Comm, site: _Site) -> None:
        self.order, self.shape, self.team, self.site = order, shape, team, site
        self.dtype = DTYPES[order.dtype]
        self.products = LocalProducts(team, order.product, site.threads)
        if team.size not in site.rates:
            site.rates[team.size] = rates_of(team, self.products, self.dtype)
        rates = site.rates[team.size]
        item = self.dtype.itemsize
        grid = order.grid or full_grid(*shape, team.size, item, rates, order.block)
        self.plan = choose_panel(*shape, grid, item, rates=rates, block=order.block)
        if order.panel is not None:
            self.plan = Plan(*shape, grid, order.block, order.panel, item, rates)
        self.layouts = self.plan.layouts
        self.operands = [
            DistMatrix.generate(layout, function, self.dtype, team)
            for layout, function in zip(self.layouts, OPERANDS, strict=False)
        ]
        self.start = DistMatrix.generate(self.layouts[2], START, self.dtype, team)
        self.result = DistMatrix.zeros(self.layouts[2], self.dtype, team)
        self.reference = self._reference()
        self.at_root: list[np.ndarray | None] = [None] * 3
        if {"once", "document"} & set(order.engines) and team.rank == 0:
            made = zip(self.layouts, (*OPERANDS, START), strict=True)
            self.at_root = [whole(layout, function, self.dtype) for layout, function in made]

    def _reference(self) -> np.ndarray:
        """This process's part of C + A B in float64, from whole rows of A and columns of B."""
        of_c, k = self.layouts[2], self.shape[2]
        p, q, _ = of_c.coordinates(self.team.rank)
        rows, columns, inner = of_c.rows(p)[:, None], of_c.columns(q)[None], np.arange(k)
        a = OPERANDS[0](rows, inner[None]).astype(self.dtype).astype(np.float64)
        b = OPERANDS[1](inner[:, None], columns).astype(self.dtype).astype(np.float64)
        with self.products.limits():
            return self.start.local + a @ b

    def rows(self, alone: float) -> list[dict[str, object]]:
        """One row for each engine, on rank 0. Collective."""
        with self._engines() as (calls, missing):
            found = {name: self._first(call) for name, call in calls.items()}
            times: dict[str, list[float]] = {name: [] for name in calls}
            while not self._enough(times):
                for name, call in calls.items():
                    times[name].append(self._seconds(call))
        if self.team.rank:
            return []
        medians = {name: float(np.median(taken)) for name, taken in times.items()}
        made = []
        for name in self.order.engines:
            row = self._common(name)
            if name in missing:
                row |= {"outcome": "missing", "detail": one_line(missing[name])}
            else:
                row |= found[name] | self._figures(times[name], medians, name, alone)
            made.append(row)
        return made

    def _enough(self, times: dict[str, list[float]]) -> bool:
        """Whether every engine ran often enough: the same on all ranks, as the times are."""
        least = min(sum(taken) for taken in times.values())
        runs = min(len(taken) for taken in times.values())
        return runs >= self.order.repeats and (least >= ENOUGH_S or runs >= MOST_RUNS)

    @contextmanager
    def _engines(self) -> Iterator[tuple[dict[str, Callable], dict[str, str]]]:
        """What runs each engine once, and why the others cannot run. Each call is given a
        `Traffic` and returns the matrix of the result, on all ranks or as an array of rank 0.
        """
        scalapack, missing = None, {}
        calls: dict[str, Callable[[Traffic], object]] = {"pymm": self._pymm}
        if self.plan.grid.r > 1:
            missing["scalapack"] = "a grid of several layers: ScaLAPACK has none"
        elif "scalapack" in self.order.engines:
            try:
                scalapack = Scalapack(self.team, (self.plan.grid.p, self.plan.grid.q))
                calls["scalapack"] = lambda traffic: scalapack.matmul(*self._matrices(), beta=1)
            except NoScalapack as error:
                missing["scalapack"] = str(error)
        if self.plan.grid.r == 1:
            calls["once"] = lambda traffic: self._from_root("once", traffic)
            calls["document"] = lambda traffic: self._from_root("copies", traffic)
        else:
            missing |= dict.fromkeys(("once", "document"), "they have no grids of several layers")
        chosen = {name: calls[name] for name in self.order.engines if name in calls}
        try:
            with threadpool_limits(limits=self.site.threads, user_api="blas"):
                yield chosen, missing
        finally:
            if scalapack is not None:
                scalapack.close()

    def _matrices(self) -> list[DistMatrix]:
        return [*self.operands, self.result]

    def _pymm(self, traffic: Traffic) -> DistMatrix:
        return matmul(
            *self._matrices(),
            beta=1,
            panel=self.plan.panel,
            product=self.order.product,
            threads=self.site.threads,
            transport=self.order.transport,
            traffic=traffic,
        )

    def _from_root(self, send: str, traffic: Traffic) -> np.ndarray | None:
        return matmul_from_root(
            *self.at_root,
            grid=(self.plan.grid.p, self.plan.grid.q),
            block=self.layouts[2].block,
            beta=1,
            send=send,
            product=self.order.product,
            threads=self.site.threads,
            communicator=self.team,
            traffic=traffic,
        )

    def _seconds(self, call: Callable, traffic: Traffic | None = None) -> float:
        """Seconds of the slowest process, from C as it was at first. Keeps what it returned."""
        self.result.local[...] = self.start.local
        self.team.Barrier()
        begun = MPI.Wtime()
        self._returned = call(traffic or Traffic())
        return self.team.allreduce(MPI.Wtime() - begun, MPI.MAX)

    def _first(self, call: Callable) -> dict[str, object]:
        """A run that is not timed: whether it is right, and what was moved. Collective."""
        traffic = Traffic()
        self._seconds(call, traffic)
        result = self._returned
        if not isinstance(result, DistMatrix):
            result = DistMatrix.from_root(self.layouts[2], result, self.team)
        error, bound = self._error(result.local)
        received = self.team.allreduce(traffic.received, MPI.MAX) * self.dtype.itemsize
        handed_out = self.team.allreduce(traffic.handed_out, MPI.SUM)
        m, n, k = self.shape
        words = m * k + k * n
        return {
            "outcome": "ok" if error <= bound else "wrong",
            "error_inf": error,
            "received": received,
            "handed_out": handed_out / words if words and handed_out else "",
            "detail": "" if error <= bound else f"error_inf is above {bound:.2e}",
        }

    def _error(self, local: np.ndarray) -> tuple[float, float]:
        """|C - C64| / |C64| in the infinity norm, and the bound for it that holds whatever the
        order of the sums: gamma of k + 1 terms, each at most 1.
        """
        off = np.abs(local - self.reference).sum(axis=1)
        size = np.abs(self.reference).sum(axis=1)
        sums = np.zeros((2, self.shape[0]))
        p, _, _ = self.layouts[2].coordinates(self.team.rank)
        sums[:, self.layouts[2].rows(p)] = off, size
        self.team.Allreduce(MPI.IN_PLACE, sums, MPI.SUM)
        off, size = sums.max(axis=1, initial=0.0)
        m, n, k = self.shape
        bound = gamma(k + 1, self.order.dtype) * (k + 1) * n / size if size else 0.0
        return float(off / size) if size else float(off), float(bound)

    def _product(self, engine: str) -> str:
        """What multiplied panels; "gpu nccl" if NCCL moved them."""
        by_nccl = engine == "pymm" and self.order.transport != "mpi" and self.team.size > 1
        linked = by_nccl and self.operands[0].grid.links is not None
        return f"{self.products.name} nccl" if linked else self.products.name

    def _common(self, name: str) -> dict[str, object]:
        """What the rows of one product have in common."""
        m, n, k = self.shape
        plan = self.plan
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "device": self.site.device,
            "pymm": sys.modules["pymm"].__version__,
            "commit": self.order.commit,
            "mpi": self.site.mpi,
            "blas": blas(name == "scalapack"),
            "suite": self.order.suite,
            "engine": name,
            "product": "" if name == "scalapack" else self._product(name),
            "threads": self.site.threads,
            "dtype": self.order.dtype,
            **{"m": m, "n": n, "k": k, "processes": self.team.size},
            "grid": str(plan.grid).replace(" ", ""),
            "block": plan.block,
            "panel": plan.panel if name == "pymm" else "",
            "bound": round(plan.bound),
        }

    def _figures(
        self, taken: list[float], medians: dict[str, float], name: str, alone: float
    ) -> dict[str, object]:
        m, n, k = self.shape
        seconds = medians[name]
        row = {
            "repeats": len(taken),
            "seconds": seconds,
            "mean": float(np.mean(taken)),
            "fastest": min(taken),
            "gflops": 2e-9 * m * n * k / seconds,
            "sequential": alone or "",
            "speedup": alone / seconds if alone else "",
            "ratio": medians["scalapack"] / seconds if "scalapack" in medians else "",
        }
        if name == "scalapack":
            row["received"] = ""  # it does not say
        if name == "pymm":
            ranks = range(self.team.size)
            most = max(sum(self.plan.received_by(rank)) for rank in ranks)
            row |= {"planned": most * self.dtype.itemsize, "predicted": self.plan.seconds}
        return row


def rates_of(team: MPI.Comm, products: LocalProducts, dtype: np.dtype) -> Rates:
    """The rates of the processes of a communicator with their local products. Collective."""

    def multiply(c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        local = products.start(c, 1, 1)
        local.add(a, b, lambda: None)
        local.finish()

    with products.limits():
        return measure(team, multiply, dtype)
