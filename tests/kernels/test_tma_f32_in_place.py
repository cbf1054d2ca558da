"""Kernel 19: products of any size, layout, start and stride, in the simulator and on a GPU."""

from __future__ import annotations

import pytest
from fed_products import HOPPER, check_many, check_on_gpu

from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for

IN_PLACE = find_kernel("tma_f32_in_place")
NAME = "tma_f32_in_place"
#: Layouts in which both operands, one of them or none is transposed by the kernel.
LAYOUTS = ("NT", "NN", "TT", "TN")
SLUGS = (
    f"{NAME}-MB128-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB16-SLICES1-STAGES3-BLOCKS2-GROUP8-SPLIT1"
    "-STORE1",
    f"{NAME}-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES4-STAGES3-BLOCKS1-GROUP8-SPLIT3"
    "-STORE1",
    f"{NAME}-MB64-NB64-KB16-ROWS8-EARLY1-STRIDE4-TA8-TB8-SLICES2-STAGES4-BLOCKS2-GROUP8-SPLIT1"
    "-STORE2",
    f"{NAME}-MB160-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA20-TB8-SLICES1-STAGES3-BLOCKS1-GROUP8-SPLIT1"
    "-STORE1",
    f"{NAME}-MB128-NB64-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES1-STAGES3-BLOCKS2-GROUP8-SPLIT1"
    "-STORE3",
)
#: Some that the simulator runs.
SIMULATED = (SLUGS[1], SLUGS[2], SLUGS[3])


@pytest.mark.parametrize(
    "problem, reason",
    [
        (Problem(100, 100, 100, "f32", batch=2), "batch"),
        (Problem(3, 100, 100, "f32"), "4 rows"),
        (Problem(100, 100, 3, "f32"), "4 rows"),
        (Problem(100, 3, 100, "f32", trans_b=True), "4 rows"),
        (Problem(100, 3, 100, "f32"), ""),
        (Problem(3, 3, 0, "f32"), ""),
    ],
    ids=lambda value: getattr(value, "slug", value),
)
def test_what_it_cannot_compute_breaks_a_rule(problem, reason):
    config = IN_PLACE.default_for(problem, HOPPER)
    broken = IN_PLACE.violations(config, problem, HOPPER)
    assert reason in " ".join(broken) and bool(broken) == bool(reason)


def test_only_the_tuner_takes_it_and_only_where_kernel_8_would_repack():
    repacked, read = Problem(1024, 1024, 1024, "f32"), Problem(1024, 1024, 1024, "f32", True)
    assert kernels_for(repacked, HOPPER)[-1] != IN_PLACE != kernels_for(read, HOPPER)[-1]
    assert IN_PLACE.competes(repacked, HOPPER) and not IN_PLACE.competes(read, HOPPER)


@pytest.mark.simulator
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("slug", SIMULATED)
def test_any_size_in_the_simulator(cuda, slug, layout):
    check_many(cuda, slug, ("f32",), (layout,), count=6, most=300, deepest=200)


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_and_stride(slug):
    check_on_gpu(slug, ("f32",))
