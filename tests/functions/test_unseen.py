"""What a trace follows that no guard would see at a later call."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo import variables

from shapedispatch import shapedispatch
from shapedispatch.functions.unseen.hooks import forget_slots
from shapedispatch.functions.unseen.unseen import _trains
from tests.helpers import assert_same, pinned

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 240).reshape(8, 30)


@functools.lru_cache
def noise(count: int) -> Tensor:
    """Drawn once, by plain."""
    return torch.rand(count)


@functools.lru_cache
def factor(count: int) -> float:
    """A number."""
    return count * 2.5


def refused(fn: Callable[..., Any]) -> str:
    """Why plain is all there is for it."""
    f = shapedispatch(fn, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        f(X)
    return str(f.explain(X).refusals)


def test_tensors_that_a_cache_keeps_are_not_computed_anew() -> None:
    """A build would draw other numbers at each call."""

    def noisy(x: Tensor) -> Tensor:
        return x.sin() + noise(30)

    assert "functools.lru_cache keeps of noise()" in refused(noisy)


def test_numbers_that_a_cache_keeps_are_as_good_as_computed() -> None:
    """Nobody could tell."""

    def scaled(x: Tensor) -> Tensor:
        return x.sin() * factor(3) + root(4)

    f = shapedispatch(scaled, hints=(), exact=True, store=False)
    f(X)
    assert_same(f.variant("exact")(X), scaled(X))


RATE = [2.0]


@functools.cache
def config() -> dict[str, float]:
    """One for the process."""
    return {"rate": 2.0}


@functools.cache
def rate(count: int) -> float:
    """Of what was there when it was first asked."""
    return RATE[0] * count


class Scaling:
    """With a method that remembers."""

    rate = 2.0

    @functools.cache  # noqa: B019 - that it keeps its object is no matter here
    def factor(self, count: int) -> float:
        """Of what was there when it was first asked."""
        return self.rate * count


SCALING = Scaling()


class Decay:
    """With an attribute that is called as something of `math` is."""

    gamma = 0.5


DECAY = Decay()


@functools.cache
def decayed(how: Decay) -> float:
    """Of what was there when it was first asked."""
    return how.gamma * 2


@functools.cache
def stepped(count: int, steps: list[float] = RATE) -> float:
    """Of what was there when it was first asked."""
    return steps[0] * count


@functools.cache
def root(count: int) -> float:
    """A number."""
    return math.sqrt(count)


@pytest.mark.parametrize(
    ("name", "fn"),
    [
        ("config", lambda x: x.sin() * config()["rate"]),
        ("rate", lambda x: x.sin() * rate(3)),
        ("factor", lambda x: x.sin() * SCALING.factor(3)),
        ("stepped", lambda x: x.sin() * stepped(3)),
        ("decayed", lambda x: x.sin() * decayed(DECAY)),
    ],
)
def test_what_a_cache_keeps_is_not_made_anew(name: str, fn: Callable[[Tensor], Tensor]) -> None:
    """Somebody may have changed it, or what it was made of."""
    assert f"functools.lru_cache keeps of {name}()" in refused(fn)


class Defaults(dict[str, float]):
    """Gives what it does not hold."""

    rate = 2.0

    def __missing__(self, key: str) -> float:
        """The same for each key."""
        return self.rate


DEFAULTS = Defaults()


def test_what_a_dict_gives_for_a_key_that_is_not_there_is_not_taken_for_good() -> None:
    """A class or an object says it."""
    assert "Defaults.__missing__()" in refused(lambda x: x.sin() * DEFAULTS["rate"])


@pytest.fixture
def settings() -> Iterator[None]:
    """As they were, at the end."""
    before = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.is_autocast_enabled("cpu")
    yield
    torch.set_default_dtype(before[0])
    torch.set_float32_matmul_precision(before[1])
    torch.set_autocast_enabled("cpu", before[2])
    torch.use_deterministic_algorithms(False)


SETTERS: list[tuple[Callable[[], None], str]] = [
    (lambda: torch.set_default_dtype(torch.float64), "the default dtype, which it sets"),
    (lambda: torch.use_deterministic_algorithms(True), "deterministic algorithms, which it sets"),
    (lambda: torch.set_float32_matmul_precision("high"), r"set_float32_matmul_precision\(\) sets"),
    (lambda: torch.set_autocast_enabled("cpu", True), r"set_autocast_enabled\(\) sets"),
]


@pytest.mark.usefixtures("settings")
@pytest.mark.parametrize(("sets", "why"), SETTERS)
def test_what_is_set_for_the_whole_process_is_set_at_each_call(sets: Callable[[], None], why: str) -> None:
    """A build would leave it out."""

    def setting(x: Tensor) -> Tensor:
        y = x.sin()
        sets()
        return y

    with pytest.warns(UserWarning, match=f"{why}|marked as skipped"):  # torch 2.11 does not follow the last one
        shapedispatch(setting, hints=(), exact=True, store=False)(X)


def test_a_block_that_puts_back_what_it_sets_is_compiled() -> None:
    """Autocast, and grad mode."""

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            return x @ x.T

    f = shapedispatch(cast, hints=(), exact=True, store=False)
    f(X)
    assert_same(f.variant("exact")(X), cast(X))


class Counting(torch.nn.Module):
    """It sets a buffer, not in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """Plain."""
        self.seen += 1
        return x.sin() * self.seen


def test_what_torch_looks_for_is_its_own_business(caplog: pytest.LogCaptureFixture) -> None:
    """By Python's modules, too: where a module's attribute is set, it asks for a class's signature."""
    f = shapedispatch(Counting(), hints=(), exact=True, store=False)
    f(X)
    assert "not dispatched as a whole" in caplog.text  # for the buffer, or on torch 2.11 for a class that it meets
    assert "a lookup that fails" not in caplog.text


@dataclasses.dataclass
class Rates:
    """With a text that tells what is in it."""

    rate: float = 2.0


class Names(list[str]):
    """As a list."""


@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
@pytest.mark.parametrize(
    ("held", "change"),
    [(Rates(), lambda held: setattr(held, "rate", 2.125)), (Names(["a"]), lambda held: held.append("b"))],
    ids=["dataclass", "list"],
)
def test_the_text_of_an_object_is_not_taken_for_good(held: Any, change: Callable[[Any], None]) -> None:
    """Its class may make it of anything; where Dynamo does not follow how, plain answers."""

    def told(x: Tensor) -> Tensor:
        return x.sin() * len(str(held))

    torch.compile(told, backend="eager")(X)  # by which Dynamo knows its function for texts already
    f = pinned(shapedispatch(told, hints=(), exact=True, store=False), "exact")
    for _ in range(3):
        assert_same(f(X), told(X))
    change(held)
    assert_same(f(X), told(X))


class Holding(torch.nn.Module):
    """With what is found in a list within a tuple."""

    def forward(self, x: Tensor) -> Tensor:
        """Plain."""
        found = self.held
        while not isinstance(found, (float, int, Tensor)):
            found = next(iter(found[::-1] if isinstance(found, tuple) else found))
        return x.sin() * found


def holding(held: Any) -> Holding:
    """One that holds this."""
    made = Holding()
    made.held = held
    return made


@pytest.mark.parametrize("held", [([2.0],), ([[2.0]],), (8, (1, [2.0]))])
def test_a_list_in_a_tuple_of_a_module_is_looked_at(held: Any) -> None:
    """Dynamo compares the tuple with itself."""
    module, inner = holding(held), held
    while not isinstance(inner[-1], float):
        inner = inner[-1]
    f = pinned(shapedispatch(Holding.forward, hints=(), exact=True, store=False), "exact")
    for value in (2.0, 3.0, 3, 2.0):
        inner[-1] = value
        for _ in range(2):
            assert_same(f(module, X), Holding.forward(module, X))
    assert f.explain(module, X).variant == "exact"


def test_a_list_in_a_tuple_that_holds_more_than_constants_is_not_known() -> None:
    """It may change in itself."""
    module = holding(([torch.float64],))

    def cast(x: Tensor) -> Tensor:
        return x.sin().to(module.held[0][0])

    assert "a list or set within a tuple" in refused(cast)


def test_a_tuple_of_constants_is_one() -> None:
    """And a list of tuples has guards of its own."""

    class Holding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shape, self.sizes = (2.0, (3.0, "a")), [(2.0,), (4.0,)]

        def forward(self, x: Tensor) -> Tensor:
            """Plain."""
            return x.sin() * self.shape[1][0] * self.sizes[1][0]

    module = Holding()
    f = pinned(shapedispatch(Holding.forward, hints=(), exact=True, store=False), "exact")
    assert_same(f(module, X), Holding.forward(module, X))
    module.sizes[1] = (5.0,)
    assert_same(f(module, X), Holding.forward(module, X))
    assert f.explain(module, X).variant == "exact"


def test_a_buffer_looks_like_any_tensor() -> None:
    """Only a mark on it says that it is one, and no key holds it."""

    def asks(x: Tensor) -> Tensor:
        return x.sin() if isinstance(x, torch.nn.Buffer) else x.cos()

    assert "whether a tensor is a torch.nn.Buffer" in refused(asks)


def test_a_buffer_by_another_name_is_one() -> None:
    """Whatever the class is called where it is asked for."""
    mark = torch.nn.Buffer

    def asks(x: Tensor) -> Tensor:
        return x.sin() if isinstance(x, mark) else x.cos()

    assert "whether a tensor is a torch.nn.Buffer" in refused(asks)


@typing.runtime_checkable
class HasScale(typing.Protocol):
    """Whatever has one."""

    scale: float


class Plain:
    """It may get one at any time."""


def test_what_makes_an_object_one_of_a_protocol_nobody_watches() -> None:
    """An attribute that no code names."""
    one = Plain()

    def asks(x: Tensor) -> Tensor:
        return x.sin() if isinstance(one, HasScale) else x.cos()

    assert "whether an object has what HasScale asks for" in refused(asks)


def counting() -> Iterator[float]:
    """One more each time."""
    yield from itertools.count(1.0)


def test_what_a_generator_gives_is_drawn_by_the_call_alone() -> None:
    """To trace it would be to draw from it."""
    drawn = counting()
    f = shapedispatch(lambda x: x * next(drawn), hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        assert f(X).equal(X)
    assert [f(X).equal(X * count) for count in (2, 3, 4)] == [True] * 3


@pytest.mark.parametrize(("target", "gradient", "trains"), [
    (torch.sin, False, False), (torch.sin, True, True), (torch.autograd.grad, False, True),
])  # fmt: skip
def test_a_graph_makes_gradients_of_what_it_is_given_or_by_itself(target: Any, gradient: bool, trains: bool) -> None:
    """The formulas of operators are in a build then."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.ones(2, requires_grad=gradient)
    graph.output(graph.call_function(target, (x,)))
    gm = torch.fx.GraphModule(torch.nn.Module(), graph)
    assert _trains(gm) is trains
    with torch.no_grad():
        assert _trains(gm) is (trains and not gradient)


@pytest.mark.parametrize(
    ("module", "name"),
    [("object_protocol", "_get_cached_slots"), ("base", "_tp_type"), ("base", "_compute_slotdefs")],
)
def test_what_a_release_keeps_of_classes_is_forgotten(module: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a special method that a class is given later is not seen by the next trace either."""
    kept = functools.cache(str)
    holder = getattr(variables, module, None) or types.ModuleType(module)
    monkeypatch.setattr(variables, module, holder, raising=False)
    monkeypatch.setattr(holder, name, kept, raising=False)
    kept(1)
    forget_slots()
    assert kept.cache_info().currsize == 0
