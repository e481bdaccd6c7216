"""What settled sizes say of a new one, told what was chosen there."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from shapedispatch.autotune.benchmark import FEW
from shapedispatch.choices.neighbours import FAR, Neighbours, leading
from shapedispatch.records import Choice, Timing


def settled(size: int, times_us: Mapping[str, float], repeats: int = FEW) -> Choice:
    """A choice at that size, of so many samples each."""
    timings = tuple(Timing(name, us, 0.0, repeats) for name, us in times_us.items())
    best = min(timings, key=lambda timing: timing.median_us)
    return Choice(best.variant, "timed", sizes={"M": size}, timings=timings)


def near(*choices: Choice) -> Neighbours:
    """The neighbours of size 100."""
    return Neighbours({"M": 100}, choices)


def test_what_a_few_samples_show_to_be_far_behind_is_left_out() -> None:
    """With the place where it was."""
    assert near(settled(96, {"plain": 10, "slow": 20, "close": 14})).far_behind() == {
        "slow": "not tried: it took 2.0 x plain at M=96"
    }


def test_one_sample_may_have_been_taken_in_a_slow_spell() -> None:
    """It is none of the variant's faults; at two sizes it hardly is by chance."""
    once = settled(96, {"plain": 10, "slow": 4000}, repeats=1)
    assert near(once).far_behind() == {}
    assert near(once, settled(128, {"plain": 10, "slow": 11})).far_behind() == {}
    assert "slow" in near(once, settled(128, {"plain": 10, "slow": 900}, repeats=1)).far_behind()


def test_far_away_nothing_is_left_out() -> None:
    """Beyond a doubling."""
    assert near(settled(300, {"plain": 10, "slow": 20})).far_behind() == {}


def test_whether_a_variant_was_timed_is_known() -> None:
    """At any size."""
    neighbours = near(settled(96, {"plain": 10, "slow": 20}))
    assert (neighbours.timed("slow"), neighbours.timed("new")) == (True, False)


def test_two_sizes_on_both_sides_that_agree_say_what_is_best() -> None:
    """Where they are."""
    around = [settled(size, {"plain": 20, "build": 10}) for size in (96, 128)]
    agreed = near(*around).agreed()
    assert agreed is not None
    assert agreed[0] == "build"
    assert near(around[0]).agreed() is None
    assert near(around[0], settled(128, {"plain": 10, "build": 20})).agreed() is None


def test_what_was_chosen_at_the_same_sizes_is_no_neighbour() -> None:
    """It may be the key's own earlier choice, made before a build was there."""
    own = settled(100, {"plain": 10})
    assert near(own).agreed() is None
    assert near(own, settled(96, {"plain": 10})).agreed() is None


def somewhere(so_far: tuple[Choice, ...] = (), **learned: Choice) -> Any:
    """A miss of a dispatcher that has settled these, and whose keys of these names are being learned."""

    def peek(key: str) -> list[Any]:
        choice = learned[key]
        return [SimpleNamespace(choice=choice, learner=SimpleNamespace(choice=lambda begun: choice))]

    facts = SimpleNamespace(settled={"kin": so_far}, so_far={})
    return SimpleNamespace(kin="kin", core=SimpleNamespace(table=SimpleNamespace(facts=facts, peek=peek)))


def test_what_leads_is_what_is_best_at_the_nearest_size() -> None:
    """Settled, or as far as it is learned."""
    build, plain = settled(120, {"plain": 20, "build": 10}), settled(300, {"plain": 10, "build": 20})
    assert leading(somewhere((build,)), {"M": 100}, ()) == ("build", 0.5)
    assert leading(somewhere((), key=build), {"M": 100}, ["key"]) == ("build", 0.5)
    assert leading(somewhere((build,), key=plain), {"M": 280}, ["key"]) == ("plain", 1.0)
    assert leading(somewhere((plain,), key=build), {"M": 280}, ["key"]) == ("plain", 1.0)


def test_what_leads_by_no_sample_does_not_lead() -> None:
    """It runs because nothing is known."""
    begun = Choice("plain", "learning", sizes={"M": 100})
    assert leading(somewhere((), key=begun), {"M": 100}, ["key"]) is None


def test_another_thread_may_add_a_key_meanwhile() -> None:
    """The keys that are learned alone are the family's own."""
    build, alone = settled(120, {"plain": 20, "build": 10}), {"key"}
    ctx = somewhere((), key=build)
    peek = ctx.core.table.peek
    ctx.core.table.peek = lambda key: (alone.add("another"), peek(key))[1]
    assert leading(ctx, {"M": 100}, alone) == ("build", 0.5)


def test_what_leads_far_away_says_nothing() -> None:
    """Nor does it where other sizes have names."""
    build = settled(100, {"plain": 20, "build": 10})
    assert leading(somewhere((build,)), {"M": int(101 * 2**FAR)}, ()) is None
    assert leading(somewhere((), key=build), {"M": int(101 * 2**FAR)}, ["key"]) is None
    assert leading(somewhere((), key=build), {"N": 100}, ["key"]) is None


def test_a_time_of_nothing_leaves_nothing_out() -> None:
    """No measurement gives it; a row in a store that somebody has written may."""
    forged = settled(90, {"plain": 0.0, "hint[M=64]": 0.0})
    assert near(forged, settled(110, {"plain": 0.0, "hint[M=64]": 5.0})).far_behind() == {}
