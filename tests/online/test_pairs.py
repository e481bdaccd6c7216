"""Variants compared with plain by pairs of calls at several keys."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.autotune.benchmark import ENOUGH
from shapedispatch.online.pairs import COLD_AFTER, LIKELY, MOST, MOST_OPEN, PASSES, TIES, Half, Halves, Pairs


def pairs(*names: str) -> Pairs:
    """Of plain and these."""
    made = Pairs(0.02)
    for name in names:
        made.add(name)
    return made


def give(made: Pairs, ratios: dict[str, float], noise: float = 0.0, most: int = 400) -> Pairs:
    """Pairs as long as any are wanted."""
    rng = random.Random(0)
    for _ in range(most):
        names = made.wanted([*ratios])
        if not names or made.is_over():
            break
        name = names[0]
        made.gave([(name, ratios[name] * (1 + noise * (rng.random() - 0.5)), False)])
    return made


def test_the_best_leads() -> None:
    """Whatever the others are."""
    made = give(pairs("fast", "slow"), {"fast": 0.5, "slow": 1.2}, noise=0.1)
    assert made.is_over()
    assert made.leader() == "fast"


def test_plain_leads_where_no_variant_is_better() -> None:
    """By more than the margin."""
    assert give(pairs("same"), {"same": 0.99}, noise=0.02).leader() == "plain"
    assert give(pairs("worse"), {"worse": 1.1}, noise=0.02).leader() == "plain"


@pytest.mark.parametrize(("ratio", "leads"), [(0.9, [False, False, True]), (0.5, [False, True, True])])
def test_nothing_leads_before_there_are_some_pairs(ratio: float, leads: list[bool]) -> None:
    """One may be luck; two, where the time that they save is none."""
    made, found = pairs("fast"), []
    assert made.leader() is None
    for _ in leads:
        made.gave([("fast", ratio, False)])
        found.append(made.leader() == "fast")
    assert found == leads


def test_what_there_is_least_of_is_wanted() -> None:
    """Of what a key has."""
    made = pairs("one", "other")
    made.gave([("one", 1.0, False)])
    assert made.wanted(["one", "other"]) == ["other"]
    assert made.wanted(["one"]) == ["one"]
    assert made.wanted(["unknown"]) == []


def test_what_is_far_behind_is_wanted_no_more() -> None:
    """After two pairs, not after one."""
    made = pairs("slow", "fast")
    made.gave([("slow", 9.0, False)])
    assert made.wanted(["slow"]) == ["slow"]
    made.gave([("slow", 9.0, False)])
    assert made.wanted(["slow"]) == []
    assert made.wanted(["fast"]) == ["fast"]


def test_what_raised_is_out() -> None:
    """Though it was the fastest."""
    made = pairs("fast", "other")
    for _ in range(5):
        made.gave([("fast", 0.1, False)])
    made.failed("fast")
    made.add("fast")  # as the next key does, at which it is right
    assert made.wanted(["fast", "other"]) == ["other"]
    assert give(made, {"other": 0.5}).leader() == "other"


def test_what_does_not_differ_is_over_some_day() -> None:
    """Noise or not."""
    assert give(pairs("same"), {"same": 1.0}, noise=0.5).is_over()


def test_variants_of_nearly_the_same_code_are_a_tie_soon() -> None:
    """Each pair costs a call of plain, which may take many times as long; before, noise may still tell them apart."""
    for count, over in ((TIES - 1, False), (TIES, True)):
        made = pairs("one", "other")
        for index in range(count):
            for name in ("one", "other"):
                made.gave([(name, 0.2 + 0.005 * (index % 3 - 1), False)])
        assert made.is_over() is over


def test_what_is_fastest_so_far_is_told() -> None:
    """As a share of plain's time."""
    made = pairs("fast", "slow")
    assert made.least_share() == 1
    made.gave([("slow", 2.0, False)])
    assert made.least_share() == 1
    made.gave([("fast", 0.25, False)])
    assert made.least_share() == 0.25


def test_a_variant_that_comes_later_opens_it_again() -> None:
    """A build that was not there before."""
    made = give(pairs("slow"), {"slow": 1.5})
    assert made.is_over()
    made.add("fast")
    assert not made.is_over()
    assert give(made, {"fast": 0.5}).leader() == "fast"


@pytest.mark.parametrize("ratio", [0.0, -1.0, math.inf, math.nan])
def test_what_makes_no_sense_is_no_pair(ratio: float) -> None:
    """A clock that went back."""
    made = pairs("one")
    made.gave([("one", ratio, False)])
    assert [timing.variant for timing in made.costs()] == ["plain"]


@given(st.lists(st.floats(0.2, 5.0), min_size=1, max_size=4), st.integers(0, 5))
def test_it_ends_with_one_that_is_as_good_as_the_best(ratios: list[float], seed: int) -> None:
    """Within margin and noise, however many variants there are."""
    named = {f"v{i}": ratio for i, ratio in enumerate(ratios)}
    made = give(pairs(*named), named, noise=0.01, most=41 * len(named) + seed)
    assert made.is_over()
    assert {"plain": 1.0, **named}[str(made.leader())] <= min([1.0, *ratios]) * 1.04


def test_what_is_decided_waits_for_what_is_not_known_yet() -> None:
    """Pairs of one variant, once they show where it stands, say nothing of another that no key could give yet."""
    made = pairs("fast", "unseen")
    for _ in range(ENOUGH):
        assert made.wanted(["fast"]) == ["fast"]
        made.gave([("fast", 0.5, False)])
    assert made.wanted(["fast"]) == []
    assert not made.is_over()
    for _ in range(ENOUGH):
        made.gave([("unseen", 0.5, False)])
    assert made.wanted(["fast"]) == ["fast"]


# Pairs of two keys.


def half(of_plain: bool, took_us: float, *sizes: int, name: str = "fast") -> Half:
    """One call of a pair."""
    return Half(name, of_plain, took_us, sizes)


def test_calls_of_nearly_the_same_sizes_are_a_pair() -> None:
    """Half of what the sizes may explain is taken off."""
    halves = Halves()
    assert halves.add(half(True, 10.0, 100)) is None
    assert halves.add(half(False, 5.0, 110)) == (pytest.approx(0.5 * math.sqrt(100 / 110)), False)
    assert halves.add(half(False, 5.0, 100)) is None


def test_a_pair_is_of_plain_and_a_variant() -> None:
    """And of that very variant."""
    halves = Halves()
    halves.add(half(True, 10.0, 100))
    assert halves.add(half(True, 12.0, 100)) is None
    assert halves.add(half(False, 1.0, 100, name="other")) is None


def test_calls_of_other_sizes_are_no_pair() -> None:
    """In any dim, though as much is computed."""
    halves = Halves()
    halves.add(half(True, 10.0, 100, 64))
    assert halves.add(half(False, 5.0, 64, 100)) is None
    assert halves.nearest("fast", (128, 64)) is None


def test_the_nearest_call_is_the_other_half() -> None:
    """A key's own, where it has given one that waits."""
    halves = Halves()
    own = half(True, 10.0, 100)
    for one in (half(True, 11.0, 95), own, half(True, 12.0, 105)):
        halves.add(one)
    assert halves.add(half(False, 5.0, 100)) == (0.5, False)
    assert own not in halves


def test_few_keys_add_a_half_where_many_wait() -> None:
    """Else each of sizes that never come again would; and what waits for ever makes room."""
    halves = Halves()
    waiting = [half(True, 10.0, 2**i) for i in range(MOST_OPEN)]
    for one in waiting:
        assert halves.has_room("fast", one.sizes)
        halves.add(one)
    assert halves.has_room("fast", (1,))
    far = [halves.has_room("fast", (3 * 2**MOST_OPEN,)) for _ in range(2 * PASSES)]
    assert far.count(True) == 2
    halves.add(half(True, 10.0, 3 * 2**MOST_OPEN))
    assert [one in halves for one in waiting] == [False] + [True] * (MOST_OPEN - 1)


def test_a_variant_that_is_out_is_in_no_pair() -> None:
    """Nor is a call of plain that waits for one of it."""
    halves = Halves()
    halves.add(half(True, 10.0, 100))
    halves.forget("fast")
    assert halves.nearest("fast", (100,)) is None


def test_sizes_of_nothing_are_sizes() -> None:
    """As one is, where they are divided."""
    halves = Halves()
    halves.add(half(True, 10.0, 0, 100))
    assert halves.add(half(False, 5.0, 0, 100)) == (0.5, False)


def test_who_has_few_pairs_may_lead_where_those_say_so() -> None:
    """Who has none says nothing: it may be none of these keys'."""
    pairs = Pairs(0.02)
    for name in ("slow", "fast", "none"):
        pairs.add(name)
    for _ in range(LIKELY - 1):
        pairs.gave([("slow", 1.3, False)])
        assert not pairs.may_be_led("plain")
    pairs.gave([("fast", 0.5, False)])
    assert pairs.may_be_led("plain")
    for _ in range(LIKELY - 1):
        pairs.gave([("fast", 0.5, False)])
    assert not pairs.may_be_led("fast")


def test_who_is_faster_by_what_matters_may_lead_after_a_few_pairs_too() -> None:
    """They scatter, and say nothing yet; what was expected is not borne out by that."""
    for share, may in ((0.6, True), (0.97, False)):
        made = pairs("fast")
        for scatter in (0.5, 1.0, 1.5):
            made.gave([("fast", share * scatter, False)])
        assert made.leader() == "plain"
        assert made.may_be_led("plain") is may


def test_of_variants_that_win_the_fastest_runs_meanwhile() -> None:
    """Few pairs scatter, so that the earliest is kept; it may take a third longer (rope on an H100 did)."""
    made = pairs("earlier", "later")
    for earlier, later in ((0.228, 0.207), (0.143, 0.133), (0.143, 0.131)):
        made.gave([("earlier", earlier, False)])
        made.gave([("later", later, False)])
    assert (made.leader(), made.is_over()) == ("later", False)
    nearly = pairs("earlier", "later")
    for earlier, later in ((0.228, 0.207), (0.143, 0.140), (0.143, 0.139)):
        nearly.gave([("earlier", earlier, False)])
        nearly.gave([("later", later, False)])
    assert nearly.leader() == "earlier"


def test_of_as_many_pairs_as_there_may_be_less_certainty_is_asked_for() -> None:
    """Nobody will look again, and what plain costs more is lost for good."""
    made = scattered(pairs("fast"), (0.55, 0.75, 0.9, 1.05, 1.3), MOST - 1)
    assert (made.leader(), made.is_over()) == ("plain", False)
    made.gave([("fast", 0.9, False)])
    assert (made.leader(), made.is_tied()) == ("fast", True)


@pytest.mark.parametrize("ratios", [(0.5, 0.7, 0.95, 1.1, 1.4), (0.979, 0.98, 0.985, 0.99, 0.995)])
def test_what_luck_or_the_margin_explains_leads_not_even_then(ratios: tuple[float, ...]) -> None:
    """Plain is kept."""
    assert scattered(pairs("fast"), ratios, MOST).leader() == "plain"


def scattered(made: Pairs, ratios: tuple[float, ...], count: int) -> Pairs:
    """So many pairs of one variant, those ratios in turn."""
    for one in itertools.islice(itertools.cycle(ratios), count):
        made.gave([("fast", one, False)])
    return made


def test_a_pair_is_cold_where_one_of_its_calls_was() -> None:
    """Whichever came first."""
    for first, second in ((True, False), (False, True)):
        halves = Halves()
        halves.add(Half("fast", True, 10.0, (100,), first))
        assert halves.add(Half("fast", False, 5.0, (100,), second)) == (0.5, True)


def test_cold_pairs_count_where_all_that_come_are_cold_by_now() -> None:
    """Else a program that called in a loop once, and does not any more, would be learned from for ever."""
    pairs = Pairs(0.02)
    pairs.add("build")
    pairs.gave([("build", 0.9, False)] * 2)
    pairs.gave([("build", 0.5, True)] * (COLD_AFTER - 1) + [("build", 0.9, False)])
    assert [cost.repeats for cost in pairs.costs()[1:]] == [3]
    pairs.gave([("build", 0.5, True)] * (COLD_AFTER + 1))
    assert [(cost.median_us, cost.repeats) for cost in pairs.costs()[1:]] == [(50.0, 2)]
    pairs.gave([("build", 0.7, False)])
    assert [(cost.median_us, cost.repeats) for cost in pairs.costs()[1:]] == [(70.0, 1)]


def test_cold_pairs_count_as_long_as_there_is_no_other() -> None:
    """Where sizes never come again there are no others."""
    made = pairs("fast")
    for _ in range(LIKELY):
        made.gave([("fast", 0.6, True)])
    assert made.leader() == "fast"
    made.gave([("fast", 1.5, False)])
    assert list(made._found["fast"]) == [150.0]
    made.gave([("fast", 0.1, True)])
    assert list(made._found["fast"]) == [150.0]


def test_who_leads_is_asked_again_after_each_change() -> None:
    """Though it is remembered in between: another pair, one that raised."""
    made = pairs("one", "other")
    for _ in range(LIKELY):
        made.gave([("one", 0.6, False)])
        made.gave([("other", 0.8, False)])
    assert made.leader() == "one"
    for _ in range(2 * LIKELY):
        made.gave([("other", 0.4, False)])
    assert made.leader() == "other"
    made.failed("other")
    assert made.leader() == "one"
