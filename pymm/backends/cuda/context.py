"""CUDA contexts: which one work runs in, the objects that belong to one, and what its errors mean.

PyCUDA keeps a stack of contexts for each thread, and aborts the process if a thread ends with
something on it: whatever is pushed here is popped in a `finally`. PyCUDA's objects can be destroyed
only while their context is on top of the stack, or in the thread that made them: `Held` objects own
them and see to that.

Dictionaries have the context object as their key, not its handle: the driver gives the handle of a
destroyed context to the next one. PyCUDA's objects are equal if their handles are, and their hash
also contains the address of the context that they wrap, which no other context has while one of
them is kept. So a dictionary tells contexts apart, and finds one by any of its objects.
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
    """The contexts of one device: the one that PyCUDA has current in the calling thread, else the
    device's primary context, which PyTorch, CuPy and the CUDA runtime share.
    """

    def __init__(self, device: drv.Device) -> None:
        self._device = device
        self._primary: drv.Context | None = None
        self._lock = threading.Lock()

    def current(self) -> drv.Context:
        """The context for new work of this thread. It is not pushed."""
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
    """Have `context` current in this thread for a `with`; it is not pushed where it already is.

    It is compared by identity: PyCUDA has several equal objects for one context, and its other
    objects accept only the one that they were made with. An unneeded push costs 0.4 us.
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
    """`active`, with PyCUDA's errors turned into pymm's; `doing` says in the message what was being
    done. What this thread allocates, frees and loads meanwhile does not break the capture of a
    graph.
    """
    try:
        with active(context), relaxed_capture():
            yield
    except drv.Error as error:
        raise failure(context, error, doing) from error


def failure(context: drv.Context, error: Exception, doing: str) -> Exception:
    """The exception to raise for an error of PyCUDA: a `MemoryError`, or a `LaunchFailed` that is
    sticky if the context does not recover.

    Errors of a kernel are reported by some later call, and PyCUDA gives no error numbers. So a
    context counts as lost if it cannot be synchronised. A lost one reports that before it reports
    that its memory is full.
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
    """Whether `context` can no longer be used. Waits for its work."""
    if process.forked:
        return True
    try:
        with active(context):
            drv.Context.synchronize()
    except drv.Error:
        return True
    return False


class Held:
    """PyCUDA objects of one context, as attributes. They are destroyed, with that context active,
    when their holder is destroyed, in whatever thread, or when the interpreter exits.
    """

    def __init__(self, context: drv.Context, **objects: object) -> None:
        self.__dict__.update(objects)
        weakref.finalize(self, _drop, context, self.__dict__)


def _drop(context: drv.Context, objects: dict[str, object]) -> None:
    """Destroy them. In a lost context that fails, with a message of PyCUDA on stderr for each
    object: there they are left to the driver, which frees them when the process ends.
    """
    if objects and not lost(context):
        with suppress(drv.Error), active(context):
            objects.clear()
    for left in objects.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(left))
