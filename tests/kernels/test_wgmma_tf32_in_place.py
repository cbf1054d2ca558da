"""Kernel 18: its geometry, and products of any size, layout, start and stride, in the simulator and
on a GPU.
"""

from __future__ import annotations

import pytest
from fed_products import COUNT, HOPPER, LAYOUTS, check_many, check_refused
from test_wgmma import HALVES_OF_C, check_half

from pymm.backends import open_device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.expected import is_modelled
from pymm.kernels.source import render

IN_PLACE = find_kernel("wgmma_tf32_in_place")
#: Configurations, and the layouts that their rules allow.
CASES = (
    ("wgmma_tf32_in_place-MB128-NB128-KB32-TA128-TB64-STAGES6-GROUP8-SPLIT1", LAYOUTS),
    ("wgmma_tf32_in_place-MB64-NB64-KB64-TA64-TB64-STAGES6-GROUP8-SPLIT1", LAYOUTS),
    ("wgmma_tf32_in_place-MB256-NB128-KB32-TA256-TB64-STAGES4-GROUP8-SPLIT1", ("NN", "TN")),
    ("wgmma_tf32_in_place-MB128-NB256-KB32-TA64-TB256-STAGES4-GROUP1-SPLIT1", ("NT", "TT")),
    ("wgmma_tf32_in_place-MB96-NB256-KB32-TA96-TB128-STAGES4-GROUP8-SPLIT2", ("NN",)),
    ("wgmma_tf32_in_place-MB96-NB192-KB64-TA96-TB64-STAGES2-GROUP8-SPLIT3", ("NN",)),
    ("wgmma_tf32_in_place-MB192-NB192-KB32-TA64-TB192-STAGES3-GROUP8-SPLIT4", ("NT",)),
    ("wgmma_tf32_in_place-MB128-NB160-KB64-TA64-TB160-STAGES2-GROUP8-SPLIT8", ("NT", "TT")),
    ("wgmma_tf32_in_place-MB32-NB64-KB128-TA32-TB64-STAGES3-GROUP1-SPLIT1", ("NN", "TN")),
    ("wgmma_tf32_in_place-MB64-NB32-KB64-TA64-TB32-STAGES8-GROUP1-SPLIT16", ("NT", "TT")),
    ("wgmma_tf32_in_place-MB128-NB128-KB64-TA64-TB64-STAGES2-GROUP8-SPLIT1", ("NN", "NT", "TT")),
)
#: Some that the simulator runs, and in which layouts.
SIMULATED = (
    ("wgmma_tf32_in_place-MB128-NB128-KB32-TA128-TB64-STAGES3-GROUP8-SPLIT1", LAYOUTS),
    ("wgmma_tf32_in_place-MB64-NB64-KB64-TA64-TB64-STAGES2-GROUP1-SPLIT2", LAYOUTS),
    ("wgmma_tf32_in_place-MB64-NB128-KB32-TA32-TB64-STAGES2-GROUP8-SPLIT1", ("NN",)),
    ("wgmma_tf32_in_place-MB96-NB128-KB32-TA96-TB128-STAGES2-GROUP8-SPLIT3", ("NN",)),
    ("wgmma_tf32_in_place-MB32-NB64-KB128-TA32-TB64-STAGES3-GROUP8-SPLIT1", ("NN", "TN")),
    ("wgmma_tf32_in_place-MB64-NB64-KB64-TA32-TB64-STAGES2-GROUP8-SPLIT1", ("TN",)),
    ("wgmma_tf32_in_place-MB256-NB64-KB32-TA256-TB64-STAGES2-GROUP8-SPLIT1", ("TN",)),
    ("wgmma_tf32_in_place-MB128-NB192-KB32-TA64-TB96-STAGES2-GROUP8-SPLIT1", ("NT",)),
    ("wgmma_tf32_in_place-MB128-NB256-KB32-TA128-TB128-STAGES2-GROUP8-SPLIT1", ("NT",)),
    ("wgmma_tf32_in_place-MB64-NB32-KB64-TA64-TB32-STAGES4-GROUP1-SPLIT1", ("NT", "TT")),
    ("wgmma_tf32_in_place-MB128-NB160-KB32-TA64-TB160-STAGES3-GROUP8-SPLIT4", ("TT",)),
)


def each_layout(cases):
    """(configuration, layout) of each."""
    return [(slug, layout) for slug, layouts in cases for layout in layouts]


def product(layout: str, m: int = 1001, n: int = 999, k: int = 777, **more) -> Problem:
    return Problem(m, n, k, "tf32", layout[0] == "T", layout[1] == "T", **more)


@pytest.mark.parametrize(
    "problem, reason",
    [
        (product("NN", 100, 100, 100, batch=2), "batch"),
        (product("NN", 3, 100, 100), "4 rows"),
        (product("NN", 100, 100, 3), "4 rows"),
        (product("NT", 100, 3, 100), "4 rows"),
        (product("TN", 100, 100, 3), "4 rows"),
        (product("NN", 100, 3, 100), ""),
        (product("NT", 4, 4, 1), ""),
        (product("NN", 3, 3, 0), ""),
    ],
    ids=lambda value: getattr(value, "slug", value),
)
def test_what_it_cannot_compute_breaks_a_rule(problem, reason):
    broken = IN_PLACE.violations(IN_PLACE.default_config, problem, HOPPER)
    assert reason in " ".join(broken) and bool(broken) == bool(reason)


@pytest.mark.parametrize("slug, layout", each_layout(CASES + SIMULATED))
def test_the_rules_allow_what_is_tested(slug, layout):
    assert not IN_PLACE.violations(parse_slug(slug), product(layout, k=7777), HOPPER)


@pytest.mark.parametrize(
    "slug, layouts",
    [
        ("wgmma_tf32_in_place-MB64-NB96-KB32-TA64-TB96-STAGES2-GROUP8-SPLIT1", ("NT", "TT")),
        ("wgmma_tf32_in_place-MB96-NB64-KB32-TA96-TB64-STAGES2-GROUP8-SPLIT1", ("NN", "TN")),
        ("wgmma_tf32_in_place-MB128-NB256-KB32-TA64-TB128-STAGES2-GROUP8-SPLIT1", ("NT",)),
        ("wgmma_tf32_in_place-MB64-NB128-KB32-TA64-TB128-STAGES2-GROUP8-SPLIT1", LAYOUTS),
    ],
)
def test_what_goes_into_the_rows_of_wgmma_depends_on_the_layout(slug, layouts):
    config = parse_slug(slug)
    allowed = [x for x in LAYOUTS if not IN_PLACE.violations(config, product(x), HOPPER)]
    assert tuple(allowed) == layouts


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_the_tuner_takes_it_and_only_for_rows_that_start_anywhere(layout):
    odd, even = product(layout), product(layout, 1024, 1024, 1024)
    assert is_modelled(odd, HOPPER)
    assert kernels_for(odd, HOPPER)[-1] != IN_PLACE != kernels_for(even, HOPPER)[-1]
    assert IN_PLACE.competes(odd, HOPPER) and not IN_PLACE.competes(even, HOPPER)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_survey_may_measure_it_where_rows_start_anywhere(layout):
    odd, even = product(layout), product(layout, 1024, 1024, 1024)
    given = [config for _, config in IN_PLACE.options(odd, HOPPER)]
    assert len(given) > 10 and not list(IN_PLACE.options(even, HOPPER))
    assert not any(IN_PLACE.violations(config, odd, HOPPER) for config in given)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_are_read_as_they_are_stored(layout):
    problem = product(layout)
    assert IN_PLACE.tma.as_loaded(problem) == problem
    assert " repack(" not in render(IN_PLACE.default_config, problem).text


@pytest.mark.parametrize("slug, layouts", CASES)
def test_blocks_stay(slug, layouts):
    config = parse_slug(slug)
    for problem in (product(layouts[0], 9, 8), product(layouts[0], 129, 4097)):
        every = IN_PLACE.units(config, problem)
        assert every * config.MB * config.NB >= problem.m * problem.n
        for sms in (1, 7, 132):
            assert IN_PLACE.grid(config, problem, sms) == (min(every, sms), 1, 1)


@pytest.mark.simulator
@pytest.mark.parametrize("slug, layout", each_layout(SIMULATED))
def test_any_size_in_the_simulator(cuda, slug, layout):
    check_many(cuda, slug, ("tf32",), (layout,), count=8, most=300, deepest=300)


@pytest.mark.simulator
@pytest.mark.parametrize("op", HALVES_OF_C)
@pytest.mark.parametrize("slug", [slug for slug, layouts in SIMULATED if layouts == LAYOUTS])
def test_half_of_a_symmetric_c(cuda, slug, op):
    check_half(cuda, slug, "tf32", op)


@pytest.mark.gpu
@pytest.mark.parametrize("slug, layouts", CASES)
def test_any_size_layout_and_stride(slug, layouts):
    backend = open_device("cuda")
    if IN_PLACE.runs_on(backend.device):
        check_many(backend, slug, ("tf32",), layouts, COUNT)
    else:
        check_refused(slug, "tf32")


@pytest.mark.gpu
@pytest.mark.parametrize("op", HALVES_OF_C)
@pytest.mark.parametrize("slug", [slug for slug, layouts in CASES if layouts == LAYOUTS])
def test_half_of_a_symmetric_c_on_a_gpu(slug, op):
    backend = open_device("cuda")
    if IN_PLACE in kernels_for(Problem(8, 8, 8, "tf32", op=op), backend.device):
        check_half(backend, slug, "tf32", op)
    else:
        assert backend.device.capability != HOPPER.capability
