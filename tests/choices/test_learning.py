"""Choices that are learned from the calls themselves."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import shapedispatch as package
from shapedispatch import Store, Variant, shapedispatch
from shapedispatch.choices.between import _settled
from shapedispatch.choices.learner import WARM, Learning
from shapedispatch.hit.table import Entry, Table
from shapedispatch.online import real_calls
from shapedispatch.online.contest import SAMPLE_US, OnlineContest
from shapedispatch.records import Choice
from tests.awaited import Awaited
from tests.helpers import built

pytestmark = pytest.mark.operators_called


class Clock(threading.local):
    """Nanoseconds that pass only where a variant says so, in the thread that runs it: of no sample another's time."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        """Its time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all real calls, which are samples."""
    made = Clock()
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.setattr(real_calls, "sampler", lambda device: (real_calls.HostSampler(made), None))
    monkeypatch.setattr("shapedispatch.choices.learning.sampler", real_calls.sampler)
    return made


def taking(clock: Clock, us: float, fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes so long."""

    def timed(x: Tensor) -> Any:
        clock.now += int(us * 1e3)
        return fn(x)

    timed.__name__ = fn.__name__
    return timed


def twice(x: Tensor) -> Tensor:
    """Plain."""
    return x * 2


def added(x: Tensor) -> Tensor:
    """The same."""
    return x + x


def dispatched(clock: Clock, plain_us: float, other_us: float, **given: Any) -> Any:
    """Plain and one variant that take so long."""
    given = {"store": False, "mutates": (), **given}  # by their look they write: the clock's time
    variant = Variant(taking(clock, other_us, added), name="other")
    return shapedispatch(taking(clock, plain_us, twice), name="twice", hints=(), variants=[variant], **given)


X = torch.arange(4.0)


def in_place(x: Tensor) -> Tensor:
    """Writes its argument."""
    return x.add_(1)


def test_calls_are_samples_until_the_best_is_known(clock: Clock) -> None:
    """Then it is what runs."""
    f = dispatched(clock, 100, 50)
    f(X)
    assert f.explain(X).origin == "learning"
    for _ in range(40):
        assert torch.equal(f(X), X * 2)
    choice = f.explain(X)
    assert (choice.variant, choice.origin) == ("other", "timed")
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 100, "other": 50}
    assert f.cache_info().timings == 1
    assert f.cache_info().misses == 1


def test_a_sample_costs_what_it_takes_there(clock: Clock) -> None:
    """Two looks at a clock, where the host is all there is; a device's events take longer."""
    f = dispatched(clock, 100, 50)
    f(X)
    [learning] = [entry.learner for _, entry in f.core.table.entries()]
    assert learning.contest.sample_us == real_calls.HostSampler().sample_us < SAMPLE_US


def test_calls_of_a_candidate_go_before_its_sample(clock: Clock) -> None:
    """Nothing else between them: what it takes then is what it would if it were chosen."""
    ran: list[str] = []

    def noting(name: str, fn: Callable[..., Any]) -> Callable[..., Any]:
        def noted(x: Tensor) -> Any:
            ran.append(name)
            clock.now += 20_000 if ran[-WARM:] == [name] * WARM else 60_000
            return fn(x)

        return noted

    variant = Variant(noting("other", added), name="other")
    f = shapedispatch(noting("plain", twice), name="twice", hints=(), variants=[variant], mutates=(), store=False)
    for _ in range(400):
        f(X)
    choice = f.explain(X)
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 20, "other": 20}
    assert (choice.variant, choice.origin) == ("plain", "timed")


def test_each_call_runs_once(clock: Clock) -> None:
    """While it is learned from, too: on the caller's own arguments."""
    ran: list[int] = []

    def noting(x: Tensor) -> Tensor:
        ran.append(x.data_ptr())
        return x * 2

    variant = Variant(taking(clock, 50, added), name="other")
    f = shapedispatch(taking(clock, 60, noting), hints=(), variants=[variant], mutates=(), store=False)
    f(X)
    ran.clear()
    for _ in range(60):
        clock.now += 1000
        f(X)
    assert 0 < len(ran) < 60
    assert set(ran) == {X.data_ptr()}


def test_a_wrong_variant_answers_no_call(clock: Clock) -> None:
    """Numbers come before speed."""
    wrong = Variant(taking(clock, 1, torch.neg), name="wrong")
    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[wrong], mutates=(), store=False)
    with pytest.warns(UserWarning, match="wrong"):
        f(X)
    for _ in range(40):
        assert torch.equal(f(X), X * 2)
    assert f.explain(X).variant == "plain"


@pytest.mark.generated
def test_a_key_that_may_give_no_samples_now_is_a_hit_like_others(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for one that comes now and then, and sees when samples may go on."""
    f = dispatched(clock, 100, 50)
    for _ in range(6):
        f(X)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    came: list[int] = []
    ask = OnlineContest.next_sample
    monkeypatch.setattr(OnlineContest, "next_sample", lambda self: came.append(1))
    for _ in range(50):
        assert torch.equal(f(X), X * 2)
    assert len(came) < 10
    [resting] = f.core.table.peek(f.core.backend.key((X,), {}))
    assert resting.run is not resting.learner
    assert _settled(resting) is None  # sizes between it and others are not told what it runs now
    assert f.explain(X).origin == "learning"
    spent_us = entry.learner.contest._spent_us
    f.core.turns.hurry(4)
    for _ in range(100):
        f(X)
    assert entry.learner.contest._spent_us > spent_us + 10 * 50
    monkeypatch.setattr(OnlineContest, "next_sample", ask)
    f.core.turns.hurry(1)
    for _ in range(100):
        f(X)
    assert (f.explain(X).origin, f.explain(X).variant) == ("timed", "other")


def test_a_device_that_is_behind_is_waited_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where more samples are not over than one of each candidate, no more are taken."""
    f = dispatched(clock, 100, 50)
    f(X)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    rounds = entry.learner.contest.rounds
    monkeypatch.setattr(real_calls.HostSampler, "waiting", lambda self: 3)
    for _ in range(60):
        f(X)
    assert entry.learner.contest.rounds == rounds
    monkeypatch.setattr(real_calls.HostSampler, "waiting", lambda self: 2)
    for _ in range(60):
        f(X)
    assert f.explain(X).origin == "timed"


def test_a_build_is_learned_of_too_and_its_state_is_asked(clock: Clock) -> None:
    """What was sampled in one state says nothing of another."""

    class Scaled(nn.Module):
        scale = 2

        def forward(self, x: Tensor) -> Tensor:
            return torch.sin(x) * self.scale

    one = Scaled()
    f = built(Scaled.forward, exact=True, hints=(), store=False)
    with torch.no_grad():
        f(one, X)
        assert f.explain(one, X).origin == "learning"
        one.scale = 3
        assert torch.allclose(f(one, X), torch.sin(X) * 3)


def test_a_build_that_has_left_is_not_run(clock: Clock) -> None:
    """The key is decided anew."""
    f = built(lambda x: torch.cos(x) * 2, exact=True, hints=(), store=False)
    f(X)
    assert f.explain(X).origin == "learning"
    table = f.core.table
    for build in range(table.max_builds):
        table.hold(build, Released())
    assert torch.allclose(f(X), torch.cos(X) * 2)


class Released:
    """A build that holds nothing."""

    def release(self) -> None:
        """There is nothing to let go."""


def whose_build_raises() -> tuple[Any, Any]:
    """A function that is being learned, and its learner: the exact build raises."""
    f = built(lambda x: torch.cos(x) * 2, exact=True, hints=(), store=False)
    f(X)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    learning = entry.learner

    def raises(x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    plain, exact = learning.candidates
    learning.candidates = (plain, type(exact)(exact.name, raises, build=exact.build))
    return f, learning


def test_one_that_raises_is_out_and_plain_answers(clock: Clock) -> None:
    """A build; the reason is kept."""
    f, _ = whose_build_raises()
    for _ in range(40):
        clock.now += 1000
        assert torch.allclose(f(X), torch.cos(X) * 2)
    assert f.explain(X).variant == "plain"
    assert "out of order" in str(f.explain(X).refusals)


@pytest.mark.parametrize("paused", [True, False])
def test_plain_answers_where_the_best_raises_at_a_call_that_is_no_sample(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, paused: bool
) -> None:
    """As at a hit; where it may have written something, its error is the answer."""
    f, learning = whose_build_raises()
    learning.paused, learning.rest = (lambda: paused), None  # else the second call is a hit like others
    monkeypatch.setattr(OnlineContest, "next_sample", lambda self: None)
    monkeypatch.setattr(OnlineContest, "leader", lambda self: self.contestants[1])
    for _ in range(2):
        assert torch.allclose(f(X), torch.cos(X) * 2)
    assert [one.reasons for one in learning.refusals] == [("it raised RuntimeError: out of order",)]
    learning.offer = dataclasses.replace(learning.offer, written=("x",))
    with pytest.raises(RuntimeError, match="out of order"):
        f(X)


def test_an_error_that_is_plains_too_is_the_answer(clock: Clock) -> None:
    """And no reason against a build."""
    fails = [False]

    def plain(x: Tensor) -> Tensor:
        clock.now += 1000
        if fails[0]:
            raise ValueError("plain")
        return x * 2

    f = built(lambda x: torch.cos(x) * 2, exact=True, hints=(), store=False)
    f(X)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    learning = entry.learner
    learning.candidates = tuple(replace(one, run=plain) for one in learning.candidates)
    fails[0] = True
    for _ in range(4):
        with pytest.raises(ValueError, match="plain"):
            f(X)
    assert learning.refusals == []


def test_a_build_that_left_as_the_contest_ended_does_not_run(clock: Clock) -> None:
    """The entry of the winner is lost, and made again."""
    table = Table(4, 4)
    entry = Entry(print, None, Choice("plain", "learning"))
    table.publish("key", entry)
    table.replace("key", entry, Entry(print, None, Choice("exact", "timed"), build="gone"))
    assert [one.lost() for one in table.peek("key")] == [True]


def test_what_was_learned_is_stored(clock: Clock, tmp_path: Path) -> None:
    """Another process need not learn it again."""
    first = dispatched(clock, 100, 50, store=Store(tmp_path))
    for _ in range(40):
        first(X)
    assert first.explain(X).origin == "timed"
    second = dispatched(clock, 100, 50, store=Store(tmp_path))
    second(X)
    assert (second.explain(X).variant, second.explain(X).origin) == ("other", "stored")


def test_a_frozen_mode_samples_nothing(clock: Clock) -> None:
    """What is best so far runs."""
    f = dispatched(clock, 100, 50)
    for _ in range(4):
        f(X)
    with package.set_mode("frozen"):
        before = f.explain(X).timings
        for _ in range(40):
            f(X)
        assert f.explain(X).timings == before
        assert f.explain(X).origin == "learning"


def test_a_checkpoint_recomputes_what_its_forward_ran(clock: Clock) -> None:
    """Samples switch between variants, which a checkpoint must not see."""
    f = dispatched(clock, 100, 50)
    with torch.no_grad():
        f(X)
    x = X.clone().requires_grad_()
    y = checkpoint(lambda x: f(x).sin(), x, use_reentrant=False)
    y.sum().backward()
    assert torch.allclose(x.grad, 2 * torch.cos(2 * X))


class Taking(torch.autograd.Function):
    """Twice the value; the backward takes so many microseconds of a clock."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clock: Clock, us: float) -> Tensor:
        """Twice."""
        ctx.clock, ctx.us = clock, us
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Twice."""
        ctx.clock.now += int(ctx.us * 1e3)
        return gradients[0] * 2, None, None


def differentiable(clock: Clock, plain_us: tuple[float, float], other_us: tuple[float, float]) -> Any:
    """Plain and one variant whose forward and backward take so long."""

    def plain(x: Tensor) -> Tensor:
        clock.now += int(plain_us[0] * 1e3)
        return Taking.apply(x, clock, plain_us[1])

    def other(x: Tensor) -> Tensor:
        clock.now += int(other_us[0] * 1e3)
        return Taking.apply(x, clock, other_us[1])

    return shapedispatch(plain, hints=(), variants=[Variant(other, name="other")], mutates=(), store=False)


@pytest.mark.generated
def test_the_backward_counts_where_there_is_one(clock: Clock) -> None:
    """What saves time in the forward may cost more later."""
    f = differentiable(clock, (100, 100), (50, 400))
    x = X.clone().requires_grad_()
    for turn in range(40):
        x.grad = None
        y = f(x)
        clock.now += 5_000_000  # the rest of the program
        y.sum().backward()
        assert torch.equal(x.grad, torch.full((4,), 2.0)), turn
    choice = f.explain(x)
    assert (choice.variant, choice.origin) == ("plain", "timed")
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 200, "other": 450}


def test_where_no_backward_comes_the_forward_counts_alone(clock: Clock) -> None:
    """Gradients are on, and nobody asks for any."""
    f = differentiable(clock, (100, 100), (50, 400))
    x = X.clone().requires_grad_()
    for _ in range(40):
        f(x)
    assert (f.explain(x).variant, f.explain(x).origin) == ("other", "timed")


def test_a_variant_with_wrong_gradients_answers_no_call(clock: Clock) -> None:
    """They are checked before it is sampled, as its result is."""

    class Wrong(Taking):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Any:
            """Three times."""
            return gradients[0] * 3, None, None

    def wrong(x: Tensor) -> Tensor:
        return Wrong.apply(x, clock, 1)

    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[wrong], mutates=(), store=False)
    x = X.clone().requires_grad_()
    for _ in range(40):
        x.grad = None
        f(x).sum().backward()
        assert torch.equal(x.grad, torch.full((4,), 2.0))
    assert f.explain(x).variant == "plain"
    assert "gradient" in str(f.explain(x).refusals)


def test_asked_to_tune_it_decides_at_once(clock: Clock) -> None:
    """`tune` and `prepare` are for before the calls."""
    f = dispatched(clock, 100, 50)
    assert f.tune(X).origin == "timed"


def test_threads_run_each_call_once(clock: Clock) -> None:
    """Who finds another thread noting a sample runs the best known."""
    f = dispatched(clock, 100, 50)
    f(X)
    wrong: list[int] = []

    def work() -> None:
        wrong.extend(turn for turn in range(200) if not torch.equal(f(X), X * 2))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    choice = learned(f, len(X))
    assert (choice.variant, choice.origin) == ("other", "timed")


def test_a_call_that_is_cleared_away_meanwhile_is_answered(clock: Clock) -> None:
    """Nobody waits for what its contest comes to."""
    f = dispatched(clock, 100, 50)
    for turn in range(60):
        if turn % 3 == 0:
            f.cache_clear()
        assert torch.equal(f(X), X * 2)


def sized(clock: Clock, other_us: Callable[[int], float]) -> Any:
    """Plain takes 100 microseconds at any size, and the other what the test says."""

    def plain(x: Tensor) -> Tensor:
        clock.now += 100_000
        return x * 2

    def other(x: Tensor) -> Tensor:
        clock.now += int(other_us(len(x)) * 1e3)
        return x + x

    return shapedispatch(plain, hints=(), variants=[Variant(other, name="other")], mutates=(), store=False)


def learned(f: Any, size: int) -> Any:
    """The choice for a size after enough calls of it."""
    for _ in range(120):
        f(torch.ones(size))
    return f.explain(torch.ones(size))


def test_a_size_between_two_that_agree_is_settled_at_once(clock: Clock) -> None:
    """With what won there, and where that was."""
    f = sized(clock, lambda size: 50)
    assert [learned(f, size).variant for size in (64, 96)] == ["other", "other"]
    f(torch.ones(80))
    choice = f.explain(torch.ones(80))
    assert (choice.variant, choice.origin, choice.timings) == ("other", "nearest", ())
    assert any("on both sides" in note for note in choice.notes)


def test_a_size_between_two_that_do_not_agree_is_learned(clock: Clock) -> None:
    """Somewhere between them the winner changes."""
    f = sized(clock, lambda size: 70 if size < 80 else 140)
    assert [learned(f, size).variant for size in (64, 96)] == ["other", "plain"]
    f(torch.ones(72))
    assert f.explain(torch.ones(72)).origin == "learning"
    assert learned(f, 72).variant == "other"


def test_what_agrees_far_away_settles_nothing(clock: Clock) -> None:
    """Only sizes within a factor of two are neighbours."""
    f = sized(clock, lambda size: 50)
    for size in (8, 1024):
        learned(f, size)
    f(torch.ones(96))
    assert f.explain(torch.ones(96)).origin == "learning"


def test_calls_of_another_dtype_are_no_neighbours(clock: Clock) -> None:
    """They differ in more than sizes."""
    f = sized(clock, lambda size: 50)
    for size in (64, 96):
        learned(f, size)
    x = torch.ones(80, dtype=torch.float64)
    f(x)
    assert f.explain(x).origin == "learning"


def test_what_was_far_behind_nearby_is_left_out(clock: Clock) -> None:
    """Without a sample; where it was said."""
    f = sized(clock, lambda size: 200)
    learned(f, 64)
    f(torch.ones(96))
    choice = f.explain(torch.ones(96))
    assert (choice.variant, choice.origin) == ("plain", "timed")
    assert "2.0 x plain at x.0=64" in str(choice.refusals)


def test_a_size_that_lies_between_others_is_settled_however_many_came_since(clock: Clock) -> None:
    """Those that were not timed themselves push nothing out."""
    f = sized(clock, lambda size: 50)
    for size in (100, 199):
        learned(f, size)
    for size in range(101, 199):
        f(torch.ones(size))
    assert {f.explain(torch.ones(size)).origin for size in range(101, 199)} == {"nearest"}


def test_what_is_settled_at_once_is_the_only_variant_that_is_asked_for(clock: Clock) -> None:
    """No build of another is made, and no other looks at the call."""
    asked: list[int] = []
    other = Variant(taking(clock, 50, added), name="other")
    third = Variant(taking(clock, 70, added), name="third", when=lambda x: asked.append(len(x)))
    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[other, third], mutates=(), store=False)
    for size in (64, 96):
        learned(f, size)
    asked.clear()
    f(torch.ones(80))
    assert (f.explain(torch.ones(80)).variant, asked) == ("other", [])


def test_what_won_on_both_sides_and_is_wrong_between_answers_no_call(clock: Clock) -> None:
    """Numbers come before speed: the key is learned, without it."""

    def plain(x: Tensor) -> Tensor:
        clock.now += 100_000
        return x * 2

    def wrong_at_80(x: Tensor) -> Tensor:
        clock.now += 50_000
        return x + x if len(x) != 80 else x.clone()

    variant = Variant(wrong_at_80, name="other")
    f = shapedispatch(plain, hints=(), variants=[variant], mutates=(), store=False)
    assert [learned(f, size).variant for size in (64, 96)] == ["other", "other"]
    x = torch.ones(80)
    with pytest.warns(UserWarning, match="differs in"):
        assert torch.equal(f(x), x * 2)
    assert f.explain(x).variant == "plain"


def test_where_plain_won_on_both_sides_nothing_is_offered(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is right at all sizes: a new one costs a look at its neighbours."""
    f = sized(clock, lambda size: 200)
    assert [learned(f, size).variant for size in (64, 96)] == ["plain", "plain"]
    monkeypatch.setattr(type(f.core.backend), "offer", lambda *_: pytest.fail("something is offered"))
    assert torch.equal(f(torch.ones(80)), torch.full((80,), 2.0))
    choice = f.explain(torch.ones(80))
    assert (choice.variant, choice.origin) == ("plain", "nearest")
    assert any("on both sides" in note for note in choice.notes)


def test_in_another_state_plain_is_offered_anew(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """What won in one says nothing of another."""

    class Scaled(nn.Module):
        scale = 2

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    one, offered = Scaled(), []
    f = built(Scaled.forward, exact=False, hints=(), variants=[Variant(lambda self, x: x * self.scale, name="other")])
    with torch.no_grad():
        for size in (64, 96):
            for _ in range(800):
                f(one, torch.ones(size))
        kind = type(f.core.backend)
        monkeypatch.setattr(kind, "offer", lambda *args, offer=kind.offer: offered.append(args) or offer(*args))
        f(one, torch.ones(80))
        assert offered == []
        one.scale = 3
        assert torch.equal(f(one, torch.ones(88)), torch.full((88,), 3.0))
        assert offered != []


def test_plain_that_is_settled_at_once_is_asked_for_its_state_too(clock: Clock) -> None:
    """What is fastest in one state says nothing of another."""

    class Scaled(nn.Module):
        scale = 2

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    one = Scaled()
    f = built(Scaled.forward, exact=False, hints=(), variants=[Variant(lambda self, x: x * self.scale, name="other")])
    with torch.no_grad():
        for size in (64, 96):
            for _ in range(800):
                f(one, torch.ones(size))
        f(one, torch.ones(80))
        [entry] = f.core.table.peek(f.core.backend.key((one, torch.ones(80)), {}))
    assert (entry.choice.variant, entry.choice.origin) == ("plain", "nearest")
    assert entry.any_state


def test_a_variant_that_is_left_out_is_no_mistake(clock: Clock) -> None:
    """Its author is not told to mend it."""
    f = sized(clock, lambda size: 200)
    learned(f, 64)
    with warnings.catch_warnings(action="error"):
        f(torch.ones(96))
    assert "not tried" in str(f.explain(torch.ones(96)).refusals)


@pytest.fixture
def awaited(monkeypatch: pytest.MonkeyPatch) -> Awaited:
    """As on a GPU, where to compare would be to wait."""
    made = Awaited()
    monkeypatch.setattr("shapedispatch.choices.learning.verdicts", lambda device: made)
    return made


def test_nothing_runs_before_the_device_has_said_that_it_is_right(clock: Clock, awaited: Awaited) -> None:
    """The calls run plain meanwhile, and ask without waiting; then it is learned which is better."""
    ran: list[str] = []

    def other(x: Tensor) -> Tensor:
        ran.append("other")
        clock.now += 50_000
        return x + x

    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[other], mutates=(), store=False)
    f(X)
    ran.clear()
    for _ in range(20):
        assert torch.equal(f(X), X * 2)
    assert (ran, awaited.asked, f.explain(X).origin) == ([], 21, "learning")
    awaited.ready_now = True
    for _ in range(40):
        f(X)
    assert (f.explain(X).variant, f.explain(X).origin) == ("other", "timed")
    assert awaited.asked == 22


def test_one_that_the_device_finds_wrong_never_runs(clock: Clock, awaited: Awaited) -> None:
    """Its author is told, as of one that is found wrong at once."""
    ran: list[int] = []

    def wrong(x: Tensor) -> Tensor:
        ran.append(1)
        return x * 3

    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[wrong], mutates=(), store=False)
    f(X)
    ran.clear()
    awaited.ready_now = True
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(40):
            assert torch.equal(f(X), X * 2)
    choice = f.explain(X)
    assert (ran, choice.variant, choice.origin) == ([], "plain", "timed")
    assert "it gives other numbers than plain" in str(choice.refusals)
    assert sum("the supplied variant wrong was refused" in str(one.message) for one in told) == 1


def test_what_can_be_told_without_numbers_is_told_at_once(clock: Clock, awaited: Awaited) -> None:
    """A shape, a dtype, an error: there is nothing to wait for."""
    short = Variant(taking(clock, 1, lambda x: x[1:] * 2), name="short")
    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[short], mutates=(), store=False)
    f(X)
    assert (f.explain(X).variant, awaited.asked) == ("plain", 0)
    assert "shape" in str(f.explain(X).refusals)


def test_ties_are_the_earlier_ones_whoever_is_known_to_be_right_first(clock: Clock, awaited: Awaited) -> None:
    """Places are those of the offer."""
    same = [Variant(taking(clock, 50, added), name=name) for name in ("a", "b", "c")]
    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=same, mutates=(), store=False)
    f(X)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    entry.learner.pending.reverse()
    awaited.ready_now = True
    for _ in range(60):
        f(X)
    assert [one.name for one in entry.learner.contest.contestants] == ["plain", "a", "b", "c"]
    assert f.explain(X).variant == "a"


# -- what may not be run twice


def appending(clock: Clock, us: float, seen: list[float], name: str) -> Callable[..., Any]:
    """A function that appends to a list, which takes so long."""

    def fn(x: Tensor) -> Tensor:
        seen.append(us)
        return x * 2

    fn.__name__ = name
    return taking(clock, us, fn)


def test_a_trusted_variant_takes_calls_that_may_not_be_run_twice(clock: Clock) -> None:
    """Each call appends once, whoever runs it; the faster is chosen, and `explain` says that nothing compared it."""
    seen: list[float] = []
    other = Variant(appending(clock, 40, seen, "other"), trusted=True)
    f = shapedispatch(appending(clock, 100, seen, "plain_one"), name="appends", hints=(), variants=[other], store=False)
    x = torch.ones(4)
    for count in range(1, 61):
        assert f(x).tolist() == [2.0] * 4
        assert len(seen) == count
    choice = f.explain(x)
    assert (choice.variant, choice.origin, len(seen)) == ("other", "timed", 60)
    assert any(note.startswith("not compared with plain") for note in choice.notes)
    assert set(seen[-20:]) == {40}


@pytest.mark.parametrize("why", ["not trusted", "contest", "deterministic"])
def test_else_the_function_runs_as_it_is(clock: Clock, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Where nobody says that the variant does the same, and where calls are no samples."""
    if why == "contest":
        monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "contest")
    seen: list[float] = []
    other = Variant(appending(clock, 40, seen, "other"), trusted=why != "not trusted")
    f = shapedispatch(appending(clock, 100, seen, "plain_one"), name="appends", hints=(), variants=[other], store=False)
    torch.use_deterministic_algorithms(why == "deterministic")
    try:
        for _ in range(30):
            f(torch.ones(4))
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [100] * 30


def by_calls_alone(make: Callable[[], nn.Module]) -> tuple[nn.Module, Any]:
    """A module that has a build for its very sizes, called in training, and what was chosen."""
    module = shapedispatch(make(), hints=(), exact=True, store=False)
    for _ in range(4):
        module(torch.ones(3, 4)).sum().backward()
    return module, module.forward.choices()[0]


def test_what_may_not_run_on_copies_is_learned_from_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that its graph vouches for competes where a backward of ours would run a hook, which runs once a call."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    ran: list[Tensor] = []

    def hooked() -> nn.Module:
        module = nn.Linear(4, 4)
        module.weight.register_hook(ran.append)
        return module

    _, choice = by_calls_alone(hooked)
    assert (len(ran), choice.origin) == (4, "learning")
    assert {timing.variant for timing in choice.timings} <= {"plain", "exact"}
    assert any("gradient hooks" in note for note in choice.notes)


def test_what_is_too_large_for_copies_is_learned_from_calls(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it is trusted; of what is not, it is told why it is none to run."""
    monkeypatch.setenv("SHAPEDISPATCH_COPY_LIMIT", "0")
    written = [Variant(taking(clock, 40, in_place), name="other", trusted=True), Variant(in_place, name="unsure")]
    fn = taking(clock, 100, in_place)
    f = shapedispatch(fn, name="in_place", hints=(), variants=written, mutates=("x",), store=False)
    for _ in range(60):
        f(torch.ones(8))
    choice = f.explain(torch.ones(8))
    assert (choice.variant, choice.origin) == ("other", "timed")
    assert [one.reasons[0].partition(",")[0][:17] for one in choice.refusals if one.variant == "unsure"] == [
        "copies for timing"
    ]


class Log:
    """Where two functions of this file append, and the clock that they move."""

    items: ClassVar[list[int]] = []
    clock: ClassVar[Any] = None


def logs(x: Tensor) -> Tensor:
    """Plain."""
    Log.clock.now += 100_000
    Log.items.append(100)
    return x * 2


def logs_sooner(x: Tensor) -> Tensor:
    """The same."""
    Log.clock.now += 40_000
    Log.items.append(40)
    return x * 2


def test_another_process_takes_a_trusted_variant_that_was_stored(clock: Clock, tmp_path: Path) -> None:
    """It is not compared there either."""
    Log.clock = clock
    made = lambda: shapedispatch(  # noqa: E731
        logs, name="logs", hints=(), variants=[Variant(logs_sooner, trusted=True)], store=Store(tmp_path)
    )
    first, x = made(), torch.ones(4)
    for _ in range(60):
        first(x)
    second, before = made(), len(Log.items)
    second(x)
    assert Log.items[before:] == [40]
    assert second.explain(x).origin == "stored"


def test_a_wrong_trusted_variant_is_its_users_affair_where_nothing_sees_it_but_not_elsewhere(clock: Clock) -> None:
    """A function that may be run twice compares it as it compares others."""
    other = Variant(taking(clock, 10, lambda x: x * 3), name="other", trusted=True)
    f = shapedispatch(taking(clock, 100, twice), hints=(), variants=[other], mutates=(), store=False)
    with pytest.warns(UserWarning, match="other"):
        f(torch.ones(4))
    for _ in range(30):
        assert f(torch.ones(4)).tolist() == [2.0] * 4


@pytest.mark.parametrize("samples", [2, 9])
def test_what_calls_have_not_decided_is_stored_as_such(
    clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: int
) -> None:
    """The next process runs it from its first call on, and goes on to see whether it is right."""
    shown = Learning.choice
    monkeypatch.setattr(
        Learning,
        "choice",
        lambda *given: replace(
            found := shown(*given), timings=tuple(replace(one, repeats=samples) for one in found.timings)
        ),
    )
    f = dispatched(clock, 100, 50, store=Store(tmp_path))
    for _ in range(40):
        f(X)
    (row,) = Store(tmp_path).rows()
    assert (row.variant, bool(row.undecided)) == ("other", samples == 2)
    assert any(note == f"undecided: {row.undecided}" for note in f.explain(X).notes) == (samples == 2)


def test_what_is_undecided_says_nothing_for_its_bucket(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other calls of the bucket would run it, and nothing would verify it there."""
    monkeypatch.setattr("shapedispatch.choices.learned.doubt", lambda variant, timings: "2 samples")
    f = dispatched(clock, 100, 50, dims={"x": "N"}, buckets={"N": "pow2"})
    for _ in range(40):
        f(X)
    assert "undecided: 2 samples" in f.explain(X).notes
    assert not f.core.table.facts.buckets
