"""The next new keys of a pool that is over, asked from the path in C: only what may differ between them is looked at.

`at_sight` finds out what such a key runs, once for all keys that differ in sizes alone and lie in the same octaves.
That holds until something is decided that it depends on; then `at_sight` is asked again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..choices.context import DispatcherParts, MissContext, capturing_anything
from ..choices.follows import Follows
from ..choices.pooled import pool_of
from ..hit.facts import Facts
from ..hit.table import Entry
from ..keys.key import Key
from ..online.pool import TOGETHER, Pool
from ..records import Choice
from .alike import Alike
from .at_sight import none_differs
from .latecomers import Latecomers

__all__ = ["Newcomers", "expect"]


def expect(ctx: MissContext, entry: Entry, node: Any) -> None:
    """Let the next keys that are like this one have what was found for it, if nothing else is to be asked for them."""
    core = ctx.core
    if core.fast_path is None or core.backend.overlaps or ctx.kwargs:
        return
    made = Newcomers.of(ctx, entry) if entry.choice.notes == (TOGETHER,) else Latecomers.of(ctx, entry)
    if made is not None:
        core.fast_path.expect(node, made, ctx.args, ctx.kwargs)


@dataclass(frozen=True, slots=True)
class Newcomers:
    """What `at_sight` has found for one key, for others that differ in sizes alone."""

    core: DispatcherParts
    alike: Alike
    pool: Pool
    there: Entry
    """What runs the pool's favourite at another key."""
    found: Entry
    """What `at_sight` has made of it."""
    facts: Facts
    decided: tuple[int, int]
    """How often anything has been settled, and a family found, when this was made."""
    gone: int
    """How many builds had gone."""
    build: Any

    @classmethod
    def of(cls, ctx: MissContext, entry: Entry) -> Newcomers | None:
        """Of the call that `at_sight` has just found this for, if its pool is over."""
        core, facts, gone = ctx.core, ctx.core.table.facts, ctx.core.table.gone
        pool = pool_of(ctx, entry.choice.sizes)
        there = None if pool is None else pool.entries.get(pool.favourite or "")
        if pool is None or there is None or not pool.over or pool.favourite != entry.choice.variant:
            return None
        decided = (facts.settled.changes, facts.families.changes)
        plainly = entry.build is None and entry.check is not None
        if plainly or not none_differs(ctx, pool) or (alike := Alike.of(ctx)) is None:
            return None
        build = None if entry.build is None else core.table.build(entry.build)
        found = Entry(entry.run, entry.check, entry.choice, entry.build, entry.retry, vouched=entry.vouched)
        found.run = there.run
        return cls(core, alike, pool, there, found, facts, decided, gone, build)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any) -> Entry | None:
        """The entry for a call whose key was never seen, published; None where it must be decided.

        What is raised here is not told: the call is decided then, which raises it again.
        """
        core, family, alike = self.core, self.pool.family, self.alike
        if not self._stands():
            return None
        key, shapes = alike.key_of(args)
        sizes = alike.sizes(args, kwargs, shapes)
        if sizes is None or key in family.alone or not self._serves(args, kwargs) or self._is_stored(key, args, kwargs):
            return None
        if alike.of_class is not None and not alike.of_class.shows_no_more(args, shapes):
            return None
        newest = core.table.newest(1)
        why = family.ways.why_new(key, newest[0], core.backend.differences) if newest else ()
        ran = self.found.choice
        choice = Choice(ran.variant, ran.origin, sizes, key, ran.config, (), (), why, ran.route, ran.notes)
        found = self.found
        entry = Entry(found.run, found.check, choice, found.build, found.retry, vouched=found.vouched)
        entry = Follows.of_ended(core, key, self.pool, entry)
        if not core.table.admit(key, entry, (args, kwargs), node, self.gone, ", ".join(why)):
            return None
        core.table.log.decided(choice)
        return entry

    def _stands(self) -> bool:
        """Whether all that is not of the call is as it was, and nothing else is to be asked first."""
        facts, pool, of_class = self.facts, self.pool, self.alike.of_class
        return (
            self.alike.holds()
            and (of_class is None or of_class.account.whole)
            and (facts.settled.changes, facts.families.changes) == self.decided
            and not facts.buckets
            and pool.over
            and pool.entries.get(self.found.choice.variant) is self.there
            and pool.favourite == self.found.choice.variant
            and self.there.run is self.found.run
            and not capturing_anything()
        )

    def _serves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether it may run this call; plain may any."""
        return self.found.build is None or self.core.backend.serves(self.build, args, kwargs)

    def _is_stored(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether an earlier process has chosen for this very key."""
        stored = self.core.kernel_store
        return stored is not None and stored.find(key, self.core.ctx(key, args, kwargs).device) is not None
