"""What files say is shown as text: it runs nothing, is no markup, and names no other folder."""

# ruff: noqa: F811  (fixtures are imported by their names)

from __future__ import annotations

import html as entities
import json
import re

import markdown_it  # comes with rich
import measured
import pytest
from conftest import BROWSER
from report_fixtures import without_plots  # noqa: F401
from test_report_browser import UNFOLD, browser, open_in  # noqa: F401

from pymm.measure import results
from pymm.report import content, html, main, markup, svg

#: Each ends what contains it: an element, an attribute, a style, a formula, a cell, code.
HURTS = (
    "<script>window.hurt=1</script>",
    '"><img src=x onerror="window.hurt=1">',
    "' onmouseover='window.hurt=1' x='",
    "</style><script>hurt=1</script>",
    "$\\frac{$",
    "`a|b`](http://x) ![i](http://x) <b>",
    "```\n<script>window.hurt=1</script>\n# head",
)

#: Columns that say which product a row is of, and how it ended: with other words in them a row is
#: left out, or is a failure.
STRUCTURE = ("m", "n", "k", "schema", "time")

FILES = {
    "classes.csv": (results.CLASSES.columns, measured.class_rows),
    "ladder.csv": (results.KERNELS.columns, measured.ladder),
    "tuning.csv": (results.TRIALS.columns, measured.trials),
    "unseen.csv": (measured.UNSEEN, measured.unseen),
    "repeated.csv": (results.REPEATED.columns, measured.repeated),
    "blocked.csv": (results.BLOCKED.columns, measured.blocked),
    "calls.csv": (measured.CALLS, measured.calls),
    "beside-numpy.csv": (measured.BESIDE_NUMPY, measured.beside_numpy),
    "distributed.csv": (results.DISTRIBUTED.columns, measured.distributed),
    "simulated.csv": (results.SIMULATED.columns, measured.simulated),
    "tune-devices.csv": (measured.TUNE_DEVICES, measured.tune_devices),
    "suites.csv": (results.EXPERIMENTS.columns, lambda: measured.suites(sparse=48)),
}


#: Columns of names, each of which has a line of its own in a table.
SHOWN = {
    "classes.csv": ("class",),
    "ladder.csv": ("name", "variant"),
    "unseen.csv": ("reason",),
    "calls.csv": ("arrays", "call"),
    "beside-numpy.csv": ("process", "call"),
}


def texts_of(columns, rows):
    """The columns of text, each with the row that is made worse."""
    texts = [c for c in columns if isinstance(rows[0].get(c, ""), str) and c not in STRUCTURE]
    return {column: rows[place % len(rows)] for place, column in enumerate(texts)}


def shown():
    """What the page has to show."""
    for hurt in HURTS:
        words = markup.one_line(hurt)
        yield f"k{words}"
        for name, (columns, maker) in FILES.items():
            worse = texts_of(columns, maker())
            yield from (f"{worse[column][column]}{words}" for column in SHOWN.get(name, ()))


def hostile(root):
    """A folder in which every text column of every file has each of `HURTS` in some row, and so
    have its note, its facts and the name of a file.
    """
    folder = measured.folder(root, sparse=48)
    for name, (columns, maker) in FILES.items():
        rows = maker()
        worse = [
            row | {column: f"{row.get(column, '')}{hurt}"}
            for column, row in texts_of(columns, rows).items()
            for hurt in HURTS
        ]
        if name == "tuning.csv":  # a search of its own, which is drawn
            worse += [row | {"kernel": f"k{hurt}"} for hurt in HURTS for row in rows]
        measured.write(folder / name, columns, rows + worse)
        (folder / f"{name[:-4]}-note.txt").write_text("\n".join(HURTS))
    measured.write(folder / f"{HURTS[1]}.csv", results.KERNELS.columns, measured.ladder())
    facts = json.loads((folder / "device.json").read_text())
    (folder / "device.json").write_text(json.dumps(facts | {"name": f"GPU {''.join(HURTS[:3])}"}))
    return folder


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a report of hostile files."""
    root = tmp_path_factory.mktemp("hostile")
    assert main([str(hostile(root / "results")), "--out", str(root / "out")]) == 0
    assert sorted(path.name for path in (root / "out").iterdir()) == [measured.SLUG]
    return root / "out" / measured.SLUG


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_nothing_runs_and_all_is_shown(browser, written):
    assert BROWSER
    with open_in(browser, written / "report.html") as page:
        assert page.evaluate("typeof window.hurt") == "undefined"
        assert page.evaluate("[document.scripts.length, document.images.length]") == [1, 0]
        names = "[...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames())"
        found = set(page.evaluate(names))
        assert not [name for name in found if name.startswith("on") or name == "style"]
        text = page.evaluate("document.body.textContent")
        for words in shown():
            assert words in text, words
        assert page.locator("figure svg").count() > 20
        assert page.complaints == []
        page.click("#theme")
        page.evaluate(UNFOLD)
        page.fill('input[data-table="rows-products"]', "onerror")
        assert page.locator("#rows-products tbody tr:visible").count() > 0
        ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
        assert len(ids) == len(set(ids)) and all(re.fullmatch(r"[\w-]+", name) for name in ids)


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_the_policy_stops_what_markup_would_let_through(browser, written, tmp_path):
    """Even if something were not escaped, no script but the page's own would run."""
    worse = '<main><script>window.hurt=1</script><img src="x" onerror="window.hurt=1">'
    text = (written / "report.html").read_text()
    (tmp_path / "report.html").write_text(text.replace("<main>", f"{worse}<p style='color:red'>"))
    with open_in(browser, tmp_path / "report.html") as page:
        assert page.evaluate("typeof window.hurt") == "undefined"
        assert not page.locator("#theme").is_hidden(), "the page's own script runs"
        refused = [words for words in page.complaints if "Content Security Policy" in words]
        assert len(refused) == 4  # the script, the picture, its handler, the style


def test_markdown_of_data_is_text(written):
    text = (written / "report.md").read_text()
    parser = markdown_it.MarkdownIt("commonmark").enable("table")
    tokens = parser.parse(text)
    everything = [*tokens, *(child for token in tokens for child in token.children or ())]
    assert not [token.content for token in everything if token.type.startswith("html")]
    links = {
        token.attrs.get("href") or token.attrs.get("src")
        for token in everything
        if token.type in ("link_open", "image")
    }
    assert links == {"report.html", "glance.svg"}
    heads = [token.content for token in tokens if token.type == "inline" and token.level == 1]
    assert "head" not in heads
    shown = "".join(token.content for token in everything if token.type in ("text", "code_inline"))
    for hurt in HURTS:
        assert f"plan(){' '.join(hurt.split())}" in entities.unescape(shown)


def test_the_picture_is_one_whole_drawing(written):
    from xml.etree import ElementTree

    root = ElementTree.parse(written / "glance.svg").getroot()
    kinds = {node.tag.rpartition("}")[2] for node in root.iter()}
    assert kinds <= {"svg", "style", "rect", "g", "defs", "path", "use", "text", "clipPath"}


@pytest.mark.parametrize("name", ["../../evil", "a/b", "..", "A", "-a", "a" * 65, "<b>", "a\u00b2"])
def test_no_file_is_written_elsewhere(tmp_path, capsys, without_plots, name):
    folder = tmp_path / "results" / "some-gpu"
    measured.write(folder / "ladder.csv", results.KERNELS.columns, measured.ladder(name))
    before = set(tmp_path.rglob("*"))
    assert main([str(folder), "--out", str(tmp_path / "a" / "out")]) == 1
    said = capsys.readouterr().err
    assert "ladder.csv, line 2: device " in said and "left out" in said
    report = {"schema": 1, "device": {"slug": name}, "measurements": []}
    (tmp_path / "report.json").write_text(json.dumps(report))
    with pytest.raises(SystemExit) as stop:
        main(["--compare", *[str(tmp_path / "report.json")] * 2, "--out", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert f"{tmp_path / 'report.json'}: device.slug is " in capsys.readouterr().err
    assert set(tmp_path.rglob("*")) == before | {tmp_path / "report.json"}


def test_a_folder_that_names_no_device_is_refused(tmp_path, capsys, without_plots):
    rows = [row | {"device": ""} for row in measured.ladder()]
    measured.write(tmp_path / "My <GPU>" / "ladder.csv", results.KERNELS.columns, rows)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "My <GPU>"), "--out", str(tmp_path / "out")])
    assert stop.value.code == 2 and "rename the folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_markup_escapes_what_is_not_markup():
    piece = markup.tag("a", "<b>", href="\"x\" onclick='y'", data_v=1, hidden=True, id=None)
    assert piece == (
        '<a href="&quot;x&quot; onclick=&#x27;y&#x27;" data-v="1" hidden>&lt;b&gt;</a>'
    )
    assert markup.joined([piece, "&\x00\x1b"]) == f"{piece}&amp;\ufffd\ufffd"
    with pytest.raises(ValueError):
        markup.raw_element("style", "a</style>")
    cell = html._cell(content.Cell('<i>"', 1.0, 1.0), True)
    assert cell == '<td class="n" data-v="1" data-s="5">&lt;i&gt;&quot;</td>'


def test_two_texts_never_share_an_id():
    texts = ["a b", "a-b", "A b", "a  b", "", "<a b>", "1a", "a\u00b2", "x" * 81, "x" * 82]
    names = [markup.identifier(text) for text in texts]
    assert len(set(names)) == len(texts) and names[1] == "a-b"
    assert all(re.fullmatch(r"[A-Za-z][\w-]{0,79}", name) for name in names)


def test_drawings_keep_what_names_say():
    """Nothing in a name is a formula, an id, a colour or a style of the drawing."""
    worst = '$x^2$ id="m1" url(#p1) #050501 style="fill: red"'
    names = [worst, "$\\frac{$", "<b>&amp;", "_", "\u4e16"]

    def plot(figure, axes):
        axes.barh(range(len(names)), [1.23456] * len(names), label=names[0])
        axes.set_yticks(range(len(names)), names)
        figure.legend(loc="outside lower center")

    figure = svg.draw('a "name"', "T", "W", plot)
    tags = "".join(re.findall("<[^>]*>", figure.svg))
    assert tags.count("<text") > len(names) and " style=" not in tags
    for name in names:
        assert f">{markup.markup(name)}</text>" in figure.svg
    assert not re.search(r' (?:d|x|y)="[^"]*\.\d{3}', figure.svg)
    used = set(re.findall(r'class="(\w+)"', figure.svg))
    assert used == set(figure.rules) and "url(#i-a-name-" in figure.svg
