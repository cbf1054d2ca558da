"""Figures as SVG text whose colours are CSS variables, so that one drawing serves light, dark and
print. The only module that knows Matplotlib.

A figure is 360 units wide with letters of 9 and 10: at about that size it stands on a phone and,
three in a row, on a laptop.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

#: Width and usual height of a figure, in CSS pixels at its natural size.
WIDTH, HEIGHT = 360, 270

#: Colours by role: what Matplotlib is given, the variable that takes its place, and its values on
#: a light and a dark page. The series follow the palette of M. Okabe and K. Ito (Color universal
#: design, 2008), darker or lighter where the page's background wants it; every series has a shape
#: or a dash of its own besides.
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
}

#: Shapes and dashes that go with the series.
MARKERS = "osD^vP*X"
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2)))

_STYLE = {
    "svg.fonttype": "none",  # text stays text: it can be searched and read aloud
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


class NoPlots(ImportError):
    """Matplotlib is not there; the message says how to get it."""


@dataclass(frozen=True)
class Figure:
    """One drawing: its short name, a title, what it shows, and its SVG. `words` is also what is
    read aloud.
    """

    name: str
    title: str
    words: str
    svg: str


def colour(role: str) -> str:
    """What Matplotlib is to draw a role with."""
    return ROLES[role][0]


def series(number: int) -> dict[str, Any]:
    """Colour, marker and dash of a series; from the ninth on another mark and dash go with a
    colour.
    """
    place = number % 8
    other = (place + 3 * (number // 8)) % 8
    return {
        "color": colour(f"series-{place}"),
        "marker": MARKERS[other],
        "linestyle": DASHES[other],
    }


def decades(axis: Any) -> None:
    """Powers of ten along an axis in plain figures: raised exponents are too small for a phone."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: plain(value)))
    axis.set_minor_formatter(NullFormatter())


def plain(value: float) -> str:
    """1000 as "1k", 0.00001 as "1e-5"."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}" if value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def style_sheet() -> str:
    """The variables of every role, for light and for dark; `data-theme` decides over the system."""
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
    words: str,
    plot: Callable[[Any, Any], None],
    height: int = HEIGHT,
    panels: int = 1,
) -> Figure:
    """A figure: `plot` gets Matplotlib's figure and its axes (a list if there are several
    `panels`, one below the other). Raises `NoPlots` without Matplotlib.
    """
    with _matplotlib(name) as figure_class:
        figure = figure_class(figsize=(WIDTH / 72, height / 72), layout="constrained")
        axes = figure.subplots(panels, 1)
        plot(figure, list(axes) if panels > 1 else axes)
        text = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", metadata=nothing, transparent=True)
    return Figure(name, title, words, _inline(text.getvalue(), name, f"{title}. {words}"))


@contextmanager
def _matplotlib(name: str) -> Iterator[Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure as Drawn
    except ImportError:
        raise NoPlots("plots need Matplotlib: pip install matplotlib") from None
    drawn = {
        "svg.hashsalt": name,  # names in the text are the same at every run
        "text.color": colour("ink"),
        "axes.labelcolor": colour("ink"),
        "axes.edgecolor": colour("muted"),
        "xtick.color": colour("muted"),
        "ytick.color": colour("muted"),
        "grid.color": colour("grid"),
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # whatever a user's own style says
        matplotlib.rcParams.update(_STYLE | drawn)
        yield Drawn


def _inline(svg: str, name: str, words: str) -> str:
    """Matplotlib's file as an element of a page: no head, names of its own, variable colours."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.DOTALL)
    svg = _shortened(re.sub(r"\n\s*", "\n", svg))
    for place, _, _ in (ROLES[role] for role in ROLES):
        variable = next(role for role in ROLES if ROLES[role][0] == place)
        svg = svg.replace(place, f"var(--{variable})")
    wanted = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda at: at[0] if at[1] in wanted else "", svg)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    svg = svg.replace("font-family: 'DejaVu Sans'", "font-family: var(--letters)")
    svg = re.sub(r"font: ([\d.]+)px 'DejaVu Sans'", r"font: \1px var(--letters)", svg)
    head, rest = svg.split(">", 1)
    box = re.search(r'viewBox="[^"]*"', head)[0]
    label = words.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
        f'{box} role="img" aria-label="{label}">{rest}'
    )


def _shortened(svg: str) -> str:
    """Hundredths suffice for a place, and marks of one style share it: half the length."""

    def places(tag: re.Match[str]) -> str:
        return re.sub(r"-?\d+\.\d{3,}", lambda at: f"{float(at[0]):.2f}", tag[0])

    def marks(run: re.Match[str]) -> str:
        style = run["style"]
        return f'<g style="{style}">\n' + run[0].replace(f' style="{style}"', "") + "</g>\n"

    svg = re.sub(r"<(?:path|use|text|clipPath|rect)\b[^>]*>", places, svg)
    one = r'<use [^>]*? style="{}"/>\n'
    first, more = one.format(r'(?P<style>[^"]*)'), one.format(r"(?P=style)")
    return re.sub(rf"{first}(?:{more})+", marks, svg)


def alone(figure: Figure) -> str:
    """The drawing as a file of its own, which follows the reader's light or dark."""
    css = style_sheet() + ':root{--letters:"DejaVu Sans",Verdana,sans-serif}'
    head, rest = figure.svg.split(">", 1)
    width, height = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', head).groups()
    back = f'<rect width="{width}" height="{height}" style="fill: var(--paper)"/>'
    return f'{head} width="{width}" height="{height}"><style>{css}</style>{back}{rest}\n'
