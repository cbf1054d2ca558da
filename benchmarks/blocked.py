"""Products on several GPUs and larger than one: what `pymm.blocked` reaches, and what limits it.

    python benchmarks/blocked.py --csv blocked.csv
    python benchmarks/blocked.py --parts links,single,scaling --sizes 16384,10001
    python benchmarks/blocked.py --parts outofcore --outofcore 60000 --device-memory 8GB

Parts: `links`, copies between host and GPUs and between GPUs; `single`, one product on one GPU;
`scaling`, the same product on all GPUs, its operands distributed in P x Q blocks, beside NCCL's
all-gather with cuBLAS (PyTorch, where it is there); `outofcore`, one GPU with operands on the host
and little of its memory. A rate is the median of several runs of products that are queued behind
each other, as in a program that multiplies again and again; "waited" is one product that is waited
for. Every result is compared with float64 in 64 rows and columns drawn at random. A part that has
taken `--seconds` begins nothing more, and says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import pymm  # noqa: E402
from pymm.backends.base import Backend  # noqa: E402
from pymm.bench.runner import origin  # noqa: E402
from pymm.blocked.call import planned  # noqa: E402
from pymm.blocked.devices import open_devices  # noqa: E402
from pymm.core.dtypes import DTYPES  # noqa: E402
from pymm.core.files import commit  # noqa: E402
from pymm.measure.results import BLOCKED, one_line  # noqa: E402
from pymm.runtime.arguments import MatmulOptions  # noqa: E402
from pymm.selection.records import Environment  # noqa: E402

PARTS = ("links", "single", "scaling", "outofcore")

#: Relative errors up to which a result is right, of sum |a| |b|.
LIMITS = {"f32": 2e-6, "f64": 1e-14, "bf16": 2.0**-8, "f16": 2.0**-10}

#: Elements of which all matrices are made, repeated: no power of two, so that no two blocks of a
#: matrix are equal.
DRAWN = 2**24 - 3

#: Products that are queued behind each other take about so many seconds together.
QUEUED = 0.25


@dataclass
class Bench:
    """The run: what all rows say, and where they go."""

    given: argparse.Namespace
    backends: list[Backend]
    started: float = field(default_factory=time.monotonic)
    failed: bool = False
    rates: dict[tuple[str, int], float] = field(default_factory=dict)

    def begin(self) -> None:
        """A part begins."""
        self.started = time.monotonic()

    def over(self, part: str, name: str) -> bool:
        """Whether the part has had its time; a row says what was left out."""
        if time.monotonic() - self.started < self.given.seconds:
            return False
        self.row(part=part, name=name, outcome="left out", detail="the part has had its time")
        return True

    def row(self, **cells: Any) -> None:
        """Print a figure, and append it to the file."""
        environment = Environment.of(self.backends[0].device, self.backends[0].toolchain)
        row = {
            **origin(self.backends[0].device, environment, self.given.commit),
            "outcome": "ok",
            **cells,
        }
        self.failed |= row["outcome"] == "wrong"
        if self.given.csv:
            BLOCKED.append(self.given.csv, [row])
        shown = {key: _shown(value) for key, value in cells.items() if value not in ("", None)}
        print(" ".join(f"{key}={value}" for key, value in shown.items()), flush=True)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main(arguments: list[str]) -> int:
    """The command. Returns the exit status: 1 if a result was wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="(default: all)")
    parser.add_argument("--csv", type=Path, help="file that the rows are appended to")
    parser.add_argument("--devices", default="cuda:all", help="GPUs, as cuda:0,cuda:1")
    parser.add_argument(
        "--sizes", default="16384,10001", help="n of n x n x n (default: %(default)s)"
    )
    parser.add_argument("--dtypes", default="f32,f64,bf16", help="(default: %(default)s)")
    parser.add_argument("--outofcore", type=int, default=60000, help="n (default: %(default)s)")
    parser.add_argument("--device-memory", default="8GB", help="(default: %(default)s)")
    parser.add_argument("--copy", type=int, default=2**30, help="bytes of a copy")
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=80, help="of a part (default: 80)")
    parser.add_argument("--commit", default=commit(), help="what rows say of pymm's commit")
    given = parser.parse_args(arguments)
    parts = given.parts.split(",")
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"--parts {','.join(unknown)}: there are {', '.join(PARTS)}")
    named = given.devices
    backends = open_devices(named if named == "cuda:all" else named.split(","))
    bench = Bench(given, backends)
    for part in parts:
        bench.begin()
        RUN[part](bench)
    return int(bench.failed)


# Copies


def links(bench: Bench) -> None:
    """Host to GPUs and back, one and all; GPU to GPU one way, both ways, in a ring, narrow rows."""
    nbytes, backends = bench.given.copy, bench.backends
    queues = [backend.queue() for backend in backends]
    places = [backend.allocate(nbytes) for backend in backends]
    host = np.ones((len(backends), nbytes // 4096, 4096), np.uint8)
    for name, locked in (("pinned", True), ("pageable", False)):
        flat = host.reshape(-1)
        with backends[0].locked(flat) if locked else contextlib.nullcontext():
            for count in sorted({1, len(backends)}):
                for way in ("in", "out"):
                    _host_copy(bench, name, way, count, queues, places, host)
    pairs = list(itertools.permutations(range(len(backends)), 2))
    for one, other in pairs:
        backends[one].reach(backends[other])
    twice = [backend.allocate(nbytes) for backend in backends]

    def fetch(queue: Any, target: int, source: int, width: int = nbytes) -> None:
        shape = nbytes // width, width
        queue.copy(places[source].address, width, twice[target].address, width, shape)

    for target, source in pairs:
        _copy(
            bench, f"{source} to {target}", 1, [lambda t=target, s=source: fetch(queues[t], t, s)]
        )
    if pairs:
        both = [lambda: fetch(queues[0], 0, 1), lambda: fetch(queues[1], 1, 0)]
        _copy(bench, "0 and 1, both ways", 2, both)
        count = len(backends)
        ring = [lambda t=t: fetch(queues[t], t, (t + 1) % count) for t in range(count)]
        _copy(bench, "ring", count, ring)
        for width in (1024, 2048, 4096, 8192, 16384, 32768):
            _narrow(bench, width, queues, places, twice)
    for queue in queues:
        queue.synchronize()


def _host_copy(bench, name, way, count, queues, places, host) -> None:
    """Copies of `count` GPUs side by side, a thread each."""
    if bench.over("links", f"{name} {way}"):
        return

    def one(rank: int) -> None:
        if way == "in":
            queues[rank].upload(host[rank], host.dtype, places[rank].address, 4096)
        else:
            queues[rank].download(places[rank].address, 4096, host.dtype, host[rank])
        queues[rank].synchronize()

    with ThreadPoolExecutor(count) as pool:
        seconds = _median(lambda: list(pool.map(one, range(count))), bench.given.rounds)
    nbytes = host[0].nbytes
    value = nbytes / seconds[0] / 1e9
    words = "host to GPU" if way == "in" else "GPU to host"
    bench.row(
        part="links", name=f"{words}, {name}", devices=count, seconds=seconds[0], spread=seconds[1],
        rounds=bench.given.rounds, value=value, unit="GB/s a GPU", bytes_in=nbytes * count,
    )  # fmt: skip


def _narrow(bench, width, queues, places, twice) -> None:
    """Rows of `width` bytes out of rows twice as long."""
    rows = bench.given.copy // (2 * width)

    def call() -> None:
        source, target = places[1].address, twice[0].address
        queues[0].copy(source, 2 * width, target, width, (rows, width))

    _copy(bench, f"1 to 0, rows of {width} bytes", 1, [call], rows * width)


def _copy(
    bench: Bench, name: str, count: int, calls: list[Callable[[], None]], nbytes: int = 0
) -> None:
    if bench.over("links", name):
        return
    queues = bench.backends

    def once() -> None:
        for call in calls:
            call()
        for backend in queues:
            backend.synchronize()

    seconds, spread = _median(once, bench.given.rounds)
    each = nbytes or bench.given.copy
    bench.row(
        part="links", name=f"GPU to GPU, {name}", devices=count, seconds=seconds, spread=spread,
        rounds=bench.given.rounds, value=each / seconds / 1e9, unit="GB/s a link",
        bytes_in=each * count,
    )  # fmt: skip


def _median(call: Callable[[], Any], rounds: int) -> tuple[float, float]:
    """Median and relative spread of the seconds of a call, after one more."""
    call()
    samples = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        samples.append(time.perf_counter() - start)
    return _summary(samples)


def _summary(samples: list[float]) -> tuple[float, float]:
    middle = statistics.median(samples)
    if len(samples) < 2:
        return middle, 0.0
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return middle, (high - low) / middle


# Products


def single(bench: Bench) -> None:
    """One GPU, the operands in rows that start at multiples of 128 bytes."""
    for n, dtype in _cases(bench):
        if not bench.over("single", f"{dtype} {n}"):
            _product(bench, "single", bench.backends[:1], dtype, n)


def scaling(bench: Bench) -> None:
    """All GPUs, and what NCCL and cuBLAS take."""
    for n, dtype in _cases(bench):
        if bench.over("scaling", f"{dtype} {n}"):
            continue
        if (dtype, n) not in bench.rates:
            _product(bench, "single", bench.backends[:1], dtype, n)
        _product(bench, "scaling", bench.backends, dtype, n)
    _nccl(bench)


def _cases(bench: Bench) -> Iterator[tuple[int, str]]:
    for n in map(int, bench.given.sizes.split(",")):
        for dtype in bench.given.dtypes.split(","):
            yield n, dtype


def _product(bench: Bench, part: str, backends: list[Backend], dtype: str, n: int) -> None:
    """The product of two distributed n x n matrices, checked, queued and waited for."""
    kind = DTYPES[dtype].element
    devices = [backend.device.index for backend in backends]
    a, b = operands(n, dtype)
    x, y = (pymm.scatter(matrix, devices) for matrix in (a, b))
    z = pymm.ShardedMatrix.empty((n, n), kind, devices)

    def multiply() -> None:
        pymm.matmul(x, y, out=z)

    def waited() -> None:
        multiply()
        z.team.synchronize()

    waited()
    error = error_of(a, b, z.gather(), dtype)
    waiting = _median(waited, bench.given.rounds)
    queued = _queued(multiply, z.team.synchronize, waiting[0], bench.given.rounds)
    flops, count = 2 * n**3, len(backends)
    moved = pymm.explain(x, y, out=z)
    for name, (seconds, spread) in (("queued", queued), ("waited", waiting)):
        rate = flops / seconds
        key = f"{dtype} {name}", n
        if count == 1:
            bench.rates[key] = rate
        alone = bench.rates.get(key)
        bench.row(
            part=part, name=f"pymm, {name}", devices=count, dtype=dtype, m=n, n=n, k=n,
            outcome="ok" if error <= 1 else "wrong", seconds=seconds, spread=spread,
            rounds=bench.given.rounds, gflops=rate / 1e9,
            ratio=rate / (count * alone) if alone else "", bytes_in=max(moved.bytes_in),
            error=error, detail=one_line(moved.choice.config.slug if moved.choice else ""),
        )  # fmt: skip
    if count == 1:
        bench.rates[dtype, n] = flops / queued[0]


def _queued(
    multiply: Callable[[], None], synchronize: Callable[[], None], one: float, rounds: int
) -> tuple[float, float]:
    """Seconds of a product of many that are queued behind each other."""
    count = max(1, min(200, round(QUEUED / one)))

    def many() -> None:
        for _ in range(count):
            multiply()
        synchronize()

    seconds, spread = _median(many, rounds)
    return seconds / count, spread


def drawn(n: int, seed: int) -> np.ndarray:
    """An n x n matrix of float32, normally distributed, filled by several threads."""
    base = np.random.default_rng(seed).standard_normal(min(DRAWN, n * n), dtype=np.float32)
    matrix = np.empty((n, n), np.float32)
    flat = matrix.reshape(-1)

    def fill(start: int) -> None:
        part = flat[start : start + base.size]
        part[:] = base[: part.size]

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(fill, range(0, flat.size, max(base.size, 1))))
    return matrix


@functools.lru_cache(maxsize=1)
def operands(n: int, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """A and B of a type; those of float64 have more bits than float32."""
    kind = DTYPES[dtype].element
    made = [drawn(n, seed).astype(kind, copy=False) for seed in (1, 2)]
    if dtype == "f64":
        made = [np.divide(matrix, 3.0, out=matrix) for matrix in made]
    return made[0], made[1]


def error_of(a: np.ndarray, b: np.ndarray, c: np.ndarray, dtype: str) -> float:
    """Largest error in 64 rows and 64 columns drawn at random / its limit; infinite for NaN."""
    generator = np.random.default_rng(3)
    rows = generator.integers(0, a.shape[0], 64)
    columns = generator.integers(0, b.shape[1], 64)
    left, right = a[rows].astype(np.float64), b[:, columns].astype(np.float64)
    wanted, scale = left @ right, np.abs(left) @ np.abs(right)
    found = c[np.ix_(rows, columns)].astype(np.float64)
    error = float(np.max(np.abs(found - wanted) / np.maximum(scale, 1e-300)))
    return error / LIMITS[dtype] if np.isfinite(error) else float("inf")


def _nccl(bench: Bench) -> None:
    """NCCL and cuBLAS in processes of their own, one for each GPU."""
    given, name = bench.given, "NCCL all-gather + cuBLAS"
    left = given.seconds - (time.monotonic() - bench.started)
    if len(bench.backends) < 2 or bench.over("scaling", name):
        return
    command = [sys.executable, str(ROOT / "benchmarks" / "blocked_nccl.py")]
    command += ["--sizes", given.sizes, "--dtypes", given.dtypes, "--rounds", str(given.rounds)]
    command += ["--devices", ",".join(str(one.device.index) for one in bench.backends)]
    output, why = _output_of(command, max(left, 30))
    for line in output.splitlines():
        if not line.startswith("{"):
            continue
        row = json.loads(line)
        alone = bench.rates.get((row["dtype"], row["n"]))
        rate = 2 * row["n"] ** 3 / row["seconds"]
        ratio = rate / (row["devices"] * alone) if alone else ""
        extents = {"m": row["n"], "k": row["n"], "rounds": given.rounds}
        bench.row(part="scaling", gflops=rate / 1e9, ratio=ratio, **extents, **row)
    if why:
        bench.row(part="scaling", name=name, outcome="failed", detail=one_line(why[-400:]))


def _output_of(command: list[str], seconds: float) -> tuple[str, str]:
    """What a command prints, and why it failed: "" if it did not. All of its processes end."""
    environment = {**os.environ, "NCCL_NVLS_ENABLE": "0"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, env=environment, start_new_session=True, **pipes)
    try:
        output, errors = process.communicate(timeout=seconds)
        return output, errors if process.returncode else ""
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return output, f"stopped after {seconds:.0f} s"


def outofcore(bench: Bench) -> None:
    """n x n x n of float32 on one GPU with little of its memory, all matrices on the host."""
    n, memory = bench.given.outofcore, bench.given.device_memory
    inside = min(n, 16384)
    if ("f32", inside) not in bench.rates:
        _product(bench, "single", bench.backends[:1], "f32", inside)
    a, b = (drawn(n, seed) for seed in (1, 2))
    out = drawn(n, 4)  # its pages are there
    options = MatmulOptions(device=bench.backends[0].device.index, device_memory=memory)
    for attempt in ("first", "again"):
        if bench.over("outofcore", attempt):
            return
        out[:] = 0
        start = time.perf_counter()
        product = planned(options.check(a, b, out), options)
        _, moved = product.run()
        seconds = time.perf_counter() - start
        error = error_of(a, b, out, "f32")
        share, rate = product.shares[0], 2 * n**3 / seconds
        traffic = moved.bytes_in + moved.bytes_out
        tiles = share.tiling.counts
        bench.row(
            part="outofcore", name=f"pymm, {memory}, {attempt}", devices=1, dtype="f32", m=n, n=n,
            k=n, outcome="ok" if error <= 1 else "wrong", seconds=seconds, rounds=1,
            gflops=rate / 1e9, value=traffic / share.bound, unit="traffic / bound",
            ratio=rate / bench.rates["f32", inside], bytes_in=moved.bytes_in,
            bytes_out=moved.bytes_out, bound=round(share.bound), error=error,
            detail=one_line(
                f"{tiles[0]} x {tiles[1]} tiles of {share.tiling.rows} x {share.tiling.columns}, "
                f"{tiles[2]} slices of {share.tiling.depth}, kept {share.tiling.keep}; "
                f"{share.device_bytes} bytes; link {share.rates.up / 1e9:.1f} and "
                f"{share.rates.down / 1e9:.1f} GB/s; expected {share.seconds:.3f} s; "
                f"{share.choice.config.slug}"
            ),
        )  # fmt: skip


RUN = {"links": links, "single": single, "scaling": scaling, "outofcore": outofcore}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
