"""Whether the results of a graph that are views would be views of the same tensors in compiled code.

What is written into a view is seen by autograd in what it is a view of: compiled code that gives the same memory as a
tensor of its own has that gradient lost in silence. AOTAutograd makes views anew of inputs, and of what has a gradient.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

__all__ = ["lost_view"]

_MADE_ANEW = (
    "alias_of_input",
    "alias_of_intermediate",
    "alias_of_intermediate_save_as_output",
    "alias_of_intermediate_base_is_user_output",
)
"""What AOTAutograd says of results that it makes of what they are views of, when the graph has run."""


def lost_view(gm: GraphModule, types: Sequence[str]) -> str:
    """Why Dynamo's graph is not to be compiled, or nothing; of results of which Dynamo says nothing it says nothing.

    ``types`` are AOTAutograd's words for them. Where plain refuses that a view is written, compiled code may allow it.
    """
    nodes: Sequence[Any] = gm.graph.output_node().args[0]  # type: ignore[assignment]  # Dynamo's graphs have several
    inputs = {id(_root(one)) for node in gm.graph.find_nodes(op="placeholder") if (one := _tensor(node)) is not None}
    told = [*types, *[""] * (len(nodes) - len(types))]
    for root, results in _by_root(nodes).items():
        views = {i: one for i, one in results.items() if one._is_view()}
        if not views or _are_made_anew(views, told):
            continue
        if root in inputs:
            return f"as compiled code has them, its results {_listed(views)} are no views of an argument"
        if len(results) > 1 and not _may_stand_alone([nodes[i] for i in results], results):
            return f"as compiled code has them, its results {_listed(results)} are no views of one tensor"
    return ""


def _by_root(nodes: Sequence[Any]) -> Mapping[int, Mapping[int, Tensor]]:
    """The results that are tensors, by place, for each tensor that they are views of, or are."""
    found: dict[int, dict[int, Tensor]] = {}
    for i, node in enumerate(nodes):
        if (one := _tensor(node)) is not None:
            found.setdefault(id(_root(one)), {})[i] = one
    return found


def _tensor(node: Any) -> Tensor | None:
    value = node.meta.get("example_value") if isinstance(node, Node) else None
    return value if isinstance(value, Tensor) else None


def _root(tensor: Tensor) -> Tensor:
    return tensor._base if tensor._is_view() and tensor._base is not None else tensor


def _are_made_anew(views: Mapping[int, Tensor], types: Sequence[str]) -> bool:
    """Whether AOTAutograd makes them of the same tensor, in the grad mode that plain makes them in: that of the call.

    Of one among several (as of `chunk`) that is no matter: plain refuses that it is written where gradients are taken.
    """
    made = [_made_in_grad_mode(one) for one in views.values()]
    return all(types[i] in _MADE_ANEW for i in views) and (not torch.is_grad_enabled()) not in made


def _made_in_grad_mode(view: Tensor) -> bool | None:
    """None of one among several."""
    how = torch._C._autograd._get_creation_meta(view).name  # type: ignore[attr-defined]  # it has no stub
    return {"DEFAULT": True, "MULTI_OUTPUT_NODE": None}.get(how, False)


def _may_stand_alone(nodes: Sequence[Node], results: Mapping[int, Tensor]) -> bool:
    """Whether it is no matter that they are tensors of their own, which share memory.

    Plain refuses that those are written where gradients are taken which were made where none are, and those that one
    operator has cut a tensor into, none of which holds what another does.
    """
    if not torch.is_grad_enabled():
        return True not in map(_made_in_grad_mode, filter(Tensor._is_view, results.values()))
    items = {node.args[1]: node.args[0] for node in nodes if _is_item(node)}
    parts = len(items) == len(nodes) and len(set(items.values())) == 1
    return parts and all(one._is_view() and _made_in_grad_mode(one) is None for one in results.values())


def _is_item(node: Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem" and isinstance(node.args[1], int)


def _listed(places: Iterable[int]) -> str:
    return " and ".join(map(str, places))
