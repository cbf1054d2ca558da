"""The CPU as a device: kernels in C++, NumPy's memory, wall-clock times."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pymm.backends.base import (
    TRANSFERS,
    Backend,
    Buffer,
    Executable,
    Matrix,
    RebindableLaunch,
    Resources,
    TimedCall,
    Vector,
    check_range,
    check_rows,
)
from pymm.backends.compiled import HostKernel, compiled
from pymm.backends.cpu.call import Call, call_of, open_pool
from pymm.backends.cpu.compiler import CpuCompiler, find_compiler
from pymm.backends.cpu.device import describe, memory_field, usable_cores
from pymm.backends.cpu.pieces import Pace, Piece, half_product, pieces, whole
from pymm.backends.cpu.timing import shortest
from pymm.core.device import Device
from pymm.core.errors import LaunchFailed, NoDevice
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels.source import Source

#: Buffers start on a boundary of this many bytes: a cache line, and the widest vector.
ALIGNMENT = 64


def open_cpu(threads: int | None, cache: Path) -> CpuBackend:
    """The backend for this machine's CPU with `threads` threads (default: every core that this
    process may use). Measures the peak rate once per machine and compiler. `NoDevice` without a
    C++ compiler or with more threads than cores.
    """
    compiler = find_compiler(cache)
    usable = usable_cores()
    if threads is not None and not 1 <= threads <= usable:
        raise NoDevice(f"cpu:{threads}: this process may use 1 to {usable} cores")
    return CpuBackend(describe(threads or usable, compiler), compiler)


#: Seconds to wait after a call of another process until its idle threads stop looking for work, on
#: the cores that pymm's threads need: OpenBLAS's do that for 2^28 clocks (0.11 s at 2.4 GHz).
SETTLED = 0.15


class CpuBuffer(Buffer):
    """Host memory on a boundary of `ALIGNMENT` bytes."""

    def __init__(self, nbytes: int) -> None:
        try:
            memory = np.empty(nbytes + ALIGNMENT, np.uint8)
        except MemoryError:
            free = memory_field("MemAvailable")
            raise MemoryError(f"{nbytes} bytes asked for, {free} bytes are free") from None
        start = -memory.ctypes.data % ALIGNMENT
        self._bytes = memory[start : start + nbytes]
        self.nbytes = nbytes
        self.address = self._bytes.ctypes.data

    def write(self, array: np.ndarray) -> None:
        check_range(self.nbytes, 0, array.nbytes)
        self._bytes[: array.nbytes] = array.reshape(-1).view(np.uint8)

    def read(self, array: np.ndarray, offset: int = 0) -> None:
        check_range(self.nbytes, offset, array.nbytes)
        array.reshape(-1).view(np.uint8)[:] = self._bytes[offset : offset + array.nbytes]

    def fill(self, byte: int) -> None:
        self._bytes[:] = byte


#: The rate of a kernel, as a part of one core's peak, that the first piece of a long product is cut
#: for, before the rate is known: slow kernels use one core and no vectors.
FIRST_GUESS = 1 / 4


class CpuExecutable(Executable):
    """A kernel in a loaded shared object, for a device with `threads` cores, which the function at
    the address `run` shares out, and a peak rate of `peak` multiply-adds per second.
    """

    def __init__(self, source: Source, path: Path, threads: int, run: int, peak: float) -> None:
        self.config = source.config
        self.resources = Resources()
        self._epilogue, self._threads, self._run = source.epilogue, threads, run
        self._pace = Pace(peak / threads * FIRST_GUESS)
        try:
            self._gemm = getattr(ctypes.CDLL(str(path)), source.entry)
            self._address = ctypes.cast(self._gemm, ctypes.c_void_p).value or 0
        except (OSError, AttributeError) as error:
            raise LaunchFailed(f"{source.config.slug} does not load: {error}") from error

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
        """A product that takes longer than half a second runs in pieces, and signals are
        handled between them; C is unspecified when a handler raises.
        """
        only_default(stream)
        if problem.symmetric:
            part = partial(self._bind, alpha=alpha, beta=beta)
            return half_product(part, problem, (a, b, c), beta != 0)
        return self._bind(problem, a, b, c, alpha, beta, bias)

    def _bind(
        self,
        problem: Problem,
        a: Matrix,
        b: Matrix,
        c: Matrix,
        alpha: float,
        beta: float,
        bias: Vector | None = None,
    ) -> Callable[[], None]:
        given = problem, (a, b, c), (alpha, beta), (self._epilogue, bias), self._threads, self._run

        def bound(piece: Piece) -> Callable[[], None]:
            return CpuLaunch(self._gemm, self._address, call_of(piece, *given), (self, given))

        everything = whole(problem)
        if alpha == 0 or everything.work <= 2 * self._pace.budget():
            return bound(everything)
        return partial(self._in_pieces, problem, bound)

    def _in_pieces(self, problem: Problem, bound: Callable[[Piece], Callable[[], None]]) -> None:
        for piece in pieces(problem, self.config, self._threads, self._pace.budget):
            start = time.perf_counter()
            bound(piece)()
            self._pace.learn(piece.work, time.perf_counter() - start)


class CpuLaunch(RebindableLaunch):
    """A call of a kernel. `owners` are the executable, and what owns the memory that it uses."""

    __slots__ = ("_call", "_gemm", "_given", "_owners", "kernel")

    context = None
    captured = False

    def __init__(self, gemm: Callable[[Any], int], address: int, call: Call, owners: Any) -> None:
        self._gemm, self._call, self._owners = gemm, call, owners
        self._given = ctypes.byref(call)
        self.kernel = HostKernel(address, call, no_memory)

    def __call__(self) -> None:
        if self._gemm(self._given):
            no_memory()

    def direct(self) -> Callable[[], None]:
        code = compiled()
        return self if code is None else code.launcher(self.kernel, self._owners)

    def assume_context(self, number: int) -> Callable[[], None]:
        return self

    def rebind(self, *addresses: int) -> CpuLaunch:
        call = Call.from_buffer_copy(self._call)
        call.a, call.b, call.c = addresses
        return CpuLaunch(self._gemm, self.kernel.address, call, self._owners)


def no_memory() -> None:
    """Raise the error of a kernel that found none."""
    raise LaunchFailed(
        f"the kernel found no memory for its packed blocks; {memory_field('MemAvailable')} bytes "
        f"are free"
    )


class CpuBackend(Backend):
    """This machine's CPU. A launch is a function call, complete when it returns."""

    def __init__(self, device: Device, compiler: CpuCompiler) -> None:
        self.device = device
        self.compiler = compiler
        self._pool = open_pool(compiler)

    def load(self, source: Source) -> CpuExecutable:
        device, path = self.device, self.compiler.build(source)
        slowest = min(device.peak_flops.values()) / 2
        return CpuExecutable(source, path, device.sms, self._pool.run, slowest)

    def allocate(self, nbytes: int) -> CpuBuffer:
        return CpuBuffer(nbytes)

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        return np.empty(shape, dtype)

    def is_own(self, array: Any) -> bool:
        return isinstance(array, np.ndarray)

    def row_pitch(self, row_bytes: int) -> int:
        return round_up(row_bytes, ALIGNMENT)

    def copy_in(
        self,
        array: np.ndarray,
        address: int,
        pitch: int,
        transfer: str = "pageable",
        stream: Any = None,
    ) -> None:
        only_default(stream)
        np.copyto(_rows(array, address, pitch, transfer), array)

    def copy_out(
        self,
        address: int,
        pitch: int,
        array: np.ndarray,
        transfer: str = "pageable",
        stream: Any = None,
    ) -> None:
        only_default(stream)
        np.copyto(array, _rows(array, address, pitch, transfer))

    def stream(self, stream: Any) -> None:
        only_default(stream)

    def order(self, before: Any, after: Any) -> None:
        only_default(before)
        only_default(after)

    def synchronize(self, stream: Any = None) -> None:
        only_default(stream)

    def time(self, calls: Sequence[Callable[[], None]], ahead: int = 1) -> list[float]:
        seconds, elsewhere = [], False
        for one in map(TimedCall.of, calls):
            if one.timed is not None:
                seconds.append(one.timed())
                elsewhere = True
                continue
            if elsewhere:
                time.sleep(SETTLED)
                one()  # the other process, too, calls once before it takes times
            elsewhere = False
            seconds.append(shortest(one.call, partial(self._prepare, one)))
        return seconds

    def _prepare(self, one: TimedCall) -> None:
        one.prepare()
        self._pool.wake(self.device.sms)

    def telemetry(self) -> Mapping[str, float | str]:
        try:
            return {"load": os.getloadavg()[0]}
        except (OSError, AttributeError):
            return {}


def only_default(stream: Any) -> None:
    """`TypeError` unless `stream` is None: a CPU has no others."""
    if stream is not None:
        raise TypeError(f"the CPU has no streams; got {stream!r}, pass None")


def _rows(like: np.ndarray, address: int, pitch: int, transfer: str) -> np.ndarray:
    """The rows at `address` as an array of the same shape and type as `like`."""
    if transfer not in TRANSFERS:
        raise ValueError(f"transfer {transfer!r} is none of {', '.join(TRANSFERS)}")
    rows, columns = check_rows(like, pitch)
    nbytes = max((rows - 1) * pitch + columns * like.itemsize, 0) if rows else 0
    memory = (ctypes.c_char * nbytes).from_address(address)
    return np.ndarray(like.shape, like.dtype, memory, strides=(pitch, like.itemsize))
