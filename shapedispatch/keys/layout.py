"""The parts of a key: their names, and in which of them two keys differ, for a person.

A key is a plain tuple: the state around the call (`AmbientPart`), then a part for each argument: a tensor's is a
`TensorPart`, a keyword's (name, part). There may follow which tensors are the same and which of them share memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor

__all__ = [
    "OF_ARGUMENTS",
    "SAME",
    "WITHOUT_KEY",
    "AmbientPart",
    "Key",
    "TensorPart",
    "Ways",
    "differences",
    "kin",
    "numberless",
    "of_sizes",
]

Key: TypeAlias = tuple[Any, ...]  # of hashable things; mypy takes a type for none, although it hashes

OF_ARGUMENTS = ("an argument", "a bound method")
"""How a reason for having no key begins that is about what is among the arguments, and not about a tensor of them."""

WITHOUT_KEY = "an argument of type {}, which cannot be keyed by value"
"""The reason that is so whatever the argument of that type is."""

SAME = "the same tensor"  # no name of a keyword, beside which it stands in a key


class AmbientPart(NamedTuple):
    """The first part of a function's key, there as a plain tuple; a stored key is without the last of it."""

    default_device: Any
    grad_mode: Any
    inference_mode: Any
    autocast: Any
    deterministic_algorithms: Any
    default_dtype: Any
    matmul_precision: Any
    matmul_precision_of_mkldnn: Any
    number_of_threads: Any = None


class TensorPart(NamedTuple):
    """A tensor's part of a function's key; in the key it is a plain tuple, whose first item is the tensor's type."""

    type: Any
    dtype: Any
    sizes: Any
    strides: Any
    device: Any
    alignment: Any
    requires_grad: Any
    inference_tensor: Any


_AMBIENT_WORDS = [name.replace("_", " ") for name in AmbientPart._fields]
_TENSOR_WORDS = [*TensorPart._fields[:-1], "inference tensor"]


def differences(one: Key, other: Key, names: Sequence[str]) -> tuple[str, ...]:
    """What differs between two keys of one dispatcher, for a person: ``sizes of x``, ``grad mode``.

    ``names`` are the names of the arguments in the key's order.
    """
    found = []
    if one[0] != other[0]:
        found += [part for part, a, b in zip(_AMBIENT_WORDS, one[0], other[0], strict=True) if a != b]
    for place, (a, b) in enumerate(itertools.zip_longest(one[1:], other[1:])):
        if a is not b and a != b:
            known = names[place] if place < len(names) else f"argument {place}"
            name = known if place < len(one) - 1 else None
            parts = _which_parts(a, b)
            says_same = not parts and any(type(part) is tuple and part[:1] == (SAME,) for part in (a, b))
            found.append("which tensors are the same" if says_same else f"{parts}{name}")
    return tuple(found)


def _which_parts(a: Hashable, b: Hashable) -> str:
    """``sizes and strides of`` for two tensors, nothing for other arguments."""
    if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == len(_TENSOR_WORDS)) or a[0] == SAME:
        return ""
    if a[2] != b[2] and a[:2] == b[:2] and a[4:] == b[4:]:  # which is so at nearly every key that is new
        return "sizes of "
    parts = [part for part, x, y in zip(_TENSOR_WORDS, a, b, strict=True) if x != y]
    if "sizes" in parts and "strides" in parts:
        parts.remove("strides")  # other sizes have other strides
    return f"{' and '.join(parts)} of "


def kin(key: Key) -> Key:
    """What a key has in common with those that differ from it in sizes alone, and the strides that come with them.

    A size of 0 or 1 is no other size: it is a constant to the compiler, whose builds for such calls take no others.
    """
    return (key[0], *map(_sizeless, key[1:]))


def numberless(key: Key) -> Key:
    """What a key has in common with those that differ from it in numbers and texts.

    A whole number differs up to the next power of two.
    """
    return (key[0], *map(_numberless, key[1:]))


def _numberless(part: Any) -> Hashable:
    if type(part) is not tuple or len(part) < 2:
        return part  # type: ignore[no-any-return]  # of a key, so it hashes
    if type(part[0]) in (str, tuple):  # a keyword, or an item of a dict
        return (part[0], *map(_numberless, part[1:]))
    if part[0] is int:
        return (int, part[1] < 0, part[1].bit_length())
    if part[0] in (float, complex, str):
        return (part[0],)
    is_tensor = isinstance(part[0], type) and issubclass(part[0], Tensor)
    return (part[0], *map(_numberless, part[1:])) if isinstance(part[0], type) and not is_tensor else part


class Ways:
    """What differs between keys that differ from each other in sizes alone, asked once of each way to differ."""

    def __init__(self) -> None:
        self._newest: Key | None = None
        self._known: dict[tuple[bool | str, ...], tuple[str, ...]] = {}

    def why_new(self, key: Key, newest: Key, differences: Callable[[Key, Key], tuple[str, ...]]) -> tuple[str, ...]:
        """As ``differences`` of such a key and of the newest of all, which may be another."""
        like, self._newest = newest is self._newest, key
        if not like:
            return differences(key, newest)
        pairs = zip(key, newest, strict=True)
        way = tuple([one is not other and one != other and _way(one, other) for one, other in pairs])
        found = self._known.get(way)
        if found is None:
            found = differences(key, newest)
            if len(self._known) < _MOST_WAYS:
                self._known[way] = found
        return found


_MOST_WAYS = 256


def _way(one: Key, other: Key) -> str:
    """In what two tensors differ that differ in sizes or strides alone."""
    return "sizes" if one[2] != other[2] else "strides"


def of_sizes(part: Key) -> Callable[[Any, Any], Key]:
    """What makes a tensor's part of a key of sizes and strides, given that of another tensor like it."""
    kind, dtype, _, _, device, alignment, grad, inference = part
    return lambda sizes, strides: (kind, dtype, sizes, strides, device, alignment, grad, inference)


def _sizeless(part: Any) -> Hashable:
    if type(part) is not tuple or not part:
        return part  # type: ignore[no-any-return]  # of a key, so it hashes
    if type(part[0]) is str and len(part) == 2:  # a keyword
        return (part[0], _sizeless(part[1]))
    if not (isinstance(part[0], type) and issubclass(part[0], Tensor)):
        return part
    dtype, sizes, strides, *rest = part[1:]
    return (part[0], dtype, tuple([min(size, 2) for size in sizes]), sorted(strides, reverse=True) == [*strides], *rest)
