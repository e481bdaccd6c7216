"""What keys of few calls find out together, told what each call took."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest

from shapedispatch.autotune.benchmark import ENOUGH
from shapedispatch.choices.pooled import ENOUGH_OF_PLAIN, PooledContest, pool_of
from shapedispatch.hit.table import Entry
from shapedispatch.online.contest import COLD_US, MOST_NOTING_US, SHARE, SMALL_US
from shapedispatch.online.figures import Figures
from shapedispatch.online.pairs import FEWEST, LIKELY, MOST_OPEN, TIES, Pairs
from shapedispatch.online.pool import ALONE, FREE_TOGETHER_US, Family, Pool
from shapedispatch.records import Choice, Timing


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
    assert of.wanted(["build"]) == []
    one.admit(figures[1], 1)
    assert of.knows("build")
    assert of.wanted(["build"]) == ["build"]


def test_looks_cost_a_share_of_what_is_spent() -> None:
    """Beyond what is free."""
    of, clock = pool()
    clock.now = int((FREE_TOGETHER_US + 30) * 1e3)
    of.spent_on_checks(0)
    assert not of.affords()
    of.spent(30 / SHARE + 1)
    assert of.affords()


def test_pairs_of_what_is_slow_cost_a_share_too() -> None:
    """Beyond it no key is asked for any."""
    of, _ = pool()
    of.found_right("slow", entries("slow")["slow"])
    of.spent(0.0, FREE_TOGETHER_US + 1)
    assert of.wanted(["slow"]) == []
    of.spent(1 / SHARE + 1)
    assert of.wanted(["slow"]) == ["slow"]


def test_plain_is_what_costs_where_another_leads() -> None:
    """A pair's call of plain takes longer than what would have run; before anything leads, plain would have."""
    of, _ = pool()
    one = contest(of, "build")
    us = {"plain": 200.0, "build": 100.0}
    play(one, us, 2 * FEWEST)
    assert (of.favourite, of.family.lost_us) == ("build", 0.0)
    play(one, us, 12)
    given = len(of.pairs._found["build"])
    assert given > LIKELY
    assert of.family.lost_us == pytest.approx(100 * (given - FEWEST), abs=100)


@pytest.mark.parametrize(
    ("plain_us", "soon", "few"), [(1000.0, True, True), (200.0, True, False), (1000.0, False, False)]
)
def test_where_plain_is_far_behind_few_calls_of_it_are_in_pairs(plain_us: float, soon: bool, few: bool) -> None:
    """They cost the most, and do not tell which variant is the fastest; but a call that found its code cold is none."""
    of, _ = pool()
    of.spent(1e9)
    one, ran = contest(of, "build", "other"), list[str]()
    us = {"plain": plain_us, "build": 100.0, "other": 98.5}
    while (sampled := one.next_sample()) is not None:
        one.calls_before(sampled, soon, 0)
        sampled.took(sampled.host_us, us[sampled.name])
        one.sampled(sampled, us[sampled.name])
        ran.append(sampled.name)
    assert min(len(found) for found in of.pairs._found.values()) >= TIES
    assert (ran.count("plain") <= ENOUGH_OF_PLAIN) is few
    assert of.over


def rounds(of: Pool, us: dict[str, float]) -> list[list[str]]:
    """Whose samples stand between two looks at a key of calls of such times, which follow each other."""
    one, found = contest(of, *list(us)[1:]), list[list[str]]()
    while samples := one.next_samples():
        found.append([each.name for each in samples])
        for number, sampled in enumerate(samples, 1):
            one.calls_before(sampled, True, 0)
            sampled.took(sampled.host_us, us[sampled.name])
            one.sampled(sampled, us[sampled.name], number < len(samples))
    return found


def test_pairs_are_looked_at_where_they_are_judged() -> None:
    """To look takes longer than some calls; the order turns, as that of whoever is sampled first may matter."""
    of, _ = pool()
    one, two, *others = rounds(of, {"plain": 1000.0, "build": 100.0, "other": 98.5})
    assert (one, two) == (["build", "plain", "other"], ["plain", "build", "other"])
    assert [len(each) for each in others] == [2 * (LIKELY - FEWEST), 2 * (ENOUGH - LIKELY), 2 * (TIES - ENOUGH)]
    assert others[1] == ["other", "build", "build", "other", "other", "build"]
    assert {name: len(found) for name, found in of.pairs._found.items()} == {"build": TIES, "other": TIES}


def test_what_is_dear_is_looked_at_after_each() -> None:
    """It may have been enough."""
    of, _ = pool()
    of.spent(1e9)
    assert {len(each) for each in rounds(of, {"plain": 100.0, "build": 60.0})} == {2}


def test_an_octave_begins_with_what_leads_where_nothing_has_won() -> None:
    """Pairs of all octaves together are bounded: this one may have none for long."""
    family = Family()
    first = family.pool((4,), 0.02)
    for _ in range(LIKELY):
        first.learns("build", entries("build")["build"])
        first.gave([("build", 0.2, False)])
    assert (first.favourite, first.over) == ("build", False)
    family.entries = {"build": entries("build")["build"]}
    assert family.pool((6,), 0.02).favourite == "build"


def test_a_keys_own_samples_outweigh_what_is_only_expected() -> None:
    """It may be slower here than plain, and pairs may not be affordable for long."""
    of, _ = pool()
    one = contest(of, "build", "other")
    of.prefers("build")
    assert one.leader().name == "build"
    for figures, us in zip(one.contestants, (100.0, 180.0, 60.0), strict=True):
        figures.took(figures.host_us, us)
        figures.cost()
    assert one.leader().name == "other"
    of.over = True
    assert one.leader().name == "build"


def test_one_that_raised_is_asked_of_nobody() -> None:
    """And the key goes on with what it has."""
    of, _ = pool()
    one = contest(of, "build")
    sampled = one.next_sample()
    assert sampled is not None
    one.failed(sampled)
    assert [each.name for each in one.contestants] == ["plain"]
    assert of.wanted(["build"]) == []


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


def sized(of: Pool, *sizes: int) -> PooledContest:
    """A key's, of such sizes."""
    one = contest(of, "build")
    one.sizes = sizes
    return one


def test_keys_of_one_call_come_to_a_favourite() -> None:
    """Two of nearly the same sizes give a pair together: where sizes never come again, no key gives one alone."""
    of, us = pool()[0], {"plain": 10.0, "build": 5.0}
    found = [play(sized(of, 1000 + count), us, 1) for count in range(6)]
    assert found == [["build"], ["plain"]] * 3
    assert (of.favourite, len(of.pairs._found["build"])) == ("build", 3)


def test_what_another_key_has_given_is_not_wanted() -> None:
    """Of a pair that is whole; another one may be begun."""
    of, us = pool()[0], {"plain": 10.0, "build": 5.0}
    first = sized(of, 1000)
    assert play(first, us, 1) == ["build"]
    assert play(sized(of, 1001), us, 1) == ["plain"]
    first._begun = 0
    assert play(first, us, 1) == ["build"]


def test_a_new_key_gives_nothing_where_many_wait() -> None:
    """For sizes that never come again."""
    of, us = pool()[0], {"plain": 10.0, "build": 5.0}
    for exponent in range(MOST_OPEN):
        play(sized(of, 4**exponent), us, 1)
    assert of.wanted_of_new(["build"], (3 * 4**MOST_OPEN,)) is None
    assert of.wanted_of_new(["build"], (4,)) == "build"


def test_what_raised_leaves_no_half_behind() -> None:
    """Calls of plain that wait for it would take the room of others."""
    of = pool()[0]
    one = sized(of, 1000)
    one._begun = 1
    assert play(one, {"plain": 10.0}, 1) == ["plain"]
    of.failed("build")
    assert of.waits_for_plain("build", (1000,)) is None


def test_what_raised_is_not_what_others_begin_with() -> None:
    """Though it is right at another key of the same neighbourhood."""
    family, built = Family(), entries("build")["build"]
    built = Entry(built.run, built.check, built.choice, build=("slot",))
    of = family.pool((4,), 0.02)
    of.found_right("build", built)
    assert family.pool((5,), 0.02).knows("build")
    of.failed("build")
    of.found_right("build", built)
    assert not family.pool((6,), 0.02).knows("build")


def test_the_newest_entry_stands() -> None:
    """An older one's build may have left."""
    of, _ = pool()
    old, new = (entries("build")["build"] for _ in range(2))
    of.found_right("build", old)
    of.found_right("build", new)
    assert of.entries["build"] is new


# What octaves tell each other.


def won(name: str, *octaves: int) -> Family:
    """A family in which this has won at sizes of so many binary digits, each found out there; it runs a build."""
    of = Family()
    for one in octaves:
        found = of.pool((one,), 0.02)
        for entry in entries("plain", "build").values():
            found.found_right(entry.choice.variant, Entry(entry.run, None, entry.choice, build=entry.choice.variant))
        for _ in range(6):
            found.gave([("build", 0.5 if name == "build" else 2.0, False)])
        assert (found.favourite, found.over) == (name, True)
    return of


def test_an_octave_begins_with_what_won_nearest_to_it() -> None:
    """And with who is right at all sizes: its keys run that from the first, and give pairs of it."""
    begun = won("build", 7).pool((9,), 0.02)
    assert (begun.favourite, begun.expected, begun.over) == ("build", "build", False)
    assert begun.wanted(["build"]) == ["build"]
    assert {*begun.entries} == {"plain", "build"}


def test_a_few_pairs_bear_out_what_was_expected() -> None:
    """Fewer than are wanted where nothing is known."""
    begun = won("build", 7).pool((9,), 0.02)
    for _ in range(3):
        assert not begun.over
        begun.gave([("build", 0.5, False)])
    assert (begun.favourite, begun.over) == ("build", True)


def test_what_pairs_do_not_bear_out_is_found_out() -> None:
    """As if nothing had been expected: what scatters takes as many pairs."""
    begun = won("build", 7).pool((9,), 0.02)
    for ratio in (1.2, 0.9, 1.2, 0.95, 1.25):
        begun.gave([("build", ratio, False)])
        assert not begun.over
    for _ in range(20):
        begun.gave([("build", 1.2, False)])
    assert (begun.favourite, begun.over) == ("plain", True)


def test_an_octave_between_two_that_agree_is_over() -> None:
    """Whichever of the three began first, if they are not far apart."""
    of = won("build", 7)
    before = of.pool((8,), 0.02)
    assert not before.over
    after = of.pool((9,), 0.02)
    for _ in range(3):
        after.gave([("build", 0.5, False)])
    assert (before.favourite, before.over) == ("build", True)
    assert of.pool((10,), 0.02).over is False
    assert won("build", 7, 9).pool((8,), 0.02).over is True
    assert won("build", 7, 12).pool((8,), 0.02).over is False


def test_an_octave_between_two_that_disagree_is_not() -> None:
    """It begins with the nearer one's, or the smaller one's."""
    of = won("build", 7)
    other = of.pool((9,), 0.02)
    for _ in range(6):
        other.gave([("build", 2.0, False)])
    begun = of.pool((8,), 0.02)
    assert (other.favourite, begun.favourite, begun.over) == ("plain", "build", False)


def test_octaves_whose_pairs_scatter_too_much_decide_together() -> None:
    """Each alone would keep plain, though all say that it is slower, and by as much."""
    family, scattered = Family(), itertools.cycle((0.5, 0.7, 0.92, 1.1, 1.4))
    for octave in (4, 9, 14, 19):
        of = family.pool((octave,), 0.02)
        of.learns("build", entries("build")["build"])
        while not of.over:
            of.gave([("build", next(scattered), False)])
        assert of.pairs.is_tied()
        assert octave > 4 or of.favourite == "plain"
    assert {pool.favourite for pool in family.pools.values()} == {"build"}


def test_what_is_kept_for_want_of_better_is_not_expected_elsewhere() -> None:
    """Three pairs that scatter as much would bear it out."""
    family = Family()
    of = family.pool((4,), 0.02)
    of.learns("build", entries("build")["build"])
    scattered = itertools.cycle((0.5, 0.7, 0.92, 1.1, 1.4))
    while not of.over:
        of.gave([("build", next(scattered), False)])
    assert (of.favourite, of.pairs.is_tied()) == ("plain", True)
    assert family.pool((5,), 0.02).expected is None


def test_who_follows_is_told_what_has_won_elsewhere() -> None:
    """A pool without a favourite of its own has that, and its keys are decided anew."""
    of = Family()
    waits, begins = of.pool((7,), 0.02), of.pool((9,), 0.02)
    told: list[str] = []

    class Follower:
        """Notes that it was told."""

        def decide_anew(self) -> None:
            """See `pool.Follower`."""
            told.append("anew")

    follower = Follower()
    waits.tells(follower)
    begins.pairs.add("build")
    for _ in range(6):
        begins.gave([("build", 0.5, False)])
    assert (waits.favourite, waits.over, told) == ("build", False, ["anew"])


def test_a_supplied_variant_is_known_where_it_was_compared() -> None:
    """No other octave asks for pairs of it, or runs it: nothing says that it is right there."""
    of = Family()
    of.pool((7,), 0.02).found_right("other", entries("other")["other"])
    begun = of.pool((9,), 0.02)
    assert begun.entries == {}
    assert begun.wanted(["other"]) == []


def test_looks_and_keys_alone_are_counted_for_all_octaves() -> None:
    """Or a program of many octaves would pay for each."""
    of = Family()
    one, other = of.pool((7,), 0.02), of.pool((9,), 0.02)
    one.spent_on_checks(one.clock_ns() - int((FREE_TOGETHER_US + 30) * 1e3))
    assert not other.affords()
    assert [one.takes(key) for key in "ab"] + [other.takes(key) for key in "cd"] == [False] * ALONE + [True] * 2


def test_a_pool_that_expects_plain_hears_all_variants_first() -> None:
    """The first that has a few pairs may be slower than plain, and another be far ahead."""
    of, _ = pool()
    of.expected = "plain"
    for name in ("slow", "fast"):
        of.learns(name, entries(name)[name])
    for _ in range(2):
        of.gave([("fast", 0.5, False)])
    for _ in range(LIKELY):
        of.gave([("slow", 1.4, False)])
    assert not of.over
    of.gave([("fast", 0.5, False)])
    assert of.favourite == "fast"


def test_calls_go_before_a_pooled_sample_where_the_key_was_called_just_now() -> None:
    """Else other keys have been, since. Before the first, too: it may be all that the key gives."""
    one = contest(pool()[0], "a")
    plain, build = one.contestants
    assert [one.calls_before(plain, soon, 3) for soon in (True, False)] == [3, 0]
    plain.known_us = build.known_us = 20.0
    assert [one.calls_before(build, soon, 3) for soon in (True, False)] == [3, 0]
    build.known_us = 21.0 + COLD_US
    assert one.calls_before(build, True, 3) == 0


def test_one_call_goes_before_the_first_sample_of_a_long_one() -> None:
    """It is the first of such sizes, and finds no memory that was used for them before."""
    one = contest(pool()[0], "a")
    plain, build = one.contestants
    plain.known_us = 2 * SMALL_US
    assert [one.calls_before(build, soon, 3) for soon in (True, False)] == [1, 0]
    build.known_us = 3 * SMALL_US
    assert one.calls_before(build, True, 3) == 0


def test_no_call_goes_before_a_sample_of_what_pairs_say_is_behind() -> None:
    """Each would cost as much as many of the fastest."""
    of, _ = pool()
    one = contest(of, "a")
    plain, build = one.contestants
    of.gave([("a", 0.1, False)])
    assert [one.calls_before(who, True, 3) for who in (plain, build)] == [0, 3]


def test_without_a_pair_it_is_behind_what_is_behind_nearest_to_it() -> None:
    """At a key, or in another octave; as soon as there is one that says it."""
    family = won("build", 7)
    assert family.pool((9,), 0.02).least_share() == 0.5
    of = Family().pool((8,), 0.02, "a", 0.1)
    one = contest(of, "a")
    plain, build = one.contestants
    assert [one.calls_before(who, True, 3) for who in (plain, build)] == [0, 3]
    of.gave([("a", 1.0, False)])
    assert one.calls_before(plain, True, 3) == 3
    assert of.least_share() == 1.0


def test_what_a_first_call_shows_is_cold() -> None:
    """It counts where no key of the pool is called again soon; where one is, its warm pairs count alone."""
    of, us = pool()[0], {"plain": 10.0, "build": 40.0}
    play(sized(of, 1000), us, 2)
    assert of.pairs._cold == {"build"}
    one = sized(of, 2000)
    for contestant in one.contestants:
        one.calls_before(contestant, True, 3)
    play(one, {"plain": 10.0, "build": 5.0}, 2)
    assert (of.pairs._cold, list(of.pairs._found["build"])) == (set(), [50.0])


def test_what_is_only_expected_tells_no_other_octave_anything() -> None:
    """Else what is best at small sizes would run at all larger ones, unseen."""
    family = won("build", 7)
    near = family.pool((9,), 0.02)
    assert (near.favourite, near.is_borne_out()) == ("build", False)
    family.pools.pop((7,))
    assert family.pool((11,), 0.02).favourite is None
    for _ in range(LIKELY):
        near.gave([("build", 0.5, False)])
    assert family.pool((12,), 0.02).favourite == "build"


def test_a_pool_begins_with_what_leads_at_a_key_near_it() -> None:
    """Where other pools know nothing: it runs from the first call on, and pairs of it are wanted first."""
    family = Family()
    of = family.pool((8,), 0.02, leads="b")
    assert of.favourite == "b"
    one = contest(of, "a", "b")
    assert one.leader().name == "b"
    play(one, {"plain": 10.0, "a": 10.0, "b": 5.0}, 2)
    assert [cost.variant for cost in of.pairs.costs()] == ["plain", "b"]
    for _ in range(LIKELY):
        of.gave([("b", 0.99, False)])
    assert not of.over


def test_a_pool_that_was_made_before_anything_led_runs_what_comes_to_lead() -> None:
    """The first key of its sizes makes it; a device that is behind has hundreds of calls before the first pair is."""
    family = Family()
    of = family.pool((8,), 0.02)
    waits = contest(of, "a", "b")
    assert waits.leader().name == "plain"
    assert family.pool((8,), 0.02, "b", 0.25) is of
    assert (waits.leader().name, of.least_share(), of.is_borne_out()) == ("b", 0.25, False)
    assert family.pool((8,), 0.02, "a").favourite == "b"


def test_a_key_asks_again_what_leads_near_it_while_its_pool_knows_nothing() -> None:
    """Another key has made the pool, and is not learned alone."""
    facts = SimpleNamespace(settled={}, so_far={}, families={})
    ctx = cast(Any, SimpleNamespace(kin="kin", core=SimpleNamespace(table=SimpleNamespace(facts=facts))))
    ctx.settings = SimpleNamespace(margin=0.02)
    made = pool_of(ctx, {"M": 200}, make=True)
    assert made is not None
    assert made.favourite is None
    took = (Timing("plain", 20.0, 0.0, 9), Timing("build", 10.0, 0.0, 9))
    facts.settled["kin"] = (Choice("build", "timed", sizes={"M": 180}, timings=took),)
    assert pool_of(ctx, {"M": 210}, make=True) is made
    assert made.favourite == "build"


def test_what_pools_have_found_comes_before_what_leads_at_a_key() -> None:
    """They are of more calls."""
    family = Family()
    first = family.pool((8,), 0.02)
    first.found_right("a", entries("a")["a"])
    for _ in range(10):
        first.gave([("a", 0.5, False)])
    assert family.pool((9,), 0.02, leads="b").favourite == "a"


def test_one_call_of_plain_makes_a_pair_with_each_variant() -> None:
    """To see to samples takes longer than some of them: what is wanted as much as others is given with them."""
    of, _ = pool()
    us = {"plain": 10.0, "a": 5.0, "b": 8.0}
    one = contest(of, "a", "b")
    assert play(one, us, 6) == ["a", "plain", "b", "plain", "a", "b"]
    assert [(cost.variant, cost.median_us, cost.repeats) for cost in of.pairs.costs()[1:]] == [
        ("a", 50.0, 2),
        ("b", 80.0, 2),
    ]


def test_what_is_noted_together_is_given_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """C notes a round's samples at once, and each look at all pairs takes longer than some calls."""
    given: list[int] = []
    gave = Pool.gave_halves
    monkeypatch.setattr(Pool, "gave_halves", lambda self, halves: given.append(len(halves)) or gave(self, halves))
    of, _ = pool()
    one = contest(of, "a", "b")
    samples = one.next_samples()
    for number, sampled in enumerate(samples, 1):
        sampled.took(sampled.host_us, 10.0)
        one.sampled(sampled, 10.0, number < len(samples))
    assert given == [4]
    assert [cost.repeats for cost in of.pairs.costs()[1:]] == [1, 1]


def test_what_other_keys_have_given_to_a_call_of_plain_is_not_wanted() -> None:
    """Its pairs are whole without another call here; the next ones begin."""
    of, _ = pool()
    us = {"plain": 10.0, "a": 5.0, "b": 8.0}
    one, other = contest(of, "a", "b"), contest(of, "a", "b")
    one._begun = 1
    assert play(one, us, 1) == ["plain"]
    assert play(other, us, 2) == ["a", "b"]
    assert [cost.repeats for cost in of.pairs.costs()[1:]] == [1, 1]
    assert [sample.name for sample in one.next_samples()] == ["a", "plain", "b"]


def test_half_of_what_may_be_spent_is_left_to_those_that_know_nothing() -> None:
    """Where nothing leads plain runs, at many times what the best takes maybe; elsewhere there is less to be had."""
    family = Family()
    knows, other = family.pool((8,), 0.02), family.pool((9,), 0.02)
    for one in (knows, other):
        one.learns("build", entries("build")["build"])
    knows.favourite = "build"
    family.lost_us = 0.75 * FREE_TOGETHER_US
    assert (knows.wanted(["build"]), other.wanted(["build"])) == ([], ["build"])
    other.favourite = "build"
    assert knows.wanted(["build"]) == ["build"]


def test_a_favourite_that_is_no_variant_of_a_key_is_as_none_there() -> None:
    """It runs plain, whatever leads at keys that have other builds."""
    family = Family()
    known, other = family.pool((8,), 0.02), family.pool((9,), 0.02)
    known.favourite = "another build"
    family.lost_us = 0.75 * FREE_TOGETHER_US
    assert other.favourite is None
    known.learns("build", entries("build")["build"])
    assert known.wanted(["build"]) == ["build"]


def test_a_pause_in_a_look_is_no_cost_of_it() -> None:
    """It is spent all the same."""
    family = Family()
    family.looked(60_000.0)
    family.looked(10.0)
    assert (family.spent_us, family.lost_us) == (60_010.0, MOST_NOTING_US + 10.0)
