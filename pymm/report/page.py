"""A report as one HTML page that needs nothing else: figures, styles and script stand in it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files

from pymm.report.content import Cell, Chapter, Report, Table
from pymm.report.drawing import Figure, style_sheet

#: Steps of the colours of a grid on either side of 0.
STEPS = 4

#: Tables of more rows get a field to filter them by.
FILTERED = 12

#: Of a column that stands to the right.
CLASS = {False: "", True: ' class="n"'}

#: Nothing may be fetched: the page says so to the browser, too.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def html(report: Report) -> str:
    """The page."""
    folder = files("pymm.report")
    css, js = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    title = escape(f"{report.title}: pymm")
    chapters = "\n".join(_chapter(chapter) for chapter in report.chapters)
    links = [(chapter.name, chapter.title) for chapter in report.chapters]
    links += [("environment", "Environment")]
    nav = "".join(f'<a href="#{name}">{escape(words)}</a>' for name, words in links)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{title}</title>
<style>{style_sheet()}
{css}</style>
</head>
<body>
<h1>{escape(report.title)}</h1>
<p class="quiet">{escape(report.subtitle)}</p>
<nav>{nav}<button id="theme" type="button" hidden>light / dark</button></nav>
<main>
{chapters}
{_environment(report)}
</main>
<script>{js}</script>
</body>
</html>
"""


def _chapter(chapter: Chapter) -> str:
    parts = [f'<section id="{chapter.name}"><h2>{escape(chapter.title)}</h2>']
    parts += [f"<p>{_words(chapter.words)}</p>"]
    if chapter.seen:
        told = "".join(
            f"<li><b>{escape(name)}</b> {_words(words)}</li>" for name, words in chapter.seen
        )
        parts.append(f'<ul class="seen">{told}</ul>')
    if chapter.tiles:
        tiles = "".join(
            f'<div class="tile"><span>{escape(tile.label)}</span><b>{escape(tile.value)}</b>'
            f"<span>{escape(tile.words)}</span></div>"
            for tile in chapter.tiles
        )
        parts.append(f'<div class="tiles">{tiles}</div>')
    parts += [f'<p class="remark">{_words(remark)}</p>' for remark in chapter.remarks]
    if chapter.figures:
        parts.append(f'<div class="figures">{"".join(map(_figure, chapter.figures))}</div>')
    parts += [_table(table) for table in chapter.tables]
    parts += [f'<p class="remark">{_words(lacking)}</p>' for lacking in chapter.lacking]
    if chapter.commands:
        parts.append("<h3>Repeat it</h3><pre>" + escape("\n".join(chapter.commands)) + "</pre>")
    return "\n".join([*parts, "</section>"])


def _words(text: str) -> str:
    """Text with `code` in backquotes."""
    pieces = text.split("`")
    return "".join(
        f"<code>{escape(piece)}</code>" if place % 2 else escape(piece)
        for place, piece in enumerate(pieces)
    )


def _figure(figure: Figure) -> str:
    return (
        f'<figure id="figure-{figure.name}"><h3>{escape(figure.title)}</h3>{figure.svg}'
        f"<figcaption>{escape(figure.words)}</figcaption></figure>"
    )


def _table(table: Table) -> str:
    parts = [f'<h3 id="table-{table.name}">{escape(table.title)}</h3>']
    if table.words:
        parts.append(f"<p>{_words(table.words)}</p>")
    if table.grid:
        parts.append(_scale())
    elif len(table.rows) > FILTERED:
        parts.append(
            f'<input class="filter" type="search" data-table="rows-{table.name}" hidden '
            f'placeholder="filter" aria-label="filter {escape(table.title)}">'
        )
    kind = "grid" if table.grid else "sorts"
    parts.append(
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="{kind}" id="rows-{table.name}">'
    )
    right = [table.numeric(name) and not table.grid for name in table.columns]
    heads = (_head(table, *column) for column in zip(table.columns, right, strict=True))
    parts.append("<thead><tr>" + "".join(heads))
    parts.append("</tr></thead><tbody>")
    parts += _rows(table, right)
    return "\n".join([*parts, "</tbody></table></div>"])


def _head(table: Table, name: str, right: bool) -> str:
    inner = escape(name) if table.grid else f'<button type="button">{escape(name)}</button>'
    return f'<th scope="col"{CLASS[right]}>{inner}</th>'


def _rows(table: Table, right: list[bool]) -> Iterator[str]:
    for row in table.rows:
        cells = (_cell(cell, number) for cell, number in zip(row.values(), right, strict=True))
        yield f"<tr>{''.join(cells)}</tr>"


def _cell(cell: Cell, right: bool) -> str:
    attributes = CLASS[right]
    if cell.value is not None and cell.text != f"{cell.value:g}":
        attributes += f' data-v="{cell.value:.6g}"'
    step = 0 if cell.shade is None else round(cell.shade * STEPS)
    if step:
        attributes += f' data-s="{step}"'
    return f"<td{attributes}>{escape(cell.text)}</td>"


def _scale() -> str:
    words = {-STEPS: "half as fast", 0: "as fast", STEPS: "twice as fast or more"}
    cells = (
        f'<span data-s="{step}">{words.get(step, "&nbsp;")}</span>'
        for step in range(-STEPS, STEPS + 1)
    )
    return f'<div class="scale" aria-hidden="true">{"".join(cells)}</div>'


def _environment(report: Report) -> str:
    facts = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in report.environment
    )
    told = [*report.notices, *([report.bare] if report.bare else [])]
    notices = "".join(f"<li>{escape(notice)}</li>" for notice in told)
    list_of = f'<h3>What is missing or was left out</h3><ul class="notices">{notices}</ul>'
    return (
        '<section id="environment"><h2>Environment</h2>'
        f'<table class="facts"><tbody>{facts}</tbody></table>{list_of if notices else ""}</section>'
    )
