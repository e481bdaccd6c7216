"""All that one dispatcher remembers: choices, builds, counters.

Two bounds, since a choice is a few names and numbers and a build is compiled code: the least recently used choice
leaves beyond ``maxsize``, the least recently used build beyond ``max_builds``. Losing a build never forgets a choice.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from ..interpreter.locks import fork_safe_lock
from ..records import CacheInfo, Choice
from .facts import Facts
from .fast_path import FastPath
from .log import EventLog
from .lru import MOST_REPLACEMENTS, Departures, Lru, Recency
from .turns import Learner

__all__ = ["MOST_REPLACEMENTS", "STATES_A_KEY", "Entry", "Held", "Table"]

STATES_A_KEY = 4
"""How many states of what a call does not carry (train and eval, say) are remembered for one key."""

Call: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]


class Held(Protocol):
    """A build as far as the table cares: it can be let go."""

    def release(self) -> None:
        """Let go of all that was compiled; called once, when the build leaves."""


@dataclass(slots=True, eq=False)
class Entry:
    """What a hit needs: what to run, and what to ask first. ``check`` is None where the key says it all.

    ``build`` is the key under which the table holds the build that ``run`` belongs to, so that a hit keeps it from
    being the least recently used.
    """

    run: Callable[..., Any] | None
    check: Callable[[tuple[Any, ...], Mapping[str, Any]], bool] | None
    choice: Choice
    build: Hashable | None = None
    retry: bool = False
    """Whether plain may answer where ``run`` raises: it is a build, and writes nothing."""
    any_state: bool = False
    """Whether it is right in every state: ``check`` is asked now and then, to see whether another should be chosen."""
    others: tuple[Hashable, ...] = ()
    """Further builds that ``run`` may run, while it is being learned which is the best."""
    learner: Learner | None = None
    """What ``run`` is meanwhile, and what runs later instead of it at a hit that has a turn."""
    vouched: bool = False
    """Whether it runs a build that its graph vouches for: at all sizes that it takes its numbers are right."""

    def lost(self) -> bool:
        """Whether the build has left: the choice stands, and what it needs must be built again."""
        return self.run is None

    @property
    def builds(self) -> tuple[Hashable, ...]:
        """The keys of all builds that it needs."""
        return self.others if self.build is None else (self.build, *self.others) if self.others else (self.build,)

    def now(self) -> Choice:
        """The choice; of one that is being learned, as it stands. With what ``run`` has to say of itself."""
        choice = self.choice if self.learner is None else self.learner.choice(self.choice)
        notes: tuple[str, ...] = getattr(self.run, "notes", tuple)()
        return replace(choice, notes=(*choice.notes, *notes), graph_bytes=self.graph_bytes()) if notes else choice

    def graph_bytes(self) -> int:
        """What the CUDA graphs hold by which it runs."""
        held: int = getattr(self.run, "graph_bytes", int)()
        return held

    def changed(self, **changes: Any) -> Entry:
        """This with its choice changed."""
        return replace(self, choice=replace(self.choice, **changes))


class _Slot:
    """A key's place: entries newest first, and the number of the hit that used it last."""

    # Hashed by identity, so that recency costs no second hash of a long key.
    __slots__ = ("entries", "node", "used")

    def __init__(self) -> None:
        self.entries: tuple[Entry, ...] = ()
        self.used = -1
        self.node: Any = None  # the C path's, by which it finds this slot


def _in_order(entry: Entry, before: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """The newest first; what is right in any state behind those that are for one, and in no place of theirs."""
    if entry.check is None and not entry.any_state:
        return (entry, *before)[:STATES_A_KEY]
    left = [one for one in (entry, *before) if one.check is None][:1]
    asked = [one for one in (entry, *before) if one.check is not None]
    for_one, for_any = ([one for one in asked if one.any_state is which] for which in (False, True))
    return (*for_one[:STATES_A_KEY], *for_any[:STATES_A_KEY], *left)


class Table:
    """The memory of one dispatcher. Every method is safe to call from any thread."""

    def __init__(self, maxsize: int, max_builds: int, log: EventLog | None = None) -> None:
        self.maxsize = maxsize
        self.max_builds = max_builds
        self.log: EventLog = log or EventLog("a table")
        self.gone: int = 0  # builds that have left
        self.remade: bool = False  # whether they are made again, however often they go: other ranks run them, too
        self._fast_path: FastPath | None = None
        self.lock: threading.Lock = fork_safe_lock()
        self._reset()

    def _reset(self) -> None:
        self._slots: dict[Hashable, _Slot] = {}
        self._recency = Recency()
        self._builds = Lru(self.max_builds, self._pushed_out)
        self._departures = Departures(self.maxsize, self.max_builds)
        self.facts: Facts = Facts(self)
        self._hits = itertools.count()  # numbers hits; next() of it is atomic
        if self._fast_path is not None:
            self._fast_path.clear()
            self._fast_path.number(self._hits)
        self._left_out, self._why_spared = self._left_out_by_c(), ""
        self._readings = 0
        self._counts: Counter[str] = Counter()
        self.misses_by_reason: Counter[str] = Counter()
        self.bypasses_by_reason: Counter[str] = Counter()

    # -- the hit

    def find(self, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | None:
        """The entry for a key whose check holds now; numbers the hit. Takes no lock: see `_settle`."""
        slot = self._slots.get(key)
        if slot is None:
            return None
        for entry in slot.entries:
            if entry.run is not None and (entry.check is None or entry.check(args, kwargs)):
                slot.used = next(self._hits)
                return entry
        return None

    def _settle(self) -> None:
        """Put the hits since the last time into the order of recency, before anything leaves by it."""
        for slot in self._recency.put_in_order() if self._recency else ():
            for key in [key for entry in slot.entries for key in entry.builds]:
                self._builds.get(key)

    # -- the hit in C: it reads the slots themselves, so that what changes in one needs no telling

    def attach(self, fast_path: FastPath) -> None:
        """Let a path in C answer hits from this table too."""
        fast_path.read(_Slot, Entry)
        fast_path.number(self._hits)
        self._fast_path = fast_path

    def insert(self, node: Any, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any], overlap: bool) -> None:
        """Let C find this key's slot by ``node``, made of the same call before its key; ``overlap`` as in `Signer`."""
        with self.lock:
            slot = self._slots.get(key)
            if slot is None or self._fast_path is None:
                return
            if slot.node is not None:  # of a call that differs in something that no key holds
                self._fast_path.remove(slot.node)
            slot.node = node if self._fast_path.insert(node, slot, args, kwargs, overlap) else None

    # -- choices

    def publish(self, key: Hashable, entry: Entry, call: Call | None = None) -> None:
        """Remember an entry as the newest of its key, instead of those whose guards the ``call`` passes too."""
        before = self.peek(key) if entry.any_state and call is not None else ()
        replaced = [one for one in before if one.check is not None and not one.any_state and one.check(*call or ())]
        with self.lock:
            slot = self._slots.get(key) or self._slots.setdefault(key, _Slot())
            entry = self._with_its_builds(entry)
            before = tuple([one for one in slot.entries if one not in replaced])
            slot.entries = _in_order(entry, before) if before else (entry,)
            self._take_in(slot, key)
        self._tell()

    def admit(self, key: Hashable, entry: Entry, call: Call, node: Any, gone: int, why: str) -> bool:
        """Publish the entry of a key that was never seen, count the miss and ``why``, and let C find it by ``node``.

        False where it has a place already, or more builds than that have gone. ``call`` is what key and node are of.
        """
        with self.lock:
            if key in self._slots or self.gone != gone:
                return False
            slot = self._slots[key] = _Slot()
            slot.entries = (entry,)
            self._take_in(slot, key)
            self._count("misses", why)
            slot.node = node if self._fast_path and self._fast_path.insert(node, slot, *call, False) else None
        if len(self._slots) == self.maxsize:
            self._tell()
        return True

    def _take_in(self, slot: _Slot, key: Hashable) -> None:
        """A slot is the newest."""
        if len(self._recency) >= self.maxsize and slot not in self._recency:
            self._settle()
            self._recency.make_room(self.maxsize, self._evicted)
        slot.used, self._readings = next(self._hits), self._readings + 1  # a number of no hit: newer than all hits
        self._recency[slot] = self._recency.pop(slot, key)

    def _with_its_builds(self, entry: Entry) -> Entry:
        """The entry, lost where builds made after its own have pushed that out already."""
        known = self._builds
        alone = entry.build is None or entry.build in known  # which is all that most entries need
        return entry if alone and all(build in known for build in entry.others) else replace(entry, run=None)

    def replace(self, key: Hashable, entry: Entry, settled: Entry | None) -> None:
        """Let ``settled`` stand where an entry stands that was learning, if it still does; or nothing."""
        with self.lock:
            slot = self._slots.get(key)
            if slot is not None and entry in slot.entries:
                instead = () if settled is None else (self._with_its_builds(settled),)
                places = ((one,) if one is not entry else instead for one in slot.entries)
                slot.entries = tuple(itertools.chain.from_iterable(places))

    def _evicted(self, slot: _Slot, key: Hashable) -> None:
        self._slots.pop(key, None)
        if self._fast_path is not None and slot.node is not None:
            self._fast_path.remove(slot.node)
        self._counts["evictions"] += 1

    def entries(self) -> list[tuple[Hashable, Entry]]:
        """Every key with each of its entries, newest first."""
        with self.lock:
            return [(key, entry) for key, slot in self._slots.items() for entry in slot.entries]

    def newest(self, count: int) -> list[Any]:
        """The keys whose first choice was published last, the newest first, at most ``count``; hits change nothing."""
        with self.lock:
            return [*itertools.islice(reversed(self._slots), count)]

    def peek(self, key: Hashable) -> tuple[Entry, ...]:
        """The entries of a key, without counting or touching anything."""
        return () if (slot := self._slots.get(key)) is None else slot.entries

    # -- builds

    def build(self, key: Hashable) -> Any:
        """The build under this key, or None."""
        with self.lock:
            return self._builds.get(key)

    def hold(self, key: Hashable, build: Held, made: bool = True) -> None:
        """Keep a build, which may let the least recently used one go; ``made`` counts it as a compilation."""
        with self.lock:
            self._settle()
            before = self._builds.pop(key, None)
            if before is not None:
                self._departures.replaced(key, self._calls())
                self._build_evicted(key, before)
            self._builds[key] = build
            self._counts["builds"] += made
        self.facts.sound[key] = False  # what was found of another one, made in another state maybe
        self._tell()

    def _pushed_out(self, key: Hashable, build: Held) -> None:
        """A build leaves to make room: note when, in calls."""
        self._departures.left(key, self._calls())
        self._build_evicted(key, build)

    def why_not_again(self, key: Hashable) -> str | None:
        """Why the build under this key, which was held before, is not to be made another time, or None."""
        with self.lock:
            return None if self._departures.empty else self._departures.why_not_again(key, self.remade)

    def _build_evicted(self, key: Hashable, build: Held) -> None:
        """Entries that ran the build keep their choice and lose what they ran."""
        self.gone += 1
        for entry in (one for slot in self._slots.values() for one in slot.entries if key in one.builds):
            entry.run = None
        build.release()

    def apart(self) -> Table:
        """Another with the same builds: what is learned there of calls is not known here."""
        other = Table(self.maxsize, self.max_builds, self.log)
        with self.lock:
            other._builds.update(self._builds)
        return other

    def builds(self) -> Iterator[Held]:
        """The builds held now."""
        with self.lock:
            return iter(list(self._builds.values()))

    # -- counting

    def count(self, name: str, reason: str | None = None) -> int:
        """Count a miss, a bypass or a timing, with its reason; how many there are where no call was decided so far."""
        with self.lock:
            reason = self._count(name, reason)
            undecided = 0 if self._counts["misses"] else self._counts[name]
        if name == "bypasses" and reason is not None:
            self.log.bypassed(reason, self.bypasses_by_reason[reason])
        return undecided

    def spare(self, calls: int, reason: str, sights: int = 0, passes: bool = False) -> None:
        """Where C looks keys up, have it run plain so many of the next calls of new keys, for this reason.

        With ``sights`` only those that are not among so many that it has seen lately, a power of two of at most
        `online.repeats.MOST_SIGHTS`; where that ``passes``, what their kin run.
        """
        with self.lock:
            self._count_spared()
            if (path := self._fast_path) is not None:
                path.to_spare, path.to_pass = (0, calls) if passes else (calls, 0)
                path.most_sights, self._why_spared = sights, reason

    def _left_out_by_c(self) -> tuple[int, int]:
        path = self._fast_path
        return (0, 0) if path is None else (path.spared, path.passed)

    def _count_spared(self) -> None:
        before, self._left_out = self._left_out, self._left_out_by_c()
        for name, then, now in zip(("bypasses", "misses"), before, self._left_out, strict=True):
            if now > then:
                self._count(name, self._why_spared, now - then)

    def so_far(self) -> tuple[int, int, int]:
        """How many hits there were, how many calls of new keys of which C told nobody, and how many choices left."""
        with self.lock:
            return self._hits_so_far(), sum(self._left_out_by_c()), self._counts["evictions"]

    def _count(self, name: str, reason: str | None, times: int = 1) -> str | None:
        """As `count`, under the lock; the reason as it is counted."""
        self._counts[name] += times
        if reason is not None:
            counts = self.misses_by_reason if name == "misses" else self.bypasses_by_reason
            reason = reason if reason in counts or len(counts) < 256 else "other reasons"
            counts[reason] += times
        return reason

    def _hits_so_far(self) -> int:
        self._readings += 1  # reading the number of hits takes one
        return next(self._hits) - self._readings + 1

    def _calls(self) -> int:
        """How many calls there were that had a key."""
        return self._hits_so_far() + self._counts["misses"]

    def info(self) -> CacheInfo:
        """The counters."""
        with self.lock:
            self._count_spared()
            return CacheInfo(
                hits=self._hits_so_far(),
                misses=self._counts["misses"],
                bypasses=self._counts["bypasses"],
                evictions=self._counts["evictions"],
                builds=self._counts["builds"],
                timings=self._counts["timings"],
                currsize=len(self._slots),
                maxsize=self.maxsize,
                builds_held=len(self._builds),
                misses_by_reason=dict(self.misses_by_reason),
                bypasses_by_reason=dict(self.bypasses_by_reason),
                graph_bytes=sum(entry.graph_bytes() for slot in self._slots.values() for entry in slot.entries),
            )

    def _tell(self) -> None:
        """What has left, outside the lock: who listens to the log may ask the table."""
        if self._counts["evictions"]:
            self.log.left("choice", "maxsize", self.maxsize)
        if self._departures.any:
            self.log.left("build", "max_builds", self.max_builds)

    def forget_choices(self) -> None:
        """Forget every choice, keeping builds and counters: the keys will have another form."""
        with self.lock:
            self._slots.clear()
            self._recency = Recency()
            if self._fast_path is not None:
                self._fast_path.clear()

    def forget(self, doomed: Callable[[Choice], bool]) -> None:
        """Forget the choices that are ``doomed``."""
        with self.lock:
            for slot in self._slots.values():
                slot.entries = tuple(entry for entry in slot.entries if not doomed(entry.choice))

    def clear(self) -> None:
        """Forget everything; builds are let go, counters start at nought."""
        with self.lock:
            held = list(self._builds.values())
            self._reset()
        for build in held:
            build.release()
