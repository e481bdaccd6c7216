"""What is known of a call without timing: a choice whose build was lost, a stored one, that of the call's bucket.

A choice names a variant. Before it runs here, the variant is offered anew and judged like any other.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from ..autotune.choose import Rules, refusal
from ..autotune.measure import HostStopwatch
from ..autotune.preserve_state import untouched
from ..backend import Candidate, Offer, Wish
from ..hit.table import Entry
from ..records import Choice, spelled
from ..store.store import Found
from .context import Case
from .entries import entry_of
from .isolation import judge

__all__ = ["FROZEN_MODES", "STORED_WHERE", "entry_for", "kept", "known", "share", "stored"]

FROZEN_MODES = ("frozen", "sealed")
"""Modes in which a call never times anything."""
STORED_WHERE = "stored where "
"""How the note begins that says in what the place where a choice was made differs from this one."""
_OF_THIS_CALL = ("timed", "only", "pinned", "nearest")
"""Origins of choices whose variant has been judged in this process, or is what the user forces."""


def known(case: Case) -> tuple[Entry | None, tuple[str, ...]]:
    """The entry of a choice whose build had left, of a stored choice or of the bucket's; and why a row is not used.

    A variant that is forced by a setting is none of these, and has no need to be timed.
    """
    lost = next((entry.choice for entry in case.table.peek(case.key) if entry.lost()), None)
    if lost is not None:
        return entry_for(case, lost), ()
    if case.settings.pick is not None:
        frozen = case.settings.mode in FROZEN_MODES
        return (entry_for(case, Choice(case.settings.pick, "pinned")) if frozen else None), ()
    entry, unused = _of_store(case)
    return entry or _of_bucket(case), unused


# -- the store


def _of_store(case: Case) -> tuple[Entry | None, tuple[str, ...]]:
    """The entry of the stored choice, which is judged like any candidate; or None, and why a row is not used."""
    found = case.shelf.find(case.key, case.device) if case.shelf is not None else None
    if found is None:
        return None, ()
    if found.soft_differences and case.settings.mode not in FROZEN_MODES:
        why = "; ".join(found.soft_differences)
        return None, (f"{found.row.variant} was stored, and timed again: {why}",)
    entry = entry_for(case, stored(found))
    return entry, () if entry else (f"{found.row.variant} was stored, and cannot be used for this call",)


def stored(found: Found) -> Choice:
    """A row as a choice, which says where it was made."""
    notes = tuple(f"{STORED_WHERE}{difference}" for difference in found.soft_differences)
    row = found.row
    return Choice(row.variant, found.origin, config=row.config, timings=row.timings, notes=notes)


def kept(entry: Entry, case: Case, instead: bool) -> Entry:
    """The entry, stored; or that of the choice which another process stored meanwhile, if not ``instead``."""
    if case.shelf is None:
        return entry
    row = case.shelf.keep(case.key, case.device, entry.choice, instead)
    if row is None or row.variant == entry.choice.variant:
        return entry
    return entry_for(case, stored(Found(row, "stored"))) or entry


# -- the bucket


def share(choice: Choice, case: Case) -> None:
    """Let the other calls of this one's bucket know its choice, if that says anything of them."""
    bucket = _bucket(case) if choice.origin in ("timed", "stored", "shipped") else None
    if bucket is not None:
        case.table.remember(bucket, (choice.variant, choice.config, spelled(choice.sizes)))


def _of_bucket(case: Case) -> Entry | None:
    """The variant that was chosen for another call of this one's bucket, judged for this call but not timed."""
    bucket = _bucket(case)
    shared = case.table.recall(bucket) if bucket is not None else None
    if shared is None:
        return None
    variant, config, where = shared
    notes = (f"chosen at {where}, in the same bucket",)
    return entry_for(case, Choice(variant, "bucket", config=config, notes=notes))


def _bucket(case: Case) -> Hashable | None:
    """The name of the fact that is a bucket's choice; None for a call that is in none."""
    bucket = case.backend.bucket(case.args, case.kwargs, case.key, case.settings.buckets, case.table)
    return None if bucket is None else ("bucket", bucket)


# -- a choice made before


def entry_for(case: Case, choice: Choice) -> Entry | None:
    """An entry for a choice made before; None where its variant is gone, cannot run this call or is wrong."""
    wish = Wish(choice.variant, case.settings.mode != "sealed", choice.config, judge=judge(case))
    with untouched(case.args, case.kwargs):
        offer = case.offer(wish)
        candidate = next((c for c in offer.candidates if c.name == choice.variant), None)
        if candidate is None:
            return None
        if choice.origin not in _OF_THIS_CALL and not _sound(candidate, offer, case):
            return None
    return entry_of(candidate, replace(choice, route=candidate.route, config=candidate.config), offer)


def _sound(candidate: Candidate, offer: Offer, case: Case) -> bool:
    """Whether a variant that was chosen for another call or elsewhere gives plain's numbers.

    A build is looked at once for its class, a supplied variant at each key: nothing is known of its classes. Where
    nothing may be run to see, a build is trusted as the nearest hint's would be, and what a user wrote is not.
    """
    fact = ("sound", candidate.build)
    if candidate is offer.candidates[0] or (candidate.build is not None and case.table.recall(fact)):
        return True
    trial = case.trial(offer)
    if case.why_untimed(offer, trial):
        return offer.untimed is None and not candidate.supplied
    # Nothing is timed: the maker of stopwatches, whose may take memory, is not asked.
    if refusal(candidate, offer.candidates[0], trial, Rules(HostStopwatch(), tolerance=case.settings.check)):
        return False
    if candidate.build is not None:
        case.table.remember(fact, True)
    return True
