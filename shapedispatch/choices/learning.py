"""A key whose choice is being learned from its own calls: each runs one candidate, once, until the best is known.

The candidates have been found right before. No call waits: where another thread is noting a sample, or nothing may be
sampled now, the best known candidate runs.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..autotune.benchmark import undecided
from ..autotune.choose import Later, best, checked
from ..autotune.trial import Trial
from ..backend import Candidate, Offer
from ..errors import in_a_line
from ..hit.native import LaunchTurns, launch_turns
from ..hit.table import Entry
from ..keys.key import Key
from ..online.backward import follow, history
from ..online.contest import FAR, OnlineContest
from ..online.real_calls import Figures, Sampler, Verdict, sampler, verdicts
from ..records import Choice, Refusal, Timing
from .context import DispatcherParts, MissContext, capturing
from .known_choices import keeper
from .neighbours import Neighbours, remember
from .pool import TOGETHER, Pool, PooledContest, instead, pool_of
from .watch import CALLED, LAUNCHED, Watching, Way

__all__ = ["Learning", "learn", "pooled"]

PATIENCE = 3
"""Calls in a row that are not C's, though it has turns, before samples are taken here: a first call has no node."""
BETWEEN = 16
"""Launches in C of the leader, where no sample may be taken, before it is asked again whether one may."""
WRONG = "it gives other numbers than plain"


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
    right, wrong = (likely, ()) if unseen else _right(likely, trial, ctx, near, later)
    if unseen:
        offer = replace(offer, notes=(*offer.notes, f"trusted, and not compared with plain: {unseen}"))
    refusals = (*wrong, *(Refusal(one.name, (far[one.name],)) for one in others if one.name in far))
    if len(right) == 1:
        return right[0].wins("timed", offer, (), refusals)
    if pool := None if unseen else _pool(right, offer, ctx, near, began_ns):
        return pooled(offer, right, ctx, pool, refusals, later)

    def contest(ready: list[Figures]) -> OnlineContest:
        return OnlineContest([*ready], ctx.settings.margin, _best(ctx.settings.margin), near.order())

    return _entry(offer, right, ctx, contest, refusals, later)


def pooled(
    offer: Offer,
    right: Sequence[Candidate],
    ctx: MissContext,
    pool: Pool,
    refusals: Sequence[Refusal] = (),
    later: Later | None = None,
) -> Entry:
    """The entry that learns, among those that are right, together with other keys."""
    return _entry(offer, right, ctx, functools.partial(PooledContest, pool), refusals, later)


def _entry(
    offer: Offer,
    right: Sequence[Candidate],
    ctx: MissContext,
    contest_of: Callable[[list[Figures]], OnlineContest | PooledContest],
    refusals: Sequence[Refusal],
    later: Later | None,
) -> Entry:
    takes, shares = sampler(ctx.device, ctx.settings.regime)
    figures = Figures.of_key([one.name for one in right], ctx.settings.regime, shares, ctx.grad())
    flagged = verdicts(ctx.device)
    awaited = {name: flagged(flags) for name, flags in (later or {}).items() if flags and flagged is not None}
    pending = [(one, awaited[one.name]) for one in figures if one.name in awaited]
    contest = contest_of([one for one in figures if one.name not in awaited])
    core, key = ctx.core, ctx.core.backend.key(ctx.args, ctx.kwargs)  # the offer may have shown that it holds more
    done: Callable[[Learning], None] = functools.partial(_settled_together, core, key)
    if isinstance(contest, OnlineContest):
        done = _Settled(core, key, keeper(ctx), Watching.of(ctx), ctx.kept)
    device = ctx.device

    def paused() -> bool:
        return core.frozen or capturing(device)

    learning = Learning(tuple(right), offer, contest, takes, paused, done, list(refusals), pending)
    choice = Choice("plain", "learning", refusals=(*offer.refusals, *refusals), notes=offer.notes)
    builds = tuple(one.build for one in right if one.build is not None)
    if core.backend.searches:
        learning.turns = launch_turns(learning, learning.launch, [one.run for one in right])
    return Entry(learning.turns or learning, _all_checks(right), choice, others=builds, learner=learning)


def _pool(right: Sequence[Candidate], offer: Offer, ctx: MissContext, near: Neighbours, began_ns: int) -> Pool | None:
    """What the key finds the best together with, having joined; None where it is learned alone.

    As where a build for its very sizes is among them, which is no other key's.
    """
    if ctx.settings.learn != "now" or ctx.core.backend.searches or any(one.name == "exact" for one in right):
        return None
    pool = pool_of(ctx, near.sizes, make=True)
    if pool is None or not pool.takes(ctx.key) or pool.over:
        return None
    pool.join({one.name: one.entry(Choice(one.name, "nearest"), offer) for one in right}, began_ns)
    return pool


def _right(
    candidates: Sequence[Candidate], trial: Trial, ctx: MissContext, near: Neighbours, later: Later | None
) -> tuple[list[Candidate], tuple[Refusal, ...]]:
    """Those that give plain's numbers for this call, and why the others do not.

    A build that its graph vouches for is compared once for its class. The others are with the call's floats in another
    order, too, unless all that no graph vouches for were right at another size.
    """
    pool, sound = pool_of(ctx, near.sizes), ctx.core.table.facts.sound
    known = [one for one in candidates[1:] if one.judged and one.build is not None and sound.get(one.build)]
    asked = [one for one in candidates if one not in known]
    sure = all(one.judged or near.timed(one.name) or (pool is not None and pool.knows(one.name)) for one in asked[1:])
    rules = ctx.judging(trial)
    right, wrong = list(asked), tuple[Refusal, ...]()
    if len(asked) > 1:
        right, wrong, _ = checked(asked, trial, replace(rules, permute=rules.permute and not sure), later)
    for one in right:
        if one.build is not None and not (later or {}).get(one.name):
            sound[one.build] = True
    return [one for one in candidates if one in known or one in right], wrong


def _best(margin: float) -> Callable[[Sequence[Timing]], Timing | None]:
    return lambda timings: best(timings, margin, "time")[0]


def _all_checks(candidates: Sequence[Candidate]) -> Callable[[tuple[Any, ...], Mapping[str, Any]], bool] | None:
    """The guards of all builds: where one does not hold, the state is another, which is learned of its own."""
    checks = [one.check for one in candidates if one.build is not None and one.check is not None]
    if not checks:
        return None
    return lambda args, kwargs: all(check(args, kwargs) for check in checks)


@dataclass(slots=True, eq=False)
class Learning:
    """What a key runs meanwhile; ``done(self)`` is called once, when its contest is over."""

    candidates: tuple[Candidate, ...]
    offer: Offer
    contest: OnlineContest | PooledContest
    sampler: Sampler
    paused: Callable[[], bool]
    done: Callable[[Learning], None]
    refusals: list[Refusal] = field(default_factory=list)
    pending: list[tuple[Figures, Verdict]] = field(default_factory=list)
    """Those of which the device has not said yet whether their numbers are right: none runs."""
    turns: LaunchTurns | None = None
    """Where hits of a kernel are launched in C: which candidate each launches."""
    _taken: int = 0
    _passed_over: int = 0
    """Calls in a row that came here though C had launches to make."""
    _noting: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run the call once: as a sample, or by the best candidate known."""
        return self._ran(CALLED, args, kwargs)

    def launch(self, /, *launch: Any) -> Any:
        """The same for a hit of a kernel."""
        return self._ran(LAUNCHED, launch, {})

    def _ran(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.paused() or not self._noting.acquire(blocking=False):
            return way(self.leader())(*args, **kwargs)
        try:
            if self.pending:
                self._admit()
            if self.turns is not None and self._goes_on_in_c(self.turns):
                return self._unsampled(way, args, kwargs)
            figures = None if self._alone() else self.contest.next_sample()
            if not isinstance(figures, Figures):
                self._end()  # others may have ended what is found together
                return self._unsampled(way, args, kwargs)
            return self._sampled(figures, way, args, kwargs)
        finally:
            self._noting.release()

    def _admit(self) -> None:
        """Take in who is known to be right by now, and leave out who is wrong."""
        for one in [one for one in self.pending if one[1].ready()]:
            figures, verdict = one
            self.pending.remove(one)
            if verdict.wrong():
                self.refusals.append(Refusal(figures.name, (WRONG,)))
            else:
                before = [other.name for other in self.candidates].index
                earlier = [other for other in self.contest.contestants if before(other.name) < before(figures.name)]
                self.contest.admit(figures, len(earlier))
        if not self.pending and len(self.contest.contestants) == 1:
            self.contest.over = True
            self.done(self)

    def _alone(self) -> bool:
        """Whether the numbers of no other candidate are known yet."""
        return bool(self.pending) and len(self.contest.contestants) == 1

    def _goes_on_in_c(self, turns: LaunchTurns) -> bool:
        """Note what was launched in C since the last time, and say what is next; False where C does not get there.

        The call that is here is no sample: it takes the host longer than those.
        """
        self._passed_over = self._passed_over + 1 if turns.left and turns.taken == self._taken else 0
        for whose, started_ns, host_ns, device_us, dry in turns.collect():
            if not self.contest.over:
                self.sampler.noted(whose, started_ns, host_ns, device_us, dry)
                self.contest.sampled(whose, self.sampler.took_us(whose))
        if self.contest.over and not self.pending:
            turns.begin(())
            self.done(self)
        elif self._passed_over > PATIENCE:
            turns.begin(())
            self.turns = None
        elif not turns.left:
            turns.begin(self._next_turns(turns))
        self._taken = turns.taken
        return self.turns is not None

    def _next_turns(self, turns: LaunchTurns) -> tuple[tuple[Any, Any, int], ...]:
        """A round, once all samples of the last one are over; else some launches of the leader."""
        sampled = [] if turns.waiting or self._alone() else self.contest.next_samples()
        if sampled:
            return tuple((self._named(one.name).run.launcher, one, 1) for one in sampled)  # type: ignore[attr-defined]
        leader = self.contest.leader()
        self.contest.ran(BETWEEN * leader.cost().median_us)
        return ((self._named(leader.name).run.launcher, None, BETWEEN),)  # type: ignore[attr-defined]  # as C has it

    def _unsampled(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leader = self.contest.leader()
        self.contest.ran(leader.cost().median_us)
        return way(self._named(leader.name))(*args, **kwargs)

    def _sampled(self, figures: Figures, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        candidate = self._named(figures.name)
        before = history(args, kwargs) if figures.backward is not None else None
        try:
            answer = self.sampler.run(figures, way(candidate), args, kwargs)
        except Exception as error:  # the boundary where a candidate is judged; the reason is kept
            written = self.offer.written
            if candidate.build is None or written is None or written:  # plain's own, or it may have written something
                raise
            answer = way(self.candidates[0])(*args, **kwargs)  # if it raises too, that is the answer
            self.refusals.append(Refusal(candidate.name, (f"it raised {in_a_line(error)}",)))
            self.contest.failed(figures)
        else:
            if before is not None:
                follow(answer, before, figures, self.sampler, self.paused)
            self.contest.sampled(figures, self.sampler.took_us(figures) + figures.behind_us())
        self._end()
        return answer

    def _end(self) -> None:
        if self.contest.over and not self.pending:
            self.done(self)

    def _named(self, name: str) -> Candidate:
        return next(candidate for candidate in self.candidates if candidate.name == name)

    def leader(self) -> Candidate:
        """The best candidate as far as it is known."""
        return self._named(self.contest.leader().name)

    def choice(self, begun: Choice) -> Choice:
        """What stands now, of the choice with which it began."""
        refused = tuple(dict.fromkeys((*begun.refusals, *self.refusals)))
        timings = tuple(self.contest.costs())
        decided_by = dict.fromkeys(one.decided_by() for one in self.contest.contestants if isinstance(one, Figures))
        notes = tuple(dict.fromkeys((*begun.notes, *decided_by)))
        leader = self.leader()
        begun = replace(begun, variant=leader.name, config=leader.config)
        return replace(begun, timings=timings, refusals=refused, notes=notes)

    def with_backward(self) -> bool:
        """Whether backwards are part of what its candidates take."""
        figures = (one for one in self.contest.contestants if isinstance(one, Figures))
        return any(one.backwards.seen and not one.backwards.unknown for one in figures)

    def pinned(self, begun: Choice) -> Entry:
        """The entry of what is best as far as it is known."""
        return self.leader().entry(self.choice(begun), self.offer)


def _settled_together(core: DispatcherParts, key: Key, learning: Learning) -> None:
    """Let stay what keys have found together; where this one does not have it, its next call is decided anew."""
    contest, found = learning.contest, None
    before = next((entry for entry in core.table.peek(key) if entry.learner is learning), None)
    if before is not None and isinstance(contest, PooledContest) and learning.leader().name == contest.pool.favourite:
        found = learning.pinned(before.choice).changed(origin="nearest", notes=(*before.choice.notes, TOGETHER))
    instead(core.table, key, learning, found)


@dataclass(frozen=True, slots=True)
class _Settled:
    """What becomes of a key that has been learned: it holds no call."""

    core: DispatcherParts
    key: Key
    keep: Callable[[Key, Choice], None]
    watching: Watching
    kept: Callable[[Entry], Entry]

    def __call__(self, learning: Learning) -> None:
        table = self.core.table
        entry = next((one for one in table.peek(self.key) if one.learner is learning), None)
        if entry is None:  # it has left, or was decided otherwise
            return
        supplied = {one.name for one in learning.offer.candidates if one.supplied}
        for refusal in learning.refusals:
            if refusal.reasons == (WRONG,) and refusal.variant in supplied:
                table.log.warn_supplied(refusal, lambda: self.core.backend.name)
        found = self.entry(learning, entry.choice)
        settled = self.kept(found)
        table.replace(self.key, entry, settled)
        if settled is found:  # else there may be more to choose among yet, here and at other sizes
            remember(self.core, self.key, settled.choice)

    def entry(self, learning: Learning, begun: Choice) -> Entry:
        """The winner's entry, remembered in the store too, unless the samples do not bear it out."""
        choice = replace(learning.choice(begun), origin="timed")
        won = next((timing for timing in choice.timings if timing.variant == choice.variant), None)
        others = [timing for timing in choice.timings if timing is not won]
        near = [other for other in others if won is not None and other.median_us <= FAR * won.median_us]
        doubts = (undecided(won, other) for other in near) if won is not None else ()
        doubt = next(filter(None, doubts), None)
        self.core.table.count("timings")
        self.core.table.log.decided(choice)
        if doubt is None:
            self.keep(self.key, choice)
        else:
            choice = replace(choice, notes=(*choice.notes, f"undecided, and not stored: {doubt}"))
        entry = learning.leader().entry(choice, learning.offer)
        return self.watching.of_entry(entry, learning.offer, learning.with_backward())
