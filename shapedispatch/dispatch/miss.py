"""The miss path, under its lock: from a call whose key has no choice to the entry that answers it from now on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from ..autotune.choose import choose
from ..autotune.preserve_state import preserve_state
from ..autotune.trial import EarlierGraph, Trial
from ..backend import Call, Offer, OfferRequest, Search
from ..background.account import Later
from ..choices.context import MissContext, capturing
from ..choices.known_choices import FROZEN_MODES, look_up, persist, share_in_bucket, without_timing
from ..choices.learner import Learning
from ..choices.learning import learn
from ..choices.neighbours import SLOWER, remember
from ..choices.recording import recorded, replayed
from ..hit.table import Entry
from ..interpreter.locks import if_free
from ..keys.key import Bypass, Key
from ..keys.tree import tensors
from ..ranks.ledger import Ledger
from ..records import STATE_CHANGED, UNDECIDED, Choice, Refusal
from ..settings.resolve import Resolved, settings
from ..shapes.dims import DimsMismatch
from .agreed import agreed_entry, captured_entry

__all__ = ["TuningLock", "decide", "tuning_lock", "why_undecided"]


class TuningLock:
    """A lock that knows which thread holds it."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """A lock that another thread held at a fork would stay locked in the child for ever."""
        self._lock = threading.Lock()
        self._holder: int | None = None

    def owned(self) -> bool:
        """Whether the calling thread holds it; who held it last is of no interest."""
        return self._holder == threading.get_ident() and self._lock.locked()

    def locked(self) -> bool:
        """Whether any thread holds it."""
        return self._lock.locked()

    def acquired(self) -> AbstractContextManager[Any]:
        """For ``with``: waits for it, or for nothing where it is `owned`; inside, `note_owner` is called first."""
        return nullcontext() if self.owned() else self._lock

    def if_free(self) -> AbstractContextManager[bool]:
        """For ``with``: True where nobody holds it: then it is held inside, where `note_owner` is called first."""
        return if_free(self._lock)

    def note_owner(self) -> None:
        """Note which thread has it."""
        self._holder = threading.get_ident()


tuning_lock: TuningLock = TuningLock()
"""Held around building and timing, one for the process: compiler settings are global, timings disturb each other."""
os.register_at_fork(after_in_child=tuning_lock.renew)


def decide(ctx: MissContext, retune: bool = False, exhaustive: bool = False, missed: bool = True) -> Entry:
    """Recall or choose, and remember; called with `tuning_lock` held. Raises Bypass, MissError, PlainRaised, and
    LeftForNext where a look does not come to an end.

    1. the sizes, which may not fit the declaration; 2. what is known already: a choice whose build was lost, a
    stored one, that of the call's bucket (not if ``retune``); 3. in a frozen mode, what to do without;
    4. otherwise offer, check, time, decide; 5. store what was timed, and publish. While a CUDA graph is being
    captured nothing is made, timed or remembered. Counted is what a call that had no choice ``missed``.
    """
    try:
        sizes = ctx.sizes()
    except DimsMismatch as misfit:
        raise Bypass(str(misfit)) from None
    new_because = ctx.new_because()
    if missed:
        ctx.core.table.count("misses", ", ".join(new_because) or "the first call")
    if ctx.settings.nearly_named and not new_because:
        ctx.core.table.log.warn_sections(settings().meant_for(ctx.core.backend.name))
    ledger = ctx.core.ledger()
    if capturing(ctx.device):
        return _while_capturing(ctx, ledger)
    if ledger is not None:
        return _agreed(ctx, ledger, retune, exhaustive, new_because)
    entry, reproducible, unused = _entry(ctx, sizes, retune, exhaustive)
    ctx = replace(ctx, key=_key_after(ctx))
    if reproducible and not ctx.awaits_more():
        entry = persist(entry, ctx, instead=retune or bool(unused))
    notes = (*entry.choice.notes, *unused)
    entry = entry.changed(sizes=sizes, key=ctx.key, new_because=new_because, notes=notes)
    found = entry
    if not isinstance(entry.learner, Learning):  # which does the same when it is over
        entry = ctx.kept(entry)
    more = entry is not found  # to choose among, later
    entry = recorded(entry, ctx) if ctx.settings.learn == "record" else entry
    ctx.core.table.publish(ctx.key, entry, (ctx.args, ctx.kwargs))
    if entry.choice.origin != "learning":
        ctx.core.table.log.decided(entry.choice)
    if not more:
        _tell_others(entry.choice, ctx)
    return entry


def _tell_others(choice: Choice, ctx: MissContext) -> None:
    """Let calls of other sizes learn from a choice."""
    share_in_bucket(choice, ctx)
    if ctx.settings.judge == "online":
        remember(ctx.core, ctx.key, choice)


def _while_capturing(ctx: MissContext, ledger: Ledger | None) -> Entry:
    """The best of what is there."""
    if ledger is not None:
        return captured_entry(ctx, ledger)
    return ctx.offer(OfferRequest(build=False)).nearest(ctx.sizes(), "a CUDA graph is being captured", ctx.is_right)


def _agreed(ctx: MissContext, ledger: Ledger, retune: bool, exhaustive: bool, new_because: tuple[str, ...]) -> Entry:
    """As `decide` where ranks agree: what all of them run is published, and what is found here is proposed.

    Returns what was found, if ``retune``.
    """
    sizes = ctx.sizes()

    def tuned() -> Entry:
        entry, reproducible, _ = _entry(ctx, sizes, True, exhaustive)
        return persist(entry, ctx, instead=retune) if reproducible else entry

    entry, decided = agreed_entry(ctx, ledger, tuned, retune)
    ctx = replace(ctx, key=_key_after(ctx))
    entry = entry.changed(sizes=sizes, key=ctx.key, new_because=new_because)
    ctx.core.table.publish(ctx.key, entry, (ctx.args, ctx.kwargs))
    ctx.core.table.log.decided(entry.choice)
    decided = replace(decided, sizes=sizes, key=ctx.key, new_because=new_because)
    return replace(entry, choice=decided) if retune else entry


def _entry(
    ctx: MissContext, sizes: Mapping[str, int], retune: bool, exhaustive: bool
) -> tuple[Entry, bool, tuple[str, ...]]:
    """Steps 2 to 4: the entry, whether another process need not look for it again, and why a stored row is not used."""
    if not retune and ctx.settings.learn != "now" and (entry := replayed(ctx)) is not None:
        return entry, False, ()
    frozen = ctx.settings.mode in FROZEN_MODES
    # A key that has earned more candidates than it began with is decided anew, and not by what is known of it.
    anew = retune or (not frozen and bool(ctx.core.table.facts.earned.get(ctx.key)))
    entry, unused = (None, ()) if anew else look_up(ctx)
    if entry is None and not retune and frozen:
        entry = without_timing(ctx, sizes, unused)
    if entry is not None:
        return entry, False, unused
    if retune or exhaustive:
        ctx = replace(ctx, settings=replace(ctx.settings, judge="contest"))
    tuned_configs = (
        ctx.core.kernel_store.tuned_configs(ctx.device)
        if ctx.core.kernel_store is not None and ctx.core.backend.searches
        else None
    )
    request = OfferRequest(
        exhaustive=exhaustive, judge=ctx.isolation(), tuned_configs=tuned_configs, untimed=ctx.untimed
    )
    return (*_chosen(ctx, request), unused)


def _chosen(ctx: MissContext, request: OfferRequest) -> tuple[Entry, bool]:
    """The winner of the offer; where that wants a search of configs, of the offer that follows from what it found.

    And whether another process need not look for it again.
    """
    earlier: tuple[Refusal, ...] = ()  # by a search, whose candidates do not come again
    if ctx.later is not None and (begun := _begun(ctx, ctx.later)):
        return _searched(begun.search, lambda: begun.offer, ctx, ctx.later), False
    offer, entry = _decided(ctx, lambda: ctx.offer(request))
    if offer.search is not None and ctx.later is not None and _by_calls(offer.search, ctx):
        all_of_them = partial(offer.search.offer, hold=True)
        return _searched(offer.search.without_call(), all_of_them, ctx, ctx.later), False
    if offer.search is not None:
        with offer.search as search:
            offer, entry = _decided(ctx, search.offer, search.at, at_once=True)
            search.keep(entry.choice)
        if not search.final and entry.choice.origin == "timed":
            earlier = entry.choice.refusals
            offer, entry = _decided(ctx, lambda: ctx.offer(replace(request, search=False)))
    if len(offer.candidates) == 1 and offer.failures and not ctx.awaits_more() and not _is_set_apart(offer, ctx):
        ctx.core.only_plain(offer.failures, ctx)
    _warn_of_mistakes(offer, entry, ctx)
    if ctx.device.type == "cpu":
        ctx.core.table.log.warn_waiting(entry.choice.timings, torch.get_num_threads())
    timed, alone = entry.choice.origin == "timed", len(offer.candidates) == 1
    entry = entry.changed(refusals=tuple(dict.fromkeys((*entry.choice.refusals, *earlier))))
    return entry, timed or (alone and offer.reproducible and entry.choice.origin == "only")


def _is_set_apart(offer: Offer, ctx: MissContext) -> bool:
    """Whether the module that is called has a dispatcher of its own from now on.

    That is where others of its class have what it reads in as many other states as there are builds for. Other ranks
    might not do so.
    """
    core, changed = ctx.core, any(failure.reasons[0].startswith(STATE_CHANGED) for failure in offer.failures)
    return changed and core.set_apart is not None and core.ledger() is None and core.set_apart(ctx.args[0])


def _by_calls(search: Search, ctx: MissContext) -> bool:
    """Whether calls themselves are to show which config is best: those that come, while all of them are held."""
    return search.at is None and search.many <= ctx.settings.max_builds // 2 and ctx.why_not_online() is None


class _Begun(NamedTuple):
    """A search of which all candidates were there at an earlier look: to make the offer again takes longer than some.

    It holds none of the call's arguments.
    """

    search: Search
    offer: Offer
    settings: Resolved

    def holds(self, ctx: MissContext) -> bool:
        """Whether it would be made again as it is: all that was built is held yet, and the settings are the same."""
        builds = [one.build for one in self.offer.candidates if one.build is not None]
        return self.settings == ctx.settings and all(ctx.core.table.build(one) is not None for one in builds)


def _begun(ctx: MissContext, later: Later) -> _Begun | None:
    """What an earlier look at the key has begun, if that holds yet."""
    begun: _Begun | None = later.steps.search
    return begun if begun is not None and begun.holds(ctx) else None


def _searched(search: Search, offered: Callable[[], Offer], ctx: MissContext, later: Later) -> Entry:
    """The entry that learns which config is best; an offer is made of what was found when that is over.

    What waits for it holds no call, and ``search`` holds none. Raises LeftForNext.
    """
    kept_then = ctx.kept

    def offered_once() -> Offer:
        offer = offered()
        later.raise_if_left()  # else all is there
        later.steps.search = _Begun(search, offer, ctx.settings)
        return offer

    def kept(entry: Entry) -> Entry:
        search.keep(entry.choice)
        later.revisit()
        return kept_then(entry)

    _, entry = _decided(replace(ctx, kept=kept), offered_once)
    later.steps.search = None
    if not isinstance(entry.learner, Learning):
        search.keep(entry.choice)
        if entry.choice.origin == "timed":
            later.revisit()
    return entry


def _warn_of_mistakes(offer: Offer, entry: Entry, ctx: MissContext) -> None:
    """Supplied variants that are wrong or raise, and a forced variant that there is not: once each."""
    supplied = {candidate.name for candidate in offer.candidates if candidate.supplied}
    refused = [refusal for refusal in entry.choice.refusals if refusal.variant in supplied]
    wrong = [refusal for refusal in refused if not refusal.reasons[0].startswith(SLOWER)]
    for refusal in (*offer.faults, *wrong):
        ctx.core.table.log.warn_supplied(refusal, ctx.rendered)
    pick, names = ctx.settings.pick, [*(candidate.name for candidate in offer.candidates), *offer.aliases]
    known = {*names, *(refusal.variant for refusal in offer.refusals)}
    # A hint or an exact build may be left out of a call without a word; another hint is a mistake where one is known.
    might_be = pick == "exact" or (str(pick).startswith("hint[") and not any(one.startswith("hint[") for one in known))
    if pick is not None and pick not in known and not might_be:
        ctx.core.table.log.warn_pick(pick, ctx.settings.origin["pick"], names, ctx.rendered)


def _decided(
    ctx: MissContext, offered: Callable[[], Offer], at: Call | None = None, at_once: bool = False
) -> tuple[Offer, Entry]:
    """An offer and its winner, found out at another call where one is given; ``at_once`` where it is needed now."""
    with preserve_state(ctx.args, ctx.kwargs):  # which lets no warning through: not ours, and not the store's
        offer = offered()
        if ctx.later is not None:
            ctx.later.raise_if_left()
        return offer, _winner(offer, ctx if at is None else ctx.at(*at), at_once)


def _winner(offer: Offer, ctx: MissContext, at_once: bool) -> Entry:
    """What is forced, what is left alone, or what is best among those that are right."""
    pick = offer.aliases.get(ctx.settings.pick or "", ctx.settings.pick)
    pinned = next((c for c in offer.candidates if c.name == pick), None)
    if pinned is not None:
        return pinned.wins("pinned", offer)
    if len(offer.candidates) == 1:
        return offer.candidates[0].wins("only", offer)
    trial = ctx.trial(offer)
    untimed = ctx.why_untimed(offer, trial)
    if untimed is None:
        try:
            return _judged(offer, trial, ctx, at_once)
        except EarlierGraph as reason:
            untimed = str(reason)
    kept = () if at_once else ctx.without_copies(offer)
    if not kept:
        return offer.nearest(ctx.sizes(), untimed, ctx.is_right)
    left = [Refusal(one.name, (untimed,)) for one in offer.candidates if one not in kept]
    return learn(replace(offer, candidates=kept, refusals=(*offer.refusals, *left)), trial, ctx, untimed)


def _judged(offer: Offer, trial: Trial, ctx: MissContext, at_once: bool) -> Entry:
    """What learns which is the best, or what is; raises EarlierGraph, and PlainRaised."""
    if not at_once and ctx.why_not_online() is None:
        return learn(offer, trial, ctx)
    decision = choose(offer.candidates, trial, ctx.rules(trial))
    ctx.core.table.count("timings")
    notes = () if decision.undecided is None else (f"{UNDECIDED}{decision.undecided}",)
    return decision.winner.wins("timed", offer, decision.timings, decision.refusals, notes)


def _key_after(ctx: MissContext) -> Key:
    """The key again: where the offer has shown that something is written, it holds which arguments overlap."""
    again = ctx.core.backend.key(ctx.args, ctx.kwargs)
    if len(again) != len(ctx.key):
        ctx.core.table.forget_choices()
    return again


def why_undecided(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why nothing can be decided now; a call that needs gradients waits for what another thread decides."""
    if tuning_lock.owned():
        return "another call of this thread is being decided"
    needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors((args, kwargs)))
    return "another thread is deciding" if not needs_grad and tuning_lock.locked() else None
