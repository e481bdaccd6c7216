"""A captured graph as it is searched: with the graphs nested in it, which checkpoints, conditions and loops hold."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import GraphModule, Node

__all__ = ["called", "dtypes_of_numbers", "nodes"]


def nodes(gm: GraphModule) -> Iterator[Node]:
    """Every node of the graph and of those nested in it."""
    for module in gm.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def called(node: Node) -> str:
    """The name of what a node calls, without the underscore of what writes in place."""
    return str(getattr(node.target, "__name__", node.target)).removesuffix("_")


def dtypes_of_numbers(gm: GraphModule) -> set[torch.dtype]:
    """What numbers that are inputs of a graph of operators become: plain raises where one is too large for that."""
    found = [node.meta.get("val") for node in nodes(gm) if _takes_a_number(node)]
    return {value.dtype for value in found if isinstance(value, torch.Tensor)}


def _takes_a_number(node: Node) -> bool:
    """Whether a number comes from another node; sizes and places, which are integers to an operator, do not count."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    arguments = node.target._schema.arguments
    given = {argument.name: value for argument, value in zip(arguments, node.args, strict=False)} | node.kwargs
    numbers = [argument.name for argument in arguments if str(argument.type) in ("number", "Optional[number]")]
    return any(isinstance(given.get(name), Node) for name in numbers)
