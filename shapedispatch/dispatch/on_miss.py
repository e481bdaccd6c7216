"""An unknown shape in a mode in which nothing may be timed: what ``on_miss`` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..autotune.preserve_state import preserve_state
from ..backend import OfferRequest
from ..errors import MissError, four_parts
from ..hit.table import Entry
from ..records import CHOSEN_AT, STORED_NEAR, Choice, spelled
from ..shapes.dims import distance
from .context import MissContext
from .known_choices import entry_for, stored

__all__ = ["missing", "plain_entry", "without_timing"]

_DECIDED = ("timed", "stored", "shipped", "only")
"""Origins of choices that say something of calls of other sizes."""


def without_timing(ctx: MissContext, sizes: Mapping[str, int], unused: Sequence[str]) -> Entry:
    """What ``on_miss`` says, which may be a MissError; the key is noted, to be tuned later.

    ``unused`` says why the row that is stored for it is not used.
    """
    if ctx.core.kernel_store is not None and not unused:
        ctx.core.kernel_store.missed(ctx.key, ctx.device)
    if ctx.settings.on_miss == "error":
        raise MissError(missing(ctx, sizes, unused))
    why = f"the mode is {ctx.settings.mode}"
    if ctx.settings.on_miss == "nearest":
        return _nearest_choice(ctx, sizes, why) or _nearest_held(ctx, why)
    return plain_entry(ctx, why)


def _nearest_choice(ctx: MissContext, sizes: Mapping[str, int], why: str) -> Entry | None:
    """What was chosen for the call nearest to this one that can run it: stored, else in this process."""
    found = ctx.core.kernel_store.nearest(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    here = _nearest_known(ctx, sizes)
    near = [stored(found)] if found is not None else []
    for choice in [*near, *([here] if here is not None and here.variant != "exact" else [])]:
        entry = entry_for(ctx, choice)
        if entry is not None:
            where = f"{CHOSEN_AT}{spelled(choice.sizes)}" if choice.sizes else STORED_NEAR
            notes = (where, *choice.notes, f"not timed: {why}")
            return entry.changed(origin="nearest", timings=(), notes=notes)
    return None


def _nearest_held(ctx: MissContext, why: str) -> Entry:
    """What is built already for the nearest hint, else plain."""
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(OfferRequest(build=False))
    return offer.nearest(ctx.sizes(), why).changed(origin="nearest")


def plain_entry(ctx: MissContext, why: str) -> Entry:
    """Plain. A kernel as written would time its configs: the first of them runs, or the first loaded one if sealed."""
    if not ctx.core.backend.searches:
        return Entry(ctx.core.backend.plain, None, Choice("plain", "nearest", notes=(f"not timed: {why}",)))
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(OfferRequest("plain", build=ctx.settings.mode != "sealed"))
    return offer.candidates[0].wins("nearest", offer, notes=(f"not timed: {why}",))


def _nearest_known(ctx: MissContext, sizes: Mapping[str, int]) -> Choice | None:
    """The timed or stored choice of this process nearest to these sizes by log distance."""
    choices = [entry.choice for _, entry in ctx.core.table.entries()]
    look_up = [choice for choice in choices if choice.origin in _DECIDED and choice.sizes.keys() == sizes.keys()]
    return min(look_up, key=lambda choice: distance(sizes, choice.sizes), default=None)


def missing(ctx: MissContext, sizes: Mapping[str, int], unused: Sequence[str]) -> str:
    """What the error says of a call for which nothing is known."""
    change = f"Before the mode is set: `{ctx.core.backend.name}.tune(...)` with this call, or `prepare` with its sizes."
    what = "what is stored for this call is not used" if unused else "no choice is known for this call"
    tried = f"{what}, and the mode is {ctx.settings.mode}:"
    return four_parts(ctx.rendered(), tried, unused or [_what_is_near(ctx, sizes)], change)


def _what_is_near(ctx: MissContext, sizes: Mapping[str, int]) -> str:
    """What is known of other calls: in this process, else in the store."""
    near = _nearest_known(ctx, sizes)
    if near is not None:
        return f"the nearest known is {near.variant} at {spelled(near.sizes)}"
    found = ctx.core.kernel_store.nearest(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    return (
        "no shape is known" if found is None else f"the nearest is {found.row.variant}, {found.origin} for other sizes"
    )
