"""ScaLAPACK and pymm on the same blocks, under mpirun: `mpirun -n 6 python scalapack_cases.py 3x2`.
Prints the number of products compared.
"""

from __future__ import annotations

import sys

import numpy as np

from pymm.distributed import DistMatrix, matmul, product_layouts
from pymm.distributed.communicator import MPI
from pymm.distributed.scalapack import Scalapack

#: m, n, k and blocks: ones, primes, around whole blocks, processes without anything, k = 0.
SHAPES = (
    (17, 23, 11, 4),
    (1, 1, 1, 3),
    (64, 3, 100, 16),
    (31, 33, 32, 16),
    (5, 7, 0, 2),
    (130, 131, 97, (5, 7, 9)),
)


def compare(library: Scalapack, shape: tuple, dtype: type, alpha: float, beta: float) -> None:
    """C <- alpha A B + beta C by both, against NumPy in float64. beta = 0: C is NaN before."""
    m, n, k, block = shape
    layouts = product_layouts(m, n, k, block, library.grid)
    random = np.random.default_rng(7)
    wholes = [random.standard_normal(layout.shape).astype(dtype) for layout in layouts]
    a, b, _ = (DistMatrix.from_root(x, w) for x, w in zip(layouts, wholes, strict=True))
    results = [DistMatrix.from_root(layouts[2], wholes[2]) for _ in range(2)]
    if beta == 0:
        for result in results:
            result.local.fill(np.nan)
    address = results[0].local.ctypes.data
    found = library.matmul(a, b, results[0], alpha, beta)
    assert found is results[0] and found.local.ctypes.data == address
    matmul(a, b, results[1], alpha=alpha, beta=beta)
    wide = [whole.astype(np.float64) for whole in wholes]
    expected = alpha * wide[0] @ wide[1] + beta * wide[2]
    bound = abs(alpha) * np.abs(wide[0]) @ np.abs(wide[1]) + abs(beta) * np.abs(wide[2])
    bound = (k + 8) * np.finfo(dtype).eps / 2 * bound
    for result in results:
        p, q, _ = result.coordinates
        own = np.ix_(layouts[2].rows(p), layouts[2].columns(q))
        assert (np.abs(result.local - expected[own]) <= bound[own]).all(), (shape, dtype)


def refuse(library: Scalapack) -> None:
    """What PxGEMM would end the job for is an error before it is called."""
    layouts = product_layouts(8, 8, 8, 2, library.grid)
    a, b, c = (DistMatrix.zeros(layout) for layout in layouts)
    single = DistMatrix.zeros(layouts[2], np.float32)
    deep = DistMatrix.zeros(product_layouts(8, 8, 9, 2, library.grid)[1])
    other = DistMatrix.zeros(product_layouts(8, 8, 8, 2, library.grid[::-1])[2])
    for arguments, error, words in (
        ((a, b, single), TypeError, "all float32 or all float64"),
        ((a, deep, c), ValueError, "do not match"),
        ((a, b, other), ValueError, "C is on a grid of"),
    ):
        if arguments[2] is other and library.grid == library.grid[::-1]:
            continue
        try:
            library.matmul(*arguments)
        except error as found:
            assert words in str(found), found
        else:
            raise AssertionError(f"{words}: not refused")


def main() -> None:
    """All shapes, types and scalars."""
    grid = tuple(map(int, sys.argv[1].split("x")))
    count = 0
    with Scalapack(MPI.COMM_WORLD, grid) as library:
        for shape in SHAPES:
            for dtype in (np.float32, np.float64):
                for alpha, beta in ((1, 0), (1.5, -0.5), (1, 1)):
                    compare(library, shape, dtype, alpha, beta)
                    count += 1
        refuse(library)
    if MPI.COMM_WORLD.rank == 0:
        print(count)


if __name__ == "__main__":
    main()
