"""What is compared by ``is``, by ``==`` and by ``in``, as a key and in a set."""

from __future__ import annotations

import collections
import enum
import operator
import sys
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


# by ``==``, as keys and in sets


class Thing:
    """Equal to itself alone."""


class Mode(enum.Enum):
    """Of which one is told from the other."""

    FIRST = 1
    SECOND = 2


class Rank(enum.IntEnum):
    """As above, and a number."""

    FIRST = 1
    SECOND = 2


KIND: Any = Thing
ACTS = {Mode.FIRST: torch.sin, Mode.SECOND: torch.cos}
MODES = {Mode.FIRST}


def scaled_by(k: int) -> Callable[[Any], Any]:
    """Functions that have one code."""
    return lambda x: x * k


class Whole(nn.Module):
    """With two parts that may become one, and things in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.a.register_buffer("mask", torch.ones(4))
        self.b.register_buffer("mask", torch.zeros(4))
        self.blocks = nn.ModuleList([nn.Identity(), nn.Identity()])
        self.thing, self.things, self.by_name = Thing(), [Thing(), Thing()], {"k": Thing()}
        self.mode, self.rank = Mode.FIRST, Rank.FIRST
        self.act, self.acts = scaled_by(2), [scaled_by(2), scaled_by(2)]


def shares_a_thing(whole: Whole) -> None:
    """What was two is one."""
    whole.things[0] = whole.by_name["k"] = whole.thing


def shares_a_part(whole: Whole) -> None:
    """So are the parts."""
    whole.b = whole.a


def ties_weights(whole: Whole) -> None:
    """Parameters alone."""
    whole.b.weight = whole.a.weight


def shares_a_buffer(whole: Whole) -> None:
    """Or a buffer."""
    whole.b.mask = whole.a.mask


def is_another_mode(whole: Whole) -> None:
    """Of the same class."""
    whole.mode, whole.rank = Mode.SECOND, Rank.SECOND


def is_another_kind(_: Whole) -> None:
    """A global that names a class."""
    globals()["KIND"] = Whole


def shares_a_function(whole: Whole) -> None:
    """What was two of one code is one."""
    whole.act = whole.acts[0]


Reads = Callable[[Whole], Any]
ALIKE: dict[str, tuple[Reads, Callable[[Whole], None]]] = {
    "==": (lambda whole: whole.thing == whole.things[0], shares_a_thing),
    "!=": (lambda whole: whole.thing != whole.things[0], shares_a_thing),
    "operator.eq": (lambda whole: operator.eq(whole.thing, whole.things[0]), shares_a_thing),
    "in a list": (lambda whole: whole.thing in whole.things, shares_a_thing),
    "in a dict's values": (lambda whole: whole.thing in whole.by_name.values(), shares_a_thing),
    "lists of it": (lambda whole: [whole.thing] == [whole.things[0]], shares_a_thing),
    "where it is": (lambda whole: [whole.thing, *whole.things].index(whole.things[0]), shares_a_thing),
    "how often": (lambda whole: whole.things.count(whole.thing), shares_a_thing),
    "a set": (lambda whole: len({whole.thing, *whole.things}), shares_a_thing),
    "keys": (lambda whole: len({whole.thing: 1, whole.things[0]: 2}), shares_a_thing),
    "by a key": (lambda whole: {whole.things[0]: 2}.get(whole.thing, 3), shares_a_thing),
    "fromkeys": (lambda whole: len(dict.fromkeys([whole.thing, *whole.things])), shares_a_thing),
    "modules": (lambda whole: whole.a == whole.b, shares_a_part),
    "modules in a set": (lambda whole: len({whole.a, whole.b}), shares_a_part),
    "a module by a key": (lambda whole: {whole.a: 2}.get(whole.b, 3), shares_a_part),
    "functions by `is`": (lambda whole: whole.act is whole.acts[0], shares_a_function),
    "functions by `==`": (lambda whole: whole.act == whole.acts[0], shares_a_function),
    "functions by `!=`": (lambda whole: whole.act != whole.acts[0], shares_a_function),
    "a function in a list": (lambda whole: whole.act in whole.acts, shares_a_function),
    "a function in a set": (lambda whole: len({whole.act, *whole.acts}), shares_a_function),
    "a function by a key": (lambda whole: {whole.acts[0]: 2}.get(whole.act, 3), shares_a_function),
    "how often a function": (lambda whole: whole.acts.count(whole.act), shares_a_function),
    "functions by `hash`": (lambda whole: hash(whole.act) == hash(whole.acts[0]), shares_a_function),
    "things by `hash`": (lambda whole: hash(whole.thing) == hash(whole.things[0]), shares_a_thing),
    "children": (lambda whole: len(list(whole.children())), shares_a_part),
    "modules within": (lambda whole: len(list(whole.modules())), shares_a_part),
    "parameters": (lambda whole: len(list(whole.parameters())), ties_weights),
    "a set of parameters": (lambda whole: len(set(whole.parameters())), ties_weights),
    "buffers": (lambda whole: len(list(whole.buffers())), shares_a_buffer),
    "a mode as a key": (lambda whole: {Mode.FIRST: 5, Mode.SECOND: 7}[whole.mode], is_another_mode),
    "a rank as a key": (lambda whole: {Rank.FIRST: 5, Rank.SECOND: 7}[whole.rank], is_another_mode),
    "a mode that may be there": (lambda whole: {Mode.FIRST: 5}.get(whole.mode, 6), is_another_mode),
    "a mode in a set": (lambda whole: whole.mode in MODES, is_another_mode),
    "a mode in a tuple": (lambda whole: whole.mode in (Mode.FIRST,), is_another_mode),
    "what is found by a mode": (lambda whole: ACTS[whole.mode] is torch.sin, is_another_mode),
    "a class by `is`": (lambda whole: type(whole.thing) is KIND, is_another_kind),
    "a class by `==`": (lambda whole: type(whole.thing) == KIND, is_another_kind),  # noqa: E721 - asked about
    "a class in a tuple": (lambda whole: type(whole.thing) in (KIND, int), is_another_kind),
    "a class by `__class__`": (lambda whole: whole.thing.__class__ is KIND, is_another_kind),
}


@pytest.mark.parametrize(("reads", "change"), ALIKE.values(), ids=ALIKE)
def test_what_became_one_or_another_is_seen(
    reads: Reads, change: Callable[[Whole], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which of the objects of a call are one is no part of what each of them is."""
    monkeypatch.setattr(sys.modules[__name__], "KIND", Thing)
    whole = Whole()

    def scaled(whole: Whole, x: Tensor) -> Tensor:
        return x * (reads(whole) + 1)

    before = reads(whole)
    try:
        found = trace(scaled, (whole, X), {}, as_written, tag="test")
    except Untraceable as error:
        pytest.skip(str(error))
    assert all(found.check()((whole, X), {}) for _ in range(3))
    change(whole)
    assert reads(whole) != before
    assert not found.check()((whole, X), {})


def test_weights_that_are_tied_no_more_are_seen() -> None:
    """As much as those that are."""
    whole = Whole()
    ties_weights(whole)

    def scaled(whole: Whole, x: Tensor) -> Tensor:
        return x * len(list(whole.parameters()))

    found = trace(scaled, (whole, X), {}, as_written, tag="test")
    assert found.check()((whole, X), {})
    whole.b.weight = nn.Parameter(torch.ones(4, 4))
    assert not found.check()((whole, X), {})


@pytest.mark.parametrize(
    "reads",
    [
        lambda whole, x: x * 2 if whole.thing is None else x,
        lambda whole, x: torch.where(x == 1, x, whole.a.weight[0]),
        lambda whole, x: x * 2 if whole.mode == Mode.FIRST else x,
        lambda whole, x: whole.b(whole.a(x)),
        lambda whole, x: x * 2 if isinstance(whole.thing, KIND) and "k" in whole.by_name else x,
    ],
)
def test_what_asks_nothing_of_the_kind_has_no_such_guard(reads: Any) -> None:
    """It would be asked by Python at each hit."""

    def scaled(whole: Whole, x: Tensor) -> Tensor:
        return reads(whole, x)

    found = trace(scaled, (Whole(), X), {}, as_written, tag="test")
    assert "which of its objects are one" not in [guard.what for guard in found.place_guards]


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


class Named:
    """What is like its name."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return bool(self.name == other)

    __hash__ = None  # type: ignore[assignment]  # it may change


NAMED, PAIRED, CHAIN = Named("a"), Named(("a",)), collections.ChainMap({"b": 1.0})
FIVE, TRUE = 5, True


class Count(enum.IntEnum):
    """A number that has a name."""

    ROWS = 5


SIZES |= {
    "is a number": lambda x: x.shape[0] is FIVE,
    "is true": lambda x: (x.shape[0] == 5) is True,
    "is, by a function": lambda x: operator.is_(x.shape[0], FIVE),
    "equals a name": lambda x: x.shape[0] == Count.ROWS,
    "a name in a shape": lambda x: Count.ROWS in x.shape,
    "equals what is true": lambda x: x.shape[0] - 4 in [True],
    "equals what a global says": lambda x: x.shape[0] - 4 == TRUE,
    "what a global says in a list": lambda x: x.shape[0] - 4 in [TRUE, "b"],
    "equals a complex number": lambda x: x.shape[0] == 5 + 0j,
    "equals an object": lambda x: x.shape[0] == Named(5),
    "a shape equals an object": lambda x: x.shape == Named((5,)),
    "its real part": lambda x: 5 in [x.shape[0].real],
    "rounded": lambda x: round(x.shape[0], -1) == 0,
    "half of it": lambda x: x.shape[0] / 2 % 1 == 0.5,
    "its root": lambda x: operator.mod(x.shape[0] ** 0.5, 1) == 0,
    "its text": lambda x: f"{x.shape}" == "torch.Size([5])",
    "the text of a list of it": lambda x: str([x.shape[0]]) == "[5]",
}


@pytest.mark.generated  # what calls operators asks for more of a size
@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
@pytest.mark.parametrize("asks", SIZES.values(), ids=SIZES)
def test_a_size_is_compared_at_each_size(asks: Callable[[Tensor], Any]) -> None:
    """A hint's build serves many, and is no answer where Dynamo says the same of all of them."""

    def scaled(x: Tensor) -> Tensor:
        return x * (2 if asks(x) else 3)

    f = pinned(built(scaled, dims={"x": "M"}, hints=(64,)), "hint[M=64]")
    for rows in (8, 5, 6, 5, 7):
        assert_same(f(torch.ones(rows)), scaled(torch.ones(rows)))


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "a text": lambda k: f"{k}" == "5",
    "a text of a fraction": lambda k: f"{k:.2f}" == "2.50",
    "a text in a list": lambda k: f"{k}" in ["5"],
    "a text by a method": lambda k: "{}".format(k) == "5",  # noqa: UP032 - this way is asked about
    "a remainder": lambda k: k % 2 == 0.5,
}


@pytest.mark.generated
@pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused")
@pytest.mark.parametrize("asks", NUMBERS.values(), ids=NUMBERS)
@pytest.mark.parametrize("numbers", [(8, 5, 6, 7, 5), (7.5, 6.5, 2.5, 8.5)], ids=["whole", "fractions"])
@pytest.mark.parametrize(
    "how", [{"hints": (64,), "dims": {"x": "M"}}, {"hints": (), "exact": True}], ids=["hint", "exact"]
)
def test_a_number_that_varies_is_asked_at_each(asks: Callable[[Any], Any], numbers: Any, how: dict[str, Any]) -> None:
    """From the second number on a build takes any."""

    def scaled(x: Tensor, k: Any) -> Tensor:
        return x * (2 if asks(k) else 3)

    f = pinned(built(scaled, **how), "exact" if "exact" in how else "hint[M=64]")
    for k in numbers:
        assert_same(f(torch.ones(8), k), scaled(torch.ones(8), k))


def test_sizes_that_are_compared_with_plain_numbers_have_a_build() -> None:
    """The rule is for what is rare."""

    def scaled(x: Tensor, width: int | None = None) -> Tensor:
        return x * (2 if x.shape[0] == 5 or x.shape[0] in (7.0, 9) or x.shape[0] is None or width is not None else 3)

    f = pinned(built(scaled, dims={"x": "M"}, hints=(64,)), "hint[M=64]")
    assert_same(f(torch.ones(8)), torch.full((8,), 3.0))
    assert f.explain(torch.ones(8)).variant == "hint[M=64]"


OBJECTS: dict[str, Callable[[Tensor], Tensor]] = {
    "in a list": lambda x: x * (2 if "b" in [NAMED] else 3),
    "in a tuple": lambda x: x * (2 if "b" in (1, NAMED) else 3),
    "in a deque": lambda x: x * (2 if "b" in collections.deque([NAMED]) else 3),
    "a mapping": lambda x: x * (2 if {} in [CHAIN] else 3),
    "the other way about": lambda x: x * (2 if NAMED in ["b"] else 3),
    "behind a tuple": lambda x: x * (2 if ("b",) == PAIRED else 3),  # noqa: SIM300 - which comes first is asked about
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
    monkeypatch.setattr(PAIRED, "name", ("b",))
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
