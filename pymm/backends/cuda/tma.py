"""Kernels that read their operands through TMA tensor maps: which operands are read in place, where
the others are repacked to, and what is launched before and after the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pycuda.driver as drv
from pycuda._pvt_struct import pack

from pymm.backends.base import Matrix, Vector
from pymm.backends.cuda.context import Held, active, failure
from pymm.backends.cuda.driver import MAP_BYTES, DriverError
from pymm.backends.cuda.executable import EPILOGUE, GATE, CudaExecutable
from pymm.backends.cuda.launch import Launch, LaunchSite, mirror_launch, mirrors
from pymm.core.integers import ceil_div, round_up
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import Box, Config, Persistent, Tma
from pymm.kernels.kernel import CLASSES, cluster_blocks, parts_bytes, parts_of

#: Rows of a tensor map start at multiples of this many bytes (CUDA driver API,
#: "cuTensorMapEncodeTiled").
ROW_BYTES = 16

#: Rows of a repacked operand start at multiples of this many bytes.
PITCH_BYTES = 128

#: A block of `repack` copies this many rows and columns.
SIDE = 64

#: The parameters of `repack` for one stack: from to ld batch pitch rows columns count transposed
_COPY = "PPqqqIIII"

#: Offsets of the addresses of the two stacks that `repack` copies in its arguments.
SOURCES = 0, struct.calcsize(_COPY)


class Copy(NamedTuple):
    """An operand that is repacked: a stack of matrices, with rows and columns as they are stored.
    `transposed` says whether `repack` transposes it. The result has elements of `size` bytes; each
    matrix in it is followed by those of its further `terms`. If it is `scaled`, `size` is 2 and the
    power-of-two scales follow the whole stack.
    """

    stack: int
    rows: int
    columns: int
    transposed: bool
    terms: int
    size: int
    scaled: bool = False

    @property
    def shape(self) -> tuple[int, int, int]:
        """Matrices, rows and columns of the result."""
        rows, columns = (self.columns, self.rows) if self.transposed else (self.rows, self.columns)
        return self.stack * self.terms, rows, columns

    @property
    def pitch(self) -> int:
        """Elements from row to row of the result."""
        return round_up(self.shape[2] * self.size, PITCH_BYTES) // self.size

    @property
    def nbytes(self) -> int:
        """Bytes of the result."""
        stack, blocks, _ = self.scales
        return self._terms_bytes + self.scaled * stack * blocks * self.scales_pitch * 4

    @property
    def _terms_bytes(self) -> int:
        matrices, rows, _ = self.shape
        return matrices * rows * self.pitch * self.size

    @property
    def scales(self) -> tuple[int, int, int]:
        """Matrices, rows and columns of the scales: a row for each 64 elements along k."""
        _, rows, columns = self.shape
        return self.stack, ceil_div(columns, SIDE), rows

    @property
    def scales_pitch(self) -> int:
        """Scales from row to row."""
        return round_up(self.scales[2] * 4, PITCH_BYTES) // 4

    @property
    def blocks(self) -> int:
        """Blocks of the launch: one for each square of `SIDE`."""
        return self.stack * ceil_div(self.rows, SIDE) * ceil_div(self.columns, SIDE)

    def at(self, address: int) -> Matrix:
        """The result at `address`."""
        return Matrix(address, self.pitch, self.shape[1] * self.pitch)

    def scales_at(self, address: int) -> Matrix:
        """The scales of the result at `address`."""
        pitch = self.scales_pitch
        return Matrix(address + self._terms_bytes, pitch, self.scales[1] * pitch)


def wanted_copies(tma: Tma, problem: Problem, a: Matrix, b: Matrix) -> list[Copy | None]:
    """How A and B are repacked; None for one that the kernel reads in place."""
    given = tma.as_loaded(problem)
    transposed = given.trans_a != problem.trans_a, given.trans_b != problem.trans_b
    copies: list[Copy | None] = []
    operands = zip((a, b), stored_shapes(problem), transposed, strict=False)
    for i, (matrix, shape, transpose) in enumerate(operands):
        readable = tma.reads_in_place(problem, i) or fits(matrix, problem)
        if problem.k == 0 or (tma.terms == 1 and not transpose and readable):
            copies.append(None)
            continue
        stack = shape[0] if matrix.batch_stride else 1
        size = 2 if tma.scaled else problem.numpy_dtype.itemsize
        copies.append(Copy(stack, *shape[1:], transpose, tma.terms, size, tma.scaled))
    return copies


def fits(matrix: Matrix, problem: Problem, size: int | None = None) -> bool:
    """Whether a tensor map can describe a matrix of elements of `size` bytes in place."""
    size = size or problem.numpy_dtype.itemsize
    places = [matrix.address, matrix.ld * size]
    places += [matrix.batch_stride * size] if problem.batch > 1 else []
    return all(place % ROW_BYTES == 0 for place in places)


def shift_of(matrix: Matrix, row: int, size: int) -> int:
    """Elements of `size` bytes from the multiple of 16 bytes at or before a row to the row."""
    return (matrix.address + row * matrix.ld * size) % ROW_BYTES // size


def shifts(matrix: Matrix, size: int) -> int:
    """Those of the first row of each class, 4 bits each."""
    return sum(shift_of(matrix, row, size) << 4 * row for row in range(CLASSES))


def scratch_bytes(config: Config, problem: Problem, a: Matrix, b: Matrix) -> int:
    """Bytes that `bind` leases for one product: `config` need not be compiled."""
    kernel = config.kernel
    if not kernel.tma:
        return kernel.workspace(config, problem) if kernel.workspace else 0
    copies = wanted_copies(kernel.tma, problem, a, b)
    return sum(copy.nbytes for copy in copies if copy) + parts_bytes(config, problem)


def packed(copies: list[tuple[Copy, Matrix, Matrix]], known: int = 0) -> bytes:
    """The arguments of `repack` for one or two stacks, each a `Copy`, its source and its target.
    `known` is the address of the verdict on an operand that was split before.
    """
    values: list[int] = []
    for copy, source, target in copies:
        values += (source.address, target.address, source.ld, source.batch_stride, target.ld)
        values += (copy.rows, copy.columns, copy.stack, copy.transposed)
    if len(copies) == 1:
        values.append(known)
    return pack(2 * _COPY, *values, *[0] * (2 * len(_COPY) - len(values)))


#: CUtensorMapDataType of the element types (cuda.h), and of float32 that TMA rounds to tf32.
KINDS = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9}
ROUNDED_KIND = 11

#: Part of a device's memory that the repacked operands of one stream may take. A larger batch is
#: multiplied in parts.
MOST_PADDING = 1 / 4

#: Threads of a block of `combine`, and the parts of k that each reads at a time. Several threads
#: share the parts where C has fewer than BUSY pieces of 16 bytes for each multiprocessor.
COMBINING, AHEAD, BUSY = 256, 8, 512

#: Blocks on a multiprocessor of the persistent `combine` for shared tiles (common/stream_k.cuh).
STAYING = 3

#: The parameters maps m n k batch alpha beta stack_a stack_b boxed C ldc batch_c parts; {0} is the
#: format of alpha and beta.
_PARAMETERS = "{maps}s i i i i {0} {0} i i i Q q q Q"
_MAPS, _C = 0, 10

#: Of a kernel that reads an operand in place, behind these: elements by which its maps begin before
#: their first rows, 4 bits for each class.
_SHIFTS = " I"

#: The maps of the scales, the last parameter of a kernel with scaled operands.
_SCALES = " 256s"

#: The parameters of a kernel with an epilogue, and of one with a gate, as bytes.
_EPILOGUE, _GATE = (f" {struct.calcsize(format_)}s" for format_ in (EPILOGUE, GATE))

#: The name of the other kernel's function among those of a checked product.
FALLBACK = "fallback"

#: The parameters of `combine`: parts C ldc batch_c alpha beta m n batch
_COMBINE = "PPqq{0}{0}iii"
_C_COMBINED = 8


class MappedExecutable(CudaExecutable):
    """A kernel with tensor maps of A, B and C, and of the scales where operands are scaled.

    Operands that TMA cannot read, but for one that is read in place, or that are MN-major where the
    kernel needs K-major or the reverse, are first repacked by the kernel file's `repack` into
    scratch memory of the stream. The parts of a split product are there, too, and `combine` adds
    them. All launches but the first may begin before the previous one has ended, and wait for it
    themselves (common/dependent_launch.cuh says why that is correct).

    A C whose rows do not end at multiples of 16 bytes is stored without its tensor map: TMA reads
    rows of any length, but writes whole pieces of 16 bytes (on an H200, bytes behind the rows were
    overwritten). Where only tiles of the last wave are split, the others are stored as usual.
    """

    def __init__(self, *common: Any) -> None:
        *others, self._device = common
        source, config = common[0], common[0].config
        self._tma, self._parts = config.kernel.tma, parts_of(config)
        self._persistent = config.kernel.persistent or Persistent()
        maps = (2 + CLASSES if self._tma.in_place else 3) * MAP_BYTES
        self._parameters = _PARAMETERS.replace("{maps}", str(maps))
        self._parameters += _SCALES if self._tma.scaled else ""
        self._parameters += _SHIFTS if self._tma.in_place else ""
        self._parameters += _EPILOGUE if source.epilogue else ""
        self._parameters += _GATE if source.gate else ""
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
        bias: Vector | None = None,
    ) -> Callable[[], None]:
        copies = wanted_copies(self._tma, problem, a, b)
        a, b = (
            x if x.split is None or x.split.copy == copy else replace(x, split=None)
            for x, copy in zip((a, b), copies, strict=True)
        )
        most = min(self._most_blocks[2] // 2, self._together(copies))
        if problem.batch > most:
            return self._in_parts(most, problem, alpha, (a, b), beta, c, stream, bias)
        context = self._contexts.current()
        loaded = self._in(context)
        self._check_alignment(problem, (a, b, c))
        self._prepare(loaded, context)
        own = copies[:1] if a == b and copies[0] == copies[1] else copies  # one result serves both
        what = f"launching {self.config.slug} on {problem.slug}"
        place = self._place(context, stream, problem.flops, what)
        room = sum(
            copy.nbytes for copy, x in zip(own, (a, b), strict=False) if copy and not x.split
        )
        memory = self._lease(place, room + parts_bytes(self.config, problem))
        given = problem, alpha, a, b, beta, c
        check = self._check(place, given, bias)
        gate = check.gate if check else ()
        run = _Run(loaded, context, problem, (alpha, beta), c, self._epilogue(bias), gate)
        factors, moves = _copied(own, a, b, memory.address)
        free = memory.address + room
        launches = [repacking(moves, gate, _known(a, b))] if moves else []
        stacked = [int(matrix.batch_stride != 0) for matrix in (a, b)]
        launches.append(self._multiply(run, factors, copies, stacked, free))
        if self._parts > 1:
            launches.append(self._combine(run, free))
        if check:
            place = place._replace(functions=place.functions | {FALLBACK: check.function})
            launches.append(check.launch._replace(entry=FALLBACK))
        owners = check.owners if check else ()
        if self._source.mirrors and mirrors(problem, beta):
            launches.append(mirror_launch(problem, c))
        return self._bound(place, launches, memory, (*given, stream, bias), owners)

    def _check(self, place: LaunchSite, given: tuple, bias: Vector | None) -> Check | None:
        """What decides whether another kernel computes the product; None: nothing does."""
        return None

    def _geometry(self, problem: Problem) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        _, block = super()._geometry(problem)
        return self.config.kernel.grid(self.config, problem, self._device.sms), block

    def _fitting(
        self, loaded: Held, shared: int, grid: tuple[int, int, int], block: tuple[int, int, int]
    ) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Grid and block without the clusters that could only begin when others have ended: work is
        divided by the number of blocks, so that those would end last. Clusters of two always fit;
        of larger ones some multiprocessors of each graphics processing cluster may be left over
        (the driver counts 30 clusters of four on one H100 with 132 multiprocessors).
        """
        cluster = cluster_blocks(self.config)
        if cluster <= 2:
            return grid, block
        if not hasattr(loaded, "most_clusters"):
            sizes, function = (*grid, *block, shared), loaded.functions["gemm"]
            loaded.most_clusters = self._driver.most_clusters(function, sizes, cluster)
        return (min(grid[0], cluster * max(loaded.most_clusters, 1)), *grid[1:]), block

    def _together(self, copies: list[Copy | None]) -> int:
        """Most matrices of a batch that may be repacked at a time; at least one."""
        one = sum(copy._replace(stack=1).nbytes for copy in copies if copy)
        most = int(self._device.memory_bytes * MOST_PADDING)
        return max(1, most // one) if one else self._most_blocks[2]

    def _entries(self) -> tuple[str, ...]:
        combining = ("combine",) if self._parts > 1 else ()
        return (*super()._entries(), "repack", *combining)

    def _prepare(self, loaded: Held, context: drv.Context) -> None:
        """Set `loaded.places`, offset and size of each parameter, unless it is set."""
        if hasattr(loaded, "places"):
            return
        count = len(self._parameters.split())
        try:
            with active(context):
                loaded.places = self._driver.parameters(loaded.functions["gemm"], count)
        except DriverError as error:
            raise failure(context, error, f"loading {self.config.slug}") from error

    def _multiply(
        self,
        run: _Run,
        factors: list[Matrix],
        copies: list[Copy | None],
        stacked: list[int],
        parts: int,
    ) -> Launch:
        """The launch of the kernel."""
        problem, c, places = run.problem, run.c, run.loaded.places
        size = problem.numpy_dtype.itemsize
        shared = self._claim(run.loaded, run.context, problem)
        try:
            with active(run.context):
                grid, block = self._fitting(run.loaded, shared, *self._geometry(problem))
        except DriverError as error:
            what = f"counting the clusters of {self.config.slug} that fit on the device"
            raise failure(run.context, error, what) from error
        try:
            with active(run.context):
                maps = self._maps(run, factors, copies)
                scales = self._maps_of_scales(factors, copies)
        except DriverError as error:
            what = f"describing the matrices of {problem.slug} to TMA for {self.config.slug}"
            raise failure(run.context, error, what) from error
        tma, boxed = self._tma, maps[-1].operand is not None
        values = (
            *(b"".join(one.words for one in maps), problem.m, problem.n, problem.k, problem.batch),
            *(*run.scalars, *stacked, int(boxed), c.address, c.ld, c.batch_stride, parts),
            *scales,
            *((shifts(factors[tma.in_place(problem)], size),) if tma.in_place else ()),
            *((pack(EPILOGUE, *run.epilogue),) if run.epilogue else ()),
            *((pack(GATE, *run.gate),) if run.gate else ()),
        )
        formats = self._parameters.format(_scalar(problem)).split()
        room = bytearray(max(offset + size for offset, size in places))
        for (offset, _), format_, value in zip(places, formats, values, strict=True):
            struct.pack_into(f"<{format_}", room, offset, value)
        first = places[_MAPS][0]
        moving = tuple(
            (first + i * MAP_BYTES, one.operand, one.offset)
            for i, one in enumerate(maps)
            if one.operand is not None
        )
        return Launch("gemm", grid, block, shared, bytes(room), ((places[_C][0], 2),), moving)

    def _maps(self, run: _Run, factors: list[Matrix], copies: list[Copy | None]) -> list[_Map]:
        """Tensor maps of A, B and C; zeros for those that the kernel does not use."""
        problem, c = run.problem, run.c
        boxes = self._tma.boxes(self.config, self._tma.as_loaded(problem))
        stored = stored_shapes(problem)
        maps: list[_Map] = []
        operands = zip(factors, copies, stored, boxes, strict=False)
        for i, (matrix, copy, shape, box) in enumerate(operands):
            in_place = self._tma.reads_in_place(problem, i)
            if not problem.k:
                maps += [_NO_MAP] * (CLASSES if in_place else 1)
                continue
            kind = KINDS["float16" if self._tma.scaled else problem.numpy_dtype.name]
            if problem.type.tf32 and copy is None:
                kind = ROUNDED_KIND
            size = copy.size if copy else problem.numpy_dtype.itemsize
            if copy:
                maps.append(_Map(self._map(kind, size, matrix, copy.shape, box)))
            elif in_place:
                maps += self._maps_of_classes(i, kind, size, matrix, shape, box)
            else:
                maps.append(_Map(self._map(kind, size, matrix, shape, box), i))
        size = problem.out_dtype.itemsize
        whole = fits(c, problem, size) and problem.n * size % ROW_BYTES == 0
        if whole and boxes[2] and (self._parts == 1 or self._persistent.splits_last_wave):
            kind = KINDS[problem.out_dtype.name]
            maps.append(_Map(self._map(kind, size, c, stored[2], boxes[2]), 2))
        else:
            maps.append(_NO_MAP)
        return maps

    def _maps_of_classes(
        self,
        operand: int,
        kind: int,
        size: int,
        matrix: Matrix,
        shape: tuple[int, int, int],
        box: Box,
    ) -> Iterator[_Map]:
        """The maps of an operand's classes of rows. Each begins at the multiple of 16 bytes at or
        before the first row of its class; the kernel takes no notice of what is before that row.
        """
        _, rows, columns = shape
        for first in range(CLASSES):
            shift = shift_of(matrix, first, size)
            offset = (first * matrix.ld - shift) * size
            strided = Matrix(matrix.address + offset, CLASSES * matrix.ld, 0)
            extents = 1, ceil_div(rows - first, CLASSES), columns + shift
            yield _Map(self._map(kind, size, strided, extents, box), operand, offset)

    def _maps_of_scales(self, factors: list[Matrix], copies: list[Copy | None]) -> list[bytes]:
        """The maps of both operands' scales as one argument; none where operands are not scaled. A
        box is a row of scales, one for each row or column of a tile of C.
        """
        if not self._tma.scaled:
            return []
        if not all(copies):  # k is 0
            return [bytes(2 * MAP_BYTES)]
        boxes = Box(self.config.MB, 1, 0), Box(self.config.NB, 1, 0)
        maps = [
            self._map(KINDS["float32"], 4, copy.scales_at(matrix.address), copy.scales, box)
            for matrix, copy, box in zip(factors, copies, boxes, strict=True)
        ]
        return [b"".join(maps)]

    def _map(
        self, kind: int, size: int, matrix: Matrix, shape: tuple[int, int, int], box: Box
    ) -> bytes:
        """The tensor map of a stack; of one that repeats a matrix, that of the matrix."""
        stack, rows, columns = shape
        step = matrix.batch_stride
        if step == 0 or stack == 1:
            stack, step = 1, rows * matrix.ld
        extents, strides = (columns, rows, stack), (matrix.ld * size, step * size)
        boxed = (box.columns, box.rows, 1), box.swizzle
        return self._driver.tensor_map(kind, matrix.address, extents, strides, *boxed)

    def _combine(self, run: _Run, parts: int) -> Launch:
        """The launch that adds the parts: each thread adds 16 bytes of a row."""
        problem, c = run.problem, run.c
        pieces = parts_bytes(self.config, problem) // self._parts // 16
        rows = 1
        while rows < 32 and rows * AHEAD < self._parts and pieces * rows < self._device.sms * BUSY:
            rows *= 2
        blocks = ceil_div(pieces * rows, COMBINING)
        if self._persistent.partial_bytes:  # persistent: each block adds piece after piece
            blocks = min(blocks, self._device.sms * STAYING)
        grid = blocks, 1, 1
        format_ = _COMBINE.format(_scalar(problem)) + (EPILOGUE if run.epilogue else "")
        format_ += GATE if run.gate else ""
        place = parts, c.address, c.ld, c.batch_stride
        extents = problem.m, problem.n, problem.batch
        arguments = pack(format_, *place, *run.scalars, *extents, *run.epilogue, *run.gate)
        block = COMBINING // rows, rows, 1
        return Launch("combine", grid, block, 0, arguments, ((_C_COMBINED, 2),))


class _Map(NamedTuple):
    """A tensor map, and what moves it: A, B or C (0, 1, 2), `offset` bytes behind whose address it
    begins. None: nothing does.
    """

    words: bytes
    operand: int | None = None
    offset: int = 0


#: In the place of a map that the kernel does not use.
_NO_MAP = _Map(bytes(MAP_BYTES))


class _Run(NamedTuple):
    """What the launches of one product have in common."""

    loaded: Held
    context: drv.Context
    problem: Problem
    scalars: tuple[float, float]
    c: Matrix
    epilogue: tuple[int, ...]
    gate: tuple[int, ...]


class Check(NamedTuple):
    """What decides whether another kernel computes the product: the gate of all launches, that
    kernel's launch, the handle of its function, and what is to live as long as these.
    """

    gate: tuple[int, int]
    launch: Launch
    function: int
    owners: tuple[Any, ...]


def _copied(
    own: list[Copy | None], a: Matrix, b: Matrix, free: int
) -> tuple[list[Matrix], list[tuple[int, Copy, Matrix, Matrix]]]:
    """What the kernel multiplies, of which `own` says how it is copied (one entry: b is a), and
    what is to be copied to memory from `free` on: (number, `Copy`, source, target) of each.
    """
    factors, moves = [a, b], []
    for i, copy in enumerate(own):
        source = factors[i]
        if copy:
            factors[i] = copy.at(source.split.address if source.split else free)
        if copy and not source.split:
            moves.append((i, copy, source, factors[i]))
            free += copy.nbytes
    factors[1] = factors[len(own) - 1]
    return factors, moves


def _known(a: Matrix, b: Matrix) -> int:
    """The address of the verdict on an operand that was split before; 0 if neither was."""
    split = a.split or b.split
    return split.verdict if split else 0


def _scalar(problem: Problem) -> str:
    """The format of alpha and of beta."""
    return "d" if problem.scalar_dtype.itemsize == 8 else "f"


def repacking(
    moves: list[tuple[int, Copy, Matrix, Matrix]], gate: tuple[int, ...] = (), known: int = 0
) -> Launch:
    """One launch that repacks one or two operands: (number, `Copy`, source, target) of each. `gate`
    is that of the product's launches, `known` the verdict on an operand that was split before.
    """
    grid = sum(copy.blocks for _, copy, _, _ in moves), 1, 1
    arguments = packed([move[1:] for move in moves], known)
    arguments += pack(GATE, *gate) if gate else b""
    places = tuple((SOURCES[number], move[0]) for number, move in enumerate(moves))
    return Launch("repack", grid, (256, 1, 1), 0, arguments, places)
