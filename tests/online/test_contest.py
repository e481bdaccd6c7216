"""Which candidate the next real call runs, told what each call took; nothing is run and no clock is asked."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shapedispatch.autotune.benchmark import timing_of
from shapedispatch.autotune.choose import best
from shapedispatch.online.contest import (
    COLD_US,
    EVALUATED_AFTER,
    FREE_CALLS,
    FREE_US,
    LEAST_FREE_US,
    MORE_AT_ONCE,
    MORE_US,
    MOST_AT_ONCE,
    MOST_NOTING_US,
    PAUSE_US,
    ROUNDS_MAX,
    ROUNDS_MORE,
    ROUNDS_TIE,
    SAMPLE_US,
    SHARE,
    SMALL_US,
    OnlineContest,
)
from shapedispatch.online.figures import Contestant, Figures
from shapedispatch.online.getting_ready import AT_ONCE, GETS_READY, MOST_CALLS, NOTING_US
from shapedispatch.records import Timing


@dataclass(eq=False)
class Told(Contestant):
    """A candidate whose calls take what the test says."""

    name: str
    us: float
    scatter: float = 0.0
    samples: list[float] = field(default_factory=list)

    def cost(self) -> Timing:
        """Of the samples so far."""
        return timing_of(self.name, self.samples)


def contest(candidates: Sequence[Told], margin: float = 0.02) -> OnlineContest:
    """A contest for the least time."""
    return OnlineContest(list(candidates), margin, lambda timings: best(timings, margin, "time")[0])


def play(candidates: Sequence[Told], calls: int, seed: int = 0) -> tuple[OnlineContest, list[str], float]:
    """Calls until there are so many: the contest, who ran in each, and what all took."""
    rng, played, total = random.Random(seed), contest(candidates), 0.0
    ran: list[str] = []
    for _ in range(calls):
        sample = played.next_sample()
        one = sample or played.leader()
        assert isinstance(one, Told)
        took = one.us * (1 + one.scatter * abs(rng.gauss(0, 1)))
        if sample is not None:
            one.samples.append(took)
            played.sampled(one, took)
        else:
            played.ran(took)
        ran.append(one.name)
        total += took
    return played, ran, total


def test_each_candidate_is_sampled_and_the_fastest_is_the_leader() -> None:
    """Whatever its place."""
    played, ran, _ = play([Told("plain", 100), Told("a", 60), Told("b", 80)], 60)
    assert played.over
    assert played.leader().name == "a"
    assert set(ran[:3]) == {"plain", "a", "b"}
    assert set(ran[40:]) == {"a"}


def test_rounds_reverse_their_order() -> None:
    """What comes first has no advantage over what comes last."""
    _, ran, _ = play([Told("plain", 100), Told("a", 101), Told("b", 102)], 9)
    assert ran == ["plain", "a", "b", "b", "a", "plain", "plain", "a", "b"]


def test_what_is_likely_to_be_fast_is_sampled_first() -> None:
    """And ties stay the earlier candidate's."""
    candidates = [Told("plain", 100), Told("a", 100), Told("b", 100)]
    played = OnlineContest(list(candidates), 0.02, lambda timings: best(timings, 0.02, "time")[0], ["b", "plain"])
    ran = []
    while (one := played.next_sample()) is not None:
        candidates[candidates.index(one)].samples.append(100)  # type: ignore[arg-type]  # one of these
        played.sampled(one, 100)
        ran.append(one.name)
    assert ran[:3] == ["b", "plain", "a"]
    assert played.leader().name == "plain"


def test_ties_are_the_earlier_candidates() -> None:
    """Equal ones in any noise."""
    for seed in range(20):
        played, _, _ = play([Told("plain", 100, 0.05), Told("same", 100, 0.05)], 200, seed)
        assert (played.over, played.leader().name) == (True, "plain")


@pytest.mark.parametrize(("far_us", "times"), [(400, 3), (5000, 2), (1.5 * PAUSE_US, 1)])
def test_what_is_far_behind_is_hardly_run(far_us: float, times: int) -> None:
    """Not again on a call of the user to be sure, unless a pause of the machine would explain the only sample."""
    _, ran, _ = play([Told("plain", 50), Told("far", far_us)], 100)
    assert ran.count("far") <= times


@pytest.mark.parametrize("pause_us", [1_000.0, 6_500.0, 19_000.0])
def test_a_pause_in_the_first_sample_does_not_end_a_candidate(pause_us: float) -> None:
    """Nor is what it took a cost of learning: it wins as soon as without."""
    plain, other = Told("plain", 90), Told("other", 14)
    played = contest([plain, other])
    for _ in range(20):
        one = played.next_sample() or played.leader()
        assert isinstance(one, Told)
        took = one.us + (pause_us if one is other and not other.samples else 0.0)
        one.samples.append(took)
        if not played.over:
            played.sampled(one, took)
    assert (played.over, played.leader()) == (True, other)


@pytest.mark.parametrize(("slower", "most"), [(2, 1.05), (10, 1.08)])
def test_a_thousand_calls_cost_hardly_more_than_those_of_the_best(slower: float, most: float) -> None:
    """What learning may cost, at fifty microseconds a call."""
    for seed in range(20):
        candidates = [Told("plain", 50 * slower, 0.1), Told("a", 50, 0.1), Told("b", 75, 0.1)]
        _, _, total = play(candidates, 1000, seed)
        _, _, ideal = play([Told("a", 50, 0.1)], 1000, seed)
        assert total <= most * ideal


@pytest.mark.parametrize(("plain_us", "other_us", "soon"), [(100, 103, True), (103, 100, False)])
def test_a_later_one_that_is_no_better_ends_it(plain_us: float, other_us: float, soon: bool) -> None:
    """It may be as good, and does not run then either. An earlier one would: of that more is to be known."""
    calls = list[int]()
    for seed in range(21):
        told = [Told("plain", plain_us, 0.05), Told("other", other_us, 0.05)]
        assert play(told, 400, seed)[0].over
        calls.append(sum(len(one.samples) for one in told))
    assert (sorted(calls)[10] <= 2 * 24) is soon


def test_it_is_said_when_another_sample_may_be_afforded() -> None:
    """To ask takes as long as many short calls."""
    plain, _ = told = [Told("plain", 50), Told("other", 60)]
    played = contest(told)
    assert played.calls_until_next() == 0
    for one in told:
        one.samples.append(one.us)
        played.sampled(one, one.us)
    assert played.calls_until_next() == 0
    spend_looking(played, 2 * FREE_US)
    assert played.next_samples() == []
    calls = played.calls_until_next()
    played.ran((calls - 6) * plain.us)
    played.looked(NOTING_US)
    assert played.next_samples() == []
    played.ran(6 * plain.us)
    assert played.next_samples() != []


def test_samples_stop_where_they_have_cost_too_much() -> None:
    """Calls run the best known candidate until there is time for another sample."""
    played, ran, _ = play([Told("plain", 10_000), Told("slow", 40_000)], 12)
    assert ran.count("slow") < 3
    assert not played.over


def test_one_that_raised_runs_no_more() -> None:
    """The others go on."""
    candidates = [Told("plain", 100), Told("raises", 1), Told("a", 50)]
    played = contest(candidates)
    assert played.next_sample() is candidates[0]
    candidates[0].samples.append(100)
    played.sampled(candidates[0], 100)
    assert played.next_sample() is candidates[1]
    played.failed(candidates[1])
    ran = set()
    while (one := played.next_sample()) is not None:
        assert isinstance(one, Told)
        one.samples.append(one.us)
        played.sampled(one, one.us)
        ran.add(one.name)
    assert ran == {"plain", "a"}
    assert (played.over, played.leader().name) == (True, "a")


def test_where_all_that_still_run_have_raised_the_first_is_left() -> None:
    """Plain, though it had left as slower; what raised does not lead by what it has shown."""
    candidates = [Told("plain", 1000), Told("a", 10)]
    played = contest(candidates)
    while len(played._running) > 1:
        one = played.next_sample()
        if one is None:
            played.ran(candidates[1].us)
            continue
        assert isinstance(one, Told)
        one.samples.append(one.us)
        played.sampled(one, one.us)
    assert played.leader().name == "a"
    played.failed(candidates[1])
    assert (played.over, played.next_sample(), played.leader().name) == (True, None, "plain")


def test_one_slow_spell_does_not_end_a_candidate() -> None:
    """Of something short: another sample costs little."""
    candidates = [Told("plain", 13), Told("a", 10)]
    played, turns = contest(candidates), 0
    while (one := played.next_sample()) is not None:
        assert isinstance(one, Told)
        took = 1000.0 if turns == 1 else one.us
        one.samples.append(took)
        played.sampled(one, took)
        turns += 1
    assert played.leader().name == "a"


def test_seven_percent_are_told_apart_whatever_the_luck() -> None:
    """Where noise explains the difference at first, more samples are taken: processes choose alike."""
    for seed in range(30):
        played, _, _ = play([Told("plain", 60, 0.1), Told("a", 56, 0.1)], 1500, seed)
        assert (played.over, played.leader().name) == (True, "a"), seed


def test_what_more_samples_may_cost_is_bounded() -> None:
    """Where they would show too little, the earlier one stands."""
    played, _, _ = play([Told("plain", 60, 0.2), Told("a", 58.2, 0.2)], 2000)
    assert played.over
    samples = sum(len(one.samples) for one in played.contestants if isinstance(one, Told))
    assert ROUNDS_MAX < samples / 2 <= ROUNDS_MORE
    assert played._more_us <= MORE_US + SHARE * played._spent_us + 4 * MORE_AT_ONCE * SAMPLE_US


@pytest.mark.parametrize("calls", [500, 5000])
def test_a_slow_spell_of_one_candidate_does_not_decide(calls: int) -> None:
    """Plain's threads waited for processors in most of its first calls, and in one of them they did not."""
    plain, other = Told("plain", 6), Told("other", 260)
    played, turns = contest([plain, other]), 0
    for _ in range(calls):
        one = played.next_sample()
        if one is None:
            played.ran(played.leader().cost().median_us)  # type: ignore[attr-defined]  # a Told
            continue
        assert isinstance(one, Told)
        took = 1500.0 if one is plain and turns not in (0, 1) and turns < 12 else one.us
        turns += 1
        one.samples.append(took)
        played.sampled(one, took)
    assert played.leader().name == "plain"


def test_what_has_left_does_not_win_by_the_noise_of_others() -> None:
    """Plain was found to be slower; that the other's later samples scatter does not make it as good again."""
    plain, other = Told("plain", 38), Told("other", 18)
    played = contest([plain, other])
    for _ in range(8):
        one = played.next_sample()
        assert isinstance(one, Told)
        one.samples.append(one.us)
        played.sampled(one, one.us)
    assert played._running == [other]
    other.samples += [60.0, 17.0, 61.0, 19.0, 62.0]
    assert best([plain.cost(), other.cost()], 0.02, "time")[0] == plain.cost()
    assert played.leader() is other


def test_the_order_in_which_they_are_sampled_decides_nothing() -> None:
    """What a neighbour found fast is sampled first; the tie is the earlier candidate's, and looked into as long."""
    for seed in range(30):
        candidates = [Told("plain", 60, 0.1), Told("a", 56, 0.1)]
        played = OnlineContest(list(candidates), 0.02, lambda timings: best(timings, 0.02, "time")[0], ("a", "plain"))
        rng = random.Random(seed)
        while (one := played.next_sample()) is not None:
            assert isinstance(one, Told)
            took = one.us * (1 + one.scatter * abs(rng.gauss(0, 1)))
            one.samples.append(took)
            played.sampled(one, took)
        assert played.leader().name == "a", seed


def test_a_call_that_waits_for_a_processor_does_not_use_up_what_learning_may_cost() -> None:
    """What it waited is no cost of its candidate: the next samples come as if it had not."""
    plain, other = Told("plain", 50), Told("other", 49.5)
    played = contest([plain, other])
    calls = 0
    while not played.over and calls < 200:
        one = played.next_sample()
        assert isinstance(one, Told)
        took = 30_000.0 if calls == 9 else one.us
        one.samples.append(took)
        played.sampled(one, took)
        calls += 1
    assert played.over


def test_samples_that_make_no_sense_end_rounds_too() -> None:
    """A clock that stands still decides nothing, and the contest ends all the same."""
    candidates = [Told("plain", 100), Told("a", 50)]
    played = contest(candidates)
    for _ in range(2 * ROUNDS_MAX):
        one = played.next_sample()
        assert one is not None
        played.sampled(one, float("nan"))
    assert (played.over, played.next_sample(), played.leader().name) == (True, None, "plain")


def test_nothing_is_decided_while_one_has_no_sample() -> None:
    """A device that is far behind has told the time of some alone by then."""
    slow, fast = Told("plain", 100.0), Told("fast", 50.0)
    played = contest([slow, fast])
    for _ in range(60):
        sample = played.next_sample()
        assert isinstance(sample, Told)
        if sample is slow:
            slow.samples.append(slow.us)
        played.sampled(sample, sample.us)
    assert not played.over
    for _ in range(60):
        sample = played.next_sample()
        if isinstance(sample, Told):
            sample.samples.append(sample.us)
            played.sampled(sample, sample.us)
    assert (played.over, played.leader()) == (True, fast)


@given(
    st.lists(st.floats(1.0, 1e5), min_size=2, max_size=5),
    st.integers(0, 1000),
)
def test_what_samples_cost_is_bounded(times: list[float], seed: int) -> None:
    """By a share of the time spent and a little at first, and the last sample of each candidate."""
    played, _, total = play([Told(str(i), us, 0.1) for i, us in enumerate(times)], 300, seed)
    fastest = min(times)
    assert played._lost_us <= FREE_US + SHARE * total + 3 * sum(1.5 * us - fastest for us in sorted(times)[1:]) + 1


def test_who_has_won_is_seen_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is over no sample changes it; another candidate does."""
    looks: list[int] = []
    leads = OnlineContest._leads
    monkeypatch.setattr(OnlineContest, "_leads", lambda self: looks.append(1) or leads(self))
    fast, slow, faster = Figures("fast", "auto", None), Figures("slow", "auto", None), Figures("faster", "auto", None)
    for one, us in ((slow, 9.0), (fast, 1.0), (faster, 0.1)):
        one.host_us.extend([us] * 9)
    contest = OnlineContest([slow, fast], 0.02, lambda timings: min(timings, key=lambda timing: timing.median_us))
    assert [contest.leader() for _ in range(2)] == [fast, fast]
    contest.over = True
    looks.clear()
    assert [contest.leader() for _ in range(5)] == [fast] * 5
    assert len(looks) == 1
    contest.admit(faster, 2)
    contest.over = True
    assert contest.leader() is faster


def after_a_round(*us: float) -> OnlineContest:
    """A contest of candidates that have taken so long."""
    told = contest([Told(f"{place}", took) for place, took in enumerate(us)])
    for took, one in zip(us, list(told.contestants), strict=True):
        assert not told.calls_before(one, soon=True, warm=3)
        assert isinstance(one, Told)
        one.samples.append(took)
        told.sampled(one, took)
    return told


def test_calls_go_before_all_samples_but_the_first() -> None:
    """The first shows whether one is far behind, which is to cost one call."""
    told = after_a_round(10.0, 12.0, 10.0 + COLD_US + 1)
    near, far = told.contestants[:2], told.contestants[2]
    assert [told.calls_before(one, soon=True, warm=3) for one in near] == [3, 3]
    assert not told.calls_before(far, soon=True, warm=3)


def test_what_caches_hold_is_no_matter_to_a_long_call() -> None:
    """Its samples are its calls."""
    told = after_a_round(2 * SMALL_US, 2 * SMALL_US)
    assert not any(told.calls_before(one, soon=True, warm=3) for one in told.contestants)


def test_calls_before_samples_are_part_of_what_learning_costs() -> None:
    """Beyond what the best would have taken."""
    told = after_a_round(10.0, 20.0)
    slow = told.contestants[1]
    while told._affordable(slow):
        before_us = told._lost_us
        told.warmed(slow)
        assert told._lost_us == before_us + 10.0
    assert LEAST_FREE_US < told._lost_us + 10.0 < FREE_US


@pytest.mark.parametrize(("us", "free_us"), [(10, LEAST_FREE_US), (100, 100 * FREE_CALLS), (1_000, FREE_US)])
def test_what_is_free_at_first_is_a_number_of_calls(us: float, free_us: float) -> None:
    """A thousand short ones are not to cost much more than hits; what gets ready takes what long ones may."""
    played = after_a_round(us, 2 * us)
    played._spent_us = 0.0
    assert played._may_cost_us() == free_us
    played.missed(played.contestants[1], us)
    played._spent_us = 0.0
    assert played._may_cost_us() == FREE_US


@pytest.mark.parametrize("us", [50, 100, 1_000])
@pytest.mark.parametrize("others", [(1.0,) * 20, (1.03, 1.9), (1.9,) * 8])
def test_a_thousand_calls_cost_a_twentieth_more_than_hits_of_the_best(us: float, others: tuple[float, ...]) -> None:
    """With candidates within twice the best, of which there may be many, and what it takes to make their samples."""
    told = [Told(str(number), us * of, 0.1) for number, of in enumerate(others)]
    played, _, took_us = play([*told, Told("best", us, 0.1)], 1_000)
    sampling_us = SAMPLE_US * sum(len(one.samples) for one in played.contestants if isinstance(one, Told))
    best_us = us * (1 + 0.1 * math.sqrt(2 / math.pi))
    assert took_us + sampling_us <= 1.05 * 1_000 * best_us


def test_a_look_is_lost_like_what_samples_cost() -> None:
    """What makes no sense is not counted."""
    played = contest([Told("plain", 100), Told("a", 90)])
    for us in (100.0, math.nan, math.inf):
        played.looked(us)
    assert (played._lost_us, played._spent_us) == (100.0, 100.0)


def test_of_long_calls_what_costs_next_to_nothing_is_sampled_though_no_more_may_be_lost() -> None:
    """It is the best, or as good as that, as far as is known; what is not waits, whatever its place."""
    for us, sampled in ((10_000, ["a", "plain", "plain", "a"]), (10, [])):
        told = [Told("plain", us), Told("a", 1.01 * us), Told("b", 2 * us)]
        played = contest(told)
        for one in told:
            one.samples.append(one.us)
            played.sampled(one, one.us)
        spend_looking(played, 10 * FREE_US)
        assert [one.name for one in played.next_samples()] == sampled
        found = []
        while (one := played.next_sample()) is not None:
            found.append(one.name)
            played.sampled(one, us)
        assert found == sampled


def spend_looking(played: OnlineContest, us: float) -> None:
    """Looks at samples that take so long together."""
    for _ in range(round(us / MOST_NOTING_US)):
        played.looked(MOST_NOTING_US)


def test_a_pause_in_a_look_is_no_cost_of_it() -> None:
    """A collection of garbage takes as long as hundreds of looks, and comes all the same."""
    played = contest([Told("plain", 100), Told("a", 90)])
    played.looked(60_000)
    assert (played._lost_us, played._spent_us) == (MOST_NOTING_US, 60_000)


def getting_ready(played: OnlineContest, one: Told, calls: int, us: float) -> None:
    """So many calls of one that is not ready, each of which is its turn."""
    for _ in range(calls):
        assert played.next_sample() is one
        played.missed(one, us)


def test_a_call_of_one_that_is_not_ready_loses_what_it_takes_beyond_the_best() -> None:
    """It answers all the same; what gets it ready is lost with it."""
    plain, one = Told("plain", 100), Told("a", 10)
    played = contest([plain, one])
    plain.samples.append(100)
    played.sampled(plain, 100)
    getting_ready(played, one, 8, 120)
    played.missed(one, math.nan)
    played.missed(one, 5_100)
    assert played._lost_us == SAMPLE_US + 8 * 20 + 5_000
    assert (played._spent_us, one.samples) == (100 + 8 * 120 + 5_100, [])


def test_one_that_has_got_ready_is_sampled_though_that_was_dear() -> None:
    """Else what it is good for is known when learning has earned it back; the next one waits for that."""
    plain, one, other = Told("plain", 1_000), Told("a", 100), Told("b", 100)
    played = contest([plain, one, other])
    plain.samples.append(1_000)
    played.sampled(plain, 1_000)
    getting_ready(played, one, 8, 1_000)
    played.missed(other, 1_000)
    played.missed(one, 1_000 + 2 * FREE_US)
    assert (played.next_sample(), played.next_samples()) == (one, [one] * AT_ONCE)
    one.samples.append(100)
    played.sampled(one, 100)
    assert (played.next_sample(), played.next_samples()) == (None, [])
    assert played.leader() is one
    played.ran(2 * FREE_US / SHARE)
    assert played.next_samples() == [other]


@pytest.mark.parametrize(
    ("us", "dear_us", "calls"),
    [(1_000, 4 * FREE_US, MOST_CALLS), (1_000, 100_000, GETS_READY), (100, 4 * FREE_US, 0)],
)
def test_one_that_does_not_get_ready_goes_on_for_a_while(us: float, dear_us: float, calls: int) -> None:
    """Its tensors may be elsewhere in each call; to see to it takes longer than a short call."""
    plain, one = Told("plain", us), Told("a", us / 10)
    played = contest([plain, one])
    plain.samples.append(us)
    played.sampled(plain, us)
    played.missed(one, us)
    spend_looking(played, dear_us)
    getting_ready(played, one, calls, us)
    assert (played.next_sample(), played.next_samples()) == (None, [])


def test_a_stack_of_layers_gets_ready_though_each_has_a_graph_of_its_own() -> None:
    """Each of them calls twice before it is recorded, and that takes as long as a dozen calls."""
    plain, one = Told("plain", 360), Told("a", 100)
    played, layers = contest([plain, one]), [0] * 32
    plain.samples.append(360)
    played.sampled(plain, 360)
    calls = 0
    while not one.samples:
        for turn in [one if sample is one else None for sample in played.next_samples()] or [None] * 16:
            layers[calls % 32] += turn is one
            took = 360 if turn is None else {1: 370.0, 2: 5_000.0}.get(layers[calls % 32], 100.0)
            if turn is None:
                played.ran(took)
            elif took > 100:
                played.missed(one, took)
            else:
                one.samples.append(took)
                played.sampled(one, took)
            calls += 1
    assert (played.leader(), calls < 2_000) == (one, True)


def test_one_that_runs_the_leader_until_it_is_ready_loses_nothing_by_that() -> None:
    """The host may take longer for a call than it costs here; what gets it ready is lost."""
    plain, one, build = Told("plain", 700), Told("a", 100), Told("b", 1700)
    one.code_of = plain
    played = contest([plain, one, build])
    for first, host_us in ((plain, 1_300), (build, 400)):
        first.samples.append(first.us)
        played.sampled(first, host_us)
    played.missed(one, 1_300)
    spend_looking(played, 2 * FREE_US)
    lost_us = played._lost_us
    getting_ready(played, one, GETS_READY - 2, 1_300)
    assert (played.leader(), played._lost_us) == (plain, lost_us)
    played.missed(one, 13_000)
    assert (played.next_samples(), played._lost_us) == ([one] * AT_ONCE, lost_us + 11_700)
    played.contestants[2].samples[:] = [300]  # type: ignore[attr-defined]  # of another, which leads from here on
    assert (played.leader(), played.next_samples()) == (build, [])


def test_two_get_ready_one_after_the_other() -> None:
    """The sooner one is, the sooner it runs: first that whose calls are the least dear, before all others."""
    plain, build, dear, cheap = told = [Told("plain", 1800), Told("a", 1000), Told("b", 100), Told("c", 100)]
    played = contest(told)
    assert played.next_samples() == told
    for one in (plain, build):
        one.samples.append(one.us)
        played.sampled(one, one.us)
    played.missed(dear, 1800)
    assert played.next_samples() == [cheap, dear]
    played.missed(cheap, 1000)
    assert played.next_samples() == [cheap]
    cheap.samples.append(100)
    played.sampled(cheap, 100)
    assert played.next_samples() == [dear]
    played.failed(dear)
    played.ran(1e9)
    assert (played.rounds, dear in played.next_samples()) == (1, False)


def test_who_has_no_turn_left_gets_ready_no_more() -> None:
    """It was a turn that was noted late."""
    one, other = Told("plain", 100), Told("a", 90)
    played = contest([one, other])
    played.sampled(one, 100)
    played.missed(one, 100)
    assert played.next_samples() == [other]


def test_one_whose_calls_are_dear_gets_ready_within_what_learning_may_cost() -> None:
    """Each call of plain's, whose graph it is to be, is a loss."""
    plain, one, dear = Told("plain", 1_000), Told("a", 100), Told("b", 50)
    played = contest([plain, one, dear])
    for first in (plain, one):
        first.samples.append(first.us)
        played.sampled(first, first.us)
    while played.next_sample() is dear:
        played.missed(dear, 1_000)
    assert FREE_US - 1_000 < played._lost_us <= FREE_US + SHARE * played._spent_us


def test_more_rounds_stand_between_two_looks_the_later_they_are() -> None:
    """To see who leaves takes longer than some calls; samples of all rounds between are had at once."""
    one, other = Told("plain", 100), Told("a", 100.5)
    played, rounds = contest([one, other]), []
    while not played.over:
        samples = played.next_samples()
        rounds.append(len(samples) / 2)
        for sample in samples:
            assert isinstance(sample, Told)
            sample.samples.append(sample.us)
            played.sampled(sample, sample.us)
    assert rounds[:5] == [1, 2, 1, 2, 5]
    assert played.rounds in EVALUATED_AFTER


@pytest.mark.parametrize("late", [False, True])
def test_no_more_samples_stand_between_two_looks_than_are_noted(late: bool) -> None:
    """The calls of others would be none, though they cost what samples cost."""
    rng, told = random.Random(0), [Told("plain", 100), *(Told(str(number), 97) for number in range(9))]
    played, most = contest(told), 0
    played.late = late
    while not played.over:
        samples = played.next_samples()
        most = max(most, len(samples))
        for sample in samples:
            assert isinstance(sample, Told)
            sample.samples.append(sample.us * rng.uniform(0.7, 1.3))
            played.sampled(sample, sample.samples[-1])
        played.ran(1e6)  # all may be afforded
    assert MOST_AT_ONCE // 2 < most <= MOST_AT_ONCE


def call(played: OnlineContest, leader_us: float) -> bool:
    """One call: the sample that is next, or the leader's, which takes so long; whether it was a sample."""
    sample = played.next_sample()
    if not isinstance(sample, Told):
        played.ran(leader_us)
        return False
    sample.samples.append(sample.us)
    played.sampled(sample, sample.us)
    return True


def test_it_is_not_over_before_so_much_was_spent() -> None:
    """What is best runs meanwhile, and no call is a sample."""
    one, other = Told("plain", 100), Told("a", 50)
    played = OnlineContest([one, other], 0.02, lambda timings: best(timings, 0.02, "time")[0], not_before_us=10_000)
    calls = 0
    while not played.over:
        assert call(played, 50) or played.leader() is other
        calls += 1
    assert (len(one.samples) + len(other.samples) < 30, calls > 150) == (True, True)
    assert played._spent_us >= 10_000


def test_one_that_joins_opens_it_again() -> None:
    """Though it had waited for time to be spent."""
    one, other, late = Told("plain", 100), Told("a", 50), Told("late", 20)
    played = OnlineContest([one, other], 0.02, lambda timings: best(timings, 0.02, "time")[0], not_before_us=5_000)
    while call(played, 50):
        pass
    assert not played.over
    played.admit(late, 2)
    for _ in range(300):
        call(played, 20)
    assert (played.over, played.leader()) == (True, late)


def test_what_is_faster_by_what_matters_runs_meanwhile() -> None:
    """By one sample of each: on a device that is far behind it is hundreds of calls until there are others."""
    plain, fast, near, tied = Told("plain", 100), Told("fast", 60), Told("near", 90), Told("tied", 99)
    for candidates, late, leads in (
        ([plain, fast, near], False, "fast"),
        ([plain, near], False, "plain"),
        ([plain, near], True, "near"),
        ([plain, tied], True, "plain"),
    ):
        played = contest(candidates)
        played.late = late
        for one in candidates:
            one.samples = [one.us]
            played.sampled(one, one.us)
        assert (played.leader().name, played.over) == (leads, False)


def test_who_is_faster_by_more_than_the_margin_runs_meanwhile_by_a_dozen_samples() -> None:
    """It may take thousands of calls until it is known whether noise explains it."""
    plain, near, leads = Told("plain", 100), Told("near", 90), list[str]()
    played = contest([plain, near])
    while len(plain.samples) < ROUNDS_TIE:
        for one in played.next_samples():
            assert isinstance(one, Told)
            one.samples.append(one.us + 60 * (len(one.samples) % 2))
            played.sampled(one, one.samples[-1])
        leads.append(played.leader().name)
    assert (set(leads[:-1]), leads[-1], played.over) == ({"plain"}, "near", False)


def test_who_is_expected_to_be_best_makes_room_for_who_is_faster() -> None:
    """Once samples of both are over."""
    plain, expected, fast = Told("plain", 100), Told("expected", 95), Told("fast", 90)
    played = contest([plain, expected, fast])
    played.expected, played.late = lambda: "expected", True
    for one, leads in ((plain, expected), (expected, expected), (fast, fast)):
        one.samples = [one.us]
        assert played.leader() is leads


def test_where_samples_are_known_late_many_are_taken_together() -> None:
    """As many as settle it where it is clear, once it is known what each costs; no more than may be afforded."""
    plain, slow = Told("plain", 100), Told("slow", 200)
    played = contest([plain, slow])
    played.late = True
    assert [one.name for one in played.next_samples() if isinstance(one, Told)] == ["plain", "slow"]
    for one in (plain, slow):
        one.samples.append(one.us)
        played.sampled(one, one.us)
    together = played.next_samples()
    assert (together.count(plain), together.count(slow)) == (5, 5)
    for us, at_most in ((900.0, 4), (10 * FREE_US, 1)):  # the last may have been in a pause: it has another alone
        slow.us, played = us, contest([plain, slow])
        played.late = True
        plain.samples, slow.samples = [100.0], [us]
        played.sampled(plain, 100.0)
        played.sampled(slow, us)
        assert played.next_samples().count(slow) <= at_most


def test_who_is_expected_to_be_best_runs_until_samples_are_over() -> None:
    """And stays until it is decided, unless it is behind; it may have no sample for hundreds of calls."""
    plain, build = Told("plain", 100), Told("build", 90)
    played = contest([plain, build])
    assert played.leader() is plain
    played.expected = lambda: "build"
    assert played.leader() is build
    plain.samples.append(100)
    played.sampled(plain, 100)
    assert played.leader() is build
    for took_us, leads in ((90, build), (110, plain)):
        build.samples = [took_us]
        assert played.leader() is leads
    played.sampled(build, 110)
    while (one := played.next_sample()) is not None:
        assert isinstance(one, Told)
        one.samples.append(100)
        played.sampled(one, 100)
    build.samples = [99.9] * len(build.samples)
    assert (played.over, played.leader()) == (True, plain)


def test_what_is_expected_and_has_left_does_not_run() -> None:
    """Nor what is no candidate here."""
    plain, build = Told("plain", 100), Told("build", 90)
    played = contest([plain, build])
    played.expected = lambda: "exact"
    assert played.leader() is plain
    played.expected = lambda: "build"
    played.failed(build)
    assert played.leader() is plain
