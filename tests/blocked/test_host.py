"""Products of NumPy arrays in blocks, on one simulated device and on several, beside float64."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pymm
import pymm.simulator as simulator
from pymm.blocked import host
from pymm.blocked.call import planned
from pymm.blocked.plan import Rates
from pymm.core.errors import NoDevice
from pymm.runtime.arguments import MatmulOptions

pytestmark = pytest.mark.simulator

#: A kernel that compiles quickly and takes no memory of its own.
KERNEL = "register_tile"

rng = np.random.default_rng(16)


@pytest.fixture
def devices(cuda):
    """How many simulated devices there are: called with a number."""
    yield simulator.set_devices
    simulator.set_devices(1)
    simulator.limit_memory(0)


def integers(*shape, dtype=np.float32):
    """Small integers, whose products are exact in any order."""
    return rng.integers(-3, 4, shape).astype(dtype)


def multiplied(a, b, out=None, **options):
    """The result, and that what was moved is what was planned and what was taken was allowed."""
    options = {"kernel": KERNEL, **options}
    c = options.pop("c", None)
    parsed = MatmulOptions.parse(options)
    product = planned(parsed.check(a, b, out, c), parsed)
    budgets = {share.backend.device.index: share for share in product.shares}
    for share in product.shares:
        share.backend.reset()
    before = {index: used_now(index) for index in budgets}
    result, moved = product.run()
    for index, share in budgets.items():
        taken = simulator.most_used(index) - before[index]
        assert taken <= share.device_bytes <= share.budget, (taken, share)
    tilings = [share.tiling for share in product.shares]
    assert moved.bytes_in == product.products * sum(one.bytes_in for one in tilings)
    assert moved.bytes_out == product.products * sum(one.bytes_out for one in tilings)
    return result


def used_now(index):
    simulator.most_used(index)
    return simulator.most_used(index)


@settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_any_product_within_any_budget(cuda, data):
    m, n, k = (data.draw(st.sampled_from((1, 2, 15, 16, 17, 31, 64, 67))) for _ in range(3))
    k = data.draw(st.sampled_from((0, k)))
    ta, tb, has_c, steps = data.draw(st.tuples(*[st.booleans()] * 4))
    a = integers(*((k, m) if ta else (m, k)))
    b = integers(*((n, k) if tb else (k, n)))
    if steps:
        a, b = integers(*a.shape[:1], 2 * a.shape[1])[:, ::2], b[::-1]
    c = integers(m, n) if has_c else None
    alpha, beta = data.draw(st.sampled_from((1, -2, 0))), 3 if has_c else None
    budget = data.draw(st.integers(3000, 60000))
    wanted = alpha * ((a.T if ta else a) @ (b.T if tb else b)) + (3 * c if has_c else 0)
    options = {"trans_a": ta, "trans_b": tb, "alpha": alpha, "beta": beta, "c": c}
    got = multiplied(a, b, device_memory=budget, **options)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("budget", ["4kB", "20kB", "200kB", "1GB"])
def test_float64_beside_numpy(cuda, budget):
    a, b = rng.standard_normal((67, 129)), rng.standard_normal((129, 65))
    got = multiplied(a, b, device_memory=budget)
    np.testing.assert_allclose(got, a @ b, rtol=0, atol=1e-13 * 129)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("budget", ["20kB", "1MB"])
def test_sixteen_bits_are_rounded_once(cuda, dtype, budget):
    """Over several slices of k the sum is in float32: integers below 2^24 are rounded once."""
    a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in ((40, 300), (300, 24)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    got = multiplied(a, b, device_memory=budget, kernel=None)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, exact.astype(np.float32).astype(dtype))
    wide = multiplied(a, b, device_memory=budget, kernel=None, out_dtype=np.float32)
    np.testing.assert_array_equal(wide, exact)


def test_operands_that_are_mapped_from_files(cuda, tmp_path):
    a, b = integers(70, 90), integers(90, 50)
    for name, array in (("a", a), ("b", b)):
        np.save(tmp_path / f"{name}.npy", array)
    out = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", np.float32, (70, 50))
    x, y = (np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in "ab")
    assert multiplied(x, y, out=out, device_memory="20kB") is out
    out.flush()
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), a @ b)


def test_page_locked_operands_go_straight(cuda):
    a, b, out = integers(64, 96), integers(96, 64), integers(64, 64)
    with cuda.locked(a), cuda.locked(b), cuda.locked(out):
        multiplied(a, b, out=out, device_memory="20kB")
    np.testing.assert_array_equal(out, a @ b)


def test_batches_vectors_and_conversions(cuda):
    a, b = integers(3, 1, 20, 30), integers(2, 30, 25)
    np.testing.assert_array_equal(multiplied(a, b, device_memory="10kB"), a @ b)
    row, column = integers(30), integers(30)
    assert multiplied(row, column, device_memory="10kB")[()] == row @ column
    np.testing.assert_array_equal(multiplied(row, b[0], device_memory="10kB"), row @ b[0])
    whole = rng.integers(-5, 6, (20, 30))
    got = multiplied(whole, b[0], device_memory="10kB", dtype=np.float32, casting="unsafe")
    np.testing.assert_array_equal(got, whole @ b[0])
    assert multiplied(integers(0, 5), integers(5, 3), device_memory="10kB").shape == (0, 3)


@pytest.mark.parametrize("where", ["a", "c", "columns", "converted"])
def test_out_may_be_anything(cuda, where):
    a, b, c = integers(40, 40), integers(40, 40), integers(40, 40)
    wanted = a @ b + 2 * c
    out = {
        "a": a,
        "c": c,
        "columns": np.zeros((40, 40), np.float32, order="F"),
        "converted": np.zeros((40, 80), np.float64)[:, ::2],
    }[where]
    got = multiplied(a, b, out=out, c=c, beta=2, device_memory="9kB")
    assert got is out
    np.testing.assert_array_equal(got, wanted)


def test_a_budget_that_holds_nothing_says_what_would(cuda):
    a, b = integers(9, 9), integers(9, 9)
    with pytest.raises(MemoryError, match=r"holds no tile.*takes 2560 bytes"):
        pymm.matmul(a, b, device_memory=2559, kernel=KERNEL)
    np.testing.assert_array_equal(pymm.matmul(a, b, device_memory=2560, kernel=KERNEL), a @ b)


def test_what_does_not_fit_is_computed_in_blocks(cuda, devices):
    """Without being asked, where there was a `MemoryError`; and after it small products go on."""
    small, a, b = integers(20, 20), integers(300, 200), integers(200, 300)
    cuda.reset()
    simulator.limit_memory(used_now(0) + 300_000)
    assert "in blocks" in str(pymm.explain(a, b, kernel=KERNEL))
    assert "in blocks" not in str(pymm.explain(small, small, kernel=KERNEL))
    for x, y in ((a, b), (small, small), (a, b)):
        np.testing.assert_array_equal(pymm.matmul(x, y, kernel=KERNEL), x @ y)
    with pytest.raises(MemoryError):  # a stream of the caller's is not for blocks
        pymm.matmul(a, b, kernel=KERNEL, transfer="pinned")


def test_two_threads_at_once(cuda):
    a, b = integers(70, 90), integers(90, 50)
    found = []

    def one():
        found.append(pymm.matmul(a, b, device_memory="20kB", kernel=KERNEL))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 2
    for got in found:
        np.testing.assert_array_equal(got, a @ b)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_several_devices_share_the_result(devices, count):
    devices(count)
    a, b, c = integers(70, 40), integers(40, 50), integers(70, 50)
    named = [f"cuda:{index}" for index in range(count)]
    got = multiplied(a, b, device=named, device_memory="20kB", c=c, beta=2)
    np.testing.assert_array_equal(got, a @ b + 2 * c)
    np.testing.assert_array_equal(multiplied(a[:1], b, device=named), a[:1] @ b)


def test_explain_says_what_moves_and_what_limits(cuda, monkeypatch):
    thin = pymm.explain((20000, 16), (16, 20000), dtype="f64", device_memory="1GB", kernel=KERNEL)
    assert thin.bytes_out == 20000 * 20000 * 8
    assert str(thin).count("bytes") + str(thin).count("GB") > 2
    assert "times that" in str(thin)
    fast = pymm.explain((200, 16), (16, 200), dtype="f32", device_memory="1MB", kernel=KERNEL)
    assert fast.limit == "kernel"
    monkeypatch.setattr(host, "link_rates", lambda backend, room: Rates(up=1e3, down=1e3))
    slow = pymm.explain((200, 16), (16, 200), dtype="f32", device_memory="1MB", kernel=KERNEL)
    assert slow.limit == "link"
    assert slow.seconds > slow.bytes_out / 1e3
    assert "no blocks reach more than 0%" in str(slow)


def test_arguments_that_are_not_for_blocks(cuda):
    a = integers(4, 4)
    with pytest.raises(NotImplementedError, match="stream="):
        pymm.matmul(a, a, device_memory="1MB", stream=7)
    with pytest.raises(NotImplementedError, match="plan"):
        pymm.plan(a, a, device_memory="1MB")
    with pytest.raises(NoDevice, match="host memory"):
        pymm.matmul(a, a, device="cpu", device_memory="1MB")
    with pytest.raises(ValueError, match="twice"):
        pymm.matmul(a, a, device=["cuda:0", 0])
    with pytest.raises(ValueError, match="names no device"):
        pymm.matmul(a, a, device=[])
    with pytest.raises(TypeError, match=r"pymm\.scatter"):
        gpu = cuda.empty((4, 4), np.dtype(np.float32))
        pymm.matmul(gpu, gpu, device="cuda:all")
