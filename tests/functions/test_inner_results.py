"""Results that others are made of, where all have one backward: what comes back to them is plain's if anybody looks."""

from __future__ import annotations

import dataclasses
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import get_gradient_edge, register_multi_grad_hook
from torch.fx import Graph, GraphModule, symbolic_trace

from shapedispatch import shapedispatch
from shapedispatch.backward import BEGUN, SEEN, for_leaves
from shapedispatch.functions.parts import joint as joint_module
from shapedispatch.functions.parts.cut import Way
from shapedispatch.functions.parts.joint import Joint
from shapedispatch.functions.parts.partial import Partial
from shapedispatch.functions.parts.plan import MadeOf
from tests.functions.test_cut import inputs, one_of, programs
from tests.functions.test_joint import compiled, joined, leaves, normed
from tests.helpers import assert_same, built, pinned, together

Run = Callable[..., Any]
SIZE = 1
"""The place among `normed`'s results of the one that another is made of."""


def whole(may_run: bool = True) -> Joint:
    """`normed` as one, of which the operators may run or not."""

    def operations() -> GraphModule:
        assert may_run, "the operators are not run"
        return symbolic_trace(normed)

    return Joint(compiled(normed), operations, MadeOf((True, True), ((), (), (SIZE,))), Partial())


def run_by(call: Run, begun: tuple[int, ...] = (0, 1, 2)) -> list[Tensor | None]:
    """The gradients of a backward that begins at these results, and is asked for none by name."""
    given_ = leaves()
    made = call(*given_)
    torch.autograd.backward([made[place].sum() * (place + 1) for place in begun])
    return [one.grad for one in given_]


# ------------------------------------------------------------------------------------------------ where nobody looks


@pytest.mark.parametrize("begun", [(0, 1, 2), (0, 2)], ids=["all", "all but the inner one"])
def test_the_code_runs_where_nobody_sees_what_comes_back(begun: tuple[int, ...]) -> None:
    """A result that another is made of has a gradient from there, and needs none of its own."""
    f = whole(may_run=False)
    assert_same(run_by(f, begun), run_by(normed, begun))
    assert not f.partial.seen


@pytest.mark.parametrize("begun", [(1,), (2,), (0, 1), (1, 2)])
def test_operators_run_where_a_result_has_no_gradient_at_all(begun: tuple[int, ...]) -> None:
    """As of any code with one backward; and it is told."""
    f = whole()
    assert_same(run_by(f, begun), run_by(normed, begun))
    assert f.partial.seen == BEGUN


def test_a_hook_on_a_result_that_no_other_is_made_of_is_no_reason() -> None:
    """What comes to that comes from its user."""
    f, seen = whole(may_run=False), []
    x, w = leaves()
    made = f(x, w)
    for place in (0, 2):
        made[place].register_hook(seen.append)
        made[place].retain_grad()
    torch.autograd.backward([one.sum() for one in made])
    assert [one.unique().tolist() for one in seen] == [[1.0], [1.0]]
    assert not f.partial.seen


def test_a_gradient_that_nobody_can_ask_for_any_more_is_not_seen() -> None:
    """Of a result that is gone."""
    f = whole(may_run=False)
    x, w = leaves()
    made = [*f(x, w)]
    made[SIZE].retain_grad()
    made[SIZE] = made[SIZE].sum()
    gc.collect()
    torch.autograd.backward([one.sum() for one in made])
    assert not f.partial.seen


def test_leaves_alone_are_asked_for_by_ours() -> None:
    """Which the backward of a call of `torch.autograd.grad` cannot be told from one that asks for results."""
    f, (x, w) = whole(may_run=False), leaves()
    made = f(x, w)
    found = torch.autograd.grad(for_leaves(made), (x, w), [torch.ones_like(one) for one in made])
    assert_same(found, torch.autograd.grad(normed(x, w), (x, w), [torch.ones_like(one) for one in made]))
    assert not f.partial.seen


# ------------------------------------------------------------------------------------------------- where somebody does


def keeps(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """By `retain_grad`."""
    made[SIZE].retain_grad()
    torch.autograd.backward([one.sum() for one in made])
    return made[SIZE].grad


def hooks(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """By a hook of the tensor, which may put another in its place."""
    made[SIZE].register_hook(lambda one: (seen.append(one), one * 3)[1])
    torch.autograd.backward([one.sum() for one in made])


def hooks_its_node(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """Before it runs."""
    made[SIZE].grad_fn.register_prehook(lambda given_: seen.extend(given_))
    torch.autograd.backward([one.sum() for one in made])


def hooks_after(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """After it has run."""
    made[SIZE].grad_fn.register_hook(lambda _, given_: seen.extend(given_))
    torch.autograd.backward([one.sum() for one in made])


def hooks_several(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """By a hook for several tensors."""
    register_multi_grad_hook((made[0], made[SIZE]), lambda given_: seen.extend(given_))
    torch.autograd.backward([one.sum() for one in made])


def asks(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """For its gradient and an argument's."""
    return torch.autograd.grad([one.sum() for one in made], (made[SIZE], x))


def asks_for_its_edge(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """As its node."""
    return torch.autograd.grad([one.sum() for one in made], (get_gradient_edge(made[SIZE]), x))


def asks_for_it_alone(made: Any, x: Tensor, seen: list[Any]) -> Any:
    """By a backward that adds to what is asked for."""
    torch.autograd.backward([one.sum() for one in made], inputs=[made[SIZE]])
    return made[SIZE].grad


LOOKS = [keeps, hooks, hooks_its_node, hooks_after, hooks_several, asks, asks_for_its_edge, asks_for_it_alone]


@pytest.mark.parametrize("look", LOOKS)
def test_who_looks_sees_what_plain_gives(look: Run) -> None:
    """And arguments get what they would."""
    f, found = whole(), []
    for call in (f, normed):
        (x, w), seen = leaves(), list[Any]()
        told = look(call(x, w), x, seen)
        found.append((told, seen, x.grad, w.grad))
    assert_same(*found)
    assert f.partial.seen == (BEGUN if look is asks_for_it_alone else SEEN)


def test_a_look_at_one_call_is_none_at_another() -> None:
    """Each has nodes of its own."""
    f = whole()
    first, second = leaves(), leaves()
    looked_at, other = f(*first), f(*second)
    looked_at[SIZE].register_hook(lambda one: None)
    torch.autograd.backward([one.sum() for one in looked_at])
    f.partial.seen = 0
    torch.autograd.backward([one.sum() for one in other])
    assert not f.partial.seen
    assert_same([one.grad for one in first], [one.grad for one in second])


@st.composite
def chains(draw: Callable[[Any], Any]) -> GraphModule:
    """Operations on one product, of which some are results: so most are made of others."""
    graph = Graph()
    x, y, _ = (graph.placeholder(name) for name in ("x", "y", "mask"))
    of = [graph.call_function(torch.mul, (x, y))]
    for _ in range(draw(st.integers(2, 7))):
        of.append(one_of(graph, of, draw))
    graph.output(tuple(draw(st.lists(st.sampled_from(of), min_size=2, max_size=5, unique=True))))
    graph.eliminate_dead_code()
    return GraphModule({}, graph)


@settings(deadline=None, max_examples=100)
@given(gm=st.one_of(chains(), programs()), data=st.data())
def test_whatever_is_seen_is_plains(gm: GraphModule, data: st.DataObject) -> None:
    """Of a backward that begins at any results, with hooks on some, and the gradients of some kept."""
    run, _ = joined(gm, Way.INPUTS)
    every, nothing = frozenset(range(len(run(*inputs())))), frozenset[int]()
    some = st.frozensets(st.sampled_from(sorted(every)))
    begun = data.draw(st.just(every) | some)
    hooked, kept = (data.draw(st.just(nothing) | some) for _ in range(2))
    told = []
    for call in (run, gm):
        given_, seen = inputs(), dict[int, Tensor]()
        made = call(*given_)
        for place, one in enumerate(made):
            if one.requires_grad and place in hooked:
                one.register_hook(functools.partial(seen.__setitem__, place))
            if one.requires_grad and place in kept:
                one.retain_grad()
        ends = [made[place].sum() * (place + 1) for place in begun if made[place].requires_grad]
        if ends:
            torch.autograd.backward(ends)
        told.append((seen, [one.grad for one in made if one.retains_grad], [one.grad for one in given_[:2]]))
    for one, other in zip(*told, strict=True):
        torch.testing.assert_close(one, other, equal_nan=True)


# ------------------------------------------------------------------------------------------------------------ and then


def test_a_second_backward_is_refused_as_plains_is() -> None:
    """Whether anybody looks or not; with retain_graph there are two."""
    for look in (False, True):
        for again in (False, True):
            made = whole()(*leaves())
            if look:
                made[SIZE].retain_grad()
            torch.autograd.backward([one.sum() for one in made], retain_graph=again)
            if again:
                torch.autograd.backward([one.sum() for one in made])
            else:
                with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                    torch.autograd.backward([one.sum() for one in made])


def test_who_looks_between_two_backwards_sees_the_second() -> None:
    """As plain's, whichever way the first went."""
    found = []
    for call in (whole(), normed):
        (x, w), seen = leaves(), list[Tensor]()
        made = call(x, w)
        torch.autograd.backward([one.sum() for one in made], retain_graph=True)
        made[SIZE].register_hook(seen.append)
        torch.autograd.backward([one.sum() for one in made])
        found.append((seen, x.grad, w.grad))
    assert_same(*found)


@pytest.mark.parametrize("looks", [False, True])
def test_calls_may_follow_each_other(looks: bool) -> None:
    """As the steps of a recurrence, of which one is given what the one before has made."""
    found = []
    for call in (whole(may_run=looks), normed):
        x, w = leaves()
        kept: list[Tensor] = []
        ends: list[Tensor] = []
        for _ in range(3):
            weights, size, share = call(x if not kept else x * kept[-1][:, None], w)
            kept.append(size)
            ends += [weights.sum(), share.sum()]
            if looks:
                size.retain_grad()
        torch.autograd.backward(ends)
        found.append((x.grad, w.grad, [one.grad for one in kept if looks]))
    assert_same(*found)


def test_a_release_that_does_not_tell_of_hooks_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result that others are made of has a part of its own there."""
    assert joint_module.why_not_joint(inner=True) == ""
    monkeypatch.setattr(joint_module, "_hooks_are_noticed", lambda: False)
    assert "hooks" in joint_module.why_not_joint(inner=True)
    assert joint_module.why_not_joint() == ""


@pytest.mark.generated
def test_training_that_is_timed_is_not_looked_at() -> None:
    """By hooks of ours, which are on samples of calls: builds stay as they are."""
    f = shapedispatch(normed, hints=(), exact=True, store=False)
    f.core.settings = dataclasses.replace(f.core.settings, judge="online")
    for _ in range(80):
        run_by(f)
    seen = [(build.notes(), build.code.partial and build.code.partial.seen) for build in f.core.table.builds()]
    assert seen == [((), 0)]
    assert f.explain(*leaves()).timings


@pytest.mark.generated
def test_calls_that_are_looked_at_get_other_builds() -> None:
    """In parts, in which what comes back can be seen; those have one backward of which no other is made."""
    f = pinned(built(normed, hints=(), exact=True), "exact")
    assert_same(run_by(f), run_by(normed))
    assert [build.notes() for build in f.core.table.builds()] == [()]
    for _ in range(2):
        found = []
        for call in (f, normed):
            (x, w), seen = leaves(), list[Any]()
            found.append((keeps(call(x, w), x, seen), x.grad, w.grad))
        assert_same(*found)
    [build] = f.core.table.builds()
    assert build.notes() == ("compiled in 2 parts",)
    assert together(f(*leaves()))
    run_by(f, (0,))
    assert not together(f(*leaves()))


@pytest.mark.generated
def test_a_loss_beside_what_it_is_made_of() -> None:
    """Which is large: zeros for it would cost more than is won, so that each has a part."""

    def with_loss(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        scores = x @ w
        return scores.logsumexp(-1).mean(), scores

    f = pinned(shapedispatch(with_loss, exact=True, hints=(), store=False), "exact")
    x, w = torch.rand(4, 2, requires_grad=True), torch.rand(2, 50, requires_grad=True)
    f(x, w)[0].backward()
    [build] = f.core.table.builds()
    assert build.notes() == ("compiled in 2 parts",)
