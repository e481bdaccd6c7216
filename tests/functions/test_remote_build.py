"""Builds whose code another process makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch import shapedispatch
from tests.built_here import BuiltHere, learning_here
from tests.helpers import assert_same


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


def learned(dispatcher: Any, *calls: tuple[Any, ...], times: int = 40) -> Any:
    """The dispatcher, after so many of these calls in turn."""
    for _ in range(times):
        for call in calls:
            dispatcher(*call)
    return dispatcher


def variants(dispatcher: Any, *call: Any) -> set[str]:
    """What was timed for a call."""
    return {timing.variant for timing in dispatcher.explain(*call).timings}


def composed(x: Tensor, w: Tensor) -> Tensor:
    """Plain."""
    return torch.tanh(x @ w) * torch.sigmoid(x @ w) + x


X, W = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)


def test_a_build_is_ordered_loaded_and_judged(here: BuiltHere) -> None:
    """And gives plain's numbers at sizes that it was not made for."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    learned(f, (X, W), (X[:9], W))
    assert f.explain(X, W).origin == "timed"
    assert variants(f, X, W) == {"plain", "hint[M=64]"}
    build = f.variant("hint[M=64]")
    for size in (40, 9, 2):
        assert_same(build(X[:size], W), composed(X[:size], W))
    assert len(here.tasks) == 1


def test_gradients_are_plains(here: BuiltHere) -> None:
    """Of a build with a backward."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    build = f.variant("hint[M=64]")
    for size in (40, 3):
        ours = torch.autograd.grad(build(x[:size], w).square().sum(), (x, w))
        assert_same(ours, torch.autograd.grad(composed(x[:size], w).square().sum(), (x, w)))


class Layer(nn.Module):
    """With a parameter and a number of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.scale = 2.0

    def forward(self, x: Tensor) -> Tensor:
        """Plain."""
        return torch.tanh(self.inner(x)) * self.scale


def test_a_method_is_built(here: BuiltHere) -> None:
    """And what its build has read of the instance is guarded."""
    f = shapedispatch(Layer.forward, dims={"x": "M _"}, hints=(64,), store=False)
    layer = Layer()
    with torch.no_grad():
        learned(f, (layer, X))
        assert "hint[M=64]" in variants(f, layer, X)
        build = f.variant("hint[M=64]")
        assert_same(build(layer, X), Layer.forward(layer, X))
        layer.scale = 3.0
        assert_same(f(layer, X), Layer.forward(layer, X))
        assert_same(build(layer, X), Layer.forward(layer, X))


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    """Results that share memory."""
    y = x.sin() * 2
    return y, y[:4]


def test_results_that_share_memory_count_together(here: BuiltHere) -> None:
    """As of a build that was made here: a backward that needs what was overwritten raises."""
    f = shapedispatch(views, dims={"x": "M"}, hints=(64,), store=False)
    x = torch.randn(32, requires_grad=True)
    learned(f, (x,))
    whole, part = f.variant("hint[M=64]")(x)
    kept = whole.square()
    with torch.no_grad():
        part.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        kept.sum().backward()


def test_written_arguments_are_written(here: BuiltHere) -> None:
    """In place, as plain does."""

    def add(x: Tensor, y: Tensor) -> Tensor:
        x.add_(y)
        return x * 2

    f = shapedispatch(add, dims={"x": "M", "y": "M"}, hints=(64,), store=False)
    x, y = torch.zeros(32), torch.ones(32)
    learned(f, (x, y), times=30)
    assert torch.equal(x, torch.full((32,), 30.0))
    f.variant("hint[M=64]")(x, y)
    assert torch.equal(x, torch.full((32,), 31.0))


def sized(x: Tensor) -> Tensor:
    """Of which compiled code may want its sizes to be so."""
    return x.reshape(-1, 4).sum(1) if x.shape[0] % 4 == 0 else x.cumsum(0)


def test_conditions_on_sizes_are_asked_of_each_class(here: BuiltHere) -> None:
    """Those of the trace, and those that only the compiler came to."""
    f = shapedispatch(sized, dims={"x": "M"}, hints=(64,), store=False)
    calls = [(torch.randn(size),) for size in (32, 30, 64, 7)]
    learned(f, *calls)
    for call in calls:
        assert_same(f(*call), sized(*call))


def test_what_cannot_be_sent_runs_plain_and_says_why(here: BuiltHere) -> None:
    """A graph with a tensor of its own in it."""
    constant = torch.randn(16)

    def held(x: Tensor) -> Tensor:
        return x.sin() + torch.tensor([1.0, 2.0])[:1] * constant.sum()

    f = shapedispatch(held, dims={"x": "M"}, hints=(64,), store=False)
    x = torch.randn(32)
    learned(f, (x,), times=5)
    assert_same(f(x), held(x))


def test_a_refusal_of_the_compiler_comes_back(here: BuiltHere) -> None:
    """As the reason of the build."""

    def checked(x: Tensor) -> Tensor:
        return torch.bernoulli(x) * 2

    f = shapedispatch(checked, dims={"x": "M"}, hints=(64,), store=False)
    with pytest.warns(UserWarning, match="plain checks the values that bernoulli gets"):
        learned(f, (torch.rand(32),), times=5)
    assert f.explain(torch.rand(32)).variant == "plain"


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_the_state_around_the_call_goes_with_it(here: BuiltHere, around: Callable[[], Any]) -> None:
    """Grad mode: a build has a backward where the call asks for one."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    w = W.clone().requires_grad_()
    with around():
        learned(f, (X, w))
        assert_same(f.variant("hint[M=64]")(X, w), composed(X, w))
    assert f(X, w).requires_grad


def test_the_random_state_and_the_default_dtype_are_left_alone(here: BuiltHere) -> None:
    """Whatever is ordered and loaded between two calls."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    torch.manual_seed(3)
    expected = [torch.rand(2) for _ in range(6)]
    torch.manual_seed(3)
    for draw in expected:
        f(X, W)
        assert torch.equal(torch.rand(2), draw)
    assert torch.get_default_dtype() is torch.float32
