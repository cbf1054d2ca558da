"""Which type a product is computed in, and which its result has: promotion, `precision`,
`out_dtype`; on a device that has kernels for all of them.
"""

import ml_dtypes
import numpy as np
import pytest
from h200 import LIMITS
from host_device import CudaArray, HostDevice
from products import integers

import pymm
from pymm.core.dtypes import DTYPES, product_type
from pymm.core.dtypes import ELEMENTS as TYPES
from pymm.core.problem import Problem
from pymm.runtime.arguments import MatmulOptions
from pymm.runtime.arrays import ArraySpec
from pymm.runtime.layout import arrange

X, Y = integers((5, 7), np.float32, seed=1), integers((7, 6), np.float32, seed=2)


@pytest.fixture
def hopper():
    return HostDevice("cuda", **LIMITS)


def computed(device):
    """The types of the launches so far."""
    return [entry[1].dtype for entry in device.log if entry[0] == "launch"]


@pytest.mark.parametrize(
    "a, b, common",
    [
        ("f16", "f16", "f16"),
        ("bf16", "bf16", "bf16"),
        ("f16", "f32", "f32"),
        ("bf16", "f32", "f32"),
        ("f16", "f64", "f64"),
        ("bf16", "f64", "f64"),
        ("f32", "f64", "f64"),
    ],
)
def test_mixed_operands_promote_as_numpy_does(hopper, a, b, common):
    for left, right in ((a, b), (b, a)):
        x, y = X.astype(TYPES[left]), Y.astype(TYPES[right])
        result = pymm.matmul(x, y, device=hopper)
        assert result.dtype == TYPES[common] == np.result_type(x, y)
        np.testing.assert_array_equal(result.astype(float), X.astype(float) @ Y)
    assert computed(hopper) == [common, common]


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3", "f16x3"])
def test_precision_is_what_was_asked_for(hopper, precision):
    x, y = integers((700, 640), np.float32, seed=1), integers((640, 700), np.float32, seed=2)
    result = pymm.matmul(x, y, precision=precision, device=hopper)
    plan = pymm.plan(x, y, precision=precision, device=hopper)
    told = pymm.explain(x, y, precision=precision, device=hopper)
    kind = "f32" if precision == "ieee" else precision
    assert computed(hopper) == [kind] and result.dtype == np.float32
    assert plan.problem.dtype == told.problem.dtype == kind
    assert plan.problem.precision == precision and kind in plan.config.kernel.dtypes
    np.testing.assert_array_equal(plan(), x @ y)


@pytest.mark.parametrize("precision", ["tf32x3", "f16x3", "emulated"])
@pytest.mark.parametrize("extents", [(5, 7, 6), (1, 4096, 4096), (8, 65, 3)])
def test_what_is_quicker_in_float32_is_computed_in_it(hopper, precision, extents):
    """Products of few rows; transposed, in a stack, with a bias."""
    m, k, n = extents
    x, y = integers((m, k), np.float32, seed=1), integers((k, n), np.float32, seed=2)
    told = pymm.explain(x, y, precision=precision, device=hopper)
    assert told.problem.dtype == "f32" and "f32" in told.config.kernel.dtypes
    assert "in f32)" in str(told) or "k is below" in str(told)
    options = dict(precision=precision, device=hopper)
    np.testing.assert_array_equal(pymm.matmul(x, y, **options), x @ y)
    np.testing.assert_array_equal(pymm.matmul(x, y.T.copy(), trans_b=True, **options), x @ y)
    np.testing.assert_array_equal(pymm.matmul(np.stack([x, x]), y, **options), [x @ y] * 2)
    bias = integers((n,), np.float32, seed=3)
    np.testing.assert_array_equal(pymm.matmul(x, y, bias=bias, **options), x @ y + bias)
    assert set(computed(hopper)) == {"f32"}


@pytest.mark.parametrize("precision", ["tf32x3", "f16x3"])
def test_the_kernel_that_is_named_decides_the_type(hopper, precision):
    split = {"tf32x3": "wgmma_tf32x3", "f16x3": "wgmma_f16x3"}[precision]
    for kernel, kind in ((split, precision), ("pipelined", "f32")):
        plan = pymm.plan(X, Y, precision=precision, kernel=kernel, device=hopper)
        assert plan.problem.dtype == kind and plan.config.kernel_name == kernel
        again = pymm.plan(X, Y, precision=precision, config=plan.config, device=hopper)
        assert again.problem.dtype == kind and (again() == X @ Y).all()
    with pytest.raises(NotImplementedError, match=f"ping_pong cannot compute in {precision}"):
        pymm.matmul(X, Y, precision=precision, kernel="ping_pong", device=hopper)


def test_nothing_is_computed_less_exactly_unasked(hopper):
    """Whatever is tuned or named: float32 operands have float32 products."""
    assert computed(hopper) == []
    for options in (dict(), dict(alpha=2), dict(dtype="f32"), dict(out_dtype="f32")):
        pymm.matmul(X, Y, device=hopper, **options)
    assert set(computed(hopper)) == {"f32"}
    with pytest.raises(ValueError, match="computes in .*tf32"):
        config = pymm.plan(X, Y, precision="tf32", kernel="tensor", device=hopper).config
        pymm.matmul(X, Y, config=config, device=hopper)


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("spelling", ["f32", np.float32, np.dtype("f4"), "float32"])
def test_sums_of_halves_as_they_are(hopper, half, spelling):
    a, b = (np.full(shape, 9, TYPES[half]) for shape in ((3, 71), (71, 4)))
    wide = pymm.matmul(a, b, out_dtype=spelling, device=hopper)
    assert wide.dtype == np.float32 and (wide == 9 * 9 * 71).all()
    assert computed(hopper) == [f"{half}_f32"]
    narrow = pymm.matmul(a, b, out_dtype=half, device=hopper)
    assert narrow.dtype == TYPES[half] and computed(hopper)[1] == half


@pytest.mark.parametrize("half", ["f16", "bf16"])
@pytest.mark.parametrize("layout", ["C", "F"])
def test_an_out_of_float32_asks_for_sums(hopper, half, layout):
    """Host and device arrays, c of that type, and gaps between the rows."""
    a, b = X.astype(TYPES[half]), Y.astype(TYPES[half])
    c, out = np.full((5, 6), 1.5, np.float32), np.zeros((5, 6), np.float32, layout)
    assert pymm.matmul(a, b, out, c=c, beta=2, device=hopper) is out
    np.testing.assert_array_equal(out, X @ Y + 3)
    arrays = X.astype("f2"), Y.astype("f2"), np.zeros((9, 8), "f4")[2:7, 1:7]
    places = [CudaArray(array) for array in arrays]
    pymm.matmul(*places, device=hopper)
    np.testing.assert_array_equal(places[2].array, X @ Y)
    made = pymm.matmul(*places[:2], out_dtype="f32", device=hopper)
    assert type(made) is CudaArray and made.array.dtype == np.float32
    np.testing.assert_array_equal(made.array, X @ Y)
    assert computed(hopper) == [f"{half}_f32", "f16_f32", "f16_f32"]
    tall = np.stack([X, X + 1]).astype(TYPES[half])
    result = pymm.matmul(tall, b, out_dtype="f32", device=hopper)
    np.testing.assert_array_equal(result, np.stack([X, X + 1]) @ Y)


def test_a_wider_c_widens_the_factors_unless_the_result_is_asked_for():
    half, single = np.ones((3, 3), np.float16), np.ones((3, 3), np.float32)
    assert MatmulOptions(beta=1).check(half, half, c=single).kind == "f32"
    assert MatmulOptions(beta=1, out_dtype="f32").check(half, half, c=single).kind == "f16_f32"
    assert MatmulOptions(beta=1).check(half, half, single, c=single).kind == "f16_f32"
    assert MatmulOptions(out_dtype="f16").check(half, half, single).kind == "f16"
    assert MatmulOptions(beta=1).check(half, half, single, c=single.astype(float)).kind == "f64"
    assert MatmulOptions().check(half, single, single).kind == "f32"
    assert (
        MatmulOptions(dtype="f16", casting="unsafe").check(single, single, single).kind == "f16_f32"
    )


def test_types_of_products():
    single = np.dtype(np.float32)
    for name, dtype in TYPES.items():
        assert product_type(dtype) == product_type(dtype, "ieee", dtype) == name
    for name in DTYPES:
        problem = Problem(1, 1, 1, name)
        made = product_type(problem.numpy_dtype, problem.precision, problem.out_dtype)
        assert made == name
    with pytest.raises(NotImplementedError, match="float64 operands as float32: out_dtype= is"):
        product_type(TYPES["f64"], "ieee", single)
    with pytest.raises(NotImplementedError, match="bfloat16 operands as float16"):
        product_type(np.dtype(ml_dtypes.bfloat16), "ieee", np.dtype("f2"))


def test_distances_in_c_are_counted_in_its_own_elements():
    a = ArraySpec.packed((4, 5, 7), np.dtype("f2"))
    b = ArraySpec.packed((4, 7, 6), np.dtype("f2"))
    product = arrange(a, b, kind="f16_f32")
    (step,) = product.steps
    assert step.left.batch_stride == 35 and step.out.batch_stride == 30 and step.out.ld == 6
    assert step.problem.bytes == 4 * (2 * (35 + 42) + 4 * 30)
    folded = arrange(a, ArraySpec.packed((7, 6), np.dtype("f2")), kind="f16_f32")
    assert folded.problem.m == 20 and len(folded.steps) == 1
