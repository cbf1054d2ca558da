"""Ctrl-C as a wish, so that a run can end in order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any


@contextmanager
def spared() -> Iterator[None]:
    """Processes that are started in a `with` never see Ctrl-C, from their first moment on: the
    parent decides what an interrupt ends. One that comes meanwhile reaches the parent afterwards.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Stop:
    """Ctrl-C as a wish: the first makes `asked` true, the second raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> bool:
        """Whether to stop."""
        return self.asked

    def _handle(self, number: int, frame: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    @contextmanager
    def listening(self) -> Iterator[Stop]:
        """Take interrupts and polite kills as wishes for the time of a `with`."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        wanted = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self._handle) for number in wanted}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
