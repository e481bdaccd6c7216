"""Under which grad mode, and inside which autocast, each operation of a graph runs; and how another graph comes there.

Dynamo writes both into a graph as calls of their own, one where a region begins and one where it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

__all__ = ["OUTSIDE", "Mover", "Region", "is_switch", "regions"]

_SET_GRAD: Any = torch._C._set_grad_enabled
_ENTER: Any = getattr(torch.amp.autocast_mode, "_enter_autocast", None)
_EXIT: Any = getattr(torch.amp.autocast_mode, "_exit_autocast", None)
_SWITCHES = {_SET_GRAD, *(one for one in (_ENTER, _EXIT) if one is not None)}
"""Where this release has other words for them, a graph with a region is not cut."""


@dataclass(frozen=True, slots=True)
class Region:
    """Whether gradients are recorded there, and the calls that entered the autocasts around it, outermost first."""

    grad: bool = True
    casts: tuple[Node, ...] = ()


OUTSIDE = Region()
"""That of a graph's first operation, where gradients are recorded."""


def is_switch(node: Node) -> bool:
    """Whether it does nothing but to begin a region, or to end one."""
    return node.op == "call_function" and node.target in _SWITCHES


def regions(gm: GraphModule) -> Mapping[Node, Region]:
    """That of each operation."""
    found, region = dict[Node, Region](), OUTSIDE
    for node in gm.graph.nodes:
        if not is_switch(node):
            pass
        elif node.target is _SET_GRAD:
            region = Region(bool(node.args[0]), region.casts)
        elif node.target is _ENTER:
            region = Region(region.grad, (*region.casts, node))
        else:
            region = Region(region.grad, tuple(one for one in region.casts if one is not node.args[0]))
        found[node] = region
    return found


@dataclass(slots=True)
class Mover:
    """Writes into a graph what leads from one region to another."""

    graph: Graph
    region: Region = OUTSIDE
    _entered: list[Node] = field(default_factory=list)

    def to(self, region: Region) -> None:
        """What is written next runs there."""
        before, after = self.region.casts, region.casts
        same = next(
            (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a is not b), min(len(before), len(after))
        )
        while len(self._entered) > same:
            self.graph.call_function(_EXIT, (self._entered.pop(),))
        if region.grad != self.region.grad:
            self.graph.call_function(_SET_GRAD, (region.grad,))
        self._entered += [self.graph.call_function(_ENTER, one.args) for one in after[same:]]
        self.region = region
