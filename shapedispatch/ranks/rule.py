"""The rule by which ranks decide: the same figures give the same answer, whoever asks and in whatever order they came.

No clock, no device and no order of ranks enters it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence

__all__ = ["DEFAULT", "FAILED", "Figures", "mean", "share", "winner"]

DEFAULT = "plain"
"""What a key runs of which nothing is agreed."""
FAILED = math.inf
"""The figure of a variant that failed: it takes part like any other, and never wins."""

Figures = Mapping[str, float]
"""What each variant costs on one rank: microseconds, or what the objective says; the less the better."""


def mean(figures: Collection[float]) -> float:
    """The mean, which is the same in any order; that of a failure and anything is a failure."""
    return math.fsum(figures) / len(figures) if all(map(math.isfinite, figures)) else FAILED


def winner(reports: Iterable[Figures], margin: float) -> str:
    """The variant of the least mean cost over the ranks that have a figure of it; the default where none has one.

    A later one wins only by more than ``margin`` (a share): the default is first, then shorter names, then by letters.
    """
    collected: dict[str, list[float]] = {}
    for report in reports:
        for variant, figure in report.items():
            collected.setdefault(variant, []).append(figure)
    costs = {variant: mean(figures) for variant, figures in collected.items()}
    least = min(costs.values(), default=FAILED)
    if not math.isfinite(least):
        return DEFAULT
    near = (variant for variant, cost in costs.items() if cost - margin * abs(cost) <= least)
    return min(near, key=lambda variant: (variant != DEFAULT, len(variant), variant))


def share(kernel: str, text: str, among: Sequence[int]) -> int:
    """Which of these ranks does the work of a key: by a digest that is the same in every process."""
    digest = hashlib.sha256(f"{kernel}\n{text}".encode()).digest()
    return sorted(among)[int.from_bytes(digest[:8], "big") % len(among)]
