"""Forking while threads work: the child has none of the parent's threads, and a lock that one of
them held is never released there. This module avoids such locks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
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
importing = threading.RLock()


def call_in_child(function: Callable[[], object]) -> None:
    """Have every child that is forked from now on call `function` first."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=importing.acquire,
        after_in_parent=importing.release,
        after_in_child=importing.release,
    )
