"""HTML and SVG in which text stays text: elements are built by `tag`, which escapes all that is not
`Markup`.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from html import escape

from pymm.core.inputs import one_line

#: Elements of HTML that have no end, and of SVG that close themselves.
VOID, CLOSED = frozenset({"input", "meta"}), frozenset({"path", "rect", "use"})

_IDENTIFIER = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,79}")


class Markup(str):
    """A piece of HTML or SVG. Only what this module made, or a file of the package, is one."""

    __slots__ = ()


def markup(text: str) -> Markup:
    """A text as HTML that shows it, control characters replaced; markup as it is."""
    if isinstance(text, Markup):
        return text
    return Markup(escape("\n".join(map(one_line, text.split("\n")))))


def joined(pieces: Iterable[str], between: str = "") -> Markup:
    """Pieces one behind the other, those that are no markup escaped."""
    return Markup(markup(between).join(map(markup, pieces)))


def element(name: str, attributes: Mapping[str, object], *children: str) -> Markup:
    """An element. Children and values of attributes that are no markup are escaped; an attribute of
    None or False is left out, one of True stands without a value.
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
    """An element whose attributes are named as arguments: `class_` is class, `data_v` data-v."""
    named = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
    return element(_name, named, *children)


def sheet(element: str, text: str) -> Markup:
    """A `style` or `script` element of text from the package, which is not escaped."""
    if "</" in text or "<!--" in text or "\r" in text:
        raise ValueError(f"the text of a {element} element would end it")
    return Markup(f"<{element}>{text}</{element}>")


def digest(text: str) -> str:
    """How a Content-Security-Policy names the text of a script or of a style sheet."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def identifier(text: str) -> str:
    """A text as an id and as the name of a figure: itself if it may be one, else its letters and
    digits with a digest, so that two texts never have the same.
    """
    if _IDENTIFIER.fullmatch(text):
        return text
    letters = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40]
    return f"i-{letters}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:8]}"


def words(text: str) -> Markup:
    """A sentence as HTML, `code` in backquotes as such."""
    pieces = enumerate(text.split("`"))
    return joined(tag("code", piece) if place % 2 else piece for place, piece in pieces)
