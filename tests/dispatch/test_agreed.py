"""A miss where ranks agree: what runs is what all of them run, whatever is found out about it here."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import MissError, Variant, set_mode, shapedispatch, sync
from shapedispatch.dispatch import dispatcher as room
from shapedispatch.dispatch.agreed import _code
from shapedispatch.functions.builder import MOST_STATES
from shapedispatch.ranks.ledger import Ledger
from shapedispatch.records import STATE_CHANGED
from shapedispatch.store.rows import Row
from tests.helpers import Ladder, no_time
from tests.ranks.job import Job

pytestmark = pytest.mark.operators_called


class Scaled(nn.Module):
    """By a number of its own."""

    scale = 0

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise."""
        return x * self.scale


class Others:
    """The second rank of a job of two, whose first one is this process."""

    def __init__(self, job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
        self.job = job
        for place in ("dispatch.dispatcher", "api.registry"):
            monkeypatch.setattr(f"shapedispatch.{place}.agreement", job.ranks[0])
        monkeypatch.setattr(room, "_grouped", lambda: True)

    def ledger(self, dispatcher: Any) -> Ledger:
        """Its ledger of a dispatcher."""
        core = dispatcher.core
        found = self.job.ranks[1].ledger(core.backend.name, core._identity, core.settings.margin)
        assert found is not None
        return found

    def sync(self) -> Any:
        """Both ranks at once."""
        ours, _ = self.job.run(lambda: sync(timeout=10), lambda: self.job.ranks[1].exchange(None, 10))
        assert not isinstance(ours, BaseException), ours
        return ours


@pytest.fixture
def others(monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    """Two ranks; every key is this one's share."""
    monkeypatch.setattr("shapedispatch.ranks.ledger.share", lambda *_: 0)
    return Others(Job(2), monkeypatch)


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Others]:
    """Two ranks; every key is the other one's share."""
    monkeypatch.setattr("shapedispatch.ranks.ledger.share", lambda *_: 1)
    return Others(Job(2), monkeypatch)


RAN: list[str] = []


def plain(x: Tensor) -> Tensor:
    """Notes that it ran."""
    RAN.append("plain")
    return x * 2


def fused(x: Tensor) -> Tensor:
    """The same."""
    RAN.append("fused")
    return x + x


def dispatched(timer: Any = Ladder, **given: Any) -> Any:
    """The last variant is the fastest."""
    variants = [Variant(fused, name="fused")]
    given = {"hints": (), "variants": variants, "store": False, "name": "agreed", "mutates": (), **given}
    one = shapedispatch(**given)(plain)
    one.core.timer_for = lambda *_: timer()
    return one


def ran(one: Any, *args: Any) -> str:
    """What a call of it has run at last."""
    RAN.clear()
    assert torch.equal(one(*args), args[0] * 2)
    return RAN[-1]


X = torch.arange(6.0)


def test_what_is_best_here_does_not_run_before_the_others_know(others: Others) -> None:
    """It is found out at the first miss, and runs from the exchange on."""
    one = dispatched()
    assert [ran(one, X) for _ in range(3)] == ["plain"] * 3
    assert one.cache_info().timings == 1
    assert "sync()" in one.explain(X).notes[-1]
    switched = others.sync()
    assert [(choice.variant, choice.origin, dict(choice.sizes)) for choice in switched] == [
        ("fused", "agreed", {"x.0": 6})
    ]
    assert one.explain(X).variant == "fused"
    assert ran(one, X) == "fused"
    assert {timing.variant for timing in one.explain(X).timings} == {"plain", "fused"}


def test_a_share_of_another_rank_is_not_learned_here(theirs: Others) -> None:
    """It runs plain, and what the other has found from the exchange on."""
    one = dispatched(no_time)
    assert ran(one, X) == "plain"
    (text,) = one.core.ledger().news
    theirs.ledger(one).propose(text, {"plain": 9.0, "fused": 1.0}, {}, {"fused": ""})
    theirs.sync()
    assert ran(one, X) == "fused"


def test_that_plain_is_best_is_said(others: Others) -> None:
    """With the means of the ranks' times."""
    one = dispatched(variants=[Variant(lambda x: x * 2 + 0, name="slow")])
    one.core.timer_for = lambda *_: Backwards()
    one(X)
    others.sync()
    one(X)
    choice = one.explain(X)
    assert (choice.variant, choice.origin) == ("plain", "agreed")
    assert [timing.repeats for timing in choice.timings] == [1, 1]


class Backwards(Ladder):
    """Plain is the fastest."""

    def samples_us(self, fn: Any, count: int) -> list[float]:
        """The other way round."""
        return [1e7 / took_us for took_us in super().samples_us(fn, count)]


def test_what_gives_other_numbers_here_is_not_run_here(theirs: Others) -> None:
    """Although another rank has elected it: it is told, and then no rank runs it."""
    one = dispatched(no_time, variants=[Variant(lambda x: x * 3, name="fused")])
    assert ran(one, X) == "plain"
    (text,) = one.core.ledger().news
    theirs.ledger(one).propose(text, {"plain": 9.0, "fused": 1.0}, {}, {"fused": ""})
    theirs.sync()
    assert ran(one, X) == "plain"
    assert "gives other numbers" in one.core.ledger().news[text].failed["fused"]
    theirs.sync()
    assert theirs.ledger(one).meet(text).runs == "plain"


def test_what_was_chosen_before_there_was_a_group_is_told_and_does_not_run_on(
    others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others may have chosen otherwise."""
    monkeypatch.setattr(room, "_grouped", lambda: False)
    one = dispatched()
    one(X)
    assert ran(one, X) == "fused"
    monkeypatch.setattr(room, "_grouped", lambda: True)
    ran(one, X[:4])  # the first miss with a group
    assert ran(one, X) == "plain"
    others.sync()
    others.sync()
    assert ran(one, X) == "fused"


def test_tune_proposes_and_changes_nothing(theirs: Others) -> None:
    """It returns what it has found."""
    one = dispatched()
    choice = one.tune(X)
    assert (choice.variant, choice.origin) == ("fused", "timed")
    assert "sync()" in choice.notes[-1]
    assert ran(one, X) == "plain"
    theirs.sync()
    assert ran(one, X) == "fused"


@pytest.mark.parametrize("settings", [{"judge": "online"}, {"learn": "background"}])
def test_no_real_call_is_a_sample(others: Others, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would differ from the other ranks' calls, however choices are judged and learned otherwise."""
    for name, value in settings.items():
        monkeypatch.setenv(f"SHAPEDISPATCH_{name.upper()}", value)
    one = dispatched()
    assert [ran(one, X) for _ in range(20)] == ["plain"] * 20
    others.sync()
    assert [ran(one, X) for _ in range(20)] == ["fused"] * 20


def test_a_stored_choice_is_told_and_not_taken(theirs: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others may have none; nothing is timed for it again."""
    monkeypatch.setattr(room, "_grouped", lambda: False)
    ran(dispatched(store=True), X)
    monkeypatch.setattr(room, "_grouped", lambda: True)
    one = dispatched(no_time, store=True)
    assert ran(one, X) == "plain"
    theirs.sync()
    theirs.sync()
    assert ran(one, X) == "fused"


def test_an_undecided_choice_that_is_stored_is_timed_again(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call of a rank is a sample, so that nothing would verify it later."""
    monkeypatch.setattr(room, "_grouped", lambda: False)
    ran(dispatched(store=True), X)
    monkeypatch.setattr(room, "_grouped", lambda: True)
    one = dispatched(store=True)
    store = one.core.kernel_store.store
    (row,) = store.rows(kind="choice")
    store.prune(kernel=row.kernel)
    store.put(Row.make(row.kernel, row.key, hard=row.hard, soft=row.soft, variant="plain", undecided="2 samples"))
    ran(one, X)
    assert one.cache_info().timings == 1


def test_frozen_it_learns_nothing(others: Others) -> None:
    """And what `on_miss` says of an unknown shape stands."""
    one = dispatched(no_time)
    with set_mode("frozen"):
        assert ran(one, X) == "plain"
    with set_mode("frozen", on_miss="error"), pytest.raises(MissError, match="no choice is known"):
        one(X[:3])


def test_alone_is_as_without_a_group(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the setting."""
    monkeypatch.setenv("SHAPEDISPATCH_RANKS", "alone")
    one = dispatched()
    one(X)
    assert ran(one, X) == "fused"
    assert one.explain(X).origin == "timed"


def test_an_unseen_call_is_explained_by_what_is_agreed(others: Others) -> None:
    """What would run is what the ranks run, and not what is stored."""
    one = dispatched()
    assert (one.explain(X).variant, one.explain(X).origin) == ("plain", "unseen")
    one(X)
    others.sync()
    one.cache_clear()
    assert (one.explain(X).variant, one.explain(X).origin) == ("fused", "agreed")


def test_a_choice_that_left_is_the_same_again(others: Others) -> None:
    """A rank whose table is too small runs what the others run."""
    one = dispatched(maxsize=1)
    one(X)
    others.sync()
    assert [ran(one, X), ran(one, X[:3]), ran(one, X)] == ["fused", "plain", "fused"]


def test_a_build_is_made_again_however_often_it_leaves(others: Others) -> None:
    """Other ranks run it, too."""
    one = dispatched()
    one(X)
    table = one.core.table
    for calls in (1, 2):
        table._departures.left("a build", calls)
    assert table.why_not_again("a build") is None
    table.remade = False
    assert "twice" in str(table.why_not_again("a build"))


def test_a_module_is_not_left_to_its_children_by_one_rank_alone(others: Others) -> None:
    """The others, which do not learn this call, would go on with the whole of it."""

    def untraceable(x: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return x * 2

    one = shapedispatch(exact=True, store=False, name="whole")(untraceable)
    one.core.hand_on = lambda receiver: pytest.fail("it was left to its children")
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        one(X)


def test_a_module_is_not_set_apart_by_one_rank_alone(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others, whose modules have no such state, would ask for what this one's shared dispatcher runs."""
    one = shapedispatch(Scaled(), hints=(), exact=True, store=False, name="layer")
    monkeypatch.setattr(one.forward.core, "set_apart", lambda module: pytest.fail("it was set apart"))
    one.forward.core.timer_for = lambda *_: Ladder()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for number in range(MOST_STATES + 2):
            one.scale = number
            refusals = one.forward.tune(X).refusals
    assert any(STATE_CHANGED in refusal.reasons[0] for refusal in refusals)


def test_a_function_that_raises_raises(others: Others) -> None:
    """As alone."""

    def raising(x: Tensor) -> Tensor:
        raise ZeroDivisionError("mine")

    one = shapedispatch(hints=(), variants=[Variant(fused, name="fused")], store=False, name="raising")(raising)
    with pytest.raises(ZeroDivisionError, match="mine"):
        one(X)


def test_code_is_compared_without_the_index_of_a_device(others: Others) -> None:
    """Each rank has a device of its own."""

    class Build:
        def __init__(self, text: str) -> None:
            self.identity = lambda: text

        def release(self) -> None:
            """Nothing to let go."""

    one = dispatched()
    one(X)
    key = one.explain(X).key
    (entry,) = one.core.table.peek(key)
    ctx = one.core.ctx(key, (X,), {})
    codes = []
    for text in (
        "device='cuda:0' stream0 DeviceGuard(0)",
        "device='cuda:1' stream1 DeviceGuard(1)",
        "size 1",
        "size 2",
    ):
        one.core.table.hold("slot", Build(text))
        codes.append(_code(ctx, replace(entry, build="slot")))
    assert codes[0] == codes[1]
    assert len(set(codes)) == 3
