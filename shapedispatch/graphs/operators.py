"""Which graphs of operators may be recorded: by what each operator does beside computing on one device."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

__all__ = ["why_not_recorded"]

RECORDS = "cuda"
"""The kind of device on which anything is recorded."""
_OURS = frozenset({"aten", "prims"})
_WAIT = ("linalg_", "cholesky", "lu_", "svd", "geqrf", "ormqr", "symeig", "eig", "lstsq", "triangular_solve")
_SIZED_BY_VALUES = (torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output)
_DROPOUT = "dropout_p"


def why_not_recorded(gm: GraphModule) -> str:
    """Why a graph of operators is not to be recorded: the first sentence that says so; empty where there is none.

    A recording runs the same kernels each time. So nothing may be decided by values or drawn by the host, nothing may
    be waited for, and all must be on one device. Of an operator that torch did not write none of this is known.
    """
    devices = {value.device for node in gm.graph.nodes for value in _tensors(node)}
    if others := sorted(str(device) for device in devices if device.type != RECORDS):
        return f"it computes on {others[0]}"
    if len(devices) > 1:
        return "it computes on several devices"
    calls = [node for node in gm.graph.nodes if node.op == "call_function"]
    return next((why for node in calls if (why := _why_not(node))), "")


def _why_not(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, torch._ops.HigherOrderOperator):
        return "" if str(target).startswith("triton_kernel_wrapper") else f"it runs a graph inside it ({target})"
    if not isinstance(target, torch._ops.OpOverload):
        return ""  # arithmetic on sizes, and what takes one of several results
    if target.namespace not in _OURS:
        return f"nothing is known of {target}"
    if any(tag in target.tags for tag in _SIZED_BY_VALUES):
        return f"the sizes of {target} depend on values"
    if torch.Tag.nondeterministic_seeded in target.tags and not _drops_nothing(node):
        return f"{target} draws random numbers"
    return f"{target} may wait for the device" if target._opname.lstrip("_").startswith(_WAIT) else ""


def _drops_nothing(node: Node) -> bool:
    """Whether an operator that draws for a dropout alone is told to drop nothing."""
    target: Any = node.target
    for place, argument in enumerate(target._schema.arguments):
        if argument.name == _DROPOUT:
            default = argument.default_value
            return bool((node.args[place] if place < len(node.args) else node.kwargs.get(_DROPOUT, default)) == 0)
    return False


def _tensors(node: Node) -> list[torch.Tensor]:
    value = node.meta.get("val")
    values = value if isinstance(value, (list, tuple)) else [value]
    return [one for one in values if isinstance(one, torch.Tensor)]
