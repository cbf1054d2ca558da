"""What a backend offers: memory, binaries, launches, a stopwatch. Above this line nobody knows
which machine it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pymm.core.device import Device
from pymm.core.forking import cached_property
from pymm.core.problem import Problem
from pymm.kernels import Config
from pymm.kernels.source import Source


@dataclass(frozen=True)
class Matrix:
    """Where a kernel finds a matrix or a stack: address in bytes, leading dimension and distance
    between the matrices of the stack in elements. `owner` keeps the memory alive.
    """

    address: int
    ld: int
    batch_stride: int = 0
    owner: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Resources:
    """What the compiler gave: registers and spilled bytes of a thread, shared ones of a block."""

    registers: int = 0
    spilled_bytes: int = 0
    shared_bytes: int = 0
    max_threads: int = 0


class Compiler(ABC):
    """Source to binary on disk, without a device. Small, picklable, the same in every process."""

    @property
    @abstractmethod
    def toolchain(self) -> str:
        """Compiler and version: part of what makes a tuned record current or stale."""

    @abstractmethod
    def build(self, source: Source) -> Path:
        """The binary of `source` in the cache, compiled unless a sound one is there.

        Many processes may build the same source at once: each sees a whole file or none.
        Raises `CompileFailed`.
        """


class Buffer(ABC):
    """Device memory that is given back when the object goes, from any thread."""

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
    """A bound launch of a backend that can do more with it than call it. Where a backend cannot,
    a bound launch is any callable.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def context(self) -> int:
        """Number of the context that it works in."""

    @property
    @abstractmethod
    def captured(self) -> bool:
        """Whether it was bound for a graph that was being captured."""

    @abstractmethod
    def __call__(self) -> None:
        """Launch."""

    @abstractmethod
    def assume_context(self, number: int) -> Callable[[], None]:
        """The same launch for a caller that knows the number of the current context."""

    @abstractmethod
    def rebind(self, *addresses: int) -> RebindableLaunch:
        """The same launch for A, B and C of the same forms at other addresses, equal to the old
        ones modulo 128.
        """


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
    ) -> Callable[[], None]:
        """A call without arguments that launches the product on `stream` and does not wait for it.

        Everything that can be worked out ahead (geometry, packed arguments) is worked out here,
        and a geometry that the device cannot launch raises `LaunchFailed` here. The call keeps
        the owners of the matrices alive, may be made from any thread, and raises `LaunchFailed`.
        `stream` is anything that `Backend.stream` takes. `problem` has no empty extent but
        possibly k.
        """


class Backend(ABC):
    """One device and its compiler. Made by `pymm.backends.open_device`, cheap to keep, not shared
    between processes. Everything may be called from any thread.
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

    # Memory

    @abstractmethod
    def allocate(self, nbytes: int) -> Buffer:
        """Uninitialised device memory. Raises `MemoryError` that says what is free."""

    def reset(self) -> None:  # noqa: B027 there may be nothing to do
        """Have what is bound from now on use fresh scratch memory. What was bound before keeps its
        own. Also gives back what no launch uses any more.
        """

    def preparing(self) -> AbstractContextManager[None]:
        """Held while a product is prepared: compiling, loading and allocating then disturb no graph
        that is being captured.
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
        """Bytes from row to row, `row_bytes` or more, at which every row starts on a boundary that
        the device reads well: what "pitched" rows mean here.
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
        """Copy the rows of a NumPy matrix (rows x columns, neighbours of a row next to each other,
        rows any distance of at least a row apart) to device rows `pitch` bytes apart.

        After the work already on `stream`, before work put there later. On return `array` may be
        changed. `transfer` is one of `TRANSFERS`; all give the same bytes. A memory that cannot be
        registered goes the pinned way. `ValueError` for another transfer or layout.
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
        """The way back, same layout: waits for `stream` and returns when `array` holds the rows.
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
        """Copy `shape` = (rows, bytes of a row) from one place of the device to another that does
        not overlap it, rows their pitches apart, in the stream's order and perhaps without waiting
        for it. By way of the host, where a backend knows no shorter one.
        """
        rows = np.empty(shape, np.uint8)
        self.copy_out(source, source_pitch, rows, stream=stream)
        self.copy_in(rows, target, target_pitch, stream=stream)

    @contextmanager
    def locked(self, array: np.ndarray) -> Iterator[bool]:
        """Keep the pages of a contiguous array locked for a `with`; False where they cannot be."""
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
        """What a user may give as a stream in the form that the rest of this class takes: None
        (the default stream), a PyCUDA `Stream`, an integer handle, or an object with
        `__cuda_stream__` (PyTorch, CuPy, cuda.core), `cuda_stream` or `ptr`. `TypeError` for
        anything else; on a CPU for anything but None.
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
    def time(
        self, calls: Sequence[Callable[[], None]], flush: bool = True, ahead: int = 1
    ) -> list[float]:
        """Seconds that each call takes on the device, one after the other, with cold caches if
        `flush`; NaN where the host did not queue the call in time, so that its delay would count.
        Then a larger `ahead` helps: so many times as long the device is kept busy before each call.
        The calls use the default stream. What a call's attribute `prepare` does, if it has one, is
        done before the call and not timed. Its attribute `library`, if it has one, names whose
        threads it works with ("": pymm's). Raises `LaunchFailed`.
        """

    @abstractmethod
    def telemetry(self) -> Mapping[str, float | str]:
        """What can be read of: `sm_mhz`, `memory_mhz`, `power_w`, `temperature_c`, `throttle`
        (reasons joined by "+", "" for none); on a CPU `load` (mean length of the run queue over a
        minute). Never raises.
        """


#: How host memory travels: as it is, through a page-locked staging area, or page-locked in place
#: for the time of the copy.
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
            f"copies take rows of neighbouring elements, one after the other; shape {array.shape} "
            f"has strides {steps} bytes for elements of {array.itemsize}"
        )
    if pitch < row_bytes:
        raise ValueError(f"rows of {row_bytes} bytes do not fit {pitch} bytes apart")
    return rows, columns


def check_range(size: int, offset: int, nbytes: int) -> None:
    """`ValueError` unless `nbytes` bytes from `offset` on lie in a buffer of `size`."""
    if offset < 0 or offset + nbytes > size:
        raise ValueError(f"{nbytes} bytes from {offset} on do not lie in a buffer of {size}")
