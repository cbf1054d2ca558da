"""What is refused, in which words, and that nothing is written by then."""

import pickle
import threading

import ml_dtypes
import numpy as np
import pytest
from host_device import CudaArray, HostDevice

import pymm
from pymm.kernels import find_kernel

NEAR, FAR = HostDevice("cpu"), HostDevice("simulator")
X = np.ones((3, 3), np.float32)


def read_only():
    array = np.ones((3, 3), np.float32)
    array.flags.writeable = False
    return array


class Ufuncs:
    __array_ufunc__ = None


MASKED = np.ma.masked_array(X, X > 0)
ON_DEVICE = CudaArray(X.copy())

REFUSED = {
    "inner extents": (
        ValueError,
        r"\(2, 3\) and \(4, 5\) do not fit: op\(a\) has 3 col.*op\(b\) 4",
        lambda f: f(np.ones((2, 3)), np.ones((4, 5))),
    ),
    "flags shown": (
        ValueError,
        r"\(2, 3\) and \(3, 5\) with trans_a=True, trans_b=False",
        lambda f: f(np.ones((2, 3)), np.ones((3, 5)), trans_a=True),
    ),
    "stacks": (
        ValueError,
        r"stacks \(2,\) and \(3,\) do not broadcast",
        lambda f: f(np.ones((2, 3, 3)), np.ones((3, 3, 3))),
    ),
    "0-D": (ValueError, "scalar operands are not allowed", lambda f: f(2.0, X)),
    "out's shape": (
        ValueError,
        r"out has shape \(3, 2\), but .* has \(3, 3\)",
        lambda f: f(X, X, np.ones((3, 2), np.float32)),
    ),
    "out broadcast": (ValueError, "out has shape", lambda f: f(X, X, np.ones((1, 3, 3)))),
    "c's shape": (ValueError, r"c has shape \(3,\)", lambda f: f(X, X, c=np.ones(3), beta=1)),
    "extents": (
        ValueError,
        r"extents end at 2147483647",
        lambda f: f(np.broadcast_to(X[:1, :1], (2**31, 1)), X[:1]),
    ),
    "read-only out": (ValueError, "out is read-only", lambda f: f(X, X, read_only())),
    "read-only device out": (
        ValueError,
        "out is read-only",
        lambda f: f(ON_DEVICE, ON_DEVICE, CudaArray(X, readonly=True), device=FAR),
    ),
    "list as out": (TypeError, "out is a list", lambda f: f(X, X, X.tolist())),
    "c without beta": (ValueError, "c needs beta", lambda f: f(X, X, c=X)),
    "beta without c": (ValueError, "beta=1 needs c", lambda f: f(X, X, beta=1)),
    "complex alpha": (TypeError, "alpha is a complex, not a real", lambda f: f(X, X, alpha=1j)),
    "text beta": (TypeError, "beta is a str, not a real", lambda f: f(X, X, c=X, beta="1")),
    "array alpha": (TypeError, "alpha is a ndarray, not a real", lambda f: f(X, X, alpha=X)),
    "alpha's range": (
        ValueError,
        "alpha=1e[+]300 is beyond the range of float32",
        lambda f: f(X, X, alpha=1e300),
    ),
    "huge alpha": (ValueError, "alpha is beyond the range", lambda f: f(X, X, alpha=10**400)),
    "flag": (ValueError, "trans_a is 'X', not a bool", lambda f: f(X, X, trans_a="X")),
    "flag 2": (ValueError, "trans_b is 2, not a bool", lambda f: f(X, X, trans_b=2)),
    "flag array": (ValueError, "trans_b is a ndarray", lambda f: f(X, X, trans_b=X)),
    "half": (
        NotImplementedError,
        "no kernel of pymm computes in f16 on ",
        lambda f: f(X.astype("f2"), X.astype("f2"), device=FAR),
    ),
    "integers": (NotImplementedError, "int64.*dtype= converts", lambda f: f([[1]], [[1]])),
    "bool": (NotImplementedError, "bool", lambda f: f(X > 0, X > 0)),
    "complex": (NotImplementedError, "complex64", lambda f: f(X * 1j, X)),
    "dtype=": (NotImplementedError, "f16", lambda f: f(X, X, dtype="f16", device=FAR)),
    "no dtype": (TypeError, "data type 'nonsense'", lambda f: f(X, X, dtype="nonsense")),
    "objects": (TypeError, "a has dtype object", lambda f: f(X.astype(object), X)),
    "text": (TypeError, "b has dtype <U1", lambda f: f(X, [["a"]] * 3)),
    "dates": (TypeError, "a has dtype datetime64", lambda f: f(np.ones((3, 3), "M8[s]"), X)),
    "nothing": (TypeError, "a has dtype object", lambda f: f([None, None, None], X)),
    "None": (TypeError, "a is None, not an array", lambda f: f(None, X)),
    "dict": (TypeError, "b is a dict, not an array", lambda f: f(X, {})),
    "str": (TypeError, "a is a str, not an array", lambda f: f("X", X)),
    "iterator": (TypeError, "a is a list_iterator, not an array", lambda f: f(iter([1.0]), X)),
    "ufuncs": (TypeError, "b is a Ufuncs, not an array", lambda f: f(X, Ufuncs())),
    "masked": (
        TypeError,
        r"masked elements; say what stands for them, as in a\.filled\(0\)",
        lambda f: f(MASKED, X),
    ),
    "matrix": (
        TypeError,
        r"numpy.matrix; give it numpy.asarray\(b\)",
        lambda f: f(X, X.view(np.matrix)),
    ),
    "masked out": (TypeError, "masked elements", lambda f: f(X, X, MASKED.copy())),
    "casting": (ValueError, "casting='sloppy' is none of no", lambda f: f(X, X, casting="sloppy")),
    "unsafe cast": (
        TypeError,
        "cannot cast a from complex64 to float32",
        lambda f: f(X * 1j, X, dtype="f4"),
    ),
    "precision": (
        ValueError,
        "precision='half' is none of ieee, tf32, tf32x3, f16x3, emulated",
        lambda f: f(X, X, precision="half"),
    ),
    "precision list": (
        ValueError,
        r"precision=\[\] is none of ieee",
        lambda f: f(X, X, precision=[]),
    ),
    "dtype list": (
        NotImplementedError,
        "a product in .*dtype= converts",
        lambda f: f(X, X, dtype=[]),
    ),
    "precision of float64": (
        NotImplementedError,
        "'tf32' for float64 operands",
        lambda f: f(X.astype("f8"), X, precision="tf32"),
    ),
    "precision of halves": (
        NotImplementedError,
        "'tf32x3' for float16 operands",
        lambda f: f(X.astype("f2"), X.astype("f2"), precision="tf32x3", out_dtype="f4"),
    ),
    "precision here": (
        NotImplementedError,
        "no kernel .* computes in tf32 on .*; there it has f32",
        lambda f: f(X, X, precision="tf32"),
    ),
    "precision there": (
        NotImplementedError,
        "no kernel of pymm computes in tf32 on ",
        lambda f: f(X, X, precision="tf32", device=FAR),
    ),
    "result type": (
        NotImplementedError,
        "float32 operands as float64: out_dtype= is the operands'",
        lambda f: f(X, X, out_dtype=np.float64),
    ),
    "narrow result": (
        NotImplementedError,
        "float32 operands as float16",
        lambda f: f(X, X, out_dtype="f16"),
    ),
    "wide result": (
        NotImplementedError,
        "no kernel of pymm computes in f16_f32 on ",
        lambda f: f(X.astype("f2"), X.astype("f2"), out_dtype="f32", device=FAR),
    ),
    "wide out": (
        NotImplementedError,
        "no kernel of pymm computes in f16_f32 on ",
        lambda f: f(X.astype("f2"), X.astype("f2"), np.zeros((3, 3), "f4"), device=FAR),
    ),
    "narrow out": (
        TypeError,
        "cannot cast the product from float32 to float16",
        lambda f: f(X.astype("f2"), X.astype("f2"), X.astype("f2"), out_dtype="f4", casting="safe"),
    ),
    "two halves": (
        TypeError,
        "a is float16, b is bfloat16: NumPy has no common type",
        lambda f: f(X.astype("f2"), X.astype(ml_dtypes.bfloat16)),
    ),
    "product type": (
        TypeError,
        "dtype='tf32' is a type of products",
        lambda f: f(X, X, dtype="tf32"),
    ),
    "result's name": (
        TypeError,
        "out_dtype='nonsense'|'nonsense'",
        lambda f: f(X, X, out_dtype="nonsense"),
    ),
    "kernel": (
        ValueError,
        "no kernel 'magic' for cpu; there are 00_reordered",
        lambda f: f(X, X, kernel="magic"),
    ),
    "kernel number": (ValueError, "no kernel 99", lambda f: f(X, X, kernel=99)),
    "kernel list": (
        ValueError,
        r"no kernel \[\] for cpu; there are 00_reordered",
        lambda f: f(X, X, kernel=[]),
    ),
    "device set": (ValueError, r"device \{1\} is none of 'cuda'", lambda f: f(X, X, device={1})),
    "config alone": (ValueError, "needs kernel=", lambda f: f(X, X, config=dict(MB=8))),
    "config's names": (
        ValueError,
        "reordered takes MB, NB, KB; got MB",
        lambda f: f(X, X, kernel=0, config=dict(MB=8)),
    ),
    "config's values": (
        ValueError,
        "KB='8' is not an integer",
        lambda f: f(X, X, kernel=0, config=dict(MB=8, NB=8, KB="8")),
    ),
    "config's kind": (TypeError, "config is a list", lambda f: f(X, X, config=[8])),
    "slug": (ValueError, "no kernel 'nonsense'", lambda f: f(X, X, config="nonsense-MB8")),
    "two kernels": (
        ValueError,
        "name two kernels",
        lambda f: f(X, X, kernel=1, config="reordered-MB64-NB256-KB64"),
    ),
    "other backend": (
        ValueError,
        "for cuda, not cpu",
        lambda f: f(X, X, config=find_kernel("naive").default_config),
    ),
    "rules": (
        ValueError,
        "it breaks the rules: a block has at most .* threads; .*fit in static",
        lambda f: f(X, X, config="shared_tile-MB128-NB128-KB128", device=FAR),
    ),
    "stream": (TypeError, "stream", lambda f: f(X, X, stream=object())),
    "transfer": (ValueError, "transfer='mail' is none of", lambda f: f(X, X, transfer="mail")),
    "device": (ValueError, "device 'toaster'", lambda f: f(X, X, device="toaster")),
    "mixed places": (
        TypeError,
        "b is a NumPy array on the host and a a CudaArray on a device",
        lambda f: f(ON_DEVICE, X, device=FAR),
    ),
    "host out": (
        TypeError,
        "out is a NumPy array on the host",
        lambda f: f(ON_DEVICE, ON_DEVICE, X.copy(), device=FAR),
    ),
    "device on CPU": (TypeError, "a is a CudaArray on a GPU", lambda f: f(ON_DEVICE, ON_DEVICE)),
    "device types": (
        NotImplementedError,
        "does not convert arrays on a device; convert a",
        lambda f: f(ON_DEVICE, CudaArray(X.astype("f8")), device=FAR),
    ),
    "stream 0": (
        ValueError,
        "stream 0, which is ambiguous",
        lambda f: f(CudaArray(X, stream=0), ON_DEVICE, device=FAR),
    ),
}


@pytest.mark.parametrize("call", [pymm.matmul, pymm.plan, pymm.explain])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(call, case):
    kind, words, provoke = REFUSED[case]
    seen = X.copy()

    def near(*operands, device=NEAR, **options):
        return call(*operands, device=device, **options)

    with pytest.raises(kind, match=words):
        provoke(near)
    np.testing.assert_array_equal(X, seen)
    np.testing.assert_array_equal(ON_DEVICE.array, seen)


def test_out_is_untouched_when_the_device_fails(monkeypatch):
    device, out = HostDevice("simulator"), np.full((3, 3), 5, np.float32)

    def full(nbytes):
        raise MemoryError(f"{nbytes} bytes wanted, 0 free")

    monkeypatch.setattr(device, "allocate", full)
    with pytest.raises(MemoryError, match="36 bytes wanted"):
        pymm.matmul(X, X, out, device=device)
    assert (out == 5).all() and not device.live


def test_unknown_arguments_are_named():
    for call in (pymm.plan, pymm.explain, pymm.matmul):
        with pytest.raises(TypeError, match="axes"):
            call(X, X, axes=[0])


def test_masked_interface_and_torch_with_gradient():
    class Tensor:
        @property
        def __cuda_array_interface__(self):
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad")

    with pytest.raises(TypeError, match="a offers no array: .*requires grad"):
        pymm.matmul(Tensor(), ON_DEVICE, device=FAR)
    masked = CudaArray(X)
    masked.__cuda_array_interface__["mask"] = ON_DEVICE
    with pytest.raises(TypeError, match="masked"):
        pymm.matmul(masked, ON_DEVICE, device=FAR)


def test_shapes_in_the_place_of_arrays():
    told = pymm.explain((4096, 64), (64, 100), dtype="f32", device=NEAR, kernel="blocked")
    assert told.problem.slug == "f32-NN-4096x100x64" and told.config.kernel_name == "blocked"
    assert pymm.explain((2, 3), (3, 4), device=NEAR).problem.dtype == "f64"
    with pytest.raises(ValueError, match="negative extent"):
        pymm.explain((2, -3), (-3, 4), device=NEAR)


def test_explanation_reads_well():
    text = str(pymm.explain((5, 100, 64), (64, 70), dtype="f32", device=FAR, kernel=4))
    assert "f32-NN-500x70x64" in text and "04_transposed_a" in text and "because" in text
    assert "grid           2 x 8 x 1 blocks" in text and "break: " in text
    assert "registers      32 a thread, none spilled" in text
    assert "a: 128000 bytes to the device, pageable" in text
    empty = pymm.explain((0, 3), (3, 4), device=FAR)
    assert "none: the result has no elements" in str(empty) and empty.resources is None


def test_every_export_is_there():
    assert sorted(pymm.__all__) == pymm.__all__
    for name in pymm.__all__:
        assert getattr(pymm, name).__doc__
    assert issubclass(pymm.NoDevice, Exception)
    pickle.loads(pickle.dumps(pymm.NoDevice("words")))


def test_many_threads_multiply_at_once():
    failures = []

    def work(seed):
        a = np.random.default_rng(seed).integers(-8, 9, (8, 7)).astype(np.float64)
        for _ in range(50):
            if not np.array_equal(pymm.matmul(a, a.T, device=FAR), a @ a.T):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
