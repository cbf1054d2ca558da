"""Sources to compile: of a small kernel, or any text in its place."""

from pymm.core.problem import Problem
from pymm.kernels import find_kernel
from pymm.kernels.source import Source, render

NAIVE = find_kernel("naive").config(dict(MB=8, NB=8))
REORDERED = find_kernel("reordered", "cpu").default_config
PROBLEM = Problem(8, 8, 8)


def source(kind: str, text: str | None = None) -> Source:
    """The source of a kernel for `kind`, "cpu" or "cuda", with `text` in place of its own."""
    rendered = render(NAIVE if kind == "cuda" else REORDERED, PROBLEM)
    return rendered if text is None else Source(text, "gemm", rendered.config)
