"""Tensors of PyTorch: the sign that its negative bit says, and those that would need a gradient.
By a stand-in with its rules, and on a GPU with PyTorch itself.
"""

import itertools
import sys

import numpy as np
import pytest
from host_device import HostDevice
from products import integers
from tensors import Torch

import pymm
from pymm.runtime.launch_cache import cache


@pytest.fixture
def torch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setattr(Torch, "recording", True)
    monkeypatch.setattr(cache, "_readers", type(cache._readers)())
    return Torch


@pytest.fixture
def far():
    return HostDevice("simulator")


def square(seed=0):
    return integers((4, 4), np.float32, seed=seed)


@pytest.mark.parametrize("kind", ["Tensor", "Parameter", "Subclass"])
@pytest.mark.parametrize("signs", list(itertools.product([False, True], repeat=3)))
def test_the_negative_bit_is_a_sign(torch, far, kind, signs):
    """Called twice: the second call is a cached launch."""
    made = getattr(torch, kind)
    a, b, c = (made(square(seed), negative) for seed, negative in enumerate(signs))
    for _ in range(2):
        out = made(np.empty((4, 4), np.float32))
        pymm.matmul(a, b, out, c=c, alpha=3, beta=2, device=far)
        np.testing.assert_array_equal(out.array, 3 * a.value @ b.value + 2 * c.value)
        result = pymm.matmul(a, b, device=far)
        np.testing.assert_array_equal(result.array, a.value @ b.value)


@pytest.mark.parametrize("kind", ["Tensor", "Parameter", "Subclass"])
def test_a_negative_tensor_in_the_place_of_a_plain_one(torch, far, kind):
    """Everything but the bit is equal, so a cached launch that does not know of it is wrong."""
    made, out = getattr(torch, kind), torch.Tensor(np.empty((4, 4), np.float32))
    plain, b = made(square()), made(square(1))
    negative = made(plain.array, negative=True)
    for a in (plain, negative, plain, negative, negative, plain):
        pymm.matmul(a, b, out, device=far)
        np.testing.assert_array_equal(out.array, a.value @ b.array)
        np.testing.assert_array_equal(pymm.matmul(a, b, device=far).array, a.value @ b.array)


def test_a_plan_and_syrk_see_the_sign(torch, far):
    a, b = torch.Tensor(square(), negative=True), torch.Tensor(square(1))
    plan = pymm.plan(a, b, device=far)
    for _ in range(2):
        np.testing.assert_array_equal(plan().array, a.value @ b.value)
        a.array += 1  # a plan computes with what its operands hold by then
    np.testing.assert_array_equal(plan(b, b).array, b.value @ b.value)
    np.testing.assert_array_equal(pymm.syrk(a, device=far).array, a.value @ a.value.T)
    c = torch.Tensor(square(2) + square(2).T, negative=True)
    found = pymm.syrk(b, c=c, beta=2, device=far).array
    np.testing.assert_array_equal(found, b.value @ b.value.T + 2 * c.value)


def test_a_negative_out_is_refused_unwritten(torch, far):
    a, out = torch.Tensor(square()), torch.Tensor(square(1), negative=True)
    before = out.array.copy()
    for call in (pymm.matmul, pymm.plan, pymm.explain):
        with pytest.raises(ValueError, match=r"out has PyTorch's negative bit.*out\.resolve_neg"):
            call(a, a, out, device=far)
    np.testing.assert_array_equal(out.array, before)


@pytest.mark.parametrize("place", ["a", "b", "c", "out"])
def test_a_tensor_that_requires_grad(torch, far, place):
    """Refused while gradients are recorded, also once a launch is cached; used in place without."""
    given = {name: torch.Parameter(square(i)) for i, name in enumerate(("a", "b", "c", "out"))}
    given[place].requires_grad = True
    options = dict(beta=1, device=far)
    for _ in range(2):
        torch.recording = True
        before = given["out"].array.copy()
        message = rf"{place} requires grad.*torch\.no_grad\(\) or {place}\.detach\(\)"
        with pytest.raises(TypeError, match=message):
            pymm.matmul(given["a"], given["b"], given["out"], c=given["c"], **options)
        np.testing.assert_array_equal(given["out"].array, before)
        torch.recording = False
        out = pymm.matmul(given["a"], given["b"], given["out"], c=given["c"], **options)
        assert out is given["out"]
        expected = given["a"].array @ given["b"].array + given["c"].array
        np.testing.assert_array_equal(out.array, expected)


def test_a_tensor_without_memory_is_refused(torch, far, monkeypatch):
    """PyTorch's zero tensors have none."""
    a = torch.Tensor(square())
    told = dict(a.__cuda_array_interface__, data=(0, False))
    monkeypatch.setattr(torch.Tensor, "__cuda_array_interface__", told)
    with pytest.raises(TypeError, match="a has no memory"):
        pymm.matmul(a, a, device=far)


@pytest.mark.gpu
class TestPyTorch:
    """The same with PyTorch itself."""

    @pytest.fixture
    def real(self):
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("this PyTorch has no GPU")
        torch.manual_seed(0)
        return torch

    @staticmethod
    def imaginary(torch, size=64):
        """A view with the negative bit; its lines have no unit stride."""
        view = torch.randn(size, size, dtype=torch.complex64, device="cuda").conj().imag
        assert view.is_neg()
        return view

    @staticmethod
    def negated(torch, size=64):
        """A view with the negative bit that needs no copy."""
        view = torch._neg_view(torch.randn(size, size, device="cuda"))
        assert view.is_neg()
        return view

    @pytest.mark.parametrize("make", ["imaginary", "negated"])
    def test_the_negative_bit(self, real, make):
        a, c, b = getattr(self, make)(real), getattr(self, make)(real), real.randn(64, 64).cuda()
        exact = lambda x: x.double()  # noqa: E731
        for x, y in itertools.product((a, a.resolve_neg(), b), repeat=2):
            for _ in range(3):
                out = real.empty(64, 64, device="cuda")
                pymm.matmul(x, y, out, c=c, alpha=2, beta=3)
                expected = 2 * exact(x) @ exact(y) + 3 * exact(c)
                real.testing.assert_close(exact(out), expected, rtol=1e-5, atol=1e-4)
                expected = exact(x) @ exact(y)
                found = exact(pymm.matmul(x, y))
                real.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
        plan = pymm.plan(a, b)
        real.testing.assert_close(exact(plan()), exact(a) @ exact(b), rtol=1e-5, atol=1e-4)
        with pytest.raises(ValueError, match="negative bit"):
            pymm.matmul(b, b, self.negated(real))

    def test_parameters(self, real):
        weight = real.nn.Parameter(real.randn(64, 64, device="cuda"))
        x, out = real.randn(64, 64, device="cuda"), real.empty(64, 64, device="cuda")
        for _ in range(3):
            with pytest.raises(TypeError, match=r"b requires grad.*torch\.no_grad"):
                pymm.matmul(x, weight, out)
            with real.no_grad():
                pymm.matmul(x, weight, out)
                expected = (x.double() @ weight.double()).float()
                real.testing.assert_close(out, expected, rtol=1e-5, atol=1e-4)
                real.testing.assert_close(pymm.matmul(x, weight), out)

    def test_zero_tensors(self, real):
        x = real.randn(8, 8, device="cuda")
        with pytest.raises(TypeError):
            pymm.matmul(real._efficientzerotensor(8, 8, device="cuda"), x)
