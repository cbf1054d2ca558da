"""A long product in pieces of about a fifth of a second, so that Ctrl-C is answered between them.

Pieces begin where the kernels' own blocks begin, and of one element of C they come in the order of
k, each adding to what the ones before have left there. That is what the kernels do with their
blocks, so that the result has the same bits however the product is cut, and the next piece may
have any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from pymm.kernels import Config
from pymm.problem import Problem

#: Seconds that a piece should take.
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
    """How many multiply-adds make a piece: first a guess at a kernel's rate, then the rate of the
    pieces done.
    """

    def __init__(self, multiply_adds_per_second: float) -> None:
        self._rate = multiply_adds_per_second

    def budget(self) -> float:
        return self._rate * PIECE

    def learn(self, work: int, seconds: float) -> None:
        if seconds > 0:
            self._rate = work / seconds


def whole(problem: Problem) -> Piece:
    """The product in one piece."""
    return Piece(0, problem.batch, 0, problem.m, 0, problem.n, 0, problem.k)


def pieces(
    problem: Problem, config: Config, threads: int, budget: Callable[[], float]
) -> Iterator[Piece]:
    """The product in pieces of about `budget()` multiply-adds each, asked for before every piece:
    whole matrices where several make a piece, else parts of one.
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
    """In the order of the kernels' loops, so that caches hold what they hold without cuts: columns
    of C, as many as give every thread a block, first; within them k. Rows are cut only where one
    block along k is more than a piece.
    """
    m, n, k = problem.m, problem.n, problem.k
    blocks = config.as_dict()
    deep = min(blocks["KB"], k)
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
                depth = min(steps * blocks["KB"], k - p)
                yield Piece(matrix, 1, i, high, j, columns, p, depth)
                p += depth
        j += columns


def _share(extent: int, most: float, block: int) -> int:
    """An equal share of `extent`, about `most` and a multiple of `block`; or all of it."""
    shares = max(round(extent / most), 1)
    return min(-(-extent // (shares * block)) * block, extent)
