"""Clusters of blocks in the simulator: kernels of clusters.cu that are right, or have a fault or a
race.
"""

# ruff: noqa: F811  (fixtures are imported by their names)

import re
from functools import partial

import numpy as np
import pytest
import simulator_fixtures
from simulator_fixtures import build, drv, said_by  # noqa: F401

from pymm.backends.cuda.driver import Driver, DriverError

pytestmark = pytest.mark.simulator

ROWS = np.arange(128).reshape(4, 32)
#: Results of the right ones, a row for each block, 64 numbers each.
RIGHT = {
    # Blocks 0 and 1 get rows 0 and 1, then 2 and 3; blocks 2 and 3 the other way round.
    "exchanges": [
        (ROWS[pair : pair + 2] * 100 + ROWS[2 - pair : 4 - pair]).ravel() for pair in (0, 0, 2, 2)
    ],
    "positions": [
        np.where(np.isin(np.arange(64), (7, 9)), 0, 100 * rank + 10 * z + 5)
        for rank, z in ((0, 0), (1, 0), (2, 1), (3, 1))
    ],
    "eight": np.ones((4, 64)),
    "releasing_barrier": [np.tile(ROWS[0], 2)] * 4,
    "writes_behind_a_copy": [5000 + np.tile(row, 2) for row in ROWS],
}

OTHER = r"of block [01] of its cluster, which "
#: kernel: what is said of it.
FAULTS = {
    "arrives_at_ended": "arrives at a barrier of block 1 of its cluster, which has ended",
    "copies_to_ended": "copies to a barrier of block 1 of its cluster, which has ended",
    "arrives_too_early": f"arrives at a barrier {OTHER}has not made it yet",
    "copies_too_early": f"copies to a barrier {OTHER}has not made it yet",
    "no_such_block": "arrives at a barrier of block 2 of its cluster, which has 2 blocks",
    "mask_of_no_block": "the copy goes to one block or more",
    "mask_too_large": "copies to a barrier of block 2 of its cluster, which has 2 blocks",
    "waits_only": "waits at the cluster's barrier in line {}, where it has not arrived",
    "arrives_twice": "arrives at the cluster's barrier in line {} for a second time",
    "one_stays_away": r"the cluster is stuck.*\n"
    r" +127 threads at the cluster's barrier, line \d+: \(0,0,0\) .*\n"
    r" +1 thread at __syncthreads, line {}: \(3,0,0\) of block \([13],0,0\)",
}
#: kernel: what races with what, in a line each, with races watched.
RACES = {
    "sends_too_early": (
        r"a copy by TMA writes memory of block \([0-3],0,0\), which "
        r"(a copy by TMA|thread .*) (reads|writes)"
    ),
    "may_have_ended": (
        r"thread \(0,0,0\) of block \([02],0,0\) updates atomically memory, and nothing orders "
        "that before the end of the block: it may have ended"
    ),
    "copy_may_come_late": r"a copy by TMA \w+( atomically)? memory, and .*: it may have ended",
    "no_fence": r"updates atomically memory.*, which mbarrier_init of warp 0.* writes",
    "relaxed_barrier": (
        r"a copy by TMA writes memory of block \([0-3],0,0\), which thread \(\d+,0,0\) of block "
        r"\([0-3],0,0\) writes"
    ),
}

line_of = partial(simulator_fixtures.line_of, "clusters.cu")
run = partial(said_by, "simulator_clusters.py")


@pytest.fixture(scope="module", params=["forward", "backward", "random:1"])
def outcomes(request, tmp_path_factory) -> dict:
    """The outcome of every kernel that is right or has a fault."""
    folder = tmp_path_factory.mktemp("clusters")
    return run(folder, *RIGHT, *FAULTS, PYMM_SIMULATOR_ORDER=request.param)


@pytest.fixture(scope="module", params=["forward", "backward"])
def watched(request, tmp_path_factory) -> dict:
    """The outcome of every kernel that is right or has a race, with races watched."""
    folder = tmp_path_factory.mktemp("clusters")
    order = dict(PYMM_SIMULATOR_ORDER=request.param)
    return run(folder, *RIGHT, *RACES, **order, PYMM_SIMULATOR_RACES="1")


def check_right(found: dict, kernel: str) -> None:
    assert found["stderr"] == "" and found["said"]["said"] == "ok"
    assert (np.reshape(found["said"]["out"], (4, 64)) == RIGHT[kernel]).all()


@pytest.mark.parametrize("kernel", RIGHT)
def test_blocks_of_a_cluster_exchange_data(outcomes, kernel):
    check_right(outcomes[kernel], kernel)


@pytest.mark.parametrize("kernel", RIGHT)
def test_no_race_where_accesses_are_ordered(watched, kernel):
    check_right(watched[kernel], kernel)


def check_said(found: dict, kernel: str, words: str) -> None:
    """Printed to stderr once, with the line of the kernel that has the fault, if it is marked."""
    line = line_of(kernel)
    if "{}" in words:
        words = words.replace("{}", str(line))
    elif line:
        words = rf"clusters.cu:{line}: (race: )?{words}"
    assert re.search(words, found["stderr"]), found["stderr"]
    assert f"pymm simulator: kernel {kernel}, block (" in found["stderr"]
    assert found["stderr"].count("pymm simulator: ") == 1
    assert found["said"]["said"] != "ok"


@pytest.mark.parametrize("kernel", FAULTS)
def test_a_fault_is_named(outcomes, kernel):
    check_said(outcomes[kernel], kernel, FAULTS[kernel])


@pytest.mark.parametrize("kernel", RACES)
def test_a_race_is_named(watched, kernel):
    check_said(watched[kernel], kernel, RACES[kernel])


TEXT = """
extern "C" __global__ void __cluster_dims__(2, 2) square(float* a) { a[blockIdx.x] = 1; }
extern "C" __global__ void __cluster_dims__(9) nine(float* a) {}
extern "C" __global__ void any(float* a) { if (threadIdx.x == 0) a[blockIdx.x] = 1; }
"""
MISCONFIGURED = "cluster misconfiguration"


@pytest.fixture(scope="module")
def kernels(drv):
    from pycuda.compiler import SourceModule

    return SourceModule(TEXT, no_extern_c=True, arch="sm_90")


@pytest.mark.parametrize(
    "kernel, grid, threads, words",
    [
        ("square", (4, 2), 32, ""),
        ("square", (3, 2), 32, MISCONFIGURED),
        ("square", (4, 3), 32, MISCONFIGURED),
        ("nine", (9, 1), 32, MISCONFIGURED),  # more than the 8 that every device has
        ("square", (4, 2), 33, "not supported"),
    ],
)
def test_only_whole_clusters_are_launched(drv, kernels, capfd, kernel, grid, threads, words):
    out = drv.mem_alloc(64)
    function, sizes = kernels.get_function(kernel), dict(block=(threads, 1, 1), grid=grid)
    if not words:
        function(out, **sizes)
        drv.Context.synchronize()
        return
    with pytest.raises(drv.Error, match=words):
        function(out, **sizes)
    if threads % 32:
        assert "kernel square: blocks of 33 threads cannot be simulated in clusters" in (
            capfd.readouterr().err
        )


def test_clusters_that_fit_at_a_time_are_counted(drv):
    """Of the launch or of the kernel: the device has 4 multiprocessors, each of which has room for
    five blocks of 40000 bytes.
    """
    from pycuda.compiler import compile

    driver = Driver()
    module = driver.load(compile(TEXT, no_extern_c=True, arch="sm_90"))

    def count(kernel: str, blocks: int) -> int:
        sizes = (8, 8, 1, 64, 1, 1, 40000)
        return driver.most_clusters(driver.function(module, kernel), sizes, blocks)

    assert [count("any", blocks) for blocks in (1, 2, 4, 8)] == [20, 10, 5, 2]
    for kernel, blocks in (("any", 9), ("square", 2)):  # that one's own are 2 x 2
        with pytest.raises(DriverError, match=MISCONFIGURED):
            count(kernel, blocks)
