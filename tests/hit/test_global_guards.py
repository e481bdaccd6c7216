from __future__ import annotations

import collections
import gc
import math
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.hit.test_guard_set import LEAF, Node, under
from tests.paths import NO_COMPILER, c_module

pytestmark = pytest.mark.skipif(NO_COMPILER is not None, reason=NO_COMPILER or "")

COMPARED = ("=", ())


class Asked:
    """Guards on globals that count how often they are asked, and do something meanwhile."""

    def __init__(self, verdict: bool = True, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.verdict, self.meanwhile, self.count = verdict, meanwhile, 0

    def __call__(self, names: dict[str, Any]) -> bool:
        """The verdict."""
        self.count += 1
        self.meanwhile()
        return self.verdict


def of_globals(tree: Any, names: dict[str, Any], others: Any = None, state: Any = lambda: True) -> Any:
    """Guards that read this of these names."""
    return c_module().GlobalGuards(others or Asked(), state, names, tree)


def module(**names: Any) -> types.ModuleType:
    """With these names in it."""
    made = types.ModuleType("made")
    vars(made).update(names)
    return made


def doubled(x: float) -> float:
    """Has code that may be replaced."""
    return x * 2


def globals_here() -> dict[str, Any]:
    """All kinds of values that can be compared."""
    return {
        "number": 1.5,
        "function": doubled,
        "builtin": len,
        "class": Node,
        "node": Node(it=1),
        "table": {"it": 2.5, "inner": {"it": "text"}, "unread": 0},
        "module": module(it=doubled, inner=module(it=(1, torch.float32)), unread=0),
        "hooks": collections.OrderedDict(),
        "bare": module(),
    }


TREE: Any = (
    "",
    (
        ("k", "number", COMPARED),
        ("k", "function", under("c", None)),
        ("k", "builtin", LEAF),
        ("k", "class", LEAF),
        ("k", "node", LEAF),
        ("k", "table", ("", (("k", "it", COMPARED), ("k", "inner", under("k", "it", COMPARED))))),
        ("k", "module", ("", (("a", "it", under("c", None)), ("a", "inner", under("a", "it", COMPARED))))),
        ("k", "hooks", LEAF),
        ("k", "bare", LEAF),
    ),
)


def test_names_that_lead_to_what_they_led_to_are_not_asked_about() -> None:
    """Of each kind of value; other names may change."""
    names, others = globals_here(), Asked()
    guards = of_globals(TREE, names, others)
    for turn in range(5):
        names["other"] = names["table"]["unread"] = names["module"].unread = turn
        names["table"][turn] = None
        assert guards({})
    assert (others.count, guards.asked) == (1, 1)


CHANGES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a number": lambda names: names.update(number=2.5),
    "an equal number": lambda names: names.update(number=math.fsum([0.75, 0.75])),
    "a name that is gone": lambda names: names.pop("builtin"),
    "all of them": lambda names: names.clear(),
    "a function": lambda names: names.update(function=lambda x: x),
    "its code": lambda names: setattr(names["function"], "__code__", (lambda x: x).__code__),
    "a built-in function": lambda names: names.update(builtin=max),
    "a class": lambda names: names.update({"class": Asked}),
    "an object": lambda names: names.update(node=Node(it=1)),
    "an object's class": lambda names: setattr(names["node"], "__class__", Other),
    "a dict": lambda names: names.update(table=dict(names["table"])),
    "in a dict": lambda names: names["table"].update(it=3.5),
    "gone from a dict": lambda names: names["table"].pop("it"),
    "in a dict in a dict": lambda names: names["table"]["inner"].update(it="other"),
    "a module": lambda names: names.update(module=module(**vars(names["module"]))),
    "in a module": lambda names: setattr(names["module"], "it", lambda x: x),
    "the code of a function in a module": lambda names: setattr(names["module"].it, "__code__", (lambda x: x).__code__),
    "gone from a module": lambda names: delattr(names["module"], "it"),
    "in a module in a module": lambda names: setattr(names["module"].inner, "it", (1, torch.float64)),
    "a module's class": lambda names: setattr(names["module"], "__class__", OtherModule),
    "the class of a module in which nothing is read": lambda names: setattr(names["bare"], "__class__", OtherModule),
    "a table": lambda names: names.update(hooks=collections.OrderedDict()),
}


class Other(Node):
    """Another class of the same form."""


class OtherModule(types.ModuleType):
    """May have rules of its own."""


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_has_changed_is_asked_again(change: Callable[[dict[str, Any]], object]) -> None:
    """And what the guards say then is the answer, each time until they hold."""
    names, others = globals_here(), Asked()
    names["function"] = names["module"].it = types.FunctionType(doubled.__code__, globals())
    guards = of_globals(TREE, names, others)
    assert [guards({}), guards({})] == [True, True]
    assert others.count == 1
    change(names)
    others.verdict = False
    assert [guards({}) for _ in range(3)] == [False] * 3
    assert others.count == 4


@pytest.mark.parametrize(
    ("value", "tree"),
    [
        ([1, 2], COMPARED),
        ([1, 2], under("l", 0)),
        ({"it": 1}, ("k", (("k", "it", LEAF),))),
        ({"it": 1}, ("#", ())),
        ({1: 1}, under("k", 1)),
        ({"it": 1}, under("i", 0)),
        ({"it": 1}, under("k", "missing")),
        (collections.OrderedDict(it=1), under("k", "it")),
        (module(it=1), under("d", None, under("k", "it"))),
        (module(it=1), under("a", "__class__")),
        (module(__class__=1), under("a", "__class__")),
        (module(it=1), under("k", "it")),
        ({"it": 1}, under("a", "it")),
        (module(it=1), under("a", "__name__", under("a", "it"))),
        (OtherModule("other"), under("a", "__name__")),
        (torch.ones(2), ("t", ())),
        (Node(it=1), under("a", "it")),
        (Node(it=1), under("d", None, under("k", "it"))),
        (Node, under("a", "it")),
        (Node, under("D", None)),
        (len, COMPARED),
        (doubled, COMPARED),
        (doubled, under("a", "__defaults__")),
        (doubled, under("c", None, under("a", "co_names"))),
        ((1, 2), under("t", 0)),
        ((1, [2]), COMPARED),
    ],
)
def test_what_may_change_unseen_is_asked_at_each_call(value: Any, tree: Any) -> None:
    """As before there was a record: more than identity of what may change, other ways than names, other keys."""
    guards = of_globals(under("k", "it", tree), {"it": value})
    assert all(guards({}) for _ in range(4))
    assert guards.asked == 4


def test_a_module_at_the_address_of_another_is_asked_about() -> None:
    """It has a dict of its own, of which nothing is known; that of the other is still there."""
    names, others = {"module": module(it=1.5)}, Asked()
    guards = of_globals(under("k", "module", under("a", "it", COMPARED)), names, others)
    assert guards({})
    address, kept = id(names["module"]), vars(names["module"])
    del names["module"]
    made = [module(it=2.5) for _ in range(1000)]
    names["module"] = next((one for one in made if id(one) == address), made[0])
    others.verdict = False
    assert kept["it"] == 1.5
    assert not guards({})


@pytest.mark.skipif(sys.version_info < (3, 12), reason="there are no watchers")
def test_globals_are_not_watched() -> None:
    """A program that counts in them would pay for each step; dicts below them are."""
    names, elsewhere = globals_here(), dict[str, Any]()
    guards, changed = of_globals(TREE, names), c_module().changed
    assert guards({})
    before = changed(elsewhere)
    names["other"] = 1
    assert changed(elsewhere) == before
    names["module"].other = 1
    assert changed(elsewhere) > before
    assert guards({})
    assert guards.asked == 1


def test_the_state_is_asked_at_each_call() -> None:
    """And is all that is, while the names lead where they led."""
    verdict, others = [True], Asked()
    guards = of_globals(TREE, globals_here(), others, lambda: verdict[0])
    assert [guards({}), guards({})] == [True, True]
    verdict[0] = False
    assert not guards({})
    assert others.count == 1


def test_guards_that_do_not_hold_are_asked_again() -> None:
    """Only that they held is remembered."""
    others = Asked(verdict=False)
    guards = of_globals(TREE, globals_here(), others)
    assert [guards({}), guards({})] == [False, False]
    others.verdict = True
    assert [guards({}), guards({})] == [True, True]
    assert others.count == 3


def test_what_holds_again_is_remembered_still() -> None:
    """Of two states in turn that of one build is not forgotten while the other's runs."""
    names, others = globals_here(), Asked()
    guards = of_globals(TREE, names, others)
    first = names["number"]
    assert guards({})
    for _ in range(3):
        names["number"], others.verdict = 7.0, False
        assert not guards({})
        names["number"], others.verdict = first, True
        assert guards({})
    assert others.count == 4


def test_what_changes_while_the_guards_are_asked_is_asked_again() -> None:
    """Nobody knows which of the two the guards have seen."""
    names = globals_here()
    first = names["number"]
    others = Asked(meanwhile=lambda: names.update(number=2.5))
    guards = of_globals(TREE, names, others)
    assert guards({})
    names["number"], others.verdict = first, False
    assert not guards({})


def test_names_that_change_at_each_call_are_read_less_and_less_often() -> None:
    """The guards are asked each time; where they change no more, they soon are not."""
    names, others = globals_here(), Asked()
    guards = of_globals(TREE, names, others)
    for names["node"] in [Node(it=turn) for turn in range(1000)]:
        assert guards({})
    assert others.count == 1000
    for _ in range(600):
        assert guards({})
    assert others.count <= 1000 + 257


def test_a_constant_is_held_and_nothing_else() -> None:
    """Another number could have its address later, and be taken for it; what takes memory is let go by its owner."""
    number = float("2.5")
    names = globals_here() | {"number": number}
    guards = of_globals(TREE, names)
    assert guards({})
    address, node = id(number), weakref.ref(names["node"])
    del names["number"], names["node"], number
    assert address not in [id(one) for one in [float(turn) for turn in range(1000)]]
    assert node() is None


def test_what_a_guard_raises_is_raised() -> None:
    """Nothing is remembered of it."""

    def fail(*_: object) -> bool:
        raise KeyError("x")

    guards = of_globals(TREE, globals_here(), fail)
    with pytest.raises(KeyError):
        guards({})
    names = globals_here()
    guards = of_globals(TREE, names, state=fail)
    assert guards({})
    for _ in range(2):
        with pytest.raises(KeyError):
            guards({})


@pytest.mark.parametrize("tree", [None, ("",), ("", [("k", "it", LEAF)]), ("", (("k", "it"),)), (1, ())])
def test_what_is_no_tree_is_refused(tree: Any) -> None:
    """As that of an instance is."""
    with pytest.raises(TypeError):
        of_globals(tree, {})


def test_guards_take_the_local_names() -> None:
    """Nothing else."""
    guards = of_globals(LEAF, {})
    with pytest.raises(TypeError, match="local names"):
        guards()
    with pytest.raises(TypeError):
        c_module().GlobalGuards(Asked(), lambda: True, None, LEAF)


def test_guards_are_collected_with_what_they_hold() -> None:
    """They stand among the globals that they read."""
    names = globals_here()
    names["guards"] = of_globals(TREE, names)
    assert names["guards"]({})
    node = weakref.ref(names["node"])
    del names
    gc.collect()
    assert node() is None
