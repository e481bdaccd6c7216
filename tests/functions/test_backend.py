from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from shapedispatch import Variant, shapedispatch
from shapedispatch.effects import Beside, Effects
from shapedispatch.errors import NoVariantError
from shapedispatch.functions import request
from shapedispatch.functions.permission import may_involve_ranks, what_timing_may_touch, why_no_builds
from tests.helpers import assert_same, built, pinned

pytestmark = pytest.mark.operators_called


def relu_matmul(x: Tensor, w: Tensor) -> Tensor:
    """What most tests here decorate."""
    return torch.relu(x @ w)


# hints


@pytest.mark.generated
def test_a_hints_build_is_right_at_every_size_it_accepts() -> None:
    """One build serves sizes below, at and above its hint; sizes 0 and 1 run plain, and `explain` says why."""
    f = built(relu_matmul, dims={"x": "M K", "w": "K N"}, hints={"M": (64,)})
    w = torch.randn(8, 16)
    for m in (5, 64, 2, 0, 1, 7, 300, 1000):
        x = torch.randn(m, 8)
        assert_same(f(x, w), relu_matmul(x, w))
        assert f.explain(x, w).variant == ("plain" if m < 2 else "hint[M=64]")
    assert f.cache_info().builds == 1
    [refusal] = f.explain(torch.randn(1, 8), w).refusals
    assert refusal.variant == "hint[M=64]"
    assert "0 and 1" in refusal.reasons[0]


@pytest.mark.parametrize("hints", [(64, 256), (16, 64, 256, 1024)])
@pytest.mark.parametrize("exact", [False, True])
def test_a_call_may_leave_out_what_has_the_hinted_dims(hints: tuple[int, ...], exact: bool) -> None:
    """It has no hint's build, and `explain` says why; one with the tensor has."""

    def added(y: Tensor, x: Tensor | None = None) -> Tensor:
        return y * 2 if x is None else y[0] * 2 + x

    f, y = built(added, hints={"x.0": hints}, exact=exact), torch.randn(5)
    assert_same(f(y), added(y))
    choice = f.explain(y)
    assert choice.variant == ("exact" if exact else "plain")
    assert "no tensor with the dims" in choice.refusals[0].reasons[0]
    assert_same(f(y, y), added(y, y))
    assert not any("no tensor" in str(refusal) for refusal in f.explain(y, y).refusals)


def test_a_new_size_is_faked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the hints' builds are there, one look at the call is enough for all: each takes half a millisecond."""
    f = built(relu_matmul, dims={"x": "M K", "w": "K N"}, hints={"M": (16, 64)})
    w = torch.randn(8, 16)
    f(torch.randn(5, 8), w)
    faked, fake = [], request.fake_arguments
    monkeypatch.setattr(request, "fake_arguments", lambda *args, **how: (faked.append(args), fake(*args, **how))[1])
    x = torch.randn(7, 8)
    assert_same(f(x, w), relu_matmul(x, w))
    assert len(f.explain(x, w).timings) > 1
    assert len(faked) == 1


def branching(x: Tensor) -> Tensor:
    """Another function for large sizes."""
    return torch.sin(x) if x.shape[0] > 100 else torch.cos(x)


def test_a_build_refuses_the_other_side_of_a_branch() -> None:
    """A function that branches on a size: each hint's build takes its own side, and gives its guard as the reason."""
    f = built(branching, dims={"x": "M"}, hints={"M": (64, 256)})
    for m in (50, 64, 100, 101, 256, 999):
        x = torch.randn(m)
        assert_same(f(x), branching(x))
        chosen = f.explain(x)
        assert chosen.variant == ("hint[M=256]" if m > 100 else "hint[M=64]")
        assert any("10" in reason for refusal in chosen.refusals for reason in refusal.reasons)


def test_where_every_hint_refuses_a_build_near_the_size_is_made() -> None:
    """It stands at the size rounded up to a power of two, and serves that size's like."""
    f = built(branching, dims={"x": "M"}, hints={"M": (16, 32)})
    for m in (900, 1000):
        x = torch.randn(m)
        assert_same(f(x), branching(x))
        assert f.explain(x).variant == "hint[M=1024]"


def test_equal_code_is_one_build() -> None:
    """On the CPU the code is the same for every hint of a product: one build, and `explain` says so."""
    f = built(relu_matmul, dims={"x": "M K", "w": "K N"}, hints={"M": (64, 256, 4096)})
    x, w = torch.randn(5, 8), torch.randn(8, 16)
    f(x, w)
    notes = " ".join(f.explain(x, w).notes)
    assert "hint[M=256] is the same code as hint[M=64]" in notes
    assert f.cache_info().builds == f.cache_info().builds_held == 1
    assert_same(f.variant("hint[M=4096]")(x, w), relu_matmul(x, w))


def test_two_static_dims_of_one_size_are_two_dims() -> None:
    """Built from a sample whose sizes are all the same, a build is right where they differ."""
    f = built(relu_matmul, dims={"x": "M K", "w": "K N"}, hints=(8,), static=())
    for m, k, n in ((8, 8, 8), (5, 7, 3), (7, 7, 2), (3, 3, 3)):
        x, w = torch.randn(m, k), torch.randn(k, n)
        assert_same(f(x, w), relu_matmul(x, w))
        assert f.explain(x, w).variant.startswith("hint")
    assert f.cache_info().builds == 1


@pytest.mark.generated
def test_static_dims_are_constants_and_the_others_are_not() -> None:
    """A new size of a dynamic dim is no new build; a new size of a static one is."""
    f = built(relu_matmul, dims={"x": "M K", "w": "K N"}, hints=(64,), static=("K", "N"))
    for m in (8, 5, 64, 100):
        x, w = torch.randn(m, 8), torch.randn(8, 8)
        assert_same(f(x, w), relu_matmul(x, w))
    assert f.cache_info().builds == 1
    x, w = torch.randn(8, 4), torch.randn(4, 8)
    assert_same(f(x, w), relu_matmul(x, w))
    assert f.cache_info().builds == 2


def test_an_exact_build_serves_its_shape_alone() -> None:
    """One build a shape, used again when the shape comes back."""
    f = built(relu_matmul, exact=True, hints=())
    for m in (3, 1, 0, 3, 1, 0):
        x, w = torch.randn(m, 8), torch.randn(8, 4)
        assert_same(f(x, w), relu_matmul(x, w))
    assert (f.cache_info().builds, f.cache_info().hits) == (3, 3)


def test_one_compile_a_build_and_the_argument_that_caused_it() -> None:
    """Counters say how often was compiled, and what each new key differed in from the nearest known one."""
    f = built(relu_matmul, exact=True, hints=())
    x, w = torch.randn(6, 4), torch.randn(4, 4)
    for _ in range(3):
        f(x, w)
    f(x, w.T)
    assert f.explain(x, w.T).new_because == ("strides of w",)
    f(x[:5], w)
    assert f.explain(x[:5], w).new_because == ("sizes of x",)
    assert f.cache_info().builds == 3
    assert f.cache_info().misses_by_reason == {"the first call": 1, "strides of w": 1, "sizes of x": 1}


# sizes 0 and 1


@pytest.mark.parametrize("one", [0, 1])
@pytest.mark.generated
def test_a_size_of_one_leaves_the_other_dims_their_hints(one: int) -> None:
    """It is a constant of a class of its own; both classes' builds are right, and neither serves the other's calls."""

    def scaled(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x) * 2 + y

    f = built(scaled, dims={"x": "B T C", "y": "B T C"}, hints={"B": (16,), "T": (32,)})
    for batch, time in ((4, 5), (4, one), (9, one), (9, 7), (300, one)):
        x, y = torch.randn(batch, time, 8), torch.randn(batch, time, 8)
        assert_same(f(x, y), scaled(x, y))
        assert f.explain(x, y).variant == ("hint[B=16]" if time == one else "hint[B=16,T=32]")
    assert f.cache_info().builds == 2


def test_hints_that_differ_in_a_size_of_one_alone_are_one() -> None:
    """A product of hints has fewer points where a dim is a constant; a list of points, too."""
    x = torch.randn(1, 6)
    for hints in ({"M": (16, 32), "N": (8,)}, [{"M": 16, "N": 8}, {"M": 32, "N": 8}]):
        f = built(lambda x: torch.relu(x) * 2, dims={"x": "M N"}, hints=hints)
        assert_same(f(x), torch.relu(x) * 2)
        assert f.explain(x).variant == "hint[N=8]"
        assert [timing.variant for timing in f.explain(x).timings] == ["plain", "hint[N=8]"]


@pytest.mark.generated
def test_one_row_is_no_row_of_many() -> None:
    """What broadcasts at size 1 does so in its own class only."""
    f = built(lambda x, y: torch.relu(x + y) * y, dims={"x": "M N", "y": "K N"}, hints={"M": (16,), "K": (16,)})
    for m, k in ((4, 4), (4, 1), (1, 4), (1, 1), (6, 6), (6, 1), (1, 6)):
        x, y = torch.randn(m, 8), torch.randn(k, 8)
        assert_same(f(x, y), torch.relu(x + y) * y)


def test_bare_dims_of_one_alone_are_an_exact_build() -> None:
    """Where all that varies has size 1 all sizes are constants; with no element there is nothing to build for."""

    @built
    def f(x: Tensor) -> Tensor:
        return torch.relu(x) + 1

    chosen = []
    for size in (3, 4, 1, 0, 1):
        x = torch.randn(size, 8)
        assert_same(f(x), torch.relu(x) + 1)
        chosen.append(f.explain(x).variant)
    assert chosen == ["exact", "hint[x.0=64]", "exact", "plain", "exact"]


@pytest.mark.generated
def test_gradients_of_one_token_come_from_a_hints_build() -> None:
    """As those of many."""
    f = built(lambda x, w: torch.relu(x @ w), dims={"x": "B T K", "w": "K N"}, hints={"B": (16,), "T": (16,)})
    for batch in (4, 9):
        x, w = torch.randn(batch, 1, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)
        got = torch.autograd.grad(f(x, w).sum(), (x, w))
        assert_same(got, torch.autograd.grad(torch.relu(x @ w).sum(), (x, w)))
        assert f.explain(x, w).variant == "hint[B=16]"


# bare


def test_bare_finds_the_dims_that_vary() -> None:
    """The first call runs what can be known; from the second size on the axis that varied is dynamic."""

    @built
    def f(x: Tensor, b: Tensor) -> Tensor:
        return torch.relu(x) + b

    b = torch.randn(8)
    variants = []
    for m in (5, 6, 7, 8):
        x = torch.randn(m, 8)
        assert_same(f(x, b), torch.relu(x) + b)
        variants.append(f.explain(x, b).variant)
    assert variants == ["exact", *["hint[x.0=64]"] * 3]
    assert f.cache_info().builds == 2


def test_bare_honours_mark_dynamic() -> None:
    """An axis that carries torch's mark is dynamic from its first call."""

    @built
    def f(x: Tensor) -> Tensor:
        return torch.relu(x) + 1

    x = torch.randn(5, 8)
    torch._dynamo.mark_dynamic(x, 0)
    assert_same(f(x), torch.relu(x) + 1)
    assert f.explain(x).variant == "hint[x.0=64]"


# gradients


@pytest.mark.generated
def test_gradients_match() -> None:
    """A call that needs gradients runs a build with a backward, for hints and for exact."""
    for variant in ("hint[M=64]", "exact"):
        f = pinned(built(relu_matmul, dims={"x": "M K", "w": "K N"}, hints={"M": (64,)}, exact=True), variant)
        for m in (5, 9):
            x, w = torch.randn(m, 8, requires_grad=True), torch.randn(8, 3, requires_grad=True)
            seed = torch.randn(m, 3)
            got = torch.autograd.grad(f(x, w), (x, w), seed)
            assert_same(got, torch.autograd.grad(relu_matmul(x, w), (x, w), seed))
            assert f.explain(x, w).variant == variant
            assert x.grad is None


@pytest.mark.generated
def test_a_graph_can_be_retained() -> None:
    """Plain allows a second backward through a retained graph, and so does a build."""
    f = built(lambda x: (x.sin() * x).sum(), exact=True, hints=())
    x = torch.randn(5, requires_grad=True)
    out = f(x)
    out.backward(retain_graph=True)
    once = x.grad.clone()
    out.backward()
    assert_same(x.grad, 2 * once)


def test_grad_mode_is_part_of_the_key() -> None:
    """The same tensors with and without gradients are two calls."""
    f = built(lambda x: torch.relu(x) * 2, exact=True, hints=())
    x = torch.randn(5, requires_grad=True)
    with torch.no_grad():
        assert not f(x).requires_grad
    assert f(x).requires_grad
    with torch.inference_mode():
        assert f(x).is_inference()


# modules


class Layer(nn.Module):
    """A layer with a parameter, a buffer and an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.register_buffer("shift", torch.randn(8))
        self.scale = 2.0

    def plain(self, x: Tensor) -> Tensor:
        """What it computes, undecorated."""
        y = torch.relu(self.lin(x)) * self.scale + self.shift
        return y if self.training else -y

    @built(exact=True, hints=())
    def forward(self, x: Tensor) -> Tensor:
        """The same, dispatched."""
        y = torch.relu(self.lin(x)) * self.scale + self.shift
        return y if self.training else -y


@pytest.fixture
def layer() -> Layer:
    """A layer whose dispatcher remembers nothing yet."""
    Layer.forward.cache_clear()
    return Layer()


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def test_a_module_follows_its_parameters(layer: Layer) -> None:
    """Updates in place, swapped parameters and swapped buffers are seen without a new build."""
    assert_same(layer(X), layer.plain(X))
    with torch.no_grad():
        layer.lin.weight.add_(1)
    assert_same(layer(X), layer.plain(X))
    layer.lin.weight = nn.Parameter(torch.randn(8, 8))
    assert_same(layer(X), layer.plain(X))
    layer.shift = torch.randn(8)
    assert_same(layer(X), layer.plain(X))
    layer.lin = nn.Linear(8, 8)
    assert_same(layer(X), layer.plain(X))
    assert Layer.forward.cache_info().builds == 1


def test_a_modules_mode_and_attributes_are_seen(layer: Layer) -> None:
    """Train, eval and an attribute: each state has its build, and going back and forth builds nothing."""
    for _ in range(3):
        for training in (True, False):
            assert_same(layer.train(training)(X), layer.plain(X))
    assert Layer.forward.cache_info().builds == 2
    layer.scale = 3.0
    assert_same(layer(X), layer.plain(X))


def test_a_parameter_of_another_dtype_or_size_is_seen(layer: Layer) -> None:
    """What a key does not hold of a parameter, the build's guards do."""
    layer(X)
    layer.shift = torch.randn(4, 1)
    assert_same(layer(X), layer.plain(X))
    layer.shift = torch.randn(8, dtype=torch.float64)
    assert_same(layer(X), layer.plain(X))
    layer.lin.weight.requires_grad_(False)
    layer.lin.bias.requires_grad_(False)
    assert_same(layer(X), layer.plain(X))


def test_a_hook_added_later_is_seen(layer: Layer) -> None:
    """A forward hook on a submodule, registered after the build was made, runs."""
    layer(X)
    layer.lin.register_forward_hook(lambda module, args, out: out * 0)
    assert_same(layer(X), layer.plain(X))


def test_equal_layers_share_builds() -> None:
    """32 layers of one structure are one build, each with its own parameters."""
    Layer.forward.cache_clear()
    layers = [Layer() for _ in range(32)]
    for each in layers:
        assert_same(each(X), each.plain(X))
    assert Layer.forward.cache_info().builds == 1


@pytest.mark.generated
def test_training_a_module_gives_the_same_gradients(layer: Layer) -> None:
    """Gradients reach the parameters, and choosing has left none behind."""
    twin = copy.deepcopy(layer)
    layer(X)
    assert all(parameter.grad is None for parameter in layer.parameters())
    for _ in range(2):
        layer(X).sum().backward()
        twin.plain(X).sum().backward()
    for one, other in zip(layer.parameters(), twin.parameters(), strict=True):
        assert_same(one.grad, other.grad)


def test_functional_call_works(layer: Layer) -> None:
    """Parameters handed in for one call are the ones that are used."""
    layer(X)
    given = {name: torch.randn_like(value) for name, value in layer.state_dict().items()}
    actual = torch.func.functional_call(layer, given, (X,))
    layer.load_state_dict(given)
    assert_same(actual.detach(), layer.plain(X).detach())


@pytest.mark.generated
def test_checkpoint_works(layer: Layer) -> None:
    """Under checkpointing plain runs, since its hooks must see what plain saves; gradients are the same."""
    x = X.clone().requires_grad_()
    layer(x)
    checkpoint(layer, x, use_reentrant=False).sum().backward()
    got, x.grad = x.grad, None
    layer.plain(x).sum().backward()
    assert_same(got, x.grad)


class Norm(nn.Module):
    """Batch norm, which writes its statistics in training."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    @built(exact=True, hints=())
    def forward(self, x: Tensor) -> Tensor:
        """Normalised."""
        return self.norm(x)


@pytest.mark.generated
def test_statistics_move_once_a_call() -> None:
    """A function that writes its module's buffers is not run for timing; in eval it may be built."""
    mine = Norm()
    theirs = copy.deepcopy(mine)
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        mine(X)
    theirs.norm(X)
    assert_same(dict(mine.state_dict()), dict(theirs.state_dict()))
    mine.eval()
    theirs.eval()
    assert_same(mine(X), theirs.norm(X))
    assert Norm.forward.explain(mine, X).variant == "exact"


@pytest.mark.generated
def test_random_numbers_do_not_depend_on_the_choice() -> None:
    """Dropout draws from the generator what plain draws, and choosing draws nothing."""
    f = built(lambda x: F.dropout(torch.relu(x), 0.5), exact=True, hints=())
    for _ in range(3):
        torch.manual_seed(7)
        expected, after = F.dropout(torch.relu(X), 0.5), torch.rand(1)
        torch.manual_seed(7)
        assert_same(f(X), expected)
        assert_same(torch.rand(1), after)


@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")  # torch 2.11: it indexes by a tensor
def test_a_call_that_raises_draws_what_plain_draws() -> None:
    """A build that raises has drawn as well, and plain is called in its place."""

    def drops(x: Tensor, index: Tensor) -> Tensor:
        return F.dropout(torch.relu(x), 0.5)[index]

    f = pinned(built(drops, exact=True, hints=()), "exact")
    index = torch.tensor([0, 1])
    f(X, index)
    states = []
    for one in (f, drops):
        torch.manual_seed(7)
        with pytest.raises(IndexError):
            one(X, index + 1000)
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


# numbers


def test_numbers_that_vary_do_not_compile_per_value() -> None:
    """The second value makes a number an input of the build; no further value compiles anything."""
    f = built(lambda x, scale, step: torch.relu(x) * scale + step, exact=True, hints=())
    for step in range(10):
        scale = 0.5 + step
        assert_same(f(X, scale, step), torch.relu(X) * scale + step)
    assert f.cache_info().builds <= 4


def test_a_number_that_controls_the_flow_is_followed() -> None:
    """Whatever is built, each value has the answer of plain."""
    f = built(lambda x, n: torch.sin(x) if n > 3 else torch.cos(x), exact=True, hints=())
    for n in (1, 2, 5, 3, 9, 4):
        assert_same(f(X, n), torch.sin(X) if n > 3 else torch.cos(X))


# views


@pytest.mark.generated
def test_a_pure_view_is_a_view() -> None:
    """Slices, permutes and expands share the input's memory, launch no kernel, and `explain` says so."""
    x = torch.randn(4, 6, 8)
    for fn in (lambda x: x[:, 1:, ::2], lambda x: x.permute(2, 0, 1), lambda x: x[:, :1].expand(4, 6, 8)):
        f = pinned(built(fn, exact=True), "exact")
        out = f(x)
        assert out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        assert (out.shape, out.stride(), out.storage_offset()) == (
            fn(x).shape,
            fn(x).stride(),
            fn(x).storage_offset(),
        )
        assert any("launches no kernel" in note for note in f.explain(x).notes)


@pytest.mark.generated
def test_what_plain_returns_as_it_came_comes_back_as_itself() -> None:
    """An argument handed through is the same object."""
    f = built(lambda x, y: (x, x + y), exact=True, hints=())
    x = torch.randn(3)
    for _ in range(2):
        assert f(x, x)[0] is x


# other tools


def method_module() -> nn.Module:
    """A module of a class of its own with a decorated forward."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(8, 3)

        @built(exact=True, hints=())
        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(self.lin(x))

    return Model()


def expected_of(model: Any, x: Tensor) -> Tensor:
    """What the module computes, undecorated."""
    return torch.relu(model.lin(x))


def test_a_decorated_method_works_under_torch_compile() -> None:
    """It is inlined as written, in one graph."""
    model = method_module()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert_same(compiled(X), expected_of(model, X))
    assert_same(compiled(X[:2]), expected_of(model, X[:2]))


def test_a_decorated_method_can_be_exported() -> None:
    """`torch.export` sees the operations of the function as written."""
    model = method_module()
    exported = torch.export.export(model, (X,))
    assert_same(exported.module()(X), expected_of(model, X))


def test_a_decorated_method_can_be_traced_by_fx() -> None:
    """`fx.symbolic_trace` follows it into the submodule."""
    model = method_module()
    traced = torch.fx.symbolic_trace(model)
    assert any(node.op == "call_module" for node in traced.graph.nodes)
    assert_same(traced(X), expected_of(model, X))


def test_a_decorated_function_works_in_an_outer_compile() -> None:
    """Called from a function that is compiled with fullgraph, it is part of its graph."""
    inner = built(relu_matmul, exact=True, hints=())
    outer = torch.compile(lambda x, w: inner(x, w) + 1, backend="eager", fullgraph=True)
    w = torch.randn(8, 3)
    assert_same(outer(X, w), relu_matmul(X, w) + 1)
    assert inner.cache_info().currsize == 0


def test_a_reset_of_dynamo_does_no_harm() -> None:
    """What was built before `torch._dynamo.reset()` still answers, and so does what is built after."""
    f = built(relu_matmul, exact=True, hints=())
    w = torch.randn(8, 3)
    f(X, w)
    torch._dynamo.reset()
    assert_same(f(X, w), relu_matmul(X, w))
    assert_same(f(X[:2], w), relu_matmul(X[:2], w))


@pytest.mark.parametrize(
    ("fn", "args"),
    [
        (torch.softmax, (X, -1)),
        (F.softmax, (X, -1)),
        (F.layer_norm, (X, (8,))),
        (torch.Tensor.relu, (X,)),
        (nn.functional.gelu, (X,)),
    ],
    ids=["torch.softmax", "F.softmax", "F.layer_norm", "Tensor.relu", "F.gelu"],
)
@pytest.mark.generated
def test_torchs_own_functions_can_be_decorated(fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Builtins, and functions of torch written in Python, have builds like any other."""
    f = built(fn, exact=True, hints=())
    assert_same(f(*args), fn(*args))
    assert f.explain(*args).variant == "exact"


@pytest.mark.generated
@pytest.mark.parametrize("n", [2**62, 2**63 - 1, 2**63])
def test_a_number_that_sizes_cannot_be_computed_of_is_plains(n: int) -> None:
    """A build's sizes would wrap, and its result be what the memory held; plain raises, or not."""
    f, x = built(lambda x, n: x[::n] * 2, dims={"n": "P"}, hints={"P": (8,)}), torch.ones(16, 4)
    for number in (4, 5, 8):
        assert_same(f.variant("hint[P=8]")(x, number), x[::number] * 2)
    with pytest.raises(NoVariantError, match="too large for what sizes are computed of"):
        f.variant("hint[P=8]")(x, n)


@pytest.mark.generated
def test_a_number_that_does_not_fit_its_dtype_is_plains() -> None:
    """Which raises, where compiled code would wrap it; one that fits takes the build."""

    def filled(x: Tensor, n: int) -> Tensor:
        return x.clone().fill_(n)

    f, x = built(filled, exact=True, hints=()), torch.zeros(2, dtype=torch.int8)
    for n in (1, 2, 100, 127, -128):
        assert_same(f(x, n), filled(x, n))
    assert f.explain(x, 127).variant == "exact"
    for n in (-129, 300):
        with pytest.raises(RuntimeError, match="overflow"):
            f(x, n)
    assert f.cache_info().builds == 2


def test_what_can_be_followed_at_its_own_sizes_only_has_an_exact_build() -> None:
    """Where a size becomes an argument that takes none, such as whether a mask is causal."""

    def attends(q: Tensor) -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=q.shape[2] > 1)

    f = built(attends, exact=True, hints=())
    for length in (4, 8, 4, 1):
        q = torch.linspace(-1, 1, 2 * length * 8).reshape(1, 2, length, 8)
        assert_same(f(q), attends(q))
        assert f.explain(q).variant == "exact"


# effects

BASE = torch.ones(8)
UNKNOWN = Effects(None, unknown="a generator")
APART, TOGETHER = (BASE[:4], BASE[4:]), (BASE[:6], BASE[2:])
ITSELF = (BASE.as_strided((3, 2), (1, 1)),)


def test_where_other_ranks_may_take_part_nothing_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known to; in a group of processes also what is not known."""
    collective, unknown = Effects(collectives=("all_reduce",)), Effects(None, unknown="a generator")
    assert [may_involve_ranks(one) for one in (Effects(), collective, unknown)] == [False, True, False]
    monkeypatch.setattr(torch.distributed, "is_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert [may_involve_ranks(one) for one in (Effects(), collective, unknown)] == [False, True, True]


def test_a_trusted_variant_of_what_may_involve_ranks_takes_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function runs as it is."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", "online")
    monkeypatch.setattr("shapedispatch.functions.backend.may_involve_ranks", lambda effects: True)
    ran: list[str] = []

    def appends(x: Tensor) -> Tensor:
        ran.append("plain")
        return x * 2

    def other(x: Tensor) -> Tensor:
        ran.append("other")
        return x * 2

    f = shapedispatch(appends, hints=(), variants=[Variant(other, trusted=True)], store=False)
    for _ in range(20):
        f(torch.ones(3))
    assert ran == ["plain"] * 20


@pytest.mark.parametrize(
    ("effects", "mutates", "written", "untimed"),
    [
        (Effects(), None, frozenset(), None),
        (Effects(frozenset({"x"})), None, {"x"}, None),
        (Effects(frozenset({"x"})), ("y",), ("y",), None),
        (Effects(other_writes=("it changes G['n']",)), None, None, "running it again would be seen: it changes G['n']"),
        (Effects(other_writes=("it changes G['n']",)), (), (), None),
        (Effects(collectives=("all_reduce",)), ("x",), None, "it performs collectives (all_reduce)"),
        (
            Effects(None, unknown="a generator"),
            None,
            None,
            "is unknown (name what it writes with mutates=): a generator",
        ),
        (UNKNOWN, ("x",), ("x",), None),
    ],
)
def test_what_timing_may_touch(effects: Effects, mutates: Any, written: Any, untimed: str | None) -> None:
    """What the decoration says goes before what was seen, but not before other ranks."""
    found, why = what_timing_may_touch(effects, mutates)
    assert found == written
    assert (why is None) if untimed is None else (untimed in str(why))


@pytest.mark.parametrize(
    ("effects", "args", "reason"),
    [
        (Effects(), TOGETHER, None),
        (Effects(frozenset({"x"})), APART, None),
        (Effects(frozenset({"x"})), TOGETHER, "it writes x, and arguments share memory"),
        (Effects(frozenset({"x"}), beside=Beside((0,), ((1, 4),))), APART, None),
        (Effects(frozenset({"x"})), ITSELF, "it writes x, and elements of it share memory"),
        (Effects(frozenset({"x[0].k"})), ([ITSELF],), "it writes x[0].k, and elements of it share memory"),
        (Effects(frozenset({"y"})), ITSELF, None),
        (Effects(other_writes=("it changes G['n']",)), APART, "it changes G['n']"),
        (Effects(collectives=("all_reduce",)), APART, "it performs collectives"),
        (UNKNOWN, APART, "a generator"),
        (Effects(None), APART, ""),
    ],
)
def test_what_a_build_must_not_be_made_of(effects: Effects, args: Any, reason: str | None) -> None:
    """A build takes its arguments to share no memory, and may do things in another order."""
    found = why_no_builds(effects, args, {}, {"x": args[0]})
    assert (found is None) if reason is None else str(found).startswith(reason)
