"""How products are cut: pure arithmetic."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pymm.blocked.plan import PITCH, Rates, Tiling, Work, best_tiling, least_room
from pymm.blocked.sizes import bytes_of, shown

RATES = Rates(up=20e9, down=20e9, flops=50e12, memory=4e12)

extents = st.integers(1, 400)
works = st.builds(
    Work,
    *(extents, extents, st.integers(0, 400)),
    size=st.sampled_from((2, 4, 8)),
    sum_size=st.sampled_from((4, 8)),
    reads_c=st.booleans(),
    a_by_columns=st.booleans(),
    b_by_columns=st.booleans(),
)


@settings(deadline=None, max_examples=60)
@given(works, st.integers(20_000, 2**22))
@example(Work(1, 1, 0, 4, 4), 10**6)
@example(Work(40, 50, 60, 4, 4), 1500)
@example(Work(40, 50, 60, 4, 4), 1535)
def test_a_tiling_fits_and_moves_what_it_says(work, room):
    tiling = best_tiling(work, room, RATES)
    if tiling is None:
        assert room < least_room(work)
        return
    assert tiling.device_bytes <= room
    assert (tiling.bytes_in, tiling.bytes_out) == walked(tiling)
    compulsory = (work.m + work.n) * work.k * work.size
    assert tiling.bytes_in >= compulsory + work.reads_c * tiling.bytes_out
    assert tiling.seconds(RATES) >= 2 * work.m * work.n * work.k / RATES.flops


def walked(tiling: Tiling) -> tuple[int, int]:
    """Bytes in and out, counted slice by slice in a model of the device's slots."""
    work, moved_in, moved_out = tiling.work, 0, 0
    held: dict[int, tuple] = {}
    for i in range(0, work.m, tiling.rows):
        rows = min(tiling.rows, work.m - i)
        for j in range(0, work.n, tiling.columns):
            columns = min(tiling.columns, work.n - j)
            for number, start in enumerate(range(0, work.k, max(tiling.depth, 1))):
                depth = min(tiling.depth, work.k - start)
                if not tiling.keep or held.get(number) != (i, start):
                    held[number] = (i, start)
                    moved_in += rows * depth * work.size
                moved_in += depth * columns * work.size
            moved_in += work.reads_c * rows * columns * work.sum_size
            moved_out += rows * columns * work.sum_size
    return moved_in, moved_out


@settings(deadline=None, max_examples=60)
@given(works.filter(lambda work: work.k > 0), st.integers(2**16, 2**22))
def test_no_tiling_moves_less_than_the_bound_of_its_kind(work, room):
    """The bound is for whole multiples; a tile of all that fits may be a little better off, for
    the slices that pass by take room, too: it never moves less than 0.9 of it.
    """
    tiling = best_tiling(work, room, RATES)
    if tiling is not None:
        bound = work.bound(room / work.size)
        assert tiling.bytes_in + tiling.bytes_out >= 0.9 * min(bound, work.bound(room / 4))


def test_the_bound_of_a_square_product_and_of_a_thin_one():
    n, elements = 60000, 2e9
    square = Work(n, n, n, 4, 4)
    assert square.bound(elements) == pytest.approx(4 * (2 * n**3 / math.sqrt(elements) + n * n))
    thin = Work(n, n, 128, 4, 4, reads_c=True)
    assert thin.bound(elements) == pytest.approx(4 * (2 * 128 * n + 2 * n * n))


def test_sixty_thousand_in_eight_gigabytes():
    """What the project's goal G7 names: at most 1.6 times the bound, 0.93 of the kernel's rate."""
    work = Work(60000, 60000, 60000, 4, 4)
    tiling = best_tiling(work, 8 * 10**9, RATES)
    moved = tiling.bytes_in + tiling.bytes_out
    assert moved / work.bound(2e9) < 1.4
    assert 2 * 60000**3 / RATES.flops / tiling.seconds(RATES) > 0.93


def test_rows_on_the_device_start_at_multiples():
    tiling = best_tiling(Work(1001, 999, 777, 8, 8, a_by_columns=True), 10**6, RATES)
    for nbytes, pitch in (tiling.a_slice, tiling.b_slice, tiling.c_tile):
        assert pitch % PITCH == 0
        assert nbytes % pitch == 0


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("8GB", 8 * 10**9),
        ("512 MiB", 2**29),
        ("1.5kB", 1500),
        (7, 7),
        ("300", 300),
        ("2tib", 2**41),
    ],
)
def test_amounts_of_memory(text, nbytes):
    assert bytes_of(text) == nbytes


@pytest.mark.parametrize("wrong", ["8 apples", "", "-1GB", "GB", "1e9", 0, -5, "0"])
def test_what_is_no_amount_of_memory(wrong):
    with pytest.raises(ValueError, match="device_memory"):
        bytes_of(wrong)


@pytest.mark.parametrize("wrong", [1.5, True, None, [8]])
def test_what_is_no_kind_of_amount(wrong):
    with pytest.raises(TypeError, match="device_memory"):
        bytes_of(wrong)


def test_amounts_are_shown_with_a_unit():
    assert [shown(x) for x in (7, 1500, 8 * 10**9)] == ["7 bytes", "1.5 kB", "8 GB"]
