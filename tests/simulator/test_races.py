"""The simulator names each race in shared memory that is planted, and none where there is none."""

import re
import subprocess
import sys
from functools import partial

import pytest
import simulator_fixtures
from simulator_fixtures import ENVIRONMENT, SUPPORT, said_by

pytestmark = pytest.mark.simulator

THREAD = r"thread \(\d+,\d+,0\)"

#: kernel: what it does in one marked line, to what, what another thread does in which line, kind.
FORWARD = {
    "no_first_barrier": ("fills", "writes", r"tiles[1]", "reads", "uses", "write after read"),
    "no_second_barrier": ("uses", "reads", r"tiles[0]", "writes", "fills", "read after write"),
    "tile_too_narrow": (
        *("tile_too_narrow", "writes", "tile[15]"),
        *("writes", "tile_too_narrow", "write after write"),
    ),
    "buffer_too_early": (
        *("refills", "writes", "tile[0][128]", "reads", "still_reads", "write after read"),
    ),
    "reduction_without_barrier": (
        *("reduction", "writes", "sums[1]", "reads", "reduction", "write after read"),
    ),
    "warp_exchange_without_sync": (
        *("gives", "writes", "row[1]", "reads", "takes", "write after read"),
    ),
    "warp_exchange_by_shuffle": (
        *("takes_by_shuffle", "reads", "row[30]"),
        *("writes", "gives_by_shuffle", "read after write"),
    ),
    "warp_sync_across_warps": (
        *("gives_across", "writes", "row[63]", "reads", "takes_across", "write after read"),
    ),
    "transposed_in_place": (
        *("reads_turned", "reads", "tile[0][1]"),
        *("writes", "writes_in_place", "read after write"),
    ),
    "everybody_writes": (
        *("everybody_writes", "writes", "one", "writes", "everybody_writes", "write after write"),
    ),
    "atomics_read_too_early": (
        *("adds", "updates atomically", "count", "reads", "reads_the_count", "write after read"),
    ),
    "other_named_barrier": (
        *("is_handed", "reads", "row[63]", "writes", "hands_over", "read after write"),
    ),
    "mbarrier_made_too_late": (
        *("mbarrier_used", "updates atomically", "byte 2 of the dynamic shared memory (64 bytes)"),
        *("writes", "mbarrier_made_too_late", "write after write"),
    ),
}
#: Results of those without a race, from the 1024 numbers i % 31.
GIVEN = [float(i % 31) for i in range(1024)]
RIGHT = {
    "tiles": [
        sum(
            GIVEN[phase * 256 + y * 16 + p] * GIVEN[512 + phase * 256 + p * 16 + x]
            for phase in range(2)
            for p in range(16)
        )
        for y in range(16)
        for x in range(16)
    ],
    "tile_wide_enough": GIVEN[:256],
    "two_buffers": [sum(GIVEN[step * 256 + 255 - i] for step in range(3)) for i in range(256)],
    "reduction": [sum(GIVEN[:256])],
    "warp_exchange": [GIVEN[i ^ 1] for i in range(256)],
    "in_place": [2 * x for x in GIVEN[:256]],
    "atomics": [256.0],
    "bytes": [float(255 - i) for i in range(256)],
    "named_barrier": [*[0.0] * 64, *GIVEN[:64]],
    "by_mbarrier": [GIVEN[0]] * 256,
}

line_of = partial(simulator_fixtures.line_of, "races.cu")
run = partial(said_by, "simulator_races.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict:
    """The outcome of every kernel, threads running forward."""
    folder = tmp_path_factory.mktemp("races")
    return run(folder, *FORWARD, *RIGHT, "banks", PYMM_SIMULATOR_ORDER="forward")


@pytest.fixture(scope="module")
def backward(tmp_path_factory) -> dict:
    """The same, backward."""
    folder = tmp_path_factory.mktemp("races")
    return run(folder, *FORWARD, *RIGHT, PYMM_SIMULATOR_ORDER="backward")


@pytest.mark.parametrize("kernel", FORWARD)
def test_a_race_is_named(outcomes, kernel):
    """Kernel, both threads, both lines, element and kind; once, and the launch fails."""
    line, does, what, other, where, kind = FORWARD[kernel]
    wanted = (
        rf"pymm simulator: kernel {kernel}, block \(0,0,0\), {THREAD}: races.cu:{line_of(line)}: "
        rf"race: {does} {re.escape(what)}, which {THREAD} {other} in races.cu:{line_of(where)}, "
        rf"and nothing orders the two \({kind}\)"
    )
    found = outcomes[kernel]
    assert re.search(wanted, found["stderr"]), found["stderr"]
    assert found["stderr"].count("pymm simulator: ") == 1
    assert "unspecified launch failure" in found["said"]["said"]


@pytest.mark.parametrize("kernel", FORWARD)
def test_a_race_is_found_whichever_thread_comes_first(backward, kernel):
    if kernel == "mbarrier_made_too_late":  # it is used before anything is there
        assert "which was never written" in backward[kernel]["stderr"]
    else:
        assert re.search(r"races.cu:\d+: race: ", backward[kernel]["stderr"])


@pytest.mark.parametrize("kernel", RIGHT)
def test_no_race_where_accesses_are_ordered(outcomes, backward, kernel):
    for found in (outcomes[kernel], backward[kernel]):
        assert found["stderr"] == "" and found["said"]["said"] == "ok"
        out, wanted = found["said"]["out"], RIGHT[kernel]
        assert out[: len(wanted)] == wanted


def test_rounds_of_the_banks_are_counted(outcomes):
    """By hand: 8 warps, in each of which x is 0 to 15 in two rows."""
    rounds = {row[0]: row[1:] for row in outcomes["banks"]["said"]["rounds"]}
    wanted = {
        "bank_row": ["write", 8, 8, 8],  # 32 neighbours
        "bank_column": ["read", 8, 8, 8 * 8],  # two columns, 8 elements of each in one of 4 banks
        "bank_padded": ["read", 8, 8, 2 * 8],  # rows of 17: two columns meet in one bank
        "bank_all_one": ["read", 8, 8, 8],  # one word for all
        "bank_wide": ["read", 8, 4 * 8, 4 * 8],  # 16 bytes for each thread, neighbours
        "bank_wide_apart": ["read", 8, 4 * 8, 8 * 4 * 8],  # the same, 128 bytes apart
        "bank_few": ["read", 1, 1, 1],  # one thread alone
    }
    assert {line: rounds[f"races.cu:{line_of(line)}"] for line in wanted} == wanted


IN_PLACE, OTHERS = "tma_f32_in_place", "ROWS8-EARLY1-STRIDE1-TA8-TB8"
ONE_PART, TWO_PARTS = "GROUP8-SPLIT1-STORE1", "GROUP8-SPLIT2-STORE1"
#: Blocks in clusters.
PAIR = "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2-CLUSTER2-GROUP1-SPLIT1-SLOTS1"
FOUR = "wgmma_tf32-MB32-NB64-KB32-TA32-TB64-SLICES1-STAGES2-SLOTS2-CLUSTER4-GROUP8-SPLIT1"
PING_PONG = "ping_pong-MB64-NB64-KB64-STAGES2-CLUSTER2-GROUP8-SLOTS2"
BOTH_SHARED = "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2"
#: Small configurations of every kernel: type, layout.
SHIPPED = [
    ("naive-MB8-NB4", "f32", "NN"),
    ("coalesced-MB4-NB8", "f64", "NT"),
    ("shared_tile-MB8-NB8-KB8", "f32", "NN"),
    ("shared_tile-MB16-NB16-KB16", "f64", "TT"),
    ("register_tile-MB16-NB12-KB5-TA2-TB3", "f32", "NN"),
    ("register_tile-MB48-NB48-KB16-TA3-TB3", "f64", "TN"),
    ("transposed_a-MB24-NB32-KB6-TA3-TB8", "f32", "NN"),
    (
        "pipelined-MB32-NB32-KB8-TA4-TB4-LANES4-STAGES3-BLOCKS1-GROUP2-SPLIT3",
        *("f32", "NN"),
    ),
    ("tensor_f64-MB32-NB64-KB32-TA32-TB32-TK32-KI16-STAGES2-BLOCKS1-GROUP8-SPLIT3", "f64", "NT"),
    ("wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2-CLUSTER1-GROUP1-SPLIT1-SLOTS1", "bf16", "TT"),
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1"
        "-STORE2",
        *("f32", "NN"),
    ),
    (
        "tma_f32-MB64-NB64-KB32-ROWS8-EARLY1-STRIDE2-TA8-TB8-SLICES2-STAGES2-BLOCKS2-GROUP8-SPLIT1"
        "-STORE3",
        *("f32", "NT"),
    ),
    (
        "tma_f64-MB64-NB64-KB16-TA32-TB32-TK16-KI8-DEPTHS1-STAGES3-BLOCKS1-GROUP8-SPLIT1-STORE2",
        *("f64", "NN"),
    ),
    (
        "wgmma_tf32-MB32-NB64-KB64-TA32-TB64-SLICES1-STAGES4-SLOTS2-CLUSTER1-GROUP8-SPLIT1-STORE2",
        *("tf32", "TT"),
    ),
    (
        "tma_f64-MB64-NB64-KB32-TA32-TB32-TK16-KI4-DEPTHS2-STAGES5-BLOCKS1-GROUP4-SPLIT3",
        *("f64", "TN"),
    ),
    (
        "wgmma_tf32-MB64-NB128-KB32-TA64-TB128-SLICES1-STAGES4-SLOTS3-CLUSTER1-GROUP8-SPLIT1",
        *("tf32", "TN"),
    ),
    ("sliced-MB32-NB16-KB8-TA4-TB4-SLICES2-STAGES3-BLOCKS1-GROUP2-SPLIT3", "f32", "NN"),
    ("tensor-MB32-NB64-KB32-TA16-TB32-STAGES3-BLOCKS1-GROUP2-SPLIT1", "bf16", "NN"),
    ("tensor-MB32-NB32-KB64-TA16-TB16-SLICES2-STAGES3-BLOCKS1-GROUP2-SPLIT2", "f16", "TN"),
    ("tensor-MB32-NB32-KB64-TA32-TB16-SLICES4-STAGES2-BLOCKS1-GROUP2-SPLIT1", "tf32", "TT"),
    ("wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES2-CLUSTER1-GROUP1-SPLIT1", "tf32x3", "NN"),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "f16x3", "TN"),
    ("wgmma_f16x3-MB64-NB64-KB64-TA64-TB64-STAGES4-GROUP1-SPLIT1-SLOTS2", "emulated", "TN"),
    ("wgmma_f16x3-MB64-NB128-KB64-TA64-TB64-STAGES5-GROUP1-SPLIT2-SLOTS1", "emulated", "NT"),
    ("symmetric_tile-MB48-NB48-KB16-TA3-TB3-PAD1", "f64", "TN"),
    (PAIR, "bf16", "NN"),
    ("wgmma-MB64-NB96-KB64-TA64-TB96-STAGES2-CLUSTER4-GROUP1-SPLIT1-SLOTS1", "f16", "NT"),
    (FOUR, "tf32", "NT"),
    ("wgmma_tf32x3-MB32-NB64-KB32-TA16-TB64-STAGES3-CLUSTER2-GROUP1-SPLIT1", "tf32x3", "TN"),
    (PING_PONG, "bf16", "NN"),
    ("ping_pong-MB64-NB64-KB64-STAGES3-CLUSTER1-GROUP8-SLOTS1", "f16", "NN"),
    (f"{IN_PLACE}-MB64-NB64-KB16-{OTHERS}-SLICES2-STAGES2-BLOCKS1-{ONE_PART}", "f32", "NT"),
    (f"{IN_PLACE}-MB64-NB64-KB32-{OTHERS}-SLICES4-STAGES3-BLOCKS1-{TWO_PARTS}", "f32", "TN"),
    (f"{IN_PLACE}-MB64-NB128-KB32-{OTHERS}-SLICES1-STAGES2-BLOCKS1-{ONE_PART}", "f32", "TT"),
    (f"{IN_PLACE}-MB64-NB256-KB16-{OTHERS}-SLICES1-STAGES2-BLOCKS1-{ONE_PART}", "f32", "NN"),
    ("wgmma_tf32_in_place-MB64-NB128-KB32-TA64-TB64-STAGES3-GROUP8-SPLIT1", "tf32", "NN"),
    ("wgmma_tf32_in_place-MB32-NB64-KB64-TA32-TB64-STAGES2-GROUP8-SPLIT2", "tf32", "TT"),
    ("wgmma_tf32_in_place-MB128-NB64-KB32-TA64-TB64-STAGES2-GROUP8-SPLIT1", "tf32", "NT"),
    ("wgmma_tf32_in_place-MB64-NB32-KB64-TA64-TB32-STAGES2-GROUP8-SPLIT1", "tf32", "TN"),
    (f"{BOTH_SHARED}-CLUSTER2-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1", "bf16", "NT"),
    (f"{BOTH_SHARED}-CLUSTER4-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1", "f16", "TN"),
]


def products(*arguments: str) -> subprocess.CompletedProcess[str]:
    """raced_products.py, run to its end."""
    return subprocess.run(
        [sys.executable, str(SUPPORT / "raced_products.py"), *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )


@pytest.mark.parametrize("slug, dtype, layout", SHIPPED, ids=[case[0] for case in SHIPPED])
def test_shipped_kernels_have_no_race(slug, dtype, layout):
    done = products(slug, dtype, layout)
    assert done.returncode == 0 and done.stdout == "all right\n", done.stderr[-3000:]


def test_every_cuda_kernel_is_among_them():
    from pymm.kernels import KERNELS

    assert {slug.partition("-")[0] for slug, *_ in SHIPPED} == {
        kernel.name for kernel in KERNELS if kernel.backend == "cuda"
    }


LATE = (
    r"race: thread .* of block .* updates atomically byte .* of the dynamic shared memory .*, and "
    r"nothing orders that before the end of the block: it may have ended"
)
FULL_WAIT = "mbarrier_wait(raw.full(base), raw.parity);\n            "
EMPTY_WAIT = "mbarrier_wait(ring.empty(), ring.parity);"
#: A wait taken out of a shipped kernel, and who is seen to race: whatever goes on beside threads
#: (copies by TMA, products) races like a thread.
SPOILED = {
    "07_wgmma: gives a stage back while a product reads it": (
        "wgmma-MB64-NB64-KB64-TA64-TB64-STAGES2-CLUSTER1-GROUP1-SPLIT1-SLOTS1",
        *("f16", "NN", "wgmma_wait_group<1>();", "wgmma_wait_group<2>();"),
        r"race: a copy by TMA writes byte .*, which a wgmma of warpgroup 0 reads in "
        r"07_wgmma.cu:\d+, and nothing orders the two \(write after read\)",
    ),
    "07_wgmma: does not wait for the row of the cluster": (
        f"{BOTH_SHARED}-CLUSTER2-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1",
        *("f16", "TN", "CONSUMERS * (CLUSTER + CLUSTER_N - 1)", "CONSUMERS * CLUSTER"),
        r"race: a copy by TMA writes byte .*, which a (copy by TMA writes|wgmma .* reads) in ",
    ),
    "07_wgmma: gives stages back that nobody fills again": (
        *(PAIR, "f16", "NN", "if (CLUSTER_BLOCKS > 1) left--;", ";", LATE),
    ),
    "07_wgmma: the same, where blocks share both operands": (
        f"{BOTH_SHARED}-CLUSTER2-CLUSTER_N2-GROUP1-SPLIT1-SLOTS1",
        *("f16", "NT", "if (CLUSTER_BLOCKS > 1) left--;", ";", LATE),
    ),
    "07_wgmma: blocks of a cluster do not wait for each other when they begin": (
        *(PAIR, "f16", "NN", "cluster_arrive(), cluster_wait();", "__syncthreads();"),
        r"copies to a barrier of block [01] of its cluster, which has not made it yet",
    ),
    "07_wgmma: does not fence what made its barriers": (
        *(PAIR, "f16", "NN", "        fence_mbarrier_init();\n", ""),
        r"race: updates atomically byte .*, which mbarrier_init of warp 0.* writes in 07_wgmma.cu",
    ),
    "10_wgmma_tf32: gives stages back that nobody fills again": (
        *(FOUR, "tf32", "NN", "(CLUSTER == 1 || left + SLICES > STAGES)", "true", LATE),
    ),
    "16_ping_pong: gives stages back that nobody fills again": (
        *(PING_PONG, "f16", "NN", "(CLUSTER == 1 || int(steps) <= reused)", "true", LATE),
    ),
    "08_tma_f32: does not wait for a full stage": (
        SHIPPED[10][0],
        *("f32", "NN", "mbarrier_wait(ring.full, ring.parity);", ";"),
        r"08_tma_f32.cu:\d+: race: (reads byte .*, which a copy by TMA writes|"
        r"a copy by TMA writes byte .*, which thread .* reads) in 08_tma_f32.cu:",
    ),
    "18_tma_f32_in_place: moves a raw tile that is still on its way": (
        f"{IN_PLACE}-MB64-NB64-KB16-{OTHERS}-SLICES2-STAGES2-BLOCKS1-{ONE_PART}",
        *("f32", "NT", "mbarrier_wait(raw.full(base), raw.parity);", ";"),
        r"race: (reads byte .*, which a copy by TMA writes|"
        r"a copy by TMA writes byte .*, which thread .* reads) in 18_tma_f32_in_place.cu:",
    ),
    "18_tma_f32_in_place: moves to a stage that is still read": (
        f"{IN_PLACE}-MB64-NB64-KB16-{OTHERS}-SLICES2-STAGES2-BLOCKS1-{ONE_PART}",
        *("f32", "TN", f"{FULL_WAIT}{EMPTY_WAIT}", FULL_WAIT),
        r"race: (writes byte .*, which thread .* reads|reads byte .*, which thread .* writes)",
    ),
    "09_tma_f64: does not wait for an empty stage": (
        "tma_f64-MB64-NB64-KB32-TA32-TB32-TK16-KI4-DEPTHS2-STAGES2-BLOCKS1-GROUP4-SPLIT1",
        *("f64", "NN", "mbarrier_wait(empty + 8 * slot, parity ^ 1);", ";"),
        r"race: a copy by TMA writes byte .*, which a copy by TMA writes in f64_swizzled",
    ),
    "02_shared_tile: without its second barrier": (
        SHIPPED[2][0],
        *("f32", "NN", "            __syncthreads();\n        }", "        }"),
        r"race: \w+ (As|Bs)\w*\[\d+\]\[\d+\], which thread ",
    ),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_kernel_races(case):
    *arguments, wanted = SPOILED[case]
    done = products(*arguments)
    assert done.returncode != 0 and re.search(wanted, done.stderr), done.stderr[-3000:]


def test_what_is_not_watched_has_no_counts():
    from pymm import simulator

    if not simulator.active():
        simulator.activate()
    assert not simulator.watches_races()
    with pytest.raises(simulator.CannotSimulate, match="PYMM_SIMULATOR_RACES"):
        simulator.bank_rounds()
    with pytest.raises(simulator.CannotSimulate, match="in a process of its own"):
        simulator.activate(races=True)


def test_a_script_is_watched_on_request(tmp_path):
    """`python -m pymm.simulator --races`, and what a wild pointer is said to be there."""
    script = tmp_path / "script.py"
    script.write_text("""
import pycuda.autoprimaryctx
import pycuda.driver as cuda
import pymm.simulator
from pycuda.compiler import SourceModule

assert pymm.simulator.watches_races()
text = '''
extern "C" __global__ void shift(float* a) {
    a[threadIdx.x] = a[threadIdx.x + 1];
}
'''
shift = SourceModule(text, no_extern_c=True).get_function("shift")
shift(cuda.to_device(bytearray(128)), block=(32, 1, 1))
""")
    done = subprocess.run(
        [sys.executable, "-m", "pymm.simulator", "--races", str(script)],
        env=ENVIRONMENT | {"PYCUDA_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert "kernel.cu:3: reads 4 bytes" in done.stderr, done.stderr
