"""Block-cyclic arithmetic against a map that deals the elements out one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymm.distributed.layout import BlockCyclic, numroc, pieces, product_layouts

small = st.integers(1, 9)
layouts = st.builds(
    BlockCyclic,
    st.tuples(st.integers(0, 40), st.integers(0, 40)),
    st.tuples(small, small),
    st.tuples(st.integers(1, 4), st.integers(1, 4)),
    st.integers(1, 4),
    st.integers(0, 1),
)


def dealt(layout: BlockCyclic) -> np.ndarray:
    """The owner of each element, as the definition says it: one element at a time."""
    (m, n), (mb, nb), (rows, columns) = layout.shape, layout.block, layout.grid
    owners = np.full((m, n), -1)
    for r in range(layout.layers):
        ends = [range(m), range(n)]
        if layout.layers > 1:
            ends[layout.axis] = range(*layout.bounds(layout.axis, r))
        for i in ends[0]:
            for j in ends[1]:
                p = (i - ends[0].start) // mb % rows
                q = (j - ends[1].start) // nb % columns
                assert owners[i, j] == -1  # no element is dealt twice
                owners[i, j] = (r * rows + p) * columns + q
    return owners


@given(layouts)
def test_every_element_has_the_owner_of_the_definition(layout):
    owners = dealt(layout)
    assert (owners >= 0).all()
    i, j = np.indices(layout.shape, sparse=True)
    assert np.array_equal(np.broadcast_to(layout.owner(i, j), layout.shape), owners)
    for rank in range(layout.size):
        p, q, r = layout.coordinates(rank)
        assert layout.rank(p, q, r) == rank
        rows, columns = layout.rows(p, r), layout.columns(q, r)
        assert layout.local_shape(p, q, r) == (len(rows), len(columns))
        mine = np.zeros(layout.shape, dtype=bool)
        mine[np.ix_(rows, columns)] = True
        assert np.array_equal(mine, owners == rank)
        assert (np.diff(rows) > 0).all() and (np.diff(columns) > 0).all()


@given(st.integers(0, 3000), st.integers(1, 99), st.integers(1, 12))
def test_numroc_deals_everything_and_the_first_process_gets_most(n, nb, count):
    shares = [numroc(n, nb, i, count) for i in range(count)]
    assert sum(shares) == n
    assert shares == sorted(shares, reverse=True)
    dealt_out = np.bincount(np.arange(n) // nb % count, minlength=count)
    assert shares == dealt_out.tolist()


@given(st.integers(0, 500), st.integers(1, 20), st.integers(1, 9))
def test_layers_share_the_blocks_evenly(n, block, layers):
    layout = BlockCyclic((n, 3), (block, 1), (2, 2), layers, 0)
    edges = [layout.bounds(0, r) for r in range(layers)]
    assert edges[0][0] == 0 and edges[-1][1] == n
    assert all(a[1] == b[0] for a, b in zip(edges, edges[1:], strict=False))
    assert all(first % block == 0 or first == n for first, _ in edges)
    blocks = [-(-(last - first) // block) for first, last in edges]
    assert max(blocks) - min(blocks) <= 1
    assert layout.bounds(1, layers - 1) == (0, 3)


def test_descriptor_is_that_of_the_transpose():
    layout = BlockCyclic((7, 11), (2, 3), (2, 2))
    assert layout.descriptor(5, 6).tolist() == [1, 5, 11, 7, 3, 2, 0, 0, 6]
    assert layout.descriptor(5, 0)[8] == 1  # an empty process still names a leading dimension
    with pytest.raises(ValueError, match="32 bits"):
        BlockCyclic((1 << 31, 1), (1, 1), (1, 1)).descriptor(0, 1)
    with pytest.raises(ValueError, match="layers"):
        BlockCyclic((4, 4), (1, 1), (1, 1), 2).descriptor(0, 1)


@pytest.mark.parametrize(
    "arguments, said",
    [
        (((-1, 2), (1, 1), (1, 1)), "shape has to be two integers from 0 on"),
        (((1, 2, 3), (1, 1), (1, 1)), "shape"),
        (((1, 2), (0, 1), (1, 1)), "block has to be two integers from 1 on"),
        (((1, 2), (1.5, 1), (1, 1)), "block"),
        (((1, 2), (1, 1), (1, 0)), "grid"),
        (((1, 2), (1, 1), 4), "grid"),
        (((1, 2), (1, 1), (1, 1), 0), "layers is 1 or more"),
        (((1, 2), (1, 1), (1, 1), 2, 2), "axis 0 or 1"),
    ],
)
def test_impossible_layouts_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        BlockCyclic(*arguments)


@given(
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 30),
    st.tuples(small, small, small),
    st.tuples(*[st.integers(1, 3)] * 3),
)
def test_layouts_of_a_product_fit_each_other(m, n, k, block, grid):
    a, b, c = product_layouts(m, n, k, block, grid)
    assert a.size == b.size == c.size
    for rank in range(a.size):
        p, q, r = a.coordinates(rank)
        assert a.bounds(1, r) == b.bounds(0, r)
        # What a rank keeps of C are rows that its place in the layer computes.
        own = c.coordinates(rank)
        assert own == (r * grid[0] + p, q, 0)
        assert set(c.rows(own[0])) <= set(a.rows(p))
        assert np.array_equal(c.columns(own[1]), b.columns(q))


@given(
    st.integers(1, 60), small, st.tuples(st.integers(1, 6), st.integers(1, 6)), st.integers(1, 30)
)
def test_pieces_are_all_of_k_once_each_of_one_owner(k, block, grid, width):
    """In A (1 x k, columns dealt to Q processes) and in B (k x 1, rows dealt to P)."""
    of_a = BlockCyclic((1, k), (1, block), (1, grid[1]))
    of_b = BlockCyclic((k, 1), (block, 1), (grid[0], 1))
    seen = []
    for piece in pieces(k, block, grid, width):
        held_a = of_a.columns(piece.q)[None, :]
        held_b = of_b.rows(piece.p)[:, None]
        part_a, part_b = (
            piece.part(held_a, 1, block, grid[1]),
            piece.part(held_b, 0, block, grid[0]),
        )
        assert part_a.shape == (1, piece.width) and part_b.shape == (piece.width, 1)
        assert np.array_equal(part_a[0], part_b[:, 0])
        assert 1 <= piece.width <= max(width, block)
        seen += part_a[0].tolist()
    assert sorted(seen) == list(range(k))
