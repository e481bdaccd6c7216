"""Bounded maps, by what was used last: what says what it lets go, what hits have numbered; and what has left them."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from cachetools import LRUCache

__all__ = ["MOST_REPLACEMENTS", "Departures", "Lru", "Recency"]

WITHIN = 2
"""A build that leaves twice within so many times ``maxsize`` calls is not made again. At 1, shapes in turn that are one
more than the table holds would each be just out of sight when they leave again."""
MOST_REPLACEMENTS = 8
"""A build is made anew so often, at most, within `WITHIN` times ``maxsize`` calls, since code under it was replaced."""


class Lru(LRUCache[Any, Any]):
    """``leaving(key, value)`` is told each item that leaves, the least recently used first."""

    def __init__(self, maxsize: int, leaving: Callable[[Any, Any], None]) -> None:
        super().__init__(maxsize)
        self._leaving = leaving

    def popitem(self) -> tuple[Any, Any]:
        """Let one go."""
        key, value = super().popitem()
        self._leaving(key, value)
        return key, value


class Recency(OrderedDict[Any, Hashable]):
    """Slots with their keys in the order in which they were used, which is looked at when one must leave.

    A hit only notes its number: reordering at each would cost it a lock and two lookups.
    """

    _settled = -1

    def make_room(self, maxsize: int, leaving: Callable[[Any, Any], None]) -> None:
        """Let what was used least recently leave, so that there is room for one more; they are in order."""
        while len(self) >= maxsize:
            leaving(*self.popitem(last=False))

    def put_in_order(self) -> Iterator[Any]:
        """Put those that were hit since the last time in order; each of them."""
        used = operator.attrgetter("used")
        recent = sorted((slot for slot in self if slot.used > self._settled), key=used)
        for slot in recent:
            self.move_to_end(slot)
        if recent:
            self._settled = recent[-1].used
        return iter(recent)


class Departures:
    """When builds left, and were replaced, in calls."""

    def __init__(self, maxsize: int, max_builds: int) -> None:
        self._within = WITHIN * maxsize
        self._max_builds = max_builds
        self.any: bool = False
        """Whether any has left."""
        self.empty: bool = True
        """Whether none has left or was replaced."""
        self._left: LRUCache[Hashable, tuple[int, ...]] = LRUCache(self._within)
        self._replaced: LRUCache[Hashable, tuple[int, ...]] = LRUCache(self._within)

    def left(self, key: Hashable, calls: int) -> None:
        """A build has made room for another."""
        self.any, self.empty = True, False
        self._left[key] = (*self._left.get(key, ()), calls)[-2:]

    def replaced(self, key: Hashable, calls: int) -> None:
        """A build was made anew."""
        self.empty = False
        self._replaced[key] = (*self._replaced.get(key, ()), calls)[-MOST_REPLACEMENTS:]

    def why_not_again(self, key: Hashable, remade: bool) -> str | None:
        """See `Table.why_not_again`; ``remade`` ones are, however often they leave."""
        left, replaced = self._left.get(key, ()), self._replaced.get(key, ())
        within = -1 if remade else self._within
        if len(left) == 2 and left[-1] - left[0] <= within:
            return (
                f"it had to make room for other builds twice within {within} calls and is not made again: "
                f"max_builds is {self._max_builds}"
            )
        if len(replaced) == MOST_REPLACEMENTS and replaced[-1] - replaced[0] <= within:
            return f"what it is made of was replaced {MOST_REPLACEMENTS} times within {within} calls"
        return None
