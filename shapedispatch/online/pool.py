"""What is best for keys of few calls each, which find it out together.

Where sizes hardly repeat, no key gets the calls that a contest of its own takes. So of the keys near each other the
first few are learned alone; the others give pairs of calls as long as any are wanted, each alone or two together, and
then run what is best as far as that is known: their hits are like others. What costs more than a pair, to see what is
right for a key, is bounded for all of them together: a pool is of one octave of sizes, and all octaves are one family.
What has won in one of them is what the next one begins with: a few pairs that bear it out are enough, and none are
where both sides agree.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ..autotune.benchmark import MATTERS
from ..autotune.measure import Clock
from ..hit.table import Entry
from ..interpreter.locks import fork_safe_lock
from ..keys.key import Key
from ..keys.layout import Ways
from .contest import MOST_NOTING_US, SHARE
from .pairs import PLAIN_US, Half, Halves, Pairs

__all__ = ["ALONE", "MOST_POOLS", "TOGETHER", "Family", "Pool"]

TOGETHER = "found together with calls of sizes near it"
ALONE, MOST_ALONE = 2, 256
"""How many keys of a family are learned each of its own from the first, and how many at most."""
MOST_POOLS = 256
"""How many neighbourhoods of one family are remembered."""
FREE_TOGETHER_US = 5_000.0
"""What finding out may cost a family at first, beside a share of what is spent there: it is of many keys."""
SPARES = 2.0
"""How many times what was lost counts for a neighbourhood that knows what leads, while another does not."""
FAR = 2
"""How many octaves away, together, sizes are at most that say something of others."""


class Follower(Protocol):
    """A key that runs what its pool prefers."""

    def decide_anew(self) -> None:
        """Forget what the key runs."""


class Shared(Protocol):
    """Calls of the keys of all pools of a family, of which some are samples."""

    def poll(self) -> None:
        """Give the pools what samples have shown since the last time, and begin those that are wanted next."""

    def follow(self, pool: Pool) -> None:
        """Another leads in this pool, or it is over; called with the family's lock held."""


Octaves: TypeAlias = tuple[int, ...]
"""Of each size of a call, how many binary digits it has."""


@dataclass(slots=True, eq=False)
class Family:
    """What the pools of calls that differ in sizes alone have in common: what finding out has cost, and what won."""

    pools: dict[Octaves, Pool] = field(default_factory=dict)
    entries: dict[str, Entry] = field(default_factory=dict)
    """By variant, an entry that runs it at one of the keys; of those that are right at all that they take."""
    alone: set[Key] = field(default_factory=set)
    """The keys that are learned each of its own."""
    check_us: float = math.inf
    """What it took last to see what is right for a key."""
    spent_us: float = 0.0
    checked_us: float = 0.0
    lost_us: float = 0.0
    """Of what was spent, on looks, and in pairs beyond what plain takes."""
    records: Callable[[], bool] | None = None
    """Whether recordings pay now, where its keys would have them if they were learned alone."""
    lock: threading.Lock = field(default_factory=fork_safe_lock)
    """Held while anything of it, or of one of its pools, changes."""

    ways: Ways = field(default_factory=Ways)
    """What its keys are new because of."""

    shared: Shared | None = None
    """The calls of which C makes samples, for all pools."""

    def affords(self, cost_us: float) -> bool:
        """Whether finding out may have cost so much."""
        return cost_us <= FREE_TOGETHER_US + SHARE * self.spent_us

    def ran(self, took_us: float) -> None:
        """Calls that were no samples took so long."""
        with self.lock:
            self.spent_us += took_us

    def lost(self, took_us: float) -> None:
        """So much was spent on samples, beside what calls would have taken."""
        with self.lock:
            self.spent_us += took_us
            self.lost_us += took_us

    def looked(self, took_us: float) -> None:
        """It took so long to note samples, or to see what a key runs: a pause of the machine is no cost of that."""
        with self.lock:
            self.spent_us += took_us
            self.lost_us += min(took_us, MOST_NOTING_US)

    def wanted(self, names: Sequence[str], pools: Iterable[Pool]) -> list[str]:
        """Which of these variants these pools want to be sampled next, as many of them each; none for none now."""
        with self.lock:
            if not self.affords(self.lost_us):
                return []
            wanted = Counter(name for pool in pools if not pool.over for name in pool.pairs.wanted(names))
        return [name for name in names if 0 < wanted[name] == max(wanted.values())]

    def pool(self, octaves: Octaves, margin: float, leads: str | None = None, share: float = 1.0) -> Pool:
        """That of these octaves: it begins with what others know, or what ``leads`` at a ``share`` of plain's time."""
        found = self.pools.get(octaves)
        if found is not None and leads is None:
            return found
        with self.lock:
            found = found or self._made(octaves, margin)
            left = [] if leads is None else found.runs_meanwhile(leads, share)
        _let_go(left)
        return found

    def _made(self, octaves: Octaves, margin: float) -> Pool:
        """One more, with the lock held."""
        made = Pool(Pairs(margin), family=self)
        for name, entry in self.entries.items():
            made.learns(name, entry)
        self._expects(octaves, made)
        while len(self.pools) >= MOST_POOLS:
            del self.pools[next(iter(self.pools))]
        return self.pools.setdefault(octaves, made)

    def settles_ties(self, margin: float) -> list[Follower]:
        """Have those pools that found too little each run what all that they found together says is best.

        Of small calls a sample scatters by more than what they differ in, each after other code.
        """
        tied = [pool for pool in self.pools.values() if pool.pairs.is_tied()]
        leader = Pairs.joined(margin, [pool.pairs for pool in tied]).leader() if len(tied) > 1 else None
        return [one for pool in tied for one in pool.prefers(leader or pool.favourite)]

    def has_found(self) -> list[Follower]:
        """One of its pools has, what leads or what is best: who is to be let go elsewhere, whom no one is told of."""
        return [one for octaves, pool in [*self.pools.items()] for one in self._expects(octaves, pool)]

    def _expects(self, octaves: Octaves, pool: Pool) -> list[Follower]:
        """Have a pool begin with what won nearest to it, or leads there; where it won on both sides, it is over."""
        others = [(other, one) for other, one in self.pools.items() if one is not pool]
        telling = [other for other, one in others if one.favourite is not None and one.is_borne_out()]
        led = sorted((_apart(octaves, other), other) for other in telling)
        ended = [(apart, other) for apart, other in led if self.pools[other].over]
        if pool.over or not led:
            return []
        around = [next((other for _, other in ended if _is_on_side(other, octaves, side)), None) for side in (-1, 1)]
        won = [self.pools[other].favourite for other in around if other is not None and _apart(octaves, other) <= FAR]
        nearest = self.pools[(ended or led)[0][1]]
        pool.expected, pool.near_share = nearest.favourite, nearest._share()
        over = len(won) == len(around) and won[0] == won[1]
        pool.is_now(over)
        return pool.prefers(pool.expected) if over or pool.favourite is None else []


def _apart(octaves: Octaves, other: Octaves) -> int:
    return sum(abs(one - another) for one, another in zip(octaves, other, strict=True))


def _is_on_side(octaves: Octaves, of: Octaves, side: int) -> bool:
    return octaves != of and all((one - another) * side >= 0 for one, another in zip(octaves, of, strict=True))


@dataclass(slots=True, eq=False)
class Pool:
    """What the keys of one neighbourhood find together. Every method is safe to call from any thread."""

    pairs: Pairs
    favourite: str | None = None
    """The variant that is best, as far as that is likely."""
    over: bool = False
    """Whether it is settled."""
    entries: dict[str, Entry] = field(default_factory=dict)
    """By variant, an entry that runs it at one of the keys."""
    clock_ns: Clock = time.perf_counter_ns
    family: Family = field(default_factory=Family)
    expected: str | None = None
    """What has won nearest to it."""
    near_share: float = 1.0
    """How many times plain's time what leads nearest to it takes there."""
    _halves: Halves = field(default_factory=Halves)
    _followers: weakref.WeakSet[Follower] = field(default_factory=weakref.WeakSet)
    """Of the keys that run the favourite until there is another."""

    def takes(self, key: Key) -> bool:
        """Whether a key is learned together with others; the first ones are not."""
        with self.family.lock:
            if len(self.family.alone) < ALONE:
                self.family.alone.add(key)
            return key not in self.family.alone

    def leaves(self, key: Key) -> None:
        """A key has earned to be learned alone."""
        with self.family.lock:
            if len(self.family.alone) < MOST_ALONE:
                self.family.alone.add(key)

    def affords(self) -> bool:
        """Whether it may be found out for one more key what is right for it."""
        return self.family.affords(self.family.checked_us)

    def spent_on_checks(self, since_ns: int) -> None:
        """Since then by the clock it was found out what is right for a key."""
        with self.family.lock:
            self.family.check_us = (self.clock_ns() - since_ns) / 1e3
            self.family.checked_us += self.family.check_us

    def found_right(self, name: str, entry: Entry) -> None:
        """A variant is right at a key, where this entry runs it: pairs of it may be given."""
        with self.family.lock:
            self.learns(name, entry)
            if (name == "plain" or entry.build is not None) and not self.pairs.is_out(name):
                self.family.entries = {**self.family.entries, name: entry}

    def learns(self, name: str, entry: Entry) -> None:
        """As `found_right`, of this neighbourhood alone."""
        self.entries = {**self.entries, name: entry}  # the newest: an older one's build may have left
        if name != "plain":
            self.pairs.add(name)

    def knows(self, name: str) -> bool:
        """Whether a variant was right at one of the keys."""
        return name in self.entries

    def givable(self) -> list[str]:
        """The variants that are right wherever they take a call."""
        return [name for name, entry in self.entries.items() if entry.build is not None]

    def wanted(self, names: Sequence[str]) -> list[str]:
        """Which of these variants a key is to give pairs of, all with one call of plain; none may be wanted now."""
        with self.family.lock:
            affordable = self.family.affords(self.family.lost_us * self._spares(names))
            likely = sorted(names, key=lambda name: name != self.favourite)  # of what runs meanwhile it is known first
            return self.pairs.wanted(likely) if affordable and not self.over else []

    def _spares(self, names: Sequence[str]) -> float:
        """How many times what was lost counts for a key: the rest of what may be is left to those that know nothing.

        A favourite that is not among the key's own variants says nothing of them.
        """
        others = self.family.pools.values() if self.favourite in names else ()
        return SPARES if any(pool.favourite is None and not pool.over for pool in others) else 1.0

    def wants(self, names: Sequence[str]) -> bool:
        """Whether any more pairs of these variants are to be given, now or when they may be afforded."""
        with self.family.lock:
            return not self.over and bool(self.pairs.wanted(names))

    def least_share(self) -> float:
        """See `Pairs.least_share`; without any pair, what is known nearest to it."""
        with self.family.lock:
            return self._share()

    def _share(self) -> float:
        """As `least_share`, with the lock held."""
        return self.near_share if self.pairs.is_empty() else self.pairs.least_share()

    def is_behind(self, name: str) -> bool:
        """Whether the pairs say of one that it takes longer than the fastest by more than what caches hold of it."""
        with self.family.lock:
            return self._is_behind([name])

    def _is_behind(self, names: Sequence[str]) -> bool:
        """As `is_behind`, of any of these, with the lock held."""
        most = MATTERS * self._share() * PLAIN_US
        return any(cost.median_us > most for cost in self.pairs.costs() if cost.variant in names)

    def at_once(self, names: Sequence[str]) -> int:
        """How many calls of each a key gives before it is looked what they show, which costs; 1 where one is behind."""
        with self.family.lock:
            return 1 if self._is_behind(names) else self.pairs.until_judged(names)

    def wanted_of_new(self, names: Sequence[str], sizes: tuple[int, ...]) -> str | None:
        """As `wanted`, the first for a key that was never seen; None where enough others wait for the other half."""
        name = next(iter(self.wanted(names)), None)
        with self.family.lock:
            return name if name is not None and self._halves.has_room(name, sizes) else None

    def waits_for_plain(self, name: str, sizes: tuple[int, ...]) -> bool | None:
        """Whether a call of plain, or one of the variant, would make a pair with another key's; None where neither."""
        with self.family.lock:
            half = self._halves.nearest(name, sizes)
        return None if half is None else not half.of_plain

    def gave_halves(self, halves: Iterable[Half]) -> None:
        """Keys gave one call of a pair each."""
        with self.family.lock:
            pairs = [(half.name, *pair) for half in halves if (pair := self._halves.add(half)) is not None]
        self.gave(pairs)

    def gave(self, pairs: Sequence[tuple[str, float, bool]]) -> None:
        """There are pairs more: the variant, how many times what plain took it took, and whether cold.

        What they show is looked at once for all of them, which takes longer than some calls.
        """
        with self.family.lock:
            self.pairs.gave(pairs)
            left = self._look() if pairs else []
        _let_go(left)

    def saves(self) -> float:
        """What part of plain's time the favourite saves, by pairs; 0 where that is not known."""
        with self.family.lock:
            took_us = {cost.variant: cost.median_us for cost in self.pairs.costs()}
        return max(0.0, 1.0 - took_us.get(self.favourite or "", PLAIN_US) / PLAIN_US)

    def waits(self, half: Half) -> bool:
        """Whether it is no part of a pair yet."""
        with self.family.lock:
            return half in self._halves

    def failed(self, name: str) -> None:
        """A variant raised where plain did not: no pool that begins later is told of it, either."""
        with self.family.lock:
            self.pairs.failed(name)
            self.family.entries = {other: entry for other, entry in self.family.entries.items() if other != name}
            self._halves.forget(name)
            left = self._look()
        _let_go(left)

    def tells(self, follows: Follower) -> None:
        """A key runs the favourite, or plain without one, and is to be told of another."""
        with self.family.lock:
            self._followers.add(follows)

    def spent(self, took_us: float, lost_us: float = 0.0) -> None:
        """A call took so long, and so much of that because it was a sample."""
        with self.family.lock:
            self.family.spent_us += took_us
            self.family.lost_us += lost_us

    def _look(self) -> list[Follower]:
        """Who runs a favourite no more, whom no one else is told of; outside of the lock they are let go."""
        before, leader = (self.over, self.favourite), self._leads()
        self.is_now(self.pairs.is_over() or (leader is not None and self._bears_out(leader)))
        left = self.prefers(leader or self.favourite)
        if (self.over, self.favourite) == before:
            return left
        tied = self.family.settles_ties(self.pairs.margin) if self.over else []
        return [*left, *tied, *self.family.has_found()]

    def is_now(self, over: bool) -> None:
        """Whether it is settled; its keys are told where it has become so."""
        self.over, changes = over, over != self.over
        if changes and self.family.shared is not None:
            self.family.shared.follow(self)

    def _leads(self) -> str | None:
        """What pairs show to be best; where that wins ties alone, and what was expected is faster by them, that is."""
        leader = self.pairs.leader()
        ahead = leader is not None and self.expected is not None and self.pairs.is_faster(self.expected, leader)
        return self.expected if ahead else leader

    def is_borne_out(self) -> bool:
        """Whether it has found its favourite by pairs, or is over: what is only expected tells others nothing."""
        return (self.over or self.pairs.leader() == self.favourite) and not self.pairs.is_tied()

    def _bears_out(self, leader: str) -> bool:
        """Whether the pairs say of what was expected that it is best, and of no other that it may be."""
        return leader == self.expected and self.pairs.is_likely(leader) and not self.pairs.may_be_led(leader)

    def runs_meanwhile(self, leads: str, share: float) -> list[Follower]:
        """As `prefers`, where nothing else is known; of one key, of few samples maybe, it bears nothing out."""
        if self.favourite is not None or self.over or not self.pairs.is_empty():
            return []
        self.near_share = share
        return self.prefers(leads)

    def prefers(self, favourite: str | None) -> list[Follower]:
        """Have this for a favourite; who runs another one, and is to be let go."""
        if favourite == self.favourite:
            return []
        self.favourite = favourite
        if self.family.shared is not None:
            self.family.shared.follow(self)
        left, self._followers = list(self._followers), weakref.WeakSet()
        return left


def _let_go(left: Sequence[Follower]) -> None:
    for one in left:
        one.decide_anew()
