"""The product in float64 with and without an epilogue, the error bound of a correct result, and the
halves of a symmetric C.

Bounds follow N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed. (SIAM, 2002),
section 3.1: a sum of k products, in whatever order and with or without fused multiply-add, is off
by at most gamma_k times the sum of the absolute values, gamma_k = k u / (1 - k u).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import ml_dtypes
import numpy as np

from pymm.core.dtypes import DTYPES, FLOAT64, BlockScaling, dtype_name
from pymm.core.problem import Problem

#: Rows and columns of the squares in which halves are compared: two of them stay in a cache.
SQUARE = 256


def computed(problem: Problem, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Whether the elements of C at the crossings of `rows` and `columns` are written: a matrix of
    bool.
    """
    if problem.fill in ("all", "full"):
        return np.ones((len(rows), len(columns)), bool)
    below = np.greater_equal.outer(rows, columns)
    return below if problem.fill == "lower" else np.less_equal.outer(rows, columns)


def mirrored(values: np.ndarray, problem: Problem) -> np.ndarray:
    """A stack of square matrices with the half that is computed (or read) in both halves; of a
    product of another kind, as it is.
    """
    if not problem.symmetric:
        return values
    line = np.arange(problem.n)
    upper = problem.fill == "upper"
    half = np.less_equal.outer(line, line) if upper else np.greater_equal.outer(line, line)
    return np.where(half, values, values.swapaxes(-1, -2))


def other_half(values: np.ndarray, before: np.ndarray, problem: Problem) -> str:
    """What is wrong, to the bit, with the half of C that is not computed: in words, "" if nothing.
    It mirrors the other one (fill "full"), or is what it was `before`. `values` and `before` are
    stacks of square matrices.
    """
    if not problem.symmetric:
        return ""
    full, upper = problem.fill == "full", problem.fill == "upper"
    values, before = _bits(values), _bits(before)
    wanted = values.swapaxes(-1, -2) if full else before
    for i in range(0, problem.n, SQUARE):
        for j in range(0, i + 1, SQUARE):
            rows, columns = (j, i) if not upper else (i, j)  # of a square of the other half
            square = (slice(None), slice(rows, rows + SQUARE), slice(columns, columns + SQUARE))
            wrong = values[square] != wanted[square]
            if i == j:
                side = np.arange(wrong.shape[-1])
                wrong &= (np.greater if upper else np.less).outer(side, side)
            if wrong.any():
                _, row, column = (int(x[0]) for x in np.nonzero(wrong))
                where = f"C[{rows + row}, {columns + column}]"
                other = f"C[{columns + column}, {rows + row}]"
                return f"{where} differs from {other}" if full else f"{where} was written"
    return ""


def _bits(values: np.ndarray) -> np.ndarray:
    """The same bytes as integers: a NaN is then what it is."""
    return values.view(f"u{values.itemsize}")


#: The smallest normal number of float32 and of tf32: smaller ones have fewer bits, or none.
SMALLEST_NORMAL = 2.0**-126

#: Integers up to 2^24 are exact in float32 (24 significant bits) and more so in float64.
EXACT_INTEGER = 2**24


def gamma(k: int, dtype: str | np.dtype | type) -> float:
    """gamma_k = k u / (1 - k u) of the arithmetic of `dtype`; from k u = 1/2 on k u itself.

    The quotient blows up at k u = 1. For inner products k u alone is a bound for every k (C.-P.
    Jeannerod and S. M. Rump, Improved error bounds for inner products in floating-point
    arithmetic, SIAM J. Matrix Anal. Appl. 34(2), 2013). `ValueError` for a negative k.
    """
    if k < 0:
        raise ValueError(f"gamma of k={k}: a sum has at least 0 terms")
    relative = k * DTYPES[dtype_name(dtype)].roundoff
    return relative / (1 - relative) if relative < 0.5 else relative


def oriented(problem: Problem, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """op(A), m x k, and op(B), k x n, as views of the stored matrices (or stacks of them)."""
    left = a.swapaxes(-1, -2) if problem.trans_a else a
    right = b.swapaxes(-1, -2) if problem.trans_b else b
    return left, right


def product(
    problem: Problem,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> np.ndarray:
    """`alpha op(A) op(B) + beta C` in float64, with alpha and beta first rounded to the problem's
    type, as a kernel gets them. `a` and `b` are the stored matrices; C is not read if beta = 0.
    Of a symmetric C the half that kernels read is used for both, and both are in the result.
    """
    left, right = oriented(problem, a.astype(np.float64), b.astype(np.float64))
    alpha, beta = (float(problem.scalar_dtype.type(x)) for x in (alpha, beta))
    result = alpha * (left @ right)
    if beta != 0:
        result += beta * mirrored(np.asarray(c, np.float64), problem)
    return result


def largest_of_block(rows: np.ndarray, scaling: BlockScaling) -> np.ndarray:
    """For each element the largest of its block: those along k that share a scale."""
    firsts = np.arange(0, rows.shape[-1], scaling.elements)
    if not len(firsts):
        return rows
    most = np.maximum.reduceat(rows, firsts, axis=-1)
    return most.repeat(scaling.elements, axis=-1)[..., : rows.shape[-1]]


def error_bound(
    problem: Problem,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
) -> np.ndarray:
    """For each element of C, the most by which a right answer may differ from `product`.

    gamma(k + 2) (|alpha| |op(A)| |op(B)| + |beta| |C|): each of the k + 1 terms meets at most k
    additions, its own product and that with alpha, in whatever order a kernel adds (beta C may
    come first, and gather the sums of every step along k). In float64 the reference errs as much
    as the kernel, hence twice the bound. Results below the smallest normal number add at most one
    smallest subnormal for each operation. What else a type loses is in its row (`DType`): when
    operands are rounded or scaled, when a result of 16 bits is stored, and with subnormal operands.
    """
    left, right = oriented(problem, np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    factors = [float(problem.scalar_dtype.type(x)) for x in (alpha, beta)]
    alpha, beta = map(abs, factors)
    terms = alpha * (left @ right)
    given = mirrored(np.asarray(c, np.float64), problem) if beta != 0 else np.zeros(())
    sums = beta * np.abs(given)
    row, lost = problem.type, np.zeros(())
    rounding, scaling = row.product_error, row.scaling
    if scaling:
        columns = largest_of_block(right.swapaxes(-1, -2), scaling).swapaxes(-1, -2)
        lost = largest_of_block(left, scaling) @ right + left @ columns
        lost = np.minimum(scaling.lost * alpha * lost, scaling.lost_product * terms)
    summed = terms * (1 + rounding)
    if row.smallest_normal:
        normal = [np.where(x > 0, np.maximum(x, row.smallest_normal), 0.0) for x in (left, right)]
        summed = alpha * (normal[0] @ normal[1])
    bound = (summed + sums + lost) * gamma(problem.k + 2, problem.dtype) + lost
    if rounding:
        bound += terms * rounding
        few = left.sum(axis=-1, keepdims=True) + right.sum(axis=-2, keepdims=True)
        bound += alpha * few * SMALLEST_NORMAL
    tiny = np.finfo(row.scalar).smallest_subnormal
    bound += (problem.k + 2) * float(tiny)
    if row.out_roundoff:
        result = np.abs(product(problem, a, b, c, *factors))
        tiny = ml_dtypes.finfo(row.out).smallest_subnormal
        bound += row.out_roundoff * (result + bound) + float(tiny)
    return 2 * bound if row.scalar == FLOAT64 else bound


_erf = np.vectorize(math.erf, otypes=[np.float64])

#: The activations in float64 ("" is none), by their formulas: see `pymm.matmul`.
ACTIVATED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "": lambda x: x,
    "relu": lambda x: np.where(x < 0, 0.0, x),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x * math.sqrt(0.5))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
}

#: No activation is steeper: the slope of GELU is at most 1.129, at sqrt 2, of SiLU 1.100, at 2.4.
STEEPEST = 1.13

#: What evaluating an activation at x may be off by, in units of u |x|: the factors of |x| are at
#: most 1, and each is the result of a few operations and of a function that is off by 2 u or less
#: (CUDA C++ Programming Guide, "Mathematical Functions").
EVALUATION = 16


def finished(values: np.ndarray, activation: str, bias: np.ndarray | None = None) -> np.ndarray:
    """`activation(values + bias)` in float64, with the bias added to each row."""
    with np.errstate(over="ignore", invalid="ignore"):  # as the formulas give
        return ACTIVATED[activation](values if bias is None else values + bias.astype(np.float64))


def finished_bound(
    problem: Problem,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | None = None,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str = "",
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """For each element of C, the most by which a right answer with this epilogue may differ from
    `finished(product(...), activation, bias)`: the bound of the sum before it is rounded to 16
    bits, times the steepest slope, and the roundings of what follows.
    """
    wide = f"{problem.dtype}_f32" if problem.type.out_roundoff else problem.dtype
    summed = replace(problem, dtype=wide)
    bound = error_bound(summed, a, b, c, alpha, beta)
    values = product(problem, a, b, c, alpha, beta)
    unit = float(np.finfo(problem.scalar_dtype).eps) / 2
    before = np.abs(finished(values, "", bias))
    bound = bound + 4 * unit * (before + bound)
    if activation:
        bound = STEEPEST * bound + 2 * EVALUATION * unit * (before + bound)
    if problem.type.out_roundoff:
        result = np.abs(finished(values, activation, bias))
        tiny = ml_dtypes.finfo(problem.type.out).smallest_subnormal
        bound = bound + problem.type.out_roundoff * (result + bound) + float(tiny)
    return bound


def exact_integers(k: int) -> int:
    """The largest r such that k products of integers from -r to r add up exactly in float32,
    k r^2 <= 2^24 (at least 1, at most 64).
    """
    return int(min(64, max(1, (EXACT_INTEGER // max(k, 1)) ** 0.5)))


def exact_operands(
    problem: Problem, shapes: tuple[tuple[int, ...], ...], generator: np.random.Generator
) -> list[np.ndarray]:
    """Random integer matrices of the problem's type whose product has no rounding.

    Where the result has 16 bits they are made of -1, 0 and 1, so few of them not 0 that the
    largest integer up to which all are exact (2^8, 2^11) is 8 standard deviations of an element:
    k d^2 variance for a share d. Elements on the diagonal of A A^T count what is not 0 in a row,
    k d, which is to be half of that integer.
    """
    real, roundoff = problem.numpy_dtype, problem.type.out_roundoff
    if not roundoff:
        r = exact_integers(problem.k)
        return [generator.integers(-r, r + 1, shape).astype(real) for shape in shapes]
    largest, k = 1 / roundoff, max(problem.k, 1)
    share = min(1.0, largest / 2 / k if problem.symmetric else largest / 8 / k**0.5)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        drawn = generator.random(shape, np.float32)
        return ((drawn < share / 2).astype(np.float32) - (drawn > 1 - share / 2)).astype(real)

    return [draw(shape) for shape in shapes]


def signs(n: int, count: int, seed: int) -> np.ndarray:
    """`count` random vectors of n entries -1 and 1, float64, n x count, for Freivalds' check.

    If C differs from A B, then C x differs from A (B x) for at least half of all such x, so
    `count` independent ones miss it with a probability of at most 2^-count (R. Freivalds,
    Probabilistic machines can use less running time, IFIP Congress 1977). That holds where both
    sides are exact: give it operands of `exact_integers`.
    """
    drawn = np.random.default_rng(seed).integers(0, 2, size=(n, count))
    return (2.0 * drawn - 1.0).astype(np.float64)
