"""Builds of what is stored, made before a call: what a process needs that is sealed from its start."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import shapedispatch
from shapedispatch import Store, set_mode
from shapedispatch.api import registry
from shapedispatch.autotune.trial import Trial
from tests.helpers import assert_same, built, no_time

pytestmark = [pytest.mark.usefixtures("unhurried"), pytest.mark.operators_called]


def waves(x: Tensor) -> Tensor:
    """What is stored here."""
    return torch.sin(x) * 2 + 1


class Scales(nn.Module):
    """With a method whose calls no key describes in full."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        """Reads a parameter."""
        return torch.cos(x) * self.weight


def writes(x: Tensor) -> Tensor:
    """Writes its argument, so that keys hold what overlaps."""
    x.mul_(torch.sin(x) + 2)
    return x


def made(fn: Callable[..., Any], store: Any, **given: Any) -> Any:
    """A dispatcher as a fresh process has it: with an empty table."""
    return built(fn, exact=True, hints=(), store=store, **given)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store of the test's own."""
    with torch.no_grad():
        yield Store(tmp_path / "store")


def decided(fn: Callable[..., Any], store: Any, *call: Any) -> None:
    """Have a build chosen for the call, and stored."""
    first = made(fn, store)
    first(*call)
    assert first.explain(*call).variant == "exact"


def sealed_answer(dispatcher: Any, *call: Any) -> tuple[Any, str, str]:
    """A sealed call: its answer, what ran, how it was found."""
    with set_mode("sealed"):
        answer = dispatcher(*call)
        choice = dispatcher.explain(*call)
    return answer, choice.variant, choice.origin


def test_what_is_loaded_runs_sealed_from_the_start(store: Store) -> None:
    """The stored build, and no other."""
    x = torch.randn(3, 5)
    decided(waves, store, x)
    fresh = made(waves, store)
    (choice,) = fresh.load()
    assert (choice.variant, choice.origin, fresh.cache_info().builds_held) == ("exact", "stored", 1)
    answer, variant, origin = sealed_answer(fresh, x)
    assert_same(answer, waves(x))
    assert (variant, origin) == ("exact", "stored")
    assert fresh.cache_info().timings == 0


def test_without_loading_plain_runs_and_the_remedy_is_told_once(store: Store) -> None:
    """And named in `explain`, too."""
    x = torch.randn(3, 5)
    decided(waves, store, x)
    fresh = made(waves, store)
    with set_mode("sealed", on_miss="plain"):
        with pytest.warns(UserWarning, match=r"exact is not built in this process\n.*waves.load\(\)") as told:
            assert_same(fresh(x), waves(x))
        fresh.cache_clear()
        assert_same(fresh(x), waves(x))
    assert len(told) == 1


def test_an_error_on_a_miss_names_the_remedy(store: Store) -> None:
    """Where the mode asks for an error."""
    x = torch.randn(3, 5)
    decided(waves, store, x)
    with set_mode("sealed", on_miss="error"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fresh = made(waves, store)
        assert "without `" in fresh.explain(x).notes[-1]
        with pytest.raises(shapedispatch.MissError, match=r"not built: `.*waves.load\(\)` builds it") as raised:
            fresh(x)
    assert "what is stored for this call is not used, and the mode is sealed:" in str(raised.value)
    assert "known" not in str(raised.value)


def test_nothing_is_built_twice_and_nothing_run(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither plain nor what is built, on what no caller has given."""
    decided(waves, store, torch.randn(3, 5))
    fresh = made(waves, store)
    monkeypatch.setattr(Trial, "outcome", no_time)
    assert fresh.cache_info().builds_held == 0
    assert [len(fresh.load()) for _ in range(2)] == [1, 1]
    assert fresh.cache_info().builds_held == 1
    assert fresh.choices() == []


def test_keys_that_hold_overlaps_are_loaded(store: Store) -> None:
    """Of a function that writes: it is not known to, before it is looked at."""
    x = torch.randn(4)
    decided(writes, store, x.clone())
    fresh = made(writes, store)
    assert [choice.variant for choice in fresh.load()] == ["exact"]
    answer, variant, _ = sealed_answer(fresh, x.clone())
    assert_same(answer, writes(x.clone()))
    assert variant == "exact"


def test_a_methods_self_is_given_or_made_by_inputs(store: Store) -> None:
    """A key does not hold it; without either it is told."""
    module, x = Scales(), torch.randn(2, 3)
    decided(Scales.forward, store, module, x)
    with pytest.warns(UserWarning, match="1 of 1 stored choices could not be loaded:\n.*give one to load()"):
        assert made(Scales.forward, store).load() == []
    for fresh, like in [
        (made(Scales.forward, store), (module,)),
        (made(Scales.forward, store, inputs=lambda sizes, like: ((Scales(), torch.randn(2, 3)), {})), ()),
    ]:
        assert [choice.variant for choice in fresh.load(*like)] == ["exact"]
        answer, variant, _ = sealed_answer(fresh, module, x)
        assert_same(answer, module(x))
        assert variant == "exact"


def test_a_module_gives_the_receivers_of_its_methods(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """`load(model)`: the first of its modules that a choice can be built for, and functions beside them."""
    wide, narrow, x = Scales(5), Scales(3), torch.randn(2, 3)
    decided(Scales.forward, store, narrow, x)
    decided(waves, store, x)
    method, function = made(Scales.forward, store), made(waves, store)
    monkeypatch.setattr(Scales, "forward", method)
    chosen = shapedispatch.load(nn.Sequential(wide, narrow), method, function)
    assert [choice.variant for choice in chosen] == ["exact", "exact"]
    assert sealed_answer(method, narrow, x)[1] == "exact"


class Elsewhere(Scales):
    """A module of another model."""

    def forward(self, x: Tensor) -> Tensor:
        """Its own."""
        return torch.sigmoid(x)


def test_a_module_loads_no_methods_of_other_models(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all that live: nothing gives them a receiver, and nobody has asked for them."""
    module, x = Scales(), torch.randn(2, 3)
    decided(Scales.forward, store, module, x)
    decided(Elsewhere.forward, store, Elsewhere(), x)
    method, other = made(Scales.forward, store), made(Elsewhere.forward, store)
    monkeypatch.setattr(Scales, "forward", method)
    monkeypatch.setattr(Elsewhere, "forward", other)
    monkeypatch.setattr(registry, "_live", {"one": method, "other": other})
    assert [choice.variant for choice in shapedispatch.load(module)] == ["exact"]
    assert (method.cache_info().builds_held, other.cache_info().builds_held) == (1, 0)


def test_a_shipped_table_is_loaded(store: Store, tmp_path: Path) -> None:
    """As what is stored."""
    x = torch.randn(3, 5)
    decided(waves, store, x)
    table = tmp_path / "shipped.json"
    store.export(table)
    fresh = made(waves, Store(tmp_path / "empty", shipped=[table]))
    assert [choice.origin for choice in fresh.load()] == ["shipped"]
    assert sealed_answer(fresh, x)[1:] == ("exact", "shipped")


def test_as_many_are_loaded_as_may_be_held(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more would push out the first."""
    for size in (3, 4):
        decided(waves, store, torch.randn(size))
    fresh = made(waves, store)
    fresh.core.table.max_builds = 1
    with pytest.warns(UserWarning, match="max_builds is 1"):
        assert len(fresh.load()) == 1


def test_one_that_fails_does_not_keep_the_others_from_being_loaded(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it raised is its reason."""
    for size in (3, 4):
        decided(waves, store, torch.randn(size))
    fresh, offer, asked = made(waves, store), None, []
    offer = fresh.core.backend.offer

    def fails_first(*given: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise RuntimeError("no memory")
        return offer(*given)

    monkeypatch.setattr(fresh.core.backend, "offer", fails_first)
    with pytest.warns(UserWarning, match="RuntimeError: no memory"):
        assert len(fresh.load()) == 1


def test_without_a_store_there_is_nothing_to_load() -> None:
    """And nothing to say."""
    assert built(waves, exact=True, hints=()).load() == []


def other_waves(x: Tensor) -> Tensor:
    """`waves`, written otherwise."""
    return x.sin().mul(2).add(1)


def test_an_alternative_that_was_chosen_runs_sealed_from_the_start(store: Store) -> None:
    """It has no build that says what the function does: a load finds that out, and a sealed call traces nothing."""
    x = torch.randn(3, 5)
    given: dict[str, Any] = {"variants": [other_waves], "objective": lambda timing: float(timing.variant == "plain")}
    first = built(waves, hints=(), store=store, **given)
    first(x)
    assert first.explain(x).variant == "other_waves"
    fresh = built(waves, hints=(), store=store, **given)
    (choice,) = fresh.load()
    assert choice.variant == "other_waves"
    answer, variant, origin = sealed_answer(fresh, x)
    assert (variant, origin) == ("other_waves", "stored")
    assert_same(answer, waves(x))


def test_all_alternatives_are_loaded_of_calls_that_go_different_ways(store: Store) -> None:
    """A trace that says what one call does says nothing of a batch of one."""
    calls = [torch.randn(size, 5) for size in (1, 2, 3)]
    given: dict[str, Any] = {"variants": [other_waves], "objective": lambda timing: float(timing.variant == "plain")}
    first = built(waves, hints=(), store=store, **given)
    for x in calls:
        first(x)
    fresh = built(waves, hints=(), store=store, **given)
    assert len(fresh.load()) == len(calls)
    assert [sealed_answer(fresh, x)[1:] for x in calls] == [("other_waves", "stored")] * len(calls)
