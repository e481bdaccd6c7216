"""What the parts of a key are called, and which of them differ between two keys: for a person."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from typing import Any, TypeAlias

__all__ = ["SAME", "Key", "differences"]

Key: TypeAlias = tuple[Any, ...]  # of hashable things; mypy takes a type for none, although it hashes

SAME = "the same tensor"  # no name of a keyword, beside which it stands in a key
_AMBIENT_PARTS = (
    "default device",
    "grad mode",
    "inference mode",
    "autocast",
    "deterministic algorithms",
    "default dtype",
    "matmul precision",
    "matmul precision of mkldnn",
    "number of threads",
)
_TENSOR_PARTS = ("type", "dtype", "sizes", "strides", "device", "alignment", "requires_grad", "inference tensor")


def differences(one: Key, other: Key, names: Sequence[str]) -> tuple[str, ...]:
    """What differs between two keys of one dispatcher, for a person: ``sizes of x``, ``grad mode``.

    ``names`` are the names of the arguments in the key's order.
    """
    state, was = one[0], other[0]
    assert isinstance(state, tuple)
    assert isinstance(was, tuple)
    found = [part for part, a, b in zip(_AMBIENT_PARTS, state, was, strict=True) if a != b]
    labels = [*names, *[f"argument {i}" for i in range(len(names), len(one))]]
    for name, a, b in itertools.zip_longest(labels[: len(one) - 1], one[1:], other[1:]):
        if a != b:
            found.append("which tensors are the same" if _says_same(a, b) else f"{_which_parts(a, b)}{name}")
    return tuple(found)


def _says_same(a: Hashable, b: Hashable) -> bool:
    return (type(a) is tuple and a[:1] == (SAME,)) or (type(b) is tuple and b[:1] == (SAME,))


def _which_parts(a: Hashable, b: Hashable) -> str:
    """``sizes and strides of`` for two tensors, nothing for other arguments."""
    if not (isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b) == len(_TENSOR_PARTS)):
        return ""
    parts = [part for part, x, y in zip(_TENSOR_PARTS, a, b, strict=True) if x != y]
    if "sizes" in parts and "strides" in parts:
        parts.remove("strides")  # other sizes have other strides
    return f"{' and '.join(parts)} of "
