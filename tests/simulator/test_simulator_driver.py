"""The simulator's driver: limits, memory, copies, streams, and how it is started."""

# ruff: noqa: F811  (fixtures are imported by their names)

import ctypes
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from simulator_fixtures import build, called, drv, features  # noqa: F401

pytestmark = pytest.mark.simulator


# --- limits -------------------------------------------------------------------------------------


def test_dynamic_shared_memory_has_to_be_asked_for(drv, features):
    function = features.get_function("dynamic_shared")
    attribute = drv.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES
    n = (64 << 10) // 4

    def launch():
        out = np.zeros(32, np.float32)
        device = drv.to_device(out)
        function(device, np.int32(n), block=(32, 1, 1), shared=4 * n)
        drv.memcpy_dtoh(out, device)
        return out

    with pytest.raises(drv.LogicError, match="cuLaunchKernel failed: invalid argument"):
        launch()
    with pytest.raises(drv.LogicError, match="invalid argument"):
        function.set_attribute(attribute, (227 << 10) + 1)
    function.set_attribute(attribute, 4 * n)
    assert function.get_attribute(attribute) == 4 * n
    assert (launch() == n - 1 - np.arange(32)).all()


@pytest.mark.parametrize(
    "block, grid",
    [
        ((1025, 1, 1), (1, 1)),
        ((32, 33, 1), (1, 1)),
        ((1, 1, 65), (1, 1)),
        ((0, 1, 1), (1, 1)),
        ((1, 1, 1), (0, 1)),
        ((1, 1, 1), (1, 65536)),
    ],
)
def test_impossible_launches(drv, features, block, grid):
    with pytest.raises(drv.LogicError, match="failed: invalid argument"):
        features.get_function("positions")(np.intp(0), block=block, grid=grid)
    drv.Context.synchronize()  # a refused launch poisons nothing


def test_launch_bounds(drv, features):
    function = features.get_function("bounded")
    assert function.max_threads_per_block == 32
    called(drv, function, out=np.zeros(32, np.float32), block=(32, 1, 1))
    with pytest.raises(drv.LaunchError, match="too many resources requested for launch"):
        called(drv, function, out=np.zeros(33, np.float32), block=(33, 1, 1))


def test_the_device(drv):
    device = drv.Device(0)
    get, name = device.get_attribute, drv.device_attribute
    assert drv.Device.count() == 1 and device.name() == "pymm simulator"
    assert device.compute_capability() == (9, 0)
    assert get(name.WARP_SIZE) == 32 and get(name.MAX_THREADS_PER_BLOCK) == 1024
    assert get(name.MAX_SHARED_MEMORY_PER_BLOCK) == 48 << 10
    assert get(name.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN) == 227 << 10
    assert device.total_memory() == drv.mem_get_info()[1]
    with pytest.raises(drv.LogicError, match="invalid device ordinal"):
        drv.Device(1)


def test_what_is_not_there_says_so(drv, features):
    with pytest.raises(drv.LogicError, match="operation not supported"):
        features.get_texref("weights")


# --- memory -------------------------------------------------------------------------------------


def test_memory_is_counted(drv):
    free, total = drv.mem_get_info()
    with pytest.raises(drv.MemoryError, match="out of memory"):
        drv.mem_alloc(total + 1)
    allocation = drv.mem_alloc(1000)
    assert free - drv.mem_get_info()[0] == 1024 and int(allocation) % 256 == 0
    allocation.free()
    assert drv.mem_get_info()[0] == free


def test_copies_stay_inside_allocations(drv):
    allocation, host = drv.mem_alloc(64), np.zeros(65, np.uint8)
    for copy in (
        lambda: drv.memcpy_htod(allocation, host),
        lambda: drv.memcpy_dtoh(host, allocation),
        lambda: drv.memset_d8(allocation, 0, 65),
        lambda: drv.memcpy_dtod(int(allocation) + 1, allocation, 64),
    ):
        with pytest.raises(drv.LogicError, match="invalid argument"):
            copy()
    drv.memset_d8(allocation, 7, 64)
    drv.memcpy_dtoh(host[:64], allocation)
    assert (host[:64] == 7).all() and host[64] == 0


def test_what_was_never_written_arrives_as_nan(drv):
    """A real device's memory holds anything; the simulator's is never mistaken for zeros."""
    first, second, host = drv.mem_alloc(16), drv.mem_alloc(16), np.zeros(4, np.float32)
    drv.memcpy_htod(int(first) + 4, np.float32([5]))
    drv.memcpy_dtod(second, first, 16)
    drv.memcpy_dtoh(host, second)
    assert host[1] == 5 and np.isnan(host[[0, 2, 3]]).all()


@pytest.mark.parametrize("through_stream", [False, True])
def test_pitched_copies(drv, through_stream):
    rows, width = 7, 50
    host = np.random.default_rng(2).integers(0, 255, (rows, 60), np.uint8)
    allocation, pitch = drv.mem_alloc_pitch(width, rows, 4)
    assert pitch >= width and pitch % 256 == 0
    back = np.zeros_like(host)
    stream = drv.Stream()
    for to_device in (True, False):
        copy = drv.Memcpy2D()
        if to_device:
            copy.set_src_host(host)
            copy.set_dst_device(allocation)
            copy.src_pitch, copy.dst_pitch = 60, pitch
        else:
            copy.set_src_device(allocation)
            copy.set_dst_host(back)
            copy.src_pitch, copy.dst_pitch = pitch, 60
            copy.dst_x_in_bytes, copy.dst_y = 3, 1
        copy.width_in_bytes, copy.height = width, rows - 1
        copy(stream) if through_stream else copy(aligned=True)
    stream.synchronize()
    assert (back[1:, 3:53] == host[:-1, :50]).all()
    assert not back[0].any() and not back[:, :3].any() and not back[:, 53:].any()


def test_host_memory(drv, features):
    """Page-locked memory, which kernels reach through its device pointer."""
    flags = drv.host_alloc_flags.DEVICEMAP
    page_locked = drv.pagelocked_empty(8, np.float32, mem_flags=flags)
    page_locked[:] = 1
    pointer = np.intp(page_locked.base.get_device_pointer())
    features.get_function("use_globals")(pointer, block=(8, 1, 1))
    assert (page_locked > 1).any()


def test_streams_and_events(drv, features):
    stream, begin, end = drv.Stream(), drv.Event(), drv.Event()
    out = drv.mem_alloc(32)
    host = drv.pagelocked_empty(8, np.float32)
    begin.record(stream)
    features.get_function("use_globals")(out, block=(8, 1, 1), stream=stream)
    drv.memcpy_dtoh_async(host, out, stream)
    end.record(stream)
    end.synchronize()
    assert end.query() and 0 < end.time_since(begin) < 1e5
    assert np.isfinite(host).all()
    with pytest.raises(drv.LogicError, match="invalid resource handle"):
        drv.Event().time_since(begin)


def test_gpuarray(drv):
    """PyCUDA's own kernels, headers included."""
    from pycuda import gpuarray

    a = np.random.default_rng(3).standard_normal(1000)
    x = gpuarray.to_gpu(a)
    assert np.allclose((2 * x + x * x).get(), 2 * a + a * a)
    assert (gpuarray.zeros(5, np.float32).get() == 0).all()


# --- names that ctypes callers and other builds of PyCUDA look for --------------------------------


def test_calls_by_ctypes(drv):
    library = ctypes.CDLL("libcuda.so.1")
    text = ctypes.c_char_p()
    assert library.cuGetErrorName(701, ctypes.byref(text)) == 0
    assert text.value == b"CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    for name in (
        "cuCtxCreate_v2",
        "cuEventElapsedTime",
        "cuFuncGetParamInfo",
        "cuCtxGetCurrent",
        "cuOccupancyMaxActiveBlocksPerMultiprocessor",
    ):
        assert getattr(library, name)
    assert library.cuMemAllocAsync() == 801


def test_registered_host_memory(drv, features):
    """By ctypes, as pymm does it: PyCUDA's own call crashes with numpy 2."""
    library, array = ctypes.CDLL("libcuda.so.1"), np.zeros(4096, np.float32)
    address, size = ctypes.c_void_p(array.ctypes.data), ctypes.c_size_t(array.nbytes)
    assert library.cuMemHostRegister_v2(address, size, 2) == 0
    assert library.cuMemHostRegister_v2(address, size, 2) == 712  # already registered
    features.get_function("bounded")(np.intp(address.value), block=(32, 1, 1))
    assert array.sum() == 32
    assert library.cuMemHostUnregister(address) == 0
    assert library.cuMemHostUnregister(address) == 713  # not registered


# --- starting it ----------------------------------------------------------------------------------


def in_python(*arguments: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
        **options,
    )


def test_a_script_that_knows_nothing_of_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy, pycuda.autoprimaryctx, pycuda.driver as drv\n"
        "from pycuda.compiler import SourceModule\n"
        "f = SourceModule('__global__ void f(int* a) { a[0] = 42; }').get_function('f')\n"
        "a = numpy.zeros(1, numpy.int32)\n"
        "f(drv.InOut(a), block=(1, 1, 1))\n"
        "print(a[0], sys.argv[1:], pycuda.autoprimaryctx.device.name())\n"
    )
    done = in_python("-W", "error", "-m", "pymm.simulator", str(script), "x", "-y")
    assert done.stdout == "42 ['x', '-y'] pymm simulator\n", done.stderr
    assert done.stderr == "" and done.returncode == 0


def test_it_comes_first_or_not_at_all():
    done = in_python(
        "-c",
        "import sys; sys.modules['pycuda._driver'] = sys\n"
        "import pymm.simulator; pymm.simulator.activate()",
    )
    assert "CannotSimulate: pycuda.driver is already imported" in done.stderr
