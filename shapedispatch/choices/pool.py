"""What is best for keys of few calls each, which find it out together.

Where sizes hardly repeat, no key gets the calls that a contest of its own takes. So of the keys near each other the
first few are learned alone; each of the others gives pairs of calls as long as any are wanted, and then runs what is
best as far as that is known: its hits are like others. What costs more than a pair, to see what is right for a key, is
bounded for all of them together.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from ..autotune.measure import Clock
from ..hit.table import Entry, Table
from ..keys.key import Key
from ..online.contest import FREE_US, SHARE
from ..online.pairs import Pairs
from ..online.real_calls import Figures
from ..records import Choice, Timing
from .context import DispatcherParts, MissContext

__all__ = ["ALONE", "TOGETHER", "Follows", "Pool", "PooledContest", "instead", "pool_of"]

TOGETHER = "found together with calls of sizes near it"
ALONE, MOST_ALONE = 2, 256
"""How many keys near each other are learned each of its own from the first, and how many at most."""
SOON = 4
"""How many turns are to come soon after a key has begun to follow: so much is to be known of what calls take."""


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
    alone: set[Key] = field(default_factory=set)
    """The keys that are learned each of its own."""
    check_us: float = math.inf
    """What it took last to see what is right for a key."""
    clock_ns: Clock = time.perf_counter_ns
    _spent_us: float = 0.0
    _checked_us: float = 0.0
    _followers: weakref.WeakSet[Follows] = field(default_factory=weakref.WeakSet)
    """Of the keys that run the favourite until there is another."""
    _lost_us: float = 0.0
    """Of what was spent, on looks, and in pairs beyond what plain takes."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def takes(self, key: Key) -> bool:
        """Whether a key is learned together with others; the first ones are not."""
        with self._lock:
            if len(self.alone) < ALONE:
                self.alone.add(key)
            return key not in self.alone

    def leaves(self, key: Key) -> None:
        """A key has earned to be learned alone."""
        with self._lock:
            if len(self.alone) < MOST_ALONE:
                self.alone.add(key)

    def affords(self) -> bool:
        """Whether it may be found out for one more key what is right for it."""
        return self._checked_us <= FREE_US + SHARE * self._spent_us

    def spent_on_checks(self, since_ns: int) -> None:
        """Since then by the clock it was found out what is right for a key."""
        with self._lock:
            self.check_us = (self.clock_ns() - since_ns) / 1e3
            self._checked_us += self.check_us

    def found_right(self, name: str, entry: Entry) -> None:
        """A variant is right at a key, where this entry runs it: pairs of it may be given."""
        with self._lock:
            self.entries = {**self.entries, name: entry}  # the newest: an older one's build may have left
            if name != "plain":
                self.pairs.add(name)

    def knows(self, name: str) -> bool:
        """Whether a variant was right at one of the keys."""
        return name in self.entries

    def wanted(self, names: Sequence[str]) -> str | None:
        """Which of these variants a key is to give a pair of; None for none now."""
        with self._lock:
            affordable = self._lost_us <= FREE_US + SHARE * self._spent_us
            return self.pairs.wanted(names) if affordable and not self.over else None

    def wants(self, names: Sequence[str]) -> bool:
        """Whether any more pairs of these variants are to be given, now or when they may be afforded."""
        with self._lock:
            return not self.over and self.pairs.wanted(names) is not None

    def gave(self, name: str, ratio: float) -> None:
        """A key gave a pair: the variant took so many times what plain took."""
        with self._lock:
            self.pairs.gave(name, ratio)
            left = self._look()
        _let_go(left)

    def failed(self, name: str) -> None:
        """A variant raised where plain did not."""
        with self._lock:
            self.pairs.failed(name)
            left = self._look()
        _let_go(left)

    def tells(self, follows: Follows) -> None:
        """A key runs the favourite, or plain without one, and is to be told of another."""
        with self._lock:
            self._followers.add(follows)

    def spent(self, took_us: float, lost_us: float = 0.0) -> None:
        """A call took so long, and so much of that because it was a sample."""
        with self._lock:
            self._spent_us += took_us
            self._lost_us += lost_us

    def _look(self) -> list[Follows]:
        """Who runs a favourite no more, whom no one else is told of; outside of the lock they are let go."""
        before = self.favourite
        self.over = self.pairs.is_over()
        self.favourite = self.pairs.leader() or self.favourite
        if self.favourite == before:
            return []
        left, self._followers = list(self._followers), weakref.WeakSet()
        return left


def _let_go(left: Sequence[Follows]) -> None:
    for one in left:
        one.decide_anew()


def pool_of(ctx: MissContext, sizes: Mapping[str, int], make: bool = False) -> Pool | None:
    """That of the calls which differ from this one in sizes alone, and lie in the same octave; None without one."""
    if ctx.kin is None:
        return None
    place: Hashable = (ctx.kin, *(size.bit_length() for size in sizes.values()))
    pools = ctx.core.table.facts.pools
    found: Pool | None = pools.get(place)
    if found is None and make:
        found = pools[place] = Pool(Pairs(ctx.settings.margin))
    return found


@dataclass(slots=True, eq=False)
class PooledContest:
    """As `online.OnlineContest` for one key of a pool: it gives pairs as long as any are wanted."""

    pool: Pool
    entries: Mapping[str, Entry]
    """What runs those of the candidates that its pool is to know of, once they are known to be right."""
    contestants: list[Figures]
    """First plain."""
    over: bool = False
    """Whether no call of this key need be a sample any more."""
    _begun: int = 0
    _left: deque[Figures] = field(default_factory=deque)
    """Of the pair that is given now, who has not run yet."""
    _wanted: Figures | None = None

    def __post_init__(self) -> None:
        for one in self.contestants:
            self._known_right(one)

    def _known_right(self, contestant: Figures) -> None:
        if contestant.name in self.entries:
            self.pool.found_right(contestant.name, self.entries[contestant.name])

    def next_sample(self) -> Figures | None:
        """Whose sample the next call is."""
        self._give()
        if self._wanted is None and not self.over:
            self._begin()
        return self._left[0] if self._left and not self.over else None

    def _begin(self) -> None:
        name = self.pool.wanted([one.name for one in self.contestants[1:]])
        self._wanted = next((one for one in self.contestants if one.name == name), None)
        if self._wanted is not None:
            pair = (self.contestants[0], self._wanted)
            self._left.extend(pair if self._begun % 2 else reversed(pair))
            self._begun += 1

    def _give(self) -> None:
        """Give the pair, once it is known what both of its calls took."""
        if self._wanted is not None and not self._left:
            plain, other = self.contestants[0].cost(), self._wanted.cost()
            if plain.repeats and other.repeats:
                self.pool.gave(self._wanted.name, other.median_us / plain.median_us)
                self._wanted = None
        self._end()

    def _end(self) -> None:
        """It is over with its pool; and before, where all that it has can be had at other keys and no more is wanted.

        What was compared with plain at this key, for itself, may be wanted later: at others that costs as much again.
        """
        passes = not self.entries and self._wanted is None
        self.over = self.pool.over or (passes and not self.pool.wants([one.name for one in self.contestants[1:]]))

    def next_samples(self) -> list[Figures]:
        """None: kernels have no pools."""
        return []

    def sampled(self, contestant: Figures, took_us: float) -> None:
        """See `OnlineContest.sampled`."""
        if self._left and self._left[0] is contestant:
            self._left.popleft()
        usual_us = self.contestants[0].known_us
        if math.isfinite(took_us):
            lost_us = max(0.0, took_us - usual_us) if contestant is self._wanted else 0.0
            self.pool.spent(took_us, lost_us if math.isfinite(usual_us) else 0.0)
        self._give()

    def ran(self, took_us: float) -> None:
        """See `OnlineContest.ran`."""
        if math.isfinite(took_us):
            self.pool.spent(took_us)

    def leader(self) -> Figures:
        """What the pool takes to be best, if it is here; else plain."""
        return next((one for one in self.contestants if one.name == self.pool.favourite), self.contestants[0])

    def admit(self, contestant: Figures, place: int) -> None:
        """See `OnlineContest.admit`."""
        self.contestants.insert(place, contestant)
        self._known_right(contestant)

    def failed(self, contestant: Figures) -> None:
        """See `OnlineContest.failed`."""
        self.contestants.remove(contestant)
        self._left.clear()
        self._wanted = None
        self.pool.failed(contestant.name)
        self._end()

    def costs(self) -> Iterator[Timing]:
        """What is known of each candidate that has a sample here."""
        return (cost for one in self.contestants if (cost := one.shown()).repeats)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Follows:
    """A key that gives no pairs, and runs its pool's favourite: what becomes of it is looked at where a hit has a turn.

    A hit that has one stands for all since the last, of whatever key: on average that is what they took.
    """

    core: DispatcherParts
    key: Key
    pool: Pool
    run: Callable[..., Any]
    lasting: Entry | None
    """What stays if the favourite does; None where it cannot run this key."""
    names: tuple[str, ...]
    """The variants that the key may give pairs of."""
    favourite: str | None
    """What that was when the key began to."""
    judges: ClassVar[bool] = False
    spent_us: float = 0.0

    @classmethod
    def of(cls, core: DispatcherParts, key: Key, pool: Pool, names: Sequence[str], entry: Entry) -> Entry:
        """What the key runs, with what looks after it: at some hits, or at all where none have turns."""
        run, favourite = entry.run or core.backend.plain, pool.favourite
        lasting = entry if entry.choice.variant == favourite else None
        follows = cls(core, key, pool, run, lasting, tuple(names), favourite)
        pool.tells(follows)
        core.turns.begin(core.fast_path)
        core.turns.hurry(SOON)
        return replace(entry, run=run if core.turns.on else follows, learner=follows)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call; the next one is decided anew where there is reason to."""
        if not self.core.frozen:
            self._look()
        started_ns = self.pool.clock_ns()
        try:
            return self.run(*args, **kwargs)
        finally:
            took_us = (self.pool.clock_ns() - started_ns) / 1e3
            took_us *= self.core.turns.passed if self.core.turns.on else 1
            self.spent_us += took_us
            self.pool.spent(took_us)

    def decide_anew(self) -> None:
        """Forget what the key runs."""
        instead(self.core.table, self.key, self, None)

    def _look(self) -> None:
        """Whether there is reason to decide anew: another favourite, pairs that are wanted, or what was spent here.

        So much that it may be seen what is best right here; not where the favourite runs, and is settled.
        """
        if self.pool.favourite != self.favourite or self.pool.wants(self.names):
            self.decide_anew()
        elif self.pool.over and self.lasting is not None:
            instead(self.core.table, self.key, self, self.lasting)
        elif SHARE * self.spent_us > self.pool.check_us:
            self.pool.leaves(self.key)
            self.decide_anew()

    def choice(self, begun: Choice) -> Choice:
        """See `table.Learner`."""
        return begun if self.pool.over else replace(begun, origin="learning")

    def pinned(self, begun: Choice) -> Entry:
        """See `table.Learner`."""
        return Entry(self.core.backend.plain, None, replace(begun, variant="plain"), any_state=True)


def instead(table: Table, key: Key, learner: Any, entry: Entry | None) -> None:
    """Let the entry stand where one stands that learns; without one the next call is decided anew."""
    for learning in table.peek(key):
        if learning.learner is learner:
            table.replace(key, learning, entry)
