"""Kernels that get their matrices as tensor maps, and the copies that make every matrix fit one."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pycuda.driver as drv
from pycuda._pvt_struct import pack

from pymm.backends.base import Matrix
from pymm.backends.cuda.context import Held, active, failure, working
from pymm.backends.cuda.driver import DriverError
from pymm.backends.cuda.executable import CudaExecutable, bound_call, foreign_call
from pymm.problem import Problem, stored_shapes

#: CUtensorMapDataType of the element types (cuda.h).
KINDS = {"f16": 6, "bf16": 9}

#: Rows of a tensor map start at multiples of this many bytes (CUDA driver API,
#: "cuTensorMapEncodeTiled").
ROW_BYTES = 16

#: Copied rows start at multiples of this many elements: 128 bytes.
PITCH = 64

#: Rows and columns of the boxes that the kernels fetch and store.
BOX = 64

#: Part of a device's memory that the copies of one stream may take: a longer stack is multiplied
#: in parts.
MOST_PADDING = 1 / 4

#: maps m n k batch alpha beta stack_a stack_b boxed C ldc batch_c
_PARAMETERS = "384s i i i i f f i i i Q q q".split()

#: from to ld batch pitch rows columns count unused
_COPY = "PPqqqIIII"

#: Held while the launches of one product are queued: those of another thread on the same stream
#: must not come between, they use the same memory.
_turn = threading.Lock()


class MappedExecutable(CudaExecutable):
    """A kernel of three tensor maps.

    Operands whose rows do not start at multiples of 16 bytes are copied first, by the kernel file's
    `repack`, to memory that the launches of a stream share. A C whose rows do not also end there is
    stored without its map: TMA reads rows of any length, but writes whole pieces of 16 bytes (seen
    on an H200: gaps behind the rows were written).
    """

    def __init__(self, *common: Any) -> None:
        *others, self._device = common
        super().__init__(*others)

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
        shapes = [
            (shape[0] if matrix.batch_stride else 1, *shape[1:])
            for shape, matrix in zip(stored_shapes(problem), (a, b), strict=False)
        ]
        moved = [problem.k > 0 and not _fits(x, problem) for x in (a, b)]
        most = min(self._most_blocks[2] // 2, self._together(shapes, moved))
        if problem.batch > most:
            return self._in_parts(most, problem, alpha, (a, b), beta, c, stream)
        context = self._contexts.current()
        loaded = self._in(context)
        self._check_alignment(problem, (a, b, c))
        self._prepare(loaded, context, problem)
        room = [_padded_bytes(shape) * copied for shape, copied in zip(shapes, moved, strict=True)]
        memory = self._scratch(stream, sum(room))
        factors, steps, copies = [a, b], [], []
        for i, at in enumerate((memory.address, memory.address + room[0])):
            if moved[i]:
                pitch = _pitch(shapes[i][2])
                step = shapes[i][1] * pitch if factors[i].batch_stride else 0
                copy = Matrix(at, pitch, step)
                copies.append((factors[i], copy, shapes[i]))
                factors[i] = copy
        if copies:
            steps.append(self._repack(loaded, context, copies, stream))
        steps.append(self._multiply(loaded, context, problem, alpha, factors, beta, c, stream))
        return _in_turn(steps, (self, a, b, c, memory))

    def _geometry(self, problem: Problem) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        _, block = super()._geometry(problem)
        return self.config.kernel.grid(self.config, problem, self._device.sms), block

    def _together(self, shapes: list[tuple[int, int, int]], moved: list[bool]) -> int:
        """Matrices of a stack whose copies may exist at a time: one at least."""
        pairs = zip(shapes, moved, strict=True)
        one = sum(_padded_bytes((1, *shape[1:])) for shape, copied in pairs if copied)
        most = int(self._device.memory_bytes * MOST_PADDING)
        return max(1, most // one) if one else self._most_blocks[2]

    def _prepare(self, loaded: Held, context: drv.Context, problem: Problem) -> None:
        """See to it that `loaded` has both functions, for both kinds of streams, and the places of
        the arguments. The driver says those for functions that it has loaded itself alone.
        """
        if hasattr(loaded, "places"):
            return
        driver = self._foreign(context, loaded, self._claim(loaded, context, problem))
        doing = f"loading {self.config.slug}"
        with working(context, doing):
            repack = loaded.module.get_function("repack")
            try:
                module, gemm = loaded.foreign
                loaded.handles = {"gemm": gemm, "repack": driver.function(module, "repack")}
                places = driver.parameters(gemm, len(_PARAMETERS))
            except DriverError as error:
                raise failure(context, error, doing) from error
        loaded.launches = {"gemm": loaded.launch, "repack": repack._launch_kernel}
        loaded.places = places

    def _multiply(
        self,
        loaded: Held,
        context: drv.Context,
        problem: Problem,
        alpha: float,
        factors: list[Matrix],
        beta: float,
        c: Matrix,
        stream: Any,
    ) -> Callable[[], None]:
        grid, block = self._geometry(problem)
        shared = self._claim(loaded, context, problem)
        what = f"launching {self.config.slug} on {problem.slug} ({grid} blocks of {block} threads)"
        boxed = _fits(c, problem) and problem.n * problem.numpy_dtype.itemsize % ROW_BYTES == 0
        used = (problem.k > 0, problem.k > 0, boxed)
        try:
            with active(context):
                matrices = zip((*factors, c), stored_shapes(problem), used, strict=True)
                maps = [self._map(problem, x, s) if use else bytes(128) for x, s, use in matrices]
        except DriverError as error:
            raise failure(context, error, what) from error
        values = (
            *(b"".join(maps), problem.m, problem.n, problem.k, problem.batch, alpha, beta),
            *(int(x.batch_stride != 0) for x in factors),
            *(int(boxed), c.address, c.ld, c.batch_stride),
        )
        packed = bytearray(sum(loaded.places[-1]))
        for (offset, _), form, value in zip(loaded.places, _PARAMETERS, values, strict=True):
            struct.pack_into(f"<{form}", packed, offset, value)
        launch = grid, block, bytes(packed), shared
        return self._launch(loaded, context, "gemm", launch, stream, what)

    def _map(self, problem: Problem, matrix: Matrix, shape: tuple[int, int, int]) -> bytes:
        """The tensor map of a stack. One that repeats a matrix has it once."""
        batch, rows, columns = shape
        size, step = problem.numpy_dtype.itemsize, matrix.batch_stride
        if step == 0 or batch == 1:
            batch, step = 1, rows * matrix.ld
        extents, strides = (columns, rows, batch), (matrix.ld * size, step * size)
        kind = KINDS[problem.dtype]
        return self._driver.tensor_map(kind, matrix.address, extents, strides, (BOX, BOX, 1))

    def _repack(
        self,
        loaded: Held,
        context: drv.Context,
        copies: list[tuple[Matrix, Matrix, tuple[int, int, int]]],
        stream: Any,
    ) -> Callable[[], None]:
        """One launch that copies one or two stacks: source, target, shape."""
        values: list[int] = []
        for source, target, (batch, rows, columns) in copies:
            values += (source.address, target.address, source.ld, source.batch_stride)
            values += (target.ld, rows, columns, batch, 0)
        packed = pack(2 * _COPY, *values, *[0] * (2 * len(_COPY) - len(values)))
        shapes = [shape for _, _, shape in copies]
        columns, rows = max(s[2] for s in shapes), max(s[1] for s in shapes)
        grid = -(-columns // 256), min(-(-rows // 8), 2**15), sum(s[0] for s in shapes)
        what = f"copying matrices of shapes {shapes} for {self.config.slug}"
        launch = grid, (32, 8, 1), packed, 0
        return self._launch(loaded, context, "repack", launch, stream, what)

    def _launch(
        self,
        loaded: Held,
        context: drv.Context,
        function: str,
        launch: tuple,
        stream: Any,
        what: str,
    ) -> Callable[[], None]:
        """One launch: (grid, block, arguments, shared bytes) on a stream of any kind."""
        grid, block, packed, shared = launch
        if isinstance(stream, int):
            handle = loaded.handles[function]
            call = self._driver.launcher(handle, grid, block, shared, stream, packed)
            return foreign_call(call, context, what, (self,))
        kernel = SimpleNamespace(launch=loaded.launches[function])
        return bound_call(kernel, (grid, block, packed, shared, stream), context, what, (self,))


def _fits(matrix: Matrix, problem: Problem) -> bool:
    """Whether a tensor map can describe the matrix as it lies."""
    size = problem.numpy_dtype.itemsize
    places = [matrix.address, matrix.ld * size]
    places += [matrix.batch_stride * size] if problem.batch > 1 else []
    return all(place % ROW_BYTES == 0 for place in places)


def _pitch(columns: int) -> int:
    return -(-columns // PITCH) * PITCH


def _padded_bytes(shape: tuple[int, int, int]) -> int:
    batch, rows, columns = shape
    return batch * rows * _pitch(columns) * 2


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
