"""One half of a symmetric C by every kernel, in the simulator and on a GPU; the other half, which
mirrors it or stays, to the bit.
"""

from __future__ import annotations

from functools import partial

import pytest
from fed_products import check_refused
from syrk_products import check, check_many

from pymm.backends import open_device
from pymm.core.dtypes import DTYPES
from pymm.core.problem import Problem
from pymm.kernels import kernels_for, parse_slug

#: Configurations of small tiles, oblong and square, with k in parts and without, and their types.
CASES = [
    ("naive-MB32-NB8", "f32"),
    ("coalesced-MB8-NB32", "f64"),
    ("shared_tile-MB16-NB16-KB16", "f32"),
    ("register_tile-MB48-NB48-KB16-TA3-TB3", "f64"),  # 16 x 16 threads: the first that pymm had
    ("transposed_a-MB32-NB64-KB8-TA4-TB4", "f32"),
    ("symmetric_tile-MB48-NB48-KB48-TA3-TB3-PAD1", "f64"),
    ("symmetric_tile-MB32-NB48-KB8-TA2-TB3-PAD16", "f32"),
    ("pipelined-MB32-NB64-KB16-TA4-TB4-LANES4-STAGES2-BLOCKS1-GROUP2-SPLIT2", "f32"),
    ("tensor_f64-MB64-NB32-KB16-TA32-TB16-TK16-KI4-STAGES2-BLOCKS1-GROUP1-SPLIT2", "f64"),
    ("tensor_f64-MB48-NB40-KB32-TA16-TB40-TK8-KI4-STAGES3-BLOCKS1-GROUP8-SPLIT1", "f64"),
    ("wgmma-MB64-NB128-KB64-TA64-TB128-STAGES3-CLUSTER1-GROUP2-SPLIT1-SLOTS2", "bf16"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP8-SPLIT2-SLOTS1", "f16_f32"),
    ("tensor-MB32-NB64-KB64-TA32-TB16-STAGES3-BLOCKS1-GROUP2-SPLIT1", "f16"),
    ("tensor-MB32-NB32-KB64-TA16-TB16-SLICES2-STAGES3-BLOCKS1-GROUP2-SPLIT3", "bf16"),
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1"
        "-STORE2",
        "f32",
    ),
    (
        "tma_f32-MB32-NB64-KB64-ROWS2-EARLY1-STRIDE2-TA8-TB8-SLICES8-STAGES3-BLOCKS1-GROUP1-SPLIT3"
        "-STORE1",
        "f32",
    ),
    ("tma_f64-MB64-NB64-KB32-TA32-TB32-TK16-KI8-DEPTHS1-STAGES5-BLOCKS1-GROUP4-SPLIT3", "f64"),
    ("tma_f64-MB64-NB56-KB32-TA16-TB56-TK16-KI8-DEPTHS2-STAGES5-BLOCKS1-GROUP8-SPLIT1", "f64"),
    ("wgmma_tf32-MB32-NB64-KB64-TA32-TB64-SLICES2-STAGES4-SLOTS2-CLUSTER1-GROUP2-SPLIT2", "tf32"),
    ("wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1", "tf32x3"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB128-STAGES4-GROUP1-SPLIT1-SLOTS1", "f16x3"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB128-STAGES4-GROUP1-SPLIT1-SLOTS1", "emulated"),
    ("sliced-MB16-NB32-KB16-TA4-TB4-SLICES4-STAGES2-BLOCKS1-GROUP2-SPLIT1", "f32"),
]


@pytest.fixture
def never_in_full(monkeypatch):
    """Halves of the smallest C, too."""
    monkeypatch.setattr(Problem, "in_full", False)


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype", CASES)
def test_a_half_and_what_mirrors_it(slug, dtype, never_in_full):
    backend, config = open_device("cuda"), parse_slug(slug)
    deep = getattr(config, "SPLIT", 1) * getattr(config, "KB", 16) + 5
    for seed, (op, layout, n, k, batch) in enumerate(
        (
            ("syrk", "NT", 131, deep, 2),
            ("syrk", "NT", 64, 0, 1),
            ("syrk_upper" if len(slug) % 2 else "syrk_lower", "TN", 193, deep, 1),
        )
    ):
        problem = Problem(n, n, k, dtype, layout == "TN", layout == "NT", batch, op)
        check(backend, config, problem, seed)


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype", [case for case in CASES if case[0].startswith("tensor-")])
def test_halves_of_c_with_rows_at_multiples_of_16_and_8_bytes(slug, dtype, never_in_full):
    """Kernel 12 stores tiles across the diagonal one element at a time, others in words."""
    backend, config = open_device("cuda"), parse_slug(slug)
    for seed, (op, n) in enumerate((("syrk", 136), ("syrk_upper", 104), ("syrk_lower", 92))):
        problem = Problem(n, n, config.SPLIT * config.KB + 8, dtype, True, False, 1, op)
        check(backend, config, problem, seed)


@pytest.mark.simulator
def test_random_halves_in_the_simulator(never_in_full):
    check_many(open_device("cuda"), "shared_tile-MB8-NB8-KB8", ("f32",), most=90, deepest=40)


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype", [CASES[4], CASES[7], CASES[11]])
def test_a_small_one_is_computed_in_full(slug, dtype):
    backend, config = open_device("cuda"), parse_slug(slug)
    for seed, layout in enumerate(("NT", "TN")):
        problem = Problem(131, 131, 140, dtype, layout == "TN", layout == "NT", 1, "syrk")
        assert problem.in_full
        check(backend, config, problem, seed)


@pytest.mark.parametrize("dtype", [d.name for d in DTYPES.values() if d.syrk_full_depth])
def test_a_shallow_one_is_computed_in_full(dtype):
    most = DTYPES[dtype].syrk_full_depth
    of = partial(Problem, 9999, 9999, dtype=dtype, trans_b=True)
    assert of(most, op="syrk").in_full and not of(most + 1, op="syrk").in_full
    assert not of(most, op="syrk_lower").in_full


#: What runs on a Hopper GPU, or on any since Ampere.
ON_GPU = [
    *CASES,
    ("wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16"),
    ("wgmma-MB128-NB128-KB64-TA64-TB128-STAGES4-CLUSTER2-GROUP8-SPLIT1-SLOTS1", "f16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("slug, dtype", ON_GPU)
def test_random_halves(slug, dtype, never_in_full):
    backend = open_device("cuda")
    if parse_slug(slug).kernel.runs_on(backend.device):
        check_many(backend, slug, (dtype,))
    else:
        check_refused(slug, dtype)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [*(d.name for d in DTYPES.values() if d.syrk_full_rows), "f64"])
def test_small_ones_by_any_kernel_are_symmetric(dtype):
    backend = open_device("cuda")
    for kernel in kernels_for(Problem(1, 1, 1, dtype), backend.device):
        for n, k in ((1, 3), (64, 64), (333, 100), (500, 777), (704, 65)):
            for layout in ("NT", "TN"):
                problem = Problem(n, n, k, dtype, layout == "TN", layout == "NT", 2, "syrk")
                config = kernel.default_for(problem, backend.device)
                if not kernel.violations(config, problem, backend.device):
                    check(backend, config, problem, n)
