"""A backward that autograd is to follow, or that takes a batch of gradients: by the operators of a graph, run anew.

Compiled code can do neither. What it kept in between has no history, and it takes gradients of one size. So where a
backward is asked for one of these, the operators that plain calls are run anew, and have the backward in its place.
Their inputs are kept for that only by a program that does it: where one is gone by then, or was written since, the
backward raises.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.fx import GraphModule

from ...backward import Tracked, in_transform, keeps_graph, storage_of, tracked, without_history
from ...hit.call import NO_SECOND
from ...keys.autocast import any_autocast, autocast, casting
from .ends import alias_of

__all__ = ["RECENT", "Again"]

Noted = Sequence[Any]
"""What a call was given: numbers, and of each tensor a weak reference, or itself, with its count of writes."""
RECENT = 8
"""So many calls later it is seen what was written since. Where a result was added to what it is made of (``x += f(x)``)
that leads to the call, which holds it: where no backward comes, nobody else would ever let go of the two."""


@dataclass(frozen=True, slots=True)
class First:
    """What is the same at each run of the code, as the first one shows it.

    ``held`` are the places of the inputs whose memory its backward keeps. ``casts``, ``device`` and ``dtype`` are the
    calls' autocast and default ones, which are in the keys of all of them.
    """

    held: frozenset[int]
    casts: Any
    device: torch.device
    dtype: torch.dtype

    @classmethod
    def of(cls, inputs: Sequence[Any], kept: Sequence[Any]) -> First:
        """Of a call that runs now, for whose backward these are kept."""
        memory = {storage_of(one) for one in kept if isinstance(one, Tensor)}
        tensors = {i: one for i, one in enumerate(inputs) if isinstance(one, Tensor)}
        return cls(
            frozenset(i for i, one in tensors.items() if storage_of(one) in memory),
            any_autocast() and autocast(),
            torch.get_default_device(),
            torch.get_default_dtype(),
        )


class Again:
    """What gives the backward of one piece of compiled code, whose ``graph`` calls the operators that plain calls.

    There may be no graph, or not such a one: then there is no backward but the code's.
    """

    def __init__(self, graph: Callable[[], GraphModule | None]) -> None:
        self.graph = graph
        self.first: First | None = None
        self._recent: deque[ref[_Noted]] = deque(maxlen=RECENT)

    @property
    def frames(self) -> Sequence[Any]:
        """What Dynamo is not to follow."""
        own = (
            Again.noted,
            Again.is_tracked,
            Again.left,
            Again.gradients,
            First.of,
            _Noted.let_go,
            _as_it_was,
            _gradients,
        )
        return (*own, Tracked.now, in_transform, alias_of, without_history)

    def noted(self, inputs: Sequence[Any], kept: Sequence[Any]) -> Noted:
        """What there is to know of a call that runs now, for whose backward these are kept.

        An input is held where that takes no more memory, or such backwards have been.
        """
        first = self.first
        if first is None:
            first = self.first = First.of(inputs, kept)
        held = range(len(inputs)) if tracked.ever else first.held
        noted = _Noted([
            (one if i in held else ref(one), one._version) if isinstance(one, Tensor) else one
            for i, one in enumerate(inputs)
        ])  # fmt: skip
        before = self._recent[0]() if len(self._recent) == RECENT else None
        self._recent.append(ref(noted))
        if before is not None:
            before.let_go()
        return noted

    @staticmethod
    def is_tracked() -> bool:
        """Whether the backward that runs is: then `gradients` gives what it gives."""
        return tracked.now()

    @staticmethod
    def left(noted: Noted) -> Noted | None:
        """What a backward leaves of that, before its code lets go of what was kept."""
        return noted if keeps_graph() else None

    def gradients(self, noted: Noted, given: Sequence[Tensor | None]) -> Sequence[Tensor | None]:
        """Of the inputs, where these come to the results; followed by autograd where that is on."""
        graph, first = self.graph(), self.first
        if graph is None or first is None:
            raise RuntimeError(f"{NO_SECOND} It draws random numbers, or its operators are not known.")
        if torch.get_default_dtype() != first.dtype:  # it is the process's: no thread may change it for a while
            raise RuntimeError(f"{NO_SECOND} The default dtype was {first.dtype} at the call.")
        inputs = [_as_it_was(*one) if isinstance(one, tuple) else one for one in noted]
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


class _Noted(list[Any]):
    """See `Noted`."""

    __slots__ = ("__weakref__",)

    def let_go(self) -> None:
        """Hold nothing any more that was written since: no backward takes it, and its history may lead to the call."""
        for i, one in enumerate(self):
            if type(one) is tuple and isinstance(one[0], Tensor) and one[0]._version != one[1]:
                self[i] = ref(one[0]), one[1]


def _as_it_was(held: Any, version: int) -> Tensor:
    tensor: Tensor | None = held() if isinstance(held, ref) else held
    if tensor is None:
        raise RuntimeError(f"{NO_SECOND} Nobody has kept one of the tensors that its code was given.")
    if tensor._version != version:
        raise RuntimeError(f"{NO_SECOND} A tensor that its code was given has been written since.")
    return tensor


def _gradients(
    results: Sequence[Tensor], leaves: Sequence[Any], given: Sequence[Any], create_graph: bool
) -> Mapping[int, Tensor | None]:
    """Of the leaves, by their places."""
    wanted = {i: one for i, one in enumerate(leaves) if isinstance(one, Tensor) and one.requires_grad}
    if not (results and wanted):
        return {}
    found = torch.autograd.grad(results, [*wanted.values()], given, create_graph=create_graph, allow_unused=True)
    return dict(zip(wanted, found, strict=True))
