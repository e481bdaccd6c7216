from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.backends import unwatched
from shapedispatch.backends.dynamo import Trace, Untraceable, trace
from shapedispatch.backends.frames import frame_locals
from shapedispatch.backends.inductor import look_only
from shapedispatch.backends.unwatched import Defaults, is_seen_whole

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def looked_at(fn: Any, *args: Any) -> Trace:
    """A trace for effects alone; nothing is compiled."""
    return trace(fn, args, {}, look_only, tag="test", for_effects=True)


def times(scale: Any, other: Any = None) -> Any:
    """A method that closes over a scale."""

    def method(self: Any, x: Tensor) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    return method


def with_default(scale: Any) -> Any:
    """A method with a scale for a default."""

    def method(self: Any, x: Tensor, scale: Any = scale) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    return method


def with_keyword_default(scale: Any) -> Any:
    """The same with a keyword."""

    def method(self: Any, x: Tensor, *, scale: Any = scale) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    return method


@pytest.mark.parametrize("make", [times, with_default, with_keyword_default])
def test_what_may_change_in_place_is_not_seen_whole(make: Any) -> None:
    """A number can only be replaced; a list can change."""
    assert is_seen_whole(make(2.0))
    assert not is_seen_whole(make([2.0]))


@pytest.mark.parametrize("make", [times, with_default, with_keyword_default])
def test_no_build_is_made_on_a_method_that_holds_what_may_change(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a release that guards nothing of it."""
    monkeypatch.setattr(unwatched, "CLASSES_ARE_WATCHED", False)
    holder: Any = type("Holder", (), {"method": make([2.0])})()

    def uses(x: Tensor) -> Tensor:
        return torch.relu(holder.method(x))

    with pytest.raises(Untraceable, match="method, and this torch's compiled code would not see"):
        looked_at(uses, X)


def test_a_replaced_number_in_a_methods_closure_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a release that guards nothing of it the cell is watched."""
    monkeypatch.setattr(unwatched, "CLASSES_ARE_WATCHED", False)
    method = times(2.0)
    holder: Any = type("Holder", (), {"method": method})()

    def uses(x: Tensor) -> Tensor:
        return torch.relu(holder.method(x))

    look = looked_at(uses, X)
    assert look.gone() is None
    method.__closure__[0].cell_contents = 5.0
    assert look.gone() == "a function that it calls closes over something else now"


HELPER: Any = None
KEPT: list[Any] = []


def helper(scale: Any) -> Any:
    """A function whose code is the same for every default; it is kept, so that nothing is told by its end."""

    def scaled(x: Tensor, scale: Any = scale) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    KEPT.append(scaled)
    return scaled


def by_global(x: Tensor) -> Tensor:
    """Uses the function of that name."""
    return torch.relu(HELPER(x))


class Owner:
    """Has such a function as an attribute of an instance."""

    def __init__(self, scale: Any) -> None:
        self.helper = helper(scale)


OWNER = Owner(2.0)


def by_attribute(x: Tensor) -> Tensor:
    """Uses the function on an instance."""
    return torch.relu(OWNER.helper(x))


@pytest.mark.parametrize("old", [False, True], ids=["this torch", "an older one"])
@pytest.mark.parametrize("way", ["global", "attribute", "closure"])
def test_another_default_of_a_function_of_the_same_code_is_seen(
    way: str, old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the function is found; an equal default is no other."""
    if old:
        monkeypatch.setattr(unwatched, "CLASSES_ARE_WATCHED", False)
    closed_over = helper(2.0)

    def by_closure(x: Tensor) -> Tensor:
        return torch.relu(closed_over(x))

    def put(scale: float) -> None:
        nonlocal closed_over
        monkeypatch.setitem(globals(), "HELPER", helper(scale))
        monkeypatch.setattr(OWNER, "helper", helper(scale))
        closed_over = helper(scale)

    put(2.0)
    fn: Any = {"global": by_global, "attribute": by_attribute, "closure": by_closure}[way]
    look = looked_at(fn, X)
    check = look.check()
    assert check((X,), {})
    put(2.0)
    assert check((X,), {})
    put(5.0)
    assert not check((X,), {})
    assert look.accepts(frame_locals(fn, (X,), {}))
    put(-0.0)
    assert not check((X,), {})


def test_a_default_that_may_change_in_place_is_not_built_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a release that guards nothing of it."""
    monkeypatch.setattr(unwatched, "CLASSES_ARE_WATCHED", False)
    monkeypatch.setitem(globals(), "HELPER", helper([2.0]))
    with pytest.raises(Untraceable, match="would not see its values change"):
        looked_at(by_global, X)


def test_a_place_without_a_function_has_no_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    """What stood there is gone, or something else is there."""
    monkeypatch.setattr(unwatched, "CLASSES_ARE_WATCHED", False)
    defaults = Defaults()
    assert not defaults
    fn = helper(2.0)
    defaults.add("G['owner'].fn", fn)
    assert defaults
    holder = type("Holder", (), {"fn": staticmethod(fn)})
    assert defaults.same({"owner": holder}, {})
    for names in ({}, {"owner": 3}, {"owner": type("Holder", (), {"fn": 3})}):
        assert not defaults.same(names, {})


def test_defaults_of_torchs_own_functions_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """They do not change, and are in everything."""
    monkeypatch.setattr(unwatched, "CLASSES_ARE_WATCHED", False)
    defaults = Defaults()
    assert torch.nn.functional.softmax.__defaults__
    defaults.add("G['softmax']", torch.nn.functional.softmax)
    assert not defaults
