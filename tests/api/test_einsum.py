"""`einsum` and `tensordot` beside NumPy's, on the CPU."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pymm

rng = np.random.default_rng(3)


def integers(*shape, dtype=np.float64):
    """An array whose products are exact."""
    return rng.integers(-4, 5, shape).astype(dtype)


@st.composite
def contractions(draw):
    """Subscripts of up to three labels of each kind, in any order, and the length of each."""
    letters = iter("abcdefghijkl")
    batch, rows, columns, summed = (
        [next(letters) for _ in range(draw(st.integers(0, most)))] for most in (2, 2, 2, 2)
    )
    mixed = [draw(st.permutations(x)) for x in (batch + rows + summed, batch + summed + columns)]
    result = draw(st.permutations(batch + rows + columns))
    lengths = {x: draw(st.integers(0, 5)) for x in batch + rows + columns + summed}
    return "{},{}->{}".format(*("".join(x) for x in (*mixed, result))), lengths


@settings(deadline=None, max_examples=150)
@given(contractions(), st.booleans(), st.booleans())
def test_any_contraction_is_numpys(contraction, strided, with_out):
    text, lengths = contraction
    left, right = text.split("->")[0].split(",")
    result = text.split("->")[1]
    a, b = (integers(*(lengths[x] for x in labels)) for labels in (left, right))
    if strided and a.ndim:
        a = np.repeat(a, 2, axis=a.ndim - 1)[..., ::2]
    wanted = np.einsum(text, a, b)
    np.testing.assert_array_equal(pymm.einsum(text, a, b, device="cpu"), wanted)
    if with_out and result == "".join(sorted(result, key=result.index)):
        out = np.full([lengths[x] for x in result], np.nan)
        try:
            assert pymm.einsum(text, a, b, out, device="cpu") is out
        except ValueError as error:
            assert "not neighbours" in str(error)
            assert np.isnan(out).all()
        else:
            np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize(
    "text, left, right",
    [
        ("ij,jk", (3, 4), (4, 5)),
        ("ji,kj", (4, 3), (5, 4)),
        ("ba,cb", (4, 3), (5, 4)),
        ("i,i", (7,), (7,)),
        ("i,j->ij", (3,), (4,)),
        ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 6)),
        ("...ij,jk->i...k", (2, 3, 3, 4), (4, 6)),
        ("...ij,...jk", (2, 3, 4), (4, 6)),
        ("i...,i...->...", (3, 2), (3, 2)),
        (" b h q d , b h k d -> b h q k ", (2, 3, 5, 4), (2, 3, 6, 4)),
        (",i->i", (), (4,)),
    ],
)
def test_kinds_of_subscripts(text, left, right):
    a, b = integers(*left), integers(*right)
    made = pymm.einsum(text, a, b, device="cpu")
    wanted = np.einsum(text, a, b)
    np.testing.assert_array_equal(made, wanted)
    assert np.shape(made) == np.shape(wanted) and isinstance(made, type(wanted))


def test_options_are_matmuls():
    a, b = integers(3, 4, dtype=np.float32), integers(4, 5, dtype=np.float32)
    made = pymm.einsum("ij,jk->ki", a, b, alpha=2, activation="relu", device="cpu")
    np.testing.assert_array_equal(made, np.maximum(2 * (a @ b), 0).T)
    assert made.flags.c_contiguous  # computed as it was asked for, not permuted afterwards
    assert pymm.einsum("ij,jk", a, b, dtype="f64", device="cpu").dtype == np.float64


def test_what_lies_together_is_not_copied(monkeypatch):
    """Operands reach matmul as views wherever their axes allow it."""
    seen = []
    original = pymm.einsum.__globals__["matmul"]
    monkeypatch.setitem(
        pymm.einsum.__globals__, "matmul", lambda *x, **o: (seen.append(x), original(*x, **o))[1]
    )
    a, b = integers(2, 3, 4, 5), integers(4, 5, 6)
    pymm.einsum("abij,ijk->abk", a, b, device="cpu")
    pymm.einsum("jkab,abi->jki", a, integers(4, 5, 6), device="cpu")
    for left, _ in seen:
        assert np.shares_memory(left, a)
    tall = integers(6, 5, 4)
    pymm.einsum("abij,kji->abk", a, tall, device="cpu")  # k in the order of one of them
    left, right = seen[-1]
    assert np.shares_memory(left, a) and not np.shares_memory(right, tall)


@pytest.mark.parametrize(
    "text, left, right, kind, said",
    [
        ("ij,jk,kl", (2, 2), (2, 2), ValueError, "names 3 operands"),
        ("ij,jk->il", (2, 2), (2, 2), ValueError, "no operand has 'l'"),
        ("ij,jk->ii", (2, 2), (2, 2), ValueError, "'i' is twice in the result"),
        ("ij,jk->ik", (2, 3), (4, 2), ValueError, "'j' has length 3 in a and 4 in b"),
        ("ij,jk->ik", (2,), (2, 2), ValueError, "'ij' names 2 axes of an array of 1"),
        ("i1,jk->ik", (2, 2), (2, 2), ValueError, "a letter"),
        ("ii,ij->ij", (2, 2), (2, 2), NotImplementedError, "diagonal"),
        ("ij,jk->k", (2, 2), (2, 2), NotImplementedError, "sum that operand"),
        ("...j,j->", (2, 2), (2,), NotImplementedError, "the result must have it"),
        ("...j,...j->...", (2, 2), (3, 2), ValueError, "'...' has length 2 in a and 3 in b"),
        (7, (2, 2), (2,), TypeError, "subscripts are text"),
    ],
)
def test_what_is_refused(text, left, right, kind, said):
    with pytest.raises(kind, match=said):
        pymm.einsum(text, integers(*left), integers(*right), device="cpu")


def test_bad_options_and_results_are_refused():
    a = integers(3, 3)
    with pytest.raises(TypeError, match="no trans_a="):
        pymm.einsum("ij,jk", a, a, trans_a=True)
    with pytest.raises(TypeError, match="a is a list"):
        pymm.einsum("ij,jk", [[1.0]], a)
    out = np.full((3, 4), np.nan)
    with pytest.raises(ValueError, match=r"out is \(3, 4\).*gives \(3, 3\)"):
        pymm.einsum("ij,jk", a, a, out)
    assert np.isnan(out).all()


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_tensordot_is_numpys(data):
    rank_a, rank_b = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4))
    count = data.draw(st.integers(0, min(rank_a, rank_b)))
    of_a = data.draw(st.permutations(range(rank_a)))[:count]
    of_b = data.draw(st.permutations(range(rank_b)))[:count]
    left = [data.draw(st.integers(1, 4)) for _ in range(rank_a)]
    right = [data.draw(st.integers(1, 4)) for _ in range(rank_b)]
    for i, j in zip(of_a, of_b, strict=True):
        right[j] = left[i]
    axes = [[i - rank_a * data.draw(st.booleans()) for i in of_a], list(of_b)]
    a, b = integers(*left), integers(*right)
    made = pymm.tensordot(a, b, axes, device="cpu")
    np.testing.assert_array_equal(made, np.tensordot(a, b, axes))


def test_tensordots_axes():
    a, b = integers(3, 4, 5), integers(4, 5, 6)
    np.testing.assert_array_equal(pymm.tensordot(a, b, device="cpu"), np.tensordot(a, b))
    np.testing.assert_array_equal(pymm.tensordot(a, b, (1, 0)), np.tensordot(a, b, (1, 0)))
    for axes, said in ((4, "axes=4"), (([0], [0, 1]), "1 axes of a and 2"), (([3], [0]), "axis 3")):
        with pytest.raises(ValueError, match=said):
            pymm.tensordot(a, b, axes)
    with pytest.raises(ValueError, match="twice"):
        pymm.tensordot(a, b, ([1, 1], [0, 0]))
