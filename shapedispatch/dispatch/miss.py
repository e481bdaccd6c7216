"""The miss path: from a call whose key has no choice to the entry that answers it from now on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from ..autotune.choose import choose
from ..autotune.preserve_state import untouched
from ..backend import Offer, Search, Wish
from ..hit.table import Entry
from ..keys.key import Bypass, Key
from ..records import Refusal
from ..shapes.declaration import Misfit
from .context import Case
from .entries import changed, decided, nearest_hint
from .isolation import judge
from .known_choices import FROZEN_MODES, kept, known, share
from .on_miss import without_timing

__all__ = ["decide"]


def decide(case: Case, afresh: bool = False, exhaustive: bool = False) -> Entry:
    """Recall or choose, and remember; called with `turn.deciding` held. Raises Bypass, MissError, PlainRaised.

    1. the sizes, which may not fit the declaration; 2. what is known already: a choice whose build was lost, a
    stored one, that of the call's bucket (not if ``afresh``); 3. in a frozen mode, what to do without;
    4. otherwise offer, check, time, decide; 5. store what was timed, and publish. While a CUDA graph is being
    captured nothing is made, timed or remembered.
    """
    try:
        sizes = case.sizes()
    except Misfit as misfit:
        raise Bypass(str(misfit)) from None
    new_because = case.new_because()
    case.table.count("misses", ", ".join(new_because) or "the first call")
    if capturing(case.device):
        return nearest_hint(case.offer(Wish(build=False)), case.sizes(), "a CUDA graph is being captured")
    entry, lasting, unused = _entry(case, sizes, afresh, exhaustive)
    case = replace(case, key=_key_after(case))
    if lasting:
        entry = kept(entry, case, instead=afresh or bool(unused))
    notes = (*entry.choice.notes, *unused)
    entry = changed(entry, sizes=sizes, key=case.key, new_because=new_because, notes=notes)
    case.table.publish(case.key, entry)
    case.table.journal.decided(entry.choice)
    share(entry.choice, case)
    return entry


def capturing(device: torch.device) -> bool:
    """Whether what is launched now becomes part of a CUDA graph: nothing may be waited for, allocated or timed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _entry(case: Case, sizes: Mapping[str, int], afresh: bool, exhaustive: bool) -> tuple[Entry, bool, tuple[str, ...]]:
    """Steps 2 to 4: the entry, whether another process need not look for it again, and why a stored row is not used."""
    entry, unused = (None, ()) if afresh else known(case)
    if entry is None and not afresh and case.settings.mode in FROZEN_MODES:
        entry = without_timing(case, sizes, unused)
    if entry is not None:
        return entry, False, unused
    finds = case.shelf.finds(case.device) if case.shelf is not None and case.backend.searches else None
    wish = Wish(exhaustive=exhaustive, judge=judge(case), finds=finds, untimed=case.untimed)
    return (*_chosen(case, wish), unused)


def _chosen(case: Case, wish: Wish) -> tuple[Entry, bool]:
    """The winner of the offer; where that is a search of configs, of the offer that follows from what it found.

    And whether another process need not look for it again.
    """
    earlier: tuple[Refusal, ...] = ()  # by a search, whose candidates do not come again
    while True:
        with untouched(case.args, case.kwargs):  # which lets no warning through: not ours, and not the store's
            offer = case.offer(wish)
            at = offer.at if isinstance(offer, Search) else None
            entry = _winner(offer, case if at is None else case.at(*at))
        if isinstance(offer, Search) and offer.found is not None:
            offer.found(entry.choice)
            if not offer.final and entry.choice.origin == "timed":
                earlier = entry.choice.refusals
                continue
        if len(offer.candidates) == 1 and offer.failures:
            case.notices.failed(offer.failures, case.rendered)
        timed, alone = entry.choice.origin == "timed", len(offer.candidates) == 1
        entry = changed(entry, refusals=tuple(dict.fromkeys((*entry.choice.refusals, *earlier))))
        return entry, timed or (alone and offer.lasting and entry.choice.origin == "only")


def _winner(offer: Offer, case: Case) -> Entry:
    """What is forced, what is left alone, or what is best among those that are right."""
    pick = offer.aliases.get(case.settings.pick or "", case.settings.pick)
    pinned = next((c for c in offer.candidates if c.name == pick), None)
    if pinned is not None:
        return decided(pinned, "pinned", offer)
    if len(offer.candidates) == 1:
        return decided(offer.candidates[0], "only", offer)
    trial = case.trial(offer)
    untimed = case.why_untimed(offer, trial)
    if untimed:
        return nearest_hint(offer, case.sizes(), untimed)
    decision = choose(offer.candidates, trial, case.rules(trial))
    case.table.count("timings")
    return decided(decision.winner, "timed", offer, decision.timings, decision.refusals)


def _key_after(case: Case) -> Key:
    """The key again: where the offer has shown that something is written, it holds which arguments overlap."""
    again = case.backend.key(case.args, case.kwargs)
    if len(again) != len(case.key):
        case.table.forget_choices()
    return again
