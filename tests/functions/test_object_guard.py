from __future__ import annotations

import abc
import collections
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from shapedispatch.functions.compile.build import Trace
from shapedispatch.functions.compile.tracer import Untraceable, trace
from shapedispatch.functions.guards import object_guard
from shapedispatch.functions.guards.class_values import CLASSES_ARE_WATCHED
from tests.helpers import as_written

X = torch.ones(3)


def traced(fn: Any, *args: Any) -> Trace:
    """A trace of a function for effects alone; nothing is compiled."""
    return trace(fn, args, {}, as_written, tag="test")


class Answers:
    """Answers for what is not set."""

    def __getattr__(self, name: str) -> int:
        if name == "scale":
            return 3
        raise AttributeError(name)


class AnswersOnClass(type):
    """The same of a class, with a value of its own."""

    value = 2

    def __getattr__(cls, name: str) -> int:
        if name == "scale":
            return 3
        raise AttributeError(name)


class Holder:
    """With an order, and an answer, for each instance."""

    def __init__(self) -> None:
        self.table = collections.OrderedDict(a=2, b=3)
        self.answers = Answers()

    def first(self, x: Tensor) -> Tensor:
        """Reads the order."""
        return x * next(iter(self.table.values()))

    def scaled(self, x: Tensor) -> Tensor:
        """Reads what is not set."""
        return x * self.answers.scale


Case = tuple[Callable[[Tensor], Tensor], Callable[[], object]]


def set_on_an_instance() -> Case:
    """Past its `__getattr__`."""
    one: Any = Answers()
    return lambda x: x * one.scale, lambda: setattr(one, "scale", 9)


def set_on_its_class() -> Case:
    """The same."""
    cls: Any = type("Own", (Answers,), {})
    one = cls()
    return lambda x: x * one.scale, lambda: setattr(cls, "scale", 9)


def set_on_a_module() -> Case:
    """The same, of a module with a `__getattr__` of its own."""
    one: Any = type("Own", (nn.Module,), {"__getattr__": lambda self, name: 3 if name == "scale" else None})()
    return lambda x: x * one.scale, lambda: one.__dict__.update(scale=9)


def set_before_a_base() -> Case:
    """A value, found on a base before."""
    base = type("Base", (), {"scale": 2})
    cls: Any = type("Own", (base,), {})
    one = cls()
    return lambda x: x * one.scale, lambda: setattr(cls, "scale", 9)


def set_before_a_class_of_classes() -> Case:
    """A value, found on the class of the class before."""
    cls: Any = AnswersOnClass("Own", (), {})
    return lambda x: x * cls.value, lambda: setattr(cls, "value", 9)


def set_on_a_class_of_classes() -> Case:
    """A value there."""
    meta = type("Meta", (type,), {"value": 2})
    cls: Any = meta("Own", (), {})
    return lambda x: x * cls.value, lambda: setattr(meta, "value", 9)


def set_where_a_class_of_classes_answers() -> Case:
    """Past its `__getattr__`."""
    cls: Any = AnswersOnClass("Own", (), {})
    return lambda x: x * cls.scale, lambda: setattr(cls, "scale", 9)


def moved_to_the_end() -> Case:
    """In the order that only an `OrderedDict` has."""
    table = collections.OrderedDict(a=2, b=3)
    return lambda x: x * next(iter(table.values())), lambda: table.move_to_end("a")


def keys_of_a_dict() -> Case:
    """As many as before, in another order."""
    table = {1: 2, 2: 3}
    return lambda x: x * list(table)[0], lambda: table.update({1: table.pop(1)})  # noqa: RUF015 - Dynamo's own way


def order_of_a_set() -> Case:
    """Of what is in it as before."""
    layers = {0, 8}
    return lambda x: x * next(iter(layers)), lambda: (layers.clear(), layers.add(8), layers.add(0))


def type_in_a_set() -> Case:
    """Of an item that is equal."""
    items: set[Any] = {1}
    return lambda x: x * len([*items]), lambda: (items.discard(1), items.add(True))


def order_of_keys_that_are_kept() -> Case:
    """As a view, which is equal in any order."""
    table = {"a": 2, "bb": 3}
    keys = table.keys()
    return lambda x: x * len(list(keys)[0]), lambda: table.update(a=table.pop("a"))  # noqa: RUF015 - Dynamo's own way


def registered() -> Case:
    """As an instance of an abstract class."""
    abstract = abc.ABCMeta("Abstract", (), {})
    one = type("Own", (), {})()
    return lambda x: x * (5 if isinstance(one, abstract) else 7), lambda: abstract.register(type(one))


def registered_below() -> Case:
    """As one of a class that is derived from it."""
    abstract = abc.ABCMeta("Abstract", (), {})
    below: Any = abc.ABCMeta("Below", (abstract,), {})
    one = type("Own", (), {})()
    return lambda x: x * (5 if isinstance(one, abstract) else 7), lambda: below.register(type(one))


CASES = (
    set_on_an_instance,
    set_on_its_class,
    set_on_a_module,
    set_before_a_base,
    set_before_a_class_of_classes,
    set_on_a_class_of_classes,
    set_where_a_class_of_classes_answers,
    moved_to_the_end,
    keys_of_a_dict,
    order_of_a_set,
    type_in_a_set,
    order_of_keys_that_are_kept,
    registered,
    registered_below,
)


@pytest.mark.parametrize("case", CASES)
def test_what_dynamo_has_no_guard_on_is_seen(case: Callable[[], Case]) -> None:
    """At a hit, and before a build is taken for another call, in a sentence."""
    fn, change = case()
    try:
        found = traced(fn, X)
    except Untraceable:
        assert not CLASSES_ARE_WATCHED  # by a release that has no guard on values of classes
        return
    assert torch.equal(found.call(X), fn(X))
    assert found.check()((X,), {})
    change()
    assert not found.check()((X,), {})
    assert len(found.accepts({**found_locals(fn), "x": X})) == 1


def found_locals(fn: Any) -> dict[str, Any]:
    """What a function closes over, by name."""
    return dict(zip(fn.__code__.co_freevars, (cell.cell_contents for cell in fn.__closure__), strict=True))


def test_each_instance_has_its_own() -> None:
    """A build that many instances share is asked of the one that is called."""
    one, other = Holder(), Holder()
    first, scaled = traced(Holder.first, one, X), traced(Holder.scaled, one, X)
    for found in (first, scaled):
        assert found.check()((one, X), {})
        assert found.check()((other, X), {})
    other.table.move_to_end("a")
    other.answers.__dict__["scale"] = 9
    for found in (first, scaled):
        assert found.check()((one, X), {})
        assert not found.check()((other, X), {})
    del one
    gc.collect()
    other.table.move_to_end("b")
    assert first.check()((other, X), {})


def test_what_is_registered_elsewhere_changes_nothing() -> None:
    """The count of registrations is one for all classes: a new one is looked through once."""
    fn, _ = registered()
    try:
        found = traced(fn, X)
    except Untraceable:
        return
    abc.ABCMeta("Other", (), {}).register(type("Own", (), {}))  # type: ignore[attr-defined]  # an abstract class has it
    assert found.check()((X,), {})


def test_where_python_does_not_tell_what_is_registered_any_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its private name for that, what is registered anywhere invalidates what was traced before."""
    monkeypatch.setattr(object_guard, "_dump", None)
    (guard,) = object_guard.registration_guards([abc.ABCMeta("Abstract", (), {})])
    assert guard.check()

    abc.ABCMeta("Other", (), {}).register(type("Own", (), {}))  # type: ignore[attr-defined]  # an abstract class has it
    assert guard.failed() == "a class has been registered as another"


def test_another_attribute_changes_nothing() -> None:
    """One that no code names that was followed."""
    one: Any = Answers()
    found = traced(lambda x: x * one.scale, X)
    one.other = 3
    assert found.check()((X,), {})


class Stepping(nn.Module):
    """A module with two numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: tuple[Any, ...] = (1, 2)


@pytest.mark.parametrize("steps", [(1.0, 2), (True, 2), (1, 2 + 0j)], ids=str)
def test_equal_numbers_of_another_type_in_a_tuple_are_others(steps: tuple[Any, ...]) -> None:
    """They make tensors of another dtype."""
    module = Stepping()

    def stepped(module: Stepping, x: Tensor) -> Tensor:
        return x * torch.tensor(module.steps)

    x = torch.ones(2)
    found = trace(stepped, (module, x), {}, as_written, tag="test")
    assert all(found.check()((module, x), {}) for _ in range(3))
    module.steps = steps
    assert not found.check()((module, x), {})
    module.steps = (1, 2)
    assert found.check()((module, x), {})
