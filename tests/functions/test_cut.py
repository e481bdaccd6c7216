# ruff: noqa: D103 - what is cut, or called, says by its name what it does
from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.amp.autocast_mode import _enter_autocast, _exit_autocast
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from shapedispatch.functions.parts import cut as cut_module
from shapedispatch.functions.parts.cut import Cut, Way, Whole, cut

SIZE = (4, 6)


def inputs() -> list[Tensor]:
    """Two that need a gradient, and a mask."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.rand(SIZE, generator=generator, requires_grad=True) for _ in range(2))
    return [x, y, torch.rand(SIZE, generator=generator) > 0.5]


def faked(given_: Sequence[Any]) -> list[Any]:
    """What these look like."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return [mode.from_tensor(one, static_shapes=True) for one in given_]


def graph_of(make: Callable[[Graph, list[Node]], Sequence[Node]]) -> GraphModule:
    """A graph of three inputs as Dynamo would have it."""
    graph = Graph()
    placed = [graph.placeholder(name) for name in ("x", "y", "mask")]
    graph.output(tuple(make(graph, placed)))
    return GraphModule({}, graph)


def parts_of(make: Callable[[Graph, list[Node]], Sequence[Node]]) -> Cut:
    """That graph, cut."""
    return cut(graph_of(make), faked(inputs()))


def joined(found: Cut) -> Callable[..., Sequence[Tensor]]:
    """Its parts, which run as plain's operators."""
    return found.plan.joined([part.forward for part in found.parts])


def calls(found: Cut) -> list[list[str]]:
    """What each part calls."""
    return [
        [str(getattr(n.target, "__name__", n.target)) for n in p.graph.nodes if n.op.startswith("call")]
        for p in found.parts
    ]


def call(graph: Graph, fn: Any, *args: Any, **kwargs: Any) -> Node:
    return graph.call_function(fn, args, kwargs)


# the law: parts do what the whole does


def one_of(graph: Graph, of: list[Node], draw: Callable[[Any], Any]) -> Node:
    """An operation on values that there are: on tensors of the usual sizes."""
    a, b = draw(st.sampled_from(of)), draw(st.sampled_from(of))
    kind = draw(st.sampled_from(KINDS))
    if kind == "halves":
        whole = call(graph, torch.chunk, a, 2, 1)
        return call(
            graph, torch.cat, [call(graph, operator.getitem, whole, i) for i in draw(st.permutations([0, 1]))], 1
        )
    if kind == "largest":
        found = call(graph, torch.max, a, 1, True)
        values, places = (call(graph, operator.getitem, found, i) for i in range(2))
        return draw(st.sampled_from([call(graph, torch.mul, values, b), call(graph, torch.add, places, b)]))
    if kind == "turned":
        return call(graph, torch.transpose, call(graph, torch.transpose, a, 0, 1), 0, 1)
    if kind == "detached":
        return graph.call_method("detach", (a,))
    if kind == "masked":
        return call(graph, torch.where, graph.call_method("gt", (a, 0.3)), b, 0.5)
    if kind == "sized":
        return call(graph, torch.mul, a, graph.call_method("size", (b, 0)))
    if kind == "mean":
        return call(graph, torch.sub, a, call(graph, torch.mean, b, 1, True))
    if kind == "root":
        return call(graph, torch.sqrt, call(graph, torch.abs, a))
    return (
        call(graph, torch.sin, a)
        if kind == "sin"
        else call(graph, {"sum": torch.add, "product": torch.mul}[kind], a, b)
    )


KINDS = ["sin", "root", "sum", "product", "mean", "halves", "largest", "turned", "detached", "masked", "sized"]


@st.composite
def programs(draw: Callable[[Any], Any]) -> GraphModule:
    """Some operations, of which some are results: at least two."""
    graph = Graph()
    x, y, _ = (graph.placeholder(name) for name in ("x", "y", "mask"))
    of = [x, y]
    for _ in range(draw(st.integers(2, 9))):
        of.append(one_of(graph, of, draw))
    graph.output(tuple(draw(st.lists(st.sampled_from(of[2:]), min_size=2, max_size=4, unique=True))))
    graph.eliminate_dead_code()
    return GraphModule({}, graph)


def gradients(results: Sequence[Tensor], of: Sequence[Tensor], begun: Sequence[int]) -> list[list[Tensor | None]]:
    """Those of a backward that begins at one result, for each of these, one after the other."""
    found = []
    for place in begun:
        result = results[place]
        if result.requires_grad:
            found.append([*torch.autograd.grad(result.sum() * 2, of, retain_graph=True, allow_unused=True)])
    return found


@settings(deadline=None, max_examples=60)
@given(gm=programs(), data=st.data())
def test_parts_give_what_the_whole_gives(gm: GraphModule, data: st.DataObject) -> None:
    """Results, what they share, and the gradients from each result alone, to inputs and to other results."""
    found = cut(gm, faked(inputs()))
    whole_of, parts_of_ = inputs(), inputs()
    whole, parts = gm(*whole_of), joined(found)(*parts_of_)
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)
        assert (one.requires_grad, one.stride()) == (other.requires_grad, other.stride())
    begun = data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4))
    sought = [
        [*of[:2], *(one for one in results if one.requires_grad)]
        for of, results in ((whole_of, whole), (parts_of_, parts))
    ]
    for one, other in zip(gradients(whole, sought[0], begun), gradients(parts, sought[1], begun), strict=True):
        for a, b in zip(one, other, strict=True):
            assert (a is None) == (b is None)
            if a is not None and b is not None:
                torch.testing.assert_close(a, b, equal_nan=True)


@settings(deadline=None, max_examples=40)
@given(gm=programs())
def test_a_part_has_one_result_with_a_gradient_at_most(gm: GraphModule) -> None:
    """So that a backward begins at all of them or at none."""
    found, counts = cut(gm, faked(inputs())), list[int]()

    def counted(part: GraphModule) -> Callable[..., Any]:
        def run(*given_: Any) -> Any:
            made = part(*given_)
            counts.append(sum(one.requires_grad for one in made))
            return made

        return run

    found.plan.joined([counted(part) for part in found.parts])(*inputs())
    assert max(counts) <= 1


# where it is cut


def test_what_one_result_alone_needs_is_in_its_part() -> None:
    """The value that both need has a part of its own."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        both = call(graph, torch.exp, call(graph, torch.sin, given_[0]))
        return call(graph, torch.cos, both), call(graph, torch.mul, call(graph, torch.tan, both), given_[1])

    assert calls(parts_of(make)) == [["sin", "exp"], ["cos"], ["tan", "mul"]]


def test_a_result_that_another_is_made_of_is_handed_on() -> None:
    """As a loss is made of logits: the gradient of one by the other is there."""
    found = parts_of(
        lambda graph, given_: (logits := call(graph, torch.sin, given_[0]), call(graph, torch.sum, logits))
    )
    assert calls(found) == [["sin"], ["sum"]]
    logits, loss = joined(found)(*inputs())
    assert torch.autograd.grad(loss, logits)[0].unique().tolist() == [1.0]


def test_views_and_sizes_are_made_wherever_they_are_needed() -> None:
    """Cut at one of them, a part would have to be compiled for nothing."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        turned = call(graph, torch.transpose, given_[0], 0, 1)
        rows = graph.call_method("size", (turned, 0))
        return call(graph, torch.mul, turned, rows), call(graph, torch.add, turned, rows)

    assert calls(parts_of(make)) == [["transpose", "size", "mul"], ["transpose", "size", "add"]]


def test_what_needs_no_gradient_is_made_by_the_first_part() -> None:
    """However many others need it, and whatever stands before it."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        start = call(graph, torch.sin, given_[0])
        masks = [graph.call_method("logical_not", (given_[2],)), call(graph, torch.roll, given_[2], 1)]
        made = [call(graph, torch.where, mask, start, 0.0) for mask in masks]
        return [*made, *(call(graph, torch.where, mask, given_[1], 0.0) for mask in masks)]

    assert calls(parts_of(make)) == [["logical_not", "roll"], ["sin"], ["where"], ["where"], ["where"], ["where"]]


def test_several_values_that_are_made_at_once_come_from_one_part() -> None:
    """The largest, which has a gradient, and where it is, which has none."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        found = call(graph, torch.max, given_[0], 1)
        return [call(graph, operator.getitem, found, i) for i in range(2)]

    assert calls(parts_of(make)) == [["max", "getitem", "getitem"]]


def test_sizes_that_vary_are_given_to_each_part() -> None:
    """Inductor wants to be given all that a part's sizes are made of."""
    mode = FakeTensorMode(shape_env=ShapeEnv())
    x = mode.from_tensor(inputs()[0])
    graph = Graph()
    rows, given_ = graph.placeholder("rows"), graph.placeholder("x")
    made = call(graph, torch.sin, given_)
    graph.output((made, call(graph, torch.cos, made)))
    found = cut(GraphModule({}, graph), [x.shape[0], x])
    assert [[node.name for node in part.graph.nodes if node.op == "placeholder"] for part in found.parts] == [
        ["rows", "x"], ["rows", "sin"]
    ]  # fmt: skip
    assert rows.op == "placeholder"


def in_regions(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    """A value that autograd does not see, products inside an autocast, and one inside another in that."""
    call(graph, torch._C._set_grad_enabled, False)
    unseen = call(graph, torch.sin, given_[0])
    call(graph, torch._C._set_grad_enabled, True)
    outer = call(graph, _enter_autocast, "cpu", torch.bfloat16, True, None)
    both = call(graph, torch.matmul, graph.call_method("t", (given_[1],)), unseen)
    inner = call(graph, _enter_autocast, "cpu", None, False, None)
    precise = call(graph, torch.matmul, graph.call_method("float", (both,)), graph.call_method("t", (given_[0],)))
    call(graph, _exit_autocast, inner)
    coarse = call(graph, torch.matmul, both, graph.call_method("t", (given_[0],)))
    call(graph, _exit_autocast, outer)
    return precise, coarse, call(graph, torch.matmul, given_[0], graph.call_method("t", (given_[1],)))


def test_operations_run_in_their_regions_in_parts_too() -> None:
    """Grad mode and autocast are as in the whole, and as before behind each part."""
    found, gm = parts_of(in_regions), graph_of(in_regions)
    whole, parts = gm(*inputs()), joined(found)(*inputs())
    assert [one.dtype for one in whole] == [torch.float32, torch.bfloat16, torch.float32]
    for one, other in zip(whole, parts, strict=True):
        assert torch.equal(one, other)
        assert one.requires_grad == other.requires_grad
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    ours, theirs = inputs(), inputs()
    for place in range(3):
        one, other = (
            torch.autograd.grad(call(*given_)[place].float().sum(), given_[:2], allow_unused=True)
            for call, given_ in ((gm, ours), (joined(found), theirs))
        )
        torch.testing.assert_close(one, other)
    assert [names.count("_enter_autocast") for names in calls(found)] == [1, 2, 1, 0]


# what is not cut


def written(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    made = call(graph, torch.sin, given_[0])
    graph.call_method("add_", (made, 1))
    return made, call(graph, torch.cos, made)


def written_by_a_view(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    made = call(graph, torch.sin, given_[0])
    graph.call_method("zero_", (graph.call_method("detach", (made,)),))
    return made, call(graph, torch.cos, made)


def asserted(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    call(graph, torch._assert_async, graph.call_method("any", (given_[2],)))
    return call(graph, torch.sin, given_[0]), call(graph, torch.cos, given_[0])


def with_a_size(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    return call(graph, torch.sin, given_[0]), graph.call_method("size", (given_[0], 0))


def two_at_once(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    found = call(graph, torch.aminmax, given_[0])
    return [call(graph, operator.getitem, found, i) for i in range(2)]


def crossed(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    """The first result draws first and last."""
    first = call(graph, torch.dropout, given_[0], 0.5, True)
    other = call(graph, torch.dropout, given_[1], 0.5, True)
    return call(graph, torch.mul, first, call(graph, torch.rand_like, given_[0])), other


def sized_by_values(graph: Graph, given_: list[Node]) -> Sequence[Node]:
    some = call(graph, torch.masked_select, given_[0], given_[2])
    return call(graph, torch.sin, some), call(graph, torch.cos, some)


NOT_CUT = {
    written: "what sin makes is written",
    written_by_a_view: "what sin makes is written",
    asserted: "does something else than to compute tensors and sizes",
    with_a_size: "not all of its results are tensors",
    two_at_once: "aminmax makes several results that have a gradient at once",
    crossed: "in another order",
    sized_by_values: "depend on values|cannot be seen",
}


@pytest.mark.parametrize("make", NOT_CUT, ids=lambda make: make.__name__)
def test_where_order_is_more_than_that_of_values_it_is_not_cut(make: Any) -> None:
    """The reason is told."""
    with pytest.raises(Whole, match=NOT_CUT[make]):
        parts_of(make)


def test_a_graph_that_raises_leaves_no_region() -> None:
    """In which it was."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        call(graph, torch._C._set_grad_enabled, False)
        return call(graph, torch.matmul, given_[0], given_[1]), call(graph, torch.sin, given_[0])

    with pytest.raises(Whole, match="what it runs cannot be seen"):
        parts_of(make)
    assert torch.is_grad_enabled()


def test_random_numbers_that_are_drawn_in_order_are() -> None:
    """Each part after the other as the whole does."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        return [call(graph, torch.dropout, one, 0.5, True) for one in given_[:2]]

    found, gm = parts_of(make), graph_of(make)
    torch.manual_seed(3)
    whole = gm(*inputs())
    torch.manual_seed(3)
    assert all(map(torch.equal, whole, joined(found)(*inputs())))


def test_too_many_parts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compiled by itself."""
    monkeypatch.setattr(cut_module, "MOST_PARTS", 2)
    with pytest.raises(Whole, match="it takes 3 parts"):
        parts_of(lambda graph, given_: [call(graph, fn, given_[0]) for fn in (torch.sin, torch.cos, torch.tan)])


# results that have one backward


def together(make: Callable[[Graph, list[Node]], Sequence[Node]]) -> Cut:
    """That graph, with a part for all results of the same sources."""
    return cut(graph_of(make), faked(inputs()), Way.ALIKE)


def test_results_that_are_made_of_the_same_have_a_part_together() -> None:
    """In the order in which plain makes them, which is that of what comes behind them."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        product = call(graph, torch.mul, given_[0], given_[1])
        sine, cosine = call(graph, torch.sin, product), call(graph, torch.cos, product)
        return cosine, call(graph, torch.exp, given_[1]), sine

    found = together(make)
    outputs = [[node.name for node in part.graph.output_node().args[0]] for part in found.parts]
    assert outputs == [["sin", "cos"], ["exp"]]
    assert [one and one.inputs for one in found.made_of] == [(True, True), None]


def test_a_result_that_only_looks_at_a_tensor_is_not_made_of_it() -> None:
    """Its backward would go on into what lies behind that."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        spread = graph.call_method("expand_as", (call(graph, torch.sum, given_[0], 0, True), given_[1]))
        return call(graph, torch.mul, given_[0], given_[1]), call(graph, torch.mul, spread, 2)

    with pytest.raises(Whole, match="different inputs"):
        together(make)


def test_a_value_for_which_others_have_no_gradient_is_no_result_of_a_part() -> None:
    """No backward would ever begin at all of its results."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        root = call(graph, torch.sqrt, given_[0])
        scaled = call(graph, torch.mul, graph.call_method("detach", (root,)), given_[1])
        return call(graph, torch.sin, root), call(graph, torch.cos, root), scaled

    with pytest.raises(Whole, match="sqrt has no gradient"):
        together(make)


def test_results_that_take_turns_are_not_put_together() -> None:
    """One part would need the other's results, and that one its own."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        first = call(graph, torch.sin, given_[0])
        other = call(graph, torch.mul, first, given_[1])
        last = call(graph, torch.mul, given_[0], graph.call_method("detach", (other,)))
        return first, other, last

    with pytest.raises(Whole, match="made of others"):
        together(make)


def test_what_has_no_gradient_is_made_where_its_values_are() -> None:
    """Beside the results of the same sources, as a figure of them is."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        root = call(graph, torch.sqrt, given_[0])
        figure = call(graph, torch.mean, graph.call_method("detach", (root,)))
        return call(graph, torch.sin, root), call(graph, torch.cos, root), figure

    found = together(make)
    assert len(found.parts) == 1
    assert [one and one.inputs for one in found.made_of] == [(True,)]


def test_results_on_several_devices_have_a_part_each() -> None:
    """Autograd has a thread for each, and the last of them would see to all."""

    def make(graph: Graph, given_: list[Node]) -> Sequence[Node]:
        return call(graph, torch.sin, given_[0]), graph.call_method("to", (call(graph, torch.cos, given_[0]), "meta"))

    with pytest.raises(Whole, match="several devices"):
        together(make)
