"""A symmetric C on a CPU: panels of rows of one half, each a product like any other, so that the
kernels need to know nothing of halves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from pymm.backends.base import Matrix
from pymm.problem import Problem

#: Rows of a panel: a sixteenth of C, so that what is computed of the other half along the diagonal
#: costs that part of the work; not so few that packing costs more, nor more than a cache's worth.
PANELS, LEAST, MOST = 16, 48, 768

Bind = Callable[[Problem, Matrix, Matrix, Matrix], Callable[[], None]]


def half_product(
    bind: Bind, problem: Problem, matrices: tuple[Matrix, Matrix, Matrix], reads: bool
) -> Callable[[], None]:
    """A call that computes one half of C, and mirrors it if `problem` wants both. `bind` makes the
    call of a product of any shape; `reads` says whether that reads C.
    """
    a, b, c = matrices
    n, upper = problem.n, problem.fill == "upper"
    height = min(max(-(-n // PANELS), LEAST), MOST)
    whole = _view(c, problem)
    square = np.empty((problem.batch, height, height), problem.out_dtype)
    on_diagonal = Matrix(square.ctypes.data, height, height * height, owner=square)
    steps = []
    for first in range(0, n, height):
        rows = min(height, n - first)
        left = _moved(a, problem, first if problem.trans_a else first * a.ld)
        right = _moved(b, problem, first * b.ld if problem.trans_b else first)
        start = first + rows if upper else 0
        columns = n - start if upper else first
        if columns:
            beside = replace(problem, op="gemm", m=rows, n=columns)
            shift = start * b.ld if problem.trans_b else start
            place = _moved(c, problem, first * c.ld + start)
            steps.append(bind(beside, left, _moved(b, problem, shift), place))
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
    """A square on the diagonal is computed beside C, of which one half is read or written."""
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


def _moved(matrix: Matrix, problem: Problem, elements: int) -> Matrix:
    address = matrix.address + elements * problem.numpy_dtype.itemsize
    return replace(matrix, address=address)


def _view(c: Matrix, problem: Problem) -> np.ndarray:
    """C where it lies: (batch, n, n)."""
    size, n = problem.out_dtype.itemsize, problem.n
    nbytes = ((problem.batch - 1) * c.batch_stride + (n - 1) * c.ld + n) * size
    memory = (ctypes.c_char * nbytes).from_address(c.address)
    strides = (c.batch_stride * size, c.ld * size, size)
    return np.ndarray((problem.batch, n, n), problem.out_dtype, memory, strides=strides)
