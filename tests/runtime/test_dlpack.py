"""Operands that offer DLPack and nothing else, and arrays that are refused by what they are."""

import gc
import weakref

import ml_dtypes
import numpy as np
import pytest
import scipy.sparse
from dlpack_producer import (
    CPU,
    CUDA,
    CUDA_HOST,
    CUDA_MANAGED,
    VULKAN,
    Delegate,
    Producer,
    read_only,
)
from host_device import HostDevice
from products import integers

import pymm
from pymm.runtime.arrays import ArraySpec, adopt

X, Y = integers((5, 3), np.float32, seed=1), integers((3, 7), np.float32, seed=2)


@pytest.fixture
def far():
    return HostDevice("simulator")


@pytest.mark.parametrize("device", [CPU, CUDA_HOST])
@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[::2, ::-1], lambda x: x[:0]])
def test_memory_of_the_host_is_read_in_place(cpu, device, versioned, view):
    given = view(X)
    a = Producer(given, device=device, versioned=versioned)
    operand = adopt(a, "a")
    assert operand.on_host and operand.owner.strides == given.strides
    assert not given.size or np.shares_memory(operand.owner, X)
    found = pymm.matmul(a, Y, device=cpu)
    np.testing.assert_array_equal(found, given.astype(np.float64) @ Y)
    assert a.asked == [None, None]


class Old(Delegate):
    """From before DLPack 1.0."""

    def __dlpack__(self, *, stream=None):
        return self._array.__dlpack__(stream=stream)


@pytest.mark.parametrize("kind", [Delegate, Old])
def test_numpys_own_export(cpu, kind):
    found = pymm.matmul(kind(X), kind(Y.T), trans_b=True, device=cpu)
    np.testing.assert_array_equal(found, X.astype(np.float64) @ Y)
    assert adopt(kind(X[1:, ::2])).spec == ArraySpec((4, 2), (12, 8), X.dtype)


@pytest.mark.parametrize("dtype", ["f2", "f8", "i4", "u1", "c8", "?", ml_dtypes.bfloat16])
def test_types(dtype):
    array = np.ones((2, 3), dtype)
    code = 4 if dtype is ml_dtypes.bfloat16 else None
    options = {} if code is None else {"code": code}
    assert adopt(Producer(array, device=CPU, **options)).spec.dtype == array.dtype


class Temporary(Delegate):
    """Exports a copy that nothing but the capsule owns."""

    device = CPU

    def __dlpack__(self, **options):
        copy = np.array(self._array)
        self.ref = weakref.ref(copy)
        options.pop("stream", None)
        return copy.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device, 0


class OnGpu(Temporary):
    device = CUDA


@pytest.mark.parametrize("kind", [Temporary, OnGpu])
def test_the_export_is_held_and_released(kind, far):
    array = kind(X)
    operand = adopt(array)
    gc.collect()
    assert array.ref() is not None
    del operand
    gc.collect()
    assert array.ref() is None
    plan = pymm.plan(array, array, trans_b=True, device="cpu" if kind is Temporary else far)
    gc.collect()
    found = plan()
    np.testing.assert_array_equal(getattr(found, "array", found), X.astype(np.float64) @ X.T)


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("offset", [0, 12])
def test_memory_of_a_gpu(far, versioned, offset):
    """The producer makes the legacy default stream wait, whose handle is 1."""
    a, b = (Producer(x, versioned=versioned, offset=offset) for x in (X, Y.T.copy().T))
    found = pymm.matmul(a, b, device=far)
    np.testing.assert_array_equal(found.array, X @ Y)
    assert a.asked == [1] and adopt(b).stream == 1
    out = Producer(np.full((5, 7), np.nan, np.float32))
    assert pymm.matmul(a, b, out, device=far) is out
    np.testing.assert_array_equal(out.array, X @ Y)


def test_shape_strides_and_dtype_on_a_gpu():
    operand = adopt(Producer(X, index=3, strided=False, device=CUDA_MANAGED))
    assert operand.spec == ArraySpec.packed((5, 3), X.dtype) and not operand.on_host
    assert operand.device_index == 3
    operand = adopt(Producer(X[:, ::2]))
    assert operand.spec == ArraySpec((5, 2), (12, 8), X.dtype)
    assert adopt(Producer(np.float32(3) * np.ones(()))).spec.shape == ()


@pytest.mark.parametrize("array", [Producer(read_only(X @ Y), readonly=True), Delegate(X @ Y)])
def test_outputs_that_cannot_be_written(far, array):
    """Read-only memory; and the host's, which NumPy describes by another object than was given."""
    a, b = (Producer(X), Producer(Y)) if isinstance(array, Producer) else (X, Y)
    with pytest.raises((ValueError, TypeError), match="out is (read-only|a Delegate, not an arr)"):
        pymm.matmul(a, b, array, device=far)
    assert adopt(Delegate(read_only(X))).readonly


class Failing(Delegate):
    def __dlpack__(self, **options):
        raise BufferError("it cannot be exported")


class NoCapsule(Delegate):
    def __dlpack__(self, **options):
        return 7


class MaskedTensor:
    """As much of `torch.masked.MaskedTensor` as is looked at."""


REFUSED = {
    "device": (Producer(X, device=VULKAN), "a Producer, whose DLPack export fails.*type 7.*copy"),
    "type": (Producer(X, code=3), "no type for DLPack's code 3 with 32 bits"),
    "bits": (Producer(X.astype("f2"), code=5), "no type for DLPack's code 5 with 16 bits"),
    "vectors": (Producer(X, lanes=4), "no type for DLPack's code 2"),
    "version": (Producer(X, major=2), "DLPack 2.0, not of 1"),
    "error": (Failing(X), "a Failing, whose DLPack export fails: it cannot be exported"),
    "capsule": (NoCapsule(X), "returned a int that holds no tensor"),
    "SciPy's matrix": (scipy.sparse.csr_matrix(X), r"a is a csr_matrix.*\(sparse\).*a\.toarray"),
    "SciPy's array": (scipy.sparse.coo_array(X), r"a is a coo_array.*\(sparse\).*a\.toarray\(\)"),
    "None": (None, "a is None, not an array nor anything that numpy.asarray makes"),
    "masked tensor": (MaskedTensor(), r"masked elements; say what stands.*a\.to_tensor\(0\)"),
}


@pytest.mark.parametrize("array, message", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("call", [pymm.matmul, pymm.plan, pymm.explain])
def test_refused(array, message, call):
    out = np.full((5, 7), np.nan, np.float32)
    with pytest.raises(TypeError, match=message):
        call(array, Y, out, device="cpu")
    assert np.isnan(out).all()
