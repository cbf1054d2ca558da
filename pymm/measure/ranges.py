"""Test matrices over the whole range of a dtype, and a check of their product: NaN and infinite
where plain multiply-adds in float32 are, and within its error bound everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from pymm.core import reference
from pymm.core.dtypes import DTYPES, product_type
from pymm.core.problem import Problem

#: Dtypes that round their operands first, or whose result has another dtype.
REDUCED = tuple(name for name, row in DTYPES.items() if row.reduced)

#: Values that are put at a few random places of A and B, by name.
SPECIALS = {
    "finite": (),
    "zeros": (0.0, -0.0),
    "infinite": (np.inf, -np.inf),
    "NaN": (np.nan,),
    "all": (0.0, -0.0, np.inf, -np.inf, np.nan),
}

#: Where |A| |B| is at least this, an eighth of the largest float32, a sum may overflow in some
#: order of its terms: such an element of C may have any value.
OVERFLOW = 2.0**125

#: Relative errors are formed where |A| |B| is at least this; below it floating-point numbers have
#: fewer bits.
ORDINARY = 2.0**-100


@dataclass(frozen=True)
class Judgement:
    """The elements of C compared with float32's and with float64: `mismatches` are those of which
    only one is NaN, or only one infinite; `beyond` are finite ones with an error beyond the bound;
    `error` is the largest error divided by |A| |B|; `detail` describes the first wrong element, ""
    if there is none.
    """

    mismatches: int
    beyond: int
    error: float
    detail: str = ""


def _numbers(generator: np.random.Generator, exponents: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Random signs and fractions with the given exponents, none infinite."""
    sizes = np.ldexp(generator.uniform(1, 2, exponents.shape), exponents)
    sizes = np.minimum(sizes, float(ml_dtypes.finfo(dtype).max))
    return (generator.choice((-1.0, 1.0), exponents.shape) * sizes).astype(dtype)


class _Draw:
    """Draws the exponents of one pair of matrices, m x k and k x n. `room` is the largest sum of an
    exponent of A and one of B for which no sum of k products comes near overflow.
    """

    def __init__(self, problem: Problem, generator: np.random.Generator) -> None:
        info = ml_dtypes.finfo(problem.numpy_dtype)
        self.least = int(np.log2(float(info.smallest_subnormal)))
        self.most = int(info.maxexp) - 1
        self.generator = generator
        self.a, self.b = (problem.m, problem.k), (problem.k, problem.n)
        self.room = 119 - int(np.ceil(np.log2(max(problem.k, 1))))

    def tops(self) -> tuple[int, int]:
        """The largest exponent of A and of B."""
        first = int(self.generator.integers(self.least, self.most + 1))
        most = max(min(self.most, self.room - first), self.least)
        low = max(self.least, min(most, -first - 80))  # few products underflow in float32
        pair = first, int(self.generator.integers(low, most + 1))
        return pair if self.generator.random() < 0.5 else pair[::-1]

    def between(self, low: int, high: int, shape: tuple[int, ...]) -> np.ndarray:
        """Exponents from low to high, at most the largest of the dtype."""
        return np.minimum(self.generator.integers(low, high + 1, shape), self.most)

    def one_size(self) -> tuple[np.ndarray, np.ndarray]:
        """All elements of a matrix of one magnitude."""
        top, other = self.tops()
        return self.between(top - 2, top, self.a), self.between(other - 2, other, self.b)

    def lines(self) -> tuple[np.ndarray, np.ndarray]:
        """A magnitude for each row of A and each column of B."""
        (m, k), (_, n), (top, other) = self.a, self.b, self.tops()
        wide = int(self.generator.integers(1, 120))
        rows = self.between(top - wide, top, (m, 1)) + np.zeros((1, k), int)
        return rows, self.between(other - wide, other, (1, n)) + np.zeros((k, 1), int)

    def each(self) -> tuple[np.ndarray, np.ndarray]:
        """A magnitude for each element."""
        wide, (top, other) = int(self.generator.integers(1, 120)), self.tops()
        return self.between(top - wide, top, self.a), self.between(other - wide, other, self.b)

    def graded(self) -> tuple[np.ndarray, np.ndarray]:
        """A D and D^-1 B, with D a diagonal matrix of powers of two."""
        (_, k), (top, other) = self.a, self.tops()
        apart = int(self.generator.integers(1, 40))
        scale = self.generator.integers(-apart, apart + 1, k)
        a = np.minimum(top - apart + scale + np.zeros(self.a, int), self.most)
        return a, np.minimum(other - apart - scale[:, None] + np.zeros(self.b, int), self.most)

    def outliers(self) -> tuple[np.ndarray, np.ndarray]:
        """All elements of one magnitude except for a much larger one in each matrix."""
        pair = []
        for top, shape in zip(self.tops(), (self.a, self.b), strict=True):
            exponents = self.between(top - 2, top, shape) - int(self.generator.integers(10, 110))
            exponents.flat[self.generator.integers(exponents.size)] = top
            pair.append(exponents)
        return tuple(pair)

    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """One matrix of the smallest or the largest magnitudes, the other as large as `room`
        allows.
        """
        low = self.generator.random() < 0.5
        top = self.least + 30 if low else self.most
        other = min(self.room - top, self.most)
        small = self.between(top - (30 if low else 1), top, self.a)
        return small, self.between(other - 3, other, self.b)

    def anywhere(self) -> tuple[np.ndarray, np.ndarray]:
        """Any exponent of the dtype."""
        return tuple(self.between(self.least, self.most, s) for s in (self.a, self.b))


#: Distributions of the magnitudes in A and B, by name.
KINDS: dict[str, Callable[[_Draw], tuple[np.ndarray, np.ndarray]]] = {
    "one size": _Draw.one_size,
    "lines": _Draw.lines,
    "each": _Draw.each,
    "graded": _Draw.graded,
    "outliers": _Draw.outliers,
    "edges": _Draw.edges,
    "anywhere": _Draw.anywhere,
}


def draw(
    problem: Problem, kind: str, special: str, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """A and B as stored, stacks of `problem.batch` cases of one of `KINDS`, each drawn by itself,
    with values of one of `SPECIALS` at up to three places of each matrix.
    """
    stacks: tuple[list[np.ndarray], list[np.ndarray]] = [], []
    trans = problem.trans_a, problem.trans_b
    for _ in range(problem.batch):
        drawn = KINDS[kind](_Draw(problem, generator))
        for stack, exponents, transposed in zip(stacks, drawn, trans, strict=True):
            numbers = _numbers(generator, exponents, problem.numpy_dtype)
            for value in generator.permutation(SPECIALS[special])[: generator.integers(1, 4)]:
                numbers.flat[generator.integers(numbers.size)] = value
            stack.append(numbers.T if transposed else numbers)
    a, b = (np.ascontiguousarray(stack) for stack in stacks)
    return a, b


def _vanishing(problem: Problem, sizes: np.ndarray) -> np.ndarray:
    """Whether elements may be rounded to zero. `sizes` are absolute values, k the last axis."""
    row, limit = problem.type, problem.type.zero_up_to
    if row.scaling:
        finite = np.where(np.isfinite(sizes), sizes, 0.0)
        limit = row.scaling.zero_up_to * reference.largest_of_block(finite, row.scaling)
    return (sizes > 0) & (sizes <= limit)


def _excused(
    problem: Problem, left: np.ndarray, right: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Elements of C that may have any value, and those that may be NaN where float32's are
    infinite, because an infinite element is multiplied by one that may be rounded to zero. `left`
    and `right` are |A| and |B|.
    """
    finite = [np.where(np.isfinite(x), x, 0.0) for x in (left, right)]
    anything = finite[0] @ finite[1] >= OVERFLOW
    rounded = [(x >= problem.type.infinite_from) & np.isfinite(x) for x in (left, right)]
    anything |= rounded[0].any(axis=-1, keepdims=True) | rounded[1].any(axis=-2, keepdims=True)
    infinite = [np.isinf(x).astype(float) for x in (left, right)]
    lost = _vanishing(problem, left), _vanishing(problem, right.swapaxes(-1, -2)).swapaxes(-1, -2)
    either = infinite[0] @ lost[1] + lost[0] @ infinite[1] > 0
    return anything, either


def judge(problem: Problem, a: np.ndarray, b: np.ndarray, got: np.ndarray) -> Judgement:
    """Compare stacks of C = op(A) op(B) with float64. An element must be NaN or infinite exactly
    where IEEE 754 makes it so. Exceptions: |A| |B| is at least `OVERFLOW`; tf32 rounds an operand
    to infinity; an infinite element is multiplied by one that the dtype rounds to zero (NaN is
    allowed then, too).
    """
    left, right = (x.astype(float) for x in reference.oriented(problem, a, b))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = left @ right
        got = got.astype(float)
        error = np.abs(got - exact)
    left, right = np.abs(left), np.abs(right)
    anything, either = _excused(problem, left, right)
    same = np.isfinite(exact) & np.isfinite(got)
    same |= (np.isnan(exact) & np.isnan(got)) | (exact == got)
    mismatches = ~(same | anything | (either & np.isnan(got)))
    cleaned = [np.where(np.isfinite(x), x, 0).astype(x.dtype) for x in (a, b)]
    bound = reference.error_bound(problem, *cleaned)
    judged = np.isfinite(exact) & np.isfinite(got) & ~anything
    beyond = judged & (error > bound)
    with np.errstate(invalid="ignore"):
        sizes = left @ right
    ordinary = judged & (sizes >= ORDINARY)
    worst = float((error[ordinary] / sizes[ordinary]).max(initial=0.0))
    detail = ""
    if (mismatches | beyond).any():
        at = tuple(int(x[0]) for x in np.nonzero(mismatches | beyond))
        detail = f"C{list(at)} is {got[at]}, not {exact[at]} within {bound[at]:.3g}"
    return Judgement(int(mismatches.sum()), int(beyond.sum()), worst, detail)


def in_float32(problem: Problem) -> Problem:
    """The same product of float32 matrices, by plain multiply-adds."""
    return replace(problem, dtype=product_type(problem.out_dtype))
