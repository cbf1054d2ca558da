"""C <- alpha A B + beta C with all three matrices distributed.

Stationary C (SUMMA; R. van de Geijn, J. Watts, SUMMA: Scalable Universal Matrix Multiplication
Algorithm, 1997): every process computes its own part of C from its rows of A and its columns of B,
which come to it panel by panel, along k. A panel is many blocks wide (merged panels), and while one
is multiplied the next is on its way (look-ahead). On a grid of several layers each layer multiplies
its range of k, and the layers' results are added up and spread over them (the 2.5-D algorithms;
E. Solomonik, J. Demmel, Euro-Par 2011).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from pymm.core.integers import ceil_div, round_up
from pymm.distributed.communicator import MPI, ProcessGrid, check_same, everywhere
from pymm.distributed.gpu_panels import GpuPanels, Links, links
from pymm.distributed.layout import BlockCyclic
from pymm.distributed.local_products import local_products, scale
from pymm.distributed.matrix import DistMatrix
from pymm.distributed.panels import Panels

#: Elements along k of a panel, where it is left to pymm: rounded up to a multiple of lcm(P, Q)
#: blocks, so that every process has a part of each panel.
PANEL = 512

#: Bytes of partial results that layers add up at once.
REDUCED_BYTES = 1 << 26


@dataclass
class Traffic:
    """What a product moved and waited for, in one process: elements of A, of B and of partial
    results of C that it received from other processes, elements of A and B that it sent as a root,
    panels, and seconds spent waiting for panels and multiplying them. Where NCCL moves panels, all
    of that time is `multiplying_s`: the host does not know for what the GPU waits.
    """

    a: int = 0
    b: int = 0
    c: int = 0
    handed_out: int = 0
    panels: int = 0
    waiting_s: float = 0.0
    multiplying_s: float = 0.0

    @property
    def received(self) -> int:
        """All elements that this process received."""
        return self.a + self.b + self.c


def matmul(
    a: DistMatrix,
    b: DistMatrix,
    c: DistMatrix | None = None,
    *,
    alpha: float = 1,
    beta: float | None = None,
    panel: int | None = None,
    look_ahead: bool = True,
    product: str = "auto",
    threads: int | None = None,
    transport: str = "auto",
    traffic: Traffic | None = None,
) -> DistMatrix:
    """`alpha a b + beta c`, into `c`, which is returned; without `c` into a new matrix. Collective.

    a, b, c: m x k, k x n and m x n, of one dtype, on one communicator, with the layouts that
        `product_layouts` makes: a and b on the same grid of P x Q in R layers, c on (P R) x Q; the
        blocks of a and b have the same extent along k, those of c the extents of a's rows and b's
        columns.
    beta: factor of c, 0 if left out; then c is not read. alpha = 0 reads neither a nor b.
    panel: elements along k that are gathered and multiplied at once, rounded up to whole blocks;
        left out, about 512. Each process needs room for two panels of a and of b.
    look_ahead: gather the next panel while one is multiplied.
    product: what multiplies panels in each process: "blas" (SciPy's), "cpu" (pymm's tuned
        kernel), "gpu" (pymm's tuned kernel on the GPUs of the host, taken in turn), or "auto": the
        GPUs if every process finds one, else the BLAS.
    threads: of a process, for "blas" and "cpu"; left out, its share of the host's cores.
    transport: how panels travel for "gpu": "mpi" (through the hosts), "nccl" (from GPU to GPU;
        nccl4py, and a GPU of its own for every process), or "auto": NCCL where it can.
    traffic: what was moved is added to it.

    Raises on every rank the same `ValueError` (shapes, layouts, scalars, arguments that differ
    between ranks), `TypeError` (objects, dtypes), `NoDevice` (no GPU, or NCCL cannot reach it); on
    the rank where they happen
    `MemoryError` and the errors of `pymm.matmul`.
    """
    _check(a, b, c, alpha, beta, panel, look_ahead, product, threads, transport)
    products = local_products(a.communicator, product, threads)
    gpus = links(a.communicator, a.grid, products, transport)
    if c is None:
        c = DistMatrix._empty(_result_layout(a, b), a.local.dtype, a.communicator)
    beta = 0 if beta is None else beta
    traffic = Traffic() if traffic is None else traffic
    k = a.layout.shape[1]
    if alpha == 0 or k == 0 or 0 in c.layout.shape:
        scale(c.local, beta)
        return c
    grid = a.grid
    step = _panel_width(a.layout, panel)
    with products.limits():
        if a.layout.layers == 1:
            into = c.local, alpha, beta
            _multiply(grid, a, b, into, step, look_ahead, products, gpus, traffic)
        else:
            shape = a.local.shape[0], b.local.shape[1]
            partial = np.empty(shape, c.local.dtype)
            into = partial, alpha, 0
            _multiply(grid, a, b, into, step, look_ahead, products, gpus, traffic)
            scale(c.local, beta)
            _reduce(grid, a.layout.block[0], partial, c.local, traffic)
    return c


def _check(a, b, c, alpha, beta, panel, look_ahead, product, threads, transport) -> None:
    """Raise what `matmul` raises for its arguments."""
    given = {"a": a, "b": b} | ({} if c is None else {"c": c})
    for name, x in given.items():
        if not isinstance(x, DistMatrix):
            raise TypeError(f"{name} is a DistMatrix; got {type(x).__name__}")
    described = {name: (x.layout, x.local.dtype.name) for name, x in given.items()}
    options = {"alpha": alpha, "beta": beta, "panel": panel, "look_ahead": look_ahead}
    options |= {"product": product, "threads": threads, "transport": transport}
    check_same(a.communicator, **described, **options)
    with everywhere(a.communicator):
        for name, x in given.items():
            same = MPI.Comm.Compare(x.communicator, a.communicator)
            if same not in (MPI.IDENT, MPI.CONGRUENT):
                raise ValueError(f"{name} is on another communicator than a")
            if x.local.dtype != a.local.dtype:
                dtypes = " and ".join((a.local.dtype.name, x.local.dtype.name))
                raise TypeError(f"a and {name} are of {dtypes}; convert one of them")
        check_scalars(alpha, beta)
        if c is None and beta not in (None, 0):
            raise ValueError(f"beta = {beta} is the factor of c, and there is no c")
        if panel is not None and panel < 1:
            raise ValueError(f"panel is 1 or more elements; got {panel}")
        _check_layouts(a.layout, b.layout, c.layout if c else _result_layout(a, b))


def check_scalars(alpha: float, beta: float | None) -> None:
    """`TypeError` unless the two are real numbers, or beta None."""
    for name, value in (("alpha", alpha), ("beta", 0 if beta is None else beta)):
        if not isinstance(value, int | float | np.integer | np.floating):
            raise TypeError(f"{name} is a real number; got {value!r}")


def _result_layout(a: DistMatrix, b: DistMatrix) -> BlockCyclic:
    (rows, columns), layers = a.layout.grid, a.layout.layers
    shape = a.layout.shape[0], b.layout.shape[1]
    return BlockCyclic(shape, (a.layout.block[0], b.layout.block[1]), (rows * layers, columns))


def _check_layouts(a: BlockCyclic, b: BlockCyclic, c: BlockCyclic) -> None:
    if a.shape[1] != b.shape[0] or c.shape != (a.shape[0], b.shape[1]):
        raise ValueError(f"shapes do not match: a {a.shape}, b {b.shape}, c {c.shape}")
    if a.grid != b.grid or a.layers != b.layers:
        raise ValueError(
            f"a and b are on one grid; got {a.grid} in {a.layers} and {b.grid} in {b.layers} layers"
        )
    if a.layers > 1 and (a.axis, b.axis) != (1, 0):
        raise ValueError("layers split the columns of a (axis 1) and the rows of b (axis 0)")
    blocks = (a.block[0], a.block[1], b.block[1])
    if b.block[0] != a.block[1] or c.block != (a.block[0], b.block[1]):
        raise ValueError(
            f"blocks do not match: a {a.block}, b {b.block}, c {c.block}; with a's they are "
            f"a {blocks[:2]}, b {blocks[1:]}, c {blocks[::2]}"
        )
    expected = (a.grid[0] * a.layers, a.grid[1])
    if c.grid != expected or c.layers != 1:
        raise ValueError(f"c is on a grid of {expected} in one layer; got {c.grid} in {c.layers}")


def _panel_width(layout: BlockCyclic, panel: int | None) -> int:
    """Elements along k of a panel of A: whole blocks, and no more than there are."""
    block = layout.block[1]
    if panel is None:
        unit = math.lcm(*layout.grid) * block
        panel = round_up(PANEL, unit)
    widest = ceil_div(ceil_div(layout.shape[1], block), layout.layers)  # blocks of a layer
    return min(ceil_div(panel, block), widest) * block


def _multiply(
    grid: ProcessGrid, a, b, into, width: int, look_ahead, products, gpus: Links | None, traffic
) -> None:
    """C <- alpha A B + beta C with this layer's range of k; `into` = (C, alpha, beta)."""
    first, last = a.layout.bounds(1, grid.r)
    if first == last:  # a layer without any of k
        scale(into[0], into[2])
    elif gpus is None:
        _multiply_panels(grid, a, b, into, width, look_ahead, products, traffic)
    else:
        start = time.perf_counter()
        panels = GpuPanels(grid, gpus, a, b, into, products.backend)
        traffic.panels += panels.multiply(width, look_ahead)
        traffic.multiplying_s += time.perf_counter() - start
        traffic.a += panels.received_a
        traffic.b += panels.received_b


def _multiply_panels(grid, a, b, into, width, look_ahead, products, traffic) -> None:
    """`_multiply` with panels that MPI brings."""
    first, last = a.layout.bounds(1, grid.r)
    steps = ceil_div(last - first, width)
    buffers = 2 if look_ahead and steps > 1 else 1
    of_a = Panels(grid.row, a.layout, a.local, 1, grid.r, width, buffers)
    of_b = Panels(grid.column, b.layout, b.local, 0, grid.r, width, buffers)
    local = products.start(*into)
    ahead = None
    for step in range(steps):
        pending = ahead or [of_a.start(step), of_b.start(step)]
        start = time.perf_counter()
        MPI.Request.Waitall(pending)
        arrived = time.perf_counter()
        ahead = None
        if look_ahead and step + 1 < steps:
            ahead = [of_a.start(step + 1), of_b.start(step + 1)]
        between = _progress(ahead)
        local.add(of_a.panel(step), of_b.panel(step), between)
        traffic.waiting_s += arrived - start
        traffic.multiplying_s += time.perf_counter() - arrived
    start = time.perf_counter()
    local.finish()
    traffic.multiplying_s += time.perf_counter() - start
    traffic.a += of_a.received
    traffic.b += of_b.received
    traffic.panels += steps
    of_a.free()
    of_b.free()


def _progress(requests: list[MPI.Request] | None):
    """A call that lets the MPI library move what is on its way."""
    if not requests:
        return lambda: None

    def between() -> None:
        MPI.Request.Testall(requests)

    return between


def _reduce(grid: ProcessGrid, block: int, partial, c, traffic: Traffic) -> None:
    """Add the layers' partial results to C, of which layer r keeps every R-th block of rows, from
    the r-th on. Some blocks at a time, so that little room is needed besides.
    """
    layers, columns = grid.shape[2], partial.shape[1]
    if not partial.size:
        return
    unit = layers * block
    rows = unit * max(1, REDUCED_BYTES // (unit * columns * partial.itemsize))
    kept = 0
    for top in range(0, partial.shape[0], rows):
        part = partial[top : top + rows]
        keepers = np.arange(len(part)) // block % layers
        counts = np.bincount(keepers, minlength=layers) * columns
        packed = part[np.argsort(keepers, kind="stable")]
        own = np.empty((counts[grid.r] // columns, columns), partial.dtype)
        grid.depth.Reduce_scatter(packed, own, counts, MPI.SUM)
        traffic.c += (layers - 1) * own.size
        c[kept : kept + len(own)] += own
        kept += len(own)
