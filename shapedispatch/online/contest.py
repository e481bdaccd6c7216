"""Which candidate the next real call of a key runs, while it is being learned which is the best.

Each call runs one candidate, once. In rounds all that are still running get a call each, in an order that turns from
round to round; what is clearly behind leaves, after a single sample where it is far; ties are the earlier candidate's.
What the samples cost beyond the best known candidate is bounded: where it is used up, calls run that one until there is
time for another sample.

Nothing here runs or times anything: costs are told, so that all of the policy is tested without a clock.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile

from ..autotune.benchmark import (
    ENOUGH,
    FEW,
    MATTERS,
    ahead,
    are_tied,
    how_far_behind,
    in_slow_spell,
    is_ahead_at_last,
    is_behind,
    is_decided,
    is_no_better,
)
from ..records import Timing
from .figures import Contestant
from .getting_ready import NOTING_US, GettingReady

__all__ = [
    "COLD_US", "EVALUATED_AFTER", "FAR", "MOST_AT_ONCE", "MOST_NOTING_US", "SAMPLE_US", "SHARE", "SMALL_US",
    "OnlineContest",
]  # fmt: skip

SHARE, FREE_US = 0.03, 3_000.0
"""What learning may cost at a key beyond the best candidate: a share of the time spent there, and so much at first."""
FREE_CALLS, LEAST_FREE_US = 20, 1_000.0
"""At first it is no more than so many calls of the best take, but at least so much, unless one has to get ready, which
takes that: a thousand calls that take `COLD_US` each are to cost a twentieth more, the share included."""
FAR = 10.0
"""How much above the leader's cost that of a candidate is which leaves after one sample, if that was dear."""
SMALL_US, COLD_US = 200.0, 50.0
"""What the caches hold of a candidate's code makes no difference to a call that takes longer; to others, at most so
much."""
PAUSE_US = 20_000.0
"""What a pause of the machine may add to a sample: a candidate whose only one is no farther above the leader's gets
another, whatever that costs, and the loss back where it was a pause."""
ROUNDS_MIN, ROUNDS_TIE, ROUNDS_MAX, ROUNDS_MORE = ENOUGH, 11, 40, 256
"""Rounds before anything is settled; after which near ties are; after which all is but for what would be faster by more
than the margin if noise did not explain it; after which that is, too: luck should decide as little as it can."""
EVALUATED_AFTER = (1, FEW, FEW + 1, ROUNDS_MIN, ROUNDS_TIE, 24, ROUNDS_MAX)
"""Rounds after which it is looked who leaves: that takes longer than calls do. After each while a sample is doubted."""
EVALUATED_LATE_AFTER = (1, ROUNDS_MIN, ROUNDS_TIE, ROUNDS_MAX)
"""The same where it takes hundreds of calls until samples are over: a device that is behind has them all before it."""
MOST_AT_ONCE = 128
"""So many samples are noted between two looks, as C has room for."""
MOST_NOTING_US = 1_000.0
"""What it counts for at most to note samples, and to say whose are next: the rest was a pause of the machine, or a
collection of garbage."""
MORE_AT_ONCE, MORE_US, SAMPLE_US = 8, 2_000.0, 8.0
"""Of the last rounds: how many stand between two looks, what they may cost beyond `SHARE`. And what it takes to make a
sample of a device's call."""


@dataclass(slots=True, eq=False)
class OnlineContest:
    """The candidates of one key, first plain; ``best`` gives the winner among timings, or None where there is none."""

    contestants: list[Contestant]
    margin: float
    best: Callable[[Sequence[Timing]], Timing | None]
    order: Sequence[str] = ()
    """The names of those that are likely to be fast, first."""
    expected: Callable[[], str | None] = lambda: None
    """Who is likely to be best, by other sizes or by what was run to see who is right: it runs until samples are over.

    On a device that is hundreds of calls behind that many go before the first one is.
    """
    not_before_us: float = 0.0
    """How much is to be spent at the key before it is over: then more is worth what it costs to try it."""
    rounds: int = 0
    sample_us: float = SAMPLE_US
    """What it takes to make a sample of a call."""
    late: bool = False
    """Whether many calls come between samples and what is known of them."""
    over: bool = False
    """Whether no call need be a sample any more."""
    _running: list[Contestant] = field(default_factory=list)
    _turns: deque[Contestant] = field(default_factory=deque)
    _is_decided: bool = False
    """Whether it is over but for `not_before_us`."""
    _spent_us: float = 0.0
    _lost_us: float = 0.0
    """Beyond what the best known candidate would have cost."""
    _more_us: float = 0.0
    """What the rounds beyond `ROUNDS_MAX` have cost."""
    _best_us: float = math.inf
    _doubted: dict[Contestant, float] = field(default_factory=dict)
    """Whose only sample may have been in a pause, and what that lost."""
    _asked_again: set[Contestant] = field(default_factory=set)
    """Who has had another sample for that."""
    _won: Contestant | None = None
    """Who leads, once it is over."""
    _at_once: int = 1
    """Rounds in the turns that are on."""
    _unready: GettingReady[Contestant] = field(default_factory=GettingReady)
    _known_us: dict[Contestant, float] = field(default_factory=dict)
    """What each costs, as of the end of the last round, as `_best_us` is: to look at all samples takes long."""

    def __post_init__(self) -> None:
        places = {name: place for place, name in enumerate(self.order)}
        self._running = sorted(self.contestants, key=lambda one: places.get(one.name, len(places)))
        self._turns.extend(self._running)

    def next_sample(self) -> Contestant | None:
        """Whose sample the next call is; None where it runs the leader without being one."""
        if self.over or not self._turns:
            return None
        first, *others = self._in_turn()
        return first if self._affordable(first) else next((one for one in others if self._is_free(one)), None)

    def next_samples(self) -> list[Contestant]:
        """Whose samples the next calls are, as many as may be afforded together; none beyond the round."""
        left_us, found = self._may_cost_us() - self._lost_us, list[Contestant]()
        turns = [] if self.over else self._in_turn(together=True)
        extra_us = {one: self._extra_us(one) if one not in self._doubted else 0.0 for one in set(turns)}
        free = {one for one in extra_us if self._is_free(one, together=True)}
        for one in turns:
            left_us -= extra_us[one]
            if left_us >= 0 or one in free:
                found += [one] * (self._unready.at_once(one) if one in free else 1)
        return found

    def leader(self) -> Contestant:
        """What is best as far as it is known; the first where nothing is.

        Not what has left, though the samples of what has not may scatter more by now, unless it was faster.
        """
        if not self.over:
            return self._leads()
        if self._won is None:
            self._won = self._leads()
        return self._won

    def _leads(self) -> Contestant:
        costs = {one: one.cost() for one in self.contestants}
        least_us = min((costs[one].median_us for one in self._running if one in costs), default=math.inf)
        won = self.best([cost for one, cost in costs.items() if one in self._running or cost.median_us <= least_us])
        leads = next((c for c in self.contestants if won is not None and c.name == won.variant), self.contestants[0])
        return leads if self._is_decided else self._meanwhile(leads, costs)

    def _meanwhile(self, leads: Contestant, costs: Mapping[Contestant, Timing]) -> Contestant:
        """Who runs until it is decided: who is expected to be best, if no sample of it is over, or it is not behind.

        Else who is faster by what matters, by as few samples as there are: that is soon known better. Where it is
        hundreds of calls until there are more, or there are some already, it is who is faster by more than the margin.
        """
        name = self.expected()
        expected = next((one for one in self._running if one.name == name), leads)
        if math.isinf(costs[expected].median_us):
            return expected
        leads = min((leads, expected), key=lambda one: costs[one].median_us)
        first = min((one for one in costs if one in self._running), key=lambda one: costs[one].median_us, default=leads)
        factor = 1 + self.margin if self.late or self.rounds >= ROUNDS_TIE else MATTERS
        return first if factor * costs[first].median_us <= costs[leads].median_us < math.inf else leads

    def sampled(self, contestant: Contestant, took_us: float, more: bool = False) -> None:
        """A call was a sample, or meant to be one: where its time made no sense it counts as taken all the same.

        Where several are noted at once, there are ``more`` after all but the last.
        """
        self.ran(took_us)
        self._lost_us += self.sample_us
        best_us = self._best_us
        if math.isfinite(took_us):
            self._best_us = min(self._best_us, took_us) if self.rounds == 0 else self._best_us
            if self.rounds > ROUNDS_MAX:
                self._lost_us += self._extra_us(contestant)
                self._more_us += self._extra_us(contestant) + self.sample_us
            else:  # a call of a candidate that is known, and waited for a processor, say, cost what waiting costs
                of_candidate_us = min(took_us, FAR * self._known_us.get(contestant, math.inf))
                self._lost_us += max(0.0, of_candidate_us - best_us)  # nothing, while none is known
                if FAR * took_us < (lost_us := self._doubted.pop(contestant, 0.0)):
                    self._lost_us -= lost_us
        self._unready.is_over(contestant)
        if contestant in self._turns:
            self._turns.remove(contestant)
        if not self._turns:
            self._end_round()

    def looked(self, took_us: float) -> None:
        """To note what samples took, and to say whose are next, took so long: that is lost like what they cost."""
        if math.isfinite(took_us):
            self.ran(took_us)
            self._lost_us += min(took_us, MOST_NOTING_US)

    def missed(self, one: Contestant, took_us: float) -> None:
        """A call of a candidate that is not ready took so long, and is no sample.

        What it took beyond the best is lost; beyond its other calls, where it runs as the leader does.
        """
        if math.isfinite(took_us):
            self.ran(took_us)
            known_us = self._known_us.get(one, took_us)
            self._lost_us += max(0.0, took_us - (known_us if self._runs_as_leader(one) else self._best_us))
            self._known_us[one] = min(known_us, took_us)
        if one in self._turns:
            self._unready.missed(one)

    def calls_before(self, one: Contestant, soon: bool, warm: int) -> int:
        """How many calls of it are to go before its next sample: ``warm``, or none where what it takes is no matter.

        That is where it is behind, which its first sample shows.
        """
        small = self.rounds > 0 and self._best_us <= SMALL_US
        return warm if small and self._extra_us(one) <= max((MATTERS - 1) * self._best_us, COLD_US) else 0

    def warmed(self, one: Contestant, calls: int = 1) -> None:
        """So many calls of it go before its sample."""
        self.ran(calls * self._known_us.get(one, 0.0))
        self._lost_us += calls * self._extra_us(one)

    def calls_until_next(self) -> int:
        """About how many calls of the leader it takes until another sample may be afforded; to ask takes long, too."""
        turns = self._in_turn(together=True)
        if not turns or not 0 < self._best_us < math.inf:
            return 0
        short_us = self._lost_us + NOTING_US + self._extra_us(turns[0]) - self._may_cost_us()
        return max(0, math.ceil(short_us / (SHARE * self._best_us)))

    def rests(self) -> bool:
        """Whether no call is to be a sample before more time has been spent."""
        return not self.over and self.next_sample() is None

    def ran(self, took_us: float) -> None:
        """A call took so long."""
        if math.isfinite(took_us):
            self._spent_us += max(0.0, took_us)
        if self._is_decided:
            self.over = self._spent_us >= self.not_before_us

    def admit(self, contestant: Contestant, place: int) -> None:
        """One more, before others that it would have been before: ties are the earlier's."""
        self._won = None
        self.contestants.insert(place, contestant)
        self._running.append(contestant)
        self._turns.append(contestant)
        self.over, self._is_decided, self.rounds = False, False, min(self.rounds, 1)

    def failed(self, contestant: Contestant) -> None:
        """A candidate raised: it is out, whatever it has shown."""
        self._won = None
        self.contestants.remove(contestant)
        self._leave([contestant])
        if not self._turns and not self.over:
            self._end_round()

    def _end(self, decided: bool) -> None:
        self._is_decided = decided
        self.over = decided and self._spent_us >= self.not_before_us

    def _affordable(self, one: Contestant) -> bool:
        """Whether another sample of it is likely to be within what learning may cost."""
        return self._is_free(one) or self._lost_us + self._extra_us(one) <= self._may_cost_us()

    def _may_cost_us(self) -> float:
        """What learning may have cost by now."""
        small_us = max(LEAST_FREE_US, FREE_CALLS * self._best_us)
        return (FREE_US if self._unready.begun else min(FREE_US, small_us)) + SHARE * self._spent_us

    def _is_free(self, one: Contestant, together: bool = False) -> bool:
        """Whether a call of it may be a sample though learning has cost what it may: that costs next to nothing."""
        own = self._extra_us(one) + NOTING_US <= SHARE * self._best_us
        return own or one in self._doubted or self._goes_on(one, together)

    def _in_turn(self, together: bool = False) -> list[Contestant]:
        """Whose turns are next: those that are not ready get ready one after the other, each by dozens of calls.

        That whose calls are the least dear is the first; it goes on before all others, if they cost next to nothing.
        """
        first = self._unready.first(self._extra_us)
        if first is None:
            return [*self._turns]
        ready = [one for one in self._turns if one not in self._unready]
        return [first, *ready] if self._goes_on(first, together) else [*ready, first]

    def _goes_on(self, one: Contestant, together: bool = False) -> bool:
        """Whether it is getting ready by calls that cost next to nothing beyond the best candidate's, and soon is."""
        repaid = self._spent_us / self._lost_us if self._lost_us else math.inf
        return self._unready.goes_on(one, self._extra_us(one), self._best_us, repaid, together)

    def _extra_us(self, one: Contestant) -> float:
        """What another call of it is likely to cost beyond the best candidate."""
        if one in self._unready and self._runs_as_leader(one):
            return 0.0
        return max(0.0, self._known_us.get(one, 0.0) - self._best_us)

    def _runs_as_leader(self, one: Contestant) -> bool:
        """Whether calls of one that is not ready take what those of the leader do, whatever the host takes for them."""
        return one.code_of is not None and one.code_of is self.leader()

    def _end_round(self) -> None:
        self.rounds, self._at_once = self.rounds + self._at_once, 1
        if not self._running:
            self._end(True)
            return
        costs = {one: one.cost() for one in self.contestants if one in self._running}
        leader = min(costs.values(), key=lambda cost: cost.median_us)
        self._best_us = leader.median_us
        self._known_us = {one: _likely_us(cost) for one, cost in costs.items() if math.isfinite(cost.median_us)}
        if math.isfinite(leader.median_us):
            factor = how_far_behind(self.rounds - 1)
            self._leave([one for one, cost in costs.items() if self._is_out(one, cost, leader, factor)])
        left = [costs[one] for one in self._running]
        decided = self.rounds >= ROUNDS_MIN and self._is_clear(left) and not in_slow_spell(left)
        self._end(decided or (self.rounds >= ROUNDS_MAX and not self._more(costs)))
        if not self._is_decided and not self._turns:
            looks = EVALUATED_LATE_AFTER if self.late else EVALUATED_AFTER
            after = next((look for look in looks if look > self.rounds and not self._doubted), self.rounds + 1)
            self._at_once = max(1, min(after - self.rounds, MOST_AT_ONCE // len(self._running)))
            for number in range(self.rounds, self.rounds + self._at_once):
                self._turns.extend(reversed(self._running) if number % 2 else self._running)

    def _is_clear(self, left: Sequence[Timing]) -> bool:
        """Whether more samples would change nothing that matters, by those of all that are left."""
        if any(math.isfinite(timing.median_us) != math.isfinite(left[0].median_us) for timing in left):
            return False  # of one they are not over yet
        if is_decided(left, self.margin, patient=True):
            return True
        if self.rounds < ROUNDS_TIE:
            return False
        leader, *others = sorted(left, key=lambda timing: timing.median_us)
        later = {one.name for one in dropwhile(lambda one: one.name != leader.variant, self.contestants)}
        return all(
            ahead(leader, other, 0.0)
            or are_tied(leader, other, self.margin)
            or (other.variant in later and is_no_better(leader, other, self.margin))
            for other in others
        )

    def _more(self, costs: Mapping[Contestant, Timing]) -> bool:
        """Whether more samples may show another to be the winner, and may be afforded; only those of the two, then.

        Where they may not, what is behind by more than its noise leaves all the same.
        """
        won = self.best([costs[one] for one in self.contestants if one in self._running])
        ours = next((one for one, cost in costs.items() if cost is won), None)
        theirs = min(self._running, key=lambda one: costs[one].median_us)
        if won is None or ours is None or ours is theirs or are_tied(costs[theirs], won, self.margin):
            return False
        if self.rounds >= ROUNDS_MORE or self._more_us > MORE_US + SHARE * self._spent_us:
            if is_ahead_at_last(costs[theirs], won):
                self._leave([ours])
            return False
        self._leave([one for one in self._running if one not in (ours, theirs)])
        self._turns.extend([ours, theirs, theirs, ours] * (MORE_AT_ONCE // 2))
        self._at_once = MORE_AT_ONCE
        return True

    def _is_out(self, one: Contestant, cost: Timing, leader: Timing, factor: float) -> bool:
        """Whether one leaves: after a few samples, or at once where another would cost too much.

        A single one may have been in a slow spell of the machine.
        """
        if math.isfinite(cost.median_us) and cost.repeats >= FEW:
            return is_behind(cost, leader, factor)
        far = _likely_us(cost) > FAR * leader.median_us and not self._affordable(one) and cost.repeats > 0
        return far and not self._gets_another(one, cost.median_us - leader.median_us)

    def _gets_another(self, one: Contestant, behind_us: float) -> bool:
        """Note that its only sample may have been in a pause, if so, and it has not had another for that."""
        if behind_us > PAUSE_US or one in self._asked_again:
            return False
        self._asked_again.add(one)
        self._doubted[one] = behind_us
        return True

    def _leave(self, leaving: Sequence[Contestant]) -> None:
        for one in leaving:
            if one in self._running:
                self._running.remove(one)
        self._turns = deque(one for one in self._turns if one in self._running)
        self._unready.keep(self._running)

    def costs(self) -> Iterator[Timing]:
        """What is known of each candidate that has a sample."""
        return (cost for one in self.contestants if (cost := one.shown()).repeats)


def _likely_us(cost: Timing) -> float:
    """What it costs: of very few samples the least, beside which the others may have been in a pause."""
    return cost.median_us if cost.repeats >= FEW or cost.least_us is None else cost.least_us
