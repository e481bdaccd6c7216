"""What stands behind a dispatcher: the hit path, the miss path, and what a user may ask.

A hit: key, table, the build's remaining guards, launch. A miss is `Core.decide`. Deleting the table would change how
long a call takes and nothing else.
"""

from __future__ import annotations

import functools
import itertools
import sys
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from . import hotpath, profiling
from .backends import Backend, Candidate, Offer, Search, Wish
from .choose import PlainRaised, Rules, all_refused, choose, refusal
from .copies import untouched
from .dims import Misfit, distance
from .errors import MissError, NoVariantError, four_parts, render_call
from .fingerprint import code_identity
from .journal import Journal
from .keys import Bypass, Key, safe_key, tensors
from .objectives import Objective
from .records import CacheInfo, Choice, Origin, Refusal, Timing, choices_html
from .settings import Resolved
from .shelf import Shelf, store_at
from .store import Found
from .table import Entry, Table, deciding
from .timing import CudaStopwatch, GraphStopwatch, HostStopwatch, Stopwatch
from .trial import Trial
from .worker import Worker, address, shared

__all__ = ["Core"]

FROZEN_MODES = ("frozen", "sealed")
"""Modes in which a call never times anything."""
_DECIDED = ("timed", "stored", "shipped", "only")
_OF_THIS_CALL = ("timed", "only", "pinned", "nearest")
"""Origins of choices whose variant has been judged in this process, or is what the user forces."""
_STORED_WHERE = "stored where "
_PACKAGE = __name__.partition(".")[0]
_NEAREST_AMONG = 64
"""How many of the newest keys a new one is compared with, to say what is new about it."""
_VARIANT_KEYS = 64
"""How many keys a callable of one variant remembers its candidate for."""


class Core:
    """What stands behind one dispatcher: its backend, its settings and its table."""

    def __init__(
        self,
        backend: Backend,
        resolve: Callable[[], Resolved],
        inputs: Callable[..., Any] | None = None,
        stopwatch_for: Callable[[torch.device, str], Stopwatch] | None = None,
        objective: Objective = "time",
    ) -> None:
        self.backend = backend
        self.plain = backend.plain
        self._resolve = resolve
        self.inputs = inputs
        self._stopwatch_for = stopwatch_for or _stopwatch
        self._objective = objective
        self.worker: Callable[[], Worker] = shared
        self._warned: set[str] = set()
        self.road: hotpath.Road | None = None
        self.settings = resolve()
        self.journal = Journal(backend.name)
        self.table = Table(self.settings.maxsize, self.settings.max_builds, self.journal)
        store = store_at(self.settings.store)
        self._shelf = Shelf(store, backend.name, self.identity) if store is not None else None
        self.refresh()
        self._take_road()

    def refresh(self) -> None:
        """Read the settings again, after `set_mode`."""
        before, self.settings = self.settings, self._resolve()
        if (self.settings.mode, self.settings.on_miss) != (before.mode, before.on_miss):
            self.table.forget(_of_its_mode)
        self.table.seal(self.settings.mode == "sealed")
        self.off = self.settings.mode == "off"
        if self.road is not None:
            self.road.off = self.off

    def identity(self) -> Mapping[str, str]:
        """What a stored choice depends on besides the key and the machine; the usual objective goes without saying."""
        objective = {} if self._objective == "time" else {"objective": code_identity(self._objective)}
        return {**self.backend.identity(), **objective}

    def _take_road(self) -> None:
        """Let C answer hits, where it is in use and makes such keys as the backend does: those that have a form."""
        self._form: Callable[[], tuple[bool, bool]] | None = getattr(self.backend, "form", None)
        if self._form is None:
            return
        self.road = hotpath.road(self.call, self.plain, self._form()[0])
        if self.road is not None:
            self.road.off = self.off
            self.table.attach(self.road)

    # -- the call

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], link: Any = None) -> Any:
        """Run the variant for this call in normal form; with a ``link``, the C road has asked, see `Table.link`."""
        if self.off:
            return self.plain(*args, **kwargs)
        try:
            key = self.backend.key(args, kwargs)
        except Bypass as reason:
            return self.bypass(str(reason), args, kwargs)
        entry = self.table.find(key, args, kwargs)
        if entry is None:
            return self.miss(key, args, kwargs)
        if link is not None and self._form is not None:
            self.table.link(link, key, args, kwargs, self._form()[1])
        return self.run(entry, args, kwargs)

    def run(self, entry: Entry, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run what was chosen. What a build raises that writes nothing, plain answers: its error is the answer."""
        run = entry.run
        if run is None:  # another thread let the build go between finding the entry and this line
            return self.plain(*args, **kwargs)
        if profiling.state._is_profiler_enabled:
            run = profiling.labelled(f"{self.backend.name}: {entry.choice.variant}", run)
        try:
            return run(*args, **kwargs)
        except Exception:  # the boundary where a build is judged: plain gives the answer, or the error
            if not entry.retry:
                raise
            return self.plain(*args, **kwargs)

    def bypass(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain, and count why."""
        self.table.count("bypasses", reason)
        return self.plain(*args, **kwargs)

    def _meanwhile(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run plain while something is being decided, and count why; a kernel as written would be timed then."""
        self.table.count("bypasses", reason)
        return getattr(self.backend, "first", self.plain)(*args, **kwargs)

    def miss(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Decide for a key without a choice, then run the winner once on the caller's arguments."""
        if deciding.mine():
            return self._meanwhile("another call of this thread is being decided", args, kwargs)
        needs_grad = torch.is_grad_enabled() and any(t.requires_grad for t in tensors((args, kwargs)))
        if not needs_grad and deciding.taken():
            return self._meanwhile("another thread is deciding", args, kwargs)
        entry, why = None, ""
        with deciding.turn():
            deciding.hold()
            try:
                entry = self.table.find(key, args, kwargs) or self.decide(key, args, kwargs)
            except PlainRaised:
                why = "the function raised"  # on copies; now on the caller's arguments, as it would have
            except Bypass as reason:
                why = str(reason)
                self._warn_once(why, args, kwargs)
        # Here and not above: the function runs under no lock, and what it raises has no context but its own.
        return self.bypass(why, args, kwargs) if entry is None else self.run(entry, args, kwargs)

    # -- the miss path

    def decide(
        self,
        key: Key,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        afresh: bool = False,
        exhaustive: bool = False,
    ) -> Entry:
        """Recall or choose, and remember; called with `deciding` held. Raises Bypass, MissError.

        1. the sizes, which may not fit the declaration; 2. what is known already: a choice whose build was lost, a
        stored one, that of the call's bucket (not if ``afresh``); 3. in a frozen mode, what to do without;
        4. otherwise offer, check, time, decide; 5. store what was timed, and publish. While a CUDA graph is being
        captured nothing is made, timed or remembered.
        """
        try:
            sizes = self.backend.sizes(args, kwargs)
        except Misfit as misfit:
            raise Bypass(str(misfit)) from None
        new_because = self._new_because(key)
        self.table.count("misses", ", ".join(new_because) or "the first call")
        if capturing(_device(args, kwargs)):
            offer = self.backend.offer(args, kwargs, key, self.table, Wish(build=False))
            return self._nearest(offer, "a CUDA graph is being captured", args, kwargs)
        entry, unused = (None, ()) if afresh else self._known(key, args, kwargs)
        lasting = False
        if entry is None and not afresh and self.settings.mode in FROZEN_MODES:
            entry = self._without_timing(key, sizes, args, kwargs, unused)
        if entry is None:
            shelf = self._shelf if self.backend.searches else None
            finds = shelf.finds(_device(args, kwargs)) if shelf is not None else None
            wish = Wish(exhaustive=exhaustive, judge=self._judge(key, args, kwargs), finds=finds)
            entry, lasting = self._chosen(key, args, kwargs, wish)
        key = self._key_after(key, args, kwargs)
        if lasting:
            entry = self._kept(entry, key, args, kwargs, instead=afresh or bool(unused))
        notes = (*entry.choice.notes, *unused)
        entry = replace_choice(entry, sizes=sizes, key=key, new_because=new_because, notes=notes)
        self.table.publish(key, entry)
        self.journal.decided(entry.choice)
        choice = entry.choice
        if choice.origin in ("timed", "stored", "shipped") and self.settings.buckets:
            self.table.remember(self._bucket(key, args, kwargs), (choice.variant, choice.config, _at(sizes)))
        return entry

    def _chosen(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], wish: Wish) -> tuple[Entry, bool]:
        """The winner of the offer; where that is a search of configs, of the offer that follows from what it found.

        And whether another process need not look for it again.
        """
        while True:
            with untouched(args, kwargs):  # which lets no warning through: not ours, and not the store's
                offer = self.backend.offer(args, kwargs, key, self.table, wish)
                at = offer.at if isinstance(offer, Search) else None
                entry = self._winner(offer, *(at or (args, kwargs)))
            if isinstance(offer, Search) and offer.found is not None:
                offer.found(entry.choice)
                if not offer.final and entry.choice.origin == "timed":
                    continue
            self._warn_of_failures(offer, args, kwargs)
            timed, alone = entry.choice.origin == "timed", len(offer.candidates) == 1
            return entry, timed or (alone and offer.lasting and entry.choice.origin == "only")

    # -- what is known without timing

    def _known(
        self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Entry | None, tuple[str, ...]]:
        """The entry of a choice whose build had left, of a stored choice or of the bucket's; and why a row is not used.

        A variant that is forced by a setting is none of these, and has no need to be timed.
        """
        lost = next((entry.choice for entry in self.table.peek(key) if entry.lost()), None)
        if lost is not None:
            return self._only(lost, key, args, kwargs), ()
        if self.settings.pick is not None:
            frozen = self.settings.mode in FROZEN_MODES
            return (self._only(Choice(self.settings.pick, "pinned"), key, args, kwargs) if frozen else None), ()
        entry, unused = self._recalled(key, args, kwargs)
        return entry or self._of_bucket(key, args, kwargs), unused

    def _recalled(
        self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Entry | None, tuple[str, ...]]:
        """The entry of the stored choice, which is judged like any candidate; or None, and why a row is not used."""
        found = self._shelf.find(key, _device(args, kwargs)) if self._shelf is not None else None
        if found is None:
            return None, ()
        if found.soft_differences and self.settings.mode not in FROZEN_MODES:
            why = "; ".join(found.soft_differences)
            return None, (f"{found.row.variant} was stored, and timed again: {why}",)
        entry = self._only(_stored(found), key, args, kwargs)
        return entry, () if entry else (f"{found.row.variant} was stored, and cannot be used for this call",)

    def _kept(self, entry: Entry, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], instead: bool) -> Entry:
        """The entry, stored; or that of the choice which another process stored meanwhile, if not ``instead``."""
        if self._shelf is None:
            return entry
        row = self._shelf.keep(key, _device(args, kwargs), entry.choice, instead)
        if row is None or row.variant == entry.choice.variant:
            return entry
        return self._only(_stored(Found(row, "stored")), key, args, kwargs) or entry

    def _bucket(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        """The name of the fact that is a bucket's choice."""
        return ("bucket", self.backend.bucket(args, kwargs, key, self.settings.buckets))

    def _of_bucket(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry | None:
        """The variant that was chosen for another call of this one's bucket, judged for this call but not timed."""
        known = self.table.recall(self._bucket(key, args, kwargs)) if self.settings.buckets else None
        if known is None:
            return None
        variant, config, where = known
        shared = Choice(variant, "bucket", config=config, notes=(f"chosen at {where}, in the same bucket",))
        return self._only(shared, key, args, kwargs)

    def _only(
        self, choice: Choice, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], build: bool = True
    ) -> Entry | None:
        """An entry for a choice made before; None where its variant is gone, cannot run this call or is wrong."""
        judge = self._judge(key, args, kwargs)
        wish = Wish(choice.variant, build and self.settings.mode != "sealed", choice.config, judge=judge)
        with untouched(args, kwargs):
            offer = self.backend.offer(args, kwargs, key, self.table, wish)
            candidate = next((c for c in offer.candidates if c.name == choice.variant), None)
            if candidate is None:
                return None
            if choice.origin not in _OF_THIS_CALL and not self._sound(candidate, offer, args, kwargs):
                return None
        return _entry(candidate, replace(choice, route=candidate.route, config=candidate.config), offer)

    def _sound(self, candidate: Candidate, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Whether a variant that was chosen for another call or elsewhere gives plain's numbers.

        A build is looked at once for its class, a supplied variant at each key: nothing is known of its classes. Where
        nothing may be run to see, a build is trusted as the nearest hint's would be, and what a user wrote is not.
        """
        fact = ("sound", candidate.build)
        if candidate is offer.candidates[0] or (candidate.build is not None and self.table.recall(fact)):
            return True
        trial = self._trial(offer, args, kwargs)
        if self._why_untimed(offer, trial):
            return offer.untimed is None and not candidate.supplied
        # Nothing is timed: the maker of stopwatches, whose may take memory, is not asked.
        if refusal(candidate, offer.candidates[0], trial, Rules(HostStopwatch(), tolerance=self.settings.check)):
            return False
        if candidate.build is not None:
            self.table.remember(fact, True)
        return True

    def _without_timing(
        self,
        key: Key,
        sizes: Mapping[str, int],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        unused: Sequence[str],
    ) -> Entry:
        """An unknown shape in a frozen mode: what ``on_miss`` says; the key is noted, to be tuned later.

        ``unused`` says why the row that is stored for it is not used.
        """
        if self._shelf is not None and not unused:
            self._shelf.missed(key, _device(args, kwargs))
        if self.settings.on_miss == "error":
            raise MissError(self._missing(sizes, args, kwargs, unused))
        why = f"the mode is {self.settings.mode}"
        if self.settings.on_miss == "nearest":
            return self._near(key, sizes, args, kwargs, why) or self._nearest_held(key, args, kwargs, why)
        if not self.backend.searches:
            return Entry(self.plain, None, Choice("plain", "nearest", notes=(f"not timed: {why}",)))
        with untouched(args, kwargs):  # plain as written would time: of its configs the first runs, loaded if sealed
            wish = Wish("plain", build=self.settings.mode != "sealed")
            offer = self.backend.offer(args, kwargs, key, self.table, wish)
        entry = _decided(offer.candidates[0], "nearest", offer)
        return replace_choice(entry, notes=(*entry.choice.notes, f"not timed: {why}"))

    def _near(
        self, key: Key, sizes: Mapping[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any], why: str
    ) -> Entry | None:
        """What was chosen for the call nearest to this one that can run it: stored, else in this process."""
        found = self._shelf.nearest(key, _device(args, kwargs)) if self._shelf is not None else None
        here = self._nearest_known(sizes)
        nearest = [_stored(found)] if found is not None else []
        for near in [*nearest, *([here] if here is not None and here.variant != "exact" else [])]:
            entry = self._only(near, key, args, kwargs)
            if entry is not None:
                where = f"chosen at {_at(near.sizes)}" if near.sizes else "stored for the call nearest to this one"
                notes = (where, *near.notes, f"not timed: {why}")
                return replace_choice(entry, origin="nearest", timings=(), notes=notes)
        return None

    def _nearest_held(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any], why: str) -> Entry:
        with untouched(args, kwargs):
            offer = self.backend.offer(args, kwargs, key, self.table, Wish(build=False))
        return replace_choice(self._nearest(offer, why, args, kwargs), origin="nearest")

    def _nearest_known(self, sizes: Mapping[str, int]) -> Choice | None:
        """The timed or stored choice of this process nearest to these sizes by log distance."""
        known = [c for c in self.choices() if c.origin in _DECIDED and c.sizes.keys() == sizes.keys()]
        return min(known, key=lambda choice: distance(sizes, choice.sizes), default=None)

    def _missing(
        self, sizes: Mapping[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any], unused: Sequence[str]
    ) -> str:
        near = self._nearest_known(sizes)
        known = f"the nearest known is {near.variant} at {_at(near.sizes)}" if near else "no shape is known"
        change = f"Before the mode is set: `{self.backend.name}.tune(...)` with this call, or `prepare` with its sizes."
        tried = f"no choice is known for this call, and the mode is {self.settings.mode}:"
        return four_parts(self._rendered(args, kwargs), tried, [known, *unused], change)

    def _key_after(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Key:
        """The key again: where the offer has shown that something is written, it holds which arguments overlap."""
        again = self.backend.key(args, kwargs)
        if len(again) != len(key):
            self.table.forget_choices()
        return again

    def _winner(self, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
        pick = offer.aliases.get(self.settings.pick or "", self.settings.pick)
        pinned = next((c for c in offer.candidates if c.name == pick), None)
        if pinned is not None:
            return _decided(pinned, "pinned", offer)
        if len(offer.candidates) == 1:
            return _decided(offer.candidates[0], "only", offer)
        trial = self._trial(offer, args, kwargs)
        untimed = self._why_untimed(offer, trial)
        if untimed:
            return self._nearest(offer, untimed, args, kwargs)
        decision = choose(offer.candidates, trial, self._rules(trial))
        self.table.count("timings")
        return _decided(decision.winner, "timed", offer, decision.timings, decision.refusals)

    def _trial(self, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Trial:
        grad = torch.is_grad_enabled() and any(t.requires_grad for t in _all_tensors(args, kwargs))
        # A supplied variant that writes what plain does not is to be found out on copies.
        written = None if any(candidate.supplied for candidate in offer.candidates) else offer.written
        return Trial(args, kwargs, tuple(self.backend.arguments(args, kwargs)), written, grad)

    def _why_untimed(self, offer: Offer, trial: Trial) -> str | None:
        if offer.untimed:
            return offer.untimed
        if torch.are_deterministic_algorithms_enabled():
            return "deterministic algorithms are asked for, and timing is not deterministic"
        return trial.hooked() or trial.memory_refusal(self.settings.copy_limit)

    def _nearest(self, offer: Offer, why: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Entry:
        """Without timing: the nearest hint's build, if it may be used at all; else plain."""
        hinted = [c for c in offer.candidates if c.point] if offer.untimed is None else []
        sizes = self.backend.sizes(args, kwargs)
        named = [c for c in hinted if c.point is not None and c.point.keys() <= sizes.keys()]
        winner = min(named, key=lambda c: distance(sizes, c.point or {}), default=offer.candidates[0])
        entry = _decided(winner, "nearest" if winner.point else "only", offer)
        return replace_choice(entry, notes=(*entry.choice.notes, f"not timed: {why}"))

    def _judge(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[str], str | None] | None:
        """With ``isolate``: what tries a variant in a worker first. One that took the worker with it is not tried anew.

        What has no address in a module cannot be tried and is refused: nothing runs here that did not survive there.
        """
        if not self.settings.isolate:
            return None
        where = address(self.plain, self)

        def judge(variant: str) -> str | None:
            if isinstance(where, str):
                return where
            for fact in (("deadly", variant), ("tried", variant, key)):
                known = self.table.recall(fact)
                if known is not None:
                    return known or None
            names = tuple(self.backend.arguments(args, kwargs))
            reason, deadly = self.worker().why_not(where, variant, args, kwargs, names, self.settings.copy_limit)
            self.table.remember(("deadly", variant) if deadly else ("tried", variant, key), reason or "")
            return reason

        return judge

    def _rules(self, trial: Trial) -> Rules:
        settings = self.settings
        return Rules(
            self._stopwatch_for(trial.device, settings.regime),
            settings.budget_ms,
            settings.margin,
            settings.check,
            self._objective,
        )

    # -- what a user may ask

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """See `dispatcher.Dispatcher.explain`."""
        try:
            args, kwargs = self.backend.normal(args, kwargs)
            key = self.backend.key(args, kwargs)
            sizes = self.backend.sizes(args, kwargs)
        except (Bypass, Misfit) as reason:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(str(reason),))
        for entry in self.table.peek(key):
            if entry.lost() or entry.check is None or entry.check(args, kwargs):
                return entry.choice
        why = self._shelf.why(key, _device(args, kwargs)) if self._shelf is not None else ()
        return Choice("plain", "unseen", sizes, key, new_because=self._new_because(key), notes=why)

    def tune(self, *args: Any, exhaustive: bool = False, **kwargs: Any) -> Choice:
        """See `dispatcher.Dispatcher.tune`."""
        args, kwargs = self.backend.normal(args, kwargs)
        try:
            key = self.backend.key(args, kwargs)
            with deciding.turn():
                deciding.hold()
                return self.decide(key, args, kwargs, afresh=True, exhaustive=exhaustive).choice
        except PlainRaised as reason:
            raise (reason.__cause__ or reason) from None
        except Bypass as reason:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(str(reason),))

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> list[Choice]:
        """See `dispatcher.Dispatcher.prepare`."""
        chosen = []
        for point in _points(sizes):
            call_args, call_kwargs = self._call_at(point, args, kwargs)
            chosen.append(self.tune(*call_args, **call_kwargs))
        return chosen

    def _call_at(
        self, point: Mapping[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if not args and not kwargs and self.inputs is not None:
            return self.inputs(point, None)  # type: ignore[no-any-return]  # the user's own function
        args, kwargs = self.backend.normal(args, kwargs)
        return self.backend.resized(args, kwargs, point)

    def variant(self, name: str) -> Callable[..., Any]:
        """See `dispatcher.Dispatcher.variant`."""
        found: dict[Key, Candidate] = {}  # goes with the callable, which keeps the builds that it runs

        @functools.wraps(self.plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.backend.normal(args, kwargs)
            try:
                key = self.backend.key(args, kwargs)
            except Bypass as reason:
                refused = Offer((Candidate("plain", self.plain),), (Refusal(name, (str(reason),)),))
                return self._named(name, refused, args, kwargs).run(*args, **kwargs)
            known = found.get(key)
            if known is None or (known.check is not None and not known.check(args, kwargs)):
                if len(found) >= _VARIANT_KEYS:
                    found.clear()
                with deciding.turn(), untouched(args, kwargs):
                    deciding.hold()
                    offer = self.backend.offer(args, kwargs, key, self.table)
                known = found[key] = self._named(name, offer, args, kwargs)
            return known.run(*args, **kwargs)

        return run

    def _named(self, name: str, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Candidate:
        """The candidate of that name; raises NoVariantError."""
        wanted = offer.aliases.get(name, name)
        for candidate in offer.candidates:
            if candidate.name == wanted:
                return candidate
        refused = [f"{r.variant}: {'; '.join(r.reasons)}" for r in offer.refusals]
        names = ", ".join([*(candidate.name for candidate in offer.candidates), *offer.aliases])
        change = f"variants that can run this call: {names}"
        raise NoVariantError(
            four_parts(self._rendered(args, kwargs), f"variant {name!r} was asked for", refused, change)
        )

    def choices(self) -> list[Choice]:
        """See `dispatcher.Dispatcher.choices`."""
        return [entry.choice for _, entry in self.table.entries()]

    def cache_info(self) -> CacheInfo:
        """See `dispatcher.Dispatcher.cache_info`."""
        return self.table.info()

    def cache_clear(self) -> None:
        """See `dispatcher.Dispatcher.cache_clear`."""
        self.table.clear()

    def _repr_html_(self) -> str:
        return choices_html(self.backend.name, self.choices())

    # -- messages

    def _new_because(self, key: Key) -> tuple[str, ...]:
        """What differs between this key and the nearest of the newest known ones."""
        found = (self.backend.differences(key, other) for other in self.table.newest(_NEAREST_AMONG))
        return min(found, key=len, default=())

    def _rendered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        return render_call(self.backend.name, self.backend.arguments(args, kwargs))

    def _warn_once(self, reason: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if reason not in self._warned and len(self._warned) < 256:
            self._warned.add(reason)
            change = "The plain function runs, as it does at every such call."
            _warn(four_parts(self._rendered(args, kwargs), "this call cannot be dispatched:", [reason], change))

    def _warn_of_failures(self, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Once: plain is all there is, and at other sizes it will be no better."""
        if len(offer.candidates) == 1 and offer.failures and "failures" not in self._warned:
            self._warned.add("failures")
            _warn(all_refused(self._rendered(args, kwargs), offer.failures))


def _warn(text: str) -> None:
    """A warning at the line outside of this package that made the call."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE:
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def _entry(candidate: Candidate, choice: Choice, offer: Offer) -> Entry:
    retry = candidate.build is not None and offer.written is not None and not offer.written
    return Entry(candidate.run, candidate.check, choice, candidate.build, retry)


def _stored(found: Found) -> Choice:
    """A row as a choice, which says where it was made."""
    notes = tuple(f"{_STORED_WHERE}{difference}" for difference in found.soft_differences)
    row = found.row
    return Choice(row.variant, found.origin, config=row.config, timings=row.timings, notes=notes)


def _of_its_mode(choice: Choice) -> bool:
    """Whether another mode would choose otherwise."""
    return choice.origin == "nearest" or any(note.startswith(_STORED_WHERE) for note in choice.notes)


def _decided(
    candidate: Candidate,
    origin: Origin,
    offer: Offer,
    timings: Sequence[Timing] = (),
    refusals: Sequence[Refusal] = (),
) -> Entry:
    choice = Choice(
        candidate.name,
        origin,
        config=candidate.config,
        timings=tuple(timings),
        refusals=(*offer.refusals, *refusals),
        route=candidate.route,
        notes=(*candidate.notes, *offer.notes),
    )
    return _entry(candidate, choice, offer)


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Where a call runs: the device of its first tensor that is not on the CPU."""
    devices = [tensor.device for tensor in _all_tensors(args, kwargs)]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def capturing(device: torch.device) -> bool:
    """Whether what is launched now becomes part of a CUDA graph: nothing may be waited for, allocated or timed."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _at(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def replace_choice(entry: Entry, **changes: Any) -> Entry:
    """The entry with its choice changed."""
    return replace(entry, choice=replace(entry.choice, **changes))


def _all_tensors(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterable[torch.Tensor]:
    modules = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.nn.Module)]
    return itertools.chain(tensors((args, kwargs)), *[module.parameters() for module in modules])


def _stopwatch(device: torch.device, regime: str) -> Stopwatch:
    if device.type != "cuda":
        return HostStopwatch()
    return GraphStopwatch(device) if regime == "graph" else CudaStopwatch(device)


def _points(sizes: Any) -> list[dict[str, int]]:
    """A mapping of dim to size or sizes, or a list of mappings, as a list of points."""
    if not isinstance(sizes, Mapping):
        return [dict(point) for point in sizes] or [{}]
    columns = [size if isinstance(size, (list, tuple, range)) else [size] for size in sizes.values()]
    return [dict(zip(sizes, row, strict=True)) for row in itertools.product(*columns)]
