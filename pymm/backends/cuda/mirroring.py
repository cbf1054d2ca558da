"""The launch behind a product whose lower half alone counts: the other half from it."""

from __future__ import annotations

from pycuda._pvt_struct import pack

from pymm.backends.base import Matrix
from pymm.backends.cuda.launches import Launch
from pymm.problem import Problem

#: Rows and columns of the squares that common/mirror.cuh moves, and the threads of a block.
SIDE, THREADS = 64, 256


def mirrors(problem: Problem, beta: float) -> bool:
    """Whether a product ends with that launch; the kernel's text then has `mirror`. One that is
    computed whole does if it adds to C: not all elements are rounded alike then, and of the given C
    one half is enough.
    """
    return problem.fill == "full" and (problem.halved or beta != 0)


def mirror_launch(problem: Problem, c: Matrix) -> Launch:
    """A block for each square on and below the diagonal, two rows of them in one of the grid."""
    squares = -(-problem.n // SIDE)
    grid = squares | 1, (squares + 1) // 2, problem.batch
    arguments = pack("Pqqi", c.address, c.ld, c.batch_stride, problem.n)
    return Launch("mirror", grid, (THREADS, 1, 1), 0, arguments, ((0, 2),))
