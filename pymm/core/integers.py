"""Integer arithmetic that Python has no name for."""

from __future__ import annotations


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def round_up(a: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below a."""
    return ceil_div(a, multiple) * multiple
