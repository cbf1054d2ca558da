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
    Resources,
    TimedCall,
    Vector,
    check_range,
    check_rows,
)
from pymm.backends.cpu.compiler import CpuCompiler, find_compiler
from pymm.backends.cpu.device import describe, memory_field, usable_cores
from pymm.backends.cpu.pieces import Pace, Piece, half_product, pieces, whole
from pymm.backends.cpu.threads import forks
from pymm.core.device import Device
from pymm.core.epilogue import Epilogue
from pymm.core.errors import LaunchFailed, NoDevice
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels.source import Source

REALS = {"f32": ctypes.c_float, "f64": ctypes.c_double}

#: Buffers start on a boundary of this many bytes: a cache line, and the widest vector.
ALIGNMENT = 64

#: Caches are flushed by writing twice the size of the largest, at most this many bytes.
MOST_FLUSHED = 64 * 2**20


def open_cpu(threads: int | None, cache: Path) -> CpuBackend:
    """The backend for this machine's CPU with `threads` threads (default: every core that this
    process may use). Measures the peak rate once per machine and compiler. `NoDevice` without a
    C++ compiler or with more threads than cores.
    """
    compiler = find_compiler(cache)
    usable = usable_cores() if "-fopenmp" in compiler.flags else 1
    if threads is not None and not 1 <= threads <= usable:
        why = "" if "-fopenmp" in compiler.flags else f", because {compiler.path} has no OpenMP"
        raise NoDevice(f"cpu:{threads}: this process may use 1 to {usable} cores{why}")
    return CpuBackend(describe(threads or usable, compiler), compiler)


#: Seconds to wait between calls of two libraries with thread pools of their own, one of which may
#: be pymm, until idle threads stop spinning. Two spinning pools on two cores halve each other's
#: rate: 512 x 512 x 512 f32 reached 100 and 47 GFLOP/s in turn, 152 and 146 alone.
SETTLED = 0.1


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
    """A kernel in a loaded shared object, for a device with `threads` cores and a peak rate of
    `peak` multiply-adds per second.
    """

    def __init__(self, source: Source, path: Path, threads: int, peak: float) -> None:
        self.config = source.config
        self._epilogue = source.epilogue
        self.resources = Resources()
        self._threads = forks.team(threads)
        self._pace = Pace(peak / threads * FIRST_GUESS)
        try:
            library = ctypes.CDLL(str(path))
            self._gemm = getattr(library, source.entry)
        except (OSError, AttributeError) as error:
            raise LaunchFailed(f"{source.config.slug} does not load: {error}") from error
        forks.watch(library)

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
        def arguments(piece: Piece) -> list[Any]:
            last = _epilogue(problem, self._epilogue, bias, piece)
            return [*_arguments(problem, a, b, c, alpha, beta, self._threads, piece), *last]

        everything = whole(problem)
        owners = self, a, b, c, bias
        if alpha == 0 or everything.work <= 2 * self._pace.budget():
            call = partial(self._gemm, *arguments(everything))
            return partial(_call, call, self.config, owners)
        return partial(self._in_pieces, problem, arguments, owners)

    def _in_pieces(
        self, problem: Problem, arguments: Callable[[Piece], list[Any]], owners: Any
    ) -> None:
        for piece in pieces(problem, self.config, self._threads.value, self._pace.budget):
            start = time.perf_counter()
            _call(partial(self._gemm, *arguments(piece)), self.config, owners)
            self._pace.learn(piece.work, time.perf_counter() - start)


def _arguments(
    problem: Problem,
    a: Matrix,
    b: Matrix,
    c: Matrix,
    alpha: float,
    beta: float,
    threads: ctypes.c_int,
    piece: Piece,
) -> list[Any]:
    """Arguments of a kernel that computes `piece`. Pieces behind the first along k add to C."""
    i, j, p = piece.i, piece.j, piece.p
    starts = (
        p * a.ld + i if problem.trans_a else i * a.ld + p,
        j * b.ld + p if problem.trans_b else p * b.ld + j,
        i * c.ld + j,
    )
    places = []
    for matrix, start in zip((a, b, c), starts, strict=True):
        first = matrix.address + problem.numpy_dtype.itemsize * (
            piece.matrix * matrix.batch_stride + start
        )
        places.append((first, matrix.ld, matrix.batch_stride))
    real = REALS[problem.dtype]
    arguments = [ctypes.c_int(extent) for extent in (piece.rows, piece.columns, piece.depth)]
    for factor, stored in ((alpha, places[:2]), (beta if p == 0 else 1.0, places[2:])):
        arguments.append(real(factor))
        for address, ld, batch_stride in stored:
            arguments.append(ctypes.c_void_p(address))
            arguments.append(ctypes.c_longlong(ld))
            arguments.append(ctypes.c_longlong(batch_stride))
    return [*arguments, ctypes.c_int(piece.count), threads]


def _epilogue(problem: Problem, epilogue: Epilogue, bias: Vector | None, piece: Piece) -> list[Any]:
    """The last arguments of a kernel with an epilogue: its bias, and whether this piece completes
    the sums.
    """
    if not epilogue:
        return []
    complete = ctypes.c_int(piece.p + piece.depth == problem.k)
    if bias is None:
        return [ctypes.c_void_p(None), complete]
    first = (piece.i if epilogue.down else piece.j) * problem.out_dtype.itemsize
    return [ctypes.c_void_p(bias.address + first), complete]


def _call(gemm: Callable[[], int], config: Any, owners: Any) -> None:
    if gemm():
        raise LaunchFailed(
            f"{config.slug} found no memory for its packed blocks; "
            f"{memory_field('MemAvailable')} bytes are free"
        )


class CpuBackend(Backend):
    """This machine's CPU. A launch is a function call, complete when it returns."""

    def __init__(self, device: Device, compiler: CpuCompiler) -> None:
        self.device = device
        self.compiler = compiler
        self._flush_array: np.ndarray | None = None

    def load(self, source: Source) -> CpuExecutable:
        device, path = self.device, self.compiler.build(source)
        slowest = min(device.peak_flops.values()) / 2
        return CpuExecutable(source, path, device.sms, slowest)

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

    def time(
        self, calls: Sequence[Callable[[], None]], flush: bool = True, ahead: int = 1
    ) -> list[float]:
        seconds = []
        timed = [TimedCall.of(call) for call in calls]
        several = self.device.sms > 1 and len({one.library for one in timed}) > 1
        last = None
        for one in timed:
            one.prepare()
            if several and one.library != last:  # wait for the other's threads, wake these
                time.sleep(SETTLED)
                one.call()
            last = one.library
            if flush:
                self._flush()
            start = time.perf_counter_ns()
            one.call()
            seconds.append((time.perf_counter_ns() - start) * 1e-9)
        return seconds

    def _flush(self) -> None:
        """Write more memory than the caches hold."""
        if self._flush_array is None:
            largest = max(self.device.cache_bytes, default=MOST_FLUSHED // 2)
            self._flush_array = np.ones(min(2 * largest, MOST_FLUSHED) // 8, np.int64)
        np.negative(self._flush_array, out=self._flush_array)

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
