"""One product of NumPy matrices on one device, in the blocks of a tiling.

Three queues of the device overlap: slices in, products, tiles of C out. Two threads feed them: the
caller's fills staging and queues copies and launches, another one takes tiles out. The host waits
for the device only where staging is full and where the place of a tile is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pymm.backends.base import Backend, Mark, Matrix, Vector
from pymm.backends.matrices import alignment
from pymm.blocked.plan import Tiling
from pymm.core.epilogue import NO_EPILOGUE, Epilogue
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.runtime.bind import executable
from pymm.selection.choose import choose


@dataclass(frozen=True)
class Factors:
    """The matrices of one product, as m x k, k x n and m x n views of NumPy arrays of any strides;
    `c` is None where C is not read. `out` shares no memory with `a` and `b`, and with `c` only if
    it is `c`.
    """

    a: np.ndarray
    b: np.ndarray
    c: np.ndarray | None
    out: np.ndarray


class Stopped(RuntimeError):
    """Another device failed: its error is the one to be raised."""


class Slots:
    """Places on a device for slices of A, slices of B or tiles of C. `ready` says that a slot was
    filled, `free` that nobody needs any more what is in it.
    """

    def __init__(self, backend: Backend, count: int, nbytes: int, pitch: int) -> None:
        self.pitch = pitch
        self.buffers = [backend.allocate(nbytes) for _ in range(count)]
        self.ready: list[Mark] = [backend.new_mark() for _ in range(count)]
        self.free: list[Mark] = [backend.new_mark() for _ in range(count)]
        self.content: list[Any] = [None] * count


class Streamed:
    """A product on its way through a device. `problem` is that of a whole tile and slice, `config`
    its configuration; `alpha` and `beta` those of the call. The epilogue is that of the last slice
    of each tile, and `bias` its bias.
    """

    def __init__(
        self,
        backend: Backend,
        tiling: Tiling,
        problem: Problem,
        config: Config,
        scalars: tuple[float, float],
        stop: threading.Event | None = None,
        epilogue: Epilogue = NO_EPILOGUE,
        bias: np.ndarray | None = None,
    ) -> None:
        self._backend, self._tiling = backend, tiling
        self._epilogue, self._bias = epilogue, None
        self._problem, self._config, self._scalars = problem, config, scalars
        self._stop = stop or threading.Event()
        self._in, self._out, self._compute = (backend.queue() for _ in range(3))
        self._a = Slots(backend, tiling.a_slots, *tiling.a_slice)
        self._b = Slots(backend, tiling.b_slots, *tiling.b_slice)
        self._c = Slots(backend, tiling.tiles, *tiling.c_tile)
        self._launches: dict[tuple, Callable[[], None]] = {}
        self._step = self._tile = 0
        if bias is not None:
            self._upload_bias(bias)

    def _upload_bias(self, bias: np.ndarray) -> None:
        """Have it on the device before the first product."""
        self._bias, there = self._backend.allocate(max(bias.nbytes, 1)), self._backend.new_mark()
        self._in.upload(bias[None, :], bias.dtype, self._bias.address, bias.nbytes)
        self._in.mark(there)
        self._compute.wait(there)

    def _bias_of(self, part: tuple[slice, slice]) -> Vector | None:
        """The bias of a tile."""
        if self._bias is None:
            return None
        tile = part[0] if self._epilogue.down else part[1]
        first = tile.start * self._epilogue.bias.itemsize
        return Vector(self._bias.address + first, tile.stop - tile.start, self._bias)

    @property
    def bytes_in(self) -> int:
        """Bytes that went to the device."""
        return self._in.bytes_in

    @property
    def bytes_out(self) -> int:
        """Bytes that came back."""
        return self._out.bytes_out

    def run(self, products: list[Factors]) -> None:
        """Multiply, one product after the other. Returns when all results are there."""
        with ThreadPoolExecutor(1, thread_name_prefix="pymm-out") as drain:
            try:
                pending = [done for one in products for done in self._tiles(one, drain)]
                for done in pending:
                    done.result()
            finally:
                for queue in (self._in, self._compute):
                    with suppress(LaunchFailed, MemoryError):
                        queue.synchronize()

    def _tiles(self, factors: Factors, drain: ThreadPoolExecutor) -> list[Future]:
        tiling = self._tiling
        pending = []
        for i in range(0, tiling.work.m, tiling.rows):
            for j in range(0, tiling.work.n, tiling.columns):
                part = slice(i, i + tiling.rows), slice(j, j + tiling.columns)
                pending.append(self._one_tile(factors, part, drain))
        return pending

    def _one_tile(
        self, factors: Factors, part: tuple[slice, slice], drain: ThreadPoolExecutor
    ) -> Future:
        """Queue all of one tile. The future is done when its result is on the host."""
        tiling, c = self._tiling, self._c
        slot = self._tile % len(c.buffers)
        self._tile += 1
        k = tiling.work.k
        for number, start in enumerate(range(0, max(k, 1), max(tiling.depth, 1))):
            if self._stop.is_set():
                raise Stopped
            depth = slice(start, min(start + tiling.depth, k))
            a = self._slice_of_a(factors, part[0], depth, number)
            b = self._slice_of_b(factors, part[1], depth)
            if number == 0:
                self._begin(factors, part, slot)
            self._multiply(part, depth, (a, b, slot), factors)
            self._step += 1
        self._compute.mark(c.ready[slot])
        c.content[slot] = drain.submit(self._take_out, factors.out[part], slot)
        return c.content[slot]

    def _begin(self, factors: Factors, part: tuple[slice, slice], slot: int) -> None:
        """See to it that the tile's place is free, and holds C where that is added to."""
        c = self._c
        if c.content[slot] is not None:
            c.content[slot].result()
        if factors.c is not None:
            given, address = factors.c[part], c.buffers[slot].address
            self._in.upload(given, self._problem.out_dtype, address, c.pitch)
            self._in.mark(c.free[slot])
            self._compute.wait(c.free[slot])

    def _take_out(self, out: np.ndarray, slot: int) -> None:
        self._out.wait(self._c.ready[slot])
        address, dtype = self._c.buffers[slot].address, self._problem.out_dtype
        self._out.download(address, self._c.pitch, dtype, out)

    def _slice_of_a(self, factors: Factors, rows: slice, depth: slice, number: int) -> int:
        slot = number if self._tiling.keep else self._step % len(self._a.buffers)
        what = factors.a[rows, depth]
        key = (id(factors), rows.start, depth.start) if self._tiling.keep else None
        self._fill(self._a, slot, what, self._tiling.work.a_by_columns, key)
        return slot

    def _slice_of_b(self, factors: Factors, columns: slice, depth: slice) -> int:
        slot = self._step % len(self._b.buffers)
        what = factors.b[depth, columns]
        self._fill(self._b, slot, what, self._tiling.work.b_by_columns, None)
        return slot

    def _fill(self, slots: Slots, slot: int, what: np.ndarray, turned: bool, key: Any) -> None:
        """Queue the copy of a slice into its slot, unless it is there already."""
        if key is not None and slots.content[slot] == key or not what.size:
            return
        slots.content[slot] = key
        self._in.wait(slots.free[slot])
        address, dtype = slots.buffers[slot].address, self._problem.numpy_dtype
        self._in.upload(what.T if turned else what, dtype, address, slots.pitch)
        self._in.mark(slots.ready[slot])
        self._compute.wait(slots.ready[slot])

    def _multiply(
        self,
        part: tuple[slice, slice],
        depth: slice,
        slots: tuple[int, int, int],
        factors: Factors,
    ) -> None:
        (m, n), k = factors.out[part].shape, depth.stop - depth.start
        alpha, beta = self._scalars
        beta = 1.0 if depth.start else beta if factors.c is not None else 0.0
        last = depth.stop == self._tiling.work.k
        epilogue = self._epilogue if last else NO_EPILOGUE
        bias = self._bias_of(part) if last else None
        key = (m, n, k, beta, epilogue, bias, *slots)
        launch = self._launches.get(key)
        if launch is None:
            launch = self._bind((m, n, k), (alpha, beta), slots, epilogue, bias)
            self._launches[key] = launch
        launch()
        self._compute.mark(self._a.free[slots[0]])
        self._compute.mark(self._b.free[slots[1]])

    def _bind(
        self,
        shape: tuple[int, int, int],
        scalars: tuple[float, float],
        slots: tuple[int, ...],
        epilogue: Epilogue,
        bias: Vector | None,
    ) -> Callable[[], None]:
        m, n, k = shape
        problem = replace(self._problem, m=m, n=n, k=k)
        sizes = [problem.numpy_dtype.itemsize] * 2 + [problem.out_dtype.itemsize]
        a, b, c = (
            Matrix(x.buffers[slot].address, x.pitch // size, 0, x.buffers[slot])
            for x, slot, size in zip((self._a, self._b, self._c), slots, sizes, strict=True)
        )
        config = config_for(self._backend, problem, self._config)
        aligned = alignment(problem, (a, b, c))
        kernel = executable(self._backend, config, problem, aligned, epilogue)
        alpha, beta = scalars
        return kernel.bind(problem, alpha, a, b, beta, c, self._compute.stream, bias)


def config_for(backend: Backend, problem: Problem, config: Config) -> Config:
    """`config` where it may run `problem`, else what would be chosen for it."""
    try:
        return choose(backend, problem, None, config).config
    except ValueError:
        return choose(backend, problem).config
