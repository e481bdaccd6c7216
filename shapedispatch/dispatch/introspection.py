"""What a user may ask of a dispatcher, and what it does when it is told to: explain, tune, prepare, one variant."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..autotune.choose import PlainRaised
from ..autotune.preserve_state import preserve_state
from ..backend import ALL, Backend, Candidate, Offer, OfferRequest
from ..choices.context import DispatcherParts, MissContext
from ..choices.known_choices import stored_choice
from ..errors import DeclarationError, NoVariantError, four_parts, render_call
from ..keys.key import Bypass, Key, describe, storable
from ..records import Choice, Choices, Refusal
from ..shapes.dims import DimsMismatch, did_you_mean, every_point
from ..store.key_text import canonical
from ..store.replay import CannotReplay, made_under
from .agreed import agreed_choice
from .background import Waiting, allowance_of, waiting_keys
from .loading import call_of_key
from .miss import decide, tuning_lock

__all__ = ["Introspection"]

_VARIANT_KEYS = 64
"""How many keys a callable of one variant remembers its candidate for."""

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


class Introspection:
    """The questions to one dispatcher. ``ctx`` makes a case of a key and its call in normal form.

    ``inputs`` is the decorator's: it makes a call of given sizes.
    """

    with_receiver: Callable[[tuple[Any, ...]], tuple[Any, ...]] | None = None
    """Puts the instance in front of the arguments, where its method was handed over and not the class's."""
    handed_on: str = ""
    """What is dispatched in place of a module's forward, and why; else empty."""
    retired: bool = False
    """Whether it is so for every call."""

    def __init__(
        self,
        backend: Backend,
        ctx: Callable[[Key, tuple[Any, ...], Mapping[str, Any]], MissContext],
        inputs: Callable[..., Any] | None,
    ) -> None:
        self._backend = backend
        self._case = ctx
        self._inputs = inputs

    def _normal(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call in normal form; where a method was asked through an instance, the TypeError says how to ask."""
        if self.with_receiver is not None:
            args = self.with_receiver(args)
        try:
            return self._backend.normal(args, kwargs)
        except TypeError as error:
            name = self._backend.name
            if next(iter(inspect.signature(self._backend.plain).parameters), None) != "self":
                raise
            how = f"ask the class, with the instance first, as in {name}.explain(instance, ...)"
            raise TypeError(f"{error}. Of a method, {how}") from None

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """See `decorator.Dispatcher.explain`."""
        if self.retired:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(self.handed_on,))
        choice = self._explained(args, kwargs)
        return replace(choice, notes=(*choice.notes, self.handed_on)) if self.handed_on else choice

    def _explained(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Choice:
        try:
            args, kwargs = self._normal(args, kwargs)
            ctx = self._case(self._backend.key(args, kwargs), args, kwargs)
            sizes = ctx.sizes()
        except (Bypass, DimsMismatch) as reason:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(str(reason),))
        entries = ctx.core.table.peek(ctx.key)
        for entry in entries:
            if entry.lost() or entry.check is None or getattr(entry.check, "look", entry.check)(args, kwargs):
                return entry.now()
        if (other := next((entry for entry in entries if entry.any_state), None)) is not None:
            return replace(other.choice, notes=(*other.choice.notes, _OTHER_STATE))
        if (ledger := ctx.core.ledger()) is not None:
            return replace(agreed_choice(ctx, ledger), sizes=sizes, key=ctx.key)
        if (known := stored_choice(ctx)) is not None:
            return replace(known, sizes=sizes, key=ctx.key)
        why = ctx.core.kernel_store.why(ctx.key, ctx.device) if ctx.core.kernel_store is not None else ()
        failed = [f"deciding failed: {error}" for error in ctx.core.table.facts.failed.get(ctx.key) or ()]
        return Choice("plain", "unseen", sizes, ctx.key, new_because=ctx.new_because(), notes=(*why, *failed[-1:]))

    def tune(self, *args: Any, exhaustive: bool = False, **kwargs: Any) -> Choice:
        """See `decorator.Dispatcher.tune`."""
        core: Any = self
        args, kwargs = self._normal(args, kwargs)
        try:
            key = self._backend.key(args, kwargs)
            with tuning_lock.acquired():
                tuning_lock.note_owner()
                new = not core.table.peek(key)
                return decide(self._case(key, args, kwargs), retune=True, exhaustive=exhaustive, missed=new).choice
        except PlainRaised as reason:
            raise (reason.__cause__ or reason) from None
        except Bypass as reason:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(str(reason),))

    def wait(self, timeout: float | None = None, force: bool = False) -> bool:
        """See `decorator.Dispatcher.wait`."""
        core: Any = self
        if force:
            self.order_all()
        return bool(core.orders().wait(core.table.log, timeout))

    def order_all(self) -> None:
        """Order all that may be made for the keys that are learned in the background, earned or not."""
        core: Any = self
        if core.in_background():
            _order_all(core, (() if core.with_receiver is None else core.with_receiver(()), {}))

    def progress(self) -> dict[str, str]:
        """See `decorator.Dispatcher.progress`."""
        core: Any = self
        return core.orders().progress(core.table.log)  # type: ignore[no-any-return]  # as `Orders` says

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> list[Choice]:
        """See `decorator.Dispatcher.prepare`."""
        chosen = Choices()
        for point in every_point(sizes):  # one call after the other: all at once may be more than fits in memory
            call_args, call_kwargs = self._call_at(point, args, kwargs)
            chosen.append(self.tune(*call_args, **call_kwargs))
        return chosen

    def _call_at(self, point: Mapping[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        if not args and not kwargs and self._inputs is not None:
            return self._inputs(point, None)  # type: ignore[no-any-return]  # the user's own function
        args, kwargs = self._normal(args, kwargs)
        dims = self._backend.sizes(args, kwargs)
        for name in point:
            if name not in dims:
                raise DeclarationError(f"{name!r} is no dim of this call. {did_you_mean(name, dims)}")
        return self._backend.resized(args, kwargs, point)

    def variant(self, name: str) -> Callable[..., Any]:
        """See `decorator.Dispatcher.variant`."""
        found: dict[Key, Candidate] = {}  # goes with the callable, which keeps the builds that it runs

        @functools.wraps(self._backend.plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._normal(args, kwargs)
            try:
                key = self._backend.key(args, kwargs)
            except Bypass as reason:
                refused = Offer((Candidate("plain", self._backend.plain),), (Refusal(name, (str(reason),)),))
                return self._named(name, refused, args, kwargs).run(*args, **kwargs)
            candidate = found.get(key)
            if candidate is None or (candidate.check is not None and not candidate.check(args, kwargs)):
                if len(found) >= _VARIANT_KEYS:
                    found.clear()
                candidate = found[key] = self._named(name, self._offered(name, key, args, kwargs), args, kwargs)
            return candidate.run(*args, **kwargs)

        return run

    def _offered(self, name: str, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Offer:
        """All that may run the call; of the configs that are searched the one of that name is kept."""
        with tuning_lock.acquired():
            tuning_lock.note_owner()
            with preserve_state(args, kwargs):
                offer = self._case(key, args, kwargs).offer(ALL)
            if offer.search is not None:
                with offer.search as search:
                    with preserve_state(args, kwargs):
                        offer = search.offer()
                    search.keep(Choice(offer.aliases.get(name, name), "pinned"))
            return offer

    def _named(self, name: str, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Candidate:
        """The candidate of that name; raises NoVariantError."""
        wanted = offer.aliases.get(name, name)
        for candidate in offer.candidates:
            if candidate.name == wanted:
                return candidate
        call = render_call(self._backend.name, self._backend.arguments(args, kwargs))
        refused = [f"{r.variant}: {'; '.join(r.reasons)}" for r in offer.refusals]
        names = [*(candidate.name for candidate in offer.candidates), *offer.aliases]
        change = f"variants that can run this call: {', '.join(names)}"
        raise NoVariantError(four_parts(call, f"variant {name!r} was asked for", refused, change))


_OTHER_STATE = "chosen in another state than the present one; what is best in this one is looked at within some calls"


def safe_key(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Key:
    """A description of any call at all, for what is said of a bypass; nothing is ever looked up by it."""
    return tuple(_safe(value) for value in (*args, *kwargs.values()))


def _safe(value: Any) -> Key:
    try:
        if isinstance(value, Tensor):
            return (type(value), value.dtype, tuple(symbolic(size) for size in value.shape), value.device)
        return describe(value)
    except (Bypass, RuntimeError):  # nested tensors have no sizes, and a list may contain itself
        return (type(value),)


def symbolic(size: Hashable) -> Hashable:
    """A size that hashes: itself, or (which shape environment, expression) where it is symbolic."""
    # That of a nested tensor has no environment.
    return (id(getattr(size.node, "shape_env", None)), str(size)) if isinstance(size, torch.SymInt) else size


MOST_OFFERS = 24
"""How often a key is looked at to order all that may be made for it: each look makes a trace at most."""


def _order_all(core: DispatcherParts, like: Call) -> None:
    """Order all that may be made for the keys that wait, earned or not.

    A call is made anew of each key, for its types and sizes alone, and is not run; ``like`` gives what no key holds.
    Where none can be made, the next call at that key orders it.
    """
    for key, waiting in waiting_keys(core):
        waiting.force()
        with contextlib.suppress(CannotReplay, Bypass, TypeError, ValueError):
            text = canonical(storable(key))
            with made_under(text), tuning_lock.acquired():
                tuning_lock.note_owner()
                args, kwargs = call_of_key(core, text, like)
                with preserve_state(args, kwargs):
                    _order_all_of(waiting, core.ctx(key, args, kwargs))


def _order_all_of(waiting: Waiting, ctx: MissContext) -> None:
    for _ in range(MOST_OFFERS):
        allowance = replace(allowance_of(waiting, ctx.device, may_begin=True, exact=True), made_up=True)
        replace(ctx, later=allowance).offer(OfferRequest())
        if not allowance.short:
            return  # and the next call looks, at its exact sizes too: what was kept on disk is no news of its own
