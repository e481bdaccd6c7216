from __future__ import annotations

import ast
import functools
import random
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from shapedispatch.keys.instances import MOST_ATTRIBUTES, attributes_of, holds_all_in_its_dict
from tests.attributes import Slotted, Thing, Unknown
from tests.fuzzing import Config


class Both(Slotted):
    """Has slots and a dict."""


class Computed:
    """Has an attribute that its class answers for."""

    def __init__(self) -> None:
        vars(self)["held"] = 1

    @property
    def held(self) -> int:
        """Another."""
        return 2


class Keeps:
    """Gives twice what stands in the dict; of the class, a number."""

    def __get__(self, holder: Any, kind: Any = None) -> int:
        return 1 if holder is None else 2 * vars(holder)["held"]

    def __set__(self, holder: Any, value: int) -> None:
        vars(holder)["held"] = value


class Kept:
    """Has what a descriptor keeps in its dict."""

    held = Keeps()

    def __init__(self) -> None:
        self.held = 1


class Overrides:
    """Has a say in what torch's functions do."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """None."""


def with_more(value: Any) -> Any:
    """The same with an attribute more."""
    value.more = 2
    return value


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (Thing(1), {"held": 1}),
        (Slotted(1), {"held": 1}),
        (with_more(Both(1)), {"held": 1, "more": 2}),
        (SimpleNamespace(held=1), {"held": 1}),
        (Thing([1, "a"]), {"held": [1, "a"]}),
        (object.__new__(Slotted), {}),
    ],
)
def test_an_instance_is_all_that_it_holds(value: Any, held: dict[str, Any]) -> None:
    """In its slots and in its dict."""
    assert attributes_of(value) == held


@pytest.mark.parametrize(
    "value",
    [
        Thing(torch.ones(2)), Thing((1, torch.ones(2))), Thing(nn.Identity()), Thing(Config(torch.ones(2))),
        Thing([]), Thing({}), Thing([Thing(1)]),
        Unknown(), Computed(), Kept(), Overrides(), SimpleNamespace(**{f"n{i}": i for i in range(MOST_ATTRIBUTES + 1)}),
        object(), re.compile("a"), functools.partial(int), random.Random(0), ast.Name("a"), torch.Generator(), 3, [1],
        int, with_more(lambda: None), ValueError("a"),
    ],
)  # fmt: skip
def test_what_holds_more_than_numbers_and_words_say_is_no_value(value: Any) -> None:
    """Or what is to be filled, or answers for attributes in a way of its own, or is written in C."""
    assert attributes_of(value) is None


def test_only_of_what_has_no_slots_does_the_dict_hold_all() -> None:
    """Which is all that C looks at."""
    kinds = (Thing, SimpleNamespace, Slotted, Both, Unknown, int)
    assert [kind for kind in kinds if holds_all_in_its_dict(kind)] == [Thing, SimpleNamespace]
