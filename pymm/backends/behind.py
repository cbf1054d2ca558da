"""Kernels compiled beside the work of this process, one at a time, by a thread of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress

from pymm.backends.base import Compiler
from pymm.core.errors import CompileFailed
from pymm.core.forking import call_in_child
from pymm.kernels.source import Source

Task = tuple[Compiler, Source, Callable[[], object]]


class _Behind:
    """The thread and what it has to do. A forked child begins with neither."""

    def __init__(self) -> None:
        self._renew()
        call_in_child(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._asked: set[tuple[str, str]] = set()
        self._thread: threading.Thread | None = None

    def compile(self, compiler: Compiler, source: Source, then: Callable[[], object]) -> None:
        """Compile `source` into the cache, once, and call `then` in that thread. A source that is
        refused is left to the product that waits for it, which then says why.
        """
        with self._lock:
            name = str(compiler.folder(source)), source.key
            if name in self._asked:
                return
            self._asked.add(name)
            self._tasks.put((compiler, source, then))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, args=(self._tasks,), name="pymm-compile", daemon=True
                )
                self._thread.start()

    @staticmethod
    def _work(tasks: queue.SimpleQueue[Task]) -> None:
        while True:
            compiler, source, then = tasks.get()
            with suppress(CompileFailed, OSError):
                compiler.build(source)
                then()


_behind = _Behind()

compile_behind = _behind.compile
