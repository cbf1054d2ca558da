"""A product on a CPU in parts: a long one in pieces of about a fifth of a second, so that Ctrl-C is
handled between them; a symmetric C as panels of rows of one half.

A piece begins where a block of the kernel would begin, and the pieces of one element of C are
computed in the order of k, each adding to the sum so far. The kernels do the same with their
blocks, so the result has the same bits however the product is cut.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pymm.backends.base import Matrix
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels import Config

#: Rows of a panel: n / PANELS, since the elements of the other half that are computed along the
#: diagonal cost that part of the work; at least LEAST, so that packing costs less than it saves; at
#: most MOST, so that a panel fits a cache.
PANELS, LEAST, MOST = 16, 48, 768

Bind = Callable[[Problem, Matrix, Matrix, Matrix], Callable[[], None]]


def half_product(
    bind: Bind, problem: Problem, matrices: tuple[Matrix, Matrix, Matrix], reads: bool
) -> Callable[[], None]:
    """A call that computes one half of C, and mirrors it if `problem` is of both halves. `bind`
    makes the call for a product of any shape; `reads` says whether C is read.
    """
    a, b, c = matrices
    n, upper = problem.n, problem.fill == "upper"
    height = min(max(ceil_div(n, PANELS), LEAST), MOST)
    whole = _view(c, problem)
    square = np.empty((problem.batch, height, height), problem.out_dtype)
    on_diagonal = Matrix(square.ctypes.data, height, height * height, owner=square)
    steps = []
    for first in range(0, n, height):
        rows = min(height, n - first)
        left = _moved(a, problem.numpy_dtype, first if problem.trans_a else first * a.ld)
        right = _moved(b, problem.numpy_dtype, first * b.ld if problem.trans_b else first)
        start = first + rows if upper else 0
        columns = n - start if upper else first
        if columns:
            beside = replace(problem, op="gemm", m=rows, n=columns)
            shift = start * b.ld if problem.trans_b else start
            place = _moved(c, problem.out_dtype, first * c.ld + start)
            other = _moved(b, problem.numpy_dtype, shift)
            steps.append(bind(beside, left, other, place))
        own = replace(problem, op="gemm", m=rows, n=rows)
        multiply = bind(own, left, right, on_diagonal)
        part = whole[:, first : first + rows, first : first + rows]
        steps.append(_diagonal(multiply, square[:, :rows, :rows], part, problem, reads))
        if problem.fill == "full" and columns:
            below = whole[:, first : first + rows, :first]
            above = whole[:, :first, first : first + rows]
            steps.append(lambda to=above, of=below: np.copyto(to, of.swapaxes(1, 2)))

    def call() -> None:
        for step in steps:
            step()

    return call


def _diagonal(
    multiply: Callable[[], None],
    square: np.ndarray,
    part: np.ndarray,
    problem: Problem,
    reads: bool,
) -> Callable[[], None]:
    """A call that computes a square on the diagonal in its own memory and copies one half to C."""
    line = np.arange(square.shape[1])
    upper = problem.fill == "upper"
    half = np.less_equal.outer(line, line) if upper else np.greater_equal.outer(line, line)
    half = np.broadcast_to(half, square.shape)

    def call() -> None:
        if reads:
            np.copyto(square, np.where(half, part, part.swapaxes(1, 2)))
        multiply()
        np.copyto(part, square, where=half)
        if problem.fill == "full":
            np.copyto(part.swapaxes(1, 2), square, where=half)

    return call


def _moved(matrix: Matrix, dtype: np.dtype, elements: int) -> Matrix:
    return replace(matrix, address=matrix.address + elements * dtype.itemsize)


def _view(c: Matrix, problem: Problem) -> np.ndarray:
    """C in place, as an array (batch, n, n)."""
    size, n = problem.out_dtype.itemsize, problem.n
    nbytes = ((problem.batch - 1) * c.batch_stride + (n - 1) * c.ld + n) * size
    memory = (ctypes.c_char * nbytes).from_address(c.address)
    strides = (c.batch_stride * size, c.ld * size, size)
    return np.ndarray((problem.batch, n, n), problem.out_dtype, memory, strides=strides)


#: Seconds that one piece should take.
PIECE = 0.2


class Piece(NamedTuple):
    """`count` matrices from `matrix` on: rows from `i` and columns from `j` on of C, and `depth`
    terms of their sums from `p` on.
    """

    matrix: int
    count: int
    i: int
    rows: int
    j: int
    columns: int
    p: int
    depth: int

    @property
    def work(self) -> int:
        """Multiply-adds."""
        return self.count * self.rows * self.columns * self.depth


class Pace:
    """How many multiply-adds a piece has: by an estimate of the kernel's rate at first, then by the
    rate of the piece before.
    """

    def __init__(self, multiply_adds_per_second: float) -> None:
        self._rate = multiply_adds_per_second

    def budget(self) -> float:
        return self._rate * PIECE

    def learn(self, work: int, seconds: float) -> None:
        if seconds > 0:
            self._rate = work / seconds


def whole(problem: Problem) -> Piece:
    """The whole product as one piece."""
    return Piece(0, problem.batch, 0, problem.m, 0, problem.n, 0, problem.k)


def pieces(
    problem: Problem, config: Config, threads: int, budget: Callable[[], float]
) -> Iterator[Piece]:
    """The product in pieces of about `budget()` multiply-adds, which is called before each: several
    whole matrices, or a part of one.
    """
    one = problem.m * problem.n * problem.k
    matrix = 0
    while matrix < problem.batch:
        count = min(int(budget() // one), problem.batch - matrix)
        if count:
            yield whole(problem)._replace(matrix=matrix, count=count)
        else:
            yield from _of_one(problem, config, threads, matrix, budget)
        matrix += max(count, 1)


def _of_one(
    problem: Problem, config: Config, threads: int, matrix: int, budget: Callable[[], float]
) -> Iterator[Piece]:
    """The pieces of one matrix in the order of the kernel's loops, so that caches are used as they
    are without cuts: columns of C, as many as give every thread a block; within them k. Rows are
    cut only where one block along k is more than a piece. A C that is rounded when it is stored
    gets all of a sum at once: there k is not cut.
    """
    m, n, k = problem.m, problem.n, problem.k
    blocks = config.as_dict()
    deep = min(blocks["KB"], k) if problem.out_dtype == problem.scalar_dtype else k
    width = blocks["NB"] * max(round(threads**0.5), 1)
    j = 0
    while j < n:
        columns = min(width * max(int(budget() // (m * width * k)), 1), n - j)
        rows = _share(m, budget() / (columns * deep), blocks["MB"])
        for i in range(0, m, rows):
            high = min(rows, m - i)
            p = 0
            while p < k:
                steps = max(int(budget() // (high * columns * deep)), 1)
                depth = min(steps * blocks["KB"], k - p) if deep < k else k
                yield Piece(matrix, 1, i, high, j, columns, p, depth)
                p += depth
        j += columns


def _share(extent: int, most: float, block: int) -> int:
    """An equal share of `extent`, about `most` and a multiple of `block`; or all of it."""
    shares = max(round(extent / most), 1)
    return min(ceil_div(extent, shares * block) * block, extent)
