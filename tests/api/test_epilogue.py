"""matmul with a bias and an activation: what they are added to, where they may lie, what is
refused, and calls and plans in turn with and without them.
"""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
from host_device import CudaArray, HostDevice
from hypothesis import given
from hypothesis import strategies as st
from products import integers, laid_out, products

import pymm
from pymm.core.epilogue import ACTIVATIONS
from pymm.core.reference import finished
from pymm.runtime.launch_cache import cache

NEAR, FAR = HostDevice("cpu"), HostDevice("simulator")
DEVICES = pytest.mark.parametrize("device", [NEAR, FAR], ids=["near", "far"])


def columns_of(b):
    return b.shape[-1] if b.ndim > 1 else 1


def relu(x):
    return np.where(x < 0, 0, x)


@DEVICES
@given(data=st.data())
def test_any_shapes_and_layouts(device, data):
    """Small integers: exact. A residual and the bias are added before the activation."""
    a, b = data.draw(products())
    dtype = np.result_type(a, b)
    product = np.matmul(a, b)
    bias = data.draw(laid_out((columns_of(b),), dtype, seed=7))
    c = data.draw(laid_out(product.shape, dtype, seed=5))
    out = np.full(product.shape, np.nan, dtype, order=data.draw(st.sampled_from("CF")))
    added = bias[0] if b.ndim == 1 else bias
    options = {"bias": bias, "activation": "relu", "device": device}
    np.testing.assert_array_equal(pymm.matmul(a, b, **options), relu(product + added))
    got = pymm.matmul(a, b, out, c=c, alpha=-2, beta=3, **options)
    assert got is out
    np.testing.assert_array_equal(out, relu(-2 * product + 3 * c + added))
    got = pymm.matmul(a, b, out, c=c, alpha=0, beta=1, bias=bias, device=device)
    np.testing.assert_array_equal(out, c + added)


@given(data=st.data())
def test_device_arrays_in_place(data):
    a, b = (x.astype(np.float64) for x in data.draw(products()))
    product = np.matmul(a, b)
    bias = data.draw(laid_out((columns_of(b),), seed=7))
    out = np.full(product.shape, np.nan, order=data.draw(st.sampled_from("CF")))
    x, y, z, w = (CudaArray(one) for one in (a, b, out, bias))
    pymm.matmul(x, y, z, bias=w, activation="relu", device=FAR)
    np.testing.assert_array_equal(out, relu(product + (bias[0] if b.ndim == 1 else bias)))


@DEVICES
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(device, activation):
    a, b = integers((7, 3)) / 8, integers((3, 5), seed=1) / 8
    got = pymm.matmul(a, b, activation=activation, device=device)
    np.testing.assert_allclose(got, finished(a @ b, activation), rtol=1e-14, atol=1e-300)


@DEVICES
def test_the_result_may_lie_where_the_bias_is(device):
    memory = integers(40)
    bias, a, b = memory[3:8], integers((4, 6), seed=1), integers((6, 5), seed=2)
    out = memory[:20].reshape(4, 5)
    wanted = a @ b + bias
    pymm.matmul(a, b, out, bias=bias, device=device)
    np.testing.assert_array_equal(out, wanted)
    out[...] = integers((4, 5), seed=3)
    wanted = a @ b + out + memory[3:8]
    pymm.matmul(a, b, out, c=out, beta=1, bias=memory[3:8], device=device)
    np.testing.assert_array_equal(out, wanted)


@DEVICES
def test_types_of_the_bias(device):
    a, b = integers((3, 4), np.float32), integers((4, 5), np.float32)
    product = a @ b
    for dtype in (np.float16, np.float64, ml_dtypes.bfloat16):
        bias = integers(5, dtype, seed=3)
        got = pymm.matmul(a, b, bias=bias, device=device)
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, product + bias.astype(np.float32))
    with pytest.raises(TypeError, match="cannot cast bias from float64 to float32"):
        pymm.matmul(a, b, bias=np.zeros(5), casting="safe", device=device)
    np.testing.assert_array_equal(
        pymm.matmul(a, b, bias=np.arange(5), device=device), product + np.arange(5)
    )
    unaligned = np.zeros(21, np.uint8)[1:].view(np.float32)
    unaligned[...] = 3
    np.testing.assert_array_equal(pymm.matmul(a, b, bias=unaligned, device=device), product + 3)


def test_types_of_the_bias_on_a_device():
    a, b = (CudaArray(integers(shape, np.float32)) for shape in ((3, 4), (4, 5)))
    bias = CudaArray(integers(5, np.float64))
    with pytest.raises(NotImplementedError, match="bias is float64 and the product float32"):
        pymm.matmul(a, b, bias=bias, device=FAR)
    with pytest.raises(TypeError, match="bias is a NumPy array on the host"):
        pymm.matmul(a, b, bias=integers(5, np.float32), device=FAR)


WRONG = [
    (
        {"activation": "tanh"},
        ValueError,
        "activation='tanh' is none of 'relu', 'gelu', 'gelu_tanh'",
    ),
    ({"activation": ""}, ValueError, "activation='' is none of"),
    ({"activation": 1}, ValueError, "activation=1 is none of"),
    ({"activation": ["relu"]}, ValueError, "is none of"),
    ({"bias": np.zeros(4)}, ValueError, r"bias has shape \(4,\), and the result 5 columns"),
    ({"bias": np.zeros((1, 5))}, ValueError, r"of shape \(5,\)"),
    ({"bias": np.zeros((3, 5))}, ValueError, r"of shape \(5,\)"),
    ({"bias": np.zeros(5, complex)}, TypeError, "cannot cast bias from complex128 to float64"),
    ({"bias": 1.0}, ValueError, r"bias has shape \(\), and the result 5 columns"),
    ({"bias": object()}, TypeError, "bias is a object, not an array"),
]


@DEVICES
@pytest.mark.parametrize("wrong, error, words", WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_is_wrong_is_said_before_anything_is_written(device, wrong, error, words):
    a, b, out = integers((3, 4)), integers((4, 5)), np.full((3, 5), 7.0)
    for call in (pymm.matmul, pymm.plan, pymm.explain):
        with pytest.raises(error, match=words):
            call(a, b, out, device=device, **wrong)
    assert (out == 7).all()


def test_syrk_has_none():
    a = integers((3, 4))
    for wrong in ({"activation": "relu"}, {"bias": np.zeros(3)}):
        for call in (pymm.syrk, pymm.plan_syrk, pymm.explain_syrk):
            with pytest.raises(TypeError, match=next(iter(wrong))):
                call(a, device=NEAR, **wrong)


@DEVICES
def test_plans(device):
    a, b, bias = integers((3, 4)), integers((4, 5)), integers(5, seed=3)
    plan = pymm.plan(a, b, bias=bias, activation="relu", device=device)
    for seed in range(3):
        bias[...] = integers(5, seed=seed)
        np.testing.assert_array_equal(plan(), relu(a @ b + bias))
    loaded = sum(entry[0] == "load" for entry in device.log)
    assert plan.resources.registers == 32  # of the kernel that runs: no other is loaded for it
    assert sum(entry[0] == "load" for entry in device.log) == loaded
    other = integers(5, seed=9)
    np.testing.assert_array_equal(plan(bias=other), relu(a @ b + other))
    other += 1
    np.testing.assert_array_equal(plan(), relu(a @ b + other))
    np.testing.assert_array_equal(plan(2 * a, b), relu(2 * a @ b + other))
    with pytest.raises(ValueError, match="the plan was made for bias of shape"):
        plan(bias=integers(10)[::2])
    with pytest.raises(ValueError, match="bias has shape"):
        plan(bias=integers(4))
    with pytest.raises(ValueError, match="the plan was made without a bias"):
        pymm.plan(a, b, device=device)(bias=bias)
    np.testing.assert_array_equal(plan(), relu(2 * a @ b + other))


def test_a_plan_owns_its_bias():
    a, b = integers((3, 4)), integers((4, 5))
    plan = pymm.plan(a, b, bias=np.arange(5.0), device=NEAR)
    others = [np.full(5, 100.0) for _ in range(50)]
    np.testing.assert_array_equal(plan(), a @ b + np.arange(5))
    del others


def test_calls_in_turn_are_told_apart():
    """On NumPy's memory a launch is cached by its arrays and options: each has its own."""
    cache.clear()
    a, b, out = integers((6, 4)), integers((4, 5), seed=1), np.empty((6, 5))
    first, second = integers(5, seed=2), integers(5, seed=3)
    variants = [
        {},
        {"activation": "relu"},
        {"bias": first},
        {"bias": first, "activation": "relu"},
        {"bias": second, "activation": "relu"},
        {"bias": first[::-1], "activation": "relu"},
        {"activation": "silu"},
    ]
    for turn in range(3):
        first += turn
        for options in (*variants, *reversed(variants)):
            pymm.matmul(a, b, out, device="cpu:1", **options)
            sums = a @ b + options.get("bias", 0)
            wanted = finished(sums, options.get("activation", ""))
            np.testing.assert_allclose(out, wanted, rtol=1e-14, atol=0)
    assert len(cache) == len(variants) - 1  # reversed elements are packed first: not cached


def test_a_cached_launch_reads_what_the_bias_holds_and_other_arrays_at_its_place():
    cache.clear()
    a, b, out = integers((6, 4)), integers((4, 5), seed=1), np.empty((6, 5))
    memory = np.zeros(64)
    for start in (0, 5, 0, 3):
        bias = memory[start : start + 5]
        for seed in range(2):
            bias[...] = integers(5, seed=seed)
            pymm.matmul(a, b, out, bias=bias, device="cpu:1")
            np.testing.assert_array_equal(out, a @ b + bias)
        del bias


def test_a_cached_launch_keeps_no_bias_alive():
    cache.clear()
    a, b, out, bias = integers((6, 4)), integers((4, 5)), np.empty((6, 5)), np.zeros(5)
    pymm.matmul(a, b, out, bias=bias, device="cpu:1")
    gone = weakref.ref(bias)
    assert len(cache) == 1
    del bias
    gc.collect()
    assert gone() is None


@DEVICES
def test_a_batch_has_one_bias(device):
    a, b, bias = integers((2, 3, 6, 4)), integers((4, 5), seed=1), integers(5, seed=2)
    for order in "CF":
        out = np.empty((2, 3, 6, 5), order=order)
        pymm.matmul(a, b, out, bias=bias, device=device)
        np.testing.assert_array_equal(out, a @ b + bias)
    out = np.empty((2, 3, 5, 6)).swapaxes(-1, -2)  # every matrix column-major
    pymm.matmul(a, b, out, bias=bias, device=device)
    np.testing.assert_array_equal(out, a @ b + bias)


def test_explain_says_that_it_is_fused():
    said = pymm.explain((4, 3), (3, 5), bias=(5,), activation="gelu", device=NEAR)
    assert said.epilogue.activation == "gelu" and said.epilogue.bias == np.float64
    line = "epilogue       gelu of the sum with a bias, fused into the store of C"
    assert line in str(said).splitlines()
    assert "epilogue" not in str(pymm.explain((4, 3), (3, 5), device=NEAR))
    relu_alone = pymm.explain((4, 3), (3, 5), activation="relu", device=NEAR)
    assert "epilogue       relu, fused into the store of C" in str(relu_alone)
    moved = pymm.explain((4, 3), (3, 5), bias=(5,), device=FAR)
    assert "bias: 40 bytes to the device, pageable, packed rows" in moved.copies
