"""What multiplies a panel of A with a panel of B inside a process: SciPy's BLAS, or pymm's tuned
kernels on the CPU or on a GPU.

A local product is `add` for each pair of panels, C <- alpha A B + beta C with beta = 1 after the
first, and then `finish`, after which C is in its NumPy array. `add` calls `between` now and then,
so that messages on their way get on: MPI libraries move most of them during calls.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from threadpoolctl import ThreadpoolController

from pymm.api import Plan, plan
from pymm.backends import open_device
from pymm.backends.base import Backend
from pymm.core.errors import NoDevice
from pymm.distributed.communicator import INSTALL, MPI, everywhere, host, raise_together
from pymm.runtime.arrays import adopt
from pymm.runtime.transfer import TransferMode

try:
    from scipy.linalg.blas import get_blas_funcs
except ModuleNotFoundError as missing:
    raise ImportError(f"products of distributed matrices need SciPy: {INSTALL}") from missing

NAMES = ("auto", "blas", "cpu", "gpu")

#: Rows of C that are computed at once on a CPU: messages get on between them.
ROWS = 1024


def scale(c: np.ndarray, beta: float) -> None:
    """C <- beta C, which does not read C for beta = 0."""
    if beta == 0:
        c.fill(0)
    elif beta != 1:
        c *= c.dtype.type(beta)


class BlasProduct:
    """By SciPy's BLAS, which adds to C in place, some rows at a time. NumPy's `matmul` cannot add
    to its result: with k = 32 the addition takes longer than the product.
    """

    def __init__(self, c: np.ndarray, alpha: float, beta: float) -> None:
        self.c, self.alpha, self.beta = c, alpha, beta
        self._gemm = get_blas_funcs("gemm", dtype=c.dtype)

    def add(self, a: np.ndarray, b: np.ndarray, between: Callable[[], None]) -> None:
        """Add the product of two panels."""
        for i in range(0, self.c.shape[0], ROWS):
            c, left = self.c[i : i + ROWS], a[i : i + ROWS]
            if c.size:
                # Fortran's order is that of the transposes: C^T = B^T A^T
                done = self._gemm(self.alpha, b.T, left.T, self.beta, c.T, overwrite_c=True)
                if not np.may_share_memory(done, c):
                    raise ValueError(f"C has strides {c.strides}, and is to be contiguous")
            between()
        self.beta = 1

    def finish(self) -> None:
        """C is there already."""


class CpuProduct:
    """By pymm's tuned kernel on the CPU, some rows at a time."""

    def __init__(self, c: np.ndarray, alpha: float, beta: float, threads: int) -> None:
        self.c, self.alpha, self.beta = c, alpha, beta
        self.device = f"cpu:{threads}"
        self._plans: dict[tuple, Plan] = {}

    def add(self, a: np.ndarray, b: np.ndarray, between: Callable[[], None]) -> None:
        """Add the product of two panels."""
        for i in range(0, self.c.shape[0], ROWS):
            c, left = self.c[i : i + ROWS], a[i : i + ROWS]
            if c.size:
                self._add(c, left, b)
            between()
        self.beta = 1

    def _add(self, c: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
        key = a.shape, a.strides, b.strides, self.beta
        given = {"c": c} if self.beta != 0 else {}
        found = self._plans.get(key)
        if found is None:
            options = {"alpha": self.alpha, "device": self.device}
            if self.beta != 0:
                options["beta"] = self.beta
            found = self._plans[key] = plan(a, b, out=c, **given, **options)
            found()
        else:
            found(a, b, out=c, **given)

    def finish(self) -> None:
        """C is there already."""


class GpuProduct:
    """By pymm's tuned kernel on a GPU, which holds C meanwhile. Panels are copied to it; while it
    multiplies them, this thread goes on to the next messages.
    """

    def __init__(self, c: np.ndarray, alpha: float, beta: float, backend: Backend) -> None:
        self.c, self.alpha, self.beta, self.backend = c, alpha, beta, backend
        self._plans: dict[tuple, tuple] = {}
        self._result = None
        if c.size:
            self._result = backend.empty(c.shape, c.dtype)
            if beta != 0:
                self._copy_in(c, self._result)

    def add(self, a: np.ndarray, b: np.ndarray, between: Callable[[], None]) -> None:
        """Add the product of two panels."""
        between()
        if self._result is None:
            return
        key = a.shape[1], self.beta
        if key not in self._plans:
            self._plans[key] = self._planned(a, b)
        left, right, product = self._plans[key]
        self._copy_in(a, left)
        self._copy_in(b, right)
        product()
        self.beta = 1
        between()

    def _planned(self, a: np.ndarray, b: np.ndarray) -> tuple:
        left = self.backend.empty(a.shape, a.dtype)
        right = self.backend.empty(b.shape, b.dtype)
        options = {"alpha": self.alpha, "device": self.backend.device.index}
        if self.beta != 0:
            options |= {"beta": self.beta, "c": self._result}
        return left, right, plan(left, right, out=self._result, **options)

    def _copy_in(self, array: np.ndarray, target) -> None:
        pitch = array.shape[1] * array.itemsize
        self.backend.copy_in(array, adopt(target, "panel").address, pitch, _transfer(array))

    def finish(self) -> None:
        """Copy C back."""
        if self._result is not None:
            pitch = self.c.shape[1] * self.c.itemsize
            address = adopt(self._result, "C").address
            self.backend.copy_out(address, pitch, self.c, _transfer(self.c))


def _transfer(array: np.ndarray) -> str:
    """How an array of this size travels to a GPU and back."""
    return TransferMode().for_size(array.nbytes).transfer


class LocalProducts:
    """What computes local products in each process of a communicator, chosen once for all.

    name: "blas", "cpu", "gpu", or "auto": the GPUs if every process finds a real one, else
        the BLAS.
    threads: of a process, for "blas" and "cpu". Left out, the cores that the processes of a host
        may use, divided by their number, and of the BLAS not more than it is set to.

    The processes of a host take its GPUs in turn. Errors are those of the communicator: every rank
    raises `ValueError` for another name and `NoDevice` if one of them finds no device.
    """

    def __init__(self, communicator: MPI.Comm, name: str, threads: int | None = None) -> None:
        with everywhere(communicator):
            if name not in NAMES:
                raise ValueError(f"product {name!r} is none of {', '.join(NAMES)}")
            if threads is not None and threads < 1:
                raise ValueError(f"threads is 1 or more; got {threads}")
        place = host(communicator)
        self.threads = threads or place.cores
        self.backend = lacking = None
        if name in ("auto", "gpu"):
            self.backend, lacking = _gpu(place.rank)
        if name == "auto":
            if self.backend is not None and not self.backend.device.times_are_real:
                lacking = NoDevice("a simulated GPU is taken only by its name")
            without = communicator.allreduce(int(lacking is not None), MPI.SUM)
            name = "blas" if without else "gpu"
        elif name == "gpu":
            raise_together(communicator, lacking)
        elif name == "cpu":
            try:
                open_device(f"cpu:{self.threads}")
            except NoDevice as error:
                lacking = error
            raise_together(communicator, lacking)
        self.name = name

    def start(self, c: np.ndarray, alpha: float, beta: float):
        """The local product C <- alpha A B + beta C of one process."""
        if self.name == "gpu":
            return GpuProduct(c, alpha, beta, self.backend)
        if self.name == "cpu":
            return CpuProduct(c, alpha, beta, self.threads)
        return BlasProduct(c, alpha, beta)

    @contextlib.contextmanager
    def limits(self):
        """A `with` in which the BLAS has no more threads than are asked for."""
        pools = _pools()
        set_to = [pool["num_threads"] for pool in pools.info() if pool["user_api"] == "blas"]
        if self.name != "blas" or max(set_to, default=1) <= self.threads:
            yield
        else:
            with pools.limit(limits=self.threads, user_api="blas"):
                yield


def local_products(communicator: MPI.Comm, name: str, threads: int | None = None) -> LocalProducts:
    """`LocalProducts` of a communicator, made at the first call. Collective."""
    made = communicator.Get_attr(_made)
    if made is None:
        communicator.Set_attr(_made, made := {})
    if (name, threads) not in made:
        made[name, threads] = LocalProducts(communicator, name, threads)
    return made[name, threads]


_made = MPI.Comm.Create_keyval()


@lru_cache(maxsize=1)
def _pools() -> ThreadpoolController:
    return ThreadpoolController()


def _gpu(place: int) -> tuple[Backend | None, NoDevice | None]:
    """The GPU of the process at `place` on its host, or why there is none."""
    found = []
    try:
        while len(found) <= place:
            found.append(open_device(len(found)))
    except NoDevice as error:
        if not found:
            return None, error
    return found[place % len(found)], None
