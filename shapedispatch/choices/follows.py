"""A key that runs what is best as far as its pool knows, until there is reason to decide it anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ..hit.table import Entry, Table
from ..keys.key import Key
from ..online.contest import SHARE
from ..records import Choice
from .context import DispatcherParts
from .pool import Pool

__all__ = ["Follows", "instead"]

SOON = 4
"""How many turns are to come soon after a key has begun to follow: so much is to be known of what calls take."""


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
    """What stays if the favourite does; None where it cannot run this key, or may be bettered by what is supplied."""
    names: tuple[str, ...]
    """The variants that the key may give pairs of."""
    favourite: str | None
    """What that was when the key began to."""
    judges: ClassVar[bool] = False
    spent_us: float = 0.0

    @classmethod
    def of(
        cls, core: DispatcherParts, key: Key, pool: Pool, names: Sequence[str], entry: Entry, soon: bool = True
    ) -> Entry:
        """The entry of what the key runs, with what looks after it by now: at some hits, or at all without turns."""
        run, favourite = entry.run or core.backend.plain, pool.favourite
        lasting = replace(entry) if entry.choice.variant == favourite and not core.backend.supplies else None
        follows = cls(core, key, pool, run, lasting, tuple(names), favourite)
        pool.tells(follows)
        core.turns.begin(core.fast_path)
        if soon:
            core.turns.hurry(SOON)
        entry.run, entry.learner = run if core.turns.on else follows, follows
        return entry

    @classmethod
    def of_ended(cls, core: DispatcherParts, key: Key, pool: Pool, entry: Entry) -> Entry:
        """What a key of a pool that is over runs.

        Where there is more that it could run, a key that is called a lot is still to be learned alone.
        """
        more = _has_more(core, pool) and core.turns.timed
        return cls.of(core, key, pool, (), entry, soon=False) if more else entry

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

        So much that it may be seen what is best right here; not where the favourite runs, is settled, and is all.
        """
        if self.pool.favourite != self.favourite or self.pool.wants(self.names):
            self.decide_anew()
        elif self.pool.over and self.lasting is not None and not _has_more(self.core, self.pool):
            instead(self.core.table, self.key, self, self.lasting)
        elif self._waits():
            return
        elif SHARE * self.spent_us > self.pool.family.check_us:
            self.pool.leaves(self.key)
            self.decide_anew()

    def _waits(self) -> bool:
        """Whether all that it could have more are recordings, and none pays now."""
        records = self.pool.family.records
        settled = self.pool.over and self.lasting is not None and not self.core.backend.supplies
        return settled and records is not None and not records()

    def choice(self, begun: Choice) -> Choice:
        """See `table.Learner`."""
        return begun if self.pool.over else replace(begun, origin="learning")

    def pinned(self, begun: Choice) -> Entry:
        """See `table.Learner`."""
        return Entry(self.core.backend.plain, None, replace(begun, variant="plain"), any_state=True)


def _has_more(core: DispatcherParts, pool: Pool) -> bool:
    """Whether a key of a pool could run what the pool does not know: supplied variants, recordings of builds."""
    return core.backend.supplies or pool.family.records is not None


def instead(table: Table, key: Key, learner: Any, entry: Entry | None) -> None:
    """Let the entry stand where one stands that learns; without one the next call is decided anew."""
    for learning in table.peek(key):
        if learning.learner is learner:
            table.replace(key, learning, entry)
