"""What a user may ask of a dispatcher, and what it does when it is told to: explain, tune, prepare, one variant."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from ..autotune.choose import PlainRaised
from ..autotune.preserve_state import untouched
from ..backend import EVERYTHING, Backend, Candidate, Offer, Search
from ..errors import DeclarationError, NoVariantError, four_parts, render_call
from ..keys.key import Bypass, Key, safe_key
from ..records import Choice, Refusal
from ..shapes.declaration import Misfit, did_you_mean
from ..shapes.hints import every_point
from .context import Case
from .miss import decide
from .tuning_lock import deciding

__all__ = ["Questions"]

_VARIANT_KEYS = 64
"""How many keys a callable of one variant remembers its candidate for."""

Call = tuple[tuple[Any, ...], Mapping[str, Any]]


class Questions:
    """The questions to one dispatcher. ``case`` makes a case of a key and its call in normal form.

    ``inputs`` is the decorator's: it makes a call of given sizes.
    """

    def __init__(
        self,
        backend: Backend,
        case: Callable[[Key, tuple[Any, ...], Mapping[str, Any]], Case],
        inputs: Callable[..., Any] | None,
    ) -> None:
        self._backend = backend
        self._case = case
        self._inputs = inputs

    def explain(self, *args: Any, **kwargs: Any) -> Choice:
        """See `dispatcher.Dispatcher.explain`."""
        try:
            args, kwargs = self._backend.normal(args, kwargs)
            case = self._case(self._backend.key(args, kwargs), args, kwargs)
            sizes = case.sizes()
        except (Bypass, Misfit) as reason:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(str(reason),))
        for entry in case.table.peek(case.key):
            if entry.lost() or entry.check is None or entry.check(args, kwargs):
                return entry.choice
        why = case.shelf.why(case.key, case.device) if case.shelf is not None else ()
        return Choice("plain", "unseen", sizes, case.key, new_because=case.new_because(), notes=why)

    def tune(self, *args: Any, exhaustive: bool = False, **kwargs: Any) -> Choice:
        """See `dispatcher.Dispatcher.tune`."""
        args, kwargs = self._backend.normal(args, kwargs)
        try:
            key = self._backend.key(args, kwargs)
            with deciding.turn():
                deciding.hold()
                return decide(self._case(key, args, kwargs), afresh=True, exhaustive=exhaustive).choice
        except PlainRaised as reason:
            raise (reason.__cause__ or reason) from None
        except Bypass as reason:
            return Choice("plain", "bypass", key=safe_key(args, kwargs), notes=(str(reason),))

    def prepare(self, sizes: Any = (), *args: Any, **kwargs: Any) -> list[Choice]:
        """See `dispatcher.Dispatcher.prepare`."""
        chosen = []
        for point in every_point(sizes):  # one call after the other: all at once may be more than fits in memory
            call_args, call_kwargs = self._call_at(point, args, kwargs)
            chosen.append(self.tune(*call_args, **call_kwargs))
        return chosen

    def _call_at(self, point: Mapping[str, int], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call:
        if not args and not kwargs and self._inputs is not None:
            return self._inputs(point, None)  # type: ignore[no-any-return]  # the user's own function
        args, kwargs = self._backend.normal(args, kwargs)
        dims = self._backend.sizes(args, kwargs)
        for name in point:
            if name not in dims:
                raise DeclarationError(f"{name!r} is no dim of this call. {did_you_mean(name, dims)}")
        return self._backend.resized(args, kwargs, point)

    def variant(self, name: str) -> Callable[..., Any]:
        """See `dispatcher.Dispatcher.variant`."""
        found: dict[Key, Candidate] = {}  # goes with the callable, which keeps the builds that it runs

        @functools.wraps(self._backend.plain)
        def run(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._backend.normal(args, kwargs)
            try:
                key = self._backend.key(args, kwargs)
            except Bypass as reason:
                refused = Offer((Candidate("plain", self._backend.plain),), (Refusal(name, (str(reason),)),))
                return self._named(name, refused, args, kwargs).run(*args, **kwargs)
            known = found.get(key)
            if known is None or (known.check is not None and not known.check(args, kwargs)):
                if len(found) >= _VARIANT_KEYS:
                    found.clear()
                offer = self._offered(key, args, kwargs)
                try:
                    known = found[key] = self._named(name, offer, args, kwargs)
                finally:
                    if isinstance(offer, Search) and offer.found is not None:
                        offer.found(Choice(offer.aliases.get(name, name), "pinned"))  # which lets the other configs go
            return known.run(*args, **kwargs)

        return run

    def _offered(self, key: Key, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Offer:
        """All that may run the call."""
        with deciding.turn(), untouched(args, kwargs):
            deciding.hold()
            return self._case(key, args, kwargs).offer(EVERYTHING)

    def _named(self, name: str, offer: Offer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Candidate:
        """The candidate of that name; raises NoVariantError."""
        wanted = offer.aliases.get(name, name)
        for candidate in offer.candidates:
            if candidate.name == wanted:
                return candidate
        call = render_call(self._backend.name, self._backend.arguments(args, kwargs))
        refused = [f"{r.variant}: {'; '.join(r.reasons)}" for r in offer.refusals]
        names = ", ".join([*(candidate.name for candidate in offer.candidates), *offer.aliases])
        change = f"variants that can run this call: {names}"
        raise NoVariantError(four_parts(call, f"variant {name!r} was asked for", refused, change))
