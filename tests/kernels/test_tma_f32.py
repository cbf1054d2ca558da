"""Kernel 8: its geometry; on a Hopper GPU, products of any size, layout, stride and stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fed_products import HOPPER, check_on_gpu

from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.source import render

TMA_F32 = find_kernel("tma_f32")
SLUGS = (
    "tma_f32-MB128-NB256-KB32-ROWS8-EARLY1-STRIDE4-TA16-TB8-SLICES1-STAGES4"
    "-BLOCKS1-GROUP8-SPLIT1-STORE1",
    "tma_f32-MB160-NB256-KB32-ROWS8-EARLY1-STRIDE2-TA20-TB8-SLICES1-STAGES3"
    "-BLOCKS1-GROUP8-SPLIT1-STORE1",
    "tma_f32-MB256-NB160-KB32-ROWS16-EARLY1-STRIDE2-TA8-TB20-SLICES1-STAGES3"
    "-BLOCKS1-GROUP4-SPLIT1-STORE1",
    "tma_f32-MB64-NB128-KB32-ROWS16-EARLY1-STRIDE2-TA8-TB8-SLICES1-STAGES2"
    "-BLOCKS3-GROUP8-SPLIT2-STORE1",
    "tma_f32-MB64-NB128-KB32-ROWS8-EARLY2-STRIDE1-TA16-TB8-SLICES4-STAGES4"
    "-BLOCKS1-GROUP8-SPLIT1-STORE1",
    "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2"
    "-BLOCKS2-GROUP8-SPLIT3-STORE1",
    "tma_f32-MB32-NB64-KB64-ROWS2-EARLY1-STRIDE2-TA8-TB8-SLICES8-STAGES3"
    "-BLOCKS1-GROUP1-SPLIT8-STORE1",
    "tma_f32-MB128-NB128-KB16-ROWS8-EARLY1-STRIDE4-TA8-TB16-SLICES1-STAGES3"
    "-BLOCKS2-GROUP8-SPLIT1-STORE2",
    "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE4-TA8-TB8-SLICES2-STAGES2"
    "-BLOCKS2-GROUP8-SPLIT3-STORE2",
    "tma_f32-MB128-NB160-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB20-SLICES1-STAGES3"
    "-BLOCKS2-GROUP8-SPLIT1-STORE3",
    "tma_f32-MB64-NB64-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES2-STAGES4"
    "-BLOCKS3-GROUP8-SPLIT2-STORE3",
    "tma_f32-MB32-NB64-KB32-ROWS8-EARLY1-STRIDE1-TA4-TB8-SLICES2-STAGES3"
    "-BLOCKS3-GROUP8-SPLIT1-STORE1",
    "tma_f32-MB48-NB96-KB32-ROWS8-EARLY1-STRIDE1-TA4-TB12-SLICES4-STAGES3"
    "-BLOCKS1-GROUP8-SPLIT2-STORE1",
    "tma_f32-MB96-NB96-KB32-ROWS8-EARLY1-STRIDE1-TA12-TB12-SLICES4-STAGES3"
    "-BLOCKS1-GROUP8-SPLIT3-STORE3",
    "tma_f32-MB64-NB64-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES2-STAGES4"
    "-BLOCKS3-GROUP8-SPLIT22-STORE2",
)
#: Products with a short side that no tile of 64 or 128 rows or columns fills.
SHORT = Problem(95, 6213, 4262), Problem(4217, 91, 811, "f32", True, True)


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay_and_share_all_units(slug):
    config = parse_slug(slug)
    for problem in (Problem(1, 1, 999), Problem(129, 4097, 640, "f32", True, True, 7)):
        assert not TMA_F32.violations(config, problem, HOPPER)
        units = TMA_F32.units(config, problem)
        assert units * config.MB * config.NB >= config.SPLIT * problem.m * problem.n * problem.batch
        for sms in (1, 2, 132):
            assert TMA_F32.grid(config, problem, sms) == (min(units, sms * config.BLOCKS), 1, 1)


@pytest.mark.parametrize("n", [1, 256, 1000, 1024, 2048, 3200, 4096, 10000])
def test_the_default_obeys_the_rules_of_every_hopper(n):
    problem = Problem(n, n, n)
    little = replace(HOPPER, sms=114, shared_per_block=99 * 1024, shared_per_sm=100 * 1024)
    for device in (HOPPER, little):
        assert TMA_F32 in kernels_for(problem, device)
        config = TMA_F32.default_for(problem, device)
        assert not TMA_F32.violations(config, problem, device)


@pytest.mark.parametrize(
    "mnk, blocks",
    [((1002, 5585, 173), 3), ((2914, 2955, 83), 3), ((1002, 5584, 1730), 2), ((8192, 8192, 64), 2)],
)
def test_products_of_little_k_that_threads_store_have_small_tiles(mnk, blocks):
    config = TMA_F32.default_for(Problem(*mnk), HOPPER)
    assert (config.BLOCKS, config.MB * config.NB <= 128 * 64) == (blocks, blocks == 3)


@pytest.mark.parametrize("problem", SHORT, ids=lambda problem: problem.slug)
@pytest.mark.parametrize("name", ["tma_f32", "tma_f32_in_place"])
def test_tiles_that_fill_a_short_side_are_compared_and_may_run(name, problem):
    kernel = find_kernel(name)
    options = [c for _, c in kernel.options(problem, HOPPER)]
    narrow = {(c.MB, c.NB) for c in options if 96 in (c.MB, c.NB) or c.MB < 64}
    allowed = {(c.MB, c.NB) for c in options if not kernel.violations(c, problem, HOPPER)}
    assert {(48, 96), (96, 64), (96, 96), (128, 96)} <= narrow <= allowed


@pytest.mark.parametrize("mnk", [(256, 256, 65536), (64, 64, 262144), (64, 7168, 16384)])
@pytest.mark.parametrize("name", ["tma_f32", "tma_f32_in_place"])
def test_deep_products_of_few_tiles_give_every_multiprocessor_a_part(name, mnk):
    problem, kernel = Problem(*mnk), find_kernel(name)
    times = {c: us for us, c in kernel.options(problem, HOPPER)}
    allowed = (c for c in times if not kernel.violations(c, problem, HOPPER))
    config = min(allowed, key=times.__getitem__)
    parts, slots = kernel.units(config, problem), HOPPER.sms * config.BLOCKS
    assert parts > 0.9 * slots * ceil_div(parts, slots)


def test_all_layouts_and_sizes_run_one_text():
    config = parse_slug(SLUGS[0])
    texts = {
        render(config, Problem(n, n, n, "f32", trans_a, trans_b), alignment).key
        for n, alignment in ((1, 4), (4096, 16))
        for trans_a in (False, True)
        for trans_b in (False, True)
    }
    assert len(texts) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, ("f32",))
