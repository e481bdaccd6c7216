from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, distributed
from torch.fx import GraphModule
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from shapedispatch import shapedispatch
from shapedispatch.functions.compile import graph
from shapedispatch.functions.compile import operators as operator_tables
from shapedispatch.functions.compile.autograd import effects_only
from shapedispatch.functions.compile.graph import called, collectives, dtypes_of_numbers, nodes
from shapedispatch.functions.compile.tracer import Untraceable, trace
from tests.helpers import assert_same, built, few, pinned

X = torch.linspace(-1, 1, 8)
REFUSED = r"ignore:[\s\S]*every variant but plain was refused"


def captured(fn: Any, *args: Any) -> GraphModule:
    """Dynamo's graph of a call."""
    found: list[GraphModule] = []

    def backend(gm: GraphModule, _: Any) -> Any:
        found.append(gm)
        return gm.forward

    torch.compile(fn, backend=backend, fullgraph=True)(*args)
    return found[0]


def waves(x: Tensor) -> Tensor:
    """Calls something by name, and something in place."""
    return torch.sin(x).add_(1)


NESTED = {
    "nothing": waves,
    "a checkpoint": lambda x: checkpoint(waves, x, use_reentrant=False),
    "a condition": lambda x: torch.cond(x.sum() > 0, waves, waves, (x,)),
    "two": lambda x: checkpoint(lambda y: checkpoint(waves, y, use_reentrant=False), x, use_reentrant=False),
}


@pytest.mark.parametrize("name", NESTED)
def test_what_is_called_is_found_in_nested_graphs(name: str) -> None:
    """Functions and methods, and what writes in place by the name of what does not."""
    found = {called(node) for node in nodes(captured(NESTED[name], X.clone().requires_grad_()))}
    assert {"sin", "add"} <= found


def operators(make: Any, *args: Any) -> GraphModule:
    """A graph of operators whose last input is a number, as AOTAutograd would have it."""
    from torch.fx.experimental.proxy_tensor import make_fx

    return make_fx(make, tracing_mode="symbolic")(*args)


def test_the_dtypes_that_numbers_become_are_found() -> None:
    """Of those that are inputs; a number in the code, a size and a place do not count."""
    int8 = torch.zeros(4, dtype=torch.int8)
    assert dtypes_of_numbers(operators(lambda x, n: x.fill_(n), int8, 300)) == {torch.int8}
    assert dtypes_of_numbers(operators(lambda x, n: torch.clamp(x, max=n), X, 3)) == {torch.float32}
    assert dtypes_of_numbers(operators(lambda x, n: torch.full((2,), n, dtype=torch.int16), X, 3)) == {torch.int16}
    assert dtypes_of_numbers(operators(lambda x, n: x.fill_(3), int8, 300)) == set()
    assert dtypes_of_numbers(operators(lambda x, n: x[: n - 1] * 2, X, 3)) == set()
    assert dtypes_of_numbers(operators(lambda x, n: x.new_zeros(n), X, 3)) == set()


# what it does


@pytest.fixture
def ranks() -> Iterator[None]:
    """Two of them, of which one is this process and the other is made up."""
    fake = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
    distributed.init_process_group("fake", rank=0, world_size=2, store=fake.FakeStore())
    yield
    distributed.destroy_process_group()


def gathered(x: Tensor) -> Any:
    """Other ranks take part."""
    from torch.distributed._functional_collectives import all_reduce

    assert distributed.group.WORLD is not None
    return all_reduce(x, "sum", distributed.group.WORLD) * 2


@pytest.mark.parametrize("fn", [gathered, lambda x: checkpoint(gathered, x, use_reentrant=False)])
def test_collectives_are_found(fn: Any, ranks: None) -> None:
    """In nested graphs too: what other ranks take part in is never timed."""
    look = trace(fn, (torch.ones(3, requires_grad=True),), {}, effects_only, tag="test")
    assert "_c10d_functional.all_reduce" in look.effects.collectives


# what it reads


def bumped(times: int) -> Tensor:
    """A tensor that was written so often."""
    x = torch.ones(4)
    for _ in range(times):
        x.add_(0)
    return x


def view(offset: int) -> Tensor:
    """A tensor at a place of a larger one, aligned as at any other of these."""
    return torch.arange(64.0)[offset : offset + 4]


READS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[], Tensor], Callable[[], Tensor], str]] = {
    "version": (lambda x: x * x._version, lambda: bumped(0), lambda: bumped(3), "x._version"),
    "base": (lambda x: x * (2 if x._base is None else 3), lambda: bumped(0), lambda: view(4), "x._base"),
    "storage": (lambda x: x * x.untyped_storage().size(), lambda: bumped(0), lambda: view(4), "a tensor's storage"),
    "place": (lambda x: x.as_strided((2,), (1,), 0) * 2, lambda: view(8), lambda: view(4), "storage_offset"),
    "kept gradient": (
        lambda x: x * (2 if x.retains_grad else 3),
        lambda: torch.ones(4, requires_grad=True) * 1,
        lambda: _retaining(),
        "x.retains_grad",
    ),
}


def _retaining() -> Tensor:
    x = torch.ones(4, requires_grad=True) * 1
    x.retain_grad()
    return x


@pytest.mark.filterwarnings(REFUSED)
@pytest.mark.parametrize("name", READS)
def test_what_no_key_holds_is_read_by_plain(name: str) -> None:
    """The next call has an equal key and another answer; the reason is told."""
    fn, one, other, why = READS[name]
    f = built(fn, exact=True, hints=())
    for make in (one, one, other, other, one):
        assert_same(f(make()), fn(make()))
    assert why in str(f.explain(one()))


KEYED = {
    "transposed": lambda x: x.T * 2,
    "leaf": lambda x: x * (2 if x.is_leaf else 3),
    "device": lambda x: x * (2 if x.is_cpu else 3),
    "bytes": lambda x: x * x.nbytes,
    "view": lambda x: torch.as_strided(x, (2,), (1,)) * 2,
}


@pytest.mark.parametrize("name", KEYED)
def test_what_a_key_holds_may_be_read(name: str) -> None:
    """And a tensor's other views."""
    trace(KEYED[name], (torch.ones(4),), {}, effects_only, tag="test")  # type: ignore[arg-type]  # a plain function


def test_a_read_in_a_function_that_is_called_counts() -> None:
    """As does one in a nested graph."""
    from torch.utils.checkpoint import checkpoint

    def reads(x: Tensor) -> Any:
        return x * x._version

    def calls(x: Tensor) -> Any:
        return checkpoint(reads, x, use_reentrant=False)

    with pytest.raises(Untraceable, match=r"x\._version"):
        trace(calls, (torch.ones(4, requires_grad=True),), {}, effects_only, tag="test")  # type: ignore[arg-type]


# what is not compiled


def lost(x: Tensor, y: Tensor) -> Tensor:
    """Plain refuses a probability above 1."""
    return functional.binary_cross_entropy(x, y) * 2


def in_a_checkpoint(x: Tensor, y: Tensor) -> Any:
    """Of which Dynamo makes a graph of its own."""
    return checkpoint(lost, x, y, use_reentrant=False)


def divided(x: Tensor, y: Tensor) -> Any:
    """A division in one branch, which is a graph of its own to Inductor too."""
    return torch.cond(x.sum() > 0, lambda x, y: x // y, lambda x, y: x - y, (x, y))


@pytest.mark.filterwarnings(REFUSED)
@pytest.mark.parametrize("fn", [lost, in_a_checkpoint])
def test_what_plain_checks_has_no_build(fn: Any) -> None:
    """Wherever in the function it stands."""
    f, x = built(fn, exact=True, hints=()), torch.ones(3, 2)
    f(x, x)
    assert "plain checks the values that binary_cross_entropy gets" in str(f.explain(x, x))
    with pytest.raises(RuntimeError, match="between 0 and 1"):
        f(3 * x, x)


@pytest.mark.filterwarnings(REFUSED)
def test_an_integer_division_in_a_branch_has_no_build() -> None:
    """Compiled, a zero would end the process."""
    f, x = built(divided, exact=True, hints=()), torch.arange(4)
    f(x, torch.ones_like(x))
    assert "divides whole numbers" in str(f.explain(x, torch.ones_like(x)))
    with pytest.raises(RuntimeError, match="ZeroDivision"):
        f(x, torch.zeros_like(x))


@pytest.mark.filterwarnings(REFUSED)
def test_indexing_in_a_branch_has_no_build_where_it_would_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a torch whose CPU code does not bound its loads; what is in that torch's table is called as plain calls it."""
    monkeypatch.setattr(graph, "_DIES_OF_AN_INDEX", True)
    monkeypatch.setattr(operator_tables, "faults", lambda device: {})

    def fn(x: Tensor, i: Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x, i: torch.gather(x, 0, i), lambda x, i: x * 2, (x, i))

    f, x = built(fn, exact=True, hints=()), torch.ones(3)
    i = torch.tensor([0, 1, 2])
    f(x, i)
    assert "indexes by a tensor" in str(f.explain(x, i))


@pytest.mark.parametrize(
    ("meta", "asked"), [({"example_value": torch.ones(2)}, True), ({}, True), ({"example_value": 3}, False)]
)
def test_an_input_of_which_nothing_is_known_may_share_memory(meta: dict[str, Any], asked: bool) -> None:
    """A release that keeps no such word must not have a guard left out."""
    assert graph._may_be_tensor(types.SimpleNamespace(meta=meta)) is asked  # type: ignore[arg-type]  # as much of a node
    assert graph._extent(None) is None


class Doubled(torch.autograd.Function):
    """Whose backward reads a global."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Twice the argument."""
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """By what the global is when it runs."""
        return gradient * FACTOR


FACTOR = 1.0


def hooked(x: Tensor) -> Tensor:
    """With a hook on what is made between."""
    y = x * 2
    y.register_hook(lambda gradient: gradient * FACTOR)
    return y.sin()


def written_too(x: Tensor) -> Tensor:
    """A result, and an argument that is written."""
    y = x * 2
    return y.mul_(2).sin() + x.mul_(3)


REFUSED_BACKWARDS: dict[str, tuple[Callable[..., Any], str]] = {
    "two results, of which one is written": (lambda x: (x.sin().mul_(2), x.sqrt()), "begin at some of its results"),
    "a result and an argument": (written_too, "begin at some of its results"),
    "a function of autograd": (lambda x: Doubled.apply(x.sin()), "an autograd.Function|a class's values change"),
    "a hook": (hooked, "a hook of a tensor|an autograd.Function"),
}
"""With why: an older torch says nothing of classes, and makes a function of autograd of a hook."""


@pytest.mark.parametrize("name", REFUSED_BACKWARDS)
def test_a_backward_that_may_be_another_has_no_build(name: str) -> None:
    """Which one it is shows when it begins, and the forward is over."""
    fn, why = REFUSED_BACKWARDS[name]
    f = shapedispatch(fn, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match=why):
        f(torch.rand(8, 4, requires_grad=True) * 1)


@pytest.mark.parametrize("name", ["two results, of which one is written", "a result and an argument"])
def test_where_no_gradient_is_needed_there_is_a_build(name: str) -> None:
    """Of the same function."""
    f = shapedispatch(REFUSED_BACKWARDS[name][0], hints=(), exact=True, store=False)
    assert [timing.variant for timing in f.tune(torch.rand(8, 4)).timings] == ["plain", "exact"]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.sin(), x > 0, x.detach() * 3, None),
        lambda x: (x.sin(), x.t()),  # a view of the argument is made again outside of the compiled code
    ],
    ids=["one with a gradient", "a view of the argument"],
)
def test_results_without_a_gradient_of_their_own_do_not_count(fn: Callable[..., Any]) -> None:
    """A backward begins at the one that has."""
    f = shapedispatch(fn, hints=(), exact=True, store=False)
    choice = f.tune(torch.rand(8, 4, requires_grad=True) * 1)
    assert [timing.variant for timing in choice.timings] == ["plain", "exact"]


def test_where_this_torch_does_not_tell_there_is_no_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release may have another word for what a backward begins with."""
    monkeypatch.setattr(graph, "gradients_taken", lambda: None)
    with pytest.raises(graph.Uncompilable, match="begin at some of its results"):
        graph.refuse_partial_backward()


# what is compiled in parts


def scored(x: Tensor, w: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    """Logits, and the loss that is made of them."""
    logits = functional.gelu(x @ w) * 2
    return functional.cross_entropy(logits, places), logits


def rooted(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Two of one value, of which one has an infinite slope at 0."""
    y = x @ w
    return y.sin(), (y * 0).sqrt()


def noised(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """As an encoder that gives a mean, too."""
    return (mean := x @ w) + torch.randn_like(mean), mean.tanh()


def viewed(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A value, a view of it, where it is largest, and another value that is made of it."""
    y = (x @ w).exp()
    return y, y.t(), y.sqrt(), y.argmax(-1)


IN_PARTS = {
    "logits and loss": (scored, (torch.arange(6) % 5,)),
    "a root at zero": (rooted, ()),
    "a draw": (noised, ()),
    "a view": (viewed, ()),
    "parts of one": (lambda x, w: (x @ w).exp().chunk(2), ()),
}


@pytest.mark.generated
@pytest.mark.parametrize("name", few(IN_PARTS, "logits and loss", "a view"))
def test_a_backward_begins_at_any_result_of_a_build(name: str) -> None:
    """At one alone, at one after the other, at all: each gives plain's gradients, of other results too."""
    fn, others = IN_PARTS[name]
    f = pinned(built(fn, hints=(), exact=True), "exact")
    x, w = (torch.rand(size, requires_grad=True) for size in ((6, 8), (8, 5)))

    def gradients(call: Callable[..., Any], *places: int) -> list[Any]:
        torch.manual_seed(5)
        results = call(x, w, *others)
        made = [one for one in results if one.requires_grad]
        found = [torch.autograd.grad(made[place].sum(), (x, w), retain_graph=True) for place in places]
        whole = torch.autograd.grad([one.cos() for one in made], (x, w), [torch.ones_like(one) for one in made])
        return [*results, *found, *whole]

    for places in ((0,), (1,), (1, 0, 1)):
        assert_same(gradients(f, *places), gradients(fn, *places))
    assert any("parts" in note for note in f.explain(x, w, *others).notes)


def test_parts_that_hang_together_otherwise_are_other_code() -> None:
    """What was found of the numbers of one is not taken for the other's."""

    def one(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        return y.sin(), y.cos()

    def other(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x @ w
        sine = y.sin()
        return y.cos(), sine

    texts = []
    for fn in (one, other):
        f = built(fn, hints=(), exact=True)
        f.tune(torch.rand(6, 8, requires_grad=True), torch.rand(8, 5))
        [build] = f.core.table.builds()
        assert build.effects.mutated == frozenset()  # by what is known of the whole, and not of its last part
        texts.append(build.identity())
    assert texts[0] != texts[1]


def test_what_is_written_into_a_result_is_seen_by_the_next_one() -> None:
    """A view that comes from another part is one of the very tensor that the first gave."""
    f = pinned(built(viewed, hints=(), exact=True), "exact")
    for call in (f, viewed):
        y, turned, *_ = call(*(torch.ones(4, 4, requires_grad=True) for _ in range(2)))
        turned.mul_(2)
        assert torch.equal(y.t(), turned)
        assert y._version == turned._version
        assert type(y.grad_fn).__name__ != "ExpBackward0"


def test_a_batch_norm_with_two_results_has_no_build() -> None:
    """It writes its statistics, which fake tensors do not show."""
    mean, variance = torch.zeros(4), torch.ones(4)

    def normed(x: Tensor) -> tuple[Tensor, Tensor]:
        y = functional.batch_norm(x, mean, variance, training=True)
        return y.sin(), y.cos()

    f = shapedispatch(normed, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="it writes|begin at some of its results"):
        f(torch.rand(8, 4, requires_grad=True))


class Addressed:
    """As a function at such a place."""

    def __repr__(self) -> str:
        return "<function apply at 0x7fc10d00>"


def test_an_address_is_no_collective() -> None:
    """It may have any digits; of a name of the user's nothing is said either."""
    targets = [("call_function", Addressed()), ("placeholder", "L_self_c10d_"), ("call_function", "c10d.all_reduce")]
    each: Any = [types.SimpleNamespace(op=op, target=target) for op, target in targets]
    assert collectives(each) == ("c10d.all_reduce",)


@pytest.mark.parametrize("kind", ["negated", "zeros"])
def test_state_whose_memory_is_not_its_value_is_not_compiled_in(kind: str) -> None:
    """As an argument is none that is so; nor is what takes the place of another later."""
    odd = {"negated": torch.ones(8, dtype=torch.cfloat).mul(1j).conj().imag, "zeros": torch._efficientzerotensor(8)}
    state = types.SimpleNamespace(scale=torch.full((8,), 2.0))
    f = pinned(shapedispatch(lambda x: x.sin() * state.scale, exact=True, hints=(), store=False), "exact")
    assert_same(f(X), X.sin() * 2)
    state.scale = odd[kind]
    with pytest.warns(UserWarning, match="a tensor that is no argument, and whose memory is not its value"):
        assert_same(f(X), X.sin() * state.scale)


class OneMemory(torch.nn.Module):
    """Two layers whose weights lie in one memory, as flattened models have them; ``counts`` writes one of these."""

    def __init__(self, backwards: bool, begins_at: int, counts: bool = False) -> None:
        super().__init__()
        self.up, self.down, self.counts = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4), counts
        weights = list(self.parameters())[:: -1 if backwards else 1]
        flat = torch.randn(begins_at + sum(one.numel() for one in weights))
        for one in weights:
            one.data = flat[begins_at : begins_at + one.numel()].view(one.shape)
            begins_at += one.numel()

    def forward(self, x: Tensor) -> Tensor:
        """Both."""
        if self.counts:
            with torch.no_grad():
                self.up.bias.add_(1)
        return self.down(self.up(x).relu())


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("begins_at", [0, 1])
def test_weights_in_one_memory_are_not_written(backwards: bool, begins_at: int) -> None:
    """PyTorch puts the fake of such a weight in its place by a write, which none of the function's is."""
    made = OneMemory(backwards, begins_at)
    x = torch.randn(3, 4)
    f = pinned(shapedispatch(made.forward, exact=True, hints=(), store=False), "exact")
    assert_same(f(x), made(x))
    assert [one.effects.other_writes for one in f.core.table.builds()] == [()]


@pytest.mark.parametrize("begins_at", [0, 1])
def test_a_write_into_weights_in_one_memory_is_seen(begins_at: int) -> None:
    """Each is looked at for itself."""
    made = OneMemory(True, begins_at, counts=True)
    f = shapedispatch(made.forward, exact=True, hints=(), store=False)
    with pytest.warns(UserWarning, match=r"it writes self._modules\['up'\]._parameters\['bias'\]\n"):
        f(torch.randn(3, 4))
