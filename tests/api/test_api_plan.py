"""Plans: bound to arrays, computed again from what those hold."""

import numpy as np
import pytest
from host_device import HostDevice
from products import integers

import pymm

NEAR, FAR = HostDevice("cpu"), HostDevice("simulator")
DEVICES = pytest.mark.parametrize("device", [NEAR, FAR], ids=["near", "far"])


@DEVICES
def test_a_plan_computes_from_what_its_arrays_hold(device):
    a, b, out = integers((2, 3, 4)), integers((4, 5))[:, ::-1], np.empty((2, 3, 5), order="F")
    plan = pymm.plan(a, b, out, alpha=2, device=device)
    for seed in range(3):
        a[...] = integers(a.shape, seed=seed)
        b[...] = integers(b.shape, seed=seed + 7)
        assert plan() is out
        np.testing.assert_array_equal(out, 2 * a @ b)


@DEVICES
def test_a_plan_takes_other_arrays_of_the_same_shapes(device):
    a, b, c = integers((3, 4)), integers((4, 5)), integers((3, 5))
    plan = pymm.plan(a, b, c=c, beta=1, device=device)
    own = plan()
    np.testing.assert_array_equal(own, a @ b + c)
    other = integers((3, 4), seed=9)
    out = np.empty((3, 5))
    assert plan(other, b, out=out) is out
    np.testing.assert_array_equal(out, other @ b + c)
    assert plan(c=c * 2) is out
    np.testing.assert_array_equal(out, other @ b + 2 * c)
    for wrong in (integers((4, 3)).T, other.astype(np.float32)):
        with pytest.raises(ValueError, match="the plan was made for a of shape"):
            plan(wrong, b)
    with pytest.raises(ValueError, match="do not fit"):
        plan(b, a)
    with pytest.raises(TypeError, match="no operands or a and b"):
        plan(a)
    np.testing.assert_array_equal(plan(), other @ b + 2 * c)


def test_a_plan_tells_what_it_is():
    plan = pymm.plan(integers((5, 3, 4)), integers((5, 4, 2)), device=NEAR, kernel="reordered")
    assert plan.problem.slug == "f64-NN-3x2x4-b5" and plan.launches == 1
    assert plan.config.kernel_name == "reordered" and plan.resources.registers == 32
    assert "reordered" in plan.choice.reason
    empty = pymm.plan(np.empty((0, 3)), np.empty((3, 2)), device=NEAR)
    assert empty().shape == (0, 2) and empty.launches == 0 and empty.resources.registers == 0
