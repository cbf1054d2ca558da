"""The simulator under the real PyCUDA: kernels against NumPy, and the driver's own behaviour."""

import ctypes
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.simulator

KERNELS = Path(__file__).parent / "simulator_kernels"
ORDERS = ["forward", "backward", "random:1", "random:2", "rotate"]


@pytest.fixture(scope="module")
def drv():
    """pycuda.driver with the primary context current."""
    import pymm.simulator

    pymm.simulator.activate()
    import pycuda.driver

    pycuda.driver.init()
    context = pycuda.driver.Device(0).retain_primary_context()
    context.push()
    yield pycuda.driver
    context.pop()


@pytest.fixture(scope="module")
def build(drv):
    """A .cu file of this folder as a SourceModule."""
    from pycuda.compiler import SourceModule

    def build(name: str, **defines):
        options = [f"-D{key}={value}" for key, value in defines.items()]
        text = (KERNELS / name).read_text()
        return SourceModule(text, no_extern_c=True, arch="sm_90", options=options)

    return build


@pytest.fixture(scope="module")
def features(build):
    return build("features.cu")


def called(drv, function, *arguments, out, block, grid=(1, 1), shared=0):
    """`out`, an array, after a launch with it as the last argument."""
    function(*arguments, drv.InOut(out), block=block, grid=grid, shared=shared)
    return out


# --- kernels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tile", [(16, 16, 8, 2, 2), (32, 16, 4, 4, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_product(drv, build, monkeypatch, tile, dtype):
    """A tiled product of odd shapes, in every order of threads, against float64."""
    names = dict(zip(("MB", "NB", "KB", "TA", "TB"), tile, strict=True))
    real = "float" if dtype == "float32" else "double"
    product = build("product.cu", REAL=real, **names).get_function("product")
    mb, nb, _, ta, tb = tile
    random = np.random.default_rng(0)
    shapes = [(1, 1, 1), (mb, nb, 17), (mb + 1, nb - 1, 5), (67, 53, 41), (3, 70, 0)]
    for order, (m, n, k) in zip(ORDERS, shapes, strict=True):
        monkeypatch.setenv("PYMM_SIMULATOR_ORDER", order)
        a, b, c = (random.standard_normal(s).astype(dtype) for s in ((m, k), (k, n), (m, n)))
        number = np.dtype(dtype).type
        want = 2 * a.astype(float) @ b.astype(float) - 0.5 * c.astype(float)
        device = [drv.to_device(x) if x.size else np.intp(0) for x in (a, b, c)]
        product(*map(np.int32, (m, n, k)), number(2), *device[:2], number(-0.5), device[2],
                block=(nb // tb, mb // ta, 1), grid=(-(-n // nb), -(-m // mb)))  # fmt: skip
        drv.memcpy_dtoh(c, device[2])
        bound = (k + 4) * np.finfo(dtype).eps * (2 * abs(a) @ abs(b) + abs(c) + 1)
        assert (abs(c - want) <= bound).all(), order


def test_a_missing_barrier_shows(drv, features, monkeypatch):
    """Neighbours are seen in one order of threads and not in another."""
    function = features.get_function("missing_barrier")
    seen = {}
    for order in ("forward", "backward", "random:7"):
        monkeypatch.setenv("PYMM_SIMULATOR_ORDER", order)
        out = called(drv, function, out=np.zeros(64, np.float32), block=(64, 1, 1))
        seen[order] = (out == (np.arange(64) + 1) % 64).sum()
    assert seen["forward"] == 1 and seen["backward"] == 63
    assert 1 < seen["random:7"] < 63


def test_blocks_take_turns_among_the_orders(drv, features):
    """Without any setting, three blocks in a row differ where a barrier is missing."""
    function = features.get_function("missing_barrier")
    outs = [called(drv, function, out=np.zeros(64, np.float32), block=(64, 1, 1)) for _ in range(3)]
    assert len({out.tobytes() for out in outs}) == 3


@pytest.mark.parametrize("order", ORDERS)
def test_warp_operations(drv, features, monkeypatch, order):
    monkeypatch.setenv("PYMM_SIMULATOR_ORDER", order)
    out = np.zeros((8, 128), np.int32)
    features.get_function("warp_operations")(
        drv.InOut(out), np.int32(128), block=(64, 1, 1), grid=(2, 1)
    )
    lane = np.arange(128) % 32
    want = [
        10 * (lane // 8 * 8 + 3),
        np.where(lane % 16 < 2, lane, lane - 2),
        np.where(lane > 26, lane, lane + 5),
        lane ^ 9,
        np.full(128, sum(1 << i for i in range(0, 32, 3))),
        np.ones(128),
        [sum(1 << j for j in range(32) if j // 5 == i // 5) for i in lane],
        np.where(lane % 2, sum(range(1, 32, 2)), 0),
    ]
    assert (out == np.array(want).astype(np.uint32).view(np.int32).reshape(out.shape)).all()


def test_a_warp_that_is_not_full(drv, features):
    out = called(
        drv, features.get_function("partial_warp"), out=np.zeros(38, np.int32), block=(38, 1, 1)
    )
    assert (out == np.arange(38) ^ 1).all()


def test_block_votes(drv, features):
    out = called(
        drv, features.get_function("block_votes"), out=np.zeros(3, np.int32), block=(7, 1, 1)
    )
    assert out.tolist() == [3, 0, 1]


def test_atomics_over_blocks(drv, features):
    blocks, threads = 9, 50
    n = blocks * threads
    i, u = np.zeros(5, np.int32), np.zeros(1, np.uint64)
    f, d = np.zeros(1, np.float32), np.zeros(1)
    features.get_function("atomics")(
        *map(drv.InOut, (i, u, f, d)), block=(threads, 1, 1), grid=(blocks, 1)
    )
    assert i.tolist() == [n * (n - 1) // 2, n - 1, 1 - n, (1 << 31) - 1, 2 * n]
    assert u[0] == n << 33 and f[0] == n / 2 and d[0] == n / 4


def test_positions(drv, features):
    out = np.zeros(2 * 3 * 2 * 5 * 2 * 3, np.int32)
    called(drv, features.get_function("positions"), out=out, block=(5, 2, 3), grid=(2, 3, 2))
    block, thread = divmod(np.arange(out.size), 30)
    assert (out == 1000 * block + thread).all()


def test_vectors(drv, features):
    values = np.random.default_rng(1).standard_normal((8, 4)).astype(np.float32)
    function = features.get_function("vectors")
    out = called(drv, function, drv.In(values), out=np.zeros((8, 2)), block=(8, 1, 1))
    x, y, z, w = values.T.astype(np.float64)
    assert np.allclose(out, np.stack([np.float32(x + y), z * w + 1], 1), rtol=1e-6)


def test_parameters_lie_where_c_puts_them(drv, features):
    """By value, a struct among them, through the buffer that PyCUDA packs."""
    function = features.get_function("parameters")
    pair = np.zeros(1, np.dtype([("first", "f8"), ("second", "i1")], align=True))
    pair["first"], pair["second"] = 0.5, 3
    out = drv.mem_alloc(32)
    function.prepare(["b", "d", "16s", "h", "P"])
    function.prepared_call(
        (1, 1), (1, 1, 1), np.int8(-7), np.float64(2.5), pair.tobytes(), np.int16(-300), out
    )
    got = np.zeros(4)
    drv.memcpy_dtoh(got, out)
    assert got.tolist() == [-7, 2.5, 3.5, -300]


def test_templates(drv, features):
    """Explicit instantiations, by their mangled names, each with its own shared array."""
    single = features.get_function("_Z9transposeIfLi4ELi8EEvPKT_PS0_")
    double = features.get_function("_Z9transposeIdLi16ELi16EEvPKT_PS0_")
    a = np.arange(32, dtype=np.float32).reshape(4, 8)
    out = called(drv, single, drv.In(a), out=np.zeros((8, 4), np.float32), block=(8, 4, 1))
    assert (out == a.T).all()
    b = np.arange(256.0).reshape(16, 16)
    out = called(drv, double, drv.In(b), out=np.zeros((16, 16)), block=(16, 16, 1))
    assert (out == b.T + 1).all()
    assert single.shared_size_bytes == 4 * 4 * 9 and double.shared_size_bytes == 8 * 16 * 17
    assert single.max_threads_per_block == 32 and double.max_threads_per_block == 256


def test_shared_memory_of_the_whole_file(drv, features):
    values = np.arange(1.0, 6)
    function = features.get_function("sums")
    out = called(drv, function, drv.In(values), out=np.zeros(2), block=(32, 1, 1), shared=40)
    assert out.tolist() == [6, 15]


def test_globals(drv, features):
    address, size = features.get_global("weights")
    assert size == 16
    drv.memcpy_htod(address, np.float32([5, 6, 7, 8]))
    out = np.zeros(8, np.float32)
    called(drv, features.get_function("use_globals"), out=out, block=(8, 1, 1))
    assert out.tolist() == [5, 6, 7, 8, 5, 6, 7, 8]
    counter = np.zeros(1, np.int32)
    drv.memcpy_dtoh(counter, features.get_global("counter")[0])
    assert counter[0] == 8
    with pytest.raises(drv.LogicError, match="named symbol not found"):
        features.get_global("positions")
    with pytest.raises(drv.LogicError, match="named symbol not found"):
        features.get_function("weights")


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
    "block, grid", [((1025, 1, 1), (1, 1)), ((32, 33, 1), (1, 1)), ((1, 1, 65), (1, 1)),
                    ((0, 1, 1), (1, 1)), ((1, 1, 1), (0, 1)), ((1, 1, 1), (1, 65536))],
)  # fmt: skip
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
    for name in ("cuCtxCreate_v2", "cuEventElapsedTime", "cuFuncGetParamInfo", "cuCtxGetCurrent",
                 "cuOccupancyMaxActiveBlocksPerMultiprocessor"):  # fmt: skip
        assert getattr(library, name)
    assert library.cuGraphLaunch() == 801


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
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False,
        cwd=Path(__file__).parents[1], **options,
    )  # fmt: skip


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
        "-c", "import sys; sys.modules['pycuda._driver'] = sys\n"
        "import pymm.simulator; pymm.simulator.activate()",
    )  # fmt: skip
    assert "CannotSimulate: pycuda.driver is already imported" in done.stderr


def test_two_builds_at_once(tmp_path, monkeypatch):
    """The first to finish is taken, the other leaves nothing behind."""
    builder = importlib.import_module("pymm.simulator.build")
    monkeypatch.setenv("PYMM_CACHE_DIR", str(tmp_path))

    def fill(folder: Path, name: str, others: bool = True) -> None:
        (folder / "mark").write_text("mine")
        if others:  # another process comes first
            (tmp_path / "simulator" / name).mkdir()
            (tmp_path / "simulator" / name / "mark").write_text("the other's")

    monkeypatch.setattr(builder, "_fill", fill)
    folder = builder.build()
    assert (folder / "mark").read_text() == "the other's"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert builder.build() == folder
