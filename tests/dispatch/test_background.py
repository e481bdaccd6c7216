"""Learning that stops no call: what runs meanwhile, when something is ordered, and what becomes of it."""

from __future__ import annotations

import gc
import itertools
import math
import re
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import shapedispatch as package
from shapedispatch import Variant, shapedispatch
from shapedispatch.background import exit_notes, imports
from shapedispatch.background.account import Account, Allowance
from shapedispatch.background.orders import Costs
from shapedispatch.choices.context import MissContext
from shapedispatch.dispatch import background, miss
from shapedispatch.dispatch.background import Waiting
from shapedispatch.functions.checks.graph_check import GraphCheck
from shapedispatch.functions.compile import graph
from shapedispatch.records import MORE_TO_COME, STORED_UNDECIDED
from shapedispatch.store.rows import BadRow, Row
from tests.built_here import BuiltHere, learning_here

pytestmark = pytest.mark.operators_called


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


def doubled(x: Tensor) -> Tensor:
    """Plain."""
    return x.sin() * 2


def added(x: Tensor) -> Tensor:
    """The same."""
    return x.sin() + x.sin()


INDEXES = pytest.mark.skipif(graph._DIES_OF_AN_INDEX, reason="this torch's compiled code does not check an index")
X = torch.arange(8.0)


def waiting(dispatcher: Any, *call: Any) -> Waiting:
    """What the first call of these leaves to be run."""
    dispatcher(*call)
    (entry,) = dispatcher.core.table.peek(dispatcher.explain(*call).key)
    assert isinstance(entry.learner, Waiting)
    return entry.learner


def waiting_at(dispatcher: Any, *call: Any) -> Waiting:
    """What runs such calls, of which there were some."""
    (entry,) = dispatcher.core.table.peek(dispatcher.explain(*call).key)
    assert isinstance(entry.learner, Waiting)
    return entry.learner


def until_timed(dispatcher: Any, *call: Any) -> None:
    """Call it until its choice is made."""
    for _ in range(1000):
        if dispatcher.explain(*call).origin in ("timed", "nearest"):
            return
        dispatcher(*call)
    raise AssertionError(dispatcher.explain(*call))


def test_the_first_call_runs_plain_at_once(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is traced, timed or built in it."""
    monkeypatch.setenv("SHAPEDISPATCH_EARN", "1")
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    assert torch.equal(f(X), doubled(X))
    choice = f.explain(X)
    assert (choice.variant, choice.origin, choice.sizes) == ("plain", "learning", {"M": 8})
    info = f.cache_info()
    assert (info.misses, info.builds, info.timings, len(here.tasks)) == (1, 0, 0, 0)


def test_nothing_is_ordered_before_it_is_worth_it(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is called."""
    monkeypatch.setenv("SHAPEDISPATCH_EARN", "1e9")
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(100):
        f(X)
    assert here.tasks == []
    assert f.cache_info().misses == 1
    assert "a build is ordered at" in f.explain(X).notes[-1]


def test_what_its_calls_take_is_noted_for_the_key_and_its_class(here: BuiltHere) -> None:
    """By the clock around each."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    one, other = waiting(f, X), waiting(f, X[:4])
    for run in (one, other):
        seconds = iter(range(100))
        run.clock_s = lambda seconds=seconds: float(next(seconds))  # type: ignore[misc]  # a default that is not given
    one.failed = other.failed = "nothing is to be decided"
    spent_s = one.account.spent_s
    one(X)
    one(X)
    other(X[:4])
    assert one.account is other.account
    assert one.account.spent_s - spent_s == 3.0
    assert (int(one.spent_s), int(other.spent_s)) == (2, 1)


def test_a_call_that_raises_raises_and_is_noted(here: BuiltHere) -> None:
    """Its time was spent like another's."""

    def failing(x: Tensor) -> Tensor:
        raise ZeroDivisionError(x.shape)

    f = shapedispatch(failing, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(5):
        with warnings.catch_warnings(action="ignore"), pytest.raises(ZeroDivisionError):
            f(X)


def test_each_call_is_counted_once(here: BuiltHere) -> None:
    """A look at a key that waits is no call, nor is it one to tune what has a choice."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(100):
        f(X)
    f.tune(X)
    info = f.cache_info()
    assert here.tasks or info.builds
    assert info.hits + info.misses + info.bypasses == 100


def test_those_of_one_name_wait_for_their_own_builds(here: BuiltHere) -> None:
    """Functions of one factory have one name."""

    def made(by: float) -> Any:
        return shapedispatch(lambda x: x * by, dims={"x": "M"}, hints=(64,), store=False)

    one, other = made(2.0), made(3.0)
    one(X)
    assert one.core.backend.name == other.core.backend.name
    assert (list(one.progress()), other.progress()) == (["hint[M=64]"], {})
    assert one.core.orders().of(other.core.table.log) == []


def test_a_warning_that_is_an_error_reaches_the_caller(here: BuiltHere) -> None:
    """As its user has asked for; here of a function that cannot be traced."""

    def failing(x: Tensor) -> Tensor:
        raise ZeroDivisionError(x.shape)

    f = shapedispatch(failing, dims={"x": "M"}, hints=(64,), store=False)
    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match="every variant but plain"):
        f(X)


def test_a_supplied_variant_is_judged_without_a_build(here: BuiltHere) -> None:
    """On the calls themselves, when what the function does is known."""
    f = shapedispatch(doubled, hints=(), variants=[Variant(added)], store=False)
    until_timed(f, X)
    assert f.explain(X).origin == "timed"
    assert {timing.variant for timing in f.explain(X).timings} == {"plain", "added"}


def test_what_is_chosen_before_a_build_is_there_settles_no_other_size(here: BuiltHere) -> None:
    """It is the best of less than there will be."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), variants=[Variant(added)], store=False)
    for size in (4, 8):
        for _ in range(200):
            f(X[:size])
        assert {timing.variant for timing in f.explain(X[:size]).timings} == {"plain", "added"}
    for _ in range(200):
        f(X[:6])
    assert f.explain(X[:6]).origin == "timed"
    here.paused = False
    for _ in range(60):
        f(X[:6])
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X[:6]).timings}


def test_a_new_key_of_a_class_that_is_built_takes_the_build_in(here: BuiltHere) -> None:
    """No other trace, and no other order."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    until_timed(f, X)
    until_timed(f, X[:5])
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X[:5]).timings} | {f.explain(X[:5]).variant}
    assert len(here.tasks) == 1


def test_what_lands_later_is_looked_at_then(here: BuiltHere) -> None:
    """A call says meanwhile how far it is."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(20):
        f(X)
    assert any("being built" in reason for refusal in f.explain(X).refusals for reason in refusal.reasons)
    assert list(f.progress()) == ["hint[M=64]"]
    assert f.cache_info().builds == 0
    assert f.wait()
    assert f.progress() == {}
    until_timed(f, X)
    assert f.cache_info().builds == 1


def test_the_hint_that_is_nearest_to_the_call_is_ordered_first(here: BuiltHere) -> None:
    """What is ordered first is there first, and beside a busy program it is there alone for minutes."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(4, 64, 4096), store=False)
    for _ in range(5):
        f(torch.arange(100.0))
    assert list(f.progress()) == ["hint[M=64]", "hint[M=4]", "hint[M=4096]"]


@pytest.fixture(params=[True, False])
def asked(request: pytest.FixtureRequest, here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> Asked:
    """A function whose calls wait, in C or in Python, of which it was asked once whether a look is due."""
    monkeypatch.setenv("SHAPEDISPATCH_HOTPATH", str(request.param).lower())
    monkeypatch.setattr(background, "POLL_AFTER_S", 1e8)
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    asked, ask = Asked(f, waiting(f, X)), Waiting._nothing_is_new
    assert (asked.waiting.calls is not None) is request.param
    monkeypatch.setattr(Waiting, "_nothing_is_new", lambda self: (asked.times.append(1), ask(self))[1])
    return asked


@dataclass
class Asked:
    """How often it was asked whether a look is due since."""

    f: Any
    waiting: Waiting
    times: list[int] = field(default_factory=list)


def test_a_call_does_not_ask_whether_a_look_is_due(asked: Asked) -> None:
    """To ask takes as long as a small call. Where there is C, none even comes to Python."""
    one, spent_s, read = asked.waiting, asked.waiting.spent_s, list[int]()
    one.clock_s = lambda: float(read.append(1) or len(read))
    for _ in range(10):
        asked.f(X)
    assert asked.times == []
    assert len(read) == (20 if one.calls is None else 0)
    one.force()
    assert one.spent_s > spent_s
    assert one.account.spent_s == one.spent_s


def test_a_call_asks_once_enough_was_spent(asked: Asked) -> None:
    """Then it may be due, or there is news."""
    asked.waiting.spent_s += 1e9
    if asked.waiting.calls is not None:
        asked.waiting.calls.begin(1e-9)
        asked.f(X)
        assert asked.times == []
    asked.f(X)
    assert asked.times == [1]
    asked.f(X)
    assert asked.times == [1]


def test_the_next_call_asks_where_there_is_news(asked: Asked) -> None:
    """Who has waited for builds need not call often to have them."""
    asked.f(X)
    asked.waiting.account.landed()
    asked.f(X)
    assert asked.times == [1]


def test_a_call_that_asks_notes_what_those_before_it_took(asked: Asked) -> None:
    """They were timed where they ran."""
    one, spent_s = asked.waiting, asked.waiting.spent_s
    asked.f(X)
    one.polls_s, one.clock_s = 0.0, lambda: 0.0
    one(X)
    assert one.spent_s > spent_s
    assert one.account.spent_s == one.spent_s


def test_the_next_call_asks_where_all_is_wanted(asked: Asked) -> None:
    """Somebody waits for that."""
    asked.f(X)
    asked.waiting.force()
    asked.f(X)
    assert asked.times == [1]


@pytest.mark.parametrize(("did", "rest_s"), [([], background.RESTS * 0.01), ([("loaded", 0.01)], 0.01)])
def test_calls_are_left_alone_after_a_look(
    did: list[tuple[str, float]], rest_s: float, here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each of many keys would be looked at with one build, and again with the next, in a tenth of their time."""
    one = waiting(shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False), X)
    rests: list[float] = []
    monkeypatch.setattr(one.core.orders(), "worked", rests.append)
    allowance = background.allowance_of(one, torch.device("cpu"), may_begin=False, exact=False)
    background._looked(one, replace(allowance, did=did), left=False, took_s=0.01)
    assert rests == [rest_s]


def test_news_is_looked_at_for_a_key_of_few_calls(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its class has spent what that is worth: what is found is for all of its keys."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    one = waiting(f, X)
    monkeypatch.setattr(f.core, "earn", lambda: 1.0)
    monkeypatch.setattr(one.core.orders().costs, "offer_s", 1.0)
    account, account.short, account.offered_s = one.account, False, one.account.spent_s
    account.landed()
    assert not one._due()
    account.spent_s += background.OFFERS
    assert one._due()


@pytest.mark.parametrize(("goes_on", "looks"), [(False, 0), (True, 1)])
def test_a_look_is_paid_once(goes_on: bool, looks: int, here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it begins, whether or not it comes to anything: else each of many keys would have one that fails."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    one = waiting(f, X)
    one.account.shared_offers, one.unfinished, one.forced = 1, goes_on, True

    def fails(ctx: MissContext, missed: bool) -> Any:
        raise RuntimeError("nothing is found")

    monkeypatch.setattr(background, "decide", fails)
    with pytest.warns(UserWarning, match="nothing is found"):
        f(X)
    assert one.account.shared_offers == looks


def test_one_can_wait_for_all(here: BuiltHere) -> None:
    """Those of other dispatchers too."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(5):
        f(X)
    assert package.wait(timeout=10)
    assert f.progress() == {}


def test_a_build_for_the_very_sizes_is_worth_it_by_itself(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """What other sizes have spent does not count."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(), exact=True, store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    run = waiting(f, X)
    run.account.next_s = 0.0
    run(X)
    refused = {refusal.variant: refusal.reasons[0] for refusal in f.explain(X).refusals}
    assert refused["exact"].startswith("not enough time was spent at these sizes")
    monkeypatch.setattr(f.core, "earn", lambda: 0.0)
    (entry,) = f.core.table.peek(f.explain(X).key)
    entry.learner.next_s = 0.0
    until_timed(f, X)
    assert "exact" in {timing.variant for timing in f.explain(X).timings}


def test_what_fails_is_told_once_and_plain_runs_on(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has its answer whatever happens."""

    def fail(*_: Any, **named: Any) -> Any:
        raise OSError("the disk is full")

    monkeypatch.setattr(background, "decide", fail)
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    with pytest.warns(UserWarning, match="the disk is full"):
        assert torch.equal(f(X), doubled(X))
    assert torch.equal(f(X), doubled(X))  # and says it no more
    assert "nothing more is made for it" in f.explain(X).notes[-1]


def test_where_nobody_can_be_asked_what_was_built_calls_are_answered(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe that the program has closed, say: told once, and not asked again."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)

    def fail(now: bool = False) -> None:
        raise OSError("bad file descriptor")

    monkeypatch.setattr(f.core.orders(), "poll", fail)
    with pytest.warns(UserWarning, match="bad file descriptor"):
        assert torch.equal(f(X), doubled(X))
    assert torch.equal(f(X), doubled(X))


def test_while_another_thread_decides_the_call_runs_what_it_ran(here: BuiltHere) -> None:
    """Nothing is waited for."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    with miss.tuning_lock.acquired():
        thread = threading.Thread(target=f, args=(X,))
        miss.tuning_lock.note_owner()
        thread.start()
        thread.join()
    assert f.explain(X).origin == "learning"
    assert f.cache_info().bypasses == 0


def test_where_a_mode_forbids_it_nothing_is_learned(here: BuiltHere) -> None:
    """Frozen is frozen."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    with package.set_mode("frozen"):
        for _ in range(5):
            f(X)
    assert here.tasks == []
    assert f.explain(X).origin != "learning"


def test_the_imports_come_first(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for the compiler's modules."""
    monkeypatch.setattr(imports.compiler, "ready", lambda: False)
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(5):
        f(X)
    assert (f.cache_info().misses, here.tasks) == (1, [])


def test_a_checkpointed_call_and_its_recomputation_run_the_same(here: BuiltHere) -> None:
    """What is pinned there learns nothing."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    x = X.clone().requires_grad_()
    for _ in range(5):
        (gradient,) = torch.autograd.grad(checkpoint(f, x, use_reentrant=False).sum(), x)
        torch.testing.assert_close(gradient, 2 * X.cos())


def test_a_call_that_does_not_fit_its_declaration_is_a_bypass(here: BuiltHere) -> None:
    """As without learning in the background."""
    f = shapedispatch(doubled, dims={"x": "M N"}, hints=(64,), store=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.equal(f(X), doubled(X))
    assert f.cache_info().bypasses == 1


def test_an_account_counts_what_was_built() -> None:
    """So that each key of the class looks again."""
    account = Account()
    account.landed()
    account.landed()
    assert account.news == 2


def test_a_call_stands_for_those_before_it_once(here: BuiltHere) -> None:
    """Which C has run plain: the next call of the key is one like others."""
    f = shapedispatch(doubled, store=False)
    one = waiting(f, X)
    one.clock_s, one.in_all_s = itertools.count().__next__, lambda took_s: 8 * took_s
    spent_s = one.account.spent_s
    f(X)
    assert one.account.spent_s - spent_s == 8
    f(X)
    assert one.account.spent_s - spent_s == 9


# -- what is looked at


@pytest.fixture
def earned(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Bare dispatchers whose classes have earned a trace, but no key a build of its own."""

    def made() -> Any:
        f = shapedispatch(doubled, store=False)
        monkeypatch.setattr(f.core, "earn", lambda: 1.0)
        waiting(f, X).account.spent_s = 1e9
        return f

    return made


def test_sizes_that_vary_are_known_before_anything_is_looked_at(here: BuiltHere, earned: Callable[[], Any]) -> None:
    """So that the first trace is one for hints."""
    earned()(X[:6])
    assert len(here.tasks) == 1


def test_a_class_whose_sizes_turn_out_to_vary_is_looked_at_again(here: BuiltHere, earned: Callable[[], Any]) -> None:
    """By the first call that may."""
    f = earned()
    f(X)
    f(X)
    assert here.tasks == []
    f(X[:6])
    f(X[:6])
    assert len(here.tasks) == 1


def test_what_a_trace_takes_is_no_part_of_what_a_look_takes(
    here: BuiltHere, earned: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing is ordered after it: else keys would have to spend eight times as much to be looked at."""
    f, trace, clock, late = earned(), Allowance.trace, time.perf_counter, [0.0]

    def slow(self: Allowance, make: Callable[[], Any]) -> Any:
        def made() -> Any:
            late[0] += 1000.0
            return make()

        return trace(self, made)

    monkeypatch.setattr(Allowance, "trace", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])
    f(X)
    assert late == [1000.0]
    assert here.tasks == []
    assert f.core.orders().costs.offer_s < 100.0


def test_what_a_load_takes_is_no_part_of_what_a_look_takes(
    here: BuiltHere, earned: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build is loaded once, and its numbers are looked at once: the next look has neither to do."""
    f, once, clock, late = earned(), Allowance.once, time.perf_counter, [0.0]

    def slow(self: Allowance, doing: str, make: Callable[[], Any]) -> Any:
        def made() -> Any:
            late[0] += 1000.0
            return make()

        return once(self, doing, made)

    monkeypatch.setattr(Allowance, "once", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + late[0])
    f(X[:6])
    while not late[0]:
        waiting_at(f, X[:6]).spent_s += 1e3
        f(X[:6])
    assert f.core.orders().costs.offer_s < 100.0


@pytest.fixture
def looks(here: BuiltHere, caplog: pytest.LogCaptureFixture) -> Callable[[], list[list[str]]]:
    """What was done in each call in which anything was done for builds."""
    caplog.set_level("DEBUG", "shapedispatch")

    def found() -> list[list[str]]:
        told = [one.getMessage() for one in caplog.records if "a call was looked at" in one.getMessage()]
        return [done for one in told if (done := re.findall(r", (\w+) for", one))]

    return found


def test_a_build_is_loaded_in_one_call_and_judged_in_another(
    here: BuiltHere, looks: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has compiled it has looked at its numbers; the call that loads it runs what ran before."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(5):
        f(X)
    one, here.paused = waiting_at(f, X), False
    while ["loaded"] not in looks():
        assert waiting_at(f, X) is one
        f(X)
    assert waiting_at(f, X) is one
    assert one.unfinished
    until_timed(f, X)
    assert looks()[-1] == ["loaded"]
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X).timings}


def test_no_cycles_are_looked_for_while_a_call_is_looked_at(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full look takes a quarter of a second, and comes sooner by what a trace makes and lets go of."""
    decide, seen = background.decide, list[bool]()
    monkeypatch.setattr(
        background, "decide", lambda *given, **named: (seen.append(gc.isenabled()), decide(*given, **named))[1]
    )
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    until_timed(f, X)
    assert seen
    assert not any(seen)
    assert gc.isenabled()


def test_numbers_are_looked_at_in_calls_of_their_own(
    here: BuiltHere, looks: Callable[[], list[list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs; then those of the caller, and those that are all different; where nobody else has looked."""
    monkeypatch.setattr("shapedispatch.functions.compile.artifact.Artifact.verdict", lambda *_: None)
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    until_timed(f, X)
    assert [one for one in looks() if one != ["traced", "ordered"]] == [["loaded"], *[["checked"]] * 3]
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X).timings}


def test_one_trace_says_what_is_done_and_is_built(here: BuiltHere, looks: Callable[[], list[list[str]]]) -> None:
    """Where all that is wanted is for these sizes."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(), exact=True, store=False)
    until_timed(f, X)
    assert looks() == [["traced", "ordered"], ["loaded"]]


def times(x: Tensor, n: int) -> Tensor:
    """With a number that may be a dim."""
    return torch.tanh(x * n)


def test_two_traces_are_made_in_two_calls(here: BuiltHere, looks: Callable[[], list[list[str]]]) -> None:
    """One is of the class, whose numbers vary; the other has them as constants."""
    f = shapedispatch(times, dims={"x": "M", "n": "N"}, hints={"N": (64,)}, exact=True, store=False)
    until_timed(f, X, 7)
    assert [done for done in looks() if "ordered" in done] == [["traced", "ordered"], ["ordered"]]


def test_two_builds_are_loaded_in_two_calls(here: BuiltHere, looks: Callable[[], list[list[str]]]) -> None:
    """However many have come meanwhile; all of them are judged together."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), exact=True, store=False)
    for _ in range(20):
        f(X)
    assert len(f.progress()) == 2
    here.paused = False
    until_timed(f, X)
    assert looks()[-2:] == [["loaded"], ["loaded"]]
    assert {timing.variant for timing in f.explain(X).timings} == {"plain", "hint[M=64]", "exact"}


def test_whoever_has_waited_has_all_at_the_next_call(here: BuiltHere, looks: Callable[[], list[list[str]]]) -> None:
    """Nobody minds then what it takes."""
    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), exact=True, store=False)
    for _ in range(20):
        f(X)
    assert f.wait()
    f(X)
    assert looks()[-1] == ["loaded", "loaded"]


def test_while_calls_are_left_alone_none_is_looked_at(here: BuiltHere, looks: Callable[[], list[list[str]]]) -> None:
    """A trace or a load was made just now, for whatever call."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    f.core.orders()._rests_until_s = math.inf
    for _ in range(20):
        f(X)
    assert looks() == []
    f.core.orders()._rests_until_s = -math.inf
    until_timed(f, X)


def test_other_keys_are_not_looked_at_while_builds_are_awaited(here: BuiltHere, earned: Callable[[], Any]) -> None:
    """There is nothing to see; when something has been built there is."""
    f, here.paused = earned(), True
    f(X[:6])
    assert f.progress()
    calls = [(X[:size],) for size in (5, 4)]
    for call in calls:
        f(*call)
    others = [waiting_at(f, *call) for call in calls]
    for _, call in itertools.product(range(9), calls):
        for one in others:
            one.spent_s += 0.1
        f(*call)
    assert [one.seen_s for one in others] == [None] * 2
    here.paused = False
    for call in calls:
        f(*call)
        f(*call)
    assert None not in [one.seen_s for one in others]


def test_what_a_key_still_needs_is_no_other_keys_to_say(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """One was looked at before a trace was worth it; another of its class, looked at later, needs none."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1.0)
    one, other = waiting(f, X), waiting(f, X[:4])
    account = one.account
    account.seen, account.next_s, one.spent_s = True, 1e8, 1e6
    f(X)
    assert one.seen_s is not None
    background._looked(other, background.allowance_of(other, X.device, may_begin=False, exact=False), False, 0.0)
    f(X)
    assert here.tasks == []
    account.spent_s = 1e9
    f(X)
    assert len(here.tasks) == 1


# -- a choice that is known


def stored(store: Path, variant: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A dispatcher whose store names this variant for the call."""
    first = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), exact=True, store=store)
    until_timed(first, X)
    row = first.core.kernel_store.find(first.explain(X).key, X.device).row
    known = replace(first.explain(X), variant=variant, timings=())
    assert row.variant in ("plain", "exact", "hint[M=64]")
    first.core.kernel_store.keep(first.explain(X).key, X.device, known, instead=True)
    second = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), exact=True, store=store)
    monkeypatch.setattr(second.core, "earn", lambda: 1e9)
    return second


@pytest.mark.parametrize("variant", ["exact", "hint[M=64]"])
def test_a_stored_choice_is_ordered_at_its_first_call(
    here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """It has been earned elsewhere; nothing else is made for the key, and until it is there plain runs."""
    f = stored(tmp_path / "store", variant, monkeypatch)
    f.core.kernel_store.store.artifacts.clear()
    before, here.paused = len(here.tasks), True
    assert torch.equal(f(X), doubled(X))
    assert list(f.progress()) == [variant]
    for _ in range(20):
        f(X)
    assert len(here.tasks) == before + 1
    assert (f.explain(X).variant, f.explain(X).origin) == ("plain", "learning")
    assert f"{variant} is stored for it" in f.explain(X).notes
    here.paused = False
    f(X)
    f(X)
    assert (f.explain(X).variant, f.explain(X).origin) == (variant, "stored")
    torch.testing.assert_close(f(X), doubled(X))
    assert len(here.tasks) == before + 1


@pytest.mark.parametrize("variant", ["exact", "hint[M=64]"])
def test_a_stored_choice_whose_code_was_kept_runs_from_its_first_call_on(
    here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variant: str
) -> None:
    """Nothing is ordered."""
    f = stored(tmp_path / "store", variant, monkeypatch)
    before = len(here.tasks)
    torch.testing.assert_close(f(X), doubled(X))
    assert (f.explain(X).variant, f.explain(X).origin) == (variant, "stored")
    assert len(here.tasks) == before


def test_an_undecided_choice_that_is_stored_runs_from_its_first_call_on(
    here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a decided one: nothing is ordered, and nothing is learned anew."""
    f = stored(tmp_path / "store", "hint[M=64]", monkeypatch)
    row = f.core.kernel_store.find(f.core.backend.key((X,), {}), X.device).row
    doubtful = Row.make(
        row.kernel, row.key, hard=row.hard, soft=row.conditions, variant=row.variant, undecided="2 samples"
    )
    f.core.kernel_store.store.prune(kernel=row.kernel)
    f.core.kernel_store.store.put(doubtful)
    before = len(here.tasks)
    torch.testing.assert_close(f(X), doubled(X))
    assert (f.explain(X).variant, f.explain(X).origin) == ("hint[M=64]", "stored")
    assert "stored, though undecided there: 2 samples" in f.explain(X).notes
    assert len(here.tasks) == before


def test_where_plain_is_stored_nothing_is_traced(
    here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the key is settled at its first call."""
    f = stored(tmp_path / "store", "plain", monkeypatch)
    monkeypatch.setattr(Allowance, "trace", lambda *_: pytest.fail("something is traced"))
    f(X)
    assert (f.explain(X).variant, f.explain(X).origin) == ("plain", "stored")


def test_a_choice_of_other_conditions_has_to_be_earned(
    here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fastest then may not be now."""
    f = stored(tmp_path / "store", "exact", monkeypatch)
    before = len(here.tasks)
    kept = f.core.kernel_store
    row = kept.find(f.core.backend.key((X,), {}), X.device).row
    changed = {**row.soft, "threads": 77}
    kept.store.put(Row.make(row.kernel, row.key, hard=row.hard, soft=changed, variant="exact"), instead=True)
    for _ in range(5):
        f(X)
    assert len(here.tasks) == before
    assert f.explain(X).origin == "learning"


def test_a_known_build_that_fails_is_no_reason_to_stop(
    here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the key is learned like another."""
    f = stored(tmp_path / "store", "exact", monkeypatch)
    f.core.kernel_store.store.artifacts.clear()
    monkeypatch.setattr("shapedispatch.functions.compile.remote._artifact", _fail)
    for _ in range(5):
        assert torch.equal(f(X), doubled(X))
    assert f.explain(X).origin == "learning"
    monkeypatch.undo()


def _fail(*_: Any) -> Any:
    raise MemoryError("no memory")


def test_what_is_built_while_a_key_is_learned_is_looked_at_at_once(here: BuiltHere) -> None:
    """Not when it is known of the others which is best, which takes a model that ties with its recording seconds."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), variants=[Variant(added)], store=False)
    here.paused = True
    for _ in range(3):
        f(X)
    assert {timing.variant for timing in f.explain(X).timings} == {"plain", "added"}
    here.paused = False
    for _ in range(12):
        f(X)
    assert "hint[M=64]" in {timing.variant for timing in f.explain(X).timings}


@INDEXES
def test_a_call_that_is_too_large_for_copies_is_decided_all_the_same(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That nothing was said of a build there is no reason to ask again at each look, and to leave the rest for it."""
    monkeypatch.setattr(MissContext, "_room", lambda ctx: 8)

    def picked(x: Tensor, places: Tensor) -> Tensor:
        return x[places] * 2

    f = shapedispatch(picked, dims={"x": "M", "places": "M"}, hints=(64,), store=False)
    until_timed(f, X, torch.arange(8))
    choice = f.explain(X, torch.arange(8))
    assert any("on calls alone" in note for note in choice.notes)
    assert "hint[M=64]" in {timing.variant for timing in choice.timings}


# -- all that is queued, and the end of a process


def test_waiting_by_force_orders_what_was_not_earned(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each key that was met, and without another call; what was built is there at the next."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), exact=True, store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    f(X)
    f(X[:5])
    assert f.wait()
    assert here.tasks == []
    assert f.wait(force=True)
    assert len(here.tasks) == 3
    assert f.progress() == {}
    for _ in range(5):
        f(X)
    assert len(here.tasks) == 3
    until_timed(f, X)
    assert {timing.variant for timing in f.explain(X).timings} == {"plain", "hint[M=64]", "exact"}
    assert len(here.tasks) == 3


@INDEXES
def test_nothing_is_run_on_a_call_that_was_made_of_a_key(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its values are what memory held: as indices they end a process, or a GPU's context."""
    looked: list[Any] = []
    part = GraphCheck.part

    def noted(check: GraphCheck, inputs: Any, room: int) -> Any:
        looked.extend(one for one in inputs if isinstance(one, Tensor))
        return part(check, inputs, room)

    def picked(x: Tensor) -> Tensor:
        return torch.ones(9)[x] * 2

    monkeypatch.setattr(GraphCheck, "part", noted)
    f, places = shapedispatch(picked, dims={"x": "M"}, hints=(64,), store=False), torch.arange(8)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    f(places)
    for _ in range(3):
        assert f.wait(force=True)
    assert len(here.tasks) == 1
    assert looked == []
    until_timed(f, places)
    assert looked
    assert all(torch.equal(one, places) for one in looked)


def test_choices_are_forgotten_once_where_it_is_found_out_what_is_written(here: BuiltHere) -> None:
    """Keys have another form from then on; each later look at one that was there before leaves the others alone."""

    def written(x: Tensor) -> Tensor:
        x.mul_(0.5)
        return x.sin() * 2

    here.paused = True
    f = shapedispatch(written, dims={"x": "M"}, hints=(64,), store=False)
    for _ in range(3):
        f(X.clone())
    f(X[:5].clone())
    assert f.cache_info().currsize == 2
    here.paused = False
    until_timed(f, X.clone())
    assert f.cache_info().currsize == 2
    assert f.cache_info().builds == 1


def test_all_of_a_process_can_be_forced(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the package's own function."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    f(X)
    assert package.wait(force=True)
    assert len(here.tasks) == 1


class Layer(torch.nn.Module):
    """Whose calls no key holds in full."""

    def forward(self, x: Tensor) -> Tensor:
        """Plain."""
        return x.sin() * 2


def test_where_no_call_can_be_made_of_a_key_the_next_one_orders_it(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a method: its ``self`` is in no key."""
    f = shapedispatch(Layer.forward, dims={"x": "M"}, hints=(64,), exact=True, store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    layer = Layer()
    f(layer, X)
    f.wait(force=True)
    assert here.tasks == []
    for _ in range(5):
        f(layer, X)
    assert len(here.tasks) == 2


def test_forcing_runs_nothing_and_leaves_the_random_state_alone(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is made of a key is traced."""
    ran: list[Tensor] = []

    def noted(x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            ran.append(x)
        return x.sin() * 2

    f = shapedispatch(noted, dims={"x": "M"}, hints=(64,), store=False)
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    f(X)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    f.wait(force=True)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(ran) == 1


class SteadyCosts(Costs):
    """Whatever a build has cost."""

    def note(self, **_: float | None) -> None:
        """Nothing changes."""


def no_dispatchers(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakKeyDictionary[Any, Any]:
    """Those that have met keys without a choice, from here on."""
    learning: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
    monkeypatch.setattr(exit_notes, "_waiting_keys", learning)
    return learning


def test_short_runs_come_to_a_build_together(here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each has spent at a key is noted at its end, and the next goes on from there."""
    learning = no_dispatchers(monkeypatch)
    for run in range(3):
        f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=tmp_path / "store")
        monkeypatch.setattr(f.core, "earn", lambda: 1.0)
        monkeypatch.setattr(f.core.orders(), "costs", SteadyCosts(here_s=1.0, child_s=0.0, cores=1))
        f(X)
        f(X)
        f(X)
        ((_, one),) = background.waiting_keys(f.core)
        assert one.spent_s >= 0.6 * run
        assert one.account.spent_s >= 0.6 * run
        assert len(here.tasks) == (run == 2)
        one.spent_s += 0.6
        assert f.core in learning
        exit_notes.note_what_was_spent()
        learning.clear()


def test_what_is_worth_little_is_not_noted(here: BuiltHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor what is settled; nor more than the end of a process may take."""
    no_dispatchers(monkeypatch)
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=tmp_path / "store")
    monkeypatch.setattr(f.core, "earn", lambda: 1.0)
    one, other = waiting(f, X), waiting(f, X[:5])
    exit_notes.note_what_was_spent()
    store = f.core.kernel_store.store
    assert store.rows(kind="missed") == []
    one.spent_s, other.spent_s = 1.0, 2.0
    seconds = iter((0.0, 0.0, 9.0))
    exit_notes.note_what_was_spent(lambda: next(seconds))
    (row,) = store.rows(kind="missed")
    assert row.config == "2.0"


@pytest.mark.parametrize("said", ['"much"', "-1", "[3]", "true", "1e999", None])
def test_what_a_store_says_was_spent_is_read_with_care(here: BuiltHere, tmp_path: Path, said: str | None) -> None:
    """Anything but seconds is none."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), store=tmp_path / "store")
    kept, key = f.core.kernel_store, f.core.backend.key((X,), {})
    kept.missed(key, X.device, 3.0)
    assert kept.spent_s(key, X.device) == 3.0
    (row,) = kept.store.rows(kind="missed")
    try:
        forged = Row.make(row.kernel, row.key, hard=row.hard, soft=row.soft, variant="", config=said, kind="missed")
    except BadRow:
        return  # nothing that a store holds says so
    kept.store.put(forged, instead=True)
    assert kept.spent_s(key, X.device) == 0.0


def test_where_no_process_can_be_started_calls_decide_by_themselves(
    here: BuiltHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait, and those that come."""
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(), store=False, variants=[Variant(added)])
    monkeypatch.setattr(f.core, "earn", lambda: 1e9)
    assert torch.equal(f(X), doubled(X))
    assert f.explain(X).origin == "learning"
    monkeypatch.setattr(f.core.orders(), "unable", "no more processes")
    assert torch.equal(f(X), doubled(X))
    assert not isinstance(f.core.table.peek(f.explain(X).key)[0].learner, Waiting)
    assert torch.equal(f(X[:5]), doubled(X[:5]))
    assert not isinstance(f.core.table.peek(f.explain(X[:5]).key)[0].learner, Waiting)
    assert here.tasks == []


@pytest.fixture
def store(tmp_path: Path) -> package.Store:
    """That of one user."""
    return package.Store(tmp_path / "store")


def with_two(store: package.Store, **settings: Any) -> Any:
    """A dispatcher of a supplied variant, which is there at once, and of a hint's build."""
    return shapedispatch(doubled, dims={"x": "M"}, hints=(64,), variants=[Variant(added)], store=store, **settings)


def chosen_of_less(here: BuiltHere, store: package.Store, **settings: Any) -> Any:
    """One that has chosen, and stored that, while its build is not there."""
    here.paused = True
    f = with_two(store, **settings)
    until_timed(f, X)
    assert {timing.variant for timing in f.explain(X).timings} == {"plain", "added"}
    return f


def until_all_are_timed(dispatcher: Any, *call: Any) -> None:
    """Call it until its choice is made of all three."""
    for _ in range(1000):
        if len(dispatcher.explain(*call).timings) == 3 and dispatcher.explain(*call).origin == "timed":
            return
        dispatcher(*call)
    raise AssertionError(dispatcher.explain(*call))


def test_what_is_chosen_before_a_build_is_there_does_not_stand_for_being_stored(
    here: BuiltHere, store: package.Store
) -> None:
    """The build is judged when it lands, as without a store, and that choice is what is stored then."""
    f = chosen_of_less(here, store)
    assert [row.undecided for row in store.rows(kind="choice")] == [MORE_TO_COME]
    here.paused = False
    until_all_are_timed(f, X)
    (row,) = store.rows(kind="choice")
    assert (row.undecided, len(row.timings)) == ("", 3)
    assert not [note for note in f.explain(X).notes if "stored" in note or MORE_TO_COME in note]


def test_another_process_begins_with_what_was_chosen_of_less_and_goes_on(here: BuiltHere, store: package.Store) -> None:
    """Its builds are judged too, when its calls have earned them."""
    best = chosen_of_less(here, store).explain(X).variant
    f = with_two(store)
    f(X)
    assert (f.explain(X).variant, f.explain(X).origin) == (best, "stored")
    assert f"{STORED_UNDECIDED}{MORE_TO_COME}" in f.explain(X).notes
    here.paused = False
    until_all_are_timed(f, X)
    assert [row.undecided for row in store.rows(kind="choice")] == [""]


def test_what_was_chosen_of_less_is_timed_again_where_learning_is_now(
    here: BuiltHere, store: package.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There all that there may be is built before anything is chosen."""
    chosen_of_less(here, store)
    monkeypatch.setenv("SHAPEDISPATCH_LEARN", "now")
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    package.settings.resolve.reset()
    f = with_two(store)
    until_all_are_timed(f, X)
    assert any(f"timed again: undecided there, {MORE_TO_COME}" in note for note in f.explain(X).notes)


def test_what_was_chosen_of_less_is_shared_with_no_bucket(here: BuiltHere, store: package.Store) -> None:
    """Its other calls would never see the build."""
    chosen_of_less(here, store, buckets={"M": "pow2"})
    f = with_two(store, buckets={"M": "pow2"})
    until_timed(f, X)
    here.paused = False
    until_all_are_timed(f, X)
    f(X[:7])
    assert f.explain(X[:7]).origin == "bucket"


@pytest.mark.filterwarnings("ignore:.*halved")
def test_what_is_left_alone_before_a_build_is_there_is_not_stored(here: BuiltHere, store: package.Store) -> None:
    """Nothing was chosen, then."""

    def halved(x: Tensor) -> Tensor:
        return x.sin() / 2

    here.paused = True
    f = shapedispatch(doubled, dims={"x": "M"}, hints=(64,), variants=[Variant(halved)], store=store)
    for _ in range(20):
        f(X)
    assert {refusal.variant for refusal in f.explain(X).refusals} == {"halved", "hint[M=64]"}
    assert store.rows(kind="choice") == []
