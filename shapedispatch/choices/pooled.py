"""A key's part in what a pool finds out: it gives pairs of its calls as long as any are wanted (see `online.pool`)."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..autotune.benchmark import MATTERS
from ..hit.table import Entry
from ..online.contest import COLD_US, SMALL_US
from ..online.figures import Figures
from ..online.pairs import Half
from ..online.pool import Family, Pool
from ..records import Timing
from .context import MissContext
from .neighbours import leading

__all__ = ["PooledContest", "pool_of"]

ENOUGH_OF_PLAIN, FAR_SHARE = 2, 1 / 3
"""Samples of plain at a key after which pairs there need no more, where what is fastest takes so much of its time."""


def pool_of(ctx: MissContext, sizes: Mapping[str, int], make: bool = False) -> Pool | None:
    """That of the calls which differ from this one in sizes alone, and lie in the same octave; None without one.

    It is made, too, where it begins with what others of its family know, or with what leads at a key near it.
    """
    if ctx.kin is None:
        return None
    families = ctx.core.table.facts.families
    family: Family | None = families.get(ctx.kin)
    if family is None:
        if not make:
            return None
        family = families[ctx.kin] = Family()
    octaves = tuple([size.bit_length() for size in sizes.values()])
    found = family.pools.get(octaves)
    if (found is not None and found.favourite is not None) or not (make or family.entries):
        return found
    return family.pool(octaves, ctx.settings.margin, *(leading(ctx, sizes, family.alone) or ()))


@dataclass(slots=True, eq=False)
class PooledContest:
    """As `online.OnlineContest` for one key of a pool: it gives pairs as long as any are wanted."""

    pool: Pool
    entries: Mapping[str, Entry]
    """What runs those of the candidates that its pool is to know of, once they are known to be right."""
    contestants: list[Figures]
    """First plain."""
    sizes: tuple[int, ...] = ()
    over: bool = False
    """Whether no call of this key need be a sample any more."""
    _begun: int = 0
    _left: deque[Figures] = field(default_factory=deque)
    """Of the pairs that are given now, who has not run yet."""
    _ran: list[Figures] = field(default_factory=list)
    """Of the same, who has, and it is not known yet what that took."""
    _wanted: list[Figures] = field(default_factory=list)
    """The variants whose pairs those are, all with the same call of plain."""
    _halves: dict[Figures, Half] = field(default_factory=dict)
    """What was given of each."""
    _is_whole: bool = False
    """Whether each sample of a variant is a pair, with what plain is known to take here."""
    _pairs: list[tuple[str, float, bool]] = field(default_factory=list)
    """Those of which the pool has not been told."""
    _soon: dict[Figures, bool] = field(default_factory=dict)
    """Whose last sample came soon after other calls of the key: what it took may be known only later."""

    def __post_init__(self) -> None:
        for one in self.contestants:
            self._known_right(one)

    def _known_right(self, contestant: Figures) -> None:
        if contestant.name in self.entries:
            self.pool.found_right(contestant.name, self.entries[contestant.name])

    def next_sample(self) -> Figures | None:
        """Whose sample the next call is."""
        self._give()
        if not self._wanted and not self.over:
            self._begin()
        return self._left[0] if self._left and not self.over else None

    def _begin(self) -> None:
        """Begin pairs of all variants that are wanted, with one call of plain: to look costs more than some samples."""
        named = {one.name: one for one in self.contestants[1:]}
        self._wanted = [named[name] for name in self.pool.wanted([*named])]
        if self._wanted:
            self._is_whole = self._knows_plain()
            self._left.extend(self._rounds() if self._is_whole else self._pair())
            self._begun += 1

    def _knows_plain(self) -> bool:
        """Whether plain's calls here stand for one more; not where the last of them found its code cold.

        So would all that is compared with it.
        """
        plain = self.contestants[0]
        return plain.cost().repeats >= ENOUGH_OF_PLAIN and self._soon.get(plain, False)

    def _rounds(self) -> Iterator[Figures]:
        """Calls in turns, until it matters what they show; of plain none where it is far behind.

        Of variants that are much faster than it it says how much; which of them is the fastest it does not.
        """
        plain = [] if self.pool.least_share() <= FAR_SHARE else [self.contestants[0]]
        run = [*plain, *self._wanted]
        for number in range(self.pool.at_once([one.name for one in run])):
            yield from run if number % 2 else reversed(run)

    def _pair(self) -> list[Figures]:
        """One call of each, and one of plain where no other key has given that."""
        of_plain = {one: self.pool.waits_for_plain(one.name, self.sizes) for one in self._wanted}
        run = [one for one in self._wanted if not of_plain[one]]
        if any(is_plain is not False for is_plain in of_plain.values()):  # most keys have calls for one pair only
            run.insert(0 if self._begun % 2 else 1, self.contestants[0])
        return run

    def _give(self) -> None:
        """Give what it is known of by now what it took; the rest is not wanted where another key has given it."""
        if self._wanted:
            self._note_known()
            if not self._is_whole:
                self._wanted = [one for one in self._wanted if self._lacks_half(one)]
                self._left = deque(one for one in self._left if self._is_needed(one))
            self.pool.gave(self._pairs)
            self._pairs.clear()
            if not self._left and not self._ran:
                self._forget()
        self._end()

    def _note_known(self) -> None:
        """Make pairs, or halves of them, of what has run and is known of by now."""
        known = [one for one in self._ran if one.cost().repeats]
        if not known:
            return
        self._ran = [one for one in self._ran if one not in known]
        if self._is_whole:
            self._pairs += [self._with_plain(one) for one in known if one is not self.contestants[0]]
        else:
            self._give_halves(known)

    def _with_plain(self, variant: Figures) -> tuple[str, float, bool]:
        """Its pair with what plain is known to take here."""
        cold = not self._soon.get(variant, False)
        return variant.name, variant.known_us / self.contestants[0].known_us, cold

    def _give_halves(self, known: Sequence[Figures]) -> None:
        """Half a pair of each, or of plain half of each that is given now."""
        halves: list[Half] = []
        for ran in known:
            of_plain, cold = ran is self.contestants[0], not self._soon.get(ran, False)
            for one in self._wanted if of_plain else [ran]:
                self._halves[one] = Half(one.name, of_plain, ran.cost().median_us, self.sizes, cold)
                halves.append(self._halves[one])
        self.pool.gave_halves(halves)

    def _lacks_half(self, variant: Figures) -> bool:
        """Whether its pair is not whole yet."""
        return variant not in self._halves or self.pool.waits(self._halves[variant])

    def _is_needed(self, one: Figures) -> bool:
        """Whether a pair that is given now lacks a call of it."""
        if one is not self.contestants[0]:
            return one in self._wanted
        return any(other not in self._halves or not self._halves[other].of_plain for other in self._wanted)

    def _forget(self) -> None:
        self._left.clear()
        self._ran.clear()
        self._wanted.clear()
        self._halves.clear()
        self._pairs.clear()

    def _end(self) -> None:
        """It is over with its pool; and before, where all that it has can be had at other keys and no more is wanted.

        What was compared with plain at this key, for itself, may be wanted later: at others that costs as much again.
        """
        passes = not self.entries and not self._wanted
        self.over = self.pool.over or (passes and not self.pool.wants([one.name for one in self.contestants[1:]]))

    def next_samples(self) -> list[Figures]:
        """See `OnlineContest.next_samples`: what is left of the pairs."""
        return [*self._left] if self.next_sample() is not None else []

    def sampled(self, contestant: Figures, took_us: float, more: bool = False) -> None:
        """See `OnlineContest.sampled`."""
        if contestant in self._left:
            self._left.remove(contestant)
            self._ran.append(contestant)
        if math.isfinite(took_us):
            usual_us = self._usual_us()
            self.pool.spent(took_us, max(0.0, took_us - usual_us) if math.isfinite(usual_us) else 0.0)
        if not more:  # to give takes longer than some calls
            self._give()
        elif self._is_whole:
            self._note_known()

    def _usual_us(self) -> float:
        """What a call takes here that is no sample, as far as that is known: by the favourite, or by plain."""
        leader, plain = self.leader(), self.contestants[0]
        likely_us = plain.known_us * (self.pool.least_share() if leader is not plain else 1.0)
        return leader.known_us if math.isfinite(leader.known_us) else likely_us

    def rests(self) -> bool:
        """See `OnlineContest.rests`."""
        return not self.over and not self._wanted

    def calls_until_next(self) -> int:
        """See `OnlineContest.calls_until_next`: other keys may earn it."""
        return 0

    def calls_before(self, one: Figures, soon: bool, warm: int) -> int:
        """See `OnlineContest.calls_before`: where the key's last call was not ``soon`` before, others have run since.

        Before the first sample of a long one goes one call, which finds the memory that no call of such sizes had.
        """
        self._soon[one] = soon
        if not soon or self.pool.is_behind(one.name):
            return 0
        known = [other.known_us for other in self.contestants if math.isfinite(other.known_us)]
        least_us = min(known, default=0.0)  # a pair is all that most keys give: without calls before it that is cold
        if math.isinf(one.known_us):
            return warm if least_us <= SMALL_US else 1
        return warm if least_us <= SMALL_US and one.known_us <= max(MATTERS * least_us, least_us + COLD_US) else 0

    def warmed(self, one: Figures, calls: int = 1) -> None:
        """See `OnlineContest.warmed`."""
        if math.isfinite(one.known_us):
            self.pool.spent(calls * one.known_us, calls * max(0.0, one.known_us - self._usual_us()))

    def looked(self, took_us: float) -> None:
        """See `OnlineContest.looked`: what they take is its family's loss."""
        if math.isfinite(took_us):
            self.pool.spent(took_us, took_us)

    def missed(self, one: Figures, took_us: float) -> None:
        """See `OnlineContest.missed`."""
        if math.isfinite(took_us):
            self.pool.spent(took_us, max(0.0, took_us - self._usual_us()))

    def ran(self, took_us: float) -> None:
        """See `OnlineContest.ran`."""
        if math.isfinite(took_us):
            self.pool.spent(took_us)

    def leader(self) -> Figures:
        """What the pool takes to be best, if it is here; else plain. What is not settled, samples here outweigh.

        It may be what won at other sizes alone, and be slower here than plain.
        """
        plain = self.contestants[0]
        favourite = next((one for one in self.contestants if one.name == self.pool.favourite), plain)
        if not self.pool.over and math.isfinite(favourite.known_us) and favourite.known_us > plain.known_us:
            return min(self.contestants, key=lambda one: one.known_us)
        return favourite

    def admit(self, contestant: Figures, place: int) -> None:
        """See `OnlineContest.admit`."""
        self.contestants.insert(place, contestant)
        self._known_right(contestant)

    def failed(self, contestant: Figures) -> None:
        """See `OnlineContest.failed`."""
        self.contestants.remove(contestant)
        self._forget()
        self.pool.failed(contestant.name)
        self._end()

    def costs(self) -> Iterator[Timing]:
        """What is known of each candidate that has a sample here."""
        return (cost for one in self.contestants if (cost := one.shown()).repeats)
