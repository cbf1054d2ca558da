"""Long products run in pieces: the same bits, and Ctrl-C is answered between two of them."""

from __future__ import annotations

import itertools
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pymm
from pymm.backends.cpu.pieces import Pace, pieces
from pymm.core.problem import Problem
from pymm.kernels import find_kernel

#: Blocks so small that products of a moment have many. Register tiles of 64 bytes suit every CPU.
CONFIGS = {
    "reordered": lambda size: dict(MB=16, NB=64, KB=16),
    "blocked": lambda size: dict(MB=48, NB=192, KB=128, TA=4, TB=64 // size),
}


def config_of(kernel, dtype=np.float32):
    return find_kernel(kernel, "cpu").config(CONFIGS[kernel](np.dtype(dtype).itemsize))


EXTENT = st.integers(1, 600)


@settings(max_examples=60, deadline=None)
@given(
    EXTENT,
    EXTENT,
    EXTENT,
    st.integers(1, 5),
    st.floats(1e4, 1e9),
    st.sampled_from([*CONFIGS]),
    st.sampled_from([1, 2, 64]),
)
def test_pieces_are_the_product(m, n, k, batch, budget, kernel, threads):
    """Every multiply-add is in one piece; pieces begin where blocks begin, and come in the order
    of k.
    """
    config, problem = config_of(kernel), Problem(m, n, k, batch=batch)
    blocks = config.as_dict()
    budgets = itertools.cycle([budget, budget / 3, budget * 5])
    done: dict[tuple, int] = {}
    work = 0
    for number, piece in enumerate(pieces(problem, config, threads, lambda: next(budgets))):
        if number == 500:
            return
        assert piece.count and piece.rows and piece.columns and piece.depth
        starts = piece.i % blocks["MB"], piece.j % blocks["NB"], piece.p % blocks["KB"]
        assert starts == (0, 0, 0)
        where = (piece.matrix, piece.count, piece.i, piece.rows, piece.j, piece.columns)
        assert done.get(where, 0) == piece.p
        done[where] = piece.p + piece.depth
        work += piece.work
    assert work == batch * m * n * k and set(done.values()) == {k}
    covered = np.zeros((batch, m, n), np.int8)
    for s, count, i, rows, j, columns in done:
        assert s + count <= batch and i + rows <= m and j + columns <= n
        covered[s : s + count, i : i + rows, j : j + columns] += 1
    assert (covered == 1).all()


@pytest.mark.parametrize("device", ["cpu:1", "cpu:2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", [*CONFIGS])
def test_pieces_leave_the_bits_of_one(kernel, dtype, device, monkeypatch):
    if device == "cpu:2":
        monkeypatch.setattr("pymm.backends.cpu.backend.usable_cores", lambda: 2)
    rng = np.random.default_rng(1)
    run = dict(kernel=kernel, config=config_of(kernel, dtype).slug, device=device)
    shapes = [(1, 300, 401, 517), (1, 50, 700, 200), (9, 60, 200, 130)]
    for (batch, m, n, k), layout in itertools.product(shapes, ("NN", "TT")):
        trans_a, trans_b = (letter == "T" for letter in layout)
        a = rng.standard_normal((batch, *((k, m) if trans_a else (m, k)))).astype(dtype)
        b = rng.standard_normal((batch, *((n, k) if trans_b else (k, n)))).astype(dtype)
        c = rng.standard_normal((batch, m, n)).astype(dtype)
        options = dict(trans_a=trans_a, trans_b=trans_b, **run)
        for more in (dict(), dict(c=c, alpha=-0.7, beta=1.3)):
            results = []
            for budget in (1e18, 1e6, 1.0):
                monkeypatch.setattr(Pace, "budget", lambda self, budget=budget: budget)
                results.append(pymm.matmul(a, b, **options, **more))
            for result in results[1:]:
                assert result.tobytes() == results[0].tobytes()


def test_pieces_leave_the_bits_of_one_symmetric_product(monkeypatch):
    a = np.random.default_rng(2).standard_normal((600, 500)).astype(np.float32)
    results = []
    for budget in (1e18, 1e6):
        monkeypatch.setattr(Pace, "budget", lambda self, budget=budget: budget)
        results.append(pymm.syrk(a, device="cpu:1"))
    assert results[0].tobytes() == results[1].tobytes()


def test_an_interrupt_arrives_before_a_long_product_has_ended():
    """The whole takes a third of a second on a quick core, the signal comes after a twentieth."""
    n = 2000
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-8, 9, (n, n)).astype(np.float64) for _ in range(2))
    out = np.zeros((n, n))
    expected = a @ b
    product = pymm.plan(a, b, out=out, device="cpu:1")

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            product()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert not np.array_equal(out, expected), "the signal was answered when all had been done"
    product()
    np.testing.assert_array_equal(out, expected)
