"""Which variant is best at keys near each other, by pairs of calls: one of plain and one of a variant.

What counts of a pair is how many times plain's time the variant took, which hardly depends on the key. Where sizes
hardly repeat, no key gives both calls of a pair: those of two keys of nearly the same sizes are one, too. Nothing here
runs or times anything; what is asked from several threads is asked with a lock held.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..autotune.benchmark import (
    ENOUGH,
    MATTERS,
    error_apart_us,
    how_far_behind,
    is_ahead_at_last,
    is_behind,
    is_decided,
    timing_of,
)
from ..autotune.choose import best
from ..records import Timing

__all__ = ["LIKELY", "PLAIN_US", "Half", "Halves", "Pairs"]

PLAIN_US = 100.0
"""What plain counts for, whatever it took."""
MOST = 40
"""Pairs after which what is not decided is not by much."""
PLAIN = Timing("plain", PLAIN_US, 0.0, MOST, least_us=PLAIN_US)
"""Plain's cost, which is what the others are measured by."""
TIES, LITTLE = 11, 0.05
"""Pairs of each after which it is over where another would hardly save as much of the time as this share, by luck
included: builds of nearly the same code are the rule."""
LIKELY, FEWEST, STRIKING = 3, 2, 1 / MATTERS
"""Pairs after which what leads may run, though it is not decided; after the second what takes no more than so much of
plain's time in each of them."""
JUDGED_AFTER = (FEWEST, LIKELY, ENOUGH, TIES, 24, MOST)
"""Pairs of each after which what they show may change anything: to look at it takes longer than some calls."""
COLD_AFTER = 11
"""Cold pairs in a row after which they count, and the warm ones before them do not: so calls come by now."""
NEARLY = 0.2
"""How many doublings of sizes apart, together, two calls are at most that are a pair."""
MOST_OPEN, PASSES = 16, 8
"""Halves that wait for others; where there are as many, none of which a key's would do for, which keys add another."""


@dataclass(slots=True, eq=False)
class Half:
    """A call of plain, or of a variant that is to be compared with it."""

    name: str
    """The variant, of plain's call too."""
    of_plain: bool
    took_us: float
    sizes: tuple[int, ...]
    cold: bool = False
    """Whether it found its code cold, which adds to it what no later call takes."""
    dry: bool = False
    """Whether it is known to have found nothing left to do on the device: it took something else than others then."""


class Halves:
    """Calls that wait for the other half of their pair, the oldest first."""

    def __init__(self) -> None:
        self._open: list[Half] = []
        self._passed = 0

    def __contains__(self, half: Half | None) -> bool:
        """Whether it waits."""
        return half in self._open

    def nearest(self, name: str, sizes: tuple[int, ...]) -> Half | None:
        """What is to be compared with a call of such sizes, of whichever of both it is."""
        return _nearest([half for half in self._open if half.name == name], sizes)

    def has_room(self, name: str, sizes: tuple[int, ...]) -> bool:
        """Whether a key is to give one; where many wait already, few keys are, and the oldest is given up for that."""
        if len(self._open) < MOST_OPEN or self.nearest(name, sizes) is not None:
            return True
        self._passed += 1
        return self._passed % PASSES == 0

    def add(self, half: Half) -> tuple[float, bool] | None:
        """How many times plain's time the variant took, and whether cold, if this makes a pair; else it waits."""
        like = (half.name, not half.of_plain, half.dry)
        other = _nearest([one for one in self._open if (one.name, one.of_plain, one.dry) == like], half.sizes)
        if other is None:
            self._open = [*self._open, half][-MOST_OPEN:]
            return None
        self._open.remove(other)
        plain, variant = (half, other) if half.of_plain else (other, half)
        # Of calls of more, some take as long and some take longer by as much: half of that is taken off, either way.
        larger = math.sqrt(_volume(plain.sizes) / _volume(variant.sizes))
        return variant.took_us / plain.took_us * larger, half.cold or other.cold

    def forget(self, name: str) -> None:
        """A variant is out."""
        self._open = [half for half in self._open if half.name != name]


def _nearest(halves: Iterable[Half], sizes: tuple[int, ...]) -> Half | None:
    near = [half for half in halves if _apart(half.sizes, sizes) <= NEARLY]
    return min(near, key=lambda half: _apart(half.sizes, sizes), default=None)


def _apart(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return sum([abs(math.log2(max(1, a) / max(1, b))) for a, b in zip(one, other, strict=True) if a != b])


def _volume(sizes: tuple[int, ...]) -> int:
    return math.prod([max(1, size) for size in sizes])


@dataclass(slots=True, eq=False)
class Pairs:
    """Of several variants, the first of which is plain; ``margin`` is a share of the time."""

    margin: float
    _found: dict[str, deque[float]] = field(default_factory=dict)
    _running: list[str] = field(default_factory=list)
    _cold: set[str] = field(default_factory=set)
    """Those of which all pairs are cold ones: they count as long as there is no other."""
    _passed: Counter[str] = field(default_factory=Counter)
    """How many cold ones in a row did not count."""
    _out: set[str] = field(default_factory=set)
    """Those that raised."""
    _is_decided: bool = False
    """Whether more pairs of those of which there are enough would change nothing that matters."""
    _timings: dict[str, Timing] = field(default_factory=dict)
    """What is known of each, until there is another pair of it: it is asked for more often than pairs are given."""
    _costs: Sequence[Timing] | None = None
    """See `costs`; until there is another pair."""
    _led: tuple[str | None] | None = None
    """Who leads, once that was asked since the last change."""

    @classmethod
    def joined(cls, margin: float, several: Iterable[Pairs]) -> Pairs:
        """All that these have found, as if it were of one neighbourhood."""
        made = cls(margin)
        for pairs in several:
            for name in pairs._running:
                made._found.setdefault(name, deque()).extend(pairs._found[name])
        made._running.extend(made._found)
        return made

    def add(self, name: str) -> None:
        """One more variant; not one that is out."""
        if name not in self._found and name not in self._out:
            self._found[name] = deque(maxlen=MOST)
            self._running.append(name)
            self._changed(name)

    def wanted(self, names: Iterable[str]) -> list[str]:
        """Those of these of which more pairs are wanted, and there are the fewest, as many of each."""
        most = ENOUGH if self._is_decided else MOST
        running = [name for name in names if name in self._running and len(self._found[name]) < most]
        fewest = min((len(self._found[name]) for name in running), default=0)
        return [name for name in running if len(self._found[name]) == fewest]

    def until_judged(self, names: Iterable[str]) -> int:
        """How many more pairs of those of these that are wanted may be given before it matters what they show."""
        given = min((len(self._found[name]) for name in self.wanted(names)), default=0)
        return next(after for after in JUDGED_AFTER if after > given) - given

    def gave(self, pairs: Iterable[tuple[str, float, bool]]) -> None:
        """In each the variant took so many times what plain took, and whether cold; what makes no sense is no pair."""
        given = [pair for pair in pairs if self._noted(*pair)]
        if given:
            self._leave_behind()
            self._look()

    def _noted(self, name: str, ratio: float, cold: bool) -> bool:
        if name not in self._found or not 0 < ratio < math.inf or not self._takes(name, cold):
            return False
        self._found[name].append(ratio * PLAIN_US)
        self._changed(name)
        return True

    def _leave_behind(self) -> None:
        """Want no more pairs of what is far behind."""
        leader = min(self.costs(), key=lambda timing: timing.median_us)
        for one in list(self._running):
            cost = self._timing(one)
            if cost.repeats > 1 and is_behind(cost, leader, how_far_behind(cost.repeats)):
                self._running.remove(one)

    def _takes(self, name: str, cold: bool) -> bool:
        """Whether a pair counts beside those that there are.

        They are forgotten where it is the first warm one, or many cold ones have come in a row.
        """
        self._passed[name] = self._passed[name] + 1 if cold and name not in self._cold else 0
        if not cold and name not in self._cold:
            return True
        changes = not cold or not self._found[name] or self._passed[name] >= COLD_AFTER
        if changes:
            self._found[name].clear()
            self._cold = {*self._cold, name} if cold else self._cold - {name}
        return changes or name in self._cold

    def failed(self, name: str) -> None:
        """It raised: it is out, whatever it has shown."""
        self._out.add(name)
        self._found.pop(name, None)
        self._running = [one for one in self._running if one != name]
        self._changed(name)
        self._look()

    def is_out(self, name: str) -> bool:
        """Whether it raised."""
        return name in self._out

    def _changed(self, name: str) -> None:
        self._timings.pop(name, None)
        self._costs = self._led = None

    def _timing(self, name: str) -> Timing:
        known = self._timings.get(name)
        if known is None:
            known = self._timings[name] = timing_of(name, self._found[name])
        return known

    def _look(self) -> None:
        known = [self._timing(name) for name in self._running if len(self._found[name]) >= ENOUGH]
        known.insert(0, PLAIN)
        self._led = None
        self._is_decided = is_decided(known, self.margin, patient=True) or self._is_tie(known)

    def _is_tie(self, known: Sequence[Timing]) -> bool:
        won = best(known, self.margin, "time")[0]
        if won is None or any(timing.repeats < TIES for timing in known):
            return False
        return all(_may_save(won, other) <= LITTLE for other in known if other is not won)

    def is_over(self) -> bool:
        """Whether more pairs would change nothing that matters."""
        left = [len(self._found[name]) for name in self._running]
        if all(count >= MOST for count in left):
            return bool(self._found)
        return all(count >= ENOUGH for count in left) and self._is_decided

    def is_tied(self) -> bool:
        """Whether it is over because there are as many pairs as there may be, and they do not say who is best."""
        return self.is_over() and not self._is_decided

    def is_likely(self, name: str) -> bool:
        """Whether there are some pairs of it."""
        return len(self._found.get(name) or ()) >= LIKELY

    def may_be_led(self, leader: str) -> bool:
        """Whether the pairs of another say that it is faster than who leads: few by anything, more by what matters."""
        costs = {cost.variant: cost for cost in self.costs()}
        others = [costs[name] for name in self._running if name != leader and name in costs]
        least = {one.variant: 1.0 if one.repeats < LIKELY else 1 - LITTLE for one in others}
        return any(one.median_us < least[one.variant] * costs[leader].median_us for one in others)

    def is_faster(self, name: str, other: str) -> bool:
        """Whether pairs say so of one of two, by however little."""
        costs = {cost.variant: cost.median_us for cost in self.costs()}
        return name in costs and other in costs and costs[name] < costs[other]

    def is_empty(self) -> bool:
        """Whether there is no pair yet."""
        return not any(self._found.values())

    def least_share(self) -> float:
        """How many times plain's time what is fastest so far takes, plain itself included."""
        return min(cost.median_us for cost in self.costs()) / PLAIN_US

    def leader(self) -> str | None:
        """What is best as far as that is likely; None where too little is known."""
        if self._led is None:
            self._led = (self._leads(),)
        return self._led[0]

    def _leads(self) -> str | None:
        known = [one for one in self.costs() if one.repeats >= LIKELY or self._is_striking(one.variant)]
        won = best(known, self.margin, "time")[0]
        if won is None or (len(known) == 1 and not self.is_over()):
            return None
        return self._meanwhile(self._at_last(won, [one for one in known if one.repeats >= MOST]), known).variant

    def _meanwhile(self, won: Timing, known: Sequence[Timing]) -> Timing:
        """Until it is over, the fastest of the variants where one of them wins, if it is so by more than a little.

        By few pairs that scatter the earliest wins: that is for what is kept. What runs may as well be the fastest.
        """
        first = min(known, key=lambda timing: timing.median_us)
        ahead = first.median_us < won.median_us * (1 - LITTLE) and won.variant != "plain"
        return first if ahead and not self.is_over() else won

    def _is_striking(self, name: str) -> bool:
        found = self._found.get(name) or ()
        return len(found) >= FEWEST and max(found) <= STRIKING * PLAIN_US

    def _at_last(self, won: Timing, ended: Sequence[Timing]) -> Timing:
        """What is best of those of which there will be no more pairs, if less certainty makes it so: else who won.

        Samples of small calls find the code cold, which adds as much to both: they scatter, and look alike.
        """
        first = min(ended, key=lambda timing: timing.median_us)
        is_first = first.median_us < won.median_us * (1 - self.margin) and is_ahead_at_last(first, won)
        return first if is_first else won

    def costs(self) -> Sequence[Timing]:
        """What is known, in microseconds, as if plain took `PLAIN_US`."""
        if self._costs is None:
            self._costs = [PLAIN, *(self._timing(name) for name, found in self._found.items() if found)]
        return self._costs


def _may_save(won: Timing, other: Timing) -> float:
    """What share of the time another may save, by one standard error more than it has."""
    return (won.median_us - other.median_us + error_apart_us(won, other)) / won.median_us
