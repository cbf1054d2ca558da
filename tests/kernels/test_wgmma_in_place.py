"""Kernel 17: its geometry, and products of any size, layout, start and stride, in the simulator and
on a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from fed_products import HOPPER, check_many, check_on_gpu
from test_wgmma import check_half

from pymm.backends import open_device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug

IN_PLACE = find_kernel("wgmma_in_place")
LAYOUTS = ("NN", "NT", "TN", "TT")
SLUGS = (
    "wgmma_in_place-MB128-NB128-KB64-TA64-TB128-STAGES6-GROUP8-SPLIT1",
    "wgmma_in_place-MB64-NB64-KB64-TA64-TB64-STAGES12-GROUP8-SPLIT1",
    "wgmma_in_place-MB128-NB256-KB64-TA64-TB256-STAGES4-GROUP1-SPLIT1",
    "wgmma_in_place-MB64-NB192-KB64-TA64-TB64-STAGES4-GROUP8-SPLIT1",
    "wgmma_in_place-MB256-NB64-KB64-TA128-TB64-STAGES3-GROUP8-SPLIT1",
    "wgmma_in_place-MB128-NB128-KB64-TA128-TB64-STAGES2-GROUP8-SPLIT4",
    "wgmma_in_place-MB64-NB256-KB64-TA64-TB128-STAGES2-GROUP1-SPLIT16",
)
#: Some that the simulator runs.
SIMULATED = (
    ("wgmma_in_place-MB128-NB64-KB64-TA64-TB64-STAGES2-GROUP8-SPLIT1", "bf16"),
    ("wgmma_in_place-MB64-NB128-KB64-TA64-TB128-STAGES3-GROUP1-SPLIT1", "f16"),
    ("wgmma_in_place-MB64-NB256-KB64-TA64-TB128-STAGES2-GROUP8-SPLIT1", "bf16_f32"),
    ("wgmma_in_place-MB128-NB128-KB64-TA128-TB64-STAGES2-GROUP8-SPLIT1", "f16_f32"),
    ("wgmma_in_place-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP8-SPLIT2", "bf16"),
)
DTYPES = ("f16", "bf16", "f16_f32", "bf16_f32")


@pytest.mark.parametrize(
    "problem, reason",
    [
        (Problem(100, 100, 100, "bf16", batch=2), "batch"),
        (Problem(7, 100, 100, "bf16"), "8 rows"),
        (Problem(100, 100, 7, "bf16"), "8 rows"),
        (Problem(100, 7, 100, "bf16", trans_b=True), "8 rows"),
        (Problem(100, 7, 100, "bf16"), ""),
        (Problem(8, 8, 1, "bf16", trans_b=True), ""),
        (Problem(7, 7, 0, "bf16"), ""),
    ],
    ids=lambda value: getattr(value, "slug", value),
)
def test_what_it_cannot_compute_breaks_a_rule(problem, reason):
    broken = IN_PLACE.violations(IN_PLACE.default_config, problem, HOPPER)
    assert reason in " ".join(broken) and bool(broken) == bool(reason)


def test_only_the_tuner_takes_it_and_only_for_rows_that_start_anywhere():
    odd, even = Problem(1001, 999, 777, "bf16"), Problem(1024, 1024, 1024, "bf16")
    assert kernels_for(odd, HOPPER)[-1] != IN_PLACE != kernels_for(even, HOPPER)[-1]
    assert IN_PLACE.competes(odd, HOPPER) and not IN_PLACE.competes(even, HOPPER)


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay(slug):
    config = parse_slug(slug)
    for problem in (Problem(9, 8, 1999, "bf16"), Problem(129, 4097, 1777, "f16", trans_b=True)):
        assert not IN_PLACE.violations(config, problem, HOPPER)
        every = IN_PLACE.units(config, problem)
        assert every * config.MB * config.NB >= problem.m * problem.n
        turned = replace(problem, m=problem.n, n=problem.m, trans_a=True, trans_b=True)
        if problem.trans_b == problem.trans_a:
            assert IN_PLACE.units(config, turned) == every
        for sms in (1, 7, 132):
            assert IN_PLACE.grid(config, problem, sms) == (min(every, sms), 1, 1)


@pytest.mark.simulator
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug, dtype", SIMULATED)
def test_any_size_in_the_simulator(cuda, slug, dtype, layout):
    check_many(cuda, slug, (dtype,), (layout,), count=8, most=300, deepest=300)


@pytest.mark.simulator
@pytest.mark.parametrize("op", ["syrk", "syrk_lower", "syrk_upper"])
@pytest.mark.parametrize("slug, dtype", (SIMULATED[0], SIMULATED[4]))
def test_half_of_a_symmetric_c(cuda, slug, dtype, op):
    check_half(cuda, slug, dtype, op)


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_and_stride(slug):
    check_on_gpu(slug, DTYPES)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["syrk", "syrk_lower", "syrk_upper"])
@pytest.mark.parametrize("slug", SLUGS)
def test_half_of_a_symmetric_c_on_a_gpu(slug, op):
    backend = open_device("cuda")
    if IN_PLACE in kernels_for(Problem(8, 8, 8, "bf16", op=op), backend.device):
        for dtype in DTYPES:
            check_half(backend, slug, dtype, op)
    else:
        assert backend.device.capability != HOPPER.capability
