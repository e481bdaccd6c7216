from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.backends import unwatched
from shapedispatch.backends.dynamo import Trace, Untraceable, trace
from shapedispatch.backends.inductor import look_only
from shapedispatch.backends.unwatched import is_seen_whole

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
