"""The same calls through to real kernels: C++ on this CPU, CUDA in the simulator or on a GPU."""

import sys
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from products import integers, products

import pymm
from pymm.runtime.arrays import ArraySpec
from pymm.runtime.launch_cache import cache
from pymm.runtime.transfer import copy_across, device_spec, upload


@settings(max_examples=80, deadline=None)
@given(operands=products(), order=st.sampled_from("CF"))
def test_cpu(cpu, operands, order):
    expected = np.matmul(*operands)
    np.testing.assert_array_equal(pymm.matmul(*operands, device=cpu), expected, strict=True)
    out = np.full(expected.shape, np.nan, order=order)
    c = np.full(expected.shape, 3.0)
    pymm.matmul(*operands, out, c=c, alpha=2, beta=-1, device=cpu)
    np.testing.assert_array_equal(out, 2 * expected - 3)


def test_cpu_is_the_default_that_cpu_names():
    x = integers((65, 33), np.float32)
    result = pymm.matmul(
        x.T, x, device="cpu:1", kernel="reordered", config=dict(MB=16, NB=64, KB=16)
    )
    np.testing.assert_array_equal(result, x.T @ x)
    told = pymm.explain(x.T, x, device="cpu:1", kernel="blocked")
    assert told.device.kind == "cpu" and told.config.kernel_name == "blocked" and not told.copies


KERNEL = dict(kernel="transposed_a", config=dict(MB=16, NB=32, KB=8, TA=2, TB=4))


@pytest.mark.parametrize("transfer", [None, "pageable+pitched", "pinned", "registered+pitched"])
def test_numpy_on_a_gpu(cuda, transfer):
    a, b = integers((2, 19, 9), np.float32), integers((9, 37), np.float32)
    out = np.full((2, 19, 40), 77, np.float32)[..., 1:-2]
    options = dict(KERNEL, device=cuda, transfer=transfer)
    assert pymm.matmul(a, b, out, c=out, beta=1, **options) is out
    np.testing.assert_array_equal(out, a @ b + 77)
    np.testing.assert_array_equal(out.base[..., [0, -2, -1]], 77)
    result = pymm.matmul(a[:, :, :0], b[:0], c=out, beta=2, **options)
    np.testing.assert_array_equal(result, 2 * out)
    np.testing.assert_array_equal(pymm.matmul(a[0, 0], b, **options), a[0, 0] @ b)


@pytest.fixture
def context(cuda):
    """The device's primary context, as a user of PyCUDA has it."""
    import pycuda.driver as driver

    context = driver.Device(cuda.device.index).retain_primary_context()
    context.push()
    yield context
    driver.Context.pop()


def test_gpuarrays(cuda, context):
    a, b, c = (integers(s, np.float32) for s in ((21, 9), (9, 33), (21, 33)))
    x, y, z = (on(cuda, array) for array in (a, b, c))
    result = pymm.matmul(x, y, **KERNEL)
    assert type(result) is type(x) and result.dtype == np.float32
    np.testing.assert_array_equal(from_device(cuda, result), a @ b)
    assert pymm.matmul(x, y, z, c=z, alpha=2, beta=-1, **KERNEL) is z
    np.testing.assert_array_equal(from_device(cuda, z), 2 * a @ b - c)
    plan = pymm.plan(x, y, z, **KERNEL)
    assert plan() is z and plan.resources.max_threads >= 64
    np.testing.assert_array_equal(from_device(cuda, z), a @ b)
    square = on(cuda, integers((16, 16), np.float32))
    pymm.matmul(square, square, square, **KERNEL)  # out is both operands
    expected = integers((16, 16), np.float32)
    np.testing.assert_array_equal(from_device(cuda, square), expected @ expected)
    copied = pymm.matmul(x[:, ::2], y[:5], **KERNEL)  # no unit stride
    np.testing.assert_array_equal(from_device(cuda, copied), a[:, ::2] @ b[:5])


def test_a_result_comes_from_the_pool_of_its_operand(cuda, context):
    from pycuda.gpuarray import to_gpu
    from pycuda.tools import DeviceMemoryPool

    pool, a = DeviceMemoryPool(), integers((24, 24), np.float32)
    try:
        x = to_gpu(a, allocator=pool.allocate)
        result = pymm.matmul(x, x, **KERNEL)
        assert type(result) is type(x) and pool.active_blocks == 2
        np.testing.assert_array_equal(result.get(), a @ a)
        del x, result
        assert pool.active_blocks == 0 and pool.held_blocks > 0
    finally:
        pool.stop_holding()


def test_a_call_with_gpuarrays_is_prepared_once(cuda, context, monkeypatch):
    """Also for operands of another pool, which the next result then comes from, or of none. The
    cache keeps no pool and no result alive.
    """
    from pycuda.gpuarray import to_gpu
    from pycuda.tools import DeviceMemoryPool

    pymm.reload()  # other tests have other directories of tuned configurations
    made = []
    prepare = pymm.api.prepare
    monkeypatch.setattr(pymm.api, "prepare", lambda *given: made.append(0) or prepare(*given))
    a = integers((25, 25), np.float32)
    for _ in range(2):
        pool = DeviceMemoryPool()
        held = sys.getrefcount(pool)
        x = to_gpu(a, allocator=pool.allocate)
        results = [pymm.matmul(x, x, kernel="shared_tile") for _ in range(4)]
        assert pool.active_blocks == 5
        for result in results:
            np.testing.assert_array_equal(result.get(), a @ a)
        del x, result, results
        assert pool.active_blocks == 0 and sys.getrefcount(pool) == held
        pool.stop_holding()
    plain, results = to_gpu(a), []
    for _ in range(4):
        results.append(pymm.matmul(plain, plain, kernel="shared_tile"))
        assert type(results[-1]) is type(plain)
    for result in results:
        np.testing.assert_array_equal(result.get(), a @ a)
    assert len(made) == 1 and len({result.ptr for result in results}) == 4
    gone = weakref.ref(result)
    del result, results
    assert gone() is None


def on(cuda, array):
    """A GPUArray of the array's elements."""
    made = cuda.empty(array.shape, array.dtype)
    cuda.copy_in(array, int(made.gpudata), array.strides[0])
    return made


def from_device(cuda, array):
    host = np.empty(array.shape, array.dtype)
    cuda.copy_out(int(array.gpudata), array.strides[0], host)
    return host


def test_streams_of_other_libraries(cuda, context):
    from pycuda.driver import Stream

    a = integers((17, 17), np.float32)
    x, out = on(cuda, a), on(cuda, a * 0)
    stream = Stream()
    for handle in (stream, stream.handle, 1, 2):
        pymm.matmul(x, x, out, stream=handle, **KERNEL)
        cuda.synchronize()
        np.testing.assert_array_equal(from_device(cuda, out), a @ a)
        out = on(cuda, a * 0)
    result = pymm.matmul(a, a, stream=stream, device=cuda, **KERNEL)
    np.testing.assert_array_equal(result, a @ a)
    with pytest.raises(TypeError, match="is not a stream"):
        pymm.matmul(x, x, out, stream="fast", **KERNEL)


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[:, ::2], lambda x: x[::-1, ::-1].T])
def test_copies_on_a_device(cuda, view):
    array = integers((6, 8), np.float32)
    source, target = cuda.allocate(array.nbytes), cuda.allocate(8192)
    spec = ArraySpec(array.shape, array.strides, array.dtype)
    upload(cuda, array, source.address, spec, "pageable", None)
    part = view(array)
    start = part.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    packed = ArraySpec.packed(part.shape, part.dtype)
    image = device_spec(packed, True, cuda)
    part_spec = ArraySpec(part.shape, part.strides, part.dtype)
    copy_across(cuda, source.address + start, part_spec, target.address, image, None)
    host = np.empty(part.shape, np.float32)
    cuda.copy_out(target.address, image.strides[0], host)
    np.testing.assert_array_equal(host, part)


def test_a_launch_for_other_addresses_never_writes_over_its_bias(cuda, context):
    """The launch for the first result is made again for the second one, but not for the last, which
    lies where the bias is.
    """
    from pycuda.gpuarray import GPUArray, to_gpu

    pymm.reload()
    cache.clear()
    a, b, held = integers((21, 9), np.float32), integers((9, 33), np.float32), integers(5000)
    memory = to_gpu(held.astype(np.float32))

    def view(start, *shape):
        return GPUArray(shape, np.float32, base=memory, gpudata=int(memory.gpudata) + 4 * start)

    x, y, bias = to_gpu(a), to_gpu(b), view(0, 33)
    wanted = np.maximum(a @ b + held[:33].astype(np.float32), 0)
    for start, launches in ((1024, 1), (2048, 2), (1024, 2), (0, 2)):
        out = view(start, 21, 33)
        assert pymm.matmul(x, y, out, bias=bias, activation="relu", kernel="shared_tile") is out
        np.testing.assert_array_equal(out.get(), wanted)
        assert (len(cache), cache.rebinds) == (launches, 1)
