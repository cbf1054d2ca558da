"""A symmetric C on the host: which half of it is computed, what the other half must hold."""

from __future__ import annotations

import numpy as np

from pymm.problem import Problem

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
            place = (slice(None), slice(rows, rows + SQUARE), slice(columns, columns + SQUARE))
            wrong = values[place] != wanted[place]
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
