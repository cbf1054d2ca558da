"""Kernel 7 and its 16-bit types: who may run it, its geometry, its judge; on a GPU, products."""

from __future__ import annotations

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from fed_products import HOPPER, Placed, check_many, check_on_gpu
from h200 import H200

from pymm.backends import open_device
from pymm.core import dtypes, reference
from pymm.core.device import Device
from pymm.core.problem import Problem
from pymm.core.reference import mirrored, other_half
from pymm.kernels import find_kernel, kernels_for, parse_slug, wgmma
from pymm.kernels.kernel import cluster_blocks, parts_of
from pymm.kernels.source import render
from pymm.measure.verify import NUMBER, POISON, compare, normal
from pymm.runtime.arrays import adopt
from pymm.runtime.bind import executable

WGMMA = find_kernel("wgmma")
SLUGS = (
    "wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB256-KB64-TA64-TB256-STAGES3-CLUSTER2-GROUP1-SPLIT1-SLOTS2",
    "wgmma-MB256-NB128-KB64-TA128-TB128-STAGES4-CLUSTER2-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB64-NB128-KB128-TA64-TB128-STAGES3-CLUSTER1-GROUP4-SPLIT1-SLOTS3",
    "wgmma-MB64-NB192-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB128-NB128-KB64-TA64-TB64-STAGES2-CLUSTER2-GROUP8-SPLIT1-SLOTS2",
    "wgmma-MB64-NB256-KB64-TA64-TB128-STAGES4-CLUSTER4-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES8-CLUSTER1-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB128-KB64-TA64-TB128-STAGES4-CLUSTER1-GROUP8-SPLIT3-SLOTS1",
    "wgmma-MB64-NB128-KB64-TA64-TB64-STAGES4-CLUSTER2-GROUP8-SPLIT7-SLOTS1",
    "wgmma-MB16-NB64-KB64-TA64-TB64-STAGES16-CLUSTER1-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB64-NB16-KB64-TA64-TB64-STAGES16-CLUSTER1-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB32-NB128-KB128-TA64-TB128-STAGES3-CLUSTER2-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB64-NB128-KB64-TA64-TB64-STAGES4-CLUSTER4-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB64-NB64-KB128-TA64-TB64-STAGES3-CLUSTER4-GROUP8-SPLIT3-SLOTS1",
    "wgmma-MB32-NB64-KB32-TA64-TB64-STAGES4-CLUSTER2-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB32-KB64-TA64-TB64-STAGES8-CLUSTER1-GROUP8-SPLIT2-SLOTS1",
    "wgmma-MB16-NB32-KB128-TA64-TB64-STAGES8-CLUSTER1-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB128-KB32-TA64-TB128-STAGES8-CLUSTER1-GROUP1-SPLIT1-SLOTS2",
    "wgmma-MB64-NB256-KB32-TA64-TB256-STAGES4-CLUSTER2-GROUP8-SPLIT2-SLOTS1",
    "wgmma-MB32-NB64-KB32-TA64-TB64-STAGES8-CLUSTER1-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB64-NB144-KB64-TA64-TB144-STAGES6-CLUSTER4-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB128-NB176-KB64-TA64-TB176-STAGES4-CLUSTER2-GROUP8-SPLIT1-SLOTS2",
    "wgmma-MB64-NB112-KB32-TA64-TB112-STAGES8-CLUSTER4-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB96-KB128-TA128-TB96-STAGES3-CLUSTER1-GROUP1-SPLIT3-SLOTS1",
    "wgmma-MB64-NB192-KB64-TA64-TB192-STAGES4-CLUSTER2-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB64-NB208-KB64-TA64-TB208-STAGES4-CLUSTER4-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB32-NB160-KB64-TA64-TB160-STAGES6-CLUSTER2-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB128-KB64-TA64-TB128-STAGES6-CLUSTER2-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB64-NB128-KB64-TA64-TB64-STAGES8-CLUSTER4-CLUSTER_N2-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB128-NB112-KB64-TA64-TB112-STAGES4-CLUSTER2-CLUSTER_N4-GROUP1-SPLIT1-SLOTS2",
    "wgmma-MB64-NB144-KB32-TA64-TB144-STAGES2-CLUSTER4-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB256-NB64-KB32-TA128-TB64-STAGES3-CLUSTER1-CLUSTER_N4-GROUP8-SPLIT1-SLOTS1",
    "wgmma-MB64-NB64-KB128-TA64-TB64-STAGES3-CLUSTER1-CLUSTER_N2-GROUP8-SPLIT3-SLOTS1",
    "wgmma-MB64-NB192-KB64-TA64-TB192-STAGES3-CLUSTER2-CLUSTER_N2-GROUP8-SPLIT4-SLOTS1",
    "wgmma-MB192-NB176-KB32-TA64-TB176-STAGES6-CLUSTER2-GROUP1-SPLIT1-SLOTS1",
    "wgmma-MB64-NB32-KB128-TA64-TB64-STAGES4-CLUSTER1-CLUSTER_N4-GROUP1-SPLIT1-SLOTS1",
)
#: Some that the simulator runs, for half of a symmetric C, too.
SIMULATED = (
    ("wgmma-MB128-NB128-KB64-TA64-TB128-STAGES3-CLUSTER1-GROUP8-SPLIT1-SLOTS2", "f16"),
    ("wgmma-MB128-NB64-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP8-SPLIT3-SLOTS1", "bf16_f32"),
    ("wgmma-MB64-NB192-KB32-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "bf16"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "bf16"),
    ("wgmma-MB64-NB144-KB64-TA64-TB144-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "f16"),
    ("wgmma-MB128-NB112-KB32-TA64-TB112-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS2", "bf16_f32"),
    ("wgmma-MB64-NB96-KB128-TA64-TB96-STAGES2-CLUSTER1-GROUP8-SPLIT3-SLOTS1", "bf16"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2-CLUSTER2-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1", "bf16"),
    ("wgmma-MB192-NB96-KB32-TA64-TB96-STAGES2-CLUSTER2-GROUP1-SPLIT1-SLOTS1", "bf16"),
)
DTYPES = ("f16", "bf16", "f16_f32", "bf16_f32")
HALVES = [row.name for row in dtypes.DTYPES.values() if row.out_roundoff]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "device, runs",
    [
        (HOPPER, True),
        (replace(HOPPER, kind="simulator"), False),
        (replace(HOPPER, capability=(8, 9)), False),
        (replace(HOPPER, capability=(10, 0)), False),
        (Device("cpu", "cpu"), False),
    ],
    ids=["hopper", "simulator", "ada", "blackwell", "cpu"],
)
def test_only_hopper_runs_it(device, runs, dtype):
    assert (WGMMA in kernels_for(Problem(8, 8, 8, dtype), device)) == runs


@pytest.mark.parametrize("slug", SLUGS)
def test_blocks_stay_and_come_in_whole_clusters(slug):
    config = parse_slug(slug)
    for problem in (Problem(1, 1, 999, "bf16"), Problem(129, 4097, 777, "f16_f32", batch=7)):
        assert not WGMMA.violations(config, problem, HOPPER)
        every = WGMMA.units(config, problem)
        area = every * config.MB * config.NB
        assert area >= config.SPLIT * problem.m * problem.n * problem.batch
        for sms in (1, 2, 7, 132):
            x, y, z = WGMMA.grid(config, problem, sms)
            blocks = cluster_blocks(config)
            assert (y, z) == (1, 1) and x % blocks == 0
            assert x == every or x == max(sms - sms % blocks, blocks) < every


@pytest.mark.parametrize(
    "extents, tile, parts",
    [
        ((1, 1, 1), (16, 64), 1),
        ((512, 512, 512), (64, 64), 1),
        ((1024, 1024, 1024), (128, 64), 1),
        ((1408, 1408, 1408), (128, 128), 1),
        ((2048, 2048, 2048), (128, 256), 1),
        ((3200, 3200, 3200), (128, 128), 1),
        ((8192, 8192, 8192), (128, 256), 1),
        ((8192, 8192, 64), (128, 128), 1),
        ((8192, 8192, 32), (128, 128), 1),
        ((8192, 16, 8192), (64, 16), 1),
        ((32, 8192, 8192), (32, 64), 1),
        ((64, 64, 262144), (64, 64), 132),
    ],
)
def test_the_default_fills_the_gpu_where_it_can(extents, tile, parts):
    for dtype in DTYPES:
        problem = Problem(*extents, dtype)
        config = WGMMA.default_for(problem, HOPPER)
        assert (config.MB, config.NB, config.SPLIT) == (*tile, parts)
        assert config.KB <= problem.k or problem.k < 32
        assert not WGMMA.violations(config, problem, HOPPER)
        little = replace(HOPPER, shared_per_block=99 * 1024)
        assert not WGMMA.violations(WGMMA.default_for(problem, little), problem, little)


@pytest.mark.parametrize(
    "n, dtype, groups", [(1987, "bf16", 3), (1984, "f16", 2), (1987, "f16_f32", 2)]
)
def test_a_shallow_c_that_threads_store_has_more_of_them(n, dtype, groups):
    problem = Problem(6920, n, 180, dtype)
    config = WGMMA.default_for(problem, HOPPER)
    assert WGMMA.threads(config) == 128 * (groups + 1)
    assert not WGMMA.violations(config, problem, HOPPER)


@pytest.mark.parametrize("slug", SLUGS)
def test_registers_of_all_warpgroups_are_those_of_the_launch(slug):
    """More would make `setmaxnreg` wait for ever. By the kernel's own numbers: 40, 32 or 64 for
    the warpgroup that fetches, 232, 160 or 104 for those that multiply.
    """
    config = parse_slug(slug)
    count = max(config.MB // config.TA, 1) * max(config.NB // config.TB, 1)
    few, many = {1: (40, 232), 2: (40, 232), 3: (32, 160), 4: (64, 104)}[count]
    launched = min(232, 65536 // (128 * (count + 1)) // 8 * 8)
    assert few + count * many <= (count + 1) * launched
    assert config.TA * config.TB // 128 + 40 <= many


@pytest.mark.parametrize("trans_b", [False, True])
@pytest.mark.parametrize("cluster", [1, 2, 4])
@pytest.mark.parametrize("nb", range(80, 257, 16))
def test_boxes_fill_the_tile_of_b(nb, cluster, trans_b):
    """In whole groups of the eight rows in which shared memory is swizzled; where B is stored along
    n, as many boxes as blocks at least, but for three boxes and four blocks.
    """
    given = dict(MB=64, NB=nb, KB=64, TA=64, TB=nb, STAGES=2, CLUSTER=cluster, GROUP=1)
    config = WGMMA.config(given | dict(SPLIT=1, SLOTS=1))
    box = WGMMA.tma.boxes(config, Problem(8, 8, 8, "bf16", False, trans_b))[1]
    columns = nb if trans_b else -(-nb // 64) * 64
    count, rest = divmod(columns * 64, box.columns * box.rows)
    assert rest == 0 and box.rows % 8 == 0
    assert count <= cluster if trans_b else count >= min(cluster, 3)


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("kb", [32, 64, 128])
@pytest.mark.parametrize("blocks", [1, 2, 4])
@pytest.mark.parametrize("mb", [64, 128, 256])
def test_blocks_side_by_side_load_equal_parts_of_a(mb, blocks, kb, trans_a):
    """One box each, or several, in whole groups of eight rows."""
    given = dict(MB=mb, NB=64, KB=kb, TA=64, TB=64, STAGES=2, CLUSTER=2, CLUSTER_N=blocks)
    config = WGMMA.config(given | dict(GROUP=1, SPLIT=1, SLOTS=1))
    box = WGMMA.tma.boxes(config, Problem(8, 8, 8, "bf16", trans_a, False))[0]
    count, rest = divmod(mb * min(kb, 64), box.columns * box.rows)
    assert rest == 0 and box.rows % 8 == 0 and count % blocks == 0


@pytest.mark.parametrize("value", [True, 64.0, "64", [64], None, 0, 65537])
def test_a_value_that_is_no_integer_in_bounds_is_refused(value):
    """Also if a value that is equal was asked for before."""
    WGMMA.config(dict(WGMMA.default) | {"MB": 64})
    WGMMA.config(dict(WGMMA.default) | {"MB": 1})
    with pytest.raises(ValueError, match="MB=.* is not an integer from 1 to 65536"):
        WGMMA.config(dict(WGMMA.default) | {"MB": value})


def test_a_cluster_whose_blocks_share_b_alone_is_spelled_as_before():
    before = "wgmma-MB64-NB128-KB64-TA64-TB64-STAGES8-CLUSTER2-GROUP8-SPLIT1-SLOTS1"
    config = parse_slug(before)
    assert config.slug == before and config.CLUSTER_N == 1
    both = WGMMA.config(config.as_dict() | {"CLUSTER_N": 2})
    assert both.slug == before.replace("CLUSTER2", "CLUSTER2-CLUSTER_N2")
    assert parse_slug(both.slug) == both != config


def test_one_text_for_all_sizes():
    config = parse_slug(SLUGS[0])
    small, large = (Problem(*mnk, "bf16") for mnk in ((1, 1, 0), (4096, 4096, 4096)))
    assert render(config, small, 2).key == render(config, large, 16).key
    assert render(config, small).key != render(config, replace(small, dtype="f16")).key


def summed_like_a_tensor_core(a, b):
    """Products of 16 at a time added to the sum, everything cut off below the largest's 25th bit
    (the least exact of the models in the source that `reference` names).
    """
    sums = np.zeros((len(a), b.shape[1]))
    for k in range(0, a.shape[1], 16):
        terms = a[:, k : k + 16, None] * b[None, k : k + 16, :]
        terms = np.concatenate([sums[:, None], terms], axis=1)
        _, exponent = np.frexp(np.abs(terms).max(axis=1, keepdims=True))
        unit = np.ldexp(1.0, exponent - 25)
        sums = (np.trunc(terms / unit) * unit).sum(axis=1)
        _, exponent = np.frexp(sums)
        unit = np.ldexp(1.0, exponent - 24)
        sums = np.trunc(sums / unit) * unit
    return sums


@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("k", [0, 1, 16, 37, 1024])
def test_bound_holds_for_sums_that_are_cut_off(dtype, k, positive):
    problem = Problem(9, 7, k, dtype)
    a, b, c = (x[0] for x in normal(problem, k))
    if positive:
        a, b = abs(a), abs(b)
    sums = summed_like_a_tensor_core(a.astype(float), b.astype(float))
    result = (np.float32(0.75) * sums.astype(np.float32) - c.astype(np.float32)).astype(a.dtype)
    expected = reference.product(problem, a, b, c, 0.75, -1.0)
    bound = reference.error_bound(problem, a, b, c, 0.75, -1.0)
    off = np.abs(result.astype(float) - expected)
    assert (off <= bound).all()
    wrong = np.abs(expected) * 4 * problem.type.out_roundoff
    assert (wrong > bound).mean() > 0.8 or k > 37 or k == 0


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("k", [1, 100, 5000])
def test_exact_operands_have_exact_products(dtype, k):
    problem = Problem(64, 96, k, dtype)
    a, b = reference.exact_operands(problem, ((64, k), (k, 96)), np.random.default_rng(k))
    c = a.astype(float) @ b.astype(float)
    assert (c.astype(a.dtype).astype(float) == c).all() and np.abs(c).max() > 0


class Described:
    """An array as PyTorch describes one of bfloat16."""

    dtype = "torch.bfloat16"
    __cuda_array_interface__ = dict(
        shape=(2, 3), strides=None, typestr="<V2", version=2, data=(4096, False)
    )


def test_bfloat16_has_no_name_in_the_protocol():
    assert adopt(Described()).spec.dtype == ml_dtypes.bfloat16
    void = Described()
    void.dtype = "|V2"
    assert adopt(void).spec.dtype != ml_dtypes.bfloat16
    host = np.ones((2, 2), ml_dtypes.bfloat16)
    assert adopt(host).spec.dtype == ml_dtypes.bfloat16


@pytest.mark.simulator
@pytest.mark.parametrize("slug, dtype", SIMULATED)
def test_any_size_in_the_simulator(cuda, slug, dtype):
    check_many(cuda, slug, (dtype,), count=4, most=170, deepest=150)


HALVES_OF_C = ("syrk", "syrk_lower", "syrk_upper")


def check_half(backend, slug, dtype, op):
    """Products of two layouts whose C is symmetric: the half that is asked for; the other one, and
    what is beside C, is left alone.
    """
    config = parse_slug(slug)
    for trans, gap, n in ((False, 0, 168), (True, 3, 65)):
        problem = Problem(
            n, n, max(70, parts_of(config) * config.KB), dtype, trans, not trans, 1, op
        )
        a, _, c = normal(problem, n)
        placed = [Placed(backend, a, 0, 0, POISON), Placed(backend, c, 0, gap, NUMBER)]
        left, result = (one.matrix for one in placed)
        executable(backend, config, problem).bind(problem, 0.5, left, left, 0.75, result)()
        backend.synchronize()
        got, touched = placed[1].read()
        judged = (problem, a, a, c, 0.5, 0.75)
        expected, bound = reference.product(*judged), reference.error_bound(*judged)
        assert compare(mirrored(got, problem), expected, bound).right
        assert not touched and not other_half(got, c, problem)


@pytest.mark.simulator
@pytest.mark.parametrize("op", HALVES_OF_C)
@pytest.mark.parametrize("slug, dtype", SIMULATED)
def test_half_of_a_symmetric_c(cuda, slug, dtype, op):
    check_half(cuda, slug, dtype, op)


@pytest.mark.gpu
@pytest.mark.parametrize("op", HALVES_OF_C)
@pytest.mark.parametrize("slug", SLUGS)
def test_half_of_a_symmetric_c_on_a_gpu(slug, op):
    backend = open_device("cuda")
    if WGMMA in kernels_for(Problem(8, 8, 8, "bf16", op=op), backend.device):
        for dtype in DTYPES:
            check_half(backend, slug, dtype, op)
    else:
        assert backend.device.capability != HOPPER.capability


@pytest.mark.gpu
@pytest.mark.parametrize("slug", SLUGS)
def test_any_size_layout_stride_and_stack(slug):
    check_on_gpu(slug, DTYPES)


@pytest.mark.parametrize("mnkb", [(192, 192, 192, 150), (200, 256, 256, 80), (100, 256, 200, 80)])
def test_batches_of_a_few_tiles_each_have_128_x_64(mnkb):
    m, n, k, batch = mnkb
    config = WGMMA.default_for(Problem(m, n, k, "bf16", batch=batch), HOPPER)
    assert (config.MB, config.NB, config.KB, config.STAGES) == (128, 64, 64, 8)
    assert not WGMMA.violations(config, Problem(m, n, k, "bf16", batch=batch), HOPPER)


@pytest.mark.parametrize(
    "mnk, form, offered",
    [
        ((1549, 1011, 7071), "MB128-NB128-KB64-TA64-TB64-STAGES6-CLUSTER2-CLUSTER_N2-", True),
        ((1549, 1011, 8300), "MB128-NB128-KB64-TA64-TB64-STAGES6-CLUSTER2-CLUSTER_N2-", False),
        ((468, 279, 992), "MB64-NB32-KB128-TA64-TB64-STAGES8-CLUSTER1-CLUSTER_N4-", True),
        ((1468, 1279, 992), "MB64-NB32-KB128-TA64-TB64-STAGES8-CLUSTER1-CLUSTER_N4-", False),
    ],
)
def test_clusters_whose_blocks_share_a_are_offered_for_few_tiles(mnk, form, offered):
    options = [config.slug for _, config in WGMMA.options(Problem(*mnk, "bf16"), H200)]
    assert any(slug.startswith(f"wgmma-{form}") for slug in options) == offered


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_rows_within_sectors_take_longer_to_read(trans_a, trans_b):
    """Of three sizes the second has rows at odd multiples of 16 bytes, the third is repacked."""

    def read(size):
        p = Problem(size, size, size, "bf16", trans_a, trans_b)
        return wgmma.read_from_l2(size, size, p) / size**2

    plain, within, repacked = map(read, (4080, 4088, 4089))
    assert within > plain == repacked
    least = [
        min(
            time
            for kernel in (WGMMA, find_kernel("ping_pong"))
            for time, _ in kernel.options(p, H200)
        )
        for p in (Problem(n, n, n, "bf16", trans_a, trans_b) for n in (4080, 4088))
    ]
    assert least[1] > 1.03 * least[0]


def test_one_operand_within_sectors_counts_by_itself():
    p = Problem(512, 512, 1000, "bf16")  # rows of A have 2000 bytes, those of B 1024
    assert wgmma.within_sectors(p) == (True, False)
    assert wgmma.read_from_l2(0, 8, p) == 8 * 2000 < wgmma.read_from_l2(8, 0, p)
