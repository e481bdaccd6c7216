"""What is known of a call without timing: a choice whose build was lost, a stored one, that of its bucket or kin.

A choice names a variant. Before it runs here, the variant is offered anew and judged like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter

from ..autotune.choose import Rules, refusal
from ..autotune.measure import HostTimer
from ..autotune.preserve_state import preserve_state
from ..autotune.trial import EarlierGraph
from ..backend import Candidate, Offer, OfferRequest
from ..errors import MissError, four_parts
from ..hit.table import Entry, Table
from ..keys.key import Key
from ..records import CHOSEN_AT, MORE_TO_COME, STORED_NEAR, STORED_UNDECIDED, Choice, doubt_of, spelled
from ..shapes.dims import distance
from ..store.store import Found
from .between import as_there
from .context import MissContext
from .neighbours import Neighbours
from .watch import Watching

__all__ = [
    "FROZEN_MODES",
    "STORED_WHERE",
    "entry_for",
    "keeper",
    "look_up",
    "missing",
    "persist",
    "plain_entry",
    "share_in_bucket",
    "stored",
    "stored_choice",
    "why_again",
    "without_timing",
]

FROZEN_MODES = ("frozen", "sealed")
"""Modes in which a call never times anything."""
STORED_WHERE = "stored where "
"""How the note begins that says in what the place where a choice was made differs from this one."""
_OF_THIS_CALL = ("timed", "only", "pinned", "nearest", "agreed")
"""Origins of choices whose variant has been judged in this process, or is what the user forces."""
_DECIDED = ("timed", "stored", "shipped", "only")
"""Origins of choices that say something of calls of other sizes."""


def look_up(ctx: MissContext) -> tuple[Entry | None, tuple[str, ...]]:
    """The entry of a choice whose build had left, of a stored choice, of the bucket's, or of what won at sizes on both
    sides; and why a row is not used.

    A variant that is forced by a setting is none of these, and has no need to be timed.
    """
    entries = ctx.core.table.peek(ctx.key)
    lost = next((one.choice for one in entries if one.lost() and one.choice.origin != "learning"), None)
    if lost is not None:
        return entry_for(ctx, lost), ()
    if ctx.settings.pick is not None:
        frozen = ctx.settings.mode in FROZEN_MODES
        return (entry_for(ctx, Choice(ctx.settings.pick, "pinned")) if frozen else None), ()
    entry, unused = _of_store(ctx)
    return entry or _of_bucket(ctx) or _of_neighbours(ctx), unused


# -- the store


def _of_store(ctx: MissContext) -> tuple[Entry | None, tuple[str, ...]]:
    """The entry of the stored choice, which is judged like any candidate; or None, and why a row is not used."""
    found = ctx.core.kernel_store.find(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    if found is None:
        return None, ()
    if why := why_again(found, ctx):
        return None, () if ctx.again else (f"{found.row.variant} was stored, and timed again: {why}",)
    entry = entry_for(ctx, stored(found))
    if entry is not None:
        return entry, ()
    if ctx.awaits_more():
        return _meanwhile(ctx, found.row.variant), ()
    if ctx.settings.mode == "sealed" and _lacks_build(ctx, found.row.variant):
        ctx.core.table.log.warn_not_built(found.row.variant, ctx.rendered)
        return None, (f"{found.row.variant} was stored, and is not built: `{ctx.core.backend.name}.load()` builds it",)
    return None, (f"{found.row.variant} was stored, and cannot be used for this call",)


def why_again(found: Found, ctx: MissContext) -> str:
    """Why the call of a stored row is to be timed again; nothing where it is not.

    A row that is undecided may name a variant that won in a slow spell of the machine. It is trusted where later calls
    are samples, which find that out; a contest is held once, and what it would take over so would stand for ever. What
    was chosen of less than there may be is where to begin while more is built, and no answer to what there is by then.
    """
    if ctx.settings.mode in FROZEN_MODES:
        return ""
    trusted = ctx.why_not_online() is None
    if found.row.undecided == MORE_TO_COME:
        trusted = trusted and ctx.core.in_background() and not ctx.again
    undecided = "" if trusted else found.row.undecided
    return "; ".join((*found.soft_differences, *([f"undecided there, {undecided}"] if undecided else [])))


def _meanwhile(ctx: MissContext, variant: str) -> Entry:
    """Plain's, as long as the build of what is stored is not there: nothing else is made for the call."""
    return Entry(ctx.core.backend.plain, None, Choice("plain", "learning", notes=(f"{variant} is stored for it",)))


def _lacks_build(ctx: MissContext, variant: str) -> bool:
    """Whether a variant is not offered where nothing is built: not there, or not to be told what it would be."""
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(OfferRequest(variant, build=False))
    return offer.aliases.get(variant, variant) not in [candidate.name for candidate in offer.candidates]


def stored_choice(ctx: MissContext) -> Choice | None:
    """What the stored row for a call would have run, if a call came now and the variant is found to be right."""
    found = ctx.core.kernel_store.find(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    if found is None or ctx.settings.pick is not None:
        return None
    if why_again(found, ctx):
        return None
    choice, then = stored(found), "the first call does that"
    if ctx.settings.mode == "sealed":
        then = f"the mode is sealed, and without `{ctx.core.backend.name}.load()` what `on_miss` says would run"
    return replace(choice, notes=(*choice.notes, f"nothing is built in this process yet: {then}"))


def stored(found: Found) -> Choice:
    """A row as a choice, which says where it was made."""
    row = found.row
    doubts = [f"{STORED_UNDECIDED}{row.undecided}"] if row.undecided else []
    notes = (*(f"{STORED_WHERE}{difference}" for difference in found.soft_differences), *doubts)
    return Choice(row.variant, found.origin, config=row.config, timings=row.timings, notes=notes)


def persist(entry: Entry, ctx: MissContext, instead: bool) -> Entry:
    """The entry, stored; or that of the choice which another process stored meanwhile, if not ``instead``."""
    if ctx.core.kernel_store is None:
        return entry
    row = ctx.core.kernel_store.keep(ctx.key, ctx.device, entry.choice, instead)
    if row is None or instead or row.variant == entry.choice.variant:
        return entry
    return entry_for(ctx, stored(Found(row, "stored"))) or entry


def keeper(ctx: MissContext) -> Callable[[Key, Choice], None]:
    """What remembers a choice for a key that is decided later, in the store and for its bucket, without the call."""
    core, device, bucket = ctx.core, ctx.device, _bucket(ctx)

    def keep(key: Key, choice: Choice) -> None:
        if core.kernel_store is not None:
            core.kernel_store.keep_later(key, device, choice)
        if not doubt_of(choice):
            _share(choice, bucket, core.table)

    return keep


# -- the bucket


def share_in_bucket(choice: Choice, ctx: MissContext) -> None:
    """Let the other calls of this one's bucket know its choice, if that says anything of them."""
    if choice.origin in ("timed", "stored", "shipped"):
        _share(choice, _bucket(ctx), ctx.core.table)


def _share(choice: Choice, bucket: Hashable | None, table: Table) -> None:
    if bucket is not None:
        notes = (f"chosen at {spelled(choice.sizes)}, in the same bucket",)
        table.facts.buckets[bucket] = Choice(choice.variant, "bucket", config=choice.config, notes=notes)


def _of_bucket(ctx: MissContext) -> Entry | None:
    """The variant that was chosen for another call of this one's bucket, judged for this call but not timed."""
    bucket = _bucket(ctx)
    shared = ctx.core.table.facts.buckets.get(bucket) if bucket is not None else None
    return entry_for(ctx, shared) if shared is not None else None


def _bucket(ctx: MissContext) -> Hashable | None:
    """What the calls of this one's bucket have in common; None for a call that is in none."""
    return ctx.core.backend.bucket(ctx.args, ctx.kwargs, ctx.key, ctx.settings.buckets, ctx.core.table)


# -- other sizes


def _of_neighbours(ctx: MissContext) -> Entry | None:
    """The entry of what won at sizes on both sides of this one, where choices are learned and it is right here, too."""
    if ctx.settings.mode in FROZEN_MODES or ctx.why_not_online() is not None:
        return None
    near = Neighbours.of(ctx)
    variant, where = near.agreed() or ("", "")
    choice = Choice(variant, "nearest", notes=(where,))
    return (as_there(ctx, near, choice) or entry_for(ctx, choice, kin=True)) if variant else None


# -- a choice made before


def entry_for(ctx: MissContext, choice: Choice, kin: bool = False, anew: bool = False) -> Entry | None:
    """An entry for a choice made before; None where its variant is gone, cannot run this call or is wrong.

    With ``kin`` it was made for a call that differs in sizes; ``anew`` judges it, whatever its origin.
    """
    judged = choice.origin in _OF_THIS_CALL and not (kin or anew)
    making = ctx.settings.mode != "sealed"
    request = OfferRequest(choice.variant, making, choice.config, judge=ctx.isolation(), state=kin)
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(request)
        candidate = next((c for c in offer.candidates if c.name == choice.variant), None)
        if candidate is None or not (judged or _sound(candidate, offer, ctx)):
            return None
    entry = candidate.entry(choice, offer)
    learned = choice.origin in ("stored", "shipped") and ctx.why_not_online() is None and not ctx.grad()
    return Watching.of(ctx).of_entry(entry, _with_its_rival(ctx, choice, offer)) if learned else entry


def _with_its_rival(ctx: MissContext, choice: Choice, offer: Offer) -> Offer:
    """The offer; where it is plain that is in doubt, that with the next best, if this one is there and is right.

    Beside any other choice there is plain, by which it is verified. Nothing is traced or built only to verify plain:
    where no other call has had that done yet, it stays in doubt for this process.
    """
    others = [timing for timing in choice.timings if timing.variant != "plain"]
    if choice.variant != "plain" or not doubt_of(choice) or not others:
        return offer
    name = min(others, key=attrgetter("median_us")).variant
    with preserve_state(ctx.args, ctx.kwargs):
        both = ctx.offer(OfferRequest(name, build=False, judge=ctx.isolation()))
        rival = next((one for one in both.candidates if one.name == name), None)
        return both if rival is not None and _sound(rival, both, ctx) else offer


def _sound(candidate: Candidate, offer: Offer, ctx: MissContext) -> bool:
    """Whether a variant that was chosen for another call or elsewhere gives plain's numbers.

    A build is looked at once for its class, a supplied variant at each key: nothing is known of its classes. Where
    nothing may be run to see, a build is trusted as the nearest hint's would be; what a user wrote, where he says so.
    """
    plain, numbers, sound = offer.candidates[0], candidate.numbers, ctx.core.table.facts.sound
    if candidate is plain or (numbers is not None and sound.get(numbers)):
        return True
    trial = ctx.trial(offer)
    try:
        # Nothing is timed: the maker of stopwatches, whose may take memory, is not asked.
        rules = Rules(HostTimer(), tolerance=ctx.settings.check)
        right = None if ctx.why_untimed(offer, trial) else not refusal(candidate, plain, trial, rules)
    except EarlierGraph:
        right = None
    if right is None:
        return candidate.trusted or (offer.untimed is None and not candidate.supplied)
    if right and numbers is not None:
        sound[numbers] = True
    return right


# -- an unknown shape in a mode in which nothing may be timed: what ``on_miss`` says


def without_timing(ctx: MissContext, sizes: Mapping[str, int], unused: Sequence[str]) -> Entry:
    """What ``on_miss`` says, which may be a MissError; the key is noted, to be tuned later.

    ``unused`` says why the row that is stored for it is not used.
    """
    if ctx.core.kernel_store is not None and not unused:
        ctx.core.kernel_store.missed(ctx.key, ctx.device)
    if ctx.settings.on_miss == "error":
        raise MissError(missing(ctx, sizes, unused))
    why = f"the mode is {ctx.settings.mode}"
    if ctx.settings.on_miss == "nearest":
        return _nearest_choice(ctx, sizes, why) or _nearest_held(ctx, why)
    return plain_entry(ctx, why)


def _nearest_choice(ctx: MissContext, sizes: Mapping[str, int], why: str) -> Entry | None:
    """What was chosen for the call nearest to this one that can run it: stored, else in this process."""
    found = ctx.core.kernel_store.nearest(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    here = _nearest_known(ctx, sizes)
    near = [stored(found)] if found is not None else []
    for choice in [*near, *([here] if here is not None and here.variant != "exact" else [])]:
        entry = entry_for(ctx, choice)
        if entry is not None:
            where = f"{CHOSEN_AT}{spelled(choice.sizes)}" if choice.sizes else STORED_NEAR
            notes = (where, *choice.notes, f"not timed: {why}")
            return entry.changed(origin="nearest", timings=(), notes=notes)
    return None


def _nearest_held(ctx: MissContext, why: str) -> Entry:
    """What is built already for the nearest hint, else plain."""
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(OfferRequest(build=False))
    return offer.nearest(ctx.sizes(), why, ctx.is_right).changed(origin="nearest")


def plain_entry(ctx: MissContext, why: str) -> Entry:
    """Plain. A kernel as written would time its configs: the first of them runs, or the first loaded one if sealed."""
    if not ctx.core.backend.searches:
        return Entry(ctx.core.backend.plain, None, Choice("plain", "nearest", notes=(f"not timed: {why}",)))
    with preserve_state(ctx.args, ctx.kwargs):
        offer = ctx.offer(OfferRequest("plain", build=ctx.settings.mode != "sealed"))
    return offer.candidates[0].wins("nearest", offer, notes=(f"not timed: {why}",))


def _nearest_known(ctx: MissContext, sizes: Mapping[str, int]) -> Choice | None:
    """The timed or stored choice of this process nearest to these sizes by log distance."""
    choices = [entry.choice for _, entry in ctx.core.table.entries()]
    comparable = [choice for choice in choices if choice.origin in _DECIDED and choice.sizes.keys() == sizes.keys()]
    return min(comparable, key=lambda choice: distance(sizes, choice.sizes), default=None)


def missing(ctx: MissContext, sizes: Mapping[str, int], unused: Sequence[str]) -> str:
    """What the error says of a call for which nothing is known."""
    change = f"Before the mode is set: `{ctx.core.backend.name}.tune(...)` with this call, or `prepare` with its sizes."
    what = "what is stored for this call is not used" if unused else "no choice is known for this call"
    tried = f"{what}, and the mode is {ctx.settings.mode}:"
    return four_parts(ctx.rendered(), tried, unused or [_what_is_near(ctx, sizes)], change)


def _what_is_near(ctx: MissContext, sizes: Mapping[str, int]) -> str:
    """What is known of other calls: in this process, else in the store."""
    near = _nearest_known(ctx, sizes)
    if near is not None:
        return f"the nearest known is {near.variant} at {spelled(near.sizes)}"
    found = ctx.core.kernel_store.nearest(ctx.key, ctx.device) if ctx.core.kernel_store is not None else None
    return (
        "no shape is known" if found is None else f"the nearest is {found.row.variant}, {found.origin} for other sizes"
    )
