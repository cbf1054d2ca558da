"""The CPU kernels' threads, and what a fork does to them.

A forked child has one thread, the one that forked. GCC's OpenMP runtime (libgomp) keeps a team of
threads for every thread that has run a parallel region, and knows nothing of forks: in the child
the next parallel region would wait forever for a team that does not exist. So the team of the
thread that forks is released first. It is formed again at that thread's next product, in the parent
and in the child. Teams of other threads need nothing: they go on working in the parent, and no
thread of the child uses them.

Where a team cannot be released (libgomp before GCC 9, another compiler's runtime), kernels run
with one thread in the child.
"""

from __future__ import annotations

import ctypes
import os
import threading

#: omp_pause_hard (OpenMP 5.0, section 3.2.44): release everything, threads included.
PAUSE_HARD = 2


class Forks:
    """The OpenMP runtimes of this process, and how many threads kernels may use."""

    def __init__(self) -> None:
        self._pauses: dict[int, ctypes._CFuncPtr] = {}
        self._unknown = False
        self._teams: dict[int, ctypes.c_int] = {}
        self._alone = False
        self._forking = threading.local()

    def watch(self, library: ctypes.CDLL) -> None:
        """Note the OpenMP runtime that a kernel's library has loaded, if it has one."""
        if hasattr(library, "__kmpc_fork_call"):  # LLVM's: pausing stops other threads' work, too
            self._unknown = True
        elif hasattr(library, "omp_pause_resource_all"):
            pause = library.omp_pause_resource_all
            self._pauses[ctypes.cast(pause, ctypes.c_void_p).value or 0] = pause
        elif hasattr(library, "omp_get_num_threads"):
            self._unknown = True

    def team(self, threads: int) -> ctypes.c_int:
        """`threads` as an argument of kernels. It is read at each call, and becomes 1 in a child
        that cannot have a team.
        """
        return self._teams.setdefault(threads, ctypes.c_int(1 if self._alone else threads))

    def before(self) -> None:
        """Release this thread's team, in a process that can have one."""
        self._forking.released = False
        if not (self._alone or self._unknown):
            failed = [pause for pause in tuple(self._pauses.values()) if pause(PAUSE_HARD)]
            self._forking.released = not failed

    def in_child(self) -> None:
        """Use one thread from now on, unless the team was released."""
        if not getattr(self._forking, "released", False):
            self._alone = True
            for threads in self._teams.values():
                threads.value = 1


forks = Forks()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forks.before, after_in_child=forks.in_child)
