"""Matrices on several simulated devices, and their products, beside NumPy."""

from __future__ import annotations

import gc
import itertools

import ml_dtypes
import numpy as np
import pytest

import pymm
import pymm.simulator as simulator
from pymm.blocked import program
from pymm.blocked.program import schedule, strips_of
from pymm.blocked.sharded import grid_of, split

pytestmark = pytest.mark.simulator

KERNEL = "register_tile"

rng = np.random.default_rng(16)


@pytest.fixture(params=[1, 2, 3, 4])
def devices(request, cuda, monkeypatch):
    """Names of so many simulated devices. Strips are narrow, so that there are several."""
    monkeypatch.setattr(program, "STRIP", 16)
    simulator.set_devices(4)
    yield list(range(request.param))
    simulator.set_devices(1)


def integers(*shape, dtype=np.float32):
    return rng.integers(-3, 4, shape).astype(dtype)


SHAPES = [(1, 1, 1), (65, 50, 70), (2, 129, 3), (33, 1, 17), (16, 64, 0), (97, 31, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_of_any_shape(devices, shape):
    m, n, k = shape
    a, b, c = integers(m, k), integers(k, n), integers(m, n)
    x, y, z = (pymm.scatter(one, devices) for one in (a, b, c))
    np.testing.assert_array_equal(x.gather(), a)
    w = pymm.matmul(x, y, kernel=KERNEL)
    np.testing.assert_array_equal(w.gather(), a @ b)
    pymm.matmul(x, y, z, c=z, alpha=-2, beta=3, kernel=KERNEL)
    np.testing.assert_array_equal(z.gather(), -2 * (a @ b) + 3 * c)
    pymm.matmul(x, y, z, c=z, alpha=0, beta=2, kernel=KERNEL)
    np.testing.assert_array_equal(z.gather(), 2 * (-2 * (a @ b) + 3 * c))


def test_what_moves_is_what_explain_says(devices):
    x, y = (pymm.scatter(one, devices) for one in (integers(70, 90), integers(90, 50)))
    z = pymm.ShardedMatrix.empty((70, 50), np.float32, devices)
    said = pymm.explain(x, y, z, kernel=KERNEL)
    pymm.matmul(x, y, z, kernel=KERNEL)
    parts = z.program[1].parts
    assert tuple(part.bytes_in for part in parts) == said.bytes_in
    (down, across), size = z.grid, 4
    rows, columns = -(-70 // down), -(-50 // across)
    most = rows * (90 - 90 // across) * (across > 1) + columns * (90 - 90 // down) * (down > 1)
    assert max(said.bytes_in) == most * size
    assert "expected" in str(said)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
def test_types(devices, dtype):
    a, b = integers(40, 70, dtype=dtype), integers(70, 30, dtype=dtype)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    x, y = pymm.scatter(a, devices), pymm.scatter(b, devices)
    got = pymm.matmul(x, y)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.gather(), exact.astype(dtype))


def test_one_result_again_and_again(devices):
    """The same product is bound once; another one in the same memory anew; operands may go."""
    pymm.reload()  # else a change of the tuned files, by an earlier test, could be noticed halfway
    a, b = integers(40, 40), integers(40, 40)
    x, y = pymm.scatter(a, devices), pymm.scatter(b, devices)
    z = pymm.matmul(x, y, kernel=KERNEL)
    first = z.program[1]
    x.fill(2 * a)
    pymm.matmul(x, y, z, kernel=KERNEL)
    assert z.program[1] is first
    np.testing.assert_array_equal(z.gather(), 2 * a @ b)
    pymm.matmul(y, x, z, kernel=KERNEL)
    del x, y
    gc.collect()
    np.testing.assert_array_equal(z.gather(), b @ (2 * a))


def test_every_element_is_computed_once():
    for m, n, both in itertools.product((1, 47, 48, 100, 5000, 20000), (1, 33, 9000), range(4)):
        strips, regions = schedule(m, n, bool(both & 1), bool(both & 2))
        assert sum(one.rows * one.columns for one in regions) == m * n
        for one, other in itertools.combinations(regions, 2):
            apart_m = one.row + one.rows <= other.row or other.row + other.rows <= one.row
            apart_n = one.column + one.columns <= other.column
            apart_n |= other.column + other.columns <= one.column
            assert apart_m or apart_n
        for region in regions:
            there = strips[: region.after + 1]
            if both & 1:
                assert region.row + region.rows <= max(s.stop for s in there if s.side == "a")
            if both & 2:
                assert region.column + region.columns <= max(s.stop for s in there if s.side == "b")


def test_strips_double():
    assert strips_of(8192) == [(0, 2048), (2048, 4096), (4096, 8192)]
    assert strips_of(5008) == [(0, 2048), (2048, 5008)]
    assert strips_of(4095) == [(0, 4095)]
    assert strips_of(0) == []


def test_grids_and_parts():
    assert [grid_of(count) for count in (1, 2, 3, 4, 6, 8)] == [
        *((1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4))
    ]
    for extent, parts in itertools.product((0, 1, 3, 7, 10001, 16384), (1, 2, 4)):
        cut = split(extent, parts)
        assert len(cut) == parts
        assert [i for part in cut for i in range(part.start, part.stop)] == list(range(extent))
    assert [part.start % 16 for part in split(10001, 2)] == [0, 0]


def test_what_is_refused(cuda):
    simulator.set_devices(2)
    a = integers(8, 8)
    x, alone = pymm.scatter(a, [0, 1]), pymm.scatter(a, [0])
    with pytest.raises(TypeError, match=r"pymm\.scatter"):
        pymm.matmul(x, a)
    with pytest.raises(ValueError, match="other devices"):
        pymm.matmul(x, alone)
    with pytest.raises(ValueError, match="do not fit"):
        pymm.matmul(x, pymm.scatter(integers(9, 8), [0, 1]))
    with pytest.raises(ValueError, match="also an operand"):
        pymm.matmul(x, x, x)
    with pytest.raises(NotImplementedError, match="not transposed"):
        pymm.matmul(x, x, trans_a=True)
    with pytest.raises(NotImplementedError, match="stream="):
        pymm.matmul(x, x, stream=3)
    with pytest.raises(NotImplementedError, match="does not convert"):
        pymm.matmul(x, pymm.scatter(a, [0, 1], dtype="f64"))
    with pytest.raises(ValueError, match="needs c"):
        pymm.matmul(x, x, beta=2)
    with pytest.raises(ValueError, match="not that of a matrix"):
        pymm.scatter(np.zeros(3, np.float32), [0, 1])
    with pytest.raises(NotImplementedError, match="devices hold"):
        pymm.scatter(np.zeros((3, 3), np.int64), [0, 1])
    with pytest.raises(TypeError, match="lies on a device already"):
        pymm.scatter(cuda.empty((4, 4), np.dtype(np.float32)), [0, 1])
    simulator.set_devices(1)
