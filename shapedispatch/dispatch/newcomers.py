"""The next new keys of a pool that is over, asked from the path in C: only what may differ between them is looked at.

`at_sight` finds out what such a key runs, once for all keys that differ in sizes alone and lie in the same octaves.
That holds until something is decided that it depends on; then `at_sight` is asked again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..choices.context import DispatcherParts, MissContext, capturing_anything
from ..choices.follows import Follows
from ..choices.pool import TOGETHER, Pool, pool_of
from ..hit.facts import Facts
from ..hit.table import Entry
from ..keys.key import Key
from ..keys.layout import of_sizes
from ..records import Choice
from ..settings.resolve import Resolved
from .at_sight import none_differs
from .miss import tuning_lock

__all__ = ["Newcomers", "expect"]


def expect(ctx: MissContext, entry: Entry, node: Any) -> None:
    """Let the next keys of this one's pool have what `at_sight` has found for it, if that pool is over."""
    core = ctx.core
    followed = entry.choice.notes == (TOGETHER,) and core.settings.learn == "now" and not core.backend.overlaps
    if core.fast_path is None or not followed or ctx.kwargs:
        return
    pool = pool_of(ctx, entry.choice.sizes)
    there = None if pool is None else pool.entries.get(pool.favourite or "")
    if pool is None or there is None or not pool.over or pool.favourite != entry.choice.variant:
        return
    if none_differs(ctx, pool) and (entry.build is not None or entry.check is None):
        core.fast_path.expect(node, Newcomers.of(ctx, pool, there, entry), ctx.args, ctx.kwargs)


@dataclass(frozen=True, slots=True)
class Newcomers:
    """What `at_sight` has found for one key, for others that differ in sizes alone."""

    core: DispatcherParts
    pool: Pool
    there: Entry
    """What runs the pool's favourite at another key."""
    found: Entry
    """What `at_sight` has made of it."""
    settings: Resolved
    facts: Facts
    decided: tuple[int, int]
    """How often anything has been settled, and a family found, when this was made."""
    gone: int
    """How many builds had gone."""
    build: Any
    key: Key
    tensors: tuple[tuple[int, Callable[[Any, Any], Key]], ...]
    """Where tensors stand among the arguments, and what makes the part of the key of one, of its sizes and strides."""
    places: Sequence[tuple[str, int, int]] | None
    """As `Backend.places` has it."""

    @classmethod
    def of(cls, ctx: MissContext, pool: Pool, there: Entry, entry: Entry) -> Newcomers:
        """Of the call that `at_sight` has just found this for."""
        core, facts, gone = ctx.core, ctx.core.table.facts, ctx.core.table.gone
        build = None if entry.build is None else core.table.build(entry.build)
        found = Entry(entry.run, entry.check, entry.choice, entry.build, entry.retry, vouched=entry.vouched)
        found.run = there.run
        tensors = [(i, of_sizes(ctx.key[i + 1])) for i, value in enumerate(ctx.args) if isinstance(value, Tensor)]
        decided = (facts.settled.changes, facts.families.changes)
        places = core.backend.places(ctx.args)
        return cls(
            core, pool, there, found, core.settings, facts, decided, gone, build, ctx.key, tuple(tensors), places
        )

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any) -> Entry | None:
        """The entry for a call whose key was never seen, published; None where it must be decided.

        What is raised here is not told: the call is decided then, which raises it again.
        """
        core, family = self.core, self.pool.family
        if not self._stands():
            return None
        key, shapes = self._key(args)
        sizes = self._sizes(args, kwargs, shapes)
        if sizes is None or key in family.alone or not self._serves(args, kwargs) or self._is_stored(key, args, kwargs):
            return None
        newest = core.table.newest(1)
        why = family.ways.why_new(key, newest[0], core.backend.differences) if newest else ()
        ran = self.found.choice
        choice = Choice(ran.variant, ran.origin, sizes, key, ran.config, (), (), why, ran.route, ran.notes)
        found = self.found
        entry = Entry(found.run, found.check, choice, found.build, found.retry, vouched=found.vouched)
        entry = Follows.of_ended(core, key, self.pool, entry)
        if not core.table.admit(key, entry, (args, kwargs), node, self.gone):
            return None
        core.table.log.decided(choice)
        return entry

    def _stands(self) -> bool:
        """Whether all that is not of the call is as it was, and nothing else is to be asked first."""
        core, facts, pool = self.core, self.facts, self.pool
        return (
            core.settings is self.settings
            and core.table.facts is facts
            and (facts.settled.changes, facts.families.changes) == self.decided
            and not facts.buckets
            and pool.over
            and pool.entries.get(self.found.choice.variant) is self.there
            and pool.favourite == self.found.choice.variant
            and self.there.run is self.found.run
            and not tuning_lock.owned()
            and not capturing_anything()
            and core.ledger() is None
        )

    def _serves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether it may run this call; plain may any."""
        return self.found.build is None or self.core.backend.serves(self.build, args, kwargs)

    def _sizes(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], shapes: list[Any]) -> dict[str, int] | None:
        """The size of each dim; None for a call that does not fit its declaration."""
        if self.places is None:
            return self.core.backend.sizes(args, kwargs)
        found: dict[str, int] = {}
        for name, place, axis in self.places:
            size = shapes[place][axis]
            if found.setdefault(name, size) != size:
                return None
        return found

    def _is_stored(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether an earlier process has chosen for this very key."""
        stored = self.core.kernel_store
        return stored is not None and stored.find(key, self.core.ctx(key, args, kwargs).device) is not None

    def _key(self, args: tuple[Any, ...]) -> tuple[Key, list[Any]]:
        """The call's key, which differs in sizes and strides alone from the one that this was found for; the sizes."""
        parts, shapes = [*self.key], [None] * len(args)
        for place, part_of in self.tensors:
            tensor = args[place]
            shapes[place] = shape = tensor.shape
            parts[place + 1] = part_of(shape, tensor.stride())
        return tuple(parts), shapes
