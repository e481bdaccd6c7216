"""Keys that were never seen, and are decided by what others like them have shown."""

from __future__ import annotations

import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import Store, Variant
from shapedispatch.autotune import worker
from shapedispatch.choices import learning
from shapedispatch.functions.builder import Builder
from shapedispatch.functions.checks.graph_check import Verdict
from shapedispatch.hit import native
from shapedispatch.hit.call import HitPath
from shapedispatch.online import pool as room
from shapedispatch.online.pairs import Pairs
from tests.rows import Late, by_eight, calls_take, dispatched, rows, waves


@pytest.fixture
def us(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What a variant takes a row, in microseconds: the build half of plain."""
    made = {"plain": 10.0, "hint[M=64]": 5.0, "other": 20.0}
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    calls_take(made, monkeypatch, per_row=True)
    return made


def learn(f: Any, *counts: int) -> None:
    """Call it at these sizes until each is settled."""
    for count in counts:
        for _ in range(160):
            f(rows(count))
        assert f.explain(rows(count)).origin == "timed"


def test_a_build_is_taken_over_between_two_sizes_where_it_won(us: dict[str, float], offers: list[int]) -> None:
    """Without an offer, and its answer is plain's."""
    f = dispatched()
    learn(f, 80, 120)
    offers.clear()
    assert torch.allclose(f(rows(100)), waves(rows(100)))
    choice = f.explain(rows(100))
    assert (choice.variant, choice.origin, choice.sizes["M"]) == ("hint[M=64]", "nearest", 100)
    assert choice.route
    assert offers == []


@pytest.fixture
def offers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts offers."""
    from shapedispatch.functions.backend import TorchFunction

    made: list[int] = []
    offer = TorchFunction.offer

    def counted(self: Any, *args: Any, **kwargs: Any) -> Any:
        made.append(1)
        return offer(self, *args, **kwargs)

    monkeypatch.setattr(TorchFunction, "offer", counted)
    return made


def test_sizes_that_the_build_was_not_made_for_are_decided(us: dict[str, float]) -> None:
    """By its guards: of other rows the function does something else."""
    f = dispatched(by_eight)
    learn(f, 80, 120)
    assert torch.allclose(f(rows(97)), torch.cos(rows(97)))
    assert torch.allclose(f(rows(96)), waves(rows(96)), atol=1e-5)


SCALE = 2.0


def scaled(x: Tensor) -> Tensor:
    """Reads a global."""
    return torch.sin(x) * SCALE


def test_another_state_is_decided(us: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """A global that has changed since."""
    f = dispatched(scaled)
    learn(f, 80, 120)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert torch.allclose(f(rows(100)), torch.sin(rows(100)) * 3)


def test_a_build_that_has_left_is_not_taken_over(us: dict[str, float]) -> None:
    """It is made again, or plain runs."""
    f = dispatched()
    learn(f, 80, 120)
    table = f.core.table
    with table.lock:
        for key in list(table._builds):
            table._pushed_out(key, table._builds.pop(key))
    assert torch.allclose(f(rows(100)), waves(rows(100)))


def test_what_is_stored_for_a_key_comes_first(us: dict[str, float], tmp_path: Path) -> None:
    """It was chosen for this very size."""
    other = Variant(waves, name="other")
    store = Store(tmp_path / "store")
    us["other"] = 1.0
    learn(dispatched(variants=[other], store=store), 100)
    us["other"] = 20.0
    again = dispatched(variants=[other], store=store)
    learn(again, 80, 120)
    again(rows(100))
    assert again.explain(rows(100)).variant == "other"


def test_a_key_that_has_earned_more_is_decided(us: dict[str, float], offers: list[int]) -> None:
    """What is known of others was chosen among less than it is to have."""
    f = dispatched()
    learn(f, 80, 120)
    before = len(offers)
    f.core.table.facts.earned[f.core.backend.key((rows(100),), {})] = True
    f(rows(100))
    f(rows(101))
    assert len(offers) == before + 1


def test_where_variants_are_tried_in_a_worker_none_is_taken_over(
    us: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is tried there for each key, before it may run here."""
    f = dispatched()
    learn(f, 80, 120)
    f.core.settings = dataclasses.replace(f.core.settings, isolate=True)
    tried: list[str] = []
    monkeypatch.setattr(worker.Isolation, "why_not", lambda self, name, request: tried.append(name) or "not here")
    f(rows(100))
    assert "hint[M=64]" in tried
    assert f.explain(rows(100)).variant == "plain"


def test_a_call_that_fits_no_declaration_runs_plain(us: dict[str, float]) -> None:
    """As ever, and says so."""
    f = dispatched()
    learn(f, 80, 120)
    with pytest.warns(UserWarning, match="cannot be dispatched"):
        f(torch.ones(3, 4, 5))


def test_a_supplied_variant_is_compared_at_every_key(us: dict[str, float]) -> None:
    """Nothing says that it is right at another size."""
    us["wrong at 100"] = 1.0

    def wrong_at_100(x: Tensor) -> Tensor:
        return waves(x) + (len(x) == 100)

    f = dispatched(hints=(), variants=[Variant(wrong_at_100, name="wrong at 100")])
    learn(f, 80, 120)
    assert f.explain(rows(120)).variant == "wrong at 100"
    with pytest.warns(UserWarning, match="wrong at 100 was refused"):
        assert torch.equal(f(rows(100)), waves(rows(100)))


def test_a_build_is_compared_once_a_class(us: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its graph vouches for its numbers; what nothing vouches for is compared at every key."""
    asked: list[list[str]] = []
    checked = learning.checked

    def noting(candidates: Any, *given: Any) -> Any:
        asked.append([one.name for one in candidates])
        return checked(candidates, *given)

    monkeypatch.setattr(learning, "checked", noting)
    us.update({"plain": 1.0, "hint[M=64]": 0.5, "other": 1.1})  # so little that a few samples may be afforded
    f = dispatched()
    learn(f, 80, 300)
    assert asked == [["plain", "hint[M=64]"]]
    asked.clear()
    f = dispatched(variants=[Variant(waves, name="other")])
    learn(f, 80, 300)
    assert asked == [["plain", "hint[M=64]", "other"], ["plain", "other"]]


def test_a_build_that_was_made_again_is_compared_again(us: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another one: what the function reads has changed."""
    asked: list[list[str]] = []
    checked = learning.checked
    monkeypatch.setattr(learning, "checked", lambda given, *more: (asked.append(given), checked(given, *more))[1])
    us.update({"plain": 1.0, "hint[M=64]": 0.5})
    f = dispatched()
    learn(f, 80)
    table = f.core.table
    with table.lock:
        for key in list(table._builds):
            table._pushed_out(key, table._builds.pop(key))
    learn(f, 300)
    assert [len(given) for given in asked] == [2, 2]


def test_a_build_that_no_graph_vouches_for_is_compared_at_every_key(
    us: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it gives at one size says little of another."""
    asked: list[int] = []
    checked = learning.checked
    monkeypatch.setattr(learning, "checked", lambda *given: (asked.append(1), checked(*given))[1])
    monkeypatch.setattr(Builder, "verdict", lambda *_: Verdict(unjudged="nobody has looked"))
    us.update({"plain": 1.0, "hint[M=64]": 0.5})
    learn(dispatched(), 80, 300)
    assert asked == [1, 1]


def test_a_build_that_no_graph_vouches_for_is_no_matter_of_others(
    us: dict[str, float], no_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared at each key, and no key runs it for what another has found."""
    monkeypatch.setattr(Builder, "verdict", lambda *_: Verdict(unjudged="nobody has looked"))
    f = dispatched()
    few(f, range(65, 80))
    assert not f.core.table.facts.families


# Keys of few calls.


def few(f: Any, counts: range, calls: int = 2) -> None:
    """A few calls of each of many sizes, each right."""
    for count in counts:
        for _ in range(calls):
            assert torch.allclose(f(rows(count)), waves(rows(count)), atol=1e-5)


def the_pool(f: Any) -> room.Pool:
    """What its keys find together, of one octave."""
    families = f.core.table.facts.families._known.values()
    (pool,) = [pool for family in families for pool in family.pools.values() if pool.entries]
    return pool


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be spent to see what is right for a key."""
    monkeypatch.setattr(room.Pool, "affords", lambda self: not self.entries)


def test_keys_of_few_calls_find_together_what_is_best(us: dict[str, float], no_room: None, offers: list[int]) -> None:
    """None of them has the calls that a contest takes; and hardly any needs an offer."""
    f = dispatched()
    few(f, range(65, 127))
    assert {f.explain(rows(count)).variant for count in range(110, 127)} == {"hint[M=64]"}
    assert len(offers) <= 4
    few(f, range(66, 127), calls=1)
    assert {f.explain(rows(count)).origin for count in range(70, 127)} == {"nearest"}


def test_what_a_device_tells_late_is_waited_for(
    us: dict[str, float], no_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key that has given a pair, and makes no other sample, learns what the pair took all the same."""
    calls_take(us, monkeypatch, per_row=True, kind=Late)
    f = dispatched()
    few(f, range(65, 127), calls=4)
    assert {f.explain(rows(count)).variant for count in range(110, 127)} == {"hint[M=64]"}
    assert {f.explain(rows(count)).origin for count in range(110, 127)} == {"nearest"}


@pytest.fixture
def in_python(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each call that C does not answer."""
    found: list[int] = []
    call = HitPath.call

    def noting(self: Any, args: tuple[Any, ...], *more: Any) -> Any:
        found.append(len(args[0]))
        return call(self, args, *more)

    monkeypatch.setattr(HitPath, "call", noting)
    return found


@pytest.mark.skipif(native.module() is None, reason="C is not in use")
def test_what_is_known_at_sight_is_answered_in_c_from_the_first_call_or_the_second(
    us: dict[str, float], no_room: None, in_python: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where keys have come to an end, or run what is best so far."""
    f = dispatched()
    few(f, range(65, 80))
    pool = the_pool(f)
    monkeypatch.setattr(Pairs, "wanted", lambda self, names: [])
    for over in (False, True):
        pool.over = over
        f(rows(90 + over))  # what is known of it is known of others
        in_python.clear()
        count = 100 + over
        f(rows(count))
        f.core.fast_path.left = 0  # no hit has a turn
        for _ in range(10):
            f(rows(count))
        assert f.explain(rows(count)).origin == ("nearest" if over else "learning")
        assert f.explain(rows(count)).variant == "hint[M=64]"
        assert not in_python
        (entry,) = f.core.table.peek(next(iter(f.core.table.newest(1))))
        assert entry.run is not entry.learner


def test_keys_are_told_of_another_favourite(
    us: dict[str, float], no_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their hits ask nobody."""
    f = dispatched()
    few(f, range(65, 80))
    pool = the_pool(f)
    pool.over = False
    with monkeypatch.context() as nothing_wanted:
        nothing_wanted.setattr(Pairs, "wanted", lambda self, names: [])
        few(f, range(100, 102))
    assert f.explain(rows(100)).variant == "hint[M=64]"
    for _ in range(40):
        pool.gave([("hint[M=64]", 3.0, False)])
    few(f, range(100, 102))
    assert pool.favourite == "plain"
    assert f.explain(rows(100)).variant == "plain"


def test_a_key_that_runs_plain_for_want_of_time_gives_pairs_when_there_is_some(
    us: dict[str, float], no_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though nothing leads yet: it would run plain until it has earned to be learned alone."""
    f = dispatched()
    few(f, range(65, 70))
    pool = the_pool(f)
    pool.over, pool.favourite, pool.family.check_us = False, None, 1e9
    with monkeypatch.context() as no_time:
        no_time.setattr(room.Family, "affords", lambda self, cost_us: False)
        few(f, range(100, 101))
    assert f.explain(rows(100)).variant == "plain"
    few(f, range(100, 101), calls=100)
    assert f.explain(rows(100)).variant == "hint[M=64]"


def test_a_build_that_raises_at_a_turn_is_answered_by_plain(
    us: dict[str, float], no_room: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at any other hit of a key that follows."""
    f = dispatched()
    few(f, range(65, 80))
    pool = the_pool(f)
    pool.over = False
    monkeypatch.setattr(Pairs, "wanted", lambda self, names: [])
    few(f, range(100, 101), calls=1)
    ((entry,),) = [f.core.table.peek(key) for key in f.core.table.newest(1)]

    def raises(*args: Any) -> Any:
        raise RuntimeError("no more")

    entry.learner.run = entry.run = raises
    monkeypatch.setattr(f.core.turns, "due", lambda: True)
    assert torch.equal(f(rows(100)), waves(rows(100)))
    if f.core.fast_path is not None:
        f.core.fast_path.left = 1
    assert torch.equal(f(rows(100)), waves(rows(100)))


def test_a_favourite_whose_build_has_left_runs_no_more(us: dict[str, float], no_room: None) -> None:
    """What was compiled has been let go."""
    f = dispatched()
    few(f, range(65, 80))
    pool = the_pool(f)
    entry, table = pool.entries["hint[M=64]"], f.core.table
    few(f, range(110, 111))
    assert f.explain(rows(110)).variant == "hint[M=64]"
    with table.lock:
        table._pushed_out(entry.build, table._builds.pop(entry.build))
    f.tune(rows(66))  # makes it anew
    assert table.build(entry.build) is not None
    entry.run = None if entry.run is None else lambda *_: pytest.fail("it has left")
    few(f, range(90, 100))


def test_plain_is_what_they_come_to_where_it_is_best(us: dict[str, float], no_room: None) -> None:
    """And then no call is a sample."""
    us["hint[M=64]"] = 30.0
    f = dispatched()
    few(f, range(65, 127))
    few(f, range(65, 127), calls=1)
    found = [f.explain(rows(count)) for count in range(70, 127)]
    assert {(choice.variant, choice.origin) for choice in found} == {("plain", "nearest")}


def test_a_key_that_is_called_a_lot_is_learned_alone(us: dict[str, float], no_room: None) -> None:
    """It has earned it."""
    us["other"] = 1.0
    f = dispatched(hints=(), variants=[Variant(waves, name="other")])
    few(f, range(65, 127))
    assert f.explain(rows(100)).variant == "plain"
    pool = the_pool(f)
    pool.family.check_us = 1e-6
    few(f, range(100, 101), calls=160)
    assert (f.explain(rows(100)).variant, f.explain(rows(100)).origin) == ("other", "timed")
    assert f.explain(rows(99)).variant == "plain"


def test_a_key_of_another_octave_that_is_called_a_lot_is_learned_alone(us: dict[str, float], no_room: None) -> None:
    """Though its octave has come to an end: a supplied variant may be better there."""
    us["other"] = 1.0
    f = dispatched(variants=[Variant(waves, name="other")])
    few(f, range(65, 127))
    few(f, range(129, 160))
    assert f.explain(rows(150)).variant == "hint[M=64]"
    families = [*f.core.table.facts.families._known.values()]
    assert [len(family.pools) for family in families] == [2]
    families[0].check_us = 1e-6
    x = rows(150)
    for _ in range(20_000):
        f(x)
    assert (f.explain(rows(150)).variant, f.explain(rows(150)).origin) == ("other", "timed")


def test_a_variant_that_raises_in_a_pair_is_answered_by_plain(us: dict[str, float], no_room: None) -> None:
    """And asked of no other key."""
    f = dispatched()
    few(f, range(65, 72))
    pool = the_pool(f)
    entry = pool.entries["hint[M=64]"]

    def raises(*args: Any) -> Any:
        raise RuntimeError("no more")

    build = f.core.table.build(entry.build)
    build.run = raises
    entry.run = raises
    few(f, range(80, 90))
    assert pool.pairs.wanted(["hint[M=64]"]) == []


def test_under_deterministic_algorithms_nothing_changes(us: dict[str, float], no_room: None) -> None:
    """What runs at a key is not to depend on the calls of others."""
    f = dispatched()
    few(f, range(65, 75))
    torch.use_deterministic_algorithms(True)
    try:
        few(f, range(80, 120))
        assert {f.explain(rows(count)).origin for count in range(80, 120)}.isdisjoint({"learning"})
    finally:
        torch.use_deterministic_algorithms(False)


def test_exact_builds_are_no_matter_of_others(us: dict[str, float]) -> None:
    """A build for the very sizes is asked for: each key has its own contest."""
    us["exact"] = 1.0
    f = dispatched(hints=(), exact=True)
    few(f, range(65, 69), calls=40)
    assert {f.explain(rows(count)).origin for count in range(65, 69)} == {"timed"}


def test_threads_find_it_together(us: dict[str, float], no_room: None) -> None:
    """Each call of each is right, whatever another is giving a pair of."""
    f = dispatched()
    wrong: list[int] = []

    def is_wrong(count: int) -> bool:
        return not torch.allclose(f(rows(count)), waves(rows(count)), atol=1e-5)

    def calls(first: int) -> None:
        wrong.extend(filter(is_wrong, [*range(64 + first, 127, 3), *range(66, 127)]))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(calls, range(4)))
    assert wrong == []
