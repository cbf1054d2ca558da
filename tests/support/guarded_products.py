"""Products of one kernel, checked element by element against NumPy.

Each matrix is laid out with NaN between its rows and after each matrix of a batch, and its memory
ends with its last element: a kernel that uses what is not its own shows it in the result or faults.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from pymm.backends.base import Backend, Executable, Matrix
from pymm.core.problem import Problem
from pymm.core.reference import error_bound, product
from pymm.kernels import parse_slug
from pymm.kernels.source import render


@dataclass
class Stored:
    """A batch of matrices in one flat array that is NaN wherever it holds no element."""

    flat: np.ndarray
    shape: tuple[int, int, int]
    ld: int
    stride: int

    @classmethod
    def of(cls, values: np.ndarray, pad: int) -> Stored:
        """`values` is (batch, rows, columns); a batch of one has stride 0, as if it were shared."""
        batch, rows, columns = values.shape
        ld, stride = columns + pad, (rows * (columns + pad) + pad) * (batch > 1)
        size = (batch - 1) * stride + (rows - 1) * ld + columns if values.size else 1
        stored = cls(np.full(size, np.nan, values.dtype), values.shape, ld, stride)
        stored.elements[...] = values
        return stored

    @property
    def elements(self) -> np.ndarray:
        """The matrices as a view, (batch, rows, columns)."""
        steps = (self.stride, self.ld, 1)
        if 0 in self.shape:
            return np.empty(self.shape, self.flat.dtype)
        return as_strided(self.flat, self.shape, [s * self.flat.itemsize for s in steps])


class Runner:
    """Kernels of one device, compiled once per variant."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.compiled: dict[tuple, Executable] = {}

    def executable(
        self, slug: str, dtype: str, layout: str, guarded: bool, alignment: int = 0
    ) -> Executable:
        """Compiled for rows anywhere, or at multiples of `alignment` bytes."""
        if (key := (slug, dtype, layout, guarded, alignment)) not in self.compiled:
            config = parse_slug(slug)
            # One column more than whole tiles have needs the guarded variant.
            m, n, k = config.MB, config.NB + guarded, config.as_dict().get("KB", 1)
            probe = Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T")
            assert config.kernel.guarded(config, probe) == guarded
            alignment = alignment or probe.numpy_dtype.itemsize
            self.compiled[key] = self.backend.load(render(config, probe, alignment))
        return self.compiled[key]

    def __call__(self, executable, problem, a, b, c, alpha=1.0, beta=0.0) -> None:
        """Run on three `Stored` stacks; c gets what the device wrote."""
        device = [self.backend.allocate(x.flat.nbytes) for x in (a, b, c)]
        for buffer, x in zip(device, (a, b, c), strict=True):
            buffer.write(x.flat)
        matrices = [
            Matrix(buffer.address, x.ld, x.stride, buffer)
            for buffer, x in zip(device, (a, b, c), strict=True)
        ]
        executable.bind(problem, alpha, matrices[0], matrices[1], beta, matrices[2])()
        self.backend.synchronize()
        device[2].read(c.flat)


def make(problem: Problem, seed: int = 0, stacks=(None, None)) -> list[np.ndarray]:
    """Stored A, B and C of a problem, normal distribution; `stacks` overrides A's and B's batch."""
    rng = np.random.default_rng(seed)
    m, n, k, batch = problem.m, problem.n, problem.k, problem.batch
    a = (k, m) if problem.trans_a else (m, k)
    b = (n, k) if problem.trans_b else (k, n)
    shapes = [(stacks[0] or batch, *a), (stacks[1] or batch, *b), (batch, m, n)]
    return [rng.standard_normal(shape).astype(problem.numpy_dtype) for shape in shapes]


def check(run, executable, problem, operands, alpha=1.0, beta=0.0, pad=3) -> np.ndarray:
    """Run and compare with the reference, element by element; returns what the device wrote."""
    a, b, c = operands
    where = Stored.of(np.full_like(c, np.nan) if beta == 0 else c, pad)
    run(executable, problem, Stored.of(a, pad), Stored.of(b, pad), where, alpha, beta)
    got = where.elements.copy()
    what = f"{executable.config.slug} {problem.slug} alpha={alpha} beta={beta} pad={pad}"
    want = product(problem, a, b, c, alpha, beta)
    bound = error_bound(problem, a, b, c, alpha, beta)
    wrong = np.argwhere(~(np.abs(got - want) <= bound))
    assert not len(wrong), f"{what}: {len(wrong)} wrong, first {wrong[0]}: {got[tuple(wrong[0])]}"
    where.elements[...] = np.nan
    assert np.isnan(where.flat).all(), f"{what}: wrote between the rows of C"
    return got


def hurting(tile: dict[str, int]) -> list[tuple[int, int, int]]:
    """Shapes around a tile: (m, n, k)."""
    mb, nb, kb = tile["MB"], tile["NB"], tile.get("KB", 4)
    return [
        (1, 1, 1),
        (1, 1, 0),
        (7, 13, 31),
        (mb - 1, nb - 1, kb - 1),
        (mb + 1, nb + 1, kb + 1),
        (mb, nb, kb + 1),
        (mb + 1, nb, kb),
        (mb, nb - 1, kb),
        (mb + 1, nb + 1, 0),
        (97, 1, 5),
        (1, 101, 5),
        (2, 3, 641),
        (641, 2, 3),
        (3, 641, 2),
    ]


def whole(tile: dict[str, int]) -> list[tuple[int, int, int]]:
    """Shapes that are multiples of a tile, k = 0 among them: (m, n, k)."""
    mb, nb, kb = tile["MB"], tile["NB"], tile.get("KB", 4)
    return [(mb, nb, kb), (2 * mb, nb, 3 * kb), (mb, 3 * nb, 2 * kb), (2 * mb, 2 * nb, 0)]
