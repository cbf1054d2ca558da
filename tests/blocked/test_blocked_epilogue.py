"""Epilogues of products in blocks and on several devices: once, after the last slice along k."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from host_device import CudaArray

import pymm
import pymm.simulator as simulator
from pymm.blocked import program
from pymm.core.reference import finished

pytestmark = pytest.mark.simulator

KERNEL = "register_tile"

rng = np.random.default_rng(18)


@pytest.fixture
def devices(cuda, monkeypatch):
    monkeypatch.setattr(program, "STRIP", 16)
    simulator.set_devices(4)
    yield
    simulator.set_devices(1)


def integers(*shape, dtype=np.float32):
    return rng.integers(-3, 4, shape).astype(dtype)


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("budget", ["6kB", "20kB", "1MB"])
def test_one_device(cuda, budget, order):
    a, b, c, bias = integers(67, 90), integers(90, 53), integers(67, 53), integers(53)
    out = np.empty((67, 53), np.float32, order=order)
    options = {"device_memory": budget, "kernel": KERNEL, "bias": bias}
    said = pymm.explain(a, b, out, c=c, beta=-2, activation="relu", **options)
    assert "relu of the sum with a bias, fused into the store of a tile" in str(said)
    slices = max(share.tiling.counts[2] for share in said.shares)
    assert slices > 1 or budget == "1MB"
    assert all(share.device_bytes <= share.budget for share in said.shares)
    pymm.matmul(a, b, out, c=c, beta=-2, activation="relu", **options)
    np.testing.assert_array_equal(out, np.maximum(a @ b - 2 * c + bias, 0))
    bias[...] = -bias
    pymm.matmul(a, b, out, c=c, beta=-2, **options)
    np.testing.assert_array_equal(out, a @ b - 2 * c + bias)
    pymm.matmul(a, b, out, alpha=0, activation="relu", **options)
    np.testing.assert_array_equal(out, np.maximum(np.broadcast_to(bias, out.shape), 0))


@pytest.mark.parametrize("budget", ["20kB", "1MB"])
def test_sixteen_bits_are_rounded_once(cuda, budget):
    """Integers: relu of the exact sum in float32, rounded."""
    dtype = ml_dtypes.bfloat16
    a, b = (rng.integers(-9, 10, shape).astype(dtype) for shape in ((40, 300), (300, 24)))
    bias = rng.integers(-99, 99, 24).astype(np.float32)
    exact = a.astype(np.float64) @ b.astype(np.float64) + bias
    got = pymm.matmul(a, b, bias=bias, activation="relu", device="cuda", device_memory=budget)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, np.maximum(exact, 0).astype(np.float32).astype(dtype))


def test_a_batch_on_several_devices(devices):
    a, b, bias = integers(2, 37, 30), integers(30, 41), integers(41)
    for names in (["cuda:0", "cuda:1"], [0, 1, 2, 3]):
        got = pymm.matmul(a, b, bias=bias, activation="relu", device=names, kernel=KERNEL)
        np.testing.assert_array_equal(got, np.maximum(a @ b + bias, 0))
        out = np.empty((2, 41, 37), np.float32).swapaxes(1, 2)
        pymm.matmul(a, b, out, bias=bias, device=names, kernel=KERNEL)
        np.testing.assert_array_equal(out, a @ b + bias)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_matrices_that_lie_on_several_devices(devices, count):
    names = list(range(count))
    a, b, bias = integers(65, 50), integers(50, 71), integers(71)
    x, y = pymm.scatter(a, names), pymm.scatter(b, names)
    z = pymm.ShardedMatrix.empty((65, 71), np.float32, names)
    said = pymm.explain(x, y, z, bias=bias, activation="relu", kernel=KERNEL)
    assert "relu of the sum with a bias, fused into the store of C" in str(said)
    for turn in range(2):  # a bias that holds something else is another one
        bias += turn
        for options in ({}, {"bias": bias}, {"bias": bias, "activation": "relu"}):
            pymm.matmul(x, y, z, kernel=KERNEL, **options)
            wanted = finished(a @ b, options.get("activation", ""), options.get("bias"))
            np.testing.assert_array_equal(z.gather(), wanted)
    pymm.matmul(x, y, z, c=z, beta=1, activation="relu", kernel=KERNEL)
    np.testing.assert_array_equal(z.gather(), np.maximum(wanted + a @ b, 0))


def test_what_several_devices_refuse(devices):
    x = pymm.scatter(integers(8, 8), [0, 1])
    with pytest.raises(TypeError, match="on one device, and the product is on several"):
        pymm.matmul(x, x, bias=CudaArray(integers(8)))
    with pytest.raises(ValueError, match=r"of shape \(8,\)"):
        pymm.matmul(x, x, bias=np.zeros(7, np.float32))
    with pytest.raises(ValueError, match="is none of 'relu'"):
        pymm.matmul(x, x, activation="elu")
