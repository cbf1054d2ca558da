"""What is to be computed: one frozen `Problem`, the key of everything that is tuned, stored and
chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from pymm.core.forking import cached_property

#: Types of elements by their short name.
ELEMENTS = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}

#: Types of products by their short name, the one spelling in YAML, CSV and on the command line, and
#: the type that A and B are stored in.
DTYPES = ELEMENTS | {
    "tf32": ELEMENTS["f32"],
    "tf32x3": ELEMENTS["f32"],
    "f16x3": ELEMENTS["f32"],
    "f16_f32": ELEMENTS["f16"],
    "bf16_f32": ELEMENTS["bf16"],
}

#: Types of C that are not the operands'.
RESULTS = {"f16_f32": ELEMENTS["f32"], "bf16_f32": ELEMENTS["f32"]}

#: Types of 16 bits that C is stored in: the products are added up in float32.
HALVES = ("f16", "bf16")

#: What becomes of float32 numbers before they are multiplied. "ieee": nothing, all arithmetic is
#: multiply-add in the type of the operands (of 16 bits: in float32, with one rounding to the type
#: at the end). "tf32": they are rounded to 11 significant bits. "tf32x3": each is the sum of two
#: such numbers, and three of the four products are added up. "f16x3": the same with two float16 and
#: a power of two that 64 numbers along k share.
PRECISIONS = ("ieee", "tf32", "tf32x3", "f16x3")

#: Operations: "gemm", alpha op(A) op(B) + beta C, and three of a symmetric C, whose B is A, stored
#: the other way round: alpha op(A) op(A)^T + beta C. What of C they write: all of it, the elements
#: with row >= column, those with column >= row. Of the given C they read what they compute: "syrk"
#: computes the lower half and mirrors it, or all of C where that is `whole`.
FILLS = {"gemm": "all", "syrk": "full", "syrk_lower": "lower", "syrk_upper": "upper"}

#: A symmetric C of at most so many rows is computed whole by a GPU, by type: few tiles take as long
#: as half of them (f32: 121 of 64 x 64, fewer than an H200 has multiprocessors), and a launch that
#: mirrors one half takes 3 to 5 us (bf16 at 1024: 12.9 us with it, 8.8 whole; at 2048 28.1, 27.6).
#: Not f64, whose kernels store both halves themselves; and only types whose two factors are treated
#: alike, so that both halves come out the same to the bit. In 16 bits also one of so little k that
#: the mirror would take longer than the other half (8192 rows, k = 64: 89 us with it, 39 whole).
WHOLE_UP_TO = {"f32": 704, "f16": 2048, "bf16": 2048, "f16_f32": 2048, "bf16_f32": 2048}
WHOLE_SHALLOW = {"f16": 384, "bf16": 384}

#: Dimensions travel to the kernels as 32-bit integers; offsets are 64-bit.
MAX_EXTENT = 2**31 - 1


def common_alignment(*numbers: int) -> int:
    """The largest power of two up to 16 that divides all of `numbers` (bytes, addresses)."""
    bits = 16
    for number in numbers:
        bits |= number
    return bits & -bits


def dtype_name(dtype: np.dtype | type | str) -> str:
    """The short name ("f32") of a NumPy dtype or of a short name itself. `TypeError` if pymm has
    no such type.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    wanted = np.dtype(dtype)
    for name, known in ELEMENTS.items():
        if known == wanted:
            return name
    raise TypeError(f"dtype {wanted} is none of {', '.join(d.name for d in ELEMENTS.values())}")


def product_type(
    dtype: np.dtype, precision: str = "ieee", out_dtype: np.dtype | None = None
) -> str:
    """The short name of products of operands of `dtype` with this precision and a C of `out_dtype`
    (None: of the operands' type). `ValueError` for a precision of another name,
    `NotImplementedError` that names a combination that is none.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is none of {', '.join(PRECISIONS)}")
    out_dtype = dtype if out_dtype is None else out_dtype
    name = dtype_name(dtype)
    if precision != "ieee":
        if name != "f32" or out_dtype != dtype:
            raise NotImplementedError(
                f"precision={precision!r} for {dtype} operands and a {out_dtype} result: it is a "
                "way to multiply float32 matrices; other types have precision='ieee'"
            )
        return precision
    name = name if out_dtype == dtype else f"{name}_f32"
    if name not in DTYPES or out_dtype not in (dtype, ELEMENTS["f32"]):
        raise NotImplementedError(
            f"a product of {dtype} operands as {out_dtype}: out_dtype= is the operands' type, or "
            f"float32 for float16 and bfloat16 operands"
        )
    return name


@dataclass(frozen=True, slots=False)
class Problem:
    """`C <- alpha op(A) op(B) + beta C` for matrices stored by rows.

    `op(A)` is m x k and `op(B)` is k x n. `trans_a` says that A is *stored* as k x m (so `op(A) =
    A^T`), `trans_b` that B is stored as n x k. A matrix stored by columns is the transpose of one
    stored by rows, so four kinds cover every order. `batch` counts the matrices of a stack.
    alpha, beta and leading dimensions are arguments of a call and do not belong to the problem.

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

    @cached_property
    def numpy_dtype(self) -> np.dtype:
        """The NumPy dtype of A and B, and of C unless `out_dtype` differs."""
        return DTYPES[self.dtype]

    @cached_property
    def out_dtype(self) -> np.dtype:
        """The NumPy dtype of C."""
        return RESULTS.get(self.dtype, self.numpy_dtype)

    @property
    def scalar_dtype(self) -> np.dtype:
        """The NumPy dtype of alpha, beta and of every sum."""
        return DTYPES["f64" if self.dtype == "f64" else "f32"]

    @property
    def precision(self) -> str:
        """What becomes of the operands' numbers before they are multiplied: one of `PRECISIONS`."""
        return self.dtype if self.dtype in PRECISIONS else "ieee"

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
    def whole(self) -> bool:
        """True if a GPU computes both halves of a symmetric C: half the tiles take as long, or
        the mirror longer.
        """
        small = self.n <= WHOLE_UP_TO.get(self.dtype, 0)
        return self.fill == "full" and (small or self.k <= WHOLE_SHALLOW.get(self.dtype, 0))

    @property
    def halved(self) -> bool:
        """True if a GPU computes one half of C, and mirrors it if `fill` is "full"."""
        return self.symmetric and not self.whole

    @property
    def elements(self) -> int:
        """Elements of one C that must be computed: m n, or those of one half with its diagonal."""
        return self.m * (self.m + 1) // 2 if self.symmetric else self.m * self.n

    @property
    def flops(self) -> int:
        """2 k floating-point operations for each element that must be computed, m n of them or
        m (m + 1) / 2, times the matrices of the stack.
        """
        return 2 * self.elements * self.k * self.batch

    @property
    def bytes(self) -> int:
        """Fewest bytes of memory traffic with beta = 0: A and B read once, C written once."""
        read = self.m * self.k + (0 if self.symmetric else self.k * self.n)
        written = self.m * self.n if self.fill in ("all", "full") else self.elements
        sizes = self.numpy_dtype.itemsize, self.out_dtype.itemsize
        return (read * sizes[0] + written * sizes[1]) * self.batch

    @property
    def empty(self) -> bool:
        """True if C has no element, so that there is nothing to write."""
        return self.m == 0 or self.n == 0 or self.batch == 0

    @property
    def alignment(self) -> int:
        """Bytes, at most 16, that every row of A, B and C starts at a multiple of if the matrices
        are dense and start at a multiple of 16.
        """
        size, out = self.numpy_dtype.itemsize, self.out_dtype.itemsize
        a, b = self.m if self.trans_a else self.k, self.k if self.trans_b else self.n
        return common_alignment(a * size, b * size, self.n * out)

    @property
    def slug(self) -> str:
        """The one spelling in file names, CSV fields and test ids: `f32-NN-1024x1024x64`, a stack
        ends in `-b8`, what is no gemm begins with its name: `syrk-f32-TN-1024x1024x64`.
        """
        stack = f"-b{self.batch}" if self.batch != 1 else ""
        op = "" if self.op == "gemm" else f"{self.op}-"
        return f"{op}{self.dtype}-{self.layout}-{self.m}x{self.n}x{self.k}{stack}"

    def same_kind(self, other: Problem) -> bool:
        """True if the two differ in their extents alone."""
        return replace(other, m=self.m, n=self.n, k=self.k, batch=self.batch) == self


def stored_shapes(problem: Problem) -> tuple[tuple[int, int, int], ...]:
    """Batch, rows and columns of A, B and C as they lie in memory."""
    m, n, k = problem.m, problem.n, problem.k
    a = (k, m) if problem.trans_a else (m, k)
    b = (n, k) if problem.trans_b else (k, n)
    return tuple((problem.batch, *shape) for shape in (a, b, (m, n)))
