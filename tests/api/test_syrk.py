"""pymm.syrk, plan_syrk, explain_syrk against NumPy in float64: what is around the kernels on a
device whose kernel is NumPy, numbers that hurt on the CPU's and the simulator's own.
"""

import numpy as np
import pytest
from host_device import HostDevice
from hypothesis import given
from hypothesis import strategies as st
from products import EXTENT, integers, laid_out

import pymm
from pymm.core.problem import Problem

NEAR, FAR = HostDevice("cpu"), HostDevice("simulator")
DEVICES = pytest.mark.parametrize("device", [NEAR, FAR], ids=["near", "far"])
#: Kernels that compile soon.
REAL = pytest.mark.parametrize(
    "own", [dict(device="cpu"), dict(device="cuda", kernel=3)], ids=["cpu", "cuda"]
)
FILLS = ("full", "lower", "upper")


def product(a, trans=False):
    a = np.asarray(a, np.float64)
    return a.swapaxes(-1, -2) @ a if trans else a @ a.swapaxes(-1, -2)


def written(n, fill):
    """Which elements of C `fill` writes."""
    ones = np.ones((n, n), bool)
    return {"full": ones, "lower": np.tril(ones), "upper": np.triu(ones)}[fill]


def symmetric(shape, dtype, seed=3):
    half = integers(shape, dtype, seed)
    return np.tril(half) + np.tril(half, -1).swapaxes(-1, -2)


@st.composite
def operands(draw, dtype=np.float64):
    stack = draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2))
    return draw(laid_out((*stack, draw(EXTENT), draw(EXTENT)), dtype))


@DEVICES
@given(a=operands(), trans=st.booleans())
def test_syrk_is_the_product_with_the_transpose(device, a, trans):
    result = pymm.syrk(a, trans=trans, device=device)
    np.testing.assert_array_equal(result, product(a, trans), strict=True)


@DEVICES
@given(data=st.data(), trans=st.booleans(), fill=st.sampled_from(FILLS))
def test_alpha_beta_and_out_of_any_order(device, data, trans, fill):
    a = data.draw(operands())
    expected = product(a, trans)
    c = symmetric(expected.shape, expected.dtype)
    out = data.draw(laid_out(expected.shape, np.float64, seed=5))
    if not out.flags.writeable:
        out = np.empty(expected.shape)
    alpha, beta = data.draw(st.sampled_from([(1, 0), (1, 1), (-2, 0.5), (0, 3), (2.5, 0)]))
    reads = {"c": out, "beta": beta} if beta else {}
    np.copyto(out, c)
    known = out.copy()
    assert pymm.syrk(a, out, trans=trans, alpha=alpha, fill=fill, device=device, **reads) is out
    wanted = alpha * expected + (beta * c if beta else 0)
    wanted = np.where(written(wanted.shape[-1], fill), wanted, known)
    np.testing.assert_array_equal(out, wanted)


@DEVICES
@given(data=st.data(), fill=st.sampled_from(FILLS))
def test_out_may_overlap_a_and_c(device, data, fill):
    side = data.draw(st.integers(1, 4))
    base = integers(60)
    start = data.draw(st.integers(0, 30))
    a = base[start : start + side * side].reshape(side, side)
    place = data.draw(st.integers(0, 40))
    out = base[place : place + side * side].reshape(side, side)
    if data.draw(st.booleans()):
        out = out.T
    wanted = np.where(written(side, fill), product(a), out)
    pymm.syrk(a, out, fill=fill, device=device)
    np.testing.assert_array_equal(out, wanted)


def test_c_may_be_another_array_where_all_is_written():
    a, c = integers((5, 3)), symmetric((5, 5), np.float64)
    known = c.copy()
    np.testing.assert_array_equal(pymm.syrk(a, c=c, beta=2, device=NEAR), product(a) + 2 * c)
    np.testing.assert_array_equal(c, known)


@REAL
def test_only_one_half_of_c_matters(own):
    a, c = integers((5, 3)), symmetric((5, 5), np.float64)
    spoilt = np.where(written(5, "lower"), c, np.nan)
    np.testing.assert_array_equal(pymm.syrk(a, c=spoilt, beta=1, **own), product(a) + c)
    for fill in ("lower", "upper"):
        half = written(5, fill)
        out = np.where(half, c, np.nan)
        pymm.syrk(a, out, c=out, beta=1, fill=fill, **own)
        np.testing.assert_array_equal(out, np.where(half, product(a) + c, np.nan))


# Numbers that hurt


@REAL
@pytest.mark.parametrize("trans", [False, True])
@pytest.mark.parametrize("fill", FILLS)
def test_nan_and_infinity_go_where_arithmetic_takes_them(own, trans, fill):
    a = np.random.default_rng(0).standard_normal((70, 67)).astype(np.float32)
    a[3, 5], a[66, 60] = np.nan, np.inf
    out = np.full((67, 67) if trans else (70, 70), np.nan, np.float32)
    with np.errstate(invalid="ignore"):
        expected = np.where(written(len(out), fill), product(a, trans), np.nan)
    pymm.syrk(a, out, trans=trans, fill=fill, **own)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4)


@REAL
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_result_is_symmetric_to_the_bit(own, dtype):
    generator = np.random.default_rng(1)
    for n, k in ((1, 1), (2, 5), (63, 64), (65, 3), (129, 70), (200, 1)):
        a = generator.standard_normal((n, k)).astype(dtype)
        for order in "CF":
            out = pymm.syrk(a, np.empty((n, n), dtype, order), **own)
            assert (out == out.T).all()
            np.testing.assert_allclose(out, product(a), rtol=1e-4, atol=1e-4)


@REAL
def test_nothing_to_add_up(own):
    a = np.empty((4, 0), np.float32)
    assert (pymm.syrk(a, **own) == 0).all()
    c = np.arange(16, dtype=np.float32).reshape(4, 4)
    out = c.copy()
    pymm.syrk(a, out, c=out, beta=2, fill="upper", **own)
    np.testing.assert_array_equal(out, np.where(written(4, "upper"), 2 * c, c))
    assert pymm.syrk(np.empty((0, 3)), **own).shape == (0, 0)
    assert pymm.syrk(np.empty((2, 0, 3)), trans=True, **own).shape == (2, 3, 3)
    spoilt = np.full((4, 3), np.nan, np.float32)
    assert (pymm.syrk(spoilt, alpha=0, **own) == 0).all()


# Errors: before anything is written


@pytest.mark.parametrize(
    "given, error, words",
    [
        (dict(fill="both"), ValueError, "'both' is none of full, lower, upper"),
        (dict(fill=1), ValueError, "none of"),
        (dict(trans=2), ValueError, "trans is 2"),
        (dict(fill="lower"), ValueError, "give it out="),
        (dict(out=np.zeros((3, 3))), ValueError, r"out has shape \(3, 3\)"),
        (dict(out=np.zeros((4, 4), np.float32), fill="upper"), TypeError, "product's own type"),
        (dict(beta=1), ValueError, "needs c"),
        (dict(c=np.zeros((4, 4))), ValueError, "c needs beta"),
        (
            dict(out=np.zeros((4, 4)), c=np.zeros((4, 4)), beta=1, fill="lower"),
            ValueError,
            "c must",
        ),
        (dict(trans_b=True), TypeError, "trans_b"),
    ],
)
def test_errors_name_what_was_asked(given, error, words):
    out = given.get("out")
    with pytest.raises(error, match=words):
        pymm.syrk(np.ones((4, 2)), device=NEAR, **given)
    assert out is None or not out.any()


def test_vectors_are_refused():
    with pytest.raises(ValueError, match=r"a has shape \(3,\); syrk takes a matrix"):
        pymm.syrk(np.ones(3), device=NEAR)
    with pytest.raises(TypeError, match="unknown argument trans_a"):
        pymm.plan_syrk(np.ones((3, 3)), trans_a=True)


# Plans and explanations


@DEVICES
def test_a_plan_computes_again(device):
    a, out = integers((6, 4)), np.full((6, 6), 7.0)
    plan = pymm.plan_syrk(a, out, fill="lower", device=device)
    half = written(6, "lower")
    np.testing.assert_array_equal(plan(), np.where(half, product(a), 7.0))
    a *= 2
    np.testing.assert_array_equal(plan(), np.where(half, product(a), 7.0))
    other = integers((6, 4), seed=9)
    np.testing.assert_array_equal(plan(other), np.where(half, product(other), 7.0))
    assert plan.problem == Problem(6, 6, 4, "f64", False, True, op="syrk_lower")
    with pytest.raises(TypeError, match="no operands or a; got 2"):
        plan(a, a)
    with pytest.raises(ValueError, match="make another plan"):
        plan(integers((4, 6)).T)


@DEVICES
def test_a_plan_adds_to_what_is_there(device):
    a, out = integers((5, 3)), np.zeros((5, 5))
    plan = pymm.plan_syrk(a, out, c=out, beta=1, fill="upper", device=device)
    plan()
    plan()
    np.testing.assert_array_equal(out, np.where(written(5, "upper"), 2 * product(a), 0))


@pytest.mark.simulator  # with the tiles that are its default
def test_an_explanation_says_what_is_computed():
    told = pymm.explain_syrk((64, 710), trans=True, dtype="f32", device="cuda", kernel=5)
    assert told.problem == Problem(710, 710, 64, "f32", True, False, op="syrk")
    assert told.grid == (1 + 1 + 2 + 2 + 3 + 3 + 4 + 4 + 5 + 5 + 6 + 6, 1, 1)  # 64 x 128
    assert "the lower half is computed and mirrored" in str(told)
    small = pymm.explain_syrk((64, 300), trans=True, dtype="f32", device="cuda", kernel=5)
    assert "both halves are computed" in str(small) and small.grid == (5 * 3, 1, 1)
    lower = pymm.explain_syrk(
        np.ones((9, 4)), np.ones((9, 9), order="F"), fill="lower", device="cpu"
    )
    assert lower.swapped and lower.problem.op == "syrk_upper"
