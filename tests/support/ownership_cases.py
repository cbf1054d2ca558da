"""Sequences of calls, each in a process of its own: what once used freed or shared memory. `python
tests/support/ownership_cases.py NAME` ends with status 0 if all results are right.
"""

from __future__ import annotations

import gc
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import sequences
from captures import GLOBAL, RELAXED, captured
from pycuda import driver as drv
from pycuda import gpuarray
from sequences import CASES, every_kernel

import pymm
from pymm.backends.cuda import scratch
from pymm.backends.cuda.driver import Driver
from pymm.runtime.launch_cache import cache

rng = np.random.default_rng(7)
SPLIT, COPIED = CASES[1], CASES[5]  # partial sums and counters; copies, parts and three launches


class Product:
    """A product on arrays of its own."""

    def __init__(self, backend, case, shape, stream=None):
        m, n, k = shape
        (ta, tb), dtype = case.trans, case.dtype
        self.case, self.backend, self.stream = case, backend, stream
        self.a = rng.integers(-2, 3, (k, m) if ta else (m, k)).astype(dtype)
        self.b = rng.integers(-2, 3, (n, k) if tb else (k, n)).astype(dtype)
        left, right = (x.astype(float) for x in (self.a, self.b))
        self.wanted = (left.T if ta else left) @ (right.T if tb else right)
        self.gpu = [gpuarray.to_gpu(x) for x in (self.a, self.b)]
        self.out = gpuarray.to_gpu(np.zeros((m, n), dtype))

    def launch(self, **options):
        ta, tb = self.case.trans
        return pymm.matmul(
            *self.gpu,
            out=self.out,
            trans_a=ta,
            trans_b=tb,
            stream=self.stream,
            config=self.case.config,
            device=self.backend,
            **options,
        )

    def poison(self):
        self.out.set(np.full(self.out.shape, 55, self.out.dtype))

    def check(self, what):
        self.backend.synchronize()
        np.testing.assert_array_equal(self.out.get().astype(float), self.wanted, what)


def streams_made(backend):
    return drv.Stream(), drv.Stream()


def scratch_grows(backend):
    """A larger product on the same stream replaced the scratch memory of a cached launch."""
    first, larger = (Product(backend, SPLIT, s) for s in ((21, 33, 65), (65, 63, 71)))
    other = gpuarray.to_gpu(first.out.get())
    for _ in range(4):
        first.launch(c=other, beta=0)
    for _ in range(2):
        larger.launch()
    gc.collect()
    first.poison()
    first.launch(c=other, beta=0)
    first.check("after a larger product")
    larger.check("larger")


def rebinds_are_cleared(backend):
    """What was bound anew for its addresses lost its scratch memory with what bound it."""
    products = [Product(backend, SPLIT, (21, 33, 65)) for _ in range(2)]
    for product in products:  # the second by what the first left
        product.launch()
    cache.clear_rebinds()
    Product(backend, SPLIT, (65, 63, 71)).launch()
    gc.collect()
    for product in products:
        product.poison()
        product.launch()
        product.check("after rebinds were cleared")


def threads_have_default_streams(backend):
    """CU_STREAM_PER_THREAD is another stream in each thread."""
    products = [Product(backend, COPIED, (65, 63, 135), 2) for _ in range(2)]
    turns = threading.Barrier(2)

    def work(product):
        for _ in range(20):
            turns.wait()
            product.launch()

    threads = [threading.Thread(target=work, args=(p,)) for p in products]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for product in products:
        product.check("of a thread")


def handles_are_given_out_again(backend):
    """A new stream at the handle of a destroyed one, whose work is not over."""
    for _ in range(20):
        old = drv.Stream()
        first = Product(backend, COPIED, (97, 65, 130), old.handle)
        first.launch()
        handle = old.handle
        del old
        new = drv.Stream()
        second = Product(backend, COPIED, (65, 63, 135), new.handle)
        second.launch()
        second.launch()
        first.check(f"first, {handle:#x}")
        second.check(f"second, {new.handle:#x}")


def captured_at_first_use(backend):
    """Nothing of a product is known when it is captured."""
    stream, driver = drv.Stream(), Driver()
    for number, case in enumerate((SPLIT, COPIED, CASES[0], SPLIT)):
        shape = case.shapes_on(backend.device)[number > 2]
        product = Product(backend, case, shape, stream)
        with captured(driver, stream.handle, RELAXED if number > 2 else GLOBAL) as graphs:
            if number > 2:  # from a thread that has no context
                with ThreadPoolExecutor(1) as pool:
                    pool.submit(product.launch).result()
            else:
                product.launch()
        for _ in range(2):
            product.poison()
            graphs[0].launch(stream.handle)
            product.check(f"captured {case.kernel}")
        graphs[0].destroy()


def scratch_of_graphs_lives(backend):
    """A graph outlives all caches, and the arrays of other products come and go."""
    stream, driver = drv.Stream(), Driver()
    product = Product(backend, COPIED, (65, 63, 135), stream)
    product.launch()  # known, with the stream's own scratch memory
    with captured(driver, stream.handle) as graphs:
        product.launch()
    cache.clear()
    backend.reset()
    gc.collect()
    others = [Product(backend, COPIED, s, stream) for s in COPIED.shapes]
    for other in others:
        other.launch()
    product.poison()
    graphs[0].launch(stream.handle)
    product.check("after all was cleared")
    for other in others:
        other.check("other")


def graphs_share_no_scratch(backend):
    """Two graphs that were captured on one stream run on two at once, beside calls on the first."""
    streams, driver = streams_made(backend), Driver()
    products = [Product(backend, COPIED, (65, 63, 135), streams[0]) for _ in range(3)]
    graphs = []
    for product in products[:2]:
        with captured(driver, streams[0].handle) as made:
            product.launch()
        graphs += made
    for _ in range(20):
        for product in products:
            product.poison()
        graphs[0].launch(streams[1].handle)
        products[2].launch()
        graphs[1].launch(streams[0].handle)
        for product in products:
            product.check("at once")


def graphs_give_back(backend):
    """What a graph owned is free again when it is destroyed."""
    stream, driver = drv.Stream(), Driver()
    product = Product(backend, COPIED, (65, 63, 135), stream)
    product.launch()
    backend.synchronize()
    allocated = []
    original, backend.allocate = backend.allocate, lambda n: noted(original(n))

    def noted(buffer):
        allocated.append(weakref.ref(buffer))
        return buffer

    for _ in range(3):
        allocated.clear()
        with captured(driver, stream.handle) as graphs:
            product.launch()
        backend.reset()
        gc.collect()
        assert allocated and all(buffer() for buffer in allocated)
        graphs[0].destroy()
        until = time.monotonic() + 60  # a driver may take its time to say so
        while any(buffer() for buffer in allocated) and time.monotonic() < until:
            backend.reset()
            gc.collect()
        assert not any(buffer() for buffer in allocated)
    del backend.allocate


def copies_of_graphs_live(backend):
    """An operand that no kernel reads in place is copied: the graph owns the copy."""
    stream, driver = drv.Stream(), Driver()
    host = rng.integers(-2, 3, (34, 66)).astype(np.float32)
    whole = gpuarray.to_gpu(host)
    a = whole[::2, ::2]
    b = gpuarray.to_gpu(rng.integers(-2, 3, (33, 9)).astype(np.float32))
    wanted = host[::2, ::2] @ b.get()
    out = gpuarray.zeros((17, 9), np.float32)
    with captured(driver, stream.handle) as graphs:
        pymm.matmul(a, b, out=out, stream=stream, device=backend)
    gc.collect()
    others = [gpuarray.to_gpu(host) for _ in range(4)]
    graphs[0].launch(stream.handle)
    backend.synchronize()
    np.testing.assert_array_equal(out.get(), wanted)
    del others


def host_arrays_are_not_captured(backend):
    """Their copies wait for the device; the capture survives the refusal."""
    stream, driver = drv.Stream(), Driver()
    product = Product(backend, SPLIT, (21, 33, 65), stream)
    with captured(driver, stream.handle) as graphs:
        try:
            pymm.matmul(product.a, product.b, stream=stream, device=backend)
        except ValueError as error:
            assert "captured" in str(error), error
        else:
            raise AssertionError("host arrays were multiplied inside a capture")
        product.launch()
    graphs[0].launch(stream.handle)
    product.check("captured")


def arrays_go_while_others_are_captured(backend):
    """Memory that is freed while a graph is captured does not end the capture."""
    stream, driver = drv.Stream(), Driver()
    product = Product(backend, SPLIT, (21, 33, 65), stream)
    made = pymm.matmul(*product.gpu, config=SPLIT.config, device=backend)
    backend.synchronize()
    with captured(driver, stream.handle) as graphs:
        product.launch()
        del made
        gc.collect()
    graphs[0].launch(stream.handle)
    product.check("captured")


def no_memory_for_copies(backend):
    """Another kernel multiplies where the copies of the best one do not fit; and says so once."""
    batch, m, n, k = 2, 65, 63, 71
    a, b = (rng.integers(-2, 3, (batch, *shape)).astype(float) for shape in ((m, k), (k, n)))
    gpu = [gpuarray.to_gpu(x) for x in (a, b)]
    scratch.GRAIN = drv.mem_get_info()[1]  # no piece fits
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(3):
            got = pymm.matmul(*gpu, device=backend)
            np.testing.assert_array_equal(got.get(), a @ b)
    found = [str(w.message) for w in said if "too little free" in str(w.message)]
    assert len(found) == 1 and "tma_f64" in found[0], found
    try:
        pymm.matmul(*gpu, kernel="tma_f64", device=backend)
    except MemoryError:
        return
    raise AssertionError("a kernel that was asked for by name is not replaced")


NAMES = [
    scratch_grows,
    rebinds_are_cleared,
    threads_have_default_streams,
    handles_are_given_out_again,
    captured_at_first_use,
    scratch_of_graphs_lives,
    graphs_share_no_scratch,
    graphs_give_back,
    copies_of_graphs_live,
    host_arrays_are_not_captured,
    arrays_go_while_others_are_captured,
    no_memory_for_copies,
]


if __name__ == "__main__":
    scratch.GRAIN = 1024  # so that small products need pieces of different sizes
    wanted = next(case for case in NAMES if case.__name__ == sys.argv[1])
    with sequences.machine() as (backend, _, _), every_kernel():
        wanted(backend)
    print("right")
