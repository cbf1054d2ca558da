"""What an untuned product of doubles gets, of kernels 6 and 9."""

from __future__ import annotations

from dataclasses import replace

import pytest
from h200 import H200
from hypothesis import given
from hypothesis import strategies as st

from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for

TENSOR_F64 = find_kernel("tensor_f64")

#: Products of which one kernel took at least 1.1 times as long as the other on an H200, each with
#: the best of its configurations that were measured (benchmarks/LOG.md).
MEASURED = {
    (60, 7374, 4733, "NT", 1): "tensor_f64",
    (47, 93, 52, "TT", 1): "tensor_f64",
    (208, 47, 670, "TN", 1): "tensor_f64",
    (34, 732, 75, "NN", 1): "tensor_f64",
    (32, 32, 32, "NN", 4000): "tensor_f64",
    (199, 677, 38, "NN", 1): "tensor_f64",
    (5835, 95, 52, "TN", 1): "tensor_f64",
    (7942, 1783, 33, "TT", 1): "tma_f64",
    (3970, 3895, 82, "TN", 1): "tma_f64",
    (1816, 239, 1192, "NT", 1): "tma_f64",
    (950, 6801, 229, "NN", 1): "tma_f64",
    (2845, 2588, 70, "NN", 1): "tma_f64",
    (1600, 6240, 119, "TN", 1): "tma_f64",
}


@pytest.mark.parametrize("product", MEASURED, ids=str)
def test_the_kernel_that_was_faster_is_chosen(product):
    m, n, k, layout, batch = product
    problem = Problem(m, n, k, "f64", layout[0] == "T", layout[1] == "T", batch)
    assert kernels_for(problem, H200)[-1].name == MEASURED[product]


@given(st.tuples(*[st.integers(0, 9000)] * 3), st.booleans(), st.booleans(), st.integers(1, 40))
def test_the_default_of_kernel_6_obeys_its_rules(extents, trans_a, trans_b, batch):
    problem = Problem(*extents, "f64", trans_a, trans_b, batch)
    for device in (H200, replace(H200, capability=(8, 6), sms=7, shared_per_block=101376)):
        config = TENSOR_F64.default_for(problem, device)
        assert not TENSOR_F64.violations(config, problem, device)


def test_a_deep_product_of_few_tiles_is_shared_by_more_blocks_than_a_shallow_one():
    few = (Problem(64, 64, k, "f64") for k in (64, 4096))
    shallow, deep = (TENSOR_F64.default_for(problem, H200) for problem in few)
    assert shallow.SPLIT == 1 < deep.SPLIT
