"""Numbers, texts and sizes that hardly repeat: each is a key of its own, which takes longer to see to than to call."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch

from ..hit.facts import FactMap
from ..hit.table import Table
from ..keys.key import Key
from ..keys.layout import kin, numberless

__all__ = ["NewSizes", "NumbersLookedAt"]

FREE, SHARE = 32, 0.03
"""So many keys of a kind are looked at whatever it takes, and more of them for this share of the time since."""
MOST_RECENT = 16
"""So many of the numbers that were looked at last are known: calls that differ from those in sizes are no others."""
MOST_SPARED = 32
"""Calls that are not even asked for, at most: to find out that a key is not to be looked at takes longer than some."""
ENTERING = 0.0025
"""Which share of the time it may take to enter calls of new sizes, where such hardly repeat: each leaves the caches
cold, which takes several times as long."""
PASS_S = 10e-6
"""What it takes to run for a call what its kin run, without entering it."""
MOST_PASSED = 1024
"""Calls of new sizes that pass before the next is entered, at most: what is best for such calls is found at those."""
MOST_SIGHTS, MOST_FAMILIES = 4096, 64
"""Of so many that have passed it is known when they come again; and so many families of a kernel's calls may pass."""
LOOKED_THROUGH, SELDOM = 64, 8
"""After so many calls of new sizes it is seen how many came again; where not one in so many did, the next may pass."""
FOR_ROOM = 16
"""Where most that are entered push others out, one is that comes again among one in so many as there is room for."""
SIZES_HARDLY_REPEAT = "sizes of such calls hardly repeat, and to enter each takes longer than the calls do"
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


class NewSizes:
    """How often calls of one dispatcher come again whose sizes were new: to enter one takes longer than many calls do.

    Where they hardly do, the next pass, but for those that were seen lately: plain runs them, or what runs their kin.
    So do those for which there is no room, each of which would take the place of one that comes again as they do: of
    these fewer are known to have been seen, so that what comes more often than what is there takes its place.
    """

    def __init__(self, table: Table, clock_s: Callable[[], float] = time.perf_counter) -> None:
        self._table, self._clock_s = table, clock_s
        self.counts_as: int = 1
        """As how many calls the one counts that was entered last: those that have passed before it, too."""
        self._passed_s = 0.0
        """In how much time these have, at most."""
        self.left: int = 0
        """How many calls of a kernel pass yet, which C does not see to."""
        self._kin: dict[Hashable, Callable[..., Any]] = {}
        """What runs them, by their family."""
        self._sights: set[Key] = set()
        """The keys of those that have."""
        self._passed = 0
        self._seldom = self._full = False
        self._entered = self._hits = self._gone_before = self._gone = self._left = 0
        self._last_s = clock_s()

    def entered(
        self,
        took_s: float,
        saves: Callable[[], float],
        *,
        has_kin: bool = False,
        awaited: bool = False,
        kin: Callable[[], tuple[Hashable, Callable[..., Any] | None]] | None = None,
    ) -> None:
        """A call was, which took so long; what runs it ``saves`` such a part of the time that plain takes.

        With ``has_kin`` others may run what it runs. Where more are ``awaited``, to be samples, none passes. Of a
        kernel ``kin`` gives its family and what runs the others of that.
        """
        each_s = self._each_s(took_s)
        if awaited or not (self._seldom or self._full):
            return
        calls = min(MOST_PASSED, int(took_s / max(ENTERING * each_s, 1e-9)))
        if kin is not None:
            family, run = kin()
            self.left = 0 if run is None else calls
            if run is not None:
                self._kin = {**({} if len(self._kin) >= MOST_FAMILIES else self._kin), family: run}
        elif has_kin or saves() * each_s <= took_s:
            passes = has_kin and saves() * each_s > PASS_S
            self._table.spare(calls, SIZES_HARDLY_REPEAT, sights=self._most_sights(), passes=passes)

    def passing(self, key: Key, family_of: Callable[[Key], Hashable]) -> Callable[..., Any] | None:
        """What runs a kernel's call that is not found, if it passes; one that has passed before is entered.

        So is one of a family of which none was: of other types, say, a config may not be right.
        """
        if self.left <= 0 or key in self._sights or torch.are_deterministic_algorithms_enabled():
            return None
        run = self._kin.get(family_of(key))
        if run is None:
            return None
        if len(self._sights) >= self._most_sights():
            self._sights.clear()
        self._sights.add(key)
        self.left, self._passed = self.left - 1, self._passed + 1
        self._table.count("misses", SIZES_HARDLY_REPEAT)
        return run

    def in_all_s(self, took_s: float) -> float:
        """What the one has taken that was entered last, with those that have passed before it.

        They are taken to be like it; not where it was held up, so that there was no such time.
        """
        return took_s + min((self.counts_as - 1) * took_s, self._passed_s)

    def _most_sights(self) -> int:
        """Of how many that have passed it is known when they come again; a power of two."""
        few = max(1, self._table.maxsize // FOR_ROOM)
        return min(MOST_SIGHTS, 1 << (few.bit_length() - 1)) if self._full else MOST_SIGHTS

    def _each_s(self, took_s: float) -> float:
        """How long it had been since the last, by calls; now and then it is seen whether such come again."""
        now_s, (hits, gone, left) = self._clock_s(), self._table.so_far()
        gone += self._passed
        self.counts_as = 1 + gone - self._gone
        self._passed_s, self._last_s, self._gone = now_s - took_s - self._last_s, now_s, gone
        self._entered += 1
        if self._entered % LOOKED_THROUGH == 0:
            calls = LOOKED_THROUGH + gone - self._gone_before
            self._seldom = SELDOM * (hits - self._hits) < calls
            self._full = 2 * (left - self._left) > LOOKED_THROUGH
            self._hits, self._gone_before, self._left = hits, gone, left
        return self._passed_s / self.counts_as


def _kind_of(key: Key) -> Key | None:
    """What it has in common with keys that differ in numbers and texts, or sizes; None where it has neither."""
    without = numberless(key)
    return None if without == key else kin(without)
