"""The kernel of grouped products, and its launches: each has the sizes and addresses of its
products in its arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from pymm.backends.base import Matrix
from pymm.backends.cuda.executable import CudaExecutable
from pymm.backends.cuda.launch import Bound, BoundLaunch, Launch
from pymm.core.problem import Problem
from pymm.kernels.grouped import ENTRY, MOST, tiles_of

#: A product and its matrices A, B and C.
Member = tuple[Problem, Matrix, Matrix, Matrix]

#: Fields of the kernel's argument that have a value for each product.
_EACH = (
    *((name, np.uint64) for name in "abc"),
    *((name, np.int64) for name in ("lda", "ldb", "ldc")),
    *((name, np.uint32) for name in ("m", "n", "k", "first")),
    ("layout", np.uint8),
)


def _argument(real: np.dtype) -> np.dtype:
    """The kernel's argument, the struct `Group` of cuda_src/grouped.cu, for a type of elements."""
    each = [(name, kind, MOST) for name, kind in _EACH]
    return np.dtype([*each, ("count", np.uint32), ("alpha", real)], align=True)


class GroupedExecutable(CudaExecutable):
    """The kernel, loaded once into each context that it is called in."""

    def _entries(self) -> tuple[str, ...]:
        return (ENTRY,)

    def bind(
        self,
        problem: Problem,
        alpha: float,
        a: Matrix,
        b: Matrix,
        beta: float,
        c: Matrix,
        stream: Any = None,
    ) -> Callable[[], None]:
        if beta != 0:
            raise ValueError(f"beta={beta}: grouped products are not added to C")
        return self.bind_group([(problem, a, b, c)], alpha, stream)

    def bind_group(
        self, members: Sequence[Member], alpha: float, stream: Any = None
    ) -> BoundLaunch:
        """A call that launches C = alpha op(A) op(B) for all products, none of them empty, each of
        one matrix; in one launch if they are at most `MOST`. It keeps the owners of the matrices
        alive.
        """
        launches = [self._launch(part, alpha) for part in self._parts(members)]
        flops = sum(problem.flops for problem, *_ in members)
        what = f"launching {self.config.slug} on {len(members)} products"
        place = self._place(self._contexts.current(), stream, flops, what)
        place = place._replace(early=False)  # the kernel does not wait for the launch before

        def bind() -> BoundLaunch:
            return self.bind_group(members, alpha, stream)

        owners = self, stream, [matrix.owner for _, *three in members for matrix in three]
        return BoundLaunch(place, launches, owners, Bound((), bind, False))

    def _parts(self, members: Sequence[Member]) -> Iterator[Sequence[Member]]:
        """The products of each launch: so many, and so many blocks, as it may have."""
        part, blocks = [], 0
        for member in members:
            tiles = tiles_of(self.config, member[0])
            if part and (len(part) == MOST or blocks + tiles > self._most_blocks[0]):
                yield part
                part, blocks = [], 0
            part.append(member)
            blocks += tiles
        yield part

    def _launch(self, members: Sequence[Member], alpha: float) -> Launch:
        tiles = [tiles_of(self.config, problem) for problem, *_ in members]
        group = np.zeros((), _argument(members[0][0].numpy_dtype))
        group["count"], group["alpha"] = len(members), alpha
        columns = zip(*(_row(*member) for member in members), strict=True)
        names = [name for name, _ in _EACH if name != "first"]
        for name, values in zip(names, columns, strict=True):
            group[name][: len(members)] = values
        group["first"][: len(members)] = [*accumulate(tiles, initial=0)][:-1]
        block = self.config.kernel.block(self.config)
        return Launch(ENTRY, (sum(tiles), 1, 1), block, 0, group.tobytes())


def _row(problem: Problem, a: Matrix, b: Matrix, c: Matrix) -> tuple[int, ...]:
    """The values of one product, in the order of `_EACH` without `first`."""
    layout = problem.trans_a + 2 * problem.trans_b
    extents = problem.m, problem.n, problem.k
    return a.address, b.address, c.address, a.ld, b.ld, c.ld, *extents, layout
