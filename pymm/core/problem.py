"""What is to be computed: one frozen `Problem`, the key of everything that is tuned, stored and
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from pymm.core.dtypes import DTYPES, DType
from pymm.core.forking import cached_property

#: Operations, and the part of C that each writes. "gemm" is alpha op(A) op(B) + beta C. The others
#: have a symmetric C, alpha op(A) op(A)^T + beta C: B is A, transposed. They write all of C, the
#: elements with row >= column, or those with column >= row. Of the given C they read what they
#: compute: "syrk" computes the lower half and mirrors it, or all of C (`Problem.in_full`).
FILLS = {"gemm": "all", "syrk": "full", "syrk_lower": "lower", "syrk_upper": "upper"}

#: Dimensions travel to the kernels as 32-bit integers; offsets are 64-bit.
MAX_EXTENT = 2**31 - 1


def common_alignment(*numbers: int) -> int:
    """The largest power of two up to 16 that divides all of `numbers` (bytes, addresses)."""
    bits = 16
    for number in numbers:
        bits |= number
    return bits & -bits


@dataclass(frozen=True, slots=False)
class Problem:
    """`C <- alpha op(A) op(B) + beta C` for row-major matrices.

    `op(A)` is m x k and `op(B)` is k x n. `trans_a` says that A is *stored* as k x m (so `op(A) =
    A^T`), `trans_b` that B is stored as n x k. A matrix in column-major order is the transpose of
    one in row-major order, so four layouts cover every order. `batch` counts the matrices of a
    batch. alpha, beta and leading dimensions are arguments of a call, not of the problem.

    `op` is one of `FILLS`. Those of a symmetric C have m = n and B = A, in layout "NT" (A A^T) or
    "TN" (A^T A).
    """

    m: int
    n: int
    k: int
    dtype: str = "f32"
    trans_a: bool = False
    trans_b: bool = False
    batch: int = 1
    op: str = "gemm"

    def __post_init__(self) -> None:
        for axis in ("m", "n", "k", "batch"):
            extent = getattr(self, axis)
            if type(extent) is not int or not 0 <= extent <= MAX_EXTENT:
                raise ValueError(f"{axis}={extent!r} is not an integer between 0 and {MAX_EXTENT}")
        if self.op not in FILLS:
            raise NotImplementedError(f"operation {self.op!r}: pymm has {', '.join(FILLS)}")
        if self.dtype not in DTYPES:
            raise NotImplementedError(f"dtype {self.dtype!r}: pymm has {', '.join(DTYPES)}")
        if self.symmetric and self.m != self.n:
            raise ValueError(f"{self.op}: C is square; got {self.m} x {self.n}")

    @property
    def type(self) -> DType:
        """Everything about the type of the product."""
        return DTYPES[self.dtype]

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        """The NumPy dtype of A and B, and of C unless `out_dtype` differs."""
        return self.type.element

    @cached_property
    def out_dtype(self) -> np.dtype:
        """The NumPy dtype of C."""
        return self.type.out

    @cached_property
    def scalar_dtype(self) -> np.dtype:
        """The NumPy dtype of alpha, beta and of every sum."""
        return self.type.scalar

    @property
    def precision(self) -> str:
        """How the operands are changed before they are multiplied: one of `PRECISIONS`."""
        return self.type.precision

    @property
    def layout(self) -> str:
        """ "NN", "NT", "TN" or "TT": how A and B are stored, in BLAS's letters."""
        return ("T" if self.trans_a else "N") + ("T" if self.trans_b else "N")

    @property
    def fill(self) -> str:
        """What of C is written: one of the values of `FILLS`."""
        return FILLS[self.op]

    @property
    def symmetric(self) -> bool:
        """True if C is symmetric, made of A alone."""
        return self.op != "gemm"

    @property
    def in_full(self) -> bool:
        """True if a GPU computes both halves of a symmetric C, because half the tiles would take as
        long, or the mirror longer.
        """
        small = self.n <= self.type.syrk_full_rows
        return self.fill == "full" and (small or self.k <= self.type.syrk_full_depth)

    @cached_property
    def halved(self) -> bool:
        """True if a GPU computes one half of C, and mirrors it if `fill` is "full"."""
        return self.symmetric and not self.in_full

    @property
    def elements(self) -> int:
        """Elements of one C that must be computed: m n, or those of one half with its diagonal."""
        return self.m * (self.m + 1) // 2 if self.symmetric else self.m * self.n

    @property
    def flops(self) -> int:
        """2 k floating-point operations for each element that must be computed, m n of them or
        m (m + 1) / 2, times the matrices of the batch.
        """
        return 2 * self.elements * self.k * self.batch

    @property
    def bytes_read(self) -> int:
        """Bytes of A and B."""
        read = self.m * self.k + (0 if self.symmetric else self.k * self.n)
        return read * self.numpy_dtype.itemsize * self.batch

    @cached_property
    def bytes(self) -> int:
        """Fewest bytes of memory traffic with beta = 0: A and B read once, C written once."""
        written = self.m * self.n if self.fill in ("all", "full") else self.elements
        return self.bytes_read + written * self.out_dtype.itemsize * self.batch

    @property
    def empty(self) -> bool:
        """True if C has no element, so that there is nothing to write."""
        return self.m == 0 or self.n == 0 or self.batch == 0

    @cached_property
    def alignment(self) -> int:
        """Bytes, at most 16, that every row of A, B and C starts at a multiple of if the matrices
        are dense and start at a multiple of 16.
        """
        size, out = self.numpy_dtype.itemsize, self.out_dtype.itemsize
        a, b = self.m if self.trans_a else self.k, self.k if self.trans_b else self.n
        return common_alignment(a * size, b * size, self.n * out)

    @property
    def slug(self) -> str:
        """The one spelling in file names, CSV fields and test ids: `f32-NN-1024x1024x64`, a batch
        ends in `-b8`, other operations begin with their name: `syrk-f32-TN-1024x1024x64`.
        """
        batch = f"-b{self.batch}" if self.batch != 1 else ""
        op = "" if self.op == "gemm" else f"{self.op}-"
        return f"{op}{self.dtype}-{self.layout}-{self.m}x{self.n}x{self.k}{batch}"

    def same_kind(self, other: Problem) -> bool:
        """True if the two differ in their extents alone."""
        return replace(other, m=self.m, n=self.n, k=self.k, batch=self.batch) == self


def stored_shapes(problem: Problem) -> tuple[tuple[int, int, int], ...]:
    """Batch, rows and columns of A, B and C in memory."""
    m, n, k = problem.m, problem.n, problem.k
    a = (k, m) if problem.trans_a else (m, k)
    b = (n, k) if problem.trans_b else (k, n)
    return tuple((problem.batch, *shape) for shape in (a, b, (m, n)))
