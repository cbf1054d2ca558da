"""Kernels fed by TMA in the simulator: products of any size, layout, stride, start and stack; what
the twins of tensor maps, barriers and wgmma refuse.
"""

from __future__ import annotations

import pytest
from fed_products import check_many, check_split_round

from pymm.backends.cuda.driver import Driver, DriverError

pytestmark = pytest.mark.simulator

#: A configuration, its type, and the layouts that it is compiled for.
CASES = [
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1"
        "-STORE2",
        "f32",
        ("NN", "NT", "TN", "TT"),
    ),
    (
        "tma_f32-MB32-NB64-KB64-ROWS2-EARLY1-STRIDE2-TA8-TB8-SLICES8-STAGES3-BLOCKS1-GROUP1-SPLIT3"
        "-STORE2",
        "f32",
        ("NN", "TT"),
    ),
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT3"
        "-STORE3",
        "f32",
        ("NT", "TN"),
    ),
    (
        "tma_f32-MB48-NB96-KB32-ROWS8-EARLY1-STRIDE1-TA4-TB12-SLICES4-STAGES2-BLOCKS1-GROUP8-SPLIT2"
        "-STORE3",
        "f32",
        ("NN", "TT"),
    ),
    (
        "tma_f64-MB64-NB64-KB16-TA32-TB32-TK16-KI8-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT2-STORE2",
        "f64",
        ("NN", "TT"),
    ),
    (
        "tma_f64-MB48-NB40-KB32-TA16-TB40-TK8-KI4-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT1-STORE2",
        "f64",
        ("NT", "TN"),
    ),
    (
        "tma_f64-MB64-NB64-KB32-TA32-TB32-TK16-KI4-DEPTHS2-STAGES5-BLOCKS1-GROUP4-SPLIT3",
        "f64",
        ("TN",),
    ),
    (
        "tma_f64-MB48-NB40-KB32-TA16-TB40-TK8-KI4-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT1",
        "f64",
        ("NN", "TT"),
    ),
    (
        "tma_f64-MB32-NB24-KB64-TA16-TB24-TK32-KI4-DEPTHS2-STAGES2-BLOCKS1-GROUP2-SPLIT2",
        "f64",
        ("NT", "TN"),
    ),
    (
        "wgmma_tf32-MB64-NB128-KB32-TA64-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1-STORE2",
        "tf32",
        ("NN", "TT"),
    ),
    (
        "wgmma_tf32-MB16-NB64-KB64-TA16-TB64-SLICES2-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1-STORE2",
        "tf32",
        ("TN", "TT"),
    ),
    ("wgmma-MB64-NB192-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "f16", ("NN",)),
    (
        "wgmma-MB64-NB128-KB128-TA64-TB128-STAGES3-CLUSTER1-GROUP4-SPLIT1-SLOTS3",
        "bf16_f32",
        ("TT",),
    ),
    (
        "wgmma_tf32-MB64-NB128-KB32-TA64-TB128-SLICES1-STAGES4-SLOTS3-CLUSTER1-GROUP8-SPLIT1",
        "tf32",
        ("TT", "TN"),
    ),
    (
        "wgmma_tf32-MB64-NB128-KB32-TA32-TB64-SLICES1-STAGES2-SLOTS1-CLUSTER1-GROUP8-SPLIT3",
        "tf32",
        ("NN",),
    ),
    (
        "wgmma_tf32-MB32-NB64-KB64-TA32-TB64-SLICES2-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT2",
        "tf32",
        ("NT", "TN"),
    ),
    (
        "wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1",
        "tf32x3",
        ("NN", "TN"),
    ),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "f16x3", ("NN", "TN")),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "emulated", ("NN", "TN")),
    (
        "wgmma_f16x3-MB64-NB128-KB64-TA64-TB64-STAGES5-GROUP1-SPLIT2-SLOTS1",
        "emulated",
        ("NT", "TT"),
    ),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB64-STAGES5-GROUP1-SPLIT2-SLOTS1", "f16x3", ("NT", "TT")),
]

#: Those that split what is left for a last round, of a type each.
SPLIT = [(slug, dtype) for slug, dtype, _ in CASES if "tma_f" in slug and "-SPLIT1" not in slug]


@pytest.mark.parametrize("slug, dtype, layouts", CASES, ids=[case[0] for case in CASES])
def test_any_size_layout_stride_start_and_stack(cuda, slug, dtype, layouts):
    check_many(cuda, slug, (dtype,), layouts, count=16, most=200, deepest=300)


@pytest.mark.parametrize("slug, dtype", SPLIT, ids=[case[0] for case in SPLIT])
def test_whole_tiles_beside_split_ones(cuda, slug, dtype):
    check_split_round(cuda, slug, dtype)


#: kind, address, extents, strides, box, swizzle of a map that the driver makes: 7 is float32.
GOOD = (7, 4096, (64, 5, 2), (256, 1280), (32, 16, 1), 128)


@pytest.mark.parametrize(
    "place, value",
    [
        (0, 13),  # no such type
        (1, 4100),  # no multiple of 16
        (2, (64, 0, 2)),  # nothing to map
        (3, (252, 1280)),  # rows at no multiple of 16
        (4, (32, 257, 1)),  # more than 256 rows
        (4, (3, 16, 1)),  # 12 bytes
        (4, (64, 16, 1)),  # a row longer than its swizzle
    ],
)
def test_tensor_maps_have_the_driver_s_limits(cuda, place, value):
    from pymm.backends.cuda.context import active  # imports PyCUDA

    driver = Driver()
    with active(cuda._contexts.current()):
        assert len(driver.tensor_map(*GOOD)) == 128
        with pytest.raises(DriverError, match="invalid"):
            driver.tensor_map(*GOOD[:place], value, *GOOD[place + 1 :])
