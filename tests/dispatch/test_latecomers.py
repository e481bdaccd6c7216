"""New keys where calls are learned in the background, which the path in C asks for: they are as without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Store, set_mode, shapedispatch
from shapedispatch.background import exit_notes
from shapedispatch.choices.neighbours import remember
from shapedispatch.dispatch import alike
from shapedispatch.dispatch.background import Waiting
from shapedispatch.dispatch.latecomers import Latecomers
from shapedispatch.dispatch.newcomers import Newcomers
from shapedispatch.hit import native
from shapedispatch.records import Choice
from shapedispatch.settings import resolve
from shapedispatch.store import kernel_store
from tests.built_here import BuiltHere, learning_here
from tests.rows import BUILD, calls_take, dispatched, rows, waves

pytestmark = [
    pytest.mark.operators_called,
    pytest.mark.skipif(native.module() is None, reason="C is not in use"),
]


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; a build is half of plain."""
    made = learning_here(monkeypatch)
    calls_take({"plain": 10.0, BUILD: 5.0}, monkeypatch)
    return made


@pytest.fixture
def asked(here: BuiltHere, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What came of each new key that C has asked for."""
    found: list[Any] = []
    for kind in (Latecomers, Newcomers):

        def noting(self: Any, *call: Any, answer: Callable[..., Any] = kind.__call__) -> Any:
            found.append(None)
            found[-1] = answer(self, *call)
            return found[-1]

        monkeypatch.setattr(kind, "__call__", noting)
    return found


def earn(f: Any, times: float) -> None:
    """How much must be spent from now on before anything is looked at or made."""
    f.core.earn = lambda: times
    for account in f.core.table.facts.accounts._known.values():
        account.next_s = times


def waits(f: Any) -> Any:
    """The dispatcher, when some sizes from 64 to 127 are known, and nothing is chosen."""
    earn(f, 1e9)
    for count in (70, 80, 90):
        f(rows(count))
    return f


def whole(f: Any) -> Any:
    """The dispatcher, when sizes from 64 to 127 have come to an end, and all is there that is made for them."""
    earn(f, 0.0)
    for count in (126, 127):
        for _ in range(120):
            f(rows(count))
    f(rows(120))
    earn(f, 1e9)
    for count in (*range(65, 90), *range(65, 90)):
        f(rows(count))
    return f


def of(f: Any, asked: list[Any], x: Tensor) -> list[Any]:
    """What C was given for this new call, whose answer is right."""
    asked.clear()
    misses = f.cache_info().misses
    assert torch.allclose(f(x), f.__wrapped__(x), atol=1e-5)
    assert f.cache_info().misses == misses + 1
    return asked


def test_a_new_key_waits_like_others(asked: list[Any]) -> None:
    """It is of their class, and says the same of itself."""
    f = waits(dispatched())
    (account,) = f.core.table.facts.accounts._known.values()
    (entry,) = of(f, asked, rows(101))
    assert entry in f.core.table.peek(f.core.backend.key((rows(101),), {}))
    assert isinstance(entry.learner, Waiting)
    assert entry.learner.account is account
    assert entry.any_state
    assert entry.learner.spent_s > 0
    choice = f.explain(rows(101))
    assert (choice.variant, choice.origin, choice.sizes) == ("plain", "learning", {"M": 101})
    asked.clear()
    hits, spent_s = f.cache_info().hits, entry.learner.spent_s
    f(rows(101))
    assert (f.cache_info().hits, asked) == (hits + 1, [])
    assert entry.learner.spent_s > spent_s


@pytest.mark.parametrize("until", [waits, whole])
def test_both_roads_remember_the_same(
    asked: list[Any], until: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Choices, and why each was a miss."""
    told = []
    for path in ("true", "false"):
        monkeypatch.setenv("SHAPEDISPATCH_HOTPATH", path)
        resolve.reset()
        asked.clear()
        f = until(dispatched())
        for count in range(60, 120):
            f(rows(count))
        assert any(asked) == (path == "true")
        known = [(c.variant, c.origin, c.sizes, c.key, c.new_because) for c in f.choices()]
        told.append((known, replace(f.cache_info(), builds=1)))
    assert told[0] == told[1]


@pytest.mark.parametrize(
    ("where", "change"),
    [
        ("key", {"known": True}),
        ("key", {"forced": True}),
        ("key", {"unfinished": True}),
        ("key", {"next_s": 0.0}),
        ("key", {"short": True, "class_s": 0.0}),
        ("class", {"short": True, "next_s": 0.0}),
        ("class", {"news": 1}),
        ("class", {"seen": True}),
        ("class", {"chosen": 1}),
    ],
)
def test_a_call_looks_closer_where_there_may_be_more(asked: list[Any], where: str, change: dict[str, Any]) -> None:
    """And where nothing has changed, and nothing is ordered, it does not."""
    f = waits(dispatched())
    (entry,) = of(f, asked, rows(101))
    account = entry.learner.account
    account.short = False
    assert entry.learner._nothing_is_new()
    account.next_s = change.pop("class_s", account.next_s)
    for name, value in change.items():
        setattr(entry.learner if where == "key" else account, name, value)
    assert not entry.learner._nothing_is_new()


def test_it_is_learned_when_it_has_earned_that(asked: list[Any]) -> None:
    """As any other key."""
    f = waits(dispatched())
    assert any(of(f, asked, rows(101)))
    earn(f, 0.0)
    for _ in range(120):
        f(rows(101))
    assert (f.explain(rows(101)).variant, f.explain(rows(101)).origin) == (BUILD, "timed")


def test_a_class_that_is_whole_gives_what_its_keys_have_come_to(asked: list[Any]) -> None:
    """Nothing waits there."""
    f = whole(dispatched())
    (entry,) = of(f, asked, rows(101))
    choice = f.explain(rows(101))
    assert (choice.variant, choice.origin, choice.new_because) == (BUILD, "nearest", ("sizes of x",))
    assert not isinstance(entry.learner, Waiting)


def test_a_class_that_is_whole_no_more_waits(asked: list[Any]) -> None:
    """Something is to be made for it again."""
    f = whole(dispatched())
    (account,) = f.core.table.facts.accounts._known.values()
    assert any(of(f, asked, rows(101)))
    account.short = True
    assert of(f, asked, rows(102))[:1] == [None]
    assert f.explain(rows(102)).origin == "learning"


def test_a_class_that_has_become_whole_is_asked(asked: list[Any]) -> None:
    """What waits there is no matter any more."""
    f = waits(dispatched())
    (account,) = f.core.table.facts.accounts._known.values()
    assert any(of(f, asked, rows(101)))
    account.seen, account.short, account.waits = True, False, False
    assert of(f, asked, rows(102)) == [None]


@pytest.mark.parametrize("facts", ["settled", "so_far"])
def test_what_another_key_has_come_to_is_heard_of(asked: list[Any], facts: str) -> None:
    """A new one may run that meanwhile."""
    f = waits(dispatched())
    assert any(of(f, asked, rows(101)))
    key = f.core.backend.key((rows(80),), {})
    remember(f.core, key, Choice("plain", "timed", {"M": 80}, key), so_far=facts == "so_far")
    assert of(f, asked, rows(102)) == [None]
    assert of(f, asked, rows(103)) == [None]  # nor is anything expected of calls near such a key


@pytest.mark.parametrize("until", [waits, whole])
def test_a_size_that_varies_for_the_first_time_is_noted(asked: list[Any], until: Callable[[Any], Any]) -> None:
    """There is more to make for the class."""
    f = until(dispatched())
    (account,) = f.core.table.facts.accounts._known.values()
    assert any(of(f, asked, rows(101)))
    account.short = False
    asked.clear()
    x = torch.linspace(-1, 1, 102 * 9).reshape(102, 9)
    assert torch.equal(f(x), waves(x))
    assert asked == [None]
    assert account.short


@pytest.mark.parametrize("until", [waits, whole])
def test_an_axis_that_is_marked_is_noted(asked: list[Any], until: Callable[[Any], Any]) -> None:
    """Whatever its size."""
    f = until(dispatched())
    (account,) = f.core.table.facts.accounts._known.values()
    assert any(of(f, asked, rows(101)))
    account.short, x = False, rows(102)
    x._dynamo_dynamic_indices = {1}  # type: ignore[attr-defined]  # as `mark_dynamic` does
    assert not any(of(f, asked, x))
    assert account.short


def test_a_call_that_does_not_fit_is_none(asked: list[Any]) -> None:
    """It is a bypass, as ever."""

    def adds(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * 2 + y[:1]

    f = shapedispatch(dims={"x": "M _", "y": "M _"}, hints={"M": (64,)}, store=False)(adds)
    earn(f, 1e9)
    for count in (70, 80, 90):
        f(rows(count), rows(count))
    asked.clear()
    f(rows(100), rows(100))
    assert any(asked)
    asked.clear()
    f(rows(64), rows(127))
    assert asked == [None]
    assert f.cache_info().bypasses == 1


def test_the_same_tensor_twice_is_another_class(asked: list[Any]) -> None:
    """Its key says so."""

    def adds(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * 2 + y

    f = shapedispatch(adds, store=False)
    earn(f, 1e9)
    for count in range(70, 80):
        x = rows(count)
        assert torch.equal(f(x, x), adds(x, x))
        assert torch.equal(f(x, rows(count)), adds(x, x))
    assert len(f.core.table.facts.accounts) == 2
    twice = [f.core.backend.key((x, x), {}) for x in map(rows, range(70, 80))]
    assert {choice.key for choice in f.choices()} >= set(twice)
    assert len(f.choices()) == 20


def test_a_tensor_that_is_inside_of_another_argument_is_told_exactly(asked: list[Any]) -> None:
    """Nothing is expected of calls that differ in its sizes."""

    def adds(x: Tensor, others: list[Tensor]) -> Tensor:
        return torch.sin(x) + others[0]

    f = shapedispatch(adds, store=False)
    earn(f, 1e9)
    for count in range(70, 80):
        x = rows(count)
        assert torch.equal(f(x, [x + 1]), adds(x, [x + 1]))
    assert asked == []


def test_what_is_stored_for_a_key_comes_first(asked: list[Any], tmp_path: Path) -> None:
    """Its choice is known, and only its build is missing."""
    store = Store(tmp_path / "store")
    first = dispatched(store=store)
    first.tune(rows(101))
    f = waits(dispatched(store=store))
    assert any(of(f, asked, rows(100)))
    asked.clear()
    assert torch.allclose(f(rows(101)), waves(rows(101)), atol=1e-5)
    assert asked == [None]
    assert f.explain(rows(101)).origin != "learning"


def test_a_key_whose_choice_is_stored_says_nothing_of_others(asked: list[Any], tmp_path: Path) -> None:
    """What is spent at those is noted when the process ends, which the first of them sees to."""
    store = Store(tmp_path / "store")
    dispatched(store=store).tune(rows(101))
    f = dispatched(store=store)
    earn(f, 1e9)
    f(rows(101))
    assert of(f, asked, rows(103)) == []
    assert f.core in exit_notes._waiting_keys
    assert all(of(f, asked, rows(105)))


def test_a_key_is_not_spelled_where_its_sizes_are_not_stored(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take longer than all else of a new key."""
    f = waits(dispatched(store=Store(tmp_path / "store")))

    def refused(key: Any) -> None:
        raise AssertionError(key)

    monkeypatch.setattr(kernel_store, "stored_text", refused)
    assert all([*of(f, asked, rows(101)), *of(f, asked, rows(103))])


def test_what_earlier_processes_have_spent_counts(asked: list[Any], tmp_path: Path) -> None:
    """For the key, and for its class, once."""
    store = Store(tmp_path / "store")
    f = waits(dispatched(store=store))
    (account,) = f.core.table.facts.accounts._known.values()
    f.core.kernel_store.missed(f.core.backend.key((rows(101),), {}), torch.device("cpu"), 50.0)
    (entry,) = of(f, asked, rows(101))
    assert 50.0 <= entry.learner.spent_s < 51.0
    assert (50.0 <= account.spent_s < 52.0, account.noted_s) == (True, 50.0)


@pytest.mark.parametrize("mode", ["frozen", "sealed", "off"])
def test_another_mode_decides_otherwise(asked: list[Any], mode: Any) -> None:
    """Nothing is learned under it."""
    f = waits(dispatched())
    with set_mode(mode, on_miss="plain"):
        asked.clear()
        assert torch.equal(f(rows(101)), waves(rows(101)))
    assert not any(asked)


@pytest.mark.parametrize("until", [waits, whole])
@pytest.mark.parametrize("change", ["unable", "ranks", "tuning", "forgotten", "overlaps"])
def test_what_is_to_be_asked_first_is(
    asked: list[Any], until: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """No process can be started any more, ranks decide together, this thread decides, keys have another form."""
    f, seen, holds = until(dispatched()), list[alike.Alike](), alike.Alike.holds
    monkeypatch.setattr(alike.Alike, "holds", lambda self: bool(seen.append(self)) or holds(self))
    assert all(of(f, asked, rows(101)))
    (one,) = seen
    assert holds(one)
    if change == "unable":
        f.core.orders().unable = "there is no Python"
    elif change == "ranks":
        monkeypatch.setattr(type(f.core), "ledger", lambda _: object())
    elif change == "tuning":
        monkeypatch.setattr(alike, "tuning_lock", SimpleNamespace(owned=lambda: True))
    elif change == "forgotten":
        f.cache_clear()
    else:
        f.core.backend.overlaps = True
    assert not holds(one)


def test_what_is_decided_now_is_expected_of_no_other(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no process can be started, nothing is learned in the background, and it may be so again."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    calls_take({"plain": 10.0, "hint[M=64]": 5.0}, monkeypatch, per_row=True)
    f = dispatched()
    f.core.orders().unable = "there is no Python"
    for count in (*range(65, 127), *range(65, 127)):
        for _ in range(3 if count % 8 == 0 or count < 90 else 0):
            f(rows(count))
    f(rows(101))
    f(rows(102))
    assert f.explain(rows(102)).origin == "nearest"
    assert asked == []


class Scaled(torch.nn.Module):
    """Has a number of its own."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        """Plain."""
        return x.sin() * self.by


def test_instances_of_a_module_are_answered_each_by_its_own(asked: list[Any]) -> None:
    """What waits runs plain with whatever ``self`` is given."""

    class Net(Scaled):
        pass

    Net.forward = shapedispatch(Scaled.forward, store=False)  # type: ignore[method-assign]
    one, other = Net(2.0), Net(3.0)
    earn(Net.forward, 1e9)
    for count in range(70, 80):
        for net in (one, other):
            assert torch.equal(net(rows(count)), Scaled.forward(net, rows(count)))
    assert any(asked)


def test_time_at_sizes_that_passed_earns_builds(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is entered stands for them, once."""
    monkeypatch.setattr("shapedispatch.online.repeats.ENTERING", 0.0)
    f = waits(dispatched())
    (account,) = f.core.table.facts.accounts._known.values()
    count = 2100
    while not f.core.fast_path.to_spare:
        f(rows(count := count + 1))
    passed = f.core.fast_path.to_spare
    for _ in range(passed):
        f(rows(count := count + 1))
    assert f.cache_info().bypasses == passed
    asked.clear()
    spent_s = account.spent_s
    f(rows(count := count + 1))
    (entry,) = asked
    assert account.spent_s - spent_s == pytest.approx(f.core.new_sizes.in_all_s(entry.learner.spent_s))
    assert account.spent_s - spent_s > 2 * entry.learner.spent_s
    spent_s, once_s = account.spent_s, entry.learner.spent_s
    f(rows(count))
    assert account.spent_s - spent_s == pytest.approx(entry.learner.spent_s - once_s)
