"""A key that was never seen, and is like others that were: what runs it is known at sight, and nothing is offered.

Programs whose sizes hardly repeat meet such a key at every other call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from ..backend import Candidate, Offer
from ..choices.between import as_there, taken_over
from ..choices.context import MissContext, capturing_anything
from ..choices.follows import Follows
from ..choices.learning import pooled
from ..choices.neighbours import Neighbours
from ..choices.pooled import pool_of
from ..hit.table import Entry
from ..online.pool import ALONE, TOGETHER, Pool
from ..records import Choice
from ..shapes.dims import DimsMismatch
from .shared_turns import SharedTurns

__all__ = ["at_sight", "like_others", "none_differs"]


def at_sight(ctx: MissContext) -> Entry | None:
    """The entry for a key that was never seen, published; None where the call must be decided.

    It comes before the lock that deciding holds: another thread may compile meanwhile.
    """
    table, key = ctx.core.table, ctx.key
    entry = None if table.peek(key) else like_others(ctx)
    if entry is None:
        return None
    new_because = ctx.since_newest
    table.count("misses", ", ".join(new_because))
    if entry.choice.new_because != new_because:
        entry.choice = replace(entry.choice, new_because=new_because)
    table.publish(key, entry, (ctx.args, ctx.kwargs))
    table.log.decided(entry.choice)
    return entry


def like_others(ctx: MissContext) -> Entry | None:
    """The entry of what keys like this one have come to; None where they have not, or it must be decided."""
    facts = ctx.core.table.facts
    if not (facts.settled or facts.families) or not _may_be_known(ctx) or facts.earned.get(ctx.key):
        return None
    try:
        sizes = ctx.sizes()
    except DimsMismatch:
        return None
    if capturing_anything() or _is_stored(ctx):
        return None
    pool = pool_of(ctx, sizes)
    if pool is not None and pool.over and none_differs(ctx, pool) and (found := _decided(ctx, sizes, pool)):
        return found
    return _agreed(ctx, Neighbours.of(ctx, sizes=sizes)) or _together(ctx, sizes, pool)


def none_differs(ctx: MissContext, pool: Pool) -> bool:
    """Whether no key of its kin has come to something else: then sizes on both sides would say the same, later."""
    return all(choice.variant == pool.favourite for choice in ctx.core.table.facts.settled.get(ctx.kin) or ())


def _decided(ctx: MissContext, sizes: Mapping[str, int], pool: Pool) -> Entry | None:
    """The entry of what such keys have found to be the best, if it may run this call."""
    if ctx.key in pool.family.alone:
        return None
    there = pool.entries.get(pool.favourite or "")
    found = None if there is None else taken_over(ctx, there, _together_as(there, ctx, sizes))
    return None if found is None else Follows.of_ended(ctx.core, ctx.key, pool, found)


def _together_as(there: Entry, ctx: MissContext, sizes: Mapping[str, int]) -> Choice:
    """The choice of what such keys run there, for this one."""
    ran = there.choice
    why = ctx.since_newest
    return Choice(ran.variant, "nearest", sizes, ctx.key, ran.config, (), (), why, ran.route, (TOGETHER,))


def _may_be_known(ctx: MissContext) -> bool:
    """Whether nothing else would be asked first: a setting, the other ranks, a bucket."""
    settings = ctx.settings
    if settings.mode != "tune" or settings.pick is not None or settings.learn not in ("now", "background"):
        return False
    return ctx.why_not_online() is None and not ctx.core.table.facts.buckets and ctx.core.ledger() is None


def _is_stored(ctx: MissContext) -> bool:
    """Whether an earlier process has chosen for this very key."""
    stored = ctx.core.kernel_store
    return stored is not None and stored.find(ctx.key, ctx.device) is not None


def _agreed(ctx: MissContext, near: Neighbours) -> Entry | None:
    """The entry of what won at sizes on both sides."""
    variant, where = near.agreed() or ("", "")
    choice = Choice(variant, "nearest", near.sizes, ctx.key, notes=(where,))
    return as_there(ctx, near, choice) if variant else None


def _together(ctx: MissContext, sizes: Mapping[str, int], pool: Pool | None) -> Entry | None:
    """The entry of what keys near this one have found together, or find; None where more is to be seen for it."""
    if pool is None or len(pool.family.alone) < ALONE or ctx.key in pool.family.alone:
        return None
    if pool.over:
        return _decided(ctx, sizes, pool) or _follows(ctx, sizes, pool, lambda name: None)
    # In the background a key is looked at when it has earned that, and not for others' sake.
    if not pool.entries if ctx.core.in_background() else pool.affords():
        return None

    @functools.cache
    def taken(name: str) -> Entry | None:
        there = pool.entries.get(name)
        return None if there is None else taken_over(ctx, there, _together_as(there, ctx, sizes))

    if shares := _shares(ctx, sizes, pool):
        return shares
    began_ns = pool.clock_ns()
    gives = _giver(ctx, sizes, pool, taken)
    if gives is not None:
        pool.family.looked((pool.clock_ns() - began_ns) / 1e3)
    return gives or _follows(ctx, sizes, pool, taken)


def _shares(ctx: MissContext, sizes: Mapping[str, int], pool: Pool) -> Entry | None:
    """The entry of a key whose calls C makes samples of, as of others; None where not all candidates take them.

    Asked are those that take the turns: what the pool knows by the same name may be a build of other sizes.
    """
    shared = SharedTurns.of(ctx, pool)
    if shared is None:
        return None
    taken = {name: taken_over(ctx, there, _together_as(there, ctx, sizes)) for name, there in shared.entries.items()}
    own = taken[shared.leads(pool)]
    return shared.entry(ctx.key, pool, own.choice) if own is not None and all(taken.values()) else None


def _follows(ctx: MissContext, sizes: Mapping[str, int], pool: Pool, taken: Callable[[str], Entry | None]) -> Entry:
    """The entry of a key that gives no pairs now, and runs the favourite, if it may, else plain.

    It gives them when they may be afforded: of what it runs, or of all that may run it where that is nothing yet.
    """
    found = taken(pool.favourite or "")
    names = pool.givable() if found is None else [found.choice.variant] if found.choice.variant != "plain" else []
    if found is None or found.run is None:
        names = [name for name in names if taken(name) is not None]
        choice = Choice("plain", "nearest", sizes, ctx.key, notes=(TOGETHER,))
        found = Entry(ctx.core.backend.plain, None, choice, any_state=True)
    return Follows.of(ctx.core, ctx.key, pool, names, found)


def _giver(
    ctx: MissContext, sizes: Mapping[str, int], pool: Pool, taken: Callable[[str], Entry | None]
) -> Entry | None:
    """The entry of a key that gives pairs of builds that take it: they are right at all sizes that they take."""
    there = pool.givable()
    if not pool.wanted(there):
        return None
    known = {name: entry for name in ("plain", *there) if (entry := taken(name)) is not None}
    if "plain" not in known or pool.wanted_of_new([*known], tuple(sizes.values())) is None:
        return None
    candidates = tuple(_candidate(name, entry) for name, entry in known.items())
    written = () if all(entry.retry for name, entry in known.items() if name != "plain") else None
    offer = Offer(candidates, written=written)
    return pooled(offer, candidates, ctx, pool, sizes, {}).changed(sizes=sizes, key=ctx.key)


def _candidate(name: str, entry: Entry) -> Candidate:
    assert entry.run is not None
    return Candidate(name, entry.run, entry.check, entry.build, entry.choice.route)
