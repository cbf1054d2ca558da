"""The rates of the processes of a communicator, measured while all of them work at the same time,
and the file in which they are kept for later plans.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from pymm.core.files import locked, replace_text
from pymm.core.inputs import number_field, read_json
from pymm.core.paths import config_directory
from pymm.distributed.plan import Rates

#: C <- C + A B on one process: called with C, A and B.
Multiply = Callable[[np.ndarray, np.ndarray, np.ndarray], None]

#: Edge of the square product, depth of the thin one, bytes of a large message, of one that is
#: received during a product, and messages of the latency.
EDGE, THIN, LARGE, DURING, MESSAGES = 768, 32, 1 << 22, 1 << 23, 64

#: Each time is the least of so many: what else runs on a host only adds to it.
REPEATS = 8


def measure(communicator: Any, multiply: Multiply, dtype: str | np.dtype = "f8") -> Rates:
    """The rates of the slowest process, on all of them. Takes about a second. Collective.

    The transfers go round a ring, so that every process sends and receives at once.
    """
    square = _products(multiply, np.dtype(dtype), EDGE)
    thin = _products(multiply, np.dtype(dtype), THIN)
    flops = 2 * EDGE**3 / _timed(communicator, square)
    passes = _timed(communicator, thin) - 2 * EDGE**2 * THIN / flops
    traffic = 2 * EDGE**2 * np.dtype(dtype).itemsize
    memory = traffic / max(passes, traffic / 1e12)
    if communicator.size == 1:
        return Rates(flops=flops, memory=memory)
    latency = _timed(communicator, _Ring(communicator, 8, MESSAGES)) / MESSAGES
    large = _Ring(communicator, LARGE)
    bandwidth = LARGE / max(_timed(communicator, large) - latency, LARGE / 1e12)
    overlap = _overlap(communicator, square)
    return Rates(flops, bandwidth, latency, memory, overlap)


def _products(multiply: Multiply, dtype: np.dtype, depth: int) -> Callable[[], None]:
    random = np.random.default_rng(depth)
    shapes = (EDGE, depth), (depth, EDGE)
    a, b = (random.standard_normal(shape).astype(dtype) for shape in shapes)
    c = np.zeros((EDGE, EDGE), dtype)
    return lambda: multiply(c, a, b)


class _Ring:
    """Messages from each rank to the next, `count` one after the other."""

    def __init__(self, communicator: Any, size: int, count: int = 1) -> None:
        self.communicator, self.count = communicator, count
        self.sent, self.received = np.zeros(size, np.uint8), np.zeros(size, np.uint8)

    def __call__(self) -> None:
        for _ in range(self.count):
            for request in self.begin():
                request.Wait()

    def begin(self) -> list[Any]:
        """One message under way."""
        comm = self.communicator
        receive = comm.Irecv(self.received, source=(comm.rank - 1) % comm.size)
        return [receive, comm.Isend(self.sent, dest=(comm.rank + 1) % comm.size)]


def _overlap(communicator: Any, product: Callable[[], None]) -> float:
    """The part of the shorter of a transfer and a product that takes no time beside the other."""
    ring = _Ring(communicator, DURING)

    def both() -> None:
        requests = ring.begin()
        product()
        for request in requests:
            request.Wait()

    transfer, alone, together = (_timed(communicator, work) for work in (ring, product, both))
    return min(1.0, max(0.0, (transfer + alone - together) / min(transfer, alone)))


def _timed(communicator: Any, work: Callable[[], None]) -> float:
    """Seconds of the slowest process, the least of `REPEATS` after one that does not count."""
    from pymm.distributed.communicator import MPI  # starts MPI: plans are read without

    times = []
    for _ in range(REPEATS + 1):
        communicator.Barrier()
        begun = MPI.Wtime()
        work()
        times.append(MPI.Wtime() - begun)
    slowest = np.empty(REPEATS + 1)
    communicator.Allreduce(np.array(times), slowest, MPI.MAX)
    return float(slowest[1:].min())


# The file


def path_of_rates() -> Path:
    """Where the rates of this user's jobs are kept."""
    return config_directory() / "distributed.json"


def key_of(processes: int, product: str, dtype: str) -> str:
    """What rates belong to: they differ with the number of processes that share a host."""
    return f"{processes} {product} {dtype}"


def keep(path: Path, key: str, rates: Rates) -> None:
    """Put the rates of one kind of job into the file, beside those of others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(path.with_name(f"{path.name}.lock")):
        known = _all(path)
        known[key] = rates
        content = {name: asdict(value) for name, value in sorted(known.items())}
        replace_text(path, json.dumps(content, indent=1) + "\n")


def kept(path: Path, key: str) -> Rates | None:
    """The rates of one kind of job, None if they were not measured. `BadInput` for a file that is
    not as `keep` writes it.
    """
    return _all(path).get(key)


def _all(path: Path) -> dict[str, Rates]:
    try:
        file = read_json(path)
    except FileNotFoundError:
        return {}
    names = tuple(asdict(Rates()))
    found = {}
    if not isinstance(file.data, dict):
        raise file.error("no object of rates; delete the file")
    for key, given in file.data.items():
        if not isinstance(given, dict) or set(given) != set(names):
            raise file.error(f"{key!r} has not the fields {', '.join(names)}; delete it", key)
        try:
            found[key] = Rates(**{name: number_field(given[name], name, 0.0) for name in names})
        except ValueError as error:
            raise file.error(f"{error}; delete it", key) from None
    return found


def describe(rates: Rates) -> str:
    """The rates in lines for a reader."""
    lines = (
        ("local product", f"{rates.flops / 1e9:.4g} GFLOP/s"),
        ("C read and written", f"{rates.memory / 1e9:.4g} GB/s"),
        ("received", f"{rates.bandwidth / 1e9:.4g} GB/s"),
        ("latency", f"{rates.latency * 1e6:.3g} us"),
        ("overlap", f"{rates.overlap:.2f} of the shorter of transfer and product"),
    )
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)
