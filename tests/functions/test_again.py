"""A backward that autograd follows, and one that takes a batch of gradients: as plain's, by the operators."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule, symbolic_trace
from torch.utils.checkpoint import checkpoint

from shapedispatch import shapedispatch
from shapedispatch.backward import tracked
from shapedispatch.functions.compile import inductor
from shapedispatch.functions.compile.code import Code
from shapedispatch.functions.parts.again import Again
from shapedispatch.functions.parts.noted import RECENT, Noted
from shapedispatch.functions.parts.partial import Partial
from shapedispatch.hit.call import NO_SECOND
from tests.helpers import assert_same, built, pinned, together


def single(x: Tensor, w: Tensor) -> Tensor:
    """One result, of a product and two slopes."""
    return torch.tanh(x @ w) * torch.sigmoid(x @ w)


def several(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Results that are made of each other."""
    first = torch.tanh(x @ w)
    second = torch.softmax(first, -1)
    return first, second, (first * second).sum()


def chained(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Small results, each of which is made of the one before and of what all are made of: with one backward."""
    size = (x @ w).sum(-1)
    factor = torch.exp(size * 0.1)
    return size, factor, torch.sin(x @ w) * factor[:, None]


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Results with a backward each."""
    return x.sin() * 2, w.exp()


@pytest.fixture(scope="module", params=[single, several, chained, apart])
def pair(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function, and a build of it that has run as often as it takes to pass the wrappers."""
    build = built(request.param, hints=(), exact=True).variant("exact")
    for _ in range(3):
        made = build(*leaves())
    assert together(results(made)) is (request.param is chained)
    return request.param, build


def leaves(seed: int = 0) -> list[Tensor]:
    """Two arguments."""
    numbers = torch.Generator().manual_seed(seed)
    return [torch.randn(sizes, generator=numbers, requires_grad=True) for sizes in ((5, 4), (4, 4))]


def kept_of(again: Again, inputs: Sequence[Tensor], kept: Sequence[Tensor] = ()) -> Noted:
    """What is noted of a call with these, whose backward keeps those."""
    node = SimpleNamespace(save_for_backward=lambda *_: None, noted=Noted())
    again.keep(node, inputs, kept, ())
    return node.noted


def results(made: Any) -> Sequence[Tensor]:
    """Those of a call."""
    return made if isinstance(made, tuple) else (made,)


def scalar(made: Any) -> Tensor:
    """A loss that bends at each result."""
    return torch.stack([(one**2).sum() for one in results(made)]).sum()


def penalty(fn: Callable[..., Any], inputs: Sequence[Tensor]) -> Sequence[Tensor]:
    """A gradient, and the gradients of a penalty on it."""
    of = torch.autograd.grad(scalar(fn(*inputs)), inputs, create_graph=True)
    return *of, *torch.autograd.grad(sum((one**2).sum() for one in of), inputs)


def same(found: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> None:
    """One after the other."""
    assert [one is None for one in found] == [one is None for one in expected]
    for one, other in zip(found, expected, strict=True):
        if one is not None:
            assert_same(one.detach(), None if other is None else other.detach())


Pair = tuple[Callable[..., Any], Callable[..., Any]]


def test_a_penalty_on_a_gradient_is_plains(pair: Pair) -> None:
    """`create_graph=True`, and a backward through what that gave."""
    plain, build = pair
    same(penalty(build, leaves()), penalty(plain, leaves()))


def test_arguments_that_are_made_of_each_other_are_told_apart(pair: Pair) -> None:
    """What comes to one does not come to it once more by way of the other."""

    def made(fn: Callable[..., Any]) -> Sequence[Tensor]:
        x = torch.linspace(-1, 1, 16).reshape(4, 4).requires_grad_()
        one, other = x * 2, (x * 2).sin() + x
        of = torch.autograd.grad(scalar(fn(one, other)), (x,), create_graph=True)
        return *of, *torch.autograd.grad(of[0].pow(3).sum(), (x,))

    plain, build = pair
    same(made(build), made(plain))


def test_a_third_derivative_is_plains(pair: Pair) -> None:
    """The operators have all of them."""

    def made(fn: Callable[..., Any]) -> Sequence[Tensor]:
        inputs = leaves()
        first = torch.autograd.grad(scalar(fn(*inputs)), inputs, create_graph=True)
        second = torch.autograd.grad(sum((one**2).sum() for one in first), inputs, create_graph=True)
        return torch.autograd.grad(sum((one**2).sum() for one in second), inputs)

    plain, build = pair
    same(made(build), made(plain))


@pytest.mark.parametrize("number", [0, -1])
def test_a_batch_of_gradients_is_plains(pair: Pair, number: int) -> None:
    """Of one result, which others may be made of."""
    plain, build = pair
    inputs = leaves()
    found, expected = (
        torch.autograd.grad(
            [made := results(fn(*inputs))[number]],
            inputs,
            torch.linspace(-1, 1, 3 * made.numel()).reshape(3, *made.shape),
            is_grads_batched=True,
            allow_unused=True,
        )
        for fn in (build, plain)
    )
    same(found, expected)


def test_a_vectorized_jacobian_is_plains(pair: Pair) -> None:
    """And one by `torch.func.vmap` over a backward."""
    plain, build = pair
    x, w = leaves()
    found, expected = (
        torch.autograd.functional.jacobian(lambda x, fn=fn: results(fn(x, w))[0], x, vectorize=True)
        for fn in (build, plain)
    )
    assert_same(found, expected)
    made = [results(fn(x, w))[0] for fn in (build, plain)]
    gradients = torch.linspace(-1, 1, 2 * made[0].numel()).reshape(2, *made[0].shape)
    found, expected = (
        torch.func.vmap(lambda one, of=of: torch.autograd.grad(of, x, one, retain_graph=True)[0])(gradients)
        for of in made
    )
    assert_same(found, expected)


def test_a_followed_backward_runs_once_as_any_does(pair: Pair) -> None:
    """Without `retain_graph`, a second one is an error."""
    _, build = pair
    loss, inputs = None, leaves()
    loss = scalar(build(*inputs))
    torch.autograd.grad(loss, inputs, create_graph=True, retain_graph=False)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, inputs, create_graph=True)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from("sctmpq"), min_size=1, max_size=5), st.integers(0, 9))
def test_the_operators_of_any_graph_have_its_second_derivative(names: list[str], seed: int) -> None:
    """A law: what `Again` gives of a graph is what autograd gives of the function."""

    def fn(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        for name in names:
            x = {"s": torch.sin, "c": torch.cos, "t": torch.tanh}.get(name, lambda one: one * one)(x)
            x = x @ w if name in "mp" else x + w.sum(0)
        return x, (x * w.sum()).mean()

    again, inputs = Again(lambda: symbolic_trace(fn), Partial()), leaves(seed)
    noted, made = kept_of(again, inputs), fn(*inputs)
    gradients = [torch.ones_like(one) for one in made]
    found = again.gradients(None, noted, gradients)
    expected = torch.autograd.grad(made, inputs, gradients, create_graph=True)
    same(found, expected)
    same(
        torch.autograd.grad(sum(one.pow(2).sum() for one in found if one is not None), inputs),
        torch.autograd.grad(sum(one.pow(2).sum() for one in expected), inputs),
    )


@pytest.fixture
def none_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has followed no backward."""
    monkeypatch.setattr(tracked, "ever", False)


# where there is none


def doubled(x: Tensor) -> tuple[Tensor]:
    """No more than that."""
    return (x * 2,)


def of_graph(graph: GraphModule | None, x: Tensor) -> Callable[[], Any]:
    """The gradients of a call with this."""
    again = Again(lambda: graph, Partial())
    noted = kept_of(again, [x])
    return lambda: again.gradients(None, noted, [torch.ones(3)])


def test_operators_that_are_not_known_are_told() -> None:
    """Those of a piece that another process has compiled, say."""
    with pytest.raises(RuntimeError, match="operators are not known") as error:
        of_graph(None, torch.ones(3, requires_grad=True))()
    assert str(error.value).startswith(NO_SECOND)
    assert "set_mode" in NO_SECOND


def test_what_draws_is_not_drawn_anew() -> None:
    """Other elements would be dropped than at the call; nor is run what does more than compute."""
    graph = symbolic_trace(doubled)
    assert Code(graph=graph, computes=True).operators() is graph
    assert Code(graph=graph, computes=True, draws=True).operators() is None
    assert Code(graph=graph).operators() is None


def test_an_argument_that_was_written_since_is_told() -> None:
    """The operators need what the call was given."""
    x = torch.ones(3, requires_grad=True)
    gradients = of_graph(symbolic_trace(doubled), x)
    with torch.no_grad():
        x.add_(1)
    with pytest.raises(RuntimeError, match="written since"):
        gradients()


@pytest.mark.usefixtures("none_followed")
def test_an_argument_that_nobody_has_kept_is_told() -> None:
    """It is not held for this: a step takes no more memory."""
    gradients = of_graph(symbolic_trace(doubled), torch.ones(3, requires_grad=True))
    gc.collect()
    with pytest.raises(RuntimeError, match="Nobody has kept"):
        gradients()


def test_another_default_dtype_is_told() -> None:
    """What the operators make of Python's numbers would have it."""
    x = torch.ones(3, requires_grad=True)
    gradients = of_graph(symbolic_trace(doubled), x)
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(RuntimeError, match=r"float32 at the call"):
            gradients()
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_autocast_of_the_call_is_that_of_its_operators() -> None:
    """And not that of the backward."""
    x = torch.linspace(0.1, 1, 9).reshape(3, 3).requires_grad_()

    def product(x: Tensor) -> tuple[Tensor]:
        return (x @ x,)

    again, ones = Again(lambda: symbolic_trace(product), Partial()), torch.full((3, 3), 0.3, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        noted = kept_of(again, [x])
        [expected] = torch.autograd.grad(product(x), x, ones)
    (found,) = again.gradients(None, noted, [ones])
    assert found is not None
    assert_same(found.detach(), expected)


@pytest.mark.usefixtures("none_followed")
def test_what_the_backward_keeps_need_be_kept_by_nobody() -> None:
    """A temporary that a product needs, say, or a view of it: it takes no more memory."""

    def squared(x: Tensor) -> tuple[Tensor]:
        return (x * x,)

    again, x = Again(lambda: symbolic_trace(squared), Partial()), torch.full((3,), 3.0, requires_grad=True)
    kept = x * 1
    noted = kept_of(again, [kept], [torch.ones(1), kept.view(3, 1)])
    del kept
    (found,) = again.gradients(None, noted, [torch.ones(3)])
    assert found is not None
    assert found.tolist() == [6, 6, 6]


@pytest.mark.usefixtures("none_followed")
def test_a_program_that_follows_backwards_has_its_inputs_kept() -> None:
    """From the first one on, of plain too: it does so again, with temporaries."""
    dispatcher: Any = shapedispatch(lambda x, w: torch.softmax(x, -1) + w, hints=(), exact=True, store=False)
    dispatcher.core.settings, w = dataclasses.replace(dispatcher.core.settings, judge="online"), leaves()[1]
    for _ in range(12):
        x = torch.ones(4, 4, requires_grad=True)
        [of] = torch.autograd.grad(dispatcher(x * 2, w).pow(2).sum(), (x,), create_graph=True)
        of.sum().backward()
    assert tracked.ever


def test_a_step_holds_its_inputs_no_longer_than_its_backward(pair: Pair) -> None:
    """What was noted goes with what was kept."""
    _, build = pair
    x, w = leaves()
    temporary = x * 2
    gone = weakref.ref(temporary)
    loss = scalar(build(temporary, w))
    del temporary
    loss.backward()
    gc.collect()
    assert gone() is None


def saves_it(x: Tensor, w: Tensor) -> Tensor:
    """Code keeps what it is given, and makes the exponential anew; plain keeps that."""
    return torch.exp(x) + w


def saves_nothing(x: Tensor, w: Tensor) -> Tensor:
    """No gradient depends on any number."""
    return x * 2 + w


def saves_it_for_another(x: Tensor, w: Tensor) -> Tensor:
    """Code keeps what it is given though that has no gradient itself; plain keeps its exponential."""
    return torch.exp(x) * w


def has_one_backward_for_two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Operators may have to run on what it is given; plain keeps nothing."""
    return x * 2 + w, x * 3 - w


@pytest.mark.parametrize("whole", [False, True], ids=["between codes", "AOTAutograd's own"])
@pytest.mark.parametrize("ever", [False, True], ids=["at first", "once one was followed"])
@pytest.mark.parametrize("fn", [saves_it, saves_nothing, saves_it_for_another, has_one_backward_for_two])
@pytest.mark.parametrize("history", [0, 1])
def test_what_a_result_is_added_to_goes_where_no_backward_comes(
    fn: Callable[[Tensor, Tensor], Any], ever: bool, whole: bool, history: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its history leads to the call from then on, which must not hold it for ever."""
    monkeypatch.setattr(tracked, "ever", ever)
    if whole:
        monkeypatch.setattr(inductor, "past_autograd", lambda run, *others: run)
    f, w, gone = pinned(built(fn, hints=(), exact=True), "exact"), torch.zeros(4, requires_grad=True), list[Any]()
    for _ in range(3 * RECENT):
        x = torch.randn(3, 4) + (w if history else 0)
        x += results(f(x, w))[0]
        gone.append(weakref.ref(x))
        del x
    gc.collect()
    assert sum(one() is not None for one in gone) <= RECENT


@pytest.mark.usefixtures("none_followed")
def test_what_is_held_has_the_history_of_its_call() -> None:
    """A second derivative goes on through it, whatever was done to its name since."""
    w = torch.full((3,), 2.0, requires_grad=True)
    again, x = Again(lambda: symbolic_trace(lambda x: (x * x * x,)), Partial()), w * 3
    noted = kept_of(again, [x], [x.view(3, 1)])
    del x
    given = torch.ones(3, requires_grad=True)
    (found,) = again.gradients(None, noted, [given])
    assert found is not None
    of_w, of_given = torch.autograd.grad(found.sum(), [w, given])
    assert (found.tolist(), of_w.tolist(), of_given.tolist()) == ([108] * 3, [108] * 3, [108] * 3)


def test_a_penalty_does_not_stop_a_program_that_learns() -> None:
    """Plain, and the build, in turn: what runs changes no number."""
    dispatcher, (_, w) = built(single, hints=(), exact=True), leaves()
    for seed in range(12):
        x = leaves(seed)[0]
        same(penalty(dispatcher, (x, w)), penalty(single, (x, w)))


@pytest.mark.parametrize("fn", [saves_nothing, has_one_backward_for_two])
def test_an_argument_that_was_frozen_at_the_call_is_told(fn: Callable[..., Any]) -> None:
    """It might get a gradient where plain gives none; a backward that nobody follows is asked for none."""
    f, w = pinned(built(fn, hints=(), exact=True), "exact"), torch.ones(4)
    x = torch.full((4,), 3.0, requires_grad=True)
    made = scalar(f(x, w))
    w.requires_grad_()
    with pytest.raises(RuntimeError, match="needed no gradient then"):
        torch.autograd.grad(made, (x,), create_graph=True, retain_graph=True)
    batch = torch.autograd.grad(made, (x,), torch.ones(2), is_grads_batched=True, retain_graph=True)
    (one,) = torch.autograd.grad(made, (x,))
    assert_same(batch[0], torch.stack([one, one]))


@pytest.mark.parametrize("fn", [saves_nothing, has_one_backward_for_two])
def test_an_argument_that_was_detached_since_is_told(fn: Callable[..., Any]) -> None:
    """Its history is gone with which a second derivative would go on: none of it would be a wrong one."""
    f, w = pinned(built(fn, hints=(), exact=True), "exact"), torch.ones(4, requires_grad=True)
    x = w * 3
    made = scalar(f(x, w))
    x.detach_()
    with pytest.raises(RuntimeError, match="detached since"):
        torch.autograd.grad(made, (w,), create_graph=True)


@pytest.mark.parametrize("fn", [single, chained])
def test_a_checkpoint_gives_what_it_has_saved_once(fn: Callable[..., Any]) -> None:
    """It recomputes a call for its backward, whichever results that begins at."""

    def made(call: Callable[..., Any]) -> Sequence[Tensor]:
        x, w = leaves()
        loss = scalar(checkpoint(call, x * 2, w, use_reentrant=False))
        return torch.autograd.grad(loss, (x, w), create_graph=True)

    same(made(pinned(built(fn, hints=(), exact=True), "exact")), made(fn))


@pytest.mark.parametrize("fn", [single, chained])
def test_a_parameter_that_was_frozen_since_is_no_matter(fn: Callable[..., Any]) -> None:
    """It has no history, and who has frozen it asks for no gradient of it."""

    def made(call: Callable[..., Any]) -> Sequence[Tensor]:
        x, w = leaves()
        loss = scalar(call(x, w))
        w.requires_grad_(False)
        of = torch.autograd.grad(loss, (x,), create_graph=True)
        return *of, *torch.autograd.grad(of[0].pow(2).sum(), (x,))

    same(made(pinned(built(fn, hints=(), exact=True), "exact")), made(fn))
