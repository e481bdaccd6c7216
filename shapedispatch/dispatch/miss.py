"""The miss path: from a call whose key has no choice to the entry that answers it from now on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch

from ..autotune.choose import choose
from ..autotune.preserve_state import preserve_state
from ..backend import Call, Offer, OfferRequest
from ..hit.table import Entry
from ..keys.key import Bypass, Key
from ..records import Refusal
from ..shapes.declaration import DimsMismatch
from .context import MissContext
from .entries import changed, decided, nearest_hint
from .isolation import judge
from .known_choices import FROZEN_MODES, look_up, persist, share_in_bucket
from .on_miss import without_timing

__all__ = ["decide"]


def decide(ctx: MissContext, retune: bool = False, exhaustive: bool = False) -> Entry:
    """Recall or choose, and remember; called with `turn.deciding` held. Raises Bypass, MissError, PlainRaised.

    1. the sizes, which may not fit the declaration; 2. what is known already: a choice whose build was lost, a
    stored one, that of the call's bucket (not if ``retune``); 3. in a frozen mode, what to do without;
    4. otherwise offer, check, time, decide; 5. store what was timed, and publish. While a CUDA graph is being
    captured nothing is made, timed or remembered.
    """
    try:
        sizes = ctx.sizes()
    except DimsMismatch as misfit:
        raise Bypass(str(misfit)) from None
    new_because = ctx.new_because()
    ctx.table.count("misses", ", ".join(new_because) or "the first call")
    if capturing(ctx.device):
        return nearest_hint(ctx.offer(OfferRequest(build=False)), ctx.sizes(), "a CUDA graph is being captured")
    entry, reproducible, unused = _entry(ctx, sizes, retune, exhaustive)
    ctx = replace(ctx, key=_key_after(ctx))
    if reproducible:
        entry = persist(entry, ctx, instead=retune or bool(unused))
    notes = (*entry.choice.notes, *unused)
    entry = changed(entry, sizes=sizes, key=ctx.key, new_because=new_because, notes=notes)
    ctx.table.publish(ctx.key, entry)
    ctx.table.log.decided(entry.choice)
    share_in_bucket(entry.choice, ctx)
    return entry


def capturing(device: torch.device) -> bool:
    """Whether what is launched now becomes part of a CUDA graph: nothing may be waited for, allocated or timed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _entry(
    ctx: MissContext, sizes: Mapping[str, int], retune: bool, exhaustive: bool
) -> tuple[Entry, bool, tuple[str, ...]]:
    """Steps 2 to 4: the entry, whether another process need not look for it again, and why a stored row is not used."""
    entry, unused = (None, ()) if retune else look_up(ctx)
    if entry is None and not retune and ctx.settings.mode in FROZEN_MODES:
        entry = without_timing(ctx, sizes, unused)
    if entry is not None:
        return entry, False, unused
    tuned_configs = (
        ctx.kernel_store.tuned_configs(ctx.device) if ctx.kernel_store is not None and ctx.backend.searches else None
    )
    request = OfferRequest(exhaustive=exhaustive, judge=judge(ctx), tuned_configs=tuned_configs, untimed=ctx.untimed)
    return (*_chosen(ctx, request), unused)


def _chosen(ctx: MissContext, request: OfferRequest) -> tuple[Entry, bool]:
    """The winner of the offer; where that wants a search of configs, of the offer that follows from what it found.

    And whether another process need not look for it again.
    """
    earlier: tuple[Refusal, ...] = ()  # by a search, whose candidates do not come again
    offer, entry = _decided(ctx, lambda: ctx.offer(request))
    if offer.search is not None:
        with offer.search as search:
            offer, entry = _decided(ctx, search.offer, search.at)
            search.keep(entry.choice)
        if not search.final and entry.choice.origin == "timed":
            earlier = entry.choice.refusals
            offer, entry = _decided(ctx, lambda: ctx.offer(replace(request, search=False)))
    if len(offer.candidates) == 1 and offer.failures:
        ctx.user_warnings.failed(offer.failures, ctx.rendered)
    timed, alone = entry.choice.origin == "timed", len(offer.candidates) == 1
    entry = changed(entry, refusals=tuple(dict.fromkeys((*entry.choice.refusals, *earlier))))
    return entry, timed or (alone and offer.reproducible and entry.choice.origin == "only")


def _decided(ctx: MissContext, offered: Callable[[], Offer], at: Call | None = None) -> tuple[Offer, Entry]:
    """An offer and its winner, found out at another call where one is given."""
    with preserve_state(ctx.args, ctx.kwargs):  # which lets no warning through: not ours, and not the store's
        offer = offered()
        return offer, _winner(offer, ctx if at is None else ctx.at(*at))


def _winner(offer: Offer, ctx: MissContext) -> Entry:
    """What is forced, what is left alone, or what is best among those that are right."""
    pick = offer.aliases.get(ctx.settings.pick or "", ctx.settings.pick)
    pinned = next((c for c in offer.candidates if c.name == pick), None)
    if pinned is not None:
        return decided(pinned, "pinned", offer)
    if len(offer.candidates) == 1:
        return decided(offer.candidates[0], "only", offer)
    trial = ctx.trial(offer)
    untimed = ctx.why_untimed(offer, trial)
    if untimed:
        return nearest_hint(offer, ctx.sizes(), untimed)
    decision = choose(offer.candidates, trial, ctx.rules(trial))
    ctx.table.count("timings")
    return decided(decision.winner, "timed", offer, decision.timings, decision.refusals)


def _key_after(ctx: MissContext) -> Key:
    """The key again: where the offer has shown that something is written, it holds which arguments overlap."""
    again = ctx.backend.key(ctx.args, ctx.kwargs)
    if len(again) != len(ctx.key):
        ctx.table.forget_choices()
    return again
