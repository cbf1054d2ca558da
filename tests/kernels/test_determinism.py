"""What docs/explanation/determinism.md promises: one configuration gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import pymm
from pymm.backends import open_device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for


def drawn(shape, dtype, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def elsewhere(array, shift):
    """A copy at another address, its rows further apart."""
    rows, columns = array.shape
    copy = np.zeros((rows + 1, columns + shift), array.dtype)[1:, shift:]
    copy[...] = array
    return copy


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kernel", ["reordered", "blocked"])
@pytest.mark.parametrize(("m", "n", "k"), [(301, 203, 517), (1, 3, 1999)])
def test_cpu_bits_depend_on_the_configuration_alone(m, n, k, kernel, dtype, monkeypatch):
    """Not on threads, addresses, strides, nor on what else is in the batch. A single row of three
    elements has the smallest register tile, alone, and another one in a batch.
    """
    monkeypatch.setattr("pymm.backends.cpu.backend.usable_cores", lambda: 3)
    a, b = drawn((m, k), dtype), drawn((k, n), dtype, 1)
    problem = Problem(m, n, k, np.dtype(dtype).name.replace("float", "f"))
    config = find_kernel(kernel, "cpu").default_for(problem, open_device("cpu:1").device)
    run = dict(kernel=kernel, config=config.slug)
    wanted = pymm.matmul(a, b, device="cpu:1", **run).tobytes()
    for threads in (1, 2, 3):
        for shift in (0, 1, 5):
            x, y = elsewhere(a, shift), elsewhere(b, shift)
            assert pymm.matmul(x, y, device=f"cpu:{threads}", **run).tobytes() == wanted
        for batch in (2, 13):
            stack = pymm.matmul(np.stack([a] * batch), b, device=f"cpu:{threads}", **run)
            assert {matrix.tobytes() for matrix in stack} == {wanted}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("depth", [128, 256])
def test_cpu_bits_of_a_row_do_not_depend_on_its_tile(dtype, depth):
    """Tiles of 1, 2 and 4 rows, and of 1 and 2 vectors."""
    a, b = drawn((301, 517), dtype), drawn((517, 203), dtype, 1)
    lanes = open_device("cpu:1").device.vector_bytes // np.dtype(dtype).itemsize
    for vectors in (1, 2):
        config = dict(MB=48, NB=192, KB=depth, TA=4, TB=vectors * lanes)
        run = dict(kernel="blocked", config=config, device="cpu:1")
        whole = pymm.matmul(a, b, **run)
        for rows in (1, 2, 3, 5):
            for columns in (1, lanes, 2 * lanes - 1, 200):
                part = pymm.matmul(a[-rows:], np.ascontiguousarray(b[:, -columns:]), **run)
                assert np.array_equal(part, whole[-rows:, -columns:])


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_cuda_bits_repeat(cuda, dtype):
    """Of every kernel that may split k, at other addresses and after other work."""
    problem = Problem(129, 130, 600, dtype)
    a, b = (drawn(shape, problem.numpy_dtype, shape[0]) for shape in ((129, 600), (600, 130)))
    tried = 0
    for kernel in kernels_for(problem, cuda.device):
        if "SPLIT" not in kernel.space:
            continue
        valid, _ = kernel.configs(problem, cuda.device)
        split = [config for config in valid if config.as_dict()["SPLIT"] > 1][:1]
        for config in split:
            results = set()
            for shift in (0, 1, 4):
                kept = cuda.allocate(1000 * (shift + 1))
                run = dict(device=cuda, config=config.slug)
                results |= {pymm.matmul(elsewhere(a, shift), b, **run).tobytes() for _ in range(3)}
                del kept
            assert len(results) == 1, config.slug
            tried += 1
    assert tried
