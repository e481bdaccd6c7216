"""A module as a target: it stays itself, its forward is dispatched, and what does not fit is left to its children."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import io
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize, prune

from shapedispatch import Store, dispatchers, load, set_mode, shapedispatch
from shapedispatch.api import module_object, registry
from shapedispatch.errors import DeclarationError
from shapedispatch.functions.builder import MOST_STATES
from shapedispatch.records import STATE_CHANGED
from tests.helpers import Ladder, assert_same

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 12).reshape(3, 4)
unbuilt = functools.partial(shapedispatch, hints=(), store=False)
"""Builds nothing: most of these tests are about what is dispatched, and not about what by."""


class Scaled(nn.Module):
    """A linear layer, scaled by an attribute."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale: float = 3.0

    def forward(self, x: Tensor, shift: float = 0.0) -> Tensor:
        """Of ``x`` (B, C)."""
        return self.linear(x) * self.scale + shift


class Cache:
    """What no key can hold."""

    def __init__(self) -> None:
        self.seen, self.layers = 0, list[Tensor]()


class Norm(nn.Module):
    """Fits."""

    def forward(self, x: Tensor) -> Tensor:
        """Of ``x`` (B, C)."""
        return x / x.norm()


class Layer(nn.Module):
    """Takes a cache; what is in it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.body = Norm(), Scaled()

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Counts."""
        if cache is not None:
            cache.seen += 1
        return x + self.body(self.norm(x))


class Model(nn.Module):
    """Layers, a norm and a module of torch's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.norm, self.act = Norm(), nn.ReLU()

    def forward(self, x: Tensor, cache: Cache | None = None) -> Tensor:
        """Hands the cache on."""
        for layer in self.layers:
            x = layer(x, cache)
        return self.act(self.norm(x))


class Branching(nn.Module):
    """Looks at its data: no graph holds it whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Scaled()

    def forward(self, x: Tensor) -> Tensor:
        """Of ``x`` (B, C)."""
        return self.body(x) if x.sum().item() > 0 else self.body(-x)


@pytest.fixture(autouse=True)
def _same_weights() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def counts(dispatcher: Any) -> tuple[int, int, int]:
    """Misses, hits, bypasses."""
    info = dispatcher.cache_info()
    return info.misses, info.hits, info.bypasses


def is_dispatched(module: nn.Module) -> bool:
    """Whether its forward is a dispatcher."""
    return hasattr(module.forward, "cache_info")


# it stays what it is


def test_the_same_module_comes_back() -> None:
    """With and without arguments, and as a decorator that is made first."""
    for decorate in (unbuilt, unbuilt(), shapedispatch(exact=True)):
        module = Scaled()
        assert decorate(module) is module
        assert is_dispatched(module)


def test_calls_are_dispatched() -> None:
    """A call is a miss and then a hit, and its answer is plain's."""
    module = Scaled()
    expected = module(X)
    unbuilt(module)
    assert_same(module(X), expected)
    assert_same(module(X, shift=0.0), expected)
    assert counts(module.forward) == (1, 1, 0)


def test_its_class_is_one_of_the_same_name() -> None:
    """A subclass: `isinstance` and messages say what they said."""
    module = unbuilt(Scaled())
    assert isinstance(module, Scaled)
    assert (type(module).__name__, type(module).__qualname__, type(module).__module__) == (
        "Scaled", "Scaled", __name__,
    )  # fmt: skip
    assert repr(module) == repr(Scaled())
    assert inspect.signature(module.forward) == inspect.signature(Scaled().forward)


def test_no_other_instance_is_touched() -> None:
    """Nor the class."""
    before = Scaled.forward
    unbuilt(Scaled())
    assert Scaled.forward is before
    assert type(Scaled()) is Scaled
    assert not is_dispatched(Scaled())


def test_nothing_is_added_to_its_state() -> None:
    """Neither to the state dict nor to the instance's own."""
    module, plain = unbuilt(Scaled()), Scaled()
    assert list(module.state_dict()) == list(plain.state_dict())
    assert vars(module).keys() == vars(plain).keys()
    module.load_state_dict(plain.state_dict())
    assert_same(module(X), plain(X))


def test_hooks_stay_around_the_forward() -> None:
    """Of every kind that a module has, in their order, at a miss and at a hit."""
    seen: list[str] = []
    module = unbuilt(Scaled())
    module.register_forward_pre_hook(lambda m, args: seen.append("before"))
    module.register_forward_hook(lambda m, args, out: seen.append("after") or out * 2)
    module.register_full_backward_hook(lambda m, g, out: seen.append("backward"))
    plain = Scaled()
    plain.load_state_dict(module.state_dict())
    for _ in range(2):
        answer = module(X.clone().requires_grad_())
        answer.sum().backward()
        assert_same(answer.detach(), plain(X).detach() * 2)
    assert seen == ["before", "after", "backward"] * 2


def test_a_module_goes_when_it_is_dropped() -> None:
    """At once, with its tensors; its class goes with the next collection."""
    module = unbuilt(Scaled())
    module(X)
    dead, weight, cls = weakref.ref(module), weakref.ref(module.linear.weight), weakref.ref(type(module))
    gc.disable()
    try:
        del module
        assert dead() is None
        assert weight() is None
    finally:
        gc.enable()
    gc.collect()
    assert cls() is None


def test_each_module_has_choices_of_its_own() -> None:
    """Two of a class that are handed over apart, with arguments of their own."""
    one, other = unbuilt(Scaled(), name="one"), unbuilt(Scaled(), name="other")
    one(X)
    assert (counts(one.forward)[0], counts(other.forward)[0]) == (1, 0)
    assert (one.forward.core.backend.name, other.forward.core.backend.name) == ("one", "other")


def test_modules_that_are_alike_share_a_dispatcher() -> None:
    """The layers of a model, handed over one by one: what one has learned is known of all, and each is itself."""
    layers = [unbuilt(Scaled()) for _ in range(3)]
    for layer in layers:
        assert_same(layer(X), Scaled.forward(layer, X))
    assert {id(layer.forward.core) for layer in layers} == {id(layers[0].forward.core)}
    assert counts(layers[0].forward) == (1, 2, 0)


@pytest.mark.parametrize(
    "other",
    [
        lambda: unbuilt(Scaled(), maxsize=8),
        lambda: unbuilt(Scaled(), name="other"),
        lambda: unbuilt(Scaled(), inputs=lambda sizes, like: like),
        lambda: unbuilt(Scaled(8)),
        lambda: unbuilt(Scaled().double()),
        lambda: unbuilt(Norm()),
    ],
    ids=["a setting", "a name", "inputs of its own", "another width", "another dtype", "another class"],
)
def test_modules_that_are_not_alike_share_none(other: Callable[[], Any]) -> None:
    """Each learns for itself."""
    one, another = unbuilt(Scaled()), other()
    assert one.forward.core is not another.forward.core
    one(X)
    assert counts(another.forward) == (0, 0, 0)


def test_a_dispatcher_is_shared_with_modules_that_live() -> None:
    """What was learned of one that is gone goes with it."""
    one = unbuilt(Scaled())
    core = weakref.ref(one.forward.core)
    left = unbuilt(Scaled())
    assert left.forward.core is core()
    del one, left
    assert unbuilt(Scaled()).forward.core is not core()


def test_modules_without_a_forward_are_handed_over_one_after_the_other() -> None:
    """What is in each is dispatched; they share nothing, being no calls."""
    for _ in range(2):
        (inner,) = unbuilt(nn.ModuleList([Scaled()]))
        assert is_dispatched(inner)


def test_lazy_modules_are_alike_before_they_have_sizes() -> None:
    """Their parameters have none to compare."""
    one, other = (unbuilt(nn.LazyLinear(4)) for _ in range(2))
    assert one.forward.core is other.forward.core


def test_what_is_left_to_the_children_of_one_is_to_those_of_the_next() -> None:
    """Which is handed over after that was found out."""
    one = unbuilt(Model())
    one(X, Cache())
    other = unbuilt(Model())
    assert other.forward.core is one.forward.core
    assert other.layers[0].body.forward.core is one.layers[0].body.forward.core
    with torch.no_grad():
        assert_same(other(X, Cache()), other(X))


@pytest.fixture
def builds_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where plain wins it runs in other states, too: it is right there."""
    monkeypatch.setattr("shapedispatch.dispatch.dispatcher.timer", lambda *_: Ladder())


def scaled_by_their_number(count: int) -> list[Scaled]:
    """Modules that differ in what they read beside their arguments."""
    layers = [Scaled() for _ in range(count)]
    for number, layer in enumerate(layers):
        layer.scale = number
    return layers


@pytest.mark.usefixtures("builds_win")
def test_one_for_which_no_build_is_left_gets_a_dispatcher_of_its_own() -> None:
    """Each layer has another number: those beyond as many as there are builds for are on their own, and built."""
    layers = [
        shapedispatch(layer, hints=(), exact=True, store=False, name="layers")
        for layer in scaled_by_their_number(MOST_STATES + 2)
    ]
    for _ in range(3):
        for layer in layers:
            assert_same(layer(X), Scaled.forward(layer, X))
    cores = [layer.forward.core for layer in layers]
    assert len({*map(id, cores[:MOST_STATES])}) == 1
    assert len({*map(id, cores)}) == 3
    assert [len(core.table._builds) for core in cores[-2:]] == [1, 1]
    assert copy.deepcopy(layers[-1]).forward.core is cores[-1]


@pytest.mark.usefixtures("builds_win")
def test_a_replica_gets_none_of_its_own() -> None:
    """It is gone after its call, and another is made for the next."""
    layers = [
        shapedispatch(layer, hints=(), exact=True, store=False, name="replicas")
        for layer in scaled_by_their_number(MOST_STATES)
    ]
    for layer in layers:
        layer(X)
    replica: Any = layers[0]._replicate_for_data_parallel()
    replica.scale = MOST_STATES
    assert_same(replica(X), Scaled.forward(replica, X))
    assert replica.forward.core is layers[0].forward.core


@pytest.mark.usefixtures("builds_win")
def test_one_that_is_alone_with_what_it_reads_stays() -> None:
    """It changes by itself: another dispatcher would find the same."""
    (layer,) = (
        shapedispatch(layer, hints=(), exact=True, store=False, name="alone") for layer in scaled_by_their_number(1)
    )
    core = layer.forward.core
    for number in range(MOST_STATES + 2):
        layer.scale = number
        assert_same(layer(X), Scaled.forward(layer, X))
    assert any(STATE_CHANGED in refusal.reasons[0] for refusal in layer.forward.explain(X).refusals)
    assert layer.forward.core is core


@pytest.mark.usefixtures("builds_win")
def test_children_that_calls_wait_for_stay_together() -> None:
    """Nobody has handed them over one by one: what they would build comes on top of what the others have built."""
    model = Model()
    model.layers = nn.ModuleList([Layer() for _ in range(MOST_STATES + 2)])
    for number, layer in enumerate(model.layers):
        layer.body.scale = number
    shapedispatch(model, hints=(), exact=True, store=False, name="model")
    with torch.no_grad():
        for _ in range(2):
            model(X, Cache())
    assert len({id(layer.body.forward.core) for layer in model.layers}) == 1
    last = model.layers[-1].body
    with torch.no_grad():
        assert any(STATE_CHANGED in refusal.reasons[0] for refusal in last.forward.explain(last, X).refusals)


def test_its_name_is_that_of_the_method() -> None:
    """As if the method had been decorated in the class: settings and stored choices are found under it."""
    assert unbuilt(Scaled()).forward.core.backend.name == f"{__name__}.Scaled.forward"


def test_dims_are_those_of_its_arguments() -> None:
    """``self`` is none of them."""
    module = unbuilt(Scaled(), dims={"x": "B C"})
    module(X)
    assert module.forward.explain(X).sizes == {"B": 3, "C": 4}
    with pytest.raises(DeclarationError, match="nothing"):
        unbuilt(Scaled(), dims={"nothing": "B"})


def test_a_replaced_forward_is_what_runs() -> None:
    """On the instance, as of any module; without it the dispatcher is back."""
    module = unbuilt(Scaled())
    module.forward = lambda x: x + 1
    assert_same(module(X), X + 1)
    del module.forward
    assert is_dispatched(module)


# copies


def test_a_deep_copy_is_dispatched_for_itself() -> None:
    """Its own weights and attributes count; what is known is known of both."""
    module = unbuilt(Scaled())
    expected = module(X)
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.linear.weight.zero_()
        twin.linear.bias.fill_(2.0)
    assert_same(twin(X).detach(), torch.full((3, 4), 6.0))
    assert_same(module(X), expected)
    assert counts(module.forward) == counts(twin.forward) == (1, 2, 0)


def test_a_shallow_copy_reads_its_own_attributes() -> None:
    """It shares the weights, and not what is set on it."""
    module = unbuilt(Scaled())
    twin = copy.copy(module)
    twin.scale = 0.0
    assert_same(twin(X).detach(), torch.zeros(3, 4))
    assert_same(module(X), Scaled.forward(module, X))


def test_a_replica_runs_on_its_own_weights() -> None:
    """`nn.DataParallel` makes them by copying the instance's dict."""
    module = unbuilt(Scaled())
    replica = module._replicate_for_data_parallel()
    replica.scale = 0.0
    assert_same(replica(X).detach(), torch.zeros(3, 4))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_module_is_dispatched_again(protocol: int) -> None:
    """By the same arguments, behind a dispatcher of its own."""
    module = unbuilt(Scaled(), dims={"x": "B C"}, maxsize=7)
    expected = module(X)
    again = pickle.loads(pickle.dumps(module, protocol))
    assert_same(again(X), expected)
    assert isinstance(again, Scaled)
    assert counts(again.forward) == (1, 0, 0)
    assert again.forward.cache_info().maxsize == 7
    assert again.forward.explain(X).sizes == {"B": 3, "C": 4}


def test_a_whole_module_can_be_saved() -> None:
    """By `torch.save`."""
    file = io.BytesIO()
    module = unbuilt(Scaled())
    torch.save(module, file)
    file.seek(0)
    assert_same(torch.load(file, weights_only=False)(X), module(X))


def test_arguments_that_cannot_be_pickled_stay_behind(caplog: pytest.LogCaptureFixture) -> None:
    """The module is pickled as it was before it was handed over; the log has the reason."""
    module = unbuilt(Scaled(), variants=[lambda self, x, shift=0.0: self.linear(x) * 3.0])
    with caplog.at_level("DEBUG", "shapedispatch"):
        again = pickle.loads(pickle.dumps(module))
    assert "a module is pickled without its dispatcher: " in caplog.text
    assert type(again) is Scaled
    assert_same(again(X), Scaled.forward(module, X))
    assert is_dispatched(copy.deepcopy(module))


# among torch's tools


def test_it_is_traced_as_written() -> None:
    """By `torch.compile`, `torch.export` and fx."""
    module = unbuilt(Scaled())
    expected = module(X)
    assert_same(torch.compile(module, backend="eager", fullgraph=True)(X), expected)
    assert_same(torch.export.export(module, (X,)).module()(X), expected)
    assert_same(torch.fx.symbolic_trace(module)(X), expected)
    assert_same(module(X), expected)
    assert counts(module.forward)[:2] == (1, 1)


def test_it_may_become_parametrized_and_plain_again() -> None:
    """Another class of torch's comes on top, and leaves."""
    module = unbuilt(Scaled())
    parametrize.register_parametrization(module.linear, "weight", nn.Identity())
    assert_same(module(X), Scaled.forward(module, X))
    inner = unbuilt(nn.Linear(4, 4))
    parametrize.register_parametrization(inner, "weight", nn.Tanh())
    assert_same(inner(X), nn.functional.linear(X, inner.weight, inner.bias))
    parametrize.remove_parametrizations(inner, "weight")
    assert is_dispatched(inner)


def test_a_parametrized_module_is_passed_over() -> None:
    """Torch takes the topmost class off to make it plain again, and that must be its own."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight

    weighted, norm = Weighted(), Norm()
    parametrize.register_parametrization(weighted, "weight", nn.Identity())
    unbuilt(nn.ModuleList([weighted, norm]))
    assert is_dispatched(norm)
    parametrize.remove_parametrizations(weighted, "weight")
    assert type(weighted) is Weighted


def test_train_and_eval_are_told_apart() -> None:
    """By a build's guards; so is every other attribute."""

    class Modal(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x * 2 if self.training else x * 3).sin().cos()

    module = shapedispatch(Modal(), exact=True, hints=(), store=False)
    for _ in range(2):
        assert_same(module.train()(X), (X * 2).sin().cos())
        assert_same(module.eval()(X), (X * 3).sin().cos())
    assert module.forward.cache_info().builds >= 1


@pytest.fixture
def _process_group() -> Iterator[None]:
    """Of this process alone."""
    if not torch.distributed.is_available():
        pytest.skip("this torch has no process groups")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("_process_group")
@pytest.mark.generated
def test_it_trains_in_data_parallel() -> None:
    """Inside of `DistributedDataParallel`."""
    module = unbuilt(Scaled())
    nn.parallel.DistributedDataParallel(module)(X).sum().backward()
    assert module.linear.weight.grad is not None
    assert counts(module.forward)[0] == 1


@pytest.mark.usefixtures("_process_group")
@pytest.mark.generated
def test_it_is_compiled_in_data_parallel_of_several_buckets() -> None:
    """In one piece: Dynamo would cut it where the gradients of a bucket are complete."""
    layers = nn.Sequential(nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh())
    f = shapedispatch(layers, exact=True, hints=(), store=False)
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)
    model(torch.rand(2, 600)).sum().backward()
    assert f.forward.cache_info().builds == 1, f.forward.choices()


@pytest.mark.usefixtures("_process_group")
@pytest.mark.parametrize("first", [True, False], ids=["dispatched, then sharded", "sharded, then dispatched"])
@pytest.mark.generated
def test_it_trains_sharded(first: bool) -> None:
    """By `fully_shard`, which gives instances a class of their own, too."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, plain = Model(), Model()
    plain.load_state_dict(model.state_dict())
    mesh = init_device_mesh("cpu", (1,))
    if first:
        unbuilt(model)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if not first:
        unbuilt(model)
    for module in (plain, model):
        answer = module(X, Cache())
        answer.sum().backward()
        assert_same(answer.detach(), plain(X).detach())
    assert is_dispatched(model.layers[1].norm)
    found = model.layers[0].body.linear.weight.grad
    assert_same(found.full_tensor(), plain.layers[0].body.linear.weight.grad)


# asking


def test_it_is_asked_without_naming_it() -> None:
    """Its forward's methods take the arguments of a call; the module may be named, too."""
    module = unbuilt(Scaled(), dims={"x": "B C"})
    assert module.forward.tune(X).variant == "plain"
    assert module.forward.explain(X) == module.forward.explain(module, X)
    assert [choice.sizes["B"] for choice in module.forward.prepare({"B": [5, 6]}, X)] == [5, 6]
    assert_same(module.forward.variant("plain")(X), module(X))


def test_a_dropped_module_is_asked_for() -> None:
    """Another of its class answers; where there is none, its dispatcher says what is missing."""
    module = unbuilt(Scaled())
    forward, twin = type(module).forward, copy.deepcopy(module)
    del module
    assert forward.explain(X).origin == "unseen"
    del twin
    with pytest.raises(TypeError, match="missing"):
        forward.explain(X)


def test_a_module_gives_its_dispatchers_what_no_key_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load(model)` finds the modules of each."""
    monkeypatch.setattr(registry, "_live", weakref.WeakValueDictionary())  # without those of other tests
    assert load(unbuilt(Scaled())) == []


def test_children_are_loaded_before_the_first_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process has left to them runs in one that is sealed from its start."""
    builds: dict[str, Any] = {"exact": True, "hints": (), "objective": lambda timing: float(timing.variant != "exact")}
    target = functools.partial(shapedispatch, store=Store(tmp_path / "store"), **builds)

    def chosen(model: nn.Module) -> list[str]:
        parts = (model.layers[1].body, model.layers[0].norm, model.norm)
        return [part.forward.explain(X).variant for part in parts if is_dispatched(part)]

    with torch.no_grad():
        tuned, plain = target(Model()), Model()
        plain.load_state_dict(tuned.state_dict())
        assert_same(tuned(X, Cache()), plain(X))
        assert chosen(tuned) == ["exact", "exact", "exact"]
        monkeypatch.setattr(registry, "_live", weakref.WeakValueDictionary())  # as a process that starts has it
        monkeypatch.setattr(module_object, "_targets", weakref.WeakSet())
        fresh = target(Model())
        fresh.load_state_dict(tuned.state_dict())
        assert chosen(fresh) == []
        assert [choice.origin for choice in load(fresh)] == ["stored", "stored"]
        with set_mode("sealed", on_miss="error"):
            assert_same(fresh(X, Cache()), plain(X))
            assert chosen(fresh) == ["exact", "exact", "exact"]


def test_nothing_is_dispatched_to_be_loaded_where_nothing_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model stays as it is, and what was only asked has no dispatcher."""
    monkeypatch.setattr(registry, "_live", weakref.WeakValueDictionary())  # without those of other tests
    model = shapedispatch(Model(), hints=(), store=Store(tmp_path / "store"))
    assert load(model) == []
    assert not any(is_dispatched(child) for child in model.children())
    gc.collect()
    assert list(dispatchers()) == [f"{__name__}.Model.forward"]


# what cannot be handed over


def test_a_module_is_handed_over_once() -> None:
    """Again is an error; so is one whose class is decorated."""

    class Decorated(nn.Module):
        @unbuilt
        def forward(self, x: Tensor) -> Tensor:
            return x

    for module in (unbuilt(Scaled()), Decorated()):
        with pytest.raises(DeclarationError, match="a dispatcher already"):
            shapedispatch(module)


@pytest.mark.filterwarnings("ignore:.*torch.jit")  # of one category up to torch 2.13, of another in 2.15
def test_a_compiled_or_scripted_module_is_an_error() -> None:
    """Which says what to hand over."""
    with pytest.raises(DeclarationError, match="as it was written"):
        shapedispatch(torch.compile(Scaled(), backend="eager"))
    with pytest.raises(DeclarationError, match="as it was written"):
        shapedispatch(torch.jit.trace(Scaled(), X))


def test_a_module_class_is_an_error() -> None:
    """As any class."""
    with pytest.raises(DeclarationError, match="is a class: decorate a method in it, or hand over a module"):
        shapedispatch(Scaled)


def test_what_is_for_kernels_is_an_error() -> None:
    """As above a function."""
    with pytest.raises(DeclarationError, match="for Triton kernels"):
        shapedispatch(Scaled(), grid=lambda meta: (1,))


def test_a_module_that_nothing_can_be_made_of_is_an_error() -> None:
    """And is left as it was."""
    module = Norm()
    module.forward = lambda x: x
    with pytest.raises(DeclarationError, match="its forward is set on the instance"):
        unbuilt(module)
    assert type(module) is Norm


def test_a_class_that_refuses_subclasses_is_left_alone() -> None:
    """With its own reason."""

    class Final(nn.Module):
        def __init_subclass__(cls) -> None:
            raise RuntimeError("there is one of us")

        def forward(self, x: Tensor) -> Tensor:
            return x

    module = Final()
    with pytest.raises(DeclarationError, match="there is one of us"):
        unbuilt(module)
    assert type(module) is Final


# what does not fit as a whole


def test_an_argument_that_no_key_holds_leaves_it_to_the_children() -> None:
    """Downward until it fits, each class once; and the answer is plain's, at that call and after it."""
    model, plain = unbuilt(Model()), Model()
    plain.load_state_dict(model.state_dict())
    for call in (1, 2):
        cache = Cache()
        with torch.no_grad():
            assert_same(model(X, cache), plain(X))
        assert cache.seen == 2
        assert counts(model.norm.forward) == (1, 3 * call - 1, 0)
    assert model.layers[0].body.forward.core is model.layers[1].body.forward.core
    assert model.norm.forward.core is model.layers[0].norm.forward.core
    names = [name for name in dispatchers() if name.startswith(__name__)]
    assert {f"{__name__}.{name}.forward" for name in ("Model", "Layer", "Norm", "Scaled")} <= set(names)


def test_it_is_found_out_inside_of_the_first_call() -> None:
    """Which its children serve already."""
    model = unbuilt(Model())
    with torch.no_grad():
        model(X, Cache())
    assert counts(model.layers[0].body.forward) == (1, 1, 0)


def test_one_line_says_which(caplog: pytest.LogCaptureFixture) -> None:
    """For each class that is not dispatched as a whole: why, and what is instead, with how many there are."""
    model = unbuilt(Model())
    with caplog.at_level(logging.WARNING, "shapedispatch"):
        for _ in range(3):
            model(X, Cache())
    root, layer = (record.getMessage() for record in caplog.records)
    assert root.startswith(f"{__name__}.Model.forward is not dispatched as a whole: an argument of type Cache")
    assert root.endswith("In its place: 2 Layer.forward, 1 Norm.forward")
    assert layer.endswith("In its place: 2 Norm.forward, 2 Scaled.forward")


def test_explain_says_so_too() -> None:
    """Of a call with what no key holds, which runs plain, and of any other."""
    model = unbuilt(Model())
    model(X, Cache())
    for call, origin in (((X, Cache()), "bypass"), ((X,), "unseen")):
        choice = model.forward.explain(*call)
        assert (choice.variant, choice.origin) == ("plain", origin)
        assert "an argument of type Cache" in choice.notes[-1]
        assert "2 Layer.forward" in choice.notes[-1]


def test_what_was_left_to_the_children_stays_so() -> None:
    """Whatever the mode was meanwhile, and whatever is forgotten."""
    model = unbuilt(Model())
    model(X, Cache())
    with set_mode("off"):
        model(X, Cache())
    model.forward.cache_clear()
    before = counts(model.norm.forward)
    model(X, cache=Cache())
    assert counts(model.forward) == (0, 0, 0)
    assert counts(model.norm.forward) == (before[0], before[1] + 3, 0)


def test_a_call_that_has_a_key_is_decided_as_a_whole() -> None:
    """Before and after one that has none: training takes no cache, say. What is in between is left to its children."""
    model, plain = unbuilt(Model()), Model()
    plain.load_state_dict(model.state_dict())
    with torch.no_grad():
        for call in ((X,), (X, Cache()), (X,), (X, Cache()), (X,)):
            assert_same(model(*call), plain(X))
    assert counts(model.forward) == (1, 2, 1)
    assert model.layers[0].forward.core.retired


def test_torchs_own_leaves_are_left_as_they_are() -> None:
    """One call of the library each: there is nothing to gain, and much that asks for their very type."""
    model = unbuilt(Model())
    model(X, Cache())
    assert type(model.act) is nn.ReLU
    assert type(model.layers[0].body.linear) is nn.Linear
    assert is_dispatched(unbuilt(nn.Linear(4, 4)))


def test_a_branch_on_data_leaves_it_to_the_children() -> None:
    """What is found out by a trace."""
    model = shapedispatch(Branching(), hints=(), exact=True, store=False)
    with torch.no_grad():
        assert_same(model(X + 2), Scaled.forward(model.body, X + 2))
        assert_same(model(X - 2), Scaled.forward(model.body, 2 - X))
        choice = model.forward.explain(X)
    assert is_dispatched(model.body)
    assert any("1 Scaled.forward" in note for note in choice.notes)
    assert model.body.forward.explain(X).variant in ("plain", "exact")


def test_only_what_names_no_argument_is_handed_down() -> None:
    """Dims, variants and the like are the root's own."""
    model = unbuilt(Model(), dims={"x": "B C"}, variants=[Model.forward], maxsize=9, name="whole")
    model(X, Cache())
    spec = model.norm.forward.core.backend.spec
    assert (spec.declaration.names, spec.variants, spec.hints) == ((), (), ())
    assert model.norm.forward.cache_info().maxsize == 9
    assert model.norm.forward.core.backend.name == f"{__name__}.Norm.forward"


def test_hints_of_dims_are_not_handed_down() -> None:
    """A child has no such dims; a list of sizes fits any."""
    model = shapedispatch(Model(), dims={"x": "B C"}, hints={"B": (16, 32)}, store=False)
    with set_mode("frozen"):
        model(X, Cache())
    assert model.norm.forward.core.backend.spec.hints == (64, 256, 4096)


def test_copies_have_what_their_original_has() -> None:
    """One that was made before as one that was made after it was found out."""
    model = unbuilt(Model())
    before = copy.deepcopy(model)
    model(X, Cache())
    after = copy.deepcopy(model)
    known = counts(model.norm.forward)
    for one in (before, after):
        assert is_dispatched(one.layers[1].norm)
        one(X, Cache())
    assert counts(model.norm.forward) == (known[0], known[1] + 6, 0)


def test_a_pickled_model_has_its_children_dispatched() -> None:
    """Each class once, in the process that reads it."""
    model = unbuilt(Model())
    expected = model(X, Cache())
    again = pickle.loads(pickle.dumps(model))
    assert again.norm.forward.core is again.layers[0].norm.forward.core
    assert again.norm.forward.core is not model.norm.forward.core
    assert_same(again(X, Cache()), expected)


def test_a_list_of_modules_has_no_forward() -> None:
    """Its modules are dispatched."""
    modules = unbuilt(nn.ModuleList([Norm(), Norm(), Scaled()]))
    assert type(modules) is nn.ModuleList
    assert modules[0].forward.core is modules[1].forward.core
    assert is_dispatched(modules[2])


def test_a_child_with_a_forward_of_its_own_is_passed_over() -> None:
    """What is set on the instance is called in place of any class's; its children are dispatched."""
    model = Model()
    model.layers[0].forward = functools.partial(Layer.forward, model.layers[0])
    expected = model(X)
    unbuilt(model)
    assert_same(model(X, Cache()), expected)
    assert type(model.layers[0]) is Layer
    assert is_dispatched(model.layers[0].norm)


def test_a_decorated_child_is_left_as_it_is() -> None:
    """And a module that was handed over by itself."""

    class Holder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = unbuilt(Scaled(), name="own")

        def forward(self, x: Tensor, cache: Cache) -> Tensor:
            return self.own(x)

    holder = unbuilt(Holder())
    holder(X, Cache())
    assert holder.own.forward.core.backend.name == "own"


def test_threads_that_find_it_out_together_agree() -> None:
    """Each class has one dispatcher, and all answers are right."""
    model, plain = unbuilt(Model()), Model()
    plain.load_state_dict(model.state_dict())
    expected, answers = plain(X).detach(), []
    barrier = threading.Barrier(4)

    def run() -> None:
        barrier.wait()
        with torch.no_grad():
            answers.append(model(X, Cache()))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    for answer in answers:
        assert_same(answer, expected)
    assert len({id(layer.norm.forward.core) for layer in model.layers} | {id(model.norm.forward.core)}) == 1


# a method of an instance


def test_a_bound_method_is_dispatched() -> None:
    """For its module, which stays as it is; dims are those of its arguments."""
    module = Scaled()
    forward = unbuilt(module.forward, dims={"x": "B C"})
    assert_same(forward(X), module(X))
    assert_same(forward(x=X, shift=0.0), module(X))
    assert counts(forward) == (1, 1, 0)
    assert forward.explain(X).sizes == {"B": 3, "C": 4}
    assert not is_dispatched(module)
    assert inspect.signature(forward) == inspect.signature(module.forward)


def test_a_bound_method_sees_its_module_change() -> None:
    """By the guards of its builds."""
    module = Scaled()
    forward = shapedispatch(module.forward, exact=True, hints=(), store=False)
    with torch.no_grad():
        for scale in (3.0, 5.0, 3.0):
            module.scale = scale
            assert_same(forward(X), Scaled.forward(module, X))


def test_it_may_take_the_place_of_the_method() -> None:
    """As a compiled method may: ``module.forward = shapedispatch(module.forward)``."""
    module = Scaled()
    expected = module(X)
    module.forward = unbuilt(module.forward)
    assert_same(module(X), expected)
    assert counts(module.forward) == (1, 0, 0)


class Residual(nn.Linear):
    """Whose weight something computes before it is called."""

    def forward(self, x: Tensor) -> Tensor:
        """Of ``x`` (B, 4)."""
        return torch.relu(super().forward(x)) + x


def adapted() -> Residual:
    """With two factors beside its weight."""
    module = Residual(4, 4)
    module.down, module.up = nn.Parameter(torch.randn(2, 4)), nn.Parameter(torch.randn(4, 2))
    return module


def by_factors(module: Any, x: Tensor) -> Tensor:
    """The call with the factors' product added to the weight."""
    weight = module.weight.detach() + module.up @ module.down
    answer: Tensor = torch.func.functional_call(module, {"weight": weight}, (x,))
    return answer


COMPUTED: dict[str, tuple[Callable[[], nn.Module], Callable[[Any, Tensor], Tensor]]] = {
    "pruned": (lambda: prune.l1_unstructured(Residual(4, 4), "weight", 0.5), lambda module, x: module(x)),
    "weight norm": (lambda: nn.utils.weight_norm(Residual(4, 4)), lambda module, x: module(x)),
    "spectral norm": (lambda: nn.utils.spectral_norm(Residual(4, 4)), lambda module, x: module(x)),
    "factors": (adapted, by_factors),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", COMPUTED)
@pytest.mark.parametrize("judge", ["contest", "online"])
def test_a_weight_that_is_computed_before_the_call_keeps_its_graph(
    kind: str, judge: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared or timed runs no backward through it; what its graph vouches for is learned from calls."""
    monkeypatch.setenv("SHAPEDISPATCH_JUDGE", judge)
    make, call = COMPUTED[kind]
    gradients = []
    for wrapped in (lambda module: module, functools.partial(shapedispatch, hints=(), exact=True, store=False)):
        torch.manual_seed(0)
        module = wrapped(make())
        for rows in (3, 3, 5, 3):
            x = torch.randn(rows, 4, requires_grad=True)
            call(module, x).square().sum().backward()
        gradients.append({name: parameter.grad for name, parameter in module.named_parameters()})
    assert_same(gradients[1], gradients[0])
    learning, *_ = module.forward.choices()
    assert learning.origin == ("learning" if judge == "online" else "only")
    assert any("into what was computed before the call" in note for note in learning.notes)
