"""The plan of a distributed product, without MPI: the grid of processes, the panel width, the words
that each process receives, the lower bound for them, and the predicted time.

A grid P x Q x R splits m over P, n over Q and k over R. The R layers each compute a product of
their part of k with stationary C: panels of A are gathered along the rows of the grid, panels of B
along its columns, and the layers' results are added and scattered at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pymm.core.integers import ceil_div, round_up
from pymm.distributed.layout import BlockCyclic, numroc, product_layouts

#: Elements of k that a local product multiplies at full rate: of deeper panels, pieces of B leave
#: the caches. 3000 x 3000 x 3000 in float64 on 2 x 2 processes of a host with two cores, time of
#: ScaLAPACK / time of pymm: 1.05 with panels of 512, 0.88 with one of 3072.
WIDEST = 512


@dataclass(frozen=True, order=True)
class Grid:
    """P x Q x R processes: P parts of m, Q of n, R of k."""

    p: int
    q: int
    r: int = 1

    def __post_init__(self) -> None:
        if min(self.p, self.q, self.r) < 1:
            raise ValueError(f"a grid has at least one process each way, not {self}")

    @property
    def size(self) -> int:
        """Number of processes."""
        return self.p * self.q * self.r

    def __str__(self) -> str:
        return f"{self.p} x {self.q} x {self.r}"


@dataclass(frozen=True)
class Rates:
    """What one process does per second while all the others do the same.

    flops: operations of the local product; bandwidth: bytes received; latency: seconds of one
    message; memory: bytes of C read or written by the local product; overlap: the part of a
    transfer that takes no time where a product runs meanwhile, 0 to 1.

    The defaults are round figures of one core of a server and the shared memory of its host.
    """

    flops: float = 50e9
    bandwidth: float = 4e9
    latency: float = 10e-6
    memory: float = 10e9
    overlap: float = 0.5

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth", "memory"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}, not a positive number")
        if not 0 <= self.latency < math.inf:
            raise ValueError(f"latency is {self.latency}, not 0 or a positive number")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap is {self.overlap}, not a number from 0 to 1")


def volume(m: int, n: int, k: int, grid: Grid) -> float:
    """Words that a process receives, on average over the processes of the grid.

    mk/(PR) (1 - 1/Q) of A, kn/(QR) (1 - 1/P) of B and mn/(PQ) (1 - 1/R) of the partial results.
    """
    of_a = m * k / (grid.p * grid.r) * (1 - 1 / grid.q)
    of_b = k * n / (grid.q * grid.r) * (1 - 1 / grid.p)
    of_c = m * n / (grid.p * grid.q) * (1 - 1 / grid.r)
    return of_a + of_b + of_c


def lower_bound(m: int, n: int, k: int, p: int) -> float:
    """Words that at least one of p processes has to send or receive, whatever the algorithm and
    however much memory it has, if each begins with 1/p of the operands and ends with 1/p of C.

    H. Al Daas, G. Ballard, L. Grigori, S. Kumar, K. Rouse, Tight Memory-Independent Parallel Matrix
    Multiplication Communication Lower Bounds, SPAA 2022, theorem 3. With the extents x >= y >= z it
    is the least sum of three words counts that are at least yz/p, xz/p and xy/p and whose product
    is at least (xyz/p)^2, minus what a process holds already.
    """
    if p < 1:
        raise ValueError(f"there is at least one process, not {p}")
    x, y, z = sorted((m, n, k), reverse=True)
    if z == 0:
        return 0.0
    if p * y <= x:
        accessed = (x * y + x * z) / p + y * z
    elif p * z * z <= x * y:
        accessed = 2 * math.sqrt(x * y * z * z / p) + x * y / p
    else:
        accessed = 3 * (x * y * z / p) ** (2 / 3)
    return max(0.0, accessed - (x * y + x * z + y * z) / p)


@dataclass(frozen=True)
class Plan:
    """How C (m x n) <- A (m x k) B (k x n) is computed on `grid`, blocks of `block` elements each
    way, `panel` elements of k at a time, and what that is predicted to take. The busiest process
    counts: the one with the first block of every dimension.
    """

    m: int
    n: int
    k: int
    grid: Grid
    block: int
    panel: int
    itemsize: int
    rates: Rates = Rates()

    @property
    def rows(self) -> int:
        """Rows of C of the busiest process."""
        return numroc(self.m, self.block, 0, self.grid.p)

    @property
    def columns(self) -> int:
        """Columns of C of the busiest process."""
        return numroc(self.n, self.block, 0, self.grid.q)

    @property
    def depth(self) -> int:
        """Elements of k that the busiest layer multiplies, to whole blocks."""
        return _depth(self.k, self.block, self.grid.r)

    @property
    def steps(self) -> int:
        """Panels of a layer."""
        return ceil_div(self.depth, self.panel)

    @property
    def received(self) -> float:
        """Bytes that a process receives, on average."""
        return volume(self.m, self.n, self.k, self.grid) * self.itemsize

    @property
    def layouts(self) -> tuple[BlockCyclic, BlockCyclic, BlockCyclic]:
        """Of A, B and C."""
        grid = (self.grid.p, self.grid.q, self.grid.r)
        return product_layouts(self.m, self.n, self.k, self.block, grid)

    def received_by(self, rank: int) -> tuple[int, int, int]:
        """Words of A, B and C that one process receives, exactly: the rows of A and columns of B of
        its part of the product, less its own, and its part of C from every other layer.
        """
        a, b, c = self.layouts
        p, q, r = a.coordinates(rank)
        first, last = a.bounds(1, r)
        rows, held = a.local_shape(p, q, r)
        deep, columns = b.local_shape(p, q, r)
        own = math.prod(c.local_shape(r * self.grid.p + p, q))
        inner = last - first
        return rows * (inner - held), (inner - deep) * columns, (self.grid.r - 1) * own

    @property
    def bound(self) -> float:
        """Bytes of the lower bound for as many processes as the grid has."""
        return lower_bound(self.m, self.n, self.k, self.grid.size) * self.itemsize

    @property
    def ratio(self) -> float:
        """Received bytes / bound; 1 where nothing has to be received and nothing is."""
        if self.bound > 0:
            return self.received / self.bound
        return 1.0 if self.received == 0 else math.inf

    @property
    def memory(self) -> int:
        """Bytes of the busiest process: its parts of A, B and C, two panels of A and B where they
        are received, and the result of a layer where there are several.
        """
        of_a = self.rows * ceil_div(self.depth, self.grid.q)
        of_b = ceil_div(self.depth, self.grid.p) * self.columns
        of_c = self.rows * self.columns * (1 if self.grid.r == 1 else 2)
        wide = min(self.panel, self.depth)
        received = (self.rows if self.grid.q > 1 else 0) + (self.columns if self.grid.p > 1 else 0)
        return (of_a + of_b + of_c + min(2, self.steps) * wide * received) * self.itemsize

    @property
    def multiply_seconds(self) -> float:
        """The local products: their operations, and C read and written once a panel."""
        area = self.rows * self.columns
        traffic = 2 * area * self.itemsize * self.steps
        return 2 * area * self.depth / self.rates.flops + traffic / self.rates.memory

    @property
    def receive_seconds(self) -> float:
        """The panels of A and B."""
        of_a = self.rows * self.depth * (1 - 1 / self.grid.q)
        of_b = self.columns * self.depth * (1 - 1 / self.grid.p)
        messages = self.steps * (_rounds(self.grid.p) + _rounds(self.grid.q))
        bytes_in = (of_a + of_b) * self.itemsize
        return bytes_in / self.rates.bandwidth + messages * self.rates.latency

    @property
    def reduce_seconds(self) -> float:
        """The layers' results, added at the end."""
        words = self.rows * self.columns * (1 - 1 / self.grid.r)
        transfer = words * self.itemsize / self.rates.bandwidth
        return transfer + _rounds(self.grid.r) * self.rates.latency

    @property
    def seconds(self) -> float:
        """Predicted time. All panels but the first are received while the one before is multiplied,
        which hides the part `rates.overlap` of the shorter of the two.
        """
        if self.steps == 0:
            return 0.0
        shorter = min(self.multiply_seconds, self.receive_seconds)
        hidden = self.rates.overlap * (self.steps - 1) / self.steps * shorter
        return self.multiply_seconds + self.receive_seconds - hidden + self.reduce_seconds

    def describe(self) -> str:
        """The plan in lines for a reader."""
        ratio = f"{self.ratio:.3f}" if math.isfinite(self.ratio) else "-"
        gflops = 2e-9 * self.m * self.n * self.k / self.seconds if self.seconds else 0.0
        lines = (
            ("product", f"{self.m} x {self.n} x {self.k}, {self.itemsize} bytes an element"),
            ("grid", f"{self.grid} (parts of m, n and k): {self.grid.size} processes"),
            ("blocks", f"{self.block} x {self.block}, panels of {self.panel}: {self.steps} steps"),
            ("received by a process", f"{_bytes(self.received)}, on average"),
            ("lower bound", f"{_bytes(self.bound)}; received / bound {ratio}"),
            ("memory of a process", f"{_bytes(self.memory)}, at most"),
            ("predicted time", f"{self.seconds:.4g} s, {gflops:.4g} GFLOP/s"),
            ("of which products", f"{self.multiply_seconds:.4g} s"),
            ("panels received", f"{self.receive_seconds:.4g} s, in part during products"),
            ("results added", f"{self.reduce_seconds:.4g} s"),
        )
        width = max(len(name) for name, _ in lines)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def choose_grid(
    m: int,
    n: int,
    k: int,
    p: int,
    itemsize: int,
    memory: float = math.inf,
    rates: Rates | None = None,
    block: int = 64,
    layers: int | None = None,
) -> Plan:
    """The plan with the least predicted time of all grids of at most p processes that need at most
    `memory` bytes a process; of equal ones that with the least volume. `layers` fixes R.

    `ValueError` for no process and extents below 0; `MemoryError`, which says what the most frugal
    grid needs, if none fits.
    """
    _check(m, n, k, p, itemsize, block)
    rates = rates or Rates()
    best, least = None, math.inf
    for grid in sorted(grids(p, layers), key=lambda grid: -grid.size):
        if best and best[0][0] < 2 * m * n * k / grid.size / rates.flops:
            break  # with fewer processes the products alone take longer
        for plan in _panels(m, n, k, grid, block, itemsize, rates):
            least = min(least, plan.memory)
            if plan.memory > memory:
                continue
            key = (plan.seconds, plan.received, plan.grid, -plan.panel)
            if best is None or key < best[0]:
                best = key, plan
    if best is None:
        raise MemoryError(
            f"{m} x {n} x {k} on {p} processes needs at least {_bytes(least)} a process and "
            f"{_bytes(memory)} is allowed: use more processes, or allow more"
        )
    return best[1]


def choose_panel(
    m: int,
    n: int,
    k: int,
    grid: Grid,
    itemsize: int,
    memory: float = math.inf,
    rates: Rates | None = None,
    block: int = 64,
) -> Plan:
    """The plan on a given grid with the panel width of the least predicted time. Of those that do
    not fit in `memory` bytes a process the narrowest is taken if no other does.
    """
    _check(m, n, k, grid.size, itemsize, block)
    plans = list(_panels(m, n, k, grid, block, itemsize, rates or Rates()))
    fitting = [plan for plan in plans if plan.memory <= memory] or plans[:1]
    return min(fitting, key=lambda plan: (plan.seconds, -plan.panel))


def full_grid(
    m: int, n: int, k: int, p: int, itemsize: int, rates: Rates | None = None, block: int = 64
) -> Grid:
    """The grid P x Q of all p processes, in one layer, with the least predicted time: for data that
    other libraries share, and comparisons on a given number of processes.
    """
    _check(m, n, k, p, itemsize, block)
    found = [grid for grid in grids(p, 1) if grid.size == p]
    plans = [choose_panel(m, n, k, grid, itemsize, rates=rates, block=block) for grid in found]
    return min(plans, key=lambda plan: (plan.seconds, plan.received, plan.grid)).grid


def grids(p: int, layers: int | None = None) -> Iterator[Grid]:
    """All grids of at most p processes, of so many layers if it is said how many."""
    for r in range(1, p + 1) if layers is None else (layers,):
        for rows in range(1, p // r + 1):
            yield from (Grid(rows, columns, r) for columns in range(1, p // (r * rows) + 1))


def _panels(
    m: int, n: int, k: int, grid: Grid, block: int, itemsize: int, rates: Rates
) -> Iterator[Plan]:
    """Plans with panels of 1, 2, 4 ... units of lcm(P, Q) blocks, up to `WIDEST` elements or all of
    a layer's part of k: every process has as much of a unit as the others.
    """
    depth = min(WIDEST, max(1, _depth(k, block, grid.r)))
    width = unit = math.lcm(grid.p, grid.q) * block
    while width < depth:
        yield Plan(m, n, k, grid, block, width, itemsize, rates)
        width *= 2
    yield Plan(m, n, k, grid, block, min(width, round_up(depth, unit)), itemsize, rates)


def _depth(k: int, block: int, layers: int) -> int:
    """Elements of k in the largest of `layers` ranges of whole blocks, at most."""
    return min(k, ceil_div(ceil_div(k, block), layers) * block)


def _rounds(count: int) -> int:
    """Rounds of messages in which `count` processes exchange their parts."""
    return (count - 1).bit_length()


def _check(m: int, n: int, k: int, p: int, itemsize: int, block: int) -> None:
    if min(m, n, k) < 0:
        raise ValueError(f"the extents m, n, k are 0 or more, not {m}, {n}, {k}")
    for name, value in (("processes", p), ("bytes of an element", itemsize), ("block", block)):
        if value < 1:
            raise ValueError(f"{name}: {value}, where at least 1 is needed")


def _bytes(count: float) -> str:
    """A number of bytes in words: "12.5 MB"."""
    if math.isinf(count):
        return "no limit"
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count:.4g} bytes"
