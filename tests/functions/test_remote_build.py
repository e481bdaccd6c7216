"""Builds whose code another process makes."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shapedispatch import shapedispatch
from shapedispatch.backend import OfferRequest
from shapedispatch.functions import remote_build
from shapedispatch.functions.compile import tracer
from shapedispatch.functions.compile.artifact import ShapeConditions
from shapedispatch.functions.fake_args import fake_arguments
from shapedispatch.functions.guards.class_values import CLASSES_ARE_WATCHED
from tests.built_here import BuiltHere, learning_here
from tests.helpers import SelectNone, assert_same, together

pytestmark = pytest.mark.operators_called


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> BuiltHere:
    """Whoever builds; everything is worth it at once."""
    return learning_here(monkeypatch)


def learned(dispatcher: Any, *calls: tuple[Any, ...], times: int = 160) -> Any:
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


def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of one value, of which one has an infinite slope at 0."""
    y = torch.tanh(x @ w)
    return y.square().sum(-1), (y * 0).sqrt()


X, W = torch.linspace(-2, 2, 640).reshape(40, 16), torch.linspace(-0.5, 0.5, 256).reshape(16, 16)


@pytest.mark.generated
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


@pytest.mark.generated
def test_gradients_are_plains(here: BuiltHere) -> None:
    """Of a build with a backward."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    build = f.variant("hint[M=64]")
    for size in (40, 3):
        ours = torch.autograd.grad(build(x[:size], w).square().sum(), (x, w))
        assert_same(ours, torch.autograd.grad(composed(x[:size], w).square().sum(), (x, w)))


@pytest.mark.generated
def test_no_gradient_is_no_gradient(here: BuiltHere) -> None:
    """Of code that was loaded, too: zeros would be one."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    stop: Any = SelectNone.apply
    undefined = stop(f.variant("hint[M=64]")(x, w)).sum() + (x * 2).sum()
    assert_same(torch.autograd.grad(undefined, (x, w), allow_unused=True), (torch.full_like(x, 2.0), None))


@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
def test_a_backward_that_may_begin_at_one_of_two_results_is_not_ordered(here: BuiltHere) -> None:
    """It is told by the trace, and no other process has to try."""
    f = shapedispatch(lambda x: (x.sin().mul_(2), x.sqrt()), dims={"x": "M _"}, hints=(64,), store=False)
    x = torch.ones(40, 16, requires_grad=True)
    learned(f, (x,))
    assert "begin at some of its results" in str(f.explain(x).refusals)
    assert here.tasks == []


@pytest.mark.generated
def test_a_function_with_two_results_is_built_in_parts(here: BuiltHere) -> None:
    """Its code crosses as one, for all sizes of the class; a backward begins at any of them."""

    f = shapedispatch(both, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    build = f.variant("hint[M=64]")
    assert len(here.tasks) == 1
    gc.collect()
    [held] = f.core.table.builds()
    assert held.code.modules
    assert all(sys.modules.get(module.__name__) is module for module in held.code.modules)
    for size in (40, 3):
        for place in (0, 1, 0):
            ours = torch.autograd.grad(build(x[:size], w)[place].sum(), (x, w))
            assert_same(ours, torch.autograd.grad(both(x[:size], w)[place].sum(), (x, w)))


@pytest.mark.generated
def test_calls_whose_backwards_begin_at_one_result_are_ordered_anew(here: BuiltHere) -> None:
    """Both results have one backward at first, which crosses with the operators that run where it cannot."""

    f = shapedispatch(both, dims={"x": "M _"}, hints=(64,), store=False)
    w, parts = W.clone().requires_grad_(), []
    for size in (40, 9):
        x = X[:size].clone().requires_grad_()
        learned(f, (x, w))
        [held] = f.core.table.builds()
        build = f.variant("hint[M=64]")
        parts.append((together(build(x, w)), "parts" in str(held.notes())))
        for results in ((0, 1), (0,)):
            ours, plains = ([made[place].sum() for place in results] for made in (build(x, w), both(x, w)))
            assert_same(torch.autograd.grad(ours, (x, w)), torch.autograd.grad(plains, (x, w)))
    assert parts == [(True, False), (False, True)]
    assert len(here.tasks) == 2


def apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two results of different inputs: they have a backward each."""
    return torch.tanh(x @ w), torch.exp(w * 0.1)


@pytest.mark.generated
@pytest.mark.parametrize("fn", [composed, both, apart])
def test_a_backward_that_is_followed_has_the_operators(here: BuiltHere, fn: Callable[..., Any]) -> None:
    """Of what was loaded whole or in parts: they cross with its code."""

    def penalty(run: Callable[..., Any]) -> tuple[Tensor, ...]:
        made = run(x, w)
        first = made[0] if isinstance(made, tuple) else made
        (slope,) = torch.autograd.grad(first.sum(), (x,), create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, w))

    f = shapedispatch(fn, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    assert_same(penalty(f.variant("hint[M=64]")), penalty(fn))


@pytest.mark.generated
@pytest.mark.parametrize("several", [False, True])
def test_what_draws_is_not_followed(here: BuiltHere, several: bool) -> None:
    """Its operators would draw others, of what was loaded whole or in parts."""

    def drops(x: Tensor, w: Tensor) -> Any:
        y = F.dropout(torch.tanh(x @ w), 0.5)
        return (y, torch.exp(w * 0.1)) if several else y

    f = shapedispatch(drops, dims={"x": "M _"}, hints=(64,), store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    made = f.variant("hint[M=64]")(x, w)
    with pytest.raises(RuntimeError, match="draws random numbers"):
        torch.autograd.grad((made[0] if several else made).sum(), (x,), create_graph=True)


@pytest.mark.generated
@pytest.mark.skipif(not CLASSES_ARE_WATCHED, reason="before torch 2.13 such an index ends the process: no build")
@pytest.mark.parametrize("several", [False, True])
def test_what_draws_and_raises_takes_its_draws_back(here: BuiltHere, several: bool) -> None:
    """Plain is called in its place, and draws its own: of one result or in parts."""

    def drops(x: Tensor, w: Tensor, index: Tensor) -> Any:
        y = F.dropout(x @ w, 0.5)
        return (y.sin()[index], y.cos()) if several else y.sin()[index]

    f = shapedispatch(drops, dims={"x": "M _"}, hints=(64,), store=False)
    w, index = W.clone().requires_grad_(), torch.tensor([0, 1])
    learned(f, (X, w, index))
    before, build = torch.get_rng_state(), f.variant("hint[M=64]")
    with pytest.raises((IndexError, RuntimeError), match="bounds|range"):
        build(X, w, torch.tensor([0, 99]))
    assert torch.equal(torch.get_rng_state(), before)
    build(X, w, index)
    assert not torch.equal(torch.get_rng_state(), before)


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


def test_a_method_is_built_though_its_parameters_have_gradients(here: BuiltHere) -> None:
    """They cannot be sent; a training loop has them at most calls."""
    layer, x = Layer(), torch.randn(8, 16)
    f = shapedispatch(Layer.forward, hints=(), exact=True, store=False)
    for one in layer.parameters():
        one.grad = torch.ones_like(one)
    learned(f, (layer, x))
    assert "exact" in variants(f, layer, x)
    assert all(one.grad is not None and bool((one.grad == 1).all()) for one in layer.parameters())


def views(x: Tensor) -> tuple[Tensor, Tensor]:
    """Results that share memory."""
    y = x.sin() * 2
    return y, y[:4]


@pytest.mark.generated
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


@pytest.mark.generated
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


def test_of_other_sizes_the_call_itself_tells_what_fakes_would(here: BuiltHere) -> None:
    """Whether a build takes them: one for these very sizes, and one whose code wants them so."""
    f = learned(shapedispatch(composed, dims={"x": "M _"}, hints=(64,), exact=True, store=False), (X, W))
    exact, conditions = build_of(f, exact=True), ShapeConditions("L['t0'] > 16 and L['t0'] % 2 == 0", (0,))
    for build in (exact, replace(build_of(f, exact=False), conditions=conditions)):
        for x, takes in ((X, True), (X[:9], False)):
            scope = {"x": x, "w": W}
            assert build.takes(scope, (x, W), {}) is takes
            assert (build.accepts(fake_arguments(scope, looked_at=True)) == ()) is takes


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


# -- one trace of a class


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the functions that are traced for builds."""
    found: list[str] = []
    made = tracer.trace

    def noted(fn: Any, *args: Any, **kwargs: Any) -> Any:
        found.append(fn.__name__)
        return made(fn, *args, **kwargs)

    monkeypatch.setattr(tracer, "trace", noted)
    return found


def build_of(dispatcher: Any, *, exact: bool) -> Any:
    """The one build that is for certain sizes alone, or for all."""
    (found,) = (build for build in dispatcher.core.table.builds() if bool(build.conditions.sizes) is exact)
    return found


def test_a_class_is_traced_once_for_all_its_builds(here: BuiltHere, traces: list[str]) -> None:
    """For what it does, each hint, and the very sizes of two keys."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64, 256), exact=True, store=False)
    learned(f, (X, W), (X[:9], W), times=240)
    assert traces == ["composed"]
    assert len(here.tasks) == 4
    for size in (40, 9):
        assert "exact" in variants(f, X[:size], W)
        assert_same(f.variant("exact")(X[:size], W), composed(X[:size], W))


def test_sizes_that_were_not_seen_to_vary_are_traced_once(here: BuiltHere, traces: list[str]) -> None:
    """For what the call does, and for its code; other sizes bring the trace of the class."""
    f = shapedispatch(composed, store=False)
    learned(f, (X, W))
    assert (traces, "exact" in variants(f, X, W), len(here.tasks)) == (["composed"], True, 1)
    learned(f, (X[:9], W), (X[:11], W))
    assert traces == ["composed"] * 2
    for size in (40, 9, 11, 3):
        assert_same(f(X[:size], W), composed(X[:size], W))


def breaks(x: Tensor) -> Tensor:
    """Of which no whole graph can be traced."""
    return torch.tanh(x) if x.sum() > 0 else torch.sigmoid(x)


def test_what_cannot_be_traced_is_not_tried_for_ever(here: BuiltHere, traces: list[str]) -> None:
    """What it does is not known then, and nothing is built."""
    f = shapedispatch(breaks, store=False)
    with pytest.warns(UserWarning, match="Data-dependent branching"):
        learned(f, (X,))
    assert len(traces) == 3  # for its code, with all sizes dynamic, and with none
    assert f.explain(X).variant == "plain"


def test_a_trace_of_another_state_is_not_what_is_built(here: BuiltHere) -> None:
    """It was made for what the call does, and what it reads has changed before its code was ordered."""
    f, layer = shapedispatch(Layer.forward, store=False), Layer().requires_grad_(False)
    core = f.core
    key = core.backend.key((layer, X), {})
    call = core.backend._build_request((layer, X), {}, key, core.table, OfferRequest())
    assert remote_build.trace_alone(call, core.table) is not None
    assert remote_build._taken_alone(call, core.table) is not None
    assert remote_build._taken_alone(call, core.table) is None  # it is kept no longer
    assert remote_build.trace_alone(call, core.table) is not None
    layer.scale = 3.0
    assert remote_build._taken_alone(call, core.table) is None


@pytest.mark.generated
def test_code_for_the_very_sizes_has_them_as_constants(here: BuiltHere) -> None:
    """As if it had been traced with them; it takes no others."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), exact=True, store=False)
    learned(f, (X, W))
    exact, hint = build_of(f, exact=True), build_of(f, exact=False)
    assert "ks0" in hint.code.text()
    assert "ks0" not in exact.code.text()
    assert "640" in exact.code.text()  # as many numbers as there are in X
    same, other = (fake_arguments({"x": x, "w": W}, looked_at=True) for x in (X, X[:9]))
    assert exact.accepts(same) == hint.accepts(other) == ()
    assert "input 0 of its graph is 40" in exact.accepts(other)[0]


def test_sizes_that_go_another_way_are_traced_anew(here: BuiltHere, traces: list[str]) -> None:
    """The guards of the class's trace are asked at each size that is built for."""
    f = shapedispatch(sized, dims={"x": "M"}, hints=(64,), exact=True, store=False)
    calls = [(torch.linspace(-2, 2, size),) for size in (32, 30)]
    learned(f, *calls)
    assert len(traces) >= 2
    for call in calls:
        assert_same(f(*call), sized(*call))
        assert_same(f.variant("exact")(*call), sized(*call))


def scaled(x: Tensor, by: int) -> Tensor:
    """With a number that is no size."""
    return torch.tanh(x * by) + x


def test_a_number_that_varies_becomes_no_constant(here: BuiltHere) -> None:
    """Where numbers are inputs of builds, the very sizes are traced by themselves."""
    f = shapedispatch(scaled, dims={"x": "M _"}, hints=(64,), exact=True, store=False)
    numbers = (3, 5, 7, 11)
    learned(f, *((X, number) for number in numbers))
    assert "exact" in {name for number in numbers for name in variants(f, X, number)}
    assert not any(pickle.loads(task.job).constant for task in here.tasks)
    for number in (3, 5, 7, 11, 13):
        assert_same(f.variant("exact")(X, number), scaled(X, number))
        assert_same(f(X, number), scaled(X, number))


def ranged(x: Tensor) -> tuple[Tensor, range]:
    """Of which the code that Dynamo makes has two names among the globals."""
    return torch.tanh(x) * torch.sigmoid(x), range(3)


def test_builds_of_one_trace_are_let_go_one_by_one(here: BuiltHere) -> None:
    """What each has put among the function's globals goes with it, and nothing that another needs."""
    before = set(globals())
    f = shapedispatch(ranged, dims={"x": "M _"}, hints=(64,), exact=True, store=False)
    learned(f, (X,))
    hint = build_of(f, exact=False)
    f.cache_clear()
    del f
    gc.collect()
    assert_same(hint.call(X[:9]), ranged(X[:9]))
    del hint
    gc.collect()
    assert {name for name in set(globals()) - before if "__import" not in name} == set()  # modules stay, as ever


def test_a_number_of_no_call_becomes_no_constant(here: BuiltHere) -> None:
    """Where a number is a dim, numbers are inputs of the class's trace: that of a closure, too, which may change."""
    by = 3

    def shifted(x: Tensor, n: int) -> Tensor:
        return torch.tanh(x * n) + by

    f = shapedispatch(shifted, dims={"x": "M _", "n": "N"}, hints=(64,), exact=True, store=False)
    learned(f, (X, 7))
    assert "exact" in variants(f, X, 7)
    builds = [build for build in f.core.table.builds() if build.check()((X, 7), {})]
    by = 4
    for build in builds:
        if build.check()((X, 7), {}):
            assert_same(build.run(X, 7), shifted(X, 7))
    assert builds != []


def test_a_size_of_no_argument_becomes_no_constant(here: BuiltHere) -> None:
    """Of a tensor that the user has marked as dynamic, and that is none of the call's."""
    held_by = [torch.ones(5, 16)]
    torch._dynamo.mark_dynamic(held_by[0], 0)

    def stacked(x: Tensor) -> Tensor:
        return torch.tanh(x) * held_by[0].shape[0] + held_by[0].sum()

    f = shapedispatch(stacked, dims={"x": "M _"}, hints=(64,), exact=True, store=False)
    learned(f, (X,))
    builds = [build for build in f.core.table.builds() if build.check()((X,), {})]
    held_by[0] = torch.ones(6, 16)
    for build in builds:
        if build.check()((X,), {}):
            assert_same(build.run(X), stacked(X))
    assert builds != []


@pytest.mark.generated
def test_gradients_of_code_for_the_very_sizes_are_plains(here: BuiltHere) -> None:
    """Compiled of the class's trace, with the sizes as constants."""
    f = shapedispatch(composed, dims={"x": "M _"}, hints=(64,), exact=True, store=False)
    x, w = X.clone().requires_grad_(), W.clone().requires_grad_()
    learned(f, (x, w))
    exact = build_of(f, exact=True)
    ours = torch.autograd.grad(exact.run(x, w).square().sum(), (x, w))
    assert_same(ours, torch.autograd.grad(composed(x, w).square().sum(), (x, w)))
