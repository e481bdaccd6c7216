"""Entries for the table, made of what was offered: what runs, and the choice that says why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..backend import Candidate, Offer
from ..hit.table import Entry
from ..records import Choice, Origin, Refusal, Timing
from ..shapes.hints import distance

__all__ = ["changed", "decided", "entry_of", "nearest_hint"]


def entry_of(candidate: Candidate, choice: Choice, offer: Offer) -> Entry:
    """The entry that runs a candidate for this choice."""
    retry = candidate.build is not None and offer.written is not None and not offer.written
    return Entry(candidate.run, candidate.check, choice, candidate.build, retry)


def decided(
    candidate: Candidate,
    origin: Origin,
    offer: Offer,
    timings: Sequence[Timing] = (),
    refusals: Sequence[Refusal] = (),
) -> Entry:
    """The entry of the winner of an offer."""
    choice = Choice(
        candidate.name,
        origin,
        config=candidate.config,
        timings=tuple(timings),
        refusals=(*offer.refusals, *refusals),
        route=candidate.route,
        notes=(*candidate.notes, *offer.notes),
    )
    return entry_of(candidate, choice, offer)


def nearest_hint(offer: Offer, sizes: Mapping[str, int], why: str) -> Entry:
    """Without timing, and ``why``: the build of the hint nearest to the sizes, if it may be used at all; else plain."""
    hinted = [c for c in offer.candidates if c.point] if offer.untimed is None else []
    named = [c for c in hinted if c.point is not None and c.point.keys() <= sizes.keys()]
    winner = min(named, key=lambda c: distance(sizes, c.point or {}), default=offer.candidates[0])
    entry = decided(winner, "nearest" if winner.point else "only", offer)
    return changed(entry, notes=(*entry.choice.notes, f"not timed: {why}"))


def changed(entry: Entry, **changes: Any) -> Entry:
    """The entry with its choice changed."""
    return replace(entry, choice=replace(entry.choice, **changes))
