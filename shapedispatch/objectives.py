"""What is best among timings: the least time, the least memory, or the least of what a user's function makes of them.

Every rule keeps ties with the earlier variant, so that repeated choices agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from .errors import in_a_line
from .records import Refusal, Timing
from .timing import CONFIDENCE, ahead, error_us

__all__ = ["Objective", "best", "check_objective"]

Objective: TypeAlias = str | Callable[[Timing], float]
"""``"time"``, ``"memory"`` (peak bytes), or a function of a `Timing` whose value is the better the smaller it is.

A variant for which it raises, or has no finite value, does not win; plain runs where none has one."""

_NAMED = ("time", "memory")


def check_objective(objective: object) -> Objective:
    """The objective, if it is one; raises ValueError."""
    if objective in _NAMED or callable(objective):
        return objective  # type: ignore[return-value]  # a str of the two, or callable
    raise ValueError('allowed is "time", "memory", or a callable that takes a Timing')


def best(timings: Sequence[Timing], margin: float, objective: Objective) -> tuple[Timing | None, tuple[Refusal, ...]]:
    """The best timing, None where there is none; and those that a user's function has no value for, with the reason.

    Infinity, which one writes to rule a variant out, is no value either.

    A later one wins only by more than ``margin`` (a share), and where time counts, beyond the noise.
    """
    if objective == "memory":
        return _fastest(_lightest(timings, margin), margin), ()
    if isinstance(objective, str):
        return _fastest(timings, margin), ()
    return _least(timings, margin, objective)


def _fastest(timings: Sequence[Timing], margin: float) -> Timing | None:
    """The earliest that none is ahead of."""
    first = min(timings, key=lambda timing: timing.median_us, default=None)
    return next((timing for timing in timings if first is not None and not ahead(first, timing, margin)), None)


def _lightest(timings: Sequence[Timing], margin: float) -> Sequence[Timing]:
    """Those that hold as good as the least memory; all where no memory could be measured."""
    known = [(timing, timing.bytes) for timing in timings if timing.bytes is not None]
    least = min((held for _, held in known), default=0)
    return [timing for timing, held in known if held * (1 - margin) <= least] or timings


def _least(
    timings: Sequence[Timing], margin: float, objective: Callable[[Timing], float]
) -> tuple[Timing | None, tuple[Refusal, ...]]:
    valued: list[tuple[Timing, float]] = []
    refusals: list[Refusal] = []
    for timing in timings:
        try:
            value = float(objective(timing))
        except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept
            refusals.append(Refusal(timing.variant, (f"the objective raised {in_a_line(error)}",)))
            continue
        if math.isfinite(value):
            valued.append((timing, value))
        else:
            refusals.append(Refusal(timing.variant, (f"the objective has no finite value for it ({value})",)))
    first = min(valued, key=lambda pair: pair[1], default=None)
    if first is None:
        return None, tuple(refusals)
    return next(pair[0] for pair in valued if not _beats(first, pair, margin, objective)), tuple(refusals)


def _beats(
    one: tuple[Timing, float], other: tuple[Timing, float], margin: float, objective: Callable[[Timing], float]
) -> bool:
    """Whether one is better by more than the margin, even at the slow end of its noise and the other's fast end."""
    (a, low), (b, high) = one, other
    if high - low <= margin * abs(high):
        return False
    try:
        return objective(_moved(a, 1)) < objective(_moved(b, -1))
    except Exception:  # noqa: BLE001 - a user's function that takes measured values only: noise is not asked then
        return True


def _moved(timing: Timing, sign: int) -> Timing:
    """The timing at one end of what noise makes of its median."""
    if not math.isfinite(timing.median_us):
        return timing
    return replace(timing, median_us=max(0.0, timing.median_us + sign * CONFIDENCE / math.sqrt(2) * error_us(timing)))
