"""What a user supplied was compared with plain in one state of the world: in another, it is compared again."""

# ruff: noqa: D103 - what is called says by its name what it reads
from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import Variant, shapedispatch

pytestmark = pytest.mark.filterwarnings(r"ignore:[\s\S]*was refused", r"ignore:[\s\S]*gives other numbers")

scale = 1.0
numbers: dict[str, float] = {"scale": 1.0}
several = [1.0]
layer = nn.Dropout(0.5).eval()
X = torch.linspace(1, 2, 12)


def busy(x: Tensor) -> None:
    """What makes the alternatives faster than plain."""
    for _ in range(30):
        torch.sin(x)


def helped(x: Tensor) -> Tensor:
    """Called by name."""
    return x * 1.0


def helped_otherwise(x: Tensor) -> Tensor:
    """In its place."""
    return x * 2.0


def by_a_global(x: Tensor) -> Tensor:
    busy(x)
    return x * scale


def by_an_item(x: Tensor) -> Tensor:
    busy(x)
    return x * numbers["scale"]


def by_a_list(x: Tensor) -> Tensor:
    busy(x)
    for one in several:
        x = x * one
    return x


def by_a_helper(x: Tensor) -> Tensor:
    busy(x)
    return helped(x)


def by_a_module(x: Tensor) -> Tensor:
    busy(x)
    return layer(x) * 1.0


CHANGES: dict[Callable[..., Any], Callable[[pytest.MonkeyPatch], None]] = {
    by_a_global: lambda patch: patch.setitem(globals(), "scale", 2.0),
    by_an_item: lambda patch: patch.setitem(numbers, "scale", 2.0),
    by_a_list: lambda patch: patch.setitem(globals(), "several", [1.0, 2.0]),
    by_a_helper: lambda patch: patch.setattr(helped, "__code__", helped_otherwise.__code__),
    by_a_module: lambda patch: patch.setattr(layer, "_forward_hooks", {1: lambda *given: given[2] * 2}),
}


@pytest.mark.parametrize("fn", CHANGES, ids=lambda fn: fn.__name__)
def test_it_does_not_run_in_a_state_in_which_it_was_not_compared(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However that came to be another."""
    f = shapedispatch(fn, hints=(), variants=[Variant(lambda x: x * 1.0, "once")], store=False)
    assert f.tune(X).variant == "once"
    with monkeypatch.context() as patch:
        CHANGES[fn](patch)
        for _ in range(3):
            assert torch.equal(f(X), fn(X))
    assert torch.equal(f(X), X)


@pytest.mark.usefixtures("by_calls")
def test_it_does_not_run_where_the_state_changes_while_calls_are_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call runs one candidate, once: none that is right in the state before alone."""
    f = shapedispatch(by_a_global, hints=(), variants=[Variant(lambda x: x * 1.0, "once")], store=False)
    for now in (1.0, 2.0, 1.0, 3.0):
        monkeypatch.setitem(globals(), "scale", now)
        for _ in range(5):
            assert torch.equal(f(X), by_a_global(X))


def test_the_code_of_plain_itself_is_seen_to_be_replaced() -> None:
    """As a reload in a notebook does it."""

    def fn(x: Tensor) -> Tensor:
        busy(x)
        return x * 1.0

    f = shapedispatch(fn, hints=(), variants=[Variant(lambda x: x * 1.0, "once")], store=False)
    assert f.tune(X).variant == "once"
    fn.__code__ = types.FunctionType(helped_otherwise.__code__, globals()).__code__
    assert torch.equal(f(X), X * 2)


class Head(nn.Module):
    """Which does something else in training."""

    def __init__(self, bias: float | None = None) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.bias = bias

    def forward(self, x: Tensor) -> Any:
        """Plain."""
        busy(x)
        return self.drop(x) * 1.0 if self.bias is None else x + self.bias


def test_a_module_in_training_has_choices_of_its_own() -> None:
    """What is right in evaluation drops nothing."""
    head = shapedispatch(Head().eval(), hints=(), variants=[Variant(lambda self, x: x * 1.0, "once")], store=False)
    x = torch.ones(1000)
    assert head.forward.tune(x).variant == "once"
    head.train()
    assert 0.3 < (head(x) == 0).float().mean().item() < 0.7


def test_instances_share_no_choice_that_their_attributes_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has a bias is another state; `when` is asked there."""
    unbiased = Variant(lambda self, x: x * 1.0, "once", when=lambda self, x: None if self.bias is None else "a bias")
    monkeypatch.setattr(Head, "forward", shapedispatch(Head.forward, hints=(), variants=[unbiased], store=False))
    one, other = Head().eval(), Head(2.0).eval()
    assert Head.forward.tune(one, X).variant == "once"
    assert torch.equal(other(X), X + 2.0)
    one.bias = 3.0
    assert torch.equal(one(X), X + 3.0)


def test_what_is_supplied_has_plains_guard_unless_it_is_trusted() -> None:
    """Who trusts it says that it does what plain does, in every state."""
    from shapedispatch.backend import OfferBuilder, OfferRequest

    builder = OfferBuilder(OfferRequest(), holds=lambda args, kwargs: False)
    builder.supply(Variant(lambda x: x, "once"), lambda x: x, ((X,), {}))
    builder.supply(Variant(lambda x: x, "trusted", trusted=True), lambda x: x, ((X,), {}))
    assert [one.check for one in builder.candidates] == [builder.holds, None]
