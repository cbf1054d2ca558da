"""How arrays lie in memory, told without touching it, against what NumPy says of them."""

import numpy as np
import pytest
from host_device import CudaArray
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from pymm.runtime.arguments import common_dtype, real, transposes
from pymm.runtime.arrays import ArraySpec, adopt, view_at
from pymm.runtime.layout import arrange, merge_axes, result_shape


def spec_of(array):
    return ArraySpec(array.shape, array.strides, array.dtype)


@st.composite
def strided(draw, least=2, most=4):
    """A view of a random array: axes permuted, cut, reversed, repeated."""
    shape = draw(st.lists(st.integers(1, 5), min_size=least, max_size=most))
    base = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    base = base.transpose(draw(st.permutations(range(len(shape)))))
    steps = draw(st.lists(st.sampled_from([1, 2, -1, -2]), min_size=least, max_size=len(shape)))
    return base[tuple(slice(None, None, step) for step in steps)]


@given(strided())
def test_stored_says_where_every_element_is(array):
    found = spec_of(array).stored()
    assume(found is not None)
    by_columns, ld = found
    matrix = array.reshape(-1, *array.shape[-2:])[0] if array.ndim > 2 else array
    matrix = matrix.T if by_columns else matrix
    rows, columns = matrix.shape
    assert ld >= columns
    size = array.itemsize
    first = array[(0,) * (array.ndim - 2)]
    again = as_strided(first.T if by_columns else first, (rows, columns), (ld * size, size))
    np.testing.assert_array_equal(again, first.T if by_columns else first)


@given(strided())
def test_a_unit_stride_and_increasing_lines_are_enough(array):
    down, across = array.strides[-2:]
    rows, columns = array.shape[-2:]
    plain = across == array.itemsize and down >= columns * array.itemsize
    if plain:
        assert spec_of(array).stored() == (False, down // array.itemsize if rows > 1 else columns)


@pytest.mark.parametrize(
    "view, expected",
    [
        (lambda x: x, (False, 6)),
        (lambda x: x.T, (True, 6)),
        (lambda x: x[1:3, 2:5], (False, 6)),
        (lambda x: x[1:3, 2:5].T, (True, 6)),
        (lambda x: x[::2], (False, 12)),
        (lambda x: x[:, :1], (False, 6)),
        (lambda x: x[:1], (False, 6)),
        (lambda x: x[:1, ::2], (True, 2)),
        (lambda x: x[::-1], None),
        (lambda x: x[:, ::2], None),
        (lambda x: x[:, ::-1], None),
        (lambda x: np.broadcast_to(x[0], (3, 6)), None),
        (lambda x: as_strided(x, (3, 4), (4, 4)), None),
        (lambda x: as_strided(x, (2, 3), (10, 4)), None),
        (lambda x: np.empty((0, 6), np.float32), (False, 6)),
        (lambda x: np.empty((6, 0), np.float32), (False, 1)),
    ],
)
def test_stored(view, expected):
    assert spec_of(view(np.zeros((4, 6), np.float32))).stored() == expected


@given(strided(least=1))
def test_bounds_hold_every_byte(array):
    low, high = spec_of(array).bounds
    start = array.__array_interface__["data"][0]
    assert (start + low, start + high) == np.lib.array_utils.byte_bounds(array)


@given(st.data())
def test_overlap_is_numpys(data):
    base = np.zeros((6, 8), np.float32)

    def part():
        rows, columns = (
            slice(*sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2))))
            for n in base.shape
        )
        return base[rows, columns]

    x, y = part(), part()
    assert adopt(x).overlaps(adopt(y)) == np.shares_memory(x, y)


def test_interleaved_halves_do_not_overlap():
    base = np.zeros((64, 64))
    left, right = adopt(base[:, :32]), adopt(base[:, 32:])
    assert not left.overlaps(right)
    assert left.overlaps(adopt(base[63:]))


@pytest.mark.parametrize(
    "view, expected",
    [
        (lambda x: x, True),
        (lambda x: x.T[::-1], True),
        (lambda x: np.broadcast_to(x[0], (3, 6)), False),
        (lambda x: as_strided(x, (3, 4), (4, 4)), False),
    ],
)
def test_distinct(view, expected):
    assert spec_of(view(np.zeros((4, 6), np.float32))).distinct() is expected


def test_adopt_reads_the_cuda_array_interface():
    array = np.zeros((4, 6), np.float32)[::2]
    operand = adopt(CudaArray(array, stream=7), "b")
    assert (operand.name, operand.kind, operand.stream) == ("b", "cuda", 7)
    assert operand.spec == spec_of(array)
    assert operand.address == array.__array_interface__["data"][0]


def test_adopt_of_an_empty_array_whose_address_is_none():
    array = CudaArray(np.zeros((0, 6), np.float32))
    array.__cuda_array_interface__ |= dict(data=(None, False), strides=None)
    assert adopt(array).spec == ArraySpec((0, 6), (24, 4), np.dtype(np.float32))


def test_view_at_keeps_the_owner():
    owner = np.arange(6.0)
    view = view_at(
        owner.__array_interface__["data"][0] + 8, ArraySpec((2,), (16,), owner.dtype), owner
    )
    del owner
    np.testing.assert_array_equal(view, [1.0, 3.0])


@pytest.mark.parametrize("order", ["=", "<", ">"])
def test_common_dtype_is_native(order):
    named = (("a", np.dtype(order + "f4")), ("b", np.dtype(order + "f8")))
    found = common_dtype(named, None, "safe")
    assert found == np.dtype(np.float64) and found.isnative


@pytest.mark.parametrize(
    "flag, expected",
    [(True, True), (False, False), (1, True), ("T", True), ("n", False), ("C", True)],
)
def test_transposes(flag, expected):
    assert transposes(flag, "trans_a") is expected


@pytest.mark.parametrize("value", [2, 2.0, True, np.float32(2), np.int8(2), np.float64(2)])
def test_real(value):
    assert real(value, "alpha") == float(value)


# Stacks


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(-8, 8), st.integers(-8, 8)), max_size=4))
def test_merged_axes_walk_the_same_way(axes):
    def walk(axes):
        places = [(0, 0)]
        for extent, x, y in axes:
            places = [(p + i * x, q + i * y) for p, q in places for i in range(extent)]
        return places

    assert walk(merge_axes(axes)) == walk(axes)


def launches(a, b, out=None):
    shape = result_shape(a.shape, b.shape)
    out = np.empty(shape) if out is None else out
    return arrange(spec_of(a), spec_of(b), spec_of(out)).steps


def test_stacks_need_few_launches():
    x = np.zeros((5, 7, 4, 3))
    assert [s.problem.batch for s in launches(x, np.zeros((5, 7, 3, 2)))] == [35]
    assert [s.problem.batch for s in launches(x, np.zeros((7, 3, 2)))] == [7] * 5
    assert [s.problem.batch for s in launches(x[:, ::-1], np.zeros((5, 7, 3, 2)))] == [5] * 7
    assert len(launches(x[::-1, ::-1], np.zeros((5, 7, 3, 2)))) == 35


def test_a_stack_against_one_matrix_is_one_tall_product():
    (step,) = launches(np.zeros((5, 7, 4, 3)), np.zeros((3, 2)))
    assert (step.problem.m, step.problem.batch) == (5 * 7 * 4, 1)
    (step,) = launches(np.zeros((5, 8, 3))[:, :4], np.zeros((3, 2)))
    assert (step.problem.m, step.problem.batch) == (4, 5)


def test_matrices_that_share_a_place_are_not_written_at_once():
    x = np.broadcast_to(np.zeros((1, 1, 1)), (9, 1, 1))
    assert [s.problem.batch for s in launches(x, x, x)] == [1] * 9


def test_out_by_columns_is_the_transposed_product():
    a, b = spec_of(np.zeros((3, 4))), spec_of(np.zeros((4, 5)))
    product = arrange(a, b, spec_of(np.zeros((3, 5), order="F")))
    assert product.swapped
    assert (product.problem.m, product.problem.n, product.problem.layout) == (5, 3, "TT")
