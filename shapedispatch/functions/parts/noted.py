"""What calls of late were given, as long as backwards may need it: no longer than a few calls where none comes."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from ...hit.call import NO_SECOND

__all__ = ["RECENT", "Noted", "Recent"]

RECENT = 8
"""So many calls later it is seen what was written since. Where a result was added to what it is made of (``x += f(x)``)
that leads to the call, which holds it: where no backward comes, nobody else would ever let go of the two."""


class Noted(list[Any]):
    """What a call was given: numbers, and of each tensor a weak reference, or itself, with its count of writes."""

    __slots__ = ("__weakref__",)

    def let_go(self) -> None:
        """Hold nothing any more that was written since: no backward takes it, and its history may lead to the call."""
        for i, one in enumerate(self):
            if type(one) is tuple and isinstance(one[0], Tensor) and one[0]._version != one[1]:
                self[i] = ref(one[0]), one[1]

    def inputs(self, node: Any = None) -> list[Any]:
        """What it was given; with its history if its ``node`` is given. Raises where that is there no more."""
        inputs = [self.as_it_was(*one) if isinstance(one, tuple) else one for one in self]
        if node is not None:
            tensors = [one for one in inputs if isinstance(one, Tensor)]
            for (before, _), one in zip(node.next_functions, tensors, strict=True):
                if before is not None and not hasattr(before, "variable") and not one.requires_grad:
                    raise RuntimeError(f"{NO_SECOND} A tensor that its code was given has been detached since.")
                if before is None and one.requires_grad and torch.is_grad_enabled():  # some of plain give it one
                    raise RuntimeError(f"{NO_SECOND} A tensor that its code was given needed no gradient then.")
        return inputs

    @staticmethod
    def as_it_was(held: Any, version: int) -> Tensor:
        """A tensor with what it held at the call; raises where it holds that no more."""
        tensor: Tensor | None = held() if isinstance(held, ref) else held
        if tensor is None:
            raise RuntimeError(f"{NO_SECOND} Nobody has kept one of the tensors that its code was given.")
        if tensor._version != version:
            raise RuntimeError(f"{NO_SECOND} A tensor that its code was given has been written since.")
        return tensor


class Recent:
    """The calls of late, each of which lets go of what was written since."""

    def __init__(self) -> None:
        self._calls: deque[ref[Noted]] = deque(maxlen=RECENT)

    def noted(self, inputs: Sequence[Any], held: Container[int]) -> Noted:
        """What a call is given that runs now, of which these places are held."""
        noted = Noted([
            (one if i in held else ref(one), one._version) if isinstance(one, Tensor) else one
            for i, one in enumerate(inputs)
        ])  # fmt: skip
        before = self._calls[0]() if len(self._calls) == RECENT else None
        self._calls.append(ref(noted))
        if before is not None:
            before.let_go()
        return noted
