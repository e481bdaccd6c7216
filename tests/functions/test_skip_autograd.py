"""A build with a backward, past AOTAutograd's wrappers: a step gives what plain's gives, and what is more they do."""

from __future__ import annotations

import contextvars
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import set_mode
from shapedispatch.functions.compile import autograd, inductor
from shapedispatch.functions.parts.again import Again
from shapedispatch.functions.parts.partial import Partial
from shapedispatch.hit import call, profiling
from tests.helpers import assert_same, built, pinned

PASSES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 13)
"""Older releases have other words for what AOTAutograd's function does: its wrappers stay."""
only_there = pytest.mark.skipif(not PASSES, reason="this torch's wrappers stay")
X = torch.linspace(-1, 1, 32).reshape(4, 8)
RUNS = 3


@pytest.fixture(autouse=True)
def in_grad_mode() -> Iterator[None]:
    """Where there is a backward at all."""
    with torch.enable_grad():
        yield


def scales(x: Tensor, weight: Tensor) -> Tensor:
    """A product and a sum; it keeps its arguments and a value between."""
    y = torch.tanh(x * weight)
    return y * x + (y + weight).sum(-1, keepdim=True)


def hands_on(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A view of an argument."""
    return x.t(), x * weight


def counts(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A result without a gradient."""
    return x * weight, (x > 0).sum()


def same_twice(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Two results in one memory."""
    y = x * weight
    return y, y.t()


def casts(x: Tensor, weight: Tensor) -> Tensor:
    """Under an autocast of its own."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ weight.t()).float() * 2


def fresh() -> tuple[Tensor, Tensor]:
    """A leaf with a gradient, and one that is none."""
    return X.clone().requires_grad_(), (X.flip(0) + 2).requires_grad_() * 1


def build_of(fn: Callable[..., Any]) -> Any:
    """Its exact build as the choice, which has run so often that it is past the wrappers if it ever is."""
    f = pinned(built(fn, exact=True, hints=()), "exact")
    for _ in range(2):
        f(*fresh())
    return f


@pytest.fixture(scope="module")
def scaled() -> Any:
    """The build of `scales`."""
    with torch.enable_grad():
        return build_of(scales)


def is_ours(result: Any) -> bool:
    """Whether a result's node is of the function that calls the codes as they are."""
    of: Any = (result if isinstance(result, Tensor) else result[-1]).grad_fn
    return "between_codes" in getattr(getattr(of, "_forward_cls", None), "__qualname__", "")


def step(f: Callable[..., Any], seeds: Callable[[Tensor], Tensor] = torch.ones_like) -> list[Any]:
    """What a forward and a backward leave."""
    x, weight = fresh()
    results = f(x, weight)
    outputs = [one for one in ((results,) if isinstance(results, Tensor) else results) if one.requires_grad]
    gradients = torch.autograd.grad(outputs, (x, weight), [seeds(one) for one in outputs], allow_unused=True)
    return [*((results,) if isinstance(results, Tensor) else results), *gradients]


@pytest.mark.parametrize(
    ("fn", "passed"),
    [(scales, True), (hands_on, False), (counts, False), (same_twice, False), (casts, True)],
)
def test_each_step_of_a_build_leaves_what_plains_does(fn: Callable[..., Any], passed: bool) -> None:
    """At its first run and past the wrappers; and what does more than compute keeps them."""
    f = pinned(built(fn, exact=True, hints=()), "exact")
    for _ in range(RUNS):
        for found, expected in zip(step(f), step(fn), strict=True):
            assert_same(found, expected)
    assert f.explain(*fresh()).variant == "exact"
    assert is_ours(f(*fresh())) is (passed and PASSES)


def test_sizes_that_vary_are_kept_for_the_backward() -> None:
    """Of a build for more than one size its code is given them."""

    def flattens(x: Tensor, weight: Tensor) -> Tensor:
        return (x * weight).reshape(-1) * x.shape[0]

    f = pinned(built(flattens, dims={"x": "M K", "weight": "M K"}, hints={"M": (64,)}), "hint[M=64]")
    for rows in (4, 6, 9):
        x = torch.rand(rows, 8, requires_grad=True)
        weight = torch.rand(rows, 8, requires_grad=True)
        seed = torch.rand(rows * 8)
        found, expected = (torch.autograd.grad(one(x, weight), (x, weight), seed) for one in (f, flattens))
        assert_same(found, expected)
    assert is_ours(f(x, weight)) is PASSES


@pytest.mark.parametrize(
    "seeds",
    [
        lambda one: torch.rand_like(one).t().contiguous().t() if one.dim() == 2 else torch.rand_like(one),
        lambda one: torch.tensor(2.0).expand_as(one),
    ],
    ids=["transposed", "expanded"],
)
def test_gradients_that_lie_otherwise_are_taken(scaled: Any, seeds: Callable[[Tensor], Tensor]) -> None:
    """The code reads them where it expects them: what lies otherwise is copied by AOTAutograd's backward."""
    steps = []
    for one in (scaled, scales):
        torch.manual_seed(0)
        steps.append(step(one, seeds))
    for found, expected in zip(*steps, strict=True):
        torch.testing.assert_close(found, expected)  # not strides: those of gradients are the code's own


def test_a_backward_runs_again_only_where_it_is_told_to(scaled: Any) -> None:
    """What was kept is let go of, else."""
    x, weight = fresh()
    result = scaled(x, weight).sum()
    kept = torch.autograd.grad(result, (x, weight), retain_graph=True)
    assert_same(torch.autograd.grad(result, (x, weight)), kept)
    with pytest.raises(RuntimeError, match="a second time"):
        torch.autograd.grad(result, (x, weight))


def test_what_is_written_in_between_is_an_error() -> None:
    """The backward needs what was there."""
    x, weight = fresh()
    result = build_of(scales)(x, weight).sum()
    weight.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@pytest.mark.parametrize(
    "gradient",
    [torch._efficientzerotensor((4, 8)), torch._neg_view(X), X.requires_grad_(False)],
    ids=["0", "-", "as is"],
)
def test_a_gradient_whose_memory_is_not_its_value_is_its_value(gradient: Tensor) -> None:
    """Autograd makes zeros that have no memory, of which a library would crash, and what has a neg bit."""
    f = pinned(built(scales, exact=True, hints=()), "exact")
    for _ in range(4):  # by AOTAutograd's function, and past it
        found = []
        for one in (scales, f):
            x, weight = fresh()
            found.append(torch.autograd.grad(one(x, weight), (x, weight), gradient))
        assert_same(*found)


def test_a_backward_that_is_to_be_differentiated_is_followed(scaled: Any) -> None:
    """Of what was computed in between, a second derivative would be zero: so operators run."""
    x, weight = fresh()
    [gradient] = torch.autograd.grad(scaled(x, weight).sum(), (x,), create_graph=True)
    [found] = torch.autograd.grad(gradient.sum(), (weight,))
    with set_mode("off"):
        [gradient] = torch.autograd.grad(scaled(x, weight).sum(), (x,), create_graph=True)
    assert_same(found, torch.autograd.grad(gradient.sum(), (weight,))[0])


@pytest.mark.parametrize("fn", [lambda x: (x * 2).sin().sum(), lambda x: x.exp().reshape(2, 2)])
def test_a_hessian_is_plains(fn: Callable[[Tensor], Tensor]) -> None:
    """Where the backward needs nothing that has a history, and where the result is a view."""
    build = built(fn, hints=(), exact=True).variant("exact")
    x = torch.ones(4)
    build(x.clone().requires_grad_())
    found, expected = (torch.autograd.functional.hessian(lambda x, one=one: one(x).sum(), x) for one in (build, fn))
    assert_same(found, expected)


class Stop(torch.autograd.Function):
    """What comes behind a result, and has no gradient for it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The same values."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> None:
        """None."""


@pytest.mark.parametrize("fn", [scales, hands_on, counts])
def test_no_gradient_is_no_gradient(fn: Callable[..., Any]) -> None:
    """At a build's first run and past the wrappers: zeros would be a gradient, and end as no number at a root."""
    f = pinned(built(fn, exact=True, hints=()), "exact")
    for _ in range(RUNS):
        for one in (f, fn):
            x, weight = fresh()
            results = one(x, weight)
            result = results if isinstance(results, Tensor) else [one for one in results if one.requires_grad][-1]
            loss = Stop.apply(result).sum() + (x * 2).sum()  # type: ignore[no-untyped-call]  # torch says nothing
            gradients = torch.autograd.grad(loss, (x, weight), allow_unused=True)
            assert_same(gradients, (torch.full_like(x, 2.0), None))


def test_a_release_that_makes_its_nodes_in_another_way_compiles_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take zeros where there is no gradient."""
    monkeypatch.setattr(autograd, "_MAKING", "no_such_hook")
    f = built(scales, exact=True, hints=())
    with pytest.warns(UserWarning, match="no gradient would be a gradient of 0"):
        f(*fresh())
    assert f.explain(*fresh()).variant == "plain"
    assert not hasattr(torch.autograd.Function, "no_such_hook")


def test_a_node_is_named_as_aotautograds(scaled: Any) -> None:
    """Who prints a graph sees no other name than before."""
    assert type(scaled(*fresh()).grad_fn).__name__ == "CompiledFunctionBackward"


def test_without_grad_mode_nothing_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first run there says nothing of autograd: the next that has it is watched."""
    seen: list[Any] = []
    monkeypatch.setattr(inductor, "_seen", lambda whole, graph, inputs: (seen.append(graph) or whole(*inputs), None))
    parts = SimpleNamespace(), SimpleNamespace()
    run = inductor.skip_wrappers(lambda *inputs: list(inputs), parts[0], False, parts[1])
    with torch.no_grad():
        run(X)
    assert seen == []
    run(X)
    assert seen == [parts[0]]


@only_there
def test_a_profiler_sees_the_whole_step(scaled: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its trace has the ranges that it has without the shortcut."""
    before = scaled(*fresh())
    monkeypatch.setattr(profiling.state, "_is_profiler_enabled", True)
    assert is_ours(before)
    assert not is_ours(scaled(*fresh()))


def test_a_torch_that_says_less_keeps_the_wrappers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is around a backward cannot be asked for."""
    monkeypatch.setattr(inductor, "why_off", lambda feature: f"no {feature}")
    whole = SimpleNamespace()
    assert inductor.skip_wrappers(whole, SimpleNamespace(), False, SimpleNamespace()) is whole


# --- the function of autograd by itself ---


class Twice(torch.autograd.Function):
    """Stands for AOTAutograd's: what is asked of it, and a count of its backwards."""

    boxed_grads_call = True
    metadata = SimpleNamespace(
        num_forward_returns=1,
        tensors_saved_for_backwards_with_vc_check_slice=slice(1, None),
        symints_saved_for_backwards_slice=slice(0, 0),
    )
    again = Again(lambda: None, Partial())
    runs = 0

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, ...]:
        """Never called: ours is."""
        raise AssertionError

    @staticmethod
    def backward(ctx: Any, gradients: list[Any]) -> Tensor:
        """The same as the code's."""
        Twice.runs += 1
        return gradients[0] * 2


ROWS: tuple[call.Layout, ...] = ((torch.Size([4, 8]), (8, 1), None),)


def twice(layouts: tuple[call.Layout, ...] = ROWS) -> tuple[Callable[[Tensor], Any], list[int]]:
    """``x * 2`` by codes that note how much of what the backward is given lives on when it lets go of it."""
    given: list[int] = []

    def backward(inputs: list[Any]) -> tuple[Tensor]:
        kept, gradient = map(weakref.ref, inputs)
        result = inputs[1] * 2
        inputs.clear()
        given.append(sum(one() is not None for one in (kept, gradient)))
        return (result,)

    Twice.runs = 0
    return call.between_codes(Twice, lambda inputs: (inputs[0] * 2, inputs[0] * 3), backward, layouts), given


@only_there
def test_the_code_holds_all_that_was_kept() -> None:
    """What it lets go of is free while it runs: a step takes no more memory than before."""
    run, given = twice()
    x = X.clone().requires_grad_()
    (run(x)[0] * 1).backward(torch.ones_like(X))
    assert_same(x.grad, torch.full_like(X, 2))
    assert (given, Twice.runs) == ([0], 0)


@only_there
@pytest.mark.parametrize("what", ["grad mode", "profiler", "transform", "dynamo", "layout"])
def test_what_is_more_than_a_backward_is_aotautograds(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of what it would have done something about: its own backward runs."""
    layouts = ((torch.Size([4, 8]), (1, 4), None),) if what == "layout" else ROWS
    run, given = twice(layouts)
    x = X.clone().requires_grad_()
    result = run(x)[0]
    if what == "profiler":
        monkeypatch.setattr(profiling.state, "_is_profiler_enabled", True)
    if what == "transform":
        monkeypatch.setattr(Again, "is_tracked", staticmethod(lambda: True))
    if what == "dynamo":
        monkeypatch.setattr(call, "dynamo_callback", lambda: False)
    torch.autograd.grad(result, (x,), torch.ones_like(X), create_graph=what == "grad mode")
    monkeypatch.undo()
    assert (given, Twice.runs) == ([], 1)


@pytest.mark.parametrize(
    ("gradient", "layout", "lies"),
    [
        (X, ROWS[0], True),
        (X.t(), (torch.Size([8, 4]), (1, 8), None), True),
        (X.t(), (torch.Size([8, 4]), (4, 1), None), False),
        (X[:2], ROWS[0], False),
        (X, (None, None, torch.contiguous_format), True),
        (X.t(), (None, None, torch.contiguous_format), False),
        (torch.nn.Parameter(X), ROWS[0], False),
        (None, ROWS[0], False),
    ],
)
def test_a_gradient_lies_as_the_code_takes_it(gradient: Any, layout: call.Layout, lies: bool) -> None:
    """By its type, its sizes and strides, or its memory format."""
    assert call.lies_as(gradient, layout) is lies


@only_there
def test_the_context_of_the_caller_is_that_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """As AOTAutograd has it: context variables are those of who called the backward, maybe in another thread."""
    variable, seen = contextvars.ContextVar("variable", default=0), []
    context = contextvars.copy_context()
    context.run(variable.set, 3)
    run = call.between_codes(
        Twice, lambda inputs: (inputs[0] * 2,), lambda inputs: (seen.append(variable.get()) or inputs[0],), ROWS
    )
    x = X.clone().requires_grad_()
    run(x)[0].backward(torch.ones_like(X))
    monkeypatch.setattr(call, "is_stashed", lambda name: name == "context")
    monkeypatch.setattr(call, "stashed", lambda name: context)
    run(x)[0].backward(torch.ones_like(X))
    assert seen == [0, 3]


@pytest.mark.parametrize("what", ["", "more to do", "no grad mode", "a profiler"])
def test_the_whole_runs_where_there_is_more_to_do(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or no backward to come, or one who should see all of it."""
    found: list[Any] = [None if what == "more to do" else lambda x: "past"]
    run = call.past_autograd(lambda x: "whole", lambda x: "first", found)
    monkeypatch.setattr(profiling.state, "_is_profiler_enabled", what == "a profiler")
    with torch.set_grad_enabled(what != "no grad mode"):
        assert run(X) == ("whole" if what else "past")


def test_results_of_two_functions_are_of_none() -> None:
    """Something stands between the graph and what the caller is given."""
    x = X.clone().requires_grad_()
    run, _ = twice()
    [one], [other] = run(x), run(x)
    assert inductor._function_of([one]) is not None
    assert inductor._function_of([one, other]) is None


@pytest.mark.parametrize("change", ["", "an input", "an output", "two runs"])
def test_wrappers_that_do_something_stay(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it changes of what goes in or comes out, or how often the graph runs."""
    made = SimpleNamespace(current_callable=lambda inputs: (inputs[0] * 2, inputs[0]))

    def whole(x: Tensor) -> list[Tensor]:
        given = x + 0 if change == "an input" else x
        answer = made.current_callable([given])
        if change == "two runs":
            made.current_callable([given])
        return [answer[0] + 0 if change == "an output" else answer[0]]

    monkeypatch.setattr(inductor, "_function_of", lambda outputs: Twice)
    monkeypatch.setattr(inductor, "_gradient_layouts", lambda *_: list(ROWS))
    found: list[Any] = []
    inductor._watched_step(whole, made, made, (X.clone().requires_grad_(),), found)
    assert (found == [None]) is bool(change)


SAID = {
    "num_unsafe_view_outputs": 1,
    "num_tensors_saved_with_no_vc_check": 1,
    "num_opaque_objects_saved_for_bw": 1,
    "num_backward_tokens": 1,
    "num_graphsafe_rng_states": 1,
    "bw_donated_idxs": [0],
    "deterministic": False,
    "indices_of_inputs_that_requires_grad_with_mutations_in_bw": [0],
    "num_outputs": 2,
    "num_forward_returns": 2,
}


def told(**other: Any) -> tuple[Any, list[Tensor], Any, Any]:
    """A function with a record that says that there is nothing more, but for what is ``other``."""
    plain = dict.fromkeys(SAID, 0) | {"deterministic": None, "num_outputs": 1, "num_forward_returns": 1}
    metas = [SimpleNamespace(memory_format=SimpleNamespace(size=X.shape, stride=X.stride(), memory_format=None))]
    said = SimpleNamespace(**(plain | {"subclass_tangent_meta": metas} | other))
    forward, backward = object(), object()
    of = SimpleNamespace(
        compiled_fw=forward,
        compiled_bw=backward,
        metadata=said,
        maybe_subclass_metadata=None,
        boxed_grads_call=True,
        maybe_clear_saved_tensors=print,
    )
    return of, [X], forward, backward


def test_a_function_that_does_no_more_is_known() -> None:
    """By all that AOTAutograd says of it."""
    assert inductor._gradient_layouts(*told()) == [(X.shape, X.stride(), None)]


@pytest.mark.parametrize("name", SAID)
def test_a_function_that_does_more_is_left_alone(name: str) -> None:
    """Each of what its record may say."""
    assert inductor._gradient_layouts(*told(**{name: SAID[name]})) is None


@pytest.mark.parametrize("name", [*SAID, "subclass_tangent_meta"])
def test_a_release_that_says_less_is_left_alone(name: str) -> None:
    """What is not said of it is taken for work."""
    arguments = told()
    delattr(arguments[0].metadata, name)
    assert inductor._gradient_layouts(*arguments) is None


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("compiled_fw", None),
        ("compiled_bw", None),
        ("maybe_subclass_metadata", "a subclass"),
        ("boxed_grads_call", False),
        ("maybe_clear_saved_tensors", None),
    ],
)
def test_another_function_is_left_alone(name: str, other: Any) -> None:
    """One of other parts, of subclasses, or of a release that hands gradients over otherwise."""
    arguments = told()
    setattr(arguments[0], name, other)
    assert inductor._gradient_layouts(*arguments) is None
