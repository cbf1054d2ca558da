"""Thirty calls as a user writes them, for a type checker: `mypy --strict` has no complaint.

Never run: tests/test_package.py checks it against an installed pymm.
"""

from __future__ import annotations

from typing import assert_type

import numpy as np
import numpy.typing as npt

import pymm

Matrix = npt.NDArray[np.float32]


def products(a: Matrix, b: Matrix, row: Matrix) -> Matrix:
    """`matmul` gives what it gets: an array, or a scalar of two vectors; a checker sees Any."""
    made: Matrix = pymm.matmul(a, b)
    pymm.matmul(a, b, made, alpha=2, c=made, beta=0.5)
    pymm.matmul(a, b, out=made, trans_a=True, trans_b="T")
    pymm.matmul(a, b, bias=row, activation="gelu")
    pymm.matmul(a, b, precision="tf32x3", device="cuda:0", stream=7)
    pymm.matmul(a, b, kernel=5, config={"MB": 64})
    pymm.matmul(a, b, kernel="pipelined", device=["cuda:0", "cuda:1"])
    pymm.matmul(a, b, device_memory="8GB", transfer="pinned")
    pymm.matmul(a, b, dtype=np.float64, casting="unsafe")
    pymm.syrk(a, trans=True, fill="lower", out=made)
    total: Matrix = pymm.einsum("ij,jk->ik", a, b)
    folded: Matrix = pymm.tensordot(a, b, axes=1)
    return made + total + folded


def plans(a: Matrix, b: Matrix) -> Matrix:
    product = assert_type(pymm.plan(a, b, alpha=2), pymm.Plan)
    product()
    made: Matrix = product(a, b)
    assert_type(product.launches, int)
    print(product.config.slug, product.choice.reason, product.problem.slug)
    print(product.resources.registers)
    square = assert_type(pymm.plan_syrk(a), pymm.Plan)
    square(a)
    results = pymm.grouped([a, b], [b, a])
    made += results[0]
    again = assert_type(pymm.plan_grouped([a], [b]), pymm.GroupedPlan)
    made += again()[0]
    constant = pymm.prepare(b, trans_b=True)
    pymm.matmul(a, constant, precision="emulated")
    return made


def reasons(a: Matrix, b: Matrix) -> list[str]:
    told = pymm.explain((64, 64), (64, 64), dtype="f32")
    lines = str(told).splitlines()
    half = assert_type(pymm.explain_syrk(a), pymm.Explanation)
    lines += [tuned.record.config.slug for tuned in pymm.configs("cpu") if not tuned.stale]
    return [*lines, str(half)]


def several(a: Matrix) -> Matrix:
    parts = assert_type(pymm.scatter(a, devices="cuda:all"), pymm.ShardedMatrix)
    target = pymm.ShardedMatrix.empty((4, 4), np.float32)
    pymm.matmul(parts, parts, out=target)
    made: Matrix = target.gather()
    parts.fill(a)
    return made


def faults(a: Matrix) -> None:
    pymm.freeze()
    pymm.reload()
    try:
        pymm.matmul(a, a)
    except pymm.CompileFailed as error:
        print(error.outcome)
    except pymm.LaunchFailed as error:
        print(error.sticky)
    except (pymm.NoDevice, pymm.Error) as error:
        print(error, assert_type(pymm.__version__, str))
