"""Forks and signals at any moment. A forked child has none of its parent's threads, and a lock that
one of them held is never released there: this module keeps such locks from being held across a
fork. And it imports modules so that a signal's handler that raises (Ctrl-C, a time limit) leaves
none of them half imported.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class cached_property:
    """`functools.cached_property`, which up to Python 3.11 has a lock for all instances of a class.
    Two threads may both compute the value here; it must not matter whose is kept.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._function(instance)
        return value


#: Held while a product imports a module at its first use, and by the thread that forks. Otherwise
#: Python's lock of a module that another thread is importing would stay locked in the child.
_importing = threading.RLock()


def import_whole(name: str) -> None:
    """Import module `name` for an `import` statement that follows, whatever signals arrive: in a
    thread of its own, because Python runs the handlers of signals in the main thread alone. After
    an import that was interrupted the package lacks the submodules that it had imported (they stay
    in `sys.modules`, and are not bound to the package again).
    """
    module = sys.modules.get(name)
    if module is not None and not getattr(module.__spec__, "_initializing", False):
        return
    with ThreadPoolExecutor(max_workers=1) as thread:
        try:
            imported = thread.submit(_import, name)
        except RuntimeError as error:
            if "shutdown" not in str(error) and "new thread" not in str(error):
                raise  # by a handler
            imported = None  # the interpreter starts no thread any more
    if imported is None:
        _import(name)
    else:
        imported.result()


def _import(name: str) -> None:
    with _importing:
        importlib.import_module(name)


def call_in_child(function: Callable[[], object]) -> None:
    """Have every child that is forked from now on call `function` first."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_importing.acquire,
        after_in_parent=_importing.release,
        after_in_child=_importing.release,
    )
