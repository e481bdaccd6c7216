"""The operators of a graph, run anew in a backward: what a part of its results gives back, as plain's would."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from .ends import leaf_of

__all__ = ["Apart"]


class Apart:
    """What a graph makes of ``inputs`` as leaves of autograd's: its results at ``places``, which are numbered so.

    A result is a leaf for ``others`` that are made of it, by number, so that what comes back to it stops there. What
    is a ``leaf`` may have a history, by which autograd goes on from gradients: that of a result is of a run of its own,
    since a gradient of these inputs would be of all that is made of it, too.
    """

    def __init__(
        self,
        graph: GraphModule,
        places: Sequence[int],
        others: Sequence[Sequence[int]],
        inputs: Sequence[Any],
        leaf: Callable[[Any], Any] = leaf_of,
    ) -> None:
        self.others, self.leaves = others, [*map(leaf, inputs)]
        self.wanted = {i: one for i, one in enumerate(self.leaves) if isinstance(one, Tensor) and one.requires_grad}
        made, run = dict[int, Tensor](), graph.forward
        if any(others):
            inner, behind = {places[other]: other for each in others for other in each}, dict[int, Tensor]()
            if leaf is not leaf_of:
                _Run(graph, inner, behind, lambda value: value, {}).run(*map(leaf, inputs))
            run = _Run(graph, inner, made, leaf, behind).run
        results = run(*self.leaves)
        self.cuts = [results[place] for place in places]
        """Each result as those have it that are made of it."""
        self.results = [made.get(number, one) for number, one in enumerate(self.cuts)]

    def together(self, given: Mapping[int, Tensor]) -> Sequence[Tensor | None]:
        """The gradients of the inputs, where these come to the results of these numbers."""
        if not any(self.others):
            begun = {number: one for number, one in given.items() if self.results[number].requires_grad}
            at = [self.results[number] for number in begun]
            found = torch.autograd.grad(at, [*self.wanted.values()], [*begun.values()], allow_unused=True)
            of = dict(zip(self.wanted, found, strict=True))
            return [of.get(place) for place in range(len(self.leaves))]
        sums: dict[int, Tensor | None] = dict(given)
        total: dict[int, Tensor | None] = {}
        for number in reversed(range(len(self.results))):  # each before those that it is made of
            gradient = sums.get(number)
            if gradient is None:
                continue
            inputs, others = self.of(number, gradient)
            for into, more in ((total, inputs), (sums, others)):
                for place, one in more.items():
                    into[place] = _sum(into.get(place), one)
        return [total.get(place) for place in range(len(self.leaves))]

    def of(self, number: int, gradient: Tensor) -> tuple[dict[int, Tensor | None], dict[int, Tensor | None]]:
        """The gradients of inputs by place, and of other results by number, where this one comes to one result."""
        others = [other for other in self.others[number] if self.cuts[other].requires_grad]
        if not self.results[number].requires_grad:
            return {}, {}
        wanted = [*self.wanted.values(), *(self.cuts[other] for other in others)]
        how = {"retain_graph": True, "create_graph": torch.is_grad_enabled(), "allow_unused": True}
        found = torch.autograd.grad([self.results[number]], wanted, [gradient], **how)
        count = len(self.wanted)
        return dict(zip(self.wanted, found[:count], strict=True)), dict(zip(others, found[count:], strict=True))


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return other if one is None else one if other is None else one + other


class _Run(Interpreter):
    """Runs a graph, with the results at some places, which are numbered, as leaves for what is made of them.

    What they are themselves is noted as ``made``; the leaf is one of what is ``behind`` it, if anything is.
    """

    def __init__(
        self,
        graph: GraphModule,
        inner: Mapping[int, int],
        made: dict[int, Tensor],
        leaf: Callable[[Any], Any],
        behind: Mapping[int, Tensor],
    ) -> None:
        super().__init__(graph)
        self.leaf, self.behind = leaf, behind
        results: Any = graph.graph.output_node().args[0]
        self.numbers, self.made = {results[place]: number for place, number in inner.items()}, made

    def run_node(self, n: Node) -> Any:
        """See `Interpreter.run_node`."""
        value = super().run_node(n)
        if n not in self.numbers:
            return value
        number = self.numbers[n]
        self.made[number] = value
        return self.leaf(self.behind.get(number, value))
