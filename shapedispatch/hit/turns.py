"""Whose turn a call is: of a key that is learned a candidate's; of the other hits one in so many is timed again.

The latter at random, more of them while that is asked. Where hits are answered in C, it counts down there, which costs
an unsampled hit nothing that could be measured; the hit at which it comes to nought goes to Python.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from ..records import Choice

__all__ = ["CallTurns", "LaunchTurns", "Learner", "PoolLeader", "TimedCalls", "Turns"]

OFTEN = 16
"""One hit in so many on average, while more of them are asked for."""


class Countdown(Protocol):
    """The hit path in C, as far as it counts: its hit at which ``left`` comes to 0 goes to Python; at 0 none does."""

    left: int


class Learner(Protocol):
    """What runs while it is being learned which variant is best; later, the hits that have a turn."""

    judges: ClassVar[bool]  # whether it sees to what a candidate raises; else plain may answer, as at any hit

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call once."""

    def choice(self, begun: Choice) -> Choice:
        """What stands now, of the choice with which it began."""

    def pinned(self, begun: Choice) -> Any:
        """The `table.Entry` of what is best as far as it is known, which no sample changes."""


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


class LaunchTurns(Protocol):
    """What a key runs while it is learned from its launches, or its calls: those in C are the turns that were begun.

    ``left`` is how many launches are left of the turn that is on, 0 where all are taken; ``taken`` how many C has made
    since `begin`; ``waiting`` how many samples were not collected yet. ``launch`` is Python's.
    """

    left: int
    taken: int
    waiting: int
    launch: Callable[..., Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call that is no hit."""

    def begin(self, turns: tuple[tuple[Callable[..., Any], Any, int], ...], /) -> None:
        """Let the next launches be these: whose launcher, whose sample each is (None: no sample's), how many."""

    def collect(self) -> list[tuple[Any, int, int, float, bool, float | None]]:
        """The samples that are over, in order: whose, begun at and host's time in ns, device's in us, stream dry.

        And how many microseconds after it began the next call came; None where none has yet.
        """


class CallTurns(LaunchTurns, Protocol):
    """Turns of a function's calls. ``patience`` is how many in a row take none because they come beside a new key;
    ``first_ns`` what first calls of keys have taken that were no samples.
    """

    patience: int
    first_ns: int


class PoolLeader(Protocol):
    """What keys of one neighbourhood run at calls that take no turn, for all of them at once.

    ``open`` says whether they take turns.
    """

    run: Callable[..., Any]
    open: bool


class TimedCalls(Protocol):
    """What runs a key's calls in C and adds up what they take, until Python is asked: see `native.timed_calls`."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call."""

    def collect(self) -> float:
        """How many seconds calls have taken since the last time; the next one asks, unless `begin` says otherwise."""

    def begin(self, until_s: float, /) -> None:
        """Let calls be run until they have taken so many seconds since `collect`, or there is news since then."""
