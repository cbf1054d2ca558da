"""Kernels that get their matrices as tensor maps, and what is launched before and after them."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import pycuda.driver as drv
from pycuda._pvt_struct import pack

from pymm.backends.base import Matrix
from pymm.backends.cuda.context import Held, active, failure, working
from pymm.backends.cuda.driver import DriverError
from pymm.backends.cuda.executable import CudaExecutable, bound_call, own_launch
from pymm.backends.cuda.repacking import ROW_BYTES, Copy, fits, packed, wanted_copies
from pymm.kernels import Box
from pymm.kernels.declaration import parts_bytes, parts_of
from pymm.problem import Problem, stored_shapes

#: CUtensorMapDataType of the element types (cuda.h), and that of float32 that TMA rounds to tf32.
KINDS = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
ROUNDED_KIND = 11

#: Part of a device's memory that the copies of one stream may take: a longer stack is multiplied
#: in parts.
MOST_PADDING = 1 / 4

#: Threads of a block of `combine`, and the parts that each reads at a time; more threads share the
#: parts of a C that is too small to keep this many of a multiprocessor's busy.
COMBINING, AHEAD, BUSY = 256, 8, 512

#: maps m n k batch alpha beta stack_a stack_b boxed C ldc batch_c parts, the scalars apart
_PARAMETERS = "384s i i i i {0} {0} i i i Q q q Q"

#: parts C ldc batch_c alpha beta m n batch
_COMBINE = "PPqq{0}{0}iii"

#: Held while the launches of one product are queued: those of another thread on the same stream
#: must not come between, they use the same memory.
_turn = threading.Lock()


class MappedExecutable(CudaExecutable):
    """A kernel of three tensor maps.

    Operands that TMA cannot read, or that lie otherwise than the kernel wants, are copied first by
    the kernel file's `repack`, to memory that the launches of a stream share. So are the parts of a
    split product, which `combine` adds up. A C whose rows do not also end at multiples of 16 bytes
    is stored without its map: TMA reads rows of any length, but writes whole pieces of 16 bytes
    (seen on an H200: gaps behind the rows were written).
    """

    def __init__(self, *common: Any) -> None:
        *others, self._device = common
        super().__init__(*others)
        self._feed, self._parts = self.config.kernel.hopper, parts_of(self.config)

    def bind(
        self,
        problem: Problem,
        alpha: float,
        a: Matrix,
        b: Matrix,
        beta: float,
        c: Matrix,
        stream: Any = None,
    ) -> Callable[[], None]:
        copies = wanted_copies(self._feed, problem, a, b)
        most = min(self._most_blocks[2] // 2, self._together(copies))
        if problem.batch > most:
            return self._in_parts(most, problem, alpha, (a, b), beta, c, stream)
        context = self._contexts.current()
        loaded = self._in(context)
        self._check_alignment(problem, (a, b, c))
        self._prepare(loaded, context, problem)
        room = [copy.nbytes if copy else 0 for copy in copies]
        parts = parts_bytes(self.config, problem)
        memory = self._scratch(stream, sum(room) + parts)
        run = _Run(loaded, context, stream, problem, (alpha, beta), c)
        factors, moves, place = [a, b], [], memory.address
        for i, copy in enumerate(copies):
            if copy:
                factors[i] = copy.at(place)
                moves.append((copy, (a, b)[i], factors[i]))
                place += room[i]
        steps = [self._repack(run, moves)] if moves else []
        shapes = [copy.shape if copy else None for copy in copies]
        stacked = [int(matrix.batch_stride != 0) for matrix in (a, b)]
        steps.append(self._multiply(run, factors, shapes, stacked, place))
        if self._parts > 1:
            steps.append(self._combine(run, place))
        return _in_turn(steps, (self, a, b, c, memory))

    def _geometry(self, problem: Problem) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        _, block = super()._geometry(problem)
        return self.config.kernel.grid(self.config, problem, self._device.sms), block

    def _together(self, copies: list[Copy | None]) -> int:
        """Matrices of a stack whose copies may exist at a time: one at least."""
        one = sum(copy._replace(stack=1).nbytes for copy in copies if copy)
        most = int(self._device.memory_bytes * MOST_PADDING)
        return max(1, most // one) if one else self._most_blocks[2]

    def _prepare(self, loaded: Held, context: drv.Context, problem: Problem) -> None:
        """See to it that `loaded` has all functions, for both kinds of streams, and the places of
        the arguments. The driver says those for functions that it has loaded itself alone.
        """
        if hasattr(loaded, "places"):
            return
        driver = self._foreign(context, loaded, self._claim(loaded, context, problem))
        doing = f"loading {self.config.slug}"
        others = ("repack", "combine") if self._parts > 1 else ("repack",)
        with working(context, doing):
            for name in others:
                launch = loaded.module.get_function(name)._launch_kernel
                setattr(loaded, f"launch_{name}", launch)
            try:
                module, gemm = loaded.foreign
                handles = {name: driver.function(module, name) for name in others}
                places = driver.parameters(gemm, len(_PARAMETERS.split()))
            except DriverError as error:
                raise failure(context, error, doing) from error
        loaded.launch_gemm = loaded.launch
        loaded.handles = {"gemm": gemm, **handles}
        loaded.places = places

    def _multiply(
        self,
        run: _Run,
        factors: list[Matrix],
        shapes: list[tuple[int, int, int] | None],
        stacked: list[int],
        parts: int,
    ) -> Callable[[], None]:
        """The launch of the kernel itself. `shapes` are those of copied operands."""
        problem, c, places = run.problem, run.c, run.loaded.places
        grid, block = self._geometry(problem)
        shared = self._claim(run.loaded, run.context, problem)
        what = f"launching {self.config.slug} on {problem.slug} ({grid} blocks of {block} threads)"
        try:
            with active(run.context):
                maps = self._maps(run, factors, shapes)
        except DriverError as error:
            raise failure(run.context, error, what) from error
        values = (
            *(b"".join(maps), problem.m, problem.n, problem.k, problem.batch, *run.scalars),
            *(*stacked, int(any(maps[2])), c.address, c.ld, c.batch_stride, parts),
        )
        forms = _PARAMETERS.format(_scalar(problem)).split()
        room = bytearray(max(offset + size for offset, size in places))
        for (offset, _), form, value in zip(places, forms, values, strict=True):
            struct.pack_into(f"<{form}", room, offset, value)
        return self._launch(run, "gemm", (grid, block, bytes(room), shared), what)

    def _maps(
        self, run: _Run, factors: list[Matrix], shapes: list[tuple[int, int, int] | None]
    ) -> list[bytes]:
        """Tensor maps of A, B and C; zeros for those that the kernel does not use."""
        problem, c = run.problem, run.c
        boxes = self._feed.boxes(self.config, self._feed.received(problem))
        stored = stored_shapes(problem)
        maps = []
        for matrix, shape, lies, box in zip(factors, shapes, stored, boxes, strict=False):
            rounds = problem.dtype == "tf32" and shape is None
            kind = ROUNDED_KIND if rounds else KINDS[problem.numpy_dtype.name]
            described = kind, problem.numpy_dtype.itemsize, matrix, shape or lies, box
            maps.append(self._map(*described) if problem.k else bytes(128))
        size = problem.out_dtype.itemsize
        whole = fits(c, problem, size) and problem.n * size % ROW_BYTES == 0
        if whole and boxes[2] and self._parts == 1:
            maps.append(self._map(KINDS[problem.out_dtype.name], size, c, stored[2], boxes[2]))
        return maps if len(maps) == 3 else [*maps, bytes(128)]

    def _map(
        self, kind: int, size: int, matrix: Matrix, shape: tuple[int, int, int], box: Box
    ) -> bytes:
        """The tensor map of a stack. One that repeats a matrix has it once."""
        stack, rows, columns = shape
        step = matrix.batch_stride
        if step == 0 or stack == 1:
            stack, step = 1, rows * matrix.ld
        extents, strides = (columns, rows, stack), (matrix.ld * size, step * size)
        boxed = (box.columns, box.rows, 1), box.swizzle
        return self._driver.tensor_map(kind, matrix.address, extents, strides, *boxed)

    def _repack(self, run: _Run, moves: list[tuple[Copy, Matrix, Matrix]]) -> Callable[[], None]:
        """One launch that copies one or two stacks."""
        grid = sum(copy.blocks for copy, _, _ in moves), 1, 1
        shapes = [copy.shape for copy, _, _ in moves]
        what = f"copying matrices to shapes {shapes} for {self.config.slug}"
        return self._launch(run, "repack", (grid, (256, 1, 1), packed(moves), 0), what)

    def _combine(self, run: _Run, parts: int) -> Callable[[], None]:
        """The launch that adds up the parts: 16 bytes of a row for each thread."""
        problem, c = run.problem, run.c
        pieces = parts_bytes(self.config, problem) // self._parts // 16
        rows = 1
        while rows < 32 and rows * AHEAD < self._parts and pieces * rows < self._device.sms * BUSY:
            rows *= 2
        grid = -(-pieces * rows // COMBINING), 1, 1
        form = _COMBINE.format(_scalar(problem))
        place = parts, c.address, c.ld, c.batch_stride
        arguments = pack(form, *place, *run.scalars, problem.m, problem.n, problem.batch)
        what = f"adding up {self._parts} parts of {problem.slug}"
        block = COMBINING // rows, rows, 1
        return self._launch(run, "combine", (grid, block, arguments, 0), what)

    def _launch(self, run: _Run, function: str, launch: tuple, what: str) -> Callable[[], None]:
        """One launch: (grid, block, arguments, shared bytes) on a stream of any kind."""
        grid, block, arguments, shared = launch
        if isinstance(run.stream, int):
            handle = run.loaded.handles[function]
            call = self._driver.launcher(handle, grid, block, shared, run.stream, arguments)
        else:
            arguments = grid, block, arguments, shared, run.stream
            call = own_launch(run.loaded, f"launch_{function}", arguments)
        return bound_call(call, self._driver.current_context, run.context, what, (self,))


class _Run(NamedTuple):
    """What all launches of one product share."""

    loaded: Held
    context: drv.Context
    stream: Any
    problem: Problem
    scalars: tuple[float, float]
    c: Matrix


def _scalar(problem: Problem) -> str:
    """alpha and beta as `struct` spells them."""
    return "d" if problem.scalar_dtype.itemsize == 8 else "f"


def _in_turn(steps: list[Callable[[], None]], owners: tuple) -> Callable[[], None]:
    """One call of all `steps`; the matrices live as long as it."""
    if len(steps) == 1:
        steps[0].owners = owners
        return steps[0]

    def call() -> None:
        with _turn:
            for step in steps:
                step()

    call.owners = owners
    return call
