"""What is compared by ``is``, and what is looked for by ``in``."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shapedispatch import shapedispatch
from shapedispatch.functions.compile.tracer import Untraceable, trace
from tests.helpers import as_written, assert_same, built, pinned

pytestmark = pytest.mark.operators_called

# by ``is``

X, HELD = torch.ones(4), torch.ones(4)


class Scaled(nn.Module):
    """Of which two are as like as two peas."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.act: Any = F.relu

    def forward(self, x: Tensor) -> Tensor:
        """Compares a function by what it is."""
        return x * (2 if self.act is F.relu else 3)


ONE, OTHER = Scaled(), Scaled()


def one_or_other(m: nn.Module, x: Tensor) -> Tensor:
    """A module of the call and one that is not."""
    return x * 2 if m is ONE else x * 3


def twice(a: nn.Module, b: nn.Module, x: Tensor) -> Tensor:
    """Two modules of the call."""
    return x * 2 if a is b else x * 3


def held(x: Tensor) -> Tensor:
    """A tensor of the call and one that is not."""
    return x * 2 if x is not HELD else x * 3


def weight_of(m: Scaled, x: Tensor) -> Tensor:
    """A tensor of the call and one that hangs on a module of the call."""
    return x * 2 if x is m.weight else x * 3


COMPARISONS: list[tuple[Any, list[tuple[Any, ...]]]] = [
    (one_or_other, [(OTHER, X), (ONE, X), (OTHER, X)]),
    (twice, [(ONE, OTHER, X), (ONE, ONE, X), (OTHER, ONE, X)]),
    (held, [(X,), (HELD,), (X,)]),
    (weight_of, [(ONE, X), (ONE, X)]),
]


@pytest.mark.filterwarnings(r"ignore:[\s\S]*every variant but plain was refused")
@pytest.mark.parametrize(("fn", "calls"), COMPARISONS, ids=[fn.__name__ for fn, _ in COMPARISONS])
def test_a_comparison_by_identity_is_asked_again(fn: Any, calls: list[tuple[Any, ...]]) -> None:
    """Calls of equal keys whose comparison comes out otherwise."""
    f = built(fn, exact=True, hints=())
    for call in calls * 2:
        assert_same(f(*call), fn(*call))


@pytest.mark.filterwarnings(r"ignore:[\s\S]*every variant but plain was refused")
def test_a_parameter_that_is_an_argument_too_is_itself() -> None:
    """From the first call, where copies for timing are other tensors."""
    f = built(weight_of, exact=True, hints=())
    with torch.no_grad():
        for _ in range(3):
            assert_same(f(ONE, ONE.weight), weight_of(ONE, ONE.weight))


def test_what_an_attribute_is_now_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """One object in the place of another of the same class."""
    holder = Scaled()
    first = holder.act = Scaled()

    def fn(x: Tensor) -> Tensor:
        return x * 2 if holder.act is first else x * 3

    f = built(fn, exact=True, hints=())
    for act in (first, Scaled(), first):
        holder.act = act
        for _ in range(2):
            assert_same(f(X), fn(X))
    assert {choice.variant for choice in f.choices()} == {"exact"}


def test_which_tensors_of_a_call_are_one_stands_in_the_key() -> None:
    """So that a function that asks is built, once for each."""

    def fn(a: Tensor, b: Tensor) -> Tensor:
        return a + b if a is b else a - b

    f = built(fn, exact=True, hints=())
    for pair in ((X, X), (X, HELD)) * 2:
        assert_same(f(*pair), fn(*pair))
    assert {choice.variant for choice in f.choices()} == {"exact"}


def test_what_nothing_else_can_be_is_not_asked_for() -> None:
    """A class, a function and None are guarded as they are, and cost no build."""

    def fn(m: Scaled, x: Tensor) -> Any:
        return m(x) if x is not None and m.weight is not None and type(x) is Tensor else x

    f = built(fn, exact=True, hints=())
    for _ in range(2):
        assert_same(f(ONE, X), X * 2)
        assert_same(f(OTHER, X), X * 2)
    assert f.cache_info().builds == 1


SENTINEL = "by default"


@pytest.mark.parametrize("given", [SENTINEL, 1e300, 10**12])
def test_which_of_equal_values_one_is_no_key_tells(given: Any) -> None:
    """Such a sentinel is another one in another call, though it is equal."""

    def compares(x: Tensor, mode: Any) -> Tensor:
        return x.sin() if mode is SENTINEL else x.cos()

    f = shapedispatch(compares, hints=(), exact=True, store=False)
    with pytest.warns(UserWarning, match="which of equal texts or numbers one is"):
        f(X, given)


@pytest.mark.parametrize("given", [None, True, torch.float32])
def test_of_what_there_is_one_the_value_says_which_it_is(given: Any) -> None:
    """A build goes by it."""

    def compares(x: Tensor, mode: Any) -> Tensor:
        return x.sin() if mode is None or mode is True or mode is torch.float32 else x.cos()

    f = pinned(shapedispatch(compares, hints=(), exact=True, store=False), "exact")
    assert_same(f(X, given), X.sin())
    assert_same(f(X, False), X.cos())
    assert f.explain(X, given).variant == "exact"


# by ``in``

SIZES: dict[str, Callable[[Tensor], Any]] = {
    "a shape": lambda x: 5 in x.shape,
    "a list of sizes": lambda x: 5 in [x.shape[0], 3],
    "a tuple of one": lambda x: 5 not in (x.size(0),),
    "a list of lists": lambda x: [5] in [[x.shape[0]], []],
    "a list of shapes": lambda x: (5,) in [x.shape],
    "what is made of a size": lambda x: 10 in [2 * x.numel()],
    "the values of a dict": lambda x: 5 in {"rows": x.shape[0]}.values(),
    "a deque": lambda x: 5 in collections.deque([x.shape[0]]),
    "where in a list": lambda x: [x.shape[0], 5].index(5),
    "how often in a shape": lambda x: x.shape.count(5),
}


@pytest.mark.generated  # what calls operators asks for more of a size
@pytest.mark.parametrize("asks", SIZES.values(), ids=SIZES)
def test_a_size_that_is_looked_for_is_compared(asks: Callable[[Tensor], Any]) -> None:
    """A hint's build serves many sizes: before torch 2.14 Dynamo says of each that it is not that number."""

    def scaled(x: Tensor) -> Tensor:
        return x * (2 if asks(x) else 3)

    f = pinned(built(scaled, dims={"x": "M"}, hints=(64,)), "hint[M=64]")
    for rows in (8, 5, 6, 5, 7):
        assert_same(f(torch.ones(rows)), scaled(torch.ones(rows)))


class Named:
    """What is like its name."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return bool(self.name == other)

    __hash__ = None  # type: ignore[assignment]  # it may change


NAMED, CHAIN = Named("a"), collections.ChainMap({"b": 1.0})
OBJECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "in a list": lambda x: x * (2 if "b" in [NAMED] else 3),
    "in a tuple": lambda x: x * (2 if "b" in (1, NAMED) else 3),
    "in a deque": lambda x: x * (2 if "b" in collections.deque([NAMED]) else 3),
    "a mapping": lambda x: x * (2 if {} in [CHAIN] else 3),
    "the other way about": lambda x: x * (2 if NAMED in ["b"] else 3),
}


@pytest.mark.parametrize("fn", OBJECTS.values(), ids=OBJECTS)
def test_what_an_object_is_equal_to_is_seen_to_change(
    fn: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or there is no build."""
    try:
        found = trace(fn, (X,), {}, as_written, tag="test")
    except Untraceable:
        return
    assert found.check()((X,), {})
    monkeypatch.setattr(NAMED, "name", "b")
    monkeypatch.setattr(CHAIN, "maps", [{}])
    assert not found.check()((X,), {})


def test_what_a_tensor_is_equal_to_is_known_when_it_is_run() -> None:
    """Whatever it held when the function was traced."""

    def scaled(x: Tensor, held: Tensor) -> Tensor:
        return x * (2 if 1.0 in [held] else 3)

    f = built(scaled, dims={"x": "M"}, hints=(64,))
    with pytest.warns(UserWarning, match="every variant but plain was refused"):
        assert_same(f(X, torch.tensor(2.0)), X * 3)
    assert_same(f(X, torch.tensor(1.0)), X * 2)


def test_what_can_be_equal_to_none_of_it_is_no_matter() -> None:
    """A function, a module, a tensor: none of them is a name."""
    module = nn.Linear(4, 4)

    def scaled(x: Tensor) -> Tensor:
        return x * (2 if "b" in [x, module, F.relu, None] else 3)

    assert trace(scaled, (X,), {}, as_written, tag="test").check()((X,), {})
