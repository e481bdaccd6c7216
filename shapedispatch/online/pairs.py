"""Which variant is best at keys near each other, by pairs of calls: one of plain and one of a variant, at one key each.

What counts of a pair is how many times plain's time the variant took, which hardly depends on the key. Nothing here
runs or times anything.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..autotune.benchmark import ENOUGH, how_far_behind, is_behind, is_decided, timing_of
from ..autotune.choose import best
from ..records import Timing

__all__ = ["PLAIN_US", "Pairs"]

PLAIN_US = 100.0
"""What plain counts for, whatever it took."""
MOST = 40
"""Pairs after which what is not decided is not by much."""
LIKELY = 3
"""Pairs after which what leads may run, though it is not decided."""


@dataclass(slots=True, eq=False)
class Pairs:
    """Of several variants, the first of which is plain; ``margin`` is a share of the time."""

    margin: float
    _found: dict[str, deque[float]] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _is_decided: bool = False
    """Whether more pairs of those of which there are enough would change nothing that matters."""

    def add(self, name: str) -> None:
        """One more variant."""
        if name not in self._found:
            self._found[name] = deque(maxlen=MOST)
            self._running.append(name)

    def wanted(self, names: Iterable[str]) -> str | None:
        """Of which of these there are the fewest pairs, and more are wanted."""
        most = ENOUGH if self._is_decided else MOST
        running = [name for name in names if name in self._running and len(self._found[name]) < most]
        return min(running, key=lambda name: len(self._found[name]), default=None)

    def gave(self, name: str, ratio: float) -> None:
        """In a pair the variant took so many times what plain took; what makes no sense is no pair."""
        if name not in self._found or not 0 < ratio < math.inf:
            return
        self._found[name].append(ratio * PLAIN_US)
        leader = min(self.costs(), key=lambda timing: timing.median_us)
        for one in list(self._running):
            cost = timing_of(one, self._found[one])
            if cost.repeats > 1 and is_behind(cost, leader, how_far_behind(cost.repeats)):
                self._running.remove(one)
        self._look()

    def failed(self, name: str) -> None:
        """It raised: it is out, whatever it has shown."""
        self._found.pop(name, None)
        self._running = [one for one in self._running if one != name]
        self._look()

    def _look(self) -> None:
        known = [timing_of(name, self._found[name]) for name in self._running if len(self._found[name]) >= ENOUGH]
        self._is_decided = is_decided((_plain(), *known), self.margin, patient=True)

    def is_over(self) -> bool:
        """Whether more pairs would change nothing that matters."""
        left = [len(self._found[name]) for name in self._running]
        if all(count >= MOST for count in left):
            return bool(self._found)
        return all(count >= ENOUGH for count in left) and self._is_decided

    def leader(self) -> str | None:
        """What is best as far as that is likely; None where too little is known."""
        known = [one for one in self.costs() if one.repeats >= LIKELY]
        won = best(known, self.margin, "time")[0]
        return won.variant if won is not None and (len(known) > 1 or self.is_over()) else None

    def costs(self) -> Sequence[Timing]:
        """What is known, in microseconds, as if plain took `PLAIN_US`."""
        return [_plain(), *(timing_of(name, found) for name, found in self._found.items() if found)]


def _plain() -> Timing:
    """Plain's cost, which is what the others are measured by."""
    return Timing("plain", PLAIN_US, 0.0, MOST, least_us=PLAIN_US)
