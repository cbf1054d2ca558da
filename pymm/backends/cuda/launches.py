"""What a bound call launches, and the same launches for operands that lie elsewhere."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pycuda.driver as drv

from pymm.backends.cuda.context import failure, pop_context
from pymm.backends.cuda.driver import MAP_BYTES, Driver, DriverError
from pymm.backends.cuda.graphs import MOST_GRAPHS, Graph

Call = Callable[[], None]

#: A call that is made so many times will be made again, and becomes a graph.
REPEATED = 3

#: Operations up to which a single launch does, too: the device has computed 256 x 256 x 256 before
#: the host has launched the next one (an H200: 4.3 us from call to call, 5.3 a launch, 2.7 a
#: graph). Beyond that the host has time, and a graph of one launch takes the device longer than the
#: launch: 0.1 to 0.2 us of 6 to 9 (bf16, 512 to 1024), up to 0.5 between kernels of many kinds.
BRIEF = 2**25

#: Handles of the legacy default stream, which cannot be captured.
LEGACY = 0, 1

#: Held while the launches of one product are queued: those of another thread on the same stream
#: must not come between, they use the same memory.
_turn = threading.Lock()


class Launch(NamedTuple):
    """One launch of the function `entry`: `places` and `maps` say where in its arguments the
    address or the tensor map of an operand stands: bytes from their start, and 0, 1 or 2 for A, B
    or C.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    arguments: bytes
    places: tuple[tuple[int, int], ...] = ()
    maps: tuple[tuple[int, int], ...] = ()

    def at(self, addresses: Sequence[int], driver: Driver) -> Launch:
        """The same for operands of the same form at `addresses`."""
        arguments = bytearray(self.arguments)
        for offset, operand in self.places:
            struct.pack_into("<Q", arguments, offset, addresses[operand])
        for offset, operand in self.maps:
            end = offset + MAP_BYTES
            moved = driver.moved_map(self.arguments[offset:end], addresses[operand])
            arguments[offset:end] = moved
        return self._replace(arguments=bytes(arguments))


class Place(NamedTuple):
    """Where launches run: functions by their names, the handle of a stream, whether a launch may
    begin before the one before it has ended, and how many operations they do together. `number` is
    the context's, `what` is for error messages.
    """

    context: drv.Context
    number: int
    driver: Driver
    functions: dict[str, int]
    stream: int
    early: bool
    flops: int
    what: str


def bound_call(place: Place, launches: Sequence[Launch], owners: tuple[Any, ...]) -> Call:
    """One call of all `launches`. Its `moved(a, b, c)` makes the same call for operands at other
    addresses, equal to these modulo 128, in a tenth of the time that binding takes; `context` is
    the number of the context that it works in; `knowing(number)` is the same call for who knows
    the number of the current one, and need not ask again.

    The call that costs least: where the context is current, one question and the launch (0.6 us on
    top of the driver's own time); else a push and a pop (0.6 us more). It is enough that the driver
    has it current, as in a thread that works with PyTorch, whatever is on PyCUDA's stack.
    """
    kernels = [_kernel(place, one, number > 0) for number, one in enumerate(launches)]
    starts = [place.driver.launcher(place.stream, *kernel) for kernel in kernels]
    return _bound(place, launches, kernels, starts, owners)


def _kernel(place: Place, one: Launch, follows: bool) -> tuple[int, tuple[int, ...], bool]:
    """What `Driver.launcher` wants besides a stream."""
    sizes = *one.grid, *one.block, one.shared
    return place.functions[one.entry], sizes, follows and place.early


def _bound(
    place: Place, launches: Sequence[Launch], kernels: list[tuple], starts: list, owners: tuple
) -> Call:
    context, driver = place.context, place.driver
    number, current = place.number, driver.current_context
    calls = [start(one.arguments) for start, one in zip(starts, launches, strict=True)]
    one_by_one = calls[0] if len(calls) == 1 else _in_turn(calls)
    left = REPEATED

    def first() -> None:
        nonlocal run, left
        one_by_one()
        left -= 1
        if left == 0:
            run = _together(place, launches, kernels, one_by_one)

    run = first

    def here() -> None:
        try:
            run()
        except DriverError as error:
            raise failure(context, error, place.what) from error

    def pushed() -> None:
        try:
            context.push()
            try:
                run()
            finally:
                pop_context()
        except (drv.Error, DriverError) as error:
            raise failure(context, error, place.what) from error

    def call() -> None:
        (here if current() == number else pushed)()

    def moved(*addresses: int) -> Call:
        elsewhere = [one.at(addresses, driver) for one in launches]
        return _bound(place, elsewhere, kernels, starts, owners)

    call.owners = owners  # the matrices live as long as the call
    call.moved, call.context = moved, number
    call.knowing = lambda known: here if known == number else pushed
    return call


def _in_turn(calls: list[Call]) -> Call:
    def call() -> None:
        with _turn:
            for one in calls:
                one()

    return call


def _together(
    place: Place, launches: Sequence[Launch], kernels: list[tuple], one_by_one: Call
) -> Call:
    """The same as one graph, if that helps, there is room for one and the driver can make it. On a
    stream that is being captured the launches go one by one, into that graph.
    """
    if len(launches) == 1 and place.flops > BRIEF:
        return one_by_one
    stream, driver = place.stream, place.driver
    captured = driver.asks_whether_captured(stream) if stream not in LEGACY else None
    if Graph.alive >= MOST_GRAPHS or (captured and captured()):
        return one_by_one
    try:
        ready = [(*k, one.arguments) for k, one in zip(kernels, launches, strict=True)]
        launch = Graph(driver, ready).launcher(stream)
    except DriverError:
        return one_by_one

    def alone() -> None:
        with _turn:
            launch()

    whole = launch if len(launches) == 1 else alone
    if captured is None:
        return whole
    return lambda: one_by_one() if captured() else whole()
