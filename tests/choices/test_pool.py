"""What keys of few calls find out together, told what each call took."""

from __future__ import annotations

from typing import Any

from shapedispatch.choices.pool import ALONE, Pool, PooledContest
from shapedispatch.hit.table import Entry
from shapedispatch.online.contest import FREE_US, SHARE
from shapedispatch.online.pairs import Pairs
from shapedispatch.online.real_calls import Figures
from shapedispatch.records import Choice


class Clock:
    """Nanoseconds that pass where a test says so."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """Its time."""
        return self.now


def pool() -> tuple[Pool, Clock]:
    """One on such a clock."""
    clock = Clock()
    return Pool(Pairs(0.02), clock_ns=clock), clock


def entries(*names: str) -> dict[str, Entry]:
    """What runs these."""
    return {name: Entry(lambda: None, None, Choice(name, "nearest")) for name in names}


def contest(of: Pool, *names: str, known: Any = None) -> PooledContest:
    """A key's, with plain and these."""
    figures = Figures.of_key(["plain", *names], "auto", None, grad=False)
    return PooledContest(of, entries("plain", *names) if known is None else known, figures)


def play(one: PooledContest, us: dict[str, float], calls: int) -> list[str]:
    """Calls of a key, and whose sample each was."""
    found = []
    for _ in range(calls):
        sampled = one.next_sample()
        found.append(sampled.name if sampled is not None else "")
        if sampled is None:
            one.ran(us[one.leader().name])
        else:
            sampled.took(sampled.host_us, us[sampled.name])
            one.sampled(sampled, us[sampled.name])
    return found


def test_the_first_keys_are_learned_alone() -> None:
    """The others together."""
    of, _ = pool()
    assert [of.takes(key) for key in ("a", "b", "c", "a")] == [False] * ALONE + [True, False]


def test_a_pair_is_a_call_of_plain_and_one_of_a_variant() -> None:
    """In turns first and second: whichever comes first finds the caches cold."""
    of, _ = pool()
    us = {"plain": 10.0, "build": 5.0}
    assert play(contest(of, "build"), us, 4) == ["build", "plain", "plain", "build"]
    assert [(cost.variant, cost.median_us, cost.repeats) for cost in of.pairs.costs()[1:]] == [("build", 50.0, 2)]


def test_keys_of_two_calls_come_to_a_favourite() -> None:
    """Though none of them could."""
    of, _ = pool()
    for _ in range(10):
        play(contest(of, "build"), {"plain": 10.0, "build": 5.0}, 2)
    assert (of.favourite, of.over) == ("build", True)
    assert contest(of, "build").leader().name == "build"
    assert contest(of).leader().name == "plain"


def test_what_is_not_known_to_be_right_is_no_matter_of_others() -> None:
    """The device has yet to say: no other key may run it for that."""
    of, _ = pool()
    figures = Figures.of_key(["plain", "build"], "auto", None, grad=False)
    one = PooledContest(of, entries("plain", "build"), figures[:1])
    assert not of.knows("build")
    assert of.wanted(["build"]) is None
    one.admit(figures[1], 1)
    assert of.knows("build")
    assert of.wanted(["build"]) == "build"


def test_looks_cost_a_share_of_what_is_spent() -> None:
    """Beyond what is free."""
    of, clock = pool()
    clock.now = int((FREE_US + 30) * 1e3)
    of.spent_on_checks(0)
    assert not of.affords()
    of.spent(30 / SHARE + 1)
    assert of.affords()


def test_pairs_of_what_is_slow_cost_a_share_too() -> None:
    """Beyond it no key is asked for any."""
    of, _ = pool()
    of.found_right("slow", entries("slow")["slow"])
    of.spent(0.0, FREE_US + 1)
    assert of.wanted(["slow"]) is None
    of.spent(1 / SHARE + 1)
    assert of.wanted(["slow"]) == "slow"


def test_one_that_raised_is_asked_of_nobody() -> None:
    """And the key goes on with what it has."""
    of, _ = pool()
    one = contest(of, "build")
    sampled = one.next_sample()
    assert sampled is not None
    one.failed(sampled)
    assert [each.name for each in one.contestants] == ["plain"]
    assert of.wanted(["build"]) is None


def test_a_pair_counts_when_both_calls_are_over() -> None:
    """On a GPU the first may be over after the second has begun."""
    of, _ = pool()
    one = contest(of, "build")
    first, second = one.contestants[1], one.contestants[0]
    assert one.next_sample() is first
    one.sampled(first, 5.0)
    assert one.next_sample() is second
    one.sampled(second, 10.0)
    assert one.next_sample() is None
    for figures, us in ((first, 5.0), (second, 10.0)):
        figures.took(figures.host_us, us)
    one.next_sample()
    assert len(list(of.pairs.costs())) == 2


def test_the_newest_entry_stands() -> None:
    """An older one's build may have left."""
    of, _ = pool()
    old, new = (entries("build")["build"] for _ in range(2))
    of.found_right("build", old)
    of.found_right("build", new)
    assert of.entries["build"] is new
