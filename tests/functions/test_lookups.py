"""What a trace looks for and may look for in vain: it is guarded, or plain runs."""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import operator
import os
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from shapedispatch import shapedispatch
from tests.helpers import assert_same, pinned

pytestmark = [
    pytest.mark.operators_called,
    pytest.mark.filterwarnings("ignore:(?s).*every variant but plain was refused"),
]

X = torch.linspace(-1, 1, 240).reshape(8, 30)


class Kind(enum.Enum):
    """Two."""

    A = 1
    B = 2


class Text(str, enum.Enum):  # noqa: UP042 - it is what is tested
    """As transformers has it: it names what is missing."""

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise ValueError(value)


class Action(Text):
    """As transformers has it: a text, too."""

    NOTIFY = "notify"
    ALWAYS = "always"
    NONE = "none"


class Above:
    """Which one below it hides."""

    rate = 2.0


class Other(Above):
    """With what may be set on it."""

    gain: Any
    rate = 3.0

    def method(self) -> float:
        """Which may come to have attributes, as any function."""
        return 1.0


class Table(dict[str, float]):
    """As a dict."""


class Named:
    """As `collections.abc.Mapping` has it: a lookup within a lookup."""

    def __init__(self) -> None:
        self.local: dict[str, float] = {}
        self.whole: dict[str, float] = {"a": 1.0}

    def __getitem__(self, key: str) -> float:
        if key in self.local:
            return self.local[key]
        return self.whole[key]

    def get(self, key: str, default: float) -> float:
        """What is there, or the default."""
        try:
            return self[key]
        except KeyError:
            return default


def helper() -> None:
    """A function that may come to have attributes."""


EMPTY: dict[Any, Any] = {}
TABLE: dict[Any, Any] = {"a": 1.0, 30: 2.0}
NESTED: dict[str, dict[str, float]] = {"held": {"a": 1.0}}
ORDERED = collections.OrderedDict(a=1.0, b=2.0)
CHAIN = collections.ChainMap({"a": 1.0}, {"b": 2.0})
OWN = Table(a=1.0)
NAMED = Named()
PROXIED: dict[str, float] = {"a": 1.0}
PROXY = types.MappingProxyType(PROXIED)
USERS = collections.UserDict({"a": 1.0})
THING = types.SimpleNamespace(a=1.0)
OTHER = Other()
ROOM = types.ModuleType("room")
PARTIAL = functools.partial(helper)
KEYS = ["z"]


def or_two(found: Callable[[], float], *errors: type[Exception]) -> float:
    """What is found, or 2."""
    try:
        return found()
    except (KeyError, *errors):
        return 2.0


def by_statement(held: Any, key: Any) -> float:
    """What is there, or 2."""
    try:
        return held[key]
    except KeyError:
        return 2.0


def by_raise(held: Any, key: Any) -> float:
    """As `os.environ` does: the error of the lookup is made another."""
    try:
        try:
            return held[key]
        except KeyError:
            raise AttributeError(key) from None
    except AttributeError:
        return 2.0


def again(held: Any, key: Any) -> float:
    """The error is raised again as it is."""
    try:
        try:
            return held[key]
        except KeyError:
            raise
    except KeyError:
        return 2.0


def suppressed(held: Any, key: Any) -> float:
    """By a block of Python's own."""
    with contextlib.suppress(KeyError):
        return held[key]
    return 2.0


def of_keys(held: Any) -> float:
    """All that is there."""
    return float(len([name for name in held if name != "a"]))


DICTS: dict[str, tuple[Callable[[Tensor], float], Callable[[], Any]]] = {
    "nothing in it": (lambda x: by_statement(EMPTY, "z"), lambda: EMPTY.update(z=7.0)),
    "another key": (lambda x: by_statement(TABLE, "z"), lambda: TABLE.update(z=7.0)),
    "a number": (lambda x: by_statement(TABLE, 31), lambda: TABLE.update({31: 7.0})),
    "a tuple": (lambda x: by_statement(TABLE, (1, 2)), lambda: TABLE.update({(1, 2): 7.0})),
    "a member": (lambda x: by_statement(TABLE, Kind.B), lambda: TABLE.update({Kind.B: 7.0})),
    "a class": (lambda x: by_statement(TABLE, Other), lambda: TABLE.update({Other: 7.0})),
    "a size": (lambda x: by_statement(TABLE, x.shape[0]), lambda: TABLE.update({8: 7.0})),
    "a text made of a size": (lambda x: by_statement(TABLE, f"of{x.dim()}"), lambda: TABLE.update(of2=7.0)),
    "a key that is read": (lambda x: by_statement(TABLE, KEYS[0]), lambda: TABLE.update(z=7.0)),
    "another key is read": (lambda x: by_statement(TABLE, KEYS[0]), lambda: operator.setitem(KEYS, 0, "a")),
    "nested": (lambda x: by_statement(NESTED["held"], "z"), lambda: NESTED["held"].update(z=7.0)),
    "nested, none there": (lambda x: or_two(lambda: NESTED["z"]["a"]), lambda: NESTED.update(z={"a": 7.0})),
    "in order": (lambda x: by_statement(ORDERED, "z"), lambda: ORDERED.update(z=7.0)),
    "a chain": (lambda x: or_two(lambda: CHAIN["b"]), lambda: CHAIN.maps[0].update(b=7.0)),
    "a dict of one's own": (lambda x: by_statement(OWN, "z"), lambda: OWN.update(z=7.0)),
    "a mapping": (lambda x: NAMED.get("z", 2.0), lambda: NAMED.whole.update(z=7.0)),
    "a mapping, nearer": (lambda x: NAMED.get("z", 2.0), lambda: NAMED.local.update(z=7.0)),
    "a proxy": (lambda x: by_statement(PROXY, "z"), lambda: PROXIED.update(z=7.0)),
    "a user's dict": (lambda x: by_statement(USERS, "z"), lambda: USERS.update(z=7.0)),
    "the environment": (lambda x: float(os.environ.get("OF_A_TEST", "2")), lambda: os.environ.update(OF_A_TEST="7")),
    "the environment, by key": (
        lambda x: or_two(lambda: float(os.environ["OF_A_TEST"])), lambda: os.environ.update(OF_A_TEST="7"),
    ),
    "the environment, by getenv": (
        lambda x: float(os.getenv("OF_A_TEST", "2")), lambda: os.environ.update(OF_A_TEST="7"),
    ),
    "a copy": (lambda x: by_statement(dict(TABLE), "z"), lambda: TABLE.update(z=7.0)),
    "a literal of it": (lambda x: by_statement({**TABLE, "b": 1.0}, "z"), lambda: TABLE.update(z=7.0)),
    "a comprehension": (lambda x: by_statement({k: v for k, v in TABLE.items()}, "z"), lambda: TABLE.update(z=7.0)),  # noqa: C416 - it is what is tested
    "a union": (lambda x: by_statement(TABLE | {"b": 1.0}, "z"), lambda: TABLE.update(z=7.0)),
    "a method": (lambda x: or_two(lambda: TABLE.__getitem__("z")), lambda: TABLE.update(z=7.0)),
    "getitem": (lambda x: or_two(lambda: operator.getitem(TABLE, "z")), lambda: TABLE.update(z=7.0)),
    "an itemgetter": (lambda x: or_two(lambda: operator.itemgetter("z")(TABLE)), lambda: TABLE.update(z=7.0)),
    "an error of another kind": (lambda x: by_raise(TABLE, "z"), lambda: TABLE.update(z=7.0)),
    "raised again": (lambda x: again(TABLE, "z"), lambda: TABLE.update(z=7.0)),
    "suppressed": (lambda x: suppressed(TABLE, "z"), lambda: TABLE.update(z=7.0)),
    "a class of errors": (lambda x: or_two(lambda: TABLE["z"], LookupError), lambda: TABLE.update(z=7.0)),
    "any error": (lambda x: or_two(lambda: TABLE["z"], Exception), lambda: TABLE.update(z=7.0)),
}  # fmt: skip
"""By name: what looks for something that is not there, and what puts it there."""

ATTRIBUTES: dict[str, tuple[Callable[[Tensor], float], Callable[[], Any]]] = {
    "of a function": (lambda x: or_two(lambda: helper.gain, AttributeError), lambda: setattr(helper, "gain", 7.0)),
    "of a function, getattr": (
        lambda x: or_two(lambda: getattr(helper, "gain"), AttributeError), lambda: setattr(helper, "gain", 7.0),  # noqa: B009 - it is what is tested
    ),
    "of a function, its getter": (
        lambda x: or_two(lambda: operator.attrgetter("gain")(helper), AttributeError),
        lambda: setattr(helper, "gain", 7.0),
    ),
    "of a method": (
        lambda x: or_two(lambda: OTHER.method.gain, AttributeError), lambda: setattr(Other.method, "gain", 7.0),
    ),
    "of a module": (lambda x: or_two(lambda: ROOM.gain, AttributeError), lambda: setattr(ROOM, "gain", 7.0)),
    "of a partial": (lambda x: or_two(lambda: PARTIAL.gain, AttributeError), lambda: setattr(PARTIAL, "gain", 7.0)),
    "of a class": (lambda x: or_two(lambda: Other.gain, AttributeError), lambda: setattr(Other, "gain", 7.0)),
    "of an object": (lambda x: or_two(lambda: OTHER.gain, AttributeError), lambda: setattr(OTHER, "gain", 7.0)),
    "of an object's class": (lambda x: or_two(lambda: OTHER.gain, AttributeError), lambda: setattr(Other, "gain", 7.0)),
    "of a namespace": (lambda x: or_two(lambda: THING.gain, AttributeError), lambda: setattr(THING, "gain", 7.0)),
    "of a class above": (lambda x: type(OTHER).__mro__[1].rate, lambda: setattr(Above, "rate", 7.0)),
    "of a base": (lambda x: type(OTHER).__bases__[0].rate, lambda: setattr(Above, "rate", 7.0)),
    "of the base": (lambda x: Other.__base__.rate, lambda: setattr(Above, "rate", 7.0)),
    "of what mro gives": (lambda x: Other.mro()[1].rate, lambda: setattr(Above, "rate", 7.0)),
    "of a class below": (lambda x: Above.__subclasses__()[0].rate, lambda: setattr(Other, "rate", 7.0)),
    "all of them": (lambda x: of_keys(THING.__dict__), lambda: setattr(THING, "gain", 7.0)),
    "all of them, vars": (lambda x: of_keys(vars(THING)), lambda: setattr(THING, "gain", 7.0)),
    "all of them, getattr": (lambda x: of_keys(getattr(THING, "__dict__")), lambda: setattr(THING, "gain", 7.0)),  # noqa: B009 - it is what is tested
    "all of a class": (lambda x: float("gain" in Other.__dict__), lambda: setattr(Other, "gain", 7.0)),
    "all of an object's class": (lambda x: float("gain" in type(OTHER).__dict__), lambda: setattr(Other, "gain", 7.0)),
    "all of a module": (lambda x: float("gain" in vars(ROOM)), lambda: setattr(ROOM, "gain", 7.0)),
    "all of a function": (lambda x: float("gain" in helper.__dict__), lambda: setattr(helper, "gain", 7.0)),
}  # fmt: skip

_HOLDERS: list[Any] = [helper, Other.method, ROOM, PARTIAL, Other, OTHER, THING]
_TABLES: list[Any] = [
    EMPTY, TABLE, NESTED, NESTED["held"], ORDERED, CHAIN.maps[0], OWN, NAMED.whole, NAMED.local, PROXIED,
]  # fmt: skip


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """All of these are as they were."""
    monkeypatch.delenv("OF_A_TEST", raising=False)
    kept = [dict(table) for table in _TABLES]
    yield
    for table, before in zip(_TABLES, kept, strict=True):
        table.clear()
        table.update(before)
    USERS.data.pop("z", None)
    os.environ.pop("OF_A_TEST", None)
    KEYS[0] = "z"
    Above.rate, Other.rate = 2.0, 3.0
    for holder in _HOLDERS:
        if "gain" in vars(holder):
            delattr(holder, "gain")


def _scaled(found: Callable[[Tensor], float]) -> Callable[[Tensor], Tensor]:
    def scaled(x: Tensor) -> Tensor:
        return x.sin() * found(x)

    return scaled


@pytest.mark.parametrize("name", [*DICTS, *ATTRIBUTES])
def test_what_was_looked_for_in_vain_may_be_there_later(name: str) -> None:
    """A build is used for as long as it is not there; where no guard says so, plain runs."""
    found, change = (DICTS | ATTRIBUTES)[name]
    fn = _scaled(found)
    f = pinned(shapedispatch(fn, hints=(), exact=True, store=False), "exact")
    for _ in range(3):
        assert_same(f(X), fn(X))
    change()
    for _ in range(3):
        assert_same(f(X), fn(X))


@pytest.mark.parametrize("read", [os.getenv, os.environ.__getitem__, os.environ.get])
def test_the_environment_is_guarded(read: Callable[[str], Any]) -> None:
    """What is in it, too, however it is read."""
    os.environ["OF_A_TEST"] = "3"

    def scaled(x: Tensor) -> Tensor:
        return x.sin() * float(read("OF_A_TEST"))

    f = pinned(shapedispatch(scaled, hints=(), exact=True, store=False), "exact")
    for value in ("3", "3", "4", "3"):
        os.environ["OF_A_TEST"] = value
        assert_same(f(X), scaled(X))


@pytest.mark.parametrize(
    "name", ["nothing in it", "another key", "a mapping", "nested", "the environment", "the environment, by getenv",
             "an error of another kind", "raised again", "of a function", "of a module", "of a method"],
)  # fmt: skip
def test_a_lookup_that_fails_is_guarded(name: str) -> None:
    """So that what does as libraries do has a build."""
    fn = _scaled((DICTS | ATTRIBUTES)[name][0])
    f = pinned(shapedispatch(fn, hints=(), exact=True, store=False), "exact")
    f(X)
    assert f.explain(X).variant == "exact"


def test_what_is_asked_for_with_a_default_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """That it is not there."""

    def by_default(x: Tensor) -> Tensor:
        found = getattr(THING, "z", 2.0) * EMPTY.get("z", 3.0) * hasattr(THING, "a")
        for factor in iter((1.0, 2.0)):
            found *= factor
        return x.sin() * found if "z" not in EMPTY else x

    f = shapedispatch(by_default, hints=(), exact=True, store=False)
    f(X)
    assert_same(f.variant("exact")(X), by_default(X))
    for _ in range(100):
        f(X)
    monkeypatch.setitem(EMPTY, "z", 7.0)
    assert_same(f(X), by_default(X))


def of_a_module(x: Tensor) -> Tensor:
    """Plain."""
    return x.sin() * getattr(ROOM, "gain", 2.0) * (3.0 if hasattr(ROOM, "flag") else 1.0)


def of_a_function(x: Tensor) -> Tensor:
    """Plain."""
    return x.sin() * getattr(helper, "gain", 2.0) * (3.0 if hasattr(helper, "flag") else 1.0)


def of_torchs(x: Tensor) -> Tensor:
    """Plain, as a library asks that knows several releases."""
    found = getattr(torch.nn.functional, "gain", 2.0) * (3.0 if hasattr(torch.sin, "flag") else 1.0)
    return x.sin() * found


@pytest.mark.parametrize(
    ("fn", "holders"),
    [
        (of_a_module, (ROOM, ROOM)),
        (of_a_function, (helper, helper)),
        (of_torchs, (torch.nn.functional, None)),
    ],
)
def test_what_a_module_or_function_is_asked_for_is_guarded(
    fn: Callable[..., Any], holders: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it is there, and that it is not."""
    f = pinned(shapedispatch(fn, hints=(), exact=True, store=False), "exact")
    for holder, name in zip(holders, ("gain", "flag"), strict=True):
        for _ in range(3):
            assert_same(f(X), fn(X))
        assert f.explain(X).variant == "exact"
        if holder is not None:
            monkeypatch.setattr(holder, name, 5.0, raising=False)
            assert_same(f(X), fn(X))
    monkeypatch.undo()
    assert_same(f(X), fn(X))


def test_what_a_partial_is_asked_for_is_not_known() -> None:
    """Dynamo answers for another one."""

    def asks(x: Tensor) -> Tensor:
        return x.sin() * (3.0 if hasattr(PARTIAL, "flag") else 1.0)

    f = shapedispatch(asks, hints=(), exact=True, store=False)
    f(X)
    assert "PARTIAL has flag" in str(f.explain(X).refusals)


class Output:
    """What a call makes to return it, and which looks through itself, as transformers' outputs do."""

    def __init__(self, first: Tensor) -> None:
        self.first = first
        self.count = 2.0 if self.__dict__.get("first") is not None else 3.0


def test_an_object_that_the_call_makes_may_look_through_itself() -> None:
    """It has what the call has set, and nothing else."""

    def makes(x: Tensor) -> Tensor:
        made = Output(x.sin())
        return made.first * made.count

    f = pinned(shapedispatch(makes, hints=(), exact=True, store=False), "exact")
    for _ in range(3):
        assert_same(f(X), makes(X))
    assert f.explain(X).variant == "exact"


WANTED = [Action.NOTIFY, Action.ALWAYS]


@pytest.mark.parametrize("action", [Action.NONE, Action.ALWAYS, "always", "none"])
def test_a_member_that_is_a_text_is_looked_for_by_what_it_equals(action: str) -> None:
    """By its own class's ``==``, which Python has for texts; those that are there are guarded."""

    def scaled(x: Tensor) -> Tensor:
        named = (Action.NOTIFY, Action.ALWAYS)
        return x.sin() * (2.0 if action in WANTED else 3.0) * (5.0 if action in named else 7.0)

    f = pinned(shapedispatch(scaled, hints=(), exact=True, store=False), "exact")
    try:
        for _ in range(3):
            assert_same(f(X), scaled(X))
        assert f.explain(X).variant == "exact"
        WANTED[1] = Action.NONE
        assert_same(f(X), scaled(X))
    finally:
        WANTED[1] = Action.ALWAYS
