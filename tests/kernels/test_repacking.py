"""What goes with kernels fed by TMA: matrices copied, turned round and rounded; parts added up."""

# ruff: noqa: F811  (a fixture is imported by its name)

from __future__ import annotations

import struct

import ml_dtypes
import numpy as np
import pytest
from simulator_fixtures import drv  # noqa: F401

from pymm.backends.base import Matrix
from pymm.kernels.source import C_TYPES, kernel_text

pytestmark = pytest.mark.simulator

TYPES = {t.name: t for t in map(np.dtype, ("f2", "f4", "f8", ml_dtypes.bfloat16))}


@pytest.fixture(scope="module")
def load(drv):
    """The function of one of the headers, compiled with these macros."""
    from pycuda.compiler import SourceModule

    known = {}

    def load(name: str, **macros: str | int):
        key = (name, *macros.items())
        if key not in known:
            head = "".join(f"#define {macro} {value}\n" for macro, value in macros.items())
            text = head + kernel_text("cuda", f"common/{name}.cuh")
            known[key] = SourceModule(text, no_extern_c=True, arch="sm_90")
        entry = "combine" if name == "combine" else "repack"
        return known[key].get_function(entry)._launch_kernel

    return load


def run_repack(drv, function, stacks, turned, terms, draw):
    """What `repack` makes of one or two stacks of any gaps and first element, rows cut to their
    length: (matrices, terms, rows, columns).
    """
    from pymm.backends.cuda.tma import Copy, packed  # needs a driver, or what stands in

    moves, targets, keep = [], [], []
    for stack, turn in zip(stacks, turned, strict=True):
        count, rows, columns = stack.shape
        ld, start = columns + int(draw.integers(0, 9)), int(draw.integers(0, 8))
        if draw.random() < 0.4:
            ld, start = -(-columns // 16) * 16, 0
        memory = np.full(start + count * rows * ld, 0x55, stack.dtype)
        memory[start:].reshape(count, rows, ld)[..., :columns] = stack
        copy = Copy(count, rows, columns, turn, terms, stack.itemsize)
        source, target = drv.to_device(memory), drv.mem_alloc(copy.nbytes)
        at = Matrix(int(source) + start * stack.itemsize, ld, rows * ld)
        moves.append((copy, at, copy.at(int(target))))
        targets.append(target)
        keep.append(source)
    blocks = sum(copy.blocks for copy, _, _ in moves)
    function((blocks, 1, 1), (256, 1, 1), packed(moves), 0, None)
    found = []
    for (copy, _, _), target in zip(moves, targets, strict=True):
        matrices, rows, columns = copy.shape
        got = np.empty((matrices, rows, copy.pitch), TYPES_BY_SIZE[copy.size])
        drv.memcpy_dtoh(got, target)
        found.append(got[..., :columns].reshape(copy.stack, terms, rows, columns))
    return found


TYPES_BY_SIZE = {2: np.uint16, 4: np.float32, 8: np.float64}


@pytest.mark.parametrize("size", [2, 4, 8])
@pytest.mark.parametrize("seed", range(12))
def test_matrices_are_copied_and_turned(drv, load, size, seed):
    """Two stacks in one launch or one alone, any element for the first, gaps that would show."""
    draw = np.random.default_rng(seed)
    real = {2: "BF16", 4: "float", 8: "double"}[size]
    extents = [
        tuple(int(draw.integers(1, most)) for most in (4, 150, 300))
        for _ in range(2 if seed % 3 else 1)
    ]
    if seed == 1:
        extents = [(1, 1, 1), (2, 64, 64)]
    stacks = [draw.integers(1, 2**15, x).astype(TYPES_BY_SIZE[size]) for x in extents]
    turned = [bool(draw.integers(0, 2)) for _ in stacks]
    found = run_repack(drv, load("repack", REAL=real), stacks, turned, 1, draw)
    for got, stack, turn in zip(found, stacks, turned, strict=True):
        np.testing.assert_array_equal(got[:, 0], stack.swapaxes(1, 2) if turn else stack)


def high_tf32(x: np.ndarray) -> np.ndarray:
    """The first of two terms: not zero unless x is."""
    nearest = nearest_tf32(x)
    return np.where((nearest == 0) & (x != 0), np.copysign(2.0**-136, x), nearest)


def nearest_tf32(x: np.ndarray) -> np.ndarray:
    """11 significant bits, what lies in the middle away from zero; finite numbers stay finite."""
    unit = np.ldexp(1.0, np.maximum(np.frexp(x)[1] - 11, -136))
    up = np.copysign(np.floor(np.abs(x.astype(float)) / unit + 0.5) * unit, x)
    cut = np.trunc(x.astype(float) / unit) * unit
    return np.where(np.abs(up) < 2.0**128, up, cut)


HARD = np.array(
    [
        0.0,
        -0.0,
        1 + 2**-11,
        1 + 2**-11 - 2**-23,
        -(1 + 3 * 2**-11),
        1e-45,
        2.0**-126,
        3e-39,
        np.finfo(np.float32).max,
        -np.finfo(np.float32).max,
        np.float32(2.0**128 * (1 - 2**-12)),
        1 / 3,
        65504.0,
    ],
    np.float32,
)


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("turn", [False, True])
def test_numbers_are_rounded_to_tf32(drv, load, terms, turn):
    draw = np.random.default_rng(terms)
    stack = draw.standard_normal((2, 70, 90), np.float32)
    stack *= 2.0 ** draw.integers(-140, 120, stack.shape).astype(np.float32)
    stack[1, 5, : len(HARD)] = HARD
    function = load("repack", REAL="float", TERMS=terms, ROUNDED=1)
    (got,) = run_repack(drv, function, [stack], [turn], terms, draw)
    stack = stack.swapaxes(1, 2) if turn else stack
    high = high_tf32(stack) if terms == 2 else nearest_tf32(stack)
    np.testing.assert_array_equal(got[:, 0], high)
    assert (got.view(np.uint32) & 0x1FFF == 0).all() and np.isfinite(got).all()
    if terms == 2:
        np.testing.assert_array_equal(got[:, 1], nearest_tf32(stack - high.astype(np.float32)))
        left = np.abs(stack.astype(float) - got.astype(float).sum(axis=1))
        assert (left <= np.maximum(np.abs(stack) * 2.0**-22, 2.0**-137)).all()


def test_what_is_no_number_stays_so(drv, load):
    """Also a NaN whose bits are all among those that are cut off."""
    stack = np.array([[[np.inf, -np.inf, np.nan, 1.0]]], np.float32)
    stack = np.concatenate([stack, np.array([[[0x7F800001, 0xFFC00000, 0, 0]]], "u4").view("f4")])
    function = load("repack", REAL="float", TERMS=2, ROUNDED=1)
    (got,) = run_repack(drv, function, [stack], [False], 2, np.random.default_rng(0))
    cut = (got.view(np.uint32) & 0xFFFFE000).view(np.float32)
    infinite, least = np.isinf(stack), np.float32(2.0**-136)
    np.testing.assert_array_equal(cut[:, 0], np.where(infinite, np.copysign(least, stack), stack))
    others = np.where(np.isnan(stack), stack, 0)
    np.testing.assert_array_equal(cut[:, 1], np.where(infinite, stack, others))


def test_a_high_term_is_zero_of_zero_alone(drv, load):
    """So infinity times any other number is infinite."""
    stack = np.float32([1e-45, -3e-42, 2.0**-138, -(2.0**-137), 0.0, -0.0, 3e38, 1.0])[None, None]
    function = load("repack", REAL="float", TERMS=2, ROUNDED=1)
    (got,) = run_repack(drv, function, [stack], [False], 2, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sign(got[:, 0]), np.sign(stack))
    assert np.isfinite(got).all() and (np.signbit(got[:, 0]) == np.signbit(stack)).all()
    left = np.abs(stack.astype(float) - got.astype(float).sum(axis=1))
    assert (left <= np.maximum(np.abs(stack) * 2.0**-22, 2.0**-137)).all()


def run_scaled(drv, function, stack, turn):
    """High and low terms and the inverse powers of one stack: (matrices, rows, columns) of float16,
    twice, and (matrices, 64s of columns, rows).
    """
    from pymm.backends.cuda.tma import Copy, packed

    copy = Copy(*stack.shape, turn, 2, 2, True)
    source, target = drv.to_device(stack), drv.mem_alloc(copy.nbytes)
    at = Matrix(int(source), stack.shape[2], stack.shape[1] * stack.shape[2])
    move = (copy, at, copy.at(int(target)))
    function((copy.blocks, 1, 1), (256, 1, 1), packed([move]), 0, None)
    matrices, rows, columns = copy.shape
    terms = np.empty((matrices // 2, 2, rows, copy.pitch), np.float16)
    drv.memcpy_dtoh(terms, target)
    matrix, (count, blocks, _) = copy.scales_at(int(target)), copy.scales
    powers = np.empty((count, blocks, matrix.ld), np.float32)
    drv.memcpy_dtoh(powers, matrix.address)  # what lies behind a row of them is never used
    assert not terms[..., columns:].any()
    return terms[:, 0, :, :columns], terms[:, 1, :, :columns], powers[..., :rows]


def alike(largest):
    """Of each 64 rows whether their largest numbers, but for zeros, have exponents 8 apart at most,
    and in the place of each of these, if so, the largest of all.
    """
    most, are = largest.copy(), np.zeros(largest.shape, bool)
    for matrix in range(len(largest)):
        for first in range(0, largest.shape[1], 64):
            rows = matrix, slice(first, first + 64)
            of_rows = np.float32(largest[rows])
            exponents = of_rows[of_rows > 0].view(np.uint32) >> 23
            if not exponents.size or np.ptp(exponents) <= 8:
                most[rows], are[rows] = of_rows.max(), True
    return most, are


@pytest.mark.parametrize("turn", [False, True])
@pytest.mark.parametrize("spread", [130, 3])
@pytest.mark.parametrize("shape", [(2, 70, 130), (1, 1, 1), (3, 64, 64), (1, 129, 7)])
def test_numbers_become_two_float16_times_a_power_of_two(drv, load, turn, shape, spread):
    """Each 64 of a row their own power, or 64 rows that are alike the same: the largest is 2^14 to
    2^15 then, if it is 2^-112 at least; 22 bits of a number are left, or what is more than 2^-39 of
    the largest.
    """
    draw = np.random.default_rng(shape[1])
    stack = draw.standard_normal(shape, np.float32)
    stack *= 2.0 ** draw.integers(-spread - 10, spread - 10, shape).astype(np.float32)
    if shape[1] > 64:
        stack[0, 5, :] = 0.0
        if spread > 100:
            stack[0, 6, : len(HARD)] = HARD[: shape[2]]
        stack[0, 7:9] = draw.standard_normal((2, shape[2])) / 1000
    high, low, powers = run_scaled(drv, load("block_scaling_repack"), stack, turn)
    rows = (stack.swapaxes(1, 2) if turn else stack).astype(float)
    seen = set()
    for first in range(0, rows.shape[2], 64):
        part = rows[..., first : first + 64]
        largest, are = alike(np.abs(part).max(axis=2, keepdims=True))
        seen |= set(are.flat)
        np.testing.assert_array_equal(powers[:, first // 64, :, None] < 0, are)
        scale = np.abs(powers[:, first // 64, :, None]).astype(float)
        assert (np.frexp(scale)[0] == 0.5).all()
        usual = largest >= 2.0**-112
        assert (largest / scale < 2.0**15).all() and (largest / scale >= 2.0**14)[usual].all()
        terms = [x[..., first : first + 64].astype(float) for x in (high, low)]
        np.testing.assert_array_equal(terms[0], (part / scale).astype(np.float16))
        left = np.abs(part - scale * sum(terms))
        most = np.maximum(np.abs(part) * 2.0**-22, np.where(usual, largest, 2.0**-112) * 2.0**-39)
        assert (left <= most).all()
    assert (spread == 3 or shape[1] == 1) in seen


def test_what_is_no_number_stays_so_among_two_float16(drv, load):
    """No high term is infinite, and where a number is one of 64 that are not all finite its sign
    alone is kept, its power 1. The others of the square have their own powers.
    """
    stack = np.ones((1, 4, 70), np.float32)
    stack[0, 0, 3], stack[0, 1, 69], stack[0, 2, 0] = np.inf, -np.inf, np.nan
    stack[0, 0, 4:8], stack[0, 0, 8] = [-3e38, 1e-45, -2.0, 0.0], -np.inf
    high, low, powers = run_scaled(drv, load("block_scaling_repack"), stack, False)
    np.testing.assert_array_equal(np.isnan(high), np.isnan(stack))
    infinite = np.isinf(stack)
    np.testing.assert_array_equal(low[infinite], stack[infinite].astype(np.float16))
    np.testing.assert_array_equal(np.isnan(low), np.isnan(stack))
    assert not low[np.isfinite(stack)].any()
    signs = np.zeros(stack.shape, bool)
    signs[0, [0, 2], :64] = signs[0, 1, 64:] = True
    kept = signs & ~np.isnan(stack)
    np.testing.assert_array_equal(high[kept], np.sign(stack[kept]) * np.float16(2.0**-24))
    assert (high[~signs] == 2.0**14).all()
    of_rows = np.repeat(np.abs(powers), 64, axis=1)[:, :70].swapaxes(1, 2)
    np.testing.assert_array_equal(of_rows, np.where(signs, 1.0, 2.0**-14))
    assert (powers > 0).all()


@pytest.mark.parametrize("real", TYPES)
@pytest.mark.parametrize("split, rows", [(2, 1), (9, 2), (37, 8)])
@pytest.mark.parametrize("m, n, batch", [(1, 1, 1), (7, 13, 3), (33, 64, 1)])
@pytest.mark.parametrize("alpha, beta", [(1.0, 0.0), (-1.25, 0.75)])
def test_parts_are_added_up(drv, load, real, split, rows, m, n, batch, alpha, beta):
    draw = np.random.default_rng(split)
    dtype = TYPES[real]
    sums = np.dtype(np.float64 if real == "float64" else np.float32)
    pitch, ld = -(-n // 4) * 4, n + (n % 2) * 3
    parts = draw.integers(-9, 10, (split, batch, m, pitch)).astype(sums)
    c = draw.integers(-9, 10, (batch, m, ld)).astype(dtype)
    if beta == 0:
        c[..., :n] = np.nan
    c[..., n:] = 7
    function = load("combine", OUT=C_TYPES[dtype], SUM=C_TYPES[sums], SPLIT=split)
    given, out = drv.to_device(parts), drv.to_device(c.view(np.uint8))
    real = "d" if sums.itemsize == 8 else "f"
    arguments = struct.pack(
        f"<QQqq{real}{real}iii", int(given), int(out), ld, m * ld, alpha, beta, m, n, batch
    )
    blocks = -(-batch * m * pitch * sums.itemsize // 16 * rows // 256)
    function((blocks, 1, 1), (256 // rows, rows, 1), arguments, 0, None)
    got = np.empty_like(c)
    drv.memcpy_dtoh(got.view(np.uint8), out)
    wanted = (alpha * parts.sum(axis=0)[..., :n]).astype(sums)
    if beta:
        wanted += beta * c[..., :n].astype(sums)
    np.testing.assert_array_equal(got[..., :n], wanted.astype(dtype))
    assert (got[..., n:] == 7).all()


def test_numbers_of_16_bits_are_rounded_as_numpy_does(drv, load):
    """Through a sum of two parts, the second of zeros: every float16 and bfloat16 and what lies
    around the middles between them.
    """
    for dtype in (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        every = np.arange(2**16, dtype=np.uint16).view(dtype).astype(np.float32)
        bits = every.view(np.uint32)[:, None]
        half = 0x1000 if dtype == np.float16 else 0x8000
        near = (bits + np.array([0, half - 1, half, half + 1], np.uint32)).view(np.float32)
        near = near[np.isfinite(near).all(axis=1)]
        parts = np.zeros((2, 1, *near.shape), np.float32)
        parts[0, 0] = near
        function = load("combine", OUT=C_TYPES[dtype], SUM="float", SPLIT=2)
        given, out = drv.to_device(parts), drv.mem_alloc(near.size * 2)
        where = int(given), int(out), 4, 0
        arguments = struct.pack("<QQqqffiii", *where, 1.0, 0.0, len(near), 4, 1)
        function((-(-len(near) // 256), 1, 1), (256, 1, 1), arguments, 0, None)
        got = np.empty(near.shape, dtype)
        drv.memcpy_dtoh(got.view(np.uint8), out)
        with np.errstate(over="ignore"):
            np.testing.assert_array_equal(got, near.astype(dtype))
