"""Kernel 11: which problems it is for, what it does with them untuned, sums of very many parts."""

from __future__ import annotations

import re

import numpy as np
import pytest
from fed_products import HOPPER
from guarded_products import Runner, Stored, check, make

from pymm.core.device import Device
from pymm.core.integers import round_up
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.sliced import FAN, _groups
from pymm.kernels.source import kernel_text

SLICED = find_kernel("sliced")
SMALLER = Device(
    "ampere", "cuda", capability=(8, 6), sms=84, shared_per_block=101376, shared_per_sm=102400
)
SKINNY = (
    Problem(8192, 16, 8192),
    Problem(16, 8192, 8192, "f32", True, False),
    Problem(1, 8192, 8192, "f32", False, True),
    Problem(8192, 1, 8191),
    Problem(64, 64, 262144, "f32", True, True),
    Problem(8192, 16, 8192, "f64", False, True),
    Problem(256, 256, 256),
    Problem(1000, 1000, 1000, "f32", True, False),
)


@pytest.mark.parametrize("device", (HOPPER, SMALLER), ids=lambda device: device.name)
@pytest.mark.parametrize("problem", SKINNY, ids=lambda problem: problem.slug)
def test_untuned_products_keep_the_device_busy_and_waste_little(problem, device):
    config = SLICED.default_for(problem, device)
    assert not SLICED.violations(config, problem, device)
    tiles, parts = SLICED.tiles(config, problem)
    assert tiles * parts >= 0.6 * device.sms
    padded = tiles * config.MB * config.NB
    assert padded <= 1.3 * problem.m * problem.n or min(config.MB, config.NB) == 4


def test_it_is_the_first_choice_for_skinny_products_alone():
    def first(*problem) -> bool:
        return kernels_for(Problem(*problem), HOPPER)[-1] is SLICED

    assert all(kernels_for(p, HOPPER)[-1] is SLICED for p in SKINNY if p.m != 1000)
    assert first(640, 640, 640) and first(641, 641, 641, "f32", False, True)
    assert not first(1000, 1000, 1000) and not first(1000, 1000, 1000, "f32", True, False)
    assert not first(4096, 4096, 4096) and not first(8192, 8192, 64)
    assert not first(64, 64, 262144, "f64")  # tensor cores multiply doubles faster
    assert kernels_for(Problem(64, 64, 262144, "f64"), SMALLER)[-1] is SLICED


def test_no_problem_is_without_a_default():
    for extents in ((1, 1, 0), (1, 1, 1), (3, 70000, 2), (2, 2, 2**31 - 1), (5000, 5000, 1)):
        for dtype in SLICED.dtypes:
            problem = Problem(*extents, dtype)
            config = SLICED.default_for(problem, SMALLER)
            assert not SLICED.violations(config, problem, SMALLER), (config.slug, problem.slug)


def test_the_tree_is_the_one_of_the_kernel():
    text = kernel_text("cuda", SLICED.file)
    assert re.search(r"\bFAN = (\d+);", text)[1] == str(FAN)
    assert [_groups(parts) for parts in (1, 2, 16, 17, 256, 257)] == [0, 1, 1, 3, 17, 20]


def test_three_levels_of_parts(cuda):
    """300 parts are 19 groups, these 2, these 1: every part counts, and always in one order."""
    slug = "sliced-MB16-NB32-KB8-TA4-TB4-SLICES1-STAGES2-BLOCKS1-GROUP8-SPLIT300"
    runner, problem = Runner(cuda), Problem(19, 40, 2403, "f32")
    executable = runner.executable(slug, "f32", "NN", True)
    operands = make(problem)
    check(runner, executable, problem, operands, 0.5, 2.0)
    a, b = (Stored.of(operand, 0) for operand in operands[:2])
    results = [Stored.of(np.zeros((1, 19, 40), np.float32), 0) for _ in range(2)]
    for result in results:
        runner(executable, problem, a, b, result)
    np.testing.assert_array_equal(results[0].flat, results[1].flat)


@pytest.mark.parametrize(
    "tile, layout, alignment, stages",
    [
        ("MB64-NB64-KB8-TA16-TB8-SLICES4", "NN", 4, 3),
        ("MB64-NB64-KB8-TA8-TB16-SLICES4", "NT", 16, 2),
        ("MB128-NB32-KB8-TA16-TB8-SLICES4", "TT", 4, 2),
        ("MB40-NB80-KB8-TA10-TB10-SLICES4", "NN", 16, 4),
        ("MB80-NB40-KB8-TA10-TB10-SLICES8", "TN", 4, 3),
        ("MB80-NB40-KB16-TA10-TB10-SLICES4", "TT", 8, 2),
        ("MB40-NB80-KB16-TA10-TB10-SLICES8", "NT", 4, 2),
        ("MB48-NB64-KB8-TA12-TB8-SLICES4", "TN", 16, 3),
        ("MB64-NB48-KB16-TA8-TB12-SLICES4", "NN", 4, 2),
        ("MB56-NB64-KB8-TA14-TB8-SLICES8", "NT", 4, 3),
        ("MB64-NB56-KB16-TA8-TB14-SLICES4", "TN", 16, 2),
    ],
)
def test_large_register_tiles(cuda, tile, layout, alignment, stages):
    """Row by row (KB 8) and several columns at a time; one operand turned and both; vectors of 8
    bytes, lines and tiles that the lanes and the threads do not share evenly; no slice, a part of
    one, fewer and more than there are warps; tiles on the edges, and a product without one, whose
    parts of k are shared.
    """
    slug = f"sliced-{tile}-STAGES{stages}-BLOCKS1-GROUP8-SPLIT%d"
    runner, trans = Runner(cuda), [letter == "T" for letter in layout]
    for shape in ((1, 1, 0), (64, 64, 3), (36, 68, 44), (7, 9, 150)):
        shape = tuple(round_up(extent, alignment // 4) for extent in shape)
        problem = Problem(*shape, "f32", *trans)
        executable = runner.executable(slug % 1, "f32", layout, True, alignment)
        check(runner, executable, problem, make(problem), 1.5, 0.5, pad=alignment // 4)
    config = parse_slug(slug % 1)
    problem = Problem(2 * config.MB, config.NB, 96, "f32", *trans)
    executable = runner.executable(slug % 3, "f32", layout, False, alignment)
    check(runner, executable, problem, make(problem), -1.0, 0.0, pad=4)
