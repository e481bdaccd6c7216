"""What was learned online is timed again on later hits."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import shapedispatch as package
from shapedispatch import Store, Variant, shapedispatch
from shapedispatch.functions.parts.partial import Partial
from shapedispatch.functions.parts.steps import MOST_CALLS
from shapedispatch.hit import native
from shapedispatch.online import real_calls
from shapedispatch.records import Choice, Timing
from shapedispatch.store.rows import Row

X = torch.arange(4.0)


class Times:
    """Microseconds that each variant takes, on a clock that nothing else moves; and how often each ran."""

    def __init__(self, **us: float) -> None:
        self.us, self.now_us = us, 0.0
        self.ran = dict.fromkeys(us, 0)

    def clock_ns(self) -> int:
        """The time."""
        return int(self.now_us * 1e3)

    def taking(self, name: str, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """The function under that name."""

        def timed(x: Tensor) -> Tensor:
            self.now_us += self.us[name]
            self.ran[name] += 1
            return fn(x)

        return timed


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    """Plain takes 100, the other 50."""
    made = Times(plain=100, other=50)
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    for room in ("learning", "watch"):
        monkeypatch.setattr(
            f"shapedispatch.choices.{room}.sampler",
            lambda device: (real_calls.HostSampler(made.clock_ns), None),
        )
    return made


def settled(times: Times, **given: Any) -> Any:
    """A dispatcher that has learned that the other is better."""
    given = {"store": False, "mutates": (), **given}
    other = Variant(times.taking("other", lambda x: x + x), name="other")
    f = shapedispatch(times.taking("plain", lambda x: x * 2), name="twice", hints=(), variants=[other], **given)
    for _ in range(40):
        f(X)
    assert f.explain(X).variant == "other"
    return f


def until(f: Any, variant: str, most: int) -> int:
    """After how many calls it is another variant that is chosen."""
    for count in range(most):
        if f.explain(X).variant == variant:
            return count
        f(X)
    return most


@pytest.mark.parametrize("hotpath", ["true", "false"])
def test_a_candidate_that_became_twice_as_slow_is_left_once(
    times: Times, monkeypatch: pytest.MonkeyPatch, hotpath: str
) -> None:
    """Within 5,000 calls, in C and in Python; and not back and forth."""
    monkeypatch.setenv("SHAPEDISPATCH_HOTPATH", hotpath)
    f = settled(times)
    times.us["other"] = 200
    assert until(f, "plain", 5000) < 5000
    choice = f.explain(X)
    assert any(note.startswith("switched from other to plain at hit ") for note in choice.notes)
    assert {timing.variant: timing.median_us for timing in choice.timings} == {"plain": 100, "other": 200}
    for _ in range(20_000):
        f(X)
    assert f.explain(X).variant == "plain"
    assert sum(note.startswith("switched") for note in f.explain(X).notes) == 1


def test_few_hits_are_samples(times: Times) -> None:
    """One in a thousand, and a quarter of those run the next best."""
    f = settled(times)
    times.ran["plain"] = 0
    for _ in range(20_000):
        f(X)
    assert 2 <= times.ran["plain"] <= 8
    assert f.cache_info().hits == 20_039


def test_where_it_is_off_none_is(times: Times, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is counted then."""
    monkeypatch.setenv("SHAPEDISPATCH_RETIME", "0")
    f = settled(times)
    times.us["other"], times.ran["plain"] = 1000, 0
    for _ in range(10_000):
        f(X)
    assert (times.ran["plain"], f.explain(X).variant) == (0, "other")


def test_a_frozen_mode_samples_nothing(times: Times) -> None:
    """What was chosen runs."""
    f = settled(times)
    times.us["other"], times.ran["plain"] = 1000, 0
    with package.set_mode("frozen"):
        for _ in range(5000):
            f(X)
    assert times.ran["plain"] == 0


def test_a_choice_from_the_store_is_verified_so(times: Times, tmp_path: Path) -> None:
    """It is trusted until it has become worse; to verify is no timing. The store has the new one then."""
    settled(times, store=Store(tmp_path))
    times.us["other"] = 200
    second = shapedispatch(
        times.taking("plain", lambda x: x * 2), name="twice", hints=(), mutates=(), store=Store(tmp_path),
        variants=[Variant(times.taking("other", lambda x: x + x), name="other")],
    )  # fmt: skip
    second(X)
    assert (second.explain(X).variant, second.explain(X).origin) == ("other", "stored")
    assert until(second, "plain", 5000) < 5000
    assert second.cache_info().timings == 0
    [row] = [row for row in Store(tmp_path).rows() if row.variant in ("plain", "other")]
    assert row.variant == "plain"


def test_a_shipped_choice_is_verified_so(times: Times, tmp_path: Path) -> None:
    """Its times are another machine's. What is better here goes to the user's store, which comes first from then on."""
    settled(times, store=Store(tmp_path / "theirs"))
    Store(tmp_path / "theirs").export(tmp_path / "shipped.json")
    times.us["other"] = 200
    own = Store(tmp_path / "own", shipped=[tmp_path / "shipped.json"])
    f = shapedispatch(
        times.taking("plain", lambda x: x * 2), name="twice", hints=(), mutates=(), store=own,
        variants=[Variant(times.taking("other", lambda x: x + x), name="other")],
    )  # fmt: skip
    f(X)
    assert (f.explain(X).variant, f.explain(X).origin) == ("other", "shipped")
    assert own.rows() == []
    assert until(f, "plain", 5000) < 5000
    assert f.cache_info().timings == 0
    assert [row.variant for row in own.rows()] == ["plain"]


def second_process(times: Times, store: Store) -> Any:
    """A dispatcher of the same function over a store, before its first call."""
    return shapedispatch(
        times.taking("plain", lambda x: x * 2), name="twice", hints=(), mutates=(), store=store,
        variants=[Variant(times.taking("other", lambda x: x + x), name="other")],
    )  # fmt: skip


def left_in_doubt(times: Times, place: Path, variant: str = "other", **also_us: float) -> Store:
    """A store that names this variant for the key, of whose times a first process was not sure."""
    settled(times, store=Store(place))
    (row,) = Store(place).rows()
    timings = [Timing(name, us, 20.0, 2) for name, us in {**times.us, **also_us}.items()]
    made = {"hard": row.hard, "soft": row.soft, "timings": timings, "undecided": "2 samples"}
    Store(place).prune(kernel=row.kernel)
    Store(place).put(Row.make(row.kernel, row.key, variant=variant, **made))
    return Store(place)


NOTE = "stored, though undecided there: 2 samples"


def test_an_undecided_choice_from_the_store_runs_from_the_first_call(times: Times, tmp_path: Path) -> None:
    """Nothing is learned anew, and `explain` says what is known of it, before the first call too."""
    f = second_process(times, left_in_doubt(times, tmp_path))
    assert NOTE in f.explain(X).notes
    assert torch.equal(f(X), X * 2)
    choice = f.explain(X)
    assert (choice.variant, choice.origin, f.cache_info().timings) == ("other", "stored", 0)
    assert NOTE in choice.notes


def test_an_undecided_choice_is_decided_by_later_calls(times: Times, tmp_path: Path) -> None:
    """A few of them soon, as samples of both; the store has it as decided then, and the note is gone."""
    f = second_process(times, left_in_doubt(times, tmp_path))
    f(X)
    times.ran["plain"] = 0
    for _ in range(1000):
        f(X)
    assert (f.explain(X).variant, f.explain(X).notes) == ("other", ())
    assert 6 <= times.ran["plain"] <= 24
    (row,) = Store(tmp_path).rows()
    assert (row.variant, row.undecided) == ("other", "")
    assert {one.variant: one.repeats for one in row.timings} == {"plain": 6, "other": 6}


def test_an_undecided_choice_that_was_wrong_is_left(times: Times, tmp_path: Path) -> None:
    """What won in a slow spell of the machine must not stand for ever."""
    store = left_in_doubt(times, tmp_path)
    times.us["other"] = 300.0
    f = second_process(times, store)
    assert until(f, "plain", 1000) < 1000
    assert not any(note.startswith("stored, though") for note in f.explain(X).notes)
    (row,) = Store(tmp_path).rows()
    assert (row.variant, row.undecided) == ("plain", "")


@pytest.mark.operators_called
def test_a_plain_in_doubt_is_verified_where_a_build_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Made for another size, at which it is what is stored. Here all take equally long, so that plain may stay."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    ticks = itertools.count(step=50_000)
    for room in ("learning", "watch"):
        sampling = lambda device: (real_calls.HostSampler(ticks.__next__), None)  # noqa: E731
        monkeypatch.setattr(f"shapedispatch.choices.{room}.sampler", sampling)
    f = shapedispatch(lambda x: x * 2, name="twice", dims={"x": "N"}, hints=(8,), store=Store(tmp_path))
    times = Timing("plain", 50.0, 9.0, 2), Timing("hint[N=8]", 90.0, 9.0, 2)
    for size, variant, notes in ((6, "hint[N=8]", ()), (4, "plain", ("undecided: 2 samples",))):
        choice = Choice(variant, "timed", timings=times, notes=notes)
        f.core.kernel_store.keep(f.core.backend.key((torch.ones(size),), {}), torch.device("cpu"), choice)
    f(torch.ones(6))
    for _ in range(1000):
        f(torch.ones(4))
    assert [(one.variant, one.origin) for one in f.choices()] == [("hint[N=8]", "stored"), ("plain", "stored")]
    assert [row.undecided for row in Store(tmp_path).rows(kind="choice")] == ["", ""]


def test_a_plain_in_doubt_has_nothing_made_to_verify_it(times: Times, tmp_path: Path) -> None:
    """The first call would wait for that."""
    f = second_process(times, left_in_doubt(times, tmp_path, "plain"))
    times.ran["other"] = 0
    for _ in range(1000):
        f(X)
    assert (f.explain(X).variant, times.ran["other"], f.cache_info().timings) == ("plain", 0, 0)


def test_a_choice_whose_rival_is_not_there_stays_in_doubt(times: Times, tmp_path: Path) -> None:
    """Plain's samples say nothing of that one."""
    f = second_process(times, left_in_doubt(times, tmp_path, third=80.0))
    for _ in range(1000):
        f(X)
    assert NOTE in f.explain(X).notes
    assert [row.undecided for row in Store(tmp_path).rows()] == ["2 samples"]


def test_a_checkpoint_runs_what_is_chosen_and_samples_nothing(times: Times) -> None:
    """Its backward runs the same again."""
    f = settled(times)
    entry = f.core.table.peek(f.core.backend.key((X,), {}))[0]
    pinned = entry.learner.pinned(entry.choice)
    assert (pinned.learner, pinned.choice.variant) == (None, "other")
    x = X.clone().requires_grad_()
    checkpoint(lambda x: f(x).sin(), x, use_reentrant=False).sum().backward()
    assert torch.allclose(x.grad, 2 * torch.cos(2 * X))


def test_a_next_best_whose_build_has_left_or_whose_guards_fail_is_not_run(times: Times) -> None:
    """What was chosen runs in its place."""
    f = settled(times)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    watch, plain = entry.learner, entry.learner.candidates["plain"]
    gone = dataclasses.replace(plain, build="gone")
    f.core.table.hold("held", Released())
    unfit = dataclasses.replace(plain, build="held", check=lambda args, kwargs: False)
    supplied = dataclasses.replace(plain, supplied=True, check=lambda args, kwargs: False)
    times.ran["plain"] = 0
    for one in (gone, unfit, supplied):
        watch.candidates = {**watch.candidates, "plain": one}
        for _ in range(20):
            assert torch.equal(watch(X), X * 2)
    assert times.ran["plain"] == 0
    watch.candidates = {**watch.candidates, "plain": dataclasses.replace(unfit, check=None)}
    for _ in range(20):
        watch(X)
    assert times.ran["plain"] == 5


def test_one_that_raises_at_a_sample_is_answered_by_plain(times: Times) -> None:
    """And sampled no more; where it may have written something, its error is the answer."""
    f = settled(times)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    watch = entry.learner

    def raises(x: Tensor) -> Tensor:
        raise RuntimeError("out of order")

    watch.candidates = {
        **watch.candidates,
        "other": dataclasses.replace(watch.candidates["other"], run=raises, build="b"),
    }
    f.core.table.hold("b", Released())
    assert torch.equal(watch(X), X * 2)
    assert "other" not in watch.drift.known_us
    assert dict(f.cache_info().bypasses_by_reason) == {"a build raised RuntimeError: out of order": 1}


def test_next_to_plain_nothing_runs_before_the_program_has_been_seen(times: Times) -> None:
    """Its backward may need what the program writes; what was chosen runs in any case."""
    f = settled(times)
    [entry] = f.core.table.peek(f.core.backend.key((X,), {}))
    watch, unseen = entry.learner, Partial()
    told = [dataclasses.replace(one, program=unseen) for one in watch.offer.candidates]
    watch.offer, ran = dataclasses.replace(watch.offer, candidates=tuple(told)), []
    for winner, calls in (("other", 20), ("plain", MOST_CALLS), ("plain", 20)):
        watch.drift.winner, times.ran["plain"], times.ran["other"] = winner, 0, 0
        for _ in range(calls):
            watch(X)
        ran.append((times.ran["plain"] > 0, times.ran["other"] > 0))
    assert ran == [(True, True), (True, False), (True, True)]


class Released:
    """A build that holds nothing."""

    def release(self) -> None:
        """There is nothing to let go."""


def test_hits_in_c_are_counted_there(times: Times) -> None:
    """None of those in between comes to Python."""
    if not native.hotpath_available:
        pytest.skip("there is no C path")
    f = settled(times)
    f(X)
    left = f.core.fast_path.left
    assert left > 100
    for _ in range(100):
        f(X)
    assert f.core.fast_path.left == left - 100
