"""The kernel of grouped products (`cuda_src/grouped.cu`): tiles of products of any size in one
launch. Its block is that of kernel 04, whose parameters and rules it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from pymm.core.device import Device
from pymm.core.dtypes import DTYPES
from pymm.core.integers import ceil_div
from pymm.core.problem import Problem
from pymm.kernels.kernel import Config
from pymm.kernels.simt import TRANSPOSED_A
from pymm.kernels.source import C_TYPES, Source, kernel_text

#: The file, its entry, and the products of one launch: with more the arguments would take more than
#: the 4 KiB that every GPU allows.
FILE, ENTRY, MOST = "grouped.cu", "grouped", 60

#: Types that it computes in, by their short names.
TYPES = TRANSPOSED_A.dtypes

#: The tiles to choose from: MB and NB, TA and TB, all with KB = 16.
TILES = ((16, 16, 2, 2), (32, 32, 4, 4), (64, 64, 4, 4), (128, 64, 8, 4), (128, 128, 8, 8))

#: Depth of a step along k.
DEPTH = 16

#: A block alone on a multiprocessor reaches about this part of the rate that several reach
#: together: nothing hides its loads.
ALONE = 0.25


@lru_cache(maxsize=1)
def configs() -> tuple[Config, ...]:
    """The configurations to choose from, small tiles first."""
    return tuple(
        TRANSPOSED_A.config(dict(MB=mb, NB=nb, KB=DEPTH, TA=ta, TB=tb)) for mb, nb, ta, tb in TILES
    )


def choose_config(problems: Sequence[Problem], device: Device) -> Config:
    """The configuration with the least estimated time for these products in one launch: all tiles
    shared by all multiprocessors, or the deepest tile alone, whichever takes longer. A step takes
    as long as its multiply-adds, padding included, and for each the reads from shared memory
    (1 / TA + 1 / TB of them), which take four times as long.
    """
    m, n, k = (np.array([getattr(p, axis) for p in problems], np.float64) for axis in "mnk")

    def cost(config: Config) -> float:
        steps = np.ceil(k / DEPTH) + 1  # the last one is for storing C
        step = config.MB * config.NB * (1 + 4 / config.TA + 4 / config.TB)
        tiles = np.ceil(m / config.MB) * np.ceil(n / config.NB)
        return max((tiles * steps).sum() * step / device.sms, steps.max() * step / ALONE)

    return min(configs(), key=cost)


def tiles_of(config: Config, problem: Problem) -> int:
    """Blocks of a product."""
    return ceil_div(problem.m, config.MB) * ceil_div(problem.n, config.NB)


@lru_cache(maxsize=64)
def render_grouped(config: Config, dtype: str) -> Source:
    """The source for products of a type in `TYPES`."""
    element = DTYPES[dtype].element
    lines = [*config.parameters, ("REAL", C_TYPES[element]), ("GUARDED", 1), ("MOST", MOST)]
    head = "".join(f"#define {name} {value}\n" for name, value in lines)
    return Source(head + kernel_text("cuda", FILE), ENTRY, config, element.itemsize)
