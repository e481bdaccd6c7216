"""What a build for many sizes answers of a size but once: Dynamo takes it for no other thing, and does not round it."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any

import torch
from torch._dynamo import variables

from ..guards.object_guard import has_no_equal

__all__ = [
    "ASKED_OF_SIZES",
    "SIZE",
    "compare_sizes",
    "is_a_number_as_a_size",
    "is_asked_of_a_size",
    "realized",
    "value_of",
]

SIZE: type = vars(variables)["SymNodeVariable"]
"""What stands for a size, or for another number that is an input."""
ASKED_OF_SIZES = (operator.is_, operator.is_not, operator.mod, operator.imod, round, str.format)


def realized(variable: Any) -> Any:
    """What stands for a value that Dynamo has not looked at yet, once it has."""
    return variable.realize() if hasattr(variable, "realize") else variable


def value_of(variable: Any) -> Any:
    """What it stands for, where that is known; None of a list, which is made of what it holds: tensors, maybe."""
    one = realized(variable)
    return None if isinstance(one, variables.BaseListVariable) else getattr(one, "value", None)


def is_a_number_as_a_size(operands: Sequence[Any]) -> bool:
    """Whether a size of a build for many is asked whether it is a number, or another size."""
    others = [one for one in operands if not isinstance(one, SIZE)]
    numbers = [one for one in others if isinstance(value_of(one), (int, float))]
    return len(others) < len(operands) and len(numbers) == len(others)


def is_asked_of_a_size(fn: Any, args: Sequence[Any], parts: Iterable[Any]) -> bool:
    """Whether one of `ASKED_OF_SIZES` is asked about one, and torch's answer is none for others.

    Of a fraction's remainder it reasons as if that were whole. ``parts`` are the arguments, lists by what they hold.
    """
    given = [*map(realized, args)]
    if fn in (operator.is_, operator.is_not):
        return is_a_number_as_a_size(given)
    sizes: list[Any] = [part for part in parts if isinstance(part, SIZE)]
    if fn in (operator.mod, operator.imod):
        return any(isinstance(one.sym_num, torch.SymFloat) for one in sizes)
    if fn is str.format:
        return len(sizes) > 0
    return fn is round and len(given) > 1 and isinstance(given[0], SIZE)


def compare_sizes(parts: Iterable[Any]) -> bool:
    """Whether these, which are compared, are sizes and what may equal one though it is no plain number."""
    every = [*parts]
    return any(isinstance(one, SIZE) for one in every) and any(map(_may_equal_a_size, every))


def _may_equal_a_size(one: Any) -> bool:
    """Whether it is no plain number, and may be equal to one: Dynamo says that it is not.

    A text may be the other's text, which Dynamo has for the number itself.
    """
    value = value_of(one)
    if isinstance(value, (bool, complex, str, Enum)):
        return True
    return isinstance(one, variables.UserDefinedObjectVariable) and not has_no_equal(type(value))
