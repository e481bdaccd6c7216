"""Zero-argument callables → ``Timing``: the contest among them.

Nothing here knows what is timed or why. Clock and stopwatch are passed in, so that all of the policy runs under a
hand-cranked one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter

from ..records import Timing
from .measure import Call, Clock, Timer

__all__ = ["CONFIDENCE", "Candidate", "Contest", "ahead", "contest", "error_us"]

Candidate = tuple[str, Call]

# A candidate leaves when its best sample is this much above the leader's median: at first, and with more evidence.
FAR_BEHIND, BEHIND = 1.5, 1.15
ROUNDS_OF_LITTLE_EVIDENCE = 3
# Few at a time: a slow spell of the machine must not fall on one candidate alone. More rounds make up for it.
SAMPLES_A_ROUND = 3
# Standard errors between two medians. A contest looks at its samples after each round, and whoever looks often
# enough finds a difference: at 4, the same kernel under two names kept its first name in 99.9 % of simulated contests.
CONFIDENCE = 4.0
ENOUGH = 6  # samples of each, to go by the least
# What a single sample is presumed to be off by, relative to its value; it fades with the number of samples. Without
# it three samples that agree by chance would settle a contest.
PRIOR = 0.05


@dataclass(frozen=True, slots=True)
class Contest:
    """What a contest found: a timing for each candidate that ran, in the order given, and why the others failed.

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


def contest(
    candidates: Sequence[Candidate],
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
) -> Contest:
    """Time the candidates against each other, as long as that can change who wins. Their names must differ.

    Each is called once untimed (not if ``warmed``) and sampled once. Then come rounds, in each of which all that are
    still running are sampled a few times, in an order that rotates; those clearly behind leave. The contest ends when
    the leader is ahead of all others, or as good as equal to them (after ``rounds_tie`` rounds, by the medians alone),
    after ``rounds_max`` rounds, or when ``budget_ms`` of wall time are spent. Before the leader has won, those that
    left are looked at once more, and whoever left for a slow spell of the machine is back in. The untimed call and
    the first sample are given to everyone whatever they take: without them nothing is known.

    A candidate that raises is out, with its exception in ``failures``; what is no ``Exception`` (an interrupt)
    passes through. Samples that are not positive and finite are thrown away; without a valid one the median is
    ``inf``. With a single candidate left there is nothing to compare: no timings, unless ``alone`` asks for its own.
    """
    deadline_ns = clock_ns() + budget_ms * 1e6
    race = _Race([_Runner(name, fn) for name, fn in candidates], timer)
    if not warmed:
        race.each(lambda runner: runner.fn())
    if len(race.running) < 2 and not alone:
        return Contest((), race.failures)
    started_ns = clock_ns()
    race.each(partial(race.sample, count=1))
    pass_ns = clock_ns() - started_ns
    in_time = lambda: clock_ns() < deadline_ns  # noqa: E731
    least = rounds_min
    for number in range(rounds_max):
        alone_now = len(race.running) < 2 and not alone
        if race.settled(margin, number < rounds_tie) and (number >= least or alone_now):
            if not race.back_in(in_time):
                break
            least = number + rounds_min
        batch = _batch(deadline_ns - clock_ns(), pass_ns, max(1, rounds_tie - number))
        race.each(partial(race.sample, count=batch), number, in_time)
        race.drop(FAR_BEHIND if number < ROUNDS_OF_LITTLE_EVIDENCE else BEHIND)
    return Contest(race.timings(), race.failures)


def _batch(left_ns: float, pass_ns: int, rounds: int) -> int:
    """How many samples of each candidate a round takes, for the rounds that may come to fit what is left."""
    if pass_ns <= 0:  # a clock that stands still or runs backward; the rounds are bounded anyway
        return SAMPLES_A_ROUND
    return max(1, min(SAMPLES_A_ROUND, int(left_ns / (rounds * pass_ns))))


@dataclass(slots=True, eq=False)
class _Runner:
    """A candidate and its valid samples, in microseconds a call."""

    name: str
    fn: Call
    samples: list[float] = field(default_factory=list)
    looked_at: bool = False  # after it had left

    def timing(self) -> Timing:
        if len(self.samples) < 2:  # quartiles need two
            return Timing(self.name, next(iter(self.samples), math.inf), 0.0, len(self.samples))
        low, middle, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return Timing(self.name, middle, (high - low) / 2, len(self.samples), least_us=min(self.samples))


class _Race:
    """Who is still running, who left and was not looked at since, and who failed."""

    def __init__(self, runners: list[_Runner], timer: Timer) -> None:
        self.runners = runners
        self.running = list(runners)
        self.away: list[_Runner] = []
        self.timer = timer
        self.failures: dict[str, Exception] = {}

    def each(self, do: Callable[[_Runner], object], first: int = 0, go_on: Callable[[], bool] = lambda: True) -> None:
        """Do it for all that are running, beginning with the ``first``; one that raises is out."""
        turn = first % max(1, len(self.running))
        for runner in self.running[turn:] + self.running[:turn]:
            if not go_on():
                return
            if not self.attempt(runner, do):
                self.running.remove(runner)

    def attempt(self, runner: _Runner, do: Callable[[_Runner], object]) -> bool:
        """Do it; False where it raised, with the reason kept."""
        try:
            do(runner)
        except Exception as error:  # noqa: BLE001 - a candidate is judged here, and the reason kept
            self.failures[runner.name] = error
        return runner.name not in self.failures

    def sample(self, runner: _Runner, count: int) -> None:
        """Take samples, and keep those that make sense."""
        times_us = self.timer.samples_us(runner.fn, count)
        runner.samples += [time_us for time_us in times_us if 0 < time_us < math.inf]

    def drop(self, factor: float) -> None:
        """Those clearly behind leave: beyond noise, and with the best they have shown (a slow spell is no reason)."""
        leader = self.leader()
        if leader is not None:
            behind = [runner for runner in self.running if _is_behind(runner, leader, factor)]
            self.running = [runner for runner in self.running if runner not in behind]
            self.away += [runner for runner in behind if not runner.looked_at]

    def back_in(self, in_time: Callable[[], bool]) -> bool:
        """Sample each that left once more; whether any is back in, with that sample alone.

        All that it had shown may have been in one slow spell: of the machine, of another process on the device.
        """
        leader, away = self.leader(), self.away
        self.away = []
        if leader is None:
            return False
        back = [runner for runner in away if in_time() and self.attempt(runner, partial(self.look_again, leader))]
        self.running += [runner for runner in back if not _is_behind(runner, leader, BEHIND)]
        return any(runner in self.running for runner in back)

    def look_again(self, leader: Timing, runner: _Runner) -> None:
        """One more sample, which stands alone if it is not behind."""
        before, runner.samples, runner.looked_at = runner.samples, [], True
        self.sample(runner, 1)
        if not runner.samples or _is_behind(runner, leader, BEHIND):
            runner.samples = [*before, *runner.samples]

    def leader(self) -> Timing | None:
        """Of those that are running."""
        return min((runner.timing() for runner in self.running), key=_median, default=None)

    def settled(self, margin: float, patient: bool) -> bool:
        """True if more samples would not change who wins, or not by anything that matters.

        A tie is proved only while ``patient``; afterwards medians within the margin are taken for one.
        """
        if not self.running:
            return True
        leader, *others = sorted((runner.timing() for runner in self.running), key=_median)
        tie_us = leader.median_us * margin
        return all(
            ahead(leader, other, 0.0)
            or _noise_us(leader, other) < tie_us / 2
            or (not patient and other.median_us - leader.median_us <= tie_us)
            for other in others
        )

    def timings(self) -> tuple[Timing, ...]:
        """One for each that did not fail."""
        return tuple(runner.timing() for runner in self.runners if runner.name not in self.failures)


_median = attrgetter("median_us")


def _is_behind(runner: _Runner, leader: Timing, factor: float) -> bool:
    return min(runner.samples, default=math.inf) > factor * leader.median_us and ahead(leader, runner.timing(), 0.0)


def _never_as_fast(slow: Timing, fast: Timing) -> bool:
    """Whether all samples of one are clearly above the upper quartile of the other, or where that would be.

    Of two equal kernels all of n are above it once in 4 to the n, which `ENOUGH` makes one in 4,000; clearly above it
    none was in thousands of simulated contests.
    """
    if slow.least_us is None or min(slow.repeats, fast.repeats) < ENOUGH:
        return False
    return slow.least_us > BEHIND * (fast.median_us + fast.spread_us)


def _noise_us(a: Timing, b: Timing) -> float:
    """How far apart two medians may lie by chance."""
    return CONFIDENCE * math.hypot(error_us(a), error_us(b))


def error_us(timing: Timing) -> float:
    """The standard error of a timing's median, in microseconds.

    Of normal noise half the distance between the quartiles is 0.6745 deviations, and the error of the median of n
    samples 1.2533 deviations by the root of n.
    """
    count = max(1, timing.repeats)
    return 1.2533 / 0.6745 * timing.spread_us / math.sqrt(count) + PRIOR * timing.median_us / count
