"""The types of products, one row of data each. A new type is a row here and the kernels that
compute it; nothing else in the package knows the types one by one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

FLOAT16 = np.dtype(np.float16)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOAT32 = np.dtype(np.float32)
FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True)
class BlockScaling:
    """Operands that are split into float16 terms: `elements` of them along k share one power-of-two
    scale.

    `lost` is what is lost of an element, relative to the largest of its block: that is at least 2^6
    when scaled (2^14, except where neighbouring scales are made equal: common/block_scaling.cuh),
    and half the smallest subnormal number of float16 is 2^-25. At most `lost_product` of a product
    is lost: the terms of an element are at most twice the element. An element of at most
    `zero_up_to` of the largest may become zero.
    """

    elements: int = 64
    lost: float = 2.0**-31
    lost_product: float = 3.0
    zero_up_to: float = 2.0**-30


@dataclass(frozen=True)
class DType:
    """A type of products. `element` is the NumPy dtype of A and B, `out` that of C, `scalar` that
    of alpha, beta and every sum. `words` describe it in documents.

    `unit` names the arithmetic unit of a GPU that sets its peak rate (`core.device`), which it
    needs `passes` times for each product.

    `precision` is what `matmul(precision=...)` calls it: "ieee" where the operands are multiplied
    as they are. With `tf32` they are rounded to TF32 (TMA does so while it copies), and libraries
    are compared in their TF32 mode; all others are compared with products in `element`.
    `emulates_element` marks types that reach about the accuracy of `element` in another way.

    Errors, for `core.reference`: `roundoff` is the unit roundoff of a sum, `out_roundoff` that of
    storing a result (0: it is stored as it was summed), `product_error` the relative error of one
    product before it is added. Nonzero elements below `smallest_normal` count as that in bounds.
    Elements of at most `zero_up_to` may become zero, and finite ones from `infinite_from` on
    infinite.

    Configurations tuned for one type serve all types of the same group `tiles`.

    `plain` is the type of the same elements whose products are plain multiply-adds, with a lower
    error bound: a product that should be quicker in it is computed in it. Of a `checked` type the
    device finds out which operands its arithmetic is not exact enough for, and computes their
    product in `plain` instead.

    A symmetric C of up to `syrk_full_rows` rows, or with k up to `syrk_full_depth`, is computed
    in full by a GPU instead of one half that is then mirrored.
    """

    name: str
    words: str
    element: np.dtype
    out: np.dtype
    scalar: np.dtype
    roundoff: float
    unit: str
    passes: int = 1
    precision: str = "ieee"
    tf32: bool = False
    emulates_element: bool = False
    out_roundoff: float = 0.0
    product_error: float = 0.0
    scaling: BlockScaling | None = None
    smallest_normal: float = 0.0
    zero_up_to: float = 0.0
    infinite_from: float = math.inf
    tiles: str = ""
    plain: str = ""
    checked: bool = False
    syrk_full_rows: int = 0
    syrk_full_depth: int = 0

    @property
    def reduced(self) -> bool:
        """True if the operands are changed before they are multiplied, or are not of C's type."""
        return self.precision != "ieee" or self.element != self.out


#: Unit roundoff of sums on tensor cores. For round-to-nearest it is half the distance from 1 to
#: the next number; products of 16-bit numbers are exact in float32, but a tensor core adds 16 of
#: them at a time with the sum so far, aligned to the largest and truncated to two bits more than
#: float32 has (M. Fasi, N. J. Higham, M. Mikaitis, S. Pranesh, Numerical behavior of NVIDIA tensor
#: cores, PeerJ Computer Science 7:e330, 2021). Each instruction then loses at most 17 times 2^-25
#: and the result's last bit, 2^-23, of the sum of absolute values: less than 16 times 2^-24, and
#: 2^-23 for each term leaves room for cores that keep one bit less. Of tf32 it adds 8: 9 times
#: 2^-25 and the last bit are less than 7 times 2^-24. With three products for each term that makes
#: 20, and two more where the sums so far are added every 8: 24 times 2^-24 for 8 terms.
TENSOR_CORE, THREE_PRODUCTS = 2.0**-23, 3 * 2.0**-24

#: Relative error of a product of two float32 numbers. Both rounded to the 11 significant bits of
#: tf32: 2^-11 each, and the product of these. As sums of two such numbers they have 22 bits: 2^-22
#: is left of each, the product of both low terms is as large and left out; 2^-30 covers the
#: products of all these.
ROUNDED, SPLIT = 2.0**-10 + 2.0**-22, 3 * 2.0**-22 + 2.0**-30

#: What block scaling may lose of the sum of absolute values where a split is accepted
#: (common/split_check.cuh; docs/explanation/numerics.md has the proof).
LOST = 3 * 2.0**-22

#: The smallest normal number of float16. Tensor cores align products by the exponents of their
#: factors as they are stored: a subnormal number counts as a normal one there, and sums lose the
#: bits below it (measured on an H200: cuBLAS, wgmma and mma.sync have the same errors, up to 8e-5
#: of |A| |B|).
SMALLEST_NORMAL_F16 = 2.0**-14

_SINGLE = {"element": FLOAT32, "out": FLOAT32, "scalar": FLOAT32}

#: A symmetric C of few rows takes few tiles, which take as long as half of them (f32: 121 of 64 x
#: 64, fewer than an H200 has multiprocessors), and the launch that mirrors one half takes 3 to 5 us
#: (bf16 at 1024: 12.9 us with it, 8.8 in full; at 2048 28.1 and 27.6). Not f64, whose kernels store
#: both halves themselves; and only types that treat A and B alike, so that both halves are equal to
#: the bit. With results of 16 bits also a C of so little k that the mirror would take longer than
#: the other half (8192 rows, k = 64: 89 us with it, 39 in full).
_HALF = {
    "scalar": FLOAT32,
    "roundoff": TENSOR_CORE,
    "unit": "tensor 16 bits",
    "tiles": "16 bits",
    "syrk_full_rows": 2048,
}
_F16 = {"element": FLOAT16, "smallest_normal": SMALLEST_NORMAL_F16, **_HALF}
_BF16 = {"element": BFLOAT16, **_HALF}

#: Every type by its short name, which is its one spelling in YAML, CSV and on the command line.
DTYPES = {
    row.name: row
    for row in (
        DType(
            "f32",
            "32-bit floating point",
            **_SINGLE,
            roundoff=2.0**-24,
            unit="fp32",
            syrk_full_rows=704,
        ),
        DType(
            "f64",
            "64-bit",
            element=FLOAT64,
            out=FLOAT64,
            scalar=FLOAT64,
            roundoff=2.0**-53,
            unit="fp64",
        ),
        DType(
            "f16",
            "16-bit, accumulated in f32",
            out=FLOAT16,
            out_roundoff=2.0**-11,
            syrk_full_depth=384,
            **_F16,
        ),
        DType(
            "bf16",
            "bfloat16, accumulated in f32",
            out=BFLOAT16,
            out_roundoff=2.0**-8,
            syrk_full_depth=384,
            **_BF16,
        ),
        # TMA rounds to infinity from 2^128 - 2^116 on; 2^-137 is half the smallest number of tf32.
        DType(
            "tf32",
            "f32 operands rounded to TF32 (11 significant bits)",
            **_SINGLE,
            roundoff=TENSOR_CORE,
            unit="tensor tf32",
            precision="tf32",
            tf32=True,
            product_error=ROUNDED,
            zero_up_to=2.0**-137,
            infinite_from=2.0**128 - 2.0**116,
        ),
        DType(
            "tf32x3",
            "f32 emulated by three tf32 products, compared with f32",
            **_SINGLE,
            roundoff=THREE_PRODUCTS,
            unit="tensor tf32",
            passes=3,
            precision="tf32x3",
            emulates_element=True,
            product_error=SPLIT,
            plain="f32",
        ),
        DType(
            "f16x3",
            "f32 emulated by three block-scaled f16 products, compared with f32",
            **_SINGLE,
            roundoff=THREE_PRODUCTS,
            unit="tensor 16 bits",
            passes=3,
            precision="f16x3",
            emulates_element=True,
            product_error=SPLIT,
            scaling=BlockScaling(),
            tiles="f16x3",
            plain="f32",
        ),
        DType(
            "emulated",
            "f16x3 where the device finds it exact enough, else f32; compared with f32",
            **_SINGLE,
            roundoff=THREE_PRODUCTS,
            unit="tensor 16 bits",
            passes=3,
            precision="emulated",
            emulates_element=True,
            product_error=SPLIT + LOST,
            tiles="f16x3",
            plain="f32",
            checked=True,
        ),
        DType("f16_f32", "f16 with f32 results", out=FLOAT32, **_F16),
        DType("bf16_f32", "bf16 with f32 results", out=FLOAT32, **_BF16),
    )
}

#: Types of elements by their short name: those that are multiplied and stored as they are.
ELEMENTS = {row.name: row.element for row in DTYPES.values() if not row.reduced}

#: What `precision=` may be. "ieee": all arithmetic is multiply-add in the type of the operands (of
#: 16 bits: in float32, with one rounding to the type at the end). "tf32": float32 elements are
#: rounded to 11 significant bits. "tf32x3": each is the sum of two such numbers, and three of the
#: four products are added up. "f16x3": the same with two float16, block-scaled (`BlockScaling`).
#: "emulated": like "f16x3", and like "ieee" where the device finds that not exact enough.
PRECISIONS = tuple(dict.fromkeys(row.precision for row in DTYPES.values()))

#: Types that are compared with the libraries' products in their element type.
EMULATED = tuple(row.name for row in DTYPES.values() if row.emulates_element)

#: The type of products whose right operand may be split once for all of them.
PREPARED = "emulated"

_BY_OPERANDS = {(row.element, row.out, row.precision): row.name for row in DTYPES.values()}


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
    `NotImplementedError` that names a combination that does not exist.
    """
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r} is none of {', '.join(PRECISIONS)}")
    element = ELEMENTS[dtype_name(dtype)]
    out_dtype = element if out_dtype is None else out_dtype
    name = _BY_OPERANDS.get((element, np.dtype(out_dtype), precision))
    if name is not None:
        return name
    if precision != "ieee":
        raise NotImplementedError(
            f"precision={precision!r} for {dtype} operands and a {out_dtype} result: it is a "
            "way to multiply float32 matrices; other types have precision='ieee'"
        )
    raise NotImplementedError(
        f"a product of {dtype} operands as {out_dtype}: out_dtype= is the operands' type, or "
        f"float32 for float16 and bfloat16 operands"
    )


def dtypes_share_tiles(dtype: str, tuned: str) -> bool:
    """Whether what is tuned for one type may serve the other."""
    tiles = DTYPES[dtype].tiles
    return dtype == tuned or bool(tiles) and tiles == DTYPES[tuned].tiles
