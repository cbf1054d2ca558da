"""A report as Markdown: the same chapters and tables, without the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pymm.core.inputs import one_line
from pymm.report.content import Chapter, Report, Table

#: Rows that a table has here at most; the page and the JSON have them all.
ROWS = 40

#: Special characters of Markdown anywhere in a line (an underscore only at a word boundary), and
#: at its start.
_SPECIAL = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_SPECIAL_FIRST = re.compile(r"^([#+=-]|[0-9]{1,9}(?=[.)](?:\s|$)))")


def markdown(report: Report, page: str, picture: str = "") -> str:
    """The Markdown text; `page` and `picture` are the names of the files it links to."""
    title = plain(report.title)
    lines = [
        f"# {title}",
        "",
        f"{plain(report.subtitle)}. [The full page]({page}) has the figures and every row; it "
        "needs no network.",
        "",
    ]
    if picture:
        lines += [f"![{title} at a glance]({picture})", ""]
    for chapter in report.chapters:
        if chapter.tiles or chapter.tables or chapter.observations:
            lines += _chapter(chapter)
    lines += ["## Environment", "", "| | |", "|---|---|"]
    lines += [f"| {plain(name)} | {plain(value)} |" for name, value in report.environment]
    if report.notices:
        lines += ["", "Missing or left out:", ""]
        lines += [f"- {plain(notice)}" for notice in report.notices]
    return "\n".join(lines) + "\n"


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield from (f"## {plain(chapter.title)}", "", inline(chapter.intro), "")
    for name, sentence in chapter.observations:
        yield f"- **{plain(name)}** {inline(sentence)}"
    if chapter.observations:
        yield ""
    if chapter.tiles:
        yield from ("| | | |", "|---|--:|---|")
        for tile in chapter.tiles:
            yield f"| {plain(tile.label)} | **{plain(tile.value)}** | {plain(tile.note)} |"
        yield ""
    for remark in chapter.remarks:
        yield from (f"> {inline(remark)}", "")
    for table in chapter.tables:
        yield from _table(table)
    if chapter.commands:
        yield from (*fenced(chapter.commands), "")


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {plain(table.title)}", "")
    if table.note:
        yield from (inline(table.note), "")
    yield "| " + " | ".join(map(plain, table.columns)) + " |"
    yield "|" + "|".join("--:" if table.numeric(c) else "---" for c in table.columns) + "|"
    for row in table.rows[:ROWS]:
        yield "| " + " | ".join(plain(cell.text) for cell in row.values()) + " |"
    if len(table.rows) > ROWS:
        yield from ("", f"{len(table.rows) - ROWS} more rows are in the full page.")
    yield ""


def plain(text: str) -> str:
    """A text escaped as one line of Markdown: nothing in it is markup, HTML or a link."""
    return _SPECIAL_FIRST.sub(_escape_first, _escaped(one_line(text).strip()))


def inline(text: str) -> str:
    """A sentence as Markdown, with its `code` in backquotes."""
    pieces = enumerate(one_line(text).strip().split("`"))
    said = (f"`{piece}`" if place % 2 else _escaped(piece) for place, piece in pieces)
    return _SPECIAL_FIRST.sub(_escape_first, "".join(said).replace("``", ""))


def _escaped(text: str) -> str:
    safe = _SPECIAL.sub(r"\\\g<0>", text)
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _escape_first(mark: re.Match[str]) -> str:
    """Escape what would begin a list, a heading or a rule."""
    return f"{mark[0]}\\" if mark[0].isdigit() else f"\\{mark[0]}"


def fenced(lines: Iterable[str]) -> list[str]:
    """A code block whose fence is longer than any in its lines."""
    lines = list(map(one_line, lines))
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *lines, fence]
