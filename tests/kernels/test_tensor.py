"""Kernel 12 against float64: every type, layout and way of copying, on shapes chosen to hurt, in
the simulator or on a GPU. And what it promises without running: banks, defaults, who it is for.
"""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from guarded_products import Stored, check, hurting, whole
from h200 import H200

import pymm
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.measure.verify import normal

TENSOR = find_kernel("tensor")
SLUG = "tensor-MB32-NB32-KB32-TA16-TB16-STAGES3-BLOCKS1-GROUP2-SPLIT1"
#: Every layout of a type of 16 bits and of tf32, at least one of the others. Tiles lie in lines of
#: 64, 128 and 256 bytes; 16-bit rows at odd multiples of 2 bytes are copied 16 bytes at a time.
ANYWHERE = (
    ("tensor-MB32-NB64-KB32-TA16-TB32-STAGES3-BLOCKS1-GROUP2-SPLIT1", "bf16", "NN"),
    ("tensor-MB32-NB32-KB64-TA16-TB32-STAGES2-BLOCKS1-GROUP2-SPLIT1", "bf16", "TT"),
    (SLUG, "f16", "NT"),
    (SLUG, "f16_f32", "TN"),
    ("tensor-MB32-NB64-KB16-TA16-TB32-STAGES3-BLOCKS1-GROUP2-SPLIT1", "tf32", "NN"),
    ("tensor-MB32-NB32-KB16-TA32-TB16-STAGES2-BLOCKS1-GROUP2-SPLIT1", "tf32", "TT"),
    ("tensor-MB32-NB32-KB32-TA16-TB16-STAGES4-BLOCKS1-GROUP2-SPLIT1", "tf32", "TN"),
    ("tensor-MB16-NB32-KB16-TA16-TB16-STAGES3-BLOCKS1-GROUP2-SPLIT1", "tf32", "NT"),
    ("tensor-MB32-NB32-KB64-TA16-TB16-SLICES2-STAGES3-BLOCKS1-GROUP2-SPLIT1", "bf16", "TN"),
    ("tensor-MB32-NB32-KB128-TA16-TB16-SLICES4-STAGES2-BLOCKS1-GROUP2-SPLIT1", "f16_f32", "NT"),
    ("tensor-MB32-NB32-KB128-TA32-TB16-SLICES2-STAGES3-BLOCKS1-GROUP2-SPLIT1", "f16", "NN"),
    ("tensor-MB32-NB32-KB64-TA16-TB16-SLICES4-STAGES2-BLOCKS1-GROUP2-SPLIT1", "tf32", "TN"),
)
#: Rows at multiples of so many bytes, with guards and without, k split or not.
ALIGNED = (
    ("tensor-MB64-NB64-KB32-TA32-TB32-STAGES4-BLOCKS1-GROUP8-SPLIT1", "bf16", "NN", 16, False),
    ("tensor-MB64-NB32-KB64-TA64-TB16-STAGES2-BLOCKS1-GROUP8-SPLIT2", "bf16", "TN", 16, True),
    ("tensor-MB32-NB64-KB32-TA16-TB64-STAGES3-BLOCKS1-GROUP1-SPLIT1", "f16", "NT", 8, True),
    ("tensor-MB32-NB32-KB64-TA16-TB16-STAGES3-BLOCKS1-GROUP8-SPLIT3", "bf16_f32", "TT", 4, True),
    ("tensor-MB32-NB64-KB32-TA16-TB32-STAGES3-BLOCKS1-GROUP8-SPLIT1", "bf16", "NT", 4, True),
    ("tensor-MB128-NB64-KB32-TA64-TB64-STAGES3-BLOCKS1-GROUP8-SPLIT1", "bf16", "TT", 8, True),
    ("tensor-MB64-NB64-KB32-TA32-TB32-STAGES3-BLOCKS1-GROUP8-SPLIT1", "f16_f32", "NN", 8, True),
    ("tensor-MB32-NB32-KB128-TA16-TB16-SLICES4-STAGES2-BLOCKS1-GROUP8-SPLIT1", "f16", "NN", 16, 1),
    ("tensor-MB64-NB32-KB32-TA32-TB16-STAGES2-BLOCKS1-GROUP1-SPLIT2", "tf32", "TT", 16, True),
    ("tensor-MB32-NB32-KB16-TA16-TB32-STAGES3-BLOCKS1-GROUP8-SPLIT1", "tf32", "NN", 8, False),
    ("tensor-MB32-NB64-KB64-TA16-TB32-SLICES2-STAGES3-BLOCKS1-GROUP8-SPLIT2", "bf16", "NT", 16, 0),
    ("tensor-MB32-NB32-KB128-TA32-TB16-SLICES4-STAGES2-BLOCKS1-GROUP8-SPLIT3", "f16", "TT", 8, 1),
    ("tensor-MB32-NB32-KB64-TA16-TB16-SLICES4-STAGES3-BLOCKS1-GROUP1-SPLIT2", "tf32", "NT", 16, 1),
)
SCALARS = ((1.0, 0.0), (-0.75, 1.0), (1.3, -0.6))


def kind(dtype: str, layout: str) -> tuple:
    return dtype, layout[0] == "T", layout[1] == "T"


@pytest.mark.parametrize("slug, dtype, layout", ANYWHERE)
def test_any_size_and_stride(runner, slug, dtype, layout):
    tile = parse_slug(slug).as_dict()
    executable = runner.executable(slug, dtype, layout, True)
    for seed, shape in enumerate(hurting(tile) + whole(tile)):
        problem = Problem(*shape, *kind(dtype, layout))
        check(runner, executable, problem, normal(problem, seed), *SCALARS[seed % 3], seed % 4)
    stack = Problem(17, 35, 41, *kind(dtype, layout), batch=3)
    a, b, c = normal(stack, 0)
    check(runner, executable, stack, (a, b[:1], c), 1.5, 0.5)
    check(runner, executable, stack, (a[:1], b, c))


@pytest.mark.parametrize("slug, dtype, layout, alignment, guarded", ALIGNED)
def test_pieces_of_rows(runner, slug, dtype, layout, alignment, guarded):
    tile = parse_slug(slug).as_dict()
    executable = runner.executable(slug, dtype, layout, guarded, alignment)
    step = alignment // Problem(1, 1, 1, dtype).numpy_dtype.itemsize
    mb, nb, kb = tile["MB"], tile["NB"], tile["KB"] * tile["SPLIT"]
    shapes = whole(tile)
    if guarded:
        shapes = [(mb + step, nb - step, 2 * kb + step), (step, step, kb - step), (3, 0, 2)]
        shapes = [tuple(-(-x // step) * step for x in shape) for shape in shapes if 0 not in shape]
    for seed, shape in enumerate(shapes):
        problem = Problem(*shape, *kind(dtype, layout))
        check(runner, executable, problem, normal(problem, seed), *SCALARS[seed % 3], step * seed)


@pytest.mark.parametrize("slug, dtype, layout", ANYWHERE[::3])
def test_nan_and_inf_stay_in_their_row_and_column(runner, slug, dtype, layout):
    """Where partial tiles end: padding must not turn Inf into NaN, nor reach other rows."""
    problem = Problem(18, 37, 41, *kind(dtype, layout))
    a, b, c = (np.abs(x) + 1 for x in normal(problem, 0))
    left = a.swapaxes(1, 2) if problem.trans_a else a
    right = b.swapaxes(1, 2) if problem.trans_b else b
    left[0, 3, 40], right[0, 40, 5], left[0, 17, 0] = np.inf, -np.inf, np.nan
    where = Stored.of(c, 2)
    executable = runner.executable(slug, dtype, layout, True)
    runner(executable, problem, Stored.of(a, 2), Stored.of(b, 2), where)
    want = np.full((18, 37), 1.0)
    want[:, 5], want[3, :] = -np.inf, np.inf
    want[3, 5], want[17, :] = -np.inf, np.nan
    got = where.elements[0].astype(float)
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(got), test(want))


@pytest.mark.parametrize("slug, dtype, layout", [ANYWHERE[0], ANYWHERE[4]])
def test_beta(runner, slug, dtype, layout):
    """beta = 0 writes over NaN without reading it; any other keeps it; k = 0 scales C."""
    executable = runner.executable(slug, dtype, layout, True)
    problem = Problem(9, 10, 3, *kind(dtype, layout))
    nothing = replace(problem, k=0)
    a, b, c = normal(problem, 1)
    c[0, 4, 4] = np.nan
    where = Stored.of(c, 1)
    runner(executable, problem, Stored.of(a, 1), Stored.of(b, 1), where, 1.0, 1e-30)
    assert np.argwhere(np.isnan(where.elements)).tolist() == [[0, 4, 4]]
    empty = [Stored.of(x, 1) for x in normal(nothing, 1)[:2]]
    runner(executable, nothing, *empty, where, 1.0, 0.0)
    np.testing.assert_array_equal(where.elements.astype(float), 0.0)
    where = Stored.of(c, 1)
    runner(executable, nothing, *empty, where, 1.0, -2.0)
    np.testing.assert_array_equal(where.elements.astype(float), -2.0 * c.astype(float))


def test_tf32_is_rounded_to_nearest(runner):
    """11 significant bits, what lies in the middle away from zero; every NaN stays one."""
    slug, dtype, layout = ANYWHERE[4]
    unit = 2.0**-10
    values = [1 + unit / 2, 1 + unit / 2 - 2**-23, -1 - 1.5 * unit, 1 + unit, 3e38, -np.inf]
    values = np.array([*values, 1e-39, 0.0], np.float32)
    wanted = [1 + unit, 1, -1 - 2 * unit, 1 + unit, 3e38, -np.inf, 1e-39, np.nan]
    values[7:].view(np.uint32)[...] = 0x7FFFFFFF
    a = values.reshape(1, 8, 1)
    problem = Problem(8, 1, 1, dtype)
    where = Stored.of(np.zeros((1, 8, 1), np.float32), 0)
    executable = runner.executable(slug, dtype, layout, True)
    b = np.ones((1, 1, 1), np.float32)
    runner(executable, problem, Stored.of(a, 0), Stored.of(b, 0), where)
    got = where.elements[0, :, 0]
    np.testing.assert_allclose(got, np.array(wanted, np.float32), rtol=2**-11, atol=1e-41)
    np.testing.assert_array_equal(got[:4], np.float32(wanted[:4]))


# Shared memory


def lines(k_contiguous: bool, size: int) -> list[int]:
    """Bytes of a line that the rules allow: 64 and more along k, 16 numbers and more across."""
    return [p for p in (32, 64, 128, 256, 512) if p >= (64 if k_contiguous else 16 * size)]


def turn(line: int, pitch: int, single: bool) -> int:
    """common/swizzled_tile.cuh's own, by its description."""
    ways = min(pitch // 16, 8)
    sharing = 8 // ways
    return line // sharing % (ways // 2) * 32 if single else line // sharing % ways * 16


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("k_contiguous", [False, True])
def test_no_bank_is_asked_twice(size, k_contiguous):
    """Model of 32 banks of 4 bytes: 8 lanes of `ldmatrix` read 16 bytes each in one go, 32 lanes
    one word each; copies write 16 bytes for each of 8 neighbours.
    """
    single = size == 4 and not k_contiguous
    for pitch in lines(k_contiguous, size):
        for line in range(0, 64, 8):
            for at in range(0, pitch, 32):
                if single:
                    places = [
                        (line + t) * pitch + (at + g * 4 ^ turn(line + t, pitch, True))
                        for t in range(4)
                        for g in range(8)
                    ]
                    banks = [place // 4 % 32 for place in places]
                else:
                    places = [
                        (line + r) * pitch + (at ^ turn(line + r, pitch, False)) for r in range(8)
                    ]
                    banks = [place // 16 % 8 for place in places]
                assert len(set(banks)) == len(banks), (pitch, line, at)
        for first in range(0, 64 * pitch, 128):
            bytes_ = range(first, first + 128, 16)
            turned = {
                (x // pitch * pitch + (x % pitch ^ turn(x // pitch, pitch, single))) // 16 % 8
                for x in bytes_
            }
            assert len(turned) == 8, (pitch, first)


# Declarations

AMPERE = Device(
    "a100",
    "cuda",
    capability=(8, 0),
    sms=108,
    shared_per_block=163 * 1024,
    shared_per_sm=164 * 1024,
)
ADA = Device(
    "4090",
    "cuda",
    capability=(8, 9),
    sms=128,
    shared_per_block=99 * 1024,
    shared_per_sm=100 * 1024,
    max_threads_per_sm=1536,
)
HOPPER = replace(AMPERE, capability=(9, 0), sms=132)


@pytest.mark.parametrize("dtype", TENSOR.dtypes)
def test_who_runs_it(dtype):
    problem = Problem(512, 512, 512, dtype)
    assert TENSOR in kernels_for(problem, replace(ADA, kind="simulator"))
    assert kernels_for(problem, AMPERE) == kernels_for(problem, ADA)
    assert kernels_for(problem, ADA)[-1] == TENSOR
    assert TENSOR not in kernels_for(problem, replace(ADA, capability=(7, 5)))
    hopper = kernels_for(problem, HOPPER)
    assert TENSOR in hopper and (hopper[-1] != TENSOR or len(hopper) == 1)


@pytest.mark.parametrize("device", [AMPERE, ADA, HOPPER], ids=lambda device: device.name)
@pytest.mark.parametrize("dtype", TENSOR.dtypes)
def test_defaults_obey_the_rules_and_fill_the_device(dtype, device):
    for shape in ((4096,) * 3, (4097,) * 3, (1024,) * 3, (300, 300, 50_000), (1, 1, 0), (9, 9, 1)):
        problem = Problem(*shape, dtype)
        config = TENSOR.default_for(problem, device)
        assert not TENSOR.violations(config, problem, device), config.slug
        tiles = TENSOR.tiles(config, problem)
        if problem.n >= 1024:
            assert 10 * tiles[0] >= 9 * device.sms
        waves = 2 if device is HOPPER else 1  # there the expected time chooses the parts of k
        assert config.SPLIT == 1 or tiles[0] * config.SPLIT <= waves * device.sms


def test_small_devices_get_smaller_tiles_or_fewer_stages():
    problem = Problem(4096, 4096, 4096, "bf16")
    large, small = (TENSOR.default_for(problem, device) for device in (AMPERE, ADA))
    assert (large.MB, large.NB, large.STAGES) == (128, 128, 4)
    assert (small.MB, small.NB, small.STAGES) == (128, 128, 3)


@pytest.mark.parametrize(
    "slug, dtype, n",
    [
        ("tensor-MB128-NB128-KB32-TA64-TB64-STAGES4-BLOCKS2-GROUP8-SPLIT1", "bf16", 4097),
        ("tensor-MB64-NB32-KB64-TA32-TB32-STAGES3-BLOCKS4-GROUP8-SPLIT1", "f16", 4097),
        ("tensor-MB64-NB64-KB64-TA16-TB64-STAGES3-BLOCKS3-GROUP8-SPLIT1", "f16_f32", 4097),
        ("tensor-MB64-NB128-KB16-TA32-TB64-STAGES4-BLOCKS3-GROUP8-SPLIT1", "tf32", 4097),
        ("tensor-MB32-NB128-KB64-TA16-TB32-STAGES3-BLOCKS2-GROUP8-SPLIT6", "bf16", 1024),
        ("tensor-MB128-NB32-KB64-TA32-TB16-STAGES3-BLOCKS2-GROUP8-SPLIT5", "f16", 1024),
        ("tensor-MB32-NB32-KB32-TA16-TB16-STAGES5-BLOCKS4-GROUP8-SPLIT9", "bf16", 4097),
        ("tensor-MB32-NB32-KB32-TA16-TB16-STAGES5-BLOCKS4-GROUP8-SPLIT15", "bf16", 1024),
    ],
)
def test_configurations_that_spilled_are_refused(slug, dtype, n):
    broken = TENSOR.violations(parse_slug(slug), Problem(n, n, n, dtype), HOPPER)
    assert any("registers" in reason for reason in broken), broken


@pytest.mark.parametrize("dtype, n, fits", [("bf16", 4097, False), ("bf16", 4098, True)])
@pytest.mark.parametrize("layout", ["NN", "TT"])
def test_warps_with_64_x_64_fit_where_rows_are_not_at_odd_multiples_of_2_bytes(
    dtype, n, fits, layout
):
    config = parse_slug("tensor-MB128-NB128-KB32-TA64-TB64-STAGES4-BLOCKS1-GROUP8-SPLIT1")
    problem = Problem(n, n, n, dtype, layout[0] == "T", layout[1] == "T")
    assert bool(TENSOR.violations(config, problem, HOPPER)) != fits
    in_parts = TENSOR.config(config.as_dict() | {"SPLIT": 2})
    assert TENSOR.violations(in_parts, problem, HOPPER)


@pytest.mark.parametrize(
    "form, parts",
    [
        ("MB32-NB32-KB64-TA16-TB16-SLICES2-STAGES4-BLOCKS2", 13),
        ("MB32-NB32-KB64-TA16-TB16-STAGES4-BLOCKS2", 13),
        ("MB32-NB32-KB32-TA16-TB16-STAGES5-BLOCKS4", 8),
        ("MB32-NB32-KB32-TA16-TB16-STAGES5-BLOCKS4", 16),
    ],
)
def test_configurations_like_them_that_do_not_spill_may_run(form, parts):
    config = parse_slug(f"tensor-{form}-GROUP8-SPLIT{parts}")
    assert not TENSOR.violations(config, Problem(58, 83, 1690, "bf16"), HOPPER)


@pytest.mark.parametrize(
    "dtype, form",
    [
        ("bf16", "MB64-NB64-KB64-TA32-TB32-STAGES3-BLOCKS4"),
        ("bf16_f32", "MB64-NB128-KB64-TA32-TB32-STAGES2-BLOCKS2"),
        ("tf32", "MB64-NB64-KB16-TA32-TB32-STAGES4-BLOCKS4"),
    ],
)
def test_more_blocks_where_tiles_at_the_edges_are_copied_in_whole_lines(dtype, form):
    """Unless k is split."""
    problem = Problem(552, 6840, 680, dtype)
    one, two = (parse_slug(f"tensor-{form}-GROUP8-SPLIT{parts}") for parts in (1, 2))
    assert TENSOR.guarded(one, problem) and not TENSOR.violations(one, problem, H200)
    assert any("registers" in reason for reason in TENSOR.violations(two, problem, H200))


# The whole way


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_matmul_of_16_bits(cuda, dtype):
    draw = np.random.default_rng(3)
    a = draw.standard_normal((35, 20)).astype(dtype)
    b = draw.standard_normal((33, 20)).astype(dtype)
    exact = a.astype(float) @ b.T.astype(float)
    got = pymm.matmul(a, b.T, device="cuda")
    assert got.dtype == dtype
    np.testing.assert_allclose(got.astype(float), exact, rtol=2**-7, atol=2**-7)
