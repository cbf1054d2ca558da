"""Kernel 16: its geometry, and products of any size, layout, start, stride and stack, in the
simulator and on a GPU.
"""

from __future__ import annotations

import pytest
from fed_products import HOPPER, check, check_many, check_on_gpu
from h200 import H200
from test_wgmma import check_half

from pymm.backends import open_device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug

PING_PONG = find_kernel("ping_pong")
SLUGS = (
    "ping_pong-MB128-NB176-KB64-STAGES4-CLUSTER2-GROUP8-SLOTS1",
    "ping_pong-MB128-NB192-KB64-STAGES3-CLUSTER1-GROUP8-SLOTS2",
    "ping_pong-MB128-NB112-KB64-STAGES6-CLUSTER2-GROUP4-SLOTS2",
    "ping_pong-MB64-NB256-KB64-STAGES4-CLUSTER2-GROUP1-SLOTS1",
    "ping_pong-MB64-NB64-KB64-STAGES2-CLUSTER1-GROUP8-SLOTS1",
    "ping_pong-MB64-NB144-KB64-STAGES6-CLUSTER1-GROUP16-SLOTS2",
    "ping_pong-MB128-NB80-KB64-STAGES2-CLUSTER2-GROUP8-SLOTS1",
)
#: Some that the simulator runs, and the layouts that they are compiled for.
SIMULATED = (
    ("ping_pong-MB128-NB80-KB64-STAGES3-CLUSTER1-GROUP8-SLOTS1", "bf16", ("NT",)),
    ("ping_pong-MB64-NB112-KB64-STAGES2-CLUSTER1-GROUP1-SLOTS2", "f16", ("NN",)),
    ("ping_pong-MB64-NB80-KB64-STAGES4-CLUSTER1-GROUP8-SLOTS1", "bf16_f32", ("TN", "TT")),
)
DTYPES = ("f16", "bf16", "f16_f32", "bf16_f32")


@pytest.mark.parametrize(
    "form, trans_a, dtype, allowed",
    [
        ("NB192-CLUSTER1-SLOTS2", False, "bf16", True),
        ("NB192-CLUSTER1-SLOTS1", False, "bf16_f32", True),
        ("NB192-CLUSTER1-SLOTS2", False, "bf16_f32", False),
        ("NB176-CLUSTER1-SLOTS2", False, "f16_f32", False),
        ("NB176-CLUSTER2-SLOTS1", False, "f16_f32", True),
        ("NB176-CLUSTER2-SLOTS1", True, "f16_f32", False),
        ("NB176-CLUSTER2-SLOTS2", True, "bf16", True),
        ("NB160-CLUSTER2-SLOTS2", True, "f16_f32", True),
    ],
)
def test_many_sums_leave_a_c_of_float32_fewer_slots(form, trans_a, dtype, allowed):
    nb, rest = form.split("-", 1)
    cluster, slots = rest.split("-")
    config = parse_slug(f"ping_pong-MB128-{nb}-KB64-STAGES3-{cluster}-GROUP8-{slots}")
    problem = Problem(512, 512, 512, dtype, trans_a)
    assert (not PING_PONG.violations(config, problem, HOPPER)) == allowed


@pytest.mark.parametrize("trans_b", [False, True])
def test_large_products_with_a_c_of_float32_have_a_default(trans_b):
    problem = Problem(4096, 32768, 5120, "bf16_f32", False, trans_b)
    assert not PING_PONG.violations(PING_PONG.default_for(problem, HOPPER), problem, HOPPER)


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay_and_come_in_whole_clusters(slug):
    config = parse_slug(slug)
    for problem in (Problem(1, 1, 999, "bf16"), Problem(129, 4097, 777, "f16", batch=7)):
        assert not PING_PONG.violations(config, problem, HOPPER)
        every = PING_PONG.units(config, problem)
        assert every * config.MB * config.NB >= problem.m * problem.n * problem.batch
        for sms in (1, 2, 7, 132):
            x, y, z = PING_PONG.grid(config, problem, sms)
            assert (y, z) == (1, 1) and x % config.CLUSTER == 0
            assert x == every or x == max(sms - sms % config.CLUSTER, config.CLUSTER) < every


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype, layouts", SIMULATED)
def test_any_size_in_the_simulator(cuda, slug, dtype, layouts):
    check_many(cuda, slug, (dtype,), layouts, count=8, most=300, deepest=300)


@pytest.mark.simulator
@pytest.mark.parametrize("op", ["syrk", "syrk_lower", "syrk_upper"])
def test_half_of_a_symmetric_c(cuda, op):
    check_half(cuda, *SIMULATED[1][:2], op)


@pytest.mark.simulator
@pytest.mark.parametrize("tiles", [1, 2, 3, 4, 5])
def test_every_number_of_tiles_of_a_block(cuda, tiles):
    """The turns of the two warpgroups end wherever the tiles do."""
    config = parse_slug(SIMULATED[1][0])
    for k in (1, 64, 65, 200):  # fewer steps than stages, as many, more
        batch = tiles * cuda.device.sms
        check(cuda, config, Problem(5, 9, k, "bf16", batch=batch), tiles)


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, DTYPES)


@pytest.mark.gpu
@pytest.mark.parametrize("op", ["syrk", "syrk_lower", "syrk_upper"])
@pytest.mark.parametrize("slug", SLUGS)
def test_half_of_a_symmetric_c_on_a_gpu(slug, op):
    backend = open_device("cuda")
    if PING_PONG in kernels_for(Problem(8, 8, 8, "bf16", op=op), backend.device):
        for dtype in DTYPES:
            check_half(backend, slug, dtype, op)
    else:
        assert backend.device.capability != HOPPER.capability


@pytest.mark.parametrize(
    "mnkb, preferred",
    [
        ((64, 64, 64, 1000), True),
        ((40, 40, 64, 2000), True),
        ((64, 56, 256, 400), True),
        ((64, 64, 64, 100), False),  # too few
        ((64, 64, 65536, 2), False),  # k is to be split
        ((32, 32, 32, 4000), False),  # kernel 12
        ((40, 41, 64, 2000), False),  # TMA does not store such a C
        ((65, 64, 64, 1000), False),
    ],
)
def test_many_small_products_have_a_tile_each(mnkb, preferred):
    m, n, k, batch = mnkb
    for dtype in ("bf16", "f16", "bf16_f32"):
        problem = Problem(m, n, k, dtype, batch=batch)
        assert (kernels_for(problem, HOPPER)[-1] == PING_PONG) == preferred
    if preferred:
        config = PING_PONG.default_for(problem, HOPPER)
        assert (config.MB, config.NB) == (64, 64)
        assert not PING_PONG.violations(config, problem, HOPPER)


@pytest.mark.parametrize("trans_b", [False, True])
def test_products_whose_c_threads_store_are_offered_but_no_defaults(trans_b):
    """Their tiles take longer than those of as wide a C that TMA stores."""
    by_threads, by_tma = (Problem(1600, n, 960, "bf16", False, trans_b) for n in (1598, 1600))
    offered, faster = (list(PING_PONG.options(p, H200)) for p in (by_threads, by_tma))
    assert offered and not PING_PONG.preferred_for(by_threads, H200)
    assert min(time for time, _ in offered) > min(time for time, _ in faster)
    for _, config in offered:
        assert not PING_PONG.violations(config, by_threads, H200)


@pytest.mark.parametrize(
    "n, k, clusters",
    [
        (1600, 960, {1}),  # rows at multiples of 32 bytes, C not wide
        (1600, 1000, {1, 2}),  # those of A within sectors
        (1600, 1001, {1, 2}),  # A is repacked
        (6400, 960, {1, 2}),  # C is wide
    ],
)
def test_pairs_and_slots_that_are_offered(n, k, clusters):
    options = [c for _, c in PING_PONG.options(Problem(1600, n, k, "bf16"), H200)]
    assert {c.CLUSTER for c in options} == clusters
    assert {c.SLOTS for c in options} == {1, 2}


@pytest.mark.parametrize(
    "mnk, slots",
    [
        ((1600, 1600, 960), 2),
        ((1600, 1600, 1000), 2),
        ((1600, 1598, 960), 1),  # threads store C
        ((1600, 1600, 4096), 1),  # more stages instead
        ((128, 32768, 960), 1),  # few rows
    ],
)
def test_slots_of_defaults(mnk, slots):
    assert PING_PONG.default_for(Problem(*mnk, "bf16"), HOPPER).SLOTS == slots


def test_a_c_of_float32_has_as_many_slots_as_registers_allow():
    problem = Problem(1600, 1600, 1000, "bf16_f32", True, True)
    options = [config for _, config in PING_PONG.options(problem, H200)]
    assert {c.SLOTS for c in options if c.NB <= 160} == {1, 2}
    assert {c.SLOTS for c in options if c.NB > 160} == {1}
    assert not any(PING_PONG.violations(config, problem, H200) for config in options)
