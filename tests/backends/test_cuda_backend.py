"""What is particular to GPUs: contexts, streams, stacks, geometry."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import numpy as np
import pytest

from pymm.backends.base import Matrix
from pymm.core.errors import LaunchFailed
from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import render

NAIVE = find_kernel("naive").config(dict(MB=8, NB=8))
PRODUCT = Problem(8, 8, 8)


@pytest.fixture
def product(cuda):
    """Binds a product of ones, and reads what came out."""
    ones = np.ones((8, 8), np.float32)
    buffers = [cuda.allocate(ones.nbytes) for _ in range(3)]
    for buffer in buffers:
        buffer.write(ones)
    a, b, c = (Matrix(buffer.address, 8, 0, buffer) for buffer in buffers)

    def bind(stream=None):
        buffers[2].fill(0)
        return cuda.load(render(NAIVE, PRODUCT)).bind(PRODUCT, 1.0, a, b, 0.0, c, stream)

    def result():
        got = np.empty((8, 8), np.float32)
        buffers[2].read(got)
        return got

    return SimpleNamespace(bind=bind, result=result)


@pytest.fixture
def driver(cuda):
    """`pycuda.driver`; tests may use it once the backend is open."""
    import pycuda.driver

    return pycuda.driver


@pytest.fixture
def primary(driver):
    """The device's primary context, current in this thread as PyCUDA's users have it."""
    context = driver.Device(0).retain_primary_context()
    context.push()
    yield context
    driver.Context.pop()


def test_nothing_is_left_current(cuda, driver, product):
    product.bind()()
    cuda.synchronize()
    cuda.time([product.bind()])
    assert driver.Context.get_current() is None


def test_in_a_context_of_the_callers_own(cuda, driver, product):
    product.bind()()
    context = driver.Device(0).make_context()
    try:
        ones = np.ones((8, 8), np.float32)
        buffers = [cuda.allocate(ones.nbytes) for _ in range(3)]
        for buffer in buffers:
            buffer.write(ones)
        matrices = [Matrix(buffer.address, 8, 0, buffer) for buffer in buffers]
        executable = cuda.load(render(NAIVE, PRODUCT))
        call = executable.bind(PRODUCT, 2.0, *matrices[:2], 0.0, matrices[2])
        call()
        cuda.copy_out(buffers[2].address, 32, ones, "pinned")
        assert (ones == 16).all()
        assert driver.Context.get_current() == context
    finally:
        context.pop()
    call()  # still that context, pushed for the call
    del call, executable, buffers, buffer, matrices
    cuda._copies.pop(context)
    context.detach()
    assert (product.result() == 8).all()


def test_streams_of_every_kind(cuda, driver, primary, product):
    own = driver.Stream()
    for given in (
        own,
        own.handle,
        np.int64(own.handle),
        SimpleNamespace(__cuda_stream__=lambda: (0, own.handle)),
        SimpleNamespace(__cuda_stream__=(0, own.handle)),
        SimpleNamespace(cuda_stream=own.handle),
        SimpleNamespace(ptr=own.handle),
    ):
        stream = cuda.stream(given)
        product.bind(stream)()
        cuda.order(stream, None)
        cuda.synchronize(stream)
        assert (product.result() == 8).all()
    assert cuda.stream(0) is None and cuda.stream(1) is None


@pytest.mark.parametrize("wrong", ["0", True, 1.5, object()])
def test_what_is_no_stream(cuda, wrong):
    with pytest.raises(TypeError, match="is not a stream"):
        cuda.stream(wrong)


def test_copies_on_a_stream(cuda, driver, primary):
    stream = driver.Stream()
    host = np.arange(35, dtype=np.float32).reshape(5, 7)
    buffer = cuda.allocate(5 * 128)
    for transfer in ("pageable", "pinned", "registered"):
        buffer.fill(0)
        for given in (stream, stream.handle):
            cuda.copy_in(host, buffer.address, 128, transfer, given)
            back = np.empty_like(host)
            cuda.copy_out(buffer.address, 128, back, transfer, given)
            assert (back == host).all()


@pytest.mark.parametrize("limit", [4, 12, 28, 60, 200])
def test_copies_in_many_pieces(cuda, monkeypatch, limit):
    from pymm.backends.cuda import copies

    monkeypatch.setattr(copies, "SHARED_OUT", 20)
    monkeypatch.setattr(copies, "usable_cores", lambda: 3)
    monkeypatch.setattr(copies, "STAGE", limit)
    monkeypatch.setattr(copies, "PIECE", limit)
    monkeypatch.setattr(cuda, "_copies", {})
    host = np.arange(11 * 9, dtype=np.float32).reshape(11, 9)
    for array in (host, host[:, :7]):
        for pitch in (36, 64):
            for transfer in ("pageable", "pinned", "registered"):
                buffer = cuda.allocate(11 * pitch)
                cuda.copy_in(array, buffer.address, pitch, transfer)
                back = np.zeros_like(array)
                cuda.copy_out(buffer.address, pitch, back, transfer)
                assert (back == array).all()


def test_memory_that_cannot_be_registered_goes_another_way(cuda, driver, primary):
    host = np.arange(4096, dtype=np.float32).reshape(4, 1024)
    buffer = cuda.allocate(host.nbytes)
    assert cuda._driver.register(host.ctypes.data, host.nbytes)
    try:
        cuda.copy_in(host, buffer.address, 4096, "registered")  # page-locked twice is an error
    finally:
        cuda._driver.unregister(host.ctypes.data)
    back = np.empty_like(host)
    cuda.copy_out(buffer.address, 4096, back, "registered")
    assert (back == host).all()


def test_a_stack_of_more_matrices_than_a_grid_has(cuda, monkeypatch):
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((7, 8, 8)).astype(np.float32) for _ in range(2))
    buffers = [cuda.allocate(a.nbytes) for _ in range(3)]
    buffers[0].write(a)
    buffers[1].write(b)
    executable = cuda.load(render(NAIVE, PRODUCT))
    monkeypatch.setattr(executable, "_most_blocks", (2**31 - 1, 65535, 3))
    matrices = [Matrix(buffer.address, 8, 64, buffer) for buffer in buffers]
    problem = Problem(8, 8, 8, batch=7)
    executable.bind(problem, 1.0, *matrices[:2], 0.0, matrices[2])()
    got = np.empty_like(a)
    buffers[2].read(got)
    assert np.allclose(got, a @ b, rtol=1e-5, atol=1e-5)


def test_geometry_beyond_the_device_is_refused_before_the_launch(cuda, product, monkeypatch):
    executable = cuda.load(render(NAIVE, PRODUCT))
    matrix = Matrix(product.bind().owners[1].address, 8)
    monkeypatch.setattr(executable, "_most_blocks", (1, 65535, 65535))
    with pytest.raises(LaunchFailed, match="2 blocks along x.*at most 1: split"):
        executable.bind(Problem(8, 16, 8), 1.0, matrix, matrix, 0.0, matrix)


def test_resources_come_from_the_binary(cuda):
    config = find_kernel("shared_tile").config(dict(MB=16, NB=16, KB=16))
    resources = cuda.load(render(config, Problem(16, 16, 16))).resources
    assert resources.shared_bytes == 2 * 16 * 16 * 4
    assert 0 < resources.registers <= 255 and resources.max_threads >= 256


def test_two_threads_copy_at_once(cuda):
    failures = []

    def work(value: int) -> None:
        try:
            host = np.full((64, 100), value, np.float32)
            buffer = cuda.allocate(64 * 512)
            for transfer in ("pinned", "registered", "pageable"):
                cuda.copy_in(host, buffer.address, 512, transfer)
                back = np.empty_like(host)
                cuda.copy_out(buffer.address, 512, back, transfer)
                assert (back == value).all()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
