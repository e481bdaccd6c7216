"""What a function reads of a tensor that no key holds, though Dynamo has no guard on it: it takes that for a constant.

It may be otherwise at the next call with an equal key, and is otherwise on a fake tensor than on the caller's.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator

import torch
from torch.fx import GraphModule, Node

from .graphs import called, nodes

__all__ = ["unkeyed_reads"]

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
