"""A GPU through PyCUDA: memory, kernels, streams, timing."""

from __future__ import annotations

import functools
import numbers
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import numpy as np
import pycuda.driver as drv

from pymm.backends.base import Backend, Buffer, Matrix, check_range
from pymm.backends.cuda.compiler import CudaCompiler
from pymm.backends.cuda.context import Contexts, active, failure, working
from pymm.backends.cuda.copies import HostCopies
from pymm.backends.cuda.custom import CustomExecutable
from pymm.backends.cuda.driver import Driver, DriverError, relaxed_capture
from pymm.backends.cuda.emulated import CheckedExecutable, checking_bytes
from pymm.backends.cuda.executable import CudaExecutable
from pymm.backends.cuda.grouped import GroupedExecutable
from pymm.backends.cuda.queues import CudaMark, CudaQueue, reach
from pymm.backends.cuda.scratch import Captures, Scratch, StreamPlace, size_of
from pymm.backends.cuda.timing import timed
from pymm.backends.cuda.tma import MappedExecutable, scratch_bytes
from pymm.backends.current import current
from pymm.backends.telemetry import read_energy, read_telemetry
from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels import Config, grouped
from pymm.kernels.custom import CustomConfig
from pymm.kernels.source import Source

#: Pitched rows start at multiples of this many bytes: a cache line.
ROW_ALIGNMENT = 128

#: Least bytes that are written to flush the L2 cache. The writing also keeps the device busy while
#: the host queues the next launch, so that the host's time does not count.
LEAST_FLUSH = 64 * 2**20

#: How often they are written: before each call, which takes 0.12 ms on an H200 (the host needs 20
#: to 50 us to queue a launch), and before the first call, so that the clock is not an idle
#: device's.
WRITES, FIRST_WRITES = 2, 8


#: Part of a device's memory that the scratch memory of all streams may take, once for kernels with
#: a workspace and once for those that repack operands.
MOST_SCRATCH = 1 / 4


class CudaBuffer(Buffer):
    """Device memory in the context that was current for this thread when it was allocated. It is
    freed when the object is destroyed, in whatever thread, also while a graph is being captured.
    The driver first waits for all work that may still use it.
    """

    def __init__(self, context: drv.Context, driver: Driver, nbytes: int) -> None:
        doing = f"{nbytes} bytes of device memory asked for"
        with working(context, doing):
            try:
                self.address = driver.allocate(max(nbytes, 1))
            except DriverError as error:
                raise failure(context, error, doing) from error
        self._context = context
        self.nbytes = nbytes
        weakref.finalize(self, _free, context, driver, self.address)

    def write(self, array: np.ndarray) -> None:
        check_range(self.nbytes, 0, array.nbytes)
        if array.nbytes:
            with working(self._context, f"copying {array.nbytes} bytes to the device"):
                drv.memcpy_htod(self.address, array)

    def read(self, array: np.ndarray, offset: int = 0) -> None:
        check_range(self.nbytes, offset, array.nbytes)
        if array.nbytes:
            with working(self._context, f"copying {array.nbytes} bytes from the device"):
                drv.memcpy_dtoh(array, self.address + offset)

    def fill(self, byte: int) -> None:
        if self.nbytes:
            with working(self._context, f"filling {self.nbytes} bytes"):
                drv.memset_d8(self.address, byte, self.nbytes)


def _free(context: drv.Context, driver: Driver, address: int) -> None:
    """Free memory. In a lost or destroyed context there is nothing to free."""
    with suppress(drv.Error, DriverError), active(context), relaxed_capture():
        driver.free(address)


class CudaBackend(Backend):
    """One GPU, or the simulated one. It makes no context before something needs one."""

    has_queues = True

    def __init__(self, gpu: drv.Device, device: Device, compiler: CudaCompiler) -> None:
        self.device = device
        self.compiler = compiler
        self._bus_id = gpu.pci_bus_id()
        self._contexts = Contexts(gpu)
        self._driver = Driver()
        current.context = self._driver.current_context
        asking = self._driver.address("cuCtxGetCurrent"), self._driver.address("cuCtxGetId")
        current.functions = asking
        self._copies: dict[drv.Context, HostCopies] = {}
        self._captures = Captures(self._driver)
        most = int(device.memory_bytes * MOST_SCRATCH)
        common = self._zeroed, self._captures, most, current.scratch_dropped
        self._scratch, self._padding, self._verdicts = (Scratch(*common) for _ in range(3))
        self._flushed: dict[drv.Context, CudaBuffer] = {}
        self._lock = threading.Lock()
        limit = drv.device_attribute
        self._most_blocks = tuple(
            gpu.get_attribute(axis)
            for axis in (limit.MAX_GRID_DIM_X, limit.MAX_GRID_DIM_Y, limit.MAX_GRID_DIM_Z)
        )

    def load(self, source: Source) -> CudaExecutable:
        common = (source, self.compiler, self._contexts, self._driver, self._most_blocks)
        if source.entry == grouped.ENTRY:
            return GroupedExecutable(*common, self._scratch)
        if isinstance(source.config, CustomConfig):
            return CustomExecutable(*common, self._scratch)
        if source.config.kernel.tma and source.gate:
            more = {"load": self.executable, "verdicts": self._verdicts, "zeroed": self._zeroed}
            return CheckedExecutable(*common, self._padding, self.device, **more)
        if source.config.kernel.tma:
            return MappedExecutable(*common, self._padding, self.device)
        return CudaExecutable(*common, self._scratch)

    # Memory

    def allocate(self, nbytes: int) -> CudaBuffer:
        context = self._contexts.current()
        try:
            return CudaBuffer(context, self._driver, nbytes)
        except MemoryError:
            self.reset()
            return CudaBuffer(context, self._driver, nbytes)

    def _zeroed(self, nbytes: int) -> CudaBuffer:
        buffer = self.allocate(nbytes)
        self._drive("clearing scratch memory", lambda: self._driver.zero(buffer.address, nbytes))
        return buffer

    def reset(self) -> None:
        self._captures.sweep()
        self._scratch.clear()
        self._padding.clear()
        self._verdicts.clear()

    def preparing(self) -> AbstractContextManager[None]:
        return relaxed_capture()

    def is_captured(self, stream: Any) -> bool:
        return self._place(stream).state.capture != 0

    def own_captured(self, stream: Any, thing: Any) -> None:
        place = self._place(stream)
        if place.state.capture:
            with working(self._contexts.current(), "capturing a product"):
                self._captures.of(place).own(thing)

    def _place(self, stream: Any) -> StreamPlace:
        """A stream of the current context, and whether it is being captured."""
        handle = self._handle(stream)
        asks = self._driver.asks_for_state(handle)
        if asks is None:
            return StreamPlace(0, handle)
        context = self._contexts.current()
        with active(context):
            return StreamPlace(self._driver.context_number(context.handle), handle, asks())

    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        from pycuda.gpuarray import GPUArray

        nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        buffer = self.allocate(nbytes) if nbytes else None
        with active(self._contexts.current()):
            if buffer is None:
                return GPUArray(shape, dtype)
            return GPUArray(shape, dtype, gpudata=buffer.address, base=buffer)

    def is_own(self, array: Any) -> bool:
        module = sys.modules.get("pycuda.gpuarray")
        return module is not None and isinstance(array, module.GPUArray)

    def row_pitch(self, row_bytes: int) -> int:
        return round_up(row_bytes, ROW_ALIGNMENT)

    def copy_in(
        self,
        array: np.ndarray,
        address: int,
        pitch: int,
        transfer: str = "pageable",
        stream: Any = None,
    ) -> None:
        self._copy(array, address, pitch, transfer, stream, True)

    def copy_out(
        self,
        address: int,
        pitch: int,
        array: np.ndarray,
        transfer: str = "pageable",
        stream: Any = None,
    ) -> None:
        self._copy(array, address, pitch, transfer, stream, False)

    def _copy(
        self,
        array: np.ndarray,
        address: int,
        pitch: int,
        transfer: str,
        stream: Any,
        into_device: bool,
    ) -> None:
        doing = f"copying {array.nbytes} bytes ({transfer})"
        handle = self._handle(stream)
        self._with_copies(
            doing, lambda own: own.copy(array, address, pitch, transfer, handle, into_device)
        )

    def copy_within(
        self,
        source: int,
        source_pitch: int,
        target: int,
        target_pitch: int,
        shape: tuple[int, int],
        stream: Any = None,
    ) -> None:
        handle = self._handle(stream)
        places = (source, source_pitch), (target, target_pitch)
        doing = f"copying {shape[0]} rows of {shape[1]} bytes on the device"
        self._with_copies(doing, lambda own: own.copy_within(*places, shape, handle))

    def _with_copies(self, doing: str, action: Callable[[HostCopies], None]) -> None:
        context = self._contexts.current()
        with working(context, doing):
            with self._lock:
                copies = self._copies.get(context)
                if copies is None:
                    copies = self._copies[context] = HostCopies(context, self._driver)
            try:
                action(copies)
            except DriverError as error:
                raise failure(context, error, doing) from error

    @contextmanager
    def locked(self, array: np.ndarray) -> Iterator[bool]:
        context, start = self._contexts.current(), array.ctypes.data
        with working(context, f"locking {array.nbytes} bytes"):
            done = array.nbytes > 0 and self._driver.register(start, array.nbytes)
        try:
            yield done
        finally:
            if done:
                self._drive("unlocking pages", lambda: self._driver.unregister(start))

    # Queues

    def queue(self) -> CudaQueue:
        return CudaQueue(self._contexts.current(), self._driver)

    def new_mark(self) -> CudaMark:
        return CudaMark(self._contexts.current(), self._driver)

    def free_bytes(self) -> int:
        with working(self._contexts.current(), "asking for free memory"):
            return drv.mem_get_info()[0]

    def reach(self, other: CudaBackend) -> bool:
        if other is self:
            return True
        return reach(self._contexts.current(), other._contexts.current(), self._driver)

    def scratch_bytes(self, config: Config, problem: Problem, a: Matrix, b: Matrix) -> int:
        pieces = [scratch_bytes(config, problem, a, b)]
        if problem.type.checked:
            pieces += checking_bytes(problem, self.device)
        return sum(size_of(wanted) for wanted in pieces if wanted)

    # Order

    def stream(self, stream: Any) -> drv.Stream | int | None:
        if stream is None or isinstance(stream, drv.Stream):
            return stream
        if isinstance(stream, numbers.Integral) and not isinstance(stream, bool):
            return None if stream in (0, 1) else int(stream)  # 0 and 1: the default stream
        protocol = getattr(stream, "__cuda_stream__", None)
        if protocol is not None:
            return self.stream((protocol() if callable(protocol) else protocol)[1])
        for name in ("cuda_stream", "ptr"):
            handle = getattr(stream, name, None)
            if isinstance(handle, numbers.Integral):
                return self.stream(handle)
        raise TypeError(
            f"{type(stream).__name__} is not a stream: pass None, a PyCUDA Stream, an integer "
            "handle, or an object with __cuda_stream__ (PyTorch, CuPy)"
        )

    def _handle(self, stream: Any) -> int:
        known = self.stream(stream)
        return 0 if known is None else known if isinstance(known, int) else known.handle

    def order(self, before: Any, after: Any) -> None:
        first, second = self._handle(before), self._handle(after)
        if first != second:
            self._drive("ordering two streams", lambda: self._driver.order(first, second))

    def synchronize(self, stream: Any = None) -> None:
        doing = "waiting for the device"
        if stream is None:
            with working(self._contexts.current(), doing):
                drv.Context.synchronize()
        else:
            handle = self._handle(stream)
            self._drive(doing, lambda: self._driver.synchronize(handle))

    def _drive(self, doing: str, action: Callable[[], None]) -> None:
        context = self._contexts.current()
        with working(context, doing):
            try:
                action()
            except DriverError as error:
                raise failure(context, error, doing) from error

    # Measurement

    def time(self, calls: Sequence[Callable[[], None]], ahead: int = 1) -> list[float]:
        """Timed by CUDA events. The device writes memory before each call, so that it is still busy
        while the host queues the call: only the kernel runs between the two events, and at the
        clock of a busy device. For every call L2 is then full of lines to be written back.
        """
        if not calls:
            return []
        context = self._contexts.current()
        flushed = self._flush_buffer(context)
        real = self.device.kind != "simulator"

        def write(times: int) -> None:
            for _ in range(times if real else 1):
                drv.memset_d8(flushed.address, 0, flushed.nbytes)

        with working(context, "timing"):
            write(FIRST_WRITES)
            keep_busy = functools.partial(write, WRITES * ahead)
            return timed(calls, keep_busy, drv.Event, drv.Context.synchronize, real)

    def _flush_buffer(self, context: drv.Context) -> CudaBuffer:
        """Memory to write, twice as large as L2. It is kept, because memory that was mapped just
        before a kernel runs costs the kernel microseconds.
        """
        if context not in self._flushed:
            size = 2 * self.device.l2_bytes
            if self.device.kind != "simulator":
                size = max(size, LEAST_FLUSH)
            self._flushed = {context: self.allocate(size)}
        return self._flushed[context]

    def telemetry(self) -> Mapping[str, float | str]:
        return {} if self.device.kind == "simulator" else read_telemetry(self._bus_id)

    def energy(self) -> float:
        return super().energy() if self.device.kind == "simulator" else read_energy(self._bus_id)
