"""What a dispatcher says of calls that it looks at closer, and what such a call took its time for."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

TRACED = "a trace or an order"
CAUSES = {
    "traced": TRACED,
    "ordered": TRACED,
    "loaded": "a load",
    "warmed": "a load",
    "checked": "a look at numbers",
    "compared": "a look at numbers",
    "looked": "a look",
}
"""What a long call was for, by the first of these words that was said of how long it was looked at."""
NOTHING = "nothing was said"


class Said(logging.Handler):
    """What the log says, until it is taken; ``alone`` it is heard by nobody else."""

    def __init__(self, alone: bool = False) -> None:
        super().__init__()
        self.lines: list[str] = []
        log = logging.getLogger("shapedispatch")
        log.setLevel(logging.DEBUG)
        log.addHandler(self)
        log.propagate = not alone

    def emit(self, record: logging.LogRecord) -> None:
        """One more line about the call that runs."""
        self.lines.append(record.getMessage())

    def taken(self) -> list[str]:
        """What was said since it was taken last."""
        lines, self.lines = self.lines, []
        return lines


def cause(said: Sequence[str]) -> str:
    """What a call was for, by what was said in it."""
    looks = [line for line in said if " looked at for " in line]
    return next((why for word, why in CAUSES.items() if any(f" {word} " in line for line in looks)), NOTHING)


def by_cause(long: Iterable[tuple[str, float]]) -> dict[str, dict[str, Any]]:
    """Of long calls, each with what it was for and its milliseconds: how many were for what, and how long."""
    causes: dict[str, list[float]] = {}
    for why, ms in long:
        causes.setdefault(why, []).append(ms)
    return {why: {"calls": len(ms), "sum_ms": sum(ms), "worst_ms": max(ms)} for why, ms in causes.items()}


def by_time(found: dict[str, dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """The same for a table: what took the longest in all comes first."""
    return [
        (why, str(one["calls"]), f"{one['sum_ms']:.0f}", f"{one['worst_ms']:.0f}")
        for why, one in sorted(found.items(), key=lambda pair: -pair[1]["sum_ms"])
    ]


COLUMNS = ("for", "calls", "sum, ms", "worst, ms")
