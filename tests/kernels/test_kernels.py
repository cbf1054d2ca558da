"""Every kernel against float64 NumPy: every type, layout and variant, on shapes chosen to hurt."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from guarded_products import Stored, check, hurting, make, whole

from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import MAX_GRID_YZ, parse_slug

#: A small configuration per kernel, so that small matrices have whole and partial tiles, then what
#: the kernels must also do: tiles that are no powers of two, threads that divide nothing (kernel 03
#: loads 7 x 5 and 5 x 12 with 28 or 30 of 32 threads), vectors of A and B, one thread for a row.
SMALL = (
    "naive-MB8-NB4",
    "coalesced-MB4-NB8",
    "shared_tile-MB8-NB8-KB8",
    "register_tile-MB16-NB12-KB5-TA2-TB3",
    "transposed_a-MB16-NB16-KB8-TA4-TB2",
    "transposed_a-MB24-NB32-KB6-TA3-TB8",
    "symmetric_tile-MB16-NB12-KB5-TA2-TB3-PAD3",
    "pipelined-MB32-NB32-KB8-TA4-TB4-LANES4-STAGES3-BLOCKS1-GROUP2-SPLIT1",
    "tensor_f64-MB16-NB24-KB32-TA16-TB8-TK16-KI8-STAGES3-BLOCKS1-GROUP2-SPLIT1",
    "sliced-MB32-NB16-KB8-TA4-TB4-SLICES2-STAGES3-BLOCKS1-GROUP2-SPLIT20",
)
#: origins.md's symmetric product (48 x 48, 3 x 3 on 16 x 16 threads), and tiles wider than a block.
OTHERS = (
    "register_tile-MB48-NB48-KB16-TA3-TB3",
    "transposed_a-MB48-NB48-KB16-TA3-TB3",
    "register_tile-MB64-NB80-KB4-TA16-TB10",
    "transposed_a-MB8-NB96-KB3-TA2-TB12",
)
REALS, LAYOUTS = ("f32", "f64"), ("NN", "NT", "TN", "TT")


def typed(slugs: tuple[str, ...]) -> list[tuple[str, str]]:
    return [(slug, t) for slug in slugs for t in REALS if t in parse_slug(slug).kernel.dtypes]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug, dtype", typed(SMALL))
def test_any_size(runner, slug, dtype, layout):
    tile, trans = parse_slug(slug).as_dict(), [letter == "T" for letter in layout]
    guarded = runner.executable(slug, dtype, layout, True)
    for seed, shape in enumerate(hurting(tile) + whole(tile)):
        problem = Problem(*shape, dtype, *trans)
        alpha, beta = ((1.0, 0.0), (-0.75, 1.0), (1.3, -0.6))[seed % 3]
        check(runner, guarded, problem, make(problem, seed), alpha, beta, pad=seed % 4)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug, dtype", typed(SMALL))
def test_multiples_without_guards(runner, slug, dtype, layout):
    tile, trans = parse_slug(slug).as_dict(), [letter == "T" for letter in layout]
    executable = runner.executable(slug, dtype, layout, False)
    for seed, shape in enumerate(whole(tile)):
        problem = Problem(*shape, dtype, *trans)
        check(runner, executable, problem, make(problem, seed), 1.5, seed % 2 * 0.5, seed)


@pytest.mark.parametrize(
    "slug, dtype, layout",
    [
        (slug, *kind)
        for slug, kind in zip(OTHERS * 2, itertools.product(REALS, LAYOUTS), strict=True)
    ],
)
def test_other_tiles(runner, slug, dtype, layout):
    tile, trans = parse_slug(slug).as_dict(), [letter == "T" for letter in layout]
    mb, nb, kb = tile["MB"], tile["NB"], tile["KB"]
    for guarded, shape in ((False, (mb, 2 * nb, 2 * kb)), (True, (mb + 5, nb + 1, 2 * kb - 1))):
        problem = Problem(*shape, dtype, *trans)
        executable = runner.executable(slug, dtype, layout, guarded)
        check(runner, executable, problem, make(problem), 2.0, 0.5)


ALIGNED = (
    "pipelined-MB32-NB32-KB8-TA4-TB4-LANES4-STAGES2-BLOCKS1-GROUP1-SPLIT1",
    "pipelined-MB64-NB64-KB8-TA4-TB8-LANES8-STAGES4-BLOCKS1-GROUP8-SPLIT1",
    "pipelined-MB32-NB64-KB16-TA8-TB4-LANES4-STAGES3-BLOCKS2-GROUP8-SPLIT1",
    "pipelined-MB32-NB32-KB8-TA4-TB4-LANES4-STAGES3-BLOCKS1-GROUP8-SPLIT4",
    "tensor_f64-MB64-NB32-KB16-TA16-TB32-TK16-KI4-STAGES4-BLOCKS1-GROUP1-SPLIT1",
    "tensor_f64-MB32-NB64-KB32-TA32-TB32-TK32-KI16-STAGES2-BLOCKS1-GROUP8-SPLIT3",
    "sliced-MB64-NB32-KB16-TA8-TB8-SLICES4-STAGES2-BLOCKS1-GROUP8-SPLIT3",
)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug, dtype", typed(ALIGNED))
def test_rows_at_multiples_of_16_bytes(runner, slug, dtype, layout):
    """Pieces of 8 and 16 bytes, with and without guards; partial tiles end in whole pieces."""
    tile, trans = parse_slug(slug).as_dict(), [letter == "T" for letter in layout]
    vector = 16 // DTYPES[dtype].element.itemsize
    shapes = [(tile["MB"] + 4, tile["NB"] - 4, 2 * tile["KB"] + 4), (4, 8, 4), (12, 96, 52)]
    for guarded, shape in [*((True, s) for s in shapes), (False, whole(tile)[1])]:
        problem = Problem(*shape, dtype, *trans)
        executable = runner.executable(slug, dtype, layout, guarded, 16)
        check(runner, executable, problem, make(problem), 1.5, 0.5, pad=vector)
    executable = runner.executable(slug, dtype, layout, True, 8)
    problem = Problem(34, 38, 10, dtype, *trans)
    check(runner, executable, problem, make(problem), pad=2)


def test_rows_elsewhere_are_refused(runner):
    """A kernel compiled for 16 bytes at a time never meets a row that starts anywhere else."""
    executable = runner.executable(ALIGNED[0], "f32", "NN", True, 16)
    problem = Problem(8, 8, 8)
    with pytest.raises(ValueError, match="multiples of 16 bytes"):
        check(runner, executable, problem, make(problem), pad=1)


@pytest.mark.parametrize("slug", SMALL)
def test_stacks(runner, slug):
    cases = (("NN", (1, 3)), ("TT", (3, 1)), ("TN", (3, 3)))
    for (layout, stacks), dtype in zip(cases, itertools.cycle(parse_slug(slug).kernel.dtypes)):
        trans = [letter == "T" for letter in layout]
        executable = runner.executable(slug, dtype, layout, True)
        problem = Problem(17, 19, 11, dtype, *trans, batch=3)
        check(runner, executable, problem, make(problem, stacks=stacks), 1.5, 0.5)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug", SMALL)
def test_nan_and_inf_stay_in_their_row_and_column(runner, slug, layout):
    """Inf in the last column of A and the last row of B, where partial tiles end: padding must
    not turn it into NaN, and a NaN must not reach other rows.
    """
    trans, dtype = [letter == "T" for letter in layout], parse_slug(slug).kernel.dtypes[0]
    problem = Problem(18, 21, 9, dtype, *trans)
    a, b, c = (np.abs(x) + 1 for x in make(problem))
    left = a.swapaxes(1, 2) if problem.trans_a else a
    right = b.swapaxes(1, 2) if problem.trans_b else b
    left[0, 3, 8], right[0, 8, 5], left[0, 17, 0] = np.inf, -np.inf, np.nan
    where = Stored.of(c, 2)
    executable = runner.executable(slug, dtype, layout, True)
    runner(executable, problem, Stored.of(a, 2), Stored.of(b, 2), where)
    got = where.elements[0]
    want = np.full((18, 21), 1.0)
    want[:, 5], want[3, :] = -np.inf, np.inf
    want[3, 5], want[17, :] = -np.inf, np.nan
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(got), test(want))


@pytest.mark.parametrize("slug", SMALL)
def test_beta(runner, slug):
    """beta = 0 writes over NaN without reading it; any other beta keeps it; k = 0 scales C."""
    executable = runner.executable(slug, "f64", "NN", True)
    problem = Problem(9, 10, 3, "f64")
    a, b, c = make(problem)
    c[0, 4, 4] = np.nan
    where = Stored.of(c, 1)
    runner(executable, problem, Stored.of(a, 1), Stored.of(b, 1), where, 1.0, 1e-300)
    assert np.argwhere(np.isnan(where.elements)).tolist() == [[0, 4, 4]]
    nothing = Problem(9, 10, 0, "f64")
    a, b, c = make(nothing)
    runner(executable, nothing, Stored.of(a, 1), Stored.of(b, 1), where, 1.0, 0.0)
    np.testing.assert_array_equal(where.elements, 0.0)
    where = Stored.of(c, 1)
    runner(executable, nothing, Stored.of(a, 1), Stored.of(b, 1), where, 1.0, -2.0)
    np.testing.assert_array_equal(where.elements, -2.0 * c)


@pytest.mark.parametrize("slug", ["coalesced-MB1-NB32", "transposed_a-MB1-NB32-KB1-TA1-TB1"])
def test_more_rows_of_tiles_than_a_grid_has(runner, slug):
    problem = Problem(MAX_GRID_YZ + 1000, 1, 2)
    config = parse_slug(slug)
    assert config.kernel.grid(config, problem) == (1, MAX_GRID_YZ, 1)
    check(runner, runner.executable(slug, "f32", "NN", True), problem, make(problem), pad=0)
