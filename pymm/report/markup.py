"""HTML and SVG elements, built by `tag`, which escapes all strings that are not `Markup`."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import escape

from pymm.core.inputs import one_line

#: Elements of HTML without an end tag, and elements of SVG that may be self-closing.
VOID, CLOSED = frozenset({"input", "meta"}), frozenset({"path", "rect", "use"})

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")


class Markup(str):
    """A piece of HTML or SVG that needs no escaping. Only this module creates it."""

    __slots__ = ()


def markup(text: str) -> Markup:
    """A text escaped as HTML, control characters replaced; markup unchanged."""
    if isinstance(text, Markup):
        return text
    return Markup(escape("\n".join(map(one_line, text.split("\n")))))


def joined(pieces: Iterable[str], between: str = "") -> Markup:
    """Pieces joined, those that are no markup escaped."""
    return Markup(markup(between).join(map(markup, pieces)))


def element(name: str, attributes: Mapping[str, object], *children: str) -> Markup:
    """An element. Children and attribute values that are no markup are escaped; an attribute that
    is None or False is left out, one that is True has no value.
    """
    parts = [name]
    for key, value in attributes.items():
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            parts.append(f'{key}="{markup(str(value))}"')
    head = f"<{' '.join(parts)}"
    if name in VOID:
        return Markup(f"{head}>")
    if name in CLOSED and not children:
        return Markup(f"{head}/>")
    return Markup(f"{head}>{joined(children)}</{name}>")


def tag(_name: str, *children: str, **attributes: object) -> Markup:
    """An element with its attributes as arguments: `class_` is class, `data_v` is data-v."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    return element(_name, named, *children)


def raw_element(element: str, text: str) -> Markup:
    """A `style` or `script` element with text of this package, which is not escaped."""
    if "</" in text or "<!--" in text or "\r" in text:
        raise ValueError(f"the text of a {element} element would end it")
    return Markup(f"<{element}>{text}</{element}>")


def digest(text: str) -> str:
    """The hash by which a Content-Security-Policy allows a script or a style sheet."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def identifier(text: str) -> str:
    """An id made from a text: the text itself if it is a valid id, else its letters and digits with
    a digest, so that different texts have different ids.
    """
    if _IDENTIFIER.fullmatch(text):
        return text
    letters = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"i-{letters}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def with_code(text: str) -> Markup:
    """A sentence as HTML, with `code` elements for what is in backquotes."""
    pieces = enumerate(text.split("`"))
    return joined(tag("code", piece) if place % 2 else piece for place, piece in pieces)
