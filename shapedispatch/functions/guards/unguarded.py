"""What a function reads of a tensor that no key holds, though Dynamo has no guard on it: it takes that for a constant.

It may be otherwise at the next call with an equal key, and is otherwise on a fake tensor than on the caller's.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.torch_version import TorchVersion

from .graph import called, nodes

__all__ = ["CLASSES_ARE_WATCHED", "is_of_a_class_with_values", "unkeyed_reads"]

# What Dynamo takes from a tensor of the graph while it traces: these the key holds, or they are tensors themselves.
_KEYED = frozenset({"T", "mT", "H", "mH", "real", "imag", "data", "itemsize", "nbytes", "is_leaf"}) | {
    name for name in dir(torch.Tensor) if name.startswith("is_") and not callable(getattr(torch.Tensor, name, None))
}


def unkeyed_reads(gm: GraphModule, code: Iterable[types.CodeType]) -> Iterator[str]:
    """Each as a person would write it, by the graph; what leaves nothing there, by the names in the ``code``."""
    if any(name in _BY_NAME for part in code for name in part.co_names):
        yield "a tensor's storage"
    for node in nodes(gm):
        if node.target is getattr and node.args[1] not in _KEYED:
            yield f"x.{node.args[1]}"
        elif called(node).startswith("_tensor_version"):
            yield "x._version"
        elif called(node).startswith("as_strided") and _offset_of(node) is not None:
            yield "a place in a tensor's storage (as_strided with a storage_offset)"


_BY_NAME = frozenset({"untyped_storage", "_typed_storage"})


def _offset_of(node: Node) -> object:
    return node.kwargs.get("storage_offset", node.args[3] if len(node.args) > 3 else None)


CLASSES_ARE_WATCHED = TorchVersion(torch.__version__) >= TorchVersion("2.13")
_CONSTANTS = (int, float, complex, bool, str, bytes, type(None))


def is_of_a_class_with_values(guard: Any) -> bool:
    """Whether Dynamo's guard is on a class that holds what may change, and no guard of this release would see it."""
    if CLASSES_ARE_WATCHED or guard.guard_type != "CLASS_MATCH":
        return False
    return not guard.has_value or _holds_values(guard.value)


def _holds_values(value: type) -> bool:
    if issubclass(value, Enum):  # whose members stay what they are, but for what is in them
        return any(type(member.value) not in _CONSTANTS or _own_names(member) for member in value)
    own = [base for base in value.__mro__ if str(base.__module__).partition(".")[0] not in ("builtins", "torch")]
    return any(_is_value(name, held) for base in own for name, held in vars(base).items())


def _own_names(member: Enum) -> list[str]:
    """What was hung on a member beside its value."""
    return [name for name in vars(member) if not name.startswith("_")]


def _is_value(name: str, held: Any) -> bool:
    """Neither code, which no release watches on a class, nor Python's own."""
    return not (name.startswith("__") and name.endswith("__")) and not hasattr(type(held), "__get__")
