"""A report as Markdown: the same chapters and tables, without the figures."""

from __future__ import annotations

from collections.abc import Iterator

from pymm.report.content import Chapter, Report, Table

#: Rows that a table shows here; the page and the JSON have them all.
ROWS = 40


def markdown(report: Report, page: str, picture: str = "") -> str:
    """The text; `page` and `picture` are the names of the files that it links."""
    lines = [
        f"# {report.title}",
        "",
        f"{report.subtitle}. [The whole page]({page}) has the figures "
        "and every row; it opens without a network.",
        "",
    ]
    if picture:
        lines += [f"![{report.title} at a glance]({picture})", ""]
    for chapter in report.chapters:
        if chapter.tiles or chapter.tables or chapter.seen or chapter.lacking:
            lines += _chapter(chapter)
    lines += ["## Environment", "", "| | |", "|---|---|"]
    lines += [f"| {_field(name)} | {_field(value)} |" for name, value in report.environment]
    if report.notices:
        lines += ["", "What is missing or was left out:", ""]
        lines += [f"- {notice}" for notice in report.notices]
    return "\n".join(lines) + "\n"


def _chapter(chapter: Chapter) -> Iterator[str]:
    yield from (f"## {chapter.title}", "", chapter.words, "")
    for name, words in chapter.seen:
        yield f"- **{name}** {words}"
    if chapter.seen:
        yield ""
    if chapter.tiles:
        yield from ("| | | |", "|---|--:|---|")
        for tile in chapter.tiles:
            yield f"| {_field(tile.label)} | **{_field(tile.value)}** | {_field(tile.words)} |"
        yield ""
    for remark in chapter.remarks:
        yield from (f"> {remark}", "")
    for table in chapter.tables:
        yield from _table(table)
    for lacking in chapter.lacking:
        yield from (f"> {lacking}", "")
    if chapter.commands:
        yield from ("```", *chapter.commands, "```", "")


def _table(table: Table) -> Iterator[str]:
    yield from (f"### {table.title}", "")
    if table.words:
        yield from (table.words, "")
    yield "| " + " | ".join(map(_field, table.columns)) + " |"
    yield "|" + "|".join("--:" if table.numeric(c) else "---" for c in table.columns) + "|"
    for row in table.rows[:ROWS]:
        yield "| " + " | ".join(_field(cell.text) for cell in row.values()) + " |"
    if len(table.rows) > ROWS:
        yield from ("", f"{len(table.rows) - ROWS} more rows are on the page.")
    yield ""


def _field(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
