"""A call that is run on copies: where a backward of it would end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shapedispatch.autotune.choose import choose
from shapedispatch.autotune.trial import LANES, EarlierGraph, Trial
from shapedispatch.backend import Candidate
from tests.autotune.test_choose import rules

X = torch.linspace(-1, 1, 16)


def with_gradient(*args: Any) -> Trial:
    """A trial of a call whose gradients are compared."""
    return Trial(args, {}, ("a", "b", "c")[: len(args)], (), grad=True)


def weight() -> tuple[Tensor, Tensor]:
    """A parameter, and what has been computed of it."""
    base = torch.full((16,), 0.5, requires_grad=True)
    return base, base.exp()


def test_a_gradient_that_goes_on_into_what_was_before_is_not_asked_for() -> None:
    """That is its caller's: its hooks are not run, and it is there for his own backward."""
    base, w = weight()
    seen: list[Tensor] = []
    w.register_hook(seen.append)
    with pytest.raises(EarlierGraph, match="ExpBackward0"):
        with_gradient(X.clone().requires_grad_()).outcome(lambda a: torch.relu(a * w))
    assert seen == []
    w.sum().backward()
    assert base.grad is not None
    assert len(seen) == 1


def test_it_is_found_behind_a_parameter_of_the_same_call() -> None:
    """However far from the result, and beside what is a leaf."""
    base, w = weight()
    with pytest.raises(EarlierGraph):
        with_gradient(X.clone().requires_grad_()).outcome(lambda a: ((a + base).sin() * w).cos())


def test_it_is_found_where_another_thread_has_computed_it() -> None:
    """Each thread numbers what it computes for itself: one of these has the number of what the call computes."""
    found: list[Tensor] = []
    thread = threading.Thread(target=lambda: found.extend(weight()[1] for _ in range(200)))
    thread.start()
    thread.join()
    for w in found:
        with pytest.raises(EarlierGraph):
            with_gradient(X.clone().requires_grad_()).outcome(lambda a, w=w: a * w)


def test_nothing_is_left_on_it() -> None:
    """What it was marked by while it was looked for."""
    _, w = weight()
    with pytest.raises(EarlierGraph):
        with_gradient(X.clone().requires_grad_()).outcome(lambda a: (a * w).sin())
    assert w.grad_fn is not None
    assert w.grad_fn.metadata == {}


class Doubles(torch.autograd.Function):
    """With a backward of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Twice."""
        return 2 * x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Twice."""
        return 2 * gradient


LINEAR = nn.Linear(16, 16)


def written_behind_a_view(x: Tensor) -> Tensor:
    """What autograd makes anew when it is asked how that was computed."""
    view = x[1:]
    x.mul_(3)
    return view


@pytest.mark.parametrize(
    "run",
    [
        lambda a: a * torch.ones(16, requires_grad=True),
        lambda a: Doubles.apply(a.sin()) + LINEAR(a),
        lambda a: checkpoint(torch.sin, a, use_reentrant=False) * 2,
        lambda a: torch.autograd.grad((a * a).sum(), a, create_graph=True)[0] * a,
        lambda a: a,
        lambda a: (a.detach(), a.unbind(0)),
        lambda a: written_behind_a_view(a.exp() + a),
    ],
)
def test_what_is_computed_in_the_call_is_no_other_graph(run: Callable[[Tensor], Any]) -> None:
    """Whoever computes it."""
    x = X.clone().requires_grad_()
    (x * 2).sin()
    with_gradient(x.exp()).outcome(run)


def test_weights_that_autocast_has_cast_are_the_calls_own() -> None:
    """Whoever has asked for them before, in the same block: it keeps them to its end."""
    with torch.autocast("cpu", torch.bfloat16):
        LINEAR(X)
        for _ in range(2):
            with_gradient(X.clone().requires_grad_(), LINEAR).outcome(lambda a, linear: linear(a))


def test_what_was_before_decides_nothing() -> None:
    """Whoever chooses is told, and not that plain raises."""
    _, w = weight()
    candidates = [Candidate("plain", lambda a: a * w), Candidate("1", lambda a: w * a)]
    with pytest.raises(EarlierGraph):
        choose(candidates, with_gradient(X.clone().requires_grad_()), rules())


class CastsSeen(torch.autograd.Function):
    """Notes whether autocast is on in its backward."""

    seen: ClassVar[list[bool]] = []

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """As it is."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """As it is."""
        CastsSeen.seen.append(torch.is_autocast_enabled("cpu"))
        return gradient


def test_a_backward_runs_under_no_autocast() -> None:
    """Where it is compared and where it is timed: a program has it behind the region that its forward is in."""
    CastsSeen.seen.clear()
    call: Any = CastsSeen.apply
    with torch.autocast("cpu", dtype=torch.bfloat16):
        trial = with_gradient(X.clone().requires_grad_())
        trial.outcome(call)
        trial.repeated(call)()
        assert torch.is_autocast_enabled("cpu")
    assert CastsSeen.seen == [False, False]


@given(st.integers(0, 400), st.booleans())
def test_in_another_order_are_the_same_floats(size: int, turned: bool) -> None:
    """Each once, of a tensor that lies otherwise, too; whole numbers, what is expanded and the call's own stay."""
    x, y, places = torch.arange(2.0 * size).view(2, size), torch.ones(1).expand(3), torch.arange(3)
    x = x.t() if turned else x
    before = x.clone()
    other = Trial((x, y, places), {}, ("x", "y", "places"), (), grad=False).permuted()
    mixed, *rest = other.args
    assert torch.equal(x, before)
    assert (mixed.shape, mixed.stride()) == (x.shape, x.stride())
    assert sorted(mixed.flatten().tolist()) == sorted(x.flatten().tolist())
    assert torch.equal(mixed, x) == (size == 0)
    assert torch.equal(rest[0], y)
    assert torch.equal(rest[1], places)


def test_hardly_a_float_is_where_it_was() -> None:
    """Nor beside those that it was beside, but for the first few, nor in its row."""
    x = torch.arange(4096.0).view(64, 64)
    mixed = Trial((x,), {}, ("x",), (), grad=False).permuted().args[0]
    assert int((mixed == x).sum()) < 8
    assert int((mixed.flatten().diff().abs() == 1).sum()) < LANES
    assert all(len({int(value) // 64 for value in row}) > 32 for row in mixed)
