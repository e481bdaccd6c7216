"""Graphs that are not compiled, since compiled code would not do what plain does where a value is out of bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.torch_version import TorchVersion

from ..guards.graph import called, nodes

__all__ = ["Uncompilable", "refuse_kernels", "refuse_unchecked"]


class Uncompilable(Exception):
    """Compiled code for this graph would not do what plain does; the message is why."""


_CHECKED_BY_PLAIN = frozenset(
    {"index_select", "index_add", "index_copy", "bernoulli", "binary_cross_entropy", "_assert_async"}
)


def refuse_unchecked(gm: GraphModule, examples: Sequence[Any]) -> None:
    """Where plain looks at values and raises, and compiled code takes them as they come: a negative index, say.

    Asked of Dynamo's graph. On a GPU plain ends in a device assertion there, which is no error that anyone could have
    caught.
    """
    if any(isinstance(example, torch.Tensor) and example.device.type != "cpu" for example in examples):
        return
    for node in nodes(gm):
        if node.op in ("call_function", "call_method") and called(node) in _CHECKED_BY_PLAIN:
            raise Uncompilable(f"plain checks the values that {called(node)} gets, and compiled code does not")


def refuse_kernels(gm: GraphModule) -> None:
    """Where compiled code ends the process; asked of a graph of operators, as Inductor gets it."""
    for node in nodes(gm):
        _refuse_integer_division(node)
        _refuse_indexing(node)


_DIVISIONS = ("floor_divide", "remainder", "fmod", "div.Tensor_mode", "div.Scalar_mode")


def _refuse_integer_division(node: Node) -> None:
    """In compiled code an integer division by zero ends the process, where plain raises."""
    if node.op != "call_function" or not str(node.target).startswith(tuple(f"aten.{name}" for name in _DIVISIONS)):
        return
    value = node.meta.get("val")
    divisor = node.args[1] if len(node.args) > 1 else None
    whole = isinstance(value, torch.Tensor) and not value.is_floating_point()
    if whole and isinstance(divisor, torch.fx.Node) and isinstance(divisor.meta.get("val"), torch.Tensor):
        raise Uncompilable("it divides whole numbers by a tensor, where compiled code dies of a zero")


# Seen on torch 2.11 (a segmentation fault, on the CPU only), not on 2.13; there is nothing in it that could be
# asked.
_DIES_OF_AN_INDEX = TorchVersion(torch.__version__) < TorchVersion("2.13")
_INDEXING = ("index", "gather", "scatter", "embedding", "take")


def _refuse_indexing(node: Node) -> None:
    """An index out of range ends the process in the CPU code of a release that does not bound its loads."""
    value = node.meta.get("val")
    on_cpu = isinstance(value, torch.Tensor) and value.device.type == "cpu"
    if _DIES_OF_AN_INDEX and on_cpu and str(node.target).startswith(tuple(f"aten.{name}" for name in _INDEXING)):
        raise Uncompilable("it indexes by a tensor, and this torch's compiled code dies of an index out of range")
