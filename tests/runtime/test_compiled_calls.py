"""Products that compiled code makes again: the same results and errors as without it."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from products import integers

import pymm
from pymm.backends import compiled as module
from pymm.backends.cpu.backend import no_memory
from pymm.backends.cpu.call import Call
from pymm.core.errors import LaunchFailed
from pymm.runtime import launch_cache
from pymm.runtime.launch_cache import LaunchCache
from pymm.selection import choose


@pytest.fixture
def cache(monkeypatch):
    """A launch cache of this test's own."""
    own = LaunchCache()
    monkeypatch.setattr(pymm.api, "cache", own)
    yield own
    choose._watch.listeners = [x for x in choose._watch.listeners if x != own._found_until]


@pytest.fixture
def alone(cache, monkeypatch):
    """The function that has Python's part of the cache refuse every call from now on."""

    def refuse(*_):
        raise AssertionError("Python was asked for a call that compiled code knows")

    return lambda: monkeypatch.setattr(cache, "lookup", refuse)


def product(m=5, k=7, n=6, dtype=np.float32, seed=0):
    return integers((m, k), dtype, seed), integers((k, n), dtype, seed + 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 16, 17, 64])
def test_a_known_call_needs_no_python(alone, size, dtype):
    """With out and without, at the same addresses and at others of the same alignment."""
    memory = np.zeros(3 * 65536, np.uint8)
    memory = memory[-memory.ctypes.data % 128 :]

    def at(place, seed):
        made = memory[place * 128 * 256 :][: size * size * np.dtype(dtype).itemsize]
        made = made.view(dtype).reshape(size, size)
        made[:] = integers((size, size), dtype, seed)
        return made

    a, b, out = at(0, 1), at(1, 2), at(2, 0)
    for _ in range(2):
        pymm.matmul(a, b, out, device="cpu")
        pymm.matmul(a, b, device="cpu")
    alone()
    for x, y, z in ((a, b, out), (b, a, out), (out, b, a)):
        wanted = x.astype(float) @ y.astype(float)
        x.flags.writeable = y.flags.writeable = True
        assert pymm.matmul(x, y, z, device="cpu") is z
        np.testing.assert_array_equal(z, wanted)
        again = pymm.matmul(x, y, z, device="cpu")
        assert again is z


def test_results_without_out_are_new_arrays(alone):
    a, b = product()
    kept = [pymm.matmul(a, b, device="cpu") for _ in range(8)]
    kept += [pymm.matmul(a, b, device="cpu") for _ in range(8)]
    for got in kept:
        np.testing.assert_array_equal(got, a @ b)
        assert got.flags.owndata and got.flags.writeable
    assert len({got.ctypes.data for got in kept}) == len(kept)


@pytest.mark.parametrize(
    "options",
    [
        {"alpha": 2},
        {"alpha": 2.0},
        {"alpha": True},
        {"alpha": 0},
        {"trans_a": True},
        {"trans_b": "T"},
        {"activation": "relu"},
        {"bias": np.arange(6, dtype=np.float32)},
        {"c": np.ones((6, 6), np.float32), "beta": 1},
        {"out_dtype": np.float32},
        {"kernel": "blocked"},
    ],
    ids=str,
)
def test_options_tell_calls_apart(cache, options):
    """A call with an option between calls without it, in both orders."""
    a, b = product(6, 6, 6)
    left = a.T if options.get("trans_a") else a
    right = b.T if options.get("trans_b") else b
    wanted = options.get("alpha", 1) * (left @ right)
    wanted = wanted + options.get("bias", 0) + options.get("c", 0)
    wanted = np.maximum(wanted, 0) if "activation" in options else wanted
    out = np.empty((6, 6), np.float32)
    for _ in range(4):
        for target in (out, None):
            plain = pymm.matmul(a, b, target, device="cpu")
            np.testing.assert_array_equal(plain, a @ b)
            got = pymm.matmul(a, b, target, device="cpu", **options)
            np.testing.assert_array_equal(got, wanted)


def test_a_complex_or_unhashable_option_is_refused_though_the_call_is_known(cache):
    a, b = product()
    for _ in range(3):
        pymm.matmul(a, b, device="cpu")
    with pytest.raises(TypeError, match="alpha is a complex"):
        pymm.matmul(a, b, alpha=1 + 0j, device="cpu")
    with pytest.raises(TypeError, match="alpha is a list"):
        pymm.matmul(a, b, alpha=[1], device="cpu")
    with pytest.raises(NotImplementedError, match="tf32"):
        pymm.matmul(a, b, precision="tf32", device="cpu")


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(*[st.integers(0, 5)] * 3),
    steps=st.tuples(*[st.integers(1, 2)] * 3),
    flips=st.tuples(*[st.booleans()] * 3),
    starts=st.tuples(*[st.integers(0, 40)] * 3),
)
def test_whatever_the_arrays_share(sizes, steps, flips, starts):
    """Strided, transposed and overlapping views of one array: known calls see other overlaps."""
    m, n, k = sizes
    memory = integers(256)
    shapes = ((m, k), (k, n), (m, n))

    def views(of):
        made = []
        for (rows, columns), step, flip, start in zip(shapes, steps, flips, starts, strict=True):
            shape = (columns, rows) if flip else (rows, columns)
            flat = of[start : start + shape[0] * shape[1] * step : step]
            view = flat.reshape(shape)
            made.append(view.T if flip else view)
        return made

    for shift in (0, 16, 0):  # of 128 bytes
        mine = np.roll(memory, shift)
        a, b, out = views(mine)
        wanted = a @ b
        for target in (None, out):
            np.testing.assert_array_equal(pymm.matmul(a, b, target, device="cpu"), wanted)


def test_an_out_that_moves_onto_an_operand_is_noticed(cache):
    """A call with such shapes is known. Where it would write to what it reads, it is not taken."""
    memory = integers(3 * 1024, np.float32)
    a, b, out = memory[:1024], memory[1024:2048], memory[2048:]
    a, b, out = (x.reshape(32, 32) for x in (a, b, out))
    for _ in range(3):
        np.testing.assert_array_equal(pymm.matmul(a, b, out, device="cpu"), a @ b)
    for first in (1024, 1024 + 512, 0, 512):
        target = memory[first : first + 1024].reshape(32, 32)
        before = memory.copy()
        wanted = a @ b
        np.testing.assert_array_equal(pymm.matmul(a, b, target, device="cpu"), wanted)
        memory[:] = before


def test_alignment_and_one_array_for_both(cache):
    memory = integers(4096, np.float32)
    out = np.empty((16, 16), np.float32)
    for first in (0, 1, 2, 32, 0):
        for second in (first, 512, 513):
            x, y = (memory[i : i + 256].reshape(16, 16) for i in (first, second))
            for _ in range(3):
                np.testing.assert_array_equal(pymm.matmul(x, y, out, device="cpu"), x @ y)


def test_a_subclass_of_arrays_is_not_read_as_one(cache):
    class Own(np.ndarray):
        pass

    a, b = product()
    for _ in range(3):
        pymm.matmul(a, b, device="cpu")
    np.testing.assert_array_equal(pymm.matmul(a.view(Own), b, device="cpu"), a @ b)
    np.testing.assert_array_equal(pymm.matmul(a.tolist(), b, dtype="f32", device="cpu"), a @ b)


def test_new_configurations_are_looked_at(cache, monkeypatch):
    """After a reload, and when the time to look at the files has come, Python is asked again."""
    a, b = product()
    for _ in range(3):
        pymm.matmul(a, b, device="cpu")
    asked, original = [], cache.lookup
    monkeypatch.setattr(cache, "lookup", lambda *x: (asked.append(1), original(*x))[1])
    pymm.matmul(a, b, device="cpu")
    assert not asked
    choose.reload()
    for _ in range(4):
        np.testing.assert_array_equal(pymm.matmul(a, b, device="cpu"), a @ b)
    assert 1 <= len(asked) <= 2
    asked.clear()
    monkeypatch.setattr(choose._watch, "next_look", 0.0)
    choose._watch._tell()
    pymm.matmul(a, b, device="cpu")
    assert len(asked) == 1
    pymm.matmul(a, b, device="cpu")
    assert len(asked) == 1


def test_a_cleared_cache_knows_nothing_and_owns_nothing(cache):
    a, b = product()
    number = type("Number", (float,), {})(2)
    seen = weakref.ref(number)
    for _ in range(3):
        pymm.matmul(a, b, alpha=number, device="cpu")
    assert cache.repeat(a, b, None, None, None, _options("cpu", number)) is not None
    cache.clear()
    assert cache.repeat(a, b, None, None, None, _options("cpu", number)) is None
    del number
    gc.collect()
    assert seen() is None


def _options(device, alpha=1):
    plain = (alpha, None, False, False, None, "same_kind", "ieee", None, None)
    return (*plain, None, None, None, device, None, None, "time")


def test_no_array_is_kept_alive(cache):
    class Base(np.ndarray):
        pass

    a, b = product()
    memory = integers((5, 7), np.float32).view(Base)
    x = memory.view(np.ndarray)
    out = np.empty((5, 6), np.float32)
    for _ in range(3):
        pymm.matmul(x, b, out, device="cpu")
        pymm.matmul(x, b, device="cpu")
    seen = weakref.ref(memory)
    del memory, x
    gc.collect()
    assert seen() is None


def test_a_full_table_starts_anew(cache):
    """More shapes than there is room for: all are right, and the last one is known."""
    for m in range(1, 40):
        for n in range(1, 40):
            a, b = np.ones((m, 1), np.float32), np.full((1, n), m, np.float32)
            got = pymm.matmul(a, b, device="cpu")
            assert got.shape == (m, n) and (got == m).all()
    assert cache.repeat(a, b, None, None, None, _options("cpu")) is not None


def test_threads_beside_a_table_that_is_cleared(cache):
    """Each gets its own product, whatever others drop meanwhile."""
    ends, wrong = time.monotonic() + 1.0, []

    def work(seed):
        a, b = product(17, 9, 13, seed=seed)
        out, wanted = np.empty((17, 13), np.float32), a @ b
        while time.monotonic() < ends:
            for got in (pymm.matmul(a, b, device="cpu"), pymm.matmul(a, b, out, device="cpu")):
                if not np.array_equal(got, wanted):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    while time.monotonic() < ends:
        cache.clear()
        time.sleep(0.0005)
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_kernel_that_fails_raises():
    """A launch by compiled code whose kernel finds no memory."""
    failing = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(lambda _: 1)
    address = ctypes.cast(failing, ctypes.c_void_p).value
    code = module.compiled()
    launch = code.launcher(module.HostKernel(address, Call(), no_memory), failing)
    with pytest.raises(LaunchFailed, match="no memory"):
        launch()
    a, b = product()
    table = code.table(no_memory)
    arrays = [
        module.KnownHostArray(True, x.shape, x.strides, x.dtype, x.ctypes.data) for x in (a, b, a)
    ]
    call = Call(a=a.ctypes.data, b=b.ctypes.data, c=a.ctypes.data)
    arrays[2] = arrays[2]._replace(address=16)
    call.c = 16
    out = np.empty_like(a)
    kernel = module.HostKernel(address, call, no_memory)
    assert table.insert(tuple(arrays), kernel, (1,), failing)
    table.valid_until(np.inf)
    with pytest.raises(LaunchFailed, match="no memory"):
        table.multiply(a, b, out, None, None, (1,))
    assert table.multiply(a, b, out, None, None, (2,)) is None


@pytest.mark.parametrize("cause", ["no compiler", "a compiler that fails", "another NumPy"])
def test_python_alone_does_the_same(cache, monkeypatch, tmp_path, cause):
    module.compiled.cache_clear()
    if cause == "no compiler":
        monkeypatch.setattr(module, "compiler_path", lambda: _raise(module.NoDevice("none")))
    elif cause == "a compiler that fails":
        monkeypatch.setattr(module, "FLAGS", ("-fno-such-flag",))
    else:
        monkeypatch.setattr(module, "_reads", lambda array: False)
    monkeypatch.setattr(module, "cache_directory", lambda: tmp_path)
    try:
        a, b = product()
        out, plan = np.empty((5, 6), np.float32), pymm.plan(a, b, device="cpu")
        for seed in range(4):
            a[:] = integers((5, 7), np.float32, seed)
            for got in (pymm.matmul(a, b, device="cpu"), pymm.matmul(a, b, out, device="cpu")):
                np.testing.assert_array_equal(got, a @ b)
            np.testing.assert_array_equal(plan(), a @ b)
        assert module.compiled() is None and cache.repeat is launch_cache._unknown
    finally:
        module.compiled.cache_clear()


def _raise(error):
    raise error
