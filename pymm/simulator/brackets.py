"""Brackets and commas of C++: the little of its syntax that translate.py goes by."""

from __future__ import annotations

_CLOSERS = {"(": ")", "[": "]", "{": "}"}


class Refused(Exception):
    """The text uses something that cannot be simulated; the message names file and line."""


def match(text: str, at: int) -> int:
    """Index of the bracket that closes the one at `at`."""
    opener, closer, depth = text[at], _CLOSERS[text[at]], 0
    for i in range(at, len(text)):
        if text[i] == opener:
            depth += 1
        elif text[i] == closer:
            depth -= 1
            if depth == 0:
                return i
    raise Refused(f"error: {opener!r} is never closed")


def split(text: str) -> list[str]:
    """Parts between the commas that stand in no bracket of any kind."""
    parts, depth, angles, begin = [], 0, 0, 0  # a > inside other brackets compares
    for i, c in enumerate(text):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(c, 0)
        angles += {"<": 1, ">": -1}.get(c, 0) if depth == 0 else 0
        if c == "," and depth == 0 and angles == 0:
            parts.append(text[begin:i])
            begin = i + 1
    return [*parts, text[begin:]]


def statement_begin(text: str, at: int) -> int:
    return max(text.rfind(c, 0, at) for c in ";{}") + 1
