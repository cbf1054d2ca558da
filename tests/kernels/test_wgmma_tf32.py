"""Kernels 10 and 13: who may run them, their geometry and sums; on a Hopper GPU, products."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fed_products import HOPPER, check_on_gpu

from pymm.backends import open_device
from pymm.core import reference
from pymm.core.device import Device
from pymm.core.problem import Problem, stored_shapes
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.source import render
from pymm.measure.verify import GuardedMatrix, normal
from pymm.runtime.bind import executable

LAYOUTS = [(False, False), (False, True), (True, False), (True, True)]
SLUGS = (
    "wgmma_tf32-MB256-NB128-KB32-TA256-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32-MB256-NB128-KB32-TA256-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER2-GROUP4-SPLIT1",
    "wgmma_tf32-MB64-NB128-KB32-TA64-TB128-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32-MB192-NB64-KB64-TA96-TB64-SLICES1-STAGES3-SLOTS2-CLUSTER2-GROUP1-SPLIT1",
    "wgmma_tf32-MB160-NB192-KB32-TA160-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32-MB224-NB64-KB32-TA224-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT2",
    "wgmma_tf32-MB64-NB128-KB32-TA32-TB64-SLICES1-STAGES2-SLOTS2-CLUSTER1-GROUP8-SPLIT3",
    "wgmma_tf32-MB16-NB64-KB64-TA16-TB64-SLICES1-STAGES8-SLOTS1-CLUSTER2-GROUP1-SPLIT5",
    "wgmma_tf32-MB64-NB64-KB64-TA64-TB64-SLICES2-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32-MB32-NB128-KB32-TA32-TB64-SLICES2-STAGES4-SLOTS4-CLUSTER2-GROUP8-SPLIT3",
    "wgmma_tf32-MB128-NB128-KB32-TA64-TB64-SLICES1-STAGES3-SLOTS3-CLUSTER2-GROUP8-SPLIT1",
    "wgmma_tf32-MB192-NB128-KB32-TA192-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP64-SPLIT1",
    "wgmma_tf32-MB96-NB192-KB32-TA96-TB64-SLICES1-STAGES3-SLOTS2-CLUSTER1-GROUP8-SPLIT2",
    "wgmma_tf32x3-MB128-NB128-KB32-TA128-TB64-STAGES3-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32x3-MB128-NB128-KB32-TA64-TB128-STAGES2-CLUSTER2-GROUP4-SPLIT1",
    "wgmma_tf32x3-MB64-NB192-KB32-TA64-TB64-STAGES2-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32x3-MB192-NB64-KB32-TA192-TB64-STAGES2-CLUSTER1-GROUP8-SPLIT1",
    "wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER2-GROUP1-SPLIT7",
)


def one_of(slug: str) -> tuple:
    """A configuration, its kernel and the type it is for."""
    config = parse_slug(slug)
    return config, config.kernel, config.kernel.dtypes[0]


@pytest.mark.parametrize("dtype", ["tf32", "tf32x3"])
@pytest.mark.parametrize(
    "device, runs",
    [
        (HOPPER, True),
        (replace(HOPPER, kind="simulator"), False),
        (replace(HOPPER, capability=(8, 9)), False),
        (replace(HOPPER, capability=(10, 0)), False),
        (Device("cpu", "cpu"), False),
    ],
    ids=["hopper", "simulator", "ada", "blackwell", "cpu"],
)
def test_only_hopper_runs_them(device, runs, dtype):
    assert (find_kernel(f"wgmma_{dtype}") in kernels_for(Problem(8, 8, 8, dtype), device)) == runs


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay_and_come_in_whole_clusters(slug):
    config, kernel, dtype = one_of(slug)
    for problem in (Problem(1, 1, 999, dtype), Problem(129, 4097, 640, dtype, batch=7)):
        every = kernel.units(config, problem)
        area = every * config.MB * config.NB
        assert area >= config.SPLIT * problem.m * problem.n * problem.batch
        for sms in (2, 7, 132):
            x, y, z = kernel.grid(config, problem, sms)
            assert (y, z) == (1, 1) and x % config.CLUSTER == 0 and x in (every, sms, sms - 1)


@pytest.mark.parametrize(
    "mnk, tile, accurate",
    [
        ((512, 512, 512), (32, 64), (32, 64)),
        ((641, 641, 641), (64, 64), (64, 64)),
        ((1024, 1024, 1024), (128, 64), (64, 128)),
        ((2048, 2048, 2048), (256, 128), (128, 128)),
        ((8192, 8192, 8192), (256, 128), (128, 128)),
        ((16, 8192, 8192), (16, 64), (64, 128)),
    ],
)
def test_the_default_fills_the_gpu_where_it_can(mnk, tile, accurate):
    for dtype, wanted in (("tf32", tile), ("tf32x3", accurate)):
        kernel, problem = find_kernel(f"wgmma_{dtype}"), Problem(*mnk, dtype)
        config = kernel.default_for(problem, HOPPER)
        assert (config.MB, config.NB) == wanted
        assert kernel.units(config, problem) >= 0.9 * HOPPER.sms


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("n", [1000, 4096, 8192])
def test_short_products_store_c_row_by_row(n, layout):
    """Of blocks that run at one time each begins beside the one before or at the next rows of C."""
    problem = Problem(8192, n, 64, "tf32", *layout)
    kernel = find_kernel("wgmma_tf32")
    config, given = kernel.default_for(problem, HOPPER), kernel.tma.as_loaded(problem)
    if given.trans_a and given.trans_b:  # what is multiplied is C, and GROUP counts along its rows
        assert config.GROUP * config.MB >= n
    else:
        assert config.GROUP == 1


@pytest.mark.parametrize("dtype", ["tf32", "tf32x3"])
@pytest.mark.parametrize("k", [0, 1, 100, 1000, 100_000, 10**9])
def test_the_default_obeys_the_rules_of_every_hopper(k, dtype):
    kernel = find_kernel(f"wgmma_{dtype}")
    little = replace(HOPPER, sms=114, shared_per_block=99 * 1024)
    for device in (HOPPER, little):
        for m, n, batch in ((1, 1, 1), (64, 300, 1), (3, 5000, 7), (4096, 4096, 100)):
            problem = Problem(m, n, k, dtype, *LAYOUTS[batch % 4], batch)
            config = kernel.default_for(problem, device)
            assert not kernel.violations(config, problem, device)
            few = kernel.units(config, problem) < device.sms / 2
            assert config.SPLIT > 1 or not few or k < 100_000


@pytest.mark.parametrize("slug", SLUGS)
def test_registers_of_all_warpgroups_are_those_of_the_launch(slug):
    """More would make `setmaxnreg` wait for ever. By the kernels' own numbers: 40 or 24, 32, 64 for
    the warpgroup that fetches, 232 or 240, 160, 104 for those that multiply.
    """
    config, kernel, _ = one_of(slug)
    count = kernel.threads(config) // 128 - 1
    greedy = kernel.tma.terms * config.TA * config.TB > 128 * 128
    pair = (24, 240) if greedy else (40, 232)
    few, many = {1: pair, 2: pair, 3: (32, 160), 4: (64, 104)}[count]
    launched = min(232, 65536 // (128 * (count + 1)) // 8 * 8)
    assert few + count * many <= (count + 1) * launched


@pytest.mark.parametrize("slug", SLUGS)
def test_one_text_for_all_sizes_and_few_layouts(slug):
    """Where both lie across k the smaller one is copied, unless A is thin; what must be copied, and
    what comes as two terms, is copied along k.
    """
    config, kernel, dtype = one_of(slug)
    texts = {}
    for trans in LAYOUTS:
        odd = kernel.tma.as_loaded(Problem(641, 641, 641, dtype, *trans))
        assert (odd.trans_a, odd.trans_b) == (False, True)
        for m, n in ((4, 640), (4096, 4096), (4096, 16)):
            problem = Problem(m, n, 32768, dtype, *trans)
            given = kernel.tma.as_loaded(problem)
            turned = (given.trans_a != trans[0]) * m + (given.trans_b != trans[1]) * n
            across = trans == (True, False) and m > 4
            assert turned == (
                min(m, n) * across if dtype == "tf32" else m * trans[0] + n * (not trans[1])
            )
            key = render(config, problem, 4).key
            assert texts.setdefault((given.trans_a, given.trans_b), key) == key
    assert len(texts) == (4 if dtype == "tf32" else 1)


@pytest.mark.parametrize("slug", SLUGS)
def test_boxes_fill_the_tiles(slug):
    config, kernel, dtype = one_of(slug)
    for trans in LAYOUTS:
        for m, n in ((300, 999), (77, 15)):
            given = kernel.tma.as_loaded(Problem(m, n, 111, dtype, *trans))
            boxes = kernel.tma.boxes(config, given)
            assert all(
                box.columns * 4 == box.swizzle == 128 and box.rows <= 256 for box in boxes if box
            )
            swapped, across = given.trans_a and given.trans_b, given.trans_a > given.trans_b
            along, other = boxes[1::-1] if swapped else boxes[:2]
            fits = min(config.MB // config.CLUSTER, -(-(n if swapped else m) // 8) * 8)
            assert along.rows == (32 if across else fits)
            direct = given.trans_b and not given.trans_a
            assert other.rows == (min(config.NB, -(-n // 8) * 8) if direct else config.KB)


def cut(x, bits, exponent):
    """Everything below the `bits`th bit of 2^exponent cut off."""
    unit = np.ldexp(1.0, exponent - bits)
    return np.trunc(x / unit) * unit


def rounded(x):
    """To tf32's 11 significant bits, to nearest."""
    fraction, exponent = np.frexp(x)
    return np.ldexp(np.rint(fraction * 2**11) / 2**11, exponent)


def summed_three_times(a, b, depth):
    """Three products of high and low terms, 8 at a time with the sum so far, cut off as tensor
    cores do it (the least exact of the models in the source that `reference` names); what `depth`
    of them make is added in float32.
    """
    high_a, high_b = rounded(a), rounded(b)
    terms = (high_a, rounded(b - high_b)), (rounded(a - high_a), high_b), (high_a, high_b)
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k0 in range(0, a.shape[1], depth):
        sums = np.zeros(total.shape)
        for left, right in terms:
            for k in range(k0, min(k0 + depth, a.shape[1]), 8):
                end = min(k + 8, k0 + depth)
                parts = left[:, k:end, None] * right[None, k:end, :]
                parts = np.concatenate([sums[:, None], parts], axis=1)
                _, exponent = np.frexp(np.abs(parts).max(axis=1, keepdims=True))
                sums = cut(parts, 25, exponent).sum(axis=1)
                sums = cut(sums, 24, np.frexp(sums)[1])
        total += sums.astype(np.float32)
    return total.astype(float)


@pytest.mark.parametrize("positive", [False, True])
def test_sums_in_steps_are_as_good_as_float32(positive):
    problem = Problem(24, 16, 1024, "tf32x3")
    a, b, _ = (x[0] for x in normal(problem, 1))
    if positive:
        a, b = abs(a), abs(b)
    exact = reference.product(problem, a, b)
    off = {
        depth: summed_three_times(a.astype(float), b.astype(float), depth) - exact
        for depth in (32, 1024)
    }
    assert (np.abs(off[32]) <= reference.error_bound(problem, a, b)).all()
    assert (np.abs(off[1024]) <= reference.error_bound(problem, a, b)).all()
    plain = np.zeros(exact.shape, np.float32)
    for k in range(problem.k):
        plain += a[:, k, None] * b[None, k]
    norms = {depth: np.linalg.norm(x) for depth, x in off.items()}
    assert norms[32] < np.linalg.norm(plain - exact) < norms[1024]


PARTED = "wgmma_tf32-MB64-NB64-KB32-TA64-TB64-SLICES1-STAGES2-SLOTS1-CLUSTER1-GROUP8-SPLIT3"


def test_alpha_zero_reads_no_sums(cuda):
    """A product by nothing but zero after one of NaN: its parts are zeros, not what registers had.
    In the simulator, or on a Hopper GPU.
    """
    config, problem = parse_slug(PARTED), Problem(70, 72, 200, "tf32")
    if not cuda.device.kind == "simulator" and not config.kernel.runs_on(cuda.device):
        assert config.kernel not in kernels_for(problem, cuda.device)
        return
    fields = [GuardedMatrix(cuda, problem.numpy_dtype, shape) for shape in stored_shapes(problem)]
    for field in fields[:2]:
        field.write(np.full(field.shape, np.nan, np.float32))
    fields[2].write(np.full(fields[2].shape, 2.0, np.float32))
    a, b, c = (field.matrix for field in fields)
    for depth, alpha, beta in ((200, 1.0, 0.0), (0, 0.0, 0.0), (200, 1.0, 0.0), (0, 0.0, 1.0)):
        if beta:
            fields[2].write(np.full(fields[2].shape, 2.0, np.float32))
        given = replace(problem, k=depth)
        run = executable(cuda, config, given).bind(given, alpha, a, b, beta, c)
        run()
        cuda.synchronize()
        wanted = 2.0 * beta if depth == 0 else np.nan
        np.testing.assert_array_equal(fields[2].read()[0], np.full(fields[2].shape, wanted))


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, one_of(slug)[2:])


@pytest.mark.gpu
@pytest.mark.parametrize("k, most", [(64, 1.8e-7), (4096, 3e-7)])
def test_three_products_err_less_than_float32(k, most):
    """Seen on an H200: 1.3e-7 and 2.4e-7, where float32's own products err by 1.4e-7 and 1.2e-6
    (relative, Frobenius norm, normal numbers).
    """
    backend = open_device("cuda")
    problem = Problem(200, 300, k, "tf32x3")
    kernel = find_kernel("wgmma_tf32x3")
    if not kernel.runs_on(backend.device):
        assert kernel not in kernels_for(problem, backend.device)
        return
    fields = [
        GuardedMatrix(backend, problem.numpy_dtype, shape) for shape in stored_shapes(problem)
    ]
    a, b, _ = values = normal(problem, k)
    for field, value in zip(fields, values, strict=True):
        field.write(value)
    matrices = [field.matrix for field in fields]
    config = kernel.default_for(problem, backend.device)
    call = executable(backend, config, problem).bind(problem, 1.0, *matrices[:2], 0.0, matrices[2])
    call()
    backend.synchronize()
    exact = reference.product(problem, a, b)
    off = fields[2].read()[0].astype(float) - exact
    assert np.linalg.norm(off) < most * np.linalg.norm(exact)
