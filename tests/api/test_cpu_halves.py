"""float16 and bfloat16 on the CPU: sums in float32, rounded once."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from products import integers

import pymm
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.core.reference import error_bound, finished, finished_bound, product

HALVES = {"f16": np.float16, "bf16": ml_dtypes.bfloat16}
EXTENT = st.sampled_from([1, 2, 5, 6, 7, 15, 16, 17, 47, 48, 63, 64, 65, 100, 193])


def drawn(rng, shape, dtype):
    return rng.standard_normal(shape).astype(dtype)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(EXTENT, EXTENT, st.sampled_from([1, 2, 17, 64, 255, 256, 257, 700])),
    st.sampled_from(["f16", "bf16", "f16_f32", "bf16_f32"]),
    st.sampled_from(["NN", "NT", "TN", "TT"]),
    st.sampled_from([(1.0, 0.0), (-0.7, 1.3), (2.0, 1.0), (0.0, 0.5)]),
    st.integers(0, 3),
    st.sampled_from([1, 1, 3]),
)
def test_against_float64(shape, kind, layout, scalars, gap, batch):
    """Any layout, batch, gap between rows and scalars, within the bound of the type."""
    row, (m, n, k), (alpha, beta) = DTYPES[kind], shape, scalars
    problem = Problem(m, n, k, kind, layout[0] == "T", layout[1] == "T")
    rng = np.random.default_rng((m, n, k, gap))
    a, b = (
        drawn(rng, (batch, *stored, one + gap), row.element)[..., :one]
        for *stored, one in (
            (k, m) if problem.trans_a else (m, k),
            (n, k) if problem.trans_b else (k, n),
        )
    )
    c = drawn(rng, (batch, m, n), row.out)
    whole = np.full((batch, m, n + gap), 7, row.out)
    out = whole[..., :n]
    options = dict(trans_a=problem.trans_a, trans_b=problem.trans_b, device="cpu")
    if beta:
        options |= dict(c=c, beta=beta)
    assert pymm.matmul(a, b, out, alpha=alpha, **options) is out
    for s in range(batch):
        given = problem, a[s], b[s], c[s], alpha, beta
        error = abs(out[s].astype(float) - product(*given))
        assert (error <= error_bound(*given)).all()
    assert (whole[..., n:] == 7).all()


@pytest.mark.parametrize("half", HALVES)
def test_sums_are_rounded_once(half):
    """A sum that float32 holds exactly, over several blocks along k, and that 16 bits do not hold
    on the way: it comes out as if it had been rounded at the end.
    """
    dtype, k = HALVES[half], 3000
    a = np.ones((3, k), dtype)
    b = np.ones((k, 5), dtype)
    b[k // 2 :] = -1
    b[0, 1:] = 3
    exact = a.astype(float) @ b.astype(float)
    np.testing.assert_array_equal(pymm.matmul(a, b, device="cpu"), exact.astype(dtype))
    c = np.full((3, 5), 2049, np.float32).astype(dtype)
    got = pymm.matmul(a, b, c=c, beta=1, alpha=0.25, device="cpu")
    np.testing.assert_array_equal(got, (exact / 4 + c.astype(float)).astype(dtype))


@pytest.mark.parametrize("half", HALVES)
def test_every_number_is_widened_and_narrowed_as_ieee_says(half):
    """All 65536, times one; then numbers around every boundary between two of them, by alpha."""
    dtype = HALVES[half]
    every = np.arange(65536, dtype=np.uint16).view(dtype)
    one = np.ones((1, 1), dtype)
    wide = pymm.matmul(every[:, None], one, out_dtype="f32", device="cpu")[:, 0]
    np.testing.assert_array_equal(wide, every.astype(np.float32))
    same = pymm.matmul(every[:, None], one, device="cpu")[:, 0]
    known = ~np.isnan(every.astype(np.float32))
    np.testing.assert_array_equal(same.astype(np.float32), every.astype(np.float32))
    for scale in (1, 1 + 2**-11, 1 + 2**-11 + 2**-23, 1 - 2**-12, 1 + 2**-8, 1 + 2**-9, 1.75):
        alpha = float(np.float32(scale))
        got = pymm.matmul(every[known, None], one, alpha=alpha, device="cpu")[:, 0]
        with np.errstate(over="ignore"):
            wanted = (np.float32(alpha) * every[known].astype(np.float32)).astype(dtype)
        np.testing.assert_array_equal(got.astype(np.float32), wanted.astype(np.float32))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_epilogues(half, activation):
    """A bias of the result's type or float32, before one rounding."""
    dtype = HALVES[half]
    rng = np.random.default_rng(3)
    for (m, n, k), of_bias, order in itertools.product(
        [(7, 5, 3), (65, 97, 300)], (None, dtype, np.float32), "CF"
    ):
        if of_bias is None and activation is None:
            continue
        a, b = drawn(rng, (m, k), dtype), drawn(rng, (k, n), dtype)
        bias = None if of_bias is None else drawn(rng, n, of_bias)
        out = np.zeros((m, n), dtype, order)
        pymm.matmul(a, b, out, bias=bias, activation=activation, device="cpu")
        problem, name = Problem(m, n, k, half), activation or ""
        wanted = finished(product(problem, a, b, None, 1.0, 0.0), name, bias)
        bound = finished_bound(problem, a, b, activation=name, bias=bias)
        assert (abs(out.astype(float) - wanted) <= bound).all()


@pytest.mark.parametrize("half", HALVES)
def test_plans_explanations_and_symmetric_products(half):
    dtype = HALVES[half]
    a, b = integers((40, 30), dtype), integers((30, 50), dtype, seed=1)
    plan = pymm.plan(a, b, device="cpu")
    np.testing.assert_array_equal(plan().astype(float), (a.astype(float) @ b).astype(dtype))
    told = pymm.explain(a, b, device="cpu")
    assert told.problem.dtype == half and told.config.kernel.name == "blocked"
    for trans in (False, True):
        got = pymm.syrk(a, trans=trans, device="cpu", out_dtype="f32")
        wide = a.astype(np.float32)
        np.testing.assert_array_equal(got, wide.T @ wide if trans else wide @ wide.T)
        lower = np.full(got.shape, 5, dtype)
        pymm.syrk(a, lower, trans=trans, fill="lower", device="cpu")
        np.testing.assert_array_equal(lower, np.where(np.tri(len(got)), got, 5).astype(dtype))


@pytest.mark.parametrize("half", HALVES)
def test_long_products_are_rounded_once(half, monkeypatch):
    """In pieces, none of which ends before its sums are complete: the same bits."""
    monkeypatch.setattr("pymm.backends.cpu.pieces.Pace.budget", lambda self: 1e5)
    dtype = HALVES[half]
    rng = np.random.default_rng(5)
    a, b = drawn(rng, (300, 900), dtype), drawn(rng, (900, 210), dtype)
    cut = pymm.matmul(a, b, device="cpu:1")
    monkeypatch.undo()
    assert pymm.matmul(a, b, device="cpu:1").tobytes() == cut.tobytes()
