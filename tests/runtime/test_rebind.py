"""Calls whose operands have the shapes, strides and dtypes of a call made before and stand
elsewhere: bound by their addresses alone, and as right as if they had been bound anew.
"""

from __future__ import annotations

import struct
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p
from types import SimpleNamespace

import numpy as np
import pytest
from host_device import CudaArray
from products import integers

import pymm
from pymm.backends.cuda.driver import Driver
from pymm.runtime import bind, launch_cache
from pymm.runtime.arrays import ArraySpec, view_at
from pymm.runtime.launch_cache import cache

pytestmark = pytest.mark.simulator

CONFIG = "transposed_a-MB16-NB32-KB8-TA2-TB4"
A, B = integers((21, 9), np.float32), integers((9, 33), np.float32)


class OnDevice(CudaArray):
    """A matrix somewhere in a buffer: `start` bytes behind its beginning, rows `ld` numbers apart.
    The simulator's device memory can be read and written from here.
    """

    def __init__(self, buffer, shape, start=0, ld=None):
        ld = shape[1] if ld is None else ld
        spec = ArraySpec(shape, (4 * ld, 4), np.dtype(np.float32))
        super().__init__(view_at(buffer.address + start, spec, buffer))

    def write(self, values):
        self.array[...] = values
        return self


@pytest.fixture
def place(cuda):
    """Matrices of floats, zeros at first, in memory of their own or in that of `buffer`."""

    def make(shape, start=0, ld=None, buffer=None):
        if buffer is None:
            buffer = cuda.allocate(8192)
            buffer.fill(0)
        return OnDevice(buffer, shape, start, ld)

    return make


@pytest.fixture
def bound(monkeypatch):
    """A list that gets an entry for every product that is bound the long way."""
    calls = []
    pymm.selection.choose.reload()  # other tests have other files of configurations
    original = bind.executable

    def counted(*arguments):
        calls.append(arguments)
        return original(*arguments)

    monkeypatch.setattr(bind, "executable", counted)
    cache.clear()
    return calls


def multiply(cuda, a, b, out, **options):
    assert pymm.matmul(a, b, out=out, device=cuda, config=CONFIG, **options) is out
    cuda.synchronize()
    return out.array


def test_other_addresses_need_no_second_binding(cuda, place, bound):
    for seed in range(4):
        a, b, c = place((21, 9)), place((9, 33)), place((21, 33), ld=40)
        a.write(integers((21, 9), np.float32, seed))
        b.write(B)
        c.write(seed)
        got = multiply(cuda, a, b, c, c=c, beta=2)
        np.testing.assert_array_equal(got, a.array @ B + 2 * seed)
    assert len(bound) == 1
    plain = place((21, 33), ld=40)
    np.testing.assert_array_equal(multiply(cuda, a, b, plain), a.array @ B)
    assert len(bound) == 2  # other options


def test_a_result_by_columns_is_the_swapped_product(cuda, place, bound):
    for seed in range(2):
        a, b = place((21, 9)).write(A), place((9, 33)).write(integers((9, 33), np.float32, seed))
        rows = place((33, 21))
        out = CudaArray(rows.array.T)
        np.testing.assert_array_equal(multiply(cuda, a, b, out), A @ b.array)
    assert len(bound) == 1


@pytest.mark.parametrize("start", [4, 8, 64])
def test_rows_that_start_otherwise_are_another_kernel_s(cuda, place, bound, start):
    for at in (0, start, start):
        a, b = place((21, 9), at).write(A), place((9, 33)).write(B)
        np.testing.assert_array_equal(multiply(cuda, a, b, place((21, 33))), A @ B)
    assert len(bound) == 2


@pytest.mark.parametrize("first, last", [(0, 512), (512, 0), (0, 1024), (384, 384)])
def test_an_out_that_overlaps_an_operand(cuda, place, bound, first, last):
    """It had a place of its own when the call was made before."""
    square = integers((16, 16), np.float32)
    for _ in range(2):
        apart = [place((16, 16)).write(square) for _ in range(3)]
        multiply(cuda, *apart)
    for left in (True, False):
        buffer = cuda.allocate(8192)
        buffer.fill(0)
        x, other = place((16, 16), first, buffer=buffer), place((16, 16)).write(square.T)
        out = place((16, 16), last, buffer=buffer)
        x.write(square)
        given = (x, other) if left else (other, x)
        wanted = square @ square.T if left else square.T @ square
        np.testing.assert_array_equal(multiply(cuda, *given, out), wanted)
    copied = abs(first - last) < 1024
    assert len(bound) == (3 if copied else 1)


def test_one_array_twice_is_not_two(cuda, place, bound):
    square = integers((16, 16), np.float32)
    for _ in range(2):
        x = place((16, 16)).write(square)
        np.testing.assert_array_equal(multiply(cuda, x, x, place((16, 16))), square @ square)
        y = place((16, 16)).write(square.T)
        np.testing.assert_array_equal(multiply(cuda, x, y, place((16, 16))), square @ square.T)
    assert len(bound) == 2


def test_a_new_choice_of_configuration_is_bound_anew(cuda, place, bound):
    for _ in range(2):
        multiply(cuda, place((21, 9)), place((9, 33)), place((21, 33)))
    pymm.selection.choose.reload()
    multiply(cuda, place((21, 9)), place((9, 33)), place((21, 33)))
    assert len(bound) == 2


def test_kept_calls_are_bounded(cuda, place, bound, monkeypatch):
    monkeypatch.setattr(launch_cache, "MAX_REBINDS", 4)
    for n in range(1, 10):
        multiply(cuda, place((3, 2)), place((2, n)), place((3, n)))
        assert cache.rebinds <= 4


def test_another_context_binds_for_itself(cuda, place, bound):
    import pycuda.driver as driver

    a, b = place((21, 9)).write(A), place((9, 33)).write(B)
    here = place((21, 33))  # kept, so that the one over there has another address
    multiply(cuda, a, b, here)
    context = driver.Device(cuda.device.index).make_context()
    try:
        np.testing.assert_array_equal(multiply(cuda, a, b, place((21, 33))), A @ B)
    finally:
        context.pop()
        context.detach()
    assert len(bound) == 2


@pytest.fixture
def contexts(cuda):
    """Makes contexts current, one on top of the other, until the test is over."""
    import pycuda.driver as driver

    live = []

    def make():
        live.append(driver.Device(cuda.device.index).make_context())
        return live[-1]

    def end(context):
        live.remove(context)
        context.pop()
        context.detach()

    yield SimpleNamespace(make=make, end=end)
    for context in reversed(live):
        end(context)


def test_the_same_addresses_in_another_context_are_another_call(cuda, place, bound, contexts):
    """Memory may be freed in one context and given out again in another one. Here it is reused for
    certain: what is in the simulator's memory can be read in every context.
    """
    a, b, c = place((21, 9)).write(A), place((9, 33)).write(B), place((21, 33))

    def right(bindings):
        for _ in range(2):
            c.write(-1)
            np.testing.assert_array_equal(multiply(cuda, a, b, c), A @ B)
            assert len(bound) == bindings

    right(1)
    own = contexts.make()
    right(2)
    inner = contexts.make()
    right(3)
    contexts.end(inner)
    right(3)
    contexts.end(own)
    right(3)


def test_a_context_at_the_handle_of_a_destroyed_one_is_another(cuda, place, bound, contexts):
    """The simulator gives handles out again, as drivers may, and refuses the functions that were
    loaded into what is gone.
    """
    a, b, c = place((21, 9)).write(A), place((9, 33)).write(B), place((21, 33))
    handles = set()
    for number in range(3):
        context = contexts.make()
        handles.add(context.handle)
        for _ in range(2):
            c.write(-1)
            np.testing.assert_array_equal(multiply(cuda, a, b, c), A @ B)
        assert len(bound) == number + 1
        contexts.end(context)
    assert len(handles) == 1


def test_all_objects_of_a_context_are_one(cuda, place, bound, contexts):
    """PyCUDA makes one for whoever asks, unless it was pushed by hand."""
    import pycuda.driver as driver

    contexts.make()
    assert driver.Context.get_current() is not driver.Context.get_current()
    for _ in range(2):  # other addresses too: nothing is bound again
        a, b = place((21, 9)).write(A), place((9, 33)).write(B)
        np.testing.assert_array_equal(multiply(cuda, a, b, place((21, 33))), A @ B)
    assert len(bound) == 1


def test_a_call_is_not_kept_where_pycuda_and_the_driver_name_two_contexts(
    cuda, place, bound, contexts
):
    """As when another library has made its own current. The call works in PyCUDA's, and nothing may
    find it again by the driver's.
    """
    a, b, c = place((21, 9)).write(A), place((9, 33)).write(B), place((21, 33))
    other = contexts.make().handle
    contexts.make()
    cuda._driver.call("cuCtxPushCurrent_v2", c_void_p(other))
    try:
        np.testing.assert_array_equal(multiply(cuda, a, b, c), A @ B)
        assert len(bound) == 1
        assert len(cache) == cache.rebinds == 0
    finally:
        cuda._driver.call("cuCtxPopCurrent_v2", byref(c_void_p()))


def test_another_thread_s_contexts_are_its_own(cuda, place, bound, contexts):
    a, b, c = place((21, 9)).write(A), place((9, 33)).write(B), place((21, 33))
    contexts.make()
    multiply(cuda, a, b, c)
    c.write(-1)
    with ThreadPoolExecutor(1) as pool:
        got = pool.submit(multiply, cuda, a, b, c).result()
    np.testing.assert_array_equal(got, A @ B)
    assert len(bound) == 2


def test_a_tensor_map_moves(cuda, contexts):
    contexts.make()
    described = (7, 4096, (64, 5, 2), (256, 1280), (32, 4, 1), 128)
    driver = Driver()
    moved = driver.moved_map(driver.tensor_map(*described), 8192)
    assert moved == driver.tensor_map(described[0], 8192, *described[2:])
    assert struct.unpack_from("<Q", moved)[0] == 8192
