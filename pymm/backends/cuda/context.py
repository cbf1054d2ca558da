"""The context that work runs in, what lives and dies with it, and what its errors mean.

PyCUDA keeps a stack of contexts of its own for every thread, and aborts the process if a thread
ends with something on it: what is pushed here is popped in a `finally`, always. Its objects can
only be destroyed while their context is on top of the stack or in the thread that made it: they
are kept in `Held` objects, which see to it.

What is remembered of a context has its object as the key, not its handle: the driver gives the
handle of a destroyed context to the next one. PyCUDA's objects are equal if their handles are, and
their hash is made of the handle and of the place of what they stand for, which nothing else has
while one of them is kept: so a dictionary tells contexts apart, and finds one by all its objects.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pycuda.driver as drv

from pymm.backends.cuda.driver import OutOfMemory, relaxed_capture
from pymm.backends.cuda.forks import WORDS, process
from pymm.core.errors import LaunchFailed

current_context = drv.Context.get_current
pop_context = drv.Context.pop


class Contexts:
    """The contexts of one device: the caller's own if PyCUDA has one current in this thread, else
    the device's primary context, which PyTorch, CuPy and the CUDA runtime share.
    """

    def __init__(self, device: drv.Device) -> None:
        self._device = device
        self._primary: drv.Context | None = None
        self._lock = threading.Lock()

    def current(self) -> drv.Context:
        """The context for new work of this thread. Nothing is pushed."""
        process.check()
        context = current_context()
        if context is not None and drv.Context.get_device() == self._device:
            return context
        if self._primary is None:
            with self._lock:
                if self._primary is None:
                    self._primary = self._device.retain_primary_context()
        return self._primary


@contextmanager
def active(context: drv.Context) -> Iterator[None]:
    """Have `context` current in this thread, without touching the stack where it is already.

    Compared by identity: PyCUDA's objects insist on the very one they were made in, and it has
    several that are equal. One push too many costs 0.4 us and is right.
    """
    if current_context() is context:
        yield
        return
    context.push()
    try:
        yield
    finally:
        pop_context()


@contextmanager
def working(context: drv.Context, doing: str) -> Iterator[None]:
    """`active`, with PyCUDA's errors told as pymm's. `doing` says what was asked. A graph that is
    being captured meanwhile is not disturbed by what this thread allocates, frees and loads.
    """
    try:
        with active(context), relaxed_capture():
            yield
    except drv.Error as error:
        raise failure(context, error, doing) from error


def failure(context: drv.Context, error: Exception, doing: str) -> Exception:
    """The exception to raise for an error of PyCUDA: a `MemoryError`, or a `LaunchFailed` that is
    sticky if the context does not recover.

    Errors of a kernel show up in some later call, and PyCUDA gives no error numbers. Whether the
    context is lost is found by asking it for something that otherwise cannot fail. A lost one says
    so before it says that its memory is full.
    """
    if process.forked:
        return LaunchFailed(f"{doing}: {WORDS}", sticky=True)
    words, full = str(error).rstrip(" -"), isinstance(error, drv.MemoryError | OutOfMemory)
    sticky = not full and lost(context)
    if full:
        with active(context):
            free, total = drv.mem_get_info()
        return MemoryError(f"{doing}: {free} of the device's {total} bytes are free ({words})")
    end = ". The context of this process is lost: only a new process can use the device"
    return LaunchFailed(f"{doing}: {words}{end if sticky else ''}", sticky)


def lost(context: drv.Context) -> bool:
    """Whether nothing works any more in `context`. Waits for its work."""
    if process.forked:
        return True
    try:
        with active(context):
            drv.Context.synchronize()
    except drv.Error:
        return True
    return False


class Held:
    """PyCUDA objects of one context, as attributes. They are destroyed with that context active
    when the holder goes, from whatever thread, at the latest when the interpreter exits.
    """

    def __init__(self, context: drv.Context, **objects: object) -> None:
        self.__dict__.update(objects)
        weakref.finalize(self, _drop, context, self.__dict__)


def _drop(context: drv.Context, objects: dict[str, object]) -> None:
    """In a lost context destroying fails, and PyCUDA says so on stderr for every single object:
    there they are left to the driver, which cleans up after the process.
    """
    if objects and not lost(context):
        with suppress(drv.Error), active(context):
            objects.clear()
    for left in objects.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
