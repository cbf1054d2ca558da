"""C <- alpha A B + beta C with all three matrices on one process, the root.

C is distributed block-cyclically. A is distributed by groups of rows and B by groups of columns:
each process gets whole the rows of A and the columns of B that its part of C needs, multiplies them
without any further message, and the root gathers C. This takes more memory and more words than
`pymm.distributed.matmul`, and is the baseline for it: the scheme of many a first MPI program.

The root may send the rows of A to each of the Q processes of a row of the grid, and the columns of
B to each of the P of a column; or send them once, to be broadcast along the row or the column.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pymm.distributed.communicator import (
    MPI,
    ProcessGrid,
    check_same,
    everywhere,
    process_grid,
    raise_together,
)
from pymm.distributed.datatypes import checked_dtype
from pymm.distributed.engine import Traffic, check_scalars
from pymm.distributed.layout import BlockCyclic
from pymm.distributed.local_products import local_products, scale
from pymm.distributed.matrix import check_root, gather, scatter

#: Elements of one broadcast at most: counts of MPI have 32 bits before version 4.
_COUNT = 1 << 30


def matmul_from_root(
    a: Any = None,
    b: Any = None,
    c: Any = None,
    *,
    grid: tuple[int, int],
    block: tuple[int, int],
    alpha: float = 1,
    beta: float | None = None,
    send: str = "copies",
    product: str = "auto",
    threads: int | None = None,
    communicator: Any = None,
    root: int = 0,
    traffic: Traffic | None = None,
) -> np.ndarray | None:
    """`alpha a b + beta c` of NumPy matrices of the rank `root`, as a new matrix there, None on the
    other ranks, whose a, b and c are not looked at. Collective.

    grid, block: of the distribution of c, (P, Q) and (mb, nb).
    send: "copies", the root sends every process what it needs: Q copies of a and P of b; "once", it
        sends each element once, and rows and columns of the grid broadcast what they get.
    product, threads, traffic: as for `pymm.distributed.matmul`. Of a root's c, nothing is read for
        beta = 0.

    Raises on every rank the same `ValueError` or `TypeError`.
    """
    communicator = MPI.COMM_WORLD if communicator is None else communicator
    options = {"grid": grid, "block": block, "alpha": alpha, "beta": beta, "root": root}
    check_same(communicator, **options, send=send, product=product, threads=threads)
    with everywhere(communicator):
        check_scalars(alpha, beta)
        if send not in ("copies", "once"):
            raise ValueError(f"send is 'copies' or 'once'; got {send!r}")
        check_root(communicator, root)
    operands, (m, k, n), dtype = _shared_operands(communicator, a, b, c, beta, root)
    with everywhere(communicator):
        layout = BlockCyclic((m, n), block, grid)
    places = process_grid(communicator, (*layout.grid, 1))
    products = local_products(communicator, product, threads)
    traffic = Traffic() if traffic is None else traffic
    local = np.empty(layout.local_shape(places.p, places.q), dtype)
    if beta:
        scatter(places.everyone, layout, operands[2], local, root)
    if k and alpha:
        rows = BlockCyclic((m, k), (layout.block[0], k), (layout.grid[0], 1))
        columns = BlockCyclic((k, n), (k, layout.block[1]), (1, layout.grid[1]))
        left, right = np.empty((local.shape[0], k), dtype), np.empty((k, local.shape[1]), dtype)
        traffic.a += _hand_out(places, rows, operands[0], left, 0, root, send, traffic)
        traffic.b += _hand_out(places, columns, operands[1], right, 1, root, send, traffic)
        with products.limits():
            running = products.start(local, alpha, beta or 0)
            running.add(left, right, lambda: None)
            running.finish()
    else:
        scale(local, beta or 0)
    whole = np.empty((m, n), dtype) if communicator.rank == root else None
    gather(places.everyone, layout, local, whole, root)
    if whole is not None:
        traffic.c += whole.size - local.size
    return whole


def _shared_operands(communicator, a, b, c, beta, root) -> tuple:
    """The root's operands in C order, None on the other ranks; on all of them (m, k, n) and the
    dtype.
    """
    operands, wrong, described = (None, None, None), None, None
    if communicator.rank == root:
        try:
            *operands, described = _check_operands(a, b, c, beta)
        except (TypeError, ValueError) as error:
            wrong = error
    raise_together(communicator, wrong)
    return operands, *communicator.bcast(described, root)


def _check_operands(a, b, c, beta) -> tuple:
    """The root's operands in C order, and what the other ranks have to know of them."""
    given = {"a": np.ascontiguousarray(a), "b": np.ascontiguousarray(b)}
    if beta and c is None:
        raise ValueError(f"beta = {beta} is the factor of c, and there is no c")
    if beta:
        given["c"] = np.ascontiguousarray(c)
    for name, x in given.items():
        if np.ndim(x) != 2:
            raise ValueError(f"{name} is a matrix; got shape {np.shape(x)}")
        if checked_dtype(x.dtype) != given["a"].dtype:
            raise TypeError(f"a and {name} are of {given['a'].dtype} and {x.dtype}; convert one")
    (m, k), (inner, n) = given["a"].shape, given["b"].shape
    if inner != k or (beta and given["c"].shape != (m, n)):
        shapes = ", ".join(f"{name} {x.shape}" for name, x in given.items())
        raise ValueError(f"shapes do not match: {shapes}")
    return given["a"], given["b"], given.get("c"), ((m, k, n), given["a"].dtype)


def _hand_out(
    grid: ProcessGrid,
    layout: BlockCyclic,
    array: np.ndarray | None,
    local: np.ndarray,
    axis: int,
    root: int,
    send: str,
    traffic: Traffic,
) -> int:
    """Give each process its group of rows (columns, for axis 1) of the root's array, `local`.
    Returns the elements that this process received from another one.
    """
    rank, columns = grid.everyone.rank, grid.shape[1]
    places = [divmod(other, columns) for other in range(grid.everyone.size)]
    groups = [place[axis] for place in places]
    along = grid.column if axis else grid.row
    # Whoever broadcasts in the root's own group is another process, so that the root sends once.
    root_group, root_place = groups[root], places[root][1 - axis]
    first = [(root_place + 1) % along.size if group == root_group else 0 for group in groups]
    sends = [place[1 - axis] == leader for place, leader in zip(places, first, strict=True)]
    parts = (
        groups
        if send == "copies"
        else [g if s else None for g, s in zip(groups, sends, strict=True)]
    )
    traffic.handed_out += scatter(grid.everyone, layout, array, local, root, parts=parts)
    if send == "copies":
        return 0 if rank == root else local.size
    flat = local.reshape(-1)
    for at in range(0, flat.size, _COUNT):
        along.Bcast(flat[at : at + _COUNT], first[rank])
    return 0 if rank == root and sends[rank] else local.size
