"""What the results on the cost of a call say: calls and launches whose shape is known, the key, the lookup."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.documents import Result, markdown
from shapedispatch.cli import tables
from shapedispatch.cli.sweeps import curves_of

from .pictures import OURS, Pictures, against, median, spread

BARE, RUN, JIT, AUTOTUNE = "cuLaunchKernel in C", "CompiledKernel.run", "triton.jit", "triton.autotune"
BY_CALL, GIVEN = f"{OURS}, d[grid]", f"{OURS}, grid= given"


def tell_call_overhead(result: Result) -> str:
    """The times by number of shapes; each ratio beside its bar."""
    parts = result.document["shapes"]
    names = list(next(iter(parts.values()))["times"])
    times = [(count, *(spread(part["times"][name]) for name in names)) for count, part in parts.items()]
    bars = [(name, *against(one["ratio"], one["bar"])) for name, one in result.document["bars"].items()]
    table = markdown(("ratio of medians", "measured", "at most"), bars)
    return f"{markdown(('shapes', *(f'{name}, µs' for name in names)), times)}\n\n{table}"


def draw_call_overhead(result: Result) -> Pictures:
    """By number of shapes."""
    curves = curves_of(result.document, "shapes")
    title = "host time of a call whose shape is known"
    return {"shapes": tables.draw_curves(title, curves, "shapes called in turn", result.corner)}


def tell_launch_overhead(result: Result) -> str:
    """Host time a launch by number of tensors, one shape; the bars, and the call by number of keys, where measured."""
    rows = []
    for path in (each for each in ("Python", "C") if each in result.document):
        for count, part in result.document[path]["tensors"].items():
            times = part["one shape"]
            shown = [f"{median(times, name):.1f}" for name in (BARE, RUN, JIT, AUTOTUNE, BY_CALL, GIVEN)]
            mine = median(times, GIVEN)
            ratios = [mine / median(times, BARE), *(median(times, name) / mine for name in (JIT, AUTOTUNE))]
            rows.append((path, count, *shown, *(f"{ratio:.2f}" for ratio in ratios)))
    columns = ("road", "tensors", BARE, RUN, JIT, AUTOTUNE, BY_CALL, GIVEN)
    table = markdown((*columns, f"it / {BARE}", f"{JIT} / it", f"{AUTOTUNE} / it"), rows)
    if "bars" not in result.document:
        return table
    bars = [held([run["bars"][place] for run in result.runs]) for place in range(len(result.document["bars"]))]
    columns = ("", "measured", "bar", "", "median of all runs", "runs within the bar")
    commits = ", ".join(run["environment"]["commit"] for run in result.runs)
    return f"{table}\n\n{markdown(columns, bars)}\n\nRuns, at the commits {commits}: {len(result.runs)}."


def held(bars: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """A bar in each run: what the first measured, whether it holds, and what all did."""
    first, measured = bars[0], [bar["measured"] for bar in bars]
    side = "at most" if "at most" in first else "at least"
    within = [one <= first[side] if side == "at most" else one >= first[side] for one in measured]
    shown = f"{first['measured']:.2f}", f"{side} {first[side]:g}", "" if within[0] else "missed"
    return first["what"], *shown, f"{statistics.median(measured):.2f}", f"{sum(within)} of {len(within)}"


def draw_launch_overhead(result: Result) -> Pictures:
    """By number of tensors."""
    curves = curves_of(result.document, "tensors")
    title = "host time of a launch, one shape again and again"
    return {"tensors": tables.draw_curves(title, curves, "tensors of a call", result.corner)}


def tell_key_cost(result: Result) -> str:
    """Each part, the bar beside the one that it is about."""
    found = result.document
    rows = [
        (name, spread(one["time"]), f"{one['least_us']:.2f}", f"{found['bar_us']:g}" if name == found["bar_of"] else "")
        for name, one in found["parts"].items()
    ]
    return markdown(("in Python", "median, µs", "least, µs", "least, at most"), rows)


def draw_key_cost(result: Result) -> Pictures:
    """Median and least of each part."""
    parts = result.document["parts"]
    bars = {
        "median": [one["time"]["median_us"] for one in parts.values()],
        "least": [one["least_us"] for one in parts.values()],
    }
    return {"parts": tables.draw_bars("the key of a call, in Python", list(parts), bars, "µs", result.corner)}


def tell_hotpath_cost(result: Result) -> str:
    """Key and lookup on both paths; what many calls left behind, where that was measured."""
    found = result.document
    rows = []
    for what, counts in found["key and lookup"].items():
        for count, one in counts.items():
            bar = f"{found['bars'][what]:g}" if int(count) == found["bar_at"] else ""
            times = spread(one["times"]["Python"]), spread(one["times"]["C"])
            rows.append((what, count, *times, f"{one['ratio']:.3f}", bar))
    table = markdown(("of", "tensors", "Python, µs", "C, µs", "C / Python", "at most"), rows)
    return "\n\n".join([table, *[_left_behind(what, left) for what, left in found.get("left behind", {}).items()]])


def _left_behind(what: str, left: dict[str, int]) -> str:
    bytes_left = f"{left['bytes after hits']:,} bytes, {left['misses']:,} misses {left['bytes after misses']:,}"
    return f"{left['hits']:,} hits of {what} left {bytes_left}, after {left['evictions']:,} evictions."


def draw_hotpath_cost(result: Result) -> Pictures:
    """By number of tensors, functions and kernels apart."""
    found = result.document["key and lookup"]
    return {
        what: tables.draw_curves(
            f"key and lookup of a known call of {what}", curves_of(found, what), "tensors of a call", result.corner
        )
        for what in found
    }
