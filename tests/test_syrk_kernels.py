"""One half of a symmetric C by every kernel, in the simulator and on a GPU; the other half, which
mirrors it or stays, to the bit.
"""

from __future__ import annotations

import numpy as np
import pytest
from syrk_products import OPERATIONS, check, check_many

from pymm.backends import open_device
from pymm.kernels import KERNELS, parse_slug
from pymm.problem import FILLS, Problem

#: Configurations of small tiles, oblong and square, with k in parts and without, and their types.
CASES = [
    ("naive-MB32-NB8", "f32"),
    ("coalesced-MB8-NB32", "f64"),
    ("shared_tile-MB16-NB16-KB16", "f32"),
    ("register_tile-MB48-NB48-KB16-TA3-TB3", "f64"),  # 16 x 16 threads: the first that pymm had
    ("transposed_a-MB32-NB64-KB8-TA4-TB4", "f32"),
    ("pipelined-MB32-NB64-KB16-TA4-TB4-LANES4-STAGES2-BLOCKS1-GROUP2-SPLIT2", "f32"),
    ("tensor_f64-MB64-NB32-KB16-TA32-TB16-KI4-STAGES2-BLOCKS1-GROUP1-SPLIT2", "f64"),
    ("wgmma-MB64-NB128-KB64-TA64-TB128-STAGES3-CLUSTER1-GROUP2-SPLIT1-SLOTS2", "bf16"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP8-SPLIT2-SLOTS1", "f16_f32"),
    ("tensor-MB32-NB64-KB64-TA32-TB16-STAGES3-BLOCKS1-GROUP2-SPLIT1", "f16"),
]  # fmt: skip


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype", CASES)
def test_a_half_and_what_mirrors_it(slug, dtype):
    backend, config = open_device("cuda"), parse_slug(slug)
    deep = getattr(config, "SPLIT", 1) * getattr(config, "KB", 16) + 5
    for seed, (op, layout, n, k, batch) in enumerate((
        ("syrk", "NT", 131, deep, 2),
        ("syrk", "NT", 64, 0, 1),
        ("syrk_upper" if len(slug) % 2 else "syrk_lower", "TN", 193, deep, 1),
    )):
        problem = Problem(n, n, k, dtype, layout == "TN", layout == "NT", batch, op)
        check(backend, config, problem, seed)


#: What runs on a Hopper GPU, or on any since Ampere.
ON_GPU = [
    *CASES,
    ("wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16"),
    ("wgmma-MB128-NB128-KB64-TA64-TB128-STAGES4-CLUSTER2-GROUP8-SPLIT1-SLOTS1", "f16"),
]


@pytest.mark.gpu
@pytest.mark.parametrize("slug, dtype", ON_GPU)
def test_random_halves(slug, dtype):
    backend = open_device("cuda")
    if not parse_slug(slug).kernel.runs_on(backend.device):
        pytest.xfail("made for another GPU")
    check_many(backend, slug, (dtype,))
