from __future__ import annotations

import functools
import types
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch.functions.compile.autograd import effects_only
from shapedispatch.functions.compile.build import Trace
from shapedispatch.functions.compile.tracer import TRIES, Replaced, trace
from shapedispatch.functions.guards import class_values
from shapedispatch.functions.guards.code_guard import TracedObjects, traced_code
from shapedispatch.keys.signature import frame_locals
from tests.helpers import assert_same, built

pytestmark = pytest.mark.operators_called

X = torch.linspace(-1, 1, 32).reshape(4, 8)


def looked_at(fn: Any, *args: Any) -> Trace:
    """A trace for effects alone; nothing is compiled."""
    return trace(fn, args, {}, effects_only, tag="test")


class Descriptor:
    """One of the user's own."""

    def __get__(self, instance: Any, owner: Any) -> float:
        return 2.0


class Meta(type):
    """A class of classes with a method."""

    def times(cls) -> float:
        """Of the class."""
        return 2.0


class Owner(metaclass=Meta):
    """Of each way by which Python finds code on a class, one."""

    described = Descriptor()

    def __init__(self) -> None:
        self.scale = 2.0

    def method(self, x: Tensor) -> Tensor:
        """Of the instance."""
        return x * 2

    @classmethod
    def of_the_class(cls, x: Tensor) -> Tensor:
        """Of the class."""
        return x * 2

    @staticmethod
    def static(x: Tensor) -> Tensor:
        """Of neither."""
        return x * 2

    @property
    def shown(self) -> float:
        """Looks like a value."""
        return 2.0

    def __call__(self, x: Tensor) -> Tensor:
        """As a function."""
        return x * 2

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> float:
        return 2.0

    def __bool__(self) -> bool:
        return True

    def __enter__(self) -> float:
        return 2.0

    def __exit__(self, *_: object) -> None:
        return None


OWNER = Owner()


def by_method(x: Tensor) -> Tensor:
    """`object.method()`"""
    return torch.relu(OWNER.method(x))


def by_class_method(x: Tensor) -> Tensor:
    """`Class.method()`"""
    return torch.relu(Owner.of_the_class(x))


def by_static_method(x: Tensor) -> Tensor:
    """`Class.function()`"""
    return torch.relu(Owner.static(x))


def by_property(x: Tensor) -> Tensor:
    """`object.attribute`"""
    return torch.relu(x) * OWNER.shown


def by_descriptor(x: Tensor) -> Tensor:
    """The same, by a class of the user's."""
    return torch.relu(x) * OWNER.described


def by_making_one(x: Tensor) -> Tensor:
    """`Class()`"""
    return torch.relu(x) * Owner().scale


def by_calling_one(x: Tensor) -> Tensor:
    """`object()`"""
    return torch.relu(OWNER(x))


def by_meta_class(x: Tensor) -> Tensor:
    """A method of the class's class."""
    return torch.relu(x) * Owner.times()


def by_length(x: Tensor) -> Tensor:
    """`len(object)`"""
    return torch.relu(x) * len(OWNER)


def by_item(x: Tensor) -> Tensor:
    """`object[0]`"""
    return torch.relu(x) * OWNER[0]


def by_truth(x: Tensor) -> Tensor:
    """`if object`"""
    return torch.relu(x) * (2 if OWNER else 3)


def by_context(x: Tensor) -> Tensor:
    """`with Class()`"""
    with Owner() as scale:
        return torch.relu(x) * scale


FIVE = 5.0
WAYS: dict[Any, tuple[type, str, Any]] = {
    by_method: (Owner, "method", lambda self, x: x * 5),
    by_class_method: (Owner, "of_the_class", classmethod(lambda cls, x: x * 5)),
    by_static_method: (Owner, "static", staticmethod(lambda x: x * 5)),
    by_property: (Owner, "shown", property(lambda self: FIVE)),
    by_descriptor: (Descriptor, "__get__", lambda self, instance, owner: FIVE),
    by_making_one: (Owner, "__init__", lambda self: setattr(self, "scale", FIVE)),
    by_calling_one: (Owner, "__call__", lambda self, x: x * 5),
    by_meta_class: (Meta, "times", lambda cls: FIVE),
    by_length: (Owner, "__len__", lambda self: 5),
    by_item: (Owner, "__getitem__", lambda self, index: FIVE),
    by_truth: (Owner, "__bool__", lambda self: False),
    by_context: (Owner, "__enter__", lambda self: FIVE),
}


@pytest.mark.parametrize("fn", WAYS, ids=lambda fn: fn.__name__)
def test_code_that_is_replaced_on_a_class_is_seen(fn: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However Python comes to it."""
    if fn is by_meta_class and not class_values.CLASSES_ARE_WATCHED:
        pytest.skip("Dynamo before torch 2.13 does not follow a method of a class's class")
    look = looked_at(fn, X)
    check = look.check()
    assert check((X,), {})
    assert look.invalidated() is None
    owner, name, replacement = WAYS[fn]
    monkeypatch.setattr(owner, name, replacement)
    assert look.invalidated() == f"{owner.__name__}.{name} has been replaced"
    assert not check((X,), {})


class Child(nn.Module):
    """A module within another."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice as much."""
        return x * 2


class Parent(nn.Module):
    """A module of the user's around one of the user's and one of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Child(), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        """Both."""
        return self.inner(x)


def run_module(module: nn.Module, x: Tensor) -> Tensor:
    """A module as an argument."""
    return module(x)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Parent, "forward"),
        (Child, "forward"),
        (nn.ReLU, "forward"),
        (nn.Module, "__call__"),
        (nn.Module, "_call_impl"),
    ],
)
def test_a_modules_code_that_is_replaced_is_seen(owner: type, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's own, that of a child, of one of torch's, and what all modules are called by."""
    module = Parent()
    look = looked_at(run_module, module, X)
    check = look.check()
    assert look.invalidated() is None
    assert check((module, X), {})
    monkeypatch.setattr(owner, name, lambda self, x: x * 5)
    assert not check((module, X), {})
    assert str(look.invalidated()).endswith(f".{name} has been replaced")


def test_a_build_is_made_anew_when_a_method_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a reload in a notebook does; and a build that is shared with a function of the same source, too."""
    f = built(by_method, exact=True, hints=())
    for _ in range(3):
        assert_same(f(X), by_method(X))
    monkeypatch.setattr(Owner, "method", lambda self, x: x * 5)
    for _ in range(3):
        assert_same(f(X), torch.relu(X * 5))
    assert f.explain(X).variant == "exact"


def test_a_build_is_made_anew_when_its_own_code_is_replaced() -> None:
    """The function that was decorated, as well as those that it calls."""

    def own(x: Tensor) -> Tensor:
        return torch.relu(x) * 2

    def other(x: Tensor) -> Tensor:
        return torch.relu(x) * 5

    f = built(own, exact=True, hints=())
    for _ in range(3):
        assert_same(f(X), own(X))
    own.__code__ = other.__code__
    for _ in range(3):
        assert_same(f(X), other(X))
    assert f.explain(X).variant == "exact"


def test_a_build_that_is_shared_stands_on_the_code_of_each_function_that_has_it() -> None:
    """New code of one of them is no concern of the other."""

    def make() -> Any:
        def one(x: Tensor) -> Tensor:
            return torch.relu(x) * 2

        return one

    def other(x: Tensor) -> Tensor:
        return torch.relu(x) * 5

    one, same = make(), make()
    f, g = built(one, exact=True, hints=()), built(same, exact=True, hints=())
    for _ in range(3):
        assert_same(f(X), g(X))
    assert "compiled for another function" in str(g.explain(X))
    same.__code__ = other.__code__
    for _ in range(3):
        assert_same(f(X), one(X))
        assert_same(g(X), other(X))


SCALE_BY: Any = None


def test_a_helper_of_the_same_code_that_is_made_anew_for_each_call_is_no_reason_to_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Guards look at the code of what is there and at what it closes over."""

    def by(scale: float) -> Any:
        return lambda x: x * scale

    def fn(x: Tensor) -> Tensor:
        return torch.relu(SCALE_BY(x))

    f = built(fn, exact=True, hints=())
    for _ in range(5):
        monkeypatch.setitem(globals(), "SCALE_BY", by(2.0))
        assert_same(f(X), fn(X))
    assert f.cache_info().builds == 1


# what is watched


def owner_of(fn: Any) -> type:
    """A class that holds it under the name `held`, and nothing else."""
    return type("Holder", (), {"held": fn})


def watched(holder: type, inner: Any) -> bool:
    """Whether new code of a function that a class holds somehow is seen."""
    found = TracedObjects()
    found.add(holder)
    guard = traced_code(watched, found, [inner.__code__])  # type: ignore[arg-type]
    check = guard.fast_check()
    assert check()
    inner.__code__ = (lambda: 5).__code__
    return not check()


def wrapping(fn: Any) -> Any:
    """A decorator that closes over what it wraps."""

    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


@pytest.mark.parametrize(
    "holding",
    [
        lambda fn: fn,
        staticmethod,
        classmethod,
        property,
        functools.cached_property,
        functools.partial,
        functools.partialmethod,
        wrapping,
        lambda fn: functools.wraps(fn)(lambda: None),
    ],
)
def test_a_function_is_found_in_what_python_wraps_it_in(holding: Any) -> None:
    """By its code, which Dynamo says that it followed."""
    assert watched(owner_of(holding(fresh())), INNER[-1])


INNER: list[Any] = []


def fresh() -> types.FunctionType:
    """A function of its own."""

    def inner() -> int:
        return 2

    INNER.append(inner)
    return inner  # type: ignore[return-value]  # to mypy no function is a FunctionType


@pytest.mark.parametrize(("owner", "name"), [(Meta, "times"), (Descriptor, "__get__")])
def test_the_classes_of_a_class_and_of_its_descriptors_are_watched(
    owner: type, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a guard shows is an instance alone."""
    found = TracedObjects()
    found.add(OWNER)
    guard = traced_code(watched, found, [])  # type: ignore[arg-type]
    monkeypatch.setattr(owner, name, lambda *_: FIVE)
    assert guard.failed() is not None


def test_a_method_of_a_torch_class_by_a_name_in_a_tuple_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python compiles a tuple of names as one constant."""
    monkeypatch.setattr(nn.ReLU, "extra", lambda self, x: x * 2, raising=False)
    module = nn.ReLU()

    def uses(x: Tensor) -> Tensor:
        for name in ("forward", "extra"):
            x = getattr(module, name)(x)
        return x

    look = looked_at(uses, X)
    monkeypatch.setattr(nn.ReLU, "extra", lambda self, x: x * 5)
    assert look.invalidated() == "ReLU.extra has been replaced"


def test_code_that_was_not_followed_is_not_watched() -> None:
    """A helper beside the way may change at will."""
    inner: Any = fresh()
    found = TracedObjects()
    found.add(owner_of(inner))
    guard = traced_code(watched, found, [])  # type: ignore[arg-type]
    inner.__code__ = (lambda: 5).__code__
    assert guard.failed() is None


def test_everything_is_watched_where_dynamo_does_not_say_what_it_traced_code() -> None:
    """On a release without that name."""
    inner: Any = fresh()
    found = TracedObjects()
    found.add(owner_of(inner))
    guard = traced_code(watched, found, None)  # type: ignore[arg-type]
    assert guard.failed() is None
    inner.__code__ = (lambda: 5).__code__
    assert guard.failed() is not None


def test_what_guards_look_at_is_taken_by_its_class() -> None:
    """An instance, a method with its instance, a class; tensors are fakes."""
    found = TracedObjects()
    for value in (OWNER, Owner, OWNER.method, by_method, X):
        found.add(value)
    assert list(found.classes) == [Owner, Meta]
    assert found.functions == [Owner.method, by_method]


# what is in a function, where guards find it


HELPER: Any = None
KEPT: list[Any] = []


def helper(scale: Any) -> Any:
    """A function whose code is the same for every default; it is kept, so that nothing is told by its end."""

    def scaled(x: Tensor, scale: Any = scale) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    KEPT.append(scaled)
    return scaled


def by_global(x: Tensor) -> Tensor:
    """Uses the function of that name."""
    return torch.relu(HELPER(x))


class HasHelper:
    """Has such a function as an attribute of an instance."""

    def __init__(self, scale: Any) -> None:
        self.helper = helper(scale)


INSTANCE = HasHelper(2.0)


def by_attribute(x: Tensor) -> Tensor:
    """Uses the function on an instance."""
    return torch.relu(INSTANCE.helper(x))


@pytest.mark.parametrize("way", ["global", "attribute", "closure"])
def test_another_default_of_a_function_of_the_same_code_is_seen(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the function is found; an equal default is no other."""
    closed_over = helper(2.0)

    def by_closure(x: Tensor) -> Tensor:
        return torch.relu(closed_over(x))

    def put(scale: float) -> None:
        nonlocal closed_over
        monkeypatch.setitem(globals(), "HELPER", helper(scale))
        monkeypatch.setattr(INSTANCE, "helper", helper(scale))
        closed_over = helper(scale)

    put(2.0)
    fn: Any = {"global": by_global, "attribute": by_attribute, "closure": by_closure}[way]
    look = looked_at(fn, X)
    check = look.check()
    assert check((X,), {})
    put(2.0)
    assert check((X,), {})
    put(5.0)
    assert not check((X,), {})
    assert look.accepts(frame_locals(fn, (X,), {}))


def test_a_default_that_changes_in_place_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list stays the same object."""
    scale = [2.0]
    monkeypatch.setitem(globals(), "HELPER", helper(scale))
    look = looked_at(by_global, X)
    check = look.check()
    assert check((X,), {})
    scale[0] = 5.0
    assert not check((X,), {})


def closing_over(scale: Any) -> Any:
    """A method with a closure."""

    def method(self: Any, x: Tensor) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    return method


def with_default(scale: Any) -> Any:
    """A method with a default."""

    def method(self: Any, x: Tensor, scale: Any = scale) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    return method


def with_keyword_default(scale: Any) -> Any:
    """The same with a keyword."""

    def method(self: Any, x: Tensor, *, scale: Any = scale) -> Tensor:
        return x * (scale[0] if isinstance(scale, list) else scale)

    return method


@pytest.mark.parametrize("make", [closing_over, with_default, with_keyword_default])
def test_what_a_method_closes_over_and_its_defaults_are_seen(make: Any) -> None:
    """A list in them that changes in place."""
    scale = [2.0]
    holder: Any = type("Holder", (), {"method": make(scale)})()

    def uses(x: Tensor) -> Tensor:
        return torch.relu(holder.method(x))

    look = looked_at(uses, X)
    check = look.check()
    assert check((X,), {})
    scale[0] = 5.0
    assert not check((X,), {})


def test_another_number_in_a_methods_closure_is_seen() -> None:
    """In the same cell."""
    method = closing_over(2.0)
    holder: Any = type("Holder", (), {"method": method})()

    def uses(x: Tensor) -> Tensor:
        return torch.relu(holder.method(x))

    look = looked_at(uses, X)
    check = look.check()
    assert check((X,), {})
    method.__closure__[0].cell_contents = 5.0
    assert not check((X,), {})


@pytest.mark.parametrize("place", [0, 1], ids=["a function", "a number"])
def test_what_a_modules_method_closes_over_is_seen(place: int) -> None:
    """Of a module that is an argument: its dicts stay as they are."""

    def scaled(by: float, then: Any) -> Any:
        return lambda self, x: then(x) * by

    method = scaled(2.0, torch.tanh)
    module: Any = type("Closing", (nn.Module,), {"helper": method, "forward": lambda self, x: self.helper(x)})()
    f = built(run_module, exact=True, hints=())
    for _ in range(3):
        assert_same(f(module, X), module(X))
    cells = {type(cell.cell_contents) is float: cell for cell in method.__closure__}
    cells[bool(place)].cell_contents = 5.0 if place else torch.sin
    for _ in range(2):
        assert_same(f(module, X), module(X))


class Weighted(nn.Module):
    """A module with a parameter, a buffer and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((8,), 2.0), requires_grad=False)
        self.register_buffer("scale", torch.full((8,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        """Uses both."""
        scaled: Tensor = torch.relu(x * self.weight) * self.scale
        return scaled


@pytest.mark.parametrize(
    "change",
    [
        lambda module: module.double(),
        lambda module: setattr(module.weight, "data", torch.full((1,), 3.0)),
        lambda module: setattr(module.weight, "data", torch.arange(16.0)[::2]),
        lambda module: setattr(module.scale, "data", torch.full((4, 8), 3.0)),
        lambda module: module.weight.set_(torch.full((4, 1), 3.0)),
    ],
    ids=["dtype", "size", "stride", "dims of a buffer", "set_"],
)
def test_a_parameter_that_changes_in_place_is_seen(change: Any) -> None:
    """Its object stays the same, and so does the dict that it stands in; the code asserts nothing of it."""
    module = Weighted()
    f = built(run_module, exact=True, hints=())
    for _ in range(3):
        assert_same(f(module, X), module(X))
    change(module)
    for _ in range(2):
        assert_same(f(module, X), module(X))


# while it is compiled


@pytest.mark.parametrize("times", [1, 9])
def test_code_that_another_thread_replaces_while_it_is_compiled_is_seen(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compiled again, but not for ever."""
    left = times

    def meanwhile(gm: Any, examples: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            scale = 5.0 + left
            monkeypatch.setattr(Owner, "method", lambda self, x: x * scale)
        return effects_only(gm, examples)

    def traced() -> Trace:
        return trace(by_method, (X,), {}, meanwhile, tag="test")  # type: ignore[arg-type]

    if times > TRIES:
        with pytest.raises(Replaced, match="while it was compiled, Owner.method has been replaced"):
            traced()
    else:
        assert traced().invalidated() is None


# what objects say


class Lying(type):
    """A class of classes that says odd things."""

    @property
    def __mro__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError("no order")

    @property
    def __dict__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError("no names")

    @property
    def __flags__(cls) -> Any:  # type: ignore[override]
        raise RuntimeError("no flags")

    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(f"no {name}")


class Odd(metaclass=Lying):
    """One of them, whose instances lie too."""

    __module__ = 3  # type: ignore[assignment]

    @property
    def __class__(self) -> Any:
        raise RuntimeError("no class")

    def method(self) -> int:
        """Like any other."""
        return 2


def test_what_objects_say_of_themselves_is_not_asked() -> None:
    """They may say anything; what they are to Python is what is watched."""
    odd = Odd()
    found = TracedObjects()
    found.add(odd)
    found.add(Odd)
    assert set(map(id, found.classes)) == {id(Odd), id(Lying)}
    holder = type("Holder", (), {"odd": odd, "kind": Odd})
    found.add(holder)
    guard = traced_code(watched, found, None)  # type: ignore[arg-type]
    assert guard.failed() is None
    Odd.method = lambda self: 5  # type: ignore[method-assign,assignment]
    assert guard.failed() is not None
