"""Inf, NaN and more than 2^31 elements, with every CUDA kernel that runs on the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pymm.backends import open_device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import kernels_for
from pymm.measure.quick_check import OperandPool
from pymm.measure.verify import GuardedMatrix, hard_problem, normal
from pymm.runtime.bind import executable

LAYOUTS = ("NN", "NT", "TN", "TT")

#: One with 2^31 elements or more in A, in B, in C, and in a stack of Cs.
HUGE = {
    "A": Problem(40_001, 16, 60_000, "f32"),
    "B": Problem(16, 60_001, 40_000, "f32", trans_b=True),
    "C": Problem(50_001, 49_999, 24, "f32", trans_a=True),
    "stack": Problem(30_001, 30_000, 24, "f32", batch=3),
}


def right_ones(problem):
    """The default configuration of every CUDA kernel that may run `problem` here."""
    device = open_device("cuda").device
    for kernel in kernels_for(problem, device):
        config = kernel.default_for(problem, device)
        if not kernel.violations(config, problem, device):
            yield config


@pytest.mark.gpu  # in the simulator each kernel has its own test of this
@pytest.mark.parametrize("dtype", list(DTYPES))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inf_and_nan_stay_in_their_row_and_column(layout, dtype):
    """Inf in the last column of A and the last row of B, where partial tiles end: padding and
    splitting into terms must not turn it into NaN, and a NaN must not reach other rows.
    """
    backend = open_device("cuda")
    trans = [letter == "T" for letter in layout]
    any_size = Problem(18, 21, 41, dtype, *trans)
    configs = list(right_ones(any_size))
    for config in configs:
        problem = hard_problem(config, any_size)
        a, b, c = (np.abs(x) + np.asarray(1, x.dtype) for x in normal(problem, 1))
        left = a.swapaxes(1, 2) if problem.trans_a else a
        right = b.swapaxes(1, 2) if problem.trans_b else b
        last, row, column = problem.k - 1, problem.m - 1, problem.n - 1
        left[0, 3, last], right[0, last, column], left[0, row, 0] = np.inf, -np.inf, np.nan
        fields = [
            GuardedMatrix(backend, x.dtype, x.shape, gap) for x, gap in ((a, 3), (b, 5), (c, 7))
        ]
        for field, values in zip(fields, (a, b, c), strict=True):
            field.write(values)
        matrices = [field.matrix for field in fields]
        run = executable(backend, config, problem)
        run.bind(problem, 1.0, matrices[0], matrices[1], 0.5, matrices[2])()
        backend.synchronize()
        got, touched = fields[2].read()
        assert not touched, f"{config.slug} {problem.slug}: {touched}"
        want = np.full((problem.m, problem.n), 1.0)
        want[:, column], want[3, :] = -np.inf, np.inf
        want[3, column], want[row, :] = -np.inf, np.nan
        for test in (np.isnan, np.isposinf, np.isneginf):
            np.testing.assert_array_equal(
                test(got[0].astype(np.float64)), test(want), f"{config.slug} {problem.slug}"
            )


@pytest.mark.gpu
@pytest.mark.parametrize("name", HUGE)
@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "tf32", "tf32x3", "f16x3"])
def test_more_elements_than_a_signed_index(name, dtype):
    backend, problem = open_device("cuda"), replace(HUGE[name], dtype=dtype)
    quick = OperandPool(backend).verifier(problem)
    configs = list(right_ones(problem))
    assert configs
    for config in configs:
        run = executable(backend, config, problem)
        finding = quick.check(run, load=None)
        assert finding.right, f"{config.slug} {problem.slug}: {finding.detail}"
