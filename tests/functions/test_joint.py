"""Code whose results have one backward: it gives what plain's operators give, wherever a backward begins."""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.fx import GraphModule
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shapedispatch.functions.parts import cut as cut_module
from shapedispatch.functions.parts import joint as joint_module
from shapedispatch.functions.parts.cut import Cut, Way, Whole, cut
from shapedispatch.functions.parts.form import Form
from shapedispatch.functions.parts.joint import Joint
from shapedispatch.functions.parts.partial import Partial
from shapedispatch.functions.parts.plan import MadeOf
from tests.functions.test_cut import faked, inputs, programs
from tests.helpers import SelectNone, assert_same, built, pinned, together

Run = Callable[..., Any]


def compiled(run: Run) -> Run:
    """As AOTAutograd's function of compiled code: one node, which takes zeros for the gradient of what has none."""

    class CompiledFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *given_: Any) -> Any:
            leaves = [one.detach().requires_grad_(one.requires_grad) for one in given_]
            with torch.enable_grad():
                ctx.made = [one + 0 if any(one is leaf for leaf in leaves) else one for one in run(*leaves)]
            ctx.save_for_backward(*given_)
            ctx.leaves = leaves
            ctx.mark_non_differentiable(*(bare := [one.detach() for one in ctx.made if not one.requires_grad]))
            plain = iter(bare)
            return tuple([one.detach() if one.requires_grad else next(plain) for one in ctx.made])

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            assert ctx.saved_tensors
            wanted = [one for one in ctx.leaves if one.requires_grad]
            made = {place: one for place, one in enumerate(ctx.made) if one.requires_grad}
            begun = [gradients[place] for place in made]
            found = torch.autograd.grad([*made.values()], wanted, begun, retain_graph=True, allow_unused=True)
            of = dict(zip(map(id, wanted), found, strict=True))
            return tuple([of.get(id(one)) for one in ctx.leaves])

    return CompiledFunction.apply


def joined(gm: GraphModule, way: Way) -> tuple[Run, Cut]:
    """A graph in parts with one backward each; of any size, results that others are made of."""
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cut_module, "LARGE", 0)
            found, partial = cut(gm, faked(inputs()), way), Partial()
    except Whole:
        reject()  # it has a part for each result
    runs = [
        Joint(compiled(part.forward), lambda part=part: part, made_of, partial) if made_of else part.forward
        for part, made_of in zip(found.parts, found.made_of, strict=True)
    ]
    return found.plan.joined(runs), found


def given_by(fn: Run) -> Any:
    """What gives the operators of a graph, which are this function's."""
    return lambda: types.SimpleNamespace(forward=fn)


def made_of(*inputs: bool, results: int = 3) -> MadeOf:
    """Of such inputs, and no result of another."""
    return MadeOf(inputs, ((),) * results)


def gradients(results: Sequence[Tensor], of: Sequence[Tensor], begun: Sequence[frozenset[int]]) -> list[Any]:
    """Those of a backward that begins at these results, for each of the sets, one after the other."""
    found: list[Any] = []
    for places in begun:
        at = [results[place].sum() * (place + 1) for place in places if results[place].requires_grad]
        found += torch.autograd.grad(at, of, retain_graph=True, allow_unused=True) if at else []
    return found


@settings(deadline=None, max_examples=100)
@given(gm=programs(), way=st.sampled_from([Way.INPUTS, Way.ALIKE]), data=st.data())
def test_a_backward_gives_plains_gradients(gm: GraphModule, way: Way, data: st.DataObject) -> None:
    """From any results at once, to inputs and to other results; the same ones are none, or no number."""
    run, _ = joined(gm, way)
    ours_of, plains_of = inputs(), inputs()
    ours, plains = run(*ours_of), gm(*plains_of)
    for one, other in zip(ours, plains, strict=True):
        assert torch.equal(one, other)
        assert (one.requires_grad, one.stride()) == (other.requires_grad, other.stride())
    places = st.frozensets(st.integers(0, len(plains) - 1), min_size=1)
    begun = data.draw(st.lists(places, min_size=1, max_size=3))
    sought = [
        [*of[:2], *(one for one in results if one.requires_grad)]
        for of, results in ((ours_of, ours), (plains_of, plains))
    ]
    pairs = zip(gradients(ours, sought[0], begun), gradients(plains, sought[1], begun), strict=True)
    for one, other in pairs:
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, equal_nan=True)


@settings(deadline=None, max_examples=40)
@given(gm=programs())
def test_no_part_makes_a_result_of_another_one_of_its_own(gm: GraphModule) -> None:
    """With a gradient, since what comes back to that could not be seen."""
    results: Any = gm.graph.output_node().args[0]
    names = {node.name for node in results}
    try:
        parts = cut(gm, faked(inputs()), Way.ALIKE).parts
    except Whole:
        reject()
    for part in parts:
        looks = [node.meta["example_value"] for node in part.graph.nodes if node.op == "placeholder"]
        given_ = [torch.ones(one.shape, dtype=one.dtype, requires_grad=one.requires_grad) for one in looks]
        outputs: Any = part.graph.output_node().args[0]
        pairs = zip(outputs, part.forward(*given_), strict=True)
        made = [one for node, one in pairs if node.name in names and one.requires_grad]
        for one in made:
            others = [other for other in made if other.grad_fn is not one.grad_fn]
            found = torch.autograd.grad(one.sum(), others, retain_graph=True, allow_unused=True) if others else ()
            assert all(gradient is None for gradient in found)


# ------------------------------------------------------------------------------------------------- one such piece


def rooted(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Two of one value, of which one has an infinite slope at 0, and one without a gradient."""
    y = x @ w
    return y.sin(), y.detach() + 1, (y * 0).sqrt()


X, W = torch.linspace(-1, 1, 12).reshape(3, 4), torch.linspace(-2, 1, 20).reshape(4, 5)


def leaves() -> list[Tensor]:
    """Arguments."""
    return [X.clone().requires_grad_(), W.clone().requires_grad_()]


def piece(fn: Run = rooted, operations: Run | None = None) -> Joint:
    """Its code, as one."""
    return Joint(compiled(fn), given_by(operations or fn), made_of(True, True), Partial())


def not_run(*_: Any) -> Any:
    """In place of the operators."""
    raise AssertionError("the operators are not run")


def test_where_all_results_have_a_gradient_the_code_runs() -> None:
    """And no operator anew."""
    f, (x, w) = piece(operations=not_run), leaves()
    made = f(x, w)
    assert [one.requires_grad for one in made] == [True, False, True]
    torch.autograd.backward([made[0].sum(), made[2].sum()])
    assert x.grad is not None
    assert x.grad.isnan().all()  # as plain's is
    assert not f.partial.seen


def test_where_some_have_none_operators_run_and_it_is_told() -> None:
    """Zeros would make nan of a root's slope at 0."""
    f, (x, w) = piece(), leaves()
    found = torch.autograd.grad(f(x, w)[0].sum(), (x, w))
    assert_same(found, torch.autograd.grad(rooted(x, w)[0].sum(), (x, w)))
    assert f.partial.failed() is not None
    assert not f.partial.check()


def test_where_none_has_one_nothing_runs() -> None:
    """And there is no gradient of zeros."""
    f, (x, w) = piece(operations=not_run), leaves()
    stop: Any = SelectNone.apply
    made = f(x, w)
    total = stop(made[0]).sum() + stop(made[2]).sum() + (x * 2).sum()
    assert_same(torch.autograd.grad(total, (x, w), allow_unused=True), (torch.full_like(x, 2.0), None))
    assert not f.partial.seen


def test_a_checkpoint_that_is_called_again_is_no_reason_for_another_build() -> None:
    """It runs what it ran at first, though other calls get another build by now."""
    partial, held = Partial(seen=True), list[bool]()

    def noted(x: Tensor) -> Tensor:
        held.append(partial.check())
        return x.sin()

    made: Any = checkpoint(noted, X.clone().requires_grad_(), use_reentrant=False)
    made.sum().backward()
    assert held == [False, True]


def test_a_second_backward_is_refused_as_plains_is() -> None:
    """From the same result, whichever way the first went, and whichever the second; with retain_graph none is."""
    for first in ((0, 2), (0,)):
        for second in ((0, 2), (0,)):
            made = piece()(*leaves())
            torch.autograd.backward([made[place].sum() for place in first])
            with pytest.raises(RuntimeError, match="backward through the graph a second time"):
                torch.autograd.backward([made[place].sum() for place in second])
            made = piece()(*leaves())
            torch.autograd.backward([made[place].sum() for place in first], retain_graph=True)
            torch.autograd.backward([made[place].sum() for place in second])


def test_results_begin_one_after_the_other() -> None:
    """Without retain_graph, as where plain's share nothing that is freed; none is a reason for the other to fail."""

    def apart(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ w).sin(), (x @ w).cos()

    (x, w), (mine, other) = leaves(), leaves()
    for call, given_ in ((piece(apart), (x, w)), (apart, (mine, other))):
        for made in call(*given_):
            made.sum().backward()
    assert_same((x.grad, w.grad), (mine.grad, other.grad))


def test_a_hook_runs_where_its_result_has_a_gradient() -> None:
    """As plain's: a hook of another result sees nothing, and those that run do so in plain's order."""

    def two(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.sin(), y.cos()

    for places in ((0,), (1,), (0, 1)):
        logs = list[list[int]]()
        for call in (piece(two), two):
            log, made = list[int](), call(*leaves())
            for place, one in enumerate(made):
                one.register_hook(lambda _, place=place, log=log: log.append(place))
            torch.autograd.backward([made[place].sum() for place in places])
            logs.append(log)
        assert logs[0] == logs[1] != []


def test_what_lies_behind_runs_once_and_with_a_gradient() -> None:
    """An argument's hook, and what made it."""
    seen = list[Tensor]()
    x, w = leaves()
    between = x * 1
    between.register_hook(seen.append)
    made = piece()(between, w)
    torch.autograd.backward([made[0].sum(), made[2].sum()])
    assert [one.shape for one in seen] == [x.shape]


def test_other_memory_under_the_same_tensor_is_refused() -> None:
    """What operators would be run on is not what the forward was given; the code's own backward has what it kept."""
    f, (x, w) = piece(), leaves()
    made = f(x, w)
    w.data = torch.ones(4, 5)
    with pytest.raises(RuntimeError, match="other memory since its forward"):
        made[0].sum().backward()
    assert f.partial.seen  # so that the next calls do better


def test_a_second_derivative_is_that_of_the_operators() -> None:
    """Each node has those behind its own result run."""
    f, (x, w) = piece(), leaves()
    [of_x, of_w] = torch.autograd.grad(f(x, w)[0].sum(), (x, w), create_graph=True)
    [found] = torch.autograd.grad((of_x.sum() + of_w.pow(2).sum()), (x,))
    y, v = leaves()
    [of_y, of_v] = torch.autograd.grad(f.operations().forward(y, v)[0].sum(), (y, v), create_graph=True)
    assert_same(found, torch.autograd.grad((of_y.sum() + of_v.pow(2).sum()), (y,))[0])
    assert not f.partial.seen


def test_what_was_written_since_is_not_taken_for_what_was_given() -> None:
    """Plain's operators need what they were given."""
    f, (x, w) = piece(), leaves()
    made = f(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made[0].sum().backward()


def test_memory_goes_with_the_backward() -> None:
    """Of what the code has kept, and of what it was given."""
    f, (x, w) = piece(), leaves()
    between = x * 2
    seen = weakref.ref(between)
    made = f(between, w)
    torch.autograd.backward([made[0].sum(), made[2].sum()])
    del between
    gc.collect()
    assert seen() is None
    assert made[0].grad_fn is not None


def test_operators_run_under_the_autocast_of_the_call() -> None:
    """Whatever is on where the backward is called."""

    def seen(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        casts.append(torch.is_autocast_enabled("cpu"))
        y = x @ w
        return y.sin(), y.cos()

    for around in (True, False):
        casts: list[bool] = []
        f, given_ = (
            Joint(compiled(lambda x, w: (x @ w, x @ w)), given_by(seen), made_of(True, True), Partial()),
            leaves(),
        )
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around):
            made = f(*given_)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not around):
            made[0].sum().backward()
        assert casts == [around]


def test_operators_run_with_the_default_device_of_the_call() -> None:
    """In a backward there is none, whatever is set around it."""
    devices = list[torch.device]()

    def seen(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        devices.append(torch.get_default_device())
        return rooted(x, w)

    x, w = leaves()
    with torch.device("meta"):
        made = piece(operations=seen)(x, w)
    made[0].sum().backward()
    assert devices == [torch.device("meta")]


def test_another_default_dtype_than_the_calls_is_refused() -> None:
    """What the operators make of nothing would be of that."""
    f, given_ = piece(), leaves()
    made = f(*given_)
    try:
        torch.set_default_dtype(torch.float64)
        with pytest.raises(RuntimeError, match="default dtype of its forward, torch.float32"):
            made[0].sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)


def looked_up(ids: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Of an argument without a gradient, and one that has."""
    y = functional.embedding(ids, table)
    return y.sin(), y.cos()


def test_what_is_given_first_may_be_whole_numbers() -> None:
    """As an embedding's are."""
    f = Joint(compiled(looked_up), given_by(looked_up), made_of(False, True), Partial())
    ids, table, other = torch.tensor([0, 2, 2]), *(W.clone().requires_grad_() for _ in range(2))
    f(ids, table)[0].sum().backward()
    assert f.form is not None
    assert f.form.known
    looked_up(ids, other)[0].sum().backward()
    assert_same(table.grad, other.grad)


def test_operators_run_outside_of_inference_mode() -> None:
    """In which a backward may be called: they would record nothing."""
    f, (x, w), (mine, other) = piece(), leaves(), leaves()
    total = f(x, w)[0].sum()
    with torch.inference_mode():
        total.backward()
    rooted(mine, other)[0].sum().backward()
    assert_same((x.grad, w.grad), (mine.grad, other.grad))


def test_hooks_on_what_is_saved_see_no_backward() -> None:
    """It is the forward that saves, with the hooks that are on there."""
    f, (x, w), (mine, other) = piece(), leaves(), leaves()
    seen = list[Tensor]()

    def pack(saved: Tensor) -> Tensor:
        seen.append(saved)
        return saved * 0

    total = f(x, w)[0].sum()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        total.backward()
    rooted(mine, other)[0].sum().backward()
    assert seen == []
    assert_same((x.grad, w.grad), (mine.grad, other.grad))


def test_a_backward_that_ends_by_an_error_leaves_nothing() -> None:
    """Of a graph that is kept, and asked again."""
    made = piece()(*leaves())
    seen = list[weakref.ref[Tensor]]()

    def first(gradient: Tensor) -> Tensor:
        seen.append(weakref.ref(other := gradient * 1))
        return other

    def last(gradient: Tensor) -> None:
        raise ValueError("a hook's")

    made[2].register_hook(first)
    made[0].register_hook(last)
    for _ in range(3):
        with pytest.raises(ValueError, match="a hook's"):
            torch.autograd.backward([made[0].sum(), made[2].sum()], retain_graph=True)
    gc.collect()
    assert len(seen) == 3
    assert [one() for one in seen] == [None] * 3


def test_memory_that_is_freed_and_taken_anew_is_the_same() -> None:
    """As FSDP does with weights that it has gathered."""
    (x, w), (mine, other) = leaves(), leaves()
    f, values = piece(), w.detach().clone()
    made = f(x, w)
    storage, size = w.untyped_storage(), w.untyped_storage().nbytes()
    storage.resize_(0)
    elsewhere = torch.empty(1000)  # where that was, maybe
    storage.resize_(size)
    w.detach().numpy()[...] = values.numpy()
    made[0].sum().backward()
    rooted(mine, other)[0].sum().backward()
    assert_same((x.grad, w.grad), (mine.grad, other.grad))
    assert elsewhere.numel()


def test_numbers_are_handed_on() -> None:
    """Sizes that vary are inputs, too."""

    def scaled(x: Tensor, size: int, w: Tensor) -> tuple[Tensor, Tensor]:
        return (x @ w) * size, w.sin()

    f, (x, w) = Joint(scaled, given_by(scaled), made_of(True, False, True), Partial()), leaves()
    f.form = Form(2, (0, 1), ((), ()), frozenset(), False, torch.float32, torch.device("cpu"), False)
    assert_same(f(x, 3, w), scaled(x, 3, w))


def test_code_that_is_no_one_node_is_not_run_again() -> None:
    """Of a torch that puts it together in another way: plain's operators run in its place."""
    f, (x, w) = Joint(rooted, given_by(rooted), made_of(True, True), Partial()), leaves()
    made = f(x, w)
    assert f.form is not None
    assert not f.form.known
    assert type(made[0].grad_fn).__name__ == "SinBackward0"


def test_without_a_gradient_the_code_runs_alone() -> None:
    """There is nothing between."""
    f = piece(operations=not_run)
    with torch.no_grad():
        assert not f(*leaves())[0].requires_grad


def test_a_release_that_does_not_tell_whether_a_graph_is_kept_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the code needs goes with the graph then."""
    monkeypatch.setattr(joint_module, "keeps_graph", lambda: True)
    made = piece()(*leaves())
    torch.autograd.backward([made[0].sum(), made[2].sum()])
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.backward([made[0].sum(), made[2].sum()])


def test_a_release_that_does_not_tell_which_nodes_run_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results have a backward each there."""
    assert joint_module.why_not_joint() == ""
    monkeypatch.setattr(joint_module, "_will_run", None)
    assert "which nodes a backward runs" in joint_module.why_not_joint()


# ------------------------------------------------------------------------------------------------------- of builds


def normed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As an attention that tells of itself: two of one product, and one that is made of the second."""
    y = x @ w
    size = y.norm(dim=-1)
    return y.softmax(-1), size, x.sum(-1) / size


@pytest.mark.generated
def test_a_build_of_results_that_are_made_of_the_same_is_one_part() -> None:
    """And has one backward for all of them, for one that another is made of, too."""
    f = built(normed, hints=(), exact=True)
    f.tune(*leaves())
    [build] = f.core.table.builds()
    assert build.notes() == ()
    assert together(f(*leaves()))


@pytest.mark.generated
@pytest.mark.parametrize(
    "fn",
    [
        lambda x, w: (x.t(), x.sin(), x.cos()),  # a view of an argument, which autograd makes anew
        pytest.param(lambda x, w: (y := functional.dropout(x @ w, 0.5).sin(), y.cos()), marks=pytest.mark.soak),
        lambda x, w: ((y := functional.dropout(x @ w, 0.5)).sin(), y.cos()),
    ],
    ids=["a view", "one of the other", "a draw"],
)
def test_what_cannot_run_anew_has_a_part_for_each_result(fn: Run) -> None:
    """Nor what shares memory with what it is given."""
    f = pinned(built(fn, hints=(), exact=True), "exact")
    for places in ((0,), (1,), (0, 1)):
        found = []
        for call in (f, fn):
            torch.manual_seed(3)
            (x, w) = leaves()
            made = call(x, w)
            found.append(torch.autograd.grad([made[i].sum() for i in places], (x, w), allow_unused=True))
        assert_same(*found)
    assert not together(f(*leaves()))
    assert f.cache_info().builds == 1


@pytest.mark.generated
def test_calls_whose_backwards_begin_at_some_results_get_other_builds() -> None:
    """From the second on: each result has a backward of its own then, and all builds of such calls are made so."""
    f = pinned(built(normed, hints=(), exact=True), "exact")
    for _ in range(3):
        (x, w), (mine, other) = leaves(), leaves()
        f(x, w)[0].sum().backward()
        normed(mine, other)[0].sum().backward()
        assert_same((x.grad, w.grad), (mine.grad, other.grad))
    [build] = f.core.table.builds()
    assert not together(f(*leaves()))
    assert "parts" in str(build.notes())
    assert not together(f(torch.rand(7, 4, requires_grad=True), w))


@pytest.mark.generated
def test_what_is_detached_since_has_its_gradient_all_the_same() -> None:
    """Where operators run for a backward at some results: autograd's graph goes on behind the call as it was."""
    f = pinned(built(lambda x, w: (torch.sigmoid(x) * w, x * 3 - w), hints=(), exact=True), "exact")
    base, w = (torch.linspace(-1, 1, 4).requires_grad_() for _ in range(2))
    x = base * 1
    made = f(x, w)
    assert together(made)
    x.detach_()
    made[0].sum().backward()
    slope = torch.sigmoid(base) * (1 - torch.sigmoid(base))
    assert_same((base.grad, w.grad), ((slope * w).detach(), torch.sigmoid(base).detach()))


@pytest.mark.generated
def test_where_compiled_autograd_is_to_follow_each_result_has_a_part() -> None:
    """It makes a graph of all that a backward runs, and has no answer to which nodes that are."""
    f = pinned(built(normed, hints=(), exact=True), "exact")
    with torch._dynamo.config.patch(compiled_autograd=True):
        assert not together(f(*leaves()))
    assert f.cache_info().builds == 1


@pytest.mark.generated
def test_a_checkpoint_runs_again_what_it_ran() -> None:
    """Though a backward of other calls has begun at one result meanwhile."""
    f = pinned(built(normed, hints=(), exact=True), "exact")
    (x, w), (mine, other) = leaves(), leaves()
    f(x, w)
    made: Any = checkpoint(f, x * 1, w, use_reentrant=False)
    f(x, w)[1].sum().backward()
    x.grad = w.grad = None
    sum(one.sum() for one in made).backward()
    sum(one.sum() for one in normed(mine, other)).backward()
    assert_same((x.grad, w.grad), (mine.grad, other.grad))


@pytest.mark.generated
def test_a_batch_of_gradients_is_plains() -> None:
    """Of all results, and of one."""

    def both(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.sin(), y.cos().sum(-1)

    f = pinned(built(both, hints=(), exact=True), "exact")
    x, w = leaves()
    made, plains = f(x, w), both(x, w)
    batch, batches = torch.eye(3), [torch.rand(3, *one.shape) for one in made]
    ours, theirs = (
        torch.autograd.grad(one, (x, w), batches, is_grads_batched=True, retain_graph=True) for one in (made, plains)
    )
    assert_same(ours, theirs)
    ours, theirs = (
        torch.autograd.grad(one[1], (x, w), batch, is_grads_batched=True, allow_unused=True) for one in (made, plains)
    )
    assert_same(ours, theirs)
