"""Kernel 14: what float32 numbers become, when the default is what, how exact the products are."""

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

LAYOUTS = [(a, b) for a in (False, True) for b in (False, True)]

#: One to four warpgroups, k in parts, rings of odd length, a tile in two pieces for one warpgroup.
SLUGS = tuple(
    f"wgmma_f16x3-{form}"
    for form in (
        "MB128-NB128-KB64-TA64-TB128-STAGES6-GROUP8-SPLIT1-SLOTS1",
        "MB128-NB192-KB64-TA64-TB192-STAGES5-GROUP8-SPLIT1-SLOTS1",
        "MB128-NB192-KB64-TA64-TB192-STAGES4-GROUP4-SPLIT1-SLOTS2",
        "MB128-NB128-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS1",
        "MB128-NB64-KB64-TA128-TB64-STAGES7-GROUP8-SPLIT4-SLOTS1",
        "MB192-NB64-KB64-TA64-TB64-STAGES5-GROUP8-SPLIT1-SLOTS1",
        "MB64-NB64-KB64-TA64-TB64-STAGES12-GROUP1-SPLIT1-SLOTS2",
    )
)


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
def test_only_hopper_runs_it(device, runs):
    assert (find_kernel(14) in kernels_for(Problem(8, 8, 8, "f16x3"), device)) == runs


@pytest.mark.parametrize(
    "mnk, tile, busy",
    [
        ((500, 500, 500), (64, 64), 0.4),
        ((641, 641, 641), (64, 64), 0.9),
        ((1024, 1024, 1024), (128, 64), 0.9),
        ((4096, 4096, 4096), (128, 128), 0.9),
        ((8192, 8192, 8192), (128, 192), 0.9),
        ((8192, 8192, 64), (128, 128), 0.9),
        ((64, 64, 262144), (64, 64), 0.9),
    ],
)
def test_the_default_fills_the_gpu_where_it_can(mnk, tile, busy):
    kernel, problem = find_kernel(14), Problem(*mnk, "f16x3")
    config = kernel.default_for(problem, HOPPER)
    assert (config.MB, config.NB) == tile
    assert kernel.units(config, problem) >= busy * HOPPER.sms


@pytest.mark.parametrize("k", [0, 1, 100, 1000, 100_000, 10**9])
def test_the_default_obeys_the_rules_of_every_hopper(k):
    kernel = find_kernel(14)
    little = replace(HOPPER, sms=114, shared_per_block=99 * 1024)
    for device in (HOPPER, little):
        for m, n, batch in ((1, 1, 1), (64, 300, 1), (3, 5000, 7), (4096, 4096, 100)):
            problem = Problem(m, n, k, "f16x3", *LAYOUTS[batch % 4], batch)
            config = kernel.default_for(problem, device)
            assert not kernel.violations(config, problem, device)


@pytest.mark.parametrize("slug", SLUGS)
def test_registers_of_all_warpgroups_are_those_of_the_launch(slug):
    """More would make `setmaxnreg` wait for ever. By the kernel's own numbers."""
    config = parse_slug(slug)
    count = config.kernel.threads(config) // 128 - 1
    few, many = {1: (40, 232), 2: (40, 232), 3: (32, 160), 4: (64, 104)}[count]
    launched = min(232, 65536 // (128 * (count + 1)) // 8 * 8)
    assert few + count * many <= (count + 1) * launched
    assert config.TA * config.TB // 64 + 40 <= many


@pytest.mark.parametrize("slug", SLUGS)
def test_one_text_for_all_sizes_and_layouts(slug):
    config, texts = parse_slug(slug), set()
    for trans in LAYOUTS:
        for m, n in ((641, 641), (4, 640), (4096, 16)):
            problem = Problem(m, n, 32768, "f16x3", *trans)
            given = config.kernel.tma.as_loaded(problem)
            assert (given.trans_a, given.trans_b) == (False, True)
            texts.add(render(config, problem, 4).key)
    assert len(texts) == 1


def split(x):
    """High and low terms as float64, and the inverse powers of two, of rows of 64 along axis 1: one
    for each 64 of them if their largest numbers, but for zeros, are less than 2^9 apart.
    """
    largest = np.abs(x).max(axis=1, keepdims=True)
    _, exponent = np.frexp(largest)
    for first in range(0, len(x), 64):
        rows = slice(first, first + 64)
        present = exponent[rows][largest[rows] > 0]
        if present.size and np.ptp(present) <= 8:
            exponent[rows] = present.max()
    power = np.ldexp(1.0, np.minimum(15 - exponent, 126))
    high = (x * power).astype(np.float16).astype(float)
    return high, (x * power - high).astype(np.float16).astype(float), 1 / power


def cut(x, bits, exponent):
    """Everything below the `bits`th bit of 2^exponent cut off."""
    unit = np.ldexp(1.0, exponent - bits)
    return np.trunc(x / unit) * unit


def in_three_products(a, b):
    """A B by the model of tensor cores that `reference` names, 16 products at a time, the sums of
    each 64 of k times the powers added in float32.
    """
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k0 in range(0, a.shape[1], 64):
        high_a, low_a, rows = split(a[:, k0 : k0 + 64])
        high_b, low_b, columns = (x.T for x in split(b[k0 : k0 + 64].T))
        sums = np.zeros(total.shape)
        for left, right in ((low_a, high_b), (high_a, low_b), (high_a, high_b)):
            for k in range(0, left.shape[1], 16):
                parts = left[:, k : k + 16, None] * right[None, k : k + 16, :]
                parts = np.concatenate([sums[:, None], parts], axis=1)
                _, exponent = np.frexp(np.abs(parts).max(axis=1, keepdims=True))
                sums = cut(parts, 25, exponent).sum(axis=1)
                sums = cut(sums, 24, np.frexp(sums)[1])
        total = (total + sums * (rows * columns)).astype(np.float32)
    return total.astype(float)


#: How the sizes of a matrix's numbers vary: all alike, by row or column, within each row.
KINDS = {
    "normal": lambda x, draw: x,
    "positive": lambda x, draw: np.abs(x),
    "rows": lambda x, draw: x * 10.0 ** draw.uniform(-30, 4, (len(x), 1)),
    "columns": lambda x, draw: x * 10.0 ** draw.uniform(-30, 4, (1, x.shape[1])),
    "all": lambda x, draw: x * 10.0 ** draw.uniform(-9, 9, x.shape),
}


@pytest.mark.parametrize("k", [1, 63, 200, 515])
@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_holds_and_notices_a_lost_term(kind, k):
    p, draw = Problem(9, 7, k, "f16x3"), np.random.default_rng(k)
    a, b = (KINDS[kind](draw.standard_normal(s), draw) for s in ((9, k), (k, 7)))
    a, b = a.astype(np.float32), b.astype(np.float32)
    exact, bound = reference.product(p, a, b), reference.error_bound(p, a, b)
    made = in_three_products(a.astype(float), b.astype(float))
    assert (np.abs(made - exact) <= bound).all()
    if kind in ("normal", "positive") and k < 500:
        rough = in_three_products(a.astype(np.float16).astype(float), b.astype(float))
        assert (np.abs(rough - exact) > bound).any()


@pytest.mark.parametrize("kind", ["normal", "positive", "rows"])
def test_products_are_as_good_as_float32(kind):
    problem, draw = Problem(24, 16, 1024, "f16x3"), np.random.default_rng(1)
    a, b = (KINDS[kind](draw.standard_normal(s), draw) for s in ((24, 1024), (16, 1024)))
    a, b = a.astype(np.float32), b.astype(np.float32).T
    exact = reference.product(problem, a, b)
    plain = np.zeros(exact.shape, np.float32)
    for k in range(problem.k):
        plain += a[:, k, None] * b[None, k]
    size = np.abs(a.astype(float)) @ np.abs(b.astype(float))
    made = in_three_products(a.astype(float), b.astype(float))
    errors = [np.linalg.norm((x - exact) / size) for x in (made, plain)]
    assert errors[0] < errors[1]


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, ("f16x3",))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["normal", "rows", "all"])
@pytest.mark.parametrize("k, most", [(64, 1.4e-7), (4096, 3e-7)])
def test_a_product_errs_less_than_float32(k, most, kind):
    """Normal numbers: 1.2e-7 and 1.9e-7 on an H200, where float32's own products err by 1.4e-7 and
    1.1e-6 (relative, Frobenius norm). Others are within their bound.
    """
    backend, draw = open_device("cuda"), np.random.default_rng(k)
    problem, kernel = Problem(200, 300, k, "f16x3", False, True), find_kernel(14)
    if not kernel.runs_on(backend.device):
        assert kernel not in kernels_for(problem, backend.device)
        return
    fields = [
        GuardedMatrix(backend, problem.numpy_dtype, shape) for shape in stored_shapes(problem)
    ]
    values = [KINDS[kind](x[0], draw)[None].astype(np.float32) for x in normal(problem, k)]
    for field, value in zip(fields, values, strict=True):
        field.write(value)
    matrices = [field.matrix for field in fields]
    config = kernel.default_for(problem, backend.device)
    call = executable(backend, config, problem).bind(problem, 1.0, *matrices[:2], 0.0, matrices[2])
    call()
    backend.synchronize()
    exact = reference.product(problem, *values[:2])
    off = fields[2].read()[0].astype(float) - exact
    assert (np.abs(off) <= reference.error_bound(problem, *values[:2])).all()
    if kind == "normal":
        assert np.linalg.norm(off) < most * np.linalg.norm(exact)
