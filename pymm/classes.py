"""The classes of products that are compared with other libraries as a whole: shapes by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pymm.problem import DTYPES, Problem
from pymm.shapes import parse_shapes

LAYOUTS = ("NN", "NT", "TN", "TT")

#: Classes whose shapes are the set of that name.
SETS = ("large", "small", "odd", "rank-k", "skinny")

#: Classes of symmetric products, C = A A^T (NT) and A^T A (TN): no part of "all classes".
SYMMETRIC = {
    "syrk-large": "4096,6144,8192,10500",
    "syrk-small": "500,640,1000,1024,1500,2048",
}

#: Types that are compared with float32's products, and their classes: shapes as `parse_shapes`
#: reads.
EMULATED = ("tf32x3", "f16x3")
ACCURATE = {
    "2048": "2048",
    "4096": "4096",
    "8192": "8192",
    "rank-k 64 to 156": "8192x8192x64,8192x8192x128,8192x8192x156",
    "641 and 4097": "641,4097",
}


def shapes_of(dtype: str) -> dict[str, str]:
    """The classes of a type: by name their shapes as `parse_shapes` reads them."""
    return ACCURATE if dtype in EMULATED else {name: name for name in SETS}


def class_problems(
    classes: Sequence[str], dtypes: Sequence[str], layouts: Sequence[str]
) -> list[tuple[str, Problem]]:
    """Every product of the classes named ("all": all but the symmetric ones) with its class, layout
    by layout and in each type by type, so that a run that is cut off has all types. `ValueError`
    for an unknown name.
    """
    known = {"all"} | {name for dtype in DTYPES for name in shapes_of(dtype)} | set(SYMMETRIC)
    for given, names in ((classes, known), (dtypes, DTYPES), (layouts, LAYOUTS)):
        for name in given:
            if name not in names:
                raise ValueError(f"{name!r} is none of {', '.join(names)}")
    return [
        (name, Problem(m, n, k, dtype, layout[0] == "T", layout[1] == "T", op=op))
        for layout in layouts
        for dtype in dtypes
        for name, text, op in _of_layout(dtype, layout)
        if name in classes or ("all" in classes and op == "gemm")
        for m, n, k in parse_shapes(text)
    ]


def _of_layout(dtype: str, layout: str) -> Iterator[tuple[str, str, str]]:
    """Name, shapes and operation of the classes that a type has in a layout."""
    for name, text in shapes_of(dtype).items():
        yield name, text, "gemm"
    if layout in ("NT", "TN"):
        for name, text in SYMMETRIC.items():
            yield name, text, "syrk"
