"""matmul of arrays that lie on a device, whoever made them: in place, on the right stream, and the
result of the same kind.
"""

import sys

import numpy as np
import pytest
from host_device import CudaArray, HostDevice
from hypothesis import given
from hypothesis import strategies as st
from products import integers, laid_out, products

import pymm

FAR = HostDevice("simulator")


def on_device(array, **options):
    return CudaArray(array, **options)


@given(data=st.data())
def test_device_arrays_in_place(data):
    a, b = (x.astype(np.float64) for x in data.draw(products()))
    a, b = (data.draw(laid_out(x.shape, seed=i)) for i, x in enumerate((a, b)))
    expected = np.matmul(a, b)
    result = pymm.matmul(on_device(a), on_device(b), device=FAR)
    assert type(result) is CudaArray
    np.testing.assert_array_equal(result.array, expected)
    out = np.full(expected.shape, np.nan, order=data.draw(st.sampled_from("CF")))
    c = data.draw(laid_out(expected.shape, seed=5))
    place = on_device(out)
    given = pymm.matmul(on_device(a), on_device(b), place, c=on_device(c), beta=2, device=FAR)
    assert given is place
    np.testing.assert_array_equal(out, expected + 2 * c)


def test_device_arrays_are_not_copied_without_need():
    device = HostDevice("simulator")
    x, out = on_device(integers((4, 4))), on_device(np.empty((4, 4)))
    pymm.matmul(x, x, out, c=out, beta=0, device=device)
    assert [entry[0] for entry in device.log] == ["load", "launch"]
    pymm.matmul(x, x, x, device=device)
    assert [entry[0] for entry in device.log[2:]] == ["launch", "out", "in"]


def streams(device):
    return [entry for entry in device.log if entry[0] in ("order", "launch")]


def test_the_producers_streams_are_honoured():
    x, out = integers((2, 2)), np.empty((2, 2))
    device = HostDevice("simulator")
    pymm.matmul(
        on_device(x, stream=5), on_device(x, stream=6), on_device(out, stream=5), device=device
    )
    order, launch = streams(device)
    assert order == ("order", 6, 5) and launch[2] == 5
    device.log.clear()
    pymm.matmul(on_device(x, stream=5), on_device(x, stream=5), device=device)
    launch, order = streams(device)  # the result names no stream: the default one waits for it
    assert launch[2] == 5 and order == ("order", 5, None)
    device.log.clear()
    pymm.matmul(on_device(x, stream=5), on_device(x), on_device(out), stream=9, device=device)
    order, launch = streams(device)
    assert order == ("order", 5, 9) and launch[2] == 9
    device.log.clear()
    pymm.matmul(x, x, stream=9, device=device)
    assert {entry[-1] for entry in device.log} == {9}


def test_libraries_make_their_own_results(monkeypatch):
    class Device:
        id = 0

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

    class Array(CudaArray):
        device = Device()

    Array.__module__ = "cupy._core"

    class Library:
        @staticmethod
        def empty(shape, dtype):
            return Array(np.empty(shape, dtype), stream=5)

    monkeypatch.setitem(sys.modules, "cupy", Library)
    x = integers((3, 3))
    result = pymm.matmul(Array(x, stream=5), on_device(x), device=FAR)
    assert type(result) is Array
    np.testing.assert_array_equal(result.array, x @ x)
    assert type(pymm.matmul(on_device(x), Array(x), device=FAR)) is CudaArray
    monkeypatch.setattr(Device, "id", 1)
    with pytest.raises(ValueError, match="a on device 1, b on device 1; the product .* device 0"):
        pymm.matmul(Array(x), Array(x), device=FAR)


def test_torch_tensors_name_their_stream(monkeypatch):
    class Device:
        index = 0

    class Tensor(CudaArray):
        device = Device()
        requires_grad = False

        def is_neg(self):
            return False

        def get_device(self):
            return -1  # never kept

    Tensor.__module__ = "torch"

    class Torch:
        float64, Tensor = "float64", None

        class cuda:  # noqa: N801
            @staticmethod
            def current_stream(device):
                return type("Stream", (), dict(cuda_stream=8))

        @staticmethod
        def empty(shape, dtype, device):
            return Tensor(np.empty(shape, dtype), version=2)

    monkeypatch.setitem(sys.modules, "torch", Torch)
    device = HostDevice("simulator")
    x = integers((3, 3))
    result = pymm.matmul(Tensor(x, version=2), Tensor(x, version=2), device=device)
    assert type(result) is Tensor and [s[2] for s in streams(device)] == [8]
    np.testing.assert_array_equal(result.array, x @ x)


def test_a_steady_call_loads_nothing_and_selects_nothing(monkeypatch):
    device = HostDevice("simulator")
    x, out = on_device(integers((4, 4))), on_device(np.empty((4, 4)))
    pymm.matmul(x, x, out, device=device)
    monkeypatch.setattr("pymm.selection.choose.select", None)
    device.log.clear()
    for _ in range(3):
        pymm.matmul(x, x, out, device=device)
    assert [entry[0] for entry in device.log] == ["launch"] * 3
