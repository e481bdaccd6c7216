from __future__ import annotations

import collections
import copy
import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.paths import NO_COMPILER, c_module

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")

LEAF = ("", ())


def under(way: str, key: Any, tree: Any = LEAF) -> Any:
    """What is read of one thing on the way to another."""
    return ("", ((way, key, tree),))


def of_attribute(name: str, tree: Any = LEAF) -> Any:
    """Of an instance, an item of its dict."""
    return under("d", None, under("k", name, tree))


class Asked:
    """Guards that count how often they are asked."""

    def __init__(self, verdict: bool = True) -> None:
        self.verdict, self.count = verdict, 0

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """The verdict."""
        self.count += 1
        return self.verdict


def guard_set(tree: Any, all_guards: Any = None, **given: Any) -> Any:
    """Guards on the first argument."""
    given = {"checks": (), "others": lambda names: True, "new_state": lambda: lambda: True, **given}
    return c_module().GuardSet(all=all_guards or Asked(), tree=tree, **given)


class Node:
    """Has attributes."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(given)


class Shown:
    """Has a class that says what its attributes are."""

    known = 1
    several: tuple[Any, ...] = ([],)

    def __init__(self) -> None:
        self.own = 1

    def method(self) -> None:
        """Does nothing."""

    @property
    def x(self) -> int:
        """One."""
        return 1


def is_remembered(tree: Any, instance: Any) -> bool:
    """Whether the guards are asked once for two calls."""
    guards = guard_set(tree)
    assert guards((instance,), {})
    assert guards((instance,), {})
    return bool(guards.asked == 1)


def skip_without_versions(value: Any) -> None:
    """From 3.13 on CPython counts a thousand changes of a class, and tests of this process change `nn.Module`."""
    if isinstance(value, nn.Module) and not is_remembered(of_attribute("training"), value):
        pytest.skip(f"changes of {type(value).__name__} are counted no more")


# what can be looked at


PARAMETER = nn.Parameter(torch.ones(3))


@pytest.mark.parametrize(
    ("value", "tree"),
    [
        (1.5, ("=", ())),
        ("text", ("=", ())),
        (None, LEAF),
        ((1, (2.0, "x")), ("=", ())),
        (torch.float32, ("=", ())),
        (torch.relu, LEAF),
        (torch.Size((2, 3)), ("=", ())),
        ({"a": 1}, under("k", "a", ("=", ()))),
        ({"a": {"b": (1, [2])}}, under("k", "a", under("k", "b", under("t", 1, under("l", 0))))),
        ({3: 1, 4: 5}, under("i", 1)),
        (collections.OrderedDict(), ("", ())),
        (collections.OrderedDict(a=1), under("k", "a")),
        ([1, 2], ("#", (("l", 1, ("=", ())),))),
        (lambda: 1, under("c", None)),
        (PARAMETER, LEAF),
        (torch.ones(2, 3), LEAF),
        (Node(x=1), of_attribute("x")),
        (Node(x=1), under("a", "x", ("=", ()))),
        (Shown(), under("a", "known", ("=", ()))),
        (Shown(), under("a", "method")),
        (Node, LEAF),
        (Node(), LEAF),
        (nn.Linear(2, 2), of_attribute("_parameters", under("k", "weight"))),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_change_unseen_is_remembered(value: Any, tree: Any) -> None:
    """Constants, dicts, lists of constants, code, tensors, and objects with all of these."""
    skip_without_versions(value)
    assert is_remembered(of_attribute("it", tree), Node(it=value))


class Slotted:
    """Keeps its value elsewhere."""

    __slots__ = ("__weakref__", "x")

    def __init__(self) -> None:
        self.x = 1


class Answering:
    """Has a rule of its own."""

    x = 1

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


class OwnDict(dict[str, int]):
    """May do anything."""


@pytest.mark.parametrize(
    ("value", "tree"),
    [
        ([Node()], under("l", 0)),
        ([[1]], LEAF),
        ((1, [2]), ("=", ())),
        (Node(), ("=", ())),
        (Node(), ("#", ())),
        (Node(), ("k", ())),
        (Node(), ("t", ())),
        ({"a": 1}, ("=", ())),
        (OwnDict(a=1), under("k", "a")),
        (collections.OrderedDict(a=1, b=2), under("k", "a")),
        (Slotted(), under("a", "x")),
        (Shown(), under("a", "x")),
        (Shown(), under("a", "method", ("=", ()))),
        (Shown(), under("a", "several", ("=", ()))),
        (Answering(), under("a", "x")),
        (Node(), under("a", "missing")),
        ({}, under("k", "missing")),
        ({"a": 1}, under("i", 1)),
        ([1], under("l", 1)),
        ([1], under("t", 0)),
        (torch.ones(2), under("a", "grad")),
        (torch.ones(2).to_sparse(), LEAF),
        (nn.UninitializedParameter(), LEAF),
        (1, under("?", None)),
        (lambda: 1, under("a", "x")),
        (iter([1]), under("l", 0)),
        (set(), ("=", ())),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_may_change_unseen_is_left_to_the_guards(value: Any, tree: Any) -> None:
    """They are asked at each call."""
    assert not is_remembered(of_attribute("it", tree), Node(it=value))


@pytest.mark.parametrize(
    ("tree", "seen"),
    [
        (under("T", None, under("D", None, under("k", "value", ("=", ())))), True),
        (under("T", None, under("M", None, under("t", 1, under("D", None, under("k", "value"))))), True),
        (under("T", None, under("D", None, under("k", "method", under("c", None)))), True),
        (under("T", None, under("D", None, under("k", "width", under("a", "fget", under("c", None))))), True),
        (under("T", None, under("D", None, under("k", "width"))), True),
        (under("T", None, under("D", None, under("k", "width", under("a", "fset", under("c", None))))), False),
        (under("T", None, under("D", None, under("k", "native", under("a", "fget")))), False),
        (under("T", None, under("D", None, under("k", "method", under("a", "fget")))), False),
        (under("T", None, under("D", None, under("k", "many"))), False),
        (under("T", None, under("D", None, under("k", "missing"))), False),
        (under("T", None, under("M", None, under("t", 9, under("D", None, under("k", "value"))))), False),
        (under("T", None, under("k", "value")), False),
    ],
)
def test_constants_and_code_on_classes_are_remembered(tree: Any, seen: bool) -> None:
    """On the class itself and on its bases, a property's code too; nothing else is."""

    class Base:
        value = 1
        many: tuple[Any, ...] = ([],)

    class Own(Base):
        value = 2
        many = ([],)
        native = property(len)

        def method(self) -> None:
            """Does nothing."""

        @property
        def width(self) -> int:
            """One."""
            return 1

    assert is_remembered(tree, Own()) == seen


# what has changed


Change = tuple[Any, Any, Callable[[Any], object]]
"""Of a node's attribute ``it``: the value, what is read of it, and what is done to the node."""


def changes() -> dict[str, Change]:
    """Of attributes, and of what hangs on them."""
    linear, weight = nn.Linear(2, 2), of_attribute("_parameters", under("k", "weight"))
    return {
        "an attribute": (1, ("=", ()), lambda node: setattr(node, "it", 2)),
        "an equal one": (257.0, ("=", ()), lambda node: setattr(node, "it", float("257"))),
        "gone": (1, LEAF, lambda node: delattr(node, "it")),
        "another attribute": (1, LEAF, lambda node: setattr(node, "more", 1)),
        "by the dict": (1, LEAF, lambda node: vars(node).update(it=2)),
        "another dict": (1, LEAF, lambda node: setattr(node, "__dict__", dict(vars(node)))),
        "another class": (1, LEAF, lambda node: setattr(node, "__class__", type("Other", (Node,), {}))),
        "a class's attribute": (1, LEAF, lambda node: setattr(type(node), "it", 1)),
        "a constant on a class": (
            type("Own", (Shown,), {})(),
            under("a", "known"),
            lambda node: setattr(type(node.it), "known", 2),
        ),
        "a constant on a base": (
            type("Own", (type("Base", (Shown,), {}),), {})(),
            under("a", "known"),
            lambda node: setattr(type(node.it).__base__, "known", 2),
        ),
        "the code of a property": (
            type("Own", (Node,), {"width": property(lambda self: 1)})(),
            under("T", None, under("D", None, under("k", "width", under("a", "fget", under("c", None))))),
            lambda node: setattr(type(node.it).width.fget, "__code__", (lambda self: 2).__code__),
        ),
        "another property": (
            type("Own", (Node,), {"width": property(lambda self: 1)})(),
            under("T", None, under("D", None, under("k", "width", under("a", "fget", under("c", None))))),
            lambda node: setattr(type(node.it), "width", property(lambda self: 1)),
        ),
        "the code of a method": (
            type("Own", (Node,), {"method": lambda self: 1})(),
            under("T", None, under("D", None, under("k", "method", under("c", None)))),
            lambda node: setattr(type(node.it).method, "__code__", (lambda self: 2).__code__),
        ),
        "a constant before a class's": (Shown(), under("a", "known"), lambda node: setattr(node.it, "known", 1)),
        "an item": ({"a": 1}, under("k", "a"), lambda node: node.it.update(a=2)),
        "an item more": ({"a": 1}, under("k", "a"), lambda node: node.it.update(b=2)),
        "a first item": (collections.OrderedDict(), ("k", ()), lambda node: node.it.update(a=1)),
        "an inner item": ({"a": {"b": 1}}, under("k", "a", under("k", "b")), lambda node: node.it["a"].update(b=2)),
        "a list's item": ([1.5, 2.5], LEAF, lambda node: node.it.__setitem__(1, 3.5)),
        "a list's length": ([1], LEAF, lambda node: node.it.append(2)),
        "a list's end": ([1, 2], LEAF, lambda node: node.it.pop()),
        "code": (eval("lambda: 1"), under("c", None), lambda node: setattr(node.it, "__code__", CODE)),
        "an object's attribute": (Node(x=1), of_attribute("x"), lambda node: setattr(node.it, "x", 2)),
        "an object's class": (Node(), LEAF, lambda node: setattr(node.it, "__class__", type("Other", (Node,), {}))),
        "an object's dict": (Node(x=1), of_attribute("x"), lambda node: setattr(node.it, "__dict__", {"x": 1})),
        "in a tuple": ((Node(x=1),), under("t", 0, of_attribute("x")), lambda node: setattr(node.it[0], "x", 2)),
        "a parameter": (linear, weight, lambda node: setattr(node.it, "weight", nn.Parameter(torch.ones(9)))),
        "a small dtype": (
            torch.ones(3, dtype=torch.uint8),
            LEAF,
            lambda node: setattr(node.it, "data", torch.ones(3, dtype=torch.bool)),
        ),
        **{f"a tensor: {name}": (fresh(), LEAF, done) for name, done in CHANGES_OF_TENSORS.items()},
    }


CODE = (lambda: 2).__code__
CHANGES_OF_TENSORS: dict[str, Callable[[Any], object]] = {
    "another dtype": lambda node: setattr(node.it, "data", node.it.data.double()),
    "another size": lambda node: setattr(node.it, "data", torch.ones(5, 4)),
    "another dim": lambda node: setattr(node.it, "data", torch.ones(3)),
    "other strides": lambda node: setattr(node.it, "data", torch.ones(3, 4).T),
    "requires_grad": lambda node: node.it.requires_grad_(False),
    "in place": lambda node: node.it.requires_grad_(False).resize_(2, 3),
    "an attribute": lambda node: setattr(node.it, "mark", 1),
    "an attribute changed": lambda node: setattr(node.it, "known", 2),
    "another class": lambda node: setattr(node.it, "__class__", type("P", (nn.Parameter,), {})),
    "swapped": lambda node: torch.utils.swap_tensors(node.it, nn.Parameter(torch.ones(7))),
    "negated": lambda node: setattr(node.it, "data", torch._neg_view(node.it.data)),
}


def fresh() -> nn.Parameter:
    """A parameter with an attribute."""
    parameter: Any = nn.Parameter(torch.ones(4, 3))
    parameter.known = 1
    return parameter  # type: ignore[no-any-return]  # a parameter


@pytest.mark.parametrize("name", changes())
def test_what_has_changed_is_asked_again(name: str) -> None:
    """Once, and then the verdict of that is remembered."""
    value, tree, change = changes()[name]
    skip_without_versions(value)
    node, all_guards = type("Own", (Node,), {})(it=value), Asked()
    guards = guard_set(of_attribute("it", tree), all_guards)
    for _ in range(3):
        assert guards((node,), {})
    assert all_guards.count == 1
    change(node)
    all_guards.verdict = False
    assert not guards((node,), {})
    assert all_guards.count == 2


def test_what_holds_again_is_remembered_again() -> None:
    """Each verdict until the next change."""
    node, all_guards = Node(it=1), Asked()
    guards = guard_set(of_attribute("it"), all_guards)
    for it in (1, 2, 1):
        node.it = it
        all_guards.verdict = it == 1
        assert [guards((node,), {}) for _ in range(5)] == [it == 1] * 5


def test_the_other_guards_are_asked_first_and_each_time() -> None:
    """A verdict is on the instance alone: what else fails is not remembered."""
    node, others, checks = Node(it=1), [True], [True]
    guards = guard_set(of_attribute("it"), others=lambda names: others[0], checks=(lambda: checks[0],))
    for place in (others, checks):
        assert guards((node,), {})
        place[0] = False
        assert not guards((node,), {})
        place[0] = True
        assert guards((node,), {})
    assert guards.asked == 1


def test_without_an_instance_checks_and_others_are_all() -> None:
    """As for a function whose guards read no local name."""
    verdicts = [True, False]
    guards = c_module().GuardSet((lambda: True,), lambda names: names == {} and verdicts.pop(0))
    assert guards((), {})
    assert not guards((), {})


@pytest.mark.parametrize("asked", ["checks", "others", "all"])
def test_what_a_guard_raises_is_raised(asked: str) -> None:
    """Nothing is remembered of it."""

    def fail(*_: object) -> bool:
        raise KeyError("x")

    node = Node(it=1)
    guards = guard_set(
        of_attribute("it"),
        fail if asked == "all" else Asked(),
        **({asked: (fail,)} if asked == "checks" else {asked: fail} if asked == "others" else {}),
    )
    for _ in range(2):
        with pytest.raises(KeyError):
            guards((node,), {})
    assert guards.records == 0


def test_an_instance_is_not_kept_alive() -> None:
    """Nor what hangs on it and refers back to it."""
    node = Node(it=Node())
    node.it.up = node
    node.several = [1, node]
    tree = ("", (("d", None, ("", (("k", "it", of_attribute("up")), ("k", "several", LEAF)))),))
    guards, gone = guard_set(tree), weakref.ref(node)
    assert guards((node,), {})
    inner = Node(it=[1, 2])
    assert guards((inner,), {})
    del node
    gc.collect()
    assert gone() is None


def test_another_instance_at_the_same_address_is_another() -> None:
    """What was remembered of the one before says nothing about it."""
    guards = guard_set(of_attribute("it"))
    for asked in range(1, 50):
        node = Node(it=1)
        assert guards((node,), {})
        assert guards.asked == asked
        del node
    assert guards.records == 1


def test_copies_are_instances_of_their_own() -> None:
    """Of a module, deep or not."""
    module = nn.Linear(2, 2)
    skip_without_versions(module)
    guards = guard_set(of_attribute("_parameters", under("k", "weight")))
    for asked, one in enumerate([module, copy.copy(module), copy.deepcopy(module)], 1):
        assert [guards((one, 1), {}) for _ in range(3)] == [True] * 3
        assert guards.asked == asked


def test_more_instances_than_are_remembered_are_asked_anew() -> None:
    """What is remembered stays so."""
    nodes = [Node(it=1) for _ in range(1100)]
    guards = guard_set(of_attribute("it"))
    for node in nodes:
        assert guards((node,), {})
    assert guards.records == 1024
    before = guards.asked
    assert guards((nodes[0],), {})
    assert guards.asked == before
    assert guards((nodes[-1],), {})
    assert guards.asked == before + 1


def test_an_instance_that_always_changes_is_recorded_less_and_less_often() -> None:
    """Since to record costs more than to ask; once it stays as it is, it is remembered."""
    node = Node(it=1)
    guards = guard_set(of_attribute("it"))
    for turn in range(2000):
        node.it = turn
        assert guards((node,), {})
    assert guards.asked == 2000
    for _ in range(300):
        assert guards((node,), {})
    before = guards.asked
    assert guards((node,), {})
    assert guards.asked == before
    node.it = -1
    assert guards((node,), {})
    assert guards((node,), {})
    assert guards.asked <= before + 2


def test_what_changes_while_the_guards_are_asked_is_asked_again() -> None:
    """By another thread, say: the guards may have seen it before or after."""
    node = Node(it=1)

    def change(args: Any, kwargs: Any) -> bool:
        node.it += 1
        return True

    guards = guard_set(of_attribute("it"), change)
    assert guards((node,), {})
    assert guards((node,), {})
    assert guards.asked == 2
    assert guards.records == 0


def test_guards_may_be_asked_while_they_are_asked() -> None:
    """Of the same instance: what is remembered is of the call that ended last."""
    node, depth = Node(it=1), [0]

    def again(args: Any, kwargs: Any) -> bool:
        depth[0] += 1
        return bool(depth[0] > 2 or guards(args, kwargs))

    guards = guard_set(of_attribute("it"), again)
    assert guards((node,), {})
    assert guards((node,), {})
    assert (guards.asked, guards.records) == (3, 1)


def test_in_another_state_nothing_that_was_remembered_counts() -> None:
    """The state of the dispatcher is asked at each call; where it stays another, that becomes the usual one."""
    node, now = Node(it=1), [0]

    def new_state() -> Callable[[], bool]:
        made = now[0]
        return lambda: now[0] == made

    guards = guard_set(of_attribute("it"), new_state=new_state)
    assert [guards((node,), {}) for _ in range(3)] == [True] * 3
    assert guards.asked == 1
    now[0] = 1
    assert guards((node,), {})
    assert guards.asked == 2
    now[0] = 0
    assert guards((node,), {})
    assert guards.asked == 2
    now[0] = 1
    for _ in range(20):
        assert guards((node,), {})
    before = guards.asked
    assert guards((node,), {})
    assert guards.asked == before


def test_threads_see_each_change() -> None:
    """While some change an instance and others ask about it, no verdict is older than the change."""
    node, stop, wrong = Node(it=0, inner=Node(it=0)), threading.Event(), list[int]()
    tree = ("", (("d", None, ("", (("k", "it", LEAF), ("k", "inner", of_attribute("it"))))),))
    guards = guard_set(tree, lambda args, kwargs: args[0].it % 2 == 0)

    def ask() -> None:
        while not stop.is_set():
            before = node.it
            verdict = guards((node,), {})
            if before == node.it and verdict != (before % 2 == 0):
                wrong.append(before)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for turn in range(3000):
        node.it = turn
        node.inner = Node(it=turn)
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_sees_its_own_changes() -> None:
    """What is remembered goes with the process, and so does what is told of dicts."""
    node, all_guards = Node(it=1), Asked()
    guards = guard_set(of_attribute("it"), all_guards)
    assert guards((node,), {})
    child = os.fork()
    if child == 0:
        remembered = guards((node,), {}) and guards.asked == 1
        node.it, all_guards.verdict = 2, False
        os._exit(0 if remembered and not guards((node,), {}) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert guards((node,), {})


def test_where_changes_of_dicts_are_not_seen_the_guards_are_asked() -> None:
    """At each call."""
    module, node = c_module(), Node(it=1)
    guards = guard_set(of_attribute("it"))
    assert [guards((node,), {}) for _ in range(2)] == [True] * 2
    try:
        module.use_watchers(False)
        assert [guards((node,), {}) for _ in range(2)] == [True] * 2
        assert guards.asked == 3
    finally:
        module.use_watchers(True)
    node.it = 2
    assert guards((node,), {})
    assert guards.asked == 4


def test_what_has_no_weak_references_is_asked_at_each_call() -> None:
    """It could not be told from another at its address."""
    guards = guard_set(LEAF)
    assert [guards((1,), {}), guards((1,), {}), guards((), {})] == [True] * 3
    assert guards.asked == 3


@pytest.mark.parametrize(
    "tree", [1, (), ("", 1), (1, ()), ("", (1,)), ("", (("long", 1, LEAF),)), ("", (("d", 1, 2),))], ids=str
)
def test_what_is_no_tree_is_refused(tree: Any) -> None:
    """There and then."""
    with pytest.raises(TypeError):
        guard_set(tree)


def test_guards_take_a_call() -> None:
    """A tuple and a dict, and nothing by name."""
    guards = guard_set(LEAF)
    for given in ((), ((),), ((), {}, 1)):
        with pytest.raises(TypeError, match="as a tuple and a dict"):
            guards(*given)


def test_guards_are_collected_with_what_they_hold() -> None:
    """Also in a circle."""
    asked: Any = Asked()
    asked.guards = guard_set(of_attribute("it"), asked)
    assert asked.guards((Node(it=[1, (2, 3)]),), {})
    gone = weakref.ref(asked)
    del asked
    gc.collect()
    assert gone() is None
