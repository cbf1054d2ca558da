"""The interface of a backend: memory, binaries, launches, timing. The packages above use nothing
else of a device.
"""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pymm.backends.matrices import Matrix, Vector
from pymm.core.binaries import sound
from pymm.core.device import Device
from pymm.core.errors import NoEnergy
from pymm.core.forking import cached_property
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.kernels.source import Source

LOG = logging.getLogger("pymm")


@dataclass(frozen=True)
class Resources:
    """Registers and spilled bytes of a thread, shared bytes of a block, most threads of a block."""

    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    max_threads: int = 0


class Compiler(ABC):
    """Compiles sources to binaries on disk, without a device. Small and picklable."""

    #: The directory of compiled kernels, of all devices.
    cache: Path

    @property
    @abstractmethod
    def toolchain(self) -> str:
        """Compiler and version: part of what makes a tuned record current or stale."""

    @property
    @abstractmethod
    def target(self) -> str:
        """What it compiles for, as a part of a file name: an architecture, a processor."""

    @abstractmethod
    def folder(self, source: Source) -> Path:
        """The folder of a source's binary, whether it is there or not. Its name is a digest of
        everything that the binary depends on, the environment included.
        """

    def has(self, source: Source) -> bool:
        """Whether a sound binary of `source` is in the cache."""
        return sound(self.folder(source)) is not None

    @abstractmethod
    def build(self, source: Source) -> Path:
        """The binary of `source` in the cache, compiled unless a sound one is there.

        Many processes may build the same source at once: each sees a complete file or none.
        Raises `CompileFailed`.
        """


class Buffer(ABC):
    """Device memory, freed when the object is destroyed, in whatever thread."""

    address: int
    nbytes: int

    @abstractmethod
    def write(self, array: np.ndarray) -> None:
        """Copy the bytes of a contiguous array to the start of the buffer."""

    @abstractmethod
    def read(self, array: np.ndarray, offset: int = 0) -> None:
        """Copy `array.nbytes` bytes from `offset` on into a contiguous array; waits for the
        device.
        """

    @abstractmethod
    def fill(self, byte: int) -> None:
        """Set every byte."""


class Mark(ABC):
    """A place in the work of a queue: where `Queue.mark` last put it."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait in this thread until the work before the mark is done."""


class Queue(ABC):
    """Work of a device that is done in its order, and overlaps with that of other queues. `stream`
    is what launches are bound to. Copies are counted: `bytes_in` from the host, `bytes_out` to it.
    """

    stream: Any
    bytes_in: int
    bytes_out: int

    @abstractmethod
    def mark(self, mark: Mark) -> None:
        """Put a mark, of the same device, behind the work so far."""

    @abstractmethod
    def wait(self, mark: Mark) -> None:
        """Later work waits for a mark, of any device. One that was never put is not waited for."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait in this thread for all work so far. Raises `LaunchFailed`."""

    @abstractmethod
    def upload(self, array: np.ndarray, dtype: np.dtype, address: int, pitch: int) -> None:
        """Queue the copy of a NumPy matrix, of any strides and type, to rows of `dtype` that are
        `pitch` bytes apart on the device. Returns when `array` has been read, or, if its memory is
        page-locked, at once.
        """

    @abstractmethod
    def download(self, address: int, pitch: int, dtype: np.dtype, array: np.ndarray) -> None:
        """The way back: returns when `array` holds the rows."""

    @abstractmethod
    def copy(
        self,
        source: int,
        source_pitch: int,
        target: int,
        target_pitch: int,
        shape: tuple[int, int],
    ) -> None:
        """Queue a copy of `shape` = (rows, bytes of a row) between two places of devices, rows
        their pitches apart. The devices are the same, or `Backend.reach` each other.
        """

    # The same as calls without arguments, for who makes them often; to be made within `here`

    @abstractmethod
    def here(self) -> AbstractContextManager[None]:
        """Have the queue's device be the one that this thread works on, for a `with`."""

    @abstractmethod
    def marking(self, mark: Mark) -> Callable[[], None]:
        """`mark` as a call."""

    @abstractmethod
    def waiting(self, mark: Mark) -> Callable[[], None]:
        """`wait` as a call."""

    @abstractmethod
    def copying(
        self,
        source: int,
        source_pitch: int,
        target: int,
        target_pitch: int,
        shape: tuple[int, int],
    ) -> Callable[[], None]:
        """`copy` as a call."""


class RebindableLaunch(ABC):
    """A bound launch that can be made again for other addresses. Backends that have no such thing
    return any callable as a bound launch.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def context(self) -> int | None:
        """Number of the context that it launches in. None on a device without contexts."""

    @property
    @abstractmethod
    def captured(self) -> bool:
        """Whether it was bound for a graph that was being captured."""

    @abstractmethod
    def __call__(self) -> None:
        """Launch."""

    def direct(self) -> Callable[[], None]:
        """The same launch in compiled code, if that is there: what calls it owns it."""
        return self

    @abstractmethod
    def assume_context(self, number: int) -> Callable[[], None]:
        """The same launch for a caller that knows `number`, that of the current context."""

    @abstractmethod
    def rebind(self, *addresses: int) -> RebindableLaunch:
        """The same launch for A, B and C of the same shapes, strides and dtypes at other
        addresses, equal to the old ones modulo 128.
        """


def _nothing() -> None:
    pass


@dataclass(frozen=True, eq=False)
class TimedCall:
    """A call that `Backend.time` is to time. `prepare` is called before each run, and its time does
    not count. `timed` takes the seconds of one run in another process instead: a library with CPU
    threads of its own.
    """

    call: Callable[[], object]
    prepare: Callable[[], object] = _nothing
    timed: Callable[[], float] | None = None

    @classmethod
    def of(cls, call: Callable[[], object]) -> TimedCall:
        """`call` itself if it is one already."""
        return call if isinstance(call, cls) else cls(call)

    def __call__(self) -> None:
        """Prepare and call."""
        self.prepare()
        self.call()


class Executable(ABC):
    """A compiled kernel of one configuration, ready to be launched."""

    config: Config
    resources: Resources

    @abstractmethod
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
        """A call without arguments that launches the product on `stream` and does not wait for it.

        Geometry and arguments are worked out here, and a geometry that the device cannot launch
        raises `LaunchFailed` here. The call keeps the owners of the matrices alive, may be made
        from any thread, and raises `LaunchFailed`. `stream` is anything that `Backend.stream`
        takes. Of the extents of `problem` only k may be 0. `bias` is for a kernel whose epilogue
        adds one: an element for each column of C, or for each row.
        """


class Backend(ABC):
    """One device and its compiler. Made by `pymm.backends.open_device`, not shared between
    processes. All methods may be called from any thread.
    """

    device: Device
    compiler: Compiler

    #: Whether there are queues: the device has memory of its own, and copies overlap its work.
    has_queues = False

    @property
    def toolchain(self) -> str:
        """Compiler and version: part of what makes a tuned record current or stale."""
        return self.compiler.toolchain

    def precompile(self, source: Source) -> None:
        """Put the binary of `source` into the cache unless it is there. Raises `CompileFailed`."""
        self.compiler.build(source)

    @abstractmethod
    def load(self, source: Source) -> Executable:
        """The kernel of `source`, from the cache where possible. Raises `CompileFailed`,
        `LaunchFailed`.
        """

    @cached_property
    def _executables(self) -> dict[str, Executable]:
        return {}

    def executable(self, source: Source) -> Executable:
        """The kernel of `source`, loaded once. Raises what `load` does."""
        found = self._executables.get(source.key)
        if found is None:
            found = self._executables[source.key] = self.load(source)
        return found

    @cached_property
    def _warnings(self) -> set[str]:
        return set()

    def warn_once(self, text: str) -> None:
        """Give `text` as a `RuntimeWarning`, the first time that this device has cause to."""
        LOG.info("%s: %s", self.device.name, text)
        if text not in self._warnings:
            warnings.warn(text, RuntimeWarning, stacklevel=3)
            self._warnings.add(text)

    # Memory

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised device memory. Raises `MemoryError` that says what is free."""

    def reset(self) -> None:  # noqa: B027 there may be nothing to do
        """Give launches that are bound from now on fresh scratch memory; those bound before keep
        theirs. Memory that no launch uses any more is freed.
        """

    def preparing(self) -> AbstractContextManager[None]:
        """Entered while a product is prepared, so that compiling, loading and allocating do not
        break the capture of a graph.
        """
        return nullcontext()

    def is_captured(self, stream: Any) -> bool:
        """Whether work on `stream` is being captured into a graph."""
        return False

    def own_captured(self, stream: Any, thing: Any) -> None:  # noqa: B027 graphs are CUDA's
        """If work on `stream` is being captured into a graph, keep `thing` alive for as long as the
        graph is.
        """

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A new uninitialised array in C order of the device's own kind: a PyCUDA `GPUArray`, on
        a CPU a NumPy array. Raises `MemoryError`.
        """

    @abstractmethod
    def is_own(self, array: Any) -> bool:
        """Whether `array` is of the kind that `empty` makes. Imports nothing to find out."""

    @abstractmethod
    def row_pitch(self, row_bytes: int) -> int:
        """Bytes from row to row, `row_bytes` or more, of pitched rows: each starts on a boundary
        that the device reads fast.
        """

    @abstractmethod
    def copy_in(
        self,
        array: np.ndarray,
        address: int,
        pitch: int,
        transfer: str = "pageable",
        stream: Any = None,
    ) -> None:
        """Copy a NumPy matrix (contiguous rows, any distance of at least a row apart) to device
        rows `pitch` bytes apart.

        The copy runs after the work that is on `stream` now and before work put there later. On
        return `array` may be changed. `transfer` is one of `TRANSFERS`; all give the same bytes.
        Memory that cannot be registered is transferred as "pinned". `ValueError` for another
        transfer or layout.
        """

    @abstractmethod
    def copy_out(
        self,
        address: int,
        pitch: int,
        array: np.ndarray,
        transfer: str = "pageable",
        stream: Any = None,
    ) -> None:
        """The reverse of `copy_in`: waits for `stream` and returns when `array` holds the rows.
        Raises `LaunchFailed` if the work on the stream failed.
        """

    def copy_within(
        self,
        source: int,
        source_pitch: int,
        target: int,
        target_pitch: int,
        shape: tuple[int, int],
        stream: Any = None,
    ) -> None:
        """Copy `shape` = (rows, bytes of a row) from one address of the device to another, without
        overlap, in the order of the stream and possibly without waiting for it. Where a backend has
        no direct copy, through the host.
        """
        rows = np.empty(shape, np.uint8)
        self.copy_out(source, source_pitch, rows, stream=stream)
        self.copy_in(rows, target, target_pitch, stream=stream)

    @contextmanager
    def locked(self, array: np.ndarray) -> Iterator[bool]:
        """Page-lock a contiguous array for a `with`; False where that is not possible."""
        yield False

    # Queues: only of devices with memory of their own

    def queue(self) -> Queue:
        """A new queue, with staging of its own for what it copies from and to the host."""
        raise NotImplementedError(f"{self.device.name} has no queues: it works in host memory")

    def new_mark(self) -> Mark:
        """A mark for queues of this device."""
        raise NotImplementedError(f"{self.device.name} has no queues: it works in host memory")

    def free_bytes(self) -> int:
        """Memory of the device that nobody has allocated."""
        raise NotImplementedError(f"{self.device.name} works in host memory")

    def reach(self, other: Backend) -> bool:
        """Let queues of this device copy from the memory of `other`; False if they cannot."""
        return False

    def scratch_bytes(self, config: Config, problem: Problem, a: Matrix, b: Matrix) -> int:
        """Bytes of device memory that launches of `config` need besides their operands: for copies
        of them that the kernel can read, and parts of sums.
        """
        return 0

    # Order

    @abstractmethod
    def stream(self, stream: Any) -> Any:
        """A user's stream as the rest of this class takes it. It may be None (the default
        stream), a PyCUDA `Stream`, an integer handle, or an object with `__cuda_stream__`
        (PyTorch, CuPy, cuda.core), `cuda_stream` or `ptr`. `TypeError` for anything else; on a CPU
        for anything but None.
        """

    @abstractmethod
    def order(self, before: Any, after: Any) -> None:
        """Make later work on stream `after` wait for the work that is on stream `before` now,
        without waiting here.
        """

    @abstractmethod
    def synchronize(self, stream: Any = None) -> None:
        """Wait for all work of this process on the device, or for one stream's. Raises
        `LaunchFailed` if any of it failed.
        """

    @abstractmethod
    def time(self, calls: Sequence[Callable[[], None]], ahead: int = 1) -> list[float]:
        """Seconds that each call takes on the device, one after the other, on a GPU with cold
        caches, on a CPU the shortest of up to three runs with warm caches. The calls use the
        default stream; each is a function without arguments or a `TimedCall`. Raises
        `LaunchFailed`.

        NaN stands for a call that the host queued too late, so that its delay would count. A larger
        `ahead` helps then: the device is kept busy that many times as long before each call.
        """

    @abstractmethod
    def telemetry(self) -> Mapping[str, float | str]:
        """Those that can be read of: `sm_mhz`, `memory_mhz`, `power_w`, `power_limit_w`,
        `temperature_c`, `throttle` (reasons joined by "+", "" for none); on a CPU `load` (mean
        length of the run queue over a minute). Never raises.
        """

    def energy(self) -> float:
        """Joules that the device has drawn since some moment in the past. Raises `NoEnergy` where
        that cannot be read.
        """
        raise NoEnergy(f"{self.device.name} has no counter of energy that pymm can read")


#: How host memory is transferred: from where it is by the driver, through page-locked staging
#: memory, or page-locked in place during the copy.
TRANSFERS = ("pageable", "pinned", "registered")


def check_rows(array: np.ndarray, pitch: int) -> tuple[int, int]:
    """Rows and columns of a matrix that `copy_in` and `copy_out` take. `ValueError` for any other
    array, and for rows that would overlap at `pitch`.
    """
    if array.ndim != 2:
        raise ValueError(f"copies take a matrix; got shape {array.shape}")
    rows, columns = array.shape
    row_bytes = columns * array.itemsize
    steps = array.strides
    apart = rows > 1 and steps[0] < row_bytes
    if array.size and (apart or (columns > 1 and steps[1] != array.itemsize)):
        raise ValueError(
            f"copies take contiguous rows, one after the other; shape {array.shape} has strides of "
            f"{steps} bytes for elements of {array.itemsize}"
        )
    if pitch < row_bytes:
        raise ValueError(f"rows of {row_bytes} bytes do not fit {pitch} bytes apart")
    return rows, columns


def check_range(size: int, offset: int, nbytes: int) -> None:
    """`ValueError` unless `nbytes` bytes from `offset` on lie in a buffer of `size`."""
    if offset < 0 or offset + nbytes > size:
        raise ValueError(f"{nbytes} bytes from {offset} on do not lie in a buffer of {size}")
