"""matmul and plan against NumPy in float64, on a device whose kernel is NumPy: what is tested is
everything around the kernel. `near` is a CPU, `far` a GPU whose memory is not the host's.
"""

import gc
import itertools
import weakref

import numpy as np
import pytest
from host_device import HostDevice
from hypothesis import given
from hypothesis import strategies as st
from products import integers, laid_out, products

import pymm
from pymm.runtime.transfer import TransferMode

NEAR, FAR = HostDevice("cpu"), HostDevice("simulator")
DEVICES = pytest.mark.parametrize("device", [NEAR, FAR], ids=["near", "far"])
TRANSFERS = [None, "pageable", "pinned+pitched", "registered", "registered+pitched"]


@DEVICES
@given(operands=products(), transfer=st.sampled_from(TRANSFERS))
def test_matmul_is_numpys(device, operands, transfer):
    result = pymm.matmul(*operands, device=device, transfer=transfer)
    expected = np.matmul(*operands)
    assert type(result) is type(expected) and result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected, strict=True)


@DEVICES
@given(data=st.data())
def test_alpha_beta_c_and_out(device, data):
    a, b = data.draw(products())
    product = np.matmul(a, b)
    shape = np.shape(product)
    out, c = data.draw(laid_out(shape, product.dtype)), data.draw(laid_out(shape, seed=3))
    out = out if out.flags.writeable else np.empty(shape)
    alpha, beta = data.draw(st.sampled_from([(1, 1), (-2, 0.5), (0, 3), (2.5, 0)]))
    expected = alpha * product + (beta * c if beta else 0)
    known = c.copy()
    given = pymm.matmul(a, b, out, c=c, alpha=alpha, beta=beta, device=device)
    assert given is out
    np.testing.assert_array_equal(out, expected)
    np.testing.assert_array_equal(c, known)
    in_place = np.array(c, product.dtype, order=data.draw(st.sampled_from("CF")))
    pymm.matmul(a, b, in_place, c=in_place, alpha=alpha, beta=beta, device=device)
    np.testing.assert_array_equal(in_place, expected)


@DEVICES
@given(data=st.data())
def test_out_may_overlap_anything(device, data):
    side = data.draw(st.integers(1, 4))
    base = integers(60)

    def window():
        start = data.draw(st.integers(0, 60 - 2 * side * side))
        square = base[start : start + 2 * side * side : data.draw(st.sampled_from([1, 2]))]
        square = square[: side * side].reshape(side, side)
        return square.T if data.draw(st.booleans()) else square

    a, b, c, out = (window() for _ in range(4))
    expected = 2 * (a @ b) + 3 * c
    before, touched = base.copy(), np.zeros(60, bool)
    pymm.matmul(a, b, out, c=c, alpha=2, beta=3, device=device)
    np.testing.assert_array_equal(out, expected)
    start = (out.__array_interface__["data"][0] - base.__array_interface__["data"][0]) // 8
    steps = [stride // 8 for stride in out.strides]
    for i, j in itertools.product(range(side), repeat=2):
        touched[start + i * steps[0] + j * steps[1]] = True
    np.testing.assert_array_equal(base[~touched], before[~touched])


@DEVICES
@pytest.mark.parametrize("trans_a", [False, True, "N", "T"])
@pytest.mark.parametrize("trans_b", [False, "t", "C"])
def test_transposes(device, trans_a, trans_b):
    ta, tb = trans_a in (True, "T"), trans_b in ("t", "C")
    a, b = integers((2, 3, 5)), integers((2, 5, 4))
    a, b = a.swapaxes(1, 2).copy() if ta else a, b.swapaxes(1, 2).copy() if tb else b
    result = pymm.matmul(a, b, trans_a=trans_a, trans_b=trans_b, device=device)
    expected = (a.swapaxes(1, 2) if ta else a) @ (b.swapaxes(1, 2) if tb else b)
    np.testing.assert_array_equal(result, expected)


@DEVICES
def test_beta_0_never_reads_c_and_alpha_0_neither_a_nor_b(device):
    nan = np.full((3, 3), np.nan)
    x = integers((3, 3))
    np.testing.assert_array_equal(
        pymm.matmul(x, x, nan.copy(), c=nan, beta=0, device=device), x @ x
    )
    np.testing.assert_array_equal(pymm.matmul(x, x, nan.copy(), device=device), x @ x)
    np.testing.assert_array_equal(pymm.matmul(nan, nan, c=x, alpha=0, beta=2, device=device), 2 * x)


@DEVICES
def test_dtype_and_casting(device):
    x, y = integers((3, 3), np.int32), integers((3, 3), np.float32)
    result = pymm.matmul(x, y, dtype="f32", device=device)
    np.testing.assert_array_equal(result, (x @ y).astype(np.float32), strict=True)
    half = pymm.matmul(y, y, np.empty((3, 3), np.float16), device=device)
    np.testing.assert_array_equal(half, (y @ y).astype(np.float16), strict=True)
    swapped = y.astype(">f4")
    result = pymm.matmul(swapped, swapped, device=device)
    np.testing.assert_array_equal(result, y @ y, strict=True)
    wide = pymm.matmul(y, y, c=integers((3, 3)), beta=1, device=device)
    assert wide.dtype == np.float64
    with pytest.raises(TypeError, match="cannot cast a from float64 to float32"):
        pymm.matmul(x.astype(float), y, dtype=np.float32, casting="safe", device=device)
    with pytest.raises(TypeError, match="dtype of out"):
        pymm.matmul(y, y, np.empty((3, 3), np.int64), device=device)


@DEVICES
def test_other_homes_of_numbers(device, tmp_path):
    x = integers((4, 4), np.float32)
    packed = np.zeros(4, np.dtype([("tag", "u1"), ("row", "f4", 4)]))["row"]
    packed[...] = x
    assert packed.__array_interface__["data"][0] % 4
    mapped = np.memmap(tmp_path / "matrix", np.float32, "w+", shape=(4, 4))
    mapped[...] = x
    for operand in (packed, mapped, x.tolist(), x[:, ::-1][:, ::-1]):
        result = pymm.matmul(operand, x, dtype="f32", device=device)
        np.testing.assert_array_equal(result, x @ x)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(pymm.matmul(frozen, frozen, device=device), x @ x)


@DEVICES
@given(data=st.data())
def test_nothing_is_written_outside_out(device, data):
    a, b = data.draw(products())
    shape = np.shape(np.matmul(a, b))
    around = np.full(
        tuple(extent + 4 for extent in shape), 77.0, order=data.draw(st.sampled_from("CF"))
    )
    inside = tuple(slice(2, -2) for _ in shape)
    pymm.matmul(a, b, around[inside] if shape else around, device=device)
    np.testing.assert_array_equal(around[inside] if shape else around, np.matmul(a, b))
    if shape:
        around[inside] = 77.0
        assert (around == 77.0).all()


def test_guard_zones_of_device_memory_stay_intact(monkeypatch):
    device, made = HostDevice("simulator"), []
    take = device.allocate
    monkeypatch.setattr(device, "allocate", lambda n: made.append(take(n)) or made[-1])
    for transfer, order in itertools.product(TRANSFERS[1:], "CF"):
        out = np.empty((3, 5, 7), order=order)
        pymm.matmul(
            integers((3, 5, 4)),
            integers((4, 7)),
            out,
            c=out * 0,
            beta=1,
            device=device,
            transfer=transfer,
        )
    assert len(made) == 24 and all(buffer.intact() for buffer in made)


@DEVICES
def test_nothing_leaks(device):
    device = HostDevice(device.device.kind)
    a, b, out = integers((5, 4)), integers((4, 3))[:, ::-1], np.empty((5, 3))
    kept = [weakref.ref(x) for x in (a, b, out)]
    pymm.matmul(a, b, out, device=device)
    pymm.matmul(a, b, device=device)
    plan = pymm.plan(a, b, out, device=device)
    plan()
    assert len(device.live) == (3 if device.device.kind == "simulator" else 0)
    del a, b, out, plan
    gc.collect()
    assert not device.live and not any(reference() is not None for reference in kept)


# Journeys


def test_transfers_are_forced_or_chosen_by_size():
    device = HostDevice("simulator")
    x = integers((4, 4))
    for transfer in ("pageable", "pinned", "registered+pitched"):
        pymm.matmul(x, x, device=device, transfer=transfer)
    taken = [entry[1] for entry in device.log if entry[0] == "in"]
    assert taken == ["pageable", "pinned", "registered"]  # x travels once for both
    ways = [TransferMode().for_size(size) for size in (1, 2**20, 2**30)]
    assert [way.transfer for way in ways] == ["pageable", "pageable", "pinned"]
    assert not any(way.pitched for way in ways)
    assert TransferMode.parse("registered+pitched").for_size(1) == TransferMode("registered", True)


def test_a_stack_travels_in_one_copy_and_a_repeated_matrix_once():
    device = HostDevice("simulator")
    repeated = np.broadcast_to(integers((3, 4)), (6, 3, 4))
    pymm.matmul(repeated, integers((6, 4, 5)), device=device)
    travelled = [entry[2] for entry in device.log if entry[0] == "in"]
    assert travelled == [(3, 4), (24, 5)]


def test_unusable_layouts_are_copied_and_explained():
    x = integers((6, 6))
    told = pymm.explain(x[:, ::2], x[::-1][:3], x.T, device=NEAR)
    assert told.swapped and len(told.copies) == 2
    assert "a is copied: neither of its last two axes has unit stride" in told.copies[0]
    assert "b is copied" in told.copies[1]
    assert not pymm.explain(x[::2, 1:4], x.T[1:4], device=NEAR).copies
