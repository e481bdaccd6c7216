"""New keys of a pool that is over, which the path in C asks for: they are what they would be without it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Store, Variant, set_mode, shapedispatch
from shapedispatch.dispatch import alike, newcomers
from shapedispatch.dispatch.newcomers import Newcomers
from shapedispatch.hit import native
from shapedispatch.online import repeats
from shapedispatch.settings import resolve
from shapedispatch.store import kernel_store
from tests.paths import taking
from tests.rows import BUILD, by_eight, calls_take, dispatched, rows, waves

pytestmark = pytest.mark.skipif(native.module() is None, reason="C is not in use")
SETTLING = range(65, 127)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What came of each new key that C has asked for."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    calls_take({"plain": 10.0, BUILD: 5.0, "other": 20.0}, monkeypatch, per_row=True)
    found: list[Any] = []
    answer = Newcomers.__call__

    def noting(self: Newcomers, *call: Any) -> Any:
        found.append(None)
        found[-1] = answer(self, *call)
        return found[-1]

    monkeypatch.setattr(Newcomers, "__call__", noting)
    return found


def settled(f: Any, of: Callable[[int], Tensor] = rows, plain: Callable[[Tensor], Tensor] = waves) -> Any:
    """The dispatcher, when sizes from 64 to 127 have come to an end; odd ones but few."""
    for count in (*SETTLING, *SETTLING):
        if count % 8 == 0 or count < 90:
            for _ in range(3):
                assert torch.allclose(f(of(count)), plain(of(count)), atol=1e-5)
    if f.core.fast_path is not None:
        f.core.fast_path.most_sights = repeats.MOST_SIGHTS
    return f


def the_key_is_new(f: Any, asked: list[Any], x: Tensor) -> Any:
    """What came of it where C asked for the entry; the answer is right."""
    asked.clear()
    misses = f.cache_info().misses
    answer = f(x)
    assert f.cache_info().misses == misses + 1
    assert torch.allclose(answer, f.__wrapped__(x), atol=1e-5)
    return asked


def test_a_new_key_runs_what_such_keys_have_come_to(asked: list[Any]) -> None:
    """And says the same of itself as any."""
    f = settled(dispatched())
    (entry,) = the_key_is_new(f, asked, rows(101))
    assert entry in f.core.table.peek(f.choices()[-1].key)
    choice = f.explain(rows(101))
    assert (choice.variant, choice.origin, choice.sizes) == (BUILD, "nearest", {"M": 101})
    assert choice.key == f.core.backend.key((rows(101),), {})
    assert choice.new_because == ("sizes of x",)
    hits = f.cache_info().hits
    asked.clear()
    f(rows(101))
    assert f.cache_info().hits == hits + 1
    assert not asked


@pytest.mark.parametrize("given", [{}, {"variants": [Variant(waves, name="other")]}], ids=["builds", "supplied"])
def test_both_roads_remember_the_same(asked: list[Any], monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    """Choices, what each is new because of, hits and misses; but that only C lets calls pass."""
    monkeypatch.setattr(repeats, "ENTERING", math.inf)
    told = []
    for path in ("true", "false"):
        monkeypatch.setenv("SHAPEDISPATCH_HOTPATH", path)
        resolve.reset()
        asked.clear()
        f = settled(dispatched(maxsize=80, **given))
        for count in range(90, 128):
            f(rows(count))
            f(torch.cat([rows(count), rows(count)], 1)[:, :8])  # which differs in strides
        assert any(asked) == (path == "true")
        told.append(([(c.variant, c.origin, c.sizes, c.key, c.new_because, c.notes) for c in f.choices()],
                     replace(f.cache_info(), builds=1)))  # fmt: skip
    assert told[0] == told[1]


@pytest.mark.parametrize(
    "x",
    [
        rows(101).double(),
        rows(101).requires_grad_(),
        torch.nn.Parameter(rows(101)),
        torch.cat([rows(102).flatten(), torch.zeros(1)])[1 : 1 + 101 * 8].view(101, 8),
        rows(101).reshape(8, 101).t(),
        rows(200),
    ],
    ids=["dtype", "gradient", "parameter", "alignment", "order", "octave"],
)
def test_what_differs_in_more_than_sizes_is_not_asked_for(asked: list[Any], x: Tensor) -> None:
    """Nothing is known of it."""
    f = settled(dispatched())
    asked.clear()
    assert torch.allclose(f(x), waves(x), atol=1e-5)
    assert not asked


def test_a_number_is_told_exactly(asked: list[Any]) -> None:
    """No size stands in it."""

    def times(x: Tensor, number: int) -> Tensor:
        return torch.sin(x) * number

    f = shapedispatch(dims={"x": "M _"}, hints={"M": (64,)}, store=False)(times)
    for count in (*SETTLING, *SETTLING):
        f(rows(count), 3)
    asked.clear()
    assert torch.allclose(f(rows(127), 4), times(rows(127), 4), atol=1e-5)
    assert not asked


def test_sizes_that_the_build_does_not_take_are_decided(asked: list[Any]) -> None:
    """By its guards: of other rows the function does something else."""
    f = dispatched(by_eight)
    for count in (*range(64, 128, 8), *range(64, 128, 8), *range(65, 80)) * 4:
        assert torch.allclose(f(rows(count)), by_eight(rows(count)), atol=1e-5)
    for count in range(80, 128):
        assert torch.allclose(f(rows(count)), by_eight(rows(count)), atol=1e-5)


SCALE = 2.0


def scaled(x: Tensor) -> Tensor:
    """Reads a global."""
    return torch.sin(x) * SCALE


def test_another_state_is_decided(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that has changed since."""
    f = settled(dispatched(scaled), plain=scaled)
    assert any(the_key_is_new(f, asked, rows(101)))
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    asked.clear()
    assert torch.allclose(f(rows(102)), torch.sin(rows(102)) * 3)
    assert asked == [None]


def test_a_build_that_has_left_runs_no_new_key(asked: list[Any]) -> None:
    """Nor one that is made again."""
    f = settled(dispatched())
    table = f.core.table
    with table.lock:
        for key in list(table._builds):
            table._pushed_out(key, table._builds.pop(key))
    assert the_key_is_new(f, asked, rows(101)) == [None]


def test_two_sizes_of_one_dim_are_none(asked: list[Any]) -> None:
    """A call that does not fit its declaration is a bypass."""

    def adds(x: Tensor, y: Tensor) -> Tensor:
        return torch.sin(x) * 2 + y[:1]

    f = shapedispatch(dims={"x": "M _", "y": "M _"}, hints={"M": (64,)}, store=False)(adds)
    for count in (*SETTLING, *SETTLING):
        f(rows(count), rows(count))
    asked.clear()
    f(rows(127), rows(127))
    assert any(asked)
    with pytest.warns(UserWarning, match="cannot be dispatched"):
        f(rows(64), rows(127))


def test_what_is_stored_for_a_key_comes_first(asked: list[Any], tmp_path: Path) -> None:
    """It was chosen for this very size."""
    store = Store(tmp_path / "store")
    first = dispatched(store=store)
    first.tune(rows(101))
    f = settled(dispatched(store=store))
    asked.clear()
    f(rows(101))
    assert asked == [None]
    assert f.explain(rows(101)).origin == "stored"


def test_a_key_is_not_spelled_where_its_sizes_are_not_stored(
    asked: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That would take longer than all else of a new key."""
    store = Store(tmp_path / "store")
    dispatched(store=store).tune(rows(101))
    f = settled(dispatched(store=store))
    asked.clear()
    monkeypatch.setattr(kernel_store, "stored_text", refused)
    f(rows(103))
    f(rows(105))
    assert None not in asked


def refused(key: Any) -> None:
    """What must not be called."""
    raise AssertionError(key)


@pytest.mark.parametrize("mode", ["frozen", "sealed", "off"])
def test_another_mode_decides_otherwise(asked: list[Any], mode: Any) -> None:
    """What was found under one says nothing of another."""
    f = settled(dispatched())
    with set_mode(mode, on_miss="plain"):
        asked.clear()
        assert torch.equal(f(rows(101)), waves(rows(101)))
    assert not any(asked)


def test_another_choice_of_its_kin_is_heard_of(asked: list[Any]) -> None:
    """What one key has come to alone may be what others on both sides are to run."""
    f = settled(dispatched())
    f.core.table.facts.settled["another kin"] = ()
    assert the_key_is_new(f, asked, rows(101)) == [None]
    assert any(the_key_is_new(f, asked, rows(102)))


def test_a_pool_that_goes_on_is_heard_of(asked: list[Any]) -> None:
    """It has another favourite, or none yet."""
    f = settled(dispatched())
    for family in f.core.table.facts.families._known.values():
        for pool in family.pools.values():
            pool.over = False
    assert the_key_is_new(f, asked, rows(101)) == [None]


def test_a_key_that_is_to_be_alone_is_decided(asked: list[Any]) -> None:
    """One that is called a lot has left its pool."""
    f = settled(dispatched())
    key = f.core.backend.key((rows(101),), {})
    for family in f.core.table.facts.families._known.values():
        family.alone.add(key)
    assert the_key_is_new(f, asked, rows(101)) == [None]


@pytest.mark.parametrize("change", ["a ledger", "a capture", "tuning", "buckets"])
def test_what_is_to_be_asked_first_is(asked: list[Any], monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Ranks' common decisions, somebody's recording, a contest of this very thread, rules of buckets."""
    f, seen, stands = settled(dispatched()), list[Newcomers](), Newcomers._stands
    monkeypatch.setattr(Newcomers, "_stands", lambda self: bool(seen.append(self)) or stands(self))
    assert all(the_key_is_new(f, asked, rows(101)))
    (one,) = seen
    assert stands(one)
    if change == "a ledger":
        monkeypatch.setattr(type(one.core), "ledger", lambda _: object())
    elif change == "a capture":
        monkeypatch.setattr(newcomers, "capturing_anything", lambda: True)
    elif change == "tuning":
        monkeypatch.setattr(alike, "tuning_lock", SimpleNamespace(owned=lambda: True))
    else:
        one.facts.buckets["a bucket"] = True
    assert not stands(one)


def test_what_fails_is_decided_as_ever(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """And an interrupt goes through."""
    f = settled(dispatched())

    def fails(*call: Any) -> Any:
        raise ValueError

    monkeypatch.setattr(type(f.core.table), "admit", fails)
    assert the_key_is_new(f, asked, rows(101)) == [None]

    def interrupted(*call: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(f.core.table), "admit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        f(rows(102))


def test_nothing_is_asked_for_once_all_is_forgotten(asked: list[Any]) -> None:
    """`cache_clear` lets go of what was found."""
    f = settled(dispatched())
    f.cache_clear()
    asked.clear()
    f(rows(101))
    assert not asked


def test_a_call_that_passes_is_answered_and_not_published(asked: list[Any]) -> None:
    """By what its kin run, whose guards are asked; it is a miss. One that comes again is entered."""
    with taking("c"):
        f = settled(dispatched())
        known, misses, f.core.fast_path.to_pass = len(f.choices()), f.cache_info().misses, 3
        asked.clear()
        assert torch.allclose(f(rows(101)), waves(rows(101)), atol=1e-5)
        (entry,) = asked
        assert entry.choice.variant == BUILD
        assert (len(f.choices()), f.cache_info().misses, f.core.fast_path.to_pass) == (known, misses + 1, 2)
        f(rows(101))
        assert (len(f.choices()), f.core.fast_path.to_pass) == (known + 1, 2)
        f.core.fast_path.to_pass = 0
        f(rows(103))
        assert (len(f.choices()), f.core.fast_path.to_pass) == (known + 2, 0)


SCALE = 2.0


def branching(x: Tensor) -> Tensor:
    """It goes by sizes, strides and a global."""
    y = torch.sin(x) * SCALE
    return y + 1 if x.is_contiguous() and x.shape[0] % 3 else y * y


def test_what_passes_is_plains(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """At sizes with other strides, of which guards want others, and where a global has changed."""
    with taking("c"):
        f = settled(dispatched(branching), plain=branching)
        path = f.core.fast_path
        for number, count in enumerate([*range(65, 127)] * 2):
            monkeypatch.setattr("tests.dispatch.test_newcomers.SCALE", 3.0 if number > 62 and number % 5 == 0 else 2.0)
            path.to_pass = 9
            x = rows(2 * count)[::2] if number % 4 == 0 else rows(count)
            torch.testing.assert_close(f(x), branching(x), rtol=1e-4, atol=1e-5)
        assert path.passed > 20


@pytest.mark.parametrize("takes", [True, False])
def test_of_keys_that_take_turns_the_favourites_guards_are_asked(
    asked: list[Any], takes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their entries name no build: whose turn it is runs any of them, and what passes takes none."""
    made: list[Newcomers] = []
    answer = Newcomers.__call__
    monkeypatch.setattr(Newcomers, "__call__", lambda self, *call: (made.append(self), answer(self, *call))[1])
    f = settled(dispatched())
    f(rows(101))
    turns = SimpleNamespace(is_current=lambda: True, serves=lambda *call: True)
    beside = replace(made[-1], shared=turns, found=replace(made[-1].found, build=None))
    monkeypatch.setattr(f.core.backend, "serves", lambda build, *call: takes and build is made[-1].build)
    assert beside((rows(103),), {}, None) is (beside.found if takes else None)


def test_where_bits_are_to_repeat_none_passes(asked: list[Any]) -> None:
    """How many do is a matter of the time that they take."""
    with taking("c"):
        f = settled(dispatched())
        f.core.fast_path.to_pass = 3
        torch.use_deterministic_algorithms(True)
        try:
            assert torch.allclose(f(rows(101)), waves(rows(101)), atol=1e-5)
        finally:
            torch.use_deterministic_algorithms(False)
        assert f.core.fast_path.to_pass == 3


@pytest.mark.parametrize("change", ["guards", "favourite"])
def test_a_call_passes_only_where_its_kin_would_be_answered_so(
    asked: list[Any], change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it is decided like any other."""
    with taking("c"):
        f = settled(dispatched())
        if change == "guards":
            monkeypatch.setattr(f.core.backend, "serves", lambda *call: False)
        else:
            for family in f.core.table.facts.families._known.values():
                for pool in family.pools.values():
                    pool.favourite = "plain"
        known, f.core.fast_path.to_pass = len(f.choices()), 3
        asked.clear()
        assert torch.allclose(f(rows(101)), waves(rows(101)), atol=1e-5)
        assert asked == [None]
        assert len(f.choices()) == known + 1
