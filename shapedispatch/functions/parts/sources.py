"""Of what the values of a graph are made, and what making them costs."""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

__all__ = ["behind", "costs_nothing", "has_gradient", "is_item", "maker", "sources_of"]


def sources_of(values: Mapping[Node, Any], ends: Collection[Node]) -> Mapping[Node, frozenset[Node]]:
    """Of which inputs, and of which of the values given as ``ends``, each is made, as far as it passes gradients on.

    What has no gradient is made of what made the values that it is computed from.
    """
    sources = dict[Node, frozenset[Node]]()
    for node in values:
        found, passes = set[Node](), _passes_gradients(values[node])
        for one in node.all_input_nodes:
            if passes and not _passes_gradients(values[one]):
                continue
            is_end = one.op == "placeholder" or (passes and one in ends)
            found |= {one} if is_end else sources[one]
        sources[node] = frozenset(found)
    return sources


def _passes_gradients(value: object) -> bool:
    return any(map(has_gradient, value if isinstance(value, (tuple, list)) else [value]))


def behind(node: Node) -> Iterator[Node]:
    """All that a value is made of."""
    left, seen = [*node.all_input_nodes], set[Node]()
    while left:
        one = left.pop()
        if one not in seen:
            seen.add(one)
            left.extend(one.all_input_nodes)
            yield one


def has_gradient(value: object) -> bool:
    """Whether it is a tensor that has one."""
    return isinstance(value, Tensor) and value.requires_grad


def is_item(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether it takes one of several values that another node makes at once."""
    whole = node.args[0] if node.target is operator.getitem else None
    return isinstance(whole, Node) and isinstance(values[whole], (tuple, list))


def maker(node: Node, values: Mapping[Node, Any]) -> Node:
    """What makes a value: of several at once, the one that makes all of them, unless they are views."""
    if is_item(node, values):
        whole = node.args[0]
        assert isinstance(whole, Node)
        return node if costs_nothing(whole, values) else whole
    return node


def costs_nothing(node: Node, values: Mapping[Node, Any]) -> bool:
    """Whether it makes views alone, or numbers, or is a constant."""
    if node.op == "get_attr":
        return True
    made = values[node] if isinstance(values[node], (tuple, list)) else [values[node]]
    tensors = [one for one in made if isinstance(one, Tensor)]
    memory = {_memory(values[one]) for one in node.all_input_nodes if isinstance(values.get(one), Tensor)}
    return all(_memory(one) in memory for one in tensors)


def _memory(tensor: Tensor) -> object:
    """Equal for tensors that share memory; of one that has none of the usual kind, like no other's."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else object()
