"""A report as one self-contained HTML page: figures, styles and script are inside."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

from pymm.report.content import SHADES, Cell, Chapter, Report, Table
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

#: Steps of colour of a ratio on either side of 0.
STEPS = len(SHADES)

#: Tables of more rows are folded, and get a field that filters them.
LONG = 16

#: The chapter that is not folded: the first screen.
OPEN = "glance"

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
        button,
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
    """A chapter: the first screen as it is, every other one folded under its question."""
    body = joined(_parts(chapter), "\n")
    if chapter.name == OPEN:
        inner = joined([tag("h2", chapter.title), body], "\n")
    else:
        inner = _folded(tag("h2", chapter.title), body, "chapter")
    return tag("section", inner, id=identifier(chapter.name))


def _folded(summary: str, body: Markup, kind: str) -> Markup:
    return tag("details", tag("summary", summary), "\n", body, class_=kind)


def _parts(chapter: Chapter) -> Iterator[Markup]:
    yield tag("p", with_code(chapter.intro))
    if chapter.observations:
        items = [
            tag("li", tag("b", name), " ", with_code(said)) for name, said in chapter.observations
        ]
        yield tag("ul", *items, class_="observations")
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
        yield tag("div", *tiles, class_="tiles")
    yield from (tag("p", with_code(remark), class_="remark") for remark in chapter.remarks)
    shown = [_table(table) for table in chapter.tables]
    if chapter.figures:
        figures = tag("div", *map(_figure, chapter.figures), class_="figures")
        shown.insert(len(shown) if chapter.name == OPEN else 0, figures)
    yield from shown
    if chapter.commands:
        commands = tag("pre", "\n".join(chapter.commands))
        yield _folded(tag("h3", "Reproduce"), commands, "commands")


def _figure(figure: Figure) -> Markup:
    caption = tag("figcaption", figure.caption)
    parts = (tag("h3", figure.title), figure.svg, caption)
    return tag("figure", *parts, id=identifier(f"figure-{figure.name}"))


def _table(table: Table) -> Markup:
    """A table under its title; a long one is folded."""
    title, own = table.title, identifier(f"table-{table.name}")
    body = joined(_body(table), "\n")
    if len(table.rows) <= LONG:
        return joined([tag("h3", title, id=own), body], "\n")
    count = tag("span", f"{len(table.rows)} rows", class_="quiet")
    return _folded(joined([tag("h3", title, id=own), count], " "), body, "long")


def _body(table: Table) -> Iterator[Markup]:
    name, long = identifier(f"rows-{table.name}"), len(table.rows) > LONG
    note = [tag("p", with_code(table.note))] if table.note else []
    if long:
        yield from note
    if any(cell.shade is not None for row in table.rows for cell in row.values()):
        yield _scale()
    if long and not table.grid:
        yield tag(
            "input",
            class_="filter",
            type="search",
            data_table=name,
            hidden=True,
            placeholder="filter",
            aria_label=f"filter {table.title}",
        )
    right = [table.numeric(name) and not table.grid for name in table.columns]
    heads = (_head(table, *column) for column in zip(table.columns, right, strict=True))
    kind = "grid" if table.grid else "sorts"
    rows = tag("tbody", "\n", joined(_rows(table, right), "\n"))
    body = tag("table", tag("thead", tag("tr", *heads)), rows, class_=kind, id=name)
    around = {"tabindex": 0, "role": "region", "aria-label": table.title, "class": "wide"}
    yield tag(
        "p", "The table is wider than the page: scroll it sideways.", class_="hint", hidden=True
    )
    yield element("div", around, body)
    if not long:
        yield from note


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
    """What the colours of ratios mean."""
    words = ["equal", *(f"{factor:g}x" for factor in SHADES)]
    cells = [
        tag("span", words[abs(step)] if step else words[0], data_s=str(step))
        for step in range(-STEPS, STEPS + 1)
    ]
    ends = tag("span", "slower by at least"), tag("span", "faster by at least")
    return tag("div", ends[0], *cells, ends[1], class_="scale", aria_hidden="true")


def _environment(report: Report) -> Markup:
    facts = [tag("tr", tag("td", name), tag("td", value)) for name, value in report.environment]
    parts = [tag("table", tag("tbody", *facts), class_="facts")]
    notices = [*report.notices, *([report.no_figures] if report.no_figures else [])]
    if notices:
        items = [tag("li", notice) for notice in notices]
        parts.append(tag("h3", "Missing or left out"))
        parts.append(tag("ul", *items, class_="notices"))
    title = tag("h2", "What was it measured with?")
    return tag("section", _folded(title, joined(parts, "\n"), "chapter"), id="environment")
