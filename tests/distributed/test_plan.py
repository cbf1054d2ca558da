"""Grids, volumes, the lower bound and the chooser of plans: no MPI."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymm.distributed.plan import (
    WIDEST,
    Grid,
    Plan,
    Rates,
    choose_grid,
    choose_panel,
    grids,
    lower_bound,
    volume,
)

#: A slow link, no latency, nothing hidden and free C: the products use all processes, and of equal
#: ones the volume decides.
SLOW_LINK = Rates(flops=1e9, bandwidth=1e8, latency=0.0, memory=1e30, overlap=0.0)

EXTENTS = st.integers(1, 5000)
SQUARE, RANK_K, DEEP = (1000, 1000, 1000), (10000, 10000, 128), (1000, 1000, 10**6)


def optimum(m: int, n: int, k: int, p: int) -> float:
    """The problem behind the bound, solved numerically. A process that makes mnk/p of the products
    accesses a, b and c elements of A, B and C with abc >= (mnk/p)^2 (Loomis and Whitney), and as an
    element of A takes part in n products, at least mk/p, kn/p and mn/p of them. For a given a the
    sum b + c is least at b = c or at one of their limits; the best a is found by search. What a
    process holds already is not moved.
    """
    own = np.array([m * k, k * n, m * n]) / p
    product = (m * n * k / p) ** 2
    low, high = np.log(own[0]), np.log(max(own[0], product / own[1] / own[2]))
    for _ in range(30):
        a = np.exp(np.linspace(low, high, 101))
        b = np.maximum(own[1], np.minimum(np.sqrt(product / a), product / a / own[2]))
        total = a + b + np.maximum(own[2], product / (a * b))
        at, reach = np.log(a[total.argmin()]), (high - low) / 10
        low, high = max(np.log(own[0]), at - reach), at + reach
    return float(total.min() - own.sum())


@pytest.mark.parametrize(
    "shape", [SQUARE, RANK_K, DEEP, (7, 900, 40000), (40000, 31, 31), (1, 1, 500), (64, 8, 1)]
)
@pytest.mark.parametrize("p", [1, 2, 4, 6, 8, 16, 64, 1024])
def test_the_closed_form_is_the_optimum(shape, p):
    assert lower_bound(*shape, p) == pytest.approx(optimum(*shape, p), rel=1e-6, abs=1e-6)


@given(EXTENTS, EXTENTS, EXTENTS, st.integers(1, 12), st.integers(1, 12), st.integers(1, 12))
def test_no_grid_is_below_the_bound(m, n, k, p, q, r):
    grid = Grid(p, q, r)
    assert volume(m, n, k, grid) >= lower_bound(m, n, k, grid.size) * (1 - 1e-9) - 1e-6


@given(EXTENTS, EXTENTS, EXTENTS, st.integers(1, 300))
def test_the_bound_does_not_depend_on_the_order_of_the_extents(m, n, k, p):
    assert lower_bound(m, n, k, p) == lower_bound(k, m, n, p) == lower_bound(n, m, k, p)


def test_the_volume_counts_what_each_process_lacks():
    """Every element of C owned by one process, the operands dealt out evenly and counted."""
    m, n, k = 24, 36, 48
    for p, q, r in [(1, 1, 1), (2, 3, 1), (3, 2, 2), (1, 4, 3), (4, 1, 1), (1, 1, 6)]:
        words = 0
        for _ in range(p * q * r):
            needed_a, needed_b = (m // p) * (k // r), (k // r) * (n // q)
            words += needed_a - needed_a // q + needed_b - needed_b // p
            words += (r - 1) * (m // p) * (n // q) // r
        assert words / (p * q * r) == pytest.approx(volume(m, n, k, Grid(p, q, r)))


def best_ratio(shape, p, layers=None):
    plan = choose_grid(*shape, p, 8, rates=SLOW_LINK, block=1, layers=layers)
    return plan.received / 8 / lower_bound(*shape, p)


@pytest.mark.parametrize(
    "shape, layers, ratios",
    [
        (SQUARE, 1, (1.135, 1.224, 1.333, 1.316, 1.556, 1.869, 2.276)),
        (SQUARE, None, (1.135, 1.224, 1.000, 1.097, 1.000, 1.059, 1.065)),
        (RANK_K, 1, (1.000, 1.035, 1.094, 1.000, 1.000, 1.000, 1.000)),
        ((10000, 10000, 32), 1, (1.000, 1.035, 1.094, 1.000, 1.000, 1.000, 1.000)),
        (DEEP, None, (1.000, 1.000, 1.000, 1.000, 1.000, 1.000, 1.000)),
    ],
)
def test_ratios_to_the_bound(shape, layers, ratios):
    """The best grids of 4, 6, 8, 16, 64, 256 and 1024 processes. The extents are divided evenly as
    far as blocks of one element allow."""
    found = [best_volume(shape, p, layers) for p in (4, 6, 8, 16, 64, 256, 1024)]
    assert found == pytest.approx(ratios, abs=6e-4)


def best_volume(shape, p, layers):
    """The least volume on all p processes / the bound."""
    all_used = (grid for grid in grids(p, layers) if grid.size == p)
    return min(volume(*shape, grid) for grid in all_used) / lower_bound(*shape, p)


@pytest.mark.parametrize("k", [32, 64, 128, 156])
@pytest.mark.parametrize("p", [4, 16, 64])
def test_large_and_shallow_products_reach_the_bound(p, k):
    assert best_ratio((10000, 10000, k), p) == pytest.approx(1.0)


@pytest.mark.parametrize("p", [8, 64])
def test_squares_reach_the_bound(p):
    assert best_ratio((1024, 1024, 1024), p) == pytest.approx(1.0)


@pytest.mark.parametrize("p", [2**i for i in range(3, 11)])
def test_squares_on_any_power_of_two_are_close_to_the_bound(p):
    assert best_ratio((4096, 4096, 4096), p) <= 1.14


def test_a_grid_must_fit_in_memory():
    """Layers hold C several times; with less memory there are fewer, with too little an error."""
    shape = (4096, 4096, 4096)
    free = choose_grid(*shape, 64, 8, rates=SLOW_LINK)
    assert free.grid == Grid(4, 4, 4)
    tight = choose_grid(*shape, 64, 8, memory=free.memory * 0.7, rates=SLOW_LINK)
    assert tight.memory <= free.memory * 0.7
    assert tight.seconds > free.seconds and tight.grid.r < 4
    with pytest.raises(MemoryError, match="needs at least .* a process and 1 kB is allowed"):
        choose_grid(*shape, 64, 8, memory=1000)


@given(
    *(st.integers(0, 700) for _ in range(3)), st.integers(1, 17), st.sampled_from([1, 7, 32, 64])
)
def test_a_plan_uses_no_more_processes_than_there_are(m, n, k, p, block):
    plan = choose_grid(m, n, k, p, 4, block=block)
    assert plan.grid.size <= p
    assert plan.panel % (block * math.lcm(plan.grid.p, plan.grid.q)) == 0
    assert plan.steps * plan.panel >= plan.depth > (plan.steps - 1) * plan.panel
    assert plan.rows <= m <= plan.rows * plan.grid.p
    assert plan.columns <= n <= plan.columns * plan.grid.q
    assert plan.depth <= k <= plan.depth * plan.grid.r
    assert 0 <= plan.seconds < math.inf


@given(
    *(st.integers(1, 60) for _ in range(3)),
    *(st.integers(1, 4) for _ in range(3)),
    st.integers(1, 9),
)
def test_received_words_are_those_that_others_own(m, n, k, p, q, r, block):
    """Counted from the owner of every element."""
    plan = Plan(m, n, k, Grid(p, q, r), block, block, 8)
    a, b, c = plan.layouts
    owner_a, owner_b, owner_c = (x.owner(*np.indices(x.shape)) for x in (a, b, c))
    for rank in range(p * q * r):
        p_own, q_own, r_own = a.coordinates(rank)
        needed_a = a.rows(p_own, r_own)[:, None], np.arange(*a.bounds(1, r_own))[None]
        needed_b = np.arange(*b.bounds(0, r_own))[:, None], b.columns(q_own, r_own)[None]
        words = (
            int((owner_a[needed_a] != rank).sum()),
            int((owner_b[needed_b] != rank).sum()),
            int((owner_c == rank).sum()) * (r - 1),
        )
        assert plan.received_by(rank) == words
        assert plan.rows >= needed_a[0].size and plan.columns >= needed_b[1].size
        assert plan.depth >= needed_a[1].size


@pytest.mark.parametrize("shape", [(2, 3, 2), (4, 4, 4), (1, 6, 1), (5, 1, 3), (1, 1, 7)])
def test_the_average_is_exact_where_blocks_divide_the_extents(shape):
    p, q, r = shape
    m, n, k = 6 * p * r, 3 * q * 2, 3 * r * math.lcm(p, q)
    plan = Plan(m, n, k, Grid(*shape), 3, 3, 1)
    total = sum(sum(plan.received_by(rank)) for rank in range(p * q * r))
    assert total == pytest.approx(plan.received * p * q * r)


def test_a_product_too_small_to_share_stays_on_one_process():
    assert choose_grid(8, 8, 8, 16, 8).grid == Grid(1, 1, 1)


def test_no_good_grid_leaves_processes_idle():
    """7 processes: 1 x 7 would move more than 2 x 3 saves in products."""
    slow = Rates(flops=1e9, bandwidth=1e7, latency=0.0, memory=1e30, overlap=0.0)
    plan = choose_grid(1200, 1200, 1200, 7, 8, rates=slow, block=1, layers=1)
    assert plan.grid == Grid(2, 3, 1)


def test_rates_decide_the_panel():
    """Wide panels where messages and passes over C are dear, narrow ones where all transfers but
    the first are hidden."""
    grid, shape = Grid(2, 2), (4096, 4096, 4096)
    hidden = Rates(flops=1e9, bandwidth=1e9, latency=0.0, memory=1e30, overlap=1.0)
    assert choose_panel(*shape, grid, 8, rates=hidden).panel == 128
    dear = Rates(flops=1e12, bandwidth=1e9, latency=1.0, memory=1e6, overlap=1.0)
    assert choose_panel(*shape, grid, 8, rates=dear).panel == WIDEST
    assert choose_panel(512, 512, 300, grid, 8, rates=dear).steps == 1
    little = choose_panel(*shape, grid, 8, memory=1, rates=dear)
    assert little.panel == 128


def test_the_time_of_one_process_is_that_of_its_product():
    plan = choose_grid(1000, 1000, 1000, 1, 8, rates=Rates(flops=1e9, memory=1e30))
    assert plan.seconds == pytest.approx(2.0)
    assert plan.received == plan.bound == 0 and plan.ratio == 1


def test_a_plan_describes_itself():
    text = choose_grid(1000, 1000, 1000, 8, 8, rates=SLOW_LINK, block=1).describe()
    assert "2 x 2 x 2" in text and "received / bound 1.000" in text and "GFLOP/s" in text


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((-1, 2, 2, 4, 8), "m, n, k are 0 or more, not -1, 2, 2"),
        ((2, 2, 2, 0, 8), "processes: 0"),
        ((2, 2, 2, 4, 0), "bytes of an element: 0"),
    ],
)
def test_bad_arguments_are_named(arguments, words):
    with pytest.raises(ValueError, match=words):
        choose_grid(*arguments)


@pytest.mark.parametrize("name", ["flops", "bandwidth", "latency", "memory", "overlap"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_rates_are_checked(name, value):
    with pytest.raises(ValueError, match=name):
        Rates(**{name: value})
