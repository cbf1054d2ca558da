"""How many blocks are launched where clusters of them do not all fit."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest

from pymm.kernels import find_kernel

pytestmark = pytest.mark.simulator

BLOCK = (384, 1, 1)


@pytest.fixture
def fitting(cuda):
    """What `_fitting` makes of a grid on a device with room for 30 clusters of four, the questions
    that it asks the driver, and what it keeps between launches.
    """
    executable = import_module("pymm.backends.cuda.tma").MappedExecutable
    asked: list[tuple] = []
    held = SimpleNamespace(functions={"gemm": 7})

    def most_clusters(*question) -> int:
        asked.append(question)
        return 30

    def grid(cluster: int, blocks: int, across: int = 1) -> tuple[int, int, int]:
        kernel = find_kernel("wgmma_tf32" if across == 1 else "wgmma")
        both = {"CLUSTER": cluster} | ({"CLUSTER_N": across} if across > 1 else {})
        config = kernel.config(kernel.default | both)
        own = SimpleNamespace(config=config, _driver=SimpleNamespace(most_clusters=most_clusters))
        found, block = executable._fitting(own, held, 200_000, (blocks, 1, 1), BLOCK)
        assert block == BLOCK
        return found

    return grid, asked


@pytest.mark.parametrize("blocks, launched", [(4, 4), (120, 120), (124, 120), (132, 120)])
def test_clusters_of_four_are_those_that_fit(fitting, blocks, launched):
    grid, asked = fitting
    assert grid(4, blocks) == (launched, 1, 1)
    assert asked == [(7, (blocks, 1, 1, *BLOCK, 200_000), 4)]
    assert grid(4, 132) == (120, 1, 1) and len(asked) == 1


def test_blocks_along_both_axes_count(fitting):
    grid, asked = fitting
    assert grid(2, 132, across=2) == (120, 1, 1)
    assert asked == [(7, (132, 1, 1, *BLOCK, 200_000), 4)]


def test_pairs_always_fit(fitting):
    grid, asked = fitting
    assert [grid(cluster, 132) for cluster in (1, 2)] == [(132, 1, 1)] * 2
    assert grid(1, 132, across=2) == (132, 1, 1)
    assert not asked
