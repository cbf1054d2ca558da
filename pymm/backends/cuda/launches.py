"""What a bound call launches, and the same launches for operands that lie elsewhere."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pycuda.driver as drv

from pymm.backends.cuda.context import Contexts, failure, pop_context
from pymm.backends.cuda.driver import MAP_BYTES, Driver, DriverError

Call = Callable[[], None]

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
    """Where launches run: `start` makes a call of one that does nothing else, `after` says that it
    may begin before the one before it has ended. `what` is for error messages.
    """

    contexts: Contexts
    context: drv.Context
    driver: Driver
    start: Callable[[Launch, bool], Call]
    what: str


def bound_call(place: Place, launches: Sequence[Launch], owners: tuple[Any, ...]) -> Call:
    """One call of all `launches`. Its `moved(a, b, c)` makes the same call for operands at other
    addresses, equal to these modulo 128, in a tenth of the time that binding takes; None where
    another context is current.

    The call that costs least: where the context is current, one question and the launch (0.6 us on
    top of the driver's own time); else a push and a pop (0.6 us more). It is enough that the driver
    has it current, as in a thread that works with PyTorch, whatever is on PyCUDA's stack.
    """
    launch = _in_turn([place.start(one, number > 0) for number, one in enumerate(launches)])
    contexts, context, driver, _, what = place
    handle, current = context.handle, driver.current_context

    def call() -> None:
        try:
            if current() == handle:
                launch()
                return
            context.push()
            try:
                launch()
            finally:
                pop_context()
        except (drv.Error, DriverError) as error:
            raise failure(context, error, what) from error

    def moved(*addresses: int) -> Call | None:
        if contexts.current() is not context:
            return None
        return bound_call(place, [one.at(addresses, driver) for one in launches], owners)

    call.owners = owners  # the matrices live as long as the call
    call.moved = moved
    return call


def _in_turn(calls: list[Call]) -> Call:
    if len(calls) == 1:
        return calls[0]

    def call() -> None:
        with _turn:
            for one in calls:
                one()

    return call
