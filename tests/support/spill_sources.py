"""The sources whose registers are looked at: every default, tight configurations, and a sample of
the shipped ones.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from pymm.core.device import Device
from pymm.core.epilogue import ACTIVATIONS, Epilogue
from pymm.core.problem import Problem
from pymm.kernels import KERNELS, Config, grouped, parse_slug
from pymm.kernels.emulated import Gate, fallback_config
from pymm.kernels.source import Source, render
from pymm.selection import store

CUDA = [kernel for kernel in KERNELS if kernel.backend == "cuda"]
TT = (True, True)
#: The least that kernels of today's GPUs can count on.
ANY = Device("any", "cuda", shared_per_block=99 * 1024, shared_per_sm=100 * 1024)
#: An H200, for defaults that depend on the device.
H200 = Device(
    "h200", "cuda", capability=(9, 0), sms=132, shared_per_block=232448, shared_per_sm=233472
)
#: Configurations with hardly a register to spare, which the rules must let through only if
#: nothing spills: 1024 threads of 64 registers or 256 of 240 and more.
TIGHT = (
    ("register_tile-MB128-NB128-KB16-TA8-TB8", "f32"),
    ("register_tile-MB128-NB128-KB16-TA4-TB16", "f64"),
    ("transposed_a-MB64-NB64-KB16-TA2-TB2", "f32"),
    ("transposed_a-MB128-NB128-KB8-TA4-TB16", "f64"),
)
LARGE_16 = "wgmma-MB256-NB192-KB32-TA128-TB192"
MEDIUM_16, WIDE_16 = "wgmma-MB128-NB128-KB64-TA64", "wgmma-MB128-NB160-KB64-TA64-TB160"
LARGE_F64 = "MB128-NB128-KB16-TA64-TB32-TK16"
THREE_F64 = "MB64-NB64-KB16-TA32-TB32-TK16"
TWO_F64 = "MB32-NB128-KB16-TA32-TB32-TK16"
MEDIUM_F32 = "MB128-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA8-TB16-SLICES1"
LARGE_F32 = "MB160-NB256-KB32-ROWS8-EARLY1-STRIDE2-TA20-TB8-SLICES1"
SMALL_F32 = "MB64-NB128-KB32-ROWS8-EARLY1-STRIDE4-TA8-TB8-SLICES1"
SQUARE_F32 = "MB96-NB96-KB32-ROWS8-EARLY1-STRIDE1-TA12-TB12-SLICES4"
NARROW_F32 = "MB32-NB128-KB16-ROWS8-EARLY1-STRIDE1-TA4-TB8-SLICES1"
F16X3 = "STAGES5-GROUP8"
TF32_IN_PLACE = "wgmma_tf32_in_place"
TF32, SLICED_TF32 = "TB64-SLICES1-STAGES3-SLOTS3", "TB64-SLICES2-STAGES4-SLOTS2"
#: Every number of warpgroups of kernels 7, 10, 13, 14 and 17, one and two blocks in a cluster.
HOPPER = (
    ("wgmma-MB64-NB192-KB128-TA64-TB192-STAGES2-CLUSTER1-GROUP4-SPLIT1-SLOTS1", "bf16", *TT),
    ("wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER2-GROUP8-SPLIT1-SLOTS1", "f16", True, False),
    ("wgmma-MB256-NB128-KB64-TA128-TB128-STAGES3-CLUSTER2-GROUP1-SPLIT1-SLOTS2", "bf16", *TT),
    ("wgmma-MB64-NB192-KB64-TA64-TB64-STAGES3-CLUSTER1-GROUP1-SPLIT1-SLOTS3", "bf16_f32", *TT),
    ("wgmma-MB128-NB256-KB64-TA64-TB128-STAGES3-CLUSTER4-GROUP8-SPLIT1-SLOTS1", "f16", True, True),
    ("wgmma-MB128-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT33-SLOTS1", "f16_f32", *TT),
    ("wgmma-MB64-NB144-KB64-TA64-TB144-STAGES6-CLUSTER4-GROUP1-SPLIT1-SLOTS1", "bf16", *TT),
    ("wgmma-MB128-NB176-KB64-TA128-TB176-STAGES4-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "f16_f32", *TT),
    (f"{MEDIUM_16}-TB64-STAGES6-CLUSTER2-CLUSTER_N2-GROUP8-SPLIT1-SLOTS1", "bf16", False, False),
    (f"{MEDIUM_16}-TB128-STAGES6-CLUSTER4-CLUSTER_N2-GROUP8-SPLIT1-SLOTS1", "bf16_f32", *TT),
    (f"{WIDE_16}-STAGES4-CLUSTER4-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1", "f16", True, False),
    (f"{WIDE_16}-STAGES4-CLUSTER1-CLUSTER_N2-GROUP1-SPLIT4-SLOTS1", "bf16", False, True),
    (f"{LARGE_16}-STAGES6-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16", *TT),
    (f"{LARGE_16}-STAGES6-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "f16", True, False),
    ("wgmma-MB16-NB256-KB64-TA64-TB256-STAGES4-CLUSTER1-GROUP8-SPLIT1-SLOTS1", "bf16", *TT),
    ("wgmma-MB64-NB32-KB128-TA64-TB64-STAGES4-CLUSTER1-GROUP8-SPLIT2-SLOTS1", "f16", *TT),
    ("wgmma-MB128-NB128-KB32-TA64-TB128-STAGES8-CLUSTER1-GROUP1-SPLIT1-SLOTS2", "bf16_f32", *TT),
    (f"wgmma_tf32-MB256-NB128-KB32-TA256-{TF32}-CLUSTER2-GROUP8-SPLIT1", "tf32", False, False),
    (f"wgmma_tf32-MB160-NB192-KB32-TA160-{TF32}-CLUSTER1-GROUP8-SPLIT2", "tf32", False, False),
    (f"wgmma_tf32-MB128-NB128-KB32-TA64-{TF32}-CLUSTER2-GROUP8-SPLIT1", "tf32", False, False),
    (f"wgmma_tf32-MB224-NB64-KB32-TA224-{TF32}-CLUSTER1-GROUP8-SPLIT2", "tf32", False, True),
    (f"wgmma_tf32-MB64-NB128-KB32-TA32-{TF32}-CLUSTER1-GROUP8-SPLIT3", "tf32", False, True),
    (f"wgmma_tf32-MB64-NB64-KB64-TA64-{SLICED_TF32}-CLUSTER1-GROUP8-SPLIT3", "tf32", False, True),
    (f"wgmma_tf32-MB160-NB64-KB64-TA160-{SLICED_TF32}-CLUSTER1-GROUP8-SPLIT1", "tf32", *TT),
    ("wgmma_tf32x3-MB192-NB128-KB32-TA192-TB64-STAGES2-CLUSTER1-GROUP8-SPLIT1", "tf32x3", *TT),
    (f"wgmma_f16x3-MB128-NB192-KB64-TA64-TB192-{F16X3}-SPLIT1-SLOTS1", "f16x3", False, False),
    (f"wgmma_f16x3-MB128-NB128-KB64-TA64-TB128-{F16X3}-SPLIT4-SLOTS1", "f16x3", *TT),
    (f"wgmma_f16x3-MB128-NB192-KB64-TA64-TB192-{F16X3}-SPLIT1-SLOTS1", "emulated", False, False),
    (f"wgmma_f16x3-MB128-NB128-KB64-TA64-TB128-{F16X3}-SPLIT4-SLOTS1", "emulated", *TT),
    ("ping_pong-MB128-NB192-KB64-STAGES4-CLUSTER1-GROUP8-SLOTS2", "bf16", False, False),
    ("ping_pong-MB128-NB176-KB64-STAGES4-CLUSTER2-GROUP8-SLOTS1", "f16_f32", False, True),
    ("ping_pong-MB64-NB256-KB64-STAGES4-CLUSTER2-GROUP8-SLOTS1", "bf16_f32", *TT),
    (f"tma_f32_in_place-{MEDIUM_F32}-STAGES3-BLOCKS2-GROUP8-SPLIT1-STORE1", "f32", False, True),
    (f"tma_f32_in_place-{MEDIUM_F32}-STAGES3-BLOCKS2-GROUP8-SPLIT3-STORE1", "f32", True, False),
    (f"tma_f32_in_place-{LARGE_F32}-STAGES3-BLOCKS1-GROUP8-SPLIT1-STORE1", "f32", False, False),
    (f"tma_f32_in_place-{SMALL_F32}-STAGES2-BLOCKS2-GROUP8-SPLIT1-STORE2", "f32", *TT),
    (f"tma_f32_in_place-{SQUARE_F32}-STAGES3-BLOCKS1-GROUP8-SPLIT2-STORE3", "f32", True, False),
    (f"tma_f32_in_place-{NARROW_F32}-STAGES3-BLOCKS3-GROUP8-SPLIT1-STORE3", "f32", False, True),
    (f"tma_f32-{NARROW_F32}-STAGES3-BLOCKS3-GROUP8-SPLIT2-STORE1", "f32", True, False),
    (f"tma_f32-{LARGE_F32}-STAGES3-BLOCKS1-GROUP8-SPLIT1-STORE1", "f32", False, False),
    (f"tma_f32-{LARGE_F32}-STAGES3-BLOCKS1-GROUP8-SPLIT3-STORE1", "f32", True, False),
    (f"tma_f32-{SMALL_F32}-STAGES2-BLOCKS3-GROUP8-SPLIT1-STORE1", "f32", False, True),
    (f"tma_f64-{LARGE_F64}-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP16-SPLIT1", "f64", False, True),
    (f"tma_f64-{LARGE_F64}-KI8-DEPTHS2-STAGES6-BLOCKS1-GROUP16-SPLIT4", "f64", True, False),
    (f"tma_f64-{LARGE_F64}-KI16-DEPTHS1-STAGES6-BLOCKS1-GROUP16-SPLIT1", "f64", True, True),
    (f"tma_f64-{THREE_F64}-KI8-DEPTHS1-STAGES4-BLOCKS3-GROUP8-SPLIT1", "f64", True, False),
    (f"tma_f64-{TWO_F64}-KI8-DEPTHS1-STAGES4-BLOCKS2-GROUP8-SPLIT2", "f64", True, True),
)
#: Warps of kernel 12 with 64 x 64, which have hardly a register to spare, in tiles with edges.
EDGES = (
    ("tensor-MB128-NB128-KB32-TA64-TB64-STAGES4-BLOCKS1-GROUP8-SPLIT1", "bf16"),
    ("tensor-MB128-NB128-KB16-TA64-TB64-STAGES4-BLOCKS1-GROUP8-SPLIT1", "tf32"),
)
#: The same for kernel 17, A and then B in place.
IN_PLACE = (
    (f"{TF32_IN_PLACE}-MB256-NB128-KB32-TA128-TB128-STAGES3-GROUP8-SPLIT1", False, False),
    (f"{TF32_IN_PLACE}-MB128-NB256-KB32-TA64-TB256-STAGES3-GROUP8-SPLIT3", True, False),
    (f"{TF32_IN_PLACE}-MB192-NB160-KB32-TA64-TB160-STAGES3-GROUP8-SPLIT1", False, True),
    (f"{TF32_IN_PLACE}-MB256-NB64-KB64-TA64-TB64-STAGES2-GROUP8-SPLIT1", *TT),
)
TURNED_IN_PLACE = (
    (f"{TF32_IN_PLACE}-MB128-NB256-KB32-TA128-TB128-STAGES3-GROUP8-SPLIT3", False, False),
    (f"{TF32_IN_PLACE}-MB256-NB128-KB32-TA256-TB64-STAGES3-GROUP8-SPLIT1", True, False),
    (f"{TF32_IN_PLACE}-MB160-NB192-KB32-TA160-TB64-STAGES3-GROUP8-SPLIT1", False, True),
    (f"{TF32_IN_PLACE}-MB64-NB256-KB64-TA64-TB64-STAGES2-GROUP8-SPLIT1", *TT),
)
#: The same for products that are not deep: kernel 10 turns tiles of A round.
SHALLOW = (
    (f"wgmma_tf32-MB192-NB64-KB32-TA192-{TF32}-CLUSTER1-GROUP8-SPLIT1", "tf32", True, False),
    (f"wgmma_tf32-MB128-NB64-KB64-TA128-{SLICED_TF32}-CLUSTER2-GROUP8-SPLIT1", "tf32", True, False),
)


def shipped_sample() -> Iterator[tuple[Config, Problem]]:
    """Of the shipped records, in the order of their files, the first of each configuration, type,
    layout and part of C: in another layout the same tiles may spill.
    """
    seen = set()
    for path in store.files(None):
        for record in store.read(path).records:
            config, problem = record.config, record.problem
            key = (config.slug, problem.dtype, problem.layout, problem.fill)
            if config.backend == "cuda" and key not in seen:
                seen.add(key)
                yield config, problem


def finished() -> Iterator[tuple[Config, Problem, Epilogue]]:
    """Defaults on an H200 with an epilogue: of every kernel with a bias and GELU, which takes most
    registers, and of the highest for bfloat16 and float32 with every activation.
    """
    for kernel in CUDA:
        for dtype in kernel.dtypes:
            top = (kernel.name, dtype) in (("wgmma", "bf16"), ("tma_f32", "f32"))
            for problem in (Problem(4096, 4096, 4096, dtype), Problem(997, 997, 997, dtype, *TT)):
                config = kernel.default_for(problem, H200)
                for activation in ACTIVATIONS if top else ("gelu",):
                    yield config, problem, Epilogue(activation, problem.out_dtype)
    for slug, dtype in EDGES:
        problem = Problem(530, 5802, 38, dtype)
        yield parse_slug(slug), problem, Epilogue("gelu", problem.out_dtype)


def sources() -> dict[str, Source]:
    """What to compile, by name: every default, whole tiles by rows and partial ones by columns; a
    sample of the shipped records; the tight ones; those of grouped products; fallbacks; defaults
    with an epilogue. No source twice.
    """
    wanted = []
    for kernel in CUDA:
        for dtype in kernel.dtypes:
            for problem in (
                Problem(4096, 4096, 4096, dtype),
                Problem(997, 997, 997, dtype, *TT),
                Problem(2914, 2955, 83, dtype),  # little k, and C's rows start anywhere
            ):
                wanted.append((kernel.default_for(problem, ANY), problem))
    wanted += shipped_sample()
    wanted += [(parse_slug(slug), Problem(4096, 4096, 4096, dtype)) for slug, dtype in TIGHT]
    for (slug, dtype), trans in itertools.product(EDGES, ((False, False), TT)):
        wanted.append((parse_slug(slug), Problem(530, 5802, 38, dtype, *trans)))
    for slug, *trans in IN_PLACE:
        wanted.append((parse_slug(slug), Problem(4096, 1024, 4096, "tf32", *trans)))
    for slug, *trans in TURNED_IN_PLACE:
        wanted.append((parse_slug(slug), Problem(1024, 4096, 4096, "tf32", *trans)))
    for slug, *kind in HOPPER:
        wanted.append((parse_slug(slug), Problem(4096, 4096, 4096, *kind)))
    for slug, *kind in SHALLOW:
        wanted.append((parse_slug(slug), Problem(4096, 4096, 32, *kind)))
    named = {}
    for config, problem in wanted:
        source = render(config, problem)
        named.setdefault(source.key, (f"{config.slug}-{problem.slug}", source))
    for config in grouped.configs():
        for dtype in grouped.TYPES:
            source = grouped.render_grouped(config, dtype)
            named[source.key] = f"grouped-{config.slug}-{dtype}", source
    for problem in (Problem(4096, 4096, 4096), Problem(997, 997, 65536, "f32", *TT)):
        config = fallback_config(problem, H200)  # "emulated" needs Hopper's tensor cores
        source = render(config, problem, gate=Gate.NOT_EXACT)
        named.setdefault(source.key, (f"{config.slug}-{problem.slug}-fallback", source))
    for config, problem, epilogue in finished():
        source, end = render(config, problem, None, epilogue), epilogue.activation
        named.setdefault(source.key, (f"{config.slug}-{problem.slug}-{end}", source))
    return dict(named.values())
