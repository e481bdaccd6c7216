"""Learning that stops no call: a key runs the best that is known, and what its calls take decides what is made for it.

What is worth making says `background/account.py`. What has been built is judged in the next call, as any other is.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch

from ..autotune.choose import PlainRaised
from ..background import exit_notes, imports
from ..background.account import Account, Allowance, LeftForNext, Steps
from ..choices.between import meanwhile
from ..choices.context import DispatcherParts, MissContext, capturing
from ..choices.known_choices import why_again
from ..choices.neighbours import Neighbours, remember
from ..errors import where_raised
from ..hit.native import tell_news, timed_calls
from ..hit.table import Entry
from ..hit.turns import TimedCalls
from ..interpreter.collector import no_collections
from ..interpreter.failures import what_fails
from ..keys.key import Bypass, Key
from ..private import why_off
from ..records import Choice, awaits_more
from ..shapes.dims import DimsMismatch
from .at_sight import at_sight, like_others
from .miss import decide, tuning_lock

__all__ = [
    "LEARNED",
    "Waiting",
    "account_of",
    "allowance_of",
    "at_once",
    "begun",
    "published",
    "remembered",
    "waiting_keys",
]

LEARNED = "learning in the background"
"""Why a key is a miss that waits."""
OFFERS = 8
"""How many times what a look takes must have been spent since the last: at its key, or by a class that pays it."""
POLL_AFTER_S = 0.001
"""How much is spent at a key before it is asked again whether a look is due: that takes microseconds."""
RESTS = 16
"""How many times as long as a look calls are left alone after it: many keys may have news at once, of one build."""


@dataclass(slots=True, eq=False)
class Waiting:
    """What a key runs meanwhile: ``run``, whose calls are timed by the host's clock."""

    core: DispatcherParts
    key: Key
    account: Account
    run: Callable[..., Any]
    device: torch.device
    now: Entry | None = None
    """The entry that it runs, where that is more than plain."""
    spent_s: float = 0.0
    in_all_s: Callable[[float], float] = float
    """What the next call counts as of its class, by what it takes: others may have passed before it."""
    next_s: float = math.inf
    seen_s: float | None = None
    """What had been spent here when it was last looked at; None before."""
    polls_s: float = 0.0
    """What is spent here when it is asked again whether a look is due, unless there is news."""
    news: int = 0
    chosen: int = 0
    """At how many keys of its class something but plain had been chosen when that was last looked for."""
    known: bool = False
    """Whether its choice is known, and only the build is missing: that needs not be earned."""
    forced: bool = False
    """Whether all that may be made for it is wanted, earned or not."""
    unfinished: bool = False
    """Whether the last look has left something for the next."""
    short: bool = False
    """Whether it has left something out for want of worth: what others leave out says nothing of that."""
    failed: str = ""
    steps: Steps = field(default_factory=Steps)
    clock_s: Callable[[], float] = time.perf_counter
    calls: TimedCalls | None = field(default=None, init=False)
    """What runs its calls in C until it is asked again whether a look is due."""
    judges: ClassVar[bool] = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call once, having looked first whether there is something better for it, if that is due."""
        self._note_calls()
        run, began_s = self._run_of(args, kwargs), self.clock_s()
        try:
            return run(*args, **kwargs)
        finally:
            self._spent(self.clock_s() - began_s)
            if self.calls is not None:
                self.calls.begin(self.polls_s - self.spent_s)

    def _note_calls(self) -> None:
        """Take in what calls in C have taken, and have the next one come to Python."""
        if self.calls is not None and (took_s := self.calls.collect()):
            self._spent(took_s)

    def _spent(self, took_s: float) -> None:
        self.spent_s += took_s
        self.account.spent_s, self.in_all_s = self.account.spent_s + self.in_all_s(took_s), float

    def _run_of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What runs the call, having looked if that is due."""
        no_poll = self.spent_s < self.polls_s and self.account.news == self.news
        return self.run if no_poll else self._looked_for(args, kwargs)

    def force(self) -> None:
        """Have all that may be made for it wanted, by the next call at the latest."""
        self.forced, self.polls_s = True, 0.0
        self._note_calls()

    def _looked_for(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What runs the call, having looked; where nothing was due, calls are left alone for a while."""
        orders = self.core.orders()
        if orders.unable and not tuning_lock.owned():
            return self._decided_now
        run = self.run if self._nothing_is_new() and orders.idle() else self._best_known(args, kwargs)
        if run is self.run and not self.unfinished:
            self.leave_alone()
        return run

    def leave_alone(self) -> None:
        """Ask for no look before some time was spent here, unless there is news."""
        self.polls_s = self.spent_s + POLL_AFTER_S

    def _decided_now(self, /, *args: Any, **kwargs: Any) -> Any:
        """As where nothing is learned in the background: no process can be started that would build."""
        for entry in self.core.table.peek(self.key):
            if entry.learner is self:
                self.core.table.replace(self.key, entry, None)
        return self.core.miss(self.key, args, kwargs)

    def _nothing_is_new(self) -> bool:
        """Whether no look is due and none can become it by what has been built: asked at each call, and so at once."""
        account = self.account
        return not (
            self.known
            or self.forced
            or self.unfinished
            or account.news != self.news
            or self.spent_s >= self.next_s
            or (account.spent_s >= account.next_s and (account.short or self.short))
            or self._first_look_shows_something()
            or self._others_tell()
        )

    def _due(self) -> bool:
        account, orders = self.account, self.core.orders()
        if self.failed:
            return False
        orders.poll()
        if self.forced and _ready(self.core):
            return True
        if orders.resting() and not self.known:
            return False
        earned = (account.short or self.short) and account.spent_s >= account.next_s and _ready(self.core)
        if self.unfinished or earned:
            return True
        if self.known:
            return account.news != self.news or (self.seen_s is None and _ready(self.core))
        news = account.news != self.news or self.spent_s >= self.next_s or self._first_look_shows_something()
        worth_s = OFFERS * orders.costs.offer_s * self.core.earn()
        return news and (self.spent_s - (self.seen_s or 0.0) >= worth_s or account.pays_offer(worth_s))

    def _first_look_shows_something(self) -> bool:
        """Whether there is more to see for a key that was not looked at than that builds of its class are awaited."""
        account, orders = self.account, self.core.orders()
        if self.seen_s is not None or not account.seen:
            return False
        return not account.waits or account.news > 0 or self.spent_s >= orders.costs.build_s() * self.core.earn()

    def _others_tell(self) -> bool:
        """Whether twice as many keys as before have chosen, or all is there: to ask takes as long as a small call."""
        asks = self.account.chosen > 2 * self.chosen or self.account.asks
        return asks and self.now is None and not self.known and not self.failed

    def _best_known(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any]:
        """What runs the call, after a look at what there is if one is due; what fails in here is no business of it."""
        try:
            due = self._due()
            if not (due or self._others_tell()):
                return self.run
            with tuning_lock.if_free() as free:
                if free and not self.core.frozen:
                    tuning_lock.note_owner()
                    return take_over(self, args, kwargs) or (due and decide_again(self, args, kwargs)) or self.run
        except (Bypass, PlainRaised) as reason:
            self.failed = str(reason)
        except Warning:  # that its user has made an error
            raise
        except what_fails() as error:  # the one boundary, as in `dispatcher`: the reason is kept
            self.failed = where_raised(error)
            self.core.table.log.warn_failed("deciding", self.failed)
        return self.run

    def choice(self, begun: Choice) -> Choice:
        """See `turns.Learner`."""
        choice = begun if self.now is None else self.now.now()
        spent = f"{self.account.spent_s:.3g} s were spent on such calls, {self.spent_s:.3g} s of them here"
        short = self.account.short or self.short
        worth = f"; a build is ordered at {self.account.next_s:.3g} s" if short and not self.failed else ""
        why = (f"nothing more is made for it: {self.failed}",) if self.failed else ()
        return replace(choice, notes=(*choice.notes, spent + worth, *why))

    def at_hits(self) -> Callable[..., Any]:
        """What runs its hits."""
        self.calls = timed_calls(self.run, self) if self.core.fast_path is not None else None
        return self.calls or self

    def pinned(self, begun: Choice) -> Entry:
        """See `turns.Learner`."""
        if self.now is None:
            return Entry(self.run, None, self.choice(begun), any_state=True)
        return self.now if self.now.learner is None else self.now.learner.pinned(self.now.choice)


def _ready(core: DispatcherParts) -> bool:
    """Whether what a call must do for a build can be done: a kernel's compiler is there with the kernel."""
    return core.backend.searches or imports.compiler.ready()


def at_once(core: DispatcherParts, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
    """The entry that runs plain, and notes what that takes, where calls of this dispatcher are not decided now."""
    try:
        family, varies_more, _ = core.backend.observed(args, kwargs, key, core.table)
        account = account_of(core, family)
        near = Neighbours.of(ctx := core.ctx(key, args, kwargs), so_far=True)
    except DimsMismatch as misfit:
        raise Bypass(str(misfit)) from None
    account.short |= varies_more  # there are hints to build for, then
    known, spent_s = remembered(ctx)
    account.spent_s, account.noted_s = account.spent_s + spent_s, account.noted_s + spent_s
    if account.whole and not known:
        began_s = time.perf_counter()
        if entry := at_sight(_online(ctx)):
            return entry
        account.asked_in_vain(time.perf_counter() - began_s)
    waiting = Waiting(core, key, account, core.backend.plain, ctx.device, spent_s=spent_s, news=account.news)
    waiting.known, waiting.chosen = known, account.chosen
    entry = begun(waiting, near.sizes)
    there = None if known or capturing(ctx.device) else meanwhile(ctx, near)
    entry = entry if there is None else _goes_on(there, waiting)
    core.table.count("misses", LEARNED)
    core.table.publish(key, entry)
    return entry


def begun(waiting: Waiting, sizes: Mapping[str, int]) -> Entry:
    """The entry of a key at which nothing is known yet."""
    choice = Choice("plain", "learning", sizes, waiting.key)
    return Entry(waiting.at_hits(), None, choice, any_state=True, learner=waiting)


def _online(ctx: MissContext) -> MissContext:
    """The call, judged on such calls: a contest would stop it."""
    return replace(ctx, settings=replace(ctx.settings, judge="online"))


def _goes_on(entry: Entry, waiting: Waiting) -> Entry:
    """The entry, whose calls are noted: it may be bettered yet."""
    assert entry.run is not None
    waiting = replace(waiting, run=entry.run, now=entry)
    return replace(entry, run=waiting.at_hits(), learner=waiting)


def take_over(waiting: Waiting, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """What runs the key from now on, by what other keys have come to; None where nothing has, or that is no matter."""
    began_s = waiting.clock_s()
    run = _of_others(waiting, args, kwargs)
    if run is None and waiting.account.whole:
        waiting.account.asked_in_vain(waiting.clock_s() - began_s)
    return run


def _of_others(waiting: Waiting, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    core, account = waiting.core, waiting.account
    ctx = core.ctx(waiting.key, args, kwargs)
    before = next((one for one in core.table.peek(waiting.key) if one.learner is waiting), None)
    if before is None or waiting.known or waiting.forced or capturing(ctx.device):
        return None
    entry, ended = like_others(_online(ctx)) if account.whole else None, True
    if entry is None and waiting.now is None:
        entry, ended = meanwhile(ctx, Neighbours.of(ctx, so_far=True)), False
    waiting.chosen = account.chosen
    if entry is None or entry.run is None:
        return None
    core.table.replace(waiting.key, before, entry if ended else _goes_on(entry, waiting))
    return entry.run


def remembered(ctx: MissContext) -> tuple[bool, float]:
    """Whether a choice for the call is stored, and would be taken; else what earlier processes have spent there."""
    stored = ctx.core.kernel_store
    found = stored.find(ctx.key, ctx.device) if stored is not None else None
    if stored is None or (found is not None and not why_again(found, _online(ctx))):
        return found is not None, 0.0
    exit_notes.note_of(ctx.core, waiting_keys)
    return False, stored.spent_s(ctx.key, ctx.device)


def account_of(core: DispatcherParts, family: Any) -> Account:
    """That of a class of calls."""
    found: Account | None = core.table.facts.accounts.get(family)
    if found is None:
        found = core.table.facts.accounts[family] = Account(
            next_s=core.orders().costs.build_s() * core.earn(), tell=tell_news
        )
    return found


def allowance_of(waiting: Waiting, device: torch.device, may_begin: bool, exact: bool) -> Allowance:
    """What a look at a call of that key may order."""
    core, account, orders = waiting.core, waiting.account, waiting.core.orders()
    kept = core.kernel_store.kept_builds(device) if core.kernel_store is not None else None
    in_steps = orders.paced and not (waiting.known or waiting.forced)
    may = (may_begin, exact, core.earn())
    return Allowance(core.table.log, orders, account, *may, kept, in_steps, steps=waiting.steps)


def decide_again(waiting: Waiting, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[..., Any] | None:
    """Decide the call with what is there, and order what is worth it; what runs it now, or None as before."""
    core, account = waiting.core, waiting.account
    ctx = core.ctx(waiting.key, args, kwargs)
    if capturing(ctx.device):
        return None
    if why := not core.backend.searches and why_off("builds elsewhere"):
        raise Bypass(why)
    worth = waiting.forced or (waiting.known and waiting.seen_s is None) or account.spent_s >= account.next_s
    waiting.news, waiting.seen_s = account.news, waiting.spent_s
    account.offers_one(waiting.unfinished)
    exact = waiting.known or waiting.forced or waiting.spent_s >= core.orders().costs.build_s() * core.earn()
    may_begin = worth and _ready(core)
    allowance = allowance_of(waiting, ctx.device, may_begin, exact)
    began_s, entry = time.perf_counter(), None
    with no_collections(stays=True), contextlib.suppress(LeftForNext):
        kept = functools.partial(published, waiting, allowance)
        superseded = functools.partial(allowance.has_news, account.news)
        again = waiting.now is not None and not waiting.known
        looked = replace(_online(ctx), later=allowance, kept=kept, superseded=superseded, again=again)
        entry = decide(looked, missed=False)
    _looked(waiting, allowance, entry is None, time.perf_counter() - began_s)
    if entry is None:
        return None
    before = next((one for one in core.table.peek(waiting.key) if one.learner is waiting), None)
    if before is not None:
        core.table.replace(waiting.key, before, None)
    allowance.tell()  # when everything is in order: a warning may be an error
    return entry.learner.run if isinstance(entry.learner, Waiting) else entry.run


def published(before: Waiting, allowance: Allowance, entry: Entry) -> Entry:
    """What is published of an entry: itself, or one that runs it and waits, where it may be bettered yet."""
    before.account.chosen += int(entry.choice.variant != "plain")  # which others run as it is
    begins = awaits_more(entry.choice) and entry.choice.origin == "stored"  # as an earlier process has ended
    if not (allowance.goes_on() or begins) or entry.run is None:
        return entry
    key = entry.choice.key or before.key  # in another form, once it is known that something is written
    remember(before.core, key, entry.choice, so_far=True)
    forced, exact_short = before.forced and allowance.short, allowance.exact_short or begins
    next_s = allowance.orders.costs.build_s() * before.core.earn() if exact_short else math.inf
    known, short, left = before.known and not begins, allowance.short, allowance.left
    if entry.choice.origin == "only":
        entry = entry.changed(origin="learning")
    waiting = replace(before, key=key, next_s=next_s, known=known, forced=forced, short=short, unfinished=left)
    return _goes_on(entry, waiting)


def _looked(waiting: Waiting, allowance: Allowance, left: bool, took_s: float) -> None:
    """Note what a look has come to: nothing is decided where something is ``left`` for the next."""
    account, orders = waiting.account, waiting.core.orders()
    account.short, account.waits = allowance.short, left or bool(allowance.waits)
    waiting.forced, waiting.unfinished, waiting.short = waiting.forced and allowance.short, left, allowance.short
    if not allowance.began:
        orders.costs.note(offer_s=took_s - sum(each_s for _, each_s in allowance.did))
    orders.worked(took_s if allowance.did else RESTS * took_s)
    waiting.core.table.log.looked(took_s, allowance.did)


def waiting_keys(core: DispatcherParts) -> list[tuple[Any, Waiting]]:
    """The keys that may get more than they have."""
    waiting = [(key, one.learner) for key, one in core.table.entries() if isinstance(one.learner, Waiting)]
    return [(key, one) for key, one in waiting if not one.failed]
