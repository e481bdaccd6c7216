"""A key that runs what is best as far as its pool knows, until there is reason to decide it anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..hit.table import Entry, Table
from ..keys.key import Key
from ..online.contest import SHARE
from ..online.pool import Pool
from ..records import Choice
from .context import DispatcherParts

__all__ = ["ANEW_US", "Follows", "instead"]

SOON = 4
"""How many turns are to come soon after a key has begun to follow: so much is to be known of what calls take."""
ANEW_US = 10_000.0
"""What it is worth to learn a key alone where all that it could run was compared at sizes near it."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Follows:
    """A key that gives no pairs, and runs its pool's favourite: what becomes of it is looked at where a hit has a turn.

    A hit that has one stands for all since the last, of whatever key: on average that is what they took.
    """

    core: DispatcherParts
    key: Key
    pool: Pool
    run: Callable[..., Any] | None
    """What it runs; None where its entry has that, which lets a build go that has left."""
    leads: bool
    """Whether that is the favourite."""
    names: tuple[str, ...]
    """The variants that the key may give pairs of."""
    favourite: str | None
    """What that was when the key began to."""
    judges: ClassVar[bool] = False
    spent_us: float = 0.0

    @classmethod
    def of(cls, core: DispatcherParts, key: Key, pool: Pool, names: Sequence[str], entry: Entry) -> Entry:
        """The entry of what the key runs, with what looks after it by now: at some hits, or at all without turns."""
        core.turns.begin(core.fast_path)
        run, favourite = entry.run or core.backend.plain, pool.favourite
        follows = cls(
            core, key, pool, None if core.turns.on else run, entry.choice.variant == favourite, tuple(names), favourite
        )
        pool.tells(follows)
        core.turns.hurry(SOON)
        entry.run, entry.learner = run if core.turns.on else follows, follows
        return entry

    @classmethod
    def of_ended(cls, core: DispatcherParts, key: Key, pool: Pool, entry: Entry) -> Entry:
        """What a key of a pool that is over runs; one that is called a lot is still to be learned alone."""
        if core.turns.timed:
            core.turns.begin(core.fast_path)
            entry.learner = cls(core, key, pool, None, True, (), pool.favourite)
        return entry

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call; the next one is decided anew where there is reason to."""
        entry = self._entry()
        run = self.run or (entry and entry.run) or self.core.backend.plain
        if not self.core.frozen:
            self._look()
        started_ns = self.pool.clock_ns()
        try:
            return run(*args, **kwargs)
        finally:
            took_us = (self.pool.clock_ns() - started_ns) / 1e3
            took_us *= self.core.turns.passed if self.core.turns.on else 1
            self.spent_us += took_us
            self.pool.spent(took_us)

    def _entry(self) -> Entry | None:
        return next((entry for entry in self.core.table.peek(self.key) if entry.learner is self), None)

    def decide_anew(self) -> None:
        """Forget what the key runs."""
        instead(self.core.table, self.key, self, None)

    def _look(self) -> None:
        """Whether there is reason to decide anew: another favourite, pairs that are wanted, or what was spent here.

        So much that it may be seen what is best right here.
        """
        if self._is_outdated():
            self.decide_anew()
        elif self._is_settled() and not self.core.turns.timed:
            self._stay()
        elif max(SHARE, saves := self._saves()) * self.spent_us > self._worth_us():
            self.core.table.facts.earned[self.key] = True
            self.pool.leaves(self.key)
            self.decide_anew()
        elif saves > SHARE:
            self.core.turns.hurry(1)  # keys like this one are looked through soon

    def _is_outdated(self) -> bool:
        """Whether another leads, or pairs of this key are wanted."""
        return self.pool.favourite != self.favourite or bool(self.pool.wanted(self.names))

    def _saves(self) -> float:
        """What part of what was spent here the favourite would have saved, once that is known.

        An alternative of the user's is asked at each key whether it is right, and so it waits for that at most keys.
        """
        return self.pool.saves() if self.pool.over and not self.leads else 0.0

    def _worth_us(self) -> float:
        """What it is worth to learn the key alone."""
        return self.pool.family.check_us + (ANEW_US if self._is_settled() and not self._records() else 0.0)

    def _is_settled(self) -> bool:
        """Whether all that it could run but recordings was compared at sizes near it."""
        return self.pool.over and self.leads and not self.core.backend.supplies

    def _stay(self) -> None:
        """Run what it runs as a hit like others."""
        entry = self._entry()
        instead(self.core.table, self.key, self, entry and replace(entry, run=self.run or entry.run, learner=None))

    def _records(self) -> bool:
        """Whether recordings, which no pool has, pay now."""
        records = self.pool.family.records
        return records is not None and records()

    def choice(self, begun: Choice) -> Choice:
        """See `turns.Learner`."""
        return begun if self.pool.over else replace(begun, origin="learning")

    def pinned(self, begun: Choice) -> Entry:
        """See `turns.Learner`: what is not settled is plain."""
        entry = self._entry() if self._is_settled() else None
        if entry is None or entry.lost():
            return Entry(self.core.backend.plain, None, replace(begun, variant="plain"), any_state=True)
        return replace(entry, run=self.run or entry.run, learner=None)


def instead(table: Table, key: Key, learner: Any, entry: Entry | None) -> None:
    """Let the entry stand where one stands that learns; without one the next call is decided anew."""
    for learning in table.peek(key):
        if learning.learner is learner:
            table.replace(key, learning, entry)
