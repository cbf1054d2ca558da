"""A report as one self-contained HTML page: figures, styles and script are inside."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from pymm.report.content import Cell, Chapter, Report, Table
from pymm.report.markup import (
    Markup,
    digest,
    element,
    identifier,
    joined,
    raw_element,
    tag,
    with_code,
)
from pymm.report.svg import STROKES, Figure, rules_of, style_sheet

#: Steps of colour in a grid on either side of 0.
STEPS = 4

#: Tables of more rows get a field that filters them.
FILTERED = 12

#: The class of a column by whether it is aligned right.
CLASS = {False: None, True: "n"}

#: The Content-Security-Policy: nothing is fetched, and only the page's own script runs.
POLICY = "default-src 'none'; base-uri 'none'; form-action 'none'; style-src {}; script-src {}"


def html(report: Report) -> str:
    """The page."""
    folder = files("pymm.report")
    css, js = (
        folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    figures = [figure for chapter in report.chapters for figure in chapter.figures]
    css = f"{style_sheet()}\nfigure svg *{{{STROKES}}}\n{rules_of(figures)}\n{css}"
    policy = POLICY.format(digest(css), digest(js))
    links = [(chapter.name, chapter.title) for chapter in report.chapters]
    links += [("environment", "Environment")]
    nav = [tag("a", title, href=f"#{identifier(name)}") for name, title in links]
    button = tag("button", "light / dark", id="theme", type="button", hidden=True)
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        tag("title", f"{report.title}: pymm"),
        raw_element("style", css),
    )
    chapters = joined([*map(_chapter, report.chapters), _environment(report)], "\n")
    body = (
        tag("h1", report.title),
        tag("p", report.subtitle, class_="quiet"),
        tag("nav", *nav, button),
        tag("main", "\n", chapters, "\n"),
        raw_element("script", js),
    )
    page = tag(
        "html",
        "\n",
        tag("head", "\n", joined(head, "\n"), "\n"),
        "\n",
        tag("body", "\n", joined(body, "\n"), "\n"),
        "\n",
        lang="en",
    )
    return f"<!DOCTYPE html>\n{page}\n"


def _chapter(chapter: Chapter) -> Markup:
    parts = [tag("h2", chapter.title), tag("p", with_code(chapter.intro))]
    if chapter.observations:
        items = [
            tag("li", tag("b", name), " ", with_code(said)) for name, said in chapter.observations
        ]
        parts.append(tag("ul", *items, class_="observations"))
    if chapter.tiles:
        tiles = [
            tag(
                "div",
                tag("span", tile.label),
                tag("b", tile.value),
                tag("span", tile.note),
                class_="tile",
            )
            for tile in chapter.tiles
        ]
        parts.append(tag("div", *tiles, class_="tiles"))
    parts += [tag("p", with_code(remark), class_="remark") for remark in chapter.remarks]
    if chapter.figures:
        parts.append(tag("div", *map(_figure, chapter.figures), class_="figures"))
    parts += [_table(table) for table in chapter.tables]
    parts += [tag("p", with_code(missing), class_="remark") for missing in chapter.not_measured]
    if chapter.commands:
        parts += [tag("h3", "Reproduce"), tag("pre", "\n".join(chapter.commands))]
    return tag("section", joined(parts, "\n"), id=identifier(chapter.name))


def _figure(figure: Figure) -> Markup:
    caption = tag("figcaption", figure.caption)
    parts = (tag("h3", figure.title), figure.svg, caption)
    return tag("figure", *parts, id=identifier(f"figure-{figure.name}"))


def _table(table: Table) -> Markup:
    name = identifier(f"rows-{table.name}")
    parts = [tag("h3", table.title, id=identifier(f"table-{table.name}"))]
    if table.note:
        parts.append(tag("p", with_code(table.note)))
    if table.grid:
        parts.append(_scale())
    elif len(table.rows) > FILTERED:
        label = f"filter {table.title}"
        parts.append(
            tag(
                "input",
                class_="filter",
                type="search",
                data_table=name,
                hidden=True,
                placeholder="filter",
                aria_label=label,
            )
        )
    right = [table.numeric(name) and not table.grid for name in table.columns]
    heads = (_head(table, *column) for column in zip(table.columns, right, strict=True))
    kind = "grid" if table.grid else "sorts"
    rows = tag("tbody", "\n", joined(_rows(table, right), "\n"))
    body = tag("table", tag("thead", tag("tr", *heads)), rows, class_=kind, id=name)
    around = {"tabindex": 0, "role": "region", "aria-label": table.title, "class": "wide"}
    return joined([*parts, element("div", around, body)], "\n")


def _head(table: Table, name: str, right: bool) -> Markup:
    inner = name if table.grid else tag("button", name, type="button")
    return tag("th", inner, scope="col", class_=CLASS[right])


def _rows(table: Table, right: list[bool]) -> Iterator[Markup]:
    for row in table.rows:
        yield tag("tr", *map(_cell, row.values(), right))


def _cell(cell: Cell, right: bool) -> Markup:
    known = cell.value is not None and cell.text != f"{cell.value:g}"
    step = 0 if cell.shade is None else round(cell.shade * STEPS)
    value = f"{cell.value:.6g}" if known else None
    return tag("td", cell.text, class_=CLASS[right], data_v=value, data_s=step or None)


def _scale() -> Markup:
    said = {-STEPS: "half as fast or less", 0: "equal", STEPS: "twice as fast or more"}
    cells = (
        tag("span", said.get(step, "\u00a0"), data_s=str(step)) for step in range(-STEPS, STEPS + 1)
    )
    return tag("div", *cells, class_="scale", aria_hidden="true")


def _environment(report: Report) -> Markup:
    facts = [tag("tr", tag("td", name), tag("td", value)) for name, value in report.environment]
    parts = [tag("h2", "Environment"), tag("table", tag("tbody", *facts), class_="facts")]
    notices = [*report.notices, *([report.no_figures] if report.no_figures else [])]
    if notices:
        items = [tag("li", notice) for notice in notices]
        parts.append(tag("h3", "Missing or left out"))
        parts.append(tag("ul", *items, class_="notices"))
    return tag("section", *parts, id="environment")
