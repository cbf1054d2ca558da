"""Which kernel computes a product of tf32 that nothing is tuned for, on a GPU without a survey:
the one of least expected time. Times were measured on an H200.
"""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.kernels import find_kernel, kernels_for, parse_slug
from pymm.kernels.expected import is_modelled
from tests.support.h200 import H200 as WHOLE

#: An H200 but for a multiprocessor: no GPU with so many was surveyed.
H200 = replace(WHOLE, sms=131)
AMPERE = Device("A100", "cuda", capability=(8, 0), sms=108, shared_per_block=166912)

KERNELS = ("wgmma_tf32", "sliced", "tensor")


def product(text: str, layout: str, **more) -> Problem:
    m, n, k = map(int, text.split("x"))
    return Problem(m, n, k, "tf32", layout[0] == "T", layout[1] == "T", **more)


#: Products, and the microseconds of configurations of all three kernels.
MEASURED = [
    ("508x4117x180", "TT", 17.02, 30.08, 26.40),
    ("169x1782x1741", "NN", 24.35, 48.45, 44.38),
    ("4115x39x877", "TN", 21.15, 20.70, 16.64),
    ("33x520x4661", "NN", 14.37, 17.63, 26.72),
    ("59x3077x1390", "TN", 24.93, 24.29, 21.09),
    ("300x102x348", "NT", 7.46, 7.07, 8.51),
    ("47x93x52", "TT", 9.12, 5.50, 6.18),
    ("4269x285x262", "NT", 17.63, 37.63, 25.25),
    ("244x438x195", "TN", 11.90, 7.04, 6.18),
]


@pytest.mark.parametrize("text, layout, wgmma, sliced, tensor", MEASURED)
def test_the_kernel_that_was_measured_fastest_ranks_highest(text, layout, wgmma, sliced, tensor):
    times = dict(zip(KERNELS, (wgmma, sliced, tensor), strict=True))
    highest = kernels_for(product(text, layout), H200)[-1]
    assert times[highest.name] == min(times.values())


#: Products, configurations and their microseconds; the last two were measured after the fit.
TIMES = [
    (
        "816x391x298",
        "TT",
        "wgmma_tf32-MB16-NB64-KB64-TA16-TB64-SLICES1-STAGES8-SLOTS2-CLUSTER2-GROUP1-SPLIT1",
        16.54,
    ),
    (
        "169x1782x1741",
        "NN",
        "wgmma_tf32-MB128-NB128-KB32-TA128-TB64-SLICES1-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT4",
        27.90,
    ),
    (
        "4441x69x6459",
        "TT",
        "wgmma_tf32-MB128-NB128-KB32-TA128-TB64-SLICES1-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT7",
        114.88,
    ),
    (
        "4269x285x262",
        "NT",
        "wgmma_tf32-MB128-NB128-KB32-TA128-TB64-SLICES1-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
        17.63,
    ),
    (
        "169x1782x1741",
        "NN",
        "sliced-MB32-NB64-KB8-TA8-TB8-SLICES4-STAGES4-BLOCKS3-GROUP8-SPLIT2",
        48.45,
    ),
    (
        "38x218x6075",
        "TT",
        "sliced-MB16-NB32-KB16-TA4-TB4-SLICES4-STAGES4-BLOCKS2-GROUP8-SPLIT6",
        14.30,
    ),
    (
        "622x217x36",
        "TN",
        "sliced-MB16-NB32-KB16-TA4-TB4-SLICES4-STAGES2-BLOCKS3-GROUP8-SPLIT1",
        5.76,
    ),
    (
        "33x520x4661",
        "NN",
        "tensor-MB32-NB32-KB32-TA16-TB16-STAGES4-BLOCKS2-GROUP8-SPLIT2",
        42.85,
    ),
    (
        "169x1782x1741",
        "NN",
        "tensor-MB64-NB128-KB32-TA16-TB32-STAGES2-BLOCKS1-GROUP8-SPLIT16",
        50.18,
    ),
    (
        "4197x43x261",
        "NT",
        "tensor-MB32-NB64-KB32-TA16-TB32-STAGES4-BLOCKS2-GROUP8-SPLIT1",
        12.99,
    ),
    (
        "115x3072x1829",
        "TN",
        "wgmma_tf32-MB64-NB64-KB64-TA64-TB64-SLICES1-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
        19.84,
    ),
    (
        "1061x353x706",
        "NT",
        "wgmma_tf32-MB64-NB64-KB64-TA64-TB64-SLICES1-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
        14.85,
    ),
]


@pytest.mark.parametrize("text, layout, slug, microseconds", TIMES)
def test_expected_times_are_near_measured_ones(text, layout, slug, microseconds):
    config = parse_slug(slug)
    expected = config.kernel.expected(config, product(text, layout), H200)
    assert abs(math.log(expected / microseconds)) < 0.25


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.integers(1, 9000)] * 3),
    st.sampled_from(["NN", "NT", "TN", "TT"]),
)
def test_every_default_obeys_its_rules_and_none_is_expected_to_be_faster(extents, layout):
    p = product("x".join(map(str, extents)), layout)
    kernels = [kernel for kernel in kernels_for(p, H200) if kernel.preferred_for(p, H200)]
    defaults = {kernel.name: kernel.default_for(p, H200) for kernel in kernels}
    for kernel in kernels:
        assert not kernel.violations(defaults[kernel.name], p, H200)
    if is_modelled(p, H200):
        times = [kernel.expected(defaults[kernel.name], p, H200) for kernel in kernels]
        assert all(0 < time < math.inf for time in times)
        assert times == sorted(times, reverse=True)


def test_time_grows_with_the_product():
    for slug in (
        "wgmma_tf32-MB64-NB64-KB64-TA64-TB64-SLICES1-STAGES6-SLOTS2-CLUSTER1-GROUP8-SPLIT1",
        "sliced-MB32-NB64-KB8-TA8-TB8-SLICES4-STAGES4-BLOCKS3-GROUP8-SPLIT1",
        "tensor-MB32-NB64-KB32-TA16-TB32-STAGES4-BLOCKS2-GROUP8-SPLIT1",
    ):
        config = parse_slug(slug)
        sizes = [product(t, "NN") for t in ("65x65x65", "65x65x999", "999x65x999", "999x999x999")]
        times = [config.kernel.expected(config, p, H200) for p in sizes]
        assert times == sorted(set(times))


def test_what_was_not_measured_keeps_its_order():
    odd = product("333x333x333", "NN")
    assert is_modelled(odd, H200)
    for other, device in [
        (product("512x512x512", "NN"), H200),  # rows that TMA reads
        (product("333x333x333", "NN", batch=3), H200),
        (product("333x333x333", "NT", op="syrk"), H200),
        (product("31x333x333", "NN"), H200),
        (Problem(333, 333, 333, "f32"), H200),
        (odd, AMPERE),
    ]:
        assert not is_modelled(other, device)
    assert kernels_for(odd, AMPERE)[-1] is find_kernel("tensor")
