"""What holds for every backend: opening, memory, copies, products, stopwatch."""

from __future__ import annotations

import gc
import math
import re
import threading
import weakref

import numpy as np
import pytest

from pymm.backends import available_devices, open_device
from pymm.backends.base import Matrix, TimedCall
from pymm.backends.cpu import timing
from pymm.backends.cpu.timing import CALLS
from pymm.core.device import Device
from pymm.core.errors import NoDevice
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import render
from pymm.measure.timer import Stopwatch

SHAPES = [(1, 1), (1, 7), (7, 1), (5, 3), (31, 33), (64, 16)]


@pytest.fixture(params=["cpu", "cuda"])
def backend(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["cpu", "cuda"])
def kernel(request):
    name = {"cpu": "reordered", "cuda": "coalesced"}[request.param]
    return request.getfixturevalue(request.param), find_kernel(name, request.param)


def bound(backend, kernel, a, b, out, alpha=1.0, beta=0.0, stream=None):
    """A call for out <- alpha a b + beta out, and the buffer of out; matrices packed, stacked."""
    *stack, m, k = a.shape
    names = {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64"}
    problem = Problem(m, b.shape[-1], k, names[a.dtype], batch=stack[0] if stack else 1)
    matrices = []
    for array in (a, b, out):
        buffer = backend.allocate(array.nbytes)
        buffer.write(array)
        rows, columns = array.shape[-2:]
        matrices.append(Matrix(buffer.address, columns, rows * columns, buffer))
    executable = backend.load(render(kernel.default_config, problem))
    call = executable.bind(problem, alpha, *matrices[:2], beta, matrices[2], stream)
    return call, matrices[2].owner


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_product(kernel, dtype):
    backend, kernel = kernel
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal(shape).astype(dtype) for shape in ((5, 13), (13, 37), (5, 37)))
    call, buffer = bound(backend, kernel, a, b, c, 0.5, -2.0)
    call()
    backend.synchronize()
    got = np.empty_like(c)
    buffer.read(got)
    want = 0.5 * (a.astype(np.float64) @ b) - 2.0 * c.astype(np.float64)
    limit = 20 * np.finfo(dtype).eps * (np.abs(a) @ np.abs(b) + 2 * np.abs(c))
    assert (np.abs(got - want) <= limit).all()


def test_a_call_keeps_its_matrices_alive_and_no_longer(kernel):
    backend, kernel = kernel
    ones = np.ones((4, 4), np.float32)
    call, buffer = bound(backend, kernel, ones, ones, np.zeros_like(ones))
    alive = weakref.ref(buffer)
    call()
    backend.synchronize()
    got = np.empty_like(ones)
    buffer.read(got)
    assert (got == 4).all()
    del buffer
    gc.collect()
    assert alive() is not None
    del call
    gc.collect()
    assert alive() is None


def test_calls_from_other_threads(kernel):
    backend, kernel = kernel
    ones = np.ones((8, 8), np.float32)
    results, failures = [], []

    def work() -> None:
        try:
            call, buffer = bound(backend, kernel, ones, ones, np.zeros_like(ones))
            call()
            shared()
            got = np.empty_like(ones)
            buffer.read(got)
            results.append(got)
        except BaseException as error:
            failures.append(error)

    shared, kept = bound(backend, kernel, ones, ones, np.zeros_like(ones))
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(results) == 3 and all((got == 8).all() for got in results)


def test_buffers(backend):
    buffer = backend.allocate(64)
    assert buffer.nbytes == 64 and buffer.address % 16 == 0
    buffer.fill(7)
    buffer.write(np.arange(4, dtype=np.float64))
    got = np.empty(64, np.uint8)
    buffer.read(got)
    assert got[:32].tobytes() == np.arange(4, dtype=np.float64).tobytes()
    assert (got[32:] == 7).all()
    tail = np.empty(2, np.float64)
    buffer.read(tail, 16)
    assert tail.tolist() == [2.0, 3.0]
    with pytest.raises(ValueError, match="64"):
        buffer.write(np.zeros(65, np.uint8))
    with pytest.raises(ValueError, match="64"):
        buffer.read(np.zeros(8, np.uint8), 60)


def test_empty_buffers(backend):
    buffer = backend.allocate(0)
    buffer.fill(1)
    buffer.write(np.empty(0, np.float32))
    buffer.read(np.empty(0, np.float32))


def test_too_much_memory(backend):
    with pytest.raises(MemoryError, match=rf"{2**50} bytes.*\d+ .*bytes are free"):
        backend.allocate(2**50)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("transfer", ["pageable", "pinned", "registered"])
@pytest.mark.parametrize("pitched", [False, True])
@pytest.mark.parametrize("wide", [0, 3])
def test_copies_there_and_back(backend, shape, transfer, pitched, wide):
    rows, columns = shape
    host = np.arange(rows * (columns + wide), dtype=np.float32).reshape(rows, columns + wide)
    array = host[:, :columns]
    row = columns * array.itemsize
    pitch = backend.row_pitch(row) if pitched else row
    assert pitch >= row
    buffer = backend.allocate(rows * pitch)
    buffer.fill(0xAB)
    backend.copy_in(array, buffer.address, pitch, transfer)
    raw = np.empty(rows * pitch, np.uint8)
    buffer.read(raw)
    device_rows = raw.reshape(rows, pitch)
    assert (device_rows[:, :row].copy().view(np.float32) == array).all()
    assert (device_rows[:, row:] == 0xAB).all()
    back = np.full_like(host, -1)
    backend.copy_out(buffer.address, pitch, back[:, :columns], transfer)
    assert (back[:, :columns] == array).all()
    assert (back[:, columns:] == -1).all()


def test_copies_of_nothing(backend):
    buffer = backend.allocate(16)
    for shape in ((0, 3), (3, 0), (0, 0)):
        array = np.empty(shape, np.float32)
        backend.copy_in(array, buffer.address, 16, "pinned")
        backend.copy_out(buffer.address, 16, array)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, np.float32),
        np.zeros((4, 4), np.float32)[:, ::2],
        np.zeros((4, 4), np.float32)[::-1],
        np.zeros((4, 4), np.float32).T,
        np.broadcast_to(np.zeros(4, np.float32), (4, 4)),
    ],
    ids=["vector", "steps", "upwards", "columns", "repeated"],
)
def test_copies_refuse_other_layouts(backend, array):
    buffer = backend.allocate(1024)
    with pytest.raises(ValueError, match="copies take"):
        backend.copy_in(array, buffer.address, 64)


def test_copies_refuse_overlapping_rows_and_unknown_transfers(backend):
    buffer = backend.allocate(1024)
    array = np.zeros((4, 4), np.float32)
    with pytest.raises(ValueError, match="16 bytes do not fit 12 bytes apart"):
        backend.copy_in(array, buffer.address, 12)
    with pytest.raises(ValueError, match="'magic' is none of pageable, pinned, registered"):
        backend.copy_out(buffer.address, 16, array, "magic")


def test_own_arrays(backend):
    for shape in ((3, 4), (0, 4), ()):
        array = backend.empty(shape, np.dtype(np.float64))
        assert array.shape == shape and array.dtype == np.float64
        assert backend.is_own(array)
    assert not backend.is_own([1.0])


def test_time_is_what_each_call_takes(kernel, monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", math.inf)
    backend, kernel = kernel
    ones = np.ones((8, 8), np.float32)
    call, buffer = bound(backend, kernel, ones, ones, np.zeros_like(ones))
    order = []

    def counted() -> None:
        order.append(len(order))
        call()

    seconds = backend.time([counted] * 3)
    # NaN where a GPU had to wait for a busy host between the two events
    assert len(seconds) == 3 and all(0 < s < 60 or math.isnan(s) for s in seconds)
    runs = CALLS if backend.device.shares_host_cores else 1  # of a CPU the shortest counts
    assert order == list(range(3 * runs))
    assert backend.time([]) == []
    assert 0 < min(Stopwatch(backend).sound([call] * 3)) < 60, "it takes what is NaN again"


def test_what_prepares_a_call_is_done_before_it(kernel, monkeypatch):
    monkeypatch.setattr(timing, "SECONDS", math.inf)
    backend, kernel = kernel
    ones = np.ones((8, 8), np.float32)
    call, buffer = bound(backend, kernel, ones, ones, np.zeros_like(ones))
    log = []

    def counted() -> None:
        log.append("call")
        call()

    timed = TimedCall(counted, prepare=lambda: log.append("prepare"))
    runs = CALLS if backend.device.shares_host_cores else 1
    assert len(backend.time([timed] * 2, ahead=3)) == 2
    assert log == ["prepare", "call"] * 2 * runs
    timed()
    assert log == ["prepare", "call"] * (2 * runs + 1)


def test_telemetry_is_a_mapping_of_plain_values(backend):
    told = dict(backend.telemetry())
    assert all(isinstance(value, (float, str)) for value in told.values())


def test_order_and_wait_on_the_default_stream(backend):
    backend.order(None, None)
    backend.synchronize()
    with pytest.raises(TypeError, match="stream"):
        backend.stream(object())


def test_device_describes_what_is_there(backend):
    device = backend.device
    assert device.sms >= 1 and device.memory_bytes > 2**20
    assert all(value > 1e9 for value in device.peak_flops.values())
    assert set(device.peak_flops) >= {"f32", "f64"}
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", device.slug)
    assert device.versions["driver"] and backend.toolchain


def test_cpu_device(cpu):
    device = cpu.device
    assert device.kind == "cpu" and device.sms == 1 and device.name.endswith(", 1 core")
    assert device.vector_bytes in (16, 32, 64) and device.vector_registers in (16, 32)
    assert list(device.cache_bytes) == sorted(device.cache_bytes)


def test_opening_is_remembered():
    assert open_device("cpu:1") is open_device("cpu:1")
    assert open_device("cuda") is open_device(0) is open_device("cuda:0")


def test_all_devices_are_found():
    devices = available_devices()
    assert all(isinstance(device, Device) for device in devices)
    assert devices[0].kind in ("cuda", "simulator") and devices[-1].kind == "cpu"


@pytest.mark.parametrize("spec", ["", "gpu", "cuda:", "cuda:-1", "cpu:x", "CPU", -1, True, 1.0])
def test_specs_that_name_nothing(spec):
    with pytest.raises(ValueError, match="none of 'cuda'"):
        open_device(spec)


@pytest.mark.parametrize("spec", ["cpu:0", "cpu:100000"])
def test_threads_that_are_not_there(spec):
    with pytest.raises(NoDevice, match=r"this process may use 1 to \d+ cores"):
        open_device(spec)


def test_gpus_that_are_not_there():
    with pytest.raises(NoDevice, match=r"cuda:63: this machine has \d+ GPU"):
        open_device("cuda:63")
