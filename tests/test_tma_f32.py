"""Kernel 8: its geometry; on a Hopper GPU, products of any size, layout, stride and stack."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pymm import reference
from pymm.backends import open_device
from pymm.device import Device
from pymm.fields import NUMBER, POISON, Field, normal
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.launch import executable
from pymm.problem import Problem, stored_shapes
from pymm.source import render
from pymm.verify import compare

TMA_F32 = find_kernel("tma_f32")
HOPPER = Device(
    "hopper", "cuda", capability=(9, 0), sms=132, shared_per_block=232448, shared_per_sm=233472
)
SLUGS = (
    "tma_f32-MB128-NB256-KB32-ROWS8-EARLY1-STRIDE4-TA16-TB8-SLICES1-STAGES4-BLOCKS1-GROUP8-SPLIT1",
    "tma_f32-MB160-NB256-KB32-ROWS8-EARLY1-STRIDE2-TA20-TB8-SLICES1-STAGES3-BLOCKS1-GROUP8-SPLIT1",
    "tma_f32-MB256-NB160-KB32-ROWS16-EARLY1-STRIDE2-TA8-TB20-SLICES1-STAGES3-BLOCKS1-GROUP4-SPLIT1",
    "tma_f32-MB64-NB128-KB32-ROWS16-EARLY1-STRIDE2-TA8-TB8-SLICES1-STAGES2-BLOCKS3-GROUP8-SPLIT2",
    "tma_f32-MB64-NB128-KB32-ROWS8-EARLY2-STRIDE1-TA16-TB8-SLICES4-STAGES4-BLOCKS1-GROUP8-SPLIT1",
    "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT3",
    "tma_f32-MB32-NB64-KB64-ROWS2-EARLY1-STRIDE2-TA8-TB8-SLICES8-STAGES3-BLOCKS1-GROUP1-SPLIT8",
)


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


def test_all_layouts_and_sizes_run_one_text():
    config = parse_slug(SLUGS[0])
    texts = {
        render(config, Problem(n, n, n, "f32", trans_a, trans_b), alignment).key
        for n, alignment in ((1, 4), (4096, 16))
        for trans_a in (False, True)
        for trans_b in (False, True)
    }
    assert len(texts) == 1


def hurting(seed: int) -> tuple[Problem, tuple[int, int, int], tuple[float, float]]:
    """A random problem, elements between the rows of A, B and C, alpha and beta."""
    draw = random.Random(seed)
    edges = (1, 2, 7, 63, 64, 65, 128, 257, draw.randint(1, 700), 4 * draw.randint(1, 160))
    m, n = draw.choice(edges), draw.choice(edges)
    k = draw.choice((0, 1, 8, 63, 65, 128, 513, draw.randint(1, 1200)))
    trans = draw.random() < 0.5, draw.random() < 0.5
    problem = Problem(m, n, k, "f32", *trans, draw.choice((1, 1, 2, 5)))
    widths = [shape[2] for shape in stored_shapes(problem)]
    gaps = tuple(draw.choice((0, 3, 4, -width % 4)) for width in widths)
    return problem, gaps, draw.choice(((1.0, 0.0), (-1.25, 0.75), (0.5, 1.0)))


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    backend = open_device("cuda")
    config = parse_slug(slug)
    if not TMA_F32.runs_on(backend.device):
        pytest.fail(f"{TMA_F32.name} needs a Hopper GPU, not {backend.device.name}")
    for seed in range(60):
        problem, gaps, (alpha, beta) = hurting(seed)
        if TMA_F32.violations(config, problem, backend.device):
            problem = replace(problem, k=config.SPLIT * config.KB + seed)
        places = zip(stored_shapes(problem), gaps, (POISON, POISON, NUMBER), strict=True)
        fields = [Field(backend, problem.numpy_dtype, *place) for place in places]
        values = normal(problem, seed)
        for field, value in zip(fields, values, strict=True):
            field.write(value)
        a, b, c = (field.matrix for field in fields)
        executable(backend, config, problem).bind(problem, alpha, a, b, beta, c)()
        backend.synchronize()
        got, touched = fields[2].read()
        judged = (problem, *values, alpha, beta)
        finding = compare(got, reference.product(*judged), reference.error_bound(*judged))
        assert not touched and finding.right, (problem.slug, gaps, touched, finding.detail)
