"""Shapes as people write them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pymm.core.problem import MAX_EXTENT, Problem
from pymm.core.shapes import (
    LAYOUTS,
    MAX_SHAPES,
    NAMED_SETS,
    POPULATIONS,
    class_problems,
    parse_shapes,
    population,
)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("1024", [(1024, 1024, 1024)]),
        ("8192x8192x128", [(8192, 8192, 128)]),
        ("1X2X3", [(1, 2, 3)]),
        ("2:5", [(2, 2, 2), (3, 3, 3), (4, 4, 4)]),
        ("250:10001:250", [(n, n, n) for n in range(250, 10001, 250)]),
        ("10x20x16:49:16", [(10, 20, 16), (10, 20, 32), (10, 20, 48)]),
        ("1:3x1:3x7", [(1, 1, 7), (1, 2, 7), (2, 1, 7), (2, 2, 7)]),
        ("5,3 5\n3x3x3", [(5, 5, 5), (3, 3, 3)]),
        (["5", "3,5", "4"], [(5, 5, 5), (3, 3, 3), (4, 4, 4)]),
        (str(MAX_EXTENT), [(MAX_EXTENT,) * 3]),
        ("o2-remainders", [(n, n, n) for n in range(1000, 1101)]),
    ],
)
def test_forms(text, shapes):
    assert parse_shapes(text) == shapes


@given(st.lists(st.tuples(*[st.integers(1, MAX_EXTENT)] * 3), min_size=1, max_size=20))
def test_what_is_spelled_out_comes_back_once_and_in_order(shapes):
    text = ",".join("x".join(map(str, shape)) for shape in shapes)
    assert parse_shapes(text) == list(dict.fromkeys(shapes))


@given(st.integers(1, 500), st.integers(1, 500), st.integers(1, 50))
def test_ranges_are_pythons_slices(start, length, step):
    expected = list(range(1000))[start : start + length : step]
    assert [m for m, _, _ in parse_shapes(f"{start}:{start + length}:{step}")] == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no shapes"),
        (" , ", "no shapes"),
        ([], "no shapes"),
        ("12x13", "'12x13' has 2 extents"),
        ("1x2x3x4", "4 extents"),
        ("0", "'0' in '0' is not between 1"),
        ("5x0x5", "'0' in '5x0x5'"),
        (str(MAX_EXTENT + 1), "not between 1 and"),
        ("-4", "'-4' in '-4' is no extent"),
        ("1e3", "no extent"),
        ("8192×8192×128", "no extent"),
        ("1x2x", "'' in '1x2x' is no extent"),
        ("large_ones", "one of the sets standard"),
        ("5:5", "empty range"),
        ("9:5", "empty range"),
        ("1:9:0", "steps of 0"),
        ("1:9:-1", "no extent"),
        ("::", "no extent"),
        ("1:999999", f"more than {MAX_SHAPES}"),
        ("1:200x1:200x1:200", f"more than {MAX_SHAPES}"),
        ("absent.csv", "absent.csv cannot be read"),
    ],
)
def test_anything_else_is_quoted(text, words):
    with pytest.raises(ValueError, match=words):
        parse_shapes(text)


def test_named_sets_parse_and_have_titles():
    for name, (title, text) in NAMED_SETS.items():
        shapes = parse_shapes(name)
        assert title and shapes == parse_shapes(text), name
    assert len(parse_shapes("o4-square")) == 40
    assert {k for _, _, k in parse_shapes("o4-rank-k")} == {32, 64, 128, 156}
    assert len(parse_shapes("spread")) == 12
    assert (1024, 1024, 64) in parse_shapes("cpu-table")


def test_a_csv_file(tmp_path):
    path = tmp_path / "My shapes, 2.CSV"
    path.write_text("\ufeffname,k,m,n\na,3,1,2\nb, 3 ,1,2\nc,6,4,5\n")
    assert parse_shapes([str(path), "7"]) == [(1, 2, 3), (4, 5, 6), (7, 7, 7)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("m,n\n1,2\n", "no column k"),
        ("", "no column k, m, n"),
        ("m,n,k\n1,2\n", "line 2: 2 fields under 3 columns"),
        ("m,n,k\n1,2,3\n1,2,x\n", "'x', k of .*line 3"),
        ("m,n,k\n1,0,3\n", "not between 1"),
        ("m,n,k\n", "no shapes"),
        ("m,n,k\n1,2,1:5\n", "is no extent"),
    ],
)
def test_a_csv_file_that_is_wrong_is_named_with_its_line(tmp_path, text, words):
    path = tmp_path / "wrong.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        parse_shapes(str(path))


def test_drawn_populations_are_the_same_for_a_seed():
    """The numbers are the Mersenne Twister's, which NumPy has as well."""
    uniform = np.random.RandomState([20261123]).random_sample
    first = population("random-20261123", 30)
    assert first == population("random-20261123")[:30]
    for member in first:
        extents = [round(32 * 256 ** uniform()) for _ in range(3)]
        assert [member.m, member.n, member.k] == extents
        assert member.layout == LAYOUTS[int(4 * uniform())]
    assert population("random-1", 5) != population("random-2", 5)


@given(st.integers(0, 10**12 - 1))
def test_drawn_products_are_within_their_bounds(seed):
    for member in population(f"random-{seed}", 20):
        assert all(32 <= extent <= 8192 for extent in (member.m, member.n, member.k))
        assert member.layout in LAYOUTS and member.batch == 1
    for member in population(f"syrk-uneven-{seed}", 20):
        problem = member.problem("f64")
        assert problem.symmetric and problem.layout in ("NT", "TN")
        assert 300 <= problem.n <= 1500 and 2000 <= problem.k <= 20000
        assert problem.n % 2 and problem.k % 2


def test_populations_stand_behind_the_classes_each_product_in_all_types():
    found = class_problems(["batch", "random-3", "large"], ["f32", "bf16"], ["NN"], 40)
    names = [name for name, _ in found]
    assert names[:10] == ["large"] * 10 and names[10:24] == ["batch"] * 14
    assert set(names[24:]) == {"random-3"} and len(names[24:]) <= 80
    assert {problem.layout for _, problem in found} == {"NN"}
    assert found[10][1] == Problem(16, 16, 16, "f32", batch=10000)
    assert found[11][1] == Problem(16, 16, 16, "bf16", batch=10000)
    whole = class_problems(["random-3", "llm", "batch", "syrk-uneven-3"], ["f64"], LAYOUTS)
    assert len(whole) == 100 + 18 + 8 + 24 == len(set(whole))
    assert not {name for name, _ in class_problems(["all"], ["f32"], LAYOUTS)} & set(POPULATIONS)


@pytest.mark.parametrize("name", ["random", "random-", "random-x", "llm-3", "random-" + "9" * 13])
def test_populations_that_do_not_exist(name):
    with pytest.raises(ValueError, match="random-SEED"):
        class_problems([name], ["f32"], ["NN"])
    with pytest.raises(ValueError, match="syrk-uneven-SEED"):
        population(name)
