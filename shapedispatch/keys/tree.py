"""The containers of a call: what they hold, the same containers with other leaves; and where tensors' elements lie.

One set of rules: lists, tuples, dicts and dataclasses are containers, and whatever derives from them, and so is an
instance of which `attributes_of` says all; that leads to no tensor. A tensor, a `torch.Size` (a value, as the key has
it) and a module (its state is no part of the call, even where it is a dataclass) are leaves, as is everything else. A
field of a dataclass that has no value is passed over.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from types import FunctionType, MemberDescriptorType
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from .instances import FLAT, attributes_of

__all__ = [
    "FLAT",
    "STATEFUL",
    "children",
    "device_of",
    "extent",
    "leaves",
    "map_tensors",
    "marked_dynamic",
    "overlap",
    "overlaps_itself",
    "path_of",
    "span",
    "states",
    "tensors",
]


def span(t: Tensor) -> tuple[int, int]:
    """First and last-plus-one address that the tensor's elements lie in; equal ends where it has none."""
    start = t.data_ptr()
    return start, start + extent(t)


def extent(t: Tensor) -> int:
    """The bytes from the first address that the tensor's elements lie in to the end; 0 where it has none."""
    if not t.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    return (last + 1) * t.element_size()


def overlaps_itself(t: Tensor) -> bool:
    """Whether two elements may lie at one address; of strides that are out of order, that cannot be excluded."""
    reach = 0
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1 and stride <= reach:
            return bool(t.numel())
        reach += (size - 1) * stride
    return False


def marked_dynamic(t: Tensor) -> Collection[int]:
    """The axes that the caller said will vary, by ``torch._dynamo.mark_dynamic``."""
    marked: Collection[int] = getattr(t, "_dynamo_dynamic_indices", ())
    return marked


def device_of(found: Iterable[Tensor]) -> torch.device:
    """Where what has these tensors runs: the device of the first that is not on the CPU."""
    devices = [tensor.device for tensor in found]
    return next((device for device in devices if device.type != "cpu"), torch.device("cpu"))


def children(value: Any) -> Iterable[tuple[Any, Any]] | None:
    """What a container holds, each with its index, key or field's name; None for a leaf."""
    if isinstance(value, (list, tuple)):
        return None if type(value) is torch.Size else enumerate(value)
    if isinstance(value, dict):
        return value.items()
    if type(value) in FLAT or isinstance(value, _LEAVES):
        return None
    if is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in fields(value) if hasattr(value, field.name)]
    held = attributes_of(value)
    return None if held is None else held.items()


def path_of(path: str, holder: Any, name: Any) -> str:
    """Where a child stands, as Python writes it: ``x[0]``, ``x['a']``, ``x.a``."""
    return f"{path}[{name!r}]" if isinstance(holder, (list, tuple, dict)) else f"{path}.{name}"


def leaves(value: Any) -> Iterator[Any]:
    """Everything in a nest of containers that is no container, in order."""
    held = children(value)
    if held is None:
        yield value
    for _, child in held or ():
        yield from leaves(child)


STATEFUL = (Module, FunctionType, Enum, type)
"""What a call is given by which it is: what hangs on it is no part of the call, and nothing copies it."""
_LEAVES = (Tensor, *STATEFUL)


def states(value: Any, path: str) -> Iterator[str]:
    """Where in an argument something `STATEFUL` stands, also beside the items of a named tuple or a dataclass's fields.

    ``path`` is the argument's own; each is as Python writes it: ``x[0]``, ``x['a']``, ``x.a``, an item of a named tuple
    both ways.
    """
    if isinstance(value, STATEFUL):
        yield path
        return
    for name, item in children(value) or ():
        yield from states(item, path_of(path, value, name))
    if isinstance(value, tuple) or is_dataclass(value):
        named = zip(getattr(value, "_fields", ()), value if isinstance(value, tuple) else (), strict=False)
        for name, item in (*named, *getattr(value, "__dict__", {}).items()):
            yield from states(item, f"{path}.{name}")


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor in an argument, in order. A hit pays for this where a call has keywords, or writes an argument."""
    found: list[Tensor] = []
    _collect(value, found)
    return iter(found)


def _collect(value: Any, found: list[Tensor]) -> None:
    kind = type(value)
    if isinstance(value, Tensor):
        found.append(value)
    elif kind is tuple or kind is list:
        for child in value:
            if type(child) not in FLAT:  # most are, and a call takes longer than to see it
                _collect(child, found)
    elif kind not in FLAT:
        for _, child in children(value) or ():
            _collect(child, found)


def map_tensors(
    value: Any, change: Callable[[str, Tensor], Tensor], path: str = "", made: dict[int, Any] | None = None
) -> Any:
    """The same nest with ``change(path, tensor)`` for each tensor, its containers made anew in their own classes.

    A tuple in which nothing changes stays itself, and so does an instance of an ordinary class: it leads to no tensor,
    and code may ask which it is. With ``made``, which maps the id of a container to its new one, a container that
    stands in two places stays one; without it each place has its own.
    """
    if isinstance(value, Tensor):
        return change(path, value)
    held = children(value) if isinstance(value, (list, tuple, dict)) or is_dataclass(value) else None
    if held is None:
        return value
    if made is not None and id(value) in made:
        return made[id(value)]
    if isinstance(value, tuple):
        items = [
            child if type(child) in FLAT else map_tensors(child, change, path_of(path, value, i), made)
            for i, child in held
        ]
        same = all(new is old for new, old in zip(items, value, strict=True))
        twin = value if same else _carrying(tuple.__new__(type(value), items), value)
        return twin if made is None else made.setdefault(id(value), twin)
    twin = _twin(value)
    if made is not None:
        made[id(value)] = twin  # before its children, one of which may hold it
    put: Any = list.__setitem__ if isinstance(value, list) else dict.__setitem__ if isinstance(value, dict) else None
    for name, child in held:
        (put or object.__setattr__)(twin, name, map_tensors(child, change, path_of(path, value, name), made))
    return twin


def _twin(value: Any) -> Any:
    """A shallow copy of a list, dict or dataclass, made without its class's own code: that may count or give itself."""
    try:
        twin = (list if isinstance(value, list) else object).__new__(type(value))
    except TypeError:  # a dict, or a class over one that is written in C, which may hold more than can be seen
        return copy.copy(value)
    if isinstance(value, list):
        list.extend(twin, value)
    return _carrying(twin, value)


def _carrying(new: Any, old: Any) -> Any:
    """The new one with the attributes of the old: those in its ``__dict__`` and those in slots."""
    if type(old) in (tuple, list, dict):
        return new
    members = (member for base in type(old).__mro__ for member in vars(base).values())
    for slot in members:
        if isinstance(slot, MemberDescriptorType):
            with contextlib.suppress(AttributeError):  # it has no value
                slot.__set__(new, slot.__get__(old))
    if hasattr(old, "__dict__"):
        vars(new).update(vars(old))
    return new


def overlap(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[int, int, int], ...]:
    """Which tensors of the call share memory, and how far apart they begin: needed where anything is written."""
    found = list(tensors((args, kwargs)))
    spans = [span(t) for t in found]
    return tuple(
        (i, j, spans[j][0] - spans[i][0])
        for i, j in itertools.combinations(range(len(found)), 2)
        if spans[i][0] < spans[j][1] and spans[j][0] < spans[i][1] and found[i].device == found[j].device
    )
