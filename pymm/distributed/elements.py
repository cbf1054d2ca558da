"""Matrices for measurements whose elements are functions of their indices: every process makes
those that it needs, and no message is part of what results are compared with.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pymm.distributed.layout import BlockCyclic

Function = Callable[[np.ndarray, np.ndarray], np.ndarray]


def elements(seed: int) -> Function:
    """A function of indices with values spread evenly over -1 to 1: their bits mixed as by
    SplitMix64 (G. Steele, D. Lea, C. Flood, Fast Splittable Pseudorandom Number Generators, 2014).
    """

    def value(i: np.ndarray, j: np.ndarray) -> np.ndarray:
        mixed = i.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        mixed = mixed + j.astype(np.uint64) * np.uint64(0xD1B54A32D192ED03) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1

    return value


#: Of A and B, and of C before the product.
OPERANDS = elements(1), elements(2)
START = elements(3)


def whole(layout: BlockCyclic, function: Function, dtype: np.dtype) -> np.ndarray:
    """A whole matrix of such elements, made in ranges of rows that take little room besides."""
    rows, columns = layout.shape
    made = np.empty(layout.shape, dtype)
    for top in range(0, rows, 256):
        below = min(rows, top + 256)
        made[top:below] = function(np.arange(top, below)[:, None], np.arange(columns)[None])
    return made
