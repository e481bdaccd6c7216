"""What is learned of the calls of one dispatcher, beside choices and builds: a bounded map for each kind of fact."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any, Generic, Protocol, TypeVar

from cachetools import LRUCache

from ..records import Choice

__all__ = ["FACTS", "FactMap", "Facts"]

FACTS = 1024
"""How many facts of one kind are remembered; one that is lost is learned again."""

_K = TypeVar("_K", bound=Hashable)
_V = TypeVar("_V")


class Locked(Protocol):
    """The table whose lock facts are read and written under; a fork gives it another."""

    lock: threading.Lock


class FactMap(Generic[_K, _V]):
    """Facts of one kind: immutable things that hold no tensor, of which the least recently used is forgotten."""

    def __init__(self, table: Locked, bound: int = FACTS) -> None:
        self._table = table
        self._known: LRUCache[_K, _V] = LRUCache(bound)
        self.changes: int = 0
        """How often anything has become known."""

    def get(self, key: _K) -> _V | None:
        """What is known of this, or None."""
        with self._table.lock:
            try:  # what is known is asked for, mostly, and this hashes it once less than `get`
                return self._known[key]
            except KeyError:
                return None

    def adopt(self, other: FactMap[_K, _V]) -> None:
        """Take over what another map knows, in place of what is known here of the same."""
        with other._table.lock:
            theirs = dict(other._known)
        with self._table.lock:
            self._known.update(theirs)
            self.changes += 1

    def __setitem__(self, key: _K, value: _V) -> None:
        with self._table.lock:
            self._known[key] = value
            self.changes += 1

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._known)


class Facts:
    """What is learned of the calls of one dispatcher: a map for each kind, so that many of one push out no other."""

    def __init__(self, table: Locked) -> None:
        self.observed_sizes: FactMap[Hashable, Any] = FactMap(table)  # family of calls -> what varied in them
        self.effects: FactMap[Hashable, Any] = FactMap(table)  # family of calls, or compiled kernel -> what it does
        self.failed: FactMap[Hashable, tuple[str, ...]] = FactMap(table)  # key -> what was raised while it was decided
        self.states: FactMap[Hashable, int] = FactMap(table)  # key, or family -> looks since its state had changed
        self.constant_sizes: FactMap[Hashable, bool] = FactMap(table)  # families that cannot be traced with any size
        self.no_builds: FactMap[Hashable, Any] = FactMap(table)  # key of a build -> why there is none
        self.ordered: FactMap[Hashable, Any] = FactMap(table)  # key of a build -> its trace, while others compile it
        self.traced: FactMap[Hashable, Any] = FactMap(table)  # class of calls -> its traces, for others to compile
        self.partial: FactMap[Hashable, bool] = FactMap(table)  # kind of calls, what a backward asked -> that it did
        self.programs: FactMap[Hashable, Any] = FactMap(table)  # kind of calls with gradients -> the program's steps
        self.accounts: FactMap[Hashable, Any] = FactMap(table)  # family of calls -> the time that was spent in them
        self.looked_at: FactMap[Hashable, Any] = FactMap(table)  # kind of calls -> what looks at its numbers have taken
        self.sound: FactMap[Hashable, bool] = FactMap(table)  # builds that gave plain's numbers
        self.buckets: FactMap[Hashable, Choice] = FactMap(table)  # bucket -> what was chosen for a call in it
        self.settled: FactMap[Hashable, tuple[Choice, ...]] = FactMap(table)  # kin of keys -> the newest, not all sizes
        self.so_far: FactMap[Hashable, tuple[Choice, ...]] = FactMap(table)  # the same, of keys that are learned yet
        self.families: FactMap[Hashable, Any] = FactMap(table)  # kin of keys -> what they find together
        self.earned: FactMap[Hashable, bool] = FactMap(table)  # key -> whether recordings are to be tried at it by now
        self.counted: FactMap[Hashable, Any] = FactMap(table)  # key -> its calls so far, where they are recorded
        self.survived: FactMap[tuple[str, Hashable], str] = FactMap(table)  # variant, key -> "", or what a worker said
        self.deadly: FactMap[str, str] = FactMap(table)  # variant -> how it ended the worker that tried it
        self.first_config: FactMap[Hashable, int | None] = FactMap(table)  # class of calls -> the first that runs
        self.tuned_for_hint: FactMap[Hashable, Any] = FactMap(table)  # class of calls, hint -> configs, best first
        self.tuned_here: FactMap[Hashable, Any] = FactMap(table)  # key -> configs, best first
