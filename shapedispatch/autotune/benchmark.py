"""Zero-argument callables → ``Timing``: they are timed in turns, as long as that can change which is the fastest.

Each candidate is called once untimed and sampled once, whatever that takes: without it nothing is known. Then come
rounds, in each of which all that are still running are sampled a few times, in an order that rotates; those clearly
behind leave. It ends when the leader is ahead of all others, or as good as equal to them, or when rounds or time are
spent. Before the leader has won, those that left are sampled once more, and whoever left for a slow spell of the
machine is back in.

Nothing here knows what is timed or why. Clock and timer are passed in, so that all of the policy runs under a
hand-cranked one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from ..interpreter.failures import what_fails
from ..records import Timing
from .measure import Call, Clock, Timer

__all__ = [
    "CONFIDENCE",
    "ENOUGH",
    "FEW",
    "MATTERS",
    "BenchResult",
    "ahead",
    "are_tied",
    "error_apart_us",
    "error_us",
    "how_far_behind",
    "in_slow_spell",
    "interleaved_bench",
    "is_ahead_at_last",
    "is_behind",
    "is_decided",
    "is_no_better",
    "timing_of",
    "undecided",
]

# A candidate leaves when its best sample is this much above the leader's median: at first, and with more evidence.
FAR_BEHIND, BEHIND = 1.5, 1.15
ROUNDS_OF_LITTLE_EVIDENCE = 3
# Few at a time: a slow spell of the machine must not fall on one candidate alone. More rounds make up for it.
SAMPLES_A_ROUND = 3
# Standard errors between two medians. The samples are looked at after each round, and whoever looks often
# enough finds a difference: at 4, the same kernel under two names kept its first name in 99.9 % of simulations.
CONFIDENCE = 4.0
LAST_CONFIDENCE = 2.0  # the same where nobody will look again
SURE = 3.0  # the same of one that would have to be faster, and is not
LUCK = 1.5  # how many margins two that are taken to be as good as equal may be apart by, with luck
ENOUGH = 6  # samples of each, to go by the least
FEW = 3  # with fewer than this nothing is certain, with fewer than `ENOUGH` only what hardly scatters
STEADY = 0.1  # what hardly scatters: half the distance between the quartiles, as a share of the median
MATTERS = 1.5  # a ratio of medians that is worth another look where noise explains it
EXTRA_ROUNDS, EXTRA_TIME = 20, 4  # for another look: the latter as a multiple of the budget
# What a single sample is presumed to be off by, relative to its value; it fades with the number of samples. Without
# it three samples that agree by chance would settle everything.
PRIOR = 0.05


@dataclass(frozen=True, slots=True)
class BenchResult:
    """What was found: a timing for each candidate that ran, in the order given, and why the others failed.

    A candidate that left early has the timing it left with. The exceptions hold their frames, and so the tensors in
    them: make text of them and drop them.
    """

    timings: tuple[Timing, ...]
    failures: Mapping[str, Exception]


def ahead(a: Timing, b: Timing, margin: float) -> bool:
    """True if ``a`` is faster than ``b`` by more than ``margin`` (0.03: 3 %) and by more than noise explains.

    Noise is judged from spreads and numbers of samples: a few samples must agree closely, many may scatter. But what
    was never nearly as fast as the other mostly is, in enough samples, is not saved by how much they scatter. Of two
    equal kernels neither is ahead, so going through candidates in order and changing only to one that is ahead keeps
    ties with the earlier. What has no valid sample is behind all that has.
    """
    if not (math.isfinite(a.median_us) and math.isfinite(b.median_us)):
        return a.median_us < b.median_us
    if a.median_us >= b.median_us * (1 - margin):
        return False
    return b.median_us - a.median_us > _noise_us(a, b) or _never_as_fast(b, a)


def undecided(a: Timing, b: Timing) -> str | None:
    """Why two timings do not say which of the two is faster, though it would matter; or None.

    Equal ones need no decision: what is as fast as the other may win.
    """
    fast, slow = sorted((a, b), key=_median)
    if not math.isfinite(slow.median_us) or slow.median_us <= MATTERS * fast.median_us:
        return None
    for one in (fast, slow):
        if one.repeats < FEW or (one.repeats < ENOUGH and one.spread_us > STEADY * one.median_us):
            return f"{one.variant} has {one.repeats} samples, too few for how much they scatter"
    return None if ahead(fast, slow, 0.0) else f"{fast.variant} and {slow.variant} scatter by more than they differ"


def is_ahead_at_last(one: Timing, other: Timing) -> bool:
    """Whether one is faster than another by what is asked for when nobody will look again."""
    return other.median_us - one.median_us > LAST_CONFIDENCE * error_apart_us(one, other)


def is_decided(timings: Sequence[Timing], margin: float, patient: bool) -> bool:
    """True if more samples would not change which is the fastest, or not by anything that matters.

    A tie is proved only while ``patient``; afterwards medians within the margin are taken for one.
    """
    if not timings:
        return True
    leader, *others = sorted(timings, key=_median)
    tie_us = leader.median_us * margin
    return all(
        ahead(leader, other, 0.0)
        or _noise_us(leader, other) < tie_us / 2
        or (not patient and other.median_us - leader.median_us <= tie_us)
        for other in others
    )


def are_tied(leader: Timing, other: Timing, margin: float) -> bool:
    """Whether they are within the margin, with luck not much beyond it: more samples would cost more than they tell.

    Whoever looks often enough finds two medians that are within it.
    """
    apart_us, within_us = other.median_us - leader.median_us, margin * other.median_us
    return apart_us <= within_us and apart_us + error_apart_us(leader, other) <= LUCK * within_us


def is_no_better(leader: Timing, other: Timing, margin: float) -> bool:
    """Whether another is surely not faster by more than the margin. It may be as fast."""
    apart_us, within_us = other.median_us - leader.median_us, margin * leader.median_us
    return apart_us + within_us > SURE * error_apart_us(leader, other)


def how_far_behind(rounds: int) -> float:
    """How much above the leader's median the best sample is of what leaves after so many rounds: less with evidence."""
    return FAR_BEHIND if rounds < ROUNDS_OF_LITTLE_EVIDENCE else BEHIND


def is_behind(timing: Timing, leader: Timing, factor: float) -> bool:
    """Whether one is clearly behind: beyond noise, and with the best it has shown (a slow spell is no reason)."""
    least_us = timing.median_us if timing.least_us is None else timing.least_us
    return least_us > factor * leader.median_us and ahead(leader, timing, 0.0)


def in_slow_spell(timings: Sequence[Timing]) -> bool:
    """Whether one has been much faster than the fastest mostly is: what keeps it from that may be over soon."""
    ordered = sorted(timings, key=lambda timing: timing.median_us)
    return any((other.least_us or other.median_us) * MATTERS < ordered[0].median_us for other in ordered[1:])


def timing_of(name: str, samples_us: Sequence[float]) -> Timing:
    """Samples in microseconds as a timing; infinite where there is none."""
    if len(samples_us) < 2:  # quartiles need two
        return Timing(name, next(iter(samples_us), math.inf), 0.0, len(samples_us))
    ordered = sorted(samples_us)
    last = len(ordered) - 1
    # As the inclusive method of `statistics.quantiles`, which takes too long for a call that is being learnt from.
    low, middle, high = [
        ordered[place] if not rest else (ordered[place] * (4 - rest) + ordered[place + 1] * rest) / 4
        for place, rest in (divmod(last, 4), divmod(2 * last, 4), divmod(3 * last, 4))
    ]
    return Timing(name, middle, (high - low) / 2, last + 1, least_us=ordered[0])


def interleaved_bench(
    candidates: Sequence[tuple[str, Call]],
    timer: Timer,
    *,
    budget_ms: float,
    margin: float = 0.03,
    clock_ns: Clock = time.perf_counter_ns,
    rounds_min: int = 4,
    rounds_tie: int = 11,
    rounds_max: int = 40,
    warmed: bool = False,
    alone: bool = False,
) -> BenchResult:
    """Time the candidates against each other, as long as that can change who wins. Their names must differ.

    ``budget_ms`` is wall time from the first sample on, up to four times as much where little would else be certain;
    from ``rounds_tie`` on a tie is judged by the medians alone. There is no untimed call if ``warmed``. One that raises
    is out, its exception in ``failures``; what is no ``Exception`` (an interrupt) passes through. With a single
    candidate left there is nothing to compare: no timings, unless ``alone``.
    """
    bench = _Bench([_Candidate(name, fn) for name, fn in candidates], timer, lambda: clock_ns() < deadline_ns)
    bench.make_ready(warmed)
    if len(bench.running) < 2 and not alone:
        return BenchResult((), bench.failures)
    started_ns = clock_ns()
    deadline_ns = started_ns + budget_ms * 1e6
    bench.each(partial(bench.sample, count=1))
    pass_ns, least = clock_ns() - started_ns, rounds_min
    for number in range(rounds_max):
        may_end = number >= least or (len(bench.running) < 2 and not alone)
        if may_end and bench.decided(margin, number < rounds_tie):
            if not bench.back_in():
                break
            least = number + rounds_min
        batch = _batch(deadline_ns - clock_ns(), pass_ns, max(1, rounds_tie - number))
        bench.each(partial(bench.sample, count=batch), number, bounded=True)
        bench.drop(how_far_behind(number))
    bench.resample_doubtful(EXTRA_TIME * budget_ms, clock_ns)
    return BenchResult(bench.timings(), bench.failures)


def _batch(left_ns: float, pass_ns: int, rounds: int) -> int:
    """How many samples of each candidate a round takes, for the rounds that may come to fit what is left."""
    if pass_ns <= 0:  # a clock that stands still or runs backward; the rounds are bounded anyway
        return SAMPLES_A_ROUND
    return max(1, min(SAMPLES_A_ROUND, int(left_ns / (rounds * pass_ns))))


@dataclass(slots=True, eq=False)
class _Candidate:
    """A candidate and its valid samples, in microseconds a call."""

    name: str
    fn: Call
    samples: list[float] = field(default_factory=list)
    resampled: bool = False  # after it had left

    def timing(self) -> Timing:
        return timing_of(self.name, self.samples)


class _Bench:
    """Who is still running, who left and was not sampled since, and who failed."""

    def __init__(self, candidates: list[_Candidate], timer: Timer, in_time: Callable[[], bool]) -> None:
        self.candidates = candidates
        self.running = list(candidates)
        self.away: list[_Candidate] = []
        self.timer = timer
        self.in_time = in_time
        self.failures: dict[str, Exception] = {}

    def make_ready(self, warmed: bool) -> None:
        """An untimed call of each, and what a timer does once for it: neither is in anybody's time."""
        if not warmed:
            self.each(lambda candidate: candidate.fn())
        self.each(partial(self.sample, count=0))

    def each(self, do: Callable[[_Candidate], object], first: int = 0, bounded: bool = False) -> None:
        """Do it for all that are running, from the ``first``, or while there is time; one that raises is out."""
        start = first % max(1, len(self.running))
        for candidate in self.running[start:] + self.running[:start]:
            if bounded and not self.in_time():
                return
            if not self.attempt(candidate, do):
                self.running.remove(candidate)

    def attempt(self, candidate: _Candidate, do: Callable[[_Candidate], object]) -> bool:
        """Do it; False where it raised, with the reason kept."""
        try:
            do(candidate)
        except what_fails() as error:  # a candidate is judged here, and the reason kept
            self.failures[candidate.name] = error
        return candidate.name not in self.failures

    def sample(self, candidate: _Candidate, count: int) -> None:
        """Take samples, and keep those that make sense."""
        times_us = self.timer.samples_us(candidate.fn, count)
        candidate.samples += [time_us for time_us in times_us if 0 < time_us < math.inf]

    def drop(self, factor: float) -> None:
        """Those clearly behind leave."""
        leader = self.leader()
        if leader is not None:
            behind = [candidate for candidate in self.running if is_behind(candidate.timing(), leader, factor)]
            self.running = [candidate for candidate in self.running if candidate not in behind]
            self.away += [candidate for candidate in behind if not candidate.resampled]

    def back_in(self) -> bool:
        """Sample each that left once more; whether any is back in, with that sample alone.

        All that it had shown may have been in one slow spell: of the machine, of another process on the device.
        """
        leader, away, self.away = self.leader(), self.away, []
        if leader is None:
            return False
        tried = [one for one in away if self.in_time() and self.attempt(one, partial(self.resample, leader))]
        back = [candidate for candidate in tried if not is_behind(candidate.timing(), leader, BEHIND)]
        self.running += back
        return bool(back)

    def resample(self, leader: Timing, candidate: _Candidate) -> None:
        """One more sample, which stands alone if it is not behind."""
        before, candidate.samples, candidate.resampled = candidate.samples, [], True
        self.sample(candidate, 1)
        if not candidate.samples or is_behind(candidate.timing(), leader, BEHIND):
            candidate.samples = [*before, *candidate.samples]

    def resample_doubtful(self, for_ms: float, clock_ns: Clock) -> None:
        """Sample the leader, and those of which it is not certain that they are behind, for so long."""
        limit_ns = clock_ns() + for_ms * 1e6
        for _ in range(EXTRA_ROUNDS):
            left = [one for one in self.candidates if one.name not in self.failures]
            first = min(left, key=lambda one: one.timing().median_us, default=None)
            doubtful = [one for one in left if first is not None and _doubtful(first.timing(), one.timing())]
            if first is None or not doubtful:  # and no round after this one would find another
                return
            for candidate in (first, *doubtful):
                if clock_ns() + candidate.timing().median_us * 1e3 > limit_ns:
                    return
                self.attempt(candidate, partial(self.sample, count=1))

    def leader(self) -> Timing | None:
        """Of those that are running."""
        return min((candidate.timing() for candidate in self.running), key=_median, default=None)

    def decided(self, margin: float, patient: bool) -> bool:
        """Whether more samples would not change who wins."""
        return is_decided([candidate.timing() for candidate in self.running], margin, patient)

    def timings(self) -> tuple[Timing, ...]:
        """One for each that did not fail."""
        return tuple(candidate.timing() for candidate in self.candidates if candidate.name not in self.failures)


_median = attrgetter("median_us")


def _doubtful(fast: Timing, slow: Timing) -> bool:
    """Whether more samples are worth their time: all of few may have been in one slow spell of the machine."""
    apart = slow.median_us > MATTERS * fast.median_us
    return apart and (min(fast.repeats, slow.repeats) < ENOUGH or undecided(fast, slow) is not None)


def _never_as_fast(slow: Timing, fast: Timing) -> bool:
    """Whether all samples of one are clearly above the upper quartile of the other, or where that would be.

    Of two equal kernels all of n are above it once in 4 to the n, which `ENOUGH` makes one in 4,000; clearly above it
    none was in thousands of simulations.
    """
    if slow.least_us is None or min(slow.repeats, fast.repeats) < ENOUGH:
        return False
    return slow.least_us > BEHIND * (fast.median_us + fast.spread_us)


def _noise_us(a: Timing, b: Timing) -> float:
    """How far apart two medians may lie by chance."""
    return CONFIDENCE * error_apart_us(a, b)


def error_us(timing: Timing) -> float:
    """The standard error of a timing's median, in microseconds.

    Of normal noise half the distance between the quartiles is 0.6745 deviations, and the error of the median of n
    samples 1.2533 deviations by the root of n.
    """
    count = max(1, timing.repeats)
    return 1.2533 / 0.6745 * timing.spread_us / math.sqrt(count) + PRIOR * timing.median_us / count


def error_apart_us(a: Timing, b: Timing) -> float:
    """The standard error of how far apart the medians of two timings are, in microseconds."""
    return math.hypot(error_us(a), error_us(b))
