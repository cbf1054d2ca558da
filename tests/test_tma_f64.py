"""Kernel 9: its geometry; on a Hopper GPU, products of any size, layout, stride and stack."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fed_products import HOPPER, check_on_gpu

from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.problem import Problem
from pymm.source import render

TMA_F64 = find_kernel("tma_f64")
SLUGS = tuple(
    f"tma_f64-{slug}"
    for slug in (
        "MB128-NB128-KB16-TA64-TB32-TK16-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP16-SPLIT1",
        "MB128-NB128-KB32-TA64-TB32-TK32-KI8-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT2",
        "MB64-NB128-KB16-TA64-TB32-TK16-KI8-DEPTHS1-STAGES4-BLOCKS2-GROUP8-SPLIT4",
        "MB64-NB64-KB32-TA32-TB32-TK16-KI4-DEPTHS2-STAGES5-BLOCKS1-GROUP4-SPLIT3",
        "MB32-NB16-KB128-TA16-TB16-TK32-KI8-DEPTHS2-STAGES2-BLOCKS1-GROUP8-SPLIT1",
        "MB16-NB64-KB64-TA16-TB16-TK64-KI8-DEPTHS1-STAGES5-BLOCKS1-GROUP8-SPLIT2",
        "MB48-NB64-KB16-TA48-TB16-TK16-KI4-DEPTHS1-STAGES2-BLOCKS3-GROUP1-SPLIT1",
    )
)


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay_and_share_all_units(slug):
    config = parse_slug(slug)
    for problem in (Problem(1, 1, 999, "f64"), Problem(129, 4097, 640, "f64", True, True, 7)):
        assert not TMA_F64.violations(config, problem, HOPPER)
        units = TMA_F64.units(config, problem)
        assert units * config.MB * config.NB >= config.SPLIT * problem.m * problem.n * problem.batch
        for sms in (1, 2, 132):
            assert TMA_F64.grid(config, problem, sms) == (min(units, sms * config.BLOCKS), 1, 1)


@pytest.mark.parametrize("n", [1, 256, 1000, 1024, 2048, 3200, 4096, 10000])
def test_the_default_obeys_the_rules_of_every_hopper(n):
    problem = Problem(n, n, n, "f64")
    little = replace(HOPPER, sms=114, shared_per_block=99 * 1024, shared_per_sm=100 * 1024)
    for device in (HOPPER, little):
        assert TMA_F64 in kernels_for(problem, device)
        config = TMA_F64.default_for(problem, device)
        assert not TMA_F64.violations(config, problem, device)


@pytest.mark.parametrize("trans", [(False, False), (False, True), (True, False), (True, True)])
def test_all_sizes_of_a_layout_run_one_text(trans):
    config = parse_slug(SLUGS[0])
    texts = {
        render(config, Problem(n, n, n, "f64", *trans), alignment).key
        for n, alignment in ((1, 8), (4096, 16))
    }
    assert len(texts) == 1


def row_of(along_k: bool, half: int, g: int) -> int:
    """Row of a group of 16 that lane group g reads in a half, by the kernel's own formulas."""
    if along_k:
        return (g if g % 2 == 0 else 8 + ((g - 1) ^ 4)) + half
    return g % 2 + g // 2 % 2 * 8 + g // 4 * 2 + 4 * half


@pytest.mark.parametrize("along_k", [False, True])
def test_fragments_take_every_row_once_and_meet_no_bank_conflict(along_k):
    """Of 16 lanes that are served together each reads 8 bytes from another pair of the 32 banks;
    TMA puts piece c of 16 bytes of line l at c ^ l % 8.
    """
    taken = [row_of(along_k, h, g) for h in range(2) for g in range(8)]
    assert sorted(taken) == list(range(16))
    for h in range(2):
        for depth in range(0, 16, 4):
            for served in (range(4), range(4, 8)):
                pairs = set()
                for g in served:
                    for k in range(depth, depth + 4):
                        row = row_of(along_k, h, g)
                        line, at = (row, k) if along_k else (k, row)
                        pairs.add((at // 2 ^ line % 8) * 2 + at % 2)
                assert len(pairs) == 16


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, ("f64",))
