"""Kernel 18: its geometry, and products of any size, layout, start and stride, in the simulator and
on a GPU.
"""

from __future__ import annotations

import pytest
from fed_products import HOPPER, LAYOUTS, check_many, check_on_gpu
from test_wgmma import check_half

from pymm.backends import open_device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug

IN_PLACE = find_kernel("wgmma_tf32_in_place")
SLUGS = (
    "wgmma_tf32_in_place-MB128-NB128-KB32-TA128-TB64-STAGES6-GROUP8-SPLIT1",
    "wgmma_tf32_in_place-MB64-NB64-KB64-TA64-TB64-STAGES6-GROUP8-SPLIT1",
    "wgmma_tf32_in_place-MB256-NB128-KB32-TA256-TB64-STAGES4-GROUP8-SPLIT1",
    "wgmma_tf32_in_place-MB128-NB256-KB32-TA64-TB256-STAGES4-GROUP1-SPLIT1",
    "wgmma_tf32_in_place-MB96-NB256-KB32-TA96-TB64-STAGES4-GROUP8-SPLIT2",
    "wgmma_tf32_in_place-MB256-NB96-KB32-TA64-TB96-STAGES4-GROUP8-SPLIT4",
    "wgmma_tf32_in_place-MB32-NB64-KB64-TA32-TB64-STAGES8-GROUP1-SPLIT1",
    "wgmma_tf32_in_place-MB64-NB32-KB64-TA64-TB32-STAGES8-GROUP1-SPLIT16",
    "wgmma_tf32_in_place-MB128-NB128-KB32-TA64-TB128-STAGES2-GROUP8-SPLIT1",
)
#: Some that the simulator runs, and the layouts that their rules allow.
SIMULATED = (
    ("wgmma_tf32_in_place-MB128-NB128-KB32-TA128-TB64-STAGES3-GROUP8-SPLIT1", LAYOUTS),
    ("wgmma_tf32_in_place-MB64-NB64-KB64-TA64-TB64-STAGES2-GROUP1-SPLIT2", LAYOUTS),
    ("wgmma_tf32_in_place-MB64-NB128-KB32-TA32-TB64-STAGES2-GROUP8-SPLIT1", ("NN",)),
    ("wgmma_tf32_in_place-MB64-NB64-KB64-TA32-TB64-STAGES2-GROUP8-SPLIT1", ("TN",)),
    ("wgmma_tf32_in_place-MB96-NB128-KB32-TA96-TB128-STAGES2-GROUP8-SPLIT3", ("NN",)),
    ("wgmma_tf32_in_place-MB256-NB64-KB32-TA256-TB64-STAGES2-GROUP8-SPLIT1", ("TN",)),
    ("wgmma_tf32_in_place-MB128-NB192-KB32-TA64-TB96-STAGES2-GROUP8-SPLIT1", ("NT",)),
    ("wgmma_tf32_in_place-MB64-NB32-KB64-TA64-TB32-STAGES4-GROUP1-SPLIT1", ("NT", "TT")),
    ("wgmma_tf32_in_place-MB128-NB256-KB32-TA128-TB128-STAGES2-GROUP8-SPLIT1", ("NT",)),
    ("wgmma_tf32_in_place-MB128-NB64-KB32-TA64-TB64-STAGES3-GROUP8-SPLIT4", ("TT",)),
)
CASES = [(slug, layout) for slug, layouts in SIMULATED for layout in layouts]


@pytest.mark.simulator
@pytest.mark.parametrize("slug, layout", CASES)
def test_any_size_in_the_simulator(cuda, slug, layout):
    check_many(cuda, slug, ("tf32",), (layout,), count=8, most=300, deepest=300)
