"""Kernel 18: products of any size, layout, start and stride, in the simulator and on a GPU."""

from __future__ import annotations

import itertools

import pytest
from fed_products import HOPPER, LAYOUTS, Placed, check_many, check_on_gpu

from pymm.core import reference
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.tma_f32 import TMA_F32
from pymm.measure.verify import NUMBER, POISON, compare, normal
from pymm.runtime.bind import executable

IN_PLACE = find_kernel("tma_f32_in_place")
NAME = "tma_f32_in_place"
SLUGS = (
    f"{NAME}-MB128-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB16-SLICES1-STAGES3-BLOCKS2-GROUP8-SPLIT1"
    "-STORE1",
    f"{NAME}-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES4-STAGES3-BLOCKS1-GROUP8-SPLIT3"
    "-STORE1",
    f"{NAME}-MB64-NB64-KB16-ROWS8-EARLY1-STRIDE4-TA8-TB8-SLICES2-STAGES4-BLOCKS2-GROUP8-SPLIT1"
    "-STORE2",
    f"{NAME}-MB144-NB256-KB32-ROWS8-EARLY1-STRIDE1-TA12-TB8-SLICES1-STAGES2-BLOCKS1-GROUP8-SPLIT1"
    "-STORE1",
    f"{NAME}-MB160-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA20-TB8-SLICES1-STAGES3-BLOCKS1-GROUP8-SPLIT1"
    "-STORE1",
    f"{NAME}-MB256-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB16-SLICES1-STAGES3-BLOCKS1-GROUP8-SPLIT2"
    "-STORE1",
    f"{NAME}-MB128-NB64-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES1-STAGES3-BLOCKS2-GROUP8-SPLIT1"
    "-STORE3",
    f"{NAME}-MB32-NB64-KB32-ROWS8-EARLY1-STRIDE1-TA4-TB8-SLICES2-STAGES3-BLOCKS3-GROUP8-SPLIT1"
    "-STORE1",
    f"{NAME}-MB48-NB96-KB32-ROWS8-EARLY1-STRIDE1-TA4-TB12-SLICES4-STAGES3-BLOCKS1-GROUP8-SPLIT2"
    "-STORE1",
    f"{NAME}-MB96-NB96-KB32-ROWS8-EARLY1-STRIDE1-TA12-TB12-SLICES4-STAGES2-BLOCKS1-GROUP8-SPLIT1"
    "-STORE3",
)
#: Some that the simulator runs: both depths, rows of raw tiles in one box and in two, tiles that 32
#: lanes cover and some that they do not.
SIMULATED = (SLUGS[1], SLUGS[2], SLUGS[3], SLUGS[8], SLUGS[9])
#: One of each depth, for small tiles.
SMALL = SLUGS[1].replace("SPLIT3", "SPLIT1"), SLUGS[2], SLUGS[7]


@pytest.mark.parametrize(
    "problem, reason",
    [
        (Problem(100, 100, 100, "f32", batch=2), "batch"),
        (Problem(3, 2, 100, "f32"), "4 rows"),
        (Problem(100, 100, 3, "f32", trans_a=True), "4 rows"),
        (Problem(50, 101, 3, "f32"), "4 rows"),
        (Problem(3, 100, 100, "f32"), "4 rows"),
        (Problem(2, 3, 100, "f32", trans_b=True), "4 rows"),
        (Problem(100, 3, 3, "f32"), ""),
        (Problem(50, 100, 3, "f32"), ""),
        (Problem(3, 101, 100, "f32"), ""),
        (Problem(3, 100, 3, "f32", trans_b=True), ""),
        (Problem(3, 3, 0, "f32"), ""),
    ],
    ids=lambda value: getattr(value, "slug", value),
)
def test_what_it_cannot_compute_breaks_a_rule(problem, reason):
    config = IN_PLACE.default_for(problem, HOPPER)
    broken = IN_PLACE.violations(config, problem, HOPPER)
    assert reason in " ".join(broken) and bool(broken) == bool(reason)


@pytest.mark.parametrize(
    "problem, competes",
    [
        (Problem(1024, 1024, 1024, "f32"), True),
        (Problem(1024, 1024, 1024, "f32", trans_a=True), False),
        (Problem(1023, 511, 1024, "f32", trans_a=True), True),
        (Problem(1024, 511, 1024, "f32", trans_a=True), True),  # B, the smaller operand
        (Problem(511, 1024, 1024, "f32"), True),  # A, the smaller one
        (Problem(511, 1024, 1024, "f32", trans_b=True), True),
        (Problem(511, 1023, 1024, "f32"), True),
        (Problem(1023, 511, 1024, "f32", batch=2), False),
    ],
    ids=lambda value: getattr(value, "slug", str(value)),
)
def test_only_the_tuner_takes_it_and_only_where_kernel_8_would_repack(problem, competes):
    assert kernels_for(problem, HOPPER)[-1] != IN_PLACE
    assert IN_PLACE.competes(problem, HOPPER) == competes
    assert bool(list(IN_PLACE.options(problem, HOPPER))) == competes


def test_less_is_expected_than_of_kernel_8_and_some_of_each_form_may_run():
    problem = Problem(1018, 418, 5653, "f32")
    allowed = [
        (time, config)
        for time, config in IN_PLACE.options(problem, HOPPER)
        if not IN_PLACE.violations(config, problem, HOPPER)
    ]
    least = min(time for time, _ in TMA_F32.options(problem, HOPPER))
    assert min(time for time, _ in allowed) < least
    assert {config.KB for _, config in allowed} == {16, 32}
    assert {config.STAGES for _, config in allowed} >= {2, 3}


@pytest.mark.simulator
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug", SIMULATED)
def test_any_size_in_the_simulator(cuda, slug, layout):
    check_many(cuda, slug, ("f32",), (layout,), count=6, most=300, deepest=200)


@pytest.mark.simulator
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug", SMALL)
@pytest.mark.parametrize("m, n", [(75, 66), (66, 75)])
def test_rows_that_start_anywhere(cuda, slug, layout, m, n):
    """Either operand in place, its rows at every distance from multiples of 16 bytes, both behind
    numbers and before numbers that would spoil every sum.
    """
    config, trans = parse_slug(slug), [letter == "T" for letter in layout]
    met = set()
    for seed, (before, gap) in enumerate(itertools.product(range(4), range(4))):
        problem = Problem(m, n, config.KB * 2 + 3, "f32", *trans)
        values = list(normal(problem, seed))
        a, b, c = (
            Placed(cuda, x, before, gap, around)
            for x, around in zip(values, (POISON, POISON, NUMBER), strict=True)
        )
        one = executable(cuda, config, problem)
        one.bind(problem, 1.0, a.matrix, b.matrix, 0.0, c.matrix)()
        cuda.synchronize()
        got, touched = c.read()
        judged = problem, *values, 1.0, 0.0
        finding = compare(got, reference.product(*judged), reference.error_bound(*judged))
        assert not touched and finding.right, (before, gap, touched, finding.detail)
        mine = (a, b)[IN_PLACE.tma.in_place(problem)].matrix
        met.add(tuple((mine.address // 4 + row * mine.ld) % 4 for row in range(4)))
    every = itertools.product(range(4), range(4))
    assert met == {tuple((at + row * by) % 4 for row in range(4)) for at, by in every}


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_and_stride(slug):
    check_on_gpu(slug, ("f32",))
