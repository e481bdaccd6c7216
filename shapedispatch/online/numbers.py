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
HARDLY_REPEAT = "numbers or texts of such calls hardly repeat, and to look at each takes longer than the calls do"


@dataclass(frozen=True, slots=True)
class _Looks:
    since_s: float
    count: int = 0
    took_s: float = 0.0


class NumbersLookedAt:
    """What it has taken to look at the keys of one dispatcher that differ from others in numbers and texts.

    ``known`` gives the map that this is remembered in.
    """

    def __init__(
        self, known: Callable[[], FactMap[Hashable, _Looks]], clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._known, self._clock_s = known, clock_s

    def why_not(self, key: Key) -> str | None:
        """Why a key is not looked at now, if so; a later call of it may be."""
        kind = numberless(key)
        looks = None if kind == kin(key) else self._known().get(kind)
        if looks is None or looks.count < FREE:
            return None
        affords = looks.took_s <= SHARE * (self._clock_s() - looks.since_s)
        return None if affords else HARDLY_REPEAT

    def looked(self, key: Key, took_s: float) -> None:
        """A key was looked at, and that took so long."""
        kind = numberless(key)
        if kind == kin(key):
            return
        looks, known = self._known().get(kind) or _Looks(self._clock_s()), self._known()
        more_s = took_s if looks.count >= FREE else 0.0
        known[kind] = _Looks(looks.since_s, looks.count + 1, looks.took_s + more_s)
