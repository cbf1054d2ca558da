"""A report as Markdown: the same chapters and tables, without the figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pymm.core.inputs import one_line
from pymm.report.content import Chapter, Report, Table

#: Rows that a table shows here; the page and the JSON have them all.
ROWS = 40

#: What means something in Markdown wherever it stands; an underscore only beside a blank.
_MEANT = re.compile(r"[\\`*\[\]|~]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_FIRST = re.compile(r"^([#+=-]|[0-9]{1,9}(?=[.)](?:\s|$)))")


def markdown(report: Report, page: str, picture: str = "") -> str:
    """The text; `page` and `picture` are the names of the files that it links."""
    title = plain(report.title)
    lines = [
        f"# {title}",
        "",
        f"{plain(report.subtitle)}. [The whole page]({page}) has the figures "
        "and every row; it opens without a network.",
        "",
    ]
    if picture:
        lines += [f"![{title} at a glance]({picture})", ""]
    for chapter in report.chapters:
        if chapter.tiles or chapter.tables or chapter.seen or chapter.lacking:
            lines += _chapter(chapter)
    lines += ["## Environment", "", "| | |", "|---|---|"]
    lines += [f"| {plain(name)} | {plain(value)} |" for name, value in report.environment]
    if report.notices:
        lines += ["", "What is missing or was left out:", ""]
        lines += [f"- {plain(notice)}" for notice in report.notices]
    return "\n".join(lines) + "\n"


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield from (f"## {plain(chapter.title)}", "", spoken(chapter.words), "")
    for name, words in chapter.seen:
        yield f"- **{plain(name)}** {spoken(words)}"
    if chapter.seen:
        yield ""
    if chapter.tiles:
        yield from ("| | | |", "|---|--:|---|")
        for tile in chapter.tiles:
            yield f"| {plain(tile.label)} | **{plain(tile.value)}** | {plain(tile.words)} |"
        yield ""
    for remark in chapter.remarks:
        yield from (f"> {spoken(remark)}", "")
    for table in chapter.tables:
        yield from _table(table)
    for lacking in chapter.lacking:
        yield from (f"> {spoken(lacking)}", "")
    if chapter.commands:
        yield from (*fenced(chapter.commands), "")


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {plain(table.title)}", "")
    if table.words:
        yield from (spoken(table.words), "")
    yield "| " + " | ".join(map(plain, table.columns)) + " |"
    yield "|" + "|".join("--:" if table.numeric(c) else "---" for c in table.columns) + "|"
    for row in table.rows[:ROWS]:
        yield "| " + " | ".join(plain(cell.text) for cell in row.values()) + " |"
    if len(table.rows) > ROWS:
        yield from ("", f"{len(table.rows) - ROWS} more rows are on the page.")
    yield ""


def plain(text: str) -> str:
    """A text as Markdown that shows it, on one line: nothing in it is markup, HTML or a link."""
    return _FIRST.sub(_not_first, _escaped(one_line(text).strip()))


def spoken(text: str) -> str:
    """A sentence as Markdown, `code` in backquotes as such."""
    pieces = enumerate(one_line(text).strip().split("`"))
    said = (f"`{piece}`" if place % 2 else _escaped(piece) for place, piece in pieces)
    return _FIRST.sub(_not_first, "".join(said).replace("``", ""))


def _escaped(text: str) -> str:
    safe = _MEANT.sub(r"\\\g<0>", text)
    return safe.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _not_first(mark: re.Match[str]) -> str:
    """A list, a title or a line would begin here."""
    return f"{mark[0]}\\" if mark[0].isdigit() else f"\\{mark[0]}"


def fenced(lines: Iterable[str]) -> list[str]:
    """Lines of code as a block that none of them can end."""
    lines = list(map(one_line, lines))
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [fence, *lines, fence]
