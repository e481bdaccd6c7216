"""Ways in which people write functions and modules: each has a build, and the next call of it is a hit."""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from enum import Enum
from typing import Any, Generic, TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shapedispatch import shapedispatch
from shapedispatch.functions.compile.build import Build
from tests.helpers import Ladder, assert_same, built, pinned

pytestmark = pytest.mark.operators_called

X, W = torch.linspace(-2, 2, 384).reshape(24, 16), torch.linspace(-0.5, 0.5, 16)
Ways = dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]]
"""What is decorated, by a name, and the arguments that it is called with."""
T = TypeVar("T")
Pair = collections.namedtuple("Pair", ("first", "second"))


class Act(Enum):
    """What a call may say."""

    RELU = "relu"
    SINE = "sine"


@dataclasses.dataclass(eq=False)
class Answer:
    """What a call may return."""

    values: Tensor
    scale: float


class Holder(Generic[T]):
    """A class with a type of its own."""

    def __init__(self, weight: T) -> None:
        self.weight = weight

    def run(self, x: Tensor) -> Tensor:
        """A method."""
        return (x * self.weight).sin()  # type: ignore[operator]

    @staticmethod
    def alone(x: Tensor) -> Tensor:
        """A method of no instance."""
        return (x * 2).sin() + 1


class Block(nn.Module):
    """A module with a mask that may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.LayerNorm(16)
        self.parts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor | None = None, past: list[Tensor] | None = None) -> Tensor:
        """Plain."""
        y = self.norm(F.gelu(self.linear(x)))
        for part in self.parts:
            y = y + part(y)
        y = y + past[0] if past is not None else y
        return y if mask is None else y.masked_fill(mask, 0.0)


def keywords(x: Tensor, *more: Tensor, scale: float = 2.0, **named: Any) -> Tensor:
    """All kinds of parameters."""
    return sum((one.sin() for one in more), (x * scale).relu()) + named.get("bias", 0)


def chosen(x: Tensor, act: Act, name: str = "gelu") -> Tensor:
    """By what it is told."""
    return getattr(F, name)(x * 2) if act is Act.RELU else (x * 3).sin()


def if_given(xs: list[Tensor] | None, x: Tensor) -> Tensor:
    """Lists that may be None."""
    return x if xs is None else sum((one.sin() for one in xs if one is not None), x * 2)


def matched(x: Tensor, how: Any) -> Tensor:
    """By a pattern."""
    match how:
        case "twice":
            return (x * 2).sin()
        case {"scale": scale}:
            return x * scale
        case _:
            return (x * 3).cos()


def in_a_dict(given: dict[str, Tensor]) -> dict[str, Tensor]:
    """From one into another."""
    return {"y": given["x"].sin() + 1, "z": (given["x"] * 2).relu()}


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    """As decorators do."""

    @functools.wraps(fn)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs) * 2

    return inner


def made_by_exec() -> Any:
    """Of no module."""
    scope: dict[str, Any] = {"__name__": "nowhere"}
    exec("def made(x):\n    return (x * 2).sin() + 1", scope)
    return scope["made"]


def local_named_tuple() -> Any:
    """Its class is a local one."""
    Both = collections.namedtuple("Both", ("one", "other"))
    return lambda x: Both((x * 2).sin(), x.relu())


def made_by_type() -> Any:
    """A module whose class has no statement."""
    kind = type("Made", (nn.Module,), {"forward": lambda self, x: (self.linear(x) * 2).relu()})
    module = kind()
    module.linear = nn.Linear(16, 16)
    return module


def hooked() -> Any:
    """A part that has a hook."""
    block = Block()
    block.linear.register_forward_hook(lambda _, __, out: out * 2)
    return block


WAYS: Ways = {
    "a lambda": lambda: (lambda x: (x.sin() + 1).relu(), (X,)),
    "a partial": lambda: (functools.partial(lambda scale, x: (x * scale).sin(), 2.0), (X,)),
    "a partial with a tensor": lambda: (functools.partial(lambda w, x: (x * w).sin(), W), (X,)),
    "all kinds of parameters": lambda: (keywords, (X, X)),
    "a dict": lambda: (in_a_dict, ({"x": X},)),
    "a list": lambda: (lambda xs: [x.sin() + 1 for x in xs], ([X, X],)),
    "a list that may be None": lambda: (if_given, ([X, X], X)),
    "a list that is asked what it is": lambda: (lambda x: if_given([x, x], x), (X,)),
    "a tuple that is asked what it is": lambda: (lambda x: (x * 2).sin() if (x, 1) is not W else x, (X,)),
    "a named tuple": lambda: (lambda p: Pair(p.first.sin() + p.second, p.second.relu()), (Pair(X, X),)),
    "a local named tuple": lambda: (local_named_tuple(), (X,)),
    "an object that is made": lambda: (lambda x: Answer((x * 2).sin(), 3.0), (X,)),
    "an object that is given": lambda: (lambda a: (a.values * a.scale).sin(), (Answer(X, 2.0),)),
    "None among the results": lambda: (lambda x: (x.sin(), None, x.shape[0]), (X,)),
    "an Enum and a text": lambda: (chosen, (X, Act.SINE)),
    "a dtype": lambda: (lambda x, to: (x * 2).to(to).sin(), (X, torch.float64)),
    "a function that is given": lambda: (lambda x, fn: fn(x * 2) + 1, (X, torch.relu)),
    "a pattern": lambda: (matched, (X, "other")),
    "torch.no_grad()": lambda: (torch.no_grad()(lambda x: (x * 2).sin() + 1), (X,)),
    "a decorator's wrapper": lambda: (wrapped(lambda x: (x * 2).sin() + 1), (X,)),
    "exec": lambda: (made_by_exec(), (X,)),
    "a method": lambda: (Holder(W).run, (X,)),
    "a static method": lambda: (Holder.alone, (X,)),
    "a class with a type": lambda: (lambda x: (x * 2).sin() if isinstance(x, Tensor) and Holder else x, (X,)),
    "a module": lambda: (Block().eval(), (X,)),
    "a module with a mask": lambda: (Block().eval(), (X, X > 0)),
    "a module with a list": lambda: (Block().eval(), (X, None, [X])),
    "a module that is trained": lambda: (Block(), (X.clone().requires_grad_(),)),
    "a module with a hook": lambda: (hooked(), (X,)),
    "a Sequential": lambda: (nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)).eval(), (X,)),
    "a module of torch.fx": lambda: (torch.fx.symbolic_trace(nn.Sequential(nn.Linear(16, 16), nn.ReLU())), (X,)),
    "a class of type()": lambda: (made_by_type(), (X,)),
    "attention": lambda: (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval(), (X[None],)),
    "torch.vmap": lambda: (lambda x: torch.vmap(lambda row: (row * 2).sin().sum())(x), (X,)),
    "torch.func.grad": lambda: (lambda x: torch.func.grad(lambda y: (y**2).sin().sum())(x), (X,)),
    "torch.cond": lambda: (lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), (X,)),
    "autocast inside": lambda: (lambda x: autocast_inside(x), (X,)),
    "a profiler's range": lambda: (lambda x: profiled(x), (X,)),
    "a padded size": lambda: (lambda x: F.pad(x, (0, 0, 0, -x.shape[0] % 16)).sin(), (X,)),
    "positions": lambda: (lambda x: (x + torch.arange(x.size(0))[:, None]).sin(), (X,)),
    "einsum": lambda: (lambda x: torch.einsum("nd,md->nm", x, x).softmax(-1), (X,)),
    "einops": lambda: (rearranged(), (X,)),
    "a layer of einops": lambda: (rearranging(), (X,)),
}


def autocast_inside(x: Tensor) -> Tensor:
    """With a block of its own."""
    with torch.autocast("cpu", torch.bfloat16):
        return (x @ x.T).float().relu()


def profiled(x: Tensor) -> Tensor:
    """With a name for it."""
    with torch.profiler.record_function("a range"):
        return (x * 2).sin()


def rearranging() -> nn.Module:
    """A module that holds its recipe in a tuple with lists."""
    layers: types.ModuleType = pytest.importorskip("einops.layers.torch")
    return nn.Sequential(layers.Rearrange("n (a b) -> (n a) b", a=4), nn.Linear(4, 8), nn.SiLU())


def rearranged() -> Any:
    """With a library that keeps what it has found out of texts."""
    einops: types.ModuleType = pytest.importorskip("einops")
    return lambda x: einops.rearrange(x.sin() * 2, "n (a b) -> (n a) b", a=4)


@pytest.mark.parametrize("way", WAYS)
def test_what_people_write_is_built_and_hit(way: str) -> None:
    """As plain answers; nothing is refused, and no later call is a miss."""
    torch.manual_seed(0)
    target, given = WAYS[way]()
    expected = target(*given)
    decorated = shapedispatch(target, hints=(), exact=True, store=False, name=way)
    dispatched = decorated.forward if isinstance(target, nn.Module) else decorated
    dispatched.core.timer_for = lambda *_: Ladder()
    for _ in range(3):
        answer = decorated(*given)
        assert type(answer) is type(expected)
        assert_same(held(answer), held(expected))
    choice, info = dispatched.explain(*given), dispatched.cache_info()
    assert not choice.refusals
    assert choice.variant == "exact"
    assert (info.misses, info.bypasses, info.hits) == (1, 0, 2)


def test_an_object_that_is_made_is_each_calls_own() -> None:
    """What is returned twice is one object; another call makes another."""

    def made(x: Tensor) -> tuple[Answer, Answer]:
        answer = Answer(x.sin(), 3.0)
        answer.values = answer.values * 2
        return answer, answer

    f = built(made, hints=(), exact=True)
    first, second = f(X), f(X)
    assert f.explain(X).variant == "exact"
    assert first[0] is first[1]
    assert first[0] is not second[0]
    assert_same(vars(second[0]), vars(made(X)[0]))


@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
def test_an_object_that_is_kept_elsewhere_is_plains() -> None:
    """A list of the program's is what the call changes."""
    kept: list[Answer] = []

    def made(x: Tensor) -> Tensor:
        kept.append(Answer(x.sin(), 3.0))
        return x * 2

    f = built(made, hints=(), exact=True)
    f(X)
    assert f.explain(X).variant == "plain"
    assert len(kept) == 1


def test_a_build_whose_guards_pass_no_call_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be decided anew at each call; plain runs instead, and is hit."""
    monkeypatch.setattr(Build, "check", lambda _: lambda *_: False)
    f = built(lambda x: (x * 2).sin(), hints=(), exact=True)
    for _ in range(3):
        f(X)
    assert [one.reasons for one in f.explain(X).refusals] == [
        ("its guards hold at a call of stand-ins, and not at this one",)
    ]
    assert (f.cache_info().misses, f.cache_info().hits) == (1, 2)


def held(answer: Any) -> Any:
    """What an object holds."""
    return vars(answer) if isinstance(answer, Answer) else answer


@pytest.mark.parametrize("given", [{"p": 0.9}, {}], ids=["a constant", "a half"])
def test_a_path_that_is_dropped_is_built(given: dict[str, float]) -> None:
    """By a probability that stands in the code, plain looks at no values."""

    def dropped(x: Tensor) -> Tensor:
        return x.square() * x.new_empty(24, 1).bernoulli_(**given)

    f = pinned(shapedispatch(dropped, hints=(), exact=True, store=False), "exact")
    for seed in range(3):
        torch.manual_seed(seed)
        found = f(X)
        torch.manual_seed(seed)
        assert_same(found, dropped(X))
    assert f.explain(X).variant == "exact"
