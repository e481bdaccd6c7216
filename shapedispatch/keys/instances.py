"""What an instance of an ordinary class holds, where that says all there is to know of it: then a key has it by value.

Ordinary is a class of a `class` statement that answers for attributes as `object` does; and `types.SimpleNamespace`.
"""

from __future__ import annotations

import contextlib
from abc import ABCMeta
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import MemberDescriptorType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

__all__ = ["FLAT", "Placeholder", "attributes_of", "holds_all_in_its_dict", "is_made_of_attributes"]


class Placeholder:
    """Stands for an argument that a call does not give."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


FLAT = frozenset({int, bool, float, complex, str, bytes, type(None), torch.dtype, torch.device, Placeholder})
"""Types that can hold no tensor, for a quick look."""

MOST_ATTRIBUTES = 64
"""An instance of more is no argument's value: it is what a program is made of."""


def is_made_of_attributes(kind: type) -> bool:
    """Whether instances hold nothing beside: no class of them is written in C, such as `int` or `Exception`."""
    made_by_a_statement = 1 << 9  # Py_TPFLAGS_HEAPTYPE
    return all(base is object or base.__flags__ & made_by_a_statement for base in kind.__mro__)


def attributes_of(value: Any) -> dict[str, Any] | None:
    """All attributes of an instance, by name; None where it is of no ordinary class, or holds what no key does.

    That is a tensor, a module, or a list, dict or set that is empty or holds more than numbers and words: one that is
    to be filled. A cache is such an instance, before its first call.
    """
    kind = type(value)
    if not _is_ordinary(kind):
        return None
    held = {**dict(_in_slots(value, kind)), **getattr(value, "__dict__", {})}
    if len(held) > MOST_ATTRIBUTES or _is_computed(kind, held):
        return None
    return None if any(type(item) not in FLAT and _is_alive(item) for item in held.values()) else held


def holds_all_in_its_dict(kind: type) -> bool:
    """Whether all that a key has of an instance, if it has anything, stands in its ``__dict__``.

    Of a dataclass these are its fields, and what is beside them.
    """
    return _is_ordinary(kind) and not any(_slots(kind))


def _is_ordinary(kind: type) -> bool:
    if kind is SimpleNamespace:
        return True
    if (
        kind is object
        or type(kind) not in (type, ABCMeta)
        or not is_made_of_attributes(kind)
        or any(map(_is_of_c, kind.__mro__[:-1]))
    ):
        return False
    usual: object = object.__getattribute__  # to mypy, no other type's could be the same
    return kind.__getattribute__ is usual and not hasattr(kind, "__torch_function__")


def _is_of_c(base: type) -> bool:
    """Whether a class that has the looks of a statement's was made in C, and its instances hold more than can be seen.

    Such a class has a way of its own to make them, or lets nobody make one.
    """
    by_nobody = 1 << 7  # Py_TPFLAGS_DISALLOW_INSTANTIATION
    return bool(base.__flags__ & by_nobody) or isinstance(vars(base).get("__new__"), _BUILTIN)


_BUILTIN = type(object.__new__)


def _slots(kind: type) -> Iterator[tuple[str, MemberDescriptorType]]:
    """The attributes that instances hold in slots, the one that counts last where several are of one name."""
    for base in reversed(kind.__mro__):
        for name, member in vars(base).items() if "__slots__" in vars(base) else ():
            if isinstance(member, MemberDescriptorType):
                yield name, member


def _in_slots(value: Any, kind: type) -> Iterator[tuple[str, Any]]:
    for name, slot in _slots(kind):
        with contextlib.suppress(AttributeError):  # it has no value
            yield name, slot.__get__(value, kind)


def _is_computed(kind: type, held: Mapping[str, Any]) -> bool:
    """Whether the class, and not the instance, says what an attribute is that the instance has."""
    for name in held if any(held.keys() & vars(base).keys() for base in kind.__mro__[:-1]) else ():
        # As it stands there: a descriptor may give something else.
        in_class = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
        if hasattr(type(in_class), "__set__") and type(in_class) is not MemberDescriptorType:
            return True
    return False


def _is_alive(item: Any) -> bool:
    """Whether it is a tensor or a module, or leads to one, or is to be filled."""
    if isinstance(item, (list, dict, set)):
        values = item.values() if isinstance(item, dict) else item
        return not item or not all(type(one) in FLAT for one in values)
    if isinstance(item, tuple):
        return any(map(_is_alive, item))
    if is_dataclass(item) and not isinstance(item, (type, Module)):
        return any(_is_alive(getattr(item, field.name, None)) for field in fields(item))
    return isinstance(item, (Tensor, Module))
