"""CUDA and forks: a driver that was initialised before a fork works in the parent only."""

from __future__ import annotations

import os

from pymm.backends.current import current
from pymm.core.errors import LaunchFailed

WORDS = (
    "CUDA does not survive a fork, and this process was forked from one that used it. Start "
    "processes that use a GPU with the 'spawn' or 'forkserver' method of multiprocessing, or "
    "multiply NumPy arrays here with device='cpu'"
)


class Process:
    """Whether this process has initialised the driver, or was forked from one that had."""

    def __init__(self) -> None:
        self.used = self.forked = False

    def check(self) -> None:
        """`LaunchFailed` in a process that was forked from one that used CUDA."""
        if self.forked:
            raise LaunchFailed(WORDS, sticky=True)

    def in_child(self) -> None:
        if self.used:
            self.forked = True
            current.context = lambda: None  # nothing in the child asks the driver


process = Process()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=process.in_child)
