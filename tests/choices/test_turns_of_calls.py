"""Functions that are learned from calls in C: samples are taken there, and Python sees to them now and then."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Variant, shapedispatch
from shapedispatch.choices import learner
from shapedispatch.choices.learner import AFTER, MOST_BETWEEN, SOON_US, WARM
from shapedispatch.choices.pooled import PooledContest
from shapedispatch.hit import native
from shapedispatch.online.contest import MOST_NOTING_US, SHARE
from shapedispatch.online.real_calls import HostSampler
from shapedispatch.settings.modes import set_mode
from tests.awaited import Awaited
from tests.c_driver import CEvents, with_events
from tests.paths import NO_COMPILER, taking
from tests.rows import BUILD, Late, dispatched, rows, waves

pytestmark = [
    pytest.mark.skipif(bool(NO_COMPILER), reason=str(NO_COMPILER)),
    pytest.mark.operators_called,
]
X = torch.arange(4.0)


class InC(HostSampler):
    """Samples by C's clock, which the test moves."""

    in_c = True


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> Iterator[CEvents]:
    """C's clock, which is Python's, too."""
    made = CEvents()
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.setattr(
        "shapedispatch.choices.learning.sampler",
        lambda device: (InC(lambda: int(made.now_us * 1e3)), None),
    )
    with taking("c"), with_events(made):
        yield made


def timed(events: CEvents, us: float, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The function, which takes so long."""

    def run(x: Tensor) -> Tensor:
        events.now_us += us
        return fn(x)

    return run


def two(events: CEvents, plain_us: float, other_us: float, other: Any = None, **given: Any) -> Any:
    """Plain and one variant."""
    variant = Variant(timed(events, other_us, other or (lambda x: x + x)), name="other")
    plain = timed(events, plain_us, lambda x: x * 2)
    return shapedispatch(plain, **{"hints": (), "variants": [variant], "mutates": (), "store": False, **given})


def turns_of(f: Any) -> Any:
    """What its newest key runs."""
    return next(entry.run for _, entry in f.core.table.entries()[::-1])


def test_calls_are_samples_in_c_until_the_best_is_known(events: CEvents) -> None:
    """Few come to Python; each call runs once, and the figures are what the calls took."""
    f = two(events, 100, 50)
    visits: list[Any] = []
    f(X)
    assert type(turns_of(f)).__name__ == "CallTurns"
    turns = turns_of(f)
    for _ in range(60):
        before = turns.taken
        assert torch.equal(f(X), X * 2)
        visits.append(turns.taken < before)
    choice = f.explain(X)
    assert (choice.variant, choice.origin) == ("other", "timed")
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 100, "other": 50}
    assert sum(visits) <= 12


def test_calls_of_a_candidate_go_before_its_sample_in_c(events: CEvents) -> None:
    """As they do in Python: what it takes then is what it would if it were chosen."""
    ran: list[str] = []

    def noting(name: str) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            ran.append(name)
            events.now_us += 20 if ran[-WARM:] == [name] * WARM else 60
            return x * 2

        return run

    variant = Variant(noting("other"), name="other")
    f = shapedispatch(noting("plain"), hints=(), variants=[variant], mutates=(), store=False)
    for _ in range(400):
        f(X)
    choice = f.explain(X)
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 20, "other": 20}
    assert (choice.variant, choice.origin) == ("plain", "timed")


@pytest.mark.parametrize("late", [False, True])
def test_calls_of_the_best_go_before_a_look_for_samples_that_are_known_late(
    events: CEvents, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    """Else most looks would find that the last sample is not over, and be for nothing."""
    ran: list[str] = []
    made = InC(lambda: int(events.now_us * 1e3))
    made.late = late
    monkeypatch.setattr("shapedispatch.choices.learning.sampler", lambda device: (made, None))

    def noting(name: str, us: float) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            ran.append(name)
            events.now_us += us
            return x * 2

        return run

    variant = Variant(noting("other", 900), name="other")
    f = shapedispatch(noting("plain", 1_000), hints=(), variants=[variant], mutates=(), store=False)
    for _ in range(12):
        f(X)
    rounds = [["plain", "other"], ["other", "plain", "plain", "other"], ["other", "plain"]]
    if late:
        rounds[1] += ["plain"] * AFTER
    assert ran[4:12] == [*itertools.chain(*rounds)][:8], (late, ran)  # before, it is seen who is right


def test_what_a_look_takes_is_lost_too(events: CEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looks take longer than calls, few are taken: hits run the best meanwhile."""
    f = two(events, 100, 99.9)
    f(X)
    looks, goes_on = [0], learner.Learning._goes_on_in_c

    def slow(self: Any, *given: Any) -> bool:
        looks[0] += 1
        events.now_us += MOST_NOTING_US
        return goes_on(self, *given)

    monkeypatch.setattr(learner.Learning, "_goes_on_in_c", slow)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    for _ in range(80):
        f(X)
    assert looks[0] >= 2
    assert entry.learner.contest._lost_us >= MOST_NOTING_US * looks[0]
    assert entry.learner.contest.rests()


def test_plain_runs_no_dozen_calls_between_two_looks_for_who_is_right(
    events: CEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device says so soon, and plain may take twenty times as long; it is asked more rarely the longer it takes."""
    awaited, plain_us = Awaited(), 2_000.0
    monkeypatch.setattr("shapedispatch.choices.learning.verdicts", lambda device: awaited)
    f = two(events, plain_us, 100)
    f(X)
    awaited.ready_now, began_us = True, events.now_us
    for _ in range(40):
        f(X)
    assert f.explain(X).variant == "other"
    assert events.now_us - began_us < 40 * 100 + 5 * plain_us
    awaited.ready_now, awaited.asked = False, 0
    other = two(events, plain_us, 100)
    for _ in range(200):
        other(X)
    assert awaited.asked <= 10


def test_where_no_sample_may_be_afforded_looks_become_rare(events: CEvents) -> None:
    """Each time twice as many calls go by, at most so many."""
    f = two(events, 1_000, 990)
    f(X)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    entry.learner.contest._lost_us = 1e9
    turns, gaps, gap = turns_of(f), [], 0
    for _ in range(4 * MOST_BETWEEN):
        before = turns.taken
        f(X)
        gap += 1
        if turns.taken <= before:
            gaps, gap = [*gaps, gap], 0
    assert gaps[-1] == MOST_BETWEEN
    assert all(later == min(2 * earlier, MOST_BETWEEN) for earlier, later in pairwise(gaps[2:]))


def test_a_look_is_taken_when_a_sample_may_be_afforded(events: CEvents) -> None:
    """Not before: each takes as long as many calls, and would put it off."""
    f = two(events, 1_000, 990)
    f(X)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    contest, turns, gaps, gap = entry.learner.contest, turns_of(f), [], 0
    for _ in range(8):
        f(X)
    contest._lost_us = contest._may_cost_us() + 300 * SHARE * 990
    for _ in range(800):
        before = turns.taken
        f(X)
        gap += 1
        if turns.taken <= before:
            gaps, gap = [*gaps, gap], 0
    assert max(gaps) == pytest.approx(303, abs=8)


def test_a_variant_that_raises_is_out(events: CEvents) -> None:
    """Its error is the caller's where nothing is known of what it writes, as in Python."""

    def fails(x: Tensor) -> Tensor:
        if events.now_us > 2_000:
            raise ValueError("now")
        return x + x

    f = two(events, 100, 50, fails)
    errors = []
    for _ in range(60):
        try:
            f(X)
        except ValueError as error:
            errors.append(str(error))
    assert set(errors) == {"now"}


def test_a_build_that_raises_is_answered_by_plain(events: CEvents, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is among the refusals, and it is no candidate any more."""
    f = dispatched()
    f(rows(65))
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    learning = entry.learner

    def fails(*args: Any) -> Any:
        raise RuntimeError("broken")

    learning.candidates = tuple(
        one if one.name == "plain" else type(one)(one.name, fails, one.check, one.build) for one in learning.candidates
    )
    for _ in range(60):
        assert torch.allclose(f(rows(65)), waves(rows(65)), atol=1e-5)
    choice = f.explain(rows(65))
    assert choice.variant == "plain"
    assert any(one.variant == BUILD and "broken" in one.reasons[0] for one in choice.refusals)


def test_a_frozen_mode_samples_no_call(events: CEvents) -> None:
    """Though turns had begun."""
    f = two(events, 100, 50)
    for _ in range(3):
        f(X)
    turns = turns_of(f)
    with set_mode("frozen"):
        f.core.refresh()
        taken = turns.taken
        for _ in range(20):
            assert torch.equal(f(X), X * 2)
        assert turns.taken == taken


def test_calls_of_other_threads_are_answered_meanwhile(events: CEvents) -> None:
    """One that is a sample holds up none."""
    inside, go_on = threading.Event(), threading.Event()

    def waits(x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            assert go_on.wait(60)
        return x + x

    f = two(events, 100, 50, waits)
    f(X)
    answers: list[Tensor] = []
    other = threading.Thread(target=lambda: answers.extend(f(X) for _ in range(12)))
    other.start()
    assert inside.wait(60)
    assert all(torch.equal(f(X), X * 2) for _ in range(30))
    go_on.set()
    other.join(60)
    assert all(torch.equal(one, X * 2) for one in answers)
    assert len(answers) == 12


def test_calls_that_need_gradients_are_learned_in_python(events: CEvents) -> None:
    """Their backwards count, which are followed from there."""
    f = two(events, 100, 50)
    f(X.clone().requires_grad_())
    assert type(turns_of(f)).__name__ == "Learning"


def test_without_the_path_in_c_calls_are_learned_in_python(events: CEvents) -> None:
    """To the same choice."""
    with taking("python"):
        assert native.module() is None
        f = two(events, 100, 50)
        for _ in range(60):
            f(X)
        assert type(turns_of(f)).__name__ != "CallTurns"
        assert (f.explain(X).variant, f.explain(X).origin) == ("other", "timed")


def test_the_samples_of_a_pool_are_warm_from_the_second_call_on(events: CEvents) -> None:
    """The first is one, for many keys have no other; before each that comes soon after it go calls of its candidate."""
    f, events.now_us = dispatched(), 1.0
    for count in (65, 66, 70):  # the first two are learned alone
        f(rows(count))
    turns = turns_of(f)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    assert isinstance(entry.learner.contest, PooledContest)
    assert (turns.left, turns.taken, turns.waiting) == (0, 0, 0)
    f(rows(70))
    assert (turns.left, turns.taken, turns.waiting) == (WARM - 1, 1, 0)
    for _ in range(WARM):
        f(rows(70))
    assert turns.waiting == 1


def test_long_calls_one_after_the_other_are_warm(events: CEvents) -> None:
    """What they take themselves is no time between them: cold pairs count for nothing once there are warm ones."""
    f = two(events, 2500.0, 1500.0)
    for count in (65, 66):  # the first two are learned alone
        f(torch.ones(count))
    together = torch.ones(70)
    for _ in range(4):
        f(together)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    contest, soon = entry.learner.contest, list[bool]()
    assert contest._soon
    for _ in range(40):
        f(together)
        soon.append(all(contest._soon.values()))
    assert all(soon)
    assert f.explain(together).variant == "other"


def test_long_calls_with_pauses_between_them_are_cold(events: CEvents) -> None:
    """Other code has run meanwhile, most likely."""
    f = two(events, 2500.0, 1500.0)
    for count in (65, 66):
        f(torch.ones(count))
    together = torch.ones(70)
    for _ in range(12):
        events.now_us += 2 * SOON_US
        f(together)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    assert {*entry.learner.contest._soon.values()} == {False}


def test_what_runs_meanwhile_is_shown_as_it_is_reached(events: CEvents) -> None:
    """`explain` says of the leader, and not of plain, how it runs."""
    f = dispatched()
    f(rows(65))
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    plain, build = entry.learner.contest.contestants
    for one, us in ((plain, 10.0), (build, 5.0)):
        one.took(one.host_us, us)
    choice, route = f.explain(rows(65)), entry.learner.candidates[1].route
    assert (choice.variant, choice.origin, choice.route) == (BUILD, "learning", route)
    assert route != entry.learner.candidates[0].route


def learned_with_a_graph(f: Any, takes: Callable[[], None], missed: Callable[[], int]) -> Any:
    """What has learned from a hundred calls, of which those of ``other`` do this first, and count like a graph's."""
    f(X)
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    plain, other = entry.learner.candidates

    def recorded(x: Tensor) -> Tensor:
        takes()
        return other.run(x)

    entry.learner.candidates = (plain, replace(other, run=recorded, missed=missed))
    for _ in range(100):
        f(X)
    return entry.learner


def test_a_call_that_was_no_replay_is_no_sample(events: CEvents) -> None:
    """A recording takes some calls until it is there: what those take is lost, and its turn comes again."""
    f, missed = two(events, 100, 50), [0]

    def takes() -> None:
        if missed[0] < 10:
            missed[0] += 1
            events.now_us += 500

    learning = learned_with_a_graph(f, takes, lambda: missed[0])
    choice = f.explain(X)
    assert (choice.variant, choice.origin) == ("other", "timed")
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 100, "other": 50}
    assert {timing.variant: timing.least_us for timing in choice.timings}["other"] == 50
    assert all(took_us == 50 for took_us in learning.contest.contestants[-1].host_us)


def test_what_a_graph_took_before_it_was_recorded_is_forgotten(events: CEvents) -> None:
    """Where recordings do not pay yet the code runs, and is what its samples tell of."""
    f, ran = two(events, 1_000, 500), [0]

    def takes() -> None:
        ran[0] += 1
        events.now_us += 300 if ran[0] <= 13 else -400

    learning = learned_with_a_graph(f, takes, lambda: min(max(0, ran[0] - 3), 10))
    assert {timing.variant: timing.median_us for timing in f.explain(X).timings} == {"plain": 1_000, "other": 100}
    assert set(learning.contest.contestants[-1].host_us) == {100}


def test_what_a_first_call_took_is_taken_in_where_it_is_known_late(
    events: CEvents, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device: else its key would wait for it for ever, and give no other pair."""

    class LateInC(Late):
        in_c = True

    made = LateInC({"plain": 10.0, BUILD: 5.0}, False)
    monkeypatch.setattr("shapedispatch.choices.learning.sampler", lambda device: (made, None))
    f, events.now_us = dispatched(), 1.0
    for count in (65, 66, 70):
        f(rows(count))
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    contest = entry.learner.contest
    assert len(contest._ran) == 1
    f(rows(70))
    assert contest._ran == []


def test_a_half_is_as_cold_as_its_own_call_was(events: CEvents) -> None:
    """Though it is known only after another call has come soon."""
    f, events.now_us = dispatched(), 1e7  # long after whatever was before
    for count in (65, 66, 70):
        f(rows(count))
    (entry,) = f.core.table.peek(f.core.table.newest(1)[0])
    contest = entry.learner.contest
    (first,) = contest._soon
    second = next(one for one in contest.contestants if one is not first)
    contest.calls_before(second, True, WARM)
    assert (contest._soon[first], contest._soon[second]) == (False, True)
