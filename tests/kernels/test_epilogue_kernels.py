"""Every kernel with an epilogue, beside separate operations in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from epilogues import check_finished
from fed_products import check_refused

from pymm.backends.base import Matrix, Vector
from pymm.core import reference
from pymm.core.dtypes import DTYPES, FLOAT32
from pymm.core.epilogue import ACTIVATIONS, Epilogue
from pymm.core.problem import Problem
from pymm.kernels import KERNELS, known_kernel, parse_slug
from pymm.kernels.source import render
from pymm.runtime.bind import executable

#: A small configuration and a type of every kernel that stores C in a way of its own: from
#: registers, by TMA, in parts of k that are added by the last block or by another launch.
CASES = [
    ("naive-MB32-NB32", "f32"),
    ("coalesced-MB4-NB32", "f64"),
    ("shared_tile-MB16-NB16-KB16", "f32"),
    ("register_tile-MB32-NB32-KB16-TA4-TB4", "f32"),
    ("transposed_a-MB32-NB32-KB16-TA4-TB4", "f64"),
    ("symmetric_tile-MB48-NB48-KB48-TA3-TB3-PAD1", "f64"),
    ("pipelined-MB64-NB64-KB16-TA4-TB4-LANES4-STAGES2-BLOCKS1-GROUP1-SPLIT1", "f32"),
    ("pipelined-MB64-NB64-KB16-TA4-TB4-LANES4-STAGES2-BLOCKS1-GROUP1-SPLIT3", "f64"),
    ("tensor_f64-MB32-NB32-KB16-TA16-TB16-TK16-KI4-STAGES2-BLOCKS1-GROUP1-SPLIT1", "f64"),
    ("tensor_f64-MB32-NB32-KB16-TA16-TB16-TK16-KI4-STAGES2-BLOCKS1-GROUP1-SPLIT2", "f64"),
    ("sliced-MB16-NB32-KB8-TA4-TB4-SLICES2-STAGES2-BLOCKS1-GROUP1-SPLIT1", "f32"),
    ("sliced-MB16-NB32-KB8-TA4-TB4-SLICES1-STAGES2-BLOCKS1-GROUP1-SPLIT3", "f64"),
    ("tensor-MB32-NB32-KB32-TA16-TB16-STAGES2-BLOCKS1-GROUP1-SPLIT1", "bf16"),
    ("tensor-MB32-NB32-KB32-TA16-TB16-STAGES2-BLOCKS1-GROUP1-SPLIT2", "f16_f32"),
    ("tensor-MB32-NB32-KB128-TA32-TB16-SLICES4-STAGES2-BLOCKS1-GROUP1-SPLIT3", "bf16"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "bf16"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT3-SLOTS1", "f16"),
    (
        "tma_f32-MB32-NB64-KB64-ROWS2-EARLY1-STRIDE2-TA8-TB8-SLICES8-STAGES3-BLOCKS1-GROUP1-SPLIT3"
        "-STORE2",
        "f32",
    ),
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1"
        "-STORE1",
        "f32",
    ),
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1"
        "-STORE3",
        "f32",
    ),
    ("tma_f64-MB48-NB40-KB32-TA16-TB40-TK8-KI4-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT1", "f64"),
    (
        "tma_f64-MB64-NB64-KB16-TA32-TB32-TK16-KI8-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT1-STORE2",
        "f64",
    ),
    ("tma_f64-MB32-NB24-KB64-TA16-TB24-TK32-KI4-DEPTHS2-STAGES2-BLOCKS1-GROUP2-SPLIT2", "f64"),
    (
        "wgmma_tf32-MB64-NB128-KB32-TA64-TB128-SLICES1-STAGES4-SLOTS3-CLUSTER1-GROUP8-SPLIT1",
        "tf32",
    ),
    ("wgmma_tf32-MB32-NB64-KB64-TA32-TB64-SLICES2-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT2", "tf32"),
    ("wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1", "tf32x3"),
    ("ping_pong-MB64-NB80-KB64-STAGES3-CLUSTER1-GROUP8-SLOTS1", "bf16"),
    (
        "tma_f32_in_place-MB64-NB64-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB8-SLICES2-STAGES3-BLOCKS1"
        "-GROUP8-SPLIT1-STORE1",
        "f32",
    ),
    ("wgmma_tf32_in_place-MB64-NB128-KB32-TA64-TB64-STAGES3-GROUP8-SPLIT1", "tf32"),
    ("wgmma_tf32_in_place-MB64-NB64-KB64-TA64-TB64-STAGES2-GROUP1-SPLIT2", "tf32"),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "f16x3"),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "emulated"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB64-STAGES5-GROUP1-SPLIT2-SLOTS1", "emulated"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB64-STAGES5-GROUP1-SPLIT2-SLOTS1", "f16x3"),
]

#: Epilogues in turn: activation, whether there is a bias, whether it goes down.
EPILOGUES = list(
    itertools.islice(
        zip(
            itertools.cycle(ACTIVATIONS),
            itertools.cycle((True, True, True, False, True)),
            itertools.cycle((False, True, False)),
            strict=False,
        ),
        len(CASES),
    )
)


def of(case: tuple[str, bool, bool], dtype: str, wide: bool = False) -> Epilogue:
    """An epilogue of a product of this type; with a bias of float32 if it is `wide`."""
    activation, biased, down = case
    bias = FLOAT32 if wide and DTYPES[dtype].scalar == FLOAT32 else DTYPES[dtype].out
    return Epilogue(activation, bias if biased else None, down and biased)


def shapes(slug: str) -> list[tuple[int, int, int, int]]:
    """m, n, k and batch: whole tiles, one element more and less, one row, one column, nothing to
    sum up.
    """
    tile = parse_slug(slug).as_dict()
    m, n = tile["MB"], tile["NB"]
    k = tile.get("KB", 8) * tile.get("SPLIT", 1) * tile.get("SLICES", 1)
    return [
        (2 * m, n, 2 * k, 1),
        (m + 1, n + 1, 2 * k + 1, 2),
        (m - 1, 2 * n - 1, 2 * k - 1, 3),
        (1, n + 3, 2 * k, 1),
        (m, 1, 2 * k, 2),
        (m + 3, n, 0, 1),
    ]


@pytest.mark.parametrize(
    "slug, dtype, case",
    [(*one, case) for one, case in zip(CASES, EPILOGUES, strict=True)],
    ids=[f"{slug}-{dtype}" for slug, dtype in CASES],
)
def test_every_way_to_store_c(cuda, slug, dtype, case):
    config = parse_slug(slug)
    if cuda.device.is_gpu and not config.kernel.runs_on(cuda.device):
        check_refused(slug, dtype)
        return
    epilogue = of(case, dtype, wide="SPLIT1" in slug)
    layout = "NT" if config.kernel.number % 2 else "NN"
    for seed, (m, n, k, batch) in enumerate(shapes(slug)):
        if config.kernel.tma is not None and config.kernel.tma.in_place is not None:
            m, n, batch = max(m, 8), max(n, 8), 1  # it has no smaller ones, and no stacks
        problem = Problem(m, n, k, dtype, False, layout[1] == "T", batch)
        check_finished(cuda, config, problem, epilogue, seed)


def test_every_kernel_is_among_the_cases():
    stored = {parse_slug(slug).kernel_name for slug, _ in CASES}
    assert {kernel.name for kernel in KERNELS if kernel.backend == "cuda"} == stored


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_every_activation(cuda, activation, dtype):
    config = parse_slug("register_tile-MB16-NB16-KB8-TA2-TB2")
    for seed in range(2):
        problem = Problem(37, 19, 11, dtype)
        check_finished(cuda, config, problem, Epilogue(activation, DTYPES[dtype].out), seed)


@pytest.mark.parametrize("activation", ["", *ACTIVATIONS])
@pytest.mark.parametrize("name, down", [("blocked", False), ("blocked", True), ("reordered", True)])
def test_on_a_cpu(cpu, name, down, activation):
    kernel = known_kernel(name, "cpu")
    for dtype in ("f32", "f64"):
        epilogue = Epilogue(activation, DTYPES[dtype].out, down)
        config = kernel.default_for(Problem(64, 64, 64, dtype), cpu.device)
        for seed, (m, n, k) in enumerate(((1, 1, 1), (65, 97, 300), (7, 193, 0), (130, 3, 257))):
            check_finished(cpu, config, Problem(m, n, k, dtype, batch=2), epilogue, seed)


def check_specials(backend, config, dtype):
    """NaN, infinities and zero, in the sums and in the bias, with every activation: what separate
    operations in NumPy give.
    """
    problem = Problem(7, 5, 1, dtype)
    real = problem.numpy_dtype.type
    a = np.array([np.inf, -np.inf, np.nan, 1, 0, -100, 88], real).reshape(7, 1)
    b = np.array([1, -1, 1, 1, 1], real).reshape(1, 5)
    bias = np.array([0.5, -0.5, np.inf, -np.inf, np.nan], real)
    buffers = [backend.allocate(n * real().itemsize) for n in (7, 5, 35, 5)]
    for buffer, values in zip(buffers, (a, b, None, bias), strict=True):
        if values is not None:
            buffer.write(values)
    places = [Matrix(x.address, ld, owner=x) for x, ld in zip(buffers[:3], (1, 5, 5), strict=True)]
    there = Vector(buffers[3].address, 5, buffers[3])
    for activation in ("", *ACTIVATIONS):
        kernel = executable(backend, config, problem, 1, Epilogue(activation, np.dtype(real)))
        kernel.bind(problem, 1.0, *places[:2], 0.0, places[2], None, there)()
        backend.synchronize()
        got = np.empty((7, 5), real)
        buffers[2].read(got)
        with np.errstate(invalid="ignore"):
            wanted = reference.finished(a.astype(float) @ b.astype(float), activation, bias)
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-30, err_msg=activation)


@pytest.mark.parametrize("dtype", ["f32", "f64"])
def test_nan_and_infinity(cuda, cpu, dtype):
    check_specials(cuda, parse_slug("register_tile-MB16-NB16-KB8-TA2-TB2"), dtype)
    for name in ("blocked", "reordered"):
        kernel = known_kernel(name, "cpu")
        problem = Problem(7, 5, 1, dtype)
        check_specials(cpu, kernel.default_for(problem, cpu.device), dtype)


@pytest.mark.parametrize("kernel", [kernel for kernel in KERNELS if kernel.backend == "cuda"])
def test_a_kernel_without_an_epilogue_has_nothing_of_it(kernel):
    problem = Problem(256, 256, 256, kernel.dtypes[0])
    config = kernel.default_config
    plain, finished = (
        render(config, problem, None, one) for one in (Epilogue(), Epilogue("relu", np.dtype("f4")))
    )
    assert "#define ACTIVATION 1\n#define BIAS 1\n" in finished.text
    head, extra = (set(x.text.split("#line")[0].splitlines()) for x in (plain, finished))
    assert extra - head == {
        "#define ACTIVATION 1",
        "#define BIAS 1",
        "#define BIAS_REAL float",
    }
    assert head <= extra and plain.key != finished.key


def test_a_symmetric_c_has_no_epilogue():
    problem = Problem(64, 64, 64, "f32", False, True, op="syrk")
    with pytest.raises(ValueError, match="syrk: a symmetric C has no epilogue"):
        render(parse_slug("register_tile-MB32-NB32-KB16-TA4-TB4"), problem, None, Epilogue("relu"))
