"""Figures as SVG whose colours are CSS variables, so that one drawing serves light, dark and print.
The only module that uses Matplotlib.

A figure is 360 units wide with text of size 9 and 10: about its size on a phone and, three in a
row, on a laptop.
"""

from __future__ import annotations

import hashlib
import io
import re
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pymm.core.dtypes import DTYPES
from pymm.core.errors import Error
from pymm.core.integers import ceil_div
from pymm.measure.libraries import BASELINES, GENERAL
from pymm.report.markup import Markup, element, identifier, tag
from pymm.report.stats import CHOICE, Curves

#: Width and usual height of a figure, in CSS pixels at its natural size.
WIDTH, HEIGHT = 360, 270

#: Colours by role: the placeholder that Matplotlib draws with, and the values of the CSS variable
#: that replaces it on a light and on a dark page. The series follow the palette of M. Okabe and K.
#: Ito (Color universal design, 2008), darker or lighter for contrast with the background; every
#: series also has its own marker and dash.
ROLES: dict[str, tuple[str, str, str]] = {
    "ink": ("#010101", "#1d1d1f", "#f0f0f2"),
    "muted": ("#020202", "#5c5c66", "#a5a5b0"),
    "grid": ("#030303", "#dcdce2", "#3a3a44"),
    "paper": ("#040404", "#ffffff", "#1a1a20"),
    "series-0": ("#050501", "#0067a5", "#5ab4f0"),
    "series-1": ("#050502", "#c04e00", "#ff9a55"),
    "series-2": ("#050503", "#007a5a", "#35d0a0"),
    "series-3": ("#050504", "#a8467c", "#eda3cb"),
    "series-4": ("#050505", "#7a6200", "#f0e442"),
    "series-5": ("#050506", "#2b8fc4", "#a6dcff"),
    "series-6": ("#050507", "#5b4b9a", "#bda9f5"),
    "series-7": ("#050508", "#55555d", "#c4c4cc"),
    "series-8": ("#050509", "#4a7a00", "#a6e060"),
    "series-9": ("#05050a", "#7d3c14", "#e0a070"),
}

#: Colours of series, and the markers of types.
COLOURS, TYPE_MARKERS = 10, "osD^vP*Xhp"

#: Markers and dashes of the series.
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))

#: Warnings of Matplotlib about names that are long, begin with an underscore, or have letters that
#: its font lacks (browsers use another font).
QUIET = ("constrained_layout not applied", "No artists with labels", "Glyph .* missing from font")

_STYLE = {
    "svg.fonttype": "none",  # text stays text: searchable and accessible
    "text.parse_math": False,  # names may contain $
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 10,
    "axes.titlesize": 10,
    "axes.labelsize": 10,
    "xtick.labelsize": 9,
    "ytick.labelsize": 9,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.linewidth": 0.7,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "path.simplify": True,
}


class NoPlots(Error, ImportError):
    """Matplotlib is missing; the message says how to install it."""


@dataclass(frozen=True)
class Figure:
    """One drawing: name, title, caption (also its accessible description) and SVG. `rules` maps the
    classes of its elements to CSS, for the style sheet of a page without inline styles.
    """

    name: str
    title: str
    caption: str
    svg: Markup
    rules: Mapping[str, str] = field(default_factory=dict)


def colour(role: str) -> str:
    """The placeholder colour of a role."""
    return ROLES[role][0]


def series(number: int) -> dict[str, Any]:
    """Colour, marker and dash of a series; colours repeat from the ninth on, with another marker
    and dash.
    """
    place = number % 8
    other = (place + 3 * (number // 8)) % 8
    return {
        "color": colour(f"series-{place}"),
        "marker": MARKERS[other],
        "linestyle": DASHES[other],
    }


def type_series(dtype: str) -> dict[str, Any]:
    """Colour and marker of a type, the same in every figure."""
    place = list(DTYPES).index(dtype) if dtype in DTYPES else len(DTYPES)
    return {
        "color": colour(f"series-{place % COLOURS}"),
        "marker": TYPE_MARKERS[place % len(TYPE_MARKERS)],
    }


def label_decades(axis: Any) -> None:
    """Label an axis by powers of ten without superscripts, which are too small on a phone."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: short_number(value)))
    axis.set_minor_formatter(NullFormatter())


def short_number(value: float) -> str:
    """1000 as "1k", 0.00001 as "1e-5"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}" if value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def style_sheet() -> str:
    """The CSS variables of every role, for light and dark; `data-theme` overrides the system."""
    light = "".join(f"--{role}:{values[1]};" for role, values in ROLES.items())
    dark = "".join(f"--{role}:{values[2]};" for role, values in ROLES.items())
    return (
        f":root{{color-scheme:light;{light}}}"
        "@media screen and (prefers-color-scheme:dark){:root:not([data-theme=light])"
        f"{{color-scheme:dark;{dark}}}}}"
        f"@media screen{{:root[data-theme=dark]{{color-scheme:dark;{dark}}}}}"
    )


def draw(
    name: str,
    title: str,
    caption: str,
    plot: Callable[[Any, Any], None],
    height: int = HEIGHT,
    panels: int = 0,
) -> Figure:
    """Draw a figure. `plot` gets Matplotlib's figure and its axes, or with `panels` a list of so
    many axes, one below the other. Raises `NoPlots` without Matplotlib.
    """
    name = identifier(name)
    with _matplotlib(name) as figure_class:
        figure = figure_class(figsize=(WIDTH / 72, height / 72), layout="constrained")
        axes = list(figure.subplots(panels or 1, 1, squeeze=False)[:, 0])
        plot(figure, axes if panels else axes[0])
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing, transparent=True)
    rules: dict[str, str] = {}
    svg = _inline(text.getvalue(), name, f"{title}. {caption}", rules)
    return Figure(name, title, caption, svg, rules)


@contextmanager
def _matplotlib(name: str) -> Iterator[Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure as Drawn
    except ImportError:
        raise NoPlots("plots need Matplotlib: pip install matplotlib") from None
    drawn = {
        "svg.hashsalt": name,  # the same ids in every run
        "text.color": colour("ink"),
        "axes.labelcolor": colour("ink"),
        "axes.edgecolor": colour("muted"),
        "xtick.color": colour("muted"),
        "ytick.color": colour("muted"),
        "grid.color": colour("grid"),
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        for message in QUIET:
            warnings.filterwarnings("ignore", message, UserWarning)
        matplotlib.rcdefaults()  # not the user's own style
        matplotlib.rcParams.update(_STYLE | drawn)
        yield Drawn


_SVG, _XLINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"

#: The ends and joins of lines in Matplotlib's drawings, unless an element sets others.
STROKES = "stroke-linejoin:round;stroke-linecap:butt"


def _inline(svg: str, name: str, caption: str, rules: dict[str, str]) -> Markup:
    """Matplotlib's file as an element of a page: no header, unique ids, variables for colours, and
    classes for styles, whose rules are added to `rules`.
    """
    root = ElementTree.fromstring(svg)
    attributes = [text for node in root.iter() for text in node.attrib.values()]
    wanted = {at for text in attributes for at in re.findall(r"(?:^|url\()#([^)]+)", text)}

    def copied(node: ElementTree.Element) -> Markup:
        kind = node.tag.removeprefix(_SVG)
        found = dict(_attributes(node, name, wanted, rules))
        text = [node.text] if kind == "text" and node.text else []
        return element(kind, found, *text, *children(node))

    def children(node: ElementTree.Element) -> Iterable[Markup]:
        known = (child for child in node if child.tag not in (f"{_SVG}style", f"{_SVG}metadata"))
        return [copied(child) for child in known if len(child) or child.attrib]

    head = {
        "xmlns": _SVG[1:-1],
        "xmlns:xlink": _XLINK[1:-1],
        "viewBox": root.attrib["viewBox"],
        "role": "img",
        "aria-label": caption,
    }
    return element("svg", head, *children(root))


def _attributes(
    node: ElementTree.Element, name: str, wanted: set[str], rules: dict[str, str]
) -> Iterator[tuple[str, str]]:
    """The attributes of an element, with coordinates rounded to hundredths."""
    for key, value in node.attrib.items():
        if key == "style":
            rule = _rule(value)
            known = "d" + hashlib.sha256(rule.encode()).hexdigest()[:7]
            rules[known] = rule
            yield "class", known
        elif key == "id":
            if value in wanted:
                yield "id", f"{name}-{value}"
        elif key == f"{_XLINK}href":
            yield "xlink:href", f"#{name}-{value[1:]}"
        else:
            value = " ".join(value.split()).replace("url(#", f"url(#{name}-")
            if key in ("d", "x", "y", "width", "height", "transform"):
                value = re.sub(r"-?\d+\.\d{3,}", lambda at: f"{float(at[0]):.2f}", value)
            yield key, value


def _rule(style: str) -> str:
    """A style of Matplotlib's with the variables of the page."""
    for role, values in ROLES.items():
        style = style.replace(values[0], f"var(--{role})")
    style = re.sub(r"(font-family: |font: [\d.]+px )'DejaVu Sans'", r"\1var(--letters)", style)
    if not re.fullmatch(r"[\w\s:;.,#()%-]*", style):
        raise ValueError(f"{style!r} is not a style of a drawing")
    return style


def rules_of(figures: Iterable[Figure]) -> str:
    """The rules of figures as a style sheet, the same for the same drawings."""
    rules = {name: rule for figure in figures for name, rule in figure.rules.items()}
    return "".join(f".{name}{{{rule}}}" for name, rule in sorted(rules.items()))


def standalone(figure: Figure) -> str:
    """The drawing as a file, which follows the reader's light or dark theme."""
    letters = ':root{--letters:"DejaVu Sans",Verdana,sans-serif}'
    css = f"{style_sheet()}{letters}*{{{STROKES}}}{rules_of([figure])}"
    head, rest = figure.svg.split(">", 1)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head).groups()
    back = tag("rect", width=width, height=height, class_="back")
    css = tag("style", f"{css}.back{{fill:var(--paper)}}")
    return f'{head} width="{width}" height="{height}">{css}{back}{rest}\n'


#: Curves of more points are drawn without markers.
DENSE = 25

#: The series of curves that are the same in all figures.
_OF_KIND = {b.kind: [n for n in GENERAL if BASELINES[n].kind == b.kind] for b in BASELINES.values()}
SERIES = {CHOICE: 0} | {
    BASELINES[name].title: number
    for names in _OF_KIND.values()
    for number, name in enumerate(names, 1)
}

#: Sizes that are no multiples of it have partial tiles, and open markers apart from the curve.
TILE = 32


@dataclass(frozen=True)
class Axes:
    """The labels and scales of axes: `linear`, `log` or, for x, `binary`. `limit` is a dashed
    line.
    """

    x: str
    y: str
    x_scale: str = "linear"
    y_scale: str = "linear"
    limit: float | None = None
    limit_name: str = "peak"


def figure(
    name: str,
    title: str,
    caption: str,
    lines: Curves,
    axes: Axes,
    columns: int = 2,
    among: Iterable[str] = (),
) -> Figure:
    """A figure of curves, each with its own colour, marker and dash: the same as in a figure of the
    curves `among`.
    """
    places = slots(dict.fromkeys((*among, *lines)))

    def plot(drawn: Any, own: Any) -> None:
        for label, line in lines.items():
            _curve(own, places[label], label, line)
        if axes.limit is not None:
            style = {"color": colour("ink"), "linestyle": "--", "linewidth": 1.2}
            own.axhline(axes.limit, label=axes.limit_name, **style)
        own.set(xlabel=axes.x, ylabel=axes.y)
        _scales(own, lines, axes)
        drawn.legend(loc="outside lower center", ncols=columns)

    entries = len(lines) + (axes.limit is not None)
    height = HEIGHT + 15 * max(0, ceil_div(entries, columns) - 1)
    return draw(name, title, caption, plot, height)


def slots(names: Iterable[str]) -> dict[str, int]:
    """The series of each curve, the same for pymm's choice and the libraries in every figure."""
    found = {name: SERIES[name] for name in names if name in SERIES}
    free = (number for number in (3, 4, 5, 6, 7, 0, 1, 2, *range(8, 99)))
    for name in names:
        if name not in found:
            found[name] = next(number for number in free if number not in found.values())
    return found


def _curve(own: Any, number: int, label: str, line: dict[float, float]) -> None:
    style, points = series(number), list(line.items())
    if len(points) > DENSE:
        own.plot(*zip(*points, strict=True), label=label, **(style | {"marker": ""}))
        return
    on = [point for point in points if point[0] % TILE == 0]
    off = [point for point in points if point[0] % TILE]
    if len(on) < len(off):
        on, off = points, []
    own.plot(*zip(*on, strict=True), label=label, **style)
    if off:
        own.plot(*zip(*off, strict=True), **(style | {"linestyle": ""}), fillstyle="none")


def _scales(own: Any, lines: Curves, axes: Axes) -> None:
    if axes.y_scale == "log":
        own.set_yscale("log")
        own.minorticks_off()
        label_decades(own.yaxis)
        _fine(own.yaxis, [y for line in lines.values() for y in line.values()])
    else:
        top = max(y for line in lines.values() for y in line.values())
        own.set_ylim(0, 1.05 * max(top, axes.limit or 0.0) or 1.0)
    if axes.x_scale == "log":
        own.set_xscale("log")
        label_decades(own.xaxis)
    elif axes.x_scale == "binary":
        places = sorted({x for line in lines.values() for x in line})
        own.set_xscale("log", base=2)
        ticks = [n for n in (2**e for e in range(24)) if places[0] <= n <= places[-1]]
        own.set_xticks(ticks, _labels(ticks))
        own.minorticks_off()


def _fine(axis: Any, values: Sequence[float]) -> None:
    """Label 2 and 5, too, on an axis of less than two decades."""
    from matplotlib.ticker import LogLocator

    if max(values) < 100 * min(values):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def _labels(ticks: Sequence[int]) -> list[str]:
    return [str(tick) for tick in ticks]


def with_unit(lines: Curves) -> tuple[Curves, str, float]:
    """The curves in GFLOP/s or TFLOP/s, the unit, and its size in GFLOP/s."""
    top = max((y for line in lines.values() for y in line.values()), default=0.0)
    if top < 2e3:
        return lines, "GFLOP/s", 1.0
    return {n: {x: y / 1e3 for x, y in line.items()} for n, line in lines.items()}, "TFLOP/s", 1e3
