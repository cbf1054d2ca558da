"""Random sequences of calls, each checked against NumPy: products of seven kernels in nine
configurations, on several streams and threads, through `matmul` and plans and captured graphs,
while arrays are freed and made again, caches are cleared and scratch memory grows.

Elements are small integers, so that every result is exact in every order of additions; what is
expected is kept on the host beside every array. As a script: `python
tests/support/sequences.py --count 20000 --seed 7`, on a GPU or, with PYMM_SIMULATOR=1, in the
simulator. It ends with status 1 and the seed of the first sequence whose result is wrong; `--count
1 --seed` with it runs that one again.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parent)]

from pymm.backends import open_device  # noqa: E402

open_device("cuda")  # the simulator, where it is wanted, comes before PyCUDA
import pycuda.driver as drv  # noqa: E402
from captures import CapturedGraph, captured  # noqa: E402
from pycuda.gpuarray import GPUArray  # noqa: E402

import pymm  # noqa: E402
from pymm.backends.cuda.driver import Driver  # noqa: E402
from pymm.core.device import Device  # noqa: E402
from pymm.core.dtypes import product_type  # noqa: E402
from pymm.core.problem import Problem  # noqa: E402
from pymm.kernels import Config, Kernel, find_kernel  # noqa: E402
from pymm.runtime.launch_cache import cache  # noqa: E402

BF16, F16, F32, F64 = (np.dtype(t) for t in (ml_dtypes.bfloat16, "f2", "f4", "f8"))


@dataclass(frozen=True)
class Case:
    """A kernel's configuration and the products that it computes here: few, so that few sources
    are compiled. All but the first have partial tiles and rows that TMA cannot read.
    """

    kernel: str
    changes: dict[str, int]
    dtype: np.dtype
    shapes: tuple[tuple[int, int, int], ...]
    trans: tuple[bool, bool] = (False, False)
    precision: str = "ieee"

    @property
    def config(self) -> Config:
        """The configuration: the kernel's default, changed."""
        kernel = find_kernel(self.kernel)
        return kernel.config(dict(kernel.default) | self.changes)

    def shapes_on(self, device: Device) -> list[tuple[int, int, int]]:
        """The shapes that the configuration's rules allow on a device."""
        config, kind = self.config, product_type(self.dtype, self.precision, self.dtype)
        problems = {shape: Problem(*shape, kind, *self.trans) for shape in self.shapes}
        return [s for s, p in problems.items() if not config.kernel.violations(config, p, device)]


SMALL = ((21, 33, 9), (33, 17, 25), (65, 63, 31))
#: Tiles of 64 x 64 take the simulator a while: kernels that have them do without the last.
DEEP = ((21, 33, 65), (33, 17, 97), (65, 63, 71), (97, 65, 130))
DEEPER = ((21, 33, 129), (33, 17, 161), (65, 63, 135))
_SMALL_WGMMA = dict(MB=64, NB=64, KB=64, TA=64, TB=64, STAGES=3, CLUSTER=1)
_PIPELINED = dict(MB=32, NB=32, KB=8, TA=4, TB=4, LANES=4, STAGES=2, BLOCKS=1)
_SLICED = dict(MB=32, NB=16, KB=8, TA=4, TB=4, SLICES=2, STAGES=2, BLOCKS=1)
CASES = (
    Case("transposed_a", dict(MB=16, NB=32, KB=8, TA=2, TB=4), F32, SMALL),
    Case("pipelined", _PIPELINED | dict(SPLIT=4), F32, DEEP),
    Case("pipelined", _PIPELINED | dict(SPLIT=2), F64, DEEP, (True, False)),
    Case("sliced", _SLICED | dict(SPLIT=3), F32, DEEP, (False, True)),
    Case("wgmma", _SMALL_WGMMA | dict(SPLIT=1), BF16, DEEP[:3]),
    Case("wgmma", _SMALL_WGMMA | dict(SPLIT=2), F16, DEEPER, (False, True)),
    Case("tma_f64", dict(MB=64, NB=64, KB=32, TA=32, TB=32, TK=16, KI=8, SPLIT=2), F64, DEEP[:3]),
    Case("tma_f32", dict(MB=64, NB=64, KB=32, TA=8, TB=8, SLICES=2, STAGES=2, SPLIT=1), F32, DEEP),
    Case(
        "wgmma_tf32",
        dict(MB=64, NB=64, KB=32, TA=64, TB=64, CLUSTER=1, SPLIT=2),
        F32,
        DEEP[:3],
        (True, True),
        "tf32",
    ),
)


@dataclass(eq=False)
class Array:
    """A matrix on the device, what it should hold, and the stream that worked with it last."""

    gpu: GPUArray
    host: np.ndarray
    stream: Any = None

    @property
    def key(self) -> tuple:
        return self.host.shape, self.host.dtype


@dataclass
class Bound:
    """A plan or a captured graph: what it launches, and what that does to the host's arrays."""

    launch: Callable[[Any], None]
    mirror: Callable[[], None]
    arrays: list[Array]
    own: Any = None
    end: Callable[[], None] = field(default=lambda: None)


@contextmanager
def every_kernel() -> Iterator[None]:
    """The simulator runs what is made for Hopper, too, where a test asks for it by name."""
    original = Kernel.runs_on

    def runs_on(self: Kernel, device: Any) -> bool:
        return original(self, device) or (device.kind == "simulator" and self.backend == "cuda")

    Kernel.runs_on = runs_on
    try:
        yield
    finally:
        Kernel.runs_on = original


class Sequence:
    """One sequence. `run` raises `AssertionError` that names what was wrong."""

    def __init__(self, seed: int, backend: Any, streams: list[Any], pool: ThreadPoolExecutor):
        self.random = np.random.default_rng(seed)
        self.seed, self.backend, self.streams, self.pool = seed, backend, streams, pool
        self.driver = Driver()
        self.arrays: list[Array] = []
        self.bound: list[Bound] = []
        self.last: Callable[[], None] | None = None
        self.log: list[str] = []

    def run(self, length: int) -> None:
        """So many random steps, then all results."""
        steps = [
            self.multiply,
            self.again,
            self.together,
            self.plan,
            self.call_bound,
            self.capture,
            self.free,
            self.clear,
            self.look,
            self.symmetric,
            self.without_out,
        ]
        weights = np.array([8, 6, 2, 2, 6, 2, 4, 1, 2, 1, 2], float)
        try:
            for _ in range(length):
                self.random.choice(steps, p=weights / weights.sum())()
            self.look()
        finally:
            for one in self.bound:
                one.end()
            self.bound.clear()
            self.arrays.clear()
            self.last = None

    # Arrays

    def integers(self, shape: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        """Elements whose products and sums are exact in every type."""
        return self.random.integers(-1, 2, shape).astype(dtype)

    def new(self, shape: tuple[int, int], dtype: np.dtype) -> Array:
        """An array of its own memory; a third of them with rows apart."""
        rows, columns = shape
        wide = columns + int(self.random.choice([0, 0, 3]))
        host = self.integers(shape, dtype)
        whole = GPUArray((rows, wide), dtype)
        whole.set(np.full((rows, wide), 77, dtype))
        if wide > columns:
            strides = (wide * dtype.itemsize, dtype.itemsize)
            gpu = GPUArray(shape, dtype, base=whole, gpudata=whole.gpudata, strides=strides)
        else:
            gpu = whole
        array = Array(gpu, host)
        self.write(array, host)
        self.arrays.append(array)
        return array

    def write(self, array: Array, host: np.ndarray) -> None:
        """New elements, when all work is done."""
        self.backend.synchronize()
        array.host = host
        copy = drv.Memcpy2D()
        copy.set_src_host(np.ascontiguousarray(host))
        copy.set_dst_device(int(array.gpu.gpudata))
        size = host.dtype.itemsize
        copy.width_in_bytes, copy.height = host.shape[1] * size, host.shape[0]
        copy.src_pitch, copy.dst_pitch = host.shape[1] * size, array.gpu.strides[0]
        copy(aligned=False)

    def read(self, array: Array) -> np.ndarray:
        """What the device has."""
        got = np.empty(array.host.shape, array.host.dtype)
        copy = drv.Memcpy2D()
        copy.set_src_device(int(array.gpu.gpudata))
        copy.set_dst_host(got)
        copy.width_in_bytes, copy.height = got.shape[1] * got.itemsize, got.shape[0]
        copy.src_pitch, copy.dst_pitch = array.gpu.strides[0], got.shape[1] * got.itemsize
        copy(aligned=False)
        return got

    def pick(self, shape: tuple[int, int], dtype: np.dtype, apart: list[Array] = ()) -> Array:
        """An array of this shape: often one that is there."""
        known = [x for x in self.arrays if x.key == (shape, dtype) and x not in apart]
        if known and self.random.random() < 0.8:
            return known[self.random.integers(len(known))]
        return self.new(shape, dtype)

    # Calls

    def stream(self) -> Any:
        return self.streams[self.random.integers(len(self.streams))]

    def order(self, arrays: list[Array], stream: Any) -> None:
        """Have work on `stream` wait for what was done with these arrays."""
        for other in {id(x.stream): x.stream for x in arrays}.values():
            self.backend.order(other, stream)
        for array in arrays:
            array.stream = stream

    def product(self) -> tuple[dict[str, Any], list[Array], Callable[[], None]]:
        """Arguments of a random product, its arrays, and what it does to `out` on the host."""
        case = CASES[self.random.integers(len(CASES))]
        shapes = case.shapes_on(self.backend.device)
        m, n, k = shapes[self.random.integers(len(shapes))]
        (ta, tb), dtype = case.trans, case.dtype
        a = self.pick((k, m) if ta else (m, k), dtype)
        b = self.pick((n, k) if tb else (k, n), dtype)
        out = self.pick((m, n), dtype, [a, b])
        alpha = int(self.random.choice([1, 1, -1, 2, 0]))
        beta = int(self.random.choice([0, 0, 0, 1]))
        options = dict(
            a=a.gpu,
            b=b.gpu,
            out=out.gpu,
            alpha=alpha,
            trans_a=ta,
            trans_b=tb,
            precision=case.precision,
            config=case.config,
            device=self.backend,
        )
        reads = self.random.random() < 0.5
        if beta or reads:
            options |= dict(c=out.gpu, beta=beta)
        arrays, bias = [a, b, out], None
        if self.random.random() < 0.3:
            bias = self.pick((1, n), dtype)
            row = GPUArray((n,), dtype, base=bias.gpu, gpudata=bias.gpu.gpudata)
            options |= dict(bias=row, activation="relu")
            arrays.append(bias)
        self.log.append(f"{case.kernel} {m}x{n}x{k} {dtype} alpha={alpha} beta={beta} c={reads}")
        self.log.append(f"  bias={bias is not None}")

        def mirror() -> None:
            left = a.host.astype(float).T if ta else a.host.astype(float)
            right = b.host.astype(float).T if tb else b.host.astype(float)
            result = alpha * (left @ right) + beta * out.host.astype(float)
            if bias is not None:
                result = np.maximum(result + bias.host, 0)
            out.host = result.astype(dtype)

        if np.abs(out.host.astype(float)).max(initial=0) > 100:  # sums stay exact
            self.write(out, self.integers(out.host.shape, dtype))
        return options, arrays, mirror

    @staticmethod
    def matmul(options: dict[str, Any], stream: Any) -> Any:
        given = dict(options)
        return pymm.matmul(given.pop("a"), given.pop("b"), stream=stream, **given)

    def multiply(self) -> None:
        """A product, here or in another thread."""
        options, arrays, mirror = self.product()
        stream, elsewhere = self.stream(), self.random.random() < 0.3
        self.log.append(f"  on {stream}{' in a thread' * elsewhere}")

        def call() -> None:
            self.order(arrays, stream)
            if elsewhere:
                self.pool.submit(self.matmul, options, stream).result()
                if stream == 2:  # of that thread
                    self.backend.synchronize()
            else:
                self.matmul(options, stream)
            mirror()

        call()
        self.last = call

    def again(self) -> None:
        """The last product some times more: it becomes a graph of pymm's own."""
        if self.last is not None:
            for _ in range(self.random.integers(1, 5)):
                self.last()

    def together(self) -> None:
        """Two products of other arrays in two threads at once, perhaps on one stream."""
        first, second = self.product(), self.product()
        used = [set(map(id, arrays)) for _, arrays, _ in (first, second)]
        if id(second[1][2]) in used[0] or id(first[1][2]) in used[1]:
            return
        streams = [self.stream(), self.stream()]
        if self.random.random() < 0.5:
            streams[1] = streams[0]
        for (_, arrays, _), stream in zip((first, second), streams, strict=True):
            self.order(arrays, stream)
        tasks = [
            self.pool.submit(self.matmul, x[0], s)
            for x, s in zip((first, second), streams, strict=True)
        ]
        for task in tasks:
            task.result()
        if used[0] & used[1] or 2 in streams:
            self.backend.synchronize()
        first[2]()
        second[2]()

    def without_out(self) -> None:
        """A result that pymm makes."""
        options, arrays, mirror = self.product()
        out = arrays[2]
        options = {k: v for k, v in options.items() if k not in ("out", "c", "beta")}
        stream = self.stream()
        self.order([a for a in arrays if a is not out], stream)
        got = self.matmul(options, stream)
        before, out.host = out.host, np.zeros_like(out.host)
        mirror()
        wanted, out.host = out.host, before
        self.arrays.append(Array(got, wanted, stream))

    def symmetric(self) -> None:
        """A A^T, which ends with a launch that mirrors one half."""
        n, k = ((33, 9), (65, 31))[self.random.integers(2)]
        a, out = self.pick((n, k), F32), self.pick((n, n), F32)
        stream = self.stream()
        self.order([a, out], stream)
        pymm.syrk(a.gpu, out=out.gpu, stream=stream, config=CASES[0].config, device=self.backend)
        out.host = (a.host.astype(float) @ a.host.astype(float).T).astype(F32)

    def plan(self) -> None:
        options, arrays, mirror = self.product()
        stream, given = self.stream(), dict(options)
        plan = pymm.plan(given.pop("a"), given.pop("b"), stream=stream, **given)
        self.bound.append(Bound(lambda _: plan(), mirror, arrays, stream))

    def capture(self) -> None:
        """A graph of one to three products, some of which were never seen before."""
        streams = [s for s in self.streams if isinstance(s, drv.Stream)]
        stream = streams[self.random.integers(len(streams))]
        products = [self.product() for _ in range(self.random.integers(1, 4))]
        self.backend.synchronize()
        with captured(self.driver, stream.handle, int(self.random.integers(0, 3))) as graphs:
            for options, _, _ in products:
                self.matmul(options, stream)
        graph: CapturedGraph = graphs[0]

        def mirror() -> None:
            for _, _, one in products:
                one()

        def launch(where: Any) -> None:
            graph.launch(getattr(where, "handle", where) or 0)

        arrays = list({id(x): x for _, used, _ in products for x in used}.values())
        self.log.append(f"captured {len(products)}")
        self.bound.append(Bound(launch, mirror, arrays, None, graph.destroy))

    def call_bound(self) -> None:
        """A plan or a graph once more; a graph on any stream."""
        if not self.bound:
            return
        one = self.bound[self.random.integers(len(self.bound))]
        for array in one.arrays:
            if np.abs(array.host.astype(float)).max(initial=0) > 100:
                self.write(array, self.integers(array.host.shape, array.host.dtype))
        stream = one.own if one.own is not None else self.stream()
        self.log.append("bound")
        self.order(one.arrays, stream)
        one.launch(stream)
        one.mirror()

    # What happens between calls

    def free(self) -> None:
        """Forget some arrays, and plans and graphs with theirs: memory is given out again."""
        self.last = None
        if self.bound and self.random.random() < 0.5:
            one = self.bound.pop(self.random.integers(len(self.bound)))
            one.end()
        used = {id(x) for one in self.bound for x in one.arrays}
        for array in list(self.arrays):
            if id(array) not in used and self.random.random() < 0.5:
                self.arrays.remove(array)

    def clear(self) -> None:
        """Every cache, one at a time or all."""
        for clear in (
            cache.clear,
            cache.clear_rebinds,
            pymm.selection.choose.reload,
            self.backend.reset,
            gc.collect,
        ):
            if self.random.random() < 0.5:
                clear()

    def look(self) -> None:
        """Every array is what it should be."""
        self.backend.synchronize()
        for number, array in enumerate(self.arrays):
            got = self.read(array)
            if not np.array_equal(got.astype(float), array.host.astype(float)):
                wrong = int((got.astype(float) != array.host.astype(float)).sum())
                steps = "\n".join(self.log[-30:])
                raise AssertionError(
                    f"sequence {self.seed}: {wrong} of {got.size} elements of array {number} "
                    f"{got.shape} {got.dtype} are wrong after\n{steps}"
                )


@contextmanager
def machine() -> Iterator[tuple[Any, list[Any], ThreadPoolExecutor]]:
    """A device with its context current, streams of every kind, and two threads."""
    backend = open_device("cuda")
    context = drv.Device(backend.device.index).retain_primary_context()
    context.push()
    gc.disable()  # PyCUDA's arrays are to be freed in the thread that made them
    try:
        streams = [None, drv.Stream(), drv.Stream(), drv.Stream(1), 2]
        with every_kernel(), ThreadPoolExecutor(2) as pool:
            yield backend, streams, pool
        backend.synchronize()
    finally:
        gc.enable()
        drv.Context.pop()


def run(count: int, seed: int, length: int, seconds: float = np.inf) -> int:
    """So many sequences, or as many as there is time for: how many were run."""
    start = time.monotonic()
    with machine() as (backend, streams, pool):
        for number in range(count):
            Sequence(seed + number, backend, streams, pool).run(length)
            if time.monotonic() - start > seconds:
                return number + 1
    return count


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="sequences (100)")
    parser.add_argument("--seed", type=int, default=1, help="of the first one (1)")
    parser.add_argument("--length", type=int, default=12, help="steps of each (12)")
    parser.add_argument("--seconds", type=float, default=np.inf, help="stop after so many")
    given = parser.parse_args()
    warnings.simplefilter("error")
    start = time.monotonic()
    try:
        done = run(given.count, given.seed, given.length, given.seconds)
    except AssertionError as error:
        print(error)
        return 1
    print(
        f"{done} sequences of {given.length} steps from seed {given.seed}: 0 wrong, "
        f"{time.monotonic() - start:.0f} s"
    )
    return 0 if done == given.count else 1


if __name__ == "__main__":
    sys.exit(main())
