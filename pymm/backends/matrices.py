"""Where kernels find matrices and vectors, and how these are aligned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pymm.core.problem import Problem, common_alignment


@dataclass(frozen=True)
class Matrix:
    """Where a kernel finds a matrix or a stack: address in bytes, leading dimension and distance
    between the matrices of the stack in elements. `owner` keeps the memory alive. `split` is what a
    kernel with split operands takes instead, where it was made before.
    """

    address: int
    ld: int
    batch_stride: int = 0
    owner: Any = field(default=None, compare=False, repr=False)
    split: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Vector:
    """Where a kernel finds a vector of `length` elements. `owner` keeps the memory alive."""

    address: int
    length: int
    owner: Any = field(default=None, compare=False, repr=False)


def alignment(problem: Problem, matrices: Sequence[Matrix]) -> int:
    """The largest number of bytes, at most 16, that divides the address and the length of every row
    of `matrices`: a kernel may move rows in whole pieces of that size.
    """
    size = problem.numpy_dtype.itemsize
    sizes = size, size, problem.out_dtype.itemsize
    strides = [n * s for x, s in zip(matrices, sizes, strict=True) for n in (x.ld, x.batch_stride)]
    return common_alignment(problem.alignment, *strides, *(matrix.address for matrix in matrices))
