"""A backward that autograd is to follow, or that takes a batch of gradients: by the operators of a graph, run anew.

Compiled code can do neither. What it kept in between has no history, and it takes gradients of one size. So where a
backward is asked for one of these, the operators that plain calls are run anew, and have the backward in its place.
Their inputs are kept for that only by a program that does it: where one is gone by then, or was written since, the
backward raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...backward import Tracked, in_transform, is_lazy, keeps_graph, storage_of, tracked, without_history
from ...hit.call import NO_SECOND
from ...keys.autocast import any_autocast, autocast, casting
from .ends import alias_of
from .noted import Noted, Recent
from .partial import Partial

__all__ = ["Again"]


@dataclass(frozen=True, slots=True)
class First:
    """What is the same at each run of the code, as the first one shows it.

    ``held`` are the places of the inputs whose memory its backward keeps, and ``given`` those of what it keeps there.
    ``casts``, ``device`` and ``dtype`` are the calls' autocast and default ones, which are in the keys of all of them.
    """

    held: frozenset[int]
    given: tuple[int, ...]
    casts: Any
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, inputs: Sequence[Any], kept: Sequence[Tensor]) -> First:
        """Of a call that runs now, for whose backward these are kept."""
        memory = [storage_of(one) for one in kept]
        of = {i: storage_of(one) for i, one in enumerate(inputs) if isinstance(one, Tensor)}
        return cls(
            frozenset(i for i, one in of.items() if one in memory),
            tuple(i for i, one in enumerate(memory) if one in of.values()),
            any_autocast() and autocast(),
            torch.get_default_device(),
            torch.get_default_dtype(),
        )


class Again:
    """What gives the backward of one piece of compiled code, whose ``graph`` calls the operators that plain calls.

    There may be no graph, or not such a one: then there is no backward but the code's. ``partial`` is told where that
    needs what was written since.
    """

    def __init__(self, graph: Callable[[], GraphModule | None], partial: Partial) -> None:
        self.graph, self.partial = graph, partial
        self.first: First | None = None
        self.recent = Recent()

    @property
    def frames(self) -> Sequence[Any]:
        """What Dynamo is not to follow."""
        own = (Again.keep, Again.is_tracked, Again.left, Again.gradients, First.of, _gradients)
        calls = (Noted.let_go, Noted.inputs, Noted.as_it_was, Recent.noted)
        told = (Partial.shown, Partial.saved, Partial.has_raised)
        return (*own, *calls, *told, Tracked.now, in_transform, is_lazy, alias_of, without_history)

    def keep(self, node: Any, inputs: Sequence[Any], kept: Sequence[Tensor], results: Sequence[Any]) -> None:
        """Have a node keep these for its backward, and what there is to know of the call that runs now.

        An input is held where that takes no more memory, or such backwards have been.
        """
        first = self.first
        if first is None:
            first = self.first = First.of(inputs, kept)
            self.partial.shown(kept, first.given, [storage_of(one) for one in results if isinstance(one, Tensor)])
        node.save_for_backward(*without_history(kept, first.given))
        node.noted = self.recent.noted(inputs, range(len(inputs)) if tracked.ever else first.held)

    @staticmethod
    def is_tracked() -> bool:
        """Whether the backward that runs is: then `gradients` gives what it gives."""
        return tracked.now()

    @staticmethod
    def left(noted: Noted) -> Noted | None:
        """What a backward leaves of that, before its code lets go of what was kept."""
        return noted if keeps_graph() else None

    def gradients(self, node: Any, noted: Noted, given: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Of a node's inputs, where these come to the results; followed by autograd where that is on."""
        graph, first = self.graph(), self.first
        if graph is None or first is None:
            self.partial.tracked, self.partial.repeats = True, False
            raise RuntimeError(f"{NO_SECOND} It draws random numbers, or its operators are not known.")
        if torch.get_default_dtype() != first.dtype:  # it is the process's: no thread may change it for a while
            raise RuntimeError(f"{NO_SECOND} The default dtype was {first.dtype} at the call.")
        inputs = noted.inputs(node)
        tracked_now = torch.is_grad_enabled()
        with torch.enable_grad(), casting(first.casts), first.device:
            leaves = [*map(alias_of, inputs)]
            results = graph.forward(*leaves)
        begun = {
            i: one
            for i, (one, gradient) in enumerate(zip(results, given, strict=True))
            if gradient is not None and isinstance(one, Tensor) and one.requires_grad
        }
        of = _gradients([*begun.values()], leaves, [given[i] for i in begun], tracked_now)
        return [of.get(place) for place in range(len(leaves))]


def _gradients(
    results: Sequence[Tensor], leaves: Sequence[Any], given: Sequence[Any], create_graph: bool
) -> Mapping[int, Tensor | None]:
    """Of the leaves, by their places."""
    wanted = {i: one for i, one in enumerate(leaves) if isinstance(one, Tensor) and one.requires_grad}
    if not (results and wanted):
        return {}
    found = torch.autograd.grad(results, [*wanted.values()], given, create_graph=create_graph, allow_unused=True)
    return dict(zip(wanted, found, strict=True))
