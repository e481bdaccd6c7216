"""How a key begins to be learned from its own calls: which candidates are right for it, and what they take part in."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch import Tensor

from ..autotune.choose import Later, PlainRaised, Rules, best, checked, checked_one_by_one
from ..autotune.trial import Trial
from ..autotune.warmup import WARMUP
from ..backend import Candidate, Offer
from ..background.account import Later as Looks
from ..hit.native import call_turns, launch_turns
from ..hit.table import Entry
from ..keys.key import Key
from ..online.check_times import CheckTimes, check_times
from ..online.contest import SHARE, OnlineContest
from ..online.figures import Figures, HostBound
from ..online.pool import Pool
from ..online.real_calls import sampler
from ..online.shares import Shares
from ..online.verdicts import verdicts
from ..records import Choice, Refusal, Timing
from .context import DispatcherParts, MissContext, capturing
from .known_choices import keeper
from .learned import Learned, learned_together
from .learner import Learning, all_checks
from .neighbours import Neighbours, leading
from .pooled import PooledContest, pool_of
from .sampling import LAUNCHER
from .watch import Watching

__all__ = ["learn", "pooled"]

RECORDING_US = 5_000.0
"""What it takes to see whether a recording is right, and to make it."""
COMPARE_S, COMPARE_BYTES = 0.0015, 1 << 26
"""How long a look goes on comparing candidates with plain, by the host's clock; and how many bytes are copied for that
at most, since a device may be far behind the host with what is compared."""
NOT_EARNED = f"not tried yet: recording it takes about {RECORDING_US / 1e3:.0f} ms, which calls here have not earned"


def learn(offer: Offer, trial: Trial, ctx: MissContext, unseen: str = "") -> Entry:
    """The entry that learns among those of the offer that are right, plain's where no other is.

    What was far behind at the nearest size that is settled is left out. With ``unseen``, the reason why nothing may be
    run to see what is right, all are taken to be.
    """
    near, began_ns = Neighbours.of(ctx), time.perf_counter_ns()
    far, (plain, *others) = near.far_behind(), offer.candidates
    flagged = verdicts(ctx.device)
    later: Later | None = {} if flagged is not None else None
    likely = [plain, *(one for one in others if one.name not in far)]
    likely, left_out = (likely, ()) if unseen else _without_recordings(likely, ctx, near)
    times = None if ctx.core.backend.searches else check_times(ctx.device)
    right, wrong = (likely, ()) if unseen else _right(likely, trial, ctx, near, later, times)
    if unseen:
        offer = replace(offer, notes=(*offer.notes, f"not compared with plain: {unseen}"))
    refusals = (*wrong, *(Refusal(one.name, (far[one.name],)) for one in others if one.name in far), *left_out)
    if len(right) == 1 and not left_out:
        return right[0].wins("timed", offer, (), refusals)
    if pool := None if unseen else _pool(right, ctx, near):
        pool.spent_on_checks(began_ns)
        entries = {one.name: one.entry(Choice(one.name, "nearest"), offer) for one in right}
        return pooled(offer, right, ctx, pool, near.sizes, entries, refusals, later)

    def contest(ready: list[Figures]) -> OnlineContest:
        not_before_us, order, margin = RECORDING_US / SHARE if left_out else 0.0, near.order(), ctx.settings.margin
        return OnlineContest([*ready], margin, _best(margin), order, _expected(ctx, near, times), not_before_us)

    return _entry(offer, right, ctx, contest, refusals, later, times)


def _expected(ctx: MissContext, near: Neighbours, times: CheckTimes | None) -> Callable[[], str | None]:
    """What asks for the variant that is likely to be best, before any sample is over."""
    pool = pool_of(ctx, near.sizes)
    leads = leading(ctx, near.sizes, pool.family.alone if pool is not None else ())
    return lambda: leads.variant if leads else (times.fastest() if times is not None else None)


def pooled(
    offer: Offer,
    right: Sequence[Candidate],
    ctx: MissContext,
    pool: Pool,
    sizes: Mapping[str, int],
    entries: Mapping[str, Entry],
    refusals: Sequence[Refusal] = (),
    later: Later | None = None,
) -> Entry:
    """The entry that learns, among those that are right, together with other keys.

    ``entries`` run those of them here that other keys do not know yet.
    """
    contest = functools.partial(PooledContest, pool, entries, sizes=tuple(sizes.values()))
    return _entry(offer, right, ctx, contest, refusals, later)


def _entry(
    offer: Offer,
    right: Sequence[Candidate],
    ctx: MissContext,
    contest_of: Callable[[list[Figures]], OnlineContest | PooledContest],
    refusals: Sequence[Refusal],
    later: Later | None,
    times: CheckTimes | None = None,
) -> Entry:
    takes, shares = sampler(ctx.device)
    figures = _figures(right, ctx, shares)
    flagged = verdicts(ctx.device)
    awaited = {name: flagged(flags) for name, flags in (later or {}).items() if flags and flagged is not None}
    pending = [(one, awaited[one.name]) for one in figures if one.name in awaited]
    contest = contest_of([one for one in figures if one.name not in awaited])
    core, key = ctx.core, ctx.core.backend.key(ctx.args, ctx.kwargs)  # the offer may have shown that it holds more
    done: Callable[[Learning], None] = functools.partial(learned_together, core, key)
    if isinstance(contest, OnlineContest):
        contest.sample_us = takes.sample_us
        host_bound = ctx.host_bound or HostBound(ctx.device, ctx.settings.regime)
        host_bound.figures = {one.name: one for one in figures}
        done = Learned(core, key, keeper(ctx), Watching.of(ctx), ctx.kept, host_bound.any, ctx.awaits_more())
    device = ctx.device

    def paused() -> bool:
        return core.frozen or capturing(device)

    found_right = functools.partial(_note_sound, core)
    learning = Learning(tuple(right), offer, contest, takes, paused, done, found_right, list(refusals), pending, times)
    learning.superseded = ctx.superseded
    choice = Choice("plain", "learning", refusals=(*offer.refusals, *refusals), notes=offer.notes)
    builds = tuple(one.build for one in right if one.build is not None)
    if core.backend.searches:
        learning.in_c = LAUNCHER
        learning.turns = launch_turns(learning, learning.launch, [one.run for one in right])
    else:
        learning.rest = functools.partial(_rest, core, key)
        if takes.in_c and not ctx.grad():  # a backward is followed from its forward, which Python does
            learning.turns = call_turns(learning, learning.unsampled, learning.raised, core.fast_path, device)
    return Entry(learning.turns or learning, all_checks(right), choice, others=builds, learner=learning)


def _figures(candidates: Sequence[Candidate], ctx: MissContext, shares: Shares | None) -> list[Figures]:
    """Those of all candidates, of which none has a sample yet."""
    made = Figures.of_key([one.name for one in candidates], ctx.settings.regime, shares, ctx.grad())
    named = {one.name: one for one in made}
    for one, figures in zip(candidates, made, strict=True):
        figures.code_of = named.get(one.records) if one.records is not None else None
    return made


def _rest(core: DispatcherParts, key: Key, learning: Learning, resting: bool) -> int:
    """Let hits run the best candidate, but for those that have a turn; or let all of them come to be learned from.

    Gives how many calls one that has a turn stands for, 0 where none has one.
    """
    core.turns.begin(core.fast_path)
    entry = next((one for one in core.table.peek(key) if one.learner is learning), None)
    if entry is None or not core.turns.on:
        return 0
    if resting:
        core.turns.hurry(1)  # it is soon that another may be afforded
    best = learning.pinned(entry.choice) if resting else None
    run, retry = (best.run, best.retry) if best is not None else (learning, False)
    if run is not entry.run:
        core.table.replace(key, entry, replace(entry, run=run, retry=retry))
    return max(1, core.turns.passed)


def _without_recordings(
    candidates: list[Candidate], ctx: MissContext, near: Neighbours
) -> tuple[list[Candidate], tuple[Refusal, ...]]:
    """Without those that nobody asked for by name and calls here have not earned; the refusals of those.

    Each is of one key, and would have to be seen at each. A key that finds out together with others has none, and
    leaves them where it is called a lot.
    """
    others = [one for one in candidates if one.missed is None]
    if ctx.settings.graphs != "auto" or len(others) == len(candidates) or ctx.core.table.facts.earned.get(ctx.key):
        return candidates, ()
    pool = pool_of(ctx, near.sizes, make=True) if _may_be_pooled(others, ctx) else None
    if pool is not None and not pool.over and pool.takes(ctx.key):
        pool.family.records = HostBound(ctx.device, ctx.settings.regime).any
        return others, ()
    if ctx.settings.learn != "now":
        return candidates, ()
    return others, tuple(Refusal(one.name, (NOT_EARNED,)) for one in candidates if one.missed is not None)


def _may_be_pooled(candidates: Sequence[Candidate], ctx: MissContext) -> bool:
    """Whether what is found of these at one key says something of others that differ in sizes.

    Not where more may be built for it, and where a build for its very sizes is among them, which is no other key's, or
    one that no graph vouches for: at other sizes its numbers are not known.
    """
    if ctx.settings.learn not in ("now", "background") or ctx.awaits_more() or ctx.core.backend.searches:
        return False
    return all(one.build is None or (one.name != "exact" and one.judged) for one in candidates)


def _pool(right: Sequence[Candidate], ctx: MissContext, near: Neighbours) -> Pool | None:
    """What the key finds the best together with; None where it is learned alone."""
    if not _may_be_pooled(right, ctx):
        return None
    pool = pool_of(ctx, near.sizes, make=True)
    return pool if pool is not None and pool.takes(ctx.key) and not pool.over else None


def _right(
    candidates: Sequence[Candidate],
    trial: Trial,
    ctx: MissContext,
    near: Neighbours,
    later: Later | None,
    times: CheckTimes | None,
) -> tuple[list[Candidate], tuple[Refusal, ...]]:
    """Those that give plain's numbers for this call, and why the others do not.

    A build that its graph vouches for is compared once for its class. The others are with the call's floats in another
    order, too, but for those that were right so at another size: in steps each of them, else where all were.
    """
    pool, sound = pool_of(ctx, near.sizes), ctx.core.table.facts.sound
    known = [one for one in candidates[1:] if one.judged and one.build is not None and sound.get(one.build)]
    asked = [one for one in candidates if one not in known]
    unsure = {one.name for one in asked[1:] if not _is_sure(one, near, pool)}
    rules = ctx.judging(trial)
    right, wrong = {one.name for one in asked}, tuple[Refusal, ...]()
    if len(asked) > 1:
        runs, rules = [_timed(one, times) for one in asked], replace(rules, permute=rules.permute and bool(unsure))
        if ctx.later is not None and ctx.later.in_steps and ctx.core.backend.searches:
            wrong = _wrong_by_steps(runs, unsure, trial, rules, ctx.later, later)
        else:
            _, wrong, _ = checked(runs, trial, rules, later)
        right -= {refusal.variant for refusal in wrong}
    for one in asked:
        if one.name in right and not (later or {}).get(one.name):  # else the device has yet to say
            _note_sound(ctx.core, one)
    return [one for one in candidates if one in known or one.name in right], wrong


def _is_sure(one: Candidate, near: Neighbours, pool: Pool | None) -> bool:
    """Whether it was right on more than one set of values, by its graph or at another size."""
    return one.judged or near.timed(one.name) or (pool is not None and pool.knows(one.name))


def _wrong_by_steps(
    candidates: Sequence[Candidate],
    unsure: Collection[str],
    trial: Trial,
    rules: Rules,
    looks: Looks,
    later: Later | None,
) -> tuple[Refusal, ...]:
    """Why some do not give plain's numbers, as `checked` says; few are compared in a look, since there may be many.

    They are at the call's own values first, and those of which it is ``unsure`` in other looks with these in another
    order: both take twice as long. Raises LeftForNext where a look was for that.
    """
    plain, *others = candidates
    known = looks.steps.compared
    for permuted in (False, True) if rules.permute else (False,):
        of_these = [one for one in others if one.name in unsure] if permuted else others
        if left := [one for one in of_these if _is_left(one, permuted, known)]:
            if later is not None:
                _warm_up(plain, trial, rules, looks)
            some = functools.partial(_compared, plain, left, trial, rules, later is not None, permuted)
            known |= looks.once("compared", some) or {}
            looks.revisit()
    looks.raise_if_left()
    found = [(one.name, *known[at]) for one in others for at in _comparisons(one) if at in known]
    known.clear()
    if later is not None:
        for name, _, flags in found:
            later[name] = [*later.get(name, ()), *flags]
    return tuple(refusal for _, wrong, _ in found for refusal in wrong)


def _comparisons(one: Candidate) -> tuple[Hashable, Hashable]:
    """Under what is known how it compares at the call's own values, and with these in another order."""
    return (one.name, one.build, False), (one.name, one.build, True)


def _is_left(one: Candidate, permuted: bool, known: Mapping[Any, Any]) -> bool:
    """Whether it is to be compared yet, ``permuted`` once it is known to be right at the call's own values."""
    own, other = _comparisons(one)
    if not permuted:
        return own not in known
    wrong, _ = known.get(own, (True, ()))
    return not (wrong or other in known)


def _warm_up(plain: Candidate, trial: Trial, rules: Rules, looks: Looks) -> None:
    """See to it that a device has loaded what compares numbers; raises LeftForNext where that is left, or took time."""
    if not WARMUP.is_over(trial):
        alike = [replace(plain, run=_writes_nothing), replace(plain, name="another", run=_writes_nothing)]

        def compare(few: Trial) -> None:
            with suppress(PlainRaised):  # there is no memory: a comparison will say so
                checked(alike, few, rules, {})

        looks.once("warmed up", functools.partial(WARMUP.go_on, trial, compare))
        looks.raise_if_left()


def _writes_nothing(*args: Any) -> None:
    """What a warm-up runs for a kernel."""


def _compared(
    plain: Candidate, others: Sequence[Candidate], trial: Trial, rules: Rules, flagged: bool, permuted: bool
) -> dict[Any, tuple[tuple[Refusal, ...], list[Tensor]]]:
    """Why each of the first of these does not give plain's numbers, if so; where ``flagged``, flags say it later."""
    found: dict[Any, tuple[tuple[Refusal, ...], list[Tensor]]] = {}
    later: Later | None = {} if flagged else None
    end_s, most = time.perf_counter() + COMPARE_S, COMPARE_BYTES // max(1, trial.bytes_to_copy())
    for one, wrong in checked_one_by_one([plain, *others], trial, rules, later, permuted):
        found[_comparisons(one)[permuted]] = (wrong,) if wrong else (), (later or {}).get(one.name, [])
        if time.perf_counter() > end_s or len(found) >= most:
            break
    return found


def _timed(candidate: Candidate, times: CheckTimes | None) -> Candidate:
    """The same, whose runs are noted; not a recording, which is made at some of them."""
    if times is None or candidate.missed is not None:
        return candidate
    return replace(candidate, run=times.timed(candidate.name, candidate.run))


def _note_sound(core: DispatcherParts, candidate: Candidate) -> None:
    """It gave plain's numbers."""
    if candidate.numbers is not None:
        core.table.facts.sound[candidate.numbers] = True


def _best(margin: float) -> Callable[[Sequence[Timing]], Timing | None]:
    return lambda timings: best(timings, margin, "time")[0]
