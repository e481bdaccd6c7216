"""What runs at one key taken over for another that differs in sizes alone: nothing is offered, and nothing compared.

Plain is right at all sizes. A build is where all of its guards take them. Nothing is known of a supplied variant.
What runs at a single other key, and not on both sides, is taken over for the time that the call's own choice is
learned, and only where a build's graph vouches for its numbers at all sizes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import replace

from ..hit.call import NowAndThen
from ..hit.table import Entry
from ..online.pool import TOGETHER
from ..records import CHOSEN_AT, Choice, spelled
from .context import MissContext
from .neighbours import Neighbours
from .pooled import pool_of

__all__ = ["as_there", "meanwhile", "taken_over"]


def as_there(ctx: MissContext, near: Neighbours, choice: Choice) -> Entry | None:
    """The entry that runs what runs at a neighbour of this choice's variant, if that may run this call now."""
    backend = ctx.core.backend
    keys = [] if backend.searches else [one.key for one in near.choices if one.variant == choice.variant]
    there = [entry for key in keys for entry in ctx.core.table.peek(key) if entry.choice.variant == choice.variant]
    found = (taken_over(ctx, entry, choice) for entry in _each_build_once(map(_settled, there)))
    return next((entry for entry in found if entry is not None), None)


def meanwhile(ctx: MissContext, near: Neighbours) -> Entry | None:
    """The entry of a build that is likely to be best for the call, for the time that this is learned.

    That is what keys near it have found together, and it may have run until now, unless what won on both sides of it is
    known. Else the build which runs at the nearest key, or at the next where that build takes no such call. None where
    plain is what runs there, or where there is no such build.
    """
    found = _together(ctx, near.sizes) if near.agreed() is None else None
    return found or _nearest(ctx, near)


def _nearest(ctx: MissContext, near: Neighbours) -> Entry | None:
    tried = set[str]()
    for choice in near.choices:
        if choice.variant == "plain":
            return None
        if choice.variant not in tried:
            tried.add(choice.variant)
            note = f"{CHOSEN_AT}{spelled(choice.sizes)}, and run here meanwhile"
            found = as_there(ctx, near, Choice(choice.variant, "learning", near.sizes, ctx.key, notes=(note,)))
            if found is not None and found.vouched:
                return found
    return None


def _together(ctx: MissContext, sizes: Mapping[str, int]) -> Entry | None:
    """The entry of a build that leads among keys near this one, as far as they know."""
    pool = None if ctx.core.backend.searches else pool_of(ctx, sizes)
    there = pool and pool.entries.get(pool.favourite or "")
    if not there:
        return None
    note = f"{TOGETHER}, and run here meanwhile"
    found = taken_over(ctx, there, Choice(there.choice.variant, "learning", sizes, ctx.key, notes=(note,)))
    return found if found is not None and found.vouched else None


def _settled(entry: Entry) -> Entry | None:
    """What was chosen at a key; None while it is learned there for the first time."""
    begun = getattr(entry.learner, "now", entry)  # of a key that waits for more builds
    if begun is not entry:
        return begun if begun is None or begun.run is not begun.learner else None
    rests = entry.choice.origin == "learning" and entry.learner is not None and entry.learner.judges
    return entry if (entry.run is not entry.learner and not rests) or entry.run is None else None


def _each_build_once(entries: Iterable[Entry | None]) -> Iterator[Entry]:
    """Without those whose build was among them: it would be asked the same again."""
    asked = set[Hashable]()
    for entry in entries:
        if entry is not None and (entry.build is None or entry.build not in asked):
            asked.add(entry.build)
            yield entry


def taken_over(ctx: MissContext, there: Entry | None, choice: Choice) -> Entry | None:
    """The entry that runs for this choice what one of the same kin runs, if that may run this call in this state."""
    if there is None:
        return None
    return _plain(ctx, there, choice) if choice.variant == "plain" else _build(ctx, there, choice)


def _plain(ctx: MissContext, there: Entry, choice: Choice) -> Entry | None:
    """Plain, in a state that it was chosen in."""
    if there.check is not None and not there.any_state:
        return None
    look = getattr(there.check, "look", there.check)
    if look is not None and not look(ctx.args, ctx.kwargs):
        return None
    return Entry(ctx.core.backend.plain, look and NowAndThen(look), choice, any_state=look is not None)


def _build(ctx: MissContext, there: Entry, choice: Choice) -> Entry | None:
    """A build that is held, and takes these sizes; not where each variant is tried in a worker before it runs."""
    run = there.run  # once: another thread may let the build go
    build = ctx.core.table.build(there.build) if there.build is not None and not ctx.settings.isolate else None
    if run is None or build is None or build.run is not run or not ctx.core.backend.serves(build, ctx.args, ctx.kwargs):
        return None
    if choice.route != there.choice.route or choice.config is not there.choice.config:
        choice = replace(choice, route=there.choice.route, config=there.choice.config)
    return Entry(run, there.check, choice, there.build, there.retry, vouched=there.vouched)
