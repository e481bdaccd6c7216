from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.autotune.benchmark import BenchResult, ahead, interleaved_bench, is_no_better, undecided
from shapedispatch.records import Timing

CPU = torch.device("cpu")


class Cranked:
    """A stopwatch and a clock that move only as told: each call gives the next of its candidate's times.

    A time that is an exception is raised. The wall clock advances by what was sampled.
    """

    def __init__(self, **times: Iterable[float | BaseException]) -> None:
        self.times: dict[str, Iterator[float | BaseException]] = {name: iter(all_) for name, all_ in times.items()}
        self.candidates = [(name, self.candidate(name)) for name in times]
        self.now_ns, self.once_ns = 0, 0
        self.log: list[tuple[str, int]] = []
        self.warm: list[str] = []
        self.met: set[str] = set()

    def candidate(self, name: str) -> Callable[[], str]:
        """A callable of this name, which notes that it was called."""

        def fn() -> str:
            self.warm.append(name)
            return name

        fn.name = name  # type: ignore[attr-defined]
        return fn

    def samples_us(self, fn: Any, count: int) -> list[float]:
        """The next times of this candidate; what a timer does once for it takes the wall clock's time."""
        if fn.name not in self.met:
            self.met.add(fn.name)
            self.now_ns += self.once_ns
        if count:
            self.log.append((fn.name, count))
        return [self.sample(fn.name) for _ in range(count)]

    def sample(self, name: str) -> float:
        """The next time of this candidate; the wall clock moves by it."""
        time_us = next(self.times[name])
        if isinstance(time_us, BaseException):
            raise time_us
        self.now_ns += int(time_us * 1e3) if 0 < time_us < math.inf else 0
        return time_us

    def clock_ns(self) -> int:
        """The wall clock."""
        return self.now_ns

    def run(self, budget_ms: float = 1000, **options: Any) -> BenchResult:
        """All of it on this timer and this clock."""
        return interleaved_bench(self.candidates, self, budget_ms=budget_ms, clock_ns=self.clock_ns, **options)

    def count(self, name: str) -> int:
        """How many samples were asked of this candidate."""
        return sum(count for each, count in self.log if each == name)


def noisy(time_us: float, sigma: float, seed: int) -> Iterator[float]:
    """Normal noise, and one sample in twenty far too long, as on a busy machine."""
    draw = random.Random(seed)
    while True:
        spike = 1 + draw.expovariate(0.5) if draw.random() < 0.05 else 1
        yield time_us * max(0.01, draw.gauss(1, sigma)) * spike


def scattered(least_us: float, seed: int) -> Iterator[float]:
    """A call of many launches on a busy host: never under its least, mostly far above."""
    draw = random.Random(seed)
    while True:
        yield least_us * (1 + draw.expovariate(0.5))


def winner(found: BenchResult, margin: float = 0.03) -> str:
    """As a chooser decides: the first, unless a later one is ahead of it."""
    best = found.timings[0]
    for timing_ in found.timings[1:]:
        best = timing_ if ahead(timing_, best, margin) else best
    return best.variant


# What is measured.


def test_medians_spreads_and_counts() -> None:
    """The median of all samples, half the distance between their quartiles, and how many there were."""
    a, b = Cranked(a=[1, 2, 3, 4, 5, 6, 100], b=repeat(3)).run(rounds_max=2).timings
    assert a == Timing("a", 4, 1.5, 7)
    assert b == Timing("b", 3, 0, 7)


def test_timings_come_in_the_order_given() -> None:
    """Whoever won."""
    found = Cranked(slow=repeat(30.0), middle=repeat(20.0), fast=repeat(10.0)).run()
    assert [timing_.variant for timing_ in found.timings] == ["slow", "middle", "fast"]
    assert found.failures == {}


def test_everyone_is_called_once_before_anyone_is_sampled() -> None:
    """First calls (compiling, loading, growing caches) are in nobody's samples."""
    watch = Cranked(a=repeat(1.0), b=repeat(1.0))
    called: list[str] = []
    watch.samples_us = lambda fn, count: called.append("sample") or [1.0] * count  # type: ignore[method-assign]
    candidates = [("a", lambda: called.append("a")), ("b", lambda: called.append("b"))]
    interleaved_bench(candidates, watch, budget_ms=1, clock_ns=watch.clock_ns)
    assert called[:3] == ["a", "b", "sample"]
    assert called.count("a") == 1


def test_warmed_candidates_are_not_called_again() -> None:
    """The caller may have called them already, to check their numbers."""
    watch = Cranked(a=repeat(1.0), b=repeat(1.0))
    watch.run(warmed=True)
    assert watch.warm == []


def test_what_a_timer_does_once_takes_nothing_from_the_budget() -> None:
    """A capture may take longer than all samples: as many are taken, and as certain is what they say."""
    counts = []
    for once_ns in (0, 300_000_000):
        watch = Cranked(a=noisy(10.0, 0.2, 1), b=noisy(9.0, 0.2, 2))
        watch.once_ns = once_ns
        watch.run(budget_ms=1.0)
        counts.append((watch.count("a"), watch.count("b")))
    assert counts[0] == counts[1]
    assert min(counts[0]) > 3


def test_the_order_rotates() -> None:
    """Each candidate is first, second and third in turn, so that whoever follows whom favours nobody."""
    watch = Cranked(a=repeat(10.0), b=repeat(10.1), c=repeat(9.9))
    watch.run(rounds_min=4, rounds_max=4)
    order = [name for name, _ in watch.log]
    assert order == list("abc") + list("abc") + list("bca") + list("cab") + list("abc")


def test_a_single_candidate_is_called_and_not_sampled() -> None:
    """There is nothing to compare; that it runs at all is still found out."""
    watch = Cranked(a=repeat(1.0))
    assert watch.run() == BenchResult((), {})
    assert (watch.warm, watch.log) == (["a"], [])


def test_a_single_candidate_is_sampled_when_asked() -> None:
    """For a table of times, say."""
    (timing_,) = Cranked(a=repeat(7.0)).run(alone=True).timings
    assert timing_.median_us == 7
    assert timing_.repeats >= 5


def test_no_candidates() -> None:
    """Without candidates it is over."""
    assert Cranked().run() == Cranked().run(alone=True) == BenchResult((), {})


# When it ends.


def test_one_far_behind_leaves_early_and_keeps_its_timing() -> None:
    """At twice the leader's time it is sampled in one round, once more before the others end, and once for six."""
    watch = Cranked(a=noisy(10, 0.001, 1), b=noisy(10, 0.001, 2), far=repeat(20.0))
    found = watch.run(rounds_min=8)
    assert [count for name, count in watch.log if name == "far"] == [1, 3, 1, 1]
    assert watch.log[-1] == ("far", 1)
    assert found.timings[2] == Timing("far", 20, 0, 6)
    assert watch.count("a") > 20


def test_one_that_left_in_a_slow_spell_is_back_in() -> None:
    """All that it had shown was the machine's, or another process's on the device; its own time counts."""
    watch = Cranked(
        a=repeat(12.0), each=[*repeat(60.0, 4), *repeat(6.0, 99)], combo=[*repeat(90.0, 4), *repeat(4.0, 99)]
    )
    found = watch.run()
    assert [timing_.median_us for timing_ in found.timings] == [12, 6, 4]
    assert winner(found) == "combo"
    assert found.timings[2].repeats > 9


def test_one_that_is_back_in_has_as_many_rounds_as_any() -> None:
    """However late it comes: a single sample would decide nothing."""
    found = Cranked(a=noisy(10, 0.05, 1), b=noisy(10, 0.05, 2), late=[*repeat(90.0, 4), *repeat(9.0, 99)]).run()
    assert found.timings[2].repeats >= 1 + 3 * 4
    assert winner(found) == "late"


def test_one_that_left_is_looked_at_once() -> None:
    """Whoever leaves again has left."""
    watch = Cranked(a=noisy(10, 0.001, 1), b=noisy(10, 0.001, 2), odd=[*repeat(90.0, 4), 4.0, *repeat(90.0, 99)])
    watch.run()
    assert watch.count("odd") < 20
    assert watch.log[-1][0] != "odd"


def test_one_that_left_and_fails_is_out() -> None:
    """Its reason is kept like any other's."""
    found = Cranked(a=repeat(10.0), far=[*repeat(50.0, 4), ValueError("gone")]).run()
    assert [timing_.variant for timing_ in found.timings] == ["a"]
    assert str(found.failures["far"]) == "gone"


def test_nobody_is_looked_at_again_when_the_budget_is_spent() -> None:
    """The caller's time is worth more."""
    watch = Cranked(a=repeat(1000.0), far=repeat(50_000.0))
    watch.run(budget_ms=1)
    assert watch.count("far") == 1


def test_one_behind_leaves_with_more_evidence() -> None:
    """At 1.2 times the leader's time it takes a few rounds."""
    watch = Cranked(a=repeat(10.0), b=repeat(10.0), behind=repeat(12.0))
    watch.run(rounds_min=10, rounds_max=10)
    assert watch.count("behind") == 1 + 3 * 4
    assert watch.count("a") == watch.count("b") == 1 + 3 * 10


def test_one_slightly_behind_stays() -> None:
    """At 1.1 times the leader's time it is never thrown out."""
    watch = Cranked(a=repeat(10.0), b=repeat(11.0))
    watch.run(rounds_min=10, rounds_max=10)
    assert watch.count("b") == 31


def test_one_slow_spell_does_not_throw_a_candidate_out() -> None:
    """What counts is the best it has shown."""
    watch = Cranked(a=repeat(10.0), spell=[*repeat(40.0, 3), *repeat(8.0, 50)])
    found = watch.run(rounds_min=10, rounds_max=10)
    assert found.timings[1].median_us == 8
    assert winner(found) == "spell"


def test_one_that_scatters_leaves_only_when_it_is_surely_behind() -> None:
    """Otherwise it could keep its place by being first, since nobody would be ahead of so few samples."""
    watch = Cranked(scatters=[20, 40, 20, 40, *repeat(30.0, 100)], fast=repeat(10.0))
    found = watch.run()
    assert watch.count("scatters") > 4
    assert winner(found) == "fast"


def test_one_wrong_sample_does_not_throw_everyone_else_out() -> None:
    """A single time that is far too short makes nobody the leader."""
    watch = Cranked(a=[0.001, *repeat(10.0, 50)], b=repeat(9.0), c=repeat(9.9))
    found = watch.run(rounds_min=10, rounds_max=10)
    assert [timing_.repeats for timing_ in found.timings] == [31, 31, 31]
    assert winner(found) == "b"


def test_it_ends_when_the_leader_is_ahead() -> None:
    """Further samples would change nothing."""
    watch = Cranked(a=repeat(10.0), b=repeat(11.0))
    watch.run()
    assert watch.count("a") == 1 + 3 * 4


def test_it_ends_when_everyone_else_has_left() -> None:
    """Nobody is left to compare with, however many rounds were meant to be the fewest; six samples it has."""
    watch = Cranked(a=repeat(10.0), b=repeat(100.0))
    watch.run()
    assert watch.count("a") == 6


def test_a_close_race_goes_on_to_the_last_round() -> None:
    """While noise is larger than what matters, samples are taken; then no more."""
    watch = Cranked(a=noisy(10, 0.05, 1), b=noisy(10, 0.05, 2))
    watch.run(rounds_max=9)
    assert watch.count("a") == watch.count("b") == 1 + 3 * 9


def test_equal_candidates_that_do_not_scatter_end_early() -> None:
    """A tie that is certain needs no more samples."""
    watch = Cranked(a=repeat(10.0), b=repeat(10.0))
    watch.run(rounds_max=100)
    assert watch.count("a") < 60


def test_the_budget_ends_it() -> None:
    """Wall time is spent up to the budget and no further than one batch."""
    watch = Cranked(a=noisy(1000, 0.2, 1), b=noisy(1000, 0.2, 2))
    watch.run(budget_ms=12, rounds_max=1000)
    assert 10e6 < watch.now_ns < 16e6


def test_a_large_budget_is_not_used_up() -> None:
    """A few microseconds a call are decided within the rounds, whatever the budget."""
    watch = Cranked(a=noisy(5, 0.02, 1), b=noisy(5, 0.02, 2), c=noisy(5, 0.02, 3))
    watch.run(budget_ms=1e6)
    assert max(watch.count(name) for name in "abc") == 1 + 3 * 11


def test_everyone_has_one_sample_whatever_the_budget() -> None:
    """Three times slower is seen even where a single call costs more than the budget."""
    watch = Cranked(a=repeat(3e6), b=repeat(1e6))
    found = watch.run(budget_ms=50)
    assert [timing_.repeats for timing_ in found.timings] == [1, 1]
    assert winner(found) == "b"


def test_slow_candidates_are_sampled_one_at_a_time() -> None:
    """The budget is spread over rounds, so that all get about as many samples."""
    watch = Cranked(a=noisy(3000, 0.1, 1), b=noisy(3000, 0.1, 2))
    watch.run(budget_ms=50)
    assert {count for _, count in watch.log} == {1}
    assert abs(watch.count("a") - watch.count("b")) <= 1


# Bad clocks.


@pytest.mark.parametrize("bad", [0.0, -5.0, math.nan, math.inf, -math.inf])
def test_samples_that_make_no_sense_are_thrown_away(bad: float) -> None:
    """They count neither for nor against."""
    watch = Cranked(a=[bad, *repeat(10.0, 5), bad, *repeat(10.0, 80)], b=repeat(12.0))
    found = watch.run()
    assert found.timings[0].median_us == 10
    assert winner(found) == "a"


@pytest.mark.parametrize("bad", [0.0, -5.0, math.nan, math.inf])
def test_a_candidate_without_a_valid_sample_is_behind_everyone(bad: float) -> None:
    """Its median is infinite, and it never wins, not even by being first."""
    found = Cranked(a=repeat(bad), b=repeat(12.0)).run()
    assert found.timings[0] == Timing("a", math.inf, 0, 0)
    assert winner(found) == "b"


def test_nobody_with_a_valid_sample() -> None:
    """It ends, and the first stays."""
    found = Cranked(a=repeat(0.0), b=repeat(math.nan)).run()
    assert [timing_.median_us for timing_ in found.timings] == [math.inf, math.inf]
    assert winner(found) == "a"


@pytest.mark.parametrize("step", [0, -1_000_000])
def test_a_wall_clock_that_stands_still_or_runs_backward(step: int) -> None:
    """The rounds are bounded anyway."""
    watch = Cranked(a=noisy(10, 0.1, 1), b=noisy(10, 0.1, 2))
    ticks = iter(range(10**9, -(10**9), step)) if step else repeat(0)
    interleaved_bench(watch.candidates, watch, budget_ms=1, clock_ns=lambda: next(ticks), rounds_max=5)
    assert watch.count("a") == 1 + 3 * 5


# Failures.


def test_one_that_raises_when_called_is_out() -> None:
    """The others go on, and why it failed is kept."""
    watch = Cranked(a=repeat(10.0), b=repeat(12.0), c=repeat(11.0))
    error = ValueError("no")

    def fails() -> None:
        raise error

    watch.candidates[1] = ("b", fails)
    found = watch.run()
    assert found.failures == {"b": error}
    assert [timing_.variant for timing_ in found.timings] == ["a", "c"]


def test_one_that_raises_later_is_out_with_its_samples() -> None:
    """A candidate that works at first is no candidate."""
    error = RuntimeError("out of memory")
    found = Cranked(a=repeat(10.0), b=[*repeat(9.9, 5), error]).run()
    assert found.failures == {"b": error}
    assert [timing_.variant for timing_ in found.timings] == ["a"]


def test_all_fail() -> None:
    """Nothing is left to time."""
    found = Cranked(a=[ValueError("a")], b=[ValueError("b")]).run()
    assert found.timings == ()
    assert {name: str(error) for name, error in found.failures.items()} == {"a": "a", "b": "b"}


def test_the_last_one_left_is_not_sampled_against_nobody() -> None:
    """If all others fail at their first call, there is nothing to compare."""

    def fails() -> None:
        raise ValueError

    watch = Cranked(a=repeat(1.0))
    watch.candidates.append(("b", fails))
    assert watch.run().timings == ()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit()])
def test_an_interrupt_passes_through(interrupt: BaseException) -> None:
    """It is nobody's failure."""
    with pytest.raises(type(interrupt)):
        Cranked(a=repeat(10.0), b=[10.0, interrupt]).run()


# Who is ahead.


def test_ahead_asks_for_the_margin() -> None:
    """Without noise the margin alone decides."""
    slow = Timing("slow", 100, 0, 1000)
    assert ahead(Timing("fast", 96.9, 0, 1000), slow, 0.03)
    assert not ahead(Timing("close", 97.1, 0, 1000), slow, 0.03)
    assert ahead(Timing("close", 97.1, 0, 1000), slow, 0.0)
    assert not ahead(slow, slow, 0.0)


def test_ahead_asks_for_more_samples_where_they_scatter() -> None:
    """Medians within each other's quartiles say nothing by a few samples, and something by many."""
    assert not ahead(Timing("a", 90, 6, 12), Timing("b", 100, 6, 12), 0.03)
    assert ahead(Timing("a", 90, 6, 100), Timing("b", 100, 6, 100), 0.03)


def test_ahead_wants_more_of_few_samples() -> None:
    """The same medians and spreads are believed of many samples and not of few; a large difference of one."""
    assert not ahead(Timing("a", 90, 2, 3), Timing("b", 100, 2, 3), 0.03)
    assert ahead(Timing("a", 90, 2, 100), Timing("b", 100, 2, 100), 0.03)
    assert not ahead(Timing("a", 90, 0, 1), Timing("b", 100, 0, 1), 0.03)
    assert ahead(Timing("a", 30, 0, 1), Timing("b", 100, 0, 1), 0.03)


@pytest.mark.parametrize(
    ("other_us", "repeats", "expected"), [(100, 20, False), (100, 4000, True), (104, 90, True), (97, 4000, False)]
)
def test_one_is_no_better_that_would_have_to_be_faster_by_the_margin(
    other_us: float, repeats: int, expected: bool
) -> None:
    """By more than noise explains: it may be as fast."""
    assert is_no_better(Timing("a", 100, 5, repeats), Timing("b", other_us, 5, repeats), 0.02) is expected


timings = st.builds(
    Timing,
    st.just("x"),
    st.one_of(st.floats(1e-3, 1e9), st.just(math.inf)),
    st.floats(0, 1e6),
    st.integers(0, 1000),
)


@given(timings, timings, st.floats(0, 0.5))
def test_ahead_is_one_way(a: Timing, b: Timing, margin: float) -> None:
    """Never both, never oneself; and a larger margin is harder to reach."""
    assert not (ahead(a, b, margin) and ahead(b, a, margin))
    assert not ahead(a, a, margin)
    assert ahead(a, b, 0.0) or not ahead(a, b, margin)


def test_the_same_kernel_under_two_names_keeps_the_first() -> None:
    """1000 times at 5 % noise and spikes: the first is kept at least 999 times."""
    kept = [winner(Cranked(a=noisy(10, 0.05, 2 * n), b=noisy(10, 0.05, 2 * n + 1)).run()) for n in range(1000)]
    assert kept.count("a") >= 999


@pytest.mark.parametrize("order", ["slow first", "slow last"])
def test_one_that_is_slower_by_a_fifth_loses(order: str) -> None:
    """1000 times at 5 % noise and spikes: at least 990 find it, whichever comes first."""

    def once(seed: int) -> str:
        pair = {"slow": noisy(12, 0.05, seed), "fast": noisy(10, 0.05, seed + 10**6)}
        return winner(Cranked(**(pair if order == "slow first" else dict(reversed(pair.items())))).run())

    assert [once(seed) for seed in range(1000)].count("fast") >= 990


def test_drift_favours_nobody() -> None:
    """A machine that becomes slower by a tenth while it is timed: equal kernels stay equal."""

    class Drifting(Cranked):
        def sample(self, name: str) -> float:
            return super().sample(name) * (1 + 0.1 * self.now_ns / 1e6)

    kept = [winner(Drifting(a=noisy(10, 0.01, n), b=noisy(10, 0.01, -n - 1)).run()) for n in range(300)]
    assert kept.count("a") >= 299


def test_a_slow_spell_of_the_machine_decides_nothing() -> None:
    """Every so often everything takes half as long again for several samples."""

    class Spells(Cranked):
        left = 0

        def sample(self, name: str) -> float:
            self.left = self.left - 1 if self.left else 10 * (chance.random() < 0.02)
            return super().sample(name) * (1.5 if self.left else 1)

    chance = random.Random(5)
    kept = [winner(Spells(a=noisy(10, 0.01, n), b=noisy(10, 0.01, -n - 1)).run()) for n in range(300)]
    assert kept.count("a") >= 298


@pytest.mark.parametrize("order", ["slow first", "slow last"])
def test_one_that_is_never_as_fast_is_not_saved_by_its_scatter(order: str) -> None:
    """A function of fifty launches on a busy host, five times as slow at its best, in a budget for a dozen samples."""

    def once(seed: int) -> str:
        pair = {"slow": scattered(230, seed), "fast": noisy(45, 0.05, seed + 10**6)}
        watch = Cranked(**(pair if order == "slow first" else dict(reversed(pair.items()))))
        return winner(watch.run(budget_ms=12))

    assert [once(seed) for seed in range(1000)].count("fast") >= 999


def test_few_samples_are_not_gone_by_their_least() -> None:
    """Of five none may have been fast by chance."""
    fast, slow = Timing("fast", 10, 1, 30, least_us=9), Timing("slow", 60, 50, 6, least_us=13)
    assert ahead(fast, slow, 0.03)
    assert not ahead(fast, dataclasses.replace(slow, repeats=5), 0.03)
    assert not ahead(dataclasses.replace(fast, repeats=5), slow, 0.03)
    assert not ahead(fast, dataclasses.replace(slow, least_us=12.5), 0.03)
    assert not ahead(fast, dataclasses.replace(slow, least_us=None), 0.03)


# What is not certain.


def test_a_slow_spell_at_the_start_does_not_decide() -> None:
    """Three samples of one candidate in it are not the last word: there is time for more, and they are equal."""
    spell = [*repeat(2.5e4, 3), *repeat(100.0, 200)]
    found = Cranked(plain=spell, other=repeat(100.0)).run(budget_ms=20)
    plain = found.timings[0]
    assert plain.repeats >= 6
    assert undecided(*found.timings) is None
    assert plain.median_us == 100.0


def test_too_few_samples_are_no_decision() -> None:
    """Where one run takes longer than all the time there is."""
    found = Cranked(plain=repeat(3e6), other=repeat(1e6)).run(budget_ms=50)
    assert "samples, too few" in str(undecided(*found.timings))


@pytest.mark.parametrize(
    ("plain", "other", "why"),
    [
        (Timing("plain", 254.0, 1.0, 2), Timing("other", 1.0, 0.0, 40), "plain has 2 samples"),
        (Timing("plain", 254.0, 90.0, 5), Timing("other", 1.0, 0.0, 40), "plain has 5 samples"),
        (Timing("plain", 254.0, 200.0, 8), Timing("other", 1.0, 0.0, 40), "scatter by more than they differ"),
        (Timing("plain", 254.0, 9.0, 3), Timing("other", 1.0, 0.0, 40), None),
        (Timing("plain", 254.0, 60.0, 40), Timing("other", 1.0, 0.5, 40), None),
        (Timing("plain", 1.1, 0.5, 2), Timing("other", 1.0, 0.5, 2), None),
        (Timing("plain", math.inf, 0.0, 0), Timing("other", 1.0, 0.5, 20), None),
    ],
)
def test_what_is_decided(plain: Timing, other: Timing, why: str | None) -> None:
    """By the number of samples and their spread, in either order; a small difference needs no decision."""
    for pair in ((plain, other), (other, plain)):
        assert (why in str(undecided(*pair))) if why else undecided(*pair) is None
