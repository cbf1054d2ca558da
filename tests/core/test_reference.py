"""The judge itself: products against exact arithmetic, bounds that hold and that are not idle."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymm.core import reference
from pymm.core.problem import Problem


@pytest.mark.parametrize("dtype, u", [("f32", 2.0**-24), ("f64", 2.0**-53)])
def test_gamma(dtype, u):
    """gamma_k = k u / (1 - k u) while k u < 1/2, and never negative or infinite."""
    assert reference.gamma(0, dtype) == 0
    assert reference.gamma(1, dtype) == pytest.approx(u, rel=1e-6)
    assert reference.gamma(1000, dtype) == float(Fraction(1000 * u) / (1 - Fraction(1000 * u)))
    values = [reference.gamma(k, dtype) for k in (1, 2, 2**20, 2**22)]
    assert values == sorted(values)
    assert reference.gamma(2**24, "f32") == 1.0
    with pytest.raises(ValueError, match="k=-1"):
        reference.gamma(-1, dtype)


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 5),
    n=st.integers(1, 5),
    k=st.integers(0, 40),
    ta=st.booleans(),
    tb=st.booleans(),
    dtype=st.sampled_from(["f32", "f64"]),
    alpha=st.sampled_from([1.0, -0.3, 0.0]),
    beta=st.sampled_from([0.0, 1.0, 0.7]),
    seed=st.integers(0, 99),
)
def test_bound_holds_for_any_order_of_summation(m, n, k, ta, tb, dtype, alpha, beta, seed):
    """Sums in the type itself, forwards, with beta C first or last, stay within the bound of the
    exact result.
    """
    p = Problem(m, n, k, dtype, ta, tb)
    generator, real = np.random.default_rng(seed), p.numpy_dtype.type
    a = generator.standard_normal((k, m) if ta else (m, k)).astype(real)
    b = generator.standard_normal((n, k) if tb else (k, n)).astype(real)
    c = generator.standard_normal((m, n)).astype(real)
    expected = reference.product(p, a, b, c, alpha, beta)
    bound = reference.error_bound(p, a, b, c, alpha, beta)
    left, right = reference.oriented(p, a, b)
    first, last = real(beta) * c, np.zeros((m, n), real)
    for term in range(k):
        product = left[:, term, None] * right[term]
        first = (first + real(alpha) * product).astype(real)
        last = (last + product).astype(real)
    last = real(alpha) * last + real(beta) * c
    assert (np.abs(first - expected) <= bound).all()
    assert (np.abs(last - expected) <= bound).all()
    exact = sum(
        (Fraction(float(left[0, t])) * Fraction(float(right[t, 0])) for t in range(k)), Fraction(0)
    ) * Fraction(float(real(alpha))) + Fraction(float(real(beta))) * Fraction(float(c[0, 0]))
    assert abs(Fraction(float(expected[0, 0])) - exact) <= Fraction(float(bound[0, 0]))


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("k", [1, 37, 515])
def test_bound_notices_a_missing_term(dtype, k):
    """A kernel that forgets the last of k products is outside of the bound, everywhere."""
    p = Problem(9, 11, k, dtype)
    generator = np.random.default_rng(k)
    a = generator.uniform(1, 2, (9, k)).astype(p.numpy_dtype)
    b = generator.uniform(1, 2, (k, 11)).astype(p.numpy_dtype)
    short = reference.product(p, a[:, :-1], b[:-1])
    bound = reference.error_bound(p, a, b)
    assert (np.abs(short - reference.product(p, a, b)) > bound).all()


def test_beta_zero_does_not_read_c():
    p = Problem(2, 3, 4)
    a, b = np.ones((2, 4), np.float32), np.ones((4, 3), np.float32)
    c = np.full((2, 3), np.nan, np.float32)
    assert (reference.product(p, a, b, c) == 4).all()
    assert np.isfinite(reference.error_bound(p, a, b, c)).all()


@pytest.mark.parametrize("k", [0, 1, 64, 4096, 65536, 262144, 2**24, 2**30])
def test_exact_integers_add_up_exactly(k):
    r = reference.exact_integers(k)
    assert 1 <= r <= 64
    assert k * r * r <= 2**24 or r == 1


def test_freivalds_signs_notice_every_single_change():
    """One changed element changes C x for every vector of signs; a row of noise for some."""
    x = reference.signs(50, 16, seed=3)
    assert set(np.unique(x)) == {-1.0, 1.0}
    generator = np.random.default_rng(0)
    c = generator.integers(-9, 10, (40, 50)).astype(np.float64)
    for _ in range(50):
        wrong = c.copy()
        row = generator.integers(40)
        wrong[row] += generator.integers(-1, 2, 50)
        assert ((wrong @ x != c @ x).any(axis=1) == (wrong != c).any(axis=1)).all()


def nearest_tf32(x):
    """11 significant bits, what lies in the middle away from zero."""
    unit = np.ldexp(1.0, np.frexp(x)[1] - 11)
    return np.copysign(np.floor(np.abs(x) / unit + 0.5) * unit, x)


def on_tensor_cores(pairs, k):
    """Sum of the products of `pairs` of matrices, 8 terms of one pair after the other, everything
    cut off below the largest's 25th bit and every sum below its 24th, and gathered in float32.
    """
    total = np.zeros((len(pairs[0][0]), pairs[0][1].shape[1]), np.float32)
    for first in range(0, k, 8):
        sums = np.zeros(total.shape)
        for left, right in pairs:
            part = slice(first, first + 8)
            terms = left[:, part, None] * right[None, part, :]
            terms = np.concatenate([sums[:, None], terms], axis=1)
            unit = np.ldexp(1.0, np.frexp(np.abs(terms).max(axis=1, keepdims=True))[1] - 25)
            sums = (np.trunc(terms / unit) * unit).sum(axis=1)
            unit = np.ldexp(1.0, np.frexp(sums)[1] - 24)
            sums = np.trunc(sums / unit) * unit
        total += sums.astype(np.float32)
    return total


@pytest.mark.parametrize("k", [1, 8, 37, 515])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", ["tf32", "tf32x3"])
def test_bounds_of_tf32_hold_and_notice_a_lost_term(dtype, positive, k):
    """Also where numbers lie as far from tf32's as they can, and all errors add up."""
    p = Problem(9, 7, k, dtype)
    generator = np.random.default_rng(k)
    a, b = (generator.standard_normal(s, np.float32) for s in ((9, k), (k, 7)))
    if positive:
        a, b = (1 + np.float32(2.0**-11 - 2.0**-23) * (1 + 0 * x) for x in (a, b))
    x, y = a.astype(float), b.astype(float)
    high, right = nearest_tf32(x), nearest_tf32(y)
    low, under = nearest_tf32(x - high), nearest_tf32(y - right)
    every = [(high, right)] if dtype == "tf32" else [(high, under), (low, right), (high, right)]
    expected, bound = reference.product(p, a, b), reference.error_bound(p, a, b)
    assert (np.abs(on_tensor_cores(every, k) - expected) <= bound).all()
    if dtype == "tf32x3" and k < 500:
        for lost in (0, 1):
            left = every[:lost] + every[lost + 1 :]
            assert (np.abs(on_tensor_cores(left, k) - expected) > bound).any()
    elif dtype == "tf32" and not positive and k < 37:
        rough = np.trunc(x * 2**7) / 2**7
        assert (np.abs(on_tensor_cores([(rough, right)], k) - expected) > bound).any()


@pytest.mark.parametrize("dtype", ["f16_f32", "bf16_f32"])
def test_results_in_float32_are_held_to_float32(dtype):
    """Rounding the result to the operands' type breaks the bound; adding in float32 does not."""
    p = Problem(9, 7, 37, dtype)
    generator = np.random.default_rng(1)
    shapes = ((9, 37), (37, 7))
    a, b = (generator.standard_normal(s, np.float32).astype(p.numpy_dtype) for s in shapes)
    expected, bound = reference.product(p, a, b), reference.error_bound(p, a, b)
    right = a.astype(np.float32) @ b.astype(np.float32)
    assert p.out_dtype == np.float32 and (np.abs(right - expected) <= bound).all()
    assert (np.abs(right.astype(p.numpy_dtype).astype(float) - expected) > bound).mean() > 0.8
    a, b = reference.exact_operands(p, ((64, 500), (500, 96)), generator)
    assert np.abs(a.astype(float)).max() > 1
    exact = a.astype(float) @ b.astype(float)
    assert (exact.astype(np.float32) == exact).all()
