"""One offer of a function's variants in the making: who may run the call, and why the others may not."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..backend import ALL, Candidate, Offer, OfferRequest, why_not_supplied
from ..records import Refusal, Variant
from .compile.build import NoBuild

__all__ = ["Draft"]


@dataclass(slots=True)
class Draft:
    """What has been found so far; ``request`` is what was asked for."""

    candidates: list[Candidate] = field(default_factory=list)
    request: OfferRequest = ALL
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    failures: list[Refusal] = field(default_factory=list)
    transient: bool = False
    """Whether a refusal is one of this moment."""

    def refuse(self, variant: str, *reasons: str) -> None:
        """Leave a variant out of this call."""
        self.refusals.append(Refusal(variant, reasons))

    def put_off(self, variant: str, reason: str) -> None:
        """Leave a variant out that may be there another time."""
        self.transient = True
        self.refuse(variant, reason)

    def fail(self, variant: str, reason: str) -> None:
        """Leave a variant out that could not be made."""
        self.refuse(variant, reason)
        self.failures.append(self.refusals[-1])

    def lack(self, variant: str, build: NoBuild) -> None:
        """Leave a variant out that has no build of its own."""
        if build.same_as:
            self.aliases[variant] = build.same_as
            self.notes.append(f"{variant} is the same code as {build.same_as}")
        elif build.transient:
            self.put_off(variant, build.reason)
        else:
            self.fail(variant, build.reason)

    def supply(self, variant: Variant, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Offer what the user has supplied, where it may run this call."""
        assert variant.name is not None
        if not self.request.wants(variant.name):
            return
        own = why_not_supplied(variant, args, kwargs)
        why_not = None if own else self.request.why_not(variant.name)
        if own:
            self.refuse(variant.name, own)
        elif why_not:
            self.put_off(variant.name, why_not)
        else:
            route = "the function that was supplied"
            self.candidates.append(Candidate(variant.name, variant.fn, route=route, supplied=True))

    def offer(self, written: Collection[str] | None, untimed: str | None) -> Offer:
        """The offer as it stands."""
        return Offer(
            tuple(self.candidates),
            tuple(self.refusals),
            written,
            untimed,
            tuple(self.notes),
            self.aliases,
            tuple(self.failures),
            bool(self.refusals) and not (self.failures or self.transient or untimed),
        )
