"""Curves as a figure: one drawing for whatever is shown against a size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pymm.measure.libraries import BASELINES, general_on
from pymm.report.drawing import HEIGHT, Figure, colour, decades, draw, series
from pymm.report.studies import CHOICE, Curves

#: Of more points than this a curve is drawn without marks.
DENSE = 25

#: Series that are kept for a curve.
SERIES = {CHOICE: 0} | {
    BASELINES[name].title: number
    for kind in ("cuda", "cpu")
    for number, name in enumerate(general_on(kind), 1)
}

#: A size that is no multiple of it leaves partial tiles: it stands beside a curve, not on it.
TILE = 32


@dataclass(frozen=True)
class Axes:
    """What stands along the axes, and how: scales are `linear`, `log` or, of x, `binary`."""

    x: str
    y: str
    x_scale: str = "linear"
    y_scale: str = "linear"
    limit: float | None = None
    limit_name: str = "limit"


def figure(
    name: str,
    title: str,
    words: str,
    lines: Curves,
    axes: Axes,
    columns: int = 2,
    among: Iterable[str] = (),
) -> Figure:
    """The curves, each with a colour, a mark and a dash of its own, the same as in a figure of the
    curves `among`; `limit` is a dashed line.
    """
    places = slots(dict.fromkeys((*among, *lines)))

    def plot(drawn: Any, own: Any) -> None:
        for label, line in lines.items():
            _curve(own, places[label], label, line)
        if axes.limit is not None:
            own.axhline(axes.limit, color=colour("ink"), linestyle="--", linewidth=1.2)
            own.annotate(
                axes.limit_name,
                (1, axes.limit),
                xycoords=("axes fraction", "data"),
                textcoords="offset points",
                xytext=(0, -2),
                va="top",
                ha="right",
            )
        own.set(xlabel=axes.x, ylabel=axes.y)
        _scales(own, lines, axes)
        drawn.legend(loc="outside lower center", ncols=columns)

    height = HEIGHT + 15 * max(0, -(-len(lines) // columns) - 1)
    return draw(name, title, words, plot, height)


def slots(names: Iterable[str]) -> dict[str, int]:
    """The number of each curve's series: the same for ours and the libraries in every figure."""
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
    whole = [point for point in points if point[0] % TILE == 0]
    apart = [point for point in points if point[0] % TILE]
    if len(whole) < len(apart):
        whole, apart = points, []
    own.plot(*zip(*whole, strict=True), label=label, **style)
    if apart:
        own.plot(*zip(*apart, strict=True), **(style | {"linestyle": ""}), fillstyle="none")


def _scales(own: Any, lines: Curves, axes: Axes) -> None:
    if axes.y_scale == "log":
        own.set_yscale("log")
        own.minorticks_off()
        decades(own.yaxis)
        _fine(own.yaxis, [y for line in lines.values() for y in line.values()])
    else:
        top = max(y for line in lines.values() for y in line.values())
        own.set_ylim(0, 1.05 * max(top, axes.limit or 0.0) or 1.0)
    if axes.x_scale == "log":
        own.set_xscale("log")
        decades(own.xaxis)
    elif axes.x_scale == "binary":
        places = sorted({x for line in lines.values() for x in line})
        own.set_xscale("log", base=2)
        ticks = [n for n in (2**e for e in range(24)) if places[0] <= n <= places[-1]]
        own.set_xticks(ticks, _labels(ticks))
        own.minorticks_off()


def _fine(axis: Any, values: Sequence[float]) -> None:
    """Within less than two decades 2 and 5 are marked, too."""
    from matplotlib.ticker import LogLocator

    if max(values) < 100 * min(values):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def _labels(ticks: Sequence[int]) -> list[str]:
    return [str(tick) for tick in ticks]


def scaled(lines: Curves) -> tuple[Curves, str, float]:
    """GFLOP/s as they are or as TFLOP/s, the unit's name, and what was divided by."""
    top = max((y for line in lines.values() for y in line.values()), default=0.0)
    if top < 2e3:
        return lines, "GFLOP/s", 1.0
    return {n: {x: y / 1e3 for x, y in line.items()} for n, line in lines.items()}, "TFLOP/s", 1e3
