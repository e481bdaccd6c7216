"""Whether what was chosen is still the best, told what later samples took; nothing is run and no clock is asked."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest

from shapedispatch.online.drift import BURST, Drift, doubt
from shapedispatch.records import Timing


def drift() -> Drift:
    """What was chosen takes 50 microseconds, the next best 80."""
    return Drift("a", {"plain": 80.0, "a": 50.0, "far": 900.0}, 0.02)


def play(told: Drift, takes: Callable[[str], float], samples: int) -> list[str]:
    """The switches of so many samples."""
    found = (told.sampled(name, takes(name)) for name in (told.next_sample() for _ in range(samples)))
    return [name for name in found if name is not None]


def test_most_samples_are_of_what_was_chosen() -> None:
    """The rest of the next best; none of what is far behind."""
    told = drift()
    assert [told.next_sample() for _ in range(8)].count("a") == 6
    assert {told.next_sample() for _ in range(40)} == {"a", "plain"}


def test_where_nothing_has_changed_nothing_happens() -> None:
    """In any noise below a quarter."""
    told, rng = drift(), random.Random(0)
    times = {"a": 50.0, "plain": 80.0}
    assert play(told, lambda name: times[name] * rng.uniform(0.9, 1.1), 1000) == []
    assert not told.in_burst()


def test_what_says_nothing_of_who_is_best_opens_no_burst() -> None:
    """What was chosen may become faster, and the next best slower."""
    told = drift()
    told.sampled("a", 5.0)
    told.sampled("plain", 800.0)
    assert not told.in_burst()


def test_samples_that_find_the_caches_cold_are_usual() -> None:
    """In a burst calls come soon after others, and take less; what opens one after the other shows nothing new."""
    told, rng, bursts = drift(), random.Random(0), 0
    for _ in range(1000):
        name, was = told.next_sample(), told.in_burst()
        us = {"a": 50.0, "plain": 80.0}[name] * (1 if was else rng.choice([1.3, 1.6, 1.6, 1.6, 3.0]))
        assert told.sampled(name, us) is None
        bursts += told.in_burst() and not was
    assert 1 <= bursts <= 20


def test_a_burst_too_scattered_to_say_it_is_followed_by_another() -> None:
    """What was seen in it is known then, and no later sample would be off that."""
    told, takes = drift(), {"a": itertools.cycle([160.0, 40.0, 170.0]), "plain": itertools.cycle([80.0, 400.0, 30.0])}
    told.sampled("a", 160.0)
    while told.in_burst():
        name = told.next_sample()
        assert told.sampled(name, next(takes[name])) is None
    assert told.known_us["a"] > 1.5 * told.known_us["plain"]
    assert play(told, lambda name: {"a": 160.0, "plain": 80.0}[name], 60) == ["plain"]


def test_what_becomes_slow_after_bursts_in_vain_is_left() -> None:
    """Two samples in a row that are off what is usual open one, too."""
    told = drift()
    for _ in range(60):
        name = told.next_sample()
        told.sampled(name, {"a": 50.0, "plain": 80.0}[name] * (1 if told.in_burst() else 1.4))
    assert told.winner == "a"
    assert play(told, {"a": 150.0, "plain": 80.0}.__getitem__, 6 + BURST) == ["plain"]


def test_what_became_twice_as_slow_is_left_once() -> None:
    """After one sample that is far off, and a burst."""
    told = drift()
    times = {"a": 100.0, "plain": 80.0}
    assert play(told, times.__getitem__, 2 + BURST) == ["plain"]
    assert play(told, times.__getitem__, 1000) == []
    assert told.known_us["a"] == 100


def test_one_that_goes_back_and_forth_is_followed_less_and_less() -> None:
    """Each switch asks for twice the gain."""
    told = drift()
    switches = []
    for turn in range(40):
        times = {"a": 40.0 + 60 * (turn % 2), "plain": 80.0}
        switches += play(told, times.__getitem__, 60)
    assert 1 <= len(switches) <= 4


def test_where_all_have_become_slower_nothing_switches() -> None:
    """And what they take now is what is known."""
    told = drift()
    assert play(told, {"a": 100.0, "plain": 160.0}.__getitem__, 100) == []
    assert told.known_us == {"plain": 160, "a": 100, "far": 900}
    assert not told.in_burst()


def test_a_spike_changes_nothing() -> None:
    """It opens a burst, which shows what is so."""
    told = drift()
    told.sampled("a", 5000)
    assert told.in_burst()
    assert play(told, {"a": 50.0, "plain": 80.0}.__getitem__, BURST) == []
    assert told.known_us["a"] == 50


def test_a_next_best_that_has_become_fast_is_taken() -> None:
    """It is sampled too."""
    assert play(drift(), {"a": 50.0, "plain": 20.0}.__getitem__, 60) == ["plain"]


@pytest.mark.parametrize("us", [0.0, -3.0, math.inf, math.nan])
def test_what_makes_no_sense_is_no_sample(us: float) -> None:
    """It opens no burst."""
    told = drift()
    told.sampled("a", us)
    assert not told.in_burst()


def test_one_that_has_left_is_sampled_no_more() -> None:
    """The next in order is, or what was chosen alone."""
    told = drift()
    told.left("plain")
    assert told.runner_up() == "far"
    told.left("far")
    assert {told.next_sample() for _ in range(8)} == {"a"}
    assert play(told, {"a": 500.0}.__getitem__, 100) == []


def test_what_is_doubted_is_looked_at_first() -> None:
    """In a burst of both, which may leave all as it was, or switch."""
    right = Drift("a", {"plain": 80.0, "a": 50.0}, 0.02, doubted=True)
    assert right.in_burst()
    assert play(right, {"a": 50.0, "plain": 80.0}.__getitem__, BURST + 1) == []
    assert {name: (one.median_us, one.repeats) for name, one in right.judged.items()} == {
        "a": (50, 6),
        "plain": (80, 6),
    }
    wrong = Drift("a", {"plain": 80.0, "a": 50.0}, 0.02, doubted=True)
    assert play(wrong, {"a": 50.0, "plain": 10.0}.__getitem__, BURST + 1) == ["plain"]


def test_what_is_far_behind_is_worth_no_burst() -> None:
    """Six samples of it would take long; one now and then shows as well whether it is."""
    assert not Drift("a", {"plain": 5000.0, "a": 50.0}, 0.02, doubted=True).in_burst()
    assert not Drift("a", {"a": 50.0}, 0.02, doubted=True).in_burst()


@pytest.mark.parametrize(("plain_us", "samples", "why"), [(90, 2, "too few"), (90, 9, ""), (60, 2, ""), (900, 2, "")])
def test_a_choice_is_in_doubt_where_another_near_it_might_be_the_best(plain_us: float, samples: int, why: str) -> None:
    """Not where that has enough samples, is as good as equal, or far behind."""
    found = doubt("a", [Timing("plain", plain_us, 1.0, samples), Timing("a", 50.0, 1.0, 9)])
    assert (why in found) if why else not found


def test_a_choice_without_times_is_in_no_doubt() -> None:
    """Nothing can be said of it."""
    assert doubt("a", []) == ""
