"""Counts of operations, loads and stores, by kernels compiled with counting elements: in the
simulator only.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pycuda.driver as drv

from pymm.backends.base import Matrix
from pymm.backends.cuda.backend import CudaBackend
from pymm.backends.cuda.context import working
from pymm.core.problem import Problem
from pymm.kernels.source import Source

#: What pymm/simulator/device/counted.hpp counts, in this order.
COUNTS = ("operations", "global_loads", "global_stores", "shared_loads", "shared_stores")


def count(
    backend: CudaBackend, source: Source, problem: Problem, matrices: Sequence[tuple[Matrix, int]]
) -> dict[str, int]:
    """The counts, by name, of one launch with alpha = 1 and beta = 0. `matrices` are A, B and C,
    each with its size in bytes.
    """
    executable = backend.load(source)
    a, b, c = (matrix for matrix, _ in matrices)
    call = executable.bind(problem, 1.0, a, b, 0.0, c)
    places = [(matrix.address, matrix.address + nbytes) for matrix, nbytes in matrices]
    context = backend._contexts.current()
    module = executable._in(context).owner.module
    counts = np.zeros(len(COUNTS), np.uint64)
    with working(context, f"counting {source.config.slug}"):
        drv.memcpy_htod(backend._driver.variable(module, "pymm_matrices"), np.array(places, "u8"))
        drv.memcpy_htod(backend._driver.variable(module, "pymm_counts"), counts)
    call()
    backend.synchronize()
    with working(context, f"counting {source.config.slug}"):
        drv.memcpy_dtoh(counts, backend._driver.variable(module, "pymm_counts"))
    return dict(zip(COUNTS, map(int, counts), strict=True))
