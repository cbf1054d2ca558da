"""Products of blocks in clusters, in the simulator: of sizes that leave blocks of a cluster without
work, part of a stage, or none.
"""

from __future__ import annotations

import pytest
from fed_products import HOPPER, check

from pymm.core.problem import Problem
from pymm.kernels import Config, parse_slug

pytestmark = pytest.mark.simulator

TF32X3 = "wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER2-GROUP1-SPLIT1"
SMALL = "wgmma-MB64-NB64-KB64-TA64-TB64"
#: A configuration, its type, and the layouts that it is compiled for.
CASES = [
    (
        "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2-CLUSTER2-GROUP1-SPLIT1-SLOTS1",
        *("bf16", ("NN", "NT", "TN", "TT")),
    ),
    # Parts of the depth of a box; boxes, and rows, of which three of four blocks load a third.
    ("wgmma-MB64-NB96-KB64-TA64-TB96-STAGES3-CLUSTER4-GROUP1-SPLIT1-SLOTS1", "f16", ("NN",)),
    (
        "wgmma-MB64-NB144-KB64-TA64-TB144-STAGES2-CLUSTER4-GROUP1-SPLIT1-SLOTS1",
        *("bf16_f32", ("NN", "NT")),
    ),
    # Rows of which two of four blocks load half, in boxes of 32 columns.
    ("wgmma-MB64-NB112-KB32-TA64-TB112-STAGES4-CLUSTER4-GROUP8-SPLIT1-SLOTS1", "bf16", ("TT",)),
    ("wgmma-MB64-NB128-KB64-TA64-TB64-STAGES3-CLUSTER2-GROUP8-SPLIT3-SLOTS1", "bf16", ("NT",)),
    ("wgmma-MB32-NB64-KB64-TA64-TB64-STAGES3-CLUSTER2-GROUP8-SPLIT1-SLOTS1", "f16", ("TN",)),
    # Blocks that share both operands.
    (f"{SMALL}-STAGES2-CLUSTER2-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1", "bf16", ("NN", "TT")),
    (f"{SMALL}-STAGES3-CLUSTER1-CLUSTER_N4-GROUP8-SPLIT3-SLOTS1", "f16", ("NT", "TN")),
    (
        "wgmma-MB64-NB144-KB32-TA64-TB144-STAGES3-CLUSTER4-CLUSTER_N2-GROUP8-SPLIT1-SLOTS1",
        *("f16", ("NN", "NT")),
    ),
    (
        "wgmma-MB128-NB112-KB64-TA64-TB112-STAGES3-CLUSTER2-CLUSTER_N4-GROUP1-SPLIT1-SLOTS2",
        *("bf16", ("TN",)),
    ),
    (
        "wgmma_tf32-MB32-NB64-KB32-TA32-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER4-GROUP8-SPLIT1",
        *("tf32", ("NN", "NT", "TT")),
    ),
    (
        "wgmma_tf32-MB64-NB64-KB32-TA64-TB64-SLICES2-STAGES4-SLOTS2-CLUSTER2-GROUP8-SPLIT1",
        *("tf32", ("NT", "TN")),
    ),
    (
        "wgmma_tf32-MB16-NB64-KB64-TA16-TB64-SLICES1-STAGES4-SLOTS1-CLUSTER2-GROUP1-SPLIT3",
        *("tf32", ("TT",)),
    ),
    (TF32X3, "tf32x3", ("NN", "TN")),
    ("ping_pong-MB64-NB80-KB64-STAGES3-CLUSTER2-GROUP8-SLOTS1", "bf16", ("NN", "NT")),
    ("ping_pong-MB64-NB64-KB64-STAGES2-CLUSTER2-GROUP8-SLOTS2", "bf16_f32", ("TN", "TT")),
]


def hurting(config: Config, dtype: str, layout: str) -> list[Problem]:
    """Products of nearly a cluster's tiles, exactly, and just more; of several clusters, the last
    of which has blocks without rows or columns; with no depth, less than a stage's, what fills the
    stages, and more. Without those that the kernel does not compute.
    """
    c, parts = config, getattr(config, "SPLIT", 1)
    above = c.kernel.name in ("wgmma", "ping_pong")  # blocks of CLUSTER, or else side by side
    across = getattr(c, "CLUSTER_N", 1) if above else c.CLUSTER
    m, n = c.MB * (c.CLUSTER if above else 1), c.NB * across
    step = c.KB * parts
    shapes = [
        (1, 1, 1),
        (m - 1, n - 1, step + 1),
        (m, n, step * c.STAGES),
        (m + 1, n + 1, step * (c.STAGES + 1) + 3),
        (m, n, 0),
        (3 * c.MB, 3 * c.NB, 2 * step - 1),
        (2 * m + 8, n + c.NB, step + 8),
        (5, 7, step * (2 * c.STAGES + 1), 3),
    ]
    trans = [letter == "T" for letter in layout]
    drawn = [Problem(*shape[:3], dtype, *trans, *shape[3:]) for shape in shapes]
    return [problem for problem in drawn if not c.kernel.violations(c, problem, HOPPER)]


@pytest.mark.parametrize(
    "slug, dtype, layout",
    [(slug, dtype, layout) for slug, dtype, layouts in CASES for layout in layouts],
)
def test_products_of_clusters(cuda, slug, dtype, layout):
    config = parse_slug(slug)
    problems = hurting(config, dtype, layout)
    assert len(problems) >= 6
    for seed, problem in enumerate(problems):
        check(cuda, config, problem, seed)
