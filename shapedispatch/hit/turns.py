"""Which of a dispatcher's hits are timed again: one in so many on average, at random, more of them while that is asked.

Where hits are answered in C, it counts down there, which costs an unsampled hit nothing that could be measured; the hit
at which it comes to nought goes to Python.
"""

from __future__ import annotations

import random
from typing import Protocol

__all__ = ["Turns"]

OFTEN = 16
"""One hit in so many on average, while more of them are asked for."""


class Countdown(Protocol):
    """The hit path in C, as far as it counts: its hit at which ``left`` comes to 0 goes to Python; at 0 none does."""

    left: int


class Turns:
    """A countdown; ``share`` is the part of the hits that have a turn, 0 for none."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._gaps = random.Random(0)  # not every n-th: layers that are called in turn would be seen one alone
        self._in_c: Countdown | None = None
        self._left = 0
        self._often = 0
        self._gap = 0
        self._before = 0

        self.passed: int = 0
        """Calls that the last turn stands for: those since the one before it."""

        self.on: bool = False
        """Whether any hit is to have a turn."""

    @property
    def timed(self) -> bool:
        """Whether hits are timed again at all."""
        return self._share > 0

    def begin(self, in_c: Countdown | None) -> None:
        """Some key is to have turns; told at each, since the path in C may be another."""
        self._in_c, self.on = in_c, self._share > 0
        if self.on and not self._running():
            self._start()

    def due(self) -> bool:
        """Whether this hit, which came to Python, has a turn."""
        if self._in_c is None and self._left > 0:
            self._left -= 1
        if not self.on or self._running():
            return False
        self.passed, self._before = self._before + self._gap, 0
        self._start()
        return True

    def hurry(self, turns: int) -> None:
        """Let so many turns come soon; one that will come anyway is not put off."""
        self._often = max(self._often, turns)
        left = self._calls_left()
        if self.on and (left <= 0 or left > 2 * OFTEN):
            self._before += self._gap - max(0, left)
            self._start()

    def _calls_left(self) -> int:
        return self._left if self._in_c is None else self._in_c.left

    def _running(self) -> bool:
        return self._calls_left() > 0

    def _start(self) -> None:
        mean = OFTEN if self._often else max(OFTEN, round(1 / self._share))
        self._often -= 1 if self._often else 0
        self._gap = gap = self._gaps.randint(mean // 2, mean + mean // 2)
        if self._in_c is None:
            self._left = gap
        else:
            self._in_c.left = gap
