from __future__ import annotations

import gc
import threading
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch.backends import dynamo
from shapedispatch.backends.dynamo import Untraceable, trace
from shapedispatch.backends.inductor import look_only
from tests.helpers import assert_same, built

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def exact(fn: Callable[..., Any]) -> Any:
    """A dispatcher that runs an exact build wherever there is one."""
    return built(fn, exact=True, hints=())


def looked_at(fn: Any, *args: Any, **kwargs: Any) -> dynamo.Trace:
    """What a trace for effects alone says of a function; nothing is compiled."""
    return trace(fn, args, kwargs, look_only, tag="test", for_effects=True)


# ------------------------------------------------------------------------------------------------ state outside the call

SCALE: Any = 2.0
TABLE = {"scale": 2.0}


def scaled_by_global(x: Tensor) -> Tensor:
    return torch.relu(x) * SCALE


def scaled_by_entry(x: Tensor) -> Tensor:
    return torch.relu(x) * TABLE["scale"]


def test_a_changed_global_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number, then a tensor, then a tensor of another shape under one global name: no answer is stale."""
    f = exact(scaled_by_global)
    f(X)
    for value in (3.0, 2.0, torch.tensor(4.0), torch.tensor(5.0), torch.arange(8.0)):
        monkeypatch.setitem(globals(), "SCALE", value)
        assert_same(f(X), scaled_by_global(X))


def test_a_changed_entry_of_a_global_dict_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed in place, or the whole dict replaced."""
    f = exact(scaled_by_entry)
    f(X)
    monkeypatch.setitem(TABLE, "scale", 3.0)
    assert_same(f(X), scaled_by_entry(X))
    monkeypatch.setitem(globals(), "TABLE", {"scale": 4.0})
    assert_same(f(X), scaled_by_entry(X))


def test_a_changed_closure_value_is_seen() -> None:
    """The cell is read at each call, whether it holds a number or a tensor."""
    scale: Any = 2.0

    def scaled(x: Tensor) -> Tensor:
        return torch.relu(x) * scale

    f = exact(scaled)
    f(X)
    for scale in (3.0, torch.tensor(4.0), torch.tensor(5.0)):
        assert_same(f(X), scaled(X))


def helper(scale: float) -> Callable[[Tensor], Tensor]:
    """A helper function whose code is the same for every scale."""
    return lambda x: x * scale


HELPER = helper(2.0)


def helped(x: Tensor) -> Tensor:
    return torch.relu(HELPER(x))


def test_a_rebound_helper_function_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the new function lies at the old one's address, which is then the same identity."""
    monkeypatch.setitem(globals(), "HELPER", helper(1.0))
    f = exact(helped)
    f(X)
    for scale in (3.0, 4.0, 5.0):
        globals()["HELPER"] = None
        gc.collect()
        globals()["HELPER"] = helper(scale)
        assert_same(f(X), torch.relu(X * scale))


def test_states_that_are_gone_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class defined anew again and again, as in a notebook, does not end in plain for ever."""
    monkeypatch.setitem(globals(), "HELPER", None)

    @exact
    def f(x: Tensor) -> Tensor:
        return torch.relu(x * HELPER.scale)

    for scale in range(7):
        globals()["HELPER"] = None
        gc.collect()
        globals()["HELPER"] = type("Settings", (), {"scale": scale})
        assert_same(f(X), torch.relu(X * scale))
    assert f.explain(X).variant == "exact"
    assert f.cache_info().builds_held <= 4


# ------------------------------------------------------------------------------------------------------------- receivers


@dataclass
class Scaled:
    """An instance that would be keyed by value if it were an ordinary argument."""

    scale: Any

    @exact
    def apply(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.scale


class ScaledList(list[Any]):
    @exact
    def apply(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self[0]


class ScaledDict(dict[str, Any]):
    @exact
    def apply(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self["scale"]


class ScaledObject:
    def __init__(self, scale: Any) -> None:
        self.scale = scale

    @exact
    def apply(self, x: Tensor) -> Tensor:
        return torch.relu(x) * self.scale


@pytest.mark.parametrize(
    "make",
    [Scaled, lambda scale: ScaledList([scale]), lambda scale: ScaledDict(scale=scale), ScaledObject],
    ids=["dataclass", "list", "dict", "object"],
)
def test_an_instance_counts_by_what_it_holds(make: Callable[[Any], Any]) -> None:
    """Two instances of one class share a key; what a build reads of the instance is asked at each call."""
    make(2.0).apply(X)
    for scale in (3.0, 2.0, torch.tensor(3.0), torch.arange(8.0)):
        assert_same(make(scale).apply(X), torch.relu(X) * scale)


def test_a_changed_attribute_of_an_instance_is_seen() -> None:
    """The same instance with another value."""
    Scaled.apply.cache_clear()  # a variant has builds for at most four states
    instance = Scaled(2.0)
    instance.apply(X)
    instance.scale = 7.0
    assert_same(instance.apply(X), torch.relu(X) * 7.0)


class Counter:
    """Writes a tensor of its own at each call."""

    def __init__(self) -> None:
        self.calls = torch.zeros(8)

    @exact
    def count(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return torch.relu(x) + self.calls


def test_what_an_instance_counts_is_counted_once_a_call() -> None:
    """A function that writes what is no argument is not run for timing."""
    counter = Counter()
    with pytest.warns(UserWarning, match=r"it writes L\['self'\].calls"):
        assert_same(counter.count(X), torch.relu(X) + 1)
    for call in range(2, 4):
        assert_same(counter.count(X), torch.relu(X) + call)
    assert "writes L['self'].calls" in str(Counter.count.explain(counter, X))


def test_a_bound_method_is_keyed_by_its_arguments() -> None:
    """Its instance is no argument: the first argument counts by all that it is."""
    f = exact(types.MethodType(ScaledObject.apply.__wrapped__, ScaledObject(3.0)))
    for x in (X, X.double(), X[:3, :5], X.T):
        assert_same(f(x), torch.relu(x) * 3.0)
    assert f.cache_info().misses == 4


def test_what_another_thread_compiles_meanwhile_is_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's own torch.compile in another thread leaves its guards out of the build being made."""
    maker = dynamo.dynamo_guards.CheckFunctionManager
    monkeypatch.setattr(maker, "build_guards", lambda self: ("builder", threading.current_thread().name))
    monkeypatch.setattr(dynamo, "_recording", dynamo._Recording(look_only, {}, None))
    compilation = types.SimpleNamespace(_weakrefs={})
    with dynamo._guards_recorded():
        theirs = threading.Thread(target=lambda: maker.build_guards(compilation))
        theirs.start()
        theirs.join()
        maker.build_guards(compilation)
    assert dynamo._recording.managers == [threading.current_thread().name]
