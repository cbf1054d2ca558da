"""A kernel loaded by `SourceModule`, and its calls: packed once, launched many times."""

from __future__ import annotations

import math
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pycuda.driver as drv
from pycuda._pvt_struct import pack
from pycuda.compiler import SourceModule

from pymm.backends.base import Buffer, Executable, Matrix, Resources, Vector
from pymm.backends.cuda.compiler import CudaCompiler
from pymm.backends.cuda.context import Contexts, Held, active, failure, working
from pymm.backends.cuda.driver import Driver, DriverError, StreamState
from pymm.backends.cuda.launch import Bound, BoundLaunch, Launch, LaunchSite, mirror_launch, mirrors
from pymm.backends.cuda.scratch import Nothing, Scratch, StreamPlace
from pymm.core.errors import CompileFailed, LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels.source import Source

#: Bytes of shared memory that every block may have.
STATIC_SHARED = 48 * 1024

#: The parameters m n k alpha A lda batch_a B ldb batch_b beta C ldc batch_c as a format of `pack`,
#: by the bytes of alpha and beta. `pack` aligns every item to its own size, as CUDA does.
FORMATS = {4: "iiifPqqPqqfPqq", 8: "iiidPqqPqqdPqq"}

#: The parameter of a kernel with an epilogue (common/epilogue.cuh): bias length
EPILOGUE = "Pq"

#: The parameter of a launch with a gate (common/split_check.cuh): verdict most. That of the last
#: one, whose blocks each compute several of the product's in turn: how many these are along x, y, z
GATE = "Pq"
BLOCKS = "III"


class CudaExecutable(Executable):
    """One kernel, loaded once into each context that it is called in."""

    def __init__(
        self,
        source: Source,
        compiler: CudaCompiler,
        contexts: Contexts,
        driver: Driver,
        most_blocks: tuple[int, int, int],
        scratch: Scratch,
    ) -> None:
        self._scratch = scratch
        self.config = source.config
        self._source, self._compiler, self._driver = source, compiler, driver
        self._contexts, self._most_blocks = contexts, most_blocks
        self._loaded: dict[drv.Context, Held] = {}
        self._lock = threading.Lock()
        function = self._in(contexts.current()).function
        with working(contexts.current(), f"asking for the registers of {self.config.slug}"):
            self.resources = Resources(
                registers=function.num_regs,
                spilled_bytes=function.local_size_bytes,
                shared_bytes=function.shared_size_bytes,
                max_threads=function.max_threads_per_block,
            )

    def _in(self, context: drv.Context) -> Held:
        """The kernel in a context: PyCUDA's `module` and `function`, and the handles of all its
        `functions`. PyCUDA does not expose those, so the cubin is loaded a second time.
        """
        with self._lock:
            found = self._loaded.get(context)
            if found is None:
                found = self._loaded[context] = self._load(context)
            return found

    def _load(self, context: drv.Context) -> Held:
        compiler = self._compiler
        path = compiler.build(self._source)
        with working(context, f"loading {self.config.slug} for {compiler.arch}"):
            try:
                module = SourceModule(self._source.text, **compiler.arguments(path.parent))
            except drv.CompileError as error:
                raise CompileFailed(f"{self.config.slug}: {error}") from error
            function = module.get_function(self._source.entry)
            try:
                own = self._driver.load(path.read_bytes())
                found = {name: self._driver.function(own, name) for name in self._entries()}
            except DriverError as error:
                raise failure(context, error, f"loading {self.config.slug}") from error
        owner = _OwnModule(self._driver, own)
        return Held(context, module=module, function=function, owner=owner, functions=found)

    def _entries(self) -> tuple[str, ...]:
        """The functions of the kernel's source that are launched."""
        return ("gemm", "mirror") if self._source.mirrors else ("gemm",)

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
        most = self._most_blocks[2]
        if problem.batch > most:
            return self._in_parts(most, problem, alpha, (a, b), beta, c, stream, bias)
        context = self._contexts.current()
        loaded = self._in(context)
        self._check_alignment(problem, (a, b, c))
        grid, block = self._geometry(problem)
        what = f"launching {self.config.slug} on {problem.slug} ({grid} blocks of {block} threads)"
        place = self._place(context, stream, problem.flops, what)
        last = self._epilogue(bias)
        given = problem, alpha, a, b, beta, c
        launch, memory = self._gemm(loaded, place, given, EPILOGUE if last else "", last)
        launches = [launch]
        if self._source.mirrors and mirrors(problem, beta):
            launches.append(mirror_launch(problem, c))
        return self._bound(place, launches, memory, (problem, alpha, a, b, beta, c, stream, bias))

    def gated(
        self,
        place: LaunchSite,
        problem: Problem,
        alpha: float,
        a: Matrix,
        b: Matrix,
        beta: float,
        c: Matrix,
        bias: Vector | None,
        gate: tuple[int, int],
        at_once: int,
    ) -> tuple[Launch, int, Buffer | Nothing]:
        """The launch with a gate that follows those of another kernel at `place`, of at most
        `at_once` blocks; the handle of its function there; the scratch memory that it uses.
        """
        loaded = self._in(place.context)
        self._check_alignment(problem, (a, b, c))
        last = self._epilogue(bias)
        format_ = (EPILOGUE if last else "") + GATE
        given = problem, alpha, a, b, beta, c
        launch, memory = self._gemm(loaded, place, given, format_, (*last, *gate))
        grid = min(math.prod(launch.grid), at_once), 1, 1
        arguments = launch.arguments + pack(BLOCKS, *launch.grid)
        launch = launch._replace(grid=grid, arguments=arguments)
        return launch, loaded.functions["gemm"], memory

    def _gemm(
        self, loaded: Held, place: LaunchSite, given: tuple, last_format: str, last: tuple[int, ...]
    ) -> tuple[Launch, Buffer | Nothing]:
        """The launch of the kernel, and the scratch memory that it uses. `last` are the values of
        its last parameters.
        """
        problem, alpha, a, b, beta, c = given
        grid, block = self._geometry(problem)
        shared = self._claim(loaded, place.context, problem)
        workspace = self.config.kernel.workspace
        memory = self._lease(place, workspace(self.config, problem) if workspace else 0)
        format_ = FORMATS[problem.scalar_dtype.itemsize]
        packed = pack(
            format_ + ("P" if workspace else "") + last_format,
            *(problem.m, problem.n, problem.k, alpha),
            *(a.address, a.ld, a.batch_stride, b.address, b.ld, b.batch_stride),
            *(beta, c.address, c.ld, c.batch_stride),
            *((memory.address,) if workspace else ()),
            *last,
        )
        places = tuple((_offset(format_, index), which) for which, index in enumerate((4, 7, 11)))
        return Launch("gemm", grid, block, shared, packed, places), memory

    def _epilogue(self, bias: Vector | None) -> tuple[int, ...]:
        """The values of `EPILOGUE`; none for a kernel without one."""
        if self._source.epilogue.bias is not None:
            return bias.address, bias.length
        return (0, 0) if self._source.epilogue else ()

    def _place(self, context: drv.Context, stream: Any, flops: int, what: str) -> LaunchSite:
        """The site of launches that have `flops` operations; `what` they are in messages."""
        handle = getattr(stream, "handle", stream) or 0
        early = int("".join(filter(str.isdigit, self._compiler.arch))) >= 90
        functions = self._in(context).functions
        number = self._driver.context_number(context.handle)
        state = self._driver.asks_for_state(handle)
        with active(context):
            found = state() if state else StreamState()
        at = context, number, self._driver, functions, handle, state, found
        return LaunchSite(*at, early, flops, what)

    def _lease(
        self, place: LaunchSite, nbytes: int, scratch: Scratch | None = None
    ) -> Buffer | Nothing:
        """Scratch memory for launches at `place`, by default the kernel's own."""
        with active(place.context):  # if the stream is captured, the driver is asked for its graph
            return (scratch or self._scratch).lease(_stream_place(place), nbytes)

    def _bound(
        self,
        place: LaunchSite,
        launches: list[Launch],
        memory: Buffer | Nothing,
        given: tuple,
        more: tuple[Any, ...] = (),
    ) -> BoundLaunch:
        """A call of `launches`; `given` are the arguments of `bind` that it was made from, `more`
        is what it owns besides these and `memory`.
        """
        problem, alpha, a, b, beta, c, stream, bias = given

        def bind(a: Matrix, b: Matrix, c: Matrix) -> BoundLaunch:
            return self.bind(problem, alpha, a, b, beta, c, stream, bias)

        bound = Bound((a, b, c), bind, memory.nbytes > 0 or bool(more))
        owners = self, a, b, c, memory, stream, bias, *more
        launch = BoundLaunch(place, launches, owners, bound)
        if launch.captured and bound.scratch:
            with active(place.context):
                self._scratch.own_captured(_stream_place(place), launch)
        return launch

    def _in_parts(
        self,
        most: int,
        problem: Problem,
        alpha: float,
        factors: tuple[Matrix, Matrix],
        beta: float,
        c: Matrix,
        stream: Any,
        bias: Vector | None,
    ) -> Callable[[], None]:
        """Several launches, for a batch of more matrices than a grid has blocks along z."""
        sizes = (problem.numpy_dtype.itemsize,) * 2 + (problem.out_dtype.itemsize,)

        def from_matrix(first: int, matrix: Matrix, size: int) -> Matrix:
            return replace(matrix, address=matrix.address + first * matrix.batch_stride * size)

        calls = []
        for first in range(0, problem.batch, most):
            part = replace(problem, batch=min(most, problem.batch - first))
            a, b, out = (from_matrix(first, *x) for x in zip((*factors, c), sizes, strict=True))
            calls.append(self.bind(part, alpha, a, b, beta, out, stream, bias))

        def call() -> None:
            for launch in calls:
                launch()

        return call

    def _geometry(self, problem: Problem) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """Grid and block. `LaunchFailed` for more blocks or threads than a launch can have."""
        kernel = self.config.kernel
        grid, block = kernel.grid(self.config, problem), kernel.block(self.config)
        for axis, wanted, most in zip("xyz", grid, self._most_blocks, strict=True):
            if wanted > most:
                raise LaunchFailed(
                    f"{self.config.slug} on {problem.slug} needs {wanted} blocks along {axis}, and "
                    f"a launch has at most {most}: split the problem"
                )
        threads = block[0] * block[1] * block[2]
        if threads > self.resources.max_threads:
            raise LaunchFailed(
                f"{self.config.slug} has {threads} threads in a block, and with its "
                f"{self.resources.registers} registers each at most {self.resources.max_threads} "
                "can be launched: choose smaller tiles"
            )
        return grid, block

    def _claim(self, loaded: Held, context: drv.Context, problem: Problem) -> int:
        """Bytes of dynamic shared memory of a block. More than 48 KiB must be allowed for the
        function before (CUDA C++ Programming Guide, "Shared Memory" of compute capability 9.0).
        """
        kernel = self.config.kernel
        aligned = self._source.alignment
        dynamic = kernel.dynamic_shared
        shared = kernel.shared_bytes(self.config, problem, aligned) if dynamic else 0
        if shared + self.resources.shared_bytes > STATIC_SHARED:
            doing = f"taking {shared} bytes of shared memory for {self.config.slug}"
            try:
                with active(context):
                    self._driver.allow_shared(loaded.functions["gemm"], shared)
            except DriverError as error:
                raise failure(context, error, doing) from error
        return shared

    def _check_alignment(self, problem: Problem, matrices: tuple[Matrix, ...]) -> None:
        """`ValueError` for rows that are aligned to less than the kernel is compiled for."""
        wanted, inner = self._source.alignment, problem.numpy_dtype.itemsize
        sizes = (inner, inner, problem.out_dtype.itemsize)
        for matrix, size in zip(matrices, sizes, strict=True):
            places = (matrix.address, matrix.ld * size, matrix.batch_stride * size)
            if any(place % wanted for place in places):
                raise ValueError(
                    f"{self.config.slug} was compiled for rows at multiples of {wanted} bytes, and "
                    f"a matrix has rows at {places[0]:#x} + i * {places[1]}: render it for less"
                )


def _stream_place(place: LaunchSite) -> StreamPlace:
    """The stream that scratch memory for launches at `place` belongs to."""
    return StreamPlace(place.number, place.stream, place.found)


class _OwnModule:
    """A module loaded without PyCUDA. It is unloaded when its `Held` object goes."""

    def __init__(self, driver: Driver, module: int) -> None:
        self._driver, self.module = driver, module

    def __del__(self) -> None:
        with suppress(DriverError):
            self._driver.unload(self.module)


def _offset(format_: str, index: int) -> int:
    """Offset in bytes of item `index` in what `pack` makes by a format."""
    return struct.calcsize(format_[: index + 1]) - struct.calcsize(format_[index])
