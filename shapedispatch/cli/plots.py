"""Pictures of sweeps: PNG or SVG, on any machine, readable in grey.

Each variant has a marker and a line style of its own, so that no picture needs its colours; device and versions stand
in the corner. Matplotlib is imported when the first picture is drawn, and its global state is not touched: no pyplot,
no backend.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import ShapeDispatchError
from .sweeps import Curve, Point, Sweep

__all__ = [
    "CannotDraw",
    "draw_bars",
    "draw_curves",
    "draw_heat",
    "draw_ratios",
    "draw_sorted",
    "draw_times",
    "pictures",
    "refuse_without_matplotlib",
    "save",
]

FORMATS = (".png", ".svg")
# Dark to light and apart in grey too; markers and line styles tell what is left.
_COLOURS = ("#1b1b1b", "#b3452b", "#2b6cb0", "#5a8f29", "#8e44ad", "#c78a1b", "#4f6d7a", "#a23b72", "#0e9aa7")
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
_TICKS_FLAT = 8  # more of them are turned
_ROOM_FOR_A_TICK = 0.04  # of the axis, where they are turned
_ROOM_FOR_A_DIGIT = 0.018  # where they are not
_FILLS = ("0.25", "0.85", "0.6", "0.95", "0.45")
_HATCHES = ("", "", "//", "..", "\\\\")
_SHADES = ("0.93", "0.99")
_BARS_WITH_ROOM = 16  # for their numbers beside each other
_LETTERS_OVER_BARS = 70  # what stands over bars beside each other, on one line, beyond which it runs together
_LETTERS_UNDER_BARS = 62  # of as many labels as the longest; where they need more they are turned
_LETTERS_ACROSS = 75  # of a region's label; one that has no room stands upright


class CannotDraw(ShapeDispatchError):
    """There is nothing to draw, or nothing to draw with; the text is a sentence."""


# What is drawn. Each takes a Sweep (or Curves) and returns a matplotlib Figure.


def draw_times(sweep: Sweep, dim: str) -> Any:
    """Microseconds a call against the size of ``dim``: a line a variant, the chosen one ringed, shaded by who wins."""
    row = _row(sweep, dim)
    figure, axes = _axes(row, f"size of {dim}", "µs a call")
    for place, name in enumerate(row.variants()):
        timed = [(point.sizes[dim], timing) for point in row.points for timing in point.timings]
        sizes, timings = _columns([(size, timing) for size, timing in timed if timing.variant == name])
        axes.plot(sizes, [timing.median_us for timing in timings], label=name, **_style(place))
        low, high = ([timing.median_us + sign * timing.spread_us for timing in timings] for sign in (-1, 1))
        axes.fill_between(sizes, low, high, color=_style(place)["color"], alpha=0.15, linewidth=0)
    _ring(axes, [(point.sizes[dim], time) for point in row.points if (time := point.times().get(point.chosen))])
    _logarithmic(axes, [point.sizes[dim] for point in row.points], "both")
    _shade(axes, row, dim)
    return _finished(figure, axes)


def draw_ratios(sweep: Sweep, dim: str) -> Any:
    """Each variant's time as a multiple of the fastest one's at that size: how far a fixed choice can be off."""
    row = _row(sweep, dim)
    figure, axes = _axes(row, f"size of {dim}", "time / time of the fastest variant at that size")
    for place, name in enumerate(row.variants()):
        points = [(point.sizes[dim], point.ratios()[name]) for point in row.points if name in point.ratios()]
        worst = max((ratio for _, ratio in points), default=1.0)
        axes.plot(*_columns(points), label=f"{name}: at worst {worst:.2f} ×", **_style(place))
    _ring(axes, [(point.sizes[dim], ratio) for point in row.points if (ratio := point.ratios().get(point.chosen))])
    axes.axhline(1.0, color="0.6", linewidth=0.8)
    _logarithmic(axes, [point.sizes[dim] for point in row.points], "x")
    return _finished(figure, axes)


def draw_heat(sweep: Sweep, across: str, up: str) -> Any:
    """For two dims: in each cell the chosen variant and how many times faster than plain it is; darker is more."""
    placed = [point for point in sweep.points if across in point.sizes and up in point.sizes]
    cells = {(point.sizes[across], point.sizes[up]): point for point in placed}
    if not cells:
        raise CannotDraw(f"{sweep.title}: no call has both sizes {across} and {up}")
    columns, rows = sorted({x for x, _ in cells}), sorted({y for _, y in cells})
    figure, axes = _axes(sweep, f"size of {across}", f"size of {up}")
    gains = [[_gain(cells.get((x, y))) for x in columns] for y in rows]
    low, top = min(map(min, gains)), max(map(max, gains))
    # Neither white nor black: what is written in a cell is read on any of these greys.
    span = {"vmin": low - 0.1, "vmax": low + 2 * (top - low) + 0.1}
    image = axes.imshow(gains, origin="lower", aspect="auto", cmap="Greys", **span)
    for (x, y), point in cells.items():
        written = f"{point.chosen}\n{_gain(point):.2f} ×"
        axes.text(columns.index(x), rows.index(y), written, ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(columns)), [str(x) for x in columns])
    axes.set_yticks(range(len(rows)), [str(y) for y in rows])
    figure.colorbar(image, label="time of plain / time of what was chosen").ax.set_ylim(low - 0.1, top + 0.1)
    return figure


def draw_curves(title: str, curves: Sequence[Curve], across: str, ran_on: str = "") -> Any:
    """Microseconds a call against a count, such as the number of shapes or of tensors: a line a contender."""
    if not curves:
        raise CannotDraw(f"{title}: there is nothing to draw")
    figure, axes = _axes(Sweep(title, (), ran_on), across, "µs a call on the host")
    for place, curve in enumerate(curves):
        counts, medians, spreads = (list(column) for column in zip(*curve.points, strict=True))
        axes.errorbar(counts, medians, spreads, label=curve.name, capsize=2, **_style(place))
    _logarithmic(axes, [count for curve in curves for count, _, _ in curve.points], "x")
    axes.set_ylim(bottom=0)
    return _finished(figure, axes)


def draw_bars(title: str, labels: Sequence[str], bars: Mapping[str, Sequence[float]], up: str, ran_on: str = "") -> Any:
    """A group of bars for each label, one a contender: ``bars`` are the contenders' heights, one a label."""
    if not labels or not bars:
        raise CannotDraw(f"{title}: there is nothing to draw")
    figure, axes = _axes(Sweep(title, (), ran_on), "", up)
    width = 0.8 / len(bars)
    many = len(labels) * len(bars)
    longest = max(len(_height(height)) for heights in bars.values() for height in heights)
    rotation = 90 if many > _BARS_WITH_ROOM or many * longest > _LETTERS_OVER_BARS else 0
    for place, (name, heights) in enumerate(bars.items()):
        left = [group - 0.4 + width * (place + 0.5) for group in range(len(labels))]
        fill = {"color": _FILLS[place % len(_FILLS)], "hatch": _HATCHES[place % len(_HATCHES)], "edgecolor": "0.2"}
        drawn = axes.bar(left, heights, width, label=name, **fill)
        axes.bar_label(drawn, [_height(height) for height in heights], fontsize=6, rotation=rotation, padding=2)
    crowded = len(labels) * max(map(len, labels)) > _LETTERS_UNDER_BARS
    turned: dict[str, Any] = {"rotation": 30, "ha": "right", "fontsize": 7} if crowded else {}
    axes.set_xticks(range(len(labels)), labels, **turned)
    axes.margins(y=0.12)
    return _finished(figure, axes)


def _height(height: float) -> str:
    """A bar's number; nothing where there is no bar."""
    if not math.isfinite(height):
        return ""
    return f"{height:,.0f}" if abs(height) >= 1000 else f"{height:.3g}"


def draw_sorted(title: str, values: Mapping[str, Sequence[float]], across: str, up: str, ran_on: str = "") -> Any:
    """Values in rising order against the share of them that is no larger: a line a contender, its median in the legend.

    Logarithmic upward where all are above nought and spread over more than a magnitude.
    """
    if not any(values.values()):
        raise CannotDraw(f"{title}: there is nothing to draw")
    figure, axes = _axes(Sweep(title, (), ran_on), across, up)
    for place, (name, found) in enumerate(values.items()):
        rising = sorted(found)
        shares = [100 * (index + 1) / len(rising) for index in range(len(rising))]
        style = _style(place) | {"markevery": max(1, len(rising) // 8)}
        axes.plot(shares, rising, label=f"{name}: median {statistics.median(rising):.3g}", **style)
    every = [value for found in values.values() for value in found]
    if min(every) > 0 and max(every) > 10 * min(every):
        _logarithmic_time(axes)
    return _finished(figure, axes)


def save(figure: Any, path: Path) -> None:
    """Write a picture; the ending says which kind. The same picture is the same bytes.

    Raises CannotDraw for another ending, OSError for a place that cannot be written.
    """
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise CannotDraw(f"{path.name}: a picture is written as {' or '.join(FORMATS)}")
    import matplotlib as mpl

    # Text stays text in an SVG: as outlines it would be most of the file.
    with mpl.rc_context({"svg.hashsalt": "shapedispatch", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=150, metadata={"Date": None} if ending == ".svg" else {"Software": None})


def refuse_without_matplotlib() -> None:
    """Raise CannotDraw where it is not installed: asked before any work is done for a picture."""
    try:
        import matplotlib.figure  # noqa: F401 - whether it can be imported is the question
    except ImportError:
        raise CannotDraw("plots need matplotlib, which is not installed: pip install 'shapedispatch[plot]'") from None


# How it is drawn.


def _row(sweep: Sweep, dim: str) -> Sweep:
    row = sweep.along(dim)
    if not row.points:
        raise CannotDraw(f"{sweep.title}: nothing was timed at sizes of {dim}")
    return row


def _axes(sweep: Sweep, across: str, up: str) -> tuple[Any, Any]:
    refuse_without_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    figure.supxlabel(sweep.ran_on, x=0.99, ha="right", fontsize=6, color="0.35")
    axes = figure.add_subplot()
    axes.set_title(sweep.title, loc="left", fontsize=10)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    return figure, axes


def _style(place: int) -> dict[str, Any]:
    turn = place + place // len(_MARKERS)  # where the markers come again, they come with other lines
    return {
        "color": _COLOURS[turn % len(_COLOURS)],
        "linestyle": _LINES[turn % len(_LINES)],
        "marker": _MARKERS[place % len(_MARKERS)],
        "markersize": 5,
        "linewidth": 1.4,
    }


def _columns(points: Sequence[tuple[float, Any]]) -> tuple[list[float], list[Any]]:
    return [x for x, _ in points], [y for _, y in points]


def _ring(axes: Any, points: Sequence[tuple[float, float]]) -> None:
    if points:
        ring = {"markersize": 12, "markerfacecolor": "none", "markeredgecolor": "black", "markeredgewidth": 1.3}
        axes.plot(*_columns(points), linestyle="none", marker="o", label="chosen", **ring)


def _logarithmic(axes: Any, sizes: Sequence[int], which: str) -> None:
    """Sizes that were measured are the ticks; time is logarithmic where it spans magnitudes."""
    ticks = sorted(set(sizes))
    turned = len(ticks) > _TICKS_FLAT
    if min(ticks) > 0:
        axes.set_xscale("log", base=2)
        ticks = _apart(ticks, turned)
    axes.set_xticks(ticks, [str(size) for size in ticks], rotation=45 if turned else 0)
    axes.minorticks_off()
    if which == "both":
        _logarithmic_time(axes)


def _apart(sizes: Sequence[int], turned: bool) -> list[int]:
    """The sizes whose names have room beside each other: of two that nearly touch, the larger."""
    span = sizes[-1] / sizes[0]
    kept = list(sizes[-1:])
    for size in reversed(sizes[:-1]):
        digits = (len(str(size)) + len(str(kept[-1]))) / 2 + 0.5
        if kept[-1] / size >= span ** (_ROOM_FOR_A_TICK if turned else digits * _ROOM_FOR_A_DIGIT):
            kept.append(size)
    return kept[::-1]


def _logarithmic_time(axes: Any) -> None:
    """Ticks at 1, 2 and 5 of each magnitude where there are few magnitudes, written as plain numbers."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _shade(axes: Any, row: Sweep, dim: str) -> None:
    """The regions in which each variant wins, in two greys in turn, each with its name at the top."""
    left, right = axes.get_xlim()
    regions = row.regions(dim)
    axes.set_xlim(left, right)
    bounds = [left, *[region.start for region in regions[1:]], right]
    for place, region in enumerate(regions):
        start, end = bounds[place], bounds[place + 1]
        axes.axvspan(start, end, facecolor=_SHADES[place % len(_SHADES)], zorder=0)
        (here, _), (there, _) = axes.transAxes.inverted().transform(axes.transData.transform([(start, 1), (end, 1)]))
        middle = (start * end) ** 0.5 if axes.get_xscale() == "log" else (start + end) / 2
        axes.annotate(
            region.variant,
            (middle, 0.985),
            xycoords=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=7,
            color="0.25",
            rotation=90 if len(region.variant) > (there - here) * _LETTERS_ACROSS else 0,
        )


def _gain(point: Point | None) -> float:
    times = point.times() if point is not None else {}
    if point is None or point.chosen not in times or "plain" not in times:
        return 1.0
    return times["plain"] / times[point.chosen]


def _finished(figure: Any, axes: Any) -> Any:
    axes.grid(which="major", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(fontsize=8, frameon=True, framealpha=0.9, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def pictures(sweep: Sweep) -> Mapping[str, Any]:
    """The pictures that a sweep has: times and ratios along its longest dim, a heat map where two dims vary."""
    dims = sweep.dims()
    if not dims:
        raise CannotDraw(f"{sweep.title}: nothing was timed")
    longest = max(dims, key=lambda dim: len(sweep.along(dim).points))
    found = {"times": draw_times(sweep, longest), "ratio": draw_ratios(sweep, longest)}
    return found | ({"heat": draw_heat(sweep, dims[0], dims[1])} if len(dims) == 2 else {})
