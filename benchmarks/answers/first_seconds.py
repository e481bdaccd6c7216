"""What the results on a model's first forwards say, and the picture of it: first seconds, then the steady state."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from benchmarks.documents import Result, markdown, newest
from shapedispatch.cli import tables

from .models import EAGER
from .pictures import OURS, Pictures

LOOKS = {
    EAGER: [("0.75", "")],
    "torch.compile": [("#a9c4e4", "//"), ("#2b6cb0", "")],
    OURS: [("#e8b8a8", ".."), ("#b3452b", ""), ("#6b2416", "//")],
}
"""A contender's fill and hatch, by what its name begins with: told apart in grey, too."""
ASKED = {
    "first_s": "the first {forwards}\nforwards",
    "worst_s": "the slowest\nin {seconds:g} s",
    "near_s": "until each shape\nis near its final speed",
}


def tell_cold_model(result: Result) -> str:
    """Seconds of the first forwards, and milliseconds of each shape at the end."""
    found = result.document
    contenders = found["contenders"]
    calls = list(next(iter(contenders.values()))["final_ms"])
    rows = [
        (
            name,
            *(number(seconds(one, part)) or "-" for part in ASKED),
            *(f"{one['final_ms'][call]:.2f}" for call in calls),
        )
        for name, one in contenders.items()
    ]
    columns = (
        f"the first {found['forwards']}, s",
        f"slowest in {found['seconds']:g} s",
        "near its final speed after, s",
    )
    return markdown(("from empty caches", *columns, *(f"{call} then, ms" for call in calls)), rows)


def tell_kernel_first_calls(result: Result) -> str:
    """Seconds of the first calls, milliseconds of the longest, and how fast all are in the end."""
    found = result.document["contenders"]
    as_written, *_ = found.values()
    rows = []
    for name, one in found.items():
        longest = [f"{one['longest_ms'][kind][0][0]:.1f}" for kind in ("first", "later")]
        ratios = [one["final_us"][call] / us for call, us in as_written["final_us"].items()]
        final = f"{statistics.geometric_mean(ratios):.2f} ×"
        rows.append((name, f"{one['first_s']:.1f}", *longest, f"{one['calls']:,}", final))
    sizes = f"the first calls at {len(as_written['final_us'])} sizes, s"
    columns = ("from an empty cache", sizes, "longest of them, ms", "longest later, ms", "calls in all", "final time")
    return markdown(columns, rows)


def draw_kernel_first_calls(result: Result) -> Pictures:
    """What the first calls took together, and the longest of them."""
    found = result.document["contenders"]
    bars = {name: [one["first_s"], one["longest_ms"]["first"][0][0] / 1e3] for name, one in found.items()}
    labels = ["all first calls", "the longest"]
    return {"first": tables.draw_bars("kernels from an empty cache", labels, bars, "s", result.corner)}


def seconds(one: Mapping[str, Any], part: str) -> float:
    """Of a contender; of what is told by shape the most. NaN where a run has not asked it."""
    value = one.get(part, math.nan)
    return float(max(value.values()) if isinstance(value, dict) else value)


def draw_cold_model(result: Result) -> Pictures:
    """The picture of a model: beside its first seconds how long a forward takes in the end, where that was measured.

    On the same device; of several runs the one of the same contenders.
    """
    folder, known = result.path.parent, {*result.document["contenders"]} - {EAGER}
    here = newest("models", folder, lambda one: one.device == result.device)
    alike = newest(
        "models", folder, lambda one: one.device == result.device and not known.isdisjoint(one.document["contenders"])
    )
    return {"picture": picture(result, alike or here)}


def picture(cold: Result, models: Result | None) -> Any:
    """Groups of bars on the left and, where there is a result of `models.py`, on the right; one legend under both."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, 1 if models is None else 2, squeeze=False)[0]
    found = cold.document["contenders"]
    names = list(dict.fromkeys([*found, *(models.document["contenders"] if models else ())]))
    looks = looks_of(names)
    asked = [part for part in ASKED if any(part in one for one in found.values())]
    groups = [ASKED[part].format(**cold.document) for part in asked]
    first = {name: [seconds(one, part) for part in asked] for name, one in found.items()}
    draw_groups(panels[0], "first seconds, from empty caches: s", groups, first, looks)
    if models is not None:
        kinds = [kind for kind in models.document["means"] if kind != "all"]
        draw_groups(panels[1], "steady state: time of a call, × eager", kinds, steady(models, kinds), looks)
    patches = [Patch(label=name, edgecolor="0.2", **look) for name, look in looks.items()]
    figure.legend(handles=patches, loc="outside lower left", fontsize=7, ncols=2, frameon=False)
    figure.supxlabel(corner(cold, models), x=0.995, ha="right", fontsize=6, color="0.35")
    return figure


def looks_of(names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Of each contender, those of a kind in their order."""
    found: dict[str, dict[str, str]] = {}
    for kind, fills in LOOKS.items():
        for name, (fill, hatch) in zip((name for name in names if name.startswith(kind)), cycle(fills), strict=False):
            found[name] = {"facecolor": fill, "hatch": hatch}
    return found


def steady(models: Result, kinds: Sequence[str]) -> dict[str, list[float]]:
    """Each contender's mean over eager's by kind of call; NaN, for no bar, where it was not at all of them."""
    means = models.document["means"]
    others = [name for name in models.document["contenders"] if name != EAGER]
    found = {name: [means[kind].get(name, math.nan) for kind in kinds] for name in others}
    return {EAGER: [1.0] * len(kinds), **found}


def draw_groups(
    axes: Any, title: str, groups: Sequence[str], bars: Mapping[str, Sequence[float]], looks: Mapping[str, Any]
) -> None:
    """A group for each label, a bar in it for each contender, its number above it."""
    width = 0.84 / len(bars)
    for place, (name, heights) in enumerate(bars.items()):
        left = [group - 0.42 + width * (place + 0.5) for group in range(len(groups))]
        drawn = axes.bar(left, heights, width, edgecolor="0.2", linewidth=0.6, **looks[name])
        axes.bar_label(drawn, [number(height) for height in heights], fontsize=6, padding=2)
    axes.set_title(title, loc="left", fontsize=9)
    axes.set_xticks(range(len(groups)), groups, fontsize=7)
    axes.tick_params(axis="y", labelsize=7)
    axes.grid(axis="y", color="0.88", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.set_xlim(-0.5, len(groups) - 0.5)
    axes.margins(y=0.12)


def number(height: float) -> str:
    """A bar's; nothing where there is no bar."""
    return "" if math.isnan(height) else f"{height:.2f}" if height < 1 else f"{height:.3g}"


def corner(cold: Result, models: Result | None) -> str:
    """Device and versions, and at which commits the two were measured."""
    commits = [each.environment.get("commit", "unknown") for each in (cold, models) if each is not None]
    return f"{cold.corner}, at {', '.join(dict.fromkeys(commits))}"
