"""A report as Markdown: the same chapters and tables, without the figures."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.report.content import Chapter, Report, Table
from pymm.report.markup import fenced, plain, spoken

#: Rows that a table shows here; the page and the JSON have them all.
ROWS = 40


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
