"""CUDA kernels in the simulator, under the real PyCUDA, against NumPy."""

# ruff: noqa: F811  (fixtures are imported by their names)

import numpy as np
import pytest
from simulator_fixtures import build, called, drv, features  # noqa: F401

pytestmark = pytest.mark.simulator

ORDERS = ["forward", "backward", "random:1", "random:2", "rotate"]


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
        product(
            *map(np.int32, (m, n, k)),
            number(2),
            *device[:2],
            number(-0.5),
            device[2],
            block=(nb // tb, mb // ta, 1),
            grid=(-(-n // nb), -(-m // mb)),
        )
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
