"""Whether what was chosen at a key is still the best, told what later samples of it and of the next best took.

A sample that is far off what is known opens a burst, if it says that another may be the best: more samples, of both
in turn. Where they show that the next best is ahead by a margin, it is chosen instead. The margin grows with each such
switch, so that none goes back and forth. Where its samples scatter too much to say so, another burst follows. Where a
burst has shown nothing new, such samples are usual: a call that is timed once in a thousand finds the caches cold, and
is as far off each time. Two in a row must be off that, then.
Nothing here runs or times anything.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..autotune.benchmark import ENOUGH, ahead, timing_of, undecided
from ..records import Timing
from .contest import FAR

__all__ = ["BURST", "Drift", "doubt"]

OFF = 1.25
"""How many times more or less than what is known a sample is that opens a burst."""
BURST = 2 * ENOUGH + 1
"""Samples in a burst."""
HYSTERESIS = 0.1
"""The share by which the next best must be ahead the first time; twice that the second time, and so on."""
USUAL = 5
"""The newest samples of a candidate that say what is usual."""
WINNERS = 4
"""Of so many samples outside of bursts all but one are of what was chosen."""


def doubt(variant: str, timings: Sequence[Timing]) -> str:
    """Why the timings of those near it do not bear out that this one is best, though it would matter; or nothing."""
    won = next((timing for timing in timings if timing.variant == variant), None)
    if won is None:
        return ""
    near = (other for other in timings if other is not won and other.median_us <= FAR * won.median_us)
    return next(filter(None, (undecided(won, other) for other in near)), "")


@dataclass(slots=True, eq=False)
class Drift:
    """The winner at a key and what each candidate is known to take, in microseconds a call.

    Where it is ``doubted`` that it is the best, a burst comes first, if what is next is not far behind.
    """

    winner: str
    known_us: dict[str, float]
    margin: float
    switches: int = 0
    doubted: bool = False
    judged: dict[str, Timing] = field(default_factory=dict)
    """What the newest burst of each candidate has come to."""
    _turn: int = 0
    _burst: dict[str, list[float]] = field(default_factory=dict)
    _opened: tuple[str, float] | None = None
    """Whose sample, and how long, has opened the burst."""
    _usual: dict[str, deque[float]] = field(default_factory=dict)
    """What samples outside of bursts took, of who has opened one in vain."""
    _off: str | None = None
    """Whose last sample was off."""
    _scattered: bool = False
    """Whether the last burst has shown the next best ahead, but for how much its samples scatter."""

    def __post_init__(self) -> None:
        other = self.runner_up()
        if self.doubted and other is not None and self.known_us[other] <= FAR * self.known_us[self.winner]:
            self._burst = {self.winner: [], other: []}

    def in_burst(self) -> bool:
        """Whether more samples are wanted."""
        return bool(self._burst)

    def runner_up(self) -> str | None:
        """The next best as far as it is known."""
        others = [name for name in self.known_us if name != self.winner]
        return min(others, key=self.known_us.__getitem__, default=None)

    def next_sample(self) -> str:
        """Whose sample the next one is."""
        self._turn += 1
        other = self.runner_up() if self._turn % (2 if self._burst else WINNERS) == 0 else None
        return other or self.winner

    def sampled(self, name: str, took_us: float) -> str | None:
        """A sample was taken; the new winner, if there is one now."""
        known_us = self.known_us.get(name, math.nan)
        if not 0 < took_us < math.inf or math.isnan(known_us):
            return None
        if name in self._burst:
            self._burst[name].append(took_us)
            return self._judged() if all(len(taken) >= ENOUGH for taken in self._burst.values()) else None
        if not self._burst and self._is_doubtful(name, took_us):
            self._burst = {one: [] for one in (self.winner, self.runner_up()) if one is not None}
            self._opened = name, took_us
        return None

    def _is_doubtful(self, name: str, took_us: float) -> bool:
        """Whether a sample, or else the last burst, says that another may be the best by now."""
        if self._scattered:
            return True
        usual, before = self._usual.get(name), self._off
        known_us = statistics.median(usual) if usual else self.known_us[name]
        is_off = took_us > OFF * known_us if name == self.winner else took_us < known_us / OFF
        self._off = name if is_off else None if before == name else before
        if usual is not None:
            usual.append(took_us)
        return is_off and (usual is None or before == name)

    def left(self, name: str) -> None:
        """A candidate is not there any more."""
        self.known_us.pop(name, None)
        self._burst, self._off, self._scattered = {}, None, False

    def _judged(self) -> str | None:
        timings = {name: timing_of(name, taken) for name, taken in self._burst.items()}
        opened, self._burst, self._opened, self._off = self._opened, {}, None, None
        self.judged |= timings
        self.known_us |= {name: timing.median_us for name, timing in timings.items()}
        ours = timings.pop(self.winner)
        needed = min(0.8, max(self.margin, HYSTERESIS * 2**self.switches))
        faster = [one for one in timings.values() if one.median_us < (1 - needed) * ours.median_us]
        won = next((one.variant for one in faster if ahead(one, ours, self.margin)), None)
        self._scattered = won is None and bool(faster)
        if won is not None:
            self.winner, self.switches, self._usual = won, self.switches + 1, {}
        elif opened is not None and not faster:
            self._usual.setdefault(opened[0], deque(maxlen=USUAL)).append(opened[1])
        return won
