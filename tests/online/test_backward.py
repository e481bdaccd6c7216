"""The backwards of calls that are samples, by a clock that the test moves."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch.online.backward import MOST_NODES, follow, history
from shapedispatch.online.figures import Figures
from shapedispatch.online.real_calls import HostSampler


class Token:
    """Something that a node holds."""


class Slow(torch.autograd.Function):
    """The identity, whose backward takes so many microseconds."""

    now_us = 0.0

    @staticmethod
    def forward(ctx: Any, x: Tensor, us: float) -> Tensor:
        """As it is."""
        ctx.us, ctx.token = us, Token()
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """As it is."""
        Slow.now_us += ctx.us
        return gradients[0], None


def clock_ns() -> int:
    """The time of `Slow`."""
    return int(Slow.now_us * 1e3)


def sampled(fn: Any, *args: Any) -> tuple[Figures, Any]:
    """The figures of one call, and its answer."""
    [figures] = Figures.of_key(["plain"], "auto", None, grad=True)
    takes = HostSampler(clock_ns)
    before = history(args, {})
    answer = takes.run(figures, fn, args, {})
    follow(answer, before, figures, takes, lambda: False)
    return figures, answer


def backward_us(figures: Figures) -> list[float]:
    """The samples of its backward."""
    assert figures.backward is not None
    return [round(us, 3) for us in figures.backward.host_us]


X = torch.ones(3)


def test_a_backward_is_noted_from_the_result_to_the_arguments() -> None:
    """What comes before and after it in the program is no part of it."""
    x = X.clone().requires_grad_()
    figures, y = sampled(lambda x: Slow.apply(Slow.apply(x, 5.0).sin(), 30.0), Slow.apply(x, 700.0))
    Slow.apply(y, 900.0).sum().backward()
    assert backward_us(figures) == [35.0]
    assert x.grad is not None


def test_two_results_and_two_arguments_are_one_backward() -> None:
    """From the first result that is reached to the last argument."""
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    figures, (a, b) = sampled(lambda x, y: (Slow.apply(x, 5.0) * y, Slow.apply(y, 30.0)), x, y)
    (a.sum() + b.sum()).backward()
    assert backward_us(figures) == [35.0]


def test_where_no_backward_comes_none_counts() -> None:
    """Gradients are on in many programs that ask for none."""
    figures, _ = sampled(lambda x: x.sin(), X.clone().requires_grad_())
    assert not figures.backwards.seen
    assert figures.cost().repeats == 0 or figures.backward_us() == 0


def test_a_backward_to_some_of_the_arguments_is_no_sample() -> None:
    """It did not run to the end; the next may."""
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    figures, z = sampled(lambda x, y: Slow.apply(x, 5.0) * Slow.apply(y, 7.0), x, y)
    torch.autograd.grad(z.sum(), x, retain_graph=True)
    assert backward_us(figures) == []
    Slow.now_us += 900
    torch.autograd.grad(z.sum(), (x, y))
    assert backward_us(figures) == [12.0]


def test_a_graph_that_is_kept_is_a_sample_each_time() -> None:
    """With ``retain_graph``."""
    x = X.clone().requires_grad_()
    figures, y = sampled(lambda x: Slow.apply(x, 5.0), x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert backward_us(figures) == [5.0, 5.0]


@pytest.mark.parametrize("fn", [lambda x: x, lambda x: x.detach(), lambda x: 3])
def test_what_makes_no_graph_has_no_backward(fn: Any) -> None:
    """The result is the argument, or needs no gradient."""
    figures, _ = sampled(fn, X.clone().requires_grad_() * 1)
    assert not figures.backwards.unknown


def test_a_part_that_is_too_large_is_not_followed() -> None:
    """No backward counts at its key then."""

    def deep(x: Tensor) -> Tensor:
        for _ in range(MOST_NODES + 1):
            x = x + 1
        return x

    figures, _ = sampled(deep, X.clone().requires_grad_())
    assert figures.backwards.unknown


def test_an_argument_that_is_written_ends_where_it_came_from() -> None:
    """Its history is another after the call."""
    x = X.clone().requires_grad_()
    figures, y = sampled(lambda z: z.mul_(2), Slow.apply(x, 700.0))
    y.sum().backward()
    assert backward_us(figures) in ([], [0.0])
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_what_fails_in_a_hook_is_no_business_of_the_backward() -> None:
    """The gradient is plain's."""
    x = X.clone().requires_grad_()
    [figures] = Figures.of_key(["plain"], "auto", None, grad=True)

    def broken() -> int:
        raise RuntimeError("no clock")

    y = x.sin()
    follow(y, set(), figures, HostSampler(broken), lambda: False)
    y.sum().backward()
    assert x.grad is not None


def test_a_hook_keeps_no_tensor() -> None:
    """The graph goes when the answer goes."""
    x = X.clone().requires_grad_()
    figures, y = sampled(lambda x: Slow.apply(x, 5.0) * 2, x)
    held = weakref.ref(y.grad_fn.next_functions[0][0].token)
    assert held() is not None
    del y
    gc.collect()
    assert held() is None
    assert figures.backward is not None
