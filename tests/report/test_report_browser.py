"""The page in a browser: no script errors, nothing fetched, tables sort and filter, nothing cut and
nothing on top of anything else, on a laptop and on a phone, light and dark.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager

import measured
import pytest
from conftest import BROWSER

from pymm.report import main

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser")]

#: Chromium must not look for updates, sync or measure anything: there is no network.
OFFLINE = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
)

#: Pixels by which boxes may meet: letters have less height than their box, and by rounding.
SLACK = (1.5, 2.5)

#: Smallest letters of a drawing, in pixels of the page.
SMALLEST = 8.0

#: What is wrong with the drawings: letters outside of them, on each other, or too small.
LOOK = """([slackX, slackY, smallest]) => {
  const wrong = [];
  for (const svg of document.querySelectorAll("figure svg")) {
    const name = svg.parentElement.id, frame = svg.getBoundingClientRect();
    const scale = frame.width / svg.viewBox.baseVal.width;
    const texts = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim());
    const boxes = texts.map((t) => [t.textContent.trim(), t.getBoundingClientRect()]);
    for (const t of texts)
      if (parseFloat(getComputedStyle(t).fontSize) * scale < smallest)
        wrong.push(`${name}: letters of "${t.textContent.trim()}" are small`);
    boxes.forEach(([words, a], place) => {
      if (a.left < frame.left - 1 || a.right > frame.right + 1
          || a.top < frame.top - 1 || a.bottom > frame.bottom + 1)
        wrong.push(`${name}: "${words}" is cut`);
      for (const [others, b] of boxes.slice(place + 1)) {
        const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (x > slackX && y > slackY) wrong.push(`${name}: "${words}" on "${others}"`);
      }
    });
  }
  return wrong;
}"""


#: Unfolds all chapters and long tables.
UNFOLD = "document.querySelectorAll('details').forEach((fold) => { fold.open = true; })"


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The file of a report with every kind of chapter."""
    root = tmp_path_factory.mktemp("report")
    folder = measured.folder(root / "results", sparse=16)
    assert main([str(folder), "--out", str(root / "out")]) == 0
    return root / "out" / measured.SLUG / "report.html"


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    from playwright.sync_api import sync_playwright

    assert BROWSER, "no Chromium to look at the page with: apt install chromium"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=OFFLINE)
        yield running
        running.close()


@contextmanager
def open_in(browser, file, width=1280, scheme="light"):
    """The page of a file, and what the browser complains of or wants from elsewhere."""
    size = {"width": width, "height": 800}
    context = browser.new_context(viewport=size, color_scheme=scheme, offline=True)
    try:
        page = context.new_page()
        page.complaints = []
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on(
            "request",
            lambda request: (
                page.complaints.append(request.url) if request.url != file.as_uri() else None
            ),
        )
        page.goto(file.as_uri())
        yield page
    finally:
        context.close()


@pytest.fixture
def look(browser, report):
    """Opens the page of a report."""
    with ExitStack() as opened:
        yield lambda *how, **more: opened.enter_context(open_in(browser, report, *how, **more))


#: Labels with something drawn behind or over them: a bar, a marker, a line, but not the grid.
COVERED = """([slackX, slackY]) => {
  const wrong = new Set();
  const grid = document.createElement("i");
  grid.style.color = "var(--grid)";
  document.body.append(grid);
  const quiet = getComputedStyle(grid).color;
  const inside = (a, x, y) =>
    x > a.left + slackX && x < a.right - slackX && y > a.top + slackY && y < a.bottom - slackY;
  for (const svg of document.querySelectorAll("figure svg")) {
    const name = svg.parentElement.id;
    const boxes = [...svg.querySelectorAll("text")].filter((t) => t.textContent.trim())
      .map((t) => [t.textContent.trim(), t.getBoundingClientRect()]);
    for (const mark of svg.querySelectorAll("path, use")) {
      if (mark.closest("defs, clipPath")) continue;
      const { fill, stroke } = getComputedStyle(mark);
      const b = mark.getBoundingClientRect();
      if (mark.localName === "path" && fill === "none") {
        if (stroke === quiet || stroke === "none") continue;
        const to = mark.getScreenCTM(), length = mark.getTotalLength();
        for (let at = 0; at <= length; at += 1) {
          const point = mark.getPointAtLength(at).matrixTransform(to);
          for (const [words, a] of boxes)
            if (inside(a, point.x, point.y)) wrong.add(`${name}: a line crosses "${words}"`);
        }
      } else {
        for (const [words, a] of boxes) {
          const x = Math.min(a.right, b.right) - Math.max(a.left, b.left);
          const y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
          if (x > slackX && y > slackY) wrong.add(`${name}: a mark is on "${words}"`);
        }
      }
    }
  }
  grid.remove();
  return [...wrong];
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_no_label_is_covered(look, width):
    page = look(width)
    page.evaluate(UNFOLD)
    assert page.evaluate(COVERED, SLACK) == []


#: A drawing with a marker, a bar and a line behind labels.
BAD = """
<figure id="bad"><svg viewBox="0 0 300 100">
<path d="M 0 0 L 90 0 L 90 30 L 0 30 Z" fill="red"/><text x="10" y="20">on a bar</text>
<path d="M 0 60 L 300 60" fill="none" stroke="blue"/><text x="10" y="64">crossed</text>
<defs><path id="m" d="M -4 -4 L 4 -4 L 4 4 Z"/></defs>
<use href="#m" x="220" y="17"/><text x="200" y="20">marked</text>
<path d="M 120 80 L 290 80" fill="none" stroke="var(--grid)"/><text x="200" y="85">free</text>
</svg></figure>"""


def test_covered_labels_are_found(look):
    page = look()
    page.evaluate("(markup) => document.querySelector('#glance').innerHTML = markup", BAD)
    assert page.evaluate(COVERED, SLACK) == [
        'bad: a mark is on "on a bar"',
        'bad: a line crosses "crossed"',
        'bad: a mark is on "marked"',
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_is_cut_and_nothing_overlaps(look, width, scheme):
    page = look(width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate(UNFOLD)
    assert page.locator("figure svg").count() > 20
    assert page.evaluate(LOOK, [*SLACK, SMALLEST]) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.complaints == []


def test_light_and_dark_differ_and_can_be_changed(look):
    paper = "getComputedStyle(document.documentElement).backgroundColor"
    line = "getComputedStyle(document.querySelector('figure svg text')).fill"
    found = {}
    for scheme in ("light", "dark"):
        page = look(scheme=scheme)
        found[scheme] = (page.evaluate(paper), page.evaluate(line))
        page.click("#theme")
        changed = (page.evaluate(paper), page.evaluate(line))
        page.click("#theme")
        assert (page.evaluate(paper), page.evaluate(line)) == found[scheme] != changed
    assert all(contrast(*of) > 4.5 for of in found.values())


def contrast(*colours: str) -> float:
    """Of two colours `rgb(r, g, b)`: Web Content Accessibility Guidelines 2.2, contrast ratio."""

    def luminance(text: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", text)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def test_tables_sort_by_numbers_and_by_words(look):
    page = look()
    page.evaluate(UNFOLD)

    def column(place):
        rows = page.locator("#rows-products tbody tr").all()
        return [row.locator("td").nth(place).inner_text() for row in rows]

    heads = page.locator("#rows-products th").all_inner_texts()
    place = next(i for i, head in enumerate(heads) if head.startswith("pymm"))
    button = page.locator("#rows-products th button").nth(place)
    button.click()
    times = [float(text) for text in column(place)]
    assert times == sorted(times) and len(set(times)) > 10
    button.click()
    assert [float(text) for text in column(place)] == times[::-1]
    page.locator("#rows-products th button").first.click()
    assert column(0) == sorted(column(0))
    sorts = page.locator("#rows-products th").evaluate_all("all => all.map(e => e.ariaSort)")
    assert [s for s in sorts if s] == ["ascending"]
    assert page.complaints == []


def test_tables_are_filtered(look):
    page = look()
    page.evaluate(UNFOLD)
    page.fill('input[data-table="rows-products"]', "tf32x3 TN")
    shown = page.locator("#rows-products tbody tr:visible").all_inner_texts()
    assert len(shown) == 4 and all("tf32x3" in row and "TN" in row for row in shown)
    page.fill('input[data-table="rows-products"]', "")
    assert page.locator("#rows-products tbody tr:visible").count() == 24


def test_the_first_screen_is_short_and_chapters_unfold(look, report):
    page = look()
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map(e => e.id)")
    assert len(ids) == len(set(ids))
    assert page.evaluate("document.documentElement.scrollHeight") < 3000
    chapters = page.locator("details.chapter")
    assert chapters.count() > 10 and page.locator("details[open]").count() == 0
    assert page.locator("#glance .tile").first.is_visible()
    assert not page.locator("#rows-products").is_visible()
    page.locator("#baseline summary h2").click()
    assert page.locator("#table-classes-0").is_visible()
    page.goto(f"{report.as_uri()}#o3")
    assert page.locator("#o3 figure").first.is_visible()


def test_the_page_prints(look):
    page = look(scheme="dark")
    page.emulate_media(media="print")
    paper = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert paper == "rgb(255, 255, 255)"
    assert not page.locator("#theme").is_visible()
    assert len(page.pdf()) > 10_000
    assert page.locator("details.chapter:not([open])").count() == 0, "paper has no folds"
    assert page.locator("details.long[open]").count() == 0 < page.locator("details.long").count()


def test_what_is_wider_than_the_page_says_so(look):
    """A table of many columns on a phone, unfolded later; a small one has no hint."""
    page = look(390)
    page.evaluate(UNFOLD)
    hints = page.evaluate("""() => new Promise((done) => requestAnimationFrame(() =>
      requestAnimationFrame(() => done([...document.querySelectorAll(".wide")].map((wide) =>
        [wide.scrollWidth > wide.clientWidth, !wide.previousElementSibling.hidden])))))""")
    assert {wide for wide, _ in hints} == {True, False}
    assert all(wide == hint for wide, hint in hints)


def test_the_page_is_small(report):
    assert report.stat().st_size < 3 * 2**20
