"""`pymm.prepare`: products with an operand that was split are those of the operand itself."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from sequences import every_kernel

import pymm
from pymm.runtime.launch_cache import cache

SLUG = "wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2"


@pytest.fixture
def current(cuda):
    """The device, with its context current for PyCUDA."""
    from pycuda import driver

    context = driver.Device(cuda.device.index).retain_primary_context()
    context.push()
    yield cuda
    cache.clear()
    gc.collect()
    context.pop()


def on_gpu(values):
    from pycuda.gpuarray import GPUArray

    array = GPUArray(values.shape, values.dtype)
    array.set(values)
    return array


def normal(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.simulator
@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("shape", [(96, 40), (2, 64, 70)])
def test_products_are_those_of_the_operand(current, shape, trans_b):
    """Also where it cannot be split, where the other one cannot, and in a plan."""
    *stack, k, n = shape
    options = dict(precision="emulated", config=SLUG, trans_b=trans_b)
    with every_kernel():
        for spoiled in (None, "a", "b"):
            a, b = normal(1, *stack, 33, k), normal(2, *shape)
            if spoiled:
                {"a": a, "b": b}[spoiled].flat[7] = np.inf
            stored = np.ascontiguousarray(b.swapaxes(-1, -2)) if trans_b else b
            x, y = on_gpu(a), on_gpu(stored)
            prepared = pymm.prepare(y, trans_b=trans_b)
            assert prepared.split is not None and prepared.shape == stored.shape
            wanted = pymm.matmul(x, y, **options).get()
            for _ in range(2):  # the second one is cached
                assert np.array_equal(pymm.matmul(x, prepared, **options).get(), wanted, True)
            plan = pymm.plan(x, prepared, **options)
            assert np.array_equal(plan().get(), wanted, True)
            other = on_gpu(2 * a)
            got = pymm.matmul(other, prepared, out=on_gpu(np.zeros_like(wanted)), **options)
            assert np.array_equal(got.get(), 2 * wanted, True)
            with np.errstate(invalid="ignore"):
                finite = np.isfinite(a.astype(float) @ b.astype(float))
            assert (np.isfinite(wanted) == finite).all()


@pytest.mark.simulator
def test_it_is_read_instead_of_the_operand_and_freed(current):
    """What was split stays as it is, and goes with its owner."""
    a, b = normal(1, 40, 64), normal(2, 64, 40)
    options = dict(precision="emulated", config=SLUG)
    with every_kernel():
        x, y = on_gpu(a), on_gpu(b)
        prepared = pymm.prepare(y)
        before = pymm.matmul(x, prepared, **options).get()
        y.set(3 * b)
        assert np.array_equal(pymm.matmul(x, prepared, **options).get(), before)
        assert np.allclose(pymm.matmul(x, y, **options).get(), 3 * before, rtol=1e-4, atol=1e-4)
        assert len(cache)
        del prepared
        gc.collect()
        assert not len(cache)


@pytest.mark.simulator
def test_devices_that_split_nothing_have_the_operand_itself(current):
    a, b = normal(1, 5, 70), normal(2, 70, 6)
    prepared = pymm.prepare(on_gpu(b))
    assert prepared.split is None
    for precision in ("emulated", "ieee"):
        got = pymm.matmul(on_gpu(a), prepared, precision=precision).get()
        assert np.allclose(got, a @ b, rtol=1e-5, atol=1e-5)


def test_what_is_refused(current):
    b = on_gpu(normal(2, 70, 6))
    with pytest.raises(TypeError, match="copy b there first"):
        pymm.prepare(np.ones((3, 4), np.float32))
    with pytest.raises(TypeError, match="only float32 is split"):
        pymm.prepare(on_gpu(np.ones((3, 4))))
    with pytest.raises(ValueError, match="must be a matrix"):
        pymm.prepare(on_gpu(np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="trans_b is 'X'"):
        pymm.prepare(b, trans_b="X")
    prepared = pymm.prepare(b)
    with pytest.raises(TypeError, match="made for the place of b"):
        pymm.matmul(prepared, b)
    with pytest.raises(ValueError, match="prepared with trans_b=False"):
        pymm.matmul(on_gpu(normal(1, 5, 6)), prepared, trans_b=True)


@pytest.mark.simulator
def test_what_was_split_keeps_the_type(current):
    """Of the types that use it; and not where k is too small to split."""
    with every_kernel():
        x, y = on_gpu(normal(1, 33, 96)), on_gpu(normal(2, 96, 40))
        prepared = pymm.prepare(y)
        for precision, kept in (("emulated", True), ("f16x3", True), ("tf32x3", False)):
            told = pymm.explain(x, prepared, precision=precision)
            assert ("b was split before" in str(told)) is kept
            assert "b was split before" not in str(pymm.explain(x, y, precision=precision))
        short = pymm.prepare(on_gpu(normal(3, 40, 40)))
        told = pymm.explain(on_gpu(normal(4, 33, 40)), short, precision="emulated")
        assert told.problem.dtype == "f32" and "k is below 64" in str(told)
