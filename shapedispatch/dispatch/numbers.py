"""Numbers and texts that hardly repeat: each is a key of its own, and a look at it takes longer than its calls do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from cachetools import LRUCache

from ..keys.key import Key
from ..keys.layout import kin, numberless

__all__ = ["NumbersLookedAt"]

FREE, SHARE = 32, 0.03
"""So many keys of a kind are looked at whatever it takes, and more of them for this share of the time since."""
HARDLY_REPEAT = "numbers or texts of such calls hardly repeat, and to look at each takes longer than the calls do"
KINDS = 64
"""Of so many kinds of calls it is known what looks have taken."""


@dataclass(slots=True)
class _Looks:
    since_s: float
    count: int = 0
    took_s: float = 0.0


class NumbersLookedAt:
    """What it has taken to look at the keys of one dispatcher that differ from others in numbers and texts."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._looks: LRUCache[Hashable, _Looks] = LRUCache(KINDS)

    def why_not(self, key: Key) -> str | None:
        """Why a key is not looked at now, if so; a later call of it may be."""
        kind = numberless(key)
        if kind == kin(key):
            return None
        with self._lock:
            looks = self._looks.get(kind)
        if looks is None or looks.count < FREE:
            return None
        affords = looks.took_s <= SHARE * (self._clock_s() - looks.since_s)
        return (
            None if affords else "its numbers or texts hardly repeat, and to look at each takes longer than the calls"
        )

    def looked(self, key: Key, took_s: float) -> None:
        """A key was looked at, and that took so long."""
        kind = numberless(key)
        if kind == kin(key):
            return
        with self._lock:
            looks = self._looks.setdefault(kind, _Looks(self._clock_s()))
            looks.count += 1
            looks.took_s += took_s if looks.count > FREE else 0.0
