"""What runs a key whose choice is being learned from its own calls: each runs one candidate, once; no call waits.

Where another thread is noting a sample, or nothing may be sampled now, the best known candidate runs.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from ..backend import Candidate, Check, Offer
from ..errors import in_a_line
from ..hit import native
from ..hit.table import Entry
from ..hit.turns import LaunchTurns
from ..interpreter.failures import what_fails
from ..interpreter.locks import TryLock
from ..online.backward import follow, history
from ..online.check_times import CheckTimes
from ..online.contest import OnlineContest
from ..online.figures import Figures
from ..online.real_calls import Sampler
from ..online.verdicts import Verdict
from ..records import Choice, Refusal
from .pooled import PooledContest
from .sampling import CALLED, LAUNCHER, Sampling, Way, unless_missed

__all__ = ["WARM", "WRONG", "Learning", "all_checks", "all_checks_of"]

PATIENCE = 3
"""Calls in a row that are not C's, though it has turns, before samples are taken here: a first call has no node."""
BETWEEN, MOST_WAITING, MOST_BETWEEN = 16, 128, 1024
"""Runs in C of the leader before it is asked again, which takes long, where no sample may be taken: twice as many each
time; the second where samples are not over yet."""
AFTER, MOST_MISSED = 4, 512
"""The same behind the last sample of a round. And how many calls of a CUDA graph may be no replay before one counts."""
WARM = 3
"""How many calls of a candidate go before its sample: of small ones, one more or less makes no difference then."""
SOON_US = 1_000.0
"""So long after the last call of a key, at most, the next finds what that left in the caches."""
WRONG = "it gives other numbers than plain"


def _is_soon(away_us: float, own_us: float, calls: int = 1) -> bool:
    """Whether so many calls came soon one after the other, away for so long in all: what they took is no pause."""
    return away_us <= calls * SOON_US + (own_us if math.isfinite(own_us) else 0.0)


def all_checks(candidates: Sequence[Candidate]) -> Check | None:
    """The guards of all but plain: where one does not hold, the state is another, which is learned of its own."""
    return all_checks_of([*dict.fromkeys([one.check for one in candidates if one.build is not None or one.supplied])])


def all_checks_of(checks: Sequence[Check | None]) -> Check | None:
    """The same of these guards, of which there are none where nothing is to be asked."""
    asked = [check for check in checks if check is not None]
    return native.all_checks(asked) if asked else None


@dataclass(slots=True, eq=False)
class Learning(Sampling):
    """What a key runs meanwhile; ``done(self)`` is called once, when its contest is over.

    ``found_right`` is told each candidate of ``pending`` that turns out to be right.
    """

    candidates: tuple[Candidate, ...]
    offer: Offer
    contest: OnlineContest | PooledContest
    sampler: Sampler
    paused: Callable[[], bool]
    done: Callable[[Learning], None]
    found_right: Callable[[Candidate], None]
    refusals: list[Refusal] = field(default_factory=list)
    pending: list[tuple[Figures, Verdict]] = field(default_factory=list)
    """Those of which the device has not said yet whether their numbers are right: none runs."""
    check_times: CheckTimes | None = None
    """What they took where that was seen."""
    turns: LaunchTurns | None = None
    """Where hits are run in C: which candidate each runs."""
    in_c: Way = CALLED
    """How C runs a candidate."""
    superseded: Callable[[], bool] = lambda: False
    """Whether there is more to choose among: what is best so far runs then, and all of it is looked at."""
    rest: Callable[[Learning, bool], int] | None = None
    """Lets hits run the best candidate, or no longer; gives for how many calls each that comes here stands."""
    _taken: int = 0
    _between: int = 1
    _missed: dict[str, int] = field(default_factory=dict)
    """Of each candidate that is a recording, the calls that were no replay when the turns that are on began."""
    _forgotten: set[str] = field(default_factory=set)
    """Whose samples of the time before there was a recording have been forgotten."""
    _passed_over: int = 0
    """Calls in a row that came here though C had launches to make."""
    _next: Figures | None = None
    """Whose sample is the next one: calls of it go before, so that it finds its code in the caches."""
    _warm: int = 0
    """How many of them are left."""
    _ended_ns: int = 0
    """When the last call was over."""
    _away_us: float = 0.0
    """How long after it this one came."""
    _is_resting: bool = False
    """Whether this call stands for others, of which none is a sample."""
    _noting: TryLock = field(default_factory=TryLock)

    def _pauses(self) -> bool:
        return self.paused()

    def _best(self) -> Candidate:
        return self.leader()

    def _ran_once(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        if self.pending:
            self._admit()
        if self.turns is not None and self._looked_at(self.turns):
            begun = self.in_c is CALLED and self.turns.left > 0
            return self.turns(*args, **kwargs) if begun else self._unsampled(way, args, kwargs)
        figures, self._away_us = self._next, (self.sampler.clock_ns() - self._ended_ns) / 1e3
        self.sampler.came_back(self._away_us)
        try:
            if figures is None:
                return self._begun(way, args, kwargs)
            if self._warm > 0:
                return self._warmed(figures, way, args, kwargs)
            self._next = None
            return self._sampled(figures, way, args, kwargs)
        finally:
            self._ended_ns = self.sampler.clock_ns()

    def _begun(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the call by whose sample is wanted next, or by the best where none is.

        What a small call takes after other candidates' calls is not what it takes where it was chosen. So calls go
        before the sample, and nothing between them, where the contest asks for that.
        """
        soon = _is_soon(self._away_us, self._leader_us() if self.sampler.late else 0.0)  # it may have waited
        self._give_way()
        self.sampler.collect()  # a key that waits for its last samples makes no other
        waits = self._alone() or self.sampler.waiting() > len(self.contest.contestants)
        figures = None if waits else self.contest.next_sample()
        if not isinstance(figures, Figures):
            self._end()  # others may have ended what is found together
            self._rest(not waits and self.contest.rests())
            return self._unsampled(way, args, kwargs)
        self._rest(False)
        before = self.contest.calls_before(figures, soon, WARM)
        if not before:
            return self._sampled(figures, way, args, kwargs)
        self._next, self._warm = figures, before
        figures.warmed()
        return self._warmed(figures, way, args, kwargs)

    def _give_way(self) -> None:
        """End the contest of a key of its own where there is more to choose among."""
        if isinstance(self.contest, OnlineContest) and not self.contest.over and self.superseded():
            self.contest.over = True

    def _rest(self, resting: bool) -> None:
        """Let hits come here no more, but for a few; or all of them again."""
        if self.rest is None or self.turns is not None or self._is_resting is resting is False:
            return
        calls = self.rest(self, resting)
        if self._is_resting:
            self.contest.ran((calls - 1) * self._leader_us())
        self._is_resting = resting and calls > 0

    def _warmed(self, figures: Figures, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run the call by whose sample comes after it."""
        self._warm -= 1
        self.contest.warmed(figures)
        return self._unsampled_by(self._named(figures.name), way, args, kwargs)

    def _admit(self) -> None:
        """Take in who is known to be right by now, and leave out who is wrong."""
        ready = [one for one in self.pending if one[1].ready()]
        if ready and self.check_times is not None:
            self.check_times.read(self.candidates[0].name)
        for one in ready:
            figures, verdict = one
            self.pending.remove(one)
            if verdict.wrong():
                self.refusals.append(Refusal(figures.name, (WRONG,)))
            else:
                before = [other.name for other in self.candidates].index
                earlier = [other for other in self.contest.contestants if before(other.name) < before(figures.name)]
                self.contest.admit(figures, len(earlier))
                self.found_right(self._named(figures.name))
        if not self.pending and len(self.contest.contestants) == 1:
            self.contest.over = True
            self.done(self)

    def _alone(self) -> bool:
        """Whether the numbers of no other candidate are known yet."""
        return bool(self.pending) and len(self.contest.contestants) == 1

    def _looked_at(self, turns: LaunchTurns) -> bool:
        """Whether what comes next is C's; what it takes to see to that is lost like what samples cost.

        Of keys that find out together many have one call: it may be a sample, which is taken here.
        """
        if not self._ended_ns and isinstance(self.contest, PooledContest):
            return False
        began_ns = self.sampler.clock_ns()
        goes_on = self._goes_on_in_c(turns, (began_ns - self._ended_ns) / 1e3)
        self._ended_ns = self.sampler.clock_ns()
        if not self.contest.over:
            self.contest.looked((self._ended_ns - began_ns) / 1e3)
        return goes_on

    def _goes_on_in_c(self, turns: LaunchTurns, away_us: float) -> bool:
        """Note what C has run since, so long ago, and say what is next; False where it does not get there."""
        self._passed_over = self._passed_over + 1 if turns.left and turns.taken == self._taken else 0
        taken = turns.collect()
        for number, (whose, _, host_ns, device_us, dry, since_us) in enumerate(taken, 1):
            if self._is_replay(whose):
                self._noted(whose, host_ns / 1e3, device_us, dry, since_us, number < len(taken))
            else:
                self._was_no_replay(whose, host_ns / 1e3)
        self.sampler.collect()  # what a first call took, which was a sample here
        self._give_way()
        each_us = [max(host_ns / 1e3, us) for _, _, host_ns, us, *_ in taken] or [self._leader_us()]
        soon = _is_soon(away_us, turns.taken * sum(each_us) / len(each_us), 1 + turns.taken)
        wanted = () if self.contest.over or turns.left else self._next_turns(turns, soon)
        if self.contest.over and not self.pending:
            turns.begin(())
            self.done(self)
        elif self._passed_over > PATIENCE:
            turns.begin(())
            self.turns = None
        elif not turns.left:
            turns.begin(wanted or self._of_leader(BETWEEN))
        self._taken = turns.taken
        return self.turns is not None

    def _noted(
        self, whose: Figures, host_us: float, device_us: float, dry: bool, since_us: float | None, more: bool
    ) -> None:
        if not self.contest.over:
            self.sampler.noted(whose, host_us, device_us, dry, since_us)
            self.contest.sampled(whose, self.sampler.took_us(whose), more)

    def _is_replay(self, whose: Figures) -> bool:
        """Whether its last turns were calls of what they are to tell of; too many that were not count all the same."""
        before = self._missed.get(whose.name)
        if before is None or before >= MOST_MISSED:
            return True
        missed = self._named(whose.name).missed
        return missed is None or missed() == before

    def _next_turns(self, turns: LaunchTurns, soon: bool) -> tuple[tuple[Any, Any, int], ...]:
        """A round, once all samples of the last one are over; else some runs of the leader."""
        samples = [] if turns.waiting or self._alone() else self.contest.next_samples()
        sampled = [one for one in samples if isinstance(one, Figures)]
        if self.contest.over:  # others may have ended what is found together
            return ()
        if sampled:
            self._between = BETWEEN
            of_each = {one: self._turns_of(one, soon, sampled.count(one)) for one in set(sampled)}
            after = self._of_leader(AFTER, sampled_only=True) if self.sampler.late else ()
            return (*chain.from_iterable(of_each[one] for one in sampled), *after)
        if turns.waiting and self._between >= MOST_WAITING and isinstance(self.contest, OnlineContest):
            self.contest.late = True
        least, most = (0, MOST_WAITING) if turns.waiting else (self.contest.calls_until_next(), MOST_BETWEEN)
        self._between = 2 * (calls := min(max(self._between, least), most))
        return self._of_leader(calls)

    def _of_leader(self, calls: int, sampled_only: bool = False) -> tuple[tuple[Any, Any, int], ...]:
        """So many calls of it; with ``sampled_only`` none before there is a sample of it."""
        leader = self.contest.leader()
        cost = leader.cost()
        if sampled_only and not cost.repeats:
            return ()
        self.contest.ran(calls * cost.median_us)
        return ((self.in_c(self._named(leader.name)), None, calls),)

    def _turns_of(self, one: Figures, soon: bool, times: int) -> tuple[tuple[Any, Any, int], ...]:
        """Its sample and, of a function, the calls that go before; launches in C all run the same code.

        ``times`` is how many times that is begun now.
        """
        candidate = self._named(one.name)
        run, sample = self.in_c(candidate), (self.in_c(candidate), one, 1)
        if candidate.missed is not None:
            self._missed[one.name] = candidate.missed()
        before = 0 if self.in_c is LAUNCHER else self.contest.calls_before(one, soon, WARM)
        if not before:
            return (sample,)
        one.warmed()
        self.contest.warmed(one, times * before)
        return (run, None, before), sample

    def unsampled(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run a call by the best candidate known: another one is a sample now."""
        return self._unsampled_by(self._best(), CALLED, args, kwargs)

    def raised(self, turn: tuple[Any, Figures | None, int], /, *args: Any, **kwargs: Any) -> Any:
        """Plain's answer, where it may give one, to a call at which a turn's candidate raised what is being handled."""
        error = sys.exc_info()[1]
        candidate = next(one for one in self.candidates if self.in_c(one) is turn[0])
        assert isinstance(error, Exception)
        if not self._plain_may_answer(candidate):
            raise error
        answer = self.candidates[0].run(*args, **kwargs)  # if it raises too, that is the answer
        self._raised(candidate, error)
        if turn[1] in self.contest.contestants and (held := self._noting.take()) is not None:
            self.contest.failed(turn[1])  # type: ignore[arg-type]  # of either contest
            self._noting.give_back(held)
        return answer

    def _unsampled(self, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        leader = self.contest.leader()
        self.contest.ran(leader.cost().median_us)
        return self._unsampled_by(self._named(leader.name), way, args, kwargs)

    def _raised(self, one: Candidate, error: Exception) -> None:
        if all(refusal.variant != one.name for refusal in self.refusals):  # it may raise at each call
            self.refusals.append(Refusal(one.name, (f"it raised {in_a_line(error)}",)))

    def _sampled(self, figures: Figures, way: Way, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        began_ns, candidate = self.sampler.clock_ns(), self._named(figures.name)
        before = history(args, kwargs) if figures.backward is not None else None
        missed = candidate.missed() if candidate.missed is not None else 0
        try:
            answer = self.sampler.run(figures, unless_missed(figures, candidate, way(candidate)), args, kwargs)
        except what_fails() as error:  # the boundary where a candidate is judged; the reason is kept
            if not self._plain_may_answer(candidate):
                raise
            answer = way(self.candidates[0])(*args, **kwargs)  # if it raises too, that is the answer
            self._raised(candidate, error)
            self.contest.failed(figures)
        else:
            if candidate.missed is not None and candidate.missed() != missed and missed < MOST_MISSED:
                self._was_no_replay(figures, self._since_us(began_ns))
                return answer
            if before is not None:
                follow(answer, before, figures, self.sampler, self.paused)
                self._ran_by(candidate, args, kwargs, answer)
            self.contest.sampled(figures, self.sampler.took_us(figures) + figures.backward_us())
            self.contest.looked(max(0.0, self._since_us(began_ns) - self.sampler.ran_us))
        self._end()
        return answer

    def _was_no_replay(self, whose: Figures, took_us: float) -> None:
        """It is its turn again: a graph takes some calls until it is there, and is what its samples are to tell of."""
        if whose.name not in self._forgotten:
            self._forgotten.add(whose.name)
            whose.forget()
        self.contest.missed(whose, took_us)  # type: ignore[arg-type]  # of either contest

    def _since_us(self, began_ns: int) -> float:
        return (self.sampler.clock_ns() - began_ns) / 1e3

    def _end(self) -> None:
        if self.contest.over and not self.pending:
            self.done(self)

    def _named(self, name: str) -> Candidate:
        for candidate in self.candidates:  # no generator: it is asked at each sample
            if candidate.name == name:
                return candidate
        raise LookupError(f"there is no candidate {name}")

    def _leader_us(self) -> float:
        """What a call of it takes as far as that is known."""
        return self.contest.leader().cost().median_us

    def leader(self) -> Candidate:
        """The best candidate as far as it is known."""
        return self._named(self.contest.leader().name)

    def choice(self, begun: Choice) -> Choice:
        """What stands now, of the choice with which it began."""
        refused = tuple(dict.fromkeys((*begun.refusals, *self.refusals)))
        plain = self.contest.contestants[0]  # the others are judged by the same
        by = [plain.decided_by()] if isinstance(plain, Figures) else []
        notes = tuple(dict.fromkeys((*begun.notes, *self.why_plain(), *by)))
        leader = self.leader()
        begun = replace(begun, variant=leader.name, config=leader.config, route=leader.route)
        return replace(begun, timings=tuple(self.contest.costs()), refusals=refused, notes=notes)

    def with_backward(self) -> bool:
        """Whether backwards are part of what its candidates take."""
        figures = (one for one in self.contest.contestants if isinstance(one, Figures))
        return any(one.backwards.seen and not one.backwards.unknown for one in figures)

    def pinned(self, begun: Choice) -> Entry:
        """The entry of what is best as far as it is known."""
        return self.leader().entry(self.choice(begun), self.offer)
