"""Numbers and texts that hardly repeat: each is a key of its own, and a look at it takes longer than its calls do."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ..hit.facts import FactMap
from ..keys.key import Key
from ..keys.layout import kin, numberless

__all__ = ["NumbersLookedAt"]

FREE, SHARE = 32, 0.03
"""So many keys of a kind are looked at whatever it takes, and more of them for this share of the time since."""
MOST_RECENT = 16
"""So many of the numbers that were looked at last are known: calls that differ from those in sizes are no others."""
MOST_SPARED = 32
"""Calls that are not even asked for, at most: to find out that a key is not to be looked at takes longer than some."""
HARDLY_REPEAT = "numbers or texts of such calls hardly repeat, and to look at each takes longer than the calls do"


@dataclass(frozen=True, slots=True)
class _Looks:
    since_s: float
    count: int = 0
    took_s: float = 0.0
    recent: tuple[Key, ...] = ()
    """The newest, without sizes."""


class NumbersLookedAt:
    """What it has taken to look at the keys of one dispatcher that differ from others in numbers and texts.

    ``known`` gives the map that this is remembered in.
    """

    def __init__(
        self, known: Callable[[], FactMap[Hashable, _Looks]], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._known, self._clock_s = known, clock_s
        self._are_many = False
        """Whether there were too many of any kind: to see of which kind a key is takes a part of a look."""
        self._refused_s = clock_s()
        self._spared = 0

    def why_not(self, key: Key) -> str | None:
        """Why a key is not looked at now, if so; a later call of it may be."""
        return HARDLY_REPEAT if self._are_many and self._lacks_s(key) > 0 else None

    def _lacks_s(self, key: Key) -> float:
        """By how much looks at keys of its kind have taken more than they may; not above 0 where another is due."""
        kind = _kind_of(key)
        looks = None if kind is None else self._known().get(kind)
        if looks is None or looks.count < FREE or kin(key) in looks.recent:
            return 0.0
        return looks.took_s - SHARE * (self._clock_s() - looks.since_s)

    def to_spare(self, key: Key) -> int:
        """About how many calls there are before the next key like this one, which is refused, may be looked at."""
        now_s, lacks_s = self._clock_s(), self._lacks_s(key)
        a_call_s = SHARE * (now_s - self._refused_s) / (1 + self._spared)
        self._refused_s = now_s
        few = lacks_s < MOST_SPARED * a_call_s
        self._spared = max(0, int(lacks_s / a_call_s)) if few else MOST_SPARED
        return self._spared

    def looked(self, key: Key, took_s: float) -> None:
        """A key was looked at, and that took so long."""
        kind = _kind_of(key)
        if kind is None:
            return
        looks, known, sizeless = self._known().get(kind) or _Looks(self._clock_s()), self._known(), kin(key)
        if sizeless in looks.recent:
            return
        more_s = took_s if looks.count >= FREE else 0.0
        recent = (*looks.recent, sizeless)[-MOST_RECENT:]
        self._are_many = self._are_many or looks.count >= FREE
        known[kind] = _Looks(looks.since_s, looks.count + 1, looks.took_s + more_s, recent)


def _kind_of(key: Key) -> Key | None:
    """What it has in common with keys that differ in numbers and texts, or sizes; None where it has neither."""
    without = numberless(key)
    return None if without == key else kin(without)
