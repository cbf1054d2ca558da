"""Bound launches, which own everything that they use and can be bound to operands at other
addresses; and the launch that mirrors one half of a symmetric C.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pycuda.driver as drv
from pycuda._pvt_struct import pack

from pymm.backends.base import Matrix, RebindableLaunch
from pymm.backends.compiled import (
    BY_GRAPH,
    BY_KERNEL,
    DRIVER_FUNCTIONS,
    NO_CAPTURE,
    NOTHING,
    SAME_STREAM,
    DeviceLaunch,
    compiled,
)
from pymm.backends.cuda.context import active, failure, pop_context
from pymm.backends.cuda.driver import (
    MAP_BYTES,
    PER_THREAD,
    Driver,
    DriverError,
    StreamState,
    launch_config,
    relaxed_capture,
    shown,
)
from pymm.backends.cuda.graphs import MOST_GRAPHS, Graph
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem

Call = Callable[[], None]

#: A bound launch becomes a graph when it has been called this many times.
REPEATED = 3

#: Most operations of a product of one launch that becomes a graph. Below it the device is faster
#: than the host (an H200 computes 256 x 256 x 256 in 4.3 us; a launch takes the host 5.3 us, a
#: graph 2.7). Above it the host has time, and a graph of one launch takes the device longer than
#: the launch: 0.1 to 0.2 us of 6 to 9 (bf16, 512 to 1024), up to 0.5 between kernels of many kinds.
BRIEF = 2**25

#: Held while the launches of one product are queued: launches of another thread on the same stream
#: use the same scratch memory and must not come between them.
_turn = threading.Lock()


class Launch(NamedTuple):
    """One launch of the function `entry`. `places` are the addresses of operands in its packed
    arguments, `maps` their tensor maps: each is an offset in bytes, and 0, 1 or 2 for A, B or C; of
    a map also the signed offset in bytes at which it begins from the operand's address.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: bytes
    places: tuple[tuple[int, int], ...] = ()
    maps: tuple[tuple[int, int, int], ...] = ()

    def at(self, addresses: Sequence[int], driver: Driver) -> Launch:
        """The same launch for operands of the same shapes, strides and dtypes at `addresses`."""
        arguments = bytearray(self.arguments)
        for offset, operand in self.places:
            struct.pack_into("<Q", arguments, offset, addresses[operand])
        for offset, operand, behind in self.maps:
            end = offset + MAP_BYTES
            moved = driver.moved_map(self.arguments[offset:end], addresses[operand] + behind)
            arguments[offset:end] = moved
        return self._replace(arguments=bytes(arguments))


class LaunchSite(NamedTuple):
    """Where the launches of a product run: the context and its `number`, the functions by name, the
    handle of the stream. `state` is a function that returns which stream the handle means now and
    whether it is being captured (None if neither can change); `found` is what it returned when the
    launches were bound. `early` says whether a launch may begin before the previous one has ended,
    `flops` how many operations they have together, `what` they are in error messages.
    """

    context: drv.Context
    number: int
    driver: Driver
    functions: dict[str, int]
    stream: int
    state: Callable[[], StreamState] | None
    found: StreamState
    early: bool
    flops: int
    what: str


class Bound(NamedTuple):
    """What a `BoundLaunch` is bound to: the matrices A, B and C, and the function that binds other
    ones, in the state that the stream then has. `scratch` says whether the launches use scratch
    memory.
    """

    matrices: tuple[Matrix, ...]
    bind: Callable[..., BoundLaunch]
    scratch: bool


class BoundLaunch(RebindableLaunch):
    """All launches of a product as one call. It owns what they use: the loaded kernel, the scratch
    memory, and the owners of the matrices where they have one.

    If its context is current for the driver, whatever is on PyCUDA's stack, a call takes 0.6 us
    more than the driver does, and what `direct` returns takes 0.1; if not, the context is pushed
    and popped, which takes another 0.6 us.

    Scratch memory belongs to one stream, or to one graph that is being captured. If the stream's
    handle means another stream by now, or its work is being captured, the product is bound again.
    """

    __slots__ = (
        "_place",
        "_launches",
        "_kernels",
        "_starts",
        "_owners",
        "_bound",
        "_current",
        "_number",
        "_single",
        "_queue",
        "_left",
        "_state",
        "_found",
        "_other",
        "_graph",
        "_compiled",
        "_packed",
        "__weakref__",
    )

    def __init__(
        self,
        place: LaunchSite,
        launches: Sequence[Launch],
        owners: tuple[Any, ...],
        bound: Bound,
        known: tuple[list[tuple], list] | None = None,
    ) -> None:
        self._place, self._launches, self._owners, self._bound = place, launches, owners, bound
        if known is None:
            kernels = [_kernel(place, one, i > 0) for i, one in enumerate(launches)]
            known = kernels, [place.driver.launcher(place.stream, *kernel) for kernel in kernels]
        self._kernels, self._starts = known
        pairs = zip(self._starts, launches, strict=True)
        calls = [start(one.arguments) for start, one in pairs]
        self._single = self._queue = calls[0] if len(calls) == 1 else _in_turn(calls)
        self._left = 0 if self.captured else REPEATED
        self._current, self._number = place.driver.current_context, place.number
        self._state: Callable[[], Any] | None = place.state if bound.scratch else None
        self._found: StreamState | bool = place.found
        self._other: tuple[StreamState, BoundLaunch] | None = None
        self._graph: Graph | None = None
        #: The same launch for compiled code.
        self._compiled: DeviceLaunch | None = None

    @property
    def context(self) -> int:
        """Number of the context that it launches in."""
        return self._place.number

    @property
    def captured(self) -> bool:
        """Whether it was bound for a graph that was being captured."""
        return self._place.found.capture != 0

    @property
    def owners(self) -> tuple[Any, ...]:
        """The objects that live as long as the launch."""
        return self._owners

    def assume_context(self, number: int) -> Call:
        """The same call for a caller that knows `number`, that of the current context."""
        if number != self._number:
            return self._pushed
        return self._here if compiled() is None else self.direct()

    def direct(self) -> Call:
        code = compiled()
        if code is None:
            return self
        if self._compiled is None:
            self._compiled = DeviceLaunch(stream=self._place.stream, context=self._number)
            for field, name in DRIVER_FUNCTIONS.items():
                setattr(self._compiled, field, self._place.driver.address(name))
            if not self._left and not self.captured:
                self._settle()
        return code.device_launcher(self._compiled, self._otherwise, _turn.locked)

    def _otherwise(self, code: int) -> None:
        """What compiled code leaves to Python: the launch, or the error of a code."""
        if code < 0:
            self()
            return
        called = "cuLaunchKernelEx" if self._graph is None else "cuGraphLaunch"
        error = DriverError(f"{called} failed: {self._place.driver.words(code)}")
        raise failure(self._place.context, error, self._place.what) from error

    def _settle(self) -> None:
        """Have compiled code make the launch as Python does from now on, where it can: a graph, or
        a single launch.
        """
        launch, place, graph = self._compiled, self._place, self._graph
        if launch is None:
            return
        launch.check = NOTHING
        if self._bound.scratch and place.state is not None:
            if place.stream == PER_THREAD or not launch.stream_number:
                return  # Python knows the number
            launch.check, launch.number = SAME_STREAM, place.found.stream
        elif graph is not None and self._state is not None:
            launch.check = NO_CAPTURE
        if graph is not None:
            launch.graph, launch.in_turn = graph.handle, len(self._launches) > 1
            launch.way = BY_GRAPH
        elif len(self._launches) == 1:
            (kernel,), (one,) = self._kernels, self._launches
            function, sizes, early = kernel
            self._packed = launch_config(place.stream, sizes, early), shown(one.arguments)
            launch.function = function
            launch.config, launch.extra = map(ctypes.addressof, self._packed)
            launch.way = BY_KERNEL

    def __call__(self) -> None:
        if self._current() == self._number:
            self._here()
        else:
            self._pushed()

    def _pushed(self) -> None:
        context = self._place.context
        try:
            context.push()
            try:
                self._here()
            finally:
                pop_context()
        except drv.Error as error:
            raise failure(context, error, self._place.what) from error

    def _here(self) -> None:
        asks = self._state
        if asks is not None and (state := asks()) != self._found:
            self._launch_in(state)
            return
        try:
            self._queue()
        except DriverError as error:
            raise failure(self._place.context, error, self._place.what) from error
        if self._left:
            self._left -= 1
            if not self._left:
                self._repeat()
                self._settle()

    def _launch_in(self, state: StreamState | bool) -> None:
        """Launch on a stream that has the same handle but is not the one bound to, or that is being
        captured.
        """
        if not self._bound.scratch:  # a graph cannot be captured into another graph
            try:
                self._single()
            except DriverError as error:
                raise failure(self._place.context, error, self._place.what) from error
            return
        other = self._other
        if other is None or other[0] != state:
            with relaxed_capture():
                other = (state, self._bound.bind(*self._bound.matrices))
            if not state.capture:  # those of a graph are the graph's
                self._other = other
        other[1]._here()

    def _repeat(self) -> None:
        """Make all launches one graph from now on, if that is faster, fewer than `MOST_GRAPHS`
        exist and the driver can make it. While the stream is captured they are still launched one
        by one.
        """
        place, launches = self._place, self._launches
        if (len(launches) == 1 and place.flops > BRIEF) or Graph.alive >= MOST_GRAPHS:
            return
        captured = place.driver.asks_whether_captured(place.stream)
        if captured is not None and captured():
            return
        nodes = zip(self._kernels, launches, strict=True)
        try:
            graph = Graph(place.driver, [(*kernel, one.arguments) for kernel, one in nodes])
        except DriverError:
            return
        self._graph, launch = graph, graph.launcher(place.stream)
        self._queue = launch if len(launches) == 1 else _in_turn([launch])
        if not self._bound.scratch:
            self._state, self._found = captured, False

    def rebind(self, *addresses: int) -> BoundLaunch:
        """The same call for operands of the same shapes, strides and dtypes at other addresses,
        equal to these modulo 128. It takes a tenth of the time of `bind`.
        """
        bound, driver = self._bound, self._place.driver
        pairs = zip(bound.matrices, addresses, strict=True)
        matrices = tuple(replace(matrix, address=address) for matrix, address in pairs)
        with active(self._place.context):  # the driver asks for one to write a tensor map
            launches = [one.at(addresses, driver) for one in self._launches]
        known = self._kernels, self._starts
        bound = bound._replace(matrices=matrices)
        return BoundLaunch(self._place, launches, self._owners, bound, known)


def _kernel(place: LaunchSite, one: Launch, follows: bool) -> tuple[int, tuple[int, ...], bool]:
    """The arguments of `Driver.launcher` besides the stream."""
    sizes = *one.grid, *one.block, one.shared
    return place.functions[one.entry], sizes, follows and place.early


def _in_turn(calls: list[Call]) -> Call:
    def call() -> None:
        with _turn:
            for one in calls:
                one()

    return call


#: Rows and columns of the squares that common/mirror.cuh moves, and the threads of a block.
SIDE, THREADS = 64, 256


def mirrors(problem: Problem, beta: float) -> bool:
    """Whether a product ends with a mirror launch; the kernel's source then has `mirror`. A product
    whose halves are both computed does if it adds to C: its elements are then not all rounded
    alike, and only one half of the given C counts.
    """
    return problem.fill == "full" and (problem.halved or beta != 0)


def mirror_launch(problem: Problem, c: Matrix) -> Launch:
    """A block for each square on and below the diagonal; two rows of them in a row of the grid."""
    squares = ceil_div(problem.n, SIDE)
    grid = squares | 1, (squares + 1) // 2, problem.batch
    arguments = pack("Pqqi", c.address, c.ld, c.batch_stride, problem.n)
    return Launch("mirror", grid, (THREADS, 1, 1), 0, arguments, ((0, 2),))
