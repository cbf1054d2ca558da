"""Calls that are recognised: by what each library says soonest of its arrays, and by all of it."""

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from host_device import CudaArray, HostDevice
from products import integers

import pymm
from pymm.backends.current import current
from pymm.runtime.launch_cache import Arguments, cache


class Torch:
    """As much of PyTorch as pymm asks for: streams, and tensors on a device."""

    float32 = "float32"
    stream = 5

    @staticmethod
    def is_grad_enabled():
        return True

    class cuda:  # noqa: N801
        @staticmethod
        def current_stream(device):
            return SimpleNamespace(cuda_stream=Torch.stream)

    class Tensor:
        device = SimpleNamespace(index=0)
        requires_grad = False
        asked = 0

        def __init__(self, array):
            self.array, self.told = array, CudaArray(array).__cuda_array_interface__
            self.shape, self.dtype = array.shape, "torch.float32"

        @property
        def __cuda_array_interface__(self):
            if self.requires_grad:
                raise RuntimeError("Can't get __cuda_array_interface__ on Variable")
            type(self).asked += 1
            return self.told

        def is_neg(self):
            return False

        def get_device(self):
            return 0

        def data_ptr(self):
            return self.told["data"][0]

        def stride(self):
            return tuple(step // 4 for step in self.array.strides)

        def new_empty(self, shape, dtype):
            return Torch.empty(shape, dtype, self.device)


Torch.Tensor.__module__ = "torch"


@pytest.fixture
def tensors(monkeypatch):
    """A device and tensors a, b and c with their product on it, computed once."""
    monkeypatch.setitem(sys.modules, "torch", Torch)
    monkeypatch.setattr(Torch, "stream", 5)
    monkeypatch.setattr(cache, "_readers", type(cache._readers)())
    device = HostDevice("simulator")
    a, b = (Torch.Tensor(integers((4, 4), np.float32, seed=i)) for i in (1, 2))
    c = Torch.Tensor(np.empty((4, 4), np.float32))
    pymm.matmul(a, b, out=c, device=device)
    device.log.clear()
    return device, a, b, c


def launches(device):
    return [entry for entry in device.log if entry[0] == "launch"]


def test_a_known_call_asks_tensors_for_no_interface(tensors):
    device, a, b, c = tensors
    asked = Torch.Tensor.asked
    a.array += 1
    assert pymm.matmul(a, b, out=c, device=device) is c
    assert Torch.Tensor.asked == asked and len(launches(device)) == 1
    np.testing.assert_array_equal(c.array, a.array @ b.array)


def alone(monkeypatch):
    """Python's part of the cache refuses every call from now on."""

    def refuse(*_):
        raise AssertionError("Python was asked for a call that compiled code knows")

    monkeypatch.setattr(type(cache), "lookup", refuse)


def test_compiled_code_makes_a_known_call_alone(tensors, monkeypatch):
    """With out, without, and with a bias; an attribute that changes is noticed."""
    device, a, b, c = tensors
    results = [np.empty((4, 4), np.float32) for _ in range(12)]
    left = list(results)
    monkeypatch.setattr(
        Torch, "empty", lambda shape, dtype, device: Torch.Tensor(left.pop()), raising=False
    )
    bias = Torch.Tensor(integers(4, np.float32, seed=9))
    for _ in range(2):
        pymm.matmul(a, b, out=c, device=device)
        pymm.matmul(a, b, out=c, bias=bias, device=device)
        pymm.matmul(a, b, device=device)
    left.extend(results[-1:])
    alone(monkeypatch)
    a.array += 1
    assert pymm.matmul(a, b, out=c, device=device) is c
    np.testing.assert_array_equal(c.array, a.array @ b.array)
    pymm.matmul(a, b, out=c, bias=bias, device=device)
    np.testing.assert_array_equal(c.array, a.array @ b.array + bias.array)
    result = pymm.matmul(a, b, device=device)
    assert result.array is results[-1]
    np.testing.assert_array_equal(result.array, a.array @ b.array)
    for name, value in (
        ("shape", (2, 8)),
        ("dtype", "torch.float64"),
        ("stride", lambda: (1, 4)),
        ("data_ptr", lambda: 4096),
        ("is_neg", lambda: True),
        ("get_device", lambda: 1),
        ("requires_grad", True),
    ):
        for tensor, out in ((a, c), (b, c), (c, c), (a, None), (b, None)):
            if out is None and name == "data_ptr":
                continue
            with monkeypatch.context() as change:
                change.setattr(tensor, name, value)
                with pytest.raises(AssertionError, match="Python was asked"):
                    pymm.matmul(a, b, out, device=device)
    monkeypatch.setattr(Torch, "stream", 6)
    with pytest.raises(AssertionError, match="Python was asked"):
        pymm.matmul(a, b, out=c, device=device)


def test_another_context_is_another_call(tensors, monkeypatch):
    """The numbers of contexts come from functions of the driver: here, ones of this test."""
    device, a, b, c = tensors
    here = [7]

    def handle(place):
        place[0] = 1
        return 0

    def number(_, place):
        place[0] = here[0]
        return 0

    kinds = (
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)),
        ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_uint64)),
    )
    own = kinds[0](handle), kinds[1](number)
    addresses = [ctypes.cast(one, ctypes.c_void_p).value for one in own]
    before = current.functions
    monkeypatch.setattr(current, "context", lambda: here[0])
    monkeypatch.setattr(current, "functions", tuple(addresses))
    cache.clear()
    try:
        for _ in range(2):
            pymm.matmul(a, b, out=c, device=device)
        with monkeypatch.context() as change:
            alone(change)
            assert pymm.matmul(a, b, out=c, device=device) is c
            for other in (8, 0):
                here[0] = other
                with pytest.raises(AssertionError, match="Python was asked"):
                    pymm.matmul(a, b, out=c, device=device)
    finally:
        cache.clear()
        cache._table.ask_for_contexts(before or (0, 0))


def test_an_interrupt_while_attributes_are_read_is_not_lost(tensors, monkeypatch):
    device, a, b, c = tensors
    pymm.matmul(a, b, out=c, device=device)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(b, "data_ptr", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pymm.matmul(a, b, out=c, device=device)


def test_a_tensor_elsewhere_is_another_call(tensors):
    device, a, b, c = tensors
    other = Torch.Tensor(integers((4, 4), np.float32, seed=3))
    pymm.matmul(a, other, out=c, device=device)
    np.testing.assert_array_equal(c.array, a.array @ other.array)
    turned = Torch.Tensor(b.array.T)
    pymm.matmul(a, turned, out=c, device=device)
    np.testing.assert_array_equal(c.array, a.array @ b.array.T)


def test_another_stream_is_another_call(tensors):
    device, a, b, c = tensors
    Torch.stream = 6
    pymm.matmul(a, b, out=c, device=device)
    assert [entry[2] for entry in launches(device)] == [6]


def test_a_tensor_that_wants_gradients_is_refused_though_its_call_is_known(tensors, monkeypatch):
    device, a, b, c = tensors
    monkeypatch.setattr(a, "requires_grad", True)
    with pytest.raises(TypeError, match="a requires grad"):
        pymm.matmul(a, b, out=c, device=device)
    assert not launches(device)


def test_options_tell_calls_apart(tensors):
    device, a, b, c = tensors
    pymm.matmul(a, b, out=c, alpha=2, device=device)
    np.testing.assert_array_equal(c.array, 2 * a.array @ b.array)
    with pytest.raises(NotImplementedError, match="tf32"):
        pymm.matmul(a, b, out=c, precision="tf32", device=device)


def test_a_result_is_made_anew_and_its_launch_found_again(tensors, monkeypatch):
    """Without out: the library makes each result, and where it stands where one stood that is
    gone, the launch is known.
    """
    device, a, b, c = tensors
    places = [np.empty((4, 4), np.float32) for _ in range(2)]
    made = iter([Torch.Tensor(places[i]) for i in (0, 1, 0, 1)])
    monkeypatch.setattr(Torch, "empty", lambda shape, dtype, device: next(made), raising=False)
    for turn in range(4):
        a.array += 1
        if turn == 2:
            asked = Torch.Tensor.asked
        result = pymm.matmul(a, b, device=device)
        assert result.array is places[turn % 2]
        np.testing.assert_array_equal(result.array, a.array @ b.array)
    assert Torch.Tensor.asked == asked
    assert pymm.matmul(a, b, out=c, device=device) is c


def test_cupy_says_where_and_on_which_stream(monkeypatch):
    stream = SimpleNamespace(ptr=0)
    cupy = SimpleNamespace(cuda=SimpleNamespace(get_current_stream=lambda: stream))
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(cache, "_readers", type(cache._readers)())
    data = SimpleNamespace(ptr=4096, device_id=0)
    kind = type("ndarray", (), {"__module__": "cupy._core.core"})
    array = kind()
    array.data, array.shape, array.strides, array.dtype = data, (2, 2), (8, 4), np.dtype("f4")
    arguments = Arguments(array, array, array, None, (1, None))
    first = cache.key_of(arguments)
    assert first == cache.key_of(arguments)
    for change in (
        lambda: setattr(stream, "ptr", 7),
        lambda: setattr(data, "ptr", 8192),
        lambda: setattr(array, "strides", (4, 8)),
    ):
        change()
        second = cache.key_of(arguments)
        assert second not in (None, first)
        first = second


def test_numpy_arrays_without_out():
    """On the CPU such a call is prepared once: other arrays of the same shapes, each with a new
    result, other shapes, and vectors, whose product is a scalar.
    """
    kept = []
    for seed in range(40):
        a, b = (integers((5, 6), np.float32, seed), integers((6, 7), np.float32, seed + 50))
        kept.append((pymm.matmul(a, b, device="cpu"), a @ b))
        if seed % 3 == 0:
            kept.append((pymm.matmul(a.T, b[:5].T.copy().T, device="cpu"), a.T @ b[:5]))
    for got, wanted in kept:
        np.testing.assert_array_equal(got, wanted)
    assert len({got.__array_interface__["data"][0] for got, _ in kept}) == len(kept)
    x = integers(9)
    for _ in range(3):
        assert type(pymm.matmul(x, x, device="cpu")) is np.float64


@pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")  # of NumPy 2.5
def test_numpy_arrays_whose_shape_is_changed_in_place():
    """Shape, dtype and the right to write are looked at in every call."""
    a, b, out = integers((4, 9)), integers((9, 4), seed=1), np.zeros((4, 4))
    for _ in range(3):
        np.testing.assert_array_equal(pymm.matmul(a, b, out, device="cpu"), a @ b)
    a.shape, b.shape = (6, 6), (6, 6)
    np.testing.assert_array_equal(pymm.matmul(a, b, device="cpu"), a @ b)
    with pytest.raises(ValueError, match="out has shape"):
        pymm.matmul(a, b, out, device="cpu")
    a.shape, b.shape = (4, 9), (9, 4)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        pymm.matmul(a, b, out, device="cpu")
