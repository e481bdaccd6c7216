"""The next new keys of a pool, asked from the path in C: only what may differ between them is looked at.

`at_sight` finds out what such a key runs, once for all keys that differ in sizes alone and lie in the same octaves.
That holds until something is decided that it depends on; then `at_sight` is asked again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..choices.context import DispatcherParts, MissContext, capturing_anything
from ..choices.follows import Follows
from ..choices.pooled import PooledContest, pool_of
from ..hit.facts import Facts
from ..hit.table import Entry
from ..keys.key import Key
from ..online.pool import TOGETHER, Pool
from ..records import Choice
from .alike import Alike
from .at_sight import none_differs
from .background import Waiting
from .latecomers import Latecomers
from .shared_turns import SharedTurns, TakesTurns

__all__ = ["Newcomers", "entered", "expect", "family_of"]


def expect(ctx: MissContext, entry: Entry, node: Any) -> None:
    """Let the next keys that are like this one have what was found for it, if nothing else is to be asked for them."""
    core = ctx.core
    if core.fast_path is None or core.backend.overlaps or ctx.kwargs:
        return
    made = Newcomers.of(ctx, entry) if entry.choice.notes == (TOGETHER,) else Latecomers.of(ctx, entry)
    if made is not None:
        core.fast_path.expect(node, made, ctx.args, ctx.kwargs)


def entered(core: DispatcherParts, key: Key, entry: Entry, began_s: float) -> None:
    """Note since when this was found for a call whose key was new, of which C was not told by what its kin run.

    What a pool finds out at its keys it affords.
    """
    learner = entry.learner
    if not core.may_pass() or isinstance(getattr(learner, "contest", None), PooledContest):
        return
    kin = functools.partial(_as_kin, core, key, entry) if core.backend.searches else None
    core.new_sizes.entered(time.perf_counter() - began_s, functools.partial(_saves, entry), kin=kin)
    if isinstance(learner, Waiting):
        learner.in_all_s = core.new_sizes.in_all_s


def _as_kin(core: DispatcherParts, key: Key, entry: Entry) -> tuple[Hashable, Callable[..., Any] | None]:
    """The family of a kernel's call, and what runs the others of it by what is best here as far as that is known."""
    learner = entry.learner
    best = entry.run if learner is None else learner.pinned(entry.choice).run
    return family_of(core, key), core.backend.as_kin(best)


def family_of(core: DispatcherParts, key: Key) -> Hashable:
    """What a kernel's calls have in common that differ in sizes alone."""
    return core.backend.observed((), {}, key, core.table)[0]


def _saves(entry: Entry) -> float:
    """What part of plain's time is saved by what runs; all of it where that is not known."""
    if isinstance(entry.learner, Follows):
        return entry.learner.pool.saves()
    is_plain = entry.choice.variant == "plain" and not (entry.learner is not None and entry.learner.judges)
    return 0.0 if is_plain else 1.0


@dataclass(frozen=True, slots=True)
class Newcomers:
    """What `at_sight` has found for one key, for others that differ in sizes alone."""

    core: DispatcherParts
    alike: Alike
    pool: Pool
    over: bool
    """Whether the pool was over. Where it was not, those keys are looked at of which it wants a pair."""
    shared: SharedTurns | None
    """The turns that those keys take; None where they take none."""
    there: Entry | None
    """What runs the pool's favourite at another key; None without one, where plain runs."""
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
        """Of the call that `at_sight` has just found this for, if it runs what its pool prefers, and gives no pair."""
        core, facts, gone = ctx.core, ctx.core.table.facts, ctx.core.table.gone
        pool = pool_of(ctx, entry.choice.sizes)
        if pool is None or (entry.learner is not None and entry.learner.judges):
            return None
        there = None if pool.favourite is None else pool.entries.get(pool.favourite)
        if entry.choice.variant != (pool.favourite or "plain") or (there is None and not _begins(pool)):
            return None
        decided = (facts.settled.changes, facts.families.changes)
        shared = entry.learner.shared if isinstance(entry.learner, TakesTurns) else None
        plainly = shared is None and entry.build is None and entry.check is not None
        if plainly or not none_differs(ctx, pool) or (alike := Alike.of(ctx)) is None:
            return None
        build = None if entry.build is None else core.table.build(entry.build)
        run = core.backend.plain if there is None else there.run
        found = Entry(run, entry.check, entry.choice, entry.build, entry.retry, entry.any_state, vouched=entry.vouched)
        return cls(core, alike, pool, pool.over, shared, there, found, facts, decided, gone, build)

    def __call__(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], node: Any) -> Entry | None:
        """The entry for a call whose key was never seen, published unless ``node`` is None; None: it must be decided.

        What is raised here is not told: the call is decided then, which raises it again.
        """
        core, family, alike, began_s = self.core, self.pool.family, self.alike, time.perf_counter()
        if not self._stands() or not (node is None or self.over or self._gives_none()):
            return None
        if node is None:
            return self.found if self._may_run(args, kwargs) else None
        key, shapes = alike.key_of(args)
        sizes = alike.sizes(args, kwargs, shapes)
        if sizes is None or key in family.alone or not self._serves(args, kwargs):
            return None
        if alike.may_be_stored(shapes) and self._is_stored(key, args, kwargs):
            return None
        if alike.of_class is not None and not alike.of_class.shows_no_more(args, shapes):
            return None
        newest = core.table.newest(1)
        why = family.ways.why_new(key, newest[0], core.backend.differences) if newest else ()
        ran = self.found.choice
        choice = Choice(ran.variant, ran.origin, sizes, key, ran.config, (), (), why, ran.route, ran.notes)
        found = self.found
        entry = Entry(found.run, found.check, choice, found.build, found.retry, found.any_state, vouched=found.vouched)
        entry = self._following(key, entry)
        if not core.table.admit(key, entry, (args, kwargs), node, self.gone, ", ".join(why)):
            return None
        core.table.log.decided(choice)
        took_s, awaited = time.perf_counter() - began_s, self.shared is not None and self.shared.awaits_new()
        core.new_sizes.entered(took_s, self._saves, has_kin=True, awaited=awaited)
        if awaited:
            family.looked(1e6 * took_s)
        return entry

    def _saves(self) -> float:
        """What part of plain's time is saved by what runs."""
        return 0.0 if self.there is None else self.pool.saves()

    def _stands(self) -> bool:
        """Whether all that is not of the call is as it was, and nothing else is to be asked first."""
        facts, pool, of_class = self.facts, self.pool, self.alike.of_class
        return (
            self.alike.holds()
            and (of_class is None or of_class.account.whole)
            and (facts.settled.changes, facts.families.changes) == self.decided
            and not facts.buckets
            and pool.over == self.over
            and (self.shared is None or self.shared.is_current())
            and (pool.favourite or "plain") == self.found.choice.variant
            and (self.there is None or self._is_there(self.there))
            and not capturing_anything()
        )

    def _is_there(self, there: Entry) -> bool:
        """Whether what runs at the other key still does."""
        return self.pool.entries.get(self.found.choice.variant) is there and there.run is self.found.run

    def _gives_none(self) -> bool:
        """Whether nothing is to be seen for a key now, and no pair wanted; see `at_sight`."""
        pool, core = self.pool, self.core
        looks = not pool.entries if core.in_background() else pool.affords()
        return not looks and (self.shared is not None or not pool.wanted(pool.givable()))

    def _following(self, key: Key, entry: Entry) -> Entry:
        if self.over:
            return Follows.of_ended(self.core, key, self.pool, entry)
        if self.shared is not None:
            return self.shared.entry(key, self.pool, entry.choice)
        names = [] if entry.build is None else [entry.choice.variant]
        return Follows.of(self.core, key, self.pool, names, entry)

    def _serves(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether it may run this call; plain may any."""
        if self.shared is not None and not self.shared.serves(args, kwargs):
            return False
        return self.found.build is None or self.core.backend.serves(self.build, args, kwargs)

    def _may_run(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether what runs the favourite at the other key may run this call, which takes no turn."""
        if self.there is None:
            return True
        build = None if self.there.build is None else self.core.table.build(self.there.build)
        return build is not None and self.core.backend.serves(build, args, kwargs)

    def _is_stored(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether an earlier process has chosen for this very key."""
        stored = self.core.kernel_store
        return stored is not None and stored.find(key, self.core.ctx(key, args, kwargs).device) is not None


def _begins(pool: Pool) -> bool:
    """Whether it knows nothing yet, so that plain runs."""
    return not pool.over and pool.favourite is None
