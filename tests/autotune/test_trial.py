"""A call that is run on copies: where a backward of it would end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shapedispatch.autotune import trial as trials
from shapedispatch.autotune.choose import choose
from shapedispatch.autotune.trial import EarlierGraph, Trial
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


@pytest.mark.parametrize("ahead", [False, True])
def test_it_is_found_where_another_thread_has_computed_it(ahead: bool) -> None:
    """Each thread numbers what it computes for itself: it may have computed less than this one, or more."""
    found: list[Tensor] = []
    x = (X.clone().requires_grad_() * 2).detach().requires_grad_()
    here = trials._next_number()

    def computes() -> None:
        while ahead and trials._next_number() < here + 100:
            pass
        found.append(weight()[1])

    thread = threading.Thread(target=computes)
    thread.start()
    thread.join()
    with pytest.raises(EarlierGraph):
        with_gradient(x).outcome(lambda a: a * found[0])


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


@pytest.mark.parametrize(
    "run",
    [
        lambda a: a * torch.ones(16, requires_grad=True),
        lambda a: Doubles.apply(a.sin()) + LINEAR(a),
        lambda a: checkpoint(torch.sin, a, use_reentrant=False) * 2,
        lambda a: torch.autograd.grad((a * a).sum(), a, create_graph=True)[0] * a,
        lambda a: a,
        lambda a: (a.detach(), a.unbind(0)),
    ],
)
def test_what_is_computed_in_the_call_is_no_other_graph(run: Callable[[Tensor], Any]) -> None:
    """Whoever computes it."""
    x = X.clone().requires_grad_()
    (x * 2).sin()
    with_gradient(x.exp()).outcome(run)


def test_what_was_before_decides_nothing() -> None:
    """Whoever chooses is told, and not that plain raises."""
    _, w = weight()
    candidates = [Candidate("plain", lambda a: a * w), Candidate("1", lambda a: w * a)]
    with pytest.raises(EarlierGraph):
        choose(candidates, with_gradient(X.clone().requires_grad_()), rules())
