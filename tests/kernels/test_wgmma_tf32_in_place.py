"""Kernel 17: its geometry, and products of any size, layout, start and stride, in the simulator and
on a GPU.
"""

from __future__ import annotations

import pytest
from fed_products import COUNT, HOPPER, LAYOUTS, check_many, check_refused
from test_wgmma import HALVES_OF_C, check_half

from pymm.backends import open_device
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.source import render

IN_PLACE = find_kernel("wgmma_tf32_in_place")
#: Configurations. Which operand is in place decides whether TA or TB has multiples of 64.
CASES = tuple(
    f"wgmma_tf32_in_place-{form}"
    for form in (
        "MB64-NB128-KB32-TA64-TB64-STAGES6-GROUP8-SPLIT1",
        "MB64-NB64-KB64-TA64-TB64-STAGES5-GROUP8-SPLIT1",
        "MB128-NB96-KB32-TA64-TB96-STAGES6-GROUP8-SPLIT1",
        "MB96-NB256-KB32-TA96-TB128-STAGES4-GROUP8-SPLIT2",
        "MB96-NB192-KB64-TA96-TB64-STAGES2-GROUP8-SPLIT3",
        "MB192-NB128-KB32-TA64-TB128-STAGES2-GROUP8-SPLIT4",
        "MB128-NB160-KB64-TA64-TB160-STAGES2-GROUP8-SPLIT8",
        "MB32-NB64-KB128-TA32-TB64-STAGES3-GROUP1-SPLIT1",
        "MB64-NB32-KB64-TA64-TB32-STAGES6-GROUP1-SPLIT16",
        "MB128-NB128-KB64-TA64-TB64-STAGES2-GROUP8-SPLIT1",
        "MB256-NB64-KB32-TA128-TB64-STAGES4-GROUP8-SPLIT1",
        "MB128-NB256-KB32-TA64-TB256-STAGES2-GROUP1-SPLIT1",
    )
)
#: Some that the simulator runs.
SIMULATED = tuple(
    f"wgmma_tf32_in_place-{form}"
    for form in (
        "MB64-NB64-KB32-TA64-TB64-STAGES3-GROUP8-SPLIT1",
        "MB64-NB64-KB64-TA64-TB64-STAGES2-GROUP1-SPLIT2",
        "MB64-NB128-KB32-TA32-TB64-STAGES2-GROUP8-SPLIT1",
        "MB128-NB64-KB32-TA128-TB32-STAGES2-GROUP8-SPLIT1",
        "MB96-NB128-KB32-TA96-TB128-STAGES2-GROUP8-SPLIT3",
        "MB32-NB64-KB128-TA32-TB64-STAGES2-GROUP8-SPLIT1",
        "MB192-NB96-KB32-TA64-TB96-STAGES2-GROUP8-SPLIT1",
    )
)


def product(layout: str, m: int = 1001, n: int = 999, k: int = 777, **more) -> Problem:
    return Problem(m, n, k, "tf32", layout[0] == "T", layout[1] == "T", **more)


@pytest.mark.parametrize(
    "problem, reason",
    [
        (product("NN", 100, 100, 100, batch=2), "batch"),
        (product("NN", 3, 2, 100), "4 rows"),
        (product("NN", 99, 100, 3), "4 rows"),
        (product("NT", 2, 3, 100), "4 rows"),
        (product("TN", 100, 100, 3), "4 rows"),
        (product("NN", 100, 3, 100), ""),
        (product("NN", 3, 100, 100), ""),
        (product("NT", 4, 4, 1), ""),
        (product("NN", 3, 3, 0), ""),
    ],
    ids=lambda value: getattr(value, "slug", value),
)
def test_what_it_cannot_compute_breaks_a_rule(problem, reason):
    broken = IN_PLACE.violations(IN_PLACE.default_for(problem, HOPPER), problem, HOPPER)
    assert reason in " ".join(broken) and bool(broken) == bool(reason)


@pytest.mark.parametrize("slug", CASES + SIMULATED)
def test_the_rules_allow_what_is_tested(slug):
    config = parse_slug(slug)
    sides = (1001, 77), (77, 1001)
    for layout in LAYOUTS:
        broken = [IN_PLACE.violations(config, product(layout, *mn, 7777), HOPPER) for mn in sides]
        assert not all(broken)


@pytest.mark.parametrize("m, n, larger", [(1001, 77, 0), (77, 1001, 1), (77, 77, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_larger_operand_is_read_as_it_is_stored(layout, m, n, larger):
    problem = product(layout, m, n)
    loaded = IN_PLACE.tma.as_loaded(problem)
    assert [IN_PLACE.tma.reads_in_place(problem, i) for i in (0, 1)] == [larger == 0, larger == 1]
    assert stored_shapes(loaded)[larger] == stored_shapes(problem)[larger]
    assert loaded.trans_b if larger == 0 else not loaded.trans_a  # the other is K-major
    assert f"#define IN_PLACE {larger}" in render(IN_PLACE.default_config, problem).text


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_takes_part_only_where_the_larger_operand_starts_anywhere(layout):
    odd, even = product(layout), product(layout, 1024, 1024, 1024)
    assert kernels_for(odd, HOPPER)[-1] != IN_PLACE != kernels_for(even, HOPPER)[-1]
    assert IN_PLACE.competes(odd, HOPPER) and not IN_PLACE.competes(even, HOPPER)
    given = [config for _, config in IN_PLACE.options(odd, HOPPER)]
    assert len(given) > 10 and not list(IN_PLACE.options(even, HOPPER))
    assert not all(IN_PLACE.violations(config, odd, HOPPER) for config in given)


@pytest.mark.parametrize("slug", CASES)
def test_blocks_stay(slug):
    config = parse_slug(slug)
    for problem in (product("NN", 9, 8), product("TT", 129, 4097)):
        every = IN_PLACE.units(config, problem)
        assert every * config.MB * config.NB >= problem.m * problem.n
        for sms in (1, 7, 132):
            assert IN_PLACE.grid(config, problem, sms) == (min(every, sms), 1, 1)


@pytest.mark.simulator
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug", SIMULATED)
def test_any_size_in_the_simulator(cuda, slug, layout):
    check_many(cuda, slug, ("tf32",), (layout,), count=8, most=300, deepest=300)


@pytest.mark.simulator
@pytest.mark.parametrize("op", HALVES_OF_C)
@pytest.mark.parametrize("slug", SIMULATED[:2])
def test_half_of_a_symmetric_c(cuda, slug, op):
    check_half(cuda, slug, "tf32", op)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug", CASES)
def test_any_size_layout_and_stride(slug, layout):
    backend = open_device("cuda")
    if IN_PLACE.runs_on(backend.device):
        check_many(backend, slug, ("tf32",), (layout,), COUNT)
    else:
        check_refused(slug, "tf32")


@pytest.mark.gpu
@pytest.mark.parametrize("op", HALVES_OF_C)
@pytest.mark.parametrize("slug", CASES[:2])
def test_half_of_a_symmetric_c_on_a_gpu(slug, op):
    backend = open_device("cuda")
    if IN_PLACE in kernels_for(Problem(8, 8, 8, "tf32", op=op), backend.device):
        check_half(backend, slug, "tf32", op)
    else:
        assert backend.device.capability != HOPPER.capability
