"""The shapes of one call taken apart: which matrices are multiplied, in which layout, in how many
launches. Pure arithmetic on shapes and strides, remembered from call to call.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from pymm.core.dtypes import DTYPES, dtype_name
from pymm.core.problem import MAX_EXTENT, Problem
from pymm.runtime.arrays import ArraySpec


class MatrixOffset(NamedTuple):
    """Where a launch finds a matrix: bytes behind the operand's first element, leading dimension
    and distance between the matrices of a stack in elements.
    """

    offset: int
    ld: int
    batch_stride: int


@dataclass(frozen=True, slots=True)
class Step:
    """One launch: `left` and `right` are A and B, or B and A if the product is swapped."""

    problem: Problem
    left: MatrixOffset
    right: MatrixOffset
    out: MatrixOffset


@dataclass(frozen=True)
class Product:
    """One call: shape of the result and the launches that fill it, none if it is empty. `swapped`
    says that C is column-major, so the launches compute C^T = op(B)^T op(A)^T.
    `problem` is the first launch's, or what it would be.
    """

    shape: tuple[int, ...]
    swapped: bool
    problem: Problem
    steps: tuple[Step, ...]


@lru_cache(maxsize=1024)
def result_shape(
    a: tuple[int, ...], b: tuple[int, ...], trans_a: bool = False, trans_b: bool = False
) -> tuple[int, ...]:
    """The shape of op(A) op(B) by the rules of `numpy.matmul`; a flag leaves a vector as it is.

    `ValueError` that shows both shapes if they do not fit, or if one is 0-D.
    """
    given = f"shapes {a} and {b}"
    if trans_a or trans_b:
        given += f" with trans_a={trans_a}, trans_b={trans_b}"
    if not a or not b:
        raise ValueError(f"{given}: scalar operands are not allowed, use '*' instead")
    rows, depth = _extents(a, trans_a) if len(a) > 1 else (None, a[0])
    height, columns = _extents(b, trans_b) if len(b) > 1 else (b[0], None)
    if depth != height:
        raise ValueError(f"{given} do not fit: op(a) has {depth} columns, op(b) {height} rows")
    try:
        stack = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ValueError(f"{given}: stacks {a[:-2]} and {b[:-2]} do not broadcast") from None
    return (*stack, *(extent for extent in (rows, columns) if extent is not None))


def _extents(shape: tuple[int, ...], transposed: bool) -> tuple[int, int]:
    rows, columns = shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


#: What of C^T is the named half of C.
_TRANSPOSED = {"syrk_lower": "syrk_upper", "syrk_upper": "syrk_lower"}


@lru_cache(maxsize=1024)
def arrange(
    a: ArraySpec,
    b: ArraySpec,
    out: ArraySpec | None = None,
    trans_a: bool = False,
    trans_b: bool = False,
    kind: str | None = None,
    op: str = "gemm",
    biased: bool = False,
) -> Product:
    """The launches for operands a and b; `out` None is a packed result. Each must be `stored` one
    way or the other. `kind` is the type of the product by its short name; None is plain arithmetic
    in the type of the operands. A symmetric `op` has a as both operands.
    `biased` says that a bias is added along the rows of the result.

    Raises `ValueError` for shapes that do not fit or exceed 32-bit extents.
    """
    shape = result_shape(a.shape, b.shape, trans_a, trans_b)
    kind = dtype_name(a.dtype) if kind is None else kind
    out = ArraySpec.packed(shape, DTYPES[kind].out) if out is None else out
    left, right = _matrix(a, trans_a, -2), _matrix(b, trans_b, -1)
    if len(b.shape) == 1:
        out = out.with_axis(-1)
    if len(a.shape) == 1:
        out = out.with_axis(-2)
    swapped, _ = out.stored()
    if swapped:
        left, right, out = right.transposed(), left.transposed(), out.transposed()
    stack = out.shape[:-2]
    left, right = left.spread(stack), right.spread(stack)
    (left_t, lda), (right_t, ldb), (_, ldc) = left.stored(), right.stored(), out.stored()
    (m, n), k = out.shape[-2:], left.shape[-1]
    op = _TRANSPOSED.get(op, op) if swapped else op
    problem = Problem(m, n, k, kind, left_t, right_t, op=op)
    axes = merge_axes([*zip(stack, *(f.strides[:-2] for f in (left, right, out)), strict=True)])
    if not (biased and swapped):  # else a row of a tall product would not be one of the bias
        problem, axes = _fold(problem, axes, lda, ldc)
    steps = tuple(_steps(problem, axes, (lda, ldb, ldc))) if out.size else ()
    return Product(shape, swapped, steps[0].problem if steps else problem, steps)


def _matrix(spec: ArraySpec, transposed: bool, axis: int) -> ArraySpec:
    """op of an operand, a vector as the matrix of one row (-2) or one column (-1)."""
    if len(spec.shape) == 1:
        return spec.with_axis(axis)
    return spec.transposed() if transposed else spec


# Stacks. An axis is its extent and the strides in bytes of left, right and out along it

Axis = tuple[int, int, int, int]


def merge_axes(axes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The same walk with as few axes as possible. An axis is its extent, then its strides in each
    of the arrays that are walked through together.
    """
    merged: list[tuple[int, ...]] = []
    for axis in axes:
        extent, *steps = axis
        if extent == 1:
            continue
        if merged and all(o == extent * i for o, i in zip(merged[-1][1:], steps, strict=True)):
            axis = (merged.pop()[0] * extent, *steps)
        merged.append(axis)
    return merged


def _fold(problem: Problem, axes: list[Axis], lda: int, ldc: int) -> tuple[Problem, list[Axis]]:
    """A stack on the left and in C whose matrices lie right below each other, against one matrix
    on the right, is one tall product.
    """
    size, m = problem.numpy_dtype.itemsize, problem.m
    row = ldc * problem.out_dtype.itemsize
    if axes and not problem.trans_a and not problem.symmetric:
        extent, left, right, out = axes[-1]
        tall = left == m * lda * size and right == 0 and out == m * row
        if tall and extent * m <= MAX_EXTENT:
            return replace(problem, m=extent * m), axes[:-1]
    return problem, axes


def _steps(problem: Problem, axes: list[Axis], lds: tuple[int, int, int]) -> Iterator[Step]:
    """The launches: the longest axis is the batch of each, the others are walked through."""
    size = problem.numpy_dtype.itemsize
    sizes = (size, size, problem.out_dtype.itemsize)
    forward = [axis for axis in axes if min(axis[1:3]) >= 0 and axis[3] > 0]
    batch = max(forward, key=lambda axis: axis[0], default=(1, 0, 0, 0))
    others = list(axes)
    if forward:
        others.remove(batch)
    batched = replace(problem, batch=batch[0])
    for index in itertools.product(*(range(axis[0]) for axis in others)):
        places = []
        for which, (ld, size) in enumerate(zip(lds, sizes, strict=True), 1):
            offset = sum(i * axis[which] for i, axis in zip(index, others, strict=True))
            places.append(MatrixOffset(offset, ld, batch[which] // size))
        yield Step(batched, *places)
