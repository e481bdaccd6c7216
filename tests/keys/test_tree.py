from __future__ import annotations

import collections
from collections import OrderedDict, defaultdict
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from shapedispatch.keys.tree import device_of, leaves, map_tensors, overlaps_itself, span, states, tensors
from tests.attributes import Thing


@dataclass
class Pair:
    """Two of a kind."""

    left: Any
    right: Any


class Named(NamedTuple):
    """Read by name and by place."""

    kind: Any


def test_tensors_are_found_through_containers_in_order() -> None:
    """Not those inside a module: its state is no part of the call."""
    a, b, c, d = (torch.ones(1) for _ in range(4))
    found = list(tensors(([a, 3], {"k": (b, "x")}, Pair(c, torch.nn.Linear(1, 1)), d, a)))
    assert [id(t) for t in found] == [id(t) for t in (a, b, c, d, a)]


@pytest.mark.parametrize(
    ("view", "elements"),
    [
        (lambda base: base, (0, 12)),
        (lambda base: base[3:7], (3, 7)),
        (lambda base: base.view(3, 4).t(), (0, 12)),
        (lambda base: base[1::4], (1, 10)),
        (lambda base: base[5].expand(7), (5, 6)),
        (lambda base: base[4:4], (4, 4)),
    ],
)
def test_a_span_is_first_to_last_element_addressed(view: Any, elements: tuple[int, int]) -> None:
    """Gaps included; where nothing is addressed the ends are equal."""
    base: Tensor = torch.arange(12.0)
    start, end = span(view(base))
    if start != end:
        assert ((start - base.data_ptr()) // 4, (end - base.data_ptr()) // 4) == elements
    assert (start == end) is (elements[0] == elements[1])


def test_the_device_is_the_first_that_is_no_cpu() -> None:
    """Of nothing at all, too, it is one."""
    here, there = torch.ones(1), torch.ones(1, device="meta")
    assert device_of([]) == device_of([here]) == torch.device("cpu")
    assert device_of([here, there]) == torch.device("meta")


class Doubled(collections.namedtuple("Doubled", "a b")):
    """Makes an item of another."""

    def __new__(cls, a: Any) -> Doubled:
        """Not what `collections` makes."""
        return super().__new__(cls, a, a * 2)


ONE, TWO = torch.tensor(1), torch.tensor(2)


def times_ten(path: str, tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor."""
    return tensor * 10


def test_a_tuple_is_made_anew_without_its_class() -> None:
    """With what it carries beside its items."""
    pair = Doubled(torch.tensor(3))
    pair.more = "x"
    new = map_tensors(pair, times_ten)
    assert (type(new), new.a, new.b, new.more) == (Doubled, 30, 60, "x")


def test_a_tuple_in_which_nothing_changes_stays() -> None:
    """Nothing in it can be written."""
    whole = ("a", ("b", torch.Size([2])))
    assert map_tensors(whole, times_ten) is whole


@dataclass
class Odd:
    """Counts how it is made, copies to itself, and has a field without a value."""

    x: Any
    unset: Any = field(init=False)
    made: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.made += 1

    def __copy__(self) -> Odd:
        return self

    def __getstate__(self) -> Any:
        raise TypeError("not to be copied")


@dataclass(frozen=True, slots=True)
class Slotted:
    """One that has no dict and cannot be assigned to."""

    x: Any


class Extra(Slotted):
    """With a slot that is no field."""

    __slots__ = ("more",)


@dataclass
class Failure(Exception):
    """Over a class that is written in C."""

    x: Any


class Stack(list):  # type: ignore[type-arg]
    """A list that copies to itself, and does not like to be written."""

    def __copy__(self) -> Stack:
        return self

    def __setitem__(self, index: Any, item: Any) -> None:
        raise TypeError("read only")


def test_a_container_is_made_anew_without_its_class() -> None:
    """Its own code may count, refuse, or hand out the very object that must stay as it is."""
    extra, stack = Extra(ONE), Stack([ONE, [TWO]])
    object.__setattr__(extra, "more", "m")
    stack.more = "m"
    for old in (Odd(ONE), extra, Slotted(ONE), Failure(ONE)):
        new = map_tensors(old, times_ten)
        assert (type(new), new.x, old.x) == (type(old), 10, 1)
        assert getattr(new, "more", None) == getattr(old, "more", None)
    assert map_tensors(Odd(ONE), times_ten).made == 1
    assert not hasattr(map_tensors(Odd(ONE), times_ten), "unset")
    new = map_tensors(stack, times_ten)
    assert (type(new), list(new), list(stack), new.more) == (Stack, [10, [20]], [1, [2]], "m")


def test_dicts_keep_their_class() -> None:
    """Its order and its default too."""
    for old in (OrderedDict(b=ONE, a=TWO), defaultdict(list, b=ONE, a=TWO)):
        new: Any = map_tensors(old, times_ten)
        assert type(new) is type(old)
        assert list(new.items()) == [("b", 10), ("a", 20)]
        assert old["b"] == 1
    assert map_tensors(defaultdict(list), times_ten)["new"] == []


def test_paths_are_as_python_writes_them() -> None:
    """As Dynamo names what it guards."""
    paths: list[str] = []
    map_tensors([ONE, {"k": (TWO, 5), 3: Slotted(ONE)}], lambda path, one: paths.append(path) or one, "x")
    assert paths == ["x[0]", "x[1]['k'][0]", "x[1][3].x"]


def test_what_stands_in_two_places_stays_one_where_that_is_wanted() -> None:
    """What holds itself, too."""
    inner: list[Any] = [ONE]
    inner.append((inner,))
    new = map_tensors([inner, inner], times_ten, made={})
    assert new[0] is new[1]
    assert new[0] is new[0][1][0]
    twice = [ONE]
    apart = map_tensors([twice, twice], times_ten)
    assert apart[0] is not apart[1]


@dataclass(eq=False)
class Layer(torch.nn.Module):
    """A module that is a dataclass."""

    scale: Any

    def __post_init__(self) -> None:
        super().__init__()


def test_modules_sizes_and_tensors_are_leaves() -> None:
    """A module's state is no part of the call, and a size is one value, as in the key."""
    layer = Layer.__new__(Layer)
    torch.nn.Module.__init__(layer)
    layer.scale = torch.ones(1)
    size, t = torch.Size([2, 3]), torch.ones(1)
    assert list(leaves([layer, size, (t, {})])) == [layer, size, t]
    assert list(tensors([layer, size, (t, {})])) == [t]
    assert map_tensors(layer, times_ten) is layer


@pytest.mark.parametrize(
    ("sizes", "strides", "may"),
    [
        ((8, 3, 2), (6, 2, 1), False),
        ((8, 3, 2), (1, 8, 24), False),
        ((8, 3, 2), (9, 3, 1), False),
        ((8, 3, 2), (1, 1, 1), True),
        ((4, 4), (2, 1), True),
        ((4, 2), (0, 1), True),
        ((1, 2), (0, 1), False),
        ((4, 0), (0, 1), False),
        ((), (), False),
    ],
)
def test_elements_that_may_be_one_are_found(sizes: tuple[int, ...], strides: tuple[int, ...], may: bool) -> None:
    """Of strides alone."""
    assert overlaps_itself(torch.zeros(100).as_strided(sizes, strides)) is may


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 9)), max_size=4))
def test_no_elements_that_are_one_are_missed(dims: list[tuple[int, int]]) -> None:
    """Whatever the strides."""
    t = torch.arange(4 * 3 * 9 + 1).as_strided([size for size, _ in dims], [stride for _, stride in dims])
    assert overlaps_itself(t) or len(t.unique()) == t.numel()


def test_states_are_found_wherever_they_stand() -> None:
    """What a module holds and a function closes over, and what hangs on a class, is no part of a call."""
    layer, function = nn.Identity(), lambda: None
    pair = Pair(1, 2)
    pair.more = layer  # type: ignore[attr-defined]  # as a user may
    found = states([layer, {"a": (1, function)}, Thing(function), pair, Named(int), torch.ones(2)], "x")
    assert [*found] == ["x[0]", "x[1]['a'][1]", "x[2].held", "x[3].more", "x[4][0]", "x[4].kind"]
    assert [*states(layer, "x")] == ["x"]


def test_an_instance_of_an_ordinary_class_stays_itself() -> None:
    """Code may ask which it is, as of what stands for nothing given."""
    thing = Thing(1)
    (twin,) = map_tensors([thing], lambda path, leaf: leaf)
    assert twin is thing
    assert [*leaves([thing])] == [1]
