"""What the answers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

OURS = "shapedispatch"

Pictures = Mapping[str, Any]
"""Figures by name."""


def median(times: Mapping[str, Any], name: str) -> float:
    """A contender's median in microseconds."""
    return float(times[name]["median_us"])


def spread(time: Mapping[str, Any]) -> str:
    """``12.3 ± 0.4``, as scripts print it."""
    digits = 2 if time["median_us"] < 100 else 0
    return f"{time['median_us']:.{digits}f} ± {time['spread_us']:.{digits}f}"


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that at most ``1 - share`` of them exceed."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def against(ratio: float, bar: float | None) -> tuple[str, str]:
    """A measured ratio and the most it may be, as cells."""
    return f"{ratio:.3f}", "" if bar is None else f"{bar:g}"
